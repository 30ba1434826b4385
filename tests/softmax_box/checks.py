"""What every implementation is held to. Each check takes the implementation, so that test_mutants.py can hold broken
ones to the same checks and see them fail.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from flint import arb
from torch import Tensor

import vertex_softmax as vx
from tests.softmax_box.boxes import Boxes, family
from tests.softmax_box.helpers import (
    Implementation,
    error_from,
    exact_mins,
    exact_probabilities,
    exact_ratio,
    tolerance,
)
from vertex_softmax.softmax_box import outward as proof
from vertex_softmax.softmax_box.outward import LIMITS


class Known(NamedTuple):
    """Boxes together with balls around their exact minima."""

    name: str
    boxes: Boxes
    exact: list[arb]


@functools.lru_cache(maxsize=1024)  # all of test_soundness.py, which asks for some of them twice
def known(name: str, rows: int, keys: int, dtype: torch.dtype, seed: int = 0) -> Known:
    boxes = family(name, rows, keys, dtype, seed)
    return Known(f"{name}, K = {keys}, {dtype}", boxes, exact_mins(*boxes))


def check_values(implementation: Implementation, cases: Iterable[Known]) -> None:
    """Every result is finite and within `tolerance` of the exact minimum."""
    for case in cases:
        got = implementation(*case.boxes).tolist()
        for i, (value, ball, allowed) in enumerate(zip(got, case.exact, tolerance(*case.boxes).tolist(), strict=True)):
            off = error_from(ball, value)
            assert off <= allowed, f"{case.name}, row {i}: {value!r} is off by {off:.3g}, allowed {allowed:.3g}"


def check_outward(implementation: Implementation, cases: Iterable[Known]) -> None:
    """No outward result is above the exact minimum: no tolerance, rounding never decides.

    Decided by the oracle's ball, or by min c, or (where the result may equal the minimum exactly) by is_lower_bound.
    """
    for case in cases:
        got = implementation(*case.boxes, outward=True)
        assert bool(got.isfinite().all()), f"{case.name}: an outward result is not finite"
        least = torch.where(case.boxes.upper > -torch.inf, case.boxes.c, torch.inf).amin(-1).tolist()
        open_ = [
            i
            for i, (value, ball, low) in enumerate(zip(got.tolist(), case.exact, least, strict=True))
            if not (value <= low or arb(value) <= ball)
        ]
        answers = vx.is_lower_bound(got[open_], *(x[open_] for x in case.boxes)) if open_ else []
        above = [i for i, answer in zip(open_, answers, strict=True) if answer is not True]
        assert not above, f"{case.name}, row {above[0]}: {got[above[0]].item()!r} is above {case.exact[above[0]]}"


def check_lower_bound_agrees(implementation: Implementation, cases: Iterable[Known]) -> None:
    """vx.is_lower_bound proves every outward result."""
    for case in cases:
        got = implementation(*case.boxes, outward=True)
        answers = vx.is_lower_bound(got, *case.boxes)
        assert all(answer is True for answer in answers), (
            f"{case.name}: {[i for i, a in enumerate(answers) if a is not True]}"
        )


def check_not_vacuous(implementation: Implementation, cases: Iterable[Known]) -> None:
    """The outward result lies at most 8 ε · max|c| · (K + 32 + W) below the plain one (W as in `tolerance`)."""
    for case in cases:
        c, lower, upper = case.boxes
        wide = upper.double().amax(-1) - lower.double().amax(-1)
        allowed = 8 * LIMITS[c.dtype].unit * c.double().abs().amax(-1) * (c.shape[-1] + 32 + wide)
        gap = implementation(*case.boxes).double() - implementation(*case.boxes, outward=True).double()
        assert bool((gap <= allowed).all()), f"{case.name}: {(gap / allowed).max():.3g} of the allowed gap"


def accepted(c: Tensor, lower: Tensor, upper: Tensor, t: Tensor, *, safety: float = proof.SAFETY) -> Tensor:
    """Does the proof of outward.py accept t, (rows, 1), as a lower bound? (rows, 1)"""
    limits = LIMITS[c.dtype]
    residual, error, _ = proof.weight_residual(c, lower, upper, upper.amax(-1, keepdim=True), t)
    lost = (
        c.shape[-1] * limits.underflow * (1 + (c.amax(-1, keepdim=True).double() - c.amin(-1, keepdim=True).double()))
    )
    return residual - safety * (error + lost) >= 0


def check_acceptance(accept: Callable[..., Tensor], cases: Iterable[Known]) -> int:
    """Whatever produced a candidate: if it is accepted, it is a lower bound. Candidates just above the exact minimum.

    Returns how many candidates were tried. lower_bound takes twice the step it needs, which would hide a bound that
    is too small by half; this asks the bound itself.
    """
    tried = 0
    for case in cases:
        c, lower, upper = case.boxes
        exact = torch.tensor([float(ball) for ball in case.exact], dtype=torch.float64)[:, None]
        step = tolerance(c, lower, upper)[:, None]
        for part in (2.0**-10, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5):
            t = (exact + part * step).to(c.dtype)
            yes = accept(c, lower, upper, t).squeeze(-1)
            tried += len(t)
            for i in yes.nonzero().flatten().tolist():
                sound = vx.is_lower_bound(t[i, 0].item(), c[i], lower[i], upper[i]) is True
                assert sound, f"{case.name}, row {i}: {t[i, 0].item()!r} was accepted and is above {case.exact[i]}"
    return tried


def check_probabilities(ranges: Callable[..., tuple[Tensor, Tensor]], cases: Iterable[Known]) -> None:
    """Both ends of every component are within 2⁻⁵³ (8 + 2 K + 8 max |score|) of the exact one, relatively.

    Differences of scores are rounded, and so are logarithms of sums of their exponentials.
    """
    for case in cases:
        _, lower, upper = case.boxes
        least, greatest = (x.tolist() for x in ranges(lower, upper))
        for i, (row_l, row_u) in enumerate(zip(lower.tolist(), upper.tolist(), strict=True)):
            seen = [abs(x) for x in (*row_l, *row_u) if x > -math.inf]
            allowed = 2 * LIMITS[lower.dtype].unit + LIMITS[torch.float64].unit * (8 + 2 * len(row_l) + 8 * max(seen))
            for j, (low, high) in enumerate(exact_probabilities(row_l, row_u)):
                tiny = 4 * torch.finfo(lower.dtype).smallest_normal
                for got, ball in ((least[i][j], low), (greatest[i][j], high)):
                    off = error_from(ball, got)
                    assert off <= allowed * float(ball.upper()) + tiny, (
                        f"{case.name}, row {i}, key {j}: {got!r}, {ball}"
                    )


Enclose = Callable[..., tuple[Any, Any]]


def check_enclosure(enclose: Enclose, cases: Iterable[Known], narrow: float = math.inf) -> None:
    """lo ≤ exact minimum ≤ hi, certainly, and hi − lo ≤ narrow · max|c| (or a few subnormal ulps)."""
    for case in cases:
        lo, hi = enclose(*case.boxes)
        size = case.boxes.c.double().abs().amax(-1).tolist()
        for i, (below, above, ball) in enumerate(zip(lo.tolist(), hi.tolist(), case.exact, strict=True)):
            assert math.isfinite(below), f"{case.name}, row {i}"
            assert math.isfinite(above), f"{case.name}, row {i}"
            row = [x[i] for x in case.boxes]
            inside = arb(below) <= ball or vx.is_lower_bound(below, *row) is True
            assert inside, f"{case.name}, row {i}: lo = {below!r} is above {ball}"
            next_up = math.nextafter(above, math.inf)  # is_lower_bound(hi⁺) is False: the minimum is below hi⁺
            attained = arb(above) >= ball or (arb(above).overlaps(ball) and vx.is_lower_bound(next_up, *row) is False)
            assert attained, f"{case.name}, row {i}: hi = {above!r} is below {ball}"
            assert narrow == math.inf or above - below <= narrow * size[i] + 4 * math.ulp(0.0), (
                f"{case.name}, row {i}: {above - below:.3g} wide"
            )


def check_vertex(argmin: Callable[..., Any], cases: Iterable[Known]) -> None:
    """The vertex handed out is a threshold vertex with `threshold` upper ends, and attains the minimum."""
    for case in cases:
        c, lower, upper = case.boxes
        vertex = argmin(*case.boxes)
        assert bool((vertex.threshold == vertex.mask.sum(-1)).all()), case.name
        assert not bool((vertex.mask & (upper == -torch.inf)).any()), f"{case.name}: a masked key is in the mask"
        highest = torch.where(vertex.mask, c, -torch.inf).amax(-1)
        assert bool((torch.where(vertex.mask | (upper == -torch.inf), torch.inf, c).amin(-1) >= highest).all()), (
            case.name
        )
        scores = torch.where(vertex.mask, upper, lower)
        for i, (ball, allowed) in enumerate(zip(case.exact, tolerance(*case.boxes).tolist(), strict=True)):
            attained = exact_ratio(c[i], scores[i])
            off = float(abs(attained - ball).upper())
            assert off <= allowed, f"{case.name}, row {i}: the vertex has value {attained}, the minimum is {ball}"
            assert error_from(ball, vertex.value[i].item()) <= allowed, f"{case.name}, row {i}"


def rows_of(case: Known) -> Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    return zip(*(x.numpy() for x in case.boxes), strict=True)
