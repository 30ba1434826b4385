"""How rewrites are applied: equals for equals, from one graph to the next.

Invariant: a rule returns a node of the same value as the one it is given, or None. It reads the old graph only, so
rules never see each other's half-made work; what it returns is built on nodes of the old graph, replaced in their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vertex_softmax.graph.ir import Graph, Node, order
from vertex_softmax.ops import linear, shape
from vertex_softmax.ops.registry import Op


class View:
    """A graph and who uses what in it."""

    def __init__(self, graph: Graph) -> None:
        self.graph: Graph = graph
        self.nodes: list[Node] = graph.nodes()
        self._users: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for i in node.inputs:
                self._users[i].append(node)

    def users(self, node: Node) -> list[Node]:
        """The nodes that take it as input, once per use."""
        return self._users[node]

    def sole(self, node: Node) -> bool:
        """Is there one use of it only?"""
        return len(self._users[node]) == 1 and node is not self.graph.output


Rule = Callable[[Node, View], Node | None]


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """The graph with a rule applied once at every node where it says something; the same object if nowhere."""
    view = View(graph)
    said = {node: new for node in view.nodes if (new := rule(node, view)) is not None}
    return substitute(graph, said) if said else graph


def substitute(graph: Graph, said: dict[Node, Node]) -> Graph:
    """The graph with nodes replaced, also inside of the replacements."""
    done: dict[Node, Node] = {graph.input: graph.input}

    def settle(root: Node) -> Node:
        stack = [root]
        while stack:
            node = stack[-1]
            target = said.get(node)
            needs = [i for i in ((target,) if target is not None else node.inputs) if i not in done]
            if node in done or not needs:
                stack.pop()
                if node not in done:
                    done[node] = (
                        done[target] if target is not None else _with_inputs(node, [done[i] for i in node.inputs])
                    )
            else:
                stack.extend(needs)
        return done[root]

    return Graph(graph.input, settle(graph.output))


def _with_inputs(node: Node, inputs: Sequence[Node]) -> Node:
    if all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
        return node
    return Node(node.name, node.op, tuple(inputs), node.shape)


def share(graph: Graph) -> Graph:
    """Equal ops of equal inputs become one node."""
    known: dict[object, Node] = {}
    new: dict[Node, Node] = {}
    for node in order(graph.output, graph.input):
        inputs = tuple(new[i] for i in node.inputs)
        key = (type(node.op), _key(node.op), inputs, node.shape) if inputs else node
        new[node] = known.setdefault(key, _with_inputs(node, inputs))
    changed = any(a is not b for a, b in new.items())
    return Graph(new[graph.input], new[graph.output]) if changed else graph


LARGE = 1 << 16
"""Tensors of more numbers are the same only if they are one object: comparing them costs more than it brings."""


def _key(op: Op) -> object:
    tensors = [v for v in vars(op).values() if isinstance(v, Tensor)]
    content = tuple(
        (str(t.dtype), tuple(t.shape), t.cpu().contiguous().numpy().tobytes() if t.numel() <= LARGE else id(t))
        for t in tensors
    )
    return (content, tuple(sorted((k, str(v)) for k, v in op.settings().items())))


# What rules ask about nodes -----------------------------------------------------------------------------------------

MOVES = (shape.Reshape, shape.Permute, shape.Expand)


def moves(node: Node, also: tuple[type[Op], ...] = ()) -> tuple[list[Node], Node]:
    """The chain of Reshape, Permute and Expand that ends at a node, last first, and the node it starts from."""
    chain = []
    while isinstance(node.op, (*MOVES, *also)):
        chain.append(node)
        node = node.inputs[0]
    return chain, node


def moved(value: Tensor, chain: Sequence[Node]) -> Tensor:
    """A tensor of the start's shape through a chain (last first)."""
    for node in reversed(chain):
        value = node.op.evaluate(value)
    return value


def unmoved(value: Tensor, chain: Sequence[Node]) -> Tensor | None:
    """A tensor of the end's shape back to the start of a chain (last first); None where a chain repeats numbers."""
    for node in chain:
        op = node.op
        if isinstance(op, shape.Reshape):
            value = value.reshape(op.before)
        elif isinstance(op, shape.Permute):
            value = value.permute(sorted(range(len(op.dims)), key=op.dims.__getitem__))
        else:
            return None
    return value


def broadcasts(node: Node, base: Node, chain: Sequence[Node]) -> bool:
    """Is the chain from `base` to `node` nothing but broadcasting, each number staying in its row?"""
    if len(base.shape) != len(node.shape):
        return False
    try:
        wide = torch.arange(_count(base)).reshape(base.shape).expand(node.shape)
    except RuntimeError:
        return False
    return torch.equal(moved(torch.arange(_count(base)).reshape(base.shape), chain), wide)


def _count(node: Node) -> int:
    return int(torch.Size(node.shape).numel())


def uniform(t: Tensor) -> float | None:
    """The value of a tensor whose entries are all the same."""
    first = float(t.reshape(-1)[0])
    return first if bool((t == first).all()) else None


def peel(node: Node) -> tuple[Node, float, float]:
    """node = scale · base + shift with numbers scale and shift, as far as uniform Scales and Shifts go."""
    scale, shift = 1.0, 0.0
    while True:
        op = node.op
        if isinstance(op, linear.Scale) and (factor := uniform(op.factor)) is not None:
            scale *= factor
        elif isinstance(op, linear.Shift) and (offset := uniform(op.offset)) is not None:
            shift += scale * offset
        else:
            return node, scale, shift
        node = node.inputs[0]
