"""Which cases of a long list run by default; the others are marked slow, and `make test-all` runs them too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], now: Callable[..., bool]) -> list[Any]:
    """Every case as a parameter, a tuple as several: slow but for those of which `now(*case)` is true."""
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        found.append(pytest.param(*values, marks=() if now(*values) else pytest.mark.slow))
    return found
