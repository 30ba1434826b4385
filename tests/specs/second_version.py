"""Properties of VNNLIB 1.0, written in VNNLIB 2.0: the same boxes and inequalities, number by number."""

from __future__ import annotations

import re


def in_version_2(text: str, kind: str = "float32") -> str:
    """The 2.0 form of a 1.0 text whose numbers are decimals: X_3 is X[0,3], of a network with a batch of one."""
    counts = {v: len(re.findall(rf"\(declare-const {v}_\d+ Real\)", text)) for v in "XY"}
    body = re.sub(r"\(declare-const [XY]_\d+ Real\)\s*", "", text)
    body = re.sub(r"\b([XY])_(\d+)\b", r"\1[0,\2]", body)
    declared = [f"(declare-{what} {v} {kind} [1,{counts[v]}])" for what, v in (("input", "X"), ("output", "Y"))]
    return "\n".join(["(vnnlib-version <2.0>)", "(declare-network f", *declared, ")", body])


def assignment(text: str) -> dict[str, tuple[str, list[int], list[float]]]:
    """A counterexample of VNNLIB 2.0 by the names of its tensors: type, shape, numbers. Read as the standard says."""
    lines = [line for line in text.splitlines() if line]
    found: dict[str, tuple[str, list[int], list[float]]] = {}
    while lines:
        header = re.fullmatch(r"(\w+) (\w+) \[([0-9,]*)\]", lines.pop(0))
        assert header is not None
        name, kind, sizes = header.groups()
        shape = [int(n) for n in sizes.split(",") if n]
        count = 1
        for n in shape:
            count *= n
        found[name] = kind, shape, [float(line) for line in lines[:count]]
        assert len(found[name][2]) == count
        lines = lines[count:]
    return found
