"""Names of Python functions that make models, `package.module:function` or `FILE.py:function`; nothing is imported.

Invariant: a text that is the name of a file, or of anything else that is there, is never the name of a function.
"""

from __future__ import annotations

import os
from pathlib import Path


def is_python_model(text: str) -> bool:
    """Whether a text is `package.module:function` or `FILE.py:function`, and not the name of a file.

    A file that has such a name is a file, so that a list of files from a stranger never names code to run.
    """
    place, colon, function = text.rpartition(":")
    named = place.endswith(".py") or all(part.isidentifier() for part in place.split("."))
    return bool(colon) and function.isidentifier() and named and not _is_there(text)


def _is_there(text: str) -> bool:
    """Whether there is a file, a folder, a link or anything else of this name."""
    try:
        return os.path.lexists(text)
    except ValueError:  # it cannot be a name
        return False


def source_file(text: str) -> Path | None:
    """The file of `FILE.py:function`; None for `package.module:function`."""
    place = text.rpartition(":")[0]
    return Path(place) if place.endswith(".py") else None
