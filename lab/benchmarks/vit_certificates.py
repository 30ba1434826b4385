"""`vertex verify`, the same with --certificate, and `vertex check`: what a proof of the VNN-COMP instances costs.

python lab/benchmarks/vit_certificates.py [--data DIR] [--names NAME...] [--timeout S] [--threads N] [--check-jobs N]
    [--alone] [--jobs N] [--decided RUN.json...] [--out FILE]

By default the instances are those that lab/benchmarks/runs/vit-verify.json has as `unsat`; --decided names other runs
of vit_verify.py. Each command is a process of its own; --jobs instances are measured at a time, by default one, so that
times are comparable. --out is rewritten after every instance, and instances that it has already are not run again.
--alone runs `vertex verify` without a certificate, too. Exit status 1 if an instance that is `unsat` has no accepted
certificate.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from vertex_lab.experiments.result import versions
from vertex_softmax.foundation.files import write_whole

ROOT = Path(__file__).parents[2]
DECIDED = Path(__file__).parent / "runs" / "vit-verify.json"


def decided(runs: Sequence[Path]) -> list[str]:
    """The names of the instances that are `unsat` in some run, each once, those of few seconds first."""
    rows = [row for run in runs for row in json.loads(run.read_text())["rows"] if row["result"] == "unsat"]
    names = (Path(row["vnnlib"].removesuffix(".gz")).stem for row in sorted(rows, key=lambda row: row["seconds"]))
    return list(dict.fromkeys(names))


def run(words: list[str], threads: int) -> tuple[dict[str, Any], dict[str, float]]:
    """The JSON that a command prints, and its seconds; a command that prints none has the status `crash`."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    begin = time.perf_counter()
    command = [sys.executable, "-c", TIMED, *words]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    took = {"wall": time.perf_counter() - begin}
    said, _, cpu = done.stderr.rpartition("\ncpu ")
    took["cpu"] = float(cpu) if said or cpu else math.nan
    try:
        return json.loads(done.stdout), took
    except json.JSONDecodeError:
        return {"status": "crash", "reason": said[-500:], "accepted": False}, took


TIMED = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "vertex_softmax", *sys.argv[1:]], check=False)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"\\ncpu {used.ru_utime + used.ru_stime}", file=sys.stderr, end="")
sys.exit(done.returncode)
"""
"""Runs one command and says the seconds of processors that it used, its own children included."""


def measure(name: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The commands of one instance."""
    model = arguments.data / "onnx" / f"{name.rpartition('_')[0]}.onnx.gz"
    spec = arguments.data / "vnnlib" / f"{name}.vnnlib.gz"
    spec = spec if spec.exists() else spec.with_suffix("")
    proof = folder / f"{name}.vertex"
    limits = ["--timeout", f"{arguments.timeout:g}", "--threads", str(arguments.threads), "--json", "-"]
    row: dict[str, Any] = {"name": name}
    if arguments.alone:
        found, row["verify_s"] = run(["verify", str(model), str(spec), *limits], arguments.threads)
        row |= {"verify": found["status"], "domains": found.get("domains"), "stage": found.get("stage")}
    words = ["verify", str(model), str(spec), *limits, "--certificate", str(proof)]
    found, row["certify_s"] = run(words, arguments.threads)
    row |= {"certify": found["status"], "reason": found["reason"], "seconds": found.get("seconds")}
    row |= {key: found[key] for key in ("proof_seconds", "proof_bytes", "proof_margin") if key in found}
    if proof.exists():
        jobs = [] if arguments.check_jobs is None else ["--jobs", str(arguments.check_jobs)]
        words = ["check", str(proof), str(model), str(spec), "--json", *jobs]
        found, row["check_s"] = run(words, arguments.threads)
        row |= {"accepted": found["accepted"], "margin": found.get("margin"), "replay_s": found.get("seconds")}
        row["check_reason"] = found["reason"]
        if arguments.keep is None:
            proof.unlink()
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many are accepted, and the medians of the ratios."""
    accepted = [row for row in rows if row.get("accepted")]
    line: dict[str, Any] = {"instances": len(rows), "accepted": len(accepted)}
    line["missing"] = [row["name"] for row in rows if not row.get("accepted")]
    both = [row for row in accepted if row.get("verify") == "unsat"]
    if both:
        for name in ("certify", "check"):
            for clock in ("wall", "cpu"):
                ratios = [row[f"{name}_s"][clock] / row["verify_s"][clock] for row in both]
                line[f"{name}_over_verify_{clock}"] = [round(end(ratios), 3) for end in ENDS]
    if accepted:
        line["bytes"] = [end([row["proof_bytes"] for row in accepted]) for end in ENDS]
    return line


ENDS = (min, statistics.median, max)


def main(words: list[str] | None = None) -> int:
    """Measure what is missing, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "vit")
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--timeout", type=float, default=100.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--check-jobs", type=int)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--decided", type=Path, nargs="+", default=[DECIDED])
    parser.add_argument("--keep", type=Path, help="folder in which the certificates are kept")
    parser.add_argument("--out", type=Path, default=Path("out/vit-certificates.json"))
    arguments = parser.parse_args(words)
    rows = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else []
    names = [n for n in arguments.names or decided(arguments.decided) if all(row["name"] != n for row in rows)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        asked = [pool.submit(measure, name, arguments, arguments.keep or Path(folder)) for name in names]
        for done in as_completed(asked):
            rows.append(done.result())
            print(json.dumps(rows[-1]), flush=True)
            content = {"command": "python lab/benchmarks/vit_certificates.py", "timeout": arguments.timeout}
            content |= {"threads": arguments.threads, "jobs": arguments.jobs, "machine": platform.machine()}
            content |= {"versions": versions(), "summary": summary(rows), "rows": rows}
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            write_whole(arguments.out, json.dumps(content, indent=1).encode())
    print(json.dumps(summary(rows)))
    return 1 if summary(rows)["missing"] else 0


if __name__ == "__main__":
    sys.exit(main())
