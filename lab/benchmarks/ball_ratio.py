"""How much larger a certified ℓ2 ball is than the certified box around one: digits and sentences, networks with norms.

python lab/benchmarks/ball_ratio.py [--only TEXT ...] [--inputs 6] [--jobs 1] [--sst FOLDER] [--models FOLDER]
    [--digits FOLDER] [--device cuda] [--out FILE]

The box of half width ε holds the ball of radius ε: whoever has boxes alone certifies ε in ℓ2 by certifying the box. For
each input: the largest ε of `crown` for the ball and for the box, and of an attack in the ball; bisection to 4 %. Of a
sentence the word in the middle moves. Networks: norms.py (digits, 64 numbers, made if not there) and sst.py (128
numbers of one word; made by `sst.py train`). Writes after every input; what is in the file is not asked again.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import norms
import sst
import torch
from torch import Tensor

from vertex_lab.sentences.data import read_sentences, read_vocabulary
from vertex_lab.sentences.model import SentenceArchitecture
from vertex_lab.zoo.datasets import digits
from vertex_softmax import LpBall, Options, __version__, certify
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.graph.ir import Graph
from vertex_softmax.runs.certify import load
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import LinfBall, TokenBall
from vertex_softmax.sets.loading import read

RUNS = Path(__file__).parent / "runs"
DIGITS = ("2 blocks, seed 0",)
SENTENCES = ((3, "standard"), (3, "no-variance"))
PRECISION = 1.04


class BallQuestion(NamedTuple):
    """An input of a network, by its number."""

    network: str
    number: int
    options: argparse.Namespace


def asked(question: BallQuestion) -> tuple[Graph, Tensor, Tensor, int]:
    """The graph, the input (1, ...), which of its numbers move (1, ...), and the label."""
    options = question.options
    if question.network in DIGITS:
        data = digits()
        model = norms.made(question.network, data, options.digits)
        with torch.no_grad():
            right = (model(data.eval_images.double()).argmax(1) == data.eval_labels).nonzero().flatten()
        at = int(right[question.number])
        x = data.eval_images[at : at + 1].double()
        return load(model, LinfBall(x, 1e-3)), x, torch.ones_like(x), int(data.eval_labels[at])
    layers, norm = next(pair for pair in SENTENCES if question.network == f"sst-{pair[0]}-{pair[1]}")
    vocabulary = read_vocabulary(options.sst)
    classifier = sst.loaded(SentenceArchitecture(len(vocabulary), layers, norm), options.models)
    some = read_sentences(options.sst, "test", vocabulary)
    i = sst.chosen(classifier, some, question.number + 1)[question.number]
    ids = torch.tensor([some.ids[i]])
    once = read(classifier)
    ball = TokenBall.of(once, ids, 1e-3, tokens=[ids.shape[1] // 2])
    moving = ball.tokens.unsqueeze(-1).expand_as(ball.centre).double()
    return load(once, ball), ball.centre, moving, some.labels[i]


def bisected(holds: Callable[[float], bool], start: float) -> float:
    """The largest ε that was seen to hold."""
    low, high, eps = 0.0, math.inf, start
    while low == 0 or high / low > PRECISION:
        low, high = (eps, high) if holds(eps) else (low, eps)
        if high < 1e-6:
            return 0.0
        eps = math.sqrt(low * high) if low > 0 and high < math.inf else (low * 1.5 if low > 0 else high / 1.5)
    return low


def measured(question: BallQuestion) -> dict[str, Any]:
    """The three radii, and seconds per question."""
    torch.set_num_threads(1)
    graph, x, moving, label = asked(question)
    row: dict[str, Any] = {"network": question.network, "input": question.number, "numbers": int(moving.sum())}
    counts = {"box": 0, "ball": 0}

    def certified(eps: float, p: float, name: str) -> bool:
        counts[name] += 1
        how = Options(goal=0.0)
        ball = LpBall(x, eps * moving, p)
        found = certify(graph, ball, label, "crown", options=how, device=question.options.device, attack=None)
        return bool(found.certified[0])

    start = 0.02
    for name, p in (("box", math.inf), ("ball", 2.0)):
        begin = time.perf_counter()
        row[name] = start = bisected(lambda eps, p=p, name=name: certified(eps, p, name), start)
        row[f"{name} seconds"] = (time.perf_counter() - begin) / counts[name]
    row["attack"] = bisected(lambda eps: float(pgd(graph, LpBall(x, eps * moving, 2), label).worst) >= 0, 4 * start)
    return row


def main() -> None:
    """Ask what was not asked yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--inputs", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sst", type=Path, default=Path("../shared/data/deept/sst"))
    parser.add_argument("--models", type=Path, default=Path("out/sst"))
    parser.add_argument("--digits", type=Path, default=Path("out/norms"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RUNS / "ball-ratio.json")
    options = parser.parse_args()
    record: dict[str, Any] = {"benchmark": "ball-ratio", "version": __version__, "rows": []}
    if options.out.exists():
        record = json.loads(options.out.read_text())
    known = {(row["network"], row["input"]) for row in record["rows"]}
    names = [*DIGITS, *(f"sst-{layers}-{norm}" for layers, norm in SENTENCES)]
    names = [name for name in names if any(text in name for text in options.only)]
    for name in names:
        if name in DIGITS:
            norms.made(name, digits(), options.digits)  # once, before the jobs
    open_ = [BallQuestion(n, i, options) for n in names for i in range(options.inputs) if (n, i) not in known]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for row in pool.imap_unordered(measured, open_):
            record["rows"].append(row)
            print(json.dumps(row), flush=True)
            write_whole(options.out, json.dumps(record, indent=1).encode())


if __name__ == "__main__":
    main()
