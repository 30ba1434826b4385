"""The affine vertex rule: no point of the boxes falls below it, and it is the rule that it says it is.

Without a tolerance where `outward`, decided by ball arithmetic; the plain result within `tolerance`.
"""

from __future__ import annotations

import doctest
import itertools

import flint
import numpy as np
import pytest
import torch
from flint import arb

from tests.softmax_box.affine_checks import (
    check_not_vacuous,
    check_outward,
    check_points,
    check_ranges,
    check_values,
    knowing,
    known,
    lists,
    tolerance,
)
from tests.softmax_box.affine_rows import Rows, awkward, excess, extreme, rows, worst_points
from tests.softmax_box.helpers import DTYPES
from vertex_softmax.softmax_box import affine, affine_minorant, reference, softmax_box_min
from vertex_softmax.softmax_box.affine import least, log_probabilities
from vertex_softmax.softmax_box.affine_outward import LOG_ULPS, proved_ranges
from vertex_softmax.softmax_box.outward import LIMITS

SHAPES = [(1, 1), (1, 4), (2, 1), (2, 2), (3, 1), (3, 3), (4, 8), (5, 1), (5, 2), (7, 1), (9, 1), (9, 5), (17, 1)]


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors on a busy machine: threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Soundness


def no_point_falls_below(count: int, K: int, M: int, dtype: torch.dtype, seed: int, starts: int, steps: int) -> None:
    rng = np.random.default_rng([seed, K, M])
    box = rows(rng, count, K, M, dtype)
    s, v = worst_points(box, rng, starts, steps)
    check_points(affine_minorant, box, (s, v))
    double = Rows(*(x.double() for x in box))
    plain = affine_minorant(*box)
    assert plain.isfinite().all()
    assert (plain.double() - excess(double, s, v) <= 2 * tolerance(box)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("K", "M"), SHAPES)
def test_no_point_falls_below(K, M, dtype) -> None:
    """2 · 13 · 2,000 = 52,000 rows, each at the lowest of 10 random points and 80 on descents from them."""
    no_point_falls_below(2000, K, M, dtype, 0, 10, 8)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("K", "M"), SHAPES)
@pytest.mark.parametrize("seed", range(1, 9))
def test_no_point_falls_below_at_length(K, M, dtype, seed) -> None:
    """8 · 2 · 13 · 5,000 = 1,040,000 rows."""
    no_point_falls_below(5000, K, M, dtype, seed, 12, 30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("K", "M"), [*SHAPES, (2, 8), (33, 1), (33, 3), (70, 1)])
def test_against_the_rule_in_ball_arithmetic(K, M, dtype) -> None:
    case = known(max(20, 4000 // (K * K + M * K)), K, M, dtype)
    check_values(affine_minorant, [case])
    check_outward(affine_minorant, [case])
    check_not_vacuous(affine_minorant, [case])
    check_ranges(proved_ranges, [case])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("family", [extreme, awkward])
def test_hostile_sizes_and_roundings(family, seed) -> None:
    """Terms that underflow or overflow, and rows where rounding decides."""
    rng = np.random.default_rng([seed, 7])
    K, M = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    case = knowing(f"{family.__name__}, seed {seed}", family(rng, 300, K, M), rng)
    check_values(affine_minorant, [case])
    check_outward(affine_minorant, [case])
    check_not_vacuous(affine_minorant, [case])
    check_ranges(proved_ranges, [case])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 200))
@pytest.mark.parametrize("family", [extreme, awkward])
def test_hostile_sizes_and_roundings_at_length(family, seed) -> None:
    test_hostile_sizes_and_roundings(family, seed)


def test_subnormal_numbers_are_not_flushed() -> None:
    """Also under torch.set_flush_denormal(True): the values, and so B, are −10⁻³¹⁰ here, not 0."""
    zero, level, small = np.zeros(2), np.zeros(1), np.full(2, -1e-310)
    torch.set_flush_denormal(True)
    try:
        got = [affine_minorant(zero, zero, small, small, zero, zero, level, outward=out) for out in (False, True)]
    finally:
        torch.set_flush_denormal(False)
    assert -1.0001e-310 < got[0] < -0.9999e-310
    assert got[1] <= -1e-310


