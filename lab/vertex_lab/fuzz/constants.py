"""The kind `constants`: numbers at which a verifier that computes in float64, or recognises what is nearly a pattern,
is wrong where no float64 replay can see it. Truth is what the file says in real arithmetic (exact.py).

A network ends in (y, threshold). At some points of the box y is known exactly; a threshold is put just above the least
of these values, or just below the greatest. Then `y > threshold everywhere`, or `<`, is false, and must not be said: by
`certify` on the module or the file, by the cascade, with a certificate or without. Only where the promise is one of
floating point (`certify` without a certificate) is the threshold off by 1000 times what float64 rounds.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vertex_lab.fuzz.asking import Asking, Report, Stop, reported
from vertex_lab.fuzz.exact import Exact
from vertex_lab.fuzz.files import Verified, property_text, verified
from vertex_lab.fuzz.programs import centre_of, program_of
from vertex_lab.fuzz.recipe import Layer, Recipe
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import Box

SIMPLE: dict[str, Any] = {
    "eps": 0.0,
    "tokens": 2,
    "d": 1,
    "loud": 1.0,
    "residual": False,
    "method": "crown",
    "certificate": False,
    "dtype": "float64",
    "spread": 1.0,
    "third": 0.0,
    "behind": [],
}
QUICK = Options(ascent=Ascent(steps=2), search=Search(seconds=2.0, domains=8, tried=2, root=Ascent(steps=2)))


def draw(seed: int) -> Recipe:
    """The recipe of a seed."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    blocks: list[Layer] = []
    if rng.random() < 0.5:
        blocks.append({"op": "linear", "seed": rng.randrange(1 << 30)})
    for _ in range(rng.choice((1, 1, 2))):
        block = rng.choice((_mask, _mask, _near, _near, _cancelled, _drifted))(rng)
        if rng.random() < 0.5:
            block = {"op": "gated", "inner": block, "times": rng.choice((1.0, 10.0))}
        blocks.append(block)
        if rng.random() < 0.3:
            kind = rng.choice(("relu", "tanh", "gelu", "silu"))
            blocks.append({"op": "activation", "kind": kind})
    return {
        "kind": "constants",
        "seed": seed,
        "tokens": rng.choice((2, 2, 3)),
        "d": rng.choice((1, 2)),
        "blocks": blocks,
        "eps": rng.choice((0.0, 1e-6, 1e-3, 0.1, 0.5)),
        "spread": rng.choice((1.0, 1.0, 30.0, 0.0)),
        "dtype": rng.choice(("float64", "float64", "float32")),
        "route": rng.choice(("module", "file", "cascade")),
        "certificate": rng.random() < 0.5,
        "third": rng.choice((0.0, 0.0, -1e9, -1e12)),
        "method": rng.choice(("crown", "ibp", "joint", "alpha-crown", "hybrid", "bab")),
    }


def _mask(rng: random.Random) -> Layer:
    """A mask, scales behind it, and scores beside it."""
    fill = -rng.choice((float("inf"), float(np.finfo(np.float32).max), 1e30, 1e9, 1e4, 10 ** rng.uniform(28, 37)))
    behind: list[float] = []
    if rng.random() < 0.6 and fill > -1e38:  # what is left of the mask is an ordinary number
        count = rng.choice((1, 2, 6, math.ceil(math.log(-fill) / math.log(5e5))))
        behind = [float((rng.uniform(0.3, 4) / -fill) ** (1 / count))] * count
    loud = abs(fill) * 10 ** rng.uniform(-2, 2) if rng.random() < 0.4 and fill > -1e37 else 1.0
    return {
        "op": "attention",
        "seed": rng.randrange(1 << 30),
        "fill": "-inf" if fill == -float("inf") else fill,
        "behind": behind,
        "loud": min(loud, 1e36),
        "residual": rng.random() < 0.5,
    }


def _near(rng: random.Random) -> Layer:
    """Two of one function whose constants are nearly the same, amplified."""
    if rng.random() < 0.15:  # ONNX's default slope is the float32 nearest 0.01
        return {"op": "leaked", "times": 10.0 ** rng.uniform(7, 9)}
    off = rng.choice((1, -1)) * rng.choice((2.0**-52, 3 * 2.0**-52, 1e-14, 1e-13, 4e-13, 9e-13, 1.1e-12, 1e-9, 1e-6))
    kind, other = rng.choice(("gelu", "gelu", "gelu_tanh", "silu")), rng.choice((-off, -off, 0.0))
    return {"op": "apart", "kind": kind, "off": off, "other": other, "times": rng.uniform(0.1, 3) / abs(off)}


def _cancelled(rng: random.Random) -> Layer:
    """Terms that a sum in float64 loses."""
    if rng.random() < 0.5:
        return {"op": "cancel", "big": 2.0 ** rng.choice((20, 50, 53, 60, 100))}
    big = 2.0 ** rng.choice((30, 52, 54, 60))
    return {"op": "shift", "terms": rng.choice(([big, 1.0, -big], [big, -big, 0.5], [1e300, -1e300]))}


