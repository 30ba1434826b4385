"""A network as ONNX and a question as VNNLIB, and the proof that both say what they should.

Invariant: `exported` returns the bytes of a file that onnxruntime, Vertex and torch evaluate alike at the points given;
`specification` is a text whose box is exactly the given one, because every end is a float32 number written out in full.
"""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vertex_lab.suite.family import Ends
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.search.verify_files import load_instance

OPSET = 13
"""Without LayerNormalization as one op: norms are ReduceMean, Sub, Pow, Sqrt and Div, which all tools read."""
CLOSE = 1e-4
"""How far float32 may be from float64, relative to the largest logit."""
EXACT = 1e-6
"""How far the file may be from the module, both in float64: √2, 1/√d and a norm's ε are float32 in the file."""


def exported(module: nn.Module, example: Tensor) -> bytes:
    """An ONNX file of ops that every tool has, with a batch of one; the same bytes for the same module.

    Fused attention is written out as two products and a softmax; the notes of the exporter are left out.
    """
    import onnx

    file = io.BytesIO()
    with warnings.catch_warnings(), _attention_written_out(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (example[None],),
            cast(Any, file),
            dynamo=False,
            opset_version=OPSET,
            input_names=["x"],
            output_names=["y"],
        )
    model = onnx.load_from_string(file.getvalue())
    for node in model.graph.node:
        node.doc_string = ""
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


@contextlib.contextmanager
def _attention_written_out() -> Iterator[None]:
    """Within, torch's fused attention is two matrix products and a softmax; masks and dropout are refused."""

    def plain(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **more: Any) -> Tensor:
        if attn_mask is not None or any(more.values()):
            raise InvalidValueError("attention with a mask, dropout or a scale of its own is not in the suite")
        return torch.softmax(q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1])), -1) @ v

    before = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = plain  # type: ignore[assignment]
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = before


def replayed(content: bytes, module: nn.Module, points: Sequence[Tensor]) -> Graph:
    """The graph that Vertex reads, after the file, the graph and the module gave the same logits at every point.

    The graph is compared with the module in float64 (to EXACT), onnxruntime with the module in float32 (to CLOSE).
    """
    import onnxruntime

    graph = simplify(from_onnx(content)).to(torch.float64)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    for point in points:
        with torch.no_grad():
            single = module(point[None])
            exact = module.double()(point[None].double())
            module.float()
        theirs = torch.from_numpy(np.asarray(session.run(None, {"x": point[None].numpy()})[0]))
        size = 1 + float(exact.abs().max())
        for what, got, wanted, most in (
            ("onnxruntime", theirs.double(), single.double(), CLOSE),
            ("Vertex", graph.evaluate(point.double().reshape(1, *graph.input.shape)).reshape(1, -1), exact, EXACT),
        ):
            away = float((got - wanted).abs().max()) / size
            if not away <= most:
                raise InvalidValueError(f"the ONNX file is not the module: {what} differs by {away:.2e}")
    return graph


def specification(ends: Ends, classes: int, label: int, head: Sequence[str]) -> str:
    """The property in VNNLIB 1.0: the box, and an output that is at least the label's. `head`: lines of comment."""
    lower, upper = (end.flatten().tolist() for end in ends)
    lines = [f"; {line}" for line in head]
    lines += [f"(declare-const X_{i} Real)" for i in range(len(lower))]
    lines += [f"(declare-const Y_{k} Real)" for k in range(classes)]
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        lines += [f"(assert (>= X_{i} {Decimal(low):f}))", f"(assert (<= X_{i} {Decimal(high):f}))"]
    others = [f"    (and (>= Y_{k} Y_{label}))" for k in range(classes) if k != label]
    return "\n".join([*lines, "(assert (or", *others, "))"]) + "\n"


def require_holds_at(model: Path, spec: Path, ends: Ends, centre: Tensor) -> None:
    """Raise unless the files as written have exactly this box, and their centre is no counterexample.

    Reading them compares Vertex's graph with onnxruntime in the middle of the box and at its two ends.
    """
    instance = load_instance(model, spec)
    (case,) = instance.prop.cases
    for name, have, wanted in (("lower", case.lower, ends[0]), ("upper", case.upper, ends[1])):
        if not np.array_equal(have.reshape(-1), wanted.double().flatten().numpy()):
            raise InvalidValueError(f"{spec}: the {name} ends that are read are not those that were written")
    if not bool(((ends[0] <= centre) & (centre <= ends[1])).all()):
        raise InvalidValueError(f"{spec}: the centre is not in the box")
    if instance.replay.confirms(instance.prop, centre.double().numpy()):
        raise InvalidValueError(f"{spec}: the centre itself is a counterexample")
