"""Do the proved results hold, box after box? The paper's tab:numerical_status_app, first two rows.

Checked for every box, against the exact minimum computed apart from the library, in ball arithmetic of BITS bits:

- `softmax_box_enclosure` contains it;
- `softmax_box_min(outward=True)` is not above it, with either algorithm; for boxes of float32 numbers in float32 too.

The exact minimum is the least of the K + 1 threshold values (Theorem 2); to K = 8 also the least over all 2^K vertices
(Theorem 1), and the two must overlap. A comparison that BITS bits leave open is decided by the sign of φ, exactly
where φ is zero, else with more bits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import Column, ExperimentResult, Row, Timer, required
from vertex_lab.journals import journal_of
from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.softmax_box import softmax_box_enclosure, softmax_box_min
from vertex_softmax.softmax_box.api import Algorithm

NAME = "interval"
TITLE = "Interval regression: enclosures and outward rounding against high precision"
BITS = 320
MOST_BITS = 1 << 15
EXHAUSTIVE_TO = 8
BATCH = 100
ALGORITHMS: tuple[Algorithm, ...] = ("auto", "threshold")

Array = NDArray[np.floating]
Boxes = tuple[Array, Array, Array]
"""(c, lower, upper), each (boxes, K), float32 or float64."""
Numbers = list[float]
Draw = Callable[[np.random.Generator, int, int], Boxes]

VIOLATIONS = "Violations"
COLUMNS = (
    Column("Scope"),
    Column("K"),
    Column("N", ","),
    Column("All vertices", ","),
    *map(Column, (VIOLATIONS, "of enclosure", "of outward float64", "of outward float32")),
    *(Column(name, ".3g") for name in ("Width, median ulps", "Width, max ulps", "Outward gap, median ulps")),
)


def ordinary(rng: np.random.Generator, n: int, K: int) -> Boxes:
    """Centre N(0, 1), radius 2 · U(0, 1), coefficients N(0, 1)."""
    centre, radius = rng.normal(size=(n, K)), 2 * rng.random((n, K))
    return rng.normal(size=(n, K)), centre - radius, centre + radius


def wide(rng: np.random.Generator, n: int, K: int, reach: float = 700.0) -> Boxes:
    """Both ends anywhere in ±reach, so weights from e^−reach to e^reach; coefficients of many sizes."""
    ends = np.sort(rng.uniform(-reach, reach, (2, n, K)), axis=0)
    c = rng.normal(size=(n, K)) * np.exp(rng.uniform(-12, 12, (n, K)))
    return c, ends[0], ends[1]


def awkward(rng: np.random.Generator, n: int, K: int) -> Boxes:
    """Ties in c and in the ends, intervals of width zero, masked keys (never all of them)."""
    lower = rng.integers(-3, 4, (n, K)).astype(np.float64)
    upper = lower + rng.integers(0, 3, (n, K))
    masked = rng.random((n, K)) < 0.2
    masked[np.arange(n), rng.integers(0, K, n)] = False
    c = rng.integers(-2, 3, (n, K)) / 3
    return c, np.where(masked, -np.inf, lower), np.where(masked, -np.inf, upper)


def large_range(rng: np.random.Generator, n: int, K: int) -> Boxes:
    """Scores at and near ±700, each end one or the other."""
    ends = np.sort(rng.choice([-700.0, 700.0], (2, n, K)) + rng.uniform(-1, 1, (2, n, K)), axis=0)
    return rng.normal(size=(n, K)), ends[0], ends[1]


def single(draw: Draw) -> Draw:
    """The same in float32."""

    def drawn(rng: np.random.Generator, n: int, K: int) -> Boxes:
        c, lower, upper = draw(rng, n, K)
        return c.astype(np.float32), lower.astype(np.float32), upper.astype(np.float32)

    return drawn


@dataclass(frozen=True)
class Family:
    """Boxes of one kind: how many (full and quick), and the K they have in turn."""

    scope: str
    draw: Draw
    full: int
    quick: int
    keys: tuple[int, ...]
    published: Row = field(default_factory=dict)


SMALL = tuple(range(1, EXHAUSTIVE_TO + 1))
MIDDLE = (9, 12, 16, 24, 32, 48, 64)
LARGE = (96, 128, 192, 256, 384, 512)
_NARROW = single(lambda rng, n, K: wide(rng, n, K, 80.0))
FAMILIES = (
    Family("random score boxes", ordinary, 360, 360, SMALL, {"N": 360, VIOLATIONS: 0}),
    Family("large dynamic range score box", large_range, 1, 1, (8,), {"N": 1, VIOLATIONS: 0}),
    Family("ordinary", ordinary, 20_000, 700, SMALL),
    Family("ordinary, more keys", ordinary, 10_000, 250, MIDDLE),
    Family("ordinary, many keys", ordinary, 600, 12, LARGE),
    Family("scores to ±700", wide, 20_000, 800, SMALL),
    Family("scores to ±700, more keys", wide, 8_000, 250, MIDDLE),
    Family("scores to ±700, many keys", wide, 600, 12, LARGE),
    Family("every end near ±700", large_range, 5_000, 300, (*SMALL, *MIDDLE)),
    Family("ties, points, masks", awkward, 16_000, 1_000, (*SMALL, *MIDDLE)),
    Family("float32, ordinary", single(ordinary), 10_000, 700, (*SMALL, *MIDDLE)),
    Family("float32, scores to ±80", _NARROW, 10_000, 700, (*SMALL, *MIDDLE)),
    Family("float32, many keys", single(ordinary), 600, 12, LARGE),
)


@dataclass
class Tally:
    """What was found over the boxes of one family."""

    boxes: int = 0
    exhaustive: int = 0
    enclosure: int = 0
    outward_64: int = 0
    outward_32: int = 0
    widths: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    zeros: list[float] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count what another has, too."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def run(request: Request) -> ExperimentResult:
    """Check the paper's 361 boxes and 100,000 of ours (`quick`: 5,000); violations are counted, none is expected."""
    timer, quick = Timer(), request.quick
    counted = tallies(request, FAMILIES)
    done = sum(tally.boxes for _, tally in counted)
    rows = [_row(family, tally) for family, tally in counted]
    broken = sum(tally.enclosure + tally.outward_64 + tally.outward_32 for _, tally in counted)
    zeros, widths = ([w for _, tally in counted for w in getattr(tally, kind)] for kind in ("zeros", "widths"))
    result = ExperimentResult(
        name=NAME,
        title=TITLE,
        columns=COLUMNS,
        rows=tuple(rows),
        published=tuple(family.published for family in FAMILIES),
        notes=(
            f"{done:,} boxes, {broken} violations of any kind.",
            f"Exact minimum: {BITS}-bit ball arithmetic, all threshold vertices; all 2^K vertices too for the boxes "
            "counted under “All vertices”. Published: decimal intervals, first two rows of the table.",
            "The published boxes are not given, only their number and kind: ours are drawn from the distribution of "
            "the threshold experiment.",
            "Width: hi − lo of the enclosure in ulps of float64. Outward gap: exact minimum − outward float64 result "
            "(default algorithm) in the same ulps; both algorithms are checked.",
            f"{len(zeros):,} enclosures contain 0, where there is no ulp to measure by; they are at most "
            f"{max(zeros, default=0.0):.0e} wide. {sum(width > 4 for width in widths):,} others exceed 4 ulps.",
        ),
        settings={"boxes": done, "bits": BITS, "seed": request.seed, "quick": quick},
        seconds=timer.seconds,
        failures=(f"{broken} violations",) if broken else (),
    )
    result.save(request.out)
    return result


