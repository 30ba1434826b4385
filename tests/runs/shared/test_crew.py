"""Workers as a shared search sees them: those that are not what they should be get no parts, or are ended."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runs.shared.crews import Rehearsed, ask, files
from vertex_softmax.foundation.errors import ClusterError
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.shared import crew
from vertex_softmax.runs.shared.crew import Crew, Lease, aim_order
from vertex_softmax.runs.shared.seals import opened, sealed
from vertex_softmax.runs.shared.task import SharedTask
from vertex_softmax.runs.shared.workers import Event

TRUE = (0.01, 0.02)


def test_an_answer_that_comes_late_is_not_taken_and_its_parts_are_given_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first worker's answers are held back until it was given up, and come after all others."""
    monkeypatch.setattr(crew, "LATE", -1e6)  # every answer is late that is not there at once
    held: list[str] = []

    def change(name: str, line: str) -> list[str]:
        if name == "worker 1" and opened(line)["did"] == "grow":
            held.append(line)
            monkeypatch.setattr(crew, "LATE", -1e9)
            return []
        return [line]

    class Late(Rehearsed):
        def poll(self, wait: float) -> list[Any]:
            found = super().poll(wait)
            if held and "worker 1" not in self.workers:
                monkeypatch.setattr(crew, "LATE", 1e9)
                found += [dataclasses.replace(found[0], worker="worker 1", line=held[0], left=None)] if found else []
            return found

    monkeypatch.setattr(crew, "LATE", 1e9)
    paths = files(tmp_path, 9, *TRUE)
    workers = Late(2, 4, change)
    answer, search = ask(paths, workers)
    assert answer.verdict is Verdict.VERIFIED
    assert [name for name, why in workers.left if "has not answered for" in why][:1] == ["worker 1"]
    assert search.parts["open"] == 0


def test_a_line_with_one_character_changed_is_no_message(tmp_path: Path) -> None:
    paths = files(tmp_path, 9, *TRUE)
    rng = random.Random(3)

    def change(name: str, line: str) -> list[str]:
        if name == "worker 1":
            return [line]
        k = rng.randrange(len(line))
        return [line[:k] + ("0" if line[k] != "0" else "1") + line[k + 1 :]]

    workers = Rehearsed(2, 4, change)
    answer, _ = ask(paths, workers)
    assert answer.verdict is Verdict.VERIFIED
    assert workers.left
    assert all("a message is not whole" in why for _, why in workers.left)


def test_other_workers_are_refused(tmp_path: Path) -> None:
    """Those that read other files, or have other sources, say so; if they do not, their identity does."""
    paths = files(tmp_path, 9, *TRUE)
    (tmp_path / "other").mkdir()
    other = files(tmp_path / "other", 9, 0.2, 0.3)

    class Elsewhere(Rehearsed):
        def send(self, worker: str, line: str) -> None:
            body = opened(line)
            if body["do"] == "load":
                body["spec"] = str(other[1])
            super().send(worker, sealed(body))

    with pytest.raises(ClusterError, match="another search than it was asked for: the property says something else"):
        ask(paths, Elsewhere(1))

    def lies(_name: str, line: str) -> list[str]:
        body = opened(line)
        if body["did"] == "load":
            body["identity"]["source"] = "another"
        return [sealed(body)]

    with pytest.raises(ClusterError, match="worker 1 works on something else: the sources of Vertex, or the versions"):
        ask(paths, Rehearsed(1, change=lies))


class Told:
    """Workers that say what a test has them say."""

    note = "told"

    def __init__(self) -> None:
        self.events: list[Event] = [Event("w")]
        self.orders: list[dict[str, Any]] = []
        self.dropped: list[str] = []

    def poll(self, wait: float) -> list[Event]:  # noqa: ARG002
        found, self.events = self.events, []
        return found

    def send(self, worker: str, line: str) -> None:  # noqa: ARG002
        self.orders.append(opened(line))

    def drop(self, worker: str, reason: str) -> None:  # noqa: ARG002
        self.dropped.append(reason)

    def stop(self) -> None:
        self.dropped.append("all")

    def say(self, **body: Any) -> None:
        self.events.append(Event("w", line=sealed(body)))


IDENTITY = dict.fromkeys(("model", "graph", "property", "options", "device", "source"), "same")
ONE = torch.ones(1).double()


