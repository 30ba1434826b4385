"""Propagate zonotopes through the network, node by node from the input, and make boxes and summaries from them.

Invariant: for every input of the set there are values of the unknowns, the same for all nodes, at which each node's
zonotope contains its value.

Every op is visited once, so that the work grows with the depth of the network and not with its square. On the other
hand, when a node is visited it is not known which of its linear functionals the output needs; backward passes over
these boxes give tighter bounds in the end.
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
from vertex_softmax.bounds.gathering import gathered, places_to_gather
from vertex_softmax.bounds.index import GraphIndex, last_norm
from vertex_softmax.bounds.memory import (
    MOST_GENERATOR_NUMBERS,
    MOST_START_NUMBERS,
    pair_numbers,
)
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.rough_ranges import RoughRanges
from vertex_softmax.foundation.tolerances import ONE_TERM, OUTWARD, rounded_constants
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.contract import AffineOp, Op, Propagating, Summarising
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.lengths import norm
from vertex_softmax.ops.linear import Add, Convolution, Linear, Scale, Shift, Subtract, Sum
from vertex_softmax.ops.reaches import Care, KnownReaches, reach_of
from vertex_softmax.ops.shape import Concat, Moving
from vertex_softmax.ops.spans import WIDE, spanned
from vertex_softmax.ops.unknowns import (
    BallProducts,
    GatheredUnknowns,
    InputUnknowns,
    LocalUnknowns,
    Pairs,
    SpannedUnknowns,
    Triples,
    Unknowns,
    in_numbers,
    spread_numbers,
)
from vertex_softmax.ops.zonotope import (
    Segments,
    Zonotope,
    aligned,
    ellipsoid_balls,
    error_blocks,
    of_box,
)
from vertex_softmax.sets.region import BoxRegion, Region

ONE_BY_ONE = (Moving, Scale, Shift, Add, Subtract)
"""Affine ops that compute each number of the output from a single number of each input."""


ROUNDINGS = 64
"""Errors of constants up to this many times their outward rounding (OUTWARD) become slack, not unknowns."""
ON_GPU = 32
"""On a GPU the blocks of a node may have this many times as many numbers: 4 GiB in float32."""


def boxes_by_zonotopes(question: Question) -> Boxes:
    """Boxes of all nodes by intervals and by zonotopes, with the summaries that ops make of zonotopes; made once."""
    return question.once("zonotopes", lambda: _made(question))


def _made(question: Question) -> Boxes:
    begin = time.perf_counter()
    boxes, index = question.input_boxes(), question.index
    curved, gathering = _read_by_curves(index), places_to_gather(index)
    if question.numbers is not None:
        most = question.numbers * question.batch
    else:
        on_gpu = question.device.type != "cpu"
        most = MOST_GENERATOR_NUMBERS * (max(ON_GPU, question.batch) if on_gpu else question.batch)
    start = input_zonotope(question.given, question.graph.input.name)
    zonotopes = {question.graph.input: _with_products(start, question)}
    ranges = RoughRanges(question.graph.input)
    left = Counter(i for node in index.nodes for i in node.inputs)
    norm, output = last_norm(question.graph), question.graph.output
    kept = [output] if norm is None else [output, norm.inputs[0]]
    for done, node in enumerate(index.nodes):
        question.clock.check()
        question.clock.tell("zonotopes", done, len(index.nodes))
        if node is not question.graph.input:
            boxes = ranges.before(node, boxes, zonotopes)
            boxes = boxes.with_interval(node, by_intervals(node, boxes.intervals))
            if (exact := exact_range(question, node)) is not None:
                boxes = boxes.tightened(node, exact)
            boxes = _with_learnt(index, boxes, node, zonotopes)
            found = propagated(node, zonotopes, boxes.intervals, alone=_only_reader(question, node))
            origin, whole = f"ops before {node.name}", found
            if node in gathering:
                found = gathered(found)
            if left[node] > 1:  # its readers share its unknowns
                found = merged(found, most // 2, origin)
            zonotopes[node] = found = reduced(found, most, origin, rows=not isinstance(node.op, MatMul))
            careful = node is question.graph.output or node in curved
            boxes = ranges.after(node, boxes, found, careful=careful, whole=found is whole)
        for i in node.inputs:
            left[i] -= 1
            if left[i] == 0 and i not in kept:
                del zonotopes[i]
    question.clock.add("zonotopes", begin)
    return dataclasses.replace(boxes, zonotopes={node: zonotopes[node] for node in kept})


def _read_by_curves(index: GraphIndex) -> set[Node]:
    """The nodes that a non-affine op reads, directly or through ops that only move numbers.

    Their boxes are worth the work of tight ranges.
    """
    found: set[Node] = set()
    for node in reversed(index.nodes):
        if not node.op.affine or (isinstance(node.op, Moving) and node in found):
            found.update(node.inputs)
    return found


def _with_learnt(index: GraphIndex, boxes: Boxes, node: Node, zonotopes: Mapping[Node, Zonotope]) -> Boxes:
    """The boxes with what the zonotopes of a node's inputs tell its relaxation: a summary, and centred rows."""
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
    """Whether the zonotopes of nodes that are affine in the input would take too much memory.

    An image of 150,000 numbers, for example, has as many unknowns, and so has each number of a convolution's output.
    """
    box, affine = question.given.box, question.index.affine
    if isinstance(question.given, BoxRegion) and all(keeps_local(node.op) for node in affine if node.inputs):
        return False
    inputs = int((box.upper > box.lower).flatten(1).sum(1).max()) if box.lower.numel() else 0
    numbers = max((math.prod(node.shape) for node in question.index.nodes if node in affine), default=0)
    return question.batch * inputs * numbers > MOST_START_NUMBERS.get(question.device.type, MOST_START_NUMBERS["cpu"])


