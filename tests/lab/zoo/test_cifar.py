"""CIFAR records: whole, with labels that are classes; grey is the stated formula to the last bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.lab.zoo.data_files import cifar
from vertex_lab.zoo.cifar import RECORD, luma, records
from vertex_softmax.foundation.errors import InvalidValueError


def test_a_record_is_a_label_then_red_green_and_blue() -> None:
    content = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024
    images, labels = records(content * 2, "here", 10)
    assert labels.tolist() == [7, 7]
    assert images.shape == (2, 3, 32, 32)
    assert [int(images[1, channel].max()) for channel in range(3)] == [1, 2, 3]


def test_rows_come_before_columns() -> None:
    image = np.arange(3 * 1024) % 251
    images, _ = records(bytes([0]) + image.astype(np.uint8).tobytes(), "here", 10)
    assert images[0, 2, 1, 5] == image[2 * 1024 + 32 + 5]


def test_a_file_that_is_not_whole_records_is_refused() -> None:
    content = cifar(2, 0)
    for length in range(len(content) + 2):
        if length == 0 or length % RECORD:
            with pytest.raises(InvalidValueError, match=r"^here has [\d,]+ bytes: not a whole number of records"):
                records((content + b"xx")[:length], "here", 10)
        else:
            assert len(records(content[:length], "here", 10)[1]) == length // RECORD


def test_a_label_that_is_no_class_is_refused() -> None:
    content = bytearray(cifar(3, 0))
    content[RECORD] = 10
    with pytest.raises(InvalidValueError, match="here: label 10 of image 1 is not in 0 … 9"):
        records(bytes(content), "here", 10)


def test_grey_is_the_rounded_formula() -> None:
    levels = np.random.default_rng(0).integers(0, 256, (1, 3, 8, 8), dtype=np.uint8)
    grey = luma(levels)
    assert grey.shape == (1, 1, 8, 8)
    assert grey.dtype == np.float64
    for row in range(8):
        for column in range(8):
            red, green, blue = (Fraction(int(level)) for level in levels[0, :, row, column])
            exact = (Fraction("0.299") * red + Fraction("0.587") * green + Fraction("0.114") * blue) / 255
            assert grey[0, 0, row, column] == float(exact)


def test_black_is_zero_and_white_is_one() -> None:
    levels = np.zeros((2, 3, 1, 1), np.uint8)
    levels[1] = 255
    assert luma(levels).ravel().tolist() == [0.0, 1.0]
