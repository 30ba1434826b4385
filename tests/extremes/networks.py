"""Small networks of attention whose every number can be made extreme: plain modules, seeded, in float64."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a network is made of, and how large its numbers are."""

    tokens: int = 4
    dim: int = 6
    heads: int = 2
    mlp: int = 8
    classes: int = 3
    blocks: int = 1
    activation: str = "relu"
    norm: float | None = None
    """the ε of a LayerNorm before every part; None: no norms"""
    scores: float = 1.0
    """a factor on every score"""
    values: float = 1.0
    """a factor on every value"""
    head: float = 1.0
    """a factor on the classifier"""
    attention: str = "self"
    """self; none: its values alone, one row for all; constant: every score is the same number"""
    seen: tuple[int, ...] | None = None
    """the keys that are not masked; None: all"""
    repeats: int = 1
    """every token is there so many times"""
    seed: int = 0


class Network(nn.Module):
    """(batch, tokens, dim) to (batch, classes): blocks of attention and MLP with residuals, the mean, a classifier."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        d, g = shape.dim, torch.Generator().manual_seed(shape.seed)

        def weight(*dims: int, of: float = 1.0) -> nn.Parameter:
            drawn = torch.randn(*dims, generator=g, dtype=torch.float64)
            return nn.Parameter(of * drawn * (dims[0] ** -0.5 if len(dims) > 1 else 0.3))

        self.blocks = nn.ModuleList()
        for _ in range(shape.blocks):
            block = nn.Module()
            block.q, block.k = weight(d, d, of=shape.scores), weight(d, d)
            block.v, block.o = weight(d, d, of=shape.values), weight(d, d)
            block.up, block.bias, block.down = weight(d, shape.mlp), weight(shape.mlp), weight(shape.mlp, d)
            self.blocks.append(block)
        self.classifier, self.offset = weight(d, shape.classes, of=shape.head), weight(shape.classes)
        self.activation = {"relu": nn.ReLU(), "gelu": nn.GELU(), "tanh": nn.Tanh()}[shape.activation]
        self.norm = nn.Identity() if shape.norm is None else nn.LayerNorm(d, eps=shape.norm, dtype=torch.float64)
        keys = shape.tokens * shape.repeats
        mask = torch.ones(keys, dtype=torch.bool)
        mask[list(range(keys)) if shape.seen is None else list(shape.seen)] = False
        self.register_buffer("mask", mask)

    def attend(self, x: Tensor, block: nn.Module) -> Tensor:
        """softmax(q kᵀ) v in every head."""
        shape = self.shape
        batch, tokens, dim = x.shape
        split = (batch, tokens, shape.heads, dim // shape.heads)
        q, k, v = ((x @ w).reshape(split).transpose(1, 2) for w in (block.q, block.k, block.v))
        if shape.attention == "none":
            first = 0 if shape.seen is None else shape.seen[0]
            rows = v[:, :, first : first + 1].expand(-1, -1, tokens, -1)
        elif shape.attention == "constant":
            rows = v.mean(2, keepdim=True).expand(-1, -1, tokens, -1)
        else:
            scores = q @ k.mT * (dim // shape.heads) ** -0.5
            if shape.seen is not None:
                scores = scores.masked_fill(self.mask, -torch.inf)
            rows = scores.softmax(-1) @ v
        return rows.transpose(1, 2).reshape(batch, tokens, dim) @ block.o

    def forward(self, x: Tensor) -> Tensor:
        if self.shape.repeats > 1:
            x = torch.cat([x] * self.shape.repeats, 1)
        for block in self.blocks:
            x = x + self.attend(self.norm(x), block)
            x = x + self.activation(self.norm(x) @ block.up + block.bias) @ block.down
        return x.mean(1) @ self.classifier + self.offset


def network(**shape: object) -> Network:
    """A network in eval mode."""
    return Network(Shape(**shape)).eval()  # type: ignore[arg-type]


def inputs(net: Network, batch: int = 2, seed: int = 1) -> Tensor:
    """(batch, tokens, dim), standard normal."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(batch, net.shape.tokens, net.shape.dim, generator=g, dtype=torch.float64)
