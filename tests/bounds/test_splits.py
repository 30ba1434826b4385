"""Splits, multipliers and targets by hand, and what cannot be split."""

from __future__ import annotations

import pytest
import torch

from tests.bounds.checks import Ready, asked, objectives, tightened
from tests.bounds.test_parts import COUNT, RULES, fixed, made, parted, ready
from vertex_softmax.bounds.ascent import Ascent, Beginning, ascend
from vertex_softmax.bounds.backward import backward
from vertex_softmax.bounds.box_passes import all_boxes
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import inner_ranges
from vertex_softmax.bounds.choice import Choice, Multipliers, Targets
from vertex_softmax.bounds.splits import Split, part_boxes
from vertex_softmax.foundation.errors import InvalidValueError, OutOfTimeError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import Rules

torch.set_num_threads(1)


def folded(attention: bool = False) -> tuple[Ready, Node]:
    """z = x₀ + 2 x₁ of x ∈ [−1, 1]², and y = (z, relu(z)), or (z, softmax(z, 0)·(1, 0)); z ∈ [−3, 3]."""
    x = build.source((2,))
    z = build.affine(x, torch.tensor([[1.0, 2.0]]).double(), torch.zeros(1).double(), "z")
    if attention:
        scores = build.concat([build.reshape(z, (1, 1), "s"), build.constant(torch.zeros(1, 1).double())], 1, "scores")
        value = build.constant(torch.tensor([[1.0], [0.0]]).double())
        other = build.reshape(build.apply(Attention(), scores, value, name="attention"), (1,), "other")
        z_or = scores
    else:
        other, z_or = build.apply(Relu(), z, name="relu"), z
    y = build.concat([z, other], 0, "y")
    return tightened(Graph(x, y), -torch.ones(1, 2).double(), torch.ones(1, 2).double()), z_or


Sides = tuple[float, float]


def one_cut(
    whole: Ready,
    z: Node,
    ends: Sides,
    A: list[float],
    multipliers: Sides | None = None,
    targets: Sides | None = None,
) -> float:
    """The bound of A·y where z is in an interval, with multipliers or targets as chosen."""
    full = lambda v: torch.full((1, 1, *z.shape), v).double()  # noqa: E731
    choice = Choice(
        multipliers={} if multipliers is None else {z: Multipliers(*map(full, multipliers))},
        targets={} if targets is None else {z: Targets(*map(full, targets))},
    )
    parts = parted(whole, {z: Interval(*(full(end)[0] for end in ends))}, 1)
    with torch.no_grad():
        return float(parts.bound(torch.tensor([[A]]).double(), Rules(), choice))


def test_multipliers_by_hand() -> None:
    whole, z = folded()
    on, off = (0.5, 3.0), (-3.0, -0.5)
    assert one_cut(whole, z, on, [1, 0]) == -3  # the cut alone is not felt behind z
    assert one_cut(whole, z, on, [1, 0], (1.0, 0.0)) == 0.5
    assert one_cut(whole, z, on, [1, 0], (0.5, 0.0)) == 0.25 - 1.5
    assert one_cut(whole, z, on, [1, 0], (2.0, 0.0)) == 1.0 - 3  # too much of it
    assert one_cut(whole, z, on, [1, 0], (-1.0, -1.0)) == -3  # counts as 0
    assert one_cut(whole, z, on, [-1, 0], (0.0, 1.0)) == -3
    assert one_cut(whole, z, off, [-1, 0], (0.0, 1.0)) == 0.5
    assert one_cut(whole, z, off, [-1, 0], (0.0, 0.25)) == 0.125 - 0.75 * 3
    assert one_cut(whole, z, off, [1, 0], (1.0, 0.0)) == -3
    assert one_cut(whole, z, (-1.0, 2.0), [1, 0], (2.0, 1.0)) == -4.0  # 2·(−1) − 1·2
    # relu on one side is linear: −relu(z) ≥ −u needs the other side's multiplier
    assert one_cut(whole, z, on, [0, 1], (1.0, 0.0)) == 0.5
    assert one_cut(whole, z, off, [0, 1]) == 0
    assert one_cut(whole, z, off, [0, -1]) == 0
    assert one_cut(whole, z, on, [1, -1]) == 0


