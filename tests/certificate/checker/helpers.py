"""The checker's files, and exact arithmetic to compare them with: rationals (fmpq), and balls of 320 bits (arb).

The files are those of the package, or of the folder VERTEX_CHECKER_PATH: mutants.py puts broken copies there.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flint import arb, ctx, fmpq
from numpy.typing import NDArray

Array = NDArray[np.float64]
PRECISION = 320
COPY = "copy_of_the_checker"


def module(name: str) -> Any:
    """A file of the checker."""
    place = os.environ.get("VERTEX_CHECKER_PATH")
    if place is None:
        return importlib.import_module(f"vertex_softmax.certificate.checker.{name}")
    if COPY not in sys.modules:
        spec = importlib.machinery.ModuleSpec(COPY, None, is_package=True)
        spec.submodule_search_locations = [place]
        sys.modules[COPY] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{COPY}.{name}")


def precisely(test: Callable[..., Any]) -> Callable[..., Any]:
    """Arb's arithmetic in a test with enough bits."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        with ctx.workprec(PRECISION):
            return test(*args, **kwargs)

    return run


# Exact numbers


def exact(x: float) -> fmpq:
    """A finite float as a rational."""
    return fmpq(*float(x).as_integer_ratio())


def below(x: float, value: fmpq | arb) -> bool:
    """x ≤ value: for certain where the value is rational, else unless it is certainly not (a ball of 320 bits)."""
    x = float(x)
    if isinstance(value, arb) and not value.is_finite():
        raise ArithmeticError("the value to compare with is not known")
    if not math.isfinite(x):
        return x == -math.inf
    return bool(exact(x) <= value) if isinstance(value, fmpq) else not bool(arb(x) > value)


def above(x: float, value: fmpq | arb) -> bool:
    """x ≥ value."""
    return below(-float(x), -value)


def holds(interval: Any, value: fmpq | arb) -> bool:
    """An interval of one number contains a value."""
    return below(float(interval.lo), value) and above(float(interval.hi), value)


def dot(x: Iterable[Any], y: Iterable[Any]) -> fmpq:
    """Σ x y, exactly, of floats or rationals."""
    return sum((rational(a) * rational(b) for a, b in zip(x, y, strict=True)), fmpq(0))


def rational(x: Any) -> fmpq:
    return x if isinstance(x, fmpq) else exact(x)


def size(x: fmpq) -> fmpq:
    return x if x >= 0 else -x


# Random floats


def floats(rng: np.random.Generator, family: str, shape: tuple[int, ...]) -> Array:
    """Random floats of a family."""
    normal = rng.standard_normal(shape)
    if family == "ordinary":
        return normal
    if family == "any scale":
        return normal * 2.0 ** rng.integers(-300, 300, shape)
    if family == "huge":
        return normal * 2.0 ** rng.integers(960, 1020, shape)
    if family == "tiny":
        return normal * 2.0 ** rng.integers(-1060, -960, shape)
    if family == "subnormal":
        return rng.integers(-100, 100, shape) * 5e-324
    if family == "integers":
        return rng.integers(-9, 10, shape).astype(np.float64)
    if family == "powers":
        return rng.choice([-1.0, 1.0], shape) * 2.0 ** rng.integers(-60, 60, shape)
    if family == "near one":
        return 1 + rng.integers(-40, 40, shape) * 2.0**-52
    if family == "squares below the least":
        return normal * 2.0 ** rng.integers(-540, -530, shape)
    raise KeyError(family)


FAMILIES = (
    "ordinary", "any scale", "huge", "tiny", "subnormal", "integers", "powers", "near one", "squares below the least",
)  # fmt: skip
