"""The faults of mutants.py in the file of narrowing.

Left out, because the proof has room: the rounding of the budget and of the ends, beside that of the sum they come from.
"""

from __future__ import annotations

from tests.certificate.checker.faults import Changes

NARROWING: Changes = {
    "a box need not hold what is needed": (
        "narrower",
        "((lower <= box.lo) & (box.hi <= upper)).all()",
        "((lower <= box.lo) | (box.hi <= upper)).all()",
    ),
    "the upper end is not compared": ("narrower", "(lower <= box.lo) & (box.hi <= upper)", "lower <= box.lo"),
    "one unit in the last place is granted": ("narrower", "box.hi <= upper", "box.hi <= up(upper)"),
    "the reach is half": (
        "needed",
        "budget / np.where(slope != 0, np.abs(slope), 1.0)",
        "budget / 2 / np.where(slope != 0, np.abs(slope), 1.0)",
    ),
    "ends from the wrong side": ("needed", "np.where(slope < 0, below, lower)", "np.where(slope > 0, below, lower)"),
    "the most that the others add": (
        "needed",
        "(ProvedInterval(slope) * ProvedInterval(lower, upper)).sum().lo",
        "(ProvedInterval(slope) * ProvedInterval(lower, upper)).sum().hi",
    ),
    "the constant is forgotten": (
        "half_space",
        "ProvedInterval(rest.sum().lo) + bound.constant",
        "ProvedInterval(rest.sum().lo)",
    ),
    "the rest is rounded up": ("half_space", "rest.sum().lo", "rest.sum().hi"),
    "corners are forgotten": ("half_space", "A + turned.middle()", "A + 0 * turned.middle()"),
    "corners' centres are forgotten": ("half_space", "turned * given.centre", "turned * (0 * given.centre)"),
    "corners of numbers that do not move": ("half_space", "np.where(moves, 0.0, np.abs(deviation))", "0.0"),
    "a set that is no box": ("half_space", "not isinstance(given, CheckedBox)", "False"),
    "what is not finite": ("half_space", "not (np.isfinite(slope).all() and np.isfinite(limit))", "False"),
    "the limit costs nothing": (
        "CheckedCut.lowest",
        "super().lowest(mixed, deviation[some]) - cost.hi",
        "super().lowest(mixed, deviation[some])",
    ),
    "the mix is not rounded": ("CheckedCut.lowest", "rounding(n + 4) * terms * MORE", "0.0 * terms"),
    "prices below 0": ("CheckedCut.lowest", "price[some]", "-price[some]"),
}
