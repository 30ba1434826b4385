"""The vision transformers of VNN-COMP 2023 (`vit`), 60 instances: one bound each by crown, hybrid and joint.

python lab/benchmarks/vit.py [--instances N] [--methods crown hybrid joint] [--out F] [--journal F] [--peer CHECKOUT]

Each answer goes into a journal (JSON lines) at once: a run that was stopped goes on where it was, with the same sources
of the package; answers of other sources are measured anew. Exit status 1 if a bound is not finite, or above the attack
that the anchors record.

`joint to 0` is joint with the goal 0: its own walk first, and no more than a verdict needs. `joint, boxes too` also
optimises the boxes of undecided ReLUs. "in time": verified within LIMITS seconds.

Peak memory is the highest resident size while an instance is bounded (getrusage), the process itself included; where
the system does not let a process lower that mark, it is the highest since the start.

--peer CHECKOUT (of auto_LiRPA 0.7.1; see anchors.py for what it needs) times its CROWN with the LSE softmax on the
first --peer-instances of each model, alternating with ours in this process, in float32 and in float64, on one thread.
It reads the network as a PyTorch module made of the ONNX file's weights, in two forms (vit_module.py): op by op as the
file has it, and made easy for it, on patches with the BatchNorms folded into the next linear maps. Each module is first
compared with the imported graph. --peer-batch N gives both sides N instances in one call.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import itertools
import json
import math
import re
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from anchors import Peer, alternate, facts, fingerprint, paired, side_by_side
from rich.console import Console
from rich.table import Table
from vit_module import FileViT, ViT

from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import Box
from vertex_softmax.sets.loading import read

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
MODELS = ("pgd_2_3_16", "ibp_3_3_8")
SHORT = {
    "crown_lse": "CROWN",
    "alpha_crown_lse_100": "α, 100 steps",
    "alpha_crown_lse_20_intermediate_optimised": "α, boxes too",
}
"""The recorded bounds of the peer, as the tables call them."""
SHAPE = (1, 3, 32, 32)
METHODS: dict[str, tuple[str, Options]] = {
    **{name: (name, Options()) for name in ("ibp", "crown", "alpha-crown", "vertex", "hybrid", "joint")},
    "joint to 0": ("joint", Options(goal=0.0)),
    "joint, boxes too": ("joint", Options(goal=0.0, box_ascent=Ascent(steps=15, decay=0.9))),
}
LIMITS = {"pgd_2_3_16": 5.0, "ibp_3_3_8": 20.0}
"""Seconds on one thread."""


def instances(data: Path) -> list[tuple[str, str]]:
    """(model, instance) of every line of instances.csv."""
    lines = (line.split(",") for line in (data / "instances.csv").read_text().split())
    return [(Path(model).stem, Path(spec).stem) for model, spec, _ in lines]


def read_spec(data: Path, instance: str) -> tuple[Box, int]:
    """The box and the label of a VNN-LIB file of this benchmark: unsafe if Y_j ≥ Y_label for one of the nine j."""
    with gzip.open(data / "vnnlib" / f"{instance}.vnnlib.gz", "rt") as file:
        text = file.read()
    ends = {op: torch.full((math.prod(SHAPE),), torch.nan, dtype=torch.float64) for op in ("<=", ">=")}
    for op, i, value in re.findall(r"\(assert \((<=|>=) X_(\d+) ([-+0-9.eE]+)\)\)", text):
        ends[op][int(i)] = float(value)
    pairs = re.findall(r"\(>= Y_(\d+) Y_(\d+)\)", text)
    label = {int(b) for _, b in pairs}
    if len(label) != 1 or len(pairs) != 9:
        raise ValueError(f"{instance}: expected nine comparisons with one label, found {pairs}")
    return Box(ends[">="].reshape(SHAPE), ends["<="].reshape(SHAPE)), label.pop()


def read_model(data: Path, model: str) -> Graph:
    return simplify(from_onnx(data / "onnx" / f"{model}.onnx.gz"))


def peak_bytes() -> int:
    """The highest resident size of this process since `reset_peak`, or since its start."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_peak() -> bool:
    """Lower the mark to what is resident now; Linux only."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def measure(graph: Graph, box: Box, label: int, method: str) -> dict[str, Any]:
    """One bound with its seconds and its memory."""
    reset = reset_peak()
    name, options = METHODS[method]
    answer = certify(graph, box, label, name, options=options, attack=None)
    worst = answer.worst.item()
    return {
        "worst": worst if math.isfinite(worst) else None,
        "finite": bool(answer.lower.isnan().logical_not().all()) and math.isfinite(worst),
        "verdict": str(answer.verdict),
        "seconds": answer.seconds,
        "peak_bytes": peak_bytes(),
        "peak_reset": reset,
    }


class Journal:
    """Answers on disk, one JSON line each; those of other sources are not looked at."""

    def __init__(self, path: Path) -> None:
        self.path, self.source = path, fingerprint()
        self.known: dict[tuple[str, str], dict[str, Any]] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # the line that a killed run was writing
            if entry["source"] == self.source:
                self.known[entry["instance"], entry["method"]] = entry

    def add(self, entry: dict[str, Any]) -> None:
        entry = {"source": self.source, **entry}
        self.known[entry["instance"], entry["method"]] = entry
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def run(
    data: Path, chosen: Sequence[tuple[str, str]], methods: Sequence[str], journal: Journal, note: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Every chosen instance by every method, from the journal where it is there."""
    graphs: dict[str, Graph] = {}
    rows = []
    for i, (model, instance) in enumerate(chosen):
        for method in methods:
            if (instance, method) not in journal.known:
                note(f"{instance} by {method}, {i + 1} of {len(chosen)}")
                if model not in graphs:
                    graphs[model] = read_model(data, model)
                box, label = read_spec(data, instance)
                found = measure(graphs[model], box, label, method)
                journal.add({"model": model, "instance": instance, "label": label, "method": method, **found})
            rows.append(journal.known[instance, method])
    return rows


