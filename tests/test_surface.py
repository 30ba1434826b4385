"""The public surface is what docs/api.md says: names, commands and their options, formats of files, the version."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest
import typer

import vertex_softmax as vx
from vertex_softmax import sets
from vertex_softmax.certificate.checker import file, model
from vertex_softmax.cli.main import app
from vertex_softmax.cli.plugins import LABORATORY
from vertex_softmax.graph.from_onnx.file import OPSETS
from vertex_softmax.runs import run

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text()
STABLE = PAGE.partition("## What is stable")[2].partition("## Versions and deprecations")[0]
POLICY = PAGE.partition("## Versions and deprecations")[2].partition("\n## ")[0]
PICTURES = ("plot_bounds", "plot_radii", "plot_rates", "plot_slack", "plot_softmax_box")
NAMES = [
    *vx.__all__,
    *PICTURES,
    *(f"sets.{name}" for name in sets.__all__ if name not in vx.__all__),
]
SHARED = {"--quiet", "--verbose", "--debug"}


def found(name: str) -> object:
    thing: object = vx
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def test_the_page_lists_the_names_and_no_others() -> None:
    listed = re.findall(r"`vx\.([\w.]+)`", STABLE)
    assert sorted(listed) == sorted(NAMES)
    shown = {line.removeprefix("::: ").rpartition(".")[2] for line in PAGE.splitlines() if line.startswith("::: ")}
    members = set(re.findall(r"\w+", " ".join(re.findall(r"members: \[(.*?)\]", PAGE))))
    everything = shown | members | {"VertexError"}  # whose module is shown as a whole
    assert {name.rpartition(".")[2] for name in NAMES} <= everything


@pytest.mark.parametrize("name", NAMES)
def test_every_name_says_what_holds(name: str) -> None:
    thing = found(name)
    assert (thing.__doc__ or "").strip(), name
    if not inspect.isclass(thing):
        return
    for member, value in vars(thing).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not member.startswith("_") and inspect.isfunction(function):
            assert inspect.getdoc(getattr(thing, member)), f"{name}.{member}"


def test_the_page_lists_the_commands_and_their_options() -> None:
    rows = re.findall(r"^\| `vertex (\w+)` \| (.*) \|$", STABLE, re.MULTILINE)
    listed = {name: set(re.findall(r"`(--[\w-]+)`", options)) for name, options in rows}
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    there = {
        name: {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        for name, command in commands.items()
        if name not in LABORATORY
    }
    assert listed == {name: options - SHARED for name, options in there.items()}
    assert all(options >= SHARED for options in there.values())
    assert all(f"`vertex {name}`" in STABLE for name in LABORATORY)


def test_the_page_lists_the_formats() -> None:
    rows = {
        cells[0]: cells[1:] for cells in re.findall(r"^\| ([^|`]+?) \| ([^|]+) \| ([^|]+) \|$", STABLE, re.MULTILINE)
    }
    assert rows["certificate"] == (f"`{file.FORMAT}`", ", ".join(f"`{name}`" for name in (*file.OLDER, file.FORMAT)))
    assert rows["identity of a model file in a certificate"] == (f"`{model.FORMAT}`",) * 2
    assert f"| `run.json` of `vertex certify` and `vertex radius` | `{run.FORMAT}` | `{run.FORMAT}` |" in STABLE
    assert rows["model"][1] == f"ONNX, opsets {OPSETS[0]} to {OPSETS[1]}"
    assert rows["property"][1] == "VNNLIB 1.0, VNNLIB 2.0"


def test_the_version_is_that_of_the_page_and_of_the_changelog() -> None:
    assert f"in version {vx.__version__}:" in PAGE
    changelog = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert headings[0] == vx.__version__
    assert headings == sorted(headings, key=lambda text: [int(n) for n in text.split(".")], reverse=True)
    major, minor, _ = vx.__version__.split(".")
    assert re.findall(r"^- \*\*([\d.x]+)\*\*", POLICY, re.MULTILINE) == [
        f"{major}.{minor}.x",
        f"{major}.{int(minor) + 1}.0",
    ]


def test_pythons_that_are_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    promised = [
        c.rpartition(" ")[2] for c in project["classifiers"] if c.startswith("Programming Language :: Python ::")
    ]
    assert promised == ["3.11", "3.12", "3.13"]
    assert {re.match(r"[\w-]+", d)[0] for d in project["dependencies"]} == {  # type: ignore[index]
        "numpy",
        "torch",
        "typer",
        "rich",
        "safetensors",
    }
