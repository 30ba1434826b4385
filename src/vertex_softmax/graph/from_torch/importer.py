"""The import of a PyTorch module as a graph of ops, through torch.export.

Invariant: the graph computes what the module computes in eval mode, in real arithmetic: constants are the module's, in
float64; a cast between floating-point types is the identity. Every imported graph is compared with the module itself,
run eagerly, before it is returned (replay.py).

`Program` is the program that torch.export recorded for one input shape; it is translated once for every row of token
ids, since masks, positions and indices are computed from them (`Reading`).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Interpreter
from torch.fx import Node as Fx
from torch.fx.node import map_arg

from vertex_softmax.foundation.errors import InvalidValueError, UnsupportedModelError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.graph import build
from vertex_softmax.graph.from_torch import activations, attention, shapes, windows
from vertex_softmax.graph.from_torch.hints import HINTS, NO_HINT, why_not_traced
from vertex_softmax.graph.from_torch.module import (
    OriginalModule,
    TokenLookUp,
    check_example,
    constant,
    one_at_a_time,
    traceable,
)
from vertex_softmax.graph.from_torch.ops import TRANSLATIONS, TorchCall
from vertex_softmax.graph.from_torch.replay import ReplayCase, replay
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.graph.masks import check_masks, move_masks
from vertex_softmax.graph.problems import UnreadPart, described, hint_for

_ = activations, attention, shapes, windows  # their translations are registered by importing them

aten = torch.ops.aten
KEPT = ["scaled_dot_product_attention", "layer_norm", "rms_norm", "linear", "matmul", "softmax.int", "log_softmax.int"]
KEPT += ["logsumexp", "silu", "gelu", "conv1d", "conv2d", "conv3d", "softplus", "elu"]
KEPT += ["mish", "hardswish", "hardsigmoid", "celu", "log_sigmoid", "prelu"]
"""Ops that torch.export must not decompose: each is one op here, or one line in an error message."""
SAME_IDS = (
    "clone",
    "view",
    "_to_copy",
    "to",
    "unsqueeze",
    "squeeze",
    "alias",
    "reshape",
    "expand",
    "detach",
    "contiguous",
)
"""Ops whose result has the same ids as their first argument."""
LOOK_UPS = ("embedding", "index", "index_select", "gather", "take", "embedding_bag", "_embedding_bag")
"""Ops that select rows of their first argument."""
UNWRITTEN = ("empty", "empty_like", "new_empty", "empty_strided")
"""Ops whose result is any memory: 0 here, since a module that reads it is no function of its input."""
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
SHAPE_ONLY = ("full_like", "zeros_like", "ones_like", "empty_like", "new_full", "new_zeros", "new_ones", "new_empty")
"""Ops that use only the shape of their first argument, so that their value is a constant."""


@full_precision()
@one_at_a_time()
def from_torch(
    module: nn.Module,
    example: Tensor | tuple[Any, ...] | Mapping[str, Any],
    *,
    perturb: str = "input",
    kwargs: Mapping[str, Any] | None = None,
    batch_dim: int | None = 0,
) -> Graph:
    """The graph that computes module(example, **kwargs) as a function of the example: one input, batch 1.

    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> from_torch(layer, torch.zeros(1, 5, 8)).output.shape
    (1, 5, 8)

    `module` has to be in eval mode; it is copied to float64 on the CPU and never changed. A tuple or mapping as
    `example` gives several arguments: the first is perturbed, the others (masks, positions) are constants, as are
    `kwargs`. The graph's output is the `.logits` of the model's output if it has them, else its first tensor.

    perturb="embedding": the example consists of token ids, and the graph's input is the output (1, tokens, d) of their
    first embedding; all else that depends on the ids (masks, positions, other tables) is fixed as at the example.

    Additive masks: an entry of −1e30 or less (−inf, the least float32) in scores + mask means that the key has weight
    0, which is then exact; greater entries (−1e4, −1e9) are added as they are. A row with all keys masked is refused.

    batch_dim: the dimension of the example that is the batch of 1; None if the model takes unbatched input.
    """
    original = OriginalModule(module, example, kwargs)
    x = constant(check_example(original.example, perturb, batch_dim))
    program = Program(original, x, perturb)
    reading = program.at(x)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, *reading.start.shape, generator=generator, dtype=torch.float64)
    points = torch.stack([reading.start, reading.start + 0.01 * noise[0], reading.start + noise[1]])
    replay(reading.graph, reading, original, [ReplayCase(None, points, reading.look_up)])
    return reading.graph


class Program:
    """The program that torch.export recorded of a module, for inputs of one shape."""

    def __init__(self, original: OriginalModule, x: Tensor, perturb: str) -> None:
        self.original, self.perturb = original, perturb
        with torch.no_grad():
            if perturb == "input":
                original.call(x)  # if the module cannot be called, its own error is clearer than torch.export's
            try:
                with traceable():
                    self.exported = _export(original.wrapped, x, original.half)
            except UnsupportedModelError:
                original.call(x)
                raise

    def at(self, x: Tensor) -> Reading:
        """The graph for this input (perturb='embedding': for these ids, (1, tokens)), not yet compared."""
        with torch.no_grad(), traceable():
            return Reading(self.exported, x, self.perturb, self.original)


def _export(wrapped: nn.Module, x: Tensor, half: frozenset[torch.dtype]) -> torch.export.ExportedProgram:
    """The exported program of a module, decomposed into aten's core ops and those of KEPT.

    `half`: the precisions below float32 that the module itself has; autocast to any other is refused.
    """
    table = torch.export.default_decompositions()
    for name in KEPT:
        packet, _, overload = name.partition(".")
        table.pop(getattr(getattr(aten, packet), overload or "default"), None)
    try:
        exported = torch.export.export(wrapped, (x,), strict=False)
        _refuse_autocast(exported, half)
        decomposed: torch.export.ExportedProgram = exported.run_decompositions(table)
    except UnsupportedModelError:
        raise
    except Exception as error:  # torch.export has no root class of its errors
        raise UnsupportedModelError(why_not_traced(error)) from error
    return decomposed


def _refuse_autocast(exported: torch.export.ExportedProgram, half: frozenset[torch.dtype]) -> None:
    """Raise if the module enters autocast itself: its copy in float64, which is exported, is not affected by it."""
    for part in exported.graph_module.modules():
        for n in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if str(n.target) == "wrap_with_autocast" and n.args[2] and n.args[1] not in half:
                raise UnsupportedModelError(
                    f"the module computes in {n.args[1]} within torch.autocast, which rounds too coarsely for its "
                    "graph to stand for it: leave autocast out of its forward"
                )


class Reading:
    """One translation of an exported program: values that depend on the input become nodes, the others are computed."""

    def __init__(
        self, exported: torch.export.ExportedProgram, x: Tensor, perturb: str, original: OriginalModule
    ) -> None:
        self.exported, self.x, self.dtype, self.half = exported, x, original.dtype, original.half
        self.words = original.table()
        """The table of input embeddings, if the module says which of its tables that is."""
        self.translated: dict[Fx, Any] = {}
        """The node or constant of every node of the exported program."""
        self.problems: list[UnreadPart] = []
        self.rounded = False
        """Whether a value that depends on the input has a lower precision than float64."""
        self.fixed = self._placeholders()
        self.argument = next(n for n in exported.graph.nodes if n.name in exported.graph_signature.user_inputs)
        """The placeholder of the perturbed argument."""
        self.entries = [self.argument] if perturb == "input" else self._embeddings()
        """The nodes of the exported program that become the graph's input."""
        self.look_up = None if perturb == "input" else TokenLookUp(self._name_of_table(), x)
        self.input = build.source(self.entries[0].meta["val"].shape)
        self.raw = self._read()
        """The graph as translated, with masks still in Shifts."""
        self.graph = move_masks(self.raw)
        check_masks(self.graph)

    def _placeholders(self) -> dict[str, Tensor]:
        """The values of the program's placeholders (parameters, buffers, constants, the argument) by name."""
        signature, state = self.exported.graph_signature, {**self.exported.state_dict, **self.exported.constants}
        changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
        if changed:
            raise UnsupportedModelError(
                f"the module changes {', '.join(changed)} when it is called; it has to be a function"
            )
        fixed: dict[str, Tensor] = {name: self.x for name in signature.user_inputs if isinstance(name, str)}
        for targets in (
            signature.inputs_to_parameters,
            signature.inputs_to_buffers,
            signature.inputs_to_lifted_tensor_constants,
        ):
            fixed.update({name: state[target].detach() for name, target in targets.items()})
        return fixed

    def _embeddings(self) -> list[Fx]:
        """The first look-up of the ids in their table, and all later ones of the same ids in the same table.

        If the module has several tables for its ids, the table is the one of its `get_input_embeddings`.
        """
        nodes = [n for n in self.exported.graph.nodes if _op_name(n) == "embedding" and self._same_ids(n.args[1])]
        nodes = self._of_words(nodes)
        if not nodes:
            raise UnsupportedModelError(
                "perturb='embedding': no embedding of the ids was found; pass embeddings with perturb='input' instead"
            )
        table, shape = nodes[0].args[0], nodes[0].meta["val"].shape
        if not isinstance(table, Fx) or table.op != "placeholder":
            raise UnsupportedModelError(
                f"{_location(nodes[0], 'embedding')}: the table of the ids is computed when the module is called; it "
                "has to be a parameter or a buffer. Or pass embeddings with perturb='input' instead"
            )
        if not nodes[0].meta["val"].is_floating_point():
            raise UnsupportedModelError(
                f"{_location(nodes[0], 'embedding')}: the table of the ids has the dtype {nodes[0].meta['val'].dtype}, "
                "in which embeddings cannot move; make it floating point"
            )
        self._check_ids(self.fixed[table.name], _location(nodes[0], "embedding"))
        entries = [n for n in nodes if self._is_table(n.args[0], table) and n.meta["val"].shape == shape]
        for n in self._after_ids():
            if n not in entries and _op_name(n) in LOOK_UPS and self._is_table(n.args[0], table):
                raise UnsupportedModelError(
                    f"{_location(n, _op_name(n))} looks other ids, made from those given, up in the table of the "
                    "embeddings that move (as an encoder-decoder does that shifts its ids): which of them moves is "
                    "ambiguous. Give the decoder's ids for themselves, read(module, kwargs={'decoder_input_ids': ...}) "
                    "of vertex_softmax.sets.loading, or a module that takes embeddings"
                )
        return entries

    def _of_words(self, nodes: list[Fx]) -> list[Fx]:
        """Those of the look-ups that use the table of input embeddings; all if there is only one table."""
        tables = [self.fixed.get(getattr(n.args[0], "name", "")) for n in nodes]
        pointers = [None if table is None else table.data_ptr() for table in tables]
        if self.words is not None and self.words.data_ptr() in pointers:
            return [n for n, pointer in zip(nodes, pointers, strict=True) if pointer == self.words.data_ptr()]
        if len(set(pointers)) > 1:
            raise UnsupportedModelError(
                f"the ids are looked up in {len(set(pointers))} tables, {_location(nodes[0], 'embedding')} first: "
                "which of them moves? Give the module a method get_input_embeddings() that returns the one, or pass "
                "embeddings with perturb='input' instead"
            )
        return nodes

    def _same_ids(self, n: Any) -> bool:
        """Whether a node has the given ids as its value, up to copies, casts and reshapes."""
        while isinstance(n, Fx) and n is not self.argument and _op_name(n) in SAME_IDS:
            n = n.args[0]
        return n is self.argument

    def _is_table(self, n: Any, table: Fx) -> bool:
        """Whether a node has the table as its value, possibly under another name (tied weights)."""
        while isinstance(n, Fx) and n.op != "placeholder" and _op_name(n) in SAME_IDS and n.args:
            n = n.args[0]
        if not isinstance(n, Fx) or n.name not in self.fixed:
            return False
        return n is table or self.fixed[n.name].data_ptr() == self.fixed[table.name].data_ptr()

    def _after_ids(self) -> list[Fx]:
        """All nodes of the exported program that depend on the ids."""
        dependent, seen = [], {self.argument}
        for n in self.exported.graph.nodes:
            if any(i in seen for i in n.all_input_nodes):
                seen.add(n)
                dependent.append(n)
        return dependent

    def other_uses(self) -> tuple[list[str], list[Tensor]]:
        """The names of ops that use the ids besides look-ups in the table; and the values of their comparisons.

        A comparison of an id with a constant depends on that id alone. Any other op may depend on several at once.
        """
        dependent = {self.argument, *self._after_ids()}
        others, values = [], []
        for n in self._after_ids():
            if n in self.entries or self._same_ids(n) or not any(self._same_ids(i) for i in n.all_input_nodes):
                continue
            if _op_name(n) in COMPARISONS and sum(i in dependent for i in n.all_input_nodes) == 1:
                values += [self.translated[n]] if n in self.translated else []
            elif _op_name(n) not in SHAPE_ONLY:
                others.append(_location(n, _op_name(n)))
        return others, values

    def _check_ids(self, table: Tensor, location: str) -> None:
        """Raise if an id is not a row of the table, which is looked up at `location`."""
        wrong = ((self.x < 0) | (self.x >= len(table))).nonzero()
        if len(wrong):
            index = tuple(wrong[0].tolist())
            raise InvalidValueError(
                f"id {int(self.x[index])} at token {index[-1]} is not in the table of {location}, which has "
                f"{len(table)} rows, counted from 0"
            )

    def _name_of_table(self) -> str:
        """The name of the embedding table in the user's module."""
        signature, table = self.exported.graph_signature, self.entries[0].args[0]
        name = table.name if isinstance(table, Fx) else ""
        targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        if name not in targets:
            raise UnsupportedModelError("the table of the ids is neither a parameter nor a buffer of the module")
        return str(targets[name]).removeprefix("module.")

    def _read(self) -> Graph:
        """The translated graph; a single error lists every op that has no translation."""
        output: Any = None
        for n in self.exported.graph.nodes:
            if n in self.entries:
                self._check_same(n)
                self.translated[n] = self.input
            elif n.op == "placeholder":
                self.translated[n] = self.fixed[n.name]
            elif n.op == "output":
                output = map_arg(n.args[0], self.translated.__getitem__)[0]
            elif n.users:
                self.translated[n] = self._value(n)
        if self.problems:
            raise UnsupportedModelError(described(self.problems))
        if not isinstance(output, Node):
            raise UnsupportedModelError("the output does not depend on the perturbed input")
        return Graph(self.input, output)

    def _check_same(self, n: Fx) -> None:
        """Raise if a look-up that starts the graph uses other ids than those given (after a cast, for instance)."""
        if n is self.argument:
            return
        index = map_arg(n.args[1], self.translated.__getitem__)
        if not isinstance(index, Tensor) or not torch.equal(index.reshape(-1).long(), self.x.reshape(-1).long()):
            raise UnsupportedModelError(f"{_location(n, 'embedding')} looks up other ids than those given")

    @property
    def start(self) -> Tensor:
        """The graph's input at the example: x itself, or for ids their rows in the table."""
        n = self.entries[0]
        if n is self.argument:
            return self.x
        return n.target(*map_arg(n.args, self.translated.__getitem__), **n.kwargs)  # type: ignore[operator,no-any-return]

    def values(self, point: Tensor) -> dict[Fx, Any]:
        """The value of every node of the exported program for this input of the graph."""
        names = [n.name for n in self.exported.graph.nodes if n.op == "placeholder"]
        run = _FromEntries(self.exported.graph_module, self.entries, point)
        with torch.no_grad(), traceable():
            run.run(*(self.x if name == self.argument.name else self.fixed[name] for name in names))
        return {n: run.seen[n.name] for n in self.exported.graph.nodes if n.name in run.seen}

    def first_difference(self, point: Tensor) -> str | None:
        """The location of the first node of the exported program whose value differs from its node in the graph.

        Differences of up to 1e-5 of the size count as rounding. None if no node differs.
        """
        with torch.no_grad():
            ours = self.raw.values(point)
            for n, theirs in self.values(point).items():
                node = self.translated.get(n)
                if isinstance(node, Node) and node in ours and isinstance(theirs, Tensor):
                    mine = ours[node]
                    size = float(theirs.abs().nan_to_num().max()) if theirs.numel() else 0.0
                    if mine.shape != theirs.shape or float((mine - theirs).abs().nan_to_num().max()) > 1e-5 * size:
                        return f"{_location(n, _op_name(n))!r} ({n.target})"
        return None

    def parts(self, point: Tensor) -> dict[str, Tensor]:
        """The last value that each submodule computed in the exported program, by the submodule's name."""
        last: dict[str, Tensor] = {}
        for n, value in self.values(point).items():
            for path, _ in (n.meta.get("nn_module_stack") or {}).values():
                if isinstance(value, Tensor):
                    last[str(path).removeprefix("module").removeprefix(".")] = value
        return last

    def _value(self, n: Fx) -> Any:
        """The node(s) or constant(s) of a call in the exported program."""
        args: Any = map_arg(n.args, self.translated.__getitem__)
        kwargs: Any = map_arg(n.kwargs, self.translated.__getitem__)
        if n.op == "call_function" and n.target is operator.getitem and isinstance(args[0], tuple | list):
            if args[1] < len(args[0]):
                return args[0][args[1]]
            return self._problem(n, "only its first result is supported")
        if not _any_node((args, kwargs)):
            return self._computed(n, args, kwargs)
        name = _op_name(n)
        if name in SHAPE_ONLY:
            return n.target(torch.zeros(args[0].shape, dtype=torch.float64), *args[1:], **kwargs)  # type: ignore[operator]
        translation = TRANSLATIONS.get(name)
        if translation is None:
            return self._problem(n, hint_for(name, HINTS, NO_HINT))
        value = n.meta.get("val")
        self._note_rounding(n, kwargs)
        try:
            shape = tuple(value.shape) if isinstance(value, Tensor) else ()
            call = TorchCall(_location(n, name), shape, self.dtype, _strides(n))
            result = translation(call, *args, **kwargs)
        except (UnsupportedModelError, InvalidValueError) as error:
            return self._problem(n, str(error))
        except TypeError as error:
            return self._problem(n, f"arguments that Vertex does not know: {error}")
        wrong = self._wrong_dtype(value, result)
        return result if wrong is None else self._problem(n, wrong)

    def _wrong_dtype(self, value: Any, result: Any) -> str | None:
        """Why no node can stand for the value of a call, or for one of several, because of its dtype; None if one can.

        Of several values only those count that were translated, not the indices of a maximum or the mask of a dropout.
        """
        values, results = ((of if isinstance(of, tuple | list) else (of,)) for of in (value, result))
        pairs = zip(values, results, strict=False)
        for kind in (of.dtype for of, node in pairs if isinstance(of, Tensor) and isinstance(node, Node)):
            if not kind.is_floating_point:
                return f"its result has the dtype {kind}, which cuts fractions off: compute in floating point"
            if kind.itemsize < 4 and kind not in self.half:
                return f"its result is rounded to {kind}, too coarsely for real numbers to stand for it: use float32"
        return None

    def _computed(self, n: Fx, args: Any, kwargs: Any) -> Any:
        """The value of a call that does not depend on the perturbed input."""
        try:
            value = n.target(*args, **kwargs)  # type: ignore[operator]
            return torch.zeros_like(value) if _op_name(n) in UNWRITTEN else value
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise UnsupportedModelError(
                f"{_location(n, _op_name(n))} ({n.target}) cannot be computed at this input: {error}"
            ) from error

    def _note_rounding(self, n: Fx, kwargs: Mapping[str, Any]) -> None:
        """Set `rounded` if a call computes in less than float64, or has an eps that depends on the precision."""
        values = n.meta.get("val")
        kinds = [v.dtype for v in (values if isinstance(values, tuple | list) else [values]) if isinstance(v, Tensor)]
        no_eps = _op_name(n) == "rms_norm" and len(n.args) < 4 and kwargs.get("eps") is None
        self.rounded |= any(k in (torch.float32, torch.float16, torch.bfloat16) for k in kinds) or no_eps

    def _problem(self, n: Fx, why: str) -> Any:
        """Record a problem and return a placeholder of the same shape, so that all problems are reported at once."""
        line = next((s for s in reversed((n.meta.get("stack_trace") or "").splitlines()) if "File" in s), "").strip()
        place = f"{_location(n, _op_name(n))}{f' at {line}' if line else ''}"
        self.problems.append(UnreadPart(str(n.target), place, why))
        value = n.meta.get("val")
        if isinstance(value, tuple | list):
            return tuple(build.source(v.shape) for v in value)
        return build.source(getattr(value, "shape", ()))


