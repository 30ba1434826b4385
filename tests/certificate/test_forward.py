"""Certificates with forward proofs, from end to end: radii that backward passes do not reach, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import vertex_softmax as vx
from tests.bounds.networks import Config, Maker, transformer
from tests.certificate import exact
from tests.certificate.claims import everything_holds
from tests.certificate.exact import Written
from tests.certificate.made import Net, about, accepted, boxed, by_form, by_rule, outputs, proved
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.certificate import certificate
from vertex_softmax.certificate.certificate import CertificatePart, Effort, forward_first
from vertex_softmax.certificate.checker import check, network, proof
from vertex_softmax.certificate.checker.file import FORMAT
from vertex_softmax.certificate.checker.forward import relu
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.prove import Prover, written
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.rules import RowRule

NETWORKS = {
    "layer norm and gelu": (Config(depth=2, heads=2, tokens=3, width=8, norm="pre", activation="gelu", seed=1), 0.1),
    "rms norm and a gate": (Config(depth=2, tokens=3, width=8, norm="pre", activation="silu", gated=True, seed=2), 0.1),
    "four attentions": (Config(depth=4, heads=2, tokens=4, width=8, activation="relu", seed=3), 0.05),
    "layer norm and relu": (Config(depth=2, heads=2, tokens=3, width=8, norm="pre", activation="relu", seed=1), 0.1),
}
GAPS = {"layer norm and gelu": 0.4, "rms norm and a gate": 0.4, "four attentions": 0.4, "layer norm and relu": 0.4}


def rms_norm(make: Maker, x: Node) -> Node:
    """Without the mean."""
    x = build.normalize(x, (-1,), 1e-5, make.name("norm"))
    return build.multiply(x, build.constant(1 + 0.2 * make.draw(x.shape[-1])), make.name("scale"))


@functools.cache
def net(name: str) -> Net:
    config, radius = NETWORKS[name]
    with mock.patch.object(Maker, "norm", rms_norm if "rms" in name else Maker.norm):
        return boxed(transformer(config), radius, config.seed)


def cases(net: Net, gap: float) -> list[ForbiddenCase]:
    """Rows that are not attained: `gap` of the range that was seen below the least value seen."""
    points = exact.inside(net.lower, net.upper, 256, np.random.default_rng(0))
    rows = np.random.default_rng(1).standard_normal((2, int(np.prod(net.graph.output.shape))))
    seen = outputs(net, points) @ rows.T
    bound = seen.min(0) - gap * (seen.max(0) - seen.min(0))
    return [ForbiddenCase(rows[i : i + 1], bound[i : i + 1], np.ones(1)) for i in range(2)]


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_farther_than_backward_passes(name: str) -> None:
    """A certificate where passes over the boxes that they prove themselves have none; all that it says is true."""
    subject = net(name)
    assert forward_first(subject.graph)
    stated = cases(subject, GAPS[name])
    found = proved(subject, stated, Effort(search=None))
    assert found.certificate is not None, found.margins
    verdict = accepted(found.certificate.data)
    assert verdict.margin == found.certificate.margin
    old = Prover(subject.graph, subject.lower, subject.upper)
    old.state(stated)
    for rule in (RowRule.AFFINE, RowRule.VERTEX):
        old.by_rule(rule)
    assert old.open()
    header = exact.read(found.certificate.data).header
    assert header["format"] == FORMAT
    assert [step["kind"] for step in header["parts"][0]["steps"]] == ["forward"]
    everything_holds(subject, found.certificate.data, 4)


def test_only_where_it_reaches_farther() -> None:
    assert not forward_first(transformer(Config()))
    assert not forward_first(transformer(Config(depth=3)))
    assert forward_first(transformer(Config(depth=4)))
    assert forward_first(transformer(Config(norm="pre")))


def test_what_crown_verifies_has_a_certificate() -> None:
    """Near the largest radius of crown; with `rigorous` the bounds are what was proved."""
    graph = transformer(Config(depth=2, tokens=2, width=4, norm="pre", activation="gelu", seed=4))
    x = torch.randn(1, *graph.input.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    label = graph.evaluate(x).reshape(1, -1).argmax(-1)
    assert not vx.certify(graph, vx.LinfBall(x, 0.11), label, "crown").certified
    ball = vx.LinfBall(x, 0.1)
    result = vx.certify(graph, ball, label, "crown", certificate=True)
    assert result.certificates[0] is not None, result.reasons
    assert accepted(result.certificates[0].data).margin > 0
    rigorous = vx.certify(graph, ball, label, "crown", certificate=True, rigorous=True)
    assert rigorous.certificates[0] is not None
    assert rigorous.certificates[0].margin >= result.certificates[0].margin * (1 - 1e-9)


def test_without_parabolas_relus_prove_less(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(depth=2, heads=2, tokens=3, width=8, norm="pre", activation="relu", seed=3)
    subject = boxed(transformer(config), 0.05, 3)
    widths = []
    for most in (relu.MOST, 0.0):  # with 0 no curvature is used: all are lines
        monkeypatch.setattr(relu, "MOST", most)
        boxes = Prover(subject.graph, subject.lower, subject.upper, forward=True).known.boxes
        widths.append(float((boxes[len(boxes) - 1].hi - boxes[len(boxes) - 1].lo).mean()))
    assert widths[0] < 0.95 * widths[1], widths


def test_a_forward_proof_that_fails_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No boxes are proved by passes after it: they reach less far, and take minutes."""
    subject = net("layer norm and gelu")
    monkeypatch.setattr(Prover, "_run", lambda _: pytest.fail("boxes by passes"))
    heard: list[str] = []
    part = CertificatePart(subject.lower, subject.upper, cases(subject, -0.5))
    effort = Effort(Ascent(steps=0), search=Search(halving=0.0))
    found = certificate.prove(subject.graph, [part], effort, report=heard.append)
    assert found.certificate is None
    assert -np.inf < found.margin < 0
    assert len(heard) == 1
    assert "margin -" in heard[0]


