"""Planted truths: generated instances with known answers through the whole verifier, and not one answer may be wrong.

python benchmarks/planted.py [--seeds 1] [--exact-seeds 8] [--first 100] [--seconds 5] [--kinds …] [--out DIR]

Every kind of tests/search/planted.py, at one to three blocks, with and without LayerNorm, for as many seeds; those with
an exact minimum for more: eight are both sides of it at four distances. The model and the property are written as files
and read again, as `vertex verify` does. Writes planted.json; exit code 1 if an answer was wrong or a counterexample did
not hold in onnxruntime. A refusal to read a model (error) is no answer.
"""

from __future__ import annotations

import argparse
import collections
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from tests.search.planted import EXACT, KINDS, Planted, planted  # noqa: E402
from tests.search.planted_nets import values  # noqa: E402

from vertex_softmax import __version__  # noqa: E402
from vertex_softmax.errors import VertexError  # noqa: E402
from vertex_softmax.files import write_whole  # noqa: E402
from vertex_softmax.search.cascade import Answer, Budget  # noqa: E402
from vertex_softmax.search.verify_files import load_instance, verify_instance  # noqa: E402


def asked(instance: Planted, folder: Path, seconds: float) -> Answer:
    """What the verifier says of the two files."""
    model, spec = folder / "model.onnx", folder / "property.vnnlib"
    model.write_bytes(instance.model)
    spec.write_text(instance.text)
    return verify_instance(load_instance(model, spec), Budget(seconds))


def judged(instance: Planted, folder: Path, seconds: float) -> dict[str, Any]:
    """The answer, and what is wrong with it."""
    begin = time.perf_counter()
    found: dict[str, Any] = {"name": instance.name, "kind": instance.kind, "truth": instance.truth, **instance.facts}
    try:
        answer = asked(instance, folder, seconds)
    except VertexError as error:
        spent = time.perf_counter() - begin
        return {**found, "status": "error", "wrong": "", "reason": str(error), "seconds": spent}
    status, wrong = str(answer.status), ""
    if instance.wrong(status):
        wrong = f"{status}, and the truth is {instance.truth}"
    if status == "sat":
        x = answer.counterexample.x if answer.counterexample is not None else None
        if x is None or instance.breach(x, values(instance.model, x)) is None:
            wrong = "; ".join(filter(None, (wrong, "the counterexample does not hold")))
    spent = time.perf_counter() - begin
    return {
        **found,
        "status": status,
        "stage": answer.stage,
        "wrong": wrong,
        "domains": answer.domains,
        "seconds": spent,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def measure(kinds: tuple[str, ...], first: int, seeds: int, exact_seeds: int, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    places = [(depth, norm) for depth in (1, 2, 3) for norm in (False, True)]
    rows = []
    count = {kind: exact_seeds if kind in EXACT else seeds for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + max(count.values())):
            for kind in (kind for kind in kinds if seed < first + count[kind]):
                for depth, norm in places:
                    rows.append(judged(planted(kind, depth, norm, seed), Path(folder), seconds))
                    row = rows[-1]
                    mark = f"  WRONG: {row['wrong']}" if row["wrong"] else ""
                    print(
                        f"{row['name']:>24} {row['truth']:>5}: {row['status']:<7} {row['seconds']:5.1f} s{mark}",
                        flush=True,
                    )
    table: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        mine = [row for row in rows if row["kind"] == kind]
        times = sorted(row["seconds"] for row in mine)
        table[kind] = {
            "instances": len(mine),
            "truth": dict(collections.Counter(row["truth"] for row in mine)),
            "answers": dict(collections.Counter(f"{row['status']}" for row in mine)),
            "wrong": sum(bool(row["wrong"]) for row in mine),
            "median_seconds": times[len(times) // 2],
            "most_seconds": times[-1],
        }
    return {
        "benchmark": "planted",
        "version": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "budget_seconds": seconds,
        "first_seed": first,
        "seeds": count,
        "instances": len(rows),
        "wrong": sum(bool(row["wrong"]) for row in rows),
        "answers": dict(collections.Counter(f"{row['status']}" for row in rows)),
        "kinds": table,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--exact-seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/runs"))
    options = parser.parse_args()
    result = measure(tuple(options.kinds), options.first, options.seeds, options.exact_seeds, options.seconds)
    path = write_whole(options.out / "planted.json", json.dumps(result, indent=1).encode())
    print(f"{result['instances']} instances, {result['answers']}, {result['wrong']} wrong")
    print(f"written: {path}")
    sys.exit(1 if result["wrong"] else 0)


if __name__ == "__main__":
    main()
