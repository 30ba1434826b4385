"""Certify many inputs by several methods at several ε, and attack them: a `Run`.

Invariant: every answer comes from one call of `certify` on exactly the ball it is recorded with, and no bound in a run
lies above a margin that the attack reached (`contradictions` says if one does).

Every finished piece is a line of OUT/journal.jsonl: after a kill the same call goes on from there.

    inputs = read_inputs("digits", count=100)
    run = evaluate(read_model(path, inputs), inputs, ("crown", "joint"), (0.02, 0.05), Path("out/digits"))
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch

from vertex_softmax import __version__
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.journal import Journal, fingerprint, key_of
from vertex_softmax.runs.run import (
    JOURNAL,
    Answer,
    Attacked,
    Data,
    Input,
    Model,
    Run,
    SlackMap,
    claimed,
    finite,
    made,
    packed,
    write,
)
from vertex_softmax.runs.slack import slack_map
from vertex_softmax.runs.subject import Inputs, Subject
from vertex_softmax.search.attack import pgd

T = TypeVar("T")
PIECE = 16
"""Inputs per line of the journal."""
TOGETHER = 256
"""Inputs that are evaluated at once."""
ROUNDING = 1e-9
"""Bounds and margins are floating point: their comparison allows this much, relatively to margins above 1."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is asked for besides methods and ε."""

    bounds_at: tuple[float, ...] | None = None
    """the ε at which the best bounds are wanted; at others a bound stops once it decides. None: everywhere"""
    attack_steps: int = 40
    attack_restarts: int = 4
    slack_inputs: int = 16
    """over how many inputs the slack is told, 0: over none"""
    search: Options = dataclasses.field(default_factory=Options)
    title: str = ""

    def options(self, eps: float) -> Options:
        """Of one ε."""
        if self.bounds_at is None or eps in self.bounds_at:
            return self.search
        return dataclasses.replace(self.search, goal=0.0)


@dataclasses.dataclass(frozen=True)
class Part:
    """What was just finished: `certified` of `done` inputs, of `total`, by a method (or the attack) at an ε."""

    method: str
    eps: float
    done: int
    total: int
    certified: int
    bound: float
    """Σ of the finite bounds"""
    seconds: float
    """Σ"""


Watch: TypeAlias = Callable[[Part], None]


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
    """Every method at every ε on every input; writes OUT/run.json and returns it. `files`: that the run reads."""
    plan = plan or Plan()
    methods, radii = _asked(methods, eps)
    begin = time.perf_counter()
    outputs = claimed(out, files)
    shown = inputs_of(subject, inputs)
    with Journal(out / JOURNAL, fingerprint("runs/evaluate.py"), outputs=outputs) as journal:
        work = _Work(subject, inputs, plan, journal, watch, [x.clean for x in shown])
        answers = [answer for e in radii for method in methods for answer in work.answers(method, e)]
        attacks = work.attacks(radii)
        slack = work.slack(answers, radii)
    run = Run(
        title=plan.title or f"{subject.name} on {inputs.name}",
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
            "best bounds at ε": "all" if plan.bounds_at is None else ", ".join(map(str, plan.bounds_at)),
            "attack": f"{plan.attack_restarts} starts of {plan.attack_steps} steps per class",
            "threads": torch.get_num_threads(),
            "steps of an ascent": 0 if plan.search.ascent is None else plan.search.ascent.steps,
            "precision": "float64",
        },
        seconds=time.perf_counter() - begin,
    )
    write(run, out, outputs)
    return run


def contradictions(run: Run) -> list[str]:
    """Answers that the attack refutes; one means that something is wrong with Vertex."""
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
    """The data, for a run."""
    return Data(inputs.name, tuple(inputs.x.shape[1:]), inputs.clip, inputs.classes)


