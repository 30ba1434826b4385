"""A process that checks one case after another: a recipe as a line of JSON in, a report as a line of JSON out.

Whatever libraries print goes to stderr; only reports reach the pipe that was stdout.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path

MOST_BYTES = 8 << 30


def main(device: str) -> None:
    """Serve until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if device == "cpu":  # CUDA reserves more addresses than there is memory
        _limit_memory()
    import torch

    from vertex_lab.fuzz.kinds import check

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        with tempfile.TemporaryDirectory(prefix="vertex-fuzz-") as folder:
            report = check(json.loads(line), device=device, folder=Path(folder))
        answers.write(json.dumps(report.to_json()) + "\n")
        answers.flush()


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


if __name__ == "__main__":
    main(sys.argv[1])
