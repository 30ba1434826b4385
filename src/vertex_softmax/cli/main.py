"""The command line. Results go to stdout; progress, remarks and errors go to stderr.

Exit codes: 0 done; 1 a check in the result does not hold, or there is a bug in Vertex; 2 bad input or a missing
dependency; 130 interrupted; 141 the reader of stdout has closed it. `vertex verify` has further codes of its own.

Nothing here or in the modules of the commands imports torch, numpy or the library before a command runs (a test checks
this): a command imports what it needs in its function. A new command is a module and one line below.
"""

from __future__ import annotations

import atexit
import io
import os
import platform
import sys
from typing import Annotated

import typer

from vertex_softmax import __version__
from vertex_softmax.cli import certify, check, demo, report, sweep, verify
from vertex_softmax.cli.common import Debug, Manner, Quiet, Verbose, laid_out
from vertex_softmax.cli.plugins import add_commands

HELP = laid_out(
    """Exact optimisation through softmax, and proofs about softmax-attention networks.

    Examples:
        vertex demo --images 4
        vertex verify model.onnx property.vnnlib --timeout 100
        vertex certify out/demo/model --eps 0.02 --count 5
        vertex verify --help
    """
)
app = typer.Typer(name="vertex", help=HELP, no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(verify.verify)
app.command()(check.check)
app.command()(sweep.sweep)
app.command()(certify.certify)
app.command()(certify.radius)
app.command()(report.report)
app.command()(demo.demo)
add_commands(app)


def main() -> None:
    """Entry point of the command `vertex`. Characters that stdout cannot encode are escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="vertex")
    except SystemExit as end:
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        if command == "verify" and isinstance(end.code, int):
            _end_at_once(end.code)
        raise


def _end_at_once(code: int) -> None:
    """End the process with this exit code as Python does, except that no module is taken apart: torch's take 0.4 s.

    What was registered to run at exit is run, and what was printed is written; if that fails, Python ends the process.
    """
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    os._exit(code)


def _version(show: bool) -> None:
    if show:
        import torch

        from vertex_softmax.softmax_box import native

        cuda = f"CUDA {torch.version.cuda}" if torch.cuda.is_available() else "no CUDA"
        kernel = native.variant() or "none (pure torch)"
        versions = f"Python {platform.python_version()}, torch {torch.__version__}, {cuda}, CPU kernel {kernel}"
        typer.echo(f"vertex {__version__}, {versions}")
        raise typer.Exit


@app.callback(help=HELP)
def options(
    context: typer.Context,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    debug: Debug = False,
    _show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    """Process the options that may be given before the name of a command."""
    context.obj = Manner.of(context, quiet, verbose, debug)
