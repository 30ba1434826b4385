"""A run as one JSON file, RUN/run.json: the inputs, every answer, every attack; all that the report shows is in it.

Invariant: what `read` returns is whole: every number is finite or None, every reference points to an input, a method or
an ε that is there, and every picture has as many entries as the inputs' shape says. The file is nobody's word: its size
is limited, and what does not fit is an error that names it.

    run = read(Path("out/demo"))
    run.rate("joint", 0.08)                         # the share of inputs certified: wrong ones count, as not certified
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import read_whole, write_whole
from vertex_softmax.foundation.outputs import Outputs

FORMAT = "vertex-run/1"
NAME = "run.json"
JOURNAL = "journal.jsonl"
MOST_BYTES = 1 << 30
MOST_METHODS, MOST_EPS = 64, 4096
"""Pages have a curve for every method, and a point on it for every ε."""
VERDICTS = ("verified", "falsified", "unknown")

Floats = NDArray[np.float64]
Plain = str | int | float | bool | None
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Model:
    """What was asked about."""

    name: str
    sha256: str = ""
    accuracy: float | None = None
    facts: dict[str, Plain] = dataclasses.field(default_factory=dict)
    """what a reader may want to know of it, in words and numbers"""


@dataclasses.dataclass(frozen=True)
class Data:
    """Where the inputs come from."""

    name: str
    shape: tuple[int, ...]
    """of one input"""
    clip: tuple[float, float] | None = None
    classes: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Input:
    """One input."""

    index: int
    """in the data"""
    label: int
    predicted: int
    clean: float
    """the least margin of the label at the input itself; below 0 where it is misclassified"""
    pixels: str
    """`packed`"""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a method says of an input at an ε."""

    input: int
    """in `Run.inputs`, from 0"""
    method: str
    eps: float
    verdict: str
    bound: float | None
    """the least margin bound; None if it is not finite"""
    target: int
    """the class which that margin is to"""
    seconds: float
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Attacked:
    """The least margin that the attack reached on an input at an ε."""

    input: int
    eps: float
    margin: float
    target: int
    adversarial: str | None = None
    """`packed`: an input of the set that is misclassified, kept at the smallest ε that has one"""


@dataclasses.dataclass(frozen=True)
class Radius:
    """The largest ε at which a method certifies an input, as far as bisection looked."""

    input: int
    method: str
    certified: float
    """0: at no ε that was tried"""
    refused: float | None
    """the least ε tried that is not certified; None: all were"""
    attacked: float | None
    """the least ε tried at which the attack fooled the network; None: at none"""
    seconds: float


@dataclasses.dataclass(frozen=True)
class Heads:
    """Where the bound of one attention loses; means over the inputs."""

    name: str
    row_slack: list[list[float]]
    """heads × rows: what lies between the row's value and its bound, at the corner where the bound is least"""
    score_width: list[list[list[float]]]
    """heads × rows × keys: upper minus lower end of the score"""


@dataclasses.dataclass(frozen=True)
class OtherSlack:
    """What another op loses; mean over the inputs."""

    name: str
    op: str
    slack: float


@dataclasses.dataclass(frozen=True)
class SlackMap:
    """Where the slack of the worst target's bound is, op by op; the parts add up to `total`."""

    eps: float
    method: str
    inputs: int
    """over how many inputs the means are"""
    total: float
    attentions: tuple[Heads, ...]
    others: tuple[OtherSlack, ...]


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything."""

    title: str
    version: str
    created: str
    """UTC, as ISO 8601 writes it"""
    model: Model
    data: Data
    methods: tuple[str, ...]
    eps: tuple[float, ...]
    """ascending; of a search for radii: those at which its curve has a step, none"""
    inputs: tuple[Input, ...]
    answers: tuple[Answer, ...] = ()
    attacks: tuple[Attacked, ...] = ()
    radii: tuple[Radius, ...] = ()
    slack: SlackMap | None = None
    settings: dict[str, Plain] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def rate(self, method: str, eps: float) -> float | None:
        """The share of all inputs that are certified; None if the method was not asked about every input."""
        said = [a.verdict == "verified" for a in self.answers if a.method == method and a.eps == eps]
        return sum(said) / len(said) if len(said) == len(self.inputs) else None

    def ceiling(self, eps: float) -> float | None:
        """The share that the attack did not fool, which no rate can exceed; None if not every input was attacked."""
        said = [a.margin > 0 for a in self.attacks if a.eps == eps]
        return sum(said) / len(said) if len(said) == len(self.inputs) else None

    def certified_accuracy(self, method: str, eps: float) -> float | None:
        """The share of inputs whose radius is at least ε; None if the method's radii are not all there."""
        held = [r.certified >= eps and r.certified > 0 for r in self.radii if r.method == method]
        return sum(held) / len(held) if len(held) == len(self.inputs) else None

    def json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"format": FORMAT, **dataclasses.asdict(self)}


