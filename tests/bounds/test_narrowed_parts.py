"""Parts that are narrowed: no input at the level or below is ever lost, and bounds are true."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tests.bounds.branching_cases import CONFIGS, MARGINS, QUICK, attention, grown, least
from tests.bounds.checks import Ready, check_boxes
from tests.bounds.test_narrowing import holds, near_the_least
from tests.slowly import few
from vertex_softmax.bounds import narrowed_parts
from vertex_softmax.bounds.aims import Aim, Outcome, Search, Stop, Watchers
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.narrowed_parts import NarrowedParts, PartTree, Rest, TreeSize, open_pieces
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.splits import Split
from vertex_softmax.bounds.tree_attack import TreeAttack
from vertex_softmax.graph.ir import Node
from vertex_softmax.methods.boxes import tightened_boxes
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.cut_region import CutRegion

torch.set_num_threads(1)
RULES = Rules(attention=RowRule.AFFINE, pieces=2)
RADIUS = 0.1
"""So large that one linear bound is not enough."""
SEARCH = dataclasses.replace(QUICK, domains=70)


@pytest.fixture(autouse=True)
def small_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that parts of parts of parts are narrowed."""
    monkeypatch.setattr(narrowed_parts, "WHOLE", TreeSize(pieces=4, first=8, most=8))
    monkeypatch.setattr(narrowed_parts, "DEEPER", TreeSize(pieces=2, first=4, most=8))


class Watched:
    """A search of one objective, and what it made boxes of."""

    def __init__(self, whole: Ready, A: Tensor, goal: float, how: Search = SEARCH, **watchers: object) -> None:
        self.whole = whole
        self.made: list[Boxes] = []
        goals = A.new_tensor([goal])
        heard = Watchers(**{"accept": lambda *_: False, **watchers})  # type: ignore[arg-type]
        self.search = NarrowedParts(Aim(A[None], goals), goal + 1e-9, RULES, how, heard, self.make)

    def make(self, question: Question, known: Sequence[Boxes]) -> Boxes:
        boxes = tightened_boxes(question, Options(), known, again=True)
        self.made.append(boxes)
        return boxes

    def run(self, deadline: float | None = None) -> Outcome:
        question = self.whole.question.until(deadline)
        return self.search.run(Rest(question, self.whole.boxes, Part(0)))

    def lost(self, x: Tensor) -> list[int]:
        """Which of the points (n, *input shape) lie in nothing that is open."""
        values = self.whole.graph.values(x)
        open_ = [(rest.question.given, rest.part) for rest in self.search.waiting]
        open_ += [(self.whole.question.given, part) for part in self.search.stuck]
        return [
            k
            for k in range(len(x))
            if not any(
                is_in(part.splits, values, k) and (not isinstance(given, CutRegion) or holds(given, x[k]))
                for given, part in open_
            )
        ]


def is_in(splits: Sequence[Split], values: dict[Node, Tensor], k: int) -> bool:
    """Whether a point takes all splits; of numbers that ops compute on the way nothing is asked."""
    for split in splits:
        if not split.inner:
            value = float(values[split.node][k].flatten()[split.place])
            off = 1e-9 * (1 + abs(split.point))
            if not (value >= split.point - off if split.at_least else value <= split.point + off):
                return False
    return True


@pytest.mark.parametrize(
    ("name", "share"),
    few(itertools.product(CONFIGS, (0.0, 0.02, 0.2)), lambda name, share: share == 0.02 and name in {"relu", "gated"}),
)
def test_no_input_at_the_goal_is_ever_lost(name: str, share: float) -> None:
    """The goal is not below the least value: whatever is cut off and closed, the inputs below the goal stay open."""
    whole = attention(name, RADIUS)
    values, x = near_the_least(whole, MARGINS[0])
    goal = float(values[0] + share * (values[-1] - values[0]))
    watched = Watched(whole, MARGINS[0], goal)
    found = watched.run()
    assert watched.made, "nothing was narrowed"
    assert found.stopped in (Stop.DOMAINS, Stop.EXHAUSTED)
    assert float(found.bound) <= float(values[0]) + 1e-10
    low = x[values <= goal][:100]
    assert not watched.lost(low)


