"""Is the threshold solver exact, and what does it cost? The paper's tab: and fig:threshold_runtime_app.

Random score boxes of a batch of 4, K query rows, 4 heads and K keys: centre N(0, 1), radius 2 · U(0, 1), coefficients
N(0, 1). Both algorithms are timed in float32; where it is feasible, so is the enumeration of all 2^K vertices.

The largest difference is |threshold − exhaustive| to K = 16 and |newton − threshold| beyond, in either precision, both
sides computed in that precision.

Memory: at K = 4096 the three arrays have 2.7e8 entries each, so they are drawn, solved and dropped in pieces of at most
PIECE entries (all heads and batch entries of some query rows). The process peaks at 0.5 GiB, PyTorch included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vertex_lab.baselines.exhaustive import enumerated_min
from vertex_lab.experiments.request import Progress, Request
from vertex_lab.experiments.result import Column, ExperimentResult, Row, Timer, new_figure, save_figure
from vertex_lab.journals import journal_of
from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.softmax_box import native, softmax_box_min
from vertex_softmax.softmax_box.api import Algorithm

NAME = "threshold"
TITLE = "Threshold solver: exactness and runtime"
BATCH = 4
HEADS = 4
KEYS = (8, 12, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
PIECE = 1 << 21
LIMIT_32 = 5e-7
LIMIT_64 = 1e-12
BOTH_ROUND = 8

THRESHOLD, NEWTON, EXHAUSTIVE = "Threshold (s)", "Newton (s)", "Exhaustive (s)"
DIFF_32, DIFF_64 = "Max diff. float32", "Max diff. float64"
COLUMNS = (
    Column("K"),
    Column(THRESHOLD, ".5f"),
    Column(NEWTON, ".5f"),
    Column("Threshold / Newton", ".1f"),
    Column(EXHAUSTIVE, ".5f"),
    Column("Exhaustive / Threshold", ".1f"),
    Column(DIFF_32, ".1e"),
    Column(DIFF_64, ".1e"),
    Column("Difference of"),
)
PUBLISHED: dict[int, Row] = {
    8: {THRESHOLD: 0.00046, EXHAUSTIVE: 0.00144, DIFF_32: 3.6e-7},
    12: {THRESHOLD: 0.00033, EXHAUSTIVE: 0.00725, DIFF_32: 2.4e-7},
    16: {THRESHOLD: 0.00037, EXHAUSTIVE: 0.11383, DIFF_32: 4.8e-7},
    64: {THRESHOLD: 0.00162},
    128: {THRESHOLD: 0.00453},
}

Boxes = tuple[Tensor, Tensor, Tensor]


@dataclass
class _Totals:
    """Seconds summed, and differences maximised, over the pieces of one K."""

    threshold: float = 0.0
    newton: float = 0.0
    exhaustive: float = 0.0
    diff_32: float = 0.0
    diff_64: float = 0.0


def run(request: Request) -> ExperimentResult:
    """The published table with Newton's method beside it; `quick`: K to 256, enumeration to K = 12."""
    figure, timer, seed = new_figure(), Timer(), request.seed
    sizes = [K for K in KEYS if not request.quick or K <= 256]
    enumerate_to = 12 if request.quick else 16
    with journal_of(NAME, request.out, "experiments/threshold.py", "baselines/exhaustive.py") as journal:
        rows = [
            journal.once(
                f"K {K} | seed {seed} | {torch.get_num_threads()} threads | enumerated {enumerate_to >= K}",
                *(_row, K, enumerate_to >= K, seed, request.progress),
            )
            for K in sizes
        ]
    result = ExperimentResult(
        name=NAME,
        title=TITLE,
        columns=COLUMNS,
        rows=tuple(rows),
        published=tuple(PUBLISHED.get(K, {}) for K in sizes),
        notes=_notes(rows, enumerate_to),
        settings={
            "batch": BATCH,
            "heads": HEADS,
            "query rows": "K",
            "seed": seed,
            "threads": torch.get_num_threads(),
            "kernel": native.variant() or "torch",
            "quick": request.quick,
        },
        seconds=timer.seconds,
        failures=_failures(rows),
    )
    result.save(request.out)
    _plot(figure, result)
    save_figure(figure, request.out, NAME)
    return result


