"""The report is made of numbers alone, and says how to get what it needs."""

from __future__ import annotations

import sys

import pytest

from vertex_softmax import demo
from vertex_softmax.errors import MissingDependencyError
from vertex_softmax.report import page, plots


@pytest.fixture(scope="module")
def data():
    return demo.run()


def test_the_page_is_one_file_and_escapes_what_it_shows(data, tmp_path) -> None:
    tokens = ["<script>alert(1)</script>", *data["tokens"][1:]]
    methods = [{**method, "how": "<b>" + method["how"]} for method in data["methods"]]
    text = page.write_demo({**data, "tokens": tokens, "methods": methods}, tmp_path, "0").read_text()
    assert "<b>" not in text
    assert "<script" not in text
    assert "<link" not in text
    assert "src=" not in text


@pytest.fixture
def certification():
    row = {"how": "<b>how", "certified": 0.5, "bound": -0.25, "seconds": 0.01}
    return {
        "data": "digits",
        "images": 4,
        "eps": 0.08,
        "architecture": {"blocks": 1, "heads": 2},
        "tokens": 16,
        "accuracy": 0.9375,
        "rows": [{**row, "method": name} for name in ("ibp", "crown", "vertex", "hybrid", "another")],
        "attack": {"certified": 0.75, "bound": 1.5, "seconds": 0.02},
        "consistent": True,
    }


def test_the_page_tells_of_the_transformer_if_there_is_one(data, certification, tmp_path) -> None:
    assert "transformer" not in page.write_demo(data, tmp_path / "without", "0").read_text()
    text = page.write_demo({**data, "certification": certification}, tmp_path, "0").read_text()
    assert text.count("<svg") == 3
    assert "<b>" not in text
    assert "accuracy 93.8 %" in text
    assert '<td>hybrid</td><td>&lt;b&gt;how</td><td class="n">50 %</td><td class="n">-0.250</td>' in text
    assert "≤ 75 %" in text
    assert "No bound lies above a margin that the attack reached, and none" in text
    wrong = {**certification, "consistent": False}
    assert "please report this" in page.write_demo({**data, "certification": wrong}, tmp_path, "0").read_text()


def test_the_bars_are_drawn_the_same_each_time(certification) -> None:
    assert plots.save(plots.rates(certification), "svg") == plots.save(plots.rates(certification), "svg")


def test_the_same_numbers_give_the_same_picture(data) -> None:
    assert plots.save(plots.theorem(data), "svg") == plots.save(plots.theorem(data), "svg")


def test_the_picture_in_the_readme_is_this_one(data) -> None:
    from pathlib import Path

    committed = Path(__file__).parents[2] / "docs" / "theorem.svg"
    assert committed.read_bytes() == plots.save(plots.theorem(data), "svg")


def test_growth_is_drawn() -> None:
    rows = [{"keys": 16, "newton": 5.0, "threshold": 50.0}, {"keys": 32, "newton": 5.0, "threshold": 60.0}]
    assert plots.save(plots.growth(rows), "png").startswith(b"\x89PNG")


@pytest.mark.parametrize("module", ["matplotlib", "jinja2"])
def test_a_missing_dependency_names_the_extra(data, tmp_path, monkeypatch, module) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=r"vertex-softmax\[report\]"):
        page.write_demo(data, tmp_path, "0")
