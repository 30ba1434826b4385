"""Families of boxes, from ordinary to hostile; each function makes `rows` rows of K keys in float64 or float32.

Every family takes (rng, rows, K, single) and returns c, lower, upper as float64 arrays; `family` rounds them to the
wanted precision (outward never being needed: lower ≤ upper survives rounding) and hands out tensors.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

Arrays = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


class Boxes(NamedTuple):
    c: Tensor
    lower: Tensor
    upper: Tensor


def ordinary(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    centre, width = rng.normal(0, 2, (rows, K)), rng.uniform(0, 2, (rows, K))
    return rng.normal(size=(rows, K)), centre - width, centre + width


def wide(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    """The regime in which Newton without its band stopped an ulp above a dominating key."""
    c, lower, _ = ordinary(rng, rows, K, single)
    return c, lower, lower + rng.uniform(*((20, 59) if single else (59, 500)), (rows, K))


def full_range(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    edge = 80 if single else 700
    ends = np.sort(rng.uniform(-edge, edge, (2, rows, K)), axis=0)
    return rng.normal(size=(rows, K)), ends[0], ends[1]


def dominating(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    """A few keys that can outweigh all others, with coefficients anywhere, also an ulp apart."""
    c, lower, upper = ordinary(rng, rows, K, single)
    heavy = rng.random((rows, K)) < 2 / (K + 1)
    upper = np.where(heavy, upper + rng.uniform(0, 55 if single else 550, (rows, 1)), upper)
    c = np.where(heavy & (rng.random((rows, K)) < 0.5), np.nextafter(np.float32(c[:, :1]), np.float32(9)), c)
    return c, lower, upper


def ties(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    c, lower, upper = ordinary(rng, rows, K, single)
    return np.round(c * 2) / 2, lower, upper + rng.choice([0, 30], (rows, 1))


def near_ties(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    """Coefficients that differ by single ulps."""
    _, lower, upper = ordinary(rng, rows, K, single)
    ulp = 2.0**-23 if single else 2.0**-52
    start = rng.choice([1.0, -1.0, 1e3], (rows, 1))
    return start * (1 + ulp * rng.integers(0, 4, (rows, K))), lower, upper + rng.choice([0, 25], (rows, 1))


def duplicates(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    """Whole keys repeated: equal coefficients and equal intervals."""
    pick = rng.integers(0, max(1, K // 3), (rows, K))
    return tuple(np.take_along_axis(x, pick, 1) for x in full_range(rng, rows, K, single))  # type: ignore[return-value]


def masked(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    c, lower, upper = (wide if rng.random() < 0.5 else ordinary)(rng, rows, K, single)
    gone = rng.random((rows, K)) < rng.random((rows, 1))
    gone[np.arange(rows), rng.integers(0, K, rows)] = False
    return c, np.where(gone, -np.inf, lower), np.where(gone, -np.inf, upper)


def masked_with_large_coefficients(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    """A masked key has weight 0, so its coefficient, however large, must not matter."""
    c, lower, upper = masked(rng, rows, K, single)
    return np.where(upper == -np.inf, rng.choice([-1e25, 1e25, 1e12], (rows, 1)), c), lower, upper


def degenerate(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    c, lower, upper = (wide if rng.random() < 0.5 else ordinary)(rng, rows, K, single)
    return c, lower, np.where(rng.random((rows, K)) < rng.choice([0.5, 1.0], (rows, 1)), lower, upper)


def one_ulp_wide(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    c, lower, _ = ordinary(rng, rows, K, single)
    real = np.float32 if single else np.float64
    return c, real(lower).astype(np.float64), np.nextafter(real(lower), real(np.inf)).astype(np.float64)


def rational(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    """Equal scores and small integers: the minimum is a rational number, often exactly a float."""
    c = rng.integers(-4, 5, (rows, K)).astype(np.float64)
    lower = np.repeat(rng.integers(-3, 4, (rows, 1)).astype(np.float64), K, 1)
    return c, lower, lower + rng.integers(0, 2, (rows, K)) * rng.choice([0, 1], (rows, 1))


def equal_coefficients(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    _, lower, upper = full_range(rng, rows, K, single)
    return np.repeat(rng.choice([0.0, 0.3, -1e-30, 7e20], (rows, 1)), K, 1), lower, upper


def offset(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    """A large common offset of c: the sums cancel."""
    c, lower, upper = ordinary(rng, rows, K, single)
    return c + rng.choice([1, -1], (rows, 1)) * (1e5 if single else 1e12), lower, upper


def huge_coefficients(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    c, lower, upper = ordinary(rng, rows, K, single)
    sizes = [1e29, 1e31, 1e37] if single else [1e240, 1e300, 1e307]
    return c * rng.choice(sizes, (rows, 1)) * (rng.random((rows, K)) < 0.8), lower, upper


def tiny_coefficients(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    c, lower, upper = ordinary(rng, rows, K, single)
    return c * rng.choice([1e-30, 1e-37, 1e-44] if single else [1e-290, 1e-300, 1e-320], (rows, 1)), lower, upper


def tiny_coefficients_wide(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    """Coefficients so small that coefficient times weight would underflow although the answer is ordinary."""
    c, lower, upper = wide(rng, rows, K, single)
    return c * rng.choice([1e-15, 1e-22] if single else [1e-100, 1e-250], (rows, 1)), lower, upper


def mixed_coefficients(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    """Coefficients of all sizes in one row, and zeros."""
    c, lower, upper = (wide if rng.random() < 0.5 else ordinary)(rng, rows, K, single)
    power = 25 if single else 200
    return c * 10.0 ** rng.integers(-power, power + 1, (rows, K)) * (rng.random((rows, K)) < 0.9), lower, upper


def huge_scores(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    """Scores of ±1e4 to ±1e300 (single: ±1e30), also with all keys far from 0 but close together."""
    edge = rng.choice([1e4, 1e7, 1e30] if single else [1e4, 1e10, 1e300], (rows, 1))
    ends = np.sort(rng.uniform(-1, 1, (2, rows, K)), axis=0) * edge
    near = rng.choice([-1, 1], (rows, 1)) * edge * np.ones((2, rows, K)) + np.array([[[0.0]], [[1.0]]])
    return rng.normal(size=(rows, K)), *np.where(rng.random((rows, 1)) < 0.5, ends, near)  # type: ignore[return-value]


def rounded_scores(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    """s − max u is rounded by almost half an ulp in every key, at the |x| where an ulp is largest relative to |x|.

    One key can outweigh the others by e^512 (e^32), but at the optimum it sits as low as they do.
    """
    power = 32.0 if single else 512.0
    top = rng.uniform(0.45, 0.65, (rows, 1)) * power
    lower = top - power - rng.uniform(0, 3, (rows, K))
    upper = lower + rng.choice([0.0, 1e-3], (rows, K))
    c = np.where(rng.random((rows, K)) < 0.5, 0.0, 1.0)
    upper[:, :1] = top
    c[:, 0] = 2
    return c, lower, upper


def any_floats(rng: Generator, rows: int, K: int, single: bool) -> Arrays:
    """Random bit patterns: every finite float there is, of every size, subnormal ones too."""
    real, bits = (np.float32, np.uint32) if single else (np.float64, np.uint64)

    def draw(*shape: int) -> NDArray[np.float64]:
        x = rng.integers(0, np.iinfo(bits).max, shape, dtype=bits, endpoint=True).view(real)
        return np.where(np.isfinite(x), x, 0).astype(np.float64)

    ends = np.sort(draw(2, rows, K), axis=0)
    small = rng.random((rows, K)) < 0.3
    return draw(rows, K), np.where(small, ends[0] % 8, ends[0]), np.where(small, ends[0] % 8 + 1, ends[1])


FAMILIES: dict[str, Callable[[Generator, int, int, bool], Arrays]] = {
    f.__name__: f
    for f in (
        ordinary, wide, full_range, dominating, ties, near_ties, duplicates, masked, masked_with_large_coefficients,
        degenerate, one_ulp_wide, rational, equal_coefficients, offset, huge_coefficients, tiny_coefficients,
        tiny_coefficients_wide, mixed_coefficients, huge_scores, rounded_scores, any_floats,
    )
}  # fmt: skip


def family(name: str, rows: int, keys: int, dtype: torch.dtype, seed: int = 0) -> Boxes:
    """`rows` boxes of a family, the same ones for the same arguments."""
    single = dtype == torch.float32
    rng = np.random.default_rng([zlib.crc32(name.encode()), rows, keys, single, seed])
    c, lower, upper = (
        torch.from_numpy(np.ascontiguousarray(x)).to(dtype) for x in FAMILIES[name](rng, rows, keys, single)
    )
    return Boxes(c, lower, upper)


def spread(name: str, dtype: torch.dtype, rows_by_keys: dict[int, int], seed: int = 0) -> Iterator[Boxes]:
    """Boxes of a family for several K."""
    for keys, rows in rows_by_keys.items():
        yield family(name, rows, keys, dtype, seed)
