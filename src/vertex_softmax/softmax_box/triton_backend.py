"""One fused CUDA kernel: c, l and u are read once, the rounds run in registers, one number per row is written.

Invariant: the contract of torch_backend.minimum. Rows of up to 4096 keys; longer ones, or arrays that need more than
four strides, go to torch. Imported only when a CUDA tensor (or a test) asks for it. Extra memory: none but the result
and the numbers of up to MOST_LEFT programs that left a row to the careful kernel.

Rounding (`outward`): the proof is that of outward.py, with these facts in place of the native kernel's. In float32,
e^x = 2^{x log₂e} with the product carried in two floats, so its relative error is that of ex2.approx (assumed to
be at most 2⁻²², that is 4 ε) plus less than 3 ε: within the 20 ε that EXTRA_ULPS allows for. F and G are summed over
the chunks in float32, at most `chunks` additions whatever the order, and from there on in float64, which counts as one
more. In float64 e^x is libdevice's (assumed within 4 ε), and n = K holds for every order of the sums.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.softmax_box import outward as proof
from vertex_softmax.softmax_box.layout import Dim, merged_dims
from vertex_softmax.softmax_box.outward import LIMITS

MOST_KEYS = 4096
MOST_DIMS = 4
MOST_ROUNDS = 200
MOST_LEFT = 1024
FLOOR = {torch.float32: -200.0, torch.float64: -1500.0}


@functools.cache
def available() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def usable(keys: int) -> bool:
    """Whether the kernel can take rows of this many keys."""
    return keys <= MOST_KEYS and available()


class Launch(NamedTuple):
    """The launch shape of a program: its block is (keys / width, rows, width), and it runs on `warps` warps."""

    rows: int
    width: int
    warps: int


LAUNCH = {  # by bytes in a number, then by padded keys: the fastest of lab/benchmarks/runs/tune_triton_h200.json
    4: {16: (32, 8, 1), 32: (16, 8, 1), 64: (16, 8, 1), 128: (8, 16, 1), 256: (4, 32, 1), 512: (2, 64, 1),
        1024: (1, 256, 1), 2048: (1, 256, 2), 4096: (1, 512, 4)},
    8: {16: (16, 8, 1), 32: (8, 8, 1), 64: (8, 16, 2), 128: (2, 32, 1), 256: (2, 64, 2), 512: (1, 64, 1),
        1024: (1, 512, 4), 2048: (1, 512, 4), 4096: (2, 512, 16)},
}  # fmt: skip


def launch_shape(keys: int, itemsize: int) -> Launch:
    """The launch shape for rows of this many keys, as measured on an H200 (lab/benchmarks/tune_triton.py)."""
    return Launch(*LAUNCH[itemsize][padded_keys(keys)])


@functools.cache
def chunk_axis() -> int:
    """The dimension of a block that this version of Triton keeps within a lane; it affects only the speed."""
    import triton

    major, minor = (int(part) for part in triton.__version__.split(".")[:2])
    return 0 if (major, minor) >= (3, 7) else 1


def padded_keys(keys: int) -> int:
    """The next power of two, at least 16: Triton's block sizes are powers of two."""
    return max(16, 1 << (keys - 1).bit_length())


def minimum(  # the three arrays, and keyword-only options
    c: Tensor,
    lower: Tensor,
    upper: Tensor,
    *,
    sign: int = 1,
    outward: bool = False,
    cut: Tensor | None = None,
    careful: bool = False,
    launch: Launch | None = None,
) -> tuple[Tensor, bool]:
    """sign · (min over the box of sign·c · softmax(s)); tensors (..., K) of one dtype that broadcast, to (...).

    `cut` (...), if given, is filled: the minimum (maximum) is attained where keys with c < cut (c > cut) are up.
    Rows whose mass lies on keys within rounding below the minimum need the `careful` kernel: the rows of up to
    MOST_LEFT programs are solved again here, the others become NaN. The second result says whether there may be a NaN.
    """
    shape = np.broadcast_shapes(c.shape, lower.shape, upper.shape)
    out = torch.empty(shape[:-1], dtype=c.dtype, device=c.device)
    views = [x.expand(shape) for x in (c, lower, upper)]
    dims = merged_dims([view[..., 0] for view in views])
    if out.numel() == 0:
        return out, False
    if len(dims) > MOST_DIMS or out.numel() >= 2**31 - 1024:  # rows are numbered in 32 bits
        from vertex_softmax.softmax_box import torch_backend

        newton = torch_backend.newton
        return torch_backend.minimum(c, lower, upper, solver=newton, sign=sign, outward=outward, cut=cut), True
    chosen = launch or launch_shape(shape[-1], out.element_size())
    solve = functools.partial(_launch, views, out, cut, dims, sign, outward, chosen)
    if careful or chosen.warps > 1:  # with several warps to a row the list costs registers, and rows are few
        solve(careful=careful)
        return out, True
    left = torch.zeros(2 + MOST_LEFT, dtype=torch.int32, device=out.device)
    solve(left=left)
    solve(left=left, careful=True)
    first_time, second_time = left[:2].tolist()  # programs that left a row unsolved
    return out, first_time > MOST_LEFT or second_time > 0


def _launch(  # what one launch needs; `minimum` binds all but the last two once for its two launches
    views: list[Tensor],
    out: Tensor,
    cut: Tensor | None,
    dims: list[Dim],
    sign: int,
    outward: bool,
    launch: Launch,
    *,
    left: Tensor | None = None,
    careful: bool = False,
) -> None:
    """Launch the kernel on all rows.

    With `left`, the fast kernel lists there the programs that left a row unsolved, and the careful kernel solves only
    those.
    """
    from vertex_softmax.softmax_box.triton_kernel import rows_kernel

    keys = views[0].shape[-1]
    rows, width, warps = launch
    limits = LIMITS[out.dtype]
    padded = [(1, (0, 0, 0))] * (MOST_DIMS - len(dims)) + dims
    numbers = [n for size, strides in padded for n in (size, *strides)]
    double = out.dtype == torch.float64
    chunks = padded_keys(keys) // width
    ulps = float(proof.EXTRA_ULPS + (keys if double else chunks + 1))
    listed = left is not None and careful
    noting = left is not None and not careful
    programs = math.ceil(out.numel() / rows)
    if listed:
        programs = min(programs, MOST_LEFT)
    with torch.cuda.device(out.device) if out.is_cuda else nullcontext():
        rows_kernel[(programs,)](
            *views, out, out if cut is None else cut, out if left is None else left, out.numel(), keys, *numbers,
            *(view.stride(-1) for view in views), sign, ulps, (chunks + 16) * limits.unit,
            OUTWARD=outward, CUT=cut is not None, CAREFUL=careful, MOST_LEFT=MOST_LEFT if noting else 0,
            LISTED=int(listed),
            DOUBLE=double, DIMS=max(1, len(dims)),
            UNIT=limits.unit, FLOOR=FLOOR[out.dtype], UNDERFLOW=limits.underflow, WIDEST=limits.widest,
            LARGEST=limits.largest, SMALLEST=limits.smallest, SAFETY=proof.SAFETY, TRIES=proof.TRIES,
            MOST_ROUNDS=MOST_ROUNDS, CHUNKS=chunks, ROWS=rows, WIDTH=width,
            CHUNK_AXIS=chunk_axis(), num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
