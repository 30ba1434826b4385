"""STAND-IN (the lead resolves): one identity of a graph, of ops, settings, constants and edges."""

from __future__ import annotations

import dataclasses
import hashlib

from torch import Tensor

from vertex_softmax.graph.ir import Graph


def graph_identity(graph: Graph) -> str:
    """SHA-256 of everything that a graph computes with, its edges among them; node names are no part of it."""
    found = hashlib.sha256()
    nodes = graph.nodes()
    number = {node: i for i, node in enumerate(nodes)}
    for node in nodes:
        edges = [number[i] for i in node.inputs]
        found.update(repr((type(node.op).__name__, edges, node.shape)).encode())
        for name, value in _held(node.op):
            if isinstance(value, Tensor):
                found.update(repr((name, value.dtype, tuple(value.shape))).encode())
                found.update(value.detach().cpu().contiguous().numpy().tobytes())
            else:
                found.update(repr((name, value)).encode())
    found.update(repr((number[graph.input], number[graph.output])).encode())
    return found.hexdigest()


def _held(op: object) -> list[tuple[str, object]]:
    if dataclasses.is_dataclass(op):
        return [(field.name, getattr(op, field.name)) for field in dataclasses.fields(op)]
    return sorted(vars(op).items())
