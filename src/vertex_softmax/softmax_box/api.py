"""The public functions of the primitive: check, choose a backend, hand back what came in.

Every backend answers NaN for a row it cannot handle; here such rows are either reported (`diagnose`) or solved in the
log domain. So no caller ever sees NaN, and checking valid input costs no pass over it.
"""

from __future__ import annotations

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
    found, back = tensors(c=c, lower=lower, upper=upper)
    args = (found["c"], found["lower"], found["upper"])
    low, high = _SoftmaxBox.apply(*args, algorithm, outward, (1, -1))  # type: ignore[no-untyped-call]
    return back(low), back(high)


@gradual_underflow()
def softmax_box_argmin(c: Array, lower: Array, upper: Array, *, algorithm: Algorithm = "auto") -> ThresholdVertex:
    """The vertex of the box that minimises c · softmax(s): its value, its mask of upper ends, and its threshold m.

    Masked keys are not in the mask. `mask` has the broadcast shape (..., K).
    """
    _check_algorithm(algorithm)
    found, back = tensors(c=c, lower=lower, upper=upper)
    with torch.no_grad():
        (value,), (cut,) = _solve(found["c"], found["lower"], found["upper"], algorithm, False, (1,), cuts=True)
        mask = (found["c"] < cut[..., None]) & (found["upper"] > -torch.inf)
        return ThresholdVertex(back(value), back(mask), back(mask.sum(-1)))


@gradual_underflow()
def _extreme(c: Array, lower: Array, upper: Array, algorithm: Algorithm, outward: bool, sign: int) -> Array:
    _check_algorithm(algorithm)
    found, back = tensors(c=c, lower=lower, upper=upper)
    args = (found["c"], found["lower"], found["upper"])
    if not any(x.requires_grad for x in args):
        return back(_solve(*args, algorithm, outward, (sign,))[0][0])
    return back(_SoftmaxBox.apply(*args, algorithm, outward, (sign,))[0])  # type: ignore[no-untyped-call]


def _check_algorithm(algorithm: str) -> None:
    if algorithm not in ALGORITHMS:
        raise InvalidValueError(f"algorithm is {algorithm!r}; choose one of {', '.join(ALGORITHMS)}")


def _solve(
    c: Tensor,
    lower: Tensor,
    upper: Tensor,
    algorithm: str,
    outward: bool,
    signs: tuple[int, ...],
    *,
    cuts: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """One result per sign, the minimum (1) and the maximum (−1), and if wanted the cuts whose vertices attain them."""
    results: list[Tensor] = []
    where: list[Tensor] = []
    left = True
    if algorithm != "threshold" or cuts:
        results, where, left = _newton(c, lower, upper, outward, signs, cuts)
    if algorithm == "threshold":
        solver = torch_backend.threshold
        results = [torch_backend.minimum(c, lower, upper, solver=solver, sign=s, outward=outward) for s in signs]
        left = True
    if not left:
        return results, where
    for i, sign in enumerate(signs):
        _finish(results[i], where[i] if cuts else None, c, lower, upper, sign, outward)
    return results, where


def _newton(
    c: Tensor, lower: Tensor, upper: Tensor, outward: bool, signs: tuple[int, ...], cuts: bool
) -> tuple[list[Tensor], list[Tensor], bool]:
    """Results, cuts, and whether a row may have been left as NaN."""
    keys = c.shape[-1]
    if c.device.type == "cpu" and native.usable(keys):
        wanted = (1 in signs, -1 in signs)
        ends = native.bounds_and_cuts(c, lower, upper, wanted=wanted, outward=outward, cuts=cuts)
        return [end for end in ends[0] if end is not None], [cut for cut in ends[1] if cut is not None], True
    batch = np.broadcast_shapes(c.shape, lower.shape, upper.shape)[:-1]
    where = [torch.empty(batch, dtype=c.dtype, device=c.device) for _ in signs] if cuts else [None for _ in signs]
    pairs = list(zip(signs, where, strict=True))
    if c.is_cuda:
        from vertex_softmax.softmax_box import triton_backend

        if triton_backend.usable(keys):
            run = triton_backend.minimum
            found = [run(c, lower, upper, sign=s, outward=outward, cut=w) for s, w in pairs]
            return [low for low, _ in found], _present(where), any(nan for _, nan in found)
    newton = torch_backend.newton
    return (
        [torch_backend.minimum(c, lower, upper, solver=newton, sign=s, outward=outward, cut=w) for s, w in pairs],
        _present(where),
        True,
    )


def _present(where: list[Tensor] | list[None]) -> list[Tensor]:
    return [cut for cut in where if cut is not None]


def _finish(
    result: Tensor, cut: Tensor | None, c: Tensor, lower: Tensor, upper: Tensor, sign: int, outward: bool
) -> None:
    """Rows a backend left as NaN: say what is wrong with them, or solve them in another way, in place."""
    if not bool(result.sum().isnan()):  # one pass, nothing stored; an overflow here costs a second look, no more
        return
    left = result.isnan()
    if not bool(left.any()):
        return
    shape = torch.Size((*result.shape, c.shape[-1]))
    rows = [x.expand(shape)[left] for x in (c, lower, upper)]
    if not all_valid(*rows):
        diagnose(lower, upper, c)
        raise InternalError("a row was refused for no reason that `diagnose` knows; please report this with the input")
    value, where = _left_rows(rows[0], rows[1], rows[2], sign, outward)
    if bool(value.isnan().any()):
        raise InternalError("the log-domain path returned NaN for valid input; please report this with the input")
    result[left] = value
    if cut is not None:
        cut[left] = where


def _left_rows(c: Tensor, lower: Tensor, upper: Tensor, sign: int, outward: bool) -> tuple[Tensor, Tensor]:
    """Valid rows (rows, K) that the fast path did not handle: the careful kernel on CUDA, then the log domain."""
    value = torch.full_like(c[:, 0], torch.nan)
    where = value.clone()
    if c.is_cuda:
        from vertex_softmax.softmax_box import triton_backend

        if triton_backend.usable(c.shape[-1]):
            value, _ = triton_backend.minimum(c, lower, upper, sign=sign, outward=outward, cut=where, careful=True)
    left = value.isnan()
    if bool(left.any()):
        rows = (c[left] * sign, lower[left], upper[left])
        low, cut = log_domain.minimum_and_cut(*rows, outward=outward)
        value[left], where[left] = low * sign, cut * sign
    return value, where


class _SoftmaxBox(torch.autograd.Function):
    """The envelope theorem: the derivative at the optimum is the derivative with the optimal vertex held fixed."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        c: Tensor,
        lower: Tensor,
        upper: Tensor,
        algorithm: str,
        outward: bool,
        signs: tuple[int, ...],
    ) -> tuple[Tensor, ...]:
        results, cuts = _solve(c, lower, upper, algorithm, outward, signs, cuts=any(ctx.needs_input_grad))  # type: ignore[attr-defined]
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
            at_c = gradient[..., None] * p
            at_score = at_c * (c - value)
            full = (at_c, torch.where(up, 0.0, at_score), torch.where(up, at_score, 0.0))
            for i, argument in enumerate((c, lower, upper)):
                if ctx.needs_input_grad[i]:  # type: ignore[attr-defined]
                    part, before = full[i].sum_to_size(argument.shape), totals[i]
                    totals[i] = part if before is None else before + part
        return totals[0], totals[1], totals[2], None, None, None
