"""A shared search says what is true, whoever answers, and in whatever order; what is wrong leaves parts open."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.runs.shared.crews import OPTIONS, Rehearsed, alone, ask, body_changed, files, truth
from tests.slowly import few
from vertex_softmax.foundation.errors import ClusterError
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.shared.seals import digest_of, opened, sealed
from vertex_softmax.runs.shared.worker import TreeWorker
from vertex_softmax.search.answers import Budget
from vertex_softmax.search.verify_files import load_instance

TRUE = (0.01, 0.02)
"""Margins by which both outputs are above their limits."""
FALSE = (0.05, -0.01)
"""The second output is not."""


@pytest.mark.parametrize(
    ("seed", "workers"),
    few(list(itertools.product([0, 3, 5, 9], [1, 3])), lambda *case: case in [(0, 1), (3, 3), (9, 3)]),
)
def test_it_agrees_with_one_process_and_with_the_truth(seed: int, workers: int, tmp_path: Path) -> None:
    """Two objectives; the bound that is reported is no more than the least value, and is the least of all parts'."""
    for margins in (TRUE, (0.3, 0.5), FALSE):
        paths = files(tmp_path / str(margins), seed, *margins)
        answer, search = ask(paths, Rehearsed(workers, seed))
        one = alone(paths)
        assert answer.verdict in ((Verdict.VERIFIED,) if margins != FALSE else (Verdict.FALSIFIED, Verdict.UNKNOWN))
        assert answer.verdict == one.verdict
        for bound, margin in zip(answer.bounds[0], margins, strict=True):
            assert bound <= margin + 1e-9
        assert (search.parts["open"] == 0) == (answer.verdict is Verdict.VERIFIED)


def test_a_counterexample_of_a_worker_is_replayed_here(tmp_path: Path) -> None:
    paths = files(tmp_path, 5, *FALSE)
    answer, _ = ask(paths, Rehearsed(2))
    assert (answer.verdict, answer.stage) == (Verdict.FALSIFIED, "bab")
    assert answer.counterexample is not None
    instance = load_instance(*paths)
    x = torch.from_numpy(np.asarray(answer.counterexample.x)).reshape(instance.graph.input.shape).double()
    y = instance.graph.to(torch.float64).evaluate(x).reshape(-1)
    assert float(y[1]) <= truth(5)[1][1] + 0.01 + 1e-6


def test_a_counterexample_that_is_none_changes_nothing(tmp_path: Path) -> None:
    """Inside the box and harmless, outside of the box, and no input at all."""
    paths = files(tmp_path, 5, *TRUE)
    for point in ([0.0, 0.0], [9.0, 9.0]):
        told = [value.hex() for value in point]
        workers = Rehearsed(2, change=body_changed(lambda body, told=told: {**body, "witness": told}))
        answer, _ = ask(paths, workers)
        assert (answer.verdict, workers.left) == (Verdict.VERIFIED, [])
    for told in (["nan", "0x0.0p+0"], [(0.0).hex()], 3):
        bad = body_changed(lambda body, told=told: {**body, "witness": told})
        workers = Rehearsed(2, 4, lambda name, line, bad=bad: [line] if name == "worker 1" else bad(name, line))
        answer, _ = ask(paths, workers)
        assert answer.verdict is Verdict.VERIFIED
        assert workers.left