def tallies(request: Request, families: Sequence[Family]) -> list[tuple[Family, Tally]]:
    """The boxes of some families, checked part by part, from the journal where it has them."""
    flint = required("flint", "python-flint", "proof")
    sizes = {family.scope: family.quick if request.quick else family.full for family in families}
    found: list[tuple[Family, Tally]] = []
    done = 0
    with journal_of(NAME, request.out, "experiments/interval.py") as journal:
        for family in families:
            found.append((family, tally := Tally()))
            rng = np.random.default_rng([request.seed, FAMILIES.index(family)])
            for part, boxes in enumerate(_drawn(family, sizes[family.scope], rng)):
                request.progress(family.scope, done, sum(sizes.values()))
                key = f"{family.scope} | part {part} | {len(boxes[0])} of K {boxes[0].shape[1]} | seed {request.seed}"
                tally.add(Tally(**journal.once(key, _checked, flint, boxes)))
                done += len(boxes[0])
    request.progress("done", done, done)
    return found


def check(flint: Any, boxes: Boxes) -> Tally:
    """Check every box of a batch."""
    tally = Tally()
    widened = tuple(x.astype(np.float64) for x in boxes)  # exact
    lo, hi = softmax_box_enclosure(*widened)
    doubles = [np.asarray(softmax_box_min(*widened, outward=True, algorithm=a)) for a in ALGORITHMS]
    in_single = ALGORITHMS if boxes[0].dtype == np.float32 else ()
    singles = [np.asarray(softmax_box_min(*boxes, outward=True, algorithm=a)) for a in in_single]
    for i, unmasked in enumerate(widened[2] > -math.inf):
        row = [x[i][unmasked].tolist() for x in widened]
        exact = Exact(flint, *row)
        tally.boxes += 1
        tally.exhaustive += exact.enumerated
        tally.enclosure += not (exact.at_least(float(lo[i])) and exact.at_most(float(hi[i])))
        tally.outward_64 += not all(exact.at_least(float(x[i])) for x in doubles)
        tally.outward_32 += not all(exact.at_least(float(x[i])) for x in singles)
        width = float(hi[i] - lo[i])
        if lo[i] <= 0 <= hi[i]:  # the minimum is 0: nothing to measure relative to
            tally.zeros.append(width)
        else:
            ulp = math.ulp(max(abs(float(lo[i])), abs(float(hi[i]))))
            tally.widths.append(width / ulp)
            tally.gaps.append((float(exact.value.mid()) - float(doubles[0][i])) / ulp)
    return tally


