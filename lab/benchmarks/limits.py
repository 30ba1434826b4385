"""Limits that a run is given: memory, threads; and that nothing leaks and nothing depends on chance.

python lab/benchmarks/limits.py [--sections memory certify leak determinism] [--count 1000] [--out FILE]

memory: `vertex verify --memory G` on networks from small to too large: the peak resident memory of the process (VmHWM,
all of it) is at most G; stages that may need more are refused beforehand. certify: the same of `Memory(total=…)` in
Python, which counts above what the process held before. In both, what did not end in time (--timeout) is neither kept
nor broken. leak: --count certifications of mixed methods, sizes, imports and errors in one process: resident
memory, open files, threads and tensors after a fifth of them and at the end. determinism: the same bounds in fresh
processes, for other hash seeds, orders of the batch and numbers of threads, and cores used (processor time over wall
time, which says something only on an idle machine).
Exit status 1 if a limit is not kept. Nothing here is a statement about seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from anchors import facts
from torch import Tensor

from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.foundation.errors import NotEnoughMemoryError, VertexError
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.sets import LinfBall

ROOT = Path(__file__).parents[2]
GIB, MIB = 2**30, 2**20
QUICK = Options(
    ascent=Ascent(steps=3),
    search=Search(seconds=None, domains=6, tried=2, root=Ascent(steps=2), ascent=Ascent(steps=2, step_size=0.01)),
)
SIZES = {
    "17 tokens, 2 blocks": {"image": 16, "patch": 4, "blocks": 2, "pool": "class"},
    "64 tokens": {"image": 16, "patch": 2, "dim": 8, "heads": 1},
    "64 tokens, LayerNorm": {"image": 16, "patch": 2, "dim": 8, "heads": 1, "norm": "layer", "activation": "gelu"},
    "256 tokens": {"image": 16, "patch": 1, "dim": 4, "heads": 1, "mlp": 4},
    "1024 tokens": {"image": 32, "patch": 1, "dim": 4, "heads": 1, "mlp": 4},
}
REFUSED = re.compile("memory limit leaves|before anything is read")
"""What `vertex verify` says last if it has no answer, and a stage, or all, was refused for want of memory."""
LEAK = 32 * MIB
"""Resident memory may grow by so much from a fifth of the certifications to the end."""
TENSORS = 64
"""There may be so many more tensors: torch keeps what it exported last, and that may be a larger network."""
ULPS = 64
"""Bounds with another number of threads, in ulps of the largest output."""


def status(name: str, pid: str = "self") -> int:
    """A field of /proc/PID/status, in bytes where it has a unit."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            words = line.split()
            return int(words[1]) * (1024 if words[-1] == "kB" else 1)
    return 0


def problem(batch: int = 2, seed: int = 0, **shape: Any) -> tuple[torch.nn.Module, LinfBall, Tensor]:
    """A network, balls around random images, and what it says of them."""
    net = PatchTransformer(**{"patch": 4, "seed": seed, **shape}).double().eval()
    of = net.architecture
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(batch, of.channels, of.image, of.image, generator=g, dtype=torch.float64)
    with torch.no_grad():
        labels = net(x).argmax(-1)
    return net, LinfBall(x, 1e-3), labels


# memory ---------------------------------------------------------------------------------------------------------------


def write_instance(folder: Path, shape: dict[str, Any]) -> tuple[Path, Path]:
    """An ONNX file and a property of it: the class at the centre stays the largest."""
    net, ball, labels = problem(1, **shape)
    model, spec = folder / "model.onnx", folder / "property.vnnlib"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net.float(), (ball.centre.float(),), model, dynamo=False, opset_version=17)
    lower, upper = ball.lower.flatten().tolist(), ball.upper.flatten().tolist()
    lines = [f"(declare-const X_{i} Real)" for i in range(len(lower))]
    lines += [f"(declare-const Y_{i} Real)" for i in range(10)]
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        lines += [f"(assert (>= X_{i} {low!r}))", f"(assert (<= X_{i} {high!r}))"]
    label = int(labels[0])
    others = " ".join(f"(and (>= Y_{k} Y_{label}))" for k in range(10) if k != label)
    spec.write_text("\n".join([*lines, f"(assert (or {others}))"]))
    return model, spec


