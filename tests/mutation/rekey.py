"""Rewrites the catalogue after the package was changed, so that every mutant is where its hints say.

What has no place, or several, stays as it is, and is named: it has to be ported by hand. What was found far away may
not mean the same any more: read the difference.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.certificate.checker import mutants as checker
from tests.mutation.catalogue import PARTS
from tests.mutation.locate import Change, Sources
from tests.mutation.mutant import PACKAGE, Mutant

LIST = "MUTANTS: list[Mutant] = ["
WIDTH = 98
"""How many characters a string on a line has at most, its quotes included."""


def rekey() -> list[str]:
    """Rewrite all files of the catalogue; what has to be ported by hand, in words."""
    sources, left = Sources(PACKAGE), list[str]()
    written = [_write_part(Path(str(part.__file__)), _hinted(part.MUTANTS, sources, left)) for part in PARTS]
    written += [_write_faults(path, sources, left) for path in sorted(checker.FOLDER.glob("*faults.py"))]
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", *map(str, written)], check=True)
    return left


def _hinted(mutants: list[Mutant], sources: Sources, left: list[str]) -> Iterator[Mutant]:
    for mutant in mutants:
        if mutant.native:
            yield mutant
            continue
        change = Change(mutant.file, mutant.scope, mutant.old, mutant.new, mutant.occurrence)
        try:
            yield mutant._replace(**sources.rekeyed(change)._asdict())
        except LookupError as error:
            left.append(f"{mutant.key}: {error}")
            yield mutant


def _write_part(path: Path, mutants: Iterator[Mutant]) -> Path:
    groups: dict[tuple[str, str, str, str], list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault((mutant.area, mutant.file, " ".join(mutant.tests), mutant.only), []).append(mutant)
    text = [path.read_text().partition(LIST)[0], LIST, "\n"]
    for (*hints, only), group in groups.items():
        more = f", only={_literal(only)}" if only else ""
        text.append(f"*mutants({', '.join(map(_literal, hints))}, {{{_entries(group)}}}{more},),\n")
    path.write_text("".join([*text, "]\n"]))
    return path


def _write_faults(path: Path, sources: Sources, left: list[str]) -> Path:
    text = path.read_text()
    names: Mapping[str, str] = {m.file.upper(): f"certificate/checker/{m.file}.py" for m in checker.MUTANTS}
    here = [name for name in names if f"\n{name}: Changes = {{" in text]
    made = [text.partition(f"{here[0]}: Changes = {{")[0]]
    for name in here:
        mine = [m for m in checker.MUTANTS if m.file.upper() == name]
        mutants = [Mutant("checker", names[name], *m[1:5], (), "", m.occurrence) for m in mine]
        made.append(f"{name}: Changes = {{{_entries(list(_hinted(mutants, sources, left)))}}}\n")
    path.write_text("".join(made))
    return path


def _entries(mutants: list[Mutant]) -> str:
    return "".join(
        f"{_literal(m.name)}: ({_literal(m.scope)}, {_literal(m.old)}, {_literal(m.new)}"
        f"{'' if m.occurrence is None else f', {m.occurrence}'}),"
        for m in mutants
    )


def _literal(text: str) -> str:
    """Text as Python writes it, one line of it or at most WIDTH characters a line."""
    lines = text.splitlines(keepends=True) if "\n" in text else [""]
    if "\n" not in text:
        for word in re.findall(r"\S+\s*|\s+", text):
            if lines[-1] and len(_quoted(lines[-1] + word)) > WIDTH:
                lines.append("")
            lines[-1] += word
    said = " ".join(map(_quoted, lines))
    return f"({said})" if len(lines) > 1 else said


def _quoted(text: str) -> str:
    quote = "'" if '"' in text and "'" not in text else '"'
    inside = text.replace("\\", "\\\\").replace(quote, f"\\{quote}").replace("\n", "\\n")
    return f"{quote}{inside}{quote}"
