"""A graph with what every pass over it needs: order, users, ancestors, and which nodes are affine in the input.

Invariant: nothing here depends on an input set, and nothing changes after construction, except that `maps` is filled on
demand.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph.ir import Constant, Graph, Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.contract import Summarising
from vertex_softmax.ops.normalization import Normalize


class GraphIndex:
    """The nodes of a graph in topological order, and the relations between them."""

    def __init__(self, graph: Graph) -> None:
        require_dimensions(graph)
        self.graph = graph
        self.nodes: tuple[Node, ...] = tuple(graph.nodes())
        self.position: dict[Node, int] = {node: i for i, node in enumerate(self.nodes)}
        users: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for i in node.inputs:
                users[i].append(node)
        self._users = {node: tuple(found) for node, found in users.items()}
        affine = {graph.input}
        parallel = {graph.input}
        for node in self.nodes:
            op, inputs = node.op, node.inputs
            if op.affine and all(i in affine or isinstance(i.op, Constant) for i in inputs):
                affine.add(node)
            fine = op.affine or op.has_parallel_rule or isinstance(op, Constant)
            if fine and all(i in parallel for i in inputs):
                parallel.add(node)
        self.affine = frozenset(affine)
        """nodes that are affine functions of the input"""
        self.parallel = frozenset(parallel)
        """nodes whose op and whose ancestors' ops are affine or have parallel rules, so that they can have
        generators"""
        self.start: Node = self._first()
        """the node at which backward passes end: the input, or the last of a chain of mere rearrangements of it"""
        self.maps: dict[tuple[Node, torch.dtype, torch.device], tuple[Tensor, Tensor] | None] = {}
        """by affine node, precision and device: the node as an affine function of the start (bounds/relaxations.py)"""

    def users(self, node: Node) -> tuple[Node, ...]:
        """The nodes that take this one as an input; a node that takes it twice is listed twice."""
        return self._users[node]

    def ancestors(self, node: Node) -> list[Node]:
        """The node and everything it is computed from, in topological order."""
        seen: set[Node] = set()
        stack = [node]
        while stack:
            current = stack.pop()
            if current not in seen:
                seen.add(current)
                stack.extend(current.inputs)
        return [each for each in self.nodes if each in seen]

    def has_attention(self, node: Node) -> bool:
        """Whether the node is an attention or has one among its ancestors."""
        return any(isinstance(each.op, Attention) for each in self.ancestors(node))

    def wants_generators(self, node: Node) -> bool:
        """Whether some user makes use of this node's generators, and does not have its exact affine form, which is
        better.
        """
        return any(
            isinstance(user.op, Summarising)
            and node in [user.inputs[i] for i in user.op.generator_inputs]
            and not (user.op.form_inputs and node in self.affine)
            for user in self.users(node)
        )

    def read_by_someone(self, node: Node) -> bool:
        """Whether the relaxation of some user reads this node's box."""
        return any(node in [user.inputs[i] for i in user.op.reads] for user in self.users(node))

    def start_numbers(self, device: torch.device) -> Tensor:
        """For each number of the start, the flat index of the input's number that it is; shaped like the start."""
        shape = self.graph.input.shape
        path = [self.start]
        while path[-1] is not self.graph.input:
            path.append(path[-1].inputs[0])
        numbers = torch.arange(math.prod(shape), device=device).reshape(shape)
        for node in reversed(path[:-1]):
            numbers = node.op.evaluate(numbers)
        return numbers

    def as_input(self, start: Tensor) -> Tensor:
        """The inputs (batch, S, *input shape) whose rearrangements are `start`, (batch, S, *shape of the start)."""
        numbers = self.start_numbers(start.device).flatten()
        whole = torch.empty_like(start.flatten(2))
        whole[..., numbers] = start.flatten(2)
        return whole.reshape(*start.shape[:2], *self.graph.input.shape)

    def _first(self) -> Node:
        node = self.graph.input
        while True:
            users = self._users[node]
            if len(users) != 1 or not users[0].op.rearranges:
                return node
            node = users[0]


def require_dimensions(graph: Graph) -> None:
    """Raise unless every tensor that depends on the input has at least one dimension, which bounds assume."""
    for node in graph.nodes():
        if not node.shape and not isinstance(node.op, Constant):
            what = {graph.input: "the input", graph.output: "the output"}.get(node, f"the tensor {node.name!r}")
            raise UnsupportedModelError(
                f"{what} of the network is a single number without dimensions; bounds need one: give it the shape "
                "(1,), by reshape, unsqueeze or keepdims"
            )


def last_norm(graph: Graph) -> Node | None:
    """The norm of whose output the network's output is an affine function; None if it is not a function of one norm
    alone.
    """
    found: set[Node] = set()
    seen: set[Node] = set()
    waiting = [graph.output]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node is graph.input or not (node.op.affine or isinstance(node.op, Constant)):
            found.add(node)
        else:
            waiting.extend(node.inputs)
    norm = next(iter(found), None)
    return norm if len(found) == 1 and norm is not None and isinstance(norm.op, Normalize) else None
