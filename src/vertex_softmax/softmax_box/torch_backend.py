"""Both algorithms in plain torch: any device, any batch shape; broadcast arguments are never expanded in memory.

Invariant: the result is the value of a threshold vertex of the box, evaluated in floating point, or NaN for a row this
path does not handle (an invalid row, max u − max l > Limits.widest, coefficients near overflow).

Rows are processed in blocks of about `BLOCK` keys, which fit a core's cache; the exponentials of a box are computed
once for all coefficient rows in the block that share it. Peak extra memory: about eight tensors of one block.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.softmax_box import outward as proof
from vertex_softmax.softmax_box.outward import LIMITS

BLOCK = 1 << 15
CUDA_BLOCK = 1 << 26

Solver = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""(c, lower, upper, max u) → the minimum and the cut whose vertex attains it (None if the algorithm computes none)."""


def minimum(  # the three arrays, and keyword-only options
    c: Tensor,
    lower: Tensor,
    upper: Tensor,
    *,
    solver: Solver,
    sign: int = 1,
    outward: bool = False,
    cut: Tensor | None = None,
) -> Tensor:
    """sign · (min over the box of sign·c · softmax(s)); shapes (..., K) that broadcast, to (...).

    `cut` (...), if given, is filled: the minimum (maximum) is attained where keys with c < cut (c > cut) are up.
    """
    shape = np.broadcast_shapes(c.shape, lower.shape, upper.shape)
    out = torch.empty(shape[:-1], dtype=c.dtype, device=c.device)
    c, lower, upper = (_with_rank(x, len(shape)) for x in (c, lower, upper))
    block = CUDA_BLOCK if c.is_cuda else BLOCK
    for index in _blocks(shape, block):
        coefficients = _block_of(c, index)
        value, block_cut = _block_minimum(
            coefficients * sign if sign < 0 else coefficients,
            _block_of(lower, index),
            _block_of(upper, index),
            solver,
            outward,
        )
        out[index] = value * sign
        if cut is not None and block_cut is not None:
            cut[index] = block_cut * sign
    return out


def _with_rank(x: Tensor, rank: int) -> Tensor:
    return x[(None,) * (rank - x.ndim)]


def _block_of(x: Tensor, index: tuple[slice, ...]) -> Tensor:
    """The part of x that broadcasts to the block `index`: dimensions of size 1 are not cut."""
    return x[tuple(slice(None) if size == 1 else part for size, part in zip(x.shape, index, strict=False))]


