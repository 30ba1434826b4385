"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["softmax_box.api", "methods.baselines.simplex", "methods.baselines.exhaustive"])
def test_examples(name) -> None:
    found = doctest.testmod(
        importlib.import_module(f"vertex_softmax.{name}"), extraglobs={"np": importlib.import_module("numpy")}
    )
    assert found.attempted > 0
    assert found.failed == 0
