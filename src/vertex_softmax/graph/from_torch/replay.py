"""The comparison of a graph with the module it was read from, run eagerly at every input that is certified.

Invariant: `replay` returns only if, at every point of every case, the user's own module and its copy in float64 agree
with the graph up to rounding, in every call, alone and next to another input of a batch. Otherwise it raises an error
that names the first tensor of the program that differs; or, if none does, says that the module differs from the program
that torch.export recorded (code behind torch.compiler.is_compiling(), counters, caches, time, hooks, a copy that is
another module, …).

The tolerance is measured at each point as for ONNX (from_onnx/replay.py): the graph is also evaluated in float32, and
its distance from float64 measures the effect of rounding. A call in a precision with unit roundoff u may differ by
MARGIN · (u / 2⁻²⁴) times this distance, or by FLOOR (float64: DOUBLE) times the output's largest number if that is
more; but never by more than VAGUE times it, since a larger tolerance would make the comparison meaningless.
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
from vertex_softmax.graph.from_torch.module import Mode, OriginalModule, TokenLookUp, traceable
from vertex_softmax.graph.ir import Graph

if TYPE_CHECKING:
    from vertex_softmax.graph.from_torch.importer import Reading

UNITS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""The unit roundoff of each precision."""
TF32 = 2.0**-11
"""The unit roundoff of float32 products on a CUDA device, which may use TF32."""
VAGUE = {torch.float64: 1e-4, torch.float32: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.1}
"""The largest tolerance of each precision, relative to the output's largest number."""
TOGETHER = 64
"""The number of points that are evaluated at once."""
FUSED = (
    "The difference comes from torch's fused kernel of nn.TransformerEncoder (where tokens are masked, it gives 0 "
    "or leaves them out): build it with enable_nested_tensor=False, or call "
    "torch.backends.mha.set_fastpath_enabled(False) wherever the module is used"
)
BEYOND = (
    "the model's own output is finite, but not that of its graph: an intermediate value underflows or overflows, as "
    "log_softmax does where logits are more than 745 apart and logsumexp beyond 709. Return the logits themselves "
    "(margins of log_softmax are margins of its logits), or scale them down"
)


@dataclasses.dataclass(frozen=True)
class ReplayCase:
    """One input of a batch, and the points of its set at which the graph is compared with the module."""

    number: int | None
    """Its index in the batch; None for the example of an import."""
    points: Tensor
    """(n, *graph input shape), float64; the first is the centre (for token ids, their rows in the table)."""
    look_up: TokenLookUp | None = None
    """For token ids: the ids, and the table they are looked up in."""

    @property
    def description(self) -> str:
        """How messages refer to the input."""
        return "the example" if self.number is None else f"input {self.number}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Call:
    """One call of the module: its value at a point (both float64)."""

    case: ReplayCase
    point: Tensor
    value: Tensor
    kind: torch.dtype
    """The precision it computed in."""
    who: str
    """How messages refer to the module."""
    own: bool = True
    """Whether the user's object was called; else it was its copy."""


def replay(
    graph: Graph, reading: Reading, original: OriginalModule, cases: Sequence[ReplayCase], *, batches: bool = False
) -> None:
    """Raise if the graph differs from the module at a point of a case.

    `batches`: also compare the first input in a batch with another one, if the module takes such a batch.
    """
    if not cases:
        return
    with original.without_random_numbers():
        _replay(_Comparison(graph, reading, original), cases, batches=batches)


def _replay(comparison: _Comparison, cases: Sequence[ReplayCase], *, batches: bool) -> None:
    """Call the module at all points in all ways that matter, and compare every call with the graph."""
    original = comparison.original
    first = comparison.own(cases[0], 0)
    double = original.kinds[0] == torch.float64 and original.device.type == "cpu"
    for some in (cases[i : i + TOGETHER] for i in range(0, len(cases), TOGETHER)):
        calls = [comparison.own(case, j) for case in some for j in range(len(case.points) if double else 1)]
        if not double:
            calls += [comparison.twin(case, j) for case in some for j in range(len(case.points))]
        for case in some:
            calls += comparison.in_mode(case, torch.enable_grad, "the module, called with gradients enabled,")
        comparison.check(calls)
    others = comparison.in_batch(cases[0]) if batches else []
    others += comparison.in_mode(cases[0], torch.inference_mode, "the module, called in inference mode,")
    last = min(1, len(cases[0].points) - 1)
    twins = [comparison.twin(cases[0], 0), comparison.twin(cases[0], last)]
    comparison.check([first, *others, comparison.own(cases[0], last), *twins])


