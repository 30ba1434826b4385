"""`certify` decides: counterexamples are points of the set that the model itself misclassifies, and nothing else is."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

from tests.graph.onnx_models import model as onnx_model
from tests.runs.made import inputs, network
from tests.slowly import few
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.foundation.errors import InternalError, InvalidTypeError, InvalidValueError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs import certify as certify_module
from vertex_softmax.runs import counterexamples
from vertex_softmax.runs.certification import Certification
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.classes import Asked
from vertex_softmax.runs.counterexamples import Attacking
from vertex_softmax.sets import Box, InputSet, LinfBall, LpBall, TokenBall
from vertex_softmax.sets.loading import read

DOUBLE = torch.float64
ONCE = read(network())


def margins_at(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """The least margins of a batch of points, by the model itself in its own precision."""
    own = next(model.parameters()).dtype
    with torch.no_grad():
        logits = torch.cat([model(point[None].to(own)) for point in x])
    label = logits.gather(1, labels[:, None])
    return (label - logits.scatter(1, labels[:, None], -math.inf).amax(1, keepdim=True))[:, 0]


def check(found: Certification, model: nn.Module, some: InputSet, labels: Tensor) -> None:
    """Every falsified input has a counterexample in its set, which the model misclassifies; no other has one."""
    points = found.counterexamples
    assert tuple(points.shape) == some.shape
    assert points.dtype == DOUBLE
    for i, verdict in enumerate(found.verdicts):
        if verdict is not Verdict.FALSIFIED:
            assert points[i].isnan().all()
            continue
        assert some[i].contains(points[i : i + 1]).all()
        assert margins_at(model, points[i : i + 1], labels[i : i + 1]).item() < 0
        assert found.reasons[i]


SIZES = (0.0, 1e-300, 1e-9, 0.02, 0.3, 1e4)


def sets(x: Tensor, sizes: tuple[float, ...] = SIZES) -> list[InputSet]:
    found: list[InputSet] = []
    for size in sizes:
        found += [LinfBall(x, size), LinfBall(x, size, clip=(0, 1)), Box(x - size, x + 2 * size, reference=x)]
        found += [LpBall(x, 3 * size, p, clip=clip) for p in (1, 2, math.inf) for clip in (None, (0, 1))]
        found += [LpBall(x, torch.tensor([0.0, size, 2 * size, size, 1e-17]), 2, per_token=True)]
    return found


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    few([(DOUBLE, SIZES[1:5:3]), (DOUBLE, SIZES), (torch.float32, SIZES)], lambda _, sizes: sizes != SIZES),
)
def test_no_counterexample_is_false(dtype: torch.dtype, sizes: tuple[float, ...]) -> None:
    some = inputs()
    model = (
        ONCE
        if dtype == DOUBLE
        else read(network().__class__(image=4, patch=2, dim=4, heads=2, mlp=6, classes=3).eval())
    )
    module = network() if dtype == DOUBLE else model.module
    if dtype != DOUBLE:
        module.load_state_dict({name: value.float() for name, value in network().state_dict().items()})
        model = read(module)
    falsified = 0
    for each in sets(some.x, sizes):
        found = certify(model, each, some.labels, "crown")
        check(found, module, each, some.labels)
        assert found.verdicts[-1] is Verdict.FALSIFIED  # the centre itself is wrong
        assert torch.equal(found.counterexamples[-1], each.centre[-1])
        falsified += found.verdicts.count(Verdict.FALSIFIED)
        off = certify(model, each, some.labels, "crown", attack=None)
        assert torch.equal(off.lower, found.lower)
        for a, b in zip(off.verdicts, found.verdicts, strict=True):
            assert a is b or (a is Verdict.UNKNOWN and b is Verdict.FALSIFIED)
    assert falsified > 2 * len(sets(some.x, sizes))


def test_a_float32_model_takes_the_very_point() -> None:
    torch.manual_seed(1)
    module = nn.Linear(3, 2).eval()
    with torch.no_grad():
        module.bias.copy_(torch.tensor([0.2, 0.0]))
    ball = LinfBall(torch.rand(4, 3, generator=torch.Generator().manual_seed(0)), 0.3, clip=(0, 1))
    found = certify(module, ball, 0, "crown")
    assert Verdict.FALSIFIED in found.verdicts
    fooled = [v is Verdict.FALSIFIED for v in found.verdicts]
    points = found.counterexamples[fooled]
    assert torch.equal(points.float().double(), points)
    assert (module(points.float()).argmax(1) == 1).all()


class Saturated(nn.Module):
    """In float64 class 1 wins for x > 0 by 2⁻³⁰·x; in float32 the difference is lost, and there is a tie."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(1, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one + 0 * x, self.one + 2.0**-30 * x], -1)


