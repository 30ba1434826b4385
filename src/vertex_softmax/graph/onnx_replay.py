"""Replay an import on onnxruntime: every tensor that both sides know has to agree, not only the output.

Invariant: `replay` returns only if, at every point, each integer tensor is equal and each floating-point tensor differs
by no more than float32 rounding explains; otherwise it raises and names the first tensor that differs.

The tolerance is measured, not chosen. onnxruntime computes in float32, the graph in float64; so the graph is also run
in float32, and its own distance from float64, relative to the tensor's largest number, is what rounding does to this
tensor of this model at these points. A tensor may differ by MARGIN times that (another order of summation, another
e^x), or by FLOOR where the graph happens to round less: FLOOR is for sums of 16 terms, and grows with the root of the
longest sum in the model (seen: 2.3e-6 behind a convolution of 768 terms, where torch had rounded by 1.6e-7). Wrong
axes, transposes, masks and scales differ by orders of magnitude more. Where all tensors that onnxruntime returns are
float64, DOUBLE of the largest number is the tolerance.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.errors import InvalidValueError, UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.graph.onnx_file import packages
from vertex_softmax.graph.onnx_parts import only
from vertex_softmax.ops.linear import Convolution, LeftLinear, Linear

if TYPE_CHECKING:
    import onnx

POINTS = 6
MARGIN = 16.0
FLOOR = 2.0**-20
DOUBLE = 1e-10
OPTIMISED = "the output, with onnxruntime's optimisations"
"""Held to float32's tolerance in float64 models too: fused operators keep eps and scale as float32."""
VAGUE = 1e-2
"""Rounding that changes the output by more than this share of it leaves nothing to compare."""


@dataclasses.dataclass(frozen=True)
class Made:
    """What the importer made of a model."""

    graph: Graph
    """As translated, node by node."""
    final: Graph
    """With masks in their softmax; what the caller gets."""
    tensors: Mapping[str, Node]
    """ONNX names → nodes of `graph`."""
    output: str
    """The name of the output."""


def replay(model: onnx.ModelProto, made: Made, points: Sequence[Tensor], seed: int) -> None:
    """Compare what was made of a model, tensor by tensor, with onnxruntime."""
    graph, final, output = made.graph, made.final, made.output
    fixed = {proto.name for proto in model.graph.initializer}
    names = [name for name in made.tensors if name not in fixed and name != graph.input.name]
    ratios = _Ratios(names, output, floor(graph))
    model = _sized(only(model, output), graph.input)
    session, plain = _session(model, names, optimised=False), _session(model, [output], optimised=True)
    dtype = np.float64 if session.get_inputs()[0].type == "tensor(double)" else np.float32
    single, last = graph.to(torch.float32), final.to(torch.float32)
    twin = dict(zip(graph.nodes(), single.nodes(), strict=True))
    for point in _points(graph, points, seed):
        feed = point.numpy().astype(dtype)
        x = torch.from_numpy(feed).double()
        with _refusals("onnxruntime cannot run the model"):
            found = dict(zip(names, session.run(names, {graph.input.name: feed}), strict=True))
            optimised = plain.run([output], {graph.input.name: feed})[0]
        exact, rough = graph.values(x), single.values(x.float())
        for name in names:
            node = made.tensors[name]
            value = build.value_of(node)
            if value is not None:
                _same_constant(name, value, found[name])
            elif node in exact:
                ratios.add(name, exact[node], rough[twin[node]], found[name])
        ratios.add(OPTIMISED, exact[graph.output], rough[single.output], optimised)
        ratios.add(output, final.evaluate(x), last.evaluate(x.float()), found[output])
    ratios.judge()


def floor(graph: Graph) -> float:
    """What rounding may do to any tensor of a model whose longest sum is as long as this one's."""
    longest = 16
    for node in graph.nodes():
        op = node.op
        if isinstance(op, Linear):
            longest = max(longest, op.weight.shape[-2])
        elif isinstance(op, LeftLinear):
            longest = max(longest, op.weight.shape[-1])
        elif isinstance(op, Convolution):
            longest = max(longest, op.weight[0].numel())
    return FLOOR * math.sqrt(longest / 16)


