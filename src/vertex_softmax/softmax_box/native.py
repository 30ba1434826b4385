"""The compiled CPU kernel (native/softmax_box.c), called through ctypes; optional, like the compiler that builds it.

Invariant: the same contract as torch_backend.minimum: a threshold vertex's value, with `outward` a proved lower bound,
NaN for a row that is not handled. Strides are passed as they are: nothing is copied, broadcast or negated in memory.
Extra memory: 3·K numbers per thread (for K ≤ 64, 3·K times the lanes of a vector).

Why a compiled kernel: the loop needs every c, l, u once from memory and then a few rounds on data that sits in the
first-level cache. Separate torch calls move each intermediate through the second level and reach 1 to 3 times the
sort's speed (`vertex bench softmax-box`, column "torch only"); torch.compile pays seconds of compilation first.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.softmax_box.layout import Dim, merged_dims

LIBRARY = Path(__file__).parent / "native" / "softmax_box.so"
PARALLEL_FROM = 1 << 18  # entries; below this a second thread costs more than it brings
MOST_KEYS = 1 << 19  # in float32 with 4 lanes: (2^19 / 4 + EXTRA_ULPS) 2^-24 < 1/64
VARIANTS = ("generic", "avx2", "avx512")

_int64 = ctypes.c_int64
_int64s = ctypes.POINTER(_int64)


class _Shape(ctypes.Structure):
    """The struct SHAPE of native/shape.h: the sizes and strides, in elements, of the rows of c, l, u and the result."""

    _fields_ = [
        *((name, _int64) for name in ("K", "key_c", "key_l", "key_u", "outward", "n_outer", "outer_total")),
        *((name, _int64s) for name in ("outer_shape", "outer_c", "outer_l", "outer_u", "outer_out")),
        *((name, _int64) for name in ("n_inner", "inner_total")),
        *((name, _int64s) for name in ("inner_shape", "inner_c", "inner_out")),
    ]


@functools.cache
def _library() -> ctypes.CDLL | None:
    if os.environ.get("VERTEX_PURE_PYTHON") == "1" or not LIBRARY.is_file():
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:  # built for another platform: the torch path does the same work
        return None
    for name in ("vertex_rows_f64", "vertex_rows_f32"):
        getattr(library, name).argtypes = [
            ctypes.c_int,
            ctypes.POINTER(_Shape),
            *[ctypes.c_void_p] * 6,
        ]  # c, l, u, outs, cuts, scratch
        getattr(library, name).restype = None
    return library if library.vertex_variant() >= 0 else None


def available() -> bool:
    """Whether the compiled kernel exists and runs on this processor."""
    return _library() is not None


def usable(keys: int) -> bool:
    """Whether the kernel can take rows of this many keys; longer sums would exceed SAFETY in outward.py's proof."""
    return keys <= MOST_KEYS and available()


def variant() -> str | None:
    """The instruction set the kernel uses on this processor, or None without a kernel."""
    library = _library()
    return None if library is None else VARIANTS[library.vertex_variant()]


Ends: TypeAlias = "list[Tensor | None]"
"""[minimum, maximum], each (...); None where it is not requested."""


def bounds(  # the three arrays, and keyword-only options
    c: Tensor, lower: Tensor, upper: Tensor, *, minimum: bool, maximum: bool, outward: bool, force: str | None = None
) -> Ends:
    """The requested ends of c · softmax(s) over the box, (...); CPU tensors (..., K) of one dtype that broadcast.

    `force` names one of VARIANTS, for tests; this processor must support it.
    """
    wanted = (minimum, maximum)
    return bounds_and_cuts(c, lower, upper, wanted=wanted, outward=outward, cuts=False, force=force)[0]


