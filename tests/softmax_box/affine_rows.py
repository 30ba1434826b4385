"""Rows for the affine vertex rule, from ordinary to hostile, and the points of their boxes where a wrong rule shows.

Every property of a row (width, offset, slopes, coefficients, multipliers, masks) is drawn for each row by itself, so
that all of them meet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from vertex_softmax.softmax_box.log_ranges import log_probabilities

WIDTHS = (0.0, 1e-12, 1e-6, 0.1, 1.0, 10.0, 100.0, 700.0)


class Rows(NamedTuple):
    """(rows, K) each, mu (rows, M)."""

    lower: Tensor
    upper: Tensor
    value_lower: Tensor
    value_upper: Tensor
    a: Tensor
    m: Tensor
    mu: Tensor


def choose(rng: Generator, *ways: np.ndarray) -> np.ndarray:
    """For every row one of the ways, each (rows, n) or a scalar."""
    shape = np.broadcast_shapes(*(np.shape(way) for way in ways))
    pick = rng.integers(0, len(ways), (shape[0], 1))
    return np.choose(pick, [np.broadcast_to(way, shape) for way in ways])


def rows(rng: Generator, count: int, K: int, M: int, dtype: torch.dtype = torch.float64) -> Rows:
    """Boxes of every width; slopes that are gradients, and silly ones; m outside [0, 1]; μ far outside; masks."""

    def normal(scales: tuple[float, ...], keys: int = K) -> np.ndarray:
        return rng.normal(size=(count, keys)) * rng.choice(scales, (count, 1))

    lower = normal((0.0, 1.0, 30.0)) + rng.choice([0.0, 0.0, 0.0, 1e3, -1e6], (count, 1))
    width = rng.random((count, K)) * rng.choice(WIDTHS, (count, 1)) * (rng.random((count, K)) < 0.9)
    upper = lower + np.where(rng.random((count, 1)) < 0.2, width.max(-1, keepdims=True), width)
    value_lower = normal((0.0, 1e-3, 1.0, 1.0, 1e3)) + rng.choice([0.0, 0.0, 1.0, -1e4], (count, 1))
    value_upper = value_lower + np.abs(normal((0.0, 1e-9, 1.0, 1.0, 30.0)))
    gone = (rng.random((count, K)) < 0.4) & (rng.random((count, 1)) < 0.25)
    gone[np.arange(count), rng.integers(0, K, count)] = False

    def softmax(t: np.ndarray) -> np.ndarray:
        s = np.where(gone, -np.inf, lower + (upper - lower) * t)
        y = np.exp(s - s.max(-1, keepdims=True))
        return y / y.sum(-1, keepdims=True)

    p, q = softmax(np.full((count, K), 0.5)), softmax((rng.random((count, K)) < 0.5).astype(np.float64))
    middle = (value_lower + value_upper) / 2
    value = (p * middle).sum(-1, keepdims=True)
    gradient = p * (middle - value)
    silly = normal((1e-3, 1.0, 1e3))
    a = choose(rng, gradient, gradient, gradient / 2, -gradient, q * (middle - value), np.zeros(()), silly,
               silly - silly.mean(-1, keepdims=True), np.abs(silly), normal((1e-300, 1e-30, 1e6)))  # fmt: skip
    m = choose(rng, p, p, q, np.zeros(()), rng.random((count, K)) * 1.6 - 0.3, -rng.random((count, K)),
               normal((1.0, 1e3, 1e6)))  # fmt: skip
    far = normal((1.0, 1e2, 1e6), M)
    mu = choose(rng, value + np.zeros(M), value + normal((1e-6, 0.1), M), far, value_lower[:, :1] + np.zeros(M),
                value_upper[:, -1:] + np.zeros(M))  # fmt: skip
    lower, upper, a = np.where(gone, -np.inf, lower), np.where(gone, -np.inf, upper), np.where(gone, 0.0, a)
    arrays = (lower, upper, value_lower, value_upper, a, m, mu)
    return Rows(*(torch.from_numpy(np.ascontiguousarray(x)).to(dtype) for x in arrays))


def extreme(rng: Generator, count: int, K: int, M: int) -> Rows:
    """Sizes where products underflow or nearly overflow, and ratios a/w that are not normal numbers."""
    box = rows(rng, count, K, M)

    def power(keys: int = K) -> Tensor:
        exponent = rng.choice([-320.0, -300.0, -160.0, 0.0, 100.0, 160.0], (count, 1))
        scale = 10 ** (exponent + rng.uniform(-3, 3, (count, keys)))
        return torch.from_numpy(rng.choice([-1.0, 1.0], (count, keys)) * scale)

    shift = power(1)
    ends = torch.stack([power() * 0.1 + shift, power() * 0.1 + shift])
    far = torch.from_numpy(rng.choice([1.0, 3.0, 10.0, 1e4], (count, 1)))
    return Rows(
        box.lower * far,
        box.upper * far,
        ends.amin(0),
        ends.amax(0),
        torch.where(box.lower > -torch.inf, power(), 0.0),
        power() if rng.random() < 0.5 else box.m,
        power(M) if rng.random() < 0.5 else shift.expand(count, M).contiguous(),
    )


def awkward(rng: Generator, count: int, K: int, M: int) -> Rows:
    """Bottoms within ulps of an end, boxes one ulp wide, scores far from 0: where rounding decides."""
    box = rows(rng, count, K, M)
    there = box.upper > -torch.inf
    if rng.random() < 0.5:
        log_p = torch.where(torch.from_numpy(rng.random((count, K)) < 0.5), *log_probabilities(box.lower, box.upper))
        w = (box.value_upper if rng.random() < 0.5 else box.value_lower) - box.mu[:, :1]
        ulps = torch.from_numpy(rng.integers(-9, 10, (count, K)).astype(np.float64))
        box = box._replace(a=torch.where(there, w * log_p.exp() * (1 + 2.0**-52 * ulps), 0.0))
    if rng.random() < 0.5:
        above = torch.full_like(box.lower, torch.inf)
        upper = torch.where(there, torch.nextafter(box.lower, above), box.lower)
        box = box._replace(upper=upper, value_upper=torch.nextafter(box.value_lower, above))
    if rng.random() < 0.5:
        shift = torch.from_numpy(rng.choice([1e9, -1e12, 1e15], (count, 1)))
        box = box._replace(lower=box.lower + shift, upper=box.upper + shift)
    return box


def softmax(box: Rows, s: Tensor) -> Tensor:
    return torch.where(box.upper > -torch.inf, s, -torch.inf).softmax(-1)


def excess(box: Rows, s: Tensor, v: Tensor) -> Tensor:
    """Σ p v − a·s − m·v at points (..., rows, K), in float64: what B must not exceed."""
    return (softmax(box, s) * v - box.a * s - box.m * v).sum(-1)


def worst_points(box: Rows, rng: Generator, starts: int, steps: int) -> tuple[Tensor, Tensor]:
    """For each row the scores and values, in the box exactly, with the smallest excess seen; (rows, K) each.

    Starts are corners and inner points, with the values at the end the rule fears (p ≥ m: the lower one) or at random;
    from each of them a projected descent on the scores.
    """
    box = Rows(*(x.double() for x in box))
    there = box.upper > -torch.inf
    low, high = torch.where(there, box.lower, 0.0), torch.where(there, box.upper, 0.0)
    t = torch.from_numpy(rng.random((starts, *low.shape)))
    t[::2] = (t[::2] < 0.5).double()

    def inside(low: Tensor, high: Tensor, t: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(low + (high - low) * t, low), high)

    def feared(s: Tensor) -> Tensor:
        return torch.where(softmax(box, s) >= box.m, box.value_lower, box.value_upper)

    s = inside(low, high, t)
    v = feared(s)
    v[::3] = inside(box.value_lower, box.value_upper, torch.from_numpy(rng.random((starts, *low.shape))))[::3]
    seen = [(excess(box, s, v), s, v)]
    for step in np.geomspace(0.5, 1e-3, steps):
        p = softmax(box, s)
        v = torch.where(p >= box.m, box.value_lower, box.value_upper)
        slope = p * (v - (p * v).sum(-1, keepdim=True)) - box.a
        t = (t - step * slope.sign()).clamp(0, 1)
        s = inside(low, high, t)
        seen.append((excess(box, s, feared(s)), s, feared(s)))
    value, s, v = (torch.cat(parts) for parts in zip(*seen, strict=True))
    at = value.argmin(0)[None, :, None].expand(1, *low.shape)
    return s.gather(0, at)[0], v.gather(0, at)[0]
