"""The exact range of every softmax component over a box of scores, in closed form and O(K).

Invariant: lower ≤ p_j(s) ≤ upper for every s in the box, attained at both ends, to rounding; with `outward`, certainly.

    p_j is least at (l_j, u elsewhere):      p^L_j = L_j / (L_j + Σ_{k≠j} U_k)
    p_j is greatest at (u_j, l elsewhere):   p^U_j = U_j / (U_j + Σ_{k≠j} L_k)

Σ_{k≠j} is summed (a prefix and a suffix), never a total minus one term: that would cancel and lose every digit when
key j dominates.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vertex_softmax.errors import InternalError
from vertex_softmax.softmax_box.arguments import Array, diagnose, tensors
from vertex_softmax.softmax_box.outward import LIMITS, SAFETY, round_down

CHUNK = 1 << 24


def softmax_box_probabilities(lower: Array, upper: Array, *, outward: bool = False) -> tuple[Array, Array]:
    """(p^L, p^U): the least and greatest value of every softmax component over lower ≤ s ≤ upper, each (..., K).

    Computed in float64 and returned in the dtype of the arguments. Masked keys (−inf) have probability 0.
    `outward=True` rounds p^L down and p^U up by a proved bound on the error, see `_relative_error`.
    """
    found, back = tensors(lower=lower, upper=upper)
    dtype = found["lower"].dtype
    lo, up = torch.broadcast_tensors(found["lower"], found["upper"])
    diagnose(lo, up)
    lo, up = lo.double(), up.double()
    shift = up.amax(-1, keepdim=True).detach()
    x, z = lo - shift, up - shift
    width = -torch.where(x == -math.inf, 0.0, x).amin(-1, keepdim=True).detach()
    if x.numel() == 0 or bool((width <= LIMITS[torch.float64].widest).all()):
        least, greatest = _direct(x, z)
    else:
        least, greatest = _log_domain(x, z), _log_domain(z, x)
    least = torch.where(least > greatest, greatest, least)  # rounding may cross two equal numbers: they are a point
    if bool(least.isnan().any() | greatest.isnan().any()):
        raise InternalError(
            "softmax_box_probabilities produced NaN from valid input; please report this with the input"
        )
    if outward:
        with torch.no_grad():
            least, greatest = _widened(least, greatest, width)
            return back(round_down(least, dtype)), back(-round_down(-greatest, dtype))
    return back(least.to(dtype)), back(greatest.to(dtype))


def _others(y: Tensor) -> Tensor:
    """Σ_{k≠j} y_k for every j, by an exclusive prefix and an exclusive suffix sum; (..., K)."""
    prefix = torch.nn.functional.pad(y.cumsum(-1)[..., :-1], (1, 0))
    suffix = torch.nn.functional.pad(y.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))
    return prefix + suffix


def _direct(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    L, U = x.exp(), z.exp()
    return L / (L + _others(U)), U / (U + _others(L))


def _log_domain(own: Tensor, rest: Tensor) -> Tensor:
    """Key j at own_j, every other key at rest: sigmoid(own_j − lse_{k≠j} rest_k). O(K²) per row, for wide rows only."""
    keys = own.shape[-1]
    flat_own, flat_rest = own.reshape(-1, keys), rest.reshape(-1, keys)
    diagonal = torch.eye(keys, dtype=torch.bool, device=own.device)
    rows = max(1, CHUNK // (keys * keys))
    parts = []
    for i in range(0, flat_own.shape[0], rows):
        others = torch.where(diagonal, -math.inf, flat_rest[i : i + rows, None, :]).logsumexp(-1)
        parts.append(torch.sigmoid(flat_own[i : i + rows] - others))
    return torch.cat(parts).reshape(own.shape)


def _relative_error(keys: int, width: Tensor) -> Tensor:
    """A bound on the relative error of both forms, in float64.

    With ε = 2⁻⁵³ and width = max u − min l over unmasked keys: a shifted score is off by at most ε·width, so a weight
    by ε(width + 4) relatively (outward.py, steps 2 and 4), a sum of positive weights by ε(width + 4 + K), and their
    quotient by ε(2·width + K + 12). In the log domain the exponent own_j − lse is off by at most
    ε(4·width + K + 12) — the shift, the lse's inner shift and sum, its logarithm, the difference — and the sigmoid
    adds a few ulps. 8·width + K + 40 covers both; SAFETY covers second order while it is below 1/16, and beyond that
    the trivial bounds 0 and 1 are used.
    """
    return SAFETY * LIMITS[torch.float64].unit * (8 * width + (keys + 40))


def _widened(least: Tensor, greatest: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    tiny = torch.finfo(torch.float64).tiny
    error = _relative_error(least.shape[-1], width)
    sure = error < 1 / 16
    low = torch.where(sure & (least > 4 * tiny), least * (1 - 2 * error), 0.0)
    high = torch.where(sure, torch.clamp(greatest * (1 + 2 * error) + 4 * tiny, max=1.0), 1.0)
    return low, high
