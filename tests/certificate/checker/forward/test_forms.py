"""Forms hold what they say, judged in rationals: lengths, affine maps, sums and products with the input's unknowns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flint import arb, fmpq

from tests.certificate.checker.helpers import Array, above, exact, floats, module, precisely

forms, affine, products, pairs = (module(f"forward.{name}") for name in ("forms", "affine", "products", "pairs"))
FAMILIES = ("ordinary", "any scale", "tiny", "squares below the least", "near one")


def form(rng: np.random.Generator, family: str, shape: tuple[int, ...], *, products_too: bool = True) -> Any:
    blocks = {forms.LINES: floats(rng, family, (3, 1, *shape)), 8: floats(rng, family, (2, 2, *shape))}
    if products_too:
        blocks |= {forms.PAIRS: floats(rng, family, (1, 3, *shape)), forms.SQUARES: floats(rng, family, (3, 1, *shape))}
    own, slack = (np.abs(floats(rng, family, shape)) for _ in range(2))
    return forms.Form(centre=floats(rng, family, shape), blocks=blocks, own=own, slack=slack)


def everything() -> Any:
    return lambda _, better: np.ones_like(better)


class Point:
    """Unknowns, all of them, and errors: a value of every form."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.xi = [exact(float(v)) for v in np.round(rng.uniform(-1.4, 1.4, 3) * 8).clip(-8, 8) / 8]
        self.ball = [[exact(v) for v in pair] for pair in ([0.6, -0.8], [-1.0, 0.0])]
        self.rng = rng

    def value(self, x: Any, at: tuple[int, ...], errors: tuple[int, int]) -> fmpq:
        """The number of a form at an index; errors: signs of own and slack."""
        total = exact(x.centre[at]) + errors[0] * exact(x.own[at]) + errors[1] * exact(x.slack[at])
        first, second = pairs.places(3)
        unknowns = {
            forms.LINES: [[v] for v in self.xi],
            forms.SQUARES: [[2 * v * v - 1] for v in self.xi],
            forms.PAIRS: [[self.xi[i] * self.xi[j] for i, j in zip(first, second, strict=True)]],
            8: self.ball,
        }
        for key, columns in x.blocks.items():
            if key not in unknowns:
                continue
            for ball, values in zip(columns, unknowns[key], strict=True):
                total += sum((exact(g[at]) * v for g, v in zip(ball, values, strict=True)), fmpq(0))
        return total

    def off(self, x: Any, at: tuple[int, ...], value: fmpq) -> bool:
        """Whether a value is farther from what the unknowns say than own and slack allow."""
        return abs(value - self.value(x, at, (0, 0))) > exact(x.own[at]) + exact(x.slack[at])


@precisely
@pytest.mark.parametrize("family", FAMILIES)
def test_how_far_numbers_move(family: str) -> None:
    rng = np.random.default_rng(1)
    x = form(rng, family, (3,))
    with np.errstate(all="ignore"):
        bounds = [x.rough, x.radius, x.tight]
    for i in range(3):
        found = sum(
            (abs(arb(exact(v))) for v in x.blocks[forms.LINES][:, 0, i]), arb(exact(x.own[i])) + arb(exact(x.slack[i]))
        )
        found += sum((abs(arb(exact(v))) for v in x.blocks[forms.SQUARES][:, 0, i]), arb(0))
        found += sum(((arb(exact(a)) ** 2 + arb(exact(b)) ** 2).sqrt() for a, b in x.blocks[8][:, :, i]), arb(0))
        a, b, c = (exact(v) for v in x.blocks[forms.PAIRS][0, :, i])
        found += max(abs(arb(a * s + b * t + c * s * t)) for s in (-1, 1) for t in (-1, 1))
        assert all(not found > arb(exact(bound[i])) for bound in bounds if np.isfinite(bound[i])), family


