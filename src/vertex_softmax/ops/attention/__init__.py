"""Attention, softmax(scores) @ values, as one op, with one class for each way to bound its rows.

For an objective with coefficients η_i on output row i, Σ_d η_id out_id = Σ_j p_ij w_ij with w_ij = η_i · v_j, one
number per key. So the components of the values are summed before anything is relaxed, and each row is bounded as one
functional Σ_j p_j w_j:
- lse_row.py (CROWN): McCormick for p·w, and the linear softmax bounds of ops/softmax.py for the part in p;
- vertex_row.py (the paper's): Σ_j p_j w_j ≥ softmax_box_min(w^L, score box of the row), exact over the score box;
- affine_row.py (docs/method.md, section 7): the minorant of softmax_box/affine.py, Σ_j p_j w_j ≥ a·s + m·w + B;
- better_row.py: McCormick for p·w, and for the part in p, row by row, the linear bounds or the exact constant,
  whichever promises more;
- ball_row.py: a bound for a first attention over a ball, instead of a box.
"""

from vertex_softmax.ops.attention.op import Attention

__all__ = ["Attention"]
