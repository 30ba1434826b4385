"""These tests ask about modules and do not test how they are read: each state of one is exported once in a file."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _exported_once(exported_once: None) -> None:
    """See tests/conftest.py."""
