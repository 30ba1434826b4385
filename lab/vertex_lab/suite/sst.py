"""The family `sst`: classifiers of sentences in the manner of BERT, 3, 6 and 12 layers, with both kinds of norms."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from vertex_lab.sentences.data import MOST_BYTES, Sentences, read_sentences, read_vocabulary
from vertex_lab.sentences.kept import loaded, make, name_of
from vertex_lab.sentences.model import NORMS, SentenceArchitecture, SentenceClassifier
from vertex_lab.suite.family import Ends, Family, Network, Question, Request
from vertex_softmax.foundation.files import read_whole

LAYERS = (3, 6, 12)
WORDS = 8
SENTENCES = 3
DIVISOR = 16
"""A bound of a few layers that fails takes minutes, and few hold above a tenth of the attack's radius."""
TEXT = f"""\
Classifiers of sentences as in DeepT's experiments (Bonaert et al. 2021): post-norm blocks of width 128 with four heads
and an MLP of 128 with ReLU, a tanh pooler on the first token, two classes; 3, 6 and 12 layers, each with LayerNorm
(`standard`) and with norms that only centre (`no-variance`), as DeepT's own networks have. They are trained here from
seed 0 on the Stanford Sentiment Treebank (Socher et al. 2013) as DeepT's repository (MIT) prepared it. No sentence is
in this suite, only embeddings. The input is the embedded sentence, (1, {WORDS + 2}, 128), before positions are added:
[CLS], {WORDS} words, [SEP]. Sentences: the first of the test set with exactly {WORDS} words
that are classified correctly. The box: every number of one word's embedding, that in the middle, within ε; the other
words are fixed, and their inputs have equal ends. `certified` is the largest of attacked/{DIVISOR}, … proved."""


class FromEmbeddings(nn.Module):
    """Embedded sentences (batch, tokens, dim) to logits (batch, classes), without the table of words."""

    def __init__(self, model: SentenceClassifier) -> None:
        super().__init__()
        self.model = model
        del self.model.words

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.model.from_embeddings(x)


def networks(request: Request, depths: Sequence[int] | None = None, norms: Sequence[str] = NORMS) -> Iterator[Network]:
    """One for each depth and norm; what is not in the folder of weights is trained."""
    data = request.data / "deept" / "sst"
    vocabulary = read_vocabulary(data)
    some = read_sentences(data, "test", vocabulary)
    for layers in depths or (LAYERS[:1] if request.quick else LAYERS):
        for norm in norms:
            of = SentenceArchitecture(len(vocabulary), layers, norm)
            kept = request.weights / f"{name_of(of)}.json"
            if not kept.exists():
                request.say(f"sst: {name_of(of)} is not in {request.weights}, so it is trained, which takes minutes")
                make(of, data, request.weights, "cpu", request.say)
            model = loaded(of, request.weights).float()
            questions = tuple(_questions(model, some, request.some(SENTENCES)))
            record = json.loads(read_whole(kept, MOST_BYTES, "train it again"))
            known = {name: record[name] for name in ("architecture", "recipe", "dev", "test")}
            yield Network(name_of(of), FromEmbeddings(model).eval(), questions, known)


def _questions(model: SentenceClassifier, some: Sentences, count: int) -> Iterator[Question]:
    for number, (ids, label) in enumerate(zip(some.ids, some.labels, strict=True)):
        if len(ids) == WORDS + 2 and count > 0:
            with torch.no_grad():
                centre = model.words(torch.tensor(ids))
                right = int(model.from_embeddings(centre[None]).argmax()) == label
            if right:
                count -= 1
                yield _question(centre, ids, number, label)


def _question(centre: Tensor, ids: Sequence[int], number: int, label: int) -> Question:
    word = len(ids) // 2
    words = (
        f"test sentence {number} of SST (embedded), class {label}; the box: every number of the embedding of token "
        f"{word} within ε"
    )
    return Question(
        f"sentence{number}", words, centre, label, partial(_around, centre, word), start=0.06, divisor=DIVISOR
    )


def _around(centre: Tensor, word: int, eps: float) -> Ends:
    """The box in which one token moves, (tokens, dim)."""
    lower, upper = centre.double().clone(), centre.double().clone()
    lower[word] -= eps
    upper[word] += eps
    return lower, upper


def _missing(request: Request) -> str:
    folder = request.data / "deept" / "sst"
    if all((folder / f"{part}.json").is_file() for part in ("vocab", "train", "dev", "test")):
        return ""
    return f"{folder} needs vocab.json, train.json, dev.json and test.json, from DeepT's repository; see --data"


FAMILY = Family("sst", "Sentences, with both norms", TEXT, 300, _missing, networks)
