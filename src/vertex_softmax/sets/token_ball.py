"""Balls around the embeddings of some tokens, one for each of them; the embeddings of the other tokens are fixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.sets.arguments import Array, batch_of, first_true, radius_of, tensor_of
from vertex_softmax.sets.base import InputSet, range_text
from vertex_softmax.sets.lp_ball import LpBall, order_of
from vertex_softmax.sets.region import Region
from vertex_softmax.sets.rounding import around
from vertex_softmax.sets.token_ids import token_ids

if TYPE_CHECKING:
    from vertex_softmax.sets.loading import Model


class TokenBall(InputSet):
    """All x' with |(x' − embeddings) / eps|_p ≤ 1 on each of the chosen tokens and x' = embeddings on the others.

    embeddings: (batch, tokens, d). eps: as for `LinfBall`, rounded outwards in the same way, so that [lower, upper]
    contains the real set. p: the norm, 1, 2 or inf; every token has a ball of its own, as with `per_token` of `LpBall`,
    and for p = 1 and 2 the set is the real one and `contains` is exact, as there. tokens: those that may move, as
    indices (the same for every input) or as a mask (tokens) or (batch, tokens); None means all. The attribute is always
    a mask (batch, tokens).
    ids: integers (batch, tokens), for a module that takes token ids. The embeddings must then be the rows of its
    embedding table at these ids, before the module scales them or adds anything; `certify` compares them.
    `TokenBall.of` looks them up:

        ball = TokenBall.of(model, ids, 0.01, tokens=[1, 3])
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("lower", "upper", "embeddings", "eps", "tokens", "ids", "p")

    _embeddings: Tensor
    _eps: Tensor
    _tokens: Tensor
    _ids: Tensor | None
    _p: float

    def __init__(
        self,
        embeddings: Array,
        eps: float | Array,
        tokens: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_] | Tensor | None = None,
        ids: NDArray[np.integer] | Tensor | None = None,
        *,
        p: float = math.inf,
    ) -> None:
        point = batch_of("embeddings", embeddings)
        if point.dim() != 3:
            raise InvalidValueError(f"embeddings has shape {tuple(point.shape)}; it must be (batch, tokens, d)")
        mask = _mask(tokens, point)
        radius = radius_of(eps, point)
        lower, upper = around("embeddings", point, radius.where(mask[..., None], 0.0))
        ends = {"lower": lower, "upper": upper}
        self._set(embeddings=point, eps=radius, tokens=mask, ids=_ids(ids, point), p=order_of(p), **ends)

    @classmethod
    def of(
        cls,
        model: Model,
        ids: NDArray[np.integer] | Tensor,
        eps: float | Array,
        tokens: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_] | Tensor | None = None,
        *,
        p: float = math.inf,
    ) -> TokenBall:
        """The set around the embeddings of ids (batch, tokens), looked up in the model's own embedding table.

        The embeddings are the rows of the table itself: if the module scales them (Gemma, BART, Pegasus), eps applies
        before the scaling. `model`: a torch.nn.Module in eval mode that takes ids, or the result of
        `vertex_softmax.sets.loading.read` for one.
        """
        from vertex_softmax.sets.loading import read

        rows = token_ids(ids)
        if rows.dim() != 2 or 0 in rows.shape:
            raise InvalidValueError(
                f"ids has shape {tuple(rows.shape)}; it must be (batch, tokens), neither of them 0: use ids[None] for "
                "one sentence"
            )
        return cls(read(model).rows(rows).to(rows.device), eps, tokens, rows, p=p)

    @property
    def embeddings(self) -> Tensor:
        """The embeddings that the balls are around, (batch, tokens, d); a copy."""
        return self._embeddings.clone()

    @property
    def eps(self) -> Tensor:
        """The radius of every number of a token that may move, (batch, tokens, d); a copy."""
        return self._eps.clone()

    @property
    def tokens(self) -> Tensor:
        """Which tokens may move, a mask (batch, tokens); a copy."""
        return self._tokens.clone()

    @property
    def ids(self) -> Tensor | None:
        """The token ids, (batch, tokens), or None; a copy."""
        return None if self._ids is None else self._ids.clone()

    @property
    def centre(self) -> Tensor:
        """The embeddings that the balls are around, (batch, tokens, d); a copy."""
        return self.embeddings

    @property
    def p(self) -> float:
        """The order of the norm: 1, 2 or inf."""
        return self._p

    def region(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Region:
        """The sets as bounds see them, rounded outward to a precision."""
        return super().region(shape, dtype, device) if self._boxes else self._balls.region(shape, dtype, device)

    def contains(self, x: Tensor) -> Tensor:
        """Whether each x lies in its set: (batch, tokens, d) → bool, (batch). NaN lies in no set.

        Without tolerance: in [lower, upper] for p = inf, and exactly in the balls for p = 1 and 2.
        """
        return super().contains(x) if self._boxes else self._balls.contains(x)

    def project(self, x: Tensor) -> Tensor:
        """Points of the sets near x, (batch, k, tokens, d) both, as `LpBall` has them; `contains` is True of each."""
        return super().project(x) if self._boxes else self._balls.project(x)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Random points of the sets, (batch, count, tokens, d), as `LpBall` has them; `contains` is True of each."""
        return super().sample(count, generator) if self._boxes else self._balls.sample(count, generator)

    def step(self, x: Tensor, gradient: Tensor, share: float) -> Tensor:
        """One step of an attack from points x (batch, k, tokens, d) of the sets, as `LpBall` makes it."""
        return super().step(x, gradient, share) if self._boxes else self._balls.step(x, gradient, share)

    @property
    def _boxes(self) -> bool:
        """Whether the balls are those of the maximum norm, which are boxes."""
        return self._p == math.inf

    @property
    def _balls(self) -> LpBall:
        """The same sets without ids: one ball for every token, of radius 0 where it may not move."""
        return LpBall(self._embeddings, self._eps.where(self._tokens[..., None], 0.0), self._p, per_token=True)

    def _summary(self) -> str:
        moving = range_text(self._tokens.sum(-1))
        order = "" if self._boxes else f"p {self._p:g}, "
        return f"{order}eps {range_text(self._eps[self._tokens])}, {moving} of {self._tokens.shape[1]} tokens move"


def _mask(tokens: object, x: Tensor) -> Tensor:
    """The tokens that may move, given as indices, as a mask or as None (all), as a mask (batch, tokens)."""
    batch, count = x.shape[:2]
    if tokens is None:
        return torch.ones(batch, count, dtype=torch.bool, device=x.device)
    chosen = tensor_of("tokens", tokens)
    if chosen.dtype == torch.bool:
        if tuple(chosen.shape) not in {(count,), (batch, count)}:
            raise InvalidValueError(
                f"tokens is a mask of shape {tuple(chosen.shape)}; it must be ({count},) or ({batch}, {count})"
            )
        return chosen.to(x.device).broadcast_to(batch, count).clone()
    if chosen.numel() == 0:
        chosen = chosen.long()
    if chosen.is_floating_point() or chosen.dim() != 1:
        raise InvalidTypeError(
            f"tokens has dtype {str(chosen.dtype).removeprefix('torch.')} and shape {tuple(chosen.shape)}; "
            "pass a list of indices, or a mask of bool"
        )
    if (index := first_true((chosen < -count) | (chosen >= count))) is not None:
        raise InvalidValueError(f"tokens[{index[0]}] is {int(chosen[index])}, out of range: there are {count} tokens")
    mask = torch.zeros(batch, count, dtype=torch.bool, device=x.device)
    mask[:, chosen.long().to(x.device)] = True
    return mask


def _ids(ids: object, x: Tensor) -> Tensor | None:
    """Token ids (batch, tokens) that fit the embeddings x (batch, tokens, d), copied; None stays None."""
    if ids is None:
        return None
    rows = token_ids(ids)
    if rows.shape != x.shape[:2]:
        raise InvalidValueError(f"ids has shape {tuple(rows.shape)}; the embeddings need {tuple(x.shape[:2])}")
    return rows
