"""The parts of falsification: what a move changes, and how large a batch is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.search.small import UNIT, case, conjunction, network, prop, record, wavy

from vertex_softmax.graph.from_onnx import from_onnx
from vertex_softmax.search import falsify as module
from vertex_softmax.search import visits
from vertex_softmax.search.falsify import falsify

torch.set_num_threads(1)


@pytest.mark.parametrize("shape", [[1, 24], [1, 2, 3, 4]])
def test_windows_are_windows_of_the_inputs_last_two_dimensions(shape) -> None:
    layers = ("Flatten", (np.ones((1, 24)), np.zeros(1)))
    graph = from_onnx(network(*layers, shape=shape), check=False)
    spec = prop(1, case([("-1", "1")] * 24, conjunction(({0: 1}, "-100"))))
    search = module._Search(graph, spec, lambda _: None, visits.boxes(spec, None), 0, adapt=False)
    x = torch.zeros(1, 300, 24)
    after = search._changed(torch.zeros(1, dtype=torch.int64), x, torch.zeros(300, dtype=torch.int64), 0.25)[0]
    assert ((after == 0) | (after.abs() == 1)).all()
    if len(shape) == 2:
        for row in after:
            at = row.nonzero()[:, 0]
            assert len(at) == 6 == at[-1] - at[0] + 1
            assert len(row[at].unique()) == 1
        return
    blocks = after.reshape(300, 2, 3, 4)
    assert ((blocks != 0).flatten(1).sum(1) == 2 * 2 * 2).all()  # ⌈3/2⌉ × ⌈4/2⌉ of both leading indices
    assert ((blocks[:, 0] != 0) == (blocks[:, 1] != 0)).all()
    for block in blocks.flatten(0, 1):
        rows, columns = (block != 0).nonzero(as_tuple=True)
        assert len(rows.unique()) == len(columns.unique()) == 2
        assert len(block[block != 0].unique()) == 1
    assert (blocks[:, 0].sum((1, 2)) != blocks[:, 1].sum((1, 2))).any()  # each has its own end


def test_changes_of_single_inputs_are_to_ends_or_normal() -> None:
    spec = prop(1, case([("-1", "1")] * 30 + [("0", "0")] * 10, conjunction(({0: 1}, "-100"))))
    graph = from_onnx(network((np.ones((1, 40)), np.zeros(1))), check=False)
    search = module._Search(graph, spec, lambda _: None, visits.boxes(spec, None), 0, adapt=False)
    x = torch.full((1, 600, 40), 0.5) * (torch.arange(40) < 30)
    number = torch.arange(600) % 2 + 1
    after = search._changed(torch.zeros(1, dtype=torch.int64), x, number, 1e-9)[0]
    moved = after != x[0]
    assert (moved[number == 1].sum(1) == 1).all()  # one at least, and of the open ones
    assert (moved.sum(1) <= 1).all()
    assert not moved[:, 30:].any()
    ends, normal = after[number == 1], after[number == 2]
    assert set(ends[ends != x[0][number == 1]].tolist()) == {-1.0, 1.0}
    sizes = (normal - x[0, 0]).abs().amax(1)
    assert sizes.min() < 1e-3 < 1e-1 < sizes.max()
    many = search._changed(torch.zeros(1, dtype=torch.int64), x, number, 0.5)[0]
    assert 0.4 < (many != x[0])[:, :30].double().mean() < 0.6


def test_batches_are_as_long_as_they_should_be() -> None:
    pace = visits.Pace(adapt=True, most=4096)
    for _ in range(20):
        pace.note(pace.size, 1e-3 * pace.size)
    assert pace.size == pytest.approx(visits.BATCH_SECONDS / 1e-3, rel=0.1)
    pace.note(1, 1e-3)  # one point is all overhead
    assert pace.size == pytest.approx(visits.BATCH_SECONDS / 1e-3, rel=0.1)
    pace.note(pace.size, 100.0)
    assert pace.size == 1
    for _ in range(20):
        pace.note(pace.size, 1e-9)
    assert pace.size == 4096
    fixed = visits.Pace(adapt=False, most=4096)
    fixed.note(fixed.size, 100.0)
    assert fixed.size == visits.POINTS
    assert visits.Pace(adapt=False, most=3).size == 3


def test_a_large_network_gets_small_batches(monkeypatch) -> None:
    monkeypatch.setattr(visits, "NUMBERS", 2000)
    seen = record(monkeypatch)
    spec = prop(2, case([UNIT] * 8, conjunction(({0: 1}, "-100"))))
    falsify(from_onnx(wavy(8), check=False), spec, lambda _: None, seconds=None, restarts=7, steps=3)
    assert max(len(x) for x in seen) <= 2000 // (2 * 16 + 2 + 17 * 8)
    assert sum(len(x) for x in seen) > 100
