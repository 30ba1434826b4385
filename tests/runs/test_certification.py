"""A certification for people and for machines: short in a terminal, complete as plain values."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import sys

import pytest
import torch
from rich.console import Console

from vertex_softmax import Certification, Verdict, certify
from vertex_softmax.certificate.certificate import Certificate
from vertex_softmax.foundation.errors import MissingDependencyError
from vertex_softmax.runs import certification
from vertex_softmax.sets import LinfBall

INF, NAN = math.inf, math.nan
THREE = Certification(
    lower=torch.tensor([[INF, 0.5, 0.25], [-1.0, INF, 2.0], [NAN, -INF, INF]], dtype=torch.float64),
    verdicts=(Verdict.VERIFIED, Verdict.FALSIFIED, Verdict.UNKNOWN),
    reasons=("", "the centre is [misclassified]", "<b>no</b> & bound"),
    method="joint",
    clean=torch.tensor([[INF, 1.0, 0.75], [-0.5, INF, 3.0], [INF, 1.0, INF]], dtype=torch.float64),
    seconds={"import": 0.5, "total": 3.0},
    certificates=(Certificate(b"123", 0.125), None, None),
    peak_bytes=1 << 20,
)
NONE = Certification(torch.empty(0, 3), (), (), "ibp", torch.empty(0, 3), {})


V, F, U = Verdict.VERIFIED, Verdict.FALSIFIED, Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [((V, V, V), V), ((V, U, V), U), ((V, V, U), U), ((U, U, U), U), ((V, F, V), F), ((U, V, F), F), ((F, F, F), F)],
)
def test_a_batch_is_verified_if_all_are_and_falsified_if_one_is(verdicts: tuple[Verdict, ...], whole: Verdict) -> None:
    found = dataclasses.replace(THREE, verdicts=verdicts)
    assert found.verdict is whole
    assert found.certified.tolist() == [verdict is V for verdict in verdicts]


def test_the_repr_says_what_matters() -> None:
    assert repr(THREE) == "Certification(joint: 1 verified, 1 falsified, 1 unknown; least bound nan; 3.00 s)"
    assert repr(NONE) == "Certification(ibp: no inputs; nan s)"


def test_rows() -> None:
    first, second, third = THREE.rows()
    assert first == {
        "input": 0,
        "verdict": "verified",
        "label": 0,
        "bound": 0.25,
        "target": 2,
        "clean": 0.75,
        "reason": "",
        "proof_margin": 0.125,
        "method": "joint",
        "seconds": 1.0,
    }
    assert (second["label"], second["bound"], second["target"], second["clean"]) == (1, -1.0, 0, -0.5)
    assert (third["label"], third["bound"], third["clean"], third["proof_margin"]) == (2, None, 1.0, None)
    assert all(type(value) in {int, float, str, type(None)} for row in THREE.rows() for value in row.values())
    assert NONE.rows() == []


def test_json_has_all_and_no_nan() -> None:
    found = json.loads(THREE.to_json(), parse_constant=pytest.fail)
    assert found == THREE.to_dict()
    assert found["verdict"] == "falsified"
    assert found["counts"] == {"verified": 1, "falsified": 1, "unknown": 1}
    assert found["lower"] == [[None, 0.5, 0.25], [-1.0, None, 2.0], [None, None, None]]
    assert found["clean"][0] == [None, 1.0, 0.75]
    assert found["inputs"] == THREE.rows()
    assert found["seconds"]["total"] == 3.0
    assert json.loads(NONE.to_json(indent=1))["inputs"] == []


def test_a_table_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    table = THREE.to_pandas()
    assert set(table.columns) == set(THREE.rows()[0])
    assert table["verdict"].tolist() == ["verified", "falsified", "unknown"]
    assert table["bound"][1] == -1.0
    assert pandas.isna(table["bound"][2])
    assert list(NONE.to_pandas().columns) == list(table.columns)


def test_pandas_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        THREE.to_pandas()


def test_tables_take_nothing_for_markup() -> None:
    screen = io.StringIO()
    Console(file=screen, width=120).print(THREE)
    assert "the centre is [misclassified]" in screen.getvalue()
    page = THREE._repr_html_()
    assert "&lt;b&gt;no&lt;/b&gt; &amp; bound" in page
    assert "<b>" not in page
    assert page.count("<tr>") == 4


def test_a_table_of_many_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certification, "SHOWN", 2)
    assert THREE._repr_html_().count("<tr>") == 3
    assert "and 1 more" in THREE._repr_html_()
    screen = io.StringIO()
    Console(file=screen, width=120).print(THREE)
    assert "and 1 more" in screen.getvalue()


def test_labels_come_out_as_they_went_in() -> None:
    model = torch.nn.Linear(3, 4).double().eval()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 0])
    found = certify(model, LinfBall(x, 0.01), labels, "ibp")
    assert [row["label"] for row in found.rows()] == labels.tolist()
    assert [row["bound"] for row in found.rows()] == found.worst.tolist()
    assert str(found).startswith("Certification(ibp: ")
