"""METHOD.md section 5 written down again, by loops over heads, rows, keys and corners, from the formulas alone.

With the score boxes and the pre-activation boxes of the method it must give the method's bound, to 1e-9.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.bounds.checks import Ready, asked, by_method
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods import hybrid
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.ops.rules import RowRule, Rules

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Block:
    """H = x E + position; H⁺ = H + Σ_h softmax(q kᵀ/√d_h) v W_O^h + b_O; H⁺⁺ = H⁺ + MLP(H⁺); mean; classifier."""

    tokens: int = 3
    inputs: int = 3
    width: int = 4
    heads: int = 2
    hidden: int = 5
    classes: int = 3
    mlp: bool = True
    seed: int = 0

    def weights(self) -> dict[str, Array]:
        rng = np.random.default_rng(self.seed)
        d, h, k = self.width, self.heads, self.width // self.heads
        dims = {
            "E": (self.inputs, d), "e": (self.tokens, d), "Q": (h, d, k), "q": (h, k), "K": (h, d, k), "k": (h, k),
            "V": (h, d, k), "v": (h, k), "O": (h, k, d), "o": (d,), "A": (d, self.hidden), "a": (self.hidden,),
            "B": (self.hidden, d), "b": (d,), "C": (d, self.classes), "c": (self.classes,),
        }  # fmt: skip
        return {name: rng.normal(size=size) / np.sqrt(size[-2] if len(size) > 1 else 4) for name, size in dims.items()}

    def graph(self) -> tuple[Graph, Node, Node | None]:
        """The graph, its scores and its pre-activations."""
        w = {name: torch.tensor(value) for name, value in self.weights().items()}
        d, h = self.width, self.heads

        def affine(x: Node, weight: torch.Tensor, bias: torch.Tensor, name: str) -> Node:
            return build.affine(x, weight.mT, bias, name)

        def split(x: Node, weight: str, bias: str) -> Node:
            y = affine(x, w[weight].permute(1, 0, 2).reshape(d, d), w[bias].reshape(d), weight)
            return build.permute(build.reshape(y, (self.tokens, h, d // h), weight), (1, 0, 2), weight)

        x = build.source((self.tokens, self.inputs))
        H = build.add(affine(x, w["E"], torch.zeros(d).double(), "embed"), build.constant(w["e"]), "position")
        q, k, v = split(H, "Q", "q"), split(H, "K", "k"), split(H, "V", "v")
        scores = build.multiply(
            build.matmul(q, build.transpose(k, 1, 2, "keys"), "products"),
            build.constant(torch.tensor((d // h) ** -0.5).double()),
            "scores",
        )
        mixed = build.apply(Attention(), scores, v, name="attention")
        joined = build.reshape(build.permute(mixed, (1, 0, 2), "joined"), (self.tokens, d), "joined")
        plus = build.add(H, affine(joined, w["O"].reshape(d, d), w["o"], "O"), "plus")
        hidden = None
        if self.mlp:
            hidden = affine(plus, w["A"], w["a"], "hidden")
            inner = build.apply(Relu(), hidden, name="relu")
            plus = build.add(plus, affine(inner, w["B"], w["b"], "B"), "plusplus")
        return Graph(x, affine(build.mean(plus, (0,), False, "mean"), w["C"], w["c"], "classifier")), scores, hidden


def softmax_minimum(c: Array, lower: Array, upper: Array) -> float:
    """Over all 2^K corners of the score box."""
    best = np.inf
    for corner in itertools.product((False, True), repeat=len(c)):
        s = np.where(corner, upper, lower)
        y = np.exp(s - s.max())
        best = min(best, float(c @ y / y.sum()))
    return best


def affine_minimum(constant: float, slope: Array, lower: Array, upper: Array) -> float:
    """min of constant + slope·x over the input box, entry by entry."""
    total = constant
    for s, l, u in zip(slope.ravel(), lower.ravel(), upper.ravel(), strict=True):  # noqa: E741
        total += s * (l if s >= 0 else u)
    return total


def relaxed_suffix(
    block: Block, w: dict[str, Array], omega: Array, box: tuple[Array, Array] | None
) -> tuple[float, Array]:
    """ω on every token's H⁺⁺ → β and γ_i on H⁺_i: the MLP between its lines, adaptive slopes below, chords above."""
    beta, gamma = 0.0, np.tile(omega, (block.tokens, 1))
    if box is None:
        return beta, gamma
    for i in range(block.tokens):
        beta += float(omega @ w["b"])
        for r in range(block.hidden):
            g = float(w["B"][r] @ omega)
            lower, upper = box[0][i, r], box[1][i, r]
            if lower >= 0:
                slope, intercept = 1.0, 0.0
            elif upper <= 0:
                slope, intercept = 0.0, 0.0
            elif g >= 0:
                slope, intercept = (1.0 if upper > -lower else 0.0), 0.0
            else:
                slope = upper / (upper - lower)
                intercept = -slope * lower
            gamma[i] += g * slope * w["A"][:, r]
            beta += g * (slope * w["a"][r] + intercept)
    return beta, gamma