@pytest.mark.parametrize("family", FAMILIES)
def test_affine_ops(family: str) -> None:
    """Every value of the inputs gives a value of the result, with the same unknowns; and weights are off by 2⁻⁴⁶."""
    rng = np.random.default_rng(2)
    x, y = form(rng, family, (2, 3)), form(rng, family, (2, 3))
    weight, factor = floats(rng, "ordinary", (3, 4)), floats(rng, "ordinary", (2, 3))
    with np.errstate(all="ignore"):
        plain = forms.Form(centre=x.centre, blocks=x.blocks, own=np.zeros((2, 3)), slack=x.slack)
        results = (
            affine.linear(plain, weight, 40, lambda _, better: np.zeros_like(better)),
            affine.scaled(x, factor),
            forms.total(x, y),
        )
        index = np.array([[5, 0, 7], [7, 11, 2]])
        moved = affine.moved([x, y], index), affine.moved([x], index[:1] % 6)
    for _ in range(4):
        point = Point(rng)
        signs = int(rng.choice([-1, 1])), int(rng.choice([-1, 1]))
        nudge = 1 + exact(float(rng.choice([-1, 1])) * 2.0**-46)
        v = [[point.value(x, (r, i), signs) for i in range(3)] for r in range(2)]
        w = [[point.value(y, (r, i), signs) for i in range(3)] for r in range(2)]
        u = [[point.value(plain, (r, i), signs) for i in range(3)] for r in range(2)]
        for r in range(2):
            for o in range(4):
                total = sum((u[r][i] * exact(weight[i, o]) * nudge for i in range(3)), fmpq(0))
                assert not point.off(results[0], (r, o), total)
            for i in range(3):
                assert not point.off(results[1], (r, i), v[r][i] * exact(factor[r, i]) * nudge)
                assert not point.off(results[2], (r, i), v[r][i] + w[r][i])
                both = [*v[0], *v[1], *w[0], *w[1]]
                assert not point.off(moved[0], (r, i), both[index[r, i]])
        assert not any(point.off(moved[1], (0, i), both[index[0, i] % 6]) for i in range(3))


@precisely
@pytest.mark.parametrize("family", ["ordinary", "tiny", "squares below the least", "near one"])
@pytest.mark.parametrize("together", [(True, True), (True, False), (False, False)])
def test_what_numbers_have_for_themselves_becomes_unknowns(family: str, together: tuple[bool, bool]) -> None:
    """A ball of a row, or one unknown for each number; then nothing is lost."""
    rng = np.random.default_rng(3)
    own, weight = np.abs(floats(rng, family, (2, 3))), floats(rng, "ordinary", (3, 4))
    zero = np.zeros((2, 3))

    def pick(name: str, better: Any) -> Any:
        return np.array(together) if name == "together" else np.ones_like(better)

    with np.errstate(all="ignore"):
        found = affine.linear(forms.Form(centre=zero, blocks={}, own=own / 2, slack=own / 2), weight, 40, pick)
    assert not found.own.any()
    for r in range(2):
        for eta in rng.standard_normal((5, 4)):
            most = arb(0)
            for i in range(3):
                along = sum((exact(a) * exact(b) for a, b in zip(weight[i], eta, strict=True)), fmpq(0))
                most += abs(arb(along)) * arb(exact(own[r, i])) * (1 + arb(2) ** -46)
            bound = sum((abs(arb(exact(e))) * arb(exact(s)) for e, s in zip(eta, found.slack[r], strict=True)), arb(0))
            for ball in (ball for block in found.blocks.values() for ball in block):
                dots = [sum((exact(a) * exact(b) for a, b in zip(g, eta, strict=True)), fmpq(0)) for g in ball[:, r]]
                bound += arb(sum((v * v for v in dots), fmpq(0))).sqrt()
            assert not most > bound
            assert together[r] or family != "ordinary" or not bound > most * (1 + arb(10) ** -9)


