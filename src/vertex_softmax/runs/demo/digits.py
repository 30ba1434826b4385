"""Labelled images for training and evaluation, and the built-in data set: scikit-learn's digits (the extra `demo`)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.foundation.errors import MissingDependencyError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images in two disjoint parts, for training and for evaluation.

    Images are float64 in [0, 1], (n, channels, height, width); labels are int64, (n,). `note` is what a table made with
    this data must mention: a split that is not the usual one, files that are not the official ones.
    """

    name: str
    classes: int
    train_images: Tensor
    train_labels: Tensor
    eval_images: Tensor
    eval_labels: Tensor
    note: str = ""

    @property
    def checksum(self) -> str:
        """SHA-256 of the four tensors: the same for the same data in the same split."""
        digest = hashlib.sha256()
        for part in (self.train_images, self.train_labels, self.eval_images, self.eval_labels):
            digest.update(part.numpy().astype(part.numpy().dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()


@cache
def digits() -> Dataset:
    """scikit-learn's bundled digits: 1,797 handwritten 8×8 images with 17 levels of grey, k/16 exactly.

    Images are ordered by the SHA-256 of their pixels: the first 360 are for evaluation, the others for training. So the
    split does not depend on a random number generator or on the order of files, and both parts are well mixed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependencyError(
            "the digits come with scikit-learn, which is not installed: pip install 'vertex-softmax[demo]'; or give "
            "inputs of your own, a file .npz or .safetensors with the arrays `inputs` and `labels`"
        ) from error

    found = load_digits()
    levels = np.asarray(found.data, dtype=np.uint8)
    order = np.array(sorted(range(len(levels)), key=lambda i: hashlib.sha256(levels[i].tobytes()).digest()))
    images = torch.from_numpy(levels[order].reshape(-1, 1, 8, 8) / 16.0)
    labels = torch.from_numpy(np.asarray(found.target, dtype=np.int64)[order])
    return Dataset(
        name="digits",
        classes=10,
        train_images=images[360:],
        train_labels=labels[360:],
        eval_images=images[:360],
        eval_labels=labels[:360],
    )
