"""Questions that had false answers (issue 19): each recipe has a finding on the code of before, and none now.

`corpus/edges` has one recipe per cause, as small as the fuzzer or its author could make it; `issue` says which finding
of issue 19 it is, `found` what the fuzzer called it on the code of before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.slowly import few
from vertex_lab.fuzz import kinds

EDGES = Path(__file__).parent / "corpus" / "edges"
NAMES = sorted(path.stem for path in EDGES.glob("*.json"))
SLOW = ("1-gpt2",)


pytestmark = pytest.mark.usefixtures("one_quiet_thread")


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EDGES / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("name", few(NAMES, lambda name: name not in SLOW))
def test_a_false_answer_is_no_longer_given(name: str, tmp_path: Path) -> None:
    report = kinds.check(read(name)["recipe"], folder=tmp_path)
    assert not report.findings


def test_every_finding_of_the_issue_that_a_question_can_show_is_there() -> None:
    numbers = {name.partition("-")[0] for name in NAMES}
    assert {"1", "2", "3", "4", "5", "6", "7", "9", "12"} <= numbers
    assert all(read(name)["found"] and read(name)["issue"] for name in NAMES)
