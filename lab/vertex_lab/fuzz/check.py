"""One case: a recipe through the whole path, and everything that must hold of it (see case.py)."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vertex_lab.fuzz.asking import reported
from vertex_lab.fuzz.case import FLOAT32, FLOAT64, ONNX, PROOF, Case, Report, Stop
from vertex_lab.fuzz.points import Seen, seen
from vertex_lab.fuzz.recipe import Recipe
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Node
from vertex_softmax.methods.registry import METHODS, lower_bounds, method_named
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certification import Certification
from vertex_softmax.runs.certify import bound, certify, load
from vertex_softmax.sets.region import BoxRegion

ORDER = (
    ("hybrid", "ibp"),
    ("hybrid", "crown"),
    ("hybrid", "vertex"),
    ("alpha-crown", "crown"),
    ("joint", "hybrid"),
    ("joint", "alpha-crown"),
    ("bab", "joint"),
)


def check(recipe: Recipe, *, device: str = "cpu", folder: Path | None = None) -> Report:
    """All findings of a recipe; `folder` is where an ONNX file may be written (none: no ONNX)."""
    return reported(lambda report: _Case(recipe, report, device, folder).run())


class _Case(Case):
    """Every check."""

    def run(self) -> None:
        """Everything."""
        torch.manual_seed(0)
        with torch.no_grad():
            out = self.double(self.set.centre)
        if out.dim() != 2 or out.shape[1] < 2 or not bool(out.isfinite().all()):
            self.note("centre not finite")
            raise Stop
        self.labels = out.argmax(1)
        self.graph = self.must(lambda: load(self.double, self.set), "import torch")
        self.points = self.sampled()
        self.seen = seen(self.double, self.single, self.points)
        self._import_agrees()
        for method in METHODS:
            found = self.certified(self.graph, method, self.options)
            if found is not None:
                self.found[method] = found
                self.judge(found, self.seen, FLOAT64, method)
                self._at_a_point(found)
        self._order()
        self._outputs()
        for name in self.recipe["extras"]:
            begin = time.perf_counter()
            getattr(self, f"_{name}")()
            self.report.seconds[name] = time.perf_counter() - begin
        if self.device != "cpu":
            self._device()

    def _import_agrees(self) -> None:
        values = self.ask(lambda: self.values(self.graph), "evaluate")
        if values is not None:
            self.agree(values, FLOAT64, "torch")

    def _at_a_point(self, found: Certification) -> None:
        """A set of one point has the margins of that point as bounds."""
        if bool((self.set.lower != self.set.upper).any()):
            return
        a, b = found.lower, found.clean
        known = a.isfinite() & b.isfinite()
        close = 1e-4 if found.method == "ibp" else 1e-7  # a norm of what is all but constant enlarges outward rounding
        a, b = torch.where(known, a, 0.0), torch.where(known, b, 0.0)
        self.equal(a, b, "not tight at a point", found.method, close)
        if not bool((found.lower.isfinite() | (found.lower == torch.inf)).all()):
            self.note(f"no bound at a point {found.method}")

    def _order(self) -> None:
        slack = self.seen.allowed(*FLOAT64)[:, None]
        for more, less in ORDER:
            if more in self.found and less in self.found:
                a, b = self.found[more].lower, self.found[less].lower
                if more == "bab" and len(self.set) > 1 and bool((a < b[:1]).any()):  # which had one input alone
                    alone = self.certified(self.graph, less, dataclasses.replace(self.options, batch=1))
                    b = b if alone is None else alone.lower
                b, room = b[: len(a)], slack[: len(a)]
                under = torch.where(a.isfinite() & b.isfinite(), b - a - room - 1e-9 * b.abs(), -torch.inf)
                if bool((under > 0).any()):
                    self.find("order", f"{more} < {less}", f"by {float(under.max()):.3g}")
                if less != "ibp" and bool((~a.isfinite() & b.isfinite()).any()):  # lines overflow before intervals do
                    self.find("no bound", f"{more}, not {less}", "a method has no bound where a part of it has one")

    def _outputs(self) -> None:
        """Intervals of every output, by one method."""
        method = tuple(METHODS)[self.recipe["seed"] % len(METHODS)]
        some = self.set.at(0) if method == "bab" else self.set
        found = self.ask(lambda: bound(self.graph, some, method, options=self.options), f"bound {method}")
        if found is None:
            return
        slack = self.seen.allowed(*FLOAT64)[None, : len(some), None]
        lower, upper = (x.reshape(len(some), -1) for x in found)
        outputs = self.seen.outputs[:, : len(some)]
        over = torch.maximum(lower - outputs, outputs - upper) - slack
        if bool((over.nan_to_num(nan=-torch.inf) > 0).any()):
            self.find("unsound", f"bound {method}", f"an output is outside by {float(over.max()):.3g}")
        if bool((lower > upper + slack[0]).any()):
            self.find("crossed", f"bound {method}", "a lower end is above its upper end")

    def _boxes(self) -> None:
        """Every value on the way lies in its box, by one method."""
        method = self._picked(("ibp", "crown", "vertex", "hybrid", "joint"), 8)
        shape = (len(self.set), *self.graph.input.shape)
        objectives = torch.eye(math.prod(self.graph.output.shape), dtype=torch.float64)
        wanted = objectives.reshape(1, -1, *self.graph.output.shape).expand(len(self.set), -1, *self.graph.output.shape)

        def made() -> Boxes:
            region = BoxRegion(self.set.lower.reshape(shape), self.set.upper.reshape(shape))
            objective = Objective.dense(self.graph.output, wanted)
            with torch.no_grad():
                question = Question.over(self.graph, region)
                return lower_bounds(question, objective, method_named(method), self.options).boxes

        boxes = self.ask(made, f"boxes {method}")
        if boxes is None:
            return
        x = self.points.reshape(-1, *shape)
        for node, noise, value in self._nodes(x):
            if node not in boxes:
                continue
            lower, upper = boxes[node]
            slack = FLOAT64[0] * (1 + value.abs()) + FLOAT64[1] * noise.amax(0)
            over = (torch.maximum(lower - value, value - upper) - slack).nan_to_num(nan=-torch.inf)
            if bool((over > 0).any()):
                kind = type(node.op).__name__
                self.find("outside its box", f"{method} {kind}", f"{node.name} by {float(over.max()):.3g}")

    def _nodes(self, x: Tensor) -> Iterator[tuple[Node, Tensor, Tensor]]:
        """Every node with its noise and values at x (points, batch, *shape): (points, batch, *node's shape)."""
        rough = self.graph.to(torch.float32, torch.device("cpu"))
        with torch.no_grad():
            double, single = self.graph.values(x), rough.values(x.float())
        for (node, value), other in zip(double.items(), single.values(), strict=True):
            noise = (other.double() - value).abs().nan_to_num(nan=torch.inf)
            yield node, noise, value

    # The extras ------------------------------------------------------------------------------------------------------

    def _picked(self, methods: tuple[str, ...], shift: int) -> str:
        return methods[(int(self.recipe["seed"]) // 7 + shift) % len(methods)]

    def _single(self) -> None:
        """An input alone has the bounds that it has beside copies of itself, and a batch has no order.

        Beside other inputs it may have better ones: a box that one input wants tighter is tightened for all.
        """
        method = self._picked(("ibp", "crown", "vertex", "hybrid", "alpha-crown", "joint"), 0)
        if method not in self.found:
            return
        count = len(self.set)

        def certified(places: list[int]) -> Certification | None:
            labels = self.labels[places]
            return self.ask(
                lambda: certify(self.graph, self.set.at(places), labels, method, options=self.options),
                f"single {method}",
            )

        alone, copies = certified([0]), certified([0, 0, 0])
        if alone is not None and copies is not None:
            whole = self.found[method].lower.clone()
            for i in range(3):
                one, other = whole.clone(), whole.clone()
                one[0], other[0] = alone.lower[0], copies.lower[i]
                self.equal(one, other, "copies", method)
        turned = certified(list(range(count))[::-1])
        if turned is not None and count > 1:
            self.equal(turned.lower.flip(0), self.found[method].lower, "batch", method)

    def _float32(self) -> None:
        for method in ("ibp", "crown", self._picked(("vertex", "hybrid", "joint", "bab"), 1)):
            found = self.certified(self.graph, method, self.options, dtype=torch.float32)
            if found is not None:
                self.judge(found, self.seen, FLOAT32, f"float32 {method}")

    def _chunk(self) -> None:
        method = self._picked(("crown", "vertex", "hybrid", "alpha-crown", "joint"), 2)
        options = dataclasses.replace(self.options, memory=Memory(bytes=1))
        found = self.certified(self.graph, method, options)
        if found is not None and method in self.found:
            self.equal(found.lower, self.found[method].lower, "chunk", method)

    def _repeat(self) -> None:
        for method in ("hybrid", self._picked(("alpha-crown", "joint", "bab"), 3)):
            found = self.certified(self.graph, method, self.options)
            if found is not None and method in self.found:
                a, b = found.lower, self.found[method].lower
                if not bool(((a == b) | (a.isnan() & b.isnan())).all()):
                    self.find("repeat", method, "a second run gives other bounds")

    def _goal(self) -> None:
        method = self._picked(("alpha-crown", "hybrid", "joint", "bab"), 4)
        found = self.certified(self.graph, method, dataclasses.replace(self.options, goal=0.0))
        if found is None or method not in self.found:
            return
        self.judge(found, self.seen, FLOAT64, f"goal {method}")
        slack = self.seen.allowed(*FLOAT64)
        for i, (a, b) in enumerate(zip(self.found[method].verdicts, found.verdicts, strict=True)):
            if {a, b} == {Verdict.FALSIFIED, Verdict.VERIFIED}:
                self.find("goal", method, f"{a} without a goal, {b} with goal 0")
            sure = float(self.found[method].lower[i].min()) > float(slack[i])
            if a is Verdict.VERIFIED and b is not Verdict.VERIFIED and sure:
                self.find("goal", method, f"verified without a goal, {b} with goal 0")

    def _options(self) -> None:
        changed = dict(self.recipe["options"])
        if "box_ascent" in changed:
            changed["box_ascent"] = Ascent(steps=changed["box_ascent"])
        options = dataclasses.replace(self.options, **changed)
        for method in ("crown", self._picked(("hybrid", "joint", "joint", "bab"), 5)):
            found = self.certified(self.graph, method, options)
            if found is not None:
                self.judge(found, self.seen, FLOAT64, f"{sorted(changed)} {method}")

    def _onnx(self) -> None:
        if self.folder is None:
            return
        path = self._exported(self.folder)
        if path is None:
            return
        graph = self.ask(lambda: load(path, self.set), "import onnx")
        if graph is None:
            return
        values = self.ask(lambda: self.values(graph), "evaluate onnx")
        if values is None:
            return
        if self._as_exported(path):
            self.agree(values, ONNX, f"onnx {self.recipe['onnx']['style']}")
        else:
            self.note("the exporter changed the model")
        if values.shape != self.seen.outputs.shape:
            self.find("values differ", "onnx", f"in shape: {tuple(values.shape)}")
            return
        at = Seen(values, self.seen.noise)
        for method in ("ibp", "crown", self._picked(tuple(METHODS), 7)):
            found = self.certified(graph, method, self.options)
            if found is not None:
                self.judge(found, at, FLOAT64, f"onnx {method}")
                if method in self.found:
                    self._compare_onnx(found, self.found[method])

    def _as_exported(self, path: Path) -> bool:
        """Does onnxruntime give at the points what torch gives? The exporter may have dropped a small constant."""
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        name, flat = session.get_inputs()[0].name, self.points.flatten(0, 1).float()
        rows = [session.run(None, {name: x[None].numpy()})[0] for x in flat]
        values = torch.as_tensor(np.stack(rows)).double().reshape(self.seen.outputs.shape)
        far = (values - self.seen.outputs).abs().amax(2) > self.seen.allowed(*ONNX)
        odd = values.isfinite().all(2) != self.seen.outputs.isfinite().all(2)
        return not bool((far | odd).any())

    def _compare_onnx(self, a: Certification, b: Certification) -> None:
        """Not a promise: both are sound, and float32 constants may hide an op from the recogniser."""
        slack = self.seen.allowed(1e-2, 100.0)[:, None] + 0.05 * b.lower.abs()
        if bool(((a.lower - b.lower).abs() > slack).any()) or bool((a.lower.isfinite() != b.lower.isfinite()).any()):
            self.note(f"onnx bounds are others: {a.method}")

    def _exported(self, folder: Path) -> Path | None:
        """The module as an ONNX file, if the exporter can."""
        how, path = self.recipe["onnx"], folder / "case.onnx"
        example = self.set.centre[:1].float()
        begin = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if how["style"] == "dynamo":
                    program = torch.onnx.export(
                        self.single, (example,), dynamo=True, opset_version=how["opset"], verbose=False
                    )
                    if program is None:
                        return None
                    path.write_bytes(program.model_proto.SerializeToString())
                else:
                    torch.onnx.export(self.single, (example,), path, dynamo=False, opset_version=how["opset"])
        except Exception as error:  # noqa: BLE001 - torch's exporter, not ours
            self.note(f"no export {how['style']}: {type(error).__name__}")
            return None
        finally:
            self.report.seconds["export"] = time.perf_counter() - begin
        return path

    def _certificate(self) -> None:
        one = self.set.at(0)
        rigorous = self.recipe["seed"] % 2 == 0
        search = dataclasses.replace(self.options.search, seconds=2.0)
        options = dataclasses.replace(self.options, search=search)
        method = self._picked(("hybrid", "joint", "bab"), 6)
        found = self.ask(
            lambda: certify(
                self.double, one, self.labels[:1], method, options=options, certificate=True, rigorous=rigorous
            ),
            f"prove {method}",
        )
        if found is None:
            return
        least, slack = self.seen.least(self.labels)[0], self.seen.allowed(*PROOF)[0]
        if rigorous and bool((found.lower[0] > least + slack).any()):
            over = float((found.lower[0] - least).nan_to_num(nan=-torch.inf).max())
            self.find("unsound proof", method, f"a proved margin is above a sampled one by {over:.3g}")
        for verdict, certificate in zip(found.verdicts, found.certificates, strict=True):
            if (verdict is Verdict.VERIFIED) != (certificate is not None):
                self.find("certificate", method, f"{verdict} with certificate {certificate}")
            if certificate is not None:
                self.note("certificate")
                checked = certificate.check()
                if not checked.accepted:
                    self.find("certificate", method, f"not accepted: {checked.reason}")
                if checked.margin > float(least.min()) + float(slack):
                    self.find("unsound proof", method, f"margin {checked.margin!r}, sampled {float(least.min())!r}")

    def _device(self) -> None:
        """The same on another device, in both precisions."""
        for method, known in self.found.items():
            found = self.certified(self.graph, method, self.options, device=self.device)
            if found is not None:
                self.judge(found, self.seen, FLOAT64, f"{self.device} {method}")
                if method != "bab":  # an ascent makes much of a last digit; its bounds are sound wherever it ends
                    close = 1e-3 if method in ("alpha-crown", "joint") else 1e-6
                    self.equal(found.lower, known.lower, "device", method, close)
            single = self.certified(self.graph, method, self.options, device=self.device, dtype=torch.float32)
            if single is not None:
                self.judge(single, self.seen, FLOAT32, f"{self.device} float32 {method}")
