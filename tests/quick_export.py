"""torch.export with the bookkeeping that no test looks at done once, or when somebody looks: half of its time else.

What is exported, and how, is the same. Each of these is left alone where a version of torch does not have it.
"""

from __future__ import annotations

import functools
import inspect
import traceback
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
    """Within, the ops of torch are listed once and registered without ceremony, and code is made where it runs."""
    with pytest.MonkeyPatch.context() as patch:
        # 10,000 functions are made per call, with annotations that `typing` keeps and `collections.abc` makes anew.
        patch.setattr(torch._ops, "Callable", typing.Callable, raising=False)
        # All C++ ops of torch are walked over 50 times per call; no test adds one.
        if walk := getattr(torch._export.utils, "_materialize_cpp_cia_ops", None):
            patch.setattr(torch._export.utils, "_materialize_cpp_cia_ops", functools.cache(walk))
        # 900 ops are asked whether their schema allows to keep them whole; a schema does not change.
        if check := getattr(torch._export.utils, "_check_valid_to_preserve", None):
            patch.setattr(torch._export.utils, "_check_valid_to_preserve", functools.cache(check))
        # 500 composite ops get a dozen kernels each, of which most are the same error for the same op.
        if refusal := getattr(exported_program, "autograd_not_implemented", None):
            patch.setattr(exported_program, "autograd_not_implemented", functools.cache(refusal))
        patch.setattr(torch._ops.OperatorBase, "py_impl", _leaner(torch._ops.OperatorBase.py_impl))
        # The line of every frame above every op is looked up, and hardly one of them is shown.
        if hasattr(torch.utils._traceback, "_extract_symbolized_tb"):
            patch.setattr(torch.utils._traceback, "_extract_symbolized_tb", _frames)
        # A program is written as Python 18 times per call, and 4 of these texts are run.
        module = torch.fx.GraphModule
        patch.setattr(module, "recompile", _when_called(module.recompile))
        patch.setattr(module, "code", property(_written))
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


def _frames(found: list[dict[str, Any]], skip: int) -> traceback.StackSummary:
    """The same frames, each of which finds its line when it is asked for it."""
    stack = traceback.StackSummary()
    for frame in reversed(found[skip:]):
        stack.append(traceback.FrameSummary(frame["filename"], frame["line"], frame["name"], lookup_line=False))
    return stack


def _when_called(real: Callable[..., Any]) -> Callable[..., Any]:
    """GraphModule.recompile that happens at the next call or look at the code, as in torch's own _LazyGraphModule."""

    def recompile(module: Any) -> Any:
        taken = [node for node in module._graph.nodes if node.op == "placeholder"]
        if any(node.args or node.target.startswith("*") for node in taken):  # defaults, or any number of arguments
            return real(module)
        names, codegen = [node.target for node in taken], module._graph._codegen
        if hasattr(codegen, "pytree_info"):
            names, module._in_spec, module._out_spec, *_ = codegen.pytree_info

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            real(self)
            return self(*args, **kwargs)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [name for name in names if name != "self"]
        forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in ("self", *names)])  # type: ignore[attr-defined]
        forward.real = real  # type: ignore[attr-defined]
        type(module).forward = forward
        return None

    return recompile


def _written(module: Any) -> str:
    """GraphModule.code."""
    real = getattr(type(module).forward, "real", None)
    if real is not None:
        real(module)
    return str(module._code)
