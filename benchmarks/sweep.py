"""The paper's synthetic sweep: one attention head with random weights, every trial a network of its own.

python benchmarks/sweep.py [--keys 16 32] [--epsilon 0.02] [--seeds 0 1 2] [--trials 200] [--methods vertex … joint]

A trial: x ~ N(0, 1) of K tokens by 16; queries, keys and values by weights ~ N(0, (0.75/√16)²); scores q·k / √16; the
margin is the mean row of the head times output weights ~ N(0, 1)/√16, its label the sign of the margin at x; the input
moves by ε in every entry. The paper does not say how it drew its trials. Ours come from torch's CPU generator seeded
with 1,000,003 · seed + K, in float64 and in batches of 50: x, then the weights of queries, keys, values and output,
each for the whole batch. So a trial does not depend on --trials or on ε.

Rows of the summary:
  component     as published: interval-product score boxes (each product's extreme corners, summed), interval values,
                the primitive for every output component
  objective     the vertex objective on the same boxes: the coefficient of key j is one functional (METHOD.md section 5)
  crown … joint the library's methods, through `certify` on the two scores (margin/2, −margin/2)
  pgd           the protocol's attack: 10 steps of 0.003, one start, here the centre
  pgd strong    100 steps, 8 starts, falling step size; gaps are taken from the lower of the two attacks
The first two and the attacks are always there. The standard error of a rate r of n trials is √(r (1 − r)/n). `z` is how
many of them, at the target's rate, `component` is from the paper's and `objective` from METHOD.md's; both targets were
taken on 600 trials of other draws, and z does not allow for their own error.

Each answer goes into a journal (JSON lines) at once: a run that was stopped goes on where it was, with the same sources
of the package and of this script. Seconds do not count making the trial's graph. Exit status 1 if a bound is not
finite, or above an attack.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from anchors import ROOT, ROUNDING, facts
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor
from vit import Journal

from vertex_softmax.files import write_whole
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.methods.bounding import METHODS
from vertex_softmax.methods.certify import certify
from vertex_softmax.ops.registry import Interval
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import LinfBall
from vertex_softmax.softmax_box import softmax_box_max, softmax_box_min

WIDTH = 16
BATCH = 50
PROTOCOL = ("component", "objective")
ATTACKS: dict[str, dict[str, Any]] = {
    "pgd": {"steps": 10, "step_size": 0.003, "restarts": 1},
    "pgd strong": {"steps": 100, "restarts": 8},
}
TARGETS = {
    "component": {4: (0.180, -0.2020), 8: (0.053, -0.3367), 16: (0.007, -0.4280), 32: (0.000, -0.4659)},
    "objective": {4: (0.665, 0.150), 8: (0.515, 0.044), 16: (0.353, -0.026), 32: (0.168, -0.073)},
}
"""Certified rate and mean lower bound at ε = 0.02: the paper's tab:scalable_sweep (Vertex), and METHOD.md section 5."""
TARGET_EPSILON = 0.02
SCRIPT = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
"""Draws, protocol rows and attacks are this file's: answers of another version of it are measured anew."""


@dataclass(frozen=True)
class Place:
    """Which trial."""

    keys: int
    epsilon: float
    seed: int
    trial: int

    def __str__(self) -> str:
        return f"K={self.keys} eps={self.epsilon:g} seed={self.seed} trial={self.trial}"