def keeps_local(op: Op) -> bool:
    """Whether local unknowns of an affine op's inputs are local at its output too."""
    if isinstance(op, Linear):
        return op.weight.dim() == 2
    return isinstance(op, ONE_BY_ONE) or (isinstance(op, Convolution) and op.cuts_patches)


def _with_products(start: Zonotope, question: Question) -> Zonotope:
    """The input's zonotope with unknowns for products of its unknowns, if these are few enough for all nodes."""
    products = input_products(question)
    if products is None:
        return start
    (columns,) = start.spread.blocks.values()
    return dataclasses.replace(start, blocks={products: columns})


def input_products(question: Question) -> InputUnknowns | None:
    """The unknowns of the input with those of their products; None if they are not wanted, not known, or too many."""
    if not question.products:
        return None
    region, name = question.given, question.graph.input.name
    if isinstance(region, BoxRegion):
        balls, dimension = int((region.box.radius.amax(0) != 0).sum()), 1
    else:
        first, *others = region.blocks()
        if others:
            return None
        balls, dimension = first.shape[1:3]
    count = max(balls, dimension)
    most = question.memory.most_pairs(question.dtype.itemsize)
    if count < 2 or min(balls, dimension) != 1 or pair_numbers(question.graph, count) > most:
        return None
    if dimension > 1:
        both = BallProducts(name, count)
        return InputUnknowns(name, count, both, both)
    triples = Triples(name, count) if question.triples else None
    return InputUnknowns(name, count, Unknowns(name), Pairs(name, count), triples)


def lowest(zonotope: Zonotope, A: Tensor) -> Tensor:
    """Lower bounds (batch, S) of dense objectives A (batch, S, *shape) over a zonotope, rounded outward."""
    A, zonotope = A.flatten(2), zonotope.spread
    found = (A * zonotope.centre.flatten(1).unsqueeze(1)).sum(-1)
    found = found - (A.abs() * zonotope.loose.flatten(1).unsqueeze(1)).sum(-1)
    for unknowns, columns in zonotope.blocks.items():
        along = A @ columns.flatten(3).flatten(1, 2).mT  # (batch, S, balls · dimension)
        along = along.unflatten(-1, columns.shape[1:3])
        if isinstance(unknowns, Pairs | BallProducts | SpannedUnknowns | GatheredUnknowns | Triples):
            found = found - reach_of(unknowns, along.movedim(1, -1), tight=True)
        else:
            found = found - norm(along, (-1,)).sum(-1)
    size = (A.abs() * (zonotope.centre.abs() + zonotope.radius).flatten(1).unsqueeze(1)).sum(-1)
    return found - OUTWARD.get(found.dtype, 0.0) * size


def shares(zonotope: Zonotope, A: Tensor) -> dict[str, Tensor]:
    """By node, how much the unknowns that it introduced take away from the bound of an objective A (batch, *shape):
    (batch,).
    """
    found: dict[str, Tensor] = {}
    for unknowns, columns in zonotope.spread.blocks.items():
        size = reach_of(unknowns, (columns * A[:, None, None]).flatten(3).sum(-1), tight=True)
        found[unknowns.origin] = found.get(unknowns.origin, torch.zeros_like(size)) + size
    return found


