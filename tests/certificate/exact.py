"""The network written in a certificate, evaluated by the test's own code: in Arb's balls, and in floats for searches.

Nothing here is taken from the checker. A statement of the file is judged by these values alone.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from flint import arb, arb_mat, ctx
from numpy.typing import NDArray
from torch.nn import functional

ctx.prec = 160
Array = NDArray[Any]
FROM = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "BOOL": "|b1"}
TYPES = {kind: name for name, kind in FROM.items()} | {"|u1": "BOOL"}
STORED = arb(2) ** -46


# Bytes ---------------------------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """A certificate's header and arrays."""

    header: dict[str, Any]
    arrays: dict[str, Array]

    def data(self, **changes: Any) -> bytes:
        return write(self.header, self.arrays, **changes)

    def copy(self) -> Written:
        return Written(json.loads(json.dumps(self.header)), {k: v.copy() for k, v in self.arrays.items()})


def read(data: bytes) -> Written:
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    header = json.loads(table.pop("__metadata__")["certificate"])
    body = data[8 + length :]
    arrays = {}
    for name, entry in table.items():
        start, stop = entry["data_offsets"]
        arrays[name] = np.frombuffer(body[start:stop], FROM[entry["dtype"]]).reshape(entry["shape"]).copy()
    return Written(header, arrays)


def write(
    header: Any, arrays: dict[str, Array], *, table: Callable[[dict[str, Any]], Any] | None = None, tail: bytes = b""
) -> bytes:
    """A file; `table` may spoil the outer header first."""
    found: dict[str, Any] = {"__metadata__": {"certificate": header if isinstance(header, str) else json.dumps(header)}}
    body = b""
    for name, value in arrays.items():
        x = np.asarray(value)
        part = x.tobytes()
        found[name] = {
            "dtype": TYPES[x.dtype.str],
            "shape": list(x.shape),
            "data_offsets": [len(body), len(body) + len(part)],
        }
        body += part
    text = found if table is None else table(found)
    raw = text if isinstance(text, bytes) else json.dumps(text).encode()
    return len(raw).to_bytes(8, "little") + raw + body + tail


# Functions of one number ---------------------------------------------------------------------------------------------


def _sigmoid(x: arb) -> arb:
    return 1 / (1 + (-x).exp())


def _gelu_tanh(x: arb, k: arb, c: arb) -> arb:
    return x / 2 * (1 + (k * x * (1 + c * x * x)).tanh())


def _single(x: float) -> arb:
    return arb(float(np.float32(x)))


CURVES: dict[str, Callable[[arb], arb]] = {
    "Gelu": lambda x: x / 2 * (-x / arb(2).sqrt()).erfc(),
    "GeluTanh": lambda x: _gelu_tanh(x, (2 / arb.pi()).sqrt(), arb("0.044715")),
    "GeluTanhDouble": lambda x: _gelu_tanh(x, arb(math.sqrt(2 / math.pi)), arb(0.044715)),
    "GeluTanhSingle": lambda x: _gelu_tanh(x, _single(math.sqrt(2 / math.pi)), _single(0.044715)),
    "Silu": lambda x: x * _sigmoid(x),
    "Softplus": lambda x: -(_sigmoid(-x).log()),
    "Mish": lambda x: x * (-2 * _sigmoid(-x).log()).expm1() / ((-2 * _sigmoid(-x).log()).exp() + 1),
    "Elu": lambda x: x.max(arb(0)) + x.min(arb(0)).expm1(),
    "HardSwish": lambda x: x * (x / 6 + arb("0.5")).max(arb(0)).min(arb(1)),
    "HardSwishSingle": lambda x: x * (_single(1 / 6) * x + arb("0.5")).max(arb(0)).min(arb(1)),
    "SoftplusTorch": lambda x: x if x > 20 else -(_sigmoid(-x).log()),
    "Round": lambda x: arb(float(np.rint(float(x)))),
    "Tanh": lambda x: x.tanh(),
    "Sigmoid": _sigmoid,
    "Erf": lambda x: x.erf(),
    "Exp": lambda x: x.exp(),
    "Square": lambda x: x * x,
    "Log": lambda x: x.log(),
    "Sqrt": lambda x: x.sqrt(),
    "Rsqrt": lambda x: x.rsqrt(),
    "Reciprocal": lambda x: 1 / x,
    "Relu": lambda x: x.max(arb(0)),
}


