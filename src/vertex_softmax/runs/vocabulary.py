"""The texts of token ids, from a tokenizer's own files, which are not trusted.

Invariant: ids are whole numbers from 0, and a text has at most MOST_CHARACTERS; texts are kept as the file has them,
with the tokenizer's marks in them (##, Ġ, ▁).

    read_vocabulary(Path("vocab.txt"))        # a token a line, as BERT has it
    read_vocabulary(Path("tokenizer.json"))   # or vocab.json: {"token": id, …}; or a list of tokens
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.reading import content_of

MOST_BYTES = 1 << 28
"""The largest file in bytes."""
MOST_CHARACTERS = 1000
"""The longest text of a token."""
MOST_ID = 1 << 31


def read_vocabulary(path: Path) -> dict[int, str]:
    """The texts of token ids in a file: .txt with a token a line, or .json as tokenizers write it."""
    if path.suffix not in (".txt", ".json"):
        raise InvalidValueError(
            f"--vocabulary is {str(path)!r}; give a file .txt with a token a line, or .json: a tokenizer's vocab.json "
            "or tokenizer.json, or a list of tokens"
        )
    content = content_of(path, MOST_BYTES)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{path} is not UTF-8: {error}") from error
    if path.suffix == ".txt":
        tokens = text.split("\n")
        pairs = [(word.rstrip("\r"), i) for i, word in enumerate(tokens[:-1] if tokens[-1] == "" else tokens)]
    else:
        pairs = _pairs(_json(text, path), path)
    return _checked(pairs, path)


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{path} is not JSON: {str(error) or 'it nests too deeply'}") from error


def _pairs(content: Any, path: Path) -> list[tuple[Any, Any]]:
    """Tokens and their ids: of a list; of an object from tokens to ids, or from ids to tokens; of a tokenizer.json."""
    if isinstance(content, list):
        return [(token[0] if _scored(token) else token, i) for i, token in enumerate(content)]
    model = content.get("model") if isinstance(content, dict) else None
    if isinstance(model, dict) and "vocab" in model:
        added = content.get("added_tokens")
        listed = added if isinstance(added, list) else []
        more = [(x.get("content"), x.get("id")) for x in listed if isinstance(x, dict)]
        return [*_pairs(model["vocab"], path), *more]
    if isinstance(content, dict) and content and all(isinstance(word, str) for word in content.values()):
        return [(word, int(i) if i.isascii() and i.isdigit() and len(i) < 10 else i) for i, word in content.items()]
    if isinstance(content, dict) and content:
        return list(content.items())
    raise InvalidValueError(f'{path}: give a list of tokens, or an object {{"token": id, …}}, as tokenizers write it')


def _scored(token: Any) -> bool:
    """Whether an entry of a list is a token with its score, as in the vocabulary of a unigram model."""
    return isinstance(token, list) and len(token) == 2


def _checked(pairs: list[tuple[Any, Any]], path: Path) -> dict[int, str]:
    found: dict[int, str] = {}
    for word, i in pairs:
        if not isinstance(word, str) or isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < MOST_ID:
            raise InvalidValueError(
                f"{path} has the token {str(word)[:40]!r} with the id {str(i)[:40]}; tokens are texts, and ids whole "
                f"numbers from 0 to {MOST_ID - 1}"
            )
        if len(word) > MOST_CHARACTERS:
            raise InvalidValueError(f"{path}: the token {i} has {len(word)} characters; at most {MOST_CHARACTERS}")
        found[i] = word
    return found
