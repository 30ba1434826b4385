"""The benchmark measures what it says: the sort version is right, the JSON is whole. No assertion on seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vertex_lab import softmax_box_bench
from vertex_softmax import softmax_box_min
from vertex_softmax.foundation.errors import InvalidValueError


def test_the_sort_version_is_the_same_problem() -> None:
    c, lower, upper = softmax_box_bench.boxes(50, 33, torch.float64, "cpu")
    torch.testing.assert_close(
        softmax_box_bench.sort_version(c, lower, upper), softmax_box_min(c, lower, upper), rtol=0, atol=1e-14
    )


def test_one_size() -> None:
    timing = softmax_box_bench.time_size(16, 1600, torch.float64, "cpu", 1, None)
    assert timing.entries == 1600
    assert timing.speedup > 0
    assert timing.outward_ratio > 0


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What a run of two sizes gave, and its folder."""
    out, threads = tmp_path_factory.mktemp("run"), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax_box_bench, "CPU_KEYS", (16,))
        patch.setattr(softmax_box_bench, "GROWTH_KEYS", (16, 64))
        result = softmax_box_bench.run(device="cpu", out=out, quick=True, progress=lambda _: None)
    assert torch.get_num_threads() == threads
    return result, out


def test_a_whole_run_is_saved(whole_run: tuple[dict[str, Any], Path]) -> None:
    result, out = whole_run
    assert json.loads((out / "softmax-box-cpu.json").read_text())["timings"] == result["timings"]
    assert [row["keys"] for row in result["growth"]] == [16, 64]


def test_extra_memory_stays_below_one_block(whole_run: tuple[dict[str, Any], Path]) -> None:
    extra = whole_run[0]["extra_bytes"][128]
    block = 32768 * 8 * 3
    assert extra is None or extra < 1.2 * block


def test_bad_device() -> None:
    with pytest.raises(InvalidValueError, match="choose cpu or cuda"):
        softmax_box_bench.run(device="tpu", out=None, quick=True, progress=lambda _: None)  # type: ignore[arg-type]
