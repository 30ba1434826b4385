"""stories260K, a Llama of 260,000 parameters (llama2.c's checkpoint): five layers, RMSNorm, SwiGLU, rotary positions.

The file holds seven int32 (dim, hidden, layers, heads, kv heads, vocabulary, positions) and then float32 weights. The
module maps vectors of tokens to the scores of the next token: it has no code for verification.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import read_whole

HEADER = struct.Struct("<7i")
MOST_BYTES = 10_000_000
NEEDED = "stories260K.bin of the llama2.c project is needed"
EPS = 1e-5


@dataclass(frozen=True)
class LlamaSizes:
    """The header of the file."""

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    positions: int

    @property
    def head(self) -> int:
        """The dimension of one head."""
        return self.dim // self.heads


def rotary(tokens: int, head: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, (tokens, head / 2)."""
    rate = torch.tensor([10000.0 ** (-2 * i / head) for i in range(head // 2)], dtype=torch.float64)
    angles = torch.arange(tokens, dtype=torch.float64).unsqueeze(1) * rate
    return angles.cos().float(), angles.sin().float()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of numbers turned by their position's angles: (batch, heads, tokens, head)."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class LlamaBlock(nn.Module):
    """Causal attention with shared keys and values, then a gated MLP, each behind an RMSNorm and added to its input."""

    def __init__(self, of: LlamaSizes) -> None:
        super().__init__()
        self.of = of
        narrow = of.kv_heads * of.head
        self.before_attention, self.before_mlp = nn.RMSNorm(of.dim, eps=EPS), nn.RMSNorm(of.dim, eps=EPS)
        self.query, self.out = nn.Linear(of.dim, of.dim, bias=False), nn.Linear(of.dim, of.dim, bias=False)
        self.key, self.value = nn.Linear(of.dim, narrow, bias=False), nn.Linear(of.dim, narrow, bias=False)
        self.gate, self.up = nn.Linear(of.dim, of.hidden, bias=False), nn.Linear(of.dim, of.hidden, bias=False)
        self.down = nn.Linear(of.hidden, of.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, tokens, dim) to the same shape."""
        batch, tokens, dim = x.shape
        y = self.before_attention(x)
        q, k, v = (
            f(y).reshape(batch, tokens, -1, self.of.head).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        each = self.of.heads // self.of.kv_heads
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
        rows = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(rows.transpose(1, 2).reshape(batch, tokens, dim))
        y = self.before_mlp(x)
        found: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return found


class Stories(nn.Module):
    """Vectors of tokens (batch, tokens, dim) to the scores of the token behind the last, (batch, vocabulary)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, of: LlamaSizes, tokens: int) -> None:
        super().__init__()
        self.of = of
        self.words = nn.Embedding(of.vocabulary, of.dim)
        self.blocks = nn.ModuleList(LlamaBlock(of) for _ in range(of.layers))
        self.last = nn.RMSNorm(of.dim, eps=EPS)
        cos, sin = rotary(tokens, of.head)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next token."""
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return functional.linear(self.last(x[:, -1]), self.words.weight)


def read_stories(path: Path, tokens: int) -> Stories:
    """The network of a llama2.c file, for inputs of so many tokens."""
    data = read_whole(path, MOST_BYTES, NEEDED)
    if len(data) < HEADER.size:
        raise InvalidValueError(f"{path} is too short for a header of seven numbers; {NEEDED}")
    of = LlamaSizes(*HEADER.unpack_from(data))
    if min(of.dim, of.hidden, of.layers, of.heads, of.kv_heads, of.vocabulary) < 1 or of.dim % of.heads:
        raise InvalidValueError(f"{path} has sizes that no Llama has, {of}; {NEEDED}")
    model = Stories(of, tokens)
    blocks: list[LlamaBlock] = [block for block in model.blocks if isinstance(block, LlamaBlock)]
    order = [model.words.weight]
    for name in ("before_attention", "query", "key", "value", "out", "before_mlp", "gate", "down", "up"):
        order += [block.get_submodule(name).get_parameter("weight") for block in blocks]
    order.append(model.last.weight)
    needed = HEADER.size + 4 * sum(weight.numel() for weight in order)
    if len(data) < needed:
        raise InvalidValueError(f"{path} has {len(data):,} bytes, but its sizes need {needed:,}; {NEEDED}")
    at = HEADER.size
    for weight in order:
        flat = torch.frombuffer(bytearray(data[at : at + 4 * weight.numel()]), dtype=torch.float32)
        weight.data = flat.reshape(weight.shape).clone()
        at += 4 * math.prod(weight.shape)
    return model.requires_grad_(False).eval()
