"""GaLileo-style: a plane below and above every softmax component by the slopes of edges, contracted with c.

GaLileo (Zhang et al., AAAI 2024) bounds softmax as one function of n scores by planes, where earlier work bounded exp,
sum and quotient one after the other. Its code is not public, and the paper we compare with says of its own version
only that it is an independent reimplementation. This is *our own reading*, and reproduces neither:

1. Slopes come from the edges of the box that meet at the two vertices where a component is least and greatest, a share
   in [0, 1] between the two, on a grid of 33 points; the intercepts are the best for these slopes (edge_planes.py).
2. Since Σ p_j = 1, for any t, c · p ≥ t + Σ_j (c_j − t)⁺ lower plane_j(s) + (c_j − t)⁻ upper plane_j(s), a plane; the
   bound is its least value over the box.
3. The share of the lower planes, that of the upper planes, and t on a grid of 33 points between the least and the
   greatest coefficient, are chosen for the objective, one after the other, ROUNDS times.

Invariant: every choice in 3 gives a lower bound, so how they are searched costs tightness and never soundness.

How close to the published figures: for K = 4, 8, 16 on the sweep at ε = 0.02, by component over 600 trials, the mean
lower bounds are published as −0.2164, −0.3623, −0.4604; ours are −0.2186, −0.3606, −0.4458 with standard errors of
0.0102, 0.0081, 0.0068. The draws differ (at K = 16 ours are kinder: Vertex has −0.4074, published −0.4280), so the loss
against Vertex on the same trials says more: published 0.0144, 0.0256, 0.0324, ours 0.0136, 0.0277, 0.0385, with
standard errors of 0.0002, 0.0003, 0.0004. Ours loses 6 % less at K = 4, and 8 % and 19 % more at K = 8 and 16.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vertex_lab.baselines.edge_planes import WIDEST, Boxes, edge_planes
from vertex_softmax.runs.demo.baselines.problem import Floats, read, unscaled
from vertex_softmax.softmax_box.arguments import Array

GRID = 33
ROUNDS = 2
PIECE = 1 << 16
"""About as many numbers per array, grid point and piece."""


def galileo_min(c: Array, lower: Array, upper: Array) -> Floats:
    """Never above the exact minimum, to rounding: edge-slope planes, contracted with c, over the box.

    Rounding is (K + 20 + span) · 2⁻⁵³ of max |c|, span the distance of the least from the greatest score; beyond a span
    of 600 the bound is the trivial min c. It may be below min c otherwise, as planes may.

    O(K²) per row, and many times that per box: a box that many rows of c share should be broadcast, not repeated.
    """
    problem = read(c, lower, upper)
    keys = problem.c.shape[-1]
    batch = np.broadcast_shapes(problem.c.shape, problem.lower.shape)[:-1]
    tamed = problem.tamed(WIDEST)
    ends = [x.reshape(-1, keys) for x in (tamed.lower, tamed.upper)]
    which = np.broadcast_to(np.arange(len(ends[0])).reshape(problem.lower.shape[:-1]), batch).reshape(-1)
    order = np.argsort(which, kind="stable")  # there are as many rows of c for every box
    if not len(order):
        return np.empty(batch)
    rows = len(order) // len(ends[0])
    scaled = np.broadcast_to(problem.scaled, (*batch, keys)).reshape(-1, keys)[order].reshape(-1, rows, keys)
    step = max(1, PIECE // (keys * max(keys, min(rows, PIECE // keys**2))))
    parts = [slice(first, first + step) for first in range(0, len(scaled), step)]
    found = np.empty(len(order))
    found[order] = np.concatenate([_lowest(scaled[p], Boxes.of(ends[0][p], ends[1][p])) for p in parts]).reshape(-1)
    bound = unscaled(found.reshape(batch), problem.exponent)
    return np.asarray(np.where(problem.too_wide(WIDEST), problem.least_coefficient(), bound), np.float64)[()]


def _lowest(c: Floats, boxes: Boxes) -> Floats:
    """The best bounds found, (n, rows), for coefficients (n, rows, K) of n boxes."""
    planes = [edge_planes(boxes, float(share)) for share in np.linspace(0.0, 1.0, GRID)]
    slope, low, high = (np.stack(x) for x in zip(*planes, strict=True))  # (GRID, n, K, K), (GRID, n, K) twice
    centre = np.where(boxes.U > 0, np.exp(boxes.middle), 0.0)
    step = max(1, PIECE // c.shape[-1] ** 2)
    parts = [c[:, first : first + step] for first in range(0, c.shape[1], step)]
    return np.concatenate([_search(part, slope, low, high, centre) for part in parts], 1)


def _search(c: Floats, slope: Floats, low: Floats, high: Floats, centre: Floats) -> Floats:
    """Step 3 of the module's text, (n, rows); it begins with t at the middle of the box, whose weights are `centre`."""
    box = np.arange(len(c))[:, None]
    levels = c.min(-1) + (c.max(-1) - c.min(-1)) * np.linspace(0.0, 1.0, GRID)[:, None, None]  # (GRID, n, rows)
    t = (c * centre[:, None, :]).sum(-1) / centre.sum(-1)[:, None]
    at_high = np.full(t.shape, GRID // 2)
    best = np.full(t.shape, -np.inf)
    for _ in range(ROUNDS):
        positive, negative = _split(c - t[..., None])
        ours, theirs = _values(positive, low, slope), _values(negative, high, slope)  # of every share
        values = t + _least(ours, _at(theirs, at_high))
        at_low = values.argmax(0)
        values = t + _least(_at(ours, at_low), theirs)
        at_high = values.argmax(0)
        best = np.maximum(best, values.max(0))

        positive, negative = (x.transpose(1, 2, 0, 3) for x in _split(c - levels[..., None]))  # (n, rows, GRID, K)
        ours = _values(positive, low[at_low, box], slope[at_low, box])
        theirs = _values(negative, high[at_high, box], slope[at_high, box])
        values = levels + _least(ours, theirs).transpose(2, 0, 1)
        t = np.where(values.max(0) > best, np.take_along_axis(levels, values.argmax(0)[None], 0)[0], t)
        best = np.maximum(best, values.max(0))
    return best


_Planes = tuple[Floats, Floats]
"""The value at the middle of the box, (...), and the slopes in (s_k − m_k) / radius_k, (..., K)."""


def _values(c: Floats, level: Floats, slope: Floats) -> _Planes:
    """Σ_j c_j plane_j: c (..., rows, K), level (..., K), slope (..., K, K)."""
    return np.matmul(c, level[..., None])[..., 0], np.matmul(c, slope)


def _least(a: _Planes, b: _Planes) -> Floats:
    """The least value of the sum of two planes over the box."""
    return np.asarray(a[0] + b[0] - np.abs(a[1] + b[1]).sum(-1), np.float64)


def _at(planes: _Planes, index: NDArray[np.intp]) -> _Planes:
    """Those of one share per row, (n, rows), of (GRID, n, rows) and (GRID, n, rows, K)."""
    return (
        np.take_along_axis(planes[0], index[None], 0)[0],
        np.take_along_axis(planes[1], index[None, ..., None], 0)[0],
    )


def _split(d: Floats) -> tuple[Floats, Floats]:
    return np.maximum(d, 0.0), np.minimum(d, 0.0)
