"""The public functions of the primitive: check the arguments, choose a backend, return the caller's array type.

Every backend returns NaN for a row it cannot handle; here the caller is told what is wrong with such a row
(`diagnose`), or it is solved in the log domain. So no caller ever sees NaN, and valid input needs no separate check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InternalError, InvalidValueError
from vertex_softmax.softmax_box import log_domain, native, torch_backend
from vertex_softmax.softmax_box.arguments import Array, all_valid, diagnose, tensors
from vertex_softmax.softmax_box.outward import gradual_underflow

Algorithm = Literal["auto", "newton", "threshold"]
ALGORITHMS = ("auto", "newton", "threshold")
Rows = tuple[Tensor, Tensor, Tensor]
"""(c, lower, upper), tensors (..., K) of one dtype and device that broadcast against each other."""


class ThresholdVertex(NamedTuple):
    """The minimising vertex of the box: s_j = upper_j where `mask`, else lower_j."""

    value: Array
    """The minimum, (...)."""
    mask: Array
    """Which keys sit at their upper end, bool, (..., K)."""
    threshold: Array
    """m: how many of the smallest coefficients sit at their upper end, integer, (...)."""


def softmax_box_min(
    c: Array, lower: Array, upper: Array, *, algorithm: Algorithm = "auto", outward: bool = False
) -> Array:
    """The exact minimum of c · softmax(s) over lower ≤ s ≤ upper (to rounding), along the last dimension.

    >>> import numpy as np
    >>> softmax_box_min(np.array([0.0, 1.0]), np.array([-1.0, -1.0]), np.array([1.0, 1.0])).round(6)
    np.float64(0.119203)

    Arguments: c, lower, upper: numpy arrays or torch tensors, float32 or float64, (..., K); they broadcast against each
    other, and what is broadcast is not stored. A key with lower = upper = −inf is masked (weight 0).

    `outward=True` subtracts a proved rounding term: the result is then never above the exact minimum for these very
    numbers (outward.py has the proof). `algorithm`: "newton" (no sort), "threshold" (the paper's Algorithm 1: sort and
    sweep) or "auto". Both give the same value to a few ulps.

    Differentiable: ∂/∂c = p*, ∂/∂s_j = p*_j (c_j − value) at the active end of key j, p* = softmax of the minimising
    vertex (envelope theorem); at ties, a subgradient.
    """
    return _extreme(c, lower, upper, algorithm, outward, 1)


def softmax_box_max(
    c: Array, lower: Array, upper: Array, *, algorithm: Algorithm = "auto", outward: bool = False
) -> Array:
    """The exact maximum of c · softmax(s) over the box; with `outward`, never below it. See `softmax_box_min`."""
    return _extreme(c, lower, upper, algorithm, outward, -1)


@gradual_underflow()
def softmax_box_bounds(
    c: Array, lower: Array, upper: Array, *, algorithm: Algorithm = "auto", outward: bool = False
) -> tuple[Array, Array]:
    """(minimum, maximum) of c · softmax(s) over the box, with one pass over the box. See `softmax_box_min`."""
    _check_algorithm(algorithm)
    rows, back = _rows(c, lower, upper)
    low, high = _SoftmaxBox.apply(*rows, algorithm, outward, (1, -1))  # type: ignore[no-untyped-call]
    return back(low), back(high)


@gradual_underflow()
def softmax_box_argmin(c: Array, lower: Array, upper: Array, *, algorithm: Algorithm = "auto") -> ThresholdVertex:
    """The vertex of the box that minimises c · softmax(s): its value, its mask of upper ends, and its threshold m.

    Masked keys are not in the mask. `mask` has the broadcast shape (..., K).
    """
    _check_algorithm(algorithm)
    rows, back = _rows(c, lower, upper)
    with torch.no_grad():
        (value,), (cut,) = _solve(rows, algorithm, False, (1,), cuts=True)
        mask = (rows[0] < cut[..., None]) & (rows[2] > -torch.inf)
        return ThresholdVertex(back(value), back(mask), back(mask.sum(-1)))


@gradual_underflow()
def _extreme(c: Array, lower: Array, upper: Array, algorithm: Algorithm, outward: bool, sign: int) -> Array:
    """The minimum (sign 1) or the maximum (sign −1) over the box."""
    _check_algorithm(algorithm)
    rows, back = _rows(c, lower, upper)
    if not any(x.requires_grad for x in rows):
        return back(_solve(rows, algorithm, outward, (sign,))[0][0])
    return back(_SoftmaxBox.apply(*rows, algorithm, outward, (sign,))[0])  # type: ignore[no-untyped-call]


def _rows(c: Array, lower: Array, upper: Array) -> tuple[Rows, Callable[[Tensor], Array]]:
    """The checked arguments, and the function that converts a result to the caller's array type."""
    checked, back = tensors(c=c, lower=lower, upper=upper)
    return (checked["c"], checked["lower"], checked["upper"]), back


def _check_algorithm(algorithm: str) -> None:
    if algorithm not in ALGORITHMS:
        raise InvalidValueError(f"algorithm is {algorithm!r}; choose one of {', '.join(ALGORITHMS)}")


