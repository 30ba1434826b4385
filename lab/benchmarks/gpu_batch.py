"""Many images at once: a one-block transformer (d = 32, 4 heads, MLP 64, 16 tokens) certified by every method, and a
tenth as many by two blocks with LayerNorm and GELU.

    python lab/benchmarks/gpu_batch.py [--device cuda] [--images 1000] [--out FOLDER]

Random weights (seed 0) and images: what counts is the time. Checks that the device and the CPU agree on four images.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vertex_softmax as vx
from vertex_softmax.graph.from_torch.importer import from_torch
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.runs.demo.model import PatchTransformer

EPS = 0.002
TO_0 = "joint to 0"
"""joint with the goal 0: no more than a verdict needs."""

MODELS: dict[str, tuple[dict[str, Any], float, tuple[str, ...]]] = {
    "one block": ({"blocks": 1}, 1.0, ("crown", "alpha-crown", "vertex", "hybrid", "joint", TO_0)),
    "two blocks, LayerNorm, GELU": ({"blocks": 2, "norm": "layer", "activation": "gelu"}, 0.1, ("crown", "joint")),
}
"""Sizes, which share of the images, methods."""


def measure(
    graph: Graph, images: Tensor, labels: Tensor, method: str, dtype: torch.dtype, device: str
) -> dict[str, Any]:
    """One method on all images, and on four of them on the CPU."""
    options = vx.Options(goal=0.0) if method == TO_0 else vx.Options()

    def certified(count: int, device: str) -> vx.Certification:
        some, name = vx.LinfBall(images[:count], EPS), "joint" if method == TO_0 else method
        return vx.certify(graph, some, labels[:count], name, options=options, dtype=dtype, device=device, attack=None)

    certified(300, device)  # warm
    begin = time.perf_counter()
    found = certified(len(images), device)
    seconds = time.perf_counter() - begin
    here = certified(4, "cpu")
    return {
        "method": method,
        "dtype": str(dtype),
        "seconds": seconds,
        "images": len(images),
        "certified": int(found.certified.sum()),
        "mean_bound": float(found.worst.mean()),
        "apart_from_cpu": float((here.worst - found.worst[:4].cpu()).abs().max()),
        "peak_bytes": found.peak_bytes,
        "stages": found.seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    arguments = parser.parse_args()
    rows = []
    for name, (sizes, share, methods) in MODELS.items():
        torch.manual_seed(0)
        model = PatchTransformer(image=28, patch=7, dim=32, heads=4, mlp=64, classes=10, **sizes).double().eval()
        images = torch.rand(max(4, int(arguments.images * share)), 1, 28, 28, dtype=torch.float64)
        labels = model(images).argmax(-1)
        graph = simplify(from_torch(model, images[:1]))
        for dtype in (torch.float64, torch.float32):
            for method in methods:
                rows.append({"model": name, **measure(graph, images, labels, method, dtype, arguments.device)})
                print(rows[-1], flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "cpu"
    result = {"benchmark": "gpu-batch", "device": name, "torch": torch.__version__, "epsilon": EPS, "rows": rows}
    (arguments.out / "gpu-batch.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
