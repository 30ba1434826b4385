"""Sentences of a run as token ids, from files that are not trusted: with labels, and with choices of words.

Invariant: every sentence has a label and at least one token; ids, labels and positions are whole numbers, from 0. What
depends on the model (whether ids are rows of its table, whether a label is one of its classes) is checked with it.

    read_sentences(Path("sentences.json"))   # {"ids": [[3, 14, 15], …], "labels": [0, …]}; or .npz, .safetensors
    read_choices(Path("choices.json"))       # [{"ids": [3, 14, 15], "label": 0, "choices": {"1": [14, 7]}}, …]
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.reading import content_of
from vertex_softmax.runs.subject import IDS, LABELS, Inputs, arrays_of, selected
from vertex_softmax.sets.loading import Loaded

MOST_BYTES = 1 << 28
"""The largest JSON file in bytes."""
MOST_ID = 1 << 31
"""Ids and labels are below it."""


@dataclass(frozen=True, eq=False)
class Sentences:
    """Labelled sentences of one length, as token ids."""

    name: str
    """the name of the file"""
    ids: Tensor
    """(n, tokens) in int64"""
    labels: Tensor
    """(n,) in int64"""
    numbers: tuple[int, ...]
    """the positions of the sentences in the file"""

    def inputs(self, model: Loaded, tokens: tuple[int, ...] | None, norm: float) -> Inputs:
        """The sentences as inputs of a run: balls of this norm around the embeddings of tokens; None: of all."""
        count = self.ids.shape[1]
        for position in tokens or ():
            if not -count <= position < count:
                raise InvalidValueError(
                    f"--tokens has the position {position}; the sentences have {count} tokens, counted from 0"
                )
        places = None if tokens is None else tuple(sorted({position % count for position in tokens}))
        x = model.rows(self.ids)
        return Inputs(self.name, x, self.labels, None, self.numbers, norm=norm, ids=self.ids, tokens=places)


@dataclass(frozen=True)
class ChoiceSentence:
    """A labelled sentence, and the ids that may stand at some of its positions."""

    number: int
    """its position in the file"""
    ids: tuple[int, ...]
    label: int
    choices: dict[int, list[int]]


def read_sentences(path: Path, *, first: int = 0, count: int | None = None) -> Sentences:
    """Read `count` sentences (all if None), from number `first` on, of a file .json, .npz or .safetensors."""
    if path.suffix == ".json":
        ids, labels = _table(path)
    elif path.suffix in (".npz", ".safetensors"):
        ids, labels = _arrays(path)
    else:
        raise InvalidValueError(
            f"--data is {str(path)!r}: with --tokens give a file .json, .npz or .safetensors with `ids` and `labels`"
        )
    if len(ids) != len(labels):
        raise InvalidValueError(f"{path} has {len(ids)} rows of ids and {len(labels)} labels; give a label for each")
    numbers = selected(str(path), len(ids), first, count)
    some = slice(numbers.start, numbers.stop)
    return Sentences(path.name, ids[some], labels[some], tuple(numbers))


def read_choices(path: Path, *, first: int = 0, count: int | None = None) -> list[ChoiceSentence]:
    """Read `count` sentences with choices (all if None), from number `first` on, of a JSON file."""
    content = _json(path, "--choices")
    if not isinstance(content, list) or not content:
        raise InvalidValueError(
            f'{path}: give a list of sentences, not empty: {{"ids": […], "label": …, "choices": {{"position": […]}}}}'
        )
    return [_choice_sentence(content[i], i, path) for i in selected(str(path), len(content), first, count)]


def _choice_sentence(given: Any, number: int, path: Path) -> ChoiceSentence:
    where = f"{path}, sentence {number}"
    if not isinstance(given, dict) or set(given) != {"ids", "label", "choices"}:
        has = f"; it has {', '.join(map(repr, given)) or 'nothing'}" if isinstance(given, dict) else ""
        raise InvalidValueError(f"{where}: give an object with `ids`, `label` and `choices`, and nothing else{has}")
    choices = given["choices"]
    if not isinstance(choices, dict):
        raise InvalidValueError(f'{where}: `choices` is an object from positions to lists of ids, {{"1": [14, 7]}}')
    found: dict[int, list[int]] = {}
    for position, ids in choices.items():
        if not (position.isascii() and position.isdigit() and len(position) < 10):
            raise InvalidValueError(f"{where} has the position {position!r}; positions are whole numbers, from 0")
        if int(position) in found:
            raise InvalidValueError(f"{where} has the position {int(position)} twice")
        found[int(position)] = list(_whole(ids, f"{where}, choices at position {position}"))
    label = _whole([given["label"]], f"{where}, label")[0]
    return ChoiceSentence(number, _whole(given["ids"], f"{where}, ids"), label, found)


def _table(path: Path) -> tuple[Tensor, Tensor]:
    """The ids (n, tokens) and the labels (n,) of a JSON file."""
    content = _json(path, "--data")
    if not isinstance(content, dict) or not {IDS[0], LABELS[0]} <= set(content):
        raise InvalidValueError(f'{path}: give an object {{"ids": [[…], …], "labels": […]}}')
    rows = content[IDS[0]]
    if not isinstance(rows, list) or not rows:
        raise InvalidValueError(f"{path}: `ids` is a list of sentences, at least one, each a list of ids")
    ids = [_whole(row, f"{path}, ids[{i}]") for i, row in enumerate(rows)]
    if odd := next((i for i, row in enumerate(ids) if len(row) != len(ids[0])), None):
        raise InvalidValueError(
            f"{path}: ids[{odd}] has {len(ids[odd])} tokens and ids[0] has {len(ids[0])}; --tokens are positions in "
            "sentences of one length: give those of another length in a file of their own"
        )
    return torch.tensor(ids), torch.tensor(_whole(content[LABELS[0]], f"{path}, labels"))


def _arrays(path: Path) -> tuple[Tensor, Tensor]:
    """The ids (n, tokens) and the labels (n,) of a file of arrays."""
    ids, labels = arrays_of(path, (IDS, LABELS))
    if ids.dtype.kind not in "iu" or ids.ndim != 2 or 0 in ids.shape:
        raise InvalidValueError(f"{path}: the ids are {ids.dtype} of shape {ids.shape}; give integers (n, tokens)")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise InvalidValueError(f"{path}: the labels are {labels.dtype} of shape {labels.shape}; give integers (n,)")
    for name, array in (("ids", ids), ("labels", labels)):
        if array.size and (int(array.min()) < 0 or int(array.max()) >= MOST_ID):
            raise InvalidValueError(f"{path}: {name} has {int(array.min())} … {int(array.max())}; they count from 0")
    return torch.from_numpy(ids.astype("int64")), torch.from_numpy(labels.astype("int64"))


def _json(path: Path, option: str) -> Any:
    if path.suffix != ".json":
        raise InvalidValueError(f"{option} is {str(path)!r}; give a file .json")
    try:
        return json.loads(content_of(path, MOST_BYTES), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidValueError):
            raise
        raise InvalidValueError(f"{path} is not JSON: {str(error) or 'it nests too deeply'}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; a key that is there twice is an error, since one of its values would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)[:40]!r} is there twice")
    return found


def _whole(given: Any, where: str) -> tuple[int, ...]:
    """A list of whole numbers from 0, at least one of them."""
    if not isinstance(given, list) or not given:
        raise InvalidValueError(f"{where}: give a list with at least one id")
    for value in given:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST_ID:
            raise InvalidValueError(f"{where} has {str(value)[:40]}; give whole numbers from 0 to {MOST_ID - 1}")
    return tuple(given)
