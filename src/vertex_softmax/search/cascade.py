"""The cascade behind `vertex verify`: attack, crown, joint, and branch and bound, within one budget of time.

Invariant: the answer is `verified` only if for every case and every conjunction a bound excludes it over the whole box,
by more than rounding can have added (tolerances.PROPERTY); `falsified` only with a counterexample that a replay has
confirmed. Every other answer is `unknown`, or `timeout` if the time was too short.

What is cheap comes first: a few batches of the attack, then crown. Before joint the attack continues for half as long
as the bounds have taken so far; before branch and bound, or at the end, until its share is spent. So only a property
that stays open pays for the whole attack. If crown has boxes several times sooner than joint, a tree over these is
tried at once, as long as it promises to end. If it leaves a single conjunction open, joint does not run: its boxes are
made over what is left of the set. A stage that may need more memory than `Options.memory` allows is left out, and a
stage that runs out of memory ends; the other stages still count. If crown is left out, ibp takes its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from vertex_softmax.bounds.aims import rates
from vertex_softmax.bounds.branch_and_bound import Aim, Outcome, Stop, Watchers
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.guard import terms
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.record import Record
from vertex_softmax.foundation.errors import InvalidValueError, NotEnoughMemoryError, OutOfTimeError, is_out_of_memory
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.foundation.tolerances import TIE
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bab import branch, branch_early, root_options, rules_of
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.crown import has_cheaper_boxes
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS, Method, lower_bounds
from vertex_softmax.methods.third_order import is_meant, to_third_order
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.search.answers import Answer, Budget, CaseSearch
from vertex_softmax.search.branching import AFFINE, Branching, BranchRequest, moving_question, question_over
from vertex_softmax.search.falsify import Found, PausedSearch, paused_search
from vertex_softmax.search.guards import bound_mixes, guard
from vertex_softmax.search.replay import Counterexample
from vertex_softmax.search.second_attack import SecondAttack
from vertex_softmax.search.stages import (
    AGAIN,
    CASCADE,
    INSIDE,
    STILL_ROWS,
    THIRD_ORDER,
    Stage,
    fitting_stages,
    third_order_refusal,
)
from vertex_softmax.search.targets import Target, targets_of
from vertex_softmax.search.visits import Confirm
from vertex_softmax.specs.property import Case, Property

FIRST_BATCHES = 24
"""The batches of the attack before the first bound: the centres, then short descents and samples in turn."""
ATTACK_SHARE = 0.5
"""Between two bounds the attack continues until it has taken this share of the bounds' time."""
PIECE = 0.1
"""The seconds of a piece of the second attack while other processes do branch and bound."""


Report = Callable[[str, str], None]
"""Called with the name of a stage and a message about it."""


@full_precision()
def verify(
    graph: Graph,
    prop: Property,
    confirm: Confirm,
    *,
    budget: Budget | None = None,
    method: str = "bab",
    options: Options | None = None,
    seed: int = 0,
    report: Report | None = None,
    branching: Branching | None = None,
    recorded: bool = False,
) -> Answer:
    """Answer whether the property holds of a network; `confirm` replays candidates on the original model.

    method: how far the cascade goes, one of CASCADE; or one of METHODS, which then runs alone after the attack.
    branching: what does branch and bound; None: this process. recorded: whether the answer contains its searches.
    """
    if method not in CASCADE and method not in METHODS:
        known = ", ".join(dict.fromkeys((*CASCADE, *METHODS)))
        raise InvalidValueError(f"method is {method!r}; choose one of {known}")
    prop.require(graph.input.shape, graph.output.shape)
    say = report or (lambda _stage, _text: None)
    task = _Task(graph, prop, confirm, method, options or Options(), seed, say, branching, recorded)
    return _Cascade(task, budget or Budget()).run()


@dataclasses.dataclass(frozen=True, eq=False)
class _Task:
    """The arguments of `verify`."""

    graph: Graph
    prop: Property
    confirm: Confirm
    method: str
    options: Options
    seed: int
    say: Report
    branching: Branching | None = None
    recorded: bool = False


class _Found(Exception):  # noqa: N818
    """Raised when a counterexample is found."""

    def __init__(self, counterexample: Counterexample, stage: str) -> None:
        super().__init__(stage)
        self.counterexample, self.stage = counterexample, stage


