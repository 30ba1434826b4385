"""Splits of a set by the value of one number inside the network, and the boxes of the parts they lead to."""

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
    """One side of a split: number `place` of a node, flattened, is at least (or at most) `point`."""

    node: Node
    place: int
    point: float
    at_least: bool
    size: float = 1.0
    """about how large the coefficients on that number are: the scale of the multiplier's steps"""
    inner: bool = False
    """whether the number is not one of the node's value but one that its op computes on the way (no multiplier then)"""


class PartBoxes(NamedTuple):
    """Boxes of several parts of a set, and where their cut sides have multipliers."""

    boxes: Boxes
    cuts: Mapping[Node, Multipliers]
    """(parts, 1, *shape): the scale of a multiplier's steps where a side is cut, 0 elsewhere"""


def part_boxes(
    whole: Boxes, inner: Mapping[Node, Interval], parts: Sequence[Sequence[Split]], forbidden: Sequence[Node]
) -> PartBoxes:
    """The boxes of parts, each given by its splits, of the set of `whole`.

    `inner`: the ranges, before any split, of what ops compute on the way. `forbidden`: nodes that cannot be split
    (the input itself: a part of the input is another question).
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
                for split in splits:  # later splits of the same number are inside the earlier
                    if split.node is node and split.inner is within and split.at_least is at_least:
                        end[k, split.place] = split.point
                        side[k, split.place] = split.size
        box = _ordered(box, Interval(*(end.expand(len(parts), *shape).flatten(1) for end in known)))
        (ranges if within else boxes)[node] = Interval(*(end.reshape(-1, *shape) for end in box))
        if not within:
            cuts[node] = sides.map(lambda side, shape=shape: side.reshape(-1, 1, *shape))  # type: ignore[misc]
    return PartBoxes(whole.parts(len(parts), boxes, ranges), cuts)


def _ordered(cut: Interval, known: Interval) -> Interval:
    """What splits left of an interval, within the known one, which may have become narrower since they were made.

    Ends that cross change places: a part is never discarded as empty, because that may be rounding alone.
    """
    lower, upper = torch.maximum(cut.lower, known.lower), torch.minimum(cut.upper, known.upper)
    return Interval(torch.minimum(lower, upper), torch.maximum(lower, upper))
