"""The kind `properties`: random VNNLIB properties of small networks, in many spellings, through the cascade.

Truth does not read the file: the recipe's own boxes and inequalities are evaluated in rational numbers. `unsat` is
refuted by a point whose outputs, in real arithmetic (exact.py), satisfy them; `sat` has to be confirmed by
onnxruntime's outputs, exactly. One property in another spelling, or scaled by a power of ten, has no contrary answer.
"""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vertex_lab.fuzz.asking import Asking, Report, Stop, UnfitError, reported
from vertex_lab.fuzz.exact import Exact, ball
from vertex_lab.fuzz.files import Runtime, Verified, number, verified, verified_by_command
from vertex_lab.fuzz.programs import centre_of, program_of
from vertex_lab.fuzz.recipe import Recipe
from vertex_lab.fuzz.styles import ordinary

SIMPLE: dict[str, Any] = {
    "tokens": 1,
    "d": 1,
    "outputs": 1,
    "version": 1,
    "certificate": False,
    "command": False,
    "method": "crown",
    "tens": 0,
    "strict": False,
    "swapped": False,
    "more": [],
    "form": "decimal",
}
Points = list[NDArray[np.float64]]
Literal = tuple[dict[int, Fraction], str, Fraction]
"""Σ a·y, a comparison, a limit."""


