"""Small ONNX networks and properties of them in decimals, for the tests of search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from vertex_softmax.graph.ir import Graph
from vertex_softmax.specs.property import Case, Conjunction, Inequality, Property

Row = tuple[Mapping[int, str | float], str | float]
"""Σ coefficient·y ≤ limit"""
UNIT = ("0", "1")


def network(*layers: tuple[np.ndarray, np.ndarray] | str, dtype=np.float32, shape=None) -> bytes:
    """x (1, inputs) through affine maps (W (outputs, inputs), b) and operators by name: the model's bytes."""
    kind = TensorProto.FLOAT if dtype == np.float32 else TensorProto.DOUBLE
    nodes, constants, last = [], [], "x"
    for i, layer in enumerate(layers):
        if isinstance(layer, str):
            nodes.append(helper.make_node(layer, [last], [f"h{i}"]))
        else:
            for letter, value in zip("Wb", layer, strict=True):
                constants.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), f"{letter}{i}"))
            outputs = len(layer[1])
            nodes.append(helper.make_node("Gemm", [last, f"W{i}", f"b{i}"], [f"h{i}"], transB=1))
        last = f"h{i}"
    inputs = next(np.shape(layer[0])[1] for layer in layers if not isinstance(layer, str))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape or [1, inputs])],
        [helper.make_tensor_value_info(last, kind, [1, outputs])],
        constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return made.SerializeToString()


def run(model: bytes, x: np.ndarray) -> np.ndarray:
    """onnxruntime as it comes: nothing of the package."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    there = session.get_inputs()[0]
    shape = [n if isinstance(n, int) else 1 for n in there.shape]
    return session.run(None, {there.name: np.asarray(x).reshape(shape)})[0]


def down(value: Fraction) -> float:
    """The largest float64 that is at most the value."""
    near = float(value)
    return near if Fraction(near) <= value else float(np.nextafter(near, -np.inf))


def up(value: Fraction) -> float:
    return -down(-value)


def conjunction(*rows: Row) -> Conjunction:
    return Conjunction(
        tuple(Inequality({k: Fraction(a) for k, a in row.items()}, Fraction(limit)) for row, limit in rows)
    )


def case(ends: Sequence[tuple[str | float, str | float]], *conjunctions: Conjunction) -> Case:
    """The box of decimals (or floats, exactly), rounded outward and inward."""
    exact = [(Fraction(a), Fraction(b)) for a, b in ends]
    return Case(
        np.array([down(a) for a, _ in exact]),
        np.array([up(b) for _, b in exact]),
        np.array([up(a) for a, _ in exact]),
        np.array([down(b) for _, b in exact]),
        tuple(conjunctions),
    )


def prop(outputs: int, *cases: Case) -> Property:
    return Property(tuple(cases), len(cases[0].lower), outputs)


def wavy(inputs: int, seed: int = 0, hidden: int = 16) -> bytes:
    """y = w·tanh(2 W x + b): many local minima, and none at a kink."""
    rng = np.random.default_rng(seed)
    first = (2 * rng.normal(size=(hidden, inputs)), rng.normal(size=hidden))
    return network(first, "Tanh", (rng.normal(size=(2, hidden)), np.zeros(2)))


def record(monkeypatch) -> list[np.ndarray]:
    """Every point that goes through a network from now on, (n, inputs) each."""
    seen, evaluate = [], Graph.evaluate

    def watched(self, x):
        seen.append(x.detach().double().reshape(len(x), -1).numpy().copy())
        return evaluate(self, x)

    monkeypatch.setattr(Graph, "evaluate", watched)
    return seen
