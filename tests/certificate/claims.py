"""What a certificate claims, looked at by sampling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from flint import arb

from tests.certificate import exact
from tests.certificate.exact import Array, Network, Written, broken_cases, broken_claims, inside, outside
from tests.certificate.made import (
    Net,
    made,
)
from vertex_softmax.certificate.checker import curves, fitted, proof, trees
from vertex_softmax.certificate.checker.cuts import Cut, Cuts, gathered
from vertex_softmax.certificate.checker.network import Known
from vertex_softmax.certificate.checker.passes import Pass, PassOptions
from vertex_softmax.certificate.lowering import lowered
from vertex_softmax.certificate.prove import Prover


def attacked(net: Net, written: Written, count: int, seed: int) -> Array:
    """Points at which some claimed number of some node was pushed out by signed gradient steps."""
    chance = np.random.default_rng(seed)
    low = lowered(net.graph)
    nodes = {number: node for node, number in low.number.items()}
    claims = [(nodes[s["node"]]) for s in written.header["parts"][0]["steps"] if s.get("node") in nodes]
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
        elif node.op == "MatMul" and known.planes(k).exact is not None and chance.random() < 0.7:
            of["corner"] = np.sign(wild(n)) if chance.random() < 0.5 else 2 * chance.random((S, n)) - 1
        elif node.op == "Normalize" and chance.random() < 0.7:
            sigma = known.norm(k).sigma
            of["touch"] = np.exp(wild(*node.shape[:-1], around=np.log(sigma.middle())))
        elif node.op == "Attention" and chance.random() < 0.7:
            keys = known.nodes[node.inputs[0]].shape
            middle = known.softmax_rows(k).middle
            if chance.random() < 0.5:
                of["m"] = wild(*keys, around=middle)
                of["a"] = wild(*keys, around=middle * wild(*keys))
                of["mu"] = wild(*keys[:-1], pieces)
            else:
                of |= {"place": wild(*keys, around=0.5), "slope": wild(*keys), "level": wild(*keys[:-1], pieces)}
        if of:
            found[k] = of
    return found


def silly_fits(known: Known, chance: np.random.Generator) -> dict[int, fitted.CheckedFits]:
    """Ellipsoids of some attentions' values, fitted to anything."""
    found = {}
    for k, node in enumerate(known.nodes):
        if node.op == "Attention" and node.inputs[1] in known.zonotopes and chance.random() < 0.7:
            eta = chance.standard_normal(node.shape) * chance.choice([0.0, 1e-12, 1.0, 1e12])
            found[k] = fitted.fitted(known.zonotopes[node.inputs[1]], eta)
    return found


def silly_cuts(
    known: Known, S: int, values: list[list[Array]], chance: np.random.Generator
) -> tuple[dict[int, Cuts], list[list[int]]]:
    """Cuts of numbers that ReLUs alone read, for S objectives, and for each which of the inputs are left by them."""
    nodes = [k for k in range(1, len(known.nodes)) if trees._is_for_relus(known, k)]
    branches: list[dict[tuple[int, int], tuple[float, float, float]]] = []
    left: list[list[int]] = []
    for _ in range(S):
        cuts: dict[tuple[int, int], tuple[float, float, float]] = {}
        inside = list(range(len(values)))
        for k in nodes:
            for entry in chance.permutation(known.boxes[k].lo.size)[: int(chance.integers(0, 4))]:
                lo, hi = (float(end.flat[entry]) for end in (known.boxes[k].lo, known.boxes[k].hi))
                point = float(chance.choice([0.0, lo, hi, lo / 2 + hi / 2, float(values[0][k].ravel()[entry])]))
                cut = Cut(k, int(entry), point, False, bool(chance.random() < 0.5))
                held = float(chance.choice([0.0, 1.0, 1e3])) * chance.standard_normal()
                cuts[k, int(entry)] = (*cut.within(lo, hi), held)
                x = [v[k].ravel()[entry] for v in values]
                inside = [i for i in inside if not (x[i] > point if cut.left else x[i] < point)]
        branches.append(cuts)
        left.append(inside)
    return gathered(branches), left


def value_of(A: Array, value: Array) -> list[arb]:
    """Σ A·node for every objective."""
    flat = list(value.ravel())
    return [sum((arb(float(c)) * v for c, v in zip(row.ravel(), flat, strict=True)), arb(0)) for row in A]


def pass_holds(
    known: Known, walk: Pass, A: Array, points: Array, wanted: list[list[arb]], left: list[list[int]] | None = None
) -> None:
    """The invariant of passes.py at points, and the bound that follows; with cuts, of those left for each objective."""
    centre, reach = known.given.centre, known.given.reach
    bound = walk.bound()
    for i, (x, values) in enumerate(zip(points, wanted, strict=True)):
        flat = [arb(float(v)) for v in x.ravel()]
        xi = [
            (v - arb(float(c))) / arb(float(r)) if r > 0 else arb(0)
            for v, c, r in zip(flat, centre, reach, strict=True)
        ]
        for s, value in enumerate(values):
            if left is not None and i not in left[s]:
                continue
            line = sum((arb(float(c)) * v for c, v in zip(walk.coefficients[s], flat, strict=True)), arb(0))
            line += sum((arb(float(c)) * v for c, v in zip(walk.deviation[s], xi, strict=True)), arb(0))
            if not walk.options.parallel:
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
            kind = chance.choice(["chosen", "chosen", "plain", "vertex", "parallel", "narrow", "cut", "alone"])
            cuts, left = silly_cuts(known, S, values, chance)
            free = {"chosen": silly(known, number, S, pieces, chance), "fitted": silly_fits(known, chance)}
            how = {
                "chosen": PassOptions(rule="affine", chosen=silly(known, number, S, pieces, chance)),
                "plain": PassOptions(rule="affine"),
                "vertex": PassOptions(rule="vertex", chosen=silly(known, number, S, 1, chance)),
                "parallel": PassOptions(parallel=True, columns=1000),
                "narrow": PassOptions(parallel=True, columns=int(chance.integers(0, 8))),
                "cut": PassOptions(**free, cuts=cuts, alone=True),
                "alone": PassOptions(alone=True, fitted=free["fitted"] if chance.random() < 0.5 else {}),
            }[str(kind)]
            walk = Pass(known, number, A, how)
            wanted = [value_of(A, v[number]) for v in values]
            pass_holds(known, walk, A, points, wanted, left if kind == "cut" else None)
            if not how.parallel and kind != "cut":
                assert np.array_equal(proof.bounds(known, number, A, how), walk.bound(), equal_nan=True)
            tried += 1
    return tried


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
            sigma = known.norm(number).sigma
            assert not outside(deviations(known, number, values), sigma.lo, sigma.hi).any()
