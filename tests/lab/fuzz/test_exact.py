"""The exact evaluator against onnxruntime and torch, and where float64 cannot follow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vertex_lab.fuzz.asking import UnfitError
from vertex_lab.fuzz.exact import Exact
from vertex_lab.fuzz.files import Runtime, number
from vertex_lab.fuzz.programs import centre_of, program_of

BASE = {"seed": 3, "tokens": 3, "d": 2, "classes": 2, "eps": 0.1, "dtype": "float64"}
ORDINARY = [
    {"op": "linear", "seed": 5},
    {"op": "attention", "seed": 6, "fill": -1e4, "residual": True, "behind": [0.5]},
    {"op": "norm"},
    {"op": "activation", "kind": "gelu_tanh"},
    {"op": "activation", "kind": "leaky"},
    {"op": "difference", "kind": "silu", "first": "x"},
]


def test_ordinary_blocks_are_what_onnxruntime_and_torch_compute() -> None:
    recipe = {**BASE, "dtype": "float32", "blocks": [*ORDINARY, {"op": "activation", "kind": "gelu"}]}
    program, x = program_of(recipe), centre_of(recipe)
    model = program.onnx().SerializeToString()
    exact = [float(v.mid()) for v in Exact(model)(x)]
    assert np.allclose(exact, Runtime(model)(x), atol=1e-5)
    assert np.allclose(exact, program.module().double()(torch.from_numpy(x)).numpy(), atol=1e-12)


def test_what_float64_loses_is_there() -> None:
    """x·2^60 + x − x·2^60 is x."""
    plain, lost = ({**BASE, "blocks": blocks} for blocks in ([], [{"op": "cancel", "big": 2.0**60}]))
    x = centre_of(plain)
    outs = [[float(v.mid()) for v in Exact(program_of(r).onnx().SerializeToString())(x)] for r in (plain, lost)]
    assert np.allclose(*outs, rtol=1e-15)


def test_a_mask_of_minus_infinity_is_weight_zero() -> None:
    far, infinite = ({**BASE, "blocks": [{"op": "attention", "seed": 6, "fill": fill}]} for fill in (-1e9, "-inf"))
    x = centre_of(far)
    a, b = ([float(v.mid()) for v in Exact(program_of(r).onnx().SerializeToString())(x)] for r in (far, infinite))
    assert a == b


def test_a_node_that_is_not_known_is_refused() -> None:
    program = program_of({**BASE, "blocks": []})
    program.steps[0].op = "Flatten"
    with pytest.raises(UnfitError):
        Exact(program.onnx().SerializeToString())(centre_of(BASE))


@pytest.mark.parametrize("value", [0.1, -0.5, 3.0, 1e-30, 2.0**-149, 1e20, 0.0])
def test_numbers_are_written_exactly(value: float) -> None:
    from fractions import Fraction

    assert Fraction(number(value)) == Fraction(value)
