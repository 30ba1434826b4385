"""Certificates to tamper with, and what must hold of the verdict."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.bounds.networks import Config, transformer
from tests.certificate import exact
from tests.certificate.exact import Array, Written
from tests.certificate.made import Net, boxed, by_form, by_rule, chosen_box, with_choices, with_packed_choices
from vertex_softmax.certificate import checker
from vertex_softmax.certificate.checker import Finding, check

CHECKER = Path(checker.__file__).parent


def _net(config: Config, radius: float) -> Net:
    return boxed(transformer(config), radius, config.seed)


def _splits(net: Net, *, pack: bool = False) -> bytes:
    """A tree with a split at a ReLU, at a score and at a σ; packed, it is after a box with chosen parameters."""
    prover, _ = by_rule(net)
    nodes = prover.nodes
    relu = next(n.inputs[0] for n in nodes if n.op == "Relu")
    scores = next(n.inputs[0] for n in nodes if n.op == "Attention")
    norm = next(k for k, n in enumerate(nodes) if n.op == "Normalize")
    prover.known.reach(len(nodes) - 1)
    middle = {k: float(prover.known.boxes[k].middle().flat[1]) for k in (relu, scores)}
    sigma = float(prover.known.norm(norm).sigma.middle().flat[0])
    tree: list[dict[str, Any]] = [
        {"split": [scores, 1, middle[scores], False], "left": 1, "right": 2},
        {},
        {"split": [relu, 1, middle[relu], False], "left": 3, "right": 4},
        {"split": [norm, 0, sigma, True], "left": 5, "right": 6},
        {}, {}, {},
    ]  # fmt: skip
    if pack:
        chosen_box(prover, relu)
        return with_packed_choices(prover, tree)
    return with_choices(prover, tree)


@functools.cache
def certificate(name: str) -> Written:
    plain = Config(tokens=2, width=2, classes=2)
    data = {
        "relu attention": lambda: with_choices(by_rule(_net(plain, 0.1))[0]),
        "norms and gelu": lambda: with_choices(
            by_rule(_net(dataclasses.replace(plain, norm="pre", activation="gelu", seed=1), 0.05))[0]
        ),
        "mask": lambda: with_choices(by_rule(_net(dataclasses.replace(plain, mask="causal", seed=3), 0.05))[0]),
        "forward": lambda: by_form(
            _net(dataclasses.replace(plain, norm="pre", activation="gelu", gain=3.0, seed=1), 0.4)
        ),
        "forward, relu": lambda: by_form(_net(dataclasses.replace(plain, norm="pre", gain=3.0, seed=3), 0.4)),
        "tree": lambda: _splits(_net(dataclasses.replace(plain, norm="pre", seed=2), 0.1)),
        "packed tree": lambda: _splits(_net(dataclasses.replace(plain, norm="pre", seed=2), 0.1), pack=True),
    }[name]()
    verdict = check(data)
    assert verdict.accepted, verdict.reason
    return exact.read(data)


NAMES = ["relu attention", "norms and gelu", "mask", "tree", "packed tree", "forward", "forward, relu"]


def input_box(written: Written) -> tuple[Array, Array]:
    """Of the first part."""
    lower, upper = (written.arrays[written.header["parts"][0][end]].astype(float) for end in ("lower", "upper"))
    return lower, upper


def said(header: dict[str, Any], arrays: dict[str, Array]) -> str:
    """What a file states: its network, its input boxes and its cases."""
    parts = [
        [part["lower"], part["upper"], [[case["rows"], case["bound"]] for case in part["property"]]]
        for part in header["parts"]
    ]
    names = [v for entry in header["graph"] for v in entry["arrays"].values()]
    names += [n for part in parts for n in (*part[:2], *(n for case in part[2] for n in case))]
    numbers = {n: (arrays[n].dtype.kind, arrays[n].shape, arrays[n].tobytes()) for n in names if n in arrays}
    return repr((header["graph"], parts, sorted(numbers.items())))


def judged(data: bytes, changed: Written, original: Written, seed: int) -> Finding:
    """The verdict on a changed file, which must be a rejection with a reason unless the file says what is true."""
    verdict = check(data)
    assert isinstance(verdict, Finding)
    assert math.isfinite(verdict.seconds)
    if not verdict.accepted:
        assert verdict.reason
        assert verdict.statement == ""
        return verdict
    assert verdict.margin > 0
    try:
        same = said(changed.header, changed.arrays) == said(original.header, original.arrays)
    except (KeyError, TypeError, AttributeError):
        same = False
    if not same:
        assert not exact.counterexample(changed, np.random.default_rng(seed))
    return verdict


def flipped(x: Array, chance: np.random.Generator) -> tuple[Array, str]:
    """One number of an array, changed."""
    x = x.copy()
    flat = x.reshape(-1)
    at = int(chance.integers(flat.size))
    if x.dtype.kind == "b":
        raw = flat.view(np.uint8)
        raw[at] = chance.choice([1 - raw[at], 1 - raw[at], 1 - raw[at], 2, 255])
        return x, "truth value"
    if x.dtype.kind == "i":
        kind = str(chance.choice(["+1", "-1", "sign", "huge", "swap"]))
        huge = np.iinfo(x.dtype).max
        new = {
            "+1": flat[at] + 1,
            "-1": flat[at] - 1,
            "sign": -flat[at] - 1,
            "huge": huge,
            "swap": flat[at - 1],
        }
        flat[at], flat[at - 1] = new[kind], (flat[at] if kind == "swap" else flat[at - 1])
        return x, kind
    kinds = ["sign", "bit", "bit", "bit", "more", "less", "+1", "swap", "nan", "inf", "-inf", "1e308", "denormal", "0"]
    kind = str(chance.choice(kinds))
    value = flat[at]
    with np.errstate(all="ignore"):
        if kind == "bit":
            bits = flat.view({8: np.uint64, 4: np.uint32, 2: np.uint16}[x.dtype.itemsize])
            bits[at] ^= bits.dtype.type(1 << int(chance.integers(8 * x.dtype.itemsize)))
        elif kind == "swap":
            flat[at], flat[at - 1] = flat[at - 1], value
        else:
            flat[at] = {
                "sign": -value, "more": value * 1.001, "less": value * 0.999, "+1": value + 1, "nan": np.nan,
                "inf": np.inf, "-inf": -np.inf, "1e308": 1e308, "denormal": 5e-324, "0": 0.0,
            }[kind]  # fmt: skip
    return x, kind


def wide(written: Written) -> Written:
    """The same with all floats in double precision, so that every bit can be flipped."""
    return Written(
        written.header, {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in written.arrays.items()}
    )


def flips(original: Written, count: int, seed: int) -> dict[str, int]:
    chance, found = np.random.default_rng(seed), {"accepted": 0, "rejected": 0}
    groups: dict[str, list[str]] = {}
    for n, value in original.arrays.items():
        if value.size:
            groups.setdefault(".".join(n.replace("part.0.", "").split(".")[:1]), []).append(n)
    for k in range(count):
        base = wide(original) if k % 2 else original
        group = groups[str(chance.choice(sorted(groups)))]
        which = str(chance.choice(group))
        value, _ = flipped(base.arrays[which], chance)
        changed = Written(base.header, {**base.arrays, which: value})
        verdict = judged(changed.data(), changed, original, k)
        found["accepted" if verdict.accepted else "rejected"] += 1
    return found


def paths(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in a header."""
    if way:
        yield way
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(item, (*way, key))


