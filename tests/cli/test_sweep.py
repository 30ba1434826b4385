"""`vertex sweep` as its users meet it: what it refuses, what it believes, what survives a kill, files and exit codes.

Most children are a small program that does what its property tells it to; those of one test are the real command.
"""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.forks import Forked
from tests.forks import vertex as vertex_itself
from tests.processes import gone
from tests.runs.sweep.sweeps import (
    ERROR,
    QUICK,
    TIMEOUT,
    UNSAT,
    WORDS,
    Instant,
    benchmark,
    lines,
    ran,
    rows,
    started,
    telling,
    vertex,
)
from tests.search.small import network
from vertex_softmax.cli import sweep as cli_sweep
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.outputs import Outputs
from vertex_softmax.runs import journal, processes
from vertex_softmax.runs.sweep import runner, sweep
from vertex_softmax.runs.sweep.instances import read_instances

pytestmark = pytest.mark.usefixtures("one_source_and_thread")


def test_every_answer_of_the_real_command(tmp_path: Path) -> None:
    folder = tmp_path / "a bench, ünd"
    (folder / "onnx").mkdir(parents=True)
    model = network((np.eye(2), np.zeros(2)), "Relu", (np.eye(2), np.zeros(2)))
    (folder / "onnx" / "two, relu.onnx").write_bytes(model)
    (folder / "cut.onnx").write_bytes(model[:60])
    declared = "".join(f"(declare-const {letter}_{i} Real)\n" for letter in "XY" for i in (0, 1))
    box = "".join(f"(assert (>= X_{i} 0.0))\n(assert (<= X_{i} 1.0))\n" for i in (0, 1))
    (folder / "holds é.vnnlib").write_text(f"{declared}{box}(assert (>= Y_0 1.5))\n")
    (folder / "fails.vnnlib.gz").write_bytes(gzip.compress(f"{declared}{box}(assert (>= Y_0 0.5))\n".encode()))
    (folder / "instances.csv").write_text(
        "\ufeffonnx,vnnlib,timeout\r\n"
        '"onnx/two, relu.onnx",holds é.vnnlib,60\r\n\r\n'
        '"onnx/two, relu.onnx", ./fails.vnnlib ,60.0\r\n'
        "cut.onnx,fails.vnnlib,60\r\n"
        '"onnx/two, relu.onnx",holds é.vnnlib,0.05\r\n'
    )
    out = tmp_path / "out"
    result = vertex(folder / "instances.csv", "--out", out, "--jobs", 2)
    assert result.exit_code == 1, result.output
    found = list(csv.reader(io.StringIO((out / "results.csv").read_text())))
    names = [("onnx/two, relu.onnx", "holds é.vnnlib"), ("onnx/two, relu.onnx", "./fails.vnnlib")]
    names += [("cut.onnx", "fails.vnnlib"), names[0]]
    assert [tuple(row[1:3]) for row in found] == names
    assert [row[4] for row in found] == ["unsat", "sat", "error", "timeout"]
    assert all(row[0] == "a bench, ünd" and row[3] == "0" and float(row[5]) > 0 for row in found)
    (place,) = (out / "counterexamples").iterdir()
    assert place.read_text().startswith("((X_0 ")
    assert place.read_text().endswith("))\n")
    by_status = {line["status"]: line for line in lines(out)}
    assert by_status["sat"]["counterexample"] == f"counterexamples/{place.name}"
    assert by_status["unsat"]["bounds"] == [[0.5]]
    assert "not an ONNX file" in by_status["error"]["reason"]
    assert "not an ONNX file" in result.stderr
    assert "1 of 4 ended in an error; the same command tries those again" in result.stderr
    table = [line.split() for line in result.stdout.splitlines()]
    assert table[2] == ["model", *WORDS, "mean", "s", "decided", "s"]
    assert [row[:-2] for row in table if row[:1] in (["onnx/two,"], ["cut.onnx"], ["all"])] == [
        ["onnx/two,", "relu.onnx", "1", "1", "0", "1", "0"],
        ["cut.onnx", "0", "0", "0", "0", "1"],
        ["all", "1", "1", "0", "1", "1"],
    ]


