"""Radii of parts, and softmax rows, as data for the script of a run's page."""

from __future__ import annotations

import base64
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from vertex_softmax.runs.attention_record import AttentionLayer, AttentionRows, ends
from vertex_softmax.runs.parts import Parts
from vertex_softmax.runs.records import Floats, unpacked
from vertex_softmax.runs.report.numbers import at_least, at_most, plain, short
from vertex_softmax.runs.report.sentence_view import best_radii, reading_of
from vertex_softmax.runs.report.words import TokenReading, sentence
from vertex_softmax.runs.run import NORMS, Run, RunInput

WHOLE = 65535
"""The weight 1 in the page's data."""


def parts_data(run: Run) -> dict[str, Any] | None:
    """The radii of parts as columns; None if the run has none."""
    if run.parts is None:
        return None
    method = {m: i for i, m in enumerate(run.methods)}
    best, reading = best_radii(run), reading_of(run)
    grid = run.parts.grid
    return {
        "kind": run.parts.kind,
        "places": list(run.parts.places),
        "rows": grid[0] if grid else 0,
        "columns": grid[1] if grid else 0,
        "words": [
            None if x.ids is None else [word.text for word in reading.shown(sentence(x.ids, run.words))]
            for x in run.inputs
        ],
        "best": [[_pair(best.get((i, k))) for k in range(len(run.parts))] for i in range(len(run.inputs))],
        "input": [r.input for r in run.part_radii],
        "part": [r.part for r in run.part_radii],
        "method": [method[r.method] for r in run.part_radii],
        "certified": [at_most(r.certified) for r in run.part_radii],
        "refused": [at_least(r.refused) for r in run.part_radii],
        "fooled": [at_least(r.attacked) for r in run.part_radii],
        "seconds": [short(r.seconds) for r in run.part_radii],
        "medians": [_median([r.certified for r in run.part_radii if r.method == m]) for m in run.methods],
    }


def _pair(radii: tuple[float, float | None] | None) -> list[float | None]:
    return [None, None] if radii is None else [at_most(radii[0]), at_least(radii[1])]


def parts_lede(run: Run) -> list[str]:
    """The main results of a search for radii of parts, in sentences."""
    if run.parts is None:
        return []
    best, what = best_radii(run), "word" if run.parts.kind == "tokens" else "patch"
    norm = "" if run.data.norm == "inf" else f" in {NORMS[run.data.norm]}"
    certified = sorted(pair[0] for pair in best.values())
    inputs = f"{len(run.inputs):,} {'sentence' if what == 'word' else 'image'}{'' if len(run.inputs) == 1 else 's'}"
    said = [
        f"A {what} of {inputs} may move alone by ε = {plain(at_most(statistics.median_low(certified)))}{norm}, in the "
        f"median, and the answer is proved to stay right; the least such radius is {plain(at_most(certified[0]))}."
    ]
    fooled = [pair[1] for pair in best.values() if pair[1] is not None]
    if fooled:
        least = plain(at_least(min(fooled)))
        share = f"{len(fooled):,} of {len(best):,}"
        said.append(f"The attack breaks an answer by moving one {what}, {share} of them, from ε = {least} on.")
    wrong = sum(x.predicted != x.label or x.clean < 0 for x in run.inputs)
    if wrong:
        said.append(f"The network is wrong about {wrong:,} of them as they are: there all radii are 0.")
    return said


def _median(values: list[float]) -> float | None:
    return at_most(statistics.median_low(values)) if values else None


def part_rows(run: Run) -> list[dict[str, str]]:
    """One row per input, for a table that needs no script: the part of the least radius, the median, the attack's."""
    if run.parts is None:
        return []
    best, reading, rows = best_radii(run), reading_of(run), []
    for i, x in enumerate(run.inputs):
        mine = {k: best[i, k] for k in range(len(run.parts)) if (i, k) in best}
        if not mine:
            continue
        weak = min(mine, key=lambda k: mine[k][0])
        fooled = {k: pair[1] for k, pair in mine.items() if pair[1] is not None}
        first = min(fooled, key=lambda k: fooled[k], default=None)
        rows.append(
            {
                "input": str(x.index),
                "least": plain(at_most(mine[weak][0])),
                "weakest": part_name(run.parts, x, weak, run.words, reading),
                "median": plain(at_most(statistics.median_low(pair[0] for pair in mine.values()))),
                "most": plain(at_most(max(pair[0] for pair in mine.values()))),
                "fooled": "–" if first is None else plain(at_least(fooled[first])),
                "by": "" if first is None else part_name(run.parts, x, first, run.words, reading),
            }
        )
    return rows


def part_name(parts: Parts, x: RunInput, part: int, words: Mapping[str, str], reading: TokenReading) -> str:
    """A part of an input in words: the word itself, or where the patch is."""
    if x.ids is None:
        return parts.name(part)
    place = parts.places[part]
    return f"{reading.alone(sentence(x.ids, words)[place])} ({place})"


def sentences_data(run: Run) -> list[str] | None:
    """The inputs as sentences that can be read; None if they are not token ids with texts."""
    if not run.words or any(x.ids is None for x in run.inputs):
        return None
    reading = reading_of(run)
    return ["".join(_spaced(reading, sentence(x.ids or (), run.words))) for x in run.inputs]


def _spaced(reading: TokenReading, texts: list[str]) -> list[str]:
    shown = reading.shown(texts)
    return [word.text if word.joined or i == 0 else f" {word.text}" for i, word in enumerate(shown)]


def attention_data(run: Run) -> list[dict[str, Any]]:
    """The softmax rows that the run has: weights as 16-bit numbers, their ranges rounded outward."""
    return [_rows_data(run, rows) for rows in run.attention]


def _rows_data(run: Run, rows: AttentionRows) -> dict[str, Any]:
    ids = (
        next((s.ids for s in run.sentences if s.number == rows.input), ())
        if run.sentences
        else run.inputs[rows.input].ids or ()
    )
    words = [word.text for word in reading_of(run).shown(sentence(ids, run.words))]
    return {
        "input": rows.input,
        "about": rows.about,
        "words": words,
        "layers": [_layer_data(layer) for layer in rows.layers],
    }


def _layer_data(layer: AttentionLayer) -> dict[str, Any]:
    heads, rows, keys = layer.shape
    low, high = ends(layer)
    ranged = layer.lower is not None
    return {
        "name": layer.name,
        "heads": heads,
        "rows": rows,
        "keys": keys,
        "weights": _packed(np.rint(WHOLE * unpacked(layer.weights, layer.shape))),
        "lower": _packed(np.floor(WHOLE * low)) if ranged else None,
        "upper": _packed(np.ceil(WHOLE * high)) if ranged else None,
    }


def _packed(values: Floats) -> str:
    return base64.b64encode(np.clip(values, 0, WHOLE).astype("<u2").tobytes()).decode()
