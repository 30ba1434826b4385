from __future__ import annotations

import numpy as np
import pytest

from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.runs.parts import PartRadius, Parts, patches_of, pixels_of, require_parts, words_of


@pytest.mark.parametrize(
    ("shape", "size", "grid"),
    [
        ((1, 8, 8), (4, 4), (2, 2)),
        ((3, 4, 6), (2, 3), (2, 2)),
        ((4, 6, 3), (2, 6), (2, 1)),
        ((6, 4), (3, 1), (2, 4)),
        ((36,), (2, 3), (3, 2)),
        ((5, 4, 4), (4, 2), (1, 2)),  # channels are first unless they are last
    ],
)
def test_patches_are_rectangles_that_make_up_the_image(shape, size, grid) -> None:
    parts = patches_of(shape, size)
    assert parts.grid == grid
    assert len(parts) == grid[0] * grid[1]
    pixels = pixels_of(parts, shape)
    assert pixels.shape == (len(parts), *shape)
    assert (pixels.sum(0) == 1).all()
    assert {int(each.sum()) for each in pixels} == {int(np.prod(shape)) // len(parts)}
    assert pixels[0].reshape(-1)[0]
    assert pixels[-1].reshape(-1)[-1]
    assert parts.name(len(parts) - 1) == f"row {grid[0]}, column {grid[1]}"


def test_a_patch_is_where_it_is_said_to_be() -> None:
    parts = patches_of((1, 4, 6), (2, 2))
    one = pixels_of(parts, (1, 4, 6))[4]  # the second row, the second column
    expected = np.zeros((1, 4, 6), dtype=bool)
    expected[:, 2:4, 2:4] = True
    assert (one == expected).all()


@pytest.mark.parametrize(
    ("shape", "size", "text"),
    [
        ((1, 8, 8), (3, 4), "do not divide images of 8×8"),
        ((1, 8, 8), (16, 16), "do not divide"),
        ((1, 8, 8), (0, 4), "do not divide"),
        ((1, 8, 8), (-4, 4), "do not divide"),
        ((7,), (1, 1), "no image"),
        ((1, 2, 3, 4), (1, 1), "no image"),
        ((1, 512, 512), (1, 1), "give larger"),
    ],
)
def test_patches_that_do_not_fit(shape, size, text) -> None:
    with pytest.raises(VertexError, match=text):
        patches_of(shape, size)


def test_words_have_no_pixels() -> None:
    words = words_of((1, 3), 5)
    assert words == Parts("tokens", (1, 3))
    assert words_of(None, 3).places == (0, 1, 2)
    assert words.name(1) == "the word at position 3"
    with pytest.raises(VertexError, match="no pixels"):
        pixels_of(words, (5, 4))


PATCHES = patches_of((1, 4, 4), (2, 2))
RADIUS = PartRadius(0, 3, "crown", 0.1, 0.2, None, 1.0)


@pytest.mark.parametrize(
    ("parts", "radii", "shape", "text"),
    [
        (None, [RADIUS], (1, 4, 4), "does not say what"),
        (Parts("pixels", (0,)), [], (1, 4, 4), "'pixels'"),
        (Parts("tokens", ()), [], (4, 3), "none"),
        (Parts("tokens", (0, 0)), [], (4, 3), "twice"),
        (Parts("tokens", (4,)), [], (4, 3), "no part 4"),
        (Parts("tokens", (-1,)), [], (4, 3), "no part -1"),
        (Parts("tokens", (0,)), [], (1, 4, 4), "inputs \\(tokens, d\\)"),
        (Parts("tokens", (0,), grid=(1, 1)), [], (4, 3), "inputs \\(tokens, d\\)"),
        (Parts("patches", (0,)), [], (1, 4, 4), "a grid and a size"),
        (Parts("patches", (0,), (4, 4), (2, 2)), [], (1, 4, 4), "grid of patches"),
        (Parts("patches", (0,), (2, 2), (3, 2)), [], (1, 4, 4), "do not divide"),
        (Parts("patches", (0,), (-2, 2), (-2, 2)), [], (1, 4, 4), "do not divide"),
        (PATCHES, [RADIUS, RADIUS], (1, 4, 4), "twice"),
        (PATCHES, [PartRadius(1, 0, "crown", 0.1, None, None, 1.0)], (1, 4, 4), "of input 1"),
        (PATCHES, [PartRadius(0, 4, "crown", 0.1, None, None, 1.0)], (1, 4, 4), "part 4"),
        (PATCHES, [PartRadius(0, 0, "magic", 0.1, None, None, 1.0)], (1, 4, 4), "'magic'"),
        (PATCHES, [PartRadius(0, 0, "crown", -0.1, None, None, 1.0)], (1, 4, 4), "below 0"),
        (PATCHES, [PartRadius(0, 0, "crown", 0.1, None, -1.0, 1.0)], (1, 4, 4), "below 0"),
    ],
)
def test_radii_of_parts_that_are_not_there(parts, radii, shape, text) -> None:
    with pytest.raises(VertexError, match=text):
        require_parts(parts, radii, shape, ("crown",), 1)


def test_radii_of_parts_that_are() -> None:
    require_parts(PATCHES, [RADIUS], (1, 4, 4), ("crown",), 1)
    require_parts(Parts("tokens", (2,)), [PartRadius(0, 0, "crown", 0.0, 0.0, 0.0, 0.0)], (4, 3), ("crown",), 1)
    require_parts(None, [], (1, 4, 4), (), 0)
