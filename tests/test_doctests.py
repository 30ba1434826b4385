"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest

NAMES = (
    "vertex_softmax.softmax_box.api",
    "vertex_softmax.runs.demo.baselines.simplex",
    "vertex_lab.baselines.exhaustive",
)


@pytest.mark.parametrize("name", NAMES)
def test_examples(name) -> None:
    found = doctest.testmod(importlib.import_module(name), extraglobs={"np": importlib.import_module("numpy")})
    assert found.attempted > 0
    assert found.failed == 0
