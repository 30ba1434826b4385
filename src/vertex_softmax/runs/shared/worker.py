"""A worker of a shared search: a process that does branch and bound on the parts it is given.

Invariant: a worker has read the model and the property itself, and has made the question, its boxes and the splits of
every part itself. It refuses to work if the model, the property, the options or the sources of Vertex are not those of
the search, or if the bounds of the whole set are others. It answers only about parts that it was given.

Orders are lines on stdin, answers lines on stdout (messages.py), one for each order, in their order. When stdin is
closed, or the search ends in whatever way, so does this process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import Aim, Watchers
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.split_trees import Leaf, SplitTree
from vertex_softmax.bounds.subtrees import GivenPart, Subtrees
from vertex_softmax.foundation.errors import InvalidValueError, OutOfTimeError, VertexError, is_out_of_memory
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bab import rules_of, subtrees
from vertex_softmax.runs.memory_limit import limit_memory
from vertex_softmax.runs.processes import end_with_parent
from vertex_softmax.runs.shared.messages import Codec, count, field, number, numbers, tensor
from vertex_softmax.runs.shared.seals import Plain, opened, sealed
from vertex_softmax.runs.shared.task import SharedTask, difference, read_options
from vertex_softmax.search.branching import are_same_bounds, question_over, root_bounds, root_boxes
from vertex_softmax.search.falsify import PausedSearch, paused_search
from vertex_softmax.search.verify_files import Instance, load_instance

MOST = 1 << 40


def main() -> None:
    """Answer orders until stdin is closed."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    worker = TreeWorker()
    for line in sys.stdin:
        answers.write(sealed(worker.answer(opened(line))) + "\n")
        answers.flush()


