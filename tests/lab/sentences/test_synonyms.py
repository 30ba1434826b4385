"""Sentences with synonyms: what may replace what, which are eligible, and a network that the importer reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vertex_lab.sentences import synonyms
from vertex_lab.sentences.synonyms import SynonymClassifier, eligible, read_classifier, read_replaceable
from vertex_softmax import TokenChoices, certify

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "nice", "fine", "film", "movie", "bad"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sst").mkdir()
    (tmp_path / "sst" / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(WORDS)}))
    rows = [
        {
            "sentence": "A Good film",
            "label": 1,
            "candidates": [[], ["good", "nice", "fine", "grand"], ["film", "movie"]],
        },
        {"sentence": "odd film", "label": 0, "candidates": [["odd", "bad", "fine"], ["film"]]},
    ]
    (tmp_path / "sst" / "test.json").write_text(json.dumps(rows))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = SynonymClassifier(len(WORDS), 8, 2, 8, 1)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    weights["word_embeddings"] = weights.pop("words.weight")
    save_file(weights, tmp_path / "synonym_bert.safetensors")
    return tmp_path


def test_words_and_their_synonyms_become_ids(folder: Path) -> None:
    first, second = read_replaceable(folder)
    assert first.ids == (2, 1, 4, 7, 3)
    assert first.choices == {2: (4, 5, 6), 3: (7, 8)}  # `grand` is not in the vocabulary
    assert (first.combinations, first.counted, first.words, first.label) == (6, 6, 3, 1)
    assert second.choices == {1: (1, 9, 6)}  # the word itself is unknown, and a choice all the same
    assert (second.combinations, second.counted) == (3, 2)


def test_a_sentence_is_decided(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synonyms, "SynonymClassifier", lambda words, dim: SynonymClassifier(words, dim, 2, 8, 1))
    monkeypatch.setattr(synonyms, "LEAST_COMBINATIONS", 3)
    model, sentences = read_classifier(folder), read_replaceable(folder)
    right = [int(model(torch.tensor([each.ids])).argmax()) == each.label for each in sentences]
    assert eligible(model, sentences) == [each for each, fine in zip(sentences[:1], right, strict=False) if fine]
    each = sentences[0]
    words = TokenChoices(model, torch.tensor([each.ids]), each.choices)
    with torch.no_grad():
        found = model(torch.cat(list(words.each()))).argmax(-1)
    label = int(found[0])
    expected = "verified" if bool((found == label).all()) else "falsified"
    assert certify(model, words, label, "bab").verdict == expected
