"""The same checks on a CUDA device: values, proofs, broadcasting, fallbacks, gradients."""

from __future__ import annotations

import pytest
import torch

import vertex_softmax as vx
from tests.softmax_box.boxes import FAMILIES
from tests.softmax_box.checks import (
    check_lower_bound_agrees,
    check_not_vacuous,
    check_outward,
    check_values,
    check_vertex,
    known,
)
from tests.softmax_box.helpers import DTYPES
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.softmax_box import ThresholdVertex, torch_backend, triton_backend

pytestmark = pytest.mark.gpu

SIZES = {1: 60, 2: 400, 3: 400, 5: 200, 8: 100, 16: 100, 17: 100, 33: 60, 64: 40, 65: 40, 128: 10, 300: 4, 512: 4}


def on_device(function, **options):
    def moved(*boxes, outward=False):
        return function(*(x.cuda() for x in boxes), outward=outward, **options).cpu()

    return moved


IMPLEMENTATIONS = {
    "auto-min": on_device(vx.softmax_box_min),
    "auto-max": lambda c, *ends, outward=False: -on_device(vx.softmax_box_max)(-c, *ends, outward=outward),
    "threshold": on_device(vx.softmax_box_min, algorithm="threshold"),
}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_values_and_proofs(name, dtype, implementation) -> None:
    cases = [known(name, rows, keys, dtype) for keys, rows in SIZES.items()]
    check_values(IMPLEMENTATIONS[implementation], cases)
    check_outward(IMPLEMENTATIONS[implementation], cases)
    check_lower_bound_agrees(IMPLEMENTATIONS[implementation], cases[:6])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["ordinary", "ties", "near_ties", "one_ulp_wide"])
def test_outward_is_close_below_the_plain_value(name, dtype) -> None:
    for implementation in IMPLEMENTATIONS.values():
        check_not_vacuous(implementation, [known(name, rows, keys, dtype) for keys, rows in SIZES.items()])


@pytest.mark.parametrize("keys", [1000, 1024, 2048, 4095, 4096, 4097, 20_000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_rows_with_and_without_the_kernel(dtype, keys) -> None:
    cases = [known(name, 2, keys, dtype) for name in ("ordinary", "wide", "masked")]
    check_values(IMPLEMENTATIONS["auto-min"], cases)
    check_outward(IMPLEMENTATIONS["auto-min"], cases)
    assert triton_backend.usable(keys) == (keys <= 4096)


def test_vertices() -> None:
    cases = [known(name, 50, keys, torch.float64) for name in ("ordinary", "wide", "dominating") for keys in (2, 9, 40)]
    check_vertex(
        lambda *box: ThresholdVertex(*(x.cpu() for x in vx.softmax_box_argmin(*(x.cuda() for x in box)))), cases
    )


@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 1, 9), (3, 9), (3, 9)),
        ((9,), (4, 9), (4, 9)),
        ((4, 9), (9,), (9,)),
        ((2, 1, 3, 1, 2, 1, 9), (2, 1, 2, 1, 2, 9), (9,)),
    ],
)
def test_broadcasting_and_strides(shapes) -> None:
    generator = torch.Generator().manual_seed(0)
    c, lower, upper = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    lower, upper = lower - 4, upper.abs() + 4
    want = torch_backend.minimum(c, lower, upper, solver=torch_backend.threshold)
    got = vx.softmax_box_min(c.cuda(), lower.cuda(), upper.cuda())
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=1e-14)
    transposed = c.cuda().transpose(-1, 0).contiguous().transpose(-1, 0)
    torch.testing.assert_close(
        vx.softmax_box_min(transposed, lower.cuda(), upper.cuda()).cpu(), want, rtol=0, atol=1e-14
    )


def test_what_is_broadcast_is_not_stored() -> None:
    rows, keys = 1 << 20, 1 << 10  # 4 GiB if it were
    c = torch.randn(keys, device="cuda")
    lower, upper = torch.zeros(keys, device="cuda"), torch.ones(keys, device="cuda")
    expected = vx.softmax_box_min(c, lower, upper)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    got = vx.softmax_box_min(c.expand(rows, keys), lower, upper)
    assert bool((got == expected).all())
    assert torch.cuda.max_memory_allocated() - before < 64 << 20


def test_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    c, lower, upper = (torch.rand((3, 6), generator=generator, dtype=torch.float64) for _ in range(3))
    leaves = [x.cuda().requires_grad_() for x in (4 * c - 2, 2 * lower - 3, 2 * upper + 0.5)]
    assert torch.autograd.gradcheck(vx.softmax_box_bounds, leaves)


def test_bad_input_is_named() -> None:
    c, lower, upper = (torch.zeros(3, 4, device="cuda") for _ in range(3))
    c[1, 2] = torch.nan
    with pytest.raises(InvalidValueError, match=r"c is NaN at index \(1, 2\)"):
        vx.softmax_box_min(c, lower, upper)
    with pytest.raises(InvalidValueError, match="different devices"):
        vx.softmax_box_min(c, lower.cpu(), upper)
