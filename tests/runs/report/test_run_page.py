"""The page of a run is one whole file that loads nothing; what the run says is text in it, whatever it says."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.runs.report import made
from vertex_softmax.cli.main import app
from vertex_softmax.foundation.errors import InvalidValueError, MissingDependencyError
from vertex_softmax.runs.records import packed
from vertex_softmax.runs.report import pictures, run_page, templates
from vertex_softmax.runs.report.numbers import short
from vertex_softmax.runs.report.run_data import Facts, page_data, slots
from vertex_softmax.runs.run import (
    Attacked,
    AttentionHeads,
    Data,
    Radius,
    Run,
    RunAnswer,
    RunInput,
    SlackMap,
    write,
)

ROOT = Path(__file__).parents[3]
VOID = {"meta", "input", "br", "hr", "img", "link"}
BAD = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--\u2028\ud800"
LOADING = {"src", "srcset", "action", "formaction", "poster", "background", "ping", "data", "xlink:href"}


class Page(HTMLParser):
    """Tags that balance, their attributes, the text, and the content of every script."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts = "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[-1] += data
        elif self.open[-1:] != ["style"]:
            self.text += data

    def all(self, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for _, attrs in self.tags if attribute in attrs]

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


def page(run: Run, theorem: str = "") -> Page:
    return Page(run_page.page(run, theorem).decode())


