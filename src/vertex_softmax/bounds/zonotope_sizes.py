"""How many numbers the zonotopes of a network may have, counted along the graph before any of them is made.

An op that is not affine brings unknowns. They stand in single rows of a node, and take little, until an op mixes the
rows; from there on every number of a node has a coefficient of each of them. Counts are those of ops/unknowns.py,
rounded up, and beyond MOST_GENERATOR_NUMBERS blocks are taken together (bounds/zonotopes.py).
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
"""How many arrays of the size of the blocks of the largest zonotope are alive at once (measured: 3.7), and where blocks
are taken together (measured: 13.9)."""

Sources = Mapping[Node, int]
"""The nodes whose unknowns a node has, each with how many these are."""


def zonotope_numbers(graph: Graph, varying: int, *, local: bool = True) -> int:
    """How many numbers zonotopes may have at once for one input of which so many numbers vary.

    `local`: whether the input's unknowns are of single numbers, as those of a box are.
    """
    sources: dict[Node, Sources] = {}
    mixed: dict[Node, Sources] = {}
    most = 0
    for node in graph.nodes():
        have, spread = _joined(node, sources), _joined(node, mixed)
        if node is graph.input:
            have = {node: varying}
            spread = {} if local else have
        elif isinstance(node.op, Attention):  # errors of single scores stay in their row
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
    """What the inputs of a node have."""
    return {source: count for each in node.inputs for source, count in known[each].items()}


def _mixes(node: Node) -> bool:
    """Whether the rows of an op's inputs are mixed: not by what acts on single numbers, or on single rows."""
    if node.op.affine:
        return bool(node.inputs) and not keeps_local(node.op)
    return len(node.inputs) > 1


def _new(node: Node, *, bent: bool) -> dict[Node, int]:
    """The unknowns that a node brings; a linear op makes some of each number's own error, which bent ops have left."""
    if not node.inputs:
        return {}
    if isinstance(node.op, Linear):
        return {node: math.prod(node.inputs[0].shape)} if bent else {}
    if node.op.affine:
        return {}
    rows = math.prod(node.shape[:-1]) if isinstance(node.op, Normalize) else 0
    return {node: math.prod(node.shape) + rows}
