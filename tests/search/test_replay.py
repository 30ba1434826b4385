"""A counterexample is confirmed only by the model itself, inside the decimals' box, without tolerance."""

from __future__ import annotations

import dataclasses
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.search.small import case, conjunction, network, prop, run
from tests.specs.second_version import assignment
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, UnsupportedModelError
from vertex_softmax.search.replay import Replay, counterexample_text, rounded_down
from vertex_softmax.specs.property import DeclaredTensor

torch.set_num_threads(1)
SUM = (np.array([[1.0, 1.0], [1.0, -1.0]]), np.zeros(2))
"""y = (x0 + x1, x0 − x1)"""


def values(text: str, letter: str) -> list[str]:
    return re.findall(rf"\({letter}_\d+ ([^)]+)\)", text)


def test_the_output_is_onnxruntimes() -> None:
    rng = np.random.default_rng(0)
    model = network((rng.normal(size=(6, 4)), rng.normal(size=6)), "Relu", (rng.normal(size=(3, 6)), np.zeros(3)))
    replay, x = Replay(model), rng.normal(size=(1, 4))
    assert replay.shape == (1, 4)
    assert replay.dtype == np.float32
    y = replay.output(x)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, run(model, x.astype(np.float32)))
    np.testing.assert_array_equal(y, replay.output(x.reshape(-1)))
    np.testing.assert_array_equal(y, replay.output(x.astype(np.float32)))


def test_a_float64_model_runs_in_float64() -> None:
    replay = Replay(network(SUM, dtype=np.float64))
    y = replay.output(np.array([1.0, 1e-12]))
    assert y.dtype == np.float64
    assert y[0, 0] == 1.0 + 1e-12
    broken = prop(2, case([("0.1", "0.1"), ("0", "1")], conjunction(({}, 1))))
    assert replay.confirms(broken, np.array([0.1, 0.5])) is None  # 0.1 is no float64 either


def test_what_breaks_the_property_is_confirmed_and_nothing_else() -> None:
    replay = Replay(network(SUM))
    box = [("0", "1"), ("0", "1")]
    one = prop(2, case(box, conjunction(({0: 1}, "0.5")), conjunction(({0: -1}, "-1.5"), ({1: -1}, "0"))))
    found = replay.confirms(one, np.array([0.25, 0.25]))
    assert found is not None
    assert found.at == (0, 0)
    assert found.x.dtype == np.float32
    assert found.x.shape == (1, 2)
    np.testing.assert_array_equal(found.y, [[0.5, 0.0]])
    assert one.broken_by(found.x, found.y)
    found = replay.confirms(one, np.array([[1.0, 0.75]]))
    assert found is not None
    assert found.at == (0, 1)
    assert replay.confirms(one, np.array([0.75, 1.0])) is None  # one of the two inequalities
    assert replay.confirms(one, np.array([0.25, 0.25 + 2**-24])) is None  # by one ulp
    assert replay.confirms(one, np.array([-0.25, 0.25])) is None  # outside
    assert replay.confirms(one, np.array([np.nan, 0.25])) is None
    assert replay.confirms(one, np.array([np.inf, 0.25])) is None


def test_a_strict_inequality_is_strict() -> None:
    from vertex_softmax.specs.property import Conjunction, Inequality

    strict = Conjunction((Inequality({0: Fraction(1)}, Fraction(1, 2), strict=True),))
    spec = prop(2, case([("0", "1"), ("0", "1")], strict))
    replay = Replay(network(SUM))
    assert replay.confirms(spec, np.array([0.25, 0.25])) is None
    assert replay.confirms(spec, np.array([0.25, 0.24])) is not None


def test_of_many_boxes_the_one_around_the_point_is_judged() -> None:
    replay = Replay(network(SUM))
    low, high = conjunction(({0: 1}, "0.5")), conjunction(({0: -1}, "-0.5"))
    boxes = [case([(str(i), str(i + 1)), ("0", "0")], high if i == 7 else low) for i in range(10)]
    spec = prop(2, *boxes)
    found = replay.confirms(spec, np.array([7.5, 0]))
    assert found is not None
    assert found.at == (7, 0)
    assert found.case is spec.cases[7]
    assert replay.confirms(spec, np.array([5.5, 0])) is None
    found = replay.confirms(spec, np.array([8.0, 0]))  # in two boxes: the second does not break
    assert found is not None
    assert found.at == (7, 0)
    other = prop(2, case([("5", "6"), ("0", "0")], high))
    assert replay.confirms(other, np.array([5.5, 0])) is not None  # another property, another box


