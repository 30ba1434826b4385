"""Ranges of a node over the set of inputs, by passes for each of its entries: its box, and its zonotope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .file import Rejected
from .network import Known
from .passes import MOST_COLUMNS, Pass, PassOptions
from .rounding import MORE, TINY, Array, ProvedInterval, rounding
from .unknowns import kept
from .zonotopes import ProvedZonotope

WORK = 1 << 21
"""The most numbers that a pass handles at once at a node."""


def at_once(known: Known, number: int) -> int:
    """How many objectives on a node are handled in one batch."""
    return max(1, WORK // max(known.work(k) for k in range(number + 1)))


def units(known: Known, number: int, entries: NDArray[Any]) -> Array:
    """The objectives that select single entries of a node: (S,) indices → (S, *shape)."""
    shape = known.nodes[number].shape
    objectives = np.zeros((len(entries), int(np.prod(shape))))
    objectives[np.arange(len(entries)), entries] = 1
    return objectives.reshape(-1, *shape)


# Six: what is asked (known, number, entries, rule), about which mean, and with which parameters.
def box_by_pass(
    known: Known,
    number: int,
    entries: NDArray[Any],
    rule: str,
    weights: Array | None = None,
    chosen: dict[int, dict[str, Array]] | None = None,
) -> ProvedInterval:
    """The box of a node, narrowed by a pass for each of the entries (flat indices); same shape as the node.

    With weights ω, a box of s − ω·s instead, s the rows of the node along its last dimension. `chosen`: parameters for
    the passes, (2 · entries, ...): those of the lower ends, then those of the upper ends.
    """
    old = (
        known.boxes[number] if weights is None else ProvedInterval(np.full(known.nodes[number].shape, -np.inf), np.inf)
    )
    lo, hi = (np.array(np.broadcast_to(end, old.lo.shape)).ravel() for end in (old.lo, old.hi))
    size = at_once(known, number)
    parts = [slice(i, min(i + size, len(entries))) for i in range(0, len(entries), size)]

    def ends(k: int) -> Array:
        """The lower and the upper ends of some entries, (2, S)."""
        A = units(known, number, entries[parts[k]])
        lost = np.zeros(len(A))
        if weights is not None:  # the coefficients 1 − ω are rounded
            A = A - A.sum(-1, keepdims=True) * weights
            lost = rounding(2) * (np.abs(A) * known.boxes[number].size).reshape(len(A), -1).sum(-1) * MORE
        if 2 * len(A) <= size and not chosen:
            found = (
                Pass(known, number, np.concatenate([A, -A]), PassOptions(rule=rule, groups=2)).bound().reshape(2, -1)
            )
        else:
            options = [_options(rule, chosen, parts[k], first) for first in (0, len(entries))]
            found = np.stack(
                [Pass(known, number, sign * A, each).bound() for sign, each in zip((1, -1), options, strict=True)]
            )
        return np.stack([found[0] - lost, lost - found[1]])

    for part, found in zip(parts, known.jobs.run(ends, len(parts), known.spent), strict=True):
        lo[entries[part]] = np.fmax(lo[entries[part]], found[0])
        hi[entries[part]] = np.fmin(hi[entries[part]], found[1])
    return ProvedInterval(lo.reshape(old.lo.shape), hi.reshape(old.lo.shape))


def _options(rule: str, chosen: dict[int, dict[str, Array]] | None, part: slice, first: int) -> PassOptions:
    """The options of the passes of some entries, whose parameters begin at `first`."""
    if not chosen:
        return PassOptions(rule=rule)
    at = slice(first + part.start, first + part.stop)
    mine = {number: {name: value[at] for name, value in of.items()} for number, of in chosen.items()}
    return PassOptions(rule=rule, chosen=mine)


def zonotope(known: Known, number: int) -> ProvedZonotope:
    """The zonotope of a node, by a parallel pass for each of its entries."""
    shape = known.nodes[number].shape
    count, size = int(np.prod(shape)), at_once(known, number)
    room = MOST_COLUMNS // count - known.given.width
    if room < 0:
        raise Rejected(f"node {number}: its zonotope is too large")

    def some(k: int) -> ParallelPass:
        A = units(known, number, np.arange(k * size, min((k + 1) * size, count)))
        return ParallelPass.of(known, number, A, room)

    parts, inputs = -(-count // size), int(np.prod(known.nodes[0].shape))
    if known.jobs.count == 1:
        return joined(known, [some(k) for k in range(parts)], shape)
    found = known.jobs.run(lambda k: some(k).whole(), parts, known.spent)
    return joined(known, [ParallelPass.from_whole(each, inputs) for each in found], shape)


@dataclass(frozen=True, eq=False)
class ParallelPass:
    """What a parallel pass found of some entries of a node, (S, ...) each; see the module's invariant."""

    coefficients: Array
    lo: Array
    hi: Array
    noise: Array
    """(S, noise terms)"""

    @classmethod
    def of(cls, known: Known, number: int, A: Array, columns: int) -> ParallelPass:
        """The pass from a node with objectives A (S, *shape), with at most so many noise terms."""
        found = Pass(known, number, A, PassOptions(parallel=True, columns=columns))
        noise = np.concatenate([np.zeros((len(A), 0)), *found.noise], -1)
        return cls(found.coefficients, found.lo, found.hi, noise)

    def whole(self) -> Array:
        """All of it in one array."""
        return np.concatenate([self.coefficients, self.lo[:, None], self.hi[:, None], self.noise], -1)

    @classmethod
    def from_whole(cls, whole: Array, inputs: int) -> ParallelPass:
        """The same of a network with so many input numbers."""
        return cls(whole[:, :inputs], whole[:, inputs], whole[:, inputs + 1], whole[:, inputs + 2 :])


