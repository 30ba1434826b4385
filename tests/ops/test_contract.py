"""Every registered op keeps the contract of ops/contract.py, on boxes from a point to ±1e3."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
import torch

from tests.ops.cases import CASES, KINDS, Case, boxes, points, suits
from tests.ops.checks import (
    check_backward,
    check_batch,
    check_diagonal,
    check_exact,
    check_float32,
    check_interval,
    check_nan,
    check_parameters,
    coefficients,
    context,
)
from tests.ops.face_checks import (
    FORMS,
    INNER,
    check_centred,
    check_chosen,
    check_decided,
    check_forms,
    check_inner,
    check_parameters_of_forms,
    check_split,
    check_summary,
)
from vertex_softmax.ops import OPS, contract
from vertex_softmax.ops.contract import (
    AffineOp,
    Centring,
    Context,
    InnerLoss,
    InnerRange,
    Op,
    Propagating,
    Relaxation,
    Splittable,
    Summarising,
)
from vertex_softmax.ops.fields import moved, settings
from vertex_softmax.ops.generators import Generators
from vertex_softmax.ops.rules import ReluSlope, RowRule, Rules, narrowed
from vertex_softmax.ops.zonotope import Zonotope

each = pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])


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


def relaxations(cls: type = Relaxation) -> set[type[Relaxation]]:
    """All relaxations that are not ops themselves."""
    found = {each for sub in cls.__subclasses__() for each in (sub, *relaxations(sub))}
    return {each for each in found if not issubclass(each, Op)}


def all_rules(case: Case) -> Iterator[Rules]:
    """The rules of a case, and the affine vertex rule with all that it may have."""
    yield from case.rules
    if any(rules.attention is RowRule.AFFINE for rules in case.rules):
        yield Rules(attention=RowRule.AFFINE, pieces=3, coupled=True)


def test_every_value_of_a_free_parameter_is_sound() -> None:
    """Of every relaxation that has free parameters, and of every one of them."""
    tried: dict[type, set[str]] = {}
    for case in CASES:
        for kind in ("ordinary", "straddling", "mixed"):
            for rules in all_rules(case) if suits(case, kind) else ():
                found = [check_parameters(case, boxes(case, kind), rules)]
                if case.op.form_inputs and kind == "ordinary":
                    found.append(check_parameters_of_forms(case, rules))
                for each in found:
                    if each is not None:
                        tried.setdefault(type(each), set()).update(each.parameters())
    assert tried == {cls: set(cls.ranges) for cls in relaxations() if cls.ranges}


# The optional faces, each tried on every op that has it


def having(face: type[Op]) -> list[Case]:
    cases = [case for case in CASES if isinstance(case.op, face)]
    assert {type(case.op).__name__ for case in cases} == {name for name, op in OPS.items() if issubclass(op, face)}
    assert cases
    return cases


def each_having(face: type[Op]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", having(face), ids=[case.label for case in having(face)])


WITH_FORMS = [case for case in CASES if case.op.form_inputs]


def test_every_op_that_asks_for_forms_gets_them() -> None:
    assert {type(case.op).__name__ for case in WITH_FORMS} == {name for name, op in OPS.items() if op.form_inputs}
    assert {"MatMul", "Attention"} <= {type(case.op).__name__ for case in WITH_FORMS}


@pytest.mark.parametrize("case", WITH_FORMS, ids=[case.label for case in WITH_FORMS])
@pytest.mark.parametrize("kind", FORMS)
def test_with_exact_forms_of_its_inputs(case: Case, kind: str) -> None:
    for rules in all_rules(case):
        check_forms(case, rules, kind)


@each_having(Summarising)
def test_with_a_summary_of_generators(case: Case) -> None:
    for rules in all_rules(case):
        check_summary(case, rules)
        check_summary(case, dataclasses.replace(rules, sums=True))


@each_having(Centring)
@pytest.mark.parametrize("kind", ["ordinary", "wide", "mixed"])
def test_with_rows_less_their_means(case: Case, kind: str) -> None:
    for rules in all_rules(case):
        assert check_centred(case, boxes(case, kind), rules) > 0


@each_having(Splittable)
@pytest.mark.parametrize("kind", ["ordinary", "straddling", "mixed"])
def test_where_an_interval_is_split_and_what_that_may_gain(case: Case, kind: str) -> None:
    for rules in case.rules:
        check_split(case, boxes(case, kind), rules)


@each_having(InnerRange)
@pytest.mark.parametrize("kind", ["ordinary", "straddling", "positive", "offset"])
def test_the_range_of_what_is_computed_on_the_way(case: Case, kind: str) -> None:
    assert {name for name, op in OPS.items() if issubclass(op, InnerRange)} == {op.__name__ for op in INNER}
    for rules in case.rules:
        check_inner(case, boxes(case, kind if suits(case, kind) else "positive"), rules)


@each
def test_no_tighter_box_helps_where_all_is_decided(case: Case) -> None:
    """An op that says where a tighter box could help says it in the box's shape, and is exact elsewhere."""
    for kind in ("ordinary", "positive", "negative", "point"):
        box = boxes(case, kind if suits(case, kind) else "positive")
        masks = [case.op.undecided(i, b) for i, b in enumerate(box)]
        assert all(mask is None or mask.shape == b.lower.shape for mask, b in zip(masks, box, strict=True))
        if all(mask is not None and not mask.any() for mask in masks):
            for rules in case.rules:
                check_decided(case, box, rules)
    says = type(case.op).undecided is not Op.undecided
    assert says == all(mask is not None for mask in masks)


