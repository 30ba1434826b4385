"""One browser for all tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.runs.report.browsing import Browser


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    from tests.runs.report.browsing import started

    with started(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Complains if the page did."""
    chromium.size(1280)
    chromium.complaints()
    yield chromium
    assert chromium.complaints() == []
