"""The kind `styles`: one network as a torch module, as exporters write it, and as the hand writes it, in functions,
other names, another order, other files: every file gets an answer that is true of its own bytes, or a refusal.

Truth is onnxruntime on the file's own bytes, unoptimised and not inlined by us, at corners and random points of the
box. Files whose ops are the same have the same bounds.
"""

from __future__ import annotations

import gzip
import random
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vertex_lab.fuzz.asking import Asking, Report, reported
from vertex_lab.fuzz.files import Runtime, Verified, property_text, verified
from vertex_lab.fuzz.onnx_styles import CHANGED, SAME, restyled, saved
from vertex_lab.fuzz.programs import centre_of, program_of
from vertex_lab.fuzz.recipe import Layer, Recipe
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certification import Certification
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import Box

EXPORTED = ("module", "dynamo", "dynamo raw", "legacy")
SIMPLE: dict[str, Any] = {"tokens": 1, "d": 2, "classes": 2, "eps": 0.1, "method": "ibp", "fill": None, "seed2": 0}
OPTIONS = Options(ascent=Ascent(steps=2))
Points = NDArray[np.float64]


def draw(seed: int) -> Recipe:
    """The recipe of a seed."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    several = [rng.choice(SAME[1:]), rng.choice(SAME[1:]), rng.choice(CHANGED), rng.choice(CHANGED)]
    exported = [rng.choice(EXPORTED)] if rng.random() < 0.4 else []
    return {
        "kind": "styles",
        "seed": seed,
        "tokens": rng.choice((1, 2, 3)),
        "d": 2,
        "classes": rng.choice((2, 3)),
        "blocks": [ordinary(rng) for _ in range(rng.choice((1, 2, 3)))],
        "eps": rng.choice((1e-3, 0.05, 0.3)),
        "styles": ["plain", *several, *exported],
        "seed2": rng.randrange(1 << 20),
        "method": rng.choice(("ibp", "crown", "hybrid", "joint")),
        "cascade": rng.random() < 0.4,
        "certificate": rng.random() < 0.3,
    }


def ordinary(rng: random.Random) -> Layer:
    """A block without odd constants."""
    fill = rng.choice((None, None, -1e9, "-inf"))
    return rng.choice(
        (
            {"op": "linear", "seed": rng.randrange(1 << 30)},
            {"op": "activation", "kind": rng.choice(("relu", "leaky", "tanh", "sigmoid", "gelu", "silu"))},
            {"op": "attention", "seed": rng.randrange(1 << 30), "fill": fill, "residual": True},
            {"op": "norm"},
            {"op": "difference", "kind": rng.choice(("relu", "tanh")), "first": rng.choice(("x", "y"))},
        )
    )


def check(recipe: Recipe, *, device: str = "cpu", folder: Path) -> Report:  # noqa: ARG001
    """All findings of a recipe."""
    return reported(lambda report: _Case(recipe, report, folder).run())


class _Case(Asking):
    def __init__(self, recipe: Recipe, report: Report, folder: Path) -> None:
        self.recipe, self.report, self.folder = recipe, report, folder
        self.program = program_of(recipe)
        centre, eps = centre_of(recipe), float(np.float32(recipe["eps"]))
        self.lower, self.upper = ((centre + s * eps).astype(np.float32).astype(np.float64) for s in (-1, 1))
        rng = np.random.default_rng(recipe["seed"])
        corners = [np.where(rng.random(centre.shape) < 0.5, self.lower, self.upper) for _ in range(20)]
        inner = [self.lower + rng.random(centre.shape) * (self.upper - self.lower) for _ in range(10)]
        points = [x.astype(np.float32).astype(np.float64).clip(self.lower, self.upper) for x in (*corners, *inner)]
        self.points: list[Points] = [centre, self.lower, self.upper, *points]
        self.known: dict[str, tuple[Certification, NDArray[Any]]] = {}

    def run(self) -> None:
        """Every style."""
        proto = self.program.onnx()
        for number, style in enumerate(dict.fromkeys(self.recipe["styles"])):
            self._style(proto, style, self.folder / str(number))

    def _style(self, proto: Any, style: str, folder: Path) -> None:
        model = self._made(proto, style, folder)
        if model is None:
            return
        values = self._values(model, style)
        if values is None:
            return
        label = int(values[0].argmax())
        for asked in {label, (label + 1) % len(values[0])}:
            self._certified(model, style, asked, values)
        if self.recipe["cascade"] and isinstance(model, Path):
            self._cascade(model, style, label, values)

    def _made(self, proto: Any, style: str, folder: Path) -> Any:
        if style == "module":
            return self.program.module()
        if style in EXPORTED:
            return self._exported(style, folder)
        return saved(restyled(proto, style, self.recipe["seed2"]), style, folder)

    def _exported(self, style: str, folder: Path) -> Path | None:
        folder.mkdir()
        path, example = folder / "model.onnx", torch.from_numpy(self.points[0]).float()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if style == "legacy":
                    torch.onnx.export(self.program.module(), (example,), path, dynamo=False, opset_version=17)
                else:
                    more: dict[str, Any] = {"optimize": style == "dynamo", "external_data": style != "dynamo"}
                    torch.onnx.export(self.program.module(), (example,), path, dynamo=True, verbose=False, **more)
        except Exception as error:  # noqa: BLE001 - torch's exporter, not ours
            self.note(f"no export {style}: {type(error).__name__}")
            return None
        return path

    def _values(self, model: Any, style: str) -> NDArray[Any] | None:
        """What onnxruntime (or the module) makes of the points."""
        if not isinstance(model, Path):
            with torch.no_grad():
                return np.stack([model(torch.from_numpy(x).float())[0].numpy() for x in self.points])
        try:
            runtime = Runtime(gzip.decompress(model.read_bytes()) if model.suffix == ".gz" else model)
            values = np.stack([runtime(x) for x in self.points])
        except Exception as error:  # noqa: BLE001 - onnxruntime refuses the file: then so may we, and nothing is known
            self.note(f"onnxruntime refuses {style}: {type(error).__name__}")
            return None
        return values if np.isfinite(values).all() else None

    def _certified(self, model: Any, style: str, label: int, values: NDArray[Any]) -> None:
        box = Box(self.lower, self.upper)
        found = self.ask(
            lambda: certify(
                model, box, label, self.recipe["method"], options=OPTIONS, certificate=self.recipe["certificate"]
            ),
            f"certify {style}",
        )
        if found is None:
            return
        self.note(f"{found.verdicts[0]} {style}")
        others = [k for k in range(values.shape[1]) if k != label]
        least = (values[:, [label]] - values)[:, others].min(0)
        slack = 1e-4 * (1 + float(np.abs(values).max()))
        if found.verdicts[0] is Verdict.VERIFIED and float(least.min()) < -slack:
            self.find(
                "verified but fooled", style, f"label {label}, and onnxruntime's margin is {float(least.min())!r}"
            )
        over = found.lower[0][others].numpy() - least
        if bool((over > slack).any()):
            self.find("unsound", style, f"a bound is {float(over.max())!r} above onnxruntime's margin")
        key = f"{label}"
        if style in SAME:
            self._same(key, found, values, style)

    def _same(self, key: str, found: Certification, values: NDArray[Any], style: str) -> None:
        if key not in self.known:
            self.known[key] = (found, values)
            return
        other, before = self.known[key]
        if not np.allclose(values, before, rtol=1e-4, atol=1e-4):
            self.find("harness", f"styles {style}", "a style that should be the same is not, by onnxruntime")
            return
        a, b = found.lower[0], other.lower[0]
        both = a.isfinite() & b.isfinite()
        if bool(((a - b).abs()[both] > 1e-6 * (1 + a.abs()[both])).any()):
            self.find("other bounds", style, f"{a.tolist()} and {b.tolist()}")

    def _cascade(self, model: Path, style: str, label: int, values: NDArray[Any]) -> None:
        """The label's competitor is below it by a share of the margin seen; or it is claimed to be, falsely."""
        other = (label + 1) % values.shape[1]
        gaps = values[:, label].astype(np.float64) - values[:, other].astype(np.float64)
        slack = 1e-4 * (1 + float(np.abs(values).max()))
        limit = float(gaps.min()) + random.Random(self.recipe["seed"]).choice((-1.0, 0.5)) * max(slack * 20, 0.1)  # noqa: S311
        text = f"(<= (+ Y_{label} (* -1.0 Y_{other})) {limit:.6f})"
        spec = model.parent / "spec.vnnlib"
        spec.write_text(property_text(self.lower.reshape(-1), self.upper.reshape(-1), values.shape[1], [text]))
        proof = self.recipe["certificate"]
        found: Verified | None = self.ask(lambda: verified(model, spec, "joint", certificate=proof), f"verify {style}")
        if found is None:
            return
        self.note(f"{found.status} {style}")
        bound = Fraction(f"{limit:.6f}")
        if found.status == "unsat" and float(gaps.min()) < float(bound) - slack:
            self.find("unsat but broken", style, f"by onnxruntime the gap is {float(gaps.min())!r}, limit {limit!r}")
        if found.status == "sat" and found.x is not None:
            runtime = Runtime(gzip.decompress(model.read_bytes()) if model.suffix == ".gz" else model)
            x = np.array(found.x)
            y = [Fraction(float(v)) for v in runtime(x)]
            inside = bool((x >= self.lower.reshape(-1)).all() and (x <= self.upper.reshape(-1)).all())
            if not inside or y[label] - y[other] > bound:
                self.find("sat without a point", style, f"inside {inside}, gap {float(y[label] - y[other])!r}")
