"""Attention, written in the many ways that models have it; each is a module of (batch, tokens, d).

Invariant: every style is softmax(scores + mask) times values; no row of a mask is masked whole.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LARGE = -1.0e30
"""An additive mask of −1e30 or less means weight 0."""


def masked(kind: str, rows: int, keys: int, seed: int) -> Tensor | None:
    """Which keys each row may not see, (rows, keys) bool; None: no mask."""
    if kind in ("none", "padding"):
        return None
    if kind == "causal":
        return torch.ones(rows, keys, dtype=torch.bool).triu(1)
    if kind in ("one_key", "diagonal"):
        hidden = torch.ones(rows, keys, dtype=torch.bool)
        hidden[torch.arange(rows), torch.arange(rows) % keys if kind == "diagonal" else 0] = False
        return hidden
    hidden = torch.rand(rows, keys, generator=torch.Generator().manual_seed(seed)) < 0.5
    hidden[:, 0] = False
    return hidden


class Attention(nn.Module):
    """One layer of attention in a style, with or without the residual."""

    hidden: Tensor | None
    added: Tensor | None
    memory: Tensor

    def __init__(self, style: str, tokens: int, d: int, heads: int, mask: str, seed: int, residual: bool) -> None:
        super().__init__()
        self.style, self.heads, self.kind, self.residual = style, heads, mask, residual
        self.size = d // heads
        narrow = self.size if style in ("multi_query", "gqa") else d
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, narrow)
        self.v = nn.Linear(d, narrow)
        self.out = nn.Linear(d, d)
        if style == "mha":
            self.mha = nn.MultiheadAttention(d, heads, batch_first=True)
        keys = 3 if style == "cross" else tokens
        generator = torch.Generator().manual_seed(seed + 1)
        self.register_buffer("memory", torch.randn(1, 3, d, generator=generator))
        hidden = masked(mask, tokens, keys, seed)
        self.register_buffer("hidden", hidden)
        fill = {"float": -math.inf, "big": -1.0e9}.get(mask, LARGE)
        added = None if hidden is None else torch.zeros(tokens, keys).masked_fill(hidden, fill)
        if added is not None and mask == "float":
            added = added + torch.randn(tokens, keys, generator=generator)
        self.register_buffer("added", added)

    def forward(self, x: Tensor) -> Tensor:
        """Attention of x to itself, or to a constant memory."""
        y = self._mixed(x)
        return x + y if self.residual else y

    def _mixed(self, x: Tensor) -> Tensor:
        if self.style == "mha":
            mask = self.added if self.kind in ("float", "big") else self.hidden
            return self.mha(x, x, x, attn_mask=mask, need_weights=False)[0]  # type: ignore[no-any-return]
        if self.style == "pooled":
            weights = torch.softmax(self.k(x).sum(-1, keepdim=True), dim=1)
            pooled: Tensor = (weights * self.v(x)).sum(1, keepdim=True) + self.out(x)
            return pooled
        heads = 1 if self.style in ("multi_query", "gqa") else self.heads
        q = self._split(self.q(x), self.heads)
        source = self.memory.expand(x.shape[0], -1, -1) if self.style == "cross" else x
        k, v = self._split(self.k(source), heads), self._split(self.v(source), heads)
        y = self._weighted(q, k, v)
        joined: Tensor = self.out(y.transpose(1, 2).reshape(x.shape[0], -1, self.heads * self.size))
        return joined

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], -1, heads, self.size).transpose(1, 2)

    def _weighted(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale = self.size**-0.5
        if self.style in ("sdpa", "cross", "gqa"):
            more: dict[str, Any] = {"enable_gqa": True} if self.style == "gqa" and self.heads > 1 else {}
            if self.kind == "causal" and self.style != "cross":
                return functional.scaled_dot_product_attention(q, k, v, is_causal=True, **more)
            if self.kind in ("float", "big"):
                return functional.scaled_dot_product_attention(q, k, v, attn_mask=self.added, **more)
            keep = None if self.hidden is None else ~self.hidden
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=keep, **more)
        if self.style == "einsum":
            s = torch.einsum("bhnd,bhmd->bhnm", q * scale, k)
            if self.hidden is not None:
                s = s.masked_fill(self.hidden, -math.inf)
            return torch.einsum("bhnm,bhmd->bhnd", s.softmax(-1), v)
        if self.style == "hand_transposed":
            s = k @ q.transpose(-1, -2) / math.sqrt(self.size)
            if self.added is not None:
                s = s + self.added.transpose(-1, -2)
            return (v.transpose(-1, -2) @ s.softmax(-2)).transpose(-1, -2)
        s = (q @ k.transpose(-1, -2)) * scale
        if self.style == "hand_exp" and self.hidden is None:
            e = torch.exp(s - s.amax(-1, keepdim=True))
            return e / e.sum(-1, keepdim=True) @ v
        if self.added is not None:
            s = s + self.added
        return torch.softmax(s, dim=-1) @ v
