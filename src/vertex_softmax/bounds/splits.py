"""Splits of a set by the value of one number inside the network, and the boxes of the parts that they lead to.

Invariant: the boxes of a part hold for every input of the set at which all splits of the part hold, to rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import Multipliers
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.interval import Interval


@dataclasses.dataclass(frozen=True)
class Split:
    """One side of a split: the entry with flat index `place` of a node is at least (or at most) `point`."""

    node: Node
    place: int
    point: float
    at_least: bool
    size: float = 1.0
    """the rough size of the coefficients on that number, which is the scale of the steps of its multiplier"""
    inner: bool = False
    """whether the number is not an entry of the node's value but one that its op computes inside (it has no
    multiplier)"""


class PartBoxes(NamedTuple):
    """The boxes of several parts of a set, and which of their sides were cut and have multipliers."""

    boxes: Boxes
    cuts: Mapping[Node, Multipliers]
    """(parts, 1, *shape): the scale of the multiplier's steps where a side was cut, 0 elsewhere"""


def part_boxes(
    whole: Boxes, inner: Mapping[Node, Interval], parts: Sequence[Sequence[Split]], forbidden: Sequence[Node]
) -> PartBoxes:
    """The boxes of parts of the set that `whole` belongs to; each part is given by its splits.

    `inner`: by node, the range before any split of what its op computes inside. `forbidden`: nodes that cannot be
    split, such as the input: a part of the input set is another question.
    """
    boxes: dict[Node, Interval] = {}
    ranges: dict[Node, Interval] = {}
    cuts: dict[Node, Multipliers] = {}
    for node, within in {(split.node, split.inner) for splits in parts for split in splits}:
        if node in forbidden and not within:
            raise InvalidValueError("the input's own box is split: that is another question, not a part of this one")
        known = inner[node] if within else whole[node]
        shape = known.lower.shape[1:]
        box = Interval(*(end.expand(len(parts), *shape).flatten(1).clone() for end in known))
        sides = Multipliers(*(torch.zeros_like(end) for end in box))
        for at_least, end, side in ((True, box.lower, sides.at_least), (False, box.upper, sides.at_most)):
            for k, splits in enumerate(parts):
                for split in splits:  # a later split of the same number lies inside an earlier one
                    if split.node is node and split.inner is within and split.at_least is at_least:
                        end[k, split.place] = split.point
                        side[k, split.place] = split.size
        box = _ordered(box, Interval(*(end.expand(len(parts), *shape).flatten(1) for end in known)))
        (ranges if within else boxes)[node] = Interval(*(end.reshape(-1, *shape) for end in box))
        if not within:
            cuts[node] = sides.map(lambda side, shape=shape: side.reshape(-1, 1, *shape))  # type: ignore[misc]
    return PartBoxes(whole.parts(len(parts), boxes, ranges), cuts)


def _ordered(cut: Interval, known: Interval) -> Interval:
    """The intersection of intervals cut by splits with known ones, which may have become narrower meanwhile.

    Ends that cross are swapped: a part is never discarded as empty, because the crossing may be due to rounding alone.
    """
    lower, upper = torch.maximum(cut.lower, known.lower), torch.minimum(cut.upper, known.upper)
    return Interval(torch.minimum(lower, upper), torch.maximum(lower, upper))
