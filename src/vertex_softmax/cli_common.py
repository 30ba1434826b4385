"""What every command shares: how errors are reported and how progress is shown, both on stderr."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vertex_softmax.errors import VertexError

errors = Console(stderr=True)
Command = TypeVar("Command", bound=Callable[..., None])
_tracebacks = False


def show_tracebacks(show: bool) -> None:
    """Let errors through with their tracebacks (--debug), or report them in one line."""
    global _tracebacks  # noqa: PLW0603
    _tracebacks = show


def reporting(command: Command) -> Command:
    """Errors that Vertex raises on purpose are one line on stderr and exit code 2; --debug shows the traceback."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except VertexError as error:
            if _tracebacks:
                raise
            errors.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            errors.print("interrupted", style="yellow")
            raise typer.Exit(130) from None

    return wrapped  # type: ignore[return-value]


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar with an estimate of the time left, on stderr; silent where that is not a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield report
