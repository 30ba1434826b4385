"""`certify` and `bound`: what they answer, what they refuse, and that nothing broken is ever called verified."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import Config, samples, transformer
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs import certify as api
from vertex_softmax.sets import LinfBall

QUICK = Options(
    ascent=Ascent(steps=2),
    search=Search(seconds=None, domains=6, tried=2, root=Ascent(steps=2), ascent=Ascent(steps=2, step_size=0.01)),
)
certify = functools.partial(api.certify, options=QUICK)
bound = functools.partial(api.bound, options=QUICK)
CONFIG = Config(heads=2, classes=4, seed=3)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def graph() -> Graph:
    return transformer(CONFIG)


def inputs(count: int = 3, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, CONFIG.tokens, CONFIG.inputs, generator=g, dtype=torch.float64)


def labels(graph: Graph, x: Tensor) -> Tensor:
    return graph.evaluate(x).argmax(-1)


# Answers


@pytest.mark.parametrize("method", METHODS)
def test_small_balls_are_verified_and_large_ones_unknown(graph: Graph, method: str) -> None:
    x = inputs()
    small = certify(graph, LinfBall(x, 1e-6), labels(graph, x), method)
    assert small.verdicts == (Verdict.VERIFIED,) * 3
    assert small.verdict == "verified"
    assert small.certified.all()
    assert small.reasons == ("", "", "")
    assert small.method == method
    assert (small.lower <= small.clean).all()
    assert torch.allclose(small.lower.clamp(max=1e9), small.clean.clamp(max=1e9), atol=1e-2)
    large = certify(graph, LinfBall(x, 30.0), labels(graph, x), method)
    assert "verified" not in large.verdicts
    assert not large.certified.any()
    assert all(large.reasons)


@pytest.mark.parametrize("method", METHODS)
def test_the_label_has_margin_inf_and_the_others_their_bounds(graph: Graph, method: str) -> None:
    x = inputs()
    which = labels(graph, x)
    found = certify(graph, LinfBall(x, 0.05), which, method)
    assert found.lower.shape == (3, 4)
    for b in range(3):
        assert found.lower[b].isinf().tolist() == [j == which[b] for j in range(4)]
        assert found.clean[b].isinf().tolist() == [j == which[b] for j in range(4)]
        assert float(found.worst[b]) == float(found.lower[b].min())
    ball = LinfBall(x, 0.05)
    at = samples(ball.lower, ball.upper, 200)
    y = graph.evaluate(at)
    margins = y.gather(-1, which.expand(200, 3).unsqueeze(-1)) - y
    margins = margins.scatter(-1, which.expand(200, 3).unsqueeze(-1), torch.inf)
    assert (found.lower <= margins.amin(0) + 1e-9).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_misclassified_centre_is_falsified(graph: Graph, method: str) -> None:
    x = inputs()
    right = labels(graph, x)
    wrong = right.clone()
    wrong[1] = (right[1] + 1) % 4
    found = certify(graph, LinfBall(x, 1e-6), wrong, method)
    assert found.verdicts == ("verified", "falsified", "verified")
    assert found.verdict == "falsified"
    assert "misclassified" in found.reasons[1]
    assert found.certified.tolist() == [True, False, True]


@pytest.mark.parametrize("method", METHODS)
def test_every_margin_has_to_be_positive(method: str) -> None:
    x = build.source((1,))
    scores = torch.tensor([[0.0], [1.0], [1.0]], dtype=torch.float64)
    graph = Graph(x, build.affine(x, scores, torch.tensor([0.0, -5.0, 0.0], dtype=torch.float64), "scores"))
    found = certify(graph, LinfBall(torch.tensor([[-0.5]], dtype=torch.float64), 1.0), 0, method, attack=None)
    assert found.verdicts == ("unknown",)
    assert "to class 2 is not positive" in found.reasons[0]
    assert float(found.lower[0, 1]) > 4
    assert float(found.lower[0, 2]) < 0


def test_a_tie_is_not_verified() -> None:
    x = build.source((2,))
    graph = Graph(x, build.affine(x, torch.tensor([[1.0, 1], [1, 1]]).double(), None, "same"))
    found = certify(graph, LinfBall(torch.ones(1, 2).double(), 0.0), 0, "crown")
    assert found.verdict == "unknown"
    assert "not positive" in found.reasons[0]


def test_a_batch_is_its_singles_whatever_the_parts(graph: Graph) -> None:
    x = inputs(5)
    ball, which = LinfBall(x, torch.tensor([0.01, 0.1, 0.3, 0.0, 1.0]).double()), labels(graph, x)
    whole = certify(graph, ball, which)
    parts = certify(graph, ball, which, options=Options(batch=2, memory=Memory(bytes=1), ascent=QUICK.ascent))
    assert torch.allclose(whole.lower, parts.lower, atol=1e-9)
    assert whole.verdicts == parts.verdicts
    for b in range(5):
        one = certify(graph, ball[b], int(which[b]))
        assert torch.allclose(one.lower[0], whole.lower[b], atol=1e-9)
        assert one.verdicts[0] == whole.verdicts[b]
        assert one.reasons[0].split(" ")[0:3] == whole.reasons[b].split(" ")[0:3]


@pytest.mark.parametrize("method", METHODS)
def test_bound_holds_every_sampled_output(graph: Graph, method: str) -> None:
    x = inputs()
    ball = LinfBall(x, 0.3)
    found = bound(graph, ball, method)
    y = graph.evaluate(samples(ball.lower, ball.upper, 300))
    assert found.lower.shape == (3, 4)
    assert (found.lower <= y.amin(0) + 1e-9).all()
    assert (found.upper >= y.amax(0) - 1e-9).all()
    point = bound(graph, LinfBall(x, 0.0), method)
    assert torch.allclose(point.lower, graph.evaluate(x), atol=1e-8)
    assert torch.allclose(point.upper, graph.evaluate(x), atol=1e-8)


def test_seconds_are_told(graph: Graph) -> None:
    found = certify(graph, LinfBall(inputs(), 0.1), labels(graph, inputs()))
    assert {"import", "scores", "objective", "total"} <= set(found.seconds)
    assert all(t >= 0 for t in found.seconds.values())


def test_float32_is_float64_to_single_precision(graph: Graph) -> None:
    x = inputs()
    args = (LinfBall(x, 0.05), labels(graph, x))
    single, double = certify(graph, *args, dtype=torch.float32), certify(graph, *args)
    assert single.lower.dtype == torch.float32
    assert torch.allclose(single.lower.double(), double.lower, rtol=1e-3, atol=1e-3)


# Refusals


def test_labels_that_are_none(graph: Graph) -> None:
    ball = LinfBall(inputs(), 0.1)
    for wrong, text in ((4, "label 4"), (-1, "label -1"), ([0, 1, 7], "at index 2"), ([0, 1], "2 labels for 3 inputs")):
        with pytest.raises(InvalidValueError, match=text):
            certify(graph, ball, wrong)
    for kind in (1.0, True, torch.ones(3), torch.tensor([True, False, True])):
        with pytest.raises(InvalidTypeError, match="label has dtype"):
            certify(graph, ball, kind)
    for right in (1, [1], [1, 1, 1], torch.tensor([1, 1, 1], dtype=torch.int32)):
        assert len(certify(graph, ball, right, "ibp").verdicts) == 3


def test_unknown_names(graph: Graph) -> None:
    ball = LinfBall(inputs(), 0.1)
    with pytest.raises(InvalidValueError, match="method is 'crwon'"):
        certify(graph, ball, 0, "crwon")
    with pytest.raises(InvalidValueError, match="method is 'crwon'"):
        bound(graph, ball, "crwon")
    for name in ("scores", "preactivations", "suffix"):
        with pytest.raises(InvalidValueError, match=f"{name} is 'pas'"):
            Options(**{name: "pas"})
    with pytest.raises(TypeError):
        Options(score="pass")  # type: ignore[call-arg]
    with pytest.raises(InvalidValueError, match="pieces is 0"):
        Options(pieces=0)
    with pytest.raises(InvalidValueError, match="goal is NaN"):
        Options(goal=float("nan"))
    with pytest.raises(InvalidValueError, match="batch is 0"):
        Options(batch=0)
    with pytest.raises(InvalidTypeError, match="the model is a dict"):
        certify({}, ball, 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="Linear is a class: call it"):
        certify(torch.nn.Linear, ball, 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="weights alone: load them into the module"):
        certify(torch.nn.Linear(2, 2).state_dict(), ball, 0)  # type: ignore[arg-type]


def test_shapes_that_do_not_fit(graph: Graph) -> None:
    with pytest.raises(InvalidValueError, match="the network takes"):
        certify(graph, LinfBall(torch.zeros(2, 5, 2).double(), 0.1), 0)
    x = build.source((2, 3))
    two = Graph(x, build.affine(x, torch.ones(2, 3).double(), None, "rows"))
    with pytest.raises(InvalidValueError, match=r"position=-1 for the last; .* logits\[:, -1\]"):
        certify(two, LinfBall(torch.zeros(1, 2, 3).double(), 0.1), 0)
    one = Graph(x, build.affine(build.reshape(x, (6,), "flat"), torch.ones(1, 6).double(), None, "one"))
    with pytest.raises(InvalidValueError, match="at least two class scores"):
        certify(one, LinfBall(torch.zeros(1, 2, 3).double(), 0.1), 0)
    assert bound(two, LinfBall(torch.zeros(1, 2, 3).double(), 0.1)).lower.shape == (1, 2, 2)


class Words(torch.nn.Module):
    """A model of token ids that fails on floats before its embedding does."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(5, 4)

    def forward(self, ids: Tensor) -> Tensor:
        batch, tokens = ids.shape
        return self.words(ids).reshape(batch, tokens, 4).mean(1)


def test_floats_for_a_model_of_token_ids_are_told_of_token_sets() -> None:
    with pytest.raises(UnsupportedModelError, match="if the model takes token ids, make a TokenBall"):
        certify(Words().eval(), LinfBall(torch.rand(1, 3, 4), 0.1), 0)
