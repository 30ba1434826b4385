"""A PyTorch module as a graph of ops, through torch.export.

Invariant: the graph computes what the module computes in eval mode, in real arithmetic: constants are the module's, in
float64; a cast between floating-point types is the identity. Every import is replayed against the module before it is
returned.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Interpreter
from torch.fx import Node as Fx
from torch.fx.node import map_arg

from vertex_softmax.errors import InternalError, InvalidTypeError, InvalidValueError, UnsupportedModelError
from vertex_softmax.graph import build, torch_attention, torch_shapes
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.graph.masks import check_masks, move_masks
from vertex_softmax.graph.torch_ops import TRANSLATIONS, Call

_ = torch_attention, torch_shapes  # their translations are registered by importing them

aten = torch.ops.aten
KEPT = ["scaled_dot_product_attention", "layer_norm", "rms_norm", "linear", "matmul", "softmax.int", "log_softmax.int"]
KEPT += ["logsumexp", "silu", "gelu", "conv1d", "conv2d", "conv3d", "softplus", "elu"]
"""Ops that torch.export shall not take apart: each is one op here, or one line in an error message."""
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
SHAPE_ONLY = ("full_like", "zeros_like", "ones_like", "empty_like", "new_full", "new_zeros", "new_ones", "new_empty")
"""Ops that look at the shape of their first argument alone: their value is a constant."""
HINTS = {
    "a branch on perturbed values: use relu, clamp or a constant mask": "gt lt ge le eq ne where logical_not",
    "an index that depends on perturbed values: return logits, the property compares them": "argmax argmin topk sort",
    "use average pooling, or amax over a reshaped view": "max_pool2d max_pool2d_with_indices max_pool1d",
    "use ReLU, GELU, SiLU, tanh, sigmoid or exp": "elu softplus mish hardswish hardsigmoid log1p expm1 sin cos",
    "it is not continuous": "floor ceil round sign trunc fmod remainder",
    "ids that are perturbed: use perturb='embedding'": "embedding",
    "a random number: the model has to be a function of its input": "rand rand_like randn randn_like bernoulli",
}

BEYOND = (
    "the model's own numbers are finite, but not those of its graph: something on the way underflows or overflows, as "
    "log_softmax does where logits are more than 745 apart and logsumexp beyond 709. Return the logits themselves "
    "(margins of log_softmax are margins of its logits), or scale them down"
)
NO_HINT = "Vertex has no such op: write it with +, *, @, relu, exp, softmax, … or open an issue"


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
    `kwargs`. Of a model's output, `.logits` are taken if it has them, else the first tensor of a tuple or mapping.

    perturb="embedding": the example holds token ids, and the graph's input is the output (1, tokens, d) of their first
    embedding; what else depends on the ids (masks, positions, other tables) stays as it is at the example.

    Additive masks: an entry of −1e30 or less (−inf, the least float32) in scores + mask means that the key has weight
    0, which it becomes exactly; greater entries (−1e4, −1e9) are added as they are. A row with all keys masked is
    refused.

    batch_dim: where the batch of 1 stands in the example; None if the model takes unbatched input.
    """
    arguments, keywords = _arguments(example, kwargs)
    first = None if arguments else next(iter(keywords), None)
    given = _check_example(arguments[0] if arguments else keywords.get(str(first)), perturb, batch_dim)
    dtype = _check_module(module, given)
    x = _constant(given)
    rest = {name: _constant(value) for name, value in keywords.items()}
    wrapped = _Logits(_double(module, dtype), [_constant(a) for a in arguments], rest, first)
    with _traceable(), torch.no_grad():
        expected = wrapped(x)
        if not isinstance(expected, Tensor):
            raise InvalidTypeError(f"the module returned {type(expected).__name__}, not a tensor or logits")
        exported = _export(wrapped, x)
        reader = _Reader(exported, x, perturb, dtype)
        graph = move_masks(reader.read())
        check_masks(graph)
        _replay(graph, wrapped, x, reader)
    return graph


class _Logits(nn.Module):
    """The user's module as a function of one tensor to one tensor; everything else is a constant."""

    def __init__(
        self, module: nn.Module, arguments: Sequence[Any], keywords: dict[str, Any], first: str | None
    ) -> None:
        super().__init__()
        self.module = module
        self.rest = (tuple(arguments[1:]), keywords, first)

    def forward(self, x: Tensor) -> Any:
        """logits, or the first tensor."""
        rest, keywords, first = self.rest
        if first is None:
            return _first(self.module(x, *rest, **keywords))
        return _first(self.module(*rest, **{**keywords, first: x}))


