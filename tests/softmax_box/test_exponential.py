"""The kernel's e^x, seen through the minimum: with c = (0, 1) it is L₂ / (U₁ + L₂).

With U₁ = e⁰ = 1 and both ends of key 2 at x ≤ −50 (−20 in single precision), 1 + L₂ rounds to 1 and the result *is*
the kernel's e^x, to half an ulp for the division. So the relative error of e^x can be read off against Arb; outward.py
proves EXP_ULPS = 4 units of roundoff.
"""

from __future__ import annotations

import flint
import numpy as np
import pytest
import torch
from flint import arb

from tests.softmax_box.helpers import DTYPES, native_min, native_variants
from vertex_softmax.softmax_box import native
from vertex_softmax.softmax_box.outward import EXP_ULPS, LIMITS

RANGE = {torch.float64: (-600.0, -50.0), torch.float32: (-60.0, -20.0)}


def scores(dtype: torch.dtype) -> torch.Tensor:
    """Random ones, and those beside multiples of log 2 / 2, where the argument is reduced."""
    least, most = RANGE[dtype]
    rng = np.random.default_rng(0)
    halves = np.arange(np.ceil(2 * least / np.log(2)), 2 * most / np.log(2)) * np.log(2) / 2
    beside = [halves * (1 + k * LIMITS[dtype].unit) for k in (-4, -2, 0, 2, 4)]
    return torch.from_numpy(np.concatenate([rng.uniform(least, most, 20_000), *beside])).to(dtype).clamp(least, most)


@pytest.mark.parametrize("padding", [0, 100])
@pytest.mark.parametrize("variant", native_variants() or ["none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_relative_error_is_below_what_the_proof_assumes(dtype, variant, padding) -> None:
    """`padding` adds masked keys, so that the row takes the path for long rows."""
    if variant == "none":
        assert not native.available()
        return
    x = scores(dtype)
    gone = torch.full((padding,), -torch.inf, dtype=dtype).expand(len(x), padding)
    ends = torch.cat([torch.stack([torch.zeros_like(x), x], -1), gone], -1)
    c = torch.cat([torch.tensor([0.0, 1.0], dtype=dtype), torch.ones(padding, dtype=dtype)])
    check_relative_error(native_min(c, ends, ends, force=variant), x, EXP_ULPS + 1)  # + 1: the division


def check_relative_error(got: torch.Tensor, x: torch.Tensor, ulps: int) -> None:
    with flint.ctx.workprec(128):
        for y, s in zip(got.tolist(), x.tolist(), strict=True):
            exact = arb(s).exp()
            assert abs(arb(y) - exact) <= exact * arb(ulps * LIMITS[x.dtype].unit), s


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_exp_is_within_what_the_proof_assumes(dtype) -> None:
    x = scores(dtype)
    check_relative_error(x.exp(), x, EXP_ULPS)