def test_targets_by_hand() -> None:
    """at_least grows until the coefficient is no more than its target, at_most until it is no less than its own."""
    whole, z = folded()
    nan, zero = float("nan"), (0.0, 0.0)
    on, off = (0.5, 3.0), (-3.0, -0.5)
    assert one_cut(whole, z, on, [1, 0], zero, (0.0, nan)) == 0.5
    assert one_cut(whole, z, on, [1, 0], zero, (0.5, nan)) == 0.25 - 1.5
    assert one_cut(whole, z, on, [1, 0], zero, (2.0, nan)) == -3  # it is no more than that as it is
    assert one_cut(whole, z, on, [1, 0], zero, (nan, nan)) == -3
    assert one_cut(whole, z, on, [1, 0], zero, (-float("inf"), nan)) == -3  # no number of steps gets there
    assert one_cut(whole, z, off, [-1, 0], zero, (nan, 0.0)) == 0.5
    assert one_cut(whole, z, off, [-1, 0], zero, (nan, -0.5)) == 0.25 - 1.5
    assert one_cut(whole, z, off, [-1, 0], zero, (nan, -2.0)) == -3
    assert one_cut(whole, z, off, [1, 0], zero, (nan, 0.0)) == -3  # 1 is no less than 0
    given = (0.25, 0.0)
    assert one_cut(whole, z, on, [1, 0], given, (0.0, nan)) == 0.5  # what was given counts
    assert one_cut(whole, z, on, [1, 0], given, (0.9, nan)) == 0.125 - 0.75 * 3  # and stays
    assert one_cut(whole, z, on, [1, 0], (-4.0, 0.0), (0.0, nan)) == 0.5  # from 0 on, not from −4


def test_the_ascent_moves_the_sides_that_are_cut_from_the_start_that_is_given() -> None:
    whole, z = folded()
    full = lambda v: torch.full((1, 1, 1), v).double()  # noqa: E731
    parts = parted(whole, {z: Interval(full(0.5)[0], full(3.0)[0])}, 1)
    A = torch.tensor([[[1.0, 0.0]]]).double()

    def ascended(steps: int, scales: Sides, start: Sides | None = None) -> tuple[float, list[float]]:
        choice = None if start is None else Choice(multipliers={z: Multipliers(*map(full, start))})
        beginning = Beginning(choice=choice, cuts={z: Multipliers(*map(full, scales))}, best=True)
        ascent = Ascent(steps=steps, step_size=0.01)
        done = ascend(parts.question, parts.boxes, parts.on_output(A), Rules(), ascent, beginning=beginning)
        return float(done.bound), [float(side) for side in done.choice.multipliers[z]]

    bound, (least, most) = ascended(30, (1.0, 0.0))
    assert bound > 0.3
    assert (0.9 < least < 1.1, most) == (True, 0)
    assert ascended(30, (0.0, 1.0)) == (-3.0, [0, 0])
    assert ascended(0, (1.0, 1.0), (1.0, 0.0)) == (0.5, [1, 0])
    assert ascended(0, (1.0, 1.0)) == (-3.0, [0, 0])


def test_scores_are_cut_like_any_number() -> None:
    """With z ≥ 1 the first key's share is at least σ(1), and with z ≤ −1 at most σ(−1), whatever the rule."""
    whole, scores = folded(attention=True)
    sigma = torch.tensor(1.0).double().sigmoid().item()
    for rules in RULES.values():
        for sign, want in ((1.0, sigma), (-1.0, -(1 - sigma))):
            low, high = (x.clone() for x in whole.boxes[scores])
            if sign > 0:
                low[0, 0, 0] = 1.0
            else:
                high[0, 0, 0] = -1.0
            parts = parted(whole, {scores: Interval(low, high)}, 1)
            A = torch.tensor([[[0.0, sign]]]).double()
            sides = Multipliers(*(torch.zeros(1, 1, 1, 2).double() for _ in range(2)))
            choice = Choice(multipliers={scores: sides})
            with torch.no_grad():
                linear = backward(parts.question, parts.boxes, parts.on_output(A), rules, choice)
                slope = torch.zeros(()).double() if linear.coefficients is None else linear.coefficients[0, 0, 0]
                sides[0 if sign > 0 else 1][0, 0, 0, 0] = slope.abs()  # x₀'s is the score's own
                found = float(parts.bound(A, rules, choice))
                plain = float(parts.bound(A, rules))
            assert found <= want + 1e-12
            assert found >= plain - 1e-12
            assert found > (sigma if sign > 0 else -(1 - sigma)) - 0.4


def test_the_whole_stays_as_it_was() -> None:
    whole = ready("relu")
    before = dict(whole.boxes.intervals)
    A = objectives(whole.graph, COUNT)
    with torch.no_grad():
        first = whole.bound(A[:1], RULES["affine"])
        parts = made("relu", 1).parts()
        parts.bound(A, RULES["affine"])
        assert torch.equal(whole.bound(A[:1], RULES["affine"]), first)
        both = Ready(whole.question, parts.boxes)  # and without a cache of their own
        assert torch.equal(both.bound(A, RULES["affine"]), parts.bound(A, RULES["affine"]))
        assert torch.equal(whole.bound(A[:1], RULES["affine"]), first)
    assert all(whole.boxes[node] is box for node, box in before.items())
    assert not whole.boxes.inner


