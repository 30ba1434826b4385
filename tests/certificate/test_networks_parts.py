"""Ranges, corners, norms, zonotopes, rows and curves of the checker hold on networks."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from flint import arb, ctx

from tests.certificate import exact
from tests.certificate.claims import (
    assert_boxes,
    attack_passes,
    deviations,
    everything_holds,
    objectives,
    pass_holds,
    value_of,
)
from tests.certificate.exact import Network, inside, outside
from tests.certificate.made import (
    NETS,
    accepted,
    boxed,
    by_rule,
    made,
)
from tests.slowly import few
from vertex_softmax.certificate.checker import Rejected, curves, passes, ranges, rows, zonotopes
from vertex_softmax.certificate.checker.file import File
from vertex_softmax.certificate.checker.network import Known, network
from vertex_softmax.certificate.checker.passes import Pass, PassOptions
from vertex_softmax.certificate.checker.rounding import ProvedInterval
from vertex_softmax.certificate.lowering import lowered
from vertex_softmax.certificate.prove import Prover


@pytest.mark.parametrize("name", NETS)
def test_ranges_hold(name: str) -> None:
    """Intervals alone, over the box and over one point of it, for numbers as they are stored and nudged."""
    net, chance = made(name), np.random.default_rng(2)
    low = lowered(net.graph)
    nodes = network(File({"graph": low.entries}, low.arrays))
    middle = net.lower / 2 + net.upper / 2
    for lower, upper in ((net.lower, net.upper), (middle, middle)):
        known = Known(nodes, lower, upper)
        with np.errstate(all="ignore"):
            known.reach(len(nodes) - 1)
        for k, x in enumerate(inside(lower, upper, 6, chance)[-6:]):
            exactly = Network({"graph": low.entries}, low.arrays, nudged=k if k % 2 else None)
            for number, value in enumerate(exactly.values(x)):
                box = known.boxes[number]
                assert not outside(value, *(np.broadcast_to(end, value.shape) for end in (box.lo, box.hi))).any()


def test_corners_hold_where_they_touch() -> None:
    """Products of rows that are affine in the input, with planes that touch at a corner: also at that corner."""
    chance = np.random.default_rng(3)
    for name in ("relu", "gelu, pre-norm, two heads", "peaked", "padding mask, unfused", "a point", "nearly a point"):
        net = made(name)
        net = boxed(net.graph, 0.5, 1) if "point" not in name else net
        prover = Prover(net.graph, net.lower, net.upper)
        known, n = prover.known, net.lower.size
        exactly = Network({"graph": prover.low.entries}, prover.low.arrays)
        products = [
            k for k, node in enumerate(known.nodes) if node.op == "MatMul" and known.planes(k).exact is not None
        ]
        assert products or "pre-norm" in name or "point" in name
        for number in products:
            for S in (1, 3):
                A = objectives(known, number, S, chance)
                corner = np.sign(chance.standard_normal((S, n))) * chance.choice([1.0, 1.0, 0.5])
                half = (net.upper - net.lower).ravel() / 2
                points = net.lower + ((1 + corner) * half).reshape(S, *net.lower.shape)
                points = np.clip(points, net.lower, net.upper)
                wanted = [value_of(A, exactly.values(x)[number]) for x in points]
                with np.errstate(all="ignore"):
                    walk = Pass(known, number, A, PassOptions(chosen={number: {"corner": corner}}))
                    pass_holds(known, walk, A, points, wanted)


@pytest.mark.parametrize("name", [name for name in NETS if "norm" in name or "point" in name or "blocks" in name])
def test_norms_hold(name: str) -> None:
    """σ, and 1/σ between its lines, whatever the point where they touch."""
    net, chance = made(name), np.random.default_rng(6)
    prover = Prover(net.graph, net.lower, net.upper)
    known = prover.known
    known.reach(len(known.nodes) - 1)
    exactly = Network({"graph": prover.low.entries}, prover.low.arrays)
    values = [exactly.values(x) for x in inside(net.lower, net.upper, 12, chance)[-24:]]
    for value in values:
        assert_boxes(known, value)
    for number in [k for k, entry in enumerate(known.nodes) if entry.op == "Normalize"]:
        norm = known.norm(number)
        touch = norm.sigma.middle()[None] * np.exp(chance.choice([0.0, 0.01, 1.0], (4, 1, 1)[: 1 + norm.sigma.lo.ndim]))
        lines = [(1, *norm.below()), (1, *norm.below(touch)), (-1, *norm.above())]
        for value in values:
            y = value[known.nodes[number].inputs[0]]
            rho = np.frompyfunc(lambda v: 1 / v, 1, 1)(deviations(known, number, value))
            for side, k, b in lines:
                off = side * (rho - (exact._balls(np.asarray(k)) * y).sum(-1) - exact._balls(np.asarray(b)))
                assert not any(bool(v < 0) for v in np.asarray(off, dtype=object).ravel())


@pytest.mark.parametrize(
    ("limit", "name"),
    few(
        itertools.product(
            ["a few at once", "ellipsoids", "no products", "few columns"],
            ["gelu, pre-norm, two heads", "three blocks", "products and moves"],
        ),
        lambda limit, name: name == "three blocks" or limit == "no products",
    ),
)
def test_other_ways_hold_too(name: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What large networks take: passes in parts, ellipsoids instead of sums, errors instead of columns."""
    net = made(name)
    if limit == "a few at once":
        monkeypatch.setattr(ranges, "WORK", 100)
    elif limit == "ellipsoids":
        monkeypatch.setattr(passes, "MOST_EXACT", 0)
    elif limit == "no products":
        whole = ranges.joined
        monkeypatch.setattr(ranges, "joined", lambda *of: dataclasses.replace(whole(*of), exact=False))
    else:
        count = max(int(np.prod(entry["shape"])) for entry in lowered(net.graph).entries)
        for module in (ranges, passes):
            monkeypatch.setattr(module, "MOST_COLUMNS", count * (net.lower.size + 7))
    _, data = by_rule(net)
    accepted(data)
    everything_holds(net, data, 8)
    assert attack_passes(name, 6, 9)


