"""The minimum over choices of (score, value) is that of all combinations: to rounding, and proved on the right side.

The oracle is ball arithmetic over all C^K combinations; it trusts no theorem and shares no code with the package.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import flint
import numpy as np
import pytest
import torch
from flint import arb

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.softmax_box import (
    ChoiceMinimum,
    choices_rigorous,
    is_lower_bound_of_choices,
    reference,
    softmax_box_min,
    softmax_choices_argmin,
    softmax_choices_decide,
    softmax_choices_enclosure,
    softmax_choices_min,
    softmax_choices_terms,
)
from vertex_softmax.softmax_box.choices_outward import choice_terms

SIZES = ((1, 1), (1, 4), (2, 2), (3, 3), (4, 3), (2, 7))
ROWS = 12


def family(name: str, keys: int, choices: int) -> tuple[Any, Any]:
    """Values and scores, (ROWS, keys, choices)."""
    rng = np.random.default_rng([keys, choices, *name.encode()])
    v, s = rng.normal(size=(2, ROWS, keys, choices))
    match name:
        case "mild":
            return v, s
        case "wide":
            return v, 100 * s
        case "far":
            return v, 1e3 * s
        case "extreme":
            return v, s * 10.0 ** rng.integers(0, 300, s.shape)
        case "ties":
            return np.round(v), np.round(s)
        case "far ties":
            return np.round(2 * v), 2e3 * s
        case "far and mixed":
            return np.round(2 * v) * 10.0 ** (3 * rng.integers(-2, 2, v.shape)), 1e3 * s
        case "equal values":
            return np.ones_like(v), 5 * s
        case "large":
            return 1e140 * v, 5 * s
        case "small":
            return 1e-290 * v, 5 * s
        case "tiny":
            return 1e-310 * v, 5 * s
        case "close":
            return 1e6 + 1e-9 * v, 3 * s
        case "mixed":
            return v * 10.0 ** rng.integers(-12, 12, v.shape), 20 * s
    raise AssertionError(name)


FAMILIES = (
    "mild",
    "wide",
    "far",
    "extreme",
    "ties",
    "far ties",
    "far and mixed",
    "equal values",
    "large",
    "small",
    "tiny",
    "close",
    "mixed",
)
each = pytest.mark.parametrize("name", FAMILIES)


def exact(values: Any, scores: Any, allowed: Any = None) -> arb:
    """A ball around the least value of all combinations of one row."""
    there = np.ones_like(values, dtype=bool) if allowed is None else allowed
    with flint.ctx.workprec(400):
        best = arb("inf")
        for combination in itertools.product(*(np.flatnonzero(row).tolist() for row in there)):
            pairs = [(float(values[j, c]), float(scores[j, c])) for j, c in enumerate(combination)]
            a = arb(max(s for _, s in pairs))
            weights = [(arb(s) - a).exp() for _, s in pairs]
            best = best.min(sum((arb(v) * y for (v, _), y in zip(pairs, weights, strict=True)), arb(0)) / sum(weights))
        return best


@each
def test_the_minimum_is_that_of_all_combinations(name: str) -> None:
    for size in SIZES:
        v, s = family(name, *size)
        found = softmax_choices_min(v, s)
        for i in range(ROWS):
            tolerance = 40 * np.finfo(float).eps * np.abs(v[i]).max() + 1e-322
            assert abs(found[i] - float(exact(v[i], s[i]))) <= tolerance, (size, i)


@each
def test_the_outward_bound_is_never_above_and_close(name: str) -> None:
    for size in SIZES:
        v, s = family(name, *size)
        found = softmax_choices_min(v, s, outward=True)
        for i in range(ROWS):
            ball = exact(v[i], s[i])
            assert not arb(float(found[i])) > ball, (size, i)
            assert arb(float(found[i])) <= ball or float(ball.rad()) < 1e-80 * np.abs(v[i]).max(), (size, i)
            if name not in ("tiny", "extreme"):
                assert float(ball) - found[i] <= 1e-11 * np.abs(v[i]).max(), (size, i)


@each
def test_ball_arithmetic_tells_neighbours_of_the_minimum_apart(name: str) -> None:
    v, s = family(name, 3, 3)
    lo, hi = softmax_choices_enclosure(v, s)
    for i in range(ROWS):
        near = float(exact(v[i], s[i]))
        below, above = (math.nextafter(near, end) for end in (-math.inf, math.inf))
        assert is_lower_bound_of_choices(below, v[i], s[i]) is True
        assert is_lower_bound_of_choices(above, v[i], s[i]) is False
        assert lo[i] <= above
        assert hi[i] >= below
        assert hi[i] - lo[i] <= 1e-12 * np.abs(v[i]).max()
        assert is_lower_bound_of_choices(float(lo[i]), v[i], s[i]) is True


@pytest.mark.parametrize("name", ["mild", "wide", "far", "mixed"])
def test_an_enclosure_in_balls_does_not_rely_on_the_combination(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever combination it begins with, its lower end is proved."""
    first = ChoiceMinimum(np.array(0.0), np.zeros(3, dtype=np.int64))
    monkeypatch.setattr(choices_rigorous, "softmax_choices_argmin", lambda *_: first)
    v, s = family(name, 3, 3)
    lo, hi = softmax_choices_enclosure(v, s)
    for i in range(ROWS):
        ball = exact(v[i], s[i])
        assert not arb(float(lo[i])) > ball
        assert not arb(float(hi[i])) < ball


