"""Rows y / σ(y) to second order in the input's unknowns.

With a = c·y'/|c|² > −1, y⊥ = y' − a c, q = y⊥/(1 + a), W = |c|² + d·eps, ρ = √(d/W) and κ = d·eps/W, exactly:
  y/σ(y) = ρ (c + q) (1 + s)^{−1/2},  s = |q|²/W + κ ((1 + a)^{−2} − 1).
Let g(a) = (1 + a)^{−2} − 1 + 2a ≥ 0 and (1 + s)^{−1/2} = 1 − s/2 + ψ with ψ ≥ 0 convex in s and 0 at 0. Then
  y/(ρσ) = c + κ a c + y⊥ − (1 − κ) a y⊥ + k y⊥ + (−|q|²/(2W) − κ g/2 + ψ) c,
  k (1 + a) = −|q|²/(2W) − κ g/2 + ψ + (1 − κ) a².
With y' = ℓ + r, linear and rest, what is kept is −(1 − κ) a_ℓ ℓ⊥, −|ℓ⊥|²/(2W) c and −(3/2) κ a_ℓ² c. What is left:
- k y⊥, a_r y⊥ and a_ℓ r⊥, in the shapes of y⊥ and r⊥;
- along c: |y⊥|²((1 + a)^{−2} − 1)/(2W), ℓ⊥·r⊥/W, |r⊥|²/(2W), (3/2) κ (a² − a_ℓ²), κ θ/2 with θ = g − 3a², which
  falls in a, and ψ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..rounding import MORE, Array, ProvedInterval, rounding
from . import pairs
from .ellipsoids import around, factor, of_columns, with_error
from .forms import LOST, Bools, Form, grown, image, joined, loosened, with_products
from .products import product_norm

if TYPE_CHECKING:
    from .norms import RowNumbers

SMALLEST = 1e-280
"""Rows whose squares are below this are not expanded: squares underflow."""


def to_second_order(y: Form, row: RowNumbers, count: int, key: int) -> tuple[Form, Bools]:
    """With pairs of the input's unknowns, and the rows (*rows) where it holds."""
    c, W = y.centre, row.whole
    relative = row.relative[..., None]
    pull = c / row.square.middle()[..., None]
    a, across = parted(y, pull, relative)
    A, A_line, A_rest = a.tight, a.linear.radius, a.rest.tight
    shape, of_line, of_rest = around(across), around(across.linear), around(across.rest)
    B, B_rest = (np.square(x.farthest()) / W.lo * MORE for x in (shape, of_rest))
    mixed = product_norm(factor(of_line.matrix), factor(of_rest.matrix)) * of_line.scale * of_rest.scale / W.lo * MORE
    useful = (A < 1) & np.isfinite(W.hi) & (row.square.lo > SMALLEST) & np.isfinite(B + B_rest + mixed)
    A, A_line, A_rest, B, B_rest, mixed = (np.where(useful, x, 0.0) for x in (A, A_line, A_rest, B, B_rest, mixed))
    kappa = row.eps / W
    kappa = ProvedInterval(np.maximum(np.where(useful, kappa.lo, 0.0), 0), np.where(useful, kappa.hi, 0.0))
    (k_low, k_high), (e_low, e_high) = ranges(A, A_line, A_rest, B, B_rest, mixed, kappa)
    middle, level = k_low / 2 + k_high / 2, e_low / 2 + e_high / 2
    half = ProvedInterval(k_low, k_high).reach(middle)
    off = ProvedInterval(e_low, e_high).reach(level)
    rho, most = row.rho.middle(), row.rho.hi * MORE
    F, back = (rho * (1 + middle))[..., None], (rho * kappa.middle())[..., None] * c
    blocks = joined({k: F * x for k, x in across.blocks.items()}, {k: x[..., None] * back for k, x in a.blocks.items()})
    sizes = np.abs(F), np.abs(back)
    own, slack = (sizes[0] * x + sizes[1] * z[..., None] for x, z in ((across.own, a.own), (across.slack, a.slack)))
    narrow = (most * kappa.reach(kappa.middle()))[..., None] * np.abs(c)  # how far `back` is off
    size = sizes[0] * across.rough + sizes[1] * a.rough[..., None]
    centre = (rho * (1 + level))[..., None] * c
    column = (most * off * MORE)[..., None] * c
    slack = slack + (relative + rounding(8)) * (size + np.abs(centre)) + narrow * a.rough[..., None]
    slack = (slack + rounding(2) * np.abs(column) + LOST) * MORE
    found = Form(centre=centre, blocks=blocks, own=own * MORE, slack=slack)
    found = with_products(found, *_products(a.lines(count), across.lines(count), c, row, kappa))
    errors = [
        shape.times(most * (A_rest + half) * MORE),
        of_rest.times(most * A_line * MORE),
        of_columns(column[..., None, :]),
    ]
    found = with_error(found, errors, key)
    return found, useful & np.isfinite(found.rough).all(-1)