@pytest.mark.parametrize("name", ["relu", "causal mask", "three blocks", "cross attention", "padding mask, unfused"])
def test_rows_without_coefficients_are_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are the same, but for rounding, and hold; also where no row has any."""
    prover, _ = by_rule(made(name))
    known, chance = prover.known, np.random.default_rng(0)
    known.reach(len(known.nodes) - 1)
    attentions = [k for k, node in enumerate(known.nodes) if node.op == "Attention"]
    for k in attentions:
        shape = known.nodes[k].shape
        A = chance.standard_normal((7, *shape)) * (chance.random((7, *shape[:-1])) < 0.3)[..., None]
        A[0] = 0
        for how in (PassOptions(), PassOptions(parallel=True, columns=1000)):
            found = []
            for share in (0.0, 1.1):
                monkeypatch.setattr(passes, "FEW_ROWS", share)
                with np.errstate(all="ignore"):
                    found.append(Pass(known, k, A, how))
            whole, some = found
            for name_ in ("lo", "hi", "coefficients", "deviation"):
                assert np.allclose(getattr(whole, name_), getattr(some, name_), rtol=1e-9, atol=1e-9)
            assert len(whole.noise) == len(some.noise)
    monkeypatch.setattr(passes, "FEW_ROWS", 1.1)
    assert attack_passes(name, 12, 5)


def as_rows(z: zonotopes.ProvedZonotope) -> zonotopes.ProvedZonotope:
    """A zonotope of any shape as rows (n, d)."""
    d = z.centre.shape[-1]
    return dataclasses.replace(
        z,
        centre=z.centre.reshape(-1, d),
        columns=z.columns.reshape(-1, d, z.columns.shape[-1]),
        error=z.error.reshape(-1, d),
    )


@pytest.mark.parametrize("name", NETS)
def test_zonotopes_hold_what_is_linear_in_them_and_products(name: str) -> None:
    net = made(name)
    prover = Prover(net.graph, net.lower, net.upper)
    known, chance = prover.known, np.random.default_rng(0)
    known.reach(len(known.nodes) - 1)
    exactly = Network({"graph": prover.low.entries}, prover.low.arrays)
    points = inside(net.lower, net.upper, 6, chance)[-8:]
    values = [exactly.values(x) for x in points]
    with np.errstate(all="ignore"):
        for number in [k for k, node in enumerate(known.nodes) if node.shape][-6:]:
            z = ranges.zonotope(known, number)
            box = z.box()
            rows_ = as_rows(z)
            eta = chance.standard_normal((2, *rows_.centre.shape))
            sums = zonotopes.by_columns(eta, rows_)
            round_ = zonotopes.by_ellipsoid(eta, zonotopes.ellipsoid(rows_))
            product = zonotopes.products(rows_, rows_)
            whole = zonotopes.exact_products(rows_, rows_)[0] if z.exact else product
            for value in values:
                assert not outside(value[number], box.lo, box.hi).any()
                off = value[number].reshape(rows_.centre.shape) - exact._balls(rows_.centre)
                for s, i, j in itertools.product(range(2), range(len(off)), range(len(off))):
                    length = abs(sum((arb(float(e)) * v for e, v in zip(eta[s, i], off[j], strict=True)), arb(0)))
                    assert not length > arb(float(sums[s, i, j]))
                    assert not length > arb(float(round_[s, i, j]))
                    both = abs(sum((u * v for u, v in zip(off[i], off[j], strict=True)), arb(0)))
                    assert not both > arb(float(product[i, j]))
                    assert not both > arb(float(whole[i, j]))


def test_rows_of_any_width_hold() -> None:
    """log p_j, Σ p_j w_j by either rule, over narrow and wide score boxes, masked or not, centred or not."""
    chance, refused = np.random.default_rng(0), 0
    for trial in range(60):
        K, pieces = int(chance.integers(1, 6)), int(chance.integers(1, 5))
        centre = chance.standard_normal((1, K)) * chance.choice([1.0, 20.0, 900.0])
        wide = chance.random((1, K)) * chance.choice([0.0, 1e-13, 1e-3, 1.0, 40.0, 1e4])
        scores = ProvedInterval(centre - wide, centre + wide)
        there = chance.random((1, K)) < 0.7
        there[0, int(chance.integers(K))] = True
        samples = inside(scores.lo, scores.hi, 6, chance)[-10:]
        weights = np.where(there, chance.random((1, K)) + 0.01, 0.0)
        weights = weights / weights.sum() * chance.choice([1.0, 1.0, 0.9, 1.1])
        if trial % 7 == 0:
            weights = chance.random((1, K))  # of masked keys too
        balls = [exact._balls(s) for s in samples]
        shifted = [s - (s * exact._balls(weights)).sum(-1, keepdims=True) for s in balls]
        ends = np.array([[[float(v.lower()), float(v.upper())] for v in t.ravel()] for t in shifted])
        tight = ProvedInterval(ends[..., 0].min(0)[None] - 1e-9, ends[..., 1].max(0)[None] + 1e-9)
        centred = (weights, tight) if trial % 2 else None
        try:
            row, one = rows.rows(scores, there, centred, pieces), rows.rows(scores, there, centred, 1)
        except Rejected:
            refused += 1
            continue
        S = 2
        w = chance.standard_normal((S, 1, K)) * chance.choice([1.0, 1e-3, 1e3])
        w_box = ProvedInterval(w - 0.1 * chance.random(w.shape), w + 0.1 * chance.random(w.shape))
        m = chance.random((S, 1, K)) * 1.5 - 0.2
        a = np.where(there, chance.standard_normal((S, 1, K)) * chance.choice([0.0, 1e-3, 1.0, 50.0]), 0.0)
        mu = chance.standard_normal((S, 1, pieces)) * 2
        with np.errstate(all="ignore"):
            B = rows.affine(row, w_box, a, m, mu)
            t = rows.vertex(one, w_box.lo)
        for s in balls:
            p = exact._softmax(s, ~there)
            for j in np.flatnonzero(there[0]):
                log = p[0, j].log()
                assert not log < arb(float(one.low[0, 0, j]))
                assert not log > arb(float(one.high[0, 0, j]))
            for k in range(S):
                for w_at in (w_box.lo[k, 0], w_box.hi[k, 0]):
                    value = sum((p[0, j] * arb(float(w_at[j])) for j in range(K)), arb(0))
                    line = sum(
                        (
                            arb(float(a[k, 0, j])) * s[0, j] + arb(float(m[k, 0, j])) * arb(float(w_at[j]))
                            for j in range(K)
                        ),
                        arb(0),
                    )
                    assert not value < line + arb(float(B[k, 0]))
                    assert not value < arb(float(t[k, 0]))
    assert refused <= 6


@pytest.mark.parametrize("name", curves.CURVES)
def test_lines_lie_on_their_side_of_a_curve(name: str) -> None:
    chance = np.random.default_rng(1)
    start, stop = curves.CURVES[name].domain
    special = [-1.4142135623730951, 1.414213562373095, 2.3993572805154676, -0.75, 0.0, 1e-300, 5e-324, 40.0, -40.0, 1.0]
    lo, hi = [], []
    for _ in range(40):
        ends = np.sort([*chance.choice(special, 1), chance.standard_normal() * chance.choice([0.01, 1.0, 30.0])])
        ends = np.clip(ends, max(start, -1e3), min(stop, 1e3))
        if name == "Reciprocal" and ends[0] <= 0 <= ends[1]:
            ends = np.array([0.1, 2.0]) * chance.choice([1.0, 1e-5])
        lo.append(ends[0])
        hi.append(ends[1])
    low, high = np.array(lo), np.array(hi)
    k = chance.standard_normal(len(low)) * chance.choice([0.0, 0.3, 10.0], len(low))
    touch = low + (high - low) * chance.random((2, len(low)))
    with np.errstate(all="ignore"):
        image = curves.image(name, low, high)
        below = curves.floor(name, 1, k, touch, low, high)
        above = -curves.floor(name, -1, -k, touch, low, high)
    f = exact.CURVES[name]
    for i in range(len(low)):
        for t in (0.0, 1.0, *chance.random(12)):
            x = arb(float(np.clip(low[i] * (1 - t) + high[i] * t, low[i], high[i])))
            value = f(x)
            assert not value < arb(float(image.lo[i]))
            assert not value > arb(float(image.hi[i]))
            assert not value - arb(float(k[i])) * x < arb(float(below[i]))
            assert not value - arb(float(k[i])) * x > arb(float(above[i]))


@pytest.mark.parametrize("name", ["Gelu", "GeluTanh", "GeluTanhDouble", "GeluTanhSingle", "Silu"])
def test_curvature_changes_where_the_checker_says(name: str) -> None:
    """f'' > 0 at the last float of the convex part, < 0 at the next one; by a series around the point."""
    ((start, stop),) = curves.CURVES[name].convex
    from flint import arb_series

    def second(x: float) -> arb:
        before, ctx.cap = ctx.cap, 3
        try:
            t = arb_series([arb(x), 1])
            if name == "Gelu":
                series = t * (t / arb(2).sqrt()).erf() / 2 + t / 2
            elif name == "Silu":
                series = t / (1 + (-t).exp())
            else:
                rounds: Any = {"GeluTanhDouble": float, "GeluTanhSingle": np.float32}.get(name)
                k = (2 / arb.pi()).sqrt() if rounds is None else arb(float(rounds(math.sqrt(2 / math.pi))))
                c = arb("0.044715") if rounds is None else arb(float(rounds(0.044715)))
                e = (2 * k * (t + c * t * t * t)).exp()
                series = t * e / (1 + e)
            return series[2]
        finally:
            ctx.cap = before

    assert start == -stop
    assert second(stop) > 0
    assert second(math.nextafter(stop, math.inf)) < 0
