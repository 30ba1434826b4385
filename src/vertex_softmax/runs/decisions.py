"""Decide sentences some of whose words may be replaced: every combination of the given words; the result is a `Run`.

Invariant: every answer comes from one call of `certify` on exactly the `TokenChoices` it is recorded with; a sentence
is falsified only with ids that are one of its combinations and that the network misclassifies.

Every answer is a line of OUT/journal.jsonl: after an interruption the same call continues from there.

    run = decide_sentences(module, "mine", read_choices(Path("choices.json")), ("bab",), Path("out/words"))
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import time
from collections.abc import Callable, Sequence
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
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.journal import Journal, fingerprint, key_of
from vertex_softmax.runs.python_models import weights_identity
from vertex_softmax.runs.run import JOURNAL, VERDICTS, Data, Model, Run, RunSentence, claimed, finite, made, write
from vertex_softmax.runs.sentences import ChoiceSentence
from vertex_softmax.sets.loading import Loaded, read
from vertex_softmax.sets.token_choices import TokenChoices

ROUNDING = COMPARISON[torch.float64]
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
    whole = hashlib.sha256(" ".join([weights, *sorted({each.identity for each in asked})]).encode()).hexdigest()
    run = Run(
        title=f"{name} on {plan.data}: every combination of words",
        version=__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        model=Model(name, whole),
        data=Data(plan.data, (), tokens="words are replaced by given ones"),
        methods=methods,
        eps=(),
        inputs=(),
        sentences=tuple(found),
        settings={"threads": torch.get_num_threads(), "precision": "float64"},
        seconds=time.perf_counter() - begin,
    )
    write(run, out, outputs)
    return run


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

    def margin(self, logits: Tensor) -> float:
        """The least margin of the label to another class."""
        label = self.sentence.label
        others = torch.cat([logits[:label], logits[label + 1 :]])
        return float((logits[label] - others).amin())

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
        if found.counterexample is not None:
            if len(found.counterexample) != len(self.sentence.ids):
                raise InvalidValueError("its counterexample has another length")
            point = self.words.look_up(torch.tensor(found.counterexample).reshape(1, 1, -1))
            with torch.no_grad():
                logits = self.graph.evaluate(point.reshape(1, *self.graph.input.shape).to(self.graph.dtype)).flatten()
            if self.margin(logits) > 0:
                raise InvalidValueError("its counterexample is classified correctly")
