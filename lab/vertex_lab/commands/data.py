"""`vertex data`: which data sets are at hand, whether their files are what they should be, and getting them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vertex_softmax.cli import values
from vertex_softmax.cli.common import group, progress_bar, reporting
from vertex_softmax.cli.names import DATA_SETS, one_of

if TYPE_CHECKING:
    from vertex_lab.zoo.inventory import State

app = group(
    """Data sets: which are at hand, and getting them.

    Examples:
        vertex data list
        vertex data fetch mnist
    """
)
DataDir = Annotated[Path, typer.Option("--data-dir", envvar="VERTEX_DATA", help="The data folder.")]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")]
HERE = Path("data")
STYLES = {"missing": "dim", "not official": "yellow", "unusable": "red"}


@app.command("list")
@reporting
def list_data(data_dir: DataDir = HERE, as_json: Json = False) -> None:
    """Every data set: how many images, where its files are or would be, and whether they are there and official.

    Examples:
        vertex data list
        vertex data list --data-dir data --json
    """
    from vertex_lab.zoo.inventory import inventory

    _show(inventory(data_dir), data_dir, as_json)


@app.command()
@reporting
def check(
    name: Annotated[
        str | None,
        typer.Argument(autocompletion=one_of(DATA_SETS), help="Which data set; all that are there unless told."),
    ] = None,
    data_dir: DataDir = HERE,
    as_json: Json = False,
) -> None:
    """Read every file to its end: is its content official (SHA-256), is it whole, does it hold images and labels?

    Exit code 1 if a file is damaged or not official, or if the data set that is named is missing.

    Examples:
        vertex data check
        vertex data check mnist --data-dir data
    """
    from vertex_lab.zoo.datasets import NAMES, known
    from vertex_lab.zoo.inventory import inventory

    states = inventory(data_dir, NAMES if name is None else [known(name)])
    _show(states, data_dir, as_json)
    if not as_json:
        for file in {file.path: file for state in states for file in state.files}.values():
            verdict = "official" if file.official else "NOT OFFICIAL"
            typer.echo(f"{verdict}: {file.path}: {file.bytes:,} bytes of content, SHA-256 {file.sha256}")
    if any(not state.right and (name is not None or state.status != "missing") for state in states):
        raise typer.Exit(1)


@app.command()
@reporting
def fetch(
    name: Annotated[str, typer.Argument(autocompletion=one_of(DATA_SETS), help="Which data set.")],
    data_dir: DataDir = HERE,
    url: Annotated[str | None, typer.Option(help="A folder that has the files: https://, http:// or file://.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 30.0,
    as_json: Json = False,
) -> None:
    """Download the official files that are not there into DATA-DIR/NAME; nothing is written before it is verified.

    Examples:
        vertex data fetch mnist --data-dir data
    """
    from vertex_lab.zoo.datasets import known, source_of
    from vertex_lab.zoo.fetch import fetch as download

    values.seconds("--timeout", timeout)
    written: list[Path] = []
    if known(name) != "digits":
        with progress_bar() as progress:
            written = download(source_of(name), data_dir, address=url, timeout=timeout, progress=progress)
    if as_json:
        typer.echo(json.dumps({"name": name, "written": [str(path) for path in written]}))
        return
    if name == "digits":
        typer.echo("digits come with scikit-learn: nothing to fetch")
        return
    for path in written:
        typer.echo(f"written: {path} (the SHA-256 of its content is official)")
    if not written:
        typer.echo(f"nothing to fetch: all official files of {source_of(name).name} are in {data_dir}")


def _show(states: list[State], data_dir: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(state) for state in states]))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"data folder {data_dir}"))
    for column in ("name", "status", "where"):
        table.add_column(column, no_wrap=column != "where", overflow="fold")
    for column in ("train", "eval", "image"):
        table.add_column(column, no_wrap=True, justify="right")
    for state in states:
        shape, style = "×".join(map(str, state.shape)), STYLES.get(state.status)
        where = Text(state.where.removeprefix(f"{data_dir}/"))
        table.add_row(state.name, state.status, where, f"{state.train:,}", f"{state.eval:,}", shape, style=style)
    console = Console()
    console.print(table)
    for note, names in _notes(states).items():
        console.print(f"{', '.join(names)}: {note}", markup=False, highlight=False, soft_wrap=True)


def _notes(states: list[State]) -> dict[str, list[str]]:
    notes: dict[str, list[str]] = {}
    for state in states:
        if state.note:
            notes.setdefault(state.note, []).append(state.name)
    return notes