def summarise(rows: Sequence[dict[str, Any]], recorded: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Per model and method: over all instances, and over those with recorded bounds of the peer."""
    found = []
    for model, method in dict.fromkeys((row["model"], row["method"]) for row in rows):
        of = [row for row in rows if (row["model"], row["method"]) == (model, method)]
        beside = [row for row in of if "crown_lse" in recorded.get(row["instance"], {}) and row["finite"]]
        anchors = [recorded[row["instance"]] for row in beside]
        keys = [key for key in SHORT if anchors and all(key in anchor for anchor in anchors)]
        found.append(
            {
                "model": model,
                "method": method,
                "instances": len(of),
                "finite": sum(row["finite"] for row in of),
                "mean": _mean([row["worst"] for row in of if row["finite"]]),
                "verified": sum(row["verdict"] == "verified" for row in of),
                "verified_in_time": sum(
                    row["verdict"] == "verified" and row["seconds"]["total"] <= LIMITS[model] for row in of
                ),
                "most_s": max(row["seconds"]["total"] for row in of),
                "median_s": statistics.median(row["seconds"]["total"] for row in of),
                "peak_bytes": max(row["peak_bytes"] for row in of),
                "with_anchor": len(beside),
                "mean_with_anchor": _mean([row["worst"] for row in beside]),
                "verified_with_anchor": sum(row["worst"] > 0 for row in beside),
                "recorded_mean": {key: _mean([anchor[key] for anchor in anchors]) for key in keys},
                "recorded_verified": {key: sum(anchor[key] > 0 for anchor in anchors) for key in keys},
                "looser_than_crown_lse": sum(
                    row["worst"] < anchor["crown_lse"] for row, anchor in zip(beside, anchors, strict=True)
                ),
            }
        )
    return found


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def violations(rows: Sequence[dict[str, Any]], recorded: dict[str, dict[str, Any]]) -> list[str]:
    """Bounds that are not finite, or above what the recorded attack reached."""
    broken = [f"{row['instance']} by {row['method']}: no finite bound" for row in rows if not row["finite"]]
    for row in rows:
        attack = recorded.get(row["instance"], {}).get("pgd", math.inf)
        if row["finite"] and row["worst"] > attack:
            broken.append(f"{row['instance']} by {row['method']}: {row['worst']} above the attack's {attack}")
    return broken


FORMS: dict[str, type[FileViT | ViT]] = {"as in the file": FileViT, "made easy": ViT}
"""The networks that the peer is given."""


def run_peer(
    checkout: Path,
    data: Path,
    chosen: Sequence[tuple[str, str]],
    count: int,
    repeats: int,
    batch: int,
    note: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The first `count` instances of each model beside the peer, `batch` in a call, in both forms and precisions."""
    found = []
    for model in dict.fromkeys(model for model, _ in chosen):
        graph = read_model(data, model)
        names = [name for of, name in chosen if of == model][:count]
        together = [_together(data, names[i : i + batch]) for i in range(0, len(names), batch)]
        for form, dtype in itertools.product(FORMS, (torch.float32, torch.float64)):
            module = FORMS[form](data / "onnx" / f"{model}.onnx.gz")
            centre = together[0].box.centre
            off = float((module(module.given(centre[:1])) - graph.evaluate(centre[:1])).abs().max())
            if not off < 1e-6:
                raise ValueError(f"{model}, {form}: the module given to the peer differs from the graph by {off}")
            peer = Peer(checkout, module.to(dtype), module.given(centre).to(dtype))
            rows = []
            for some in together:
                note(f"{some.names[0]} beside auto_LiRPA {peer.version}, {form}, {dtype}")
                rows.append({"instances": list(some.names), **beside(graph, module, peer, some, dtype, repeats)})
            kind = {"model": model, "form": form, "dtype": str(dtype).removeprefix("torch."), "batch": batch}
            found.append({**kind, "peer": f"auto_LiRPA {peer.version}", **paired(rows), "rows": rows})
    return found


@dataclasses.dataclass(frozen=True)
class Together:
    """Instances of one model that both sides are given in one call."""

    names: tuple[str, ...]
    box: Box
    labels: list[int]


def _together(data: Path, names: Sequence[str]) -> Together:
    boxes, labels = zip(*(read_spec(data, name) for name in names), strict=True)
    whole = Box(torch.cat([box.lower for box in boxes]), torch.cat([box.upper for box in boxes]))
    return Together(tuple(names), whole, list(labels))


def beside(
    graph: Graph, module: FileViT | ViT, peer: Peer, some: Together, dtype: torch.dtype, repeats: int
) -> dict[str, Any]:
    """Some instances in one call of our crown and of the peer's, both in `dtype`; the least bound of each."""
    lower, upper = (module.given(end.to(dtype)) for end in (some.box.lower, some.box.upper))
    labels, model = torch.tensor(some.labels), read(graph)  # both sides read the network once

    def ours() -> float:
        return certify(model, some.box, labels, "crown", dtype=dtype, attack=None).worst.min().item()

    return {"ours": ours(), **alternate(ours, lambda: peer.worst(lower, upper, some.labels, 10), repeats)}


def show(summary: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table(title="VNN-COMP 2023 vit", title_justify="left")
    for heading in (
        "model",
        "method",
        "runs",
        "finite",
        "mean bound",
        "verified",
        "in time",
        "median s",
        "most s",
        "GiB",
    ):
        table.add_column(heading, justify="left" if heading in {"model", "method"} else "right")
    against = Table(
        title="those with recorded bounds of auto_LiRPA 0.7.1; looser: than its CROWN", title_justify="left"
    )
    for heading in ("model", "method", "runs", "mean bound", "verified", "looser"):
        against.add_column(heading, justify="left" if heading in {"model", "method"} else "right")
    last = None
    for s in summary:
        if s["model"] != last and s["with_anchor"]:
            against.add_section()
            for key, mean in s["recorded_mean"].items():
                against.add_row(
                    s["model"],
                    f"their {SHORT[key]}",
                    str(s["with_anchor"]),
                    f"{mean:.4f}",
                    str(s["recorded_verified"][key]),
                )
        last = s["model"]
        mean = "–" if s["mean"] is None else f"{s['mean']:.4f}"
        seconds = (f"{s['median_s']:.2f}", f"{s['most_s']:.2f}", f"{s['peak_bytes'] / 2**30:.2f}")
        numbers = (str(s["finite"]), mean, str(s["verified"]), str(s["verified_in_time"]), *seconds)
        table.add_row(s["model"], s["method"], str(s["instances"]), *numbers)
        if s["with_anchor"]:
            numbers = (f"{s['mean_with_anchor']:.4f}", str(s["verified_with_anchor"]), str(s["looser_than_crown_lse"]))
            against.add_row(s["model"], s["method"], str(s["with_anchor"]), *numbers)
    console.print(table)
    if against.row_count:
        console.print(against)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, metavar="N", help="only the first N of each model")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument(
        "--methods", nargs="+", choices=tuple(METHODS), default=("crown", "hybrid", "joint", "joint to 0")
    )
    parser.add_argument("--data", type=Path, default=SHARED / "data" / "vit", help="instances.csv, onnx/ and vnnlib/")
    parser.add_argument("--anchors", type=Path, default=SHARED / "anchors" / "vit.json")
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "benchmarks" / "runs" / "vit.json")
    parser.add_argument("--journal", type=Path, default=ROOT / "out" / "vit-journal.jsonl")
    parser.add_argument("--peer", type=Path, metavar="CHECKOUT", help="a checkout of auto_LiRPA to time beside ours")
    parser.add_argument("--peer-instances", type=int, default=3, metavar="N")
    parser.add_argument("--peer-batch", type=int, default=1, metavar="N", help="instances in one call of either side")
    parser.add_argument("--repeats", type=int, default=3, help="timings of each side per instance, with --peer")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    recorded = {row["instance"]: row for row in json.loads(asked.anchors.read_text())["rows"]}
    every = instances(asked.data)
    chosen = [c for model in asked.models for c in [c for c in every if c[0] == model][: asked.instances]]
    console = Console()
    with Console(stderr=True).status("reading") as status:
        rows = run(asked.data, chosen, asked.methods, Journal(asked.journal), status.update)
        peers = (
            run_peer(
                asked.peer, asked.data, chosen, asked.peer_instances, asked.repeats, asked.peer_batch, status.update
            )
            if asked.peer
            else []
        )
    summary, broken = summarise(rows, recorded), violations(rows, recorded)
    show(summary, console)
    for side in peers:
        console.print(f"{side['model']}, {side['form']}, {side['dtype']}: {side_by_side(side['peer'], side)}")
    console.print(f"violations: {len(broken)}", *broken, sep="\n  ")
    whole = {
        "benchmark": "vit",
        "versions": facts(),
        "summary": summary,
        "violations": broken,
        "side_by_side": peers,
        "rows": [{**row, "recorded": recorded.get(row["instance"])} for row in rows],
    }
    console.print(f"saved {write_whole(asked.out, json.dumps(whole, indent=1).encode())}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
