"""`certify` and `bound`: a model, an input set, a method; a verdict or an interval."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.foundation.tolerances import VERDICT
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import Method, lower_bounds, method_named
from vertex_softmax.methods.sizing import batch_size, varying_numbers
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops.elementwise import Log
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.softmax import Softmax
from vertex_softmax.runs.causes import cause
from vertex_softmax.runs.centres import Centres, rounding
from vertex_softmax.runs.certification import Certification, in_order, together
from vertex_softmax.sets import InputSet
from vertex_softmax.sets.loading import Loaded, Model, checked, load, read
from vertex_softmax.sets.region import Region

__all__ = ["Model", "bound", "certify", "load"]


@full_precision()
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

    `model`: a PyTorch module in eval mode, a path to an ONNX file, a Graph, or what `sets.loading.read` made of one,
    which is then not read again. The set's tensors are (batch, ...); the module sees them one at a time. Before
    anything is said, the graph that is bounded is held against the model itself at every input, at its centre and at
    points of its set: the module run eagerly, or onnxruntime. Bounds are floating point (float64 unless told
    otherwise): `lower` may exceed the true bound by rounding.

    `certificate`: prove every `verified` so that it survives floating point (`Certification.certificates`); what cannot
    be proved is unknown, with the margin of the proof as reason. `rigorous`: besides, `lower` is only what was proved
    (−inf where nothing was tried: at inputs that are falsified). Both need the extra `proof`.
    """
    begin = time.perf_counter()
    options, chosen = _options(options), method_named(method)
    proofs = certificate or rigorous
    _dtype(dtype)
    if proofs and dtype != torch.float64:
        raise InvalidValueError(f"dtype is {dtype}; certificates are made in torch.float64")
    place = _device(device, checked(input_set))
    labels = _labels(label, len(input_set))
    original = read(model)
    groups = original.groups(input_set)
    seconds = {"import": time.perf_counter() - begin}
    peak = _PeakMemory(place)
    ask = _Asked(chosen, options, dtype, place, rigorous if proofs else None, original)
    parts = [_answer(group.graph, input_set[list(group.which)], labels[list(group.which)], ask) for group in groups]
    found = together(parts, [group.which for group in groups])
    seconds = {**seconds, **found.seconds}
    seconds["total"] = time.perf_counter() - begin
    return dataclasses.replace(found, seconds=seconds, peak_bytes=peak.bytes())


@dataclasses.dataclass(frozen=True)
class _Asked:
    """How every group of inputs is answered."""

    method: Method
    options: Options
    dtype: torch.dtype
    device: torch.device
    rigorous: bool | None
    """None: no proofs."""
    original: Loaded


def _answer(graph: Graph, input_set: InputSet, labels: Tensor, ask: _Asked) -> Certification:
    """The answer for inputs that have one graph."""
    dtype, device, options = ask.dtype, ask.device, ask.options
    exact = (graph if ask.rigorous is not None else _logits(graph)).to(torch.float64, device)
    graph = exact.to(dtype, device)
    region = input_set.region(graph.input.shape, dtype, device)
    count = len(region.box.lower)
    labels = _classed(labels.to(device), count, _classes(graph))
    size = batch_size(graph, ask.method, options, device, dtype, varying_numbers(region))
    parts = []
    for i in range(0, count, size):
        some = input_set[i : i + size] if count == len(input_set) else input_set  # else the batch is one input
        centres = Centres(exact, some, ask.original, ask.method, options)
        parts.append(_certified(graph, region.at(slice(i, i + size)), centres, labels[i : i + size], ask))
    found = together(parts, [tuple(which.tolist()) for which in torch.arange(count).split(size)])
    if ask.rigorous is None:
        return found
    where = input_set.region(graph.input.shape, torch.float64, torch.device("cpu"))
    return _proved(found, graph, where, labels, ask)


def _named(original: Loaded) -> dict[str, str]:
    """How a certificate names the file that a model was read from; nothing if it is no file."""
    return {} if original.identity is None else {"sha256": original.identity, "file": original.name}


def _logits(graph: Graph) -> Graph:
    """The graph without a log-softmax of its output at the end: margins are the same, whatever is taken from all."""
    top = graph.output
    below = top.inputs[0] if isinstance(top.op, Log) else top
    if below is top or not isinstance(below.op, Softmax) or below.op.mask is not None:
        return graph
    return dataclasses.replace(graph, output=below.inputs[0])


def _proved(found: Certification, graph: Graph, region: Region, labels: Tensor, ask: _Asked) -> Certification:
    """The certification with a proof of every `verified` over the sets, on the CPU. See runs/proofs.py."""
    try:
        from vertex_softmax.runs.proofs import Batch, with_proofs
    except ImportError as error:
        raise InvalidValueError(f"{error.name} is missing: pip install 'vertex-softmax[proof]'") from error
    cpu = graph.to(torch.float64, torch.device("cpu"))
    batch = Batch(graph=cpu, region=region, labels=labels, file=_named(ask.original))
    return with_proofs(found, batch, ask.options, rigorous=bool(ask.rigorous))


