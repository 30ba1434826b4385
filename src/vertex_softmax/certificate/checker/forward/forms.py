"""Forms: for every input of the set a node is centre + Σ_b blocks_b·ν_b + e with |e| ≤ own + slack, number by number.

The unknowns ν_b are the same in all nodes. A block is an array (balls, k, *shape): every ball has k unknowns of which
the sum of squares is at most 1. Some blocks have names:
- LINES: the input's unknowns, those of ../unknowns.py; of a box ξ_i in [−1, 1], one ball of one unknown for each number
  of the input that varies. Squares and pairs are kept of a box alone;
- CROSS: the input's unknowns in ℓ1 balls: of each ball the sum of |ξ_i| is at most 1, and so is that of squares;
- SQUARES: ζ_i in [−1, 1] with ξ_i² = (1 + ζ_i)/2;
- PAIRS: one ball, of the coefficients of ξ_i ξ_j for i < j, in the order of pairs.py; its length is at most √K.

Coefficients are floats and count as exact. The lemma of every affine map L, computed in floats as L̂ with at most n
roundings: the columns of a ball are off by at most rounding(n)·|L|·(lengths of the ball) together (Minkowski's
inequality), so that slack grows by |L|·slack + rounding(n)·|L|·(|centre| + all lengths), and that holds it. In CROSS
the largest column takes the place of the length: with |ξ|₁ ≤ 1 the same inequality holds of it.
`own` and `slack` say the same; `own` is what ops add and worth some work (an affine map makes it a ball), `slack` is
rounding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..file import Rejected
from ..rounding import MORE, Array, ProvedInterval, rounding
from . import pairs

LINES, SQUARES, PAIRS, CROSS = 0, 1, 2, 3
FIRST = 4
"""The first key that is free for other blocks."""
UNDERFLOW = 1e-150
"""At least what the root of a sum of squares loses when the squares underflow."""
LOST = 2.0**-970
"""More than all coefficients of a number lose by underflow in one op: 2⁻¹⁰²² for each of less than 2⁵² products."""
Blocks = dict[int, Array]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Form:
    """The values of a node. See the module's invariant."""

    centre: Array
    """(*shape)"""
    blocks: Blocks
    """key → (balls, k, *shape)"""
    own: Array
    """(*shape), ≥ 0"""
    slack: Array
    """(*shape), ≥ 0"""

    @property
    def loose(self) -> Array:
        """What is not in the blocks, at most."""
        return np.asarray((self.own + self.slack) * MORE)

    @functools.cached_property
    def rough(self) -> Array:
        """|value − centre| at most, with the pairs as a ball: quick."""
        found = self.loose
        for key, columns in self.blocks.items():
            found = found + moves(key, columns) * (math.sqrt(columns.shape[1]) * MORE if key == PAIRS else 1.0)
        return np.asarray(found * MORE)

    @functools.cached_property
    def radius(self) -> Array:
        """|value − centre| at most, with the pairs by Frobenius norms."""
        return self._radius(tight=False)

    @functools.cached_property
    def tight(self) -> Array:
        """|value − centre| at most, with the pairs by spectral norms: some n times the work."""
        return np.minimum(self._radius(tight=True), self.radius) if PAIRS in self.blocks else self.radius

    def _radius(self, *, tight: bool) -> Array:
        found = self.loose
        for key, columns in self.blocks.items():
            if key == PAIRS:
                found = found + (pairs.spectral if tight else pairs.frobenius)(columns[0], self.count)
            else:
                found = found + moves(key, columns)
        return np.asarray(found * MORE)

    @property
    def size(self) -> Array:
        """|value| at most."""
        return np.asarray((np.abs(self.centre) + self.rough) * MORE)

    @property
    def count(self) -> int:
        """n, the number of the input's unknowns; 0 if the form does not depend on them."""
        if LINES in self.blocks:
            return int(self.blocks[LINES].shape[0])
        return pairs.count(self.blocks[PAIRS].shape[1]) if PAIRS in self.blocks else 0

    @property
    def numbers(self) -> int:
        """How many coefficients the blocks have, but for those of squares and pairs."""
        return sum(x.size for key, x in self.blocks.items() if key not in (SQUARES, PAIRS))

    @functools.cached_property
    def linear(self) -> Form:
        """ℓ: what is linear in the input's unknowns, around 0."""
        zero = np.zeros_like(self.centre)
        blocks = {LINES: self.blocks[LINES]} if LINES in self.blocks else {}
        return Form(centre=zero, blocks=blocks, own=zero, slack=zero)

    @functools.cached_property
    def rest(self) -> Form:
        """What is not linear, around 0: value = centre + linear + rest."""
        blocks = {key: x for key, x in self.blocks.items() if key != LINES}
        return Form(centre=np.zeros_like(self.centre), blocks=blocks, own=self.own, slack=self.slack)

    @property
    def deviation(self) -> Form:
        """The same around 0."""
        return replace(self, centre=np.zeros_like(self.centre))

    def lines(self, count: int) -> Array:
        """The coefficients of the input's unknowns, (n, *shape), each in [−1, 1] by itself."""
        if LINES in self.blocks and self.blocks[LINES].shape[1] != 1:
            raise Rejected("products of unknowns that are in balls")
        return self.blocks[LINES][:, 0] if LINES in self.blocks else np.zeros((count, *self.centre.shape))

    def box(self) -> ProvedInterval:
        """The range of every number, by `tight`."""
        return ProvedInterval(self.centre) + ProvedInterval(-self.tight, self.tight)

    def moved(self, change: Callable[[Array], Array]) -> Form:
        """With all arrays changed by a function that only moves numbers, behind any leading dimensions."""
        found = Form(
            centre=change(self.centre),
            blocks={key: change(x) for key, x in self.blocks.items()},
            own=change(self.own),
            slack=change(self.slack),
        )
        for name in ("rough", "radius", "tight"):
            if name in self.__dict__:
                found.__dict__[name] = change(self.__dict__[name])
        return found


