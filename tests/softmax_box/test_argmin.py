"""The vertex that is handed out attains the minimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vertex_softmax as vx
from tests.softmax_box.boxes import FAMILIES
from tests.softmax_box.checks import check_vertex, known
from tests.softmax_box.helpers import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_mask_and_threshold_reproduce_the_minimum(name, dtype) -> None:
    cases = [known(name, rows, keys, dtype) for keys, rows in {1: 10, 2: 60, 3: 60, 9: 20, 33: 10, 200: 4}.items()]
    for algorithm in ("newton", "threshold"):
        check_vertex(lambda *box: vx.softmax_box_argmin(*box, algorithm=algorithm), cases)  # noqa: B023


def test_a_dominating_key_stays_at_the_end_that_attains_the_value() -> None:
    vertex = vx.softmax_box_argmin(np.array([0.3, 1.0]), np.array([-50.0, 0.0]), np.array([50.0, 0.0]))
    assert vertex.mask.tolist() == [True, False]
    assert vertex.threshold == 1
    assert vertex.value == pytest.approx(0.3)


def test_shapes_with_broadcasting() -> None:
    vertex = vx.softmax_box_argmin(np.zeros((5, 1, 4)), np.zeros((3, 4)), np.ones(4))
    assert vertex.value.shape == vertex.threshold.shape == (5, 3)
    assert vertex.mask.shape == (5, 3, 4)


def test_the_named_example_of_the_paper() -> None:
    """c = (0, 1): key 0 up, key 1 down; the value is L₂ / (U₁ + L₂)."""
    vertex = vx.softmax_box_argmin(torch.tensor([0.0, 1.0]), torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 1.0]))
    assert vertex.mask.tolist() == [True, False]
    assert vertex.value.item() == pytest.approx(1 / (1 + np.exp(2)), rel=1e-6)
