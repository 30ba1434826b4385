"""A graph that a user gives in place of a model: it is bounded simplified, if that computes the same.

Invariant: the simplified graph is used for inputs only if its outputs agree with those of the given one, up to rounding
in float64, at every point at which they are compared. Else the given graph is used as it is.

A graph that `from_onnx` or `from_torch` returns has a node for each operator. Its bounds would be sound, and useless
where several nodes stand for one attention or norm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.foundation.tolerances import SIMPLIFIED
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify


class GivenGraph:
    """A graph, and what it is simplified to."""

    def __init__(self, graph: Graph) -> None:
        self.given, self.simplified = graph, simplify(graph)

    def at(self, points: Tensor) -> Graph:
        """The graph for inputs to which points (n, *input shape) belong."""
        return self.simplified if self._agrees(points) else self.given

    @torch.no_grad()
    def _agrees(self, points: Tensor) -> bool:
        if self.simplified is self.given:
            return True
        x = points.detach().cpu().double()
        before, after = (graph.to(torch.float64).evaluate(x) for graph in (self.given, self.simplified))
        return bool(((before - after).abs() <= SIMPLIFIED * before.abs().max()).all())  # NaN and infinity: no