def test_what_overflows_is_minus_infinity() -> None:
    """Never NaN, never +inf, which would be no bound."""
    big = np.full((1, 2), 1e308)
    zero, one = np.zeros((1, 2)), np.ones((1, 1))
    for outward in (False, True):
        for slope in (big, -big, big * [[1, -1]]):
            got = affine_minorant(-1000 + zero, zero, zero, zero, slope, zero, one, outward=outward)
            assert (got == -np.inf).all()
        assert affine_minorant(zero, zero, -big, big, zero, big, 1e308 * one, outward=outward) == -np.inf
        large = np.full((1, 2), 3e38, np.float32)
        got = affine_minorant(large * 0, large * 0, large, large, large * 0, -large, large[:, :1], outward=outward)
        assert got == (np.finfo(np.float32).max if outward else -np.inf)


def test_one_key_dominates_and_others_are_nearly_nothing() -> None:
    """p^U rounds to 1 and Σ_{k≠j} p_k to nothing; every piece must count (METHOD.md, section 10)."""
    rng = np.random.default_rng(5)
    box = rows(rng, 2000, 6, 6)
    lower, upper = box.lower.clone(), box.upper.clone()
    lower[:, 0] = upper[:, 1:].amax(-1).clamp(min=0) + torch.from_numpy(rng.choice([30.0, 37.0, 400.0, 800.0], 2000))
    upper[:, 0] = lower[:, 0] + torch.from_numpy(rng.choice([0.0, 1e-15, 1e-3, 40.0], 2000))
    box = box._replace(lower=lower, upper=upper)
    check_points(affine_minorant, box, worst_points(box, rng, 6, 6))
    check_values(affine_minorant, [knowing("dominating", Rows(*(x[:300] for x in box)), rng)])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_a_cuda_device(dtype) -> None:
    def moved(*box: torch.Tensor, outward: bool = False) -> torch.Tensor:
        return affine_minorant(*(x.cuda() for x in box), outward=outward).cpu()

    for K, M in SHAPES:
        case = known(200, K, M, dtype)
        check_values(moved, [case])
        check_outward(moved, [case])
        check_not_vacuous(moved, [case])


# Values


@pytest.mark.parametrize(("K", "M"), SHAPES)
def test_agrees_with_the_reference(K, M) -> None:
    box = rows(np.random.default_rng([1, K, M]), 60, K, M)
    slow = [reference.affine_minorant(*(np.array(x) for x in row)) for row in lists(box)]
    # the reference rounds lse(s) where the scores are, not less max u: r and lse(s) are off by ulps of the scores
    far = torch.where(box.upper > -torch.inf, torch.maximum(box.lower.abs(), box.upper.abs()), 0.0).amax(-1)
    values = torch.maximum(box.value_lower.abs(), box.value_upper.abs()).amax(-1) + box.mu.abs().amax(-1)
    allowed = 2 * tolerance(box) + 1e-15 * far * (values + box.a.abs().sum(-1))
    off = (affine_minorant(*box) - torch.tensor(slow, dtype=torch.float64)).abs()
    assert (off <= allowed).all(), (off / allowed).max()


def test_pieces_converge_to_the_exact_minimum() -> None:
    """a = 0, m = 0, v fixed: never above softmax_box_min, and M pieces bring it there like 1/M."""
    generator = torch.Generator().manual_seed(3)
    lower = 2 * torch.randn(100, 6, generator=generator, dtype=torch.float64)
    upper = lower + 3 * torch.rand(100, 6, generator=generator, dtype=torch.float64)
    c = torch.randn(100, 6, generator=generator, dtype=torch.float64)
    exact = softmax_box_min(c, lower, upper)
    zero = torch.zeros_like(c)
    gaps = []
    for M in (1, 4, 16, 64, 256, 1024):
        best = affine_minorant(lower, upper, c, c, zero, zero, exact[:, None].expand(-1, M))
        assert (best <= exact + 1e-14).all()
        gaps.append((exact - best).max().item())
    assert all(later < 0.5 * earlier for earlier, later in itertools.pairwise(gaps[1:]))
    assert gaps[-1] < 0.02 * gaps[0]
    assert gaps[-1] < 0.02


def test_the_best_multipliers_of_each_piece_are_no_worse() -> None:
    """Ternary search on each multiplier by itself: B of a piece is concave in its μ."""
    generator = torch.Generator().manual_seed(8)
    lower = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    upper = lower + 2 * torch.rand(40, 5, generator=generator, dtype=torch.float64)
    c = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    exact, zero = softmax_box_min(c, lower, upper), torch.zeros_like(c)
    for M, most in ((1, 1.0), (64, 0.05)):
        mu = exact[:, None].repeat(1, M).requires_grad_()
        best = start = affine_minorant(lower, upper, c, c, zero, zero, mu).detach()
        for step in np.geomspace(0.1, 1e-5, 60):
            (slope,) = torch.autograd.grad(affine_minorant(lower, upper, c, c, zero, zero, mu).sum(), mu)
            mu = (mu + step * slope.sign()).detach().requires_grad_()
            best = torch.maximum(best, affine_minorant(lower, upper, c, c, zero, zero, mu).detach())
        assert (best >= start).all()
        assert (best <= exact + 1e-14).all()
        assert (exact - best).max() < most


