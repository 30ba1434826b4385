from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from tests.runs.made import inputs, network, subject_of
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.graph.identity import graph_identity
from vertex_softmax.methods.options import Options
from vertex_softmax.runs import evaluate as module
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.evaluate import EvaluatedPart, Plan, asked_of, contradictions, evaluate
from vertex_softmax.runs.journal import key_of
from vertex_softmax.runs.records import unpacked
from vertex_softmax.runs.run import Run, read
from vertex_softmax.runs.subject import Inputs, Subject

pytestmark = pytest.mark.usefixtures("exported_once")
EPS = (0.05, 0.3)
METHODS = ("ibp", "crown", "joint")
FEW = Options(ascent=Ascent(steps=5))
PLAN = Plan(attack_steps=10, attack_restarts=2, slack_inputs=3, search=FEW)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluate")


@pytest.fixture(scope="module")
def run(place: Path) -> Run:
    some = inputs()
    return evaluate(subject_of(some), some, METHODS, EPS, place, PLAN)


def test_answers_are_those_of_certify(run: Run, place: Path) -> None:
    some = inputs()
    assert read(place) == run
    assert len(run.answers) == len(METHODS) * len(EPS) * len(some)
    for eps in EPS:
        for method in METHODS:
            expected = certify(subject_of(some).graph, some.ball(eps), some.labels, method, options=FEW, attack=None)
            mine = [a for a in run.answers if a.method == method and a.eps == eps]
            assert [a.input for a in mine] == list(range(len(some)))
            assert [a.verdict for a in mine] == [str(v) for v in expected.verdicts]
            assert [a.bound for a in mine] == pytest.approx(expected.worst.tolist(), rel=1e-9)
            assert run.rate(method, eps) == pytest.approx(float(expected.certified.double().mean()))


def test_adversarial_inputs_are_in_the_set_and_misclassified(run: Run) -> None:
    some = inputs()
    kept = [a for a in run.attacks if a.adversarial is not None]
    assert kept
    assert len({a.input for a in kept}) == len(kept)  # one each, at the smallest ε
    for a in kept:
        x = torch.from_numpy(unpacked(a.adversarial or "", run.data.shape))[None]
        one = some.at([a.input])
        assert bool(one.ball(a.eps).contains(x))
        assert int(network()(x).argmax()) != int(one.labels)


def test_slack_adds_up(run: Run) -> None:
    assert run.slack is not None
    rows = sum(x for heads in run.slack.attentions for head in heads.row_slack for x in head)
    assert rows + sum(o.slack for o in run.slack.others) == pytest.approx(run.slack.total, rel=1e-9)
    assert all(x >= -1e-9 for heads in run.slack.attentions for head in heads.row_slack for x in head)
    assert all(w >= 0 for heads in run.slack.attentions for head in heads.score_width for row in head for w in row)
    assert run.slack.eps == max(EPS)
    assert run.slack.inputs == 3


