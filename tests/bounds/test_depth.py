"""No recursion in the depth of a network: chains of 150 and of 300 ops have bounds by every method, and proofs.

Python is left 240 frames for them: enough for a short chain, too few for a recursion. The chains hold few
nonlinearities, so that the passes are few: each one goes through all the ops before it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch
from torch import Tensor

from tests.bounds.checks import asked
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.backward import lower_bound
from vertex_softmax.bounds.box_passes import all_boxes
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.certificate import checker
from vertex_softmax.graph import build
from vertex_softmax.graph.identity import graph_identity
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.ops import attention, bilinear, elementwise, linear, normalization, shape
from vertex_softmax.ops.contract import Op
from vertex_softmax.ops.rules import Rules
from vertex_softmax.runs.certification import Certification
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import LinfBall

BENT = 4
"""nonlinearities in a chain"""
ROWS = (2, 3)
OPTIONS = Options(ascent=Ascent(steps=1), search=Search(seconds=1.0))


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


X = numbers(0.4, -0.3, 0.2, -0.6, 0.5, 0.1).reshape(1, *ROWS)


def step(i: int) -> Op:
    """Ops that keep the size of what goes through them."""
    turned = torch.eye(3, dtype=torch.float64)[[1, 2, 0]]
    return (linear.Linear(turned), linear.Shift(numbers(0.01, -0.02, 0.03)), linear.Scale(numbers(-1)))[i % 3]


def bent(i: int) -> Op:
    return (elementwise.Relu(), elementwise.Tanh(), elementwise.Gelu(), normalization.Normalize(1.0))[i % 4]


@cache
def chain(count: int, kind: str) -> Graph:
    """`count` ops one after the other, or as residual blocks; then attention, and two classes."""
    x = node = build.source(ROWS)
    for i in range(count if kind == "chain" else count // 2):
        last = node
        op = bent(i * BENT // count) if i % max(1, count // BENT) == 0 else step(i)
        if kind == "residual" and not op.affine:
            small = Node(f"small{i}", linear.Scale(numbers(0.1)), (node,), ROWS)
            node = Node(f"sum{i}", linear.Add(), (last, Node(f"branch{i}", op, (small,), ROWS)), ROWS)
        elif kind == "residual":
            zero = Node(f"branch{i}", linear.Scale(numbers(0.0)), (node,), ROWS)
            node = Node(f"sum{i}", linear.Subtract(), (last, zero), ROWS)
        else:
            node = Node(f"op{i}", op, (node,), ROWS)
    keys = Node("keys", shape.Permute((1, 0)), (node,), (3, 2))
    scores = Node("scores", bilinear.MatMul(), (node, keys), (2, 2))
    mixed = Node("attention", attention.Attention(), (scores, node), ROWS)
    flat = Node("flat", shape.Reshape(ROWS, (1, 6)), (mixed,), (1, 6))
    weight = torch.linspace(-1, 1, 12, dtype=torch.float64).sin().reshape(6, 2)
    return Graph(x, Node("classes", linear.Linear(weight), (flat,), (1, 2)))


def depth() -> int:
    frame, found = sys._getframe(), 0
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        found += 1
    return found


@contextmanager
def frames(spare: int) -> Iterator[None]:
    """So many more than there are now, and an error beyond."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth() + spare)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


SPARE = 240
LESS, MORE = 150, 300
ASKED = [(LESS, kind, method) for kind in ("chain", "residual") for method in METHODS]
ASKED += [(MORE, "chain", "joint"), (MORE, "residual", "crown")]  # more ops than a recursion may have frames


@cache
def answer(count: int, kind: str, method: str) -> Certification:
    """Of `joint` on the shorter chains with its proof."""
    proved = (count, method) == (LESS, "joint")

    def certified(graph: Graph) -> Certification:
        label = graph.evaluate(X).flatten(1).argmax(1)
        return certify(graph, LinfBall(X, 1e-3), label, method, options=OPTIONS, certificate=proved)

    certified(chain(2 * BENT, kind))  # what is imported then needs more frames
    with frames(SPARE):
        return certified(chain(count, kind))


@pytest.mark.parametrize(("count", "kind", "method"), ASKED)
def test_every_method_bounds_deep_networks(count: int, kind: str, method: str) -> None:
    """A recursion of two frames for an op, or of one in the longer chains, is more than there is."""
    assert count * (2 if count == LESS else 1) > SPARE
    scores = chain(count, kind).evaluate(X).flatten()
    label = int(scores.argmax())
    found = answer(count, kind, method)
    margin = float(scores[label] - scores[1 - label])
    bound = float(found.lower[0, 1 - label])
    assert margin - 1 < bound < margin
    assert method == "ibp" or bool(found.certified.all())


@pytest.mark.parametrize("kind", ["chain", "residual"])
def test_deep_networks_are_proved_and_checked(kind: str) -> None:
    found = answer(LESS, kind, "joint")
    assert found.certificates is not None
    proof = found.certificates[0]
    assert proof is not None, found.reasons
    with frames(SPARE):
        assert checker.check(proof.data).accepted


def test_a_question_needs_no_more_frames_for_a_deeper_network() -> None:
    """With 100 frames to spare everything works that works with a thousand."""
    graph = chain(LESS, "residual")
    with frames(100):
        question = asked(graph, X - 1e-3, X + 1e-3)
        assert (graph.output in question.index.parallel) == all(
            node.op.affine or node.op.has_parallel_rule or node is graph.input for node in graph.nodes()
        )
        assert len(question.index.ancestors(graph.output)) == len(graph.nodes())
        assert len(graph_identity(graph)) == 64
        boxes = all_boxes(question)
        objective = Objective.dense(graph.output, torch.ones(1, 1, 1, 2, dtype=torch.float64))
        assert lower_bound(question, boxes, objective, Rules()).isfinite().all()