@pytest.mark.parametrize("name", few(CONFIGS, lambda name: name in {"relu", "norm"}))
def test_boxes_hold_in_every_rest(name: str) -> None:
    """At points of the whole set that lie in a rest's set and take its splits."""
    whole = attention(name, RADIUS)
    values, x = near_the_least(whole, MARGINS[1])
    watched = Watched(whole, MARGINS[1], float(values[0] + 0.1 * (values[-1] - values[0])))
    watched.run()
    everywhere = whole.graph.values(x)
    met = 0
    for rest in watched.search.waiting:
        given = rest.question.given
        inside = [k for k in range(len(x)) if is_in(rest.part.splits, everywhere, k)]
        inside = [k for k in inside if not isinstance(given, CutRegion) or holds(given, x[k])][:50]
        if inside:
            met += 1
            check_boxes(whole.graph, rest.boxes, x[inside].unsqueeze(1))
    assert met


def parts_are_dropped(pieces: Sequence[Part], leaves: Sequence[Part]) -> list[Part]:
    """Half of them, those in which the least values are thought to be."""
    found = sorted(open_pieces(pieces, leaves), key=lambda piece: piece.bound)
    return found[(len(found) + 1) // 2 :]


def sides_are_swapped(pieces: Sequence[Part], leaves: Sequence[Part]) -> list[Part]:
    """Each piece is the other side of its last split."""
    found = []
    for piece in open_pieces(pieces, leaves):
        *before, last = piece.splits
        other = dataclasses.replace(last, at_least=not last.at_least)
        found.append(dataclasses.replace(piece, splits=(*before, other)))
    return found[:1]


def turned(question: Question, linear: object, level: float) -> CutRegion | None:
    """The half-space turned round: what has to be kept is cut off."""
    cut = REAL(question, linear, level)  # type: ignore[arg-type]
    return None if cut is None else dataclasses.replace(cut, slope=-cut.slope, limit=-cut.limit - 1e-6)


REAL = narrowed_parts.left_over
FAULTS: dict[str, tuple[str, Callable[..., object]]] = {
    "parts are dropped": ("open_pieces", parts_are_dropped),
    "a wrong side": ("open_pieces", sides_are_swapped),
    "a half-space is turned": ("left_over", turned),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention("relu", RADIUS)
    values, x = near_the_least(whole, MARGINS[0])
    goal = float(values[0] + 0.02 * (values[-1] - values[0]))
    monkeypatch.setattr(narrowed_parts, *FAULTS[fault])
    watched = Watched(whole, MARGINS[0], goal)
    found = watched.run()
    low = x[values <= goal][:100]
    assert watched.lost(low) or found.stopped is Stop.DONE or float(found.bound) > float(values[0]) + 1e-10


@pytest.mark.parametrize("name", few(["relu", "gelu", "gated"], lambda name: name == "relu"))
def test_it_decides_what_a_tree_over_given_boxes_does_not(name: str) -> None:
    whole = attention(name, RADIUS)
    (lowest,), _ = least(whole, MARGINS[:1])
    goal = lowest - 1e-4
    tree = grown(
        whole, MARGINS[:1], dataclasses.replace(SEARCH, domains=600), goals=goal[None], accept=lambda *_: False
    )
    watched = Watched(whole, MARGINS[0], float(goal), dataclasses.replace(SEARCH, domains=600))
    found = watched.run()
    assert not float(tree.bound) > float(goal)
    assert found.stopped is Stop.DONE
    assert float(goal) < float(found.bound) <= float(goal) + 1e-9 <= float(lowest)
    assert found.open.tolist() == [0]


def tree_of(whole: Ready, goal: float) -> PartTree:
    """A tree over the boxes of the whole set, with its root."""
    goals = MARGINS[0].new_tensor([goal])
    rest = Rest(whole.question, whole.boxes, Part(0))
    heard = Watchers(accept=lambda *_: False)
    with torch.no_grad():
        return PartTree(rest, Aim(MARGINS[:1], goals), RULES, SEARCH, heard, TreeAttack(0.0))


@pytest.mark.parametrize(("narrow", "fewer"), [(math.inf, True), (-1.0, False)])
def test_pieces_are_as_few_as_are_narrow(narrow: float, fewer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention("relu", RADIUS)
    (lowest,), _ = least(whole, MARGINS[:1])
    monkeypatch.setattr(narrowed_parts, "NARROW", narrow)
    tree = tree_of(whole, float(lowest) + 1e-2)  # above the least value: some part stays open
    with torch.no_grad():
        pieces = tree.pieces(TreeSize(pieces=8, first=16, most=16, fewest=2), float(lowest) + 1e-2, 0.0)
    assert pieces
    assert all(any(leaf.splits[: len(p.splits)] == p.splits for p in pieces) for leaf in tree.frontier.open_parts())
    assert (max(len(piece.splits) for piece in pieces) == 1) is fewer


@pytest.mark.parametrize(("seconds", "larger"), [(0.0, False), (1e6, True)])
def test_where_boxes_take_long_trees_are_larger(seconds: float, larger: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention("relu", RADIUS)
    (lowest,), _ = least(whole, MARGINS[:1])
    monkeypatch.setattr(narrowed_parts, "LARGEST", 64)
    monkeypatch.setattr(narrowed_parts, "promises", lambda *_: True)
    tree = tree_of(whole, float(lowest) + 1e-2)
    with torch.no_grad():
        tree.pieces(TreeSize(pieces=4, first=8, most=8), float(lowest) + 1e-2, seconds)
    assert (tree.bounded >= 64) is larger
    assert tree.bounded < 128


def test_a_rest_is_narrowed_though_a_tree_knows_a_better_bound() -> None:
    """What its own linear bound gains counts, round for round."""
    whole = attention("relu", RADIUS)
    (lowest,), _ = least(whole, MARGINS[:1])
    goal = float(lowest) - 1e-4
    rounds = []
    for known in (-math.inf, goal - 1e-6):
        watched = Watched(whole, MARGINS[0], goal)
        with torch.no_grad():
            found = watched.search._narrowed(Rest(whole.question, whole.boxes, Part(0, bound=known)))
        rounds.append(len(watched.made))
        assert found.part.bound >= known
    assert rounds[0] == rounds[1] > 1


def test_a_witness_ends_it_and_is_told() -> None:
    whole = attention("relu", RADIUS)
    (lowest,), _ = least(whole, MARGINS[:1])
    goal = float(lowest) + 1e-2
    watched = Watched(whole, MARGINS[0], goal, accept=lambda *told: told[1] == 0)
    found = watched.run()
    assert found.stopped is Stop.WITNESS
    assert found.broken == 0
    assert found.witness is not None
    assert float((MARGINS[0] * whole.graph.evaluate(found.witness[None])[0]).sum()) <= goal


def test_without_time_all_is_open_and_nothing_is_known() -> None:
    watched = Watched(attention("relu", RADIUS), MARGINS[0], 0.0)
    found = watched.run(time.perf_counter() - 1.0)
    assert found.stopped is Stop.SECONDS
    assert found.open.tolist() == [1]
    assert float(found.bound) == -torch.inf


def test_progress_is_told_with_what_is_open() -> None:
    whole = attention("gelu", RADIUS)
    (lowest,), _ = least(whole, MARGINS[:1])
    told: list[tuple[float, int, int]] = []
    watched = Watched(whole, MARGINS[0], float(lowest) - 1e-4, progress=lambda *each: told.append(each))
    watched.run()
    assert told
    assert all(bounded <= later for (_, _, bounded), (_, _, later) in itertools.pairwise(told))
    assert all((count == 0) == (worst > 0) for worst, count, _ in told)


def test_pieces_are_those_with_an_open_leaf() -> None:
    node = attention("relu", RADIUS).nodes[3]
    above, below = (Split(node, 0, 0.5, at_least=side) for side in (True, False))
    deep = Split(node, 1, 0.25, at_least=True)
    pieces = [Part(0, (above,), bound=-2.0), Part(0, (below,), bound=-1.0)]
    assert [p.bound for p in open_pieces(pieces, [Part(0, (above, deep), bound=-1.5)])] == [-1.5]
    both = open_pieces(pieces, [Part(0, (below,), bound=-1.0), Part(0, (above,), bound=-3.0)])
    assert {p.splits: p.bound for p in both} == {(below,): -1.0, (above,): -2.0}
    with pytest.raises(ValueError, match="unpack"):
        open_pieces(pieces, [Part(0, (deep,), bound=-1.0)])
