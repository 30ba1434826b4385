from __future__ import annotations

import json
from pathlib import Path

import pytest

from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.runs import vocabulary
from vertex_softmax.runs.vocabulary import read_vocabulary

WORDS = {0: "[PAD]", 1: "the", 2: "##m", 3: ""}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vocab.txt", "[PAD]\nthe\r\n##m\n\n"),
        ("list.json", json.dumps(list(WORDS.values()))),
        ("vocab.json", json.dumps({word: i for i, word in WORDS.items()})),
        ("ids.json", json.dumps(WORDS)),
        ("unigram.json", json.dumps([[word, -1.5] for word in WORDS.values()])),
        (
            "tokenizer.json",
            json.dumps(
                {"model": {"vocab": {"the": 1, "##m": 2, "": 3}}, "added_tokens": [{"id": 0, "content": "[PAD]"}]}
            ),
        ),
        ("t5.json", json.dumps({"model": {"vocab": [["[PAD]", 0.0], ["the", -2], ["##m", -3], ["", -9]]}})),
    ],
)
def test_files_of_tokenizers(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert read_vocabulary(tmp_path / name) == WORDS


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("words.csv", "a", "give a file .txt"),
        ("words.json", "{", "not JSON"),
        ("words.json", "[" * 100_000, "not JSON"),
        ("words.json", "3", "give a list of tokens"),
        ("words.json", "{}", "give a list of tokens"),
        ("words.json", '["a", 3]', "ids whole numbers"),
        ("words.json", '{"a": true}', "with the id True"),
        ("words.json", '{"a": -1}', "with the id -1"),
        ("words.json", '{"a": 1e3}', "with the id 1000.0"),
        ("words.json", '{"x": "a"}', "with the id x"),
        ("words.json", '{"model": {"vocab": {"a": 4294967296}}}', "with the id 4294967296"),
        ("words.json", '{"model": {"vocab": {"a": 1}}, "added_tokens": [{}]}', "with the id None"),
        ("words.txt", "\udcff", "not UTF-8"),
        ("words.txt", "a" * 1001, "1001 characters"),
    ],
)
def test_what_is_no_vocabulary_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(VertexError, match=said):
        read_vocabulary(tmp_path / name)


def test_its_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MOST_BYTES", 3)
    (tmp_path / "vocab.txt").write_text("abcd")
    with pytest.raises(VertexError, match="at most 3"):
        read_vocabulary(tmp_path / "vocab.txt")
