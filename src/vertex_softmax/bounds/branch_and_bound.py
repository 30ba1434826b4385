"""Branch and bound: split the input set into parts until the bounds of all parts are above the goal.

Invariant: both parts of a split together cover what was split, and a part's bound is never below that of the part it
was split from. So the least bound over all parts is a lower bound over the whole set at any time, and never falls.

A part belongs to one objective and is described by its splits: number k of node z is ≥ c, or ≤ c. Both sides of a split
contain the point c. Splits cut the boxes of their nodes (splits.py); all other boxes are those of the whole set. The
multipliers of the cuts are optimised together with all other free parameters, starting from the parent's values.

Each backward pass tells which numbers cost its bound most (candidates.py); the few most promising splits are tried.
From time to time attacks start at the inputs where the bounds of the worst parts are least (tree_attack.py).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.bounds.aims import Accept, Aim, Attack, Outcome, Progress, Search, Stop, Watchers
from vertex_softmax.bounds.ascent import AscendedEntries, Ascent, Beginning, Goal, ascend, ascended_box
from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.candidates import Candidate, Survey, candidates
from vertex_softmax.bounds.choice import Choice, Multipliers, Targets, stacked
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.fitting import fitted_boxes, functionals_of, shared_names
from vertex_softmax.bounds.frontier import Frontier, Part
from vertex_softmax.bounds.gains import Gains
from vertex_softmax.bounds.linear import LinearBound
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.splits import PartBoxes, Split, part_boxes
from vertex_softmax.bounds.tree_attack import TreeAttack
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.contract import InnerRange, Splittable
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import Rules

SHOWN = 3
"""How many inputs of a batch of parts are passed to `accept`, at most."""
TOGETHER = 1 << 20
"""About how many numbers, in all nodes, the parts of one batch have together."""
SMALL = 1 << 13
"""In a network with at most this many numbers in all nodes, every survey uses `Rules.sums` and every part optimises all
free parameters."""
TRIED = 4
"""A batch of a survey has this many times as many parts as one of an ascent, because a survey needs no gradients."""
AGAIN = 4
"""An ascent that is continued over fitted boxes starts with steps this many times smaller."""

__all__ = [
    "Accept",
    "Aim",
    "Attack",
    "Outcome",
    "Progress",
    "Search",
    "Stop",
    "Watchers",
    "branch_and_bound",
    "inner_ranges",
]


def branch_and_bound(
    question: Question, boxes: Boxes, aim: Aim, rules: Rules, search: Search, watchers: Watchers | None = None
) -> Outcome:
    """Bound objectives over the set of a question, which has a single input; `boxes` are those of the whole set."""
    return BranchAndBound(question, boxes, aim, rules, search, watchers or Watchers()).grow(search.seconds)


def inner_ranges(question: Question, boxes: Boxes, rules: Rules) -> dict[Node, Interval]:
    """By node, the range of the quantity that its op computes inside (`InnerRange`), before any split."""
    return {
        node: node.op.inner_range(question.relaxations.context(node, boxes, rules))
        for node in question.index.nodes
        if isinstance(node.op, InnerRange)
    }


class BranchAndBound:
    """The state of one search.

    Parts wait in `frontier`. They are split and bounded in batches of `width`, those furthest below their goals first.
    """

    def __init__(
        self, question: Question, boxes: Boxes, aim: Aim, rules: Rules, search: Search, watchers: Watchers
    ) -> None:
        self.question, self.boxes, self.search, self.watchers = question, boxes, search, watchers
        self.objectives, self.deadline = aim.objectives, question.clock.deadline
        count, nodes = len(aim.objectives), question.index.nodes
        goals = [0.0] * count if aim.goals is None else aim.goals.tolist()
        known = [-math.inf] * count if aim.known is None else [_or_none(bound) for bound in aim.known.tolist()]
        self.frontier = Frontier(goals, known)
        numbers = sum(math.prod(node.shape) for node in nodes)
        self.rules = dataclasses.replace(rules, free=True)
        self.survey_rules = dataclasses.replace(self.rules, sums=numbers <= SMALL)
        self.width = search.width or min(256, max(32, TOGETHER // max(1, numbers)))
        self.inner = inner_ranges(question, boxes, self.rules)
        self.exact = {
            source
            for node in nodes
            if isinstance(node.op, Splittable) and node.op.splits_exactly
            for source in node.inputs
        }
        """nodes whose splits are exact: the op that reads the node becomes linear on both sides"""
        self.gains = Gains(search.reliable)
        self.shared_names = shared_names(question, boxes, self.rules) if numbers > SMALL else {}
        """by node, the names of the parameters that parts take from the whole set and do not optimise themselves; empty
        in a small network, where optimising them costs little"""
        self.shared: dict[int, Choice] = {}
        """by objective: the values of these parameters, (1, 1, ...) each, as the ascent on the whole set left them"""
        self.fitted: dict[int, Boxes] = {}
        """by objective: the boxes of the whole set, fitted to the objective (fitting.py)"""
        self.late = False
        """whether `_improve_box` has been called"""
        self.attack = TreeAttack(search.attack)
        self.bounded = 0
        self.passes = 0
        """how many bounds of parts were computed (`Outcome.passes`)"""
        self.seconds = 0.0
        """time that the search has taken, without attacks and callbacks"""
        self.told = 0.0
        """time spent in the callback `Watchers.progress`"""
        self.witness: Tensor | None = None
        self.broken: int | None = None

    def grow(self, seconds: float | None) -> Outcome:
        """Split the worst parts until none is open or a limit is reached."""
        begin, before = time.perf_counter(), self.attack.spent + self.told
        own = None if seconds is None else begin + seconds
        ends = [end for end in (self.deadline, own) if end is not None]
        self.question = self.question.until(min(ends, default=None))
        try:
            with torch.no_grad():
                self._advance(len(self.frontier), self._bound)
                while (stopped := self._stopped()) is None:
                    if self.bounded >= self.search.late and not self.late:
                        self._improve_box()
                    self._advance(self.width, lambda parts: self._bound(self._split(parts)))
                if stopped not in (Stop.DONE, Stop.WITNESS):
                    self._attack(last=True)
                    stopped = stopped if self.witness is None else Stop.WITNESS
        except OutOfTimeError:
            stopped = Stop.SECONDS
        self.seconds += time.perf_counter() - begin - (self.attack.spent + self.told - before)
        if self.watchers.record is not None:
            self.watchers.record.end(self.boxes, self.inner, self.frontier.open_parts(), self._resume)
        return self._outcome(stopped)

    def _stopped(self) -> Stop | None:
        """The reason for which the search has to end now, or None."""
        if self.witness is not None:
            return Stop.WITNESS
        if not len(self.frontier):
            return Stop.EXHAUSTED if self.frontier.exhausted else Stop.DONE
        if self.bounded >= self.search.domains:
            return Stop.DOMAINS
        most = self.question.memory.for_parts(self.search.memory)
        return Stop.MEMORY if self.frontier.bytes > most else None

    def _resume(self, parts: Sequence[Part], goals: Sequence[float], seconds: float) -> Outcome:
        """Open closed parts again, which now have to be above higher goals, and continue the search for some seconds.

        Only for a search that has ended; the callbacks of its watchers are not called any more.
        """
        self.watchers = dataclasses.replace(self.watchers, accept=lambda *_: False, progress=None, attack=None)
        own = [dataclasses.replace(part, choice=part.choice.without(self.shared_names)) for part in parts]
        self.frontier.reopen(own, goals)
        return self.grow(seconds)

    def _improve_box(self) -> None:
        """Optimise, once, the box over the whole set of the last node with exact splits behind an attention."""
        self.late = True
        index = self.question.index
        nodes = [node for node in index.nodes if node in self.exact and index.has_attention(node)]
        if not nodes:
            return
        rules = dataclasses.replace(self.rules, pieces=1)
        record = self.watchers.record
        kept = None if record is None else AscendedEntries(nodes[-1])
        box = ascended_box(self.question, self.boxes, nodes[-1], rules, self.search.boxes, kept)
        better = self.boxes.tightened(nodes[-1], box)
        if len(better.problems) > len(self.boxes.problems):  # two bounds contradict each other: trust neither
            return
        self.boxes = better
        if record is not None and kept is not None:
            record.note_late(kept)
        self.fitted = {objective: boxes.tightened(nodes[-1], box) for objective, boxes in self.fitted.items()}

    def _advance(self, count: int, work: Callable[[list[Part]], list[Part]]) -> None:
        """Replace the worst parts by what `work` makes of them; if `work` runs out of time, they stay."""
        begin = time.perf_counter()
        taken = self.frontier.gather(count)
        if self.fitted and taken:  # a batch over fitted boxes has one objective
            taken = [part for part in taken if part.objective == taken[0].objective]
        self.frontier.replace(taken, work(taken))
        self.attack.note_work(time.perf_counter() - begin)
        self._attack()
        if self.watchers.progress is not None:
            left = self.frontier.open_parts()
            worst = min((self.frontier.shortfall(part) for part in left), default=math.inf)
            now = time.perf_counter()
            self.watchers.progress(worst, len(left), self.bounded)
            self.told += time.perf_counter() - now

    def _attack(self, *, last: bool = False) -> None:
        """Let the watcher's attack descend from the minimisers of the worst open parts, if an attack is due."""
        attack = self.watchers.attack
        if attack is None or self.witness is not None or not self.attack.is_due(last=last):
            return
        begin = time.perf_counter()
        until = min(begin + self.attack.allowance, self.question.clock.deadline or math.inf)
        parts = self.attack.worst(self.frontier)
        if parts:
            points, objectives = self._minimisers(parts), [part.objective for part in parts]
            chosen = self.attack.fresh(points, objectives)
            found = attack(points[chosen], [objectives[k] for k in chosen], until) if chosen else None
            if found is not None:
                self.witness, self.broken = found
        self.attack.note(time.perf_counter() - begin)

    def _minimisers(self, parts: list[Part]) -> Tensor:
        """For each part, the input of the whole set at which its linear bound is least: (n, *input shape)."""
        return self.question.index.as_input(self._linear(parts).minimise(self.question.region)[1]).squeeze(1)

    def _linear(self, parts: list[Part]) -> LinearBound:
        """The linear bound of each part with the part's own parameters."""
        made, objective, choice = self._boxes_of(parts), self._objective(parts), self._choice_of(parts)
        question = self.question.on_parts()
        return backward(question, made.boxes, objective, self.survey_rules, choice.beside(self._shared_of(parts)))

    def _outcome(self, stopped: Stop) -> Outcome:
        bound, count = list(self.frontier.closed), [0] * len(self.frontier.closed)
        for part in self.frontier.open_parts():
            bound[part.objective] = min(bound[part.objective], part.bound)
            count[part.objective] += 1
        like = self.objectives
        return Outcome(
            bound=like.new_tensor(bound),
            open=torch.tensor(count, device=like.device),
            domains=self.bounded,
            stopped=stopped,
            witness=self.witness,
            broken=self.broken,
            passes=self.passes,
            seconds=self.seconds,
        )

    def _split(self, parts: list[Part]) -> list[Part]:
        """Both children of every part, made by the best of the part's candidates."""
        tries = [self._to_try(part) for part in parts]
        children = [
            child for part, each in zip(parts, tries, strict=True) for one in each for child in part.children(one)
        ]
        surveyed = self._surveyed(children)
        chosen: list[Part] = []
        for part, each in zip(parts, tries, strict=True):
            mine, surveyed = surveyed[: 2 * len(each)], surveyed[2 * len(each) :]
            pairs = [(mine[k], mine[k + 1]) for k in range(0, len(mine), 2)]
            for candidate, (above, below) in zip(each, pairs, strict=True):
                self.gains.learn(
                    part.objective, candidate, above.part.bound - part.bound, below.part.bound - part.bound
                )
            best = max(pairs, key=lambda pair: self._promise([child.part.bound for child in pair], part.objective))
            chosen += [child.with_choice() for child in best]
        return chosen

    def _to_try(self, part: Part) -> Sequence[Candidate]:
        """The candidates to try, the most promising first; only one if it is exact and its expected gain is reliable.

        After a split that is not exact both children are optimised anyway, and trials cost little in comparison.
        """

        def promise(candidate: Candidate) -> float:
            expected = self.gains.expected(part.objective, candidate)
            return self._promise([part.bound + gain for gain in expected], part.objective)

        ranked = sorted(part.candidates, key=promise, reverse=True)
        relied = self._is_exact(ranked[0]) and self.gains.is_reliable(part.objective, ranked[0])
        return ranked[: 1 if relied else self.search.tried]

    def _is_exact(self, split: Split | Candidate) -> bool:
        """Whether a split is of an inner number, or leaves the op that reads the number linear on both sides."""
        return split.inner or split.node in self.exact

    def _promise(self, bounds: Sequence[float], objective: int) -> float:
        """How good a split is by the bounds of its sides: the worse one counts most, anything above the goal 0."""
        short = sorted(min(0.0, bound - self.frontier.goals[objective]) for bound in bounds)
        return short[0] + 0.1 * short[1]

    def _bound(self, parts: list[Part]) -> list[Part]:
        """The parts, bounded and stored: each part that is due (`_ascent_of`) has its free parameters optimised."""
        self.bounded += len(parts)
        still = [part for part in parts if not self.frontier.is_closed(part)]
        ascents = [self._ascent_of(part) for part in still]
        done = [part for part in parts if self.frontier.is_closed(part)]
        done += [part for part, ascent in zip(still, ascents, strict=True) if ascent is None]
        for ascent in dict.fromkeys(each for each in ascents if each is not None):
            due = [part for part, each in zip(still, ascents, strict=True) if each == ascent]
            for begin in range(0, len(due), 2 * self.width):
                done += self._ascended(due[begin : begin + 2 * self.width], ascent)
        return self._stored(done)

    def _stored(self, parts: list[Part]) -> list[Part]:
        """The parts as the frontier keeps them, with parameters in single precision; closed ones are recorded and lose
        theirs.
        """
        stored = [dataclasses.replace(part, choice=part.choice.map(_single)) for part in parts]
        if self.watchers.record is not None:
            for part in stored:
                if self.frontier.is_closed(part):
                    self.watchers.record.add(self._complete(part))
        return [
            dataclasses.replace(part, choice=Choice()) if self.frontier.is_closed(part) else part for part in stored
        ]

    def _ascent_of(self, part: Part) -> Ascent | None:
        """The ascent that is due for a part's parameters; None: they are not optimised this time."""
        search, splits = self.search, part.splits
        if not splits:
            return search.root
        if not part.candidates:  # nothing left to split, so a longer ascent is the last chance
            return dataclasses.replace(search.ascent, steps=search.root.steps)
        return None if self._is_exact(splits[-1]) and len(splits) % search.every else search.ascent

    def _ascended(self, parts: list[Part], ascent: Ascent) -> list[Part]:
        """The parts with their free parameters optimised, and with new candidates unless all are closed."""
        made, objective = self._boxes_of(parts), self._objective(parts)
        limits = self._goals(parts).unsqueeze(1)
        choice, fixed = self._choice_of(parts), self._shared_of(parts)
        beginning = Beginning(choice=choice or None, cuts=made.cuts, best=True, fixed=fixed)
        question = self.question.on_parts()
        done = ascend(question, made.boxes, objective, self.rules, ascent, Goal(limits), beginning)
        self.passes += done.passes
        bounds = [_or_none(bound) for bound in done.bound.squeeze(1).tolist()]
        parts = [
            dataclasses.replace(part, bound=max(bound, part.bound)) for part, bound in zip(parts, bounds, strict=True)
        ]
        chosen = [_Surveyed(part, done.choice, k).with_choice() for k, part in enumerate(parts)]
        if done.bound.isnan().logical_or(done.bound > limits).all():  # each part is closed, or has no bound
            return chosen
        if not parts[0].splits and not self.fitted:
            chosen = self._fit(chosen, ascent)
        parts = [dataclasses.replace(part, choice=part.choice.without(self.shared_names)) for part in chosen]
        return [each.with_choice() for each in self._surveyed(parts)]

    def _fit(self, wholes: list[Part], ascent: Ascent) -> list[Part]:
        """Fit the boxes of each objective to it, and continue its ascent over them.

        wholes: for each objective the part that is the whole set, with all of its parameters.
        """
        found = [whole if self.frontier.is_closed(whole) else self._fitted(whole, ascent) for whole in wholes]
        for whole in found:
            self.shared[whole.objective] = whole.choice.only(self.shared_names)
        return found

    def _fitted(self, whole: Part, ascent: Ascent) -> Part:
        """The whole set for one objective, its ascent continued over fitted boxes; unchanged where nothing can be
        fitted.
        """
        question, objective = self.question.on_parts(), self._objective([whole])
        functionals = functionals_of(question, self.boxes, objective, self.rules, whole.choice)
        if self.watchers.record is not None:
            self.watchers.record.functionals[whole.objective] = functionals
        boxes = fitted_boxes(self.boxes, functionals)
        if boxes is None:
            return whole
        self.fitted[whole.objective] = boxes
        again = dataclasses.replace(ascent, steps=ascent.steps // 2, step_size=ascent.step_size / AGAIN)
        limit, beginning = Goal(self._goals([whole]).unsqueeze(1)), Beginning(choice=whole.choice, best=True)
        done = ascend(question, boxes, objective, self.rules, again, limit, beginning)
        self.passes += done.passes
        return dataclasses.replace(whole, bound=max(whole.bound, _or_none(float(done.bound))), choice=done.choice)

    def _surveyed(self, parts: list[Part]) -> list[_Surveyed]:
        """One backward pass over each part: its bound, the multiplier of its last split, and new candidates."""
        done: list[_Surveyed] = []
        for begin in range(0, len(parts), TRIED * self.width):
            done += self._survey(parts[begin : begin + TRIED * self.width])
        return done

    def _survey(self, parts: list[Part]) -> list[_Surveyed]:
        made, objective, choice = self._boxes_of(parts), self._objective(parts), self._choice_of(parts)
        question = self.question.on_parts()
        whole = choice.beside(self._shared_of(parts))
        linear = backward(question, made.boxes, objective, self.survey_rules, whole, Wanted(steps=True))
        bound, start = linear.minimise(question.region)
        values = question.graph.values(question.index.as_input(start).squeeze(1))
        self.passes += len(parts)
        self._look_for_witness(values, objective, parts)
        survey = Survey(made.boxes, self.survey_rules, linear, values)
        found = candidates(question, survey, self.inner, max(self.search.considered, self.search.tried))
        used = Choice(choice.parameters, {**choice.multipliers, **linear.multipliers})
        done = [
            dataclasses.replace(part, bound=max(part.bound, _or_none(own)), candidates=each, target=None)
            for part, own, each in zip(parts, bound.squeeze(1).tolist(), found, strict=True)
        ]
        return [_Surveyed(part, used, k) for k, part in enumerate(done)]

    def _boxes_of(self, parts: Sequence[Part]) -> PartBoxes:
        index = self.question.index
        forbidden = (index.graph.input, index.start)
        objectives = {part.objective for part in parts}
        whole = self.fitted.get(parts[0].objective, self.boxes) if len(objectives) == 1 else self.boxes
        return part_boxes(whole, self.inner, [part.splits for part in parts], forbidden)

    def _objective(self, parts: Sequence[Part]) -> Objective:
        A = self.objectives[[part.objective for part in parts]].unsqueeze(1)
        return Objective.dense(self.question.graph.output, A)

    def _goals(self, parts: Sequence[Part]) -> Tensor:
        return self.objectives.new_tensor([self.frontier.goals[part.objective] for part in parts])

    def _choice_of(self, parts: list[Part]) -> Choice:
        """The parts' parameters stacked to one batch, with the target of every last split that is new."""
        if not any(part.choice for part in parts):
            return Choice()
        choice = stacked([part.choice for part in parts], self.objectives.dtype)
        multipliers, targets = dict(choice.multipliers), {}
        for k, part in enumerate(parts):
            if part.target is None:
                continue
            split = part.splits[-1]
            shape = (len(parts), 1, *split.node.shape)
            if split.node not in multipliers:
                multipliers[split.node] = Multipliers(*(self.objectives.new_zeros(shape) for _ in range(2)))
            if split.node not in targets:
                targets[split.node] = Targets(*(self.objectives.new_full(shape, torch.nan) for _ in range(2)))
            side = targets[split.node].at_least if split.at_least else targets[split.node].at_most
            side.view(len(parts), -1)[k, split.place] = part.target
        return Choice(choice.parameters, multipliers, targets)

    def _shared_of(self, parts: Sequence[Part]) -> Choice:
        """The parameters that parts do not optimise: (1, 1, ...) for one objective, else (parts, 1, ...)."""
        objectives = list(dict.fromkeys(part.objective for part in parts))
        if not self.shared_names or any(each not in self.shared for each in objectives):
            return Choice()
        if len(objectives) == 1:
            return self.shared[objectives[0]]
        return stacked([self.shared[part.objective] for part in parts], self.objectives.dtype)

    def _complete(self, part: Part) -> Part:
        """The part with the parameters that it shares with other parts among its own."""
        return dataclasses.replace(part, choice=part.choice.beside(self._shared_of([part]).map(_single)))

    def _look_for_witness(self, values: dict[Node, Tensor], objective: Objective, parts: list[Part]) -> None:
        """Set the witness if an objective is not above its goal at one of the inputs of these values; try the worst
        first.
        """
        graph = self.question.graph
        A = objective.coefficients.A.squeeze(1)
        short = (A * values[graph.output]).flatten(1).sum(-1) - self._goals(parts)
        for k in short.argsort().tolist()[:SHOWN]:
            if self.witness is not None or not float(short[k]) <= 0:
                return
            point = values[graph.input][k]
            if self.watchers.accept is None or self.watchers.accept(point, parts[k].objective):
                self.witness, self.broken = point, parts[k].objective


class _Surveyed(NamedTuple):
    """A part, and the row of its parameters in the batch that it was surveyed in."""

    part: Part
    batch: Choice
    row: int

    def with_choice(self) -> Part:
        """The part with its own parameters."""
        choice = self.batch.map(lambda value: value[self.row : self.row + 1])
        return dataclasses.replace(self.part, choice=choice)


def _single(value: Tensor) -> Tensor:
    """A copy in single precision that does not keep its batch alive; rounding is harmless, any parameter value is
    sound.
    """
    return value.to(torch.float32, copy=True)


def _or_none(bound: float) -> float:
    """The bound, or −inf if it could not be computed (NaN)."""
    return -math.inf if math.isnan(bound) else bound