def check_alone(text: str) -> None:
    """Nothing is loaded, by any way that HTML has; the one script is the one that the policy names."""
    found = Page(text)
    assert not {"iframe", "object", "embed", "img", "video", "audio", "base", "form"} & {tag for tag, _ in found.tags}
    for _tag, attrs in found.tags:
        assert not {name for name in attrs if name in LOADING or name.startswith("on")}
    assert all(value.startswith("#") or value == "data:," for value in found.all("href"))
    assert {value[1:] for value in found.all("href") if value.startswith("#")} <= set(found.all("id"))
    assert len(found.all("id")) == len(set(found.all("id")))
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    data, script = found.scripts
    policy = next(attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in policy
    assert "unsafe-eval" not in policy
    assert not set("<>&") & set(data)
    assert data.isascii()


@pytest.fixture(scope="module")
def run() -> Run:
    return made.run(24)


def test_the_page_is_valid_and_loads_nothing(run) -> None:
    picture = run_page.svg.inlined((ROOT / "docs" / "theorem.svg").read_bytes(), "theorem-")
    for text in (run_page.page(run, picture), run_page.page(made.radius_run(12)), run_page.page(made.run(0))):
        check_alone(text.decode())
        assert b"http" not in text.replace(b"http-equiv", b"")


def test_the_scripts_use_data_as_text_only() -> None:
    names = [path.name for path in (ROOT / "src/vertex_softmax/runs/report/assets").iterdir()]
    assert {*run_page.SCRIPTS, "core.js", "charts.js", "table.js", "sweep.js", "accuracy.js", "page.css"} == set(names)
    for name in names:
        text = templates.text(f"assets/{name}")
        assert len(text.splitlines()) <= 500
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|</|<!--|fetch\(", text
        )


def test_the_same_run_gives_the_same_bytes(run, tmp_path) -> None:
    write(run, tmp_path)
    first = run_page.write(tmp_path).read_bytes()
    assert run_page.write(tmp_path / "run.json", tmp_path / "deep" / "page.html").read_bytes() == first
    assert run_page.page(run) == first


def hostile(run: Run) -> Run:
    """Every text of a run is one that would like to be a script."""
    answers = tuple(dataclasses.replace(a, method=BAD, reason=BAD) for a in run.answers if a.method == "joint")
    assert run.slack is not None
    heads = tuple(AttentionHeads(BAD, part.row_slack, part.score_width) for part in run.slack.attentions)
    others = tuple(dataclasses.replace(part, name=BAD, op=BAD) for part in run.slack.others)
    return dataclasses.replace(
        run,
        title=BAD,
        version=BAD,
        created=BAD,
        model=dataclasses.replace(run.model, name=BAD, sha256=BAD, facts={BAD: BAD}),
        data=dataclasses.replace(run.data, name=BAD, classes=(BAD,) * 10),
        methods=(BAD,),
        answers=answers,
        slack=dataclasses.replace(run.slack, method=BAD, attentions=heads, others=others),
        settings={BAD: BAD, "best bounds at ε": BAD},
    )


def test_hostile_names_are_text(run, tmp_path) -> None:
    write(hostile(run), tmp_path)
    text = run_page.write(tmp_path).read_text()
    check_alone(text)
    found = Page(text)
    assert found.text.count(BAD.replace("\ud800", "?")) >= 12
    assert found.data["methods"][0]["name"] == BAD
    assert found.data["answers"]["reasons"][0] == BAD


def test_a_missing_dependency_names_the_extra(run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingDependencyError, match=r"vertex-softmax\[report\]"):
        run_page.page(run)


def test_figures_are_the_runs(run) -> None:
    found = page(run)
    data = found.data
    for m, method in enumerate(run.methods):
        for k, eps in enumerate(run.eps):
            assert data["rates"][m][k] == run.rate(method, eps)
            assert data["ceiling"][k] == run.ceiling(eps)
            said = [a for a in run.answers if (a.method, a.eps) == (method, eps)]
            assert data["tightness"][m][k]["seconds"] == pytest.approx(sum(a.seconds for a in said) / 24, rel=1e-5)
    certified = data["statuses"].index("certified")
    assert [s == certified for s in data["answers"]["status"]] == [a.verdict == "verified" for a in run.answers]
    wrong = {i for i, x in enumerate(run.inputs) if x.clean < 0}
    assert wrong
    named = {data["answers"]["input"][k] for k, s in enumerate(data["answers"]["status"]) if s == 3}
    assert named == wrong
    rate = run.rate("joint", 0.08)
    assert rate is not None
    assert f"{100 * rate:.1f} %" in found.text
    assert "none is above its margin" in found.text
    assert "contradicts itself" not in found.text


def test_the_lede_counts(run) -> None:
    facts = Facts.of(run)
    k = facts.telling()
    assert k is not None
    text = " ".join(run_page.lede(facts))
    assert (
        f"At ε = {run.eps[k]:g}, joint certifies {round(24 * (run.rate('joint', run.eps[k]) or 0))} of 24 inputs"
        in text
    )
    assert f"no method can certify more than {round(24 * (run.ceiling(run.eps[k]) or 0))}." in text
    rates = np.array([[run.rate(m, e) or 0 for m in run.methods] for e in run.eps])
    apart = rates.max(1) - np.sort(rates, 1)[:, 2]
    assert k == int(np.argmax(np.round(apart, 9)))
    assert run_page.lede(Facts.of(made.run(0))) == ["This run has no inputs."]
    assert "median certified radius of 12 inputs" in run_page.lede(Facts.of(made.radius_run(12)))[0]


def test_a_method_that_was_not_asked_about_all_has_no_rate(run) -> None:
    some = tuple(a for a in run.answers if a.method != "ibp" or a.input < 5)
    found = page(dataclasses.replace(run, answers=some, attacks=run.attacks[:7]))
    assert found.data["rates"][0] == [None] * 5
    assert found.data["ceiling"] == [None] * 5
    assert "–" in found.text
    assert "ibp" not in found.text.split("certifies")[1].split(".")[0]
    assert "ruled out" not in found.text


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"bound": 99.0}, "1 bounds lie above a margin that the attack reached"),
        ({"verdict": "verified", "input": 0, "eps": 0.08}, "1 answers certify an input that is misclassified"),
    ],
)
def test_a_run_that_contradicts_itself_says_so_first(run, changed, text) -> None:
    wrong = next(i for i, x in enumerate(run.inputs) if x.clean < 0)
    answers = list(run.answers)
    k = next(k for k, a in enumerate(answers) if a.input == wrong)
    answers[k] = dataclasses.replace(answers[k], **{**changed, "input": wrong, "eps": answers[k].eps})
    found = page(dataclasses.replace(run, answers=tuple(answers)))
    assert text in found.text
    assert found.text.index("contradicts itself") < found.text.index("What is proved")
    assert "none is above its margin" not in found.text


