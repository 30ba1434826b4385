"""The last norm: where the output is an affine function of one row y/σ(y), an objective is η·y/σ + κ with κ ≥ κ₀, and

  η·y/σ + κ ≥ t + (η·y + μ σ)/σ,  μ = κ₀ − t, for every number t:

it is at least t + ℓ/σ if the numerator is at least ℓ, and at least t if ℓ ≥ 0, whatever σ is. The numerator is bounded
by one functional of the form of y, whose centre is c and y' = y − c:
- for μ ≥ 0 by σ(y) ≥ g·y + √eps v, for any g and v ≥ 0 with d |g|² + v² ≤ 1 (Cauchy and Schwarz: σ(y) is the length of
  (y/√d, √eps)); a good g is c/(d σ(c)), with which the plane touches σ at c;
- for μ < 0 by σ ≤ (σ²/s + s)/2 for any s > 0, where d σ² = 2 c·y − |c|² + |y'|² + d·eps.
That a coefficient η + μ g is rounded is counted by the size of y. A good t is the one with ℓ = 0: some are tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..passes import Pass
from ..rounding import MORE, Array, ProvedInterval, down, rounding
from . import propagation
from .ellipsoids import around
from .forms import LOST, Form, grown
from .norms import STORED

if TYPE_CHECKING:
    from ..network import Known

STEPS = 8
"""How many numbers t are tried for each objective."""
SHORT = 1 - 2.0**-40
"""By this factor g is shorter than it might be, so that its length is at most 1 in spite of rounding."""
LEAST = 1e-100
"""s is at least this."""


def lowest(known: Known, A: Array, aims: Array) -> Array:
    """Lower bounds of Σ A·output over the set, (S, *shape) → (S,), best if they are near `aims` (S,), the first t.

    −∞ for objectives on several rows, and for all if the output is not an affine function of one norm.
    """
    found = np.full(len(A), -np.inf)
    if known.before_norm is None:
        return found
    number, form = known.before_norm
    back = _ThroughAffineOps(known, number, A)
    d = form.centre.shape[-1]
    eta = back.eta.reshape(len(A), -1, d)
    used = (eta != 0).any(-1)  # (S, rows); a coefficient that is no number counts as used
    sigma = known.norm(number).sigma
    for row in map(int, np.flatnonzero(used.any(0))):
        mine = np.flatnonzero(used[:, row] & (used.sum(-1) == 1))
        if not len(mine):
            continue
        y = _row(form, row)
        known.charge(STEPS * propagation.work(y, len(mine)) + 8 * d**3)
        of_row = ProvedInterval(sigma.lo.ravel()[row], sigma.hi.ravel()[row])
        numerators = bounds_of_sigma(y, known.nodes[number].eps)
        found[mine] = quotients(y, numerators, of_row, eta[mine, row], back.lo[mine], aims[mine])
    return found


def _row(form: Form, row: int) -> Form:
    """One of the rows of a form, (d,)."""
    dims, d = form.centre.ndim, form.centre.shape[-1]
    return form.moved(lambda x: x.reshape(*x.shape[: x.ndim - dims], -1, d)[..., row, :])


class _ThroughAffineOps(Pass):
    """A backward pass that ends at the last norm: Σ A·output ≥ Σ η·norm + lo."""

    def __init__(self, known: Known, norm: int, A: Array) -> None:
        self.eta = np.zeros((len(A), *known.nodes[norm].shape))
        super().__init__(known, len(known.nodes) - 1, A)

    def _normalize(self, number: int, A: Array, _: dict[str, Array]) -> None:  # noqa: ARG002
        self.eta = A


@dataclass(frozen=True, kw_only=True, eq=False)
class SigmaBounds:
    """below·y + below_constant ≤ σ(y) ≤ above·y + above_constant, where `above` is c/(d s), rounded four times."""

    below: Array
    """(d,), exact"""
    below_constant: Array
    above: Array
    """(d,)"""
    above_constant: Array
    middle: Array
    """σ(c), roughly"""


def bounds_of_sigma(y: Form, eps: float) -> SigmaBounds:
    """The bounds of σ over the form of a row, (d,)."""
    c, d = y.centre, y.centre.shape[-1]
    stored = ProvedInterval(np.array(eps)) * ProvedInterval(1 - STORED, 1 + STORED)
    square = ProvedInterval(c).square().sum()
    middle = np.sqrt(square.hi / d + eps)
    g = np.nan_to_num(c / (d * middle), nan=0.0, posinf=0.0, neginf=0.0) * SHORT
    length = ProvedInterval(g).square().sum() * d
    left = (1 - ProvedInterval(length.hi)).lo
    below = (stored.sqrt() * ProvedInterval(np.maximum(left, 0)).sqrt()).lo
    farthest = np.fmin(np.square(around(y).farthest()), np.square(y.radius).sum(-1) * grown(d)) * MORE
    s = np.maximum(np.sqrt(np.maximum((square.lo + farthest) / d + eps, 0)), LEAST)
    over = (ProvedInterval(farthest) - square + stored * d) / (ProvedInterval(s) * (2 * d)) + ProvedInterval(s) / 2
    return SigmaBounds(
        below=g,
        below_constant=np.where(left >= 0, np.maximum(below, 0), -np.inf),
        above=c / (d * s),
        above_constant=over.hi,
        middle=middle,
    )


# Six: a row, what is known of its σ in two ways, and the objectives.
def quotients(
    y: Form, bounds: SigmaBounds, sigma: ProvedInterval, eta: Array, kappa: Array, aims: Array
) -> Array:  # fmt: skip
    """Lower bounds of η·y/σ(y) + κ over the form of a row (d,): η (S, d), κ and the first t (S,) → (S,)."""
    best, t = np.full(len(eta), -np.inf), aims
    for _ in range(STEPS):
        least = numerators(y, bounds, eta, down(kappa - t))
        divisor = np.where(least >= 0, sigma.hi, sigma.lo)
        found = (ProvedInterval(t) + ProvedInterval(least) / ProvedInterval(divisor)).lo
        best = np.where(found > best, found, best)
        t = np.where(np.isfinite(least / bounds.middle), t + least / bounds.middle, t)
    return np.asarray(best)


def numerators(y: Form, bounds: SigmaBounds, eta: Array, mu: Array) -> Array:
    """Lower bounds of η·y + μ σ(y): η (S, d), μ (S,) → (S,)."""
    convex = mu >= 0
    slope = mu[:, None] * np.where(convex[:, None], bounds.below, bounds.above)
    constant = ProvedInterval(mu) * np.where(convex, bounds.below_constant, bounds.above_constant)
    size = np.abs(eta) + np.abs(slope)
    lost = (rounding(8) * size + (LOST * (1 + np.abs(mu)))[:, None]) @ y.size * (grown(eta.shape[-1]) * MORE)
    return np.asarray((ProvedInterval(propagation.lowest(y, eta + slope)) + constant - lost).lo)
