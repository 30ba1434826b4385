"""Properties and networks for the tests of the cascade."""

from __future__ import annotations

import torch

from tests.bounds.networks import samples
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.search.answers import Answer, Budget
from vertex_softmax.search.cascade import verify
from vertex_softmax.search.replay import Replay
from vertex_softmax.search.stages import CASCADE
from vertex_softmax.specs.property import Case, Property

BLIND = Budget(seconds=60, first=0, second=0)
"""Attacks see little more than centres: what is said comes of bounds."""


QUICK = Options(
    ascent=Ascent(steps=3),
    search=Search(
        domains=60, halving=0.0, every=1, root=Ascent(steps=5), ascent=Ascent(steps=20, step_size=0.03, sums=False)
    ),
)


def tensor(x: object) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def affine(W: object, b: object, x: Node | None = None, name: str = "affine") -> Node:
    W = tensor(W)
    return build.affine(build.source((W.shape[1],)) if x is None else x, W, tensor(b), name)


def graph_of(output: Node) -> Graph:
    at = output
    while at.inputs:
        at = at.inputs[0]
    return Graph(at, output)


def bent() -> Graph:
    """y = (f(x₀) + |x₁|/2 + 1/8, |x₀| + 3/4 − x₁) with f(x) = x⁺ − (x + 1/2)⁺/2, whose least value is f(0) = −1/4.

    Lines under x⁺ and over (x + 1/2)⁺ give no more than −3/8: the least y₀ is −1/8, and without a split −1/4.
    """
    inner = affine([[1, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], [0, 0.5, 0, 0, 0])
    hidden = build.apply(Relu(), inner, name="relu")
    return graph_of(affine([[1, -0.5, 0, 0.5, 0.5], [1, 0, 1, -1, 1]], [0.125, 0.75], hidden, "out"))


WHOLE = [(-1, 1), (-1, 1)]
VALLEY = 24
"""Inputs of `valley`."""


def valley() -> tuple[Graph, torch.Tensor]:
    """y = 0.64 + 0.015 Σ (1 + sᵢ xᵢ) − 2 (1 − k Σ |xᵢ − cᵢ|)⁺ for signs s, on [−1, 1]²⁴, and c = 0.9 s, where y < 0.

    Elsewhere slopes lead to the corner −s. Of 2²⁴ corners s alone lies in the valley, with y = 0.86: it is where lines
    under the |xᵢ − cᵢ| make bounds least.
    """
    s = torch.where(torch.arange(VALLEY) % 3 == 1, -1.0, 1.0).double()
    c, eye = 0.9 * s, torch.eye(VALLEY).double()
    first = affine(torch.cat([eye, -eye, s[None]]).tolist(), [*(-c).tolist(), *c.tolist(), VALLEY])
    hidden = build.apply(Relu(), first, name="distances")
    steep = 0.75 / (0.1 * VALLEY)
    second = affine([[-steep] * (2 * VALLEY) + [0], [0] * (2 * VALLEY) + [1]], [1, 0], hidden, "inner")
    return graph_of(affine([[-2, 0.36 / VALLEY]], [0.64], build.apply(Relu(), second, name="hat"), "out")), c


def ask(graph: Graph, spec: Property, **more: object) -> Answer:
    """verify, and an independent look at what it says."""
    replay = Replay.of_function(graph.evaluate, graph.input.shape, dtype=torch.float64)
    more = {"budget": BLIND, "options": QUICK, **more}
    answer = verify(graph, spec, lambda x: replay.confirms(spec, x), **more)
    assert [len(c) for c in answer.bounds] == [len(c.conjunctions) for c in spec.cases]
    if answer.verdict == Verdict.FALSIFIED:
        found = answer.counterexample
        y = graph.evaluate(torch.from_numpy(found.x).reshape(graph.input.shape)).numpy()
        assert spec.broken_by(found.x, y)
        assert answer.stage in ("attack", "attack again", "attack inside", "bab")
    else:
        assert answer.counterexample is None
    check_bounds(graph, spec, answer)
    if answer.verdict == Verdict.VERIFIED:
        assert answer.stage in (*CASCADE[1:], *METHODS)
        assert all(bound > 0 for bounds in answer.bounds for bound in bounds)
        for each in spec.cases:
            for y in outputs(graph, each):
                assert not any(c.holds(y) for c in each.conjunctions), "verified, and here is a counterexample"
    else:
        assert answer.stage == "" or answer.verdict == Verdict.FALSIFIED
    return answer


def check_bounds(graph: Graph, spec: Property, answer: Answer) -> None:
    """What is said of a conjunction of one row is no more than a value of it."""
    for each, bounds in zip(spec.cases, answer.bounds, strict=True):
        y = tensor(outputs(graph, each))
        for one, bound in zip(each.conjunctions, bounds, strict=True):
            C, d = one.matrix(spec.outputs)
            if len(d) == 1 and bool(y.isfinite().all()):
                value = float((y @ C[0] - d[0]).min())
                assert bound <= value + 1e-9 * (1 + float(y.abs().max() * C.abs().sum() + d.abs()))


def outputs(graph: Graph, each: Case, count: int = 400) -> list[list[float]]:
    """At random points, corners and the centre of a case's box."""
    lower, upper = (torch.from_numpy(x).reshape(1, *graph.input.shape) for x in (each.inner_lower, each.inner_upper))
    return graph.evaluate(samples(lower, upper, count)[:, 0]).flatten(1).tolist()
