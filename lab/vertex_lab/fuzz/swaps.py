"""The kind `swaps`: files that change while they are read, folders that are used for another model, sweeps that are
killed and gone on with after an edit.

Two contents of one file, A and B, have different answers. An answer that names a content by its hash has to be true of
that content; one that names none has to be true of A or of B, whole. A run in a folder that knows another model gives
what a run in a new folder gives.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vertex_lab.fuzz.asking import Asking, Report, Stop, reported
from vertex_lab.fuzz.files import Runtime, property_text, verified
from vertex_lab.fuzz.programs import Program, centre_of, program_of
from vertex_lab.fuzz.recipe import Recipe
from vertex_lab.fuzz.styles import ordinary
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.methods.options import Options

SIMPLE: dict[str, Any] = {"tokens": 1, "d": 2, "classes": 2, "eps": 0.01, "inputs": 1, "after": 1, "keep_time": False}
CHANGES = ("edges", "constant", "ulp", "order", "slope", "eps", "outputs")
OPTIONS = Options(ascent=Ascent(steps=2))


def draw(seed: int) -> Recipe:
    """The recipe of a seed."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    scene = rng.choices(("folder", "radius", "reads", "sweep", "killed"), (5, 3, 6, 1, 1))[0]
    blocks = [ordinary(rng) for _ in range(rng.choice((1, 2)))]
    blocks.append({"op": "difference", "kind": rng.choice(("relu", "tanh")), "first": "x"})
    return {
        "kind": "swaps",
        "seed": seed,
        "scene": scene,
        "tokens": rng.choice((1, 2)),
        "d": 2,
        "classes": 2,
        "blocks": blocks,
        "change": rng.choice(CHANGES),
        "eps": rng.choice((0.01, 0.1)),
        "inputs": rng.choice((1, 3)),
        "after": rng.choice((1, 2, 3, 4, 6)),
        "certificate": rng.random() < 0.6,
        "keep_time": rng.random() < 0.5,
        "seconds": rng.uniform(0.5, 8.0),
    }


def check(recipe: Recipe, *, device: str = "cpu", folder: Path) -> Report:  # noqa: ARG001
    """All findings of a recipe."""
    return reported(lambda report: _Case(recipe, report, folder).run())


def changed(program: Program, how: str) -> Program:
    """Another program of the same size, by one change."""
    other = copy.deepcopy(program)
    subtractions = [step for step in other.steps if step.op == "Sub"]
    floats = [name for name, value in other.constants.items() if value.dtype.kind == "f" and value.size > 1]
    if how == "edges" and subtractions:
        subtractions[-1].inputs.reverse()
    elif how == "order":
        last = other.constants[floats[-2]]
        other.constants[floats[-2]] = np.ascontiguousarray(last[::-1])
    elif how == "ulp":
        value = other.constants[floats[-1]]
        other.constants[floats[-1]] = np.nextafter(value, np.inf)
    elif how == "eps" and any(value.size == 1 and value.dtype.kind == "f" for value in other.constants.values()):
        name = next(n for n, v in other.constants.items() if v.size == 1 and v.dtype.kind == "f")
        other.constants[name] = other.constants[name] * -1
    elif how == "slope" and any(step.op in ("Relu", "Tanh") for step in other.steps):
        step = next(step for step in other.steps if step.op in ("Relu", "Tanh"))
        step.op = "Tanh" if step.op == "Relu" else "Relu"
    elif how == "outputs":
        for name in floats[-2:]:
            other.constants[name] = np.ascontiguousarray(other.constants[name][..., ::-1])
    else:
        other.constants[floats[-2]] = other.constants[floats[-2]] * -1
    return other


