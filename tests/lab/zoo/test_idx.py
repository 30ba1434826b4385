"""IDX files: what they declare is what they hold, or they are refused."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.zoo.data_files import idx
from vertex_lab.zoo.idx import images, labels
from vertex_softmax.foundation.errors import InvalidValueError, VertexError

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
LABELS = np.array([0, 9, 3, 3], dtype=np.uint8)


def test_images_and_labels_are_read() -> None:
    assert np.array_equal(images(idx(IMAGES), "a", 3, 4), IMAGES)
    assert np.array_equal(labels(idx(LABELS), "a", 10), LABELS)
    assert len(images(idx(IMAGES[:0]), "a", 3, 4)) == 0


def test_a_file_cut_off_or_continued_anywhere_is_refused() -> None:
    for content in (idx(IMAGES), idx(LABELS)):
        for length in range(len(content)):
            for read in (lambda part: images(part, "here", 3, 4), lambda part: labels(part, "here", 10)):
                with pytest.raises(InvalidValueError, match=r"^here "):
                    read(content[:length])
    with pytest.raises(InvalidValueError, match="here declares 2 × 3 × 4 bytes and holds 25"):
        images(idx(IMAGES) + b"\0", "here", 3, 4)


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (0, 1, "is not an IDX file: it starts with 01 00 08 03"),
        (1, 31, "is not an IDX file"),
        (2, 0x0D, "has elements of type 0x0d; 0x08 .unsigned bytes. is expected"),
        (3, 1, "has 1 dimensions; 3 are expected"),
        (7, 3, "declares 3 × 3 × 4 bytes and holds 24"),
        (4, 255, "declares 4,278,190,082 × 3 × 4 bytes and holds 24"),
    ],
)
def test_a_wrong_header_is_refused_with_its_reason(at: int, value: int, why: str) -> None:
    content = bytearray(idx(IMAGES))
    content[at] = value
    with pytest.raises(InvalidValueError, match=f"^here {why}"):
        images(bytes(content), "here", 3, 4)


def test_sizes_beyond_all_memory_are_refused_before_anything_is_made() -> None:
    with pytest.raises(InvalidValueError, match="declares 4,294,967,295 × 4,294,967,295 × 4,294,967,295 bytes"):
        images(bytes([0, 0, 8, 3]) + b"\xff" * 12, "here", 28, 28)
    overflowing = bytes([0, 0, 8, 3]) + (1 << 31).to_bytes(4, "big") * 2 + (4).to_bytes(4, "big")  # 2^64
    with pytest.raises(InvalidValueError, match="declares"):
        images(overflowing, "here", 28, 28)


def test_sizes_that_multiply_to_the_right_number_but_are_others_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="here holds images of 4×3; 3×4 is expected"):
        images(idx(IMAGES.reshape(2, 4, 3)), "here", 3, 4)
    with pytest.raises(InvalidValueError, match="here holds images of 0×0"):
        images(idx(np.zeros((5, 0, 0))), "here", 3, 4)


def test_a_label_that_is_no_class_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="here: label 9 of image 1 is not in 0 … 8"):
        labels(idx(LABELS), "here", 9)


@given(st.binary(max_size=64), st.lists(st.tuples(st.integers(0, 39), st.integers(0, 255)), max_size=6))
def test_whatever_the_bytes_are_nothing_but_our_errors_is_raised(noise: bytes, changes) -> None:
    changed = bytearray(idx(IMAGES))
    for at, value in changes:
        changed[at] = value
    for content in (bytes(changed), bytes(changed) + noise, noise, b"\0\0\x08\x03" + noise, b"\0\0\x08\x01" + noise):
        with suppress(VertexError):
            assert images(content, "here", 3, 4).shape[1:] == (3, 4)
        with suppress(VertexError):
            assert (labels(content, "here", 10) < 10).all()
