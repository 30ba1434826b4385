"""Deep norms on digits: certified radii of networks of 2, 3 and 4 blocks, of several training seeds and kinds of norms.

python lab/benchmarks/norms.py [--images 20] [--joint 0] [--jobs 1] [--only NAME ...] [--models FOLDER] [--out FOLDER]

Networks: LayerNorm + GELU with seeds 0, 1 and 2; with 3 and 4 blocks; RMSNorm + gated SiLU. Each is trained once, in
the same way as that of radius.py (40 epochs, adversarial .05). For every image classified correctly ε is bisected on
a logarithmic scale by `crown`, by the attack and, for the first `--joint` images, by `joint`. `fall` says whether there
is a cliff: how far the bound falls from the largest certified ε to 1.5 times that, in clean margins. Writes norms.json,
after each network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from radius import GOAL, radii
from same_networks import Net
from torch import Tensor, nn

from vertex_lab.zoo.datasets import digits
from vertex_softmax import __version__
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.runs.demo.digits import Dataset
from vertex_softmax.runs.demo.training import train
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import LinfBall

COMMON = {
    "dim": 16,
    "tokens": 16,
    "patch": 2,
    "heads": 2,
    "mask": "none",
    "style": "sdpa",
    "pool": "mean",
    "classes": 10,
}
LAYER = {"norm": "layer", "curve": "gelu", "gated": False}
NETWORKS: dict[str, dict[str, Any]] = {
    "2 blocks, seed 0": {"depth": 2, "seed": 0} | LAYER,
    "2 blocks, seed 1": {"depth": 2, "seed": 1} | LAYER,
    "2 blocks, seed 2": {"depth": 2, "seed": 2} | LAYER,
    "3 blocks": {"depth": 3, "seed": 0} | LAYER,
    "4 blocks": {"depth": 4, "seed": 0} | LAYER,
    "2 blocks, RMSNorm, gated SiLU": {"depth": 2, "seed": 0, "norm": "rms", "curve": "silu", "gated": True},
}
STEPS, LEAST = 8, 2e-3


class Normed(nn.Module):
    """The network with a norm before its head, as deep networks have."""

    def __init__(self, kind: dict[str, Any]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(kind["seed"])
            self.net = Net(COMMON | kind)
            self.last = nn.LayerNorm(COMMON["dim"]) if kind["norm"] == "layer" else nn.RMSNorm(COMMON["dim"], eps=1e-5)
        self.head, self.net.head = self.net.head, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, 1, 8, 8) to class scores."""
        scores: Tensor = self.head(self.last(self.net(x)))
        return scores


def made(name: str, data: Dataset, models: Path) -> nn.Module:
    """The network, trained if it is not there yet."""
    kind = NETWORKS[name]
    model = Normed(kind)
    path = models / f"{name.replace(', ', '-').replace(' ', '_')}.safetensors"
    if path.exists():
        model.load_state_dict(safetensors.torch.load_file(path))
    else:
        train(
            model,
            data.train_images,
            data.train_labels,
            epochs=40,
            seed=kind["seed"],
            batch=32,
            lr=2e-3,
            adversarial=0.05,
        )
        models.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file(model.state_dict(), path)
    return model.double().eval()


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Radii, their ratio to the attack's, seconds, and how far the bound falls behind the largest ε."""
    data = digits()
    model = made(name, data, options.models)
    with torch.no_grad():
        said = model(data.eval_images.double()).argmax(1)
    right = (said == data.eval_labels).nonzero().flatten()[: options.images]
    x, labels = data.eval_images[right], data.eval_labels[right]
    graph = load(model, LinfBall(x, 0.0))
    found: dict[str, Tensor] = {}
    seconds: dict[str, float] = {}
    for method in ("crown", "joint"):
        some = slice(None) if method == "crown" else slice(options.joint)
        if len(x[some]):
            begin = time.perf_counter()

            def holds(ball: LinfBall, of: Tensor, method: str = method) -> Tensor:
                return certify(graph, ball, of, method, options=GOAL, attack=None).certified

            jobs = min(options.jobs, len(x[some]))
            found[method] = radii((x[some], labels[some]), holds, STEPS, LEAST, jobs)
            seconds[method] = (time.perf_counter() - begin) / (STEPS + 1) / len(x[some]) * jobs
    attacked = radii((x, labels), lambda b, of: pgd(model, b, of, steps=20, restarts=2).worst > 0, STEPS, LEAST)
    found["attack"] = attacked
    at = [
        certify(
            graph, LinfBall(x, found["crown"] * f, clip=(0, 1)), labels, "crown", options=Options(batch=4), attack=None
        )
        for f in (1.0, 1.5)
    ]
    fall = (at[0].worst - at[1].worst) / at[0].clean.amin(1)
    return {
        "accuracy": float((said == data.eval_labels).double().mean()),
        "images": len(x),
        "median": {method: statistics.median(values.tolist()) for method, values in found.items()},
        "attack / crown": statistics.median((found["attack"] / found["crown"]).tolist()),
        "seconds per image and ε": seconds,
        "fall in clean margins": {"median": statistics.median(fall.tolist()), "most": float(fall.max())},
        "radii": {method: values.tolist() for method, values in found.items()},
    }


def main() -> None:
    """Measure the networks one after the other."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--joint", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--models", type=Path, default=Path("out/norms"))
    parser.add_argument("--out", type=Path, default=Path("lab/benchmarks/runs"))
    options = parser.parse_args()
    path = options.out / "norms.json"
    result = (
        json.loads(path.read_text())
        if path.exists()
        else {"benchmark": "norms", "version": __version__, "networks": {}}
    )
    for name in options.only:
        result["networks"][name] = found = measure(name, options)
        print(name, json.dumps({key: value for key, value in found.items() if key != "radii"}), flush=True)
        write_whole(path, json.dumps(result, indent=1).encode())


if __name__ == "__main__":
    main()
