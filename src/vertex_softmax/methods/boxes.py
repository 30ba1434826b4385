"""Recipes for the boxes of intermediate values, each a function of a question: intervals, backward passes, zonotopes.

Invariant: the boxes returned hold for every input of the question's sets, to rounding.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from enum import StrEnum

from vertex_softmax.bounds.ascent import ascended_box
from vertex_softmax.bounds.box_passes import Refine, all_boxes, box_by_pass, inspected_boxes, with_centred_rows
from vertex_softmax.bounds.boxes import Boxes, by_intervals
from vertex_softmax.bounds.generate import generate
from vertex_softmax.bounds.index import GraphIndex
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.underflow import with_underflow
from vertex_softmax.bounds.zonotopes import are_too_wide, boxes_by_zonotopes
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.options import Options, PreactivationBoxes, ScoreBoxes
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.choice_region import ChoiceRegion
from vertex_softmax.sets.region import BoxRegion, Region


class Kind(StrEnum):
    """What a refined node is used for; also the name of the stage to which the time is added."""

    SCORES = "scores"
    VALUES = "values"
    PREACTIVATIONS = "pre-activations"


def boxes_by_passes(question: Question, rule: RowRule, options: Options, known: Sequence[Boxes] = ()) -> Boxes:
    """Boxes of all nodes, tightened by a backward pass under one row rule at every node that a nonlinearity reads."""
    return _Recipe(question, rule, options, known, tightened=False).boxes()


def tightened_boxes(question: Question, options: Options, known: Sequence[Boxes] = (), *, again: bool = False) -> Boxes:
    """Boxes of all nodes, tightened under the affine vertex rule and as docs/method.md, section 8, describes.

    `again`: the known boxes belong to a larger set, so passes that were made for them are made again over this one.
    """
    return _Recipe(question, RowRule.AFFINE, options, known, tightened=True, again=again).boxes()


def uses_zonotopes(question: Question, options: Options) -> bool:
    """Whether boxes are made by zonotopes, which use the unknowns of the set itself, where generators use those of a
    box.
    """
    return may_use_zonotopes(question.graph, question.given, options) and not are_too_wide(question)


def may_use_zonotopes(graph: Graph, region: Region, options: Options) -> bool:
    """Whether boxes are made by zonotopes if these fit the memory."""
    hard = is_hard(graph, options) or _has_many_scores(graph, options)
    return options.generators and (not region.unit.cube or hard)


def has_intervals_alone(question: Question, options: Options) -> bool:
    """Whether boxes are made by intervals alone, because the network is deep and its input too wide for zonotopes."""
    return options.generators and _is_deep(question.graph, options) and are_too_wide(question)


def is_hard(graph: Graph, options: Options) -> bool:
    """Whether a network has norms or many attentions, so that its boxes are made by zonotopes over any kind of set."""
    return _is_deep(graph, options) or any(isinstance(node.op, Normalize) for node in graph.nodes())


MOST_SCORES_BY_PASSES = 1 << 17
"""If an attention has more scores than this, a backward pass for each of them takes minutes."""


def _has_many_scores(graph: Graph, options: Options) -> bool:
    """Whether passes for all scores of an attention are asked for and would be too many."""
    sizes = (math.prod(node.inputs[0].shape) for node in graph.nodes() if isinstance(node.op, Attention))
    return options.scores is ScoreBoxes.PASS and max(sizes, default=0) > MOST_SCORES_BY_PASSES


def _is_deep(graph: Graph, options: Options) -> bool:
    """Whether a network has more attentions than `Options.attentions_by_passes`."""
    return sum(isinstance(node.op, Attention) for node in graph.nodes()) > options.attentions_by_passes


class _Recipe:
    """The construction of one set of boxes."""

    def __init__(
        self,
        question: Question,
        rule: RowRule,
        options: Options,
        known: Sequence[Boxes],
        *,
        tightened: bool,
        again: bool = False,
    ) -> None:
        self.question, self.rule, self.options, self.known = question, rule, options, known
        self.tightened = tightened
        self.first = again or not known
        """whether to make passes that meet no attention; their results do not depend on the row rule, so known boxes
        have them"""
        self.refined: set[Node] = set()
        other = not question.given.unit.cube
        self.zonotopes = uses_zonotopes(question, options)
        self.by_intervals = has_intervals_alone(question, options)
        self.both = not isinstance(question.given, BoxRegion) and not (other and is_hard(question.graph, options))

    def boxes(self) -> Boxes:
        """Make the boxes.

        Deep networks and networks with norms get zonotopes: backward passes would hardly tighten these, and take
        longer. Over choices of words, and over balls in small networks, zonotopes and passes are both made, because
        passes use the exact minimum of a linear function over the set. If zonotopes need too much memory, passes are
        made alone; in deep networks, where passes would take hours, intervals alone, whose width norms limit.
        """
        question = self.question
        if not self.zonotopes:
            refine = None if self.by_intervals else self.refine
            return with_underflow(question, all_boxes(question, refine, self.known))
        if self.both:
            return self._met_with_zonotopes(self.refine, self.known)
        # no row rule is involved: all methods share these boxes, and their relaxations
        name = "zonotopes and intervals" if self.options.centred else "zonotopes and intervals, not centred"
        shared = question.once(name, lambda: self._met_with_zonotopes(None, ()))
        others = [boxes for boxes in self.known if boxes is not shared]
        return self._met_with_zonotopes(None, others) if others else shared

    def _met_with_zonotopes(self, refine: Refine | None, known: Sequence[Boxes]) -> Boxes:
        """Boxes by intervals, met with known boxes and with those of zonotopes, whose summaries are taken over."""
        learnt = boxes_by_zonotopes(self.question)
        if not self.options.centred:
            learnt = dataclasses.replace(learnt, centred={})
        if refine is None and not known:  # met with their intervals already, and nothing else is known
            return with_underflow(self.question, inspected_boxes(self.question, learnt))
        return with_underflow(self.question, all_boxes(self.question, refine, known, learnt))

    def refine(self, boxes: Boxes, node: Node) -> Boxes:
        """The boxes with a node's interval tightened, directly or through the residual stream before it."""
        kind, options = kind_of(self.question.index, node), self.options
        if kind is Kind.SCORES and options.scores is ScoreBoxes.INTERVAL:
            return boxes
        begin = time.perf_counter()
        streamed = kind is Kind.PREACTIVATIONS and options.preactivations is PreactivationBoxes.STREAM
        stream = residual_stream(node) if streamed else None
        target = node if stream is None else stream
        if target not in self.refined:
            self.refined.add(target)
            boxes = self._refined(boxes, target, kind, everywhere=target is not node)
        if target is not node:
            index = self.question.index
            for later in index.nodes[index.position[target] + 1 : index.position[node] + 1]:
                boxes = boxes.tightened(later, by_intervals(later, boxes.intervals))
        self.question.clock.add(kind, begin)
        return boxes

    def _refined(self, boxes: Boxes, node: Node, kind: Kind, *, everywhere: bool) -> Boxes:
        """Tighten a node's interval by its generators if some op wants these, else by a backward pass."""
        question, options = self.question, self.options
        meets_attention = question.index.has_attention(node)
        generators = self.tightened and options.generators and not self.zonotopes
        if generators and question.index.wants_generators(node):
            found = generate(question, boxes, node, Rules(attention=RowRule.AFFINE, exact=False))
            if found is not None:
                found = found.within(boxes[node])
                boxes = boxes.tightened(node, found.box()).with_generators(question.index, node, found)
                if not isinstance(
                    question.given, ChoiceRegion
                ):  # there a pass, which sees the hull of the words, is tighter
                    return boxes
        # without an attention before the node, the pass is the same for all row rules, and known boxes include it
        if meets_attention or self.first:
            rules = Rules(attention=self.rule, product=options.product, exact=False)
            boxes = boxes.tightened(node, box_by_pass(question, boxes, node, rules, everywhere=everywhere))
        if self.tightened and options.centred and not self.zonotopes:  # else zonotopes give them
            boxes = with_centred_rows(question, boxes, node, Rules(attention=RowRule.AFFINE, exact=False))
        if self.tightened and options.box_ascent is not None and meets_attention and kind is Kind.PREACTIVATIONS:
            rules = Rules(attention=RowRule.AFFINE)
            boxes = boxes.tightened(node, ascended_box(question, boxes, node, rules, options.box_ascent))
        return boxes


def kind_of(index: GraphIndex, node: Node) -> Kind:
    """What a refined node is for: scores, values, or the input of another nonlinearity."""
    for user in index.users(node):
        if isinstance(user.op, Attention):
            return Kind.SCORES if user.inputs[0] is node else Kind.VALUES
    return Kind.PREACTIVATIONS


def residual_stream(node: Node) -> Node | None:
    """The nearest sum of two branches before a node, reached through affine ops with one input; or None."""
    current = node
    while current.op.affine and len(current.inputs) == 1:
        current = current.inputs[0]
    return current if current.op.affine and len(current.inputs) == 2 and current is not node else None
