"""One-block networks against what peers reach on them: every image of the anchor files, by every method.

python lab/benchmarks/anchors.py [--images N] [--data DIR] [--out FILE] [--peer CHECKOUT] [--peer-alpha N]

Conditions, image by image (exit status 1 if one fails):
  crown       not looser than the recorded crown_lse by more than 1 % of its gap to the attack; in the mean as tight
  vertex      at least the recorded vertex_published, where there is one
  hybrid      at least crown and vertex
  joint       at least hybrid and alpha-crown; above the recorded alpha_crown_lse_20, where there is one
  soundness   no bound above the recorded attack, or above ours (search/attack.py, which is stronger)
and in the mean of a whole file (not of its first N images):
  joint       at least the recorded affine_vertex_prototype_80, where there is one; on blk10 at most .7 (ε .01) and .55
              (ε .02) of crown_lse's gap to the attack; on ten16 three times the certified of vertex_published

--peer CHECKOUT (of auto_LiRPA 0.7.1) times its CROWN with the LSE softmax on the same images, alternating with ours in
this process, both in float64 on one thread, and reports theirs / ours, the median of the paired ratios. Neither side's
reading of the model is timed. --peer-alpha N times its α-CROWN (20 steps, the softmax's parameters too) in the same way
beside our joint, once on the first N images of every file; it takes about a minute per image. The library runs on its
own list of dependencies; without touching our environment:
  pip install --no-deps --target /tmp/deps appdirs graphviz tqdm pyyaml packaging
  PYTHONPATH=/tmp/deps python lab/benchmarks/anchors.py --peer /path/to/auto_LiRPA
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import vertex_softmax
from vertex_lab.experiments.result import versions
from vertex_lab.softmax_box_bench import _processor as processor
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import LinfBall

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "anchors"
FILES = ("bin16_eps0.03", "ten16_eps0.02", "blk10_eps0.01", "blk10_eps0.02")
METHODS = ("ibp", "crown", "alpha-crown", "vertex", "hybrid", "joint")
SHORT = Options(ascent=Ascent(steps=20))
RECORDED = ("crown_lse", "alpha_crown_lse_20", "vertex_published", "affine_vertex_prototype_80", "pgd")
SHARE_OF_GAP = {"blk10_eps0.01": 0.7, "blk10_eps0.02": 0.55}
"""How much of crown_lse's gap to the attack joint may leave, in the mean."""
ROUNDING = 1e-9
"""Slack between two bounds that are to be compared, relative: both were rounded."""


