"""Writing files: each appears whole or not at all, also when the process is killed while it writes."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> Path:
    """Write beside the place, then rename; the folder is made if it is not there. Returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
