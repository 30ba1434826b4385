"""Translations of the aten ops that move, copy or drop numbers to Vertex's ops (see ops.py)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.from_torch.ops import TorchCall, Value, node, number, translates
from vertex_softmax.graph.ir import Node


@translates("clone", "alias", "detach", "contiguous", "lift_fresh_copy", "positive", "squeeze_copy", "native_dropout")
def _same(call: TorchCall, x: Node, *rest: Any, **keywords: Any) -> Any:
    if call.name.endswith("native_dropout") and rest[1]:
        raise UnsupportedModelError("dropout that is active outside training: call it with training=self.training")
    return (x,) if call.name.endswith("native_dropout") else x


@translates("dropout", "feature_dropout", "alpha_dropout")
def _dropout(call: TorchCall, x: Node, p: float, train: bool) -> Node:
    if train and p > 0:
        raise UnsupportedModelError("dropout that is active outside training: call it with training=self.training")
    return x


@translates("_to_copy", "to", "type_as")
def _cast(call: TorchCall, x: Node, *rest: Any, dtype: torch.dtype | None = None, **keywords: Any) -> Node:
    """A cast between floating-point types is the identity in real arithmetic."""
    kinds = [v for v in (dtype, *rest) if isinstance(v, torch.dtype)]
    if kinds and not kinds[0].is_floating_point:
        raise UnsupportedModelError(f"a cast to {kinds[0]} is not continuous in the perturbed input")
    return x


@translates("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "view_copy")
def _reshape(call: TorchCall, x: Node, *rest: Any) -> Node:
    if all(isinstance(n, int) for n in call.shape):
        return build.reshape(x, call.shape, call.name)
    # a size that torch.export could not know, as it depends on ids (which tokens a mask selects): here they are known
    op, empty = getattr(torch.ops.aten, call.name.rpartition("/")[2]), torch.empty(x.shape, device="meta")
    return build.reshape(x, tuple(op(empty, *rest).shape), call.name)


@translates("copy")
def _copy(call: TorchCall, x: Value, source: Value, *rest: Any) -> Node:
    """The result of the assignment x[...] = source."""
    return build.expand(node(source), call.shape, call.name)


@translates("sym_size")
def _size(call: TorchCall, x: Node, dim: int) -> int:
    return x.shape[dim]


@translates("permute")
def _permute(call: TorchCall, x: Node, dims: Sequence[int]) -> Node:
    return build.permute(x, dims, call.name)


@translates("transpose")
def _transpose(call: TorchCall, x: Node, a: int, b: int) -> Node:
    return build.transpose(x, a, b, call.name)


@translates("t", "numpy_T", "mT")
def _matrix_transpose(call: TorchCall, x: Node) -> Node:
    return build.permute(x, range(len(x.shape))[::-1], call.name) if len(x.shape) < 3 else _transpose(call, x, -1, -2)


@translates("expand", "broadcast_to")
def _expand(call: TorchCall, x: Node, *rest: Any, **keywords: Any) -> Node:
    return build.expand(x, call.shape, call.name)


@translates("repeat", "tile")
def _repeat(call: TorchCall, x: Node, times: Sequence[int]) -> Node:
    """Each dimension of size n is reshaped to (1, n), expanded to (times, n) and merged."""
    dims = (1,) * (len(times) - len(x.shape)) + x.shape
    split = [v for n in dims for v in (1, n)]
    wide = [v for n, k in zip(dims, times, strict=True) for v in (k, n)]
    y = build.expand(build.reshape(x, split, call.name), wide, call.name)
    return build.reshape(y, call.shape, call.name)


@translates("repeat_interleave")
def _repeat_interleave(call: TorchCall, x: Node, times: int, dim: int | None = None, **keywords: Any) -> Node:
    if not isinstance(times, int):
        raise UnsupportedModelError("repeat_interleave with different counts")
    if dim is None:
        x, dim = build.reshape(x, (-1,), call.name), 0
    dim %= len(x.shape)
    head, tail = x.shape[: dim + 1], x.shape[dim + 1 :]
    wide = build.expand(build.reshape(x, (*head, 1, *tail), call.name), (*head, times, *tail), call.name)
    return build.reshape(wide, call.shape, call.name)


@translates("slice")
def _slice(
    call: TorchCall, x: Node, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Node:
    return build.slice_(x, dim, 0 if start is None else start, x.shape[dim] if stop is None else stop, step, call.name)


@translates("narrow")
def _narrow(call: TorchCall, x: Node, dim: int, start: int, length: int) -> Node:
    start = start % x.shape[dim] if start < 0 else start
    return build.slice_(x, dim, start, start + length, 1, call.name)


@translates("select")
def _select(call: TorchCall, x: Node, dim: int, index: int) -> Node:
    return build.select(x, dim, index, call.name)


@translates("split_with_sizes", "split", "chunk")
def _split(call: TorchCall, x: Node, sizes: Any, dim: int = 0) -> tuple[Node, ...]:
    if isinstance(sizes, int):
        raise UnsupportedModelError("split by a size should have been decomposed; use split with a list of sizes")
    ends = list(itertools.accumulate(sizes, initial=0))
    return tuple(build.slice_(x, dim, a, b, 1, call.name) for a, b in itertools.pairwise(ends))


@translates("unbind")
def _unbind(call: TorchCall, x: Node, dim: int = 0) -> tuple[Node, ...]:
    return tuple(build.select(x, dim, i, call.name) for i in range(x.shape[dim]))


@translates("cat", "concat")
def _concat(call: TorchCall, xs: Sequence[Value], dim: int = 0) -> Node:
    nodes = [node(x) for x in xs]
    return build.concat([n for n in nodes if n.shape != (0,)], dim, call.name)


@translates("stack")
def _stack(call: TorchCall, xs: Sequence[Value], dim: int = 0) -> Node:
    nodes = [node(x) for x in xs]
    dim %= len(nodes[0].shape) + 1
    wide = [build.reshape(n, (*n.shape[:dim], 1, *n.shape[dim:]), call.name) for n in nodes]
    return build.concat(wide, dim, call.name)


@translates("index_select")
def _index_select(call: TorchCall, x: Node, dim: int, index: Value) -> Node:
    return build.take(x, dim, torch.as_tensor(number(index, "the index")), call.name)


@translates("flip")
def _flip(call: TorchCall, x: Node, dims: Sequence[int]) -> Node:
    for d in dims:
        x = build.take(x, d, torch.arange(x.shape[d]).flip(0), call.name)
    return x


@translates("roll")
def _roll(call: TorchCall, x: Node, shifts: Sequence[int], dims: Sequence[int] = ()) -> Node:
    if len(dims) != len(shifts):
        raise UnsupportedModelError("roll without dimensions")
    for shift, d in zip(shifts, dims, strict=True):
        x = build.take(x, d, torch.arange(x.shape[d]).roll(shift), call.name)
    return x


@translates("index", "gather", "take", "diagonal", "unfold")
def _gather(call: TorchCall, x: Node, *rest: Any, **keywords: Any) -> Node:
    """Indexing with constant indices: the same indexing of 0, 1, 2, … gives the source of every number."""
    name = call.name.rpartition("/")[2]
    rest = tuple(number(r, "an index") for r in rest)
    if name == "index":
        rest = ([number(i, "an index") for i in rest[0]],)
        used = [d for d, i in enumerate(rest[0]) if i is not None]
        index = rest[0][used[0]]
        if len(used) == 1 and index.dim() == 1 and index.dtype != torch.bool:
            return build.take(x, used[0], index % x.shape[used[0]], call.name)
    positions = torch.arange(math.prod(x.shape)).reshape(x.shape)
    picked: Tensor = getattr(torch.ops.aten, name)(positions, *rest, **keywords)
    flat = build.take(build.reshape(x, (-1,), call.name), 0, picked.reshape(-1), call.name)
    return build.reshape(flat, picked.shape, call.name)


@translates("as_strided")
def _as_strided(
    call: TorchCall, x: Node, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Node:
    """The numbers at given places in memory, where x lies with its own strides (as average pooling writes its result).

    The place of each number of x is computed from x's strides; only places that x itself fills can be read.
    """
    if offset or len(call.strides) != len(x.shape):
        raise UnsupportedModelError("as_strided with an offset: use view, permute or indexing")
    places = torch.zeros(x.shape, dtype=torch.int64)
    for d, (n, step) in enumerate(zip(x.shape, call.strides, strict=True)):
        places = places + (torch.arange(n) * step).reshape(-1, *[1] * (len(x.shape) - 1 - d))
    reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    memory = torch.full((max(int(places.max()), reach) + 1,), -1)
    memory[places.reshape(-1)] = torch.arange(places.numel())
    picked = memory.as_strided(list(size), list(stride))
    if len(places.unique()) < places.numel() or bool((picked < 0).any()):
        raise UnsupportedModelError("as_strided reads memory that its argument does not fill: use view or indexing")
    flat = build.take(build.reshape(x, (-1,), call.name), 0, picked.reshape(-1), call.name)
    return build.reshape(flat, picked.shape, call.name)


@translates("constant_pad_nd")
def _pad(call: TorchCall, x: Node, pad: Sequence[int], value: float = 0.0) -> Node:
    for i in range(len(pad) // 2):
        dim = len(x.shape) - 1 - i
        before, after = pad[2 * i], pad[2 * i + 1]
        x = build.slice_(x, dim, max(-before, 0), x.shape[dim] - max(-after, 0), 1, call.name)
        borders = [(*x.shape[:dim], max(n, 0), *x.shape[dim + 1 :]) for n in (before, after)]
        first, last = (build.constant(torch.full(b, float(value), dtype=torch.float64)) for b in borders)
        x = build.concat([n for n in (first, x, last) if n.shape[dim] > 0], dim, call.name)
    return x


@translates("slice_scatter", "select_scatter")
def _scatter(call: TorchCall, x: Value, part: Value, dim: int = 0, *where: Any, **keywords: Any) -> Node:
    """x with a part replaced: the same op on positions gives the sources, then one gather from both concatenated."""
    a, b = node(x), node(part)
    n = math.prod(a.shape)
    positions = torch.arange(n).reshape(a.shape)
    inner = n + torch.arange(math.prod(b.shape)).reshape(b.shape)
    op = getattr(torch.ops.aten, call.name.rpartition("/")[2])
    picked: Tensor = op(positions, inner, dim, *where, **keywords)
    both = build.concat([build.reshape(v, (-1,), call.name) for v in (a, b)], 0, call.name)
    return build.reshape(build.take(both, 0, picked.reshape(-1), call.name), picked.shape, call.name)
