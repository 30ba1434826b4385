"""Questions as files: properties in text, the cascade in this process and as a command, onnxruntime on the bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.foundation.errors import InvalidValueError

Array = NDArray[Any]
Floats = Sequence[float] | NDArray[np.float64]


class Verified(NamedTuple):
    """An answer, however it was asked for."""

    status: str
    x: list[float] | None
    """the counterexample's input"""
    y: list[float] | None
    bounds: Any
    certificate: bytes | None = None
    text: str = ""


def number(value: float | Fraction) -> str:
    """Exactly this number, as VNNLIB writes it."""
    exact = Fraction(value)
    top, bottom = exact.numerator, exact.denominator
    if bottom == 1:
        return f"{top}.0"
    places = 0
    while (10**places * top) % bottom and places < 1100:
        places += 1
    scaled = abs(top) * 10**places // bottom
    if (10**places * top) % bottom:
        return f"(/ {top}.0 {bottom}.0)"
    digits = str(scaled).zfill(places + 1)
    return f"{'-' if top < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def property_text(lower: Floats, upper: Floats, outputs: int, asserted: Sequence[str]) -> str:
    """VNNLIB 1.0: a box, and assertions that hold all."""
    lines = [f"(declare-const X_{i} Real)" for i in range(len(lower))]
    lines += [f"(declare-const Y_{i} Real)" for i in range(outputs)]
    for i, (low, high) in enumerate(zip(list(lower), list(upper), strict=True)):
        lines += [f"(assert (>= X_{i} {number(float(low))}))", f"(assert (<= X_{i} {number(float(high))}))"]
    return "\n".join([*lines, *(f"(assert {text})" for text in asserted)]) + "\n"


def verified(
    model: Path,
    spec: Path,
    method: str = "bab",
    *,
    certificate: bool = False,
    attack: bool = True,
    seconds: float = 5.0,
) -> Verified:
    """The cascade in this process; with `certificate`, `unsat` only with a proof that the checker accepts.

    Without `attack` all the time is for bounds: what an attack would refute at once is said, if it is going to be.
    """
    from vertex_softmax.bounds.branch_and_bound import Search
    from vertex_softmax.certificate.certificate import Effort
    from vertex_softmax.certificate.instances import prove_instance
    from vertex_softmax.search.answers import Budget
    from vertex_softmax.search.verify_files import described, load_instance, verify_instance

    instance = load_instance(model, spec)
    budget = Budget(seconds=seconds) if attack else Budget(seconds=seconds, first=0.0, second=0.0, most=0.0)
    facts = described(verify_instance(instance, budget, method=method))
    point = facts["counterexample"] or {}
    found = Verified(facts["status"], point.get("x"), point.get("y"), facts["bounds"])
    if not certificate or found.status != "unsat":
        return found
    proof = prove_instance(instance, model.name, Effort(search=Search(seconds=2.0, domains=64)))
    if proof.certificate is None:
        return found._replace(status="unknown")
    return found._replace(certificate=proof.certificate.data)


def command(*arguments: object, seconds: float = 60.0) -> tuple[int, str, str]:
    """`vertex ...` in a process of its own: exit code, stdout, stderr."""
    there = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "vertex_softmax", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env=there,
        check=False,
    )
    if "Traceback (most recent call last)" in done.stderr:
        raise RuntimeError(done.stderr[-400:])
    return done.returncode, done.stdout, done.stderr


def verified_by_command(model: Path, spec: Path, *more: object, seconds: float = 8.0) -> Verified:
    """`vertex verify` as a command."""
    code, out, err = command("verify", model, spec, "--timeout", seconds, "--threads", 1, "--json", "-", *more)
    try:
        facts = json.loads(out)
    except ValueError:
        raise RuntimeError(f"exit code {code}, and no JSON: {out[-200:]!r} {err[-200:]!r}") from None
    if facts["status"] == "error":
        raise InvalidValueError(facts["reason"])
    point = facts.get("counterexample") or {}
    return Verified(facts["status"], point.get("x"), point.get("y"), facts.get("bounds"), text=err)


class Runtime:
    """onnxruntime on a file's own bytes: nothing optimised, nothing inlined by us."""

    def __init__(self, model: bytes | Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        source = model if isinstance(model, bytes) else str(model)
        self.session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        first = self.session.get_inputs()[0]
        self.name, self.shape = first.name, [n if isinstance(n, int) else 1 for n in first.shape]
        self.dtype = np.float64 if first.type == "tensor(double)" else np.float32

    def __call__(self, x: Array) -> Array:
        """The first output, flat, at one input."""
        feed = np.asarray(x, dtype=self.dtype).reshape(self.shape)
        found: Array = np.asarray(self.session.run(None, {self.name: feed})[0]).reshape(-1)
        return found
