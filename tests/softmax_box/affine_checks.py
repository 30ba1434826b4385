"""What every implementation of the affine vertex rule is held to, and the oracle: the rule in ball arithmetic.

Each check takes the implementation, so that test_affine_mutants.py can hold broken ones to the same checks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import flint
import numpy as np
import torch
from flint import arb
from torch import Tensor

from tests.softmax_box.affine_rows import Rows, rows, worst_points
from tests.softmax_box.helpers import error_from, floats
from vertex_softmax.softmax_box.log_ranges import LogRanges, log_probabilities, pieces
from vertex_softmax.softmax_box.outward import LIMITS

PRECISION = 256
UNIT = LIMITS[torch.float64].unit

Minorant = Callable[..., Tensor]
"""(lower, upper, value_lower, value_upper, a, m, mu, outward=False), (rows, K) and (rows, M), to (rows)."""


# Exact values


def exact_excess(row: Any, s: Any, v: Any) -> arb:
    """A ball around Σ p v − a·s − m·v for one row and one point of its boxes."""
    _, upper, _, _, a, m, _ = (floats(x) for x in row)
    keys = [j for j, u in enumerate(upper) if u > -math.inf]
    with flint.ctx.workprec(PRECISION):
        top = arb(max(s[j] for j in keys))
        weights = {j: (arb(s[j]) - top).exp() for j in keys}
        total = sum((weights[j] * arb(v[j]) for j in keys), arb(0)) / sum(weights.values(), arb(0))
        for j, (slope, coefficient) in enumerate(zip(a, m, strict=True)):
            total -= arb(coefficient) * arb(v[j]) + (arb(slope) * arb(s[j]) if j in weights else 0)
        return total


class Exact(NamedTuple):
    """Balls around the ends of log p_j in every piece and the cuts of lse(s), for one row without masked keys."""

    low: list[list[arb]]
    high: list[list[arb]]
    cuts: list[arb]


def exact_ranges(lower: list[float], upper: list[float], inner_cuts: list[float]) -> Exact:
    """The range of lse(s) is cut at max u + `inner_cuts`, or at its end if that is outside."""
    keys = range(len(upper))
    top = arb(max(upper))
    e_low, e_high = ([(arb(s) - top).exp() for s in x] for x in (lower, upper))

    def log_p(j: int, own: list[arb], rest: list[arb], score: float) -> arb:
        return arb(score) - top - sum((rest[k] for k in keys if k != j), own[j]).log()

    low = [log_p(j, e_low, e_high, lower[j]) for j in keys]
    high = [log_p(j, e_high, e_low, upper[j]) for j in keys]
    first, last = (top + sum(e, arb(0)).log() for e in (e_low, e_high))
    D = [first, *((top + arb(cut)).max(first).min(last) for cut in inner_cuts), last]
    if len(D) == 2:
        return Exact([low], [high], D)
    return Exact(
        [[low[j].max(arb(lower[j]) - D1) for j in keys] for D1 in D[1:]],
        [[high[j].min(arb(upper[j]) - D0) for j in keys] for D0 in D[:-1]],
        D,
    )


def exact_minorant(row: Any, inner_cuts: list[float]) -> arb:
    """A ball around B of the rule in real arithmetic for one row, the range of lse(s) cut at max u + `inner_cuts`."""
    lower, upper, value_lower, value_upper, a, m, mu = (floats(x) for x in row)
    keys = [j for j, u in enumerate(upper) if u > -math.inf]
    with flint.ctx.workprec(PRECISION):
        ranges = exact_ranges([lower[j] for j in keys], [upper[j] for j in keys], inner_cuts)
        rest = sum((arb(x) for x in a), arb(0))
        found = []
        for level, low, high, first, last in zip(mu, *ranges[:2], ranges.cuts[:-1], ranges.cuts[1:], strict=True):
            total = arb(level) - (rest * first).max(rest * last)
            for j, left, right in zip(keys, low, high, strict=True):
                values = (arb(value_lower[j]), arb(value_upper[j]))
                total += _inner(left, right, values, arb(a[j]), arb(m[j]), arb(level))
            for j in set(range(len(upper))).difference(keys):
                total += (-arb(m[j]) * arb(value_lower[j])).min(-arb(m[j]) * arb(value_upper[j]))
            found.append(total)
        return functools.reduce(arb.min, found)


def _inner(left: arb, right: arb, values: tuple[arb, arb], a: arb, m: arb, mu: arb) -> arb:
    candidates = []
    e_left, e_right = left.exp(), right.exp()
    for v in values:
        w = v - mu
        candidates += [w * e_left - a * left - m * v, w * e_right - a * right - m * v]
        if a > 0 and w > 0:
            bottom = (a / w).log()
            if bottom > left and bottom < right:
                candidates.append(a - a * bottom - m * v)
    return functools.reduce(arb.min, candidates)


class Known(NamedTuple):
    """Rows, balls around their exact B, and the point of each row's boxes with the smallest excess seen."""

    name: str
    box: Rows
    exact: list[arb]
    points: list[tuple[list[float], list[float]]]


