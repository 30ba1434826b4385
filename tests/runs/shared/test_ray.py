"""Workers of a shared search on Ray: the ends of it that need no Ray, and where it is installed, a real one."""

from __future__ import annotations

import json
import queue
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.processes import gone
from tests.runs.shared.crews import Rehearsed, ask, files
from tests.runs.shared.test_workers import ECHO, command
from tests.runs.sweep.test_ray import cluster
from vertex_softmax.foundation.errors import ClusterError
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.shared import ray_relay, ray_workers
from vertex_softmax.runs.shared.ray_actor import RayActor
from vertex_softmax.runs.shared.ray_workers import RayWorkers
from vertex_softmax.runs.shared.seals import opened, sealed
from vertex_softmax.runs.shared.task import SharedTask
from vertex_softmax.runs.sweep import ray as runner_ray
from vertex_softmax.search.answers import Budget

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")

# --- this process's end, with a relay that follows a script ---

RELAY = """
import json, sys, time
first = json.loads(sys.stdin.readline())
def say(**message):
    print(json.dumps(message), flush=True)
def order():
    return json.loads(sys.stdin.readline())
"""


def relayed(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RayWorkers:
    monkeypatch.setattr(ray_workers, "RELAY", (sys.executable, "-I", "-S", "-c", RELAY + script))
    monkeypatch.setattr(ray_workers, "needed", lambda: None)
    paths = files(folder, 9, 0.01, 0.02)
    return RayWorkers(SharedTask(model=str(paths[0]), spec=str(paths[1])), 3, "there")


def heard(workers: RayWorkers, count: int) -> list[Any]:
    found: list[Any] = []
    limit = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < limit
        found += workers.poll(0.1)
    return found


def test_lines_are_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
say(room=5, nodes=2, address="there")
say(joined="a")
got = order()
say(worker=got["worker"], line=got["line"] + " " + str(first["workers"]) + " " + str(first["settings"]["threads"]))
got = order()
say(left=got["worker"], reason=got["drop"])
sys.stdin.read()
"""
    workers = relayed(script, tmp_path, monkeypatch)
    (joined,) = heard(workers, 1)
    assert (joined.worker, joined.joined) == ("a", True)
    workers.send("a", "words")
    assert heard(workers, 1)[0].line == "words 3 1"
    workers.drop("a", "late")
    assert heard(workers, 1)[0].left == "late"
    assert workers.note == "Ray at there: 2 nodes, room for 5 at a time"
    workers.stop()
    assert workers._link.driver.returncode == 0
    assert not Path(workers._folder.name).exists()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('GCS is gone', file=sys.stderr); sys.exit(1)", r"at there is gone \(GCS is gone\); with --journal the"),
        ("say(unfit='no node has room')", "^no node has room; with --journal the same command goes on"),
        ("time.sleep(60)", "at there has not answered for 1 s; with --journal"),
    ],
)
def test_a_cluster_that_is_lost_is_one_error(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_ray, "STARTING", 1.0)
    monkeypatch.setattr(runner_ray, "LEAVING", 0.3)
    workers = relayed(script, tmp_path, monkeypatch)
    with pytest.raises(ClusterError, match=message):
        heard(workers, 1)
    workers.stop()


# --- the relay, with a Ray that is none ---


class FalseRay:
    """As much of Ray as the relay uses; actors answer at once, or die."""

    class exceptions:  # noqa: N801
        class RayError(Exception): ...

        class DeadError(RayError): ...

        WorkerCrashedError = NodeDiedError = OutOfMemoryError = RayActorError = DeadError
        LocalRayletDiedError = ObjectLostError = DeadError

    def __init__(self) -> None:
        self.killed: list[Any] = []
        self.room = 2
        self.made: list[Any] = []
        self.answers: dict[int, Any] = {}

    def init(self, **_: Any) -> Any:
        return SimpleNamespace(address_info={"gcs_address": "there"})

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "n")

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "NodeID": "n", "Resources": {"CPU": self.room}}]

    def put(self, content: Any) -> Any:
        return content

    def remote(self, kind: Any) -> Any:
        assert kind is RayActor

        def made(*given: Any) -> Any:
            actor = SimpleNamespace(given=given)
            actor.ask = SimpleNamespace(remote=lambda line, actor=actor: self._asked(actor, line))
            self.made.append(actor)
            return actor

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=made, options=options))

    def _asked(self, actor: Any, line: str) -> int:
        key = len(self.answers)
        dead = line == "die" or actor in self.killed
        self.answers[key] = self.exceptions.DeadError("its node is gone") if dead else {"line": f"{line}!"}
        if line == "leave":
            self.answers[key] = {"left": "it ended"}
        if line == "break":
            self.answers[key] = self.exceptions.RayError("no such module")
        return key

    def wait(self, references: list[int], **_: Any) -> tuple[list[int], list[int]]:
        return references[:1], references[1:]

    def get(self, reference: int) -> Any:
        found = self.answers[reference]
        if isinstance(found, Exception):
            raise found
        return found

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)

    def shutdown(self) -> None:
        self.killed.append("all")


class Orders(queue.SimpleQueue):  # type: ignore[type-arg]
    """Orders that are all there from the beginning; the end comes after some more turns."""

    def __init__(self, orders: list[dict[str, Any]], turns: int = 12) -> None:
        self.orders, self.turns = orders, turns

    def get(self, timeout: float = 0.0) -> Any:  # noqa: ARG002
        return self.get_nowait()

    def get_nowait(self) -> Any:
        self.turns -= 1
        if self.turns < 0:
            return None
        if self.orders and self.turns % 2:
            return self.orders.pop(0)
        raise queue.Empty


def first(folder: Path, **more: Any) -> dict[str, Any]:
    from vertex_softmax.runs.sweep.instances import SweepInstance
    from vertex_softmax.runs.sweep.runner import digests

    model, spec = files(folder, 9, 0.01, 0.02)
    settings = {"threads": 1, "device": "cpu", "memory": None}
    hashes = digests(SweepInstance(str(model), str(spec), 0.0, model, spec))
    return {"address": None, "settings": settings, "workers": None, "model": str(model), "spec": str(spec),
            "files": hashes, "command": None, **more}  # fmt: skip


def ran(false: FalseRay, given: dict[str, Any], orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    relay = ray_relay.Relay(false, given, lambda **message: said.append(message))
    relay.run(Orders(orders))
    relay.leave()
    return [message for message in said if "room" not in message]


def test_the_relay_fills_the_room_and_hands_lines_on(tmp_path: Path) -> None:
    names = [f"worker {k} of Ray" for k in (1, 2, 3)]
    orders = [
        {"worker": names[0], "line": "one"},
        {"worker": names[1], "line": "die"},
        {"worker": names[1], "line": "nobody hears this"},
        {"worker": names[0], "drop": "it was late"},
    ]
    false = FalseRay()
    said = ran(false, first(tmp_path), orders)
    assert said[:3] == [{"joined": names[0]}, {"joined": names[1]}, {"worker": names[0], "line": "one!"}]
    assert {"left": names[0], "reason": "it was late"} in said
    died = next(message for message in said if message.get("left") == names[1])
    assert died["reason"] == "the worker of Ray died (DeadError: its node is gone)"
    assert {"joined": names[2]} in said
    model, spec = false.made[0].given[2], false.made[0].given[1]
    assert (model, spec) == ((tmp_path / "model.onnx").read_bytes(), (tmp_path / "property.vnnlib").read_bytes())
    assert false.killed[-1] == "all"
    assert all(actor in false.killed for actor in false.made)


def test_two_answers_of_an_actor_that_is_gone_are_ready_together(tmp_path: Path) -> None:
    """The first one makes the actor leave; the second one has nobody to be handed to."""

    class Together(FalseRay):
        looks = 0

        def wait(self, references: list[int], **_: Any) -> tuple[list[int], list[int]]:
            self.looks += 1
            return ([], references) if self.looks < 3 else (references, [])

    name, false = "worker 1 of Ray", Together()
    said = ran(false, first(tmp_path), [{"worker": name, "line": "die"}, {"worker": name, "line": "die"}])
    assert false.looks >= 3
    assert len(false.answers) == 2
    assert [message["left"] for message in said if "left" in message] == [name]


def test_no_more_workers_than_were_asked_for(tmp_path: Path) -> None:
    false = FalseRay()
    false.room = 9
    assert len([m for m in ran(false, first(tmp_path, workers=4), []) if "joined" in m]) == 4
    false.room = 0
    with pytest.raises(ClusterError, match=r"has room for a worker, which needs 1 cores \(--threads\)"):
        ran(false, first(tmp_path), [])


def test_a_node_that_cannot_run_vertex_or_a_file_that_changes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"cannot run Vertex \(RayError: no such module\)"):
        ran(FalseRay(), first(tmp_path), [{"worker": "worker 1 of Ray", "line": "break"}])
    given = first(tmp_path)
    left = ran(FalseRay(), given, [{"worker": "worker 1 of Ray", "line": "leave"}])
    assert {"left": "worker 1 of Ray", "reason": "it ended"} in left
    (tmp_path / "model.onnx").write_bytes(b"another")
    with pytest.raises(ClusterError, match="the files cannot be sent to the cluster: the model or the property was"):
        ran(FalseRay(), given, [])


# --- the node's end, as it is called there ---


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "node"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def actor(program: tuple[str, ...] | None, folder: Path) -> RayActor:
    model, spec = files(folder, 9, 0.01, 0.02)
    task = {"names": ["model.onnx"], "spec": str(spec), "threads": 3, "command": program}
    return RayActor(task, spec.read_bytes(), model.read_bytes())


def test_an_actor_hands_lines_on_and_names_its_own_files(tmp_path: Path, temporary: Path) -> None:
    made = actor(command(ECHO), tmp_path)
    line = sealed({"do": "aim"})
    assert made.ask(line) == {"line": f"{line}\n"}
    body = opened(made.ask(sealed({"do": "load", "model": "/home/m.onnx", "spec": "/home/s", "threads": 3}))["line"])
    assert Path(body["model"]).is_relative_to(temporary)
    assert Path(body["model"]).read_bytes() == (tmp_path / "model.onnx").read_bytes()
    assert Path(body["spec"]).read_text() == (tmp_path / "property.vnnlib").read_text()
    assert body["threads"] == 3
    pid = made._process.pid
    made._process.kill()
    assert "the worker on the node" in made.ask(line)["left"]
    assert gone(pid)


def test_an_actor_without_room_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    made = actor(command(ECHO), tmp_path)
    assert "No such file or directory" in made.ask(sealed({"do": "aim"}))["left"]


def test_a_real_worker_on_a_node(tmp_path: Path, temporary: Path) -> None:
    assert temporary.exists()
    workers = Rehearsed(1)
    paths = files(tmp_path, 9, 0.01, 0.02)
    assert ask(paths, workers)[0].verdict is Verdict.VERIFIED
    made = actor(None, tmp_path)
    try:
        for order in workers.told[:4]:
            answer = opened(made.ask(sealed(order))["line"])
            assert (answer["did"], "unfit" in answer) == (order["do"], False), json.dumps(answer)[:300]
    finally:
        made._process.kill()
        made._process.wait()


# --- a real Ray ---


@needs_ray
@pytest.mark.slow
def test_a_ray_of_this_machine(tmp_path: Path) -> None:
    paths = files(tmp_path, 9, 0.01, 0.02)
    workers = RayWorkers(SharedTask(model=str(paths[0]), spec=str(paths[1])), 2, None)
    answer, search = ask(paths, workers, journal=tmp_path / "tree")
    assert (answer.verdict, search.parts["open"]) == (Verdict.VERIFIED, 0)
    assert workers.note.startswith("Ray at 127.0.0.1:")
    again, _ = ask(paths, Rehearsed(1), journal=tmp_path / "tree")
    assert (again.verdict, again.domains) == (Verdict.VERIFIED, 0)


@needs_ray
@pytest.mark.slow
def test_a_node_of_two_is_killed(tmp_path: Path) -> None:
    """While its worker has parts: these are open again, and the other node's worker gets them."""
    paths = files(tmp_path, 9, 0.01, 0.02)
    with cluster(1) as nodes:
        assert nodes.stdin is not None
        assert nodes.stdout is not None
        address, killed = nodes.stdout.readline().strip(), []

        class Watched(RayWorkers):
            def send(self, worker: str, line: str) -> None:
                super().send(worker, line)
                if '"do":"grow"' in line and not killed:
                    nodes.stdin.write("kill\n")
                    nodes.stdin.flush()
                    killed.append(nodes.stdout.readline())

        workers = Watched(SharedTask(model=str(paths[0]), spec=str(paths[1])), None, address)
        answer, search = ask(paths, workers, budget=Budget(seconds=200, first=0, second=0))
    assert killed == ["killed\n"]
    assert (answer.verdict, search.parts["open"]) == (Verdict.VERIFIED, 0)


@needs_ray
@pytest.mark.slow
def test_a_cluster_that_is_killed(tmp_path: Path) -> None:
    paths = files(tmp_path, 9, 0.01, 0.02)
    with cluster(1) as nodes:
        assert nodes.stdin is not None
        assert nodes.stdout is not None
        address, killed = nodes.stdout.readline().strip(), []

        class Watched(RayWorkers):
            def send(self, worker: str, line: str) -> None:
                super().send(worker, line)
                if '"do":"grow"' in line and not killed:
                    nodes.stdin.write("kill all\n")
                    nodes.stdin.flush()
                    killed.append(nodes.stdout.readline())

        workers = Watched(SharedTask(model=str(paths[0]), spec=str(paths[1])), None, address)
        with pytest.raises(ClusterError, match=f"Ray cluster at {address} .*with --journal the same command goes on"):
            ask(paths, workers, budget=Budget(seconds=200, first=0, second=0))
