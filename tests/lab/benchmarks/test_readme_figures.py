"""The figures of README.md and docs/ are those of results/ and lab/benchmarks/runs/, and their commands exist."""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "lab" / "benchmarks"))  # scripts, not a package

import readme_figures  # noqa: E402
import readme_measure  # noqa: E402
import readme_runs  # noqa: E402
import readme_tightness  # noqa: E402
from readme_measure import MEASURES, RUNS, Measure  # noqa: E402

from vertex_lab.experiments import EXPERIMENTS  # noqa: E402
from vertex_softmax.cli.main import app  # noqa: E402

UNUSED = {"layernorm-bab", "scale", "slack", "tune_triton_h200"}
"""Files of runs/ that other pages are about."""


def table() -> list[readme_runs.Row]:
    return readme_runs.rows(readme_runs.Runs(readme_figures.RUNS), readme_runs.Runs(readme_figures.RESULTS))


@pytest.mark.parametrize("name", readme_figures.PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert readme_figures.page(text) == text, "run make figures"


def test_all_blocks_are_shown_and_nothing_would_change() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in readme_figures.PAGES]
    shown = [found[2] for text in texts for found in readme_figures.BLOCK.finditer(text)]
    assert set(shown) == set(readme_figures.BLOCKS)
    assert len(shown) == sum(text.count("<!-- end -->") for text in texts)
    assert readme_figures.main(["--check"]) == 0


@pytest.mark.parametrize("name", ["README.md", "docs/results.md"])
def test_no_time_or_ratio_is_typed_by_hand(name: str) -> None:
    """Outside of the generated blocks there is no number with × or a unit of time or memory."""
    text = (ROOT / name).read_text(encoding="utf-8")
    outside = readme_figures.BLOCK.sub("", text)
    assert not re.search(r"\d\s?(×|ms\b|s\b|GiB|seconds)", re.sub(r"`[^`]*`", "", outside))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def test_the_results_are_one_full_run_of_everything() -> None:
    for name in EXPERIMENTS:
        data = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
        assert data["name"] == name
        assert data["failures"] == [], name
        assert data["settings"].get("quick", False) is False, name
        for ending in ("md", "csv", "tex"):
            assert (ROOT / "results" / f"{name}.{ending}").stat().st_size < 200_000


def test_rows_that_were_not_run_have_no_number_of_ours() -> None:
    for name in ("patch", "block", "strong", "paired", "bootstrap", "numerical"):
        data = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
        for row in data["rows"]:
            if row["Status"] == "not run here":
                numbers = {key for key, cell in row.items() if isinstance(cell, float | int)}
                assert numbers <= {"ε"}, row


def test_another_figure_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (ROOT / "results").glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        for row in data["rows"]:
            if "Cert." in row and row["Cert."] is not None:
                row["Cert."] += 0.001
        (tmp_path / path.name).write_text(json.dumps(data), encoding="utf-8")
    monkeypatch.setattr(readme_figures, "RESULTS", tmp_path)
    assert readme_figures.main(["--check"]) == 1


