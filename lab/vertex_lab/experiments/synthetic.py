"""The paper's synthetic networks: one attention head with random weights, every trial a network of its own.

A trial: x ~ N(0, 1) of K tokens by d; queries, keys and values by weights ~ N(0, (0.75/√d)²); scores q·k/√d; the margin
is the mean row of the head times output weights ~ N(0, 1)/√d, its label the sign of the margin at x. The paper does not
say how it drew its trials. Ours come from torch's CPU generator seeded with 1,000,003 · seed + K, plus 10,007 · d where
d is not 16, in float64 and in batches of 50: x, then the weights of queries, keys, values and output, each for all of
the batch. So a trial depends neither on how many are drawn nor on ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify

WIDTH = 16
BATCH = 50


@dataclass(frozen=True, eq=False)
class Heads:
    """A batch of trials, or a single one without the first dimension."""

    x: Tensor
    """(batch, K, d)"""
    query: Tensor
    """(batch, d, d), 1/√d folded in; as `key` and `value` from the right of x"""
    key: Tensor
    value: Tensor
    output: Tensor
    """(batch, d)"""

    def __len__(self) -> int:
        return len(self.x)

    def at(self, i: int) -> Heads:
        """Trial i alone, without the batch dimension."""
        return Heads(self.x[i], self.query[i], self.key[i], self.value[i], self.output[i])

    def first(self, count: int) -> Heads:
        """The first trials."""
        return Heads(*(part[:count] for part in (self.x, self.query, self.key, self.value, self.output)))

    def margin(self, x: Tensor | None = None) -> Tensor:
        """The margin at x, (batch); at the trial's own x if none is given."""
        x = self.x if x is None else x
        p = torch.softmax(x @ self.query @ (x @ self.key).mT, dim=-1)
        return ((p @ (x @ self.value)).mean(-2) * self.output).sum(-1)

    @property
    def sign(self) -> Tensor:
        """+1 where the margin at x is positive, else −1: what is certified is sign · margin > 0."""
        return torch.where(self.margin() > 0, 1.0, -1.0).to(self.x.dtype)

    def graph(self) -> Graph:
        """Of a single trial: x (K, d) to the two class scores (margin/2, −margin/2); class 0 is the positive sign."""
        x = build.source(self.x.shape)
        q, k, v = (
            build.matmul(x, build.constant(W), name)
            for W, name in ((self.query, "queries"), (self.key, "keys"), (self.value, "values"))
        )
        p = build.softmax(build.matmul(q, build.transpose(k, 0, 1, "keys"), "scores"), -1, "weights")
        pooled = build.mean(build.matmul(p, v, "rows"), [0], False, "pooled")
        both = torch.stack([self.output, -self.output], dim=1) / 2
        return simplify(Graph(x, build.matmul(pooled, build.constant(both), "margin")))


def heads(keys: int, seed: int, count: int, width: int = WIDTH) -> Iterator[Heads]:
    """The first `count` trials of a seed, in batches of at most BATCH."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + keys + (0 if width == WIDTH else 10_007 * width))

    def draw(*shape: int) -> Tensor:
        return torch.randn(BATCH, *shape, generator=generator, dtype=torch.float64)

    root = math.sqrt(width)
    for start in range(0, count, BATCH):
        x = draw(keys, width)
        query, key, value = (draw(width, width) * (0.75 / root) for _ in range(3))
        output = draw(width) / root
        yield Heads(x, query / root, key, value, output).first(min(BATCH, count - start))
