"""Runners: what dies is tried once more and reported, memory is shared out, and nothing finished is lost."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.runs.sweep.sweeps import (
    ERROR,
    QUICK,
    SAT,
    UNKNOWN,
    UNSAT,
    Instant,
    answers,
    benchmark,
    child,
    lines,
    ran,
    rows,
    started,
)
from vertex_softmax.cli import sweep as cli_sweep
from vertex_softmax.cli.main import app
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs import machine
from vertex_softmax.runs.sweep import runner, sweep
from vertex_softmax.runs.sweep.instances import read_instances
from vertex_softmax.runs.sweep.runner import Finished, Local, Settings, failure

GIB = 2**30
KILLED = (
    "the process was ended by SIGKILL (is there no memory left?) without an answer; it said: this is said on stderr"
)


@pytest.fixture(autouse=True)
def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "COMMAND", child(tmp_path))
    monkeypatch.setattr(sweep, "source", lambda: "these sources")


def vertex(*arguments: str | Path | float) -> Any:
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def test_what_dies_is_tried_once_more_and_reported(tmp_path: Path) -> None:
    told = {"dies": {**UNSAT, "kill": signal.SIGKILL, "once": True}, **QUICK, "last": SAT}
    listed, out = benchmark(tmp_path / "bench", told), tmp_path / "out"
    result = vertex(listed, "--out", out)
    assert ran(listed.parent) == [*told, "dies"]  # after all that was waiting
    first, *others, again = lines(out)
    assert (first["status"], first["reason"], first["attempts"], first["retrying"]) == ("error", KILLED, 1, True)
    assert (again["status"], again["attempts"], again["retried"]) == ("unsat", 2, KILLED)
    assert "retrying" not in again
    assert {line["attempts"] for line in others} == {1}
    assert not any("retried" in line for line in others)
    assert rows(out) == {"dies": "unsat", **{name: name.lower() for name in QUICK}, "last": "sat"}
    found = json.loads((out / "summary.json").read_text())
    assert found["retried"] == 1
    assert found["total"]["error"] == 1  # that of QUICK
    assert f"tried again: a.onnx dies.vnnlib: {KILLED}" in result.stderr
    assert "1 of 7 were run twice, as the first try died; the journal says why (retried)" in result.stderr
    vertex(listed, "--out", out)
    assert json.loads((out / "summary.json").read_text())["retried"] == 1  # also when it is read from the journal
    assert ran(listed.parent) == [*told, "dies", "ERROR"]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"kill": signal.SIGKILL}, KILLED),
        ({"kill": signal.SIGSEGV}, "the process was ended by SIGSEGV without an answer"),
        ({"kill": signal.SIGTERM}, "the process was ended by SIGTERM without an answer"),
        ({"exit": 143}, "the process was ended by SIGTERM without an answer"),
        ({"exit": 130}, "the process was ended by SIGINT without an answer"),
    ],
)
def test_what_dies_twice_is_one_error(how: dict[str, Any], reason: str, tmp_path: Path) -> None:
    listed, out = benchmark(tmp_path / "bench", {"dies": {**UNSAT, **how}, "good": UNSAT}), tmp_path / "out"
    result = vertex(listed, "--out", out)
    assert result.exit_code == 1
    assert ran(listed.parent) == ["dies", "good", "dies"]
    last = lines(out)[-1]
    assert (last["status"], last["attempts"]) == ("error", 2)
    assert last["reason"].startswith(reason)
    assert last["retried"].startswith(reason)
    found = json.loads((out / "summary.json").read_text())
    assert (found["retried"], found["total"]["error"], found["finished"]) == (1, 1, 2)
    vertex(listed, "--out", out)  # an error is tried again, with one more try if it dies again
    assert ran(listed.parent) == ["dies", "good", "dies", "dies", "dies"]


@pytest.mark.parametrize(
    "told", [ERROR, {"code": 1}, {"code": 2}, {"code": 0}, {**UNSAT, "code": 3}, {**SAT, "found": ""}]
)
def test_an_ordinary_error_is_not_tried_again(told: dict[str, Any], tmp_path: Path) -> None:
    listed, out = benchmark(tmp_path / "bench", {"bad": told}), tmp_path / "out"
    assert vertex(listed, "--out", out).exit_code == 1
    assert ran(listed.parent) == ["bad"]
    (line,) = lines(out)
    assert (line["status"], line["attempts"]) == ("error", 1)
    assert "retried" not in line


def test_a_process_that_does_not_start_is_tried_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, out, tries = (
        benchmark(tmp_path / "bench", {"one": UNSAT, "two": UNSAT, "three": UNSAT}),
        tmp_path / "out",
        [],
    )
    real = runner.subprocess.Popen

    def no_room(command: list[str], **options: Any) -> Any:
        tries.append(Path(command[5]).stem)
        if tries[-1] == "two" or tries == ["one"]:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(command, **options)

    monkeypatch.setattr(runner.subprocess, "Popen", no_room)
    assert vertex(listed, "--out", out).exit_code == 1
    assert tries == ["one", "two", "three", "one", "two"]
    assert rows(out) == {"one": "unsat", "two": "error", "three": "unsat"}
    assert [line["retried"] for line in lines(out)[-2:]] == ["no process could be started: Cannot allocate memory"] * 2


def test_a_first_try_is_remembered_over_an_interruption(tmp_path: Path) -> None:
    listed, out = benchmark(tmp_path / "bench", {"dies": {**UNSAT, "kill": 9, "once": True}}), tmp_path / "out"
    chosen, settings = read_instances(listed), Settings()
    state = sweep.run(chosen, out, settings, stopping=lambda: (out / "journal.jsonl").stat().st_size > 0)
    assert state.interrupted
    assert sweep.summary(state)["finished"] == 0
    state = sweep.run(chosen, out, settings)
    assert (state.again, sweep.summary(state)["retried"]) == (1, 1)
    last = lines(out)[-1]
    assert (last["status"], last["attempts"], last["retried"]) == ("unsat", 2, KILLED)


def test_memory_is_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 7 * GIB)
    monkeypatch.setattr(machine, "memory_in_use", lambda _pid: GIB)  # of the 2 that each may take
    listed = benchmark(tmp_path / "bench", {f"n{i}": {**UNSAT, "sleep": 0.3} for i in range(9)})
    most, notes = 0, set()

    def watch(state: sweep.State, _line: Any) -> None:
        nonlocal most
        most = max(most, len(state.running))
        notes.add(state.note)

    settings = Settings(jobs=8, memory=2.0)
    sweep.run(read_instances(listed), tmp_path / "out", settings, watch=watch)
    assert most == 6  # six could still take one each: one is left, and not two
    assert notes == {"", "6 at a time and not 8, as each may use 2 GiB (--memory) and 7.0 are free while 6 run"}
    assert {words[3] for words in started(listed.parent)} == {"2.0"}
    assert {line["memory"] for line in lines(tmp_path / "out")} == {2.0}

    result = vertex(listed, "--out", tmp_path / "again", "--jobs", 8, "--memory", 2, "--limit", 7)
    assert "6 at a time and not 8, as each may use 2 GiB (--memory)" in result.stderr
    with pytest.raises(InvalidValueError, match=r"--memory is 8 GiB for each process, and 7\.0 are free; give less"):
        Local(Settings(memory=8), tmp_path)
    monkeypatch.setattr(machine, "available_memory", lambda: 0)  # others took it meanwhile
    held = Local(Settings(jobs=3), tmp_path)
    object.__setattr__(held.settings, "memory", 1.0)
    assert held.has_room()  # one always runs
    held.running["one"] = failure("")
    assert not held.has_room()
    monkeypatch.setattr(machine, "available_memory", lambda: None)
    assert held.has_room()  # where the system does not tell


def test_another_share_of_memory_asks_again_what_was_not_decided(tmp_path: Path) -> None:
    listed, out = benchmark(tmp_path / "bench", {"UNSAT": UNSAT, "SAT": SAT, "UNKNOWN": UNKNOWN}), tmp_path / "out"
    assert vertex(listed, "--out", out).exit_code == 0
    result = vertex(listed, "--out", out, "--memory", 1)
    assert "2 of 3 are finished and kept; run again, as a file or --memory has changed: 1" in result.stderr
    assert ran(listed.parent) == ["UNSAT", "SAT", "UNKNOWN", "UNKNOWN"]
    vertex(listed, "--out", out, "--memory", 1)
    assert len(ran(listed.parent)) == 4


def test_what_the_system_says_about_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.memory_in_use(os.getpid()) > 10**7
    assert machine.memory_in_use(2**30) == 0
    assert machine.cores() >= 1
    monkeypatch.setattr(machine, "SYSTEM", tmp_path)
    assert machine.available_memory() is None

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("proc/meminfo", "MemTotal:  20 kB\nMemAvailable:       16777216 kB\nHugePages_Total:  0\nodd\n")
    assert machine.available_memory() == 16 * GIB
    write("proc/self/cgroup", "9:cpu,cpuacct:/\n4:memory:/a/b\n0::/user:1/c\n")
    assert machine.available_memory() == 16 * GIB
    write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", str(8 * GIB))
    write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", str(3 * GIB))
    write("sys/fs/cgroup/memory/a/memory.stat", f"cache 5\ntotal_inactive_file {GIB}\n")
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    write("sys/fs/cgroup/memory/memory.usage_in_bytes", "0")
    assert machine.available_memory() == 6 * GIB
    write("sys/fs/cgroup/user:1/c/memory.max", "max\n")
    write("sys/fs/cgroup/user:1/c/memory.current", "5\n")
    write("sys/fs/cgroup/user:1/memory.max", f"{4 * GIB}\n")
    write("sys/fs/cgroup/user:1/memory.current", f"{GIB}\n")
    assert machine.available_memory() == 3 * GIB
    write("sys/fs/cgroup/user:1/memory.current", f"{9 * GIB}\n")
    assert machine.available_memory() == 0


def test_threads_are_those_asked_for_wherever_a_process_looks(tmp_path: Path) -> None:
    listed = benchmark(tmp_path / "bench", {"one": UNSAT, "two": UNSAT})
    assert vertex(listed, "--out", tmp_path / "out", "--jobs", 2, "--threads", 3).exit_code == 0
    assert {(words[2], words[4]) for words in started(listed.parent)} == {("3", "3")}
    assert {line["threads"] for line in lines(tmp_path / "out")} == {3}
    assert Settings(jobs=None).threads == 1
    assert Local(Settings(jobs=None, threads=1), tmp_path).jobs == machine.cores()


def test_the_same_answers_one_after_the_other_and_together(tmp_path: Path) -> None:
    listed = benchmark(tmp_path / "bench", {**QUICK, **{f"more{i}": SAT for i in range(5)}})
    for out, jobs in (("serial", 1), ("four", 4)):
        vertex(listed, "--out", tmp_path / out, "--jobs", jobs, "--threads", 1)
    assert answers(tmp_path / "serial") == answers(tmp_path / "four")
    assert rows(tmp_path / "serial") == rows(tmp_path / "four")
    assert list(rows(tmp_path / "four")) == [*QUICK, *(f"more{i}" for i in range(5))]


class Together(Instant):
    """All answers of a look at once: each instance gives the status that its property is named after."""

    def __init__(self, settings: Settings, places: Path) -> None:
        super().__init__(settings, places)
        self.stopped = 0

    def poll(self, wait: float) -> list[tuple[str, Finished]]:
        found = []
        for key, finished in super().poll(wait):
            status = key.split("|")[1].split(".")[0].rstrip("0123456789")
            found.append(
                (key, Finished({**finished.answer, "status": status}, "(X_0 1)\n" if status == "sat" else None))
            )
        return found

    def stop(self) -> None:
        self.stopped += 1


def test_what_finished_together_is_one_write_and_kept_if_one_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = benchmark(tmp_path / "bench", {name: {} for name in ("unsat1", "unsat2", "sat1", "unsat3")})
    out, made, adds = tmp_path / "out", [], []
    add = sweep.Journal.add

    def counted(self: Any, trials: list[Any]) -> None:
        adds.append(len(trials))
        add(self, trials)

    def begin(settings: Settings, places: Path) -> Together:
        made.append(Together(settings, places))
        return made[-1]

    monkeypatch.setattr(sweep.Journal, "add", counted)
    (out / "counterexamples").mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr(sweep, "write_whole", _refusing("counterexamples"))
        with pytest.raises(InvalidValueError, match="cannot be written"):
            sweep.run(read_instances(listed), out, Settings(), begin=begin)
    assert adds == [2]
    assert made[0].stopped == 1
    assert list(rows(out)) == ["unsat1", "unsat2"]
    state = sweep.run(read_instances(listed), out, Settings(), begin=begin)
    assert adds == [2, 2]
    assert (state.kept, len(lines(out)), made[1].stopped) == (2, 4, 1)
    sweep.run(read_instances(listed), out, Settings(), begin=begin)
    assert len(made) == 2  # nothing is started for nothing


def _refusing(folder: str) -> Any:
    real = sweep.write_whole

    def write(path: Path, content: bytes, *more: Any) -> Path:
        if path.parent.name == folder:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, content, *more)

    return write


def test_good_answers_are_given_before_the_disk_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = benchmark(tmp_path / "bench", {"bad": {"code": 1}, "good": UNSAT})
    places = tmp_path / "places"
    places.mkdir()
    local = Local(Settings(jobs=2), places)
    for instance in read_instances(listed):
        local.start(instance.spec, instance, {})
    for process in local.running.values():
        process.process.wait()
    monkeypatch.setattr(runner, "write_whole", _refusing("places"))
    assert [key for key, _ in local.poll(0.0)] == ["good.vnnlib"]
    with pytest.raises(InvalidValueError, match="places cannot be written"):
        local.poll(0.0)
    local.stop()


def test_many_instances_are_not_written_or_drawn_after_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No count grows with the square of the instances: whole tables are made now and then, not for each."""
    count, calls = 3000, []
    listed = benchmark(tmp_path / "bench", {"unsat": {}})
    folder = listed.parent
    for i in range(count):
        (folder / f"unsat{i}.vnnlib").touch()
    listed.write_text("".join(f"a.onnx,unsat{i}.vnnlib,5\n" for i in range(count)))
    results, table = sweep.results, cli_sweep._View.table
    monkeypatch.setattr(sweep, "results", lambda state: calls.append("results") or results(state))
    monkeypatch.setattr(cli_sweep._View, "table", lambda view, state: calls.append("table") or table(view, state))
    monkeypatch.setattr(os, "fsync", lambda _number: None)
    monkeypatch.setattr(sweep, "INTERVAL", 1e9)
    monkeypatch.setattr(cli_sweep, "REDRAWN", 1e9)

    class One(Together):
        def has_room(self) -> bool:
            return not self.begun

    view = cli_sweep._View(count, tmp_path / "out")
    watch = lambda state, line: view.live(_Screen(), state, line)  # noqa: E731
    state = sweep.run(read_instances(listed), tmp_path / "out", Settings(), begin=One, watch=watch)
    assert (len(state.lines), state.counts) == (count, {"unsat": count})
    assert len(view.fresh) == cli_sweep.ROWS
    assert calls.count("results") == 2  # at the first answer, and at the end
    assert calls.count("table") <= 4
    assert "3000 of 3000: 3000 unsat" in view.counts(state)


