"""No setting of the caller lowers the precision of a bound: autocast, TF32, a default device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.runs.made import inputs, subject_of
from tests.search.cascade_cases import BLIND, QUICK, WHOLE, bent
from tests.search.small import case, conjunction, prop
from vertex_softmax import LinfBall, TokenBall, bound, certify
from vertex_softmax.bounds.relaxations import Relaxations
from vertex_softmax.certificate.certificate import CertificatePart, ForbiddenCase, prove
from vertex_softmax.graph.from_torch.importer import from_torch
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.runs.bisection import Bisection
from vertex_softmax.runs.evaluate import Plan, evaluate, inputs_of
from vertex_softmax.runs.radius import radii
from vertex_softmax.runs.slack import slack_map
from vertex_softmax.search.attack import pgd
from vertex_softmax.search.cascade import verify
from vertex_softmax.search.falsify import falsify
from vertex_softmax.sets.loading import read

ONES = torch.ones(1, 2)


def close(bias: bool) -> nn.Module:
    """Class 1 wins at (1, 1) by 0.0017, which bfloat16 rounds away."""
    module = nn.Linear(2, 2, bias=bias)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0040, 0.0], [1.0037, 0.002]]))
        if bias:
            module.bias.fill_(0.5)
    return module.eval()


@functools.cache
def read_once(bias: bool) -> Any:
    return read(close(bias))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_autocast_changes_nothing(method: str, bias: bool) -> None:
    ball = LinfBall(ONES, 1e-4)
    module = close(bias) if method == "crown" else read_once(bias)  # exported in autocast too, once
    outside = certify(module, ball, 0, method, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = certify(module, ball, 0, method, dtype=torch.float32)
        interval = bound(module, ball, method, dtype=torch.float32)
    assert inside.verdict == outside.verdict == "falsified"
    assert torch.equal(inside.lower, outside.lower)
    assert interval.lower.dtype == torch.float32
    assert torch.equal(interval.lower, bound(module, ball, method, dtype=torch.float32).lower)


def test_a_lower_precision_of_products_changes_nothing() -> None:
    """On a CPU that has bfloat16 this setting uses it for products of float32; elsewhere it does nothing."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).eval()
    ball = LinfBall(torch.rand(16, 64), 1e-3)
    outside = bound(module, ball, "crown", dtype=torch.float32)
    torch.set_float32_matmul_precision("medium")
    try:
        inside = bound(module, ball, "crown", dtype=torch.float32)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(inside.lower, outside.lower)


def test_the_meta_device_as_default_changes_nothing() -> None:
    module, ball = close(bias=True), LinfBall(ONES, 1e-4)
    with torch.device("meta"):
        found = certify(module, ball, 1, certificate=True)
    assert found.verdict == "verified"
    assert found.lower.device.type == "cpu"


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(5, 3), nn.Linear(3, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.table(ids).mean(1))


def words(_: Path) -> None:
    model = read(Words().eval())
    certify(model, TokenBall.of(model, torch.tensor([[1, 2]]), 0.01), 0, "ibp")


def slack(_: Path) -> None:
    some = inputs(2)
    slack_map(subject_of(some).graph, some.ball(0.01), some.labels.tolist(), [(int(y) + 1) % 3 for y in some.labels], 0)


def proof(_: Path) -> None:
    case = ForbiddenCase(np.array([[1.0, 0.0]]), np.array([-0.2]), np.ones(1))
    prove(bent(), [CertificatePart(-np.ones(2), np.ones(2), [case])])


BALL = LinfBall(ONES, 1e-4)
SPEC = prop(2, case(WHOLE, conjunction(({1: 1}, "-0.2"))))
ENTRIES: dict[str, Callable[[Path], object]] = {
    "certify": lambda _: certify(close(bias=True), BALL, 1, "crown"),
    "bound": lambda _: bound(close(bias=True), BALL, "ibp"),
    "read": lambda _: read(close(bias=True)).graph(BALL),
    "words": words,
    "from_torch": lambda _: from_torch(close(bias=True), ONES),
    "pgd": lambda _: pgd(bent(), LinfBall(torch.zeros(1, 2), 0.1), 0, steps=2, restarts=1),
    "falsify": lambda _: falsify(bent(), SPEC, lambda _: None, seconds=None, restarts=1, steps=2),
    "verify": lambda _: verify(bent(), SPEC, lambda _: None, budget=BLIND, options=QUICK),
    "prove": proof,
    "slack": slack,
    "inputs_of": lambda _: inputs_of(subject_of(inputs(2)), inputs(2)),
    "evaluate": lambda out: evaluate(subject_of(inputs(2)), inputs(2), ["ibp"], [0.01], out, Plan(attack_steps=1)),
    "radii": lambda out: radii(subject_of(inputs(2)), inputs(2), ["ibp"], out, Bisection(attack_steps=1)),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_computes_precisely(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a caller may call: where it evaluates or bounds a network, autocast and TF32 are off."""
    seen: list[bool] = []
    subject_of(inputs(2))
    for owner, name in ((Graph, "values"), (Relaxations, "of")):
        original = getattr(owner, name)

        def watched(*args: Any, original: Any = original, **named: Any) -> Any:
            seen.append(torch.is_autocast_enabled("cpu") or bool(torch.backends.cudnn.allow_tf32))
            return original(*args, **named)

        monkeypatch.setattr(owner, name, watched)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ENTRIES[entry](tmp_path / "out")
        assert torch.is_autocast_enabled("cpu")
    assert torch.backends.cudnn.allow_tf32
    assert seen
    assert not any(seen)
