"""What a sweep costs besides the verifying: starting processes, memory, bytes of the journal, bookkeeping, Ray.

python lab/benchmarks/scale.py [--data DIR] [--parts start,memory,sweep,bookkeeping,runners] [--out F]

- start: a process of `vertex verify` on a network of two inputs, and what of it is Python and imports alone; of five
  runs that with the least CPU seconds;
- memory: the most that such a process holds, tiny and on one instance of each ViT of VNN-COMP (--data);
- sweep: `vertex sweep` of tiny instances on all cores: instances per core-hour, bytes per line of the journal;
- bookkeeping: a sweep of up to 100,000 instances whose answers are there at once, and going on after it;
- runners: instances whose process does nothing, as local processes and on a Ray of this machine.

CPU seconds are what to compare: others may use the machine meanwhile, which shows in seconds alone. Parts that are not
asked for stay in the file as they were.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from anchors import processor, versions
from onnx import TensorProto, helper, numpy_helper

from vertex_softmax.runs import machine
from vertex_softmax.runs.sweep import sweep
from vertex_softmax.runs.sweep.instances import SweepInstance, read_instances
from vertex_softmax.runs.sweep.ray import Ray
from vertex_softmax.runs.sweep.runner import Finished, Local, Settings

ROOT = Path(__file__).parents[2]
COUNTS = ((1_000, 1), (10_000, 1), (1_000, 100), (10_000, 100), (100_000, 100))
"""Instances, and how many answers come at each look, as from so many workers: they are one write to the disk."""
REPEATED = 5
SMALL = 24
"""Tiny instances of the sweep."""
NOTHING = 200
"""Instances whose process does nothing."""
VIT_SECONDS = 60.0
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def tiny(folder: Path, count: int) -> Path:
    """A list of instances on one small network; every other property is violated."""
    folder.mkdir(parents=True)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("x", "y")]
    eye = numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "tiny", values[:1], values[1:], [eye])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "tiny.onnx")
    declared = "".join(f"(declare-const {letter}_{i} Real)\n" for letter in "XY" for i in (0, 1))
    box = "".join(f"(assert (>= X_{i} 0.0))\n(assert (<= X_{i} 1.0))\n" for i in (0, 1))
    for i in range(count):
        (folder / f"{i}.vnnlib").write_text(f"{declared}{box}(assert (>= Y_0 {(1.5, 0.5)[i % 2]}))\n")
    (folder / "instances.csv").write_text("".join(f"tiny.onnx,{i}.vnnlib,100\n" for i in range(count)))
    return folder / "instances.csv"


def measured(command: Sequence[str]) -> dict[str, float]:
    """Seconds, CPU seconds and the most memory of a process: resident, and VmData, which is what --memory limits."""
    began, most = time.perf_counter(), {"VmHWM:": 0, "VmData:": 0}
    process = subprocess.Popen(command, env=ONE_THREAD, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            with contextlib.suppress(OSError):
                for words in map(str.split, Path(f"/proc/{process.pid}/status").read_text().splitlines()):
                    if words[0] in most:
                        most[words[0]] = max(most[words[0]], int(words[1]))

    watcher = threading.Thread(target=look)
    watcher.start()
    _, status, used = os.wait4(process.pid, 0)  # its ru_maxrss would be this process's, if that is larger
    seconds = time.perf_counter() - began
    over.set()
    watcher.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "exit_code": process.returncode,
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "resident_mib": most["VmHWM:"] / 1024,
        "data_mib": most["VmData:"] / 1024,
    }


def verify(model: Path, spec: Path, timeout: float) -> list[str]:
    options = [f"--timeout={timeout}", "--threads=1"]
    return [sys.executable, "-P", "-m", "vertex_softmax", "verify", str(model), str(spec), *options]


def start(folder: Path, _data: Path) -> dict[str, Any]:
    listed = tiny(folder / "tiny", 2)
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "import torch": [sys.executable, "-c", "import torch"],
        "vertex verify, tiny": verify(listed.parent / "tiny.onnx", listed.parent / "0.vnnlib", 100),
        "vertex verify, tiny and violated": verify(listed.parent / "tiny.onnx", listed.parent / "1.vnnlib", 100),
    }
    found = {name: [measured(command) for _ in range(REPEATED)] for name, command in commands.items()}
    return {name: min(runs, key=lambda run: run["cpu_seconds"]) for name, runs in found.items()}


def memory(folder: Path, data: Path) -> dict[str, Any]:
    listed = tiny(folder / "tiny", 1)
    found = {"tiny": measured(verify(listed.parent / "tiny.onnx", listed.parent / "0.vnnlib", 100))}
    for model in ("pgd_2_3_16", "ibp_3_3_8"):
        spec = sorted((data / "vnnlib").glob(f"{model}_*"))[0]
        path = next((data / "onnx").glob(f"{model}.onnx*"))
        found[spec.name.split(".")[0]] = measured(verify(path, spec, VIT_SECONDS))
    return found


def small_sweep(folder: Path, _data: Path) -> dict[str, Any]:
    listed, out, cores = tiny(folder / "tiny", SMALL), folder / "out", machine.cores()
    command = [sys.executable, "-m", "vertex_softmax", "sweep", str(listed), "--out", str(out)]
    before, began = os.times(), time.perf_counter()
    subprocess.run([*command, f"--jobs={cores}", "--threads=1"], check=True, capture_output=True)
    seconds, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    size = (out / "journal.jsonl").stat().st_size
    return {
        "instances": SMALL,
        "cores": cores,
        "seconds": seconds,
        "cpu_seconds_per_instance": cpu / SMALL,
        "instances_per_core_hour": 3600 * SMALL / cpu,
        "journal_bytes_per_instance": size / SMALL,
    }


class Instant:
    """A runner whose answers are there at once: what is left is the sweep's own work."""

    note = ""

    def __init__(self, together: int, _settings: Settings, _places: Path) -> None:
        self.together, self.begun = together, list[str]()

    def has_room(self) -> bool:
        return len(self.begun) < self.together

    def start(self, key: str, instance: SweepInstance, files: Mapping[str, str]) -> None:  # noqa: ARG002
        self.begun.append(key)

    def poll(self, wait: float) -> list[tuple[str, Finished]]:  # noqa: ARG002
        begun, self.begun = self.begun, []
        answer = {"status": "unsat", "reason": "proved by crown", "bounds": [[0.5] * 9], "stage": "crown"}
        return [(key, Finished(answer, seconds=1.0)) for key in begun]

    def stop(self) -> None:
        pass