class _Case(Asking):
    def __init__(self, recipe: Recipe, report: Report, folder: Path) -> None:
        self.recipe, self.report, self.folder = recipe, report, folder
        a = program_of(recipe)
        self.models = [a.onnx().SerializeToString(), changed(a, recipe["change"]).onnx().SerializeToString()]
        self.path = folder / "model.onnx"

    def run(self) -> None:
        """The scene."""
        getattr(self, f"_{self.recipe['scene']}")()

    # One folder, two models ------------------------------------------------------------------------------------------

    def _data(self) -> Any:
        from vertex_softmax.runs.subject import Inputs

        rng = np.random.default_rng(self.recipe["seed"])
        shape = (self.recipe["inputs"], self.recipe["tokens"], self.recipe["d"])
        x = rng.uniform(-1, 1, shape).astype(np.float32)
        runtime = Runtime(self.models[0])
        labels = [int(runtime(row).argmax()) for row in x]
        numbers = tuple(range(len(x)))
        return Inputs("data", torch.from_numpy(x.astype(np.float64)), torch.tensor(labels), None, numbers)

    def _subject(self, model: bytes, inputs: Any) -> Any:
        from vertex_softmax.runs.subject import read_model

        self.path.write_bytes(model)
        return self.must(lambda: read_model(self.path, inputs), "read_model")

    def _folder(self) -> None:
        """`vertex certify` for A, then for B, into one folder; B into another one."""
        from vertex_softmax.runs.evaluate import Plan, evaluate

        inputs, plan = self._data(), Plan(attack_steps=2, attack_restarts=1, slack_inputs=0, search=OPTIONS)
        runs = []
        for model, out in ((self.models[0], "out"), (self.models[1], "out"), (self.models[1], "new")):
            asked = (self._subject(model, inputs), inputs, ("ibp",), (self.recipe["eps"],), self.folder / out, plan)
            runs.append(self.must(partial(evaluate, *asked), "evaluate"))
        _, stale, new = runs
        for one, two in zip(stale.answers, new.answers, strict=True):
            if one.verdict != two.verdict or not _near(one.bound, two.bound):
                text = f"{one.verdict} {one.bound!r} in the folder of another model, {two.verdict} {two.bound!r} anew"
                self.find("stale answer", f"certify {self.recipe['change']}", text)
                return

    def _radius(self) -> None:
        """The same of `vertex radius`."""
        from vertex_softmax.runs.bisection import Bisection
        from vertex_softmax.runs.radius import radii

        inputs, how = self._data(), Bisection(attack_steps=2, attack_restarts=1, precision=0.5)
        runs = []
        for model, out in ((self.models[0], "out"), (self.models[1], "out"), (self.models[1], "new")):
            asked = (self._subject(model, inputs), inputs, ("ibp",), self.folder / out, how, OPTIONS)
            runs.append(self.must(partial(radii, *asked), "radii"))
        _, stale, new = runs
        for one, two in zip(stale.radii, new.radii, strict=True):
            if not _near(one.certified, two.certified) or not _near(one.refused, two.refused):
                text = f"{one.certified!r} in the folder of another model, {two.certified!r} anew"
                self.find("stale answer", f"radius {self.recipe['change']}", text)
                return

    # One file that changes while it is read --------------------------------------------------------------------------

    def _question(self) -> tuple[Path, list[bool]]:
        """A property that holds of one content and is broken by the other, and which; or the end of the case."""
        centre, eps = centre_of(self.recipe).reshape(-1), 1e-4
        ys = [Runtime(model)(centre).astype(np.float64) for model in self.models]
        gaps = [float(y[0] - y[1]) for y in ys]
        if abs(gaps[0] - gaps[1]) < 0.05:
            self.note("both contents have one answer")
            raise Stop
        limit = sum(gaps) / 2
        spec = self.folder / "spec.vnnlib"
        text = f"(<= (+ Y_0 (* -1.0 Y_1)) {limit:.6f})"
        low, high = (list((centre + s * eps).astype(np.float32).astype(np.float64)) for s in (-1, 1))
        spec.write_text(property_text(low, high, 2, [text]))
        return spec, [gap > limit for gap in gaps]

    def _reads(self) -> None:
        """The cascade, with the model replaced after some reads of it."""
        spec, holds = self._question()
        first = self.recipe["seed"] % 2
        self.path.write_bytes(self.models[first])
        hashes = {hashlib.sha256(model).hexdigest(): held for model, held in zip(self.models, holds, strict=True)}
        with _replaced_after(self.path, self.models[1 - first], self.recipe["after"], self.recipe["keep_time"]):
            found = self.ask(
                lambda: verified(self.path, spec, "joint", certificate=self.recipe["certificate"]), "verify reads"
            )
        if found is None:
            return
        self.note(f"{found.status} reads")
        if found.certificate is not None:
            from vertex_softmax.certificate.checker.file import read

            named = read(found.certificate).header["model"]["sha256"]
            if not hashes.get(named, True):
                self.find(
                    "names another", "certificate", "a proof names the hash of a content that breaks the property"
                )
        if found.status == "sat" and found.x is not None:
            gaps = [Runtime(model)(np.array(found.x)) for model in self.models]
            if not any(held is False for held in holds) or not gaps:
                self.find("sat of neither", "reads", "")

    # Sweeps ----------------------------------------------------------------------------------------------------------

    def _benchmark(self) -> tuple[Path, dict[str, bool]]:
        spec, holds = self._question()
        self.path.write_bytes(self.models[0])
        listed = self.folder / "instances.csv"
        listed.write_text(f"{self.path.name},{spec.name},20\n")
        hashes = {hashlib.sha256(model).hexdigest(): held for model, held in zip(self.models, holds, strict=True)}
        return listed, hashes

    def _sweep(self) -> None:
        """A sweep while somebody swaps the model, again and again."""
        listed, hashes = self._benchmark()
        end = threading.Event()
        thread = threading.Thread(target=_swapping, args=(self.path, self.models, end, self.recipe["keep_time"]))
        thread.start()
        try:
            process = _started(listed, self.folder / "out")
            process.wait(120)
        finally:
            end.set()
            thread.join()
        self._lines(hashes, "swapped under way")

    def _killed(self) -> None:
        """A sweep that is killed; the model is replaced; the same command again."""
        listed, hashes = self._benchmark()
        process = _started(listed, self.folder / "out")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.recipe["seconds"])
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        _replace(self.path, self.models[1], self.recipe["keep_time"])
        _started(listed, self.folder / "out").wait(120)
        self._lines(hashes, "killed and edited")
        last = self._journal()[-1:]
        for line in last:
            if line["files"]["model"] != hashlib.sha256(self.models[1]).hexdigest():
                self.find("stale answer", "sweep", "the last line speaks of a content that is no longer there")

    def _journal(self) -> list[dict[str, Any]]:
        place = self.folder / "out" / "journal.jsonl"
        return [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []

    def _lines(self, hashes: dict[str, bool], where: str) -> None:
        for line in self._journal():
            self.note(f"{line['status']} {where}")
            held = hashes.get(line["files"]["model"])
            if (line["status"], held) in (("unsat", False), ("sat", True)):
                self.find("names another", where, f"{line['status']} is said of a content of which it is not true")


def _near(a: float | None, b: float | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and abs(a - b) <= 1e-6 * (1 + abs(b)))


def _replace(path: Path, content: bytes, keep_time: bool) -> None:
    """Another content at once; with the time of the old one, if that is to be kept."""
    before = path.stat()
    beside = path.with_name("other.tmp")
    beside.write_bytes(content)
    if keep_time:
        os.utime(beside, ns=(before.st_atime_ns, before.st_mtime_ns))
    beside.replace(path)


_watched: dict[str, list[Any]] = {}


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    """Count the opens of files that are watched."""
    if event != "open" or not _watched or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    entry = _watched.get(os.path.realpath(os.fsdecode(arguments[0])))
    if entry is not None:
        entry[0] -= 1
        if entry[0] == 0:
            entry[1].set()


_hooked = False


@contextlib.contextmanager
def _replaced_after(path: Path, content: bytes, reads: int, keep_time: bool) -> Iterator[None]:
    """The file gets another content when it is opened once more than so many times."""
    global _hooked  # noqa: PLW0603 - an audit hook cannot be taken back
    if not _hooked:
        sys.addaudithook(_heard)
        _hooked = True
    key = os.path.realpath(path)

    class _Now:
        def set(self) -> None:
            _watched.pop(key, None)
            _replace(path, content, keep_time)

    _watched[key] = [reads + 1, _Now()]
    try:
        yield
    finally:
        _watched.pop(key, None)


def _swapping(path: Path, models: list[bytes], end: threading.Event, keep_time: bool) -> None:
    number = 0
    rng = random.Random(0)  # noqa: S311 - no secret
    while not end.wait(rng.uniform(0.01, 0.4)):
        number += 1
        _replace(path, models[number % 2], keep_time)


def _started(listed: Path, out: Path) -> subprocess.Popen[bytes]:
    """`vertex sweep`, the leader of a group of its own."""
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "vertex_softmax", "sweep", str(listed), "--out", str(out), "--threads", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if time.monotonic() - begin > 60:
        raise Stop
    return process
