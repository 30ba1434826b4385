"""Do two checkouts of the package give the same answers, as fast? To be asked around every change of its structure.

python lab/benchmarks/same_answers.py record --source CHECKOUT --out DIR [--groups G ...] [--weights DIR]
python lab/benchmarks/same_answers.py compare --old DIR --new DIR [--groups G ...]
python lab/benchmarks/same_answers.py time --old CHECKOUT --new CHECKOUT --out FILE.json [--repeats 5]

`record` asks one checkout all questions of same_questions.py in a process of its own, on one thread; numbers are kept
as hexadecimal floats, certificates as files. With --groups, what DIR has of other groups is kept. What networks were
trained, or written as ONNX, is kept in --weights (beside DIR unless told), so that both sides have the same.
`compare` gives, for each method, the largest differences |new − old| / max(1, |old|) where a bound became worse and
where it became better, has the new checkout check the old certificates, and ends with status 1 if something is worse
by more than WORSE, a word differs, an item is missing, or a certificate is rejected. `time` keeps a process for each
checkout, and has them answer in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORSE = 1e-12
WORSE_SINGLE = 1e-5
"""In float32, where 1e-12 of float64 is as many units in the last place as 5e-4 is."""
SLOWER = 1.05
TIMED = (  # group, name, methods: 0.3 to 2 s each
    ("primitive", "softmax-box plain 200 float64", ("primitive",)),
    ("anchors", "ten16_eps0.02", ("ibp", "crown", "vertex", "hybrid", "alpha-crown")),
    ("vit", "pgd_2_3_16 0", ("ibp", "crown", "vertex", "hybrid", "alpha-crown", "joint")),
    ("digits", "layer-gelu 2", ("crown", "vertex", "hybrid", "alpha-crown", "joint")),
    ("digits", "rms-gated-silu 1", ("ibp", "hybrid", "joint")),
    ("digits", "rms-gated-silu 1 wider", ("bab",)),
    ("digits", "none-relu 2 wider", ("joint", "bab")),
)
LEAST_S = 0.3
"""A question is repeated within one timing until it has taken about so long."""


def environment(source: Path) -> dict[str, str]:
    """Of a process that is to use a checkout, on one thread."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    shared = os.environ.get("SAME_SHARED") or str(
        next(p for p in (*HERE.parents, Path("/work")) if (p / "shared").is_dir()) / "shared"
    )
    return {**os.environ, **threads, "PYTHONPATH": str(source / "src"), "SAME_SHARED": shared, "PYTHONHASHSEED": "0"}


class Worker:
    """A process that answers with one checkout: a line of JSON for a line of JSON."""

    def __init__(self, source: Path, out: Path, weights: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(HERE / "same_answers.py"), "worker", str(out), str(weights)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(source), cwd=out
        )
        self.about = self._line()
        home = Path(self.about["package"])
        if not home.is_relative_to((source / "src").resolve()):
            raise SystemExit(f"the package came from {home}, not from {source}")

    def _line(self) -> dict[str, Any]:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit("the worker ended without an answer")
        return dict(json.loads(line))

    def ask(self, **what: Any) -> dict[str, Any]:
        if self.process.stdin is None:
            raise SystemExit("the worker has ended")
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self._line()

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()