def input_zonotope(region: Region, name: str) -> Zonotope:
    """The zonotope of the input set, in the unknowns of its geometry (`Region.blocks`); in a box each number has its
    own.
    """
    box = region.box
    zero = torch.zeros_like(box.lower)
    share = OUTWARD.get(zero.dtype, 0.0)
    slack = share * box.magnitude if share > 0 else zero
    if isinstance(region, BoxRegion):
        unknowns, columns = in_numbers(name, box.radius)
        return Zonotope(region.middle, {unknowns: columns}, None, slack)
    return Zonotope(region.middle, {Unknowns(name): columns for columns in region.blocks()}, None, slack)


def _only_reader(question: Question, node: Node) -> bool:
    """Whether the nodes from the input to this one form a chain, in which each node is read only by the next one.

    Then everything that depends on the input depends on it only through this node.
    """
    while node.inputs:
        (*_, node), others = node.inputs, node.inputs[:-1]
        if others or len(question.index.users(node)) != 1:
            return False
    return node is question.graph.input


def propagated(
    node: Node, zonotopes: Mapping[Node, Zonotope], boxes: Mapping[Node, Interval], *, alone: bool = False
) -> Zonotope:
    """The zonotope of a node from the zonotopes of its inputs, and no wider than its box.

    `alone`: no other node reads this node's input or anything before it, so that its unknowns may be spanned
    (`SpannedUnknowns`).
    """
    op, box = node.op, boxes[node]
    inputs = tuple(zonotopes[i] for i in node.inputs)
    if isinstance(op, Constant):
        value = op.value.expand_as(box.lower)
        return Zonotope(value, {}, None, rounded_constants(value.dtype) * value.abs())
    if isinstance(op, Moving) and len(inputs) == 1:
        return inputs[0].rearranged(op.linear)
    if isinstance(op, AffineOp):
        found = _affine(op, inputs, node.inputs[0].name, alone=alone)  # new errors are the input node's
    elif isinstance(op, Propagating):
        found = op.propagate(inputs, tuple(boxes[i] for i in node.inputs), node.name)
    else:
        return of_box(box)
    return _within(found, box)


def _within(found: Zonotope, box: Interval) -> Zonotope:
    """The zonotope with some numbers replaced by their boxes: numbers that are not finite, or whose errors alone are as
    wide.
    """
    fine = found.centre.isfinite() & found.rough_radius.isfinite() & (found.loose <= box.radius)
    fine = fine | ~box.radius.isfinite()
    if bool(fine.all()):
        return found
    keep = fine[:, None, None]
    zero = torch.zeros_like(found.centre)
    blocks = {
        unknowns: torch.where(keep, columns, torch.zeros_like(columns)) for unknowns, columns in found.blocks.items()
    }
    centre, slack = torch.where(fine, found.centre, box.centre), torch.where(fine, found.slack, zero)
    apart = torch.where(fine, zero, box.radius)
    if found.own is None and bool((apart <= ROUNDINGS * OUTWARD.get(zero.dtype, 0.0) * centre.abs()).all()):
        return Zonotope(centre, blocks, None, slack + apart)  # the rounding of constants needs no unknowns
    return Zonotope(centre, blocks, torch.where(fine, zero if found.own is None else found.own, apart), slack)


