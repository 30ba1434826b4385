"""A model that was read: which graph answers for which inputs, each held against the model itself.

Invariant: `Loaded.groups` returns a graph for an input only if the original (the user's module, run eagerly;
onnxruntime on the file) gives what the graph gives, but for rounding, at the input's centre and at points of its set.
Inputs are answered by one graph only if their graphs are the same: token ids decide over masks, positions and indices,
so every row of ids is read by itself.

    model = read(module)              # once
    certify(model, ball, labels)      # as often as you like: exported once per input shape, replayed every time
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, Union

import torch
from torch import Tensor, nn

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, VertexError
from vertex_softmax.graph.identity import graph_identity
from vertex_softmax.graph.ir import Graph
from vertex_softmax.sets.base import InputSet

CALLS = 64
"""About how many calls of a module a small batch may cost; a large one costs two per input."""
MOST_POINTS = 5
"""Of one input's set, that the original is asked at."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Some inputs of a batch, and the graph that answers for them."""

    which: tuple[int, ...]
    graph: Graph


class Loaded(ABC):
    """A model that was read."""

    identity: str | None = None
    """Of the file that was read (certificate/checker/model.py); None if it is no file."""
    name: str = ""
    """Of the file that was read; empty if it is no file."""

    @abstractmethod
    def groups(self, input_set: InputSet) -> list[Group]:
        """The graphs for the inputs of a set, simplified; every input is in one group."""

    def graph(self, input_set: InputSet) -> Graph:
        """The one graph for all inputs of a set."""
        found = self.groups(input_set)
        if len(found) != 1:
            raise InvalidValueError(
                f"the {len(input_set)} inputs need {len(found)} graphs, as masks, positions or indices differ with "
                f"their token ids (inputs {found[0].which[0]} and {found[1].which[0]}, for instance): give the model "
                "itself to `certify` and `bound`, or one input at a time"
            )
        return found[0].graph

    def rows(self, ids: Tensor) -> Tensor:  # noqa: ARG002
        """The rows (batch, tokens, d) of the table that ids (batch, tokens) are looked up in: the graph's input."""
        raise InvalidTypeError("only a torch.nn.Module that takes token ids has a table to look them up in")


Model: TypeAlias = Union[nn.Module, Graph, str, Path, Loaded]  # noqa: UP007 - Loaded is a class of this module


def read(model: Model, *, kwargs: Mapping[str, Any] | None = None) -> Loaded:
    """A module in eval mode, a graph, or the path of an ONNX file, as what `certify` asks.

    `kwargs`: what else the module is called with, for every input (an attention mask, for instance), in a batch of 1.
    """
    if isinstance(model, nn.Module):
        return _Module(model, kwargs)
    if kwargs:
        raise InvalidTypeError(f"kwargs are for a torch.nn.Module, and the model is a {type(model).__name__}")
    if isinstance(model, Loaded):
        return model
    if isinstance(model, Graph):
        return _Graph(model)
    if isinstance(model, str | Path):
        return _File(Path(model))
    raise InvalidTypeError(
        f"the model is a {type(model).__name__}; give a torch.nn.Module in eval mode, an ONNX file's path or a Graph"
    )


def load(model: Model, input_set: InputSet) -> Graph:
    """The graph of a model, simplified, for the inputs of the set, held against the model."""
    return read(model).graph(checked(input_set))


def checked(input_set: InputSet) -> InputSet:
    """The set, if it is one."""
    if not isinstance(input_set, InputSet):
        raise InvalidTypeError(
            f"the input set is a {type(input_set).__name__}; give a LinfBall, a Box or a TokenBall around your inputs"
        )
    if len(input_set) == 0:
        raise InvalidValueError("the set holds no inputs: there is nothing to say about it")
    return input_set


class _Graph(Loaded):
    """A graph is the model itself: there is nothing to hold it against."""

    def __init__(self, graph: Graph) -> None:
        self.given = graph

    def groups(self, input_set: InputSet) -> list[Group]:
        _refuse_ids(input_set, "a Graph is fixed at the ids it was read at, and does not know them")
        return [Group(tuple(range(len(input_set))), self.given)]


def _refuse_ids(input_set: InputSet, why: str) -> None:
    if getattr(input_set, "ids", None) is not None:
        raise InvalidValueError(
            f"the set has token ids, and {why}: masks and positions may be other sentences'. Give the module itself, "
            "or read(module) of vertex_softmax.sets.loading; or leave `ids` out, if the embeddings are all that the "
            "network takes"
        )


class _File(Loaded):
    """An ONNX file, read once."""

    def __init__(self, path: Path) -> None:
        from vertex_softmax.graph.from_onnx.importer import from_onnx
        from vertex_softmax.graph.from_onnx.original import Original
        from vertex_softmax.graph.simplify import simplify

        self.original = Original(path)
        self.identity, self.name = self.original.identity, path.name
        self.simplified: Graph = simplify(from_onnx(self.original.file))

    def groups(self, input_set: InputSet) -> list[Group]:
        from vertex_softmax.graph.from_onnx.replay import require_same

        _refuse_ids(input_set, "an ONNX file is given numbers")
        require_same(self.original, self.simplified, points_of(input_set, self.simplified.input.shape).flatten(0, 1))
        return [Group(tuple(range(len(input_set))), self.simplified)]


