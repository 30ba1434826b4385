"""The ball rule: rows whose scores and values are affine in an input that lies in one ball, without a box in between.

Invariant: the bound holds for every z of the unit ball, to rounding; its slopes are on the input itself. It applies
only if no two keys depend on the same input number.

The first attention of a class token has such a row: its query is fixed, and each key and value depends on its own
patch. In a box every key can be at its end at once; in a ball all keys share one radius.

With scores s_j^c + g_j·z and values η·v_j = w_j + h_j·z, z in the unit ball, ω the softmax at the centre, v̄ = Σ ω w
and t_j = g_j·z − Σ_k ω_k g_k·z, whose mean by ω is 0,
  Σ_j p_j η·v_j = v̄ + N/D,  N = Σ_j ω_j e^{t_j} (W_j + h_j·z),  W_j = w_j − v̄,  D = Σ_j ω_j e^{t_j} ≥ 1 (Jensen).
Since 0 ≤ e^t − 1 − t ≤ ψ_j t² for ψ_j = (e^τ − 1 − τ)/τ² at τ = max |t_j| ((e^t − 1 − t)/t² increases in t),
  N ≥ ℓ·z − Q(z),  ℓ = Σ_j ω_j (W_j g_j + h_j),  Q(z) = Σ_j c_j t_j² − Σ_j ω_j t_j h_j·z,
  c_j = ω_j ψ_j max(0, |h_j|* − W_j), where |·|* is the dual norm,
so N/D ≥ ℓ·z − n − |ℓ|* (1 − 1/D_high), with n = max(0, max Q) over the ball and D_high = 1 + max Σ ω_j ψ_j t_j².

Q is one quadratic form of all keys together. Over a Euclidean ball its maximum is its largest eigenvalue; as the keys
have no input in common, it depends only on the 2K directions g_j and the part of h_j orthogonal to g_j. Over an ℓ1 ball
it is bounded by the largest coefficient of |g_j|* a_j and |h_j|* b_j, where |a_j|, |b_j| ≤ ρ_j and Σ ρ_j ≤ 1; the
maximum of the convex part is attained at a vertex.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.ops.attention.shared import Scores
from vertex_softmax.ops.contract import AffineForm, Relaxation, Step
from vertex_softmax.ops.lengths import norm
from vertex_softmax.ops.tensors import beside, sum_to
from vertex_softmax.ops.unit_sets import UnitBall

SMALL = 0.1
"""For smaller τ, e^τ − 1 − τ is computed from its series, because the difference would lose digits."""


MOST_KEYS = 64
"""The rule is used for at most this many keys; for each objective and row it takes the eigenvalues of a matrix of twice
that size."""


@dataclasses.dataclass(frozen=True, eq=False)
class BallRow(Relaxation):
    """A bound of the rows of one attention over one ball."""

    scores: Scores
    weights: Tensor
    """ω, (batch, ..., n, K); 0 where a key is masked"""
    g: Tensor
    """(batch, ..., n, K, P): the gradient of the scores along the unit ball's axes, at the P inputs of each key"""
    values: Tensor
    """the values at the centre, (batch, ..., K, d)"""
    matrix: Tensor
    """(batch, ..., K, d, P): the gradient of the values, at the P inputs of each key"""
    places: Tensor
    """(K, P): the indices of the inputs of each key"""
    radius: Tensor
    """(batch, inputs)"""
    ball: UnitBall
    lengths: Tensor
    """|g_j|*, (batch, ..., n, K)"""
    centring: Tensor
    """T, (batch, ..., n, K, K), with t = T a for scores g_j·z = |g_j|* a_j"""
    curve: Tensor
    """ψ_j, (batch, ..., n, K)"""
    third: Tensor
    """1 − 1/D_high, (batch, ..., n)"""

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A step for η = A, (batch, S, ..., n, d): slopes on the input's deviation from its centre, and a constant."""
        weights, g = beside(self.weights), beside(self.g)
        w = A @ beside(self.values).mT  # (batch, S, ..., n, K)
        middle = (weights * w).sum(-1, keepdim=True)
        W = torch.where(weights > 0, w - middle, torch.zeros_like(w))
        h = torch.einsum("bs...nd,b...kdp->bs...nkp", A, self.matrix)
        slope = weights.unsqueeze(-1) * (W.unsqueeze(-1) * g + h)  # ℓ, by keys
        c = weights * beside(self.curve) * (self._reach(h) - W).clamp(min=0)
        n = (self._most_over_euclidean if self.ball is UnitBall.EUCLIDEAN else self._most_over_cross)(c, h)
        loss = n + self._reach(slope.flatten(-2)) * beside(self.third)
        constant = self.scores.marked(middle.squeeze(-1) - loss)
        return Step((None, None), sum_to(constant.unsqueeze(-1), diagonal), start=self._on_inputs(slope, diagonal))

    def _most_over_euclidean(self, c: Tensor, h: Tensor) -> Tensor:
        """max(0, max Q) over the unit ball: c (batch, S, ..., n, K), h (..., K, P) → (batch, S, ..., n)."""
        g, weights, T = beside(self.g), beside(self.weights), beside(self.centring)
        length = beside(self.lengths)
        safe = torch.where(length > 0, length, torch.ones_like(length))
        along = (h * (g / safe.unsqueeze(-1))).sum(-1)  # the part of h_j along g_j
        across = _length(h - along.unsqueeze(-1) * (g / safe.unsqueeze(-1)))
        convex = T.mT @ (c.unsqueeze(-1) * T)
        mixed = T.mT * (weights * along).unsqueeze(-2)  # Σ_j ω_j t_j along_j a_j, between a_k and a_j
        other = T.mT * (weights * across).unsqueeze(-2)  # and between a_k and b_j
        corner = torch.zeros_like(convex)
        top = torch.cat([convex - (mixed + mixed.mT) / 2, -other / 2], -1)
        whole = torch.cat([top, torch.cat([-other.mT / 2, corner], -1)], -2)
        return _largest(whole)

    def _most_over_cross(self, c: Tensor, h: Tensor) -> Tensor:
        """A bound of max(0, max Q) over the ℓ1 ball."""
        weights, T = beside(self.weights), beside(self.centring)
        convex = T.mT @ (c.unsqueeze(-1) * T)
        mixed = T.mT.abs() * (weights * self._reach(h)).unsqueeze(-2)
        mixed = (mixed + mixed.mT) / 2
        apart = convex.diagonal(dim1=-2, dim2=-1).amax(-1) + mixed.flatten(-2).amax(-1)
        return torch.minimum(apart, (convex.abs() + mixed).flatten(-2).amax(-1))

    def _reach(self, x: Tensor) -> Tensor:
        """The dual norm along the last dimension."""
        return _length(x) if self.ball is UnitBall.EUCLIDEAN else x.abs().amax(-1)

    def _on_inputs(self, slope: Tensor, diagonal: int | None) -> Tensor:
        """ℓ as coefficients on the input, (batch, objectives, inputs): slope (batch, S, ..., n, K, P)."""
        batch, inputs = self.radius.shape
        if diagonal is None:
            flat = slope.flatten(2, -3).sum(2)  # (batch, S, K, P)
        else:
            flat = slope.movedim(-3, 2).flatten(1, 2)  # (batch, S · n, ..., K, P)
            flat = flat.flatten(2, -3).sum(2) if flat.dim() > 4 else flat
        flat = flat.flatten(2)
        found = flat.new_zeros(batch, flat.shape[1], inputs)
        found = found.index_add(2, self.places.flatten(), flat)
        return found / torch.where(self.radius > 0, self.radius, torch.ones_like(self.radius)).unsqueeze(1)