def begun() -> tuple[Crew, Told]:
    told = Told()
    made = Crew(SharedTask(model="m", spec="s"), IDENTITY, lambda: told)
    made.poll(0)
    made.take_aim(aim_order(0, ONE, ONE, ONE, ONE, [0]), 5.0)
    return made, told


def test_parts_are_given_only_to_who_has_shown_to_know_the_same() -> None:
    made, told = begun()
    assert [order["do"] for order in told.orders] == ["load", "aim"]
    for body in ({"did": "load", "identity": IDENTITY}, {"did": "aim", "case": 0, "root": [(1.0).hex()]}):
        assert made.idle() == []
        told.say(**body)
        assert made.poll(0) == []
    (member,) = made.idle()
    made.give(member, Lease(1, 0, frozenset({7}), 0.0, 1e9), {"parts": []})
    assert (made.idle(), made.leased()) == ([], {7})
    told.say(did="grow", order=1)
    ((who, lease, body),) = made.poll(0)
    assert (who, lease.parts, body["order"], made.leased()) == (member, {7}, 1, set())
    assert made.idle() == [member]


def test_a_worker_that_is_late_with_its_boxes_waits() -> None:
    made, told = begun()
    told.say(did="load", identity=IDENTITY)
    told.say(did="aim", late=True)
    made.poll(0)
    assert made.idle() == []
    assert told.dropped == []


def test_answers_to_an_earlier_case_are_not_taken() -> None:
    made, told = begun()
    told.say(did="load", identity=IDENTITY)
    told.say(did="aim", case=0, root=[(1.0).hex()])
    made.poll(0)
    made.give(made.idle()[0], Lease(1, 0, frozenset({7}), 0.0, 1e9), {"parts": []})
    made.take_aim(aim_order(1, ONE, ONE, ONE, ONE, [0]), 5.0)
    told.say(did="grow", order=1)
    assert made.poll(0) == []
    assert made.idle() == []  # it has the aim of the case before
    told.say(did="aim", case=1, root=[(1.0).hex()])
    made.poll(0)
    assert len(made.idle()) == 1


def test_an_answer_about_the_case_before_is_no_aim() -> None:
    made, told = begun()
    told.say(did="load", identity=IDENTITY)
    made.take_aim(aim_order(1, ONE, ONE, ONE, ONE, [0]), 5.0)
    told.say(did="aim", case=0, root=[(1.0).hex()])
    made.poll(0)
    assert (made.idle(), [member.aim for member in made.members.values()]) == ([], [None])
    told.say(did="aim", case=1, root=[(1.0).hex()])
    made.poll(0)
    assert len(made.idle()) == 1


@pytest.mark.parametrize("root", [[(1.0 + 1e-6).hex()], [(1.0).hex()] * 2, ["inf"], [], None])
def test_other_bounds_of_the_whole_set_end_the_worker(root: Any) -> None:
    made, told = begun()
    told.say(did="load", identity=IDENTITY)
    told.say(did="aim", case=0, root=root)
    made.poll(0)
    assert (len(told.dropped), made.idle(), made.members) == (1, [], {})


@pytest.mark.parametrize("body", [{"did": "aim", "case": 0}, {"did": "grow"}, {"did": 3}, {}])
def test_an_answer_to_nothing_ends_the_worker(body: dict[str, Any]) -> None:
    made, told = begun()
    told.say(**body)
    made.poll(0)
    assert len(told.dropped) == 1
    assert made.members == {}
    told.events.append(Event("w", line="late words"))
    assert made.poll(0) == []
    made.stop()
    assert told.dropped[-1] == "all"


def test_who_joins_later_is_told_everything() -> None:
    made, told = begun()
    told.events.append(Event("second"))
    made.poll(0)
    assert [order["do"] for order in told.orders] == ["load", "aim", "load", "aim"]
    other = Crew(SharedTask(model="m", spec="s"), IDENTITY, Told)
    other.prepare(3)
    assert other.note == "told"
    assert Crew(SharedTask(model="m", spec="s"), IDENTITY, Told).note == ""


def test_workers_that_die_without_an_end_are_an_error_unless_something_is_learnt() -> None:
    made, told = begun()
    for k in range(20):
        told.events += [Event("w", left="dead"), Event("w")]
        made.poll(0)
        if k % 3 == 2:
            made.learnt()
    told.events += [Event("w", left="dead"), Event("w")] * 10
    with pytest.raises(ClusterError, match="the workers fail again and again: dead"):
        made.poll(0)
