"""A run as one JSON file, RUN/run.json: the inputs, every answer, every attack; the report is made from it alone.

Invariant: a run that `read` returns is complete and consistent: every number is finite or None, every input, method and
ε that is referred to exists, and every picture has as many entries as the inputs' shape says. The file is not trusted:
its size is limited, and whatever does not fit is an error that names it.

    run = read(Path("out/demo"))
    run.rate("joint", 0.08)       # the share of inputs certified; misclassified inputs count as not certified
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import read_whole, write_whole
from vertex_softmax.foundation.outputs import Outputs
from vertex_softmax.runs.attention_record import AttentionRows, require_rows
from vertex_softmax.runs.parts import PartRadius, Parts, require_parts
from vertex_softmax.runs.records import fields_of, made, unpacked

FORMAT = "vertex-run/1"
NAME = "run.json"
"""The name of the file in the run's folder."""
JOURNAL = "journal.jsonl"
"""The name of the journal of finished pieces in the run's folder."""
MOST_BYTES = 1 << 30
"""The largest run.json that is read."""
MOST_METHODS, MOST_EPS = 64, 4096
"""The most methods and ε of a run: a page has a curve for every method, and a point on it for every ε."""
VERDICTS = ("verified", "falsified", "unknown")
NORMS = {"inf": "ℓ∞", "2": "ℓ2", "1": "ℓ1"}
"""The norms of balls, and how they are shown."""

Plain = str | int | float | bool | None


@dataclasses.dataclass(frozen=True)
class Model:
    """The model that a run is about."""

    name: str
    sha256: str = ""
    accuracy: float | None = None
    facts: dict[str, Plain] = dataclasses.field(default_factory=dict)
    """further facts that the report lists, such as the architecture and the training"""


@dataclasses.dataclass(frozen=True)
class Data:
    """The data set that the inputs of a run come from."""

    name: str
    shape: tuple[int, ...]
    """the shape of one input"""
    clip: tuple[float, float] | None = None
    """the least and the largest value of an input's entries; None: no limits"""
    classes: tuple[str, ...] | None = None
    """the names of the classes"""
    norm: str = "inf"
    """the norm of the balls around the inputs, one of NORMS"""
    tokens: str | None = None
    """which tokens may move, in words, if the inputs are embeddings of token ids"""


@dataclasses.dataclass(frozen=True)
class RunInput:
    """One input of a run, with what the network makes of it."""

    index: int
    """its number in the data set"""
    label: int
    predicted: int
    clean: float
    """the least margin of the label at the input itself; below 0 where it is misclassified"""
    pixels: str
    """its numbers as text (`packed`)"""
    ids: tuple[int, ...] | None = None
    """the token ids whose embeddings the numbers are"""


@dataclasses.dataclass(frozen=True)
class RunAnswer:
    """The answer of a method for one input at one ε."""

    input: int
    """its position in `Run.inputs`, from 0"""
    method: str
    eps: float
    verdict: str
    """one of VERDICTS"""
    bound: float | None
    """the least lower bound of the margins; None if it is not finite"""
    target: int
    """the class of that margin: label minus target"""
    seconds: float
    reason: str = ""
    """why it is not verified, and what may help"""


@dataclasses.dataclass(frozen=True)
class Attacked:
    """The least margin that the attack reached on an input at an ε."""

    input: int
    eps: float
    margin: float
    target: int
    adversarial: str | None = None
    """a misclassified input of the set as text (`packed`); recorded at the smallest ε at which there is one"""


@dataclasses.dataclass(frozen=True)
class Radius:
    """The largest ε at which a method certifies an input, as far as bisection looked."""

    input: int
    method: str
    certified: float
    """0 if no ε that was tried is certified"""
    refused: float | None
    """the least ε tried that is not certified; None if all are"""
    attacked: float | None
    """the least ε tried at which the attack fooled the network; None if there is none"""
    seconds: float


