"""Deliberately broken implementations. The checks of checks.py must catch each one (test_mutants.py)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor

from tests.softmax_box.helpers import Implementation, exact_mins, finished
from vertex_softmax.softmax_box import log_domain, torch_backend
from vertex_softmax.softmax_box import outward as proof

# Wrong values


def by_thresholds(c: Tensor, lower: Tensor, upper: Tensor, outward: bool = False, *, mutation: str = "") -> Tensor:
    """Algorithm 1 written plainly, with one mistake (or none)."""
    if mutation == "lower and upper swapped":
        lower, upper = upper, lower
    if mutation == "exponents clamped at 30":
        lower, upper = lower.clamp(-30, 30), upper.clamp(-30, 30)
    c, order = c.sort(-1, descending=mutation == "upper end on the largest coefficients")
    a = torch.maximum(lower, upper).amax(-1, keepdim=True)
    L, U = (lower - a).exp().gather(-1, order), (upper - a).exp().gather(-1, order)

    def prefix(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x.cumsum(-1), (1, 0))

    def head(x: Tensor) -> Tensor:
        """Σ over the m smallest. As a difference it cancels: the total holds every weight that is *not* in the head."""
        return x.sum(-1, keepdim=True) - suffix(x) if mutation == "prefix as total minus suffix" else prefix(x)

    def suffix(x: Tensor) -> Tensor:
        if mutation == "suffix dropped":
            return torch.zeros_like(prefix(x))
        if mutation == "threshold off by one":
            return torch.nn.functional.pad(x.flip(-1).cumsum(-1).flip(-1), (1, 0))
        return torch.nn.functional.pad(x.flip(-1).cumsum(-1).flip(-1), (0, 1))

    mass = head(U) + suffix(L)
    if mutation == "epsilon in the denominator":
        mass = mass + 1e-9
    tau = (head(c * U) + suffix(c * L)) / mass
    if mutation == "maximum instead of minimum":
        return tau.amax(-1)
    if mutation == "last threshold only":
        return tau[..., -1]
    return tau[..., 1:].amin(-1) if mutation == "suffix dropped" else tau.amin(-1)


VALUE_MUTATIONS = (
    "upper end on the largest coefficients", "suffix dropped", "prefix as total minus suffix", "threshold off by one",
    "lower and upper swapped", "exponents clamped at 30", "epsilon in the denominator", "maximum instead of minimum",
    "last threshold only",
)  # fmt: skip


def newton_without_band(c: Tensor, lower: Tensor, upper: Tensor, outward: bool = False) -> Tensor:
    a = upper.amax(-1, keepdim=True)
    L, U = (lower - a).exp(), (upper - a).exp()
    t = c.mean(-1, keepdim=True)
    for _ in range(100):
        y = torch.where(c < t, U, L)
        better = (c * y).sum(-1, keepdim=True) / y.sum(-1, keepdim=True)
        t = torch.where(better < t, better, t) if _ else better
    return t.squeeze(-1)


def newton_without_rounds(c: Tensor, lower: Tensor, upper: Tensor, outward: bool = False) -> Tensor:
    """Stops after the first round."""
    up = c < c.mean(-1, keepdim=True)
    return (torch.where(up, upper, lower).softmax(-1) * c).sum(-1)


# Wrong proofs

torch_path: Implementation = functools.partial(
    finished, functools.partial(torch_backend.minimum, solver=torch_backend.newton)
)


def plain_value_as_outward(c: Tensor, lower: Tensor, upper: Tensor, outward: bool = False) -> Tensor:
    return torch_path(c, lower, upper)


def one_ulp_below_as_outward(c: Tensor, lower: Tensor, upper: Tensor, outward: bool = False) -> Tensor:
    plain = torch_path(c, lower, upper)
    return torch.nextafter(plain, torch.full_like(plain, -math.inf))


def with_safety(factor: float) -> Implementation:
    """The proof's error bound multiplied by `factor`."""

    def mutant(c: Tensor, lower: Tensor, upper: Tensor, outward: bool = False) -> Tensor:
        with mock.patch.object(proof, "SAFETY", proof.SAFETY * factor):
            return torch_path(c, lower, upper, outward)

    return mutant


def without_the_scores_share(c: Tensor, lower: Tensor, upper: Tensor, outward: bool = False) -> Tensor:
    """The proof without the rounding of s − a, |x| ulps of every weight."""

    def flat(*args: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        residual, _, mass = real(*args)
        c, lower, upper, shift, t = args
        y = (torch.where(c < t, upper, lower) - shift).exp().double()
        unit = proof.LIMITS[c.dtype].unit
        return residual, ((c.double() - t).abs() * y).sum(-1, keepdim=True) * unit * (c.shape[-1] + 20), mass

    real = proof.weight_residual
    with mock.patch.object(proof, "weight_residual", flat):
        return torch_path(c, lower, upper, outward)


def without_underflow(c: Tensor, lower: Tensor, upper: Tensor, outward: bool = False) -> Tensor:
    limits = {dtype: dataclasses.replace(limit, underflow=0.0) for dtype, limit in proof.LIMITS.items()}
    with mock.patch.object(proof, "LIMITS", limits):
        return torch_path(c, lower, upper, outward)


def log_domain_rounded_to_nearest(c: Tensor, lower: Tensor, upper: Tensor, outward: bool = False) -> Tensor:
    with mock.patch.object(proof, "round_down", lambda value, dtype: value.to(dtype)):
        return log_domain.minimum(c, lower, upper, outward=outward)


OUTWARD_MUTANTS: dict[str, Implementation] = {
    "plain value": plain_value_as_outward,
    "one ulp below the plain value": one_ulp_below_as_outward,
    "error term zero": with_safety(0.0),
    "error term quartered": with_safety(0.25),
    "rounding of the scores forgotten": without_the_scores_share,
    "underflow forgotten": without_underflow,
    "log domain rounded to nearest": log_domain_rounded_to_nearest,
    "upper end on the largest coefficients": functools.partial(by_thresholds, mutation=VALUE_MUTATIONS[0]),
}


# Wrong ranges of probabilities


def others_by_subtraction(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_{k≠j} as total minus own: cancels when key j dominates."""
    a = upper.amax(-1, keepdim=True)
    L, U = (lower - a).exp(), (upper - a).exp()
    return L / (L + (U.sum(-1, keepdim=True) - U)), U / (U + (L.sum(-1, keepdim=True) - L))


def ends_swapped(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Every key at its lower end for p^L, every key at its upper end for p^U."""
    return lower.softmax(-1), upper.softmax(-1)


PROBABILITY_MUTANTS = (others_by_subtraction, ends_swapped)


# Wrong enclosures


def nearest(c: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The exact minimum rounded to the nearest float, without stepping out."""
    values = torch.tensor([float(ball) for ball in exact_mins(c, lower, upper)], dtype=torch.float64)
    return values, values


def never_below(c: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Steps up, never down."""
    values, _ = nearest(c, lower, upper)
    return values, torch.nextafter(values, torch.full_like(values, math.inf))


def never_above(c: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    values, _ = nearest(c, lower, upper)
    return torch.nextafter(values, torch.full_like(values, -math.inf)), values


def vacuous(c: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    return c.double().amin(-1), c.double().amax(-1)


ENCLOSURE_MUTANTS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    f.__name__: f for f in (nearest, never_below, never_above, vacuous)
}