class TreeWorker:
    """What a worker knows: an instance, the question of one case, and the search over it."""

    def __init__(self) -> None:
        self._task: SharedTask | None = None
        self._instance: Instance | None = None
        self._graph: Graph | None = None
        self._case: int | None = None
        self._root: tuple[Question, Boxes] | None = None
        self._search: tuple[Subtrees, Codec] | None = None
        self._attacker: PausedSearch | None = None

    @full_precision()
    def answer(self, order: dict[str, Plain]) -> dict[str, Plain]:
        """The answer to an order: what was done, or `unfit` with the reason why this worker cannot be used."""
        do: dict[str, Callable[[dict[str, Plain]], dict[str, Plain]]] = {
            "load": self._load,
            "root": self._make_root,
            "aim": self._take_aim,
            "grow": self._grow,
        }
        name = field(order, "do", str)
        try:
            if name not in do:
                raise InvalidValueError(f"no worker can {name[:40]!r}")
            return {"did": name, **do[name](order)}
        except VertexError as error:
            if isinstance(error, OutOfTimeError) and name != "load":
                return {"did": name, "late": True}
            return {"did": name, "unfit": str(error)}
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return {"did": name, "unfit": "a worker had not enough memory; give each more by --memory"}

    def _load(self, order: dict[str, Plain]) -> dict[str, Plain]:
        """Read the files, and see whether they are those of the search."""
        memory = order.get("memory")
        task = SharedTask(
            model=field(order, "model", str),
            spec=field(order, "spec", str),
            options=read_options(order.get("options")),
            device=field(order, "device", str),
            threads=count(order, "threads", MOST),
            memory=None if memory is None else field(order, "memory", float),
        )
        torch.set_num_threads(task.threads)
        if task.memory is not None:
            limit_memory(task.memory)
        instance = load_instance(Path(task.model), Path(task.spec))
        identity = task.identity(instance)
        other = difference(identity, order.get("identity"))
        if other:
            raise InvalidValueError(f"a worker has before it another search than it was asked for: {other}")
        self._task, self._instance = task, instance
        self._graph = instance.graph.to(torch.float64, torch.device(task.device))
        return {"identity": identity}

    def _make_root(self, order: dict[str, Plain]) -> dict[str, Plain]:
        """Make the question of a case and its boxes."""
        if self._instance is None or self._graph is None or self._task is None:
            raise InvalidValueError("a worker was asked for a case before it was told of a model")
        case = count(order, "case", len(self._instance.prop.cases) - 1)
        if case != self._case or self._root is None:
            self._case, self._root, self._search = case, None, None
            until = _deadline(order)
            question = question_over(self._graph, self._instance.prop.cases[case], self._task.options, until)
            self._root = (question, root_boxes(question, self._task.options))
        return {"case": case}

    def _take_aim(self, order: dict[str, Plain]) -> dict[str, Plain]:
        """Take the objectives and goals of a case, and see whether the whole set has the bounds that it should."""
        made = self._make_root(order)
        if self._root is None or self._task is None or self._graph is None:
            raise InvalidValueError("a worker has no boxes of the case")
        question, boxes = self._root
        if boxes.problems:
            raise InvalidValueError(f"a worker's boxes cannot be used: {boxes.problems[0].text}")
        n = count(order, "objectives", MOST)
        rows = tensor(order.get("rows"), (n, *self._graph.output.shape)).to(question.device)
        goals, known, root = (
            tensor(order.get(name), (n,), finite=False).to(question.device) for name in ("goals", "known", "root")
        )
        question = question.until(_deadline(order))
        own = root_bounds(question, boxes, rows)
        if not are_same_bounds(own, root):
            raise InvalidValueError(
                "a worker's bounds of the whole set are not those of the search: it computes differently, and its "
                "answers would not belong to this search; take machines of one kind, or the same number of threads"
            )
        watchers = Watchers(self._confirms, attack=self._attack)
        search = subtrees(question, boxes, Aim(rows, goals, known), self._task.options, watchers)
        codec = Codec.over(question, boxes, rules_of(self._task.options))
        search.prepare(count({"objective": k}, "objective", n - 1) for k in field(order, "open", list))
        self._search = (search, codec)
        return {**made, "root": numbers(own)}

    def _grow(self, order: dict[str, Plain]) -> dict[str, Plain]:
        """Work on parts for some seconds; what did not change is left out."""
        if self._search is None or count(order, "case", MOST) != self._case:
            raise InvalidValueError("a worker was given parts of a case that it has no objectives of")
        search, codec = self._search
        plain = field(order, "parts", list)
        parts = [codec.read_part(each, len(search.goals)) for each in plain]
        search.limit(_deadline(order))
        grown = search.grow_parts(parts, number(order.get("seconds")), count(order, "domains", MOST))
        answers = [
            {"part": count(each, "part", MOST), "digest": codec.digest(part), "tree": codec.tree(tree)}
            for each, part, tree in zip(plain, parts, grown.trees, strict=True)
            if not _is_unchanged(tree, part)
        ]
        witness = None if grown.witness is None else numbers(grown.witness)
        return {
            "case": self._case,
            "order": count(order, "order", MOST),
            "answers": answers,
            "bounded": grown.domains,
            "witness": witness,
        }

    def _confirms(self, point: Tensor, _objective: int) -> bool:
        """Whether an input is a counterexample by this worker's own replay; the search replays it again."""
        instance = self._instance
        if instance is None:
            return False
        return instance.replay.confirms(instance.prop, point.detach().cpu().double().reshape(-1).numpy()) is not None

    def _attack(self, points: Tensor, objectives: Sequence[int], until: float) -> tuple[Tensor, int] | None:
        """Descend from inputs (n, *shape); an input that this worker's own replay confirms, and its objective.

        A worker does not know whose conjunction an objective is: descents go to whichever of the case is nearest.
        """
        instance, graph, case = self._instance, self._graph, self._case
        if instance is None or graph is None or case is None:
            return None
        if self._attacker is None:
            self._attacker = paused_search(graph, instance.prop, partial(instance.replay.confirms, instance.prop))
        found = self._attacker.descend({(case, None): points.flatten(1)}, until).counterexample
        if found is None:
            return None
        self._attacker = None  # it has found its own
        return torch.from_numpy(found.x).to(points).reshape(points.shape[1:]), objectives[0]


def _is_unchanged(tree: SplitTree, part: GivenPart) -> bool:
    """Whether nothing new is known of a part."""
    only = tree[0] if len(tree) == 1 else None
    return isinstance(only, Leaf) and not only.exhausted and only.bound == part.bound


def _deadline(order: dict[str, Plain]) -> float:
    """When the search's own time is over, by this process's clock."""
    return time.perf_counter() + number(order.get("left"))


if __name__ == "__main__":
    main()