def test_the_values_for_the_checker() -> None:
    """Of every relaxation that gives some."""
    tried: dict[type, set[str]] = {}
    for case in CASES:
        for rules in all_rules(case):
            box = boxes(case, "straddling" if suits(case, "straddling") else "positive")
            names = check_chosen(case, box, rules)
            if names:
                tried.setdefault(type(case.op.relax(context(box, rules))), set()).update(names)
    giving = {cls for cls in relaxations() if cls.chosen_values is not Relaxation.chosen_values}
    assert set(tried) == giving
    assert all(tried.values())


@each
def test_what_an_op_says_of_itself(case: Case) -> None:
    """Affine ops are their own relaxations and read nothing; what is asked of an input is asked of one that is read."""
    op, inputs = case.op, set(range(len(case.shapes)))
    assert op.affine == isinstance(op, AffineOp) == isinstance(op, Relaxation)
    if op.affine:
        assert op.relax(Context(boxes=())) is op
        assert op.has_parallel_rule
        assert op.reads == ()
    else:
        assert set(op.reads) == inputs
        assert isinstance(op.relax(context(boxes(case, "positive"))), Relaxation)
    assert set(op.form_inputs) <= set(op.reads)
    if op.rearranges:
        (dims,) = case.shapes
        numbers = torch.arange(math.prod(dims), dtype=torch.float64).reshape(dims)
        assert torch.equal(op.evaluate(numbers).flatten().sort().values, numbers.flatten())
    x = points(boxes(case, "positive"), 4)
    moved_ = moved(op, torch.float32, torch.device("cpu"))
    assert moved_.evaluate(*(y.float() for y in x)).dtype == torch.float32
    names = {field.name for field in dataclasses.fields(op)}
    assert set(settings(op)) <= names


OTHER_RULES = (
    Rules(attention=RowRule.VERTEX, sums=True, exact=False, balls=False, product=0.25, pieces=2, coupled=True),
    Rules(attention=RowRule.BETTER, relu=ReluSlope.ONE, product=1.0),
    Rules(attention=RowRule.AFFINE, free=True, exact=False),
)


@each
def test_rules_that_an_op_does_not_read_change_nothing(case: Case) -> None:
    if case.op.rules_read is None or case.op.affine:
        return
    box = boxes(case, "ordinary" if suits(case, "ordinary") else "positive")
    A = coefficients(tuple(case.op.evaluate(*(b.lower for b in box)).shape[1:]))
    for rules in OTHER_RULES:
        made = [case.op.relax(context(box, used)) for used in (rules, narrowed(rules, case.op.rules_read))]
        steps = [relaxation.backward(A) for relaxation in made]
        assert all(torch.equal(x, y) for x, y in zip(steps[0].coefficients, steps[1].coefficients, strict=True))
        assert steps[0].constant is not None
        assert steps[1].constant is not None
        assert torch.equal(steps[0].constant, steps[1].constant)
        assert made[0].parameters().keys() == made[1].parameters().keys()


# The contract itself


FACES = {
    Op: {"evaluate", "interval", "relax", "carries_diagonal", "undecided"},
    AffineOp: {"relax", "linear"},
    Propagating: {"propagate", "learnt", "learnt_rows"},
    Summarising: {"summarise"},
    Centring: {"centring_weights"},
    Splittable: {"split_point", "bend"},
    InnerRange: {"inner_range"},
    Relaxation: {"backward", "parameters", "with_parameters", "chosen_values"},
    InnerLoss: {"inner_loss"},
}


def test_an_op_has_five_methods_and_each_face_its_own() -> None:
    for face, names in FACES.items():
        assert {name for name, value in vars(face).items() if name[0] != "_" and callable(value)} == names, face
    classes = {value for value in vars(contract).values() if isinstance(value, type)}
    assert {cls for cls in classes if issubclass(cls, (Op, Relaxation))} == set(FACES)


def parts_of(hint: object) -> Iterator[object]:
    yield hint
    for part in get_args(hint):
        yield from parts_of(part)


def test_the_contract_says_what_everything_is() -> None:
    """No `Any`, and nothing without a type, in the classes of ops/contract.py and their methods."""
    names = {**vars(contract), "Generators": Generators, "Zonotope": Zonotope}
    classes = [c for c in vars(contract).values() if isinstance(c, type) and c.__module__ == contract.__name__]
    assert len(classes) >= len(FACES) + 5
    for cls in classes:
        for name, hint in get_type_hints(cls, names).items():
            assert Any not in set(parts_of(hint)), f"{cls.__name__}.{name}"
        for name, value in vars(cls).items():
            function = value.fget if isinstance(value, property) else value
            if not inspect.isfunction(function) or function.__module__ != contract.__name__ or name[:2] == "__":
                continue
            hints = get_type_hints(function, names)
            assert set(inspect.signature(function).parameters) - {"self"} == set(hints) - {"return"}, name
            assert "return" in hints, name
            for hint in hints.values():
                assert Any not in set(parts_of(hint)), f"{cls.__name__}.{name}"
    assert not any(value is Any for value in vars(contract).values())
