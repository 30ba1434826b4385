"""Generators of a node: one backward pass with parallel rules, which give one linear function and its error.

Invariant: for every input x of the set there are ν in [−1, 1]^columns and e, |e| ≤ error, with
node(x) = centre + columns·(ξ(x), ν) + e, where ξ(x) = (x − centre of the set) / radius; one ν for all numbers.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vertex_softmax.bounds.coefficients import Part, diagonal_dimension
from vertex_softmax.bounds.memory import MOST_GENERATOR_NUMBERS
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.generators import Generators
from vertex_softmax.ops.registry import ROUNDING, Rules

if TYPE_CHECKING:
    from vertex_softmax.bounds.backward import Walk


def generate(walk: Walk, node: Node, rules: Rules) -> Generators | None:
    """The generators of every number of a node; None where there are too many, or nothing depends on the input.

    What single ops add has columns of its own as far as there is room, from the nearest op on; the rest is error.
    """
    rules = dataclasses.replace(rules, parallel=True)
    box = walk.boxes[walk.start]
    centre, radius = box.centre.flatten(1).unsqueeze(-1), box.radius.flatten(1).unsqueeze(1)
    room = MOST_GENERATOR_NUMBERS // math.prod(node.shape) - radius.shape[-1]
    if room < 0:
        return None
    keep = diagonal_dimension(node.shape)
    found: list[tuple[Tensor, ...]] = []
    everything = torch.ones(node.shape, dtype=torch.bool, device=walk.device)
    for _, A in walk.units_along(node, keep, everything, signs=1):
        share = ROUNDING[walk.dtype]
        back = walk.back(node, Part(A, keep), rules, columns=room, sizes=share > 0)
        if back.coefficients is None:
            return None
        flat = back.coefficients.flatten(2)
        error = torch.zeros_like(back.constant) if back.error is None else back.error.clamp(min=0)  # by rounding
        if share > 0 and back.size is not None:
            error = error + share * back.size
        noise = torch.cat(back.noise, -1) if back.noise else flat[..., :0]
        found.append((back.constant + (flat @ centre).squeeze(-1), flat * radius, error, noise))
    middle, columns, error, noise = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
    used = (noise != 0).flatten(0, 1).any(0)
    columns = torch.cat([columns, noise[..., used]], -1)
    return Generators(*(_shaped(x, node.shape, keep) for x in (middle, columns, error)))


def _shaped(x: Tensor, shape: tuple[int, ...], keep: int | None) -> Tensor:
    """(batch, S · n, ...) → (batch, *shape, ...)"""
    rest = x.shape[2:]
    if keep is None:
        return x.reshape(x.shape[0], *shape, *rest)
    sizes = [size for d, size in enumerate(shape) if d != keep]
    return x.reshape(x.shape[0], *sizes, shape[keep], *rest).movedim(1 + len(sizes), 1 + keep)


def most_numbers(graph: Graph) -> int:
    """At most how many numbers the generators of one node have, for one input."""
    nodes = graph.nodes()
    wanted = {user.inputs[i] for user in nodes for i in user.op.generated()}
    columns, most = math.prod(graph.input.shape), 0
    for node in nodes:
        if node in wanted:
            most = max(most, min(MOST_GENERATOR_NUMBERS, math.prod(node.shape) * columns))
        if node.op.parallels and not node.op.affine:
            columns += math.prod(node.shape)
    return most
