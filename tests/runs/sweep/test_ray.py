"""Ray: the same answers as at home, from nodes that share no disk; nodes that die are reported; a cluster that is gone
is one clear error.

Most tests need no Ray: the sweep's end talks with a scripted driver, and the node's end is called as it is. Where Ray
is installed, two of them use a real one.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from tests.processes import gone
from tests.runs.sweep.sweeps import (
    QUICK,
    SAT,
    UNSAT,
    answers,
    benchmark,
    child,
    lines,
    ran,
    real_benchmark,
    rows,
    started,
    without_times,
)
from tests.search.small import network
from vertex_softmax.cli.main import app
from vertex_softmax.foundation.errors import ClusterError
from vertex_softmax.runs import sources
from vertex_softmax.runs.sweep import (
    ray as runner_ray,
)
from vertex_softmax.runs.sweep import (
    ray_driver,
    ray_worker,
    runner,
    sweep,
)
from vertex_softmax.runs.sweep.instances import SweepInstance, read_instances
from vertex_softmax.runs.sweep.ray import Ray
from vertex_softmax.runs.sweep.runner import Settings, digests

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
SETTINGS = Settings(jobs=None, threads=1, runner="ray")


# --- the sweep's end, with a driver that follows a script ---

DRIVER = """
import json, sys, time
first = json.loads(sys.stdin.readline())
def say(**message):
    print(json.dumps(message), flush=True)
def order():
    return json.loads(sys.stdin.readline())
def answer(order, status="unsat", died=False):
    say(key=order["key"], answer={"status": status, "reason": status}, counterexample=None, seconds=1.5, died=died)
