"""Trials of trained classifiers: measured once, right, resumable; no bound above an attack goes unnoticed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.lab.zoo import data_files
from vertex_lab.experiments import learned, published, tables
from vertex_lab.experiments.learned import Found, Setting, best_attack, bound_all, case, trials, violations
from vertex_lab.experiments.published import CROWN, HYBRID, crown_published, with_published
from vertex_lab.experiments.request import Request
from vertex_lab.zoo.datasets import digits, restricted
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.runs.demo import training
from vertex_softmax.runs.demo.model import Architecture
from vertex_softmax.runs.journal import Trial
from vertex_softmax.sets import Box, LinfBall

DATA = digits()
FEW = ("vertex", "ibp")
SETTING = Setting(
    name="Tiny, 4 tokens",
    data="digits",
    architecture=Architecture(image=8, patch=4, dim=8, heads=2, mlp=8, classes=10),
    epsilons=(0.005, 0.02),
    epochs=3,
    seeds=2,
    images=7,
    clean_correct=False,
    methods=FEW,
    training={**learned.TRAINING, "batch": 64, "lr": 1e-2},
)
CLEAN = dataclasses.replace(SETTING, clean_correct=True)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Found]:
    """A finished run that nobody changes."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("learned")
    return out, trials("tiny", [SETTING], Request(out))


@pytest.fixture
def out(made: tuple[Path, Found], tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made[0], tmp_path / "out"))


def lines(out: Path, name: str = "tiny") -> list[Trial]:
    return [json.loads(line) for line in (out / "journals" / f"{name}.jsonl").read_text().splitlines()]


def model_files(out: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (out / "models").iterdir()}


