"""Branch and bound over sets of sequences: which parts of all inputs are certainly classified right.

A *part* is a product of token sets S_1 × … × S_k, one for each position. It is decided by one evaluation if

- its last set has one token: scores are bilinear in the query and the key, so for one query token every key's choice of
  a token is a pair (score, value), and the library's exact minimum over choices applies: for every other class the
  margin of every sequence of the part is positive if Σ_j min over S_j of the terms of φ(0) is
  (`vertex_softmax.softmax_box.choices`);
- all its sequences have one label.

Everything here is generic but `label` and `by_label`: they know the task, that is, which parts have one label and how a
part with several is split. `by_halves` splits without knowing more than `label`.

A part that is not decided is split by what its own evaluation says. For a position i and a token c in S_i, the same
terms say whether the part with S_i = {c} is decided. The tokens for which it is are cut off, at every position in turn;
what is left is halved, at the position whose tokens differ most. Parts of at most `smallest` sequences that are not
decided are given up: they only lower the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from examples.max_of_k.network import Numbers, Weights
from numpy.typing import NDArray

from vertex_softmax.softmax_box import softmax_choices_decide, softmax_choices_terms

Part: TypeAlias = NDArray[np.bool_]
"""Which tokens each position may have: (k, vocabulary)."""
Split: TypeAlias = Callable[[Part], list[Part]]
ROUNDING = 1e-9
"""A sum of terms counts as positive if it exceeds this share of its terms' sizes. Scores and values are rounded here,
so this is no proof: the checker's arithmetic is."""


@dataclass
class Found:
    """What a search did."""

    proved: list[Part] = field(default_factory=list)
    """Disjoint parts in which every sequence is classified right."""
    evaluations: int = 0
    """Parts whose bound was evaluated, those that were cut off by another's terms included."""
    split_by_label: int = 0
    """Parts that were split because they have several labels or query tokens; nothing was evaluated there."""

    def sequences(self) -> int:
        """How many sequences the proved parts have together."""
        return sum(size(part) for part in self.proved)


def size(part: Part) -> int:
    """How many sequences a part has."""
    return math.prod(int(n) for n in part.sum(1))


def label(part: Part) -> int | None:
    """The label of every sequence of a part, if there is one: the largest token."""
    tokens = np.arange(part.shape[1])
    least, most = (max(int(pick(tokens[one])) for one in part) for pick in (np.min, np.max))
    return most if least == most else None


def by_label(part: Part) -> list[Part]:
    """Split a part by its largest token, at the first position that has it."""
    most = int(part.any(0).nonzero()[0][-1])
    position = int(part[:, most].argmax())
    one = np.zeros(part.shape[1], dtype=np.bool_)
    one[most] = True
    return divided(part, position, one)


