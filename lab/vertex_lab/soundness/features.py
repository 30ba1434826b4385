"""Ops over a few numbers of their own, and where each is least and greatest while those numbers range over intervals.

Invariant: the extremes of `Feature.apply` over a product of intervals inside `domain` are among the points that
`candidates` gives: all corners, and where a number alone turns the function round inside its interval.

To add an op: one line in FEATURES. If it has extremes elsewhere, `exact.py` sees it at its samples and refuses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

Function = Callable[[Tensor], Tensor]
TICKS = 4001
"""Points of the grid that a turning point is first looked for on."""


class Feature(NamedTuple):
    """A function of `numbers` numbers, (..., numbers) → (...), for numbers within `domain`."""

    apply: Function
    numbers: int = 1
    domain: tuple[float, float] = (-2.0, 2.0)
    turning: int | None = 0
    """the number in which it may turn round, at a place that does not depend on the others; None: in none"""
    alike: bool = False
    """numbers 1, 2, … have one interval, and number 0 one that overlaps it"""


def _single(f: Function, domain: tuple[float, float] = (-2.0, 2.0)) -> Feature:
    return Feature(lambda u: f(u[..., 0]), domain=domain)


def _corners(f: Function, count: int, domain: tuple[float, float] = (-2.0, 2.0), *, alike: bool = False) -> Feature:
    return Feature(f, count, domain, None, alike)


POSITIVE = (0.25, 3.0)
FEATURES: dict[str, Feature] = {
    "relu": _single(torch.relu),
    "gelu": _single(functional.gelu),
    "gelu_tanh": _single(lambda x: functional.gelu(x, approximate="tanh")),
    "silu": _single(functional.silu),
    "sigmoid": _single(torch.sigmoid),
    "tanh": _single(torch.tanh),
    "erf": _single(torch.erf),
    "leaky": _single(lambda x: functional.leaky_relu(x, 0.125)),
    "abs": _single(torch.abs),
    "clamp": _single(lambda x: x.clamp(-0.5, 0.75)),
    "exp": _single(torch.exp),
    "log": _single(torch.log, POSITIVE),
    "sqrt": _single(torch.sqrt, POSITIVE),
    "rsqrt": _single(torch.rsqrt, POSITIVE),
    "reciprocal": _single(torch.reciprocal, POSITIVE),
    "square": _single(torch.square),
    "cube": _single(lambda x: x**3),
    "mish": _single(lambda x: x * torch.tanh(torch.log(1 + torch.exp(x)))),
    "softplus": _single(lambda x: torch.log(1 + torch.exp(x))),
    "elu": _single(functional.elu),
    "mish_itself": _single(functional.mish),
    "softplus_itself": _single(functional.softplus),
    "hardswish": _single(functional.hardswish, (-4.0, 4.0)),
    "linear": _single(lambda x: 0.5 * x - 0.25),
    "multiply": _corners(lambda u: u[..., 0] * u[..., 1], 2),
    "divide": _corners(lambda u: u[..., 0] / u[..., 1], 2, POSITIVE),
    "dot": _corners(lambda u: (u[..., None, :2] @ u[..., 2:, None])[..., 0, 0], 4),
    "maximum": _corners(lambda u: torch.maximum(u[..., 0], u[..., 1]), 2),
    "minimum": _corners(lambda u: torch.minimum(u[..., 0], u[..., 1]), 2),
    "amax": _corners(lambda u: u.amax(-1), 3),
    "softmax": _corners(lambda u: u.softmax(-1)[..., 0], 3),
    "logsumexp": _corners(lambda u: torch.logsumexp(u, -1), 2),
    "layer_norm": _corners(lambda u: functional.layer_norm(u, u.shape[-1:], eps=1e-3)[..., 0], 3, alike=True),
    "rms_norm": _corners(lambda u: functional.rms_norm(u, u.shape[-1:], eps=1e-3)[..., 0], 3, POSITIVE),
    "l2_norm": _corners(lambda u: u[..., 0] / torch.sqrt((u * u).sum(-1) + 0.25), 2, POSITIVE),
    "gate": Feature(lambda u: functional.silu(u[..., 0]) * (2.5 + u[..., 1]), 2),
}


def candidates(feature: Feature, lower: Tensor, upper: Tensor) -> Tensor:
    """(points, ..., numbers): where it may be least or greatest over lower ≤ u ≤ upper, (..., numbers) each."""
    columns = []
    for i in range(feature.numbers):
        column = [lower[..., i], upper[..., i]]
        if feature.turning == i:
            column += [_turned(feature, lower, upper, way) for way in (1.0, -1.0)]
        columns.append(column)
    return torch.stack([torch.stack(point, -1) for point in itertools.product(*columns)])


def _turned(feature: Feature, lower: Tensor, upper: Tensor, way: float) -> Tensor:
    """(...): where in its interval the turning number makes `way` · f least, the others being at their lower ends."""

    def value(t: Tensor) -> Tensor:
        u = lower.expand(*t.shape, -1).clone()
        u[..., feature.turning or 0] = at(t)
        return way * feature.apply(u)

    low, high = (end[..., feature.turning or 0] for end in (lower, upper))

    def at(t: Tensor) -> Tensor:
        return (low + t * (high - low)).clamp(low, high)

    grid = torch.linspace(0, 1, TICKS, dtype=lower.dtype).reshape(-1, *[1] * low.dim()).expand(-1, *low.shape)
    best = grid.gather(0, value(grid).argmin(0)[None])[0]
    left, right = (best - 1 / (TICKS - 1)).clamp(0, 1), (best + 1 / (TICKS - 1)).clamp(0, 1)
    for _ in range(60):  # thirds: around its least value the function has no other
        a, b = left + (right - left) / 3, right - (right - left) / 3
        lies = value(a[None])[0] < value(b[None])[0]
        left, right = torch.where(lies, left, a), torch.where(lies, b, right)
    middle = (left + right) / 2
    better = value(middle[None])[0] < value(best[None])[0]
    return at(torch.where(better, middle, best))
