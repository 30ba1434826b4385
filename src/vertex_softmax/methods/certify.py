"""`certify` and `bound`: a model, an input set, a method; a verdict or an interval."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import CROSSING, Walk
from vertex_softmax.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bounding import METHODS, Options, lower_bounds
from vertex_softmax.ops.elementwise import Log
from vertex_softmax.ops.registry import Interval
from vertex_softmax.ops.softmax import Softmax
from vertex_softmax.result import Certification, Verdict
from vertex_softmax.sets import InputSet, outward

Model = torch.nn.Module | Graph | str | Path


def certify(
    model: Model,
    input_set: InputSet,
    label: int | Sequence[int] | Tensor,
    method: str = "joint",
    *,
    options: Options | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    certificate: bool = False,
    rigorous: bool = False,
) -> Certification:
    """Is the label the largest output for every input of the set? One answer per input of the batch.

    `model`: a PyTorch module in eval mode, a path to an ONNX file, or a Graph. The set's tensors are (batch, ...); the
    module sees them one at a time. Bounds are floating point (float64 unless told otherwise): `lower` may exceed the
    true bound by rounding.

    `certificate`: prove every `verified` so that it survives floating point (`Certification.certificates`); what cannot
    be proved is unknown, with the margin of the proof as reason. `rigorous`: besides, `lower` is only what was proved
    (−inf where nothing was tried: at inputs that are falsified). Both need the extra `proof`.
    """
    begin = time.perf_counter()
    options = options or Options()
    proofs = certificate or rigorous
    if proofs and dtype != torch.float64:
        raise InvalidValueError(f"dtype is {dtype}; certificates are made in torch.float64")
    graph = load(model, input_set, exact=proofs)
    graph = (graph if proofs else _logits(graph)).to(_dtype(dtype), _device(device, input_set))
    lower = _placed(input_set.lower, graph, dtype, device, -torch.inf)
    upper = _placed(input_set.upper, graph, dtype, device, torch.inf)
    labels = _labels(label, lower.shape[0], _classes(graph), lower.device)
    seconds = {"import": time.perf_counter() - begin}
    peak = _PeakMemory(lower.device)
    size = options.together(graph, _method(method), lower.device, dtype)
    parts = [
        _certify(graph, low, high, which, _method(method), options, seconds)
        for low, high, which in zip(lower.split(size), upper.split(size), labels.split(size), strict=True)
    ]
    seconds["total"] = time.perf_counter() - begin
    found = Certification(
        lower=torch.cat([margins for margins, _, _, _ in parts]),
        verdicts=tuple(verdict for _, verdicts, _, _ in parts for verdict in verdicts),
        reasons=tuple(reason for _, _, reasons, _ in parts for reason in reasons),
        method=method,
        clean=torch.cat([clean for _, _, _, clean in parts]),
        seconds=seconds,
        peak_bytes=peak.bytes(),
    )
    return _proved(found, graph, lower, upper, labels, options, model, rigorous=rigorous) if proofs else found


def _logits(graph: Graph) -> Graph:
    """The graph without a log-softmax of its output at the end: margins are the same, whatever is taken from all."""
    top = graph.output
    below = top.inputs[0] if isinstance(top.op, Log) else top
    if below is top or not isinstance(below.op, Softmax) or below.op.mask is not None:
        return graph
    return dataclasses.replace(graph, output=below.inputs[0])


def _proved(
    found: Certification,
    graph: Graph,
    lower: Tensor,
    upper: Tensor,
    labels: Tensor,
    options: Options,
    model: Model,
    *,
    rigorous: bool,
) -> Certification:
    """The certification with proofs; see certificate/certified.py."""
    try:
        from vertex_softmax.certificate.certified import with_proofs
    except ImportError as error:
        raise InvalidValueError(f"{error.name} is missing: pip install 'vertex-softmax[proof]'") from error
    cpu = graph.to(torch.float64, torch.device("cpu"))
    path = model if isinstance(model, str | Path) else None
    return with_proofs(found, cpu, lower.cpu(), upper.cpu(), labels, options, rigorous=rigorous, model=path)


def _certify(
    graph: Graph, lower: Tensor, upper: Tensor, labels: Tensor, method: str, options: Options, seconds: dict[str, float]
) -> tuple[Tensor, tuple[Verdict, ...], tuple[str, ...], Tensor]:
    """Margins, verdicts, reasons and clean margins of inputs that are bounded together; adds to the stages' seconds."""
    batch, classes = lower.shape[0], _classes(graph)
    others = torch.arange(classes, device=lower.device).expand(batch, classes)
    others = others[others != labels[:, None]].reshape(batch, classes - 1)
    C = torch.zeros(batch, classes - 1, classes, dtype=lower.dtype, device=lower.device)
    C.scatter_(2, labels[:, None, None].expand(-1, classes - 1, 1), 1.0)
    C.scatter_add_(2, others[..., None], torch.full_like(C[..., :1], -1.0))
    walk = Walk(graph, lower, upper, memory=options.memory)
    with torch.no_grad():
        centre = (lower + upper) / 2
        clean = _margins((C @ graph.evaluate(centre).reshape(batch, classes, 1)).squeeze(-1), others, classes)
        found = lower_bounds(walk, C.reshape(batch, classes - 1, *graph.output.shape), method, options)
    margins = _margins(found, others, classes)
    verdicts, reasons = _judge(walk, margins, clean)
    for stage, spent in walk.seconds.items():
        seconds[stage] = seconds.get(stage, 0.0) + spent
    return margins, verdicts, reasons, clean


