"""Rows y / σ(y), σ² = mean y² + eps, to first order.

With y = c + y', W = |c|² + d·eps, ρ = √(d/W) = 1/σ(c), a = c·y'/W and b = |y'|²/W ≥ a²:
  σ(c)/σ(y) = (1 + 2a + b)^{−1/2} = 1 − a + r,  −B/2 ≤ r ≤ A²/(1 − A)   for |a| ≤ A < 1 and b ≤ B :
it falls in b; at b = a² it is 1/(1 + a); at b = B it is convex in a, least at a = −B/2, and grows beyond. So
  y/σ(y) = ρ (c + y' − a c − a y' + r c + r y'):
affine, then a product of two functionals of one ellipsoid (ellipsoids.py), then a number times c, then one times y'.
All numbers are floats that are chosen, and how far they are from those of the equation is added to the slack.

|y/σ| ≤ √d whatever y is: rows of which less is known are the ball of that radius.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..rounding import MORE, TINY, Array, ProvedInterval, rounding
from .choices import Pick
from .ellipsoids import ErrorEllipsoid, around, of_columns, with_error
from .forms import LOST, Bools, Form, chosen, grown, image, loosened
from .second_norms import to_second_order

STORED = 2.0**-46
"""The relative error of a stored number."""
SMALLEST = 1e-280
"""Rows whose squares are below this are not expanded: squares underflow."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowNumbers:
    """Numbers of the centre c of each row, (*rows): d, |c|², W and ρ."""

    d: int
    square: ProvedInterval
    eps: ProvedInterval
    """d · eps"""
    whole: ProvedInterval
    rho: ProvedInterval

    @property
    def relative(self) -> Array:
        """How far the middles of `square`, `whole` and `rho` are off, relatively, together with d + 24 roundings.

        Without those that may be 0, by which nothing is divided: such rows are not expanded, or not to second order.
        """
        numbers = (self.square, self.whole, self.rho)
        off = [np.where(x.lo > SMALLEST, x.reach(x.middle()) / x.lo, 0.0) for x in numbers]
        return np.asarray((sum(off) + rounding(self.d + 24)) * 2 * MORE)


def row_of(c: Array, eps: float) -> RowNumbers:
    """Of rows c (*rows, d)."""
    d = c.shape[-1]
    square = ProvedInterval(c).square().sum()
    times = ProvedInterval(np.array(eps)) * ProvedInterval(1 - STORED, 1 + STORED) * d
    whole = square + times
    rho = (ProvedInterval(np.array(float(d))) / whole).sqrt()
    return RowNumbers(d=d, square=square, eps=times, whole=whole, rho=rho)


def normalized(y: Form, eps: float, count: int, key: int, pick: Pick) -> Form:
    """The rows of y, (*rows, d), divided by their σ; each row to whichever order is better."""
    row = row_of(y.centre, eps)
    first, useful = _to_first_order(y, row, key, pick)
    fits = useful & (first.radius.mean(-1) <= row.d**0.5)
    found = chosen((pick("expanded", fits) & useful)[..., None], first, on_sphere(y.centre.shape, key + 1))
    if not (count and y.count):
        return found
    second, useful = to_second_order(y, row, count, key + 2)
    better = pick(
        "second", useful & (second.radius.mean(-1) <= row.d**0.5) & (second.radius.sum(-1) < found.radius.sum(-1))
    )
    return chosen((better & useful)[..., None], second, found)


