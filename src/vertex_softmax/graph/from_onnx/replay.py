"""The comparison of an imported graph with onnxruntime: all tensors that both compute, and the output of the file.

Invariant: `replay` returns only if, at every point, each integer tensor is equal and each floating-point tensor differs
by no more than float32 rounding explains; otherwise it raises an error that names the first tensor that differs. The
tensors are those of the model with its functions expanded; the output is also compared with that of the file itself.

The tolerance is measured, not chosen. onnxruntime computes in float32, the graph in float64; so the graph is also run
in float32, and its own distance from float64, relative to the tensor's largest number, measures the effect of rounding
on this tensor at these points. A tensor may differ by MARGIN times that (another order of summation, another e^x), or
by FLOOR if the graph happens to round less: FLOOR is for sums of 16 terms, and grows with the square root of the
longest sum in the model (observed: 2.3e-6 after a convolution of 768 terms, where torch had rounded by 1.6e-7). Wrong
axes, transposes, masks and scales differ by orders of magnitude more. A sigmoid is compared relative to 1 where all its
numbers are smaller: onnxruntime computes it by a formula of absolute accuracy, and sigmoid(−40) is 0. If all tensors
that onnxruntime returns are float64, the tolerance is DOUBLE times the largest number.

Quantised models (QDQ) are compared with onnxruntime's unoptimised run alone, which computes what the file says. With
its optimisations onnxruntime may replace a product of a weight of 8 bits by one that rounds the activations to 8 bits
too, at a scale of its own (observed: 2.7 % of the output).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError, UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx.functions import inlined
from vertex_softmax.graph.from_onnx.original import OriginalFile, run, with_outputs
from vertex_softmax.graph.from_onnx.original import session as opened
from vertex_softmax.graph.from_onnx.roundings import Roundings, cut
from vertex_softmax.graph.from_onnx.time_limit import Clock
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.elementwise import Sigmoid
from vertex_softmax.ops.linear import Convolution, LeftLinear, Linear
from vertex_softmax.ops.rounding import Round
from vertex_softmax.ops.shape import Moving

if TYPE_CHECKING:
    import onnx

POINTS = 6
"""The number of random points."""
MARGIN = 16.0
FLOOR = 2.0**-20
DOUBLE = 1e-10
NEARBY, NEAR = 8, 1e-3
"""Rounding at a point is measured at NEARBY points around it, within NEAR times its largest number."""
WORK = 1 << 24
"""The most numbers, in all nodes and at all points, that are evaluated at once."""
ITSELF = "the output of the file itself, functions not expanded"
OPTIMISED = "the output of the file itself, with onnxruntime's optimisations"
"""Compared with the tolerance of float32 in float64 models too: fused operators store eps and scale as float32."""
VAGUE = 1e-2
"""If rounding changes the output by more than this share of it, a comparison would be meaningless."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslatedModel:
    """A model and its translation to a graph."""

    model: onnx.ModelProto
    """The model with its functions expanded."""
    graph: Graph
    """The graph as translated, node by node."""
    final: Graph
    """The graph with masks moved into their softmax: the result of the import."""
    tensors: Mapping[str, Node]
    """Name of a tensor in `model` → node of `graph`."""


def replay(
    original: OriginalFile,
    translation: TranslatedModel,
    points: Sequence[Tensor],
    seed: int,
    clock: Clock | None = None,
) -> None:
    """Compare a translation, tensor by tensor, with onnxruntime on the model and on its file; raise if they differ.

    The points are random ones drawn with `seed`, and those given, each of the input's shape.
    """
    graph, final, output, clock = translation.graph, translation.final, original.output, clock or Clock()
    initializers = {proto.name for proto in translation.model.graph.initializer}
    known = initializers | {each.name for each in original.inputs}
    names = [name for name in translation.tensors if name not in known]
    ratios = _Ratios(names, output, floor(graph))
    session = opened(with_outputs(translation.model, names), optimised=False)
    single, last = graph.to(torch.float32), final.to(torch.float32)
    twin = dict(zip(graph.nodes(), single.nodes(), strict=True))
    roundings, last_roundings = Roundings(graph, translation.model), Roundings(final, translation.model)
    last_twin = dict(zip(final.nodes(), last.nodes(), strict=True))
    quantised = any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in translation.model.graph.node)
    with clock.running("the comparison of the import with onnxruntime") as options:
        for point in _points(graph, points, seed):
            clock.check("the comparison of the import with onnxruntime")
            feed = np.asarray(point.numpy(), dtype=original.dtype)
            x = torch.from_numpy(feed).double()
            theirs = dict(zip(names, run(session, names, original.feed(feed), options), strict=True))
            given, last_given = roundings.given(theirs), last_roundings.given(theirs)
            exact = graph.values(x, given)
            rough = single.values(x.float(), {twin[node]: value for node, value in given.items()})
            for name in names:
                node = translation.tensors[name]
                value = build.value_of(node)
                if value is not None:
                    _same_constant(name, value, theirs[name])
                elif node in exact:
                    ratios.add(name, exact[node], rough[twin[node]], theirs[name], _unit(node))
            for rounded in given:
                ratios.add_excess(rounded, exact, rough[twin[rounded.inputs[0]]])
            if final is not graph:
                last_rough = last.values(x.float(), {last_twin[node]: value for node, value in last_given.items()})
                mine = final.values(x, last_given)[final.output]
                ratios.add(output, mine, last_rough[last.output], theirs[output], _unit(final.output))
            for name, optimised in ((ITSELF, False), (OPTIMISED, True)):
                if optimised and quantised:
                    continue  # fused operators round activations to integers, which the file does not say
                itself = original.run(feed, optimised=optimised, options=options)
                ratios.add(name, exact[graph.output], rough[single.output], itself, _unit(graph.output))
    ratios.judge()


