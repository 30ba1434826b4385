"""A branch-and-bound tree that workers share: this process gives them parts, and decides what their answers are worth.

Invariant: `done` is said only when every part of every objective is closed (ledger.py). A part is replaced only by a
tree that this process asked for and has checked: it is in the answer to that worker's latest order, about a part of
that order, with the part's digest, and whole. What is lost, late, malformed, doubled or about something else leaves the
part open. An input that a worker takes for a counterexample is only shown to `accept`.

Workers know the same as this process, because they refuse to work otherwise (worker.py, crew.py). With a journal every
tree is on the disk before it counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from vertex_softmax.bounds.branch_and_bound import Accept, Outcome, Stop
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.methods.bab import rules_of
from vertex_softmax.runs.shared.crew import Crew, Lease, Member, aim_order
from vertex_softmax.runs.shared.ledger import Ledger, Replacement
from vertex_softmax.runs.shared.messages import Codec, count, field, numbers, tensor
from vertex_softmax.runs.shared.seals import Plain, digest_of
from vertex_softmax.runs.shared.tree_journal import TreeJournal, replaced
from vertex_softmax.search.branching import BranchRequest, root_bounds

SLICE = 3.0
"""Seconds that a worker works on its parts before it answers."""
SHORT = 0.5
"""The same while there are few parts, so that every worker soon has some."""
FEW = 8
"""Fewer parts than so many for each worker are few."""
CROWD = 16
"""With more workers than these each works longer in proportion: this process answers a few of them a second."""
BATCH = 256
"""The most parts that a worker is given at a time."""
PAUSE = 0.05
"""Seconds to wait for an answer before anything else is looked at."""
SAY = 1.0
"""The least number of seconds between two remarks."""
MOST = 1 << 40


class SharedSearch:
    """Branch and bound by workers, as the cascade asks for it (search/branching.py)."""

    def __init__(
        self, crew: Crew, journal: TreeJournal | None = None, say: Callable[[str], None] = lambda _text: None
    ) -> None:
        """`say`: takes remarks about the search."""
        self.crew, self.journal, self._say = crew, journal, say
        self._said: set[str] = set()
        self.parts = {"open": 0, "closed": 0, "read": 0}
        """of all cases so far: parts that were left open, parts that were closed, and trees read from the journal"""
        self.orders = 0

    def remark(self, text: str) -> None:
        """Say something that was not said before."""
        if text and text not in self._said:
            self._said.add(text)
            self._say(text)

    def prepare(self, case: int) -> None:
        """Have the workers make the boxes of a case."""
        self.crew.prepare(case)

    def branch(self, request: BranchRequest, accept: Accept, meanwhile: Callable[[], None]) -> Outcome:
        """Have the workers search one case until nothing is open, or a limit is reached."""
        case = _CaseSearch(self, request, accept)
        try:
            return case.run(meanwhile)
        finally:
            self.parts["open"] += len(case.ledger.open)
            self.parts["closed"] += case.ledger.closed_count


class _CaseSearch:
    """The search of one case."""

    def __init__(self, shared: SharedSearch, request: BranchRequest, accept: Accept) -> None:
        self.shared, self.crew, self.request, self.accept = shared, shared.crew, request, accept
        aim = request.aim
        like, n = aim.objectives, len(aim.objectives)
        goals = like.new_zeros(n) if aim.goals is None else aim.goals
        known = like.new_full((n,), -math.inf) if aim.known is None else aim.known
        known = known.where(known.isfinite(), -math.inf)  # what is no number is no bound
        self.ledger = Ledger(goals.tolist(), known.tolist())
        self.codec = Codec.over(request.question, request.boxes, rules_of(self.crew.task.options))
        root = root_bounds(request.question, request.boxes, like)
        self.usable = bool(root.isfinite().all())
        if shared.journal is not None:
            rows = digest_of([list(like.shape), numbers(like)])
            shared.parts["read"] += shared.journal.begin(request.case, rows, self.codec, self.ledger)
        opened = [k for k, parts in enumerate(self.ledger.counts()) if parts]
        self.aim = aim_order(request.case, like, goals, known, root, opened)
        self.bounded = 0
        self.begin = time.monotonic()
        self.said = -math.inf

    def run(self, meanwhile: Callable[[], None]) -> Outcome:
        """Give parts and take answers until there is nothing left to do."""
        seconds = math.inf if self.request.search.seconds is None else self.request.search.seconds
        end = time.monotonic() + seconds
        if not self.usable:
            return self._outcome(Stop.EXHAUSTED)
        stopped = self._stopped(end)
        if stopped is None:
            self.crew.take_aim(self.aim, min(seconds, 1e7))
        while stopped is None:
            for member, lease, body in self.crew.poll(PAUSE):
                self._answered(member, lease, body)
            stopped = self._stopped(end)
            if stopped is None:
                self._give(end)
                meanwhile()
        self._say(last=True)
        return self._outcome(stopped)

    def _stopped(self, end: float) -> Stop | None:
        open_ = self.ledger.open
        if not open_:
            return Stop.DONE
        if all(entry.exhausted for entry in open_.values()):
            return Stop.EXHAUSTED
        if self.bounded >= self.request.search.domains:
            return Stop.DOMAINS
        return Stop.SECONDS if time.monotonic() >= end else None

    def _outcome(self, stopped: Stop) -> Outcome:
        like = self.request.aim.objectives
        return Outcome(
            bound=like.new_tensor(self.ledger.bounds()),
            open=torch.tensor(self.ledger.counts(), device=like.device),
            domains=self.bounded,
            stopped=stopped,
            seconds=time.monotonic() - self.begin,
        )

    def _give(self, end: float) -> None:
        """Give parts to the workers that have none: those that a worker made itself first, then the worst."""
        idle = self.crew.idle()
        if not idle:
            return
        leased = self.crew.leased()
        free = {n: entry for n, entry in self.ledger.open.items() if n not in leased and not entry.exhausted}
        crowd = len(self.crew.members)
        seconds = (SHORT if len(self.ledger.open) < FEW * crowd else SLICE) * max(1.0, crowd / CROWD)
        seconds = max(0.0, min(seconds, end - time.monotonic()))
        for left, member in zip(range(len(idle), 0, -1), idle, strict=True):
            share = min(BATCH, math.ceil(len(free) / left))
            if not share:
                return
            order = sorted(free, key=lambda n, own=member.name: (free[n].home != own, free[n].part.bound))  # type: ignore[misc]
            chosen = order[:share]
            self.shared.orders += 1
            lease = Lease(self.shared.orders, self.request.case, frozenset(chosen), time.monotonic(), seconds)
            parts = [{"part": n, **self.codec.part(free.pop(n).part)} for n in chosen]
            most = max(1, self.request.search.domains - self.bounded)
            told = {"case": self.request.case, "parts": parts, "seconds": seconds.hex(), "domains": min(most, MOST)}
            self.crew.give(member, lease, told)

    def _answered(self, member: Member, lease: Lease, body: dict[str, Plain]) -> None:
        """Take an answer if all of it is as it should be; else nothing of it, and the worker is ended."""
        try:
            if count(body, "order", MOST) != lease.order or count(body, "case", MOST) != self.request.case:
                raise InvalidValueError("it is about another order")
            bounded = count(body, "bounded", MOST)
            trees, events = self._checked(lease, field(body, "answers", list))
            point = None
            if body.get("witness") is not None:
                point = tensor(body["witness"], self.request.question.graph.input.shape)
        except InvalidValueError as error:
            self.crew.fail(member, f"{member.name} gave an answer that is none: {error}")
            return
        self.bounded += bounded
        if events and self.shared.journal is not None:
            self.shared.journal.add(events)
        for tree in trees:
            self.ledger.replace(tree, member.name)
        if trees:
            self.crew.learnt()
        if point is not None:
            self.accept(point.to(self.request.aim.objectives), 0)
        self._say()

    def _checked(self, lease: Lease, answers: list[Plain]) -> tuple[list[Replacement], list[dict[str, Plain]]]:
        """The trees of an answer, and what the journal has of them; raises if one of them is not as it should be."""
        trees: dict[int, Replacement] = {}
        events = []
        for answer in answers:
            number = count(answer, "part", MOST)
            if number not in lease.parts or number in trees:
                raise InvalidValueError(f"part {number} was not asked for, or is there twice")
            tree = field(answer, "tree", list)
            replacement = self.ledger.checked(number, self.codec.read_tree(tree))
            digest = self.codec.digest(self.ledger.open[number].part)
            if answer.get("digest") != digest:
                raise InvalidValueError(f"it is not about part {number}")
            trees[number] = replacement
            events.append(replaced(self.request.case, number, digest, tree))
        return list(trees.values()), events

    def _say(self, *, last: bool = False) -> None:
        """Say how far it is, now and then."""
        now = time.monotonic()
        if last or now - self.said >= SAY:
            self.said = now
            ledger, busy = self.ledger, sum(member.lease is not None for member in self.crew.members.values())
            self.shared.remark(self.crew.note)
            self.shared.remark(
                f"{len(ledger.open)} parts open, {ledger.closed_count} closed, {self.bounded} bounded, "
                f"worst {ledger.worst():.4g}, {busy} of {len(self.crew.members)} workers busy"
            )