def _op_name(n: Fx) -> str:
    """The name of the aten op that a node calls, without its overload."""
    target = n.target
    return target._schema.name.partition("::")[2] if isinstance(target, torch._ops.OpOverload) else str(target)


def _location(n: Fx, name: str) -> str:
    """The path of the submodule that a node comes from, and a name."""
    stack = list((n.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]).removeprefix("module").removeprefix(".") if stack else ""
    return f"{path}/{name}" if path else name


def _strides(n: Fx) -> tuple[int, ...]:
    """The strides of the first argument of a call, if it is a tensor."""
    first = n.args[0] if n.args else None
    value = first.meta.get("val") if isinstance(first, Fx) else None
    return tuple(value.stride()) if isinstance(value, Tensor) else ()


def _any_node(values: Any) -> bool:
    """Whether nested arguments contain a graph node."""
    if isinstance(values, tuple | list):
        return any(_any_node(v) for v in values)
    return any(_any_node(v) for v in values.values()) if isinstance(values, dict) else isinstance(values, Node)


# Values --------------------------------------------------------------------------------------------------------------


class _FromEntries(Interpreter):
    """Runs the exported program with `value` in place of the nodes `entries`; `seen` has the value of every node."""

    def __init__(self, module: torch.fx.GraphModule, entries: list[Fx], value: Tensor) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.names, self.value = {n.name for n in entries}, value
        self.seen: dict[str, Any] = {}

    def run_node(self, n: Fx) -> Any:
        """The value of a node, which is the given one at an entry."""
        value = super().run_node(n) if n.op == "placeholder" or n.name not in self.names else None
        self.seen[n.name] = value = self.value if n.name in self.names else value
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of a call; a view becomes a reshape, as strides may differ from those of the export."""
        if target is torch.ops.aten.view.default:
            return args[0].reshape(args[1])
        return super().call_function(target, args, kwargs)