def require_same(original: OriginalFile, graph: Graph, points: Tensor, *, clock: Clock | None = None) -> None:
    """Raise unless the graph's output agrees with the file's at every point; points (n, *input shape), all finite.

    The file runs point by point, unoptimised and not expanded; the graph, simplified or not, in batches. A difference
    that rounding does not explain is an UnsupportedModelError, which names the first tensor that differs if possible.
    """
    clock = clock or Clock()
    shape = graph.input.shape
    if tuple(points.shape[1:]) != shape or not bool(points.isfinite().all()):
        raise InvalidValueError(f"the points have shape {tuple(points.shape)} or are not finite; an input is {shape}")
    if shape != original.shape:
        raise InvalidValueError(f"the graph takes inputs of shape {shape}, and the model's are {original.shape}")
    if not len(points):
        return
    x = torch.from_numpy(points.detach().cpu().double().numpy().astype(original.dtype))
    if any(isinstance(node.op, Round) for node in graph.nodes()):
        _require_same_roundings(original, graph, x, clock)
        return
    judge = _Judge(graph, x, clock, double=original.double)
    with clock.running("the comparison of the import with onnxruntime") as options:
        for i in range(len(x)):
            theirs = original.run(x[i].numpy(), options=options)
            if theirs.shape != graph.output.shape:
                raise UnsupportedModelError(
                    f"the import's output has shape {graph.output.shape}, and the model's {theirs.shape}; please "
                    "report this model"
                )
            if reason := judge.reason(i, torch.from_numpy(theirs.astype(np.float64)).reshape(-1)):
                _name_the_tensor(original, x[i].double())
                raise UnsupportedModelError(
                    f"at input {i}, the output {original.output!r} of the import {reason}: nothing can be said about "
                    "this model. Please report it."
                )


def _require_same_roundings(original: OriginalFile, graph: Graph, points: Tensor, clock: Clock) -> None:
    """`require_same` of a quantised model, point by point: with the whole numbers that onnxruntime rounded to."""
    model = inlined(original.model, original.file.name)
    roundings, single = Roundings(graph, model), graph.to(torch.float32)
    twin = dict(zip(graph.nodes(), single.nodes(), strict=True))
    names, ratios = [original.output, *roundings.names], _Ratios([original.output], original.output, floor(graph))
    session = opened(with_outputs(model, names), optimised=False)
    with clock.running("the comparison of the import with onnxruntime") as options:
        for point in points:
            clock.check("the comparison of the import with onnxruntime")
            theirs = dict(zip(names, run(session, names, original.feed(point.numpy()), options), strict=True))
            given = roundings.given(theirs)
            exact = graph.values(point.double(), given)
            rough = single.values(point.float(), {twin[node]: value for node, value in given.items()})
            for node in given:
                ratios.add_excess(node, exact, rough[twin[node.inputs[0]]])
            mine, unit = exact[graph.output], _unit(graph.output)
            ratios.add(original.output, mine, rough[single.output], theirs[original.output], unit)
    ratios.judge()