@dataclasses.dataclass(frozen=True)
class RunSentence:
    """The answer of a method for one sentence some of whose words may be replaced."""

    number: int
    """its position in the file"""
    ids: tuple[int, ...]
    label: int
    predicted: int
    clean: float
    """the least margin of the label at the sentence itself; below 0 where it is misclassified"""
    replaceable: int
    """how many words have a choice"""
    combinations: str
    """how many sentences there are, the sentence itself included, in decimal digits"""
    method: str
    verdict: str
    """one of VERDICTS"""
    bound: float | None
    """the least lower bound of the margins over all combinations; None if it is not finite"""
    seconds: float
    counterexample: tuple[int, ...] | None = None
    """the ids of a combination that is misclassified, if it is falsified"""
    reason: str = ""
    choices: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    """by position, in decimal digits: the ids that may stand there, the word itself first"""
    alone: dict[str, tuple[float | None, ...]] = dataclasses.field(default_factory=dict)
    """by position, for each of its choices: the least margin with this one word in place of the sentence's own; None
    if it is not finite, and empty if there are too many choices"""
    parts: int | None = None
    """how many sets of combinations were bounded, if the method branches on words"""
    evaluated: int | None = None
    """how many combinations were evaluated, if the method branches on words"""


@dataclasses.dataclass(frozen=True)
class AttentionHeads:
    """The slack of the bound of one attention op, by heads and rows; means over the inputs."""

    name: str
    row_slack: list[list[float]]
    """heads × rows: the difference of the row's value and its bound, at the corner where the bound is least"""
    score_width: list[list[list[float]]]
    """heads × rows × keys: upper minus lower end of the score"""


@dataclasses.dataclass(frozen=True)
class OtherSlack:
    """The slack of the bound of an op that is not attention; mean over the inputs."""

    name: str
    op: str
    slack: float


@dataclasses.dataclass(frozen=True)
class SlackMap:
    """The slack of the worst target's bound, op by op; the parts add up to `total`."""

    eps: float
    method: str
    inputs: int
    """the number of inputs that the means are taken over"""
    total: float
    attentions: tuple[AttentionHeads, ...]
    others: tuple[OtherSlack, ...]


@dataclasses.dataclass(frozen=True)
class Run:
    """The result of certifying and attacking many inputs of one model, or of searching their certified radii.

    Invariant: every answer, attack and radius refers to an input, a method and an ε of the run, at most once each.
    """

    title: str
    version: str
    """the version of Vertex that made the run"""
    created: str
    """the time (UTC) in ISO 8601"""
    model: Model
    data: Data
    methods: tuple[str, ...]
    eps: tuple[float, ...]
    """the ε that were asked about, ascending; empty for a search for radii"""
    inputs: tuple[RunInput, ...]
    answers: tuple[RunAnswer, ...] = ()
    attacks: tuple[Attacked, ...] = ()
    radii: tuple[Radius, ...] = ()
    slack: SlackMap | None = None
    settings: dict[str, Plain] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    sentences: tuple[RunSentence, ...] = ()
    """the answers of a run over choices of words, which has no inputs and no ε"""
    parts: Parts | None = None
    """what moves alone, in a search for radii of parts"""
    part_radii: tuple[PartRadius, ...] = ()
    words: dict[str, str] = dataclasses.field(default_factory=dict)
    """by token id, in decimal digits: its text, as the vocabulary has it"""
    attention: tuple[AttentionRows, ...] = ()

    def rate(self, method: str, eps: float) -> float | None:
        """The share of all inputs that are certified; None unless the method has an answer for every input."""
        certified = [a.verdict == "verified" for a in self.answers if a.method == method and a.eps == eps]
        return sum(certified) / len(certified) if len(certified) == len(self.inputs) else None

    def ceiling(self, eps: float) -> float | None:
        """The share of inputs that the attack did not fool: no rate can be higher. None unless all were attacked."""
        robust = [a.margin > 0 for a in self.attacks if a.eps == eps]
        return sum(robust) / len(robust) if len(robust) == len(self.inputs) else None

    def certified_accuracy(self, method: str, eps: float) -> float | None:
        """The share of inputs whose radius is at least ε; None unless the method has a radius for every input."""
        certified = [r.certified >= eps and r.certified > 0 for r in self.radii if r.method == method]
        return sum(certified) / len(certified) if len(certified) == len(self.inputs) else None

    def json(self) -> dict[str, Any]:
        """The run as plain JSON: the content of run.json."""
        return {"format": FORMAT, **dataclasses.asdict(self)}


