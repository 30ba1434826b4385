"""Branch and bound in which parts are narrowed too: a part gets new boxes over what is left of the set in it.

Invariant: on everything that was cut off from a part the objective is above the level; the pieces of a part cover what
is left of it; and the boxes of a rest hold at every input of its set at which its splits hold. So the least of the
level and of the bounds of all parts is a bound over the whole set at any time.

A linear bound on a part tells where in that part the objective may still be as low as the level, as it does on the
whole set (narrowing.py); so each part is cut by a half-space of its own. Boxes made anew over what is left use both the
half-space and the splits; the bound over them is much better, and again leaves less. But making them takes as long as
bounding hundreds of parts over given boxes. So a tree over the boxes of a rest is grown first, as long as it promises
to end soon. What it leaves open is divided into a few pieces, and each of these is narrowed. The search is depth first,
so that few boxes are alive at once.
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
"""A rest is narrowed once more as long as a round closes at least this share of what the bound lacks to the level."""
NARROW = 0.3
"""A piece is narrowed rather than split if what its linear bound lacks to the level is at most this share of the
bound's range over the box, Σ |coefficients|·width. Then a few rounds close it, and its halves would need as many
each."""
ASCENT = Ascent(steps=10, step_size=0.05, decay=0.95)
"""the ascent on a rest, from the parameters of its part or of the round before"""


@dataclasses.dataclass(frozen=True)
class TreeSize:
    """Limits of the tree over the boxes of one rest."""

    pieces: int
    """about how many open pieces the tree may leave to be narrowed, at most"""
    first: int
    """how many parts the tree bounds at least, unless it ends"""
    most: int
    """how many parts the tree bounds at most, unless making boxes takes long; it goes beyond `first` only while its
    last doubling promises that it will end"""
    fewest: int | None = None
    """with this many open pieces the tree stops dividing, except pieces that are not NARROW; None: as `pieces`"""


ROUNDS_OF_A_PIECE = 4
"""About how often boxes are made anew until a piece is closed."""
LARGEST = 1 << 15
"""The tree over the boxes of one rest bounds at most this many parts, however long it takes to make boxes."""
WHOLE = TreeSize(pieces=64, first=128, most=4096, fewest=4)
"""for the tree over what is left of the whole set"""
DEEPER = TreeSize(pieces=4, first=32, most=512)
"""for the tree over what is left of a part"""


@dataclasses.dataclass(frozen=True, eq=False)
class Rest:
    """What is left of a part of the set of one objective, and what is known there."""

    question: Question
    """about a set that contains everything that is left of the part"""
    boxes: Boxes
    """boxes with a batch of one, valid at the inputs at which all splits of the part hold"""
    part: Part
    """the part with all of its splits, its parameters, and a bound over what is left of it"""
    record: RestRecord | None = None
    """records how this rest is decided; None: nothing is recorded"""
    seconds: float = 0.0
    """the time it took to make its boxes, or those of the rest it is a piece of"""


class PartTree(BranchAndBound):
    """Branch and bound over the boxes of one rest, which starts from the rest's part."""

    def __init__(
        self, rest: Rest, aim: Aim, rules: Rules, search: Search, watchers: Watchers, attack: TreeAttack
    ) -> None:
        super().__init__(rest.question, rest.boxes, aim, rules, search, watchers)
        if rest.part.splits:
            self.shared[0] = rest.part.choice.only(self.shared_names)
            own = dataclasses.replace(rest.part, choice=rest.part.choice.without(self.shared_names))
            begin = self._stored([each.with_choice() for each in self._surveyed([own])])
            self.frontier.replace(self.frontier.gather(1), begin)
            if watchers.record is not None:  # of use to a certificate, though nothing is fitted here
                watchers.record.functionals[0] = self._functionals(rest.part)
        else:
            self._advance(1, self._bound)
        self.attack = attack  # shared by all rests, with its budget of time
        self.seen = [(self.bounded, self._shortfall())]
        """after each step: how many parts were bounded, and the least bound minus goal of the open parts"""

    def pieces(self, size: TreeSize, level: float, seconds: float) -> list[Part]:
        """Grow the tree, and return parts that cover what it leaves open, each with the least bound in it.

        Few parts are returned, and with the parameters they had when they were made. seconds: how long making boxes
        takes; where that is long, the tree may bound more parts, as many as in the time that narrowing its pieces would
        take.
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
        """The open parts, the worst first, that are not NARROW: narrowing them would take many rounds."""
        parts, region = self.frontier.gather(len(self.frontier)), self.question.region
        linear = self._linear(parts) if parts else None
        if linear is None or linear.coefficients is None:
            return []
        lower, upper = region.box
        way = (linear.coefficients.abs() * (upper - lower).unsqueeze(1)).flatten(2).sum(-1)
        narrow = (level - linear.least(region) <= NARROW * way).flatten().tolist()
        return [part for part, is_narrow in zip(parts, narrow, strict=True) if not is_narrow]

    def _functionals(self, part: Part) -> dict[Node, Tensor]:
        """The objective's coefficients on the output rows of each attention in a part, with all of the part's
        parameters.
        """
        choice = part.choice.map(lambda value: value.to(self.objectives))
        return functionals_of(
            self.question.on_parts(), self._boxes_of([part]).boxes, self._objective([part]), self.rules, choice
        )

    def boxes_of(self, piece: Part) -> Boxes:
        """The boxes of one part of this tree, as boxes of a single input."""
        return dataclasses.replace(self._boxes_of([piece]).boxes, whole=None)

    def complete(self, piece: Part) -> Part:
        """A part of this tree with the parameters it shares with other parts among its own."""
        return self._complete(piece)

    def _grow(self, is_enough: Callable[[], bool]) -> None:
        """Split the worst parts until `is_enough`: a quarter of the open ones at a time, but at most `width`."""
        memory = self.question.memory.for_parts(self.search.memory)
        while len(self.frontier) and self.witness is None and not is_enough() and self.frontier.bytes <= memory:
            width = min(self.width, max(1, len(self.frontier) // 4))
            self._advance(width, lambda parts: self._bound(self._split(parts)))
            self.seen.append((self.bounded, self._shortfall()))

    def _worst_after(self, bounded: int) -> float:
        """The least bound minus goal of the open parts at the time when `bounded` parts had been bounded."""
        return next((worst for count, worst in reversed(self.seen) if count <= bounded), self.seen[0][1])

    def _shortfall(self) -> float:
        """The least bound minus goal of the open parts; +inf if there are none."""
        return min((self.frontier.shortfall(part) for part in self.frontier.open_parts()), default=math.inf)


def open_pieces(pieces: Sequence[Part], leaves: Sequence[Part]) -> list[Part]:
    """The pieces in which some leaf lies, each with the least bound of its leaves; every leaf lies in exactly one
    piece.
    """
    least: dict[int, float] = {}
    for leaf in leaves:
        (mine,) = (k for k, piece in enumerate(pieces) if leaf.splits[: len(piece.splits)] == piece.splits)
        least[mine] = min(least.get(mine, math.inf), leaf.bound)
    return [dataclasses.replace(pieces[k], bound=max(pieces[k].bound, bound)) for k, bound in least.items()]


class NarrowedParts:
    """The state of the search for one objective."""

    def __init__(
        self, aim: Aim, level: float, rules: Rules, search: Search, watchers: Watchers, make: MakeBoxes
    ) -> None:
        self.aim, self.level, self.search, self.make = aim, level, search, make
        self.rules = dataclasses.replace(rules, free=True)
        self.watchers, self.progress = dataclasses.replace(watchers, progress=None, record=None), watchers.progress
        self.goal = 0.0 if aim.goals is None else float(aim.goals[0])
        self.waiting: list[Rest] = []
        """the open rests; the last one is taken up next"""
        self.stuck: list[Part] = []
        """open parts without a number that can be split"""
        self.closed = math.inf
        """the least bound of all closed parts"""
        self.attack = TreeAttack(search.attack)
        self.bounded = 0
        self.passes = 0
        self.seconds = 0.0
        self.witness: Tensor | None = None

    def run(self, whole: Rest) -> Outcome:
        """Narrow and split until nothing is open or a limit is reached."""
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
        """Process `rest`, the last one that waits, and put its open pieces in its place: none, if it is closed."""
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
        """The rest after narrowing, as long as that pays; boxes that contradict each other are not used."""
        best = rest
        question, boxes, part = rest.question, rest.boxes, rest.part
        before = -math.inf  # the linear bound of the round before; the part's own may come from a tree
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
        """An optimised linear bound on a part, with its size; the best bound over the part; and the parameters.

        The bound is −inf if none could be computed.
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
        """The boxes of a rest, and the scales of the multipliers of its splits."""
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