def _certified(graph: Graph, region: Region, centres: Centres, labels: Tensor, ask: _Asked) -> Certification:
    """The answer for inputs that are bounded together; labels (batch)."""
    lower = region.box.lower
    batch, classes = lower.shape[0], _classes(graph)
    others = torch.arange(classes, device=lower.device).expand(batch, classes)
    others = others[others != labels[:, None]].reshape(batch, classes - 1)
    C = torch.zeros(batch, classes - 1, classes, dtype=lower.dtype, device=lower.device)
    C.scatter_(2, labels[:, None, None].expand(-1, classes - 1, 1), 1.0)
    C.scatter_add_(2, others[..., None], torch.full_like(C[..., :1], -1.0))
    question = Question.over(graph, region, memory=ask.options.memory)
    objective = Objective.dense(graph.output, C.reshape(batch, classes - 1, *graph.output.shape))
    with torch.no_grad():
        centre = centres.points.to(lower)
        clean = _margins((C @ graph.evaluate(centre).reshape(batch, classes, 1)).squeeze(-1), others, classes)
        found = lower_bounds(question, objective, ask.method, ask.options)
    margins = _margins(found.lower, others, classes)
    positive = bool((found.lower > 0).any())
    guard = rounding(question, found, objective, ask.method, ask.options) if positive else None
    wrong = centres.misclassified(labels, (clean.amin(1) < 0) & (clean.isfinite().sum(1) == classes - 1))
    verdicts, reasons = _judge(found, margins, _Clean(clean, wrong), guard)
    return Certification(
        lower=margins,
        verdicts=verdicts,
        reasons=reasons,
        method=str(ask.method),
        clean=clean,
        seconds=dict(question.clock.seconds),
    )


@full_precision()
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
    options, chosen = _options(options), method_named(method)
    place = _device(device, checked(input_set))
    _dtype(dtype)
    original = read(model)
    ask = _Asked(chosen, options, dtype, place, None, original)
    groups = original.groups(input_set)
    found = [_interval(group.graph, input_set[list(group.which)], ask) for group in groups]
    order = [group.which for group in groups]
    return Interval(in_order([part.lower for part in found], order), in_order([part.upper for part in found], order))


def _interval(graph: Graph, input_set: InputSet, ask: _Asked) -> Interval:
    """The interval of every output for inputs that have one graph."""
    graph = graph.to(ask.dtype, ask.device)
    region = input_set.region(graph.input.shape, ask.dtype, ask.device)
    size = batch_size(graph, ask.method, ask.options, ask.device, ask.dtype, varying_numbers(region))
    count = len(region.box.lower)
    parts = [_output_interval(graph, region.at(slice(i, i + size)), ask) for i in range(0, count, size)]
    return Interval(torch.cat([part.lower for part in parts]), torch.cat([part.upper for part in parts]))


def _output_interval(graph: Graph, region: Region, ask: _Asked) -> Interval:
    """The interval of every output for inputs that are bounded together."""
    batch, size, shape = len(region.box.lower), math.prod(graph.output.shape), graph.output.shape
    eye = torch.eye(size, dtype=ask.dtype, device=ask.device)
    C = torch.cat([eye, -eye]).reshape(1, 2 * size, *shape).expand(batch, -1, *shape)
    question = Question.over(graph, region, memory=ask.options.memory)
    with torch.no_grad():
        bound = lower_bounds(question, Objective.dense(graph.output, C), ask.method, ask.options)
    found = bound.lower
    for problem in bound.boxes.problems:
        found = torch.where(problem.where[:, None], torch.full_like(found, torch.nan), found)
    return Interval(found[:, :size].reshape(batch, *shape), -found[:, size:].reshape(batch, *shape))


def _options(options: object) -> Options:
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise InvalidTypeError(f"options is a {type(options).__name__}; give vertex_softmax.methods.options.Options")
    return options


def _device(device: object, input_set: InputSet) -> torch.device:
    """The device asked for, or the set's, if something can be computed there."""
    if device is None:
        return input_set.lower.device
    if not isinstance(device, torch.device | str):
        raise InvalidTypeError(f"device is {device!r}; give 'cpu', 'cuda', or a torch.device")
    try:
        place = torch.device(device)
        if place.type == "meta":
            raise InvalidValueError("device is 'meta', where tensors have no numbers; choose 'cpu' or 'cuda'")
        torch.zeros(1, device=place).add(1)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError, IndexError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidValueError(
            f"device is {str(device)!r}, on which nothing can be computed here: {reason}"
        ) from error
    return place


def _dtype(dtype: object) -> torch.dtype:
    if not isinstance(dtype, torch.dtype) or dtype not in VERDICT:
        raise InvalidValueError(f"dtype is {dtype}; choose torch.float64 or torch.float32")
    return dtype


def _classes(graph: Graph) -> int:
    shape, size = graph.output.shape, math.prod(graph.output.shape)
    if size < 2 or (shape and size != shape[-1]):
        raise InvalidValueError(
            f"the network's output has shape {shape}; margins need one row of at least two class scores. "
            "Use `bound` for other outputs"
        )
    return size


