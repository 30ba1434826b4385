"""Recipes for the intermediate boxes, each a function of a question: by intervals, by passes, tightened."""

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
    """What a node whose box is refined is for; also the name under which the time is reported."""

    SCORES = "scores"
    VALUES = "values"
    PREACTIVATIONS = "pre-activations"


def boxes_by_passes(question: Question, rule: RowRule, options: Options, known: Sequence[Boxes] = ()) -> Boxes:
    """Boxes of all nodes, tightened by a backward pass under one row rule wherever a nonlinearity reads them."""
    return _Recipe(question, rule, options, known, tightened=False).boxes()


def tightened_boxes(question: Question, options: Options, known: Sequence[Boxes] = (), *, again: bool = False) -> Boxes:
    """The same under the affine vertex rule, with the tightenings of docs/method.md, section 8, that options allow.

    `again`: the known boxes are of a larger set, and passes that they had are made again over this one.
    """
    return _Recipe(question, RowRule.AFFINE, options, known, tightened=True, again=again).boxes()


def uses_zonotopes(question: Question, options: Options) -> bool:
    """Whether boxes are made by zonotopes: they have the set's own unknowns, generators a box's."""
    return may_use_zonotopes(question.graph, question.given, options) and not are_too_wide(question)


def may_use_zonotopes(graph: Graph, region: Region, options: Options) -> bool:
    """Whether boxes are made by zonotopes if these do not take too much memory."""
    hard = is_hard(graph, options) or _has_many_scores(graph, options)
    return options.generators and (not region.unit.cube or hard)


def has_intervals_alone(question: Question, options: Options) -> bool:
    """Whether a network is so deep, and its input so wide, that boxes are made by intervals alone."""
    return options.generators and _is_deep(question.graph, options) and are_too_wide(question)


def is_hard(graph: Graph, options: Options) -> bool:
    """Whether a network has norms or many attentions: then its boxes are made by zonotopes, over every set."""
    return _is_deep(graph, options) or any(isinstance(node.op, Normalize) for node in graph.nodes())


MOST_SCORES_BY_PASSES = 1 << 17
"""Beyond so many scores of one attention a pass for each of them takes minutes."""


def _has_many_scores(graph: Graph, options: Options) -> bool:
    """Whether passes for all scores of an attention, if they are asked for, would be too many."""
    sizes = (math.prod(node.inputs[0].shape) for node in graph.nodes() if isinstance(node.op, Attention))
    return options.scores is ScoreBoxes.PASS and max(sizes, default=0) > MOST_SCORES_BY_PASSES


def _is_deep(graph: Graph, options: Options) -> bool:
    """Whether a network has many attentions."""
    return sum(isinstance(node.op, Attention) for node in graph.nodes()) > options.attentions_by_passes


class _Recipe:
    """How one set of boxes is made."""

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
        """whether passes without an attention on the way are of use"""
        self.refined: set[Node] = set()
        other = not question.given.unit.cube
        self.zonotopes = uses_zonotopes(question, options)
        self.by_intervals = has_intervals_alone(question, options)
        self.both = not isinstance(question.given, BoxRegion) and not (other and is_hard(question.graph, options))

    def boxes(self) -> Boxes:
        """In deep networks and where there are norms by zonotopes: passes hardly tighten those, and take longer.

        Over choices of words, and over balls in small networks, both are made: passes know exactly how far a linear
        function goes over the set. Where zonotopes would take too much memory passes are left, and in deep networks,
        of which those would take hours, intervals: what norms allow at most.
        """
        question = self.question
        if not self.zonotopes:
            refine = None if self.by_intervals else self.refine
            return with_underflow(question, all_boxes(question, refine, self.known))
        if self.both:
            return self._met_with_zonotopes(self.refine, self.known)
        # no rule enters: all methods have the same boxes, and with them the same relaxations
        name = "zonotopes and intervals" if self.options.centred else "zonotopes and intervals, not centred"
        shared = question.once(name, lambda: self._met_with_zonotopes(None, ()))
        others = [boxes for boxes in self.known if boxes is not shared]
        return self._met_with_zonotopes(None, others) if others else shared

    def _met_with_zonotopes(self, refine: Refine | None, known: Sequence[Boxes]) -> Boxes:
        """Boxes by intervals, by what is known and by zonotopes, with what ops learnt from those."""
        learnt = boxes_by_zonotopes(self.question)
        if not self.options.centred:
            learnt = dataclasses.replace(learnt, centred={})
        if refine is None and not known:  # all are met with their intervals, and nothing more is known
            return with_underflow(self.question, inspected_boxes(self.question, learnt))
        return with_underflow(self.question, all_boxes(self.question, refine, known, learnt))

    def refine(self, boxes: Boxes, node: Node) -> Boxes:
        """Boxes with a node's interval tightened, itself or by way of the residual stream above it."""
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
        """By the node's generators if it is to have them, else by a pass."""
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
                ):  # of whose hulls unknowns in balls know less than a pass
                    return boxes
        # without an attention on the way all row rules are one, and whoever made the known boxes has done it
        if meets_attention or self.first:
            rules = Rules(attention=self.rule, product=options.product, exact=False)
            boxes = boxes.tightened(node, box_by_pass(question, boxes, node, rules, everywhere=everywhere))
        if self.tightened and options.centred and not self.zonotopes:  # zonotopes know them
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
    """The nearest sum of two branches above a node, through affine ops of one input; None if there is none."""
    current = node
    while current.op.affine and len(current.inputs) == 1:
        current = current.inputs[0]
    return current if current.op.affine and len(current.inputs) == 2 and current is not node else None
