"""Asking the library something, and telling what it promises not to do from what it may do.

Invariant: a finding is something that the library promises not to do. What it may do (refuse a model by a VertexError,
have no bound, not decide) is counted in the notes.
"""

from __future__ import annotations

import dataclasses
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from vertex_softmax.foundation.errors import InternalError, InvalidValueError, VertexError

T = TypeVar("T")


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


class Stop(Exception):  # noqa: N818 - not an error
    """Nothing more can be asked of this case."""


class UnfitError(InvalidValueError):
    """The parts of a recipe do not fit together; so it is with some that the minimiser has cut."""


def reported(case: Callable[[Report], None]) -> Report:
    """What came of a case that was run to its end, or as far as it went."""
    report = Report()
    try:
        case(report)
    except UnfitError:
        report.notes["unfit"] += 1
    except Stop:
        pass
    except Exception as error:  # noqa: BLE001 - the fuzzer's own, or of a module that cannot run: told, not hidden
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__}:{Path(last.filename).name}:{last.name}"
        report.findings.append(Finding("harness", where, str(error)[:500]))
    return report


class Asking:
    """What every kind of case does: ask, and note what came of it."""

    report: Report

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
            raise Stop
        return answer


def _place(error: BaseException) -> str:
    """Where in Vertex an exception came from: file and function."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "vertex_softmax" in frame.filename and "fuzz" not in frame.filename:
            return f"{Path(frame.filename).name}:{frame.name}"
    return "?"
