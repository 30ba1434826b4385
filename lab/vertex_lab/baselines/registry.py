"""Every method that bounds c · softmax(s) from below over a score box, by the name that a table asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vertex_lab.baselines.exhaustive import MOST_KEYS, exhaustive_min
from vertex_lab.baselines.galileo import galileo_min
from vertex_lab.baselines.softmax_lp import softmax_lp_min
from vertex_softmax.runs.demo.baselines.problem import Floats, read
from vertex_softmax.runs.demo.baselines.simplex import ibp_min, simplex_min
from vertex_softmax.runs.demo.baselines.wei import wei_lse_min
from vertex_softmax.softmax_box import softmax_box_min
from vertex_softmax.softmax_box.arguments import Array


@dataclass(frozen=True)
class ScoreBoxMethod:
    """One method: `function(c, lower, upper)`, (..., K) that broadcast, to float64 lower bounds (...)."""

    name: str
    label: str
    """As it stands in tables."""
    function: Callable[[Array, Array, Array], Floats]
    most_keys: int | None
    """Tables go no further: exhaustive refuses more keys, GaLileo-style is published to 16. None: any number."""
    about: str


def vertex_min(c: Array, lower: Array, upper: Array) -> Floats:
    """The exact minimum, to rounding: `softmax_box_min` in float64."""
    problem = read(c, lower, upper)
    return np.asarray(softmax_box_min(problem.c, problem.lower, problem.upper), np.float64)[()]


SCORE_BOX_METHODS: dict[str, ScoreBoxMethod] = {
    method.name: method
    for method in (
        ScoreBoxMethod("ibp", "IBP", ibp_min, None, "every component at its own worst end"),
        ScoreBoxMethod("simplex", "Simplex", simplex_min, None, "component ranges and Σ p = 1, solved exactly"),
        ScoreBoxMethod(
            "softmax-lp",
            "Softmax-LP",
            softmax_lp_min,
            None,
            "linear program: component ranges, Wei-LSE planes, Σ p = 1",
        ),
        ScoreBoxMethod("wei-lse", "Wei-LSE", wei_lse_min, None, "convex and concave bounds, one tangent plane"),
        ScoreBoxMethod(
            "galileo", "GaLileo-style", galileo_min, 16, "planes of edge slopes per component, our own reading"
        ),
        ScoreBoxMethod("exhaustive", "Exhaustive", exhaustive_min, MOST_KEYS, "all 2^K vertices: exact"),
        ScoreBoxMethod("vertex", "Vertex", vertex_min, None, "the threshold vertex: exact"),
    )
}
