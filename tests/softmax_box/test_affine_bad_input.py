"""Bad arguments of the affine vertex rule: an error that names the argument, the index and the remedy, no number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, VertexError
from vertex_softmax.softmax_box import affine_minorant

NAMES = ("lower", "upper", "value_lower", "value_upper", "a", "m", "mu")
FINITE = NAMES[2:]


def box(rows: int = 4, K: int = 3, M: int = 2) -> dict[str, np.ndarray]:
    shapes = {name: (rows, M if name == "mu" else K) for name in NAMES}
    return {name: np.ones(shape) if "upper" in name else np.zeros(shape) for name, shape in shapes.items()}


def refused(arguments: dict, error: type[Exception], *messages: str) -> None:
    for outward in (False, True):
        with pytest.raises(error) as caught:
            affine_minorant(**arguments, outward=outward)
        assert isinstance(caught.value, VertexError)
        for message in messages:
            assert message in str(caught.value)


def test_the_box_itself_is_fine() -> None:
    assert np.isfinite(affine_minorant(**box())).all()


@pytest.mark.parametrize("name", NAMES)
def test_nan(name) -> None:
    arguments = box()
    arguments[name][2, 1] = np.nan
    refused(arguments, InvalidValueError, f"{name} is NaN at index (2, 1)")
    tensors = {key: torch.from_numpy(x) for key, x in arguments.items()}
    refused(tensors, InvalidValueError, f"{name} is NaN at index (2, 1)")


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("name", FINITE)
def test_infinite_values_slopes_and_multipliers(name, value) -> None:
    arguments = box()
    arguments[name][3, 1] = value
    refused(arguments, InvalidValueError, f"{name} is {value} at index (3, 1)", "finite")


def test_infinite_scores() -> None:
    arguments = box()
    arguments["upper"][1, 2] = np.inf
    refused(arguments, InvalidValueError, "upper is +inf at index (1, 2)")
    arguments = box()
    arguments["lower"][1, 2] = -np.inf
    refused(arguments, InvalidValueError, "lower is -inf but upper is 1.0 at index (1, 2)", "masked key")


@pytest.mark.parametrize("name", ["", "value_"])
def test_crossed_ends(name) -> None:
    arguments = box()
    arguments[f"{name}lower"][3, 0] = 2
    refused(arguments, InvalidValueError, f"{name}lower > {name}upper at index (3, 0): 2.0 > 1.0", "swap")


def test_masked_keys() -> None:
    arguments = box()
    arguments["lower"][2] = arguments["upper"][2] = -np.inf
    refused(arguments, InvalidValueError, "every key is masked (-inf) in row (2,)")
    arguments["lower"][2, 0], arguments["upper"][2, 0] = 0, 1
    assert np.isfinite(affine_minorant(**arguments)).all()
    arguments["a"] = np.full(3, 0.5)  # broadcast, and not 0 at the masked keys
    refused(arguments, InvalidValueError, "a is 0.5 at index (2, 1), where the key is masked", "must be 0")


@pytest.mark.parametrize("name", NAMES)
def test_shapes_that_do_not_broadcast(name) -> None:
    wrong = [(5, 2)] if name == "mu" else [(4, 4), (4, 1), (5, 3), (1,)]
    for shape in wrong:
        arguments = box() | {name: np.zeros(shape)}
        refused(arguments, InvalidValueError, "do not broadcast", f"{name} {shape}", "mu")


def test_no_keys_no_pieces_and_no_dimensions() -> None:
    refused(box(M=0), InvalidValueError, "mu has shape (4, 0)", "M ≥ 1")
    refused(box(K=0), InvalidValueError, "K ≥ 1")
    refused(box() | {"mu": np.float64(0)}, InvalidValueError, "mu is a scalar", "mu[None] for M = 1")
    refused(box() | {"a": np.float64(0)}, InvalidValueError, "a is a scalar", "a[None] for K = 1")


@pytest.mark.parametrize("name", NAMES)
def test_other_types(name) -> None:
    refused(box() | {name: np.zeros((4, 3), dtype=np.int64)}, InvalidTypeError, f"{name} has dtype int64")
    refused(box() | {name: torch.zeros(4, 3)}, InvalidTypeError, "is not a torch tensor")
    refused(box() | {name: "abc"}, InvalidTypeError, name)


def test_arguments_are_not_modified() -> None:
    arguments = box()
    copies = {name: x.copy() for name, x in arguments.items()}
    affine_minorant(**arguments)
    affine_minorant(**arguments, outward=True)
    for name, x in arguments.items():
        np.testing.assert_array_equal(x, copies[name])
