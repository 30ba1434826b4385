"""Trees cover; numbers of every size; what is not defined is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb, ctx

from tests.certificate import exact
from tests.certificate.claims import (
    assert_boxes,
    everything_holds,
    pass_holds,
    points_of,
    silly,
    value_of,
)
from tests.certificate.exact import Array, Network, Written, inside, outside
from tests.certificate.made import (
    Net,
    about,
    accepted,
    boxed,
    by_rule,
    draw,
    made,
    node,
    rows_of,
)
from tests.certificate.packed import packed, unpacked
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.certificate.checker import Rejected, check, curves, proof, ranges, trees
from vertex_softmax.certificate.checker.file import File
from vertex_softmax.certificate.checker.network import Known, network
from vertex_softmax.certificate.checker.passes import Pass, PassOptions
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.prove import Prover
from vertex_softmax.certificate.prove import written as in_a_file
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops import elementwise


def is_left(written: Written, split: Sequence[Any], values: list[Array]) -> bool:
    """Whether an input is on the left of a branching."""
    number, entry, point, inner = split
    if inner:
        source = values[written.header["graph"][number]["inputs"][0]]
        eps = float(written.header["graph"][number].get("eps", 0.0))
        y = source.reshape(-1, source.shape[-1])[entry]
        value = (sum((v * v for v in y), arb(0)) / len(y) + arb(eps)).sqrt()
    else:
        value = values[number].ravel()[entry]
    return bool(value <= arb(float(point)))


def leaf_of(written: Written, tree: list[dict[str, Any]], values: list[Array]) -> tuple[int, list[tuple[Any, bool]]]:
    """The leaf an input falls into, and the way there."""
    at, way = 0, []
    while "split" in tree[at]:
        split = tree[at]["split"]
        left = is_left(written, split, values)
        way.append((split, left))
        at = tree[at]["left" if left else "right"]
    return at, way


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
                how = PassOptions(rule=tree[at]["rule"], chosen=chosen)
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
                box = known.norm(number).sigma if inner else known.boxes[number]
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
        head, arrays = packed(tree)
        packed_tree_holds(net, known, Written(written.header, {**written.arrays, **arrays}), head, A, 12)


def packed_tree_holds(net: Net, known: Known, written: Written, tree: dict[str, Any], A: Array, count: int) -> set[int]:
    """The same of a packed tree."""
    exactly, entries, seen = Network(written.header, written.arrays), unpacked(written, tree), set()
    with np.errstate(all="ignore"):
        read = trees.read_packed(tree, known, len(A), File(written.header, written.arrays))
        bounds = proof.leaf_bounds(known, A, read)
    assert len(bounds) == sum(entry.split is None for entry in entries)
    for x in points_of(net, written, count, 3):
        values = exactly.values(x)
        at = 0
        while entries[at].split is not None:
            at = entries[at].left if is_left(written, entries[at].split, values) else entries[at].right
        (value,) = value_of(A, values[-1])
        assert not value < arb(float(bounds[entries[at].leaf, 0]))
        seen.add(entries[at].leaf)
    return seen


QUICK = Ascent(steps=2)


def branched(name: str, radius: float, seed: int) -> tuple[Net, Prover]:
    """A prover that needed a tree: its bound is between what is proved without one and what is seen."""
    net = boxed(made(name).graph, radius, seed)
    row = rows_of(net, 1, 4)
    seen = float((outputs_of(net) @ row.T).min())
    prover = Prover(net.graph, net.lower, net.upper, ("affine", "vertex"))
    prover.state([ForbiddenCase(row, np.full(1, seen), np.ones(1))])
    for rule in ("affine", "vertex"):
        prover.by_rule(rule)
    prover.by_ascent(Ascent(steps=40), 2)
    root = float(prover.margins[0]) + seen
    prover = Prover(net.graph, net.lower, net.upper, ("affine", "vertex"))
    prover.state([ForbiddenCase(row, np.array([root + 0.3 * (seen - root)]), np.ones(1))])
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
    assert len(unpacked(written, tree)) > 1
    everything_holds(net, data, 24)
    A = prover.cases[0].rows.reshape(1, *prover.known.nodes[-1].shape)
    seen = packed_tree_holds(net, prover.known, written, tree, A, 64)
    assert len(seen) > 1


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
                    found = ranges.zonotope(known, k)
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
                    how = PassOptions(
                        rule="vertex" if kind == "vertex" else "affine",
                        chosen=chosen,
                        parallel=kind == "parallel",
                        columns=100,
                    )
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