def boxes(K: int, seed: int) -> Iterator[Boxes]:
    """(c, lower, upper) in float64, (batch, heads, some query rows, K), piece by piece until all K query rows came."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + K)
    step = max(1, PIECE // (BATCH * HEADS * K))
    for first in range(0, K, step):
        shape = (BATCH, HEADS, min(step, K - first), K)
        centre = torch.randn(shape, generator=generator, dtype=torch.float64)
        radius = torch.rand(shape, generator=generator, dtype=torch.float64).mul_(2)
        c = torch.randn(shape, generator=generator, dtype=torch.float64)
        yield c, centre - radius, radius.add_(centre)


def _row(K: int, enumerate_all: bool, seed: int, progress: Progress) -> dict[str, Any]:
    totals = _Totals()
    entries = BATCH * HEADS * K * K
    repeats = max(1, min(20, 10_000_000 // entries))
    done = 0
    for double in boxes(K, seed):
        progress(f"K = {K}", done, K)
        single = tuple(x.float() for x in double)
        _add(totals, (single[0], single[1], single[2]), double, repeats, enumerate_all)
        done += double[0].shape[2]
    progress(f"K = {K}", K, K)
    return {
        "K": K,
        THRESHOLD: totals.threshold,
        NEWTON: totals.newton,
        "Threshold / Newton": totals.threshold / totals.newton,
        EXHAUSTIVE: totals.exhaustive if enumerate_all else None,
        "Exhaustive / Threshold": totals.exhaustive / totals.threshold if enumerate_all else None,
        DIFF_32: totals.diff_32,
        DIFF_64: totals.diff_64,
        "Difference of": "threshold, exhaustive" if enumerate_all else "newton, threshold",
    }


def _add(totals: _Totals, single: Boxes, double: Boxes, repeats: int, enumerate_all: bool) -> None:
    seconds, by_threshold = _timed(lambda: _solve(single, "threshold"), repeats)
    totals.threshold += seconds
    seconds, other = _timed(lambda: _solve(single, "newton"), repeats)
    totals.newton += seconds
    by_threshold_64 = _solve(double, "threshold")
    if enumerate_all:
        seconds, other = _timed(lambda: enumerated_min(*single), min(repeats, 3))
        totals.exhaustive += seconds
        other_64 = enumerated_min(*double)
    else:
        other_64 = _solve(double, "newton")
    totals.diff_32 = max(totals.diff_32, _difference(by_threshold, other))
    totals.diff_64 = max(totals.diff_64, _difference(by_threshold_64, other_64))


def _solve(box: Boxes, algorithm: Algorithm) -> Tensor:
    result = softmax_box_min(*box, algorithm=algorithm)
    if not isinstance(result, Tensor):
        raise InternalError("softmax_box_min did not hand back the tensor it was given")
    return result


def _timed(work: Callable[[], Tensor], repeats: int) -> tuple[float, Tensor]:
    """The least of `repeats` times, after one call that is not timed where repeats are cheap, and the result."""
    if repeats > 1:
        work()
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return best, result


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def _failures(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """The limits are those of the enumeration; two solvers that both round may differ by BOTH_ROUND times as much."""
    limits = {DIFF_32: LIMIT_32, DIFF_64: LIMIT_64}
    return tuple(
        f"{name} {row[name]:.1e} at K = {row['K']} is not below {limit:.0e}"
        for row in rows
        for name, enumerated in limits.items()
        if not row[name] < (limit := enumerated * (1 if row[EXHAUSTIVE] is not None else BOTH_ROUND))
    )


def _notes(rows: list[dict[str, Any]], enumerate_to: int) -> tuple[str, ...]:
    counted = [row for row in rows if row[EXHAUSTIVE] is not None]
    worst_32, worst_64 = max(row[DIFF_32] for row in counted), max(row[DIFF_64] for row in counted)
    kept = "both hold" if worst_32 < LIMIT_32 and worst_64 < LIMIT_64 else "NOT kept"
    return (
        f"Largest difference to all vertices {worst_32:.1e} in float32 (limit {LIMIT_32:.0e}) and {worst_64:.1e} in "
        f"float64 (limit {LIMIT_64:.0e}): {kept}.",
        "Seconds are ours on a CPU in float32 against published ones on an RTX 5090 GPU: compare the growth and the "
        "ratios within a row, not the two machines.",
        f"Difference: threshold against all 2^K vertices to K = {enumerate_to}; beyond, newton against threshold.",
        "Threshold is the paper's Algorithm 1 (sort, sweep; torch); Newton is the default of softmax_box_min, no sort.",
        f"Drawn and solved in pieces of at most {PIECE:,} entries; peak memory below 1 GiB at every K.",
    )


def _plot(figure: Any, result: ExperimentResult) -> None:
    axes = figure.subplots()
    for name, marker, color in ((THRESHOLD, "o", "C0"), (NEWTON, "s", "C2"), (EXHAUSTIVE, "^", "C3")):
        label = name.removesuffix(" (s)").lower()
        for rows, who, style in ((result.rows, "ours, CPU", "-"), (result.published, "published, GPU", ":")):
            cells = zip(result.rows, rows, strict=True)
            points = [(ours["K"], row[name]) for ours, row in cells if row.get(name) is not None]
            if points:
                axes.loglog(*zip(*points, strict=True), style, color=color, marker=marker, label=f"{label} ({who})")
    axes.set_xlabel("keys K (batch 4, K query rows, 4 heads)")
    axes.set_ylabel("seconds")
    axes.set_title(TITLE)
    axes.legend(frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
