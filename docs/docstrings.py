"""What mkdocstrings shows of a docstring: doctests as code, and the * of (batch, *shape) as itself."""

from __future__ import annotations

import re
from typing import Any

import griffe

STARS = re.compile(r"(?<![\w*])(\*{1,2})(\w|\w[^*]*[\w.])\1(?![\w*])|\*")
"""*emphasis* or **more**, in the first two groups; or a star that means a star, as in (batch, *shape) or p*."""


class Readable(griffe.Extension):
    """Turns every docstring into the Markdown that it was meant as."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every object that it loads."""
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = readable(obj.docstring.value)


def readable(text: str) -> str:
    """The docstring in Markdown."""
    lines, inside = [], False
    for line in text.splitlines():
        example = line.startswith(">>>") or (inside and line.strip() != "")
        if example != inside:
            lines.append("```pycon" if example else "```")
            inside = example
        lines.append(line if example or line.startswith("    ") else _starred(line))
    return "\n".join([*lines, *(["```"] if inside else [])])


def _starred(line: str) -> str:
    """Outside of code, stars that mean a star."""
    parts = line.split("`")
    return "`".join(part if i % 2 else STARS.sub(_kept, part) for i, part in enumerate(parts))


def _kept(found: re.Match[str]) -> str:
    return found[0] if found[1] else r"\*"
