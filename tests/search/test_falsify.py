"""Falsification stays in the boxes, believes only a replay, and finds what is there to find."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.small import UNIT, case, conjunction, network, prop, record, run, wavy
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.ir import Graph
from vertex_softmax.search import falsify as module
from vertex_softmax.search.falsify import Found, falsify
from vertex_softmax.search.replay import Counterexample, Replay
from vertex_softmax.specs.property import Property

torch.set_num_threads(1)
LINEAR = (np.array([[1.0, -2.0, 0.5], [0.25, 1.0, -1.0]]), np.array([0.125, 0.0]))
"""y = (x0 − 2 x1 + x2/2 + 1/8, x0/4 + x1 − x2); on the unit cube y0 ≥ −1.875 and y1 ≥ −1, both exact"""


def attack(model: bytes, spec: Property, **settings) -> Found:
    """falsify, and an independent look at what it returns."""
    graph, replay = from_onnx(model, check=False), Replay(model)
    found = falsify(graph, spec, lambda x: replay.confirms(spec, x), **{"seconds": None, **settings})
    judge(model, graph, spec, found)
    return found


def judge(model: bytes, graph: Graph, spec: Property, found: Found) -> None:
    if found.counterexample is not None:
        x = found.counterexample.x
        assert x.dtype == np.float32
        assert spec.broken_by(x, run(model, x))
    assert found.targets == tuple((i, j) for i, c in enumerate(spec.cases) for j in range(len(c.conjunctions)))
    assert found.violations.shape == (len(found.targets),)
    assert found.inputs.shape == (len(found.targets), spec.inputs)
    for (i, j), violation, x in zip(found.targets, found.violations, found.inputs, strict=True):
        box = spec.cases[i]
        assert (x >= box.lower).all()
        assert (x <= box.upper).all()
        if np.isfinite(violation):
            y = graph.evaluate(torch.from_numpy(x).double().reshape(graph.input.shape)).reshape(-1)
            C, d = box.conjunctions[j].matrix(spec.outputs)
            size = float((C.abs() @ y.abs() + d.abs()).max())
            assert violation == pytest.approx(float((C @ y - d).max()), abs=1e-5 * (1 + size))


def without(monkeypatch, *names: str) -> None:
    """No such part of the search."""
    for name in names:
        monkeypatch.setattr(module._CounterexampleSearch, name, lambda *_: iter(()))


def bump(at: tuple[float, ...], radius: float) -> bytes:
    """y = 1 − relu(1 − Σ |x − at| / radius): 1 with gradient 0 outside a small diamond, and 0 in its middle."""
    n = len(at)
    ends = (np.concatenate([np.eye(n), -np.eye(n)]), np.concatenate([-np.array(at), np.array(at)]))
    one = (np.full((1, 2 * n), -1 / radius), np.ones(1))
    return network(ends, "Relu", one, "Relu", (-np.ones((1, 1)), np.ones(1)))


# what is found


@given(st.integers(0, 2**32), st.floats(-1e-3, 1e-3), st.integers(1, 12))
@settings(max_examples=25)
def test_a_linear_net_is_minimised_exactly(seed, slack, inputs) -> None:
    rng = np.random.default_rng(seed)
    W, low = rng.normal(size=(2, inputs)).astype(np.float32), rng.normal(size=inputs).astype(np.float32)
    high = (low + rng.random(inputs)).astype(np.float32)
    exact = W.astype(np.float64)
    limits = (np.minimum(exact * low, exact * high).sum(1) + slack).tolist()
    rows = [conjunction(({k: 1}, limits[k])) for k in range(2)]
    spec = prop(2, case([(float(a), float(b)) for a, b in zip(low, high, strict=True)], *rows))
    found = attack(network((W, np.zeros(2))), spec, restarts=2, steps=5)
    if slack > 1e-5:
        assert found.counterexample is not None
    elif slack < -1e-5:
        assert found.counterexample is None
        np.testing.assert_allclose(found.violations, -slack, atol=1e-5)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=25)
def test_whatever_is_returned_breaks_the_property_on_another_run(seed, cases, conjunctions, inequalities) -> None:
    rng = np.random.default_rng(seed)
    layers = (rng.normal(size=(8, 3)), rng.normal(size=8)), "Relu", (rng.normal(size=(3, 8)), rng.normal(size=3))
    made = []
    for _ in range(cases):
        low, width = rng.normal(size=3), rng.random(3) * rng.integers(0, 2, 3)
        rows = [
            conjunction(*[({k: rng.normal() for k in range(3)}, rng.normal()) for _ in range(inequalities)])
            for _ in range(rng.integers(1, conjunctions + 1))
        ]
        made.append(case([(f"{a:.4f}", f"{a + w:.4f}") for a, w in zip(low, width, strict=True)], *rows))
    attack(network(*layers), prop(3, *made), restarts=2, steps=5, seed=seed % 97)


def test_an_easy_counterexample_takes_a_batch() -> None:
    spec = prop(2, case([UNIT] * 3, conjunction(({0: 1}, "-5")), conjunction(({1: 1}, "0.25"))))
    found = attack(network(LINEAR), spec)
    assert found.counterexample is not None
    assert found.counterexample.at == (0, 1)
    assert found.visited == 1  # the centre


def test_the_nearest_of_many_conjunctions_is_tried_before_all() -> None:
    W = np.eye(50, 60)
    rows = [conjunction(({k: 1}, "0.01" if k == 37 else "-1")) for k in range(50)]
    found = attack(network((W, np.zeros(50))), prop(50, case([UNIT] * 60, *rows)))
    assert found.counterexample is not None
    assert found.counterexample.at == (0, 37)
    assert found.visited < 20


def test_a_net_that_is_robust_by_construction_is_not_broken() -> None:
    rng = np.random.default_rng(1)
    model = network((rng.normal(size=(8, 4)), rng.normal(size=8)), "Relu", (rng.random((1, 8)), np.ones(1)))
    found = attack(model, prop(1, case([("-1", "1")] * 4, conjunction(({0: 1}, "0.99")))))
    assert found.counterexample is None
    assert found.violations[0] >= 0.01 - 1e-6


def test_all_inequalities_of_a_conjunction_have_to_hold() -> None:
    # 0.999 ≤ y0 ≤ 1 and y1 ≥ 0.9: a sliver of the square, and its parts are far apart
    model = network((np.array([[1.0, 1.0], [1.0, -1.0]]), np.zeros(2)))
    sliver = conjunction(({0: 1}, "1"), ({0: -1}, "-0.999"), ({1: -1}, "-0.9"))
    found = attack(model, prop(2, case([UNIT] * 2, sliver)))
    assert found.counterexample is not None
    y = found.counterexample.y[0]
    assert 0.999 <= y[0] <= 1
    assert y[1] >= 0.9
    never = conjunction(({0: 1}, "0.5"), ({0: -1}, "-0.75"), ({1: -1}, "0"))
    found = attack(model, prop(2, case([UNIT] * 2, never)))
    assert found.counterexample is None
    assert found.violations[0] == pytest.approx(0.125, abs=1e-3)


def band(seed: int) -> tuple[bytes, Property]:
    """Twelve outputs of forty inputs, all within 0.02 of an output that is reached."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(12, 40))
    inside = (W @ rng.random(40)).tolist()
    ends = [(sign, k) for k in range(12) for sign in (1, -1)]
    rows = [({k: sign}, sign * inside[k] + 0.02) for sign, k in ends]
    return network((W, np.zeros(12))), prop(12, case([UNIT] * 40, conjunction(*rows)))


