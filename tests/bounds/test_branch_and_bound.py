"""Branch and bound: its parts cover the set, no bound is above a value, and it ends as it says."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import pytest
import torch

from tests.bounds.branching_cases import (
    CONFIGS,
    MARGINS,
    QUICK,
    TOLERANCE,
    Tree,
    attention,
    check_witness,
    grown,
    held_by,
    least,
    slack,
    truth,
)
from tests.bounds.checks import tightened
from tests.bounds.networks import Config, input_box, transformer
from tests.slowly import few
from vertex_softmax.bounds import branch_and_bound
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search, Stop
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.ops.rules import RowRule

torch.set_num_threads(1)


def check_cuts(tree: branch_and_bound.BranchAndBound, leaves: list[Part]) -> None:
    """Every box of a leaf is what the splits leave of the root's, and just the cut sides have multipliers."""
    made, cuts = tree._boxes_of(leaves)
    for node, inner in {(split.node, split.inner) for leaf in leaves for split in leaf.splits}:
        root, cut = (tree.inner, made.inner) if inner else (tree.boxes, made)
        low, high = (x.expand(len(leaves), *x.shape[1:]).flatten(1).clone() for x in root[node])
        for k, leaf in enumerate(leaves):
            for split in (s for s in leaf.splits if s.node is node and s.inner is inner):
                assert low[k, split.place] < split.point < high[k, split.place], "not split inside"
                (low if split.at_least else high)[k, split.place] = split.point
        for end, found in zip((low, high), cut[node], strict=True):
            assert torch.equal(found.flatten(1), end)
        for end, whole, scale in zip((low, high), root[node], () if inner else cuts[node], strict=not inner):
            assert torch.equal(scale.flatten(1) > 0, end != whole.flatten(1))


