"""Forward proofs over balls and choices: every node is in its box, and no functional of the output below its bound."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from flint import arb

from tests.certificate import exact
from tests.certificate.exact import Network
from tests.certificate.made import lowered_file, outputs
from tests.certificate.sets_made import KINDS, subject
from vertex_softmax.certificate.checker.file import Rejected
from vertex_softmax.certificate.checker.forward import forms, propagation
from vertex_softmax.certificate.input_sets import checked_set
from vertex_softmax.certificate.prove import Prover


@functools.cache
def proved(network: str, kind: str) -> Prover:
    this = subject(network, kind)
    return Prover(this.net.graph, this.net.lower, this.net.upper, forward=True, region=this.region)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", ["relu", "attention", "norm"])
def test_every_node(network: str, kind: str) -> None:
    """At the points of the set that are extreme for some functional, judged by Arb."""
    this, prover = subject(network, kind), proved(network, kind)
    form = prover.known.forward
    assert form is not None
    chance = np.random.default_rng(0)
    A = chance.standard_normal((6, form.centre.size))
    low = propagation.lowest(form, A.reshape(-1, *form.centre.shape))
    values = outputs(this.net, this.points) @ A.T
    file = lowered_file(this.net.graph)
    own = Network(file.header, file.arrays)
    for s, k in enumerate(values.argmin(0)):
        nodes = own.values(this.points[k])
        for number, value in enumerate(nodes):
            box = prover.known.boxes[number]
            lo, hi = (np.broadcast_to(end, value.shape) for end in (box.lo, box.hi))
            assert not exact.outside(value, lo, hi).any(), f"node {number}"
        total = sum((arb(float(a)) * v for a, v in zip(A[s], nodes[-1].ravel(), strict=True)), arb(0))
        assert not bool(total < arb(float(low[s])))


@pytest.mark.parametrize("kind", KINDS)
def test_the_input(kind: str) -> None:
    """Functionals of the input: over whole balls the bound is the closed form."""
    this = subject("relu", kind)
    given = checked_set(this.region)
    form = propagation.start(given)
    A = np.random.default_rng(1).standard_normal((40, *given.lower.shape))
    low = propagation.lowest(form, A)
    seen = (this.points.reshape(len(this.points), -1) @ A.reshape(40, -1).T).min(0)
    assert (low <= seen + 1e-12).all()
    if "cut" not in kind and kind != "choices":
        exactly = given.lowest(A.reshape(40, -1), np.zeros((40, given.lower.size)))
        assert np.allclose(low, exactly, rtol=0, atol=1e-10)


def test_how_far_l1_balls_move_numbers() -> None:
    columns = np.random.default_rng(0).standard_normal((3, 5, 7))
    far = forms.moves(forms.CROSS, columns)
    best = np.abs(columns).max(1).sum(0)
    assert (far >= best).all()
    assert np.allclose(far, best)
    assert (forms.moves(forms.LINES, columns) > best).all()


def test_no_products_of_unknowns_in_balls() -> None:
    """Rules that take the unknowns one by one refuse them."""
    form = propagation.start(checked_set(subject("relu", "L2").region))
    with pytest.raises(Rejected):
        form.lines(form.count)


def test_too_many_numbers(monkeypatch: Any) -> None:
    monkeypatch.setattr(propagation, "MOST_NUMBERS", 10)
    with pytest.raises(Rejected):
        propagation.start(checked_set(subject("relu", "L2").region))