class _Ratios:
    """Per tensor, the largest relative difference from onnxruntime and from the graph in float32, over the points."""

    def __init__(self, names: Sequence[str], output: str, least: float) -> None:
        self.names, self.output, self.least = [*names, OPTIMISED], output, least
        self.found: dict[str, float] = {}
        self.rounding: dict[str, float] = {}
        self.finite = False
        self.double = True

    def add(self, name: str, exact: Tensor, rough: Tensor, found: Any) -> None:
        ours, theirs = exact, torch.from_numpy(np.asarray(found))
        if tuple(theirs.shape) != tuple(ours.shape):
            raise InvalidValueError(
                f"tensor {name!r}: the import has shape {tuple(ours.shape)}, onnxruntime {tuple(theirs.shape)}; "
                "please report this model"
            )
        self.double = self.double and theirs.dtype == torch.float64
        real = exact.isfinite()
        size = float(exact[real].abs().max()) if bool(real.any()) else 0.0
        self.finite = self.finite or (name == self.output and bool(real.all()))
        self.found[name] = max(self.found.get(name, 0.0), _relative(exact, theirs.double(), size))
        self.rounding[name] = max(self.rounding.get(name, 0.0), _relative(exact, rough.double(), size))

    def judge(self) -> None:
        if not self.finite:
            raise InvalidValueError(
                "the model's output is not finite at any random point, so the import cannot be checked: "
                "give `points` from its input set"
            )
        for name in self.names:
            if name in self.found and self.found[name] > self.tolerance(name):
                raise UnsupportedModelError(
                    f"tensor {name!r} of the import differs from onnxruntime by {self.found[name]:.3g} of its largest "
                    f"number; rounding explains {self.tolerance(name):.3g}. The import of the node that makes it is "
                    "wrong, or onnxruntime is: nothing can be said about this model. Please report it."
                )
        if self.rounding[self.output] > VAGUE:
            raise UnsupportedModelError(
                f"float32 rounding changes the model's output by {self.rounding[self.output]:.3g} of it, so the import "
                "cannot be checked against onnxruntime; give `points` where the model is better conditioned"
            )

    def tolerance(self, name: str) -> float:
        return DOUBLE if self.double and name != OPTIMISED else max(self.least, MARGIN * self.rounding[name])


def _relative(exact: Tensor, other: Tensor, size: float) -> float:
    """max |exact − other| / size; infinite where one is not finite and the other is another number."""
    same = (exact == other) | (exact.isnan() & other.isnan())
    gap = torch.where(same, 0.0, (exact - other).abs().nan_to_num(torch.inf, torch.inf))
    worst = float(gap.max()) if gap.numel() else 0.0
    return worst / size if size > 0 else (0.0 if worst == 0 else torch.inf)


def _same_constant(name: str, ours: Tensor, theirs: Any) -> None:
    """A folded constant has the type, shape and numbers that onnxruntime computes (floats: a few ulps)."""
    there = torch.from_numpy(np.asarray(theirs))
    if ours.is_floating_point() and there.is_floating_point():
        agree = ours.shape == there.shape and torch.allclose(
            ours.double(), there.double(), rtol=1e-5, atol=1e-6, equal_nan=True
        )
    else:
        agree = ours.dtype == there.dtype and torch.equal(ours, there)
    if not agree:
        raise UnsupportedModelError(
            f"constant {name!r} was folded to another value than onnxruntime computes "
            f"({ours.dtype} {tuple(ours.shape)}, {there.dtype} {tuple(there.shape)}); please report this model"
        )


def _points(graph: Graph, given: Sequence[Tensor], seed: int) -> Iterator[Tensor]:
    """Images, standard normals, and both small and large numbers; then the given points."""
    generator = torch.Generator().manual_seed(seed)
    shape = graph.input.shape
    for i in range(POINTS):
        if i % 2:
            yield torch.randn(shape, generator=generator, dtype=torch.float64) * (1.0, 0.1, 3.0)[i // 2 % 3]
        else:
            yield torch.rand(shape, generator=generator, dtype=torch.float64)
    for i, x in enumerate(given):
        if tuple(x.shape) != shape or not bool(x.isfinite().all()):
            raise InvalidValueError(f"points[{i}] has shape {tuple(x.shape)} or is not finite; the input is {shape}")
        yield x.detach().cpu().double()


def _sized(model: onnx.ModelProto, source: Node) -> onnx.ModelProto:
    """The model with every size of its input a number: the open first one is 1."""
    sized = type(model)()
    sized.CopyFrom(model)
    for value in sized.graph.input:
        if value.name == source.name:
            for dim, size in zip(value.type.tensor_type.shape.dim, source.shape, strict=True):
                dim.dim_value = size
    return sized


def _session(model: onnx.ModelProto, names: Sequence[str], *, optimised: bool) -> Any:
    """One thread; with optimisation off, the file's own operators, and every named tensor as an output."""
    onnx, runtime = packages()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    open_model = type(model)()
    open_model.CopyFrom(model)
    there = {o.name for o in open_model.graph.output}
    open_model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    with _refusals("onnxruntime does not load the model"):
        return runtime.InferenceSession(open_model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@contextlib.contextmanager
def _refusals(what: str) -> Iterator[None]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    refusals = [c for c in vars(state).values() if isinstance(c, type) and issubclass(c, Exception)]
    known: tuple[type[Exception], ...] = (*refusals, ValueError, RuntimeError)
    try:
        yield
    except known as error:
        raise UnsupportedModelError(
            f"{what}, so the import cannot be checked (check=False leaves the check out): {error}"
        ) from error
