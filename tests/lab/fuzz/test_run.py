"""The loop: it counts, keeps what it finds, goes on where it stopped, and outlives its workers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from vertex_lab.fuzz import pool, run
from vertex_lab.fuzz.recipe import random_recipe


class Stub:
    """A worker that finds one thing, in every recipe that has a layer."""

    def __init__(self, *_: Any) -> None:
        self.asked = 0

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def check(self, recipe: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        found = [{"kind": "planted", "where": "here", "text": ""}] if recipe["layers"] else []
        return {"findings": found, "notes": {"seen": 1}, "seconds": {"case": 0.5}}


def test_the_loop_keeps_finds_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Worker", Stub)
    told: list[str] = []
    first = run.fuzz(0.002, tmp_path, seed=5, kinds=["network"], progress=told.append)
    assert first["first"] == 5
    assert first["next"] == 5 + first["cases"]
    assert first["findings"] == {"planted:here": first["notes"]["seen"]}
    finds = sorted((tmp_path / "finds").glob("*.json"))
    assert 1 <= len(finds) <= run.KEPT
    kept = json.loads(finds[0].read_text())
    assert kept["recipe"] == random_recipe(kept["recipe"]["seed"])
    assert len(kept["minimal"]["layers"]) == 1
    assert kept["minimal finding"]["kind"] == "planted"
    assert kept["versions"]["torch"]
    second = run.fuzz(0.002, tmp_path, seed=99, kinds=["network"])
    assert second["next"] > first["next"]
    assert second["seconds"] > first["seconds"]
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [line["seed"] for line in lines] == list(range(5, second["next"]))
    assert any("found planted:here" in line for line in told)


SCRIPTS = {
    "hangs": ("slow:case", "import sys, time; print('ready', flush=True); time.sleep(60)"),
    "dies": ("crash:-9", "import sys, os; print('ready', flush=True); input(); os.kill(os.getpid(), 9)"),
    "exits": ("crash:3", "import sys; print('ready', flush=True); input(); sys.exit(3)"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_case_that_ends_its_worker_is_a_finding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, script = SCRIPTS[name]
    real = pool.subprocess.Popen
    monkeypatch.setattr(
        pool.subprocess, "Popen", lambda _command, **given: real([sys.executable, "-c", script], **given)
    )
    with pool.Worker(seconds=0.5) as worker:
        for _ in range(2):  # a new worker for the next
            (finding,) = worker.check(random_recipe(0))["findings"]
            assert run.signature(finding) == expected


@pytest.mark.slow
def test_a_real_worker(tmp_path: Path) -> None:
    state = run.fuzz(0.05, tmp_path, seed=0, kinds=["network"])
    assert state["cases"] >= 1
    assert not state["findings"]
