"""Instances that workers fork: the same answers as new processes give, and what happens to one is its own affair."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import gone
from tests.runs.sweep.sweeps import answers, lines, real_benchmark, rows
from vertex_softmax.runs.processes import PARENT
from vertex_softmax.runs.sweep import runner, sweep, workers
from vertex_softmax.runs.sweep.instances import SweepInstance, read_instances
from vertex_softmax.runs.sweep.runner import VERIFY, Local, Process, Settings
from vertex_softmax.runs.sweep.workers import Forked, Worker, Workers

if sys.platform != "linux":
    pytestmark = pytest.mark.skip(reason="workers are for Linux")

ONE = Settings(threads=1)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("places")


@pytest.fixture(scope="module")
def pool(places: Path) -> Iterator[Workers]:
    """One worker, and another one where a test has killed it."""
    found = Workers(places, runner._environment(ONE))
    yield found
    found.end()


@pytest.fixture
def worker(pool: Workers) -> Iterator[Worker]:
    found = pool.take()
    yield found
    pool.give_back(found)


@pytest.fixture
def instances(tmp_path: Path) -> list[SweepInstance]:
    """The first holds, the second does not, and so on in turn."""
    return read_instances(real_benchmark(tmp_path / "bench", 4))


def process(worker: Worker, instance: SweepInstance, folder: Path, settings: Settings = ONE) -> Process:
    folder.mkdir()
    return Process(instance.model_path, instance.spec_path, instance.timeout, settings, folder, worker)


def ended(one: Process) -> runner.Finished:
    limit = time.monotonic() + 60
    while (finished := one.poll()) is None:
        assert time.monotonic() < limit
        time.sleep(0.01)
    return finished


def running(one: Process) -> int:
    """The id of a process that has been forked just now."""
    limit = time.monotonic() + 60
    while not one.process.pid:
        assert one.process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.002)
    return one.process.pid


def test_one_worker_gives_each_instance_its_own_answer(
    worker: Worker, instances: list[SweepInstance], tmp_path: Path
) -> None:
    """The instances differ in the property alone; every answer is that of a process of its own."""
    found, pids = [], []
    for i, instance in enumerate(instances):
        one = process(worker, instance, tmp_path / str(i))
        pids.append(running(one))
        found.append(ended(one))
    assert [finished.answer["status"] for finished in found] == ["unsat", "sat"] * 2
    assert [finished.counterexample is not None for finished in found] == [False, True] * 2
    assert [finished.answer["spec"] for finished in found] == [str(instance.spec_path) for instance in instances]
    assert len({*pids, worker.process.pid, os.getpid()}) == len(pids) + 2
    assert not any((tmp_path / str(i)).exists() for i in range(4))
    assert found[0].seconds > 0


def test_a_file_that_changes_between_two_instances_is_read_anew(
    worker: Worker, instances: list[SweepInstance], tmp_path: Path
) -> None:
    """The same path, size and time of change: only the content tells, and each fork reads it."""
    first, second = instances[:2]
    assert ended(process(worker, first, tmp_path / "1")).answer["status"] == "unsat"
    before = first.spec_path.stat()
    first.spec_path.write_text(first.spec_path.read_text().replace("1.5", "0.5"))
    assert first.spec_path.stat().st_size == before.st_size
    os.utime(first.spec_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ended(process(worker, first, tmp_path / "2")).answer["status"] == "sat"
    hashes = set()
    for name in ("3", "4"):
        answer = ended(process(worker, second, tmp_path / name)).answer
        hashes.add(answer["model_sha256"])
        model = second.model_path.read_bytes()
        second.model_path.write_bytes(model + b"\x32\x00")  # an empty doc_string: other bytes
    assert len(hashes) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM], ids=str)
def test_an_instance_that_dies_costs_only_itself(
    number: signal.Signals, worker: Worker, instances: list[SweepInstance], tmp_path: Path
) -> None:
    dying = process(worker, instances[0], tmp_path / "dying")
    os.kill(running(dying), number)
    finished = ended(dying)
    assert (finished.failed, finished.died) == (True, True)
    assert f"the process was ended by {number.name}" in finished.answer["reason"]
    assert worker.process.poll() is None
    assert ended(process(worker, instances[1], tmp_path / "next")).answer["status"] == "sat"


def test_an_instance_that_does_not_end_is_killed_with_its_worker(
    pool: Workers, instances: list[SweepInstance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process cannot end by itself; its time is counted from the fork, and is not for the next one."""
    monkeypatch.setattr(runner, "GRACE", 0.3)
    worker = pool.take()
    instance = sweep.dataclasses.replace(instances[0], timeout=0.2)
    one = process(worker, instance, tmp_path / "stuck")
    pid = running(one)
    os.kill(pid, signal.SIGSTOP)
    finished = ended(one)
    assert (finished.answer["status"], finished.died) == ("timeout", False)
    assert 0.5 < finished.seconds < 5
    assert gone(pid)
    pool.give_back(worker)
    other = pool.take()
    assert other is not worker
    assert ended(process(other, instances[1], tmp_path / "next")).answer["status"] == "sat"
    pool.give_back(other)


def test_a_time_limit_is_the_instances_own(worker: Worker, instances: list[SweepInstance], tmp_path: Path) -> None:
    short = sweep.dataclasses.replace(instances[0], timeout=1e-3)
    assert ended(process(worker, short, tmp_path / "short")).answer["status"] == "timeout"
    assert ended(process(worker, instances[0], tmp_path / "long")).answer["status"] == "unsat"


