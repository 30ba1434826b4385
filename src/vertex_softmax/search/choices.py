"""Branching on choices of words: decide objectives over all combinations, by bounds on parts and by evaluation.

Invariant: the open parts, the closed parts and the combinations that were evaluated cover the set. A part is closed
only if the bounds of all its objectives exceed what rounding can have added. So if no part is open, and no combination
was found at which an objective is not positive, all objectives are positive over the whole set.

A part allows some of the choices of each word. It is bounded by boxes and one backward pass over them under the affine
vertex rule. The boxes come from intervals, which know the choices of the first layer exactly, and from zonotopes if
there are norms. After some parts, boxes by passes are tried on the whole set: they take longer, and are tighter in most
networks. Which kind is used from then on is a matter of time alone.

The linear bound of a part shows which word matters most, and which combination is the likeliest counterexample. The
list of that word is cut in two, between choices that lower the bound and those that do not. All combinations of a part
with few of them are evaluated.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import time
from collections.abc import Callable
from enum import StrEnum

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.box_passes import all_boxes
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.underflow import with_underflow
from vertex_softmax.bounds.zonotopes import boxes_by_zonotopes
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.foundation.tolerances import VERDICT
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.boxes import boxes_by_passes
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.choice_region import ChoiceRegion

FEW = 32
"""Parts with at most this many combinations are evaluated, which costs about as much as a bound."""
WIDTH = 32
"""How many parts are split in one batch."""
EVALUATED = 512
"""How many combinations go through the network in one batch."""
STARTS, STEPS = 8, 8
"""From how many combinations the attack starts, and how many times it follows the gradient."""
PATIENCE = 64
"""After this many parts, boxes by passes are tried."""
SHARE = 0.2
"""The share of the remaining time that this trial may take."""
OPTIONS = Options()
ROUNDS = 6
"""How many times the attack then changes the best single word, at most."""

Accept = Callable[[Tensor], bool]
"""Whether a combination (*input shape) at which an objective is not positive is a counterexample beyond doubt."""


class Ending(StrEnum):
    """Why the search ended."""

    DONE = "done"
    """every combination is covered, and none is a counterexample"""
    WITNESS = "witness"
    """a combination was accepted as a counterexample"""
    SECONDS = "seconds"
    DOMAINS = "domains"
    DOUBT = "doubt"
    """combinations are left whose margins are too close to 0, or not finite"""


@dataclasses.dataclass(frozen=True, eq=False)
class Decision:
    """The result of the search."""

    lower: Tensor
    """(S,): lower bounds over all combinations, less what rounding can have added; −inf where none is known"""
    stopped: Ending
    parts: int
    """how many parts were bounded"""
    evaluated: int
    """how many combinations were evaluated"""
    witness: Tensor | None = None
    """the counterexample, (*input shape)"""


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """A part: a set of combinations, with bounds of the objectives there."""

    allowed: Tensor
    """(groups, choices), bool"""
    lower: Tensor
    """(S,): bounds of the objectives, less what rounding can have added"""
    doubt: Tensor
    """(S,): how far above 0 an evaluated objective has to be; inf: evaluations allow no conclusion"""
    slopes: Tensor
    """(groups, choices): what each choice contributes to the worst objective's linear bound, inf where it is not
    allowed"""

    @property
    def combinations(self) -> int:
        return math.prod(self.allowed.sum(-1).tolist())

    def split(self) -> list[Tensor]:
        """The allowed choices of the two halves of this part: the list of the word that matters most is cut in two."""
        spread = self.slopes.masked_fill(~self.allowed, -torch.inf).amax(-1) - self.slopes.amin(-1)
        spread = spread.nan_to_num(nan=0.0).masked_fill(self.allowed.sum(-1) < 2, -1.0)
        word = int(spread.argmax())
        ordered, order = self.slopes[word].sort()
        count = int(self.allowed[word].sum())
        cut = 1 + int((ordered[1:count] - ordered[: count - 1]).nan_to_num(nan=0.0).argmax())
        halves = []
        for some in (order[:cut], order[cut:count]):
            allowed = self.allowed.clone()
            allowed[word] = False
            allowed[word, some] = True
            halves.append(allowed)
        return halves


def decide(
    graph: Graph, region: ChoiceRegion, objectives: Tensor, search: Search, accept: Accept | None = None
) -> Decision:
    """Decide whether every objective (S, *output shape) is positive at all combinations of a region with one input."""
    return _WordTree(graph, region, objectives, search, accept or (lambda _: True)).grow()


class _WordTree:
    """The state of the search."""

    def __init__(self, graph: Graph, region: ChoiceRegion, objectives: Tensor, search: Search, accept: Accept) -> None:
        deadline = None if search.seconds is None else time.perf_counter() + search.seconds
        self.question = Question.over(graph, region, deadline=deadline)
        self.graph, self.region, self.objectives, self.accept = graph, region, objectives, accept
        self.search = search
        self.norms = any(isinstance(node.op, Normalize) for node in self.question.index.nodes)
        self.open: list[tuple[float, int, _Part]] = []
        self.closed = torch.full((len(objectives),), torch.inf, dtype=objectives.dtype, device=objectives.device)
        self.left: list[Tensor] = []
        """the bounds of single combinations that could not be decided"""
        self.parts = self.evaluated = 0
        self.witness: Tensor | None = None
        self.count = itertools.count()
        self.least = math.inf
        """the least objective that was evaluated"""
        self.tried = False
        """whether boxes by passes were tried"""
        self.passes = False
        """whether parts are bounded over boxes by passes"""

    def grow(self) -> Decision:
        """Attack, then split the worst parts until none is open or a limit is reached."""
        stopped: Ending | None = None
        try:
            self._attack()
            if self.witness is None:
                self._bound([self.region.allowed[0]])
            while stopped is None:
                if self.witness is not None:
                    stopped = Ending.WITNESS
                elif not self.open:
                    stopped = Ending.DOUBT if self.left else Ending.DONE
                elif self.parts >= self.search.domains:
                    stopped = Ending.DOMAINS
                elif not self.tried and self.parts >= PATIENCE:
                    self._try_passes()
                else:
                    self._advance()
        except OutOfTimeError:
            stopped = Ending.SECONDS
        lower = self.closed
        for bound in (*(part.lower for _, _, part in self.open), *self.left):
            lower = torch.minimum(lower, bound)
        if not self.parts and stopped is not Ending.DONE:
            lower = torch.full_like(lower, -torch.inf)
        return Decision(lower, stopped, self.parts, self.evaluated, self.witness)

    def _advance(self) -> None:
        """Split the worst parts, and bound or evaluate their halves."""
        taken = [heapq.heappop(self.open) for _ in range(min(self.search.width or WIDTH, len(self.open)))]
        try:
            few: list[tuple[_Part, Tensor]] = []
            many: list[tuple[_Part, Tensor]] = []
            for _, _, part in taken:
                for allowed in part.split():
                    count = math.prod(allowed.sum(-1).tolist())
                    known = bool(part.doubt.isfinite().all())
                    (few if count <= FEW and known else many).append((part, allowed))
            closed, left, made = self.closed, list(self.left), list(self.open)
            self._evaluate_parts(few)
            if self.witness is None and many:
                self._bound([allowed for _, allowed in many], [part for part, _ in many])
        except OutOfTimeError:
            self.closed, self.left, self.open = closed, left, made
            for item in taken:
                heapq.heappush(self.open, item)
            raise

    # Bounds ----------------------------------------------------------------------------------------------------------

    def _bound(self, allowed: list[Tensor], parents: list[_Part] | None = None) -> None:
        """Bound parts in batches; those that are not closed become open."""
        width = 2 * (self.search.width or WIDTH)
        for begin in range(0, len(allowed), width):
            some = allowed[begin : begin + width]
            over = None if parents is None else parents[begin : begin + width]
            self._bound_together(torch.stack(some), over)

    def _bound_together(self, allowed: Tensor, parents: list[_Part] | None) -> None:
        sure, doubt, by_word = self._bounds(allowed)
        self.parts += len(allowed)
        if parents is not None:
            sure = torch.maximum(sure, torch.stack([parent.lower for parent in parents]))
        worst = sure.argmin(1).reshape(-1, 1, 1, 1).expand(-1, 1, *by_word.shape[2:])
        self._store(allowed, sure, doubt, by_word.gather(1, worst).squeeze(1))

    def _bounds(self, allowed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds of parts (parts, groups, choices) less what rounding can have added; that allowance; slopes by word.

        The first two are (parts, S), the slopes (parts, S, groups, choices).
        """
        count = len(allowed)
        question = self.question.about(self.region.restricted(allowed))
        with torch.no_grad():
            boxes = self._boxes(question)
            C = self.objectives.unsqueeze(0).expand(count, *self.objectives.shape)
            objective = Objective.dense(self.graph.output, C)
            linear = backward(question, boxes, objective, Rules(attention=RowRule.AFFINE), wanted=Wanted(size=True))
            lower = linear.least(question.region)
        doubt = VERDICT[lower.dtype] * (torch.zeros_like(lower) if linear.size is None else linear.size)
        for problem in boxes.problems:
            doubt = doubt.masked_fill(problem.where.expand(count)[:, None], torch.inf)
        doubt = torch.where(doubt.isnan() | lower.isnan(), torch.full_like(doubt, torch.inf), doubt)
        sure = torch.where(doubt.isfinite(), lower - doubt, torch.full_like(lower, -torch.inf))
        region, slopes = question.region, linear.coefficients
        if slopes is None or not isinstance(region, ChoiceRegion):
            return sure, doubt, lower.new_zeros(*lower.shape, *allowed.shape[1:])
        return sure, doubt, region.by_choice(slopes)

    def _try_passes(self) -> None:
        """Bound the whole set over boxes by passes, within a share of the time, and decide which kind of boxes to use.

        That is the kind whose time is less, multiplied by the third power of the gap between the bound and the least
        evaluated objective: a guess from small networks.
        """
        self.tried = True
        clock, allowed = self.question.clock, self.region.allowed
        end = None if clock.deadline is None else time.perf_counter() + SHARE * (clock.deadline - time.perf_counter())
        whole = self.question
        costs = []
        for passes in (False, True):
            self.passes, self.question = passes, whole.until(end)
            begin = time.perf_counter()
            try:
                lower, _, _ = self._bounds(allowed)
            except OutOfTimeError:
                costs.append(math.inf)
                continue
            finally:
                self.question = whole
            gap = max(self.least - float(lower.min()), 0.0)
            costs.append((time.perf_counter() - begin) * gap**3)
        self.passes = costs[1] < costs[0]

    def _boxes(self, question: Question) -> Boxes:
        if self.passes:
            return boxes_by_passes(question, RowRule.AFFINE, OPTIONS)
        learnt = boxes_by_zonotopes(question) if self.norms else None
        return with_underflow(question, all_boxes(question, learnt=learnt))

    def _store(self, allowed: Tensor, sure: Tensor, doubt: Tensor, slopes: Tensor) -> None:
        """Close parts or open them; evaluate the combination at which the linear bound of each open part is least."""
        closed = (sure > 0).all(1)
        if bool(closed.any()):
            self.closed = torch.minimum(self.closed, sure[closed].amin(0))
        tried = []
        for i in (~closed).nonzero().flatten().tolist():
            part = _Part(allowed[i], sure[i], doubt[i], slopes[i])
            if part.combinations == 1:
                self.left.append(part.lower)
                continue
            heapq.heappush(self.open, (float(part.lower.min()), next(self.count), part))
            tried.append(part.slopes.nan_to_num(nan=torch.inf).masked_fill(~part.allowed, torch.inf).argmin(-1))
        if tried:
            self._evaluate(torch.stack(tried))

    # Combinations ----------------------------------------------------------------------------------------------------

    def _evaluate(self, which: Tensor) -> Tensor:
        """The objectives (n, S) at combinations of choices (n, groups); a negative one may end the search."""
        found = []
        for some in which.split(EVALUATED):
            self.question.clock.check()
            points = self.region.points(some.unsqueeze(0))[0]
            with torch.no_grad():
                found.append(self._margins(points))
            self.evaluated += len(some)
            worst, at = found[-1].nan_to_num(nan=torch.inf).amin(1).min(0)
            self.least = min(self.least, float(worst))
            if float(worst) < 0 and self.witness is None and self.accept(points[at]):
                self.witness = points[at]
                break
        return torch.cat(found)

    def _margins(self, points: Tensor) -> Tensor:
        """The objectives at points (n, *input shape), (n, S)."""
        return self.graph.evaluate(points).flatten(1) @ self.objectives.flatten(1).mT

    def _evaluate_parts(self, parts: list[tuple[_Part, Tensor]]) -> None:
        """Evaluate every combination of small parts; those too close to 0 are bounded as parts of their own."""
        if not parts:
            return
        which, doubts = [], []
        for parent, allowed in parts:
            lists = [row.nonzero().flatten() for row in allowed]
            every = torch.cartesian_prod(*lists).reshape(-1, len(lists))
            which.append(every)
            doubts.append(parent.doubt.expand(len(every), -1))
        whole, doubt = torch.cat(which), torch.cat(doubts)
        margins = self._evaluate(whole)
        if self.witness is not None:
            return
        sure = margins - doubt
        fine = (sure > 0).all(1)  # NaN is not
        if bool(fine.any()):
            self.closed = torch.minimum(self.closed, sure[fine].amin(0))
        unsure = whole[~fine]
        if len(unsure):
            alone = torch.zeros(len(unsure), *self.region.allowed.shape[1:], dtype=torch.bool, device=whole.device)
            alone.scatter_(2, unsure.unsqueeze(-1), True)
            self._bound(list(alone))

    # Attack ----------------------------------------------------------------------------------------------------------

    def _attack(self) -> None:
        """Attack: follow the gradient from some combinations, then change the best one word by word."""
        allowed = self.region.allowed[0]
        if not allowed.shape[0]:
            return
        generator = torch.Generator().manual_seed(0)
        draws = torch.rand(STARTS, *allowed.shape, generator=generator).to(allowed.device)
        which = draws.masked_fill(~allowed, -1.0).argmax(-1)
        which[0] = allowed.to(torch.int8).argmax(-1)
        best, least = which[0], math.inf
        for step in range(STEPS):
            self.question.clock.check()
            points = self.region.points(which.unsqueeze(0))[0].requires_grad_()
            with torch.enable_grad():
                margins = self._margins(points)
                (gradient,) = torch.autograd.grad(margins.amin(1).sum(), points)
            worst, at = margins.detach().amin(1).nan_to_num(nan=torch.inf).min(0)
            if float(worst) < least:
                best, least = which[at], float(worst)
            if least < 0:
                break
            values = self.region.by_choice(gradient.unsqueeze(0).nan_to_num(nan=0.0))[0]  # (starts, groups, choices)
            low, other = values.min(-1)
            gain = values.gather(-1, which.unsqueeze(-1)).squeeze(-1) - low
            count = max(1, math.ceil(gain.shape[1] * (1 - step / STEPS) / 2))
            rank = gain.argsort(-1, descending=True).argsort(-1)
            which = torch.where(rank < count, other, which)
        for _ in range(ROUNDS):
            near = self._neighbours(best)
            margins = self._evaluate(torch.cat([best.unsqueeze(0), near])).amin(1).nan_to_num(nan=torch.inf)
            if self.witness is not None or int(margins.argmin()) == 0:
                return
            best = near[int(margins.argmin()) - 1]

    def _neighbours(self, which: Tensor) -> Tensor:
        """All combinations that differ from one (groups,) in a single word, (n, groups)."""
        other = self.region.allowed[0].clone()
        other.scatter_(1, which.unsqueeze(1), False)
        word, choice = other.nonzero().unbind(1)
        near = which.repeat(len(word), 1)
        near[torch.arange(len(word), device=near.device), word] = choice
        return near