def changed(value: Any) -> Any:
    """Every number one and a half times as large, and one more."""
    if isinstance(value, dict):
        return {key: changed(cell) for key, cell in value.items()}
    if isinstance(value, list):
        return [changed(cell) for cell in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(1.5 * value) + 1 if isinstance(value, int) else 1.5 * value + 1


@pytest.mark.parametrize("name", sorted({path.stem for path in RUNS.glob("*.json")} - UNUSED))
def test_other_numbers_in_a_run_are_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every file that is not known to be about something else: a new run has its row, or is left out knowingly."""
    for path in RUNS.glob("*.json"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(readme_figures, "RUNS", tmp_path)
    data = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    (tmp_path / f"{name}.json").write_text(json.dumps(changed(data)), encoding="utf-8")
    assert readme_figures.main(["--check"]) == 1


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key, cell in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(cell, (*place, key))
    else:
        yield place


def test_every_single_number_of_the_soundness_row_is_noticed(tmp_path: Path) -> None:
    data = json.loads((RUNS / "soundness.json").read_text(encoding="utf-8"))
    seen = set()
    for place in leaves({key: data[key] for key in ("instances", "answers", "wrong", "attacked", "seconds")}):
        other = json.loads(json.dumps(data))
        cell = other
        for key in place[:-1]:
            cell = cell[key]
        cell[place[-1]] += 1
        (tmp_path / "soundness.json").write_text(json.dumps(other), encoding="utf-8")
        if readme_runs.soundness(readme_runs.Runs(tmp_path)) != readme_runs.soundness(readme_runs.Runs(RUNS)):
            seen.add(place)
    assert seen == {("instances",), ("answers",), ("wrong",), ("attacked", "hat", 0), ("attacked", "hat", 1)}


def test_every_row_of_the_first_table_has_its_commands() -> None:
    command = r"`(python|vertex) [^`]*`"
    lines = readme_figures.BLOCKS["against whom"]()[2:]
    assert all(re.search(rf"\| {command}(, {command})* \|$", line) for line in lines)


def test_the_picture_of_tightness_is_of_these_runs() -> None:
    """Its points are in the file as text."""
    svg = html.unescape((ROOT / "docs" / "tightness.svg").read_text(encoding="utf-8"))
    kept = re.search(r"<dc:description>(.*?)</dc:description>", svg, re.DOTALL)
    assert kept is not None
    drawn = json.loads(kept[1])
    now = readme_tightness.points(readme_runs.Runs(RUNS))
    assert drawn == {panel: {name: list(at) for name, at in of.items()} for panel, of in now.items()}, (
        "run python docs/pictures.py tightness"
    )


MUTATION = {"areas": {"ops": {"killed": 3, "total": 4}, "all": {"killed": 3, "total": 4}}}
LIMITS = {
    "memory": [{"kept": True}, {"kept": False}],
    "leak": {"count": 1000, "grown": 3 * 2**20},
    "determinism": {"one block": {"rows": {"again": {"ulps": 0.0}, "2 threads": {"ulps": 3.5}}}},
    "broken": ["memory 64 tokens"],
}
PEER = {
    "side_by_side": [
        {"model": "ibp_3_3_8", "form": form, "dtype": "float32", "processor_ratio": ratio, "rows": []}
        for form, ratio in (("as in the file", 7.75), ("made easy", 2.9))
    ]
}


@pytest.mark.parametrize(
    ("row", "name", "data", "figure"),
    [
        (readme_runs.mutation, "mutation", MUTATION, "3 of 4"),
        (readme_runs.limits, "limits", LIMITS, "1 of 2 (0 were refused beforehand); 3 MiB; 0, 3.5. 1 limit broken"),
        (readme_runs.vit_peer, "vit-peer", PEER, "3 blocks in float32 7.8× and 2.9×"),
    ],
)
def test_a_row_is_there_when_its_file_is(
    row: Callable[[readme_runs.Runs], readme_runs.Row | None],
    name: str,
    data: dict[str, Any],
    figure: str,
    tmp_path: Path,
) -> None:
    assert row(readme_runs.Runs(tmp_path)) is None
    (tmp_path / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    found = row(readme_runs.Runs(tmp_path))
    assert found is not None
    assert found.figure == figure
    assert found.measure == name


def commands() -> list[tuple[str, Measure]]:
    """Those of the rows that are shown, and all that have their file."""
    shown = {row.measure for row in table()}
    there = {
        name for name, what in MEASURES.items() if any((what.where / file).exists() for file in what.made.values())
    }
    assert shown <= set(MEASURES)
    return [(name, MEASURES[name]) for name in sorted(shown | there)]


@pytest.mark.parametrize(("name", "what"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_is_there(name: str, what: Measure) -> None:
    """The file and the options that it knows, or the command of `vertex` with its arguments."""
    words = f"{what.command} {what.output}".split()
    program = what.program()
    if program is None:
        command: click.Command = typer.main.get_command(app)
        rest = words[1:]
        while isinstance(command, click.Group):
            command = command.commands[rest.pop(0)]
        assert command.make_context(name, rest).params
        return
    assert program.exists()
    texts = [program] if program.is_file() else list(program.glob("*.py"))
    text = "".join(path.read_text(encoding="utf-8") for path in texts)
    for option in (word for word in words if word.startswith("--")):
        assert f'"{option}"' in text, option


def test_every_result_has_a_command_that_can_be_measured() -> None:
    known = {what.command for what in MEASURES.values()}
    for name, least in (("README.md", 6), ("docs/results.md", 30)):
        text = (ROOT / name).read_text(encoding="utf-8")
        shown = re.findall(r"(?:\| |^Command: )`((?:python|vertex) [^`]*)`(?: \|)?$", text, re.MULTILINE)
        assert len(shown) >= least
        assert set(shown) <= known


def test_every_command_of_the_results_has_its_files_in_the_last_table() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    page, _, last = text.partition("## Commands and files")
    listed = dict(re.findall(r"^\| `([^`]*)` \| (`.*`) \|$", last, re.MULTILINE))
    shown = set(re.findall(r"`((?:python lab/benchmarks|python -m|vertex (?:bench|reproduce)) ?[^`]*)`", page))
    shown = {" ".join(command.split()) for command in shown}
    known = {what.command for what in MEASURES.values()}
    assert len(shown & known) >= 25
    assert shown & known <= set(listed)
    for files in listed.values():
        assert all((ROOT / file).is_file() for file in re.findall(r"`([^`]*)`", files))


@pytest.mark.parametrize("block", readme_figures.BLOCKS)
def test_every_block_names_its_command(block: str) -> None:
    assert any("`" in line and ("python " in line or "vertex " in line) for line in readme_figures.BLOCKS[block]())


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Measurements of nothing, in a repository of their own."""
    script = tmp_path / "made.py"
    script.write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('{}'); sys.exit(int(sys.argv[2]))")
    made = {"a.json": "b.json"}
    kept = tmp_path / "kept"
    measures = {
        "fine": Measure("python made.py", "{to}/a.json 0", made, where=kept),
        "broken": Measure("python made.py", "{to}/a.json 1", made, where=kept),
        "crash": Measure("python made.py", "{to}", made, where=kept),
        "gone": Measure("python nothing.py", "{to}", made, where=kept),
        "data": Measure("python made.py", "{to}/a.json 0", made, ("shared/nothing",), where=kept),
        "peer": Measure("python made.py CHECKOUT", "{to}/a.json 0", made, ("peer",), where=kept),
    }
    monkeypatch.setattr(readme_measure, "ROOT", tmp_path)
    monkeypatch.setattr(readme_measure, "MEASURES", measures)
    return kept


def test_measuring_takes_over_what_was_made(small: Path, tmp_path: Path) -> None:
    said: list[str] = []
    assert readme_measure.measure(["fine"], said.append) == []
    assert (small / "b.json").read_text() == "{}"
    assert readme_measure.measure(["fine"], said.append, into=tmp_path / "other") == []
    assert (tmp_path / "other" / "b.json").exists()
    assert not (tmp_path / "out" / "measure" / "fine").exists()


def test_a_condition_that_is_broken_is_a_figure_too(small: Path) -> None:
    said: list[str] = []
    assert readme_measure.measure(["broken"], said.append) == []
    assert (small / "b.json").exists()
    assert "exit status 1" in said[-1]


def test_what_cannot_be_measured_is_said(small: Path) -> None:
    said: list[str] = []
    assert readme_measure.measure(["gone", "data", "peer"], said.append) == ["gone", "data", "peer"]
    assert said == [
        "gone: not run here: there is no nothing.py",
        "data: not run here: there is no ../shared/nothing",
        "peer: not run here: it needs --peer CHECKOUT, of auto_LiRPA 0.7.1",
    ]
    assert not small.exists()
    with pytest.raises(SystemExit, match="there is no sped to measure; choose of fine"):
        readme_measure.measure(["sped"], said.append)


def test_without_names_all_that_can_be_run_is(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And a command that makes nothing leaves the old file, and counts as failed."""
    small.mkdir()
    (small / "b.json").write_text("old")
    said: list[str] = []
    assert readme_measure.measure(["crash"], said.append) == ["crash"]
    assert (small / "b.json").read_text() == "old"
    assert "nothing made" in said[-1]
    assert readme_measure.measure([], said.append) == ["crash"]
    assert (small / "b.json").read_text() == "{}"
    assert "Error" in capfd.readouterr().err
