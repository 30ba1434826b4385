"""The journal of a shared search: it goes on from any line, and is refused if one was changed."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runs.shared.crews import BLIND, OPTIONS, Rehearsed, ask, body_changed, files, shared
from vertex_softmax.bounds.branch_and_bound import Aim, Outcome, Stop
from vertex_softmax.bounds.subtrees import GivenPart
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.methods.bab import rules_of
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.journal import Journal
from vertex_softmax.runs.shared.ledger import Ledger
from vertex_softmax.runs.shared.messages import Codec, digest_of, numbers
from vertex_softmax.runs.shared.task import SharedTask
from vertex_softmax.runs.shared.tree_journal import TreeJournal
from vertex_softmax.search.answers import Budget
from vertex_softmax.search.branching import BranchRequest
from vertex_softmax.search.verify_files import load_instance, verify_instance

TRUE, FALSE = (0.01, 0.02), (0.05, -0.01)


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    return files(tmp_path / "files", 9, *TRUE)


@pytest.fixture
def whole(tmp_path: Path, paths: tuple[Path, Path]) -> list[str]:
    """The lines of a search that came to its end."""
    assert ask(paths, Rehearsed(2), journal=tmp_path / "whole")[0].verdict is Verdict.VERIFIED
    return (tmp_path / "whole").read_text().splitlines(keepends=True)


def test_it_goes_on_from_any_line(tmp_path: Path, paths: tuple[Path, Path], whole: list[str]) -> None:
    """After a kill at any time the file has some whole lines, and perhaps the beginning of another."""
    assert len(whole) > 6
    rng, said = random.Random(0), []
    for k in range(len(whole) + 1):
        torn = whole[k][: rng.randrange(len(whole[k]))] if k < len(whole) else ""
        journal = tmp_path / f"after {k}"
        journal.write_text("".join(whole[:k]) + torn)
        workers = Rehearsed(2, k)
        answer, search = ask(paths, workers, journal=journal)
        assert (answer.verdict, search.parts["open"]) == (Verdict.VERIFIED, 0)
        assert search.parts["read"] == max(0, k - 2)
        assert journal.read_text().startswith("".join(whole[:k]))
        said.append(answer.domains)
        again, rest = ask(paths, Rehearsed(1), journal=journal)
        assert (again.verdict, again.domains, rest.orders) == (Verdict.VERIFIED, 0, 0)
    assert said[0] > said[-2] >= said[-1] == 0


def test_a_search_that_was_interrupted_again_and_again_comes_to_the_same_end(
    tmp_path: Path, paths: tuple[Path, Path]
) -> None:
    options = dataclasses.replace(OPTIONS, search=dataclasses.replace(OPTIONS.search, domains=3))
    answers = []
    for turn in range(30):
        answer, _ = ask(paths, Rehearsed(2, turn), options=options, journal=tmp_path / "tree")
        answers.append(answer.verdict)
        if answer.verdict is Verdict.VERIFIED:
            break
        assert "branch and bound ended: domains" in answer.reason
    assert answers[-1] is Verdict.VERIFIED
    assert len(answers) > 2


def test_what_is_false_stays_unproved_however_often_it_goes_on(tmp_path: Path) -> None:
    paths = files(tmp_path / "files", 9, *FALSE)
    for turn in range(4):
        answer, search = ask(paths, Rehearsed(2, turn), journal=tmp_path / "tree")
        assert answer.verdict is Verdict.UNKNOWN
        assert search.parts["open"] > 0


def changed(line: str, change: dict[str, Any]) -> str:
    return json.dumps({**json.loads(line), **change}) + "\n"


def test_a_line_that_was_changed_left_out_doubled_or_moved_is_noticed(
    tmp_path: Path, paths: tuple[Path, Path], whole: list[str]
) -> None:
    tampered = {}
    for k in range(len(whole) - 1):
        tampered[f"without {k}"] = [*whole[:k], *whole[k + 1 :]]
        tampered[f"{k} twice"] = [*whole[: k + 1], *whole[k:]]
        tampered[f"{k} and the next"] = [*whole[:k], whole[k + 1], whole[k], *whole[k + 2 :]]
        event = json.loads(whole[k])["event"]
        if "tree" in event:
            better = [[(99.0).hex(), False, []]]
            tampered[f"another tree in {k}"] = [
                *whole[:k],
                changed(whole[k], {"event": {**event, "tree": better}}),
                *whole[k + 1 :],
            ]
            tampered[f"another part in {k}"] = [
                *whole[:k],
                changed(whole[k], {"event": {**event, "part": 7777}}),
                *whole[k + 1 :],
            ]
    for name, lines in tampered.items():
        journal = tmp_path / name
        journal.write_text("".join(lines))
        with pytest.raises(InvalidValueError, match=r"was changed after it was written: line \d+ does not follow"):
            ask(paths, Rehearsed(1), journal=journal)
        assert journal.read_text() == "".join(lines)


def chained(lines: list[str], change: Any) -> list[str]:
    """The lines with their events changed, and a chain that fits: what only whoever writes a new journal does."""
    chain, made = "", []
    for number, line in enumerate(lines):
        trial = json.loads(line)
        event = change(number, trial["event"])
        chain = digest_of([chain, event])
        made.append(json.dumps({**trial, "event": event, "chain": chain}) + "\n")
    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"part": 9999}, "there is no part 9999 yet"),
        ({"digest": "0" * 64}, "part . is another one"),
        ({"tree": []}, "lacks 1 of its sides"),
        ({"tree": [["inf", False, []]]}, "the bound of a part is inf"),
        ({"tree": [["0 x", 0, "0x0.0p+0", "0x1.0p+0", False]]}, "a split is of number 0 of 0 x, where 0 can be split"),
        ({"tree": None}, "has no list 'tree'"),
    ],
)
def test_a_journal_that_contradicts_itself_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path, paths: tuple[Path, Path], whole: list[str]
) -> None:
    first = next(k for k, line in enumerate(whole) if "tree" in json.loads(line)["event"])
    lines = chained(whole, lambda k, event: {**event, **change} if k == first else event)
    (tmp_path / "bad").write_text("".join(lines))
    with pytest.raises(InvalidValueError, match=f"contradicts itself in case 1: .*{message}"):
        ask(paths, Rehearsed(1), journal=tmp_path / "bad")


def test_a_bound_is_no_verdict(tmp_path: Path, whole: list[str], paths: tuple[Path, Path]) -> None:
    """Leaves whose bounds are no longer above their goals are open again, and all that comes after still fits."""
    low = (-99.0).hex()

    def lower(_number: int, event: dict[str, Any]) -> dict[str, Any]:
        if "tree" not in event:
            return event
        tree = [[low, *step[1:]] if len(step) == 3 else step for step in event["tree"]]
        return {**event, "tree": tree}

    (tmp_path / "low").write_text("".join(chained(whole, lower)))
    lost = Rehearsed(2, change=body_changed(lambda body: {**body, "answers": []}))
    answer, search = ask(paths, lost, journal=tmp_path / "low", budget=Budget(seconds=2, first=0, second=0))
    assert answer.verdict is not Verdict.VERIFIED
    assert (search.parts["read"], search.parts["closed"]) == (len(whole) - 2, 0)


def test_a_journal_of_another_search_is_refused(tmp_path: Path, paths: tuple[Path, Path], whole: list[str]) -> None:
    journal = tmp_path / "whole"
    for other, words in (
        (files(tmp_path / "other", 9, 0.02, 0.02), "the property says something else"),
        (files(tmp_path / "another", 3, *TRUE), "the model has another SHA-256, and the model is read as another"),
    ):
        with pytest.raises(InvalidValueError, match=f"is the journal of another search: .*{words}"):
            ask(other, Rehearsed(1), journal=journal)
    options = dataclasses.replace(OPTIONS, pieces=3)
    with pytest.raises(InvalidValueError, match=r"the options are others; remove it, or choose another --journal"):
        ask(paths, Rehearsed(1), options=options, journal=journal)
    assert journal.read_text() == "".join(whole)


def test_a_journal_of_other_sources_is_refused(
    tmp_path: Path, paths: tuple[Path, Path], whole: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert whole
    monkeypatch.setattr("vertex_softmax.runs.sources.of_answers", lambda **_: "another version")
    with pytest.raises(InvalidValueError, match="the sources of Vertex, or the versions of its libraries, are others"):
        ask(paths, Rehearsed(1), journal=tmp_path / "whole")


def test_a_file_that_is_no_journal_is_not_touched(tmp_path: Path, paths: tuple[Path, Path]) -> None:
    for text in ("some notes\n", '{"key": "0"}\n', "{}\n", '{"key": "a", "source": "b"}\n'):
        place = tmp_path / "notes"
        place.write_text(text)
        with pytest.raises(InvalidValueError):
            ask(paths, Rehearsed(1), journal=place)
        assert place.read_text() == text


def test_two_searches_do_not_write_one_journal(tmp_path: Path, paths: tuple[Path, Path]) -> None:
    identity = SharedTask(model="", spec="").identity(load_instance(*paths))
    with (
        TreeJournal(tmp_path / "tree", identity),
        pytest.raises(InvalidValueError, match=r"another process is writing .*; .* another --journal"),
        TreeJournal(tmp_path / "tree", identity),
    ):
        pass


def test_other_objectives_are_refused(tmp_path: Path, paths: tuple[Path, Path], whole: list[str]) -> None:
    lines = chained(whole, lambda _, event: {**event, "rows": "0" * 64} if "rows" in event else event)
    (tmp_path / "other").write_text("".join(lines))
    with pytest.raises(InvalidValueError, match="is about other objectives in case 1 than this search"):
        ask(paths, Rehearsed(1), journal=tmp_path / "other")


def test_a_tree_is_on_the_disk_before_it_counts(
    tmp_path: Path, paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it cannot be written, the search ends, and the part is still open."""
    real, counts = Journal.add, []

    def add(self: Journal, trials: Any) -> None:
        trials = list(trials)
        if any("tree" in trial["event"] for trial in trials):
            counts.append(1)
            raise InvalidValueError("the disk is full")
        real(self, trials)

    monkeypatch.setattr(Journal, "add", add)
    replaced = []
    monkeypatch.setattr(Ledger, "replace", lambda *given: replaced.append(given))
    with pytest.raises(InvalidValueError, match="the disk is full"):
        ask(paths, Rehearsed(1), journal=tmp_path / "tree")
    assert (len(counts), replaced) == (1, [])


