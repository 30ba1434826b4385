"""From two files, a model and a property, to an answer.

Invariant: what is proved is said of the model in the ONNX file as real arithmetic over its stored weights; what is
refuted is refuted by onnxruntime on the same file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from pathlib import Path
from typing import Any

import torch

from vertex_softmax.graph.from_onnx import from_onnx
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.onnx_file import read
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.methods.bounding import Options
from vertex_softmax.search.cascade import Answer, Budget, Report, Status, verify
from vertex_softmax.search.replay import Replay
from vertex_softmax.specs.property import Property
from vertex_softmax.specs.vnnlib import read_vnnlib

MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "std::bad_alloc")
"""How torch says that it has none left."""


@dataclasses.dataclass(frozen=True)
class Instance:
    """A model and a property that fit each other."""

    graph: Graph
    prop: Property
    replay: Replay
    model_hash: str
    """SHA-256 of the model file's bytes, decompressed; external data does not count"""


def load_instance(model: Path, spec: Path, *, exact: bool = False) -> Instance:
    """Read both files; the import is compared with onnxruntime inside the property's boxes.

    `exact`: see `simplify`; what a certificate needs.
    """
    data, _ = read(model)
    shape = from_onnx(model, check=False)
    inputs, outputs = math.prod(shape.input.shape), math.prod(shape.output.shape)
    prop = read_vnnlib(spec, inputs=inputs, outputs=outputs)
    prop.require(shape.input.shape, shape.output.shape)
    case = prop.cases[0]
    ends = [torch.from_numpy(end).reshape(shape.input.shape) for end in (case.lower, case.upper)]
    points = [ends[0], (ends[0] + ends[1]) / 2, ends[1]]
    graph = simplify(from_onnx(model, points=points), exact=exact)
    return Instance(graph, prop, Replay(model), hashlib.sha256(data).hexdigest())


def verify_instance(
    instance: Instance,
    budget: Budget,
    *,
    method: str = "bab",
    options: Options | None = None,
    device: str = "cpu",
    seed: int = 0,
    report: Report | None = None,
) -> Answer:
    """The cascade's answer; running out of memory is `unknown`."""
    begin = time.perf_counter()
    graph = instance.graph.to(torch.float64, torch.device(device))
    confirm = lambda x: instance.replay.confirms(instance.prop, x)  # noqa: E731
    try:
        return verify(
            graph, instance.prop, confirm, budget=budget, method=method, options=options, seed=seed, report=report
        )
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(
            text in str(error) for text in MEMORY
        ):
            raise
        nothing = tuple((-math.inf,) * len(case.conjunctions) for case in instance.prop.cases)
        seconds = {"total": time.perf_counter() - begin}
        return Answer(Status.UNKNOWN, "there was not enough memory", "", None, nothing, math.inf, 0, seconds)


def described(answer: Answer) -> dict[str, Any]:
    """The answer as plain JSON; numbers that are none are null."""
    return {
        "status": str(answer.status),
        "reason": answer.reason,
        "stage": answer.stage,
        "bounds": [[_plain(x) for x in case] for case in answer.bounds],
        "nearest": _plain(answer.nearest),
        "domains": answer.domains,
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
