"""Verification of a property file for a PyTorch module, as `search.verify_files` does it for an ONNX file.

Invariant: a proof is about the module's graph in real arithmetic over its weights; a counterexample was confirmed by
the module itself, in its own precision. Before any answer is given, the graph was compared with the module, in the
middle of every box of the property.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from vertex_softmax.bounds.index import require_dimensions
from vertex_softmax.foundation.errors import InvalidValueError, UnsupportedModelError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.graph.identity import graph_identity
from vertex_softmax.runs.python_models import weights_identity
from vertex_softmax.search.replay import Replay
from vertex_softmax.search.verify_files import Instance, points_of_cases
from vertex_softmax.sets import Box
from vertex_softmax.sets.loading import read
from vertex_softmax.specs.vnnlib import read_vnnlib


@full_precision()
def load_module_instance(module: nn.Module, spec: Path, shape: Sequence[int] | None = None) -> Instance:
    """A module in eval mode and a property whose shapes fit each other.

    shape: of one input, without the batch. By default the shape that the file declares (VNNLIB 2.0), without a batch of
    1 in front, or else a row of numbers.
    """
    prop = read_vnnlib(spec)
    assumed = shape is None
    if shape is None:
        declared = prop.input_shape or (prop.inputs,)
        shape = declared[1:] if len(declared) > 1 and declared[0] == 1 else declared
    if math.prod(shape) != prop.inputs:
        raise InvalidValueError(
            f"the property has {prop.inputs} inputs, and an input of shape {tuple(shape)} has {math.prod(shape)} "
            "numbers; give the shape of one input, without the batch: --shape 1,28,28"
        )
    original = read(module)
    graph = None
    for points in points_of_cases(prop.cases, tuple(shape)):
        try:
            found = original.graph(Box(points, points))
        except UnsupportedModelError as error:
            if assumed and len(shape) == 1:
                raise UnsupportedModelError(
                    f"{error}\nThe property says only that an input has {prop.inputs} numbers: give its shape, without "
                    "the batch, as in --shape 1,28,28"
                ) from error
            raise
        graph = found if graph is None else graph
    if graph is None:
        raise InvalidValueError(f"{spec} has no case, so there is nothing to verify")
    prop.require(graph.input.shape, graph.output.shape)
    require_dimensions(graph)
    inside = tuple(graph.input.shape)

    def run(x: Tensor) -> Tensor:
        point = x.double().reshape(1, *shape)
        value = original.outputs(Box(point, point), inside)
        if value is None:
            raise InvalidValueError("the module has no output of its own")
        return value[0]

    identity = hashlib.sha256(f"{graph_identity(graph)} {weights_identity(module)}".encode()).hexdigest()
    return Instance(graph, prop, Replay.of_function(run, inside, original.precision), identity)
