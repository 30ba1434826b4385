"""Searches that are kept for proofs: those over the same box are found, and what is of no use is not recorded."""

from __future__ import annotations

import torch

from tests.certificate.made import made
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.record import Record
from vertex_softmax.methods.bab import rules_of
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.kept_searches import KeptSearches
from vertex_softmax.sets.region import BoxRegion


def test_the_search_over_the_same_box_is_found() -> None:
    net, kept = made("relu"), KeptSearches()
    lower, upper = (torch.from_numpy(end)[None] for end in (net.lower, net.upper))
    kept.add(Question.over(net.graph, BoxRegion(lower, upper)), rules_of(Options()), Record())
    assert len(kept.over(BoxRegion(lower.clone(), upper.clone()))) == 1
    assert kept.over(BoxRegion(lower, upper + 1e-9)) == []


def test_what_is_of_no_use_to_a_proof_is_not_recorded() -> None:
    net, kept = made("relu"), KeptSearches()
    lower, upper = (torch.from_numpy(end)[None] for end in (net.lower, net.upper))
    assert kept.record(net.graph, net.graph, BoxRegion(lower, upper)) is not None
    assert kept.record(net.graph, made("one token").graph, BoxRegion(lower, upper)) is None
    assert kept.record(net.graph, net.graph, BoxRegion(lower.repeat(2, 1, 1), upper.repeat(2, 1, 1))) is None
