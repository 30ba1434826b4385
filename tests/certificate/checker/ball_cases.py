"""Balls of columns, and points of them in rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tests.certificate.checker.helpers import Array, module

unknowns = module("unknowns")


def balls_of(order: int) -> tuple[object, ...]:
    """Of nine columns: two balls, one in another order, and two columns in none."""
    return (unknowns.BallOfColumns(np.array([0, 1, 2, 5]), order), unknowns.BallOfColumns(np.array([7, 4, 3]), order))


def point(y: Array, order: int, chance: np.random.Generator) -> Array:
    """ξ that is in all balls, in rationals, and goes far along y (P,)."""
    xi = np.sign(y)
    for ball in balls_of(order):
        at = ball.places  # type: ignore[attr-defined]
        v = y[at] + (0.3 * chance.standard_normal(len(at)) if chance.random() < 0.5 else 0.0)
        if order == 1:
            v = np.where(np.abs(v) == np.abs(v).max(), v, 0.0)
            xi[at] = np.sign(v) / max(1, int((v != 0).sum()))
            continue
        z = v / np.sqrt(np.square(v).sum())
        while sum(Fraction(t) ** 2 for t in z.tolist()) > 1:
            z = z * (1 - 2.0**-52)
        xi[at] = z
    return np.asarray(xi)


def dot(x: Array, y: Array) -> Fraction:
    return sum((Fraction(a) * Fraction(b) for a, b in zip(x.tolist(), y.tolist(), strict=True)), Fraction(0))
