"""Training a small classifier so that the same seed gives the same weights, and keeping it without pickle.

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
"""What is known of a trained model, as plain JSON."""
MOST_BYTES = {"json": 1 << 24, "safetensors": 1 << 32}
"""Of a model's two files."""
MOST_BLOCKS = 1 << 10


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
    """The same model, data and seed give the same weights, bit for bit: it runs on one thread and shuffles by the seed.

    AdamW on the cross-entropy, with the gradient's norm clipped; then the model is in eval mode. Returns the accuracy
    on these images. images (n, *input shape) in [0, 1], labels (n). noise: each image is moved by uniform noise in
    [−noise, noise]. adversarial: the loss is taken at the worst point that one signed gradient step from a random
    start finds within this distance of the image (fast adversarial training). Both stay in [0, 1].
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
                    x = _worse(model, x, y, adversarial, generator)
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
    """The record of a training run: which data, by checksum, and which settings `train` was given."""
    return {"data": data.name, "checksum": data.checksum, "training": settings, "torch": torch.__version__}


def save(model: PatchTransformer, path: Path, record: Mapping[str, Any]) -> None:
    """Write PATH.safetensors, the weights, and PATH.json: the record, the architecture, the weights' SHA-256.

    The JSON goes last and names its weights, so that a pair that does not belong together is noticed.
    """
    weights = safetensors.torch.save({name: value.contiguous() for name, value in model.state_dict().items()})
    known = {"architecture": asdict(model.architecture), "sha256": hashlib.sha256(weights).hexdigest()}
    write_whole(_beside(path, "safetensors"), weights)
    write_whole(_beside(path, "json"), (json.dumps({**record, **known}, indent=1) + "\n").encode())


def load(path: Path) -> tuple[PatchTransformer, Record]:
    """The model that `save` wrote, in eval mode and in the precision it was saved in, and its record.

    Nobody vouches for the two files: no network is made that has more weights than the file of weights.
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
    try:  # the format holds tensors and nothing that could run
        weights = safetensors.torch.load(numbers)
        there = sum(value.numel() for value in weights.values())
        if there != architecture.numbers or architecture.blocks > MOST_BLOCKS:
            raise InvalidValueError(
                f"it has {there} numbers, and {architecture.numbers} are needed; blocks up to {MOST_BLOCKS} are read"
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
    """The model of this architecture trained on this data with these settings: loaded if it lies at `path`, else made.

    `settings` goes to `train` as it is; its seed, 0 if it has none, is also that of the first weights. What lies at
    `path` and is something else, or is damaged, is replaced; the record says which torch trained it. The record has
    train_accuracy and accuracy.
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


def _worse(model: nn.Module, x: Tensor, y: Tensor, eps: float, generator: torch.Generator) -> Tensor:
    """A point within eps of x and in [0, 1] where the loss is larger: one signed step from a random start."""
    start = (x + eps * _uniform(x, generator)).clamp(0, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(functional.cross_entropy(model(start), y), start)
    moved = start.detach() + 1.25 * eps * gradient.sign()
    return moved.clamp(x - eps, x + eps).clamp(0, 1)


def _uniform(x: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform in [−1, 1], of x's shape; drawn on the CPU, so that every device sees the same numbers."""
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
    """Inside, torch's operators run on one thread: the same sums in the same order, and steady on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