def test_the_deadline_is_the_whole_questions() -> None:
    whole, z = folded()
    late = Ready(whole.question.until(0.0), whole.boxes)
    with pytest.raises(OutOfTimeError):
        one_cut(late, z, (0.0, 3.0), [1, 0])
    assert one_cut(whole, z, (0.0, 3.0), [1, 0]) == -3


def test_what_cannot_be_cut_is_refused() -> None:
    whole, _ = folded()
    for node in fixed(whole):
        with pytest.raises(InvalidValueError, match="own box"):
            part_boxes(whole.boxes, {}, [(Split(node, 0, 0.0, at_least=True),)], fixed(whole))
    turned = build.source((2, 1))
    start = build.reshape(turned, (2,), "turned")
    question = asked(
        Graph(turned, build.apply(Relu(), start, name="relu")),
        -torch.ones(1, 2, 1).double(),
        torch.ones(1, 2, 1).double(),
    )
    other = Ready(question, all_boxes(question))
    assert fixed(other) == (turned, start)
    for node in fixed(other):
        with pytest.raises(InvalidValueError, match="own box"):
            part_boxes(other.boxes, {}, [(), (Split(node, 1, 0.5, at_least=False),)], fixed(other))
    two = all_boxes(asked(whole.graph, *(x.expand(2, 2) for x in whole.box)))
    with pytest.raises(InvalidValueError, match="batch of 2"):
        two.parts(1, {}, {})


def test_splits_cut_the_boxes_of_their_parts() -> None:
    """By hand: later splits of a number are inside the earlier; a part without splits is the whole."""
    whole, z = folded()
    parts = [
        (),
        (Split(z, 0, -1.0, at_least=True, size=2.0),),
        (Split(z, 0, 2.0, at_least=False, size=3.0), Split(z, 0, 1.0, at_least=False, size=5.0)),
        (Split(z, 0, -2.0, at_least=True), Split(z, 0, 2.0, at_least=False, size=0.5)),
    ]
    found = part_boxes(whole.boxes, {}, parts, fixed(whole))
    low, high = (float(end) for end in whole.boxes[z])
    assert found.boxes[z].lower.flatten().tolist() == [low, -1.0, low, -2.0]
    assert found.boxes[z].upper.flatten().tolist() == [high, high, 1.0, 2.0]
    assert found.cuts[z].at_least.flatten().tolist() == [0.0, 2.0, 0.0, 1.0]
    assert found.cuts[z].at_most.flatten().tolist() == [0.0, 0.0, 5.0, 0.5]
    assert found.cuts[z].at_least.shape == (4, 1, 1)
    assert (found.boxes.batch, found.boxes.whole) == (4, whole.boxes)
    case = ready("norm")
    inner = inner_ranges(case.question, case.boxes, RULES["affine"])
    node, box = next(iter(inner.items()))
    middle = float(box.centre.flatten()[1])
    cut = part_boxes(case.boxes, inner, [(Split(node, 1, middle, at_least=True, inner=True),), ()], fixed(case))
    assert cut.boxes.inner[node].lower.flatten(1)[0, 1] == middle
    assert torch.equal(cut.boxes.inner[node].lower[1:], box.lower)
    assert torch.equal(cut.boxes.inner[node].upper, box.upper.expand(2, *box.upper.shape[1:]))
    assert not cut.cuts
    assert cut.boxes[node] is case.boxes[node]


def test_a_box_that_became_narrower_after_the_split_stays_a_box() -> None:
    """What the split leaves is met with the new box; ends that cross change places, nothing is discarded as empty."""
    x = build.source((3,))
    node = build.affine(x, torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), "linear")
    ends = torch.tensor([[-1.0, -1.0, 0.5]]).double(), torch.tensor([[1.0, 0.25, 1.0]]).double()
    whole = Boxes(1, {x: Interval(*ends), node: Interval(*ends)})
    splits = (
        Split(node, 0, 0.5, at_least=True),
        Split(node, 1, 0.5, at_least=False),
        Split(node, 2, 0.25, at_least=False),
    )
    found = part_boxes(whole, {}, [splits, ()], [x]).boxes[node]
    assert found.lower.tolist() == [[0.5, -1.0, 0.25], ends[0][0].tolist()]
    assert found.upper.tolist() == [[1.0, 0.25, 0.5], ends[1][0].tolist()]
