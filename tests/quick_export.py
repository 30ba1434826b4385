"""torch.export with the bookkeeping that no test looks at done once: a quarter of its time otherwise.

What is exported, and how, is the same. Each of these is left alone where a version of torch does not have it.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.export import exported_program

KEY = torch._C.DispatchKey


@contextmanager
def quick_export() -> Iterator[None]:
    """Within, the ops of torch are listed once and registered without ceremony."""
    with pytest.MonkeyPatch.context() as patch:
        # 10,000 functions are made per call, with annotations that `typing` keeps and `collections.abc` makes anew.
        patch.setattr(torch._ops, "Callable", typing.Callable, raising=False)
        # All C++ ops of torch are walked over 50 times per call; no test adds one.
        if walk := getattr(torch._export.utils, "_materialize_cpp_cia_ops", None):
            patch.setattr(torch._export.utils, "_materialize_cpp_cia_ops", functools.cache(walk))
        # 500 composite ops get a dozen kernels each, of which most are the same error for the same op.
        if refusal := getattr(exported_program, "autograd_not_implemented", None):
            patch.setattr(exported_program, "autograd_not_implemented", functools.cache(refusal))
        patch.setattr(torch._ops.OperatorBase, "py_impl", _leaner(torch._ops.OperatorBase.py_impl))
        yield


def _leaner(real: Callable[..., Any]) -> Callable[..., Any]:
    """What OperatorBase.py_impl does for a plain key that has no kernel yet; whatever else is left to the real one."""

    def py_impl(op: Any, key: Any) -> Any:
        if type(key) is not KEY or key == KEY.Python or key in op.py_kernels:
            return real(op, key)

        def register(kernel):  # type: ignore[no-untyped-def]  # as annotations are made at every call
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()
            return kernel

        return register

    return py_impl
