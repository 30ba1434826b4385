"""Ops on forms that are made up: mostly linear, mostly errors, or both, so that every term of an op matters once.

All unknowns of the arguments are drawn, so that their values are known; the value of the op is judged in Arb. The rest
of it, which the unknowns of the arguments do not explain, must be within what the op added, in every direction.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from flint import arb, ctx
from numpy.typing import NDArray

from tests.certificate import exact as network
from tests.certificate.checker.forward.harness import directions, explained, others, support
from tests.certificate.checker.helpers import PRECISION, Array, exact, module

NAMES = ("forms", "norms", "attention", "curves", "products", "affine")
forms, norms, attention, curves, products, affine = (module(f"forward.{name}") for name in NAMES)
rounding = module("rounding")
BALLS = 50
"""The key of the errors that arguments have in common."""


class Unknowns(NamedTuple):
    """Drawn: (points, n), and (points, 2) of one ball."""

    xi: Array
    ball: Array

    @classmethod
    def drawn(cls, rng: np.random.Generator, points: int) -> Unknowns:
        xi = rng.uniform(-1, 1, (points, 2))
        xi[::2] = np.sign(xi[::2])
        angle = rng.uniform(0, 2 * np.pi, points)
        return cls(xi, np.stack([np.cos(angle), np.sin(angle)], -1) * (1 - 1e-15))

    def mixed(self, rng: np.random.Generator, best: NDArray[np.int64]) -> Unknowns:
        """Near some points: one kind of unknown drawn anew, the other as it was."""
        new, kind = Unknowns.drawn(rng, len(best)), rng.integers(0, 3, len(best))[:, None]
        near = np.clip(self.xi[best] + 0.2 * rng.standard_normal(self.xi[best].shape), -1, 1)
        return Unknowns(
            np.where(kind == 0, new.xi, np.where(kind == 2, near, self.xi[best])),
            np.where(kind == 1, new.ball, self.ball[best]),
        )


def argument(
    rng: np.random.Generator, shape: tuple[int, ...], line: float, error: float, own: float, base: float = 1.0
) -> Any:
    blocks = {
        forms.LINES: line * rng.standard_normal((2, 1, *shape)),
        BALLS: error * rng.standard_normal((1, 2, *shape)),
    }
    loose = own * rng.random(shape)
    return forms.Form(centre=base * rng.standard_normal(shape), blocks=blocks, own=loose, slack=np.zeros(shape))


def values(x: Any, at: Unknowns, signs: Array) -> Array:
    """In floats, (points, *shape)."""
    found = x.centre + explained(x, at.xi) + signs * x.own
    if BALLS in x.blocks:
        found = found + np.einsum("pk,k...->p...", at.ball, x.blocks[BALLS][0])
    return np.asarray(found)


def exactly(x: Any, at: Unknowns, k: int, signs: Array) -> Any:
    """The same at one point, in balls of Arb."""
    xi = np.array([arb(exact(v)) for v in at.xi[k]], dtype=object)
    found = network._balls(x.centre) + explained(x, xi[None])[0] + network._balls(signs[k]) * network._balls(x.own)
    for value, column in zip(at.ball[k], x.blocks[BALLS][0], strict=True):
        found = found + arb(exact(float(value))) * network._balls(column)
    return found


Function = Callable[..., Array]


def judge(
    arguments: list[Any], result: Any, f: Function, precisely: Callable[..., Any], seed: int = 0, points: int = 1500
) -> float:
    """How close rests came to what the op added, at most; the worst point of each direction is judged exactly."""
    rng = np.random.default_rng(seed)
    each = 24
    eta = directions(result.centre.shape, rng, each)
    # what the common ball moves is known too: it is no error of the op
    added = forms.Form(
        centre=result.centre,
        blocks={k: x for k, x in result.blocks.items() if k != BALLS},
        own=result.own,
        slack=result.slack,
    )
    most = support(added, eta)
    at, signs = Unknowns.drawn(rng, points), [rng.choice([-1.0, 1.0], (points, *x.centre.shape)) for x in arguments]
    worst = np.zeros(each)
    for turn in range(4):
        with np.errstate(all="ignore"):
            true = f(*(values(x, at, s) for x, s in zip(arguments, signs, strict=True)))
            rest = (true - values(result, at, np.zeros(()))).reshape(points, -1)
            ratio = np.abs(rest @ eta.reshape(each, -1).T) / most
        ratio = np.where(np.isfinite(ratio), ratio, 0.0)
        best = ratio.argmax(0)
        worst = np.maximum(worst, ratio.max(0))
        with ctx.workprec(PRECISION):
            for i in np.argsort(-ratio.max(0))[: 3 if turn == 3 else 1]:
                k = int(best[i])
                value = precisely(*(exactly(x, at, k, s) for x, s in zip(arguments, signs, strict=True)))
                assert not _beyond(result, added, value, at, k, eta[i]), f"{ratio[k, i]:.4f}"
        again = rng.choice(best, points)
        at = at.mixed(rng, again)
        signs = [np.where(rng.random(s.shape) < 0.15, -s[again], s[again]) for s in signs]
    return float(worst.max())


def _beyond(result: Any, added: Any, value: Any, at: Unknowns, k: int, eta: Array) -> bool:
    """Whether |η·rest| is certainly more than the op added."""
    where = np.flatnonzero(eta.ravel())
    blocks = {BALLS: np.zeros((1, 2, *result.centre.shape)), **result.blocks}
    known = exactly(dataclasses.replace(result, blocks=blocks), at, k, np.zeros((len(at.xi), *result.centre.shape)))
    rest = (value - known).ravel()
    along = sum((arb(exact(eta.flat[i])) * rest[i] for i in where), arb(0))
    most = sum(
        (abs(arb(exact(eta.flat[i]))) * arb(exact(added.own.flat[i]) + exact(added.slack.flat[i])) for i in where),
        arb(0),
    )
    for columns in others(added):
        picked = columns.reshape(*columns.shape[:2], -1)[..., where]
        dots = network._balls(picked) @ network._balls(eta.ravel()[where])
        most += sum((sum((v * v for v in ball), arb(0)).sqrt() for ball in dots), arb(0))
    return not along.is_finite() or bool(abs(along) > most)


def picking(answers: dict[str, bool] | None = None, default: bool = True) -> Any:
    return lambda name, better: np.full_like(better, (answers or {}).get(name, default))


KINDS = {
    "lines": (0.15, 0.0, 0.0),
    "a ball": (0.0, 0.15, 0.0),
    "own errors": (0.0, 0.0, 0.1),
    "lines and a ball": (0.1, 0.06, 0.0),
    "lines and own errors": (0.1, 0.0, 0.05),
    "all, small": (1e-3, 3e-4, 1e-4),
    "wide": (0.4, 0.2, 0.1),
}
ORDERS = {
    "first": {"second": False},
    "first, by ranges": {"second": False, "quadratic": False, "quadratic of p": False},
    "second": {},
}


def _rms(x: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps))


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("order", sorted(ORDERS))
def test_norms(kind: str, order: str) -> None:
    for d, eps in itertools.product((2, 3), (1e-5, 1.5)):
        x = argument(np.random.default_rng(d), (2, d), *KINDS[kind])
        with np.errstate(all="ignore"):
            found = norms.normalized(x, eps, 2, 100, picking(ORDERS[order]))
        judge([x], found, lambda v, eps=eps: _rms(v, eps), lambda v, eps=eps: network._normalised(v, eps, None), d)


def test_norms_that_only_get_longer() -> None:
    """What is linear is along the centre, and errors are across: of their product nothing else is an error."""
    zero = np.zeros((1, 2))
    lines, ball = np.zeros((2, 1, 1, 2)), np.zeros((1, 2, 1, 2))
    lines[:, 0, 0, 0], ball[0, 0, 0, 1] = 0.2, 0.2
    x = forms.Form(centre=np.array([[1.0, 0.0]]), blocks={forms.LINES: lines, BALLS: ball}, own=zero, slack=zero)
    found = norms.normalized(x, 1e-9, 2, 100, picking())
    judge([x], found, lambda v: _rms(v, 1e-9), lambda v: network._normalised(v, 1e-9, None))


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("order", [*sorted(ORDERS), "second, by lines", "logistic", "logistic, by ranges"])
def test_attention(kind: str, order: str) -> None:
    answers: dict[str, bool] = {"logistic": "logistic" in order, "second": "second" in order}
    answers["bowed"] = "lines" not in order
    answers["quadratic"] = answers["quadratic of p"] = "ranges" not in order
    rng = np.random.default_rng(1)
    line, error, own = KINDS[kind]
    alone = [(2 * line, 0.0, 0.0), (0.0, 2 * error, 2 * own)]
    for mine, yours in (*((a, b) for a in ((line, error, own), *alone) for b in ((line, error, own), *alone)),):
        scores, values_ = argument(rng, (2, 3), *mine), argument(rng, (3, 2), *yours)
        visible = np.array([[True, True, True], [True, False, True]])
        with np.errstate(all="ignore"):
            found, useful = attention.attended(scores, visible, values_, 2, 100, picking(answers))
        assert useful.all()
        judge(
            [scores, values_],
            found,
            lambda s, v, m=visible: _attended(s, m) @ v,
            lambda s, v, m=visible: _mixed(s, v, m),
        )


@pytest.mark.parametrize("bounded", [False, True])
def test_attention_to_values_that_are_only_errors(bounded: bool) -> None:
    """Two keys between which the scores decide; one has an error of its own, and nothing else moves."""
    zero = np.zeros((1, 2))
    lines = np.zeros((2, 1, 1, 2))
    lines[0, 0, 0] = 1.0, -1.0
    none = np.zeros((1, 2, 1, 2))
    scores = forms.Form(centre=zero, blocks={forms.LINES: lines, BALLS: none}, own=zero, slack=zero)
    own = np.array([[1.0], [0.0]])
    blocks = {BALLS: np.zeros((1, 2, 2, 1))}
    given = forms.Form(centre=np.zeros((2, 1)), blocks=blocks, own=own, slack=np.zeros((2, 1)))
    visible = np.ones((1, 2), dtype=bool)
    for quadratic in (False, True):
        answers = {"logistic": bounded, "second": False, "quadratic": quadratic, "quadratic of p": quadratic}
        with np.errstate(all="ignore"):
            found, _ = attention.attended(scores, visible, given, 2, 100, picking(answers))
        judge([scores, given], found, lambda s, v: _attended(s, visible) @ v, lambda s, v: _mixed(s, v, visible))


def _attended(s: Array, visible: NDArray[np.bool_]) -> Array:
    e = np.where(visible, np.exp(s - s.max(-1, keepdims=True)), 0.0)
    return np.asarray(e / e.sum(-1, keepdims=True))


def _mixed(s: Any, v: Any, visible: NDArray[np.bool_]) -> Any:
    return network._product(network._softmax(s, ~visible), v)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("round_", [False, True])
def test_products(kind: str, round_: bool) -> None:
    rng = np.random.default_rng(3)
    line, error, own = KINDS[kind]
    for mine, yours in ((1.0, 1.0), (0.1, 3.0), (3.0, 0.1)):
        x, y = (argument(rng, (2, 3), s * line, s * error, s * own, 0.3) for s in (mine, yours))
        turned = argument(rng, (3, 2), yours * line, yours * error, yours * own, 0.3)
        for count in (0, 2):
            with np.errstate(all="ignore"):
                found = products.element_product(x, y, count, 100, picking({"round": round_}))
                other = products.matrix_product(x, turned, count, picking({"kept": round_}))
            judge([x, y], found, lambda a, b: a * b, lambda a, b: a * b, points=600)
            judge([x, turned], other, lambda a, b: a @ b, network._product, points=600)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("round_", [False, True])
@pytest.mark.parametrize("op", ["Gelu", "Exp"])
def test_curves(kind: str, round_: bool, op: str) -> None:
    x = argument(np.random.default_rng(4), (2, 3), *KINDS[kind], base=1.5)
    box = x.box()
    slope = np.full((2, 3), 0.6)
    touch = np.stack([box.middle(), box.middle()])
    with np.errstate(all="ignore"):
        for second in (False, True):
            found = curves.curved(
                x,
                op,
                box,
                (slope, touch) * 2 + (slope, touch, touch),
                2,
                100,
                picking({"round": round_, "second": second}),
            )
            judge(
                [x], found, lambda v: network._float_curve(op, v), np.frompyfunc(network.CURVES[op], 1, 1), points=800
            )
