"""The last norm: no point contradicts a bound of η·y + μσ(y) or η·y/σ(y) + κ; certificates reach farther by it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from flint import arb

from tests.bounds.networks import Config, Maker
from tests.certificate import exact as written_numbers
from tests.certificate.checker.helpers import Array, below, exact, module, precisely
from tests.certificate.claims import everything_holds
from tests.certificate.exact import Written
from tests.certificate.made import Net, about, accepted, boxed, outputs
from tests.certificate.tampering import flips, header_flips
from vertex_softmax.certificate.checker import check
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.prove import Prover, written
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph

last_norm, forms, rounding = module("forward.last_norm"), module("forward.forms"), module("rounding")
EPS = (0.0, 1e-12, 1e-5, 1.0)
WIDTHS = (0.0, 1e-9, 0.1, 0.6, 4.0)
D = 4


def row(rng: np.random.Generator, width: float, kind: str) -> Any:
    """A form of one row: lines alone, errors alone, or lines, a ball and errors."""
    c = rng.standard_normal(D)
    columns = width * rng.standard_normal((3, 1, D)) / 3
    none = np.zeros(D)
    if kind == "errors":
        return forms.Form(centre=c, blocks={}, own=np.abs(columns[0, 0]), slack=np.abs(columns[1, 0]))
    blocks = {forms.LINES: columns}
    if kind == "lines":
        return forms.Form(centre=c, blocks=blocks, own=none, slack=none)
    blocks[8] = width * rng.standard_normal((2, 2, D)) / 3
    return forms.Form(centre=c, blocks=blocks, own=0.1 * width * rng.random(D), slack=0.1 * width * rng.random(D))


def points(y: Any, towards: Array, rng: np.random.Generator) -> list[list[arb]]:
    """Points of a form: corners that are farthest against some functionals, and others; exact."""
    found = []
    for a in [*towards, *rng.standard_normal((3, D)), np.zeros(D)]:
        v = [arb(exact(x)) for x in y.centre]
        for columns in y.blocks.values():  # the first unknown of every ball is −1 or 1
            for ball in columns:
                sign = -1 if ball[0] @ a >= 0 else 1
                v = [v[i] + sign * arb(exact(ball[0][i])) for i in range(D)]
        off = [int(np.sign(a[i])) * (arb(exact(y.own[i])) + arb(exact(y.slack[i]))) for i in range(D)]
        found.append([v[i] - off[i] for i in range(D)])
    return found


def sigma(v: list[arb], eps: arb) -> arb:
    return (sum((x * x for x in v), arb(0)) / D + eps).sqrt()


def other_eps(eps: float) -> list[arb]:
    """eps, and the ends of what it stands for."""
    return [arb(exact(eps)) * (1 + k * arb(2) ** -46) for k in (-1, 0, 1)]


@precisely
@pytest.mark.parametrize("kind", ["lines", "errors", "all"])
@pytest.mark.parametrize("eps", EPS)
def test_no_point_contradicts_a_numerator(eps: float, kind: str) -> None:
    """η·y + μσ(y), and the bounds of σ themselves; also where η cancels μσ to the last bits."""
    rng = np.random.default_rng(int(eps * 7) + len(kind))
    for width in WIDTHS:
        for _ in range(6):
            y = row(rng, width, kind)
            bounds = last_norm.bounds_of_sigma(y, eps)
            mu = rng.standard_normal(6) * 10.0 ** rng.integers(-3, 3, 6)
            eta = rng.standard_normal((6, D))
            cancels = np.where(mu[:, None] >= 0, bounds.below, bounds.above)
            eta[::2] = -(mu[:, None] * cancels)[::2] * (1 + 1e-14 * rng.standard_normal((3, D)))
            with np.errstate(all="ignore"):
                least = last_norm.numerators(y, bounds, eta, mu)
            for v in points(y, np.concatenate([eta + mu[:, None] * cancels, y.centre[None], -y.centre[None]]), rng):
                for real in other_eps(eps):
                    size = sigma(v, real)
                    for k in range(6):
                        true = sum((arb(exact(e)) * x for e, x in zip(eta[k], v, strict=True)), arb(0))
                        assert below(least[k], true + arb(exact(mu[k])) * size), (width, mu[k])


@precisely
@pytest.mark.parametrize("eps", EPS)
def test_no_point_contradicts_a_bound(eps: float) -> None:
    """η·y/σ(y) + κ, for κ and first t of both signs; and bounds are sharp for narrow rows."""
    rng = np.random.default_rng(5)
    for width in WIDTHS:
        for kind in ("lines", "errors", "all"):
            y = row(rng, width, kind)
            bounds = last_norm.bounds_of_sigma(y, eps)
            eta, kappa, aims = rng.standard_normal((8, D)), 3 * rng.standard_normal(8), 3 * rng.standard_normal(8)
            nearest = np.maximum(np.abs(y.centre) - y.rough, 0)
            known = rounding.ProvedInterval(
                np.sqrt(np.square(nearest).mean() + eps) * (1 - 1e-9), np.sqrt(np.square(y.size).mean() + eps) * 1.001
            )
            with np.errstate(all="ignore"):
                found = last_norm.quotients(y, bounds, known, eta, kappa, aims)
            at_centre = eta @ y.centre / np.sqrt(np.square(y.centre).mean() + eps) + kappa
            if width <= 1e-9:
                assert (found > at_centre - 1e-6 * (1 + np.abs(at_centre))).all()
            for v in points(y, np.concatenate([eta, -y.centre[None]]), rng):
                for real in other_eps(eps):
                    size = sigma(v, real)
                    for k in range(8):
                        true = sum((arb(exact(e)) * x for e, x in zip(eta[k], v, strict=True)), arb(0))
                        assert below(found[k], true / size + arb(exact(kappa[k]))), (width, kind)


@pytest.mark.parametrize("short", [0.0, 0.5, 1.2, 1.5])
def test_any_plane_is_proved(short: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is too steep is not taken; one that is not steep enough is."""
    monkeypatch.setattr(last_norm, "SHORT", short)
    y = row(np.random.default_rng(1), 0.1, "lines")
    for eps in EPS:
        bounds = last_norm.bounds_of_sigma(y, eps)
        at_centre = np.sqrt(np.square(y.centre).mean() + eps)
        assert bounds.below @ y.centre + bounds.below_constant <= at_centre
        assert np.isfinite(bounds.below_constant) == (short < 1 or at_centre**2 > short**2 * (at_centre**2 - eps))


