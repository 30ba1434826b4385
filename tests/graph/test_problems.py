"""What cannot be read is said in one error, grouped by operator, with counts and only with hints that help."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper

from tests.graph.onnx_models import floats, model
from vertex_softmax.foundation.errors import InvalidValueError, UnsupportedModelError
from vertex_softmax.graph.from_onnx.hints import HINTS as ONNX_HINTS
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.from_onnx.ops import TRANSLATE
from vertex_softmax.graph.from_torch.hints import HINTS
from vertex_softmax.graph.from_torch.importer import TRANSLATIONS
from vertex_softmax.graph.problems import UnreadPart, described


def test_groups_are_by_operator_and_reason() -> None:
    parts = [UnreadPart("a", f"a{i}", "one") for i in range(5)] + [UnreadPart("a", "other", "two")]
    parts.append(UnreadPart("b", "b0", "one"))
    assert described(parts).splitlines() == [
        "the model has 7 unsupported operations:",
        "  5 × a: one",
        "      a0, a1, a2 and 2 more",
        "  1 × a: two",
        "      other",
        "  1 × b: one",
        "      b0",
    ]


def test_no_hint_is_for_an_operator_that_can_be_read() -> None:
    """A hint to avoid what is supported would point the wrong way."""
    for names in HINTS.values():
        assert not set(names.split()) & set(TRANSLATIONS)
    for names in ONNX_HINTS.values():
        assert not {name for name in names.split() if ("", name) in TRANSLATE}


def test_nodes_of_one_operator_are_one_group_with_a_count() -> None:
    nodes = [helper.make_node("Round", [f"x{i}" if i else "x"], [f"x{i + 1}"], name=f"round {i}") for i in range(5)]
    nodes.append(helper.make_node("Relu", ["x5"], ["y"]))
    with pytest.raises(UnsupportedModelError) as caught:
        from_onnx(model(nodes, (2, 3), {}, opset=18).SerializeToString())
    assert str(caught.value).splitlines()[0] == "the model has 1 unsupported node:"  # the others only depend on it
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", f"h{i}"], hidden_size=2, name=f"cell {i}") for i in range(5)
    ]
    nodes.append(helper.make_node("Sum", [f"h{i}" for i in range(5)], ["y"]))
    proto = model(nodes, (3, 1, 2), {"w": floats(1, 8, 2), "r": floats(1, 8, 2)}, opset=18)
    with pytest.raises(UnsupportedModelError) as caught:
        from_onnx(proto.SerializeToString())
    said = str(caught.value).splitlines()
    assert said[0] == "the model has 5 unsupported nodes:"
    assert said[1] == "  5 × LSTM: recurrent networks are not supported"
    assert said[2].strip().startswith("'cell 0' of inputs")
    assert said[2].endswith(" and 2 more")
    assert len(said) == 3


def test_a_property_in_place_of_a_model_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "a.vnnlib").write_text("(declare-const X_0 Real)")
    with pytest.raises(InvalidValueError, match=r"not an ONNX file.*a property: give the model first"):
        from_onnx(tmp_path / "a.vnnlib")
