"""Models that have been read: which graph represents the model for which inputs, each compared with the model itself.

Invariant: `Loaded.groups` returns a graph for an input only if the original (the user's module, run eagerly; or the
ONNX file, run by onnxruntime) agrees with the graph, up to rounding, at the input's centre and at points of its set.
Inputs share a graph only if their graphs are the same: masks, positions and indices depend on the token ids, so every
row of ids is read separately.

    model = read(module)              # once
    certify(model, ball, labels)      # as often as you like: exported once per input shape, replayed every time
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, VertexError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.graph.from_torch.module import OriginalModule, one_at_a_time
from vertex_softmax.graph.from_torch.state import state_of
from vertex_softmax.graph.identity import graph_identity
from vertex_softmax.graph.input_layout import InputLayout
from vertex_softmax.graph.ir import Graph
from vertex_softmax.sets.base import InputSet
from vertex_softmax.sets.given_graph import GivenGraph
from vertex_softmax.sets.points import points_of
from vertex_softmax.sets.product import Product
from vertex_softmax.sets.region import placed
from vertex_softmax.sets.token_choices import TokenChoices
from vertex_softmax.sets.union import Union

if TYPE_CHECKING:
    from vertex_softmax.graph.from_onnx.original import OriginalFile
    from vertex_softmax.graph.from_torch.importer import Program, Reading
    from vertex_softmax.graph.from_torch.replay import ReplayCase


@dataclasses.dataclass(frozen=True)
class Group:
    """Some inputs of a batch, by their indices `which`, and the graph that represents the model for them."""

    which: tuple[int, ...]
    graph: Graph


class Loaded(ABC):
    """A model that has been read, from which graphs for input sets are obtained."""

    identity: str | None = None
    """The identity of the ONNX file (certificate/checker/model.py); None if the model is not a file."""
    name: str = ""
    """The name of the ONNX file; empty if the model is not a file."""

    def groups(self, input_set: InputSet) -> list[Group]:
        """The simplified graphs for the inputs of a set; every input is in exactly one group.

        Of a union: the graphs of the first member's inputs, which have to be those of all members.
        """
        if not isinstance(input_set, Union):
            return self._groups(input_set)
        first, *others = [self._groups(member) for member in input_set.members]
        for k, other in enumerate(others, start=1):
            for mine, theirs, i in _side_by_side(first, other):
                if mine is not theirs and graph_identity(mine) != graph_identity(theirs):
                    raise InvalidValueError(
                        f"input {i} of set {k} needs another graph than that of set 0, as masks, positions or indices "
                        "differ with the token ids: certify the sets one by one"
                    )
        return first

    @abstractmethod
    def _groups(self, input_set: InputSet) -> list[Group]:
        """`groups` of a set that is no union."""

    def input_names(self, input_set: InputSet) -> tuple[str, ...]:  # noqa: ARG002
        """The names of a file's inputs whose numbers are joined in a product, in this order; else none."""
        return ()

    def graph(self, input_set: InputSet) -> Graph:
        """The simplified graph for all inputs of a set; an error if they need several."""
        groups = self.groups(input_set)
        if len(groups) != 1:
            raise InvalidValueError(
                f"the {len(input_set)} inputs need {len(groups)} graphs, as masks, positions or indices differ with "
                f"their token ids (inputs {groups[0].which[0]} and {groups[1].which[0]}, for instance): give the model "
                "itself to `certify` and `bound`, or one input at a time"
            )
        return groups[0].graph

    @property
    def precision(self) -> torch.dtype:
        """The precision in which the original takes its input."""
        return torch.float64

    def outputs(self, input_set: InputSet, shape: Sequence[int], points: Tensor | None = None) -> Tensor | None:  # noqa: ARG002
        """What the original itself gives at every centre, in its own precision, as float64: (batch, *output shape).

        `shape` is that of the graph's input. `points`: at these instead, (batch, *shape). None if there is no original
        besides the graph.
        """
        return None

    def rows(self, ids: Tensor) -> Tensor:  # noqa: ARG002
        """The rows (batch, tokens, d) of the embedding table at ids (batch, tokens): the input of the graph."""
        raise InvalidTypeError("only a torch.nn.Module that takes token ids has a table to look them up in")


Shapes: TypeAlias = tuple[tuple[int, ...], ...]
Model: TypeAlias = typing.Union[nn.Module, Graph, str, Path, Loaded]  # noqa: UP007 - Loaded is a class of this module


