"""A family that was made apart, into the checksums and verdicts of lab/suite, and into the tables of docs/suite.md.

    python -m vertex_lab.suite.merging OUT          # with OUT/sst-checksums.sha256 and OUT/sst-verdicts.json

What lab/suite had of the family is replaced. The README of a suite depends on the families that it has; its checksum is
left out of a list that was put together.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from vertex_lab.suite.maker import CHECKSUMS, LINE, MOST_BYTES
from vertex_lab.suite.page import PAGE, VERDICTS, with_tables
from vertex_lab.suite.verdicts import counts
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import read_whole, write_whole

APART = ("version", "torch", "machine", "seconds", "threads")
"""What the record of a family that was made apart says of its own run."""


def merge(family: str, made: Path, kept: Path) -> None:
    """The lists of `made` (FAMILY-checksums.sha256, FAMILY-verdicts.json) into those of `kept`."""
    lines = _lines(made / f"{family}-checksums.sha256")
    if not any(name.startswith(f"{family}/") for name in lines):
        raise InvalidValueError(f"{made} has no checksums of {family}")
    others = {name: digest for name, digest in _lines(kept / CHECKSUMS).items() if not name.startswith(f"{family}/")}
    mine = {name: digest for name, digest in lines.items() if name.startswith(f"{family}/")}
    both = {name: digest for name, digest in {**others, **mine}.items() if "/" in name}
    text = "".join(f"{both[name]}  {name}\n" for name in sorted(both)).encode()
    record, new = _record(kept / VERDICTS.name), _record(made / f"{family}-verdicts.json")
    record["rows"][family] = new["rows"][family]
    record["counts"] = counts(record["rows"])
    record["suite"] = hashlib.sha256(text).hexdigest()
    record.setdefault("apart", {})[family] = {name: new[name] for name in APART}
    write_whole(kept / CHECKSUMS, text)
    write_whole(kept / VERDICTS.name, (json.dumps(record, indent=1) + "\n").encode())


def _lines(path: Path) -> dict[str, str]:
    """The digests of a list by names."""
    found = {}
    for line in read_whole(path, MOST_BYTES, "make it").decode().splitlines():
        match = LINE.fullmatch(line)
        if match is None:
            raise InvalidValueError(f"{path} is no list of SHA-256 sums")
        found[match[2]] = match[1]
    return found


def _record(path: Path) -> dict[str, Any]:
    return dict(json.loads(read_whole(path, MOST_BYTES, "make it")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Put a family that was made apart into lab/suite and docs/suite.md.")
    parser.add_argument("made", type=Path)
    parser.add_argument("--family", default="sst")
    options = parser.parse_args()
    merge(options.family, options.made, VERDICTS.parent)
    write_whole(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), VERDICTS).encode())
