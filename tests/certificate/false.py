"""Certificates written by hand, each of which says something false (or nothing): none may be accepted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.certificate.exact import Written
from tests.certificate.made import by_hand, flat_lines, leaf, node

ONE = [node("Input", shape=[1])]
FALSE: dict[str, Callable[[], Written]] = {}


def false(builder: Callable[[], Written]) -> Callable[[], Written]:
    FALSE[builder.__name__] = builder
    return builder


@false
def nothing_special() -> Written:
    """x > 1/2 on [0, 1]."""
    return by_hand(ONE, [0], [1], [1], 0.5)


@false
def a_slope_of_relu_for_tanh() -> Written:
    """tanh x > 0.97 on [1, 2], by the line that lies below max(x, 0)."""
    lines, arrays = flat_lines(1, (1,))
    graph = [*ONE, node("Tanh", [0], [1])]
    arrays["slope"] = np.ones((1, 1))
    return by_hand(graph, [1], [2], [1], 0.97, tree=[leaf({"1": {"slope": "slope"}})], lines=lines, arrays=arrays)


@false
def a_slope_of_relu_for_gelu() -> Written:
    lines, arrays = flat_lines(1, (1,))
    graph = [*ONE, node("Gelu", [0], [1])]
    arrays["slope"] = np.zeros((1, 1))
    return by_hand(graph, [-1], [1], [1], -0.01, tree=[leaf({"1": {"slope": "slope"}})], lines=lines, arrays=arrays)


@false
def a_slope_of_relu_for_square_root() -> Written:
    lines, arrays = flat_lines(1, (1,))
    graph = [*ONE, node("Sqrt", [0], [1])]
    arrays["slope"] = np.ones((1, 1))
    return by_hand(graph, [4], [9], [1], 3.5, tree=[leaf({"1": {"slope": "slope"}})], lines=lines, arrays=arrays)


@false
def lines_of_tanh_for_relu() -> Written:
    graph = [*ONE, node("Relu", [0], [1])]
    arrays = {k: np.ones((1, 1)) for k in ("below", "above")}
    arrays |= {f"touch_{k}": np.ones((1, 2, 1)) for k in ("below", "above")}
    return by_hand(graph, [-1], [1], [1], 0.5, tree=[leaf({"1": {k: k for k in arrays}})], arrays=arrays)


@false
def coefficients_that_underflow() -> Written:
    """1e-400 · 1e300 < 1e-101, because the coefficient is 0 in floats."""
    graph = [*ONE, node("Linear", [0], [1], weight="w"), node("Linear", [1], [1], weight="w")]
    return by_hand(graph, [1e300], [1e300], [-1], -1e-101, arrays={"w": [[1e-200]]})


@false
def coefficients_of_a_scale_that_underflow() -> Written:
    graph = [*ONE, node("Scale", [0], [1], factor="w"), node("Scale", [1], [1], factor="w")]
    return by_hand(graph, [1e300], [1e300], [-1], -1e-101, arrays={"w": [1e-200]})


@false
def a_slope_that_underflows() -> Written:
    """1e-305 tanh x > 5e-305: the line −1e-19 x + 11 lies below tanh, but 1e-305 times its slope is 0 in floats."""
    graph = [*ONE, node("Tanh", [0], [1]), node("Linear", [1], [1], weight="w")]
    lines, arrays = flat_lines(1, (1,))
    arrays |= {"w": np.array([[1e-305]]), "below": np.array([[-1e-19]]), "above": np.zeros((1, 1))}
    arrays |= {f"touch_{side}": np.full((1, 2, 1), 1.5e20) for side in ("below", "above")}
    tree = [leaf({"1": {k: k for k in ("below", "above", "touch_below", "touch_above")}})]
    return by_hand(graph, [1e20], [2e20], [1], 5e-305, tree=tree, lines=lines, arrays=arrays)


@false
def a_product_that_underflows() -> Written:
    """−1e300 · x · x > … at 1e-165: the constant x_c y_c of the plane is 0 in floats, 1e-330 · 1e300 in truth."""
    minus, square = node("Scale", [0], [1], factor="m"), node("Multiply", [0, 1], [1])
    graph = [*ONE, minus, square, node("Linear", [2], [1], weight="w")]
    return by_hand(graph, [1e-165], [1e-165], [-1], 1.5e-30, arrays={"m": [-1.0], "w": [[1e300]]})


@false
def weights_of_a_case_that_underflow() -> Written:
    """1e-200 x > −1 at −1e308, because weight times row is 0 in floats."""
    return by_hand(ONE, [-1e308], [-1e308], [1e-200], -1.0, weight=1e-200)


@false
def nothing_divided_by_nothing() -> Written:
    """Rows of zeros, normalised without eps, seen by attention with the rule that does not look further."""
    graph = [
        node("Input", shape=[2, 2]), node("Normalize", [0], [2, 2], eps=0.0), node("Constant", shape=[1, 2], value="s"),
        node("Attention", [2, 1], [1, 2]),
    ]  # fmt: skip
    tree, zeros = [leaf(rule="vertex")], np.zeros((2, 2))
    return by_hand(graph, zeros, zeros, [1, 0], -2.0, tree=tree, arrays={"s": np.zeros((1, 2))})


@false
def a_row_that_is_all_masked() -> Written:
    """No key at all, seen by a second attention with the rule that does not look further."""
    graph = [
        node("Input", shape=[1, 2]), node("Constant", shape=[2, 1], value="one"),
        node("Attention", [0, 1], [1, 1], mask="mask"), node("Constant", shape=[1, 1], value="zero"),
        node("Attention", [3, 2], [1, 1]),
    ]  # fmt: skip
    arrays = {"one": np.ones((2, 1)), "zero": np.zeros((1, 1)), "mask": np.array([[True, True]])}
    return by_hand(graph, np.zeros((1, 2)), np.ones((1, 2)), [1], 0.5, tree=[leaf(rule="vertex")], arrays=arrays)


@false
def a_row_that_is_all_masked_at_the_end() -> Written:
    graph = [
        node("Input", shape=[1, 2]), node("Constant", shape=[2, 1], value="one"),
        node("Attention", [0, 1], [1, 1], mask="mask"),
    ]  # fmt: skip
    arrays = {"one": np.ones((2, 1)), "mask": np.array([[True, True]])}
    return by_hand(graph, np.zeros((1, 2)), np.ones((1, 2)), [1], 0.5, arrays=arrays)


@false
def masked_keys_with_weights() -> Written:
    """Centred scores whose mean counts a masked key: the formulas for the others do not hold."""
    graph = [
        node("Input", shape=[1, 3]), node("Constant", shape=[3, 1], value="v"),
        node("Attention", [0, 1], [1, 1], mask="mask"),
    ]  # fmt: skip
    arrays = {
        "v": [[1.0], [-1.0], [0.0]], "mask": np.array([[False, False, True]]), "ω": [[0.5, 0.5, 1.0]],
        "l": [[-10.3, -10.3, -5.0]], "u": [[-9.7, -9.7, 5.0]],
    }  # fmt: skip
    step = {"kind": "centred", "node": 2, "rule": "affine", "lower": "l", "upper": "u", "weights": "ω"}
    return by_hand(graph, [[0, 0, 10.0]], [[0.1, 0.1, 10.0]], [1], -0.04, steps=[step], arrays=arrays)


def _held(h: Any, **more: Any) -> Written:
    graph = [node("Input", shape=[2])]
    return by_hand(graph, [0, 1], [1, 2], [1, 0], 0.5, tree=[leaf({"0": {"held": "h"}})], arrays={"h": h}, **more)


@false
def held_without_objectives() -> Written:
    return _held(np.array([0.0, 10.0]))


@false
def held_for_too_many_objectives() -> Written:
    return _held(np.array([[0.0, 10.0], [0.0, 10.0]]))


@false
def held_in_two_copies() -> Written:
    return _held(np.array([[[0.0, 10.0], [0.0, 10.0]]]))


@false
def held_as_it_should_be() -> Written:
    return _held(np.array([[0.0, 10.0]]))


def _entries(entries: Any) -> Written:
    graph = [node("Input", shape=[2]), node("Scale", [0], [2], factor="f")]
    step = {"kind": "box", "node": 1, "rule": "affine", "lower": "l", "upper": "u", "entries": "e"}
    arrays = {"f": np.ones(2), "e": entries, "l": [2.0, 2.0], "u": [2.0, 6.0]}
    tree = [leaf({"1": {"held": "h"}})]
    return by_hand(graph, [1, 5], [2, 6], [1, 0], 1.5, tree=tree, steps=[step], arrays={**arrays, "h": [[-1.0, 0.0]]})


@false
def entries_of_two_dimensions() -> Written:
    return _entries(np.array([[0, 1], [1, 0]]))


@false
def entries_twice_and_from_the_end() -> Written:
    return _entries(np.array([0, 0, -1, -2]))


@false
def entries_that_there_are_not() -> Written:
    return _entries(np.array([0, 2]))


@false
def no_entries() -> Written:
    return _entries(np.zeros(0, dtype=np.int64))


def _steps(*steps: dict[str, Any], **arrays: Any) -> Written:
    graph = [node("Input", shape=[2]), node("Linear", [0], [2], weight="w"), node("Relu", [1], [2])]
    filled = {"w": np.eye(2), "l": [0.9, 0.9], "u": [1.0, 1.0], "e": np.arange(2), "ω": [0.5, 0.5], **arrays}
    return by_hand(graph, [-1, -1], [1, 1], [1, 1], 0.5, steps=list(steps), arrays=filled)


_STEP = {"rule": "affine", "lower": "l", "upper": "u", "entries": "e", "weights": "ω"}
for _number in (0, 1, 2, -1, -2, -3, True, 3, 10**20):
    for _kind in ("box", "zonotope", "centred", "anything"):
        FALSE[f"a_{_kind}_of_node_{_number}"] = functools.partial(_steps, {"kind": _kind, "node": _number, **_STEP})


def _trees(*tree: dict[str, Any]) -> Written:
    """max(x, 0) > 1/4 on [−1, 1], by trees that do not cover."""
    return by_hand([*ONE, node("Relu", [0], [1])], [-1], [1], [1], 0.25, tree=list(tree))


def _split(
    number: Any = 1, entry: Any = 0, point: Any = 0.5, inner: Any = False, left: Any = 1, right: Any = 2
) -> dict[str, Any]:
    return {"split": [number, entry, point, inner], "left": left, "right": right}


for _number, _tree in enumerate(
    [
        [_split(left=2, right=2), leaf(), leaf()],
        [_split(left=1, right=1), leaf()],
        [_split(left=0, right=1), leaf()],
        [_split(left=-1, right=-1), leaf(), leaf()],
        [_split(left=1, right=0), leaf()],
        [_split(left=True, right=True), leaf()],
        [_split(left=1.0, right=2.0), leaf(), leaf()],
        [_split(left=1, right=3), leaf(), leaf()],
        [_split(left="1", right="2"), leaf(), leaf()],
        [_split(left=None, right=None), leaf(), leaf()],
        [_split(number=0), leaf(), leaf()],
        [_split(number=False), leaf(), leaf()],
        [_split(number=-1), leaf(), leaf()],
        [_split(number=5), leaf(), leaf()],
        [_split(entry=1), leaf(), leaf()],
        [_split(entry=-1), leaf(), leaf()],
        [_split(point=1e400), leaf(), leaf()],
        [_split(point=-1e400), leaf(), leaf()],
        [_split(point=float("nan")), leaf(), leaf()],
        [_split(point=None), leaf(), leaf()],
        [_split(point=10**400), leaf(), leaf()],
        [_split(point=-5.0), leaf(), leaf()],
        [_split(point=5.0), leaf(), leaf()],
        [_split(inner=True), leaf(), leaf()],
        [_split(number=0, inner=True), leaf(), leaf()],
        [{"split": [1, 0, 0.5, False]}, leaf(), leaf()],
        [{"split": [], "left": 1, "right": 2}, leaf(), leaf()],
        [{"split": "1050", "left": 1, "right": 2}, leaf(), leaf()],
        [{}],
        [],
        [[]],
    ]
):
    FALSE[f"tree_{_number}"] = functools.partial(_trees, *_tree)  # type: ignore[arg-type]


def attention(chosen: dict[str, Any], **more: Any) -> Written:
    """Σ p v > 1 with v = (1, 1)."""
    graph = [
        node("Input", shape=[1, 2]), node("Constant", shape=[2, 1], value="v"), node("Attention", [0, 1], [1, 1]),
    ]  # fmt: skip
    tree = [leaf({"2": {k: k for k in chosen}}, pieces=more.pop("pieces", 1))]
    arrays = {"v": np.ones((2, 1)), **chosen}
    return by_hand(graph, [[-1, -1]], [[1, 1]], [1], 1.2, tree=tree, arrays=arrays, **more)


GOOD = {"a": np.zeros((1, 1, 2)), "m": np.zeros((1, 1, 2)), "mu": np.ones((1, 1, 1))}
for _shape in ((1, 2, 1, 2), (2, 1, 2), (1, 2), (2,), (), (1, 1, 1), (1, 1, 4), (2, 2, 1, 2)):
    for _key in ("a", "m"):
        FALSE[f"{_key}_of_shape_{_shape}"] = functools.partial(attention, {**GOOD, _key: np.zeros(_shape)})
for _shape in ((1, 2, 1, 1), (2, 1, 1), (1, 1), (1,), (), (1, 1, 2), (1, 1, 0), (1, 2, 1)):
    FALSE[f"mu_of_shape_{_shape}"] = functools.partial(attention, {**GOOD, "mu": np.ones(_shape)})
for _pieces in (0, -1, 1.9, "1", True, 2, None, [], float("nan"), 1e400, 1 << 40, 10**400):
    FALSE[f"pieces_{str(_pieces)[:20]}"] = functools.partial(attention, dict(GOOD), pieces=_pieces)
FALSE["a_alone"] = functools.partial(attention, {"a": GOOD["a"]})
FALSE["no_mu"] = functools.partial(attention, {"a": GOOD["a"], "m": GOOD["m"]})
FALSE["unknown_choice"] = functools.partial(attention, {**GOOD, "nu": GOOD["mu"]})


def _network(*graph: dict[str, Any], **arrays: Any) -> Written:
    """The sum of the outputs > 10 for inputs (2,) in [−1, 1]."""
    n = int(np.prod(graph[-1]["shape"] or [1])) if all(type(k) is int for k in graph[-1]["shape"]) else 1
    row = [1.0] * min(max(n, 1), 16)
    return by_hand([node("Input", shape=[2]), *graph], [-1, -1], [1, 1], row, 10.0, arrays=arrays)


for _name, _graph, _arrays in [
    ("a node before itself", [node("Relu", [1], [2])], {}),
    ("a node after it", [node("Relu", [2], [2]), node("Relu", [0], [2])], {}),
    ("a node from the end", [node("Relu", [-1], [2])], {}),
    ("a node that is true", [node("Relu", [0], [2]), node("Relu", [True], [2])], {}),
    ("a node that is 0.0", [node("Relu", [0.0], [2])], {}),  # type: ignore[list-item]
    ("a second input", [node("Input", [], [2])], {}),
    ("two inputs of relu", [node("Relu", [0, 0], [2])], {}),
    ("no input of relu", [node("Relu", [], [2])], {}),
    ("three inputs of add", [node("Add", [0, 0, 0], [2])], {}),
    ("another shape", [node("Relu", [0], [1])], {}),
    ("a shape of 0", [node("Relu", [0], [0])], {}),
    ("a negative shape", [node("Relu", [0], [-2])], {}),
    ("two negative dimensions", [node("Move", [0], [-1, -2], index="i")], {"i": np.arange(2).reshape(1, 2)}),
    ("a shape that is true", [node("Move", [0], [True, 2], index="i")], {"i": np.arange(2).reshape(1, 2)}),
    ("a shape of floats", [node("Relu", [0], [2.0])], {}),  # type: ignore[list-item]
    ("billions of tokens", [node("Move", [0], [1 << 40], index="i")], {"i": np.arange(2)}),
    ("a broadcast", [node("Move", [0], [4, 2], index="i")], {"i": np.arange(2)}),
    ("an index beyond", [node("Move", [0], [2], index="i")], {"i": np.array([0, 2])}),
    ("a negative index", [node("Move", [0], [2], index="i")], {"i": np.array([0, -1])}),
    ("an index of floats", [node("Move", [0], [2], index="i")], {"i": np.array([0.0, 1.0])}),
    ("an index of truth values", [node("Move", [0], [2], index="i")], {"i": np.array([False, True])}),
    ("a move of nothing", [node("Move", [], [2], index="i")], {"i": np.array([0, 0])}),
    ("weights of integers", [node("Scale", [0], [2], factor="f")], {"f": np.array([100, 100])}),
    ("a factor that broadcasts", [node("Scale", [0], [2], factor="f")], {"f": np.array([100.0])}),
    ("no factor", [node("Scale", [0], [2])], {}),
    ("a factor of another name", [node("Scale", [0], [2], offset="f")], {"f": np.ones(2)}),
    ("weights turned around", [node("Linear", [0], [3], weight="w")], {"w": np.ones((3, 2))}),
    ("weights of three dimensions", [node("Linear", [0], [2], weight="w")], {"w": np.ones((1, 2, 2))}),
    ("a constant with an input", [node("Constant", [0], [2], value="v")], {"v": np.ones(2)}),
    ("a constant that broadcasts", [node("Constant", [], [2], value="v")], {"v": np.ones(1)}),
    ("not a number", [node("Scale", [0], [2], factor="f")], {"f": np.array([np.nan, 1.0])}),
    ("infinity", [node("Scale", [0], [2], factor="f")], {"f": np.array([np.inf, 1.0])}),
    ("infinity in single precision", [node("Scale", [0], [2], factor="f")], {"f": np.array([np.inf, 1.0], np.float32)}),
    ("overflow", [node("Scale", [0], [2], factor="f"), node("Scale", [1], [2], factor="f")], {"f": np.full(2, 1e308)}),
    ("eps below 0", [node("Normalize", [0], [2], eps=-1.0)], {}),
    ("eps not a number", [node("Normalize", [0], [2], eps=float("nan"))], {}),
    ("eps infinite", [node("Normalize", [0], [2], eps=1e400)], {}),
    ("rows of zeros", [node("Normalize", [0], [2])], {}),
    ("a product of vectors", [node("MatMul", [0, 0], [2])], {}),
    ("an op that is none", [node("Sin", [0], [2])], {}),
    ("an op that is a list", [node([], [0], [2])], {}),  # type: ignore[arg-type]
    ("an op that is nothing", [node(None, [0], [2])], {}),  # type: ignore[arg-type]
    ("a logarithm of what is negative", [node("Log", [0], [2])], {}),
    ("a curve without lines", [node("Gelu", [0], [2])], {}),
]:
    FALSE[_name.replace(" ", "_")] = functools.partial(_network, *_graph, **_arrays)


def _said(**changes: Any) -> Written:
    """x > 1/2 on [0, 1], with something odd in the part."""
    found = nothing_special()
    found.header["parts"][0].update(changes)
    return found


_LEAF = [leaf()]
for _name, _changes in {
    "no_property": {"property": []},
    "no_proofs": {"proofs": []},
    "proof_of_no_case": {"proofs": [{"cases": [], "tree": _LEAF}]},
    "proof_of_another_case": {"proofs": [{"cases": [1], "tree": _LEAF}]},
    "proof_of_case_minus_one": {"proofs": [{"cases": [-1], "tree": _LEAF}]},
    "proof_of_true": {"proofs": [{"cases": [True], "tree": _LEAF}]},
    "one_proof_a_thousand_times": {"proofs": [{"cases": [0] * 1000, "tree": _LEAF}]},
    "no_tree": {"proofs": [{"cases": [0], "tree": []}]},
    "tree_of_text": {"proofs": [{"cases": [0], "tree": "split"}]},
    "unknown_rule": {"proofs": [{"cases": [0], "tree": [leaf(rule="believe")]}]},
    "steps_that_are_none": {"steps": None},
    "lines_of_no_node": {"lines": {"7": []}},
    "lines_of_text": {"lines": {"x": []}},
    "lines_of_minus_one": {"lines": {"-1": []}},
}.items():
    FALSE[_name] = functools.partial(_said, **_changes)


def _two_cases(*which: Any) -> Written:
    """x > 1/2 and x > −5 on [0, 1], of which only the second is true, with a proof of some of them."""
    found = nothing_special()
    part = found.header["parts"][0]
    part["property"].append({"rows": "rows", "bound": "lower bound", "weights": "weights"})
    part["proofs"] = [{"cases": list(which), "tree": _LEAF}]
    return Written(found.header, {**found.arrays, "lower bound": np.array([-5.0])})


_ODD = ((1,), (True,), (False,), (-1,), (1, True), (0, True), (True, 0), (1, -1), (1.0,), ("1",), (None,), ([1],))
for _which in _ODD:
    FALSE[f"proof_of_cases_{_which}"] = functools.partial(_two_cases, *_which)


def _numbers(**arrays: Any) -> Written:
    found = nothing_special()
    return Written(found.header, {**found.arrays, **{k: np.asarray(v) for k, v in arrays.items()}})


for _name, _arrays in {
    "an_empty_input": {"lower": [2.0], "upper": [1.0]},
    "an_input_that_is_no_number": {"lower": [np.nan]},
    "an_infinite_input": {"upper": [np.inf]},
    "an_input_of_another_shape": {"lower": 0.0},
    "no_rows": {"rows": np.zeros((0, 1)), "bound": [], "weights": []},
    "negative_weights": {"weights": [-1.0]},
    "weights_of_zero": {"weights": [0.0]},
    "weights_of_two_rows": {"weights": [1.0, 1.0]},
    "a_negative_weight_among_others": {"rows": [[1.0], [-1.0]], "bound": [0.5, 0.5], "weights": [1.0, -1e-300]},
    "a_bound_of_two_dimensions": {"bound": [[0.5]]},
    "rows_of_one_dimension": {"rows": [1.0]},
    "weights_not_a_number": {"weights": [np.nan]},
    "weights_infinite": {"weights": [np.inf]},
    "bound_not_a_number": {"bound": [np.nan]},
    "bound_minus_infinity": {"bound": [-np.inf]},
    "weights_too_large": {"weights": [1e308], "rows": [[1e308]]},
    "integers": {"bound": [0]},
    "rows_that_cancel": {"rows": [[1.0], [-1.0]], "bound": [0.5, -0.4], "weights": [1.0, 1.0]},
}.items():
    FALSE[_name] = functools.partial(_numbers, **_arrays)
