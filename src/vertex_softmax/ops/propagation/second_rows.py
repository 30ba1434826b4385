"""Zonotopes through attention to second order in the input's unknowns (second_order.py).

Invariant: the zonotope returned contains the rows for all scores and values of the given zonotopes, rounding included.

In the notation of rows.py, with w_j = v_j^c − v̄ and S = Σ ω_j (e^{t_j} − 1) ≥ 0 (of second order, as Σ ω t = 0),
  Σ_j p_j v_j = v̄ + N / (1 + S),  N = Σ_j ω_j e^{t_j} (w_j + v'_j),
because Σ ω_j w_j = 0 and Σ p_j = 1. With |t| ≤ τ, by the series of sinh and cosh and Chebyshev's polynomials,
  e^t = α + β t + γ t² ± δ,  β = 1 + τ²/8,  γ = ½ + τ²/24,  α = 1 − τ⁴/192 + ρ_c/2,
  δ = τ³/24 + τ⁴/192 + ρ_s + ρ_c/2,  ρ_s = τ⁵ cosh τ / 120,  ρ_c = τ⁶ cosh τ / 720.
With t = ℓ_t + r_t and v' = ℓ_v + r_v, the terms γ ℓ_t² w and β ℓ_t ℓ_v of N are products of inputs and kept. Errors, of
third order, are
- along w_j: δ and γ (2 ℓ_t r_t + r_t²);
- in the shape of r_v: β ℓ_t; in the shape of v': β r_t, γ (t² − τ²/2) and δ;
- in the shape of N: N S / (1 + S).

A key whose r_t is so large that the line of slope sinh(τ)/τ has less error uses that line (γ = 0).
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.ops import pairs
from vertex_softmax.ops.propagation.rounding import rounded
from vertex_softmax.ops.propagation.rows import CentredScores, centred_scores, over_keys
from vertex_softmax.ops.propagation.second_order import linear_columns, with_products
from vertex_softmax.ops.unknowns import InputUnknowns, Unknowns
from vertex_softmax.ops.zonotope import Ellipse, Segments, Zonotope, error_blocks, times_left, times_rows


@dataclasses.dataclass(frozen=True, eq=False)
class Parabolas:
    """e^t = α + β t + γ t² ± δ for |t| ≤ τ, (batch, ..., n, K)."""

    alpha: Tensor
    beta: Tensor
    gamma: Tensor
    delta: Tensor


def parabolas(tau: Tensor, mixed: Tensor) -> Parabolas:
    """For each key the parabola, or the chord's line if γ · mixed + δ of the parabola exceeds the line's error."""
    cosh = torch.cosh(tau)
    odd, even = tau**5 * cosh / 120, tau**6 * cosh / 720
    gamma = 0.5 + tau.square() / 24
    delta = tau**3 / 24 + tau**4 / 192 + odd + even / 2
    moves = tau > 0
    slope = torch.where(moves, torch.sinh(tau) / torch.where(moves, tau, torch.ones_like(tau)), torch.ones_like(tau))
    high = torch.maximum(cosh, tau.exp() - slope * tau)
    low = torch.minimum(slope - slope * slope.log(), high)
    line = (high - low) / 2
    bowed = gamma * mixed + delta < line
    return Parabolas(
        alpha=torch.where(bowed, 1 - tau**4 / 192 + even / 2, (high + low) / 2),
        beta=torch.where(bowed, 1 + tau.square() / 8, slope),
        gamma=torch.where(bowed, gamma, torch.zeros_like(gamma)),
        delta=torch.where(bowed, delta, line),
    )


def attended_to_second_order(
    scores: Zonotope, masked: Tensor, values: Zonotope, inputs: InputUnknowns, origin: str
) -> tuple[Zonotope, Tensor]:
    """The zonotope of softmax(scores) @ values, and the rows (batch, ..., n) whose errors are smaller than their linear
    part.
    """
    values = values.spread
    t = centred_scores(scores, masked)
    weights = t.log_weights.exp()
    row = weights @ values.centre
    away = values.centre.unsqueeze(-3) - row.unsqueeze(-2)  # w, (batch, ..., n, K, d)
    deviation = Zonotope(torch.zeros_like(weights), t.blocks, None, t.loose)
    line, other = deviation.linear.radius, deviation.rest.tight_radius
    mixed = 2 * line * other + other.square()
    e = parabolas(t.reach, mixed)
    bent = weights * e.gamma * t.reach.square() / 2
    straight = weights * e.alpha + bent  # of v'
    sloped = weights * e.beta
    blocks: dict[Unknowns, Tensor] = {u: times_rows(x, sloped.unsqueeze(-1) * away) for u, x in t.blocks.items()}
    for unknowns, columns in values.blocks.items():
        more = times_left(straight, columns)
        blocks[unknowns] = blocks[unknowns] + more if unknowns in blocks else more
    # errors of N
    of_rest, of_all = values.rest.row_shape, values.row_shape
    along = weights * (e.delta + e.gamma * mixed) + sloped * t.loose
    errors: list[Ellipse | Segments] = [
        Segments(along.unsqueeze(-1) * away),
        over_keys(sloped * line * of_rest.size.sqrt().unsqueeze(-2), of_rest.matrix),
        over_keys((sloped * other + bent + weights * e.delta) * of_all.size.sqrt().unsqueeze(-2), of_all.matrix),
    ]
    blocks.update(error_blocks(errors, origin))
    centre = ((weights * e.alpha).unsqueeze(-1) * away).sum(-2)
    own = (weights * t.reach.exp()) @ values.loose
    numerator = Zonotope(centre, blocks, own, torch.zeros_like(centre))
    numerator = with_products(numerator, inputs, _products(deviation, values, inputs, weights * e.gamma, sloped, away))
    found, error = _divided(numerator, t, weights, origin)
    found = dataclasses.replace(found, centre=row + found.centre)
    most = (values.centre.abs() + values.rough_radius).amax(-2, keepdim=True)
    useful = error + torch.stack([each.length for each in errors]).sum(0)
    moved = torch.linalg.vector_norm(linear_columns(found, inputs), dim=-1).sum(1)
    return rounded(found, found.radius + 2 * most.expand_as(centre)), useful < moved


def _products(
    t: Zonotope, values: Zonotope, inputs: InputUnknowns, bent: Tensor, sloped: Tensor, away: Tensor
) -> tuple[Tensor, Tensor]:
    """The products Σ_j bent_j ℓ_t² w_j + sloped_j ℓ_t ℓ_v as coefficients of pairs and squares of inputs."""
    of_t, of_v = linear_columns(t, inputs), linear_columns(values, inputs)
    right = of_t.unsqueeze(-1) * (bent.unsqueeze(-1) * away)[:, None]  # (batch, n, ..., rows, K, d)
    right = right + sloped[:, None, ..., None] * of_v.unsqueeze(-3)
    return pairs.packed(torch.einsum("bp...ij,bq...ijd->bpq...id", of_t, right))


def _divided(numerator: Zonotope, t: CentredScores, weights: Tensor, origin: str) -> tuple[Zonotope, Tensor]:
    """N / (1 + S), with 0 ≤ S ≤ Σ ω (e^τ − 1 − τ); and the length of the error added by it, (batch, ..., n)."""
    most = (weights * (torch.expm1(t.reach) - t.reach).clamp(min=0)).sum(-1)
    least = 1 / (1 + most)
    middle, half = (1 + least) / 2, (1 - least) / 2
    shape = numerator.row_shape
    errors = (
        Ellipse(shape.matrix, half * shape.size.sqrt()),
        Segments((half.unsqueeze(-1) * numerator.centre).unsqueeze(-2)),
    )
    factor = middle.unsqueeze(-1)
    blocks = {unknowns: factor[:, None, None] * columns for unknowns, columns in numerator.blocks.items()}
    blocks.update(error_blocks(errors, origin))
    own = None if numerator.own is None else factor * numerator.own
    found = Zonotope(factor * numerator.centre, blocks, own, factor * numerator.slack)
    return found, errors[0].length + errors[1].length
