"""A pytest plugin for the runs over a copy: it is the copy that is imported, and what happened is written down.

Asked for with -p tests.mutation.guard; what it needs is in the environment (runner.py).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings


class Guard:
    """Ends the session with an internal error if the package is not the copy's; writes outcomes at its end."""

    def __init__(self) -> None:
        self.copy = Path(os.environ["VERTEX_MUTANT_COPY"]).resolve()
        self.module = os.environ.get("VERTEX_MUTANT_MODULE", "")
        self.report = Path(os.environ["VERTEX_MUTANT_REPORT"])
        self.outcomes: dict[str, str] = {}

    def pytest_sessionstart(self) -> None:
        import vertex_softmax

        # on a busy machine hypothesis may find data too slow to draw, which says nothing of the mutant
        calm = settings(settings.get_profile("vertex"), suppress_health_check=list(HealthCheck))
        settings.register_profile("mutation", calm)
        settings.load_profile("mutation")
        if self.copy not in Path(vertex_softmax.__file__).resolve().parents:
            raise RuntimeError(f"{vertex_softmax.__file__} is imported, which is not in {self.copy}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        found = sys.modules.get(self.module)
        path = None if found is None else getattr(found, "__file__", None)
        reached = not self.module or (path is not None and self.copy in Path(path).resolve().parents)
        self.report.write_text(json.dumps({"reached": reached, "outcomes": self.outcomes}))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Guard(), "mutation-guard")