@dataclass(frozen=True, eq=False)
class Trial:
    """An input and the weights of its network; the label is 0 if the margin at x is positive, else 1."""

    x: Tensor
    """(K, 16)"""
    query: Tensor
    """(16, 16), 1/√16 folded in; as `key` and `value` from the right of x"""
    key: Tensor
    value: Tensor
    output: Tensor
    """(16)"""

    @property
    def margin(self) -> float:
        """At x."""
        p = torch.softmax(self.x @ self.query @ (self.x @ self.key).mT, dim=-1)
        return float((p @ (self.x @ self.value)).mean(0) @ self.output)

    @property
    def label(self) -> int:
        return 0 if self.margin > 0 else 1

    @property
    def sign(self) -> float:
        return 1.0 - 2.0 * self.label

    def graph(self) -> Graph:
        """x (K, 16) to the two class scores (margin/2, −margin/2)."""
        x = build.source(self.x.shape)
        q, k, v = (
            build.matmul(x, build.constant(W), name)
            for W, name in ((self.query, "queries"), (self.key, "keys"), (self.value, "values"))
        )
        p = build.softmax(build.matmul(q, build.transpose(k, 0, 1, "keys"), "scores"), -1, "weights")
        pooled = build.mean(build.matmul(p, v, "rows"), [0], False, "pooled")
        both = torch.stack([self.output, -self.output], dim=1) / 2
        return simplify(Graph(x, build.matmul(pooled, build.constant(both), "margin")))


