"""Zonotopes through attention to third order in the input's unknowns, in the notation of second_rows.py.

Invariant: the zonotope returned contains the rows for all scores and values of the given zonotopes, rounding included.

With |t| ≤ τ, by Chebyshev's polynomials for t⁴ and t⁵ and a bound of the rest of the series,
  e^t = α + β t + γ t² + μ t³ ± δ,  α = 1 − τ⁴/192,  β = 1 − τ⁴/384,  γ = ½ + τ²/24,  μ = 1/6 + τ²/96,
  δ = τ⁴/192 + τ⁵/1920 + (τ⁶/720 + τ⁷/5040) cosh τ.
A key whose rest is large uses a parabola (μ = 0) or a line (γ = μ = 0). With t = ℓ + q + s and r = q + s,
  t² = ℓ² + 2ℓq + (2ℓs + r²),  t³ = ℓ³ + m r,  0 ≤ m ≤ M = τ² + τ|ℓ| + |ℓ|².
Of Σ ω e^t w, the terms β t, γ (ℓ² + 2ℓq) and μ ℓ³ are kept; r² is replaced by half of its largest value, and m by M/2,
with errors of the same size.

In Σ ω e^t v' a parabola or a line is enough: α v', β (ℓ ℓ_v + ℓ q_v + q ℓ_v) and γ ℓ² ℓ_v are kept. The errors are β ℓ
in the shape of s_v, β q in the shape of r_v, β s and δ in the shape of v', γ (t² − ℓ²) in the shape of ℓ_v, and γ (t² −
τ²/2) in the shape of r_v.

Z = Σ ω e^t is treated as one more column of N, whose w are all 1 and whose v' are 0; it has the same products and the
same errors. With M = N/Z_c and z = Z/Z_c − 1, a row is v̄ + M / (1 + z). Of M_ℓ (1 − z + z²/(1 + z)) the products M_ℓ
z_ℓ and M_ℓ z_q are kept, and of M_c (1 − z + …) all of M_c z. The part of M that is not linear is multiplied by 1/(1 +
z), of which only the range is used.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.ops import triples
from vertex_softmax.ops.propagation.products import product_errors
from vertex_softmax.ops.propagation.rounding import rounded
from vertex_softmax.ops.propagation.rows import centred_scores, over_keys
from vertex_softmax.ops.propagation.second_order import linear_columns
from vertex_softmax.ops.propagation.second_rows import parabolas
from vertex_softmax.ops.propagation.third_order import quadratic_columns, with_cubic, with_quadratic
from vertex_softmax.ops.reaches import Care
from vertex_softmax.ops.unknowns import InputUnknowns, Unknowns
from vertex_softmax.ops.zonotope import Ellipse, Segments, Zonotope, error_blocks, times_left, times_rows


@dataclasses.dataclass(frozen=True, eq=False)
class Sizes:
    """Upper bounds of the parts of t, (batch, ..., n, K)."""

    whole: Tensor
    """τ"""
    line: Tensor
    form: Tensor
    third: Tensor
    rest: Tensor

    @property
    def squared(self) -> Tensor:
        """An upper bound of |t² − ℓ² − 2ℓq|."""
        return 2 * self.line * self.third + self.rest.square()

    @property
    def cubed(self) -> Tensor:
        """An upper bound of |t³ − ℓ³|."""
        return self.rest * (self.whole.square() + self.whole * self.line + self.line.square())


@dataclasses.dataclass(frozen=True, eq=False)
class Cubics:
    """e^t = α + β t + γ t² + μ t³ ± δ for |t| ≤ τ, (batch, ..., n, K)."""

    alpha: Tensor
    beta: Tensor
    gamma: Tensor
    mu: Tensor
    delta: Tensor

    def error(self, t: Sizes) -> Tensor:
        """The error along w."""
        return self.delta + self.gamma * t.squared / 2 + self.mu * t.cubed / 2


def cubics(t: Sizes) -> Cubics:
    """For each key the polynomial with the smallest error: of third, second or first degree."""
    tau = t.whole
    cosh, one, zero = torch.cosh(tau), torch.ones_like(tau), torch.zeros_like(tau)
    beyond = (tau**6 / 720 + tau**7 / 5040) * cosh
    third = Cubics(
        alpha=1 - tau**4 / 192,
        beta=1 - tau**4 / 384,
        gamma=0.5 + tau.square() / 24,
        mu=1 / 6 + tau.square() / 96,
        delta=tau**4 / 192 + tau**5 / 1920 + beyond,
    )
    odd, even = tau**5 * cosh / 120, tau**6 * cosh / 720
    second = Cubics(
        alpha=1 - tau**4 / 192 + even / 2,
        beta=1 + tau.square() / 8,
        gamma=third.gamma,
        mu=zero,
        delta=tau**3 / 24 + tau**4 / 192 + odd + even / 2,
    )
    moves = tau > 0
    slope = torch.where(moves, torch.sinh(tau) / torch.where(moves, tau, one), one)
    high = torch.maximum(cosh, tau.exp() - slope * tau)
    low = torch.minimum(slope - slope * slope.log(), high)
    first = Cubics(alpha=(high + low) / 2, beta=slope, gamma=zero, mu=zero, delta=(high - low) / 2)
    return _better(_better(third, second, t), first, t)


def _better(a: Cubics, b: Cubics, t: Sizes) -> Cubics:
    """The coefficients of a where its error is smaller, else those of b."""
    less = a.error(t) < b.error(t)
    names = [field.name for field in dataclasses.fields(Cubics)]
    return Cubics(**{name: torch.where(less, getattr(a, name), getattr(b, name)) for name in names})


def attended_to_third_order(
    scores: Zonotope, masked: Tensor, values: Zonotope, inputs: InputUnknowns, origin: str
) -> tuple[Zonotope, Tensor]:
    """The zonotope of softmax(scores) @ values, and the rows (batch, ..., n) whose errors are smaller than their linear
    part.
    """
    values = values.spread
    t = centred_scores(scores, masked, Care.TIGHTEST)
    weights = t.log_weights.exp()
    row = weights @ values.centre
    away = values.centre.unsqueeze(-3) - row.unsqueeze(-2)  # w, (batch, ..., n, K, d)
    away = torch.nn.functional.pad(away, (0, 1), value=1.0)
    deviation = t.deviation
    sizes = Sizes(
        whole=t.reach,
        line=deviation.linear.radius,
        form=deviation.quadratic.tight_radius,
        third=deviation.third.tightest_radius,
        rest=deviation.rest.tightest_radius,
    )
    numerator, first = _along(deviation, sizes, weights, away, inputs, origin)
    moved, second = _moved(deviation, sizes, weights, values, inputs, origin)
    numerator = _sum(numerator, moved)
    found, third = _divided(numerator, sizes, weights, inputs, origin)
    found = dataclasses.replace(found, centre=row + found.centre)
    most = (values.centre.abs() + values.rough_radius).amax(-2, keepdim=True)
    size = found.rough_radius + 4 * sizes.whole.amax(-1, keepdim=True).exp() * most
    line = torch.linalg.vector_norm(linear_columns(found, inputs), dim=-1).sum(1)
    return rounded(found, size), first + second + third < line


def _sum(a: Zonotope, b: Zonotope) -> Zonotope:
    """a + b, where b has one column less."""

    def wide(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 1))

    blocks = dict(a.blocks)
    for unknowns, columns in b.blocks.items():
        blocks[unknowns] = blocks[unknowns] + wide(columns) if unknowns in blocks else wide(columns)
    return Zonotope(a.centre + wide(b.centre), blocks, a.loose + wide(b.loose), torch.zeros_like(a.centre))


def _along(
    t: Zonotope, sizes: Sizes, weights: Tensor, away: Tensor, inputs: InputUnknowns, origin: str
) -> tuple[Zonotope, Tensor]:
    """The zonotope of Σ_j ω_j e^{t_j} w_j, and the length of its errors."""
    e = cubics(sizes)
    alpha, beta, gamma, mu, delta = (weights * x for x in (e.alpha, e.beta, e.gamma, e.mu, e.delta))
    most = sizes.whole.square() + sizes.whole * sizes.line + sizes.line.square()
    slope = beta + mu * most / 2  # of r
    blocks: dict[Unknowns, Tensor] = {
        u: times_rows(x, (beta if u is inputs else slope).unsqueeze(-1) * away) for u, x in t.blocks.items()
    }
    own, balls = product_errors([(t.linear, t.third)], origin, 2 * gamma)
    bent = gamma * sizes.rest.square() / 2  # of γ r², between 0 and γ |r|²
    length = torch.zeros_like(own[..., 0])
    if balls is not None:
        columns = times_rows(balls[1], away)
        blocks[balls[0]] = columns
        length = columns.square().sum((2, -1)).sqrt().sum(1)
    errors = Segments((own + bent + mu * most / 2 * sizes.rest + delta + slope * t.loose).unsqueeze(-1) * away)
    blocks.update(error_blocks([errors], origin))
    centre = ((alpha + bent).unsqueeze(-1) * away).sum(-2)
    zero = torch.zeros_like(centre)
    found = Zonotope(centre, blocks, None, zero)
    line, form = linear_columns(t, inputs), quadratic_columns(t, inputs)
    constant, square = triples.squared(line, line)
    cubic = triples.times(line, 2 * gamma[:, None] * form + mu[:, None] * square)
    more = cubic.line + (mu * constant)[:, None] * line
    found = with_quadratic(
        found,
        inputs,
        _mixed(gamma.unsqueeze(1) * constant.unsqueeze(1), away).squeeze(1),
        _mixed(gamma.unsqueeze(1) * square, away),
    )
    found = with_cubic(found, inputs, triples.Cubic(_mixed(more, away), _mixed(cubic.products, away)))
    return found, length + errors.length


def _mixed(coefficients: Tensor, away: Tensor) -> Tensor:
    """Σ_j x_j w_j: (batch, m, ..., n, K), (batch, ..., n, K, d) → (batch, m, ..., n, d)."""
    found: Tensor = torch.einsum("bm...k,b...kd->bm...d", coefficients, away)
    return found


def _moved(
    t: Zonotope, sizes: Sizes, weights: Tensor, values: Zonotope, inputs: InputUnknowns, origin: str
) -> tuple[Zonotope, Tensor]:
    """The zonotope of Σ_j ω_j e^{t_j} v'_j, and the length of its errors."""
    apart = sizes.rest * (sizes.whole + sizes.line)  # |t² − ℓ²|
    e = parabolas(sizes.whole, apart)
    alpha, beta, gamma, delta = (weights * x for x in (e.alpha, e.beta, e.gamma, e.delta))
    bent = gamma * sizes.whole.square() / 2
    blocks = {
        unknowns: times_left(alpha if unknowns is inputs else alpha + bent, columns)
        for unknowns, columns in values.blocks.items()
    }
    of_line, of_rest, of_third, of_all = (x.row_shape for x in (values.linear, values.rest, values.third, values))
    errors = [
        over_keys(times * shape.size.sqrt().unsqueeze(-2), shape.matrix)
        for times, shape in (
            (gamma * apart, of_line),
            (beta * sizes.form + bent, of_rest),
            (beta * sizes.line, of_third),
            (beta * sizes.third + delta, of_all),
        )
    ]
    blocks.update(error_blocks(errors, origin))
    zero = torch.zeros_like(weights @ values.centre)
    found = Zonotope(zero, blocks, (weights * sizes.whole.exp()) @ values.loose, zero)
    of_t, form_t = linear_columns(t, inputs), quadratic_columns(t, inputs)  # (batch, n, ..., rows, K)
    of_v, form_v = linear_columns(values, inputs), quadratic_columns(values, inputs)  # (batch, n, ..., K, d)
    parts = []
    for i in range(t.centre.shape[-2]):  # one row at a time, to save memory
        b, g = (x[:, None, ..., i, :, None] for x in (beta, gamma))  # (batch, 1, ..., K, 1)
        line, form = of_t[..., i, :], form_t[..., i, :]  # (batch, n, ..., K)
        right = b * of_v
        constant, square = triples.quadratic(torch.einsum("bp...j,bq...jd->bpq...d", line, right))
        both_constant, both = triples.squared(line.unsqueeze(-1), g * of_v)
        full = torch.einsum("bp...j,bq...jd->bpq...d", line, both + b * form_v)
        full += torch.einsum("bq...j,bp...jd->bpq...d", form, right)
        cubic = triples.packed(full)
        more = torch.einsum("bp...j,b...jd->bp...d", line, both_constant)
        parts.append((constant, square, cubic.line + more, cubic.products))
    constant, square, line, products = (torch.stack(each, -2) for each in zip(*parts, strict=True))
    found = with_cubic(with_quadratic(found, inputs, constant, square), inputs, triples.Cubic(line, products))
    return found, torch.stack([each.length for each in errors]).sum(0)