def test_a_candidate_is_rounded_into_the_box() -> None:
    replay = Replay(network(SUM))
    spec = prop(2, case([("0.1", "0.2"), ("0.3", "0.7")], conjunction(({}, 0))))
    tenth, fifth = np.float32(0.1), np.float32(0.2)
    assert Fraction(float(tenth)) > Fraction("0.1")
    assert Fraction(float(fifth)) > Fraction("0.2")
    found = replay.confirms(spec, np.array([0.2, 0.5]))
    assert found is not None
    assert found.x[0, 0] == np.nextafter(fifth, np.float32(0))
    found = replay.confirms(spec, np.array([0.1, 0.3]))
    assert found is not None
    assert found.x[0, 0] == tenth
    assert found.x[0, 1] == np.float32(0.3)
    assert replay.confirms(spec, np.array([fifth, 0.5], dtype=np.float32)) is not None  # outside by its rounding
    beyond = np.nextafter(np.nextafter(fifth, np.float32(1)), np.float32(1))
    assert replay.confirms(spec, np.array([beyond, 0.5], dtype=np.float32)) is None


def test_an_interval_without_a_float_holds_nothing() -> None:
    replay = Replay(network(SUM))
    assert replay.confirms(prop(2, case([("0.1", "0.1"), ("0", "1")], conjunction())), np.array([0.1, 0.5])) is None
    thin = case([("0.1", "0.1000000001"), ("0", "1")], conjunction())
    assert thin.inner_lower[0] <= thin.inner_upper[0]
    assert replay.confirms(prop(2, thin), np.array([0.1, 0.5])) is None
    point = case([("0.125", "0.125"), ("0.5", "0.5")], conjunction())
    found = replay.confirms(prop(2, thin, point), np.array([0.125, 0.5]))
    assert found is not None
    assert found.at == (1, 0)


def test_a_model_is_not_run_for_a_box_without_a_float() -> None:
    runs = []
    replay = Replay.of_function(lambda x: runs.append(x) or x, (1, 1))
    assert replay.confirms(prop(1, case([("0.1", "0.1")], conjunction())), np.array([0.1])) is None
    assert not runs
    assert replay.confirms(prop(1, case([("0.5", "0.5")], conjunction())), np.array([0.5])) is not None
    assert len(runs) == 1


@given(
    st.floats(-1e3, 1e3),
    st.floats(0, 1e-4),
    st.floats(0, 1),
    st.integers(1, 12),
    st.sampled_from([np.float32, np.float64]),
)
def test_every_confirmed_input_lies_in_the_decimals_box(start, width, share, digits, dtype) -> None:
    low, high = sorted(Decimal(f"{v:.{digits}f}") for v in (start, start + width))
    spec = prop(1, case([(str(low), str(high))], conjunction()))
    floats = Fraction(float(rounded_down(np.array([float(spec.cases[0].inner_upper[0])]), np.dtype(dtype))[0]))
    found = IDENTITY[dtype].confirms(spec, np.array([float(low + (high - low) * Decimal(share))]))
    if found is None:
        assert floats < Fraction(low)  # the largest float below the upper end is below the lower one
    else:
        assert Fraction(low) <= Fraction(float(found.x[0, 0])) <= Fraction(high)
        [text] = values(counterexample_text(found, spec), "X")
        assert Fraction(low) <= Fraction(text) <= Fraction(high)
        assert dtype(text) == found.x[0, 0]


IDENTITY = {t: Replay(network((np.eye(1), np.zeros(1)), dtype=t)) for t in (np.float32, np.float64)}


def test_rounding_decides_where_the_reals_do_not() -> None:
    big = 2.0**25  # x + big is a multiple of 4 in float32
    model = network((np.eye(1), [big]), (np.eye(1), [-big]))
    replay = Replay(model)
    only_rounded = prop(1, case([("1", "1.5")], conjunction(({0: 1}, "0.5"))))
    found = replay.confirms(only_rounded, np.array([1.25]))
    assert found is not None
    assert found.y.tolist() == run(model, np.float32([1.25])).tolist() == [[0.0]]
    only_real = prop(1, case([("2.5", "3")], conjunction(({0: 1}, "3"))))
    assert run(model, np.float32([2.75])).tolist() == [[4.0]]
    assert replay.confirms(only_real, np.array([2.75])) is None