def test_the_model_itself_has_to_be_fooled(tmp_path: Path) -> None:
    ball = LinfBall(torch.full((1, 1), -0.5), 1.0)
    wide = certify(Saturated(DOUBLE).eval(), ball, 0, "crown")
    assert wide.verdict is Verdict.FALSIFIED
    assert certify(Saturated(torch.float32).eval(), ball, 0, "crown").verdict is Verdict.UNKNOWN
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "one"], ["y"])]
    for dtype, expected in ((np.float64, Verdict.FALSIFIED), (np.float32, Verdict.UNKNOWN)):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        stored = {"w": np.array([[0.0, 2.0**-30]], dtype), "one": np.ones(2, dtype)}
        path = tmp_path / f"{np.dtype(dtype).name}.onnx"
        onnx.save(onnx_model(nodes, (1, 1), stored, opset=17, dtype=kind), path)
        found = certify(path, ball, 0, "crown")
        assert found.verdict is expected
        assert found.counterexamples.isfinite().all() == (expected is Verdict.FALSIFIED)


def test_what_rounding_can_explain_is_no_counterexample() -> None:
    """In real numbers class 0 wins everywhere, by 1; in float64 1e17 + x loses x."""
    x = build.source((1,))
    large = build.affine(x, torch.tensor([[1.0], [1.0]]).double(), torch.tensor([1e17, 1e17 - 16]).double(), "large")
    scores = build.affine(
        large, torch.tensor([[1.0, -1.0], [0.0, 0.0]]).double(), torch.tensor([-15.0, 0.0]).double(), "s"
    )
    found = certify(Graph(x, scores), LinfBall(torch.zeros(1, 1).double(), 40.0), 0, "crown")
    assert found.verdict is Verdict.UNKNOWN
    assert found.counterexamples.isnan().all()


def test_a_point_outside_the_set_is_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a set's own steps are wrong, `contains` has the last word."""
    x = torch.zeros(1, 2, dtype=DOUBLE)
    model = nn.Linear(2, 2, dtype=DOUBLE).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, -1.0], [0.0, 0.0]]))
        model.bias.copy_(torch.tensor([1.2, 0.0]))
    ball = LpBall(x, 1.0, 2)  # −x − y + 1.2 ≥ 1.2 − √2 < 0; in the box it is −0.8
    assert certify(model, ball, 0, "crown").verdict is Verdict.FALSIFIED
    small = LpBall(x, 0.8, 2)  # robust: 0.8·√2 < 1.2, and the box around it is not: 1.6 > 1.2
    assert certify(model, small, 0, "crown").verdict is Verdict.VERIFIED
    assert certify(model, small, 0, "ibp").verdict is Verdict.UNKNOWN
    monkeypatch.setattr(LpBall, "project", InputSet.project)
    assert certify(model, small, 0, "ibp").verdict is Verdict.UNKNOWN


class Sentence(nn.Module):
    """A tiny language model: (batch, tokens) ids → (batch, tokens, vocabulary) logits."""

    def __init__(self, last: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.last = nn.Embedding(7, 4, dtype=DOUBLE), last
        self.query, self.out = nn.Linear(4, 4, dtype=DOUBLE), nn.Linear(4, 7, dtype=DOUBLE)

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, ids: Tensor) -> Tensor:
        return self.after(self.words(ids))

    def after(self, x: Tensor) -> Tensor:
        mask = torch.full((x.shape[1], x.shape[1]), -math.inf, dtype=DOUBLE).triu(1)
        x = x + (self.query(x) @ x.transpose(1, 2) + mask).softmax(-1) @ x
        logits = self.out(x)
        return logits[:, -1] if self.last else logits


IDS = torch.tensor([[0, 3, 2], [1, 1, 6], [4, 5, 0]])