def norm_sign(norm: float) -> str:
    """How a norm, 1, 2 or inf, is shown."""
    return NORMS[f"{norm:g}"]


def claimed(folder: Path, files: Sequence[Path] = ()) -> Outputs:
    """The output files of a run in this folder; raises if one of them is among `files`, which the run reads."""
    outputs = Outputs(files)
    for name in (JOURNAL, NAME):
        outputs.claim(folder / name)
    return outputs


def write(run: Run, folder: Path, outputs: Outputs | None = None) -> Path:
    """Write FOLDER/run.json atomically; return its path."""
    try:
        return write_whole(folder / NAME, json.dumps(run.json(), allow_nan=False).encode(), outputs)
    except OSError as error:
        raise InvalidValueError(
            f"{folder / NAME} cannot be written ({error.strerror}); choose another folder"
        ) from error


def read(path: Path) -> Run:
    """Read the run in a folder, or the file itself, and check that it is consistent."""
    file = path / NAME if path.is_dir() else path
    remedy = "give the folder that `vertex demo`, `vertex certify` or `vertex radius` wrote"
    text = read_whole(file, MOST_BYTES, remedy)
    try:
        run = made(Run, fields_of(text, FORMAT), "run")
        _require_consistent(run)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{file} is not a run of Vertex: {error}") from error
    return run


def _require_consistent(run: Run) -> None:
    """Raise unless all references of a run exist and all pictures have the inputs' shape."""
    if any(n < 1 for n in run.data.shape) or math.prod(run.data.shape) > 1 << 24:
        raise InvalidValueError(f"the inputs' shape is {list(run.data.shape)}")
    if len(run.methods) > MOST_METHODS or len(run.eps) > MOST_EPS:
        raise InvalidValueError(
            f"it has {len(run.methods)} methods and {len(run.eps)} ε; at most {MOST_METHODS} and {MOST_EPS} are read"
        )
    if run.data.norm not in NORMS:
        raise InvalidValueError(f"the norm {run.data.norm!r} is unknown")
    parts: tuple[Sequence[Any], ...] = (run.answers, run.attacks, run.radii)
    if bad := {x.input for part in parts for x in part} - set(range(len(run.inputs))):
        raise InvalidValueError(f"there is no input {min(bad)}")
    if unknown := ({a.method for a in run.answers} | {r.method for r in run.radii}) - set(run.methods):
        raise InvalidValueError(f"the method {min(unknown)!r} is not among the run's")
    if other := ({a.eps for a in run.answers} | {a.eps for a in run.attacks}) - set(run.eps):
        raise InvalidValueError(f"ε = {min(other)} is not among the run's")
    if verdict := next((a.verdict for a in run.answers if a.verdict not in VERDICTS), None):
        raise InvalidValueError(f"the verdict {verdict!r} is unknown")
    _require_unique(run)
    for sentence in run.sentences:
        _require_sentence(sentence, run.methods)
    require_parts(run.parts, run.part_radii, run.data.shape, run.methods, len(run.inputs))
    if run.parts is not None and any((x.ids is None) == (run.parts.kind == "tokens") for x in run.inputs):
        raise InvalidValueError(
            f"the parts are {run.parts.kind}, which does not fit the inputs: only words have token ids"
        )
    if run.parts is not None and (run.answers or run.attacks or run.radii or run.sentences or run.slack):
        raise InvalidValueError("a search for radii of parts has answers of another kind")
    if run.sentences and run.inputs:
        raise InvalidValueError("a run over choices of words has inputs")
    numbers = [s.number for s in run.sentences] if run.sentences else range(len(run.inputs))
    require_rows(run.attention, numbers)
    _require_words(run)
    if run.slack is not None:
        for heads in run.slack.attentions:
            _require_rectangular(heads)
    pictures = [x.pixels for x in run.inputs] + [a.adversarial for a in run.attacks if a.adversarial is not None]
    for text in pictures:
        unpacked(text, run.data.shape)


