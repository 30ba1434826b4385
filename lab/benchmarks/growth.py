"""What size costs: `crown` and `joint` on vision transformers with LayerNorm and GELU, before and now.

python lab/benchmarks/growth.py [--before FOLDER] [--only TEXT ...] [--jobs 1] [--limit 600] [--sapiens FILE]
    [--out FILE]

Random weights (seed 0), random images. Every case runs in a process of its own on one thread, or on the GPU if it is a
GPU's; --before is the folder `src` of another version (of the commit before the work on size: `git worktree add
../before ced5dc6~1`), which is asked the same next to this one. Seconds are processor time; GPUs': wall time, of the
second of two runs, as the first compiles kernels. Writes after every case; what is in the file is not asked again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vertex_softmax import __version__
from vertex_softmax.foundation.files import write_whole

HERE = Path(__file__).resolve()
SMALL: dict[str, Any] = {
    "image": 32, "patch": 8, "channels": 3, "dim": 48, "heads": 3, "mlp": 96, "blocks": 2, "norm": "layer",
    "activation": "gelu", "pool": "class", "eps": 0.002, "method": "crown",
}  # fmt: skip
TOKENS: dict[str, Any] = {"pool": "mean", "channels": 1, "eps": 0.001}
TINY: dict[str, Any] = {"channels": 3, "dim": 192, "heads": 3, "mlp": 768, "blocks": 12, "device": "cuda"}
PLAIN: dict[str, Any] = {"norm": None, "activation": "relu", "pool": "mean", "channels": 1, "eps": 0.001}
CASES: dict[str, dict[str, Any]] = {
    "class token, 2 blocks, 17 tokens, d 48: crown": {},
    "class token, 2 blocks, 17 tokens, d 48: joint": {"method": "joint"},
    "mean, 4 blocks, 64 tokens, d 64: crown": {
        "patch": 4, "dim": 64, "heads": 4, "mlp": 128, "blocks": 4, "pool": "mean", "eps": 0.0005,
    },
    "sapiens, 22 tokens: crown": {"sapiens": 22, "eps": 0.001, "goal": 0.0},
    **{f"tokens {n * n}": {**TOKENS, "image": 8 * n} for n in (4, 6, 8, 11)},
    **{f"width {d}": {"dim": d, "mlp": 2 * d} for d in (48, 96, 192)},
    **{f"depth {n}": {"blocks": n, "eps": 0.0005} for n in (2, 4, 8)},
    "1024 tokens, no norms, one head: crown": {
        **PLAIN, "image": 32, "patch": 1, "dim": 4, "heads": 1, "mlp": 4, "blocks": 1,
    },
    "GPU, 12 blocks, 65 tokens, d 192": {**TINY, "patch": 4, "eps": 1e-5, "dtype": "float32"},
    "GPU, 12 blocks, 197 tokens, d 192": {**TINY, "image": 224, "patch": 16, "eps": 1e-5, "dtype": "float32"},
}  # fmt: skip
"""What each case has in place of SMALL's."""


def ask(case: dict[str, Any]) -> dict[str, Any]:
    """One question, in this process; the version is whichever PYTHONPATH names."""
    import resource
    import time

    import torch

    import vertex_softmax as vx
    from vertex_softmax.methods.options import Options
    from vertex_softmax.runs.certify import certify, load
    from vertex_softmax.runs.demo.model import PatchTransformer

    device, method, eps = case.pop("device", "cpu"), case.pop("method"), case.pop("eps")
    dtype = getattr(torch, case.pop("dtype", "float64"))
    options = {"options": Options(goal=case.pop("goal", None)), "dtype": dtype, "device": device}
    if "attack" in certify.__wrapped__.__code__.co_varnames:  # versions before had none
        options["attack"] = None
    if device == "cpu":
        torch.set_num_threads(1)
    if "sapiens" in case:
        from language import ball, network

        net, x = network("sapiens", Path(case["folder"]), case["sapiens"])
        region = ball(x, case["sapiens"] // 2, eps)
    else:
        net = PatchTransformer(**case, seed=0).double().eval()
        shape = (1, case["channels"], case["image"], case["image"])
        x = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        region = vx.LinfBall(x, eps)
    label, graph = net(x).argmax(-1), load(net, region)
    for _ in range(1 if device == "cpu" else 2):
        began = time.process_time() if device == "cpu" else time.perf_counter()
        found = certify(graph, region, label, method, **options)
        seconds = (time.process_time() if device == "cpu" else time.perf_counter()) - began
    bounds = found.lower[0][found.lower[0].isfinite()]
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "seconds": seconds,
        "bound": float(bounds.min()) if len(bounds) else None,
        "verdict": str(found.verdicts[0]),
        "peak_bytes": resident if device == "cpu" else found.peak_bytes,
    }


def asked(name: str, version: str, source: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own."""
    case = {**SMALL, **CASES[name]}
    if "sapiens" in case:
        case = {
            "sapiens": case["sapiens"],
            "folder": str(options.sapiens),
            "goal": 0.0,
            "eps": case["eps"],
            "method": "crown",
        }
    paths = [str(source), str(HERE.parents[1]), str(HERE.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE), "--ask", json.dumps(case)]
    row: dict[str, Any] = {"case": name, "version": version, "limit": options.limit}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=options.limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {**row, "failed": f"more than {options.limit:g} s"}
    if done.returncode:
        return {**row, "failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
    return {**row, **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    """Ask what was not asked yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=600)
    parser.add_argument("--sapiens", type=Path, default=Path("out/sapiens"))
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=HERE.parent / "runs" / "growth.json")
    options = parser.parse_args()
    if options.ask is not None:
        print(json.dumps(ask(json.loads(options.ask))))
        return
    record: dict[str, Any] = {"benchmark": "growth", "version": __version__, "rows": []}
    if options.out.exists():
        record = json.loads(options.out.read_text())
    known = {(row["case"], row["version"]) for row in record["rows"]}
    versions = {"now": HERE.parents[2] / "src"} | ({} if options.before is None else {"before": options.before})
    names = [name for name in CASES if any(text in name for text in options.only)]
    open_ = [(name, version) for name in names for version in versions if (name, version) not in known]
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda pair: asked(*pair, versions[pair[1]].resolve(), options), open_):
            record["rows"].append(row)
            print(json.dumps(row), flush=True)
            write_whole(options.out, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