class _Comparison:
    """A graph, the reading it comes from, and the module it is compared with."""

    def __init__(self, graph: Graph, reading: Reading, original: OriginalModule) -> None:
        self.graph, self.reading, self.original = graph, reading, original
        self.single = graph.to(torch.float32)
        self.floor = floor(graph)

    def own(self, case: ReplayCase, j: int) -> _Call:
        """A call of the user's object at point j of a case."""
        value, point, kind = self.original.own_at(case.points[j], case.look_up, moved=j > 0)
        return _Call(case=case, point=point, value=value, kind=self._precision(kind), who="the module")

    def in_mode(self, case: ReplayCase, mode: Mode, who: str) -> list[_Call]:
        """Calls of the user's object in a gradient mode, at the points of a case other than its centre.

        If the centre is the only point, at the centre. Empty if the object cannot be called in this mode.
        """
        calls = []
        for j in range(min(1, len(case.points) - 1), len(case.points)):
            try:
                value, point, kind = self.original.own_at(case.points[j], case.look_up, moved=j > 0, mode=mode)
            except UnsupportedModelError:
                return []
            calls.append(_Call(case=case, point=point, value=value, kind=self._precision(kind), who=who))
        return calls

    def twin(self, case: ReplayCase, j: int) -> _Call:
        """A call of the module's copy in float64 at point j of a case."""
        point, kind = case.points[j], self._precision(torch.float64)
        value = self.original.twin_at(point, case.look_up)
        return _Call(case=case, point=point, value=value, kind=kind, who="the module in float64", own=False)

    def _precision(self, kind: torch.dtype) -> torch.dtype:
        """The precision of a call in this dtype: at most float32 if the module casts a value to that or less."""
        return torch.float32 if self.reading.rounded and kind == torch.float64 else kind

    def in_batch(self, case: ReplayCase) -> list[_Call]:
        """A call of the user's object at an input in one batch with another; empty if it takes no such batch.

        The other input consists of the same numbers or ids in another order.
        """
        x = case.points[0] if case.look_up is None else case.look_up.ids
        if x.dim() < 2 or x.shape[0] != 1:
            return []
        values = self.original.batch_at(torch.cat([x, x.roll(1, -1) if case.look_up is not None else 0.5 * x.flip(-1)]))
        if values is None:
            return []
        kind = self.original.kinds[0]
        point = case.points[0] if case.look_up is not None else case.points[0].to(kind).double()
        who = "in a batch with another input the module"
        return [_Call(case=case, point=point, value=values[:1], kind=self._precision(kind), who=who)]

    def check(self, calls: Sequence[_Call]) -> None:
        """Raise if the value of a call is not that of the graph."""
        with torch.no_grad():
            points = torch.stack([call.point for call in calls])
            exact = torch.cat([self.graph.evaluate(some) for some in points.split(TOGETHER)])
            rough = torch.cat([self.single.evaluate(some.float()) for some in points.split(TOGETHER)]).double()
        for call, double, single in zip(calls, exact, rough, strict=True):
            self._compare(call, double, single)

    def _compare(self, call: _Call, exact: Tensor, rough: Tensor) -> None:
        """Raise if a call differs from the graph's value, which is `exact` in float64 and `rough` in float32."""
        value, where = call.value, call.case.description
        if value.shape != exact.shape:
            raise UnsupportedModelError(
                f"at {where}, {call.who} gives a tensor of shape {tuple(value.shape)}; torch.export recorded "
                f"{tuple(exact.shape)}: it has to do the same every time"
            )
        value_finite, exact_finite = bool(value.isfinite().all()), bool(exact.isfinite().all())
        if not value_finite and not exact_finite:
            return  # there is nothing to compare, and no bound will be finite
        if value_finite and not exact_finite:
            raise UnsupportedModelError(BEYOND)
        if not value_finite:
            raise UnsupportedModelError(
                f"at {where}, or near it in its set, {call.who} gives NaN or infinity ({call.kind}), where "
                "its formula has a number: an intermediate value overflows, or is divided by what is 0 but for "
                "rounding. Make the set smaller, scale the numbers down, or give norms an eps above 0"
            )
        off, allowed = float((value - exact).abs().max()), self._allowed(call.kind, exact, rough)
        if off > allowed:
            raise UnsupportedModelError(
                f"at {where}, or near it in its set, {call.who} differs by {off:.3g} from the graph that was "
                f"read from it, where rounding explains {allowed:.3g}. {self._why(call, exact, allowed)}"
            )

    def _fused(self, call: _Call, exact: Tensor, allowed: float) -> bool:
        """Whether the user's object agrees with the graph if torch's fused kernels are disabled."""
        with traceable():
            value, _, _ = self.original.own_at(call.point, call.case.look_up)
        return value.shape == exact.shape and float((value - exact).abs().max()) <= allowed

    def _allowed(self, kind: torch.dtype, exact: Tensor, rough: Tensor) -> float:
        """The tolerance for a call in this precision (see the module's docstring)."""
        size = float(exact.abs().max())
        unit = UNITS[kind]
        if kind == torch.float32 and self.original.device.type == "cuda":
            kind, unit = torch.float16, TF32
        noise = float((rough - exact).abs().max())
        noise = noise if math.isfinite(noise) else 0.0
        least = DOUBLE if kind == torch.float64 else self.floor * unit / UNITS[torch.float32]
        allowed = max(least * size, MARGIN * noise * unit / UNITS[torch.float32])
        return min(allowed, VAGUE[kind] * size) if size > 0 else allowed

    def _why(self, call: _Call, exact: Tensor, allowed: float) -> str:
        """The explanation of a difference: fused kernels, a wrong translation, or a module that cannot be exported."""
        if call.own and self._fused(call, exact, allowed):
            return FUSED
        tensor = self.reading.first_difference(call.point)
        if tensor is not None:
            return f"The first tensor that differs is {tensor}: it was read wrongly. Please report the model"
        part = self.original.first_part(call.point, call.case.look_up, self.reading.parts(call.point))
        where = f"; the first part that differs is {part!r}" if part else ""
        return (
            f"The graph is what torch.export recorded: it is the module that does something else when it is called"
            f"{where}. It has to be a function of its input, the same in every precision, at every call: no code "
            "behind torch.compiler.is_compiling(), no counters or caches, no random numbers, nothing that depends "
            "on the others of a batch"
        )
