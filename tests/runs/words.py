"""A small classifier of sentences as a file of code, with its weights, sentences and choices of words."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

CODE = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 4)
        self.query, self.key, self.value, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, ids):
        x = self.words(ids)
        x = x + nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.head(x.mean(1))

class Plain(Words):
    def forward(self, ids):
        x = self.words(ids)
        return self.head((x + self.value(x)).mean(1))

def net():
    return Words()

def other():
    return Plain()

def double():
    return Words().double()

def number():
    return 3

def broken():
    raise KeyError("nothing here")

def leaves():
    raise SystemExit(3)

def needs(size, depth=2):
    return Words()

def image():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))

ready = Words()
text = "words"
"""


class Words(nn.Module):
    """The same module as `net` of CODE."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 4)
        self.query, self.key, self.value, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        logits: Tensor = self.head(x.mean(1))
        return logits


def words(seed: int = 0) -> Words:
    torch.manual_seed(seed)
    return Words().eval()


IDS = torch.tensor([[3, 14, 15, 9], [2, 6, 5, 28], [1, 8, 28, 18]])
CHOICES: tuple[dict[int, list[int]], ...] = ({1: [14, 7, 21], 2: [8, 15]}, {}, {0: [1, 2, 4], 3: [18, 29], 2: [28]})


def written(place: Path) -> Path:
    """code.py, weights.safetensors, moved.safetensors, data.json and choices.json in a folder."""
    (place / "code.py").write_text(CODE)
    model = words()
    save_file(dict(model.state_dict()), place / "weights.safetensors")
    moved = {name: value.clone() for name, value in model.state_dict().items()}
    moved["words.weight"][14, 0] += 0.125  # a row of the table, which is no part of the graph
    save_file(moved, place / "moved.safetensors")
    with torch.no_grad():
        labels = model(IDS).argmax(1).tolist()
    (place / "data.json").write_text(json.dumps({"ids": IDS.tolist(), "labels": labels}))
    rows = [
        {"ids": ids, "label": label, "choices": {str(t): each for t, each in choices.items()}}
        for ids, label, choices in zip(IDS.tolist(), labels, CHOICES, strict=True)
    ]
    (place / "choices.json").write_text(json.dumps(rows))
    return place
