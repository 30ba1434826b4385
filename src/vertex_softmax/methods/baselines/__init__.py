"""Lower bounds of c · softmax(s) over a score box that are looser than the exact minimum: what Vertex is compared with.

Invariant: every function here is at most the minimum of c · softmax(s) over lower ≤ s ≤ upper, for every valid box:
degenerate intervals, ties, masked keys (−inf), scores and coefficients of any finite size. Exponents are shifted by the
largest score and never clamped; nothing is divided by a small number plus an epsilon.

    exact minimum ≥ simplex_min ≥ ibp_min,     exact minimum ≥ wei_lse_min,     exact minimum = exhaustive_min

`ibp_min` and `simplex_min` hold for the computed floats (their rounding is subtracted). The others hold to rounding,
(K + 20 + span) · 2⁻⁵³ of max |c|, with span the distance of the least from the greatest score; where that is wider than
2²⁰, `wei_lse_min` is min c.

Arrays or tensors (..., K), float32 or float64, that broadcast; results are numpy float64 of shape (...). Everything is
vectorised over rows and keys, and O(K) per row but for a sort (simplex) and 2^K (exhaustive).
"""

from vertex_softmax.methods.baselines.exhaustive import exhaustive_min
from vertex_softmax.methods.baselines.simplex import ibp_min, simplex_min
from vertex_softmax.methods.baselines.wei import wei_lse_min

__all__ = ["exhaustive_min", "ibp_min", "simplex_min", "wei_lse_min"]
