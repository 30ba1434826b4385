"""Sweeps whose children are a small program that does what its property tells it to; and how to read what came out."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from tests.search.small import network
from vertex_softmax.cli.main import app
from vertex_softmax.runs import processes
from vertex_softmax.runs.sweep.instances import SweepInstance
from vertex_softmax.runs.sweep.runner import Finished, Settings

CHILD = f"""
import json, os, pathlib, runpy, signal, sys, time
runpy.run_path({processes.__file__!r})["end_with_parent"]()
model, spec, *options = sys.argv[1:]
options = dict(option[2:].split("=", 1) for option in options)
told = json.loads(pathlib.Path(spec).read_text())
folder = pathlib.Path(told.get("folder", pathlib.Path(spec).parent))
with (folder / "ran.txt").open("a") as ran:
    words = [pathlib.Path(spec).name, os.getpid(), options["threads"], options.get("memory")]
    ran.write(" ".join(map(str, [*words, os.environ["OMP_NUM_THREADS"]])) + "\\n")
if told.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("this is said on stderr", file=sys.stderr, flush=True)
time.sleep(told.get("sleep", 0))
first = folder / (pathlib.Path(spec).name + ".died")
if not told.get("once") or not first.exists():
    first.touch()
    if "kill" in told:
        os.kill(os.getpid(), told["kill"])
    if "kill parent" in told:
        os.kill(os.getppid(), told["kill parent"])
        time.sleep(60)
    if "exit" in told:
        os._exit(told["exit"])
if "answer" in told:
    assert options["json"] == "-"
    sys.stdout.write(told["answer"].replace("{{spec}}", spec))
    sys.stdout.flush()
if told.get("found"):
    pathlib.Path(options["counterexample"]).write_text(told["found"])
os._exit(told.get("code", 0))
"""


def telling(status: str, code: int, **more: Any) -> dict[str, Any]:
    """What a child is told, to give an ordinary answer."""
    answer = {"status": status, "reason": "so it is", "bounds": [[0.5, 0.25]], "counterexample": {"x": [1.0] * 99}}
    return {"answer": json.dumps(answer), "code": code, **more}


UNSAT, UNKNOWN, TIMEOUT = telling("unsat", 0), telling("unknown", 3), telling("timeout", 4)
SAT = telling("sat", 10, found="((X_0 0.5)\n (Y_0 1.0))\n\n")
ERROR = {"answer": json.dumps({"status": "error", "reason": "the [bold]model[/bold] is odd"}), "code": 2}
WORDS = ("verified", "falsified", "unknown", "timeout", "error")
QUICK = {"UNSAT": UNSAT, "SAT": SAT, "UNKNOWN": UNKNOWN, "TIMEOUT": TIMEOUT, "ERROR": ERROR}


def child(folder: Path) -> tuple[str, ...]:
    """The command of the small program."""
    program = folder / "child.py"
    program.write_text(CHILD)
    return (sys.executable, "-I", "-S", str(program))


def benchmark(folder: Path, told: dict[str, dict[str, Any]], timeout: float = 5) -> Path:
    """A list of instances whose properties say what the child has to do."""
    folder.mkdir(parents=True, exist_ok=True)
    for model in ("a.onnx", "b.onnx"):
        (folder / model).write_bytes(b"a model")
    for name, what in told.items():
        (folder / f"{name}.vnnlib").write_text(json.dumps({"folder": str(folder), **what}))
    lines = [f"{'ab'[i % 2]}.onnx,{name}.vnnlib,{timeout}\n" for i, name in enumerate(told)]
    (folder / "instances.csv").write_text("".join(lines))
    return folder / "instances.csv"


def real_benchmark(folder: Path, count: int, timeout: float = 100) -> Path:
    """A list of instances for the real command: a ReLU network of two inputs; every other property is violated."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "relu.onnx").write_bytes(network((np.eye(2), np.zeros(2)), "Relu", (np.eye(2), np.zeros(2))))
    declared = "".join(f"(declare-const {letter}_{i} Real)\n" for letter in "XY" for i in (0, 1))
    box = "".join(f"(assert (>= X_{i} 0.0))\n(assert (<= X_{i} 1.0))\n" for i in (0, 1))
    for i in range(count):
        text = f"{declared}{box}(assert (>= Y_0 {(1.5, 0.5)[i % 2] + i / 1000}))\n"
        (folder / f"p{i}.vnnlib").write_text(text)
    (folder / "instances.csv").write_text("".join(f"relu.onnx,p{i}.vnnlib,{timeout}\n" for i in range(count)))
    return folder / "instances.csv"


def ran(folder: Path) -> list[str]:
    """The properties that children were started for, in this order."""
    return [words[0].removesuffix(".vnnlib") for words in started(folder)]


def started(folder: Path) -> list[list[str]]:
    """Of each child: its property, its process id, threads and memory as options, threads as the environment has it."""
    place = folder / "ran.txt"
    return [line.split() for line in place.read_text().splitlines()] if place.exists() else []


def rows(out: Path) -> dict[str, str]:
    """Property → result, as results.csv has them."""
    found = csv.reader(io.StringIO((out / "results.csv").read_text()))
    return {row[2].removesuffix(".vnnlib"): row[4] for row in found}


def lines(out: Path) -> list[dict[str, Any]]:
    """The journal."""
    return [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]


class Instant:
    """Instances that are finished as soon as they are begun."""

    note = ""

    def __init__(self, _settings: Settings, _places: Path) -> None:
        self.begun: list[str] = []

    def has_room(self) -> bool:
        return True

    def start(self, key: str, instance: SweepInstance, files: dict[str, str]) -> None:  # noqa: ARG002
        self.begun.append(key)

    def poll(self, wait: float) -> list[tuple[str, Finished]]:  # noqa: ARG002
        begun, self.begun = self.begun, []
        return [(key, Finished({"status": "unsat", "reason": ""})) for key in begun]

    def stop(self) -> None:
        assert not self.begun


TIMES = ("run_time", "seconds", "mean_seconds", "mean_seconds_decided")
HOW = ("jobs", "runner", "attempts", "retried")
"""What says how an answer was come by, not what it is."""


def answers(out: Path) -> dict[str, dict[str, Any]]:
    """Each instance's last line without times and without how it was run, with the text of its counterexample."""
    found = {}
    for line in lines(out):
        place = line["counterexample"]
        line["counterexample text"] = None if place is None else (out / place).read_text()
        found[line["key"]] = {key: value for key, value in line.items() if key not in (*TIMES, *HOW)}
    return found


def without_times(out: Path) -> tuple[list[list[str]], dict[str, Any]]:
    """results.csv and summary.json without times, and without how it was run."""
    table = [row[:5] for row in csv.reader(io.StringIO((out / "results.csv").read_text()))]

    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: plain(value) for key, value in part.items() if key not in (*TIMES, *HOW)}
        return [plain(each) for each in part] if isinstance(part, list) else part

    return table, plain(json.loads((out / "summary.json").read_text()))


def vertex(*arguments: str | Path | float) -> Any:
    """`vertex sweep` with these arguments, in this process."""
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])