def test_a_value_that_underflow_hides_is_not_taken_for_the_minimum() -> None:
    """The first key's value 0 outweighs all; the others' −e^{−2288} is no float, and at the minimum, −1, it is out."""
    v = np.array([[5.0, -0.0, 0.0], [-1.0, -1.0, -4.0], [1.0, 1.0, 7.0]])
    s = np.array([[-2407.0, 3445.0, 3494.0], [1156.0, -485.0, -1065.0], [-813.0, 254.0, -91.0]])
    assert softmax_choices_min(v, s) == pytest.approx(-1, rel=1e-12)
    assert softmax_choices_min(v, s, outward=True) == pytest.approx(-1, rel=1e-12)


def test_exact_ties_are_decided() -> None:
    v, s = np.array([[0.0, 1.0], [1.0, 1.0]]), np.array([[0.3, -5.0], [0.3, 0.4]])
    assert is_lower_bound_of_choices(0.5, v, s) is True
    assert is_lower_bound_of_choices(math.nextafter(0.5, 1), v, s) is False
    assert softmax_choices_enclosure(v, s) == (0.5, 0.5)
    assert is_lower_bound_of_choices(0.0, v, s) is True
    assert is_lower_bound_of_choices(2.0, v, s) is False
    same = np.full((2, 3), 0.7)
    assert is_lower_bound_of_choices(0.7, same, np.zeros((2, 3))) is True


@each
def test_the_combination_attains_the_value(name: str) -> None:
    v, s = family(name, 4, 3)
    found = softmax_choices_argmin(v, s)
    for i in range(ROWS):
        taken = [x[i][np.arange(4), found.choice[i]] for x in (v, s)]
        assert reference.ratio(*taken) == pytest.approx(found.value[i], rel=1e-12, abs=1e-12 * np.abs(v[i]).max())


@each
def test_terms_are_never_above_the_exact_ones(name: str) -> None:
    v, s = family(name, 3, 4)
    for t in (0.0, float(v[0, 0, 0]), float(v.mean())):
        terms = softmax_choices_terms(v, s, t)
        shift = s.max((-2, -1))
        with flint.ctx.workprec(400):
            for index in np.ndindex(*v.shape):
                exactly = (arb(v[index]) - arb(t)) * (arb(s[index]) - arb(shift[index[0]])).exp()
                assert not arb(terms[index]) > exactly, (index, t)


@each
@pytest.mark.parametrize("shift", [-400.0, -250.0, 0.0, 500.0])
def test_terms_hold_at_every_shift(name: str, shift: float) -> None:
    v, s = family(name, 3, 4)
    one = torch.full((ROWS, 1, 1), 0.1 * float(v.max()), dtype=torch.float64)
    a = torch.full((ROWS, 1, 1), shift, dtype=torch.float64)
    terms = choice_terms(torch.from_numpy(v), torch.from_numpy(s), one, a)
    assert not terms.isnan().any()
    with flint.ctx.workprec(400):
        for index in np.ndindex(*v.shape):
            x = arb(s[index]) - arb(shift)
            if terms[index] == -math.inf or x > 1e6:
                continue
            exactly = (arb(v[index]) - arb(float(one[0]))) * x.exp()
            assert not arb(float(terms[index])) > exactly, index


@each
def test_what_is_decided_is_so(name: str) -> None:
    """Also of products of choice sets: every random subset of the choices, by the terms of all."""
    rng = np.random.default_rng(1)
    v, s = family(name, 3, 4)
    yes = 0
    for t in np.quantile(v, [0.05, 0.3, 0.6]).tolist():
        terms = softmax_choices_terms(v, s, t)
        for _ in range(4):
            allowed = rng.random(v.shape) < 0.5
            allowed[..., 0] |= ~allowed.any(-1)
            decided = softmax_choices_decide(terms, allowed) > 0
            yes += int(decided.sum())
            for i in decided.nonzero()[0]:
                assert not exact(v[i], s[i], allowed[i]) <= arb(t), (t, i)
    assert yes or name in ("equal values", "tiny")


def test_a_sum_of_terms_is_rounded_down() -> None:
    rng = np.random.default_rng(2)
    terms = rng.normal(size=(50, 9, 3)) * 10.0 ** rng.integers(-8, 8, (50, 9, 3))
    found = softmax_choices_decide(terms)
    for i in range(50):
        with flint.ctx.workprec(400):
            assert arb(found[i]) <= sum((arb(float(m)) for m in terms[i].min(-1)), arb(0))
        assert found[i] == pytest.approx(terms[i].min(-1).sum(), rel=1e-9)


