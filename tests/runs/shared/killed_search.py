"""A shared search with real workers that waits after every answer: python -m tests.runs.shared.killed_search FOLDER.

Its worker processes, and the margins of the property, are those of the tests; it is there to be killed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.runs.shared.crews import ask, files
from vertex_softmax.runs.shared import search
from vertex_softmax.runs.shared.workers import LocalWorkers

SEED, MARGINS = 9, (0.01, 0.02)


def main(folder: Path) -> None:
    search.SLICE = search.SHORT = 0.0
    real = search._CaseSearch._answered

    def slowly(self: search._CaseSearch, *given: object) -> None:
        real(self, *given)  # type: ignore[arg-type]
        time.sleep(0.3)

    search._CaseSearch._answered = slowly  # type: ignore[method-assign, assignment]
    answer, _ = ask(files(folder, SEED, *MARGINS), LocalWorkers(2, 1), journal=folder / "tree")
    print(answer.verdict, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
