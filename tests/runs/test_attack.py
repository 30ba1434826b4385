"""The attack on models as `certify` takes them: the same margins whichever way the model is given."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import vertex_softmax as vx
from tests.graph.onnx_models import model as onnx_model
from tests.runs.made import inputs, network
from tests.runs.test_counterexamples import IDS, Sentence
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets.loading import read


def test_modules_and_graphs_are_attacked_alike() -> None:
    some = inputs()
    for ball in (vx.LinfBall(some.x, 0.1, clip=(0, 1)), vx.LpBall(some.x, 0.5, 2), vx.LpBall(some.x, 1.0, 1)):
        beside = pgd(network(), ball, some.labels, steps=5)
        graph = vx.load(network(), ball)
        for model in (network(), read(network()), graph):
            found = vx.attack(model, ball, some.labels, steps=5)
            torch.testing.assert_close(found.margins, beside.margins, rtol=1e-7, atol=1e-9)
            assert all(ball.contains(found.inputs[:, t]).all() for t in range(3))


def test_files_are_attacked(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = np.array([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]])
    path = tmp_path / "m.onnx"
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(np.float64))
    onnx.save(onnx_model(nodes, (1, 2), {"w": weights}, opset=17, dtype=kind), path)
    ball = vx.LpBall(torch.tensor([[2.0, 0.0], [0.0, 1.0]]).double(), 0.5, 2)
    found = vx.attack(path, ball, [0, 1])
    W = torch.from_numpy(weights.T)
    least = ball.support(W[[0, 1]][:, None] - W[None])
    least[[0, 1], [0, 1]] = math.inf
    torch.testing.assert_close(found.margins, least, rtol=0, atol=1e-9)


def test_sentences_positions_and_targets() -> None:
    model = Sentence().eval()
    ball = vx.TokenBall.of(model, IDS, 0.5, tokens=[0])
    found = vx.attack(model, ball, 2, position=-1, targets=[0, 5], steps=4)
    assert found.margins.isfinite().nonzero()[:, 1].tolist() == [0, 5] * 3
    for i in range(3):
        alone = vx.attack(model, ball[i], 2, position=-1, targets=[0, 5], steps=4)
        torch.testing.assert_close(alone.margins[0], found.margins[i])
        for t in (0, 5):
            logits = model.after(found.inputs[i : i + 1, t])[0, -1]
            torch.testing.assert_close(logits[2] - logits[t], found.margins[i, t])
            assert ball[i].contains(found.inputs[i : i + 1, t]).all()
    with pytest.raises(InvalidValueError, match="position=-1"):
        vx.attack(model, ball, 2)
    with pytest.raises(InvalidTypeError, match="give a LinfBall"):
        vx.attack(model, torch.zeros(3, 3, 4), 2)
