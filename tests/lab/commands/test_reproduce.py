"""`vertex reproduce` as its users meet it: what it refuses, what it passes on, what survives a kill, its exit codes."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests import forks
from tests.lab.zoo import data_files
from vertex_lab.commands import reproduce
from vertex_lab.experiments import (
    EXPERIMENTS,
    Column,
    Experiment,
    ExperimentResult,
    Request,
    learned,
    published,
    runtime,
    strong,
    tables,
)
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.cli.main import app
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.certify import certify
from vertex_softmax.search.attack import Attack
from vertex_softmax.sets import LinfBall

LEARNED = ("patch", "block", "strong", "runtime", "paired", "bootstrap", "numerical")
"""the experiments with trained models"""


def vertex(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Request]]:
    """Every experiment is a stub that notes what it is asked and fails where `threshold` is asked for seed 13."""
    found: list[tuple[str, Request]] = []

    def stub(name: str) -> Callable[[Request], ExperimentResult]:
        def run(request: Request) -> ExperimentResult:
            found.append((name, request))
            broken = ("a [bold]bound[/bold] is broken",) if name == "threshold" and request.seed == 13 else ()
            columns, rows = (Column("K"),), ({"K": 1},)
            result = ExperimentResult(name, name, columns, rows, ({},), (), {}, 0.5, failures=broken)
            result.save(request.out)
            return result

        return run

    for name, experiment in EXPERIMENTS.items():
        monkeypatch.setitem(EXPERIMENTS, name, Experiment(name, experiment.title, stub(name), experiment.table))
    return found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "there is no experiment 'nonsense'; choose one of threshold, .*, numerical or all"),
        (["slack", "--data", "imagenet"], "there is no data set 'imagenet'; choose one of digits, mnist"),
        (["slack", "--seeds", "1-"], "seeds is '1-'; write numbers with commas, or a range"),
        (["slack", "--seeds", "a"], "seeds is 'a'; write numbers"),
        (["slack", "--seeds", "3-1"], "'3-1' is not a range of at most 10,000 seeds"),
        (["slack", "--seeds", ""], "seeds is ''; write numbers"),
        (["slack", "--seeds", "1,,2"], "seeds is '1,,2'; write numbers"),
        (["slack", "--seeds", "-1"], "seeds is '-1'; write numbers"),
        (["slack", "--seeds", "1.5"], "seeds is '1.5'; write numbers"),
        (["slack", "--seeds", "²"], "seeds is '²'; write numbers"),
        (["slack", "--seeds", "0-10000"], "not a range of at most 10,000 seeds"),
        (["slack", "--seeds", "9" * 20], "a seed has at most 9 digits"),
        (["slack", "--seeds", f"0-{'9' * 5000}"], "a seed has at most 9 digits"),
        (["slack", "--device", "abacus"], "device is 'abacus'; choose cpu or cuda"),
        (["slack", "--device", "meta"], "device is 'meta'; choose cpu or cuda"),
    ],
)
def test_refused_in_one_line_before_anything_is_done(
    arguments: list[str], message: str, asked: list[Any], tmp_path: Path
) -> None:
    result = vertex(*arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert re.search(message, result.stderr)
    assert "Traceback" not in result.output
    assert not asked
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_cuda_is_refused(asked: list[Any], tmp_path: Path) -> None:
    for device in ("cuda", "cuda:1"):
        result = vertex("patch", "--device", device, "--out", tmp_path / "out")
        assert result.exit_code == 2
        assert "device is cuda, but torch finds no CUDA device here; choose cpu" in result.stderr
    assert not asked


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0", (0,)),
        ("0,1,2", (0, 1, 2)),
        ("0-4", (0, 1, 2, 3, 4)),
        (" 3 , 1-2,1,7", (3, 1, 2, 7)),
        ("5-5", (5,)),
        ("999999999", (999_999_999,)),
        ("0-9999", tuple(range(10_000))),
    ],
)
def test_seeds_in_words(text: str, seeds: tuple[int, ...]) -> None:
    assert reproduce._seeds(text) == seeds


def test_the_largest_seed_seeds_every_generator() -> None:
    next(strong.heads(6, 999_999_999, 1, 32))
    with pytest.raises(InvalidValueError):
        reproduce._seeds("1000000000")


def test_what_is_asked_for_reaches_the_experiment(asked: list[tuple[str, Request]], tmp_path: Path) -> None:
    options = ["--quick", "--seeds", "3,5-6", "--data", "digits", "--data-dir", tmp_path / "d", "--out", tmp_path / "o"]
    assert vertex("slack", *options).exit_code == 0
    assert vertex("slack", "--out", tmp_path / "o").exit_code == 0
    (_, first), (_, second) = asked
    assert (first.quick, first.seeds, first.data, first.device) == (True, (3, 5, 6), "digits", "cpu")
    assert (first.out, first.data_dir) == (tmp_path / "o", tmp_path / "d")
    assert (first.seed, first.chosen(2)) == (3, (3, 5, 6))
    assert (second.quick, second.seeds, second.data, second.data_dir) == (False, None, None, None)
    assert (second.seed, second.chosen(2)) == (0, (0, 1))


def test_json_is_one_document_and_all_is_all(asked: list[tuple[str, Request]], tmp_path: Path) -> None:
    result = vertex("all", "--json", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    documents = json.loads(result.stdout)
    assert list(documents) == [name for name, _ in asked] == list(EXPERIMENTS)
    assert documents == {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in EXPERIMENTS}
    one = vertex("slack", "--json", "--out", tmp_path)
    assert json.loads(one.stdout)["name"] == "slack"


@pytest.mark.usefixtures("asked")
def test_a_check_that_does_not_hold_is_exit_code_1_and_said(tmp_path: Path) -> None:
    result = vertex("all", "--seeds", "13", "--out", tmp_path)
    assert result.exit_code == 1
    assert "does not hold: threshold: a [bold]bound[/bold] is broken" in result.stderr
    assert (tmp_path / "index.html").exists()
    assert {f"{name}.json" for name in EXPERIMENTS} <= {path.name for path in tmp_path.iterdir()}
    assert vertex("threshold", "--out", tmp_path).exit_code == 0


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("name", ["a[b]c", "x [/red] y", "[bold]", "a very long name " * 9])
def test_any_folder_name_is_written_as_it_is(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    result = vertex("slack", "--out", out)
    assert result.exit_code == 0, result.output
    assert f"written: {out / 'slack'}.json, .md, .csv, .tex" in result.stderr
    assert f"summary: {out / 'index.html'}" in result.stderr


def test_the_examples_of_the_help_work(asked: list[tuple[str, Request]], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = vertex("--help").stdout
    for option in ("--quick", "--data", "--data-dir", "--seeds", "--device", "--out", "--json"):
        assert option in text
    examples = re.findall(r"^    vertex (reproduce .+)$", reproduce.reproduce.__doc__ or "", re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        assert f"    vertex {example}" in text
        result = CliRunner().invoke(app, shlex.split(example))
        assert result.exit_code == 0, example
    assert len(asked) == 1 + len(EXPERIMENTS)


@pytest.mark.parametrize("place", ["out", "journals"])
def test_an_out_that_cannot_be_written_is_said(place: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if place == "out":
        out.write_text("a file")
    else:
        out.mkdir()
        (out / "journals").write_text("a file")
    result = vertex("slack", "--out", out)
    assert result.exit_code == 2
    assert "slack.jsonl cannot be written" in result.stderr
    assert "choose another --out" in result.stderr


def test_a_damaged_journal_is_said(tmp_path: Path) -> None:
    (tmp_path / "journals").mkdir()
    (tmp_path / "journals" / "slack.jsonl").write_text("nonsense\n")
    result = vertex("slack", "--out", tmp_path)
    assert result.exit_code == 2
    assert "slack.jsonl, line 1 is not a trial" in result.stderr
    assert "Traceback" not in result.output


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(_request: Request) -> ExperimentResult:
        raise KeyboardInterrupt

    monkeypatch.setitem(EXPERIMENTS, "slack", Experiment("slack", "", run, "tab:"))
    result = vertex("slack", "--out", tmp_path)
    assert result.exit_code == 130
    assert "interrupted" in result.stderr


FEW = functools.partial(
    Search, domains=2, tried=2, root=Ascent(steps=2), ascent=Ascent(steps=2, step_size=0.01)
)  # which ends before its time, wherever it runs


def few_steps(*given: Any, options: Options | None = None, **more: Any) -> Any:
    return certify(*given, options=dataclasses.replace(options or Options(), ascent=Ascent(steps=5)), **more)


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Training, bounds and attacks that take no time; `worst` is what every bound says, attacks find 1."""
    says = {"worst": 0.5, "calls": 0}

    def entry() -> dict[str, Any]:
        return {"worst": says["worst"], "certified": says["worst"] > 0, "seconds": 0.01}

    def bound_all(_graph: Any, _ball: LinfBall, labels: torch.Tensor, methods: Any) -> dict[str, list[Any]]:
        says["calls"] += 1
        return {method: [entry() for _ in labels] for method in methods}

    def pgd(_graph: Any, ball: LinfBall, labels: torch.Tensor, **_: Any) -> Attack:
        return Attack(torch.ones(len(labels), 10, dtype=torch.float64), ball.x)

    def published_bounds(_graph: Any, ball: LinfBall, _labels: torch.Tensor) -> list[dict[str, Any]]:
        says["calls"] += 1
        return [{published.CROWN: entry(), published.HYBRID: entry()} for _ in range(len(ball))]

    def one(*_: Any) -> dict[str, float]:
        says["calls"] += 1
        stages = [f"{method}: total" for method in ("vertex", *runtime.OURS)]
        return dict.fromkeys(["CROWN (softmax taken apart)", "vertex: sort/sweep", *stages], 0.25)

    for module in (learned, strong):
        monkeypatch.setattr(module, "bound_all", bound_all)
        monkeypatch.setattr(module, "pgd", pgd)
    for module in (published, strong):
        monkeypatch.setattr(module, "published_bounds", published_bounds)
    for module in (learned, published, runtime):
        monkeypatch.setattr(module, "load", lambda *_: None)
    monkeypatch.setattr(runtime, "_one", one)
    monkeypatch.setattr(strong, "certify", few_steps)
    monkeypatch.setattr(strong, "Search", FEW)
    monkeypatch.setattr(tables, "QUICK_IMAGES", 2)
    monkeypatch.setattr(tables, "DIGITS_EPOCHS", 1)
    monkeypatch.setattr(strong, "QUICK_TRIALS", 1)
    return says


