"""Translations of aten's softmax, attention and norms to Vertex's ops (see ops.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.from_torch.ops import TorchCall, Value, dims_of, node, number, tensor, times, translates
from vertex_softmax.graph.ir import Node
from vertex_softmax.graph.masks import split_mask
from vertex_softmax.ops import attention, elementwise


@translates("softmax", "_softmax", "_safe_softmax")
def _softmax(call: TorchCall, x: Node, dim: int, dtype: Any = None) -> Node:
    return build.softmax(x, dim, call.name)


@translates("log_softmax", "_log_softmax")
def _log_softmax(call: TorchCall, x: Node, dim: int, dtype: Any = None) -> Node:
    return build.apply(elementwise.Log(), build.softmax(x, dim, call.name), name=call.name)


@translates("logsumexp")
def _log_sum_exp(call: TorchCall, x: Node, dims: Any, keepdim: bool = False) -> Node:
    powers = build.apply(elementwise.Exp(), x, name=call.name)
    return build.apply(elementwise.Log(), build.total(powers, dims_of(dims), keepdim, call.name), name=call.name)


@translates("scaled_dot_product_attention")
def _attention(  # aten's signature
    call: TorchCall,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Node:
    """softmax(scale · Q Kᵀ + mask) V; a key whose mask is −∞ (or False) has weight 0."""
    if dropout_p > 0:
        raise UnsupportedModelError("dropout_p > 0: pass dropout_p=0.0 when the model is not training")
    module_path = call.name.rpartition("/")[0]
    scores_name = f"{module_path}/scores" if module_path else "scores"
    q, k, v = node(query), node(key), node(value)
    if enable_gqa:
        k, v = (_repeat_heads(call, x, q.shape[-3] // x.shape[-3]) for x in (k, v))
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    scores = build.matmul(
        times(dataclasses.replace(call, name=scores_name), q, factor),
        build.transpose(k, -1, -2, scores_name),
        scores_name,
    )
    masked: Tensor | None = None
    penalty: Tensor | None = None
    if is_causal:
        masked = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    elif isinstance(attn_mask, Node):
        scores = build.add(scores, attn_mask, scores_name)
    elif attn_mask is not None:
        added, masked, penalty = split_mask(torch.as_tensor(attn_mask))
        scores = build.expand(scores, np.broadcast_shapes(scores.shape, added.shape), scores_name)
        if bool(added.any()):
            scores = build.add(scores, build.constant(added), scores_name)
    scores, v = _same_leading(scores, v, call.name)
    weights = build.value_of(scores)
    if weights is not None:
        p = build.softmax(build.constant(weights), -1, call.name, masked, penalty)
        return build.matmul(p, v, call.name)
    return build.apply(attention.Attention(masked, penalty), scores, v, name=call.name)


def _same_leading(x: Node, y: Node, name: str) -> tuple[Node, Node]:
    """Two batches of matrices with their leading dimensions broadcast against each other."""
    leading = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return build.expand(x, (*leading, *x.shape[-2:]), name), build.expand(y, (*leading, *y.shape[-2:]), name)


def _repeat_heads(call: TorchCall, x: Node, times: int) -> Node:
    """Every head repeated `times` times: (..., heads, n, d) → (..., heads · times, n, d)."""
    *leading, heads, n, d = x.shape
    split = build.reshape(x, (*leading, heads, 1, n, d), call.name)
    wide = build.expand(split, (*leading, heads, times, n, d), call.name)
    return build.reshape(wide, (*leading, heads * times, n, d), call.name)


@translates("layer_norm")
def _layer_norm(  # aten's signature
    call: TorchCall,
    x: Node,
    shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Node:
    dims = list(range(-len(shape), 0))
    y = build.normalize(build.centre(x, dims, call.name), dims, eps, call.name)
    return _scale_shift(call, y, weight, bias)


def _scale_shift(call: TorchCall, y: Node, weight: Value | None, bias: Value | None) -> Node:
    """y · weight + bias; None leaves the factor or the summand out."""
    if weight is not None:
        y = build.multiply(y, node(weight), call.name)
    return y if bias is None else build.add(y, node(bias), call.name)


@translates("rms_norm")
def _rms_norm(
    call: TorchCall, x: Node, shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Node:
    """RMS normalisation over the last dimensions; with eps=None torch uses the machine epsilon of the model's dtype."""
    smallest = torch.finfo(call.dtype).eps if eps is None else eps
    return _scale_shift(call, build.normalize(x, list(range(-len(shape), 0)), smallest, call.name), weight, None)


@translates("native_group_norm")
def _group_norm(  # aten's signature
    call: TorchCall,
    x: Node,
    weight: Value | None,
    bias: Value | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> tuple[Node]:
    grouped = build.reshape(x, (n, groups, channels // groups * size), call.name)
    y = build.normalize(build.centre(grouped, [-1], call.name), [-1], eps, call.name)
    per_channel = (-1, *[1] * (len(x.shape) - 2))
    w, b = (None if p is None else tensor(number(p, "a weight")).reshape(per_channel) for p in (weight, bias))
    return (_scale_shift(call, build.reshape(y, x.shape, call.name), w, b),)