def first(body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = body["answers"][0]
    return answer


def without_a_side(body: dict[str, Any]) -> dict[str, Any]:
    """The tree of the first part is its first leaf alone, for a part that was split; else a leaf too many."""
    answer = first(body)
    leaves = [step for step in answer["tree"] if len(step) == 3]
    answer["tree"] = answer["tree"][:-1] if len(leaves) > 1 else [*answer["tree"], *leaves]
    return body


def set_leaf(body: dict[str, Any], place: int, value: Any) -> dict[str, Any]:
    next(step for step in first(body)["tree"] if len(step) == 3)[place] = value
    return body


def another_part(body: dict[str, Any]) -> dict[str, Any]:
    first(body)["digest"] = "0" * 64
    return body


def with_a_fork(place: int, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A split of the tree is another; where there is none, one is made up."""

    def change(body: dict[str, Any]) -> dict[str, Any]:
        tree = first(body)["tree"]
        forks = [step for step in tree if len(step) == 5]
        if forks:
            forks[0][place] = value
        else:
            fork = ["0 x", 0, (0.5).hex(), (1.0).hex(), False]
            fork[place] = value
            first(body)["tree"] = [fork, *tree, *tree]
        return body

    return change


WRONG: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a side is missing": without_a_side,
    "no bound": lambda body: set_leaf(body, 0, "inf"),
    "no number": lambda body: set_leaf(body, 0, "nan"),
    "a decimal": lambda body: set_leaf(body, 0, 1.5),
    "no multipliers": lambda body: set_leaf(body, 2, [(-1.0).hex()]),
    "exhausted perhaps": lambda body: set_leaf(body, 1, 1),
    "a part of the same number": another_part,
    "a part that was not given": lambda body: (first(body).update(part=9999), body)[1],
    "no part": lambda body: (first(body).update(part=True), body)[1],
    "twice": lambda body: {**body, "answers": [first(body), first(body)]},
    "another order": lambda body: {**body, "order": body["order"] + 1},
    "another case": lambda body: {**body, "case": 1},
    "no tree": lambda body: (first(body).update(tree=None), body)[1],
    "an empty tree": lambda body: (first(body).update(tree=[]), body)[1],
    "answers that are none": lambda body: {**body, "answers": [7]},
    "no answers": lambda body: {**body, "answers": {}},
    "bounded less than nothing": lambda body: {**body, "bounded": -1},
    "a node of another network": with_a_fork(0, "3 nobody"),
    "the input's own box": with_a_fork(0, "0 x"),
    "a number that is not there": with_a_fork(1, 10**6),
    "a number before the first": with_a_fork(1, -1),
    "at no point": with_a_fork(2, "nan"),
    "at infinity": with_a_fork(2, "inf"),
    "of no size": with_a_fork(3, (0.0).hex()),
    "inside of what has nothing inside": with_a_fork(4, True),
    "something else was done": lambda body: {**body, "did": "load"},
}


@pytest.mark.parametrize(
    ("fault", "margins"),
    few(itertools.product(WRONG, [TRUE, FALSE]), lambda fault, margins: margins == FALSE or fault in list(WRONG)[::13]),
)
def test_an_answer_that_is_wrong_is_not_taken(fault: str, margins: tuple[float, float], tmp_path: Path) -> None:
    """One worker of two, and those in its place, answer wrongly as long as they can: the others do the work."""
    wrong = body_changed(WRONG[fault])
    workers = Rehearsed(2, 4, lambda name, line: [line] if name == "worker 1" else wrong(name, line))
    answer, search = ask(files(tmp_path, 9, *margins), workers)
    assert answer.verdict is (Verdict.VERIFIED if margins == TRUE else Verdict.UNKNOWN)
    assert workers.left
    assert all(name != "worker 1" and "gave an answer that is none" in why for name, why in workers.left)
    assert search.parts["open"] == 0 or margins == FALSE


def test_an_answer_about_parts_of_another_worker_is_wrong(tmp_path: Path) -> None:
    """Although these are open, and all that is said of them may be true."""
    workers = Rehearsed(2, 4)

    def more(name: str, line: str) -> list[str]:
        body = opened(line)
        given = [order for order in workers.told if order["do"] == "grow"]
        if name == "worker 1" or body["did"] != "grow" or len(given) < 2:
            return [line]
        mine = next(order for order in given if order["order"] == body["order"])
        others = [part for order in given for part in order["parts"] if order is not mine]
        for part in others[-3:]:
            tree = [[part["bound"], False, []]]
            digest = digest_of([part["objective"], part["splits"]])
            body["answers"].append({"part": part["part"], "digest": digest, "tree": tree})
        return [sealed(body)]

    workers.change = more
    answer, _ = ask(files(tmp_path, 9, *TRUE), workers)
    assert answer.verdict is Verdict.VERIFIED
    assert any("was not asked for, or is there twice" in why for _, why in workers.left)


@pytest.mark.parametrize("fault", ["a side is missing", "another order"])
def test_nothing_is_learnt_from_wrong_answers_alone(fault: str, tmp_path: Path) -> None:
    paths = files(tmp_path, 9, *TRUE)
    workers = Rehearsed(2, change=body_changed(WRONG[fault]))
    with pytest.raises(ClusterError, match=r"the workers fail again and again: worker .* gave an answer that is none"):
        ask(paths, workers, journal=tmp_path / "tree")
    assert len((tmp_path / "tree").read_text().splitlines()) == 2  # what it is about, and nothing else
    assert ask(paths, Rehearsed(2), journal=tmp_path / "tree")[0].verdict is Verdict.VERIFIED


def test_parts_that_an_answer_leaves_out_stay_open(tmp_path: Path) -> None:
    """The answer may be about some of the parts that were given; whoever leaves out all learns nothing."""
    lost = random.Random(1)
    drop = body_changed(lambda body: {**body, "answers": [a for a in body["answers"] if lost.random() < 0.5]})
    for margins in (TRUE, FALSE):
        paths = files(tmp_path / str(margins), 9, *margins)
        answer, search = ask(paths, Rehearsed(2, change=drop))
        assert answer.verdict is (Verdict.VERIFIED if margins == TRUE else Verdict.UNKNOWN)
        assert (search.parts["open"] == 0) == (margins == TRUE)
    nothing = body_changed(lambda body: {**body, "answers": []})
    answer, search = ask(paths, Rehearsed(2, change=nothing), budget=Budget(seconds=3, first=0, second=0))
    assert answer.verdict in (Verdict.TIMEOUT, Verdict.UNKNOWN)
    assert search.parts["closed"] == 0


def test_answers_that_come_twice_count_once(tmp_path: Path) -> None:
    paths = files(tmp_path, 9, *TRUE)

    def twice(name: str, line: str) -> list[str]:
        return [line] * (2 if name != "worker 1" and opened(line)["did"] == "grow" else 1)

    workers = Rehearsed(2, 4, twice)
    answer, search = ask(paths, workers)
    assert (answer.verdict, search.parts["open"]) == (Verdict.VERIFIED, 0)
    assert all("was not asked to 'grow', or has answered already" in why for _, why in workers.left)
    assert workers.left


@pytest.mark.parametrize("seed", few(range(4), lambda seed: seed == 2))
def test_workers_that_die_cost_time_alone(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)

    class Mortal(Rehearsed):
        def poll(self, wait: float) -> list[Any]:
            found = super().poll(wait)
            busy = [name for name, orders in self.orders.items() if orders]
            if busy and (rng.random() < 0.15 or (self.begun == 3 and self.told[-1]["do"] == "grow")):
                self.lose(rng.choice(busy))
            return found

    for margins in (TRUE, FALSE):
        paths = files(tmp_path / str(margins), 9, *margins)
        workers = Mortal(3, seed)
        answer, _ = ask(paths, workers)
        assert answer.verdict is (Verdict.VERIFIED if margins == TRUE else Verdict.UNKNOWN)
        assert workers.begun > 3


def test_the_number_of_parts_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TreeWorker, "_confirms", lambda *_: False)
    paths = files(tmp_path, 9, *TRUE)
    options = dataclasses.replace(OPTIONS, search=dataclasses.replace(OPTIONS.search, domains=3))
    answer, search = ask(paths, Rehearsed(2), options=options)
    assert answer.verdict is Verdict.UNKNOWN
    assert "branch and bound ended: domains" in answer.reason
    assert search.parts["open"] > 0
