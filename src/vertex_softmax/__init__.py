"""Vertex: exact optimisation through softmax, and proofs that a softmax-attention network cannot be fooled."""

from vertex_softmax.errors import VertexError
from vertex_softmax.softmax_box import (
    is_lower_bound,
    softmax_box_argmin,
    softmax_box_bounds,
    softmax_box_enclosure,
    softmax_box_max,
    softmax_box_min,
    softmax_box_probabilities,
)

from vertex_softmax.methods.certify import bound, certify  # isort: skip (it stands on the primitive)
from vertex_softmax.result import Certification, Verdict
from vertex_softmax.sets import Box, LinfBall, TokenBall

__version__ = "0.1.0"

__all__ = [
    "Box",
    "Certification",
    "LinfBall",
    "TokenBall",
    "Verdict",
    "VertexError",
    "bound",
    "certify",
    "is_lower_bound",
    "softmax_box_argmin",
    "softmax_box_bounds",
    "softmax_box_enclosure",
    "softmax_box_max",
    "softmax_box_min",
    "softmax_box_probabilities",
]
