"""What splits gained, and what is foretold of the next: expected values by hand."""

from __future__ import annotations

import math

from vertex_softmax.bounds.candidates import Candidate
from vertex_softmax.bounds.gains import Gains
from vertex_softmax.graph import build


def test_a_number_is_foretold_by_its_own_trials_then_by_its_nodes() -> None:
    node = build.source((4,))
    gains = Gains(reliable=2)
    first, second = (Candidate(node, place, 0.0, 1.0, cost=2.0) for place in (0, 1))
    assert gains.expected(0, first) == (1.0, 1.0)
    gains.learn(0, first, 1.0, 0.5)
    assert gains.expected(0, first) == gains.expected(0, second) == gains.expected(1, first) == (1.0, 0.5)
    assert not gains.is_reliable(0, first)
    gains.learn(0, first, 3.0, 1.5)
    gains.learn(0, second, 0.0, 4.0)
    assert gains.expected(0, first) == (2.0, 1.0)
    assert gains.expected(0, second) == (0.0, 4.0)
    assert gains.is_reliable(0, first)
    assert not gains.is_reliable(1, first)
    assert not gains.is_reliable(0, second)


def test_what_is_no_number_teaches_nothing() -> None:
    gains = Gains(reliable=1)
    candidate = Candidate(build.source((4,)), 0, 0.0, 1.0, cost=2.0)
    for above, below in ((math.nan, 1.0), (1.0, math.inf), (math.inf, math.nan)):
        gains.learn(0, candidate, above, below)
    gains.learn(0, Candidate(candidate.node, 0, 0.0, 1.0, cost=0.0), 1.0, 1.0)
    assert not gains.is_reliable(0, candidate)
    assert gains.expected(0, candidate) == (1.0, 1.0)
