"""Certify many inputs by several methods at several ε, and attack them; the result is a `Run`.

Invariant: every answer comes from one call of `certify` on exactly the ball it is recorded with, and no bound in a run
lies above a margin that the attack reached (`contradictions` lists the exceptions).

Every finished piece is a line of OUT/journal.jsonl: after an interruption the same call continues from there.

    inputs = read_inputs("digits", count=100)
    run = evaluate(read_model(path, inputs), inputs, ("crown", "joint"), (0.02, 0.05), Path("out/digits"))
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from vertex_softmax import __version__
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.foundation.tolerances import COMPARISON
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.runs.attention_record import AttentionRows
from vertex_softmax.runs.attention_rows import MovingSentence, kept_rows
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.journal import Journal, fingerprint, key_of
from vertex_softmax.runs.records import made, packed
from vertex_softmax.runs.run import (
    JOURNAL,
    Attacked,
    Data,
    Model,
    Run,
    RunAnswer,
    RunInput,
    SlackMap,
    claimed,
    finite,
    norm_sign,
    write,
)
from vertex_softmax.runs.slack import slack_map
from vertex_softmax.runs.subject import Inputs, Subject

T = TypeVar("T")
PIECE = 16
"""Inputs per line of the journal."""
TOGETHER = 256
"""Inputs that the network evaluates at once."""
ROUNDING = COMPARISON[torch.float64]
SLACK_OF = ("joint", "bab")
"""The methods with which a run has a slack map, which takes about as long as `joint`."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The settings of an evaluation besides its methods and ε."""

    bounds_at: tuple[float, ...] | None = None
    """the ε at which the best bounds are computed; at others a bound stops once it decides. None: at all ε"""
    attack_steps: int = 40
    attack_restarts: int = 4
    slack_inputs: int = 16
    """over how many inputs the slack map is averaged, if the last method is one of SLACK_OF; 0: there is none"""
    search: Options = dataclasses.field(default_factory=Options)
    """the options of `certify`"""
    title: str = ""

    def options(self, eps: float) -> Options:
        """The options of `certify` at one ε."""
        if self.bounds_at is None or eps in self.bounds_at:
            return self.search
        return dataclasses.replace(self.search, goal=0.0)


@dataclasses.dataclass(frozen=True)
class EvaluatedPart:
    """The progress of a method at one ε: `done` of `total` inputs are finished, and `certified` of them certified."""

    method: str
    """the method, `attack` or `slack`"""
    eps: float
    done: int
    total: int
    certified: int
    """for the attack: how many inputs it did not fool"""
    bound: float
    """the sum of the finite bounds so far; for the attack: of the margins"""
    seconds: float
    """the time so far"""


Watch: TypeAlias = Callable[[EvaluatedPart], None]
"""Called after each finished piece."""


# More than six parameters: a public signature, of which the last three are optional.
@full_precision()
def evaluate(
    subject: Subject,
    inputs: Inputs,
    methods: Sequence[str],
    eps: Sequence[float],
    out: Path,
    plan: Plan | None = None,
    watch: Watch = lambda _part: None,
    files: Sequence[Path] = (),
) -> Run:
    """Certify every input by every method at every ε, and attack it; write OUT/run.json and return the run.

    `files`: the files that the run reads, which are never overwritten.
    """
    plan = plan or Plan()
    methods, radii = _validated(methods, eps)
    begin = time.perf_counter()
    outputs = claimed(out, files)
    shown = inputs_of(subject, inputs)
    with Journal(out / JOURNAL, fingerprint("runs/evaluate.py"), outputs=outputs) as journal:
        evaluation = _Evaluation(subject, inputs, plan, journal, watch, [x.clean for x in shown])
        answers = [answer for e in radii for method in methods for answer in evaluation.answers(method, e)]
        attacks = evaluation.attacks(radii)
        slack = evaluation.slack(answers, radii)
        attention = evaluation.attention(radii)
    run = Run(
        title=plan.title or f"{subject.name} on {inputs.name}{sets_in_words(inputs)}",
        version=__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        model=Model(subject.name, subject.sha256, subject.accuracy, subject.facts),
        data=described(inputs),
        methods=methods,
        eps=radii,
        inputs=shown,
        answers=tuple(answers),
        attacks=tuple(attacks),
        slack=slack,
        settings={
            "norm": norm_sign(inputs.norm),
            "best bounds at ε": "all" if plan.bounds_at is None else ", ".join(map(str, plan.bounds_at)),
            "attack": f"{plan.attack_restarts} starts of {plan.attack_steps} steps per class",
            "threads": torch.get_num_threads(),
            "steps of an ascent": 0 if plan.search.ascent is None else plan.search.ascent.steps,
            "precision": "float64",
        },
        seconds=time.perf_counter() - begin,
        words=words_in(inputs),
        attention=attention,
    )
    write(run, out, outputs)
    return run


