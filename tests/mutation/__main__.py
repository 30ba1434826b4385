"""python -m tests.mutation [--jobs N] [--area AREA]… [--only TEXT] [--journal FILE] [--out FILE.json] | --rekey

Runs every mutant of the chosen areas and prints the score; ends with 1 if one survives. With a journal a run that was
interrupted goes on where it was, and only what depends on a change is run again. With --rekey nothing runs: the
catalogue is rewritten with the places where the mutants are now.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tests.mutation.catalogue import AREAS, catalogue
from tests.mutation.mutant import ROOT
from tests.mutation.patched import PATCHED, outcomes
from tests.mutation.rekey import rekey
from tests.mutation.runner import KILLED, Outcome, Runner


def chosen(arguments: list[str]) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="the mutation score of the suite")
    names = [*AREAS, *(module.area for module in PATCHED)]
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--area", action="append", choices=names, help="may be repeated; default: all")
    parser.add_argument("--only", default="", help="mutants whose name holds this text")
    parser.add_argument("--journal", type=Path, default=ROOT / "build" / "mutation.jsonl")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rekey", action="store_true", help="write down where the mutants are now; run none")
    return parser.parse_args(arguments)


def score(found: list[Outcome], area: str) -> dict[str, Any]:
    """Of one area."""
    mine = [outcome for outcome in found if outcome.area == area]
    counts = {result: sum(o.result == result for o in mine) for result in (*KILLED, "survived", "error")}
    return {
        "killed": sum(counts[result] for result in KILLED),
        "total": len(mine),
        "by": {result: n for result, n in counts.items() if n},
        "left": [o.key for o in mine if o.result not in KILLED],
        "seconds": round(sum(o.seconds for o in mine), 1),
    }


def main(arguments: list[str]) -> int:
    """The score of what is asked for."""
    asked = chosen(arguments)
    if asked.rekey:
        left = rekey()
        print("\n".join(left) or "every mutant has its place")
        return 1 if left else 0
    begin = time.perf_counter()
    runner = Runner(asked.jobs, asked.journal)

    def say(outcome: Outcome) -> None:
        said = outcome.by if outcome.result == "error" else outcome.by.rpartition("::")[2][:70]
        print(f"{outcome.result:9} {outcome.seconds:6.1f} s  {outcome.key}  {said}", flush=True)

    wanted = asked.area or [*AREAS, *(module.area for module in PATCHED)]
    found = runner.run([m for m in catalogue() if m.area in wanted and asked.only in m.key], say)
    for module in PATCHED:
        if module.area in wanted and not asked.only:
            more = outcomes(runner, module)
            for outcome in more:
                say(outcome)
            found += more
    table = {area: score(found, area) for area in wanted}
    table["all"] = {
        "killed": sum(row["killed"] for row in table.values()),
        "total": sum(row["total"] for row in table.values()),
        "seconds": round(sum(row["seconds"] for row in table.values()), 1),
    }
    print(f"\n{'area':22}{'killed':>8}{'of':>6}{'seconds':>10}  left")
    for area, row in table.items():
        print(f"{area:22}{row['killed']:8}{row['total']:6}{row['seconds']:10.1f}  {', '.join(row.get('left', ()))}")
    if asked.out is not None:
        asked.out.write_text(json.dumps(_report(table, found, asked.jobs, begin), indent=1, ensure_ascii=False) + "\n")
    return 0 if table["all"]["killed"] == table["all"]["total"] else 1


def _report(table: dict[str, Any], found: list[Outcome], jobs: int, begin: float) -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return {
        "command": "python -m tests.mutation --out lab/benchmarks/runs/mutation.json",
        "commit": commit.strip(),
        "machine": {"python": platform.python_version(), "torch": torch.__version__},
        "jobs": jobs,
        "wall_seconds": round(time.perf_counter() - begin, 1),
        "areas": table,
        "mutants": [{"name": o.key, "result": o.result, "by": o.by, "seconds": o.seconds} for o in found],
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