@full_precision()
def read(model: Model, *, kwargs: Mapping[str, Any] | None = None) -> Loaded:
    """Read a model, a module in eval mode, a graph, or the path of an ONNX file, for repeated use with `certify`.

    `kwargs`: further arguments of the module, the same for every input (an attention mask, for instance), in a batch
    of 1.
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
        + _remedy(model)
    )


def _remedy(model: object) -> str:
    """What may help whoever gave this in place of a model; it begins with a semicolon, or is empty."""
    if isinstance(model, type) and issubclass(model, nn.Module):
        return f"; {model.__name__} is a class: call it, and give the module that it makes"
    if isinstance(model, Mapping) and model and all(isinstance(each, torch.Tensor) for each in model.values()):
        return "; these are weights alone: load them into the module, with load_state_dict"
    return ""


def load(model: Model, input_set: InputSet) -> Graph:
    """The simplified graph of a model for the inputs of the set, compared with the model."""
    return read(model).graph(checked(input_set))


def checked(input_set: InputSet) -> InputSet:
    """The input set itself; an error if the argument is not an `InputSet`, has no inputs, or not its own centres."""
    if not isinstance(input_set, InputSet):
        raise InvalidTypeError(
            f"the input set is a {type(input_set).__name__}; give a LinfBall, a Box or a TokenBall around your inputs"
        )
    if len(input_set) == 0:
        raise InvalidValueError("the set holds no inputs: there is nothing to say about it")
    outside = ~input_set.contains(input_set.centre)
    if bool(outside.any()):
        raise InvalidValueError(
            f"the centre of input {int(outside.nonzero()[0])} is not in its set: {type(input_set).__name__} has lower "
            "and upper ends that do not fit its centre"
        )
    return input_set


def _side_by_side(first: Sequence[Group], other: Sequence[Group]) -> list[tuple[Graph, Graph, int]]:
    """The graphs of every input in two lists of groups, and the input."""
    mine, theirs = ({i: group.graph for group in groups for i in group.which} for groups in (first, other))
    return [(mine[i], theirs[i], i) for i in sorted(mine)]


class _Graph(Loaded):
    """A graph given by the user; it is the model itself, and compared with what it is simplified to."""

    def __init__(self, graph: Graph) -> None:
        self._graph = GivenGraph(graph)

    def _groups(self, input_set: InputSet) -> list[Group]:
        _refuse_ids(input_set, "a Graph is fixed at the ids it was read at, and does not know them")
        graph = self._graph.given
        if self._graph.simplified is not graph:  # the region raises if it does not fit
            input_set.region(graph.input.shape, torch.float64, torch.device("cpu"))
            graph = self._graph.at(points_of(input_set, graph.input.shape).flatten(0, 1))
        return [Group(tuple(range(len(input_set))), graph)]


def _refuse_ids(input_set: InputSet, reason: str) -> None:
    """Raise if the set has token ids, for models that cannot take them into account; `reason` says why."""
    if getattr(input_set, "ids", None) is not None:
        raise InvalidValueError(
            f"the set has token ids, and {reason}: masks and positions may be those of another sentence. Give the "
            "module itself, or read(module) of vertex_softmax.sets.loading; or leave `ids` out, if the embeddings are "
            "all that the network takes"
        )


class _File(Loaded):
    """An ONNX file: read once, simplified once (for each order of its inputs), compared with onnxruntime for every set.

    A file of one input is imported when it is read. Which order the inputs of others are joined in is the set's.
    """

    def __init__(self, path: Path) -> None:
        from vertex_softmax.graph.from_onnx.file import OnnxFile, has_open_sizes, input_names

        self.file = OnnxFile.read(path)
        self.identity, self.name = self.file.identity, path.name
        self.inputs = input_names(self.file.proto.graph)
        self.open_sizes = has_open_sizes(self.file.proto.graph)
        """Whether the sizes of its inputs are those of the set."""
        self.readings: dict[tuple[tuple[str, ...] | None, Shapes | None], tuple[OriginalFile, Graph]] = {}
        if len(self.inputs) == 1 and not self.open_sizes:
            self._reading(None, None)

    def _reading(self, order: tuple[str, ...] | None, shapes: Shapes | None) -> tuple[OriginalFile, Graph]:
        """The file with its inputs joined in an order, and its graph; None: the file's one input as it is.

        `shapes`: those of the inputs, if the file leaves them open.
        """
        from vertex_softmax.graph.from_onnx.importer import from_onnx
        from vertex_softmax.graph.from_onnx.original import OriginalFile
        from vertex_softmax.graph.simplify import simplify

        if (order, shapes) not in self.readings:
            original = OriginalFile(self.file, inputs=order, shapes=shapes)
            self.readings[order, shapes] = original, simplify(from_onnx(self.file, inputs=order, shapes=shapes))
        return self.readings[order, shapes]

    def _of(self, input_set: InputSet) -> tuple[OriginalFile, Graph]:
        """The file and the graph for a set."""
        order = self.input_names(input_set) or None
        return self._reading(order, self._shapes(input_set, order) if self.open_sizes else None)

    def _shapes(self, input_set: InputSet, order: tuple[str, ...] | None) -> Shapes:
        """The shapes that a set gives to the file's inputs, with a first dimension of 1 where the set has none."""
        some = input_set.members[0] if isinstance(input_set, Union) else input_set
        parts = some.sets if isinstance(some, Product) else (some,)
        ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in self.file.proto.graph.input}
        names = order or self.inputs
        own = [tuple(part.shape[1:]) for part in parts]
        if len(own) != len(names):
            raise InvalidValueError(f"the set is for {len(own)} inputs, and the model has {', '.join(names)}")
        return tuple(
            (1, *shape) if len(shape) == ranks[name] - 1 else shape for name, shape in zip(names, own, strict=True)
        )

    def input_names(self, input_set: InputSet) -> tuple[str, ...]:
        some = input_set.members[0] if isinstance(input_set, Union) else input_set
        return some.layout.matched(self.inputs) if isinstance(some, Product) else ()

    @full_precision()
    def _groups(self, input_set: InputSet) -> list[Group]:
        from vertex_softmax.graph.from_onnx.replay import require_same

        _refuse_ids(input_set, "an ONNX file is given numbers")
        original, graph = self._of(input_set)
        if isinstance(input_set, Product):
            _require_shapes(input_set, original)
        require_same(original, graph, points_of(input_set, graph.input.shape).flatten(0, 1))
        return [Group(tuple(range(len(input_set))), graph)]

    @property
    def precision(self) -> torch.dtype:
        return next((_torch_dtype(original) for original, _ in self.readings.values()), torch.float64)

    def outputs(self, input_set: InputSet, shape: Sequence[int], points: Tensor | None = None) -> Tensor | None:
        at = placed(input_set.centre, shape) if points is None else points
        original, _ = self._of(input_set)
        return torch.stack([torch.from_numpy(original.run(x)).double() for x in at.detach().cpu().numpy()])


