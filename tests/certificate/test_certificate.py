"""certify with proofs: `verified` is said only with a certificate, and rigorous bounds are the checker's."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import vertex_softmax as vx
from tests.certificate.made import made
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.certificate import checker
from vertex_softmax.certificate.certificate import Proof
from vertex_softmax.certificate.checker.file import read
from vertex_softmax.certificate.prove import Prover
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.methods.options import Options
from vertex_softmax.runs import certify, proofs
from vertex_softmax.runs.counterexamples import DEFAULT

pytestmark = pytest.mark.usefixtures("exported_once")


class Small(nn.Module):
    """One attention block over four tokens of three numbers, and two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(3, 4) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2) / 2, -1)
        return self.mlp((p @ self.v(x)).mean(1))


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = Small().double().eval().requires_grad_(requires_grad=False)
    x = torch.randn(3, 4, 3, dtype=torch.float64)
    return model, x, model(x).argmax(-1)


def test_what_is_verified_has_a_certificate(case) -> None:
    model, x, labels = case
    found = vx.certify(model, vx.LinfBall(x, 1e-3), labels, certificate=True)
    assert found.verdict is vx.Verdict.VERIFIED
    for certificate, bound in zip(found.certificates, found.worst.tolist(), strict=True):
        assert certificate is not None
        verdict = certificate.check()
        assert verdict.accepted
        assert 0 < verdict.margin == certificate.margin <= bound + 1e-6
    assert found.seconds["proofs"] <= found.seconds["total"]
    assert vx.certify(model, vx.LinfBall(x, 1e-3), labels).certificates == ()


def test_a_certificate_is_a_file(case, tmp_path: Path) -> None:
    model, x, labels = case
    found = vx.certify(model, vx.LinfBall(x[:1], 1e-3), labels[:1], certificate=True)
    assert found.certificates[0] is not None
    path = found.certificates[0].save(tmp_path / "proof.vertex")
    verdict = checker.check(path)
    assert verdict.accepted
    assert "real arithmetic" in verdict.statement


def test_rigorous_bounds_are_the_checkers(case) -> None:
    model, x, labels = case
    ball = vx.LinfBall(x, torch.tensor([1e-3, 0.3, 2.0], dtype=torch.float64))
    plain = vx.certify(model, ball, labels, "joint")
    found = vx.certify(model, ball, labels, "crown", rigorous=True)
    assert found.verdicts[0] is vx.Verdict.VERIFIED
    assert found.certificates[0] is not None
    assert found.verdicts[2] is not vx.Verdict.VERIFIED
    assert found.certificates[2] is None
    assert "proved margin" in found.reasons[2]
    assert bool((found.lower[0] <= plain.lower[0] + 1e-3).all())
    assert float(found.worst[0]) == pytest.approx(found.certificates[0].margin)


def test_positive_in_floating_point_alone_is_unknown(case, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, labels = case
    monkeypatch.setattr(proofs, "prove", lambda *_, **__: Proof(None, ((-3e-9,),), {"prove": 0.0}))
    found = vx.certify(model, vx.LinfBall(x, 1e-3), labels, certificate=True)
    assert set(found.verdicts) == {vx.Verdict.UNKNOWN}
    assert found.reasons[0].startswith("unknown (proof margin -3e-09)")
    assert "third order" not in found.reasons[0]


def test_where_third_order_may_be_needed_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of networks with norms, after branch and bound; `joint` has no third order."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2)).double().eval().requires_grad_(requires_grad=False)
    x = torch.rand(1, 3, dtype=torch.float64)
    monkeypatch.setattr(proofs, "prove", lambda *_, **__: Proof(None, ((-3e-9,),), {"prove": 0.0}))
    for method, said in (("bab", True), ("joint", False)):
        found = vx.certify(model, vx.LinfBall(x, 1e-4), model(x).argmax(-1), method, certificate=True)
        assert ("third order" in found.reasons[0]) is said


@pytest.mark.parametrize(("proved", "bound"), [((0.125,), 0.125), ((-3e-9,), -3e-9), ((), -math.inf)])
def test_rigorous_bounds_are_what_was_proved_and_nothing_else(
    case, proved: tuple[float, ...], bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, labels = case
    monkeypatch.setattr(proofs, "prove", lambda *_, **__: Proof(None, (proved,), {"prove": 0.0}))
    found = vx.certify(model, vx.LinfBall(x, 1e-3), labels, "crown", rigorous=True)
    assert found.worst.tolist() == [bound] * 3
    assert set(found.verdicts) == {vx.Verdict.UNKNOWN}


def test_what_is_misclassified_has_no_proof(case) -> None:
    model, x, labels = case
    found = vx.certify(model, vx.LinfBall(x[:1], 1e-3), 1 - labels[:1], rigorous=True)
    assert found.verdicts == (vx.Verdict.FALSIFIED,)
    assert float(found.worst) == -math.inf
    assert found.certificates == (None,)


def test_single_precision_is_refused(case) -> None:
    model, x, labels = case
    with pytest.raises(InvalidValueError, match="float64"):
        vx.certify(model, vx.LinfBall(x, 1e-3), labels, certificate=True, dtype=torch.float32)


def test_the_hash_is_that_of_the_network(case) -> None:
    model, x, _ = case
    ball = vx.LinfBall(x, 1e-3)
    first = proofs.network_hash(certify.load(model, ball))
    assert first == proofs.network_hash(certify.load(model, ball))
    torch.manual_seed(1)
    other = Small().double().eval().requires_grad_(requires_grad=False)
    assert first != proofs.network_hash(certify.load(other, ball))


def test_where_small_numbers_are_flushed_nothing_is_accepted(case) -> None:
    model, x, labels = case
    found = vx.certify(model, vx.LinfBall(x[:1], 1e-3), labels[:1], certificate=True)
    assert found.certificates[0] is not None
    if not torch.set_flush_denormal(True):
        return  # this processor cannot
    try:
        verdict = found.certificates[0].check()
    finally:
        torch.set_flush_denormal(False)
    assert not verdict.accepted
    assert "flushes" in verdict.reason
    assert found.certificates[0].check().accepted


@pytest.mark.parametrize("narrowing", [0.0, 0.5])
def test_the_tree_of_bab_is_the_proof(narrowing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`certify` does not search again: what branch and bound has split, or narrowed, is what is proved."""
    net = made("relu")
    ball = vx.LinfBall(torch.from_numpy((net.lower + net.upper) / 2)[None], 0.0497)
    label = int(net.graph.evaluate(ball.centre.reshape(1, *net.graph.input.shape)).argmax())
    for name in ("by_ascent", "by_branching"):
        monkeypatch.setattr(Prover, name, lambda *_, **__: pytest.fail("a second search"))
    options = Options(search=Search(domains=200, narrowing=narrowing, halving=0.0))
    for attack in (None, DEFAULT):
        found = vx.certify(net.graph, ball, label, "bab", options=options, certificate=True, attack=attack)
        (proof,) = found.certificates
        assert proof is not None, found.reasons
        assert proof.check().accepted
        (part,) = read(proof.data).header["parts"]
        by_tree = [each for each in part["proofs"] if "rounds" in each or isinstance(each["tree"], dict)]
        assert by_tree, "joint alone has proved it: take a larger radius"
