"""Runs the suite over copies of the package with one fault each, and says which faults it noticed.

Invariant: a mutant counts as killed only if the mutated module was imported from the copy and a test failed that passes
on the copy without the fault (or the process crashed, or ran out of time, where the same tests do not without it: told
apart). A copy that cannot even be collected is an error of the catalogue, not a kill.

Every result is appended to a journal with a digest of all that it depends on, so that a run goes on where it was
interrupted, and what has changed since is run again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

from tests.mutation.locate import Changed, Sources
from tests.mutation.mutant import PACKAGE, ROOT, Mutant, module

TESTS = ROOT / "tests"
SECONDS = 600.0
"""What the tests of one mutant may take; without a fault they take less than a tenth of it."""
KILLED = ("killed", "crash", "timeout")
HATCHLING = ("builders", "builders.hooks", "builders.hooks.plugin", "builders.hooks.plugin.interface")


class Outcome(NamedTuple):
    """What became of one mutant."""

    key: str
    area: str
    result: str
    """killed, survived, crash, timeout, or error"""
    by: str
    """the first test that failed, or what went wrong"""
    seconds: float


class Suite(NamedTuple):
    """Some tests."""

    tests: tuple[str, ...]
    only: str = ""


def _files(folder: Path, *endings: str) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix in endings and "__pycache__" not in p.parts)


@functools.cache
def _common() -> str:
    """A digest of the package, of the tests' helpers and of the settings."""
    helpers = [
        p for p in _files(TESTS, ".py") if not p.name.startswith("test_") and TESTS / "mutation" not in p.parents
    ]
    found = hashlib.sha256()
    for path in [*_files(PACKAGE, ".py", ".c", ".h"), *helpers, ROOT / "pyproject.toml"]:
        found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def digest(suite: Suite, *more: str) -> str:
    """Of all that the result of running some tests depends on."""
    found = hashlib.sha256(_common().encode())
    for test in suite.tests:
        found.update(test.encode() + b"\0" + (TESTS / test).read_bytes() + b"\0")
    found.update("\0".join((suite.only, *more)).encode())
    return found.hexdigest()[:32]


class Journal:
    """Results by digest, one JSON object per line; a line cut short by an interruption is not there."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.known, self.lock = path, dict[str, dict[str, Any]](), threading.Lock()
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue
                self.known[entry["digest"]] = entry

    def once(self, digest: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What is written down under a digest, or what `work` gives, written down."""
        with self.lock:
            if digest in self.known:
                return self.known[digest]
        entry = {"digest": digest, **work()}
        with self.lock:
            self.known[digest] = entry
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a") as file:
                    file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        return entry


