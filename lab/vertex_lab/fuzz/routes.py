"""The kind `routes`: one question asked in several ways must not have contrary answers, and where the ways differ in
nothing that bounds see (a set's class, a batch, the order of classes) the bounds are the same.
"""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vertex_lab.fuzz.asking import Asking, Report, Stop, reported
from vertex_lab.fuzz.files import command, property_text, verified
from vertex_lab.fuzz.programs import centre_of, program_of
from vertex_lab.fuzz.recipe import Recipe
from vertex_lab.fuzz.styles import ordinary
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certification import Certification
from vertex_softmax.runs.certify import bound, certify, load
from vertex_softmax.sets import Box, InputSet, LinfBall, TokenBall

ROUTES = (
    "graph",
    "file",
    "box",
    "tokens",
    "batch",
    "split",
    "classes",
    "cascade",
    "evaluate",
    "command",
    "smaller",
    "bound",
)
SIMPLE: dict[str, Any] = {"tokens": 1, "d": 2, "classes": 2, "eps": 0.1, "method": "ibp"}
OPTIONS = Options(ascent=Ascent(steps=2))


def draw(seed: int) -> Recipe:
    """The recipe of a seed."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    chosen = rng.sample([name for name in ROUTES if name != "command"], 4)
    return {
        "kind": "routes",
        "seed": seed,
        "tokens": rng.choice((1, 2, 3)),
        "d": 2,
        "classes": rng.choice((2, 3)),
        "blocks": [ordinary(rng) for _ in range(rng.choice((1, 2, 3)))],
        "eps": rng.choice((0.01, 0.1, 0.3)),
        "method": rng.choice(("ibp", "crown", "hybrid", "vertex")),
        "routes": chosen + (["command"] if rng.random() < 0.05 else []),
    }


def check(recipe: Recipe, *, device: str = "cpu", folder: Path) -> Report:  # noqa: ARG001
    """All findings of a recipe."""
    return reported(lambda report: _Case(recipe, report, folder).run())


class _Case(Asking):
    def __init__(self, recipe: Recipe, report: Report, folder: Path) -> None:
        self.recipe, self.report, self.folder = recipe, report, folder
        self.program = program_of(recipe)
        self.module = self.program.module().double()
        self.path = folder / "model.onnx"
        self.path.write_bytes(self.program.onnx().SerializeToString())
        self.x = torch.from_numpy(centre_of(recipe))
        self.ball = LinfBall(self.x, float(np.float32(recipe["eps"])))

    def run(self) -> None:
        """One way, then the others."""
        with torch.no_grad():
            out = self.module(self.x)
        if not bool(out.isfinite().all()):
            raise Stop
        self.label = int(out[0].argmax())
        self.first = self.must(lambda: self._certify(self.module, self.ball), "certify")
        for name in self.recipe["routes"]:
            getattr(self, f"_{name}")()

    def _certify(self, model: Any, some: InputSet, label: int | None = None) -> Certification:
        labels = [self.label if label is None else label] * len(some)
        return certify(model, some, labels, self.recipe["method"], options=OPTIONS)

    def _compare(self, found: Certification | None, where: str, at: int = 0, close: float = 1e-7) -> None:
        if found is None:
            return
        a, b = found.lower[at], self.first.lower[0]
        both = a.isfinite() & b.isfinite()
        if bool(((a - b).abs()[both] > close * (1 + a.abs()[both])).any()):
            self.find("other bounds", where, f"{a.tolist()} and {b.tolist()}")
        self._contrary(str(found.verdicts[at]), where)

    def _contrary(self, verdict: str, where: str) -> None:
        self.note(f"{verdict} {where}")
        if {verdict, str(self.first.verdicts[0])} == {"verified", "falsified"}:
            self.find("contrary answers", where, f"{verdict}, and {self.first.verdicts[0]} by certify")

    def _graph(self) -> None:
        self._compare(self.ask(lambda: self._certify(load(self.module, self.ball), self.ball), "graph"), "graph")

    def _file(self) -> None:
        """The constants are the same float32 numbers."""
        self._compare(self.ask(lambda: self._certify(self.path, self.ball), "file"), "file", close=1e-5)

    def _box(self) -> None:
        box = Box(self.ball.lower, self.ball.upper)
        self._compare(self.ask(lambda: self._certify(self.module, box), "box"), "box")

    def _tokens(self) -> None:
        ball = TokenBall(self.x, float(np.float32(self.recipe["eps"])))
        self._compare(self.ask(lambda: self._certify(self.module, ball), "tokens"), "tokens")

    def _batch(self) -> None:
        """Beside other inputs."""
        others = LinfBall(torch.cat([self.x + 1, self.x, self.x - 3]), float(np.float32(self.recipe["eps"])))
        self._compare(self.ask(lambda: self._certify(self.module, others), "batch"), "batch", 1)

    def _split(self) -> None:
        """Both halves of the set are verified where the whole is, or nothing is said."""
        middle = self.ball.lower.clone()
        middle[0, 0, 0] = self.x[0, 0, 0]
        top = self.ball.upper.clone()
        top[0, 0, 0] = self.x[0, 0, 0]
        for half in (Box(self.ball.lower, top), Box(middle, self.ball.upper)):
            found = self.ask(partial(self._certify, self.module, half), "split")
            if found is not None and found.verdicts[0] is Verdict.FALSIFIED:
                self._contrary("falsified", "split")

    def _classes(self) -> None:
        """Outputs in another order."""
        order = list(range(self.recipe["classes"]))[::-1]
        other = program_of(self.recipe)
        floats = [name for name, value in other.constants.items() if value.dtype.kind == "f"]
        for name in floats[-2:]:
            other.constants[name] = np.ascontiguousarray(other.constants[name][..., order])
        found = self.ask(lambda: self._certify(other.module().double(), self.ball, order.index(self.label)), "classes")
        if found is not None:
            turned = found.lower[0][torch.tensor(order)]
            both = turned.isfinite() & self.first.lower[0].isfinite()
            if bool(((turned - self.first.lower[0]).abs()[both] > 1e-7 * (1 + turned.abs()[both])).any()):
                self.find("other bounds", "classes", f"{turned.tolist()} and {self.first.lower[0].tolist()}")

    def _cascade(self) -> None:
        spec = self.folder / "spec.vnnlib"
        others = [k for k in range(self.recipe["classes"]) if k != self.label]
        text = "(or " + " ".join(f"(and (<= (+ Y_{self.label} (* -1.0 Y_{k})) 0.0))" for k in others) + ")"
        low, high = self.ball.lower.reshape(-1).tolist(), self.ball.upper.reshape(-1).tolist()
        spec.write_text(property_text(low, high, self.recipe["classes"], [text]))
        found = self.ask(lambda: verified(self.path, spec, "joint"), "cascade")
        if found is not None and found.status in ("sat", "unsat"):
            self._contrary({"sat": "falsified", "unsat": "verified"}[found.status], "cascade")

    def _inputs(self) -> Any:
        from vertex_softmax.runs.subject import Inputs

        return Inputs("data", self.x, torch.tensor([self.label]), None, (0,))

    def _evaluate(self) -> None:
        from vertex_softmax.runs.evaluate import Plan, contradictions, evaluate
        from vertex_softmax.runs.subject import subject

        plan, inputs = Plan(attack_steps=3, attack_restarts=1, slack_inputs=0, search=OPTIONS), self._inputs()
        eps = float(np.float32(self.recipe["eps"]))
        run = self.ask(
            lambda: evaluate(
                subject(self.module, inputs), inputs, [self.recipe["method"]], [eps], self.folder / "e", plan
            ),
            "evaluate",
        )
        if run is None:
            return
        for text in contradictions(run):
            self.find("contradiction", "evaluate", text)
        self._contrary(run.answers[0].verdict, "evaluate")

    def _command(self) -> None:
        """`vertex certify`, as a command, of the file and a file of inputs."""
        np.savez(self.folder / "data.npz", inputs=self.x.numpy(), labels=np.array([self.label]))
        eps = repr(float(np.float32(self.recipe["eps"])))
        given = ("certify", self.path, "--data", self.folder / "data.npz", "--eps", eps)
        more = ("--methods", self.recipe["method"], "--out", self.folder / "c", "--threads", 1, "--json")
        done = self.ask(lambda: command(*given, *more), "command")
        if done is None or done[0] != 0:
            self.note(f"the command refused: {done[2].strip()[-120:] if done else ''}")
            return
        run = json.loads((self.folder / "c" / "run.json").read_text())
        self._contrary(run["answers"][0]["verdict"], "command")

    def _smaller(self) -> None:
        """What is verified of a set is not falsified of a part of it."""
        part = LinfBall(self.x, float(np.float32(self.recipe["eps"])) / 2)
        found = self.ask(lambda: self._certify(self.module, part), "smaller")
        if found is not None and self.first.verdicts[0] is Verdict.VERIFIED:
            self._contrary(str(found.verdicts[0]), "smaller")

    def _bound(self) -> None:
        """An interval of every output holds what the module gives at the centre."""
        found = self.ask(lambda: bound(self.module, self.ball, self.recipe["method"], options=OPTIONS), "bound")
        if found is None:
            return
        with torch.no_grad():
            out = self.module(self.x)
        slack = 1e-9 * (1 + out.abs())
        if bool(((found.lower > out + slack) | (found.upper < out - slack)).any()):
            self.find(
                "outside its interval", "bound", f"{out.tolist()}, {found.lower.tolist()}, {found.upper.tolist()}"
            )
