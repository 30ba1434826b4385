from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.runs.made import inputs, subject_of
from vertex_softmax.bounds.question import Question
from vertex_softmax.runs.slack import slack_map


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_boxes_contain_the_balls(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every precision: ends of balls are rounded outward, as `certify` rounds them."""
    some, boxes, over = inputs(), [], Question.over

    def watched(graph: Any, region: Any, **more: Any) -> Question:
        boxes.append(region.box)
        return over(graph, region, **more)

    monkeypatch.setattr(Question, "over", watched)
    ball = some.ball(0.1)
    graph = subject_of(some).graph.to(dtype, "cpu")
    slack_map(graph, ball, some.labels.tolist(), [(int(label) + 1) % 3 for label in some.labels], 0.1)
    lower, upper = (torch.cat(ends).double() for ends in zip(*boxes, strict=True))
    assert bool((lower <= ball.lower.reshape(lower.shape)).all())
    assert bool((upper >= ball.upper.reshape(upper.shape)).all())
