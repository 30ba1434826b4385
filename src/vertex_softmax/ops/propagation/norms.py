"""A zonotope through y / σ(y).

With y = c + y', σ_c = σ(c), a = c·y' / (d σ_c²) and b = |y'|² / (d σ_c²) ≥ a²:
  σ_c / σ(y) = (1 + 2a + b)^{−1/2} = 1 − a + r,  −B/2 ≤ r ≤ A² / (1 − A)   for |a| ≤ A < 1 and b ≤ B
(the function falls in b; at b = a² it is 1 / (1 + a), at b = B it is convex in a and least at a = −B/2). So
  σ_c y/σ(y) = c + y' − a c − a y' + r c + r y':
affine, then a product of two affine functions, then one unknown in the direction c, then a small multiple of y'.
The product: over the ball Σ u ξ² ≤ U around the unknowns, (g·ξ)(h·ξ) lies in U (g·h ± |g||h|) / 2; so −a y' has the
centre −U C c / (2 d σ_c²) and half the error that its factors' ranges would give. All errors keep the shape of y'.

|y/σ| ≤ √d always: where the above says less, the result is the ball of that radius.

Where products of the input's unknowns are known (second_order.py), one order more:
  σ_c / σ(y) = 1 − a + (3a² − b)/2 + φ,  φ = g(2a + b) + 3ab/2 + 3b²/8,  g(u) = (1 + u)^{−1/2} − 1 + u/2 − 3u²/8,
where −5u³/16 ≤ g(u) ≤ 0 for u ≥ 0, and 0 ≤ g(−v) ≤ 5v³ / (16(1 − v)) for 0 ≤ v < 1, as the coefficients of its
series fall. With y' = ℓ + r, a = a_ℓ + a_r: −a_ℓ ℓ and (3a_ℓ² − b_ℓ)/2 are products of inputs; what is left,
  −a_r y' − a_ℓ r + ((σ_c/σ − 1 + a)) y' and, along c, φ + 3 a_r (a + a_ℓ)/2 − (b − b_ℓ)/2,
is of third order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.ops import pairs
from vertex_softmax.ops.generators import most_eigenvalue, root
from vertex_softmax.ops.propagation.rounding import rounded
from vertex_softmax.ops.propagation.second_order import chosen, linear_columns, with_products
from vertex_softmax.ops.zonotope import (
    Ellipse,
    InputUnknowns,
    RowShape,
    Unknowns,
    Zonotope,
    balls,
    columns_ellipse,
    ellipsoid_balls,
)


def normalized(y: Zonotope, eps: float, origin: str) -> Zonotope:
    """The rows of y, (batch, rows..., d), divided by √(mean of their squares + eps); each row by what is better."""
    first, inputs = _to_first_order(y, eps, origin), y.inputs
    if inputs is None:
        return first
    second, useful = _to_second_order(y, eps, origin, inputs)
    better = useful & (second.radius.sum(-1) < first.radius.sum(-1))
    return chosen(better.unsqueeze(-1), second, first)


def _to_first_order(y: Zonotope, eps: float, origin: str) -> Zonotope:
    c, shape = y.centre, y.row_shape
    d = c.shape[-1]
    variance = c.square().mean(-1) + eps
    whole = d * variance
    along = y.reach(c)
    A = along / whole
    B = torch.minimum(shape.farthest(), y.radius.square().sum(-1)) / whole
    limits = torch.finfo(c.dtype)
    # far from where squares overflow or underflow: beyond, the sphere
    useful = (A < 1) & whole.isfinite() & (whole > limits.tiny / limits.eps)
    A, B = (torch.where(useful, x, torch.zeros_like(x)) for x in (A, B))
    low, high = remainder(A, B)
    middle, half = (low + high) / 2, (high - low) / 2
    # −a y' as one quadratic form, or by the range of a
    towards = (shape.matrix @ c.unsqueeze(-1)).squeeze(-1) / whole.unsqueeze(-1)
    quadratic = shape.size / 2 * ((towards * c).sum(-1) / whole).clamp(min=0).sqrt()
    plain = A * shape.size.sqrt()
    better = quadratic < plain
    shift = torch.where(better.unsqueeze(-1), -(shape.size / 2).unsqueeze(-1) * towards, torch.zeros_like(c))
    times = torch.where(better, quadratic, plain) + half * shape.size.sqrt()
    rho = variance.rsqrt().unsqueeze(-1)
    centre = rho * (c * (1 + middle).unsqueeze(-1) + shift)
    along_c = rho * c * half.unsqueeze(-1)
    error = (Ellipse(shape.matrix, rho.squeeze(-1) * times), columns_ellipse(along_c.unsqueeze(-2)))
    factor, pull = rho * (1 + middle).unsqueeze(-1), c / whole.unsqueeze(-1)
    blocks = {
        unknowns: factor[:, None, None] * columns
        - (columns * pull[:, None, None]).sum(-1, keepdim=True) * (rho * c)[:, None, None]
        for unknowns, columns in y.blocks.items()
    }
    unknowns, columns = ellipsoid_balls(error, origin)
    blocks[unknowns] = columns
    # what is not in the blocks goes through the same affine map, by its size
    loose = factor * y.loose + (rho * c).abs() * (pull.abs() * y.loose).sum(-1, keepdim=True)
    found = Zonotope(centre, blocks, loose, torch.zeros_like(c))
    fits = useful & (found.radius.mean(-1) <= d**0.5) & centre.isfinite().all(-1)
    return _on_sphere(rounded(found, found.centre.abs() + found.radius), fits, origin)


def _to_second_order(y: Zonotope, eps: float, origin: str, inputs: InputUnknowns) -> tuple[Zonotope, Tensor]:
    """With products of inputs, and in which rows (batch, rows...) that may be used."""
    c, shape = y.centre, y.row_shape
    d = c.shape[-1]
    variance = c.square().mean(-1) + eps
    whole = d * variance
    line, other = y.linear, y.rest
    of_line, of_other = line.row_shape, other.row_shape
    A, A_line, A_rest = (x.reach(c) / whole for x in (y, line, other))
    B, B_rest = shape.farthest() / whole, of_other.farthest() / whole
    limits = torch.finfo(c.dtype)
    useful = (A < 1) & whole.isfinite() & (whole > limits.tiny / limits.eps)
    A, A_line, A_rest, B, B_rest = (torch.where(useful, x, torch.zeros_like(x)) for x in (A, A_line, A_rest, B, B_rest))
    low, high = remainder(A, B)
    middle, half = (low + high) / 2, (high - low) / 2
    v, u = A * (2 - A), 2 * A + B  # 1 + 2a + b ≥ (1 − A)²
    phi_high = 5 / 16 * v**3 / (1 - v) + 1.5 * A * B + 0.375 * B.square()
    phi_low = -5 / 16 * u**3 - 1.5 * A * B
    mixed = torch.where(useful, inner(of_line, of_other) / whole, torch.zeros_like(A))
    along = (phi_high - phi_low) / 2 + 1.5 * A_rest * (A + A_line) + mixed + B_rest / 2
    rho = variance.rsqrt()
    errors = (
        Ellipse(shape.matrix, rho * (A_rest + half) * shape.size.sqrt()),
        Ellipse(of_other.matrix, rho * A_line * of_other.size.sqrt()),
        columns_ellipse((rho * along)[..., None, None] * c.unsqueeze(-2)),
    )
    rho_row, pull = rho.unsqueeze(-1), c / whole.unsqueeze(-1)
    factor = rho_row * (1 + middle).unsqueeze(-1)
    blocks = {
        unknowns: factor[:, None, None] * columns
        - (columns * pull[:, None, None]).sum(-1, keepdim=True) * (rho_row * c)[:, None, None]
        for unknowns, columns in y.blocks.items()
    }
    unknowns, columns = ellipsoid_balls(errors, origin)
    blocks[unknowns] = columns
    loose = factor * y.loose + (rho_row * c).abs() * (pull.abs() * y.loose).sum(-1, keepdim=True)
    centre = rho_row * c * (1 + (phi_high + phi_low) / 2).unsqueeze(-1)
    found = Zonotope(centre, blocks, loose, torch.zeros_like(c))
    found = with_products(found, inputs, _products(y, inputs, rho_row, whole))
    found = rounded(found, found.centre.abs() + found.radius)
    return found, useful & found.centre.isfinite().all(-1) & (found.radius.mean(-1) <= d**0.5)


def _products(y: Zonotope, inputs: InputUnknowns, rho: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """ρ_c (−a_ℓ ℓ + (3a_ℓ² − b_ℓ)/2 · c) as coefficients of pairs and squares."""
    columns, c = linear_columns(y, inputs), y.centre
    a = (columns * c[:, None]).sum(-1) / whole[:, None]  # (batch, n, rows...)
    gram = torch.einsum("bi...d,bj...d->bij...", columns, columns) / whole[:, None, None]
    pair, square = pairs.outer(a.unsqueeze(-1), columns)
    more = pairs.packed((1.5 * a[:, :, None] * a[:, None] - gram / 2))
    return (
        rho[:, None] * (more[0].unsqueeze(-1) * c[:, None] - pair),
        rho[:, None] * (more[1].unsqueeze(-1) * c[:, None] - square),
    )


def inner(x: RowShape, y: RowShape) -> Tensor:
    """|x'·y'| at most for each row, (batch, rows...), by the two ellipsoids."""
    cross = root(x.matrix).mT @ root(y.matrix)
    return (most_eigenvalue(cross @ cross.mT) * x.size * y.size).sqrt()


def remainder(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """The range of (1 + 2a + b)^{−1/2} − 1 + a over |a| ≤ A < 1 and a² ≤ b ≤ B."""
    least = torch.maximum(-B / 2, -A)
    return (1 + 2 * least + B).rsqrt() - 1 + least, A.square() / (1 - A)


def _on_sphere(found: Zonotope, fits: Tensor, origin: str) -> Zonotope:
    """The zonotope in the rows where it fits, elsewhere the ball of radius √d around 0."""
    if bool(fits.all()):
        return found
    keep = fits.unsqueeze(-1)
    zero = torch.zeros_like(found.centre)
    d = zero.shape[-1]
    ball = torch.eye(d, dtype=zero.dtype, device=zero.device) * d**0.5 * (1 + 8 * d * torch.finfo(zero.dtype).eps)
    sphere = torch.where(fits[..., None, None], torch.zeros_like(ball), ball)
    blocks: dict[Unknowns, Tensor] = {
        unknowns: torch.where(keep[:, None, None], columns, torch.zeros_like(columns))
        for unknowns, columns in found.blocks.items()
    }
    unknowns, columns = balls(sphere, origin)
    blocks[unknowns] = columns
    own = None if found.own is None else torch.where(keep, found.own, zero)
    return Zonotope(torch.where(keep, found.centre, zero), blocks, own, torch.where(keep, found.slack, zero))