@pytest.mark.parametrize("position", [-1, 2, 0, 1])
def test_a_position_of_a_language_model(position: int) -> None:
    """The same as a model that returns that row; sentences with different ids together."""
    model, last = Sentence().eval(), Sentence(last=True).eval()
    with torch.no_grad():
        labels = model(IDS)[:, position].argmax(-1)
    for eps in (0.001, 0.05, 5.0):
        ball = TokenBall.of(model, IDS, eps, tokens=[0])
        found = certify(model, ball, labels, "crown", position=position)
        assert found.lower.shape == (3, 7)
        if position in (-1, 2):
            same = certify(last, ball, labels, "crown")
            torch.testing.assert_close(found.lower, same.lower, rtol=1e-9, atol=1e-9)
            assert found.verdicts == same.verdicts
        for i, verdict in enumerate(found.verdicts):
            if verdict is Verdict.FALSIFIED:
                point = found.counterexamples[i : i + 1]
                assert ball[i].contains(point).all()
                assert torch.equal(point[0, 1:], ball.centre[i, 1:])
                assert int(model.after(point)[0, position].argmax()) != int(labels[i])
        assert found.certified.all() or eps > 0.001
    assert Verdict.FALSIFIED in found.verdicts


def test_positions_that_are_none() -> None:
    model = Sentence().eval()
    ball = TokenBall.of(model, IDS, 0.001)
    with pytest.raises(InvalidValueError, match=r"7 scores for each of 3 positions.*position=-1.*logits\[:, -1\]"):
        certify(model, ball, 0, "crown")
    for bad in (3, -4, 10**9):
        with pytest.raises(InvalidValueError, match=f"position is {bad}, and the network's output has 3 positions"):
            certify(model, ball, 0, "crown", position=bad)
    for bad in (1.0, "last", True, [1]):
        with pytest.raises(InvalidTypeError, match="position is"):
            certify(model, ball, 0, "crown", position=bad)
    last = Sentence(last=True).eval()
    assert certify(last, ball, 0, "crown", position=-1).lower.shape == (3, 7)
    with pytest.raises(InvalidValueError, match="has 1 position: choose -1 to 0"):
        certify(last, ball, 0, "crown", position=1)


def test_only_targets_count() -> None:
    some = inputs()
    ball = LinfBall(some.x[:4], 0.05, clip=(0, 1))
    labels = some.labels[:4]
    everything = certify(ONCE, ball, labels, "crown")
    for k in range(3):
        if bool((labels == k).any()):
            with pytest.raises(InvalidValueError, match=f"targets has {k}, which is the label of input"):
                certify(ONCE, ball, labels, "crown", targets=k)
    others = torch.stack([(labels + 1) % 3, (labels + 2) % 3], 1)
    both = certify(ONCE, ball, labels, "crown", targets=others)
    torch.testing.assert_close(both.lower, everything.lower, rtol=1e-9, atol=1e-9)
    assert both.verdicts == everything.verdicts
    one = certify(ONCE, ball, labels, "crown", targets=others[:, :1])
    assert (one.lower.isfinite().sum(1) == 1).all()
    torch.testing.assert_close(one.worst, everything.lower.gather(1, others[:, :1])[:, 0], rtol=1e-9, atol=1e-9)
    assert [row["label"] for row in one.rows()] == labels.tolist()
    assert [row["target"] for row in one.rows()] == others[:, 0].tolist()
    for i, verdict in enumerate(everything.verdicts):
        if verdict is Verdict.VERIFIED:
            assert one.verdicts[i] is Verdict.VERIFIED


def test_a_class_that_does_not_count_falsifies_nothing() -> None:
    """The centre is misclassified as 2, and every point is; 1 never wins."""
    x = build.source((1,))
    scores = torch.tensor([[0.0], [1.0], [0.0]], dtype=DOUBLE)
    graph = Graph(x, build.affine(x, scores, torch.tensor([0.0, -5.0, 3.0], dtype=DOUBLE), "scores"))
    ball = LinfBall(torch.zeros(1, 1).double(), 1.0)
    assert certify(graph, ball, 0, "crown").verdict is Verdict.FALSIFIED
    found = certify(graph, ball, 0, "crown", targets=[1])
    assert found.verdict is Verdict.VERIFIED
    assert found.lower[0].isinf().tolist() == [True, False, True]
    wide = certify(graph, LinfBall(torch.zeros(1, 1).double(), 6.0), 0, "crown", targets=[1, 1])
    assert wide.verdict is Verdict.FALSIFIED
    assert wide.counterexamples.item() > 5
    assert "classified as 1" in wide.reasons[0]


