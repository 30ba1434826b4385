"""torch.set_flush_denormal(True) does not make a bound wrong: subnormal numbers are read and returned as they are."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import vertex_softmax as vx
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.softmax_box.outward import gradual_underflow, round_down

TINY = {np.float64: 16 * 2.3e-308, np.float32: 16 * 1.2e-38}


@pytest.fixture
def flushed():
    """Subnormal numbers are flushed to zero, if this processor can do that."""
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


def subnormal_minimum(dtype):
    c = np.array([-TINY[dtype], TINY[dtype]], dtype=dtype)
    box = np.array([0.0, -0.01], dtype=dtype)
    return c, box


@pytest.mark.parametrize("dtype", TINY)
def test_outward_results_that_are_subnormal(flushed, dtype) -> None:
    c, box = subnormal_minimum(dtype)
    low = vx.softmax_box_min(c, box, box, outward=True)
    high = vx.softmax_box_max(-c, box, box, outward=True)
    torch.set_flush_denormal(False)
    assert vx.is_lower_bound(low, c, box, box) is True
    assert vx.is_lower_bound(-high, c, box, box) is True


def test_subnormal_coefficients(flushed) -> None:
    c = np.array([-1e-310, -1e-310])
    low = vx.softmax_box_min(c, np.zeros(2), np.zeros(2), outward=True)
    torch.set_flush_denormal(False)
    assert low <= -1e-310


def test_proofs_are_not_decided_by_flushed_numbers(flushed) -> None:
    c, box = subnormal_minimum(np.float64)
    answer = vx.is_lower_bound(-1e-309, c, box, box)
    enclosure = vx.softmax_box_enclosure(c, box, box)
    torch.set_flush_denormal(False)
    assert answer is False
    assert enclosure == vx.softmax_box_enclosure(c, box, box)
    assert enclosure[1] < 0


def test_probabilities_stay_inside_their_outward_range(flushed) -> None:
    box = np.array([0.0, -92.0], dtype=np.float32)
    high = vx.softmax_box_probabilities(box, box, outward=True)[1]
    torch.set_flush_denormal(False)
    assert float(high[1]) >= math.exp(-92) * 0.999


def test_the_mode_is_given_back(flushed) -> None:
    on = math.ulp(0.0) * 1.0 == 0.0
    with gradual_underflow():
        assert math.ulp(0.0) * 1.0 > 0
        assert round_down(torch.tensor(-1e-40, dtype=torch.float64), torch.float32) <= -1e-40
    assert (math.ulp(0.0) * 1.0 == 0.0) == on


@pytest.mark.parametrize("t", [2**53 + 1, np.longdouble(0.5), Fraction(1, 2), 0.5 + 9j, "0.5", None, 2**80])
def test_a_number_that_float64_does_not_hold_is_refused(t) -> None:
    with pytest.raises(VertexError):
        vx.is_lower_bound(t, np.array([0.0, 2.0**54]), np.zeros(2), np.zeros(2))


def test_numbers_that_float64_holds_are_taken() -> None:
    box = np.zeros(2)
    for t in (0, 1, np.float32(0.5), np.float16(0.5), torch.tensor(0.5), np.uint8(1)):
        assert vx.is_lower_bound(t, np.array([0.0, 2.0]), box, box) is True