def packed(x: Any) -> str:
    """Numbers as text: base64 of little-endian float64. x: an array or a tensor on the CPU."""
    return base64.b64encode(np.ascontiguousarray(x, dtype="<f8").tobytes()).decode()


def unpacked(text: str, shape: Sequence[int]) -> Floats:
    """The array that was packed."""
    try:
        found = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8")
    except (binascii.Error, ValueError) as error:
        raise InvalidValueError(f"a picture is not base64 of float64 numbers: {error}") from error
    if found.size != math.prod(shape) or not bool(np.isfinite(found).all()):
        raise InvalidValueError(f"a picture has {found.size} numbers, or one that is not finite; its shape is {shape}")
    return found.reshape(tuple(shape)).astype(np.float64)


def claimed(folder: Path, files: Sequence[Path] = ()) -> Outputs:
    """What a run writes in this folder, refused now where it would take the place of one of the files it reads."""
    outputs = Outputs(files)
    for name in (JOURNAL, NAME):
        outputs.claim(folder / name)
    return outputs


def write(run: Run, folder: Path, outputs: Outputs | None = None) -> Path:
    """Write FOLDER/run.json, whole or not at all; return its path."""
    try:
        return write_whole(folder / NAME, json.dumps(run.json(), allow_nan=False).encode(), outputs)
    except OSError as error:
        raise InvalidValueError(
            f"{folder / NAME} cannot be written ({error.strerror}); choose another folder"
        ) from error


def read(path: Path) -> Run:
    """The run in a folder, or in the file itself."""
    place = path / NAME if path.is_dir() else path
    remedy = "give the folder that `vertex demo`, `vertex certify` or `vertex radius` wrote"
    text = read_whole(place, MOST_BYTES, remedy)
    try:
        data = json.loads(text, parse_constant=_refuse)
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise InvalidValueError(f"its format is not {FORMAT!r}")
        run = made(Run, data, "run")
        _consistent(run)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{place} is not a run of Vertex: {error}") from error
    return run


def _refuse(text: str) -> float:
    raise InvalidValueError(f"it has the number {text}")


def _made(kind: Any, value: Any, where: str) -> Any:
    """The value as the type says: dataclasses from objects, tuples and lists from arrays, numbers finite."""
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return made(kind, value, where)  # type: ignore[arg-type]
    if origin in (UnionType, Union):
        if value is None and NoneType in arguments:
            return None
        rest = [option for option in arguments if option is not NoneType]
        if len(rest) == 1:
            return _made(rest[0], value, where)
        if isinstance(value, bool | str) or (isinstance(value, int | float) and abs(value) <= 1e300):
            return value
    elif origin in (tuple, list) and isinstance(value, list | tuple):
        fixed = origin is tuple and Ellipsis not in arguments
        if fixed and len(value) != len(arguments):
            raise InvalidValueError(f"{where} has {len(value)} entries, not {len(arguments)}")
        return origin(_made(arguments[i if fixed else 0], x, f"{where}[{i}]") for i, x in enumerate(value))
    elif origin is dict and isinstance(value, dict):
        return {key: _made(arguments[1], x, f"{where}.{key}") for key, x in value.items()}
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) <= 1e300:
            return float(value)
    elif kind is int and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < 1 << 53:
            return value
    elif kind is str and isinstance(value, str):
        return value
    raise InvalidValueError(f"{where} is not of the kind it must be")


