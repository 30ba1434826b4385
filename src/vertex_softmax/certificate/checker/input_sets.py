"""The sets of inputs that a certificate may be about, and how small Σ A·x can become over each.

Invariant: `lowest` is at most Σ A·x + Σ deviation·ξ for every real x of the set, in exact arithmetic; every such x is
in `box`, and is what `unknowns.py` says of the set's centre, columns and balls. Every number stands for itself.

- A box: lower ≤ x ≤ upper.
- Balls, cut by a box: |(x − centre)/radius|_p ≤ 1 for the numbers of each ball, p = 1 or 2, where a number whose radius
  is 0 is the centre's; and lower ≤ x ≤ upper.
- Choices: each block of numbers is one of a list of vectors, whichever the others are. What is proved holds for the
  convex hulls of the lists too.
"""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .duality import farthest
from .file import BOXES, File, Rejected, checked_word
from .rounding import MORE, TINY, Array, ProvedInterval, down, rounding, up
from .unknowns import BallOfColumns

KINDS = ("balls", "choices")
"""The kinds of sets that are no boxes."""
Numbers = NDArray[np.int64]


class CheckedSet(ABC):
    """A set of inputs (*shape); n is their count. The columns of `unknowns.py` are P."""

    lower: Array
    """(*shape): x ≥ lower for every input of the set"""
    upper: Array
    """(*shape)"""

    @property
    @abstractmethod
    def kind(self) -> str:
        """What it is called: box, ℓ1, ℓ2 or choices."""

    def facts(self) -> dict[str, tuple[float, float]]:
        """What is particular to the kind: the least and the largest of some numbers, by their names."""
        return {}

    @property
    def box(self) -> ProvedInterval:
        """Around the set, (*shape)."""
        return ProvedInterval(self.lower, self.upper)

    @property
    @abstractmethod
    def centre(self) -> Array:
        """(n,)"""

    @property
    @abstractmethod
    def reach(self) -> Array:
        """(n,): at least |x − centre|, and at least what the columns of the number's ball move it."""

    @property
    def slack(self) -> Array:
        """(n,): at least |x − centre − columns·ξ|."""
        return np.zeros(self.lower.size)

    @property
    def balls(self) -> tuple[BallOfColumns, ...]:
        """The balls of the columns; a column in none has an unknown in [−1, 1] of its own."""
        return ()

    @property
    def work(self) -> int:
        """The work of `lowest` for one objective, in multiplications, roughly."""
        return 4 * self.lower.size

    @property
    def own_columns(self) -> bool:
        """Whether there is one column for each number of the input, which moves that one alone."""
        return True

    @property
    def width(self) -> int:
        """P"""
        return self.lower.size

    def columns(self, A: Array) -> Array:
        """A·columns, (S, n) → (S, P), of at most n + 2 roundings."""
        return np.asarray(A * self.reach)

    @abstractmethod
    def lowest(self, A: Array, deviation: Array) -> Array:
        """A lower bound of Σ A·x + Σ deviation·ξ over the set: (S, n) both → (S,).

        deviation is 0 unless the set has `own_columns`.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedBox(CheckedSet):
    """lower ≤ x ≤ upper, elementwise."""

    lower: Array
    upper: Array

    @property
    def kind(self) -> str:
        """A box."""
        return "box"

    @functools.cached_property
    def centre(self) -> Array:
        """The middle, rounded."""
        return self.box.middle().ravel()

    @functools.cached_property
    def reach(self) -> Array:
        """To the farther end."""
        return self.box.reach(self.box.middle()).ravel()

    def lowest(self, A: Array, deviation: Array) -> Array:
        """A·centre − Σ |A·reach + deviation|."""
        n, size_of = len(self.centre), np.abs(A)
        if deviation.any():
            bound = A @ self.centre - np.abs(A * self.reach + deviation).sum(-1)
        else:
            bound = A @ self.centre - size_of @ self.reach
        size = size_of @ (np.abs(self.centre) + self.reach) + np.abs(deviation).sum(-1)
        return np.asarray(down(bound - rounding(2 * n + 6) * size * MORE - TINY * 2 * n))


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedBalls(CheckedSet):
    """Balls in the ℓ1 or ℓ2 norm, one for each label of `members`, cut by a box. The centre is in the box."""

    norm: int
    """1 or 2"""
    middle: Array
    """(*shape)"""
    radius: Array
    """(*shape), ≥ 0"""
    members: Numbers
    """(*shape): the number of the ball that each number is in"""
    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        if type(self.norm) is not int or self.norm not in (1, 2):
            raise Rejected(f"balls in the norm {str(self.norm)[:80]!r}; it must be 1 or 2")
        if not (self.radius >= 0).all():
            raise Rejected("a radius of a ball is below 0")
        if not ((self.lower <= self.middle) & (self.middle <= self.upper)).all():
            raise Rejected("the centre of the balls is not in the box that cuts them")
        if not ((self.members >= 0) & (self.members < self.members.size)).all():
            raise Rejected("the number of a ball is below 0, or there are more balls than numbers")

    @property
    def kind(self) -> str:
        """By the norm."""
        return f"ℓ{self.norm}"

    def facts(self) -> dict[str, tuple[float, float]]:
        """How many balls there are that are no points, their radii, and how many numbers a box cuts."""
        free = self.reach > 0
        radii = self.reach[free]
        ends = (float(radii.min()), float(radii.max())) if len(radii) else (0.0, 0.0)
        cut = int((free & (np.minimum(*self.ways) < 1)).sum())
        return {"balls": (len(self.balls),) * 2, "radius": ends, "cut": (cut, cut)}

    @functools.cached_property
    def box(self) -> ProvedInterval:
        """Balls and box together: a number whose radius is 0 is fixed."""
        free = self.radius > 0
        lo, hi = (
            np.where(free, end, self.middle) for end in (down(self.middle - self.radius), up(self.middle + self.radius))
        )
        return ProvedInterval(np.maximum(lo, self.lower), np.minimum(hi, self.upper))

    @property
    def centre(self) -> Array:
        """Of the balls."""
        return self.middle.ravel()

    @property
    def reach(self) -> Array:
        """The radii: x = centre + radius·ξ."""
        return self.radius.ravel()

    @functools.cached_property
    def balls(self) -> tuple[BallOfColumns, ...]:
        """Those that have a number with a radius."""
        order = np.argsort(self.members.ravel(), kind="stable")
        places = np.split(order, np.flatnonzero(np.diff(self.members.ravel()[order])) + 1)
        return tuple(BallOfColumns(each, self.norm) for each in places if self.reach[each].any())

    @property
    def work(self) -> int:
        """Some rounds for a multiplier."""
        return 256 * self.lower.size

    @functools.cached_property
    def ways(self) -> tuple[Array, Array]:
        """How far ξ may go below and above 0, (n,) each, at most 1: where the box ends, rounded outward."""
        safe = np.where(self.reach > 0, self.reach, 1.0)
        ends = (up(self.centre - self.lower.ravel()), up(self.upper.ravel() - self.centre))
        below, above = (np.where(self.reach > 0, np.clip(up(end / safe), 0, 1), 0.0) for end in ends)
        return below, above

    def lowest(self, A: Array, deviation: Array) -> Array:
        """A·centre − the most of Σ |b| t over the balls, b = A·radius + deviation (duality.py)."""
        b = ProvedInterval(A) * self.reach + deviation
        below, above = self.ways
        n = len(self.centre)
        middle = A @ self.centre
        lost = rounding(n) * (np.abs(A) @ np.abs(self.centre)) * MORE + TINY * 2 * n
        far = np.zeros(len(A))
        for ball in self.balls:
            of = b[:, ball.places]
            # against the sign of b; where that is not certain, the farther of both ways
            way = np.where(of.lo > 0, below[ball.places], above[ball.places])
            way = np.where((of.lo <= 0) & (of.hi >= 0), np.maximum(below, above)[ball.places], way)
            far = up(far + farthest(of.size, way, self.norm))
        return np.asarray(down(down(middle - lost) - far))


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedChoices(CheckedSet):
    """Each block of numbers is one of its vectors. Every number is in exactly one block."""

    numbers: tuple[Numbers, ...]
    """block → (m,): its numbers, counted flat"""
    vectors: tuple[Array, ...]
    """block → (K, m), K ≥ 1"""
    lower: Array
    """the least of the vectors' numbers"""
    upper: Array
    """the largest of them"""

    def __post_init__(self) -> None:
        count = self.lower.size
        blocks = zip(self.numbers, self.vectors, strict=True)
        if not all(v.ndim == 2 and len(v) > 0 and n.shape == v.shape[1:] for n, v in blocks):
            raise Rejected("a block of choices has no vectors, or vectors that do not fit its numbers")
        each = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *self.numbers]))
        if not np.array_equal(each, np.arange(count)):
            raise Rejected("the blocks of choices do not hold every number of the input exactly once")
        for numbers, vectors in zip(self.numbers, self.vectors, strict=True):
            ends = ((self.lower, vectors.min(0)), (self.upper, vectors.max(0)))
            if not all(np.array_equal(end.ravel()[numbers], found) for end, found in ends):
                raise Rejected("the box of a part is not the one around its choices")

    @property
    def kind(self) -> str:
        """The product of finite sets."""
        return "choices"

    def facts(self) -> dict[str, tuple[float, float]]:
        """How many blocks have a choice, of how many vectors, and log2 of the number of combinations."""
        counts = [len(vectors) for vectors in self.vectors if len(vectors) > 1]
        combinations = float(np.log2(counts).sum()) if counts else 0.0
        ends = (min(counts), max(counts)) if counts else (1, 1)
        return {"blocks": (len(counts),) * 2, "vectors": ends, "combinations": (combinations, combinations)}

    @functools.cached_property
    def _of_blocks(self) -> tuple[Array, Array, Array, list[Array]]:
        """The centre, the reach and the slack, (n,) each, and the columns of each block, (k, m).

        A mix v = Σ λ_k v_k, λ ≥ 0, Σ λ = 1, is c + Σ λ_k (v_k − c) for any c, and |λ|₁ = 1. Two vectors are a segment:
        then there is one column, (v_1 − v_0)/2, and c is the middle. One vector has none.
        """
        centre, reach, slack = (np.zeros(self.lower.size) for _ in range(3))
        columns = []
        for numbers, vectors in zip(self.numbers, self.vectors, strict=True):
            c = vectors[0] if len(vectors) == 1 else vectors.mean(0)
            off = ProvedInterval(vectors) - c
            of = off.middle()
            error = off.reach(of).max(0)
            if len(vectors) <= 2:  # off[0] and off[1] are opposite to each other but for rounding
                of = of[1:]
                error = (np.maximum((off[0] + of).size, (off[1] - of).size) if len(of) else np.zeros((1, 1))).max(0)
            columns.append(of)
            centre[numbers] = c
            slack[numbers] = error
            reach[numbers] = up(np.maximum(off.size.max(0), np.abs(of).max(0, initial=0.0) + error))
        return centre, reach, slack, columns

    @property
    def centre(self) -> Array:
        """The mean of each block's vectors, rounded; where there is one alone, that one."""
        return self._of_blocks[0]

    @property
    def reach(self) -> Array:
        """To the farthest vector."""
        return self._of_blocks[1]

    @property
    def slack(self) -> Array:
        """What rounding leaves."""
        return self._of_blocks[2]

    @property
    def work(self) -> int:
        """All vectors."""
        return 4 * sum(vectors.size for vectors in self.vectors)

    @property
    def own_columns(self) -> bool:
        """A column moves its whole block."""
        return False

    @functools.cached_property
    def balls(self) -> tuple[BallOfColumns, ...]:
        """One for each block that has a choice."""
        ends = np.cumsum([0, *(len(columns) for columns in self._of_blocks[3])])
        return tuple(BallOfColumns(np.arange(start, end), 1) for start, end in itertools.pairwise(ends) if end > start)

    @property
    def width(self) -> int:
        """All choices of blocks that have one."""
        return sum(len(columns) for columns in self._of_blocks[3])

    def columns(self, A: Array) -> Array:
        """Of the blocks that have a choice, one after the other."""
        parts = [A[:, n] @ of.T for n, of in zip(self.numbers, self._of_blocks[3], strict=True) if len(of)]
        return np.concatenate(parts, -1) if parts else np.zeros((len(A), 0))

    def lowest(self, A: Array, deviation: Array) -> Array:
        """The least of the finitely many values of each block, added up."""
        if deviation.any():
            raise Rejected("planes at a corner of a set that has no corners of its own")
        least = []
        for numbers, vectors in zip(self.numbers, self.vectors, strict=True):
            m, of = len(numbers), A[:, numbers]
            lost = rounding(m) * (np.abs(of) @ np.abs(vectors).T) * MORE + TINY * 2 * m
            least.append(down(of @ vectors.T - lost).min(-1))
        return ProvedInterval(np.stack(least, -1)).sum().lo if least else np.zeros(len(A))


def read_set(part: dict[str, Any], file: File, shape: tuple[int, ...]) -> CheckedSet:
    """The input set of a part of a certificate, of inputs of this shape; it is not empty, or it is rejected."""
    lower, upper = (file.numbers(part[end], shape) for end in ("lower", "upper"))
    if not (lower <= upper).all():
        raise Rejected("the input set is empty: a lower end is above its upper end")
    if "set" not in part:
        return CheckedBox(lower=lower, upper=upper)
    if file.header["format"] in BOXES:
        raise Rejected(f"a set that is no box in a file of the format {file.header['format']}")
    entry = part["set"]
    if checked_word(entry["kind"], KINDS) == "balls":
        middle, radius = (file.numbers(entry[name], shape) for name in ("centre", "radius"))
        members = file.array(entry["members"], "i", shape)
        return CheckedBalls(norm=entry["norm"], middle=middle, radius=radius, members=members, lower=lower, upper=upper)
    return CheckedChoices(
        numbers=tuple(file.array(block["numbers"], "i") for block in entry["blocks"]),
        vectors=tuple(file.numbers(block["vectors"]) for block in entry["blocks"]),
        lower=lower,
        upper=upper,
    )
