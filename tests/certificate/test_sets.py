"""Certificates of balls and of choices: what they claim holds in the set, and they are about no larger set."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

import vertex_softmax as vx
from tests.bounds.networks import Config, transformer
from tests.certificate import exact
from tests.certificate.claims import objectives, pass_holds, value_of
from tests.certificate.exact import Network, broken_cases, broken_claims
from tests.certificate.made import accepted, outputs, rows_of
from tests.certificate.sets_made import ABOUT, KINDS, NETS, made, read, subject
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.certificate.certificate import CertificatePart, Effort, prove
from vertex_softmax.certificate.checker import check
from vertex_softmax.certificate.checker.passes import Pass, PassOptions
from vertex_softmax.certificate.comparison import missing, not_covered
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.input_sets import checked_set
from vertex_softmax.certificate.prove import Prover
from vertex_softmax.specs.vnnlib import read_vnnlib


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", NETS)
def test_what_is_claimed_holds(network: str, kind: str) -> None:
    """The file is accepted; every claim of it holds at points of the set, judged by Arb."""
    this = subject(network, kind)
    _, data = made(network, kind)
    accepted(data)
    file = exact.read(data)
    (part,) = file.header["parts"]
    own = Network(file.header, file.arrays)
    row = rows_of(this.net, 1)[0]
    order = np.argsort(outputs(this.net, this.points) @ row)
    for k in (*order[:6], *order[-2:], *np.random.default_rng(0).integers(len(order), size=8)):
        values = own.values(this.points[k])
        assert not broken_claims(file, part, values)
        assert not broken_cases(file, part, values[-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", NETS)
def test_the_set_is_not_its_box(network: str, kind: str) -> None:
    """The bound over the set is above that over the box around it."""
    this = subject(network, kind)
    least, _ = made(network, kind)
    row = rows_of(this.net, 1)
    forward = network == "norm"
    prover = Prover(this.net.graph, this.net.lower, this.net.upper, forward=forward)
    prover.state([ForbiddenCase(row, np.array([-1e6]), np.ones(1))])
    (prover.by_form if forward else lambda: prover.by_rule("affine"))()
    if network == "norm" and ("cut" in kind or kind == "choices"):
        return  # a ball around a cut ball may be larger than its box
    assert least > float(prover.margins[0]) - 1e6 + 1e-6


@pytest.mark.parametrize("kind", ["L2", "L1 cut", "choices"])
def test_branch_and_bound(kind: str) -> None:
    """Cases that passes do not prove are proved by splits of neurons."""
    this = subject("relu", kind)
    row = rows_of(this.net, 1)
    least, _ = made("relu", kind)
    seen = float((outputs(this.net, this.points) @ row[0]).min())
    bound = least + 0.3 * (seen - least)
    effort = Effort(Ascent(steps=20), search=Search(seconds=10.0))
    found = prove(
        this.net.graph, [CertificatePart.over(this.region, [ForbiddenCase(row, np.array([bound]), np.ones(1))])],
        effort, about=ABOUT,
    )  # fmt: skip
    if found.certificate is None:
        assert kind == "choices", found.reason  # the prover sees their box alone here
        return
    assert check(found.certificate.data).accepted
    assert "set" in json.loads(json.dumps(exact.read(found.certificate.data).header))["parts"][0]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("norm", [None, "post"])
def test_certify(order: int, norm: str | None) -> None:
    """`certify` gives an accepted certificate whose margin is near the bound, and says what it is about."""
    graph = transformer(Config(heads=2, activation="gelu", seed=4, **({"norm": norm} if norm else {})))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, *graph.input.shape)))
    label = graph.evaluate(x).reshape(1, -1).argmax(-1)
    ball = vx.LpBall(x, 0.02, order)
    found = vx.certify(graph, ball, label, "crown", certificate=True)
    (certificate,) = found.certificates
    assert certificate is not None, found.reasons
    bound = float(vx.certify(graph, ball, label, "crown").lower.min())
    around_it = float(vx.certify(graph, vx.Box(ball.lower, ball.upper), label, "crown").lower.min())
    assert certificate.margin > around_it
    assert certificate.margin >= bound - (0.02 if order == 2 else 0.2) * abs(bound)
    verdict = certificate.check()
    assert verdict.claim is not None
    assert any(f"ℓ{order} balls" in text for _, text in verdict.claim.words)
    asked = checked_set(ball.region(graph.input.shape, torch.float64, torch.device("cpu")))
    file = read(exact.read(certificate.data))
    assert not_covered(file, asked) == ""
    larger = vx.LpBall(x, 0.0200001, order).region(graph.input.shape, torch.float64, torch.device("cpu"))
    assert "radius" in not_covered(file, checked_set(larger))


def test_a_specification_of_a_box(tmp_path: Any) -> None:
    """A box that sticks out of the ball is not covered, though the ball's box holds it; a box inside of it is."""
    this = subject("relu", "L2")
    _, data = made("relu", "L2")
    file = exact.read(data)
    (row,), (bound,) = (file.arrays[file.header["parts"][0]["property"][0][name]] for name in ("rows", "bound"))
    centre, radius = (this.region.centre[0].numpy(), this.region.radius[0].numpy())  # type: ignore[attr-defined]

    def spec(share: float) -> Any:
        lines = [f"(declare-const X_{i} Real)" for i in range(6)] + [f"(declare-const Y_{i} Real)" for i in range(2)]
        for i, (c, r) in enumerate(zip(centre.ravel(), radius.ravel(), strict=True)):
            lo, hi = (format(Decimal(float(c + t * share * r)), "f") for t in (-1, 1))
            lines += [f"(assert (>= X_{i} {lo}))", f"(assert (<= X_{i} {hi}))"]
        y = " ".join(f"(* {format(Decimal(float(a)), 'f')} Y_{k})" for k, a in enumerate(row))
        lines.append(f"(assert (<= (+ {y}) {format(Decimal(float(bound)), 'f')}))")
        path = tmp_path / f"{share}.vnnlib"
        path.write_text("\n".join(lines))
        return read_vnnlib(path)

    assert "another kind of set" in missing(read(file), spec(0.9))
    assert missing(read(file), spec(0.3)) == ""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "choices"])
def test_planes_at_corners(kind: str) -> None:
    """Products of rows at any point ξ of the cube, over balls: the pass and its bound hold at points of the set."""
    this = subject("attention", kind)
    prover = Prover(this.net.graph, this.net.lower, this.net.upper, region=this.region)
    known, chance = prover.known, np.random.default_rng(0)
    products = [k for k, node in enumerate(known.nodes) if node.op == "MatMul" and known.planes(k).exact is not None]
    assert products
    own = Network({"graph": prover.low.entries}, prover.low.arrays)
    for number in products:
        A = objectives(known, number, 3, chance)
        corner = np.clip(1.5 * chance.standard_normal((3, known.given.lower.size)), -1, 1)
        values = exact.floats({"graph": prover.low.entries}, prover.low.arrays, this.points)[number]
        picked = this.points[(values.reshape(len(this.points), -1) @ A.reshape(3, -1).T).argmin(0)]
        wanted = [value_of(A, own.values(x)[number]) for x in picked]
        for chosen in ({}, {number: {"corner": corner}}):
            with np.errstate(all="ignore"):
                pass_holds(known, Pass(known, number, A, PassOptions(chosen=chosen)), A, picked, wanted)