def test_radii_that_contradict_the_attack_are_told() -> None:
    run = made.radius_run(12)
    assert not Facts.of(run).contradictions()
    radii = (dataclasses.replace(run.radii[0], certified=1.0), *run.radii[1:])
    assert Facts.of(dataclasses.replace(run, radii=radii)).contradictions() == [
        "1 certified radii reach beyond an ε at which the input was fooled"
    ]
    nothing = Radius(0, "joint", 0.0, 0.0, 0.0, 1.0)  # as a misclassified input has it
    wrong = dataclasses.replace(run.inputs[0], predicted=99)
    assert not Facts.of(dataclasses.replace(run, inputs=(wrong, *run.inputs[1:]), radii=(nothing,))).contradictions()


def test_short_numbers_keep_their_sign() -> None:
    assert short(-1.23456789e-300) == -1.23457e-300
    assert short(5e-324) == 5e-324
    assert short(None) is None


def test_every_method_has_a_colour_of_its_own_while_there_are_any() -> None:
    assert slots(("joint", "mine", "crown", "yours")) == [0, 1, 3, 2]
    assert len(set(slots(made.METHODS))) == 6
    assert len(slots([f"m{i}" for i in range(20)])) == 20
    assert max(slots([*made.METHODS, *(f"m{i}" for i in range(20))])) <= 7


@pytest.mark.parametrize(
    ("shape", "clip", "kind", "size"),
    [
        ((1, 8, 6), None, "grey", (8, 6)),
        ((3, 8, 6), None, "rgb", (8, 6)),
        ((8, 6, 3), None, "rgb", (8, 6)),
        ((8, 6, 1), None, "grey", (8, 6)),
        ((8, 6), (0.0, 1.0), "grey", (8, 6)),
        ((8, 6), None, "heat", (8, 6)),
        ((64,), (0.0, 1.0), "grey", (8, 8)),
        ((5,), None, "heat", (1, 5)),
        ((70,), None, "heat", (3, 32)),
        ((2, 4, 5), None, "heat", (8, 5)),
        ((), None, "heat", (1, 1)),
    ],
)
def test_inputs_of_any_shape_are_drawn(shape, clip, kind, size) -> None:
    x = (
        np.random.default_rng(0).uniform(-1, 1, shape)
        if clip is None
        else np.random.default_rng(0).uniform(0, 1, shape)
    )
    other = x + 0.003
    run = dataclasses.replace(
        made.run(1),
        data=Data("d", shape, clip),
        inputs=(RunInput(0, 0, 0, 1.0, packed(x)),),
        answers=(),
        attacks=(Attacked(0, 0.01, -1.0, 1, packed(other)),),
    )
    found = pictures.pictures(run)
    assert (found.about["kind"], (found.about["height"], found.about["width"])) == (kind, size)
    depth = 3 if kind == "rgb" else 1
    levels = np.frombuffer(base64.b64decode(found.inputs[0]), dtype=np.uint8)
    assert levels.size == depth * size[0] * size[1]
    low, high = found.about["low"], found.about["high"]
    if kind != "rgb" and levels.size == x.size:
        assert np.abs(low + levels / 255 * (high - low) - x.reshape(-1)).max() <= (high - low) / 509
    change = found.changes[0]
    assert change is not None
    assert change["most"] == pytest.approx(0.003)
    signed = np.frombuffer(base64.b64decode(change["levels"]), dtype=np.int8)
    assert signed.size == levels.size
    assert signed.max() == 127
    check_alone(run_page.page(run).decode())


def test_pictures_that_are_too_large_are_thinned_out(monkeypatch) -> None:
    monkeypatch.setattr(pictures, "MOST", 100)
    found = pictures.pictures(made.run(12))
    assert found.about["step"] > 1
    assert sum(len(base64.b64decode(x)) for x in found.inputs) <= 12 * 3 * 3


