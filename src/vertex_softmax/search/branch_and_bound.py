"""Branch and bound: where one bound is not enough, split the set until the bounds of all parts are.

Invariant: the parts of every split cover what was split, and a part's bound is never below that of what it is a part
of. So the least bound over all parts is a lower bound over the whole set at any time, and never falls.

A part (domain) is an objective and the splits on the way to it: number k of node z is ≥ c, or ≤ c. Both parts of a
split hold the point c itself. The splits cut the boxes of what they are on (bounds/subsets.py), their multipliers are
optimised with all other free parameters from the parent's values on, and every box that is not cut is the root's.

What to split is asked of the bound: at the input where it is least, every op says for each number of its input how much
the linear bound may lose for knowing that number by its interval only (`Op.bend`). The few most promising are tried.
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

from vertex_softmax.bounds.backward import HELD, Walk
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.bounds.optimize import Ascent, Chosen, Held, optimise
from vertex_softmax.bounds.slack import input_of
from vertex_softmax.bounds.subsets import Subsets
from vertex_softmax.errors import InvalidValueError, OutOfTimeError
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops.registry import Interval, Rules, Step

LOOKED_AT = 3
"""How many inputs of a batch of domains are shown to `accept`, at most."""
TRIED = 256
"""How many parts are tried together."""


@dataclasses.dataclass(frozen=True)
class Search:
    """How far to go."""

    seconds: float | None = 10.0
    """stop after these; None: no limit but the domains'"""
    domains: int = 100_000
    """stop after bounding so many"""
    memory: int = 1 << 30
    """stop when the parameters of open domains take more bytes than this"""
    width: int = 32
    """how many domains are bounded together"""
    tried: int = 2
    """how many splits are tried before one is chosen"""
    root: Ascent = dataclasses.field(default_factory=Ascent)
    """of the whole set, before anything is split"""
    ascent: Ascent = dataclasses.field(default_factory=lambda: Ascent(steps=8, step_size=0.01, decay=0.97, sums=False))
    """of a domain, from its parent's parameters on"""
    every: int = 8
    """the parameters of a domain are optimised after every so many splits; between, only multipliers are new"""

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds >= 0:
            raise InvalidValueError(f"seconds is {self.seconds!r}; it must be at least 0, or None for no limit")
        for name in ("domains", "memory", "width", "tried", "every"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} is {getattr(self, name)!r}; it must be at least 1")


class Split(NamedTuple):
    """Number `place` of a node, flattened, is at least (or at most) `point`."""

    node: Node
    place: int
    point: float
    at_least: bool
    size: float = 1.0
    """about how large the coefficients on that number are: the scale of the multiplier's steps"""


class Candidate(NamedTuple):
    """What may be split: number `place` of a node, flattened, at a point; `slope` is the bound's coefficient on it."""

    node: Node
    place: int
    point: float
    slope: float


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
    slope: float = 0.0
    """of the last split's number, before it was split"""
    multiplier: float = 0.0
    """of the last split, to begin with"""


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
) -> Outcome:
    """Bound objectives (n, *output shape) over the set of a walk whose boxes are made and whose batch is one.

    Every objective is to be above its goal (n,), 0 if there are none; what is `known` (n,) of their bounds is kept. The
    search ends at an input that `accept` takes; by default any at which an objective is not above its goal.
    """
    return _Tree(walk, objectives, rules, search, known, goals, accept, progress).grow()


