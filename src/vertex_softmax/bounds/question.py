"""A question: a graph over an input set, with everything that computations about it share."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.index import GraphIndex
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.bounds.relaxations import Relaxations
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.foundation.progress import Progress
from vertex_softmax.graph.ir import Graph
from vertex_softmax.sets.region import Region


@dataclasses.dataclass(frozen=True, eq=False)
class Stopwatch:
    """The deadline of a computation, and the time it spent in each stage."""

    deadline: float | None = None
    """on the clock of `time.perf_counter`; a backward pass that is under way when it passes raises OutOfTimeError"""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """seconds spent, by stage"""
    progress: Progress | None = None
    """called with the progress of stages that take long"""

    def check(self) -> None:
        """Raise if the deadline has passed."""
        if self.deadline is not None and time.perf_counter() > self.deadline:
            raise OutOfTimeError("the time is spent")

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report how much of a stage is done."""
        if self.progress is not None:
            self.progress(stage, done, total)

    def add(self, stage: str, begin: float) -> None:
        """Add the time since `begin` to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begin


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """A graph over a batch of input sets, and what all passes about it share."""

    index: GraphIndex
    given: Region
    """the input sets as they were given, shaped like the graph's input"""
    region: Region
    """the same sets, rearranged like `index.start`, the node where passes end (the input, or a mere reshape of it)"""
    memory: Memory
    clock: Stopwatch
    relaxations: Relaxations
    kept: dict[str, Boxes] = dataclasses.field(default_factory=dict)
    """boxes that several methods use, made once (`once`)"""
    products: bool = True
    """whether zonotopes may have products of the input's unknowns (docs/norms.md), which are tighter and cost many
    times more"""
    triples: bool = False
    """whether they may have products of three unknowns as well"""
    numbers: int | None = None
    """the limit for the numbers in the blocks of a node's zonotope, for each input; None: as bounds/memory.py says"""

    @staticmethod
    def over(
        graph: Graph,
        region: Region,
        *,
        memory: Memory | None = None,
        deadline: float | None = None,
        progress: Progress | None = None,
    ) -> Question:
        """The question about a graph over a region, (batch, *input shape), in the precision of both."""
        index = GraphIndex(graph)
        start = region
        if index.start is not graph.input:
            start = region.rearranged(index.start_numbers(region.box.lower.device))
        clock = Stopwatch(deadline, progress=progress)
        return Question(index, region, start, memory or Memory(), clock, Relaxations(index, start))

    def about(self, region: Region) -> Question:
        """A question about the same graph over other sets; it shares what does not depend on the set, and the clock."""
        start = region
        if self.index.start is not self.graph.input:
            start = region.rearranged(self.index.start_numbers(region.box.lower.device))
        return Question(self.index, region, start, self.memory, self.clock, self.relaxations.over(start))

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.index.graph

    @property
    def batch(self) -> int:
        """How many input sets there are."""
        return self.given.box.lower.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The precision of all tensors."""
        return self.given.box.lower.dtype

    @property
    def device(self) -> torch.device:
        """Where all tensors are."""
        return self.given.box.lower.device

    def input_boxes(self) -> Boxes:
        """Boxes that contain only the input's interval."""
        return Boxes(self.batch, {self.graph.input: self.given.box})

    def once(self, name: str, make: Callable[[], Boxes]) -> Boxes:
        """Boxes of this question that are stored under a name; made when they are asked for the first time."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def until(self, deadline: float | None) -> Question:
        """The same question with another deadline; times are still added to the same stages."""
        return dataclasses.replace(self, clock=Stopwatch(deadline, self.clock.seconds, self.clock.progress))

    def to_first_order(self, numbers: int | None = None) -> Question:
        """The same question with zonotopes of first order only, and with a limit for the numbers of a node's blocks.

        None of its boxes are taken over.
        """
        relaxations = Relaxations(self.index, self.region)
        return dataclasses.replace(self, relaxations=relaxations, kept={}, products=False, numbers=numbers)

    def to_third_order(self, deadline: float | None) -> Question:
        """The same question with products of three of the input's unknowns, and with a deadline.

        None of its boxes are taken over.
        """
        relaxations = Relaxations(self.index, self.region)
        return dataclasses.replace(self.until(deadline), relaxations=relaxations, kept={}, triples=True)

    def on_parts(self) -> Question:
        """The same question, for use with boxes of parts of the set (`Boxes.parts`).

        Relaxations that a part shares with the whole set are then made only once. Without this the bounds are the same,
        but slower.
        """
        return dataclasses.replace(self, relaxations=self.relaxations.of_parts())
