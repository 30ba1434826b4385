"""A property answers exactly, and only for inputs and outputs of its own size."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.specs.property import Case, Conjunction, DeclaredTensor, Inequality, Property

TENTH = Inequality({0: Fraction(1), 2: Fraction(-1)}, Fraction(1, 10))
LOW, HIGH = np.array([0.0, 0.0]), np.array([1.0, 1.0])


def made(*inequalities: Inequality) -> Property:
    return Property((Case(LOW, HIGH, LOW, HIGH, (Conjunction(inequalities),)),), 2, 3)


def test_an_inequality_is_exact() -> None:
    assert not TENTH.holds([0.1, 9.0, 0.0])  # 0.1 as a float is more than 1/10
    assert TENTH.holds([math.nextafter(0.1, 0), 9.0, 0.0])
    assert Inequality({0: Fraction(1)}, Fraction(1)).holds([1.0])
    assert not Inequality({0: Fraction(1)}, Fraction(1), strict=True).holds([1.0])
    assert Inequality({}, Fraction(0)).holds([])
    assert not Inequality({}, Fraction(0), strict=True).holds([])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_output_that_is_not_finite_satisfies_nothing(value) -> None:
    assert not TENTH.holds([value, 0.0, 0.0])
    assert not TENTH.holds([0.0, 0.0, value])
    assert TENTH.holds([0.0, value, 0.0])


def test_outputs_are_numbered_from_0() -> None:
    with pytest.raises(InvalidValueError, match="output -1 does not exist"):
        Inequality({-1: Fraction(1)}, Fraction(0))


def test_a_conjunction_as_a_matrix() -> None:
    both = Conjunction((TENTH, Inequality({1: Fraction(1, 3)}, Fraction(-2))))
    C, d = both.matrix(3)
    assert torch.equal(C, torch.tensor([[1, 0, -1], [0, 1 / 3, 0]], dtype=torch.float64))
    assert torch.equal(d, torch.tensor([0.1, -2.0], dtype=torch.float64))
    assert [tuple(t.shape) for t in Conjunction(()).matrix(3)] == [(0, 3), (0,)]
    assert both.holds([0.0, -6.0, 0.0])
    assert not both.holds([0.0, -5.9, 0.0])
    assert not both.holds([0.2, -6.0, 0.0])
    assert Conjunction(()).holds([1.0])


def test_a_case_contains_the_inner_box() -> None:
    case = Case(LOW, HIGH, LOW + 0.25, HIGH - 0.25, ())
    assert case.contains(np.array([[0.25], [0.75]], dtype=np.float32))
    for x in ([0.2, 0.5], [0.5, 0.8], [math.nan, 0.5]):
        assert not case.contains(np.array(x))
    wider = np.longdouble(0.75) + np.finfo(np.longdouble).eps
    assert case.contains(np.array([0.5, wider])) == (float(wider) == wider)


def test_a_property_is_broken_by_any_conjunction_of_any_case() -> None:
    never, low = Inequality({}, Fraction(-1)), Inequality({1: Fraction(1)}, Fraction(0))
    far = Case(LOW + 5, HIGH + 5, LOW + 5, HIGH + 5, (Conjunction((never,)), Conjunction((low,))))
    spec = Property((*made(never).cases, far), 2, 3)
    assert spec.broken_by(np.array([5.5, 5.5]), np.array([1.0, -1.0, 1.0]))
    assert not spec.broken_by(np.array([5.5, 5.5]), np.array([1.0, 1.0, 1.0]))
    assert not spec.broken_by(np.array([0.5, 0.5]), np.array([1.0, -1.0, 1.0]))


def test_other_sizes_are_refused() -> None:
    spec = made(TENTH)
    assert spec.broken_by(np.zeros((1, 2)), np.zeros((3, 1)))
    for x, y, said in (
        (1, 3, "the input has 1 numbers"),
        (3, 3, "the input has 3"),
        (2, 1, "the output has 1"),
        (2, 4, "4"),
    ):
        with pytest.raises(InvalidValueError, match=said):
            spec.broken_by(np.zeros(x), np.zeros(y))


def test_a_network_has_the_propertys_numbers_of_inputs_and_outputs() -> None:
    spec = made(TENTH)
    spec.require((1, 2, 1), (3,))
    with pytest.raises(InvalidValueError, match=r"the network has 3 inputs, the property speaks of 2$"):
        spec.require((3,), (4,))
    with pytest.raises(InvalidValueError, match=r"the network has 1 outputs, the property speaks of 3$"):
        spec.require((2,), ())


@pytest.mark.parametrize(
    ("declared", "theirs", "fits"),
    [
        ((2, 3), (2, 3), True),
        ((1, 2, 3), (2, 3), True),
        ((2, 3), (1, 1, 2, 3), True),
        ((3, 2), (2, 3), False),
        ((6,), (2, 3), False),
        ((2, 3, 1), (2, 3), False),
        ((2, 1, 3), (2, 3), False),
    ],
)
def test_a_declared_shape_is_the_networks(declared: tuple[int, ...], theirs: tuple[int, ...], fits: bool) -> None:
    box = np.zeros(6)
    spec = Property((Case(box, box, box, box, ()),), 6, 6, declared, None)
    back = Property(spec.cases, 6, 6, None, declared)
    if fits:
        spec.require(theirs, (6,))
        back.require((6,), theirs)
        return
    with pytest.raises(InvalidValueError, match=r"the network's input has shape .* and the property declares"):
        spec.require(theirs, (6,))
    with pytest.raises(InvalidValueError, match="the network's output has shape"):
        back.require((6,), theirs)
    Property(spec.cases, 1, 1, (), (1, 1)).require((1,), ())


BITS = st.integers(-(2**60), 2**60)
NUMBERS = st.builds(
    lambda top, bottom, power: Fraction(top, bottom) * Fraction(2) ** power,
    BITS, st.integers(1, 2**60), st.integers(-1400, 1400),
)  # fmt: skip
NEAR = st.builds(
    lambda top, bottom, power: Fraction(top, bottom) * Fraction(2) ** power,
    BITS, st.integers(1, 2**60), st.integers(-60, 60),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.integers(0, 4), NEAR, max_size=5), NEAR | NUMBERS, st.integers(-1300, 1300), st.booleans())
def test_rows_are_scaled_and_rounded_as_promised(
    near: dict[int, Fraction], limit: Fraction, power: int, single: bool
) -> None:
    """Whatever the exponents: exact arithmetic says how far off a row is, and none is silently 0."""
    dtype, unit = (torch.float32, Fraction(1, 2**24)) if single else (torch.float64, Fraction(1, 2**53))
    kind = np.float32 if single else np.float64
    far = Fraction(2) ** power
    given = Inequality({k: a * far for k, a in near.items()}, limit * far)
    try:
        row = given.scaled(dtype)
    except InvalidValueError:
        sizes = [abs(a) for a in near.values() if a]
        least, most = min(sizes, default=1), max(sizes, default=1)
        apart = most / least > Fraction(2) ** (58 if single else 398)
        assert apart or abs(limit) * max(far, 1 / most) > Fraction(2) ** (90 if single else 900)
        return
    held = {k: a for k, a in given.coefficients.items() if a}
    assert row.coefficients.keys() == held.keys()
    factors = {Fraction(2) ** _power_of(row.coefficients[k], a) for k, a in held.items()}
    assert len(factors) <= 1
    factor = factors.pop() if factors else Fraction(1)
    for k, a in held.items():
        found = row.coefficients[k]
        assert found == kind(found)
        assert abs(found) >= np.finfo(kind).tiny
        assert abs(Fraction(found) - a * factor) <= unit * (1 + unit) * abs(a * factor)
    assert row.limit == kind(row.limit)
    assert Fraction(row.limit) >= given.limit * factor
    below = np.nextafter(kind(row.limit), kind(-np.inf))
    assert not np.isfinite(below) or Fraction(float(below)) < given.limit * factor


def _power_of(found: float, exact: Fraction) -> int:
    """The nearest e with found ≈ exact · 2^e."""
    ratio = Fraction(found) / exact
    power = ratio.numerator.bit_length() - ratio.denominator.bit_length()
    return min((power - 1, power, power + 1), key=lambda e: abs(ratio / Fraction(2) ** e - 1))


def test_a_row_keeps_its_numbers_where_it_can() -> None:
    assert Inequality({0: Fraction(3), 1: Fraction(-1, 4)}, Fraction(7)).scaled() == ({0: 3.0, 1: -0.25}, 7.0)
    tiny = Inequality({0: Fraction(1, 10**330)}, Fraction(-1, 10**320))
    row = tiny.scaled()
    assert 0.5 < row.coefficients[0] < 2
    assert row.limit / row.coefficients[0] == pytest.approx(-1e10)
    with pytest.raises(InvalidValueError, match=r"coefficients from 2\^.* do not fit float64"):
        Inequality({0: Fraction(1), 1: Fraction(1, 10**200)}, Fraction(0)).scaled()
    with pytest.raises(InvalidValueError, match="do not fit float32"):
        Inequality({0: Fraction(1), 1: Fraction(1, 10**30)}, Fraction(0)).scaled(torch.float32)
    with pytest.raises(InvalidValueError, match="do not fit float64"):
        Inequality({0: Fraction(1, 10**300)}, Fraction(10**300)).scaled()
    assert Inequality({0: Fraction(0)}, Fraction(-1, 10**400)).scaled() == ({}, -0.0)


def test_declared_types_are_the_networks_or_real() -> None:
    spec = dataclasses.replace(made(TENTH), declared=(DeclaredTensor("X", "float32"), DeclaredTensor("Y", "real")))
    spec.require_kinds("float32", "float32")
    spec.require_kinds("float32", "float64")
    spec.require_kinds("undefined", "undefined")
    with pytest.raises(InvalidValueError, match="declares X with elements of type float32, and the network's are fl"):
        spec.require_kinds("float64", "float64")
    dataclasses.replace(spec, declared=None).require_kinds("float64", "float64")
