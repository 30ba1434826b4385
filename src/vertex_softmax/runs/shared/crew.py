"""The workers of a shared search as it sees them: who is ready, what each was asked, and who cannot be used.

Invariant: a worker gets parts only after it has said that it has the search's identity, and the search's bounds of the
whole set, and both were compared here. Its answers are matched with what it was asked, in order; a worker that answers
anything else, that does not answer in time or that sends what is not a whole message is ended.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable

from torch import Tensor

from vertex_softmax.foundation.errors import ClusterError, InvalidValueError
from vertex_softmax.runs.shared.messages import field, numbers, tensor
from vertex_softmax.runs.shared.seals import Plain, opened, sealed
from vertex_softmax.runs.shared.task import SharedTask, difference, plain_options
from vertex_softmax.runs.shared.workers import Event, TreeWorkers
from vertex_softmax.search.branching import are_same_bounds

LATE = 120.0
"""A worker is late if an answer takes so many seconds, and four times the longest answer so far, beyond its time."""
FAILURES = 4
"""The search ends if so many workers fail, and two more for each that there is, and nothing is learnt meanwhile."""
FOREVER = 1e7
"""Seconds that a worker has if nothing else is known."""


@dataclasses.dataclass(frozen=True, eq=False)
class CaseAim:
    """What workers are told of a case before they are given parts of it."""

    case: int
    order: dict[str, Plain]
    """without the time that is left"""
    root: Tensor
    """(n,): the bounds of the whole set, on the CPU"""


@dataclasses.dataclass(frozen=True, eq=False)
class Lease:
    """Parts that a worker has, and for how long."""

    order: int
    case: int
    parts: frozenset[int]
    began: float
    seconds: float


class Member:
    """A worker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: deque[str] = deque()
        """what it was asked and has not answered yet, the oldest first"""
        self.aim: CaseAim | None = None
        """the case whose bounds of the whole set it has shown to have"""
        self.lease: Lease | None = None