class _Screen:
    def update(self, *_: Any, **__: Any) -> None:
        pass


def test_the_live_table_does_not_grow_with_what_runs(tmp_path: Path) -> None:
    listed = benchmark(tmp_path / "bench", {f"unsat{i}": {} for i in range(40)})
    state = sweep.State(read_instances(listed), Settings())
    for instance in state.instances:
        state.begin(instance.spec, sweep.Task(instance, {}, time.perf_counter()))
    group = cli_sweep._View(40, tmp_path).table(state)
    assert group.renderables[0].row_count == cli_sweep.ROWS + 1


def killed(folder: Path, instances: int, kills: int, kind: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.runs.sweep.killed_sweep", str(folder), str(instances), str(kills), kind]
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([str(root), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("instances", "kills", "kind"),
    [
        (16, 4, "fake"),
        pytest.param(200, 20, "fake", marks=pytest.mark.slow),
        pytest.param(24, 8, "real", marks=pytest.mark.slow),
    ],
)
def test_after_kills_all_is_as_if_nothing_had_happened(instances: int, kills: int, kind: str, tmp_path: Path) -> None:
    found = killed(tmp_path, instances, kills, kind)
    assert found["kills"] == kills, found
    assert (found["lost"], found["doubled"], found["processes that outlived a kill"]) == ([], [], 0)
    assert found["same answers"]
    assert found["same files"]
    if kind == "fake":
        assert instances <= found["begun in all"] <= instances + 2 * kills
    left = [name for name in found["left"] if not name.startswith(".vertex-")]  # a file that a kill left unfinished
    assert left == ["counterexamples", "journal.jsonl", "results.csv", "summary.json"]


if sys.platform != "linux":
    pytestmark = pytest.mark.skip(reason="signals and /proc as on Linux")
