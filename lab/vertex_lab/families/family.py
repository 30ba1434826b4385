"""A family of models: how a tiny one of it is made, and the question asked about it.

Invariant: the module is what the library makes of a config; nothing in it is replaced, wrapped or patched. Its weights
are random, so that nothing has to be downloaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import vertex_softmax as vx
from vertex_softmax.sets.base import InputSet
from vertex_softmax.sets.loading import Loaded, read

SEED = 0
IDS = ((5, 7, 11, 6, 3),)
"""The sentence of every model of text: five tokens, of which the second and the fourth move."""
MOVED = (1, 3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A module in eval mode, the set of its inputs, and what reads its classes."""

    module: nn.Module
    model: Loaded
    """The module as it was read, with its further arguments."""
    inputs: InputSet
    start: Tensor
    """What the module itself takes at the centre of the set: numbers, or token ids, in a batch of 1."""
    position: int | None = None
    """The row of the output that has the classes, if it has several (`certify`'s argument)."""
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further arguments of the module."""

    @property
    def label(self) -> Tensor:
        """What the module says at the centre."""
        with torch.no_grad():
            out = self.module(self.start, **self.kwargs)
        scores = out if isinstance(out, Tensor) else out["logits"] if "logits" in out else out[0]
        return scores.argmax(-1) if self.position is None else scores[:, self.position].argmax(-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One row of the table of docs/your-model.md."""

    name: str
    model: str
    """The class of the model, or its name in its library."""
    library: str
    """The package it comes from."""
    moves: str
    """What is perturbed: pixels, embeddings, …"""
    make: Callable[[], Question]
    why_not: str = ""
    """Why this family cannot be had; empty if it can."""
    quick: bool = False
    """Whether its test runs by default, and not only with the slow suites."""


def numbers(module: nn.Module, shape: tuple[int, ...], eps: float = 1e-3) -> Question:
    """Every number of one random input ± eps."""
    x = torch.rand(1, *shape, generator=torch.Generator().manual_seed(SEED))
    module.eval()(x)  # some modules complete their settings in their first call
    return Question(module=module, model=read(module), inputs=vx.LinfBall(x, eps), start=x)


def words(
    module: nn.Module, eps: float, position: int | None = None, kwargs: Mapping[str, Any] | None = None
) -> Question:
    """The embeddings of two of the five words ± eps."""
    ids, module = torch.tensor(IDS), module.eval()
    module(ids, **(kwargs or {}))  # some modules complete their settings in their first call
    model = read(module, kwargs=kwargs)
    ball = vx.TokenBall.of(model, ids, eps, tokens=list(MOVED))
    return Question(module=module, model=model, inputs=ball, start=ids, position=position, kwargs=kwargs or {})


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """A module with the same random weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return make()
