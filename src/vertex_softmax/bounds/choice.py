"""The values of what is free in a bound: parameters of relaxations, and multipliers of boxes.

Invariant: every value of a parameter and every non-negative multiplier gives a sound bound, so no choice need be
trusted. The ascent makes a `Choice`, branch and bound hands it from a part to its children, a certificate records it.
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
    """The multipliers β ≥ 0 of z ≥ l and γ ≥ 0 of z ≤ u, the two sides of a node's box; (batch, S, *shape) each.

    For z in its box, f(z) ≥ f(z) − β·(z − l) − γ·(u − z). These are the β of β-CROWN: through them a box that was cut
    by a split improves the coefficients on all nodes before it.
    """

    at_least: Tensor
    at_most: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> Multipliers:
        """The multipliers with the same function applied to both sides."""
        return Multipliers(change(self.at_least), change(self.at_most))


class Targets(NamedTuple):
    """Values that the coefficients on a node shall reach, NaN where there is none; (batch, S, *shape) each.

    The multiplier of the lower side is increased until the coefficient is at most `at_least`, that of the upper side
    until the coefficient is at least `at_most`.
    """

    at_least: Tensor
    at_most: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """Values of free parameters and multipliers for a backward pass; all other parameters have their defaults."""

    parameters: Mapping[Node, Values] = dataclasses.field(default_factory=dict)
    multipliers: Mapping[Node, Multipliers] = dataclasses.field(default_factory=dict)
    targets: Mapping[Node, Targets] = dataclasses.field(default_factory=dict)
    """used by a single pass to set multipliers; never stored"""

    def __bool__(self) -> bool:
        return bool(self.parameters or self.multipliers or self.targets)

    def map(self, change: Callable[[Tensor], Tensor]) -> Choice:
        """The choice with the same function applied to every parameter and multiplier; the targets are left out."""
        parameters = {
            node: {name: change(value) for name, value in values.items()} for node, values in self.parameters.items()
        }
        return Choice(parameters, {node: sides.map(change) for node, sides in self.multipliers.items()})

    def beside(self, other: Choice) -> Choice:
        """The choice with the parameters of another one added; the two have no parameter in common."""
        if not other.parameters:
            return self
        parameters = {
            node: {**self.parameters.get(node, {}), **other.parameters.get(node, {})}
            for node in (*self.parameters, *other.parameters)
        }
        return dataclasses.replace(self, parameters=parameters)

    def without(self, names: Mapping[Node, Collection[str]]) -> Choice:
        """The choice without the named parameters of each node."""
        parameters = {
            node: {name: value for name, value in values.items() if name not in names.get(node, ())}
            for node, values in self.parameters.items()
        }
        return dataclasses.replace(self, parameters={node: values for node, values in parameters.items() if values})

    def only(self, names: Mapping[Node, Collection[str]]) -> Choice:
        """Only the named parameters of each node, and no multipliers."""
        parameters = {
            node: {name: value for name, value in values.items() if name in names.get(node, ())}
            for node, values in self.parameters.items()
        }
        return Choice({node: values for node, values in parameters.items() if values})

    def multipliers_at(self, node: Node, coefficients: Tensor | None) -> Multipliers:
        """The multipliers of a node's box, increased as far as its targets ask.

        coefficients: (batch, S, *shape), those that have arrived at the node; needed only if it has targets.
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
        """How many bytes the parameters and multipliers take."""
        sizes = [value.nbytes for values in self.parameters.values() for value in values.values()]
        return sum(sizes) + sum(side.nbytes for sides in self.multipliers.values() for side in sides)


DEFAULT = Choice()
"""Every parameter has its default, and there are no multipliers."""


def stacked(choices: list[Choice], dtype: torch.dtype) -> Choice:
    """The choices (1, 1, ...) of several parts stacked to (parts, 1, ...).

    A parameter or multiplier that a choice lacks becomes 0, not its default, which is as sound as any other value.
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
