"""A proof's tree may be of any depth: neither who writes it nor who checks it goes down it by recursion."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch

from tests.certificate import exact
from tests.certificate.made import about, boxed, rows_of
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.splits import Split
from vertex_softmax.certificate.checker import check, proof
from vertex_softmax.certificate.prove import ForbiddenCase, Prover, written
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops import elementwise, linear
from vertex_softmax.ops.rules import RowRule

DEPTH = 100


def frames() -> int:
    frame, found = sys._getframe(), 0
    while frame.f_back is not None:
        frame, found = frame.f_back, found + 1
    return found


def comb(node: Node, low: float, high: float) -> list[Part]:
    """The leaves of a tree that cuts a slice off the rest of one number's range, again and again."""
    cuts = [low + (high - low) * (i + 1) / (DEPTH + 1) for i in range(DEPTH)]
    found = []
    for i in range(DEPTH + 1):
        before = tuple(Split(node, 0, cut, at_least=True) for cut in cuts[:i])
        last = () if i == DEPTH else (Split(node, 0, cuts[i], at_least=False),)
        found.append(Part(0, (*before, *last), 0.0))
    return found


def test_a_deep_tree_is_written_and_checked_with_few_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    x = build.source((1, 2))
    weight = torch.tensor([[1.0, -0.5], [0.5, 1.0]], dtype=torch.float64)
    inner = Node("inner", linear.Linear(weight), (x,), (1, 2))
    out = Node("out", elementwise.Relu(), (inner,), (1, 2))
    net = boxed(Graph(x, out), 0.5)
    prover = Prover(net.graph, net.lower, net.upper, (RowRule.AFFINE,))
    prover.state([ForbiddenCase(rows_of(net, 1), np.array([-10.0]), np.ones(1))])
    over = prover.proved()
    A = torch.from_numpy(prover._objectives([0])).reshape(1, 1, 2)
    low, high = (float(end.flatten()[0]) for end in over.boxes[inner])
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(frames() + 3 * DEPTH // 4)
    try:
        prover._plant(0, A, comb(inner, low, high), 1, over)
        data = written([prover], about())
        verdict = check(data)
    finally:
        sys.setrecursionlimit(limit)
    assert verdict.accepted, verdict.reason
    entries = exact.read(data).header["parts"][0]["proofs"][0]["tree"]
    assert len(entries) == 2 * DEPTH + 1
    at = 0
    for i in range(DEPTH):  # the left branch is a leaf, and comes first
        assert entries[at]["left"] == at + 1
        assert "rule" in entries[at + 1]
        assert entries[at]["right"] == at + 2 == 2 * (i + 1)
        at = entries[at]["right"]
    before = float(prover.margins[0])
    assert before <= float(verdict.margin) + 1e-9

    bounds = iter([math.nan, *[1.0] * DEPTH])  # a leaf without a bound is no proof
    monkeypatch.setattr(proof, "bounds", lambda *_: np.array([next(bounds)]))
    prover.header["proofs"].clear()
    prover.margins[:] = -np.inf
    prover._plant(0, A, comb(inner, low, high), 1, over)
    assert not prover.header["proofs"]