def inputs_of(subject: Subject, inputs: Inputs) -> tuple[Input, ...]:
    """The inputs with what the network makes of them, for a run."""
    graph = subject.graph
    with torch.no_grad():
        pieces = inputs.x.to(graph.dtype).split(TOGETHER)
        logits = torch.cat([graph.evaluate(x.reshape(len(x), *graph.input.shape)).flatten(1) for x in pieces])
    if bool((wrong := inputs.labels >= logits.shape[1]).any()) or bool((wrong := inputs.labels < 0).any()):
        at = int(wrong.nonzero()[0])
        raise InvalidValueError(
            f"label {int(inputs.labels[at])} of input {inputs.numbers[at]} is not a class; "
            f"there are {logits.shape[1]}, from 0"
        )
    own = logits.gather(1, inputs.labels[:, None])
    others = (own - logits).scatter(1, inputs.labels[:, None], torch.inf).amin(1)
    return tuple(
        Input(number, int(label), int(row.argmax()), float(margin), packed(x))
        for number, label, row, margin, x in zip(
            inputs.numbers, inputs.labels, logits, others, inputs.x.numpy(), strict=True
        )
    )


def _asked(methods: Sequence[str], eps: Sequence[float]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    if not methods or not eps:
        raise InvalidValueError("there is nothing to do: give at least one method and one ε")
    for method in methods:
        if method not in METHODS:
            raise InvalidValueError(f"method is {method!r}; choose one of {', '.join(METHODS)}")
    if bad := next((e for e in eps if not (0 <= e < float("inf"))), None):
        raise InvalidValueError(f"ε is {bad}; it must be a number, 0 or more")
    return tuple(dict.fromkeys(methods)), tuple(sorted(set(map(float, eps))))


def asked_of(subject: Subject, inputs: Inputs) -> dict[str, Any]:
    """What every answer of a run hangs on, for the journal's keys: network, inputs, and how it is computed."""
    return {
        "model": subject.sha256,
        "data": inputs.sha256,
        "precision": str(subject.graph.dtype),
        "device": subject.graph.device.type,
        "threads": torch.get_num_threads(),
    }


def _impossible(answer: Answer, clean: float, rounding: float) -> bool:
    """Is the bound above the margin of a point of the ball, or is a misclassified input verified?"""
    above = answer.bound is not None and answer.bound > clean + rounding * max(1.0, abs(clean))
    return above or (answer.verdict == "verified" and clean < 0)


def _part(found: Any, name: str, kind: type[T]) -> T:
    """A part of what the journal says, if it is of this type."""
    part = found.get(name) if isinstance(found, dict) else None
    if not isinstance(part, kind):
        raise InvalidValueError(f"a line of the journal has no {name!r} that is a {kind.__name__}; remove the journal")
    return part


class _Work:
    """The pieces of a run, each computed once."""

    def __init__(
        self,
        subject: Subject,
        inputs: Inputs,
        plan: Plan,
        journal: Journal,
        watch: Watch,
        clean: Sequence[float],
    ) -> None:
        """clean: the margins at the inputs themselves, which no bound can exceed."""
        self.subject, self.inputs, self.plan, self.journal, self.watch = subject, inputs, plan, journal, watch
        self.graph, self.clean = subject.graph, clean
        self.rounding = ROUNDING if self.graph.dtype == torch.float64 else 1e-3
        self.known = asked_of(subject, inputs)
        self.pieces = [range(i, min(i + PIECE, len(inputs))) for i in range(0, len(inputs), PIECE)]

    def answers(self, method: str, eps: float) -> list[Answer]:
        """Of all inputs."""
        options = self.plan.options(eps)
        found: list[Answer] = []
        for piece in self.pieces:
            about = {"method": method, "eps": eps, "inputs": [piece.start, piece.stop], "options": options}
            key = key_of("certify", **about, **self.known)
            lines = self.journal.once(key, self._certified, method, eps, piece, options)
            found += self._said(Answer, lines, piece, eps, {"method": method})
            self._tell(method, eps, found)
        return found

    def _certified(self, method: str, eps: float, piece: range, options: Options) -> list[dict[str, Any]]:
        some = self.inputs.at(piece)
        result = certify(self.subject.model, some.ball(eps), some.labels, method, options=options)
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
        """At every ε; an adversarial input is kept at the smallest that has one."""
        found: list[Attacked] = []
        fooled: set[int] = set()
        for e in eps:
            here: list[Attacked] = []
            spent = 0.0
            for piece in self.pieces:
                plan = self.plan
                how = {"steps": plan.attack_steps, "restarts": plan.attack_restarts}
                key = key_of("attack", eps=e, inputs=[piece.start, piece.stop], **how, **self.known)
                lines = self.journal.once(key, self._attacked, e, piece)
                here += self._said(Attacked, _part(lines, "attacks", list), piece, e, {})
                spent += _part(lines, "seconds", float)
                held = sum(a.margin > 0 for a in here)
                total = sum(a.margin for a in here)
                self.watch(Part("attack", e, len(here), len(self.inputs), held, total, spent))
            for a in here:
                first = a.adversarial is not None and a.input not in fooled
                fooled |= {a.input} if first else set()
                found.append(a if first else Attacked(a.input, a.eps, a.margin, a.target))
        return found

    def _said(self, kind: type[T], lines: Any, piece: range, eps: float, more: dict[str, Any]) -> list[T]:
        """What the journal says, if it is about these inputs, in their order, at this ε."""
        where = f"{self.journal.path}: a line of ε = {eps!r}"
        if not isinstance(lines, list) or len(lines) != len(piece):
            raise InvalidValueError(f"{where} is not about {len(piece)} inputs; remove it or the file")
        try:
            found = [made(kind, line, f"input {i}") for i, line in zip(piece, lines, strict=True)]
        except InvalidValueError as error:
            raise InvalidValueError(f"{where} cannot be read ({error}); remove it or the file") from error
        for i, line in zip(piece, lines, strict=True):
            if any(line.get(name) != value for name, value in {"input": i, "eps": eps, **more}.items()):
                raise InvalidValueError(f"{where} is about something else than its key says; remove it or the file")
        for i, answer in zip(piece, found, strict=True):
            clean = self.clean[i]
            if isinstance(answer, Answer) and _impossible(answer, clean, self.rounding):
                raise InvalidValueError(
                    f"{where} says that input {i} is {answer.verdict} with a bound of {answer.bound}, but the margin "
                    f"at the input itself is {clean:g}: the line is not of this network; remove the file"
                )
        return found

    def _attacked(self, eps: float, piece: range) -> dict[str, Any]:
        begin = time.perf_counter()
        some, plan = self.inputs.at(piece), self.plan
        attack = pgd(self.graph, some.ball(eps), some.labels, steps=plan.attack_steps, restarts=plan.attack_restarts)
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

    def slack(self, answers: Sequence[Answer], eps: Sequence[float]) -> SlackMap | None:
        """At the ε with the most undecided inputs among those with the best bounds."""
        if not self.plan.slack_inputs:
            return None
        last = answers[-1].method if answers else ""
        e = max(self.plan.bounds_at or eps)
        chosen = [a for a in answers if a.method == last and a.eps == e and a.verdict != "falsified"]
        chosen = chosen[: self.plan.slack_inputs]
        if not chosen:
            return None
        key = key_of("slack", eps=e, inputs=[[a.input, a.target] for a in chosen], **self.known)
        return made(SlackMap, self.journal.once(key, self._slack, e, chosen), "slack")

    def _slack(self, eps: float, chosen: Sequence[Answer]) -> dict[str, Any]:
        which = [a.input for a in chosen]
        some = self.inputs.at(which)
        self.watch(Part("slack", eps, 0, len(which), 0, 0.0, 0.0))
        found = slack_map(self.graph, some.ball(eps), some.labels.tolist(), [a.target for a in chosen], eps)
        return dataclasses.asdict(found)

    def _tell(self, method: str, eps: float, found: Sequence[Answer]) -> None:
        held = sum(a.verdict == "verified" for a in found)
        total, spent = sum(a.bound for a in found if a.bound is not None), sum(a.seconds for a in found)
        self.watch(Part(method, eps, len(found), len(self.inputs), held, total, spent))
