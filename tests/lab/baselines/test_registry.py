"""The registry has what tables ask for, by name."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import vertex_softmax as vx
from tests.lab.baselines.boxes import ordinary
from vertex_lab.baselines import SCORE_BOX_METHODS, ibp_min


def test_names_labels_and_limits() -> None:
    assert {name: (method.label, method.most_keys) for name, method in SCORE_BOX_METHODS.items()} == {
        "ibp": ("IBP", None),
        "simplex": ("Simplex", None),
        "softmax-lp": ("Softmax-LP", None),
        "wei-lse": ("Wei-LSE", None),
        "galileo": ("GaLileo-style", 16),
        "exhaustive": ("Exhaustive", 20),
        "vertex": ("Vertex", None),
    }
    assert all(name == method.name and method.about for name, method in SCORE_BOX_METHODS.items())
    assert SCORE_BOX_METHODS["ibp"].function is ibp_min


def test_an_entry_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SCORE_BOX_METHODS["ibp"].label = "other"  # type: ignore[misc]


def test_vertex_is_the_primitive_in_float64() -> None:
    c, lower, upper = ordinary(np.random.default_rng(1), 40, 6)
    found = SCORE_BOX_METHODS["vertex"].function(c, lower, upper)
    np.testing.assert_array_equal(found, vx.softmax_box_min(c, lower, upper))
    single = [x.astype(np.float32) for x in (c, lower, upper)]
    exact = vx.softmax_box_min(*(x.astype(np.float64) for x in single))
    np.testing.assert_array_equal(SCORE_BOX_METHODS["vertex"].function(*single), exact)