def grown(n: int) -> float:
    """The factor by which a sum of n numbers ≥ 0, rounded, is made at least the sum."""
    return 1 + rounding(n + 4)


def lengths(columns: Array) -> Array:
    """How far the balls move each number, at most: (balls, k, *shape) → (*shape)."""
    balls, k = columns.shape[:2]
    if k == 1:
        return np.asarray(np.abs(columns[:, 0]).sum(0) * grown(balls))
    square = np.einsum("mk...,mk...->m...", columns, columns)
    return np.asarray((np.sqrt(square).sum(0) + balls * math.sqrt(k) * UNDERFLOW) * grown(balls + k))


def moves(key: int, columns: Array) -> Array:
    """How far a block moves each number, at most, (balls, k, *shape) → (*shape): in ℓ1 balls by the largest column."""
    if key == CROSS:
        return np.asarray(np.abs(columns).max(1).sum(0) * grown(columns.shape[0]))
    return lengths(columns)


def constant(centre: Array, error: Array) -> Form:
    """A form without unknowns: |value − centre| ≤ error."""
    return Form(centre=centre, blocks={}, own=np.zeros_like(centre), slack=error)


def of_box(box: ProvedInterval) -> Form:
    """A box: every number is off by itself."""
    middle = box.middle()
    return Form(centre=middle, blocks={}, own=box.reach(middle), slack=np.zeros_like(middle))


def image(form: Form, f: Callable[[Array], Array], sizes: Callable[[Array], Array], roundings: int) -> Form:
    """An affine map f, in floats, of at most so many roundings. sizes(x) is |f|·x for x ≥ 0. See the module's lemma.

    f and sizes act on the last dimensions; leading ones are of unknowns.
    """
    factor = grown(roundings)
    slack = sizes(form.slack) * factor + rounding(roundings) * sizes(form.size) * factor + LOST
    return Form(
        centre=f(form.centre),
        blocks={key: f(columns) for key, columns in form.blocks.items()},
        own=sizes(form.own) * factor,
        slack=slack * MORE,
    )


def joined(*parts: Blocks) -> Blocks:
    """The sum of blocks; each sum is rounded as often as there are parts with the key, less one."""
    found: Blocks = {}
    for part in parts:
        for key, columns in part.items():
            found[key] = found[key] + columns if key in found else columns
    return found


def total(x: Form, y: Form) -> Form:
    """x + y."""
    size = rounding(2) * (x.size + y.size) + LOST
    return Form(
        centre=x.centre + y.centre,
        blocks=joined(x.blocks, y.blocks),
        own=(x.own + y.own) * MORE,
        slack=(x.slack + y.slack + size) * MORE,
    )


def loosened(form: Form, slack: Array) -> Form:
    """With more slack."""
    return replace(form, slack=(form.slack + slack) * MORE)


def with_products(form: Form, coefficients: tuple[Array, Array], error: Array) -> Form:
    """form + Σ_{i<j} p_ij ξ_i ξ_j + Σ_i q_i ξ_i², (p, q) as pairs.py packs them.

    error: a bound of what the sum is off by because the coefficients were rounded.
    """
    p, q = coefficients
    n = q.shape[0]
    blocks = joined(form.blocks, {PAIRS: p[None], SQUARES: q[:, None] / 2})
    size = np.abs(q).sum(0) * grown(n) + np.abs(form.centre)
    for key, new in ((PAIRS, p[None]), (SQUARES, q[:, None] / 2)):  # what was added up with them
        if key in form.blocks:
            factor = math.sqrt(new.shape[1]) if key == PAIRS else 1.0
            size = size + factor * (lengths(form.blocks[key]) + lengths(new))
    slack = (form.slack + error + rounding(n + 4) * size + LOST) * MORE
    return Form(centre=form.centre + q.sum(0) / 2, blocks=blocks, own=form.own, slack=slack)


def chosen(first: Bools, a: Form, b: Form) -> Form:
    """The numbers of a where `first` (bool, broadcast to the shape), and those of b elsewhere."""
    keep = np.broadcast_to(first, a.centre.shape)
    if keep.all():
        return a
    if not keep.any():
        return b
    blocks: Blocks = {}
    for key in [*a.blocks, *(key for key in b.blocks if key not in a.blocks)]:
        of_a, of_b = a.blocks.get(key), b.blocks.get(key)
        blocks[key] = np.where(keep, 0.0 if of_a is None else of_a, 0.0 if of_b is None else of_b)
    return Form(
        centre=np.where(keep, a.centre, b.centre),
        blocks=blocks,
        own=np.where(keep, a.own, b.own),
        slack=np.where(keep, a.slack, b.slack),
    )