class _Tree:
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
    ) -> None:
        self.walk, self.objectives, self.search, self.progress, self.accept = walk, objectives, search, progress, accept
        self.goals: list[float] = [0.0] * len(objectives) if goals is None else goals.tolist()
        self.rules = dataclasses.replace(rules, free=True)
        before = [-math.inf] * len(objectives) if known is None else [_number(x) for x in known.tolist()]
        self.closed = [b if b > goal else math.inf for b, goal in zip(before, self.goals, strict=True)]
        """the least bound of the parts that are above the goal, per objective"""
        roots = [Domain(k, (), bound, (), {}, 0) for k, bound in enumerate(before) if not bound > self.goals[k]]
        self.order = itertools.count()
        self.heap = [(self._short(domain), next(self.order), domain) for domain in roots]
        self.stuck: list[Domain] = []
        """open parts with nothing left to split"""
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
                        self._take(search.width, lambda domains: self._bound(self._split(domains)))
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
        quick: list[float] = []
        ready: list[Domain] = []
        for begin in range(0, len(parts), TRIED):
            some = self._with_multipliers(parts[begin : begin + TRIED])
            ready += some
            quick += self._quick(some)
        found, at = [], 0
        for domain, each in zip(domains, tries, strict=True):
            pairs = [(at + 2 * k, at + 2 * k + 1) for k in range(len(each))]
            goal = self.goals[domain.objective]
            best = max(pairs, key=lambda pair: _promise(quick[pair[0]], quick[pair[1]], goal))
            found += [dataclasses.replace(ready[k], bound=max(ready[k].bound, quick[k])) for k in best]
            at += 2 * len(each)
        return found

    def _quick(self, domains: list[Domain]) -> list[float]:
        """Bounds with the parents' parameters, as they are."""
        sub, _ = self._subsets(domains)
        bound = sub.bound(self.walk.graph.output, Part(self._objectives(domains)), self.rules, self._start(domains))
        return [_number(x) for x in bound.squeeze(1).tolist()]

    def _with_multipliers(self, domains: list[Domain]) -> list[Domain]:
        """The last split's multiplier such that further back the coefficients are what they were before the split.

        A relaxation over a narrower interval may be steeper, which is worse where the interval does not hold. What the
        slope has more than before is taken by the side that was cut, if it is of that sign.
        """
        slopes: dict[Node, Tensor] = {}

        def watch(at: Node, _part: Part, step: Step) -> None:
            for i in at.op.splits:
                slope = step.coefficients[i]
                if slope is not None:
                    slopes[at.inputs[i]] = slope.flatten(1)

        sub, _ = self._subsets(domains)
        output = self.walk.graph.output
        sub.back(output, Part(self._objectives(domains)), self.rules, self._start(domains), watch=watch)
        found = []
        for k, domain in enumerate(domains):
            split = domain.splits[-1]
            now = float(slopes[split.node][k, split.place]) if split.node in slopes else domain.slope
            more = now - domain.slope if split.at_least else domain.slope - now
            last = split._replace(size=max(abs(now), abs(domain.slope)))
            multiplier = more if more > 0 and math.isfinite(more) else 0.0
            found.append(dataclasses.replace(domain, splits=(*domain.splits[:-1], last), multiplier=multiplier))
        return found

    def _bound(self, domains: list[Domain]) -> list[Domain]:
        """The domains, those optimised whose turn it is; each that is open then knows what may be split next."""
        self.bounded += len(domains)
        open_ = [domain for domain in domains if not self._done(domain)]
        turns = [len(domain.splits) % self.search.every == 0 for domain in open_]
        found = [domain for domain in domains if self._done(domain)]
        for turn in (True, False):
            some = [domain for domain, its in zip(open_, turns, strict=True) if its is turn]
            for begin in range(0, len(some), 2 * self.search.width):
                found += self._bound_together(some[begin : begin + 2 * self.search.width], ascend=turn)
        return found

    def _bound_together(self, domains: list[Domain], *, ascend: bool) -> list[Domain]:
        sub, held = self._subsets(domains)
        objectives, start = self._objectives(domains), self._start(domains)
        chosen: Chosen = start or {}
        if ascend:
            search, output = self.search, self.walk.graph.output
            goal = objectives.new_tensor([[self.goals[domain.objective]] for domain in domains])
            ascent = search.ascent if domains[0].splits else search.root
            done = optimise(sub, output, objectives, self.rules, ascent, goal=goal, start=start, held=held, keep=True)
            chosen, bounds = done.chosen, map(_number, done.bound.squeeze(1).tolist())
            domains = [dataclasses.replace(d, bound=max(b, d.bound)) for d, b in zip(domains, bounds, strict=True)]
            if all(map(self._done, domains)):
                return domains
        candidates = self._candidates(sub, domains, objectives, chosen)
        kept = {at: {name: x.to(torch.float32) for name, x in of.items()} for at, of in chosen.items()}
        return [
            dataclasses.replace(domain, candidates=candidates[k], chosen=kept, row=k, multiplier=0.0)
            for k, domain in enumerate(domains)
        ]

    def _objectives(self, domains: list[Domain]) -> Tensor:
        return self.objectives[[domain.objective for domain in domains]].unsqueeze(1)

    def _subsets(self, domains: list[Domain]) -> tuple[Subsets, dict[Node, Held]]:
        """The domains as subsets, and where their cut sides have multipliers."""
        boxes: dict[Node, Interval] = {}
        held: dict[Node, Held] = {}
        for node in {split.node for domain in domains for split in domain.splits}:
            box = Interval(*(x.expand(len(domains), *node.shape).flatten(1).clone() for x in self.walk.boxes[node]))
            sides = [torch.zeros_like(x) for x in box]
            for at_least, end, side in ((True, box.lower, sides[0]), (False, box.upper, sides[1])):
                cuts = [
                    (k, split)
                    for k, domain in enumerate(domains)
                    for split in domain.splits
                    if split.node is node and split.at_least is at_least
                ]
                for k, split in cuts:  # later splits of the same number are inside the earlier
                    end[k, split.place] = split.point
                    side[k, split.place] = split.size
            boxes[node] = Interval(*(x.reshape(-1, *node.shape) for x in box))
            held[node] = Held(*(x.reshape(-1, 1, *node.shape) for x in sides))
        return Subsets(self.walk, boxes, len(domains)), held

    def _start(self, domains: list[Domain]) -> Chosen | None:
        """The parents' parameters, beside each other; multipliers that a parent does not have begin as said."""
        if not domains[0].chosen:
            return None
        found: dict[Node, dict[str, Tensor]] = {}
        shapes = {(at, name): x.shape[2:] for d in domains for at, of in d.chosen.items() for name, x in of.items()}
        for (at, name), shape in shapes.items():
            zero = torch.zeros(1, *shape, device=self.objectives.device)
            parts = [domain.chosen.get(at, {}).get(name) for domain in domains]
            rows = [zero if x is None else x[d.row] for x, d in zip(parts, domains, strict=True)]
            found.setdefault(at, {})[name] = torch.stack(rows).to(self.objectives.dtype)
        for k, domain in enumerate(domains):
            split = domain.splits[-1]
            sides = found.setdefault(split.node, {})
            for name in HELD:
                if name not in sides:
                    sides[name] = self.objectives.new_zeros(len(domains), 1, *split.node.shape)
            sides[HELD[not split.at_least]].view(len(domains), -1)[k, split.place] += domain.multiplier
        return found

    def _candidates(
        self, sub: Subsets, domains: list[Domain], objectives: Tensor, chosen: Chosen
    ) -> list[tuple[Candidate, ...]]:
        """What to split in every domain; besides, looks at the inputs where the bounds are least."""
        walk, graph = self.walk, self.walk.graph
        steps: list[tuple[Node, Tensor, Step]] = []
        found = sub.back(
            graph.output,
            Part(objectives),
            self.rules,
            chosen,
            watch=lambda at, part, step: steps.append((at, part.A, step)),
        )
        box = walk.boxes[walk.start]
        slopes = torch.zeros_like(box.centre).unsqueeze(1) if found.coefficients is None else found.coefficients
        corner = (box.centre.unsqueeze(1) - box.radius.unsqueeze(1) * slopes.sign()).expand(
            len(domains), 1, *walk.start.shape
        )
        points = input_of(walk, corner).squeeze(1)
        values = graph.values(points)
        self._look(points, (objectives.squeeze(1) * values[graph.output]).flatten(1).sum(-1), domains)
        scores, numbers, cuts, slants = [], [], [], []
        places: list[Node] = []
        for at, A, step in steps:
            for i in at.op.splits:
                node, slope = at.inputs[i], step.coefficients[i]
                if slope is None or isinstance(node.op, Constant) or node in (graph.input, walk.start):
                    continue
                low, high = (x.unsqueeze(1) for x in sub.boxes[node])
                x = values[node].unsqueeze(1)
                point = at.op.split_point(i, Interval(low, high), torch.minimum(torch.maximum(x, low), high))
                inputs = tuple(values[other].unsqueeze(1) for other in at.inputs)
                bend = at.op.bend(i, A, slope, inputs, (low, point, high))
                inside = (point > low) & (point < high)
                bend = torch.where(inside & bend.isfinite(), bend, torch.zeros_like(bend)).flatten(1)
                best = bend.topk(min(self.search.tried, bend.shape[1]), dim=1)
                scores.append(best.values)
                numbers.append(best.indices)
                cuts.append(point.expand(len(domains), 1, *node.shape).flatten(1).gather(1, best.indices))
                slants.append(slope.flatten(1).gather(1, best.indices))
                places += [node] * best.indices.shape[1]
        if not scores:
            return [()] * len(domains)
        top = torch.cat(scores, 1).topk(min(self.search.tried, len(places)), dim=1)
        details = [torch.cat(x, 1).gather(1, top.indices).tolist() for x in (numbers, cuts, slants)]
        return [
            tuple(Candidate(places[w], *rest) for score, w, *rest in zip(*row, strict=True) if score > 0)
            for row in zip(top.values.tolist(), top.indices.tolist(), *details, strict=True)
        ]

    def _look(self, points: Tensor, values: Tensor, domains: list[Domain]) -> None:
        """Is an objective not above its goal at one of these inputs, the worst first?"""
        short = values - values.new_tensor([self.goals[domain.objective] for domain in domains])
        for k in short.argsort().tolist()[:LOOKED_AT]:
            if self.witness is not None or not float(short[k]) <= 0:
                return
            if self.accept is None or self.accept(points[k], domains[k].objective):
                self.witness, self.broken = points[k], domains[k].objective


def _parts(domain: Domain, candidate: Candidate) -> tuple[Domain, Domain]:
    """At least, and at most."""
    node, place, point, slope = candidate
    first, second = (
        dataclasses.replace(
            domain, splits=(*domain.splits, Split(node, place, point, side)), candidates=(), slope=slope
        )
        for side in (True, False)
    )
    return first, second


def _promise(a: float, b: float, goal: float) -> float:
    """How good a split is, from quick bounds of its parts: the worse part counts most; beyond the goal nothing does."""
    a, b = min(a, goal), min(b, goal)
    return min(a, b) + 0.1 * max(a, b)


def _number(x: float) -> float:
    """A bound that is none is −inf."""
    return -math.inf if math.isnan(x) else x
