"""What the perturbed input is, images or tokens, and numbers of it that move on their own, each in a known interval.

Invariant: the numbers u (batch, tokens, m) of the inputs of `input_set` fill the box lower ≤ u ≤ upper, to rounding:
no two numbers depend on the same entry of the input; `point(t)` is an input with the numbers lower + t (upper − lower).
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from vertex_softmax.sets import InputSet, LinfBall, TokenBall

PATCH = 4
"""Pixels on a side of an image's patch: 16 pixels for at most 8 numbers."""
WORDS = 11


class Image(nn.Module):
    """Pixels (batch, 1, h, w) → numbers (batch, patches, m), by a convolution: each pixel is of one number."""

    scale: Tensor
    shift: Tensor

    def __init__(self, m: int, tokens: int, generator: torch.Generator) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, m, PATCH, PATCH, bias=False, dtype=torch.float64)
        owner = torch.randint(m, (PATCH * PATCH,), generator=generator)
        owner[torch.randperm(PATCH * PATCH, generator=generator)[:m]] = torch.arange(m)
        weights = torch.randn(PATCH * PATCH, generator=generator, dtype=torch.float64)
        weights = torch.where(weights.abs() < 0.1, 0.5, weights)
        with torch.no_grad():
            self.patches.weight.zero_()
            self.patches.weight.view(m, -1)[owner, torch.arange(PATCH * PATCH)] = weights
        self.register_buffer("scale", torch.ones(tokens, m, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(tokens, m, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """The numbers of each patch."""
        y: Tensor = self.patches(x).flatten(2).transpose(1, 2) * self.scale + self.shift
        return y


class Tokens(nn.Module):
    """Ids (batch, tokens) → their embeddings, which are perturbed → numbers (batch, tokens, m)."""

    scale: Tensor
    shift: Tensor

    def __init__(self, m: int, tokens: int, generator: torch.Generator) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, m, dtype=torch.float64)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.randn(WORDS, m, generator=generator, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(tokens, m, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(tokens, m, dtype=torch.float64))

    def forward(self, ids: Tensor) -> Tensor:
        """The numbers of each token; of embeddings, where those are given instead of ids."""
        x = ids if ids.is_floating_point() else self.embedding(ids)
        return x * self.scale + self.shift


@dataclasses.dataclass
class Opening:
    """The first part of a network, its input set (one input) and the box of its numbers, (tokens, m) each."""

    module: Image | Tokens
    input_set: InputSet
    lower: Tensor
    upper: Tensor
    least: Tensor
    """(1, *input shape): an input with the numbers `lower`"""
    most: Tensor

    def point(self, t: Tensor) -> Tensor:
        """(1, *input shape): an input with the numbers (1 − t) lower + t upper; t (tokens, m) in 0 … 1."""
        share = self._spread(t)
        found = torch.where(share == 1, self.most, self.least + share * (self.most - self.least))
        return found.clamp(self.input_set.lower, self.input_set.upper)

    def _spread(self, t: Tensor) -> Tensor:
        """What belongs to each number, at each entry of the input it depends on."""
        if isinstance(self.module, Tokens):
            return t[None]
        image = self.least.shape
        owner = self.module.patches.weight.flatten(1).abs().argmax(0)  # (pixels of a patch)
        rows, columns = image[-2] // PATCH, image[-1] // PATCH
        pixels = t[:, owner].reshape(rows, columns, PATCH, PATCH)
        return pixels.permute(0, 2, 1, 3).reshape(image)

    def move(self, lower: Tensor, upper: Tensor) -> None:
        """Scale and shift the numbers so that they range from `lower` to `upper`, where they move at all."""
        width = self.upper - self.lower
        scale = torch.where(width > 0, (upper - lower) / width.where(width > 0, 1.0), 1.0)
        shift = torch.where(width > 0, lower - self.lower * scale, (lower + upper) / 2 - self.lower)
        with torch.no_grad():
            self.module.scale.copy_(scale)
            self.module.shift.copy_(shift)
        self.lower, self.upper = self.lower * scale + shift, self.upper * scale + shift


def opened(kind: str, m: int, tokens: int, eps: float, generator: torch.Generator) -> Opening:
    """An opening of m numbers per token; `kind` is vision or tokens."""
    if kind == "vision":
        return _image(m, tokens, eps, generator)
    module = Tokens(m, tokens, generator)
    ids = torch.randint(WORDS, (1, tokens), generator=generator)
    x = module.embedding(ids).detach()
    moving = torch.rand(tokens, generator=generator) < 0.7
    moving[int(torch.randint(tokens, (1,), generator=generator))] = True
    ball = TokenBall(x, eps, tokens=moving, ids=ids)
    return Opening(module, ball, ball.lower[0], ball.upper[0], ball.lower, ball.upper)


def _image(m: int, tokens: int, eps: float, generator: torch.Generator) -> Opening:
    rows = 2 if tokens % 2 == 0 else 1
    module = Image(m, tokens, generator)
    x = torch.rand(1, 1, rows * PATCH, tokens // rows * PATCH, generator=generator, dtype=torch.float64)
    ball = LinfBall(x, eps, clip=(0.0, 1.0))
    falls = module.patches.weight.sum(0)[0].repeat(rows, tokens // rows) < 0  # each pixel's weight, wherever it is used
    least, most = torch.where(falls, ball.upper, ball.lower), torch.where(falls, ball.lower, ball.upper)
    with torch.no_grad():
        lower, upper = (module.patches(end).flatten(2).transpose(1, 2)[0] for end in (least, most))
    return Opening(module, ball, lower, upper, least, most)