def _checked(flint: Any, boxes: Boxes) -> dict[str, Any]:
    return dataclasses.asdict(check(flint, boxes))


class Exact:
    """The exact minimum of one box without masked keys: `value` is a ball around it, comparisons with it are exact."""

    def __init__(self, flint: Any, c: Numbers, lower: Numbers, upper: Numbers) -> None:
        self.flint = flint
        self.row = (c, lower, upper)
        self.enumerated = len(c) <= EXHAUSTIVE_TO
        with flint.ctx.workprec(BITS):
            self.value = threshold_ball(flint.arb, *self.row)
            if self.enumerated and not self.value.overlaps(exhaustive_ball(flint.arb, *self.row)):
                raise InternalError(f"a threshold vertex is not optimal: c {c}, lower {lower}, upper {upper}")

    def at_least(self, t: float) -> bool:
        """Is the exact minimum ≥ t?"""
        return bool(self.value >= t) or (not self.value < t and self._sign(t) >= 0)

    def at_most(self, t: float) -> bool:
        """Is the exact minimum ≤ t?"""
        return bool(self.value <= t) or (not self.value > t and self._sign(t) <= 0)

    def _sign(self, t: float) -> int:
        """The sign of φ(t) = min over the box of Σ (c_j − t) e^{s_j}, which is that of the exact minimum − t."""
        multiples: dict[float, Fraction] = {}
        for a, low, high in zip(*self.row, strict=True):
            score = high if a < t else low
            multiples[score] = multiples.get(score, Fraction(0)) + Fraction(a) - Fraction(t)
        if not any(multiples.values()):
            return 0  # and only then: e^s of distinct rationals are linearly independent (Lindemann–Weierstrass)
        bits = 2 * BITS
        while bits <= MOST_BITS:
            with self.flint.ctx.workprec(bits):
                arb, rational = self.flint.arb, self.flint.fmpq
                total = arb(0)
                for score, m in multiples.items():
                    total += arb(rational(m.numerator, m.denominator)) * arb(score).exp()
                if not total.contains(0):
                    return 1 if total > 0 else -1
            bits *= 2
        raise InternalError(f"{MOST_BITS} bits do not decide whether {t!r} is a bound; please report {self.row}")


def threshold_ball(arb: Any, c: Numbers, lower: Numbers, upper: Numbers) -> Any:
    """A ball around the least of the K + 1 threshold values: prefix sums over upper ends, suffix sums over lower."""
    order = sorted(range(len(c)), key=c.__getitem__)
    top = arb(max(upper))
    L, U = ([(arb(end[j]) - top).exp() for j in order] for end in (lower, upper))
    suffix = [(arb(0), arb(0))]
    for j, y in zip(reversed(order), reversed(L), strict=True):
        suffix.append((suffix[-1][0] + c[j] * y, suffix[-1][1] + y))
    above, mass, best = arb(0), arb(0), suffix[-1][0] / suffix[-1][1]
    for j, y, (rest, rest_mass) in zip(order, U, suffix[-2::-1], strict=True):
        above, mass = above + c[j] * y, mass + y
        best = best.min((above + rest) / (mass + rest_mass))
    return best


def exhaustive_ball(arb: Any, c: Numbers, lower: Numbers, upper: Numbers) -> Any:
    """A ball around the least value over all 2^K vertices."""
    top = arb(max(upper))
    sums = [(arb(0), arb(0))]
    for a, *ends in zip(c, lower, upper, strict=True):
        weights = [(arb(end) - top).exp() for end in ends]
        sums = [(above + a * y, mass + y) for above, mass in sums for y in weights]
    return functools.reduce(lambda best, vertex: best.min(vertex[0] / vertex[1]), sums, arb(math.inf))


def _drawn(family: Family, number: int, rng: np.random.Generator) -> Iterator[Boxes]:
    """Draw `number` boxes of the family in batches of equal K, the K taken in turn."""
    for i, K in enumerate(family.keys):
        n = number // len(family.keys) + (i < number % len(family.keys))
        for first in range(0, n, BATCH):
            yield family.draw(rng, min(BATCH, n - first), K)


def _row(family: Family, tally: Tally) -> Row:
    return {
        "Scope": family.scope,
        "K": f"{min(family.keys)}–{max(family.keys)}" if len(family.keys) > 1 else f"{family.keys[0]}",
        "N": tally.boxes,
        "All vertices": tally.exhaustive,
        VIOLATIONS: tally.enclosure + tally.outward_64 + tally.outward_32,
        "of enclosure": tally.enclosure,
        "of outward float64": tally.outward_64,
        "of outward float32": tally.outward_32 if family.scope.startswith("float32") else None,
        "Width, median ulps": float(np.median(tally.widths)),
        "Width, max ulps": max(tally.widths),
        "Outward gap, median ulps": float(np.median(tally.gaps)),
    }