def contradictions(run: Run) -> list[str]:
    """The answers that the attack refutes, in words; each of them is an error of Vertex."""
    reached = {(attack.input, attack.eps): attack.margin for attack in run.attacks}
    found = []
    for answer in run.answers:
        margin = reached.get((answer.input, answer.eps))
        if margin is None or answer.bound is None:
            continue
        if answer.bound > margin + ROUNDING * max(1.0, abs(margin)) or (answer.verdict == "verified" and margin < 0):
            found.append(
                f"{answer.method} bounds input {answer.input} at ε = {answer.eps:g} by {answer.bound}, but the attack "
                f"reached {margin}"
            )
    return found


def described(inputs: Inputs) -> Data:
    """The description of the inputs' data set that is recorded in a run."""
    tokens = None if inputs.ids is None else moving_in_words(inputs)
    return Data(
        inputs.name, tuple(inputs.x.shape[1:]), inputs.clip, inputs.classes, norm=f"{inputs.norm:g}", tokens=tokens
    )


def sets_in_words(inputs: Inputs) -> str:
    """What a title adds about the inputs' balls: nothing if they are ℓ∞ balls around inputs that are no token ids."""
    norm = "" if inputs.norm == math.inf else f", {norm_sign(inputs.norm)}"
    return norm if inputs.ids is None else f"{norm}, moving {moving_in_words(inputs)}"


def words_in(inputs: Inputs) -> dict[str, str]:
    """The texts of the inputs' token ids, as far as they are known, as a run records them."""
    if inputs.ids is None or inputs.words is None:
        return {}
    return {str(i): inputs.words[i] for i in sorted(set(inputs.ids.flatten().tolist())) if i in inputs.words}


def moving_in_words(inputs: Inputs) -> str:
    """Which tokens may move."""
    return "all tokens" if inputs.tokens is None else f"tokens {', '.join(map(str, inputs.tokens))}"


@full_precision()
def inputs_of(subject: Subject, inputs: Inputs) -> tuple[RunInput, ...]:
    """The inputs as they are recorded in a run: with the network's prediction and margin at each."""
    logits = _logits(subject, inputs)
    if bool((wrong := inputs.labels >= logits.shape[1]).any()) or bool((wrong := inputs.labels < 0).any()):
        first = int(wrong.nonzero()[0])
        raise InvalidValueError(
            f"label {int(inputs.labels[first])} of input {inputs.numbers[first]} of {inputs.name} is not a class; "
            f"there are {logits.shape[1]}, from 0. Give inputs and labels that belong to the model"
        )
    own = logits.gather(1, inputs.labels[:, None])
    others = (own - logits).scatter(1, inputs.labels[:, None], torch.inf).amin(1)
    return tuple(
        RunInput(
            index=number,
            label=int(label),
            predicted=int(row.argmax()),
            clean=float(margin),
            pixels=packed(x),
            ids=None if inputs.ids is None else tuple(inputs.ids[i].tolist()),
        )
        for i, (number, label, row, margin, x) in enumerate(
            zip(inputs.numbers, inputs.labels, logits, others, inputs.x.numpy(), strict=True)
        )
    )


def _logits(subject: Subject, inputs: Inputs) -> Tensor:
    """The network's outputs at the inputs, (n, classes)."""
    found, order = [], []
    with torch.no_grad():
        for group in subject.groups(inputs):
            graph, which = group.graph, torch.tensor(group.which)
            pieces = inputs.x[which].to(graph.dtype).split(TOGETHER)
            found += [graph.evaluate(x.reshape(len(x), *graph.input.shape)).flatten(1) for x in pieces]
            order.append(which)
    if len({logits.shape[1] for logits in found}) > 1:
        raise InvalidValueError("the outputs of the inputs have different sizes; give inputs with the same classes")
    return torch.cat(found)[torch.cat(order).argsort()]


