"""A page as one file that contains its style, script and data; its policy forbids the browser to load anything.

Invariant: the data are never interpreted as markup or code: they are in a JSON block in which no tag can begin, and the
only script that runs is the one whose hash is in the policy. The same arguments give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.foundation.outputs import Outputs
from vertex_softmax.runs.report import templates

SHARED = ("core.js", "charts.js", "table.js")


def assembled(template: str, scripts: Sequence[str], data: Mapping[str, Any], **values: Any) -> bytes:
    """The page from a template, with the style sheet, the shared and the named scripts, and their `data`."""
    found = templates.named(template)
    parts = "\n".join(templates.text(f"assets/{name}") for name in (*SHARED, *scripts))
    script = f'"use strict";\n(() => {{\n{parts}\n}})();\n'
    page = found.render(
        policy=policy(script), style=templates.text("assets/page.css"), script=script, data=embedded(data), **values
    )
    return page.encode(errors="replace")  # a name may contain half a surrogate pair


def policy(script: str) -> str:
    """A Content-Security-Policy under which nothing is loaded, and no script but this one runs."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def embedded(data: Mapping[str, Any]) -> str:
    """The data as JSON that is safe in a <script> element: in ASCII, and without <, > and &."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def written(page: bytes, out: Path, inputs: Sequence[Path]) -> Path:
    """Write the page atomically; return its path. Raises if it would overwrite one of its `inputs`."""
    try:
        return write_whole(out, page, Outputs(inputs))
    except OSError as error:
        raise InvalidValueError(f"{out} cannot be written ({error.strerror}); choose another --out") from error