def work(out: Path, weights: Path) -> int:
    """The worker: what it prints besides its answers goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    import same_questions

    import vertex_softmax

    home = Path(vertex_softmax.__file__).resolve().parent
    asked = {(q.group, q.name, q.method): q for q in same_questions.questions(weights, out)}
    kernels = sorted(p.name for p in home.rglob("*.so"))
    keys = [list(key) for key in asked]
    about = {"package": str(home), "kernels": kernels, "torch": torch.__version__, "questions": keys}
    print(json.dumps(about), file=answers, flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        if "certificate" in wanted:
            print(
                json.dumps(
                    same_questions.checked(
                        Path(wanted["certificate"]), wanted["model"] and Path(wanted["model"]), wanted["spec"]
                    )
                ),
                file=answers,
                flush=True,
            )
            continue
        question = asked[tuple(wanted["question"])]
        torch.manual_seed(0)
        begin, used = time.perf_counter(), time.process_time()
        for _ in range(wanted.get("times", 1)):
            try:
                found = question.ask()
            except Exception as error:  # noqa: BLE001 - an error is an answer as well: both must give it
                found = {"values": [], "words": [f"{type(error).__name__}: {error}"], "error": True}
        spent = {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - used}
        print(json.dumps({**found, **spent, "single": question.single}), file=answers, flush=True)
    return 0


def record(source: Path, out: Path, groups: Sequence[str], weights: Path) -> int:
    begin = time.perf_counter()
    worker = Worker(source, out, weights)
    chosen = [key for key in worker.about["questions"] if not groups or key[0] in groups]
    head = subprocess.run(["git", "-C", str(source), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    about = {k: v for k, v in worker.about.items() if k != "questions"}
    whole = {"source": str(source), "commit": head.stdout.strip(), **about, "rows": []}
    file = out / "record.json"
    if groups and file.exists():  # those of other groups are kept
        before = json.loads(file.read_text())
        if all(before[k] == v for k, v in whole.items() if k != "rows"):
            whole["rows"] = [row for row in before["rows"] if row["group"] not in groups]
    for i, key in enumerate(chosen):
        answer = worker.ask(question=key)
        whole["rows"].append({"group": key[0], "name": key[1], "method": key[2], **answer})
        bad = f"  {answer['words'][-1]}" if answer.get("error") else ""
        print(f"{i + 1}/{len(chosen)} {' | '.join(key)}: {answer['seconds']:.2f} s{bad}", file=sys.stderr)
        if i + 1 == len(chosen) or chosen[i + 1][0] != key[0]:  # a run that is stopped keeps its whole groups
            file.write_text(json.dumps(whole, indent=1))
    worker.close()
    rows = whole["rows"]
    for method, of in by_method(rows).items():
        spent = sum(row["cpu"] for row in of)
        print(f"{method:18} {len(of):4} items {sum(len(r['values']) for r in of):6} values {spent:7.1f} s of CPU")
    errors = sum(bool(r.get("error")) for r in rows)
    print(f"{len(rows)} items, {errors} errors, {time.perf_counter() - begin:.0f} s by the clock: {out}")
    return 0


def by_method(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["method"] + (" float32" if row.get("single") else "")].append(row)
    return dict(found)


def difference(old: float, new: float) -> float:
    """(new − old) / max(1, |old|): negative is worse; NaN and −inf equal themselves, and are worse than others."""
    if old == new or (math.isnan(old) and math.isnan(new)):
        return 0.0
    if math.isnan(new) or math.isnan(old):
        return -math.inf if math.isnan(new) else math.inf
    if math.isinf(old) or math.isinf(new):
        return math.inf if new > old else -math.inf
    return (new - old) / max(1.0, abs(old))


def compare(old: Path, new: Path, groups: Sequence[str]) -> int:
    before, after = (json.loads((folder / "record.json").read_text()) for folder in (old, new))
    key = lambda row: (row["group"], row["name"], row["method"])  # noqa: E731
    for side in (before, after):
        side["rows"] = [row for row in side["rows"] if not groups or row["group"] in groups]
    a, b = ({key(row): row for row in side["rows"]} for side in (before, after))
    print(f"old {before['source']} {before['commit'][:9]}, new {after['source']} {after['commit'][:9]}")
    wrong = [f"missing: {' | '.join(k)}" for k in a if k not in b] + [
        f"extra: {' | '.join(k)}" for k in b if k not in a
    ]
    wrong += [
        f"{what} {before[what]} and {after[what]}" for what in ("kernels", "torch") if before[what] != after[what]
    ]
    unsteady: list[str] = []
    worst: list[tuple[float, str]] = []
    print(f"{'method':20} {'items':>5} {'values':>7} {'finite':>7} {'differ':>7} {'worse':>9} {'better':>9}")
    for method, rows in by_method([row for k, row in a.items() if k in b]).items():
        limit = WORSE_SINGLE if rows[0].get("single") else WORSE
        moved: list[float] = []
        finite = 0
        for row in rows:
            other, name = b[key(row)], " | ".join(key(row))
            if row["words"] != other["words"]:
                line = f"{name}: {row['words']} became {other['words']}"
                (unsteady if row.get("unstable") or other.get("unstable") else wrong).append(line)
            olds, news = ([float.fromhex(x) for x in side["values"]] for side in (row, other))
            if len(olds) != len(news):
                wrong.append(f"{name}: {len(olds)} values became {len(news)}")
                continue
            here = [difference(x, y) for x, y in zip(olds, news, strict=True)]
            finite += sum(map(math.isfinite, olds))
            moved += here
            if any(here):
                at = max(range(len(here)), key=lambda i: abs(here[i]))
                worst.append((abs(here[at]), f"{name} [{at}]: {olds[at]!r} became {news[at]!r}, {here[at]:+.2e}"))
            if min(here, default=0.0) < -limit:
                wrong.append(f"{name}: worse by {-min(here):.2e}")
        down, up = abs(min([*moved, 0.0])), max([*moved, 0.0])
        print(f"{method:20} {len(rows):5} {len(moved):7} {finite:7} {sum(map(bool, moved)):7} {down:9.1e} {up:9.1e}")
    for _, line in sorted(worst, reverse=True)[:20]:
        print(f"  {line}")
    accepted, rejected = crossed(Path(after["source"]), old, before["rows"])
    print(f"old certificates: {accepted} accepted by the new checker, {len(rejected)} rejected")
    for line in unsteady:
        print(f"near the time limit, not counted: {line}")
    print(f"{len(wrong) + len(rejected)} faults", *wrong, *rejected, sep="\n  ")
    return int(bool(wrong or rejected))


def crossed(source: Path, folder: Path, rows: Sequence[dict[str, Any]]) -> tuple[int, list[str]]:
    """The certificates of a record before the checker of a checkout: the number accepted, and why others are not."""
    worker = Worker(source, folder, folder.parent / "weights")
    said = {}
    for name, facts in ((name, facts) for row in rows for name, facts in row.get("files", {}).items()):
        said[name] = worker.ask(certificate=str(folder / name), model=facts["model"], spec=facts["spec"])
    worker.close()
    return sum(v["accepted"] for v in said.values()), [
        f"{n}: {v['reason']}" for n, v in said.items() if not v["accepted"]
    ]


@contextlib.contextmanager
def pair(old: Path, new: Path, folder: Path, weights: Path) -> Iterator[dict[str, Worker]]:
    workers = {name: Worker(source, folder / name, weights) for name, source in (("old", old), ("new", new))}
    try:
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def measure(old: Path, new: Path, out: Path, repeats: int, weights: Path) -> int:
    """Ratios old : new of the seconds, by the processor and by the clock; above 1 the new one is faster."""
    rows = []
    folder = out.resolve().parent / "time"
    begin = time.perf_counter()
    with pair(old, new, folder, weights) as workers:
        for group, name, methods in TIMED:
            for method in methods:
                what = [group, name, method]
                first = [w.ask(question=what)["cpu"] for _ in range(2) for w in workers.values()][-2:]
                times = max(1, math.ceil(LEAST_S / max(min(first), 1e-3)))
                spent: dict[str, dict[str, list[float]]] = {w: {"cpu": [], "seconds": []} for w in workers}
                for i in range(repeats):
                    for side in ("old", "new") if i % 2 == 0 else ("new", "old"):
                        answer = workers[side].ask(question=what, times=times)
                        for kind, values in spent[side].items():
                            values.append(answer[kind] / times)
                middle = {s: {kind: statistics.median(v) for kind, v in of.items()} for s, of in spent.items()}
                ratio = {kind: middle["old"][kind] / middle["new"][kind] for kind in ("cpu", "seconds")}
                rows.append({"group": group, "name": name, "method": method, "times": times, "ratio": ratio, **spent})
                print(
                    f"{' | '.join(what)}: {middle['old']['cpu']:.3f} s, old : new {ratio['cpu']:.3f}", file=sys.stderr
                )
    summary = {}
    for method, of in by_method(rows).items():
        kinds = {kind: statistics.geometric_mean(row["ratio"][kind] for row in of) for kind in ("cpu", "seconds")}
        summary[method] = {"items": len(of), **kinds, "least": min(row["ratio"]["cpu"] for row in of)}
        slow = "  SLOWER" if kinds["cpu"] < 1 / SLOWER else ""
        print(f"{method:12} {len(of)} items, old : new {kinds['cpu']:.3f} cpu, {kinds['seconds']:.3f} wall{slow}")
    took = time.perf_counter() - begin
    out.write_text(
        json.dumps({"old": str(old), "new": str(new), "seconds": took, "summary": summary, "rows": rows}, indent=1)
    )
    print(f"{took:.0f} s: {out}")
    return int(any(of["cpu"] < 1 / SLOWER for of in summary.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record")
    one.add_argument("--source", type=Path, required=True)
    two, three = commands.add_parser("compare"), commands.add_parser("time")
    for command in (one, two):
        command.add_argument("--groups", nargs="+", default=[])
    for command in (two, three):
        command.add_argument("--old", type=Path, required=True)
        command.add_argument("--new", type=Path, required=True)
    three.add_argument("--repeats", type=int, default=5)
    for command in (one, three):
        command.add_argument("--out", type=Path, required=True)
        command.add_argument("--weights", type=Path)
    four = commands.add_parser("worker")
    four.add_argument("out", type=Path)
    four.add_argument("weights", type=Path)
    asked = parser.parse_args(arguments)
    if asked.command == "worker":
        return work(asked.out, asked.weights)
    if asked.command == "compare":
        return compare(asked.old.resolve(), asked.new.resolve(), asked.groups)
    out = asked.out.resolve()
    weights = (asked.weights or out.parent / "weights").resolve()
    if asked.command == "record":
        return record(asked.source.resolve(), out, asked.groups, weights)
    return measure(asked.old.resolve(), asked.new.resolve(), out, asked.repeats, weights)


if __name__ == "__main__":
    sys.exit(main())
