"""Translations of ONNX's Attention and RotaryEmbedding (opset 23), and of Einsum (see ops.py)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx.ops import OnnxCall, Unsupported, limited, number, translates
from vertex_softmax.graph.ir import Node
from vertex_softmax.graph.masks import split_mask
from vertex_softmax.ops import attention, elementwise


def heads(x: Node, count: int, name: str) -> Node:
    """(batch, length, heads · size) → (batch, heads, length, size); an input of four dimensions is unchanged."""
    if len(x.shape) == 4:
        return x
    if len(x.shape) != 3 or count <= 0 or x.shape[2] % count:
        raise Unsupported(f"{count} heads do not divide an input of shape {x.shape}")
    x = build.reshape(x, (*x.shape[:2], count, x.shape[2] // count), name)
    return build.permute(x, (0, 2, 1, 3), name)


@translates("Attention")
def _attention(call: OnnxCall) -> Node:
    """softmax(scale · Q Kᵀ + mask) V for each head; groups of query heads share a key head."""
    if call.used > 1 or call.has(4) or call.has(5):
        raise Unsupported("past and present keys, and the output of the scores, are not supported")
    name, flat = call.name, len(call[0].shape) == 3
    q = heads(call[0], int(call.get("q_num_heads", 0)), name)
    k, v = (heads(call[i], int(call.get("kv_num_heads", 0)), name) for i in (1, 2))
    k, v = _shared(k, q.shape[1], name), _shared(v, q.shape[1], name)
    scale = call.get("scale", None)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    scores = build.multiply(build.matmul(q, build.transpose(k, -1, -2, name), name), number(scale), name)
    cap = float(call.get("softcap", 0.0))
    if cap:
        if call.has(3) or call.get("is_causal", 0):
            raise Unsupported("softcap together with a mask is not supported")
        small = build.multiply(scores, number(1 / cap), name)
        scores = build.multiply(build.apply(elementwise.Tanh(), small, name=name), number(cap), name)
    masked, penalty, added = _mask(call, scores.shape)
    scores = scores if added is None else build.add(scores, build.constant(added), name)
    out = attend(scores, v, masked, penalty, name)
    if not flat:
        return out
    out = build.permute(out, (0, 2, 1, 3), name)
    return build.reshape(out, (*out.shape[:2], out.shape[2] * out.shape[3]), name)


def attend(scores: Node, values: Node, masked: Tensor | None, penalty: Tensor | None, name: str) -> Node:
    """softmax(scores) @ values, as one op if both are variable; `masked` and `penalty` are those of `Attention`."""
    if build.value_of(scores) is None and build.value_of(values) is None:
        return build.apply(attention.Attention(masked, penalty), scores, values, name=name)
    return build.matmul(build.softmax(scores, -1, name, masked, penalty), values, name)


def _shared(x: Node, count: int, name: str) -> Node:
    """(batch, key heads, …) → (batch, query heads, …): neighbouring query heads share a key head."""
    if x.shape[1] == count:
        return x
    if count % x.shape[1]:
        raise Unsupported(f"{count} query heads cannot share {x.shape[1]} key heads")
    return build.take(x, 1, torch.arange(count) // (count // x.shape[1]), name)


def _mask(call: OnnxCall, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(masked, penalty, added): where keys are masked, the finite masks, and what else is added; None if nothing."""
    masked = torch.zeros(limited(shape[-2:]), dtype=torch.bool)
    if call.get("is_causal", 0):
        masked = ~torch.ones(shape[-2:], dtype=torch.bool).tril()
    added: Tensor | None = None
    penalty: Tensor | None = None
    if call.has(3):
        mask = call.value(3, "the mask")
        if mask.dim() > 4 or mask.shape[-1] != shape[-1]:
            raise Unsupported(f"a mask of shape {tuple(mask.shape)} for scores of shape {shape} is not supported")
        added, mask_true, penalty = split_mask(mask)
        if penalty is not None:  # −∞ by is_causal remains −∞
            penalty = torch.where(masked, 0.0, penalty)
        masked = masked if mask_true is None else masked | mask_true
        added = added if bool(added.any()) else None
    if bool(masked.expand(np.broadcast_shapes(masked.shape, shape)).all(-1).any()):
        raise Unsupported("the mask masks every key of a row")
    return (masked if bool(masked.any()) else None), penalty, added