def trials(keys: int, seed: int, count: int) -> Iterator[Trial]:
    """The first trials of a seed."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + keys)

    def draw(*shape: int) -> Tensor:
        return torch.randn(BATCH, *shape, generator=generator, dtype=torch.float64)

    root = math.sqrt(WIDTH)
    for start in range(0, count, BATCH):
        x = draw(keys, WIDTH)
        query, key, value = (draw(WIDTH, WIDTH) * (0.75 / root) for _ in range(3))
        output = draw(WIDTH) / root
        for i in range(min(BATCH, count - start)):
            yield Trial(x[i], query[i] / root, key[i], value[i], output[i])


def protocol_bound(trial: Trial, ball: LinfBall, row: str) -> float:
    """The lower bound of the signed margin with interval-product score boxes: by component, or of the objective."""
    box = Interval(ball.lower, ball.upper)  # (1, K, 16)
    q, k, v = (_times(box, W) for W in (trial.query, trial.key, trial.value))
    scores = _products(q, k)  # (1, K, K)
    direction = trial.sign * trial.output
    if row == "objective":
        c = _times(box, (trial.value @ direction)[:, None]).lower.mT  # (1, 1, K): every row has the same coefficients
        return float(torch.as_tensor(softmax_box_min(c.expand_as(scores.lower), *scores)).mean())
    ends = [x.unsqueeze(-2).expand(-1, -1, WIDTH, -1) for x in scores]  # (1, K, 16, K)
    low = torch.as_tensor(softmax_box_min(v.lower.mT.unsqueeze(-3).expand_as(ends[0]), *ends))
    high = torch.as_tensor(softmax_box_max(v.upper.mT.unsqueeze(-3).expand_as(ends[0]), *ends))
    return float(torch.where(direction > 0, direction * low, direction * high).sum(-1).mean())


def _times(box: Interval, W: Tensor) -> Interval:
    """The exact box of x W, to rounding."""
    centre, radius = box.centre @ W, box.radius @ W.abs()
    return Interval(centre - radius, centre + radius)


def _products(x: Interval, y: Interval) -> Interval:
    """Σ_d x_id y_jd with every product at its extreme corners: (1, K, 16) twice to (1, K, K).

    Not the library's box of a matrix product, which goes through centre and radius and is wider.
    """
    corners = torch.stack([a.unsqueeze(-2) * b.unsqueeze(-3) for a in x for b in y])  # (4, 1, K, K, 16)
    return Interval(corners.amin(0).sum(-1), corners.amax(0).sum(-1))


def measure(trial: Trial, graph: Graph, ball: LinfBall, method: str) -> dict[str, Any]:
    """One answer: a lower bound of the margin, or for an attack the lowest margin it found."""
    begin = time.perf_counter()
    if method in ATTACKS:
        worst = pgd(graph, ball, trial.label, **ATTACKS[method]).worst.item()
        certified = worst > 0
    elif method in PROTOCOL:
        worst = protocol_bound(trial, ball, method)
        certified = worst > 0
    else:
        answer = certify(graph, ball, trial.label, method)
        worst, certified = answer.worst.item(), bool(answer.certified.item())
    seconds = time.perf_counter() - begin
    finite = math.isfinite(worst)
    return {"worst": worst if finite else None, "finite": finite, "certified": certified, "seconds": seconds}


def run(
    places: Sequence[tuple[int, float, int]],
    count: int,
    methods: Sequence[str],
    journal: Journal,
    note: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Every trial of every (keys, ε, seed) by every method, from the journal where it is there."""
    rows = []
    warm: set[tuple[int, str]] = set()
    for keys, epsilon, seed in places:
        for i, trial in enumerate(trials(keys, seed, count)):
            place = Place(keys, epsilon, seed, i)
            note(str(place))
            known = [journal.known.get((str(place), method), {}) for method in methods]
            left = [m for m, entry in zip(methods, known, strict=True) if entry.get("script") != SCRIPT]
            graph, ball = (trial.graph(), LinfBall(trial.x[None], epsilon)) if left else (None, None)
            for method in left:
                if (keys, method) not in warm:
                    measure(trial, graph, ball, method)  # the first call compiles and allocates
                    warm.add((keys, method))
                found = measure(trial, graph, ball, method)
                entry = {"instance": str(place), **vars(place), "method": method, "clean": abs(trial.margin)}
                journal.add({"script": SCRIPT, **entry, **found})
            rows.extend(journal.known[str(place), method] for method in methods)
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per keys, ε and method: rate, standard error, mean bound, gap to the attacks, seconds, and against others."""
    found = []
    ceiling = attacked(rows)
    for keys, epsilon in dict.fromkeys((row["keys"], row["epsilon"]) for row in rows):
        here = [row for row in rows if (row["keys"], row["epsilon"]) == (keys, epsilon)]
        rate = {m: _rate([row for row in here if row["method"] == m]) for m in _methods(here)}
        for method, r in rate.items():
            of = [row for row in here if row["method"] == method]
            finite = [row for row in of if row["finite"]]
            bounds = [row for row in finite if method not in ATTACKS and row["instance"] in ceiling]
            found.append(
                {
                    "keys": keys,
                    "epsilon": epsilon,
                    "method": method,
                    "trials": len(of),
                    "finite": len(finite),
                    "certified": sum(row["certified"] for row in of),
                    "rate": r,
                    "standard_error": math.sqrt(r * (1 - r) / len(of)),
                    "rate_by_seed": {
                        str(seed): _rate([row for row in of if row["seed"] == seed])
                        for seed in dict.fromkeys(row["seed"] for row in of)
                    },
                    "mean_lower": _mean([row["worst"] for row in finite]),
                    "mean_lower_standard_error": _error([row["worst"] for row in finite]),
                    "mean_gap": _mean([ceiling[row["instance"]] - row["worst"] for row in bounds]),
                    "mean_s": _mean([row["seconds"] for row in of]),
                    "rate_over_objective": r / rate["objective"] if rate.get("objective") else None,
                    **_against_target(method, keys, epsilon, r, len(of)),
                }
            )
    return found


def _methods(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in rows))


def _rate(rows: Sequence[dict[str, Any]]) -> float:
    return sum(row["certified"] for row in rows) / len(rows)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _error(values: Sequence[float]) -> float | None:
    """The standard error of their mean."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _against_target(method: str, keys: int, epsilon: float, rate: float, count: int) -> dict[str, Any]:
    """The recorded rate and mean of this row, and how many standard errors ours is from that rate."""
    if epsilon != TARGET_EPSILON or keys not in TARGETS.get(method, {}):
        return {}
    target, mean = TARGETS[method][keys]
    error = math.sqrt(target * (1 - target) / count)
    return {"target_rate": target, "target_mean_lower": mean, "z": (rate - target) / error if error else None}


