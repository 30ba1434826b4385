"""The theorem at work on one attention row: the score box, its threshold vertices, and what looser methods say.

`run` returns plain numbers (a dict that goes to JSON as it is); report/ turns them into pictures and a page.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vertex_softmax.methods.baselines import ibp_min, simplex_min, wei_lse_min
from vertex_softmax.softmax_box import (
    is_lower_bound,
    reference,
    softmax_box_argmin,
    softmax_box_enclosure,
    softmax_box_max,
    softmax_box_min,
)

TOKENS = ("the", "film", "is", "not", "bad", "at", "all", ".")
CENTRE = np.array([0.6, 0.3, 1.2, 0.2, -0.3, 0.8, 1.0, 0.5])
RADIUS = np.array([0.5, 0.8, 0.7, 0.9, 1.0, 0.6, 0.8, 0.6])
COEFFICIENTS = np.array([0.9, 2.2, 0.6, -0.5, -1.1, 1.2, 1.7, 0.2])
SAMPLES = 20_000


def run(seed: int = 0) -> dict[str, Any]:
    """Bound what the value of one attention row can become when its eight scores move in their box."""
    lower, upper, c = CENTRE - RADIUS, CENTRE + RADIUS, COEFFICIENTS
    order = np.argsort(c, kind="stable")
    vertex = softmax_box_argmin(c, lower, upper)
    rng = np.random.default_rng(seed)
    inside = rng.uniform(lower, upper, (SAMPLES, len(c)))
    sampled = np.array([reference.ratio(c, scores) for scores in inside])
    enclosure = softmax_box_enclosure(c, lower, upper)
    outward = softmax_box_min(c, lower, upper, outward=True)
    exact = float(softmax_box_min(c, lower, upper))
    grid = np.linspace(float(c.min()), float(c.max()), 201)
    return {
        "tokens": [TOKENS[j] for j in order],
        "lower": lower[order].tolist(),
        "upper": upper[order].tolist(),
        "c": c[order].tolist(),
        "at_upper": np.asarray(vertex.mask)[order].tolist(),
        "threshold": int(vertex.threshold),
        "tau": [
            reference.ratio(c[order], np.concatenate([upper[order][:m], lower[order][m:]])) for m in range(len(c) + 1)
        ],
        "nominal": reference.ratio(c, CENTRE),
        "maximum": float(softmax_box_max(c, lower, upper)),
        "sampled": sampled.tolist(),
        "enclosure": [float(enclosure[0]), float(enclosure[1])],
        "outward": float(outward),
        "proved": is_lower_bound(float(outward), c, lower, upper) is True,
        "phi": {"t": grid.tolist(), "value": [reference.phi(float(t), c, lower, upper) for t in grid]},
        "methods": [
            {"name": "IBP", "how": "each softmax component at its own worst", "bound": float(ibp_min(c, lower, upper))},
            {"name": "simplex", "how": "… and they add up to one", "bound": float(simplex_min(c, lower, upper))},
            {
                "name": "Wei-LSE",
                "how": "convex softmax bounds, one tangent",
                "bound": float(wei_lse_min(c, lower, upper)),
            },
            {"name": "Vertex", "how": "exact: the best of K + 1 vertices", "bound": exact},
        ],
        "exhaustive": reference.exhaustive_min(c, lower, upper),
    }