@pytest.mark.parametrize(
    ("rule", "name"),
    few(
        itertools.product([RowRule.AFFINE, RowRule.LSE, RowRule.VERTEX], CONFIGS),
        lambda rule, name: rule is RowRule.AFFINE or name == "norm",
    ),
)
def test_bounds_are_anytime_and_never_above_a_value(name: str, rule: RowRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the parts cover the set: each point is in a part of every objective, whose bound is at most its value."""
    whole = attention(name)
    best, x = least(whole, MARGINS)
    values = whole.graph.values(x)
    at = values[whole.graph.output] @ MARGINS.mT  # (points, 3)
    goals = torch.stack([best[0] + 1, best[1] - 0.02, best[2] - 0.3])
    known = torch.stack([best[0] - 5, best[1] - 0.5, best[2] - torch.inf])
    seen, before, calls = Tree(monkeypatch), known, []
    for domains in (1, 12, 40):
        said: list[tuple[float, int, int]] = []
        search = dataclasses.replace(QUICK, domains=domains)
        progress = functools.partial(lambda said, *now: said.append(now), said)
        more = {"known": known, "goals": goals, "accept": lambda *_: False, "progress": progress}
        out = grown(whole, MARGINS, search, rule, **more)
        assert (out.bound >= torch.maximum(known, before)).all()
        assert (out.bound <= best + slack(best)).all()
        assert (out.witness, out.stopped in (Stop.DOMAINS, Stop.EXHAUSTED), bool(out.open[0] > 0)) == (None, True, True)
        before = out.bound
        calls.append(out.domains)
        assert [worst for worst, _, _ in said] == sorted(worst for worst, _, _ in said)
        assert said[-1][0] == pytest.approx(float((out.bound - goals)[out.open > 0].min()))
        assert said[-1][1:] == (int(out.open.sum()), out.domains)
        assert all(worst <= -1 + 1e-9 for worst, _, _ in said)
    assert calls == sorted(calls)
    # the tree of the last search
    for taken, parts in seen.steps[1:]:
        assert len(parts) == 2 * len(taken)
        for domain in taken:
            mine = [d for d in parts if d.objective == domain.objective and d.splits[:-1] == domain.splits]
            assert [d.splits[-1].at_least for d in mine] in ([True, False], [False, True])
            one, other = (d.splits[-1] for d in mine)
            assert (one.node, one.place, one.point) == (other.node, other.place, other.point)
            assert all(d.bound >= domain.bound for d in mine)
    assert sum(len(parts) for _, parts in seen.steps) == out.domains
    check_cuts(seen.tree, seen.leaves)
    open_ = [d for d in seen.leaves if not d.bound > float(goals[d.objective])]
    assert {id(d) for d in open_} == {id(d) for d in seen.tree.frontier.open_parts()}
    assert [sum(d.objective == k for d in open_) for k in range(3)] == out.open.tolist()
    for k in range(3):
        leaves = [d for d in seen.leaves if d.objective == k]
        assert float(out.bound[k]) == min(d.bound for d in leaves)
        where = torch.stack([held_by(d, values) for d in leaves])  # (leaves, points)
        assert where.any(0).all(), "a point of the set is in no part"
        bounds = torch.tensor([d.bound for d in leaves])
        over = torch.where(where, bounds[:, None], -torch.inf).amax(0) - at[:, k]
        assert (over <= slack(at[:, k])).all(), "a part's bound is above a value in it"


def test_single_precision_is_as_sound_to_its_own_rounding() -> None:
    config = CONFIGS["relu"]
    lower, upper = (x.float() for x in input_box(config, 1, 0.3, 1))
    whole = tightened(transformer(config).to(torch.float32), lower, upper)
    out = grown(whole, MARGINS.float(), accept=lambda *_: False, goals=torch.full((3,), 9.0))
    best, _ = least(attention("relu"), MARGINS)
    assert out.bound.dtype == torch.float32
    assert (out.bound <= best + 1e-4).all()


EVERY = dataclasses.replace(QUICK, domains=300, width=32, every=1, ascent=Ascent(steps=30, step_size=0.1, sums=False))


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 15), marks=pytest.mark.slow)], ids=["six", "others"])
@pytest.mark.parametrize("search", [dataclasses.replace(QUICK, domains=300), EVERY], ids=["few steps", "many"])
def test_no_wrong_answer_about_tiny_relu_networks(search: Search, seeds: range) -> None:
    done = total = 0
    for seed in seeds:
        whole, A, least_ = truth(seed)
        for margin in (0.3, 1e-3, 1e-9, -1e-9, -1e-3, -0.3):
            goals = torch.tensor([least_ - margin], dtype=torch.float64)
            out = grown(whole, A, search, goals=goals)
            assert float(out.bound) <= least_ + TOLERANCE * (1 + abs(least_))
            assert (out.stopped == "done") == (out.open[0] == 0)
            assert (float(out.bound) > float(goals)) == (out.stopped == "done")
            if margin < 0:
                assert out.stopped != "done", (seed, margin)
            elif margin > 1e-6:
                assert out.stopped != "witness", (seed, margin)
                done, total = done + (out.stopped == "done"), total + 1
            if out.witness is not None:
                assert (out.stopped, out.broken) == ("witness", 0)
                check_witness(whole, A, goals, out)
    assert done >= (0.6 if search is not EVERY else 0.9) * total, f"{done} of {total} true ones were shown"


def test_no_wrong_answer_about_tiny_attentions() -> None:
    """Two inputs: the minimum is that of a grid, to 1e-3."""
    done = 0
    for seed in range(3):
        config = Config(tokens=2, inputs=1, width=2, classes=2, activation=("relu", "gelu", "none")[seed], seed=seed)
        lower, upper = input_box(config, 1, 0.4, seed)
        whole = tightened(transformer(config), lower, upper)
        steps = torch.linspace(0, 1, 161).double()
        x = lower[0, :, 0] + torch.cartesian_prod(steps, steps) * (upper - lower)[0, :, 0]
        A = torch.tensor([[1.0, -1.0]]).double()
        best = (whole.graph.evaluate(x.unsqueeze(-1)) @ A.mT).amin()
        for margin in (0.1, -2e-3):
            goals = (best - margin)[None]
            out = grown(whole, A, dataclasses.replace(QUICK, domains=120), goals=goals)
            assert float(out.bound) <= float(best) + TOLERANCE
            assert out.stopped != ("done" if margin < 0 else "witness")
            done += out.stopped == "done"
            if out.witness is not None:
                check_witness(whole, A, goals, out)
    assert done >= 2
