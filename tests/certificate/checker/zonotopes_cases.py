"""Zonotopes and their points, for the tests of the checker's zonotopes."""

from __future__ import annotations

from typing import Any

import numpy as np
from flint import fmpq

from tests.certificate.checker.helpers import Array, dot, floats, module, size

zonotopes = module("zonotopes")


ProvedZonotope = zonotopes.ProvedZonotope


def zonotope(columns: Array, error: Array | None = None, centre: Array | None = None, input_alone: bool = False) -> Any:
    columns = np.asarray(columns, dtype=np.float64)
    shape = columns.shape[:-1]
    error = np.zeros(shape) if error is None else np.broadcast_to(np.asarray(error, dtype=np.float64), shape).copy()
    return ProvedZonotope(
        centre=np.zeros(shape) if centre is None else centre, columns=columns, error=error, exact=input_alone
    )


def random_columns(rng: np.random.Generator, kind: str, n: int, d: int, count: int) -> Array:
    """Rows (n, d) of columns, of a kind."""
    g = rng.standard_normal((n, d, count))
    if kind == "very different scales":
        return g * 10 ** rng.uniform(-12, 3, (n, 1, count))
    if kind == "numbers of very different scales":
        return g * 10 ** rng.uniform(-12, 3, (n, d, 1))
    if kind == "zero columns":
        return g * (rng.random((n, 1, count)) < 0.5)
    if kind == "all zero":
        return g * 0
    if kind == "one direction":
        return rng.standard_normal((n, d, 1)) * rng.standard_normal((n, 1, count))
    if kind == "nearly one direction":
        return rng.standard_normal((n, d, 1)) * rng.standard_normal((n, 1, count)) + 1e-9 * g
    if kind == "orthogonal":
        return np.stack([np.linalg.qr(rng.standard_normal((max(d, count),) * 2))[0][:d, :count] for _ in range(n)])
    if kind in ("tiny", "squares below the least", "any scale", "subnormal"):
        return floats(rng, kind, (n, d, count)) * (2.0**-200 if kind == "any scale" else 1)
    if kind == "huge":
        return g * 1e160
    return g


KINDS = (
    "ordinary", "very different scales", "numbers of very different scales", "zero columns", "all zero",
    "one direction", "nearly one direction", "orthogonal", "tiny", "squares below the least", "any scale", "subnormal",
    "huge",
)  # fmt: skip


def random_errors(rng: np.random.Generator, kind: str, n: int, d: int) -> Array:
    return {
        "none": np.zeros((n, d)),
        "some": np.abs(rng.standard_normal((n, d))) * (rng.random((n, d)) < 0.5),
        "of all scales": np.abs(rng.standard_normal((n, d))) * 10 ** rng.uniform(-18, 2, (n, d)),
    }[kind]


ERRORS = ("none", "some", "of all scales")


def reach(eta: Array, z: Any, j: int) -> fmpq:
    """The largest |η·(y_j − centre_j)|: Σ_p |η·g_p| + |η|·error, exactly."""
    columns = (size(dot(eta, z.columns[j, :, p])) for p in range(z.columns.shape[-1]))
    return sum(columns, fmpq(0)) + dot(np.abs(eta), z.error[j])


def functionals(rng: np.random.Generator, z: Any, j: int) -> list[Array]:
    """Directions: random, of all scales, unit vectors, along a column, orthogonal to one, and where C is least."""
    d = z.columns.shape[-2]
    g = z.columns[j]
    found = [rng.standard_normal(d), rng.standard_normal(d) * 10 ** rng.uniform(-9, 9, d), np.eye(d)[0], np.zeros(d)]
    along = g[:, rng.integers(g.shape[1])]
    found.append(along / (np.abs(along).max() or 1.0))
    if d > 1:
        across = rng.standard_normal(d)
        unit = found[-1] / (np.linalg.norm(found[-1]) or 1.0)
        found.append(across - (across @ unit) * unit)
        if np.isfinite(g @ g.T).all():
            found.append(np.linalg.eigh(g @ g.T)[1][:, 0])
    return found
