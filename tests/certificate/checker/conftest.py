"""The checker runs without numpy's warnings (what overflows is an infinity, and none is accepted); so do its tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield
