"""Words of a certificate that the checker does not know: it is rejected, and the reason says which words there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.certificate.made import Written, by_hand, leaf, node
from vertex_softmax.certificate.checker.proof import check

UNKNOWN = ("believe", "", "Affine", "lse", 1, True, None, ["affine"], {"affine": 1})


def certificate(step: dict[str, Any] | None = None, **of_leaf: Any) -> Written:
    """max(x, 0) + max(y, 0) > −2.5 on [−1, 1]², with a box of one node as its only step."""
    entries = {"lower": "l", "upper": "u", "entries": "e", "weights": "ω"}
    steps = [{"kind": "box", "node": 0, "rule": "affine", **entries, **(step or {})}]
    graph = [node("Input", shape=[2]), node("Relu", [0], [2])]
    arrays = {"l": [-2.0, -2.0], "u": [2.0, 2.0], "e": np.arange(2), "ω": [0.5, 0.5]}
    return by_hand(graph, [-1, -1], [1, 1], [1, 1], -2.5, tree=[leaf(**of_leaf)], steps=steps, arrays=arrays)


@pytest.mark.parametrize("rule", ["affine", "vertex"])
def test_known_rules_are_accepted(rule: str) -> None:
    assert check(certificate({"rule": rule}, rule=rule).data()).accepted


@pytest.mark.parametrize("rule", UNKNOWN)
def test_unknown_rules_are_rejected(rule: Any) -> None:
    for kind in ("box", "centred"):
        reason = check(certificate({"kind": kind, "node": 1, "rule": rule}).data()).reason
        assert reason == f"{str(rule)!r} is not one of affine, vertex"
    assert check(certificate(rule=rule).data()).reason == f"{str(rule)!r} is not one of affine, vertex"


@pytest.mark.parametrize("kind", ["anything", "Box", "", None, 1, ["box"]])
def test_unknown_kinds_of_steps_are_rejected(kind: Any) -> None:
    assert (
        check(certificate({"kind": kind}).data()).reason
        == f"{str(kind)!r} is not one of box, zonotope, image, centred, forward"
    )