def test_gradients_find_what_chance_does_not(monkeypatch) -> None:
    model, spec = band(4)
    for part, finds in (("_moves", True), ("_descents", False)):
        with monkeypatch.context() as patch:
            without(patch, part)
            found = attack(model, spec, steps=160)
            assert (found.counterexample is not None) == finds


def test_one_box_of_many_breaks() -> None:
    model = network((np.eye(1), np.zeros(1)))
    far = conjunction(({0: 1}, "-1"))
    boxes = [case([(str(i), str(i + 1))], far) for i in range(3000)]
    boxes[1234] = case([("1234", "1235")], far, conjunction(({0: -1}, "-1234.99")), conjunction(({0: 1}, "-2")))
    found = attack(model, prop(1, *boxes))
    assert found.counterexample is not None
    assert found.counterexample.at == (1234, 1)
    assert found.visited < 20 * len(boxes)


def test_a_box_that_is_a_point_is_visited_once() -> None:
    spec = prop(
        2,
        *[
            case([(str(i / 8), str(i / 8))] * 3, conjunction(({0: 1}, "-1")), conjunction(({1: 1}, "-1")))
            for i in range(5)
        ],
    )
    for seconds in (None, 5):
        found = attack(network(LINEAR), spec, seconds=seconds)
        assert found.counterexample is None
        assert found.visited == 5
        np.testing.assert_allclose(found.violations[::2], [1.125 - 0.5 * i / 8 for i in range(5)], rtol=1e-6)
    broken = prop(2, spec.cases[0], case([("0.5", "0.5")] * 3, conjunction(({0: 1}, "-0.125"))))
    found = attack(network(LINEAR), broken)
    assert found.counterexample is not None
    assert found.counterexample.x.tolist() == [[0.5] * 3]