def knowing(name: str, box: Rows, rng: np.random.Generator) -> Known:
    double = Rows(*(x.double() for x in box))
    inner = pieces(double.lower, double.upper, box.mu.shape[-1]).cuts[:, 1:-1].tolist()
    exact = [exact_minorant(row, cut) for row, cut in zip(lists(box), inner, strict=True)]
    s, v = worst_points(box, rng, 12, 12)
    return Known(name, box, exact, list(zip(s.tolist(), v.tolist(), strict=True)))


@functools.lru_cache(maxsize=64)
def known(count: int, K: int, M: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Known:
    rng = np.random.default_rng([seed, count, K, M])
    return knowing(f"K = {K}, M = {M}, {dtype}", rows(rng, count, K, M, dtype), rng)


def lists(box: Rows) -> Iterable[tuple[list[float], ...]]:
    return zip(*(x.tolist() for x in box), strict=True)


def size(box: Rows) -> Tensor:
    """The sizes of all terms of the rule, added up, (rows): what its rounding is relative to.

    |μ| + Σ_j (|v_j − μ| e^r R + |a_j| R + |m_j v_j|) + Σ|a| |lse|, the largest over ends and pieces, where R = 1 + |r|,
    and with pieces R = 1 + |r| + |lse − max u|: the ends of r are as large, and rounded.
    """
    box = Rows(*(x.double() for x in box))
    there = box.upper > -torch.inf
    low, high = (torch.where(there, x, 0.0) for x in log_probabilities(box.lower, box.upper))
    whole = pieces(box.lower, box.upper, 1)
    D, shift = whole.cuts, whole.shift
    far = 1 + D.abs().amax(-1, keepdim=True) * (box.mu.shape[-1] > 1)
    weight = torch.where(there, torch.maximum(low.exp() * (far - low), high.exp() * (far - high)), 0.0)
    values = torch.maximum(box.value_lower.abs(), box.value_upper.abs())
    level = box.mu.abs().amax(-1)
    terms = (values + level[:, None]) * weight + box.a.abs() * (far - low) + box.m.abs() * values
    return level + terms.sum(-1) + box.a.abs().sum(-1) * (shift + D).abs().amax(-1)


def tolerance(box: Rows) -> Tensor:
    """The stated accuracy of the plain result: ε (8 + 4 √K) · `size`, half an ulp of single precision, `underflow`."""
    keys, single = box.a.shape[-1], box.a.dtype == torch.float32
    return (UNIT * (8 + 4 * math.sqrt(keys)) + LIMITS[torch.float32].unit * single) * size(box) + underflow(box)


def underflow(box: Rows) -> Tensor:
    """What may be lost where e^r, a/w or a product is not a normal number: below 10⁻³⁰⁴ of |v| + |μ|."""
    values = torch.maximum(box.value_lower.abs(), box.value_upper.abs()).double().sum(-1)
    keys, tiny = box.a.shape[-1], torch.finfo(torch.float64).tiny
    return 2000 * keys * tiny * (values + box.mu.abs().amax(-1).double()) + 16 * keys * torch.finfo(box.a.dtype).tiny


# Checks


def check_values(minorant: Minorant, cases: Iterable[Known]) -> None:
    """Every result is finite and within `tolerance` of the exact B."""
    for case in cases:
        got = minorant(*case.box).tolist()
        for i, (value, ball, allowed) in enumerate(zip(got, case.exact, tolerance(case.box).tolist(), strict=True)):
            off = error_from(ball, value)
            assert off <= allowed, f"{case.name}, row {i}: {value!r} is off by {off:.3g}, allowed {allowed:.3g}"


def check_outward(minorant: Minorant, cases: Iterable[Known]) -> None:
    """No outward result is above the exact B, and none above a point of the boxes: no tolerance, decided by balls."""
    for case in cases:
        got = minorant(*case.box, outward=True).tolist()
        _none_above(case.name, got, case.exact)
        attained = [exact_excess(row, *point) for row, point in zip(lists(case.box), case.points, strict=True)]
        _none_above(f"{case.name}, a point of the boxes", got, attained)


def check_points(minorant: Minorant, box: Rows, points: tuple[Tensor, Tensor]) -> None:
    """No outward result is above what is attained at the given point of the boxes: no tolerance, decided by balls."""
    got = minorant(*box, outward=True).tolist()
    triples = zip(lists(box), *(x.tolist() for x in points), strict=True)
    _none_above("a point of the boxes", got, [exact_excess(*triple) for triple in triples])


def _none_above(name: str, got: list[float], exact: list[arb]) -> None:
    """Certainly: a number that cannot be told from the ball fails as well, under another name."""
    for i, (value, ball) in enumerate(zip(got, exact, strict=True)):
        assert not arb(value) > ball, f"{name}, row {i}: {value!r} is above {ball}"
    for i, (value, ball) in enumerate(zip(got, exact, strict=True)):
        assert arb(value) <= ball, f"{name}, row {i}: {value!r} cannot be told from {ball}"


def check_not_vacuous(minorant: Minorant, cases: Iterable[Known]) -> None:
    """The outward result lies at most 4 ε (K + 16) · `size` (and an ulp of single precision) below the exact B."""
    for case in cases:
        got = minorant(*case.box, outward=True).tolist()
        keys, single = case.box.a.shape[-1], case.box.a.dtype == torch.float32
        share = 4 * UNIT * (keys + 16) + 2 * LIMITS[torch.float32].unit * single
        allowed = share * size(case.box) + underflow(case.box)
        for i, (value, ball, most) in enumerate(zip(got, case.exact, allowed.tolist(), strict=True)):
            gap = error_from(ball, value)
            assert gap <= most, f"{case.name}, row {i}: {gap / most:.3g} of the allowed gap"


def check_ranges(ranges: Callable[..., LogRanges], cases: Iterable[Known]) -> None:
    """The widened ends contain the exact ones, of log p in every piece and of lse(s): no tolerance."""
    for case in cases:
        M = case.box.mu.shape[-1]
        lower, upper = case.box.lower.double(), case.box.upper.double()
        widened = ranges(lower, upper, M)
        found = [x.tolist() for x in (widened.low, widened.high, widened.cuts, widened.shift)]
        for i, (low, high, cuts, (shift,)) in enumerate(zip(*found, strict=True)):
            there = (upper[i] > -torch.inf).nonzero().flatten().tolist()
            with flint.ctx.workprec(PRECISION):
                exact = exact_ranges(lower[i, there].tolist(), upper[i, there].tolist(), cuts[1:-1])
                where = f"{case.name}, row {i}"
                assert arb(shift) + arb(cuts[0]) <= exact.cuts[0], f"{where}: the range of lse(s) is cut short"
                assert arb(shift) + arb(cuts[-1]) >= exact.cuts[-1], f"{where}: the range of lse(s) is cut short"
                for k in range(M):
                    for j, least, greatest in zip(there, exact.low[k], exact.high[k], strict=True):
                        assert low[k][j] == 0 or arb(low[k][j]) <= least, f"{where}, key {j}: {low[k][j]!r}, {least}"
                        assert high[k][j] == 0 or arb(high[k][j]) >= greatest, f"{where}, key {j}: {high[k][j]!r}"
