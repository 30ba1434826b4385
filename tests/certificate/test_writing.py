"""Writing a certificate: every number in the fewest bytes that hold it exactly, every array once, and read again."""

from __future__ import annotations

import numpy as np
import pytest

from tests.certificate import exact
from tests.certificate.made import about, by_rule, made
from vertex_softmax.certificate import writing
from vertex_softmax.certificate.checker.file import read
from vertex_softmax.certificate.prove import written
from vertex_softmax.foundation.errors import InternalError


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ([0.0, 1.0, -0.5], "f2"), ([65504.0], "f2"), ([65520.0], "f4"), ([1 / 3], "f8"), ([np.float32(1 / 3)], "f4"),
        ([1e-300], "f8"), ([2.0**-24], "f2"), ([2.0**-25], "f4"), ([1e308], "f8"), ([], "f2"), ([5e-324], "f8"),
    ],
)  # fmt: skip
def test_floats(numbers: list[float], kind: str) -> None:
    x = np.array(numbers, dtype=np.float64)
    small = writing.compact(x)
    assert small.dtype == np.dtype(kind)
    assert np.array_equal(small.astype(np.float64), x)


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [([0, -1, 32767], "i2"), ([32768], "i4"), ([-32769], "i4"), ([2**31], "i8"), ([-(2**63)], "i8"), ([], "i2")],
)
def test_integers(numbers: list[int], kind: str) -> None:
    x = np.array(numbers, dtype=np.int64)
    small = writing.compact(x)
    assert small.dtype == np.dtype(kind)
    assert np.array_equal(small.astype(np.int64), x)


def test_shapes_stay() -> None:
    for x in (np.array(1.5), np.zeros((0, 3)), np.arange(6.0).reshape(2, 3).T, np.array(True), np.float32([1 / 3])):
        small = writing.compact(np.asarray(x))
        assert small.shape == np.shape(x)
        assert small.flags.c_contiguous
        assert np.array_equal(small, x)


def test_what_is_the_same_is_stored_once() -> None:
    _, data = by_rule(made("two blocks"))
    found = exact.read(data)
    seen = {(x.dtype.str, x.shape, x.tobytes()) for x in found.arrays.values()}
    assert len(seen) == len(found.arrays)
    graph = found.header["graph"]
    named = [name for entry in graph for name in entry["arrays"].values()]
    assert len(set(named)) < len(named)  # rearrangements of both blocks
    part = found.header["parts"][0]
    twice = writing.written(*_two_parts())
    assert len(twice) < len(data) + len(repr(part)) + 8000


def _two_parts() -> tuple:
    prover, _ = by_rule(made("two blocks"))
    part = writing.WrittenPart(prover.header, prover.arrays)
    return prover.low, [part, part], about(), prover.margin


def test_several_parts_keep_their_own_arrays() -> None:
    first, _ = by_rule(made("relu"))
    second, _ = by_rule(made("relu"), gap=2.0)
    file = read(written([first, second], about()))
    for prover, part in zip((first, second), file.header["parts"], strict=True):
        for ours, theirs in zip(prover.header["property"], part["property"], strict=True):
            for key in ("rows", "bound", "weights"):
                assert np.array_equal(prover.arrays[ours[key]], file.numbers(theirs[key]))


@pytest.mark.parametrize("fault", ["another number", "another name", "a number less", "another word"])
def test_a_file_that_does_not_say_what_was_proved_is_not_returned(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prover, _ = by_rule(made("relu"))
    real = writing._Store.named

    def spoilt(self: writing._Store, value: object, *given: object) -> object:
        found = real(self, value, *given)
        if isinstance(found, dict) and "steps" in found:
            step = found["steps"][0]
            if fault == "another word":
                step["rule"] = "vertex"
            elif fault == "another name":
                step["lower"], step["upper"] = step["upper"], step["lower"]
            elif fault == "a number less":
                self.arrays[step["lower"]] = self.arrays[step["lower"]].reshape(-1)[:-1]
            else:
                self.arrays[step["lower"]] = np.nextafter(self.arrays[step["lower"]], np.inf)
        return found

    monkeypatch.setattr(writing._Store, "named", spoilt)
    with pytest.raises(InternalError, match="does not say what was proved"):
        written([prover], about())
