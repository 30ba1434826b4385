"""Regions of choices against all of their combinations."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from tests.sets.choice_cases import choice_region, every
from vertex_softmax.bounds.box_passes import all_boxes
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.sets.choice_region import ChoiceRegion

SHAPE = (4, 3)
COUNTS = ((3, 1, 2, 1), (1, 1, 4, 2), (1, 1, 1, 1))


def drawn(*dims: int, seed: int = 0) -> Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_least_value_is_that_of_the_best_combination_bit_by_bit_where_sums_are_exact() -> None:
    for seed in range(20):
        region = choice_region(SHAPE, COUNTS, seed, whole=True)
        A, constant = (8 * drawn(3, 5, *SHAPE, seed=seed)).round(), (8 * drawn(3, 5, seed=seed + 1)).round()
        least, points = region.minimise(A, constant)
        assert torch.equal(region.support(A, constant), least)
        for i in range(3):
            values = constant[i] + torch.einsum("nab,sab->ns", every(region, i), A[i])
            assert torch.equal(least[i], values.amin(0))
            assert torch.equal((A[i] * points[i]).flatten(1).sum(1) + constant[i], values.amin(0))
            assert all((point == every(region, i)).flatten(1).all(1).any() for point in points[i])


def test_the_least_value_is_within_rounding_of_the_exact_one() -> None:
    region, A = choice_region(SHAPE, COUNTS, 3), drawn(3, 4, *SHAPE, seed=9)
    found = region.support(A)
    for i in range(3):
        for s in range(4):
            exact = min(
                sum(Fraction(a) * Fraction(x) for a, x in zip(A[i, s].flatten().tolist(), p.tolist(), strict=True))
                for p in every(region, i).flatten(1)
            )
            assert abs(Fraction(float(found[i, s])) - exact) <= Fraction(1, 10**13)


def test_the_box_is_the_smallest_around_all_combinations() -> None:
    region = choice_region(SHAPE, COUNTS, 1)
    for i in range(3):
        points = every(region, i)
        assert torch.equal(region.box.lower[i], points.amin(0))
        assert torch.equal(region.box.upper[i], points.amax(0))


@pytest.mark.parametrize("counts", [COUNTS, ((2, 1, 2, 1), (1, 1, 2, 2), (1, 2, 1, 1)), ((5, 4, 1, 6),) * 3])
def test_every_combination_and_every_mean_of_some_lies_in_the_balls_around_the_middle(
    counts: tuple[tuple[int, ...], ...],
) -> None:
    for seed in range(5):
        region = choice_region(SHAPE, counts, seed)
        columns, middle = region.columns(), region.middle
        assert columns.shape[2] == (1 if max(map(max, counts)) == 2 else region.values.shape[2])
        eta = drawn(200, *SHAPE, seed=seed)
        for i in range(3):
            points = every(region, i)
            along = torch.einsum("ntd,bktd->nbk", eta, columns[i])
            reach = along.square().sum(-1).sqrt().sum(-1)
            off = torch.einsum("ntd,ptd->np", eta, points - middle[i]).abs().amax(1)
            assert bool((off <= reach * (1 + 1e-12) + 1e-12).all())
            if max(map(max, counts)) == 2:  # segments: nothing is lost
                torch.testing.assert_close(off, reach, rtol=1e-12, atol=1e-12)


def test_parts_of_a_batch_and_other_orders_are_the_same_sets() -> None:
    region, A = choice_region(SHAPE, COUNTS, 2), drawn(3, 5, *SHAPE, seed=4)
    numbers = torch.randperm(12, generator=torch.Generator().manual_seed(1)).reshape(2, 6)
    other = region.rearranged(numbers)
    turned = A.flatten(2)[..., numbers.flatten()].reshape(3, 5, 2, 6)
    torch.testing.assert_close(other.support(turned), region.support(A), rtol=1e-13, atol=1e-13)
    least, points = other.minimise(turned)
    torch.testing.assert_close((turned * points).flatten(2).sum(-1), least, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(region.at(slice(1, 3)).support(A[1:]), region.support(A)[1:], rtol=0, atol=0)


def test_parts_share_the_rows_of_all_choices() -> None:
    region = choice_region(SHAPE, ((3, 1, 4, 2),), 5)
    allowed = region.allowed.repeat(4, 1, 1)
    for i in range(1, 4):
        for k in range(allowed.shape[1]):
            first = int(allowed[i, k].nonzero()[0])
            allowed[i, k, first] = bool(allowed[i, k].sum() == 1) or i % 2 == 0
    parts, A = region.restricted(allowed), drawn(4, 3, *SHAPE, seed=6)
    found = parts.support(A)
    for i in range(4):
        values = torch.einsum("nab,sab->ns", every(parts, i), A[i])
        torch.testing.assert_close(found[i], values.amin(0), rtol=1e-13, atol=1e-13)


def per_token(seed: int, out: int = 5) -> tuple[Tensor, Tensor]:
    """A map that is applied to every token, as a matrix of all numbers, and its constant."""
    weight, bias = drawn(out, SHAPE[1], seed=seed), drawn(SHAPE[0], out, seed=seed + 1)
    return torch.block_diag(*[weight] * SHAPE[0]), bias.reshape(1, -1)


@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_one_word_each_are_known_at_all_combinations(turned: bool) -> None:
    region, (matrix, constant) = choice_region(SHAPE, COUNTS, 7), per_token(8)
    shape = (SHAPE[0], 5)
    if turned:
        order = torch.arange(len(matrix)).reshape(shape).mT.flatten()
        matrix, constant, shape = matrix[order], constant[:, order], (5, SHAPE[0])
    form = region.form(matrix, constant, shape)
    rows = form.columns if turned else form.rows
    assert rows is not None
    assert (form.rows is None) == turned
    eta = drawn(3, 2, 6, 5, seed=11)
    w = rows.functionals(eta)
    for i in range(3):
        values = (every(region, i).flatten(1) @ matrix.mT + constant).reshape(-1, *shape)
        torch.testing.assert_close(form.box.lower[i], values.amin(0), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(form.box.upper[i], values.amax(0), rtol=1e-10, atol=1e-10)
        assert bool((form.box.lower[i] <= values.amin(0)).all() & (form.box.upper[i] >= values.amax(0)).all())
        each = values.mT if turned else values
        all_w = torch.einsum("smd,pnd->psmn", eta[i], each)
        torch.testing.assert_close(w.lower[i], all_w.amin(0), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(w.upper[i], all_w.amax(0), rtol=1e-12, atol=1e-12)


def test_products_of_rows_have_the_range_of_all_pairs_and_one_word_has_one_choice() -> None:
    for seed in range(10):
        region = choice_region(SHAPE, COUNTS, seed)
        (left, first), (right, second) = per_token(seed + 1), per_token(seed + 3)
        x, y = (region.form(m, c, (SHAPE[0], 5)).rows for m, c in ((left, first), (right, second)))
        assert x is not None
        assert y is not None
        at_x, at_y = drawn(3, SHAPE[0], 5, seed=seed), drawn(3, SHAPE[0], 5, seed=seed + 1)
        plain, about = x.products(y), x.products(y, at_x, at_y)
        for i in range(3):
            points = every(region, i).flatten(1)
            a, b = ((points @ m.mT + c).reshape(-1, SHAPE[0], 5) for m, c in ((left, first), (right, second)))
            for box, values in ((plain, a @ b.mT), (about, (a - at_x[i]) @ (b - at_y[i]).mT)):
                torch.testing.assert_close(box.lower[i], values.amin(0), rtol=1e-10, atol=1e-10)
                torch.testing.assert_close(box.upper[i], values.amax(0), rtol=1e-10, atol=1e-10)
                assert bool((box.lower[i] <= values.amin(0)).all() & (box.upper[i] >= values.amax(0)).all())


def test_where_rows_mix_words_the_box_is_exact_still() -> None:
    region, matrix, constant = choice_region(SHAPE, COUNTS, 9), drawn(6, 12, seed=1), drawn(1, 6, seed=2)
    form = region.form(matrix, constant, (2, 3))
    assert form.rows is None
    assert form.columns is None
    for i in range(3):
        values = (every(region, i).flatten(1) @ matrix.mT + constant).reshape(-1, 2, 3)
        torch.testing.assert_close(form.box.lower[i], values.amin(0), rtol=1e-10, atol=1e-10)
        assert bool((form.box.lower[i] <= values.amin(0)).all() & (form.box.upper[i] >= values.amax(0)).all())


def test_a_region_in_which_nothing_varies_is_a_point() -> None:
    region = ChoiceRegion(
        drawn(2, *SHAPE), torch.zeros(2, 0, 1, 3).double(), torch.zeros(2, 0, 1).bool(), torch.zeros(0, 3).long()
    )
    A = drawn(2, 3, *SHAPE, seed=1)
    values = (A * region.fixed.unsqueeze(1)).flatten(2).sum(-1)
    torch.testing.assert_close(region.support(A), values, rtol=1e-13, atol=1e-13)
    assert torch.equal(region.minimise(A)[1], region.fixed.unsqueeze(1).expand(-1, 3, -1, -1))
    matrix, constant = per_token(8)
    form = region.form(matrix, constant, (SHAPE[0], 5))
    assert form.rows is not None
    torch.testing.assert_close(form.box.lower, form.box.upper, rtol=1e-10, atol=1e-10)


def test_products_of_the_words_themselves_have_their_exact_ranges() -> None:
    """x xᵀ, without any linear map before."""
    start = build.source((3, 2))
    graph = Graph(start, build.matmul(start, build.transpose(start, -2, -1, "turned"), "products"))
    region = choice_region((3, 2), ((3, 1, 2),), 1)
    box, values = all_boxes(Question.over(graph, region))[graph.output], graph.evaluate(every(region))
    torch.testing.assert_close(box.lower[0], values.amin(0), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(box.upper[0], values.amax(0), rtol=1e-10, atol=1e-10)