def test_an_output_that_is_not_finite_confirms_nothing() -> None:
    model = network((np.eye(2), np.zeros(2)), "Exp", (np.eye(2), np.zeros(2)))
    replay = Replay(model)
    spec = prop(2, case([("0", "200"), ("0", "200")], conjunction(({0: 1}, "10"))))
    assert replay.confirms(spec, np.array([1.0, 1.0])) is not None
    assert replay.confirms(spec, np.array([1.0, 150.0])) is None  # Y_1 is inf, Y_0 alone would do
    logs = Replay(network((np.eye(2), np.zeros(2)), "Log", (np.eye(2), np.zeros(2))))
    assert logs.confirms(prop(2, case([("-1", "1"), ("-1", "1")], conjunction())), np.array([-0.5, 0.5])) is None


def test_numbers_beyond_float32_stay_inside() -> None:
    replay = Replay(network((np.eye(1) * 1e-30, np.zeros(1))))
    spec = prop(1, case([("0", "1e39")], conjunction()))
    found = replay.confirms(spec, np.array([1e39]))
    assert found is not None
    assert found.x[0, 0] == np.finfo(np.float32).max


def test_the_text_is_what_vnn_comp_asks_for() -> None:
    replay = Replay(network(SUM))
    ends = [("0.1", "0.2"), ("-0.7", "-0.3")]
    spec = prop(2, case(ends, conjunction(({0: 1}, "0"))))
    found = replay.confirms(spec, np.array([0.15, -0.5]))
    assert found is not None
    text = counterexample_text(found, spec)
    assert text == (
        f"((X_0 {float(found.x[0, 0])!r})\n (X_1 {float(found.x[0, 1])!r})\n"
        f" (Y_0 {float(found.y[0, 0])!r})\n (Y_1 {float(found.y[0, 1])!r}))\n"
    )
    assert [np.float32(v) for v in values(text, "X")] == found.x.reshape(-1).tolist()
    assert [np.float32(v) for v in values(text, "Y")] == found.y.reshape(-1).tolist()


def test_the_text_of_version_2_is_what_the_standard_asks_for() -> None:
    """Tensors in the order of their declaration, each with its type and shape, then a number a line."""
    ends = [("0.1", "0.2"), ("-0.7", "-0.3")]
    declared = (DeclaredTensor("image", "real"), DeclaredTensor("Y_out", "float32"))
    first = prop(2, case(ends, conjunction(({0: 1}, "0"))))
    spec = dataclasses.replace(first, declared=declared, input_shape=(1, 2), output_shape=(2,))
    found = Replay(network(SUM)).confirms(spec, np.array([0.15, -0.5]))
    assert found is not None
    text = counterexample_text(found, spec)
    assert [line for line in text.split("\n") if not re.fullmatch(r"-?\d\.\d+(e-?\d+)?", line)] == [
        "image real [1,2]",
        "Y_out float32 [2]",
        "",
    ]
    read = assignment(text)
    assert read["image"][:2] == ("real", [1, 2])
    assert [np.float32(v) for v in read["image"][2]] == found.x.reshape(-1).tolist()
    assert [np.float32(v) for v in read["Y_out"][2]] == found.y.reshape(-1).tolist()
    scalar = dataclasses.replace(spec, output_shape=())
    assert "Y_out float32 []\n" in counterexample_text(found, scalar)


def test_the_text_is_inside_the_box_where_the_shortest_decimal_is_not() -> None:
    replay = IDENTITY[np.float64]
    shortest_below = next(
        v for v in np.random.default_rng(0).random(100) if Fraction(repr(float(v))) < Fraction(float(v))
    )
    spec = prop(1, case([(float(shortest_below), 1)], conjunction()))
    found = replay.confirms(spec, np.array([shortest_below]))
    assert found is not None
    [text] = values(counterexample_text(found, spec), "X")
    assert Fraction(text) == Fraction(float(shortest_below))
    assert len(text) > 20
    upper = prop(1, case([(-1, float(-shortest_below))], conjunction()))
    found = replay.confirms(upper, np.array([-shortest_below]))
    assert found is not None
    assert Fraction(values(counterexample_text(found, upper), "X")[0]) == Fraction(float(-shortest_below))


