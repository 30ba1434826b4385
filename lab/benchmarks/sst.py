"""A public suite: classifiers of sentences (SST) with 3, 6 and 12 layers, and how far one of their words may move.

python lab/benchmarks/sst.py train  --data FOLDER [--layers 3 6 12] [--norms standard no-variance] [--device cuda]
python lab/benchmarks/sst.py radius --data FOLDER [--sentences 10] [--methods crown joint] [--device cuda]

FOLDER has vocab.json, train.json, dev.json and test.json (`vertex_lab.sentences.data`). `train` makes the networks from
a seed, in out/sst/; `radius` takes the first sentences of the test set that all are classified correctly and have at
most 12 words, moves the word in the middle in ℓ∞, and bisects ε on a logarithmic scale until it is known to 10 %. The
attack is bisected in the same way. Writes sst-LAYERS-NORM.json, after each sentence.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from vertex_lab.sentences.data import Sentences, read_sentences, read_vocabulary
from vertex_lab.sentences.kept import loaded, make, name_of
from vertex_lab.sentences.model import NORMS, SentenceArchitecture, SentenceClassifier
from vertex_softmax import TokenBall, certify
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets.loading import read

LAYERS = (3, 6, 12)
MOST_WORDS = 12
PRECISION = 1.1
LOW, HIGH = 1e-8, 1.0


def main() -> None:
    """Run what the first argument names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "radius"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--norms", nargs="+", choices=NORMS, default=NORMS)
    parser.add_argument("--models", type=Path, default=Path("out/sst"))
    parser.add_argument("--out", type=Path, default=Path("lab/benchmarks/runs"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sentences", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=("crown", "joint"))
    options = parser.parse_args()
    vocabulary = read_vocabulary(options.data)
    for layers in options.layers:
        for norm in options.norms:
            of = SentenceArchitecture(len(vocabulary), layers, norm)
            if options.what == "train":
                make(of, options.data, options.models, options.device, print)
            else:
                measure(of, options)


def chosen(model: SentenceClassifier, some: Sentences, count: int) -> list[int]:
    """The first sentences of at most 12 words that are classified correctly."""
    found = []
    for i, (ids, label) in enumerate(zip(some.ids, some.labels, strict=True)):
        if len(ids) <= MOST_WORDS + 2 and len(found) < count:
            with torch.no_grad():
                if int(model(torch.tensor([ids])).argmax()) == label:
                    found.append(i)
    return found


def largest(holds: Callable[[float], bool], start: float, factor: float = 4.0, precision: float = PRECISION) -> float:
    """The largest ε tried for which `holds`, known to a factor of `precision`; 0 if not even LOW does.

    Goes up or down from `start` by a factor and then bisects: far too large an ε is dear and says nothing.
    """
    low, high = 0.0, math.inf
    eps = start
    while (low == 0.0 or high == math.inf) and LOW <= eps <= HIGH:
        if holds(eps):
            low, eps = eps, eps * factor
        else:
            high, eps = eps, eps / factor
    if low == 0.0 or high == math.inf:
        return low
    while high / low > precision * (1 + 1e-9):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def measure(of: SentenceArchitecture, options: argparse.Namespace) -> None:
    """Radii of one network's sentences, written after each."""
    vocabulary = read_vocabulary(options.data)
    model = loaded(of, options.models)
    some = read_sentences(options.data, "test", vocabulary)
    record: dict[str, Any] = {"network": json.loads((options.models / f"{name_of(of)}.json").read_text())}
    rows: list[dict[str, Any]] = []
    for i in chosen(model, some, options.sentences):
        rows.append(
            {"sentence": i} | sentence_radii(model, some.ids[i], some.labels[i], options.methods, options.device)
        )
        record["rows"], record["median"] = rows, medians(rows)
        print(name_of(of), json.dumps({k: v for k, v in rows[-1].items() if k != "words"}), flush=True)
        write_whole(options.out / f"{name_of(of)}.json", json.dumps(record, indent=2).encode())


def medians(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    names = [name for name in rows[0] if isinstance(rows[0][name], dict)]
    return {name: statistics.median(row[name]["radius"] for row in rows) for name in names}


def sentence_radii(
    model: SentenceClassifier, ids: Sequence[int], label: int, methods: Sequence[str], device: str = "cpu"
) -> dict[str, Any]:
    """The attack's and each method's radius for the word in the middle, and seconds per question."""
    once, word = read(model), len(ids) // 2
    rows = torch.tensor([ids])
    found: dict[str, Any] = {"tokens": len(ids), "word": word}
    double = SentenceClassifier(model.architecture).double()
    double.load_state_dict(model.state_dict())

    def ball(eps: float) -> TokenBall:
        return TokenBall.of(once, rows, eps, tokens=[word])

    def resists(eps: float) -> bool:
        return float(pgd(double.eval().from_embeddings, ball(eps), label).margins.min()) > 0

    begin = time.perf_counter()
    radius = largest(resists, 0.05)
    found["attack"] = {"radius": radius, "seconds": time.perf_counter() - begin}
    start, factor = radius / 10, 4.0
    for method in methods:
        begin, bounds = time.perf_counter(), []

        def holds(eps: float, method: str = method, bounds: list[tuple[float, float]] = bounds) -> bool:
            result = certify(once, ball(eps), label, method, options=Options(goal=0.0), device=device, attack=None)
            bounds.append((eps, float(result.worst[0])))
            return result.verdict is Verdict.VERIFIED

        radius = largest(holds, start, factor)
        seconds = (time.perf_counter() - begin) / max(len(bounds), 1)
        found[method] = {"radius": radius, "seconds per question": seconds, "bounds": sorted(bounds)}
        if radius > 0:
            start, factor = radius, PRECISION  # the next method has at least that radius, and seldom much more
    return found


if __name__ == "__main__":
    main()