def timed(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    began, cpu = time.perf_counter(), time.process_time()
    found = work()
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}, found


def bookkeeping(folder: Path, _data: Path) -> list[dict[str, Any]]:
    """In this process."""
    rows = []
    for count, together in COUNTS:
        place = folder / f"{count}-{together}"
        listed = tiny(place / "tiny", count)
        gc.collect()
        before = machine.memory_in_use(os.getpid())
        reading, chosen = timed(partial(read_instances, listed))
        work = partial(sweep.run, chosen, place / "out", Settings(threads=1), begin=partial(Instant, together))
        running, state = timed(work)
        more = (machine.memory_in_use(os.getpid()) - before) / 2**20
        again, resumed = timed(work)
        rows.append(
            {
                "instances": count,
                "together": together,
                "reading": reading,
                "running": running,
                "going_on": again,
                "kept": resumed.kept,
                "finished": len(state.lines),
                "resident_mib_more": more,
                "journal_bytes_per_instance": (place / "out" / "journal.jsonl").stat().st_size / count,
            }
        )
        print(json.dumps(rows[-1]))
        del chosen, state, resumed, work
        shutil.rmtree(place)
    return rows


def runners(folder: Path, _data: Path) -> dict[str, Any]:
    """The least that a runner takes for an instance: its process is a shell that says unsat."""
    program = folder / "nothing.sh"
    program.write_text(
        'for a; do case $a in --json=*) printf \'{"status": "unsat", "reason": ""}\' > "${a#--json=}";; esac; done\n'
    )
    command, found = ("sh", str(program)), {}
    listed, cores = tiny(folder / "tiny", NOTHING), machine.cores()
    for name, begin in {"local": partial(Local, command=command), "ray": partial(Ray, command=command)}.items():
        moments: list[float] = []

        def watch(state: sweep.State, _line: Any, moments: list[float] = moments) -> None:
            moments.extend([time.perf_counter()] * (len(state.lines) > 0))

        settings = Settings(jobs=cores, threads=1, runner=name)
        total, state = timed(
            partial(sweep.run, read_instances(listed), folder / name, settings, begin=begin, watch=watch)
        )
        found[name] = {
            "instances": NOTHING,
            "at_a_time": cores,
            "errors": state.counts["error"],
            "seconds": total["seconds"],
            "seconds_per_instance_after_the_first": (moments[-1] - moments[0]) / (NOTHING - 1),
        }
    return found


PARTS = {"start": start, "memory": memory, "sweep": small_sweep, "bookkeeping": bookkeeping, "runners": runners}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "vit")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "benchmarks" / "runs" / "scale.json")
    arguments = parser.parse_args()
    result = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    result |= {"benchmark": "scale", **versions(), "processor": processor(), "cores": machine.cores()}
    for name in arguments.parts.split(","):
        with tempfile.TemporaryDirectory(prefix="vertex-scale-", dir=arguments.out.parent) as folder:
            result[name] = PARTS[name](Path(folder), arguments.data)
        result[name] = {"load": os.getloadavg()[0], "found": result[name]}
        print(name, json.dumps(result[name], indent=1))
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