class _Module(Loaded):
    """A PyTorch module: exported once per input shape, read once per row of token ids."""

    def __init__(self, module: nn.Module, kwargs: Mapping[str, Any] | None) -> None:
        from vertex_softmax.graph.from_torch.module import Original

        self.original = Original(module, torch.zeros((), dtype=torch.float64), kwargs)
        self.programs: dict[tuple[object, ...], Any] = {}
        self.readings: dict[tuple[object, ...], _Reading] = {}
        self.module, self.state = module, _state(module)

    def groups(self, input_set: InputSet) -> list[Group]:
        from vertex_softmax.graph.from_torch.replay import Case, replay

        if _state(self.module) != self.state:
            raise InvalidValueError("the module's parameters or buffers have changed since it was read: read it again")
        ids = getattr(input_set, "ids", None)
        found = self._readings(input_set.shape[1:], len(input_set), ids)
        if ids is not None:
            _check_centres(input_set, found)
        groups: dict[str, list[int]] = {}
        for i, reading in enumerate(found):
            groups.setdefault(reading.identity, []).append(i)
        answers = []
        for which in groups.values():
            reading = found[which[0]]
            graph = reading.simplified
            points = points_of(input_set[which], graph.input.shape)
            cases = [Case(i, p, found[i].made.cut) for i, p in zip(which, points, strict=True)]
            replay(graph, reading.made, self.original, cases, batches=True)
            answers.append(Group(tuple(which), graph))
        self.state = _state(self.module)  # a module that was run may have put something away for later
        return answers

    def rows(self, ids: Tensor) -> Tensor:
        found = self._readings((), len(ids), ids)
        return torch.cat([reading.start.reshape(1, ids.shape[1], -1) for reading in found])

    def _readings(self, shape: Sequence[int], count: int, ids: Tensor | None) -> list[_Reading]:
        """One per input; the same one for the same ids."""
        if ids is None:
            found = self._reading(torch.zeros(1, *shape, dtype=torch.float64), "input")
            return [found] * count
        rows = ids.cpu().long()
        return [self._at_row(rows, i) for i in range(count)]

    def _at_row(self, rows: Tensor, i: int) -> _Reading:
        try:
            return self._reading(rows[i : i + 1], "embedding")
        except VertexError as error:
            raise type(error)(f"input {i}: {error}") from error

    def _reading(self, x: Tensor, perturb: str) -> _Reading:
        from vertex_softmax.graph.from_torch.importer import Program

        key = (perturb, tuple(x.shape))
        if key not in self.programs:
            self.programs[key] = Program(self.original, x, perturb)
        row = (*key, tuple(x.flatten().tolist()) if perturb == "embedding" else ())
        if row not in self.readings:
            self.readings[row] = _Reading(self.programs[key].at(x))
        return self.readings[row]


def _state(module: nn.Module) -> list[tuple[str, int, int]]:
    """Which tensors a module has, and how often each was written to."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return [(name, id(value), value._version) for name, value in named]


class _Reading:
    """A graph as it was read at some ids, and what was made of it."""

    def __init__(self, made: Any) -> None:
        from vertex_softmax.graph.simplify import simplify

        self.made = made
        self.identity: str = graph_identity(made.graph)
        self.start: Tensor = made.start
        self.simplified: Graph = simplify(made.graph)


def _check_centres(input_set: InputSet, found: Sequence[_Reading]) -> None:
    """The centre of a set with ids is what the ids are looked up to be, exactly."""
    for i, (centre, reading) in enumerate(zip(input_set.centre.cpu(), found, strict=True)):
        start = (
            reading.start.reshape(centre.shape[0], -1)
            if reading.start.numel() % centre.shape[0] == 0
            else reading.start
        )
        if start.shape != centre.shape:
            raise InvalidValueError(
                f"input {i} has embeddings of shape {tuple(centre.shape)}, and the rows of its ids "
                f"{tuple(start.shape)}; use TokenBall.of(model, ids, eps), which looks them up"
            )
        wrong = (start != centre).nonzero()
        if len(wrong):
            token, entry = wrong[0].tolist()
            ours, theirs = float(centre[token, entry]), float(start[token, entry])
            raise InvalidValueError(
                f"input {i}, token {token}: the set's centre is {ours!r} at entry {entry}, but the row of its id in "
                f"the model's table has {theirs!r}. The set is around the rows themselves, before the model scales or "
                "changes them: use TokenBall.of(model, ids, eps), which looks them up"
            )


def points_of(input_set: InputSet, shape: Sequence[int]) -> Tensor:
    """Points (n, k, *shape) of every input's set, on the CPU: centre, a corner, ends, inside.

    The fewer inputs, the more points; without width there is the centre alone.
    """
    lower, upper, centre = (
        placed(end.detach().cpu().double(), shape) for end in (input_set.lower, input_set.upper, input_set.centre)
    )
    found = [centre]
    if bool((lower < upper).any()):
        generator = torch.Generator().manual_seed(len(centre))
        share = torch.rand(centre.shape, generator=generator, dtype=torch.float64)
        side = torch.rand(centre.shape, generator=generator) < 0.5
        inside = (lower + share * (upper - lower)).clamp(lower, upper)
        found += [torch.where(side, lower, upper), lower, upper, inside]
    count = max(2, min(MOST_POINTS, CALLS // len(centre)))
    return torch.stack(found[:count], 1)


def placed(x: Tensor, shape: Sequence[int]) -> Tensor:
    """One end of a set, (batch, ...), as (batch, *graph input shape)."""
    shape = tuple(shape)
    if tuple(x.shape[1:]) == shape:
        return x
    if shape and shape[0] == 1 and tuple(x.shape[1:]) == shape[1:]:
        return x.unsqueeze(1)
    if tuple(x.shape) == shape:
        return x.unsqueeze(0)
    raise InvalidValueError(
        f"the set holds {x.shape[0]} inputs of shape {tuple(x.shape[1:])}, but the network takes {shape}"
    )
