"""Independent ways to know the answer, and every implementation that must give it.

The oracle evaluates all K + 1 threshold vertices in ball arithmetic (Arb, 320 bits) with prefix and suffix sums. It
shares no code with `softmax_box.rigorous`. `enumerated_min` evaluates all 2^K vertices and trusts no theorem at all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import flint
import numpy as np
import torch
from flint import arb
from torch import Tensor

from vertex_softmax.softmax_box import log_domain, native, torch_backend
from vertex_softmax.softmax_box.outward import LIMITS

PRECISION = 320
DTYPES = (torch.float32, torch.float64)

Implementation = Callable[..., Tensor]
"""(c, lower, upper, outward=False): tensors (rows, K) of one dtype, to the minimum of every row."""


# Exact values


def exact_min(c: Any, lower: Any, upper: Any, precision: int = PRECISION) -> arb:
    """A ball around the exact minimum for one row of numbers, by the K + 1 threshold vertices."""
    keys = sorted(
        (cj, lj, uj) for cj, lj, uj in zip(floats(c), floats(lower), floats(upper), strict=True) if uj > -math.inf
    )
    with flint.ctx.workprec(precision):
        a = arb(max(uj for _, _, uj in keys))
        at = [arb(cj) for cj, _, _ in keys]
        low = [(arb(lj) - a).exp() for _, lj, _ in keys]
        up = [low[j] if lj == uj else (arb(uj) - a).exp() for j, (_, lj, uj) in enumerate(keys)]
        tops, masses = [arb(0)], [arb(0)]
        for cj, y in zip(reversed(at), reversed(low), strict=True):
            tops.append(tops[-1] + cj * y)
            masses.append(masses[-1] + y)
        top, mass = arb(0), arb(0)
        best = tops[-1] / masses[-1]
        for m, (cj, y) in enumerate(zip(at, up, strict=True), start=1):
            top += cj * y
            mass += y
            best = best.min((top + tops[len(keys) - m]) / (mass + masses[len(keys) - m]))
        sharp = best.is_finite() and best.rad() <= arb(max(abs(cj) for cj, _, _ in keys)) * arb(2) ** -200
    return best if sharp else _exact_min_of_far_scores(keys, precision)


def _exact_min_of_far_scores(keys: list[tuple[float, float, float]], precision: int) -> arb:
    """Where e^{s − max u} is too small even for Arb: every vertex with a shift of its own, O(K²)."""
    c = [cj for cj, _, _ in keys]
    vertices = ([uj for _, _, uj in keys[:m]] + [lj for _, lj, _ in keys[m:]] for m in range(len(keys) + 1))
    with flint.ctx.workprec(precision):
        return functools.reduce(arb.min, (exact_ratio(c, vertex, precision) for vertex in vertices))


def exact_ratio(c: Any, scores: Any, precision: int = PRECISION) -> arb:
    """A ball around c · softmax(scores) for one row of numbers."""
    with flint.ctx.workprec(precision):
        a = arb(max(floats(scores)))
        weights = [(arb(s) - a).exp() if s > -math.inf else arb(0) for s in floats(scores)]
        return sum((arb(cj) * y for cj, y in zip(floats(c), weights, strict=True)), arb(0)) / sum(weights, arb(0))


def exact_probabilities(lower: Any, upper: Any, precision: int = PRECISION) -> list[tuple[arb, arb]]:
    """Balls around the least and greatest softmax component of every key, each vertex with a shift of its own."""
    lower, upper = floats(lower), floats(upper)

    def component(j: int, own: list[float], rest: list[float]) -> arb:
        unit = [float(k == j) for k in range(len(own))]
        return exact_ratio(unit, [*rest[:j], own[j], *rest[j + 1 :]], precision) if own[j] > -math.inf else arb(0)

    return [(component(j, lower, upper), component(j, upper, lower)) for j in range(len(lower))]


def exact_mins(c: Tensor, lower: Tensor, upper: Tensor) -> list[arb]:
    """`exact_min` of every row of (rows, K) tensors."""
    return [exact_min(*row) for row in zip(c.tolist(), lower.tolist(), upper.tolist(), strict=True)]


def error_from(ball: arb, value: float) -> float:
    """|value − exact|, rounded up."""
    return float(abs(arb(value) - ball).upper()) if math.isfinite(value) else math.inf


def floats(row: Any) -> list[float]:
    return row if isinstance(row, list) else [float(x) for x in row]


def enumerated_min(c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The minimum over all 2^K vertices, in float64; (rows, K) to (rows)."""
    keys = c.shape[-1]
    upper_end = torch.from_numpy((np.arange(2**keys)[:, None] >> np.arange(keys)) & 1).bool()
    c, lower, upper = c.double(), lower.double(), upper.double()
    rows = zip(c, lower, upper, strict=True)
    best = [(torch.where(upper_end, high, low).softmax(-1) @ row).min() for row, low, high in rows]
    return torch.stack(best)


