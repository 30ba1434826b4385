from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vertex_softmax.runs.report.numbers import at_least, at_most, plain, short


@given(st.floats(min_value=0, max_value=1e300))
def test_a_page_claims_no_more_than_the_run(eps: float) -> None:
    low, high = at_most(eps), at_least(eps)
    assert low is not None
    assert high is not None
    assert low <= eps * (1 + 1e-15)
    assert high >= eps * (1 - 1e-15)
    assert low >= eps * 0.99
    assert high <= max(eps * 1.0101, 5e-324)
    assert short(low) == low


@pytest.mark.parametrize(
    ("x", "text"), [(None, "–"), (0.0, "0"), (0.12345, "0.123"), (-2.0, "−2"), (1e-7, "1e−07"), (123456.0, "123000")]
)
def test_numbers_in_three_digits(x: float | None, text: str) -> None:
    assert plain(x) == text


def test_what_is_not_known_stays_so() -> None:
    assert (at_most(None), at_least(None), short(None)) == (None, None, None)
