"""The relaxations of nodes, made by their ops over given boxes and rules, and cached.

Invariant: the relaxation returned for a node was made from exactly the facts that the given boxes hold about its
inputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Coefficients, fitting, hand_on, total
from vertex_softmax.bounds.form_terms import of_relaxation, terms_of
from vertex_softmax.bounds.index import GraphIndex
from vertex_softmax.bounds.memory import MOST_FORM_NUMBERS
from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.choice_rows import ChoiceForm
from vertex_softmax.ops.contract import AffineForm, AffineOp, Context, Relaxation
from vertex_softmax.ops.rules import Rules, narrowed
from vertex_softmax.sets.region import BoxRegion, Region

SPARE = 2.0**-8
"""What coefficients lose by underflow is harmless up to this share of the rounding of the numbers they make."""


class Relaxations:
    """A cache of relaxations by node and rules; an entry holds only for the facts it was made from (`Boxes.facts`)."""

    def __init__(self, index: GraphIndex, region: Region, whole: Relaxations | None = None) -> None:
        self.index, self.region, self.whole = index, region, whole
        self._made: dict[tuple[Node, Rules], tuple[tuple[object, ...], Relaxation]] = {}
        self._forms: dict[Node, AffineForm | ChoiceForm | None] = {} if whole is None else whole._forms
        self._terms: dict[Node, Tensor] = {} if whole is None else whole._terms

    def over(self, region: Region) -> Relaxations:
        """The relaxations over another region; those made so far are kept if the two regions differ in nothing but
        `support`.
        """
        found = Relaxations(self.index, region)
        boxes = [each.box for each in (self.region, region) if isinstance(each, BoxRegion)]
        if len(boxes) == 2 and all(torch.equal(*ends) for ends in zip(*boxes, strict=True)):
            found._made.update(self._made)
            found._forms.update(self._forms)
        return found

    def of_parts(self) -> Relaxations:
        """Relaxations for boxes of parts of the set, which reuse these for what a part shares with the whole set."""
        return Relaxations(self.index, self.region, self)

    def of(self, node: Node, boxes: Boxes, rules: Rules) -> Relaxation:
        """The relaxation of a node's op over the boxes of its inputs."""
        if node.op.affine and isinstance(node.op, AffineOp):
            return node.op
        facts, rules = boxes.facts(node), narrowed(rules, node.op.rules_read)
        if self.whole is not None and boxes.whole is not None and _same(facts, boxes.whole.facts(node)):
            return self.whole.of(node, boxes.whole, rules)
        known = self._made.get((node, rules))
        if known is not None and _same(known[0], facts):
            return known[1]
        made = node.op.relax(self.context(node, boxes, rules))
        self._made[node, rules] = (facts, made)
        return made

    def context(self, node: Node, boxes: Boxes, rules: Rules) -> Context:
        """Everything that the relaxation of a node may depend on."""
        wanted = self._wanted_forms(node)
        return Context(
            boxes=tuple(boxes[i] for i in node.inputs),
            rules=rules,
            forms=tuple(self.form_over(i, boxes) if i in wanted else None for i in node.inputs),
            centred=tuple(boxes.centred.get((i, node)) for i in node.inputs),
            summary=boxes.summaries.get(node),
            inner=boxes.inner.get(node),
        )

    def form_over(self, node: Node, boxes: Boxes) -> AffineForm | ChoiceForm | None:
        """The same, or None where underflow may have taken from the function what counts over these boxes."""
        form = self.form(node)
        return None if form is None or _may_lack(self.index, node, boxes) else form

    def form_terms(self, node: Node) -> Tensor:
        """The terms that the form of a node is added up of, (batch, *shape)."""
        return terms_of(self.index, self.region.box.magnitude, node, self._terms)

    def terms(self, node: Node, boxes: Boxes) -> Tensor | None:
        """The terms that a node's relaxation adds up by the forms of its inputs, (batch, *shape); None without them."""
        wanted = self._wanted_forms(node)
        known = {i: self.form_terms(i) for i in wanted if self.form(i) is not None}
        if not all(node.inputs[i] in known for i in node.op.form_inputs) or not known:
            return None
        return of_relaxation(node, known, boxes)

    def _wanted_forms(self, node: Node) -> set[Node]:
        """The inputs of a node whose forms its relaxation reads."""
        wanted = {node.inputs[i] for i in node.op.form_inputs}
        if isinstance(node.op, Attention) and not self.region.unit.cube:  # the ball rule reads the scores' form
            wanted.add(node.inputs[0])
        return wanted

    def form(self, node: Node) -> AffineForm | ChoiceForm | None:
        """The node as an exact affine function of the input; None if it is none, or if the function is too large to
        store.
        """
        if node not in self._forms:
            self._forms[node] = self._form(node)
        return self._forms[node]

    def _form(self, node: Node) -> AffineForm | ChoiceForm | None:
        if node in self.index.affine:
            return affine_form(self.index, self.region, node)
        if isinstance(node.op, MatMul):
            factors = [self.form(i) for i in node.inputs]
            if isinstance(factors[0], AffineForm) and isinstance(factors[1], AffineForm):
                return product_form(factors[0], factors[1])
        return None


