"""What is free in a bound, and what it was set to: parameters of relaxations, and multipliers of boxes.

The ascent makes a `Choice`, branch and bound hands it from a part to its children, a certificate records it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.graph.ir import Node

Values = Mapping[str, Tensor]
"""Values of the free parameters of one relaxation, by name, (batch, S, ...)."""


class Multipliers(NamedTuple):
    """β, γ ≥ 0 of the two sides z ≥ l and z ≤ u of a node's box, (batch, S, *shape) each.

    For z in its box f(z) ≥ f(z) − β·(z − l) − γ·(u − z): these are the β of β-CROWN. Where the box was cut by a split,
    this is how the cut reaches what lies before it.
    """

    at_least: Tensor
    at_most: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> Multipliers:
        """The same change made to both."""
        return Multipliers(change(self.at_least), change(self.at_most))


class Targets(NamedTuple):
    """What the coefficients on a node should become, NaN where they may be anything; (batch, S, *shape) each.

    The multiplier of the lower side grows until the coefficient is no more than `at_least`, that of the upper side
    until it is no less than `at_most`.
    """

    at_least: Tensor
    at_most: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """Values for what is free in a backward pass; what is not named has its default."""

    parameters: Mapping[Node, Values] = dataclasses.field(default_factory=dict)
    multipliers: Mapping[Node, Multipliers] = dataclasses.field(default_factory=dict)
    targets: Mapping[Node, Targets] = dataclasses.field(default_factory=dict)
    """used by one pass to find multipliers; never stored"""

    def __bool__(self) -> bool:
        return bool(self.parameters or self.multipliers or self.targets)

    def map(self, change: Callable[[Tensor], Tensor]) -> Choice:
        """The same change made to every parameter and multiplier; without the targets."""
        parameters = {
            node: {name: change(value) for name, value in values.items()} for node, values in self.parameters.items()
        }
        return Choice(parameters, {node: sides.map(change) for node, sides in self.multipliers.items()})

    def beside(self, other: Choice) -> Choice:
        """With the parameters of another choice added, which has none of this one's."""
        if not other.parameters:
            return self
        parameters = {
            node: {**self.parameters.get(node, {}), **other.parameters.get(node, {})}
            for node in (*self.parameters, *other.parameters)
        }
        return dataclasses.replace(self, parameters=parameters)

    def without(self, names: Mapping[Node, Collection[str]]) -> Choice:
        """Without the named parameters of each node."""
        parameters = {
            node: {name: value for name, value in values.items() if name not in names.get(node, ())}
            for node, values in self.parameters.items()
        }
        return dataclasses.replace(self, parameters={node: values for node, values in parameters.items() if values})

    def only(self, names: Mapping[Node, Collection[str]]) -> Choice:
        """The named parameters of each node alone, without multipliers."""
        parameters = {
            node: {name: value for name, value in values.items() if name in names.get(node, ())}
            for node, values in self.parameters.items()
        }
        return Choice({node: values for node, values in parameters.items() if values})

    def multipliers_at(self, node: Node, coefficients: Tensor | None) -> Multipliers:
        """The multipliers of a node's box, given the coefficients (batch, S, *shape) that have arrived there.

        The coefficients are needed only where the node has targets.
        """
        least, most = self.multipliers[node].map(lambda x: x.clamp(min=0))
        if node in self.targets and coefficients is not None:
            at_least, at_most = self.targets[node]
            now = coefficients + most - least
            least = least + (now - at_least).clamp(min=0).nan_to_num(nan=0.0, posinf=0.0)
            most = most + (at_most - now).clamp(min=0).nan_to_num(nan=0.0, posinf=0.0)
        return Multipliers(least, most)

    @property
    def bytes(self) -> int:
        """What the parameters and multipliers take."""
        sizes = [value.nbytes for values in self.parameters.values() for value in values.values()]
        return sum(sizes) + sum(side.nbytes for sides in self.multipliers.values() for side in sides)


DEFAULT = Choice()
"""Every parameter at its default, no multipliers."""


def stacked(choices: list[Choice], dtype: torch.dtype) -> Choice:
    """Choices (1, 1, ...) of several parts beside each other, (parts, 1, ...).

    A value that one lacks is 0, not its default: as sound as any other.
    """
    names = {
        (node, name): value
        for choice in choices
        for node, values in choice.parameters.items()
        for name, value in values.items()
    }
    parameters: dict[Node, dict[str, Tensor]] = {}
    for (node, name), like in names.items():
        zero = torch.zeros_like(like[:1], dtype=dtype)
        rows = [choice.parameters.get(node, {}).get(name, zero) for choice in choices]
        parameters.setdefault(node, {})[name] = torch.cat([row.to(dtype) for row in rows])
    multipliers: dict[Node, Multipliers] = {}
    for node, sides in {node: sides for choice in choices for node, sides in choice.multipliers.items()}.items():
        none = sides.map(lambda x: torch.zeros_like(x[:1], dtype=dtype))
        each = [choice.multipliers.get(node, none) for choice in choices]
        multipliers[node] = Multipliers(
            torch.cat([one.at_least.to(dtype) for one in each]), torch.cat([one.at_most.to(dtype) for one in each])
        )
    return Choice(parameters, multipliers)
