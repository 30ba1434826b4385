"""Branch and bound that is given up as soon as it does not promise to end: for boxes that others would be better than.

Invariant: as of branch and bound, the bounds returned hold over the whole set. Whether it goes on is asked of the worst
bound alone, each time that twice as many parts were bounded, and not of the clock: the same question has the same tree.
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
"""After bounding so many parts it is asked for the first time what the tree promises."""
MOST = 4000
"""Within so many parts it has to promise to end."""


def promises(before: float, now: float, doublings: float) -> bool:
    """Whether a worst bound reaches its goal by doublings that gain as much as the last one did.

    Both are bounds less their goals: before the last doubling, and now.
    """
    gained = now - before
    return gained > 0 and -now <= gained * doublings


def branch_while_promising(
    question: Question, boxes: Boxes, aim: Aim, rules: Rules, search: Search, watchers: Watchers
) -> Outcome:
    """Bound objectives over the set of a question with one input; it may end as `Stop.UNPROMISING`."""
    return PromisingTree(question, boxes, aim, rules, search, watchers).grow(search.seconds)


class PromisingTree(BranchAndBound):
    """The search under way."""

    def __init__(
        self, question: Question, boxes: Boxes, aim: Aim, rules: Rules, search: Search, watchers: Watchers
    ) -> None:
        super().__init__(question, boxes, aim, rules, search, watchers)
        self.asked: float = FIRST // 2
        """after so many parts the worst bound is compared with what it was before"""
        self.before = -math.inf
        """the worst bound less its goal when it was compared last"""

    def _resume(self, parts: Sequence[Part], goals: Sequence[float], seconds: float) -> Outcome:
        self.asked = math.inf  # it is known to end; what is open now is a few parts of it
        return super()._resume(parts, goals, seconds)

    def _stopped(self) -> Stop | None:
        stopped = super()._stopped()
        if stopped is None and self.bounded >= self.asked:
            now = min(self.frontier.shortfall(part) for part in self.frontier.open_parts())
            if self.asked >= FIRST and not promises(self.before, now, math.log2(MOST / self.asked)):
                return Stop.UNPROMISING
            self.before, self.asked = now, 2 * self.asked
        return stopped
