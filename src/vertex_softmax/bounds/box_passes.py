"""Boxes of nodes by backward passes: every entry and its negative is an objective.

Invariant: every box returned contains every value of its node over the input set, rounded outward.
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
"""With diagonal coefficients all entries along a dimension are bounded together. If fewer than this share of those
entries are wanted, behind an attention, dense objectives for the wanted entries alone are cheaper."""

Refine = Callable[[Boxes, Node], Boxes]
"""A function from boxes and a node to boxes in which the node's interval may be tighter."""


def all_boxes(
    question: Question, refine: Refine | None = None, known: Sequence[Boxes] = (), learnt: Boxes | None = None
) -> Boxes:
    """Boxes of all nodes, in topological order: by interval arithmetic, met with known boxes, then refined.

    `known`: other sound boxes of the same question. `learnt`: also such boxes, whose summaries, centred rows and
    zonotopes are taken over as well. `refine` is called for every node whose box the relaxation of some op reads.
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
    """The boxes with a problem noted for every node whose interval is not finite."""
    for node in question.index.nodes:
        boxes = boxes.inspected(node)
    return boxes


def box_by_pass(question: Question, boxes: Boxes, node: Node, rules: Rules, *, everywhere: bool = False) -> Interval:
    """The node's box by a backward pass from each entry that some op wants tighter, and from its negative.

    `everywhere`: from all entries. Where the coefficients do not stay diagonal because there is an attention above the
    node, and few entries are wanted (FEW), each wanted entry is a dense objective.
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
    """The box of each entry of a node minus the mean of its row with the weights ω, (batch, *shape)."""
    unknown = Interval(*(torch.full_like(weights, end) for end in (-torch.inf, torch.inf)))
    everything = torch.ones(node.shape, dtype=torch.bool, device=question.device)
    return _by_passes(question, boxes, unknown, node, rules, (everything, diagonal_dimension(node.shape)), weights)


def with_centred_rows(question: Question, boxes: Boxes, node: Node, rules: Rules) -> Boxes:
    """The boxes with centred rows of a node (`CentredRows`) for every user that has weights for them."""
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
) -> Interval:  # seven parameters: the pass, the entries, and the weights
    """The given box with the bounds of backward passes at the wanted entries.

    If there are weights, they are bounds of the entries minus their rows' weighted means.

    which: the wanted entries (*shape), and the dimension along which one objective stands for all entries, or None.
    """
    wanted, diagonal = which
    for units in unit_objectives(question, node, diagonal, wanted):
        A = units.A if weights is None else units.A - units.A.sum(-1, keepdim=True) * weights.unsqueeze(1)
        objective = Objective(node, Coefficients(torch.cat([A, -A], 1), diagonal))
        found = lower_bound(question, boxes, objective, rules, outward=True)  # (batch, 2 S · n)
        box = _written(box, found, units, diagonal, node.shape)
    return box


def _written(box: Interval, found: Tensor, units: Units, diagonal: int | None, shape: Shape) -> Interval:
    """The box with `found` written to it at the entries of the units.

    found: (batch, 2 S · n), the lower bounds of S objectives at n places each, then those of their negatives.
    """
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
