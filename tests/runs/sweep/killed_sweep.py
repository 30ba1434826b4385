"""Kill a sweep at random moments and start it again, as often as asked; what came out goes to stdout as JSON.

python -m tests.runs.sweep.killed_sweep FOLDER INSTANCES KILLS fake|real. Sweeps are forked from here, where everything
is imported already: each takes milliseconds to start, and a kill may fall anywhere: while the journal is opened, a line
is written, a child begins or ends. `fake` children are the small program of `tests.runs.sweep.sweeps`, `real` ones are
`vertex verify`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.processes import gone
from tests.runs.sweep.sweeps import (
    SAT,
    TIMEOUT,
    UNKNOWN,
    UNSAT,
    answers,
    benchmark,
    child,
    lines,
    real_benchmark,
    started,
    without_times,
)
from vertex_softmax.runs.sweep import runner, sweep
from vertex_softmax.runs.sweep.instances import read_instances
from vertex_softmax.runs.sweep.runner import Settings

JOBS = 2
SEED = 1


def forked(listed: Path, out: Path) -> int:
    """The process id of a sweep."""
    process = os.fork()
    if process == 0:
        try:
            sweep.run(read_instances(listed), out, Settings(jobs=JOBS, threads=1))
        finally:
            os._exit(0)
    return process


def swept(listed: Path, out: Path, target: int | None = None, later: float = 0.0) -> bool:
    """A sweep; whether it was killed, which it is some seconds after so many instances were finished."""
    process, due = forked(listed, out), None
    while os.waitpid(process, os.WNOHANG) == (0, 0):
        if target is not None and due is None and finished(out) >= target:
            due = time.perf_counter() + later
        if due is not None and time.perf_counter() >= due:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return True
        time.sleep(0.002)
    return False


def finished(out: Path) -> int:
    """Whole lines of a journal that may not be there yet."""
    place = out / "journal.jsonl"
    return place.read_bytes().count(b"\n") if place.exists() else 0


def alive(folder: Path) -> list[int]:
    """Processes whose command names a file of the folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{folder}/".encode() in place.read_bytes():
                found.append(int(place.parent.name))
    return found


def main(folder: Path, instances: int, kills: int, kind: str) -> dict[str, Any]:
    """The figures, and whether all is as if nothing had happened."""
    if kind == "real":
        listed = real_benchmark(folder / "bench", instances)
    else:
        kinds = (UNSAT, SAT, UNKNOWN, TIMEOUT)
        listed = benchmark(folder / "bench", {f"n{i}": kinds[i % 4] for i in range(instances)}, timeout=100)
        runner.COMMAND = child(folder)
    began = time.perf_counter()
    swept(listed, folder / "whole")
    whole = time.perf_counter() - began
    before = len(started(listed.parent))
    chance, done, orphans, out = random.Random(SEED), [], 0, folder / "killed"
    for target in sorted(chance.sample(range(instances - max(6, instances // 10)), kills)):
        if swept(listed, out, target, chance.uniform(0, 1.5 * whole / instances)):
            done.append(finished(out))
        orphans += sum(not gone(pid) for pid in alive(folder))
    swept(listed, out)
    keys = Counter(line["key"] for line in lines(out))
    return {
        "instances": instances,
        "kills": len(done),
        "seconds without kills": round(whole, 2),
        "seconds with kills": round(time.perf_counter() - began - whole, 2),
        "finished at each kill": done,
        "processes that outlived a kill": orphans,
        "lost": sorted({settings_key(i) for i in read_instances(listed)} - set(keys)),
        "doubled": [key for key, count in keys.items() if count > 1],
        "same answers": answers(out) == answers(folder / "whole"),
        "same files": without_times(out) == without_times(folder / "whole"),
        "begun in all": len(started(listed.parent)) - before or None,
        "left": sorted(path.name for path in out.iterdir()),
    }


def settings_key(instance: Any) -> str:
    return Settings(jobs=JOBS, threads=1).key(instance)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]), indent=1))
