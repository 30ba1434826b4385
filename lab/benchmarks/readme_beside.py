"""A row of the table at the head of docs/results.md."""

from __future__ import annotations

from typing import NamedTuple

from readme_measure import MEASURES


class Beside(NamedTuple):
    """A peer and a benchmark, what they reached, what we do, where, and what says so."""

    peer: str
    theirs: str
    ours: str
    machine: str
    files: tuple[str, ...]
    """Of lab/benchmarks/runs, or with a folder of their own."""
    measures: tuple[str, ...]
    """The names of the measurements."""

    def cells(self) -> tuple[str, ...]:
        paths = [name if "/" in name else f"lab/benchmarks/runs/{name}.json" for name in self.files]
        command = ", ".join(f"`{MEASURES[name].command}`" for name in self.measures)
        files = ", ".join(f"`{path}`" for path in paths)
        return self.peer, self.theirs, self.ours, self.machine, files, command
