"""What the checker has proved of a network's nodes, as boxes that bounds can be computed over.

Invariant: every range, generator and centred box here is one that the checker knows, or follows from these.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from vertex_softmax.bounds.box_passes import all_boxes
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.question import Question
from vertex_softmax.certificate.checker.network import Known
from vertex_softmax.certificate.checker.rounding import ProvedInterval
from vertex_softmax.certificate.lowering import Lowered
from vertex_softmax.ops.contract import CentredRows
from vertex_softmax.ops.generators import Generators
from vertex_softmax.ops.interval import Interval


class Proved(NamedTuple):
    """The question over the input set, and boxes that know what was proved."""

    question: Question
    boxes: Boxes


def proved_boxes(question: Question, low: Lowered, known: Known) -> Proved:
    """The boxes of a question about the graph that was lowered, over the set of which something is known."""
    proved = {node: _box(known.boxes[number], node.shape) for node, number in low.number.items()}
    boxes = all_boxes(question, known=[Boxes(1, proved)])
    for node in question.index.nodes:
        number = low.at[node]
        if number in known.centred:
            weights, claimed = known.centred[number]
            source = node.inputs[0]
            shaped = torch.from_numpy(np.array(weights)).reshape(1, *source.shape)
            boxes = boxes.with_centred(source, node, CentredRows(shaped, _box(claimed, source.shape)))
        given = known.zonotopes.get(low.number[node])
        if given is not None and question.index.wants_generators(node):
            parts = (torch.from_numpy(np.array(x)).unsqueeze(0) for x in (given.centre, given.columns, given.error))
            boxes = boxes.with_generators(question.index, node, Generators(*parts))
    return Proved(question, boxes)


def _box(box: ProvedInterval, shape: tuple[int, ...]) -> Interval:
    return Interval(
        *(torch.from_numpy(np.array(np.broadcast_to(x, box.lo.shape))).reshape(1, *shape) for x in (box.lo, box.hi))
    )
