"""Memory and seconds of a deep network as its tokens grow: 4 blocks, d = 64, 4 heads, MLP 128, LayerNorm and GELU.

python lab/benchmarks/deep_memory.py [--tokens 17 33 65] [--methods crown hybrid] [--out FILE] [--profile]

The weights are random (seed 0), the images have 16, 32 or 64 patches of 8×8 and a class token. Each bound of one image
is taken in a process of its own, on one thread; its peak resident memory is getrusage's, the process itself included,
and beside it what was resident before the bound. Exit status 1 if a process needs 16 GiB or more, finds a bound that is
not finite, or does not end within --limit seconds.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import pstats
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from anchors import facts
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from vertex_softmax.foundation.files import write_whole
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.runs.demo.model import Architecture, Block
from vertex_softmax.sets import LinfBall

ROOT = Path(__file__).parents[2]
GIB = 2**30
LIMIT = 16 * GIB
PATCH = 8


@dataclass(frozen=True)
class Size:
    """The network but for its tokens, and the ball."""

    blocks: int = 4
    dim: int = 64
    heads: int = 4
    mlp: int = 128
    epsilon: float = 1e-4


class Deep(nn.Module):
    """Images (batch, 1, 8 rows, 8 columns) to ten logits: patches, a class token, pre-norm blocks, its classifier."""

    def __init__(self, rows: int, columns: int, size: Size) -> None:
        super().__init__()
        of = Architecture(dim=size.dim, heads=size.heads, mlp=size.mlp, norm="layer", activation="gelu", pool="class")
        self.grid = (rows, columns)
        self.embed = nn.Linear(PATCH * PATCH, size.dim)
        self.first = nn.Parameter(torch.randn(1, 1, size.dim) / 10)
        self.position = nn.Parameter(torch.randn(rows * columns + 1, size.dim) / 10)
        self.blocks = nn.Sequential(*(Block(of) for _ in range(size.blocks)))
        self.norm, self.classifier = nn.LayerNorm(size.dim), nn.Linear(size.dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self.grid
        cut = x.reshape(x.shape[0], rows, PATCH, columns, PATCH).permute(0, 1, 3, 2, 4)
        z = self.embed(cut.reshape(x.shape[0], rows * columns, PATCH * PATCH))
        z = torch.cat([self.first.expand(x.shape[0], -1, -1), z], dim=1) + self.position
        return self.classifier(self.norm(self.blocks(z)[:, 0]))


def problem(tokens: int, size: Size) -> tuple[Deep, LinfBall, int]:
    """A network with so many tokens, a ball around a random image, and the label that the network gives it."""
    patches = tokens - 1
    rows = next(r for r in range(int(patches**0.5), 0, -1) if patches % r == 0)
    torch.manual_seed(0)
    model = Deep(rows, patches // rows, size).double().eval()
    image = torch.rand(1, 1, rows * PATCH, patches // rows * PATCH, dtype=torch.float64)
    with torch.no_grad():
        label = int(model(image).argmax())
    return model, LinfBall(image, size.epsilon, clip=(0, 1)), label


def resident() -> int:
    """Peak resident bytes of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(tokens: int, method: str, size: Size, profile: bool = False) -> dict[str, Any]:
    """One bound in this process."""
    torch.set_num_threads(1)
    model, ball, label = problem(tokens, size)
    begin = time.perf_counter()
    graph = load(model, ball)
    imported, before = time.perf_counter() - begin, resident()
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    processor = time.process_time()
    answer = certify(graph, ball, label, method, attack=None)
    processor = time.process_time() - processor
    profiler.disable()
    text = io.StringIO()
    if profile:
        pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(25)
    return {
        "finite": bool(answer.lower[answer.lower != torch.inf].isfinite().all()),
        "worst": answer.worst.item(),
        "clean": answer.clean.amin().item(),
        "verdict": str(answer.verdict),
        "reason": answer.reasons[0],
        "import_s": imported,
        "seconds": answer.seconds,
        "processor_s": processor,
        "resident_before": before,
        "peak_bytes": resident(),
        **({"profile": text.getvalue()} if profile else {}),
    }


