"""The options of `vertex verify` for a search that is shared: --workers, --runner, --address and --journal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vertex_softmax.cli import values
from vertex_softmax.cli.names import one_of
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.outputs import Outputs

if TYPE_CHECKING:
    from vertex_softmax.runs.shared.search import SharedSearch
    from vertex_softmax.runs.shared.workers import TreeWorkers
    from vertex_softmax.search.verify_files import Instance

RUNNERS = ("local", "ray")

WorkerCount = Annotated[
    int | None,
    typer.Option(
        help="Share branch and bound among this many processes, with --threads threads each (by default 1).",
        show_default="it is done in this process; with Ray as many as the cluster has room for",
    ),
]
WorkerRunner = Annotated[
    str, typer.Option(autocompletion=one_of(RUNNERS), help="Where the workers run: local, or ray for a Ray cluster.")
]
ClusterAddress = Annotated[
    str | None,
    typer.Option(
        help="Address of the Ray cluster: auto, or HOST:PORT.", show_default="a Ray is started on this machine"
    ),
]
JournalFile = Annotated[
    Path | None,
    typer.Option(help="File for what workers have found: the same command goes on from there.", show_default="none"),
]


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How branch and bound is shared."""

    workers: int | None
    """None: one, or with Ray as many as there is room for"""
    runner: str
    address: str | None
    journal: Path | None

    @property
    def count(self) -> int:
        """How many processes share it on this machine."""
        return self.workers or 1


def sharing(workers: int | None, runner: str, address: str | None, journal: Path | None) -> Sharing | None:
    """What the options ask for; None if the search is not shared. Raises if they contradict each other."""
    values.jobs("--workers", workers)
    if runner not in RUNNERS:
        raise InvalidValueError(f"--runner is {runner!r}; choose one of {', '.join(RUNNERS)}")
    if address is not None and runner != "ray":
        raise InvalidValueError("--address is for a Ray cluster: give --runner ray, too")
    if workers is None and runner == "local" and journal is None:
        return None
    if runner == "ray":
        from vertex_softmax.runs.sweep.ray import needed

        needed()
    return Sharing(workers=workers, runner=runner, address=address, journal=journal)


def require_shareable(method: str, *, code: bool, proved: bool) -> None:
    """Raise for what cannot be shared among workers."""
    what = "--workers, --runner ray and --journal"
    if method != "bab":
        raise InvalidValueError(f"{what} share branch and bound, and --method {method} has none: give --method bab")
    if code:
        raise InvalidValueError(f"{what} are for ONNX files, which every worker reads itself; export the model")
    if proved:
        raise InvalidValueError(
            f"{what} are not available with --certificate: the answers of workers have no parameters from which a "
            "proof could be written; leave one of them out"
        )


@contextlib.contextmanager
def shared_search(
    instance: Instance, files: tuple[str, Path], settings: Sharing, options: dict[str, Any], outputs: Outputs,
    say: Callable[[str], None],
) -> Iterator[SharedSearch]:  # fmt: skip
    """The shared search of an instance that was read from these files; its workers end with the context.

    `options`: device, threads and memory of each worker, and the options of the bounds.
    """
    from vertex_softmax.runs.shared.crew import Crew
    from vertex_softmax.runs.shared.search import SharedSearch
    from vertex_softmax.runs.shared.task import SharedTask
    from vertex_softmax.runs.shared.tree_journal import TreeJournal
    from vertex_softmax.runs.shared.workers import LocalWorkers

    model, spec = (os.path.abspath(path) for path in files)
    task = SharedTask(model=model, spec=spec, **options)
    identity = task.identity(instance)

    def start() -> TreeWorkers:
        if settings.runner == "local":
            return LocalWorkers(settings.count, task.threads)
        from vertex_softmax.runs.shared.ray_workers import RayWorkers

        return RayWorkers(task, settings.workers, settings.address)

    with contextlib.ExitStack() as stack:
        journal = None
        if settings.journal is not None:
            journal = stack.enter_context(TreeJournal(settings.journal, identity, outputs))
        crew = Crew(task, identity, start)
        stack.callback(crew.stop)
        yield SharedSearch(crew, journal, say)