def _to_first_order(y: Form, row: RowNumbers, key: int, pick: Pick) -> tuple[Form, Bools]:
    """The expansion, and the rows (*rows) where it holds."""
    c, d, W = y.centre, row.d, row.whole
    along = dotted(y.deviation, c).tight
    shape = around(y)
    A = along / W.lo * MORE
    farthest = np.fmin(np.square(shape.farthest()), np.square(y.radius).sum(-1) * grown(d))
    B = farthest / W.lo * MORE
    useful = (A < 1) & np.isfinite(W.hi) & (W.lo > SMALLEST) & np.isfinite(B)
    A, B = np.where(useful, A, 0.0), np.where(useful, B, 0.0)
    low, high = remainder(A, B)
    middle = low / 2 + high / 2
    half = ProvedInterval(low, high).reach(middle)
    # −a y' by the ellipsoid, of which the centre is moved, or by the range of a
    U = shape.scale * shape.scale * MORE
    towards, sizes = (shape.matrix @ c[..., None])[..., 0], (np.abs(shape.matrix) @ np.abs(c)[..., None])[..., 0]
    square = np.maximum((towards * c).sum(-1), 0) + rounding(2 * d + 4) * (sizes * np.abs(c)).sum(-1) * MORE
    quadratic = U / 2 * np.sqrt(square) / W.lo * MORE
    plain = A * shape.scale * MORE
    bent = pick("quadratic", quadratic < plain)
    share = np.where(bent, U / 2 / W.middle(), 0.0)[..., None]
    times = np.where(bent, quadratic, plain) + half * shape.scale
    rho, relative = row.rho.middle()[..., None], row.relative[..., None]
    centre = rho * (c * (1 + middle)[..., None] - share * towards)
    size = rho * (np.abs(c) * (1 + np.abs(middle))[..., None] + share * sizes) * MORE
    F, pull, back = rho * (1 + middle)[..., None], c / W.middle()[..., None], rho * c
    found = less_along(y.deviation, F, pull, back)
    moved = np.abs(F) * y.rough + (np.abs(pull) * y.rough).sum(-1, keepdims=True) * np.abs(back)
    column = (row.rho.hi * half * MORE)[..., None] * c
    slack = relative * (size + moved) * MORE + rounding(2) * np.abs(column) + LOST
    found = loosened(Form(centre=centre, blocks=found.blocks, own=found.own, slack=found.slack), slack)
    errors = [ErrorEllipsoid(shape.matrix, row.rho.hi * times * MORE + TINY), of_columns(column[..., None, :])]
    found = with_error(found, errors, key)
    return found, useful & np.isfinite(found.rough).all(-1)


def remainder(A: Array, B: Array) -> tuple[Array, Array]:
    """A range of (1 + 2a + b)^{−1/2} − 1 + a over |a| ≤ A < 1 and a² ≤ b ≤ B; outward."""
    one = ProvedInterval(1.0)
    end = one / (one - ProvedInterval(2 * A) + B).sqrt() - 1 - A  # at a = −A, b = B, where −A is beyond the minimum
    low = np.where(B / 2 > A, np.fmax(end.lo, -B / 2), -B / 2)
    return low, (ProvedInterval(A).square() / (one - A)).hi


def dotted(y: Form, eta: Array) -> Form:
    """η·y for each row: y (*rows, d) → (*rows)."""
    size = np.abs(eta)
    return image(y, lambda x: (x * eta).sum(-1), lambda x: (x * size).sum(-1), eta.shape[-1] + 2)


def less_along(y: Form, factor: Array, pull: Array, back: Array) -> Form:
    """factor · y − (pull·y) back for each row, (*rows, d)."""
    sizes = np.abs(factor), np.abs(pull), np.abs(back)
    return image(
        y,
        lambda x: factor * x - (x * pull).sum(-1, keepdims=True) * back,
        lambda x: sizes[0] * x + (x * sizes[1]).sum(-1, keepdims=True) * sizes[2],
        pull.shape[-1] + 4,
    )


def on_sphere(shape: tuple[int, ...], key: int) -> Form:
    """Rows of d numbers whose length is at most √d."""
    zero, d = np.zeros(shape), shape[-1]
    return with_error(
        Form(centre=zero, blocks={}, own=zero, slack=zero),
        [ErrorEllipsoid(np.broadcast_to(np.eye(d), (*shape, d)).copy(), np.full(shape[:-1], d**0.5 * MORE))],
        key,
    )
