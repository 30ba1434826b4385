"""Collection rules shared by every test: CUDA tests are left out where there is no CUDA device."""

from __future__ import annotations

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("vertex", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("vertex")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    left_out = [item for item in items if item.get_closest_marker("gpu")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=left_out)