def _labels(label: object, batch: int) -> Tensor:
    """One class number per input, (batch) of int64 on the CPU."""
    array = _integers(label)
    if array.ndim > 1:
        raise InvalidValueError(
            f"label has shape {array.shape}; give one class number for each of {batch} inputs, or one for all"
        )
    numbers = [int(n) for n in array.reshape(-1)]
    if len(numbers) == 1:
        numbers *= batch
    if len(numbers) != batch:
        raise InvalidValueError(f"there are {len(numbers)} labels for {batch} inputs; give one each, or one for all")
    for i, number in enumerate(numbers):
        if not 0 <= number < 1 << 31:
            raise InvalidValueError(f"label {number} at index {i} is not a class; classes are counted from 0")
    return torch.tensor(numbers, dtype=torch.long)


def _integers(label: object) -> NDArray[Any]:
    """An array of integers of any size, however they were given."""
    wrong = "give class numbers as integers"
    if isinstance(label, Tensor):
        if label.is_meta or label.layout != torch.strided or label.is_quantized:
            raise InvalidTypeError(f"label is a meta, sparse or quantised tensor; {wrong}")
        if label.is_floating_point() or label.is_complex() or label.dtype == torch.bool:
            raise InvalidTypeError(f"label has dtype {label.dtype}; {wrong}")
        return label.detach().cpu().numpy()
    if isinstance(label, np.ma.MaskedArray):
        raise InvalidTypeError(f"label is a masked array; {wrong}")
    try:
        array = np.asarray(label)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise InvalidTypeError(f"label cannot be read as class numbers: {error}") from error
    big = array.dtype.kind == "O" and all(type(n) is int for n in array.reshape(-1))
    if array.dtype.kind not in "iu" and not big:
        raise InvalidTypeError(f"label has dtype {array.dtype}; {wrong}")
    return array


def _classed(labels: Tensor, batch: int, classes: int) -> Tensor:
    """The labels, if each is a class; a set that is one input of the network's whole shape has one."""
    if len(labels) != batch and bool((labels == labels[0]).all()):
        labels = labels[:1].expand(batch)
    if len(labels) != batch:
        raise InvalidValueError(f"there are {len(labels)} labels for {batch} inputs; give one each, or one for all")
    wrong = labels >= classes
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise InvalidValueError(f"label {int(labels[at])} at index {at} is not a class; there are {classes}, from 0")
    return labels


def _margins(values: Tensor, others: Tensor, classes: int) -> Tensor:
    """(batch, classes − 1) at the other classes → (batch, classes), inf at the label."""
    whole = torch.full((values.shape[0], classes), torch.inf, dtype=values.dtype, device=values.device)
    return whole.scatter(1, others, values)


@dataclasses.dataclass(frozen=True)
class _Clean:
    """The centres of some sets."""

    margins: Tensor
    """(batch, classes), inf at the label"""
    wrong: Tensor
    """whether the centre is misclassified, beyond doubt; (batch,) bool"""


def _judge(
    found: Bound, margins: Tensor, clean: _Clean, guard: Tensor | None
) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """Verdicts and reasons, one for each input; margins (batch, classes), inf at the label."""
    verdicts, reasons = [], []
    trouble = ["" for _ in range(margins.shape[0])]
    for problem in found.boxes.problems:
        for b in problem.where.nonzero().flatten().tolist():
            trouble[b] = trouble[b] or f"{problem.text} at {problem.node.name!r}"
    for b, text in enumerate(trouble):
        least, centre = float(margins[b].amin()), float(clean.margins[b].amin())
        label = clean.margins[b] == torch.inf
        known = bool((label | margins[b].isfinite()).all()) and int(label.sum()) == 1
        if bool(clean.wrong[b]):
            verdicts.append(Verdict.FALSIFIED)
            reasons.append(f"the centre of the set is itself misclassified (margin {centre:.6g})")
        elif text or not known:
            verdicts.append(Verdict.UNKNOWN)
            reasons.append(f"{text or 'the final bound is not finite'}; a smaller set may help")
        elif centre < 0:
            verdicts.append(Verdict.UNKNOWN)
            reasons.append(
                f"the margin at the centre of the set is {centre:.6g}, but it is not certain that the model itself "
                "misclassifies it there: rounding may explain it"
            )
        elif least > 0 and guard is not None and least > float(guard[b]):
            verdicts.append(Verdict.VERIFIED)
            reasons.append("")
        elif least > 0:
            needed = math.inf if guard is None else float(guard[b])
            verdicts.append(Verdict.UNKNOWN)
            reasons.append(
                f"the margin bound {least:.6g} to class {int(margins[b].argmin())} is positive, but rounding may have "
                f"taken more: it has to be above {needed:.6g}"
            )
        else:
            verdicts.append(Verdict.UNKNOWN)
            target = int(margins[b].argmin())
            why = cause(found.boxes, b, int(label.nonzero().flatten()[0]), target)
            reasons.append(f"the margin bound {least:.6g} to class {target} is not positive{why}")
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
