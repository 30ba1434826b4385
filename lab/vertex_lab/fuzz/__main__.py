"""`python -m vertex_lab.fuzz MINUTES FOLDER [SEED] [DEVICE]`: the loop without the command line's dependencies."""

from __future__ import annotations

import sys
from pathlib import Path

from vertex_lab.fuzz.run import fuzz


def main(minutes: str, folder: str, seed: str = "0", device: str = "cpu") -> int:
    """1 if there are findings."""
    state = fuzz(float(minutes), Path(folder), seed=int(seed), device=device, progress=_say)
    for kind, count in sorted(state["findings"].items()):
        _say(f"{count:6d}  {kind}")
    return 1 if state["findings"] else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
