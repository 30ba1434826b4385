"""Commands that other packages add: the laboratory's `reproduce`, `data`, `bench` and `suite`.

A package registers a command with an entry point of the group `vertex_softmax.commands`; its value is a typer app (a
group of commands) or a function (one command). If the laboratory is not installed, its commands say how to get it. A
package that cannot be imported affects only its own commands: they print the reason.
"""

from __future__ import annotations

from importlib.metadata import entry_points

import typer

from vertex_softmax.cli.common import reporting
from vertex_softmax.foundation.errors import InvalidValueError

GROUP = "vertex_softmax.commands"
LABORATORY = {
    "reproduce": "Remake a table of the paper (in a clone).",
    "data": "Look for the data sets of the experiments, or fetch them (in a clone).",
    "bench": "Measure speed, fuzz, and test soundness on networks with known minima (in a clone).",
    "suite": "Make a benchmark for other verifiers, in the layout of VNN-COMP (in a clone).",
}
"""The help texts of the laboratory's commands where it is not installed."""
REMEDY = "is part of the laboratory, which is not in the package: clone the project and run `pip install ./lab` there"


def add_commands(app: typer.Typer) -> None:
    """Add the registered commands; missing commands of the laboratory become commands that say how to get it."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    for name, entry in found.items():
        try:
            command = entry.load()
        except (ImportError, AttributeError) as error:
            _add_hint(app, name, f"Cannot be loaded from {entry.module}.", f"cannot be loaded: {error}")
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    for name, text in LABORATORY.items():
        if name not in found:
            _add_hint(app, name, text, REMEDY)


def _add_hint(app: typer.Typer, name: str, text: str, reason: str) -> None:
    """Add a command that only prints why it is not available; its arguments and options are ignored."""

    @reporting
    def hint() -> None:
        raise InvalidValueError(f"`vertex {name}` {reason}")

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help=text, context_settings=anything)(hint)
