"""Numbers as a page has them: fewer digits, and never a stronger claim than the run's."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

DIGITS = 3


def short(x: float | None) -> float | None:
    """The number rounded to six digits, which never changes its sign."""
    return None if x is None else float(f"{x:.6g}")


def at_most(eps: float | None) -> float | None:
    """An ε up to which something is certified, rounded down to three digits: what is certified there still is."""
    return None if eps is None else float(_rounded(eps, ROUND_FLOOR))


def at_least(eps: float | None) -> float | None:
    """An ε at which the network was fooled, rounded up to three digits: the larger ball has the same point."""
    return None if eps is None else float(_rounded(eps, ROUND_CEILING))


def plain(x: float | None) -> str:
    """A number in three digits; a dash if it is not known."""
    if x is None:
        return "–"
    return f"{float(_rounded(x, ROUND_HALF_EVEN)):g}".replace("-", "−")


def _rounded(x: float, rounding: str) -> Decimal:
    """From the shortest decimal number that names the float: 0.2 is 0.2, and not a little more."""
    return Context(prec=DIGITS, rounding=rounding).create_decimal(Decimal(repr(float(x))))
