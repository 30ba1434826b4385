"""Plain data and back: exactly the same, or an error that says what is wrong."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
import torch

from tests.bounds.branching_cases import attention
from vertex_softmax.bounds.split_trees import Fork, Leaf
from vertex_softmax.bounds.splits import Split
from vertex_softmax.bounds.subtrees import GivenPart
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.runs.shared.messages import Codec, count, field, number, numbers, tensor

X = build.source((3,))
HIDDEN = build.affine(X, torch.eye(3).double(), torch.zeros(3).double(), "same name")
OUTPUT = build.affine(HIDDEN, torch.eye(3).double(), torch.zeros(3).double(), "same name")
CODEC = Codec(Graph(X, OUTPUT), (X,), {OUTPUT: 2})
ODD = (0.1, -0.0, 5e-324, -1.7976931348623157e308, 1 / 3, 2**-1022, 3.0)


def wired(plain: Any) -> Any:
    return json.loads(json.dumps(plain, allow_nan=False))


@pytest.mark.parametrize("value", [*ODD, math.inf, -math.inf])
def test_numbers_are_exact(value: float) -> None:
    found = number(value.hex(), finite=False)
    assert (found, math.copysign(1, found)) == (value, math.copysign(1, value))
    twice = torch.full((2, 1), value, dtype=torch.float64)
    assert torch.equal(tensor(wired(numbers(twice)), (2, 1), finite=False), twice)


@pytest.mark.parametrize(
    "text",
    ["nan", "NaN", "-nan", "0.5", "1", "", " 0x1.0p+0", "0x1.0p+0\n", "infinity", "0x1.0p+9999", "0x1p0", 0.5, None],
)
def test_what_is_no_number_is_refused(text: Any) -> None:
    with pytest.raises(InvalidValueError):
        number(text, finite=False)


def test_infinity_is_refused_where_a_number_is_needed() -> None:
    for text in ("inf", "-inf"):
        with pytest.raises(InvalidValueError, match="stands where a finite number should"):
            number(text)
    for texts in (["inf"], ["0x0.0p+0"] * 2, "0x0.0p+0", None):
        with pytest.raises(InvalidValueError):
            tensor(texts, (1,))


def test_fields_are_of_their_type() -> None:
    body = {"a": 1, "b": True, "c": "x", "d": []}
    assert (field(body, "a", int), field(body, "b", bool), count(body, "a", 1)) == (1, True, 1)
    for name, kind in (("b", int), ("c", int), ("e", str), ("d", dict), ("a", bool)):
        with pytest.raises(InvalidValueError, match=f"no {kind.__name__} '{name}'"):
            field(body, name, kind)
    with pytest.raises(InvalidValueError):
        field([1], "a", int)
    for most in (0, -1):
        with pytest.raises(InvalidValueError, match="a is 1 in a message"):
            count(body, "a", most)


def parts() -> list[GivenPart]:
    rng = random.Random(0)
    made = []
    for _ in range(20):
        places = [(HIDDEN, rng.randrange(3)), (OUTPUT, rng.randrange(2))]
        splits = tuple(
            Split(*place, rng.choice(ODD), at_least=rng.random() < 0.5, size=abs(rng.choice(ODD)) or 1.0)
            for place in rng.choices(places, k=rng.randrange(5))
        )
        inner = (Split(OUTPUT, 1, 0.5, at_least=True, inner=True),)
        made.append(GivenPart(rng.randrange(2), splits + inner, rng.choice([*ODD, -math.inf]), (0.25,) * len(splits)))
    return made


def test_parts_come_back_as_they_were() -> None:
    for part in parts():
        plain = wired(CODEC.part(part))
        again = CODEC.read_part(plain, 2)
        assert vars(again) == vars(part)
        assert CODEC.digest(again) == CODEC.digest(part)
        with pytest.raises(InvalidValueError, match="objective is"):
            CODEC.read_part({**plain, "objective": 2}, 2)


def test_nodes_of_one_name_are_told_apart() -> None:
    first, second = (GivenPart(0, (Split(node, 0, 0.5, at_least=True),)) for node in (HIDDEN, OUTPUT))
    assert CODEC.digest(first) != CODEC.digest(second)
    assert CODEC.read_part(CODEC.part(second), 1).splits[0].node is OUTPUT


def test_a_digest_is_of_the_objective_and_all_of_every_split() -> None:
    base = Split(HIDDEN, 0, 0.5, at_least=True)
    others = [
        GivenPart(1, (base,)),
        GivenPart(0, (base, base)),
        GivenPart(0, (Split(HIDDEN, 1, 0.5, at_least=True),)),
        GivenPart(0, (Split(HIDDEN, 0, math.nextafter(0.5, 1), at_least=True),)),
        GivenPart(0, (Split(HIDDEN, 0, 0.5, at_least=False),)),
        GivenPart(0, (Split(HIDDEN, 0, 0.5, at_least=True, inner=True),)),
        GivenPart(0),
    ]
    digests = {CODEC.digest(part) for part in [GivenPart(0, (base,)), *others]}
    assert len(digests) == 8
    assert CODEC.digest(GivenPart(0, (base,), 3.0, (1.0,))) == CODEC.digest(GivenPart(0, (base,)))


def test_trees_come_back_as_they_were() -> None:
    leaves = Leaf(-math.inf), Leaf(0.5, exhausted=True), Leaf(1 / 3, multipliers=(0.0, 2.5))
    tree = (Fork(HIDDEN, 2, 0.1, 0.3), leaves[0], Fork(OUTPUT, 1, -0.0, 2.0, inner=True), *leaves[1:])
    assert CODEC.read_tree(wired(CODEC.tree(tree))) == tree


GOOD = ["1 same name", 0, (0.5).hex(), (1.0).hex(), False]


@pytest.mark.parametrize(
    "fork",
    [
        ["0 input", 0, (0.5).hex(), (1.0).hex(), False],
        ["same name", *GOOD[1:]],
        [1, *GOOD[1:]],
        [["1 same name"], *GOOD[1:]],
        [GOOD[0], 3, *GOOD[2:]],
        [GOOD[0], -1, *GOOD[2:]],
        [GOOD[0], True, *GOOD[2:]],
        [GOOD[0], 0.0, *GOOD[2:]],
        [*GOOD[:2], "inf", *GOOD[3:]],
        [*GOOD[:2], "nan", *GOOD[3:]],
        [*GOOD[:3], "0x0.0p+0", False],
        [*GOOD[:3], "-0x1.0p+0", False],
        [*GOOD[:4], True],  # it has nothing inside
        ["2 same name", 2, *GOOD[2:4], True],  # there are two
        [*GOOD[:4], 0],
        GOOD[:4],
        [*GOOD, True],
        {},
        None,
    ],
)
def test_forks_that_the_network_does_not_have_are_refused(fork: Any) -> None:
    assert CODEC.read_fork(GOOD) == Fork(HIDDEN, 0, 0.5)
    with pytest.raises(InvalidValueError):
        CODEC.read_fork(fork)


@pytest.mark.parametrize("side", [1, None, "at least"])
def test_a_split_has_a_side(side: Any) -> None:
    assert CODEC.read_splits([[*GOOD, False]])[0].at_least is False
    with pytest.raises(InvalidValueError, match="has no side"):
        CODEC.read_splits([[*GOOD, side]])


@pytest.mark.parametrize("leaf", [["nan", False, []], [1.0, False, []], ["0x0.0p+0", 0, []], ["0x0.0p+0", False, None],
                                  ["0x0.0p+0", False, ["-0x1.0p-9"]], ["0x0.0p+0", False], 3])  # fmt: skip
def test_leaves_that_are_none_are_refused(leaf: Any) -> None:
    with pytest.raises(InvalidValueError):
        CODEC.read_tree([leaf])


def test_what_may_be_split_is_asked_of_the_question() -> None:
    """The input may not; the σ of a normalisation may, and nothing beyond its numbers."""
    whole = attention("norm")
    codec = Codec.over(whole.question, whole.boxes, Rules(attention=RowRule.AFFINE, pieces=2, free=True))
    nodes = whole.graph.nodes()
    inside = [i for i, node in enumerate(nodes) if type(node.op).__name__ == "Normalize"]
    assert inside
    for i, node in enumerate(nodes):
        label = f"{i} {node.name}"
        if node is whole.graph.input:
            with pytest.raises(InvalidValueError):
                codec.read_fork([label, 0, *GOOD[2:]])
        elif i in inside:
            assert codec.read_fork([label, 0, *GOOD[2:4], True]).inner
            with pytest.raises(InvalidValueError):
                codec.read_fork([label, math.prod(node.shape), *GOOD[2:4], True])