def _curve(tau: Tensor) -> Tensor:
    """An upper bound of (e^τ − 1 − τ)/τ² for τ ≥ 0, but for rounding: Σ_{k≥3} τ^k/k! ≤ e^τ τ³/6."""
    small = tau.clamp(max=SMALL)
    large = tau.clamp(min=SMALL)
    return torch.where(tau < SMALL, 0.5 + small / 6 * small.exp(), (torch.expm1(large) - large) / large.square())


def _length(x: Tensor) -> Tensor:
    """The Euclidean norm along the last dimension: not below it where squares underflow, with a derivative at 0."""
    return x.square().sum(-1).clamp(min=x.shape[-1] * torch.finfo(x.dtype).tiny).sqrt()


def _largest(matrix: Tensor) -> Tensor:
    """The largest eigenvalue of symmetric matrices, or 0 if it is negative, raised by more than rounding can have
    lowered it.
    """
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(matrix)
        most, at = values[..., -1], vectors[..., -1]
    along = (at.unsqueeze(-2) @ matrix @ at.unsqueeze(-1)).squeeze((-2, -1))
    # `most` with the eigenvalue's derivative; eigenvectors have none where eigenvalues are equal
    found: Tensor = (along + (most - along.detach())).clamp(min=0)
    size = matrix.abs().sum(-1).amax(-1)
    return found + 64 * matrix.shape[-1] * torch.finfo(matrix.dtype).eps * size