def _may_lack(index: GraphIndex, node: Node, boxes: Boxes) -> bool:
    """Whether coefficients of a node's form that underflow may count beside the rounding of the node's numbers.

    Each is a sum of at most as many products as there are numbers before the node, which lose the least normal number.
    """
    before = index.ancestors(node)
    numbers = sum(math.prod(each.shape) for each in before)
    reach = sum(boxes.reach(each).total.double() for each in before)
    size, info = boxes.reach(node).each.double().flatten(1), torch.finfo(boxes[node].lower.dtype)
    least = torch.where(size > 0, size, torch.inf).amin(1)
    return bool((numbers * info.tiny * reach > SPARE * info.eps * least).any())


def product_form(left: AffineForm, right: AffineForm) -> AffineForm | None:
    """left @ right if one of the two does not depend on the input, as the query of a class token; else None.

    (..., n, k), (..., k, m) → (..., n, m)
    """
    if not bool(left.matrix.any()):
        matrix = torch.einsum("...nk,...kmp->...nmp", left.centre[0], right.matrix)
    elif not bool(right.matrix.any()):
        matrix = torch.einsum("...nkp,...km->...nmp", left.matrix, right.centre[0])
    else:
        return None
    return AffineForm(left.centre @ right.centre, matrix, left.radius, left.unit)


def affine_form(index: GraphIndex, region: Region, node: Node) -> AffineForm | ChoiceForm | None:
    """The form of an affine node over a region; None if it is too large, or if the region has no such forms."""
    found = affine_map(index, region.box.lower, node)
    return None if found is None else region.form(*found, node.shape)


def affine_map(index: GraphIndex, like: Tensor, node: Node) -> tuple[Tensor, Tensor] | None:
    """A node that is affine in the start, as matrix·start + constant; None if it is too large, or constant.

    matrix: (numbers of the node, numbers of the start), constant: (1, numbers of the node). Made once for each node,
    precision and device.
    """
    key = (node, like.dtype, like.device)
    if key not in index.maps:
        index.maps[key] = _affine_map(index, like, node)
    return index.maps[key]


def _affine_map(index: GraphIndex, like: Tensor, node: Node) -> tuple[Tensor, Tensor] | None:
    size, inputs = math.prod(node.shape), math.prod(index.start.shape)
    if size * inputs > MOST_FORM_NUMBERS:
        return None
    eye = torch.eye(size, dtype=like.dtype, device=like.device).reshape(1, size, *node.shape)
    waiting: dict[Node, list[Coefficients]] = {node: [Coefficients(eye)]}
    constant, matrix = torch.zeros(1, size, dtype=like.dtype, device=like.device), None
    for current in reversed(index.nodes[: index.position[node] + 1]):
        parts = waiting.pop(current, None)
        if parts is None:
            continue
        if current is index.start:
            matrix = total(parts).dense().reshape(size, inputs)
        elif isinstance(current.op, Constant):
            constant = constant + (total(parts).dense() * current.op.value).flatten(2).sum(-1)
        elif isinstance(current.op, AffineOp):
            for piece in fitting(current, parts):
                step = current.op.backward(piece.A, piece.diagonal)
                hand_on(step, current, piece, waiting)
                constant = constant if step.constant is None else constant + step.constant.flatten(1)
        else:
            raise InternalError(f"{current.name!r} is not an affine op, but lies above a node that is affine")
    return None if matrix is None else (matrix, constant)


def _same(facts: tuple[object, ...], others: tuple[object, ...]) -> bool:
    return len(facts) == len(others) and all(a is b for a, b in zip(facts, others, strict=True))
