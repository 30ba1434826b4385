"""A zonotope through y / σ(y).

With y = c + y', σ_c = σ(c), a = c·y' / (d σ_c²) and b = |y'|² / (d σ_c²) ≥ a²:
  σ_c / σ(y) = (1 + 2a + b)^{−1/2} = 1 − a + r,  −B/2 ≤ r ≤ A² / (1 − A)   for |a| ≤ A < 1 and b ≤ B
(the function falls in b; at b = a² it is 1 / (1 + a), at b = B it is convex in a and least at a = −B/2). So
  σ_c y/σ(y) = c + y' − a c − a y' + r c + r y':
affine, then a product of two affine functions, then one unknown in the direction c, then a small multiple of y'.
The product: over the ball Σ u ξ² ≤ U around the unknowns, (g·ξ)(h·ξ) lies in U (g·h ± |g||h|) / 2; so −a y' has the
centre −U C c / (2 d σ_c²) and half the error that its factors' ranges would give. All errors keep the shape of y'.

|y/σ| ≤ √d always: where the above says less, the result is the ball of that radius.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.ops.propagation.rounding import rounded
from vertex_softmax.ops.zonotope import Ellipse, Unknowns, Zonotope, balls, columns_ellipse, ellipsoid_balls


def normalized(y: Zonotope, eps: float, origin: str) -> Zonotope:
    """The rows of y, (batch, rows..., d), divided by √(mean of their squares + eps)."""
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
