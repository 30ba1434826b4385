"""One tree of branch and bound in one process, and shared among workers, in turn in one run.

python lab/benchmarks/shared_tree.py [--data DIR] [--instances N…] [--workers N…] [--device D] [--repeats N] [--out F]

For each instance of the ViT with three blocks: the cascade of `vertex verify` in one process (workers 0), and with each
number of workers, one thread for every process. What is compared are the seconds of branch and bound: with workers they
include what is left of the workers' start when the other bounds are made, and everything that is sent. `idle` is the
share of the workers' time, from the first part that one was given to the end, in which a worker had no parts: it does
not depend on who else uses the machine, which the load shows, and CPU seconds hardly do. The library is called, not the
command, so that the machine needs torch, onnx and onnxruntime alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vertex_softmax import __version__
from vertex_softmax.runs import machine
from vertex_softmax.runs.shared.crew import Crew
from vertex_softmax.runs.shared.search import SharedSearch
from vertex_softmax.runs.shared.task import SHARED, SharedTask
from vertex_softmax.runs.shared.workers import Event, LocalWorkers
from vertex_softmax.search.answers import Budget
from vertex_softmax.search.verify_files import Instance, load_instance, verify_instance

ROOT = Path(__file__).parents[2]
MODEL = "ibp_3_3_8"
INSTANCES = ("1367", "3375")
WORKERS = (0, 1, 2, 4, 8)


class Timed(LocalWorkers):
    """Workers on this machine, and how long they had parts."""

    def __init__(self, count: int) -> None:
        super().__init__(count, 1)
        self.given: dict[str, float] = {}
        self.busy, self.first, self.last = 0.0, math.inf, 0.0

    def send(self, worker: str, line: str) -> None:
        if '"do":"grow"' in line:
            self.given[worker] = time.perf_counter()
            self.first = min(self.first, self.given[worker])
        super().send(worker, line)

    def poll(self, wait: float) -> list[Event]:
        found, now = super().poll(wait), time.perf_counter()
        for event in found:
            if event.line is not None and event.worker in self.given:
                self.busy += now - self.given.pop(event.worker)
                self.last = now
        return found

    @property
    def idle(self) -> float:
        """The share of the workers' time without parts."""
        return 1 - self.busy / (self.count * (self.last - self.first)) if self.last > self.first else 0.0


@contextmanager
def shared(instance: Instance, files: tuple[Path, Path], workers: Timed | None, device: str) -> Iterator[Any]:
    """The search of these workers; None if there are none."""
    if workers is None:
        yield None
        return
    task = SharedTask(model=str(files[0]), spec=str(files[1]), device=device)
    crew = Crew(task, task.identity(instance), lambda: workers)
    try:
        yield SharedSearch(crew)
    finally:
        crew.stop()


def cpu() -> float:
    """CPU seconds of this process and of its children that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in found)


def measured(files: tuple[Path, Path], workers: int, device: str, limit: float) -> dict[str, Any]:
    """One run of the cascade."""
    instance = load_instance(*files)
    load, before, began = os.getloadavg()[0], cpu(), time.perf_counter()
    crew = Timed(workers) if workers else None
    with shared(instance, files, crew, device) as search:
        answer = verify_instance(instance, Budget(limit), options=SHARED, device=device, branching=search)
    row = {"workers": workers, "status": answer.verdict.competition, "domains": answer.domains, "load": load}
    row |= {"seconds": dict(answer.seconds), "branching": answer.seconds.get("bab", 0.0), "cpu_seconds": cpu() - before}
    row |= {"wall_seconds": time.perf_counter() - began, "idle": None if crew is None else crew.idle}
    return {**row, "parts": None if search is None else search.parts}


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "vit")
    parser.add_argument("--instances", nargs="+", default=list(INSTANCES))
    parser.add_argument("--workers", nargs="+", type=int, default=list(WORKERS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of each run")
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "benchmarks" / "runs" / "shared-tree.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.cuda.get_device_name() if asked.device != "cpu" else ""
    result: dict[str, Any] = {"benchmark": "shared-tree", "version": __version__, "torch": torch.__version__}
    result |= {"processor": processor(), "cores": machine.cores(), "device": device, "model": MODEL, "rows": []}
    model = next((asked.data / "onnx").glob(f"{MODEL}.onnx*"))
    for number in asked.instances:
        spec = next((asked.data / "vnnlib").glob(f"{MODEL}_{number}.vnnlib*"))
        for turn in range(asked.repeats):
            for workers in asked.workers:
                row = {"instance": number, "turn": turn, **measured((model, spec), workers, asked.device, asked.limit)}
                result["rows"].append(row)
                said = f"{number} workers {workers}: {row['status']}, branching {row['branching']:.1f} s"
                print(f"{said} of {row['wall_seconds']:.1f} s, {row['domains']} parts", flush=True)
                asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
