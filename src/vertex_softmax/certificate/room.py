"""How much memory a proof may need, so that one that may not fit is refused before it begins."""

from __future__ import annotations

from vertex_softmax.bounds.memory import LEAST, Memory
from vertex_softmax.foundation.errors import NotEnoughMemoryError
from vertex_softmax.graph.ir import Graph


def require_room(graph: Graph, memory: Memory) -> None:
    """Raise NotEnoughMemoryError if a proof over one set of inputs may need more than the limit."""
    if memory.total is not None and (text := memory.refusal("a certificate", proof_bytes(graph))):
        raise NotEnoughMemoryError(f"{text}, or leave it out")


def proof_bytes(graph: Graph) -> int:
    """Bytes that a proof over one set of inputs may need."""
    nodes = graph.nodes()
    return LEAST