def draw(seed: int) -> Recipe:
    """The recipe of a seed."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    blocks = [ordinary(rng) for _ in range(rng.choice((1, 1, 2)))]
    tiny = rng.random() < 0.3
    if tiny or rng.random() < 0.2:  # outputs of another size, with coefficients to match
        blocks.append({"op": "chain", "factors": [rng.choice((1e3, 1e4, 1e10) if tiny else (1e4, 1e-6))]})
    return {
        "kind": "properties",
        "seed": seed,
        "tokens": rng.choice((1, 2)),
        "d": rng.choice((1, 2)),
        "classes": rng.choice((1, 2, 3)),
        "blocks": blocks,
        "eps": rng.choice((0.01, 0.1, 0.5)),
        "boxes": [_box(rng) for _ in range(rng.choice((1, 1, 2, 3)))],
        "conjunctions": [
            [_literal(rng, tiny) for _ in range(rng.choice((1, 1, 2)))] for _ in range(rng.choice((1, 1, 2, 3)))
        ],
        "spellings": [_spelling(rng) for _ in range(rng.choice((1, 2)))],
        "method": rng.choice(("crown", "joint", "bab")),
        "certificate": rng.random() < 0.3,
        "command": rng.random() < 0.05,
    }


def _box(rng: random.Random) -> dict[str, Any]:
    """Where it is, from the centre, in ε; how wide; and whether it is a point in some inputs."""
    return {
        "shift": rng.choice((0.0, 0.0, 3.0, -2.0)),
        "width": rng.choice((1.0, 1.0, 0.1)),
        "thin": rng.random() < 0.2,
    }


def _literal(rng: random.Random, tiny: bool) -> dict[str, Any]:
    """A direction of outputs, where its limit lies in what is seen (0: its least, 1: its greatest), and its scale."""
    far: tuple[int, ...] = (0, 0, 0, 3, -3, 30, -30, 300, -300, -318, -320, -322, -323, 307)
    up = rng.random() < 0.5
    at = rng.choice((-0.5, -0.05, 0.01, 0.05, 0.3, 0.7, 0.95, 0.99, 1.05, 1.5))
    if tiny:  # they become 0, or lose digits; what is asked for is in a corner of the box
        far, at = (-322, -324, -325, -326, -330), 0.95 if up else 0.05
    return {
        "a": [rng.choice((1, -1, 2, 0, 7)) for _ in range(3)],
        "third": rng.random() < 0.2,
        "at": at,
        "up": up,
        "equal": rng.random() < 0.05,
        "strict": rng.random() < 0.2,
        "tens": rng.choice(far),
    }


def _spelling(rng: random.Random) -> dict[str, Any]:
    return {
        "version": rng.choice((1, 1, 2)),
        "swapped": rng.random() < 0.4,
        "form": rng.choice(("decimal", "exponent", "quotient")),
        "tens": rng.choice((0, 0, 0, 5, -5)),
    }


def check(recipe: Recipe, *, device: str = "cpu", folder: Path) -> Report:  # noqa: ARG001
    """All findings of a recipe."""
    return reported(lambda report: _Case(recipe, report, folder).run())


class _Case(Asking):
    def __init__(self, recipe: Recipe, report: Report, folder: Path) -> None:
        self.recipe, self.report, self.folder = recipe, report, folder
        if not recipe["boxes"] or not recipe["conjunctions"] or not all(recipe["conjunctions"]):
            raise UnfitError("a property needs a box and an inequality")
        self.model = program_of(recipe).onnx().SerializeToString()
        self.runtime, self.exact = Runtime(self.model), Exact(self.model)
        self.boxes = [self._ends(box) for box in recipe["boxes"]]
        self.points: Points = [x for box in self.boxes for x in self._inside(*box)]
        self.outputs = [self.exact(x) for x in self.points]
        if not all(y.is_finite() for row in self.outputs for y in row):
            raise Stop
        self.formula = [[self._made(literal) for literal in part] for part in recipe["conjunctions"]]
        if not all(a for part in self.formula for a, _, _ in part):
            raise UnfitError("an inequality without outputs")

    def _ends(self, box: dict[str, Any]) -> tuple[list[Fraction], list[Fraction]]:
        rng = np.random.default_rng(self.recipe["seed"] + 11)
        eps = self.recipe["eps"]
        centre = centre_of(self.recipe).reshape(-1) + box["shift"] * eps
        width = eps * box["width"] * (rng.random(centre.shape) < (0.5 if box["thin"] else 2.0))
        ends = [[Fraction(float(np.float32(c + s * w))) for c, w in zip(centre, width, strict=True)] for s in (-1, 1)]
        return ends[0], ends[1]

    def _inside(self, lower: list[Fraction], upper: list[Fraction]) -> Points:
        rng = np.random.default_rng(self.recipe["seed"])
        low, high = (np.array([float(v) for v in end]) for end in (lower, upper))
        found = [low, high, *(np.where(rng.random(low.shape) < 0.5, low, high) for _ in range(8))]
        found += [low + rng.random(low.shape) * (high - low) for _ in range(8)]
        return [x.astype(np.float32).astype(np.float64).clip(low, high) for x in found]

    def _made(self, literal: dict[str, Any]) -> Literal:
        """With its limit put where the recipe says, as a short decimal; scaled by powers of ten."""
        classes = self.recipe["classes"]
        a = {k: Fraction(v, 3 if literal["third"] else 1) for k, v in enumerate(literal["a"][:classes]) if v}
        if not a:
            a = {0: Fraction(1)}
        seen = [sum(float(v) * float(row[k].mid()) for k, v in a.items()) for row in self.outputs]
        least, most = min(seen), max(seen)
        limit = Fraction(f"{least + literal['at'] * max(most - least, 1e-3):.7f}")
        scale = Fraction(10) ** literal["tens"]
        word = "=" if literal["equal"] else (">" if literal["up"] else "<") + ("" if literal["strict"] else "=")
        return {k: v * scale for k, v in a.items()}, word, limit * scale

    def run(self) -> None:
        """Every spelling."""
        path = self.folder / "model.onnx"
        path.write_bytes(self.model)
        broken = any(self._surely(row) for row in self.outputs_by_box())
        statuses = []
        for i, spelling in enumerate(self.recipe["spellings"]):
            spec = self.folder / f"{i}.vnnlib"
            spec.write_text(self.text(spelling))
            where = f"version {spelling['version']}{' certificate' if self.recipe['certificate'] else ''}"
            found = self._asked(path, spec, where)
            if found is None:
                continue
            statuses.append(found.status)
            self.note(f"{found.status} {where}")
            if found.status == "unsat" and broken:
                self.find("unsat but broken", where, "a point of the box satisfies the property's negation, exactly")
            if found.status == "sat":
                self._confirmed(found, where)
        if {"sat", "unsat"} <= set(statuses):
            self.find("contrary answers", "spellings", f"{statuses}")

    def _asked(self, path: Path, spec: Path, where: str) -> Verified | None:
        method, proof = self.recipe["method"], self.recipe["certificate"]
        if self.recipe["command"]:
            return self.ask(lambda: verified_by_command(path, spec, "--method", method), "verify as a command")
        return self.ask(lambda: verified(path, spec, method, certificate=proof), f"verify {where}")

    def outputs_by_box(self) -> list[Any]:
        """Exact outputs at points that are in a box, without tolerance."""
        found = []
        for x, y in zip(self.points, self.outputs, strict=True):
            if self._contains(x):
                found.append(y)
        return found

    def _contains(self, x: Any) -> bool:
        exact = [Fraction(float(v)) for v in x]
        return any(all(lo <= v <= hi for lo, v, hi in zip(low, exact, high, strict=True)) for low, high in self.boxes)

    def _surely(self, row: Any) -> bool:
        """Is a conjunction true of these balls, whatever the numbers in them?"""
        return any(all(_true(literal, row) for literal in part) for part in self.formula)

    def _confirmed(self, found: Verified, where: str) -> None:
        if found.x is None:
            self.find("sat without a point", where, "there is no counterexample")
            return
        y = [Fraction(float(v)) for v in self.runtime(np.array(found.x))]
        true = any(all(_holds(literal, y) for literal in part) for part in self.formula)
        if not self._contains(found.x) or not true:
            self.find("sat without a point", where, f"in a box: {self._contains(found.x)}, true of its outputs: {true}")

    # The text --------------------------------------------------------------------------------------------------------

    def text(self, spelling: dict[str, Any]) -> str:
        """The property in a spelling."""
        two, sizes = spelling["version"] == 2, (len(self.boxes[0][0]), self.recipe["classes"])
        names = {v: [f"{v}[0,{i}]" if two else f"{v}_{i}" for i in range(n)] for v, n in zip("XY", sizes, strict=True)}
        if two:
            shape = ",".join(map(str, (1, self.recipe["tokens"], self.recipe["d"])))
            names["X"] = [f"X[0,{i // self.recipe['d']},{i % self.recipe['d']}]" for i in range(sizes[0])]
            lines = [
                "(vnnlib-version <2.0>)",
                f"(declare-network N (declare-input X float32 [{shape}]) (declare-output Y float32 [1,{sizes[1]}]))",
            ]
        else:
            lines = [f"(declare-const {name} Real)" for v in "XY" for name in names[v]]
        boxes = [self._bounds(box, names["X"], spelling) for box in self.boxes]
        parts = [[self._literal(literal, names["Y"], spelling) for literal in part] for part in self.formula]
        if len(boxes) == 1:
            lines += [f"(assert {bound})" for bound in boxes[0]]
            lines.append(f"(assert {_any([_all(part) for part in parts])})")
        else:
            lines.append(f"(assert {_any([_all([*box, *part]) for box in boxes for part in parts])})")
        return "\n".join(lines) + "\n"

    def _bounds(self, box: tuple[list[Fraction], list[Fraction]], names: list[str], _how: dict[str, Any]) -> list[str]:
        found = []
        for name, low, high in zip(names, *box, strict=True):
            found += [f"(>= {name} {number(low)})", f"(<= {name} {number(high)})"]
        return found

    def _literal(self, literal: Literal, names: list[str], how: dict[str, Any]) -> str:
        a, word, limit = literal
        scale = Fraction(10) ** how["tens"]
        terms = [f"(* {_number(v * scale, how)} {names[k]})" for k, v in a.items()]
        total = terms[0] if len(terms) == 1 else f"(+ {' '.join(terms)})"
        if word == "=" and how["version"] == 2:
            word = "=="
        if how["swapped"]:
            turned = {"<=": ">=", ">=": "<=", "<": ">", ">": "<"}.get(word, word)
            return f"({turned} {_number(limit * scale, how)} {total})"
        return f"({word} {total} {_number(limit * scale, how)})"


def _all(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"(and {' '.join(parts)})"


def _any(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"(or {' '.join(parts)})"


def _number(value: Fraction, how: dict[str, Any]) -> str:
    """Exactly this number; what has no short decimal becomes a quotient, which version 2 does not have."""
    if how["version"] == 1 and how["form"] == "quotient":
        return f"(/ {value.numerator}.0 {value.denominator}.0)"
    tens = 0
    while value.denominator != 1 and tens < 500:
        value, tens = value * 10, tens + 1
        if value.denominator % 2 and value.denominator % 5 and value.denominator != 1:
            break
    if value.denominator != 1:
        if how["version"] == 2:
            raise UnfitError("a quotient in version 2")
        value /= Fraction(10) ** tens
        return f"(/ {value.numerator}.0 {value.denominator}.0)"
    if how["form"] == "exponent" and how["version"] == 1:
        return f"{value.numerator}.0e-{tens}" if tens else f"{value.numerator}.0"
    return number(value / Fraction(10) ** tens)


def _true(literal: Literal, row: Any) -> bool:
    """Surely true of balls."""
    a, word, limit = literal
    total = sum((ball(v) * row[k] for k, v in a.items()), ball(Fraction(0)))
    edge = ball(limit)
    return {
        "<=": bool(total <= edge),
        "<": bool(total < edge),
        ">=": bool(total >= edge),
        ">": bool(total > edge),
        "=": False,
    }[word]


def _holds(literal: Literal, y: list[Fraction]) -> bool:
    a, word, limit = literal
    total = sum((v * y[k] for k, v in a.items()), Fraction(0))
    return {
        "<=": total <= limit,
        "<": total < limit,
        ">=": total >= limit,
        ">": total > limit,
        "=": total == limit,
    }[word]
