"""Shared searches in one process: workers that are called in turns, files with planted truths, and who tampers."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.bounds.branching_cases import exact
from tests.search.small import network
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.shared.crew import Crew
from vertex_softmax.runs.shared.seals import opened, sealed
from vertex_softmax.runs.shared.search import SharedSearch
from vertex_softmax.runs.shared.task import SharedTask
from vertex_softmax.runs.shared.tree_journal import TreeJournal
from vertex_softmax.runs.shared.worker import TreeWorker
from vertex_softmax.runs.shared.workers import Event
from vertex_softmax.search.answers import Answer, Budget
from vertex_softmax.search.verify_files import Instance, load_instance, verify_instance

OPTIONS = Options(
    ascent=Ascent(steps=2),
    search=Search(
        domains=400,
        halving=0.0,
        width=2,
        every=1,
        root=Ascent(steps=3),
        ascent=Ascent(steps=25, step_size=0.1),
        attack=0.0,
    ),
)
"""Weak bounds and small steps: tiny networks need dozens of parts, and workers take many turns; none attacks."""
BLIND = Budget(seconds=60, first=0, second=0)
"""Attacks see little more than centres: what is said comes of bounds."""
SIZES = (2, 4, 3, 2)

Change = Callable[[str, str], list[str]]
"""What becomes of a line that a worker, of this name, has answered."""


@functools.cache
def truth(seed: int) -> tuple[bytes, tuple[float, ...]]:
    """A model with two inputs and two outputs, and the least value of each over [−1, 1]²."""
    rng = np.random.default_rng(seed)
    shapes = list(zip(SIZES[1:], SIZES[:-1], strict=True))
    layers = [(1.5 * rng.normal(size=shape), 0.3 * rng.normal(size=shape[0])) for shape in shapes]
    layers = [tuple(x.astype(np.float32).astype(np.float64) for x in layer) for layer in layers]
    model = network(layers[0], "Relu", layers[1], "Relu", layers[2])
    ends = -np.ones(2), np.ones(2)
    return model, tuple(exact(layers, c, *ends) for c in np.eye(2))


def files(folder: Path, seed: int, *margins: float) -> tuple[Path, Path]:
    """The model, and the property that its outputs are above their least values less these margins."""
    model, least = truth(seed)
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "model.onnx").write_bytes(model)
    text = "".join(f"(declare-const {name}_{i} Real)\n" for name in "XY" for i in range(2))
    text += "".join(f"(assert (>= X_{i} -1.0))\n(assert (<= X_{i} 1.0))\n" for i in range(2))
    limits = [value - margin for value, margin in zip(least, margins, strict=True)]
    ways = " ".join(f"(and (<= Y_{i} {limit:.17f}))" for i, limit in enumerate(limits))
    (folder / "property.vnnlib").write_text(text + f"(assert (or {ways}))\n")
    return folder / "model.onnx", folder / "property.vnnlib"


class Rehearsed:
    """Workers in this process: whose turn it is to answer is drawn, and `change` may do anything to an answer."""

    note = "in this process"

    def __init__(self, count: int, seed: int = 0, change: Change | None = None) -> None:
        self.count, self.rng, self.change = count, random.Random(seed), change or (lambda _name, line: [line])
        self.workers: dict[str, TreeWorker] = {}
        self.orders: dict[str, list[str]] = {}
        self.begun = 0
        self.left: list[tuple[str, str]] = []
        """workers that were dropped, and why"""
        self.told: list[dict[str, Any]] = []
        """all orders, opened"""
        self._events: list[Event] = []

    def poll(self, wait: float) -> list[Event]:  # noqa: ARG002
        found, self._events = self._events, []
        while len(self.workers) < self.count:
            self.begun += 1
            name = f"worker {self.begun}"
            self.workers[name], self.orders[name] = TreeWorker(), []
            found.append(Event(name))
        busy = [name for name, orders in self.orders.items() if orders]
        if busy and not found:
            name = self.rng.choice(busy)
            line = sealed(self.workers[name].answer(opened(self.orders[name].pop(0))))
            found += [Event(name, line=each) for each in self.change(name, line)]
        return found

    def send(self, worker: str, line: str) -> None:
        self.told.append(opened(line))
        if worker in self.orders:
            self.orders[worker].append(line)

    def drop(self, worker: str, reason: str) -> None:
        self.left.append((worker, reason))
        self.lose(worker, reason)

    def lose(self, worker: str, reason: str = "it was killed") -> None:
        """As if the worker's process had been killed."""
        del self.workers[worker], self.orders[worker]
        self._events.append(Event(worker, left=reason))

    def stop(self) -> None:
        self.workers.clear()


@contextmanager
def shared(
    instance: Instance, paths: tuple[Path, Path], workers: Any, options: Options = OPTIONS, journal: Path | None = None
) -> Iterator[SharedSearch]:
    task = SharedTask(model=str(paths[0]), spec=str(paths[1]), options=options)
    identity = task.identity(instance)
    crew = Crew(task, identity, lambda: workers)
    try:
        if journal is None:
            yield SharedSearch(crew)
        else:
            with TreeJournal(journal, identity) as opened_:
                yield SharedSearch(crew, opened_)
    finally:
        crew.stop()


def ask(
    paths: tuple[Path, Path],
    workers: Any,
    *,
    options: Options = OPTIONS,
    journal: Path | None = None,
    budget: Budget = BLIND,
) -> tuple[Answer, SharedSearch]:
    """The answer of a shared search about these files."""
    torch.set_num_threads(1)
    instance = load_instance(*paths)
    with shared(instance, paths, workers, options, journal) as search:
        return verify_instance(instance, budget, options=options, branching=search), search


def alone(paths: tuple[Path, Path], options: Options = OPTIONS) -> Answer:
    """The answer of one process."""
    return verify_instance(load_instance(*paths), BLIND, options=options)


def body_changed(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Change:
    """Answers about parts are changed and sealed again; None: they are lost."""

    def changed(_name: str, line: str) -> list[str]:
        body = opened(line)
        if body["did"] != "grow" or not body.get("answers"):
            return [line]
        made = change(json.loads(json.dumps(body)))
        return [] if made is None else [sealed(made)]

    return changed