def _float_curve(op: str, x: Array) -> Array:
    t = torch.from_numpy(np.ascontiguousarray(x))
    if op in ("GeluTanh", "GeluTanhDouble"):
        return np.asarray(functional.gelu(t, approximate="tanh").numpy())
    if op == "GeluTanhSingle":
        k, c = (float(np.float32(v)) for v in (math.sqrt(2 / math.pi), 0.044715))
        return np.asarray(x / 2 * (1 + np.tanh(k * x * (1 + c * x * x))))
    known: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "Gelu": functional.gelu,
        "Silu": functional.silu,
        "Softplus": functional.softplus,
        "SoftplusTorch": functional.softplus,
        "Mish": functional.mish,
        "Elu": functional.elu,
        "HardSwish": functional.hardswish,
        "HardSwishSingle": lambda t: t * (float(np.float32(1 / 6)) * t + 0.5).clamp(0, 1),
        "Round": torch.round,
        "Reciprocal": torch.reciprocal,
    }
    return np.asarray(known.get(op, getattr(torch, op.lower(), torch.abs))(t).numpy())


# The network ---------------------------------------------------------------------------------------------------------


def _balls(x: Array) -> Array:
    found = np.empty(x.shape, dtype=object)
    found.ravel()[:] = [arb(float(v)) for v in x.ravel()]
    return found


def _product(x: Array, y: Array) -> Array:
    """Matrices of balls, (n, k) and (k, m)."""
    (n, k), m = x.shape, y.shape[1]
    found = np.empty((n, m), dtype=object)
    found.ravel()[:] = (arb_mat(n, k, list(x.ravel())) * arb_mat(k, m, list(y.ravel()))).entries()
    return found


class Network:
    """The graph of a certificate. `nudged`: every stored number is off by up to 2⁻⁴⁶ of itself, as it may be."""

    def __init__(self, header: dict[str, Any], arrays: dict[str, Array], nudged: int | None = None) -> None:
        self.entries, self.arrays = header["graph"], arrays
        self.shapes = [tuple(int(n) for n in entry["shape"]) for entry in self.entries]
        self.chance = None if nudged is None else np.random.default_rng(nudged)
        self.stored: dict[str, Array] = {}

    def _numbers(self, name: str) -> Array:
        if name not in self.stored:
            found = _balls(self.arrays[name])
            if self.chance is not None:
                off = self.chance.integers(-1, 2, found.shape)
                found = found * (1 + np.frompyfunc(lambda n: int(n) * STORED, 1, 1)(off))
            self.stored[name] = np.asarray(found, dtype=object)
        return self.stored[name]

    def values(self, x: Array) -> list[Array]:
        """Of every node at one input of floats (or balls)."""
        found: list[Array] = []
        for entry, shape in zip(self.entries, self.shapes, strict=True):
            inputs = [found[i] for i in entry["inputs"]]
            if entry["op"] == "Input":
                value = x if x.dtype == object else _balls(x)
            else:
                value = self._node(entry, shape, inputs)
            assert value.shape == shape, f"{entry['op']} of shape {value.shape}, written as {shape}"
            found.append(value)
        return found

    def _node(self, entry: dict[str, Any], shape: tuple[int, ...], x: list[Array]) -> Array:
        op, given = entry["op"], entry["arrays"]
        if op == "Constant":
            return self._numbers(given["value"])
        if op == "Move":
            return np.concatenate([v.ravel() for v in x])[self.arrays[given["index"]]]
        if op == "Linear":
            out = _product(x[0].reshape(-1, x[0].shape[-1]), self._numbers(given["weight"])).reshape(shape)
            return out if "bias" not in given else out + self._numbers(given["bias"])
        if op == "Scale":
            return np.asarray(x[0] * self._numbers(given["factor"]))
        if op == "Shift":
            return np.asarray(x[0] + self._numbers(given["offset"]))
        if op in ("Add", "Multiply"):
            return np.asarray(x[0] + x[1] if op == "Add" else x[0] * x[1])
        if op in ("MatMul", "Attention"):
            masks = {name: self.arrays[given[name]] for name in ("mask", "penalty", "replaced") if name in given}
            left = x[0] if op == "MatMul" else _softmax(x[0], **masks)
            out = np.empty(shape, dtype=object)
            for at in itertools.product(*map(range, shape[:-2])):
                out[at] = _product(left[at], x[1][at])
            return out
        if op == "Normalize":
            return _normalised(x[0], float(entry.get("eps", 0.0)), self.chance)
        return np.asarray(np.frompyfunc(CURVES[op], 1, 1)(x[0]), dtype=object).reshape(shape)