@cache
def _kinds(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def made(kind: type[T], value: Any, where: str) -> T:
    """A dataclass of this module from plain JSON; what does not fit is an error that names it."""
    if not isinstance(value, dict):
        raise InvalidValueError(f"{where} is not an object")
    kinds = _kinds(cast(type, kind))
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := [name for name in value if name not in fields]:
        raise InvalidValueError(f"{where} has {unknown[0]!r}, which is unknown")
    for name, f in fields.items():
        needed = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if needed and name not in value:
            raise InvalidValueError(f"{where} lacks {name!r}")
    return kind(**{name: _made(kinds[name], x, f"{where}.{name}") for name, x in value.items()})


def _consistent(run: Run) -> None:
    """Everything that points somewhere points to what is there, and pictures have their size."""
    if any(n < 1 for n in run.data.shape) or math.prod(run.data.shape) > 1 << 24:
        raise InvalidValueError(f"the inputs' shape is {list(run.data.shape)}")
    if len(run.methods) > MOST_METHODS or len(run.eps) > MOST_EPS:
        raise InvalidValueError(
            f"it has {len(run.methods)} methods and {len(run.eps)} ε; {MOST_METHODS} and {MOST_EPS} are read"
        )
    parts: tuple[Sequence[Any], ...] = (run.answers, run.attacks, run.radii)
    if bad := {x.input for part in parts for x in part} - set(range(len(run.inputs))):
        raise InvalidValueError(f"there is no input {min(bad)}")
    if unknown := ({a.method for a in run.answers} | {r.method for r in run.radii}) - set(run.methods):
        raise InvalidValueError(f"the method {min(unknown)!r} is not among the run's")
    if other := ({a.eps for a in run.answers} | {a.eps for a in run.attacks}) - set(run.eps):
        raise InvalidValueError(f"ε = {min(other)} is not among the run's")
    if verdict := next((a.verdict for a in run.answers if a.verdict not in VERDICTS), None):
        raise InvalidValueError(f"the verdict {verdict!r} is unknown")
    _once(run)
    if run.slack is not None:
        for part in run.slack.attentions:
            _rectangular(part)
    pictures = [x.pixels for x in run.inputs] + [a.adversarial for a in run.attacks if a.adversarial is not None]
    for text in pictures:
        unpacked(text, run.data.shape)


def _once(run: Run) -> None:
    """Nothing is said twice: a rate counts every input once; and ε ascend."""
    said: dict[str, list[Any]] = {
        "methods": list(run.methods),
        "answers": [(a.input, a.method, a.eps) for a in run.answers],
        "attacks": [(a.input, a.eps) for a in run.attacks],
        "radii": [(r.input, r.method) for r in run.radii],
    }
    for name, keys in said.items():
        if len(set(keys)) < len(keys):
            raise InvalidValueError(f"{name} has the same twice")
    if any(a >= b for a, b in itertools.pairwise((-math.inf, *run.eps))):
        raise InvalidValueError(f"eps is {list(run.eps)}, which does not ascend")


def _rectangular(heads: Heads) -> None:
    """As many rows in every head, as many keys in every row; at least one of each."""
    rows = {len(row) for row in heads.row_slack} | {len(head) for head in heads.score_width}
    keys = {len(row) for head in heads.score_width for row in head}
    if len(heads.row_slack) != len(heads.score_width) or len(rows) != 1 or len(keys) != 1 or 0 in rows | keys:
        raise InvalidValueError(f"the slack of {heads.name!r} is not heads × rows, or its widths heads × rows × keys")


def finite(x: float) -> float | None:
    """The number if it is one."""
    return x if math.isfinite(x) else None


def facts_of(values: Mapping[str, Any]) -> dict[str, Plain]:
    """The plain values of a mapping."""
    return {key: value for key, value in values.items() if isinstance(value, str | int | float | bool | NoneType)}
