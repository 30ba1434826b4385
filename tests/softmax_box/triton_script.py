"""Runs the Triton kernel in its interpreter; test_triton.py starts this in a process of its own.

TRITON_INTERPRET must be set before triton is imported, and must not leak into the other tests. With the argument `all`
every kind of row has every length, else one each: the interpreter takes most of a second for one of one length.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import torch

from tests.softmax_box.boxes import family
from tests.softmax_box.checks import Known, check_outward, check_values
from tests.softmax_box.helpers import DTYPES, exact_mins
from vertex_softmax.softmax_box import torch_backend, triton_backend

NAMES = ("ordinary", "wide", "dominating", "near_ties", "masked_with_large_coefficients", "rounded_scores")
LENGTHS = ((3, 6), (40, 6), (260, 2))
"""Keys, and how many rows."""


def careful(c, lower, upper, outward=False):
    return triton_backend.minimum(c, lower, upper, outward=outward, careful=True)[0]


def fast_then_careful(c, lower, upper, outward=False):
    """As api.py does it, by the maximum of −c: rows that the fast kernel leaves as NaN go to the careful one."""
    found = triton_backend.minimum(-c, lower, upper, sign=-1, outward=outward)[0]
    left = found.isnan()
    if bool(left.any()):
        rows = (x[left].contiguous() for x in (-c, lower, upper))
        found[left] = triton_backend.minimum(*rows, sign=-1, outward=outward, careful=True)[0]
    return -found


close = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-14)


def values_and_proofs() -> None:
    for i, dtype in enumerate(DTYPES):
        for j, name in enumerate(NAMES):
            cases = []
            for keys, rows in LENGTHS if "all" in sys.argv else (LENGTHS[(i + j) % len(LENGTHS)],):
                boxes = family(name, rows, keys, dtype)
                cases.append(Known(f"triton {name}, K = {keys}, {dtype}", boxes, exact_mins(*boxes)))
            for implementation in (careful, fast_then_careful):
                check_values(implementation, cases)
                check_outward(implementation, cases)


def sign() -> None:
    boxes = family("ordinary", 5, 20, torch.float64)
    high = triton_backend.minimum(*boxes, sign=-1)[0]
    close(high, torch_backend.minimum(*boxes, solver=torch_backend.newton, sign=-1))


def broadcasts() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [((5, 1), (3,), (3,)), ((), (4,), (4,)), ((4,), (), ()), ((2, 1, 3, 1), (2, 1, 2), ())]
    for batch in batches:
        c, lower, upper = (torch.randn((*shape, 9), generator=generator, dtype=torch.float64) for shape in batch)
        got = triton_backend.minimum(c, lower - 4, upper.abs() + 4)[0]
        want = torch_backend.minimum(c, lower - 4, upper.abs() + 4, solver=torch_backend.threshold)
        close(got, want)
    strided = torch.randn((9, 6), generator=generator, dtype=torch.float64).T
    zero = torch.zeros(9, dtype=torch.float64)
    got = triton_backend.minimum(strided, zero, zero + 1)[0]
    close(got, torch_backend.minimum(strided, zero, zero + 1, solver=torch_backend.newton))
    assert triton_backend.minimum(torch.zeros(0, 9), torch.zeros(9), torch.zeros(9))[0].shape == (0,)


def rows_that_are_not_handled() -> None:
    inf, nan = float("inf"), float("nan")
    good = [0.0, 1.0]
    rows = {
        "good": (good, [0.0, 0.0], [1.0, 1.0]),
        "NaN in c": ([nan, 1.0], [0.0, 0.0], [1.0, 1.0]),
        "infinite c": ([inf, 1.0], [0.0, 0.0], [1.0, 1.0]),
        "NaN in lower": (good, [nan, 0.0], [1.0, 1.0]),
        "NaN in upper": (good, [0.0, 0.0], [1.0, nan]),
        "crossed": (good, [2.0, 0.0], [1.0, 1.0]),
        "plus infinity": (good, [0.0, 0.0], [inf, 1.0]),
        "half masked": (good, [-inf, 0.0], [1.0, 1.0]),
        "all masked": (good, [-inf, -inf], [-inf, -inf]),
        "too wide": (good, [-1000.0, -1000.0], [0.0, 0.0]),
        "too large": ([1e305, 1.0], [0.0, 0.0], [1.0, 1.0]),
    }
    c, lower, upper = (torch.tensor(x, dtype=torch.float64) for x in zip(*rows.values(), strict=True))
    for outward in (False, True):
        for direction in (1, -1):
            got = triton_backend.minimum(c, lower, upper, sign=direction, outward=outward)[0]
            assert got.isnan().tolist() == [name != "good" for name in rows], dict(zip(rows, got.tolist(), strict=True))


def quick_interpreter() -> None:
    """Tables that the interpreter makes anew for every number, and wrappers that it puts around each other, only once.

    What a kernel computes is the same. Each is left alone where a version of Triton does not have it.
    """
    from triton.runtime import interpreter

    if look_up := getattr(interpreter, "_get_np_dtype", None):
        of_numbers = functools.cache(look_up)
        interpreter._get_np_dtype = lambda kind: look_up(kind) if kind.scalar.is_ptr() else of_numbers(kind.scalar)
    scope, real = (getattr(interpreter, name, None) for name in ("_LangPatchScope", "_patch_lang"))
    if scope is None or real is None:
        return
    live: dict[frozenset[str], Any] = {}

    def patch_once(fn: Any) -> Any:
        seen = frozenset(module.__name__ for module in fn.__globals__.values() if inspect.ismodule(module))
        if seen in live and live[seen]._changes:  # of a call further out, which is not over
            return scope()
        live[seen] = real(fn)
        return live[seen]

    interpreter._patch_lang = patch_once


if __name__ == "__main__":
    quick_interpreter()
    for part in (values_and_proofs, sign, broadcasts, rows_that_are_not_handled):
        part()
        sys.stdout.write(f"{part.__name__}: ok\n")
