"""Training a classifier of sentences: the same seed gives the same weights on the same machine."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from vertex_lab.sentences.data import Sentences
from vertex_lab.sentences.model import SentenceClassifier


@dataclass(frozen=True)
class Recipe:
    """How to train; the weights with the best accuracy on `dev` are kept."""

    epochs: int = 12
    batch: int = 32
    rate: float = 5e-4
    warm_up: float = 0.1
    decay: float = 0.1
    dropout: float = 0.2
    word_dropout: float = 0.1
    noise: float = 0.02
    seed: int = 0


def train(
    model: SentenceClassifier,
    parts: dict[str, Sentences],
    recipe: Recipe,
    special: dict[str, int],
    progress: Callable[[int, float, float], None],
    device: str = "cpu",
) -> float:
    """Train in place and return the accuracy on `dev`; `special` are the ids of [PAD] and [UNK].

    `progress(epoch, mean loss, accuracy on dev)` is called after each epoch.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    torch.manual_seed(recipe.seed)
    model.to(device).train()
    some = parts["train"]
    steps = math.ceil(len(some.ids) / recipe.batch) * recipe.epochs
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=recipe.decay, betas=(0.9, 0.98))
    warm = recipe.warm_up * steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, max(0.0, (steps - step) / (steps - warm)))
    )
    best, kept = -1.0, copy.deepcopy(model.state_dict())
    for epoch in range(recipe.epochs):
        losses = []
        for indices in torch.randperm(len(some.ids), generator=generator).split(recipe.batch):
            ids, present, labels = some.padded(indices, special["pad"])
            dropped = (torch.rand(ids.shape, generator=generator) < recipe.word_dropout) & present
            ids = torch.where(dropped, special["unknown"], ids)
            loss = _loss(model, ids.to(device), present.to(device), labels.to(device), recipe)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        reached = accuracy(model, parts["dev"], special["pad"], device)
        if reached > best:
            best, kept = reached, copy.deepcopy(model.state_dict())
        progress(epoch, sum(losses) / len(losses), reached)
    model.load_state_dict(kept)
    model.cpu().eval()
    return best


def _loss(model: SentenceClassifier, ids: Tensor, present: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """Cross entropy with words whose vectors are disturbed a little, so that the network does not hang on details."""
    x = model.words(ids)
    x = x + recipe.noise * torch.randn_like(x)
    return functional.cross_entropy(model.from_embeddings(x, present, recipe.dropout), labels)


def accuracy(model: SentenceClassifier, some: Sentences, pad: int, device: str = "cpu") -> float:
    """The share of sentences that are classified correctly; the model's mode is left as it was."""
    before, right = model.training, 0
    model.eval()
    with torch.no_grad():
        for indices in torch.arange(len(some.ids)).split(256):
            ids, present, labels = some.padded(indices, pad)
            right += int((model(ids.to(device), present.to(device)).argmax(1).cpu() == labels).sum())
    model.train(before)
    return right / len(some.ids)
