"""Branch and bound: its parts cover the set, no bound is above a value, and it ends as it says."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from tests.slowly import few
from torch import Tensor

from bounds.networks import Config, descend, input_box, samples, transformer
from vertex_softmax.bounds.backward import Walk
from vertex_softmax.bounds.optimize import Ascent
from vertex_softmax.errors import InvalidValueError, OutOfTimeError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bounding import Options, lower_bounds, make_boxes
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.ops.registry import Rules
from vertex_softmax.search import branch_and_bound as module
from vertex_softmax.search.attack import pgd
from vertex_softmax.search.branch_and_bound import Domain, Outcome, Search, branch_and_bound
from vertex_softmax.sets import Box

torch.set_num_threads(1)
TOLERANCE = 1e-10
"""Of 1 + the size of the values: what float64 rounds away."""
QUICK = Search(seconds=None, domains=40, width=8, root=Ascent(steps=5), ascent=Ascent(steps=3, sums=False))
CONFIGS = {
    "relu": Config(tokens=2, seed=2),
    "gelu": Config(tokens=2, heads=2, activation="gelu", mask="causal", seed=3),
    "norm": Config(tokens=2, norm="pre", class_token=True, pooling="token", seed=4),
    "gated": Config(tokens=2, gated=True, activation="silu", gain=2.0, seed=5),
}
MARGINS = torch.tensor([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0], [0.0, 1.0, -1.0]]).double()


def ready(graph: Graph, lower: Tensor, upper: Tensor) -> Walk:
    walk = Walk(graph, lower, upper)
    with torch.no_grad():
        make_boxes(walk, ("affine",), Options(), True)
    assert not walk.problems
    return walk


@functools.cache
def attention(name: str, radius: float = 0.3) -> Walk:
    config = CONFIGS[name]
    return ready(transformer(config), *input_box(config, 1, radius, 1))


def least(walk: Walk, A: Tensor) -> tuple[Tensor, Tensor]:
    """The least values (n,) of objectives (n, *output) that an attack finds, and its points (points, *input)."""
    graph, (lower, upper) = walk.graph, walk.boxes[walk.graph.input]
    x = torch.cat([samples(lower, upper, 3000), descend(graph, graph.output, A[None], lower, upper, 20, 25)])[:, 0]
    for label in range(2):
        found = pgd(graph, Box(lower, upper), label, steps=20)
        x = torch.cat([x, found.inputs.flatten(0, 1)])
    return (graph.evaluate(x).flatten(1) @ A.flatten(1).mT).amin(0), x


def line(slope: float, shift: float) -> Walk:
    """y = slope·x + shift on [1, 2]."""
    x = build.source((1,))
    graph = Graph(x, build.affine(x, torch.full((1, 1), slope).double(), torch.full((1,), shift).double(), "y"))
    return ready(graph, torch.ones(1, 1).double(), torch.full((1, 1), 2.0).double())


def grown(walk: Walk, A: Tensor, search: Search = QUICK, rule: str = "affine", **more: object) -> Outcome:
    return branch_and_bound(walk, A, Rules(attention=rule, pieces=2), search, **more)


class Tree:
    """All parts that a search made: `leaves` at its end, and every (part, its parts)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leaves: list[Domain] = []
        self.steps: list[tuple[list[Domain], list[Domain]]] = []
        self.tree: module.Tree | None = None
        real = module.Tree._take

        def take(tree: module.Tree, count: int, work: object) -> None:
            if tree is not self.tree:
                self.tree, self.leaves, self.steps = tree, [entry[2] for entry in tree.heap], []

            def noted(domains: list[Domain]) -> list[Domain]:
                worst = sorted(tree._short(entry[2]) for entry in tree.heap)[: len(domains)]
                assert sorted(map(tree._short, domains)) == worst, "the worst come first"
                found = work(domains)
                self.leaves = [d for d in self.leaves if all(d is not other for other in domains)] + found
                self.steps.append((domains, found))
                return found

            real(tree, count, noted)

        monkeypatch.setattr(module.Tree, "_take", take)


def held_by(leaf: Domain, values: dict) -> Tensor:
    """Which points lie in a leaf: every split holds, at its own point too."""
    there = torch.ones(len(next(iter(values.values()))), dtype=torch.bool)
    for split in leaf.splits:
        value = values[split.node]
        if getattr(split, "inner", False):  # the σ of a normalisation
            rows = split.node.op._rows(values[split.node.inputs[0]])
            value = (rows.square().mean(-1) + split.node.op.eps).sqrt()
        number = value.flatten(1)[:, split.place]
        there &= number >= split.point if split.at_least else number <= split.point
    return there