def test_closed_inputs_stay_and_the_open_one_is_searched() -> None:
    rng = np.random.default_rng(0)
    fixed = rng.random(40).astype(np.float32)
    ends = [(float(v), float(v)) for v in fixed]
    ends[17] = (0.0, 1.0)
    W = np.zeros((2, 40))
    W[0, 17], W[1, 17] = 100.0, -100.0
    model = network((W, np.array([-70.0, 70.0])), "Relu", (np.ones((1, 2)), np.zeros(1)))  # |100 x − 70|
    found = attack(model, prop(1, case(ends, conjunction(({0: 1}, "0.001")))))
    assert found.counterexample is not None
    x = found.counterexample.x[0]
    np.testing.assert_array_equal(np.delete(x, 17), np.delete(fixed, 17))
    assert abs(x[17] - 0.7) < 1e-5


# plateaus, and parts on their own


def test_a_plateau_is_no_obstacle() -> None:
    for at, radius in (((0.31,), 0.003), ((0.31, 0.62), 0.04), ((0.3, 0.6, 0.2), 0.2)):
        found = attack(bump(at, radius), prop(1, case([UNIT] * len(at), conjunction(({0: 1}, "0.999")))))
        assert found.counterexample is not None, at


def test_a_descent_without_a_slope_goes_elsewhere(monkeypatch) -> None:
    without(monkeypatch, "_moves")
    found = attack(bump((0.31, 0.62), 0.2), prop(1, case([UNIT] * 2, conjunction(({0: 1}, "0.05")))))
    assert found.counterexample is not None


def test_samples_alone_find_a_small_place(monkeypatch) -> None:
    without(monkeypatch, "_descents", "_wander", "_greedy")
    closed = [("0.5", "0.5")] * 3
    spec = prop(1, case([*closed, UNIT, UNIT], conjunction(({0: 1}, "0.999"))))
    found = attack(bump((0.5, 0.5, 0.5, 0.31, 0.62), 0.04), spec)
    assert found.counterexample is not None


def test_samples_hold_every_corner_of_a_box_with_few_open_inputs(monkeypatch) -> None:
    without(monkeypatch, "_descents", "_wander", "_greedy")
    rng = np.random.default_rng(2)
    for n in (1, 2, 6):
        for corner in rng.integers(0, 2, (4, n)):
            model = bump(tuple(float(v) for v in corner), 0.01)
            assert attack(model, prop(1, case([UNIT] * n, conjunction(({0: 1}, "0"))))).counterexample is not None


def test_samples_of_many_inputs_are_points_and_corners(monkeypatch) -> None:
    without(monkeypatch, "_descents", "_wander", "_greedy")
    spec = prop(1, case([("0", "2")] * 8, conjunction(({0: 1}, "-100"))))
    graph = from_onnx(network((np.ones((1, 8)), np.zeros(1))), check=False)
    seen = record(monkeypatch)
    falsify(graph, spec, lambda _: None, seconds=None)
    points = np.concatenate(seen)[1:]
    ends = ((points == 0) | (points == 2)).all(1)
    assert ends.sum() == len(points) / 2 == 16
    assert 0.4 < (points[ends] == 2).mean() < 0.6
    assert points[~ends].std(0).min() > 0.3
    assert len(np.unique(points, axis=0)) > 25