class Crew:
    """All workers of a search."""

    def __init__(self, task: SharedTask, identity: dict[str, str], start: Callable[[], TreeWorkers]) -> None:
        """`start`: begins the workers, when they are needed for the first time."""
        self.task, self.identity = task, identity
        self._start = start
        self._workers: TreeWorkers | None = None
        self.members: dict[str, Member] = {}
        self._case: int | None = None
        self._aim: CaseAim | None = None
        self._end = time.monotonic() + FOREVER
        self._failures: list[str] = []
        """why workers failed since something was learnt"""
        self._longest = 0.0

    @property
    def note(self) -> str:
        """The workers' remark for the user."""
        return "" if self._workers is None else self._workers.note

    def stop(self) -> None:
        """End all workers."""
        if self._workers is not None:
            self._workers.stop()

    def prepare(self, case: int) -> None:
        """Have the boxes of a case made, by the workers there are and by those that join."""
        self._case, self._aim, self._end = case, None, time.monotonic() + FOREVER
        for member in self.members.values():
            self._send(member, {"do": "root", "case": case})
        self.poll(0)

    def take_aim(self, aim: CaseAim, seconds: float) -> None:
        """Tell all workers of a case's objectives, for which there are so many seconds."""
        self._case, self._aim, self._end = aim.case, aim, time.monotonic() + seconds
        for member in self.members.values():
            member.lease = None
            self._send(member, aim.order)

    def idle(self) -> list[Member]:
        """The workers that can be given parts now."""
        aim = self._aim
        return [m for m in self.members.values() if m.aim is aim is not None and not m.asked and m.lease is None]

    def give(self, member: Member, lease: Lease, order: dict[str, Plain]) -> None:
        """Give parts to an idle worker."""
        member.lease = lease
        self._send(member, {"do": "grow", "order": lease.order, **order})

    def leased(self) -> set[int]:
        """The parts that workers have."""
        return {number for member in self.members.values() if member.lease for number in member.lease.parts}

    def learnt(self) -> None:
        """Something was learnt: failures before it do not count any more."""
        self._failures.clear()

    def fail(self, member: Member, reason: str) -> None:
        """End a worker that cannot be used; its parts are free again. Raises if too many have failed in turn."""
        if self._workers is not None and member.name in self.members:
            self._workers.drop(member.name, reason)
        self._lose(member.name, reason)

    def poll(self, wait: float) -> list[tuple[Member, Lease, dict[str, Plain]]]:
        """Answers about parts, each with the lease that it ends; waits at most `wait` seconds for the first.

        Raises if the workers are not those of this search, or if there are none to be had.
        """
        if self._workers is None:
            self._workers = self._start()
        found = []
        for event in self._workers.poll(wait):
            answer = self._heard(event)
            if answer is not None:
                found.append(answer)
        now = time.monotonic()
        for member in list(self.members.values()):
            lease = member.lease
            if lease is not None and now - lease.began > lease.seconds + LATE + 4 * self._longest:
                self.fail(member, f"{member.name} has not answered for {now - lease.began:.0f} s")
        return found

    def _heard(self, event: Event) -> tuple[Member, Lease, dict[str, Plain]] | None:
        if event.joined:
            self._join(Member(event.worker))
            return None
        if event.worker not in self.members:  # it was given up before
            return None
        member = self.members[event.worker]
        if event.line is None:
            self._lose(member.name, event.left or f"{member.name} is gone")
            return None
        try:
            return self._answered(member, opened(event.line))
        except InvalidValueError as error:
            self.fail(member, f"{member.name} gave an answer that is none: {error}")
            return None

    def _answered(self, member: Member, body: dict[str, Plain]) -> tuple[Member, Lease, dict[str, Plain]] | None:
        """Match an answer with what was asked; raises InvalidValueError if it does not fit."""
        did = field(body, "did", str)
        if not member.asked or did != member.asked[0]:
            raise InvalidValueError(f"it was not asked to {did[:40]!r}, or has answered already")
        member.asked.popleft()
        if "unfit" in body:
            raise ClusterError(str(body["unfit"])[:1000])
        if did == "load" and difference(self.identity, body.get("identity")):
            raise ClusterError(f"{member.name} works on something else: " + difference(self.identity, body["identity"]))
        aim = self._aim
        if did == "aim" and "late" not in body and aim is not None and body.get("case") == aim.case:
            if not are_same_bounds(tensor(body.get("root"), aim.root.shape, finite=False), aim.root):
                raise InvalidValueError("it has other bounds of the whole set")
            member.aim = aim
        lease, member.lease = (member.lease, None) if did == "grow" else (None, member.lease)
        if lease is None or "late" in body:
            return None
        self._longest = max(self._longest, time.monotonic() - lease.began)
        return member, lease, body

    def _join(self, member: Member) -> None:
        task = self.task
        self.members[member.name] = member
        order: dict[str, Plain] = {
            "do": "load",
            "model": task.model,
            "spec": task.spec,
            "options": plain_options(task.options),
        }
        order |= {"device": task.device, "threads": task.threads, "memory": task.memory, "identity": self.identity}
        self._send(member, order)
        if self._aim is not None:
            self._send(member, self._aim.order)
        elif self._case is not None:
            self._send(member, {"do": "root", "case": self._case})

    def _lose(self, name: str, reason: str) -> None:
        if self.members.pop(name, None) is None:
            return
        self._failures.append(reason)
        if len(self._failures) >= FAILURES + 2 * len(self.members):
            raise ClusterError(f"the workers fail again and again: {reason}")

    def _send(self, member: Member, order: dict[str, Plain]) -> None:
        if self._workers is not None:
            left = max(0.0, self._end - time.monotonic())
            member.asked.append(field(order, "do", str))
            self._workers.send(member.name, sealed({**order, "left": left.hex()}))


def aim_order(case: int, rows: Tensor, goals: Tensor, known: Tensor, root: Tensor, opened_: list[int]) -> CaseAim:
    """The objectives of a case as workers are told of them; `opened_`: the objectives that have open parts."""
    order = {"do": "aim", "case": case, "objectives": len(rows), "open": opened_}
    order |= {"rows": numbers(rows), "goals": numbers(goals), "known": numbers(known), "root": numbers(root)}
    return CaseAim(case, order, root.detach().double().cpu())
