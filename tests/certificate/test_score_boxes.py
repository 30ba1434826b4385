"""Boxes of scores: what is cheaper is a proof too, and where it is not enough more is proved."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bounds.networks import Config, transformer
from tests.certificate.claims import everything_holds
from tests.certificate.made import Net, about, accepted, boxed, made, rows_of
from vertex_softmax.certificate import certificate
from vertex_softmax.certificate.certificate import CertificatePart, Effort
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.prove import Prover, written
from vertex_softmax.certificate.score_boxes import ScoreProof, are_many
from vertex_softmax.ops.rules import RowRule


def by_rule(net: Net, scores: ScoreProof, *, centred: bool = False) -> Prover:
    prover = Prover(net.graph, net.lower, net.upper, scores=scores)
    if centred:
        prover.centre_scores()
    prover.state([ForbiddenCase(rows_of(net, 1, 4), np.full(1, -1e3), np.ones(1))])
    prover.by_rule(RowRule.AFFINE)
    return prover


def test_more_is_proved_with_more_boxes_and_all_of_it_holds() -> None:
    net = boxed(made("relu").graph, 0.3, 3)
    none, later, centred, all_ = (
        by_rule(net, ScoreProof.INTERVALS),
        by_rule(net, ScoreProof.INTERVALS, centred=True),
        by_rule(net, ScoreProof.CENTRED),
        by_rule(net, ScoreProof.ALL),
    )
    assert none.margin < later.margin <= all_.margin + 1e-9
    kinds = [[step["kind"] for step in prover.header["steps"]] for prover in (none, later, centred, all_)]
    assert "centred" not in kinds[0]
    assert sorted(kinds[1]) == sorted(kinds[2])
    assert kinds[3].count("box") > kinds[2].count("box")
    for prover in (none, later, centred):
        data = written([prover], about())
        accepted(data)
        everything_holds(net, data, 12)


@pytest.mark.parametrize("radius", [1e-3, 0.05])
def test_where_lean_boxes_are_not_enough_there_are_others(radius: float, monkeypatch: pytest.MonkeyPatch) -> None:
    net = boxed(transformer(Config(depth=2, tokens=4, seed=8)), radius, 3)
    assert are_many(net.graph)
    monkeypatch.setattr(Prover, "by_branching", lambda *_, **__: pytest.fail("a search"))
    best = by_rule(net, ScoreProof.ALL).margin - 1e3
    case = ForbiddenCase(rows_of(net, 1, 4), np.array([best - 1e-7]), np.ones(1))
    found = certificate.prove(net.graph, [CertificatePart(net.lower, net.upper, [case])], Effort(lean=True))
    assert found.certificate is not None, found.margins