def check_cuts(tree: module.Tree, leaves: list[Domain]) -> None:
    """Leaves as subsets: every box is what the splits leave of the root's, and just the cut sides have multipliers."""
    sub, held = tree.subsets(leaves)
    for node, inner in {(split.node, split.inner) for leaf in leaves for split in leaf.splits}:
        root, cut = (tree.inner, sub.inner) if inner else (tree.walk.boxes, sub.boxes)
        low, high = (x.expand(len(leaves), *x.shape[1:]).flatten(1).clone() for x in root[node])
        for k, leaf in enumerate(leaves):
            for split in (s for s in leaf.splits if s.node is node and s.inner is inner):
                assert low[k, split.place] < split.point < high[k, split.place], "not split inside"
                (low if split.at_least else high)[k, split.place] = split.point
        for end, found in zip((low, high), cut[node], strict=True):
            assert torch.equal(found.flatten(1), end)
        for end, whole, scale in zip((low, high), root[node], () if inner else held[node], strict=not inner):
            assert torch.equal(scale.flatten(1) > 0, end != whole.flatten(1))


def slack(values: Tensor) -> Tensor:
    return TOLERANCE * (1 + values.abs())


# at any time


@pytest.mark.parametrize(
    ("rule", "name"),
    few(itertools.product(["affine", "lse", "vertex"], CONFIGS), lambda rule, name: rule == "affine" or name == "norm"),
)
def test_bounds_are_anytime_and_never_above_a_value(name: str, rule: str, monkeypatch) -> None:
    """And the parts cover the set: each point is in a part of every objective, whose bound is at most its value."""
    walk = attention(name)
    best, x = least(walk, MARGINS)
    values = walk.graph.values(x)
    at = values[walk.graph.output] @ MARGINS.mT  # (points, 3)
    goals = torch.stack([best[0] + 1, best[1] - 0.02, best[2] - 0.3])
    known = torch.stack([best[0] - 5, best[1] - 0.5, best[2] - torch.inf])
    seen, before, calls = Tree(monkeypatch), known, []
    for domains in (1, 12, 40):
        said: list[tuple[float, int, int]] = []
        search = dataclasses.replace(QUICK, domains=domains)
        progress = functools.partial(lambda said, *now: said.append(now), said)
        more = {"known": known, "goals": goals, "accept": lambda *_: False, "progress": progress}
        out = grown(walk, MARGINS, search, rule, **more)
        assert (out.bound >= torch.maximum(known, before)).all()
        assert (out.bound <= best + slack(best)).all()
        assert (out.witness, out.stopped in ("domains", "exhausted"), bool(out.open[0] > 0)) == (None, True, True)
        before = out.bound
        calls.append(out.domains)
        assert [worst for worst, _, _ in said] == sorted(worst for worst, _, _ in said)
        assert said[-1][0] == pytest.approx(float((out.bound - goals)[out.open > 0].min()))
        assert said[-1][1:] == (int(out.open.sum()), out.domains)
        assert all(worst <= -1 + 1e-9 for worst, _, _ in said)
    assert calls == sorted(calls)
    # the tree of the last search
    for whole, parts in seen.steps[1:]:
        assert len(parts) == 2 * len(whole)
        for domain in whole:
            mine = [d for d in parts if d.objective == domain.objective and d.splits[:-1] == domain.splits]
            assert [d.splits[-1].at_least for d in mine] in ([True, False], [False, True])
            one, other = (d.splits[-1] for d in mine)
            assert (one.node, one.place, one.point) == (other.node, other.place, other.point)
            assert all(d.bound >= domain.bound for d in mine)
    assert sum(len(parts) for _, parts in seen.steps) == out.domains
    check_cuts(seen.tree, seen.leaves)
    open_ = [d for d in seen.leaves if not d.bound > float(goals[d.objective])]
    assert {id(d) for d in open_} == {id(d) for d in seen.tree._open()}
    assert [sum(d.objective == k for d in open_) for k in range(3)] == out.open.tolist()
    for k in range(3):
        leaves = [d for d in seen.leaves if d.objective == k]
        assert float(out.bound[k]) == min(d.bound for d in leaves)
        where = torch.stack([held_by(d, values) for d in leaves])  # (leaves, points)
        assert where.any(0).all(), "a point of the set is in no part"
        bounds = torch.tensor([d.bound for d in leaves])
        over = torch.where(where, bounds[:, None], -torch.inf).amax(0) - at[:, k]
        assert (over <= slack(at[:, k])).all(), "a part's bound is above a value in it"


