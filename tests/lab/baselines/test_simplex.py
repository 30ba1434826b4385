"""IBP and simplex equal plain versions of themselves."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lab.baselines.boxes import Floats, ordinary
from vertex_lab.baselines import ibp_min, simplex_min
from vertex_softmax.softmax_box import reference


def plain_simplex(c: Floats, lower: Floats, upper: Floats) -> float:
    p, most = reference.probabilities(lower, upper)
    for j in np.argsort(c):
        p[j] += min(most[j] - p[j], max(0.0, 1 - p.sum()))
    return float(c @ p)


def test_simplex_equals_its_plain_version() -> None:
    rng = np.random.default_rng(5)
    for K in (2, 3, 6, 12):
        boxes = ordinary(rng, 60, K)
        expected = [plain_simplex(*row) for row in zip(*boxes, strict=True)]
        np.testing.assert_allclose(simplex_min(*boxes), expected, rtol=0, atol=2e-14 * K)


def test_ibp_equals_its_plain_version() -> None:
    c, lower, upper = ordinary(np.random.default_rng(6), 60, 7)
    for row, found in zip(zip(c, lower, upper, strict=True), ibp_min(c, lower, upper), strict=True):
        ends = reference.probabilities(row[1], row[2])
        assert found == pytest.approx(np.minimum(row[0] * ends[0], row[0] * ends[1]).sum(), abs=1e-12)
