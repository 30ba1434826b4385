"""The family `max_of_k`: attention-only networks that say which of k tokens is the largest, over embedded tokens.

A box of one-hot inputs would hold points with several tokens at once, or none, and says little; linear constraints
on inputs, which would make it a simplex, are not in VNNLIB 1.0. So the input is the embedded sequence, before positions
are added: a ball around it, or the hull of the embeddings of several tokens, which holds real sequences.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vertex_lab.suite.family import Ends, Family, Network, Question, Request
from vertex_softmax.foundation.errors import InvalidValueError

SOURCE = Path(__file__).parents[3] / "examples" / "max_of_k" / "network.py"
VOCABULARY, STEPS = 64, 3000
LENGTHS = (2, 4)
SEQUENCES, HULLS = 6, 4
WIDTHS = (2, 4, 8)
DRAWN = 1000
GAP = 8
"""By how much the largest token of a sequence exceeds the others: neighbours are what the networks confuse."""
TEXT = """\
The Max-of-k model of Gross et al. 2024 ("Compact proofs of model performance via mechanistic interpretability"): one
layer of attention, one head, width 32, no norm, no MLP, 64 tokens, logits read at the last token; sequences of 2 and of
4. Trained here from seed 0 by `examples/max_of_k` (3,000 steps of AdamW on random sequences); nothing is fetched. The
input of the ONNX file is the embedded sequence, (1, k, 32), without positions; the network adds them. Instances named
`ball` ask for every number of every embedding within ε. Instances named `tokens` have no ε: each position but that of
the largest token may hold any of w consecutive tokens, and the box is the hull of their embeddings. `unsat` proves all
these sequences right; `sat` may be a point that is no sequence. Boxes of one-hot inputs are not asked about: they hold
points with several tokens at one position, and VNNLIB 1.0 has no linear constraints on inputs to leave them out."""


class Embedded(nn.Module):
    """Embedded sequences (batch, k, d) to logits (batch, vocabulary)."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        super().__init__()
        for name, value in weights.items():
            if name != "E":
                self.register_buffer(name, torch.from_numpy(np.asarray(value)).float())

    def forward(self, x: Tensor) -> Tensor:
        """As `examples/max_of_k/network.py` says."""
        of = self.get_buffer
        x = x + of("P")
        last = x[:, -1:]
        query = last @ of("W_Q") + of("b_Q")
        keys = x @ of("W_K") + of("b_K")
        weights = (query @ keys.transpose(1, 2) * (1 / math.sqrt(query.shape[-1]))).softmax(-1)
        mixed = weights @ (x @ of("W_V") + of("b_V"))
        found: Tensor = ((last + mixed @ of("W_O") + of("b_O")) @ of("W_U") + of("b_U"))[:, 0]
        return found


def networks(request: Request) -> Iterator[Network]:
    """One for each length."""
    example = _example()
    for length in LENGTHS[:1] if request.quick else LENGTHS:
        name = f"max-of-{length}"
        path = request.weights / f"{name}.npz"
        request.say(f"max_of_k: {name}, trained unless its weights are in {request.weights}")
        if not path.exists():
            request.weights.mkdir(parents=True, exist_ok=True)
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                example.save(example.trained(VOCABULARY, length, steps=STEPS), path)
            finally:
                torch.set_num_threads(threads)
        weights = example.load(path)
        model = Embedded(weights).eval()
        table = torch.from_numpy(weights["E"]).float()
        questions = tuple(_questions(model, table, length, request))
        known = {
            "k": length,
            "vocabulary": VOCABULARY,
            "d": table.shape[1],
            "seed": 0,
            "sha256": example.digest(weights),
        }
        yield Network(name, model, questions, known)


def _questions(model: nn.Module, table: Tensor, length: int, request: Request) -> Iterator[Question]:
    """Balls around sequences, and hulls of tokens; sequences are drawn from seed 0 and must be classified correctly."""
    random = torch.Generator().manual_seed(0)
    balls, hulls = request.some(SEQUENCES), request.some(HULLS)
    for _ in range(DRAWN):
        tokens = torch.randint(VOCABULARY - max(WIDTHS), (length,), generator=random)
        largest, others = int(tokens.max()), tokens.sort().values[:-1]
        if largest - int(others[-1]) < GAP + max(WIDTHS):
            continue
        centre = table[tokens]
        with torch.no_grad():
            if int(model(centre[None]).argmax()) != largest:
                continue
        said = "-".join(map(str, tokens.tolist()))
        if balls > 0:
            balls -= 1
            words = f"the sequence {said}, largest token {largest}; the box: every number of its embedding within ε"
            yield Question(f"ball-{said}", words, centre, largest, partial(_around, centre), start=0.1)
        elif hulls > 0:
            hulls -= 1
            for width in WIDTHS:
                words = (
                    f"the sequence {said}, largest token {largest}; the box: the hull of the embeddings of every "
                    f"sequence in which each other token t is one of t to t + {width - 1}"
                )
                yield Question(f"tokens{width}-{said}", words, centre, largest, fixed=_hull(table, tokens, width))
        else:
            return
    raise InvalidValueError(f"Max-of-{length}: too few of {DRAWN} sequences are classified correctly")


def _around(centre: Tensor, eps: float) -> Ends:
    exact = centre.double()
    return exact - eps, exact + eps


def _hull(table: Tensor, tokens: Tensor, width: int) -> Ends:
    """The least and the greatest of the embeddings at every position, (k, d)."""
    largest = int(tokens.max())
    rows = [table[t : t + (1 if t == largest else width)] for t in tokens.tolist()]
    return torch.stack([row.amin(0) for row in rows]), torch.stack([row.amax(0) for row in rows])


def _example() -> ModuleType:
    """The module of the example, which is no package of the laboratory."""
    known = "vertex_lab_suite_max_of_k_network"
    if known in sys.modules:
        return sys.modules[known]
    spec = importlib.util.spec_from_file_location(known, SOURCE)
    if spec is None or spec.loader is None:
        raise InvalidValueError(f"{SOURCE} is not there: the suite is made in a clone of the project")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[known] = module
    return module


FAMILY = Family(
    "max_of_k",
    "Max-of-k",
    TEXT,
    60,
    lambda _: "" if SOURCE.exists() else f"{SOURCE} is not there: make the suite in a clone of the project",
    networks,
)
