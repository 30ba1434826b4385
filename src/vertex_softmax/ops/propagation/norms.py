"""Zonotopes through a normalisation, y / σ(y) with σ(y) = √(mean of y² + eps).

Invariant: the zonotope returned contains y/σ(y) for every y of the given one, rounding included.

To first order. With y = c + y', σ_c = σ(c), a = c·y' / (d σ_c²) and b = |y'|² / (d σ_c²) ≥ a²:
  σ_c / σ(y) = (1 + 2a + b)^{−1/2} = 1 − a + r,  −B/2 ≤ r ≤ A² / (1 − A)   for |a| ≤ A < 1 and b ≤ B
(the function falls in b; at b = a² it is 1 / (1 + a), at b = B it is convex in a and least at a = −B/2). So
  σ_c y/σ(y) = c + y' − a c − a y' + r c + r y':
an affine function, then a product of two affine functions, then an unknown in the direction c, then a small multiple of
y'. The product: over the ball Σ u ξ² ≤ U around the unknowns, (g·ξ)(h·ξ) lies in U (g·h ± |g||h|) / 2. So −a y' has the
centre −U C c / (2 d σ_c²), and half the error that the ranges of its factors would give. All errors keep the shape of
y'. As |y/σ| ≤ √d always, rows for which the above is larger become the ball of that radius.

To second order, where products of the input's unknowns are kept (second_order.py). With a = c·y'/|c|², y⊥ the part of
y' orthogonal to c, q = y⊥/(1 + a), W = |c|² + d·eps and ρ = √(d/W), exactly
  y/σ(y) = ρ (c + q) (1 + s)^{−1/2},  s = β + κ,  β = |q|²/W,  κ = (d·eps/W) ((1 + a)^{−2} − 1):
apart from eps, the length of y has cancelled. With κ₀ = d·eps/W, κ = κ₀ (−2a + 3a² + θ₃) and
(1 + s)^{−1/2} = 1 − s/2 + ψ, where ψ ≥ 0 is convex in s,
  y/(ρσ) = c + κ₀ a c + y⊥ − (1 − κ₀) a y⊥ + k y⊥ + (−β/2 − κ₀ (3a² + θ₃)/2 + ψ) c,
where k = (a² (1 − κ₀) − β/2 − κ₀ (3a² + θ₃)/2 + ψ) / (1 + a) is of second order. With y' = ℓ + r (linear part and
rest), a_ℓ ℓ⊥, |ℓ⊥|²/W c and κ₀ a_ℓ² c are products of inputs and kept. What is left, a_r y⊥, a_ℓ r⊥, ℓ⊥·r⊥/W c, k y⊥
and the rest, is of third order. The exception is ψ, which begins with 3κ₀²a²/2, of second order; it is negligible
unless eps is large.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.ops import pairs
from vertex_softmax.ops.generators import most_eigenvalue, root
from vertex_softmax.ops.propagation.rounding import rounded
from vertex_softmax.ops.propagation.second_order import chosen, linear_columns, with_products
from vertex_softmax.ops.unknowns import InputUnknowns, Unknowns
from vertex_softmax.ops.zonotope import Ellipse, RowShape, Segments, Zonotope, balls, error_blocks


def normalized(y: Zonotope, eps: float, origin: str) -> Zonotope:
    """The rows of y, (batch, rows..., d), divided by √(mean of their squares + eps); each row by the better order."""
    y = y.by_rows
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
    A, B = y.along_centre / whole, y.farthest / whole
    limits = torch.finfo(c.dtype)
    # only where squares neither overflow nor underflow; elsewhere the sphere
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
    factor, pull = rho * (1 + middle).unsqueeze(-1), c / whole.unsqueeze(-1)
    # the size of what is not in the blocks goes through the same affine map
    loose = factor * y.loose + (rho * c).abs() * (pull.abs() * y.loose).sum(-1, keepdim=True)
    error: list[Ellipse | Segments] = [Ellipse(shape.matrix, rho.squeeze(-1) * times), Segments(along_c.unsqueeze(-2))]
    error += _rounding(y, loose)
    blocks = {
        unknowns: torch.addcmul(
            factor[:, None, None] * columns, along(columns, pull), (rho * c)[:, None, None], value=-1
        )
        for unknowns, columns in y.blocks.items()
    }
    blocks.update(error_blocks(error, origin))
    found = Zonotope(centre, blocks, None if _bare(y) else loose, torch.zeros_like(c))
    fits = useful & (found.radius.mean(-1) <= d**0.5) & centre.isfinite().all(-1)
    return _on_sphere(rounded(found, found.centre.abs() + found.radius), fits, origin)


def _rounding(y: Zonotope, loose: Tensor) -> tuple[Ellipse, ...]:
    """The error `loose` as an ellipse, if it is rounding alone: as separate intervals it would grow from layer to
    layer.
    """
    return (Ellipse(torch.diag_embed(loose), loose.sum(-1).sqrt()),) if _bare(y) else ()


def _bare(y: Zonotope) -> bool:
    """Whether `loose` is rounding alone. To second order it is not: there numbers keep unknowns of their own."""
    return y.own is None and y.inputs is None


def along(columns: Tensor, direction: Tensor) -> Tensor:
    """The sum over each row of columns (batch, balls, k, rows..., d) times direction (batch, rows..., d): (…, rows...,
    1).
    """
    found: Tensor = torch.einsum("bpk...d,b...d->bpk...", columns, direction).unsqueeze(-1)
    return found


def _to_second_order(y: Zonotope, eps: float, origin: str, inputs: InputUnknowns) -> tuple[Zonotope, Tensor]:
    """The image to second order, and in which rows (batch, rows...) it may be used."""
    c = y.centre
    d = c.shape[-1]
    square = c.square().sum(-1)
    whole = square + d * eps
    limits = torch.finfo(c.dtype)
    safe = torch.where(square > limits.tiny / limits.eps, square, torch.ones_like(square))
    A, A_line, A_rest = (x.reach(c) / safe for x in (y, y.linear, y.rest))
    useful = (A < 1) & whole.isfinite() & (square > limits.tiny / limits.eps)
    across = across_centre(y, c, safe)
    shape, of_line, of_rest = across.row_shape, across.linear.row_shape, across.rest.row_shape
    B, B_rest = shape.farthest() / whole, of_rest.farthest() / whole
    mixed = inner(of_line, of_rest) / whole
    A, A_line, A_rest, B, B_rest, mixed = (
        torch.where(useful, x, torch.zeros_like(x)) for x in (A, A_line, A_rest, B, B_rest, mixed)
    )
    few, many = (1 + A).pow(-2), (1 - A).pow(-2)  # the range of (1 + a)⁻²
    kappa = d * eps / whole
    s_low, s_high = kappa * (few - 1), B * many + kappa * (many - 1)
    root_low, root_high = (1 + s_high).rsqrt(), (1 + s_low).rsqrt()
    psi = torch.maximum(root_low - 1 + s_high / 2, root_high - 1 + s_low / 2).clamp(min=0)
    theta, cubic_low, cubic_high = many - 1 - 2 * A, few - 1 + 2 * A - 3 * A.square(), many - 1 - 2 * A - 3 * A.square()
    # multiples of y⊥ of third order: bounded by its parts, or by the root itself
    k_low = torch.maximum(
        -(B * many / 2 + kappa * (theta / 2 + A.square())) / (1 - A), (root_low - 1) / (1 - A) - kappa * A
    )
    k_high = torch.minimum((A.square() + psi) / (1 - A), (A.square() + root_high - 1) / (1 - A) + kappa * A)
    # multiples of c of third order
    more = mixed + 1.5 * kappa * A_rest * (A + A_line)
    e_low = -(B_rest / 2 + more + B * (many - 1) / 2 + kappa * cubic_high.clamp(min=0) / 2)
    e_high = more + B * (1 - few) / 2 - kappa * cubic_low.clamp(max=0) / 2 + psi
    middle, half = (k_low + k_high) / 2, (k_high - k_low) / 2
    rho = (d / whole).sqrt()
    factor = (rho * (1 + middle)).unsqueeze(-1)
    pull, back = c / safe.unsqueeze(-1), (rho * kappa).unsqueeze(-1) * c
    loose = factor * across.loose + back.abs() * (pull.abs() * y.loose).sum(-1, keepdim=True)
    errors: list[Ellipse | Segments] = [
        Ellipse(shape.matrix, rho * (A_rest + half) * shape.size.sqrt()),
        Ellipse(of_rest.matrix, rho * A_line * of_rest.size.sqrt()),
        Segments((rho * (e_high - e_low) / 2)[..., None, None] * c.unsqueeze(-2)),
        *_rounding(y, loose),
    ]
    blocks = {
        unknowns: factor[:, None, None] * columns
        + (y.blocks[unknowns] * pull[:, None, None]).sum(-1, keepdim=True) * back[:, None, None]
        for unknowns, columns in across.blocks.items()
    }
    blocks.update(error_blocks(errors, origin))
    centre = (rho * (1 + (e_low + e_high) / 2)).unsqueeze(-1) * c
    found = Zonotope(centre, blocks, None if _bare(y) else loose, torch.zeros_like(c))
    found = with_products(found, inputs, _products((y, across), inputs, pull, whole, kappa, rho))
    found = rounded(found, found.centre.abs() + found.rough_radius)
    return found, useful & found.centre.isfinite().all(-1) & (found.radius.mean(-1) <= d**0.5)


def across_centre(y: Zonotope, c: Tensor, square: Tensor) -> Zonotope:
    """The zonotope of y⊥ = y' − (c·y'/|c|²) c, around 0; `square` is |c|²."""
    unit = c / square.unsqueeze(-1)

    def projected(columns: Tensor) -> Tensor:
        return columns - (columns * c[:, None, None]).sum(-1, keepdim=True) * unit[:, None, None]

    loose = y.loose + unit.abs() * (c.abs() * y.loose).sum(-1, keepdim=True)
    zero = torch.zeros_like(c)
    return Zonotope(zero, {unknowns: projected(columns) for unknowns, columns in y.blocks.items()}, loose, zero)


def _products(
    parts: tuple[Zonotope, Zonotope], inputs: InputUnknowns, pull: Tensor, whole: Tensor, kappa: Tensor, rho: Tensor
) -> tuple[Tensor, Tensor]:
    """The products ρ (−(1 − κ₀) a_ℓ ℓ⊥ − (|ℓ⊥|²/W + 3κ₀ a_ℓ²)/2 · c), as coefficients of pairs and squares.

    parts: y and y⊥.
    """
    y, across = parts
    columns, c = linear_columns(across, inputs), y.centre
    a = (linear_columns(y, inputs) * pull[:, None]).sum(-1)  # (batch, n, rows...)
    gram = torch.einsum("bi...d,bj...d->bij...", columns, columns) / (2 * whole)[:, None, None]
    alongside = pairs.packed(gram + 1.5 * kappa[:, None, None] * a[:, :, None] * a[:, None])
    products = pairs.outer((1 - kappa)[:, None, ..., None] * a.unsqueeze(-1), columns)
    scale = rho[:, None, ..., None]
    pair, alone = (
        -scale * (product + part.unsqueeze(-1) * c[:, None]) for product, part in zip(products, alongside, strict=True)
    )
    return pair, alone


def inner(x: RowShape, y: RowShape) -> Tensor:
    """An upper bound of |x'·y'| for each row, (batch, rows...), from their ellipsoids."""
    cross = root(x.matrix).mT @ root(y.matrix)
    # not the root of the whole product, which is the square of the result and underflows long before it
    return most_eigenvalue(cross @ cross.mT).sqrt() * (x.size.sqrt() * y.size.sqrt())


def remainder(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """The range of (1 + 2a + b)^{−1/2} − 1 + a over |a| ≤ A < 1 and a² ≤ b ≤ B."""
    least = torch.maximum(-B / 2, -A)
    return (1 + 2 * least + B).rsqrt() - 1 + least, A.square() / (1 - A)


def _on_sphere(found: Zonotope, fits: Tensor, origin: str) -> Zonotope:
    """The zonotope in the rows where `fits`, and in the others the ball of radius √d around 0."""
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