@pytest.mark.parametrize(
    ("targets", "error"),
    [
        ([], InvalidValueError),
        ([3], InvalidValueError),
        ([-1], InvalidValueError),
        (10**20, InvalidValueError),
        ([0.5], InvalidTypeError),
        ("1", InvalidTypeError),
        (torch.ones(2, dtype=torch.bool), InvalidTypeError),
        ([[1]], InvalidValueError),
        ([[[1]]], InvalidValueError),
    ],
)
def test_targets_that_are_none(targets: object, error: type[Exception]) -> None:
    x = build.source((1,))
    graph = Graph(x, build.affine(x, torch.ones(3, 1).double(), None, "scores"))
    with pytest.raises(error, match="targets"):
        certify(graph, LinfBall(torch.zeros(2, 1).double(), 0.1), 0, "crown", targets=targets)


@pytest.mark.parametrize("rigorous", [False, True])
def test_certificates_respect_targets_and_positions(rigorous: bool) -> None:
    x = build.source((2, 1))
    rows = torch.tensor([[0.0], [1.0], [0.0]], dtype=DOUBLE)
    graph = Graph(x, build.affine(x, rows, torch.tensor([0.0, -5.0, 3.0], dtype=DOUBLE), "scores"))
    ball = LinfBall(torch.tensor([[[50.0], [0.0]]], dtype=DOUBLE), 1.0)  # at position 0 class 1 wins
    asked = {"certificate": True, "rigorous": rigorous}
    found = certify(graph, ball, 0, "crown", targets=[1], position=1, **asked)
    assert found.verdict is Verdict.VERIFIED
    assert found.certificates[0] is not None
    assert found.certificates[0].check().accepted
    assert float(found.lower[0, 1]) <= 4.0
    assert found.lower[0, 2] == math.inf
    assert certify(graph, ball, 0, "crown", position=1, **asked).verdict is Verdict.FALSIFIED
    assert certify(graph, ball, 0, "crown", targets=[1], position=0, **asked).verdict is Verdict.FALSIFIED
    assert certify(graph, ball, 1, "crown", position=0, **asked).verdict is Verdict.VERIFIED


