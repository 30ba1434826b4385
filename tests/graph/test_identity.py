"""One identity of a network: everything that it computes by changes it, and nothing else does."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.ops.cases import CASES, Case
from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.identity import graph_identity, value_digest
from vertex_softmax.graph.ir import Constant, Graph, Input, Node
from vertex_softmax.ops.contract import Op
from vertex_softmax.ops.elementwise import Elementwise, Relu, Tanh
from vertex_softmax.ops.linear import Add, Linear, Shift, Subtract
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.registry import OPS
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.sets import LinfBall


def of(op: Op, *shapes: tuple[int, ...], out: tuple[int, ...] = (3,)) -> Graph:
    """The op on inputs of these shapes, the first of which is the network's."""
    sources = [Node(f"x{i}", Input(), (), tuple(dims)) for i, dims in enumerate(shapes)]
    return Graph(sources[0] if sources else build.source((1,)), Node("out", op, tuple(sources), out))


def one(case: Case) -> Graph:
    return of(case.op, *case.shapes, out=case.out)


def flipped(value: Tensor) -> Iterator[Tensor]:
    """The tensor with one bit, its type, or its shape changed."""
    other = value.contiguous().clone()
    sizes = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
    bits = other.view(-1).view(sizes[value.element_size()])
    bits[-1] ^= 1
    yield other
    if value.is_floating_point():
        yield value.to(torch.float32 if value.dtype == torch.float64 else torch.float64)
        yield value.half()
    yield value[None]
    yield value.flatten()[:-1]


def changed(value: Any) -> Iterator[Any]:
    """Other values that a field could have."""
    if isinstance(value, Tensor):
        yield from flipped(value)
        yield None
    elif value is None:
        yield from (torch.zeros(2).double(), torch.zeros(2, dtype=torch.bool))
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, -value - 1, float(value))
    elif isinstance(value, float):
        yield from (np.nextafter(value, 1.0).item(), -value if value else -0.0, float("nan"))
    elif isinstance(value, tuple):
        yield from ((*value, 1), value[:-1], (*value[:-1], value[-1] + 1), str(value))
        if value[::-1] != value and value[::-1] != (*value[:-1], value[-1] + 1):
            yield value[::-1]
    else:
        raise AssertionError(f"this test has no change for a {type(value).__name__}; add one")


def test_every_field_of_every_registered_op_counts() -> None:
    tried = set()
    for case in CASES:
        first = graph_identity(one(case))
        tried.add(type(case.op).__name__)
        for field in dataclasses.fields(case.op):
            others = []
            for value in changed(getattr(case.op, field.name)):
                op = dataclasses.replace(case.op)
                object.__setattr__(op, field.name, value)  # behind the checks of its class
                others.append(graph_identity(of(op, *case.shapes, out=case.out)))
            assert first not in others, f"{case.label}: {field.name}"
            assert len(set(others)) == len(others), f"{case.label}: {field.name}"
    assert tried == set(OPS)


def test_the_sign_of_zero_counts() -> None:
    zeros = torch.zeros(3).double()
    assert graph_identity(of(Shift(zeros), (3,))) != graph_identity(of(Shift(-zeros), (3,)))
    assert graph_identity(of(Normalize(0.0), (3,))) != graph_identity(of(Normalize(-0.0), (3,)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex128, torch.bool, torch.float8_e5m2])
def test_how_the_numbers_lie_in_memory_does_not_count(dtype: torch.dtype) -> None:
    """Strides of 0 among them: one number for many, and one for one."""
    number = torch.ones(()).to(dtype)
    for shape in ((), (1,), (1, 1), (0, 2), (2, 3)):
        plain = torch.ones(shape).to(dtype)
        odd = [number.expand(shape), torch.ones(5, *shape, 2).to(dtype)[3, ..., 1]]
        if math.prod(shape) == 1:
            odd += [number.as_strided(shape, (stride,) * len(shape)) for stride in (0, 7)]
        identities = {graph_identity(of(Constant(value), out=shape)) for value in (plain, *odd)}
        assert len(identities) == 1, shape


