"""The data that comes with the package never changes."""

from __future__ import annotations

import torch

from vertex_softmax.zoo.datasets import digits


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
