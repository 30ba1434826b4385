"""How many inputs to bound together so that they fit into the memory, and what is refused if a single one does not.

Invariant: with `Memory.total`, nothing is computed whose estimate is larger. Estimates are measurements rounded up
(lab/benchmarks/limits.py).
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.bounds.generate import most_numbers
from vertex_softmax.bounds.memory import (
    LEAST,
    MOST_GENERATOR_NUMBERS,
    MOST_PAIR_NUMBERS,
    PAIR_ARRAYS,
    needed,
    needed_once,
    pair_numbers,
)
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.zonotope_sizes import zonotope_numbers
from vertex_softmax.foundation.errors import NotEnoughMemoryError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.boxes import may_use_zonotopes
from vertex_softmax.methods.crown import with_zonotopes_early
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS, Method
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.sets.region import BoxRegion, Region

GENERATED = 6
"""How many arrays of the size of a node's generators are alive at once: queries, keys, values, and copies."""


@dataclasses.dataclass(frozen=True)
class Need:
    """How many bytes a method may need."""

    each: int
    """for each input that is bounded"""
    once: int
    """for all inputs together, however many there are"""

    @property
    def one(self) -> int:
        """The bytes needed to bound a single input."""
        return self.each + self.once


def batch_size(
    graph: Graph,
    method: Method,
    options: Options,
    device: torch.device,
    dtype: torch.dtype = torch.float64,
    region: Region | None = None,
) -> int:
    """How many inputs to bound together on a device; NotEnoughMemoryError if a single one may not fit the limit.

    `region`: the input sets, if bounds are computed; its varying numbers have unknowns, whose products take much memory
    (bounds/zonotopes.py).
    """
    size = _preferred(graph, method, options, device)
    products = 0 if region is None else pair_numbers(graph, varying_numbers(region))
    if 0 < products <= MOST_PAIR_NUMBERS and METHODS[method].rule is not None:
        room = MOST_PAIR_NUMBERS if device.type == "cpu" else 16 * MOST_PAIR_NUMBERS
        size = max(1, min(size, room // products))
    if options.memory.total is None:  # the usual case, which needs no estimate
        return size
    need = _needed(graph, method, options, device, dtype, region)
    fitting = options.memory.most_inputs(need.each, need.once)
    if fitting == 0:
        fit = [
            other
            for other in METHODS
            if not options.memory.refusal(other, _needed(graph, other, options, device, dtype, region).one)
        ]
        other = f", or take a method that fits: {', '.join(fit)}" if fit else ""
        raise NotEnoughMemoryError(options.memory.refusal(f"{method} on one input", need.one) + other)
    return size if fitting is None else min(size, fitting)


def batches(graph: Graph, method: Method, options: Options, region: Region) -> list[Tensor]:
    """The inputs to bound together, as lists of their places in the region; each place is in one list.

    If zonotopes may have products of the input's unknowns, only inputs of which the same numbers vary are bounded
    together. All inputs of a batch have the same unknowns, so that others would add theirs: with four patches in place
    of one there are sixteen times as many products, or too many to have any. So the bounds of an input do not depend on
    what varies in others.
    """
    device, dtype = region.box.lower.device, region.box.lower.dtype
    found: list[Tensor] = []
    for places in _alike(graph, method, options, region):
        size = batch_size(graph, method, options, device, dtype, region.at(places))
        found += places.split(size)
    return found


def _alike(graph: Graph, method: Method, options: Options, region: Region) -> list[Tensor]:
    """The places of the inputs in lists of inputs with the same varying numbers, if that matters; else one list."""
    varies = (region.box.upper > region.box.lower).flatten(1)
    everyone = torch.arange(len(varies), device=varies.device)
    early = options if method is Method.VERTEX else with_zonotopes_early(options)
    some = METHODS[method].rule is not None and may_use_zonotopes(graph, region, early)
    fewest = int(varies.sum(1).min()) if len(varies) else 0
    if not some or pair_numbers(graph, fewest) > options.memory.most_pairs(region.box.lower.element_size()):
        return [everyone]
    lists: dict[bytes, list[int]] = {}
    for place, row in enumerate(varies.cpu().numpy()):
        lists.setdefault(row.tobytes(), []).append(place)
    return [everyone[places] for places in lists.values()]


def refusal(question: Question, method: Method, options: Options) -> str:
    """Why a method is not run on a question of one input, in words; empty if it fits the memory limit."""
    try:
        batch_size(question.graph, method, options, question.device, question.dtype, question.given)
    except NotEnoughMemoryError as error:
        return str(error)
    return ""


def varying_numbers(region: Region) -> int:
    """How many numbers of the input vary over the set of any input of a region: all of them have unknowns."""
    return int((region.box.upper > region.box.lower).flatten(1).any(0).sum())


def _needed(
    graph: Graph, method: Method, options: Options, device: torch.device, dtype: torch.dtype, region: Region | None
) -> Need:
    """How many bytes a method may need; without a region, zonotopes are not counted."""
    recipe, item = METHODS[method], dtype.itemsize
    linear = recipe.rule is not None
    each = needed(graph, item, sets=recipe.box_sets, linear=linear, tables=recipe.tables)
    if recipe.tightened and options.generators:
        each += GENERATED * item * most_numbers(graph)
    once = LEAST + (options.memory.for_parts(options.search.memory) if recipe.branches else 0)
    if linear:
        once += needed_once(graph, item, options.memory.limit(device))
        early = options if method is Method.VERTEX else with_zonotopes_early(options)
        if region is not None and may_use_zonotopes(graph, region, early):
            varying = varying_numbers(region)
            each += item * zonotope_numbers(graph, varying, local=isinstance(region, BoxRegion))
            products = pair_numbers(graph, varying)
            if products <= options.memory.most_pairs(item):
                each += PAIR_ARRAYS * item * products
    return Need(each, once)


def _preferred(graph: Graph, method: Method, options: Options, device: torch.device) -> int:
    recipe = METHODS[method]
    if recipe.branches:
        return 1
    if options.batch is not None:
        return options.batch
    most = 16 if device.type == "cpu" else _most_on_gpu(graph, device)
    if recipe.tightened and options.generators:
        return max(1, min(most, _generator_room(device) // max(1, most_numbers(graph))))
    return most


def _generator_room(device: torch.device) -> int:
    """How many numbers a node's generators may have, for all inputs that are bounded together.

    On a GPU as many as let all their arrays fit into half of its memory in float64, but at least 2²⁹.
    """
    if device.type == "cpu":
        return MOST_GENERATOR_NUMBERS
    half = torch.cuda.get_device_properties(device).total_memory // 2
    return max(16 * MOST_GENERATOR_NUMBERS, half // (GENERATED * torch.float64.itemsize))


ROOMY = 32 << 30
"""On a GPU with at least this many bytes, 1024 inputs of a small network are bounded together, since launching kernels
dominates."""


def _most_on_gpu(graph: Graph, device: torch.device) -> int:
    if any(isinstance(node.op, Normalize) for node in graph.nodes()):  # their zonotopes take gigabytes
        return 256
    return 1024 if torch.cuda.get_device_properties(device).total_memory >= ROOMY else 256
