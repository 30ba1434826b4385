"""Limits are kept, in small: nothing leaks, threads are those asked for, bounds do not depend on chance.

No assertion on seconds. lab/benchmarks/limits.py does the same at length.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "lab" / "benchmarks"))  # scripts, not a package

import limits  # noqa: E402

SMALL = {"dim": 4, "heads": 1, "mlp": 4, "classes": 3}


@pytest.mark.slow
def test_nothing_leaks() -> None:
    found = limits.leak(30, imports=20)
    assert found["errors"] == 3
    assert found["late"]["files"] <= found["early"]["files"]
    assert found["late"]["tensors"] <= found["early"]["tensors"] + limits.TENSORS
    assert found["grown"] <= limits.LEAK


@pytest.mark.slow
def test_bounds_are_the_same_in_another_process() -> None:
    """Bit for bit with another hash seed; with two threads and the batch turned round to stated ulps."""
    order = {"threads": 1, "turned": False, "shape": SMALL, "methods": ["ibp", "crown", "hybrid", "joint"]}
    first = limits.bounds(order)
    assert limits.apart(first, limits.in_a_process(order, hash_seed=77)) == (0.0, True)
    ulps, same = limits.apart(first, limits.bounds({**order, "threads": 2, "turned": True}))
    assert same
    assert ulps <= limits.ULPS
    limits.torch.set_num_threads(1)


@pytest.mark.slow
def test_a_process_stays_under_its_memory(tmp_path: Path) -> None:
    """Or it says that there is not enough."""
    model, spec = limits.write_instance(tmp_path, limits.SIZES["64 tokens"])
    for gib in (0.5, 2.0):
        row = limits.verified(model, spec, gib, "crown", 100.0)
        assert row["peak_bytes"] <= gib * limits.GIB
        assert row["code"] in {0, 2, 3, 4}, row
