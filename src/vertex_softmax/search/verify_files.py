"""Verification of a property file for a model file.

Invariant: a proof is about the model in the ONNX file, in real arithmetic over its stored weights; a counterexample was
confirmed by onnxruntime on the same file. Each file is read once, so both are about the same bytes. Before any answer
is given, the graph was compared with onnxruntime on the file's bytes, in the middle of every box of the property.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vertex_softmax.bounds.index import require_dimensions
from vertex_softmax.foundation.errors import UnsupportedModelError, is_out_of_memory
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.graph.from_onnx.file import OnnxFile
from vertex_softmax.graph.from_onnx.importer import SECONDS, translated
from vertex_softmax.graph.from_onnx.original import OriginalFile
from vertex_softmax.graph.from_onnx.replay import replay, require_same
from vertex_softmax.graph.from_onnx.time_limit import Clock
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.search.answers import Answer, Budget
from vertex_softmax.search.branching import Branching
from vertex_softmax.search.cascade import Report, verify
from vertex_softmax.search.replay import Replay
from vertex_softmax.specs.property import Case, Property
from vertex_softmax.specs.vnnlib import read_vnnlib

ENDS = 256
"""The number of boxes at whose two ends, besides the middle, the graph is compared with onnxruntime."""
NUMBERS = 1 << 20
"""The most numbers of the points that are compared at once."""


@dataclasses.dataclass(frozen=True)
class Instance:
    """A model and a property whose shapes fit each other."""

    graph: Graph
    prop: Property
    replay: Replay
    model_hash: str
    """The identity of the model with its external data files: a SHA-256 (certificate/checker/model.py)."""


@full_precision()
def load_instance(model: Path | OnnxFile, spec: Path, *, seconds: float | None = SECONDS) -> Instance:
    """Read both files; the graph is compared with onnxruntime inside each of the property's boxes.

    `seconds`: the time limit of the import, as for `from_onnx`.
    """
    clock = Clock(seconds)
    original = OriginalFile(model)
    names = [value.name for value in original.file.proto.graph.output]
    if len(names) > 1:
        raise UnsupportedModelError(
            f"{original.file.name} has {len(names)} outputs ({', '.join(names)}), and a property file does not say "
            "which of them it is about: export the model with that output alone"
        )
    made = translated(original, clock)
    inputs, outputs = math.prod(made.final.input.shape), math.prod(made.final.output.shape)
    prop = read_vnnlib(spec, inputs=inputs, outputs=outputs)
    shape = made.final.input.shape
    prop.require(shape, made.final.output.shape)
    prop.require_kinds(*original.kinds)
    replay(original, made, [point for part in points_of_cases(prop.cases[:1], shape) for point in part], 0, clock)
    graph = simplify(made.final, deadline=clock.end)
    require_dimensions(graph)
    for points in points_of_cases(prop.cases, shape):
        require_same(original, graph, points, clock=clock)
    return Instance(graph, prop, Replay(original), original.identity)


def points_of_cases(cases: Sequence[Case], shape: tuple[int, ...]) -> Iterator[Tensor]:
    """The middle of every box, and the two ends of the first ENDS boxes, in batches (n, *shape); each box once."""
    seen: set[bytes] = set()
    part: list[Tensor] = []
    most = max(1, NUMBERS // max(1, math.prod(shape)))
    for case in cases:
        key = hashlib.sha256(case.lower.tobytes() + case.upper.tobytes()).digest()
        if key in seen:
            continue
        seen.add(key)
        lower, upper = (torch.from_numpy(end).reshape(shape) for end in (case.lower, case.upper))
        middle = lower / 2 + upper / 2
        part += [lower, middle, upper] if len(seen) <= ENDS else [middle]
        if len(part) >= most:
            yield torch.stack(part)
            part = []
    if part:
        yield torch.stack(part)


# More than six parameters: a public signature, of which the last six are optional keywords.
def verify_instance(
    instance: Instance,
    budget: Budget,
    *,
    method: str = "bab",
    options: Options | None = None,
    device: str = "cpu",
    seed: int = 0,
    report: Report | None = None,
    branching: Branching | None = None,
    recorded: bool = False,
) -> Answer:
    """The answer of the cascade; if memory is exhausted outside of its stages, too, it is `unknown`.

    recorded: with its searches.
    """
    begin = time.perf_counter()
    graph = instance.graph.to(torch.float64, torch.device(device))
    confirm = lambda x: instance.replay.confirms(instance.prop, x)  # noqa: E731
    asked: dict[str, Any] = {"method": method, "options": options, "seed": seed}
    try:
        return verify(
            graph,
            instance.prop,
            confirm,
            budget=budget,
            report=report,
            branching=branching,
            recorded=recorded,
            **asked,
        )
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        nothing = tuple((-math.inf,) * len(case.conjunctions) for case in instance.prop.cases)
        seconds = {"total": time.perf_counter() - begin}
        return Answer(
            verdict=Verdict.UNKNOWN,
            reason="there was not enough memory",
            stage="",
            counterexample=None,
            bounds=nothing,
            nearest=math.inf,
            domains=0,
            seconds=seconds,
        )


def described(answer: Answer) -> dict[str, Any]:
    """The answer as plain JSON; numbers that are not finite are null."""
    return {
        "status": answer.verdict.competition,
        "reason": answer.reason,
        "stage": answer.stage,
        "bounds": [[_plain(x) for x in case] for case in answer.bounds],
        "nearest": _plain(answer.nearest),
        "domains": answer.domains,
        "rates": answer.rates,
        "seconds": answer.seconds,
        "counterexample": None
        if answer.counterexample is None
        else {
            "x": [float(v) for v in answer.counterexample.x.reshape(-1)],
            "y": [float(v) for v in answer.counterexample.y.reshape(-1)],
        },
    }


def _plain(x: float) -> float | None:
    return x if math.isfinite(x) else None