def forbid(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setattr(learned, name, lambda *_, what=name, **__: pytest.fail(f"{what} was called"))


def test_a_finished_run_is_read_and_nothing_is_measured(
    made: tuple[Path, Found], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, "bound_all", "pgd", "load")
    monkeypatch.setattr(training, "train", lambda *_, **__: pytest.fail("trained again"))
    before = (out / "journals" / "tiny.jsonl").read_bytes()
    seen: list[tuple[str, int, int]] = []
    again = trials("tiny", [SETTING], Request(out, progress=lambda *args: seen.append(args)))
    assert again == made[1]
    assert (out / "journals" / "tiny.jsonl").read_bytes() == before
    assert seen[-1] == (f"{SETTING.name}, seed 1", 14, 14)


def test_every_image_is_one_trial_of_each_seed_and_epsilon(made: tuple[Path, Found]) -> None:
    out, found = made
    assert [(t["seed"], t["epsilon"], t["image"]) for t in found.trials] == [
        (seed, epsilon, image) for seed in (0, 1) for epsilon in SETTING.epsilons for image in range(7)
    ]
    assert lines(out) == found.trials
    assert len({t["key"] for t in found.trials}) == len(found.trials)
    assert not violations(found.trials)
    for trial in found.trials:
        assert (trial["setting"], trial["data"], trial["device"]) == (SETTING.name, "digits", "cpu")
        assert trial["label"] == int(DATA.eval_labels[trial["image"]])


def test_misclassified_images_are_not_bounded(made: tuple[Path, Found], tmp_path: Path) -> None:
    out, found = made
    wrong = [t for t in found.trials if not t["correct"]]
    assert 0 < len(wrong) < len(found.trials)
    for seed in (0, 1):
        model = case(SETTING, DATA, seed, Request(out)).model
        said = model(DATA.eval_images[:7]).argmax(-1) == DATA.eval_labels[:7]
        for trial in (t for t in found.trials if t["seed"] == seed):
            assert trial["correct"] == bool(said[trial["image"]])
            assert ("bounds" in trial) == ("attack" in trial) == trial["correct"]
            if trial["correct"]:
                assert set(trial["bounds"]) == set(FEW)


def test_clean_correct_counts_the_first_correct_images(
    made: tuple[Path, Found], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (0, 1):
        of = case(CLEAN, DATA, seed, Request(out))
        right = [i for i in range(60) if int(of.model(DATA.eval_images[i : i + 1]).argmax()) == DATA.eval_labels[i]]
        assert of.chosen == right[:7]
        assert of.chosen != list(range(7))
    few = dataclasses.replace(CLEAN, images=10_000)
    assert len(case(few, DATA, 0, Request(out)).chosen) < len(DATA.eval_labels)
    monkeypatch.setattr(learned, "bound_all", faked)
    found = trials("clean", [CLEAN], Request(out))
    assert all(t["correct"] for t in found.trials)
    assert len(found.trials) == 2 * 2 * 7


def faked(_graph, ball: LinfBall, labels: torch.Tensor, methods) -> dict[str, list[dict[str, object]]]:
    """Bounds that take no time."""
    entry = {"worst": -10.0, "certified": False, "seconds": 0.1}
    return {method: [dict(entry) for _ in labels] for method in methods}


@pytest.fixture
def vertex_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of one method."""
    monkeypatch.setattr(tables, "LABELS", {"vertex": "Vertex"})


@pytest.mark.usefixtures("vertex_alone")
def test_rates_have_all_images_or_the_correct_ones_below_them(made: tuple[Path, Found]) -> None:
    """From the journal's own lines: the denominators and the means of the table."""
    out, found = made
    rows, _ = tables.rows([SETTING], found)
    assert len(rows) == 4
    for row in rows:
        here = [line for line in lines(out) if line["epsilon"] == row["ε"]]
        right = [line for line in here if line["correct"]]
        assert row["N"] == len(here) == 14
        if row["Method"] == "Vertex":
            assert row["Cert."] == sum(line["bounds"]["vertex"]["certified"] for line in right) / 14
            seeds = [[x["bounds"]["vertex"]["worst"] for x in right if x["seed"] == seed] for seed in (0, 1)]
            assert row["Lower"] == pytest.approx(sum(sum(s) / len(s) for s in seeds) / 2, abs=1e-12)
    assert any(row["Cert."] for row in rows)


def test_bounds_are_those_of_the_methods(made: tuple[Path, Found]) -> None:
    """Image by image, on the box written out."""
    out, found = made
    for seed in (0, 1):
        of = case(SETTING, DATA, seed, Request(out))
        graph = load(of.model, LinfBall(DATA.eval_images[:1], 0.0))
        for trial in (t for t in found.trials if t["seed"] == seed and t["correct"]):
            x, label = DATA.eval_images[trial["image"]][None], trial["label"]
            box = Box((x - trial["epsilon"]).clamp(0, 1), (x + trial["epsilon"]).clamp(0, 1))
            for method in FEW:
                worst = float(certify(graph, box, label, method).lower[0].min())
                assert trial["bounds"][method]["worst"] == pytest.approx(worst, abs=1e-9)
                assert trial["bounds"][method]["certified"] == (worst > 0)
            scores = of.model(x)[0]
            clean = float(scores[label] - max(score for j, score in enumerate(scores) if j != label))
            assert best_attack(trial) == min(trial["attack"].values()) <= clean


def test_a_method_added_later_is_measured_alone_and_merged(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {t["key"]: t for t in lines(out)}
    asked = []

    def watched(*arguments) -> dict[str, list[dict[str, object]]]:
        asked.append(tuple(arguments[3]))
        return bound_all(*arguments)

    monkeypatch.setattr(learned, "bound_all", watched)
    more = dataclasses.replace(SETTING, methods=(*FEW, "crown"))
    found = trials("tiny", [more], Request(out))
    assert set(asked) == {("crown",)}
    for trial in found.trials:
        old = before[trial["key"]]
        if trial["correct"]:
            assert {m: b for m, b in trial["bounds"].items() if m != "crown"} == old["bounds"]
            assert trial["bounds"]["crown"]["worst"] <= best_attack(trial)
            assert trial["attack"] == old["attack"]
        else:
            assert trial == old
    forbid(monkeypatch, "bound_all", "pgd")
    assert trials("tiny", [more], Request(out)) == found
    fewer = trials("tiny", [SETTING], Request(out))  # and what is there already does not matter to those who ask less
    assert [t["key"] for t in fewer.trials] == [t["key"] for t in found.trials]


def test_batches_are_parts_of_the_images_and_a_finished_one_is_kept(
    made: tuple[Path, Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def broken(_graph, ball: LinfBall, labels: torch.Tensor, methods) -> dict[str, list[dict[str, object]]]:
        sizes.append(len(labels))
        if len(sizes) == 3:
            raise KeyboardInterrupt
        return faked(_graph, ball, labels, methods)

    monkeypatch.setattr(learned, "TOGETHER", {"cpu": 3})
    monkeypatch.setattr(learned, "bound_all", broken)
    request = Request(tmp_path, seeds=(1,))
    with pytest.raises(KeyboardInterrupt):
        trials("tiny", [SETTING], request)
    right = [t["correct"] for t in made[1].trials if t["seed"] == 1][:7]
    parts = [(e, range(first, min(first + 3, 7))) for e in SETTING.epsilons for first in (0, 3, 6)]
    bounded = [n for n, (_, images) in enumerate(parts) if any(right[i] for i in images)]
    kept = [(e, i) for e, images in parts[: bounded[2]] for i in images]
    assert [(t["epsilon"], t["image"]) for t in lines(tmp_path)] == kept
    found = trials("tiny", [SETTING], request)
    counts = [sum(right[i] for i in parts[n][1]) for n in bounded]
    assert sizes == counts[:3] + counts[2:]
    assert [(t["epsilon"], t["image"]) for t in found.trials] == [(e, i) for e in SETTING.epsilons for i in range(7)]
    for trial, alike in zip(found.trials, (t for t in made[1].trials if t["seed"] == 1), strict=True):
        assert trial["key"] == alike["key"]
        if trial["correct"]:
            assert trial["attack"] == pytest.approx(alike["attack"], abs=1e-9)


def test_a_trial_is_named_by_the_weights_that_gave_it(out: Path) -> None:
    """Other training settings in the same folder: another model, other trials, none of the old ones used."""
    other = dataclasses.replace(SETTING, epochs=1, seeds=1)
    found = trials("tiny", [other], Request(out))
    assert not {t["key"] for t in found.trials} & {t["key"] for t in lines(out)[:28]}


def test_a_trial_is_named_by_the_images_too(out: Path) -> None:
    """The same training data and other images to evaluate on: another test file beside MNIST's training files."""
    shuffled = dataclasses.replace(DATA, eval_images=DATA.eval_images.flip(0), eval_labels=DATA.eval_labels.flip(0))
    here, there = (case(SETTING, data, 0, Request(out)) for data in (DATA, shuffled))
    assert here.record["checksum"] != there.record["checksum"]
    assert here.key(0.02, 0) != there.key(0.02, 0)


def test_retraining_elsewhere_gives_the_same_bits(made: tuple[Path, Found], tmp_path: Path) -> None:
    out, _ = made
    fresh = Request(tmp_path / "elsewhere")
    torch.manual_seed(123)
    torch.set_num_threads(2)
    for seed in (0, 1):
        assert case(SETTING, DATA, seed, fresh).record == case(SETTING, DATA, seed, Request(out)).record
    assert model_files(tmp_path / "elsewhere") == model_files(out)
    assert len(model_files(out)) == 4
    assert len(set(model_files(out).values())) == 4


@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "gone", "not json"])
def test_a_damaged_model_is_trained_again(out: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = model_files(out)
    (weights, *_) = sorted((out / "models").glob("*0.safetensors"))
    content = weights.read_bytes()
    if how == "gone":
        weights.unlink()
    elif how == "not json":
        weights.with_suffix(".json").write_text("{")
    else:
        weights.write_bytes({"cut": content[:-9], "flipped": content[:-1] + b"!", "empty": b""}[how])
    forbid(monkeypatch, "bound_all")  # the trials of the same weights are still good
    trials("tiny", [SETTING], Request(out))
    assert model_files(out) == before


def test_the_papers_crown_and_hybrid_join_the_trials_and_are_kept(
    made: tuple[Path, Found], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some, per_target = dataclasses.replace(SETTING, epsilons=(0.02,)), 0
    request = Request(out, data_dir=out)
    found = trials("tiny", [some], request)
    assert [t["correct"] for t in found.trials] != sorted((t["correct"] for t in found.trials), reverse=True)
    joined = with_published("tiny", [some], found, request)
    assert [t["key"] for t in joined.trials] == [t["key"] for t in found.trials]
    models = [case(some, DATA, seed, request).model for seed in (0, 1)]
    graphs = [load(model, LinfBall(DATA.eval_images[:1], 0.0)) for model in models]
    for before, after in zip(found.trials, joined.trials, strict=True):
        if not before["correct"]:
            assert after == before
            continue
        graph, ball = graphs[before["seed"]], LinfBall(DATA.eval_images[before["image"]][None], 0.02, clip=(0, 1))
        (crown,) = crown_published(graph, ball, torch.tensor([before["label"]]))
        (vertex,) = certify(graph, ball, before["label"], "vertex").lower
        best = [max(float(a), float(b)) for a, b in zip(crown, vertex, strict=True)]
        assert after["bounds"].keys() == {*before["bounds"], CROWN, HYBRID}
        assert {m: after["bounds"][m] for m in before["bounds"]} == before["bounds"]
        for method, worst in ((CROWN, float(crown.min())), (HYBRID, min(best))):
            assert after["bounds"][method]["worst"] == pytest.approx(worst, abs=1e-9)
            assert after["bounds"][method]["certified"] == (worst > 0)
        per_target += min(best) > max(float(crown.min()), float(vertex.min())) + 1e-6
    assert per_target  # in some trial neither alone would do
    assert not violations(joined.trials)
    assert len(lines(out, "tiny-published")) == sum(t["correct"] for t in found.trials)
    monkeypatch.setattr(published, "published_bounds", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(published, "case", lambda *_: pytest.fail("loaded again"))
    assert with_published("tiny", [some, MNIST], found, request) == joined


def test_seeds_and_classes_as_asked_for(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "bound_all", faked)
    binary = dataclasses.replace(
        SETTING, name="Binary", classes=(3, 8), architecture=dataclasses.replace(SETTING.architecture, classes=2)
    )
    found = trials("tiny", [binary], Request(out, seeds=(5,)))
    kept = restricted(DATA, (3, 8))
    assert {t["seed"] for t in found.trials} == {5}
    assert {t["data"] for t in found.trials} == {"digits 3-8"}
    assert [t["label"] for t in found.trials[:7]] == kept.eval_labels[:7].tolist()
    assert set(kept.eval_labels.tolist()) == {0, 1}


def test_planted_bounds_above_the_attack_are_found(made: tuple[Path, Found]) -> None:
    found = json.loads(json.dumps(made[1].trials))
    assert violations(found) == []
    right = [t for t in found if t["correct"]]
    right[0]["bounds"]["vertex"]["worst"] = best_attack(right[0]) + 1e-6
    right[1]["bounds"]["ibp"]["worst"] = best_attack(right[1]) + 1e-12  # rounding
    right[2]["bounds"]["vertex"]["worst"] = None
    last = right[-1]
    last["attack"]["strong"] = last["bounds"]["vertex"]["worst"] - 1
    broken = violations(found)
    assert {text.split(": ")[0] for text in broken} == {right[0]["key"], last["key"]}
    assert f"above the attack's {best_attack(right[0])}" in broken[0]


def test_bounds_that_are_not_finite_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(
        worst=torch.tensor([-torch.inf, torch.nan, 2.0, -1.0]), certified=torch.tensor([False, False, True, False])
    )
    monkeypatch.setattr(learned, "certify", lambda *_, **__: answer)
    found = bound_all(None, LinfBall(torch.zeros(4, 1), 0.0), torch.zeros(4).long(), ["crown"])  # type: ignore[arg-type]
    assert [entry["worst"] for entry in found["crown"]] == [None, None, 2.0, -1.0]
    assert [entry["certified"] for entry in found["crown"]] == [False, False, True, False]


MNIST = dataclasses.replace(
    SETTING,
    name="Made-up",
    data="mnist",
    architecture=dataclasses.replace(SETTING.architecture, image=28, patch=14),
    epochs=1,
    images=3,
    seeds=1,
    published={0.02: {"Clean": 0.5, "Vertex Cert.": 0.123}},
)


@pytest.mark.usefixtures("vertex_alone")
def test_data_that_is_not_there_is_said_and_the_rest_is_run(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch, "bound_all")
    empty = out / "empty"
    found = trials("tiny", [MNIST, SETTING], Request(out, data_dir=empty))
    assert found.of(MNIST.name) == []
    assert len(found.of(SETTING.name)) == 28
    assert found.missing.keys() == {MNIST.name}
    assert f"no files of mnist in {empty}" in found.missing[MNIST.name]
    assert "vertex data fetch mnist" in found.missing[MNIST.name]
    rows, published = tables.rows([MNIST, SETTING], found)
    idle = [row for row in rows if row["Status"] == tables.NOT_RUN]
    assert {row["Benchmark"] for row in idle} == {MNIST.name}
    assert all(set(row) == {"Benchmark", "ε", "Method", "Status"} for row in idle)
    assert [theirs for theirs in published if theirs] == [{"Cert.": 0.123, "Clean": 0.5}]
    assert any(found.missing[MNIST.name] in note for note in tables.notes([MNIST, SETTING], found))


def test_data_in_the_folder_is_used_and_what_is_unusual_is_noted(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "bound_all", faked)
    files = data_files.mnist_files()
    data_files.write(out / "data" / "mnist", files)
    found = trials("tiny", [MNIST], Request(out, data_dir=out / "data"))
    assert len(found.of(MNIST.name)) == 2 * 3
    assert not found.missing
    assert "mnist" in found.notes  # these are not the official files
    data_files.registered(monkeypatch, "mnist", files)
    assert trials("tiny", [MNIST], Request(out, data_dir=out / "data")).notes == {}


@pytest.mark.parametrize("damage", ["cut", "absent labels"])
def test_damaged_data_is_an_error_and_not_called_missing(out: Path, damage: str) -> None:
    folder = data_files.write(out / "data" / "mnist", data_files.mnist_files(), packed=False)
    if damage == "cut":
        path = folder / "t10k-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:-5])
    else:
        (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InvalidValueError, match=r"t10k-.*vertex data fetch mnist"):
        trials("tiny", [MNIST], Request(out, data_dir=out / "data"))