def test_finer_pieces_are_no_worse() -> None:
    for K in (1, 2, 5):
        box = rows(np.random.default_rng([2, K]), 500, K, 3)
        finer = box._replace(mu=box.mu.repeat_interleave(4, -1))
        slack = 2 * (tolerance(box) + tolerance(finer))
        assert (affine_minorant(*finer) >= affine_minorant(*box) - slack).all()


def test_a_point_is_exact_whatever_the_parameters() -> None:
    box = rows(np.random.default_rng(6), 500, 4, 2)
    box = box._replace(upper=box.lower, value_upper=box.value_lower)
    s = torch.where(box.lower > -torch.inf, box.lower, 0.0)
    off = (affine_minorant(*box) - excess(box, s, box.value_lower)).abs()
    assert (off <= 2 * tolerance(box)).all()


def test_the_inner_minimum_is_the_minimum() -> None:
    rng = np.random.default_rng(0)
    w, a = (torch.from_numpy(rng.normal(size=(4000, 1)) * 10 ** rng.uniform(-1, 2, (4000, 1))) for _ in range(2))
    left = torch.from_numpy(rng.normal(size=(4000, 1)) * 10 ** rng.uniform(-1, 1, (4000, 1)))
    right = left + torch.from_numpy(rng.random((4000, 1)) * 10 ** rng.uniform(-1, 0.5, (4000, 1)))
    found = least(w, a, left, right, left.exp(), right.exp())
    grid = left + (right - left) * torch.linspace(0, 1, 4001, dtype=torch.float64)
    values = (w * grid.exp() - a * grid).amin(-1, keepdim=True)
    size = (w.abs() * grid.exp() + (a * grid).abs()).amax(-1, keepdim=True)
    assert (found <= values + 1e-14 * size).all()
    assert (found >= values - 1e-5 * size).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_probabilities_are_those_of_the_corners(dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    lower = 300 * torch.randn(200, 5, generator=generator, dtype=dtype)
    lower[:, 0] += 2000 * (torch.arange(200) % 2)  # one key far above the others
    upper = lower + 10 * torch.rand(200, 5, generator=generator, dtype=dtype)
    low, high = log_probabilities(lower, upper)
    lower, upper = lower.double(), upper.double()
    accuracy = 1e-13 if dtype == torch.float64 else 1e-6
    for j in range(5):
        worst, best = upper.clone(), lower.clone()
        worst[:, j], best[:, j] = lower[:, j], upper[:, j]
        torch.testing.assert_close(low[:, j].double(), worst.log_softmax(-1)[:, j], rtol=accuracy, atol=accuracy)
        torch.testing.assert_close(high[:, j].double(), best.log_softmax(-1)[:, j], rtol=accuracy, atol=accuracy)


def test_log_probabilities_of_rows_with_masked_and_unbounded_keys() -> None:
    inf = torch.inf
    lower = torch.tensor([[0.0, -inf, 1.0], [-inf, -inf, 3.0], [-inf, -inf, -inf], [-inf, 0.0, 1.0], [0.0, 0.0, 0.0]])
    upper = torch.tensor([[0.0, -inf, 1.0], [-inf, -inf, 4.0], [-inf, -inf, -inf], [1.0, 0.0, 1.0], [inf, 0.0, inf]])
    low, high = log_probabilities(lower, upper)
    assert not (low.isnan() | high.isnan()).any()
    assert low[1].tolist() == high[1].tolist() == [-inf, -inf, 0.0]
    assert low[2].tolist() == high[2].tolist() == [-inf] * 3
    assert low[3, 0] == -inf
    assert low[4].tolist() == [-inf] * 3
    assert high[4, 0] == high[4, 2] == 0
    torch.testing.assert_close(low[0, [0, 2]], torch.tensor([0.0, 1.0]).log_softmax(-1))


# Form


def test_arrays_tensors_broadcasting_and_precision() -> None:
    box = rows(np.random.default_rng(9), 4, 3, 2)
    whole = affine_minorant(*box)
    arrays = affine_minorant(*(x.numpy() for x in box))
    assert isinstance(arrays, np.ndarray)
    np.testing.assert_array_equal(arrays, whole.numpy())
    assert isinstance(affine_minorant(*(x[0].numpy() for x in box)), np.float64)
    single = affine_minorant(*(x.float() for x in box))
    assert single.dtype == torch.float32
    assert affine_minorant(*(x.float() for x in box[:-1]), box.mu).dtype == torch.float64
    zero, some = torch.zeros(3, dtype=torch.float64), torch.rand(4, 1, 3, dtype=torch.float64)
    spread = Rows(zero, some, *(x[None] for x in box[2:4]), some[1, 0], box.m[None], box.mu[:, None])
    got = affine_minorant(*spread)
    assert got.shape == (4, 4)
    apart = [x.expand(4, 4, -1).reshape(16, -1) for x in spread]
    assert got.flatten().equal(affine_minorant(*apart))
    assert affine_minorant(*(x[:0] for x in box)).shape == (0,)


def test_the_example_in_the_docstring_is_true() -> None:
    found = doctest.testmod(affine)
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize("function", ["log", "log1p"])
def test_torch_logarithms_are_within_what_the_proof_assumes(function) -> None:
    """In (0, 1] and at masses up to 1,000, also beside 1, where the logarithm is near 0."""
    rng = np.random.default_rng(0)
    beside = (1 - 2.0**-53 * rng.integers(1, 200, 500), 1 + 2.0**-52 * rng.integers(1, 200, 500))
    anywhere = (10 ** rng.uniform(-307, 0, 5_000), rng.uniform(0.4, 1, 5_000), rng.uniform(1, 1e3, 5_000))
    x = np.concatenate([*beside, *anywhere])
    got = getattr(torch, function)(torch.from_numpy(x)).tolist()
    with flint.ctx.workprec(1200):
        for value, argument in zip(got, x.tolist(), strict=True):
            exact = getattr(arb(argument), function)()
            assert abs(arb(value) - exact) <= abs(exact) * arb(LOG_ULPS * LIMITS[torch.float64].unit), argument


# Gradients


@pytest.mark.parametrize(("K", "M"), [(1, 1), (2, 1), (3, 2), (5, 1), (6, 4)])
def test_gradients_are_those_of_finite_differences(K, M) -> None:
    """In all arguments, where the differences to the left and to the right agree: elsewhere there is a kink."""
    rng = np.random.default_rng([4, K, M])
    lower = rng.normal(size=(200, K)) * 2
    value_lower = rng.normal(size=(200, K))
    ends = (lower, lower + rng.uniform(0.1, 3, (200, K)), value_lower, value_lower + rng.uniform(0.1, 2, (200, K)))
    free = (rng.normal(size=(200, K)), rng.uniform(-0.2, 1.2, (200, K)), rng.normal(size=(200, M)))
    box = [torch.from_numpy(x).requires_grad_() for x in (*ends, *free)]
    found = affine_minorant(*box)
    gradients = torch.autograd.grad(found.sum(), box)
    smooth = []
    for i, gradient in enumerate(gradients):
        for j in range(gradient.shape[-1]):
            step = 1e-6 * torch.nn.functional.one_hot(torch.tensor(j), gradient.shape[-1])
            up, down = (affine_minorant(*box[:i], box[i] + sign * step, *box[i + 1 :]) for sign in (1, -1))
            right, left = (up - found) / 1e-6, (found - down) / 1e-6
            smooth.append(agree := (right - left).abs() < 1e-4)
            assert ((right + left) / 2 - gradient[:, j]).abs()[agree].max() < 1e-4
    assert torch.stack(smooth).double().mean() > 0.99


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("K", "M"), [(1, 2), (3, 1), (6, 3)])
def test_gradients_are_finite(K, M, dtype) -> None:
    """In all arguments, at every sort of row: masks, points, ratios a/w that underflow."""
    rng = np.random.default_rng([5, K, M])
    for box in (rows(rng, 2000, K, M, dtype), extreme(rng, 2000, K, M)):
        leaves = [x.clone().requires_grad_() for x in box]
        found = affine_minorant(*leaves)
        gradients = torch.autograd.grad(found[found.isfinite()].sum(), leaves)
        sane = found.isfinite()
        assert all(gradient[sane].isfinite().all() for gradient in gradients)
        assert sane.double().mean() > 0.5


def test_outward_carries_no_gradient() -> None:
    box = [x.requires_grad_() for x in rows(np.random.default_rng(1), 3, 2, 1)]
    assert not affine_minorant(*box, outward=True).requires_grad