def bound(
    model: Model,
    input_set: InputSet,
    method: str = "joint",
    *,
    options: Options | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Interval:
    """An interval for every output over the set, (batch, *output shape); NaN where there is no bound."""
    graph = load(model, input_set).to(_dtype(dtype), _device(device, input_set))
    lower = _placed(input_set.lower, graph, dtype, device, -torch.inf)
    upper = _placed(input_set.upper, graph, dtype, device, torch.inf)
    options = options or Options()
    size = options.together(graph, _method(method), lower.device, dtype)
    parts = [
        _bound(graph, low, high, _method(method), options)
        for low, high in zip(lower.split(size), upper.split(size), strict=True)
    ]
    return Interval(torch.cat([part.lower for part in parts]), torch.cat([part.upper for part in parts]))


def _bound(graph: Graph, lower: Tensor, upper: Tensor, method: str, options: Options) -> Interval:
    """The interval of every output for inputs that are bounded together."""
    batch, size, shape = lower.shape[0], math.prod(graph.output.shape), graph.output.shape
    eye = torch.eye(size, dtype=lower.dtype, device=lower.device)
    C = torch.cat([eye, -eye]).reshape(1, 2 * size, *shape).expand(batch, -1, *shape)
    walk = Walk(graph, lower, upper, memory=options.memory)
    with torch.no_grad():
        found = lower_bounds(walk, C, method, options)
    for problem in walk.problems:
        found = torch.where(problem.where[:, None], torch.full_like(found, torch.nan), found)
    return Interval(found[:, :size].reshape(batch, *shape), -found[:, size:].reshape(batch, *shape))


def load(model: Model, input_set: InputSet, *, exact: bool = False) -> Graph:
    """The graph of a model, simplified (`exact`: see `simplify`), for inputs of the set's shape."""
    if isinstance(model, Graph):
        return model
    from vertex_softmax.graph.simplify import simplify

    if isinstance(model, torch.nn.Module):
        from vertex_softmax.graph.from_torch import from_torch

        ids = getattr(input_set, "ids", None)
        if ids is not None:
            return simplify(from_torch(model, ids[:1], perturb="embedding"), exact=exact)
        return simplify(from_torch(model, input_set.centre[:1]), exact=exact)
    if isinstance(model, str | Path):
        from vertex_softmax.graph.from_onnx import from_onnx

        shape = from_onnx(model, check=False).input.shape
        points = (input_set.lower[0], input_set.centre[0], input_set.upper[0])
        fitting = [x.reshape(shape) for x in points if x.numel() == math.prod(shape)]
        return simplify(from_onnx(model, points=fitting), exact=exact)
    raise InvalidTypeError(
        f"the model is a {type(model).__name__}; give a torch.nn.Module in eval mode, an ONNX file's path or a Graph"
    )


def _method(method: str) -> str:
    if method not in METHODS:
        raise InvalidValueError(f"method is {method!r}; choose one of {', '.join(METHODS)}")
    return method


def _device(device: torch.device | str | None, input_set: InputSet) -> torch.device:
    return torch.device(device) if device is not None else input_set.lower.device


def _dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype not in CROSSING:
        raise InvalidValueError(f"dtype is {dtype}; choose torch.float64 or torch.float32")
    return dtype


def _placed(x: Tensor, graph: Graph, dtype: torch.dtype, device: torch.device | str | None, way: float) -> Tensor:
    """One end of the set, (batch, ...), as (batch, *graph input shape), rounded outward if it must be rounded."""
    shape = graph.input.shape
    moved = outward(x, dtype, way).to(device if device is not None else x.device)
    if tuple(moved.shape[1:]) == shape:
        return moved
    if shape and shape[0] == 1 and tuple(moved.shape[1:]) == shape[1:]:
        return moved.unsqueeze(1)
    if tuple(moved.shape) == shape:
        return moved.unsqueeze(0)
    raise InvalidValueError(
        f"the set holds {moved.shape[0]} inputs of shape {tuple(moved.shape[1:])}, but the network takes {shape}"
    )


def _classes(graph: Graph) -> int:
    shape, size = graph.output.shape, math.prod(graph.output.shape)
    if size < 2 or (shape and size != shape[-1]):
        raise InvalidValueError(
            f"the network's output has shape {shape}; margins need one row of at least two class scores. "
            "Use `bound` for other outputs"
        )
    return size


def _labels(label: int | Sequence[int] | Tensor, batch: int, classes: int, device: torch.device) -> Tensor:
    labels = torch.as_tensor(label, device=device)
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InvalidTypeError(f"label has dtype {labels.dtype}; give class numbers as integers")
    labels = labels.long().reshape(-1)
    if labels.numel() == 1:
        labels = labels.expand(batch)
    if labels.numel() != batch:
        raise InvalidValueError(f"there are {labels.numel()} labels for {batch} inputs; give one each, or one for all")
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise InvalidValueError(f"label {int(labels[at])} at index {at} is not a class; there are {classes}, from 0")
    return labels


def _margins(values: Tensor, others: Tensor, classes: int) -> Tensor:
    """(batch, classes − 1) at the other classes → (batch, classes), inf at the label."""
    whole = torch.full((values.shape[0], classes), torch.inf, dtype=values.dtype, device=values.device)
    return whole.scatter(1, others, values)


def _judge(walk: Walk, margins: Tensor, clean: Tensor) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    verdicts, reasons = [], []
    trouble = ["" for _ in range(margins.shape[0])]
    for problem in walk.problems:
        for b in problem.where.nonzero().flatten().tolist():
            trouble[b] = trouble[b] or f"{problem.text} at {problem.node.name!r}"
    for b, text in enumerate(trouble):
        least, centre = float(margins[b].amin()), float(clean[b].amin())
        label = clean[b] == torch.inf
        known = bool((label | margins[b].isfinite()).all()) and int(label.sum()) == 1
        if centre < 0 and bool((label | clean[b].isfinite()).all()):
            verdicts.append(Verdict.FALSIFIED)
            reasons.append(f"the centre of the set is itself misclassified (margin {centre:.6g})")
        elif text or not known:
            verdicts.append(Verdict.UNKNOWN)
            reasons.append(f"{text or 'the final bound is not finite'}; a smaller set may help")
        elif least > 0:
            verdicts.append(Verdict.VERIFIED)
            reasons.append("")
        else:
            verdicts.append(Verdict.UNKNOWN)
            reasons.append(f"the margin bound {least:.6g} to class {int(margins[b].argmin())} is not positive")
    return tuple(verdicts), tuple(reasons)


class _PeakMemory:
    """Most bytes in use since it was made: by tensors on a CUDA device, else by the whole process, ever."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def bytes(self) -> int | None:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        try:
            import resource
        except ImportError:  # not on Windows
            return None
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