def _solve(
    rows: Rows, algorithm: str, outward: bool, signs: tuple[int, ...], *, cuts: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """One result (...) per sign, the minimum (1) or the maximum (−1), and with `cuts` one cut (...) per sign.

    A cut describes the vertex that attains the result: keys with c < cut (for the maximum c > cut) at their upper end.
    """
    results: list[Tensor] = []
    found_cuts: list[Tensor] = []
    may_have_nan = True
    if algorithm != "threshold" or cuts:
        results, found_cuts, may_have_nan = _newton(rows, outward, signs, cuts)
    if algorithm == "threshold":
        solver = torch_backend.threshold
        results = [torch_backend.minimum(*rows, solver=solver, sign=s, outward=outward) for s in signs]
        may_have_nan = True
    if not may_have_nan:
        return results, found_cuts
    for i, sign in enumerate(signs):
        _finish(results[i], found_cuts[i] if cuts else None, rows, sign, outward)
    return results, found_cuts


def _newton(rows: Rows, outward: bool, signs: tuple[int, ...], cuts: bool) -> tuple[list[Tensor], list[Tensor], bool]:
    """The results, the cuts (none without `cuts`), and whether a row may have been left as NaN."""
    c, lower, upper = rows
    keys = c.shape[-1]
    if c.device.type == "cpu" and native.usable(keys):
        wanted = (1 in signs, -1 in signs)
        ends, ends_cuts = native.bounds_and_cuts(c, lower, upper, wanted=wanted, outward=outward, cuts=cuts)
        return _present(ends), _present(ends_cuts), True
    batch = np.broadcast_shapes(c.shape, lower.shape, upper.shape)[:-1]
    found_cuts = [torch.empty(batch, dtype=c.dtype, device=c.device) if cuts else None for _ in signs]
    pairs = list(zip(signs, found_cuts, strict=True))
    if c.is_cuda:
        from vertex_softmax.softmax_box import triton_backend

        if triton_backend.usable(keys):
            run = triton_backend.minimum
            solved = [run(c, lower, upper, sign=s, outward=outward, cut=cut) for s, cut in pairs]
            return [value for value, _ in solved], _present(found_cuts), any(nan for _, nan in solved)
    newton = torch_backend.newton
    return (
        [torch_backend.minimum(c, lower, upper, solver=newton, sign=s, outward=outward, cut=cut) for s, cut in pairs],
        _present(found_cuts),
        True,
    )


def _present(values: list[Tensor | None]) -> list[Tensor]:
    """The entries that are not None."""
    return [value for value in values if value is not None]


def _finish(result: Tensor, cut: Tensor | None, rows: Rows, sign: int, outward: bool) -> None:
    """Replace the NaN of rows that a backend did not handle, in place; raises if a row is invalid."""
    if not bool(result.sum().isnan()):  # one pass without extra memory; an overflow merely leads to the exact test
        return
    unhandled = result.isnan()
    if not bool(unhandled.any()):
        return
    c, lower, upper = rows
    shape = torch.Size((*result.shape, c.shape[-1]))
    picked = (c.expand(shape)[unhandled], lower.expand(shape)[unhandled], upper.expand(shape)[unhandled])
    if not all_valid(*picked):
        diagnose(lower, upper, c)
        raise InternalError("a row was refused for no reason that `diagnose` knows; please report this with the input")
    value, found_cut = _solve_unhandled(picked, sign, outward)
    if bool(value.isnan().any()):
        raise InternalError("the log-domain path returned NaN for valid input; please report this with the input")
    result[unhandled] = value
    if cut is not None:
        cut[unhandled] = found_cut


def _solve_unhandled(rows: Rows, sign: int, outward: bool) -> tuple[Tensor, Tensor]:
    """(value, cut) of valid rows (rows, K) that the fast path did not handle.

    Tried in turn: the careful kernel on CUDA, then the log domain.
    """
    c, lower, upper = rows
    value = torch.full_like(c[:, 0], torch.nan)
    cut = value.clone()
    if c.is_cuda:
        from vertex_softmax.softmax_box import triton_backend

        if triton_backend.usable(c.shape[-1]):
            value, _ = triton_backend.minimum(c, lower, upper, sign=sign, outward=outward, cut=cut, careful=True)
    left = value.isnan()
    if bool(left.any()):
        low, low_cut = log_domain.minimum_and_cut(c[left] * sign, lower[left], upper[left], outward=outward)
        value[left], cut[left] = low * sign, low_cut * sign
    return value, cut


class _SoftmaxBox(torch.autograd.Function):
    """The envelope theorem: the derivative at the optimum is the derivative with the optimal vertex held fixed."""

    @staticmethod
    def forward(  # one parameter per argument of `apply`: autograd's signature
        ctx: torch.autograd.function.FunctionCtx,
        c: Tensor,
        lower: Tensor,
        upper: Tensor,
        algorithm: str,
        outward: bool,
        signs: tuple[int, ...],
    ) -> tuple[Tensor, ...]:
        results, cuts = _solve((c, lower, upper), algorithm, outward, signs, cuts=any(ctx.needs_input_grad))  # type: ignore[attr-defined]
        ctx.save_for_backward(c, lower, upper, *cuts)
        ctx.signs = signs  # type: ignore[attr-defined]
        return tuple(results)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        c, lower, upper, *cuts = ctx.saved_tensors  # type: ignore[attr-defined]
        totals: list[Tensor | None] = [None, None, None]
        for gradient, cut, sign in zip(gradients, cuts, ctx.signs, strict=True):  # type: ignore[attr-defined]
            up = (c < cut[..., None]) if sign > 0 else (c > cut[..., None])
            p = torch.where(up, upper, lower).softmax(-1)
            value = (p * c).sum(-1, keepdim=True)
            grad_c = gradient[..., None] * p
            grad_score = grad_c * (c - value)
            full = (grad_c, torch.where(up, 0.0, grad_score), torch.where(up, grad_score, 0.0))
            for i, argument in enumerate((c, lower, upper)):
                if ctx.needs_input_grad[i]:  # type: ignore[attr-defined]
                    part, before = full[i].sum_to_size(argument.shape), totals[i]
                    totals[i] = part if before is None else before + part
        return totals[0], totals[1], totals[2], None, None, None
