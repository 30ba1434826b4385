"""What tests that check whole cases of the fuzzer share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def one_quiet_thread() -> Iterator[None]:
    """One thread and no log while a case is checked, as in a worker of the fuzzer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    yield
    torch.set_num_threads(threads)
    logging.disable(logging.NOTSET)
