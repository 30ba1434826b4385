"""The networks of same_questions.py: plain torch modules, nothing of the package."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Heads with a mask, written out or by torch's own function."""

    def __init__(self, dim: int, heads: int, mask: Tensor | None, style: str, bias: bool) -> None:
        super().__init__()
        self.heads, self.style = heads, style
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=bias) for _ in range(4))
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        split = (batch, tokens, self.heads, dim // self.heads)
        q, k, v = (f(x).reshape(split).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.style == "sdpa":
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(dim // self.heads)
            mixed = torch.softmax(scores if self.mask is None else scores + self.mask, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, dim))


class Rms(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


CURVES = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}
NORMS = {"layer": nn.LayerNorm, "rms": Rms, "none": lambda _dim: nn.Identity()}


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int, kind: dict[str, Any], mask: Tensor | None) -> None:
        super().__init__()
        self.curve, self.gated = CURVES[kind["curve"]], kind["gated"]
        self.before, self.after = NORMS[kind["norm"]](dim), NORMS[kind["norm"]](dim)
        self.attention = Attention(dim, heads, mask, kind["style"], kind["norm"] != "rms")
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.gate = nn.Linear(dim, hidden) if self.gated else None

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        h = self.after(x)
        inner = self.curve(self.up(h))
        return x + self.down(inner if self.gate is None else inner * self.gate(h))


class Net(nn.Module):
    """Tokens (batch, tokens, dim), or images (batch, 1, side, side) with a patch, to class scores."""

    def __init__(self, kind: dict[str, Any]) -> None:
        super().__init__()
        dim, tokens, patch = kind["dim"], kind["tokens"], kind["patch"]
        self.pool = kind["pool"]
        self.embed = nn.Conv2d(1, dim, patch, patch) if patch else None
        self.position = nn.Parameter(0.3 * torch.randn(tokens, dim))
        mask = torch.full((tokens, tokens), -torch.inf).triu(1) if kind["mask"] == "causal" else None
        if kind["mask"] == "other":
            mask = torch.where(torch.rand(tokens, tokens) < 0.4, -torch.inf, 0.0)
            mask.fill_diagonal_(0.0)
        self.blocks = nn.Sequential(*(Block(dim, kind["heads"], 2 * dim, kind, mask) for _ in range(kind["depth"])))
        self.head = nn.Linear(dim, kind["classes"])

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x).flatten(2).transpose(1, 2)
        x = self.blocks(x + self.position)
        pooled = x[:, 0] if self.pool == "class" else x.amax(1) if self.pool == "max" else x.mean(1)
        return self.head(pooled)


def finished(net: nn.Module) -> nn.Module:
    return net.double().eval().requires_grad_(False)


class OneBlock(nn.Module):
    """The anchors' networks: see anchors.py."""

    def __init__(self, sizes: dict[str, int], classes: int) -> None:
        super().__init__()
        dim, mlp = sizes["dim"], sizes["mlp"]
        self.patch, self.heads, self.width = sizes["patch"], sizes["heads"], dim // sizes["heads"]
        self.pos = nn.Parameter(torch.zeros(sizes["tokens"], dim))
        self.embed = nn.Linear(self.patch**2, dim)
        self.q, self.k = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.v, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp), nn.ReLU(), nn.Linear(mlp, dim)) if mlp else None
        self.cls = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        side, p = x.shape[-1] // self.patch, self.patch
        cut = x.reshape(x.shape[0], side, p, side, p).permute(0, 1, 3, 2, 4)
        z = self.embed(cut.reshape(x.shape[0], side * side, p * p)) + self.pos
        batch, tokens, dim = z.shape
        split = (batch, tokens, self.heads, self.width)
        q, k, v = (f(z).reshape(split).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.width), dim=-1) @ v
        z = z + self.out(mixed.transpose(1, 2).reshape(batch, tokens, dim))
        if self.mlp is not None:
            z = z + self.mlp(z)
        return self.cls(z.mean(1))
