"""The family Max-of-k in a size that is made in a second."""

from __future__ import annotations

SMALL = {
    "VOCABULARY": 12,
    "STEPS": 200,
    "SEQUENCES": 1,
    "HULLS": 1,
    "WIDTHS": (2,),
    "GAP": 2,
}
"""Constants of `vertex_lab.suite.max_of_k`."""
