"""Certified ε of DeepT's MNIST ViT in the ℓ∞, ℓ2 and ℓ1 norms, beside the attack and DeepT's published means.

python lab/benchmarks/deept_mnist.py [--norm inf 2 1] [--methods crown joint bab] [--images 30] [--jobs 1]
    [--data FOLDER] [--out FILE]

The network is public (DeepT, MIT): a vision transformer of one pre-norm block on 28 × 28 digits, norms without
variance. ε is in pixels of [0, 1] and the set is not cut to that range, as in DeepT's table. Its 100 images are a
random sample that cannot be drawn again: means are compared, over the first correctly classified images of the test
set. Each image: bisection to 2 % by every method, and by an attack. Writes after every image; images that are in the
file are not asked again. One thread for each job.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vertex_lab.zoo.deept import network, test_images
from vertex_softmax import LpBall, Options, Search, __version__
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.search.attack import pgd

RUNS = Path(__file__).parent / "runs"
PUBLISHED = {math.inf: 0.0192, 2.0: 0.191, 1.0: 0.668}
"""DeepT's mean certified ε of 100 images (its repository's result files)."""
METHODS = {math.inf: ("crown", "joint", "bab"), 2.0: ("crown", "joint"), 1.0: ("crown", "joint")}
PRECISION = 1.02
"""The bisection ends when the least ε that fails is at most this many times the largest that holds."""
BRANCHING, STEP = 20.0, 1.04
"""Seconds of branch and bound for each question, and by how much ε grows until one is left open."""


def bisected(holds: Callable[[float], bool], start: float) -> float:
    """The largest ε that was seen to hold."""
    low, high = 0.0, math.inf
    eps = start
    while low == 0 or high / low > PRECISION:
        if holds(eps):
            low = eps
        else:
            high = eps
        if high < start * 1e-3:
            return 0.0
        eps = math.sqrt(low * high) if low > 0 and high < math.inf else (low * 1.3 if low > 0 else high / 1.3)
    return low


def measured(question: tuple[Path, float, int, tuple[str, ...]]) -> dict[str, Any]:
    """One image in one norm."""
    data, p, image, methods = question
    torch.set_num_threads(1)
    images, labels = test_images(data)
    x, label = images[image : image + 1], labels[image : image + 1]
    model = network(data)
    graph = load(model, LpBall(x, 1e-3, p))
    row: dict[str, Any] = {
        "p": "inf" if p == math.inf else int(p),
        "image": image,
        "radius": {},
        "seconds": {},
        "asked": {},
    }

    def attacked(eps: float) -> bool:
        return bool(pgd(graph, LpBall(x, eps, p), label, steps=60, restarts=4).worst[0] >= 0)

    def certified(eps: float, method: str) -> bool:
        row["asked"][method] += 1
        how = Options(goal=0.0, search=Search(seconds=BRANCHING))
        return bool(certify(graph, LpBall(x, eps, p), label, method, options=how, attack=None).certified[0])

    for method in methods:
        row["asked"][method] = 0
        begin = time.perf_counter()
        if method == "bab":  # from the other methods' radius on, in steps
            low = max(row["radius"].values(), default=PUBLISHED[p])
            while certified(low * STEP, method):
                low *= STEP
            row["radius"][method] = low
        else:
            row["radius"][method] = bisected(lambda eps, method=method: certified(eps, method), 1.5 * PUBLISHED[p])
        row["seconds"][method] = time.perf_counter() - begin
    row["radius"]["attack"] = bisected(attacked, 2.6 * PUBLISHED[p])
    return row


def main() -> None:
    """Ask what was not asked yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--norm", nargs="+", default=["inf", "2", "1"], choices=["inf", "2", "1"])
    parser.add_argument("--methods", nargs="+", default=None, help="for every norm; else as METHODS says")
    parser.add_argument("--images", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=RUNS / "deept-mnist.json")
    options = parser.parse_args()
    images, labels = test_images(options.data)
    with torch.no_grad():
        right = (network(options.data)(images[:200]).argmax(1) == labels[:200]).nonzero().flatten().tolist()
    record: dict[str, Any] = {"benchmark": "deept-mnist", "version": __version__, "rows": []}
    if options.out.exists():
        record = json.loads(options.out.read_text())
    known = {(str(row["p"]), row["image"]) for row in record["rows"]}
    open_ = [
        (options.data, float(p), image, tuple(options.methods or METHODS[float(p)]))
        for p in options.norm
        for image in right[: options.images]
        if (p, image) not in known
    ]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for row in pool.imap_unordered(measured, open_):
            record["rows"].append(row)
            print(json.dumps(row), flush=True)
            write_whole(options.out, json.dumps(record, indent=1).encode())


if __name__ == "__main__":
    main()
