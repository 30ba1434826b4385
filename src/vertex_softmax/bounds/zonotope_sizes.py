"""Estimate how many numbers the zonotopes of a network will have, before any of them is made.

An op that is not affine adds unknowns. At first each stands in a single row of a node and takes little memory; behind
an op that mixes rows every number of a node has a coefficient for each of them. Counts follow ops/unknowns.py, rounded
up; where they exceed MOST_GENERATOR_NUMBERS, blocks are merged (bounds/zonotopes.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from vertex_softmax.bounds.memory import MOST_GENERATOR_NUMBERS
from vertex_softmax.bounds.zonotopes import keeps_local
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.linear import Linear
from vertex_softmax.ops.normalization import Normalize

ZONOTOPES, REDUCED = 5, 15
"""How many arrays of the size of the largest zonotope's blocks are alive at once (measured: 3.7), and how many where
blocks are merged (measured: 13.9)."""

Sources = Mapping[Node, int]
"""By the node that introduced them, how many unknowns a node depends on."""


def zonotope_numbers(graph: Graph, varying: int, *, local: bool = True) -> int:
    """How many numbers all zonotopes may have at once, for one input of which `varying` numbers vary.

    `local`: whether each unknown of the input belongs to a single number, as those of a box do.
    """
    sources: dict[Node, Sources] = {}
    mixed: dict[Node, Sources] = {}
    most = 0
    for node in graph.nodes():
        have, spread = _joined(node, sources), _joined(node, mixed)
        if node is graph.input:
            have = {node: varying}
            spread = {} if local else have
        elif isinstance(node.op, Attention):  # the unknowns of single scores stay in their row
            spread = {**mixed[node.inputs[0]], **sources[node.inputs[1]]}
        elif _mixes(node):
            spread = have
        bent = any(source is not graph.input for source in have)
        sources[node], mixed[node] = {**have, **_new(node, bent=bent)}, spread
        alone = sum(count for source, count in sources[node].items() if source not in spread)
        rows = max(1, math.prod(node.shape[:-1]))
        most = max(most, math.prod(node.shape) * (sum(spread.values()) + math.ceil(alone / rows)))
    return REDUCED * MOST_GENERATOR_NUMBERS if most > MOST_GENERATOR_NUMBERS else ZONOTOPES * most


def _joined(node: Node, known: Mapping[Node, Sources]) -> dict[Node, int]:
    """The sources of all inputs of a node together."""
    return {source: count for each in node.inputs for source, count in known[each].items()}


def _mixes(node: Node) -> bool:
    """Whether an op mixes the rows of its inputs; ops on single numbers or single rows do not."""
    if node.op.affine:
        return bool(node.inputs) and not keeps_local(node.op)
    return len(node.inputs) > 1


def _new(node: Node, *, bent: bool) -> dict[Node, int]:
    """The unknowns that a node introduces.

    bent: whether some op before it is not affine; then a linear op turns each input number's own error into an unknown.
    """
    if not node.inputs:
        return {}
    if isinstance(node.op, Linear):
        return {node: math.prod(node.inputs[0].shape)} if bent else {}
    if node.op.affine:
        return {}
    rows = math.prod(node.shape[:-1]) if isinstance(node.op, Normalize) else 0
    return {node: math.prod(node.shape) + rows}
