"""The parts of a model that Vertex cannot read, in one error: grouped by operator and reason, with counts.

Invariant: every part that was found is counted, and no hint is given that would not help. A part that cannot be read
only because of another one (a `where` whose condition is a comparison that cannot be read) stands behind it.

>>> gate = UnreadPart("aten.sort.default", "blocks.0/sort", "an index")
>>> print(described([gate, dataclasses.replace(gate, where="blocks.1/sort")]))
the model has 2 unsupported operations:
  2 × aten.sort.default: an index
      blocks.0/sort, blocks.1/sort
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

SHOWN = 3
"""How many places of one group are named; the others are counted."""


@dataclasses.dataclass(frozen=True)
class UnreadPart:
    """One operation of a model that cannot be read."""

    operator: str
    """The operator's name, by which problems are grouped."""
    where: str
    """Where it is in the model."""
    why: str
    """Why it cannot be read, and what would help, if anything is known to."""


def described(problems: Sequence[UnreadPart], what: str = "operation") -> str:
    """All problems as text: a line that counts them, then every operator with its reason and the first places."""
    groups: dict[tuple[str, str], list[str]] = {}
    for problem in problems:
        groups.setdefault((problem.operator, problem.why), []).append(problem.where)
    lines = [f"the model has {len(problems)} unsupported {what}{'' if len(problems) == 1 else 's'}:"]
    for (operator, why), places in groups.items():
        lines.append(f"  {len(places)} × {operator}: {why}")
        more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        lines.append(f"      {', '.join(places[:SHOWN])}{more}")
    return "\n".join(lines)


def hint_for(name: str, hints: Mapping[str, str], default: str) -> str:
    """The hint whose list of names (separated by spaces) has this one, else the default."""
    return next((hint for hint, names in hints.items() if name in names.split()), default)