def _torch_dtype(original: OriginalFile) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, dtype=original.dtype)).dtype


def _require_shapes(product: Product, original: OriginalFile) -> None:
    """Raise unless every set has the shape of its input of the file, which may have a first dimension of 1 more."""
    for each, given in zip(product.sets, original.inputs, strict=True):
        own = each.shape[1:]
        if given.shape not in (own, (1, *own)):
            raise InvalidValueError(
                f"the set of input {given.name!r} holds inputs of shape {own}, but the model takes {given.shape}"
            )


class _Module(Loaded):
    """A PyTorch module: exported once per input shape, translated once per row of token ids.

    `state` is that of the module at the last call; a module that was changed since is refused.
    """

    @one_at_a_time()
    def __init__(self, module: nn.Module, kwargs: Mapping[str, Any] | None) -> None:
        self.kwargs = kwargs
        self.original = OriginalModule(module, torch.zeros((), dtype=torch.float64), kwargs)
        self.joined: dict[InputLayout, _Module] = {}
        """The module with its inputs joined, for each layout of products."""
        self.programs: dict[tuple[object, ...], Program] = {}
        self.readings: dict[tuple[object, ...], _Reading] = {}
        self.module, self.state = module, state_of(module)

    def _of(self, input_set: InputSet) -> _Module:
        """The module for a set: itself, or with its inputs joined; a layout that is new is compared with the module."""
        some = input_set.members[0] if isinstance(input_set, Union) else input_set
        if not isinstance(some, Product):
            return self
        from vertex_softmax.graph.from_torch.joined import Joined, require_fitting, require_wired

        if some.layout not in self.joined:
            self._require_unchanged()
            require_fitting(self.module, some.layout, self.kwargs)
            found = _Module(Joined(self.module, some.layout), self.kwargs)
            require_wired(self.module, found.original, some.layout)
            found._remember()
            self.joined[some.layout] = found
        return self.joined[some.layout]

    @full_precision()
    @one_at_a_time()
    def _groups(self, input_set: InputSet) -> list[Group]:
        return self._of(input_set)._separate(input_set)

    def _separate(self, input_set: InputSet) -> list[Group]:
        """The groups of a set whose points are the inputs of this module."""
        from vertex_softmax.graph.from_torch.replay import ReplayCase, replay

        self._require_unchanged()
        ids = getattr(input_set, "ids", None)
        readings = self._readings(input_set.shape[1:], len(input_set), ids)
        if ids is not None:
            _check_centres(input_set, readings)
        indices: dict[str, list[int]] = {}
        for i, reading in enumerate(readings):
            indices.setdefault(reading.identity, []).append(i)
        groups = []
        for which in indices.values():
            reading = readings[which[0]]
            graph = reading.simplified
            points = points_of(input_set[which], graph.input.shape)
            cases = [ReplayCase(i, p, readings[i].translated.look_up) for i, p in zip(which, points, strict=True)]
            if isinstance(input_set, TokenChoices):
                cases += [case for i in which for case in self._combinations(input_set, i, reading)]
            replay(graph, reading.translated, self.original, cases, batches=True)
            groups.append(Group(tuple(which), graph))
        self._remember()
        return groups

    def _combinations(self, words: TokenChoices, i: int, reading: _Reading) -> list[ReplayCase]:
        """Combinations of the ids of input i at which the module itself looks them up; every choice is among them.

        A module may read its ids elsewhere than in the table (masks, positions). Only comparisons of single ids with
        constants are allowed: if they are the same at every choice of each token, they are for all combinations.
        """
        from vertex_softmax.graph.from_torch.replay import ReplayCase

        others, values = reading.translated.other_uses()
        if others:
            raise InvalidValueError(
                f"the module uses its ids in {others[0]} too, and not only in its table of embeddings: what it computes"
                " there may differ between combinations of words. Give a module that takes the ids for its table alone"
            )
        cases, some = [], words.cover(i)
        for ids, other in zip(some, self._readings((), len(some), some), strict=True):
            pairs = zip(values, other.translated.other_uses()[1], strict=True)
            if other.identity != reading.identity or not all(torch.equal(*pair) for pair in pairs):
                changed = {int(t): int(ids[t]) for t in (ids != words.ids[i].cpu()).nonzero().flatten()}
                raise InvalidValueError(
                    f"input {i}: the module reads its ids elsewhere than in its table of embeddings too (a mask of "
                    f"padding, for instance), and with the ids {changed} (by position) what it reads there is not the "
                    "same as for the sentence itself: leave choices out that it treats differently"
                )
            point = other.start.reshape(1, *reading.simplified.input.shape)
            cases.append(ReplayCase(i, point, other.translated.look_up))
        return cases

    def _remember(self) -> None:
        """The module as it is now is the one that was read: running it may change buffers (a cache, for instance)."""
        self.state = state_of(self.module)

    def _require_unchanged(self) -> None:
        if state_of(self.module) != self.state:
            raise InvalidValueError(
                "the module has changed since it was read (its weights, buffers, submodules, settings or hooks): read "
                "it again"
            )

    @property
    def precision(self) -> torch.dtype:
        return next(iter(self.joined.values()), self).original.kinds[0]

    @full_precision()
    @one_at_a_time()
    def outputs(self, input_set: InputSet, shape: Sequence[int], points: Tensor | None = None) -> Tensor | None:
        return self._of(input_set)._values(input_set, shape, points)

    def _values(self, input_set: InputSet, shape: Sequence[int], points: Tensor | None) -> Tensor:
        self._require_unchanged()
        at = (placed(input_set.centre, shape) if points is None else points).detach().cpu()
        readings = self._readings(input_set.shape[1:], len(at), getattr(input_set, "ids", None))
        pairs, moved = zip(at, readings, strict=True), points is not None
        found = [self.original.own_at(x, r.translated.look_up, moved=moved)[0] for x, r in pairs]
        self._remember()
        return torch.stack(found)

    @full_precision()
    @one_at_a_time()
    def rows(self, ids: Tensor) -> Tensor:
        self._require_unchanged()
        readings = self._readings((), len(ids), ids)
        return torch.cat([reading.start.reshape(1, ids.shape[1], -1) for reading in readings])

    def _readings(self, shape: Sequence[int], count: int, ids: Tensor | None) -> list[_Reading]:
        """One reading per input, the same object for the same ids. `shape` is the input's; ids are (count, tokens)."""
        if ids is None:
            return [self._reading(torch.zeros(1, *shape, dtype=torch.float64), "input")] * count
        rows = ids.cpu().long()
        return [self._reading_of_row(rows, i) for i in range(count)]

    def _reading_of_row(self, rows: Tensor, i: int) -> _Reading:
        """The reading at row i of the ids; errors name the row."""
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


class _Reading:
    """The graph translated from a module at one row of ids, its identity and its simplified form.

    `start` is the graph's input there: the looked-up embeddings, or zeros for a module that takes numbers.
    """

    def __init__(self, translated: Reading) -> None:
        self.translated = translated
        self.identity: str = graph_identity(translated.graph)
        self.start: Tensor = translated.start

    @functools.cached_property
    def simplified(self) -> Graph:
        """The graph that is bounded."""
        from vertex_softmax.graph.simplify import simplify

        return simplify(self.translated.graph)


def _check_centres(input_set: InputSet, readings: Sequence[_Reading]) -> None:
    """Raise unless the centre of every set with ids is exactly the embeddings of its ids."""
    for i, (centre, reading) in enumerate(zip(input_set.centre.cpu(), readings, strict=True)):
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
