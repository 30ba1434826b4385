"""Parts of an input that move alone: the words of a sentence, or the patches of an image.

Invariant: of a run over parts, every radius is of one input, one part and one method, at most once, and says at which ε
the network was certified, refused or fooled while only that part moved; the rest of the input stayed as it is.

    Parts("patches", tuple(range(4)), grid=(2, 2), size=(4, 4))   # the four quarters of images of 8×8 pixels
    Parts("tokens", (1, 3))                                       # the words at positions 1 and 3
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.foundation.errors import InvalidValueError

KINDS = ("tokens", "patches")
MOST_PARTS = 1 << 16
"""The most parts of an input."""


@dataclass(frozen=True)
class Parts:
    """What moves in a run, one at a time."""

    kind: str
    """one of KINDS"""
    places: tuple[int, ...]
    """the positions of the tokens; the numbers of the patches, row by row from 0"""
    grid: tuple[int, int] | None = None
    """how many rows and columns of patches there are"""
    size: tuple[int, int] | None = None
    """the height and the width of a patch in pixels"""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def moving(self) -> str:
        """What moves, in words."""
        if self.size is None:
            return "one word at a time"
        return f"one patch of {self.size[0]} × {self.size[1]} pixels at a time"

    def name(self, part: int) -> str:
        """A part in words: positions of words count from 0, as --tokens does, rows and columns from 1."""
        if self.grid is None:
            return f"the word at position {self.places[part]}"
        row, column = divmod(self.places[part], self.grid[1])
        return f"row {row + 1}, column {column + 1}"


@dataclass(frozen=True)
class PartRadius:
    """The largest ε at which a method certifies an input of which one part moves, as far as bisection looked."""

    input: int
    part: int
    """its place in `Parts.places`, from 0"""
    method: str
    certified: float
    """0 if no ε that was tried is certified"""
    refused: float | None
    """the least ε tried that is not certified; None if all are"""
    attacked: float | None
    """the least ε tried at which the attack fooled the network; None if there is none"""
    seconds: float


def words_of(positions: Sequence[int] | None, tokens: int) -> Parts:
    """The words of sentences of so many tokens at these positions; None: all of them."""
    return Parts("tokens", tuple(range(tokens)) if positions is None else tuple(positions))


def patches_of(shape: Sequence[int], size: tuple[int, int]) -> Parts:
    """The patches of images of a shape, of this height and width in pixels."""
    height, width = _axes(shape)[1]
    rows, columns = (whole // max(1, part) for whole, part in zip((height, width), size, strict=True))
    if (rows * size[0], columns * size[1]) != (height, width):
        raise InvalidValueError(
            f"patches of {size[0]}×{size[1]} do not divide images of {height}×{width} pixels; give a height and a "
            "width that do"
        )
    if rows * columns > MOST_PARTS:
        raise InvalidValueError(f"there are {rows * columns} patches; at most {MOST_PARTS} are searched: give larger")
    return Parts("patches", tuple(range(rows * columns)), (rows, columns), size)


def pixels_of(parts: Parts, shape: Sequence[int]) -> NDArray[np.bool_]:
    """Which numbers of an input each patch has: (parts, *shape)."""
    if parts.grid is None or parts.size is None:
        raise InvalidValueError("the parts are words, which have no pixels")
    order, (height, width) = _axes(shape)
    rows = np.arange(height)[:, None] // parts.size[0]
    columns = np.arange(width)[None] // parts.size[1]
    number = rows * parts.grid[1] + columns  # of the patch that a pixel is in
    alone: NDArray[np.bool_] = number == np.asarray(parts.places)[:, None, None]
    if order == "square":
        return alone.reshape(len(parts), *shape)
    if order == "last":
        return np.broadcast_to(alone[..., None], (len(parts), *shape)).copy()
    return np.broadcast_to(alone[:, None] if len(shape) == 3 else alone, (len(parts), *shape)).copy()


def _axes(shape: Sequence[int]) -> tuple[str, tuple[int, int]]:
    """Where the height and the width of an image are, and what they are; channels are first unless they are last."""
    if len(shape) == 3:
        last = shape[0] not in (1, 3) and shape[2] in (1, 3)
        return ("last", (shape[0], shape[1])) if last else ("first", (shape[1], shape[2]))
    if len(shape) == 2:
        return "none", (shape[0], shape[1])
    side = math.isqrt(math.prod(shape))
    if len(shape) == 1 and side * side == shape[0]:
        return "square", (side, side)
    raise InvalidValueError(
        f"the inputs' shape is {list(shape)}, which is no image: patches need (channels, height, width), (height, "
        "width, channels), (height, width) or the pixels of a square"
    )


def require_parts(
    parts: Parts | None, radii: Sequence[PartRadius], shape: Sequence[int], methods: Sequence[str], inputs: int
) -> None:
    """Raise unless the radii are of parts that inputs of this shape have, of these methods and inputs, once each."""
    if parts is None:
        if radii:
            raise InvalidValueError("it has radii of parts, and does not say what the parts are")
        return
    if parts.kind not in KINDS or not 0 < len(parts) <= MOST_PARTS or len(set(parts.places)) < len(parts):
        raise InvalidValueError(f"parts are {parts.kind!r}, none, more than {MOST_PARTS}, or the same one twice")
    whole = _whole(parts, shape)
    if bad := [place for place in parts.places if not 0 <= place < whole]:
        raise InvalidValueError(f"there is no part {bad[0]}; an input has {whole}")
    for radius in radii:
        if not (0 <= radius.input < inputs and 0 <= radius.part < len(parts)) or radius.method not in methods:
            raise InvalidValueError(
                f"a radius is of part {radius.part} of input {radius.input} by {radius.method!r}, which are not there"
            )
        if min(radius.certified, radius.seconds, *(x for x in (radius.refused, radius.attacked) if x is not None)) < 0:
            raise InvalidValueError(f"a radius of part {radius.part} of input {radius.input} is below 0")
    if len({(radius.input, radius.part, radius.method) for radius in radii}) < len(radii):
        raise InvalidValueError("part_radii has the same entry twice")


def _whole(parts: Parts, shape: Sequence[int]) -> int:
    """How many parts an input has; raises if the parts do not fit its shape."""
    if parts.kind == "tokens":
        if parts.grid is not None or parts.size is not None or len(shape) != 2:
            raise InvalidValueError(f"words are parts of inputs (tokens, d), and the shape is {list(shape)}")
        return shape[0]
    if parts.grid is None or parts.size is None:
        raise InvalidValueError("patches need a grid and a size")
    whole = patches_of(shape, parts.size)
    if whole.grid != parts.grid:
        raise InvalidValueError(f"the grid of patches is {list(parts.grid)}, which does not fit the inputs' shape")
    return len(whole)