def joined(known: Known, parts: list[ParallelPass], shape: tuple[int, ...]) -> ProvedZonotope:
    """The zonotope of a node of this shape; each of its entries was an objective of one of these parallel passes."""
    given = known.given
    A, lo, hi = (np.concatenate(x) for x in zip(*((p.coefficients, p.lo, p.hi) for p in parts), strict=True))
    n, sizes = len(given.centre), np.abs(A)
    size = sizes @ (np.abs(given.centre) + given.reach) + np.maximum(np.abs(lo), np.abs(hi))
    error = (hi / 2 - lo / 2 + rounding(n + 4) * size) * (1 + rounding(n + 4)) + TINY * (n + 2)
    error = (error + sizes @ given.slack * (1 + rounding(n))) * MORE
    middle = (lo / 2 + hi / 2) + A @ given.centre
    noisy = any(part.noise.shape[1] for part in parts)
    exact = not noisy and bool((error <= 1e-9 * (1 + size)).all()) and given.own_columns
    each = [(given.columns(p.coefficients), p.noise) for p in parts]
    if exact:
        columns, balls = np.concatenate([own for own, _ in each]), given.balls
    else:  # columns that are 0 are left out
        own, noise = (np.any([x.any(0) for x in of], 0) for of in zip(*each, strict=True))
        columns, balls = _used(each, own, noise), kept(given.balls, np.concatenate([own, noise]))
    return ProvedZonotope(
        centre=middle.reshape(shape),
        columns=columns.reshape(*shape, -1),
        error=error.reshape(shape),
        exact=exact,
        balls=balls,
    )


def _used(each: list[tuple[Array, Array]], own: NDArray[np.bool_], noise: NDArray[np.bool_]) -> Array:
    """The columns of the input's unknowns and of noise that are used, of all parts: (S, used) in one array."""
    first, count = int(own.sum()), sum(len(x) for x, _ in each)
    columns, at = np.empty((count, first + int(noise.sum()))), 0
    for x, y in each:
        rows_of = slice(at, at + len(x))
        for source, which, out in ((x, own, columns[rows_of, :first]), (y, noise, columns[rows_of, first:])):
            np.take(source, np.flatnonzero(which), axis=1, out=out, mode="clip")  # without "clip" it makes a copy
        at += len(x)
    return columns
