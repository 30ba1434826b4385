"""`python -m vertex_lab.fuzz.directions --seeds A B [--out FILE.json] [--minutes M] [--kind K]`: attacks by seed.

Ends with 1 if a bound is unsound. Everything that a violation needs is its seed and its kind.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from vertex_lab.fuzz.directions import ops
from vertex_lab.fuzz.directions.attack import Outcome, attack_op
from vertex_lab.fuzz.directions.networks import attack_network

NETWORKS_EVERY = 8
"""One of so many seeds is a network, which takes as long as twenty ops."""


def attack(seed: int, kind: str | None = None) -> Outcome:
    """One random case by seed: an op, or a network."""
    if kind == "network" or (kind is None and seed % NETWORKS_EVERY == 0):
        return attack_network(seed)
    return attack_op(seed, kind)


def main(arguments: list[str]) -> int:
    """1 if there are violations."""
    parser = argparse.ArgumentParser(prog="python -m vertex_lab.fuzz.directions", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, required=True, metavar=("A", "B"), help="from A to B − 1")
    parser.add_argument("--out", type=Path, help="where the summary and the violations are written")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--kind", choices=[*ops.KINDS, "network"])
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    begin, cases = time.perf_counter(), 0
    violations: list[dict[str, Any]] = []
    broken: list[dict[str, Any]] = []
    kinds: dict[str, dict[str, Any]] = {}
    for seed in range(*chosen.seeds):
        if time.perf_counter() - begin > 60 * chosen.minutes:
            break
        cases += 1
        try:
            found = attack(seed, chosen.kind)
        except Exception as error:  # noqa: BLE001 - a fault of the attack is reported beside the others
            broken.append({"seed": seed, "error": repr(error)})
            _say(f"seed {seed}: {error!r}")
            continue
        mine = kinds.setdefault(found.name, {"cases": 0, "largest": 0.0, "seed": seed, "near": 0})
        mine["cases"] += 1
        mine["near"] += found.ratio > 0.9
        if found.ratio > mine["largest"]:
            mine["largest"], mine["seed"] = found.ratio, seed
        if not found.ratio <= 1:
            violations.append({"seed": seed, "kind": found.name, "ratio": found.ratio, **found.facts})
            _say(f"VIOLATION seed {seed} {found.name}: {found.ratio:.9g} {found.facts}")
    summary: dict[str, Any] = {
        "seeds": [chosen.seeds[0], chosen.seeds[0] + cases],
        "minutes": (time.perf_counter() - begin) / 60,
        "torch": torch.__version__,
        "violations": violations,
        "broken": broken,
        "kinds": dict(sorted(kinds.items())),
    }
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(summary, indent=1) + "\n")
    for name, each in sorted(kinds.items()):
        _say(
            f"{each['cases']:6d}  {name}: largest {each['largest']:.6f} (seed {each['seed']}), {each['near']} above 0.9"
        )
    _say(f"{cases} cases, {summary['minutes']:.1f} minutes, {len(violations)} violations, {len(broken)} broken")
    return 1 if violations else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
