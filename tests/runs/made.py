"""A small network with inputs that it gets right but for one, and a run over them."""

from __future__ import annotations

from functools import cache

import torch

from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.runs.subject import Inputs, Subject, subject


@cache
def network() -> PatchTransformer:
    model = PatchTransformer(image=4, patch=2, dim=4, heads=2, mlp=6, classes=3, seed=3).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.5)
    return model


@cache
def inputs(count: int = 5) -> Inputs:
    x = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        labels = network()(x).argmax(1)
    labels[count - 1] = (labels[count - 1] + 1) % 3  # the last one is misclassified
    return Inputs("made", x, labels, (0.0, 1.0), tuple(range(10, 10 + count)))


@cache
def subject_of(some: Inputs) -> Subject:
    return subject(network(), some, "tiny")
