"""Rewriting of graphs: rules replace nodes by nodes of the same value, from one immutable graph to the next.

Invariant: a rule returns a node of the same value as the one it is given, or None. It reads only the old graph, so
rules never see a partly rewritten graph. The node it returns is built on nodes of the old graph; `substitute` replaces
these too.
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
    """What a rule may read: the graph, the users of each node, and whether products of numbers may be rounded."""

    def __init__(self, graph: Graph, *, rounding: bool = False) -> None:
        self.graph: Graph = graph
        self.rounding: bool = rounding
        self.nodes: list[Node] = graph.nodes()
        self._users: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for i in node.inputs:
                self._users[i].append(node)

    def users(self, node: Node) -> list[Node]:
        """The nodes that have this node as an input, once per use."""
        return self._users[node]

    def sole(self, node: Node) -> bool:
        """Whether the node is used exactly once, and is not the output."""
        return len(self._users[node]) == 1 and node is not self.graph.output


Rule = Callable[[Node, View], Node | None]


def rewrite(graph: Graph, rule: Rule, *, rounding: bool = False) -> Graph:
    """The graph with a rule applied once to every node; the same object if the rule applies to none.

    `rounding`: whether the rule may replace factors by their rounded product (`product`).
    """
    view = View(graph, rounding=rounding)
    replacements = {node: new for node in view.nodes if (new := rule(node, view)) is not None}
    return substitute(graph, replacements) if replacements else graph


def substitute(graph: Graph, replacements: dict[Node, Node]) -> Graph:
    """The graph with nodes replaced, also where they occur inside the replacements."""
    done: dict[Node, Node] = {graph.input: graph.input}

    def settle(root: Node) -> Node:
        stack = [root]
        while stack:
            node = stack[-1]
            target = replacements.get(node)
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
    """The graph with nodes that have equal ops, inputs and shapes merged; the same object if there are none."""
    known: dict[object, Node] = {}
    new: dict[Node, Node] = {}
    for node in order(graph.output, graph.input):
        inputs = tuple(new[i] for i in node.inputs)
        key = (type(node.op), _key(node.op), inputs, node.shape) if inputs else node
        new[node] = known.setdefault(key, _with_inputs(node, inputs))
    changed = any(a is not b for a, b in new.items())
    return Graph(new[graph.input], new[graph.output]) if changed else graph


LARGE = 1 << 16
"""Tensors with more numbers count as equal only if they are the same object: comparing them would cost too much."""


def _key(op: Op) -> object:
    """A hashable key, equal for ops of one class with equal tensors and settings."""
    tensors = [v for v in vars(op).values() if isinstance(v, Tensor)]
    content = tuple(
        (str(t.dtype), tuple(t.shape), t.cpu().contiguous().numpy().tobytes() if t.numel() <= LARGE else id(t))
        for t in tensors
    )
    return (content, tuple(sorted((k, str(v)) for k, v in settings(op).items())))


# What rules ask about nodes -----------------------------------------------------------------------------------------

MOVES = (shape.Reshape, shape.Permute, shape.Expand)


def moves(node: Node, also: tuple[type[Op], ...] = ()) -> tuple[list[Node], Node]:
    """The chain of Reshape, Permute and Expand (and `also`) that ends at a node, last first, and the node before it."""
    chain = []
    while isinstance(node.op, (*MOVES, *also)):
        chain.append(node)
        node = node.inputs[0]
    return chain, node


def moved(value: Tensor, chain: Sequence[Node]) -> Tensor:
    """The image of a tensor, of the shape before the chain (last first), under all ops of the chain."""
    for node in reversed(chain):
        value = node.op.evaluate(value)
    return value


def unmoved(value: Tensor, chain: Sequence[Node]) -> Tensor | None:
    """The preimage of a tensor, of the shape after the chain (last first); None if the chain repeats numbers."""
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
    """Whether the chain from `base` to `node` only broadcasts: every dimension keeps its position."""
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
    """The common value of all entries of a tensor; None if they differ."""
    first = float(t.reshape(-1)[0])
    return first if bool((t == first).all()) else None


def factor_of(op: Op) -> Fraction | None:
    """The exact factor of a Scale by a single number; None for any other op, and for a factor that is not finite."""
    if not isinstance(op, linear.Scale):
        return None
    if isinstance(op, linear.Divide):
        divisor = uniform(op.divisor)
        return Fraction(1) / Fraction(divisor) if divisor and math.isfinite(divisor) else None
    factor = uniform(op.factor)
    return Fraction(factor) if factor is not None and math.isfinite(factor) else None


def offset_of(op: Op) -> Fraction | None:
    """The exact offset of a Shift by a single number; None for any other op, and for an offset that is not finite."""
    offset = uniform(op.offset) if isinstance(op, linear.Shift) else None
    return Fraction(offset) if offset is not None and math.isfinite(offset) else None


def peel(node: Node) -> tuple[Node, Fraction, Fraction]:
    """(base, scale, shift) with node = scale · base + shift, exact numbers, through Scales and Shifts by one number."""
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
"""The most Scales and Shifts in a row that `peel` passes; their exact product then has a few thousand bits."""


# Numbers that are multiplied or added up ----------------------------------------------------------------------------

ONE_UP = math.nextafter(1.0, 2.0)
LEAST_PRODUCT = 2.0**-900
"""Smaller products are subnormal or nearly so and may have lost digits; no rule creates such a number."""


def stored(value: Fraction) -> float | None:
    """The double nearest to an exact number; None if its relative error is above 2⁻⁵³ (overflow or underflow).

    A number other than 1 never becomes 1, because a product with 1 is removed from the graph; it becomes the next
    double above 1.
    """
    try:
        near = float(value)
    except OverflowError:
        return None
    if value and not LEAST_PRODUCT < abs(near) < math.inf:
        return None
    return ONE_UP if near == 1 and value != 1 else near


def product(a: Tensor, b: Tensor, *, rounding: bool) -> Tensor | None:
    """a · b in double precision; None if an entry overflows, underflows or (unless `rounding`) is not exact.

    Every entry has a relative error of at most 2⁻⁵³. A product other than 1 never becomes 1, but the next double, with
    an error of at most 2⁻⁵².
    """
    a, b = torch.broadcast_tensors(a.double(), b.double())
    rounded = a * b
    lost = rounded.isfinite().logical_not() | ((rounded.abs() < LEAST_PRODUCT) & (a != 0) & (b != 0))
    if bool(lost.any()):
        return None
    exact = _product_error(a, b, rounded) == 0
    if bool(exact.all()):
        return rounded
    return torch.where(~exact & (rounded == 1), ONE_UP, rounded) if rounding else None


def _product_error(a: Tensor, b: Tensor, rounded: Tensor) -> Tensor:
    """a · b − rounded, exactly (Dekker's product with Veltkamp's splitting); not 0 where a part overflows."""
    (high_a, low_a), (high_b, low_b) = (_halves(x) for x in (a, b))
    error = low_a * low_b - (((rounded - high_a * high_b) - low_a * high_b) - high_a * low_b)
    return error.nan_to_num(nan=torch.inf)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """(high, low) with x = high + low, each of at most 26 bits (Veltkamp's splitting)."""
    wide = x * (2.0**27 + 1)
    high = wide - (wide - x)
    return high, x - high


def exact_sum(a: Tensor, b: Tensor) -> Tensor | None:
    """a + b in double precision if every entry is finite and exact, else None."""
    s, error = two_sum(a.double(), b.double())
    return s if bool((error == 0).all()) and bool(s.isfinite().all()) else None
