"""How rewrites are applied: equals for equals, from one graph to the next.

Invariant: a rule returns a node of the same value as the one it is given, or None. It reads the old graph only, so
rules never see each other's half-made work; what it returns is built on nodes of the old graph, replaced in their turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from vertex_softmax.foundation.two_sum import two_sum
from vertex_softmax.graph.ir import Graph, Node, order
from vertex_softmax.ops import linear, shape
from vertex_softmax.ops.contract import Op
from vertex_softmax.ops.fields import settings


class View:
    """A graph, who uses what in it, and whether rules may round the products of its numbers."""

    def __init__(self, graph: Graph, *, rounding: bool = False) -> None:
        self.graph: Graph = graph
        self.rounding: bool = rounding
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


def rewrite(graph: Graph, rule: Rule, *, rounding: bool = False) -> Graph:
    """The graph with a rule applied once at every node where it says something; the same object if nowhere.

    `rounding`: rules may multiply numbers of the graph where the product is rounded (`product`).
    """
    view = View(graph, rounding=rounding)
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
    return (content, tuple(sorted((k, str(v)) for k, v in settings(op).items())))


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


def factor_of(op: Op) -> Fraction | None:
    """The number that a Scale multiplies everything by, exactly; None if it is another op, or has several numbers."""
    if not isinstance(op, linear.Scale):
        return None
    if isinstance(op, linear.Divide):
        divisor = uniform(op.divisor)
        return Fraction(1) / Fraction(divisor) if divisor and math.isfinite(divisor) else None
    factor = uniform(op.factor)
    return Fraction(factor) if factor is not None and math.isfinite(factor) else None


def offset_of(op: Op) -> Fraction | None:
    """The number that a Shift adds everywhere, exactly; None if it is another op, or has several numbers."""
    offset = uniform(op.offset) if isinstance(op, linear.Shift) else None
    return Fraction(offset) if offset is not None and math.isfinite(offset) else None


def peel(node: Node) -> tuple[Node, Fraction, Fraction]:
    """node = scale · base + shift with exact numbers scale and shift, as far as uniform Scales and Shifts go."""
    scale, shift = Fraction(1), Fraction(0)
    for _ in range(MOST_PEELED):
        factor, offset = factor_of(node.op), offset_of(node.op)
        if factor is not None:
            scale *= factor
        elif offset is not None:
            shift += scale * offset
        else:
            break
        node = node.inputs[0]
    return node, scale, shift


MOST_PEELED = 64
"""Scales and Shifts in a row that `peel` looks through; their exact product has some thousand bits then."""


# Numbers that are multiplied or added up ----------------------------------------------------------------------------

ONE_UP = math.nextafter(1.0, 2.0)
LEAST_PRODUCT = 2.0**-900
"""Below this, products are subnormal or nearly so and may have lost digits; no rule makes such a number."""


def stored(value: Fraction) -> float | None:
    """The double nearest to a number; None if its relative error is above 2⁻⁵³ there (it overflows or underflows).

    A number that is not 1 never becomes 1, since a product with 1 is left out of the graph: it becomes the next double.
    """
    try:
        near = float(value)
    except OverflowError:
        return None
    if value and not LEAST_PRODUCT < abs(near) < math.inf:
        return None
    return ONE_UP if near == 1 and value != 1 else near


def product(a: Tensor, b: Tensor, *, rounding: bool) -> Tensor | None:
    """a · b in double precision; None where that overflows, underflows or (unless `rounding`) is not exact.

    Every number has a relative error of at most 2⁻⁵³; one that is not 1 never becomes 1, but the next double (2⁻⁵²).
    """
    a, b = torch.broadcast_tensors(a.double(), b.double())
    found = a * b
    lost = found.isfinite().logical_not() | ((found.abs() < LEAST_PRODUCT) & (a != 0) & (b != 0))
    if bool(lost.any()):
        return None
    exact = _product_error(a, b, found) == 0
    if bool(exact.all()):
        return found
    return torch.where(~exact & (found == 1), ONE_UP, found) if rounding else None


def _product_error(a: Tensor, b: Tensor, rounded: Tensor) -> Tensor:
    """a · b − rounded, exactly (Dekker, Veltkamp); not 0 where the parts overflow."""
    (high_a, low_a), (high_b, low_b) = (_halves(x) for x in (a, b))
    error = low_a * low_b - (((rounded - high_a * high_b) - low_a * high_b) - high_a * low_b)
    return error.nan_to_num(nan=torch.inf)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as a sum of two numbers of 26 bits each."""
    wide = x * (2.0**27 + 1)
    high = wide - (wide - x)
    return high, x - high


def exact_sum(a: Tensor, b: Tensor) -> Tensor | None:
    """a + b in double precision if every entry is finite and exact, else None."""
    s, error = two_sum(a.double(), b.double())
    return s if bool((error == 0).all()) and bool(s.isfinite().all()) else None
