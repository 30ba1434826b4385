"""The loop: case after case until the time is spent; what is found is minimised and kept.

Invariant: what was counted or found is on the disk before the next case begins, so that a run that is killed loses
the cases under way; started again in the same folder it goes on with the first of them.

    DIR/journal.jsonl      one line per case: seed, kind, seconds, signatures of findings
    DIR/state.json         the totals over all runs in this folder
    DIR/finds/NAME.json    recipe, minimised recipe, finding, versions; at most KEPT of one signature
"""

from __future__ import annotations

import json
import platform
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vertex_lab.fuzz.kinds import chosen, draw, kind_of
from vertex_lab.fuzz.minimise import minimised
from vertex_lab.fuzz.pool import Worker
from vertex_lab.fuzz.recipe import Recipe
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.foundation.outputs import Outputs

KEPT = 3
"""How many finds of one signature are minimised and kept; later ones are counted."""
EVERY = 60.0
"""Seconds between two lines of progress."""


def fuzz(
    minutes: float,
    out: Path,
    *,
    seed: int = 0,
    device: str = "cpu",
    limit: float = 60.0,
    workers: int = 1,
    kinds: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run for some minutes by some processes at a time; returns the totals of the folder."""
    out.mkdir(parents=True, exist_ok=True)
    loop = _Loop(out, _state(out, seed), chosen(kinds), time.monotonic() + 60 * minutes, progress)
    with ThreadPoolExecutor(workers) as threads:
        for done in [threads.submit(loop.work, device, limit) for _ in range(workers)]:
            done.result()
    loop.spend()
    write_whole(out / "state.json", json.dumps(loop.state, indent=1).encode())
    progress(_line(loop.state))
    return loop.state


class _Loop:
    """What the threads share, each of which has a worker process; `lock` is held where the totals change."""

    def __init__(
        self,
        out: Path,
        state: dict[str, Any],
        kinds: tuple[str, ...],
        end: float,
        progress: Callable[[str], None],
    ) -> None:
        self.out, self.state, self.kinds, self.end, self.progress = out, state, kinds, end, progress
        self.begin = self.told = time.monotonic()
        self.before = float(state["seconds"])
        self.next = int(state["next"])
        self.under_way: set[int] = set()
        self.lock = threading.Lock()

    def work(self, device: str, limit: float) -> None:
        """Case after case until the time is spent."""
        with Worker(device, limit) as worker:
            while time.monotonic() < self.end:
                with self.lock:
                    number, self.next = self.next, self.next + 1
                    self.under_way.add(number)
                recipe = draw(number, self.kinds)
                report = worker.check(recipe)
                with self.lock:
                    self._counted(number, kind_of(recipe), report)
                for finding in {signature(f): f for f in report["findings"]}.values():
                    _keep(self.out, self.state, recipe, finding, worker, self.progress)

    def spend(self) -> None:
        """The seconds so far."""
        self.state["seconds"] = self.before + time.monotonic() - self.begin

    def _counted(self, number: int, kind: str, report: dict[str, Any]) -> None:
        self.under_way.discard(number)
        self.state["next"] = min(self.under_way, default=self.next)
        self.spend()
        _count(self.state, kind, report)
        _written(self.out, self.state, number, kind, report)
        if time.monotonic() - self.told > EVERY:
            self.told = time.monotonic()
            self.progress(_line(self.state))


def signature(finding: dict[str, str]) -> str:
    """What two findings of one cause share."""
    return f"{finding['kind']}:{finding['where']}"


def _state(out: Path, seed: int) -> dict[str, Any]:
    path = out / "state.json"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return {
        "first": seed,
        "next": seed,
        "cases": 0,
        "seconds": 0.0,
        "findings": {},
        "notes": {},
        "stages": {},
        "kinds": {},
    }


def _count(state: dict[str, Any], kind: str, report: dict[str, Any]) -> None:
    state["cases"] += 1
    of = state.setdefault("kinds", {}).setdefault(kind, {"cases": 0, "seconds": 0.0, "findings": 0})
    of["cases"] += 1
    of["seconds"] += report["seconds"].get("case", 0.0)
    of["findings"] += len(report["findings"])
    for key, values in (("notes", report["notes"]), ("stages", report["seconds"])):
        state[key] = dict(Counter(state[key]) + Counter(values))
    found = Counter({signature(f): 1 for f in report["findings"]})
    state["findings"] = dict(Counter(state["findings"]) + found)


def _written(out: Path, state: dict[str, Any], number: int, kind: str, report: dict[str, Any]) -> None:
    line = {
        "seed": number,
        "kind": kind,
        "seconds": round(report["seconds"].get("case", 0.0), 2),
        "findings": [signature(f) for f in report["findings"]],
        "notes": [n for n in report["notes"] if not n.startswith(("verified", "unknown", "falsified"))],
    }
    with Outputs().append(out / "journal.jsonl") as file:
        file.write((json.dumps(line) + "\n").encode())
    write_whole(out / "state.json", json.dumps(state, indent=1).encode())


def _keep(
    out: Path,
    state: dict[str, Any],
    recipe: Recipe,
    finding: dict[str, str],
    worker: Worker,
    progress: Callable[[str], None],
) -> None:
    """Minimise and save a find, unless there are enough of its kind."""
    kind = signature(finding)
    if state["findings"].get(kind, 0) > KEPT:
        return
    name = re.sub(r"[^a-z0-9]+", "-", f"{kind_of(recipe)} {kind}".lower()).strip("-")[:80] + f"-{recipe['seed']}"
    progress(f"found {kind} at seed {recipe['seed']}: {finding['text'][:200]}")
    find: dict[str, Any] = {"finding": finding, "recipe": recipe, "versions": versions()}
    _save(out, name, find)
    if finding["kind"] == "slow":
        return

    def same(smaller: Recipe) -> bool:
        return kind in [signature(f) for f in worker.check(smaller)["findings"]]

    find["minimal"] = minimised(recipe, same)
    again = [f for f in worker.check(find["minimal"])["findings"] if signature(f) == kind]
    find["minimal finding"] = again[0] if again else None
    _save(out, name, find)


def _save(out: Path, name: str, find: dict[str, Any]) -> None:
    (out / "finds").mkdir(exist_ok=True)
    write_whole(out / "finds" / f"{name}.json", json.dumps(find, indent=1).encode())


def versions() -> dict[str, str]:
    """Of what a find depends on."""
    import torch

    from vertex_softmax import __version__

    found = {"vertex-softmax": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for name in ("onnx", "onnxruntime"):
        try:
            found[name] = __import__(name).__version__
        except ImportError:
            found[name] = "none"
    return found


def _line(state: dict[str, Any]) -> str:
    rate = state["cases"] / max(state["seconds"] / 60, 1e-9)
    return (
        f"{state['cases']} cases in {state['seconds'] / 60:.1f} min ({rate:.1f} a minute), "
        f"{sum(state['findings'].values())} findings of {len(state['findings'])} kinds"
    )
