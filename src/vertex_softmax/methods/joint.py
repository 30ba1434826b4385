"""The method `joint`: at least as tight as `hybrid`, and as `alpha-crown` where its own ascent leaves that in reach.

Read it from top to bottom:
1. `crown` runs, and over its boxes `hybrid`, which runs `vertex` itself.
2. Their boxes are met, and tightened under the affine vertex rule by generators, ellipsoids and centred scores
   (docs/method.md, section 8).
3. Over those boxes one pass under the affine vertex rule and one under the vertex rule bound the objectives, and the
   free parameters of the affine vertex rule are optimised together.
4. `alpha-crown` runs over the boxes of `crown`. Its ascent ends early if by its trend it will stay below step 3.
5. Each objective gets the largest of all these bounds.

With a goal, steps 2 and 3 run first, without boxes of other methods; if they settle every objective, nothing else runs.
With `Options.parts` = "own" only these two steps run, with a goal or without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.boxes import tightened_boxes
from vertex_softmax.methods.combination import combined, goal_first
from vertex_softmax.methods.crown import alpha_crown, crown
from vertex_softmax.methods.hybrid import hybrid_over
from vertex_softmax.methods.last_pass import Passes, last_pass
from vertex_softmax.methods.options import JointParts, Options
from vertex_softmax.ops.rules import RowRule

PASSES = Passes(plain=(RowRule.AFFINE, RowRule.VERTEX), optimised=(RowRule.AFFINE,), by_box=True)


def joint(question: Question, objective: Objective, options: Options) -> Bound:
    """All five steps; with a goal first steps 2 and 3 alone, and the rest only if they leave an objective unsettled."""

    def own(known: Sequence[Boxes]) -> Bound:
        boxes = tightened_boxes(question, options, known)
        passes = dataclasses.replace(PASSES, by_box=bool(known))  # on its own it is only a first attempt
        return last_pass(question, boxes, objective, passes, options)

    def in_full() -> Bound:
        by_crown = crown(question, objective, options)
        by_hybrid = hybrid_over(question, objective, options, by_crown)
        found = combined(own([by_hybrid.boxes]), by_hybrid)
        by_alpha = alpha_crown(question, objective, options, by_crown.boxes, found.lower)
        return combined(found, by_alpha)

    if options.parts is JointParts.OWN:
        return own(())
    return goal_first(own, in_full, options)
