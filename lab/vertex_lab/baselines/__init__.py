"""Lower bounds of c · softmax(s) over a score box that are looser than the exact minimum: what Vertex is compared with.

Invariant: every function here is at most the minimum of c · softmax(s) over lower ≤ s ≤ upper, for every valid box:
degenerate intervals, ties, masked keys (−inf), scores and coefficients of any finite size. Exponents are shifted by the
largest score and never clamped; nothing is divided by a small number plus an epsilon.

    exact minimum ≥ softmax_lp_min ≥ simplex_min ≥ ibp_min,     softmax_lp_min ≥ wei_lse_min,
    exact minimum ≥ galileo_min,                                exact minimum = exhaustive_min

`ibp_min` and `simplex_min` hold for the computed floats (their rounding is subtracted). The others hold to rounding:
(K + 20 + span) · 2⁻⁵³ of max |c|, span the distance of the least from the greatest score, is stated and tested, not
proved. Where the span is more than they can follow (2²⁰ for `wei_lse_min` and `softmax_lp_min`, 600 for `galileo_min`)
they fall back on simplex or min c.

Arrays or tensors (..., K), float32 or float64, that broadcast; results are numpy float64 of shape (...). Everything is
vectorised over rows and keys, and O(K) per row but for a sort (simplex), K² log K (GaLileo-style) and 2^K (exhaustive).
`SCORE_BOX_METHODS` has them all by name, with the exact minimum.
"""

from vertex_lab.baselines.exhaustive import exhaustive_min
from vertex_lab.baselines.galileo import galileo_min
from vertex_lab.baselines.registry import SCORE_BOX_METHODS, ScoreBoxMethod
from vertex_lab.baselines.softmax_lp import softmax_lp_min
from vertex_softmax.runs.demo.baselines.simplex import ibp_min, simplex_min
from vertex_softmax.runs.demo.baselines.wei import wei_lse_min

__all__ = [
    "SCORE_BOX_METHODS",
    "ScoreBoxMethod",
    "exhaustive_min",
    "galileo_min",
    "ibp_min",
    "simplex_min",
    "softmax_lp_min",
    "wei_lse_min",
]