@pytest.mark.parametrize("alone", ["_wander", "_greedy", "_descents"])
def test_each_part_alone_finds_a_corner_of_twenty_inputs(monkeypatch, alone) -> None:
    without(monkeypatch, "_sample", *{"_wander", "_greedy", "_descents"} - {alone})
    signs = np.where(np.random.default_rng(3).random(20) < 0.5, 1.0, -1.0)
    model = network((signs[None], np.zeros(1)))
    least = -float((signs < 0).sum())
    for at in (0, 1):
        boxes = [case([UNIT] * 20, conjunction(({0: 1}, "-30"))), case([("0", "0")] * 20, conjunction(({0: 1}, "-30")))]
        found = attack(model, prop(1, *(boxes if at == 0 else boxes[::-1])), steps=100 if alone == "_wander" else 20)
        assert found.violations[at] == least + 30
        np.testing.assert_array_equal(found.inputs[at], (signs < 0).astype(float))


# rounding, NaN, and what has nothing to find


def test_a_violation_within_rounding_is_left_to_the_replay() -> None:
    big = 2.0**20  # its float32 neighbours are 1/8 apart: x = 0.02 is lost
    model = network((np.eye(1), [big]))
    near = prop(1, case([("0.02", "1")], conjunction(({0: 1}, big + 0.01))))
    for dtype in (torch.float32, torch.float64):
        found = attack(model, near, dtype=dtype)
        assert found.counterexample is not None
        assert found.counterexample.y.tolist() == [[big]]
    below = prop(1, case([("0.02", "1")], conjunction(({0: 1}, 0.01 - big))))
    assert attack(network((np.eye(1), [-big])), below, dtype=torch.float64).counterexample is not None
    same = prop(1, case([("0.1", "1")], conjunction(({0: 1}, "0.1"))))  # in float32 y = 0.1 is a little more than 0.1
    found = attack(network((np.eye(1), np.zeros(1))), same)
    assert found.violations[0] == 0
    assert found.counterexample is None


def test_a_refusal_does_not_end_the_search_and_is_not_asked_about_for_ever() -> None:
    spec = prop(1, *[case([UNIT] * 2, conjunction(({0: 1}, "0.5"))) for _ in range(20)])
    graph = from_onnx(network((np.ones((1, 2)), np.zeros(1))), check=False)
    asked = []
    found = falsify(graph, spec, asked.append, seconds=None, restarts=2, steps=5)
    assert found.counterexample is None
    assert (found.violations == -0.5).all()
    assert 20 <= len(asked) <= 20 * 12
    assert all(x.shape == (2,) and x.dtype == np.float32 for x in asked)
    positive = prop(1, case([UNIT] * 2, conjunction(({0: 1}, "-0.000001"))))
    asked.clear()
    falsify(graph, positive, asked.append, seconds=None)
    assert 1 <= len(asked) <= 3


def test_every_target_that_looks_broken_is_asked_about() -> None:
    spec = prop(1, *[case([(str(i), str(i))] * 2, conjunction(({0: 1}, "100"))) for i in range(30)])
    graph = from_onnx(network((-np.ones((1, 2)), np.zeros(1))), check=False)
    asked = []
    falsify(graph, spec, lambda x: asked.append(float(x[0])), seconds=None)
    assert sorted(asked) == list(range(30))
    assert asked[0] == 29  # the lowest first


def test_boxes_without_float32_are_searched_in_float64() -> None:
    thin = case([("0.1", "0.1000000001"), UNIT], conjunction(({0: 1}, "0.5")))
    none = case([("0.1", "0.1"), UNIT], conjunction(({0: 1}, "0.5")))
    model = network((np.ones((1, 2)), np.zeros(1)))
    for box in (thin, none):
        found = attack(model, prop(1, box), restarts=2, steps=5)
        assert found.counterexample is None  # no float32 in it
        assert found.violations.dtype == np.float64
        assert found.violations[0] == pytest.approx(-0.4, abs=1e-8)
        assert box.lower[0] <= found.inputs[0, 0] <= box.upper[0]
        with pytest.raises(InvalidValueError, match="without float32"):
            attack(model, prop(1, box), dtype=torch.float32)
    both = attack(model, prop(1, none, case([("0.1", "0.2"), UNIT], conjunction(({0: 1}, "0.5")))))
    assert both.counterexample is not None
    assert both.counterexample.at == (1, 0)


