"""`radius`: the largest certified ε of every input, by bisection; runs/radius.py does the same with a journal.

Invariant: a radius is 0, or an ε whose ball `certify` verified; all smaller balls lie inside it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import method_named
from vertex_softmax.runs.attack import attack
from vertex_softmax.runs.bisection import CHEAP, STRONGER, Bisection, Bracket, Holds
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.classes import Asked
from vertex_softmax.sets import InputSet, LinfBall, LpBall, TokenBall
from vertex_softmax.sets.arguments import Array, tensor_of
from vertex_softmax.sets.loading import Loaded, Model, read
from vertex_softmax.sets.lp_ball import order_of

WIDE = Bisection(least=1e-5, most=100.0)
"""The range of ε for balls of any norm."""


# More than six parameters: a public signature, of which the last nine are optional.
@full_precision()
def radius(
    model: Model,
    x: Array | NDArray[np.integer],
    label: int | Sequence[int] | Tensor,
    method: str = "joint",
    *,
    p: float = math.inf,
    clip: tuple[float, float] | None = None,
    per_token: bool = False,
    tokens: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_] | Tensor | None = None,
    targets: int | Sequence[int] | Tensor | None = None,
    position: int | None = None,
    options: Options | None = None,
    how: Bisection | None = None,
) -> Tensor:
    """The largest certified radius of the balls around inputs x (batch, *input shape), (batch,) in float64.

    0 for an input that is misclassified, or not certified at the smallest ε that is tried. Balls are those of
    `LinfBall` (p = inf) or `LpBall` (p = 1, 2), with `clip` and `per_token`. If x are token ids, integers (batch,
    tokens), balls are those of `TokenBall` around their embeddings, in which `tokens` may move, each in its own ball.
    `label`, `method`, `targets`, `position` and `options` are those of `certify`.

    An attack bounds each radius from above and `crown` from below, before a stronger method is asked. `how`: the range
    of ε (from 1e-5 to 100) and the precision (5 %).

        vx.radius(model, images, labels, "crown", p=2, clip=(0, 1))
    """
    if how is not None and not isinstance(how, Bisection):
        raise InvalidTypeError(f"how is a {type(how).__name__}; give vertex_softmax.runs.bisection.Bisection")
    how = how or WIDE
    method_named(method)
    original = read(model)
    balls = _Balls(original, tensor_of("x", x), order_of(p), clip, per_token, tokens)
    count = len(balls.at(None, torch.zeros(balls.count, dtype=torch.float64)))
    asked = Asked.of(label, targets, position, count)
    quick = dataclasses.replace(options or Options(), goal=0.0)

    def kept(which: Tensor, eps: Tensor) -> Tensor:
        mine = asked.at(which.tolist())
        found = attack(
            original,
            balls.at(which, eps),
            mine.labels,
            targets=mine.targets_given(),
            position=position,
            steps=how.attack_steps,
            restarts=how.attack_restarts,
        )
        return found.worst.cpu() >= 0  # a tie does not count as misclassified

    def certified_by(name: str) -> Holds:
        def certified(which: Tensor, eps: Tensor) -> Tensor:
            mine = asked.at(which.tolist())
            found = certify(
                original,
                balls.at(which, eps),
                mine.labels,
                name,
                options=quick,
                attack=None,
                targets=mine.targets_given(),
                position=position,
            )
            return found.certified.cpu()

        return certified

    most = Bracket.of(count).narrow(how, kept).high
    low = torch.zeros_like(most)
    for name in (CHEAP, method) if method in STRONGER else (method,):
        low = Bracket(low, most.clone()).narrow(how, certified_by(name)).low
    return low


@dataclasses.dataclass(frozen=True, eq=False)
class _Balls:
    """The balls around some inputs, as functions of their radii."""

    model: Loaded
    x: Tensor
    """(batch, *input shape), or ids (batch, tokens)"""
    p: float
    clip: tuple[float, float] | None
    per_token: bool
    tokens: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_] | Tensor | None

    def __post_init__(self) -> None:
        ids = not self.x.is_floating_point()
        if ids and (self.clip is not None or self.per_token):
            raise InvalidValueError(
                "x has integers, which are token ids: their balls are those of TokenBall, one for each token, without "
                "clip and per_token"
            )
        if not ids and self.tokens is not None:
            raise InvalidValueError("tokens are for token ids, and x has floats; pass ids (batch, tokens)")

    @property
    def count(self) -> int:
        """How many inputs there are."""
        return len(self.x) if self.x.dim() else 0

    def at(self, which: Tensor | None, eps: Tensor) -> InputSet:
        """The balls of the inputs with these indices, all if None, with one radius each."""
        index = torch.arange(self.count) if which is None else which
        x, eps = self.x[index.to(self.x.device)], eps.to(self.x.device)
        if not self.x.is_floating_point():
            tokens = self.tokens
            mask = None if tokens is None else tensor_of("tokens", tokens)
            if mask is not None and mask.dtype == torch.bool and mask.dim() == 2 and len(mask) == self.count:
                tokens = mask[index]
            return TokenBall.of(self.model, x, eps, tokens, p=self.p)
        if self.p == math.inf and not self.per_token:
            return LinfBall(x, eps, clip=self.clip)
        return LpBall(x, eps, self.p, clip=self.clip, per_token=self.per_token)
