"""Balls around the embeddings of some tokens; the other tokens do not move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.sets.arguments import Array, batch_of, first_true, radius_of, tensor_of
from vertex_softmax.sets.base import InputSet, range_text
from vertex_softmax.sets.rounding import around

if TYPE_CHECKING:
    from vertex_softmax.sets.loading import Model


@dataclass(frozen=True, eq=False, init=False, repr=False)
class TokenBall(InputSet):
    """|x' − embeddings| ≤ eps on the chosen tokens, x' = embeddings on the others: contained in [lower, upper].

    embeddings (batch, tokens, d). eps as for `LinfBall`, rounded outwards in the same way. tokens: which may move, as
    indices (the same for every input) or as a mask (tokens) or (batch, tokens); None is all. Kept as a mask.
    ids (batch, tokens), integers: what a module that takes ids is given. Then the embeddings have to be the rows of its
    table at these ids, before the module scales them or adds anything; `certify` compares them. `TokenBall.of` looks
    them up:

        ball = TokenBall.of(model, ids, 0.01, tokens=[1, 3])
    """

    embeddings: Tensor
    eps: Tensor
    tokens: Tensor
    ids: Tensor | None

    def __init__(
        self,
        embeddings: Array,
        eps: float | Array,
        tokens: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_] | Tensor | None = None,
        ids: NDArray[np.integer] | Tensor | None = None,
    ) -> None:
        point = batch_of("embeddings", embeddings)
        if point.dim() != 3:
            raise InvalidValueError(f"embeddings has shape {tuple(point.shape)}; it must be (batch, tokens, d)")
        mask = _mask(tokens, point)
        radius = radius_of(eps, point)
        lower, upper = around("embeddings", point, radius.where(mask[..., None], 0.0))
        self._set(embeddings=point, eps=radius, tokens=mask, ids=_ids(ids, point), lower=lower, upper=upper)

    @classmethod
    def of(
        cls,
        model: Model,
        ids: NDArray[np.integer] | Tensor,
        eps: float | Array,
        tokens: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_] | Tensor | None = None,
    ) -> TokenBall:
        """The set around the rows of the table that a module looks ids (batch, tokens) up in, whatever it is called.

        The rows are those of the table itself; where a module scales them (Gemma, BART, Pegasus), eps is before the
        scale. `model`: a torch.nn.Module in eval mode that takes ids, or what `sets.loading.read` made of one.
        """
        from vertex_softmax.sets.loading import read

        found = token_ids(ids)
        if found.dim() != 2 or 0 in found.shape:
            raise InvalidValueError(
                f"ids has shape {tuple(found.shape)}; it must be (batch, tokens), neither of them 0: use ids[None] for "
                "one sentence"
            )
        return cls(read(model).rows(found).to(found.device), eps, tokens, found)

    @property
    def centre(self) -> Tensor:
        """The embeddings."""
        return self.embeddings

    def _said(self) -> str:
        moving = range_text(self.tokens.sum(-1))
        return f"eps {range_text(self.eps[self.tokens])}, {moving} of {self.tokens.shape[1]} tokens move"

    def _pick(self, index: Tensor) -> TokenBall:
        ids = None if self.ids is None else self.ids[index]
        return TokenBall(self.embeddings[index], self.eps[index], self.tokens[index], ids)


def _mask(tokens: object, x: Tensor) -> Tensor:
    """The tokens that may move as a mask (batch, tokens)."""
    batch, count = x.shape[:2]
    if tokens is None:
        return torch.ones(batch, count, dtype=torch.bool, device=x.device)
    found = tensor_of("tokens", tokens)
    if found.dtype == torch.bool:
        if tuple(found.shape) not in {(count,), (batch, count)}:
            raise InvalidValueError(
                f"tokens is a mask of shape {tuple(found.shape)}; it must be ({count},) or ({batch}, {count})"
            )
        return found.to(x.device).broadcast_to(batch, count).clone()
    if found.numel() == 0:
        found = found.long()
    if found.is_floating_point() or found.dim() != 1:
        raise InvalidTypeError(
            f"tokens has dtype {str(found.dtype).removeprefix('torch.')} and shape {tuple(found.shape)}; "
            "pass a list of indices, or a mask of bool"
        )
    if (at := first_true((found < -count) | (found >= count))) is not None:
        raise InvalidValueError(f"tokens[{at[0]}] is {int(found[at])}, out of range: there are {count} tokens")
    mask = torch.zeros(batch, count, dtype=torch.bool, device=x.device)
    mask[:, found.long().to(x.device)] = True
    return mask


def _ids(ids: object, x: Tensor) -> Tensor | None:
    if ids is None:
        return None
    found = token_ids(ids)
    if found.shape != x.shape[:2]:
        raise InvalidValueError(f"ids has shape {tuple(found.shape)}; the embeddings need {tuple(x.shape[:2])}")
    return found


def token_ids(ids: object) -> Tensor:
    """A copy of token ids, in int64."""
    found = tensor_of("ids", ids)
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise InvalidTypeError(f"ids has dtype {str(found.dtype).removeprefix('torch.')}; ids are integers")
    found = found.to(torch.long, copy=True)  # a uint64 beyond int64 becomes negative
    if (at := first_true(found < 0)) is not None:
        raise InvalidValueError(f"ids is {int(found[at])} at index {at}; ids are rows of a table, counted from 0")
    return found
