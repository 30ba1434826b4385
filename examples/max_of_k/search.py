"""Branch and bound over sets of sequences: which parts of all inputs are certainly classified right.

A *part* is a product of token sets S_1 × … × S_k, one for each position. It is decided by one evaluation if

- its last set has one token: scores are bilinear in the query and the key, so for one query token every key's choice of
  a token is a pair (score, value), and the library's exact minimum over choices applies: for every other class the
  margin of every sequence of the part is positive if Σ_j min over S_j of the terms of φ(0) is
  (`vertex_softmax.softmax_box.choices`);
- all its sequences have one label.

Only `label` knows the task: it says which parts have one label. A part with several is split by asking it, for every
position i and token c in S_i, whether the part with S_i = {c} has one label; the tokens for which it has are cut off,
at every position in turn. If there is none, the largest set is halved.

A part that is not decided is split in the same manner, by what its own evaluation says: the same terms decide the part
with S_i = {c}. The tokens for which it is decided are cut off, at every position in turn; what is left is halved, at
the position whose tokens differ most. Parts of at most `smallest` sequences that are not decided are given up: they
only lower the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from examples.max_of_k.network import Numbers, Weights
from numpy.typing import NDArray

from vertex_softmax.softmax_box import softmax_choices_decide, softmax_choices_terms

Part: TypeAlias = NDArray[np.bool_]
"""Which tokens each position may have: (k, vocabulary)."""
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
    tables: int = 0
    """Arrays of terms, one for each pair of a query token and a label, that the evaluations share."""

    def sequences(self) -> int:
        """How many sequences the proved parts have together."""
        return sum(size(part) for part in self.proved)


def size(part: Part) -> int:
    """How many sequences a part has."""
    return math.prod(int(n) for n in part.sum(1))


def label(parts: Part) -> NDArray[np.int64]:
    """The label of all sequences of a part, or −1 if there are several: (parts, k, tokens) → (parts,).

    A label is the largest token. It is least where every position has its least token, and greatest where each has its
    greatest.
    """
    tokens = np.arange(parts.shape[-1])
    least = np.where(parts, tokens, len(tokens)).min(-1).max(-1)
    most = np.where(parts, tokens, -1).max(-1).max(-1)
    return np.where(least == most, most, -1)


def split_by_label(part: Part) -> list[Part]:
    """Cut off the tokens that fix the label of a part with several labels; if there is none, halve its largest set."""
    positions, tokens = part.nonzero()
    single = np.repeat(part[None], len(tokens), 0)
    single[np.arange(len(tokens)), positions] = np.arange(part.shape[1]) == tokens[:, None]
    fixed = label(single)
    parts = []
    for position, target in sorted({(int(p), int(t)) for p, t in zip(positions, fixed, strict=True) if t >= 0}):
        inside = np.isin(np.arange(part.shape[1]), tokens[(positions == position) & (fixed == target)])
        cut, *left = divided(part, position, inside)
        parts.append(cut)
        if not left:
            return parts
        part = left[0]
    if parts:
        return [*parts, part]
    position = int(part.sum(1).argmax())
    tokens = part[position].nonzero()[0]
    return divided(part, position, np.arange(part.shape[1]) < tokens[len(tokens) // 2])


def divided(part: Part, position: int, inside: NDArray[np.bool_]) -> list[Part]:
    """The part with the position's tokens `inside`, and the part with its others; empty ones are left out."""
    parts = []
    for tokens in (part[position] & inside, part[position] & ~inside):
        if tokens.any():
            child = part.copy()
            child[position] = tokens
            parts.append(child)
    return parts


def search(weights: Weights, *, smallest: int = 1) -> Found:
    """Branch from the set of all sequences."""
    found, tables = Found(), Tables(weights)
    k, vocabulary = len(weights["P"]), len(weights["E"])
    for query in range(vocabulary):  # the query's set is split into its tokens
        whole = np.ones((k, vocabulary), dtype=np.bool_)
        whole[-1] = np.arange(vocabulary) == query
        for target, parts in labelled(whole, found).items():
            terms = tables.terms(query, target)
            found.tables += 1
            frontier = np.stack(parts)
            while len(frontier):
                frontier = step(frontier, terms, smallest, found)
    return found


def labelled(whole: Part, found: Found) -> dict[int, list[Part]]:
    """Disjoint parts that make up `whole`, each of one label, by label."""
    groups: dict[int, list[Part]] = {}
    open_ = [whole]
    while open_:
        part = open_.pop()
        target = int(label(part[None])[0])
        if target < 0:
            found.split_by_label += 1
            open_ += split_by_label(part)
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
