"""Branch and bound: where one bound is not enough, split the set until the bounds of all parts are.

Invariant: the parts of every split cover what was split, and a part's bound is never below that of what it is a part
of. So the least bound over all parts is a lower bound over the whole set at any time, and never falls.

A part (domain) is an objective and the splits on the way to it: number k of node z is ≥ c, or ≤ c. Both parts of a
split hold the point c itself. The splits cut the boxes of what they are on (bounds/subsets.py), their multipliers are
optimised with all other free parameters from the parent's values on, and every box that is not cut is the root's.

What to split is asked of the bound (branching.py); the few most promising splits are tried.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import HELD, TARGETS, Walk
from vertex_softmax.bounds.branching import Candidate, most_bent
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.bounds.optimize import Ascent, Chosen, Held, optimise
from vertex_softmax.bounds.slack import input_of
from vertex_softmax.bounds.subsets import Subsets
from vertex_softmax.foundation.errors import InvalidValueError, OutOfTimeError
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.registry import Interval, Rules, Step

LOOKED_AT = 3
"""How many inputs of a batch of domains are shown to `accept`, at most."""
TOGETHER = 1 << 20
"""About how many numbers domains that are bounded together have, in all nodes."""
SMALL = 1 << 13
"""A network with at most so many numbers in all nodes has `Rules.sums` in every survey."""
TRIED = 4
"""How many times as many parts are looked at together, without gradients."""


@dataclasses.dataclass(frozen=True)
class Search:
    """How far to go."""

    seconds: float | None = 10.0
    """stop after these; None: no limit but the domains'"""
    domains: int = 100_000
    """stop after bounding so many"""
    memory: int = 1 << 30
    """stop when the parameters of open domains take more bytes than this"""
    width: int | None = None
    """how many domains are bounded together; None: as many as have TOGETHER numbers in all, 32 to 256"""
    tried: int = 4
    """how many splits are tried before one is chosen"""
    root: Ascent = dataclasses.field(default_factory=Ascent)
    """of the whole set, before anything is split"""
    ascent: Ascent = dataclasses.field(default_factory=lambda: Ascent(steps=8, step_size=0.01, decay=0.97, sums=False))
    """of a domain, from its parent's parameters on"""
    every: int = 8
    """where splits leave nothing bent (ReLUs), the parameters of a domain are optimised after so many; between, only
    multipliers are new. After any other split they always are."""

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds >= 0:
            raise InvalidValueError(f"seconds is {self.seconds!r}; it must be at least 0, or None for no limit")
        for name in ("domains", "memory", "width", "tried", "every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValueError(f"{name} is {value!r}; it must be at least 1")


class Split(NamedTuple):
    """Number `place` of a node, flattened, is at least (or at most) `point`."""

    node: Node
    place: int
    point: float
    at_least: bool
    size: float = 1.0
    """about how large the coefficients on that number are: the scale of the multiplier's steps"""
    inner: bool = False
    """not of the node's value, but of what its op computes on the way; then there is no multiplier"""


@dataclasses.dataclass(frozen=True, eq=False)
class Domain:
    """A part of the set, and for one objective what was found there."""

    objective: int
    splits: tuple[Split, ...]
    bound: float
    candidates: tuple[Candidate, ...]
    """what to split next, most promising first"""
    chosen: Chosen
    """the free parameters of a whole batch of domains, (batch, 1, ...)"""
    row: int
    """this domain's place in it"""
    target: float | None = None
    """what the coefficient on the last split's number was before it was split, if this is still to be reckoned with"""


class Outcome(NamedTuple):
    """Of every objective, (n,)."""

    bound: Tensor
    """the least bound over all parts"""
    open: Tensor
    """how many parts are not above the goal"""
    domains: int
    """how many were bounded"""
    witness: Tensor | None
    """an input (*shape) at which an objective is not above the goal, if one turned up; its number is `broken`"""
    broken: int | None
    stopped: str
    """why it ended: done, witness, seconds, domains, memory, or exhausted (nothing left to split)"""


Progress = Callable[[float, int, int], None]
"""How far the open parts' bounds are below their goals at most, how many are open, and how many were bounded."""
Accept = Callable[[Tensor, int], bool]
"""Is this input (*shape), at which this objective is not above its goal, what one looks for?"""


def branch_and_bound(
    walk: Walk,
    objectives: Tensor,
    rules: Rules,
    search: Search,
    *,
    known: Tensor | None = None,
    goals: Tensor | None = None,
    accept: Accept | None = None,
    progress: Progress | None = None,
    record: list[Domain] | None = None,
) -> Outcome:
    """Bound objectives (n, *output shape) over the set of a walk whose boxes are made and whose batch is one.

    Every objective is to be above its goal (n,), 0 if there are none; what is `known` (n,) of their bounds is kept. The
    search ends at an input that `accept` takes; by default any at which an objective is not above its goal. `record`
    gets every part that is above its goal, with its parameters: together they cover the set of each objective that is.
    """
    return Tree(walk, objectives, rules, search, known, goals, accept, progress, record).grow()


class Tree:
    """The parts that are open, and what is known of those that are not."""

    def __init__(
        self,
        walk: Walk,
        objectives: Tensor,
        rules: Rules,
        search: Search,
        known: Tensor | None,
        goals: Tensor | None,
        accept: Accept | None,
        progress: Progress | None,
        record: list[Domain] | None = None,
    ) -> None:
        self.record = record
        self.walk, self.objectives, self.search, self.progress, self.accept = walk, objectives, search, progress, accept
        self.goals: list[float] = [0.0] * len(objectives) if goals is None else goals.tolist()
        numbers = sum(math.prod(node.shape) for node in walk.nodes)
        self.rules = dataclasses.replace(rules, free=True)
        self.last = dataclasses.replace(self.rules, sums=numbers <= SMALL)
        """of the pass that surveys a domain"""
        before = [-math.inf] * len(objectives) if known is None else [_number(x) for x in known.tolist()]
        self.closed = [b if b > goal else math.inf for b, goal in zip(before, self.goals, strict=True)]
        """the least bound of the parts that are above the goal, per objective"""
        roots = [Domain(k, (), bound, (), {}, 0) for k, bound in enumerate(before) if not bound > self.goals[k]]
        self.order = itertools.count()
        self.heap = [(self._short(domain), next(self.order), domain) for domain in roots]
        self.stuck: list[Domain] = []
        """open parts with nothing left to split"""
        self.width = search.width or min(256, max(32, TOGETHER // max(1, numbers)))
        boxes = {node: node.op.inner_box(walk.place(node, self.rules)) for node in walk.nodes if node.inputs}
        self.inner = {node: box for node, box in boxes.items() if box is not None}
        """of what ops compute on the way, before anything is split"""
        self.exact = {node for at in walk.nodes if at.op.splits_exactly for node in at.inputs}
        """nodes whose splits leave nothing bent"""
        self.bounded = 0
        self.witness: Tensor | None = None
        self.broken: int | None = None

    def grow(self) -> Outcome:
        """Split, worst first, until nothing is open or a limit is reached."""
        before, search = self.walk.deadline, self.search
        ends = [before, None if search.seconds is None else time.perf_counter() + search.seconds]
        self.walk.deadline = min((end for end in ends if end is not None), default=None)
        stopped = ""
        try:
            with torch.no_grad():
                self._take(len(self.heap), self._bound)
                while not stopped:
                    if self.witness is not None:
                        stopped = "witness"
                    elif not self.heap:
                        stopped = "exhausted" if self.stuck else "done"
                    elif self.bounded >= search.domains:
                        stopped = "domains"
                    elif self._bytes() > search.memory:
                        stopped = "memory"
                    else:
                        self._take(self.width, lambda domains: self._bound(self._split(domains)))
        except OutOfTimeError:
            stopped = "seconds"
        finally:
            self.walk.deadline = before
        return self._outcome(stopped)

    def _take(self, count: int, work: Callable[[list[Domain]], list[Domain]]) -> None:
        """Put what `work` makes of the worst domains in their place; if it does not come to an end, they stay."""
        taken = heapq.nsmallest(count, self.heap)
        made = work([domain for _, _, domain in taken])
        gone = {number for _, number, _ in taken}
        self.heap = [entry for entry in self.heap if entry[1] not in gone]
        for domain in made:
            if self._done(domain):
                self.closed[domain.objective] = min(self.closed[domain.objective], domain.bound)
            elif domain.candidates:
                self.heap.append((self._short(domain), next(self.order), domain))
            else:
                self.stuck.append(domain)
        heapq.heapify(self.heap)
        if self.progress is not None:
            self.progress(min(map(self._short, self._open()), default=math.inf), len(self._open()), self.bounded)

    def _bytes(self) -> int:
        """What the open domains' parameters take."""
        kept = {id(domain.chosen): domain.chosen for domain in self._open()}
        return sum(x.nbytes for chosen in kept.values() for of in chosen.values() for x in of.values())

    def _short(self, domain: Domain) -> float:
        """The bound less the goal."""
        return domain.bound - self.goals[domain.objective]

    def _done(self, domain: Domain) -> bool:
        return domain.bound > self.goals[domain.objective]

    def _open(self) -> list[Domain]:
        return [domain for _, _, domain in self.heap] + self.stuck

    def _outcome(self, stopped: str) -> Outcome:
        bound, count = list(self.closed), [0] * len(self.closed)
        for domain in self._open():
            bound[domain.objective] = min(bound[domain.objective], domain.bound)
            count[domain.objective] += 1
        like = self.objectives
        counts = torch.tensor(count, device=like.device)
        return Outcome(like.new_tensor(bound), counts, self.bounded, self.witness, self.broken, stopped)

    def _split(self, domains: list[Domain]) -> list[Domain]:
        """Both parts of every domain, by the best of its candidates."""
        tries = [domain.candidates[: self.search.tried] for domain in domains]
        parts = [p for domain, each in zip(domains, tries, strict=True) for one in each for p in _parts(domain, one)]
        parts = self._surveyed(parts)
        found: list[Domain] = []
        for each in tries:
            mine, parts = parts[: 2 * len(each)], parts[2 * len(each) :]
            pairs = [(mine[k], mine[k + 1]) for k in range(0, len(mine), 2)]
            best = max(pairs, key=self._promise)
            found += best
        return found

    def _promise(self, pair: tuple[Domain, Domain]) -> float:
        """How good a split is: the worse part counts most; beyond the goal nothing does."""
        short = sorted(min(0.0, self._short(domain)) for domain in pair)
        return short[0] + 0.1 * short[1]

    def _bound(self, domains: list[Domain]) -> list[Domain]:
        """The domains, those optimised whose turn it is."""
        self.bounded += len(domains)
        open_ = [domain for domain in domains if not self._done(domain)]
        ways = [self._way(domain) for domain in open_]
        found = [domain for domain in domains if self._done(domain)]
        found += [domain for domain, way in zip(open_, ways, strict=True) if way is None]
        for ascent in dict.fromkeys(way for way in ways if way is not None):
            due = [domain for domain, way in zip(open_, ways, strict=True) if way == ascent]
            for begin in range(0, len(due), 2 * self.width):
                found += self._ascended(due[begin : begin + 2 * self.width], ascent)
        return self._kept(found)

    def _way(self, domain: Domain) -> Ascent | None:
        """How its parameters are to be optimised, if they are."""
        search, splits = self.search, domain.splits
        if not splits:
            return search.root
        if not domain.candidates:  # nothing left to split: the last chance
            return dataclasses.replace(search.ascent, steps=search.root.steps)
        exact = splits[-1].inner or splits[-1].node in self.exact
        return None if exact and len(splits) % search.every else search.ascent

    def _ascended(self, domains: list[Domain], ascent: Ascent) -> list[Domain]:
        """The domains with their free parameters optimised."""
        sub, held = self.subsets(domains)
        objectives, start = self._objectives(domains), self._start(domains)
        output = self.walk.graph.output
        goal = objectives.new_tensor([[self.goals[domain.objective]] for domain in domains])
        if self.record is not None:  # parameters of what is let go on the way would be lost
            goal = torch.full_like(goal, torch.inf)
        done = optimise(sub, output, objectives, self.rules, ascent, goal=goal, start=start, held=held, keep=True)
        bounds = map(_number, done.bound.squeeze(1).tolist())
        domains = [dataclasses.replace(d, bound=max(b, d.bound)) for d, b in zip(domains, bounds, strict=True)]
        if done.bound.isnan().logical_or(done.bound > goal).all():  # nothing left to ask
            return domains
        return self._surveyed([dataclasses.replace(d, chosen=done.chosen, row=k) for k, d in enumerate(domains)])

    def _surveyed(self, domains: list[Domain]) -> list[Domain]:
        """One backward pass over each domain: its bound, the multiplier of its last split, and what to split next."""
        found = []
        for begin in range(0, len(domains), TRIED * self.width):
            found += self._survey(domains[begin : begin + TRIED * self.width])
        return found

    def _survey(self, domains: list[Domain]) -> list[Domain]:
        sub, _ = self.subsets(domains)
        objectives, chosen = self._objectives(domains), self._start(domains) or {}
        steps: list[tuple[Node, Tensor, Step]] = []

        def watch(at: Node, part: Part, step: Step) -> None:
            if at.op.splits or at in self.inner:
                steps.append((at, part.A, step))

        back = sub.back(self.walk.graph.output, Part(objectives), self.last, chosen, watch=watch)
        bound, corner = back.least(self.walk.boxes[self.walk.start])
        for node, multipliers in back.held.items():
            chosen[node].update(zip(HELD, multipliers, strict=True))
        values = self.walk.graph.values(input_of(self.walk, corner).squeeze(1))
        self._look(values, objectives, domains)
        candidates = most_bent(sub, self.last, steps, values, self.inner, self.search.tried)
        kept = {at: {k: x for k, x in of.items() if k not in TARGETS} for at, of in chosen.items()}
        return [
            dataclasses.replace(
                domain, bound=max(domain.bound, _number(own)), candidates=candidates[k], chosen=kept, row=k, target=None
            )
            for k, (domain, own) in enumerate(zip(domains, bound.squeeze(1).tolist(), strict=True))
        ]

    def _kept(self, domains: list[Domain]) -> list[Domain]:
        """The same, with the parameters of those that are open in single precision, and of no others."""
        if self.record is not None:
            done = [domain for domain in domains if self._done(domain)]
            self.record += [dataclasses.replace(d, chosen=self._stacked([d], torch.float32), row=0) for d in done]
        open_ = [k for k, domain in enumerate(domains) if not self._done(domain) and domain.chosen]
        found = [dataclasses.replace(domain, chosen={}, row=0) for domain in domains]
        if open_:
            kept = self._stacked([domains[k] for k in open_], torch.float32)
            for row, k in enumerate(open_):
                found[k] = dataclasses.replace(domains[k], chosen=kept, row=row)
        return found

    def _objectives(self, domains: list[Domain]) -> Tensor:
        return self.objectives[[domain.objective for domain in domains]].unsqueeze(1)

    def subsets(self, domains: list[Domain]) -> tuple[Subsets, dict[Node, Held]]:
        """The domains as subsets, and where their cut sides have multipliers."""
        boxes: dict[Node, Interval] = {}
        inner: dict[Node, Interval] = {}
        held: dict[Node, Held] = {}
        for node, within in {(split.node, split.inner) for domain in domains for split in domain.splits}:
            whole = self.inner[node] if within else self.walk.boxes[node]
            shape = whole.lower.shape[1:]
            box = Interval(*(x.expand(len(domains), *shape).flatten(1).clone() for x in whole))
            sides = [torch.zeros_like(x) for x in box]
            for at_least, end, side in ((True, box.lower, sides[0]), (False, box.upper, sides[1])):
                cuts = [
                    (k, split)
                    for k, domain in enumerate(domains)
                    for split in domain.splits
                    if split.node is node and split.inner is within and split.at_least is at_least
                ]
                for k, split in cuts:  # later splits of the same number are inside the earlier
                    end[k, split.place] = split.point
                    side[k, split.place] = split.size
            (inner if within else boxes)[node] = Interval(*(x.reshape(-1, *shape) for x in box))
            if not within:
                held[node] = Held(*(x.reshape(-1, 1, *shape) for x in sides))
        return Subsets(self.walk, boxes, len(domains), inner), held

    def _stacked(self, domains: list[Domain], dtype: torch.dtype) -> dict[Node, dict[str, Tensor]]:
        """The domains' parameters beside each other, (domains, 1, ...); a multiplier that one does not have is 0."""
        found: dict[Node, dict[str, Tensor]] = {}
        shapes = {
            (at, name): x.shape[2:]
            for chosen in {id(domain.chosen): domain.chosen for domain in domains}.values()
            for at, of in chosen.items()
            for name, x in of.items()
        }
        for (at, name), shape in shapes.items():
            zero = torch.zeros(1, *shape, dtype=dtype, device=self.objectives.device)
            parts = [domain.chosen.get(at, {}).get(name) for domain in domains]
            rows = [zero if x is None else x[domain.row] for x, domain in zip(parts, domains, strict=True)]
            found.setdefault(at, {})[name] = torch.stack([row.to(dtype) for row in rows])
        return found

    def _start(self, domains: list[Domain]) -> dict[Node, dict[str, Tensor]] | None:
        """The parents' parameters; and the target of every last split that is new."""
        if not any(domain.chosen for domain in domains):
            return None
        found = self._stacked(domains, self.objectives.dtype)
        for k, domain in enumerate(domains):
            if domain.target is None:
                continue
            split = domain.splits[-1]
            sides = found.setdefault(split.node, {})
            shape = (len(domains), 1, *split.node.shape)
            for name in HELD:
                sides.setdefault(name, self.objectives.new_zeros(shape))
            for name in TARGETS:
                sides.setdefault(name, self.objectives.new_full(shape, torch.nan))
            sides[TARGETS[not split.at_least]].view(len(domains), -1)[k, split.place] = domain.target
        return found

    def _look(self, values: dict[Node, Tensor], objectives: Tensor, domains: list[Domain]) -> None:
        """Is an objective not above its goal at one of the inputs of these values, the worst first?"""
        graph = self.walk.graph
        goals = objectives.new_tensor([self.goals[domain.objective] for domain in domains])
        short = (objectives.squeeze(1) * values[graph.output]).flatten(1).sum(-1) - goals
        for k in short.argsort().tolist()[:LOOKED_AT]:
            if self.witness is not None or not float(short[k]) <= 0:
                return
            point = values[graph.input][k]
            if self.accept is None or self.accept(point, domains[k].objective):
                self.witness, self.broken = point, domains[k].objective


def _parts(domain: Domain, candidate: Candidate) -> tuple[Domain, Domain]:
    """At least, and at most."""
    node, place, point, slope, inner = candidate
    size = abs(slope) if slope != 0 and math.isfinite(slope) else 1.0
    target = None if inner else slope
    first, second = (
        dataclasses.replace(
            domain, splits=(*domain.splits, Split(node, place, point, side, size, inner)), target=target
        )
        for side in (True, False)
    )
    return first, second


def _number(x: float) -> float:
    """A bound that is none is −inf."""
    return -math.inf if math.isnan(x) else x
