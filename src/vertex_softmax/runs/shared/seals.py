"""Messages of a shared search as lines of text.

Invariant: what is opened is what was sealed, to the last character, or an `InvalidValueError`.

    line = sealed({"do": "grow", "order": 7})      # its SHA-256, a blank and the JSON
    opened(line)                                   # the same again; an error if one character was changed
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from vertex_softmax.foundation.errors import InvalidValueError

Plain = Any
"""JSON: what `json.loads` may return."""
MOST_BYTES = 1 << 28
"""The longest line in bytes."""


def sealed(body: Mapping[str, Plain]) -> str:
    """A message as one line, without its end."""
    text = json.dumps(body, allow_nan=False, separators=(",", ":"))
    return f"{_digest(text)} {text}"


def opened(line: str) -> dict[str, Plain]:
    """The message of a line; raises if it is not exactly what was sealed."""
    digest, _, text = line.rstrip("\n").partition(" ")
    if len(line) > MOST_BYTES or digest != _digest(text):
        raise InvalidValueError(f"a message is not whole: {line[:80]!r}")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"a message is no JSON: {text[:80]!r}") from error
    if not isinstance(body, dict):
        raise InvalidValueError(f"a message has no fields: {text[:80]!r}")
    return body


def digest_of(body: Plain) -> str:
    """The SHA-256 of plain data, whatever the order of its fields."""
    return _digest(json.dumps(body, allow_nan=False, separators=(",", ":"), sort_keys=True))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
