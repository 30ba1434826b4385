"""Generators of a node, by one backward pass with parallel rules: each gives one linear function and its error.

Invariant: for every input x of the set there are ν in [−1, 1]^N, the same for all numbers of the node, and e with
|e| ≤ error, such that node(x) = centre + columns·(ξ(x), ν) + e. Here ξ(x) = (x − centre of the set) / radius, and
columns is (..., inputs + N). Over choices of words, ξ are the unknowns of the words' balls (`Region.columns`).
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import DEFAULT
from vertex_softmax.bounds.coefficients import Coefficients, Objective, diagonal_dimension
from vertex_softmax.bounds.memory import MOST_GENERATOR_NUMBERS
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.units import unit_objectives
from vertex_softmax.foundation.tolerances import OUTWARD
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.contract import Summarising
from vertex_softmax.ops.generators import Generators
from vertex_softmax.ops.rules import Rules
from vertex_softmax.sets.choice_region import ChoiceRegion
from vertex_softmax.sets.region import Region


def generate(question: Question, boxes: Boxes, node: Node, rules: Rules) -> Generators | None:
    """The generators of every number of a node.

    None if an op before the node has no parallel rule, if there would be too many numbers, if the node does not depend
    on the input, or if the set is not a box (then zonotopes are tighter). The noise of single ops gets columns of its
    own, from the op nearest to the node on, as long as there is room; further noise is added to the error.
    """
    if node not in question.index.parallel or not question.region.unit.cube:
        return None
    rules = dataclasses.replace(rules, parallel=True)
    centre, spread = _unknowns(question.region)
    room = MOST_GENERATOR_NUMBERS // math.prod(node.shape) - spread.shape[-1]
    if room < 0:
        return None
    diagonal = diagonal_dimension(node.shape)
    found: list[tuple[Tensor, ...]] = []
    everything = torch.ones(node.shape, dtype=torch.bool, device=question.device)
    share = OUTWARD[question.dtype]
    for units in unit_objectives(question, node, diagonal, everything, signs=1):
        objective = Objective(node, Coefficients(units.A, diagonal))
        bound = backward(question, boxes, objective, rules, DEFAULT, Wanted(columns=room, size=share > 0))
        if bound.coefficients is None:
            return None
        flat = bound.coefficients.flatten(2)
        # an error is negative only by rounding
        error = torch.zeros_like(bound.constant) if bound.error is None else bound.error.clamp(min=0)
        if share > 0 and bound.size is not None:
            error = error + share * bound.size
        noise = torch.cat(bound.noise, -1) if bound.noise else flat[..., :0]
        own = flat * spread if spread.shape[1] == 1 else flat @ spread
        found.append((bound.constant + (flat @ centre).squeeze(-1), own, error, noise))
    middle, columns, error, noise = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
    used = (noise != 0).flatten(0, 1).any(0)
    columns = torch.cat([columns, noise[..., used]], -1)
    return Generators(*(_shaped(x, node.shape, diagonal) for x in (middle, columns, error)))


def _unknowns(region: Region) -> tuple[Tensor, Tensor]:
    """The centre (batch, inputs, 1) of the set, and the columns of its own unknowns in [−1, 1].

    The columns are (batch, 1, inputs) if each number of the input has an unknown of its own, and (batch, inputs, P) for
    choices of words, whose balls lie in cubes of P unknowns.
    """
    if isinstance(region, ChoiceRegion):
        return region.middle.flatten(1).unsqueeze(-1), region.columns().flatten(3).flatten(1, 2).mT
    box = region.box
    return box.centre.flatten(1).unsqueeze(-1), box.radius.flatten(1).unsqueeze(1)


def _shaped(x: Tensor, shape: tuple[int, ...], diagonal: int | None) -> Tensor:
    """(batch, S · n, ...) → (batch, *shape, ...)"""
    rest = x.shape[2:]
    if diagonal is None:
        return x.reshape(x.shape[0], *shape, *rest)
    sizes = [size for d, size in enumerate(shape) if d != diagonal]
    return x.reshape(x.shape[0], *sizes, shape[diagonal], *rest).movedim(1 + len(sizes), 1 + diagonal)


def most_numbers(graph: Graph) -> int:
    """An upper bound for how many numbers the generators of one node have, for one input."""
    nodes = graph.nodes()
    wanted = {user.inputs[i] for user in nodes if isinstance(user.op, Summarising) for i in user.op.generator_inputs}
    columns, most = math.prod(graph.input.shape), 0
    for node in nodes:
        if node in wanted:
            most = max(most, min(MOST_GENERATOR_NUMBERS, math.prod(node.shape) * columns))
        if node.op.has_parallel_rule and not node.op.affine:
            columns += math.prod(node.shape)
    return most
