"""VNN-COMP's ViT instances by `vertex verify` of an older commit and of this one, in one run on one machine.

python lab/benchmarks/vit_before.py --old FOLDER [--data DIR] [--instances CSV...] [--names NAME...] [--jobs N]
    [--threads 2] [--timeout 100] [--budget S] [--out FILE]

FOLDER has the `src` of the older commit; 68581eb is the last one before the work on branch and bound of issue 24:

    mkdir before && git archive 68581eb src | tar -x -C before

The compiled kernel, which git does not know, is copied there from this checkout if its sources are the same. Every
question is a process of its own, from its start to its end; the two versions of an instance stand next to each other
in the queue, in turn the older and this one first, so that both see the same machine. Before the first, each version
answers one question that is not counted: bytecode is cached. --out is written after every answer, and answers that it
has are not asked for again; after --budget seconds no question begins. The summary has means over the instances that
both versions decide, and over those that each decides. Exit status 1 if their verdicts contradict each other.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NATIVE = Path("src/vertex_softmax/softmax_box/native")
DECIDED = ("unsat", "sat")
TIMED = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-P", "-m", "vertex_softmax", *sys.argv[1:]], check=False)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"\\ncpu {used.ru_utime + used.ru_stime}", file=sys.stderr, end="")
"""
"""Runs one command and says the seconds of processors that it used, its own children included."""


def same_kernel(old: Path) -> bool:
    """Give the older version the compiled kernel if it was made of the same sources; whether both have it."""
    names = [path.name for path in (ROOT / NATIVE).iterdir() if path.suffix in (".c", ".h")]
    alike = all(
        (old / NATIVE / name).exists() and (old / NATIVE / name).read_bytes() == (ROOT / NATIVE / name).read_bytes()
        for name in names
    )
    for library in (ROOT / NATIVE).glob("*.so") if alike else ():
        shutil.copy(library, old / NATIVE)
    return all(any((root / NATIVE).glob("*.so")) for root in (ROOT, old))


def answered(source: Path, files: tuple[str, str], cache: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The answer of one version to one instance, and its seconds."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    paths = {"PYTHONPATH": str(source / "src"), "PYTHONPYCACHEPREFIX": str(cache)}
    environment = {**kept, **paths, "OMP_NUM_THREADS": str(options.threads)}
    words = ["verify", *files, "--timeout", f"{options.timeout:g}", "--threads", str(options.threads), "--json", "-"]
    load, begin = os.getloadavg()[0], time.perf_counter()
    command = [sys.executable, "-c", TIMED, *words]
    done = subprocess.run(command, env=environment, cwd=cache, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - begin
    said, _, cpu = done.stderr.rpartition("\ncpu ")
    row: dict[str, Any] = {"wall": wall, "cpu": float(cpu) if cpu else None, "load": load}
    try:
        found = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {**row, "status": "crash", "reason": said[-500:]}
    return {**row, **{key: found.get(key) for key in ("status", "stage", "domains", "seconds")}}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts and mean seconds by model: of the instances that both decide, and of those that each decides."""
    found: dict[str, Any] = {"contradictions": []}
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["name"], {})[row["version"]] = row
    pairs = {name: both for name, both in by_name.items() if len(both) == 2}
    for name, both in pairs.items():
        if {both["old"]["status"], both["new"]["status"]} == set(DECIDED):
            found["contradictions"].append(name)
    for model in ("pgd_2_3_16", "ibp_3_3_8", ""):
        mine = [both for name, both in pairs.items() if name.startswith(model)]
        common = [both for both in mine if all(both[side]["status"] in DECIDED for side in both)]
        line: dict[str, Any] = {"instances": len(mine), "decided_by_both": len(common)}
        for side in ("old", "new"):
            own = [both[side] for both in mine if both[side]["status"] in DECIDED]
            line[side] = {"decided": len(own)}
            for clock in ("wall", "cpu"):
                if common:
                    line[side][f"mean_{clock}_common"] = statistics.fmean(both[side][clock] for both in common)
                if own:
                    line[side][f"mean_{clock}_decided"] = statistics.fmean(row[clock] for row in own)
                if mine:
                    line[side][f"mean_{clock}_all"] = statistics.fmean(both[side][clock] for both in mine)
        if common:
            for clock in ("wall", "cpu"):
                line[f"old_over_new_{clock}"] = (
                    line["old"][f"mean_{clock}_common"] / line["new"][f"mean_{clock}_common"]
                )
        found[model or "all"] = line
    return found


def listed(options: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """The files of every instance that was asked for, by its name."""
    found = {}
    for path in options.instances:
        with (options.data / path).open() as file:
            for row in csv.reader(file):
                files = [options.data / word for word in row[:2]]
                files = [each if each.exists() else each.with_name(each.name + ".gz") for each in files]
                name = Path(row[1].removesuffix(".gz")).stem
                if any(text in name for text in options.names):
                    found[name] = (str(files[0].resolve()), str(files[1].resolve()))
    return found


def main() -> int:
    """Ask what was not asked yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "vit")
    parser.add_argument("--instances", nargs="+", default=["instances.csv"])
    parser.add_argument("--names", nargs="+", default=[""], help="only instances whose names contain one of these")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=100.0)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=Path("out/vit-before.json"))
    options = parser.parse_args()
    begin = time.perf_counter()
    record: dict[str, Any] = {"benchmark": "vit-before", "rows": []}
    if options.out.exists():
        record = json.loads(options.out.read_text())
    record |= {
        "old_commit": "68581eb, the last before the work on branch and bound",
        "kernel": same_kernel(options.old),
    }
    record |= {"machine": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}"}
    record |= {"threads": options.threads, "jobs": options.jobs, "timeout": options.timeout}
    sources, files = {"old": options.old.resolve(), "new": ROOT}, listed(options)
    known = {(row["name"], row["version"]) for row in record["rows"] if row["status"] != "crash"}
    turns = [(name, side) for i, name in enumerate(files) for side in (("old", "new"), ("new", "old"))[i % 2]]
    open_ = [turn for turn in turns if turn not in known]
    with tempfile.TemporaryDirectory(prefix="vertex-before-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        caches = {side: Path(folder) / side for side in sources}
        for side, cache in caches.items():
            cache.mkdir()
            if open_:
                answered(sources[side], files[open_[0][0]], cache, argparse.Namespace(threads=2, timeout=15.0))

        def one(turn: tuple[str, str]) -> dict[str, Any] | None:
            if time.perf_counter() - begin > options.budget:
                return None
            name, side = turn
            return {
                "name": name,
                "version": side,
                **answered(sources[side], files[name], caches[side], options),
            }

        for done in as_completed([pool.submit(one, turn) for turn in open_]):
            if (row := done.result()) is None:
                continue
            record["rows"].append(row)
            print(f"{row['name']} {row['version']}: {row['status']} {row['wall']:.2f} s", flush=True)
            record["summary"] = summary(record["rows"])
            options.out.parent.mkdir(parents=True, exist_ok=True)
            partial = options.out.with_name(options.out.name + ".part")
            partial.write_text(json.dumps(record, indent=1) + "\n")
            partial.replace(options.out)
    print(json.dumps(record.get("summary"), indent=1))
    missing = len(turns) - len({(row["name"], row["version"]) for row in record["rows"]} & set(turns))
    print(f"{missing} answers missing")
    return 1 if record.get("summary", {}).get("contradictions") else 0


if __name__ == "__main__":
    sys.exit(main())