def test_an_open_first_size_is_one_and_the_others_have_to_be_numbers() -> None:
    replay = Replay(network(SUM, shape=["batch", 2]))
    assert replay.shape == (1, 2)
    assert replay.output(np.array([1.0, 2.0])).tolist() == [[3.0, -1.0]]
    with pytest.raises(UnsupportedModelError, match="with open sizes"):
        Replay(network(SUM, shape=[1, "n"]))


def test_a_named_output_is_the_one_that_is_judged() -> None:
    model = onnx.load_from_string(network(SUM, "Neg"))
    model.graph.output.append(helper.make_tensor_value_info("h0", TensorProto.FLOAT, [1, 2]))
    data = model.SerializeToString()
    x = np.array([1.0, 2.0])
    assert Replay(data).output(x).tolist() == [[-3.0, 1.0]]
    assert Replay(data, output="h0").output(x).tolist() == [[3.0, -1.0]]
    with pytest.raises(InvalidValueError, match="no output 'z'"):
        Replay(data, output="z")


def test_external_data_comes_from_the_models_folder_only(tmp_path, monkeypatch) -> None:
    model = onnx.load_from_string(network(SUM))
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert Replay(tmp_path / "m.onnx").output(np.array([1.0, 2.0])).tolist() == [[3.0, -1.0]]
    monkeypatch.chdir(tmp_path)  # where onnxruntime would look
    with pytest.raises(InvalidValueError, match="give the path"):
        Replay((tmp_path / "m.onnx").read_bytes())


def test_what_cannot_be_run_is_refused() -> None:
    sparse = onnx.load_from_string(network(SUM))
    sparse.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            numpy_helper.from_array(np.ones(1, np.float32), "s"), numpy_helper.from_array(np.zeros(1, np.int64)), [2]
        )
    )
    with pytest.raises(UnsupportedModelError, match="sparse"):
        Replay(sparse.SerializeToString())
    two = onnx.load_from_string(network(SUM))
    two.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1]))
    with pytest.raises(UnsupportedModelError, match="2 inputs"):
        Replay(two.SerializeToString())
    whole = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [1, 2])],
    )
    made = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with pytest.raises(UnsupportedModelError, match="not float32 or float64"):
        Replay(made.SerializeToString())
    with pytest.raises(UnsupportedModelError, match="does not load"):
        Replay(network(SUM, "NotAnOperator"))


def test_sizes_that_do_not_fit_are_named() -> None:
    replay = Replay(network(SUM))
    with pytest.raises(InvalidValueError, match="3 numbers, the model takes 2"):
        replay.output(np.zeros(3))
    with pytest.raises(InvalidValueError, match="3 numbers, the property has 2 inputs"):
        replay.confirms(prop(2, case([("0", "1")] * 2, conjunction())), np.zeros(3))
    with pytest.raises(InvalidValueError, match="the property has 3 inputs"):
        replay.confirms(prop(2, case([("0", "1")] * 3, conjunction())), np.zeros(3))
    with pytest.raises(InvalidValueError, match="2 outputs, the property has 4"):
        replay.confirms(prop(4, case([("0", "1")] * 2, conjunction())), np.zeros(2))


def test_a_torch_function_is_replayed_in_its_precision() -> None:
    layer = torch.nn.Linear(2, 1).eval()
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.zero_()
    replay = Replay.of_function(layer, (1, 2))
    spec = prop(1, case([("0.1", "1")] * 2, conjunction(({0: 1}, "0.25"))))
    found = replay.confirms(spec, np.array([0.1, 0.1]))
    assert found is not None
    assert found.y.dtype == np.float32
    assert replay.confirms(spec, np.array([0.2, 0.2])) is None
    double = Replay.of_function(layer.double(), (1, 2), torch.float64)
    assert double.output(np.array([1.0, 1e-12])).tolist() == [[1.0 + 1e-12]]
    with pytest.raises(InvalidValueError, match="eval"):
        Replay.of_function(torch.nn.Linear(2, 1), (1, 2))
    with pytest.raises(InvalidTypeError, match="float16"):
        Replay.of_function(layer, (1, 2), torch.float16)
