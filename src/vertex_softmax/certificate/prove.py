"""Making a certificate: the checker's own steps, with claims a little wider than what they gave, and the last passes.

The boxes are those that the checker will find again, made wider by a share of their size (tolerances.CLAIM) so that
another machine's rounding does not matter. What the last passes choose for each objective comes from the ascent, or
from branch and bound, over the proved boxes: the same functions that `certify` and `verify` call.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vertex_softmax.bounds.ascent import AscendedEntries, Ascent, Beginning, ascend
from vertex_softmax.bounds.branch_and_bound import Aim, Progress, Search, Watchers
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.record import Record
from vertex_softmax.certificate import writing
from vertex_softmax.certificate.checker import curves, passes, proof, ranges, rows
from vertex_softmax.certificate.checker.file import FORMAT, File
from vertex_softmax.certificate.checker.forward import propagation
from vertex_softmax.certificate.checker.images import centred_product, has_factors, image
from vertex_softmax.certificate.checker.network import Known, network
from vertex_softmax.certificate.checker.passes import PassOptions
from vertex_softmax.certificate.checker.rounding import ProvedInterval
from vertex_softmax.certificate.checker.trees import read_packed
from vertex_softmax.certificate.checker.zonotopes import ProvedZonotope
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.input_sets import checked_set, header_of_set
from vertex_softmax.certificate.lowering import lowered
from vertex_softmax.certificate.planting import Planter, Searched
from vertex_softmax.certificate.proved_boxes import Proved, proved_boxes
from vertex_softmax.certificate.recording import Recorded
from vertex_softmax.certificate.score_boxes import ScoreProof
from vertex_softmax.certificate.shared_zonotopes import bends, shared_sources, wants_zonotope
from vertex_softmax.certificate.touching import touching
from vertex_softmax.certificate.writing import WrittenPart
from vertex_softmax.foundation.errors import InternalError, OutOfTimeError
from vertex_softmax.foundation.tolerances import CLAIM, LEAF, SURE
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bab import branch, rules_of
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.elementwise import Elementwise
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.search.mixing import mix
from vertex_softmax.sets.cut_region import CutRegion
from vertex_softmax.sets.region import BoxRegion, Region

Array = NDArray[np.float64]
ROUNDS = 4
"""How often a tree is proved, and the search goes on between, at most."""
FEW, MOST_WEAK = 32, 0.25
"""A search goes on from so many leaves, or from this share of them, at most: where more do not prove, the checker knows
less of the network than the search did, and the tree is not its proof."""
LONGEST = 600.0
"""Seconds for which a search goes on where there is no deadline."""


class Prover:
    """Proves the boxes of a graph over one set of inputs, step by step, and writes down what it did.

    The set is `region`, of one input; or, if that is None, the box from lower to upper (*input shape).
    """

    # Nine: the set may be given by its box alone; and which boxes are proved.
    def __init__(
        self,
        graph: Graph,
        lower: Array,
        upper: Array,
        rules: tuple[RowRule, ...] = (RowRule.AFFINE,),
        deadline: float | None = None,
        *,
        forward: bool = False,
        scores: ScoreProof = ScoreProof.ALL,
        shared: bool = True,
        region: Region | None = None,
    ) -> None:
        """shared: zonotopes may be made from others where scores are not proved by passes: sooner, a little wider."""
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
        self.rules, self.deadline, self.memory, self.is_forward = rules, deadline, Memory(), forward
        self.scores = scores
        self.sources = shared_sources(self.nodes) if shared and scores < ScoreProof.ALL else {}
        """node → the node from whose zonotope its own is made, where it is not by passes"""
        self.claims = True
        """whether steps claim ranges, a little wider than what was proved; else what is proved is known"""
        self.planter = Planter(graph, self.low, self.known)
        self.late: list[AscendedEntries] = []
        """the boxes of searches that are proved"""
        self.op_of = {number: node.op for node, number in self.low.at.items()}
        self._prove_boxes()

    def _prove_boxes(self) -> None:
        """Boxes of all nodes over the set."""
        with np.errstate(all="ignore"):
            if self.is_forward:
                self._run_forward()
            else:
                self._run()

    def inside(self, known: Known, region: Region | None) -> Prover:
        """A prover of the same kind over a part of this set, of which something is known; its steps claim nothing.

        region: the part as bounds see it; None: it is this set but for cuts, and no steps are proved.
        """
        inner = copy.copy(self)
        inner.known, inner.region, inner.claims, inner.late, inner.arrays = known, region or self.region, False, [], {}
        inner.header = {"lines": {}, "steps": [], "property": [], "proofs": []}
        inner.planter = Planter(self.graph, self.low, known)
        if region is not None:
            inner._prove_boxes()
        return inner

    def _run_forward(self) -> None:
        """All boxes, and the form of the output, by one forward proof."""
        choices = Recorded(self._keep, self._lines, self.in_time)
        self.known.forward = propagation.run(self.known, choices)
        self.header["steps"].append({"kind": "forward", "choices": choices.names})

    def _run(self) -> None:
        users: dict[int, list[tuple[int, int]]] = {}
        for k, node in enumerate(self.nodes):
            for place, i in enumerate(node.inputs):
                users.setdefault(i, []).append((k, place))
        for number, node in enumerate(self.nodes):
            self.in_time()
            self.known.reach(number)
            mine = users.get(number, [])
            if number in self.sources.values():
                self._take(number, "zonotope", ranges.zonotope(self.known, number))
            if node.op not in ("Input", "Constant") and any(bends(self.nodes[k].op) for k, _ in mine):
                self._refine(number, [(self.nodes[k].op, k, place) for k, place in mine])
            for k, place in mine:
                if self.nodes[k].op in curves.FUNCTIONS and place == 0 and isinstance(self.op_of[k], Elementwise):
                    self._lines(k, self.known.boxes[number])

    def in_time(self) -> None:
        """Raise if the time is spent."""
        if self.deadline is not None and time.perf_counter() > self.deadline:
            raise OutOfTimeError("the time is spent before a proof was found")

    def _refine(self, number: int, users: list[tuple[str, int, int]]) -> None:
        wants = any(wants_zonotope(op, place) for op, _, place in users)
        size = self.known.boxes[number].lo.size
        room = passes.MOST_COLUMNS // size - self.known.given.width
        if wants and room >= 0 and RowRule.AFFINE in self.rules:
            self._zonotope(number)
            return
        box = self.known.boxes[number]
        entries = np.arange(size)
        if all(op == "Relu" for op, _, _ in users if bends(op)):
            entries = np.flatnonzero((box.lo < 0) & (box.hi > 0))
        spared = self.scores < ScoreProof.ALL and all(op == "Attention" and place == 0 for op, _, place in users)
        for rule in self.rules if (len(entries) or self.claims) and not spared else ():
            found_box = ranges.box_by_pass(self.known, number, entries, rule)
            self._claim(
                "box", number, found_box, rule=rule, entries=self._keep(f"box.{number}.{rule}.entries", entries)
            )
        for op, k, place in users:
            if op == "Attention" and place == 0 and self.scores > ScoreProof.INTERVALS:
                self._centre(number, k)

    def _zonotope(self, number: int) -> None:
        """The zonotope of a node, by passes or from that of what it and others read."""
        source = self.sources.get(number)
        if source is not None:
            self._take(number, "image", image(self.known, number, source), of=source)
        elif number not in self.known.zonotopes:
            self._take(number, "zonotope", ranges.zonotope(self.known, number))

    def _take(self, number: int, kind: str, found: ProvedZonotope, **more: int) -> None:
        """Write down the step that gave a zonotope, and take it as known."""
        self._claim(kind, number, found.box().meet(self.known.boxes[number]), **more)
        self.known.zonotopes[number] = found
        self.known.forget(number)

    def centre_scores(self) -> None:
        """Prove boxes of all scores less their means, where there are none yet."""
        self.scores = max(self.scores, ScoreProof.CENTRED)
        with np.errstate(all="ignore"):
            for k, node in enumerate(self.nodes):
                if node.op == "Attention" and k not in self.known.centred:
                    self.in_time()
                    self._centre(node.inputs[0], k)

    def _centre(self, number: int, user: int) -> None:
        """The scores less their mean by the softmax at the centre."""
        visible = ~self.nodes[user].arrays.get("mask", np.zeros(self.nodes[number].shape, dtype=bool))
        weights = rows.middle_weights(self.known.boxes[number], visible).astype(np.float32).astype(np.float64)
        rule: str = proof.BY_FACTORS if has_factors(self.known, number) else self.rules[0]
        by_pass = functools.partial(ranges.box_by_pass, self.known, number, np.arange(weights.size), rule)
        box = by_pass(weights) if rule in self.rules else centred_product(self.known, number, weights)
        name = self._keep(f"centred.{user}.weights", weights)
        self.known.centred[user] = (weights, self._claim("centred", user, box, rule=rule, weights=name))
        self.known.forget(number)

    def _claim(self, kind: str, number: int, box: ProvedInterval, **more: Any) -> ProvedInterval:
        """Write down a step, and take its claim, or what was proved, as known."""
        self.planter.forget_bounds()
        if not self.claims:
            self.header["steps"].append({"kind": kind, "node": number, **more})
            if kind != "centred":
                self.known.boxes[number] = box.meet(self.known.boxes[number]).ordered()
                self.known.forget(number)
            return box
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
        band = op.band(Interval(*ends), Rules())
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
        self._try(self.open(), rule)

    def by_form(self) -> None:
        """All cases that are open, by the form of the output that the forward proof gave."""
        self._try(self.open(), None)

    def by_last_norm(self) -> None:
        """All cases, by the form of what the last norm reads; it is kept where it proves more."""
        if self.known.before_norm is not None:
            self._try(range(len(self.cases)), None, last_norm=True)

    def over(self, region: CutRegion) -> Prover:
        """A prover of the same kind over a narrower set, (1, *input shape); it has no cases yet."""
        lower, upper = (end[0].numpy() for end in region.box)
        return Prover(
            self.graph,
            lower,
            upper,
            self.rules,
            self.deadline,
            forward=self.is_forward,
            scores=self.scores,
            shared=bool(self.sources),
            region=region,
        )

    def open(self) -> list[int]:
        """The cases that are not excluded yet."""
        return [i for i, margin in enumerate(self.margins) if not margin > 0]

    def by_ascent(self, ascent: Ascent, pieces: int, *, everything: bool = False) -> None:
        """All cases that are open, or all, with parameters optimised over the boxes that were proved."""
        self.in_time()
        which = list(range(len(self.cases))) if everything else self.open()
        if not which:
            return
        question, boxes = self.proved()
        rules = Rules(attention=RowRule.AFFINE, pieces=pieces, balls=False)
        A = torch.from_numpy(self.objectives(which)).reshape(1, len(which), *self.graph.output.shape)
        objective = Objective.dense(self.graph.output, A)
        found = ascend(question, boxes, objective, rules, ascent, beginning=Beginning(best=True))
        record = Record()
        record.boxes = boxes
        searched = Searched(question.on_parts(), rules, record, dict(enumerate(which)))
        for k in range(len(which)):
            choice = found.choice.map(lambda value, k=k: value[:, k : k + 1])  # type: ignore[misc]
            record.leaves.append(Part(k, choice=choice, bound=float(found.bound[0, k])))
        self.by_search(searched)

    def by_branching(self, search: Search, pieces: int, report: Progress | None = None) -> None:
        """All cases that are open, by branch and bound over the boxes that were proved."""
        which = self.open()
        if not which:
            return
        over, limits = self.proved(), torch.from_numpy(self.limits_of(which))
        A = torch.from_numpy(self.objectives(which)).reshape(len(which), *self.graph.output.shape)
        goals = limits + LEAF * (1 + limits.abs())
        root = Bound(torch.full_like(limits, -torch.inf).unsqueeze(0), over.boxes)
        # whoever proves narrows by itself (narrowed_proofs.py), and halves of the input are parts of the certificate
        search = dataclasses.replace(search, narrowing=0.0, halving=0.0)
        options, record = Options(pieces=pieces, search=search), Record()
        branch(over.question, root, Aim(A, goals=goals), options, Watchers(progress=report, record=record))
        self.by_search(Searched(over.question.on_parts(), rules_of(options), record, dict(enumerate(which))))

    def by_search(self, searched: Searched) -> None:
        """Cases that a search has excluded, by its trees; where a leaf does not prove, the search goes on."""
        self._late_box(searched)
        record = searched.record
        for objective, case in searched.cases.items():
            if not any(objective in decided for decided in (record.open, record.narrowed, record.halves)):
                self._plant(searched, objective, case)

    def _plant(self, searched: Searched, objective: int, case: int) -> None:
        """One case by the tree of its objective, as often as the search can go on where a leaf does not prove."""
        record, limit = searched.record, float(self.limits_of([case])[0])
        proved, fitted = dict[int, float](), set[str]()
        for _ in range(ROUNDS):
            self.in_time()
            planted = self.planter.planted(searched, objective, case, len(self.header["proofs"]))
            if planted is None:
                return
            tree, arrays, ordered = planted.tree, planted.arrays, planted.ordered
            if set(tree["fitted"]) != fitted:  # a tree that has become large is bounded in another way
                fitted, proved = set(tree["fitted"]), {}
            proved = planted.bounds or proved
            bounds = self.leaf_bounds(tree, arrays, case, [proved.get(id(leaf)) for leaf in ordered])
            proved = {id(leaf): bound for leaf, bound in zip(ordered, bounds, strict=True)}
            least = limit + SURE * (1 + abs(limit))
            weak = [leaf for leaf in ordered if not proved[id(leaf)] > least]
            if not weak or len(weak) > max(FEW, MOST_WEAK * len(ordered)):
                break
            lost = max(max(leaf.bound - proved[id(leaf)], 0.0) for leaf in weak)
            goal = limit + 2 * lost + LEAF * (1 + abs(limit))
            goals = self._goals(searched, objective, goal)
            if not math.isfinite(goal) or not record.resume(weak, goals, self.seconds_left()):
                break
        margin = float(np.nextafter(min(proved.values()) - limit, -np.inf))
        if margin > self.margins[case]:
            self.margins[case] = margin
            self.arrays.update(arrays)
            self.header["proofs"].append({"cases": [case], "tree": tree})

    def leaf_bounds(
        self, tree: dict[str, Any], arrays: dict[str, NDArray[Any]], case: int, known: Sequence[float | None]
    ) -> list[float]:
        """The checker's bounds over all leaves of a tree, in preorder; those that are known already are not made."""
        A = self.objectives([case])
        with np.errstate(all="ignore"):
            packed = read_packed(tree, self.known, 1, File({"format": FORMAT}, arrays))
            missing = [k for k, bound in enumerate(known) if bound is None]
            found = dict(zip(missing, proof.leaf_bounds(self.known, A, packed, set(missing))[missing, 0], strict=True))
        bounds = [found[k] if bound is None else bound for k, bound in enumerate(known)]
        return [-math.inf if math.isnan(bound) else float(bound) for bound in bounds]

    def _late_box(self, searched: Searched) -> None:
        """The box that a search has optimised on its way, by passes with the parameters that it found."""
        late, question = searched.record.late, searched.question
        if late is None or late in self.late:
            return
        self.late.append(late)
        number, (entries, chosen) = self.planter.number(question)[late.node], self.planter.entries(question, late)
        exact = {node: {name: value.astype(np.float64) for name, value in of.items()} for node, of in chosen.items()}
        with np.errstate(all="ignore"):
            box = ranges.box_by_pass(self.known, number, entries, RowRule.AFFINE, chosen=exact)
        count = len(self.header["steps"])
        names = {
            str(node): {name: self._keep(f"step.{count}.{node}.{name}", value) for name, value in of.items()}
            for node, of in chosen.items()
        }
        more = {"entries": self._keep(f"step.{count}.entries", entries), "pieces": 1, "chosen": names}
        self._claim("box", number, box, rule=RowRule.AFFINE, **more)

    def _goals(self, searched: Searched, objective: int, goal: float) -> list[float]:
        """The goals of all objectives of a search of which one has this goal; the others are not asked about."""
        return [goal if k == objective else -math.inf for k in range(1 + max(searched.cases))]

    def seconds_left(self) -> float:
        """The seconds that are left."""
        return LONGEST if self.deadline is None else max(0.0, self.deadline - time.perf_counter())

    def proved(self) -> Proved:
        """The question over the input set, and boxes that know what was proved."""
        return proved_boxes(Question.over(self.graph, self.region, memory=self.memory), self.low, self.known)

    def objectives(self, which: Sequence[int]) -> Array:
        """The objectives of some cases, (S, *output shape)."""
        shape = self.nodes[-1].shape
        return np.stack([(self.cases[i].weighed() @ self.cases[i].rows).reshape(shape) for i in which])

    def limits_of(self, which: Sequence[int]) -> Array:
        """What the bounds of some cases have to exceed."""
        self.known.reach(len(self.nodes) - 1)
        with np.errstate(all="ignore"):
            return np.array([proof.limit_of(self.known, *self.cases[i].proved()) for i in which])

    def _bounds(self, A: Array, how: PassOptions | None, limits: Array | None = None) -> Array:
        """Lower bounds of objectives on the output: by a pass, or, if `how` is None, by the form of the output.

        With limits (S,) by the form of what the last norm reads.
        """
        with np.errstate(all="ignore"):
            if how is None:
                return proof.by_form(self.known, A) if limits is None else proof.behind_norm(self.known, A, limits)
            return proof.bounds(self.known, len(self.nodes) - 1, A, how)

    def _try(self, which: Sequence[int], rule: RowRule | None, *, last_norm: bool = False) -> None:
        """One proof of some cases, by a pass or by a form; it is kept for those that it excludes, or brings further."""
        if not which:
            return
        how = None if rule is None else PassOptions(rule=rule)
        limits = self.limits_of(which)
        bound = self._bounds(self.objectives(which), how, limits if last_norm else None)
        margins = np.nextafter(bound - limits, -np.inf)
        better = [k for k, i in enumerate(which) if margins[k] > self.margins[i]]
        if not better:
            return
        self.margins[[which[k] for k in better]] = margins[better]
        leaf: dict[str, Any] = {"rule": rule, "pieces": 1, "chosen": {}}
        if rule is None:
            leaf = {"last_norm": True} if last_norm else {"forward": True}
        self.header["proofs"].append({"cases": [which[k] for k in better], "tree": [leaf]})

    @property
    def sure(self) -> bool:
        """Whether every margin is larger than what another order of the same sums can change."""
        return bool((self.margins > SURE * (1 + np.abs(self.limits_of(range(len(self.cases)))))).all())

    @property
    def margin(self) -> float:
        """What was proved of all cases."""
        return float(min(self.margins, default=-math.inf))


def written(provers: Sequence[Prover], about: dict[str, Any]) -> bytes:
    """One file of several parts, of one network; `about` goes into its header."""
    parts = [WrittenPart(prover.header, prover.arrays) for prover in provers]
    return writing.written(provers[0].low, parts, about, min(prover.margin for prover in provers))
