"""The last passes of a method: what is known of the objectives counts, and ends an ascent that does not reach it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from tests.bounds.checks import asked, check_bounds, hard_points, objectives
from tests.bounds.networks import input_box, transformer
from tests.bounds.test_backward import CONFIGS
from vertex_softmax.bounds import ascent
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.methods.crown import alpha_crown, crown
from vertex_softmax.methods.options import Options

STEPS = 30
OPTIONS = Options(ascent=Ascent(steps=STEPS, trend=True))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One number for every pass that an ascent makes."""
    made: list[int] = []
    plain = ascent.lower_bound

    def counted(*arguments: object) -> Tensor:
        made.append(len(made))
        return plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ascent, "lower_bound", counted)
    return made


@pytest.mark.parametrize("name", ["plain", "two blocks"])
def test_what_is_out_of_reach_ends_the_ascent(name: str, passes: list[int]) -> None:
    """Far above it: fewer steps. Far below it: as without it, bit for bit. Never above a point of the set."""
    config = dataclasses.replace(CONFIGS[name], seed=15)
    graph, box = transformer(config), input_box(config, 2, 0.05)
    question, A = asked(graph, *box), objectives(graph, 2)
    objective = Objective.dense(graph.output, A)
    boxes = crown(question, objective, OPTIONS).boxes
    plain = alpha_crown(question, objective, OPTIONS, boxes)
    of_plain = len(passes)
    passes.clear()
    low = alpha_crown(question, objective, OPTIONS, boxes, torch.full_like(plain.lower, -1e6))
    assert torch.equal(low.lower, plain.lower)
    assert len(passes) == of_plain
    passes.clear()
    high = alpha_crown(question, objective, OPTIONS, boxes, plain.lower + 1e6)
    assert torch.equal(high.lower, plain.lower + 1e6)
    assert len(passes) < of_plain
    check_bounds(graph, plain.lower, A, hard_points(graph, *box))


def test_a_bound_that_is_no_number_stays_one() -> None:
    """NaN in what is known is not overlooked."""
    config = dataclasses.replace(CONFIGS["plain"], seed=16)
    graph, box = transformer(config), input_box(config, 2, 0.05)
    question, A = asked(graph, *box), objectives(graph, 2)
    known = torch.full(A.shape[:2], -1e6, dtype=A.dtype)
    known[1, 0] = torch.nan
    found = alpha_crown(question, Objective.dense(graph.output, A), OPTIONS, None, known).lower
    assert found[1, 0].isnan()
    assert found[0].isfinite().all()
