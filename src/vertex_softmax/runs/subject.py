"""The subject of a run: a model and labelled inputs, from files that are not trusted, or from Python objects.

Invariant: `Inputs` hold n finite float64 inputs (n, *shape) inside `clip`, and one label for each; or the token ids of
n sentences, with their embeddings as inputs. Two `Inputs` with the same SHA-256 have the same balls for every ε.

    subject = read_model(Path("model.onnx"), inputs)
    inputs = read_inputs("images.npz", clip=(0, 1))  # arrays `inputs` (or `images`) and `labels`; or a data set's name
"""

from __future__ import annotations

import hashlib
import io
import lzma
import math
import tokenize
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from safetensors import numpy as safetensors_numpy
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError, VertexError
from vertex_softmax.foundation.files import DAMAGED, up_to
from vertex_softmax.foundation.reading import content_of
from vertex_softmax.graph.identity import graph_identity
from vertex_softmax.graph.ir import Graph
from vertex_softmax.runs.attack import attack
from vertex_softmax.runs.demo import training
from vertex_softmax.runs.named_data import is_name, named_data, names
from vertex_softmax.runs.run import Plain, facts_of
from vertex_softmax.search.attack import Attack, pgd
from vertex_softmax.sets import InputSet, LinfBall, LpBall, TokenBall
from vertex_softmax.sets.loading import Group, Loaded, Model, read

MOST_BYTES = 1 << 31
"""The largest file in bytes, compressed and decompressed."""
MOST_NUMBERS = 1 << 28
"""The most numbers of all inputs together, which become float64."""
MOST_DIMENSIONS = 32
"""The most dimensions of an array."""
INPUTS, LABELS = ("inputs", "images", "x"), ("labels", "y")
"""The accepted names of the two arrays of a file."""
IDS = ("ids",)
"""The name of an array of token ids, which takes the place of the inputs."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Labelled inputs of a run."""

    name: str
    """the name of the data set or of the file"""
    x: Tensor
    """(n, *shape) in float64; for token ids their embeddings (n, tokens, d)"""
    labels: Tensor
    """(n,) in int64"""
    clip: tuple[float, float] | None
    """the least and the largest value of an entry; None: no limits"""
    numbers: tuple[int, ...]
    """the positions of the inputs in the data that they were taken from"""
    classes: tuple[str, ...] | None = None
    """the names of the classes"""
    norm: float = math.inf
    """the norm of the balls around the inputs: 1, 2 or inf"""
    ids: Tensor | None = None
    """the token ids (n, tokens), if the model takes ids"""
    tokens: tuple[int, ...] | None = None
    """the positions of the tokens that may move, if there are ids; None: all"""
    moving: Tensor | None = None
    """what may move of each input, if not all of it does, and not `tokens`: (n, tokens), or (n, *shape) without ids"""
    words: Mapping[int, str] | None = None
    """the texts of token ids"""

    def __len__(self) -> int:
        return len(self.x)

    def ball(self, eps: float | Tensor) -> InputSet:
        """The balls around the inputs, within `clip`; eps: one radius for all, or one each (n,).

        For token ids: a ball for each token that may move.
        """
        if self.ids is not None:
            tokens = self.tokens if self.moving is None else self.moving
            return TokenBall(self.x, eps, tokens, self.ids, p=self.norm)
        if self.moving is not None:
            each = torch.as_tensor(eps, dtype=torch.float64).reshape(-1, *[1] * (self.x.dim() - 1))
            eps = torch.where(self.moving, each, 0.0)
        if self.norm == math.inf:
            return LinfBall(self.x, eps, clip=self.clip)
        return LpBall(self.x, eps, self.norm, clip=self.clip)

    def at(self, which: Sequence[int]) -> Inputs:
        """The inputs at these positions, from 0."""
        index = torch.tensor(list(which), dtype=torch.long)
        numbers = tuple(self.numbers[i] for i in which)
        ids, moving = (None if part is None else part[index] for part in (self.ids, self.moving))
        return replace(self, x=self.x[index], labels=self.labels[index], numbers=numbers, ids=ids, moving=moving)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the inputs, their labels, `clip`, the norm, the ids and what may move of them."""
        about = (tuple(self.x.shape), self.clip, self.norm, self.ids is not None, self.tokens, self.moving is not None)
        digest = hashlib.sha256(repr(about).encode())
        for part in (self.x, self.labels, *(part for part in (self.ids, self.moving) if part is not None)):
            digest.update(part.numpy().astype(part.numpy().dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Subject:
    """The network that a run is about."""

    name: str
    graph: Graph
    """The network for inputs of one shape; attacks and pictures use it."""
    sha256: str
    """The identity of the graph, combined with that of the file if it was read from one."""
    accuracy: float | None = None
    facts: dict[str, Plain] = field(default_factory=dict)
    """further facts that the report lists"""
    original: Loaded | None = None
    """The model as it was read, with which the graph is compared on every certified input; None: the graph itself."""

    @property
    def model(self) -> Loaded | Graph:
        """The model that is certified: the original if there is one, else the graph."""
        return self.graph if self.original is None else self.original

    def groups(self, inputs: Inputs) -> list[Group]:
        """The network's graphs for some inputs: one, or several for token ids, if masks or positions depend on them."""
        if inputs.ids is None or self.original is None:
            return [Group(tuple(range(len(inputs))), self.graph)]
        return self.original.groups(inputs.ball(0.0))

    def attack(self, inputs: Inputs, eps: float | Tensor, steps: int, restarts: int) -> Attack:
        """The lowest margins that an attack reaches in the balls around the inputs."""
        how = {"steps": steps, "restarts": restarts}
        if inputs.ids is None:
            return pgd(self.graph, inputs.ball(eps), inputs.labels, **how)
        return attack(self.model, inputs.ball(eps), inputs.labels, **how)


