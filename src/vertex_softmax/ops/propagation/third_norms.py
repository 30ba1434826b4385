"""Zonotopes through a normalisation to third order in the input's unknowns, in the notation of norms.py.

Invariant: the zonotope returned contains y/σ(y) for every y of the given one, rounding included.

With b = |y⊥|²/W, (1 + a)⁻² = 1 − 2a + φ, φ ≥ 0, and (1 + s)^{−1/2} = 1 − β/2 + E, where β = b (1 + a)⁻² and E is of
fourth order apart from eps, exactly
  y/(ρσ) = c + y⊥ − a y⊥ + a² y⊥ − a³/(1 + a) y⊥ − (b/2)(1 − 2a + φ) c − (b/2)(1 + a)⁻³ y⊥ + E (c + y⊥/(1 + a)),
E = −κ/2 + ψ = κ₀ (a − φ/2) + ψ. Every deviation is ℓ + q + s (linear, quadratic, and the rest), r = q + s, and b_ℓ =
|ℓ⊥|²/W. The products of two of the input's unknowns are −a_ℓ ℓ⊥ and −b_ℓ/2 c; the products of three are
  (a_ℓ² − a_q − b_ℓ/2) ℓ⊥ − a_ℓ q⊥ + (a_ℓ b_ℓ − ℓ⊥·q⊥/W) c.
The errors are of fourth order: multiples of y⊥, of ℓ⊥, of r⊥ and of s⊥, each in its own shape, and of c.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.ops import triples
from vertex_softmax.ops.propagation.norms import across_centre, along, inner, normalized
from vertex_softmax.ops.propagation.rounding import rounded
from vertex_softmax.ops.propagation.second_order import chosen, linear_columns
from vertex_softmax.ops.propagation.third_order import errors_of_rows, quadratic_columns, with_cubic, with_quadratic
from vertex_softmax.ops.unknowns import InputUnknowns
from vertex_softmax.ops.zonotope import Ellipse, Segments, Zonotope, error_blocks


def normalized_by_best(y: Zonotope, eps: float, origin: str) -> Zonotope:
    """The rows of y, (batch, rows..., d), divided by √(mean of their squares + eps); each row by the best order."""
    found, inputs = normalized(y, eps, origin), y.inputs
    if inputs is None or inputs.triples is None:
        return found
    third, useful = normalized_to_third_order(y.by_rows, eps, origin, inputs)
    better = useful & (errors_of_rows(third) < errors_of_rows(found))
    return chosen(better.unsqueeze(-1), third, found)


def normalized_to_third_order(y: Zonotope, eps: float, origin: str, inputs: InputUnknowns) -> tuple[Zonotope, Tensor]:
    """The normalised rows of y, (batch, rows..., d), and in which rows (batch, rows...) they may be used."""
    c = y.centre
    d = c.shape[-1]
    square = c.square().sum(-1)
    whole = square + d * eps
    limits = torch.finfo(c.dtype)
    safe = torch.where(square > limits.tiny / limits.eps, square, torch.ones_like(square))
    A, A_line, A_form, A_third, A_rest = (x.reach(c) / safe for x in (y, y.linear, y.quadratic, y.third, y.rest))
    useful = (A < 1) & whole.isfinite() & (square > limits.tiny / limits.eps)
    across = across_centre(y, c, safe)
    of_all, of_line, of_rest, of_third = (x.row_shape for x in (across, across.linear, across.rest, across.third))
    B, B_rest = of_all.farthest() / whole, of_rest.farthest() / whole
    far = inner(of_line, of_third) / whole
    forms = _forms(y, across, inputs, safe, whole)
    turned = triples.tight_reach(forms.turned.products.unsqueeze(2), inputs.count) + forms.turned.line.abs().sum(1)
    mixed = torch.minimum(inner(of_line, of_rest) / whole, turned + far)
    of_square = Zonotope(torch.zeros_like(square), {}, None, torch.zeros_like(square))
    of_square = with_quadratic(of_square, inputs, forms.b_constant, forms.b_form)
    B = torch.minimum(B, of_square.centre + of_square.tight_radius + 2 * mixed + B_rest)
    A, A_line, A_form, A_third, A_rest, B, B_rest, mixed, far = (
        torch.where(useful, x, torch.zeros_like(x)) for x in (A, A_line, A_form, A_third, A_rest, B, B_rest, mixed, far)
    )
    few, many = (1 + A).pow(-2), (1 - A).pow(-2)  # the range of (1 + a)⁻²
    kappa = d * eps / whole
    s_low, s_high = kappa * (few - 1), B * many + kappa * (many - 1)
    psi = torch.maximum((1 + s_high).rsqrt() - 1 + s_high / 2, (1 + s_low).rsqrt() - 1 + s_low / 2).clamp(min=0)
    e_low, e_high = -kappa * (many - 1) / 2, kappa * (1 - few) / 2 + psi
    spread = torch.maximum(-e_low, e_high)
    other = 2 * mixed + B_rest  # |b − b_ℓ|
    phi = many - 1 - 2 * A
    c_low, c_high = -kappa * phi / 2 - B * phi / 2 - B_rest / 2, psi
    apart = far + A_rest * B + A_line * other
    # multiples of y⊥, ℓ⊥, r⊥ and s⊥
    of_y = A_third + torch.maximum(A**3 / (1 - A), B * ((1 - A).pow(-3) - 1) / 2) + spread / (1 - A)
    of_l = A_rest * (A + A_line) + other / 2
    of_r, middle = A_form + A.square() / 2 + B / 4, A.square() / 2 - B / 4
    rho = (d / whole).sqrt()
    errors = (
        Ellipse(of_all.matrix, rho * of_y * of_all.size.sqrt()),
        Ellipse(of_line.matrix, rho * of_l * of_line.size.sqrt()),
        Ellipse(of_rest.matrix, rho * of_r * of_rest.size.sqrt()),
        Ellipse(of_third.matrix, rho * A_line * of_third.size.sqrt()),
        Segments((rho * ((c_high - c_low) / 2 + apart))[..., None, None] * c.unsqueeze(-2)),
    )
    factor = (rho * (1 + middle)).unsqueeze(-1)
    pull, back = c / safe.unsqueeze(-1), (rho * kappa).unsqueeze(-1) * c  # of κ₀ a c
    blocks = {
        unknowns: (rho.unsqueeze(-1) if unknowns is inputs else factor)[:, None, None] * columns
        + along(y.blocks[unknowns], pull) * back[:, None, None]
        for unknowns, columns in across.blocks.items()
    }
    blocks.update(error_blocks(errors, origin))
    centre = (rho * (1 + (c_high + c_low) / 2)).unsqueeze(-1) * c
    loose = factor.abs() * across.loose + back.abs() * (pull.abs() * y.loose).sum(-1, keepdim=True)
    found = Zonotope(centre, blocks, loose, torch.zeros_like(c))
    found = _with_products(found, y.centre, forms, inputs, rho)
    found = rounded(found, found.centre.abs() + (1 + B).unsqueeze(-1) * found.rough_radius)
    return found, useful & found.centre.isfinite().all(-1) & (found.radius.mean(-1) <= d**0.5)


@dataclasses.dataclass(frozen=True, eq=False)
class Forms:
    """Linear and quadratic forms: ℓ⊥ and q⊥, (batch, ·, rows..., d); the parts of a and b_ℓ, (batch, ·, rows...)."""

    line: Tensor
    form: Tensor
    a_line: Tensor
    a_form: Tensor
    b_constant: Tensor
    b_form: Tensor
    turned: triples.Cubic
    """ℓ⊥·q⊥/W"""


def _forms(y: Zonotope, across: Zonotope, inputs: InputUnknowns, square: Tensor, whole: Tensor) -> Forms:
    pull = (y.centre / square.unsqueeze(-1))[:, None]
    line, form = linear_columns(across, inputs), quadratic_columns(across, inputs)
    constant, b_form = triples.quadratic(torch.einsum("bi...d,bj...d->bij...", line, line))
    return Forms(
        line=line,
        form=form,
        a_line=(linear_columns(y, inputs) * pull).sum(-1),
        a_form=(quadratic_columns(y, inputs) * pull).sum(-1),
        b_constant=constant / whole,
        b_form=b_form / whole[:, None],
        turned=triples.packed(torch.einsum("bi...d,bm...d->bim...", line, form / whole[:, None, ..., None])),
    )


def _with_products(found: Zonotope, c: Tensor, of: Forms, inputs: InputUnknowns, rho: Tensor) -> Zonotope:
    """`found` with the products of two and of three of the input's unknowns added."""
    scale, a_line = rho.unsqueeze(-1), of.a_line
    a_constant, a_square = triples.squared(a_line, a_line)
    # −a_ℓ ℓ⊥ − b_ℓ/2 c
    constant, square_form = triples.squared(a_line.unsqueeze(-1), of.line)
    constant = -constant - (of.b_constant / 2).unsqueeze(-1) * c
    square_form = -square_form - (of.b_form / 2).unsqueeze(-1) * c[:, None]
    found = with_quadratic(found, inputs, scale * constant, scale[:, None] * square_form)
    # (a_ℓ² − a_q − b_ℓ/2) ℓ⊥ − a_ℓ q⊥
    factor, factor_constant = a_square - of.a_form - of.b_form / 2, a_constant - of.b_constant / 2
    one = triples.times(of.line, factor.unsqueeze(-1))
    two = triples.times(a_line.unsqueeze(-1), of.form)
    # (a_ℓ b_ℓ − ℓ⊥·q⊥/W) c
    bent = triples.times(a_line, of.b_form)
    c_line = bent.line + of.b_constant[:, None] * a_line - of.turned.line
    c_products = bent.products - of.turned.products
    lines = one.line + factor_constant[:, None, ..., None] * of.line - two.line + c_line.unsqueeze(-1) * c[:, None]
    products = one.products.sub_(two.products).addcmul_(c_products.unsqueeze(-1), c[:, None])
    return with_cubic(found, inputs, triples.Cubic(scale[:, None] * lines, products.mul_(scale[:, None])))