def test_a_contradiction_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that is unsound for one class, while another class keeps the input unknown."""
    real = certify_module.lower_bounds
    lies = torch.tensor([[7.0, -1.0]], dtype=DOUBLE)

    def unsound(*arguments: object) -> Bound:
        found = real(*arguments)
        return Bound(lies.expand_as(found.lower), found.boxes, found.choice)

    x = build.source((1,))
    weights = torch.tensor([[0.0], [1.0], [0.0]], dtype=DOUBLE)
    graph = Graph(x, build.affine(x, weights, torch.tensor([0.0, -1.0, -1.0], dtype=DOUBLE), "scores"))
    monkeypatch.setattr(certify_module, "lower_bounds", unsound)
    with pytest.raises(
        InternalError, match=r"a contradiction: .* to class 1 was bounded by 7, and a point of its set has"
    ):
        certify(graph, LinfBall(torch.zeros(1, 1).double(), 5.0), 0, "crown")
    with pytest.raises(InternalError, match="a contradiction"):  # the centre
        certify(graph, LinfBall(torch.full((1, 1), 5.0).double(), 0.1), 0, "crown")
    monkeypatch.undo()
    assert certify(graph, LinfBall(torch.zeros(1, 1).double(), 5.0), 0, "crown").verdict is Verdict.FALSIFIED


def test_settings_of_the_attack() -> None:
    x = build.source((1,))
    graph = Graph(x, build.affine(x, torch.tensor([[0.0], [1.0]]).double(), torch.tensor([0.0, -1.0]).double(), "s"))
    ball = LinfBall(torch.zeros(1, 1).double(), 5.0)
    assert certify(graph, ball, 0, "crown").seconds["attack"] > 0
    assert "attack" not in certify(graph, ball, 0, "crown", attack=None).seconds
    assert certify(graph, ball, 0, "crown", attack=Attacking(targets=0)).verdict is Verdict.UNKNOWN
    assert certify(graph, ball, 0, "crown", attack=Attacking(steps=0, restarts=1)).verdict is Verdict.UNKNOWN
    assert certify(graph, ball, 0, "crown", attack=Attacking(steps=0)).verdict is Verdict.FALSIFIED
    with pytest.raises(InvalidTypeError, match="attack is a int"):
        certify(graph, ball, 0, "crown", attack=3)
    for bad in ({"steps": -1}, {"restarts": 0}, {"targets": -1}):
        with pytest.raises(InvalidValueError, match=next(iter(bad))):
            Attacking(**bad)
    with pytest.raises(InvalidTypeError, match=r"steps is 1\.5"):
        Attacking(steps=1.5)


def test_the_result_carries_them() -> None:
    x = build.source((1,))
    graph = Graph(x, build.affine(x, torch.tensor([[0.0], [1.0]]).double(), torch.tensor([0.0, -1.0]).double(), "s"))
    found = certify(graph, LinfBall(torch.tensor([[0.0], [-9.0]]).double(), 5.0), 0, "crown")
    assert found.verdicts == (Verdict.FALSIFIED, Verdict.VERIFIED)
    told = found.to_dict()["counterexamples"]
    assert told[0][0] > 1
    assert told[1] is None
    found.to_json()


def test_a_batch_that_is_one_input_has_its_centre() -> None:
    x = build.source((2, 1))
    flat = build.reshape(x, (2,), "flat")
    graph = Graph(x, build.affine(flat, torch.eye(2).double(), torch.tensor([0.0, 1.0]).double(), "scores"))
    found = certify(graph, LinfBall(torch.zeros(2, 1).double(), 0.1), 0, "crown")
    assert found.verdicts == (Verdict.FALSIFIED,)
    assert found.counterexamples.tolist() == [[[0.0], [0.0]]]
    assert (
        certify(graph, LinfBall(torch.tensor([[2.0], [0.0]]).double(), 1.0), 0, "crown").counterexamples.isnan().all()
    )


def test_with_a_goal_the_attack_comes_first() -> None:
    some = inputs()
    ball = LinfBall(some.x, torch.tensor([0.0, 0.3, 0.001, 0.3, 0.1]).double(), clip=(0, 1))
    for method in ("crown", "bab"):
        after = certify(ONCE, ball, some.labels, method, options=Options(search=Search(seconds=0.1)))
        first = certify(ONCE, ball, some.labels, method, options=Options(goal=0.0, search=Search(seconds=0.1)))
        check(first, network(), ball, some.labels)
        assert first.verdicts[-1] is Verdict.FALSIFIED
        assert torch.equal(first.labels, some.labels)
        torch.testing.assert_close(first.clean, after.clean)
        for i, (a, b) in enumerate(zip(after.verdicts, first.verdicts, strict=True)):
            assert {a, b} != {Verdict.VERIFIED, Verdict.FALSIFIED}
            others = first.lower[i][torch.arange(3) != some.labels[i]]
            assert bool((others == -math.inf).all()) == (b is Verdict.FALSIFIED)
        assert Verdict.FALSIFIED in first.verdicts[:4]
        assert Verdict.VERIFIED in first.verdicts
    wrong = certify(ONCE, ball[[4]], some.labels[[4]], "crown", options=Options(goal=0.0))  # none is left for bounds
    assert wrong.verdicts == (Verdict.FALSIFIED,)
    assert "the centre" in wrong.reasons[0]


def test_the_attack_keeps_to_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    some = inputs()
    ball = LinfBall(some.x[:4], 0.3, clip=(0, 1))
    free = certify(ONCE, ball, some.labels[:4], "ibp")
    assert Verdict.FALSIFIED in free.verdicts
    for most in (1 << 16, 1 << 12, 1):
        monkeypatch.setattr(counterexamples, "BYTES", most)
        check(certify(ONCE, ball, some.labels[:4], "ibp"), network(), ball, some.labels[:4])
    limited = Options(memory=Memory(total=1 << 27, bytes=1))
    found = certify(ONCE, ball, some.labels[:4], "ibp", options=limited)  # not even one point fits
    assert Verdict.FALSIFIED not in found.verdicts
    assert found.counterexamples.isnan().all()


def test_rows_of_targets_of_one_input() -> None:
    """A network that takes the whole set as one input: rows that differ are refused, none of them is dropped."""
    cpu = torch.device("cpu")
    with pytest.raises(InvalidValueError, match="targets has 2 different rows"):
        Asked.of(0, [[1], [2]], 1, 2).classes((2, 3), 1, cpu)
    assert Asked.of(0, [[2], [2]], 1, 2).classes((2, 3), 1, cpu).targets.tolist() == [[2]]