# How far a floating-point value may be off


def tolerance(c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The stated accuracy of every algorithm, ε · max|c| · (8 + 4 √K + W) + (K + 2) · tiny, for every row.

    ε is the unit roundoff, max|c| runs over unmasked keys, and W = max u − max l (at most what the fast paths take):
    a weight e^x has inherent relative error ε|x|, because x = s − max u is rounded, and the weights that matter at a
    vertex have |x| ≤ W + O(log K). The sums add O(√K) roundings in practice, O(K) at worst. tiny is the smallest
    subnormal number: products of subnormal coefficients and weights are rounded to it.
    """
    limits = LIMITS[c.dtype]
    seen = upper > -torch.inf
    size = torch.where(seen, c.double().abs(), 0.0).amax(-1)
    wide = (upper.double().amax(-1) - lower.double().amax(-1)).clamp(max=limits.widest)
    tiny = torch.finfo(c.dtype).smallest_normal * torch.finfo(c.dtype).eps
    keys = c.shape[-1]
    return limits.unit * size * (8 + 4 * math.sqrt(keys) + wide) + (keys + 2) * tiny


# Every implementation


def finished(backend: Implementation, c: Tensor, lower: Tensor, upper: Tensor, outward: bool = False) -> Tensor:
    """A backend together with the log-domain path for the rows it leaves as NaN, as the public functions do it."""
    result = backend(c, lower, upper, outward=outward)
    left = result.isnan()
    if bool(left.any()):
        result[left] = log_domain.minimum(c[left], lower[left], upper[left], outward=outward)
    return result


def native_min(c: Tensor, lower: Tensor, upper: Tensor, outward: bool = False, *, force: str) -> Tensor:
    return native.bounds(c, lower, upper, minimum=True, maximum=False, outward=outward, force=force)[0]


def native_max(c: Tensor, lower: Tensor, upper: Tensor, outward: bool = False, *, force: str) -> Tensor:
    """The minimum as minus the kernel's maximum of −c."""
    return -native.bounds(-c, lower, upper, minimum=False, maximum=True, outward=outward, force=force)[1]


def native_variants() -> tuple[str, ...]:
    """The instruction sets this processor runs (none without a compiled kernel)."""
    best = native.variant()
    return () if best is None else native.VARIANTS[: native.VARIANTS.index(best) + 1]


def implementations() -> dict[str, Implementation]:
    """Every way to the minimum on the CPU, each finished by the log-domain path where it needs it."""
    found: dict[str, Implementation] = {}
    for variant in native_variants():
        found[f"native-min-{variant}"] = functools.partial(finished, functools.partial(native_min, force=variant))
        found[f"native-max-{variant}"] = functools.partial(finished, functools.partial(native_max, force=variant))
    for solver in (torch_backend.newton, torch_backend.threshold):
        found[f"torch-{solver.__name__}"] = functools.partial(
            finished, functools.partial(torch_backend.minimum, solver=solver)
        )
    found["log-domain"] = log_domain.minimum
    return found


IMPLEMENTATIONS = implementations()
