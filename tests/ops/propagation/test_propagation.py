"""Zonotopes through ops: whatever the unknowns are, the true value is in the output's zonotope with the same unknowns.

For given unknowns of the inputs the value f(x) is known, and so is what the output's old unknowns make of it. The rest
must be reached by the new unknowns: η·rest ≤ the most that they give, for every η tried.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul, Multiply
from vertex_softmax.ops.contract import Propagating
from vertex_softmax.ops.elementwise import Exp, Gelu, Relu, Sigmoid, Silu, Square, Tanh
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.zonotope import Unknowns, Zonotope

DIRECTIONS, POINTS = 60, 40


@dataclasses.dataclass
class Drawn:
    """Zonotopes that share unknowns, and values of these."""

    zonotopes: tuple[Zonotope, ...]
    generator: torch.Generator

    def values(self, extreme: bool) -> tuple[dict[Unknowns, Tensor], list[Tensor]]:
        """Unknowns, (points, balls, k), and the inputs there."""
        blocks = {unknowns: columns for zonotope in self.zonotopes for unknowns, columns in zonotope.blocks.items()}
        drawn = {}
        for unknowns, columns in blocks.items():
            xi = torch.randn(POINTS, *columns.shape[1:3], generator=self.generator, dtype=torch.float64)
            length = torch.linalg.vector_norm(xi, dim=-1, keepdim=True)
            share = torch.rand(length.shape, generator=self.generator, dtype=torch.float64)
            drawn[unknowns] = xi / length * (1 if extreme else share)
        inputs = []
        for zonotope in self.zonotopes:
            x = zonotope.centre.expand(POINTS, *zonotope.centre.shape[1:]).clone()
            for unknowns, columns in zonotope.blocks.items():
                x = x + torch.einsum("pmk,mk...->p...", drawn[unknowns], columns[0])
            sign = torch.rand(x.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
            inputs.append(x + zonotope.loose * (sign.sign() if extreme else sign))
        return drawn, inputs


def draw(shapes: list[tuple[int, ...]], size: float, seed: int, centre: float = 1.0) -> Drawn:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    kinds = [(5, 1), (2, 3)]
    unknowns = [Unknowns(f"unknowns {i}") for i in range(len(kinds))]
    zonotopes = []
    for shape in shapes:
        blocks = {
            u: size * normal(1, m, k, *shape) / math.sqrt(m * k) for u, (m, k) in zip(unknowns, kinds, strict=True)
        }
        own = size * 0.1 * normal(1, *shape).abs()
        zonotopes.append(Zonotope(centre * normal(1, *shape), blocks, own, 1e-3 * own))
    return Drawn(tuple(zonotopes), generator)


def check(op: Propagating, drawn: Drawn) -> None:
    boxes = tuple(zonotope.box for zonotope in drawn.zonotopes)
    found = op.propagate(drawn.zonotopes, boxes, "the op")
    old = {unknowns for zonotope in drawn.zonotopes for unknowns in zonotope.blocks}
    shape = found.centre.shape[1:]
    eta = torch.randn(DIRECTIONS, *shape, generator=drawn.generator, dtype=torch.float64)
    eta[: DIRECTIONS // 3] = eta[: DIRECTIONS // 3].sign()
    axes = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    eta = torch.cat([eta, axes])
    most = (eta.abs() * found.loose).flatten(1).sum(1)
    for unknowns, columns in found.blocks.items():
        if unknowns not in old:
            along = torch.einsum("mk...,e...->emk", columns[0], eta)
            most = most + torch.linalg.vector_norm(along, dim=-1).sum(-1)
    for extreme in (False, True):
        values, inputs = drawn.values(extreme)
        rest = op.evaluate(*inputs) - found.centre
        for unknowns, columns in found.blocks.items():
            if unknowns in old:
                rest = rest - torch.einsum("pmk,mk...->p...", values[unknowns], columns[0])
        reached = torch.einsum("p...,e...->pe", rest, eta)
        assert bool((reached <= most * (1 + 1e-12) + 1e-12).all()), (reached - most).max()


SIZES = [1e-6, 0.01, 0.1, 0.5, 2.0]
SEEDS = range(6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "op", [Relu(), Gelu(), Silu(), Tanh(), Sigmoid(), Exp(), Square()], ids=lambda op: type(op).__name__
)
def test_a_function_of_one_number(op: Propagating, size: float, seed: int) -> None:
    check(op, draw([(3, 4)], size, seed))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "op",
    [Normalize(1e-5), Normalize(0.0), Normalize(0.1), Normalize(1e-5, count=2)],
    ids=["layer", "none", "large", "two"],
)
def test_a_norm(op: Propagating, size: float, seed: int) -> None:
    check(op, draw([(2, 3, 4)], size, seed))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("op", "shapes"), [(Multiply(), [(3, 4), (3, 4)]), (MatMul(), [(2, 3, 4), (2, 4, 5)])], ids=["elements", "matrices"]
)
def test_a_product(op: Propagating, shapes: list[tuple[int, ...]], size: float, seed: int) -> None:
    check(op, draw(shapes, size, seed))


MASK = torch.tensor([[False, True, True, True], [False, False, True, True], [False, False, False, True]])


@pytest.mark.parametrize("centre", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("op", [Attention(), Attention(mask=MASK)], ids=["open", "masked"])
def test_attention(op: Propagating, size: float, seed: int, centre: float) -> None:
    check(op, draw([(2, 3, 4), (2, 4, 5)], size, seed, centre))


@pytest.mark.parametrize("make", [lambda: draw([(2, 4)], 0.3, 0)])
def test_a_wrong_rule_is_noticed(make: Callable[[], Drawn]) -> None:
    class Wrong(Gelu):
        def propagate(self, inputs: tuple[Zonotope, ...], boxes: tuple[Interval, ...], origin: str) -> Zonotope:
            found = super().propagate(inputs, boxes, origin)
            return dataclasses.replace(found, own=found.loose * 0.5)

    with pytest.raises(AssertionError):
        check(Wrong(), make())
