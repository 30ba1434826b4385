"""Proofs in rounds: the set of one case is cut to where it may still happen, and all boxes are proved anew over that.

The narrowing of bounds/narrowing.py, made again with what the checker knows: each cut is by the linear bound that the
checker's own pass gives, and the box around what is left is a little wider than the checker will find it, so that
another machine's rounding does not matter. What narrowing leaves open is split, over what is left: as the search has
done it that decided, or anew.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vertex_softmax.bounds.ascent import Ascent, Beginning, Goal, ascend
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.narrowing import ENOUGH, ROUNDS
from vertex_softmax.bounds.record import Record, RestRecord
from vertex_softmax.certificate.checker.file import FORMAT, File, Rejected
from vertex_softmax.certificate.checker.input_sets import CheckedBox, CheckedSet
from vertex_softmax.certificate.checker.narrowing import HalfSpace, half_space, needed
from vertex_softmax.certificate.checker.passes import Pass
from vertex_softmax.certificate.checker.trees import passed_alone, read_packed
from vertex_softmax.certificate.planting import Searched
from vertex_softmax.certificate.prove import Prover
from vertex_softmax.certificate.rest_proofs import RestAim, RestProofs, Unproved, adopted, is_useless
from vertex_softmax.foundation.tolerances import CLAIM, SURE
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.cut_region import CutRegion

ABOVE = 4.0
"""How far the level is above a case's limit, in units of the least margin that counts as sure."""
Arrays = dict[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Narrowing:
    """How much work goes into the rounds of one case."""

    ascent: Ascent
    pieces: int
    search: Search | None
    """of what narrowing leaves open; None: there is no new search"""
    trees: Mapping[int, Searched] = dataclasses.field(default_factory=dict)
    """by case: a search of it over a narrower set, with case and objective 0, whose tree is proved before"""
    searches: Sequence[Searched] = ()
    """those that have narrowed the sets of some cases: what they have done is proved before anything else"""
    again: bool = True
    """whether sets are narrowed anew where that is no proof"""


def by_narrowing(prover: Prover, how: Narrowing) -> None:
    """All cases that are open over a box, each by rounds of its own; a proof is kept where it excludes its case."""
    if isinstance(prover.known.given, CheckedBox):
        rests = {case: (each, rest) for each in how.searches for case, rest in each.rests().items()}
        for case in prover.open():
            rounds = _Rounds(prover, case, how)
            if (case not in rests or not rounds.run_as(*rests[case])) and how.again:
                rounds.run()


class _Rounds:
    """The rounds of one case."""

    def __init__(self, prover: Prover, case: int, how: Narrowing) -> None:
        self.first, self.case, self.how = prover, case, how
        self.limit = float(prover.limits_of([case])[0])
        unit = SURE * (1 + abs(self.limit))
        self.level, self.sure = self.limit + ABOVE * unit, self.limit + unit
        self.prefix = f"proof.{len(prover.header['proofs'])}"
        self.arrays: Arrays = {}
        self.rounds: list[tuple[dict[str, Any], Prover]] = []
        """the tree of each cut, and what is proved over what it leaves"""
        self.A = prover.objectives([case])

    def run_as(self, searched: Searched, record: RestRecord) -> bool:
        """What a search has done, proved with its own parameters; whether that is a proof."""
        aim = RestAim(
            A=self.A,
            level=self.level,
            sure=self.sure,
            case=self.first.cases[self.case],
            ascent=self.how.ascent,
            pieces=self.how.pieces,
            search=self.how.search,
            prefix=self.prefix,
        )
        proofs = RestProofs(self.first, searched, aim)
        try:
            found = proofs.whole(record)
        except (Unproved, Rejected):
            return False
        name, margin = f"{self.prefix}.level", float(np.nextafter(found.bound - self.limit, -np.inf))
        self.first.arrays |= {**proofs.arrays, name: np.array([self.level])}
        self.first.header["proofs"].append({"cases": [self.case], "level": name, **found.header})
        self.first.margins[self.case] = max(margin, self.first.margins[self.case])
        return True

    def run(self) -> None:
        """Narrow until the bound over what is left is above the limit; what narrowing leaves open is split."""
        here, best = self.first, -math.inf
        for count in range(ROUNDS + 1):
            self.first.in_time()
            tree, arrays, found = self._bounded(here, f"{self.prefix}.cut.{count}")
            bound = float(found.bound()[0])
            gained, missing, best = bound - best, self.level - bound, max(best, bound)
            if bound > self.sure:
                self.arrays |= arrays
                self._keep(tree, bound)
                return
            smaller = None
            if count < ROUNDS and gained >= ENOUGH * (missing + gained):
                smaller = left_over(here.known.given, half_space(here.known.given, found.linear_bound(), self.level))
            if smaller is None:
                break
            here = here.over(smaller)
            here.state([self.first.cases[self.case]])
            self.arrays |= arrays
            self.rounds.append((tree, here))
        if self.rounds:
            self._split(here)

    def _bounded(self, here: Prover, prefix: str) -> tuple[dict[str, Any], Arrays, Pass]:
        """A tree of one leaf with optimised parameters, the arrays that it names, and the checker's pass with these."""
        question, boxes = here.proved()
        rules = Rules(attention=RowRule.AFFINE, pieces=self.how.pieces, balls=False)
        A = torch.from_numpy(self.A).reshape(1, 1, *here.graph.output.shape)
        objective = Objective.dense(here.graph.output, A)
        found = ascend(question, boxes, objective, rules, self.how.ascent, Goal(self.level), Beginning(best=True))
        record = Record()
        record.boxes = boxes
        searched = Searched(question.on_parts(), rules, record, {0: 0})
        leaf = Part(0, choice=found.choice, bound=float(found.bound))
        tree, arrays = here.planter.tree(searched, [leaf], prefix)
        with np.errstate(all="ignore"):
            packed = read_packed(tree, here.known, 1, File({"format": FORMAT}, arrays))
            return tree, arrays, passed_alone(packed, here.known, self.A)

    def _split(self, here: Prover) -> None:
        """By a tree over what is left: the one that is given, or that of a new search."""
        if self.case in self.how.trees:
            here.by_search(self.how.trees[self.case])
        if here.open() and self.how.search is not None:
            here.by_branching(self.how.search, self.how.pieces)
        if here.margins[0] > 0:
            proof = here.header["proofs"][-1]
            tree = adopted(proof["tree"], here.arrays, f"{self.prefix}.last.", self.arrays)
            self._keep(tree, float(here.margins[0]) + self.limit)

    def _round(self, count: int, cut: dict[str, Any], here: Prover) -> dict[str, Any]:
        """A round in words of the header."""
        header = {name: here.header[name] for name in ("lower", "upper", "lines", "steps")}
        return {"cut": cut, **adopted(header, here.arrays, f"{self.prefix}.round.{count}.", self.arrays)}

    def _keep(self, tree: Any, bound: float) -> None:
        """The proof goes into the certificate."""
        proof: dict[str, Any] = {"cases": [self.case], "tree": tree}
        if self.rounds:
            bound, name = min(bound, self.level), f"{self.prefix}.level"
            self.arrays[name] = np.array([self.level])
            proof |= {"level": name, "rounds": [self._round(k, *each) for k, each in enumerate(self.rounds)]}
        margin = float(np.nextafter(bound - self.limit, -np.inf))
        if margin > self.first.margins[self.case]:
            self.first.margins[self.case] = margin
            self.first.arrays |= self.arrays
            self.first.header["proofs"].append(proof)


def left_over(given: CheckedSet, half: HalfSpace) -> CutRegion | None:
    """What a half-space leaves of a set, in a box wider than it has to be; None if that is almost all."""
    box, shape = given.box, given.lower.shape
    lower, upper, slope = box.lo.ravel(), box.hi.ravel(), half.slope
    if is_useless(lower, upper, half):
        return None
    spare = CLAIM * float(np.abs(slope) @ box.size.ravel())
    large = np.abs(slope) > CLAIM * np.abs(slope).max()
    wide = needed(given, HalfSpace(np.where(large, slope, 0.0), half.limit + spare))
    need = needed(given, half)
    more = CLAIM * np.maximum(np.abs(box.lo), np.abs(box.hi))
    ends = np.minimum(wide.lo, need.lo) - more, np.maximum(wide.hi, need.hi) + more
    ends = np.maximum(ends[0], box.lo), np.minimum(ends[1], box.hi)
    least_ends, most_ends, slopes = (torch.from_numpy(np.array(x).reshape(1, *shape)) for x in (*ends, slope))
    return CutRegion(least_ends, most_ends, slopes, torch.tensor([half.limit], dtype=torch.float64))