def parted(y: Form, pull: Array, relative: Array) -> tuple[Form, Form]:
    """a = c·y'/|c|² (*rows) and y⊥ = y' − a c (*rows, d), where `pull` is c/|c|² to within `relative`."""
    c, size = y.centre, np.abs(pull)
    y = y.deviation
    roundings = c.shape[-1] + 4
    a = image(y, lambda x: (x * pull).sum(-1), lambda x: (x * size).sum(-1), roundings)
    across = image(
        y,
        lambda x: x - (x * pull).sum(-1, keepdims=True) * c,
        lambda x: x + (x * size).sum(-1, keepdims=True) * np.abs(c),
        roundings,
    )
    more = (size * y.rough).sum(-1, keepdims=True) * relative * grown(c.shape[-1])
    return loosened(a, more[..., 0]), loosened(across, more * np.abs(c))


# Seven: the numbers of a row that the remainders depend on, each with a range of its own.
def ranges(
    A: Array, A_line: Array, A_rest: Array, B: Array, B_rest: Array, mixed: Array, kappa: ProvedInterval
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Ranges of k, and of what is left along c: for |a| ≤ A < 1, |a_ℓ| ≤ A_line, |a_r| ≤ A_rest, |y⊥|² ≤ B W,
    |r⊥|² ≤ B_rest W and |ℓ⊥·r⊥| ≤ mixed W.
    """
    one = ProvedInterval(1.0)
    few, many = one / (one + A).square(), one / (one - ProvedInterval(A)).square()  # the range of (1 + a)⁻²
    s_low, s_high = kappa * (few - 1), many * B + kappa * (many - 1)
    root_low, root_high = one / (one + s_high).sqrt(), one / (one + s_low).sqrt()
    psi = np.maximum(np.maximum((root_low - 1 + s_high / 2).hi, (root_high - 1 + s_low / 2).hi), 0)
    square = ProvedInterval(A).square()
    theta = many - 1 - ProvedInterval(2 * A)  # g at most
    falls = few - 1 + ProvedInterval(2 * A) - square * 3  # θ at a = A, its least
    rises = theta - square * 3  # θ at a = −A, its most
    least = one - ProvedInterval(A)  # 1 + a at least
    below = np.fmax((-(many * B / 2 + kappa * theta / 2) / least).lo, ((root_low - 1) / least - kappa * A).lo)
    above = np.fmin(((square + psi) / least).hi, ((square + root_high - 1) / least + kappa * A).hi)
    more = ProvedInterval(mixed) + kappa * (ProvedInterval(A_rest) * (ProvedInterval(A) + A_line)) * 1.5
    low = -(more + ProvedInterval(B_rest) / 2 + (many - 1) * B / 2 + kappa * np.maximum(rises.hi, 0) / 2)
    high = more + (one - few) * B / 2 + kappa * np.maximum(-falls.lo, 0) / 2 + psi
    return (below, above), (low.lo, high.hi)


def _products(
    a: Array, across: Array, c: Array, row: RowNumbers, kappa: ProvedInterval
) -> tuple[tuple[Array, Array], Array]:
    """−ρ ((1 − κ) a_ℓ ℓ⊥ + (|ℓ⊥|²/(2W) + (3/2) κ a_ℓ²) c), packed, and its error; a (n, *rows), ℓ⊥ (n, *rows, d)."""
    whole, rho, k = row.whole.middle(), row.rho.middle(), kappa.middle()
    flat = np.moveaxis(across, 0, -2)  # (*rows, n, d)
    gram = np.moveaxis(flat @ np.swapaxes(flat, -1, -2), (-2, -1), (0, 1)) / (2 * whole)
    alongside = pairs.packed(gram + 1.5 * k * a[:, None] * a[None])
    crossed = pairs.outer(((1 - k) * a)[..., None], across)
    scale = rho[..., None]
    pair, alone = (-scale * (x + z[..., None] * c) for x, z in zip(crossed, alongside, strict=True))
    one, all_ = np.abs(a).sum(0)[..., None], np.abs(across).sum(0)
    more = grown(2 * len(a) + c.shape[-1])
    along = np.square(all_).sum(-1, keepdims=True) / (2 * row.whole.lo)[..., None] + 1.5 * kappa.hi[..., None] * one**2
    size = (one * all_ + along * np.abs(c)) * more
    narrow = kappa.reach(k)[..., None] * (one * all_ + 1.5 * one**2 * np.abs(c)) * more
    error = row.rho.hi[..., None] * (2 * row.relative[..., None] * size + narrow) * MORE + LOST
    return (pair, alone), error
