"""Intervals, sums and products contain the exact result, always: 27,000 random operations against rationals."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flint import arb, ctx, fmpq
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.certificate.checker.helpers import (
    FAMILIES,
    PRECISION,
    Array,
    above,
    below,
    dot,
    exact,
    floats,
    holds,
    module,
    precisely,
    size,
)

rounding = module("rounding")
Interval = rounding.ProvedInterval
TINY = 2.0**-1022

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "−": operator.sub,
    "×": operator.mul,
    "÷": operator.truediv,
}


def intervals(rng: np.random.Generator, family: str, count: int) -> Any:
    """Half of them points, a quarter narrow, a quarter of two random ends."""
    x, y = floats(rng, family, (count,)), floats(rng, family, (count,))
    y[::2] = x[::2]
    y[1::4] = np.nextafter(x[1::4], np.inf)
    return Interval(np.minimum(x, y), np.maximum(x, y))


def points(x: Any, i: int) -> list[fmpq]:
    """The ends, the exact middle and a third of one interval."""
    lo, hi = exact(x.lo[i]), exact(x.hi[i])
    return list({lo, hi, (lo + hi) / 2, (2 * lo + hi) / 3})


def root_is_held(interval: Any, x: fmpq) -> bool:
    """lo ≤ √x ≤ hi, by squares."""
    lo, hi = float(interval.lo), float(interval.hi)
    return (lo <= 0 or exact(lo) ** 2 <= x) and hi >= 0 and (hi == math.inf or exact(hi) ** 2 >= x)


# Operations on intervals


def check_binary(rng: np.random.Generator, family: str, other: str, count: int) -> int:
    done = 0
    x, y = intervals(rng, family, count), intervals(rng, other, count)
    for sign, f in BINARY.items():
        found = f(x, y)
        for i in range(count):
            if sign == "÷" and not (y.lo[i] > 0 or y.hi[i] < 0):
                assert found[i].lo == -math.inf
                assert found[i].hi == math.inf
                done += 1
                continue
            for a, b in itertools.product(points(x, i), points(y, i)):
                assert holds(found[i], f(a, b)), (sign, family, other, x[i].lo, x[i].hi, y[i].lo, y[i].hi)
            done += 1
    return done


@pytest.mark.parametrize("other", ["ordinary", "any scale", "tiny", "integers", "itself"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plus_minus_times_and_divided_by(family: str, other: str) -> None:
    rng = np.random.default_rng(len(family) * 31 + len(other))
    other = family if other == "itself" else other
    assert check_binary(rng, family, other, 60) == 240


@pytest.mark.parametrize("family", FAMILIES)
def test_operations_on_one_interval(family: str) -> None:
    rng = np.random.default_rng(1)
    count, done = 60, 0
    x, y, z = intervals(rng, family, count), intervals(rng, family, count), floats(rng, family, (count,))
    y.lo[::3], y.hi[::3] = x.lo[::3], np.maximum(x.lo[::3], y.hi[::3])
    nonnegative = Interval(np.minimum(np.abs(x.lo), np.abs(x.hi)), np.maximum(np.abs(x.lo), np.abs(x.hi)))
    square, root, reach, minus, both, largest = x.square(), nonnegative.sqrt(), x.reach(z), -x, x.meet(y), x.size
    for i in range(count):
        for a in points(x, i):
            assert holds(square[i], a * a)
            assert holds(minus[i], -a)
            assert above(float(reach[i]), size(a - exact(z[i])))
            assert above(float(largest[i]), size(a))
            if exact(y.lo[i]) <= a <= exact(y.hi[i]):
                assert holds(both[i], a)
        for a in points(nonnegative, i):
            assert root_is_held(root[i], a)
        done += 6
    assert (square.lo >= 0).all()
    assert (root.lo >= 0).all()
    assert done == 360


def test_the_root_of_what_may_be_negative_is_that_of_what_is_not() -> None:
    found = Interval(np.array([-1.0, -0.0, -2.0]), np.array([4.0, 0.0, 2.0])).sqrt()
    assert (found.lo == 0).all()
    assert root_is_held(found[0], fmpq(4))
    assert root_is_held(found[2], fmpq(2))


def test_operations_are_tight() -> None:
    """One float to either side of the nearest: what is wider would be sound, and silly."""
    rng = np.random.default_rng(2)
    x, y = floats(rng, "ordinary", (200,)), floats(rng, "ordinary", (200,))
    for sign, f in BINARY.items():
        found, near = f(Interval(x), Interval(y)), f(x, y)
        assert (found.lo == np.nextafter(near, -np.inf)).all(), sign
        assert (found.hi == np.nextafter(near, np.inf)).all(), sign
    x = np.abs(x)
    assert (Interval(x).sqrt().hi <= np.nextafter(np.sqrt(x), np.inf)).all()
    assert (Interval(x).sqrt().lo >= np.nextafter(np.sqrt(x), 0)).all()
    assert (Interval(x).reach(x) <= 5e-324).all()
    assert (Interval(-x, x).square().lo == 0).all()


def test_arrays_and_numbers_on_either_side() -> None:
    x, y = np.array([0.1, -0.3]), np.array([0.7, 0.9])
    for sign, f in BINARY.items():
        for a, b in ((x, Interval(y)), (Interval(x), y), (0.1, Interval(y)), (np.float64(0.1), Interval(y))):
            found = f(a, b)
            assert isinstance(found, Interval), sign
            left = np.broadcast_to(a.lo if isinstance(a, Interval) else a, 2)
            for i in range(2):
                assert holds(found[i], f(exact(left[i]), exact(y[i]))), sign


def test_overflow_is_no_wrong_number() -> None:
    """The largest float is below what overflows, and infinity above it."""
    huge = np.array([1.5e308, -1.5e308])
    for f, right in ((operator.add, huge), (operator.mul, np.array([4.0, 4.0])), (operator.truediv, np.full(2, 0.25))):
        found = f(Interval(huge), Interval(right))
        for i in range(2):
            assert holds(found[i], f(exact(huge[i]), exact(right[i])))
    assert holds(Interval(huge[:1]).square()[0], exact(huge[0]) ** 2)
    many = rounding.product(Interval(np.full((1, 3), 1e200)), Interval(np.full((3, 1), 1e200)))
    for found in (Interval(np.full(3, 1.5e308)).sum(), many):  # NaN, which is accepted nowhere
        assert not (found.lo > -math.inf).any()
        assert not (found.hi < math.inf).any()


def test_what_is_no_number_is_in_no_interval() -> None:
    """An infinity minus itself, and 0 times an infinity, are NaN: it compares with nothing."""
    endless = Interval(np.array([-np.inf]), np.array([np.inf]))
    for found in (endless * 0.0, endless + Interval(np.array([np.nan])), endless.square() - endless.square()):
        assert not (found.lo > -math.inf).any()
        assert not (found.hi < math.inf).any()
    assert math.isnan(Interval(np.array([np.nan, 1.0])).meet(Interval(np.zeros(2), np.ones(2))).lo[0])


def test_one_interval_or_the_other_per_row_or_per_number() -> None:
    x, y = Interval(np.zeros((2, 3)), np.ones((2, 3))), Interval(np.full((2, 3), 5.0), np.full((2, 3), 6.0))
    rows = x.where(np.array([True, False]), y)
    assert rows.lo.tolist() == [[0, 0, 0], [5, 5, 5]]
    assert rows.hi.tolist() == [[1, 1, 1], [6, 6, 6]]
    numbers = x.where(np.array([[True, False, True], [False, False, True]]), y)
    assert numbers.lo.tolist() == [[0, 5, 0], [5, 5, 0]]
    assert numbers.hi.tolist() == [[1, 6, 1], [6, 6, 1]]


any_float = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=300)
@given(any_float, any_float, any_float, any_float, st.sampled_from(sorted(BINARY)))
def test_any_floats_at_all(a: float, b: float, c: float, d: float, sign: str) -> None:
    x, y = (
        Interval(np.array([min(a, b)]), np.array([max(a, b)])),
        Interval(np.array([min(c, d)]), np.array([max(c, d)])),
    )
    found = BINARY[sign](x, y)
    if sign == "÷" and min(c, d) <= 0 <= max(c, d):
        assert (found.lo, found.hi) == (-math.inf, math.inf)
        return
    for p, q in itertools.product(points(x, 0), points(y, 0)):
        assert holds(found[0], BINARY[sign](p, q))


@settings(max_examples=150)
@given(any_float, any_float)
def test_roots_squares_and_reaches_of_any_floats(a: float, b: float) -> None:
    x = Interval(np.array([min(a, b)]), np.array([max(a, b)]))
    for p in points(x, 0):
        assert holds(x.square()[0], p * p)
        assert above(float(x.reach(np.array([0.5 * a]))[0]), size(p - exact(0.5 * a)))
        if p >= 0:
            assert root_is_held(x.sqrt()[0], p)


# Sums


@pytest.mark.parametrize("family", FAMILIES)
def test_sums_of_intervals(family: str) -> None:
    rng, done = np.random.default_rng(3), 0
    for n, rows in {1: 3, 2: 5, 9: 10, 150: 10, 1100: 3}.items():
        x = intervals(rng, family, n * rows)
        x = Interval(*(end.reshape(rows, n) * (2.0**-12 if family == "huge" else 1) for end in (x.lo, x.hi)))
        half = n // 2  # and cancellation, of points
        x.lo[:, half : 2 * half] = x.hi[:, half : 2 * half] = -x.lo[:, :half] * (1 - 2.0**-50)
        x.hi[:, :half] = x.lo[:, :half]
        turned = Interval(np.ascontiguousarray(x.lo.T), np.ascontiguousarray(x.hi.T))
        for found in (x.sum(), turned.sum(0), Interval(x.lo[:, ::-1], x.hi[:, ::-1]).sum(-1)):
            for i in range(rows):
                least, most = (sum(map(exact, end[i]), fmpq(0)) for end in (x.lo, x.hi))
                assert below(float(found.lo[i]), least), (family, n)
                assert above(float(found.hi[i]), most), (family, n)
                done += 1
    assert done == 93


def test_a_sum_of_many_numbers_that_are_each_lost() -> None:
    """1 + 2⁻⁵³ + 2⁻⁵³ + … is 1 in floats, one number after the other (along an outer axis numpy adds in order)."""
    n = 4096
    column = np.full((n, 40), 2.0**-53)
    column[0] = 1
    found = Interval(column).sum(0)
    for sign in (1, -1):
        both = found if sign > 0 else -Interval(-column).sum(0)
        assert all(holds(both[i], 1 + fmpq(n - 1, 2**53)) for i in range(40))
    assert (found.hi - found.lo < 1e-8).all()


# The lemma


def in_order(a: Array, b: Array) -> float:
    return functools.reduce(operator.add, (float(x) * float(y) for x, y in zip(a, b, strict=True)))


def pairwise(a: Array, b: Array) -> float:
    half = len(a) // 2
    return float(a[0] * b[0]) if len(a) == 1 else pairwise(a[:half], b[:half]) + pairwise(a[half:], b[half:])


ORDERS: dict[str, Callable[[Array, Array], float]] = {
    "dot": lambda a, b: float(np.dot(a, b)),
    "dot, reversed": lambda a, b: float(np.dot(a[::-1], b[::-1])),
    "matmul": lambda a, b: float((np.tile(a, (5, 1)) @ np.tile(b[:, None], (1, 6)))[3, 4]),
    "sum": lambda a, b: float((a * b).sum()),
    "cumsum": lambda a, b: float(np.cumsum(a * b)[-1]),
    "einsum": lambda a, b: float(np.einsum("i,i->", a, b)),
    "one after the other": in_order,
    "backwards": lambda a, b: in_order(a[::-1], b[::-1]),
    "in pairs": pairwise,
    "smallest first": lambda a, b: in_order(*(x[np.argsort(np.abs(a * b))] for x in (a, b))),
}
PAIRS = (
    ("ordinary", "ordinary"), ("huge", "tiny"), ("tiny", "ordinary"), ("subnormal", "ordinary"), ("tiny", "tiny"),
    ("any scale", "any scale"), ("powers", "near one"), ("squares below the least", "squares below the least"),
)  # fmt: skip


def obeys(a: Array, b: Array) -> int:
    """|fl − exact| ≤ rounding(n) · fl(|E|) + 2 n TINY, as floats compute the right-hand side, in every order."""
    n = len(a)
    truth = dot(a, b)
    for name, order in ORDERS.items():
        value, whole = order(a, b), order(np.abs(a), np.abs(b))
        assert math.isfinite(value)
        allowed = rounding.rounding(n) * whole + 2 * n * TINY
        assert size(exact(value) - truth) <= exact(allowed), name
        assert whole == 0 or allowed <= 1e-12 * n * whole + 2 * n * TINY
    return len(ORDERS)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_the_lemma_of_sums(left: str, right: str) -> None:
    rng, done = np.random.default_rng(4), 0
    for n in (1, 2, 3, 7, 16, 60, 300):
        for cancel in (False, True):
            for _ in range(4 if n < 300 else 1):
                a, b = floats(rng, left, (n,)), floats(rng, right, (n,))
                if cancel:
                    a, b = np.concatenate([a, a * (1 + 2.0**-51)]), np.concatenate([b, -b])
                    order = rng.permutation(2 * n)
                    a, b = a[order], b[order]
                done += obeys(a, b)
    assert done == 500


def test_the_lemma_where_it_is_nearly_attained() -> None:
    """Every addition loses half a unit of the last place: n u |E| is lost, and nothing less than the lemma holds."""
    for n in (3, 30, 1000, 20_000):
        a = np.full(n, 2.0**-53)
        a[0] = 1
        obeys(a, np.ones(n))
        assert in_order(a, np.ones(n)) == 1
    obeys(np.full(500, 1.4e-162), np.full(500, 1.4e-162))  # every product is 0, and the sum is not
    obeys(np.full(500, 2.0**-500), np.full(500, 2.0**-573))


def test_the_lemma_has_an_end() -> None:
    with pytest.raises(ValueError, match="more than"):
        rounding.rounding(1 << 46)
    assert exact(rounding.rounding(100)) == fmpq(2 * 102, 2**53)


@settings(max_examples=60)
@given(st.lists(st.tuples(any_float, any_float), min_size=1, max_size=12))
def test_the_lemma_for_any_floats(terms: list[tuple[float, float]]) -> None:
    a, b = np.array(terms).T
    if np.isfinite((np.abs(a) * np.abs(b)).sum()):
        with_room = np.abs(a) @ np.abs(b)
        if with_room < 1e308:
            for order in ORDERS.values():
                allowed = rounding.rounding(len(a)) * order(np.abs(a), np.abs(b)) + 2 * len(a) * TINY
                assert size(exact(order(a, b)) - dot(a, b)) <= exact(allowed)


# Products of matrices


def exact_ends(x: Any, y: Any) -> tuple[fmpq, fmpq]:
    """The least and the largest Σ x_k y_k."""
    least, most = fmpq(0), fmpq(0)
    for k in range(len(x.lo)):
        ends = [exact(a) * exact(b) for a in {x.lo[k], x.hi[k]} for b in {y.lo[k], y.hi[k]}]
        least, most = least + min(ends), most + max(ends)
    return least, most


def check_product(x: Any, y: Any) -> int:
    found = rounding.product(x, y)
    for i, j in np.ndindex(*found.lo.shape):
        least, most = exact_ends(x[i], y[:, j])
        assert below(float(found.lo[i, j]), least), (float(found.lo[i, j]), least)
        assert above(float(found.hi[i, j]), most)
    return int(found.lo.size)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_products_of_matrices(left: str, right: str) -> None:
    rng, done = np.random.default_rng(5), 0
    for n in (1, 2, 5, 40):
        for cancel in (False, True):
            for width in (0.0, 2.0**-52, 1e-6, 1.0):
                a, b = floats(rng, left, (3, n)), floats(rng, right, (n, 4))
                if cancel:
                    a, b = np.concatenate([a, a * (1 + 2.0**-51)], 1), np.concatenate([b, -b])
                r, s = np.abs(a) * width * rng.random(a.shape), np.abs(b) * width * rng.random(b.shape)
                done += check_product(Interval(a - r, a + r), Interval(b - s, b + s))
    assert done == 4 * 2 * 4 * 12


def test_products_of_what_is_not_centred_or_is_a_point_on_one_side() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((4, 9)), rng.standard_normal((9, 5))
    wide = Interval(a, a + rng.random((4, 9)) * 10.0 ** rng.integers(-12, 3, (4, 9)))
    check_product(wide, Interval(b))
    check_product(Interval(a), Interval(b - 3, b))
    check_product(wide, Interval(b, b + 1e-3))
    check_product(Interval(np.zeros((2, 3))), Interval(np.zeros((3, 2))))


def test_products_of_which_each_is_lost() -> None:
    """Every product underflows to 0: only TINY is left of them."""
    for value in (1.4e-162, 1.5e-162, 1e-170, 2.2e-162):
        check_product(Interval(np.full((2, 700), value)), Interval(np.full((700, 2), value)))
        check_product(Interval(np.full((1, 700), -value)), Interval(np.zeros((700, 1)), np.full((700, 1), value)))


def test_products_of_stacks_of_matrices() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((2, 3, 2, 6)), rng.standard_normal((3, 6, 4))
    found = rounding.product(Interval(a, a + 0.1), Interval(b - 0.1, b))
    assert found.lo.shape == (2, 3, 2, 4)
    for at in np.ndindex(2, 3, 2, 4):
        x, y = a[at[:3]], b[at[1], :, at[3]]
        least, most = exact_ends(Interval(x, x + 0.1), Interval(y - 0.1, y))
        assert below(float(found.lo[at]), least)
        assert above(float(found.hi[at]), most)


def test_products_are_tight() -> None:
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((5, 50)), rng.standard_normal((50, 5))
    found = rounding.product(Interval(a), Interval(b))
    assert (found.hi - found.lo <= 1e-12).all()
    r = np.full_like(a, 0.25)
    found = rounding.product(Interval(a - r, a + r), Interval(b))
    assert (found.hi - found.lo <= 0.5 * np.abs(b).sum(0) * (1 + 1e-9)).all()


# Functions by Arb

FUNCTIONS: dict[str, Callable[[arb], arb]] = {
    "exp": arb.exp, "log": lambda x: abs(x).log(), "tanh": arb.tanh, "erf": arb.erf, "sqrt": lambda x: abs(x).sqrt(),
    "expm1": arb.expm1, "itself": lambda x: x, "a third": lambda x: x / 3,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@precisely
def test_enclosures(name: str) -> None:
    rng, done, f = np.random.default_rng(9), 0, FUNCTIONS[name]
    for family in FAMILIES:
        x = floats(rng, family, (3, 8))
        x = np.where(x == 0, 1e-5, x) if name == "log" else x
        x = np.clip(x, -1e10, 1e10) if family in ("any scale", "huge") and name.startswith("exp") else x
        found = rounding.enclose(f, x)
        for at in np.ndindex(x.shape):
            value = f(arb(float(x[at])))
            assert holds(found[at], value), (name, x[at])
            near = float(value)
            if math.isfinite(near):
                assert found.lo[at] >= np.nextafter(np.nextafter(near, -np.inf), -np.inf)
                assert found.hi[at] <= np.nextafter(np.nextafter(near, np.inf), np.inf)
            done += 1
    assert done == 24 * len(FAMILIES)


def test_enclosures_of_what_is_no_number() -> None:
    found = rounding.enclose(arb.log, np.array([-1.0, 0.0, np.nan, 1.0]))
    assert (found.lo[:3] == -math.inf).all()
    assert (found.hi[:3] == math.inf).all()
    assert abs(found.lo[3]) <= 5e-324
    assert rounding.enclose(arb.exp, np.zeros((2, 0))).lo.shape == (2, 0)


def test_enclosures_of_a_wide_ball_are_its_two_ends() -> None:
    found = rounding.enclose(lambda x: x + arb(0, 0.5), np.array([1.0, -1.0]))
    assert (found.lo <= [0.5, -1.5]).all()
    assert (found.hi >= [1.5, -0.5]).all()


def test_an_enclosure_leaves_the_precision_as_it_was() -> None:
    def fails(x: arb) -> arb:
        raise ArithmeticError

    with ctx.workprec(77):
        rounding.enclose(arb.exp, np.ones(2))
        with pytest.raises(ArithmeticError):
            rounding.enclose(fails, np.ones(2))
        assert ctx.prec == 77


def check_grid(r: Array) -> int:
    grid, e = rounding.exp_on_grid(r)
    assert (grid * 4096 == np.rint(grid * 4096)).all()
    assert ((grid <= 0) & (grid >= -64)).all()
    inside = (r <= 0) & (r >= -64)
    assert (np.abs(grid - r)[inside] <= 2.0**-13).all()
    with ctx.workprec(PRECISION):
        for x, lo, hi in zip(grid, e.lo, e.hi, strict=True):
            value = arb(float(x)).exp()
            assert below(lo, value), x
            assert above(hi, value), x
    assert (e.hi - e.lo <= 1e-14 * e.hi).all()
    assert (e.lo > 0).all()
    return len(r)


def test_exponentials_on_a_grid() -> None:
    rng = np.random.default_rng(10)
    ends = np.array(
        [0.0, -64.0, -(2.0**-6), -(2.0**-12), -(2.0**-13), 2.0**-12 - 64, -63 / 4096, -64 / 4096, -65 / 4096]
    )
    silly = np.array([np.nan, np.inf, -np.inf, 3.0, -100.0, -1e300, 5e-324])
    assert check_grid(np.concatenate([-64 * rng.random(3000), -rng.random(1000), ends, silly])) == 4016


def test_every_exponential_on_the_grid() -> None:
    assert check_grid(-np.arange(64 * 4096 + 1) / 4096) == 262_145


def test_more_pays_for_four_thousand_roundings() -> None:
    assert exact(rounding.MORE) * (1 - fmpq(1, 2**53)) ** 4001 >= 1
    assert rounding.MORE < 1 + 1e-11


def test_at_least_ten_thousand_random_operations() -> None:
    """As many as the tests above count, without those of Hypothesis."""
    counted = (
        (5 * 240 + 360 + 93) * len(FAMILIES) + (500 + 384) * len(PAIRS) + 24 * len(FUNCTIONS) * len(FAMILIES) + 4016
    )
    assert counted > 27_000
