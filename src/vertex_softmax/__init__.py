"""Vertex: exact optimisation through softmax, and proofs that a softmax-attention network cannot be fooled."""

from vertex_softmax.errors import VertexError
from vertex_softmax.softmax_box import (
    ThresholdVertex,
    is_lower_bound,
    softmax_box_argmin,
    softmax_box_bounds,
    softmax_box_enclosure,
    softmax_box_max,
    softmax_box_min,
    softmax_box_probabilities,
)

__version__ = "0.1.0"

__all__ = [
    "ThresholdVertex",
    "VertexError",
    "is_lower_bound",
    "softmax_box_argmin",
    "softmax_box_bounds",
    "softmax_box_enclosure",
    "softmax_box_max",
    "softmax_box_min",
    "softmax_box_probabilities",
]
