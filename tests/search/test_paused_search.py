"""A search that is paused and resumed is the search that runs through."""

from __future__ import annotations

import time

import numpy as np

from tests.search.small import UNIT, case, conjunction, network, prop
from tests.search.test_falsify import LINEAR, judge
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.search import falsify as module
from vertex_softmax.search.falsify import falsify, paused_search
from vertex_softmax.search.replay import Counterexample, Replay


def test_a_search_in_pieces_is_the_same_search(monkeypatch) -> None:
    """No point is visited twice, and the pieces together find what the whole finds; then nothing more is done."""
    model, spec = network(LINEAR), prop(2, case([UNIT] * 3, conjunction(({0: 1}, -1.8125))))
    graph, replay = from_onnx(model, check=False), Replay(model)
    monkeypatch.setattr(module.Visits, "__init__", _fixed(module.Visits.__init__))
    asked: list[np.ndarray] = []

    def confirm(x: np.ndarray) -> Counterexample | None:
        asked.append(x)
        return replay.confirms(spec, x)

    pieces, count, search = [], 0, paused_search(graph, spec, confirm, seed=3)
    while (found := search.resume(0.0)).counterexample is None:  # one batch each
        assert found.visited > count
        count = found.visited
        pieces.append(found)
    assert len(pieces) >= 2
    whole = falsify(graph, spec, lambda x: replay.confirms(spec, x), seconds=60, seed=3)
    assert whole.visited == found.visited
    np.testing.assert_array_equal(whole.counterexample.x, found.counterexample.x)
    judge(model, graph, spec, found)
    asked.clear()
    assert search.resume(time.perf_counter() + 9).visited == found.visited
    assert not asked


def _fixed(begin):
    """A search whose batches do not depend on the clock."""

    def begun(self, *given, adapt: bool) -> None:
        begin(self, *given, adapt=False)

    return begun
