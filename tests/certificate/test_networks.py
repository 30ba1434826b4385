"""Certificates of networks of every op: what they claim holds at every point tried, judged by Arb without tolerance."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb, ctx
from tests.certificate import exact
from tests.certificate.exact import Array, Network, Written, broken_cases, broken_claims, inside, outside
from tests.certificate.made import (
    NETS,
    Net,
    about,
    accepted,
    boxed,
    by_rule,
    cases_below,
    draw,
    made,
    node,
    proved,
    rows_of,
)
from tests.graph.models import FAMILIES, imported

from vertex_softmax.bounds.optimize import Ascent
from vertex_softmax.certificate.certificate import Effort
from vertex_softmax.certificate.checker import Rejected, check, curves, passes, proof, rows, zonotopes
from vertex_softmax.certificate.checker.file import File
from vertex_softmax.certificate.checker.network import Known, network
from vertex_softmax.certificate.checker.passes import How, Pass
from vertex_softmax.certificate.checker.rounding import Interval
from vertex_softmax.certificate.lowering import lowered
from vertex_softmax.certificate.prove import Case, Prover
from vertex_softmax.certificate.prove import written as in_a_file
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops import elementwise
from vertex_softmax.search.branch_and_bound import Search

POINTS = 16
EFFORTS = {"plain": Effort(), "best": Effort(ascent=Ascent(steps=3), best=True)}


def attacked(net: Net, written: Written, count: int, seed: int) -> Array:
    """Points at which some claimed number of some node was pushed out by signed gradient steps."""
    chance = np.random.default_rng(seed)
    low = lowered(net.graph)
    nodes = {number: node for node, number in low.number.items()}
    claims = [(nodes[s["node"]]) for s in written.header["parts"][0]["steps"] if s["node"] in nodes]
    targets = [net.graph.output, net.graph.output, *claims]
    picked = [targets[int(chance.integers(len(targets)))] for _ in range(count)]
    places = [int(chance.integers(math.prod(node.shape))) for node in picked]
    signs = chance.choice([-1.0, 1.0], count)
    lower, upper = torch.from_numpy(net.lower), torch.from_numpy(net.upper)
    t = torch.from_numpy(chance.random((count, *net.lower.shape)))
    for _ in range(6):
        t = t.detach().requires_grad_()
        values = net.graph.values(lower + (upper - lower) * t)
        total = sum(
            signs[k] * values[node].expand(count, *node.shape)[k].reshape(-1)[place]
            for k, (node, place) in enumerate(zip(picked, places, strict=True))
        )
        (gradient,) = torch.autograd.grad(total, t, allow_unused=True)  # type: ignore[arg-type]
        t = t if gradient is None else (t + 0.3 * gradient.sign()).clamp(0, 1)
    return np.clip((lower + (upper - lower) * t).detach().numpy(), net.lower, net.upper)


def points_of(net: Net, written: Written, count: int, seed: int = 0) -> Array:
    chance = np.random.default_rng(seed)
    some = chance.permutation(inside(net.lower, net.upper, count, chance))[: 3 * count // 2]
    return np.concatenate([some, attacked(net, written, max(6, count // 2), seed)])


def everything_holds(net: Net, data: bytes, count: int, seed: int = 0) -> None:
    """Every claimed box, centred box and case, at points, for the stored numbers and for others within 2⁻⁴⁶."""
    written = exact.read(data)
    (part,) = written.header["parts"]
    points = points_of(net, written, count, seed)
    networks = [Network(written.header, written.arrays), Network(written.header, written.arrays, nudged=seed)]
    with torch.no_grad():
        graph = net.graph.evaluate(torch.from_numpy(points)).reshape(len(points), -1).numpy()
    written_floats = exact.floats(written.header, written.arrays, points)[-1].reshape(len(points), -1)
    size = 1 + np.abs(graph).max()
    assert np.abs(graph - written_floats).max() <= 1e-9 * size
    for k, x in enumerate(points):
        values = networks[k % 5 == 4].values(x)
        middle = np.array([float(v) for v in values[-1].ravel()])
        assert np.abs(middle - graph[k]).max() <= 1e-9 * size
        assert not broken_claims(written, part, values)
        assert not broken_cases(written, part, values[-1])


@pytest.mark.parametrize(
    ("name", "effort"),
    [
        pytest.param(name, effort, marks=[pytest.mark.slow] if effort == "best" and i % 4 else [])
        for i, name in enumerate(NETS)
        for effort in EFFORTS
    ],
)
def test_what_is_claimed_holds(name: str, effort: str) -> None:
    net = made(name)
    found = proved(net, cases_below(net, 4.0), EFFORTS[effort])
    assert found.certificate is not None, found.margins
    verdict = accepted(found.certificate.data)
    assert 0 < verdict.margin < math.inf
    everything_holds(net, found.certificate.data, POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_what_is_claimed_holds_at_many_points(name: str) -> None:
    net = made(name)
    for rules in (("affine",), ("affine", "vertex"), ("vertex",)):
        _, data = by_rule(net, rules)
        accepted(data)
        everything_holds(net, data, 300, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_families_of_models(name: str) -> None:
    """Everything that is imported from torch can be certified, with a small enough box."""
    from vertex_softmax.graph.from_torch import from_torch
    from vertex_softmax.graph.simplify import simplify

    (module, x, arguments), _, _ = imported(name)
    graph = simplify(from_torch(module, x, **arguments), exact=True)
    net = boxed(graph, 1e-3)
    if arguments.get("perturb") != "embedding":
        centre = x.double().reshape(graph.input.shape).numpy()
        net = Net(graph, centre - 1e-3, centre + 1e-3)
    _, data = by_rule(net, gap=0.01)
    accepted(data)
    everything_holds(net, data, 24)


# Passes, with anything chosen ----------------------------------------------------------------------------------------


def silly(known: Known, number: int, S: int, pieces: int, chance: np.random.Generator) -> dict[int, dict[str, Array]]:
    """Something for most nodes up to one: near what is sensible, or wild."""
    found: dict[int, dict[str, Array]] = {}
    n = known.boxes[0].lo.size

    def wild(*shape: int, around: Any = 0.0) -> Array:
        scale = chance.choice([0.0, 1e-3, 1.0, 30.0])
        return np.asarray(around + scale * chance.standard_normal((S, *shape)))

    for k in range(number + 1):
        node, of = known.nodes[k], {}
        if chance.random() < 0.25:
            of["held"] = wild(*node.shape)
        source = known.boxes[node.inputs[0]] if node.inputs else known.boxes[0]
        if node.op == "Relu" and chance.random() < 0.7:
            of["slope"] = wild(*node.shape, around=chance.random((S, *node.shape)))
        elif node.op in curves.CURVES and chance.random() < 0.7:
            for side in ("below", "above"):
                of[side] = wild(*node.shape, around=chance.random((S, *node.shape)))
                place = source.lo + (source.hi - source.lo) * chance.random((S, 2, *node.shape))
                of[f"touch_{side}"] = place if chance.random() < 0.7 else wild(2, *node.shape)
        elif node.op == "MatMul" and known.make(k, "planes")[3] is not None and chance.random() < 0.7:
            of["corner"] = np.sign(wild(n)) if chance.random() < 0.5 else 2 * chance.random((S, n)) - 1
        elif node.op == "Normalize" and chance.random() < 0.7:
            sigma = known.make(k, "norm").sigma
            of["touch"] = np.exp(wild(*node.shape[:-1], around=np.log(sigma.middle())))
        elif node.op == "Attention" and chance.random() < 0.7:
            keys = known.nodes[node.inputs[0]].shape
            middle = known.make(k, "rows").middle
            of["m"] = wild(*keys, around=middle)
            of["a"] = wild(*keys, around=middle * wild(*keys))
            of["mu"] = wild(*keys[:-1], pieces)
        if of:
            found[k] = of
    return found


def value_of(A: Array, value: Array) -> list[arb]:
    """Σ A·node for every objective."""
    flat = list(value.ravel())
    return [sum((arb(float(c)) * v for c, v in zip(row.ravel(), flat, strict=True)), arb(0)) for row in A]


def pass_holds(known: Known, walk: Pass, A: Array, points: Array, wanted: list[list[arb]]) -> None:
    """The invariant of passes.py at points, and the bound that follows."""
    centre, reach = walk.start()
    bound = walk.bound()
    for x, values in zip(points, wanted, strict=True):
        flat = [arb(float(v)) for v in x.ravel()]
        xi = [
            (v - arb(float(c))) / arb(float(r)) if r > 0 else arb(0)
            for v, c, r in zip(flat, centre, reach, strict=True)
        ]
        for s, value in enumerate(values):
            line = sum((arb(float(c)) * v for c, v in zip(walk.coefficients[s], flat, strict=True)), arb(0))
            line += sum((arb(float(c)) * v for c, v in zip(walk.deviation[s], xi, strict=True)), arb(0))
            if not walk.how.parallel:
                assert np.isnan(bound[s]) or not value < arb(float(bound[s]))
                assert not np.isfinite(walk.lo[s]) or not value < line + arb(float(walk.lo[s]))
                continue
            noise = sum((arb(float(abs(v))) for part in walk.noise for v in part[s]), arb(0))
            assert not value < line - noise + arb(float(walk.lo[s]))
            assert not value > line + noise + arb(float(walk.hi[s]))


def objectives(known: Known, number: int, S: int, chance: np.random.Generator) -> Array:
    shape = known.nodes[number].shape
    A = chance.standard_normal((S, *shape))
    if chance.random() < 0.5:
        A = A * (chance.random(A.shape) < 0.3)
    return np.asarray(A * chance.choice([1.0, 1e-6, 1e6]))


def attack_passes(name: str, rounds: int, seed: int) -> int:
    """How many passes of a network's known boxes were tried."""
    net = made(name)
    prover = Prover(net.graph, net.lower, net.upper)
    known, chance = prover.known, np.random.default_rng(seed)
    known.reach(len(known.nodes) - 1)
    points = inside(net.lower, net.upper, 6, chance)[-8:]
    exactly = Network({"graph": prover.low.entries}, prover.low.arrays)
    nudged = Network({"graph": prover.low.entries}, prover.low.arrays, nudged=seed)
    values = [(exactly, nudged)[k % 2].values(x) for k, x in enumerate(points)]
    tried = 0
    with np.errstate(all="ignore"):
        for _ in range(rounds):
            number = int(chance.integers(1, len(known.nodes)))
            if chance.random() < 0.4:
                number = len(known.nodes) - 1
            S, pieces = int(chance.integers(1, 4)), int(chance.integers(1, 4))
            A = objectives(known, number, S, chance)
            kind = chance.choice(["chosen", "chosen", "plain", "vertex", "parallel", "narrow"])
            how = {
                "chosen": How("affine", pieces, silly(known, number, S, pieces, chance)),
                "plain": How("affine", pieces),
                "vertex": How("vertex", 1, silly(known, number, S, 1, chance)),
                "parallel": How(parallel=True, columns=1000),
                "narrow": How(parallel=True, columns=int(chance.integers(0, 8))),
            }[str(kind)]
            walk = Pass(known, number, A, how)
            pass_holds(known, walk, A, points, [value_of(A, v[number]) for v in values])
            if not how.parallel:
                assert np.array_equal(proof.bounds(known, number, A, how), walk.bound(), equal_nan=True)
            tried += 1
    return tried