def test_a_memory_limit_is_the_instances_own(worker: Worker, instances: list[SweepInstance], tmp_path: Path) -> None:
    little = Settings(threads=1, memory=0.01)
    finished = ended(process(worker, instances[0], tmp_path / "little", little))
    assert (finished.failed, finished.died) == (True, False)
    assert "--memory is 0.01 GiB" in finished.answer["reason"]
    enough = Settings(threads=1, memory=4.0)
    assert ended(process(worker, instances[0], tmp_path / "enough", enough)).answer["status"] == "unsat"


def test_a_worker_that_is_killed_costs_the_instance_that_it_ran(
    pool: Workers, instances: list[SweepInstance], tmp_path: Path
) -> None:
    worker = pool.take()
    one = process(worker, instances[0], tmp_path / "one")
    pid = running(one)
    os.kill(worker.process.pid, signal.SIGKILL)
    finished = ended(one)
    assert (finished.failed, finished.died) == (True, True)
    assert gone(pid)  # the fork ends with its worker
    pool.give_back(worker)
    assert worker not in pool.idle
    other = pool.take()
    os.kill(other.process.pid, signal.SIGKILL)  # while it waits
    pool.give_back(other)
    other.process.wait()
    again = pool.take()
    assert ended(process(again, instances[1], tmp_path / "next")).answer["status"] == "sat"
    pool.give_back(again)


def test_a_worker_and_its_fork_end_with_the_sweep(instances: list[SweepInstance], tmp_path: Path) -> None:
    """However the sweep ends: here by SIGKILL."""
    code = """
import sys, time
from pathlib import Path
from tests.runs.sweep.test_workers import ONE, process, running
from vertex_softmax.runs.sweep import runner, workers
from vertex_softmax.runs.sweep.instances import read_instances
worker = workers.Worker(Path(sys.argv[2]), runner._environment(ONE))
one = process(worker, read_instances(Path(sys.argv[1]))[0], Path(sys.argv[2]) / "one")
print(worker.process.pid, running(one), flush=True)
time.sleep(60)
"""
    listed = instances[0].model_path.parent / "instances.csv"
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([str(root), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    command = [sys.executable, "-c", code, str(listed), str(tmp_path)]
    parent = subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    while not (tmp_path / "one" / "stderr").exists():  # then it has asked the system to end it with its worker
        time.sleep(0.002)
    os.kill(pids[1], signal.SIGSTOP)  # it does not end by itself
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_worker_forks_while_it_has_one_thread_and_has_read_no_model(worker: Worker, tmp_path: Path) -> None:
    assert worker.begin(["--help"], tmp_path).wait(60) == 0
    assert "vertex verify" in (tmp_path / "stdout").read_text()
    assert len(list(Path(f"/proc/{worker.process.pid}/task").iterdir())) == 1
    mapped = Path(f"/proc/{worker.process.pid}/maps").read_text()
    assert "libtorch" in mapped
    assert "onnxruntime" not in mapped


def test_reports_count_for_the_order_that_they_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that answers an earlier order again, and the latest order with another code."""
    program = tmp_path / "server.py"
    program.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    order = json.loads(line)['order']\n"
        "    for order, report in ((order - 1, {'code': 0}), (order, {'pid': 1}), (order, {'code': 3})):\n"
        "        print(json.dumps({'order': order, **report}), flush=True)\n"
    )
    monkeypatch.setattr(workers, "SERVER", (sys.executable, "-I", "-S", str(program)))
    worker = Worker(tmp_path, dict(os.environ))
    first = worker.begin([], tmp_path)
    assert first.wait(10) == 3
    second = worker.begin([], tmp_path)
    assert second.wait(10) == 3
    third = Forked(worker, 7)  # an order that is never reported
    with pytest.raises(subprocess.TimeoutExpired):
        third.wait(0.1)
    worker.end()
    assert third.wait(10) == -signal.SIGKILL


def test_an_answer_about_other_files_is_an_error(
    instances: list[SweepInstance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.dumps({"status": "unsat", "reason": "", "model": "another.onnx"})
    monkeypatch.setattr(runner, "COMMAND", ("sh", "-c", f"echo '{answer}'", "sh"))
    (tmp_path / "one").mkdir()
    one = Process(instances[0].model_path, instances[0].spec_path, 5.0, ONE, tmp_path / "one")
    assert ended(one).answer["reason"] == "its answer is about other files than it was asked about"


def test_where_no_worker_can_fork_new_processes_are_started(
    instances: list[SweepInstance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "SERVER", ("sh", "-c", "echo '{\"unfit\": true}'; read line", "sh"))
    monkeypatch.setattr(sweep, "source", lambda: "these sources")
    state = sweep.run(instances[:1], tmp_path / "out", ONE)
    assert {line["status"] for line in state.lines.values()} == {"unsat"}
    assert [line["attempts"] for line in lines(tmp_path / "out")] == [1, 2]
    assert not workers.available("cuda")
    assert Local(Settings(device="cuda"), tmp_path)._workers is None


def test_a_sweep_gives_the_answers_of_new_processes(
    instances: list[SweepInstance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "source", lambda: "these sources")
    begun = []
    make = Worker.__init__
    monkeypatch.setattr(Worker, "__init__", lambda self, *given: begun.append(self) or make(self, *given))
    sweep.run(instances[:2], tmp_path / "forked", ONE)
    assert len(begun) == 1  # for two instances
    assert begun[0].process.returncode is not None  # and it has ended with the sweep
    sweep.run(instances[:2], tmp_path / "new", ONE, begin=lambda *given: Local(*given, command=VERIFY))
    assert len(begun) == 1
    assert answers(tmp_path / "forked") == answers(tmp_path / "new")
    assert rows(tmp_path / "forked") == {"p0": "unsat", "p1": "sat"}
    assert PARENT not in os.environ
