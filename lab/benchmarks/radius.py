"""The largest certified ε of each image: IBP, CROWN, hybrid and joint on two blocks with LayerNorm and GELU, on digits.

python lab/benchmarks/radius.py [--images 50] [--steps 12] [--jobs 1] [--methods ...] [--model FOLDER] [--out FOLDER]

Every image has its own ε, the images of a process are bounded together, and each method bisects ε from LOW to HIGH on a
logarithmic scale, on one thread for each process. The radius reported is certified; the next larger ε tried, at most
`precision` times as large, is not. The attack is bisected in the same way: times `precision`, what it finds is a
ceiling on every radius. Writes radius-digits.json.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vertex_lab.zoo.datasets import digits
from vertex_softmax import __version__
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.runs.demo.model import Architecture
from vertex_softmax.runs.demo.training import prepared
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import LinfBall

ARCHITECTURE = Architecture(patch=2, dim=16, heads=2, blocks=2, mlp=32, norm="layer", activation="gelu")
TRAINING = {"epochs": 40, "seed": 0, "batch": 32, "lr": 2e-3, "adversarial": 0.05}
METHODS = ("ibp", "crown", "hybrid", "joint")
GOAL = Options(goal=0.0, batch=4)
"""Only the verdict counts."""
LOW = {"ibp": 1e-10, "crown": 1e-4, "hybrid": 1e-4, "joint": 1e-4, "attack": 1e-4}
HIGH = 0.5
Holds = Callable[[LinfBall, Tensor], Tensor]
"""Of balls around some images and of their labels: for which of them no other class is reached."""


def radii(data: tuple[Tensor, Tensor], holds: Holds, steps: int, least: float, jobs: int = 1) -> Tensor:
    """Per image, the largest ε tried for which `holds`; 0 if not even `least` does. (n)

    `data`: images and labels; with several jobs, processes that are forked take every so-manieth image.
    """
    images, labels = data
    if jobs == 1:
        return _radii(images, labels, holds, steps, least)
    found = torch.zeros(len(images), dtype=torch.float64)
    pipes = []
    for job in range(min(jobs, len(images))):
        receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=lambda job=job, sender=sender: sender.send(
                _radii(images[job::jobs], labels[job::jobs], holds, steps, least).tolist()
            )
        )
        process.start()
        pipes.append((job, receiver, process))
    for job, receiver, process in pipes:
        found[job::jobs] = torch.tensor(receiver.recv(), dtype=torch.float64)
        process.join()
    return found


def _radii(images: Tensor, labels: Tensor, holds: Holds, steps: int, least: float) -> Tensor:
    low = torch.full((len(images),), math.log(least), dtype=torch.float64)
    high = torch.full_like(low, math.log(HIGH))
    some = holds(LinfBall(images, low.exp(), clip=(0, 1)), labels)
    for _ in range(steps):
        middle = (low + high) / 2
        held = holds(LinfBall(images, middle.exp(), clip=(0, 1)), labels)
        low, high = torch.where(held, middle, low), torch.where(held, high, middle)
    return torch.where(some, low.exp(), 0.0)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def measure(images: int, steps: int, place: Path, jobs: int = 1, methods: Sequence[str] = METHODS) -> dict[str, Any]:
    torch.set_num_threads(1)
    data = digits()
    model, record = prepared(place, ARCHITECTURE, data, TRAINING)
    model = model.double()
    with torch.no_grad():
        right = (model(data.eval_images).argmax(1) == data.eval_labels).nonzero().flatten()[:images]
    x, labels = data.eval_images[right], data.eval_labels[right]
    graph = load(model, LinfBall(x, 0.0))
    certify(graph, LinfBall(x[:1], 0.001), labels[:1], "hybrid", attack=None)  # set up what is set up once
    questions: dict[str, Holds] = {
        method: lambda ball, of, method=method: certify(graph, ball, of, method, options=GOAL, attack=None).certified
        for method in methods
    }
    questions["attack"] = lambda ball, of: pgd(model, ball, of, steps=20, restarts=2).worst > 0
    found, seconds = {}, {}
    for name, holds in questions.items():
        begin = time.perf_counter()
        found[name] = radii((x, labels), holds, steps, LOW[name], jobs)
        seconds[name] = (time.perf_counter() - begin) / (steps + 1) / len(x) * min(jobs, len(x))
        print(
            f"{name:>7}: median {float(found[name].quantile(0.5)):.3g}, {seconds[name]:.4f} s per image and ε",
            flush=True,
        )
    precision = {name: (HIGH / least) ** (0.5**steps) for name, least in LOW.items()}
    return {
        "benchmark": "radius-digits",
        "version": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "model": {key: record[key] for key in ("architecture", "training", "accuracy", "checksum", "sha256")},
        "images": len(x),
        "note": "the first correctly classified evaluation images; pixels clipped to [0, 1]; float64",
        "precision": precision,
        "median": {name: float(values.quantile(0.5)) for name, values in found.items()},
        "median_ratio": {
            f"{a}/{b}": statistics.median((found[a] / found[b]).tolist())
            for a, b in (("hybrid", "crown"), ("joint", "crown"), ("attack", "joint"), ("attack", "hybrid"))
            if a in found and b in found
        },
        "above_the_attack": {m: int((found[m] > found["attack"] * precision["attack"]).sum()) for m in methods},
        "seconds_per_image_and_eps": seconds,
        "radii": {name: values.tolist() for name, values in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--model", type=Path, default=Path("out/radius/model"))
    parser.add_argument("--out", type=Path, default=Path("lab/benchmarks/runs"))
    options = parser.parse_args()
    result = measure(options.images, options.steps, options.model, options.jobs, options.methods)
    path = write_whole(options.out / "radius-digits.json", json.dumps(result, indent=1).encode())
    print(f"written: {path}")


if __name__ == "__main__":
    main()