@pytest.mark.parametrize("name", NETS)
def test_no_choice_breaks_a_pass(name: str) -> None:
    assert attack_passes(name, 8, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("seed", range(1, 4))
def test_no_choice_breaks_a_pass_often(name: str, seed: int) -> None:
    assert attack_passes(name, 150, seed)


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
            k for k, node in enumerate(known.nodes) if node.op == "MatMul" and known.make(k, "planes")[3] is not None
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
                    walk = Pass(known, number, A, How(chosen={number: {"corner": corner}}))
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
        norm = known.make(number, "norm")
        touch = norm.sigma.middle()[None] * np.exp(chance.choice([0.0, 0.01, 1.0], (4, 1, 1)[: 1 + norm.sigma.lo.ndim]))
        lines = [(1, *norm.below()), (1, *norm.below(touch)), (-1, *norm.above())]
        for value in values:
            y = value[known.nodes[number].inputs[0]]
            rho = np.frompyfunc(lambda v: 1 / v, 1, 1)(deviations(known, number, value))
            for side, k, b in lines:
                off = side * (rho - (exact._balls(np.asarray(k)) * y).sum(-1) - exact._balls(np.asarray(b)))
                assert not any(bool(v < 0) for v in np.asarray(off, dtype=object).ravel())


@pytest.mark.parametrize("name", ["gelu, pre-norm, two heads", "three blocks", "products and moves"])
@pytest.mark.parametrize("limit", ["a few at once", "ellipsoids", "no products", "few columns"])
def test_other_ways_hold_too(name: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What large networks take: passes in parts, ellipsoids instead of sums, errors instead of columns."""
    net = made(name)
    if limit == "a few at once":
        monkeypatch.setattr(proof, "WORK", 100)
    elif limit == "ellipsoids":
        monkeypatch.setattr(passes, "MOST_EXACT", 0)
    elif limit == "no products":
        whole = passes.joined
        monkeypatch.setattr(proof, "joined", lambda parts, shape: whole(parts, shape)._replace(exact=False))
    else:
        count = max(int(np.prod(entry["shape"])) for entry in lowered(net.graph).entries)
        for module in (proof, passes):
            monkeypatch.setattr(module, "MOST_COLUMNS", count * (net.lower.size + 7))
    _, data = by_rule(net)
    accepted(data)
    everything_holds(net, data, 8)
    assert attack_passes(name, 6, 9)


# Zonotopes -----------------------------------------------------------------------------------------------------------


def as_rows(z: zonotopes.Zonotope) -> zonotopes.Zonotope:
    """A zonotope of any shape as rows (n, d)."""
    d = z.centre.shape[-1]
    return zonotopes.Zonotope(
        z.centre.reshape(-1, d), z.columns.reshape(-1, d, z.columns.shape[-1]), z.error.reshape(-1, d), z.exact
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
            z = proof.zonotope(known, number)
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


# Rows and curves -----------------------------------------------------------------------------------------------------


def test_rows_of_any_width_hold() -> None:
    """log p_j, Σ p_j w_j by either rule, over narrow and wide score boxes, masked or not, centred or not."""
    chance, refused = np.random.default_rng(0), 0
    for trial in range(60):
        K, pieces = int(chance.integers(1, 6)), int(chance.integers(1, 5))
        centre = chance.standard_normal((1, K)) * chance.choice([1.0, 20.0, 900.0])
        wide = chance.random((1, K)) * chance.choice([0.0, 1e-13, 1e-3, 1.0, 40.0, 1e4])
        scores = Interval(centre - wide, centre + wide)
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
        tight = Interval(ends[..., 0].min(0)[None] - 1e-9, ends[..., 1].max(0)[None] + 1e-9)
        centred = (weights, tight) if trial % 2 else None
        try:
            row, one = rows.rows(scores, there, centred, pieces), rows.rows(scores, there, centred, 1)
        except Rejected:
            refused += 1
            continue
        S = 2
        w = chance.standard_normal((S, 1, K)) * chance.choice([1.0, 1e-3, 1e3])
        w_box = Interval(w - 0.1 * chance.random(w.shape), w + 0.1 * chance.random(w.shape))
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


@pytest.mark.parametrize("name", ["Gelu", "GeluTanh", "GeluTanhSingle", "Silu"])
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
                single = name.endswith("Single")
                k = arb(float(np.float32(math.sqrt(2 / math.pi)))) if single else (2 / arb.pi()).sqrt()
                c = arb(float(np.float32(0.044715))) if single else arb("0.044715")
                e = (2 * k * (t + c * t * t * t)).exp()
                series = t * e / (1 + e)
            return series[2]
        finally:
            ctx.cap = before

    assert start == -stop
    assert second(stop) > 0
    assert second(math.nextafter(stop, math.inf)) < 0


# Branch and bound ----------------------------------------------------------------------------------------------------


def leaf_of(written: Written, tree: list[dict[str, Any]], values: list[Array]) -> tuple[int, list[tuple[Any, bool]]]:
    """The leaf an input falls into, and the way there."""
    at, way = 0, []
    while "split" in tree[at]:
        number, entry, point, inner = split = tree[at]["split"]
        if inner:
            source = values[written.header["graph"][number]["inputs"][0]]
            eps = float(written.header["graph"][number].get("eps", 0.0))
            y = source.reshape(-1, source.shape[-1])[entry]
            value = (sum((v * v for v in y), arb(0)) / len(y) + arb(eps)).sqrt()
        else:
            value = values[number].ravel()[entry]
        left = bool(value <= arb(float(point)))
        way.append((split, left))
        at = tree[at]["left" if left else "right"]
    return at, way


def deviations(known: Known, number: int, values: list[Array]) -> Array:
    """σ of every row of a normalisation."""
    node = known.nodes[number]
    y = values[node.inputs[0]]
    mean = (y * y).sum(-1) / node.shape[-1] + arb(node.eps)
    return np.asarray(np.frompyfunc(lambda v: v.sqrt(), 1, 1)(mean), dtype=object)


def assert_boxes(known: Known, values: list[Array]) -> None:
    """Every box, and every σ, holds the values."""
    for number, value in enumerate(values):
        box = known.boxes[number]
        assert not outside(value, *(np.broadcast_to(end, value.shape) for end in (box.lo, box.hi))).any()
        if known.nodes[number].op == "Normalize":
            sigma = known.make(number, "norm").sigma
            assert not outside(deviations(known, number, values), sigma.lo, sigma.hi).any()


def tree_holds(net: Net, known: Known, written: Written, tree: list[dict[str, Any]], A: Array, count: int) -> set[int]:
    """At points: the bound of the leaf that each falls into; which leaves were seen."""
    exactly, seen = Network(written.header, written.arrays), set()
    bounds: dict[int, float] = {}
    parts: dict[int, Known] = {}
    for x in points_of(net, written, count, 3):
        values = exactly.values(x)
        at, way = leaf_of(written, tree, values)
        if at not in bounds:
            here = known
            for split, left in way:
                here = here.part(tuple(split), left)
            chosen = {
                int(k): {name: written.arrays[array].astype(float) for name, array in of.items()}
                for k, of in tree[at]["chosen"].items()
            }
            with np.errstate(all="ignore"):
                how = How(tree[at]["rule"], tree[at]["pieces"], chosen)
                bounds[at] = float(proof.bounds(here, len(known.nodes) - 1, A, how)[0])
            parts[at] = here
        (value,) = value_of(A, values[-1])
        assert not value < arb(bounds[at])
        assert_boxes(parts[at], values)
        seen.add(at)
    return seen


@pytest.mark.parametrize(
    "name", ["relu", "gelu, pre-norm, two heads", "gelu tanh, post-norm", "one token", "norms", "peaked"]
)
def test_random_trees_cover(name: str) -> None:
    """Trees of random splits, at numbers of any node and at σ of norms: every input has a leaf whose bound holds."""
    net, chance = made(name), np.random.default_rng(5)
    prover, data = by_rule(net)
    written = exact.read(data)
    known = prover.known
    values = [Network(written.header, written.arrays).values(x) for x in inside(net.lower, net.upper, 4, chance)[-4:]]
    norms = [k for k, node in enumerate(known.nodes) if node.op == "Normalize"]
    for round_ in range(3):
        tree: list[dict[str, Any]] = []

        def grow(depth: int, tree: list[dict[str, Any]] = tree) -> int:
            at = len(tree)
            tree.append({"rule": "affine", "pieces": 1, "chosen": {}})
            if depth < 3 and (chance.random() < 0.8 or not depth):
                inner = bool(norms) and chance.random() < 0.4
                number = int(chance.choice(norms)) if inner else int(chance.integers(1, len(known.nodes)))
                box = known.make(number, "norm").sigma if inner else known.boxes[number]
                entry = int(chance.integers(box.lo.size))
                seen = float(values[int(chance.integers(len(values)))][number].ravel()[entry]) if not inner else 0.0
                middle = float(box.lo.flat[entry] / 2 + box.hi.flat[entry] / 2)
                point = middle if inner or chance.random() < 0.4 else seen
                tree[at] = {"split": [number, entry, point, inner]}
                for side in ("left", "right"):
                    tree[at][side] = grow(depth + 1)
            return at

        grow(0)
        written.header["parts"][0]["proofs"] = [{"cases": [0, 1], "tree": tree}]
        verdict = check(written.data())
        assert verdict.accepted, verdict.reason  # a tree is never worse than its root
        A = rows_of(net, 2)[round_ % 2].reshape(1, *known.nodes[-1].shape)
        tree_holds(net, known, written, tree, A, 12)


QUICK = Ascent(steps=2)


def branched(name: str, radius: float, seed: int) -> tuple[Net, Prover]:
    """A prover that needed a tree: its bound is between what is proved without one and what is seen."""
    net = boxed(made(name).graph, radius, seed)
    row = rows_of(net, 1, 4)
    seen = float((outputs_of(net) @ row.T).min())
    prover = Prover(net.graph, net.lower, net.upper, ("affine", "vertex"))
    prover.state([Case(row, np.full(1, seen), np.ones(1))])
    for rule in ("affine", "vertex"):
        prover.by_rule(rule)
    prover.by_ascent(Ascent(steps=40), 2)
    root = float(prover.margins[0]) + seen
    prover = Prover(net.graph, net.lower, net.upper, ("affine", "vertex"))
    prover.state([Case(row, np.array([root + 0.3 * (seen - root)]), np.ones(1))])
    prover.by_branching(Search(seconds=60, domains=2000, root=QUICK, ascent=QUICK), 2)
    return net, prover


def outputs_of(net: Net) -> Array:
    points = inside(net.lower, net.upper, 512, np.random.default_rng(0))
    with torch.no_grad():
        return np.asarray(net.graph.evaluate(torch.from_numpy(points)).reshape(len(points), -1).numpy())


@pytest.mark.parametrize(("name", "radius"), [("relu", 0.6), ("one token", 0.5)])
def test_a_tree_that_is_needed_covers(name: str, radius: float) -> None:
    net, prover = branched(name, radius, 3)
    data = in_a_file([prover], about())
    assert accepted(data).margin > 0
    written = exact.read(data)
    (part,) = written.header["parts"]
    (tree,) = [entry["tree"] for entry in part["proofs"]]
    assert len(tree) > 1
    everything_holds(net, data, 24)
    A = prover.cases[0].rows.reshape(1, *prover.known.nodes[-1].shape)
    seen = tree_holds(net, prover.known, written, tree, A, 64)
    assert len(seen) > 1


# Numbers of every size -----------------------------------------------------------------------------------------------


def sized(chance: np.random.Generator, reach: float, *shape: int) -> Array:
    """Numbers of either sign from 10^−reach to 10^reach, some of them 0."""
    with np.errstate(all="ignore"):
        x = np.sign(chance.standard_normal(shape)) * 10.0 ** chance.uniform(-reach, reach, shape)
    return np.asarray(np.where(chance.random(shape) < 0.1, 0.0, x))


def monster(chance: np.random.Generator) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """A few nodes of shape (2, 2) with numbers of any size."""
    graph, arrays = [node("Input", [], [2, 2])], {}
    ops = [
        "Linear",
        "Linear",
        "Scale",
        "Constant",
        "Add",
        "Multiply",
        "MatMul",
        "Relu",
        "Move",
        "Normalize",
        "Attention",
    ]
    reach = float(chance.choice([1.0, 30.0, 150.0, 290.0]))
    for k in range(1, int(chance.integers(2, 7))):
        op = str(chance.choice([*ops, "Tanh", "Sigmoid", "Square", "Gelu", "Silu"]))
        inputs = [
            int(chance.integers(max(0, k - 2), k))
            for _ in range(1 + (op in ("Add", "Multiply", "MatMul", "Attention")))
        ]
        entry = node(op, [] if op == "Constant" else inputs, [2, 2])
        name = {"Linear": "weight", "Scale": "factor", "Constant": "value", "Move": "index"}.get(op)
        if name is not None:
            entry["arrays"][name] = f"{k}"
            arrays[f"{k}"] = sized(chance, reach, 2, 2) if op != "Move" else chance.integers(0, 4, (2, 2))
        if op == "Normalize":
            entry["eps"] = float(chance.choice([0.0, 1e-5, 1e-300]))
        graph.append(entry)
    return graph, arrays


def attack_monsters(count: int, seed: int) -> int:
    """Boxes, zonotopes and passes of such networks; how many could be bounded at all."""
    chance, bounded = np.random.default_rng(seed), 0
    before, ctx.prec = ctx.prec, 600
    try:
        for _ in range(count):
            graph, arrays = monster(chance)
            centre = sized(chance, float(chance.choice([1.0, 100.0, 300.0])), 2, 2)
            wide = np.abs(centre) * chance.choice([0.0, 1e-12, 0.1, 1.0], (2, 2))
            lower, upper = centre - wide, centre + wide
            bounded += _attack_monster(graph, arrays, lower, upper, chance)
    finally:
        ctx.prec = before
    return bounded


def _attack_monster(
    graph: list[dict[str, Any]], arrays: dict[str, Array], lower: Array, upper: Array, chance: np.random.Generator
) -> int:
    known = Known(network(File({"graph": graph}, arrays)), lower, upper)
    points = inside(lower, upper, 5, chance)[-5:]
    exactly = [Network({"graph": graph}, arrays, nudged=k if k % 2 else None).values(x) for k, x in enumerate(points)]
    last, bounded = len(graph) - 1, 0
    with np.errstate(all="ignore"):
        for k in range(1, last + 1):
            if graph[k]["op"] in curves.CURVES:
                slopes = [np.zeros((2, 2)), chance.random((2, 2)), sized(chance, 150.0, 2, 2)]
                k1, k2, k3 = (slopes[int(chance.integers(3))] for _ in range(3))
                touch = np.stack([known.boxes[graph[k]["inputs"][0]].lo] * 2) if k <= len(known.boxes) else None
                touch = np.zeros((2, 2, 2)) if touch is None else touch
                known.lines[k] = (k1, touch, k2, touch, k3, touch, touch)
            try:
                known.reach(k)
                if chance.random() < 0.3 and np.isfinite(known.boxes[k].size).all():
                    found = proof.zonotope(known, k)
                    box = found.box()
                    if np.isfinite(box.size).all():
                        known.zonotopes[k] = found
                        known.forget(k)
                        for values in exactly:
                            assert not outside(values[k], box.lo, box.hi).any()
            except (Rejected, np.linalg.LinAlgError):
                return bounded
            box = known.boxes[k]
            if np.isnan(box.lo).any() or np.isnan(box.hi).any():
                return bounded
            for values in exactly:
                for v, lo, hi in zip(values[k].ravel(), box.lo.ravel(), box.hi.ravel(), strict=True):
                    assert not v < arb(float(lo))
                    assert not v > arb(float(hi))
            for kind in ("plain", "chosen", "parallel", "vertex"):
                A = sized(chance, float(chance.choice([1.0, 200.0])), 2, 2, 2)
                try:
                    chosen = silly(known, k, 2, 1, chance) if kind == "chosen" else {}
                    how = How("vertex" if kind == "vertex" else "affine", 1, chosen, kind == "parallel", 100)
                    walk = Pass(known, k, A, how)
                except (Rejected, np.linalg.LinAlgError):
                    continue
                ends = (walk.bound(), walk.lo, walk.hi, walk.coefficients, *walk.noise)
                if all(np.isfinite(x).all() for x in ends):
                    bounded += 1
                    pass_holds(known, walk, A, points, [value_of(A, values[k]) for values in exactly])
    return bounded


def test_numbers_of_every_size() -> None:
    assert attack_monsters(60, 0) > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_numbers_of_every_size_often(seed: int) -> None:
    assert attack_monsters(500, seed) > 800


# What cannot be certified, or could not ------------------------------------------------------------------------------


def test_a_norm_of_one_row_without_leading_dimensions() -> None:
    start = build.source((3,))
    x = build.normalize(build.affine(start, draw(4, 3, seed=1), draw(4, seed=2), "in"), (-1,), 1e-5, "norm")
    net = boxed(Graph(start, build.affine(x, draw(2, 4, seed=3), None, "out")), 0.05)
    _, data = by_rule(net)
    everything_holds(net, data, 24)


def test_a_function_that_is_not_defined_on_the_whole_box_is_refused() -> None:
    start = build.source((2,))
    for op in (elementwise.Log(), elementwise.Sqrt(), elementwise.Rsqrt(), elementwise.Reciprocal()):
        net = Net(Graph(start, build.apply(op, start, name="f")), np.array([-0.1, 1.0]), np.array([0.5, 2.0]))
        with pytest.raises(Rejected, match=type(op).__name__):
            by_rule(net)
