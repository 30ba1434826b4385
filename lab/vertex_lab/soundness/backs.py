"""Transformers over features whose least output is known when each feature's interval is.

Invariant: for features f (batch, tokens, n) that move on their own, `module(f)` (batch, 1) is least where f is at
`corner(lower, upper)`, one end or the other of every feature.

hull: attention whose scores are features, one for each block and head, over values that only grow with the block
before; softmax of a box of scores against fixed values is least at a vertex (the paper's theorem), and all are tried.
monotone: weights that are not negative, attention with constant scores, products of what is not negative: it grows with
every feature that `turn` leaves as it is and falls with the others.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from vertex_lab.soundness.features import Function

GROWING: dict[str, Function] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "leaky": lambda x: functional.leaky_relu(x, 0.125),
    "clamp": lambda x: x.clamp(-1.0, 1.5),
    "softplus": lambda x: torch.log(1 + torch.exp(x)),
    "exp_tanh": lambda x: torch.exp(torch.tanh(x)),
}
"""Activations that grow everywhere."""
NOT_NEGATIVE = ("relu", "sigmoid", "softplus", "exp_tanh")
STYLES = ("sdpa", "hand", "hand_exp", "pooled")


def _draw(generator: torch.Generator, *shape: int, low: float = 0.1, high: float = 1.0) -> nn.Parameter:
    drawn = low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)
    return nn.Parameter(drawn, requires_grad=False)


class Attend(nn.Module):
    """Attention of one query, written in a style: scores (batch, heads, tokens), values (the same) → (batch, heads)."""

    query: Tensor

    def __init__(self, style: str, heads: int) -> None:
        super().__init__()
        self.style, self.heads = style, heads
        self.register_buffer("query", torch.ones(1, heads, 1, 1, dtype=torch.float64))

    def forward(self, scores: Tensor, values: Tensor) -> Tensor:
        """Values weighted by softmax(scores)."""
        if self.style == "pooled":
            y: Tensor = (scores.softmax(-1) * values).sum(-1)
            return y
        q, k, v = self.query.expand(scores.shape[0], -1, -1, -1), scores.unsqueeze(-1), values.unsqueeze(-1)
        if self.style == "sdpa":
            return functional.scaled_dot_product_attention(q, k, v, scale=1.0)[..., 0, 0]
        s = q @ k.transpose(-1, -2)
        if self.style == "hand_exp":
            e = torch.exp(s - s.amax(-1, keepdim=True))
            return (e / e.sum(-1, keepdim=True) @ v)[..., 0, 0]
        return (s.softmax(-1) @ v)[..., 0, 0]


class Hull(nn.Module):
    """Block on block of attention over features; features n = blocks · heads."""

    sharp: Tensor

    def __init__(self, blocks: int, tokens: int, heads: int, style: str, act: str, generator: torch.Generator) -> None:
        super().__init__()
        self.heads, self.act = heads, act
        self.sign = 1.0 if torch.rand(1, generator=generator) < 0.5 else -1.0
        choice = torch.tensor([0.5, 1.0, 3.0, 8.0], dtype=torch.float64)
        sharp = choice[torch.randint(4, (blocks, heads, 1), generator=generator)]
        flip = torch.randint(2, sharp.shape, generator=generator) * 2 - 1
        self.register_buffer("sharp", sharp * flip)
        self.known = _draw(generator, blocks, heads, tokens, low=-1.0)
        self.share = _draw(generator, blocks, heads, tokens)
        self.mix = _draw(generator, blocks, heads)
        self.up, self.c, self.down = (
            _draw(generator, blocks, 4, low=low, high=high) for low, high in ((0.1, 1.0), (-1.0, 1.0), (0.1, 0.5))
        )
        self.attend = Attend(style, heads)

    def block(self, i: int, f: Tensor, z: Tensor) -> Tensor:
        """f (batch, tokens, n), z (batch, 1) of the block before → (batch, 1)"""
        scores = f[..., i * self.heads : (i + 1) * self.heads].transpose(1, 2) * self.sharp[i]
        values = self.known[i] + self.share[i] * z.unsqueeze(-1)
        z = (self.attend(scores, values) * self.mix[i]).sum(-1, keepdim=True)
        inner: Tensor = GROWING[self.act](z * self.up[i] + self.c[i]) * self.down[i]
        return z + inner.sum(-1, keepdim=True)

    def forward(self, f: Tensor) -> Tensor:
        """± the last block's output."""
        z = torch.zeros_like(f[:, 0, :1])
        for i in range(len(self.sharp)):
            z = self.block(i, f, z)
        return self.sign * z

    def corner(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(tokens, n) of bool: the features that are at their upper ends."""
        tokens, n = lower.shape
        up = torch.zeros(tokens, n, dtype=torch.bool)
        z = torch.zeros(1, 1, dtype=lower.dtype)
        vertices = torch.tensor(list(itertools.product([False, True], repeat=tokens)))
        for j in range(n):  # the others' terms are a constant of the block, and grow with z as this one does
            i = j // self.heads
            f = lower.where(~up, upper).expand(len(vertices), -1, -1).clone()
            f[..., j] = torch.where(vertices, upper[:, j], lower[:, j])
            tried = self.sign * self.block(i, f, z.expand(len(vertices), -1))[:, 0]
            up[:, j] = vertices[int(tried.argmin())]
            if (j + 1) % self.heads == 0:
                z = self.block(i, lower.where(~up, upper)[None], z)
        return up


class Monotone(nn.Module):
    """Blocks with weights ≥ 0 between features up to signs and a mean or maximum over tokens."""

    turn: Tensor
    scores: Tensor

    def __init__(
        self, blocks: int, tokens: int, n: int, reach: float, act: str, pool: str, generator: torch.Generator
    ) -> None:
        super().__init__()
        w = 3
        self.act, self.pool = act, pool
        self.register_buffer("turn", torch.randint(2, (n,), generator=generator).double() * 2 - 1)
        self.first = _draw(generator, n, w)
        self.lift = nn.Parameter(torch.tensor(math.ceil(reach * n), dtype=torch.float64), requires_grad=False)
        self.register_buffer("scores", torch.randn(blocks, tokens, tokens, generator=generator, dtype=torch.float64))
        self.values, self.up, self.down, self.gate = (
            _draw(generator, blocks, w, w, low=0.0, high=high) for high in (0.15, 0.3, 0.2, 0.2)
        )
        self.left = _draw(generator, blocks, tokens, tokens, low=0.0, high=0.1)
        self.token = _draw(generator, 1, 1, w, low=0.0)
        self.last = _draw(generator, w, 1)

    def forward(self, f: Tensor) -> Tensor:
        """A weighted sum of the pooled stream; it is never negative before."""
        h = (f * self.turn) @ self.first + self.lift
        for i in range(len(self.scores)):
            h = h + self.scores[i].softmax(-1) @ (h @ self.values[i])
            h = h + self.left[i] @ h
            act = GROWING[self.act](h @ self.up[i])
            if self.act in NOT_NEGATIVE:
                act = act * torch.sigmoid(h @ self.gate[i])
            h = h + act @ self.down[i]
        h = torch.cat([self.token.expand(h.shape[0], -1, -1), h.flip(1)], dim=1)
        pooled = h.amax(1) if self.pool == "max" else h.mean(1)
        return pooled @ self.last

    def corner(self, lower: Tensor, _: Tensor) -> Tensor:
        """(tokens, n) of bool: the features that are at their upper ends."""
        return (self.turn < 0).expand(lower.shape)
