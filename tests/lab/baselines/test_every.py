"""Every score-box method is a bound for every valid box, in order of tightness, whatever the shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

import vertex_softmax as vx
from tests.lab.baselines.boxes import (
    HUGE,
    LEAST,
    Floats,
    batches,
    degenerate,
    enormous,
    inside,
    ordinary,
    points,
    rounding,
    tiny,
    value,
)
from vertex_lab.baselines import (
    SCORE_BOX_METHODS,
    exhaustive_min,
    galileo_min,
    ibp_min,
    simplex_min,
    softmax_lp_min,
    wei_lse_min,
)
from vertex_softmax.softmax_box import reference

PROVED = (ibp_min, simplex_min)
ROUNDED = (softmax_lp_min, wei_lse_min, galileo_min)
BASELINES = (*PROVED, *ROUNDED)
EVERY = tuple(method.function for method in SCORE_BOX_METHODS.values())
Method = Callable[..., Floats]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_no_baseline_is_above_the_exact_minimum_and_the_order_holds() -> None:
    rows = 0
    for c, lower, upper in batches(40, keys=(1, 2, 3, 5, 17)):
        exact, slack = vx.softmax_box_min(c, lower, upper), rounding(c, lower, upper)
        ibp, simplex, program, wei, galileo = found = [baseline(c, lower, upper) for baseline in BASELINES]
        assert np.isfinite(found).all()
        assert (simplex >= ibp).all()
        assert (program >= simplex).all()
        assert (program >= wei).all()
        for bound in (simplex, galileo, program, wei):
            assert (bound <= exact + slack).all()
        rows += len(c)
    assert rows >= 2_000


@pytest.mark.parametrize("baseline", PROVED)
def test_what_subtracts_its_rounding_is_a_proved_bound_of_the_very_numbers(baseline: Method) -> None:
    for c, lower, upper in batches(25, keys=(1, 2, 3, 5, 17)):
        assert vx.is_lower_bound(baseline(c, lower, upper), c, lower, upper).all()


@pytest.mark.parametrize("baseline", BASELINES)
def test_no_baseline_is_above_a_point_of_the_box(baseline: Method) -> None:
    rng = np.random.default_rng(3)
    for c, lower, upper in batches(25, keys=(2, 5, 11)):
        bound = baseline(c, lower, upper) - rounding(c, lower, upper)
        for _ in range(20):
            assert (bound <= value(c, inside(rng, lower, upper))).all()


scores = st.one_of(
    st.floats(-3, 3),
    st.sampled_from([0.0, 1e-300, -1e-16, 37.0, -745.0, 1e5, 2.0**20, -1e17, 1e300, -1e300, HUGE, -HUGE]),
)
coefficients = st.one_of(
    st.floats(-2, 2), st.sampled_from([0.0, LEAST, -LEAST, 1e-308, 1 + 2**-52, HUGE, -HUGE, 1e300])
)


@st.composite
def rows(draw: st.DrawFn) -> tuple[Floats, Floats, Floats]:
    """One row of one to six keys, with masks."""
    keys = draw(st.integers(1, 6))
    c = np.array(draw(st.lists(coefficients, min_size=keys, max_size=keys)))
    ends = np.sort(draw(st.lists(st.tuples(scores, scores), min_size=keys, max_size=keys)), axis=-1)
    masked = np.array([False, *draw(st.lists(st.booleans(), min_size=keys - 1, max_size=keys - 1))])
    return c, *(np.where(masked, -np.inf, ends[:, i]) for i in (0, 1))


@hypothesis.given(rows())
@hypothesis.settings(max_examples=30)
def test_any_row(row: tuple[Floats, Floats, Floats]) -> None:
    for baseline in PROVED:
        assert vx.is_lower_bound(baseline(*row), *row), baseline
    with np.errstate(over="ignore"):
        slack = float(rounding(*(x[None] for x in row))[0]) + 2 * LEAST
    exact = float(vx.softmax_box_min(*row))
    for baseline in ROUNDED:
        assert baseline(*row) <= exact + slack, baseline
    vertices = float(exhaustive_min(*row))
    assert abs(vertices / 2 - exact / 2) <= 2.0**-53 * (len(row[0]) + 800) * np.abs(row[0]).max() + LEAST
    assert softmax_lp_min(*row) >= simplex_min(*row) >= ibp_min(*row)


def test_against_all_vertices_and_interior_points() -> None:
    rng = np.random.default_rng(3)
    for family in (ordinary, tiny, degenerate):
        for row in zip(*family(rng, 10, 5), strict=True):
            least = reference.exhaustive_min(*row)
            for method in EVERY:
                assert method(*row) <= least + 1e-14 * (1 + np.abs(row[0]).max())


@pytest.mark.parametrize("method", EVERY)
def test_a_point_box_gives_the_value_at_the_point(method: Method) -> None:
    c, lower, upper = points(np.random.default_rng(8), 200, 9)
    if method is galileo_min:  # trivial beyond a span of 600
        lower = upper = lower * 0.4
    exact = vx.softmax_box_min(c, lower, upper)
    assert (np.abs(method(c, lower, upper) - exact) <= 2.0**-53 * 30_000 * np.abs(c).max(-1)).all()


@pytest.mark.parametrize("method", EVERY)
def test_one_key_gives_its_coefficient_unless_a_plane_is_all_there_is(method: Method) -> None:
    c, lower, upper = ordinary(np.random.default_rng(12), 50, 1)
    found = method(c, lower, upper)
    assert (found <= c[:, 0] + 1e-15 * np.abs(c[:, 0])).all()
    if method is not wei_lse_min:  # its convex bound of the constant 1 is not constant
        np.testing.assert_allclose(found, c[:, 0], rtol=1e-13)
    np.testing.assert_allclose(method(c, lower, lower), c[:, 0], rtol=1e-13)


@pytest.mark.parametrize("method", EVERY)
def test_equal_coefficients_cost_nothing_where_their_sum_is_known(method: Method) -> None:
    _, lower, upper = ordinary(np.random.default_rng(13), 50, 7)
    found = method(np.full((50, 7), 0.3), lower, upper)
    assert (found <= 0.3 + 1e-15).all()
    if method not in (ibp_min, wei_lse_min):
        np.testing.assert_allclose(found, 0.3, rtol=1e-13)


@pytest.mark.parametrize("method", EVERY)
def test_a_masked_key_is_as_if_it_were_not_there(method: Method) -> None:
    c, lower, upper = ordinary(np.random.default_rng(9), 100, 6)
    slack = 1e-2 if method in (softmax_lp_min, galileo_min) else 2e-12  # they search, and may go another way
    for fill in (-50.0, 1e300):
        hidden = [np.insert(x, (0, 3, 6), y, axis=-1) for x, y in ((c, fill), (lower, -np.inf), (upper, -np.inf))]
        np.testing.assert_allclose(method(*hidden), method(c, lower, upper), rtol=0, atol=slack)


@pytest.mark.parametrize("method", EVERY)
def test_shifting_all_scores_and_scaling_the_coefficients(method: Method) -> None:
    c, lower, upper = ordinary(np.random.default_rng(10), 100, 6)
    found = method(c, lower, upper)
    slack = 1e-2 if method in (softmax_lp_min, galileo_min) else 1e-11  # rounding decides between equal choices
    np.testing.assert_allclose(method(c, lower + 700, upper + 700), found, rtol=0, atol=slack)
    np.testing.assert_allclose(method(c * 2.0**1000, lower, upper) * 2.0**-1000, found, rtol=1e-13)
    np.testing.assert_allclose(method(c * 2.0**-900, lower, upper) * 2.0**900, found, rtol=1e-13)


@pytest.mark.parametrize("method", EVERY)
def test_numbers_near_the_ends_of_the_floats(method: Method) -> None:
    for c in ([HUGE, -HUGE, HUGE], [LEAST, -LEAST, 0.0], [HUGE, -1e-300, LEAST]):
        for width in (0.0, 1.0, 1e4, 1e300, HUGE):
            lower, upper = np.full(3, -width), np.array([width, 0.0, width])
            found = method(np.array(c), lower, upper)
            slack = 0.0 if method in PROVED else 1e-12 * max(map(abs, c)) + LEAST
            assert vx.is_lower_bound(float(found) - slack, np.array(c), lower, upper), (c, width)


@pytest.mark.parametrize("method", EVERY)
def test_a_batch_equals_its_rows(method: Method) -> None:
    rng = np.random.default_rng(14)
    for family in (ordinary, degenerate, enormous):
        boxes = family(rng, 12, 5)
        alone = [method(*row) for row in zip(*boxes, strict=True)]
        np.testing.assert_allclose(method(*boxes), alone, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("method", EVERY)
def test_broadcasting_dtypes_and_tensors(method: Method) -> None:
    rng = np.random.default_rng(11)
    c = rng.normal(size=(5, 1, 4, 6))
    _, lower, upper = (x.reshape(3, 1, 6) for x in ordinary(rng, 3, 6))
    found = method(c, lower, upper)
    assert found.shape == (5, 3, 4)
    assert found.dtype == np.float64
    full = [np.broadcast_to(x, (5, 3, 4, 6)) for x in (c, lower, upper)]
    np.testing.assert_allclose(found, method(*full), rtol=1e-13)
    np.testing.assert_array_equal(found, method(*map(torch.from_numpy, (c, lower, upper))))
    single = [x.astype(np.float32) for x in (c, lower, upper)]
    np.testing.assert_array_equal(method(*single), method(*(x.astype(np.float64) for x in single)))
    assert method(c[:0], lower, upper).shape == (0, 3, 4)
    assert isinstance(method(c[0, 0, 0], lower[0, 0], upper[0, 0]), np.float64)


@pytest.mark.parametrize("method", EVERY)
def test_the_arguments_are_not_written_to(method: Method) -> None:
    boxes = degenerate(np.random.default_rng(15), 20, 5)
    before = [x.copy() for x in boxes]
    method(*boxes)
    for x, was in zip(boxes, before, strict=True):
        np.testing.assert_array_equal(x, was)


@pytest.mark.parametrize("method", EVERY)
def test_bad_boxes_are_refused(method: Method) -> None:
    zero = np.zeros(3)
    bad = (
        (zero, zero + 1, zero),
        (zero + np.nan, zero, zero),
        (zero, zero - np.inf, zero - np.inf),
        (zero + np.inf, zero, zero),
        (zero, zero, zero + np.inf),
        (zero, np.zeros(4), zero),
        (np.zeros(()), zero, zero),
        (zero, zero - np.inf, zero),
    )
    for c, lower, upper in bad:
        with pytest.raises(vx.VertexError):
            method(c, lower, upper)
