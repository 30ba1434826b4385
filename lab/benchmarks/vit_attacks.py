"""Every `unsat` of saved runs of vit_verify.py attacked for a further minute, with another seed than before.

python lab/benchmarks/vit_attacks.py [--runs RUN.json...] [--data DIR] [--seconds 60] [--jobs N] [--part 1/2] [--seed N]
    [--device cpu] [--names NAME...] [--budget S] [--out FILE] [--merge] [--control]

Each attack is a process of its own with one thread, --jobs at a time, those first whose last attack came nearest. On
the CPU descents begin where linear bounds over the boxes of `crown` are least; the first half of the seconds searches
all targets (`search/falsify.py`), the second half, with another seed, only the two that were nearest. On a GPU
(--device cuda) it is projected gradient descent in float64 (`search/attack.py`) with thousands of points at a time.
What looks like a counterexample counts only if onnxruntime confirms it on the file; the margin of the nearest point is
onnxruntime's, too. --out is written after every instance, and what it has for as many seconds with the same seed and
device is not attacked again. --part 1/2 takes every second instance from the first on. --budget: no attack begins that
cannot end within so many seconds. --merge attacks nothing: it writes the attacks of --out, which may be several files,
into the rows of the runs. --control attacks the instances that are `sat` in the runs in place of those that are
`unsat`: an attack that is worth something breaks them. Exit status 1 if one is broken: then the verifier is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
RUNS = [HERE.parent / "runs" / f"vit-verify{year}.json" for year in ("", "-2024")]
NEAREST = 2
"""How many targets the second half of an attack is about."""
POINTS = 4096
"""The points of a batch on a GPU."""


def attack(model: Path, spec: Path, seconds: float, seed: int, device: str) -> dict[str, Any]:
    """Try to break one instance, in this process."""
    begin = time.perf_counter()
    import torch

    torch.set_num_threads(1)
    from vertex_softmax.search.verify_files import load_instance

    instance = load_instance(model, spec)
    confirm = lambda x: instance.replay.confirms(instance.prop, x)  # noqa: E731
    loaded = time.perf_counter()
    if device == "cpu":
        found, point, visited = searched(instance, confirm, seconds, seed)
    else:
        found, point, visited = descended(instance, confirm, loaded + seconds, seed, device)
    outputs = [float(y) for y in instance.replay.output(point).reshape(-1)]
    rows = [inequality for case in instance.prop.cases for c in case.conjunctions for inequality in c.inequalities]
    margins = [sum(float(a) * outputs[k] for k, a in row.coefficients.items()) - float(row.limit) for row in rows]
    return {
        "broken": found is not None,
        "nearest": min(margins),
        "visited": visited,
        "seconds": seconds,
        "took": time.perf_counter() - loaded,
        "load_seconds": loaded - begin,
        "seed": seed,
        "device": device,
        "input": None if found is None else [float(x) for x in found.x.reshape(-1)],
    }


def minimisers(instance: Any) -> dict[tuple[int, int], Any]:
    """Where linear bounds over the boxes of `crown` are least, by several rules: points (n, inputs) by the target.

    Points at which a bound is attained are where a wrong bound would be seen, and they find what descents from random
    points do not (ibp_3_3_8_778 is such an instance).
    """
    import torch

    from vertex_softmax.bounds.backward import backward
    from vertex_softmax.bounds.coefficients import Objective
    from vertex_softmax.methods.options import Options
    from vertex_softmax.methods.registry import Method, lower_bounds
    from vertex_softmax.ops.rules import ReluSlope, RowRule, Rules
    from vertex_softmax.search.branching import question_over

    graph, found = instance.graph, {}
    for i, case in enumerate(instance.prop.cases):
        question = question_over(graph, case, Options(), time.perf_counter() + 1000)
        rows = torch.cat([c.matrix(instance.prop.outputs)[0] for c in case.conjunctions])
        which = [j for j, c in enumerate(case.conjunctions) for _ in c.inequalities]
        objective = Objective.dense(graph.output, rows.reshape(1, len(rows), *graph.output.shape))
        with torch.no_grad():
            boxes = lower_bounds(question, objective, Method.CROWN, Options()).boxes
            for attention, relu in itertools.product(RowRule, ReluSlope):
                linear = backward(question, boxes, objective, Rules(attention=attention, relu=relu))
                points = question.index.as_input(linear.minimise(question.region)[1])[0].flatten(1)
                for j, point in zip(which, points.float(), strict=True):
                    found.setdefault((i, j), []).append(point)
    return {target: torch.stack(points) for target, points in found.items()}


def searched(instance: Any, confirm: Any, seconds: float, seed: int) -> tuple[Any, Any, int]:
    """The search of `vertex verify`: all targets, then those that were nearest from where that was."""
    import numpy as np
    import torch

    from vertex_softmax.search.falsify import falsify

    begins = minimisers(instance)
    until = time.perf_counter() + seconds
    first = falsify(instance.graph, instance.prop, confirm, seconds=seconds / 2, seed=seed, starts=begins)
    nearest = np.argsort(first.violations, kind="stable")[:NEAREST]
    if first.counterexample is not None:
        return first.counterexample, first.inputs[nearest[0]], first.visited
    kept = [first.targets[t] for t in nearest]
    cases, starts = [], {}
    for number, case in enumerate(instance.prop.cases):
        mine = [(t, slot) for t, (other, slot) in zip(nearest, kept, strict=True) if other == number]
        if mine:
            for j, (t, slot) in enumerate(mine):
                starts[len(cases), j] = torch.cat([torch.from_numpy(first.inputs[[t]]), begins[number, slot]])
            cases.append(dataclasses.replace(case, conjunctions=tuple(case.conjunctions[slot] for _, slot in mine)))
    few = dataclasses.replace(instance.prop, cases=tuple(cases))
    left = max(0.0, until - time.perf_counter())
    second = falsify(instance.graph, few, confirm, seconds=left, seed=seed + 1, starts=starts)
    best = int(np.argmin(second.violations))
    point = second.inputs[best] if second.violations[best] <= first.violations[nearest[0]] else first.inputs[nearest[0]]
    return second.counterexample, point, first.visited + second.visited


def descended(instance: Any, confirm: Any, until: float, seed: int, device: str) -> tuple[Any, Any, int]:
    """Projected gradient descent with many points at a time, for properties that compare one class with others."""
    import vertex_softmax as vx
    from vertex_softmax.search.attack import pgd
    from vertex_softmax.search.visits import boxes

    case, classes = instance.prop.cases[0], instance.prop.outputs
    rows = [c.inequalities[0].coefficients for c in case.conjunctions]
    label = next(k for k, a in rows[0].items() if a == 1)
    targets = [next(k for k, a in row.items() if a == -1) for row in rows]
    if len(instance.prop.cases) > 1 or any(row[label] != 1 or len(row) != 2 for row in rows) or max(targets) >= classes:
        raise SystemExit("the property does not compare one class with others: use --device cpu")
    lower, upper = (end.double().reshape(1, *instance.graph.input.shape) for end in boxes(instance.prop, None))
    region = vx.Box(lower.to(device), upper.to(device))
    found, best, point, visited, turn = None, float("inf"), lower[0], 0, 0
    while found is None and time.perf_counter() < until:
        steps, of = (50, 100, 200)[turn % 3], targets if turn % 2 == 0 else targets[:NEAREST]
        restarts = POINTS // len(of)
        result = pgd(instance.graph, region, label, steps=steps, restarts=restarts, seed=seed + turn, targets=of)
        margins = result.margins[0].cpu()
        targets = sorted(targets, key=lambda t: float(margins[t]))
        visited, turn = visited + len(of) * restarts * (steps + 1), turn + 1
        if float(margins.min()) < best:
            best, point = float(margins.min()), result.counterexamples[0].cpu()
        if best <= 1e-4:
            found = confirm(point.reshape(-1).numpy())
    return found, point.reshape(-1).numpy(), visited


def there(path: Path) -> Path:
    """The file, or the file that it is compressed in."""
    return path if path.exists() else path.with_name(path.name + ".gz")


def asked(row: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The attack on one instance, in a process of its own."""
    files = [str(there(options.data / row[key])) for key in ("onnx", "vnnlib")]
    words = ["--seconds", str(options.seconds), "--seed", str(options.seed), "--device", options.device]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE), *words, "--one", *files]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    name = {"vnnlib": row["vnnlib"]}
    if done.returncode:
        return {**name, "failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    return {**name, **json.loads(done.stdout.splitlines()[-1])}


def rows_of(runs: Sequence[Path], result: str) -> list[dict[str, Any]]:
    """The rows that have a result in some run, each instance once, those first whose last attack came nearest."""
    rows = [row for run in runs for row in json.loads(run.read_text())["rows"] if row["result"] == result]
    rows.sort(key=lambda row: (row.get("attack") or {}).get("nearest", 0.0))
    return list({row["vnnlib"]: row for row in rows}.values())


def merge(runs: Sequence[Path], saved: Sequence[Path]) -> int:
    """Write the attacks of saved files into the rows of the runs; the number of instances that are broken."""
    attacks: dict[str, dict[str, Any]] = {}
    for path in saved:
        for row in json.loads(path.read_text())["rows"]:
            if "failed" not in row and row["seconds"] >= attacks.get(row["vnnlib"], row)["seconds"]:
                attacks[row["vnnlib"]] = row
    total = 0
    for run in runs:
        record = json.loads(run.read_text())
        mine = [row for row in record["rows"] if row["result"] == "unsat"]
        for row in mine:
            if row["vnnlib"] in attacks:
                kept = ("broken", "nearest", "visited", "seconds", "seed", "device")
                row["attack"] = {key: attacks[row["vnnlib"]][key] for key in kept}
        times = [row["attack"]["seconds"] for row in mine if row.get("attack")]
        broken = [row["vnnlib"] for row in mine if row.get("attack") and row["attack"]["broken"]]
        record["attacked"] = {"seconds": min(times, default=0.0), "instances": len(times), "broken": broken}
        run.write_text(json.dumps(record, indent=1))
        print(f"{run.name}: {record['attacked']}")
        total += len(broken)
    return total


def main() -> int:
    """Attack what was not attacked yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="+", default=RUNS)
    parser.add_argument("--data", type=Path, default=HERE.parents[2].parent / "shared" / "data" / "vit")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--names", nargs="+", default=[""], help="only instances whose names contain one of these")
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, nargs="+", default=[Path("out/vit-attacks.json")])
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--one", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(attack(*options.one, options.seconds, options.seed, options.device)))
        return 0
    if options.merge:
        return 1 if merge(options.runs, options.out) else 0
    begin, out = time.perf_counter(), options.out[0]
    number, parts = map(int, options.part.split("/"))
    rows = [
        row
        for row in rows_of(options.runs, "sat" if options.control else "unsat")
        if any(name in row["vnnlib"] for name in options.names)
    ]
    record: dict[str, Any] = {"benchmark": "vit-attacks", "rows": []}
    if out.exists():
        record = json.loads(out.read_text())
    wanted = (options.seconds, options.seed, options.device)
    done_already = [row for row in record["rows"] if tuple(map(row.get, ("seconds", "seed", "device"))) == wanted]
    known = {row["vnnlib"] for row in done_already}
    open_ = [row for row in rows[number - 1 :: parts] if row["vnnlib"] not in known]
    record |= {"machine": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}", "jobs": options.jobs}

    def one(row: dict[str, Any]) -> dict[str, Any] | None:
        late = time.perf_counter() - begin + options.seconds + 10 > options.budget
        return None if late else asked(row, options)

    with ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(one, row) for row in open_]):
            if (found := done.result()) is None:
                continue
            record["rows"].append(found)
            out.parent.mkdir(parents=True, exist_ok=True)
            partial = out.with_name(out.name + ".part")
            partial.write_text(json.dumps(record, indent=1) + "\n")
            partial.replace(out)
            said = found.get("failed") or f"{'BROKEN' if found['broken'] else 'holds'}, nearest {found['nearest']:.4g}"
            print(f"{found['vnnlib']}: {said}", flush=True)
    mine = {row["vnnlib"]: row for row in record["rows"]}
    broken = sum(bool(row.get("broken")) for row in mine.values())
    failed = sum("failed" in row for row in mine.values())
    missing = sum(row["vnnlib"] not in mine for row in rows[number - 1 :: parts])
    print(f"{len(mine)} attacked, {broken} broken, {failed} failed, {missing} missing")
    return 1 if broken or failed else 0


if __name__ == "__main__":
    sys.exit(main())
