"""Writing a certificate: the weights' hash, and the list of parts that were proved. checker.py says what it claims."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from examples.max_of_k.network import Weights, digest
from examples.max_of_k.search import Part, size


def write(path: Path, weights: Weights, proved: Sequence[Part]) -> None:
    """Write the certificate of disjoint proved parts as JSON: for each part and position the token set's bits."""
    vocabulary, k = len(weights["E"]), len(weights["P"])
    parts = [[f"{sum(1 << int(c) for c in tokens.nonzero()[0]):x}" for tokens in part] for part in proved]
    claim = {
        "format": "max-of-k certificate 1",
        "weights": digest(weights),
        "vocabulary": vocabulary,
        "k": k,
        "proved": sum(size(part) for part in proved),
        "parts": parts,
    }
    path.write_text(json.dumps(claim, separators=(",", ":")), encoding="utf-8")
