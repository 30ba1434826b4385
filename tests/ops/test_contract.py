"""Every registered op keeps the contract of ops/contract.py, on boxes from a point to ±1e3."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.ops.cases import CASES, KINDS, Case, boxes
from tests.ops.checks import (
    check_backward,
    check_batch,
    check_diagonal,
    check_exact,
    check_float32,
    check_interval,
    check_nan,
    check_parameters,
)
from vertex_softmax.ops import OPS
from vertex_softmax.ops.fields import moved

each = pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def suits(case: Case, kind: str) -> bool:
    """Normalising without eps is not defined on boxes around 0."""
    return not (
        getattr(case.op, "eps", 1.0) == 0.0 and kind in {"straddling", "wide", "mixed", "ordinary", "huge", "tiny"}
    )


def test_every_op_has_cases() -> None:
    assert {type(case.op).__name__ for case in CASES} == set(OPS)


@each
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_bounds_over_boxes(case: Case, kind: str) -> None:
    if not suits(case, kind):
        kind = "positive"
    box = boxes(case, kind)
    check_interval(case, box)
    for rules in case.rules:
        check_backward(case, box, rules)


@pytest.mark.slow
@each
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_bounds_over_many_boxes(case: Case, kind: str) -> None:
    if not suits(case, kind):
        kind = "positive"
    for seed in range(1, 9):
        box = boxes(case, kind, seed)
        check_interval(case, box, 300)
        for rules in case.rules:
            check_backward(case, box, rules, count=300, seed=seed)


@each
def test_a_point_gives_the_value(case: Case) -> None:
    for rules in case.rules:
        check_exact(case, boxes(case, "point"), rules)


@each
def test_diagonal_coefficients_are_the_dense_ones(case: Case) -> None:
    for kind in ("ordinary", "mixed"):
        for rules in case.rules:
            check_diagonal(case, boxes(case, kind if suits(case, kind) else "positive"), rules)


@each
def test_a_batch_equals_its_singles(case: Case) -> None:
    for kind in ("ordinary", "huge"):
        for rules in case.rules:
            check_batch(case, boxes(case, kind if suits(case, kind) else "positive"), rules)


@each
def test_no_finite_bound_from_nan(case: Case) -> None:
    for seed in range(2):
        for rules in case.rules:
            check_nan(case, boxes(case, "positive"), rules, seed)


@each
def test_float32_agrees_with_float64(case: Case) -> None:
    for rules in case.rules:
        check_float32(case, boxes(case, "positive", dtype=torch.float32), rules)


@each
@pytest.mark.parametrize("kind", ["ordinary", "wide", "huge", "mixed", "offset"])
def test_bounds_in_float32(case: Case, kind: str) -> None:
    most = min(case.most / 3, 500.0)  # e^80 times a large coefficient is too much for float32
    single = dataclasses.replace(case, op=moved(case.op, torch.float32, torch.device("cpu")), most=most)
    box = boxes(single, kind if suits(case, kind) else "positive", dtype=torch.float32)
    for rules in case.rules:
        check_backward(single, box, rules, count=30)


def test_every_value_of_a_free_parameter_is_sound() -> None:
    tried = set()
    for case in CASES:
        for kind in ("ordinary", "straddling", "mixed"):
            if suits(case, kind) and sum(check_parameters(case, boxes(case, kind), rules) for rules in case.rules):
                tried.add(type(case.op).__name__)
    # a product's parameter is there where both factors are affine in the input: test_corners.py
    assert tried == {name for name, op in OPS.items() if op.ranges} - {"MatMul"}
