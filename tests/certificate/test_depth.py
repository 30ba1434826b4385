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
from vertex_softmax.bounds.record import Record
from vertex_softmax.bounds.splits import Split
from vertex_softmax.certificate.checker import check, proof
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.planting import Searched
from vertex_softmax.certificate.prove import Prover, written
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops import elementwise, linear
from vertex_softmax.ops.rules import RowRule, Rules

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
    low, high = (float(end.flatten()[0]) for end in over.boxes[inner])
    record = Record()
    record.boxes, record.leaves = over.boxes, comb(inner, low, high)
    searched = Searched(over.question.on_parts(), Rules(attention=RowRule.AFFINE), record, {0: 0})
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(frames() + 3 * DEPTH // 4)
    try:
        prover.by_search(searched)
        data = written([prover], about())
        verdict = check(data)
    finally:
        sys.setrecursionlimit(limit)
    assert verdict.accepted, verdict.reason
    read = exact.read(data)
    nodes = read.arrays[read.header["parts"][0]["proofs"][0]["tree"]["node"]]
    assert (nodes < 0).tolist() == [False, True] * DEPTH + [True]  # the left branch is a leaf, and comes first
    before = float(prover.margins[0])
    assert before <= float(verdict.margin) + 1e-9

    lost = np.ones((DEPTH + 1, 1))
    lost[DEPTH // 2] = math.nan  # a leaf without a bound is no proof
    monkeypatch.setattr(proof, "leaf_bounds", lambda *_: lost)
    prover.header["proofs"].clear()
    prover.margins[:] = -np.inf
    prover.by_search(searched)
    assert not prover.header["proofs"]
