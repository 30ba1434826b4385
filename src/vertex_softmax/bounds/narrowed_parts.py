"""Branch and bound whose parts are narrowed too: a part gets boxes of its own, over what is left of the set in it.

Invariant: what was cut off from a part is above the level there, the pieces of a part cover what is left of it, and the
boxes of a rest hold at every input of its set whose numbers lie where its splits say. So the least of the level and of
the bounds of all parts is a bound over the whole set at any time.

A linear bound on a part says where the objective may still be at the level in that part, as it does on the whole set
(narrowing.py): each part has a half-space of its own. Boxes that are made anew over what is left know the half-space
and the splits; the bound over them is much better, and leaves less. That takes as long as hundreds of parts of a tree
over given boxes. So a tree over the boxes of a rest is tried first, as long as it promises to end soon; what it leaves
open is a few pieces, and each of these is narrowed. The last piece is taken up first, with all that is made of it: so
few boxes are alive at once.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vertex_softmax.bounds.aims import Aim, Outcome, Search, Stop, Watchers
from vertex_softmax.bounds.ascent import Ascent, Beginning, Goal, ascend
from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import BranchAndBound, inner_ranges
from vertex_softmax.bounds.choice import Choice
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.fitting import functionals_of
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.linear import LinearBound
from vertex_softmax.bounds.narrowing import ROUNDS, MakeBoxes, left_over
from vertex_softmax.bounds.promising import promises
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.record import Record, RestRecord
from vertex_softmax.bounds.splits import PartBoxes, part_boxes
from vertex_softmax.bounds.tree_attack import TreeAttack
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.rules import Rules

ENOUGH = 0.06
"""A rest is narrowed again while a round closes this share of what is missing to the level."""
NARROW = 0.3
"""A piece is narrowed, and not split before, where what its linear bound lacks to the level is at most this share of
the way that it goes over the box: then a few rounds close it, and those of two halves would not be fewer."""
ASCENT = Ascent(steps=10, step_size=0.05, decay=0.95)
"""of the parameters of a rest, from those of the part or of the round before"""


@dataclasses.dataclass(frozen=True)
class TreeSize:
    """How large the tree over the boxes of one rest may become."""

    pieces: int
    """about how many pieces are narrowed of what it leaves open, at most"""
    first: int
    """how many parts are bounded at least"""
    most: int
    """how many parts are bounded at most: so many only if, by the last doubling, that promises to be enough"""
    fewest: int | None = None
    """so few pieces are narrowed if all are NARROW, else those that are not are split; None: as many as may be"""


ROUNDS_OF_A_PIECE = 4
"""About how often boxes are made of a piece until it is closed."""
LARGEST = 1 << 15
"""A tree over the boxes of one rest has no more parts than that, however long boxes take."""
WHOLE = TreeSize(pieces=64, first=128, most=4096, fewest=4)
"""over what is left of the whole set"""
DEEPER = TreeSize(pieces=4, first=32, most=512)
"""over what is left of a part"""


@dataclasses.dataclass(frozen=True, eq=False)
class Rest:
    """What is left of a part of the set of one objective, and what is known there."""

    question: Question
    """about a set with all that is left"""
    boxes: Boxes
    """of one input: they hold where the part's splits do"""
    part: Part
    """with all splits from the whole set on, its parameters, and a bound over what is left"""
    record: RestRecord | None = None
    """hears of all that becomes of it"""
    seconds: float = 0.0
    """what its boxes took, or those of what it is a part of"""


