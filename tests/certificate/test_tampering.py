"""Certificates that were changed, spoilt or written by hand: each is rejected with a reason, or what it says is true.

What a changed file says is judged by `exact.counterexample`, which reads the network, the input box and the cases from
that file and searches an input at which a case happens; a change of anything else changes nothing that is said.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.certificate import exact
from tests.certificate.exact import Network, Written, broken_claims, inside, write
from tests.certificate.false import FALSE
from tests.certificate.tampering import (
    NAMES,
    certificate,
    flips,
    header_flips,
    input_box,
    judged,
)
from vertex_softmax.certificate.checker import check

FLIPS = 20
"""Of each certificate, in the default run."""


@pytest.mark.parametrize("name", NAMES)
def test_one_number_changed(name: str) -> None:
    found = flips(certificate(name), FLIPS, 0)
    assert min(found.values()) > FLIPS // 20  # both happen


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", NAMES)
def test_one_number_changed_a_thousand_times(name: str, seed: int) -> None:
    flips(certificate(name), 1000, seed)


@pytest.mark.parametrize("name", NAMES)
def test_one_place_of_the_header_changed(name: str) -> None:
    found = header_flips(certificate(name), 2 * FLIPS, 0)
    assert found["rejected"] > FLIPS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", NAMES)
def test_one_place_of_the_header_changed_a_thousand_times(name: str, seed: int) -> None:
    header_flips(certificate(name), 1000, seed)


@pytest.mark.parametrize("name", [name for name in NAMES if "forward" not in name])  # a forward proof claims no boxes
def test_boxes_that_do_not_hold_are_rejected(name: str) -> None:
    """Each step's box, made smaller around its middle or moved: if a true value is outside, it is rejected."""
    original = certificate(name)
    part = original.header["parts"][0]
    points = inside(*input_box(original), 12, np.random.default_rng(0))
    exactly = Network(original.header, original.arrays)
    values = [exactly.values(x) for x in points]
    false = 0
    for step in part["steps"]:
        lower, upper = (original.arrays[step[end]].astype(float) for end in ("lower", "upper"))
        for less in (1e-6, 0.01, 0.3, 0.9, 1.5):
            middle, half = lower / 2 + upper / 2, (upper - lower) / 2
            new = {step["lower"]: middle - (1 - less) * half, step["upper"]: middle + (1 - less) * half}
            changed = Written(original.header, {**original.arrays, **new})
            verdict = judged(changed.data(), changed, original, 0)
            if any(broken_claims(changed, part, value) for value in values):
                false += 1
                assert not verdict.accepted
        for end in ("lower", "upper"):  # one number far beyond the truth
            moved = {step[end]: (upper + 1 if end == "lower" else lower - 1)}
            assert not check(Written(original.header, {**original.arrays, **moved}).data()).accepted
    assert false


def test_targets_exchanged_are_judged_by_what_they_say() -> None:
    original = certificate("relu attention")
    part = original.header["parts"][0]
    a, b = (case["bound"] for case in part["property"])
    for first, second in ((a, b), *(((part["property"][0][k], part["property"][1][k])) for k in ("rows", "bound"))):
        swapped = {first: original.arrays[second], second: original.arrays[first]}
        changed = Written(original.header, {**original.arrays, **swapped})
        judged(changed.data(), changed, original, 0)
    above = Written(original.header, {**original.arrays, a: original.arrays[a] + 1e3})
    assert not check(above.data()).accepted
    rows = part["property"][0]["rows"]
    minus = Written(original.header, {**original.arrays, rows: -original.arrays[rows], a: -original.arrays[a]})
    assert not check(minus.data()).accepted


def test_only_the_model_it_was_made_for(tmp_path: Path) -> None:
    import gzip
    import hashlib

    original = certificate("relu attention")
    model = tmp_path / "model.onnx"
    model.write_bytes(b"these are the weights")
    named = {**original.header, "model": {"sha256": hashlib.sha256(model.read_bytes()).hexdigest()}}
    data = write(named, original.arrays)
    path = tmp_path / "proof.vertex"
    path.write_bytes(data)
    assert check(path, model=model).accepted
    packed = tmp_path / "model.onnx.gz"
    packed.write_bytes(gzip.compress(model.read_bytes()))
    assert check(path, model=packed).accepted
    assert check(data, model=str(model)).accepted
    model.write_bytes(b"these are other weights")
    assert "another model" in check(path, model=model).reason
    for odd in ({}, {"model": None}, {"model": {"sha256": None}}, {"model": {"sha256": ""}}, {"model": []}):
        assert not check(write({**original.header, "model": {}, **odd}, original.arrays), model=model).accepted
    for missing in (tmp_path / "none", tmp_path):
        verdict = check(path, model=missing)
        assert not verdict.accepted
        assert verdict.reason
    packed.write_bytes(packed.read_bytes()[:-5])
    assert not check(path, model=packed).accepted


@pytest.mark.parametrize("name", FALSE)
def test_what_is_false_is_never_accepted(name: str) -> None:
    verdict = check(FALSE[name]().data())
    assert not verdict.accepted
    assert verdict.reason


ONCE_ACCEPTED = [
    "a_slope_of_relu_for_tanh", "a_slope_of_relu_for_gelu", "a_slope_of_relu_for_square_root",
    "held_without_objectives",
    "coefficients_that_underflow", "coefficients_of_a_scale_that_underflow", "a_slope_that_underflows",
    "a_product_that_underflows", "weights_of_a_case_that_underflow", "nothing_divided_by_nothing",
    "a_row_that_is_all_masked", "masked_keys_with_weights", "entries_of_two_dimensions", "held_in_two_copies",
    "proof_of_cases_(True,)",
]  # fmt: skip


@pytest.mark.parametrize("name", ONCE_ACCEPTED)
def test_what_is_called_false_is_false(name: str) -> None:
    """So that the list itself is not mistaken."""
    assert exact.counterexample(FALSE[name](), np.random.default_rng(0))