"""


def driven(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_ray, "DRIVER", (sys.executable, "-I", "-S", "-c", DRIVER + script))
    monkeypatch.setattr(runner_ray, "needed", lambda: None)


def swept(listed: Path, out: Path, **options: Any) -> sweep.State:
    return sweep.run(read_instances(listed), out, SETTINGS, begin=partial(Ray, **options))


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    return benchmark(tmp_path / "bench", {f"n{i}": UNSAT for i in range(4)})


def test_what_the_driver_says_is_recorded(tmp_path: Path, listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
say(room=2, nodes=3, address="there")
first, second = order(), order()
answer(first, "unknown"); answer(second, died=True)
third, fourth, again = order(), order(), None
answer(third); answer(third); answer(fourth)
answer(order())
sys.stdin.read()
"""
    driven(script, monkeypatch)
    state = swept(listed, tmp_path / "out")
    found = lines(tmp_path / "out")
    assert [line["status"] for line in found] == ["unknown", "error", "unsat", "unsat", "unsat"]
    assert (found[-1]["spec"], found[-1]["attempts"], found[-1]["retried"]) == ("n1.vnnlib", 2, "unsat")
    assert {line["run_time"] for line in found} == {1.5}
    assert state.note == "Ray at there: 3 nodes, room for 2 at a time"
    assert not (tmp_path / "out" / ".running").exists()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('GCS is gone', file=sys.stderr); sys.exit(1)", r"at there is gone \(GCS is gone\); what is finished"),
        ("say(unfit='no node has room')", "^no node has room; what is finished is kept, and the same command goes on"),
        ("time.sleep(60)", "at there has not answered for 1 s; what is finished is kept"),
        ("print('no JSON', flush=True); time.sleep(60)", "at there is gone; what is finished"),
    ],
)
@pytest.mark.parametrize("begun", [True, False])
def test_a_cluster_that_is_gone_is_one_error_and_the_journal_is_kept(
    script: str, message: str, begun: bool, tmp_path: Path, listed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = "say(room=1, nodes=1, address='there'); answer(order()); order()\n" if begun else ""
    driven(start + script, monkeypatch)
    monkeypatch.setattr(runner_ray, "SILENCE", 0.7)
    monkeypatch.setattr(runner_ray, "STARTING", 0.7)
    made: list[Ray] = []

    def begin(settings: Settings, places: Path) -> Ray:
        made.append(Ray(settings, places, "there"))
        return made[0]

    with pytest.raises(ClusterError, match=message):
        sweep.run(read_instances(listed), tmp_path / "out", SETTINGS, begin=begin)
    assert len(lines(tmp_path / "out")) == begun
    assert made[0].driver.returncode is not None
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["interrupted"]
    monkeypatch.setattr(runner, "COMMAND", child(tmp_path))
    sweep.run(read_instances(listed), tmp_path / "out", Settings())  # and on at home
    assert rows(tmp_path / "out") == {f"n{i}": "unsat" for i in range(4)}
    assert len(ran(listed.parent)) == 4 - begun


def test_stopping_closes_the_drivers_ear(tmp_path: Path, listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_ray, "LEAVING", 0.3)
    for deaf in ("sys.stdin.read()", "time.sleep(60)"):
        driven(f"say(room=9, nodes=1, address='there'); {deaf}", monkeypatch)
        (tmp_path / "places").mkdir(exist_ok=True)
        ray = Ray(SETTINGS, tmp_path / "places")
        ray.poll(5.0)
        assert ray.has_room()
        ray.stop()
        assert ray.driver.returncode == (0 if "read" in deaf else -signal.SIGKILL)
        ray.stop()


def test_without_the_extra(tmp_path: Path, listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_ray, "find_spec", lambda _name: None)
    result = CliRunner().invoke(app, ["sweep", str(listed), "--out", str(tmp_path / "out"), "--runner", "ray"])
    assert result.exit_code == 2
    assert "ray is not installed, and --runner ray needs it: pip install 'vertex-softmax[ray]'" in result.stderr
    assert not (tmp_path / "out").exists()


# --- the node's end, as it is called there ---


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node's folder for temporary files."""
    place = tmp_path / "node"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def sent(instance: SweepInstance, command: tuple[str, ...] | None, **more: Any) -> dict[str, Any]:
    """What the driver sends with an instance, and what the node makes of it."""
    names, contents = [instance.model_path.name], [instance.model_path.read_bytes()]
    for name, content in ray_driver._beside(instance.model_path, contents[0]).items():
        names.append(name)
        contents.append(content)
    task = {"model": str(instance.model_path), "spec": str(instance.spec_path), "timeout": instance.timeout}
    task |= {"names": names, "settings": vars(SETTINGS), "source": sources.of_answers(built=False)}
    task |= {"command": command, **more}
    return ray_worker.work(task, instance.spec_path.read_bytes(), *contents)


def test_a_node_answers_as_at_home(tmp_path: Path, temporary: Path) -> None:
    command = child(tmp_path)
    odd = {"answer": json.dumps({"status": "error", "reason": "{spec} is odd"}), "code": 2}
    listed = benchmark(tmp_path / "bench", {**QUICK, "odd": odd, "dies": {**UNSAT, "kill": 9}})
    found = {instance.spec.split(".")[0]: sent(instance, command) for instance in read_instances(listed)}
    assert found["UNSAT"]["answer"]["status"] == "unsat"
    assert found["SAT"]["counterexample"] == SAT["found"].rstrip() + "\n"
    assert found["ERROR"]["answer"] == {"status": "error", "reason": "the [bold]model[/bold] is odd"}
    assert found["odd"]["answer"]["reason"] == f"{listed.parent / 'odd.vnnlib'} is odd"  # there is no other at home
    assert found["dies"]["died"]
    assert "ended by SIGKILL" in found["dies"]["answer"]["reason"]
    assert "(on the node " in found["dies"]["answer"]["reason"]
    assert {name: each["died"] for name, each in found.items()} == {
        **dict.fromkeys([*QUICK, "odd"], False),
        "dies": True,
    }
    assert json.dumps(found)  # plain
    assert list(temporary.iterdir()) == []


def test_the_real_command_on_a_node(tmp_path: Path, temporary: Path) -> None:
    """External data travels too."""
    folder = real_benchmark(tmp_path / "bench", 2).parent
    model = onnx.load_from_string(network((np.eye(2), np.zeros(2)), "Relu", (np.eye(2), np.zeros(2))))
    (folder / "numbers").mkdir()
    for number, tensor in enumerate(model.graph.initializer):
        onnx.external_data_helper.set_external_data(tensor, f"numbers/{number}.bin")
        (folder / f"numbers/{number}.bin").write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
    (folder / "relu.onnx.gz").write_bytes(gzip.compress(model.SerializeToString()))
    (folder / "relu.onnx").unlink()
    instance = read_instances(folder / "instances.csv")[1]
    found = sent(instance, None)
    assert (found["answer"]["status"], found["died"]) == ("sat", False)
    assert found["counterexample"].startswith("((X_0 ")


def test_files_beside_a_model_are_those_of_its_folder(tmp_path: Path) -> None:
    model = onnx.load_from_string(network((np.eye(2), np.zeros(2))))
    (tmp_path / "in").mkdir()
    for name in ("secret", "in/a", "in/b"):
        (tmp_path / name).write_bytes(name.encode())
    for tensor, name in zip(model.graph.initializer, ("../secret", "./a"), strict=True):
        onnx.external_data_helper.set_external_data(tensor, name)
    path = tmp_path / "in" / "m.onnx"
    assert ray_driver._beside(path, model.SerializeToString()) == {"a": b"in/a"}
    for tensor, name in zip(model.graph.initializer, (str(tmp_path / "in/b"), "none"), strict=True):
        onnx.external_data_helper.set_external_data(tensor, name)
    assert ray_driver._beside(path, model.SerializeToString()) == {}
    for data in (b"", b"location", b"\x1f\x8b damaged", model.SerializeToString()[:-9]):
        assert ray_driver._beside(path, data) == {}


def test_a_node_that_is_not_fit_says_why(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (instance,) = read_instances(benchmark(tmp_path / "bench", {"bad": {"code": 1}}))
    command = child(tmp_path)
    assert "has other sources of Vertex than this sweep" in sent(instance, command, source="others")["unfit"]
    with monkeypatch.context() as patched:
        patched.setattr(runner, "write_whole", _full)
        assert "cannot be written (No space left on device)" in sent(instance, command)["unfit"]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert "none" in sent(instance, command)["unfit"]
    assert "No such file or directory; make room" in sent(instance, command)["unfit"]


def _full(_path: Path, _content: bytes) -> Path:
    raise OSError(28, "No space left on device")


def test_folders_of_killed_workers_are_removed(temporary: Path) -> None:
    old = time.time() - 2 * ray_worker.OLD
    for name in ("vertex-sweep-left", "vertex-sweep-new", "another"):
        (temporary / name).mkdir()
        (temporary / name / "held").touch()
    with ray_worker.folder() as held:
        for name in ("vertex-sweep-left", "another", held.name):
            os.utime(temporary / name, (old, old))
        with ray_worker.folder() as place:
            assert {path.name for path in temporary.iterdir()} == {"vertex-sweep-new", "another", held.name, place.name}


# --- a real Ray ---


@pytest.mark.slow
@needs_ray
def test_a_ray_of_this_machine(tmp_path: Path) -> None:
    """The same answers as at home; a worker of Ray that is killed is reported; nothing is left behind."""
    told = {"SAT": SAT, "dies": {**UNSAT, "kill parent": 9, "once": True}, "UNSAT": UNSAT}
    listed, command = benchmark(tmp_path / "bench", told, timeout=60), child(tmp_path)
    (listed.parent / "dies.vnnlib.died").touch()
    home = sweep.run(
        read_instances(listed), tmp_path / "home", Settings(threads=1), begin=partial(runner.Local, command=command)
    )
    (listed.parent / "dies.vnnlib.died").unlink()
    state = swept(listed, tmp_path / "out", command=command)
    assert not state.interrupted
    assert answers(tmp_path / "out") == answers(tmp_path / "home")
    assert without_times(tmp_path / "out") == without_times(tmp_path / "home")
    again = next(line for line in lines(tmp_path / "out")[::-1] if line["spec"] == "dies.vnnlib")
    assert (again["attempts"], sweep.summary(state)["retried"], sweep.summary(home)["retried"]) == (2, 1, 0)
    assert again["retried"].startswith("the worker of Ray died (WorkerCrashedError: ")
    assert state.note.startswith("Ray at 127.0.0.1:")
    assert all(gone(int(words[1])) for words in started(listed.parent))


@contextmanager
def cluster(cores: int) -> Iterator[subprocess.Popen[str]]:
    """Two nodes with so many cores each."""
    command = [sys.executable, str(Path(__file__).with_name("ray_cluster.py")), str(cores)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("real", [False, True])
def test_a_node_of_two_is_killed(real: bool, tmp_path: Path) -> None:
    """All instances are answered as at home, and those of the lost node are reported."""
    command = None if real else child(tmp_path)
    if real:
        listed = real_benchmark(tmp_path / "bench", 12)
    else:
        told = {f"n{i}": {**(SAT if i % 3 else UNSAT), "sleep": 1.5} for i in range(24)}
        listed = benchmark(tmp_path / "bench", told, timeout=60)
    chosen = read_instances(listed)
    sweep.run(chosen, tmp_path / "home", Settings(jobs=2, threads=1), begin=partial(runner.Local, command=command))
    with cluster(2) as nodes:
        address, killed = nodes.stdout.readline().strip(), []

        def watch(state: sweep.State, _line: Any) -> None:
            if not killed and len(state.lines) >= 3 and len(state.running) == 4:
                nodes.stdin.write("kill\n")
                nodes.stdin.flush()
                killed.append(nodes.stdout.readline())

        begin = partial(Ray, address=address, command=command)
        state = sweep.run(chosen, tmp_path / "out", SETTINGS, begin=begin, watch=watch)
    assert killed == ["killed\n"]
    assert answers(tmp_path / "out") == answers(tmp_path / "home")
    assert without_times(tmp_path / "out") == without_times(tmp_path / "home")
    again = [line for line in lines(tmp_path / "out") if line["attempts"] == 2]
    assert 1 <= len(again) == sweep.summary(state)["retried"] <= 2
    assert all(line["retried"].startswith("the worker of Ray died (") for line in again)
    assert state.note.endswith(": 1 node, room for 2 at a time")


@needs_ray
@pytest.mark.slow
def test_a_cluster_that_is_killed(tmp_path: Path) -> None:
    told = {f"n{i}": {**UNSAT, "sleep": 0 if i < 4 else 300} for i in range(8)}
    listed, command = benchmark(tmp_path / "bench", told, timeout=400), child(tmp_path)
    with cluster(1) as nodes:
        address, killed = nodes.stdout.readline().strip(), []

        def watch(state: sweep.State, _line: Any) -> None:
            if not killed and len(started(listed.parent)) == 6:
                nodes.stdin.write("kill all\n")
                nodes.stdin.flush()
                killed.append(nodes.stdout.readline())

        begin = partial(Ray, address=address, command=command)
        with pytest.raises(ClusterError, match=f"Ray cluster at {address} .*; what is finished is kept, and the same"):
            sweep.run(read_instances(listed), tmp_path / "out", SETTINGS, begin=begin, watch=watch)
    assert [line["spec"] for line in lines(tmp_path / "out") if line["status"] == "unsat"] == [
        f"n{i}.vnnlib" for i in range(4)
    ]
    assert all(gone(int(words[1])) for words in started(listed.parent))


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_ended_leaves_nothing_of_ray_behind(number: int, tmp_path: Path) -> None:
    told = {f"n{i}": {**UNSAT, "sleep": 0 if i < 1 else 300} for i in range(4)}
    listed, out = benchmark(tmp_path / "bench", told, timeout=400), tmp_path / "out"
    program = f"""
import sys
from functools import partial
from vertex_softmax.cli import main
from vertex_softmax.runs.sweep import ray
ray.Ray = partial(ray.Ray, command={child(tmp_path)!r})
sys.argv = ['vertex', 'sweep', {str(listed)!r}, '--out', {str(out)!r}, '--runner', 'ray', '--jobs', '1']
main.main()
"""
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 120
    while len(started(listed.parent)) < 2 and time.monotonic() < limit:
        time.sleep(0.05)
    family = descendants(process.pid)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert ("interrupted: 1 of 4" in said) == (number == signal.SIGINT)
    assert len(family) >= 5  # the driver, two parts of Ray, a worker, a child
    limit = time.monotonic() + 30
    while not all(map(gone, family)):
        assert time.monotonic() < limit, family
    assert [line["spec"] for line in lines(out)] == ["n0.vnnlib"]


def descendants(pid: int) -> list[int]:
    """The processes that a process has begun, and those that they have begun."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = place.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found += [int(place.parent.name), *descendants(int(place.parent.name))]
    return found


@needs_ray
@pytest.mark.slow
def test_addresses_where_there_is_no_cluster(tmp_path: Path, listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_ray, "STARTING", 10.0)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for address in ("127.0.0.2:1", "nonsense"):
        with pytest.raises(ClusterError, match="Ray cluster"):
            swept(listed, tmp_path / "out", address=address)
    many = Settings(jobs=None, threads=999, runner="ray")
    monkeypatch.setattr(runner_ray, "STARTING", 90.0)
    with pytest.raises(ClusterError, match=r"has room for an instance, which needs 999 cores \(--threads\); what is"):
        sweep.run(read_instances(listed), tmp_path / "out", many, begin=Ray)


def test_digests_are_what_files_travel_by(tmp_path: Path, listed: Path) -> None:
    instance = read_instances(listed)[0]
    data = instance.model_path.read_bytes()
    assert ray_driver._read_as(instance.model_path, digests(instance)["model"]) == data
    before = digests(instance)["model"]
    instance.model_path.write_bytes(b"another")
    with pytest.raises(ValueError, match="was changed while it was read"):
        ray_driver._read_as(instance.model_path, before)
    shutil.rmtree(listed.parent)
    assert digests(instance)["model"].startswith("not read: ")
