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
from vertex_softmax.ops.propagation.norms import remainder
from vertex_softmax.ops.propagation.rows import CentredScores, exponential, logistic, products
from vertex_softmax.ops.unknowns import Unknowns
from vertex_softmax.ops.zonotope import Zonotope

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
    found = op.propagate(drawn.zonotopes, boxes, "the op").spread
    old = {unknowns for zonotope in drawn.zonotopes for unknowns in zonotope.blocks}
    shape = found.centre.shape[1:]
    eta = torch.randn(DIRECTIONS, *shape, generator=drawn.generator, dtype=torch.float64)
    eta[: DIRECTIONS // 3] = eta[: DIRECTIONS // 3].sign()
    axes = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    eta = torch.cat([eta, axes])
    most = (eta.abs() * found.loose).flatten(1).sum(1)
    for unknowns, columns in found.blocks.items():
        if unknowns not in old and columns.shape[1] > 0:
            along = torch.einsum("mk...,e...->emk", columns[0], eta)
            scale = along.abs().amax().clamp(min=1e-300)  # squares must not underflow here
            most = most + torch.linalg.vector_norm(along / scale, dim=-1).sum(-1) * scale
    for extreme in (False, True):
        values, inputs = drawn.values(extreme)
        rest = op.evaluate(*inputs) - found.centre
        for unknowns, columns in found.blocks.items():
            if unknowns in old:
                rest = rest - torch.einsum("pmk,mk...->p...", values[unknowns], columns[0])
        reached = torch.einsum("p...,e...->pe", rest, eta)
        least = 1e-12 * float(op.evaluate(*inputs).abs().amax())
        assert bool((reached <= most * (1 + 1e-12) + least).all()), (reached - most).max()


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


def scaled(drawn: Drawn, *factors: float) -> Drawn:
    """Every zonotope times a number."""
    found = tuple(
        Zonotope(x.centre * s, {u: c * s for u, c in x.blocks.items()}, x.loose * s, torch.zeros_like(x.slack))
        for x, s in zip(drawn.zonotopes, factors, strict=True)
    )
    return Drawn(found, drawn.generator)


@pytest.mark.parametrize("scale", [1e-170, 1e-120, 1e-80, 1e80, 1e120])
@pytest.mark.parametrize("seed", range(3))
def test_numbers_whose_squares_underflow_or_overflow_are_not_lost(seed: int, scale: float) -> None:
    check(Attention(), scaled(draw([(2, 3, 4), (2, 4, 5)], 0.5, seed), 1.0, scale))
    check(Multiply(), scaled(draw([(3, 4), (3, 4)], 0.5, seed, centre=0.0), scale, 1.0))
    check(Multiply(), scaled(draw([(3, 4), (3, 4)], 0.5, seed, centre=0.0), scale**0.5, scale**0.5))
    check(MatMul(), scaled(draw([(2, 3, 4), (2, 4, 5)], 0.5, seed), scale**0.5, scale**0.5))
    if scale > 1e-150:
        check(Normalize(0.0), scaled(draw([(2, 3, 4)], 0.3, seed), scale))


@pytest.mark.parametrize("width", [10.0, 40.0, 1e3, 1e8, 1e16, 1e18])
def test_very_wide_scores(width: float) -> None:
    """Of two keys of which one has nearly all the weight in the centre, either may have all of it."""
    u = Unknowns("one")
    scores = torch.tensor([[[-10.0, 0.0]]], dtype=torch.float64)
    moves = torch.tensor([1.0, 0.0], dtype=torch.float64).reshape(1, 1, 1, 1, 2) * width
    values = torch.tensor([[[1.0], [0.0]]], dtype=torch.float64)
    zero = torch.zeros_like
    check(
        Attention(),
        Drawn(
            (Zonotope(scores, {u: moves}, None, zero(scores)), Zonotope(values, {}, None, zero(values))),
            torch.Generator().manual_seed(0),
        ),
    )


@pytest.mark.parametrize("size", [1e154, 1e160, 1e200])
def test_a_norm_of_numbers_whose_squares_overflow_is_on_its_sphere(size: float) -> None:
    c = torch.tensor([[[1.0, 2.0]]], dtype=torch.float64) * size
    found = Normalize(1e-5).propagate((Zonotope(c, {}, c.abs() * 1e-3, torch.zeros_like(c)),), (), "norm")
    true = c / size / math.sqrt(2.5)
    assert bool(((found.box.lower <= true) & (true <= found.box.upper)).all())


@pytest.mark.parametrize("A", [1e-6, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("wider", [1.0, 1.5, 4.0, 100.0])
def test_the_remainder_of_a_norm(A: float, wider: float) -> None:
    B = wider * A * A
    low, high = (float(x) for x in remainder(*(torch.tensor(x, dtype=torch.float64) for x in (A, B))))
    a = torch.linspace(-A, A, 401, dtype=torch.float64).unsqueeze(1)
    b = a.square() + torch.linspace(0, 1, 101, dtype=torch.float64) * (B - a.square())
    values = (1 + 2 * a + b).rsqrt() - 1 + a
    assert low - 1e-15 <= float(values.min())
    assert float(values.max()) <= high + 1e-15
    assert float(values.max()) == pytest.approx(high, rel=1e-6, abs=1e-15)  # it is reached
    assert float(values.min()) == pytest.approx(low, rel=1e-2, abs=1e-15)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("reach", [0.1, 1.0, 4.0])
def test_weights_of_a_row(reach: float, seed: int) -> None:
    """p_j by both ways, for scores whose mean by ω is 0: the first as it is, the second but for a multiple of ω_j."""
    generator = torch.Generator().manual_seed(seed)
    keys = 4
    log = (2 * torch.randn(keys, generator=generator, dtype=torch.float64)).log_softmax(0)
    t = torch.rand(4000, keys, generator=generator, dtype=torch.float64) * 2 - 1
    t[2000:] = t[2000:].sign()
    t = t - (log.exp() * t).sum(1, keepdim=True)
    t = t[t.abs().amax(1) > 1e-3]  # else rounding is larger than what is tested
    t = t * (reach / t.abs().amax(1, keepdim=True))
    tau = t.abs().amax(0)
    row = (1, 1, keys)
    zero = torch.zeros(row, dtype=torch.float64)
    scores = CentredScores(log_weights=log.reshape(row), blocks={}, loose=zero, reach=tau.reshape(row))
    p = (log + t).softmax(1)
    first = logistic(scores)
    off = (p - first.middle[0, 0] - first.slope[0, 0] * t).abs()
    assert bool((off <= first.error[0, 0] + 1e-14).all())
    assert bool(((p >= first.range.lower[0, 0] - 1e-14) & (p <= first.range.upper[0, 0] + 1e-14)).all())
    second = exponential(scores, first.range)
    a = torch.randn(50, keys, generator=generator, dtype=torch.float64)
    a = a - (log.exp() * a).sum(1, keepdim=True)
    off = ((p - second.middle[0, 0] - second.slope[0, 0] * t) @ a.T).abs()
    assert bool((off <= (second.error[0, 0] * a.abs()).sum(1) + 1e-14).all())


def test_a_weight_times_a_value_of_the_same_unknown() -> None:
    """ξ² of one unknown: from 0 to 1, reached at both ends."""
    u = Unknowns("one")
    one = torch.ones(1, 1, 1, 1, 1, dtype=torch.float64)
    zero = torch.zeros(1, 1, 1, dtype=torch.float64)
    t = CentredScores(log_weights=zero, blocks={u: one}, loose=zero, reach=zero + 1)
    found = products(t, Zonotope(zero, {u: one}, None, zero))
    half = float(found.size) * float(found.shape.flatten()[0]) ** 0.5
    assert float(found.shift) - half <= 1e-12
    assert float(found.shift) + half >= 1 - 1e-12


@pytest.mark.parametrize("make", [lambda: draw([(2, 4)], 0.3, 0)])
def test_a_wrong_rule_is_noticed(make: Callable[[], Drawn]) -> None:
    class Wrong(Gelu):
        def propagate(self, inputs: tuple[Zonotope, ...], boxes: tuple[Interval, ...], origin: str) -> Zonotope:
            found = super().propagate(inputs, boxes, origin)
            return dataclasses.replace(found, own=found.loose * 0.5)

    with pytest.raises(AssertionError):
        check(Wrong(), make())
