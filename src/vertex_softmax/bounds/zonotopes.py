"""Zonotopes of all nodes, one node after the other from the input on, and the boxes and summaries they give.

Invariant: for every input of the set each node's value lies in its zonotope, with the same unknowns in all of them.

Each op is gone through once, so that the work grows with the depth of the network and not with its square. But which
functional of a node is wanted in the end is not known here: backward passes over these boxes are tighter in the end.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes, by_intervals
from vertex_softmax.bounds.exact_ranges import exact_range
from vertex_softmax.bounds.index import GraphIndex, last_norm
from vertex_softmax.bounds.memory import (
    MOST_GENERATOR_NUMBERS,
    MOST_PAIR_NUMBERS,
    MOST_START_NUMBERS,
    pair_numbers,
)
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.tolerances import OUTWARD
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops.contract import AffineOp, Propagating, Summarising
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.lengths import norm
from vertex_softmax.ops.linear import Add, Linear, Scale, Shift, Subtract
from vertex_softmax.ops.shape import Moving
from vertex_softmax.ops.zonotope import (
    BallProducts,
    Care,
    InputUnknowns,
    Pairs,
    Segments,
    Unknowns,
    Zonotope,
    ellipsoid_balls,
    error_blocks,
    of_box,
    reach_of,
)
from vertex_softmax.sets.region import Region

ONE_BY_ONE = (Moving, Scale, Shift, Add, Subtract)
"""Affine ops of which each number of the output is made of one number of each input."""


ON_GPU = 32
"""How many times as many numbers a node's blocks may have on a GPU: 4 GiB in float32."""
ALIVE = 8
"""How many arrays of the size of a node's products are alive at once, roughly."""


def boxes_by_zonotopes(question: Question) -> Boxes:
    """Boxes of all nodes by intervals and by zonotopes, with what ops learn of their inputs from them; made once."""
    return question.once("zonotopes", lambda: _made(question))


