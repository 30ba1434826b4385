"""Lines are whole or no messages."""

from __future__ import annotations

import json
import random

import pytest

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.shared import seals
from vertex_softmax.runs.shared.seals import digest_of, opened, sealed

BODY = {"do": "grow", "parts": [{"part": 3, "bound": (-0.1).hex(), "name": "ä \ud800"}], "none": None, "late": True}


def test_what_is_opened_is_what_was_sealed() -> None:
    assert opened(sealed(BODY)) == BODY
    assert opened(sealed(BODY) + "\n") == BODY
    assert "\n" not in sealed({"text": "two\nlines"})


def test_a_line_that_was_changed_is_refused() -> None:
    line, rng = sealed(BODY), random.Random(0)
    for _ in range(300):
        k = rng.randrange(len(line))
        for other in (line[:k] + chr(33 + rng.randrange(90)) + line[k + 1 :], line[:k], line[:k] + line[k + 1 :]):
            if other != line:
                with pytest.raises(InvalidValueError):
                    opened(other)


@pytest.mark.parametrize("text", ["[1, 2]", "7", '"text"', "null", "{", "[" * 100_000])
def test_what_has_no_fields_is_no_message(text: str) -> None:
    with pytest.raises(InvalidValueError, match="a message"):
        opened(f"{seals._digest(text)} {text}")


def test_a_line_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    line = sealed(BODY)
    monkeypatch.setattr(seals, "MOST_BYTES", len(line) - 1)
    with pytest.raises(InvalidValueError, match="not whole"):
        opened(line)


def test_no_number_is_lost_in_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        sealed({"bound": float("nan")})


def test_a_digest_does_not_depend_on_the_order_of_fields() -> None:
    assert digest_of({"a": 1, "b": [2, 3]}) == digest_of(json.loads('{"b": [2, 3], "a": 1}'))
    assert digest_of({"a": 1, "b": [2, 3]}) != digest_of({"a": 1, "b": [3, 2]})
