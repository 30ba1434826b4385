"""Branch and bound whose parts are narrowed too: a part gets boxes of its own, over what is left of the set in it.

Invariant: what was cut off from a part is above the level there, the pieces of a part cover what is left of it, and the
boxes of a rest hold at every input of its set whose numbers lie where its splits say. So the least of the level and of
the bounds of all parts is a bound over the whole set at any time.

A linear bound on a part says where the objective may still be at the level in that part, as it does on the whole set
(narrowing.py): each part has a half-space of its own. Boxes that are made anew over what is left know the half-space
and the splits; the bound over them is much better, and leaves less. That takes as long as hundreds of parts of a tree
over given boxes. So a tree over the boxes of a rest is tried first; what it leaves open is joined to a few pieces, and
each of these is narrowed. The last piece is taken up first, with all that is made of it: few boxes are alive at once.
"""

from __future__ import annotations

import dataclasses
import math
import time

import torch

from vertex_softmax.bounds.aims import Aim, Outcome, Search, Stop, Watchers
from vertex_softmax.bounds.ascent import Ascent, Beginning, Goal, ascend
from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import BranchAndBound, inner_ranges
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.linear import LinearBound
from vertex_softmax.bounds.narrowing import ROUNDS, MakeBoxes, left_over
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.splits import PartBoxes, part_boxes
from vertex_softmax.bounds.tree_attack import TreeAttack
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.ops.rules import Rules

PIECES = 8
"""What a tree leaves open of a rest is joined to about so many pieces, which are narrowed."""
DOMAINS = 512
"""How many parts are bounded over the boxes of one rest."""
ENOUGH = 0.1
"""A rest is narrowed again while a round closes this share of what is missing to the level."""
ASCENT = Ascent(steps=10, step_size=0.05, decay=0.95)
"""of the parameters of a rest, from those of the part it was on"""


@dataclasses.dataclass(frozen=True, eq=False)
class Rest:
    """What is left of a part of the set of one objective, and what is known there."""

    question: Question
    """about a set with all that is left"""
    boxes: Boxes
    """of one input: they hold where the part's splits do"""
    part: Part
    """with all splits from the whole set on, its parameters and a bound over what is left"""