@pytest.mark.parametrize("name", ["mild", "wide", "mixed"])
def test_a_score_box_is_two_choices_of_one_value(name: str) -> None:
    v, s = family(name, 4, 2)
    c = v[..., 0]
    same = np.stack([c, c], -1)
    box = softmax_box_min(c, s.min(-1), s.max(-1))
    np.testing.assert_allclose(softmax_choices_min(same, s), box, rtol=1e-12, atol=1e-12 * np.abs(v).max())


def test_allowed_leaves_choices_out() -> None:
    rng = np.random.default_rng(3)
    v, s = rng.normal(size=(2, 20, 3, 5))
    allowed = rng.random(v.shape) < 0.5
    allowed[..., 2] = True
    for outward in (False, True):
        found = softmax_choices_min(v, s, allowed, outward=outward)
        for i in range(20):
            assert found[i] == pytest.approx(float(exact(v[i], s[i], allowed[i])), abs=1e-13)
    choice = softmax_choices_argmin(v, s, allowed).choice
    assert np.take_along_axis(allowed, choice[..., None], -1).all()
    lo, hi = softmax_choices_enclosure(v[0], s[0], allowed[0])
    assert lo <= float(exact(v[0], s[0], allowed[0])) <= hi


def test_a_choice_that_is_left_out_may_be_anything_finite() -> None:
    v, s = np.array([[1.0, -9.0]]), np.array([[0.0, 700.0]])
    assert softmax_choices_min(v, s, np.array([[True, False]]), outward=True) == 1.0


def test_the_reference() -> None:
    v, s = family("mild", 3, 3)
    for i in range(ROWS):
        least = reference.choices_exhaustive_min(v[i], s[i])
        assert least == pytest.approx(float(softmax_choices_min(v[i], s[i])), abs=1e-14)
        assert reference.choices_phi(least - 1e-9, v[i], s[i]) > 0 > reference.choices_phi(least + 1e-9, v[i], s[i])


def test_shapes_types_and_broadcasting() -> None:
    v, s = family("mild", 3, 3)
    batch = softmax_choices_min(v[:, None], s[None])
    assert batch.shape == (ROWS, ROWS)
    assert batch[2, 5] == softmax_choices_min(v[2], s[5])
    tensor = softmax_choices_min(torch.from_numpy(v), torch.from_numpy(s), torch.ones(3, 3, dtype=torch.bool))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), softmax_choices_min(v, s))
    single = softmax_choices_min(v.astype(np.float32), s.astype(np.float32))
    assert single.dtype == np.float64
    assert softmax_choices_min(v[:0], s[:0]).shape == (0,)
    assert softmax_choices_min([[1.0, 2.0]], [[0.0, 1.0]]) == 1.0  # type: ignore[arg-type]


ONE = np.ones((2, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones(3), np.ones(3)), r"values has shape \(3,\); it needs \(..., K, C\)"),
        ((np.ones((2, 0)), np.ones((2, 0))), "values has shape"),
        ((ONE, np.ones((2, 4))), "the shapes do not broadcast"),
        ((ONE, np.ones((1, 3))), "the shapes do not broadcast"),
        ((ONE, ONE, np.ones((2, 2), dtype=bool)), "the shapes do not broadcast"),
        ((np.where(np.eye(2, 3), np.nan, 1), ONE), r"values is nan at index \(0, 0\)"),
        ((ONE, np.where(np.eye(2, 3), -np.inf, 1)), r"scores is -inf at index \(0, 0\).*`allowed`"),
        ((1e200 * ONE, ONE), "values is 1e"),
        ((ONE, ONE, np.eye(2, 3, dtype=bool) & False), r"no choice is allowed for the key at index \(0,\)"),
    ],
)
def test_bad_values_are_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        softmax_choices_min(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ONE, ONE, ONE), "allowed has dtype float64; pass bools"),
        ((ONE.astype(int), ONE), "values has dtype int64"),
        ((ONE, torch.ones(2, 3)), "not a torch tensor"),
        ((ONE, ONE, torch.ones(2, 3, dtype=torch.bool)), "allowed and values must both"),
        (([[1.0], [2.0, 3.0]], ONE), "values cannot be read"),
    ],
)
def test_bad_types_are_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidTypeError, match=message):
        softmax_choices_min(*arguments)


@pytest.mark.parametrize("t", [math.nan, math.inf, 1e200])
def test_a_bad_threshold_is_named(t: float) -> None:
    with pytest.raises(InvalidValueError, match="t is"):
        softmax_choices_terms(ONE, ONE, t)
    if math.isnan(t):
        with pytest.raises(InvalidValueError, match="t is NaN"):
            is_lower_bound_of_choices(t, ONE, ONE)


def test_bad_terms_are_named() -> None:
    with pytest.raises(InvalidValueError, match="terms is nan"):
        softmax_choices_decide(np.full((2, 3), np.nan))


def test_subnormal_numbers_are_not_flushed() -> None:
    v, s = family("tiny", 3, 3)
    expected = softmax_choices_min(v, s, outward=True)
    torch.set_flush_denormal(True)
    try:
        found = softmax_choices_min(v, s, outward=True)
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(found, expected)
