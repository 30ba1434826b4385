"""A text classifier whose words may move: how far each word of a sentence can, before the verdict could change.

    python examples/text_classifier.py            # under a minute on one core
    python examples/text_classifier.py --quick    # seconds
    python examples/text_classifier.py --quick --out out/text && vertex report out/text    # the same as a page

The language is made here: sentences like "the film was not very good", and "not" turns them around. The classifier is
an embedding, nn.TransformerEncoder and a linear head. A word moves in its embedding: every number of it by at most ε.
For each word alone, ε is bisected: certified up to one number, fooled by an attack from another; the truth lies
between. The last column is how far away the nearest other word is, in the same norm: beyond the certified balls, so
this is about stability and not about synonyms.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import vertex_softmax as vx
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.bisection import Bisection
from vertex_softmax.runs.demo.training import one_thread
from vertex_softmax.runs.part_radii import part_radii, parts_of
from vertex_softmax.runs.python_models import weights_identity
from vertex_softmax.runs.sentences import Sentences
from vertex_softmax.runs.subject import subject
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets.loading import read

FIRST = ("the", "this", "our")
SUBJECT = ("film", "story", "meal", "room")
VERB = ("was", "seemed")
NOT = ("not", "really")
DEGREE = ("very", "quite", "so")
GOOD = ("good", "great", "lovely", "fine")
BAD = ("bad", "awful", "dull", "cold")
VOCABULARY = (*FIRST, *SUBJECT, *VERB, *NOT, *DEGREE, *GOOD, *BAD)
CLASSES = ("negative", "positive")
LEAST, MOST = 0.02, 4.0
"""between which ε is looked for"""
SHOWN = ("the film was really very good", "this meal was not quite awful", "our room seemed not so cold")


class Classifier(nn.Module):
    """Word numbers (batch, 6) to two class scores."""

    def __init__(self, d: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(len(VOCABULARY), d)
        self.positions = nn.Parameter(0.1 * torch.randn(6, d))
        layer = nn.TransformerEncoderLayer(d, 2, 2 * d, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(d, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.encoder(self.words(ids) + self.positions).mean(1))
        return scores


def sentences() -> tuple[Tensor, Tensor]:
    """Every sentence as word numbers, (n, 6), and its class."""
    number = {word: i for i, word in enumerate(VOCABULARY)}
    all_of_them = list(itertools.product(FIRST, SUBJECT, VERB, NOT, DEGREE, GOOD + BAD))
    labels = [(words[5] in GOOD) != (words[3] == "not") for words in all_of_them]
    return torch.tensor([[number[w] for w in words] for words in all_of_them]), torch.tensor(labels).long()


def trained(epochs: int) -> tuple[Classifier, float]:
    """The classifier, and its share of right answers on sentences that it was not trained on."""
    torch.manual_seed(0)
    ids, labels = sentences()
    order = torch.randperm(len(ids))
    known, new = order[len(ids) // 4 :], order[: len(ids) // 4]
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-2)
    for _ in range(epochs):
        for picked in known[torch.randperm(len(known))].split(64):
            optimizer.zero_grad()
            functional.cross_entropy(model(ids[picked]), labels[picked]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return model, float((model(ids[new]).argmax(-1) == labels[new]).double().mean())


def per_word(model: Classifier, ids: Tensor, method: str, steps: int) -> tuple[Tensor, Tensor]:
    """For each word of a sentence, ids (6): the largest ε certified, and the least at which an attack succeeds."""
    words = len(ids)
    every = ids.expand(words, -1)  # a copy of the sentence for each word …
    alone = torch.eye(words, dtype=torch.bool)  # … in which only that word moves
    label = int(model(ids[None]).argmax())
    network = read(model)  # once, for every set
    graph = network.graph(vx.TokenBall.of(network, every, 0.0, alone))  # what the attack climbs on

    def verified(eps: Tensor) -> Tensor:
        ball = vx.TokenBall.of(network, every, eps, alone)
        return vx.certify(network, ball, label, method, options=Options(goal=0.0), attack=None).certified

    def not_fooled(eps: Tensor) -> Tensor:
        return pgd(graph, vx.TokenBall.of(network, every, eps, alone), label).worst > 0

    return bisected(verified, words, steps)[0], bisected(not_fooled, words, steps)[1]


def recorded(model: Classifier, shown: Sequence[str], method: str, out: Path) -> None:
    """The same by the library's own search, as a run in a folder, of which `vertex report` makes a page."""
    ids = torch.tensor([[VOCABULARY.index(word) for word in text.split()] for text in shown])
    network, labels = read(model), model(ids).argmax(-1)
    words = Sentences("sentences", ids, labels, tuple(range(len(ids)))).inputs(network, None, math.inf)
    inputs = dataclasses.replace(words, words=dict(enumerate(VOCABULARY)), classes=CLASSES)
    about = subject(network, inputs, "text classifier", weights_identity(model))
    part_radii(about, inputs, parts_of(inputs), (method,), out, Bisection(LEAST, MOST, precision=0.1))


def bisected(holds: Callable[[Tensor], Tensor], count: int, steps: int) -> tuple[Tensor, Tensor]:
    """The largest ε tried at which it held (0: none) and the least at which it did not (inf: none), of each set."""
    low, high = torch.full((count,), LEAST), torch.full((count,), MOST)
    largest, least = torch.zeros(count), torch.full((count,), torch.inf)
    for _ in range(steps):
        eps = (low * high).sqrt()
        held = holds(eps)
        low, high = torch.where(held, eps, low), torch.where(held, high, eps)
        largest, least = torch.where(held, eps, largest), torch.where(held, least, eps)
    return largest, least


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, certify word by word, and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="joint")
    parser.add_argument("--quick", action="store_true", help="one sentence, crown, fewer steps")
    parser.add_argument("--out", type=Path, help="also write a run to this folder, for `vertex report`")
    asked = parser.parse_args(arguments)
    shown, method, steps = (SHOWN[:1], "crown", 5) if asked.quick else (SHOWN, asked.method, 6)
    with one_thread():
        model, share = trained(8 if asked.quick else 12)
        vectors = model.words.weight.detach()
        apart = (vectors[:, None] - vectors).abs().amax(-1).fill_diagonal_(torch.inf)
        console = Console()
        console.print(f"{len(VOCABULARY)} words, {share:.1%} right on new sentences; {method}")
        for text in shown:
            ids = torch.tensor([VOCABULARY.index(word) for word in text.split()])
            certified, fooled = per_word(model, ids, method, steps)
            said = CLASSES[int(model(ids[None]).argmax())]
            table = Table("word", "may move by ε ≤", "fooled from ε", "nearest word", title=f"“{text}”: {said}")
            for i, word in enumerate(text.split()):
                near, distance = int(apart[ids[i]].argmin()), float(apart[ids[i]].amin())
                row = f"{certified[i]:.3f}", f"{fooled[i]:.3f}", f"{VOCABULARY[near]} at {distance:.2f}"
                table.add_row(word, *row, style="bold" if certified[i] == certified.min() else None)
            console.print(table)
        if asked.out is not None:
            recorded(model, shown, method, asked.out)
            console.print(f"written: {asked.out / 'run.json'}; a page of it: vertex report {asked.out}")


if __name__ == "__main__":
    main()