def test_outputs_that_are_not_numbers_are_no_counterexamples() -> None:
    model = network((np.eye(2), np.zeros(2)), "Log", (np.eye(2), np.zeros(2)))
    nowhere = prop(2, case([("-2", "-1")] * 2, conjunction(({0: 1}, "5"))))
    found = attack(model, nowhere, restarts=2, steps=3)
    assert found.counterexample is None
    assert found.violations[0] == np.inf
    half = prop(2, case([("-1.1", "1")] * 2, conjunction(({0: 1}, "-1"))))  # the centre has no output
    assert attack(model, half).counterexample is not None


def test_an_empty_conjunction_is_true_and_no_conjunction_never() -> None:
    model = network(LINEAR)
    found = attack(model, prop(2, case([UNIT] * 3), case([UNIT] * 3, conjunction(({0: 1}, "-9")), conjunction())))
    assert found.counterexample is not None
    assert found.counterexample.at == (1, 1)
    assert found.visited == 1
    for seconds in (None, 5):
        nothing = attack(model, prop(2, case([UNIT] * 3)), seconds=seconds)
        assert nothing.counterexample is None
        assert nothing.targets == ()
        assert nothing.visited == 0


# the search as a citizen


def test_every_point_lies_in_the_box(monkeypatch) -> None:
    ends = [("-0.1", "0.3"), ("0.7", "0.7000001"), ("1e-3", "1e3"), ("0.2", "0.2")]
    ends[3] = ("0.25", "0.25")
    box = case(ends, conjunction(({0: 1}, "-1000")), conjunction(({1: 1}, "-1000")))
    graph = from_onnx(wavy(4), check=False)
    for extra in (0, 6):
        spec = prop(2, case([*ends, *[UNIT] * extra], *box.conjunctions))
        graph = from_onnx(wavy(4 + extra), check=False)
        starts = {(0, 0): torch.full((2, 4 + extra), 1e6), (0, 1): torch.full((4 + extra,), -1e6)}
        with monkeypatch.context() as patch:
            seen = record(patch)
            found = falsify(graph, spec, lambda _: None, seconds=None, restarts=4, steps=10, starts=starts)
        points = np.concatenate(seen)
        assert len(points) == found.visited > 500
        assert (points >= spec.cases[0].inner_lower).all()
        assert (points <= spec.cases[0].inner_upper).all()
        assert (points == points.astype(np.float32)).all()
        assert len(np.unique(points, axis=0)) > 300


def test_points_of_others_come_first() -> None:
    model = bump((0.123,) * 30, 1e-4)
    spec = prop(1, case([UNIT] * 30, conjunction(({0: 1}, "-1")), conjunction(({0: 1}, "0.5"))))
    needle = torch.full((30,), 0.123, dtype=torch.float64)
    assert attack(model, spec, restarts=1, steps=2).counterexample is None
    found = attack(model, spec, starts={(0, 1): torch.stack([torch.zeros(30), needle.float()])})
    assert found.counterexample is not None
    assert found.visited == 3
    close = attack(wavy(30), prop(2, case([UNIT] * 30, conjunction(({0: 1}, "-100")))), restarts=1, steps=1)
    better = attack(
        wavy(30),
        prop(2, case([UNIT] * 30, conjunction(({0: 1}, "-100")))),
        restarts=1,
        steps=1,
        starts={(0, 0): torch.rand(64, 30, generator=torch.Generator().manual_seed(0))},
    )
    assert better.violations[0] < close.violations[0]


def test_points_of_others_are_followed_down_their_own_target(monkeypatch) -> None:
    without(monkeypatch, "_descents", "_moves")
    model = network((np.array([[1.0, 1.0], [-1.0, -1.0]]), np.zeros(2)))
    box = [conjunction(({k: 1}, "-9")) for k in range(2)]
    spec = prop(2, case([UNIT] * 2, *box), case([UNIT] * 2, *box))
    found = attack(model, spec, starts={(0, 1): torch.full((3, 2), 0.5), (1, 0): torch.full((2,), 0.5)})
    np.testing.assert_allclose(found.violations, [10 - 0, 7, 9, 9 - 1], atol=1e-6)