@translates("RotaryEmbedding")
def _rotary(call: OnnxCall) -> Node:
    """Each pair (a, b) of numbers of a head is rotated by an angle: (a cos − b sin, a sin + b cos)."""
    name, flat = call.name, len(call[0].shape) == 3
    x = heads(call[0], int(call.get("num_heads", 0)), name)
    cos, sin = call.value(1, "the cosines"), call.value(2, "the sines")
    if call.has(3):
        positions = call.value(3, "the positions").long()
        cos, sin = cos[positions], sin[positions]
    if cos.dim() != 3:
        raise Unsupported(f"cosines of shape {tuple(cos.shape)} without positions are not supported")
    c, s = build.constant(cos[:, None], name), build.constant(sin[:, None], name)
    size = int(call.get("rotary_embedding_dim", 0)) or x.shape[-1]
    rotated, rest = build.slice_(x, -1, 0, size, 1, name), build.slice_(x, -1, size, x.shape[-1], 1, name)
    pairs = bool(call.get("interleaved", 0))
    cuts = ((0, size, 2), (1, size, 2)) if pairs else ((0, size // 2, 1), (size // 2, size, 1))
    a, b = (build.slice_(rotated, -1, *cut, name) for cut in cuts)
    first = build.subtract(build.multiply(a, c, name), build.multiply(b, s, name), name)
    second = build.add(build.multiply(a, s, name), build.multiply(b, c, name), name)
    out = build.concat([first, second], -1, name)
    if pairs:
        out = build.take(out, -1, torch.arange(size).reshape(2, -1).mT.reshape(-1), name)
    out = out if size == x.shape[-1] else build.concat([out, rest], -1, name)
    if not flat:
        return out
    out = build.permute(out, (0, 2, 1, 3), name)
    return build.reshape(out, (*out.shape[:2], out.shape[2] * out.shape[3]), name)


@translates("Einsum")
def _einsum(call: OnnxCall) -> Node:
    """One operand: a sum; two operands: one matmul between permutations. No letter occurs twice in one operand."""
    equation = str(call.get("equation", "")).replace(" ", "")
    terms = equation.split("->")[0].split(",")
    result = equation.split("->")[1] if "->" in equation else _implicit(terms)
    if "." in equation or len(terms) > 2 or any(len(set(t)) != len(t) for t in (*terms, result)):
        raise Unsupported(
            f"the equation {equation!r} is not supported; one or two operands without dots or repeated letters are"
        )
    operands = [
        _summed(call[i], t, set(result) | set("".join(terms[:i] + terms[i + 1 :])), call.name)
        for i, t in enumerate(terms)
    ]
    if len(operands) == 1:
        node, letters = operands[0]
        return build.permute(node, [letters.index(c) for c in result], call.name)
    (x, a), (y, b) = operands
    both = [c for c in a if c in b]
    batch, inner = [c for c in both if c in result], [c for c in both if c not in result]
    left, right = [c for c in a if c not in b], [c for c in b if c not in a]
    sizes = dict(zip(a, x.shape, strict=True)) | dict(zip(b, y.shape, strict=True))
    dims = [sizes[c] for c in batch]
    shapes = [math.prod(sizes[c] for c in group) for group in (left, inner, right)]
    x = build.permute(x, [a.index(c) for c in (*batch, *left, *inner)], call.name)
    y = build.permute(y, [b.index(c) for c in (*batch, *inner, *right)], call.name)
    x = build.reshape(x, (*dims, shapes[0], shapes[1]), call.name)
    y = build.reshape(y, (*dims, shapes[1], shapes[2]), call.name)
    letters_out = [*batch, *left, *right]
    out = build.reshape(build.matmul(x, y, call.name), [sizes[c] for c in letters_out], call.name)
    return build.permute(out, [letters_out.index(c) for c in result], call.name)


def _implicit(terms: list[str]) -> str:
    """The output of an equation without '->': all letters that occur once, sorted."""
    letters = "".join(terms)
    return "".join(sorted(c for c in set(letters) if letters.count(c) == 1))


def _summed(x: Node, letters: str, needed: set[str], name: str) -> tuple[Node, str]:
    """(operand, letters), summed over the letters that are not needed elsewhere."""
    if len(letters) != len(x.shape):
        raise Unsupported(f"{letters!r} does not name the dimensions of shape {x.shape}")
    summed = [i for i, c in enumerate(letters) if c not in needed]
    if not summed:
        return x, letters
    return build.total(x, summed, False, name), "".join(c for c in letters if c in needed)
