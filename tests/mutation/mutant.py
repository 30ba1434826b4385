"""What a mutant is: text that occurs once in one source file, what stands there instead, and who must notice.

A mutant is unsound or wrong: some bound may be violated, or some answer is not the network's. What only makes bounds
looser, slower or another of several right ones is none.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "vertex_softmax"


class Mutant(NamedTuple):
    """One fault."""

    area: str
    file: str
    """within the package"""
    name: str
    old: str
    """occurs exactly once in the file"""
    new: str
    tests: tuple[str, ...]
    """files within tests/, of which one test at least must fail; slow tests do not count"""
    only: str = ""
    """pytest's -k: which of their tests, to be quick"""

    @property
    def key(self) -> str:
        """Its name among all."""
        return f"{self.area}/{self.file}: {self.name}"

    @property
    def module(self) -> str:
        """The module that is mutated; empty for the C kernel."""
        return "" if self.native else "vertex_softmax." + self.file.removesuffix(".py").replace("/", ".")

    @property
    def native(self) -> bool:
        """Has the kernel to be compiled anew?"""
        return not self.file.endswith(".py")

    def applied(self, text: str) -> str:
        """The file's text with the fault; raises LookupError if the catalogue is out of date."""
        if text.count(self.old) != 1:
            raise LookupError(f"{self.key}: {text.count(self.old)} places have {self.old!r}")
        if self.old == self.new:
            raise LookupError(f"{self.key}: nothing is changed")
        return text.replace(self.old, self.new)


Changes = dict[str, tuple[str, str]]


def mutants(area: str, file: str, tests: str, changes: Changes, only: str = "") -> list[Mutant]:
    """The faults of one file that the same tests must notice; `tests` are separated by blanks."""
    return [Mutant(area, file, name, old, new, tuple(tests.split()), only) for name, (old, new) in changes.items()]
