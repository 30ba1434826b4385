"""What is claimed, in words: as the arrays of the file have it, and what says little looks like little."""

from __future__ import annotations

import numpy as np
import pytest

from tests.certificate.made import Written, by_hand, leaf, node
from vertex_softmax.certificate.checker import check

ONE = [node("Input", shape=[1])]
THREE = [node("Input", shape=[3])]


def several(rows: list[list[list[float]]], bounds: list[list[float]], weights: list[list[float]]) -> Written:
    """y = x in [1, 2] × [0, ½] × {0}, and these cases."""
    made = by_hand(THREE, [1, 0, 0], [2, 0.5, 0], [1, 0, 0], 0.5)
    part = made.header["parts"][0]
    part["property"] = [{k: f"{k}.{i}" for k in ("rows", "bound", "weights")} for i in range(len(rows))]
    part["proofs"] = [{"cases": list(range(len(rows))), "tree": [leaf()]}]
    for i, case in enumerate(zip(rows, bounds, weights, strict=True)):
        for k, x in zip(("rows", "bound", "weights"), case, strict=True):
            made.arrays[f"{k}.{i}"] = np.array(x, dtype=np.float64)
    return made


def words(made: Written) -> list[str]:
    verdict = check(made.data())
    assert verdict.accepted, verdict.reason
    return [f"{heading}: {text}" for heading, text in verdict.claim.words]


def test_comparisons_are_one_sentence() -> None:
    made = several([[[1, -1, 0]], [[2, 0, -2]]], [[0], [0]], [[1], [1]])
    said = words(made)
    assert "property: output 0 is greater than each of outputs 1, 2" in said
    moved = "2 of 3 numbers move, each within an interval 0.5 to 1 wide (half of them at most 0.75)"
    assert f"inputs: {moved}, and the others are fixed" in said
    assert "inputs: all of them lie from 0 to 2" in said
    facts = check(made.data()).claim.facts
    assert facts["claims"][0]["moving"] == [2, 2]
    assert facts["claims"][0]["width"] == [0.5, 0.75, 1.0]


def test_rows_in_general() -> None:
    said = words(several([[[1, 0, 0], [0, -1, 0]], [[1, 0.5, -3]]], [[0.25, -0.75], [0.5]], [[1, 0], [1]]))
    assert "property: at least one of these: output 0 > 0.25; output 1 < 0.75" in said
    assert "property: output 0 + 0.5·output 1 − 3.0·output 2 > 0.5" in said


def test_what_is_true_of_every_output_is_said_to_be() -> None:
    said = words(several([[[1, 0, 0], [-1, 0, 0]]], [[0, -1]], [[1, 1]]))
    assert any("true of every output" in line for line in said)
    assert "BEWARE: ALL of its cases are excluded whatever the network does" in said
    zero = check(by_hand(ONE, [0], [1], [0], -0.5).data())
    assert not zero.accepted
    assert "rows of zeros alone" in zero.reason


def test_nothing_claimed_is_rejected() -> None:
    made = by_hand(ONE, [0], [1], [1], -0.5)
    made.header["parts"][0]["property"] = []
    assert "claims nothing" in check(made.data()).reason
    made.header["parts"] = []
    assert not check(made.data()).accepted


def test_boxes_with_other_properties_are_told_apart() -> None:
    """A point with a strong claim beside a wide box with a weak one."""
    made = by_hand(ONE, [0], [1], [1], -1e300)
    point = {
        **made.header["parts"][0],
        "upper": "lower",
        "property": [{**made.header["parts"][0]["property"][0], "bound": "strong"}],
    }
    made.header["parts"].append(point)
    made.arrays["strong"] = np.array([-1e-6])
    said = words(made)
    assert said.index("claim: 1 of 2, over 1 of the 2 boxes") < said.index("property: output 0 > -1e+300")
    assert said.index("claim: 2 of 2, over 1 of the 2 boxes") < said.index("property: output 0 > -1e-06")
    assert any("single point" in line for line in said)


@pytest.mark.parametrize("name", ["\x1b[31mred\n", 7, None, ["x"], "x" * 9999])
def test_names_are_only_shown(name: object) -> None:
    made = by_hand(ONE, [0], [1], [1], -0.5, model={"sha256": name, "file": name})
    assert all(line.isprintable() and len(line) < 600 for line in words(made))


def test_a_time_that_is_over_is_a_rejection() -> None:
    data = by_hand(ONE, [0], [1], [1], -0.5).data()
    assert check(data, seconds=60).accepted
    for seconds in (1e-9, 0.0, -1.0, float("nan")):
        assert "time" in check(data, seconds=seconds).reason