@pytest.mark.slow
def test_every_learned_experiment_runs_on_digits(cheap: dict[str, float], tmp_path: Path) -> None:
    for name in LEARNED:
        result = vertex(name, "--quick", "--data", "digits", "--seeds", "1", "--out", tmp_path)
        assert result.exit_code == 0, result.output
        data = json.loads((tmp_path / f"{name}.json").read_text())
        assert data["settings"] | {"quick": True, "data": "digits", "seeds": "1"} == data["settings"]
        assert data["failures"] == []
        if name != "strong":  # the residual block is not split
            assert all(row["Status"] != "not run here" for row in data["rows"])
        first = {str(next(iter(row.values()))) for row in data["rows"]}
        if name not in {"runtime", "numerical"}:
            assert all(text.startswith(("digits ", "K=")) for text in first)
        for row, theirs in zip(data["rows"], data["published"], strict=True):
            ours = next(iter(row.values()))
            assert not theirs or str(ours).startswith("K=") or ours == "interval regression", (name, ours)
        assert (tmp_path / f"{name}.tex").exists()
    journals = {path.stem for path in (tmp_path / "journals").iterdir()}
    with_published = {"patch", "block", "strong", "strong-residual"}
    others = {"runtime", "interval", "strong-bab", "numerical-proofs"}
    assert journals == {*with_published, *(f"{name}-published" for name in with_published), *others}
    calls = cheap["calls"]
    for name in LEARNED:  # and what is there is not measured again
        assert vertex(name, "--quick", "--data", "digits", "--seeds", "1", "--out", tmp_path).exit_code == 0
    assert cheap["calls"] == calls
    assert (tmp_path / "index.html").read_text().count("digits d=32,h=4,m=64") > 1


