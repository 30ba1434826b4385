"""The Stanford Sentiment Treebank as DeepT prepared it: sentences, their labels, and a vocabulary.

FOLDER/{train,dev,test}.json    lists of {"sentence": words separated by spaces, "label": 0 or 1, ...}
FOLDER/vocab.json               the row of each word
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import read_whole

PAD, UNKNOWN, FIRST, LAST = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
MOST_WORDS = 30
MOST_BYTES = 100_000_000
NEEDED = "the folder needs vocab.json, train.json, dev.json and test.json"


@dataclass(frozen=True)
class Sentences:
    """Token ids and labels of one part of the data."""

    ids: tuple[tuple[int, ...], ...]
    labels: tuple[int, ...]

    def padded(self, indices: Tensor, pad: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids (n, tokens) filled up with `pad`, True where there is a token (n, tokens), and labels (n)."""
        chosen = [self.ids[i] for i in indices.tolist()]
        longest = max(map(len, chosen))
        ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in chosen])
        present = torch.tensor([[i < len(row) for i in range(longest)] for row in chosen])
        return ids, present, torch.tensor([self.labels[i] for i in indices.tolist()])


def read_vocabulary(folder: Path) -> Mapping[str, int]:
    """The row of each word."""
    path = folder / "vocab.json"
    words: dict[str, int] = json.loads(read_whole(path, MOST_BYTES, NEEDED))
    missing = [word for word in (PAD, UNKNOWN, FIRST, LAST) if word not in words]
    if missing:
        raise InvalidValueError(f"{path} has no row for {', '.join(missing)}")
    return words


def read_sentences(folder: Path, part: str, vocabulary: Mapping[str, int]) -> Sentences:
    """[CLS] words [SEP] of every sentence, lower case, at most 30 words; `part` is train, dev or test."""
    rows = json.loads(read_whole(folder / f"{part}.json", MOST_BYTES, NEEDED))
    ids = []
    for row in rows:
        words = row["sentence"].lower().split()[:MOST_WORDS]
        known = [vocabulary.get(word, vocabulary[UNKNOWN]) for word in words]
        ids.append((vocabulary[FIRST], *known, vocabulary[LAST]))
    return Sentences(tuple(ids), tuple(int(row["label"]) for row in rows))