def section5(
    block: Block,
    lower: Array,
    upper: Array,
    objective: Array,
    scores: tuple[Array, Array],
    hidden: tuple[Array, Array] | None,
) -> float:
    """L_VC of one objective on the logits; lower, upper (tokens, inputs); scores (heads, rows, keys)."""
    w = block.weights()
    omega = w["C"] @ objective / block.tokens
    beta, gamma = relaxed_suffix(block, w, omega, hidden)
    beta += float(objective @ w["c"])
    # the residual path and all affine constants, jointly over the input box: Σ_i γ_i·(H_i(x) + b_O)
    constant = beta + float(sum(gamma[i] @ (w["e"][i] + w["o"]) for i in range(block.tokens)))
    total = affine_minimum(constant, gamma @ w["E"].T, lower, upper)
    for h, i in itertools.product(range(block.heads), range(block.tokens)):
        eta = w["O"][h] @ gamma[i]
        c = np.array(
            [
                affine_minimum(
                    float(eta @ (w["V"][h].T @ w["e"][j] + w["v"][h])), w["E"] @ w["V"][h] @ eta, lower[j], upper[j]
                )
                for j in range(block.tokens)
            ]
        )
        total += softmax_minimum(c, scores[0][h, i], scores[1][h, i])
    return total


BLOCKS = [
    Block(),
    Block(mlp=False),
    Block(heads=1, seed=1),
    Block(heads=4, tokens=4, inputs=2, seed=2),
    Block(tokens=1, seed=3),
    Block(mlp=False, tokens=5, classes=2, seed=4),
]


def input_box(block: Block, radius: float) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(block.seed + 100)
    x = torch.tensor(rng.normal(size=(2, block.tokens, block.inputs)))
    wide = torch.tensor(rng.uniform(0.3, 1, size=x.shape)) * radius
    return x - wide, x + wide


def margins(block: Block) -> torch.Tensor:
    """(classes − 1, classes): class 0 against each other, and one mixed objective."""
    C = torch.zeros(block.classes - 1, block.classes, dtype=torch.float64)
    C[:, 0] = 1
    C[torch.arange(block.classes - 1), torch.arange(1, block.classes)] = -1
    return torch.cat([C, -C, torch.linspace(-1, 2, block.classes, dtype=torch.float64)[None]])


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("radius", [0.0, 0.05, 0.7])
@pytest.mark.parametrize("options", [Options(), Options(scores="interval")], ids=["pass", "interval"])
def test_the_method_vertex_is_section_5(block: Block, radius: float, options: Options) -> None:
    graph, scores, hidden = block.graph()
    lower, upper = input_box(block, radius)
    C = margins(block)
    bound = by_method(asked(graph, lower, upper), "vertex", options, C.expand(2, -1, -1))
    found = bound.lower
    for b, t in itertools.product(range(2), range(len(C))):
        score_box = tuple(x[b].numpy() for x in bound.boxes[scores])
        hidden_box = None if hidden is None else tuple(x[b].numpy() for x in bound.boxes[hidden])
        want = section5(block, lower[b].numpy(), upper[b].numpy(), C[t].numpy(), score_box, hidden_box)
        assert abs(want - float(found[b, t])) <= 1e-9, (b, t, want, float(found[b, t]))


def test_the_graph_is_the_block() -> None:
    """The formulas of the network itself, by loops: what the bounds are about."""
    block = Block()
    w = block.weights()
    x = np.random.default_rng(5).normal(size=(block.tokens, block.inputs))
    H = np.stack([x[i] @ w["E"] + w["e"][i] for i in range(block.tokens)])
    plus = []
    for i in range(block.tokens):
        row = H[i] + w["o"]
        for h in range(block.heads):
            q = H[i] @ w["Q"][h] + w["q"][h]
            s = np.array([q @ (H[j] @ w["K"][h] + w["k"][h]) for j in range(block.tokens)]) / np.sqrt(2)
            p = np.exp(s) / np.exp(s).sum()
            row = row + sum(p[j] * (H[j] @ w["V"][h] + w["v"][h]) for j in range(block.tokens)) @ w["O"][h]
        plus.append(row + np.maximum(row @ w["A"] + w["a"], 0) @ w["B"] + w["b"])
    want = np.mean(plus, axis=0) @ w["C"] + w["c"]
    assert np.allclose(block.graph()[0].evaluate(torch.tensor(x)).numpy(), want, atol=1e-12)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_hybrid_is_at_least_crown_and_vertex(block: Block) -> None:
    """By construction. Tighter boxes alone would not do: they may turn an adaptive slope for the worse (seed 2)."""
    graph, _, _ = block.graph()
    C = margins(block)
    for radius in (0.05, 0.4, 2.0):
        found = {}
        for method in ("crown", "vertex", "hybrid"):
            question = asked(graph, *input_box(block, radius))
            found[method] = by_method(question, method, Options(), C.expand(2, -1, -1)).lower
        assert (found["hybrid"] >= torch.maximum(found["crown"], found["vertex"]) - 1e-9).all()


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_hybrid_is_at_least_each_of_its_rules_on_its_boxes(block: Block) -> None:
    graph, _, _ = block.graph()
    C = margins(block).expand(2, -1, -1)
    question = asked(graph, *input_box(block, 0.4))
    found = by_method(question, "hybrid", Options(), C)
    ready = Ready(question, found.boxes)
    with torch.no_grad():
        each = [ready.bound(C, Rules(attention=rule)) for rule in hybrid.PASSES.plain]
    assert len(each) == len(RowRule)
    assert (found.lower >= torch.stack(each).amax(0)).all()
