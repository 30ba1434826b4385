"""Deliberately broken affine vertex rules. The checks of affine_checks.py must catch each (test_affine_mutants.py)."""

from __future__ import annotations

import dataclasses
import math
from unittest import mock

import torch
from torch import Tensor

from tests.softmax_box.affine_checks import Minorant
from vertex_softmax.softmax_box import affine_minorant
from vertex_softmax.softmax_box import affine_outward as proof
from vertex_softmax.softmax_box.log_ranges import LogRanges, pieces


def by_cut(
    lower: Tensor,
    upper: Tensor,
    value_lower: Tensor,
    value_upper: Tensor,
    a: Tensor,
    m: Tensor,
    mu: Tensor,
    outward: bool = False,
    *,
    mutation: str = "",
) -> Tensor:
    """The rule written another way, the range of r cut at log m, with one mistake (or none); a K × K array and a loop.

    v sits at v^U where e^r ≤ m and at v^L where e^r ≥ m.
    """
    dtype = mu.dtype
    lower, upper, value_lower, value_upper, a, m, mu = (
        x.double() for x in (lower, upper, value_lower, value_upper, a, m, mu)
    )
    there = upper > -torch.inf
    own = torch.eye(upper.shape[-1], dtype=torch.bool)
    shift = upper.amax(-1, keepdim=True)
    low_end, high_end = lower - shift, upper - shift
    ends = ((low_end, high_end), (high_end, low_end))
    log_low, log_high = (
        -torch.where(own, 0.0, theirs[:, None] - torch.where(there, mine, 0.0)[:, :, None]).logsumexp(-1)
        for mine, theirs in ends
    )
    if mutation == "p^L at the lower ends of all keys":
        log_low = low_end.log_softmax(-1)
    if mutation == "p^U at the upper ends of all keys":
        log_high = high_end.log_softmax(-1)
    D = pieces(lower, upper, mu.shape[-1]).cuts
    rest = a.sum(-1)
    found = []
    count = mu.shape[-1]
    for k in range(count):
        D0, D1 = D[:, k, None], D[:, k + 1, None]
        if mutation == "pieces' cuts exchanged":
            D0, D1 = D1, D0
        low, high = log_low, log_high
        if count > 1:
            low, high = torch.maximum(low, low_end - D1), torch.minimum(high, high_end - D0)
        crossed = low > high
        low, high = torch.minimum(low, high), torch.maximum(low, high)
        level = mu[:, k, None]
        values = (value_lower, value_upper) if mutation == "branches swapped" else (value_upper, value_lower)
        cut = torch.where(m > 0, torch.minimum(torch.maximum(m.clamp(min=1e-300).log(), low), high), low)
        if mutation == "cut at p^U":
            cut = high
        if mutation == "cut at p^L":
            cut = low
        below = _least(values[0] - level, a, low, cut, mutation) - m * values[0]
        above = _least(values[1] - level, a, cut, high, mutation) - m * values[1]
        masked = torch.minimum(-m * value_lower, -m * value_upper)
        if mutation == "masked keys without their values":
            masked = torch.zeros_like(masked)
        term = torch.where(there, torch.minimum(below, above), masked)
        total = (mu[:, 0] if mutation == "one multiplier for all constants" else mu[:, k]) + term.sum(-1)
        lse = rest[:, None] * (shift + D[:, k : k + 2])
        if mutation == "lse at its upper end":
            lse = lse[:, 1:]
        if mutation == "the smaller lse term":
            lse = lse.amin(-1, keepdim=True)
        total = total if mutation == "lse term missing" else total - lse.amax(-1)
        if mutation == "crossed pieces dropped":
            total = torch.where((crossed & there).any(-1), math.inf, total)
        found.append(total)
    if mutation == "last piece dropped" and count > 1:
        found = found[:-1]
    if mutation == "first piece dropped" and count > 1:
        found = found[1:]
    if mutation == "the best piece":
        return torch.stack(found).amax(0).to(dtype)
    return torch.stack(found).amin(0).to(dtype)


def _least(w: Tensor, a: Tensor, left: Tensor, right: Tensor, mutation: str) -> Tensor:
    ends = [w * r.exp() - a * r for r in (left, right)]
    bowl = (w > 0) & (a > 0)
    bottom = torch.where(bowl, a, 1.0).log() - torch.where(bowl, w, 1.0).log()
    inside = bowl & (bottom > left) & (bottom < right)
    if mutation == "bottom forgotten":
        inside = torch.zeros_like(inside)
    if mutation == "bottom where there is none":
        inside = bowl
    if mutation == "left end only":
        return torch.where(inside, a - a * bottom, ends[0])
    return torch.where(inside, a - a * bottom, torch.minimum(*ends))


UNSOUND = (
    "branches swapped", "cut at p^U", "cut at p^L", "lse term missing", "lse at its upper end", "the smaller lse term",
    "last piece dropped", "first piece dropped", "crossed pieces dropped", "the best piece",
    "one multiplier for all constants", "p^L at the lower ends of all keys", "p^U at the upper ends of all keys",
    "pieces' cuts exchanged", "masked keys without their values", "bottom forgotten", "left end only",
)  # fmt: skip
LOOSE = ("bottom where there is none",)


# Wrong proofs


def plain_value(*box: Tensor, outward: bool = False) -> Tensor:
    return affine_minorant(*box)


def one_ulp_below(*box: Tensor, outward: bool = False) -> Tensor:
    plain = affine_minorant(*box)
    return torch.nextafter(plain, torch.full_like(plain, -math.inf))


def with_unit(factor: float) -> Minorant:
    """Every rounding term multiplied by `factor`."""

    def mutant(*box: Tensor, outward: bool = False) -> Tensor:
        with mock.patch.object(proof, "UNIT", proof.UNIT * factor):
            return affine_minorant(*box, outward=outward)

    return mutant


def rounded_to_nearest(*box: Tensor, outward: bool = False) -> Tensor:
    """The proved bound in double precision, then rounded to nearest in single precision."""
    return affine_minorant(*(x.double() for x in box), outward=outward).to(box[-1].dtype)


PROOFS: dict[str, Minorant] = {
    "plain value": plain_value,
    "one ulp below the plain value": one_ulp_below,
    "error term zero": with_unit(0.0),
    "error term an eighth": with_unit(1 / 8),
    "rounded to nearest": rounded_to_nearest,
}


# Wrong ranges


def ranges_not_widened(lower: Tensor, upper: Tensor, M: int) -> LogRanges:
    return _ordered(pieces(lower, upper, M))


def only_the_cuts_widened(lower: Tensor, upper: Tensor, M: int) -> LogRanges:
    return _ordered(pieces(lower, upper, M, lambda x, keys: 2.0**-53 * (5 * x.abs() + 2 * keys + 16)))


def only_log_p_widened(lower: Tensor, upper: Tensor, M: int) -> LogRanges:
    plain = pieces(lower, upper, M)
    return dataclasses.replace(proof.proved_ranges(lower, upper, M), cuts=plain.cuts, shift=plain.shift)


def _ordered(found: LogRanges) -> LogRanges:
    low, high = torch.minimum(found.low, found.high), torch.maximum(found.low, found.high)
    return dataclasses.replace(found, low=low, high=high)


RANGES = (ranges_not_widened, only_the_cuts_widened, only_log_p_widened)
