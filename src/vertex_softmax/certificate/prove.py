"""Making a certificate: the checker's own steps, with claims a little wider than what they gave, and the last passes.

The boxes are those that the checker will find again, made wider by a share of their size (tolerances.CLAIM) so that
another machine's rounding does not matter. What the last passes choose for each objective comes from the ascent, or
from branch and bound, over the proved boxes: the same functions that `certify` and `verify` call.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.bounds.ascent import Ascent, Beginning, ascend
from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.box_passes import all_boxes
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import Aim, Progress, Search, Watchers, inner_ranges
from vertex_softmax.bounds.choice import Choice
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.splits import Split, part_boxes
from vertex_softmax.certificate.checker import curves, passes, proof
from vertex_softmax.certificate.checker.file import FORMAT, File
from vertex_softmax.certificate.checker.forward import propagation
from vertex_softmax.certificate.checker.network import Known, network
from vertex_softmax.certificate.checker.passes import PassOptions
from vertex_softmax.certificate.checker.rounding import ProvedInterval
from vertex_softmax.certificate.input_sets import checked_set, header_of_set
from vertex_softmax.certificate.lowering import lowered
from vertex_softmax.certificate.recording import Recorded
from vertex_softmax.certificate.touching import touching
from vertex_softmax.foundation.errors import InternalError, OutOfTimeError
from vertex_softmax.foundation.tolerances import CLAIM, LEAF
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bab import branch
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.contract import CentredRows
from vertex_softmax.ops.elementwise import Elementwise
from vertex_softmax.ops.generators import Generators
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.search.cascade import mix
from vertex_softmax.sets.region import BoxRegion, Region

Array = NDArray[np.float64]


class Proved(NamedTuple):
    """The question over the input set, and boxes that know what was proved."""

    question: Question
    boxes: Boxes


class Prover:
    """Proves the boxes of a graph over one set of inputs, step by step, and writes down what it did.

    The set is `region`, of one input; or, if that is None, the box from lower to upper (*input shape).
    """

    # Seven: the set may be given by its box alone.
    def __init__(
        self,
        graph: Graph,
        lower: Array,
        upper: Array,
        rules: tuple[RowRule, ...] = (RowRule.AFFINE,),
        deadline: float | None = None,
        *,
        forward: bool = False,
        region: Region | None = None,
    ) -> None:
        self.graph, self.low = graph, lowered(graph)
        self.arrays: dict[str, NDArray[Any]] = {}
        self.region = region or BoxRegion(*(torch.from_numpy(np.array(end)).unsqueeze(0) for end in (lower, upper)))
        given = checked_set(self.region)
        self.header: dict[str, Any] = {
            **header_of_set(given, self._keep),
            "lines": {},
            "steps": [],
            "property": [],
            "proofs": [],
        }
        self.nodes = network(File({"graph": self.low.entries}, self.low.arrays))
        self.known = Known(self.nodes, given.lower, given.upper, given=given)
        self.rules, self.deadline = rules, deadline
        self.op_of = {number: node.op for node, number in self.low.at.items()}
        with np.errstate(all="ignore"):
            if forward:
                self._run_forward()
            else:
                self._run()

    def _run_forward(self) -> None:
        """All boxes, and the form of the output, by one forward proof."""
        choices = Recorded(self._keep, self._lines, self._in_time)
        self.known.forward = propagation.run(self.known, choices)
        self.header["steps"].append({"kind": "forward", "choices": choices.names})

    def _run(self) -> None:
        users: dict[int, list[tuple[int, int]]] = {}
        for k, node in enumerate(self.nodes):
            for place, i in enumerate(node.inputs):
                users.setdefault(i, []).append((k, place))
        for number, node in enumerate(self.nodes):
            self._in_time()
            self.known.reach(number)
            mine = users.get(number, [])
            if node.op not in ("Input", "Constant") and any(_bends(self.nodes[k].op) for k, _ in mine):
                self._refine(number, [(self.nodes[k].op, k, place) for k, place in mine])
            for k, place in mine:
                if self.nodes[k].op in curves.CURVES and place == 0 and isinstance(self.op_of[k], Elementwise):
                    self._lines(k, self.known.boxes[number])

    def _in_time(self) -> None:
        if self.deadline is not None and time.perf_counter() > self.deadline:
            raise OutOfTimeError("the time is spent before a proof was found")

    def _refine(self, number: int, users: list[tuple[str, int, int]]) -> None:
        wants = any(op in ("MatMul", "Normalize") or (op == "Attention" and place == 1) for op, _, place in users)
        size = self.known.boxes[number].lo.size
        room = passes.MOST_COLUMNS // size - self.known.given.width
        if wants and room >= 0 and RowRule.AFFINE in self.rules:
            found = proof.zonotope(self.known, number)
            self._claim("zonotope", number, found.box().meet(self.known.boxes[number]))
            self.known.zonotopes[number] = found
            self.known.forget(number)
            return
        box = self.known.boxes[number]
        entries = np.arange(size)
        if all(op == "Relu" for op, _, _ in users if _bends(op)):
            entries = np.flatnonzero((box.lo < 0) & (box.hi > 0))
        for rule in self.rules:
            found_box = proof.box_by_pass(self.known, number, entries, rule)
            self._claim(
                "box", number, found_box, rule=rule, entries=self._keep(f"box.{number}.{rule}.entries", entries)
            )
        for op, k, place in users:
            if op == "Attention" and place == 0:
                self._centre(number, k)

    def _centre(self, number: int, user: int) -> None:
        """The scores less their mean by the softmax at the centre."""
        weights = self.known.softmax_rows(user).middle
        box = proof.box_by_pass(self.known, number, np.arange(weights.size), self.rules[0], weights)
        name = self._keep(f"centred.{user}.weights", weights)
        self.known.centred[user] = (weights, self._claim("centred", user, box, rule=self.rules[0], weights=name))
        self.known.forget(number)

    def _claim(self, kind: str, number: int, box: ProvedInterval, **more: Any) -> ProvedInterval:
        """Write down a step, and take its claim as known."""
        spare = CLAIM * np.maximum(np.abs(box.lo), np.abs(box.hi)) + 1e-300
        wider = ProvedInterval(box.lo - spare, box.hi + spare)
        count = len(self.header["steps"])
        names = {end: self._keep(f"step.{count}.{end}", x) for end, x in (("lower", wider.lo), ("upper", wider.hi))}
        self.header["steps"].append({"kind": kind, "node": number, **names, **more})
        if kind != "centred":
            self.known.boxes[number] = wider.meet(self.known.boxes[number])
            self.known.forget(number)
        return wider

    def _keep(self, name: str, value: NDArray[Any]) -> str:
        self.arrays[name] = value
        return name

    def _lines(self, number: int, box: ProvedInterval) -> tuple[Array, ...]:
        """Slopes of a curve's lines and band over the box of its input, and where they touch; they are written down."""
        op = self.op_of[number]
        if not isinstance(op, Elementwise):
            raise InternalError(f"{type(op).__name__} has no lines")
        ends = torch.from_numpy(np.array(box.lo)), torch.from_numpy(np.array(box.hi))
        lines = op.lines(Interval(*ends), Rules())
        band = op.band(Interval(*ends), lines)
        name = self.nodes[number].op
        found = [
            lines.lower_slope, touching(name, op, 1, lines.lower_slope, *ends),
            lines.upper_slope, touching(name, op, -1, lines.upper_slope, *ends),
            band.slope, touching(name, op, 1, band.slope, *ends), touching(name, op, -1, band.slope, *ends),
        ]  # fmt: skip
        arrays = tuple(x.numpy().copy() for x in found)
        self.known.lines[number] = arrays
        self.header["lines"][str(number)] = [self._keep(f"lines.{number}.{i}", x) for i, x in enumerate(arrays)]
        return arrays

    # The last part ---------------------------------------------------------------------------------------------------

    def state(self, cases: Sequence[ForbiddenCase]) -> None:
        """What is to be proved: none of these cases happens."""
        cases = [case if case.weights is not None else self._weighed(case) for case in cases]
        for i, case in enumerate(cases):
            arrays = {"rows": case.rows, "bound": case.bound, "weights": case.weighed()}
            self.header["property"].append({k: self._keep(f"case.{i}.{k}", v) for k, v in arrays.items()})
        self.cases = cases
        self.margins = np.full(len(cases), -np.inf)

    def _weighed(self, case: ForbiddenCase) -> ForbiddenCase:
        """The case with the weights of its rows that promise most: one of the rows, or a mix."""
        m = len(case.rows)
        ways = np.eye(m)
        if m > 1:
            if self.known.forward is None:
                rows = torch.from_numpy(case.rows).reshape(m, *self.graph.output.shape)
                mixed = mix(*self.proved(), rows, torch.from_numpy(case.bound)).numpy()
            else:
                mixed = np.full(m, 1 / m)
            ways = np.concatenate([ways, mixed[None]])
            with np.errstate(all="ignore"):
                A = (ways @ case.rows).reshape(-1, *self.nodes[-1].shape)
                limits = ways @ case.bound
                bounds = self._bounds(A, None if self.known.forward is not None else PassOptions())
                if self.known.before_norm is not None:
                    bounds = np.fmax(bounds, self._bounds(A, None, limits))
                bounds = bounds - limits
                sizes = np.abs(ways @ case.rows).sum(-1)
                promise = np.where(sizes > 0, bounds / sizes, -np.inf)  # rows that cancel altogether promise nothing
            ways = ways[[int(np.argmax(np.nan_to_num(promise, nan=-np.inf)))]]
        return case._replace(weights=ways[0])

    def by_rule(self, rule: RowRule) -> None:
        """All cases that are open, with a rule's default parameters."""
        self._try(self.open(), rule, 1, {})

    def by_form(self) -> None:
        """All cases that are open, by the form of the output that the forward proof gave."""
        self._try(self.open(), None, 1, {})

    def by_last_norm(self) -> None:
        """All cases, by the form of what the last norm reads; it is kept where it proves more."""
        if self.known.before_norm is not None:
            self._try(range(len(self.cases)), None, 1, {}, last_norm=True)

    def open(self) -> list[int]:
        """The cases that are not excluded yet."""
        return [i for i, margin in enumerate(self.margins) if not margin > 0]

    def by_ascent(self, ascent: Ascent, pieces: int, *, everything: bool = False) -> None:
        """All cases that are open, or all, with parameters optimised over the boxes that were proved."""
        self._in_time()
        which = list(range(len(self.cases))) if everything else self.open()
        if not which:
            return
        question, boxes = self.proved()
        rules = Rules(attention=RowRule.AFFINE, pieces=pieces, balls=False)
        A = torch.from_numpy(self._objectives(which)).reshape(1, len(which), *self.graph.output.shape)
        objective = Objective.dense(self.graph.output, A)
        found = ascend(question, boxes, objective, rules, ascent, beginning=Beginning(best=True))
        free = dataclasses.replace(rules, free=True)
        self._try(which, RowRule.AFFINE, pieces, self.chosen_values(question, boxes, objective, free, found.choice))

    def by_branching(self, search: Search, pieces: int, report: Progress | None = None) -> None:
        """All cases that are open, by branch and bound: a tree whose leaves are proved one by one."""
        which = self.open()
        if not which:
            return
        over = self.proved()
        A = torch.from_numpy(self._objectives(which)).reshape(len(which), *self.graph.output.shape)
        limits = torch.tensor([float(self.cases[i].weighed() @ self.cases[i].bound) for i in which]).double()
        goals = limits + LEAF * (1 + limits.abs())
        leaves: list[Part] = []
        root = Bound(torch.full_like(limits, -torch.inf).unsqueeze(0), over.boxes)
        options = Options(pieces=pieces, search=search)
        found = branch(over.question, root, Aim(A, goals=goals), options, Watchers(progress=report, leaves=leaves))
        for k, i in enumerate(which):
            if int(found.open[k]) == 0:
                mine = [leaf for leaf in leaves if leaf.objective == k]
                self._plant(i, A[k : k + 1], mine, pieces, over)

    def _plant(self, case: int, A: Tensor, leaves: list[Part], pieces: int, over: Proved) -> None:
        """Prove one case by the leaves of its tree over the proved boxes, and write the tree down."""
        question, boxes = over
        rules = Rules(attention=RowRule.AFFINE, pieces=pieces, free=True, balls=False)
        inner = inner_ranges(question, boxes, rules)
        objective = Objective.dense(self.graph.output, A.unsqueeze(0))
        entries: list[dict[str, Any]] = []
        number, limit = len(self.header["proofs"]), float(self.cases[case].weighed() @ self.cases[case].bound)
        arrays: dict[str, NDArray[Any]] = {}

        worst = math.inf
        waiting: list[tuple[list[Part], int, Known, int, str]] = [(leaves, 0, self.known, -1, "")]
        while waiting:  # each branch to its end, left before right; not by recursion: a tree may be of any depth
            mine, depth, known, above, side = waiting.pop()
            self._in_time()
            at = len(entries)
            if side:
                entries[above][side] = at
                known = known.part(entries[above]["split"], side == "left")
            entries.append({})
            if len(mine) == 1 and len(mine[0].splits) == depth:
                forbidden = (self.graph.input, question.index.start)
                part = part_boxes(boxes, inner, [mine[0].splits], forbidden).boxes
                choice = mine[0].choice.map(torch.Tensor.double)
                settled = self.chosen_values(question.on_parts(), part, objective, rules, choice)
                names = {}
                for node, of in settled.items():
                    names[str(node)] = {k: f"proof.{number}.{at}.{node}.{k}" for k in of}
                    arrays.update({names[str(node)][k]: v for k, v in of.items()})
                entries[at] = {"rule": RowRule.AFFINE, "pieces": pieces, "chosen": names}
                with np.errstate(all="ignore"):
                    how = PassOptions(rule=RowRule.AFFINE, chosen=settled)
                    bound = float(proof.bounds(known, len(self.nodes) - 1, A.numpy(), how)[0])
                worst = min(worst, -math.inf if math.isnan(bound) else bound)
                continue
            split = mine[0].splits[depth]
            entries[at]["split"] = [self._number(split), split.place, split.point, split.inner]
            for branch_side in ("right", "left"):  # the last is taken first
                rest = [leaf for leaf in mine if leaf.splits[depth].at_least == (branch_side == "right")]
                waiting.append((rest, depth + 1, known, at, branch_side))
        margin = worst - limit
        if margin > self.margins[case]:
            self.margins[case] = margin
            self.arrays.update(arrays)
            self.header["proofs"].append({"cases": [case], "tree": entries})

    def _number(self, split: Split) -> int:
        """The checker's node whose number (or whose σ) is split."""
        return self.low.at[split.node] if split.inner else self.low.number[split.node]

    def proved(self) -> Proved:
        """The question over the input set, and boxes that know what was proved."""
        known = self.known.boxes
        question = Question.over(self.graph, self.region)
        proved = {node: _box(known[number], node.shape) for node, number in self.low.number.items()}
        boxes = all_boxes(question, known=[Boxes(1, proved)])
        for node in question.index.nodes:
            number = self.low.at[node]
            if number in self.known.centred:
                weights, claimed = self.known.centred[number]
                source = node.inputs[0]
                shaped = torch.from_numpy(np.array(weights)).reshape(1, *source.shape)
                boxes = boxes.with_centred(source, node, CentredRows(shaped, _box(claimed, source.shape)))
            given = self.known.zonotopes.get(self.low.number[node])
            if given is not None and question.index.wants_generators(node):
                parts = (torch.from_numpy(np.array(x)).unsqueeze(0) for x in (given.centre, given.columns, given.error))
                boxes = boxes.with_generators(question.index, node, Generators(*parts))
        return Proved(question, boxes)

    def chosen_values(
        self, question: Question, boxes: Boxes, objective: Objective, rules: Rules, choice: Choice
    ) -> dict[int, dict[str, Array]]:
        """What a pass with these parameters chooses, under the checker's names, for each of the checker's nodes."""
        found: dict[int, dict[str, Array]] = {}
        numbers = question.index.start_numbers(question.device).reshape(-1)
        with torch.no_grad():
            linear = backward(question, boxes, objective, rules, choice, Wanted(steps=True))
        for step in linear.steps:
            node, own = step.node, choice.parameters.get(step.node, {})
            relaxation = question.relaxations.of(node, boxes, rules)
            if own:
                relaxation = relaxation.with_parameters(own)
            values = relaxation.chosen_values(step.coefficients.dense())
            if "corner" in own:  # it is on the numbers of the start, which are those of the input, rearranged
                values["corner"] = torch.zeros_like(own["corner"]).index_copy(-1, numbers, own["corner"])
            number = self.low.at[node]
            if (
                "corner" in values and self.known.planes(number).exact is None
            ):  # then the planes at the centre are taken
                del values["corner"]
            if values:
                found[number] = {k: v[0].detach().numpy().copy() for k, v in values.items()}
            if "below" in values and isinstance(node.op, Elementwise):
                ends = boxes[node.inputs[0]]
                for side, sign in (("below", 1), ("above", -1)):
                    touch = touching(self.nodes[number].op, node.op, sign, values[side][0], *(x[0] for x in ends))
                    found[number][f"touch_{side}"] = np.swapaxes(touch.numpy(), 0, 1).copy()
        for node, (least, most) in linear.multipliers.items():
            found.setdefault(self.low.number[node], {})["held"] = (most - least)[0].numpy().copy()
        return found

    def _objectives(self, which: Sequence[int]) -> Array:
        shape = self.nodes[-1].shape
        return np.stack([(self.cases[i].weighed() @ self.cases[i].rows).reshape(shape) for i in which])

    def _bounds(self, A: Array, how: PassOptions | None, limits: Array | None = None) -> Array:
        """Lower bounds of objectives on the output: by a pass, or, if `how` is None, by the form of the output.

        With limits (S,) by the form of what the last norm reads.
        """
        with np.errstate(all="ignore"):
            if how is None:
                return proof.by_form(self.known, A) if limits is None else proof.behind_norm(self.known, A, limits)
            return proof.bounds(self.known, len(self.nodes) - 1, A, how)

    def _try(
        self,
        which: Sequence[int],
        rule: RowRule | None,
        pieces: int,
        chosen: dict[int, dict[str, Array]],
        *,
        last_norm: bool = False,
    ) -> None:
        """One proof of some cases; it is kept for those that it excludes, or brings further."""
        if not which:
            return
        how = None if rule is None else PassOptions(rule=rule, chosen=chosen)
        limits = np.array([self.cases[i].weighed() @ self.cases[i].bound for i in which])
        bound = self._bounds(self._objectives(which), how, limits if last_norm else None)
        better = [k for k, i in enumerate(which) if bound[k] - limits[k] > self.margins[i]]
        if not better:
            return
        self.margins[[which[k] for k in better]] = (bound - limits)[better]
        number = len(self.header["proofs"])
        names = {
            str(node): {k: self._keep(f"proof.{number}.{node}.{k}", v[better]) for k, v in of.items()}
            for node, of in chosen.items()
        }
        leaf: dict[str, Any] = {"rule": rule, "pieces": pieces, "chosen": names}
        if rule is None:
            leaf = {"last_norm": True} if last_norm else {"forward": True}
        self.header["proofs"].append({"cases": [which[k] for k in better], "tree": [leaf]})

    @property
    def margin(self) -> float:
        """What was proved of all cases."""
        return float(min(self.margins, default=-math.inf))


