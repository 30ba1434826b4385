"""Bad input raises a VertexError that is also the built-in error, and names the argument, the index and the remedy."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import vertex_softmax as vx
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, VertexError

FUNCTIONS = {
    "min": vx.softmax_box_min,
    "max": vx.softmax_box_max,
    "bounds": vx.softmax_box_bounds,
    "argmin": vx.softmax_box_argmin,
    "threshold": functools.partial(vx.softmax_box_min, algorithm="threshold"),
    "outward": functools.partial(vx.softmax_box_bounds, outward=True),
    "enclosure": vx.softmax_box_enclosure,
    "is_lower_bound": lambda *box: vx.is_lower_bound(0.0, *box),
    "probabilities": lambda _, lower, upper: vx.softmax_box_probabilities(lower, upper),
}
WITHOUT_C = {name: f for name, f in FUNCTIONS.items() if name != "probabilities"}


def box(keys: int = 3, rows: int = 4) -> dict[str, np.ndarray]:
    return {"c": np.ones((rows, keys)), "lower": np.zeros((rows, keys)), "upper": np.ones((rows, keys))}


def refused(function, arguments: dict, error: type[Exception], *messages: str) -> None:
    with pytest.raises(error) as caught:
        function(*arguments.values())
    assert isinstance(caught.value, VertexError)
    assert isinstance(caught.value, ValueError | TypeError)
    for message in messages:
        assert message in str(caught.value)


@pytest.mark.parametrize("keys", [1, 3, 100])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", ["c", "lower", "upper"])
def test_nan(name, function, keys) -> None:
    arguments = box(keys)
    arguments[name][2, keys - 1] = np.nan
    if name == "c" and function == "probabilities":
        return
    refused(FUNCTIONS[function], arguments, InvalidValueError, f"{name} is NaN at index (2, {keys - 1})")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_nan_in_a_tensor_that_is_broadcast(function, dtype) -> None:
    arguments = {"c": torch.zeros(5, 1, 3), "lower": torch.zeros(4, 3), "upper": torch.ones(3)}
    arguments = {name: x.to(dtype) for name, x in arguments.items()}
    arguments["lower"][3, 1] = torch.nan
    refused(FUNCTIONS[function], arguments, InvalidValueError, "lower is NaN at index (3, 1)")


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("function", WITHOUT_C)
def test_infinite_coefficients(function, value) -> None:
    arguments = box()
    arguments["c"][1, 2] = value
    refused(
        FUNCTIONS[function],
        arguments,
        InvalidValueError,
        f"c is {value}",
        "(1, 2)",
        "mask it with lower = upper = -inf",
    )
    arguments["lower"][1, 2] = arguments["upper"][1, 2] = -np.inf
    refused(FUNCTIONS[function], arguments, InvalidValueError, f"c is {value}", "(1, 2)")


@pytest.mark.parametrize("keys", [2, 100])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_crossed_bounds(function, keys) -> None:
    arguments = box(keys)
    arguments["lower"][3, 0] = np.nextafter(1, 2)
    refused(FUNCTIONS[function], arguments, InvalidValueError, "lower > upper at index (3, 0)", "swap them")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_scores_of_plus_infinity(function) -> None:
    arguments = box()
    arguments["upper"][0, 1] = np.inf
    refused(FUNCTIONS[function], arguments, InvalidValueError, "upper is +inf at index (0, 1)", "pass a finite bound")
    arguments["lower"][0, 1] = np.inf
    refused(FUNCTIONS[function], arguments, InvalidValueError, "lower is +inf at index (0, 1)", "pass a finite bound")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_key_masked_at_one_end_only(function) -> None:
    arguments = box()
    arguments["lower"][1, 1] = -np.inf
    refused(
        FUNCTIONS[function],
        arguments,
        InvalidValueError,
        "lower is -inf but upper is 1.0 at index (1, 1)",
        "masked key",
    )
    arguments = box()
    arguments["upper"][1, 1] = -np.inf
    refused(FUNCTIONS[function], arguments, InvalidValueError, "lower > upper at index (1, 1)")


@pytest.mark.parametrize("keys", [1, 3, 100])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_key_masked(function, keys) -> None:
    arguments = box(keys)
    arguments["lower"][2] = arguments["upper"][2] = -np.inf
    refused(FUNCTIONS[function], arguments, InvalidValueError, "every key is masked (-inf) in row (2,)", "unmask one")


@pytest.mark.parametrize("function", WITHOUT_C)
@pytest.mark.parametrize(
    "shapes",
    [((3, 4), (2, 4), (4,)), ((4,), (5,), (5,)), ((5,), (5,), (1,)), ((1,), (5,), (5,)), ((2, 3, 4), (3, 3, 4), (4,))],
)
def test_shapes_that_do_not_broadcast(function, shapes) -> None:
    arguments = dict(zip(("c", "lower", "upper"), map(np.zeros, shapes), strict=True))
    shown = [f"{name} {shape}" for name, shape in zip(arguments, shapes, strict=True)]
    refused(FUNCTIONS[function], arguments, InvalidValueError, "do not broadcast", *shown, "same number of keys")


def test_probabilities_whose_shapes_do_not_broadcast() -> None:
    with pytest.raises(InvalidValueError, match="do not broadcast"):
        vx.softmax_box_probabilities(np.zeros((3, 4)), np.zeros((2, 4)))


@pytest.mark.parametrize("name", ["c", "lower", "upper"])
@pytest.mark.parametrize(
    "dtype", ["int64", "int8", "uint16", "bool", "complex128", "object", "float16", "longdouble", "U3", "M8[s]"]
)
def test_arrays_of_another_dtype(name, dtype) -> None:
    arguments = box()
    arguments[name] = np.zeros((4, 3)).astype(dtype)
    shown = str(arguments[name].dtype)
    for function in WITHOUT_C.values():
        refused(function, arguments, InvalidTypeError, f"{name} has dtype {shown}", "float64")


@pytest.mark.parametrize("name", ["c", "lower", "upper"])
@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.bool, torch.complex64, torch.float16, torch.bfloat16, torch.uint8]
)
def test_tensors_of_another_dtype(name, dtype) -> None:
    arguments = {key: torch.from_numpy(x) for key, x in box().items()}
    arguments[name] = torch.zeros((4, 3), dtype=dtype)
    for function in WITHOUT_C.values():
        refused(function, arguments, InvalidTypeError, f"{name} has dtype {str(dtype)[6:]}", ".double()")


@pytest.mark.parametrize("function", WITHOUT_C)
def test_no_keys_and_no_dimensions(function) -> None:
    empty = dict.fromkeys(("c", "lower", "upper"), np.zeros((4, 0)))
    refused(FUNCTIONS[function], empty, InvalidValueError, "K = 0", "K ≥ 1")
    scalar = dict.fromkeys(("c", "lower", "upper"), np.float64(1))
    refused(FUNCTIONS[function], scalar, InvalidValueError, "c is a scalar", "c[None]")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_arrays_mixed_with_tensors(function) -> None:
    arguments = box() | {"upper": torch.ones(4, 3)}
    refused(
        FUNCTIONS[function],
        arguments,
        InvalidTypeError,
        "lower is not a torch tensor" if function == "probabilities" else "c is not",
    )


@pytest.mark.parametrize("value", ["abc", None, {}, [[1.0], [1.0, 2.0]], object(), ["a", "b", "c"]])
def test_things_that_are_not_numbers(value) -> None:
    for name in ("c", "lower", "upper"):
        refused(vx.softmax_box_min, box() | {name: value}, InvalidTypeError, name)


def test_sparse_tensors() -> None:
    for name in ("c", "lower", "upper"):
        arguments = {key: torch.from_numpy(x) for key, x in box().items()}
        arguments[name] = arguments[name].to_sparse()
        refused(vx.softmax_box_min, arguments, InvalidTypeError, f"{name} is sparse", ".to_dense()")


@pytest.mark.parametrize(
    "function", [vx.softmax_box_min, vx.softmax_box_max, vx.softmax_box_bounds, vx.softmax_box_argmin]
)
def test_unknown_algorithm(function) -> None:
    with pytest.raises(InvalidValueError, match=r"algorithm is 'sort'; choose one of auto, newton, threshold"):
        function(*box().values(), algorithm="sort")


def test_the_first_bad_row_is_named_and_good_rows_do_not_hide_it() -> None:
    """Also among rows that the log-domain path must solve."""
    arguments = box(3, 1000)
    arguments["upper"][:, 0] = 1e4
    arguments["c"][7, 1] = np.nan
    refused(vx.softmax_box_min, arguments, InvalidValueError, "c is NaN at index (7, 1)")
    refused(vx.softmax_box_max, arguments, InvalidValueError, "c is NaN at index (7, 1)")


def test_bad_arguments_are_not_modified() -> None:
    arguments = box()
    arguments["lower"][0, 0] = 2
    copies = {name: x.copy() for name, x in arguments.items()}
    for function in FUNCTIONS.values():
        with pytest.raises(VertexError):
            function(*arguments.values())
    for name, x in arguments.items():
        np.testing.assert_array_equal(x, copies[name])
