"""How much memory the bounds may use, and how work is cut to fit."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Memory:
    """How many bytes a backward pass may use for coefficients; objectives beyond that go in chunks.

    Besides, a walk holds for every input of the batch the box of each node (numbers in all activations), and per
    attention a few tables of heads × rows × keys² numbers; and once, the affine forms of what is affine in the input
    (numbers × inputs, at most MOST_FORM_NUMBERS each). `hybrid` holds the boxes of three walks, `joint` of four, and
    `joint` for one attention at a time the generators of queries, keys and values (numbers × columns, at most
    MOST_GENERATOR_NUMBERS each and input; `together` bounds fewer inputs at a time so that all of them have no more).
    """

    bytes: int | None = None
    """None: 32 MiB on a CPU, where a chunk should stay near the cache, and 4 GiB on a GPU"""
    copies: int = 8
    """how many arrays of a chunk's size are alive at once, at most, roughly"""

    def chunk(self, per_objective: int, device: torch.device) -> int:
        """Objectives per chunk, at least one."""
        limit = self.bytes or (1 << 25 if device.type == "cpu" else 1 << 32)
        return max(1, limit // max(1, self.copies * per_objective))


MOST_GENERATOR_NUMBERS = 1 << 25
"""A node's generators have at most this many numbers, times inputs bounded together (a quarter GiB in float64)."""
