"""Deliberately broken faces of ops: what they make of what they are told, and what they answer; each must be caught."""

from __future__ import annotations

import dataclasses

import torch

from tests.ops.cases import CASES, Case, boxes, suits
from tests.ops.face_checks import (
    FORMS,
    check_centred,
    check_chosen,
    check_decided,
    check_forms,
    check_inner,
    check_parameters_of_forms,
    check_split,
    check_summary,
)
from tests.ops.mutants import Check, Mutants, altered, halved, replaced
from vertex_softmax.ops import bilinear, elementwise, normalization
from vertex_softmax.ops.attention import Attention, minorant, shared
from vertex_softmax.ops.contract import Centring, InnerRange, Op, Splittable, Summarising
from vertex_softmax.ops.line_relaxations import ReluRelaxation

KINDS = ("ordinary", "straddling")


def cases(face: type[Op]) -> list[Case]:
    return [case for case in CASES if isinstance(case.op, face) and suits(case, "ordinary")]


def forms() -> None:
    for case in CASES:
        for rules in case.rules if case.op.form_inputs else ():
            for kind in FORMS:
                check_forms(case, rules, kind)
            check_parameters_of_forms(case, rules)


def summaries() -> None:
    for case in cases(Summarising):
        for rules in case.rules:
            check_summary(case, rules)


def centred() -> None:
    for case in cases(Centring):
        for rules in case.rules:
            check_centred(case, boxes(case, "ordinary"), rules)


def split() -> None:
    for case in cases(Splittable):
        for kind in KINDS:
            check_split(case, boxes(case, kind), case.rules[0])


def inner() -> None:
    for case in cases(InnerRange):
        for kind in KINDS:
            check_inner(case, boxes(case, kind), case.rules[0])


def decided() -> None:
    for case in CASES:
        if type(case.op).undecided is not Op.undecided:
            for kind in ("positive", "negative"):
                check_decided(case, boxes(case, kind), case.rules[0])
            check_split(case, boxes(case, "straddling"), case.rules[0])


def chosen() -> None:
    for case in CASES:
        for rules in case.rules:
            check_chosen(case, boxes(case, "straddling" if suits(case, "straddling") else "positive"), rules)


CHECKS: dict[str, Check] = {
    check.__name__: check for check in (forms, summaries, centred, split, inner, decided, chosen)
}


MUTANTS: Mutants = {
    "forms: half a product's radius": (lambda: altered(bilinear, "product_radius", lambda f, *_: f / 2), forms),
    "forms: half a functional's range": (lambda: altered(shared, "functional_box", halved), forms),
    "forms: planes at a corner without their slope on the input": (
        lambda: altered(bilinear, "planes", lambda f, *_: (*f[:3], 0 * f[3])),
        forms,
    ),
    "summary: a product about another centre": (
        lambda: altered(bilinear.MatMul, "summarise", lambda f, *_: dataclasses.replace(f, x=f.x + 0.1)),
        summaries,
    ),
    "summary: an ellipsoid about another centre": (
        lambda: altered(Attention, "summarise", lambda f, *_: dataclasses.replace(f, centre=f.centre + 0.3)),
        summaries,
    ),
    "centring: weights that do not add up to 1": (
        lambda: altered(Attention, "centring_weights", lambda f, *_: None if f is None else 0.9 * f),
        centred,
    ),
    "centring: the ranges of log p of another row": (
        lambda: altered(
            minorant, "centred_log_probabilities", lambda f, *_: (f[0].roll(1, -1), f[1].roll(1, -1), f[2])
        ),
        centred,
    ),
    "split: at an end": (
        lambda: altered(Splittable, "split_point", lambda _f, _self, _i, box, _x: box.upper),
        split,
    ),
    "split: ReLU beside its kink": (
        lambda: altered(elementwise.Relu, "split_point", lambda f, _self, _i, box, _x: f + 0.3 * box.upper),
        split,
    ),
    "bend: the slope forgotten": (
        lambda: replaced(
            elementwise.Elementwise,
            "bend",
            lambda self, _i, A, _slope, _xs, points: elementwise.spread(A * self.evaluate(x) for x in points),
        ),
        split,
    ),
    "bend: another key's": (lambda: altered(Attention, "bend", lambda f, *_: f.roll(1, -1)), split),
    "inner range: too narrow": (lambda: altered(normalization.Normalize, "inner_range", halved), inner),
    "inner loss: of the wrong sign": (
        lambda: altered(normalization.NormRelaxation, "inner_loss", lambda f, *_: -f),
        inner,
    ),
    "undecided: nowhere": (
        lambda: altered(elementwise.Relu, "undecided", lambda f, *_: torch.zeros_like(f)),
        decided,
    ),
    "chosen: what the parameters do not move": (
        lambda: replaced(
            ReluRelaxation,
            "chosen_values",
            lambda self, A: {"slope": self.lines.upper_slope.expand(A.shape)},
        ),
        chosen,
    ),
    "chosen: one for all objectives": (
        lambda: altered(ReluRelaxation, "chosen_values", lambda f, *_: {k: v[:, :1] for k, v in f.items()}),
        chosen,
    ),
    "summary: an ellipsoid a twentieth as long": (
        lambda: altered(normalization, "ellipsoid", lambda f, *_: dataclasses.replace(f, shape=f.shape / 400)),
        summaries,
    ),
}
