"""Hold a graph against the module it was read from: run eagerly, at every input that is certified.

Invariant: `replay` returns only if, at every point of every case, the user's own module and its copy in float64 give
what the graph gives, but for rounding, at each call, alone and beside another input. Else it raises, and says which
tensor of the program differs first; or, if none does, that the module differs from what torch.export recorded of it
(code behind torch.compiler.is_compiling(), counters, caches, time, hooks, a copy that is another module, …).

The tolerance is measured at each point as for ONNX (its replay.py): the graph is also run in float32, and its distance
from float64 says how much rounding there does; a precision with unit roundoff u may differ by MARGIN times
u / 2⁻²⁴ of it, or by FLOOR (float64: DOUBLE) of the output's largest number where the graph happens to round less; but
never by more than VAGUE of it, beyond which nothing would be compared.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph.from_onnx.replay import DOUBLE, MARGIN, floor
from vertex_softmax.graph.from_torch.module import Cut, Mode, Original, traceable
from vertex_softmax.graph.ir import Graph

if TYPE_CHECKING:
    from vertex_softmax.graph.from_torch.importer import Reading

UNITS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Unit roundoffs."""
TF32 = 2.0**-11
"""Of float32 on a CUDA device, whose products may be rounded so."""
VAGUE = {torch.float64: 1e-4, torch.float32: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.1}
TOGETHER = 64
"""Points that are evaluated at once."""
FUSED = (
    "It is torch's fused kernel of nn.TransformerEncoder that does something else (where tokens are masked, it gives 0 "
    "or leaves them out): build it with enable_nested_tensor=False, or call "
    "torch.backends.mha.set_fastpath_enabled(False) wherever the module is used"
)
BEYOND = (
    "the model's own numbers are finite, but not those of its graph: something on the way underflows or overflows, as "
    "log_softmax does where logits are more than 745 apart and logsumexp beyond 709. Return the logits themselves "
    "(margins of log_softmax are margins of its logits), or scale them down"
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One input: where it stands in its batch, and points of its set."""

    number: int | None
    points: Tensor
    """(n, *graph input shape), float64; the first is the centre: of token ids, their rows in the table"""
    cut: Cut | None = None

    @property
    def said(self) -> str:
        """In words."""
        return "the example" if self.number is None else f"input {self.number}"


@dataclasses.dataclass(frozen=True)
class _Call:
    """One call of the module: what it gave at which point."""

    case: Case
    point: Tensor
    found: Tensor
    kind: torch.dtype
    """The precision it computes in."""
    who: str
    own: bool = True
    """Was it the user's object, or its copy?"""


def replay(graph: Graph, reading: Reading, original: Original, cases: Sequence[Case], *, batches: bool = False) -> None:
    """Refuse a graph that differs from the module at a point of a case.

    `batches`: if the module takes batches, also where another input is beside the first.
    """
    if not cases:
        return
    with original.without_chance():
        _replay(_Held(graph, reading, original), cases, batches=batches)


def _replay(held: _Held, cases: Sequence[Case], *, batches: bool) -> None:
    original = held.original
    first = held.own(cases[0], 0)
    double = original.kinds[0] == torch.float64 and original.place.type == "cpu"
    for some in (cases[i : i + TOGETHER] for i in range(0, len(cases), TOGETHER)):
        calls = [held.own(case, j) for case in some for j in range(len(case.points) if double else 1)]
        if not double:
            calls += [held.twin(case, j) for case in some for j in range(len(case.points))]
        for case in some:
            calls += held.otherwise(case, torch.enable_grad, "the module, called with gradients enabled,")
        held.check(calls)
    beside = held.beside(cases[0]) if batches else []
    beside += held.otherwise(cases[0], torch.inference_mode, "the module, called in inference mode,")
    last = min(1, len(cases[0].points) - 1)
    held.check([first, *beside, held.own(cases[0], last), held.twin(cases[0], 0), held.twin(cases[0], last)])


class _Held:
    """A graph, and the module it is held against."""

    def __init__(self, graph: Graph, reading: Reading, original: Original) -> None:
        self.graph, self.reading, self.original = graph, reading, original
        self.single = graph.to(torch.float32)
        self.floor = floor(graph)

    def own(self, case: Case, j: int) -> _Call:
        """The user's object at a point of a case."""
        found, given, kind = self.original.own_at(case.points[j], case.cut, moved=j > 0)
        return _Call(case, given, found, self._less(kind), "the module")

    def otherwise(self, case: Case, mode: Mode, who: str) -> list[_Call]:
        """The user's object at a case's points beside its centre, with gradients or in inference mode.

        Nothing if it cannot be called so.
        """
        calls = []
        for j in range(min(1, len(case.points) - 1), len(case.points)):
            try:
                found, given, kind = self.original.own_at(case.points[j], case.cut, moved=j > 0, mode=mode)
            except UnsupportedModelError:
                return []
            calls.append(_Call(case, given, found, self._less(kind), who))
        return calls

    def twin(self, case: Case, j: int) -> _Call:
        """Its copy in float64 at a point of a case."""
        found = self.original.twin_at(case.points[j], case.cut)
        return _Call(case, case.points[j], found, self._less(torch.float64), "the module in float64", own=False)

    def _less(self, kind: torch.dtype) -> torch.dtype:
        """The precision of a call: float32 at most, if the module casts something to that."""
        return torch.float32 if self.reading.rounded and kind == torch.float64 else kind

    def beside(self, case: Case) -> list[_Call]:
        """The user's object at an input beside another in one batch, if it takes such: what it is alone.

        The other is made of the same numbers or ids in another order.
        """
        x = case.points[0] if case.cut is None else case.cut.ids
        if x.dim() < 2 or x.shape[0] != 1:
            return []
        found = self.original.batch_at(torch.cat([x, x.roll(1, -1) if case.cut is not None else 0.5 * x.flip(-1)]))
        if found is None:
            return []
        kind = self.original.kinds[0]
        given = case.points[0] if case.cut is not None else case.points[0].to(kind).double()
        return [_Call(case, given, found[:1], self._less(kind), "beside another input of its batch the module")]

    def check(self, calls: Sequence[_Call]) -> None:
        """Refuse the graph if a call gave something else."""
        with torch.no_grad():
            points = torch.stack([call.point for call in calls])
            exact = torch.cat([self.graph.evaluate(some) for some in points.split(TOGETHER)])
            rough = torch.cat([self.single.evaluate(some.float()) for some in points.split(TOGETHER)]).double()
        for call, here, single in zip(calls, exact, rough, strict=True):
            self._compare(call, here, single)

    def _compare(self, call: _Call, exact: Tensor, rough: Tensor) -> None:
        found = call.found
        if found.shape != exact.shape:
            raise UnsupportedModelError(
                f"at {call.case.said}, {call.who} gives a tensor of shape {tuple(found.shape)}; torch.export recorded "
                f"{tuple(exact.shape)}: it has to do the same every time"
            )
        finite, known = bool(found.isfinite().all()), bool(exact.isfinite().all())
        if not finite and not known:
            return  # there is no number to be certain of, and no bound will be finite
        if finite and not known:
            raise UnsupportedModelError(BEYOND)
        if not finite:
            raise UnsupportedModelError(
                f"at {call.case.said}, or near it in its set, {call.who} gives NaN or infinity ({call.kind}), where "
                "its formula has a number: something on the way overflows. Make the set smaller, or scale the "
                "numbers down"
            )
        off, allowed = float((found - exact).abs().max()), self._allowed(call.kind, exact, rough)
        if off > allowed:
            raise UnsupportedModelError(
                f"at {call.case.said}, or near it in its set, {call.who} differs by {off:.3g} from the graph that was "
                f"read from it, where rounding explains {allowed:.3g}. {self._why(call, exact, allowed)}"
            )

    def _fused(self, call: _Call, exact: Tensor, allowed: float) -> bool:
        """Does the user's object agree without torch's fused kernels?"""
        with traceable():
            found, _, _ = self.original.own_at(call.point, call.case.cut)
        return found.shape == exact.shape and float((found - exact).abs().max()) <= allowed

    def _allowed(self, kind: torch.dtype, exact: Tensor, rough: Tensor) -> float:
        """What rounding may do to the output in this precision."""
        size = float(exact.abs().max())
        unit = UNITS[kind]
        if kind == torch.float32 and self.original.place.type == "cuda":
            kind, unit = torch.float16, TF32
        noise = float((rough - exact).abs().max())
        noise = noise if math.isfinite(noise) else 0.0
        least = DOUBLE if kind == torch.float64 else self.floor * unit / UNITS[torch.float32]
        allowed = max(least * size, MARGIN * noise * unit / UNITS[torch.float32])
        return min(allowed, VAGUE[kind] * size) if size > 0 else allowed

    def _why(self, call: _Call, exact: Tensor, allowed: float) -> str:
        """Which tensor of the program differs first from the graph; or that none does."""
        if call.own and self._fused(call, exact, allowed):
            return FUSED
        place = self.reading.first_difference(call.point)
        if place is not None:
            return f"The first tensor that differs is {place}: it was read wrongly. Please report the model"
        other = self.original.first_part(call.point, call.case.cut, self.reading.parts(call.point))
        where = f"; the first part that differs is {other!r}" if other else ""
        return (
            f"The graph is what torch.export recorded: it is the module that does something else when it is called"
            f"{where}. It has to be a function of its input, the same in every precision, at every call: no code "
            "behind torch.compiler.is_compiling(), no counters or caches, no random numbers, nothing that depends "
            "on the others of a batch"
        )
