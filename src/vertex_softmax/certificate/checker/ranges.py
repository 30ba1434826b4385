"""Ranges of a node over the set of inputs, by passes for each of its entries: its box, and its zonotope."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .file import Rejected
from .network import Known
from .passes import MOST_COLUMNS, ParallelPass, Pass, PassOptions, joined
from .rounding import MORE, Array, ProvedInterval, rounding
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

    def some(k: int) -> Array:
        A = units(known, number, np.arange(k * size, min((k + 1) * size, count)))
        return ParallelPass.of(known, number, A, room).whole()

    found, inputs = known.jobs.run(some, -(-count // size), known.spent), int(np.prod(known.nodes[0].shape))
    return joined(known, [ParallelPass.from_whole(each, inputs) for each in found], shape)
