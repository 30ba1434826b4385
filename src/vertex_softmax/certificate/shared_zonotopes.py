"""Which zonotopes of a proof are made from others, without passes: queries, keys and values from what they all read.

Invariant: nothing is proved here: the checker's functions say whether a node is an affine function of another one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from vertex_softmax.certificate.checker import curves
from vertex_softmax.certificate.checker.images import affine_input
from vertex_softmax.certificate.checker.network import CheckerNode


def wants_zonotope(op: str, place: int) -> bool:
    """Whether an op is bounded by the zonotope of the input at this place."""
    return op in ("MatMul", "Normalize") or (op == "Attention" and place == 1)


def bends(op: str) -> bool:
    """Whether an op is not affine in all that it reads together."""
    return op in ("Relu", "MatMul", "Multiply", "Attention", "Normalize") or op in curves.FUNCTIONS


def shared_sources(nodes: Sequence[CheckerNode]) -> dict[int, int]:
    """Node whose zonotope is wanted → the farthest node of which it and others are affine functions.

    Only where the zonotope of that node takes fewer passes than theirs do together.
    """
    wanted = [
        i for node in nodes for place, i in enumerate(node.inputs)
        if wants_zonotope(node.op, place) and nodes[i].op not in ("Input", "Constant")
    ]  # fmt: skip
    before = {number: list(_affine_sources(nodes, number)) for number in dict.fromkeys(wanted)}
    counts = Counter(source for sources in before.values() for source in sources)
    found: dict[int, int] = {}
    for number, sources in before.items():
        most = max((counts[source] for source in sources), default=0)
        if most > 1:
            found[number] = next(source for source in reversed(sources) if counts[source] == most)
    sizes = Counter[int]()
    for number, source in found.items():
        sizes[source] += math.prod(nodes[number].shape)
    return {k: source for k, source in found.items() if math.prod(nodes[source].shape) < sizes[source]}


def _affine_sources(nodes: Sequence[CheckerNode], number: int) -> Iterator[int]:
    """The nodes of which a node is an affine function, the nearest first; the input is not one of them."""
    while True:
        step = affine_input(nodes, number)
        if step is None or nodes[step].op == "Input":
            return
        yield step
        number = step
