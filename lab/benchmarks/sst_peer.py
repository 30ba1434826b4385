"""auto_LiRPA's CROWN on the classifiers of sentences: the radius of the same words as in sst.py, for comparison.

python lab/benchmarks/sst_peer.py --peer CHECKOUT --data FOLDER [--layers 3 6 12] [--norms standard no-variance]
    [--softmax complex lse] [--sentences 3] [--device cuda]

CHECKOUT is a clone of auto_LiRPA (what else it needs: anchors.py). With the softmax taken apart into exp, sum and
quotient ("complex") its CROWN is the baseline that papers compare with; "lse" is its newer rule. Both are float64. The
radius is known to a factor of 1.25. Bounds that are not finite count as not verified.
Writes sst-peer-LAYERS-NORM.json after each sentence; sentences that are already in it are not asked again.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sst import LAYERS, chosen, largest, loaded, name_of
from torch import Tensor, nn
from torch.nn import functional

from vertex_lab.sentences.data import Sentences, read_sentences, read_vocabulary
from vertex_lab.sentences.model import NORMS, SentenceArchitecture, SentenceClassifier
from vertex_softmax.foundation.files import write_whole

START = 2e-3
SOFTMAX = ("complex", "lse")


class PlainOps(nn.Module):
    """The classifier from the words' vectors on, in ops that auto_LiRPA reads: no fused attention, no fused norm."""

    def __init__(self, model: SentenceClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """(1, tokens, dim) to (1, classes)."""
        model, (tokens, dim) = self.model, x.shape[1:]
        x = _normalised(model.norm, x + model.positions.weight[:tokens])
        for block in model.blocks:
            split = (1, tokens, block.heads, dim // block.heads)
            q, k, v = (f(x).reshape(split).transpose(1, 2) for f in (block.query, block.key, block.value))
            weights = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(dim // block.heads), -1)
            x = _normalised(block.after_attention, x + block.out((weights @ v).transpose(1, 2).reshape(1, tokens, dim)))
            x = _normalised(block.after_mlp, x + block.down(functional.relu(block.up(x))))
        found: Tensor = model.classifier(torch.tanh(model.pooler(x[:, 0])))
        return found


def _normalised(norm: nn.Module, x: Tensor) -> Tensor:
    if not isinstance(norm, nn.LayerNorm):
        return norm(x)
    away = x - x.mean(-1, keepdim=True)
    return norm.weight * (away / torch.sqrt((away * away).mean(-1, keepdim=True) + norm.eps)) + norm.bias


def peer_bound(library: Any, plain: nn.Module, x: Tensor, word: int, label: int, softmax: str, eps: float) -> float:
    """Its lower bound of the margin while one word moves by ε."""
    device = str(x.device)
    options = {"softmax": softmax, "fixed_reducemax_index": True}  # the key that a row subtracts: the centre's largest
    network = library.BoundedModule(plain, x, bound_opts=options, device=device, verbose=False)
    margin = torch.zeros(1, 1, 2, dtype=x.dtype, device=device)
    margin[0, 0, label], margin[0, 0, 1 - label] = 1, -1
    ends = [x.clone(), x.clone()]
    ends[0][0, word] -= eps
    ends[1][0, word] += eps
    perturbation = library.PerturbationLpNorm(norm=math.inf, x_L=ends[0], x_U=ends[1])
    with torch.no_grad():
        found, _ = network.compute_bounds(
            x=(library.BoundedTensor(x, perturbation),), C=margin, method="CROWN", bound_upper=False
        )
    return float(found)


def answered(options: argparse.Namespace, layers: int, norm: str, sentence: int, softmax: str, eps: float) -> Any:
    """The bound by a process of its own, or in words why there is none: an assertion on a GPU ends its process."""
    command = [sys.executable, __file__, "--layers", str(layers), "--norms", norm, "--softmax", softmax]
    for name in ("peer", "data", "models", "device"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(
        [*command, "--ask", str(sentence), repr(eps)], capture_output=True, text=True, check=False, env=os.environ
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("bound ")]
    if done.returncode == 0 and lines:
        return float(lines[-1].removeprefix("bound "))
    errors = [line for line in done.stderr.splitlines() if "Error" in line]
    return (errors or [f"ended with {done.returncode}"])[0][:200]


def peer_radius(ask: Callable[[float], Any]) -> dict[str, Any]:
    """Its radius for one word, with every bound that was asked for."""
    bounds: list[tuple[float, Any]] = []
    begin = time.perf_counter()

    def holds(eps: float) -> bool:
        bounds.append((eps, ask(eps)))
        print(f"  ε {eps:.3g}: {bounds[-1][1]}", flush=True)
        return isinstance(bounds[-1][1], float) and math.isfinite(bounds[-1][1]) and bounds[-1][1] > 0

    radius = largest(holds, START, 10.0, 1.25)
    seconds = (time.perf_counter() - begin) / len(bounds)
    return {"radius": radius, "seconds per question": seconds, "bounds": sorted(bounds, key=lambda pair: pair[0])}


def main() -> None:
    """Ask for every network, sentence and softmax."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--norms", nargs="+", choices=NORMS, default=NORMS)
    parser.add_argument("--softmax", nargs="+", choices=SOFTMAX, default=SOFTMAX)
    parser.add_argument("--models", type=Path, default=Path("out/sst"))
    parser.add_argument("--out", type=Path, default=Path("lab/benchmarks/runs"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sentences", type=int, default=3)
    parser.add_argument("--ask", nargs=2, metavar=("SENTENCE", "EPS"), help="one question: print its bound")
    options = parser.parse_args()
    vocabulary = read_vocabulary(options.data)
    some = read_sentences(options.data, "test", vocabulary)
    for layers in options.layers:
        for norm in options.norms:
            of = SentenceArchitecture(len(vocabulary), layers, norm)
            model = loaded(of, options.models).double()
            if options.ask is not None:
                asked(options, model, some, int(options.ask[0]), float(options.ask[1]))
                continue
            path = options.out / f"sst-peer-{layers}-{norm}.json"
            record = json.loads(path.read_text()) if path.exists() else {"rows": {}}
            for i in chosen(model, some, options.sentences):
                row = record["rows"].setdefault(str(i), {})
                for softmax in options.softmax:
                    if softmax not in row:
                        row[softmax] = peer_radius(functools.partial(answered, options, layers, norm, i, softmax))
                        print(name_of(of), i, softmax, row[softmax]["radius"], flush=True)
                        write_whole(path, json.dumps(record, indent=2).encode())


def asked(options: argparse.Namespace, model: SentenceClassifier, some: Sentences, sentence: int, eps: float) -> None:
    """Print the bound of one question."""
    sys.path.append(str(options.peer))
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    library = importlib.import_module("auto_LiRPA")
    ids, label = some.ids[sentence], some.labels[sentence]
    x = model.words(torch.tensor([ids])).detach().to(options.device)
    plain = PlainOps(model).eval().to(options.device)
    print("bound", peer_bound(library, plain, x, len(ids) // 2, label, options.softmax[0], eps))


if __name__ == "__main__":
    main()