@pytest.mark.parametrize("wrong", [(1, 0), (0, 1), (-1, 0), (0, -1)])
def test_starts_of_targets_that_are_not_there_are_refused(wrong) -> None:
    spec = prop(2, case([UNIT] * 3, conjunction(({0: 1}, "-9"))))
    with pytest.raises(InvalidValueError, match="does not have"):
        attack(network(LINEAR), spec, starts={wrong: torch.zeros(1, 3)})
    with pytest.raises(InvalidValueError, match="must be"):
        attack(network(LINEAR), spec, starts={(0, 0): torch.zeros(1, 4)})


def test_the_seed_decides_and_torchs_own_generator_is_left_alone() -> None:
    spec = prop(2, case([UNIT] * 8, conjunction(({0: 1}, "-100")), conjunction(({1: 1}, "-100"))))
    before = torch.random.get_rng_state()
    first, again, other = (attack(wavy(8), spec, restarts=3, steps=4, seed=s) for s in (5, 5, 6))
    np.testing.assert_array_equal(first.inputs, again.inputs)
    np.testing.assert_array_equal(first.violations, again.violations)
    assert first.visited == again.visited
    assert (first.inputs != other.inputs).any()
    assert torch.equal(before, torch.random.get_rng_state())
    low = prop(2, case([UNIT] * 2, conjunction(({0: 1}, "-100"))))
    one, two = (attack(wavy(2), low, restarts=3, steps=4, seed=5) for _ in range(2))
    np.testing.assert_array_equal(one.inputs, two.inputs)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_clock_is_obeyed_and_used() -> None:
    spec = prop(2, case([UNIT] * 20, conjunction(({0: 1}, "-100"))))
    graph = from_onnx(wavy(20), check=False)
    for seconds in (0.0, 0.5):
        begin = time.perf_counter()
        found = falsify(graph, spec, lambda _: None, seconds=seconds)
        spent = time.perf_counter() - begin
        assert seconds <= spent < seconds + 1
        assert found.visited >= 1
    assert found.visited > falsify(graph, spec, lambda _: None, seconds=0.05).visited


def test_it_stops_when_it_is_told_to() -> None:
    spec = prop(2, case([UNIT] * 20, conjunction(({0: 1}, "-100"))))
    graph, calls = from_onnx(wavy(20), check=False), iter(range(100))
    found = falsify(graph, spec, lambda _: None, seconds=None, stop=lambda: next(calls) == 4)
    assert next(calls) == 5
    assert found.visited < 200
    assert np.isfinite(found.violations).all()


def test_the_first_confirmed_counterexample_is_returned_as_it_is() -> None:
    spec = prop(2, case([UNIT] * 3, conjunction(({0: 1}, "0"))))
    given_back = Counterexample(np.zeros(3), np.zeros(2), spec.cases[0], (0, 0))
    calls = []

    def confirm(x):
        calls.append(x)
        return given_back

    found = falsify(from_onnx(network(LINEAR), check=False), spec, confirm, seconds=None)
    assert found.counterexample is given_back
    assert len(calls) == 1


def test_what_makes_no_sense_is_refused() -> None:
    graph = from_onnx(network(LINEAR), check=False)
    spec = prop(2, case([UNIT] * 3, conjunction(({0: 1}, "0"))))

    def ask(which: Property, **changed):
        return falsify(graph, which, lambda _: None, **{"seconds": None, **changed})

    with pytest.raises(InvalidValueError, match="steps is -1"):
        ask(spec, steps=-1)
    with pytest.raises(InvalidValueError, match="restarts is 0"):
        ask(spec, restarts=0)
    with pytest.raises(InvalidTypeError, match="float16"):
        ask(spec, dtype=torch.float16)
    with pytest.raises(InvalidValueError, match="3 inputs, the property speaks of 2"):
        ask(prop(2, case([UNIT] * 2, conjunction())))
    with pytest.raises(InvalidValueError, match="2 outputs, the property speaks of 5"):
        ask(prop(5, case([UNIT] * 3, conjunction())))
    open_ = case([UNIT] * 3, conjunction(({0: 1}, "0")))
    open_.upper[1] = open_.inner_upper[1] = np.inf
    with pytest.raises(InvalidValueError, match="unbounded"):
        ask(prop(2, open_))
    assert ask(spec, steps=0, restarts=1).violations[0] <= 0.5
