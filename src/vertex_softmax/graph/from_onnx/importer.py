"""The import of ONNX models, opsets 9 to 23: read as data, translated node by node, and compared with onnxruntime.

Invariant: the returned graph computes the model's output, for every input of the stated shape, as the ONNX standard
defines it on real numbers; if the importer cannot guarantee that, it raises. With `check` (the default) this is tested:
onnxruntime runs the file itself at random points, and every tensor that both compute has to agree (replay.py).

>>> graph = from_onnx("model.onnx")                                                    # doctest: +SKIP
>>> graph.evaluate(torch.zeros(graph.input.shape, dtype=torch.float64))                # doctest: +SKIP
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError, UnsupportedModelError, VertexError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx import activations as _activations  # noqa: F401
from vertex_softmax.graph.from_onnx import attention as _attention  # noqa: F401
from vertex_softmax.graph.from_onnx import replay
from vertex_softmax.graph.from_onnx import shapes as _shapes  # noqa: F401
from vertex_softmax.graph.from_onnx import windows as _windows  # noqa: F401
from vertex_softmax.graph.from_onnx.file import Source, opset, packages, to_tensor
from vertex_softmax.graph.from_onnx.functions import inlined
from vertex_softmax.graph.from_onnx.hints import why_unknown
from vertex_softmax.graph.from_onnx.ops import TRANSLATE, OnnxCall, Unsupported, limited
from vertex_softmax.graph.from_onnx.original import OriginalFile
from vertex_softmax.graph.from_onnx.parts import standard
from vertex_softmax.graph.from_onnx.quantised import MOVING
from vertex_softmax.graph.from_onnx.time_limit import Clock
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.graph.masks import check_masks, move_masks
from vertex_softmax.graph.problems import UnreadPart, described

if TYPE_CHECKING:
    import onnx

FACTOR = 8
"""All tensors of a graph may have FACTOR times as many numbers as the model's file, plus build.LARGEST."""
SECONDS = 600.0
"""The default time limit of an import, including its comparison with onnxruntime."""
WRONG = (RuntimeError, ValueError, IndexError, TypeError, KeyError, ArithmeticError)
"""The exceptions of torch and Python for arguments that do not fit together."""


# More than six parameters: a public signature, of which all but the first are optional keywords.
@full_precision()
def from_onnx(
    source: Source,
    *,
    output: str | None = None,
    inputs: Sequence[str] | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
    points: Iterable[Tensor] = (),
    check: bool = True,
    seed: int = 0,
    seconds: float | None = SECONDS,
) -> Graph:
    """The graph of an .onnx or .onnx.gz file (a path, its bytes, or an `OnnxFile`); constants are float64.

    The model has one floating-point input that is not an initializer; a first dimension without a number is 1. If it
    has several, `inputs` names all of them, in an order: the graph's input (1, numbers) then holds the numbers of all
    in that order. `shapes` are the shapes of the inputs, if they have open sizes. `output` names the output, by default
    the first of the model. `check` compares the graph with onnxruntime at random points (drawn with `seed`) and at
    `points`, tensors of the graph's input's shape. After `seconds` an OutOfTimeError is raised; None means no limit.

    The graph has the file's own nodes. `certify` and `bound` simplify it; so must whoever gives it to a method, since
    bounds of several nodes that stand for one attention or norm are sound but useless.
    """
    clock = Clock(seconds)
    original = OriginalFile(source, output=output, inputs=inputs, shapes=shapes)
    translation = translated(original, clock)
    if check:
        replay.replay(original, translation, list(points), seed, clock)
    return translation.final


def translated(original: OriginalFile, clock: Clock) -> replay.TranslatedModel:
    """The translation of a model to a graph, not yet compared with it."""
    clock.check("reading the model")
    model = inlined(original.model, original.file.name)
    translation = _Importer(model, original, clock).run()
    check_masks(translation.final)
    return translation


