"""Every rounding constant of the bounds and verdicts, each with its reason.

The leaves have constants of their own, which belong to their proofs: `softmax_box/` (rounding bounds of the primitive)
and `certificate/checker/` (which imports nothing of the package). The replays of imported models
(`graph/from_onnx/replay.py`, `graph/from_torch/replay.py`) state there what two runs of one model may differ by.
"""

from __future__ import annotations

import torch

OUTWARD = {torch.float64: 1e-13, torch.float32: 2e-6}
"""A box is widened by this share of the sum of the absolute values of all terms that were added up to get it.

So no rounding of a sum decides the sign of a pre-activation. In double precision that is nine hundred roundings, in
single precision only thirty-three: a sum of n terms rounds about √n times as much as one term, and n times at worst.
More would cost too much there: nine hundred take .32 from a bound of .52 on VNN-COMP's ViT with two blocks, these .03.
"""


def rounded_constants(dtype: torch.dtype) -> float:
    """The share of a constant of the model by which it may have moved when it was rounded to this precision.

    Constants are in float64 before; in lower precision an offset of 10⁸ may be off by 4, and what is left where it
    cancels is not measured by it.
    """
    return 0.0 if dtype == torch.float64 else float(torch.finfo(dtype).eps)


ONE_TERM = {torch.float64: 1e-14, torch.float32: 2e-6}
"""The same for what adds up one or two terms: in double precision some ninety roundings, far more than these and than
what sums of the columns of many unknowns round."""

CROSSING = {torch.float64: 1e-7, torch.float32: 1e-2}
"""Two sound boxes of one node overlap. Where they are apart by more than this share of their size (or of 1, if that is
larger), the cause is not rounding but an overflow or a fault: no answer is given for that input."""

VERDICT = {torch.float64: 1e-12, torch.float32: 1e-5}
"""`certify` says verified only if the margin bound exceeds 0 by this share of the sum of the absolute values of all
terms of the last backward pass, which is more than its rounding can have added."""

PROPERTY = {torch.float64: 1e-12, torch.float32: 5e-4}
"""`verify` excludes a conjunction only if the bound exceeds its limit by this share of all terms. In single precision
it is larger than VERDICT because the coefficients of a property are rounded to single precision as well."""

GRADIENT = {torch.float64: 1e-12, torch.float32: 1e-5}
"""In the ascent, a gradient this much smaller than the largest of the same parameter and objective is rounding noise
and moves nothing."""

NARROW = 1e-6
"""An inner interval (the σ of a normalisation) narrower than this share of its upper end is not split further."""

CLAIM = 1e-10
"""The claims of a certificate are wider than what the prover computed by this share of their size, so that another
machine, whose library functions round differently, accepts them."""

LEAF = 1e-6
"""A leaf of a certificate's tree is bounded until it exceeds its limit by this much, relative to 1 + |limit|, so that
the proof with its own rounding succeeds as well."""

SURE = 1e-9
"""A bound of a leaf counts as proved once it exceeds its limit by this much, relative to 1 + |limit|: more than another
order of the same sums can change. A margin that is smaller is checked again from the file."""

COMPARISON = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Where a bound is compared with a margin that an attack reached, or with another method's bound, both in floating
point: a contradiction is more than this share of their size (or of 1, if that is larger)."""

SIMPLIFIED = 1e-9
"""A graph that a user gives is bounded simplified only if that changes its outputs by no more than this share of the
largest of them; else it is bounded as it is."""

VIOLATION = 2.0**-17
"""A violation of a property up to this share of the size of its terms may be rounding of the search's single precision:
the replay on the original model decides."""

TIE = 1e-9
"""Where the least margin is known to lie this close to 0 the answer is unknown because of a tie, and is said to be."""
