"""Branch and bound on given parts of a set, for some seconds at a time: the work of one worker of a shared search.

Invariant: every given part is answered by a tree of splits whose leaves cover it (split_trees.py), and the bound of a
leaf holds on it. A part that was not worked on is answered by a single leaf with the bound it was given with.

A part that this process has made itself is continued where it was left. Of any other part only its splits, their
multipliers and a bound are known: it starts with the parameters of the whole set, and these are optimised if they do
not give its bound.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import Aim, BranchAndBound, Search, Watchers
from vertex_softmax.bounds.choice import Choice, Multipliers
from vertex_softmax.bounds.frontier import Frontier, Part
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.split_trees import Leaf, PlacedLeaf, SplitTree, pruned, tree_of
from vertex_softmax.bounds.splits import Split
from vertex_softmax.foundation.errors import InvalidValueError, OutOfTimeError
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.rules import Rules

LOST = 0.1
"""A part made by another process is optimised if its bound here falls short of the known one by more than this share of
what that lacks to the goal."""


@dataclasses.dataclass(frozen=True, eq=False)
class GivenPart:
    """A part to work on: an objective, the splits that lead to the part, and a lower bound that holds there."""

    objective: int
    splits: tuple[Split, ...] = ()
    bound: float = -math.inf
    multipliers: tuple[float, ...] = ()
    """one for each split, or empty"""


@dataclasses.dataclass(frozen=True, eq=False)
class Grown:
    """The result of working on given parts."""

    trees: tuple[SplitTree, ...]
    """for each given part, its tree"""
    domains: int
    """how many parts were bounded"""
    witness: Tensor | None = None
    """an input (*shape) at which an objective is not above its goal, if one was found and accepted"""


class Subtrees(BranchAndBound):
    """A search that is asked again and again to work on given parts, and keeps parameters and statistics in between."""

    # Six parameters, the same as for branch and bound; of the watchers `accept` and `attack` are of use.
    def __init__(
        self, question: Question, boxes: Boxes, aim: Aim, rules: Rules, search: Search, watchers: Watchers | None = None
    ) -> None:
        super().__init__(question, boxes, aim, rules, search, watchers or Watchers())
        self.goals = self.frontier.goals
        self.wholes = {part.objective: part for part in self.frontier.open_parts()}
        """by objective: the part that is the whole set; after `prepare` with its parameters"""
        self.prepared: set[int] = set()
        self.kept: OrderedDict[tuple[int, tuple[Split, ...]], Part] = OrderedDict()
        """parts that were left open, with their parameters; when memory runs out the oldest are dropped"""

    def prepare(self, objectives: Iterable[int]) -> None:
        """Bound these objectives over the whole set, to get the parameters from which all their parts start.

        The first call has to name all objectives that will be needed.
        """
        wanted = sorted(set(objectives) - self.prepared)
        if not wanted:
            return
        if self.prepared or not set(wanted) <= set(self.wholes):
            raise InvalidValueError(f"the objectives {wanted} are closed already, or were not named when this began")
        with torch.no_grad():
            self.wholes |= {part.objective: part for part in self._bound([self.wholes[k] for k in wanted])}
        self.prepared = set(wanted)

    def limit(self, deadline: float | None) -> None:
        """Set the deadline of all further work; a step that is under way when it passes is abandoned."""
        self.question = self.question.until(deadline)

    def grow_parts(self, parts: Sequence[GivenPart], seconds: float, domains: int | None = None) -> Grown:
        """Work on the parts, the worst first, until all are closed or a limit of seconds or bounded parts is reached.

        A step that has begun is finished so that its work is not lost, unless the deadline of the question passes.
        """
        end = time.perf_counter() + seconds
        self.prepare(part.objective for part in parts)
        bounded, self.bounded, ended = self.bounded, 0, list[Part]()
        self.frontier = Frontier(self.goals, [math.inf] * len(self.goals), ended)
        given = [self._taken_up(number, part) for number, part in enumerate(parts)]
        self.frontier.replace((), [part for part in given if part.candidates or self.frontier.is_closed(part)])
        strangers = [part for part in given if not part.candidates and not self.frontier.is_closed(part)]
        waiting = deque(sorted(strangers, key=self.frontier.shortfall))
        most = min(self.search.domains, domains or self.search.domains)
        try:
            with torch.no_grad():
                while self.witness is None and (waiting or len(self.frontier)) and self.bounded < most:
                    self._step(waiting, late=bounded + self.bounded >= self.search.late)
                    if time.perf_counter() >= end or self.frontier.bytes > self.question.memory.for_parts(
                        self.search.memory
                    ):
                        break
        except OutOfTimeError:
            pass
        open_ = self.frontier.open_parts()
        self._keep(part for part in open_ if part.candidates)
        grown, self.bounded = self.bounded, bounded + self.bounded
        found, self.witness, self.broken = self.witness, None, None
        return Grown(self._trees(parts, [*open_, *waiting, *ended]), grown, found)

    def _step(self, waiting: deque[Part], *, late: bool) -> None:
        """Split the worst parts; or first rebuild parts that wait, as long as fewer than `width` are open."""
        if late and not self.late:
            self._improve_box()
        if waiting and len(self.frontier) < self.width:
            alike = [part for part in waiting if part.objective == waiting[0].objective]
            chosen = alike[: self.width - len(self.frontier)]
            self.bounded += len(chosen)
            self.frontier.replace((), self._stored(self._rebuilt(chosen)))
            for part in chosen:
                waiting.remove(part)
        else:
            self._advance(self.width, lambda parts: self._bound(self._split(parts)))

    def _rebuilt(self, parts: list[Part]) -> list[Part]:
        """Bound parts of one objective that another process has made, with the parameters that are known here.

        Parts whose bound here is far below that of the other process are optimised (LOST).
        """
        fresh = [each.with_choice() for each in self._surveyed([replace(part, bound=-math.inf) for part in parts])]
        done, lost, last = [], list[Part](), list[Part]()
        for part, found in zip(parts, fresh, strict=True):
            short, better = self.goals[part.objective] - part.bound, replace(found, bound=max(found.bound, part.bound))
            if self.frontier.is_closed(better):
                done.append(better)
            elif not better.candidates:  # no number left to split, so a longer ascent is the last chance
                last.append(better)
            elif math.isfinite(part.bound) and not found.bound >= part.bound - LOST * short:
                lost.append(better)
            else:
                done.append(better)
        steps = max(self.search.root.steps, self.search.ascent.steps)
        for those, ascent in ((lost, self.search.ascent), (last, replace(self.search.ascent, steps=steps))):
            done += self._ascended(those, ascent) if those else []
        return done

    def _taken_up(self, number: int, given: GivenPart) -> Part:
        """The part as this process left it; or else with the parameters of the whole set, and without candidates."""
        whole = self.wholes[given.objective]
        known = self.kept.pop((given.objective, given.splits), None) if given.splits else whole
        part = known or Part(given.objective, given.splits, choice=self._choice_by(whole, given))
        bound = max(part.bound, whole.bound, -math.inf if math.isnan(given.bound) else given.bound)
        return replace(part, bound=bound, origin=number)

    def _choice_by(self, whole: Part, given: GivenPart) -> Choice:
        """The parameters of the whole set with the multipliers that were given with a part."""
        sides: dict[Node, Multipliers] = {}
        for split, value in zip(given.splits, given.multipliers, strict=False):
            if not split.inner:
                if split.node not in sides:
                    zero = self.objectives.new_zeros((1, 1, *split.node.shape), dtype=torch.float32)
                    sides[split.node] = Multipliers(zero, zero.clone())
                one = sides[split.node].at_least if split.at_least else sides[split.node].at_most
                one.view(-1)[split.place] = value
        return replace(whole.choice, multipliers=sides)

    def _keep(self, parts: Iterable[Part]) -> None:
        """Keep open parts with their parameters, the latest ones, as many as `Search.memory` allows."""
        for part in parts:
            self.kept[part.objective, part.splits] = part
        size = sum(part.choice.bytes for part in self.kept.values())
        while size > self.question.memory.for_parts(self.search.memory):
            size -= self.kept.popitem(last=False)[1].choice.bytes

    def _trees(self, given: Sequence[GivenPart], made: Iterable[Part]) -> tuple[SplitTree, ...]:
        """For each given part, the tree of the parts that were made of it."""
        exhausted = {id(part) for part in self.frontier.exhausted}
        leaves: list[list[PlacedLeaf]] = [[] for _ in given]
        for part in made:
            if part.origin is not None:
                behind = part.splits[len(given[part.origin].splits) :]
                leaves[part.origin].append((behind, self._leaf(part, id(part) in exhausted, given[part.origin].bound)))
        return tuple(
            pruned(tree_of(mine), lambda leaf, goal=self.goals[part.objective]: leaf.bound > goal)  # type: ignore[misc]
            for part, mine in zip(given, leaves, strict=True)
        )

    def _leaf(self, part: Part, exhausted: bool, known: float) -> Leaf:
        """The leaf that reports a part; a bound of +inf comes from an overflow, and the bound it was given with is
        reported.
        """
        if part.bound == math.inf:
            return Leaf(known, exhausted=True)
        return Leaf(part.bound, exhausted, () if part.bound > self.goals[part.objective] else _multipliers_of(part))


def _multipliers_of(part: Part) -> tuple[float, ...]:
    """The multiplier of every split of a part, 0 where it has none."""
    known = part.choice.multipliers
    if not known:
        return ()
    flat = {node: sides.map(lambda side: side.reshape(-1)) for node, sides in known.items()}
    found = [0.0] * len(part.splits)
    places: dict[tuple[Node, bool], list[int]] = {}
    for k, split in enumerate(part.splits):
        if not split.inner and split.node in flat:
            places.setdefault((split.node, split.at_least), []).append(k)
    for (node, at_least), numbers in places.items():
        side = flat[node].at_least if at_least else flat[node].at_most
        for k, value in zip(numbers, side[[part.splits[k].place for k in numbers]].tolist(), strict=True):
            found[k] = value
    return tuple(found)