def test_files_and_summary(tmp_path: Path, fake: tuple[str, ...]) -> None:
    told = benchmark(tmp_path / "bench", QUICK)
    result = vertex(told, "--out", tmp_path / "out", "--json", "--seed", 7, "--method", "crown")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {key: found[key] for key in ("benchmark", "method", "seed", "instances", "finished", "interrupted")} == {
        "benchmark": "bench",
        "method": "crown",
        "seed": 7,
        "instances": 5,
        "finished": 5,
        "interrupted": False,
    }
    assert [found["total"][word] for word in WORDS] == [1, 1, 1, 1, 1]
    first, second = found["models"]
    assert (first["model"], [first[word] for word in WORDS]) == ("a.onnx", [1, 0, 1, 0, 1])
    assert (second["model"], [second[word] for word in WORDS]) == ("b.onnx", [0, 1, 0, 1, 0])
    assert 0 < first["mean_seconds_decided"] < 5
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "journal.jsonl",
        "results.csv",
        "summary.json",
        "counterexamples",
    }
    for line in lines(tmp_path / "out"):
        assert line["key"] == f"{line['model']}|{line['spec']}|5.0|crown|7"
        assert "X_" not in json.dumps(line)
        assert "1.0, 1.0" not in json.dumps(line)
    assert "[5/5] error" in result.stderr
    assert "the [bold]model[/bold] is odd" in result.stderr
    assert "bound      0.25  a.onnx UNSAT.vnnlib" in result.stderr


def test_a_second_run_tries_errors_again_and_nothing_else(tmp_path: Path, fake: tuple[str, ...]) -> None:
    told, out = benchmark(tmp_path / "bench", QUICK), tmp_path / "out"
    assert vertex(told, "--out", out).exit_code == 1
    before = {key: value for key, value in rows(out).items() if key != "ERROR"}
    result = vertex(told, "--out", out)
    assert result.exit_code == 1
    assert "journal.jsonl: 4 of 5 are finished and kept; tried again, as it was an error: 1\n" in result.stderr
    assert ran(told.parent) == [*QUICK, "ERROR"]
    for name in ("a.onnx", "b.onnx"):  # another model of the same name is another instance
        (told.parent / name).write_bytes(b"another model")
    (told.parent / "ERROR.vnnlib").write_text(json.dumps(UNSAT))
    result = vertex(told, "--out", out)
    assert result.exit_code == 0
    assert "tried again, as it was an error: 1; run again, as a file or --memory has changed: 4" in result.stderr
    assert rows(out) == {**before, "ERROR": "unsat"}
    next((out / "counterexamples").iterdir()).unlink()
    assert "as a file or --memory has changed: 1\n" in vertex(told, "--out", out).stderr
    assert "for other instances, another method, timeout or seed" in vertex(told, "--out", out, "--seed", 1).stderr
    assert ran(told.parent) == [*QUICK, "ERROR", *QUICK, "SAT", *QUICK]
    assert vertex(told, "--out", out, "--limit", 2, "--timeout", 4).exit_code == 0
    assert list(rows(out)) == ["UNSAT", "SAT"]
    assert lines(out)[-1]["key"] == "b.onnx|SAT.vnnlib|4.0|bab|0"


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"code": 1}, "the process ended with exit code 1 without an answer; it said: this is said on stderr"),
        ({"code": 0}, "the process ended with exit code 0 without an answer"),
        (telling("unsat", 10), "the process ended with exit code 10, but its answer is 'unsat'"),
        (telling("sat", 0, found="(X_0 1)"), "exit code 0, but its answer is 'sat'"),
        (telling("sat", 10), "it said sat, but gave no counterexample"),
        (telling("verified", 0), "but its answer is 'verified'"),
        ({"answer": '{"status": "uns', "code": 0}, "without an answer"),
        ({"answer": '["unsat"]', "code": 0}, "without an answer"),
        ({"answer": '{"status": ["unsat"]}', "code": 0}, "but its answer is \\['unsat'\\]"),
        ({"answer": '{"status": "unsat", "nearest": NaN}', "code": 0}, "without an answer"),
    ],
)
def test_an_answer_that_cannot_be_believed_is_one_error(
    told: dict[str, Any], reason: str, tmp_path: Path, fake: tuple[str, ...]
) -> None:
    state = sweep.run(
        read_instances(benchmark(tmp_path / "bench", {"odd": told, "good": UNSAT})), tmp_path / "out", sweep.Settings()
    )
    odd, good = lines(tmp_path / "out")
    assert (odd["status"], good["status"]) == ("error", "unsat")
    with pytest.raises(ValueError, match=reason):
        raise ValueError(odd["reason"])
    assert odd["counterexample"] is None
    assert odd["attempts"] == 1
    assert sweep.summary(state)["total"]["error"] == 1