def _softmax(
    scores: Array, mask: Array | None = None, penalty: Array | None = None, replaced: Array | None = None
) -> Array:
    """Masked keys have weight 0, or the weight of their score and penalty, or of their penalty alone."""
    out = np.empty(scores.shape, dtype=object)
    for at in itertools.product(*map(range, scores.shape[:-1])):
        row, gone = list(scores[at]), [mask is not None and bool(mask[at][j]) for j in range(scores.shape[-1])]
        for j in range(len(row)):
            if gone[j] and penalty is not None and replaced is not None and penalty[at][j] != 0:
                row[j] = arb(float(penalty[at][j])) + (0 if replaced[at][j] else row[j])
                gone[j] = False
        # any number will do for the top, but beside a score that is 1e300 higher the others have no finite exponential
        top = max((j for j in range(len(row)) if not gone[j]), key=lambda j: float(row[j].mid()), default=0)
        e = [arb(0) if gone[j] else arb(1) if j == top else (s - row[top]).exp() for j, s in enumerate(row)]
        total = sum(e, arb(0))
        out[at] = [v / total for v in e]
    return out


def _normalised(y: Array, eps: float, chance: np.random.Generator | None) -> Array:
    off = 0 if chance is None else int(chance.integers(-1, 2))
    d = y.shape[-1]
    out = np.empty(y.shape, dtype=object)
    for at in itertools.product(*map(range, y.shape[:-1])):
        square = sum((v * v for v in y[at]), arb(0)) / d + arb(eps) * (1 + off * STORED)
        root = square.sqrt()
        out[at] = [v / root for v in y[at]]
    return out


def floats(header: dict[str, Any], arrays: dict[str, Array], x: Array) -> list[Array]:
    """Values of every node in floats at many inputs, (points, *shape): to search with, and to compare."""
    found: list[Array] = []
    points = len(x)
    with np.errstate(all="ignore"):
        for entry in header["graph"]:
            op, given, shape = entry["op"], entry["arrays"], tuple(entry["shape"])
            v = [found[i] for i in entry["inputs"]]
            if op == "Input":
                out = x.reshape(points, *shape)
            elif op == "Constant":
                out = np.broadcast_to(arrays[given["value"]].astype(float), (points, *shape))
            elif op == "Move":
                out = np.concatenate([u.reshape(points, -1) for u in v], 1)[:, arrays[given["index"]]]
            elif op == "Linear":
                out = v[0] @ arrays[given["weight"]].astype(float)
                out = out + arrays[given["bias"]] if "bias" in given else out
            elif op == "Scale":
                out = v[0] * arrays[given["factor"]].astype(float)
            elif op == "Shift":
                out = v[0] + arrays[given["offset"]].astype(float)
            elif op in ("Add", "Multiply"):
                out = v[0] + v[1] if op == "Add" else v[0] * v[1]
            elif op == "MatMul":
                out = v[0] @ v[1]
            elif op == "Attention":
                s = np.where(arrays[given["mask"]], -np.inf, v[0]) if "mask" in given else v[0]
                if "penalty" in given:
                    p, r = arrays[given["penalty"]], arrays[given["replaced"]].astype(bool)
                    s = np.where(p != 0, np.where(r, p, v[0] + p), s)
                e = np.exp(s - s.max(-1, keepdims=True))
                out = (e / e.sum(-1, keepdims=True)) @ v[1]
            elif op == "Normalize":
                out = v[0] / np.sqrt((v[0] ** 2).mean(-1, keepdims=True) + float(entry.get("eps", 0.0)))
            else:
                out = _float_curve(op, v[0])
            found.append(out)
    return found


# What a certificate says ---------------------------------------------------------------------------------------------


