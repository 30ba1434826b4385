"""The parts of falsification: what a move changes, and how large a batch is."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.search.small import UNIT, case, conjunction, network, prop, record, wavy
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.search import falsify as module
from vertex_softmax.search import visits
from vertex_softmax.search.falsify import falsify
from vertex_softmax.specs.property import Property

torch.set_num_threads(1)


def searching(model: bytes, spec: Property, confirm: visits.Confirm = lambda _: None) -> module._CounterexampleSearch:
    return module._CounterexampleSearch(
        from_onnx(model, check=False), spec, confirm, visits.boxes(spec, None), 0, adapt=False
    )


def test_the_boxes_searched_lie_in_the_decimals_boxes() -> None:
    above, below = "0.50000000000000000001", "0.99999999999999999999"
    lower, upper = visits.boxes(prop(1, case([(above, below)], conjunction())), None)
    assert lower.dtype == torch.float32
    assert Fraction(lower.item()) > Fraction(1, 2)  # 1/2 is just outside
    assert Fraction(upper.item()) < 1
    lower, upper = visits.boxes(prop(1, case([(above, below)], conjunction())), torch.float64)
    assert lower.dtype == torch.float64
    assert Fraction(lower.item()) > Fraction(1, 2)
    assert Fraction(upper.item()) < 1
    none = case([("0.1", "0.1"), UNIT], conjunction())  # no float64 either: those around it
    lower, upper = visits.boxes(prop(1, none), None)
    assert lower[0].tolist() == none.lower.tolist()
    assert upper[0].tolist() == none.upper.tolist()
    assert (lower <= upper).all()


PLANES = network((np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]), np.zeros(3)))
"""y = (x0, x1, −x0 − x1)"""
CORNER = prop(3, case([UNIT] * 2, *[conjunction(({k: 1}, "-9")) for k in range(3)]))


def test_a_visit_tells_each_points_own_violation_and_its_gradient() -> None:
    search = searching(PLANES, CORNER)
    x = torch.tensor([[[0.25, 0.5], [0.5, 0.25], [0.25, 0.5], [2.0, -3.0]]])
    seen = search.visit(torch.tensor([0]), x, torch.tensor([[0, 1, 3, 3]]), blend=torch.zeros(4, dtype=torch.bool))
    assert seen.x.tolist() == [[[0.25, 0.5], [0.5, 0.25], [0.25, 0.5], [1.0, 0.0]]]  # the last was outside
    assert seen.value.tolist() == [[9.25, 9.25, 8.25, 8.0]]
    assert seen.gradient.tolist() == [[[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]]]
    assert search.best.tolist() == [[9.25, 9.0, 8.0]]


def test_the_lowest_of_rows_that_share_a_case_is_kept() -> None:
    search = searching(PLANES, CORNER)
    x = torch.tensor([[[0.75, 0.5], [0.125, 1.0]], [[1.0, 0.25], [0.5, 0.5]], [[0.75, 0.75], [0.5, 1.0]]])
    search.visit(torch.tensor([0, 0, 0]), x, torch.zeros(3, 2, dtype=torch.int64))
    assert search.best.tolist() == [[9.125, 9.25, 7.5]]
    assert search.where[0, :2].tolist() == [[0.125, 1.0], [1.0, 0.25]]
    search.visit(torch.tensor([0, 0]), x[1:], torch.zeros(2, 2, dtype=torch.int64))  # nothing new
    assert search.where[0, :2].tolist() == [[0.125, 1.0], [1.0, 0.25]]


def test_the_sum_of_what_is_above_zero_has_its_own_gradient() -> None:
    both = prop(3, case([UNIT] * 2, conjunction(({0: 1}, "0.25"), ({1: 2}, "0.25"), ({2: 1}, "9"))))
    search = searching(PLANES, both)
    x = torch.tensor([[[0.5, 0.75], [0.5, 0.75], [0.0, 0.0]]])
    seen = search.visit(
        torch.tensor([0]), x, torch.zeros(1, 3, dtype=torch.int64), blend=torch.tensor([False, True, True])
    )
    assert seen.value.tolist() == [[1.25, 1.25, -0.25]]
    assert seen.gradient[0, :2].tolist() == [[0.0, 2.0], [1.0, 2.0]]
    assert seen.gradient[0, 2].abs().sum() > 0  # nothing above 0: the largest again


def test_targets_come_closest_first() -> None:
    spec = prop(
        3, *[case([UNIT] * 2, *[conjunction(({k: 1}, str(limit)))]) for k, limit in ((0, -3), (1, -1), (0, -2))]
    )
    search = searching(PLANES, spec)
    for _ in search._centres():
        pass
    assert search._targets()[0].tolist() == search._cases()[0].tolist() == [1, 2, 0]


def test_a_target_that_is_refused_again_and_again_does_not_keep_others_waiting() -> None:
    asked = []
    spec = prop(3, *[case([UNIT] * 2, conjunction(({0: 1}, "1"))) for _ in range(visits.ASKS + 2)])
    search = searching(PLANES, spec, lambda x: asked.append(x[0].item()))
    first = torch.arange(visits.ASKS)
    for value in (0.5, 0.25, 0.125):
        search.visit(first, torch.full((len(first), 1, 2), value), torch.zeros(len(first), 1, dtype=torch.int64))
    asked.clear()
    search.best[0], search.best[-2:] = (
        -0.95,
        torch.tensor([[-0.1], [-0.2]]),
    )  # three to ask about; two for the first time
    search.where[-2:, :, 0] = torch.tensor([[0.9], [0.8]])
    search.ask()
    assert asked[:2] == pytest.approx([0.8, 0.9])  # the lower of the two, then the other
    assert len(asked) == 3
    search.ask()
    assert len(asked) == 3  # nothing new


def test_from_the_centre_the_first_step_is_to_the_corner_against_the_gradient(monkeypatch) -> None:
    signs = np.where(np.arange(20) % 3 == 0, 1.0, -1.0)
    search = searching(network((signs[None], np.zeros(1))), prop(1, case([UNIT] * 20, conjunction(({0: 1}, "-99")))))
    seen = record(monkeypatch)
    for _ in search._restart(*search._targets(), 2, 1000):
        pass
    np.testing.assert_array_equal(seen[0], np.full((2, 20), 0.5))
    np.testing.assert_allclose(seen[1], [signs < 0] * 2, atol=1e-5)  # by signs, and by Adam
    assert len(seen) < 50  # both are in the corner, and stay: the other 950 steps are not taken


def test_on_a_plateau_chains_wander(monkeypatch) -> None:
    search = searching(
        network((np.zeros((1, 50)), np.ones(1))), prop(1, case([UNIT] * 50, conjunction(({0: 1}, "-9"))))
    )
    seen = record(monkeypatch)
    for _ in search._wander(*search._targets(), 6, 60):
        pass
    assert ((seen[-1] != seen[0]).sum(1) > 20).all()
    assert ((seen[-1] != seen[-2]).sum(1) <= 4).all()  # few inputs at a time, in the end


def test_a_greedy_search_of_many_inputs_goes_on_where_some_do_not_help() -> None:
    W = np.zeros((1, 400))
    W[0, 123], W[0, 321] = 1.0, -1.0
    search = searching(network((W, np.zeros(1))), prop(1, case([UNIT] * 400, conjunction(({0: 1}, "-9")))))
    for _ in search._centres():
        pass
    for _ in search._greedy(*search._targets(), 100):
        pass
    assert search.best.item() == 8


@pytest.mark.parametrize("shape", [[1, 24], [1, 2, 3, 4]])
def test_windows_are_windows_of_the_inputs_last_two_dimensions(shape) -> None:
    layers = ("Flatten", (np.ones((1, 24)), np.zeros(1)))
    spec = prop(1, case([("-1", "1")] * 24, conjunction(({0: 1}, "-100"))))
    search = searching(network(*layers, shape=shape), spec)
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
    search = searching(network((np.ones((1, 40)), np.zeros(1))), spec)
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
    pace.note(1, 0.5 * visits.BATCH_SECONDS)  # one point is all overhead
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