def written(provers: Sequence[Prover], about: dict[str, Any]) -> bytes:
    """One file of several parts, of one network; `about` goes into its header."""
    from safetensors.numpy import save

    arrays = dict(provers[0].low.arrays)
    parts = []
    for number, prover in enumerate(provers):
        prefix = f"part.{number}."
        arrays.update({prefix + name: value for name, value in prover.arrays.items()})
        parts.append(_prefixed(prover.header, prefix, set(prover.arrays)))
    claimed = min(prover.margin for prover in provers)
    header = {"format": FORMAT, **about, "claimed": claimed, "graph": provers[0].low.entries, "parts": parts}
    compact = {name: _compact(x) for name, x in arrays.items()}
    return bytes(save(compact, metadata={"certificate": json.dumps(header)}))


def _prefixed(value: Any, prefix: str, names: set[str]) -> Any:
    """The same, with the names of arrays longer by a prefix."""
    if isinstance(value, dict):
        return {k: _prefixed(v, prefix, names) for k, v in value.items()}
    if isinstance(value, list):
        return [_prefixed(v, prefix, names) for v in value]
    return prefix + value if isinstance(value, str) and value in names else value


class ForbiddenCase(NamedTuple):
    """rows y ≤ bound, all at once, must not happen: rows (m, outputs), bound (m,), and the weights that exclude it."""

    rows: Array
    bound: Array
    weights: Array | None
    """None: choose"""

    def weighed(self) -> Array:
        """The weights, which were chosen."""
        if self.weights is None:
            raise InternalError("the weights of a case were not chosen")
        return self.weights


def _compact(x: NDArray[Any]) -> NDArray[Any]:
    """Single precision where that holds every number exactly."""
    if x.dtype == np.float64:
        with np.errstate(over="ignore"):
            small = x.astype(np.float32)
        if (small == x).all():
            return small
    return np.ascontiguousarray(x).reshape(x.shape)  # it makes a number an array of one


def _box(box: ProvedInterval, shape: tuple[int, ...]) -> Interval:
    return Interval(
        *(torch.from_numpy(np.array(np.broadcast_to(x, box.lo.shape))).reshape(1, *shape) for x in (box.lo, box.hi))
    )


def _bends(op: str) -> bool:
    return op in ("Relu", "MatMul", "Multiply", "Attention", "Normalize") or op in curves.CURVES