def subject(model: Model, inputs: Inputs, name: str = "", weights: str = "") -> Subject:
    """A module, a graph or an ONNX file as the subject of a run over these inputs.

    weights: the identity of a module's weights (`python_models.weights_identity`). The graph has those that it computes
    with, and those in which ids are looked up are no part of it.
    """
    original = read(model)
    groups = original.groups(inputs.ball(0.0)[:1] if inputs.ids is None else inputs.ball(0.0))
    graph = groups[0].graph
    parts = [graph_identity(graph), *([weights] if weights else [])]
    if inputs.ids is not None:  # every sentence may have a graph of its own
        parts += [f"{graph_identity(group.graph)} {list(group.which)}" for group in groups]
    if original.identity is not None:
        parts.append(original.identity)
    identity = parts[0] if len(parts) == 1 else hashlib.sha256(" ".join(parts).encode()).hexdigest()
    return Subject(name or type(model).__name__, graph, identity, original=original)


def read_model(path: Path, inputs: Inputs) -> Subject:
    """An ONNX file (.onnx, .onnx.gz), or a model of the zoo: PATH.safetensors with PATH.json beside it."""
    beside = path.with_suffix("") if path.suffix in (".safetensors", ".json") else path
    if path.name.endswith((".onnx", ".onnx.gz")):
        if not path.is_file():
            raise InvalidValueError(f"{path} does not exist; give an ONNX file, or a model that `vertex demo` wrote")
        return subject(path, inputs, path.name)
    if beside.with_name(f"{beside.name}.json").is_file():
        module, record = training.load(beside)
        accuracy = record.get("accuracy")
        found = subject(module.double(), inputs, beside.name)
        facts = {**facts_of(record), **facts_of(record["architecture"])}
        facts = {key: value for key, value in facts.items() if key not in ("accuracy", "sha256", "checksum")}
        return replace(found, accuracy=accuracy if isinstance(accuracy, float) else None, facts=facts)
    raise InvalidValueError(
        f"{path} is not a model: give a file that ends in .onnx or .onnx.gz, or PATH if `vertex demo` wrote "
        "PATH.safetensors and PATH.json, or package.module:function or FILE.py:function, which returns a module"
    )


def read_inputs(
    data: str,
    *,
    data_dir: Path | None = None,
    clip: tuple[float, float] | None = None,
    first: int = 0,
    count: int | None = None,
    norm: float = math.inf,
) -> Inputs:
    """Read `count` inputs (all if None), from number `first` on, of a data set's evaluation part or of a file.

    norm: of the balls around them. clip: by default (0, 1) for the images of a data set, and no limits for a file.
    """
    if is_name(data):
        known = named_data(data, data_dir)
        x, labels, clip = known.eval_images, known.eval_labels, clip or (0.0, 1.0)
    else:
        path = Path(data)
        if path.suffix not in (".npz", ".safetensors"):
            raise InvalidValueError(
                f"--data is {data!r}: give one of {', '.join(names())}, or a file .npz or .safetensors with the arrays "
                "`inputs` and `labels`"
            )
        x, labels = _arrays(path)
    numbers = selected(data, len(x), first, count)
    some = slice(numbers.start, numbers.stop)
    return Inputs(Path(data).name, x[some].double(), labels[some], clip, tuple(numbers), norm=norm)


