"""The 60 (or 133) VNN-COMP instances of `vit` through `vertex sweep`, and every `unsat` attacked again.

python lab/benchmarks/vit_verify.py [--data DIR] [--instances CSV] [--jobs N] [--timeout S] [--attack S] [--out F]
    [--work D] [--published JSON]

Every instance is a process of its own with two threads and --timeout seconds, --jobs at a time (give jobs = cores / 2
for figures "on 2 cores"). Then each instance that was answered `unsat` is attacked for --attack seconds with another
seed; candidates are replayed on onnxruntime. Exit status 1 if one is found, or if a `sat` does not replay: then the
verifier is wrong. With --published (shared/anchors/vit_2024.json) each row has another tool's published verdict beside
it, and a contradiction is an exit status of 1 too. Both parts go on where they were when the script is started again
with the same --work.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MODELS = ("pgd_2_3_16", "ibp_3_3_8")
GOALS = {"pgd_2_3_16": 25, "ibp_3_3_8": 23}
"""How many of 30 have to be verified."""


def attack(job: tuple[str, str, float]) -> dict[str, Any]:
    """Try to break one instance; in a process of its own."""
    import torch

    torch.set_num_threads(1)
    from vertex_softmax.search.falsify import falsify
    from vertex_softmax.search.verify_files import load_instance

    model, spec, seconds = job
    instance = load_instance(Path(model), Path(spec))
    confirm = lambda x: instance.replay.confirms(instance.prop, x)  # noqa: E731
    found = falsify(instance.graph, instance.prop, confirm, seconds=seconds, seed=12345)
    return {
        "broken": found.counterexample is not None,
        "nearest": float(min(found.violations)),
        "visited": found.visited,
        "seconds": seconds,
    }


def there(folder: Path, name: str) -> str:
    path = folder / name
    return str(path if path.exists() else path.with_name(path.name + ".gz"))


def sweep(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per instance, from the sweep's journal and results."""
    instances = arguments.data / arguments.instances
    command = [sys.executable, "-m", "vertex_softmax", "sweep", str(instances), "--out", str(arguments.work)]
    command += ["--jobs", str(arguments.jobs), "--timeout", f"{arguments.timeout:g}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, check=False, env=environment)
    if done.returncode not in (0, 1):
        raise SystemExit(f"the sweep ended with {done.returncode}")
    with (arguments.work / "results.csv").open() as file:
        rows = [row for row in csv.reader(file) if row and row[0] != "benchmark"]
    return [
        {"model": Path(row[1]).stem, "onnx": row[1], "vnnlib": row[2], "result": row[4], "seconds": float(row[5])}
        for row in rows
    ]


def published_verdicts(path: Path | None) -> tuple[str | None, dict[str, str]]:
    """Whose verdicts they are, and the verdict of each property file."""
    if path is None:
        return None, {}
    data = json.loads(path.read_text(encoding="utf-8"))
    return data["source"], {name: row["result"] for name, row in data["verdicts"].items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "vit")
    parser.add_argument("--instances", default="instances.csv", help="the list in DIR: instances_2024.csv has 133")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=100.0)
    parser.add_argument("--attack", type=float, default=60.0)
    parser.add_argument("--attackers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "benchmarks" / "runs" / "vit-verify.json")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "vit-verify")
    parser.add_argument("--published", type=Path, default=None, help="JSON with another tool's verdicts")
    arguments = parser.parse_args()
    source, verdicts = published_verdicts(arguments.published)
    rows = sweep(arguments)
    for row in rows:
        if source is not None:
            row["published"] = verdicts.get(Path(row["vnnlib"]).name)
    contradictions = [row["vnnlib"] for row in rows if {row["result"], row.get("published")} == {"sat", "unsat"}]
    kept = arguments.work / "attacks.json"
    attacks: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    verified = [row for row in rows if row["result"] == "unsat"]
    open_ = [row for row in verified if attacks.get(row["vnnlib"], {}).get("seconds") != arguments.attack]
    jobs = [
        (there(arguments.data, row["onnx"]), there(arguments.data, row["vnnlib"]), arguments.attack) for row in open_
    ]
    if jobs and arguments.attack > 0:
        with ProcessPoolExecutor(arguments.attackers) as pool:
            for row, found in zip(open_, pool.map(attack, jobs), strict=True):
                attacks[row["vnnlib"]] = found
                kept.write_text(json.dumps(attacks))
                print(f"{row['vnnlib']}: {'BROKEN' if found['broken'] else 'holds'}, nearest {found['nearest']:.4g}")
    summary = {}
    for model in MODELS:
        mine = [row for row in rows if row["model"].startswith(model)]
        counts = {word: sum(row["result"] == word for row in mine) for word in ("unsat", "sat", "unknown", "timeout")}
        decided = [row["seconds"] for row in mine if row["result"] in ("unsat", "sat")]
        summary[model] = {
            **counts,
            "error": len(mine) - sum(counts.values()),
            "instances": len(mine),
            "mean_seconds": statistics.fmean(row["seconds"] for row in mine) if mine else None,
            "mean_seconds_decided": statistics.fmean(decided) if decided else None,
            "goal": GOALS[model],
        }
    broken = [name for name, found in attacks.items() if found["broken"]]
    result = {
        "benchmark": arguments.out.stem,
        "timeout": arguments.timeout,
        "threads": 2,
        "jobs": arguments.jobs,
        "machine": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
        "published": source,
        "contradictions": contradictions,
        "summary": summary,
        "attacked": {"seconds": arguments.attack, "instances": len(attacks), "broken": broken},
        "rows": [{**row, "attack": attacks.get(row["vnnlib"])} for row in rows],
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(summary, indent=1))
    return 1 if broken or contradictions else 0


if __name__ == "__main__":
    sys.exit(main())