def _affine(op: AffineOp, inputs: tuple[Zonotope, ...], origin: str, *, alone: bool = False) -> Zonotope:
    """The image of zonotopes under an affine op: exact but for rounding, and for `own` errors that the op mixes."""
    centre = op.evaluate(*(x.centre for x in inputs))
    if isinstance(op, Sum) and len(inputs[0].centre.shape) - 2 not in op.dims:
        inputs = (inputs[0].by_rows,)
    elif keeps_local(op) and not isinstance(op, ONE_BY_ONE):
        pass
    elif isinstance(op, ONE_BY_ONE):
        inputs = aligned(*inputs)
    else:
        inputs = tuple(x.spread for x in inputs)
    blocks: dict[Unknowns, Tensor] = {}
    wide = _intervals(inputs[0], op) if alone and isinstance(op, Linear) else None
    for unknowns in dict.fromkeys(u for x in inputs for u in x.blocks):
        if isinstance(unknowns, LocalUnknowns) and isinstance(op, Sum):
            blocks.update([unknowns.folded(inputs[0].blocks[unknowns], op.dims)])
        elif wide is not None:
            continue
        elif isinstance(unknowns, LocalUnknowns) and isinstance(op, Linear):
            blocks.update([unknowns.times(inputs[0].blocks[unknowns], op.weight)])
        elif isinstance(unknowns, LocalUnknowns) and isinstance(op, Convolution):
            blocks.update([_of_patches(op, unknowns, inputs[0])])
        else:
            name = _joined(op, inputs, unknowns) if isinstance(op, Concat) else unknowns
            blocks[name] = _through(op, inputs, unknowns)
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
    share = (ONE_TERM if isinstance(op, ONE_BY_ONE) else OUTWARD).get(centre.dtype, 0.0)
    if share > 0:
        slack = slack + share * (centre.abs() + _sizes(op, tuple(x.centre.abs() + x.rough_radius for x in inputs)))
    if wide is not None and isinstance(op, Linear):  # the slack becomes some more intervals of the span
        blocks.update([spanned(wide, op.weight, slack, origin)])
        slack = torch.zeros_like(slack)
    return Zonotope(centre, blocks, own, slack, _known_reaches(op, inputs, blocks))


def _known_reaches(op: AffineOp, inputs: tuple[Zonotope, ...], blocks: Mapping[Unknowns, Tensor]) -> KnownReaches:
    """The reaches of blocks behind an affine op, where they are known: it scales each number, or keeps some blocks
    unchanged.
    """
    if isinstance(op, Scale):
        size = op.factor.abs()
        return inputs[0].reaches.changed(inputs[0].blocks, blocks, {u: u for u in blocks}, lambda reach: reach * size)
    return inputs[0].reaches.beside(*(x.reaches for x in inputs[1:]))


def _intervals(x: Zonotope, op: Linear) -> Tensor | None:
    """The radius of each number, (batch, rows..., d), if each has an unknown of its own and `op` has far fewer outputs.

    None otherwise.
    """
    if len(x.blocks) != 1 or x.own is not None or op.weight.dim() != 2 or len(op.weight) < WIDE * op.weight.shape[1]:
        return None
    ((unknowns, columns),) = x.blocks.items()
    if not isinstance(unknowns, LocalUnknowns) or unknowns.in_rows or columns.shape[1:3] != (1, 1):
        return None
    return columns[:, 0, 0] if unknowns.count == int((columns != 0).any(0).sum()) else None


def _through(op: AffineOp, inputs: tuple[Zonotope, ...], unknowns: Unknowns) -> Tensor:
    """The columns of some unknowns behind an affine op; an input that does not have them counts as 0."""
    known = [x.blocks.get(unknowns) for x in inputs]
    if isinstance(op, Add) and any(columns is None for columns in known):
        return next(columns for columns in known if columns is not None)
    lead = next(columns for columns in known if columns is not None).shape[:3]
    return op.linear(
        *(
            x.centre.new_zeros(()).expand(*lead, *x.centre.shape[1:]) if columns is None else columns
            for x, columns in zip(inputs, known, strict=True)
        )
    )


def _of_patches(op: Convolution, unknowns: LocalUnknowns, x: Zonotope) -> tuple[LocalUnknowns, Tensor]:
    """Local unknowns behind a convolution that cuts its input into patches: a slot for each number of a patch."""
    n = len(op.size)
    columns = op.patches(x.blocks[unknowns])  # (batch, slots, k, N, numbers, *out size)
    ids = op.patches(unknowns.ids.expand(-1, *x.centre.shape[1:]))
    weight = op.weight.flatten(1).mT  # (numbers, channels)
    columns = columns.movedim(-n - 1, 2).unsqueeze(-n - 1) * weight.reshape(len(weight), 1, 1, -1, *[1] * n)
    wide = ids.movedim(-n - 1, 1).unsqueeze(-n - 1).expand(-1, -1, -1, weight.shape[1], *[-1] * n)
    return unknowns.at(wide.flatten(0, 1)), columns.flatten(1, 2)


def _joined(op: Concat, inputs: tuple[Zonotope, ...], unknowns: Unknowns) -> Unknowns:
    """The unknowns of a block behind a concatenation; local ids of numbers that do not have these unknowns are
    arbitrary.
    """
    if not isinstance(unknowns, LocalUnknowns):
        return unknowns
    slots, none = unknowns.ids.shape[0], torch.zeros((), dtype=torch.int64, device=unknowns.ids.device)
    ids = [(unknowns.ids if unknowns in x.blocks else none).expand(slots, *x.centre.shape[1:]) for x in inputs]
    return unknowns.at(op.evaluate(*ids))