OPS = ["Relu", "Tanh", "Gelu", "Square", "Sqrt", "Add", "Multiply", "MatMul", "Attention", "Normalize", "Move", "Scale",
       "Linear", "Constant", "Input", "GeluTanh", "Exp", "Max"]  # fmt: skip


def other(value: Any, written: Written, chance: np.random.Generator) -> Any:
    """Another value for one place of a header."""
    odd = [None, True, False, -1, 0, 1, 10**30, 1.0, 0.5, -0.5, 1e308, 5e-324, "", "0", "\ud800", [], {}, [0], [[]]]
    if isinstance(value, bool):
        return chance.choice([not value, None, 0, 1, "x"])
    if isinstance(value, int):
        options: list[Any] = [value + 1, value - 1, -value, value + 1.0, float(value), *odd]
    elif isinstance(value, float):
        options = [value + 1, -value, value * 1.001, value * 0.999, 1e400, math.nextafter(value, 9), *odd]
    elif isinstance(value, str):
        names = list(written.arrays)
        words = ["affine", "vertex", "box", "zonotope", "centred"]
        options = [*(str(chance.choice(names)) for _ in range(8)), *OPS, *words, *odd]
    elif isinstance(value, list):
        longer = [[*value, *value[-1:]], [*value, 0]]
        options = [value[:-1], value[1:], value[::-1], *longer, value[0] if value else 0, *odd]
    else:
        fewer = {k: v for k, v in value.items() if k != str(chance.choice(list(value)))} if value else {"0": 0}
        options = [fewer, {}, [], None, list(value.values())]
    return options[int(chance.integers(len(options)))]


def replaced(header: Any, way: tuple[Any, ...], value: Any) -> Any:
    found = json.loads(json.dumps(header))
    at = found
    for key in way[:-1]:
        at = at[key]
    at[way[-1]] = value
    return found


def header_flips(original: Written, count: int, seed: int) -> dict[str, int]:
    chance, found = np.random.default_rng(seed), {"accepted": 0, "rejected": 0}
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for way in paths(original.header):
        if way[0] in ("graph", "parts", "format") and len(way) > 1:
            groups.setdefault(str(way[2]) if way[0] == "parts" and len(way) > 2 else str(way[0]), []).append(way)
    for k in range(count):
        group = groups[str(chance.choice(sorted(groups)))]
        way = group[int(chance.integers(len(group)))]
        at: Any = original.header
        for key in way:
            at = at[key]
        changed = Written(replaced(original.header, way, other(at, original, chance)), original.arrays)
        verdict = judged(changed.data(), changed, original, k)
        found["accepted" if verdict.accepted else "rejected"] += 1
    return found


ALONE = """
import json, re, resource, sys, time
sys.path.insert(0, sys.argv[1])
import checker
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
for place in sys.argv[2:]:
    begin = time.perf_counter()
    verdict = checker.check(place)
    try:  # the kernel's ru_maxrss of a child is at least its parent's
        peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    row = [verdict.accepted, verdict.reason, round(time.perf_counter() - begin, 2), peak]
    print(json.dumps(row), flush=True)
"""


def alone(places: list[Path], seconds: float) -> list[tuple[bool, str, float, int]]:
    """Verdicts of a process of its own, with at most 3 GiB; the last number is its most MiB so far."""
    run = subprocess.run(
        [sys.executable, "-c", ALONE, str(CHECKER.parent), *map(str, places)],
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return [tuple(json.loads(line)) for line in run.stdout.splitlines()]
