"""The command line as its users meet it: output, files, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vertex_softmax import __version__
from vertex_softmax.cli.main import app
from vertex_softmax.runs.demo import demo
from vertex_softmax.runs.demo.model import Architecture


@pytest.fixture
def vertex():
    runner = CliRunner()

    def run(*arguments: str):
        return runner.invoke(app, list(arguments))

    return run


def test_version_names_what_runs(vertex) -> None:
    result = vertex("--version")
    assert result.exit_code == 0
    assert f"vertex {__version__}" in result.stdout
    assert "torch" in result.stdout
    assert "CPU kernel" in result.stdout


def test_help_lists_the_commands(vertex) -> None:
    text = vertex("--help").stdout
    assert all(command in text for command in ("demo", "reproduce", "bench"))


def test_demo_writes_a_report_and_tables(vertex, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(demo, "ARCHITECTURE", Architecture(patch=4, dim=4, heads=1, mlp=0))
    monkeypatch.setattr(demo, "TRAINING", {**demo.TRAINING, "epochs": 4})
    monkeypatch.setattr(demo, "EPS", (0.01,))
    monkeypatch.setattr(demo, "BOUNDS_AT", 0.01)
    monkeypatch.setattr(demo, "STEPS", 4)
    result = vertex("demo", "--out", str(tmp_path / "demo"), "--images", "3")
    assert result.exit_code == 0, result.output
    assert "Vertex" in result.stdout
    assert "is proved" in result.stdout
    assert all(name in result.stdout for name in ("ibp", "crown", "alpha-crown", "vertex", "hybrid", "joint", "attack"))
    assert "report.html" in result.stdout
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    data = json.loads(vertex("demo", "--out", str(tmp_path / "demo"), "--images", "3", "--json").stdout)
    assert data["theorem"]["proved"] is True
    assert [row["method"] for row in data["rows"]] == list(demo.METHODS)
    assert not list((tmp_path / "demo").glob("*.tmp"))


def test_reproduce_slack_prints_the_table_and_writes_the_files(vertex, tmp_path: Path) -> None:
    result = vertex("reproduce", "slack", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "published" in result.stdout
    tables = {f"slack.{end}" for end in ("json", "md", "csv", "tex", "svg", "png")}
    assert {path.name for path in tmp_path.iterdir()} == {*tables, "index.html", "journals"}
    assert [path.name for path in (tmp_path / "journals").iterdir()] == ["slack.jsonl"]
    assert vertex("reproduce", "slack", "--out", str(tmp_path), "--json").stdout.lstrip().startswith("{")


def test_an_unknown_experiment_is_an_error_without_a_traceback(vertex) -> None:
    result = vertex("reproduce", "nonsense")
    assert result.exit_code == 2
    assert "there is no experiment 'nonsense'; choose one of" in result.stderr
    assert "Traceback" not in result.output


def test_debug_shows_the_traceback(vertex) -> None:
    result = vertex("--debug", "reproduce", "nonsense")
    assert result.exit_code not in (0, 2)


def test_bench_on_a_device_that_is_not_there(vertex) -> None:
    result = vertex("bench", "softmax-box", "--device", "abacus")
    assert result.exit_code == 2
    assert "choose cpu or cuda" in result.stderr


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("vertex")
    found = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("vertex ")