def test_numbers_of_any_size_are_drawn() -> None:
    big = [packed(np.full((1, 8, 8), x)) for x in (1e308, -1e308)]
    run = made.run(2)
    inputs = tuple(dataclasses.replace(x, pixels=p, clean=1e300) for x, p in zip(run.inputs, big, strict=True))
    answers = (
        RunAnswer(0, "joint", 0.01, "unknown", -1e300, 1, 1e300),
        RunAnswer(1, "joint", 0.01, "unknown", 1e-300, 1, 0.0),
    )
    attacks = (Attacked(0, 0.01, 1e300, 1, big[1]),)
    slack = SlackMap(0.01, "joint", 1, 1e300, (AttentionHeads("a", [[1e300]], [[[-1e300]]]),), ())
    data = dataclasses.replace(run.data, clip=None)
    found = dataclasses.replace(run, data=data, inputs=inputs, answers=answers, attacks=attacks, slack=slack)
    check_alone(run_page.page(found).decode())


def test_the_data_are_smaller_than_the_run() -> None:
    run = made.run(40)
    assert len(json.dumps(page_data(Facts.of(run)))) < 0.4 * len(json.dumps(run.json()))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"eps": made.EPS[::-1]}, "does not ascend"),
        ({"answers": "twice"}, "answers has the same entry twice"),
        ({"methods": [*made.METHODS, "joint"]}, "methods has the same entry twice"),
        ({"slack": "ragged"}, "heads × rows"),
        ({"settings": {"x": "inf"}}, "settings.x"),
    ],
)
def test_bad_runs_are_named(tmp_path, change, text) -> None:
    data = json.loads(json.dumps(made.run(2).json()))
    if change.get("answers"):
        data["answers"].append(data["answers"][0])
    elif change.get("slack"):
        data["slack"]["attentions"][0]["row_slack"][0].pop()
    else:
        data.update(change)
    (tmp_path / "run.json").write_text(json.dumps(data).replace('"x": "inf"', '"x": 1e999'))
    with pytest.raises(InvalidValueError, match=text):
        run_page.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_the_theorem_has_its_section(run, tmp_path) -> None:
    write(run, tmp_path)
    assert 'id="how"' not in run_page.write(tmp_path).read_text()
    (tmp_path / "theorem.svg").write_bytes((ROOT / "docs" / "theorem.svg").read_bytes())
    text = run_page.write(tmp_path).read_text()
    check_alone(text)
    assert 'id="how"' in text
    (tmp_path / "theorem.svg").write_text("<svg")
    with pytest.raises(InvalidValueError, match=r"theorem\.svg"):
        run_page.write(tmp_path)


def vertex(*arguments: object):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_command(run, tmp_path, monkeypatch) -> None:
    write(run, tmp_path)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    found = vertex(tmp_path, "--open")
    assert (found.exit_code, found.stdout) == (0, f"{tmp_path / 'report.html'}\n")
    assert opened == [(tmp_path / "report.html").as_uri()]
    found = vertex(tmp_path / "run.json", "--out", tmp_path / "a" / "b.html")
    assert (found.exit_code, found.stdout) == (0, f"{tmp_path / 'a' / 'b.html'}\n")
    assert (tmp_path / "a" / "b.html").read_bytes() == (tmp_path / "report.html").read_bytes()
    assert len(opened) == 1


def test_the_command_says_what_it_needs(tmp_path) -> None:
    for place, text in ((tmp_path, "neither run.json nor results.csv"), (tmp_path / "no", "neither")):
        found = vertex(place)
        assert found.exit_code == 2
        assert text in found.stderr
    (tmp_path / "run.json").write_text("{}")
    assert "is not a run of Vertex" in vertex(tmp_path).stderr
    write(made.run(1), tmp_path)
    (tmp_path / "file").write_text("")
    found = vertex(tmp_path, "--out", tmp_path / "file" / "page.html")
    assert found.exit_code == 2
    assert "cannot be written" in found.stderr