def test_nothing_is_computed_twice(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("certify", "slack_map"):
        monkeypatch.setattr(module, name, None)
    monkeypatch.setattr(Subject, "attack", None)
    some = inputs()
    again = evaluate(subject_of(some), some, METHODS, EPS, place, PLAN)
    same = {"created": "", "seconds": 0.0}
    assert dataclasses.replace(again, **same) == dataclasses.replace(run, **same)  # type: ignore[arg-type]


def test_other_inputs_are_other_answers(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = inputs()
    moved = dataclasses.replace(some, clip=(-1.0, 2.0))
    monkeypatch.setattr(module, "certify", None)
    with pytest.raises(TypeError):  # the journal does not know them
        evaluate(subject_of(moved), moved, METHODS, EPS, place, PLAN)


def test_contradictions_are_found(run: Run) -> None:
    assert contradictions(run) == []
    attack = run.attacks[0]
    wrong = dataclasses.replace(run.answers[0], input=attack.input, eps=attack.eps, bound=attack.margin + 1e-6)
    assert "ibp" in contradictions(dataclasses.replace(run, answers=(wrong,)))[0]
    fooled = next(a for a in run.attacks if a.margin < 0)
    said = dataclasses.replace(wrong, input=fooled.input, eps=fooled.eps, verdict="verified", bound=fooled.margin - 1)
    assert contradictions(dataclasses.replace(run, answers=(said,)))


def test_a_bound_may_stop_once_it_decides(tmp_path: Path) -> None:
    some = inputs(2)
    plan = dataclasses.replace(PLAN, bounds_at=(), slack_inputs=0)
    run = evaluate(subject_of(some), some, ("joint",), (0.01,), tmp_path, plan)
    full = certify(subject_of(some).graph, some.ball(0.01), some.labels, "joint")
    assert [a.verdict for a in run.answers] == [str(v) for v in full.verdicts]
    assert run.slack is None


def test_progress_is_told(tmp_path: Path) -> None:
    parts: list[EvaluatedPart] = []
    some = inputs()
    evaluate(subject_of(some), some, ("ibp",), EPS, tmp_path, PLAN, parts.append)
    last = {(p.method, p.eps): p for p in parts}
    assert set(last) == {("ibp", 0.05), ("ibp", 0.3), ("attack", 0.05), ("attack", 0.3)}  # no slack: that is of `joint`
    assert last["ibp", 0.3].done == last["ibp", 0.3].total == len(some)


@pytest.mark.parametrize(
    ("methods", "eps", "text"),
    [((), (0.1,), "at least one"), (("ibp",), (), "at least one"), (("magic",), (0.1,), "magic")]
    + [(("ibp",), (bad,), "ε is") for bad in (-0.1, float("nan"), float("inf"))],
)
def test_bad_questions(tmp_path: Path, methods: tuple[str, ...], eps: tuple[float, ...], text: str) -> None:
    some = inputs(2)
    with pytest.raises(VertexError, match=text):
        evaluate(subject_of(some), some, methods, eps, tmp_path)


def test_a_read_only_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    some = inputs(2)
    with pytest.raises(VertexError, match="cannot be written"):
        evaluate(subject_of(some), some, ("ibp",), (0.1,), tmp_path / "file" / "out")


def test_the_file_is_plain_json(run: Run, place: Path) -> None:
    assert json.loads((place / "run.json").read_text())["model"]["name"] == "tiny"


def test_labels_that_are_no_classes(tmp_path: Path) -> None:
    some = inputs()
    for label in (3, -1):
        wrong = dataclasses.replace(some, labels=some.labels.clone().fill_(label))
        with pytest.raises(VertexError, match=f"label {label}"):
            evaluate(subject_of(some), wrong, ("ibp",), (0.1,), tmp_path)


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        [{}],
        {"attacks": 3, "seconds": 1.0},
        {"attacks": [], "seconds": "x"},
        [{"input": 7}] * 5,
        "right but moved",
    ],
)
def test_a_journal_is_nobodys_word(run: Run, place: Path, tmp_path: Path, found: object) -> None:
    """Lines under the right key that say something else."""
    some = inputs()
    for kind in ("certify", "attack"):
        lines = [json.loads(line) for line in (place / "journal.jsonl").read_text().splitlines()]
        line = next(line for line in lines if json.loads(line["key"])["question"] == kind)
        if found == "right but moved":
            said = line["found"] if kind == "certify" else line["found"]["attacks"]
            said[0]["input"], said[1]["input"] = said[1]["input"], said[0]["input"]
        else:
            line["found"] = found
        (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        with pytest.raises(VertexError, match="remove"):
            evaluate(subject_of(some), some, METHODS, EPS, tmp_path, PLAN)


def test_everything_an_answer_hangs_on_is_in_its_key() -> None:
    some = inputs()
    first = subject_of(some)
    plan = Plan()

    def key(subject: Subject = first, data: Inputs = some, eps: float = 0.1, plan: Plan = plan) -> str:
        return key_of("certify", eps=eps, options=plan.options(eps), **asked_of(subject, data))

    moved = some.x.clone()
    moved[0, 0, 0, 0] = torch.nextafter(moved[0, 0, 0, 0], torch.tensor(9.0).double())
    labels = (some.labels + 1) % 3
    search = Options(search=Search(seconds=11.0))
    others = [
        key(dataclasses.replace(first, sha256="0" * 63 + "1")),
        key(dataclasses.replace(first, graph=first.graph.to(torch.float32))),
        key(dataclasses.replace(first, sha256=graph_identity(first.graph.to(torch.float32)))),
        key(data=dataclasses.replace(some, x=moved)),
        key(data=dataclasses.replace(some, labels=labels)),
        key(data=dataclasses.replace(some, clip=None)),
        key(data=dataclasses.replace(some, clip=(0.0, 2.0))),
        key(data=some.at([0, 1])),
        key(data=dataclasses.replace(some, x=some.x.reshape(5, 4, 4, 1))),
        key(eps=0.1 + 2**-56),
        key(plan=Plan(bounds_at=())),
        key(plan=Plan(search=search)),
        key(plan=Plan(search=Options(product=0.5 + 2**-53))),
    ]
    assert len({key(), *others}) == len(others) + 1
    assert first.sha256 in key()
    assert some.sha256 in key()
    threads = torch.get_num_threads()
    try:
        before = key()
        torch.set_num_threads(threads + 1)
        assert key() != before
    finally:
        torch.set_num_threads(threads)


def test_a_line_that_the_network_itself_contradicts_is_refused(run: Run, place: Path, tmp_path: Path) -> None:
    """The last input is misclassified; no bound can be above the margin at the input itself."""
    some = inputs()
    last = len(some) - 1
    for number, change in ((last, {"verdict": "verified"}), (0, {"bound": run.inputs[0].clean + 1e-6})):
        lines = [json.loads(line) for line in (place / "journal.jsonl").read_text().splitlines()]
        line = next(line for line in lines if json.loads(line["key"])["question"] == "certify")
        line["found"][number] |= change
        (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        with pytest.raises(
            VertexError, match=f"input {number} .* the line does not belong to this network; remove the file"
        ):
            evaluate(subject_of(some), some, METHODS, EPS, tmp_path, PLAN)