def _made(question: Question) -> Boxes:
    begin = time.perf_counter()
    boxes, index = question.input_boxes(), question.index
    curved = _read_by_curves(index)
    most = MOST_GENERATOR_NUMBERS * (question.batch if question.device.type == "cpu" else max(ON_GPU, question.batch))
    start = input_zonotope(question.given, question.graph.input.name)
    zonotopes = {question.graph.input: _with_products(start, question)}
    left = Counter(i for node in index.nodes for i in node.inputs)
    norm, output = last_norm(question.graph), question.graph.output
    kept = [output] if norm is None else [output, norm.inputs[0]]
    for node in index.nodes:
        question.clock.check()
        if node is not question.graph.input:
            boxes = boxes.with_interval(node, by_intervals(node, boxes.intervals))
            if (exact := exact_range(question, node)) is not None:
                boxes = boxes.tightened(node, exact)
            boxes = _with_learnt(index, boxes, node, zonotopes)
            found = propagated(node, zonotopes, boxes.intervals)
            if left[node] > 1:  # what several nodes read they read with the same unknowns
                found = merged(found, most * 3 // 4, f"ops before {node.name}")
            zonotopes[node] = reduced(found, most)
            if not isinstance(node.op, Moving):  # then the box is the input's, moved
                found = zonotopes[node]
                careful = node is question.graph.output or node in curved
                boxes = boxes.tightened(node, found.tight_box if careful else found.rough_box)
        for i in node.inputs:
            left[i] -= 1
            if left[i] == 0 and i not in kept:
                del zonotopes[i]
    question.clock.add("zonotopes", begin)
    return dataclasses.replace(boxes, zonotopes={node: zonotopes[node] for node in kept})


def _read_by_curves(index: GraphIndex) -> set[Node]:
    """The nodes that an op reads which is not affine, itself or moved: their boxes are worth some work."""
    found: set[Node] = set()
    for node in reversed(index.nodes):
        if not node.op.affine or (isinstance(node.op, Moving) and node in found):
            found.update(node.inputs)
    return found


def _with_learnt(index: GraphIndex, boxes: Boxes, node: Node, zonotopes: Mapping[Node, Zonotope]) -> Boxes:
    """Boxes with what the relaxation of a node gains from its inputs' zonotopes."""
    op = node.op
    if not isinstance(op, Propagating):
        return boxes
    inputs = tuple(zonotopes[i] for i in node.inputs)
    exact = isinstance(op, Summarising) and bool(op.form_inputs)
    exact = exact and all(node.inputs[i] in index.affine for i in op.form_inputs)
    if not exact and (summary := op.learnt(inputs)) is not None:
        boxes = boxes.with_summary(node, summary)
    for i, each in enumerate(node.inputs):
        if (rows := op.learnt_rows(i, inputs, boxes[each])) is not None:
            boxes = boxes.with_centred(each, node, rows)
    return boxes


def are_too_wide(question: Question) -> bool:
    """Whether the first zonotopes would take too much memory: an image of 150,000 numbers has as many unknowns."""
    box, affine = question.given.box, question.index.affine
    inputs = int((box.upper > box.lower).flatten(1).sum(1).max()) if box.lower.numel() else 0
    numbers = max((math.prod(node.shape) for node in question.index.nodes if node in affine), default=0)
    return question.batch * inputs * numbers > MOST_START_NUMBERS.get(question.device.type, MOST_START_NUMBERS["cpu"])


def has_products(question: Question) -> bool:
    """Whether zonotopes of a question have products of the input's unknowns."""
    start = input_zonotope(question.given, question.graph.input.name)
    return _with_products(start, question) is not start


def _with_products(start: Zonotope, question: Question) -> Zonotope:
    """The input with products of its unknowns, where they are few enough for all nodes."""
    if len(start.blocks) > 1 or not question.products:
        return start
    ((unknowns, columns),) = start.blocks.items()
    balls, dimension = columns.shape[1:3]
    count, total = max(balls, dimension), question.memory.total
    numbers = pair_numbers(question.graph, count)
    most = MOST_PAIR_NUMBERS if total is None else min(MOST_PAIR_NUMBERS, total // (4 * ALIVE * columns.itemsize))
    if count < 2 or min(balls, dimension) != 1 or numbers > most:
        return start
    name = unknowns.origin
    if dimension > 1:
        both = BallProducts(name, count)
        products = InputUnknowns(name, count, both, both)
    else:
        products = InputUnknowns(name, count, Unknowns(name), Pairs(name, count))
    return dataclasses.replace(start, blocks={products: columns})


def lowest(zonotope: Zonotope, A: Tensor) -> Tensor:
    """Lower bounds of dense objectives A (batch, S, *shape) over a zonotope, rounded outward, (batch, S)."""
    A = A.flatten(2)
    found = (A * zonotope.centre.flatten(1).unsqueeze(1)).sum(-1)
    found = found - (A.abs() * zonotope.loose.flatten(1).unsqueeze(1)).sum(-1)
    for unknowns, columns in zonotope.blocks.items():
        along = A @ columns.flatten(3).flatten(1, 2).mT  # (batch, S, balls · dimension)
        along = along.unflatten(-1, columns.shape[1:3])
        if isinstance(unknowns, Pairs | BallProducts):
            found = found - reach_of(unknowns, along.movedim(1, -1), tight=True)
        else:
            found = found - norm(along, (-1,)).sum(-1)
    size = (A.abs() * (zonotope.centre.abs() + zonotope.radius).flatten(1).unsqueeze(1)).sum(-1)
    return found - OUTWARD.get(found.dtype, 0.0) * size


def shares(zonotope: Zonotope, A: Tensor) -> dict[str, Tensor]:
    """How much of an objective A (batch, *shape) the errors of each node take away, by the node's name, (batch)."""
    found: dict[str, Tensor] = {}
    for unknowns, columns in zonotope.blocks.items():
        size = reach_of(unknowns, (columns * A[:, None, None]).flatten(3).sum(-1), tight=True)
        found[unknowns.origin] = found.get(unknowns.origin, torch.zeros_like(size)) + size
    return found


def input_zonotope(region: Region, name: str) -> Zonotope:
    """Of the input set, in the unknowns of its own geometry (`Region.blocks`)."""
    box = region.box
    zero = torch.zeros_like(box.lower)
    share = OUTWARD.get(zero.dtype, 0.0)
    slack = share * box.magnitude if share > 0 else zero
    return Zonotope(region.middle, {Unknowns(name): columns for columns in region.blocks()}, None, slack)


def propagated(node: Node, zonotopes: Mapping[Node, Zonotope], boxes: Mapping[Node, Interval]) -> Zonotope:
    """The zonotope of a node from those of its inputs, and within its box."""
    op, box = node.op, boxes[node]
    inputs = tuple(zonotopes[i] for i in node.inputs)
    if isinstance(op, Constant):
        zero = torch.zeros_like(box.lower)
        return Zonotope(box.lower, {}, None, zero)
    if isinstance(op, Moving) and len(inputs) == 1:
        return inputs[0].rearranged(op.linear)
    if isinstance(op, AffineOp):
        found = _affine(op, inputs, node.inputs[0].name)  # numbers' own unknowns are the input's
    elif isinstance(op, Propagating):
        found = op.propagate(inputs, tuple(boxes[i] for i in node.inputs), node.name)
    else:
        return of_box(box)
    return _within(found, box)


def _within(found: Zonotope, box: Interval) -> Zonotope:
    """With the numbers taken from the box that are not finite, or whose own unknown alone is as wide as the box."""
    fine = found.centre.isfinite() & found.rough_radius.isfinite() & (found.loose <= box.radius)
    fine = fine | ~box.radius.isfinite()
    if bool(fine.all()):
        return found
    keep = fine[:, None, None]
    zero = torch.zeros_like(found.centre)
    blocks = {
        unknowns: torch.where(keep, columns, torch.zeros_like(columns)) for unknowns, columns in found.blocks.items()
    }
    own = torch.where(fine, zero if found.own is None else found.own, box.radius)
    return Zonotope(torch.where(fine, found.centre, box.centre), blocks, own, torch.where(fine, found.slack, zero))


def _affine(op: AffineOp, inputs: tuple[Zonotope, ...], origin: str) -> Zonotope:
    """The image, exact but for rounding and for what numbers have for themselves."""
    centre = op.evaluate(*(x.centre for x in inputs))
    blocks: dict[Unknowns, Tensor] = {}
    for unknowns in dict.fromkeys(u for x in inputs for u in x.blocks):
        lead = next(x.blocks[unknowns] for x in inputs if unknowns in x.blocks).shape[:3]
        blocks[unknowns] = op.linear(
            *(
                x.blocks[unknowns]
                if unknowns in x.blocks
                else x.centre.new_zeros(()).expand(*lead, *x.centre.shape[1:])
                for x in inputs
            )
        )
    own = None
    if any(x.own is not None for x in inputs):
        ones = tuple(torch.zeros_like(x.centre) if x.own is None else x.own for x in inputs)
        if isinstance(op, ONE_BY_ONE):
            own = _sizes(op, ones)
        elif isinstance(op, Linear) and op.weight.dim() == 2:
            blocks.update(error_blocks([Segments(ones[0].unsqueeze(-1) * op.weight)], origin))
        else:
            own = _sizes(op, ones)
    slack = _sizes(op, tuple(x.slack for x in inputs))
    share = OUTWARD.get(centre.dtype, 0.0)
    if share > 0:
        slack = slack + share * (centre.abs() + _sizes(op, tuple(x.centre.abs() + x.rough_radius for x in inputs)))
    return Zonotope(centre, blocks, own, slack)


def _sizes(op: AffineOp, sizes: tuple[Tensor, ...]) -> Tensor:
    """|W|·sizes: how far the output may be off if the inputs are off by these, rounded outward."""
    return op.interval(*(Interval(-x, x) for x in sizes)).radius


def merged(zonotope: Zonotope, most: int, origin: str) -> Zonotope:
    """With blocks taken together, one ball for each row, if there are more numbers than that: until half are left.

    An ellipsoid for each row keeps the directions of its errors; what is lost is that several rows share errors. The
    blocks that reach least are taken, but not the input's: the first, and those of its other parts.
    """
    sizes = _sizes_of_blocks(zonotope)
    whole = sum(sizes.values())
    if whole <= most or zonotope.centre.dim() < 2:
        return zonotope
    first, *others = sizes
    others = [unknowns for unknowns in others if unknowns.origin != first.origin]
    reach = {unknowns: float(zonotope.reach_of_block(unknowns, Care.ROUGH).sum()) for unknowns in others}
    whole += zonotope.centre.numel() * math.prod(zonotope.centre.shape[1:])  # of the balls that are made
    chosen: list[Unknowns] = []
    for unknowns in sorted(others, key=lambda each: reach[each]):
        if whole <= most // 2:
            break
        whole -= sizes[unknowns]
        chosen.append(unknowns)
    zero = torch.zeros_like(zonotope.slack)
    old = Zonotope(zero, {unknowns: zonotope.blocks[unknowns] for unknowns in chosen}, None, zero)
    unknowns, columns = ellipsoid_balls((old.row_shape.ellipsoid(),), origin)
    kept = {each: blocks for each, blocks in zonotope.blocks.items() if each not in chosen}
    return dataclasses.replace(zonotope, blocks={**kept, unknowns: columns})


def _sizes_of_blocks(zonotope: Zonotope) -> dict[Unknowns, int]:
    """How many numbers each block has, but for products of the input's unknowns, which have a limit of their own."""
    inputs = zonotope.inputs
    products = () if inputs is None else (inputs.pairs, inputs.squares)
    return {unknowns: columns.numel() for unknowns, columns in zonotope.blocks.items() if unknowns not in products}


def reduced(zonotope: Zonotope, most: int) -> Zonotope:
    """With the blocks that reach least taken into the numbers' own unknowns until at most so many numbers are left."""
    sizes = _sizes_of_blocks(zonotope)
    whole = sum(sizes.values())
    if whole <= most:
        return zonotope
    reach = {unknowns: zonotope.reach_of_block(unknowns, Care.ROUGH) for unknowns in sizes}
    blocks, own = dict(zonotope.blocks), zonotope.own
    for unknowns in sorted(reach, key=lambda u: float(reach[u].sum())):
        if whole <= most:
            break
        own = reach[unknowns] if own is None else own + reach[unknowns]
        whole -= sizes[unknowns]
        del blocks[unknowns]
    return dataclasses.replace(zonotope, blocks=blocks, own=own)