def test_a_child_that_outlives_its_time_is_killed(
    tmp_path: Path, fake: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "GRACE", 0.3)
    told = benchmark(tmp_path / "bench", {"slow": {**UNSAT, "sleep": 60, "deaf": True}, "good": UNSAT}, timeout=0.4)
    began = time.perf_counter()
    result = vertex(told, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert time.perf_counter() - began < 20
    assert rows(tmp_path / "out") == {"slow": "timeout", "good": "unsat"}
    assert gone(int(started(told.parent)[0][1]))


def test_processes_at_a_time_share_the_cores(
    tmp_path: Path, fake: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    told = benchmark(tmp_path / "bench", {f"n{i}": {**UNSAT, "sleep": 0.3} for i in range(6)})
    most = 0

    def watch(state: sweep.State, _line: Any) -> None:
        nonlocal most
        most = max(most, len(state.running))

    sweep.run(read_instances(told), tmp_path / "out", sweep.Settings(jobs=3), watch=watch)
    assert most == 3
    assert {(words[2], words[4]) for words in started(told.parent)} == {("2", "2")}
    assert sweep.Settings(jobs=99).threads == 1


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    told = benchmark(tmp_path / "bench", {"one": {}})

    class Changing(Instant):
        def start(self, key: str, instance: sweep.Instance, files: dict[str, str]) -> None:
            instance.model_path.write_bytes(b"another model")
            super().start(key, instance, files)

    sweep.run(read_instances(told), tmp_path / "out", sweep.Settings(), begin=Changing)
    assert lines(tmp_path / "out")[0]["reason"] == "the model or the property was changed while it was read"


def test_a_file_that_is_replaced_and_put_back_meanwhile_is_an_error(tmp_path: Path) -> None:
    told = benchmark(tmp_path / "bench", {"one": {}})

    class Changing(Instant):
        def start(self, key: str, instance: sweep.Instance, files: dict[str, str]) -> None:
            data = instance.model_path.read_bytes()
            instance.model_path.write_bytes(b"another model")
            super().start(key, instance, files)
            instance.model_path.write_bytes(data)

    sweep.run(read_instances(told), tmp_path / "out", sweep.Settings(), begin=Changing)
    assert lines(tmp_path / "out")[0]["reason"] == "the model or the property was changed while it was read"


def test_a_counterexample_of_another_run_is_not_taken_for_this_ones(tmp_path: Path, fake: tuple[str, ...]) -> None:
    told, out = benchmark(tmp_path / "bench", {"SAT": QUICK["SAT"]}), tmp_path / "out"
    assert vertex(told, "--out", out).exit_code == 0
    (place,) = (out / "counterexamples").iterdir()
    before = place.read_bytes()
    place.write_text("((X_0 7))\n")  # as a killed run about another model may leave it
    assert vertex(told, "--out", out).exit_code == 0
    assert place.read_bytes() == before
    assert ran(told.parent) == ["SAT", "SAT"]
    assert vertex(told, "--out", out).exit_code == 0
    assert ran(told.parent) == ["SAT", "SAT"]


def test_names_with_bars_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b|c", "a|b", "c"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "instances.csv").write_text("a,b|c,1\na|b,c,1\n")
    state = sweep.run(read_instances(tmp_path / "instances.csv"), tmp_path / "out", sweep.Settings(), begin=Instant)
    assert len(state.lines) == 2


def swept(command: tuple[str, ...], *arguments: str) -> None:
    """`vertex sweep` with the small program as its children."""
    sweep.source = lambda: "these sources"
    runner.COMMAND = command
    vertex_itself("sweep", *arguments)


def after(told: Path, out: Path, command: tuple[str, ...], started: int, number: int) -> tuple[int | None, str]:
    """A sweep in a process of its own, signalled once so many children were started; its exit code, what it said."""
    process = Forked(told.parent, swept, command, str(told), "--out", str(out))
    limit = time.monotonic() + 60
    while len(ran(told.parent)) < started:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    return process.returncode, said


def test_nothing_is_lost_and_nothing_runs_twice_after_signals(tmp_path: Path, fake: tuple[str, ...]) -> None:
    names = [f"n{i}" for i in range(8)]
    slow = {"n1", "n3", "n5"}  # which are under way when the signals come
    told = benchmark(tmp_path / "bench", {n: {**UNSAT, "sleep": 60 if n in slow else 0} for n in names}, timeout=90)
    out = tmp_path / "out"
    code, _ = after(told, out, fake, 2, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert [line["spec"] for line in lines(out)] == ["n0.vnnlib"]
    with (out / "journal.jsonl").open("a") as file:
        file.write('{"key": "a line that was being wr')
    (told.parent / "n1.vnnlib").write_text(json.dumps(UNSAT))

    code, said = after(told, out, fake, 5, signal.SIGINT)
    assert code == 130, said
    assert "1 of 8 are finished and kept" in said
    assert f"interrupted: 3 of 8 instances are finished and kept in {out}; the same command goes on from there" in said
    assert "Traceback" not in said
    assert rows(out) == {"n0": "unsat", "n1": "unsat", "n2": "unsat"}
    assert json.loads((out / "summary.json").read_text())["interrupted"] is True
    (told.parent / "n3.vnnlib").write_text(json.dumps(UNSAT))

    code, said = after(told, out, fake, 8, signal.SIGTERM)
    assert code == 143, said
    assert "interrupted: 5 of 8" in said
    (told.parent / "n5.vnnlib").write_text(json.dumps(UNSAT))

    assert vertex(told, "--out", out).exit_code == 0
    assert rows(out) == dict.fromkeys(names, "unsat")
    assert ran(told.parent) == ["n0", "n1", "n1", "n2", "n3", "n3", "n4", "n5", "n5", "n6", "n7"]
    assert all(gone(int(words[1])) for words in started(told.parent))
    assert not (out / ".running").exists()


def test_a_deaf_child_is_killed_when_the_sweep_is_stopped(
    tmp_path: Path, fake: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PATIENCE", 0.3)
    told = benchmark(tmp_path / "bench", {"slow": {**UNSAT, "sleep": 60, "deaf": True}}, timeout=90)
    state = sweep.run(read_instances(told), tmp_path / "out", sweep.Settings(), stopping=lambda: bool(ran(told.parent)))
    assert state.interrupted
    assert not lines(tmp_path / "out")
    assert gone(int(started(told.parent)[0][1]))


def test_a_child_whose_parent_is_gone_does_not_begin() -> None:
    gone = {**os.environ, processes.PARENT: "1"}
    program = f"import runpy; runpy.run_path({processes.__file__!r})['end_with_parent']()"
    assert subprocess.run([sys.executable, "-I", "-c", program], env=gone, check=False).returncode == 143


def test_a_folder_that_cannot_be_written(tmp_path: Path, fake: tuple[str, ...]) -> None:
    told = benchmark(tmp_path / "bench", {"UNSAT": UNSAT})
    (tmp_path / "file").write_text("not a folder")
    for out in (tmp_path / "file", tmp_path / "file" / "out", Path("/proc/vertex")):
        result = vertex(told, "--out", out)
        assert result.exit_code == 2
        assert "cannot be written" in result.stderr
        assert "choose another --out" in result.stderr
        assert not ran(told.parent)


def test_a_full_disk_loses_nothing(tmp_path: Path, fake: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    told, out, calls = benchmark(tmp_path / "bench", {f"n{i}": UNSAT for i in range(4)}), tmp_path / "out", []

    def full(number: int) -> None:
        calls.extend([number] * os.path.samestat(os.fstat(number), (out / "journal.jsonl").stat()))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(journal.os, "fsync", full)
        result = vertex(told, "--out", out)
    assert result.exit_code == 2
    assert "journal.jsonl: No space left on device; what was written before is kept" in result.stderr
    assert rows(out) == {"n0": "unsat"}

    def fuller(path: Path, content: bytes, _outputs: Outputs) -> Path:
        if path.name == "results.csv":
            raise OSError(errno.EROFS, "Read-only file system")
        return path.write_bytes(content) and path

    with monkeypatch.context() as patched:
        patched.setattr(sweep, "write_whole", fuller)
        result = vertex(told, "--out", out)
    assert result.exit_code == 2
    assert (
        "results.csv cannot be written (Read-only file system); the answers are kept in the journal beside it"
        in result.stderr
    )
    assert vertex(told, "--out", out).exit_code == 0
    assert rows(out) == dict.fromkeys(("n0", "n1", "n2", "n3"), "unsat")
    assert ran(told.parent) in (["n0", "n1", "n2", "n3"], ["n0", "n1", "n1", "n2", "n3"])


def test_an_error_that_is_the_disks_is_not_recorded(
    tmp_path: Path, fake: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, out = benchmark(tmp_path / "bench", {"good": UNSAT, "bad": {"code": 1}, "later": UNSAT}), tmp_path / "out"
    write, probes = runner.write_whole, []

    def full(path: Path, content: bytes) -> Path:
        probes.extend([path] * (path.name == "probe"))
        if len(probes) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(runner, "write_whole", full)
        result = vertex(told, "--out", out)
    assert result.exit_code == 2
    assert ".running cannot be written (No space left on device); what is finished is kept; make room" in result.stderr
    assert [line["spec"] for line in lines(out)] == ["good.vnnlib"]
    assert vertex(told, "--out", out).exit_code == 1
    assert rows(out) == {"good": "unsat", "bad": "error", "later": "unsat"}


def test_two_sweeps_in_one_folder(tmp_path: Path, fake: tuple[str, ...]) -> None:
    told, out = benchmark(tmp_path / "bench", {"UNSAT": UNSAT}), tmp_path / "out"
    with journal.Journal(out / "journal.jsonl", "these sources"):
        result = vertex(told, "--out", out)
    assert result.exit_code == 2
    assert f"another process is writing {out / 'journal.jsonl'}; wait for it, or choose another --out" in result.stderr
    assert not ran(told.parent)


def test_the_live_table(tmp_path: Path, fake: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(cli_sweep, "errors", Console(file=screen, force_terminal=True, width=150, color_system=None))
    told = benchmark(tmp_path / "bench", {"ERROR": ERROR, "UNSAT": UNSAT, "slow": {**TIMEOUT, "sleep": 0.7}})
    result = vertex(told, "--out", tmp_path / "out")
    assert result.exit_code == 1
    text = screen.getvalue()
    assert "worst bound" in text
    assert "error: a.onnx ERROR.vnnlib: the [bold]model[/bold] is odd" in text
    assert "2 of 3: 1 unsat, 0 sat, 0 unknown, 0 timeout, 1 error; about" in text
    assert "3 of 3: 1 unsat, 0 sat, 0 unknown, 1 timeout, 1 error" in text
    assert "runs" in text


def test_words() -> None:
    assert [cli_sweep._duration(s) for s in (3, 89, 600, 7200)] == ["3 s", "89 s", "10 min", "2.0 h"]
    bounds = ({}, *({"bounds": b} for b in ([], [[]], [[0.5], [0.25, 2.0]], [[None, 1.0]])))
    assert [cli_sweep._worst(b) for b in bounds] == ["–", "–", "–", "0.25", "−∞"]
    assert runner._ended(-99) == "the process was ended by signal 99"
    with pytest.raises(InvalidValueError, match="the timeout is"):
        read_instances(Path("any"), timeout=-1)
