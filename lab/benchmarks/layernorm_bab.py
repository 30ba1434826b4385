"""What branch and bound closes of the digits that `joint` leaves open: two blocks with LayerNorm and GELU.

python lab/benchmarks/layernorm_bab.py [--heads 20] [--most 6] [--seconds 60] [--jobs 1] [--epsilon E] [--model FOLDER]
    [--out FILE] [--work FOLDER]

The network is that of radius.py, trained once. The first `--heads` images that are classified correctly are asked of
`joint` at one ε, by default the median of its radii in runs/radius-digits.json, so that it leaves half of them open. Of
the open ones the first `--most` are asked of `certify(…, "bab")` with `--seconds` each. For each the journal keeps the
verdict, the bounds of both, and the lowest margin of a long attack. The same command goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from anchors import facts
from radius import ARCHITECTURE, TRAINING
from small_blocks import Answer, answered
from torch import Tensor, nn

from vertex_lab.journals import journal_of
from vertex_lab.zoo.datasets import digits
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.runs.demo.training import prepared
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import LinfBall

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "lab" / "benchmarks" / "runs"
LONG_ATTACK = {"steps": 40, "restarts": 4}
Asked = tuple[str, int, float, float, str]
"""The method, the image, ε, seconds, and where the model is."""


@cache
def network(place: str) -> tuple[nn.Module, Tensor, Tensor]:
    """The model in float64, and the images it classifies correctly, with their labels."""
    data = digits()
    model = prepared(Path(place), ARCHITECTURE, data, TRAINING)[0].double()
    with torch.no_grad():
        right = (model(data.eval_images).argmax(1) == data.eval_labels).nonzero().flatten()
    return model, data.eval_images[right], data.eval_labels[right]


def decide(asked: Asked) -> Answer:
    """One image by one method."""
    torch.set_num_threads(1)
    method, i, epsilon, seconds, place = asked
    model, images, labels = network(place)
    ball, label = LinfBall(images[i : i + 1], epsilon, clip=(0, 1)), labels[i : i + 1]
    graph = load(model, ball)
    begin = time.perf_counter(), time.process_time()
    options = Options(search=Search(seconds=seconds), goal=0.0)
    found = certify(graph, ball, label, method, options=options)
    answer: Answer = {
        "verdict": str(found.verdicts[0]),
        "seconds": time.perf_counter() - begin[0],
        "processor_seconds": time.process_time() - begin[1],
    }
    if answer["verdict"] == "falsified":
        return answer
    attack = float(pgd(model, ball, label, seed=1, **LONG_ATTACK).worst)
    return {**answer, "bound": float(found.worst), "attack": attack, "reason": found.reasons[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=20, help="images that `joint` is asked of")
    parser.add_argument("--most", type=int, default=6, help="open images that branch and bound is asked of")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--epsilon", type=float, default=None)
    parser.add_argument("--model", type=Path, default=ROOT / "out" / "radius" / "model")
    parser.add_argument("--out", type=Path, default=RUNS / "layernorm-bab.json")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "layernorm-bab")
    options = parser.parse_args()
    epsilon = options.epsilon
    if epsilon is None:
        epsilon = float(json.loads((RUNS / "radius-digits.json").read_text())["median"]["joint"])
    place = str(options.model)
    count = min(options.heads, len(network(place)[1]))

    def key(method: str, i: int) -> str:
        return f"{method} | image {i} | ε {epsilon!r} | {options.seconds!r} s | attacked {LONG_ATTACK}"

    with journal_of("layernorm-bab", options.work) as journal:
        first = [(key("joint", i), ("joint", i, epsilon, options.seconds, place)) for i in range(count)]
        by_joint = list(answered(journal, first, decide, options.jobs))
        left = [i for i, each in enumerate(by_joint) if each["verdict"] == "unknown"]
        tried = left[: options.most]
        then = [(key("bab", i), ("bab", i, epsilon, options.seconds, place)) for i in tried]
        by_bab = list(answered(journal, then, decide, options.jobs))
    rows = [{"image": i, "joint": by_joint[i]["bound"], **answer} for i, answer in zip(tried, by_bab, strict=True)]
    said = {word: sum(row["verdict"] == word for row in rows) for word in ("verified", "falsified", "unknown")}
    broken = sum(each["verdict"] == "verified" and each["attack"] <= 0 for each in (*by_joint, *by_bab))
    result: dict[str, Any] = {
        "benchmark": "layernorm-bab",
        **facts(),
        "epsilon": epsilon,
        "seconds": options.seconds,
        "jobs": options.jobs,
        "images": count,
        "open after joint": len(left),
        "tried": len(tried),
        **said,
        "verified and broken": broken,
        "rows": rows,
    }
    print({name: value for name, value in result.items() if name != "rows"})
    print("written:", write_whole(options.out, json.dumps(result, indent=1).encode()))
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
