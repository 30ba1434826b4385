"""Training a small classifier reproducibly (the same seed gives the same weights), and saving it without pickle.

data = digits()
model = PatchTransformer(patch=2, dim=16, seed=1)
train(model, data.train_images, data.train_labels, epochs=30, seed=1, adversarial=0.03)
save(model, Path("out/small"), describe(data, seed=1, epochs=30, adversarial=0.03))
model, record = load(Path("out/small"))         # out/small.safetensors and out/small.json
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.foundation.files import read_whole, write_whole
from vertex_softmax.runs.demo.digits import Dataset
from vertex_softmax.runs.demo.model import Architecture, PatchTransformer

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the epochs done and their total."""
Record: TypeAlias = dict[str, Any]
"""The record of a trained model as plain JSON: data, settings, accuracies, architecture."""
MOST_BYTES = {"json": 1 << 24, "safetensors": 1 << 32}
"""The largest sizes of a model's two files."""
MOST_BLOCKS = 1 << 10
"""The most blocks of a network that is loaded."""


# More than six parameters: the settings of a training run, which records keep by these names.
def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    seed: int = 0,
    batch: int = 256,
    lr: float = 1e-3,
    weight_decay: float = 1e-4,
    gradient_clip: float = 1.0,
    noise: float = 0.0,
    adversarial: float = 0.0,
    progress: Progress | None = None,
) -> float:
    """Train a model in place; return its accuracy on these images. The model is in eval mode afterwards.

    The same model, data and seed give the same weights, bit for bit: training runs on one thread, and the seed
    determines the order of the images. The optimiser is AdamW on the cross-entropy with a clipped gradient norm.
    images (n, *input shape) in [0, 1], labels (n,). noise: uniform noise in [−noise, noise] is added to each image.
    adversarial: the loss is taken at a point within this distance of the image that one signed gradient step from a
    random start reaches (fast adversarial training). Both kinds of images are clipped to [0, 1].
    """
    _check(images, labels, {"epochs": epochs, "batch": batch, "lr": lr, "gradient_clip": gradient_clip})
    for name, size in (("noise", noise), ("adversarial", adversarial), ("weight_decay", weight_decay)):
        if not (size >= 0 and math.isfinite(size)):
            raise InvalidValueError(f"{name} is {size!r}; it must be a number, at least 0")
    weights = next(model.parameters())
    images, labels = images.to(weights.device, weights.dtype), labels.to(weights.device)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    model.train()
    with one_thread():
        for epoch in range(epochs):
            for picked in torch.randperm(len(images), generator=generator).split(batch):
                x, y = images[picked], labels[picked]
                if noise:
                    x = (x + noise * _uniform(x, generator)).clamp(0, 1)
                if adversarial:
                    x = _adversarial(model, x, y, adversarial, generator)
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), gradient_clip)
                optimizer.step()
            if progress is not None:
                progress(epoch + 1, epochs)
        model.eval()
        return accuracy(model, images, labels)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of images whose largest logit is the label's."""
    weights = next(model.parameters())
    with torch.no_grad():
        found = model(images.to(weights.device, weights.dtype)).argmax(-1)
    return float((found == labels.to(found.device)).double().mean())


def describe(data: Dataset, **settings: Any) -> Record:
    """The record of a training run: the data with their checksum, and the settings of `train`."""
    return {"data": data.name, "checksum": data.checksum, "training": settings, "torch": torch.__version__}


def save(model: PatchTransformer, path: Path, record: Mapping[str, Any]) -> None:
    """Write PATH.safetensors, the weights, and PATH.json: the record, the architecture, the weights' SHA-256.

    The JSON is written last and has the SHA-256 of the weights, so that `load` notices a pair that does not match.
    """
    weights = safetensors.torch.save({name: value.contiguous() for name, value in model.state_dict().items()})
    known = {"architecture": asdict(model.architecture), "sha256": hashlib.sha256(weights).hexdigest()}
    write_whole(_beside(path, "safetensors"), weights)
    write_whole(_beside(path, "json"), (json.dumps({**record, **known}, indent=1) + "\n").encode())