def outside(value: Array, lower: Array, upper: Array) -> NDArray[np.bool_]:
    """Where a ball certainly lies outside of claimed floats, or is no number."""
    flat = [
        not v.is_finite() or bool(v < arb(float(lo))) or bool(v > arb(float(hi)))
        for v, lo, hi in zip(value.ravel(), lower.ravel(), upper.ravel(), strict=True)
    ]
    return np.array(flat, dtype=bool).reshape(value.shape)


def broken_claims(written: Written, part: dict[str, Any], values: list[Array]) -> list[str]:
    """Every step of a part whose claim these values contradict."""
    found, a = [], written.arrays
    for k, step in enumerate(part["steps"]):
        if step["kind"] == "forward":  # it claims nothing
            continue
        lower, upper = a[step["lower"]], a[step["upper"]]
        if step["kind"] == "centred":
            s = values[written.header["graph"][step["node"]]["inputs"][0]]
            mean = (s * _balls(a[step["weights"]])).sum(-1, keepdims=True)
            value = s - mean
        else:
            value = values[step["node"]]
        if outside(value, lower, upper).any():
            found.append(f"step {k} ({step['kind']} of node {step['node']})")
    return found


def broken_cases(written: Written, part: dict[str, Any], output: Array) -> list[int]:
    """The cases of a part of which an output does not certainly break a row."""
    found = []
    for i, case in enumerate(part["property"]):
        C, d = _balls(written.arrays[case["rows"]]), written.arrays[case["bound"]]
        y = output.reshape(-1, 1)
        sides = (C * y.ravel()).sum(-1)
        if not any(bool(side > arb(float(limit))) for side, limit in zip(sides, d, strict=True)):
            found.append(i)
    return found


def least(written: Written, part: dict[str, Any], points: Array) -> Array:
    """How far every point is from making some case happen, (points,): ≤ 0 or NaN is a counterexample, nearly."""
    out = floats(written.header, written.arrays, points)[-1].reshape(len(points), -1)
    worst = np.full(len(points), np.inf)
    for case in part["property"]:
        C, d = (written.arrays[case[k]].astype(float) for k in ("rows", "bound"))
        with np.errstate(all="ignore"):
            worst = np.minimum(worst, (out @ C.T - d).max(-1))
    return np.asarray(np.where(np.isnan(worst), -np.inf, worst))


def inside(lower: Array, upper: Array, count: int, chance: np.random.Generator) -> Array:
    """Points of a box, (points, *shape): corners, faces, the interior, its middle."""
    n = lower.size
    t = chance.random((count, n))
    t[: count // 2] = np.round(t[: count // 2])
    t[count // 2 : 3 * count // 4] = np.clip(2 * t[count // 2 : 3 * count // 4] - 0.5, 0, 1)
    t[-1] = 0.5
    if n <= 6:
        t = np.concatenate([np.array(list(itertools.product((0.0, 1.0), repeat=n))), t])
    lo, hi = lower.astype(float).ravel(), upper.astype(float).ravel()
    with np.errstate(all="ignore"):
        x = np.clip(lo * (1 - t) + hi * t, lo, hi)
    return np.asarray(x.reshape(-1, *lower.shape))


def counterexample(written: Written, chance: np.random.Generator, count: int = 64, rounds: int = 12) -> str:
    """A point of an input box at which a case happens (or nothing is defined), searched in floats, judged by Arb."""
    for number, part in enumerate(written.header["parts"]):
        lower, upper = (written.arrays[part[end]].astype(float) for end in ("lower", "upper"))
        points = inside(lower, upper, count, chance)
        worst = least(written, part, points)
        for _ in range(rounds):  # the best ones, moved in some coordinates
            best = points[np.argsort(worst)[:8]]
            moved = np.repeat(best, 8, 0)
            other = inside(lower, upper, len(moved), chance)[-len(moved) :]
            moved = np.where(chance.random(moved.shape) < 0.3, other, moved)
            points, worst = (
                np.concatenate([best, moved]),
                np.concatenate([np.sort(worst)[: len(best)], least(written, part, moved)]),
            )
        network = Network(written.header, written.arrays)
        for x in points[np.argsort(worst)[:4]]:
            values = network.values(x)
            if not all(v.is_finite() for value in values for v in value.ravel()):
                return f"part {number}: not a number at {x.tolist()}"
            cases = broken_cases(written, part, values[-1])
            if cases:
                return f"part {number}, cases {cases}: happen at {x.tolist()}"
    return ""
