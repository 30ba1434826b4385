"""No point of the box is below the result, and the result moves as the mathematics says (hypothesis)."""

from __future__ import annotations

import numpy as np
import torch
from flint import arb
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import vertex_softmax as vx
from tests.softmax_box.helpers import exact_ratio, tolerance

few = settings(max_examples=50)
MASK = (-np.inf, -np.inf)
number = st.floats(-50, 50, allow_subnormal=False)
score = st.one_of(st.floats(-30, 30), st.floats(-400, 400), st.integers(-3, 3).map(float))
interval = st.tuples(score, st.one_of(st.just(0.0), st.floats(0, 4), st.floats(0, 300))).map(
    lambda x: (x[0], x[0] + x[1])
)
key = st.tuples(
    st.one_of(number, st.integers(-2, 2).map(float)), st.one_of(interval, interval, interval, st.just(MASK))
)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    keys = draw(st.lists(key, min_size=1, max_size=8))
    assume(any(ends != MASK for _, ends in keys))
    c, ends = np.array([k[0] for k in keys]), np.array([k[1] for k in keys])
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    return c.astype(dtype), ends[:, 0].astype(dtype), ends[:, 1].astype(dtype)


def allowed(c: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    return tolerance(*(torch.from_numpy(x)[None] for x in (c, lower, upper))).item()


def inside(lower: np.ndarray, upper: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Points of the box, in its own precision: exact at part 0 and 1, clipped between."""
    with np.errstate(invalid="ignore"):
        point = np.where(part == 1, upper, lower + part * (upper - lower))
    return np.where(upper == -np.inf, -np.inf, np.clip(point, lower, upper)).astype(lower.dtype)


@few
@given(boxes(), st.integers(0, 2**32 - 1))
def test_no_point_of_the_box_is_below_the_minimum(box, seed) -> None:
    c, lower, upper = box
    rng = np.random.default_rng(seed)
    low, high = (float(x) for x in vx.softmax_box_bounds(c, lower, upper))
    sure_low, sure_high = (float(x) for x in vx.softmax_box_bounds(c, lower, upper, outward=True))
    for corner in (True, False):
        for _ in range(8):
            part = rng.random(len(c))
            scores = inside(lower, upper, (part < 0.5).astype(float) if corner else part)
            value = exact_ratio(c, scores)
            assert value >= low - allowed(c, lower, upper)
            assert value <= high + allowed(c, lower, upper)
            assert not value < sure_low
            assert not value > sure_high


@few
@given(boxes(), st.integers(0, 2**32 - 1))
def test_the_attaining_vertex_is_a_point_of_the_box(box, seed) -> None:
    c, lower, upper = box
    vertex = vx.softmax_box_argmin(c, lower, upper)
    attained = exact_ratio(c, np.where(vertex.mask, upper, lower))
    assert float(abs(attained - arb(float(vertex.value))).upper()) <= 2 * allowed(c, lower, upper)


@few
@given(boxes(), st.integers(0, 2**32 - 1))
def test_shrinking_the_box_never_lowers_the_minimum(box, seed) -> None:
    c, lower, upper = box
    ends = np.sort(np.random.default_rng(seed).random((2, len(c))), axis=0)
    small_lower, small_upper = inside(lower, upper, ends[0]), inside(lower, upper, ends[1])
    small_lower = np.minimum(small_lower, small_upper)
    slack = allowed(c, lower, upper) + allowed(c, small_lower, small_upper)
    outer, inner = (float(vx.softmax_box_min(c, *b)) for b in ((lower, upper), (small_lower, small_upper)))
    assert inner >= outer - slack
    assert float(vx.softmax_box_max(c, small_lower, small_upper)) <= float(vx.softmax_box_max(c, lower, upper)) + slack
    assert inner >= float(vx.softmax_box_min(c, lower, upper, outward=True)) - allowed(c, small_lower, small_upper)


@few
@given(boxes(), st.integers(-64, 64))
def test_a_common_shift_of_the_scores_changes_nothing(box, shift) -> None:
    c, lower, upper = box
    shifted = (lower + lower.dtype.type(shift), upper + lower.dtype.type(shift))
    with np.errstate(invalid="ignore"):
        back = [np.where(x == -np.inf, x, x - lower.dtype.type(shift)) for x in shifted]
    assume(np.array_equal(back[0], lower) and np.array_equal(back[1], upper))  # the shift was exact
    before, after = float(vx.softmax_box_min(c, lower, upper)), float(vx.softmax_box_min(c, *shifted))
    assert abs(before - after) <= 2 * allowed(c, lower, upper)


@few
@given(boxes(), st.randoms(use_true_random=False))
def test_the_order_of_the_keys_does_not_matter(box, random) -> None:
    c, lower, upper = box
    order = list(range(len(c)))
    random.shuffle(order)
    for algorithm in ("newton", "threshold"):
        before = float(vx.softmax_box_min(c, lower, upper, algorithm=algorithm))
        after = float(vx.softmax_box_min(c[order], lower[order], upper[order], algorithm=algorithm))
        assert abs(before - after) <= 2 * allowed(c, lower, upper)


@few
@given(boxes(), st.floats(-8, 8), st.floats(-100, 100))
def test_an_affine_map_of_the_coefficients_maps_the_bounds(box, factor, shift) -> None:
    c, lower, upper = (x.astype(np.float64) for x in box)
    mapped = factor * c + shift
    low, high = (float(x) for x in vx.softmax_box_bounds(c, lower, upper))
    expected = factor * (low if factor >= 0 else high) + shift
    rounding = 4 * np.finfo(np.float64).eps * (np.abs(factor * c).max() + abs(shift))
    slack = abs(factor) * allowed(c, lower, upper) + allowed(mapped, lower, upper) + rounding
    assert abs(float(vx.softmax_box_min(mapped, lower, upper)) - expected) <= slack


@few
@given(boxes(), st.integers(0, 3))
def test_masked_keys_count_for_nothing(box, at) -> None:
    c, lower, upper = box
    at = min(at, len(c))
    with_mask = [np.insert(x, at, v) for x, v in ((c, 1e6), (lower, -np.inf), (upper, -np.inf))]
    before, after = (vx.softmax_box_bounds(*b) for b in ((c, lower, upper), with_mask))
    assert np.allclose(before, after, rtol=0, atol=2 * allowed(c, lower, upper))


@few
@given(boxes())
def test_a_key_split_in_two_halves_changes_nothing(box) -> None:
    """Two keys with weight e^s/2 each are one key with weight e^s: shift both scores by −log 2."""
    c, lower, upper = (x.astype(np.float64) for x in box)
    half = np.log(2)
    split = [np.concatenate([x[:1] - s, x[:1] - s, x[1:]]) for x, s in ((c, 0), (lower, half), (upper, half))]
    before, after = float(vx.softmax_box_min(c, lower, upper)), float(vx.softmax_box_min(*split))
    rounding = 4e-16 * (np.abs(split[2][split[2] > -np.inf]).max() + np.abs(split[1][split[1] > -np.inf]).max() + 2)
    assert abs(before - after) <= allowed(c, lower, upper) + allowed(*split) + rounding * 2 * np.abs(c).max()