@pytest.mark.parametrize("last", ["by_ascent", "by_branching"])
def test_ascent_and_branching_over_the_boxes_of_a_forward_proof(last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are tried where the form proves too little; what they find is checked as any proof."""
    config = Config(tokens=2, width=2, classes=2, norm="pre", activation="gelu", seed=1)
    subject = boxed(transformer(config), 0.1, 1)
    low = outputs(subject, exact.inside(subject.lower, subject.upper, 256, np.random.default_rng(0)))
    row = np.array([[1.0, -1.0]])
    seen = low @ row.T
    stated = [ForbiddenCase(row, seen.min(0) - 2 * (seen.max(0) - seen.min(0)), np.ones(1))]
    for way in ("by_form", "by_last_norm", "by_rule", *(["by_ascent"] if last == "by_branching" else [])):
        monkeypatch.setattr(Prover, way, lambda *_, **__: None)
    search = Search(seconds=10.0, domains=64, halving=0.0)
    found = proved(subject, stated, Effort(ascent=Ascent(steps=3), search=search))
    assert found.certificate is not None, found.margins
    steps = exact.read(found.certificate.data).header["parts"][0]["steps"]
    assert [step["kind"] for step in steps] == ["forward"]
    everything_holds(subject, found.certificate.data, 4)


def test_passes_over_the_boxes_of_a_forward_proof() -> None:
    subject = net("layer norm and gelu")
    prover = Prover(subject.graph, subject.lower, subject.upper, forward=True)
    prover.state(cases(subject, 40.0))
    prover.by_rule(RowRule.AFFINE)
    assert not prover.open()
    assert "rule" in prover.header["proofs"][0]["tree"][0]
    everything_holds(subject, written([prover], about()), 6)


def test_cases_of_several_rows() -> None:
    subject = net("layer norm and gelu")
    one, two = cases(subject, 0.5)
    both = ForbiddenCase(np.concatenate([one.rows, two.rows]), np.concatenate([one.bound + 1e3, two.bound]), None)
    found = proved(subject, [both], Effort(search=None))
    assert found.certificate is not None
    accepted(found.certificate.data)


def test_when_the_checker_cannot_propagate_passes_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = net("layer norm and gelu")
    monkeypatch.setattr(certificate, "_prove_forward", lambda *_: None)
    found = proved(subject, cases(subject, 400.0), Effort(search=None))
    assert found.certificate is not None
    assert "forward" not in [s["kind"] for s in exact.read(found.certificate.data).header["parts"][0]["steps"]]


# What is refused -----------------------------------------------------------------------------------------------------


@functools.cache
def small(activation: str = "gelu") -> Written:
    seed = {"gelu": 1, "relu": 3}[activation]  # of which the second has no ReLU whose sign is known
    config = Config(tokens=2, width=2, classes=2, norm="pre", activation=activation, gain=3.0, seed=seed)
    return exact.read(by_form(boxed(transformer(config), 0.4, seed)))


def part_of(changed: Written) -> dict[str, Any]:
    part: dict[str, Any] = changed.header["parts"][0]
    return part


def test_a_form_needs_its_step() -> None:
    changed = small().copy()
    part_of(changed)["steps"] = []
    assert "without a forward proof" in check(changed.data()).reason


def test_lines_are_needed() -> None:
    changed = small().copy()
    part_of(changed)["lines"] = {}
    assert "a curve without lines" in check(changed.data()).reason


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("seed", range(4))
def test_choices_by_chance(seed: int, activation: str) -> None:
    """Every choice is sound: accepted or not, the margin is no more than what is true."""
    changed, chance = small(activation).copy(), np.random.default_rng(seed)
    for name, value in changed.arrays.items():
        if ".forward." in name:
            changed.arrays[name] = chance.random(value.shape) < 0.5
    if activation == "relu":  # choices that are all true are not in a file: these are
        number = next(k for k, entry in enumerate(changed.header["graph"]) if entry["op"] == "Relu")
        for name in ("four sevenths", "two sevenths", "one seventh"):
            given = changed.header["graph"][number]["shape"]
            changed.arrays[f"part.0.forward.{number}.{name}"] = chance.random(given) < 0.5
            part_of(changed)["steps"][0]["choices"][f"{number}.{name}"] = f"part.0.forward.{number}.{name}"
    verdict = check(changed.data())
    points = exact.inside(
        *(changed.arrays[part_of(changed)[end]].astype(float) for end in ("lower", "upper")), 200, chance
    )
    assert verdict.margin <= exact.least(changed, part_of(changed), points).min()


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_choices_of_another_shape_or_kind(activation: str) -> None:
    original = small(activation)
    for name, value in original.arrays.items():
        if ".forward." in name:
            for wrong in (
                value[..., None],
                value.ravel()[:-1],
                value.astype(float),
                value.astype(np.int64),
                value[None],
            ):
                if wrong.shape != value.shape or wrong.dtype != value.dtype:
                    assert not check(Written(original.header, {**original.arrays, name: wrong}).data()).accepted
    changed = original.copy()
    name = next(iter(part_of(changed)["steps"][0]["choices"]))
    for given in (["x"], "x", None, 3, {name: 3}, {name: "nowhere"}, {name: part_of(changed)["lower"]}):
        part_of(changed)["steps"] = [{"kind": "forward", "choices": given}]
        assert not check(changed.data()).accepted


def test_older_files() -> None:
    """They are read as before, with the statement of their time; a forward proof in the oldest is refused."""
    config = Config(tokens=2, width=2, classes=2, norm="pre", seed=1)
    _, data = by_rule(boxed(transformer(config), 0.05, 1))
    old = exact.read(data)
    old.header["statement"] = proof.OLDER_STATEMENT
    for name in ("vertex-certificate-2", "vertex-certificate-3"):
        old.header["format"] = name
        accepted(old.data())
    changed = small().copy()
    changed.header.update({"format": "vertex-certificate-3", "statement": proof.OLDER_STATEMENT})
    accepted(changed.data())
    changed.header["format"] = "vertex-certificate-2"
    assert "vertex-certificate-2" in check(changed.data()).reason


def test_larger_boxes_and_other_weights() -> None:
    original = small()
    part = part_of(original)
    lower, upper = original.arrays[part["lower"]].astype(float), original.arrays[part["upper"]].astype(float)
    margin = check(original.data()).margin
    wider = Written(original.header, {**original.arrays, part["lower"]: lower - 0.3, part["upper"]: upper + 0.3})
    assert check(wider.data()).margin < margin
    for name in (n for n in original.arrays if n.startswith("graph.") and n.endswith("weight")):
        spoilt = original.arrays[name].astype(float).copy()
        spoilt.flat[0] = np.nan
        assert not check(Written(original.header, {**original.arrays, name: spoilt}).data()).accepted
        larger = Written(original.header, {**original.arrays, name: 1e4 * original.arrays[name]})
        assert not check(larger.data()).accepted or not exact.counterexample(larger, np.random.default_rng(0))


def test_work_and_time_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    many = small().copy()
    part_of(many)["steps"] = part_of(many)["steps"] * 50
    begin = time.perf_counter()
    assert "time limit" in check(many.data(), seconds=0.2).reason
    assert time.perf_counter() - begin < 5
    monkeypatch.setattr(network, "MOST_WORK", 350_000)
    assert "multiplications" in check(small().data()).reason


def test_a_network_that_is_not_bounded_has_no_certificate() -> None:
    """Scores so large that no row is expanded: boxes are all that is known."""
    config = dataclasses.replace(NETWORKS["layer norm and gelu"][0], gain=3e3)
    subject = boxed(transformer(config), 0.5, 1)
    found = proved(subject, cases(subject, 0.01), Effort(search=None))
    assert found.certificate is None
