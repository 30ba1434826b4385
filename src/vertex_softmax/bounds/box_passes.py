"""Boxes of nodes by backward passes: each entry and its negative is an objective.

Invariant: a box returned holds every value of the node over the input set, rounded outward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import lower_bound
from vertex_softmax.bounds.boxes import Boxes, by_intervals
from vertex_softmax.bounds.coefficients import Coefficients, Objective, diagonal_dimension
from vertex_softmax.bounds.exact_ranges import exact_range
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.units import Units, undecided, unit_objectives
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops.contract import CentredRows, Centring, Shape
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import Rules

FEW = 0.7
"""Entries are few if they are less than this share of those that are bounded with them along a dimension."""

Refine = Callable[[Boxes, Node], Boxes]
"""Boxes in which a node's interval may be tighter."""


def all_boxes(
    question: Question, refine: Refine | None = None, known: Sequence[Boxes] = (), learnt: Boxes | None = None
) -> Boxes:
    """Boxes of all nodes, from the input on: by intervals, met with what is known, and refined where an op reads them.

    `known`: other sound boxes of the same question. `refine` is called for every node that a nonlinearity reads.
    `learnt`: also such boxes, of which the summaries and centred rows are taken over too.
    """
    boxes = question.input_boxes()
    if learnt is not None:
        boxes, known = boxes.with_learnt(learnt), (*known, learnt)
    index = question.index
    for done, node in enumerate(index.nodes, start=1):
        if node is not question.graph.input:
            interval = by_intervals(node, boxes.intervals)
            boxes = boxes.with_interval(node, interval)
            if (exact := exact_range(question, node)) is not None:
                boxes = boxes.tightened(node, exact)
            for other in known:
                boxes = boxes.tightened(node, other[node])
            if refine is not None and not isinstance(node.op, Constant) and index.read_by_someone(node):
                boxes = refine(boxes, node)
        boxes = boxes.inspected(node)
        question.clock.tell("boxes", done, len(index.nodes))
    return boxes


def inspected_boxes(question: Question, boxes: Boxes) -> Boxes:
    """Boxes of all nodes with a problem noted wherever they are not finite."""
    for node in question.index.nodes:
        boxes = boxes.inspected(node)
    return boxes


def box_by_pass(question: Question, boxes: Boxes, node: Node, rules: Rules, *, everywhere: bool = False) -> Interval:
    """The node's box by a backward pass with every entry that some op wants tighter, and its negative.

    `everywhere`: with every entry. Behind an attention few entries have objectives of their own: there coefficients do
    not stay diagonal, and along a dimension others would be bounded with them.
    """
    lower, upper = (end.expand(question.batch, *node.shape).clone() for end in boxes[node])
    wanted = undecided(question, boxes, node)
    if everywhere:
        wanted = torch.ones_like(wanted)
    diagonal = diagonal_dimension(node.shape)
    if diagonal is not None and question.index.has_attention(node):
        along = int(wanted.any(diagonal).sum()) * node.shape[diagonal]
        diagonal = None if int(wanted.sum()) < FEW * along else diagonal
    return _by_passes(question, boxes, Interval(lower, upper), node, rules, (wanted, diagonal))


def centred_box(question: Question, boxes: Boxes, node: Node, rules: Rules, weights: Tensor) -> Interval:
    """The box of each entry of a node less the mean of its row by weights ω, (batch, *shape)."""
    unknown = Interval(*(torch.full_like(weights, end) for end in (-torch.inf, torch.inf)))
    everything = torch.ones(node.shape, dtype=torch.bool, device=question.device)
    return _by_passes(question, boxes, unknown, node, rules, (everything, diagonal_dimension(node.shape)), weights)


def with_centred_rows(question: Question, boxes: Boxes, node: Node, rules: Rules) -> Boxes:
    """Boxes with the rows of a node less their means, for every user that has weights for them."""
    for user in question.index.users(node):
        if isinstance(user.op, Centring):
            weights = user.op.centring_weights(user.inputs.index(node), boxes[node])
            if weights is not None:
                box = centred_box(question, boxes, node, rules, weights)
                boxes = boxes.with_centred(node, user, CentredRows(weights, box))
    return boxes


def _by_passes(
    question: Question,
    boxes: Boxes,
    box: Interval,
    node: Node,
    rules: Rules,
    which: tuple[Tensor, int | None],
    weights: Tensor | None = None,
) -> Interval:  # seven parameters: what is asked (question … rules), where, and about which mean
    """A box with the wanted entries, less their rows' means if there are weights, replaced by what passes give.

    which: the wanted entries (*shape), and the dimension along which one objective stands for all entries.
    """
    wanted, diagonal = which
    for units in unit_objectives(question, node, diagonal, wanted):
        A = units.A if weights is None else units.A - units.A.sum(-1, keepdim=True) * weights.unsqueeze(1)
        objective = Objective(node, Coefficients(torch.cat([A, -A], 1), diagonal))
        found = lower_bound(question, boxes, objective, rules, outward=True)  # (batch, 2 S · n)
        box = _written(box, found, units, diagonal, node.shape)
    return box


def _written(box: Interval, found: Tensor, units: Units, diagonal: int | None, shape: Shape) -> Interval:
    """A box with the bounds found (batch, 2 S · n) of units and their negatives put at their entries."""
    batch, n = found.shape[0], 1 if diagonal is None else shape[diagonal]
    both = found.reshape(batch, 2, len(units.rows), n)
    ends = []
    for whole, part in ((box.lower, both[:, 0]), (box.upper, -both[:, 1])):
        moved = (whole if diagonal is None else whole.movedim(1 + diagonal, -1)).reshape(batch, -1, n)
        moved = moved.index_copy(1, units.rows, part)
        rest = [size for d, size in enumerate(shape) if d != diagonal]
        if diagonal is None:
            ends.append(moved.reshape(batch, *shape))
        else:
            ends.append(moved.reshape(batch, *rest, n).movedim(-1, 1 + diagonal))
    return Interval(*ends)
