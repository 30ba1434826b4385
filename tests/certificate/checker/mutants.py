"""Deliberate faults in copies of the checker's files: the tests must fail for each one (test_mutants.py).

By hand, at the root of the project: python -m tests.certificate.checker.mutants [part of a name …]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.certificate.checker.faults import CURVES, MOVES, ROUNDING, ZONOTOPES
from tests.certificate.checker.narrowing_faults import NARROWING
from tests.certificate.checker.row_faults import ROWS
from tests.certificate.checker.set_faults import DUALITY, INPUT_SETS, UNKNOWNS
from tests.mutation.locate import Change, Sources

FOLDER = Path(__file__).parent
SOURCE = FOLDER.parents[2] / "src" / "vertex_softmax" / "certificate" / "checker"
FILES = (
    *("file.py", "rounding.py", "curves.py", "zonotopes.py", "rows.py", "moves.py"),
    *("unknowns.py", "duality.py", "input_sets.py", "narrowing.py"),
)


class Mutant(NamedTuple):
    """A fault: a place in a file, and what stands there instead (mutation/locate.py)."""

    file: str
    name: str
    scope: str
    old: str
    new: str
    occurrence: int | None = None


MUTANTS = [
    Mutant(file, name, *change)
    for file, changes in (
        *(("rounding", ROUNDING), ("curves", CURVES), ("zonotopes", ZONOTOPES), ("rows", ROWS), ("moves", MOVES)),
        *(("unknowns", UNKNOWNS), ("duality", DUALITY), ("input_sets", INPUT_SETS)),
        ("narrowing", NARROWING),
    )
    for name, change in changes.items()
]


def write(mutant: Mutant | None, place: Path) -> None:
    """A copy of the files with one fault."""
    for name in FILES:
        shutil.copy(SOURCE / name, place / name)
    if mutant is not None:
        change = Change(f"{mutant.file}.py", mutant.scope, mutant.old, mutant.new, mutant.occurrence)
        try:
            changed = Sources(place).changed(change)
        except LookupError as error:
            raise LookupError(f"{mutant.file}, {mutant.name}: {error}") from error
        (place / changed.file).write_text(changed.text)


def survives(mutant: Mutant | None, file: str = "") -> bool:
    """Whether the tests of its file pass for a mutant, or for a copy as it is (without what is expected to fail)."""
    with tempfile.TemporaryDirectory() as place:
        write(mutant, Path(place))
        tests = sorted(map(str, FOLDER.glob(f"test_{mutant.file if mutant else file}*.py")))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(
            [*command, "-m", "not slow and not xfail"],
            env={**os.environ, "VERTEX_CHECKER_PATH": place, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            cwd=FOLDER.parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout + done.stderr)
    return done.returncode == 0


def main(parts: list[str]) -> None:
    """Print the mutants that survive."""
    chosen = [m for m in MUTANTS if not parts or any(part in f"{m.file}: {m.name}" for part in parts)]
    left = []
    for mutant in chosen:
        alive = survives(mutant)
        left += [mutant] if alive else []
        print("SURVIVES" if alive else "killed  ", f"{mutant.file}: {mutant.name}", flush=True)
    print(f"{len(chosen) - len(left)} of {len(chosen)} killed")


if __name__ == "__main__":
    main(sys.argv[1:])