@dataclasses.dataclass
class _Importer:
    """One pass over the nodes of a model, which must have no functions; `run` returns the translation."""

    model: onnx.ModelProto
    original: OriginalFile
    clock: Clock
    tensors: dict[str, Node] = dataclasses.field(default_factory=dict)
    """Name of a tensor in the model → its node."""
    problems: list[UnreadPart] = dataclasses.field(default_factory=list)
    seen: set[Node] = dataclasses.field(default_factory=set)
    total_size: int = 0
    """The number of numbers in all nodes seen, or in the constants of their ops if those have more."""
    size_limit: int = 0
    """The largest total_size allowed."""
    used: set[str] = dataclasses.field(default_factory=set)
    """Names of tensors that a node, or the model, uses."""
    whole: set[str] = dataclasses.field(default_factory=set)
    """Names of tensors that depend on the input and hold whole numbers: quantised activations."""

    def run(self) -> replay.TranslatedModel:
        """Translate all nodes; a single error lists every unsupported one."""
        graph, output = self.model.graph, self.original.output
        self.used = {name for node in graph.node for name in node.input if name} | {output}
        for proto in graph.initializer:
            if proto.name in self.tensors:
                raise InvalidValueError(f"initializer {proto.name!r} occurs twice: export the model again")
            value = to_tensor(proto, f"initializer {proto.name!r}")
            self.tensors[proto.name] = build.constant(value, proto.name)
        source = self._source()
        self.size_limit = build.LARGEST + FACTOR * sum(math.prod(node.shape) for node in self.tensors.values())
        self._begin(source)
        for node in graph.node:
            self.clock.check("the import of the model")
            self._translate(node)
        if self.problems:
            raise UnsupportedModelError(described(self.problems, "node"))
        if output not in self.tensors:
            raise InvalidValueError(f"output {output!r} is computed by no node of the model")
        if build.value_of(self.tensors[output]) is not None:
            raise UnsupportedModelError(f"output {output!r} does not depend on the input: there is nothing to verify")
        if not math.prod(self.tensors[output].shape):
            raise UnsupportedModelError(f"output {output!r} has no numbers: there is nothing to verify")
        translated_graph = Graph(source, self.tensors[output])
        return replay.TranslatedModel(
            model=self.model, graph=translated_graph, final=move_masks(translated_graph), tensors=self.tensors
        )

    def _source(self) -> Node:
        """The input node of the graph."""
        name, _, shape = self.original.input
        try:
            return build.source(limited(shape), name)
        except Unsupported as error:
            raise UnsupportedModelError(f"input {name!r}: {error}") from error

    def _begin(self, source: Node) -> None:
        """Add the model's inputs to `tensors`: the source itself, or its parts."""
        if not self.original.joined:
            self.tensors[source.name] = source
            return
        start = 0
        for each in self.original.inputs:
            own = build.slice_(source, 1, start, start + each.size, 1, f"{each.name}, flat")
            self.tensors[each.name] = build.reshape(own, each.shape, each.name)
            start += each.size

    def _translate(self, node: onnx.NodeProto) -> None:
        """Add the node's outputs to `tensors`, or a line to `problems`.

        A node that depends on an unsupported one is only checked for being a supported operator.
        """
        function = None if node.overload else TRANSLATE.get((standard(node.domain), node.op_type))
        known = all(name in self.tensors for name in node.input if name)
        if function is None:
            self._problem(node, why_unknown(standard(node.domain), node.op_type))
            return
        if not known:
            return
        call = self._call(node)
        moves = any(name in self.whole for name in node.input)
        if moves and node.op_type not in MOVING:
            self._problem(node, "arithmetic of whole numbers, which wraps around: put a DequantizeLinear before it")
            return
        if node.op_type != "DequantizeLinear" and (moves or (node.op_type == "QuantizeLinear" and not call.constant)):
            self.whole.update(node.output)
        try:
            out = function(call)
            outs: Sequence[Node] = [out] if isinstance(out, Node) else out
            if call.constant:
                outs = [_typed(o, call) for o in outs]
            self._count(outs)
        except Unsupported as reason:
            self._problem(node, str(reason))
            return
        except VertexError:
            raise
        except WRONG as error:
            raise InvalidValueError(f"{self._description(node)} does not fit its inputs: {error}") from error
        for name, out_node in zip(node.output, outs, strict=False):
            if name in self.tensors:
                raise InvalidValueError(
                    f"{self._description(node)} computes {name!r}, which another node computes already"
                )
            if name:
                self.tensors[name] = out_node

    def _count(self, outs: Sequence[Node]) -> None:
        """Add the size of new nodes; an error if all tensors together are too large, even if each one is allowed."""
        stack = list(outs)
        while stack:
            node = stack.pop()
            if node not in self.seen:
                self.seen.add(node)
                constants = sum(value.numel() for value in vars(node.op).values() if isinstance(value, Tensor))
                self.total_size += max(math.prod(node.shape), constants)
                stack.extend(node.inputs)
        if self.total_size > self.size_limit:
            raise InvalidValueError(
                f"the model's nodes have more than {self.size_limit} numbers together, {FACTOR} times those in its "
                f"file and {build.LARGEST} more: export a smaller one"
            )

    def _call(self, node: onnx.NodeProto) -> OnnxCall:
        """The node with its inputs translated, as the argument of a translation."""
        name = node.name or next((o for o in node.output if o), node.op_type)
        inputs = tuple(self.tensors[i] if i else None for i in node.input)
        used = max((i + 1 for i, o in enumerate(node.output) if o in self.used), default=1)
        attributes = {a.name: _attribute(a, f"attribute {a.name!r} of {name!r}") for a in node.attribute}
        return OnnxCall(
            kind=node.op_type,
            name=name,
            opset=opset(self.model),
            inputs=inputs,
            attributes=attributes,
            outputs=len(node.output),
            used=used,
            output=node.output[0],
        )

    def _description(self, node: onnx.NodeProto) -> str:
        """The node's operator, name and input shapes, for messages."""
        return f"{_operator(node)} {self._place(node)}"

    def _place(self, node: onnx.NodeProto) -> str:
        """The node's name and input shapes."""
        shapes = ", ".join(str(list(self.tensors[i].shape)) if i in self.tensors else "?" for i in node.input)
        return f"{node.name or node.output[0]!r} of inputs ({shapes})"

    def _problem(self, node: onnx.NodeProto, reason: str) -> None:
        self.problems.append(UnreadPart(_operator(node), self._place(node), reason))


def _operator(node: onnx.NodeProto) -> str:
    """The operator of a node, with its domain if that is not the standard's."""
    return f"{node.domain}.{node.op_type}" if standard(node.domain) else node.op_type


def _typed(out: Node, call: OnnxCall) -> Node:
    """A folded constant, converted to the dtype of the node's first floating-point input, as ONNX computes it."""
    value = build.value_of(out)
    dtype = next((d for d in call.dtypes if d is not None and d.is_floating_point), None)
    if value is None or dtype is None or not value.is_floating_point() or call.kind in ("Cast", "CastLike", "EyeLike"):
        return out
    return build.constant(value.to(dtype), out.name)


def _attribute(proto: Any, where: str) -> Any:
    """The value of an attribute as a Python value or a tensor; `where` names it in errors."""
    onnx, _ = packages()
    value = onnx.helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return to_tensor(value, where) if isinstance(value, onnx.TensorProto) else value
