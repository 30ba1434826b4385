"""Small random transformers, built node by node, and points of their input boxes."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops import elementwise
from vertex_softmax.ops.attention import Attention

ACTIVATIONS = {
    "relu": elementwise.Relu(),
    "gelu": elementwise.Gelu(),
    "gelu tanh": elementwise.Gelu(tanh=True),
    "silu": elementwise.Silu(),
    "tanh": elementwise.Tanh(),
    "none": None,
}


@dataclasses.dataclass(frozen=True)
class Config:
    depth: int = 1
    heads: int = 1
    tokens: int = 3
    width: int = 4
    inputs: int = 2
    classes: int = 3
    norm: str = "none"
    """none, pre or post"""
    activation: str = "relu"
    gated: bool = False
    pooling: str = "mean"
    """mean, token or max"""
    class_token: bool = False
    mask: str = "none"
    """none, causal or padding"""
    fused: bool = True
    """attention as one op, or softmax and matmul"""
    gain: float = 1.0
    """of queries and keys: how peaked the softmax is"""
    seed: int = 0


class Maker:
    """Draws weights and joins nodes."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.generator = torch.Generator().manual_seed(config.seed)
        self.count = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}_{self.count}"

    def draw(self, *dims: int) -> Tensor:
        return torch.randn(*dims, generator=self.generator, dtype=torch.float64)

    def linear(self, x: Node, out: int, gain: float = 1.0) -> Node:
        width = x.shape[-1]
        return build.affine(
            x, gain * self.draw(out, width) / math.sqrt(width), 0.3 * self.draw(out), self.name("linear")
        )

    def norm(self, x: Node) -> Node:
        x = build.normalize(build.centre(x, (-1,), self.name("centre")), (-1,), 1e-3, self.name("norm"))
        scale, shift = build.constant(1 + 0.2 * self.draw(x.shape[-1])), build.constant(0.2 * self.draw(x.shape[-1]))
        return build.add(build.multiply(x, scale, self.name("scale")), shift, self.name("shift"))

    def heads(self, x: Node) -> Node:
        split = build.reshape(x, (x.shape[0], self.config.heads, -1), self.name("split"))
        return build.permute(split, (1, 0, 2), self.name("heads"))

    def mask(self, tokens: int) -> Tensor | None:
        if self.config.mask == "causal":
            return torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        if self.config.mask == "padding":
            return torch.tensor([j == tokens - 1 for j in range(tokens)])
        return None

    def attention(self, x: Node) -> Node:
        width = x.shape[-1]
        q, k = (self.heads(self.linear(x, width, self.config.gain)) for _ in range(2))
        v = self.heads(self.linear(x, width))
        scores = build.matmul(q, build.transpose(k, -2, -1, self.name("keys")), self.name("scores"))
        scores = build.multiply(
            scores, build.constant(torch.tensor((width // self.config.heads) ** -0.5).double()), self.name("scaled")
        )
        mask = self.mask(x.shape[0])
        if self.config.fused:
            out = build.apply(Attention(mask), scores, v, name=self.name("attention"))
        else:
            out = build.matmul(build.softmax(scores, -1, self.name("softmax"), mask), v, self.name("mix"))
        out = build.reshape(build.permute(out, (1, 0, 2), self.name("join")), (x.shape[0], width), self.name("join"))
        return self.linear(out, width)

    def mlp(self, x: Node) -> Node:
        op = ACTIVATIONS[self.config.activation]
        hidden = self.linear(x, self.config.width + 1)
        inner = hidden if op is None else build.apply(op, hidden, name=self.name(self.config.activation))
        if self.config.gated:
            inner = build.multiply(inner, self.linear(x, self.config.width + 1), self.name("gate"))
        return self.linear(inner, x.shape[-1])

    def block(self, x: Node) -> Node:
        for part in (self.attention, self.mlp):
            inner = self.norm(x) if self.config.norm == "pre" else x
            x = build.add(x, part(inner), self.name("residual"))
            x = self.norm(x) if self.config.norm == "post" else x
        return x

    def pool(self, x: Node) -> Node:
        if self.config.pooling == "mean":
            return build.mean(x, (0,), False, self.name("mean"))
        if self.config.pooling == "max":
            return build.maximum(x, (0,), False, self.name("max"))
        return build.select(x, 0, 0, self.name("first"))


def transformer(config: Config) -> Graph:
    """(tokens, inputs) → (classes,)."""
    make = Maker(config)
    start = build.source((config.tokens, config.inputs))
    x = make.linear(start, config.width)
    if config.class_token:
        x = build.concat([build.constant(make.draw(1, config.width)), x], 0, make.name("class_token"))
    x = build.add(x, build.constant(0.3 * make.draw(*x.shape)), make.name("position"))
    for _ in range(config.depth):
        x = make.block(x)
    return Graph(start, make.linear(make.pool(x), config.classes))


def input_box(config: Config, batch: int, radius: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed + 1000)
    centre = torch.randn(batch, config.tokens, config.inputs, generator=g, dtype=torch.float64)
    wide = radius * torch.rand(centre.shape, generator=g, dtype=torch.float64)
    wide[..., 0] = radius
    return centre - wide, centre + wide


def samples(lower: Tensor, upper: Tensor, count: int, seed: int = 0) -> Tensor:
    """Points of an input box, (points, batch, ...): corners, edges, the interior, the centre."""
    g = torch.Generator().manual_seed(seed)
    t = torch.rand(count, *lower.shape, generator=g, dtype=torch.float64)
    some = torch.rand(t.shape, generator=g, dtype=torch.float64)
    t = torch.where(
        some < torch.linspace(0, 1, count, dtype=torch.float64).reshape(-1, *[1] * lower.dim()), t.round(), t
    )
    t[0] = 0.5
    return (lower + t * (upper - lower)).clamp(lower, upper)


def descend(
    graph: Graph, node: Node, A: Tensor, lower: Tensor, upper: Tensor, starts: int = 3, steps: int = 15
) -> Tensor:
    """Inputs at which objectives A (batch, S, *shape of node) are small: (starts · S, batch, ...)."""
    S = A.shape[1]
    x = samples(lower, upper, starts * S, seed=7)
    mine = A.transpose(0, 1).repeat(starts, *[1] * (A.dim() - 1))  # (starts · S, batch, *shape)
    for k in range(steps):
        at = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((mine * graph.values(at)[node]).sum(), at)
        x = (x - g.sign() * (upper - lower) * 0.7 ** (k + 1)).clamp(lower, upper)
    return x.detach()