def test_single_precision_is_as_sound_to_its_own_rounding() -> None:
    config = CONFIGS["relu"]
    lower, upper = (x.float() for x in input_box(config, 1, 0.3, 1))
    walk = ready(transformer(config).to(torch.float32), lower, upper)
    out = grown(walk, MARGINS.float(), accept=lambda *_: False, goals=torch.full((3,), 9.0))
    best, _ = least(attention("relu"), MARGINS)
    assert out.bound.dtype == torch.float32
    assert (out.bound <= best + 1e-4).all()


# against the truth


def mlp(sizes: tuple[int, ...], seed: int, turned: bool = False) -> tuple[list[tuple[np.ndarray, np.ndarray]], Graph]:
    """Affine maps with ReLUs between; `turned`: the input comes as (inputs / 2, 2), and is transposed first."""
    g = np.random.default_rng(seed)
    layers = [(g.normal(size=(b, a)) * math.sqrt(2 / a), 0.3 * g.normal(size=b)) for a, b in itertools.pairwise(sizes)]
    x = build.source((sizes[0] // 2, 2) if turned else (sizes[0],))
    h = build.reshape(build.transpose(x, 0, 1, "turn"), (sizes[0],), "flat") if turned else x
    for i, (W, b) in enumerate(layers):
        h = build.affine(h, torch.from_numpy(W), torch.from_numpy(b), f"linear {i}")
        if i < len(layers) - 1:
            h = build.apply(Relu(), h, name=f"relu {i}")
    return layers, Graph(x, h)


def exact(layers: list[tuple[np.ndarray, np.ndarray]], c: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    """min c·y over the box: a linear program for every pattern of signs."""
    best, hidden = math.inf, [len(b) for _, b in layers[:-1]]
    for signs in itertools.product((0.0, 1.0), repeat=sum(hidden)):
        M, k, rows, limits, rest = np.eye(len(lower)), np.zeros(len(lower)), [], [], list(signs)
        for (W, b), n in zip(layers, hidden, strict=False):
            M, k, on, rest = W @ M, W @ k + b, np.array(rest[:n]), rest[n:]
            rows.append((1 - 2 * on)[:, None] * M)
            limits.append((2 * on - 1) * k)
            M, k = on[:, None] * M, on * k
        W, b = layers[-1]
        ends = np.stack([lower, upper], 1)
        found = linprog(c @ W @ M, A_ub=np.concatenate(rows), b_ub=np.concatenate(limits), bounds=ends)
        if found.status == 0:
            best = min(best, found.fun + float(c @ (W @ k + b)))
    return best


@functools.cache
def truth(seed: int) -> tuple[Walk, Tensor, float]:
    """A tiny ReLU network, an objective, and its minimum."""
    sizes, g = [(2, 5, 2), (3, 4, 3, 2), (2, 3, 3, 2)][seed % 3], np.random.default_rng(seed + 99)
    layers, graph = mlp(sizes, seed)
    lower = g.normal(size=sizes[0]) - 1
    c = g.normal(size=2)
    walk = ready(graph, *(torch.from_numpy(x)[None] for x in (lower, lower + 2)))
    return walk, torch.from_numpy(c)[None], exact(layers, c, lower, lower + 2)


def check_witness(walk: Walk, A: Tensor, goals: Tensor, out: Outcome) -> None:
    lower, upper = walk.boxes[walk.graph.input]
    over = torch.maximum(lower[0] - out.witness, out.witness - upper[0])
    assert (over <= 0).all(), f"the witness is outside of the set by {float(over.max()):.3g}"
    value = float((A[out.broken] * walk.graph.evaluate(out.witness[None])[0]).sum())
    assert value <= float(goals[out.broken]) + TOLERANCE * (1 + abs(value))


EVERY = dataclasses.replace(QUICK, domains=300, width=32, every=1, ascent=Ascent(steps=30, step_size=0.1, sums=False))


@pytest.mark.parametrize("search", [dataclasses.replace(QUICK, domains=300), EVERY], ids=["few steps", "many"])
def test_no_wrong_answer_about_tiny_relu_networks(search: Search) -> None:
    done = total = 0
    for seed in range(15):
        walk, A, least_ = truth(seed)
        for margin in (0.3, 1e-3, 1e-9, -1e-9, -1e-3, -0.3):
            goals = torch.tensor([least_ - margin], dtype=torch.float64)
            out = grown(walk, A, search, goals=goals)
            assert float(out.bound) <= least_ + TOLERANCE * (1 + abs(least_))
            assert (out.stopped == "done") == (out.open[0] == 0)
            assert (float(out.bound) > float(goals)) == (out.stopped == "done")
            if margin < 0:
                assert out.stopped != "done", (seed, margin)
            elif margin > 1e-6:
                assert out.stopped != "witness", (seed, margin)
                done, total = done + (out.stopped == "done"), total + 1
            if out.witness is not None:
                assert (out.stopped, out.broken) == ("witness", 0)
                check_witness(walk, A, goals, out)
    assert done >= (0.6 if search is not EVERY else 0.9) * total, f"{done} of {total} true ones were shown"


def test_no_wrong_answer_about_tiny_attentions() -> None:
    """Two inputs: the minimum is that of a grid, to 1e-3."""
    done = 0
    for seed in range(3):
        config = Config(tokens=2, inputs=1, width=2, classes=2, activation=("relu", "gelu", "none")[seed], seed=seed)
        lower, upper = input_box(config, 1, 0.4, seed)
        walk = ready(transformer(config), lower, upper)
        steps = torch.linspace(0, 1, 161).double()
        x = lower[0, :, 0] + torch.cartesian_prod(steps, steps) * (upper - lower)[0, :, 0]
        A = torch.tensor([[1.0, -1.0]]).double()
        best = (walk.graph.evaluate(x.unsqueeze(-1)) @ A.mT).amin()
        for margin in (0.1, -2e-3):
            goals = (best - margin)[None]
            out = grown(walk, A, dataclasses.replace(QUICK, domains=120), goals=goals)
            assert float(out.bound) <= float(best) + TOLERANCE
            assert out.stopped != ("done" if margin < 0 else "witness")
            done += out.stopped == "done"
            if out.witness is not None:
                check_witness(walk, A, goals, out)
    assert done >= 2


def test_a_witness_has_the_inputs_own_arrangement() -> None:
    _, graph = mlp((4, 6, 2), 1, turned=True)
    lower = torch.randn(1, 2, 2, generator=torch.Generator().manual_seed(3)).double()
    walk = ready(graph, lower, lower + torch.tensor([[0.1, 0.5], [1.0, 2.0]]).double())
    assert walk.start is not graph.input
    A = torch.tensor([[1.0, -2.0], [-1.0, 0.5]]).double()
    best, _ = least(walk, A)
    out = grown(walk, A, goals=torch.stack([best[0] - 5, best[1] + 0.1]))
    assert (out.stopped, out.broken) == ("witness", 1)
    check_witness(walk, A, torch.stack([best[0] - 5, best[1] + 0.1]), out)


def test_a_witness_lies_in_the_set_in_spite_of_rounding() -> None:
    g = torch.Generator().manual_seed(0)
    x = build.source((40,))
    graph = Graph(x, build.affine(x, torch.randn(1, 40, generator=g).double(), torch.zeros(1).double(), "y"))
    lower = torch.randn(1, 40, generator=g, dtype=torch.float64)
    walk = ready(graph, lower, lower + torch.rand(1, 40, generator=g, dtype=torch.float64))
    A, goals = torch.ones(1, 1).double(), torch.full((1,), 1e3).double()
    check_witness(walk, A, goals, grown(walk, A, goals=goals))


# how it ends


def test_the_input_itself_is_not_split() -> None:
    """A ReLU on the input: its kink is where the bound bends most, and nothing is left to split."""
    x = build.source((2,))
    graph = Graph(x, build.affine(build.apply(Relu(), x, name="relu"), -torch.ones(1, 2).double(), None, "y"))
    walk = ready(graph, torch.full((1, 2), -1.0).double(), torch.ones(1, 2).double())
    out = grown(walk, -torch.ones(1, 1).double(), goals=torch.ones(1).double(), accept=lambda *_: False)
    assert (out.stopped, out.open.tolist(), float(out.bound) <= 0) == ("exhausted", [1], True)


def test_goals_are_each_objectives_own() -> None:
    walk = attention("relu")
    best, _ = least(walk, MARGINS)
    A = MARGINS[[0, 0, 1, 0]]
    goals = torch.stack([best[0] - 3, best[0] + 3, best[1] - 4, best[0] - 5])
    out = grown(walk, A, goals=goals, accept=lambda *_: False)
    assert (out.open > 0).tolist() == [False, True, False, False]
    assert ((out.bound > goals) == (out.open == 0)).all()
    assert (out.bound <= best[[0, 0, 1, 0]] + slack(best[0])).all()
    few = dataclasses.replace(QUICK, domains=8)
    default = grown(walk, A, few, accept=lambda *_: False)
    zero = grown(walk, A, few, accept=lambda *_: False, goals=torch.zeros(4).double())
    assert torch.equal(default.bound, zero.bound)  # and two runs are the same


def test_a_bound_at_the_goal_is_not_above_it() -> None:
    """y = x on [1, 2]: the bound is 1 exactly."""
    walk, A, one = line(1.0, 0.0), torch.ones(1, 1).double(), torch.ones(1).double()
    out = grown(walk, A, goals=one)
    assert (float(out.bound), out.stopped, out.broken) == (1.0, "witness", 0)
    assert out.witness.tolist() == [1.0]
    out = grown(walk, A, goals=one, accept=lambda *_: False)
    assert (float(out.bound), out.stopped, out.open.tolist(), out.domains) == (1.0, "exhausted", [1], 1)
    assert grown(walk, A, goals=one - 1e-15).stopped == "done"
    for known in (one, one - 1e-15, one + torch.nan):
        assert grown(walk, A, goals=one, known=known, accept=lambda *_: False).stopped == "exhausted"
    assert grown(walk, A, goals=one, known=one + 1e-15).stopped == "done"


def test_what_is_known_to_be_above_is_not_looked_at(monkeypatch) -> None:
    walk = attention("relu")
    best, _ = least(walk, MARGINS)
    goals = best + 1
    monkeypatch.setattr(Walk, "back", lambda *_, **__: pytest.fail("a pass for nothing"))
    out = grown(walk, MARGINS, known=goals + 0.5, goals=goals)
    assert (out.stopped, out.domains, out.open.tolist(), out.witness) == ("done", 0, [0, 0, 0], None)
    assert torch.equal(out.bound, goals + 0.5)
    monkeypatch.undo()
    some = torch.stack([goals[0] + 0.5, best[1] - 50, best[2] + torch.nan])
    out = grown(walk, MARGINS, known=some, goals=goals, accept=lambda *_: False)
    assert (out.bound[0], out.open[0], (out.open[1:] > 0).all()) == (some[0], 0, True)
    assert (out.bound[1:] <= best[1:] + slack(best[1:])).all()


def test_no_objective_is_done() -> None:
    out = grown(attention("relu"), MARGINS[:0])
    assert (len(out.bound), len(out.open), out.domains, out.stopped) == (0, 0, 0, "done")


def test_accept_sees_inputs_that_break_and_decides() -> None:
    walk, seen = attention("relu"), []
    best, _ = least(walk, MARGINS)
    goals = torch.stack([best[0] - 1, best[1] + 0.05, best[2] + 0.3])

    def accept(point: Tensor, objective: int) -> bool:
        seen.append((point, objective))
        return len(seen) == 3

    out = grown(walk, MARGINS, goals=goals, accept=accept)
    assert (out.stopped, len(seen)) == ("witness", 3)
    assert out.witness is seen[-1][0]
    assert out.broken == seen[-1][1]
    for point, objective in seen:
        assert float(walk.graph.evaluate(point[None])[0] @ MARGINS[objective]) <= float(goals[objective])
    assert grown(walk, MARGINS, goals=best - 1e-6).stopped != "witness"


def test_what_is_no_number_is_no_bound() -> None:
    walk = attention("relu")
    best, _ = least(walk, MARGINS)
    for bad in (torch.nan, torch.inf):
        A = MARGINS.clone()
        A[1, 0] = bad
        out = grown(walk, A, goals=best - 4, accept=lambda *_: False)
        assert out.bound[1] == -torch.inf
        assert (out.open > 0).tolist() == [False, True, False]
        assert out.stopped != "done"
        assert ((out.bound > best - 4) & (out.bound <= best + slack(best))).tolist() == [True, False, True]
    out = grown(line(0.0, 10.0), torch.full((1, 1), 1e308, dtype=torch.float64))  # 1e309 is none
    assert (float(out.bound), out.open.tolist()) == (-math.inf, [1])


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_the_time_is_kept_and_given_back(name: str, monkeypatch) -> None:
    walk = attention(name)
    best, _ = least(walk, MARGINS)
    known = best - torch.tensor([7.0, 8.0, 9.0])
    for before in (None, time.perf_counter() + 1000):
        walk.deadline = before
        out = grown(walk, MARGINS, dataclasses.replace(QUICK, seconds=0.0), known=known)
        assert (out.stopped, out.open.tolist()) == ("seconds", [1, 1, 1])
        assert torch.equal(out.bound, known)
        assert walk.deadline == before
        assert grown(walk, MARGINS, dataclasses.replace(QUICK, seconds=900.0)).stopped != "seconds"
        assert walk.deadline == before
        with pytest.raises(ZeroDivisionError):
            grown(walk, MARGINS, goals=best + 1, accept=lambda *_: 1 / 0)
        assert walk.deadline == before
    walk.deadline = 0.0  # long ago: more seconds of its own do not help
    for seconds in (None, 900.0):
        assert grown(walk, MARGINS, dataclasses.replace(QUICK, seconds=seconds)).stopped == "seconds"
    walk.deadline = None
    # in the middle: what was found before stays
    goals, count = best - 0.02, itertools.count()
    seen, said, real = Tree(monkeypatch), [], module.Tree._survey

    def survey(tree: module.Tree, domains: list[Domain]) -> list[Domain]:
        if next(count) == 4:
            raise OutOfTimeError("now")
        return real(tree, domains)

    monkeypatch.setattr(module.Tree, "_survey", survey)
    out = grown(walk, MARGINS, goals=goals, accept=lambda *_: False, progress=lambda *now: said.append(now))
    assert out.stopped == "seconds"
    assert walk.deadline is None
    assert int(out.open.sum()) == said[-1][1]
    assert (out.bound <= best + slack(best)).all()
    for k in range(3):
        assert float(out.bound[k]) == min(d.bound for d in seen.leaves if d.objective == k)


def test_limits_end_it() -> None:
    walk = attention("relu")
    best, _ = least(walk, MARGINS)
    goals, no = best - 1e-3, {"accept": lambda *_: False}
    root = grown(walk, MARGINS, dataclasses.replace(QUICK, domains=1), goals=goals, **no)
    assert (root.stopped, root.domains, root.open.tolist()) == ("domains", 3, [1, 1, 1])
    full = grown(walk, MARGINS, dataclasses.replace(QUICK, memory=1), goals=goals, **no)
    assert (full.stopped, full.domains, torch.equal(full.bound, root.bound)) == ("memory", 3, True)


# the method


def test_the_method_is_at_least_joint_and_sound() -> None:
    config, A = CONFIGS["relu"], torch.cat([MARGINS, -MARGINS])
    graph, box, quick = transformer(config), input_box(config, 1, 0.3, 1), Ascent(steps=3)
    best, _ = least(attention("relu"), A)
    two = tuple(x.expand(2, *x.shape[1:]) for x in box)  # several inputs are not branched

    def found(ends: tuple[Tensor, Tensor], method: str, **more: object) -> Tensor:
        with torch.no_grad():
            return lower_bounds(Walk(graph, *ends), A.expand(len(ends[0]), 6, 3), method, Options(ascent=quick, **more))

    for goal in (None, float(best.min()) - 0.02):
        joint, bab = found(box, "joint", goal=goal), found(box, "bab", goal=goal, search=QUICK)
        assert ((bab >= joint) & (bab <= best + slack(best))).all()
    assert (bab > joint).any()
    for ends in (box, two):
        none = found(ends, "bab", search=Search(seconds=0.0))
        assert torch.allclose(none, found(box, "joint").expand_as(none))


WRONG = [
    {"seconds": -1.0},
    {"seconds": math.nan},
    *({name: 0} for name in ("domains", "memory", "width", "tried", "every")),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_bad_arguments_are_named(wrong: dict) -> None:
    with pytest.raises(InvalidValueError, match=next(iter(wrong))):
        Search(**wrong)
