"""The summary is one whole, valid page; what it shows comes from the files alone, and nothing published looks ours."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from vertex_lab.experiments import EXPERIMENTS, Column, ExperimentResult, summary
from vertex_lab.experiments.tables import NOT_RUN
from vertex_softmax.foundation.errors import InvalidValueError, MissingDependencyError, VertexError
from vertex_softmax.runs.report import svg

VOID = {"meta", "input", "br", "hr", "img", "link"}
DRAWING = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9" onload="alert(1)">
 <metadata>https://example.org/</metadata>
 <defs><style type="text/css">* { fill: red }</style><clipPath id="clip"><rect width="9" height="9"/></clipPath></defs>
 <g id="figure_1"><path id="p" d="M 0 0" clip-path="url(#clip)" style="fill: url('#clip'); stroke: none"/>
 <use xlink:href="#p"/><use href="https://example.org/a.svg#p"/><path style="fill: url(https://example.org/b)"/>
 <image xlink:href="https://example.org/c.png"/><image xlink:href="data:image/png;base64,AAAA"/></g>
 <script>alert(2)</script><a href="https://example.org/"><text>linked</text></a><text>a &lt; b</text>
</svg>"""


class Page(HTMLParser):
    """Tags that balance, their attributes, and the text of every cell with its classes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[tuple[str, str]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append((dict(attrs).get("class", ""), ""))

    def handle_startendtag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if "script" in self.open or "style" in self.open:
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            kind, text = self.rows[-1][-1]
            self.rows[-1][-1] = (kind, text + data)

    def all(self, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for _, attrs in self.tags if attribute in attrs]


def example(name: str = "slack", **changes: object) -> ExperimentResult:
    fields: dict[str, object] = {
        "name": name,
        "title": f"The {name} table",
        "columns": (Column("Case"), Column("Rate", ".2f"), Column("> α", ".1e"), Column("Equal"), Column("Status")),
        "rows": (
            {"Case": "one", "Rate": 0.125, "> α": 2e-7, "Equal": True, "Status": "end to end"},
            {"Case": "two", "Status": NOT_RUN},
        ),
        "published": ({"Rate": 0.777}, {"Rate": 0.888}),
        "notes": ("A note.",),
        "settings": {"quick": False, "seeds": [0, 1]},
        "seconds": 1234.5,
        "versions": {"python": "3", "machine": "a machine"},
    }
    return ExperimentResult(**(fields | changes))  # type: ignore[arg-type]


def made(out: Path, *results: ExperimentResult) -> Page:
    for result in results:
        result.save(out)
    return Page(summary.write(out).read_text(encoding="utf-8"))


def test_the_page_is_valid_and_loads_nothing(tmp_path) -> None:
    for name in ("slack", "patch"):
        (tmp_path / f"{name}.svg").write_text(DRAWING)
    page = made(tmp_path, *(example(name) for name in EXPERIMENTS))
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    assert {"slack-svg-clip", "patch-svg-clip"} <= set(ids)
    for reference in (value[1:] for value in page.all("href") if value.startswith("#")):
        assert reference in ids
    for attribute in ("aria-labelledby", "aria-describedby", "for", "data-table"):
        assert set(page.all(attribute)) <= set(ids)
    assert "http://" not in (tmp_path / "index.html").read_text()
    assert "https://" not in (tmp_path / "index.html").read_text()
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    beside = {value for value in page.all("href") if not value.startswith(("#", "data:"))}
    assert {"slack.md", "slack.csv", "slack.tex", "slack.json", "slack.svg"} <= beside
    assert all((tmp_path / file).exists() for file in beside)


def test_the_script_of_the_page_is_its_own_alone(tmp_path) -> None:
    bad = "<script>alert('&')</script>"
    page = made(
        tmp_path,
        example(
            title=bad,
            notes=(bad,),
            failures=(bad,),
            columns=(Column(bad),),
            rows=({bad: bad},),
            published=({bad: bad},),
            settings={bad: bad},
            versions={"machine": bad},
        ),
    )
    text = (tmp_path / "index.html").read_text()
    assert text.count("<script") == 1
    assert "alert" not in text[text.index("<script") :]
    assert page.text.count(bad) >= 10


def test_published_figures_stand_only_under_published(tmp_path) -> None:
    page = made(tmp_path, example())
    ours = [text for row in page.rows for kind, text in row if "theirs" not in kind.split()]
    theirs = [text for row in page.rows for kind, text in row if "theirs" in kind.split()]
    assert theirs == ["published", "0.78", "0.89"]
    assert not {"0.78", "0.89"} & set(ours)
    assert "0.12" in ours
    table = page.rows[-2:]
    assert [text for _, text in table[0]] == ["one", "0.12", "0.78", "2.0e-07", "yes", "end to end"]
    assert [text for _, text in table[1]] == ["two", "–", "0.89", "–", "–", NOT_RUN]
    classes = [attrs.get("class") or "" for tag, attrs in page.tags if tag == "tr"]
    assert classes[-1].split() == ["idle"]
    assert classes[-2] == ""


def test_without_published_figures_there_is_no_such_column(tmp_path) -> None:
    page = made(tmp_path, example(published=({}, {})))
    assert [text for _, text in page.rows[-3]] == ["Case", "Rate", "> α", "Equal", "Status"]
    assert not [text for row in page.rows for kind, text in row if "theirs" in kind]
    assert "nothing is published for these rows" in page.text


def test_contents_in_the_order_of_the_experiments(tmp_path) -> None:
    quick = example("patch", settings={"quick": True}, failures=("one is not two",))
    idle = example("threshold", rows=({"Case": "a", "Status": NOT_RUN},), published=({},), settings={})
    (tmp_path / "foreign.json").write_text("{")
    page = made(tmp_path, quick, example(), idle)
    contents = [[text for _, text in row] for row in page.rows[1 : len(EXPERIMENTS) + 1]]
    assert [row[0] for row in contents] == list(EXPERIMENTS)
    rows = {row[0]: row[2:] for row in contents}
    table = EXPERIMENTS["slack"].table
    assert rows["slack"] == [table, f"2 (1 {NOT_RUN})", "holds", "full", "1,234.5", "a machine"]
    assert rows["patch"][2:4] == ["DOES NOT HOLD", "quick"]
    assert rows["threshold"][1:4] == [f"1 (1 {NOT_RUN})", "–", "–"]
    assert rows["interval"][1] == "not run: vertex reproduce interval"
    assert [attrs["id"] for tag, attrs in page.tags if tag == "section"] == ["threshold", "slack", "patch"]
    assert "one is not two" in page.text
    assert "foreign" not in page.text


def test_a_folder_without_results_gives_a_page_that_says_how_to_get_them(tmp_path) -> None:
    page = made(tmp_path / "new")
    assert all(f"not run: vertex reproduce {name}" in page.text for name in EXPERIMENTS)


def test_long_tables_have_a_filter(tmp_path) -> None:
    rows = tuple({"Case": "ab"[i // 10], "Rate": i} for i in range(20))
    page = made(tmp_path, example(), example("patch", rows=rows, published=({},) * 20))
    assert [attrs["data-table"] for tag, attrs in page.tags if tag == "input"] == ["patch-table"]
    assert [attrs["class"] for tag, attrs in page.tags if tag == "tr" and attrs.get("class") == "opens"] == ["opens"]


def test_the_same_files_give_the_same_page(tmp_path) -> None:
    made(tmp_path, example())
    first = (tmp_path / "index.html").read_bytes()
    made(tmp_path)
    assert (tmp_path / "index.html").read_bytes() == first


def test_numbers_without_formats_are_shown_in_full(tmp_path) -> None:
    made(tmp_path, example())
    path = tmp_path / "slack.json"
    data = json.loads(path.read_text())
    assert data.pop("formats") == ["", ".2f", ".1e", "", ""]
    path.write_text(json.dumps(data))
    assert "0.125" in made(tmp_path).text


@pytest.mark.parametrize(
    "damage",
    [
        {"name": "patch"},
        {"title": None},
        {"columns": ["Case"]},
        {"columns": [["Case"]]},
        {"rows": [{"Case": "one"}]},
        {"rows": [{"Case": [1]}, {}]},
        {"rows": [1, 2]},
        {"rows": [{"Rate": 10**400}, {}]},
        {"published": {}},
        {"notes": "text"},
        {"notes": [1]},
        {"settings": []},
        {"seconds": "1"},
        {"versions": {"python": 3}},
        {"failures": None},
        {"formats": [".2f"]},
        {"formats": ["", ".9999999999f", "", "", ""]},
        {"formats": ["", "d", "", "", ""]},
        {"formats": 1},
    ],
)
def test_a_foreign_table_is_named_and_the_page_stays(tmp_path, damage) -> None:
    made(tmp_path, example())
    before = (tmp_path / "index.html").read_bytes()
    path = tmp_path / "slack.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(VertexError, match=rf"^{re.escape(str(path))} .*: vertex reproduce slack$"):
        summary.write(tmp_path)
    assert (tmp_path / "index.html").read_bytes() == before


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": "slack", "seconds": NaN}', "[" * 100_000, "\xff"])
def test_a_damaged_file_is_named(tmp_path, text) -> None:
    path = tmp_path / "slack.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidValueError, match=re.escape(str(path))):
        summary.write(tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path) -> None:
    (tmp_path / "slack.json").mkdir()
    with pytest.raises(InvalidValueError, match=re.escape(str(tmp_path / "slack.json"))):
        summary.write(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "<svg>", "<html></html>", "<g>".join(["<svg>", *[""] * 5000]) + "</g>" * 5000 + "</svg>"]
)
def test_a_damaged_plot_is_named(tmp_path, text) -> None:
    example().save(tmp_path)
    (tmp_path / "slack.svg").write_text(text)
    with pytest.raises(InvalidValueError, match=re.escape(str(tmp_path / "slack.svg"))):
        summary.write(tmp_path)


def test_a_picture_keeps_what_is_drawn_and_nothing_else() -> None:
    text = svg.inlined(DRAWING.encode(), "x-")
    assert text.startswith('<svg viewBox="0 0 9 9">')
    assert '<path id="x-p" d="M 0 0" clip-path="url(#x-clip)" style="fill: url(#x-clip); stroke: none"' in text
    assert '<use href="#x-p"' in text
    assert '<image href="data:image/png;base64,AAAA"' in text
    assert "<text>a &lt; b</text>" in text
    for gone in ("http", "alert", "metadata", "fill: red", "linked", "<a", "xlink"):
        assert gone not in text


def test_a_missing_jinja2_names_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingDependencyError, match=r"vertex-softmax\[report\]"):
        summary.write(tmp_path)