class Spy:
    """Takes the request of the cascade, and answers nothing."""

    request: BranchRequest | None = None

    def prepare(self, case: int) -> None:
        assert case == 0

    def branch(self, request: BranchRequest, accept: Any, meanwhile: Any) -> Outcome:  # noqa: ARG002
        self.request = request
        open_ = torch.ones(len(request.aim.objectives), dtype=torch.long)
        return Outcome(torch.full((len(open_),), -9.0).double(), open_, 0, Stop.SECONDS)


def requested(paths: tuple[Path, Path]) -> BranchRequest:
    spy = Spy()
    verify_instance(load_instance(*paths), BLIND, options=OPTIONS, branching=spy)
    assert spy.request is not None
    return spy.request


def test_at_any_line_the_parts_cover_the_box_and_no_bound_is_above_a_value(
    tmp_path: Path, paths: tuple[Path, Path], whole: list[str]
) -> None:
    request = requested(paths)
    aim: Aim = request.aim
    codec = Codec.over(request.question, request.boxes, rules_of(OPTIONS))
    graph = request.question.graph
    x = torch.rand(400, *graph.input.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    values = graph.values(x)
    at = values[graph.output].reshape(len(x), -1) @ aim.objectives.reshape(len(aim.objectives), -1).mT
    rows = digest_of([list(aim.objectives.shape), numbers(aim.objectives)])
    identity = SharedTask(model="", spec="", options=OPTIONS).identity(load_instance(*paths))
    never = [-1e9] * len(aim.objectives)
    for k in range(2, len(whole) + 1):
        (tmp_path / "some").write_text("".join(whole[:k]))
        ledger = Ledger([1e9] * len(never), never)  # nothing is closed: all parts can be looked at
        with TreeJournal(tmp_path / "some", identity) as journal:
            assert journal.begin(0, rows, codec, ledger) == k - 2
        for objective in range(len(never)):
            parts: list[GivenPart] = [e.part for e in ledger.open.values() if e.part.objective == objective]
            inside = torch.stack([_inside(part, values, len(x)) for part in parts])
            assert inside.any(0).all()
            for part, here in zip(parts, inside, strict=True):
                assert not here.any() or part.bound <= float(at[here, objective].min()) + 1e-9


def _inside(part: GivenPart, values: Any, count: int) -> torch.Tensor:
    there = torch.ones(count, dtype=torch.bool)
    for split in part.splits:
        number = values[split.node].reshape(count, -1)[:, split.place]
        there &= number >= split.point if split.at_least else number <= split.point
    return there


def test_a_copy_goes_on_elsewhere(tmp_path: Path, paths: tuple[Path, Path], whole: list[str]) -> None:
    """The files are known by their content, not by their names."""
    moved = tmp_path / "moved"
    moved.mkdir()
    copies = tuple(Path(shutil.copy(path, moved / f"other{path.suffix}")) for path in paths)
    (tmp_path / "tree").write_text("".join(whole))
    answer, search = ask((copies[0], copies[1]), Rehearsed(1), journal=tmp_path / "tree")
    assert (answer.verdict, search.parts["read"]) == (Verdict.VERIFIED, len(whole) - 2)
    with shared(load_instance(*copies), (copies[0], copies[1]), Rehearsed(1), OPTIONS) as search:
        assert search.journal is None
