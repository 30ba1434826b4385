"""What a mutant is: a place in the sources, what stands there instead, and who must notice.

In Python a place is a complete expression or some complete statements, which locate.py finds wherever they are now; the
file and the function are hints. In C it is text that occurs once in the file.

A mutant is unsound or wrong: some bound may be violated, or some answer is not the network's. What only makes bounds
looser, slower or another of several right ones is none.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.mutation.locate import LEVELS, Change, Changed, Sources

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "vertex_softmax"


class Mutant(NamedTuple):
    """One fault."""

    area: str
    file: str
    """where the place was, within the package"""
    name: str
    scope: str
    """the function or class it was in, by its qualified name; empty for the module's own level, and in C"""
    old: str
    """an expression, or statements; in C: text"""
    new: str
    """the same, or nothing"""
    tests: tuple[str, ...]
    """files within tests/, of which one test at least must fail; slow tests do not count"""
    only: str = ""
    """pytest's -k: which of their tests, to be quick"""
    occurrence: int | None = None
    """which one, in the source's order, if the function has several such places"""

    @property
    def key(self) -> str:
        """Its name among all."""
        return f"{self.area}/{self.file}: {self.name}"

    @property
    def native(self) -> bool:
        """Has the kernel to be compiled anew?"""
        return not self.file.endswith(".py")

    def applied(self, sources: Sources) -> Changed:
        """The file it is in, with the fault; raises LookupError if the catalogue is out of date."""
        try:
            if self.native:
                return self._in_text((sources.folder / self.file).read_text())
            return sources.changed(Change(self.file, self.scope, self.old, self.new, self.occurrence))
        except LookupError as error:
            raise LookupError(f"{self.key}: {error}") from error

    def _in_text(self, text: str) -> Changed:
        if text.count(self.old) != 1:
            raise LookupError(f"{text.count(self.old)} places have {self.old!r}")
        if self.old == self.new:
            raise LookupError("nothing is changed")
        line = text[: text.index(self.old)].count("\n") + 1
        return Changed(self.file, "", line, LEVELS[0], text.replace(self.old, self.new))


def module(file: str) -> str:
    """The module that a file of the package is; empty for the C kernel."""
    return "vertex_softmax." + file.removesuffix(".py").replace("/", ".") if file.endswith(".py") else ""


Changes = dict[str, tuple[str, str, str] | tuple[str, str, str, int]]
"""Scope, old, new and, where there are several, which one; by name."""


def mutants(area: str, file: str, tests: str, changes: Changes, only: str = "") -> list[Mutant]:
    """The faults of one file that the same tests must notice; `tests` are separated by blanks."""
    return [
        Mutant(area, file, name, scope, old, new, tuple(tests.split()), only, *which)
        for name, (scope, old, new, *which) in changes.items()
    ]
