"""What a page says of a proof: `vertex report FOLDER` makes it of FOLDER/accuracy.json, which is written here."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from examples.max_of_k.network import Weights, digest
from examples.max_of_k.search import Found, Part, label, size
from numpy.typing import NDArray

from vertex_softmax import __version__
from vertex_softmax.runs.accuracy import Accuracy, Groups, PartSizes, WorkStage, write_accuracy

EXAMPLES = 40
CLAIM = (
    "every margin is positive in exact arithmetic, for the network whose weights have this hash; a program that knows "
    "nothing of the search has checked the certificate (examples/max_of_k/checker.py)"
)


def record(
    weights: Weights, found: Found, right: NDArray[np.bool_] | None, stages: Sequence[WorkStage], folder: Path
) -> Path:
    """Write FOLDER/accuracy.json: groups are by the query, which is the last token, and the largest token."""
    vocabulary, k = len(weights["E"]), len(weights["P"])
    proved = found.sequences()
    page = Accuracy(
        title=f"Max-of-{k}, {vocabulary} tokens",
        version=__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        task=f"The network reads {k} tokens of {vocabulary} and says which is the largest. Every sequence is an input.",
        claim=CLAIM,
        inputs=vocabulary**k,
        proved=proved,
        right=None if right is None else int(right.sum()),
        parts=len(found.proved),
        groups=_groups(vocabulary, k, found.proved, right),
        sizes=_sizes(found.proved),
        stages=tuple(stages),
        wrong=() if right is None else _first(~right),
        open=() if right is None or proved == right.sum() else _first(right & ~_covered(right.shape, found.proved)),
        facts={
            "vocabulary": vocabulary,
            "tokens in a sequence": k,
            "SHA-256 of the weights": digest(weights),
            "certificate": "certificate.json",
            "weights": "weights.npz",
        },
    )
    return write_accuracy(page, folder)


def _groups(vocabulary: int, k: int, proved: Sequence[Part], right: NDArray[np.bool_] | None) -> Groups:
    """How many sequences have each last token and each largest token."""
    tokens = np.arange(vocabulary)
    below = (tokens + 1) ** (k - 1)  # how the other tokens can be at most t
    total = np.where(tokens < tokens[:, None], 0, np.diff(below, prepend=0))  # [query, largest]
    total[tokens, tokens] = below
    shares = np.zeros((vocabulary, vocabulary), dtype=np.int64)
    for part in proved:
        shares[part[-1].nonzero()[0][0], int(label(part[None])[0])] += size(part)
    table = None
    if right is not None:
        small = tokens.astype(np.int32)
        most = np.zeros(right.shape, dtype=np.int32)
        for axis in range(k):
            np.maximum(most, small.reshape([-1 if i == axis else 1 for i in range(k)]), out=most)
        most += vocabulary * small  # the last axis is the query's
        table = np.bincount(most[right], minlength=vocabulary**2).reshape(shares.shape)
    return Groups("last token", "largest token", _rows(total), _rows(shares), None if table is None else _rows(table))


def _rows(table: NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in table.tolist())


def _sizes(proved: Sequence[Part]) -> tuple[PartSizes, ...]:
    """The parts by powers of four of their sizes."""
    sizes = [size(part) for part in proved]
    found, least = [], 1
    while least <= max(sizes, default=0):
        some = [n for n in sizes if least <= n < 4 * least]
        if some:
            found.append(PartSizes(least, 4 * least - 1, len(some), sum(some)))
        least *= 4
    return tuple(found)


def _first(where: NDArray[np.bool_]) -> tuple[tuple[int, ...], ...]:
    places = np.unravel_index(np.flatnonzero(where)[:EXAMPLES], where.shape)
    return tuple(zip(*(axis.tolist() for axis in places), strict=True))


def _covered(shape: tuple[int, ...], proved: Sequence[Part]) -> NDArray[np.bool_]:
    """Which sequences are in a proved part."""
    found = np.zeros(shape, dtype=np.bool_)
    for part in proved:
        found[np.ix_(*part)] = True
    return found
