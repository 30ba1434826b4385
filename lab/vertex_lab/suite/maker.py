"""Making the suite: a folder for each family, in the layout of VNN-COMP, with checksums of everything.

Invariant: a file is written only after it was read back: every ONNX file gives the module's logits in Vertex and in
onnxruntime, every property's box is exactly the one that was meant, and no centre is a counterexample.

    OUT/README.md, OUT/checksums.sha256
    OUT/FAMILY/onnx/NETWORK.onnx
    OUT/FAMILY/vnnlib/NETWORK_QUESTION_LEVEL.vnnlib
    OUT/FAMILY/instances.csv      lines onnx,vnnlib,timeout
    OUT/FAMILY/facts.json         what is known of every network and instance: ε, radii, training
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vertex_lab.suite import deept, digits, max_of_k, sst
from vertex_lab.suite.family import Family, Network, Question, Request
from vertex_lab.suite.files import exported, replayed, require_holds_at, specification
from vertex_lab.suite.levels import Level, correct, ends_of, levels
from vertex_lab.suite.readme import readme
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import read_whole, write_whole

FAMILIES: Mapping[str, Family] = {each.FAMILY.name: each.FAMILY for each in (digits, max_of_k, sst, deept)}
CHECKSUMS = "checksums.sha256"
LINE = re.compile(r"([0-9a-f]{64})  ([\w./-]+)")
MOST_BYTES = 1 << 24


def make(out: Path, names: Sequence[str], request: Request) -> dict[str, int]:
    """Write the families of these names; how many instances each has. Families that lack their data are left out."""
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise InvalidValueError(f"there is no family {unknown[0]!r}; choose from {', '.join(FAMILIES)}")
    counts = {}
    for name in names:
        family = FAMILIES[name]
        if missing := family.needs(request):
            request.say(f"{name} is left out: {missing}")
            continue
        counts[name] = write_family(out / name, family, request)
    if not counts:
        raise InvalidValueError("no family could be made; the lines above say what is missing")
    present = [name for name in FAMILIES if (out / name / "facts.json").exists()]
    facts = {name: json.loads(read_whole(out / name / "facts.json", MOST_BYTES, "make it again")) for name in present}
    write_whole(out / "README.md", readme([FAMILIES[name] for name in present], facts).encode())
    write_whole(out / CHECKSUMS, checksums(out).encode())
    return counts


def write_family(place: Path, family: Family, request: Request) -> int:
    """Write one family; what an earlier run left there is removed."""
    for part in ("onnx", "vnnlib"):
        shutil.rmtree(place / part, ignore_errors=True)
        (place / part).mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    for network in family.networks(request):
        if wrong := correct(network):
            raise InvalidValueError(f"{network.name}: {wrong[0]} is not classified as its question says")
        content = exported(network.module, network.questions[0].centre)
        graph = replayed(content, network.module, [question.centre for question in network.questions])
        write_whole(place / "onnx" / f"{network.name}.onnx", content)
        shape = list(network.questions[0].centre.shape)
        facts[network.name] = {**network.facts, "input": [1, *shape], "weights": _numbers(network)}
        for question in network.questions:
            chosen = levels(graph, question)
            replayed(content, network.module, [end for level in chosen for end in ends_of(question, level)])
            found = [_instance(place, family, network, question, level) for level in chosen]
            rows += found
            request.say(
                f"{family.name}: {network.name} {question.name}: "
                + ", ".join(row["level"] + ("" if row["eps"] is None else f" ε {row['eps']:g}") for row in found)
            )
    lines = [f"{row['onnx']},{row['vnnlib']},{row['timeout']}\n" for row in rows]
    write_whole(place / "instances.csv", "".join(lines).encode())
    write_whole(place / "facts.json", (json.dumps({"networks": facts, "instances": rows}, indent=1) + "\n").encode())
    return len(rows)


def _instance(place: Path, family: Family, network: Network, question: Question, level: Level) -> dict[str, Any]:
    """Write the property of one level, and read it back."""
    ends = ends_of(question, level)
    model, spec = f"onnx/{network.name}.onnx", f"vnnlib/{network.name}_{question.name}_{level.name}.vnnlib"
    with torch.no_grad():
        classes = network.module(question.centre[None]).shape[1]
    head = [f"{family.title}, network {network.name}: {question.words}"]
    if level.eps is not None:
        head.append(f"ε = {level.eps:g}, level: {level.name}")
    head.append("sat: some output is at least that of the class")
    write_whole(place / spec, specification(ends, classes, question.label, head).encode())
    require_holds_at(place / model, place / spec, ends, question.centre)
    known = {"network": network.name, "question": question.name, "label": question.label, "level": level.name}
    radii = {"eps": level.eps, "certified": level.certified, "attacked": level.attacked}
    return {"onnx": model, "vnnlib": spec, "timeout": family.timeout, **known, **radii}


def _numbers(network: Network) -> int:
    tensors = [*network.module.parameters(), *network.module.buffers()]
    return sum(tensor.numel() for tensor in tensors)


def checksums(out: Path) -> str:
    """SHA-256 of every file below OUT but the list itself, in the format of sha256sum, by name."""
    paths = [path for path in out.rglob("*") if path.is_file() and path.name != CHECKSUMS]
    lines = {
        path.relative_to(out).as_posix(): hashlib.sha256(read_whole(path, 1 << 31, "make it again")).hexdigest()
        for path in paths
    }
    return "".join(f"{lines[name]}  {name}\n" for name in sorted(lines))


def differences(out: Path, against: Path) -> list[str]:
    """What of OUT is not as the list of checksums says, in words; empty if all of it is.

    Families that are not in OUT are passed over, as a suite may be made in part; README.md and facts.json, which say
    with which machine's radii it was made, are compared like all files.
    """
    text = read_whole(against, MOST_BYTES, f"give a file {CHECKSUMS}").decode("utf-8", "replace")
    wanted: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        found = LINE.fullmatch(line)
        if found is None:
            raise InvalidValueError(f"{against}, line {number}: not a SHA-256, two spaces and a name")
        wanted[found[2]] = found[1]
    have = {line[66:]: line[:64] for line in checksums(out).splitlines()}
    folders = {name.partition("/")[0] for name in have if "/" in name}
    wanted = {name: digest for name, digest in wanted.items() if name.partition("/")[0] in folders or "/" not in name}
    if "README.md" not in wanted:  # in a list that was put together of families that were made apart
        have.pop("README.md", None)
    faults = [f"{name} is missing" for name in sorted(set(wanted) - set(have))]
    faults += [f"{name} is not in the list" for name in sorted(set(have) - set(wanted))]
    return faults + [f"{name} differs" for name in sorted(set(have) & set(wanted)) if have[name] != wanted[name]]
