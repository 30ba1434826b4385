"""Files of sentences: what they say is read, and what does not fit is an error that says where."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.runs.words import CHOICES, IDS, words, written
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.runs.sentences import read_choices, read_sentences
from vertex_softmax.sets import TokenBall
from vertex_softmax.sets.loading import read


def test_three_kinds_of_files_say_the_same(tmp_path: Path) -> None:
    written(tmp_path)
    labels = json.loads((tmp_path / "data.json").read_text())["labels"]
    np.savez(tmp_path / "data.npz", ids=IDS.numpy().astype(np.uint16), labels=np.array(labels))
    save_file({"ids": IDS.numpy(), "labels": np.array(labels)}, tmp_path / "data.safetensors")
    for name in ("data.json", "data.npz", "data.safetensors"):
        found = read_sentences(tmp_path / name, first=1, count=5)
        assert torch.equal(found.ids, IDS[1:])
        assert found.labels.tolist() == labels[1:]
        assert found.numbers == (1, 2)
        assert found.name == name


def test_inputs_have_the_balls_of_the_tokens(tmp_path: Path) -> None:
    model = read(words())
    inputs = read_sentences(written(tmp_path) / "data.json").inputs(model, (3, -3, 1), 2.0)
    assert inputs.tokens == (1, 3)
    ball = inputs.at([2, 0]).ball(torch.tensor([0.1, 0.2]))
    expected = TokenBall.of(model, IDS[[2, 0]], torch.tensor([0.1, 0.2]), [1, 3], p=2)
    assert isinstance(ball, TokenBall)
    assert ball.p == 2
    assert ball.ids is not None
    assert torch.equal(ball.ids, IDS[[2, 0]])
    assert torch.equal(ball.lower, expected.lower)
    assert torch.equal(ball.tokens, expected.tokens)
    same = read_sentences(tmp_path / "data.json")
    keys = {same.inputs(model, tokens, norm).sha256 for tokens in (None, (1,), (1, 3)) for norm in (1.0, 2.0, math.inf)}
    assert len(keys) == 9
    assert same.inputs(model, (-3, 3), 2.0).sha256 in keys
    with pytest.raises(VertexError, match="position 4; the sentences have 4 tokens"):
        same.inputs(model, (4,), 2.0)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"ids": [[1, 2]]}, "labels"),
        ([[1, 2]], "give an object"),
        ({"ids": [], "labels": []}, "at least one"),
        ({"ids": [[]], "labels": [0]}, r"ids\[0\]: give a list with at least one"),
        ({"ids": [[1, 2], [3]], "labels": [0, 1]}, r"ids\[1\] has 1 tokens and ids\[0\] has 2"),
        ({"ids": [[1, -2]], "labels": [0]}, "has -2"),
        ({"ids": [[1, 2.0]], "labels": [0]}, "has 2.0"),
        ({"ids": [[1, True]], "labels": [0]}, "has True"),
        ({"ids": [[1, 10**30]], "labels": [0]}, "whole numbers from 0"),
        ({"ids": [[1, 2]], "labels": [0, 1]}, "1 rows of ids and 2 labels"),
        ({"ids": [[1, 2]], "labels": ["a"]}, "labels has a"),
    ],
)
def test_faulty_sentences(tmp_path: Path, content: Any, text: str) -> None:
    (tmp_path / "data.json").write_text(json.dumps(content))
    with pytest.raises(VertexError, match=text):
        read_sentences(tmp_path / "data.json")


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"inputs": np.zeros((2, 2)), "labels": np.zeros(2, int)}, "no array 'ids'"),
        ({"ids": np.zeros((2, 2)), "labels": np.zeros(2, int)}, "the ids are float64"),
        ({"ids": np.zeros((2, 2), int) - 1, "labels": np.zeros(2, int)}, "ids has -1"),
        ({"ids": np.full((2, 2), 2**63, np.uint64), "labels": np.zeros(2, int)}, "count from 0"),
        ({"ids": np.zeros((2, 0), int), "labels": np.zeros(2, int)}, "shape"),
        ({"ids": np.zeros((2, 2), int), "labels": np.zeros(3, int)}, "2 rows of ids and 3 labels"),
    ],
)
def test_faulty_arrays(tmp_path: Path, arrays: Any, text: str) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(VertexError, match=text):
        read_sentences(tmp_path / "data.npz")


def test_choices_are_read(tmp_path: Path) -> None:
    found = read_choices(written(tmp_path) / "choices.json")
    assert tuple(each.choices for each in found) == CHOICES
    assert [each.ids for each in found] == [tuple(row) for row in IDS.tolist()]
    assert [each.number for each in read_choices(tmp_path / "choices.json", first=1)] == [1, 2]


GOOD = {"ids": [1, 2], "label": 0, "choices": {"1": [2, 3]}}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([], "not empty"),
        ({"ids": [1]}, "not empty"),
        ([GOOD, 3], "sentence 1: give an object"),
        ([{"ids": [1], "label": 0}], "sentence 0: give an object.*'ids', 'label'"),
        ([{**GOOD, "more": 1}], "nothing else"),
        ([{**GOOD, "ids": []}], "at least one"),
        ([{**GOOD, "label": -1}], "label has -1"),
        ([{**GOOD, "label": None}], "label has None"),
        ([{**GOOD, "choices": [[2, 3]]}], "object from positions"),
        ([{**GOOD, "choices": {"one": [2]}}], "position 'one'"),
        ([{**GOOD, "choices": {"-1": [2]}}], "position '-1'"),
        ([{**GOOD, "choices": {"1": []}}], "choices at position 1: give a list with at least one id"),
        ([{**GOOD, "choices": {"1": [2], "01": [2]}}], "position 1 twice"),
        ([{**GOOD, "choices": {"1": [2, "3"]}}], "has 3; give whole"),
    ],
)
def test_faulty_choices(tmp_path: Path, content: Any, text: str) -> None:
    (tmp_path / "c.json").write_text(json.dumps(content))
    with pytest.raises(VertexError, match=text):
        read_choices(tmp_path / "c.json")


def test_a_key_twice_or_no_json(tmp_path: Path) -> None:
    """Python's reader would keep the second list and forget the first, and a smaller set would be verified."""
    (tmp_path / "c.json").write_text('[{"ids": [1, 2], "label": 0, "choices": {"1": [2, 3], "1": [2]}}]')
    with pytest.raises(VertexError, match="'1' is there twice"):
        read_choices(tmp_path / "c.json")
    (tmp_path / "c.json").write_text("[" * 100_000)
    with pytest.raises(VertexError, match="not JSON"):
        read_choices(tmp_path / "c.json")
    for name in ("c.txt", "absent.json"):
        with pytest.raises(VertexError, match=name):
            read_choices(tmp_path / name)
