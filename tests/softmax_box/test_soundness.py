"""Zero violations: no outward result is ever above the exact minimum, and every enclosure contains it.

There is no tolerance anywhere in this file. Each box is made once, its exact minimum enclosed once by the independent
oracle (helpers.exact_min), and every implementation held against it; the enclosure, which takes longest, by default on
every fifth box.
"""

from __future__ import annotations

import pytest
import torch

import vertex_softmax as vx
from tests.softmax_box.boxes import FAMILIES, Boxes
from tests.softmax_box.checks import (
    Known,
    check_enclosure,
    check_lower_bound_agrees,
    check_not_vacuous,
    check_outward,
    known,
)
from tests.softmax_box.helpers import DTYPES, IMPLEMENTATIONS

ROWS = {
    1: 50, 2: 800, 3: 600, 4: 240, 5: 240, 8: 160, 9: 130, 16: 80, 17: 60, 33: 40, 64: 16, 65: 16, 127: 6,
    256: 2, 300: 1, 511: 1, 512: 1,
}  # fmt: skip
"""How many boxes of each K, for every family and precision: mostly small, with a tail to 512."""
ORDINARY = ("ordinary", "ties", "near_ties", "degenerate", "one_ulp_wide", "offset")


def cases(name: str, dtype: torch.dtype, seed: int = 0, share: int = 1) -> list[Known]:
    """share: of every so many boxes one, and at least one of each K."""
    return [known(name, -(-rows // share), keys, dtype, seed) for keys, rows in ROWS.items()]


def public_min(c, lower, upper, outward=False, *, algorithm="auto"):
    return vx.softmax_box_min(c, lower, upper, algorithm=algorithm, outward=outward)


def public_max(c, lower, upper, outward=False):
    return -vx.softmax_box_max(-c, lower, upper, outward=outward)


def public_bounds(c, lower, upper, outward=False):
    low, high = vx.softmax_box_bounds(c, lower, upper, outward=outward)
    assert torch.equal(high, vx.softmax_box_max(c, lower, upper, outward=outward))
    return low


PUBLIC = {"min": public_min, "max": public_max, "bounds": public_bounds}


def test_at_least_a_hundred_thousand_boxes() -> None:
    assert len(FAMILIES) * len(DTYPES) * sum(ROWS.values()) >= 100_000


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_outward_is_never_above_the_exact_minimum(name: str, dtype: torch.dtype, share: int) -> None:
    """On a quarter of the boxes by default, on all of them if there is time."""
    batch = cases(name, dtype, share=share)
    for implementation in (*IMPLEMENTATIONS.values(), *PUBLIC.values()):
        check_outward(implementation, batch)
    check_lower_bound_agrees(public_min, batch)
    some = [Known(case.name, Boxes(*(x[::5] for x in case.boxes)), case.exact[::5]) for case in batch]
    check_enclosure(vx.softmax_box_enclosure, some, narrow=1e-12 if name in ORDINARY else float("inf"))


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, *PUBLIC])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ORDINARY)
def test_outward_is_close_below_the_plain_value(name: str, dtype: torch.dtype, implementation: str) -> None:
    check_not_vacuous((IMPLEMENTATIONS | PUBLIC)[implementation], cases(name, dtype))


def test_outward_with_the_most_keys_the_backends_take() -> None:
    for name in ("ordinary", "wide", "offset"):
        for dtype in DTYPES:
            case = [known(name, 1, 20_000, dtype)]
            for implementation in (*IMPLEMENTATIONS.values(), *PUBLIC.values()):
                check_outward(implementation, case)


@pytest.mark.parametrize(
    ("c", "lower", "upper"),
    [
        ([1e10, -1.5e-310, -1e-300], [0.0, 0.0, -50.0], [0.0, 1000.0, -50.0]),
        ([6.6e78, -8.754996521400641e-235, -5e-228], [0.0, 0.0, 8.0], [0.0, 1e4, 9.0]),
    ],
)
def test_outward_where_scaling_the_coefficients_underflows(c, lower, upper) -> None:
    """The log-domain path scales c; what underflows must be rounded down, or a heavy key changes its end."""
    row = [torch.tensor(x, dtype=torch.float64) for x in (c, lower, upper)]
    for bound in (public_min, public_max, public_bounds):
        assert vx.is_lower_bound(bound(*row, outward=True), *row) is True


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 25))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_outward_is_never_above_the_exact_minimum_on_a_million_boxes(name: str, dtype: torch.dtype, seed: int) -> None:
    batch = cases(name, dtype, seed)
    for implementation in IMPLEMENTATIONS.values():
        check_outward(implementation, batch)
    check_enclosure(vx.softmax_box_enclosure, batch, narrow=1e-12 if name in ORDINARY else float("inf"))