@pytest.mark.parametrize("family", ["ordinary", "near one", "tiny"])
@pytest.mark.parametrize("kept", [False, True])
def test_products_of_matrices(family: str, kept: bool) -> None:
    rng = np.random.default_rng(4)
    x, y = form(rng, family, (2, 3)), form(rng, family, (3, 2))
    small = {k: 0.1 * v for k, v in x.blocks.items()}
    x = forms.Form(centre=x.centre, blocks=small, own=0.01 * x.own, slack=0.0 * x.slack)

    def pick(_: str, better: Array) -> Array:
        return np.full_like(better, kept)

    with np.errstate(all="ignore"):
        found = products.matrix_product(x, y, 3, pick)
    for _ in range(20):
        point = Point(rng)
        signs = int(rng.choice([-1, 1])), int(rng.choice([-1, 1]))
        for r in range(2):
            for m in range(2):
                true = sum((point.value(x, (r, i), signs) * point.value(y, (i, m), signs) for i in range(3)), fmpq(0))
                assert not point.off(found, (r, m), true), (family, kept)


@pytest.mark.parametrize("kept", [False, True])
def test_products_number_by_number(kept: bool) -> None:
    """As a box, each is within its own error; the balls for rows are judged by test_propagation.py."""
    rng = np.random.default_rng(5)
    x, y = form(rng, "ordinary", (2, 3)), form(rng, "ordinary", (2, 3))

    def pick(_: str, better: Array) -> Array:
        return np.zeros_like(better)

    with np.errstate(all="ignore"):
        found = products.element_product(x, y, 3 if kept else 0, 40, pick)
    for _ in range(20):
        point = Point(rng)
        signs = int(rng.choice([-1, 1])), int(rng.choice([-1, 1]))
        for at in np.ndindex(2, 3):
            assert not point.off(found, at, point.value(x, at, signs) * point.value(y, at, signs))


@precisely
@pytest.mark.parametrize("family", ["ordinary", "any scale", "tiny", "powers"])
def test_the_norm_of_a_product(family: str) -> None:
    """|yᵀ Lᵀ L' x| ≤ norm |x| |y| at the singular vectors."""
    rng = np.random.default_rng(6)
    L, R = floats(rng, family, (2, 3, 3)), floats(rng, family, (2, 3, 3))
    L[1] = np.outer(L[1, 0], [1.0, 0.0, 0.0])
    with np.errstate(all="ignore"):
        found = products.product_norm(L, R)
    for k in range(2):
        if not np.isfinite(found[k]):
            continue
        a, b = (np.abs(z[k]).max() for z in (L, R))
        left, _, right = np.linalg.svd((L[k] / a).T @ (R[k] / b))
        for y, x in [(left[:, i], right[i]) for i in range(3)] + [(left[:, 0], right[1])]:
            of_x = [sum((exact(g) * exact(v) for g, v in zip(row, x, strict=True)), fmpq(0)) for row in R[k]]
            of_y = [sum((exact(g) * exact(v) for g, v in zip(row, y, strict=True)), fmpq(0)) for row in L[k]]
            value = sum((p * q for p, q in zip(of_x, of_y, strict=True)), fmpq(0))
            length = sum((exact(v) ** 2 for v in x), fmpq(0)) * sum((exact(v) ** 2 for v in y), fmpq(0))
            assert value**2 <= exact(found[k]) ** 2 * length


def test_choosing_numbers() -> None:
    rng = np.random.default_rng(7)
    x, y = form(rng, "ordinary", (2, 3)), form(rng, "ordinary", (2, 3), products_too=False)
    first = np.array([[True, False, True], [False, False, True]])
    found = forms.chosen(first, x, y)
    for at in np.ndindex(2, 3):
        point = Point(rng)
        assert point.value(found, at, (1, 1)) == point.value(x if first[at] else y, at, (1, 1))
    assert forms.chosen(np.ones((2, 1), dtype=bool), x, y) is x
    assert forms.chosen(np.zeros((2, 1), dtype=bool), x, y) is y
    assert above(found.size[0, 0], abs(exact(found.centre[0, 0])))
