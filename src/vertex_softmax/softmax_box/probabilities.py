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

from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.softmax_box.arguments import Array, diagnose, tensors
from vertex_softmax.softmax_box.outward import LIMITS, SAFETY, gradual_underflow, round_down

CHUNK = 1 << 24


@gradual_underflow()
def softmax_box_probabilities(lower: Array, upper: Array, *, outward: bool = False) -> tuple[Array, Array]:
    """(p^L, p^U): the least and greatest value of every softmax component over lower ≤ s ≤ upper, each (..., K).

    Computed in float64 and returned in the dtype of the arguments. Masked keys (−inf) have probability 0.
    `outward=True` rounds p^L down and p^U up by a proved bound on the error, see `_widened`.
    """
    box, back = tensors(lower=lower, upper=upper)
    dtype = box["lower"].dtype
    lo, up = torch.broadcast_tensors(box["lower"], box["upper"])
    diagnose(lo, up)
    lo, up = lo.double(), up.double()
    shift = up.amax(-1, keepdim=True).detach()
    width = shift - torch.where(lo == -math.inf, shift, lo).amin(-1, keepdim=True).detach()
    wide = width > LIMITS[torch.float64].widest
    if not bool(wide.any()):
        least, greatest = _direct(lo - shift, up - shift)
    else:  # wide rows in the log domain; in the direct computation of the others they are replaced by zeros
        wide_rows = wide.squeeze(-1)
        least, greatest = _direct(torch.where(wide, 0.0, lo - shift), torch.where(wide, 0.0, up - shift))
        least = least.masked_scatter(wide, _log_domain(lo[wide_rows], up[wide_rows]))
        greatest = greatest.masked_scatter(wide, _log_domain(up[wide_rows], lo[wide_rows]))
    size = torch.where(lo == -math.inf, 0.0, torch.maximum(lo.abs(), up.abs())).amax(-1, keepdim=True)
    ulps = torch.where(wide, 4 * size + 1000, 2 * width).detach()
    least = torch.where(least > greatest, greatest, least)  # rounding may make equal ends cross
    if bool(least.isnan().any() | greatest.isnan().any()):
        raise InternalError("softmax_box_probabilities made NaN of valid input; please report this with the input")
    if outward:
        with torch.no_grad():
            least, greatest = _widened(least, greatest, ulps)
            return back(round_down(least, dtype)), back(-round_down(-greatest, dtype))
    return back(least.to(dtype)), back(greatest.to(dtype))


def _others(y: Tensor) -> Tensor:
    """Σ_{k≠j} y_k for every j, by an exclusive prefix and an exclusive suffix sum; (..., K)."""
    prefix = torch.nn.functional.pad(y.cumsum(-1)[..., :-1], (1, 0))
    suffix = torch.nn.functional.pad(y.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))
    return prefix + suffix


def _direct(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """(p^L, p^U) from the shifted lower scores x and upper scores z, (..., K)."""
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
        others = torch.where(diagonal, -math.inf, flat_rest[i : i + rows, None, :])
        alone = (others == -math.inf).all(-1)  # the only unmasked key: probability 1 (a gradient through −inf is NaN)
        lse = torch.where(alone[..., None], 0.0, others).logsumexp(-1)
        parts.append(torch.where(alone, 1.0, torch.sigmoid(flat_own[i : i + rows] - lse)))
    return torch.cat(parts).reshape(own.shape)


def _widened(least: Tensor, greatest: Tensor, ulps: Tensor) -> tuple[Tensor, Tensor]:
    """Step outward by a bound on the relative error, SAFETY · ε · (ulps + K + 40) with ε = 2⁻⁵³.

    Directly: a shifted score is off by at most ε·width, so a weight by ε(width + 4) relatively (outward.py, steps 2 and
    4), a sum of positive weights by ε(width + 4 + K), and their quotient by ε(2·width + K + 12).
    In the log domain, with M the largest |score|: inside logsumexp, a weight that counts has |x − max| < 746, so the
    sum is off by ε(746 + 4 + K) relatively; its logarithm, the addition of max, and the difference own − lse round
    numbers of at most M + log K, M + log K and 2M + log K; the sigmoid adds a few ulps: ε(4·M + K + 1000).
    SAFETY covers second order while the bound is below 1/16; beyond that the trivial bounds 0 and 1 are used.
    """
    tiny = torch.finfo(torch.float64).tiny
    error = SAFETY * LIMITS[torch.float64].unit * (ulps + (least.shape[-1] + 40))
    sure = error < 1 / 16
    low = torch.where(sure & (least > 4 * tiny), least * (1 - 2 * error), 0.0)
    high = torch.where(sure, torch.clamp(greatest * (1 + 2 * error) + 4 * tiny, max=1.0), 1.0)
    return low, high
