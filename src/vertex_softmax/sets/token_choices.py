"""Sentences some of whose words may be replaced: every combination of given words, and nothing between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.sets.base import InputSet, range_text
from vertex_softmax.sets.choice_region import ChoiceRegion
from vertex_softmax.sets.region import Region, placed
from vertex_softmax.sets.token_ids import token_ids

if TYPE_CHECKING:
    from vertex_softmax.sets.loading import Model

Choices: TypeAlias = Mapping[int, Sequence[int]]
"""By position: the ids that may stand there."""


class TokenChoices(InputSet):
    """All sentences with one of the given words at every position that has a list, and the word itself elsewhere.

        words = TokenChoices(model, ids, {3: [17, 204, 9], 5: [88, 3]})

    model: a torch.nn.Module in eval mode that takes ids, or the result of `vertex_softmax.sets.loading.read` for one.
    ids: integers (batch, tokens). choices: for one sentence a mapping from positions to lists of ids, each with the id
    that stands there; for several sentences a list of such mappings. The set is finite: it holds the embeddings of the
    combinations, rows of the model's own table, and no point between them. `certify` also compares the module at
    combinations of *ids* with its graph at their embeddings, since a module may read the ids elsewhere, as for masks.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("lower", "upper", "ids", "options", "allowed", "vectors")

    _ids: Tensor
    _options: Tensor
    _allowed: Tensor
    _vectors: Tensor

    def __init__(self, model: Model, ids: NDArray[np.integer] | Tensor, choices: Choices | Sequence[Choices]) -> None:
        from vertex_softmax.sets.loading import read

        rows = token_ids(ids)
        if rows.dim() != 2 or 0 in rows.shape:
            raise InvalidValueError(
                f"ids has shape {tuple(rows.shape)}; it must be (batch, tokens), neither of them 0: use ids[None] for "
                "one sentence"
            )
        lists = _lists(choices, rows)
        most = max((len(each) for row in lists for each in row.values()), default=1)
        options = rows.unsqueeze(-1).repeat(1, 1, most)  # where a list is shorter: the word itself, not allowed
        allowed = torch.zeros(options.shape, dtype=torch.bool)
        allowed[..., 0] = True
        for i, row in enumerate(lists):
            for position, each in row.items():
                options[i, position, : len(each)] = torch.tensor(each)
                allowed[i, position, : len(each)] = True
        table = read(model)
        vectors = torch.stack([table.rows(options[..., c].cpu()) for c in range(most)], 2)  # (batch, tokens, most, d)
        out = ~allowed.unsqueeze(-1)
        self._set(
            ids=rows,
            options=options,
            allowed=allowed.to(rows.device),
            vectors=vectors.to(rows.device),
            lower=vectors.masked_fill(out, torch.inf).amin(2).to(rows.device),
            upper=vectors.masked_fill(out, -torch.inf).amax(2).to(rows.device),
        )

    @property
    def ids(self) -> Tensor:
        """The sentences themselves, (batch, tokens); a copy."""
        return self._ids.clone()

    @property
    def centre(self) -> Tensor:
        """The embeddings of the sentences themselves, (batch, tokens, d)."""
        return self._vectors[:, :, 0].clone()

    @property
    def choices(self) -> tuple[dict[int, tuple[int, ...]], ...]:
        """For each sentence, by position: the ids that may stand there, the word itself first."""
        found = []
        for options, allowed in zip(self._options, self._allowed, strict=True):
            moving = (allowed.sum(-1) > 1).nonzero().flatten().tolist()
            found.append({t: tuple(options[t][allowed[t]].tolist()) for t in moving})
        return tuple(found)

    @property
    def combinations(self) -> tuple[int, ...]:
        """How many sentences each set has."""
        return tuple(math.prod(row) for row in self._allowed.sum(-1).tolist())

    def contains(self, x: Tensor) -> Tensor:
        """Whether each x is a combination: (batch, tokens, d) → bool, (batch). Exact; NaN is in no set."""
        if tuple(x.shape) != self.shape:
            raise InvalidValueError(f"x has shape {tuple(x.shape)}; the set has {self.shape}")
        same = (x.unsqueeze(2) == self._vectors.to(x.device)).all(-1) & self._allowed.to(x.device)
        return same.any(-1).all(-1)

    def region(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Region:
        """The sets as bounds see them; an error if a precision does not hold the embeddings exactly."""
        if bool((self._vectors.to(dtype).double() != self._vectors).any()):
            name = str(dtype).removeprefix("torch.")
            raise InvalidValueError(f"{name} does not hold the embeddings exactly; use dtype=torch.float64")
        batch, tokens, _, size = self._vectors.shape
        moving = (self._allowed.sum(-1) > 1).any(0).nonzero().flatten().cpu()
        whole = placed(self._vectors[:, :, 0].to(device, dtype), shape)
        if whole.shape[0] != batch and batch != 1:
            raise InvalidValueError(
                f"the network takes {batch} sentences as one input; give one sentence to a set of choices"
            )
        members = torch.arange(tokens * size).reshape(tokens, size)[moving].to(device)
        fixed = whole.clone().flatten(1)
        fixed[:, members.flatten()] = 0.0
        moving = moving.to(self._vectors.device)
        return ChoiceRegion(
            fixed.reshape(whole.shape),
            self._vectors[:, moving].to(device, dtype),
            self._allowed[:, moving].to(device),
            members,
        )

    def cover(self, i: int) -> Tensor:
        """Combinations of ids of sentence i, (k, tokens): every choice stands in one at least; and two more."""
        columns = self._options[i].mT.cpu()
        some = self[i].sample(2, torch.Generator().manual_seed(0))
        whole = torch.cat([columns, self[i].ids_of(some)[0].cpu()])
        return torch.tensor(list(dict.fromkeys(map(tuple, whole.tolist()))))

    def only(self, ids: Tensor) -> TokenChoices:
        """The one combination of each set with these ids, (batch, tokens), as a set of its own."""
        vectors = self.look_up(ids.unsqueeze(1).to(self._ids.device))[:, 0].unsqueeze(2)
        found = TokenChoices.__new__(TokenChoices)
        rows = ids.to(self._ids)
        there = torch.ones_like(rows, dtype=torch.bool).unsqueeze(-1)
        ends = {"lower": vectors[:, :, 0].clone(), "upper": vectors[:, :, 0].clone()}
        found._set(ids=rows, options=rows.unsqueeze(-1), allowed=there, vectors=vectors, **ends)
        return found

    def each(self, size: int = 1024) -> Iterator[Tensor]:
        """All combinations of the one sentence of the set, as ids (at most `size`, tokens); itself first."""
        if len(self) != 1:
            raise InvalidValueError(f"the set holds {len(self)} sentences; enumerate one at a time: words[i].each()")
        lists = [options[allowed].tolist() for options, allowed in zip(self._options[0], self._allowed[0], strict=True)]
        every = itertools.product(*lists)
        while some := list(itertools.islice(every, size)):
            yield torch.tensor(some)

    def look_up(self, ids: Tensor) -> Tensor:
        """The embeddings (batch, k, tokens, d) of combinations of ids (batch, k, tokens); an error if one is none."""
        same = (ids.unsqueeze(-1) == self._options.unsqueeze(1)) & self._allowed.unsqueeze(1)
        if not bool(same.any(-1).all()):
            index = tuple((~same.any(-1)).nonzero()[0].tolist())
            raise InvalidValueError(f"ids is {int(ids[index])} at index {index}, which is no choice at that position")
        return self._taken(same.to(torch.int8).argmax(-1))

    def ids_of(self, x: Tensor) -> Tensor:
        """The ids (batch, k, tokens) of the combinations that are nearest to points x (batch, k, tokens, d).

        x may also be one point for each sentence, (batch, tokens, d), as `counterexamples` of a result: then the ids
        are (batch, tokens). A point with NaN, as that of a sentence without a counterexample, has the ids −1.
        """
        if x.dim() == 3:
            return self.ids_of(x.unsqueeze(1))[:, 0]
        nearest = self._nearest(x)[..., None].to(self._options.device)
        ids = self._options.unsqueeze(1).expand(-1, x.shape[1], -1, -1).gather(-1, nearest)[..., 0]
        return ids.masked_fill(x.isnan().any(-1).any(-1, keepdim=True).to(ids.device), -1)

    def project(self, x: Tensor) -> Tensor:
        """The nearest combinations to points x (batch, k, tokens, d), token by token in the Euclidean norm."""
        return self._taken(self._nearest(x))

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Random combinations, (batch, count, tokens, d): every choice of a token is equally likely."""
        batch, tokens, most, _ = self._vectors.shape
        draws = torch.rand(batch, count, tokens, most, generator=generator).to(self._allowed.device)
        return self._taken(draws.masked_fill(~self._allowed.unsqueeze(1), -1.0).argmax(-1))

    def step(self, x: Tensor, gradient: Tensor, share: float) -> Tensor:
        """Combinations with other words where that lowers the margin most, to first order.

        x: (batch, k, tokens, d); gradient: of the margin at x, of the same shape; share: which part of the words that
        may be replaced change at most, at least one word.
        """
        now = self._nearest(x)
        values = torch.einsum("bktd,btcd->bktc", gradient.to(self._vectors), self._vectors)
        values = values.masked_fill(~self._allowed.unsqueeze(1), torch.inf)
        least, best = values.min(-1)
        gain = values.gather(-1, now[..., None])[..., 0] - least  # (batch, k, tokens), ≥ 0
        moving = (self._allowed.sum(-1) > 1).sum(-1)  # (batch)
        count = (share * moving).ceil().clamp(min=1).long()
        rank = gain.argsort(-1, descending=True).argsort(-1)
        change = (rank < count[:, None, None]) & (gain > 0)
        return self._taken(torch.where(change, best, now))

    def _nearest(self, x: Tensor) -> Tensor:
        """The number of the choice nearest to each token of x: (batch, k, tokens, d) → (batch, k, tokens)."""
        if x.dim() != 4 or (x.shape[0], *x.shape[2:]) != self.shape:
            raise InvalidValueError(
                f"x has shape {tuple(x.shape)}; points of the set are (batch, k, tokens, d) with {self.shape} for one"
            )
        apart = torch.stack(
            [(x - each.unsqueeze(1)).square().sum(-1) for each in self._vectors.to(x.device).unbind(2)], -1
        )
        return apart.masked_fill(~self._allowed.to(x.device).unsqueeze(1), torch.inf).argmin(-1)

    def _taken(self, which: Tensor) -> Tensor:
        """The combinations with these choices: (batch, k, tokens) → (batch, k, tokens, d)."""
        index = which.transpose(1, 2)[..., None].expand(-1, -1, -1, self._vectors.shape[-1])
        return self._vectors.gather(2, index.to(self._vectors.device)).transpose(1, 2).contiguous()

    def _summary(self) -> str:
        moving = range_text((self._allowed.sum(-1) > 1).sum(-1))
        count = range_text(torch.tensor(self.combinations, dtype=torch.float64))
        return f"{moving} of {self.shape[1]} words replaceable, {count} combinations"


def _lists(choices: object, ids: Tensor) -> list[dict[int, list[int]]]:
    """For each sentence, by position, the ids that may stand there, the word itself first; checked."""
    rows: Sequence[object] = [choices] if isinstance(choices, Mapping) else choices  # type: ignore[assignment]
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not all(isinstance(row, Mapping) for row in rows):
        raise InvalidTypeError(
            "choices is a mapping from positions to lists of ids, such as {3: [17, 204]}, or a list of them, one for "
            "each sentence"
        )
    if len(rows) != len(ids):
        raise InvalidValueError(
            f"the number of mappings of choices is {len(rows)}, and there are {len(ids)} sentences; give a list with a "
            "mapping for each"
        )
    return [_checked(row, ids[i], f"choices[{i}]" if len(rows) > 1 else "choices") for i, row in enumerate(rows)]  # type: ignore[arg-type]


def _checked(row: Mapping[object, object], ids: Tensor, name: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for position, given in row.items():
        if isinstance(position, bool) or not isinstance(position, (int, np.integer)):
            raise InvalidTypeError(f"{name} has the position {position!r}; positions are integers, from 0")
        at = int(position)
        if not 0 <= at < len(ids):
            raise InvalidValueError(f"{name} has the position {at}; there are {len(ids)} tokens, counted from 0")
        if isinstance(given, Sequence) and len(given) == 0:
            raise InvalidValueError(f"{name}[{at}] is empty; give at least the word itself, or leave the position out")
        each = token_ids(given, f"{name}[{at}]")
        if each.dim() != 1 or each.numel() == 0:
            raise InvalidValueError(
                f"{name}[{at}] is {given!r}; give a list with at least one id, or leave the position out"
            )
        numbers, own = each.tolist(), int(ids[at])
        if len(set(numbers)) != len(numbers):
            twice = next(n for n in numbers if numbers.count(n) > 1)
            raise InvalidValueError(f"{name}[{at}] has the id {twice} twice; give every choice once")
        if own not in numbers:
            raise InvalidValueError(
                f"{name}[{at}] does not have the word itself, id {own}: add it, since the sentence is in its own set"
            )
        found[at] = [own, *(n for n in numbers if n != own)]
    return found
