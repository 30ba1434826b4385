"""How much memory a proof may need, so that one that may not fit is refused before it begins.

Invariant: with `Memory.total` no proof is begun whose estimate is larger. Estimates are what was measured, rounded up.
"""

from __future__ import annotations

import math

from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.generate import most_numbers
from vertex_softmax.bounds.memory import LEAST, Memory, pair_numbers
from vertex_softmax.bounds.zonotope_sizes import zonotope_numbers
from vertex_softmax.certificate.checker.forward.propagation import MOST_PAIRS, MOST_UNKNOWNS
from vertex_softmax.certificate.checker.ranges import WORK
from vertex_softmax.foundation.errors import NotEnoughMemoryError
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.attention import Attention

PASSES, COLUMNS = 3, 5
"""How many arrays are alive of the size of what a pass handles at once (measured: 1.5), and of a node's columns (4)."""
PRODUCTS = 11
"""How many arrays of the size of a node's products of the input's unknowns are alive in a forward proof (10)."""
ITEM = 8


def require_room(graph: Graph, memory: Memory, *, forward: bool, search: Search | None = None) -> None:
    """Raise NotEnoughMemoryError if a proof over one set of inputs may need more than the limit.

    `forward`: whether it is a forward proof. `search`: the limits of its branch and bound.
    """
    if memory.total is None:
        return
    need = proof_bytes(graph, forward=forward) + (0 if search is None else memory.for_parts(search.memory))
    if text := memory.refusal("a certificate", need):
        raise NotEnoughMemoryError(f"{text}, or leave the certificate out")


def proof_bytes(graph: Graph, *, forward: bool) -> int:
    """Bytes that a proof over one set of inputs may need, but for parts of branch and bound."""
    nodes, inputs = graph.nodes(), math.prod(graph.input.shape)
    largest = max(math.prod(node.shape) for node in nodes)
    need = 2 * LEAST + ITEM * PASSES * min(WORK, largest * max(map(_work, nodes)))
    if not forward:
        return need + ITEM * COLUMNS * most_numbers(graph)
    products = pair_numbers(graph, inputs)
    if inputs <= MOST_UNKNOWNS and products <= MOST_PAIRS:
        need += ITEM * PRODUCTS * products
    return need + ITEM * zonotope_numbers(graph, inputs)


def _work(node: Node) -> int:
    """How many numbers a pass of one objective handles at a node (`Known.work` of the checker)."""
    keys = node.inputs[0].shape[-1] if isinstance(node.op, Attention) else 1
    return math.prod(node.shape) * keys