def _require_sentence(sentence: RunSentence, methods: Sequence[str]) -> None:
    """Raise unless the answer is one of these methods, and has a counterexample exactly if it is falsified."""
    where, found = f"sentence {sentence.number}", sentence.counterexample
    if sentence.method not in methods or sentence.verdict not in VERDICTS:
        raise InvalidValueError(f"{where} has the unknown method {sentence.method!r} or verdict {sentence.verdict!r}")
    if (sentence.verdict == "falsified") != (found is not None):
        raise InvalidValueError(f"{where} is {sentence.verdict}, which does not fit its counterexample")
    if found is not None and len(found) != len(sentence.ids):
        raise InvalidValueError(f"{where} has {len(sentence.ids)} tokens and a counterexample of {len(found)}")
    if not (sentence.combinations.isascii() and sentence.combinations.isdigit()):
        raise InvalidValueError(f"{where} has {sentence.combinations[:40]!r} combinations, which is no number")
    _require_choices(sentence, where)


def _require_choices(sentence: RunSentence, where: str) -> None:
    """Raise unless choices are at positions of the sentence, its own word first, and the margins are theirs."""
    for position, ids in sentence.choices.items():
        if not _is_number(position) or int(position) >= len(sentence.ids) or not ids:
            raise InvalidValueError(f"{where} has choices at {position[:40]!r}, which is no position, or none there")
        if ids[0] != sentence.ids[int(position)] or len(set(ids)) < len(ids):
            raise InvalidValueError(f"{where} has choices at {position} that do not begin with its word, or one twice")
    for position, margins in sentence.alone.items():
        if len(margins) != len(sentence.choices.get(position, ())):
            raise InvalidValueError(f"{where} has {len(margins)} margins at {position[:40]!r}, and not as many choices")
    if min(sentence.parts or 0, sentence.evaluated or 0) < 0:
        raise InvalidValueError(f"{where} has tried less than nothing")


def _require_words(run: Run) -> None:
    """Raise unless all words are of token ids, and all ids of a run over words are whole numbers from 0."""
    if bad := [key for key in run.words if not _is_number(key)]:
        raise InvalidValueError(f"words has {bad[0][:40]!r}, which is no token id")
    for x in run.inputs:
        if x.ids is not None and (run.data.shape[:1] != (len(x.ids),) or min(x.ids, default=0) < 0):
            raise InvalidValueError(f"input {x.index} has {len(x.ids)} token ids; its shape is {list(run.data.shape)}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 16


def _require_unique(run: Run) -> None:
    """Raise if a run has two answers, attacks or radii for the same question, or ε that do not ascend."""
    keys_by_name: dict[str, list[Any]] = {
        "methods": list(run.methods),
        "answers": [(a.input, a.method, a.eps) for a in run.answers],
        "attacks": [(a.input, a.eps) for a in run.attacks],
        "radii": [(r.input, r.method) for r in run.radii],
        "sentences": [(s.number, s.method) for s in run.sentences],
    }
    for name, keys in keys_by_name.items():
        if len(set(keys)) < len(keys):
            raise InvalidValueError(f"{name} has the same entry twice")
    if any(a >= b for a, b in itertools.pairwise((-math.inf, *run.eps))):
        raise InvalidValueError(f"eps is {list(run.eps)}, which does not ascend")


def _require_rectangular(heads: AttentionHeads) -> None:
    """Raise unless all heads have the same number of rows and all rows the same number of keys, at least one each."""
    rows = {len(row) for row in heads.row_slack} | {len(head) for head in heads.score_width}
    keys = {len(row) for head in heads.score_width for row in head}
    if len(heads.row_slack) != len(heads.score_width) or len(rows) != 1 or len(keys) != 1 or 0 in rows | keys:
        raise InvalidValueError(f"the slack of {heads.name!r} is not heads × rows, or its widths heads × rows × keys")


def finite(x: float) -> float | None:
    """The number if it is finite, else None."""
    return x if math.isfinite(x) else None


def facts_of(values: Mapping[str, Any]) -> dict[str, Plain]:
    """The entries of a mapping whose values are text, numbers, booleans or None."""
    return {key: value for key, value in values.items() if isinstance(value, str | int | float | bool | NoneType)}
