"""The family `digits`: vision transformers with LayerNorm and GELU of one to four blocks, on scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor

from vertex_lab.suite.family import Ends, Family, Network, Question, Request
from vertex_softmax.runs.demo.digits import digits
from vertex_softmax.runs.demo.model import Architecture
from vertex_softmax.runs.demo.training import prepared

TRAINING = {"epochs": 40, "seed": 0, "batch": 32, "lr": 2e-3, "adversarial": 0.05}
BLOCKS = (1, 2, 3, 4)
IMAGES = 6
TEXT = """\
Vision transformers on scikit-learn's 8 × 8 digits (`load_digits`, which is a copy of the test set of UCI's "Optical
Recognition of Handwritten Digits"; scikit-learn is BSD): 16 patches of 2 × 2 pixels, width 16, two heads, an MLP of
32 with GELU (erf), LayerNorm with variance before every part and before the classifier, the mean over tokens, 10
classes; 1, 2, 3 and 4 blocks. They are trained here, from seed 0, by fast adversarial training with ε = 0.05 (40 epochs
of AdamW on 1,437 images; the 360 images for evaluation are those whose SHA-256 is least). The inputs are the first of
these that are classified correctly; the box is every pixel within ε, cut to [0, 1]. Pixels are k/16. The network of
two blocks is that of `lab/benchmarks/radius.py`."""


def architecture(blocks: int) -> Architecture:
    """A network of so many blocks."""
    return Architecture(patch=2, dim=16, heads=2, blocks=blocks, mlp=32, norm="layer", activation="gelu")


def networks(request: Request) -> Iterator[Network]:
    """One for each number of blocks, trained unless its weights are there."""
    data = digits()
    for blocks in BLOCKS[:1] if request.quick else BLOCKS:
        name = f"layernorm-gelu-{blocks}"
        request.say(f"digits: {name}, trained unless its weights are in {request.weights}")
        request.weights.mkdir(parents=True, exist_ok=True)
        model, record = prepared(request.weights / f"digits-{name}", architecture(blocks), data, TRAINING)
        model = model.float()
        images = data.eval_images.float()
        with torch.no_grad():
            right = (model(images).argmax(1) == data.eval_labels).nonzero().flatten().tolist()
        questions = tuple(_question(images[i], i, int(data.eval_labels[i])) for i in right[: request.some(IMAGES)])
        known = {"architecture": asdict(model.architecture), "training": TRAINING, "accuracy": record["accuracy"]}
        yield Network(name, model, questions, known)


def _question(image: Tensor, number: int, label: int) -> Question:
    words = f"evaluation image {number} of the digits, class {label}; the box: every pixel within ε, cut to [0, 1]"
    return Question(f"image{number}", words, image, label, partial(_around, image), start=0.1)


def _around(image: Tensor, eps: float) -> Ends:
    exact = image.double()
    return (exact - eps).clamp(min=0), (exact + eps).clamp(max=1)


FAMILY = Family("digits", "Digits, with norms", TEXT, 100, lambda _: "", networks)