class _Judge:
    """The comparison of outputs at some points x (n, *input shape), each with its own measured tolerance.

    The tolerance at a point is not taken from other points, where outputs may be larger. But at one point rounding may
    be small by chance, so before a difference counts, rounding is measured again at nearby points.
    """

    def __init__(self, graph: Graph, x: Tensor, clock: Clock, *, double: bool) -> None:
        self.graph, self.single, self.x, self.clock = graph.to(torch.float64), graph.to(torch.float32), x, clock
        self.double, self.least = double, DOUBLE if double else floor(graph)
        self.exact, self.rounding = self._measured(x)
        self.size = torch.where(self.exact.isfinite(), self.exact, 0.0).abs().amax(1).clamp(min=_unit(graph.output))
        self.usual = float(self.size.median())

    def _measured(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs (n, outputs), and how much float32 changes them (n); infinite where float32 is not finite."""
        exact = _batched(self.graph, x.double(), self.clock).reshape(len(x), -1)
        rough = _batched(self.single, x.float(), self.clock).reshape(len(x), -1).double()
        gap = (exact - rough).abs().nan_to_num(torch.inf, torch.inf)
        return exact, torch.where(exact.isfinite(), gap, 0.0).amax(1)

    def tolerance(self, i: int) -> float:
        """The tolerance at point i; in a float64 model rounding is 2⁻²⁹ of that of float32."""
        rounding = float(self.rounding[i]) * (2.0**-29 if self.double else 1.0)
        return max(self.least * float(self.size[i]), MARGIN * rounding)

    def reason(self, i: int, theirs: Tensor) -> str:
        """Why onnxruntime's output at point i does not agree with the graph's; empty if it agrees."""
        worst = _relative(self.exact[i], theirs, 1.0)
        if worst > self.tolerance(i):
            generator = torch.Generator().manual_seed(0)
            x = self.x[i].double()
            shift = torch.rand(NEARBY, *x.shape, generator=generator, dtype=torch.float64) - 0.5
            _, near = self._measured((x + shift * NEAR * float(x.abs().max())).to(self.x.dtype))
            self.rounding[i] = self.rounding[i].maximum(near.max())
        size, rounding = max(float(self.size[i]), self.usual), float(self.rounding[i])
        if worst > self.tolerance(i):
            return (
                f"differs from onnxruntime on the file by {worst:.3g}, where its largest number is "
                f"{float(self.size[i]):.3g} and rounding explains {self.tolerance(i):.3g}"
            )
        if not self.double and rounding > VAGUE * size:
            return f"is changed by float32 rounding by {rounding:.3g}, where it is {size:.3g}, and cannot be compared"
        return ""


def _batched(graph: Graph, x: Tensor, clock: Clock) -> Tensor:
    """The graph's outputs (n, *output shape) at x (n, *input shape), evaluated in parts that fit in memory."""
    each = sum(math.prod(node.shape) for node in graph.nodes())
    count = max(1, WORK // max(each, 1))
    parts = []
    for start in range(0, len(x), count):
        clock.check("the comparison of the import with onnxruntime")
        parts.append(graph.evaluate(x[start : start + count]))
    return torch.cat(parts)


def _name_the_tensor(original: OriginalFile, point: Tensor) -> None:
    """Repeat the import with a comparison of all tensors at this point, which raises if one of them differs.

    If none does, the difference comes from a later step, such as the simplification.
    """
    from vertex_softmax.graph.from_onnx.importer import from_onnx

    inputs = [each.name for each in original.inputs] if original.joined else None
    from_onnx(original.file, output=original.output, inputs=inputs, shapes=original.shapes, points=[point])


def floor(graph: Graph) -> float:
    """The relative tolerance for any tensor of a graph: FLOOR times the square root of its longest sum / 16."""
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
    """The largest relative differences over all points, per tensor: from onnxruntime, and from the graph in float32.

    `least` is the smallest tolerance; `finite`: whether the output was finite at some point; `double`: whether all
    tensors of onnxruntime were float64.
    """

    def __init__(self, names: Sequence[str], output: str, least: float) -> None:
        self.names, self.output, self.least = [*names, ITSELF, OPTIMISED], output, least
        self.difference: dict[str, float] = {}
        self.rounding: dict[str, float] = {}
        self.finite = False
        self.double = True

    def add(self, name: str, exact: Tensor, rough: Tensor, value: Any, unit: float) -> None:
        """Record a tensor at one point: the graph's value in float64 and float32, and onnxruntime's value.

        Differences are relative to the tensor's largest number, or to `unit` if that is larger.
        """
        theirs = torch.from_numpy(np.asarray(value))
        if tuple(theirs.shape) != tuple(exact.shape):
            raise InvalidValueError(
                f"tensor {name!r}: the import has shape {tuple(exact.shape)}, onnxruntime {tuple(theirs.shape)}; "
                "please report this model"
            )
        self.double = self.double and theirs.dtype == torch.float64
        size = max(_largest(exact), unit)
        self.finite = self.finite or (name == self.output and bool(exact.isfinite().all()))
        self.difference[name] = max(self.difference.get(name, 0.0), _relative(exact, theirs.double(), size))
        self.rounding[name] = max(self.rounding.get(name, 0.0), _relative(exact, rough.double(), size))

    def add_excess(self, node: Node, exact: Mapping[Node, Tensor], rough: Tensor) -> None:
        """Record a rounding at one point: how far onnxruntime's whole numbers are off, beyond ½ and SLACK."""
        name, x = f"{node.name}, rounded", cut(node, exact[node.inputs[0]])
        size = max(float(x.abs().max()), 1.0)
        self.names += [] if name in self.difference else [name]
        excess = float(Roundings.excess(node, exact).max()) / size
        self.difference[name] = max(self.difference.get(name, 0.0), excess)
        self.rounding[name] = max(self.rounding.get(name, 0.0), _relative(x, cut(node, rough), size))

    def judge(self) -> None:
        """Raise if a tensor differs by more than its tolerance, or if the output cannot be compared."""
        if not self.finite:
            raise InvalidValueError(
                "the model's output is not finite at any random point, so the import cannot be checked: "
                "give `points` from its input set"
            )
        for name in self.names:
            if name in self.difference and self.difference[name] > self.tolerance(name):
                raise UnsupportedModelError(
                    f"tensor {name!r} of the import differs from onnxruntime by {self.difference[name]:.3g} of its "
                    f"largest number; rounding explains {self.tolerance(name):.3g}. The import of the node that "
                    "computes it is wrong, or onnxruntime is: nothing can be said about this model. Please report it."
                )
        if self.rounding[self.output] > VAGUE:
            raise UnsupportedModelError(
                f"float32 rounding changes the model's output by {self.rounding[self.output]:.3g} of it, so the import "
                "cannot be checked against onnxruntime; give `points` where the model is better conditioned"
            )

    def tolerance(self, name: str) -> float:
        """The largest relative difference of a tensor that rounding explains."""
        return DOUBLE if self.double and name != OPTIMISED else max(self.least, MARGIN * self.rounding[name])


def _relative(exact: Tensor, other: Tensor, size: float) -> float:
    """max |exact − other| / size; infinite if only one is finite somewhere, or if they are different infinities."""
    apart = (exact - other).abs()
    worst = float(apart.max()) if apart.numel() else 0.0
    if not math.isfinite(worst):  # the maximum of a tensor with a NaN is NaN
        same = (exact == other) | (exact.isnan() & other.isnan())
        worst = float(torch.where(same, 0.0, apart.nan_to_num(torch.inf, torch.inf)).max())
    return worst / size if size > 0 else (0.0 if worst == 0 else torch.inf)


def _unit(node: Node) -> float:
    """The size to which the numbers of a node are compared where all are smaller: 1 for a sigmoid, moved or not."""
    while isinstance(node.op, Moving) and len(node.inputs) == 1:
        node = node.inputs[0]
    return 1.0 if isinstance(node.op, Sigmoid) else 0.0


def _largest(x: Tensor) -> float:
    """max |x| over the finite numbers of x; 0 if there are none."""
    largest = float(x.abs().max()) if x.numel() else 0.0
    if math.isfinite(largest):
        return largest
    finite = x.isfinite()
    return float(x[finite].abs().max()) if bool(finite.any()) else 0.0


def _same_constant(name: str, ours: Tensor, theirs: Any) -> None:
    """Raise unless a folded constant has the dtype, shape and numbers that onnxruntime computes (floats: nearly)."""
    computed = torch.from_numpy(np.asarray(theirs))
    if ours.is_floating_point() and computed.is_floating_point():
        agree = ours.shape == computed.shape and torch.allclose(
            ours.double(), computed.double(), rtol=1e-5, atol=1e-6, equal_nan=True
        )
    else:
        agree = ours.dtype == computed.dtype and torch.equal(ours, computed)
    if not agree:
        raise UnsupportedModelError(
            f"constant {name!r} was folded to another value than onnxruntime computes "
            f"({ours.dtype} {tuple(ours.shape)}, {computed.dtype} {tuple(computed.shape)}); please report this model"
        )


def _points(graph: Graph, given: Sequence[Tensor], seed: int) -> Iterator[Tensor]:
    """POINTS random points, uniform in [0, 1] and normal of several scales in turn; then the given points."""
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