def in_a_process(tokens: int, method: str, size: Size, limit: float, profile: bool) -> dict[str, Any]:
    """`measure` in a fresh process; what went wrong if it did not end well."""
    asked = {"tokens": tokens, "method": method}
    order = json.dumps({**asked, "size": asdict(size), "profile": profile})
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", order], capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {**asked, "failed": f"did not end within {limit:.0f} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {**asked, "failed": f"exit status {done.returncode}: {last}"}
    return {**asked, **json.loads(done.stdout.splitlines()[-1])}


def violations(rows: Sequence[dict[str, Any]]) -> list[str]:
    broken = []
    for row in rows:
        name = f"{row['tokens']} tokens by {row['method']}"
        if "failed" in row:
            broken.append(f"{name}: {row['failed']}")
        elif not row["finite"]:
            broken.append(f"{name}: a bound is not finite: {row['reason']}")
        elif row["peak_bytes"] >= LIMIT:
            broken.append(f"{name}: {row['peak_bytes'] / GIB:.1f} GiB")
    return broken


def show(rows: Sequence[dict[str, Any]], size: Size, console: Console) -> None:
    table = Table(title=f"{size.blocks} blocks, d = {size.dim}, ε = {size.epsilon}", title_justify="left")
    for heading in ("tokens", "method", "bound", "seconds", "processor s", "GiB", "most time in"):
        table.add_column(heading, justify="left" if heading in {"method", "most time in"} else "right")
    for row in rows:
        if "failed" in row:
            table.add_row(str(row["tokens"]), row["method"], "–", "–", "–", "–", row["failed"])
            continue
        stages = sorted(((s, n) for n, s in row["seconds"].items() if n != "total"), reverse=True)[:2]
        table.add_row(
            str(row["tokens"]),
            row["method"],
            f"{row['worst']:.5f}",
            f"{row['seconds']['total']:.1f}",
            f"{row['processor_s']:.1f}",
            f"{row['peak_bytes'] / GIB:.2f}",
            "\n".join(f"{name} {seconds:.0f} s" for seconds, name in stages),
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", nargs="+", type=int, default=(17, 33, 65))
    parser.add_argument(
        "--methods", nargs="+", choices=("ibp", "crown", "vertex", "hybrid"), default=("crown", "hybrid")
    )
    parser.add_argument("--blocks", type=int, default=Size.blocks)
    parser.add_argument("--epsilon", type=float, default=Size.epsilon)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for one bound")
    parser.add_argument("--profile", action="store_true", help="print which functions take the time")
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "benchmarks" / "runs" / "deep-memory.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.one:
        order = json.loads(asked.one)
        print(json.dumps(measure(order["tokens"], order["method"], Size(**order["size"]), order["profile"])))
        return 0
    torch.set_num_threads(1)
    size = Size(blocks=asked.blocks, epsilon=asked.epsilon)
    console, rows = Console(), []
    with Console(stderr=True).status("") as status:
        for tokens in asked.tokens:
            for method in asked.methods:
                status.update(f"{tokens} tokens by {method}")
                rows.append(in_a_process(tokens, method, size, asked.limit, asked.profile))
    show(rows, size, console)
    for row in rows:
        if profile := row.pop("profile", None):
            console.print(f"{row['tokens']} tokens by {row['method']}", profile, markup=False, highlight=False)
    broken = violations(rows)
    console.print(f"violations: {len(broken)}", *broken, sep="\n  ")
    whole = {"benchmark": "deep-memory", "versions": facts(), "size": asdict(size), "violations": broken, "rows": rows}
    console.print(f"saved {write_whole(asked.out, json.dumps(whole, indent=1).encode())}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
