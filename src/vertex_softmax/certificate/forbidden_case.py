"""What must not happen, as the prover and the checker say it: several linear inequalities of the outputs at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.foundation.errors import InternalError

Array = NDArray[np.float64]


class ForbiddenCase(NamedTuple):
    """rows y ≤ bound, all at once, must not happen: rows (m, outputs), bound (m,), and the weights that exclude it."""

    rows: Array
    bound: Array
    weights: Array | None
    """None: choose"""

    def proved(self) -> tuple[Array, Array, Array]:
        """Rows, bound and weights, which were chosen."""
        return self.rows, self.bound, self.weighed()

    def weighed(self) -> Array:
        """The weights, which were chosen."""
        if self.weights is None:
            raise InternalError("the weights of a case were not chosen")
        return self.weights