def test_a_network_with_a_single_number_for_many_can_be_certified() -> None:
    """The constants of this one are expanded on their way, with strides of 0."""

    class Expanded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(4, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.l(x) - 0.5)
            return torch.cat([0.3 * h + 0.1, 0.5 * h], -1)

    pytest.importorskip("flint")
    torch.manual_seed(0)
    found = certify(Expanded().eval(), LinfBall(torch.rand(1, 4), 1e-3), 0, certificate=True)
    assert found.verdict == "verified"


def test_the_type_of_the_same_bits_counts() -> None:
    bits = torch.tensor([1, 0, 1, 0, 0, 0, 0, 0], dtype=torch.uint8)
    types = (torch.uint8, torch.int8, torch.bool, torch.float8_e5m2)
    wide = (torch.int16, torch.float16, torch.bfloat16), (torch.int32, torch.float32), (torch.int64, torch.float64)
    for group in (types, *wide):
        assert len({graph_identity(of(Shift(bits.view(dtype)), (3,))) for dtype in group}) == len(group)


def test_every_registered_op_counts() -> None:
    known = {graph_identity(of(cls.__new__(cls), (3,))) for cls in OPS.values()}  # without fields
    assert len(known) == len(OPS)


def test_the_type_of_a_setting_counts() -> None:
    @dataclasses.dataclass(frozen=True)
    class Holds(Op):
        """Some value."""

        value: Any

    values: list[Any] = [
        None, True, 1, 1.0, "1", b"1", (1,), [1], {1: 1}, {1}, 1j, (1, 1), ((1,), 1), (1, (1,)), ("1", "1"), ("11",),
        (), [], {}, set(), "", b"", torch.ones(()), torch.ones(1), np.ones(1), np.float32(1), np.int64(1), Fraction(1),
        range(1), slice(1), torch.float32, torch.float64, {1: 2, 2: 1}, {1: 1, 2: 2}, 2**70, -(2**70), float("inf"),
        float("nan"), torch.tensor([1, 1], dtype=torch.uint8), torch.tensor([257], dtype=torch.int16),
        torch.tensor([[1, 1]]), torch.tensor([1], dtype=torch.bfloat16), torch.tensor([1], dtype=torch.complex64),
        torch.empty(0), torch.empty(0, 2), Relu(), Tanh(), of(Relu(), (3,)), of(Tanh(), (3,)),
    ]  # fmt: skip
    found = [graph_identity(of(Holds(value), (3,))) for value in values]
    assert len(set(found)) == len(found)
    same = [({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({"x", "y", "z"}, {"z", "y", "x"}), (torch.Size([2]), (2,))]
    same.append((torch.ones(2, 3).T, torch.ones(3, 2)))
    same.append((torch.ones(1).expand(4), torch.ones(4)))
    same.append((nn.Parameter(torch.ones(4)), torch.ones(4)))
    for first, second in same:
        assert graph_identity(of(Holds(first), (3,))) == graph_identity(of(Holds(second), (3,)))
    for value in (
        lambda: 1,
        object(),
        nn.Linear(1, 1),
        torch.ones(2, device="meta"),
        torch.ones(2).to_sparse(),
        Path(),
    ):
        with pytest.raises(UnsupportedModelError, match=r"out \(Holds\): its attribute 'value'"):
            graph_identity(of(Holds((1, value)), (3,)))


def test_odd_values_are_told_apart_or_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Holds(Op):
        """Some value."""

        value: Any

    huge = 10**5000  # Python refuses to write so many decimal digits
    assert graph_identity(of(Holds(huge), (3,))) != graph_identity(of(Holds(huge + 1), (3,)))
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(UnsupportedModelError, match=r"out \(Holds\): it contains itself"):
        graph_identity(of(Holds(itself), (3,)))


def residual(order: int = 0, join: type[Op] = Subtract, name: str = "h") -> Graph:
    """relu(h) − h, or h − relu(h), of h = x W + b."""
    x = build.source((3,))
    h = Node(name, Linear(torch.eye(3).double(), torch.zeros(3).double()), (x,), (3,))
    both = (Node("relu", Relu(), (h,), (3,)), h)
    return Graph(x, Node("out", join(), both[::-1] if order else both, (3,)))


def test_edges_count_and_names_do_not() -> None:
    first = graph_identity(residual())
    assert first != graph_identity(residual(1))
    assert first != graph_identity(residual(0, Add))
    assert graph_identity(residual(0, Add)) != graph_identity(residual(1, Add))
    assert first == graph_identity(residual(name="another/name"))
    assert first == graph_identity(residual().to(torch.float64))
    assert first != graph_identity(residual().to(torch.float32))
    assert len(first) == 64


def test_input_output_shape_and_sharing_count() -> None:
    x, y = build.source((3,)), build.source((3,))
    relu, tanh = Node("relu", Relu(), (x,), (3,)), Node("tanh", Tanh(), (x,), (3,))
    out = Node("out", Subtract(), (x, y), (3,))
    twice = Node("twice", Add(), (relu, relu), (3,))
    copies = Node("twice", Add(), (relu, Node("again", Relu(), (x,), (3,))), (3,))
    wide = Node("relu", Relu(), (x,), (1, 3))
    graphs = [
        Graph(x, x), Graph(x, relu), Graph(x, tanh), Graph(x, out), Graph(y, out), Graph(x, twice), Graph(x, copies),
        Graph(x, wide), Graph(y, relu), Graph(x, Node("out", Subtract(), (relu, tanh), (3,))),
        Graph(x, Node("out", Subtract(), (tanh, relu), (3,))), Graph(relu, twice), Graph(relu, x),
        Graph(relu, relu), Graph(build.source((3, 1)), x),
        *(Graph(x, Node("c", Constant(torch.zeros(n)), (), (3,))) for n in (3, 1)),
    ]  # fmt: skip
    found = [graph_identity(graph) for graph in graphs]
    assert len(set(found)) == len(found)


def test_where_one_constant_ends_and_the_next_begins_counts() -> None:
    x = build.source((4,))
    found = set()
    for cut, swap in itertools.product(range(1, 4), (False, True)):
        numbers = torch.arange(4.0).double()
        parts = [Shift(numbers[:cut]), Shift(numbers[cut:])]
        node = x
        for op in parts[::-1] if swap else parts:
            node = Node("shift", op, (node,), (4,))
        found.add(graph_identity(Graph(x, node)))
    assert len(found) == 6


def test_the_order_of_building_does_not_count() -> None:
    def built(first: int) -> Graph:
        x = build.source((3,))
        made = {
            i: Node(f"n{i}", op, (x,), (3,))
            for i, op in sorted(enumerate((Relu(), Tanh())), key=lambda p: p[0] ^ first)
        }
        return Graph(x, Node("out", Subtract(), (made[0], made[1]), (3,)))

    assert graph_identity(built(0)) == graph_identity(built(1))


SCRIPT = """
import torch
from torch import nn
from vertex_softmax.graph.identity import graph_identity, value_digest
from vertex_softmax.sets.loading import load
from vertex_softmax.sets import LinfBall

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
model = nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 3)).double().eval()
found = graph_identity(load(model, LinfBall(torch.zeros(1, 3, 4).double(), 0.1)))
"""


def test_it_is_the_same_in_every_process() -> None:
    """In this one, and in one whose strings have other hashes."""
    here: dict[str, Any] = {}
    exec(SCRIPT, here)  # noqa: S102
    seed = "77" if os.environ.get("PYTHONHASHSEED") != "77" else "0"
    made = subprocess.run(
        [sys.executable, "-c", SCRIPT + "\nprint(found)"],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout == here["found"] + "\n"


def test_one_weight_of_a_module_counts_and_its_name_does_not() -> None:
    class Named(nn.Module):
        """A layer under another name."""

        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).relu()

    layer = nn.Linear(2, 2).double()
    ball = LinfBall(torch.zeros(1, 2).double(), 0.1)
    first = graph_identity(load(nn.Sequential(layer, nn.ReLU()).eval(), ball))
    assert first == graph_identity(load(Named(layer).eval(), ball))
    with torch.no_grad():
        layer.bias[1] = torch.nextafter(layer.bias[1], torch.tensor(9.0).double())
    assert first != graph_identity(load(Named(layer).eval(), ball))


# Ops of a user: their code is theirs, and nobody else looks at it.

TYPED = """
POWER = {power}
def deeper():
    return {deeper}
def helper(x):
    return {helper} * x + deeper()
class Mine(Elementwise):
    slope = {classwide}
    def evaluate(self, *xs, most={default}):
        return [helper(y * POWER) * {body} + most for y in xs]
    @staticmethod
    def other():
        return {static}
    @property
    def third(self):
        return (lambda: {property})()
"""


@pytest.mark.parametrize("name", ["power", "deeper", "helper", "classwide", "default", "body", "static", "property"])
def test_the_code_of_a_users_op_counts_and_what_it_uses(name: str) -> None:
    def made(value: float) -> str:
        names = ("power", "deeper", "helper", "classwide", "default", "body", "static", "property")
        known: dict[str, Any] = {"Elementwise": Elementwise, "__name__": "notebook"}
        exec(TYPED.format(**{**dict.fromkeys(names, 1.0), name: value}), known)  # noqa: S102 - as a notebook does
        return graph_identity(of(known["Mine"](), (3,)))

    assert made(1.0) == made(1.0) != made(2.0)


def test_what_a_users_op_closes_over_counts() -> None:
    def made(alpha: Any, call: Callable[..., Any] = torch.relu) -> str:
        class Mine(Elementwise):
            """Of a factory."""

            rates: ClassVar[dict[str, float]] = {"a": 1.0}

            def evaluate(self, *xs: Tensor) -> Tensor:
                return call(xs[0]) * alpha  # type: ignore[no-any-return]

        return graph_identity(of(Mine(), (3,)))

    assert made(1.0) == made(1.0)
    assert len({made(1.0), made(1), made(torch.ones(1)), made(1.0, torch.tanh), made(1.0, lambda x: x)}) == 5
    with pytest.raises(UnsupportedModelError, match="its class has 'evaluate'"):
        made(object())


def test_attributes_that_are_no_fields_count() -> None:
    class Slotted(Elementwise):
        """Attributes in slots and in the dictionary."""

        __slots__ = ("rate",)

    def made(**values: Any) -> str:
        op = Slotted()
        for name, value in values.items():
            object.__setattr__(op, name, value)
        return graph_identity(of(op, (3,)))

    assert len({made(), made(rate=1.0), made(rate=2.0), made(more=1.0), made(rate=1.0, more=1.0)}) == 5
    assert made(more=1.0, rate=2.0) == made(rate=2.0, more=1.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_device_does_not_count() -> None:
    assert graph_identity(residual()) == graph_identity(residual().to(torch.float64, "cuda"))


def test_values_have_a_digest_of_all_that_they_consist_of() -> None:
    values = [
        1,
        1.0,
        True,
        "1",
        (1,),
        [1],
        {"a": 1},
        {"a": Fraction(1, 3)},
        np.array([0.0]),
        np.array([-0.0]),
        np.array([[0.0]]),
        None,
    ]
    assert len({value_digest(value) for value in values}) == len(values)
    assert value_digest({"a": 1, "b": 2}) == value_digest({"b": 2, "a": 1})
    with pytest.raises(UnsupportedModelError, match=r"a builtins\.object cannot be written down exactly, so it has no"):
        value_digest(object())