def attacked(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The lowest margin that an attack found in each trial."""
    lowest: dict[str, float] = {}
    for row in rows:
        if row["method"] in ATTACKS and row["finite"]:
            lowest[row["instance"]] = min(row["worst"], lowest.get(row["instance"], math.inf))
    return lowest


def violations(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Answers that are not finite, and bounds above the lowest margin an attack found."""
    lowest, broken = attacked(rows), []
    for row in rows:
        attack = lowest.get(row["instance"], math.inf)
        if not row["finite"]:
            broken.append(f"{row['instance']} by {row['method']}: no finite answer")
        elif row["method"] not in ATTACKS and row["worst"] > attack + ROUNDING * (1 + abs(attack)):
            broken.append(f"{row['instance']} by {row['method']}: {row['worst']} above the attack's {attack}")
    return broken


def show(summary: Sequence[dict[str, Any]], console: Console) -> None:
    for keys, epsilon in dict.fromkeys((s["keys"], s["epsilon"]) for s in summary):
        here = [s for s in summary if (s["keys"], s["epsilon"]) == (keys, epsilon)]
        table = Table(title=f"K = {keys}, ε = {epsilon:g}: {here[0]['trials']} trials", title_justify="left")
        for heading in ("", "rate", "± s.e.", "× objective", "mean lower", "gap", "mean ms"):
            table.add_column(heading, justify="left" if not heading else "right")
        for s in here:
            if s["method"] == next(iter(ATTACKS)):
                table.add_section()
            table.add_row(
                s["method"],
                f"{s['rate']:.3f}",
                f"{s['standard_error']:.3f}",
                _number(s["rate_over_objective"], ".2f"),
                _number(s["mean_lower"], ".4f"),
                _number(s["mean_gap"], ".4f"),
                f"{1e3 * s['mean_s']:.1f}",
            )
        console.print(table)
        for s in here:
            if "target_rate" in s:
                z, mean = _number(s["z"], "+.2f"), _number(s["mean_lower"], ".3f")
                console.print(
                    f"{s['method']}: rate {s['rate']:.3f}, recorded {s['target_rate']:.3f} (z {z}); "
                    f"mean {mean}, recorded {s['target_mean_lower']:.3f}"
                )


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=(16, 32), metavar="K")
    parser.add_argument("--epsilon", type=float, nargs="+", default=(0.02,), metavar="E")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2), metavar="S")
    parser.add_argument("--trials", type=int, default=200, metavar="N", help="per seed")
    parser.add_argument(
        "--methods", nargs="*", choices=tuple(METHODS), default=("vertex", "crown", "hybrid", "joint"), metavar="M"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "runs" / "sweep.json")
    parser.add_argument("--journal", type=Path, default=ROOT / "out" / "sweep-journal.jsonl")
    asked = parser.parse_args(arguments)
    if asked.trials < 1 or min(asked.keys) < 1:
        parser.error("--trials and --keys are at least 1")
    torch.set_num_threads(1)
    places = [(k, e, s) for k in asked.keys for e in asked.epsilon for s in asked.seeds]
    methods = (*PROTOCOL, *asked.methods, *ATTACKS)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(places) * asked.trials)
        rows = run(
            places,
            asked.trials,
            methods,
            Journal(asked.journal),
            lambda text: progress.update(task, description=text, advance=1),
        )
    summary, broken = summarise(rows), violations(rows)
    console = Console()
    show(summary, console)
    console.print(f"violations: {len(broken)}", *broken, sep="\n  ")
    whole = {
        "benchmark": "sweep",
        "versions": {**facts(), "script": SCRIPT},
        "attacks": ATTACKS,
        "summary": summary,
        "violations": broken,
        "rows": rows,
    }
    console.print(f"saved {write_whole(asked.out, json.dumps(whole, indent=1).encode())}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
