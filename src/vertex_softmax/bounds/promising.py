"""Branch and bound that is given up as soon as it does not promise to end, because better boxes can be made.

Invariant: as in branch and bound, the bounds returned hold over the whole set. Whether it goes on depends only on the
worst bound, which is looked at each time the number of bounded parts has doubled, and not on the clock; so the same
question always has the same tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vertex_softmax.bounds.aims import Aim, Outcome, Search, Stop, Watchers
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import BranchAndBound
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.question import Question
from vertex_softmax.ops.rules import Rules

FIRST = 500
"""The promise of the tree is looked at for the first time after this many bounded parts."""
MOST = 4000
"""The tree is given up unless it promises to end within this many parts."""


def promises(before: float, now: float, doublings: float) -> bool:
    """Whether a worst bound will reach its goal if each further doubling gains as much as the last one.

    before, now: the least bound minus goal before the last doubling, and after it.
    """
    gained = now - before
    return gained > 0 and -now <= gained * doublings


def branch_while_promising(
    question: Question, boxes: Boxes, aim: Aim, rules: Rules, search: Search, watchers: Watchers
) -> Outcome:
    """Bound objectives over the set of a question with one input; the search may end as `Stop.UNPROMISING`."""
    return PromisingTree(question, boxes, aim, rules, search, watchers).grow(search.seconds)


class PromisingTree(BranchAndBound):
    """The state of such a search."""

    def __init__(
        self, question: Question, boxes: Boxes, aim: Aim, rules: Rules, search: Search, watchers: Watchers
    ) -> None:
        super().__init__(question, boxes, aim, rules, search, watchers)
        self.asked: float = FIRST // 2
        """the number of bounded parts at which the worst bound is looked at next"""
        self.before = -math.inf
        """the worst bound minus goal when it was last looked at"""

    def _resume(self, parts: Sequence[Part], goals: Sequence[float], seconds: float) -> Outcome:
        self.asked = math.inf  # the search has ended before; a few of its parts are open again
        return super()._resume(parts, goals, seconds)

    def _stopped(self) -> Stop | None:
        stopped = super()._stopped()
        if stopped is None and self.bounded >= self.asked:
            now = min(self.frontier.shortfall(part) for part in self.frontier.open_parts())
            if self.asked >= FIRST and not promises(self.before, now, math.log2(MOST / self.asked)):
                return Stop.UNPROMISING
            self.before, self.asked = now, 2 * self.asked
        return stopped