def _validated(methods: Sequence[str], eps: Sequence[float]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """The methods without repetition, and the ε in ascending order; raises if one of them is not valid."""
    if not methods or not eps:
        raise InvalidValueError("there is nothing to do: give at least one method and one ε")
    for method in methods:
        if method not in METHODS:
            raise InvalidValueError(f"method is {method!r}; choose one of {', '.join(METHODS)}")
    if bad := next((e for e in eps if not (0 <= e < float("inf"))), None):
        raise InvalidValueError(f"ε is {bad}; it must be a number, 0 or more")
    return tuple(dict.fromkeys(methods)), tuple(sorted(set(map(float, eps))))


def asked_of(subject: Subject, inputs: Inputs) -> dict[str, Any]:
    """What every answer of a run depends on, for the journal's keys: the network, the inputs, and the arithmetic."""
    return {
        "model": subject.sha256,
        "data": inputs.sha256,
        "norm": f"{inputs.norm:g}",
        "tokens": None if inputs.ids is None else moving_in_words(inputs),
        "precision": str(subject.graph.dtype),
        "device": subject.graph.device.type,
        "threads": torch.get_num_threads(),
    }


def _impossible(answer: RunAnswer, clean: float, rounding: float) -> bool:
    """Whether the bound is above the margin at the ball's centre, or a misclassified input is called verified."""
    above = answer.bound is not None and answer.bound > clean + rounding * max(1.0, abs(clean))
    return above or (answer.verdict == "verified" and clean < 0)


def _field(result: Any, name: str, kind: type[T]) -> T:
    """A field of a journal's result; raises if it does not have this type."""
    value = result.get(name) if isinstance(result, dict) else None
    if not isinstance(value, kind):
        raise InvalidValueError(f"a line of the journal has no {name!r} that is a {kind.__name__}; remove the journal")
    return value


class _Evaluation:
    """The pieces of a run. Each is computed once: a finished piece is taken from the journal."""

    def __init__(
        self,
        subject: Subject,
        inputs: Inputs,
        plan: Plan,
        journal: Journal,
        watch: Watch,
        clean: Sequence[float],
    ) -> None:
        """clean: the margin at each input itself, which no sound bound can exceed."""
        self.subject, self.inputs, self.plan, self.journal, self.watch = subject, inputs, plan, journal, watch
        self.graph, self.clean = subject.graph, clean
        self.rounding = COMPARISON[self.graph.dtype]
        self.context = asked_of(subject, inputs)
        self.pieces = [range(i, min(i + PIECE, len(inputs))) for i in range(0, len(inputs), PIECE)]

    def answers(self, method: str, eps: float) -> list[RunAnswer]:
        """The answers of a method at one ε for all inputs, in their order."""
        options = self.plan.options(eps)
        found: list[RunAnswer] = []
        for piece in self.pieces:
            about = {"method": method, "eps": eps, "inputs": [piece.start, piece.stop], "options": options}
            key = key_of("certify", **about, **self.context)
            lines = self.journal.once(key, self._certify, method, eps, piece, options)
            found += self._validated_lines(RunAnswer, lines, piece, eps, {"method": method})
            self._report(method, eps, found)
        return found

    def _certify(self, method: str, eps: float, piece: range, options: Options) -> list[dict[str, Any]]:
        """The answers for one piece of the inputs, as plain JSON."""
        some = self.inputs.at(piece)
        result = certify(self.subject.model, some.ball(eps), some.labels, method, options=options, attack=None)
        each = result.seconds["total"] / len(piece)
        return [
            {
                "input": i,
                "method": method,
                "eps": eps,
                "verdict": str(verdict),
                "bound": finite(float(row.amin())),
                "target": int(row.argmin()),
                "seconds": each,
                "reason": reason,
            }
            for i, verdict, row, reason in zip(piece, result.verdicts, result.lower, result.reasons, strict=True)
        ]

    def attacks(self, eps: Sequence[float]) -> list[Attacked]:
        """The attacks on all inputs at every ε; an adversarial input is recorded at the smallest ε that has one."""
        found: list[Attacked] = []
        fooled: set[int] = set()
        for e in eps:
            attacks: list[Attacked] = []
            spent = 0.0
            for piece in self.pieces:
                plan = self.plan
                how = {"steps": plan.attack_steps, "restarts": plan.attack_restarts}
                key = key_of("attack", eps=e, inputs=[piece.start, piece.stop], **how, **self.context)
                result = self.journal.once(key, self._attack, e, piece)
                attacks += self._validated_lines(Attacked, _field(result, "attacks", list), piece, e, {})
                spent += _field(result, "seconds", float)
                robust = sum(a.margin > 0 for a in attacks)
                total = sum(a.margin for a in attacks)
                self.watch(
                    EvaluatedPart(
                        method="attack",
                        eps=e,
                        done=len(attacks),
                        total=len(self.inputs),
                        certified=robust,
                        bound=total,
                        seconds=spent,
                    )
                )
            for a in attacks:
                first = a.adversarial is not None and a.input not in fooled
                fooled |= {a.input} if first else set()
                found.append(a if first else dataclasses.replace(a, adversarial=None))
        return found

    def _validated_lines(self, kind: type[T], lines: Any, piece: range, eps: float, more: dict[str, Any]) -> list[T]:
        """The journal's results as dataclasses; raises unless they are for these inputs, in their order, at this ε."""
        where = f"{self.journal.path}: a line of ε = {eps!r}"
        if not isinstance(lines, list) or len(lines) != len(piece):
            raise InvalidValueError(f"{where} is not about {len(piece)} inputs; remove it or the file")
        try:
            found = [made(kind, line, f"input {i}") for i, line in zip(piece, lines, strict=True)]
        except InvalidValueError as error:
            raise InvalidValueError(f"{where} cannot be read ({error}); remove it or the file") from error
        for i, line in zip(piece, lines, strict=True):
            if any(line.get(name) != value for name, value in {"input": i, "eps": eps, **more}.items()):
                raise InvalidValueError(f"{where} does not belong to the question in its key; remove it or the file")
        for i, answer in zip(piece, found, strict=True):
            clean = self.clean[i]
            if isinstance(answer, RunAnswer) and _impossible(answer, clean, self.rounding):
                raise InvalidValueError(
                    f"{where} says that input {i} is {answer.verdict} with a bound of {answer.bound}, but the margin "
                    f"at the input itself is {clean:g}: the line does not belong to this network; remove the file"
                )
        return found

    def _attack(self, eps: float, piece: range) -> dict[str, Any]:
        """The attacks on one piece of the inputs, as plain JSON."""
        begin = time.perf_counter()
        some, plan = self.inputs.at(piece), self.plan
        attack = self.subject.attack(some, eps, plan.attack_steps, plan.attack_restarts)
        lines = [
            {
                "input": i,
                "eps": eps,
                "margin": float(row.amin()),
                "target": int(row.argmin()),
                "adversarial": packed(x) if float(row.amin()) < 0 else None,
            }
            for i, row, x in zip(piece, attack.margins, attack.counterexamples.numpy(), strict=True)
        ]
        return {"attacks": lines, "seconds": time.perf_counter() - begin}

    def slack(self, answers: Sequence[RunAnswer], eps: Sequence[float]) -> SlackMap | None:
        """The slack map of `joint` at the largest ε with best bounds; None if there is nothing to average.

        Nor is there one if the last method is a cheaper one: whoever asks for `crown` alone does not wait for `joint`.
        """
        if not self.plan.slack_inputs or not answers or answers[-1].method not in SLACK_OF:
            return None
        last = answers[-1].method
        e = max(self.plan.bounds_at or eps)
        chosen = [a for a in answers if a.method == last and a.eps == e and a.verdict != "falsified"]
        chosen = chosen[: self.plan.slack_inputs]
        if chosen and self.inputs.ids is not None:  # only of sentences that have one graph
            group = self.subject.groups(self.inputs.at([a.input for a in chosen]))[0]
            chosen, graph = [chosen[i] for i in group.which], group.graph
        else:
            graph = self.graph
        if not chosen:
            return None
        key = key_of("slack", eps=e, inputs=[[a.input, a.target] for a in chosen], **self.context)
        return made(SlackMap, self.journal.once(key, self._slack, graph, e, chosen), "slack")

    def _slack(self, graph: Graph, eps: float, chosen: Sequence[RunAnswer]) -> dict[str, Any]:
        which = [a.input for a in chosen]
        some = self.inputs.at(which)
        self.watch(
            EvaluatedPart(method="slack", eps=eps, done=0, total=len(which), certified=0, bound=0.0, seconds=0.0)
        )
        found = slack_map(graph, some.ball(eps), some.labels.tolist(), [a.target for a in chosen], eps)
        return dataclasses.asdict(found)

    def attention(self, eps: Sequence[float]) -> tuple[AttentionRows, ...]:
        """The softmax rows of the first sentences, while they move within the largest ε with best bounds."""
        if self.inputs.ids is None:
            return ()
        what, e = f"{moving_in_words(self.inputs)} move", max(self.plan.bounds_at or eps)
        moving = [MovingSentence(i, self.inputs.at([i]), e, what) for i in range(len(self.inputs))]
        return kept_rows(self.subject, moving, self.journal, self.context)

    def _report(self, method: str, eps: float, found: Sequence[RunAnswer]) -> None:
        certified = sum(a.verdict == "verified" for a in found)
        total, spent = sum(a.bound for a in found if a.bound is not None), sum(a.seconds for a in found)
        self.watch(
            EvaluatedPart(
                method=method,
                eps=eps,
                done=len(found),
                total=len(self.inputs),
                certified=certified,
                bound=total,
                seconds=spent,
            )
        )