def _sizes(op: AffineOp, sizes: tuple[Tensor, ...]) -> Tensor:
    """|W|·sizes: how far the output may be off if the inputs are off by `sizes`, rounded outward."""
    return op.interval(*(Interval(-x, x) for x in sizes)).radius


def merged(zonotope: Zonotope, most: int, origin: str) -> Zonotope:
    """The zonotope with some blocks merged to one ball for each row, if it has more than `most` numbers.

    Blocks that reach least are merged first; the input's own blocks, the first and others of the same origin, never.
    The ball of a row is an ellipsoid, which keeps the directions of its errors; what is lost is that several rows share
    errors. Merging stops at nine tenths of `most`: eight blocks of d = 48 at ε = .0005 get the bound .01500 that way,
    and .01485 if half of the numbers are merged at once, which also takes longer.
    """
    sizes = _sizes_of_blocks(zonotope)
    whole = sum(sizes.values())
    if whole <= most or zonotope.centre.dim() < 2:
        return zonotope
    first, *others = sizes
    others = [unknowns for unknowns in others if unknowns.origin != first.origin]
    reach = {unknowns: float(zonotope.reach_of_block(unknowns, Care.ROUGH).sum()) for unknowns in others}
    whole += zonotope.centre.numel() * math.prod(zonotope.centre.shape[1:])  # the numbers of the new balls
    chosen: list[Unknowns] = []
    for unknowns in sorted(others, key=lambda each: reach[each]):
        if whole <= most * 9 // 10:
            break
        whole -= sizes[unknowns]
        chosen.append(unknowns)
    blocks = {each: columns for each, columns in zonotope.blocks.items() if each not in chosen}
    blocks.update([_row_balls(zonotope, chosen, origin, alone=False)])
    return dataclasses.replace(zonotope, blocks=blocks)


def _sizes_of_blocks(zonotope: Zonotope) -> dict[Unknowns, int]:
    """How many numbers each block has, without products of the input's unknowns, which have a limit of their own."""
    inputs = zonotope.inputs
    products = () if inputs is None else (inputs.pairs, inputs.squares, inputs.triples)
    return {
        unknowns: spread_numbers(unknowns, columns)
        for unknowns, columns in zonotope.blocks.items()
        if unknowns not in products
    }


def reduced(zonotope: Zonotope, most: int, origin: str = "", *, rows: bool = False) -> Zonotope:
    """The zonotope with the blocks that reach least merged, until at most `most` numbers are left.

    With `rows` they become a ball for each row whose unknowns stand alone (`LocalUnknowns.alone`); otherwise, or if
    there are no rows, an unknown for each number.
    """
    sizes = _sizes_of_blocks(zonotope)
    whole = sum(sizes.values())
    if whole <= most:
        return zonotope
    reach = {unknowns: zonotope.reach_of_block(unknowns, Care.PLAIN) for unknowns in sizes}
    chosen: list[Unknowns] = []
    for unknowns in sorted(reach, key=lambda u: float(reach[u].sum())):
        if whole <= most:
            break
        whole -= sizes[unknowns]
        chosen.append(unknowns)
    blocks = {unknowns: columns for unknowns, columns in zonotope.blocks.items() if unknowns not in chosen}
    if rows and zonotope.centre.dim() > 2:
        blocks.update([_row_balls(zonotope, chosen, origin, alone=True)])
        return dataclasses.replace(zonotope, blocks=blocks)
    own = torch.stack([reach[unknowns] for unknowns in chosen]).sum(0)
    return dataclasses.replace(zonotope, blocks=blocks, own=own if zonotope.own is None else zonotope.own + own)


def _row_balls(zonotope: Zonotope, chosen: list[Unknowns], origin: str, *, alone: bool) -> tuple[Unknowns, Tensor]:
    """A ball for each row, in the shape of an ellipsoid around what some blocks make of the row."""
    zero = torch.zeros_like(zonotope.slack)
    old = Zonotope(zero, {unknowns: zonotope.blocks[unknowns] for unknowns in chosen}, None, zero)
    return ellipsoid_balls((old.row_shape.ellipsoid(),), origin, alone=alone)