def load(path: Path) -> tuple[PatchTransformer, Record]:
    """The model that `save` wrote, in eval mode and in the precision it was saved in, and its record.

    The two files are not trusted: no network is made that has more weights than the file of weights.
    """
    remedy = f"a model is two files, {path.name}.safetensors and {path.name}.json"
    text, numbers = (read_whole(_beside(path, end), most, remedy) for end, most in MOST_BYTES.items())
    try:
        record: Record = json.loads(text)
        architecture, expected = Architecture(**record["architecture"]), record["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidValueError(
            f"{_beside(path, 'json')} does not describe a model of the zoo ({_short(error)}); train and save it again"
        ) from error
    if hashlib.sha256(numbers).hexdigest() != expected:
        raise InvalidValueError(f"{_beside(path, 'safetensors')} is not the file that {path.name}.json describes")
    try:  # the format contains tensors only, and no code
        weights = safetensors.torch.load(numbers)
        count = sum(value.numel() for value in weights.values())
        if count != architecture.numbers or architecture.blocks > MOST_BLOCKS:
            raise InvalidValueError(
                f"it has {count} numbers, and {architecture.numbers} are needed; at most {MOST_BLOCKS} blocks are read"
            )
        if not all(value.is_floating_point() and bool(value.isfinite().all()) for value in weights.values()):
            raise InvalidValueError("it has numbers that are not finite, or integers")
        model = PatchTransformer.of(architecture)
        model.to(next(iter(weights.values())).dtype).load_state_dict(weights)
    except (RuntimeError, TypeError, KeyError, ValueError, safetensors.SafetensorError) as error:
        raise InvalidValueError(
            f"{_beside(path, 'safetensors')} does not fit the architecture in {path.name}.json: {_short(error)}"
        ) from error
    return model.eval(), record


def _short(error: Exception) -> str:
    return repr(error)[:500]


def prepared(
    path: Path, architecture: Architecture, data: Dataset, settings: Mapping[str, Any], progress: Progress | None = None
) -> tuple[PatchTransformer, Record]:
    """The model of this architecture trained on this data with these settings: loaded from `path`, else trained.

    `settings` are the keyword arguments of `train`; their seed, by default 0, is also that of the initial weights. A
    different or damaged model at `path` is replaced. The record has train_accuracy, accuracy, and the version of torch.
    """
    wanted = {**describe(data, **settings), "architecture": asdict(architecture)}
    try:
        model, record = load(path)
        if all(record.get(key) == value for key, value in wanted.items() if key != "torch"):
            return model, record
    except InvalidValueError:
        pass
    model = PatchTransformer.of(architecture, settings.get("seed", 0))
    reached = train(model, data.train_images, data.train_labels, **settings, progress=progress)
    accuracies = {"train_accuracy": reached, "accuracy": accuracy(model, data.eval_images, data.eval_labels)}
    save(model, path, {**wanted, **accuracies})
    return load(path)


def _adversarial(model: nn.Module, x: Tensor, y: Tensor, eps: float, generator: torch.Generator) -> Tensor:
    """Points within eps of x and in [0, 1] with a larger loss: one signed gradient step from a random start."""
    start = (x + eps * _uniform(x, generator)).clamp(0, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(functional.cross_entropy(model(start), y), start)
    moved = start.detach() + 1.25 * eps * gradient.sign()
    return moved.clamp(x - eps, x + eps).clamp(0, 1)


def _uniform(x: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform numbers in [−1, 1] of x's shape; drawn on the CPU, so that they are the same on every device."""
    return torch.rand(x.shape, generator=generator, dtype=x.dtype).to(x.device) * 2 - 1


def _check(images: Tensor, labels: Tensor, positive: Mapping[str, float]) -> None:
    for name, value in positive.items():
        if not (value > 0 and math.isfinite(value)):
            raise InvalidValueError(f"{name} is {value!r}; it must be a number, more than 0")
    if labels.is_floating_point() or labels.dim() != 1:
        raise InvalidTypeError(f"labels has dtype {labels.dtype} and shape {tuple(labels.shape)}; pass (n) integers")
    if len(images) != len(labels) or len(images) == 0:
        raise InvalidValueError(
            f"there are {len(images)} images and {len(labels)} labels; pass as many of each, not none"
        )


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}.{ending}")


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which torch runs on one thread: sums are taken in the same order, and times are steady."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
