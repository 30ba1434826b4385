"""A property answers exactly, and only for inputs and outputs of its own size."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from vertex_softmax.errors import InvalidValueError
from vertex_softmax.specs.property import Case, Conjunction, Inequality, Property

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