def _first(out: Any) -> Any:
    if isinstance(out, Mapping):
        return out["logits"] if "logits" in out else _first(list(out.values()))
    if isinstance(out, list | tuple):
        return out.logits if hasattr(out, "logits") else next((o for o in out if isinstance(o, Tensor)), None)
    return out.logits if not isinstance(out, Tensor) and hasattr(out, "logits") else out


# Arguments -----------------------------------------------------------------------------------------------------------


def _constant(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach().cpu().clone()
        return value.double() if value.is_floating_point() else value
    return value


def _arguments(example: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    keywords = dict(kwargs or {})
    if isinstance(example, Mapping):
        return (), {**example, **keywords}
    return example if isinstance(example, tuple) else (example,), keywords


def _check_example(x: Any, perturb: Any, batch_dim: int | None) -> Tensor:
    if not isinstance(perturb, str):
        raise UnsupportedModelError(
            f"perturb is {perturb!r}: one input is perturbed, the others are constants; perturb='input' or 'embedding'"
        )
    if perturb not in ("input", "embedding"):
        raise InvalidValueError(f"perturb is {perturb!r}; choose 'input' or 'embedding'")
    if not isinstance(x, Tensor):
        raise InvalidTypeError(
            f"example is {type(x).__name__}; give a tensor with a batch of 1, such as torch.zeros(1, ...)"
        )
    if batch_dim is not None and (not -x.dim() <= batch_dim < x.dim() or x.shape[batch_dim] != 1):
        raise InvalidValueError(
            f"example has shape {tuple(x.shape)}; dimension {batch_dim} has to be a batch of 1 "
            f"(batch_dim=1 for batch_first=False, batch_dim=None without a batch)"
        )
    if perturb == "input" and not x.is_floating_point():
        raise InvalidTypeError(
            f"example is {x.dtype}; perturbed inputs are floating point. For token ids: perturb='embedding'"
        )
    if perturb == "embedding" and (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool):
        raise InvalidTypeError(f"example is {x.dtype}; perturb='embedding' takes integer token ids")
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise InvalidValueError("example holds NaN or infinity")
    return x


def _check_module(module: nn.Module, x: Tensor) -> torch.dtype:
    """The dtype the module computes norms in (half precision: float32), once it is in eval mode with finite weights."""
    if not isinstance(module, nn.Module):
        raise InvalidTypeError(f"module is {type(module).__name__}; give a torch.nn.Module")
    for name, part in module.named_modules():
        if part.training:
            raise UnsupportedModelError(f"{name or 'the module'} is in train mode: call module.eval() first")
    dtype = x.dtype
    for kind, named in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, value in named:
            if value.is_complex():
                raise UnsupportedModelError(f"{kind} {name} is complex")
            if not value.is_floating_point():
                continue
            dtype = value.dtype if kind == "parameter" else dtype
            # −inf in a buffer is a mask
            bad = ~value.isfinite() if kind == "parameter" else value.isnan() | value.isposinf()
            if bool(bad.any()):
                raise InvalidValueError(f"{kind} {name} holds NaN or infinity; load finite weights")
    return torch.float64 if dtype == torch.float64 else torch.float32


def _double(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in float64 on the CPU, which computes the same but for rounding."""
    twin = copy.deepcopy(module).cpu().double()
    for part in twin.modules():
        if isinstance(part, nn.RMSNorm) and part.eps is None:
            part.eps = torch.finfo(dtype).eps  # what it was in the model's own precision
        if isinstance(part, nn.TransformerEncoder):
            part.register_forward_pre_hook(_trust_mask("is_causal"), with_kwargs=True)
        if isinstance(part, nn.TransformerDecoder):
            part.register_forward_pre_hook(_trust_mask("tgt_is_causal"), with_kwargs=True)
    return twin


def _trust_mask(hint: str) -> Callable[..., Any]:
    """is_causal=None makes torch look into the mask for a faster kernel; False takes the mask as it is: the same."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        position = 3 if hint == "is_causal" else 6
        given = args[position] if len(args) > position else kwargs.get(hint)
        return (args, kwargs) if given is not None else (args[:position], {**kwargs, hint: False})

    return hook


# Tracing -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _traceable() -> Iterator[None]:
    """Without the fused kernels of nn.TransformerEncoder, which hide what is computed; as it was, afterwards."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _export(wrapped: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    table = torch.export.default_decompositions()
    for name in KEPT:
        packet, _, overload = name.partition(".")
        table.pop(getattr(getattr(aten, packet), overload or "default"), None)
    try:
        exported = torch.export.export(wrapped, (x,), strict=False)
        decomposed: torch.export.ExportedProgram = exported.run_decompositions(table)
    except Exception as error:  # torch.export has no root class of its errors
        reason = str(error).strip().partition("\n")[0]
        raise UnsupportedModelError(
            f"torch.export cannot trace the module: {type(error).__name__}: {reason}\n"
            "Control flow and shapes may not depend on the values of tensors; give every size as a Python number."
        ) from error
    return decomposed


class _Reader:
    """One walk over the exported program: what depends on the input becomes nodes, the rest is computed."""

    def __init__(self, exported: torch.export.ExportedProgram, x: Tensor, perturb: str, dtype: torch.dtype) -> None:
        self.exported, self.x, self.dtype = exported, x, dtype
        self.found: dict[Fx, Any] = {}
        self.problems: list[str] = []
        self.rounded = False
        self.fixed = self._placeholders()
        ids = next(n for n in exported.graph.nodes if n.name in exported.graph_signature.user_inputs)
        self.cut = [ids] if perturb == "input" else self._embeddings(ids)
        self.input = build.source(self.cut[0].meta["val"].shape)

    def _placeholders(self) -> dict[str, Tensor]:
        signature, state = self.exported.graph_signature, {**self.exported.state_dict, **self.exported.constants}
        changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
        if changed:
            raise UnsupportedModelError(
                f"the module changes {', '.join(changed)} when it is called; it has to be a function"
            )
        fixed: dict[str, Tensor] = {name: self.x for name in signature.user_inputs if isinstance(name, str)}
        for held in (
            signature.inputs_to_parameters,
            signature.inputs_to_buffers,
            signature.inputs_to_lifted_tensor_constants,
        ):
            fixed.update({name: state[target].detach() for name, target in held.items()})
        return fixed

    def _embeddings(self, ids: Fx) -> list[Fx]:
        """The first embedding of the ids, and others that look up the same ids in the same table."""

        def looks_up(n: Fx) -> bool:
            at = n.args[1]
            while isinstance(at, Fx) and at is not ids and _op_name(at) in SAME_IDS:
                at = at.args[0]
            return at is ids

        nodes = [n for n in self.exported.graph.nodes if _op_name(n) == "embedding" and looks_up(n)]
        if not nodes:
            raise UnsupportedModelError(
                "perturb='embedding': no embedding of the ids was found; pass embeddings with perturb='input' instead"
            )
        return [n for n in nodes if n.args[0] is nodes[0].args[0] and n.meta["val"].shape == nodes[0].meta["val"].shape]

    def read(self) -> Graph:
        """The graph; one error lists everything that has no translation."""
        output: Any = None
        for n in self.exported.graph.nodes:
            if n in self.cut:
                self.found[n] = self.input
            elif n.op == "placeholder":
                self.found[n] = self.fixed[n.name]
            elif n.op == "output":
                output = map_arg(n.args[0], self.found.__getitem__)[0]
            elif n.users:
                self.found[n] = self._value(n)
        if self.problems:
            lines = "\n".join(f"  {p}" for p in self.problems)
            raise UnsupportedModelError(f"the model holds {len(self.problems)} unsupported operation(s):\n{lines}")
        if not isinstance(output, Node):
            raise UnsupportedModelError("the output does not depend on the perturbed input")
        return Graph(self.input, output)

    @property
    def start(self) -> Tensor:
        """The graph's input at the example."""
        n = self.cut[0]
        if n.op == "placeholder":
            return self.x
        return n.target(*map_arg(n.args, self.found.__getitem__), **n.kwargs)  # type: ignore[operator,no-any-return]

    def run(self, point: Tensor) -> Tensor:
        """The exported program's output with the graph's input given."""
        names = [n.name for n in self.exported.graph.nodes if n.op == "placeholder"]
        out = _FromCut(self.exported.graph_module, self.cut, point).run(*(self.fixed[name] for name in names))
        return out[0]  # type: ignore[no-any-return]

    def _value(self, n: Fx) -> Any:
        args: Any = map_arg(n.args, self.found.__getitem__)
        kwargs: Any = map_arg(n.kwargs, self.found.__getitem__)
        if n.op == "call_function" and n.target is operator.getitem and isinstance(args[0], tuple | list):
            if args[1] < len(args[0]):
                return args[0][args[1]]
            return self._problem(n, "only its first result is supported")
        if not _any_node((args, kwargs)):
            return n.target(*args, **kwargs)  # type: ignore[operator]
        name = _op_name(n)
        if name in SHAPE_ONLY:
            return n.target(torch.zeros(args[0].shape, dtype=torch.float64), *args[1:], **kwargs)  # type: ignore[operator]
        translation = TRANSLATIONS.get(name)
        if translation is None:
            return self._problem(n, next((hint for hint, names in HINTS.items() if name in names.split()), NO_HINT))
        value = n.meta.get("val")
        self._note_rounding(n, kwargs)
        try:
            call = Call(_place(n, name), tuple(value.shape) if isinstance(value, Tensor) else (), self.dtype)
            return translation(call, *args, **kwargs)
        except (UnsupportedModelError, InvalidValueError) as error:
            return self._problem(n, str(error))
        except TypeError as error:
            return self._problem(n, f"arguments that Vertex does not know: {error}")

    def _note_rounding(self, n: Fx, kwargs: Mapping[str, Any]) -> None:
        values = n.meta.get("val")
        kinds = [v.dtype for v in (values if isinstance(values, tuple | list) else [values]) if isinstance(v, Tensor)]
        no_eps = _op_name(n) == "rms_norm" and len(n.args) < 4 and kwargs.get("eps") is None
        self.rounded |= any(k in (torch.float32, torch.float16, torch.bfloat16) for k in kinds) or no_eps

    def _problem(self, n: Fx, why: str) -> Any:
        """Note it, and go on with a stand-in of the same shape, to find all problems at once."""
        line = next((s for s in reversed((n.meta.get("stack_trace") or "").splitlines()) if "File" in s), "").strip()
        self.problems.append(f"{_place(n, _op_name(n))} ({n.target}){f' at {line}' if line else ''}: {why}")
        value = n.meta.get("val")
        if isinstance(value, tuple | list):
            return tuple(build.source(v.shape) for v in value)
        return build.source(getattr(value, "shape", ()))


def _op_name(n: Fx) -> str:
    target = n.target
    return target._schema.name.partition("::")[2] if isinstance(target, torch._ops.OpOverload) else str(target)


def _place(n: Fx, name: str) -> str:
    stack = list((n.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]).removeprefix("module").removeprefix(".") if stack else ""
    return f"{path}/{name}" if path else name


def _any_node(values: Any) -> bool:
    if isinstance(values, tuple | list):
        return any(_any_node(v) for v in values)
    return any(_any_node(v) for v in values.values()) if isinstance(values, dict) else isinstance(values, Node)


# Replay --------------------------------------------------------------------------------------------------------------


class _FromCut(Interpreter):
    """The exported program with the embedding's output given."""

    def __init__(self, module: torch.fx.GraphModule, cut: list[Fx], value: Tensor) -> None:
        super().__init__(module)
        self.names, self.value = {n.name for n in cut}, value

    def run_node(self, n: Fx) -> Any:
        """A node's value; the given one at the cut."""
        value = super().run_node(n) if n.op == "placeholder" or n.name not in self.names else None
        return self.value if n.name in self.names else value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function's value; views may have to copy, as the strides are not those of the export."""
        if target is torch.ops.aten.view.default:
            return args[0].reshape(args[1])
        return super().call_function(target, args, kwargs)


def _replay(graph: Graph, wrapped: nn.Module, x: Tensor, reader: _Reader) -> None:
    """Refuse a graph that differs from the module at the example, or from the exported program at points around it."""
    generator = torch.Generator().manual_seed(0)
    tolerance = 1e-3 if reader.rounded else 1e-10
    for size in (0.0, 0.01, 1.0):
        point = reader.start + size * torch.randn(reader.start.shape, generator=generator, dtype=torch.float64)
        truth = wrapped(x) if size == 0.0 else reader.run(point)
        got = graph.evaluate(point)
        if bool(truth.isfinite().all()) and got.shape == truth.shape and not bool(got.isfinite().all()):
            raise UnsupportedModelError(BEYOND)
        off = (got - truth).abs().max() if got.shape == truth.shape else torch.tensor(torch.inf)
        if bool(truth.isfinite().all()) and not bool(off <= tolerance * (1 + truth.abs().max())):
            raise InternalError(f"the graph differs from the module by {float(off):.3g}; please report the model")
