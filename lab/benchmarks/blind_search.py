"""Properties that an attack breaks, asked of the search of `vertex verify` with a replay that confirms nothing.

python lab/benchmarks/blind_search.py [--seeds N] [--first S] [--seconds T] [--jobs N] [--budget S] [--out FILE]

Small random vision transformers with and without LayerNorm, over boxes of which some tokens may be still. An attack
finds the least margin m that it can; the property forbids margins up to m + δ, δ from a tenth to 1e-7 of the range of
the margin. So it is false, and as no counterexample is confirmed the search has to go on to its end: `verified` is
wrong, and so is a bound of the margin above m. A third of the seeds forbids margins up to m − δ instead: these may be
verified. How the search goes (early trees, narrowing, parts at once) is the seed's. The family `tree` of `vertex bench
soundness` has exact minima, but no norms. --out is written after every answer, and answers that it has are kept. Exit
status 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from fractions import Fraction
from pathlib import Path
from typing import Any

ROUNDING = 1e-9
"""Of the outputs: how far a bound may be above a margin that was seen."""
SHARES = (1e-1, 1e-2, 1e-3, 1e-5, 1e-7)


def asked(seed: int, seconds: float) -> dict[str, Any]:
    """One network, its property, and the answer, in this process."""
    import torch

    from vertex_softmax.methods.options import Options
    from vertex_softmax.runs.certify import load
    from vertex_softmax.runs.demo.model import PatchTransformer
    from vertex_softmax.search.answers import Budget
    from vertex_softmax.search.attack import pgd
    from vertex_softmax.search.cascade import verify
    from vertex_softmax.sets import Box
    from vertex_softmax.specs.property import Case, Conjunction, Inequality, Property

    torch.set_num_threads(1)
    chance = random.Random(seed)  # noqa: S311
    sizes: dict[str, Any] = {"image": 4, "patch": 2, "dim": 4, "heads": chance.choice([1, 2]), "mlp": 5, "classes": 3}
    sizes |= {"blocks": chance.choice([1, 1, 2]), "norm": chance.choice([None, None, "layer"])}
    sizes |= {"activation": chance.choice(["relu", "relu", "gelu"]), "pool": chance.choice(["mean", "class"])}
    net = PatchTransformer(**sizes, seed=seed).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2)
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, 1, 4, 4, generator=generator, dtype=torch.float64)
    radius = torch.full_like(x, 10 ** chance.uniform(-2.5, -0.5))
    if chance.random() < 0.3:  # the first tokens do not move
        radius[:, :, :2] = 0
    box = Box(x - radius, x + radius)
    graph = load(net, box)
    y = graph.evaluate(x)[0]
    label = int(y.argmax())
    margins = pgd(graph, box, label, steps=60, restarts=12, seed=seed).margins[0]
    target = int(margins.argmin())
    least, clean = float(margins[target]), float(y[label] - y[target])
    holds = chance.random() < 1 / 3
    gap = chance.choice(SHARES) * (clean - least)
    limit = least - gap if holds else least + gap
    row = Inequality({label: Fraction(1), target: Fraction(-1)}, Fraction(limit))
    low, high = (end.flatten().numpy() for end in (box.lower, box.upper))
    prop = Property((Case(low, high, low, high, (Conjunction((row,)),)),), low.size, 3)
    answer = verify(
        graph,
        prop,
        lambda _: None,
        budget=Budget(seconds, first=0, second=0),
        options=Options(search=_search(chance, seconds)),
    )
    bound, size = answer.bounds[0][0] + limit, float(y.abs().max()) + 1
    wrong = "verified, and an attack has broken it" if str(answer.verdict) == "verified" and not holds else ""
    if bound > least + ROUNDING * size:
        wrong = f"{wrong}; a bound is {bound - least:.3g} above a margin that was seen".removeprefix("; ")
    told = {"verdict": str(answer.verdict), "stage": str(answer.stage), "parts": answer.domains, "wrong": wrong}
    return {"seed": seed, **sizes, "radius": float(radius.max()), "gap": gap, "false": not holds, **told}


def _search(chance: random.Random, seconds: float) -> Any:
    from vertex_softmax.bounds.aims import Search

    return Search(
        seconds=seconds,
        domains=chance.choice([64, 512, 4096]),
        narrowing=chance.choice([0.1, 0.3, 0.8]),
        early=chance.choice([0.15, 0.5, 0.9]),
        every=chance.choice([1, 8, 32]),
        late=chance.choice([10, 1000]),
        tried=chance.choice([2, 4]),
    )


def counts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many answers there are of each kind, by whether the property is false."""
    found: dict[str, Any] = {"answers": len(rows), "wrong": [row["seed"] for row in rows if row["wrong"]]}
    for name, false in (("broken", True), ("not broken", False)):
        mine = [row for row in rows if row["false"] is false]
        found[name] = dict(collections.Counter(row["verdict"] for row in mine))
    found["split"] = sum(row["parts"] > 0 for row in rows)
    return found


def main() -> int:
    """Ask what was not asked yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no question begins")
    parser.add_argument("--out", type=Path, default=Path("out/blind-search.json"))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    begin, rows = time.perf_counter(), []
    if options.out.exists():
        rows = json.loads(options.out.read_text())["rows"]
    known = {row["seed"] for row in rows}
    wanted = [seed for seed in range(options.first, options.first + options.seeds) if seed not in known]
    with ProcessPoolExecutor(options.jobs) as pool:
        waiting = {pool.submit(asked, seed, options.seconds) for seed in wanted}
        for done in as_completed(waiting):
            if done.cancelled():
                continue
            rows.append(done.result())
            if rows[-1]["wrong"]:
                print(f"WRONG: {rows[-1]}", flush=True)
            content = {"benchmark": "blind-search", "seconds": options.seconds, "counts": counts(rows), "rows": rows}
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(content, indent=1) + "\n")
            if time.perf_counter() - begin > options.budget:
                for each in waiting:
                    each.cancel()
    print(json.dumps(counts(rows)))
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
