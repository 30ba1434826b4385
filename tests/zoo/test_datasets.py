"""Data: the same images in the same split whenever the files are the same, and a note where they are not official."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vertex_softmax.zoo.datasets import dataset, digits

SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_files = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no data files at {SHARED}")


def test_digits_are_images_in_the_unit_interval() -> None:
    data = digits()
    assert data.train_images.shape == (1437, 1, 8, 8)
    assert data.eval_images.shape == (360, 1, 8, 8)
    assert data.train_images.dtype == data.eval_images.dtype == torch.float64
    assert data.train_labels.dtype == torch.int64
    both = torch.cat([data.train_images, data.eval_images])
    assert both.min() == 0
    assert both.max() == 1
    assert torch.equal(both * 16, (both * 16).round())


def test_no_image_is_in_both_parts_and_every_class_is() -> None:
    data = digits()
    both = torch.cat([data.train_images, data.eval_images]).flatten(1)
    assert len(both.unique(dim=0)) == len(both)
    assert data.train_labels.bincount(minlength=10).min() > 100
    assert data.eval_labels.bincount(minlength=10).min() > 20


def test_the_split_is_fixed() -> None:
    assert digits().checksum == "693d645e6d5c3f69e0da39dedd13e6821a4fc8f88fad86d3d706e19b2285391a"
    assert digits().eval_labels[:10].tolist() == [2, 3, 3, 4, 8, 9, 5, 2, 6, 4]


@needs_files
def test_the_mnist_test_file_is_official_and_is_split_where_there_is_no_training_file() -> None:
    data = dataset("mnist", SHARED)
    assert data.train_images.shape == (8000, 1, 28, 28)
    assert data.eval_images.shape == (2000, 1, 28, 28)
    assert data.note == "8,000/2,000 split of the test file: no training file"
    assert data.train_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert data.train_labels.bincount().tolist() == [773, 905, 834, 803, 788, 723, 756, 813, 787, 818]


@needs_files
def test_the_jpeg_version_of_cifar_is_not_taken_for_the_official_one() -> None:
    data = dataset("cifar10-gray", SHARED)
    assert data.train_images.shape == (6000, 1, 32, 32)
    assert data.eval_images.shape == (1000, 1, 32, 32)
    assert "not the official files (checksum f3037ee6b528… of data_batch_1.bin" in data.note
    assert "cifar10-jpeg" in data.note
    assert data.eval_labels.bincount().tolist() == [100] * 10
