"""Softmax rows of sentences: the weights are the network's, and none leaves its range while the sentence moves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.runs.words import IDS, words
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.runs.attention_record import AttentionLayer, AttentionRows, ends, require_rows
from vertex_softmax.runs.attention_rows import attention_layers, weights_in
from vertex_softmax.runs.records import packed, unpacked
from vertex_softmax.sets import TokenBall, TokenChoices
from vertex_softmax.sets.loading import read

pytestmark = pytest.mark.usefixtures("exported_once")


class Masked(nn.Module):
    """Two heads, padding at id 0, positions that are looked at from before."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 4)
        self.query, self.key, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def rows(self, x: Tensor, ids: Tensor) -> Tensor:
        q, k = (f(x).unflatten(-1, (2, 2)).transpose(1, 2) for f in (self.query, self.key))
        scores = q @ k.mT / 2**0.5
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        return scores.masked_fill(causal | (ids == 0)[:, None, None], -torch.inf).softmax(-1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        values = x.unflatten(-1, (2, 2)).transpose(1, 2)
        mixed = (self.rows(x, ids) @ values).transpose(1, 2).flatten(2)
        logits: Tensor = self.head((x + mixed)[:, -1])
        return logits


def inside(layer: AttentionLayer, weights: Tensor) -> bool:
    low, high = (torch.from_numpy(x.copy()) for x in ends(layer))
    return bool(((low <= weights) & (weights <= high)).all())


def test_no_weight_leaves_its_range_and_masked_ones_are_zero() -> None:
    torch.manual_seed(0)
    model = Masked().double().eval()
    ids = torch.tensor([[14, 0, 15, 9, 7]])
    ball = TokenBall.of(model, ids, 0.3, [0, 3])
    graph = read(model).graph(ball)
    (layer,) = attention_layers(graph, ball)
    heads, rows, keys = layer.shape
    assert heads == 2
    assert keys == 5
    assert weights_in(graph) == heads * rows * keys
    points = ball.sample(500, torch.Generator().manual_seed(0))[0]
    points = torch.cat([ball.centre, points])
    with torch.no_grad():
        found = model.rows(points, ids)[:, :, -rows:]  # rows that nobody reads are not computed
    assert torch.allclose(torch.from_numpy(unpacked(layer.weights, layer.shape)), found[0], atol=1e-12)
    assert inside(layer, found)
    low, high = ends(layer)
    masked = (found == 0).all(0).numpy()
    assert masked.any()
    assert (high[masked] < 1e-300).all()
    assert (high - low).max() > 0.01
    require_rows([AttentionRows(0, "it moves", (layer,))], [0])


def test_over_choices_of_words_and_at_rest() -> None:
    model = words()
    choices = TokenChoices(model, IDS[:1], {1: [14, 7, 21], 2: [15, 8]})
    graph = read(model).graph(choices.only(choices.ids))
    (layer,) = attention_layers(graph, choices)
    x = torch.cat([choices.look_up(each[None])[0] for each in choices.each()])
    with torch.no_grad():
        q, k = model.double().query(x), model.key(x)
    found = (q @ k.mT / 2).softmax(-1)
    assert len(found) == 6
    assert inside(layer, found[:, None])
    (still,) = attention_layers(graph, choices, moves=False)
    assert (still.lower, still.upper) == (None, None)
    assert still.weights == layer.weights


HALF = packed(np.full((1, 1, 2), 0.5))
LAYER = AttentionLayer("a", (1, 1, 2), HALF, packed(np.array([0.4, 0.2])), packed(np.array([0.6, 0.7])))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shape": (1, 1, 3)}, "2 numbers"),
        ({"shape": (0, 1, 2)}, "shape"),
        ({"shape": (-1, -1, 2)}, "shape"),
        ({"shape": (1 << 20, 1 << 20, 1 << 20)}, "weights of attention"),
        ({"upper": None}, "one end"),
        ({"lower": packed(np.array([0.6, 0.2]))}, "outside of its range"),
        ({"upper": packed(np.array([0.6, 0.3]))}, "outside of its range"),
        ({"lower": packed(np.array([-0.1, 0.2]))}, "between 0 and 1"),
        ({"upper": packed(np.array([1.1, 0.7]))}, "between 0 and 1"),
        ({"weights": packed(np.array([-0.5, 0.5]))}, "between 0 and 1"),
        ({"weights": packed(np.array([np.nan, 0.5]))}, "finite"),
        ({"weights": "?"}, "base64"),
    ],
)
def test_rows_that_cannot_be(change: dict[str, object], text: str) -> None:
    require_rows([AttentionRows(0, "", (LAYER,))], [0])
    bad = dataclasses.replace(LAYER, **change)  # type: ignore[arg-type]
    with pytest.raises(VertexError, match=text):
        require_rows([AttentionRows(0, "", (bad,))], [0])


def test_rows_of_nobody_and_twice() -> None:
    rows = AttentionRows(3, "", (LAYER,))
    with pytest.raises(VertexError, match="sentence 3"):
        require_rows([rows], [0])
    with pytest.raises(VertexError, match="twice"):
        require_rows([rows, rows], [3])