def bounds_and_cuts(  # the three arrays, and keyword-only options
    c: Tensor,
    lower: Tensor,
    upper: Tensor,
    *,
    wanted: tuple[bool, bool],
    outward: bool,
    cuts: bool = True,
    force: str | None = None,
) -> tuple[Ends, Ends]:
    """The ends of `bounds` (`wanted`: minimum, maximum), and their cuts, (...) each.

    The minimum is attained with the keys c < cut at their upper ends, the maximum with the keys c > cut.
    """
    library = _library()
    if library is None:
        raise RuntimeError("the compiled kernel is not available; check native.available() first")
    variant_index = library.vertex_variant() if force is None else VARIANTS.index(force)
    shape = np.broadcast_shapes(c.shape, lower.shape, upper.shape)
    outs = [torch.empty(shape[:-1], dtype=c.dtype) if want else None for want in wanted]
    found_cuts = [None if out is None or not cuts else torch.empty_like(out) for out in outs]
    if 0 in shape[:-1]:
        return outs, found_cuts
    template = next(out for out in outs if out is not None)
    views = [x.expand(shape) for x in (c, lower, upper)]
    call = library.vertex_rows_f64 if c.dtype == torch.float64 else library.vertex_rows_f32
    dims = merged_dims([*(view[..., 0] for view in views), template])
    outer = [dim for dim in dims if dim[1][1] or dim[1][2]]
    inner = [dim for dim in dims if not (dim[1][1] or dim[1][2])]
    threads = torch.get_num_threads() if template.numel() * shape[-1] >= PARALLEL_FROM else 1

    job = _Job(
        call=call,
        variant=variant_index,
        views=views,
        outs=outs,
        cuts=found_cuts,
        outer=outer,
        inner=inner,
        outward=outward,
    )
    split = outer if outer else inner
    parts = _parts(split[0][0] if split else 1, threads)
    if len(parts) == 1:
        _run(job, parts[0])
    else:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(lambda part: _run(job, part), parts))
    return outs, found_cuts


def _parts(size: int, threads: int) -> list[tuple[int, int]]:
    """(start, length) of about equal parts of a dimension of this size, one per thread."""
    count = max(1, min(threads, size))
    edges = [size * i // count for i in range(count + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(edges)]


@dataclass(frozen=True, kw_only=True)
class _Job:
    """All rows of one call: which function of the library, the arrays, and their merged dimensions.

    `views` are c, lower and upper, expanded to one shape (..., K). Along the `outer` dimensions the box moves, along
    the `inner` ones only c does; strides are those of c, lower, upper and the result.
    """

    call: ctypes._FuncPointer
    variant: int
    views: list[Tensor]
    outs: Ends
    cuts: Ends
    outer: list[Dim]
    inner: list[Dim]
    outward: bool


def _run(job: _Job, part: tuple[int, int]) -> None:
    """Call the kernel for a part (start, length) of the first outer dimension, or of the first inner one if none."""
    start, count = part
    views, outer, inner = job.views, list(job.outer), list(job.inner)
    offsets = (0, 0, 0, 0)
    split = outer if outer else inner
    if split:
        strides = split[0][1]
        split[0] = (count, strides)
        offsets = tuple(start * stride for stride in strides)  # type: ignore[assignment]
    keys = views[0].shape[-1]

    def sizes(dims: list[Dim]) -> ctypes.Array[_int64]:
        return (_int64 * max(1, len(dims)))(*(size for size, _ in dims))

    def strides_of(dims: list[Dim], which: int) -> ctypes.Array[_int64]:
        return (_int64 * max(1, len(dims)))(*(strides[which] for _, strides in dims))

    shape = _Shape(
        K=keys,
        key_c=views[0].stride(-1),
        key_l=views[1].stride(-1),
        key_u=views[2].stride(-1),
        outward=int(job.outward),
        n_outer=len(outer),
        outer_total=math.prod(size for size, _ in outer),
        outer_shape=sizes(outer),
        outer_c=strides_of(outer, 0),
        outer_l=strides_of(outer, 1),
        outer_u=strides_of(outer, 2),
        outer_out=strides_of(outer, 3),
        n_inner=len(inner),
        inner_total=math.prod(size for size, _ in inner),
        inner_shape=sizes(inner),
        inner_c=strides_of(inner, 0),
        inner_out=strides_of(inner, 3),
    )
    lanes = 64 // views[0].element_size()
    scratch = torch.empty(3 * max(keys + lanes, lanes * min(keys, 4 * lanes)), dtype=views[0].dtype)
    width = views[0].element_size()
    pointers = [view.data_ptr() + offset * width for view, offset in zip(views, offsets[:3], strict=True)]

    def targets(tensors: Ends) -> ctypes.Array[ctypes.c_void_p]:
        addresses = (None if tensor is None else tensor.data_ptr() + offsets[3] * width for tensor in tensors)
        return (ctypes.c_void_p * 2)(*addresses)

    job.call(job.variant, ctypes.byref(shape), *pointers, targets(job.outs), targets(job.cuts), scratch.data_ptr())