def _divided(
    both: Zonotope, sizes: Sizes, weights: Tensor, inputs: InputUnknowns, origin: str
) -> tuple[Zonotope, Tensor]:
    """N / Z, where Z is the last column of `both`, and the length of the errors that the division adds,
    (batch, ..., n).
    """
    whole = both.centre[..., -1:]

    def part(which: slice) -> Zonotope:
        blocks = {u: x[..., which] / whole[:, None, None] for u, x in both.blocks.items()}
        return Zonotope(
            both.centre[..., which] / whole,
            blocks,
            both.loose[..., which] / whole,
            torch.zeros_like(both.centre[..., which]),
        )

    top, z = part(slice(None, -1)), part(slice(-1, None))
    tau = sizes.whole
    most = 1 + (weights * (torch.expm1(tau) - tau)).sum(-1, keepdim=True)
    low = torch.maximum(-z.tightest_radius, 1 / whole - 1)  # Z ≥ 1
    high = torch.minimum(z.tightest_radius, most / whole - 1)
    bow = torch.maximum(low.square() / (1 + low), high.square() / (1 + high))  # z²/(1 + z) is convex, 0 at 0
    over, under = 1 / (1 + low), 1 / (1 + high)
    middle, half = (over + under) / 2, (over - under) / 2
    of_line, of_rest = top.linear.row_shape, top.rest.row_shape
    errors: list[Ellipse | Segments] = [
        Ellipse(of_line.matrix, (bow / 2 + z.third.tightest_radius).squeeze(-1) * of_line.size.sqrt()),
        Ellipse(of_rest.matrix, half.squeeze(-1) * of_rest.size.sqrt()),
        Segments((bow / 2 * top.centre).unsqueeze(-2)),
    ]
    factor = 1 + bow / 2
    blocks = {
        unknowns: (factor if unknowns is inputs else middle)[:, None, None] * columns
        - top.centre[:, None, None] * z.blocks[unknowns]
        for unknowns, columns in top.blocks.items()
    }
    blocks.update(error_blocks(errors, origin))
    found = Zonotope(
        factor * top.centre, blocks, middle * top.loose + top.centre.abs() * z.loose, torch.zeros_like(top.centre)
    )
    line = linear_columns(top, inputs)
    constant, square = triples.squared(line, -linear_columns(z, inputs))
    found = with_quadratic(found, inputs, constant, square)
    found = with_cubic(found, inputs, triples.times(line, -quadratic_columns(z, inputs)))
    return found, torch.stack([each.length for each in errors]).sum(0)
