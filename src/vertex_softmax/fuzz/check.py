"""One case: a recipe through the whole path, and everything that must hold of it.

Invariant: a finding is something that the library promises not to do. What it may do (refuse a model by a VertexError,
have no bound, not decide) is counted in the notes.

Tolerances, of 1 + the outputs' size, plus a part of `noise` (points.py): values and bounds in float64 1e-9 and 1e-6 of
the noise, that is 500 times what rounding alone is expected to cost; float32 1e-4 and 30 times; ONNX, whose constants
are float32, 1e-5 and 30 times; proofs 1e-13 and 1e-8, which is for the sampled values alone: a proof has no tolerance.
"""

from __future__ import annotations

import copy
import dataclasses
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from vertex_softmax.bounds.memory import Memory
from vertex_softmax.bounds.optimize import Ascent
from vertex_softmax.errors import InternalError, VertexError
from vertex_softmax.fuzz.build import UnfitError, module_of, set_of
from vertex_softmax.fuzz.points import Seen, linear_corners, samples, seen
from vertex_softmax.fuzz.recipe import Recipe
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bounding import METHODS, Options
from vertex_softmax.methods.certify import bound, certify, load
from vertex_softmax.result import Certification, Verdict
from vertex_softmax.search.attack import pgd
from vertex_softmax.search.branch_and_bound import Search

