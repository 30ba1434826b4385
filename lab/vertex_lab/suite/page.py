"""The tables of docs/suite.md, from the verdicts that are kept in lab/suite: no count there is typed by hand.

`python -m vertex_lab.suite.page` in a clone writes them anew.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vertex_lab.suite.maker import FAMILIES, MOST_BYTES
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import read_whole, write_whole

ROOT = Path(__file__).parents[3]
PAGE, VERDICTS = ROOT / "docs" / "suite.md", ROOT / "lab" / "suite" / "verdicts.json"

BEGIN, END = "<!-- verdicts: python -m vertex_lab.suite.page -->", "<!-- end -->"
OURS = ("unsat", "sat", "timeout", "unknown", "error")


def with_tables(text: str, verdicts: Path) -> str:
    """The page with its tables made anew."""
    record = json.loads(read_whole(verdicts, MOST_BYTES, "make it: vertex suite verdicts"))
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise InvalidValueError(f"the page has no lines {BEGIN} and {END}")
    return "\n".join([head + BEGIN, "", *tables(record), "", END + tail])


def tables(record: Mapping[str, Any]) -> list[str]:
    """Ours by family and level, and the peers' by family."""
    lines = [f"| family | network | level | asked | {' | '.join(OURS)} |", "|---" * (4 + len(OURS)) + "|"]
    for family in FAMILIES:
        rows = record["rows"].get(family, {})
        for network in dict.fromkeys(row["network"] for row in rows.values()):
            levels = dict.fromkeys(row["level"] for row in rows.values() if row["network"] == network)
            for level in levels:
                chosen = [row for row in rows.values() if (row["network"], row["level"]) == (network, level)]
                found = Counter(row["vertex"] for row in chosen)
                cells = [str(found[status] or "") for status in OURS]
                lines.append(f"| {family} | {network} | {level} | {len(chosen)} | {' | '.join(cells)} |")
    peers = record.get("peers", {})
    if peers:
        lines += ["", "| peer | family | answers |", "|---|---|---|"]
        for peer, families in peers.items():
            for family, answers in families.items():
                told = ", ".join(f"{count} {answer}" for answer, count in answers.items())
                if told:
                    lines.append(f"| {peer} | {family} | {told} |")
    said = (
        f"Vertex {record['version']}, {record['seconds']:g} s for each instance, one thread, torch {record['torch']}."
    )
    for family, of in record.get("apart", {}).items():
        said += f" `{family}` was made apart: {of['seconds']:g} s, torch {of['torch']}."
    return [*lines, "", said]


if __name__ == "__main__":
    write_whole(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), VERDICTS).encode())