@precisely
def test_the_centre_may_be_zero() -> None:
    """Then σ ≥ √eps is all that is known from below; without eps it is 0."""
    zero = np.zeros(D)
    y = forms.Form(centre=zero, blocks={}, own=zero, slack=zero)
    for eps in EPS:
        with np.errstate(all="ignore"):
            found = last_norm.numerators(y, last_norm.bounds_of_sigma(y, eps), np.ones((2, D)), np.array([1.0, -1.0]))
        for sign, least in zip((1, -1), found, strict=True):
            assert all(below(least, sign * real.sqrt()) for real in other_eps(eps))
            assert least > sign * eps**0.5 - 1e-9


# Networks ------------------------------------------------------------------------------------------------------------


def ended(config: Config, *, pooled: bool = True) -> Graph:
    """A transformer with a norm before its head: of the mean of all tokens, or of each token."""
    make = Maker(config)
    start = build.source((config.tokens, config.inputs))
    x = make.block(make.linear(start, config.width))
    x = make.norm(make.pool(x)) if pooled else make.pool(make.norm(x))
    return Graph(start, make.linear(x, config.classes))


CONFIG = Config(tokens=3, width=6, norm="pre", activation="gelu", seed=2)


@functools.cache
def net() -> Net:
    return boxed(ended(CONFIG), 0.3, 2)


def margins(subject: Net, cases: list[ForbiddenCase], way: str) -> tuple[Prover, Array]:
    prover = Prover(subject.graph, subject.lower, subject.upper, forward=True)
    prover.state(cases)
    getattr(prover, way)()
    return prover, prover.margins