class OneBlock(nn.Module):
    """Images (batch, 1, 28, 28) to logits: patches, one attention block, perhaps an MLP, the mean, a classifier."""

    def __init__(self, patch: int, dim: int, heads: int, tokens: int, mlp: int, classes: int) -> None:
        super().__init__()
        self.patch, self.heads, self.width = patch, heads, dim // heads
        self.pos = nn.Parameter(torch.zeros(tokens, dim))
        self.embed = nn.Linear(patch * patch, dim)
        self.q, self.k = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.v, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp), nn.ReLU(), nn.Linear(mlp, dim)) if mlp else None
        self.cls = nn.Linear(dim, classes)

    def patches(self, x: Tensor) -> Tensor:
        """(batch, 1, 28, 28) to (batch, tokens, patch²)."""
        side, p = x.shape[-1] // self.patch, self.patch
        cut = x.reshape(x.shape[0], side, p, side, p).permute(0, 1, 3, 2, 4)
        return cut.reshape(x.shape[0], side * side, p * p)

    def logits(self, patches: Tensor) -> Tensor:
        """(batch, tokens, patch²) to (batch, classes)."""
        z = self.embed(patches) + self.pos
        batch, tokens, dim = z.shape
        split = (batch, tokens, self.heads, self.width)
        q, k, v = (f(z).reshape(split).transpose(1, 2) for f in (self.q, self.k, self.v))
        p = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.width), dim=-1)
        z = z + self.out((p @ v).transpose(1, 2).reshape(batch, tokens, dim))
        if self.mlp is not None:
            z = z + self.mlp(z)
        return self.cls(z.mean(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.patches(x))


class OnPatches(nn.Module):
    """The same network from its patches on: the input that the peer was given when the anchors were recorded."""

    def __init__(self, model: OneBlock) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.logits(x)


def read(data: Path, name: str) -> tuple[OneBlock, Tensor, Tensor, dict[str, Any]]:
    """The network of an anchor file in float64, its images (count, 1, 28, 28) in [0, 1], labels, and the file."""
    anchor = json.loads((data / f"{name}.json").read_text())
    with np.load(data / anchor["weights"]) as stored:
        arrays = {key: torch.from_numpy(stored[key]) for key in stored.files}
    images = (arrays.pop("images").float().reshape(-1, 1, 28, 28) / 255).double()  # the recorded figures divided so
    labels = arrays.pop("labels").long()
    sizes = {key: anchor[key] for key in ("patch", "dim", "heads", "tokens", "mlp")}
    model = OneBlock(**sizes, classes=len(arrays["cls.bias"])).double().eval().requires_grad_(False)
    model.load_state_dict(arrays)
    return model, images, labels, anchor


def bounds(graph: Graph, ball: LinfBall, label: int, methods: Sequence[str] = METHODS) -> dict[str, Any]:
    """What each method finds for one image: the least margin bound, the verdict and the seconds."""
    found = {}
    for method in methods:
        answer = certify(graph, ball, label, method, attack=None)
        found[method] = answer.worst.item()
        found[f"{method}_certified"] = bool(answer.certified.item())
        found[f"{method}_s"] = answer.seconds["total"]
    return found


def at_least(a: float, b: float) -> bool:
    return a >= b - ROUNDING * (1 + abs(b))


def violations(ours: dict[str, Any], row: dict[str, Any]) -> list[str]:
    """The conditions that the bounds of one image break."""
    broken = []
    if not ours["crown"] >= row["crown_lse"] - 0.01 * (row["pgd"] - row["crown_lse"]):
        broken.append("crown looser than the peer's")
    if "vertex_published" in row and not at_least(ours["vertex"], row["vertex_published"]):
        broken.append("vertex looser than published")
    if not at_least(ours["hybrid"], max(ours["crown"], ours["vertex"])):
        broken.append("hybrid looser than crown or vertex")
    if not at_least(ours["joint"], max(ours["hybrid"], ours["alpha-crown"])):
        broken.append("joint looser than hybrid or alpha-crown")
    if "alpha_crown_lse_20" in row and not ours["joint"] > row["alpha_crown_lse_20"]:
        broken.append("joint not above the peer's α-CROWN")
    if not all(ours[method] <= min(row["pgd"], ours["attack"]) for method in METHODS):
        broken.append("a bound above the attack")
    return broken


class Peer:
    """auto_LiRPA's CROWN with the LSE softmax: a network read once, then bounds of margins over boxes."""

    def __init__(self, checkout: Path, model: nn.Module, example: Tensor) -> None:
        if str(checkout) not in sys.path:
            sys.path.append(str(checkout))
        with warnings.catch_warnings(record=True), default_dtype(example.dtype):
            self.library = importlib.import_module("auto_LiRPA")
            options = {"softmax": "lse"}
            self.network = self.library.BoundedModule(
                model.eval(), example, bound_opts=options, device="cpu", verbose=False
            )

    @property
    def version(self) -> str:
        return str(self.library.__version__)

    def worst(self, lower: Tensor, upper: Tensor, label: int | Sequence[int], classes: int, steps: int = 0) -> float:
        """The least margin bound over boxes with a label each: by CROWN, or by α-CROWN with some steps."""
        labels = [label] if isinstance(label, int) else label
        C = torch.zeros(len(labels), classes - 1, classes, dtype=lower.dtype)
        for i, own in enumerate(labels):
            C[i, :, own] = 1
            C[i, range(classes - 1), [j for j in range(classes) if j != own]] = -1
        perturbation = self.library.PerturbationLpNorm(norm=math.inf, x_L=lower, x_U=upper)
        x = self.library.BoundedTensor((lower + upper) / 2, perturbation)
        method = "CROWN-Optimized" if steps else "CROWN"
        if steps:
            self.network.set_bound_opts({"optimize_bound_args": {"iteration": steps}})
        with torch.set_grad_enabled(steps > 0), warnings.catch_warnings(record=True), default_dtype(lower.dtype):
            found, _ = self.network.compute_bounds(x=(x,), C=C, method=method, bound_upper=False)
        return float(found.detach().min())


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """torch's default dtype for a while: the peer makes some of its tensors in it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


KINDS = ("clock", "processor", "user")


def alternate(ours: Callable[[], object], theirs: Callable[[], float], repeats: int) -> dict[str, Any]:
    """Seconds [ours, theirs], taken in turn after one call each to warm up: by the clock, of the processor, and of the
    processor without the system's share, which is mostly fresh pages and depends on the allocator's settings."""
    ours()
    found: dict[str, Any] = {"peer": theirs(), **{kind: [] for kind in KINDS}}
    for _ in range(repeats):
        pair = _seconds(ours), _seconds(theirs)
        for kind, a, b in zip(KINDS, *pair, strict=True):
            found[kind].append((a, b))
    return found


def _seconds(call: Callable[[], object]) -> tuple[float, float, float]:
    clock, before = time.perf_counter(), os.times()
    call()
    after = os.times()
    user = after.user - before.user
    return time.perf_counter() - clock, user + after.system - before.system, user


def paired(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What `alternate` found for several inputs: medians, the ratio theirs / ours by the clock as the median of paired
    runs, and the ratios of the sums of the processor's seconds."""
    clock = [pair for row in rows for pair in row["clock"]]
    total = {
        kind: [sum(side) for side in zip(*(pair for row in rows for pair in row[kind]), strict=True)] for kind in KINDS
    }
    return {
        "ours_s": statistics.median(a for a, _ in clock),
        "theirs_s": statistics.median(b for _, b in clock),
        "ratio": statistics.median(b / a for a, b in clock),
        "least_ratio": min(statistics.median(b / a for a, b in row["clock"]) for row in rows),
        "processor_ratio": total["processor"][1] / total["processor"][0] if total["processor"][0] else math.nan,
        "user_ratio": total["user"][1] / total["user"][0] if total["user"][0] else math.nan,
    }


def side_by_side(name: str, side: dict[str, float]) -> str:
    """The line that the tables have under them."""
    return (
        f"{name} CROWN side by side: theirs {side['theirs_s']:.3f} s, ours {side['ours_s']:.3f} s, "
        f"theirs / ours {side['ratio']:.1f} (least {side['least_ratio']:.1f}; "
        f"of the processor {side['processor_ratio']:.1f}, without the system's share {side['user_ratio']:.1f})"
    )


def run_file(
    data: Path,
    name: str,
    images: int | None,
    peer: Path | None,
    repeats: int,
    note: Callable[[str], None],
    alpha: int = 0,
) -> dict[str, Any]:
    """All rows of one anchor file, and their summary."""
    model, pictures, labels, anchor = read(data, name)
    everything = LinfBall(pictures, anchor["epsilon"], clip=(0, 1))
    graph = load(model, everything[:1])
    other = Peer(peer, OnPatches(model), model.patches(pictures[:1])) if peer else None
    rows = []
    bounds(graph, everything[:1], int(labels[0]))  # the first call compiles and allocates
    for recorded in anchor["rows"][:images]:
        i = recorded["image"]
        ball, label = everything[i], int(labels[i])
        row = {"image": i, "label": label, **bounds(graph, ball, label)}
        row["attack"] = pgd(model, ball, label).worst.item()
        row["violations"] = violations(row, recorded)
        row["recorded"] = {
            key: recorded[key] for key in (*RECORDED, "crown_lse_s", "alpha_crown_lse_20_s") if key in recorded
        }
        if other:
            lower, upper = model.patches(ball.lower), model.patches(ball.upper)
            row["side_by_side"] = alternate(
                lambda ball=ball, label=label: certify(graph, ball, label, "crown", attack=None),
                lambda lower=lower, upper=upper, label=label: other.worst(lower, upper, label, model.cls.out_features),
                repeats,
            )
        if other and len(rows) < alpha:
            note(f"{name}: image {i}, the peer's α-CROWN")
            row["alpha_side_by_side"] = once(
                lambda ball=ball, label=label: certify(graph, ball, label, "joint", attack=None).worst.item(),
                lambda ball=ball, label=label: certify(
                    graph, ball, label, "joint", options=SHORT, attack=None
                ).worst.item(),
                lambda lower=lower, upper=upper, label=label: other.worst(
                    lower, upper, label, model.cls.out_features, 20
                ),
            )
        rows.append(row)
        note(f"{name}: image {i}, {len(rows)} of {len(anchor['rows'][:images])}")
    return {
        "file": name,
        "epsilon": anchor["epsilon"],
        "summary": summarise(rows, name if len(rows) == len(anchor["rows"]) else ""),
        "peer": f"auto_LiRPA {other.version}" if other else None,
        "rows": rows,
    }


def once(ours: Callable[[], float], short: Callable[[], float], theirs: Callable[[], float]) -> dict[str, Any]:
    """One timing each, by the clock and of the processor: joint, joint with as many steps as theirs, theirs."""
    bounds_found: list[float] = []
    ours()  # warm
    timed = [_seconds(lambda call=call: bounds_found.append(call())) for call in (ours, short, theirs)]
    found = dict(zip(("ours", "ours_20", "peer"), bounds_found, strict=True))
    return {**found, **{kind: list(seconds) for kind, seconds in zip(KINDS, zip(*timed, strict=True), strict=True)}}


def whole_file(name: str, mean: dict[str, float], recorded: dict[str, float], certified: dict[str, int]) -> list[str]:
    """The conditions on the mean of a whole file that are broken; `certified` with the recorded methods too."""
    broken = []
    if "affine_vertex_prototype_80" in recorded and not mean["joint"] >= recorded["affine_vertex_prototype_80"]:
        broken.append("joint looser than the prototype in the mean")
    most = SHARE_OF_GAP.get(name)
    share = (recorded["pgd"] - mean["joint"]) / (recorded["pgd"] - recorded["crown_lse"])
    if most is not None and not share <= most:
        broken.append(f"joint leaves {share:.3f} of crown_lse's gap, more than {most}")
    if name.startswith("ten16") and not certified["joint"] >= 3 * certified["vertex_published"]:
        broken.append("joint certifies less than three times vertex_published")
    return broken


def summarise(rows: Sequence[dict[str, Any]], name: str = "") -> dict[str, Any]:
    """Means, counts and the broken conditions of a file; `name` if it is the whole file."""
    mean = {m: statistics.fmean(row[m] for row in rows) for m in METHODS}
    recorded = {
        key: statistics.fmean(row["recorded"][key] for row in rows)
        for key in RECORDED
        if all(key in row["recorded"] for row in rows)
    }
    certified = {m: sum(row[f"{m}_certified"] for row in rows) for m in METHODS}
    theirs = {key: sum(row["recorded"][key] > 0 for row in rows) for key in recorded}
    broken = [f"image {row['image']}: {what}" for row in rows for what in row["violations"]]
    if not mean["crown"] >= recorded["crown_lse"]:
        broken.append("crown looser than the peer's in the mean")
    if name:
        broken += whole_file(name, mean, recorded, {**certified, **theirs})
    summary = {
        "images": len(rows),
        "mean": mean,
        "recorded_mean": recorded,
        "certified": certified,
        "recorded_certified": theirs,
        "attack_mean": statistics.fmean(row["attack"] for row in rows),
        "attack_fails": sum(row["attack"] > 0 for row in rows),
        "share_of_crown_lse_gap": {
            m: (recorded["pgd"] - mean[m]) / (recorded["pgd"] - recorded["crown_lse"]) for m in METHODS
        },
        "median_s": {m: statistics.median(row[f"{m}_s"] for row in rows) for m in METHODS},
        "recorded_crown_lse_s": statistics.median(row["recorded"]["crown_lse_s"] for row in rows),
        "violations": broken,
    }
    beside = [row["side_by_side"] for row in rows if "side_by_side" in row]
    if beside:
        off = max(abs(row["side_by_side"]["peer"] - row["recorded"]["crown_lse"]) for row in rows)
        summary["side_by_side"] = {**paired(beside), "peer_against_recorded": off}
    alphas = [row["alpha_side_by_side"] for row in rows if "alpha_side_by_side" in row]
    if alphas:
        summary["alpha_side_by_side"] = {
            "images": len(alphas),
            "looser": sum(not min(row["ours"], row["ours_20"]) > row["peer"] for row in alphas),
            **{f"{kind}_ratio": min(row[kind][2] / row[kind][0] for row in alphas) for kind in KINDS},
            **{f"{kind}_ratio_20": min(row[kind][2] / row[kind][1] for row in alphas) for kind in KINDS},
        }
    return summary


def facts() -> dict[str, Any]:
    """What a run was made with."""
    return {**versions(), "processor": processor(), "threads": torch.get_num_threads(), "source": fingerprint()}


def fingerprint() -> str:
    """A hash of the package's sources: runs with the same one measured the same code."""
    folder = Path(vertex_softmax.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in {".py", ".c", ".h"}):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def show(results: Sequence[dict[str, Any]], console: Console) -> None:
    for result in results:
        s = result["summary"]
        table = Table(title=f"{result['file']}: {s['images']} images", title_justify="left")
        for heading in ("", "mean bound", "certified", "of the gap", "ms per image"):
            table.add_column(heading, justify="left" if not heading else "right")
        for method in METHODS:
            table.add_row(
                method,
                f"{s['mean'][method]:.4f}",
                str(s["certified"][method]),
                f"{s['share_of_crown_lse_gap'][method]:.3f}",
                f"{1e3 * s['median_s'][method]:.1f}",
            )
        table.add_row("our attack", f"{s['attack_mean']:.4f}", str(s["attack_fails"]), "", "")
        table.add_section()
        for key, value in s["recorded_mean"].items():
            seconds = f"{1e3 * s['recorded_crown_lse_s']:.0f} (their machine)" if key == "crown_lse" else ""
            table.add_row(f"recorded {key}", f"{value:.4f}", str(s["recorded_certified"][key]), "", seconds)
        console.print(table)
        if side := s.get("side_by_side"):
            console.print(side_by_side(result["peer"], side))
            console.print(f"their bounds differ from the recorded ones by at most {side['peer_against_recorded']:.1e}")
        if side := s.get("alpha_side_by_side"):
            console.print(
                f"{result['peer']} α-CROWN, 20 steps, beside our joint on {side['images']} images: theirs / ours at "
                f"least {side['clock_ratio']:.0f} by the clock, {side['user_ratio']:.0f} of the processor without the "
                f"system's share; with 20 steps too {side['clock_ratio_20']:.0f} and {side['user_ratio_20']:.0f}; "
                f"looser than theirs on {side['looser']}"
            )
        console.print(f"violations: {len(s['violations'])}", *s["violations"], sep="\n  ")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, metavar="N", help="only the first N rows of each file")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the anchor files")
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "benchmarks" / "runs" / "anchors.json")
    parser.add_argument("--peer", type=Path, metavar="CHECKOUT", help="a checkout of auto_LiRPA to time beside ours")
    parser.add_argument("--peer-alpha", type=int, default=0, metavar="N", help="its α-CROWN on the first N images too")
    parser.add_argument("--repeats", type=int, default=3, help="timings of each side per image, with --peer")
    parser.add_argument("--files", nargs="+", choices=FILES, default=FILES)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console, notes = Console(), Console(stderr=True)
    with notes.status("reading") as status:
        results = [
            run_file(chosen.data, name, chosen.images, chosen.peer, chosen.repeats, status.update, chosen.peer_alpha)
            for name in chosen.files
        ]
    show(results, console)
    whole = {"benchmark": "anchors", "versions": facts(), "repeats": chosen.repeats, "files": results}
    console.print(f"saved {write_whole(chosen.out, json.dumps(whole, indent=1).encode())}")
    return int(any(result["summary"]["violations"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
