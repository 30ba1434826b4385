"""DeepT's synonym network and the sentences it is asked about: words that may be replaced by synonyms.

FOLDER/synonym_bert.safetensors    the weights
FOLDER/sst/{test.json,vocab.json}  sentences with `candidates`, the synonyms of each word, and the row of each word

A sentence is eligible, as in DeepT's experiment, if it is classified correctly, has at most 30 words and at least
32,000 combinations of synonyms that are in the vocabulary: 137 sentences, as published.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from vertex_lab.sentences.data import FIRST, LAST, MOST_BYTES, MOST_WORDS, UNKNOWN, read_vocabulary
from vertex_lab.sentences.model import MeanOnly
from vertex_softmax.foundation.files import read_whole

LEAST_COMBINATIONS = 32_000
NEEDED = "the folder needs synonym_bert.safetensors and sst/ with vocab.json and test.json"


class _Layer(nn.Module):
    """Post-norm self-attention and MLP; norms without variance."""

    def __init__(self, dim: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.dense = (nn.Linear(dim, dim) for _ in range(4))
        self.up, self.down = nn.Linear(dim, mlp), nn.Linear(mlp, dim)
        self.norm1, self.norm2 = MeanOnly(dim), MeanOnly(dim)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) to the same shape."""
        batch, tokens, dim = x.shape
        split = (batch, tokens, self.heads, dim // self.heads)
        q, k, v = (f(x).reshape(split).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, dim)
        x = self.norm1(x + self.dense(mixed))
        found: Tensor = self.norm2(x + self.down(functional.relu(self.up(x))))
        return found


class SynonymClassifier(nn.Module):
    """Token ids (batch, tokens) to logits (batch, 2); no position embeddings."""

    def __init__(self, words: int = 7145, dim: int = 64, heads: int = 4, mlp: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(words, dim)
        self.linear_in, self.norm = nn.Linear(dim, dim), MeanOnly(dim)
        self.layers = nn.ModuleList(_Layer(dim, heads, mlp) for _ in range(layers))
        self.pooler, self.classifier = nn.Linear(dim, dim), nn.Linear(dim, 2)

    def get_input_embeddings(self) -> nn.Module:
        """The table that token ids are looked up in."""
        return self.words

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (batch, 2)."""
        return self.from_embeddings(self.words(ids))

    def from_embeddings(self, x: Tensor) -> Tensor:
        """Logits from the words' vectors (batch, tokens, dim)."""
        x = self.norm(self.linear_in(x))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.classifier(torch.tanh(self.pooler(x[:, 0])))
        return logits


def read_classifier(folder: Path) -> SynonymClassifier:
    """DeepT's network, in eval mode and in its own precision."""
    weights = load_file(folder / "synonym_bert.safetensors")
    weights["words.weight"] = weights.pop("word_embeddings")
    model = SynonymClassifier(*weights["words.weight"].shape)
    model.load_state_dict(weights)
    return model.eval()


@dataclass(frozen=True)
class Replaceable:
    """A sentence, [CLS] words [SEP], and the words that may stand in place of some of its words."""

    number: int
    """its place in the file, from 0"""
    ids: tuple[int, ...]
    label: int
    choices: Mapping[int, tuple[int, ...]]
    """by position in `ids`: the word itself first, then its synonyms"""
    words: int
    """how many words the sentence has before it is cut"""
    counted: int
    """how many combinations of synonyms there are: without the word itself where the vocabulary does not have it"""

    @property
    def combinations(self) -> int:
        """How many sentences the choices make."""
        return math.prod(len(each) for each in self.choices.values())


def read_replaceable(folder: Path, part: str = "test") -> list[Replaceable]:
    """All sentences of a part; a synonym counts if it is in the vocabulary."""
    vocabulary = read_vocabulary(folder / "sst")
    found = []
    for number, row in enumerate(json.loads(read_whole(folder / "sst" / f"{part}.json", MOST_BYTES, NEEDED))):
        words = row["sentence"].lower().split()[:MOST_WORDS]
        ids = [vocabulary[FIRST], *(vocabulary.get(word, vocabulary[UNKNOWN]) for word in words), vocabulary[LAST]]
        choices: dict[int, tuple[int, ...]] = {}
        counted = 1
        for at, candidates in enumerate(row["candidates"][: len(words)], start=1):
            others = [vocabulary[word] for word in candidates if word in vocabulary]
            counted *= max(1, len(others))
            each = tuple(dict.fromkeys([ids[at], *others]))
            if len(each) > 1:
                choices[at] = each
        whole = len(row["sentence"].split())
        found.append(Replaceable(number, tuple(ids), int(row["label"]), choices, whole, counted))
    return found


def eligible(model: nn.Module, sentences: list[Replaceable]) -> list[Replaceable]:
    """The sentences that DeepT's experiment asks about."""
    found = []
    for each in sentences:
        if each.counted >= LEAST_COMBINATIONS and each.words <= MOST_WORDS:
            with torch.no_grad():
                if int(model(torch.tensor([each.ids])).argmax()) == each.label:
                    found.append(each)
    return found