T = TypeVar("T")
ORDER = (
    ("hybrid", "crown"),
    ("hybrid", "vertex"),
    ("alpha-crown", "crown"),
    ("joint", "hybrid"),
    ("joint", "alpha-crown"),
    ("bab", "joint"),
)
POINTS = 45
FLOAT64, FLOAT32, ONNX, PROOF = (1e-9, 1e-6), (1e-4, 30.0), (1e-5, 30.0), (1e-13, 1e-8)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A promise that was broken: what, by what, and by how much."""

    kind: str
    where: str
    text: str

    @property
    def signature(self) -> str:
        """What two findings of one cause share."""
        return f"{self.kind}:{self.where}"


@dataclasses.dataclass
class Report:
    """What came of a case."""

    findings: list[Finding] = dataclasses.field(default_factory=list)
    notes: Counter[str] = dataclasses.field(default_factory=Counter)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        findings = [dataclasses.asdict(f) for f in self.findings]
        return {"findings": findings, "notes": dict(self.notes), "seconds": self.seconds}


class _Stop(Exception):  # noqa: N818 - not an error
    """Nothing more can be asked of this case."""


def check(recipe: Recipe, *, device: str = "cpu", folder: Path | None = None) -> Report:
    """All findings of a recipe; `folder` is where an ONNX file may be written (none: no ONNX)."""
    report = Report()
    try:
        _Case(recipe, report, device, folder).run()
    except UnfitError:
        report.notes["unfit"] += 1
    except _Stop:
        pass
    return report


class _Case:
    def __init__(self, recipe: Recipe, report: Report, device: str, folder: Path | None) -> None:
        self.recipe, self.report, self.device, self.folder = recipe, report, device, folder
        self.single = module_of(recipe)
        self.double = copy.deepcopy(self.single).double()
        self.set = set_of(recipe)
        self.options = Options(
            ascent=Ascent(steps=recipe["steps"]),
            search=Search(
                seconds=None, domains=4, tried=2, root=Ascent(steps=2), ascent=Ascent(steps=2, step_size=0.01)
            ),
        )
        self.found: dict[str, Certification] = {}

    def run(self) -> None:
        """Everything."""
        torch.manual_seed(0)
        with torch.no_grad():
            out = self.double(self.set.centre)
        if out.dim() != 2 or out.shape[1] < 2 or not bool(out.isfinite().all()):
            self.note("centre not finite")
            raise _Stop
        self.labels = out.argmax(1)
        self.graph = self.must(lambda: load(self.double, self.set), "import torch")
        self.points = self._points()
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

    # What is asked ---------------------------------------------------------------------------------------------------

    def find(self, kind: str, where: str, text: str) -> None:
        """Note a broken promise."""
        self.report.findings.append(Finding(kind, where, text))

    def note(self, name: str) -> None:
        """Count what is allowed."""
        self.report.notes[name] += 1

    def ask(self, call: Callable[[], T], what: str) -> T | None:
        """The call's answer; None where the library refused (a note) or broke (a finding)."""
        begin = time.perf_counter()
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                answer = call()
        except InternalError as error:
            self.find("internal", f"{what}", str(error)[:500])
            return None
        except VertexError as error:
            self.note(f"refused {what.split(maxsplit=1)[0]}: {type(error).__name__}: {str(error).splitlines()[0][:90]}")
            return None
        except Exception as error:  # noqa: BLE001 - whatever a call raises is what is looked for
            self.find("error", f"{what}:{type(error).__name__}:{_place(error)}", str(error)[:500])
            return None
        finally:
            self.report.seconds[what] = self.report.seconds.get(what, 0.0) + time.perf_counter() - begin
        for warning in heard:
            self.find("warning", f"{what}:{warning.category.__name__}", f"{warning.message}"[:300])
        return answer

    def must(self, call: Callable[[], T], what: str) -> T:
        """The call's answer, or the end of the case."""
        answer = self.ask(call, what)
        if answer is None:
            raise _Stop
        return answer

    def certified(self, graph: Graph, method: str, options: Options, **more: Any) -> Certification | None:
        """certify on the whole set; by `bab`, which takes its time and inputs one by one, on the first input."""
        some, labels = (self.set.at(0), self.labels[:1]) if method == "bab" else (self.set, self.labels)
        return self.ask(lambda: certify(graph, some, labels, method, options=options, **more), f"certify {method}")

    def judge(self, found: Certification, at: Seen, allowed: tuple[float, float], where: str) -> None:
        """No bound above a sampled margin, and no `verified` or `falsified` that is not true."""
        count = len(found.verdicts)
        slack = at.allowed(*allowed)[:count]
        lower, least = found.lower.double().cpu(), at.least(self.labels)[:count]
        over = lower - least - slack[:, None]
        over = torch.where(lower.isfinite() & (least < torch.inf), over, -torch.inf)
        if bool((over > 0).any()):
            b, k = (int(i) for i in (over == over.max()).nonzero()[0])
            self.find(
                "unsound",
                where,
                f"input {b}, class {k}: bound {float(lower[b, k])!r} > sampled margin {float(least[b, k])!r}, "
                f"allowed {float(slack[b]):.3g}",
            )
        for b, verdict in enumerate(found.verdicts):
            self.note(f"{verdict.value} {where}")
            worst = float(least[b].min())
            bad = lower[b][torch.arange(lower.shape[1]) != self.labels[b]]
            if verdict is Verdict.VERIFIED and worst < -float(slack[b]):
                self.find("verified but fooled", where, f"input {b} is verified, and a point has margin {worst!r}")
            if verdict is Verdict.VERIFIED and not bool((bad > 0).all() and bad.isfinite().all()):
                self.find("verified without a bound", where, f"input {b}: {bad.tolist()}")
            if verdict is Verdict.FALSIFIED and float(found.clean[b].min()) >= 0:
                self.find("falsified without a point", where, f"input {b}")
            if bool(bad.isnan().any()):
                self.note(f"nan bound {where}")

    def equal(self, a: Tensor, b: Tensor, kind: str, where: str, relative: float = 1e-7) -> None:
        """Two bounds (batch, …) that have to be the same to rounding; NaN and −inf are the same as each other."""
        a, b = a.double().cpu(), b.double().cpu()
        same = (a == b) | (~a.isfinite() & ~b.isfinite())
        slack = self.seen.allowed(relative, 1e-5)[: len(a)].reshape(-1, *[1] * (a.dim() - 1))
        far = (a - b).abs() - slack - relative * (a.abs() + b.abs())
        far = torch.where(same, -torch.inf, far.nan_to_num(nan=torch.inf))
        if bool((far > 0).any()):
            i = tuple(int(k) for k in (far == far.max()).nonzero()[0])
            self.find(kind, where, f"at {i}: {float(a[i])!r} and {float(b[i])!r}")

    # The parts -------------------------------------------------------------------------------------------------------

    def _points(self) -> Tensor:
        found = [samples(self.set, POINTS, self.recipe["seed"])]
        attack = self.ask(lambda: pgd(self.double, self.set, self.labels, steps=6, restarts=3), "attack")
        if attack is not None:
            inside = (attack.inputs >= self.set.lower[:, None]) & (attack.inputs <= self.set.upper[:, None])
            if not bool(inside.all()):
                self.find("outside", "attack", "an input of the attack is not in the set")
            found.append(attack.inputs.transpose(0, 1))
        classes = int(self.labels.max()) + 1
        with torch.no_grad():
            classes = self.double(self.set.centre).shape[1]
        eye = torch.eye(classes, dtype=torch.float64)
        objectives = (eye[self.labels][:, None] - eye).reshape(len(self.set), classes, *self.graph.output.shape)
        corners = self.ask(lambda: linear_corners(self.graph, self.set, objectives), "corners")
        if corners is not None:
            found.append(corners)
        return torch.cat(found)

    def _values(self, graph: Graph) -> Tensor:
        """The graph's outputs at the points, (P, batch, classes)."""
        flat = self.points.reshape(-1, *graph.input.shape)
        with torch.no_grad():
            return graph.evaluate(flat).reshape(*self.points.shape[:2], -1)

    def _agree(self, values: Tensor, allowed: tuple[float, float], where: str) -> None:
        slack = self.seen.allowed(*allowed)
        there = self.seen.outputs
        far = (values - there).abs().amax(2) - slack
        far = torch.where((values - there).isfinite().all(2), far, -torch.inf)
        odd = values.isfinite().all(2) != there.isfinite().all(2)
        if bool((far > 0).any()) or bool(odd.any()):
            self.find("values differ", where, f"by {float((values - there).abs().max()):.3g} at a point of the set")

    def _import_agrees(self) -> None:
        values = self.ask(lambda: self._values(self.graph), "evaluate")
        if values is not None:
            self._agree(values, FLOAT64, "torch")

    def _at_a_point(self, found: Certification) -> None:
        """A set of one point has the margins of that point as bounds."""
        if bool((self.set.lower != self.set.upper).any()):
            return
        a, b = found.lower, found.clean
        known = a.isfinite() & b.isfinite()
        self.equal(torch.where(known, a, 0.0), torch.where(known, b, 0.0), "not tight at a point", found.method)
        if not bool((a.isfinite() | (a == torch.inf)).all()):
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
                if bool((~a.isfinite() & b.isfinite()).any()):
                    self.note(f"{more} has no bound where {less} has")

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
            if (a is Verdict.FALSIFIED) != (b is Verdict.FALSIFIED):
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
        values = self.ask(lambda: self._values(graph), "evaluate onnx")
        if values is None:
            return
        self._agree(values, ONNX, f"onnx {self.recipe['onnx']['style']}")
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
                if method != "bab":
                    self.equal(found.lower, known.lower, "device", method, 1e-6)
            single = self.certified(self.graph, method, self.options, device=self.device, dtype=torch.float32)
            if single is not None:
                self.judge(single, self.seen, FLOAT32, f"{self.device} float32 {method}")


def _place(error: BaseException) -> str:
    """Where in Vertex an exception came from: file and function."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "vertex_softmax" in frame.filename and "fuzz" not in frame.filename:
            return f"{Path(frame.filename).name}:{frame.name}"
    return "?"
