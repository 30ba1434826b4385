"""The README of the suite that is given away: what it is, how it was made, and what each family has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vertex_lab.suite.family import Family
from vertex_softmax import __version__

HEAD = """\
# Softmax attention with norms: a benchmark for verifiers

Networks with softmax attention as ONNX files, and properties as VNNLIB 1.0 files, in the layout of VNN-COMP: each
family is a folder with `onnx/`, `vnnlib/` and `instances.csv` (lines `onnx,vnnlib,timeout`; paths from that folder).
`sat` means that there is an input in the box for which some other output is at least that of the class; `unsat` that
there is none. `facts.json` of a family has every instance's ε and radii, and how every network was made.

Files: inputs and weights are float32. Every end of a box is a float32 number, written out in full, so a reader that
rounds to float32 or float64 has the same box. The opset is 13; norms and GELU are written out in elementary ops, and
the batch is one. Every ONNX file was evaluated by onnxruntime, by Vertex and by torch at every centre and at the ends
of every box, and compared; every property was read back, its box compared bit for bit, and its centre is no
counterexample. Only inputs that are classified correctly are asked about.

Licences: the networks that are trained here are free to use as Vertex is (Apache-2.0). The inputs come from the data
sets that each family names, whose own terms hold for them; they were not examined here.

Levels: for every input, `attacked` is the largest ε at which projected gradient descent (40 steps, 3 restarts, seed 0)
finds nothing, known to a factor of 1.1, and `certified` the largest of attacked/2, attacked/4, …, attacked/256 that
Vertex's CROWN proves.

- `inside`: ε = certified. The answer is unsat.
- `between`: ε = √(certified · attacked); where nothing is certified, attacked / 256. The answer is open.
- `outside`: ε = 1.1 · attacked, or more, until the attack succeeds. The answer is sat, as far as float64 goes.
- `hull`: there is no ε; the text of the family says what the box is.

ε has three digits. The levels are chosen with one verifier's bounds: what is `inside` for it may be hard for another.
"""
TAIL = """\
## Made again

`vertex suite make OUT` in a clone of Vertex makes it, and `vertex suite check OUT --against checksums.sha256` compares.
On one machine the same command gives the same bytes: training runs on one thread from fixed seeds. On another machine
or with another version of torch, sums are rounded differently, trained weights differ in their last digits and so do
files; the suite that counts is then the one whose checksums were published with the verdicts. `--weights` takes trained
weights from elsewhere.
"""


def readme(families: Sequence[Family], facts: Mapping[str, Mapping[str, Any]]) -> str:
    """The page; `facts`: facts.json of every family."""
    rows = ["| family | networks | instances | levels | timeout, s |", "|---|---|---|---|---|"]
    parts = []
    for family in families:
        of = facts[family.name]
        counted = Counter(row["level"] for row in of["instances"])
        levels = ", ".join(f"{count} {name}" for name, count in counted.items())
        rows.append(
            f"| `{family.name}` | {len(of['networks'])} | {len(of['instances'])} | {levels} | {family.timeout} |"
        )
        parts.append(f"## {family.title} (`{family.name}`)\n\n{family.text}\n")
    made = f"Made by Vertex {__version__} with torch {torch.__version__}."
    return "\n".join([HEAD, *rows, "", *parts, TAIL, made, ""])