def _blocks(shape: tuple[int, ...], block: int) -> Iterator[tuple[slice, ...]]:
    """Slices that cover the leading dimensions in blocks of at most `block` entries (but at least one row)."""
    sizes = []
    left = max(1, block // shape[-1])
    for size in reversed(shape[:-1]):
        step = max(1, min(size, left))
        sizes.append(step)
        left = max(1, left // max(1, size)) if step == size else 1
    steps = list(reversed(sizes))
    starts = [range(0, size, step) for size, step in zip(shape[:-1], steps, strict=True)]
    for corner in itertools.product(*starts):
        yield tuple(slice(i, i + step) for i, step in zip(corner, steps, strict=True))


def _block_minimum(
    c: Tensor, lower: Tensor, upper: Tensor, solver: Solver, outward: bool
) -> tuple[Tensor, Tensor | None]:
    """(value, cut) of one block, (...); arguments (..., K) that broadcast. NaN for rows that are not handled."""
    limits = LIMITS[c.dtype]
    inf = math.inf
    shift = upper.amax(-1, keepdim=True)
    width = shift - lower.amax(-1, keepdim=True)
    valid = (lower <= upper) & ((lower > -inf) | (upper == -inf))
    box = valid.all(-1, keepdim=True) & (width <= limits.widest) & (shift < inf)
    finite = c.isfinite().all(-1, keepdim=True)
    c = without_masked(c, upper)
    size = c.abs().amax(-1, keepdim=True)
    fine = finite & (size * float(c.shape[-1]) < limits.largest)
    fine = fine & ((size == 0) | (size * (-width).exp() >= limits.smallest))
    if not bool(box.all() & fine.all()):  # give such rows harmless numbers; their result is replaced by NaN below
        c = torch.where(fine, c, 0.0)
        lower, upper = torch.where(box, lower, 0.0), torch.where(box, upper, 0.0)
        shift = upper.amax(-1, keepdim=True)
    t, cut = solver(c, lower, upper, shift)
    if outward:
        t = proof.lower_bound(c, lower, upper, t, shift)
    return torch.where(box & fine, t, math.nan).squeeze(-1), None if cut is None else cut.squeeze(-1)


def without_masked(c: Tensor, upper: Tensor) -> Tensor:
    """c, where masked keys (upper = −inf) get the least coefficient of an unmasked key, so that they have no effect."""
    masked = upper == -math.inf
    if not bool(masked.any()):
        return c
    least = torch.where(masked, math.inf, c).amin(-1, keepdim=True)
    return torch.where(masked, least, c)


def _weights(lower: Tensor, upper: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """(L, U) = (e^{lower − shift}, e^{upper − shift})."""
    return (lower - shift).exp_(), (upper - shift).exp_()


def newton(c: Tensor, lower: Tensor, upper: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The root of φ without a sort: t ← Σ c y / Σ y, with y = U where c < t else L. (value, cut), each (..., 1)."""
    L, U = _weights(lower, upper, shift)

    def mean_at(t: Tensor, x: Tensor) -> Tensor:
        y = torch.where(c < t, U, L)
        mass = y.sum(-1, keepdim=True)
        return y.mul_(x).sum(-1, keepdim=True).div_(mass)

    return descend(mean_at, c)


def descend(mean_at: Callable[[Tensor, Tensor], Tensor], c: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's method from the mean of c (..., K); (value, cut), each (..., 1).

    `mean_at(t, x)` is the mean of x (..., K) under the weights of the vertex y(t); for x = c it is R(y(t)). The method
    must not stop because rounding left a key at its upper end (reference.newton_min). That is impossible if no key lies
    within rounding below t; otherwise `_careful` continues.
    """
    cut = c.mean(-1, keepdim=True)
    t = mean_at(cut, c)
    cut = cut.expand(t.shape)
    while True:
        better = mean_at(t, c)
        falling = better < t
        if not bool(falling.any()):
            break
        cut = torch.where(falling, t, cut)
        t = torch.where(falling, better, t)
    ulps = float(c.shape[-1] + 10) * LIMITS[c.dtype].unit
    band = ulps * c.abs().amax(-1, keepdim=True)
    return _careful(mean_at, c, t, cut, ulps) if bool(((c < t) & (c >= t - band)).any()) else (t, cut)


def _careful(
    mean_at: Callable[[Tensor, Tensor], Tensor], c: Tensor, t: Tensor, cut: Tensor, ulps: float
) -> tuple[Tensor, Tensor]:
    """Continue `descend` with the next vertex at a probe below t by more than the rounding of R, then at t itself.

    t is used only if the probe does not improve the value.
    """
    size = mean_at(cut, c.abs())
    below = True
    while True:
        probe = t - ulps * size if below else t
        better = mean_at(probe, c)
        falling = better < t
        if bool(falling.any()):
            size = torch.where(falling, mean_at(probe, c.abs()), size)
            t, cut = torch.where(falling, better, t), torch.where(falling, probe, cut)
            below = True
        elif below and not bool((better == t).all()):
            below = False
        else:
            return t, cut


def threshold(c: Tensor, lower: Tensor, upper: Tensor, shift: Tensor) -> tuple[Tensor, None]:
    """Algorithm 1 of the paper: sort c, prefix sums of U, suffix sums of L, the smallest τ_m. Shape (..., 1).

    Suffixes are summed as suffixes: total − prefix would cancel.
    """
    L, U = torch.broadcast_tensors(*_weights(lower, upper, shift))
    c, order = c.sort(-1)
    shape = np.broadcast_shapes(c.shape, L.shape)
    c, order = c.expand(shape), order.expand(shape)
    L, U = L.expand(shape).gather(-1, order), U.expand(shape).gather(-1, order)

    def suffix(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x.flip(-1).cumsum(-1).flip(-1), (0, 1))

    def prefix(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x.cumsum(-1), (1, 0))

    tau = (prefix(c * U) + suffix(c * L)) / (prefix(U) + suffix(L))
    return tau.amin(-1, keepdim=True), None