def ball_row(scores: Scores, known: AffineForm, values: AffineForm) -> BallRow | None:
    """The rule, if the set is a single ball that is not a cube, and no two keys depend on the same input; else None.

    `known`: the form of the scores (batch, ..., n, K); `values`: that of the values (batch, ..., K, d).
    """
    unit = known.unit
    if unit.cube or (unit.of is not None and bool((unit.of != unit.of[0]).any())):
        return None
    moving = (values.radius > 0).any(0)
    keys = values.matrix.shape[-3]
    used = (
        (values.matrix != 0).any(-2).flatten(0, -3).any(0) if values.matrix.dim() > 3 else (values.matrix != 0).any(-2)
    )
    by_scores = (known.matrix != 0).flatten(0, -3).any(0)  # (K, inputs)
    used = (used | by_scores) & moving
    if keys > MOST_KEYS or bool((used.sum(0) > 1).any()):
        return None
    places = max(1, int(used.sum(-1).max()))
    order = used.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :places]  # (K, P)
    there = used.gather(-1, order)
    radius = values.radius[:, order] * there  # (batch, K, P)
    lead = (1,) * (known.matrix.dim() - 3)
    g = known.matrix.gather(-1, order.expand(*known.matrix.shape[:-2], keys, places))
    g = g * radius.reshape(-1, *lead, 1, keys, places)
    matrix = values.matrix.gather(-1, order.unsqueeze(-2).expand(*values.matrix.shape[:-1], places))
    matrix = matrix * radius.reshape(-1, *lead, keys, 1, places)
    present = scores.box.upper > -torch.inf
    centre = torch.where(present, known.centre, torch.full_like(known.centre, -torch.inf))
    weights = centre.softmax(-1)
    if bool((present & (weights < torch.finfo(weights.dtype).tiny)).any()):
        return None  # a weight that underflows at the centre may be large elsewhere, where e^t is
    g = torch.where(present.unsqueeze(-1), g, torch.zeros_like(g))
    lengths = norm(g, (-1,)) if unit.ball is UnitBall.EUCLIDEAN else g.abs().amax(-1)
    centring = torch.diag_embed(lengths) - (weights * lengths).unsqueeze(-2)  # row j makes t_j
    tau = norm(centring, (-1,)) if unit.ball is UnitBall.EUCLIDEAN else centring.abs().amax(-1)
    curve = _curve(tau)
    form = centring.mT @ ((weights * curve).unsqueeze(-1) * centring)
    grown = _largest(form) if unit.ball is UnitBall.EUCLIDEAN else form.diagonal(dim1=-2, dim2=-1).amax(-1)
    return BallRow(
        lengths=lengths,
        centring=centring,
        curve=curve,
        third=grown / (1 + grown),
        scores=scores,
        weights=weights,
        g=g,
        values=values.centre,
        matrix=matrix,
        places=order,
        radius=values.radius,
        ball=unit.ball,
    )