class Copy:
    """A copy of the package in a folder, its kernel included."""

    def __init__(self, place: Path) -> None:
        self.place, self.source = place, place / "src"
        self.package = self.source / "vertex_softmax"
        self.server: subprocess.Popen[str] | None = None
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, self.package, ignore=ignored)

    @contextmanager
    def mutated(self, changed: Changed) -> Iterator[None]:
        """With one fault, within."""
        path = self.package / changed.file
        before, native = path.read_text(), path.suffix != ".py"
        library = self.package / "softmax_box" / "native" / "softmax_box.so"
        kernel = library.read_bytes() if native and library.exists() else None
        try:
            path.write_text(changed.text)
            _forget(path)
            if native:
                _compile(self.place)
            yield
        finally:
            path.write_text(before)
            _forget(path)
            if kernel is not None:
                _replace(library, kernel)

    def run(self, suite: Suite, seconds: float, module: str = "") -> tuple[str, str]:
        """(result, by whom) of some tests over the copy as it is now; `module` has to be imported from it."""
        code, said, found = self.tested(suite, seconds, module, first=True)
        if code is None:
            return "timeout", f"not done after {seconds:.0f} s"
        if code < 0:
            return "crash", f"signal {-code}"
        if code not in (0, 1) or found is None:
            return "error", f"pytest ended with {code}: {said}"
        if not found["reached"]:
            return "error", f"{module} was not imported from the copy"
        failed = [name for name, outcome in found["outcomes"].items() if outcome == "failed"]
        if code == 1:
            return ("killed", failed[0]) if failed else ("error", said)
        return "survived", f"{len(found['outcomes'])} tests pass"

    def tested(
        self, suite: Suite, seconds: float, module: str = "", *, first: bool, nodes: Sequence[str] = ()
    ) -> tuple[int | None, str, dict[str, Any] | None]:
        """pytest's exit status, the end of what it said, and the guard's report; `first`: up to the first failure.

        `nodes`: of all of the suite, these tests alone.
        """
        report, log = self.place / "report.json", self.place / "log.txt"
        report.unlink(missing_ok=True)
        arguments = [
            "-q",
            "--no-header",
            "--tb=line",
            "--assert=plain",
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.mutation.guard",
        ]
        arguments += ["-x"] if first else []
        arguments += ["-k", suite.only] if suite.only else []
        environment = {
            "VERTEX_MUTANT_COPY": str(self.source),
            "VERTEX_MUTANT_MODULE": module,
            "VERTEX_MUTANT_REPORT": str(report),
        }
        code = self._ask(
            arguments=[*arguments, *(nodes or (str(TESTS / test) for test in suite.tests))],
            environment=environment,
            log=str(log),
            seconds=seconds,
        )
        said = log.read_text()[-1500:] if log.exists() else ""
        return code, said, json.loads(report.read_text()) if report.exists() else None

    def _ask(self, **what: Any) -> int | None:
        """One run by the server, which is started for the first."""
        if self.server is None or self.server.poll() is not None:
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    (str(self.source), str(ROOT), str(ROOT / "lab"), *filter(None, [os.environ.get("PYTHONPATH")]))
                ),
                "PYTHONHASHSEED": "0",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # none is needed, and they are slow to import
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            }
            command = [sys.executable, "-m", "tests.mutation.server"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.server = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)  # type: ignore[call-overload]
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(what) + "\n")
        self.server.stdin.flush()
        answer = json.loads(self.server.stdout.readline())
        return None if answer["code"] is None else int(answer["code"])

    def close(self) -> None:
        """End the server."""
        if self.server is not None:
            self.server.communicate()


