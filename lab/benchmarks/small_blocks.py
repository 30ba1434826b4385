"""How many of the paper's small blocks branch and bound decides, and how far the rest is from the boundary.

python lab/benchmarks/small_blocks.py [--heads 12] [--seconds 10] [--jobs 1] [--out FILE] [--work FOLDER]

The networks are the random heads of `strong` (vertex_lab/experiments/strong.py), the first `--heads` of each
configuration, taken from its seeds in turn; 120 are all of them. Each is asked of `certify(…, "bab")` with `--seconds`
of branch and bound beyond `joint`, and attacked, as the product does it. What stays open is attacked once more, much
longer: the lowest margin found that way is at most `gap` above the bound, and the boundary is between the two. An open
head is at the boundary if both are within BOUNDARY of 0. What is verified is attacked again too; exit status 1 if that
finds a counterexample: then the verifier is wrong. Answers are kept in a journal, so that the same command goes
on where it was; answers of other sources are not used.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from anchors import facts

from vertex_lab.experiments.strong import BLOCKS, SEEDS, TRIALS
from vertex_lab.experiments.synthetic import Heads, heads
from vertex_lab.journals import journal_of
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.journal import Journal
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import LinfBall

ROOT = Path(__file__).parents[2]
BOUNDARY = 1e-6
LONG_ATTACK = {"steps": 40, "restarts": 8}
Asked = TypeVar("Asked")
Answer = dict[str, Any]


def head_at(block: int, place: int) -> Heads:
    """Head `place` of a configuration: of `strong`'s seeds in turn, so that few heads are of all of them."""
    seed, trial = place % SEEDS, place // SEEDS
    one = BLOCKS[block]
    drawn = (batch.at(i) for batch in heads(one.keys, seed, trial + 1, one.width) for i in range(len(batch)))
    return list(drawn)[trial]


def decide(asked: tuple[int, int, float]) -> Answer:
    """One head of one configuration within so many seconds beyond `joint`."""
    torch.set_num_threads(1)
    block, place, seconds = asked
    head = head_at(block, place)
    ball = LinfBall(head.x[None], BLOCKS[block].epsilon)
    label = torch.tensor([0 if float(head.margin()) > 0 else 1])
    graph = head.graph()
    begin = time.perf_counter(), time.process_time()
    options = Options(search=Search(seconds=seconds), goal=0.0)
    found = certify(graph, ball, label, "bab", options=options)
    spent = {"seconds": time.perf_counter() - begin[0], "processor_seconds": time.process_time() - begin[1]}
    answer: Answer = {"verdict": str(found.verdicts[0]), **spent}
    if answer["verdict"] == "falsified":
        return answer
    attack = float(pgd(graph, ball, label, seed=1, **LONG_ATTACK).worst)
    return {**answer, "bound": float(found.worst), "attack": attack, "reason": found.reasons[0]}


def answered(
    journal: Journal, asked: Sequence[tuple[str, Asked]], decide: Callable[[Asked], Answer], jobs: int
) -> Iterator[Answer]:
    """The answer of every key, in order: those that the journal has, and the others by `jobs` processes."""
    left = [(key, each) for key, each in asked if key not in journal.known]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for (key, _), answer in zip(left, pool.map(decide, [each for _, each in left]), strict=True):
            journal.add([{"key": key, "found": answer}])
            print(key, {name: value for name, value in answer.items() if name != "reason"}, flush=True)
    for key, _ in asked:
        yield journal.known[key]["found"]


def at_the_boundary(answer: Answer) -> bool:
    """Whether an open head's least margin is known to be within BOUNDARY of 0."""
    return answer["bound"] >= -BOUNDARY and abs(answer["attack"]) <= BOUNDARY


def summary(answers: Iterable[Answer]) -> Answer:
    """Counts by verdict, and the gaps of the open ones: the attack's margin less the bound."""
    every = list(answers)
    count = {verdict: sum(each["verdict"] == verdict for each in every) for verdict in ("verified", "falsified")}
    left = [each for each in every if each["verdict"] == "unknown"]
    return {
        "of": len(every),
        **count,
        "open": len(left),
        "at the boundary": sum(map(at_the_boundary, left)),
        "missed by the attack": sum(each["attack"] < 0 for each in left),
        "verified and broken": sum(each["verdict"] == "verified" and each["attack"] <= 0 for each in every),
        "least margin of a verified one": min((x["attack"] for x in every if x["verdict"] == "verified"), default=None),
        "gaps": sorted(each["attack"] - each["bound"] for each in left),
        "seconds": sum(each["seconds"] for each in every) / max(1, len(every)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=12, help=f"of each configuration; at most {SEEDS * TRIALS}")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "benchmarks" / "runs" / "small-blocks.json")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "small-blocks")
    options = parser.parse_args()
    if not 1 <= options.heads <= SEEDS * TRIALS:
        parser.error(f"--heads is {options.heads}; there are 1 to {SEEDS * TRIALS}")
    asked = [
        (f"{block.name} | head {place} | {options.seconds!r} s | attacked {LONG_ATTACK}", (n, place, options.seconds))
        for n, block in enumerate(BLOCKS)
        for place in range(options.heads)
    ]
    with journal_of("small-blocks", options.work, "experiments/strong.py", "experiments/synthetic.py") as journal:
        answers = list(answered(journal, asked, decide, options.jobs))
    rows = [
        {"configuration": BLOCKS[n].name, "head": place, **answer}
        for (_, (n, place, _)), answer in zip(asked, answers, strict=True)
    ]
    result = {
        "benchmark": "small-blocks",
        **facts(),
        "seconds": options.seconds,
        "jobs": options.jobs,
        "summary": {block.name: summary(row for row in rows if row["configuration"] == block.name) for block in BLOCKS},
        "rows": rows,
    }
    for name, each in result["summary"].items():
        print(name, each)
    print("written:", write_whole(options.out, json.dumps(result, indent=1).encode()))
    return int(any(each["verified and broken"] for each in result["summary"].values()))


if __name__ == "__main__":
    sys.exit(main())