def verified(model: Path, spec: Path, gib: float, method: str, timeout: float) -> dict[str, Any]:
    """`vertex verify --memory` in a process of its own, watched: its peak resident memory, and what it said."""
    command = [sys.executable, "-m", "vertex_softmax", "verify", str(model), str(spec), "--memory", str(gib)]
    command += ["--method", method, "--timeout", str(timeout), "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        try:
            peak = max(peak, status("VmHWM", str(process.pid)))
        except OSError:
            break
        time.sleep(0.02)
    out, err = process.communicate()
    said = (err.strip().splitlines() or [""])[-1]
    row = {"status": (out.split() or ["none"])[0], "code": process.returncode, "said": said[:200], "peak_bytes": peak}
    return {**row, "refused": said} if REFUSED.search(said) else row


def memory(sizes: Sequence[str], budgets: Sequence[float], timeout: float) -> list[dict[str, Any]]:
    """Every size, budget and method."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            model, spec = write_instance(Path(folder), SIZES[size])
            for gib in budgets:
                for method in ("ibp", "crown", "joint", "bab"):
                    row = {"size": size, "gib": gib, "method": method, **verified(model, spec, gib, method, timeout)}
                    row["kept"] = row["peak_bytes"] <= gib * GIB and row["code"] in {0, 2, 3, 4, 10}
                    if row["kept"] and row["status"] == "timeout":  # who knows what it would have taken
                        row["kept"] = None
                    rows.append(row)
                    print(row, flush=True)
    return rows


def given(order: dict[str, Any]) -> dict[str, Any]:
    """In this process: `certify` with so many bytes in all; the peak above what was resident, or that it refused."""
    torch.set_num_threads(1)
    net, ball, labels = problem(order["batch"], **order["shape"])
    graph = load(net, ball)
    options = dataclasses.replace(QUICK, memory=Memory(total=order["total"]))
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    try:
        certify(graph, ball, labels, order["method"], options=options, attack=None)
    except NotEnoughMemoryError as error:
        return {"refused": str(error)}
    return {"above": status("VmHWM") - before, "peak_bytes": status("VmHWM")}


def budgets_of_certify(sizes: Sequence[str], limit: float) -> list[dict[str, Any]]:
    """Every size, batch, method and budget, in a process of its own."""
    rows = []
    for size in sizes:
        for batch, method in ((1, "ibp"), (16, "ibp"), (1, "crown"), (8, "crown"), (1, "vertex"), (2, "joint")):
            for total in (GIB // 2, 2 * GIB):
                order = {"size": size, "batch": batch, "method": method, "total": total}
                row = {**order, **in_a_process({**order, "shape": SIZES[size]}, limit=limit)}
                row["kept"] = None if "unfinished" in row else "refused" in row or row["above"] <= total
                rows.append(row)
                print(row, flush=True)
    return rows


# leak -----------------------------------------------------------------------------------------------------------------


def standing() -> dict[str, int]:
    """What this process holds."""
    gc.collect()
    return {
        "resident": status("VmRSS"),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": status("Threads"),
        "objects": len(gc.get_objects()),
        "tensors": sum(issubclass(type(x), Tensor) for x in gc.get_objects()),
    }


def leak(count: int, imports: int = 25) -> dict[str, Any]:
    """So many certifications in this process; every `imports`-th reads the module anew, every tenth is an error."""
    torch.set_num_threads(1)
    shapes: list[dict[str, Any]] = [{"dim": 4, "heads": 1, "mlp": 0}, {"dim": 4, "mlp": 4}, {"dim": 4, "norm": "layer"}]
    problems = [problem(1 + i % 2, i, **shape) for i, shape in enumerate(shapes)]
    graphs = [load(net, ball) for net, ball, _ in problems]
    errors, early = 0, {}
    for i in range(count):
        k = i % len(problems)
        net, ball, labels = problems[k]
        method = tuple(METHODS)[i % len(METHODS)]
        try:
            model = net if i % imports == 0 else graphs[k]
            certify(model, ball, 99 if i % 10 == 9 else labels, method, options=QUICK, attack=None)
        except VertexError:
            errors += 1
        if i + 1 == max(1, count // 5):
            early = standing()
    late = standing()
    grown = late["resident"] - early["resident"]
    kept = grown <= LEAK and late["files"] <= early["files"] and late["threads"] <= early["threads"]
    kept = kept and late["tensors"] <= early["tensors"] + TENSORS
    return {"count": count, "errors": errors, "early": early, "late": late, "grown": grown, "kept": kept}


# threads and determinism ----------------------------------------------------------------------------------------------


def bounds(order: dict[str, Any]) -> dict[str, Any]:
    """In this process: bounds of every method, with so many threads, the batch in its order or turned round."""
    torch.set_num_threads(order["threads"])
    net, ball, labels = problem(4, **order["shape"])
    turn = [3, 2, 1, 0] if order["turned"] else [0, 1, 2, 3]
    graph = load(net, ball)
    wall, used, found = time.perf_counter(), time.process_time(), {}
    for method in order["methods"]:
        answer = certify(graph, ball.at(turn), labels[turn], method, options=QUICK, attack=None)
        back = torch.argsort(torch.tensor(turn))
        lower = answer.lower[back]
        found[method] = {
            "lower": [float(x).hex() for x in lower.flatten()],
            "verdicts": [str(answer.verdicts[int(i)]) for i in back],
            "size": float(answer.clean[answer.clean.isfinite()].abs().max()),
        }
    wall, used = time.perf_counter() - wall, time.process_time() - used
    return {"found": found, "cores": used / wall, "threads": status("Threads")}


def in_a_process(order: dict[str, Any], hash_seed: int = 0, limit: float | None = None) -> dict[str, Any]:
    """`bounds` or `given` in a fresh one; OMP_NUM_THREADS is not set: what torch was told has to do."""
    environment = {k: v for k, v in os.environ.items() if k not in {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}}
    environment["PYTHONHASHSEED"] = str(hash_seed)
    command = [sys.executable, __file__, "--one", json.dumps(order)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"unfinished": f"not ended after {limit:.0f} s"}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def apart(one: dict[str, Any], other: dict[str, Any]) -> tuple[float, bool]:
    """The largest difference of two answers, in ulps of the largest margin, or of 1; and are the verdicts the same?"""
    most, same = 0.0, True
    for method, a in one["found"].items():
        b = other["found"][method]
        same = same and a["verdicts"] == b["verdicts"]
        for x, y in zip(a["lower"], b["lower"], strict=True):
            if x != y:
                gap = abs(float.fromhex(x) - float.fromhex(y))
                most = max(most, gap / (2.0**-52 * max(1.0, a["size"])))
    return most, same


def determinism(shape: dict[str, Any], methods: Sequence[str], threads: Sequence[int]) -> dict[str, Any]:
    """What changes the bounds, and by how many ulps; and how many cores and threads each number of threads used."""
    plain = {"threads": 1, "turned": False, "shape": shape, "methods": list(methods)}
    first = in_a_process(plain)
    others = {
        "again": in_a_process(plain),
        "hash seed": in_a_process(plain, hash_seed=12345),
        "batch turned": in_a_process({**plain, "turned": True}),
        **{f"{n} threads": in_a_process({**plain, "threads": n}) for n in threads},
    }
    rows = {name: dict(zip(("ulps", "verdicts"), apart(first, other), strict=True)) for name, other in others.items()}
    used = {"1": {k: first[k] for k in ("cores", "threads")}}
    used |= {str(n): {k: others[f"{n} threads"][k] for k in ("cores", "threads")} for n in threads}
    exact = all(rows[name]["ulps"] == 0 for name in ("again", "hash seed"))
    kept = exact and all(row["verdicts"] and row["ulps"] <= ULPS for row in rows.values())
    respected = all(float(u["cores"]) <= int(n) + 0.1 for n, u in used.items())
    return {"rows": rows, "used": used, "kept": kept, "threads_kept": respected}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = ("memory", "certify", "leak", "determinism")
    parser.add_argument("--sections", nargs="+", choices=every, default=every)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=tuple(SIZES))
    parser.add_argument("--budgets", nargs="+", type=float, default=(0.5, 0.75, 2.0), help="GiB")
    parser.add_argument("--timeout", type=float, default=100.0, help="seconds of one run under a memory limit")
    parser.add_argument("--count", type=int, default=1000, help="certifications in one process")
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "benchmarks" / "runs" / "limits.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.one:
        order = json.loads(asked.one)
        print(json.dumps(given(order) if "total" in order else bounds(order)))
        return 0
    known = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    whole: dict[str, Any] = {**known, "benchmark": "limits", "versions": facts()}
    if "determinism" in asked.sections:
        methods = ["ibp", "crown", "alpha-crown", "vertex", "hybrid", "joint", "bab"]
        shapes = {"one block": {}, "two blocks, norm": {"blocks": 2, "norm": "layer", "dim": 4, "mlp": 4, "classes": 3}}
        whole["determinism"] = {}
        for name, shape in shapes.items():
            whole["determinism"][name] = determinism(shape, methods, (2, 4))
            print(name, json.dumps(whole["determinism"][name]), flush=True)
    if "leak" in asked.sections:
        whole["leak"] = leak(asked.count)
        print(whole["leak"])
    if "memory" in asked.sections:
        whole["memory"] = memory(asked.sizes, asked.budgets, asked.timeout)
    if "certify" in asked.sections:
        whole["certify"] = budgets_of_certify(asked.sizes, asked.timeout)
    broken = [f"certify {row['size']} {row['method']}" for row in whole.get("certify", []) if row["kept"] is False]
    broken += [
        f"memory {row['size']} {row['gib']} {row['method']}" for row in whole.get("memory", []) if row["kept"] is False
    ]
    broken += ["leak"] * (not whole.get("leak", {"kept": True})["kept"])
    for name, found in whole.get("determinism", {}).items():
        broken += [f"{what} {name}" for what in ("kept", "threads_kept") if not found[what]]
    whole["broken"] = broken
    print(f"broken: {broken}\nsaved {write_whole(asked.out, json.dumps(whole, indent=1).encode())}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
