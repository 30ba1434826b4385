"""Forward proofs of whole networks: exact values lie in all forms and boxes, whatever is chosen on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.bounds.networks import Config, transformer
from tests.certificate import exact
from tests.certificate.checker.forward.harness import Propagated, propagated, violations
from tests.certificate.checker.helpers import module
from tests.certificate.made import NETS, Net, boxed, draw, made
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops import elementwise
from vertex_softmax.ops.attention import Attention

propagation, forms, ellipsoids = (module(f"forward.{name}") for name in ("propagation", "forms", "ellipsoids"))


def sound(found: Propagated, seed: int = 0, **how: int | None) -> float:
    wrong, closest = violations(found, seed, **how)  # type: ignore[arg-type]
    assert not wrong, wrong
    return closest


@pytest.mark.parametrize("name", sorted(NETS))
def test_every_op(name: str) -> None:
    sound(propagated(made(name)), points=100, each=8, nudged=1)


@pytest.mark.parametrize(
    "name", ["gelu, pre-norm, two heads", "silu gate, class token", "two blocks", "cross attention"]
)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_every_choice_is_sound(name: str, share: float) -> None:
    sound(propagated(made(name), 3, share), points=100, each=8)


# Wide sets, where errors are of the size of what is linear -----------------------------------------------------------

WIDE = {
    "norms": (Config(norm="pre", activation="gelu", tokens=2, seed=1), 0.3),
    "gated": (Config(norm="post", activation="silu", gated=True, tokens=2, seed=2), 0.2),
    "peaked": (Config(gain=5.0, tokens=3, activation="tanh", seed=3), 0.4),
    "too wide": (Config(gain=60.0, tokens=2, width=2, norm="pre", seed=3), 2.0),
    "peaked, causal": (Config(gain=8.0, tokens=3, mask="causal", norm="pre", seed=4), 1.0),
    "two blocks": (Config(depth=2, norm="pre", activation="gelu tanh", tokens=2, width=2, seed=5), 0.5),
    "one token": (Config(tokens=1, norm="post", activation="gelu", seed=6), 0.5),
}


@pytest.mark.parametrize("name", sorted(WIDE))
@pytest.mark.parametrize("seed", [None, 7])
def test_wide_sets(name: str, seed: int | None) -> None:
    config, radius = WIDE[name]
    sound(propagated(boxed(transformer(config), radius, config.seed), seed), points=150, each=12)


# One op after an affine map: forms are nearly exact there, so that rests come close to their limits ------------------


def one_op(kind: str, radius: float, scale: float = 1.0, eps: float = 1e-5) -> Net:
    """Two inputs, mixed, then one op; `scale` of what it reads."""
    start = build.source((2,))
    wide = build.affine(start, draw(12, 2, seed=1, scale=0.5), draw(12, seed=2), "in")
    x = build.multiply(
        build.reshape(wide, (3, 4), "rows"), build.constant(torch.tensor(scale, dtype=torch.float64)), "scaled"
    )
    if kind == "norm":
        out = build.normalize(x, (-1,), eps, "norm")
    elif kind == "attention":
        other = build.affine(start, draw(9, 2, seed=3, scale=0.7), draw(9, seed=4), "scores")
        out = build.apply(Attention(None), build.reshape(other, (3, 3), "square"), x, name="attention")
    elif kind == "product":
        out = build.multiply(x, build.reshape(build.affine(start, draw(12, 2, seed=5), None, "gate"), (3, 4), "g"), "p")
    elif kind == "matrices":
        out = build.matmul(x, build.transpose(x, 0, 1, "turned"), "scores")
    else:
        out = build.apply(elementwise.Gelu(), x, name="gelu")
    return boxed(Graph(start, out), radius, 1)


def full(net: Net) -> Net:
    """Every number of the input moves."""
    wide = np.maximum(net.upper - net.lower, (net.upper - net.lower).max()) / 2
    middle = (net.upper + net.lower) / 2
    return Net(net.graph, middle - wide, middle + wide)


OPS = ("attention", "gelu", "matrices", "norm", "product")


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("share", [None, 0.0, 1.0])
def test_one_op(kind: str, share: float | None) -> None:
    """To first order (no choice), to second, and as it looks better; at several radii."""
    for radius in (1e-3, 0.1, 0.4):
        net = full(one_op(kind, radius))
        found = propagated(net, None if share is None else 1, share or 0.0)
        sound(found, points=300, each=40, rounds=3)


@pytest.mark.parametrize("kind", OPS[:-1])  # it is exact but for rounding
def test_a_smaller_error_would_be_noticed(kind: str) -> None:
    """With loose errors and balls scaled down some rest is beyond."""
    net = full(one_op(kind, 0.3))
    found = propagated(net, 1, 0.0)
    last = max(found.forms)
    form = found.forms[last]
    keep = (forms.LINES, forms.SQUARES, forms.PAIRS)
    less = {k: x if k in keep else 0.25 * x for k, x in form.blocks.items()}
    found.forms[last] = forms.Form(centre=form.centre, blocks=less, own=0.25 * form.own, slack=0.25 * form.slack)
    wrong, _ = violations(found, points=300, each=60, rounds=3)
    assert any(f"node {last} " in text for text in wrong)


# Odd numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("scale", [1e-200, 1e-150, 1e-8, 1e8, 1e140])
def test_scales(kind: str, scale: float) -> None:
    for eps in (0.0, 1e-12) if kind == "norm" else (1e-5,):
        net = full(one_op(kind, 0.1, scale, eps))
        if kind == "norm" and eps == 0 and scale < 1e-160:  # squares underflow: a row may be 0
            with pytest.raises(module("file").Rejected, match="without eps"):
                propagated(net)
            continue
        found = propagated(net)
        sound(found, points=60, each=8, rounds=1, nudged=2)


def norm_of_one(eps: float) -> Net:
    """Rows of one number: y/σ is nearly its sign."""
    start = build.source((2, 1))
    x = build.normalize(build.affine(start, draw(1, 1, seed=1), 0.7 * torch.ones(1).double(), "in"), (-1,), eps, "norm")
    return boxed(Graph(start, build.affine(build.reshape(x, (2,), "flat"), draw(2, 2, seed=3), None, "out")), 0.1, 2)


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1.0])
def test_rows_of_one_number(eps: float) -> None:
    sound(propagated(norm_of_one(eps)), points=60, each=8)
    sound(propagated(norm_of_one(eps), 1, 1.0), points=60, each=8)


@pytest.mark.parametrize("radius", [0.0, 1e-300, 1e-9])
def test_points(radius: float) -> None:
    """A set that is a point, or nearly: all that is left is rounding, of stored numbers too."""
    config = Config(depth=2, heads=2, norm="pre", activation="gelu", gated=True, seed=3)
    net = boxed(transformer(config), radius, 3)
    found = propagated(net)
    for nudged in (None, 1, 2):
        sound(found, points=20, each=20, rounds=0, nudged=nudged)
    assert found.forms[max(found.forms)].tight.max() < 1e-6


def test_many_coefficients_are_taken_together() -> None:
    config = Config(depth=2, norm="pre", activation="gelu", tokens=3, seed=4)
    net = boxed(transformer(config), 0.02, 4)
    many = propagated(net)
    old = propagation.MOST_NUMBERS
    sizes = []
    try:
        for most in (2000, 600, 60):
            propagation.MOST_NUMBERS = most
            found = propagated(net)
            sound(found, points=60, each=8)
            sizes.append(found.forms[max(found.forms)].tight.max())
            assert all(form.numbers <= most for form in found.forms.values())
    finally:
        propagation.MOST_NUMBERS = old
    assert many.forms[max(many.forms)].tight.max() <= sizes[0] * (1 + 1e-9)


def test_without_products_of_inputs() -> None:
    old = propagation.MOST_PAIRS
    propagation.MOST_PAIRS = 0
    try:
        for name in ("gelu, pre-norm, two heads", "silu gate, class token"):
            found = propagated(made(name))
            assert not any(forms.PAIRS in form.blocks for form in found.forms.values())
            sound(found, points=100, each=8)
    finally:
        propagation.MOST_PAIRS = old


def test_numbers_that_do_not_vary_are_no_unknowns() -> None:
    net = made("gelu, pre-norm, two heads")
    lower, upper = net.lower.copy(), net.upper.copy()
    lower[1:], upper[1:] = 0.3, 0.3
    found = propagated(Net(net.graph, lower, upper))
    assert found.forms[0].count == np.count_nonzero(lower < upper) == lower.shape[-1]
    assert any(forms.PAIRS in form.blocks for form in found.forms.values())
    sound(found, points=60, each=8)


def test_functionals_of_the_output() -> None:
    """Lower bounds are below what is attained, and near it where sets are small."""
    net = made("two blocks")
    found = propagated(net)
    chance = np.random.default_rng(1)
    A = chance.standard_normal((6, *net.graph.output.shape))
    last = max(found.forms)
    bound = propagation.lowest(found.forms[last], A)
    x = exact.inside(net.lower, net.upper, 2000, chance)
    values = exact.floats(found.header, found.arrays, x)[last].reshape(len(x), -1) @ A.reshape(6, -1).T
    assert (bound <= values.min(0)).all()
    assert (bound >= values.min(0) - 0.2 * (values.max(0) - values.min(0))).all()
    box = propagation.lowest(found.forms[last], np.eye(A[0].size).reshape(-1, *A[0].shape))
    assert box == pytest.approx(found.boxes[last].lo.ravel(), rel=1e-6)
