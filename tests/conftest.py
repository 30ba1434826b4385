"""Rules shared by every test: CUDA tests are left out where there is no CUDA device, and SIGINT is not ignored."""

from __future__ import annotations

import copy
import functools
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # as the product does before it imports onnxruntime
hypothesis.settings.register_profile("vertex", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("vertex")


LONG = tuple(
    f"test_{name}.py"
    for name in [
        "docs",
        "planted",
        "search",
        "families",
        "asking",
        "examples",
        "gallery",
        "build",
        "backward",
        "contract",
        "narrowed_proofs",
        "token_ids",
        "packed_trees",
        "soundness",
        "product",
        "broken",
        "workers",
        "generators",
        "boxes",
        "token_choices",
        "met_inside",
        "competition",
        "decisions",
        "planting",
        "affine",
        "tampering_proofs",
        "mutation",
        "reproduce",
        "every",
        "regimes",
        "underflow",
        "certified_radius",
        "worker",
        "counterexamples",
        "order",
        "choices",
        "tree_journal",
        "learned",
        "ray",
        "browser",
        "verify",
        "main",
        "from_onnx",
        "second_rows",
        "limits",
        "branch_and_bound",
        "networks",
        "verifier_benchmarks",
        "sweep",
        "runner",
        "judge",
        "exact",
        "corpus",
        "triton",
        "values",
        "common",
        "house",
        "identity",
    ]
)
"""Files that take longest begin first, so that no worker is left alone with one at the end."""


TOGETHER = {"tests/graph/test_from_torch.py": "tests/methods/test_families.py"}
"""File → the file whose worker runs it too, as both export every family of models and keep what they exported."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By file as `--dist loadfile` does it, but for those that belong together; None: xdist's own."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return TOGETHER.get(file, file)

    return Files(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
    gc.collect()
    gc.freeze()  # what is imported stays: looking through it again and again takes a tenth of the time
    gc.set_threshold(50_000, 20, 50)
    if torch.cuda.is_available():
        return
    left_out = [item for item in items if item.get_closest_marker("gpu")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session", autouse=True)
def _exports_are_quick() -> Iterator[None]:
    """torch.export keeps what it otherwise makes anew at every call."""
    from tests.quick_export import quick_export

    with quick_export():
        yield


@pytest.fixture(scope="session", autouse=True)
def _commands_are_read_once() -> Iterator[None]:
    """typer makes all commands anew from the signatures of their functions whenever a test calls one: ten ms each."""
    import typer.testing

    with pytest.MonkeyPatch.context() as patch:
        if read := getattr(typer.testing, "_get_command", None):
            patch.setattr(typer.testing, "_get_command", functools.cache(read))
        yield


@pytest.fixture(scope="module", autouse=True)
def _curved_lines_are_found_once() -> Iterator[None]:
    """The same lines over the same box: a fifth of the time of the tests of bounds otherwise."""
    from tests.kept_lines import kept_lines

    with kept_lines():
        yield


@pytest.fixture(scope="session", autouse=True)
def _sigint_is_not_ignored() -> Iterator[None]:
    """A run in the background of a script inherits an ignored SIGINT, and would hand it on to its children."""
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture(scope="module")
def exported_once() -> Iterator[None]:
    """One torch.export per state of a module, shape and kind of perturbation: the slowest part of asking.

    A state is all that a module computes with: its classes, their code, its weights and settings. Everything else is
    done anew whenever a module is read: its copy, the translation at its ids, the comparison with it. Modules with
    further arguments are exported every time.
    """
    from vertex_softmax.graph.from_torch import importer
    from vertex_softmax.graph.from_torch.state import state_of

    real, kept = importer.Program, {}

    def program(original, x, perturb):
        if original.rest or original.keywords:
            return real(original, x, perturb)
        state = state_of(original.own)
        key = (state.digest, tuple(x.shape), x.dtype, perturb)
        if key not in kept:
            kept[key] = state.objects, real(original, x, perturb)  # the objects, as their ids are nobody else's then
        found = copy.copy(kept[key][1])
        found.original = original
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importer, "Program", program)
        yield


@pytest.fixture(scope="module")
def zonotopes_once() -> Iterator[None]:
    """The zonotopes of one graph over one box are made once, whichever methods and objectives ask for them.

    Nothing of them depends on either. Not for tests that change the rules of an op.
    """
    from vertex_softmax.bounds import zonotopes
    from vertex_softmax.graph.ir import Graph

    move, make = Graph.to, zonotopes._made
    copies: dict[Any, Any] = {}
    kept: dict[Any, Any] = {}

    def to(graph: Graph, dtype: Any, device: Any = "cpu") -> Graph:
        key = (id(graph), dtype, str(device))
        if key not in copies:
            copies[key] = graph, move(graph, dtype, device)  # the graph too, as its id is nobody else's then
        return copies[key][1]

    def made(question: Any) -> Any:
        ends = [(x.dtype, x.device, tuple(x.shape), x.numpy(force=True).tobytes()) for x in question.given.box]
        key = (id(question.graph), question.memory.total, *ends)
        if key not in kept:
            kept[key] = question.graph, make(question)
        return kept[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graph, "to", to)
        patch.setattr(zonotopes, "_made", made)
        yield


@pytest.fixture
def one_source_and_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps of one thread each, whose answers stand although the sources may change between two runs of a test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("vertex_softmax.runs.sweep.sweep.source", lambda: "these sources")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The command of the small program, which the sweeps of this test run."""
    from tests.runs.sweep.sweeps import child

    command = child(tmp_path)
    monkeypatch.setattr("vertex_softmax.runs.sweep.runner.COMMAND", command)
    return command
