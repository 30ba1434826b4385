"""`vertex report`: the page of a run or of a sweep, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vertex_softmax.cli.common import reporting
from vertex_softmax.foundation.errors import InvalidValueError


@reporting
def report(
    run: Annotated[
        Path, typer.Argument(help="The folder of a run, of a sweep, or of a proof (accuracy.json).", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="The file of the page.", show_default="RUN/report.html")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Make a page of a run: certified rates, tightness against time, every input, the slack of each op, all answers.

    The page is one HTML file that loads nothing from the network, made from RUN/run.json alone; RUN/theorem.svg is
    included if it exists. Of sentences it shows the words: how far each is certified, which break it, the choices. Of
    images with radii of patches it shows maps. The page of a sweep shows verdicts per model, instances decided against
    time, bounds, and all instances; that of a proof about all inputs (accuracy.json) where it holds, and its parts. The
    path of the page is printed on stdout.

    Examples:
        vertex report out/demo
        vertex report out/benchmark --out benchmark.html
    """
    from vertex_softmax.runs.accuracy import NAME as ACCURACY
    from vertex_softmax.runs.report import accuracy_page, run_page, sweep_page
    from vertex_softmax.runs.run import NAME

    if run.name == ACCURACY or (not (run / NAME).is_file() and (run / ACCURACY).is_file()):
        page = accuracy_page.write(run, out)
    elif run.is_file() or (run / NAME).is_file():
        page = run_page.write(run, out)
    elif (run / sweep_page.RESULTS).is_file():
        page = sweep_page.write(run, out)
    else:
        raise InvalidValueError(
            f"{run} has neither {NAME} nor {sweep_page.RESULTS} nor {ACCURACY}: give the folder that `vertex demo`, "
            "`vertex certify`, `vertex radius` or `vertex sweep` wrote"
        )
    typer.echo(page)
    if show:
        import webbrowser

        webbrowser.open(page.absolute().as_uri())
