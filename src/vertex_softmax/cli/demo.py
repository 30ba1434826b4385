"""`vertex demo`: the theorem on one attention row, and a small transformer certified by six methods."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vertex_softmax.cli import values
from vertex_softmax.cli.common import complain, progress_bar, reporting
from vertex_softmax.foundation.errors import MissingDependencyError

if TYPE_CHECKING:
    from rich.table import Table

PACKAGES = {"scikit-learn": "sklearn", "python-flint": "flint", "matplotlib": "matplotlib", "jinja2": "jinja2"}
"""The packages of the extra `demo`, and the modules that they are imported as."""


@reporting
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the model, the run and the report.")] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the sampled points.")] = 0,
    images: Annotated[int, typer.Option(min=1, max=360, help="How many digits to certify.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show the theorem on one attention row and certify a small transformer: tables here, a page in OUT/report.html.

    The transformer is trained on scikit-learn's digits the first time, and kept in OUT with every finished answer: a
    demo that was interrupted continues. It needs the extra `demo`: pip install 'vertex-softmax[demo]'. Exit code 1: the
    demo contradicts itself, which is a bug to report.

    Examples:
        vertex demo --images 4
    """
    _require_packages()
    from vertex_softmax.cli.certify import summary, table, watching
    from vertex_softmax.foundation.files import write_whole
    from vertex_softmax.runs.demo import demo as example
    from vertex_softmax.runs.report import plots, run_page

    values.seed("--seed", seed)
    started = time.perf_counter()
    facts = example.theorem(seed)
    with progress_bar() as progress:
        example.model(out, progress)
    with watching(tuple(example.METHODS), example.EPS) as watch:
        run = example.certification(out, watch, images)
    for form in ("svg", "png"):
        write_whole(out / f"theorem.{form}", plots.save(plots.theorem(facts), form))
    path = run_page.write(out)
    wrong = example.trouble(run)
    if not (facts["proved"] and abs(facts["methods"][-1]["bound"] - facts["exhaustive"]) < 1e-12):
        wrong.append("the exact minimum over one row's score box is not the least value at its vertices")
    if as_json:
        typer.echo(json.dumps({"report": str(path), "theorem": facts, **summary(run)}))
    else:
        from rich.console import Console

        console = Console()
        console.print(_rows(facts))
        console.print(
            f"all {2 ** len(facts['c'])} vertices, one by one: {facts['exhaustive']:+.6f}; "
            f"lowest of {len(facts['sampled'])} random points: {min(facts['sampled']):+.6f}\n"
            f"rounded down, the result {'is proved' if facts['proved'] else 'is NOT proved'} in exact arithmetic: "
            "φ(t) ≥ 0\n",
            highlight=False,
        )
        console.print(table(run, example.METHODS))
        nexts = {
            f"vertex radius {out}/model --count 20": "the largest certified ε of twenty digits",
            f"vertex certify {out}/model --eps 0.03": "ε and methods of your own",
            "vertex verify model.onnx property.vnnlib": "your own network, as in VNN-COMP",
        }
        wide = max(map(len, nexts))
        typer.echo(f"report: {path} ({time.perf_counter() - started:.0f} s)\n\nnext:")
        typer.echo("\n".join(f"  {command:<{wide}}  {what}" for command, what in nexts.items()))
    if wrong:
        complain("\n".join(["Vertex contradicts itself; please report this:", *wrong]))
        raise typer.Exit(1)


def _require_packages() -> None:
    """Raise if a package of the extra `demo` is not installed; all that are missing are named at once."""
    found = {name: importlib.util.find_spec(module) for name, module in PACKAGES.items()}
    missing = [name for name, spec in found.items() if spec is None]
    if missing:
        raise MissingDependencyError(
            f"the demo needs {', '.join(missing)}, not installed here: pip install 'vertex-softmax[demo]'"
        )


def _rows(facts: dict[str, Any]) -> Table:
    """The bounds of one attention row as a table for the terminal."""
    from rich.table import Table

    exact = facts["methods"][-1]["bound"]
    shown = Table(title="How low can c · softmax(s) be over one box of 8 scores?")
    for name in ("method", "what it does", "lower bound", "slack"):
        shown.add_column(name, justify="right" if name in ("lower bound", "slack") else "left")
    for method in facts["methods"]:
        style = "bold green" if method["name"] == "Vertex" else None
        figures = (f"{method['bound']:+.6f}", f"{exact - method['bound']:.6f}")
        shown.add_row(method["name"], method["how"], *figures, style=style)
    return shown
