"""Decide sentences some of whose words may be replaced: every combination of the given words; the result is a `Run`.

Invariant: every answer comes from one call of `certify` on exactly the `TokenChoices` it is recorded with; a sentence
is falsified only with ids that are one of its combinations and that the network misclassifies.

Every answer is a line of OUT/journal.jsonl: after an interruption the same call continues from there.

    run = decide_sentences(module, "mine", read_choices(Path("choices.json")), ("bab",), Path("out/words"))
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from vertex_softmax import __version__
from vertex_softmax.foundation.errors import InvalidValueError, VertexError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.foundation.tolerances import COMPARISON
from vertex_softmax.graph.identity import graph_identity
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.attention_record import MOST_WEIGHTS, AttentionRows, require_rows
from vertex_softmax.runs.attention_rows import MOST_SENTENCES, attention_layers, weights_in
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.journal import Journal, fingerprint, key_of
from vertex_softmax.runs.python_models import weights_identity
from vertex_softmax.runs.records import made
from vertex_softmax.runs.run import JOURNAL, VERDICTS, Data, Model, Run, RunSentence, claimed, finite, write
from vertex_softmax.runs.sentences import ChoiceSentence
from vertex_softmax.sets.loading import Loaded, read
from vertex_softmax.sets.token_choices import TokenChoices

ROUNDING = COMPARISON[torch.float64]
MOST_ALONE = 4096
"""Of how many choices of a sentence the margin of each alone is told."""
Watch: TypeAlias = Callable[[str, int, int], None]
"""Called with the method, how many sentences are finished, and how many there are."""


@dataclasses.dataclass(frozen=True)
class DecisionPlan:
    """The settings of a run over choices besides its methods."""

    options: Options = dataclasses.field(default_factory=Options)
    """the options of `certify`"""
    data: str = "choices"
    """the name of the file that the sentences are from"""
    files: tuple[Path, ...] = ()
    """the files that the run reads, which are never overwritten"""
    words: Mapping[int, str] | None = None
    """the texts of token ids"""
    classes: tuple[str, ...] | None = None
    """the names of the classes"""


# More than six parameters: a public signature, of which the last two are optional.
@full_precision()
def decide_sentences(
    module: nn.Module,
    name: str,
    sentences: Sequence[ChoiceSentence],
    methods: Sequence[str],
    out: Path,
    plan: DecisionPlan | None = None,
    watch: Watch = lambda _what, _done, _total: None,
) -> Run:
    """Decide every sentence by every method; write OUT/run.json and return the run."""
    plan = plan or DecisionPlan()
    for method in methods:
        if method not in METHODS:
            raise InvalidValueError(f"method is {method!r}; choose one of {', '.join(METHODS)}")
    if not methods or not sentences:
        raise InvalidValueError("there is nothing to do: give at least one method and one sentence")
    begin, methods = time.perf_counter(), tuple(dict.fromkeys(methods))
    outputs = claimed(out, plan.files)
    original, weights = read(module), weights_identity(module)
    found: list[RunSentence] = []
    asked = [_AskedSentence.of(original, weights, sentence) for sentence in sentences]
    with Journal(out / JOURNAL, fingerprint("runs/decisions.py"), outputs=outputs) as journal:
        for method in methods:
            for done, each in enumerate(asked):
                watch(method, done, len(asked))
                key = key_of("choices", method=method, options=plan.options, **each.about)
                line = journal.once(key, each.decided, method, plan.options)
                found.append(each.validated(line, method, journal.path))
            watch(method, len(asked), len(asked))
        attention = _attention(asked, journal)
    whole = hashlib.sha256(" ".join([weights, *sorted({each.identity for each in asked})]).encode()).hexdigest()
    run = Run(
        title=f"{name} on {plan.data}: every combination of words",
        version=__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        model=Model(name, whole),
        data=Data(plan.data, (), classes=plan.classes, tokens="words are replaced by given ones"),
        methods=methods,
        eps=(),
        inputs=(),
        sentences=tuple(found),
        settings={"threads": torch.get_num_threads(), "precision": "float64"},
        seconds=time.perf_counter() - begin,
        words=_words(asked, plan.words or {}),
        attention=attention,
    )
    write(run, out, outputs)
    return run


def _words(asked: Sequence[_AskedSentence], texts: Mapping[int, str]) -> dict[str, str]:
    """The texts of all ids of the sentences and of their choices, as far as they are known."""
    ids = {i for each in asked for i in each.sentence.ids}
    ids |= {i for each in asked for some in each.words.choices[0].values() for i in some}
    return {str(i): texts[i] for i in sorted(ids) if i in texts}


def _attention(asked: Sequence[_AskedSentence], journal: Journal) -> tuple[AttentionRows, ...]:
    """The softmax rows of the first sentences, while every combination of their words is chosen."""
    found: list[AttentionRows] = []
    total = 0
    for each in asked[:MOST_SENTENCES]:
        size, number = weights_in(each.graph), each.sentence.number
        total += size
        if not size or total > MOST_WEIGHTS:
            break
        layers = journal.once(key_of("attention of choices", **each.about), each.layers)
        about = "every combination of the given words is chosen" if each.words.choices[0] else ""
        rows = made(AttentionRows, {"input": number, "about": about, "layers": layers}, f"sentence {number}")
        require_rows([rows], [number])
        found.append(rows)
    return tuple(found)


@dataclasses.dataclass(frozen=True, eq=False)
class _AskedSentence:
    """A sentence with the set of its combinations and the network's graph for it."""

    original: Loaded
    sentence: ChoiceSentence
    words: TokenChoices
    graph: Graph
    weights: str
    """the identity of the module's weights"""
    identity: str
    """the identity of the graph"""
    logits: Tensor
    """the network's output at the sentence itself, (classes,)"""

    @staticmethod
    def of(original: Loaded, weights: str, sentence: ChoiceSentence) -> _AskedSentence:
        """Hold a sentence against the network; errors name the sentence."""
        try:
            words = TokenChoices(original, torch.tensor([sentence.ids]), sentence.choices)
            alone = words.only(words.ids)
            graph = original.graph(alone)
        except VertexError as error:
            raise type(error)(f"sentence {sentence.number}: {error}") from error
        with torch.no_grad():
            logits = graph.evaluate(alone.centre.reshape(1, *graph.input.shape).to(graph.dtype)).flatten()
        if not sentence.label < len(logits):
            raise InvalidValueError(
                f"sentence {sentence.number}: label {sentence.label} is not a class; there are {len(logits)}, from 0"
            )
        return _AskedSentence(original, sentence, words, graph, weights, graph_identity(graph), logits)

    @property
    def about(self) -> dict[str, Any]:
        """What an answer depends on besides the method and its options, for the journal's key."""
        return {
            "model": self.identity,
            "weights": self.weights,
            "ids": list(self.sentence.ids),
            "label": self.sentence.label,
            "choices": [[position, list(ids)] for position, ids in sorted(self.words.choices[0].items())],
            "precision": str(self.graph.dtype),
            "device": self.graph.device.type,
            "threads": torch.get_num_threads(),
        }

    def margins(self, logits: Tensor) -> Tensor:
        """The least margins of the label to another class, (n, classes) → (n,)."""
        label = self.sentence.label
        others = torch.cat([logits[:, :label], logits[:, label + 1 :]], 1)
        return (logits[:, label, None] - others).amin(1)

    def margin(self, logits: Tensor) -> float:
        """The same of one output, (classes,)."""
        return float(self.margins(logits[None])[0])

    def layers(self) -> list[dict[str, Any]]:
        """The softmax rows of every attention, as plain JSON."""
        found = attention_layers(self.graph, self.words, moves=bool(self.words.choices[0]))
        return [dataclasses.asdict(layer) for layer in found]

    @functools.cached_property
    def alone(self) -> dict[str, tuple[float | None, ...]]:
        """For every choice the margin with this one word in place of the sentence's own; empty if there are many."""
        choices = self.words.choices[0]
        if sum(map(len, choices.values())) > MOST_ALONE:
            return {}
        found = {}
        for position, ids in choices.items():
            rows = torch.tensor([self.sentence.ids] * len(ids))
            rows[:, position] = torch.tensor(ids)
            points = self.words.look_up(rows[None])[0].to(self.graph.dtype)
            with torch.no_grad():
                logits = self.graph.evaluate(points.reshape(len(ids), *self.graph.input.shape)).flatten(1)
            found[str(position)] = tuple(map(finite, self.margins(logits).tolist()))
        return found

    def decided(self, method: str, options: Options) -> dict[str, Any]:
        """The answer of `certify`, as plain JSON."""
        begin = time.perf_counter()
        try:
            result = certify(self.original, self.words, self.sentence.label, method, options=options)
        except VertexError as error:
            raise type(error)(f"sentence {self.sentence.number}: {error}") from error
        ids = None
        if result.verdicts[0] is Verdict.FALSIFIED:
            ids = self.words.ids_of(result.counterexamples.unsqueeze(1))[0, 0].tolist()
        return {
            "verdict": str(result.verdicts[0]),
            "bound": finite(float(result.lower.amin())),
            "counterexample": ids,
            "reason": result.reasons[0],
            "seconds": time.perf_counter() - begin,
            **result.effort,
        }

    def validated(self, line: Any, method: str, path: Path) -> RunSentence:
        """A journal's answer as it is recorded; raises if it cannot be one about this sentence."""
        number, clean = self.sentence.number, self.margin(self.logits)
        where = f"{path}: the answer of {method} for sentence {number}"
        if not isinstance(line, dict):
            raise InvalidValueError(f"{where} cannot be read; remove the file")
        own = {
            "number": number,
            "ids": self.sentence.ids,
            "label": self.sentence.label,
            "predicted": int(self.logits.argmax()),
            "clean": clean,
            "replaceable": len(self.words.choices[0]),
            "combinations": str(self.words.combinations[0]),
            "method": method,
            "choices": {str(position): ids for position, ids in self.words.choices[0].items()},
            "alone": self.alone,
        }
        try:
            found = made(RunSentence, {**line, **own}, f"sentence {number}")
            self._require_possible(found)
        except InvalidValueError as error:
            raise InvalidValueError(f"{where} cannot be right ({error}); remove the file") from error
        return found

    def _require_possible(self, found: RunSentence) -> None:
        """Raise if an answer is refuted by the sentence itself, or its counterexample is none."""
        if found.verdict not in VERDICTS or (found.verdict == "falsified") != (found.counterexample is not None):
            raise InvalidValueError(f"it says {found.verdict!r}, with the counterexample {found.counterexample}")
        above = found.bound is not None and found.bound > found.clean + ROUNDING * max(1.0, abs(found.clean))
        if above or (found.verdict == "verified" and found.clean < 0):
            raise InvalidValueError(f"it is {found.verdict} by {found.bound}, and the sentence has {found.clean:g}")
        least = min((x for margins in found.alone.values() for x in margins if x is not None), default=0.0)
        if found.verdict == "verified" and least < 0:
            raise InvalidValueError(f"it is verified, and one word in place of another gives the margin {least:g}")
        if found.counterexample is not None:
            if len(found.counterexample) != len(self.sentence.ids):
                raise InvalidValueError("its counterexample has another length")
            point = self.words.look_up(torch.tensor(found.counterexample).reshape(1, 1, -1))
            with torch.no_grad():
                logits = self.graph.evaluate(point.reshape(1, *self.graph.input.shape).to(self.graph.dtype)).flatten()
            if self.margin(logits) > 0:
                raise InvalidValueError("its counterexample is classified correctly")
