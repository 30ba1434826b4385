"""Classifiers of sentences: data as it is, a network that the importer reads, training that repeats itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from vertex_lab.sentences.data import Sentences, read_sentences, read_vocabulary
from vertex_lab.sentences.model import NORMS, SentenceArchitecture, SentenceClassifier
from vertex_lab.sentences.training import Recipe, accuracy, train
from vertex_softmax import TokenBall, certify
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.search.attack import pgd

WORDS = {word: row for row, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "bad", "good", "film"])}
SMALL = SentenceArchitecture(len(WORDS), 2, "standard", dim=8, heads=2, mlp=8, longest=8)
PARTS = {
    "train": Sentences(((2, 4, 6, 3), (2, 5, 6, 3), (2, 6, 5, 3), (2, 4, 3)) * 8, (0, 1, 1, 0) * 8),
    "dev": Sentences(((2, 4, 3), (2, 5, 3)), (0, 1)),
}
SPECIAL = {"pad": 0, "unknown": 1}


def test_sentences_become_ids(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(WORDS))
    (tmp_path / "test.json").write_text(json.dumps([{"sentence": "A good Film", "label": 1}]))
    assert read_sentences(tmp_path, "test", read_vocabulary(tmp_path)) == Sentences(((2, 1, 5, 6, 3),), (1,))
    with pytest.raises(InvalidValueError, match="the folder needs vocab"):
        read_vocabulary(tmp_path / "nowhere")
    (tmp_path / "vocab.json").write_text(json.dumps({"good": 0}))
    with pytest.raises(InvalidValueError, match=r"has no row for \[PAD\]"):
        read_vocabulary(tmp_path)


def test_filling_up_changes_nothing() -> None:
    model = SentenceClassifier(SMALL).eval()
    ids, present, labels = PARTS["train"].padded(torch.tensor([3, 0]), 0)
    assert labels.tolist() == [0, 0]
    with torch.no_grad():
        assert torch.allclose(model(ids, present)[0], model(torch.tensor([[2, 4, 3]]))[0], atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_training_learns_and_repeats_itself(norm: str) -> None:
    of, recipe = dataclasses.replace(SMALL, norm=norm), Recipe(epochs=12, batch=8, rate=5e-3)
    models = [SentenceClassifier(of) for _ in range(2)]
    told: list[int] = []
    for model in models:
        assert train(model, PARTS, recipe, SPECIAL, lambda epoch, *_: told.append(epoch)) == 1.0
        assert accuracy(model, PARTS["dev"], 0) == 1.0
    assert told == [*range(12)] * 2
    weights = [model.state_dict() for model in models]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("norm", NORMS)
def test_a_word_may_move_as_far_as_is_certified(norm: str) -> None:
    model = SentenceClassifier(dataclasses.replace(SMALL, norm=norm)).eval()
    ids = torch.tensor([[2, 5, 6, 3]])
    label = int(model(ids).argmax())
    ball = TokenBall.of(model, ids, 1e-3, tokens=[1])
    found = certify(model, ball, label, "crown")
    double = SentenceClassifier(model.architecture).double().eval()
    double.load_state_dict(model.state_dict())
    attack = pgd(double.from_embeddings, ball, label, steps=10, restarts=2)
    assert bool((found.worst <= attack.worst).all())


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="choose one of standard, no-variance"):
        SentenceArchitecture(7, 1, "batch")