class PartTree(BranchAndBound):
    """A tree over the boxes of one rest, from its part on."""

    def __init__(
        self, rest: Rest, aim: Aim, rules: Rules, search: Search, watchers: Watchers, attack: TreeAttack
    ) -> None:
        super().__init__(rest.question, rest.boxes, aim, rules, search, watchers)
        if rest.part.splits:
            self.shared[0] = rest.part.choice.only(self.shared_names)
            own = dataclasses.replace(rest.part, choice=rest.part.choice.without(self.shared_names))
            begin = self._stored([each.with_choice() for each in self._surveyed([own])])
            self.frontier.replace(self.frontier.gather(1), begin)
            if watchers.record is not None:  # to whoever proves it again they are of use, though nothing is fitted here
                watchers.record.functionals[0] = self._functionals(rest.part)
        else:
            self._advance(1, self._bound)
        self.attack = attack  # one for all rests: from here on its time counts for all of them
        self.seen = [(self.bounded, self._shortfall())]
        """how many parts were bounded, and the worst open one's bound less its goal, after each step"""

    def pieces(self, size: TreeSize, level: float, seconds: float) -> list[Part]:
        """Parts that cover what the tree leaves open, each with the least bound in it: as few as are soon narrowed.

        Their parameters are those that they had when they were made. seconds: what boxes take. Where they take long,
        the tree may have more parts, as many as there are in the time in which its pieces would be narrowed.
        """
        begin, fewest = time.perf_counter(), size.fewest or size.pieces
        self._grow(lambda: len(self.frontier) >= fewest or self.bounded >= size.first)
        while self.witness is None and len(self.frontier) < size.pieces and self.bounded < size.first:
            wide = self._wide(level)[: size.pieces - len(self.frontier)]
            if not wide:
                break
            self.frontier.replace(wide, self._bound(self._split(wide)))
            self.seen.append((self.bounded, self._shortfall()))
        found = self.frontier.open_parts()
        limit = size.first
        while len(self.frontier) and self.witness is None:
            self._grow(lambda limit=limit: self.bounded >= limit)  # type: ignore[misc]
            spent, worth = time.perf_counter() - begin, ROUNDS_OF_A_PIECE * seconds * len(found)
            most = max(size.most, min(LARGEST, self.bounded * worth / spent) if spent > 0 else 0)
            before, now = self._worst_after(limit // 4), self._shortfall()
            doublings = math.log2(most / limit)
            if self.bounded < limit or doublings < 1 or not promises((before + now) / 2, now, doublings):
                break
            limit *= 2
        return open_pieces(found, self.frontier.open_parts())

    def _wide(self, level: float) -> list[Part]:
        """The parts, the worst first, whose linear bounds leave so much of the set that narrowing takes long."""
        parts, region = self.frontier.gather(len(self.frontier)), self.question.region
        linear = self._linear(parts) if parts else None
        if linear is None or linear.coefficients is None:
            return []
        lower, upper = region.box
        way = (linear.coefficients.abs() * (upper - lower).unsqueeze(1)).flatten(2).sum(-1)
        narrow = (level - linear.least(region) <= NARROW * way).flatten().tolist()
        return [part for part, is_narrow in zip(parts, narrow, strict=True) if not is_narrow]

    def _functionals(self, part: Part) -> dict[Node, Tensor]:
        """What the objective asks of the values of attentions in a part, with all of its parameters."""
        choice = part.choice.map(lambda value: value.to(self.objectives))
        return functionals_of(
            self.question.on_parts(), self._boxes_of([part]).boxes, self._objective([part]), self.rules, choice
        )

    def boxes_of(self, piece: Part) -> Boxes:
        """The boxes of one of its parts, as those of one input."""
        return dataclasses.replace(self._boxes_of([piece]).boxes, whole=None)

    def complete(self, piece: Part) -> Part:
        """One of its parts with what it shares with the others among its parameters."""
        return self._complete(piece)

    def _grow(self, is_enough: Callable[[], bool]) -> None:
        """Split the worst parts, the more at a time the more there are."""
        memory = self.question.memory.for_parts(self.search.memory)
        while len(self.frontier) and self.witness is None and not is_enough() and self.frontier.bytes <= memory:
            width = min(self.width, max(1, len(self.frontier) // 4))
            self._advance(width, lambda parts: self._bound(self._split(parts)))
            self.seen.append((self.bounded, self._shortfall()))

    def _worst_after(self, bounded: int) -> float:
        """The worst open part's bound less its goal when so many parts were bounded."""
        return next((worst for count, worst in reversed(self.seen) if count <= bounded), self.seen[0][1])

    def _shortfall(self) -> float:
        """The worst open part's bound less its goal."""
        return min((self.frontier.shortfall(part) for part in self.frontier.open_parts()), default=math.inf)


def open_pieces(pieces: Sequence[Part], leaves: Sequence[Part]) -> list[Part]:
    """Those of the pieces in which a leaf lies, with the least bound of their leaves; each leaf lies in one of them."""
    least: dict[int, float] = {}
    for leaf in leaves:
        (mine,) = (k for k, piece in enumerate(pieces) if leaf.splits[: len(piece.splits)] == piece.splits)
        least[mine] = min(least.get(mine, math.inf), leaf.bound)
    return [dataclasses.replace(pieces[k], bound=max(pieces[k].bound, bound)) for k, bound in least.items()]


class NarrowedParts:
    """The search for one objective under way."""

    def __init__(
        self, aim: Aim, level: float, rules: Rules, search: Search, watchers: Watchers, make: MakeBoxes
    ) -> None:
        self.aim, self.level, self.search, self.make = aim, level, search, make
        self.rules = dataclasses.replace(rules, free=True)
        self.watchers, self.progress = dataclasses.replace(watchers, progress=None, record=None), watchers.progress
        self.goal = 0.0 if aim.goals is None else float(aim.goals[0])
        self.waiting: list[Rest] = []
        """what is open, the next one last"""
        self.stuck: list[Part] = []
        """open parts with nothing left to split"""
        self.closed = math.inf
        """the least bound of what is closed"""
        self.attack = TreeAttack(search.attack)
        self.bounded = 0
        self.passes = 0
        self.seconds = 0.0
        self.witness: Tensor | None = None

    def run(self, whole: Rest) -> Outcome:
        """Narrow and split, until nothing is open or a limit is reached."""
        self.waiting = [whole]
        stopped: Stop | None = None
        try:
            with torch.no_grad():
                while self.waiting and stopped is None:
                    begin, before = time.perf_counter(), self.attack.spent
                    try:
                        self._take_up(self.waiting[-1])
                    finally:
                        self.seconds += time.perf_counter() - begin - (self.attack.spent - before)
                    self._report()
                    if self.witness is not None:
                        stopped = Stop.WITNESS
                    elif self.waiting and self.bounded >= self.search.domains:
                        stopped = Stop.DOMAINS
        except OutOfTimeError:
            stopped = Stop.SECONDS
        if stopped is None:
            stopped = Stop.EXHAUSTED if self.stuck else Stop.DONE
        return self._outcome(stopped)

    def _take_up(self, rest: Rest) -> None:
        """Put what becomes of the last rest in its place: nothing, if it is closed."""
        begin = time.perf_counter()
        if rest.part.splits:
            rest = self._narrowed(rest)
        pieces: list[Rest] = []
        if rest.part.bound > self.goal:
            self.bounded += 1
            self.closed = min(self.closed, rest.part.bound)
        else:
            watchers = dataclasses.replace(self.watchers, record=None if rest.record is None else Record())
            tree = PartTree(rest, self.aim, self.rules, self.search, watchers, self.attack)
            self.attack.note_work(time.perf_counter() - begin)
            left = tree.pieces(DEEPER if rest.part.splits else WHOLE, self.level, rest.seconds)
            records: list[RestRecord | None] = [None] * len(left)
            if rest.record is not None and watchers.record is not None:
                records = list(rest.record.split(watchers.record, left))
            pieces = [
                Rest(rest.question, tree.boxes_of(piece), tree.complete(piece), record, rest.seconds)
                for piece, record in zip(left, records, strict=True)
            ]
            self.bounded += max(1, tree.bounded)
            self.passes += tree.passes
            self.closed = min(self.closed, tree.frontier.closed[0])
            self.witness = tree.witness
        self.waiting.pop()
        if len(pieces) == 1 and pieces[0].part.splits == rest.part.splits:
            self.stuck.append(pieces[0].part)
        else:
            self.waiting += sorted(pieces, key=lambda piece: -piece.part.bound)

    def _narrowed(self, rest: Rest) -> Rest:
        """The rest narrowed, as long as that pays; boxes that contradict each other are not taken."""
        best = rest
        question, boxes, part = rest.question, rest.boxes, rest.part
        before = -math.inf  # the bound of the round before; that of the part may be of a tree, and no linear bound
        for _ in range(ROUNDS):
            linear, bound, choice = self._linear(question, boxes, part)
            part = dataclasses.replace(part, choice=choice, bound=max(part.bound, bound))
            best = Rest(question, boxes, part, rest.record, rest.seconds)
            if rest.record is not None:
                rest.record.bound(choice)
            missing, gained, before = self.level - bound, bound - before, bound
            if not missing > 0 or not gained >= ENOUGH * (missing + gained):
                break
            smaller = left_over(question, linear, self.level)
            if smaller is None:
                break
            question = question.about(smaller)
            boxes = self.make(question, [boxes])
            if boxes.problems:
                break
            if rest.record is not None:
                rest.record.cut(choice)
        return best

    def _linear(self, question: Question, boxes: Boxes, part: Part) -> tuple[LinearBound, float, Choice]:
        """An optimised linear bound on a part with its size, the best bound over it, and the parameters.

        The bound is −inf if it is none.
        """
        objective = Objective.dense(question.graph.output, self.aim.objectives[None])
        made = self._with_cuts(question, boxes, part)
        choice = part.choice.map(lambda value: value.to(question.dtype))
        begin = Beginning(choice=choice or None, cuts=made.cuts, best=True)
        done = ascend(question, made.boxes, objective, self.rules, ASCENT, Goal(self.level), begin)
        self.passes += done.passes + 1
        sums = dataclasses.replace(self.rules, sums=True)
        linear = backward(question, made.boxes, objective, sums, done.choice, Wanted(size=True))
        bounds = [float(done.bound), float(linear.least(question.region))]
        return linear, max((bound for bound in bounds if not math.isnan(bound)), default=-math.inf), done.choice

    def _with_cuts(self, question: Question, boxes: Boxes, part: Part) -> PartBoxes:
        """The boxes of a rest, and where its splits have multipliers."""
        inner = inner_ranges(question, boxes, self.rules) if any(split.inner for split in part.splits) else {}
        return part_boxes(boxes, inner, [part.splits], (question.graph.input, question.index.start))

    def _open(self) -> list[Part]:
        return [rest.part for rest in self.waiting] + self.stuck

    def _report(self) -> None:
        if self.progress is not None:
            worst = min((part.bound - self.goal for part in self._open()), default=math.inf)
            self.progress(worst, len(self._open()), self.bounded)

    def _outcome(self, stopped: Stop) -> Outcome:
        like, open_ = self.aim.objectives, self._open()
        return Outcome(
            bound=like.new_tensor([min([self.closed, self.level, *(part.bound for part in open_)])]),
            open=torch.tensor([len(open_)], device=like.device),
            domains=self.bounded,
            stopped=stopped,
            witness=self.witness,
            broken=None if self.witness is None else 0,
            passes=self.passes,
            seconds=self.seconds,
        )