@pytest.mark.parametrize("name", ["patch", "strong"])
def test_a_bound_above_the_attack_is_exit_code_1(name: str, cheap: dict[str, float], tmp_path: Path) -> None:
    cheap["worst"] = 1.5
    result = vertex(name, "--quick", "--seeds", "0", "--out", tmp_path)
    assert result.exit_code == 1
    assert re.search(rf"does not hold: {name}: .* 1\.5 above the attack's 1\.0", result.stderr)
    assert "- DOES NOT HOLD: " in result.stdout
    assert json.loads((tmp_path / f"{name}.json").read_text())["failures"]


@pytest.mark.usefixtures("cheap")
def test_missing_data_is_said_and_damaged_data_is_an_error(tmp_path: Path) -> None:
    result = vertex("patch", "--data-dir", tmp_path / "data", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "not run here" in result.stdout
    assert f"vertex data fetch mnist --data-dir {tmp_path / 'data'}" in result.stdout
    folder = data_files.write(tmp_path / "data" / "mnist", data_files.mnist_files(), packed=False)
    images = folder / "t10k-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-5])
    result = vertex("patch", "--data-dir", tmp_path / "data", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "t10k-images-idx3-ubyte" in result.stderr
    assert "vertex data fetch mnist" in result.stderr
    assert "not run here" not in result.stdout


COMMAND = ("reproduce", "strong", "--quick", "--out")


def smaller(change: Callable[[Any, str, Any], None]) -> None:
    """One size of four heads, and one ε of the residual block with two images; ascents and searches of few steps."""
    change(learned, "certify", few_steps)
    change(strong, "certify", few_steps)
    change(strong, "Search", FEW)
    change(strong, "BLOCKS", strong.BLOCKS[:1])
    change(strong, "SEEDS", 1)
    change(strong, "RESIDUAL", dataclasses.replace(strong.RESIDUAL, epsilons=(0.03,), seeds=1))
    change(tables, "QUICK_IMAGES", 2)
    change(tables, "DIGITS_EPOCHS", 2)


def small(*arguments: str) -> None:
    """`vertex` with a smaller `strong`."""
    smaller(setattr)
    forks.vertex(*arguments)


def lines(out: Path, name: str) -> list[dict[str, Any]]:
    path = out / "journals" / f"{name}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def stop(process: Any, out: Path, after: int, name: str, how: signal.Signals) -> None:
    """Send a signal when the journal has so many lines; the process must still be running then."""
    while process.poll() is None and len(lines(out, name)) < after:
        time.sleep(0.002)
    assert process.poll() is None, process.communicate()
    process.send_signal(how)
    _, errors = process.communicate(timeout=120)
    assert not (out / "strong.json").exists()
    if how == signal.SIGINT:
        assert process.returncode == 130, errors
        assert "interrupted" in errors
        assert "Traceback" not in errors
    else:
        assert process.returncode == -how


def table(out: Path) -> tuple[Any, ...]:
    """Everything but the seconds."""
    data = json.loads((out / "strong.json").read_text())
    rows = [{name: cell for name, cell in row.items() if name != "Sec./trial"} for row in data["rows"]]
    return rows, data["published"], data["notes"], data["failures"]


def same(cut: Path, whole: Path) -> None:
    """The same table, and of the same trials, none measured twice."""
    assert table(cut) == table(whole)
    names = sorted(path.stem for path in (whole / "journals").iterdir())
    assert names == ["strong", "strong-bab", "strong-published", "strong-residual", "strong-residual-published"]
    for name in names:
        keys = [line["key"] for line in lines(cut, name)]
        assert keys == [line["key"] for line in lines(whole, name)]
        assert len(set(keys)) == len(keys) > 0
    assert not list(cut.rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_killed_runs_go_on_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    stop(forks.Forked(tmp_path, small, *COMMAND, str(cut)), cut, 1, "strong", signal.SIGINT)
    stop(forks.Forked(tmp_path, small, *COMMAND, str(cut)), cut, 3, "strong", signal.SIGKILL)
    smaller(monkeypatch.setattr)
    for out in (whole, cut):
        assert vertex(*COMMAND[1:], out).exit_code == 0
    same(cut, whole)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_whole_quick_run_is_killed_and_goes_on(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    command = [str(Path(sys.executable).with_name("vertex")), *COMMAND]
    for after, name in ((1, "strong"), (7, "strong"), (20, "strong-published"), (35, "strong"), (8, "strong-residual")):
        process = subprocess.Popen([*command, str(cut)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        stop(process, cut, after, name, signal.SIGKILL)
    for out in (whole, cut):
        subprocess.run([*command, str(out)], check=True, capture_output=True)
    same(cut, whole)


def test_a_journal_that_says_something_else_is_no_traceback(tmp_path: Path) -> None:
    assert vertex("slack", "--quick", "--seeds", "0", "--out", tmp_path).exit_code == 0
    path = tmp_path / "journals" / "slack.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for found in (None, [], {"x": 1}):
        path.write_text("".join(json.dumps({**line, "found": found}) + "\n" for line in lines))
        result = vertex("slack", "--quick", "--seeds", "0", "--out", tmp_path)
        assert result.exit_code == 2
        assert "move the journals away" in result.stderr
        assert "Traceback" not in result.output