def by_halves(part: Part) -> list[Part]:
    """Split the largest set of a part into a lower and an upper half."""
    position = int(part.sum(1).argmax())
    tokens = part[position].nonzero()[0]
    lower = np.zeros(part.shape[1], dtype=np.bool_)
    lower[tokens[: len(tokens) // 2]] = True
    return divided(part, position, lower)


def divided(part: Part, position: int, inside: NDArray[np.bool_]) -> list[Part]:
    """The part with the position's tokens `inside`, and the part with its others; empty ones are left out."""
    parts = []
    for tokens in (part[position] & inside, part[position] & ~inside):
        if tokens.any():
            child = part.copy()
            child[position] = tokens
            parts.append(child)
    return parts


def search(weights: Weights, *, smallest: int = 1, split: Split = by_label, most: int | None = None) -> Found:
    """Branch from the set of all sequences; at most `most` evaluations (None: no limit)."""
    found, tables = Found(), Tables(weights)
    k, vocabulary = len(weights["P"]), len(weights["E"])
    for query in range(vocabulary):  # the query's set is split into its tokens
        whole = np.ones((k, vocabulary), dtype=np.bool_)
        whole[-1] = np.arange(vocabulary) == query
        for target, parts in labelled(whole, split, found).items():
            terms = tables.terms(query, target)
            frontier = np.stack(parts)
            while len(frontier) and (most is None or found.evaluations < most):
                frontier = step(frontier, terms, smallest, found)
    return found


def labelled(whole: Part, split: Split, found: Found) -> dict[int, list[Part]]:
    """Disjoint parts that make up `whole`, each of one label, by label."""
    groups: dict[int, list[Part]] = {}
    open_ = [whole]
    while open_:
        part = open_.pop()
        target = label(part)
        if target is None:
            found.split_by_label += 1
            open_ += split(part)
        else:
            groups.setdefault(target, []).append(part)
    return groups


class Tables:
    """Scores and logits of every choice, to rounding."""

    def __init__(self, weights: Weights) -> None:
        w = weights
        x = w["E"] + w["P"][:, None]
        query = x[-1] @ w["W_Q"] + w["b_Q"]
        key = x @ w["W_K"] + w["b_K"]
        self.scores: Numbers = np.einsum("qd,jcd->qjc", query, key) / math.sqrt(query.shape[-1])
        self.attended: Numbers = (x @ w["W_V"] + w["b_V"]) @ w["W_O"] @ w["W_U"]  # (k, tokens, classes)
        self.direct: Numbers = (x[-1] + w["b_O"]) @ w["W_U"] + w["b_U"]  # (tokens, classes)

    def terms(self, query: int, target: int) -> Numbers:
        """The terms of φ(0) of the margins of `target` over every other class: (classes − 1, k, tokens)."""
        logits = np.moveaxis(self.attended, -1, 0) + self.direct[query][:, None, None]
        margins = np.delete(logits[target] - logits, target, 0)
        return np.asarray(softmax_choices_terms(margins, self.scores[query][None]))


def step(frontier: Part, terms: Numbers, smallest: int, found: Found) -> Part:
    """Evaluate parts (parts, k, tokens) of one query and one label; returns the parts that they are split into."""
    children: list[Part] = []
    for chunk in chunks(frontier):
        found.evaluations += len(chunk)
        total = np.asarray(softmax_choices_decide(terms, chunk[:, None]))  # (parts, classes − 1)
        least = np.where(chunk[:, None], terms, np.inf).min(-1)  # (parts, classes − 1, k)
        slack = ROUNDING * np.abs(least).sum(-1)
        decided = (total > slack).all(-1)
        found.proved += list(chunk[decided])
        for part, rest in zip(chunk[~decided], (total[..., None] - least)[~decided], strict=True):
            if size(part) > smallest:
                children += branched(part, rest, terms, smallest, found)
    return np.stack(children) if children else np.empty((0, *frontier.shape[1:]), dtype=np.bool_)


def chunks(frontier: Part, most: int = 64) -> Iterator[Part]:
    """At most `most` parts at a time, for the memory of (parts, classes, k, tokens)."""
    for first in range(0, len(frontier), most):
        yield frontier[first : first + most]


def branched(part: Part, rest: Numbers, terms: Numbers, smallest: int, found: Found) -> list[Part]:
    """The open parts that an undecided part is split into; what its terms decide is cut off and added to `found`.

    rest (classes − 1, k) is φ(0) without the term of one position. With the token c alone at position i, φ(0) is
    rest[:, i] + terms[:, i, c].
    """
    alone = rest[..., None] + terms
    size_of = np.abs(rest)[..., None] + np.abs(terms)
    sure = ((alone > ROUNDING * size_of).all(0)) & part
    for position in range(len(part)):
        if sure[position].any():
            cut, *left = divided(part, position, sure[position])
            found.proved.append(cut)
            found.evaluations += 1
            if not left:
                return []
            part = left[0]
    if size(part) <= smallest:
        return []
    worst = alone.min(0)
    spread = [float(np.ptp(worst[i][part[i]])) if part[i].sum() > 1 else -1.0 for i in range(len(part))]
    position = int(np.argmax(spread))
    tokens = part[position].nonzero()[0]
    tokens = tokens[worst[position][tokens].argsort(kind="stable")]
    low = np.zeros(part.shape[1], dtype=np.bool_)
    low[tokens[: len(tokens) // 2]] = True
    return divided(part, position, low)