def _forget(path: Path) -> None:
    """No compiled module of before: its time stamp counts seconds only."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def _replace(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)


def _compile(root: Path) -> None:
    """The kernel of a copy, as hatch_build.py builds it; hatchling itself, which makes wheels, need not be there."""
    made = {name: ModuleType(name) for name in ("hatchling", *(f"hatchling.{part}" for part in HATCHLING))}
    made["hatchling.builders.hooks.plugin.interface"].BuildHookInterface = object  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("mutation_hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, made):
        spec.loader.exec_module(build)
    build.compile_kernel(root)


class Runner:
    """Runs mutants, several at a time, each worker over a copy of its own."""

    def __init__(self, jobs: int = 1, journal: Path | None = None, seconds: float = SECONDS) -> None:
        self.jobs, self.journal, self.seconds = jobs, Journal(journal), seconds

    def run(self, chosen: Sequence[Mutant], say: Callable[[Outcome], None] = lambda _: None) -> list[Outcome]:
        """What becomes of some mutants, in their order."""
        with tempfile.TemporaryDirectory(prefix="vertex-mutants-") as place:
            copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
            every = [Copy(Path(place) / str(i)) for i in range(self.jobs)]
            for copy in every:
                copies.put(copy)
            sources = Sources(every[0].package)
            changes = [mutant.applied(sources) for mutant in chosen]  # what is out of date is said before anything runs

            def work(mutant: Mutant, changed: Changed) -> Outcome:
                copy = copies.get()
                try:
                    outcome = self._one(copy, mutant, changed)
                finally:
                    copies.put(copy)
                say(outcome)
                return outcome

            try:
                with ThreadPoolExecutor(self.jobs) as pool:
                    found = list(pool.map(work, chosen, changes))
                return self._told_apart(every[0], chosen, found)
            finally:
                for copy in every:
                    copy.close()

    def _one(self, copy: Copy, mutant: Mutant, changed: Changed) -> Outcome:
        suite = Suite(mutant.tests, mutant.only)

        def work() -> dict[str, Any]:
            begin = time.perf_counter()
            try:
                with copy.mutated(changed):
                    result, by = copy.run(suite, self.seconds, module(changed.file))
            except subprocess.CalledProcessError as error:
                result, by = "error", f"the kernel does not compile: {error.stderr}"
            return {"key": mutant.key, "result": result, "by": by, "seconds": round(time.perf_counter() - begin, 1)}

        found = self.journal.once(digest(suite, changed.file, changed.text), work)
        return Outcome(mutant.key, mutant.area, found["result"], found["by"], found["seconds"])

    def _told_apart(self, copy: Copy, chosen: Sequence[Mutant], found: list[Outcome]) -> list[Outcome]:
        """The outcomes, but an error where the copy without a fault does as the mutant did."""
        killers = {outcome.by for outcome in found if outcome.result == "killed"}
        fine = self._passing(copy, killers)
        told = []
        for mutant, outcome in zip(chosen, found, strict=True):
            if outcome.result == "killed" and outcome.by not in fine:
                by = f"{outcome.by} fails without the fault too"
                told.append(outcome._replace(result="error", by=by))
            elif outcome.result in ("crash", "timeout") and self._base(copy, mutant) != "survived":
                told.append(outcome._replace(result="error", by=f"without the fault too: {outcome.by}"))
            else:
                told.append(outcome)
        return told

    def _passing(self, copy: Copy, killers: set[str]) -> set[str]:
        """Those of some tests that pass over the copy without a fault; one run for all of a file's."""
        passing: set[str] = set()
        for file in sorted({killer.partition("::")[0] for killer in killers}):
            path = str(Path(file).relative_to("tests"))
            mine = sorted(killer for killer in killers if killer.partition("::")[0] == file)
            left = [killer for killer in mine if digest(Suite((path,)), killer) not in self.journal.known]
            outcomes: dict[str, str] = {}
            if left:
                _, said, report = copy.tested(Suite((path,)), SECONDS, first=False, nodes=left)
                outcomes = {} if report is None else report["outcomes"]
                if not outcomes:
                    raise RuntimeError(f"{file}: {said}")
            for killer in mine:
                told = functools.partial(lambda result: {"result": result}, outcomes.get(killer, "not run"))
                if self.journal.once(digest(Suite((path,)), killer), told)["result"] == "passed":
                    passing.add(killer)
        return passing

    def _base(self, copy: Copy, mutant: Mutant) -> str:
        """What the same tests do over the copy without a fault."""
        suite = Suite(mutant.tests, mutant.only)
        return str(
            self.journal.once(digest(suite, "no fault"), lambda: {"result": copy.run(suite, self.seconds)[0]})["result"]
        )

    def whole(self, suite: Suite) -> dict[str, Any]:
        """The outcome of every one of some tests over a copy without a fault, and the seconds in all."""

        def work() -> dict[str, Any]:
            begin = time.perf_counter()
            with tempfile.TemporaryDirectory(prefix="vertex-mutants-") as place:
                copy = Copy(Path(place) / "0")
                try:
                    code, said, found = copy.tested(suite, SECONDS, first=False)
                finally:
                    copy.close()
            if found is None:
                raise RuntimeError(f"pytest ended with {code}: {said}")
            return {"outcomes": found["outcomes"], "seconds": round(time.perf_counter() - begin, 1)}

        return self.journal.once(digest(suite, "all of them"), work)
