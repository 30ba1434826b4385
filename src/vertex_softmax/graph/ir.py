"""The network as a graph of ops: immutable nodes that refer to their inputs. Bounds are not stored here.

Invariant: `Graph.evaluate` computes what the imported model computes, on tensors (*leading, *input shape). Shapes are
those of one traced call (its batch dimension, usually 1, included); batches are leading dimensions before them, so no
op needs to know which dimension is the batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.ops.contract import Op, Shape
from vertex_softmax.ops.fields import loses_small_constants, moved, settings
from vertex_softmax.ops.interval import Interval


@dataclasses.dataclass(frozen=True)
class Input(Op):
    """The input of the network."""


@dataclasses.dataclass(frozen=True)
class Constant(Op):
    """A tensor of the node's shape that does not depend on the network's input."""

    value: Tensor

    affine = True

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The value, without leading dimensions; it broadcasts against them."""
        return self.value

    def interval(self, *boxes: Interval) -> Interval:
        """The interval from the value to itself, with a leading dimension of 1."""
        return Interval(self.value[None], self.value[None])


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One op applied to the values of earlier nodes. Nodes are equal only if they are the same object.

    `name` says which part of the model it comes from, for messages; `shape` is that of its value.
    """

    name: str
    op: Op
    inputs: tuple[Node, ...]
    shape: Shape
    lacking: bool = False
    """whether constants of the op were too small for the precision they are in now (`Graph.to`)"""

    def __repr__(self) -> str:
        return f"{self.name}: {type(self.op).__name__}{list(self.shape)}"


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """A function of one tensor: from the value of the input node to the value of the output node."""

    input: Node
    output: Node

    def __repr__(self) -> str:
        return f"Graph({len(self.nodes())} nodes, {list(self.input.shape)} → {list(self.output.shape)})"

    def nodes(self) -> list[Node]:
        """The input and every node the output depends on, in an order where inputs come first."""
        return list(self._ordered)

    @functools.cached_property
    def _ordered(self) -> tuple[Node, ...]:
        return tuple(order(self.output, self.input))

    def constants(self) -> Iterator[Tensor]:
        """Every tensor that is a field of a node's op, in the order of `nodes`."""
        return (value for node in self.nodes() for value in vars(node.op).values() if isinstance(value, Tensor))

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the floating-point constants, which `to` changes; float64 if there are none."""
        return next((value.dtype for value in self.constants() if value.is_floating_point()), torch.float64)

    @property
    def device(self) -> torch.device:
        """The device of the constants, which `to` changes; the CPU if there are none."""
        return next((value.device for value in self.constants()), torch.device("cpu"))

    def evaluate(self, x: Tensor) -> Tensor:
        """The network's value at x (*leading, *input shape) → (*leading, *output shape)."""
        return self.values(x)[self.output]

    def values(self, x: Tensor, given: Mapping[Node, Tensor] | None = None) -> dict[Node, Tensor]:
        """The value (*leading, *node shape) of every node at x (*leading, *input shape).

        `given` has the values of some nodes, in place of what these nodes would compute.
        """
        n = len(self.input.shape)
        if x.dim() < n or tuple(x.shape[x.dim() - n :]) != self.input.shape:
            raise InvalidValueError(
                f"the input has shape {tuple(x.shape)}, but the network takes {self.input.shape} behind leading ones"
            )
        leading = x.shape[: x.dim() - n]
        values: dict[Node, Tensor] = {self.input: x}
        for node in self.nodes():
            if given is not None and node in given:
                values[node] = given[node].to(x).expand(*leading, *node.shape)
            elif node is not self.input:
                value = node.op.evaluate(*(values[i] for i in node.inputs))
                values[node] = value.expand(*leading, *node.shape) if isinstance(node.op, Constant) else value
        return values

    def map(self, change: Callable[[Node, tuple[Node, ...]], Node]) -> Graph:
        """The graph rebuilt in topological order: `change(node, new inputs)` returns the replacement of each node."""
        new: dict[Node, Node] = {}
        for node in self.nodes():
            new[node] = change(node, tuple(new[i] for i in node.inputs))
        return Graph(new[self.input], new[self.output])

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Graph:
        """The graph with its floating-point constants in this precision and all constants on this device.

        Itself where they are.
        """
        target = torch.device(device)
        ops = {node: moved(node.op, dtype, target) for node in self.nodes()}
        if all(op is node.op for node, op in ops.items()):
            return self
        lacking = {node: node.lacking or loses_small_constants(node.op, dtype) for node in ops}
        return self.map(lambda node, inputs: Node(node.name, ops[node], inputs, node.shape, lacking[node]))

    def __str__(self) -> str:
        """One line per node: its number, op, settings, inputs, shape and name."""
        nodes = self.nodes()
        number = {node: i for i, node in enumerate(nodes)}
        lines = []
        for i, node in enumerate(nodes):
            arguments = ", ".join(f"{k}={v}" for k, v in settings(node.op).items())
            inputs = " ".join(f"%{number[j]}" for j in node.inputs)
            lines.append(f"%{i} = {type(node.op).__name__}({arguments}) {inputs} {list(node.shape)}  # {node.name}")
        return "\n".join(lines)


def order(output: Node, first: Node | None = None) -> list[Node]:
    """`output` and all nodes it depends on, inputs before users; `first`, if given, comes first even if unused."""
    seen: set[Node] = set()
    ordered: list[Node] = []
    for root in (first, output):
        stack: list[tuple[Node, Iterator[Node]]] = []
        if root is not None and root not in seen:
            seen.add(root)
            stack.append((root, iter(root.inputs)))
        while stack:
            node, rest = stack[-1]
            child = next((c for c in rest if c not in seen), None)
            if child is None:
                stack.pop()
                ordered.append(node)
            else:
                seen.add(child)
                stack.append((child, iter(child.inputs)))
    return ordered
