"""How small Σ A·x can become over the sets of a certificate: never above an exact value, in rationals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.certificate.checker.helpers import Array, module

sets = module("input_sets")
file = module("file")


def ball_of(seed: int, norm: int, *, cut: bool, per_row: bool = False) -> Any:
    """A ball of (3, 4) numbers around a random centre, some of them fixed; cut by a box, or not."""
    chance = np.random.default_rng(seed)
    centre = chance.standard_normal((3, 4)) * 10.0 ** int(chance.integers(-2, 4))
    radius = chance.random((3, 4)) * 10.0 ** int(chance.integers(-4, 1))
    radius[chance.random((3, 4)) < 0.2] = 0.0
    radius[0, 0] = 0.1
    lower, upper = np.nextafter(centre - radius, -np.inf), np.nextafter(centre + radius, np.inf)
    if cut:
        lower = np.where(chance.random((3, 4)) < 0.5, centre - radius * chance.random((3, 4)), lower)
        upper = np.where(chance.random((3, 4)) < 0.3, centre, upper)
    members = np.repeat(np.arange(3)[:, None], 4, 1) if per_row else np.zeros((3, 4), dtype=np.int64)
    return sets.CheckedBalls(
        norm=norm, middle=centre, radius=radius, members=members.astype(np.int64), lower=lower, upper=upper
    )


def value(A: Array, x: list[Fraction]) -> Fraction:
    return sum((Fraction(a) * b for a, b in zip(A.ravel().tolist(), x, strict=True)), Fraction(0))


def points_of(given: Any, A: Array, chance: np.random.Generator) -> list[list[Fraction]]:
    """Points of the balls in rationals: vertices of ℓ1, and points towards −A; each is checked to be in the set."""
    n = given.lower.size
    c, r, lo, hi = (
        [Fraction(x) for x in y.ravel().tolist()] for y in (given.middle, given.radius, given.lower, given.upper)
    )
    members = given.members.ravel()
    found = []
    for way in range(40):
        z = np.zeros(n)
        for k in np.unique(members):
            mine = members == k
            b = -A.ravel()[mine] * given.radius.ravel()[mine]
            if way == 0 and given.norm == 1:
                best = int(np.abs(b).argmax())
                z[np.flatnonzero(mine)[best]] = np.sign(b[best])
                continue
            b = b if way < 2 else b + np.abs(b).mean() * chance.standard_normal(b.shape)
            length = np.abs(b).sum() if given.norm == 1 else np.sqrt(np.square(b).sum())
            z[mine] = b / length * (1 - 1e-15) if length > 0 else 0.0
        x = [
            min(max(a + Fraction(t) * b, low), high)
            for a, t, b, low, high in zip(c, z.tolist(), r, lo, hi, strict=True)
        ]
        for k in np.unique(members):
            total = sum(
                (abs((x[i] - c[i]) / r[i]) ** given.norm if r[i] else (x[i] - c[i]) * math.inf if x[i] != c[i] else 0)
                for i in np.flatnonzero(members == k)
            )
            if total > 1:
                break
        else:
            found.append(x)
    assert found
    return found


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_balls(seed: int, norm: int, per_row: bool, cut: bool) -> None:
    given = ball_of(seed, norm, cut=cut, per_row=per_row)
    chance = np.random.default_rng(seed)
    A = chance.standard_normal((6, 12)) * 10.0 ** chance.integers(-3, 4, (6, 1))
    A[:, chance.integers(12)] = 0.0
    low = given.lowest(A, np.zeros_like(A))
    box = given.box
    for s in range(len(A)):
        values = []
        for x in points_of(given, A[s], chance):
            values.append(value(A[s], x))
            ends = zip(x, box.lo.ravel().tolist(), box.hi.ravel().tolist(), strict=True)
            assert all(Fraction(a) <= v <= Fraction(b) for v, a, b in ends)
            assert Fraction(float(low[s])) <= values[-1]
        if not cut:  # then the first points are the best but for rounding
            size = float(np.abs(A[s]) @ (np.abs(given.centre) + given.reach))
            assert low[s] >= float(min(values)) - 1e-13 * size


@pytest.mark.parametrize("norm", [1, 2])
def test_a_cut_ball_against_a_search(norm: int) -> None:
    """Dense points of a plane: the value is what they reach."""
    given = sets.CheckedBalls(
        norm=norm, middle=np.array([0.5, 0.25]), radius=np.array([1.0, 2.0]), members=np.zeros(2, dtype=np.int64),
        lower=np.array([0.25, -4.0]), upper=np.array([4.0, 1.0]),
    )  # fmt: skip
    angle = np.linspace(0, 2 * np.pi, 20001)
    z = np.stack([np.cos(angle), np.sin(angle)], -1)
    z = z / (np.abs(z).sum(-1, keepdims=True) if norm == 1 else 1.0)
    z = np.concatenate([t * z for t in np.linspace(0, 1, 41)])
    x = given.middle + given.radius * z
    x = x[((x >= given.lower) & (x <= given.upper)).all(-1)]
    A = np.random.default_rng(0).standard_normal((40, 2))
    low, seen = given.lowest(A, np.zeros_like(A)), (x @ A.T).min(0)
    assert (low <= seen + 1e-12).all()
    assert (low >= seen - 0.05).all()


@pytest.mark.parametrize("norm", [1, 2])
def test_deviations(norm: int) -> None:
    """Σ deviation·ξ is added, ξ = (x − centre)/radius: as if A were more by deviation/radius, less that at c."""
    given = ball_of(1, norm, cut=True)
    r = np.where(given.reach > 0, given.reach, 1.0)
    chance = np.random.default_rng(0)
    A, deviation = chance.standard_normal((2, 8, 12))
    deviation = np.where(given.reach > 0, deviation, 0.0)
    both = given.lowest(A, deviation)
    other = given.lowest(A + deviation / r, np.zeros_like(A)) - (deviation / r) @ given.centre
    assert np.abs(both - other).max() < 1e-9 * (1 + np.abs(deviation / r) @ np.abs(given.centre)).max()


def choices_of(seed: int, sizes: tuple[int, ...] = (3, 1, 2, 5)) -> Any:
    """Blocks of 2 numbers of (4, 2), in a random order, with lists of vectors."""
    chance = np.random.default_rng(seed)
    places = chance.permutation(2 * len(sizes))
    numbers = tuple(np.sort(places[2 * k : 2 * k + 2]).astype(np.int64) for k in range(len(sizes)))
    vectors = tuple(chance.standard_normal((K, 2)) * 10.0 ** int(chance.integers(-3, 3)) for K in sizes)
    ends = np.empty((2, 2 * len(sizes)))
    for n, v in zip(numbers, vectors, strict=True):
        ends[0, n], ends[1, n] = v.min(0), v.max(0)
    lower, upper = ends.reshape(2, len(sizes), 2)
    return sets.CheckedChoices(numbers=numbers, vectors=vectors, lower=lower, upper=upper)


def combinations(given: Any) -> list[Array]:
    found = []
    for picked in itertools.product(*given.vectors):
        x = np.empty(given.lower.size)
        for numbers, vector in zip(given.numbers, picked, strict=True):
            x[numbers] = vector
        found.append(x)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_choices_by_enumeration(seed: int) -> None:
    given = choices_of(seed)
    A = np.random.default_rng(seed).standard_normal((9, 8))
    low = given.lowest(A, np.zeros_like(A))
    for s in range(len(A)):
        best = min(value(A[s], [Fraction(v) for v in x.tolist()]) for x in combinations(given))
        assert Fraction(float(low[s])) <= best
        assert low[s] >= float(best) - 1e-13 * float(np.abs(A[s]) @ np.abs(given.box.size.ravel()))


@pytest.mark.parametrize("seed", range(6))
def test_the_unknowns_of_choices(seed: int) -> None:
    """No combination, and so no mix of them, is farther from the centre along η than reach and slack say."""
    unknowns = module("unknowns")
    given = choices_of(seed)
    chance = np.random.default_rng(seed)
    points = np.stack(combinations(given))
    columns = given.columns(np.eye(8))
    for eta in (*np.eye(8), *chance.standard_normal((20, 8))):
        far = float(unknowns.reach(eta @ columns, given.balls) * unknowns.more_roundings(columns.shape[1]))
        far += float(np.abs(eta) @ given.slack)
        most = max(
            abs(value(eta, [Fraction(a) - Fraction(b) for a, b in zip(x.tolist(), given.centre.tolist(), strict=True)]))
            for x in points
        )
        assert Fraction(far * (1 + 1e-15)) >= most
        # and by the Euclidean balls alone, which forward proofs have
        round_ = sum(np.sqrt(np.square((eta @ columns)[ball.places]).sum()) for ball in given.balls)
        assert float(most) <= (round_ + np.abs(eta) @ given.slack) * (1 + 1e-12)
    assert (np.abs(points - given.centre) <= given.reach).all()
    at = 0
    for numbers, vectors in zip(given.numbers, given.vectors, strict=True):  # x = centre + column + e, |e| ≤ slack
        count = 0 if len(vectors) == 1 else 1 if len(vectors) == 2 else len(vectors)
        ways = [[0]] if not count else [[-1], [1]] if count == 1 else np.eye(count, dtype=int).tolist()
        for vector, way in zip(vectors, ways, strict=True):
            for j, number in enumerate(numbers):
                off = Fraction(float(vector[j])) - Fraction(float(given.centre[number]))
                off -= sum(w * Fraction(float(columns[number, at + k])) for k, w in enumerate(way) if w)
                assert abs(off) <= Fraction(float(given.slack[number]))
        at += count
    two = choices_of(seed, (2, 2))  # a segment has the length it has
    each = two.columns(np.eye(4))
    width = (two.upper - two.lower).ravel() / 2
    assert np.allclose([sum(np.sqrt(np.square(row[ball.places]).sum()) for ball in two.balls) for row in each], width)
    assert (two.slack <= 1e-15 * (1 + np.abs(two.box.size.ravel()))).all()


def test_sets_that_make_no_sense() -> None:
    good = {"middle": np.zeros(2), "radius": np.ones(2), "lower": -np.ones(2), "upper": np.ones(2)}
    good |= {"members": np.zeros(2, dtype=np.int64)}
    sets.CheckedBalls(norm=2, **good)
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (3, {}), (2.0, {}), (True, {}), ("2", {}), (math.inf, {}),
        (2, {"radius": np.array([1.0, -1.0])}),
        (2, {"middle": np.array([0.0, 1.5])}),
        (2, {"members": np.array([0, 2])}),
        (2, {"members": np.array([0, -1])}),
    ]  # fmt: skip
    for norm, change in wrong:
        with pytest.raises(file.Rejected):
            sets.CheckedBalls(norm=norm, **{**good, **change})
    numbers, vectors = (np.array([0]), np.array([1])), (np.array([[0.0], [1.0]]), np.array([[2.0]]))
    ends = {"lower": np.array([0.0, 2.0]), "upper": np.array([1.0, 2.0])}
    sets.CheckedChoices(numbers=numbers, vectors=vectors, **ends)
    bad: list[dict[str, Any]] = [
        {"numbers": (np.array([0]), np.array([0]))},
        {"numbers": (np.array([0]), np.array([2]))},
        {"numbers": (np.array([0]), np.array([1, 1]))},
        {"vectors": (vectors[0], np.zeros((0, 1)))},
        {"vectors": (vectors[0][:1], vectors[1])},
        {"vectors": (np.concatenate([vectors[0], [[3.0]]]), vectors[1])},
        {"numbers": numbers[:1], "vectors": vectors[:1]},
        {"numbers": numbers[:1]},
    ]
    for change in bad:
        with pytest.raises((file.Rejected, ValueError)):
            sets.CheckedChoices(**{"numbers": numbers, "vectors": vectors, **ends, **change})


def test_boxes() -> None:
    """At all corners, in rationals, with what is added at each."""
    chance = np.random.default_rng(0)
    lower = chance.standard_normal(6)
    given = sets.CheckedBox(lower=lower, upper=lower + chance.random(6) * (chance.random(6) < 0.8))
    A, deviation = chance.standard_normal((2, 20, 6))
    deviation = np.where(given.upper > given.lower, deviation, 0.0)
    low, more = given.lowest(A, np.zeros_like(A)), given.lowest(A, deviation)
    for s in range(20):
        corners = itertools.product(*zip(given.lower.tolist(), given.upper.tolist(), strict=True))
        values, others = [], []
        for x in corners:
            values.append(value(A[s], [Fraction(v) for v in x]))
            xi = [
                (Fraction(v) - Fraction(c)) / Fraction(r) if r else Fraction(0)
                for v, c, r in zip(x, given.centre.tolist(), given.reach.tolist(), strict=True)
            ]
            others.append(values[-1] + value(deviation[s], xi))
        assert Fraction(float(low[s])) <= min(values)
        assert Fraction(float(more[s])) <= min(others)
        assert low[s] >= float(min(values)) - 1e-13
        assert more[s] >= float(min(others)) - 1e-13


@pytest.mark.parametrize("norm", [1, 2])
def test_the_unknowns_of_balls(norm: int) -> None:
    """Over whole balls, the centre and the reach of the unknowns are the closed form."""
    unknowns = module("unknowns")
    given = ball_of(2, norm, cut=False, per_row=True)
    A = np.random.default_rng(0).standard_normal((20, 12))
    far = unknowns.reach(given.columns(A), given.balls)
    assert np.allclose(A @ given.centre - far, given.lowest(A, np.zeros_like(A)), rtol=1e-9)