def _drifted(rng: random.Random) -> Layer:
    """Factors whose product is nearly 1, or leaves float64 on its way."""
    ulps = rng.choice((1, -1, 2, 5))
    if rng.random() < 0.5:
        return {"op": "drift", "factors": [1 + ulps * 2.0**-52] * rng.choice((1, 3)), "times": 2.0**50 / abs(ulps)}
    far = rng.choice((1e30, 1e150, 1e-150, 1e-30))
    return {"op": "chain", "factors": rng.choice(([far, 1 / far], [far, far, 1 / far, 1 / far]))}


def check(recipe: Recipe, *, device: str = "cpu", folder: Path) -> Report:  # noqa: ARG001
    """All findings of a recipe."""
    return reported(lambda report: _Case(recipe, report, folder).run())


class _Case(Asking):
    def __init__(self, recipe: Recipe, report: Report, folder: Path) -> None:
        self.recipe, self.report, self.folder = recipe, report, folder

    def run(self) -> None:
        """Both false claims, by the recipe's route."""
        box = self._box()
        points = self._points(*box)
        with np.errstate(all="ignore"):
            exact = Exact(program_of({**self.recipe, "threshold": 0.0}).onnx().SerializeToString())
            values = [exact(x)[0] for x in points]
        if not all(v.is_finite() and float(v.rad()) < 1e-12 * (1 + abs(float(v.mid()))) for v in values):
            self.note("y is not known exactly")
            raise Stop
        ys = [float(v.mid()) for v in values]
        delta = 1e-6 * (1 + max(map(abs, ys))) + 1e-3 * (max(ys) - min(ys)) + self._rounding(points, ys)
        if not math.isfinite(delta):
            self.note("rounding decides")
            raise Stop
        self._asked(min(ys) + delta, 0, box, f"y > {min(ys) + delta!r} is said, and y = {min(ys)!r} occurs")
        self._asked(max(ys) - delta, 1, box, f"y < {max(ys) - delta!r} is said, and y = {max(ys)!r} occurs")

    def _box(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        centre, eps = centre_of(self.recipe), float(np.float32(self.recipe["eps"]))
        return tuple((centre + s * eps).astype(np.float32).astype(np.float64) for s in (-1, 1))  # type: ignore[return-value]

    def _points(self, lower: NDArray[np.float64], upper: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        rng = np.random.default_rng(self.recipe["seed"])
        found = [lower, upper]
        found += [np.where(rng.random(lower.shape) < 0.5, lower, upper) for _ in range(24)]
        return found + [np.clip(lower + rng.random(lower.shape) * (upper - lower), lower, upper) for _ in range(4)]

    def _rounding(self, points: list[NDArray[np.float64]], ys: list[float]) -> float:
        """What `certify` leaves to rounding; the cascade has a guard, and a certificate leaves nothing."""
        if self.recipe["certificate"] or self.recipe["route"] == "cascade":
            return 0.0
        module = program_of({**self.recipe, "threshold": 0.0}).module().double()
        with torch.no_grad():
            rough = [float(module(torch.from_numpy(x))[0, 0]) for x in points]
        return 1000 * max(abs(a - b) for a, b in zip(rough, ys, strict=True))

    def _asked(self, threshold: float, label: int, box: tuple[Any, Any], text: str) -> None:
        """Whether the library says that the output `label` is the greater one everywhere, which it is not."""
        with np.errstate(all="ignore"):
            program = program_of({**self.recipe, "threshold": threshold})
        if self.recipe["dtype"] == "float32" and label == 0:  # the threshold was rounded, by less than delta
            text += " (the threshold is rounded)"
        route, proof, method = self.recipe["route"], self.recipe["certificate"], self.recipe["method"]
        where = f"{route}{' certificate' if proof else ''}"
        if route == "cascade":
            said = self._cascade(program.onnx().SerializeToString(), box, label, where)
        else:
            model: Any = program.module()
            if route == "file":
                model = self.folder / "model.onnx"
                model.write_bytes(program.onnx().SerializeToString())
            found = self.ask(
                lambda: certify(model, Box(box[0], box[1]), label, method, options=QUICK, certificate=proof),
                f"certify {where}",
            )
            said = found is not None and found.verdicts[0] is Verdict.VERIFIED
            if found is not None:
                self.note(f"{found.verdicts[0]} {where}")
        if said:
            self.find("refuted exactly", where, text)

    def _cascade(self, model: bytes, box: tuple[Any, Any], label: int, where: str) -> bool:
        path, spec = self.folder / "model.onnx", self.folder / "spec.vnnlib"
        path.write_bytes(model)
        other = 1 - label
        text = f"(<= (+ Y_{label} (* -1.0 Y_{other})) 0.0)"
        spec.write_text(
            property_text(box[0].reshape(-1), box[1].reshape(-1), 3 if self.recipe.get("third") else 2, [text])
        )
        found: Verified | None = self.ask(
            lambda: verified(path, spec, self.recipe["method"], certificate=self.recipe["certificate"], attack=False),
            f"verify {where}",
        )
        if found is not None:
            self.note(f"{found.status} {where}")
        return found is not None and found.status == "unsat"