class PartTree(BranchAndBound):
    """A tree over the boxes of one rest, from its part on."""

    def __init__(self, rest: Rest, aim: Aim, rules: Rules, search: Search, watchers: Watchers) -> None:
        super().__init__(rest.question, rest.boxes, aim, rules, search, watchers)
        self.begun = not rest.part.splits
        if rest.part.splits:
            self.shared[0] = rest.part.choice.only(self.shared_names)
            own = dataclasses.replace(rest.part, choice=rest.part.choice.without(self.shared_names))
            self.frontier.replace(self.frontier.gather(1), self._stored([self._surveyed([own])[0].with_choice()]))
        else:
            self._advance(1, self._bound)

    def pieces(self, count: int, domains: int) -> list[Part]:
        """Parts that cover what stays open after bounding so many parts, at most about `count`, and their bounds.

        The parameters are those that a piece had when it was made.
        """
        self._grow(lambda: len(self.frontier) >= count or self.bounded >= domains, max(1, count // 4))
        found = {part.splits: part for part in self.frontier.open_parts()}
        self._grow(lambda: self.bounded >= domains, self.width)
        worst: dict[tuple[object, ...], float] = {}
        for leaf in self.frontier.open_parts():
            (mine,) = (splits for splits in found if leaf.splits[: len(splits)] == splits)
            worst[mine] = min(worst.get(mine, math.inf), leaf.bound)
        return [
            dataclasses.replace(part, bound=max(part.bound, worst[splits]), choice=self._complete(part).choice)
            for splits, part in found.items()
            if splits in worst
        ]

    def _grow(self, is_enough, width: int) -> None:
        while len(self.frontier) and self.witness is None and not is_enough():
            self._advance(width, lambda parts: self._bound(self._split(parts)))

    def boxes_of(self, piece: Part) -> Boxes:
        """The boxes of one of its parts, as those of one input."""
        return dataclasses.replace(self._boxes_of([piece]).boxes, whole=None)


class NarrowedParts:
    """The search under way, for one objective."""

    def __init__(
        self, aim: Aim, level: float, rules: Rules, search: Search, watchers: Watchers, make: MakeBoxes
    ) -> None:
        self.aim, self.level, self.search, self.make = aim, level, search, make
        self.watchers, self.rules = watchers, dataclasses.replace(rules, free=True)
        self.goal = 0.0 if aim.goals is None else float(aim.goals[0])
        self.closed = math.inf
        """the least bound of what is closed"""
        self.waiting: list[Rest] = []
        self.stuck: list[Part] = []
        """open parts with nothing left to split"""
        self.attack = TreeAttack(search.attack)
        self.bounded = 0
        self.made = 0

    def run(self, first: Rest) -> Outcome:
        """Narrow and split, until nothing is open or a limit is reached."""
        self.waiting = [first]
        stopped, witness = Stop.DONE, None
        try:
            with torch.no_grad():
                while self.waiting:
                    if self.bounded >= self.search.domains:
                        stopped = Stop.DOMAINS
                        break
                    witness = self._advance(self.waiting[-1])
                    if witness is not None:
                        stopped = Stop.WITNESS
                        break
                    self._report()
        except OutOfTimeError:
            stopped = Stop.SECONDS
        if stopped is Stop.DONE and self.stuck:
            stopped = Stop.EXHAUSTED
        return self._outcome(stopped, witness)

    def _advance(self, rest: Rest):
        """Put what a rest is narrowed and split to in its place."""
        begin = time.perf_counter()
        if rest.part.splits:
            rest = self.narrowed(rest)
        if rest.part.bound > self.goal:
            self.closed = min(self.closed, rest.part.bound)
            self.waiting.pop()
            return None
        tree = PartTree(rest, self.aim, self.rules, self.search, dataclasses.replace(self.watchers, progress=None))
        tree.attack = self.attack
        tree.attack.note_work(time.perf_counter() - begin)
        pieces = tree.pieces(PIECES, DOMAINS)
        self.bounded += tree.bounded
        self.closed = min(self.closed, tree.frontier.closed[0])
        self.waiting.pop()
        for piece in sorted(pieces, key=lambda piece: -piece.bound):
            self.waiting.append(Rest(rest.question, tree.boxes_of(piece), piece))
        return tree.witness

    def narrowed(self, rest: Rest) -> Rest:
        """The rest narrowed, as long as that pays."""
        question, boxes, part = rest.question, rest.boxes, rest.part
        best = rest
        before = part.bound
        for count in range(ROUNDS):
            linear, bound, choice = self.linear(question, boxes, part)
            part = dataclasses.replace(part, choice=choice, bound=max(part.bound, bound))
            best = Rest(question, boxes, part)
            missing, gained = self.level - bound, bound - before
            before = bound
            if not missing > 0 or (count > 0 and not gained >= ENOUGH * (missing + gained)):
                break
            smaller = left_over(question, linear, self.level)
            if smaller is None:
                break
            question = question.about(smaller)
            self.made += 1
            boxes = self.make(question, boxes)
            if boxes.problems:
                break
        return best

    def linear(self, question: Question, boxes: Boxes, part: Part) -> tuple[LinearBound, float, object]:
        """An optimised linear bound on a part, with its size, the best bound, and the parameters."""
        objective = Objective.dense(question.graph.output, self.aim.objectives[None])
        made = self._with_cuts(question, boxes, part)
        choice = part.choice.map(lambda value: value.to(question.dtype))
        begin = Beginning(choice=choice or None, cuts=made.cuts, best=True)
        done = ascend(question, made.boxes, objective, self.rules, ASCENT, Goal(self.level), begin)
        whole = dataclasses.replace(self.rules, sums=True)
        linear = backward(question, made.boxes, objective, whole, done.choice, Wanted(size=True))
        bounds = [float(done.bound), float(linear.least(question.region))]
        return linear, max((b for b in bounds if not math.isnan(b)), default=-math.inf), done.choice

    def _with_cuts(self, question: Question, boxes: Boxes, part: Part) -> PartBoxes:
        inner = inner_ranges(question, boxes, self.rules) if any(split.inner for split in part.splits) else {}
        forbidden = (question.graph.input, question.index.start)
        return part_boxes(boxes, inner, [part.splits], forbidden)

    def _open(self) -> list[Part]:
        return [rest.part for rest in self.waiting] + self.stuck

    def _report(self) -> None:
        if self.watchers.progress is not None:
            open_ = self._open()
            worst = min((part.bound for part in open_), default=math.inf) - self.goal
            self.watchers.progress(worst, len(open_), self.bounded)

    def _outcome(self, stopped: Stop, witness) -> Outcome:
        open_ = self._open()
        bound = min([self.closed, self.level, *(part.bound for part in open_)])
        like = self.aim.objectives
        return Outcome(
            bound=like.new_tensor([bound]),
            open=torch.tensor([len(open_)], device=like.device),
            domains=self.bounded,
            stopped=stopped,
            witness=witness,
            broken=None if witness is None else 0,
        )