class _Cascade:
    """One run of the stages over all cases of a property."""

    def __init__(self, task: _Task, budget: Budget) -> None:
        self.task, self.budget = task, budget
        self.graph, self.prop, self.options, self.say = task.graph, task.prop, task.options, task.say
        graph, prop = task.graph, task.prop
        self.begin = time.perf_counter()
        self.deadline = self.begin + budget.seconds
        self.dtype, self.device = graph.dtype, graph.device
        self.targets = targets_of(prop, graph)
        self.seconds: dict[str, float] = {}
        self.nearest = math.inf
        self.trees: list[Outcome] = []
        """the outcomes of branch and bound, one after the other"""
        self.problem = ""
        self.short: dict[str, str] = {}
        """by stage, why there was not enough memory for it"""
        self.searched: list[CaseSearch] = []
        self.attack: PausedSearch | None = None
        self.attack_left = min(budget.first * budget.seconds, budget.most)
        """seconds that the first attack, made in pieces, may still take"""
        self.bounding = 0.0
        """seconds spent on crown and joint so far"""

    def run(self) -> Answer:
        """Run the stages until one of them decides."""
        stage = ""
        try:
            self._begin_attack()
            for i in range(len(self.prop.cases)):
                stage = self._case(i) or stage
            if not self._open() and self.targets:
                return self._answer(Verdict.VERIFIED, "every conjunction is excluded over its whole box", stage)
            self._continue_attack(math.inf)
        except _Found as found:
            text = "the counterexample was replayed on the original model"
            return self._answer(Verdict.FALSIFIED, text, found.stage, found.counterexample)
        except OutOfTimeError:
            return self._answer(Verdict.TIMEOUT, self._left(), "")
        late = time.perf_counter() >= self.deadline
        return self._answer(Verdict.TIMEOUT if late else Verdict.UNKNOWN, self._left(), "")

    def _left(self) -> str:
        """What is still open, in words."""
        open_ = self._open()
        worst = min((target.best for target in open_), default=math.nan)
        said = f"{len(open_)} of {len(self.targets)} conjunctions are open, the worst bound is {worst:.6g}"
        near = f"an input is within {TIE:g} of a counterexample, and no replay has confirmed one"
        texts = (said, near if self.nearest <= TIE else "", self.problem, *self.short.values())
        return "; ".join(text for text in texts if text)

    def _open(self, case: int | None = None) -> list[Target]:
        return [t for t in self.targets if not t.excluded and case in (None, t.case)]

    def _answer(self, verdict: Verdict, reason: str, stage: str, found: Counterexample | None = None) -> Answer:
        bounds = tuple(tuple(t.best for t in self.targets if t.case == i) for i in range(len(self.prop.cases)))
        seconds = {**self.seconds, "total": time.perf_counter() - self.begin}
        return Answer(
            verdict=verdict,
            reason=reason,
            stage=stage,
            counterexample=found,
            bounds=bounds,
            nearest=self.nearest,
            domains=sum(tree.domains for tree in self.trees),
            rates=self._rates(),
            seconds=seconds,
            searched=tuple(self.searched),
        )

    def _rates(self) -> dict[str, float]:
        passes = [tree.passes for tree in self.trees if tree.passes is not None]
        known = sum(passes) if len(passes) == len(self.trees) else None
        return rates(sum(tree.domains for tree in self.trees), known, sum(tree.seconds for tree in self.trees))

    def _left_seconds(self) -> float:
        left = self.deadline - time.perf_counter()
        if left <= 0:
            raise OutOfTimeError("the time is spent")
        return left

    def _timed(self, stage: str, begin: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begin

    def _begin_attack(self) -> None:
        """Run the first batches of the attack on all cases, or all of it if there are no bounds; raises _Found."""
        self._left_seconds()
        begin = time.perf_counter()
        batches = itertools.count(1)
        few = None if self.task.method == Stage.ATTACK else lambda: next(batches) >= FIRST_BATCHES
        with self._memory_of(Stage.ATTACK):
            self.attack = self._paused_search(self.prop)
            self._attacked(Stage.ATTACK, begin, self.attack.resume(begin + self.attack_left, few))

    def _paused_search(self, prop: Property) -> PausedSearch:
        task = self.task
        return paused_search(self.graph, prop, task.confirm, seed=task.seed, memory=self.options.memory)

    @contextlib.contextmanager
    def _memory_of(self, stage: str) -> Iterator[None]:
        """If a stage runs out of memory, note that, and go on with the next one."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            refused = isinstance(error, NotEnoughMemoryError)
            self._note_short(stage, str(error) if refused else f"{stage} ended as there was not enough memory")

    def _note_short(self, stage: str, text: str) -> None:
        if stage not in self.short:
            self.short[stage] = text
            self.say(stage, text)

    def _continue_attack(self, seconds: float) -> None:
        """Continue the attack for some seconds, as far as its share allows; raises _Found."""
        seconds = min(seconds, self.attack_left, self._left_seconds())
        if self.attack is None or seconds <= 0:
            return
        begin = time.perf_counter()
        with self._memory_of(Stage.ATTACK):
            self._attacked(Stage.ATTACK, begin, self.attack.resume(begin + seconds))

    def _attack_again(self, attack: SecondAttack, *, last: bool = False) -> None:
        """Run the second attack, on a case that bounds left open, as far as it is due; raises _Found."""
        begin, seconds = time.perf_counter(), attack.due(last=last)
        if seconds > 0:
            with self._memory_of(AGAIN):
                self._attacked(AGAIN, begin, attack.resume(min(seconds, self._left_seconds())))

    def _attack_inside(self, targets: Sequence[tuple[int, int]], points: Tensor, until: float) -> None:
        """Descend from points (n, *input shape), each for its target (case, conjunction); raises _Found."""
        if self.attack is None:
            return
        begin, starts = time.perf_counter(), points.flatten(1)
        which = {target: [k for k, each in enumerate(targets) if each == target] for target in targets}
        self._attacked(INSIDE, begin, self.attack.descend({t: starts[rows] for t, rows in which.items()}, until))

    def _attacked(self, stage: str, begin: float, found: Found) -> None:
        """Take in what an attack since `begin` has found; raises _Found if that is a counterexample."""
        self._timed(stage, begin)
        if stage == Stage.ATTACK:
            self.attack_left -= time.perf_counter() - begin
        self.nearest = min([self.nearest, *(float(v) for v in found.violations)])
        self.say(stage, f"nearest violation {self.nearest:.4g}")
        if found.counterexample is not None:
            raise _Found(found.counterexample, stage)

    def _case(self, i: int) -> str:
        """Exclude the conjunctions of one case; returns the stage that excluded the last of them, or ""."""
        case, waiting = self.prop.cases[i], len(self.prop.cases) - i
        if any(len(target.d) == 0 for target in self._open(i)):  # it holds for every output, so every input violates
            return ""
        if self.task.method == Stage.ATTACK or not self._open(i):
            return ""
        until = time.perf_counter() + self._left_seconds() / waiting
        question = self._question(case)
        bound: Bound | None = None
        rough = False  # whether joint is skipped, and made over what is left of the set
        stages = self._stages(question)
        for stage in stages:
            if rough and stage == Stage.JOINT:
                continue
            if stage == Stage.BAB:
                self._continue_attack(math.inf)
            elif bound is not None:
                self._continue_attack(ATTACK_SHARE * self.bounding - self.seconds.get(Stage.ATTACK, 0.0))
            begin = time.perf_counter()
            with self._memory_of(stage):
                if stage == Stage.BAB and self.task.method == Stage.BAB:
                    if bound is not None and not bound.boxes.problems:
                        bound_mixes(question, bound.boxes, self._open(i))
                        begin += self._to_third_order(question, i, until)
                        self._branch(question, bound, i, until, rough=rough)
                else:
                    bound = None  # stays None if memory runs out; then branch and bound has no root
                    bound = self._bound(question, i, Method(stage))
                    self.bounding += time.perf_counter() - begin
            if bound is None:  # then drop what the question has cached
                question = self._question(case)
            self._timed(stage, begin)
            open_ = self._open(i)
            if open_ and self.task.branching is not None and stage == Stage.CROWN and self.task.method == Stage.BAB:
                self.task.branching.prepare(i)
            self.say(
                stage, f"case {i + 1}: {len(open_)} open, worst {min((t.best for t in open_), default=math.inf):.4g}"
            )
            if not open_:
                return stage
            if bound is not None and stage == Stage.CROWN and Stage.BAB in stages and self._may_branch_early(question):
                self._branch_early(question, bound, i, until)
                count = len(self._open(i))
                if count == 0:
                    return Stage.BAB
                rough = count == 1  # for several, joint's boxes are better made once, over the whole set
        return ""

    def _question(self, case: Case) -> Question:
        """The question of a case; without rows that cannot move, unless a proof or workers need the whole graph."""
        if not self.task.recorded and self.task.branching is None:
            with self._memory_of(STILL_ROWS):
                return moving_question(self.graph, case, self.options, self.deadline)
        return question_over(self.graph, case, self.options, self.deadline)

    def _stages(self, question: Question) -> tuple[str, ...]:
        """The stages after the attack that fit into the memory: those up to the method, or the one method alone."""
        method = self.task.method
        wanted = CASCADE[1 : CASCADE.index(Stage(method)) + 1] if method in CASCADE else (method,)
        found, refused = fitting_stages(question, wanted, self.options, cheapest=method in CASCADE)
        for stage, text in refused.items():
            self._note_short(stage, text)
        return found

    def _only(self, i: int) -> Property:
        return dataclasses.replace(self.prop, cases=(self.prop.cases[i],))

    def _bound(self, question: Question, i: int, method: Method) -> Bound:
        """Bound every row of the case's open conjunctions by one method.

        On the way to branch and bound, `joint` runs under `root_options`, because its boxes are the root of branch and
        bound.
        """
        open_, options = self._open(i), self.options
        if method is Method.JOINT and self.task.method == Stage.BAB:
            options = root_options(options)
        objective = self._objective(question, open_)
        with torch.no_grad():
            bound = lower_bounds(question, objective, method, options)
        problems = bound.boxes.problems
        if problems:
            self.problem = f"{problems[0].text} at {problems[0].node.name!r}; a smaller set may help"
            return bound
        counts = [len(target.d) for target in open_]
        sizes = terms(question, bound.boxes, objective, AFFINE)[0].split(counts)  # for all targets in one pass
        for target, size, rows in zip(open_, sizes, bound.lower[0].split(counts), strict=True):
            target.require(guard(size + target.d.abs()))
            target.learn(rows)
        return bound

    @staticmethod
    def _objective(question: Question, targets: Sequence[Target]) -> Objective:
        """The rows of all targets as objectives on the output."""
        return Objective.dense(question.graph.output, torch.cat([target.C for target in targets]).unsqueeze(0))

    def _to_third_order(self, question: Question, i: int, until: float) -> float:
        """Bound what is open by zonotopes to third order, as `certify` does before any split; returns the seconds.

        The second attack keeps its share of the time. The tree of what they leave open is the same as without them.
        """
        begin, open_, task = time.perf_counter(), self._open(i), self.task
        seconds = (1 - self.budget.second) * max(0.0, min(until, self.deadline) - begin)
        if not open_ or not is_meant(question, self.options):
            return 0.0
        why = third_order_refusal(question, seconds, proved=task.recorded, shared=task.branching is not None)
        if why:
            self._note_short(THIRD_ORDER, why)
            return 0.0
        with self._memory_of(THIRD_ORDER), torch.no_grad():
            objective = self._objective(question, open_)
            found = to_third_order(question, objective, self.options, seconds)
            if found is not None:
                for target, rows in zip(open_, found[0].split([len(each.d) for each in open_]), strict=True):
                    target.learn_best(float((rows - target.d).max()))
        self._timed(THIRD_ORDER, begin)
        self.say(THIRD_ORDER, f"case {i + 1}: {len(self._open(i))} open")
        return time.perf_counter() - begin

    def _may_branch_early(self, question: Question) -> bool:
        """Whether to try a tree over the boxes of `crown` before `joint`, which would take longer than a small tree.

        Not if other processes do branch and bound, because they start with the boxes of `joint`.
        """
        task = self.task
        alone = task.method == Stage.BAB and task.branching is None
        return alone and self.options.search.early > 0 and has_cheaper_boxes(question, self.options)

    def _branch_early(self, question: Question, bound: Bound, i: int, until: float) -> None:
        """Branch and bound over the boxes of `crown`, within its share of the time."""
        if bound.boxes.problems:
            return
        begin = time.perf_counter()
        end = begin + self.options.search.early * (until - begin)
        with self._memory_of(Stage.BAB):
            self._branch(question, bound, i, end, early=True)
        self._timed(Stage.BAB, begin)

    # Six parameters: what is bounded, the root, the deadline, and the kind of search.
    def _branch(
        self, question: Question, bound: Bound, i: int, until: float, *, early: bool = False, rough: bool = False
    ) -> None:
        """Branch and bound on the best row of every open conjunction.

        early: only as long as it promises to end. rough: `bound` has the boxes of `crown`.
        """
        open_ = self._open(i)
        if not open_:
            return
        rows = [int(target.rows.argmax()) for target in open_]
        C = torch.stack([target.C[row] for target, row in zip(open_, rows, strict=True)])
        d = torch.stack([target.d[row] for target, row in zip(open_, rows, strict=True)])
        guards = d.new_tensor([target.guard for target in open_])
        # not the bounds of an earlier tree, which would hide what splits gain in this one
        known = d + d.new_tensor([float(target.rows[row]) for target, row in zip(open_, rows, strict=True)])
        seconds = max(0.0, min(until, self.deadline) - time.perf_counter())

        def accept(point: Tensor, _objective: int) -> bool:
            found = self.task.confirm(point.detach().cpu().double().reshape(-1).numpy())
            if found is not None:
                raise _Found(found, Stage.BAB)
            return False

        def attack(points: Tensor, objectives: Sequence[int], until: float) -> None:
            self._attack_inside([(i, open_[k].number) for k in objectives], points, until)

        share = self.budget.second / (len(self.prop.cases) - i)
        now, most = time.perf_counter(), min(share * self._left_seconds(), self.budget.most)
        first = [now + self.budget.after * seconds]
        again = SecondAttack(lambda: self._paused_search(self._only(i)), most, first[0], now + seconds)

        def progress(worst: float, count: int, bounded: int) -> None:
            self.say(Stage.BAB, f"{bounded} domains, {count} open, worst {worst:.4g}")
            if count and not early:
                self._attack_again(again)

        aim = Aim(C, goals=d + guards, known=known)
        search = dataclasses.replace(self.options.search, seconds=seconds)
        record = Record() if self.task.recorded and self.task.branching is None else None
        watchers = Watchers(accept, progress, record, attack)
        if early:
            outcome = branch_early(question, bound, aim, self.options, watchers, search)
        elif self.task.branching is None:
            outcome = branch(question, bound, aim, self.options, watchers, search, rough=rough)
        else:
            request = BranchRequest(i, question, bound.boxes, aim, search)
            outcome = self.task.branching.branch(request, accept, self._in_pieces(share, i, first))
        self.trees.append(outcome)
        for target, lowest, limit in zip(open_, outcome.bound.tolist(), d.tolist(), strict=True):
            target.learn_best(lowest - limit)
        if record is not None:
            closed = {k: (open_[k].number, open_[k].weights_of(row)) for k, row in enumerate(rows) if open_[k].excluded}
            record.forget(k for k in range(len(open_)) if k not in closed)
            if closed:
                self.searched.append(CaseSearch(i, closed, question, rules_of(self.options), record))
        if early:  # a later search takes up what is open
            return
        if outcome.stopped not in (Stop.DONE, Stop.SECONDS):
            self.problem = f"branch and bound ended: {outcome.stopped}"
        if first and self._open(i):
            self._attack_again(again, last=True)

    def _in_pieces(self, share: float, i: int, again: list[float]) -> Callable[[], None]:
        """A function that runs one piece of the second attack, but none before the time in `again`, which is then
        cleared.
        """
        attack: list[PausedSearch] = []
        end = math.inf

        def piece() -> None:
            nonlocal end
            now = time.perf_counter()
            if again and now > again[0]:
                again.clear()
                end = now + min(share * self._left_seconds(), self.budget.most)
                attack.append(self._paused_search(self._only(i)))
            if attack and now < end:
                found = attack[0].resume(min(now + PIECE, end))
                if found.counterexample is None and time.perf_counter() < end:
                    self._timed(AGAIN, now)
                else:
                    self._attacked(AGAIN, now, found)

        return piece
