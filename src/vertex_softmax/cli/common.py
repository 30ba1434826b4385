"""What all commands share: the options -q, -v and --debug; and errors, remarks and progress, all of them on stderr.

A command is a function with the decorator `reporting`, registered by one line in main.py. Its docstring is its help:
the first paragraph says what it does; the indented lines under `Examples:` are commands that work as they are. `say`
prints remarks, which -q suppresses; `detail` prints what only -v shows; `complain` prints in any case.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from vertex_softmax.foundation.errors import VertexError, is_out_of_memory

Command = TypeVar("Command", bound=Callable[..., None])
errors = Console(stderr=True)

_LAST: dict[str, Any] = {"rich_help_panel": "On every command", "show_default": False}
Quiet = Annotated[int, typer.Option("--quiet", "-q", count=True, metavar="", help="Only results and errors.", **_LAST)]
Verbose = Annotated[
    int, typer.Option("--verbose", "-v", count=True, metavar="", help="Also stages, times and versions.", **_LAST)
]
Debug = Annotated[bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.", **_LAST)]
SHARED: dict[str, Any] = {"quiet": Quiet, "verbose": Verbose, "debug": Debug}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which could change the terminal."""
PIPE_CLOSED = 141
"""The exit code when the reader of stdout has closed it: that of a program ended by SIGPIPE."""


@dataclass(frozen=True)
class Manner:
    """How much a command prints, according to -q, -v and --debug."""

    quiet: bool = False
    verbose: bool = False
    debug: bool = False

    @classmethod
    def of(cls, context: typer.Context, quiet: int, verbose: int, debug: bool) -> Manner:
        """The options given after or before the command's name; raises if -q or -v is repeated, or both are given."""
        before = context.find_object(cls) or cls()
        if quiet + before.quiet > 1 or verbose + before.verbose > 1:
            raise typer.BadParameter("-q and -v have one level: give one of them, once")
        found = cls(before.quiet or quiet > 0, before.verbose or verbose > 0, before.debug or debug)
        if found.quiet and found.verbose:
            raise typer.BadParameter("-q and -v contradict each other: give one of them")
        return found


PLAIN = Manner()
_manner: ContextVar[Manner] = ContextVar("manner", default=PLAIN)
"""The manner of the command that runs."""


def say(text: str, style: str | None = None) -> None:
    """Print a remark on one line, without interpreting markup in it. -q suppresses it."""
    if not quiet():
        _print(text, style)


def say_written(folder: Path) -> None:
    """Say where a run was written and how to make a page of it; a page that is there already is of an earlier run."""
    say(f"written: {folder / 'run.json'}; a page of it: vertex report {folder}")
    if (page := folder / "report.html").exists():
        say(f"{page} is of an earlier run")


def detail(text: str) -> None:
    """Print a remark that only -v shows."""
    if _manner.get().verbose:
        _print(text, "dim")


def complain(text: str, style: str = "red") -> None:
    """Print an error or a warning, which not even -q suppresses."""
    _print(text, style)


def quiet() -> bool:
    """Whether -q is given: then there are no remarks and no progress."""
    return _manner.get().quiet


def watched() -> bool:
    """Whether progress is shown: on a terminal without -q, or with -v."""
    return _manner.get().verbose or (errors.is_terminal and not quiet())


def reporting(command: Command) -> Command:
    """Decorate a command so that an error is one line on stderr, with exit code 2 for bad input and 1 for a bug.

    The command also takes -q, -v and --debug, before or after its name; --debug shows tracebacks.
    """

    @functools.wraps(command)
    def wrapped(context: typer.Context, **given: Any) -> None:
        manner = Manner.of(context, *(given.pop(name) for name in SHARED))
        token = _manner.set(manner)
        began = time.perf_counter()
        try:
            if manner.verbose:
                detail(_versions())
            try:
                command(**given)
            finally:
                sys.stdout.flush()  # here, where a closed pipe can still be handled
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except (Exception, KeyboardInterrupt) as error:
            if manner.debug and not isinstance(error, BrokenPipeError):
                raise
            raise typer.Exit(_report_error(error)) from None
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # rich turns it into SystemExit
                raise typer.Exit(PIPE_CLOSED) from None
            raise
        finally:
            detail(f"ended after {time.perf_counter() - began:.1f} s")
            _manner.reset(token)

    hints = {"context": typer.Context, **SHARED, **typing.get_type_hints(command, include_extras=True)}
    own = list(inspect.signature(command).parameters.values())
    more = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY)]
    more += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False) for name in SHARED]
    parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in (*own, *more)]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = hints
    wrapped.__doc__ = laid_out(inspect.getdoc(command) or "")
    return wrapped  # type: ignore[return-value]


def group(text: str) -> typer.Typer:
    """A typer app for a group of commands, or for all of them, with this help text."""
    return typer.Typer(help=laid_out(text), no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


def laid_out(text: str) -> str:
    """A help text for terminals of any width: each paragraph becomes one line, but the lines under `Examples:` stay.

    Brackets are escaped, so that they are not markup. The empty markup keeps typer from removing the indentation.
    """
    parts = inspect.cleandoc(text).replace("[", r"\[").split("\n\n")
    lines = [part if part.startswith("Examples:\n") else part.replace("\n", " ") for part in parts]
    return "\n\n".join(lines).replace("Examples:\n", "[bold]Examples[/bold]\n[bold][/bold]\n")


@contextmanager
def kept(out: Path) -> Iterator[None]:
    """A context whose interruption says that what is finished is in the journal of this folder."""
    try:
        yield
    except KeyboardInterrupt:
        went = f"interrupted: what is finished is kept in {out}; the same command goes on from there"
        raise KeyboardInterrupt(went) from None


def _report_error(error: BaseException) -> int:
    """Print an error on one line; return the exit code."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python's exit does not fail on stdout
        return PIPE_CLOSED
    if isinstance(error, KeyboardInterrupt):
        complain(str(error) or "interrupted", "yellow")
        return 130
    if isinstance(error, VertexError):
        text = str(error)
    elif is_out_of_memory(error):
        text = "there is not enough memory: use a smaller problem, or a machine with more memory"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    else:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        complain(f"internal error: {text}; run it again with --debug, and please report what that shows")
        return 1
    complain(f"error: {text}")
    return 2


def _print(text: str, style: str | None) -> None:
    """Print one line on stderr; control characters, for instance in names of files, are escaped."""
    text = CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    errors.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def _versions() -> str:
    """The versions of Vertex, Python and torch, without importing torch."""
    import platform
    from importlib import metadata

    from vertex_softmax import __version__

    return f"vertex {__version__}, Python {platform.python_version()}, torch {metadata.version('torch')}"


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar with an estimate of the time left, on stderr; not shown with -q or if stderr is not a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=quiet() or not errors.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
                detail(what)
            bar.update(tasks[what], completed=done, total=total)

        yield report
