"""The largest certified ε of every input, by bisection over all inputs at once.

Invariant: `certified` is 0, or an ε whose ball `certify` verified; all smaller balls lie inside it. `attacked` is an ε
at which a misclassified input of the ball was found. So certified < attacked, always.

Bisection is on a logarithmic scale, each input at its own ε; inputs whose bracket is narrow enough are left out. The
cheap bounds come first: the attack bounds the radius from above, `crown` (no stronger method is below it) from below.

    run = radii(read_model(path, inputs), inputs, ("joint",), Path("out/radius"))
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from vertex_softmax import __version__
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.runs.attention_rows import MovingSentence, kept_rows
from vertex_softmax.runs.bisection import CHEAP, STRONGER, Bisection, Bracket
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.evaluate import (
    PIECE,
    asked_of,
    described,
    inputs_of,
    moving_in_words,
    sets_in_words,
    words_in,
)
from vertex_softmax.runs.journal import Journal, fingerprint, key_of
from vertex_softmax.runs.run import JOURNAL, Model, Plain, Radius, Run, RunInput, claimed, norm_sign, write
from vertex_softmax.runs.subject import Inputs, Subject

Watch: TypeAlias = Callable[[str, int, int], None]
"""Called with the method, how many inputs are finished, and how many there are."""


# More than six parameters: a public signature, of which the last four are optional.
@full_precision()
def radii(
    subject: Subject,
    inputs: Inputs,
    methods: Sequence[str],
    out: Path,
    how: Bisection | None = None,
    options: Options | None = None,
    watch: Watch = lambda _what, _done, _total: None,
    files: Sequence[Path] = (),
) -> Run:
    """The radius of every input by every method; write OUT/run.json and return the run. A misclassified input has 0.

    `files`: the files that the run reads, which are never overwritten.
    """
    how = how or Bisection()
    require_methods(methods)
    begin = time.perf_counter()
    outputs = claimed(out, files)
    shown = inputs_of(subject, inputs)
    with Journal(out / JOURNAL, fingerprint("runs/radius.py"), outputs=outputs) as journal:
        search = RadiusBisection(
            subject, inputs, how, dataclasses.replace(options or Options(), goal=0.0), journal, watch
        )
        found = [radius for method in dict.fromkeys(methods) for radius in search.radii(method, shown)]
        best = {i: max(r.certified for r in found if r.input == i) for i in range(len(inputs))}
        what = f"{moving_in_words(inputs)} move"
        moving = [MovingSentence(i, inputs.at([i]), best[i], what) for i in best if inputs.ids is not None]
        attention = kept_rows(subject, moving, journal, search.context)
    run = Run(
        title=f"Certified radii of {subject.name} on {inputs.name}{sets_in_words(inputs)}",
        version=__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        model=Model(subject.name, subject.sha256, subject.accuracy, subject.facts),
        data=described(inputs),
        methods=tuple(dict.fromkeys(methods)),
        eps=(),
        inputs=shown,
        radii=tuple(found),
        settings=settings_of(inputs, how),
        seconds=time.perf_counter() - begin,
        words=words_in(inputs),
        attention=attention,
    )
    write(run, out, outputs)
    return run


def require_methods(methods: Sequence[str]) -> None:
    """Raise unless there is a method, and all are known."""
    for method in methods:
        if method not in METHODS:
            raise InvalidValueError(f"method is {method!r}; choose one of {', '.join(METHODS)}")
    if not methods:
        raise InvalidValueError("there is nothing to do: give at least one method")


def settings_of(inputs: Inputs, how: Bisection) -> dict[str, Plain]:
    """The settings of a search for radii, as a run records them."""
    return {
        "norm": norm_sign(inputs.norm),
        "least ε": how.least,
        "most ε": how.most,
        "precision": how.precision,
        "attack": f"{how.attack_restarts} starts of {how.attack_steps} steps per class",
        "threads": torch.get_num_threads(),
    }


class RadiusBisection:
    """The bisection, in pieces of inputs; every answer is a line of the journal, so that none is computed twice."""

    def __init__(
        self, subject: Subject, inputs: Inputs, how: Bisection, options: Options, journal: Journal, watch: Watch
    ) -> None:
        self.subject, self.inputs, self.how = subject, inputs, how
        self.options, self.journal, self.watch = options, journal, watch
        self.context = asked_of(subject, inputs)
        self.seconds: dict[tuple[str, int], float] = {}
        self.done: dict[tuple[str, int], Bracket] = {}

    def radii(self, method: str, shown: Sequence[RunInput]) -> list[Radius]:
        """The radii of all inputs by one method, in the inputs' order."""
        found: list[Radius] = []
        for start in range(0, len(self.inputs), PIECE):
            piece = range(start, min(start + PIECE, len(self.inputs)))
            self.watch(method, start, len(self.inputs))
            attacked = self._bracket("attack", piece, shown)
            bracket = self._bracket(method, piece, shown)
            found += [
                Radius(
                    input=i,
                    method=method,
                    certified=float(bracket.low[j]),
                    refused=_finite(bracket.high[j]),
                    attacked=_finite(attacked.high[j]),
                    seconds=self.seconds[method, start] / len(piece),
                )
                for j, i in enumerate(piece)
            ]
        self.watch(method, len(self.inputs), len(self.inputs))
        return found

    def _bracket(self, what: str, piece: range, shown: Sequence[RunInput]) -> Bracket:
        """The final brackets of a piece of the inputs for a method, or for the attack; computed once."""
        key = (what, piece.start)
        if key not in self.done:
            bracket = self._start(what, piece, shown)
            self.seconds[key] = self.seconds.get(key, 0.0)
            self.done[key] = bracket.narrow(self.how, lambda which, eps: self._holds(what, piece, which, eps))
        return self.done[key]

    def _holds(self, what: str, piece: range, which: Tensor, eps: Tensor) -> Tensor:
        """Whether inputs of a piece, by their places in it, hold at their ε, (n,) bool; each is asked once, ever."""
        asked = [piece[int(j)] for j in which]
        each = [[i, e] for i, e in zip(asked, eps.tolist(), strict=True)]
        question = key_of("radius", method=what, inputs=each, how=self._settings(what), **self.context)
        answer = self.journal.once(question, self._answer, what, asked, eps)
        holds, seconds = _validated_answer(answer, len(asked), self.journal.path)
        self.seconds[what, piece.start] += seconds
        return holds

    def _start(self, what: str, piece: range, shown: Sequence[RunInput]) -> Bracket:
        """The brackets before the bisection: misclassified inputs have radius 0, and the attack bounds the others."""
        correct = torch.tensor([shown[i].clean > 0 for i in piece])
        low = torch.zeros(len(piece), dtype=torch.float64)
        high = torch.where(correct, math.inf, 0.0).double()
        if what == "attack":
            return Bracket(low, high)
        high = torch.minimum(high, self._bracket("attack", piece, shown).high)
        if what in STRONGER:
            low = self._bracket(CHEAP, piece, shown).low.clone()
            self.seconds[what, piece.start] = self.seconds[CHEAP, piece.start]
        return Bracket(low, high)

    def _settings(self, what: str) -> Any:
        return [self.how.attack_steps, self.how.attack_restarts] if what == "attack" else self.options

    def _answer(self, what: str, asked: Sequence[int], eps: Tensor) -> dict[str, Any]:
        """Whether each of the inputs `asked` is certified (or, for the attack, not fooled) at its ε, as plain JSON."""
        begin = time.perf_counter()
        some = self.inputs.at(asked)
        if what == "attack":
            found = self.subject.attack(some, eps, self.how.attack_steps, self.how.attack_restarts)
            holds = found.worst >= 0  # a tie does not count as misclassified
        else:
            ball, model = some.ball(eps), self.subject.model
            holds = certify(model, ball, some.labels, what, options=self.options, attack=None).certified
        return {"holds": holds.tolist(), "seconds": time.perf_counter() - begin}


def _validated_answer(answer: Any, count: int, path: Path) -> tuple[Tensor, float]:
    """A boolean for each of `count` inputs, and the seconds, from a line of the journal; raises if it is not that."""
    holds, seconds = (answer.get(name) for name in ("holds", "seconds")) if isinstance(answer, dict) else (None, None)
    valid = isinstance(holds, list) and len(holds) == count and all(isinstance(each, bool) for each in holds)
    if not valid or not isinstance(seconds, float) or not 0 <= seconds < 1e12:
        raise InvalidValueError(f"{path} has an answer that is not about {count} inputs; remove the file")
    return torch.tensor(holds), seconds


def _finite(eps: Tensor) -> float | None:
    """An ε as a number; None if it is infinite, that is not known."""
    return float(eps) if math.isfinite(float(eps)) else None
