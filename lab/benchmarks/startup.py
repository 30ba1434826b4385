"""The time that `vertex verify` and `vertex sweep` take for easy instances, before and after: old and new alternate.

python lab/benchmarks/startup.py [--before COMMIT] [--data DIR] [--parts verify,sweep] [--repeats N] [--out F]

- verify: a whole process, from its start to its end, as a user starts it (the default time limit), on two instances
  of the ViT with two blocks: one that `crown` decides, and one that needs `joint`; of several runs that with the least
  CPU seconds. On a machine that others use give --threads 1: threads that wait for each other take CPU seconds, too;
- sweep: the easy instances of the list, those that took at most EASY_SECONDS when all 60 were verified
  (runs/vit-verify.json), repeated (with time limits that differ in their third decimal, as a list has no instance
  twice) up to --count, one thread for each and as many at a time as there are cores; the old version gets
  --count-before of the same list, as it takes minutes.

The old version is a git worktree of --before in a temporary folder. Both have their bytecode cached, as an installed
package has, and the same compiled kernel. CPU seconds are what to compare if others use the machine, which the load
shows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anchors import processor, versions

from vertex_softmax.runs import machine

ROOT = Path(__file__).parents[2]
MODEL = "pgd_2_3_16"
VERIFIED = {"566": "decided by `crown`", "4021": "decided by `joint`"}
"""Instances of MODEL, by number."""
EASY_SECONDS = 10.0
"""On a Xeon, eight at a time with two threads each; half of it was the start, and the attack before any bound."""
Environment = dict[str, str]


def environment(source: Path, cache: Path) -> Environment:
    """The environment of a process that imports the package from `source`; its bytecode is kept in `cache`."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    kept = {key: value for key, value in kept.items() if not key.endswith("_NUM_THREADS")}
    paths = os.pathsep.join(str(source / part) for part in ("src", "lab"))
    return {**kept, "PYTHONPATH": paths, "PYTHONPYCACHEPREFIX": str(cache)}


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """A worktree of a commit, which is removed afterwards."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", str(folder), commit], check=True, capture_output=True)
    built = Path("src/vertex_softmax/softmax_box/native")
    for library in (ROOT / built).glob("*.so"):  # the compiled kernel, which git does not know
        shutil.copy(library, folder / built)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True, capture_output=True)


def measured(arguments: Sequence[str], given: Environment, folder: Path) -> dict[str, Any]:
    """Seconds and CPU seconds of `vertex` with these arguments, from its start to its end, with all its children."""
    load, before, began = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-P", "-m", "vertex_softmax", *arguments]
    done = subprocess.run(command, env=given, cwd=folder, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode not in (0, 10):
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return {"seconds": seconds, "cpu_seconds": cpu, "load": load, "said": done.stdout.partition("\n")[0]}


def verify(sides: dict[str, Environment], data: Path, folder: Path, repeats: int, threads: int) -> list[dict[str, Any]]:
    """`vertex verify` on each of VERIFIED, old and new in turn; the first run of each only fills the caches."""
    rows = []
    model = next((data / "onnx").glob(f"{MODEL}.onnx*"))
    for number in VERIFIED:
        spec = next((data / "vnnlib").glob(f"{MODEL}_{number}.vnnlib*"))
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for turn, side in itertools.product(range(repeats + (number == next(iter(VERIFIED)))), sides):
            place = folder / "answer.json"
            options = [f"--json={place}", f"--threads={threads}"]
            run = measured(["verify", str(model), str(spec), *options], sides[side], folder)
            answer = json.loads(place.read_text())
            if turn or number != next(iter(VERIFIED)):
                found[side].append({**run, "status": answer["status"], "phases": answer["seconds"]})
        best = {side: min(runs, key=lambda run: float(run["cpu_seconds"])) for side, runs in found.items()}
        if len({run["status"] for runs in found.values() for run in runs}) != 1:
            raise SystemExit(f"the answers to {spec.name} differ")
        ratio = {unit: best["old"][unit] / best["new"][unit] for unit in ("seconds", "cpu_seconds")}
        rows.append({"instance": f"{MODEL}_{number}", "best": best, "ratio": ratio, "runs": found})
        print(json.dumps(rows[-1]["best"], indent=1), json.dumps(ratio), flush=True)
    return rows


def sweep(listed: Path, count: int, given: Environment, folder: Path) -> dict[str, Any]:
    """`vertex sweep` of the first instances of a list on all cores, and the lines of its journal."""
    out = Path(tempfile.mkdtemp(prefix="sweep-", dir=folder))
    options = [f"--out={out}", f"--limit={count}", f"--jobs={machine.cores()}", "--threads=1", "--json"]
    found = measured(["sweep", str(listed), *options], given, folder)
    lines = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    each = {unit: found[unit] / count for unit in ("seconds", "cpu_seconds")}
    statuses = {f"{line['spec']} {line['timeout']}": line["status"] for line in lines}
    return {"instances": count, **found, "each": each, "statuses": statuses, "lines": lines}


def easy() -> list[tuple[str, str]]:
    """The model and the property of each easy instance."""
    rows = json.loads((ROOT / "lab" / "benchmarks" / "runs" / "vit-verify.json").read_text())["rows"]
    decided = [row for row in rows if row["result"] in ("sat", "unsat") and row["seconds"] <= EASY_SECONDS]
    return [(row["onnx"], row["vnnlib"]) for row in decided]


def swept(sides: dict[str, Environment], data: Path, folder: Path, counts: dict[str, int]) -> dict[str, Any]:
    """Sweeps of the same easy instances, repeated, by the old and the new version; `counts`: how many each gets."""
    for name in ("onnx", "vnnlib"):
        (folder / name).symlink_to(data.resolve() / name)
    chosen = easy()
    listed = folder / "easy.csv"
    rows = zip(range(max(counts.values())), itertools.cycle(chosen), strict=False)
    listed.write_text("".join(f"{model},{spec},{100 + i / 1000}\n" for i, (model, spec) in rows))
    found = {side: sweep(listed, counts[side], sides[side], folder) for side in sides}
    statuses = [found[side].pop("statuses") for side in ("old", "new")]
    differ = [name for name in statuses[0].keys() & statuses[1].keys() if statuses[0][name] != statuses[1][name]]
    for one in found.values():
        del one["lines"], one["said"]
    ratio = {unit: found["old"]["each"][unit] / found["new"]["each"][unit] for unit in ("seconds", "cpu_seconds")}
    easy_ones = [spec for _, spec in chosen]
    return {**found, "ratio": ratio, "easy": easy_ones, "answers_that_differ": differ}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="ced5dc6~1", help="the old commit")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "vit")
    parser.add_argument("--parts", default="verify,sweep", help="the others stay in the file as they were")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=machine.cores(), help="threads of `vertex verify`")
    parser.add_argument("--count", type=int, default=200, help="instances of the new sweep")
    parser.add_argument("--count-before", type=int, default=20, help="instances of the old sweep")
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "benchmarks" / "runs" / "startup.json")
    asked = parser.parse_args()
    git = ["git", "-C", str(ROOT), "rev-parse"]
    commit = subprocess.run([*git, asked.before], check=True, capture_output=True, text=True).stdout.strip()
    result: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    result |= {"benchmark": "startup", **versions(), "processor": processor(), "cores": machine.cores()}
    result |= {"before": commit}
    with tempfile.TemporaryDirectory(prefix="vertex-startup-") as temporary:
        folder = Path(temporary)
        with checked_out(commit, folder / "old") as old:
            sides = {"old": environment(old, folder / "pyc-old"), "new": environment(ROOT, folder / "pyc-new")}
            for part in asked.parts.split(","):
                if part == "verify":
                    result[part] = verify(sides, asked.data, folder, asked.repeats, asked.threads)
                    result["threads"] = asked.threads
                else:
                    counts = {"old": asked.count_before, "new": asked.count}
                    result[part] = swept(sides, asked.data, folder, counts)
                    print(json.dumps(result[part], indent=1), flush=True)
                asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