def selected(data: str, size: int, first: int, count: int | None) -> range:
    """The numbers of the inputs that --first and --count select of the `size` inputs of a data set or file."""
    if first < 0 or first >= size or (count is not None and count < 1):
        asked = f"--first {first} selects" if count is None else f"--first {first} and --count {count} select"
        raise InvalidValueError(
            f"{data} has {size} inputs, numbered from 0; {asked} none of them: give --first 0 to {size - 1}"
        )
    return range(first, size if count is None else min(size, first + count))


def _arrays(path: Path) -> tuple[Tensor, Tensor]:
    """The inputs (n, *shape) in float64 and the labels (n,) in int64 of a file."""
    x, labels = arrays_of(path, (INPUTS, LABELS))
    if x.dtype.kind not in "fiu" or x.ndim < 2 or len(x) == 0:
        raise InvalidValueError(f"{path}: the inputs are {x.dtype} of shape {x.shape}; give numbers (n, ...), n ≥ 1")
    if labels.dtype.kind not in "iu" or labels.shape != (len(x),):
        raise InvalidValueError(
            f"{path}: the labels are {labels.dtype} of shape {labels.shape}; give {len(x)} integers"
        )
    if x.dtype == np.uint8:
        raise InvalidValueError(
            f"{path}: the inputs are bytes; save what the model takes as floats, such as inputs / 255"
        )
    if x.size > MOST_NUMBERS:
        raise InvalidValueError(f"{path}: the inputs are more than {MOST_NUMBERS} numbers; give a part of them")
    if not bool((finite := np.isfinite(x.reshape(len(x), -1)).all(1)).all()):
        bad = np.flatnonzero(~finite)
        more = f" and {len(bad) - 1} more are" if len(bad) > 1 else " is"
        raise InvalidValueError(f"{path}: input {bad[0]}, counted from 0,{more} not finite; leave such rows out")
    return torch.from_numpy(x.astype(np.float64)), torch.from_numpy(labels.astype(np.int64))


def arrays_of(path: Path, names: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
    """Arrays of numbers of a file .npz or .safetensors: for each of `names` the first of these names that there is."""
    content = content_of(path, MOST_BYTES)
    every = [name for accepted in (*names, IDS) for name in accepted]
    arrays = _from_npz(path, content, every) if path.suffix == ".npz" else _from_safetensors(path, content)
    chosen = []
    for accepted in names:
        name = next((name for name in accepted if name in arrays), None)
        if name is None:
            remedy = "; for token ids say which of them may move: --tokens" if IDS[0] in arrays else ""
            raise InvalidValueError(
                f"{path} has no array {' or '.join(map(repr, accepted))}; "
                f"it has {_some_names(_names_in_npz(content) if path.suffix == '.npz' else list(arrays))}{remedy}"
            )
        chosen.append(arrays[name])
    return chosen


def _some_names(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(repr(name[:100]) for name in names[:most]) or "none") + more


def _names_in_npz(content: bytes) -> list[str]:
    """The names of all arrays of an .npz file, which `_from_npz` could open."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def _from_safetensors(path: Path, content: bytes) -> dict[str, NDArray[Any]]:
    try:
        return dict(safetensors_numpy.load(content))
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InvalidValueError(f"{path} is not a safetensors file: {error}") from error


def _from_npz(path: Path, content: bytes, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file that have these names. Nothing is unpickled; sizes in headers are not trusted."""
    arrays: dict[str, NDArray[Any]] = {}
    left = MOST_BYTES
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in dict.fromkeys(names):
                if f"{name}.npy" in archive.namelist():
                    with archive.open(f"{name}.npy") as member:
                        data = up_to(member, left + 1)
                    left -= len(data)
                    if left < 0:
                        raise InvalidValueError(f"{path} has more than {MOST_BYTES} bytes, decompressed")
                    arrays[name] = _npy(data, f"{path}, array {name!r}")
    except (*DAMAGED, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, VertexError):
            raise
        raise InvalidValueError(f"{path} is not an .npz file, or is damaged: {error}") from error
    return arrays


BAD_HEADER = (ValueError, TypeError, SyntaxError, EOFError, RecursionError, MemoryError, SystemError)
"""The exceptions that numpy raises for a bad header; Python 3.12's tokenizer raises SystemError for a zero byte."""


def _npy(content: bytes, where: str) -> NDArray[Any]:
    """The array of numbers in the bytes of an .npy file."""
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except (*BAD_HEADER, tokenize.TokenError) as error:
        raise InvalidValueError(f"{where} has a header that cannot be read: {error}") from error
    data = memoryview(content)[stream.tell() :]
    if dtype.hasobject or dtype.kind not in "fiu" or len(shape) > MOST_DIMENSIONS:
        raise InvalidValueError(f"{where} has the type {dtype}; numbers are needed")
    if any(type(n) is not int or n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise InvalidValueError(f"{where} has {len(data)} bytes, which is not shape {shape} of {dtype}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
