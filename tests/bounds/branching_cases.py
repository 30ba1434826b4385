"""Networks that are split, and what must hold of their bounds."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from tests.bounds.checks import Ready, tightened
from tests.bounds.networks import Config, descend, input_box, samples, transformer
from vertex_softmax.bounds import branch_and_bound as module
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Accept, Aim, Outcome, Progress, Search, Watchers, branch_and_bound
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.record import Record
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import Box

TOLERANCE = 1e-10
"""Of 1 + the size of the values: what float64 rounds away."""


QUICK = Search(seconds=None, halving=0.0, domains=40, width=8, root=Ascent(steps=5), ascent=Ascent(steps=3, sums=False))


CONFIGS = {
    "relu": Config(tokens=2, seed=2),
    "gelu": Config(tokens=2, heads=2, activation="gelu", mask="causal", seed=3),
    "norm": Config(tokens=2, norm="pre", class_token=True, pooling="token", seed=4),
    "gated": Config(tokens=2, gated=True, activation="silu", gain=2.0, seed=5),
}


MARGINS = torch.tensor([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0], [0.0, 1.0, -1.0]]).double()


@functools.cache
def attention(name: str, radius: float = 0.3) -> Ready:
    config = CONFIGS[name]
    return tightened(transformer(config), *input_box(config, 1, radius, 1))


def least(whole: Ready, A: Tensor) -> tuple[Tensor, Tensor]:
    """The least values (n,) of objectives (n, *output) that an attack finds, and its points (points, *input)."""
    graph, (lower, upper) = whole.graph, whole.box
    x = torch.cat([samples(lower, upper, 3000), descend(graph, graph.output, A[None], lower, upper, 20, 25)])[:, 0]
    for label in range(2):
        found = pgd(graph, Box(lower, upper), label, steps=20)
        x = torch.cat([x, found.inputs.flatten(0, 1)])
    return (graph.evaluate(x).flatten(1) @ A.flatten(1).mT).amin(0), x


def grown(
    whole: Ready,
    A: Tensor,
    search: Search = QUICK,
    rule: RowRule = RowRule.AFFINE,
    *,
    goals: Tensor | None = None,
    known: Tensor | None = None,
    accept: Accept | None = None,
    progress: Progress | None = None,
    record: Record | None = None,
) -> Outcome:
    aim, watchers = Aim(A, goals, known), Watchers(accept, progress, record)
    return branch_and_bound(whole.question, whole.boxes, aim, Rules(attention=rule, pieces=2), search, watchers)


class Tree:
    """All parts that a search made: `leaves` at its end, and every (parts, what was put in their place)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leaves: list[Part] = []
        self.steps: list[tuple[list[Part], list[Part]]] = []
        self.tree: module.BranchAndBound | None = None
        real = module.BranchAndBound._advance

        def advance(tree: module.BranchAndBound, count: int, work: Callable[[list[Part]], list[Part]]) -> None:
            frontier = tree.frontier
            if tree is not self.tree:
                self.tree, self.leaves, self.steps = tree, frontier.open_parts(), []

            def noted(parts: list[Part]) -> list[Part]:
                left = [part for part in frontier.open_parts() if all(part is not e for e in frontier.exhausted)]
                assert len(left) == len(frontier)
                worst = sorted(map(frontier.shortfall, left))[: len(parts)]
                assert sorted(map(frontier.shortfall, parts)) == worst, "the worst come first"
                found = work(parts)
                self.leaves = [part for part in self.leaves if all(part is not other for other in parts)] + found
                self.steps.append((parts, found))
                return found

            real(tree, count, noted)

        monkeypatch.setattr(module.BranchAndBound, "_advance", advance)


def slack(values: Tensor) -> Tensor:
    return TOLERANCE * (1 + values.abs())


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


def check_witness(whole: Ready, A: Tensor, goals: Tensor, out: Outcome) -> None:
    lower, upper = whole.box
    over = torch.maximum(lower[0] - out.witness, out.witness - upper[0])
    assert (over <= 0).all(), f"the witness is outside of the set by {float(over.max()):.3g}"
    value = float((A[out.broken] * whole.graph.evaluate(out.witness[None])[0]).sum())
    assert value <= float(goals[out.broken]) + TOLERANCE * (1 + abs(value))


def held_by(leaf: Part, values: dict) -> Tensor:
    """Which points lie in a leaf: every split holds, at its own point too."""
    there = torch.ones(len(next(iter(values.values()))), dtype=torch.bool)
    for split in leaf.splits:
        value = values[split.node]
        if split.inner:  # the σ of a normalisation
            rows = split.node.op._rows(values[split.node.inputs[0]])
            value = (rows.square().mean(-1) + split.node.op.eps).sqrt()
        number = value.flatten(1)[:, split.place]
        there &= number >= split.point if split.at_least else number <= split.point
    return there


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
def truth(seed: int) -> tuple[Ready, Tensor, float]:
    """A tiny ReLU network, an objective, and its minimum."""
    sizes, g = [(2, 5, 2), (3, 4, 3, 2), (2, 3, 3, 2)][seed % 3], np.random.default_rng(seed + 99)
    layers, graph = mlp(sizes, seed)
    lower = g.normal(size=sizes[0]) - 1
    c = g.normal(size=2)
    whole = tightened(graph, *(torch.from_numpy(x)[None] for x in (lower, lower + 2)))
    return whole, torch.from_numpy(c)[None], exact(layers, c, lower, lower + 2)
