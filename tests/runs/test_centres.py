"""`falsified` is said of a point of the set that the model itself misclassifies, by more than rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

from tests.graph.onnx_models import model as onnx_model
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import Box, LinfBall, TokenBall
from vertex_softmax.sets.loading import read

DOUBLE = torch.float64


def linear(*layers: tuple[list[list[float]], list[float]], dtype: torch.dtype = DOUBLE) -> nn.Sequential:
    """Linear layers with these weights and biases, and ReLU between them."""
    parts: list[nn.Module] = []
    for weight, bias in layers:
        layer = nn.Linear(len(weight[0]), len(weight), dtype=dtype)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(weight, dtype=DOUBLE))
            layer.bias.copy_(torch.tensor(bias, dtype=DOUBLE))
        parts += [layer, nn.ReLU()]
    return nn.Sequential(*parts[:-1]).eval()


THREE = torch.full((1, 1), 3.0, dtype=DOUBLE)
CANCELS = linear(([[1.0], [0.0]], [1e17, 1.0]), ([[1.0, -1e17], [0.0, 0.0]], [0.0, 0.5]))  # in real numbers (x, 0.5)
CANCELS_ONCE = read(CANCELS)
"""The same, exported once for all methods."""
WRONG = linear(([[1.0, 2.0], [-1.0, 1.0]], [0.1, 0.2]), ([[1.0, 0.5], [1.0, 1.0], [0.0, 0.0]], [0.0, 0.0, 0.0]))
WRONG_ONCE = read(WRONG)
"""One whose centres are misclassified, exported once as well."""


@pytest.mark.parametrize("method", METHODS)
def test_a_margin_that_rounding_made_is_no_counterexample(method: str) -> None:
    with torch.no_grad():
        logits = CANCELS(THREE)[0]
    assert logits[0] < logits[1]  # in float64, where 1e17 + 3 − 1e17 is 0
    found = certify(CANCELS_ONCE, LinfBall(THREE, 0.5), 0, method)
    assert found.verdict is Verdict.UNKNOWN
    assert found.reasons[0].startswith("the margin at the centre of the set is -0.5, but it is not certain")


def test_what_single_precision_sees_is_judged_in_double_precision() -> None:
    model = linear(([[0.0], [0.0]], [1.0, 1.0]), ([[1000.000029, 0.000029], [1000.00005, 0.0]], [0.0, 0.0]))
    with torch.no_grad():
        assert float(model(THREE)[0] @ torch.tensor([1.0, -1.0], dtype=DOUBLE)) > 0
    found = certify(model, LinfBall(THREE, 0.5), 0, "crown", dtype=torch.float32)
    assert float(found.clean.amin()) < 0
    assert found.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("method", METHODS)
def test_a_misclassified_centre_is_falsified(method: str) -> None:
    x = torch.tensor([[0.5, 0.9], [0.3, 0.2]], dtype=DOUBLE)
    with torch.no_grad():
        margins = [float(row[0] - row[1]) for row in WRONG(x)]
    assert max(margins) < 0
    for dtype in (torch.float64, torch.float32):
        found = certify(WRONG_ONCE, LinfBall(x, 0.01), 0, method, dtype=dtype)
        assert found.verdicts == (Verdict.FALSIFIED,) * 2
        assert found.reasons[0] == f"the centre of the set is itself misclassified (margin {margins[0]:.6g})"
        graph = WRONG_ONCE.graph(LinfBall(x, 0.01))
        assert certify(graph, LinfBall(x, 0.01), 0, method, dtype=dtype).verdicts == found.verdicts


class Shifted(nn.Module):
    """(1 + x, 1 + 2⁻³⁰): in single precision both are 1 at x = 0."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(1))
        self.little = nn.Parameter(torch.tensor([2.0**-30]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one + x, self.one + self.little + 0 * x], -1)


def test_the_model_itself_has_to_misclassify_it_in_its_own_precision(tmp_path: Path) -> None:
    module, x = Shifted().eval(), torch.zeros(1, 1)
    with torch.no_grad():
        assert module(x).tolist() == [[1.0, 1.0]]
        assert module.double()(x.double()).diff().item() == 2.0**-30
    assert certify(module, LinfBall(x, 0.0), 0, "crown").verdict is Verdict.FALSIFIED
    assert certify(module.float(), LinfBall(x, 0.0), 0, "crown").verdict is Verdict.UNKNOWN
    for dtype, expected in ((np.float64, Verdict.FALSIFIED), (np.float32, Verdict.UNKNOWN)):
        nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["g"])]
        nodes.append(helper.make_node("Add", ["g", "one"], ["y"]))
        constants = {"w": np.array([[1.0, 0.0]]), "b": np.array([0.0, 2.0**-30]), "one": np.ones(2)}
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        stored = {name: value.astype(dtype) for name, value in constants.items()}
        path = tmp_path / f"{np.dtype(dtype).name}.onnx"
        onnx.save(onnx_model(nodes, (1, 1), stored, opset=17, dtype=kind), path)
        assert certify(path, LinfBall(x, 0.0), 0, "crown").verdict is expected


def test_the_centre_is_the_sets_own() -> None:
    model = linear(([[1.0], [0.0]], [0.0, 0.1]))
    x = torch.zeros(1, 1, dtype=DOUBLE)
    ball = LinfBall(x, 0.5, clip=(0, 1))  # the middle of [0, 0.5] is classified as 0, and x is not
    found = certify(model, ball, 0, "crown")
    assert found.clean[0, 1].item() == -0.1
    assert found.verdict is Verdict.FALSIFIED
    assert certify(model, Box(ball.lower, ball.upper), 0, "crown", attack=None).verdict is Verdict.UNKNOWN
    assert certify(model, Box(ball.lower, ball.upper, reference=x), 0, "crown", attack=None).reasons == found.reasons
    wide = Box(np.array([[-1.5e308]]), np.array([[1.7e308]]))  # the sum of the ends overflows
    assert certify(model, wide, 0, "ibp").clean.isfinite().any()


class Words(nn.Module):
    """The class of a sentence is that of the sum of its words' embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 2)
        with torch.no_grad():
            self.words.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 2.0]]))

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids).sum(1)


def test_sentences_are_asked_by_their_ids() -> None:
    ball = TokenBall.of(model := Words().eval(), torch.tensor([[0, 2], [1, 3], [2, 0]]), 0.01)
    assert certify(model, ball, 0, "crown").verdicts == (Verdict.VERIFIED, Verdict.FALSIFIED, Verdict.VERIFIED)
