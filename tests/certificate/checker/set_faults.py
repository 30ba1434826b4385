"""The faults of mutants.py in the files of input sets."""

from __future__ import annotations

from tests.certificate.checker.faults import Changes

UNKNOWNS: Changes = {
    "half of the length": ("_ball_reach", "np.sqrt(np.square(size).sum(-1))", "np.sqrt(np.square(size).sum(-1)) / 2"),
    "every ball is one in l1": ("_ball_reach", "norm == 1", "True"),
    "the least of the columns": ("_ball_reach", "size.max(-1)", "size.min(-1)"),
    "the columns of no ball are forgotten": ("reach", "found + size[..., alone].sum(-1)", "found"),
    "one of the balls is forgotten": (
        "kept",
        "tuple((ball for ball in found if len(ball.places)))",
        "tuple((ball for ball in found if len(ball.places) > 1))",
    ),
    "the places are those of before": (
        "kept",
        "place[ball.places[used[ball.places]]]",
        "ball.places[used[ball.places]]",
    ),
}
DUALITY: Changes = {
    "the multiplier is not counted": (
        "value",
        "price + up(terms.sum(-1) * (1 + rounding(b.shape[-1] + 2)))",
        "up(terms.sum(-1) * (1 + rounding(b.shape[-1] + 2)))",
    ),
    "half of the multiplier": (
        "value",
        "price + up(terms.sum(-1) * (1 + rounding(b.shape[-1] + 2)))",
        "price / 2 + terms.sum(-1)",
    ),
    "the ends are left out in l1": ("value", "up(way * np.maximum(up(b - each), 0))", "up(np.minimum(way, 0.0) * b)"),
    "the parabola's top": ("value", "4 * each", "8 * each"),
    "a multiplier of 0 divides": (
        "value",
        "np.where(divides, up(up(b * b) / np.where(divides, four, 1.0)), np.inf)",
        "0.0",
    ),
    "the ends' square": ("value", "up(each * up(way * way))", "-up(each * up(way * way))"),
    "the slope at the end": ("value", "down(2 * each * way)", "down(4 * each * way)"),
    "a sum that is not rounded up": (
        "value",
        "up(price + up(terms.sum(-1) * (1 + rounding(b.shape[-1] + 2))))",
        "price + terms.sum(-1)",
    ),
    "terms that are not rounded up in l1": (
        "value",
        "up(way * np.maximum(up(b - each), 0))",
        "down(way * np.maximum(down(b - each), 0)) * (1 - 2.0**-45)",
    ),
}
INPUT_SETS: Changes = {
    "a box has no reach": (
        "CheckedBox.lowest",
        "A @ self.centre - np.abs(A * self.reach + deviation).sum(-1)",
        "A @ self.centre",
    ),
    "the centre's rounding": (
        "CheckedBalls.lowest",
        "rounding(n) * (np.abs(A) @ np.abs(self.centre)) * MORE + TINY * 2 * n",
        "-(2.0**-44) * (np.abs(A) @ np.abs(self.centre))",
    ),
    "the wrong way": (
        "CheckedBalls.lowest",
        "np.where(of.lo > 0, below[ball.places], above[ball.places])",
        "np.where(of.lo > 0, above[ball.places], below[ball.places])",
    ),
    "the balls are not added up": (
        "CheckedBalls.lowest",
        "up(far + farthest(of.size, way, self.norm))",
        "farthest(of.size, way, self.norm)",
    ),
    "the other norm": ("CheckedBalls.lowest", "farthest(of.size, way, self.norm)", "farthest(of.size, way, 1)"),
    "deviations are forgotten": (
        "CheckedBalls.lowest",
        "ProvedInterval(A) * self.reach + deviation",
        "ProvedInterval(A) * self.reach",
    ),
    "ways that are too short": ("CheckedBalls.ways", "np.clip(up(end / safe), 0, 1)", "np.clip(end / safe, 0, 1) / 2"),
    "a ball's l1 is any norm": ("CheckedBalls.balls", "BallOfColumns(each, self.norm)", "BallOfColumns(each, 1)"),
    "a box inside of the balls": ("CheckedBalls.box", "np.maximum(lo, self.lower)", "np.maximum(lo, self.middle)"),
    "any norm": ("CheckedBalls.__post_init__", "type(self.norm) is not int or self.norm not in (1, 2)", "False"),
    "radii below 0": ("CheckedBalls.__post_init__", "not (self.radius >= 0).all()", "False"),
    "a centre outside": (
        "CheckedBalls.__post_init__",
        "not ((self.lower <= self.middle) & (self.middle <= self.upper)).all()",
        "False",
    ),
    "the largest of the choices": (
        "CheckedChoices.lowest",
        "down(of @ vectors.T - lost).min(-1)",
        "down(of @ vectors.T - lost).max(-1)",
    ),
    "a choice is left out": (
        "CheckedChoices.lowest",
        "down(of @ vectors.T - lost).min(-1)",
        "down(of @ vectors.T - lost)[:, :2].min(-1)",
    ),
    "no rounding of choices": ("CheckedChoices.lowest", "down(of @ vectors.T - lost)", "of @ vectors.T + lost"),
    "columns that are too short": ("CheckedChoices._of_blocks", "off.middle()", "off.middle() / 2"),
    "no slack": ("CheckedChoices.slack", "return self._of_blocks[2]", "return 0 * self._of_blocks[2]"),
    "numbers twice": ("CheckedChoices.__post_init__", "not np.array_equal(each, np.arange(count))", "False"),
    "another box": (
        "CheckedChoices.__post_init__",
        "not all((np.array_equal(end.ravel()[numbers], found) for end, found in ends))",
        "False",
    ),
}