@functools.cache
def cases() -> list[ForbiddenCase]:
    """What the last norm proves and the form of the output does not: halfway between their bounds."""
    rows = np.random.default_rng(1).standard_normal((3, 3))
    prover = Prover(net().graph, net().lower, net().upper, forward=True)
    plain = prover._bounds(rows, None)
    better = prover._bounds(rows, None, plain)
    assert (better > plain).all()
    return [ForbiddenCase(rows[i : i + 1], np.array([(plain[i] + 3 * better[i]) / 4]), np.ones(1)) for i in range(3)]


@functools.cache
def certificate() -> bytes:
    prover, found = margins(net(), cases(), "by_last_norm")
    assert (found > 0).all()
    return written([prover], about())


def test_farther_than_the_form_of_the_output() -> None:
    assert not (margins(net(), cases(), "by_form")[1] > 0).any()
    verdict = accepted(certificate())
    assert verdict.margin > 0
    assert written_numbers.read(certificate()).header["parts"][0]["proofs"][0]["tree"] == [{"last_norm": True}]
    everything_holds(net(), certificate(), 8)


def test_bounds_are_below_all_values() -> None:
    """Wherever the case's bound is: it is the first t."""
    rows = np.random.default_rng(4).standard_normal((8, 3))
    points = written_numbers.inside(net().lower, net().upper, 2000, np.random.default_rng(0))
    seen = (outputs(net(), points) @ rows.T).min(0)
    prover = Prover(net().graph, net().lower, net().upper, forward=True)
    for aim in (-20.0, -1.0, 0.0, 3.0):
        found = prover._bounds(rows.reshape(8, 3), None, np.full(8, aim))
        assert (found <= seen).all()


def test_objectives_on_several_rows_fall_back() -> None:
    subject = boxed(ended(CONFIG, pooled=False), 0.05, 2)
    rows = np.random.default_rng(1).standard_normal((1, 3))
    stated = [ForbiddenCase(rows, np.full(1, -50.0), np.ones(1))]
    prover, found = margins(subject, stated, "by_last_norm")
    assert prover.known.before_norm is not None
    assert found[0] == -np.inf
    assert not prover.header["proofs"]
    prover.by_form()
    assert prover.margins[0] > 0


def test_an_output_that_depends_on_more() -> None:
    """A residual around the last norm: there is no last norm."""
    make = Maker(CONFIG)
    start = build.source((2, 6))
    x = build.select(start, 0, 0, "first")
    subject = boxed(Graph(start, make.linear(build.add(x, make.norm(x), "sum"), 3)), 0.1, 2)
    prover = Prover(subject.graph, subject.lower, subject.upper, forward=True)
    assert prover.known.before_norm is None


# What is refused -----------------------------------------------------------------------------------------------------


def test_larger_boxes_and_other_heads() -> None:
    """Rejected, or still true."""
    original = written_numbers.read(certificate())
    part = original.header["parts"][0]
    lower, upper = (original.arrays[part[end]].astype(float) for end in ("lower", "upper"))
    refused = 0
    changed = [
        Written(original.header, {**original.arrays, part["lower"]: lower - w, part["upper"]: upper + w})
        for w in (0.01, 0.1, 0.5)
    ]
    heads = [name for name in original.arrays if name.startswith("graph.") and name.endswith("weight")]
    for name in heads[-2:]:
        for factor in (1.1, -1.0, 1e4):
            spoilt = original.arrays[name].astype(float).copy()
            spoilt.flat[0] *= factor
            changed.append(Written(original.header, {**original.arrays, name: spoilt}))
    for each in changed:
        verdict = check(each.data())
        refused += not verdict.accepted
        assert not verdict.accepted or not written_numbers.counterexample(each, np.random.default_rng(0))
    assert refused


def test_it_needs_its_step_and_its_norm() -> None:
    changed = written_numbers.read(certificate()).copy()
    changed.header["parts"][0]["steps"] = []
    assert "without a forward proof" in check(changed.data()).reason


def test_changes_by_chance() -> None:
    """Of numbers and of the header: rejected, or what the file says is true."""
    original = written_numbers.read(certificate())
    assert flips(original, 60, 1)["rejected"]
    assert header_flips(original, 60, 2)["rejected"]
