"""Where the time goes: seconds per image by stage, the paper's tab:runtime_breakdown_app.

A trained full block (d = 32, 4 heads, MLP 64, 16 tokens) at ε = 0.02, one image at a time. `certify` says how long each
stage took: boxes of scores, values and pre-activations, softmax rows, the objective's own passes. Sort/sweep is the
primitive alone, timed on as many score rows as one image has: targets × heads × query rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vertex_lab.experiments import block, tables
from vertex_lab.experiments.learned import case
from vertex_lab.experiments.published import crown_published
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import Cell, Column, ExperimentResult, Row, Timer, machine
from vertex_lab.journals import journal_of
from vertex_lab.zoo import places
from vertex_lab.zoo.datasets import dataset, source_of
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops.attention import Attention
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.runs.demo.training import one_thread
from vertex_softmax.sets import LinfBall
from vertex_softmax.softmax_box import softmax_box_min

NAME = "runtime"
SOURCES = tuple(f"experiments/{name}.py" for name in ("runtime", "published", "learned"))
TITLE = "Runtime by stage, full block"
IMAGES, QUICK_IMAGES = 20, 3
COLUMNS = (
    Column("Component"),
    Column("Sec./img", ".4f"),
    Column("Fraction", ".3f"),
    Column("Relative to CROWN", ".2f"),
    Column("Status"),
)
PUBLISHED: dict[str, Row] = {
    "CROWN (softmax taken apart)": {"Sec./img": 0.1058, "Fraction": 0.094},
    "vertex: score, value and suffix bounds": {"Sec./img": 1.0147, "Fraction": 0.899},
    "vertex: sort/sweep": {"Sec./img": 0.0002, "Fraction": 0.000},
    "Hybrid: CROWN and vertex": {"Sec./img": 1.1288, "Fraction": 1.000},
}
OURS = ("crown", "alpha-crown", "hybrid", "joint")


def run(request: Request) -> ExperimentResult:
    """The published rows, then the stages of our own methods; a fraction is of the method's total."""
    timer = Timer()
    (setting, *_) = tables.on_data(block.SETTINGS, request)
    folder = request.data_dir or places.default_folder()
    missing = setting.data != "digits" and places.find(source_of(setting.data), folder) is None
    stages = {} if missing else _stages(request)
    rows = _rows(stages) if stages else [{"Component": name, "Status": tables.NOT_RUN} for name in PUBLISHED]
    theirs = PUBLISHED if setting.data == block.SETTINGS[0].data else {}
    measured = (
        f"{setting.name}: {tables.NOT_RUN}, no files of {setting.data} in {folder}: "
        f"{places.remedy(source_of(setting.data), folder)}."
        if missing
        else f"{setting.name}, ε = {_epsilon(request):g}, medians over {_count(request)} images, each on its own; ours "
        "on one thread of a CPU, published on an RTX 5090: compare fractions and ratios."
    )
    result = ExperimentResult(
        name=NAME,
        title=TITLE,
        columns=COLUMNS,
        rows=tuple(rows),
        published=tuple(theirs.get(str(row["Component"]), {}) for row in rows),
        notes=(
            measured,
            "Published: Hybrid is CROWN, then score, value and suffix bounds with auto_LiRPA, then the sweep.",
            "Fractions of the published rows are of Hybrid, those of our methods of their own total; softmax rows "
            "are a part of other stages.",
        ),
        settings=request.described(),
        seconds=timer.seconds,
    )
    result.save(request.out)
    return result


def _epsilon(request: Request) -> float:
    (setting, *_) = tables.on_data(block.SETTINGS, request)
    return setting.epsilons[min(1, len(setting.epsilons) - 1)]


def _count(request: Request) -> int:
    return QUICK_IMAGES if request.quick else IMAGES


def _stages(request: Request) -> dict[str, float]:
    """Median seconds per image by row and stage."""
    (setting, *_) = tables.on_data(block.SETTINGS, request)
    found = case(setting, dataset(setting.data, request.data_dir), request.seed, request)
    graph = load(found.model, LinfBall(found.data.eval_images[:1], 0.0))
    measured: list[dict[str, float]] = []
    with journal_of(NAME, request.out, *SOURCES) as journal:
        for i in range(_count(request)):
            request.progress(NAME, i, _count(request))
            ball = LinfBall(found.data.eval_images[i : i + 1], _epsilon(request), clip=(0, 1))
            key = f"{found.key(_epsilon(request), i)} | {machine()}"
            arguments = (graph, ball, found.data.eval_labels[i : i + 1])
            with one_thread():
                if i == 0 and key not in journal.known:
                    _one(*arguments)  # what is set up once is not counted
                measured.append(journal.once(key, _one, *arguments))
    request.progress(NAME, _count(request), _count(request))
    return {name: statistics.median(image[name] for image in measured) for name in measured[0]}


def _one(graph: Graph, ball: LinfBall, label: Tensor) -> dict[str, float]:
    """Seconds of every row for one image."""
    found = {"CROWN (softmax taken apart)": _seconds(lambda: crown_published(graph, ball, label))}
    for method in ("vertex", *OURS):
        stages = certify(graph, ball, label, method, attack=None).seconds
        for stage, spent in stages.items():
            found[f"{method}: {stage}"] = spent
    scores = (
        max((node for node in graph.nodes() if isinstance(node.op, Attention)), key=lambda node: node.shape)
        .inputs[0]
        .shape
    )
    targets = graph.output.shape[-1] - 1
    c = torch.randn(targets, *scores, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found["vertex: sort/sweep"] = min(_seconds(lambda: softmax_box_min(c, c - 0.5, c + 0.5)) for _ in range(5))
    return found


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _rows(stages: dict[str, float]) -> list[Row]:
    crown, vertex, sweep = (
        stages[name] for name in ("CROWN (softmax taken apart)", "vertex: total", "vertex: sort/sweep")
    )
    hybrid = crown + vertex
    first = {
        "CROWN (softmax taken apart)": crown,
        "vertex: score, value and suffix bounds": max(0.0, vertex - sweep),
        "vertex: sort/sweep": sweep,
        "Hybrid: CROWN and vertex": hybrid,
    }
    rows: list[dict[str, Cell]] = [
        {"Component": name, "Sec./img": spent, "Fraction": spent / hybrid} for name, spent in first.items()
    ]
    for method in OURS:
        total = stages[f"{method}: total"]
        for name, spent in stages.items():
            if name.startswith(f"{method}: ") and spent > 0 and not name.endswith(": import"):
                rows.append({"Component": f"{name} (ours)", "Sec./img": spent, "Fraction": spent / total})
    return [{**row, "Relative to CROWN": float(row["Sec./img"] or 0.0) / crown, "Status": "run"} for row in rows]
