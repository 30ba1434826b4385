"""One op, one class: evaluate, interval and backward together (contract.py says what an op is)."""

from vertex_softmax.ops import (
    activations,
    attention,
    bilinear,
    elementwise,
    linear,
    maximum,
    normalization,
    rounding,
    shape,
    softmax,
)
from vertex_softmax.ops.registry import OPS

__all__ = [
    "OPS",
    "activations",
    "attention",
    "bilinear",
    "elementwise",
    "linear",
    "maximum",
    "normalization",
    "rounding",
    "shape",
    "softmax",
]
