"""Runs over words, patches and choices as they might be left: invented numbers that fit each other."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.runs.report.made import run
from vertex_softmax.runs.attention_record import AttentionLayer, AttentionRows
from vertex_softmax.runs.parts import PartRadius, Parts, patches_of
from vertex_softmax.runs.records import packed
from vertex_softmax.runs.run import Data, Run, RunInput, RunSentence

WORDS = {
    "1": "[CLS]",
    "2": "the",
    "3": "film",
    "4": "was",
    "5": "un",
    "6": "##believ",
    "7": "##ably",
    "8": "good",
    "9": "not",
    "10": "great",
    "11": "awful",
}
TEXTS = ((1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 9, 9, 9, 11))


def attention(input_: int, about: str, tokens: int = 8, heads: int = 2, layers: int = 2) -> AttentionRows:
    """Random rows, and ranges around them."""
    rng = np.random.default_rng(input_)
    found = []
    for k in range(layers):
        weights = rng.dirichlet(np.full(tokens, 0.5), (heads, tokens))
        ends = (np.clip(weights * 0.7, 0, 1), np.clip(weights * 1.3 + 0.01, 0, 1)) if about else (None, None)
        low, high = (None if end is None else packed(end) for end in ends)
        found.append(AttentionLayer(f"encoder.{k}.attention", (heads, tokens, tokens), packed(weights), low, high))
    return AttentionRows(input_, about, tuple(found))


def words_run(**changes: Any) -> Run:
    """Radii of all words of two sentences but the first token; the network is wrong about the second."""
    rng = np.random.default_rng(0)
    inputs = tuple(
        RunInput(i, 1, 1 - i, 2.0 - 3 * i, packed(rng.normal(size=(8, 3))), ids) for i, ids in enumerate(TEXTS)
    )
    radii = []
    for method, share in (("crown", 0.5), ("joint", 0.75)):
        for i in range(2):
            for part in range(7):
                limit = 0.0 if i else 0.2 * (part + 1)
                fooled = None if part == 6 and not i else limit
                radii.append(PartRadius(i, part, method, share * limit, share * limit * 1.05, fooled, 0.5))
    parts: dict[str, Any] = {
        "title": "Radii of words",
        "data": Data("sentences", (8, 3), None, ("negative", "positive"), tokens="all tokens"),
        "methods": ("crown", "joint"),
        "eps": (),
        "inputs": inputs,
        "answers": (),
        "attacks": (),
        "slack": None,
        "parts": Parts("tokens", tuple(range(1, 8))),
        "part_radii": tuple(radii),
        "words": WORDS,
        "attention": (attention(0, "the word at position 1 alone moves within ε = 0.15"), attention(1, "")),
    }
    return dataclasses.replace(run(0), **(parts | changes))


def patches_run(**changes: Any) -> Run:
    """Radii of the four patches of three digits; one patch is never fooled."""
    whole = run(3)
    parts = patches_of((1, 8, 8), (4, 4))
    radii = tuple(
        PartRadius(i, k, "joint", 0.1 * (k + 1), 0.1 * (k + 1.1), None if k == 3 else 0.2 * (k + 2), 0.25)
        for i in range(3)
        for k in range(4)
    )
    inputs = tuple(dataclasses.replace(x, clean=1.0, predicted=x.label) for x in whole.inputs)
    made: dict[str, Any] = {"inputs": inputs, "answers": (), "attacks": (), "slack": None, "eps": ()}
    made |= {"methods": ("joint",), "parts": parts, "part_radii": radii, "title": "Radii of patches"}
    return dataclasses.replace(whole, **(made | changes))


def choices_run(**changes: Any) -> Run:
    """Two sentences with choices: one verified by two methods, one falsified."""
    first = RunSentence(
        number=4,
        ids=(2, 3, 4, 8),
        label=1,
        predicted=1,
        clean=2.5,
        replaceable=2,
        combinations="4",
        method="bab",
        verdict="verified",
        bound=0.75,
        seconds=0.5,
        choices={"1": (3, 10), "3": (8, 10)},
        alone={"1": (2.5, 1.5), "3": (2.5, 3.5)},
        parts=1,
        evaluated=7,
    )
    second = dataclasses.replace(
        first,
        number=5,
        verdict="falsified",
        bound=None,
        counterexample=(2, 3, 9, 11),
        choices={"2": (4, 9), "3": (8, 11)},
        alone={"2": (2.5, 0.5), "3": (2.5, -1.25)},
        combinations="1" + "0" * 30,
        parts=0,
        evaluated=1,
    )
    crown = dataclasses.replace(first, method="crown", verdict="unknown", bound=-0.5, parts=None, evaluated=None)
    made: dict[str, Any] = {"data": Data("choices.json", (), None, ("negative", "positive"), tokens="words"), "eps": ()}
    made |= {"inputs": (), "answers": (), "attacks": (), "slack": None, "methods": ("bab", "crown")}
    made |= {"sentences": (first, second, crown), "words": WORDS, "title": "Choices of words"}
    made |= {"attention": (attention(5, "every combination of the given words is chosen", 4, 1, 1),)}
    return dataclasses.replace(run(0), **(made | changes))
