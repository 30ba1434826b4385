"""What the contract is tried on: for every op some arguments and shapes, and boxes from tiny to enormous."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from vertex_softmax.ops import (
    activations,
    attention,
    bilinear,
    elementwise,
    linear,
    maximum,
    normalization,
    rounding,
    shape,
    softmax,
)
from vertex_softmax.ops.contract import Op, Shape
from vertex_softmax.ops.fields import moved
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import ReluSlope, RowRule, Rules

BATCH = 3
KINDS = (
    "ordinary", "wide", "tiny", "point", "straddling", "positive", "negative", "mixed", "huge", "offset", "from_zero",
)  # fmt: skip
"""The kinds of boxes `boxes` makes."""


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*dims: int, seed: int = 0) -> Tensor:
    return torch.randn(*dims, generator=generator(seed), dtype=torch.float64)


@dataclasses.dataclass(frozen=True)
class Case:
    """An op with arguments, the shapes of its inputs, and what it can be asked."""

    op: Op
    shapes: tuple[Shape, ...]
    domain: str = "real"
    """real; positive (x > 0), nonnegative (x ≥ 0) or nonzero"""
    most: float = 2e3
    """The largest |x| of a box: beyond, the function itself overflows."""
    rules: tuple[Rules, ...] = (Rules(),)
    size: Callable[..., Tensor] | None = None
    """Of the inputs' largest absolute values, the size of the terms an output is added up of (its rounding)."""
    name: str = ""

    @property
    def label(self) -> str:
        """For pytest."""
        return f"{type(self.op).__name__}{'-' + self.name if self.name else ''}"

    @property
    def out(self) -> Shape:
        """The output's shape."""
        return tuple(self.evaluate(*(torch.ones(s, dtype=torch.float64) for s in self.shapes)).shape)

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The function in float64, whatever the op's own precision."""
        return moved(self.op, torch.float64, torch.device("cpu")).evaluate(*(x.double() for x in xs))


def boxes(case: Case, kind: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Interval, ...]:
    """A box (BATCH, *shape) per input."""
    made = []
    for i, dims in enumerate(case.shapes):
        g = generator(1000 * seed + 17 * i + KINDS.index(kind))
        centre = torch.randn(BATCH, *dims, generator=g, dtype=torch.float64)
        radius = torch.rand(BATCH, *dims, generator=g, dtype=torch.float64)
        some = torch.rand(BATCH, *dims, generator=g, dtype=torch.float64)
        if kind == "wide":
            centre, radius = 3 * centre, 8 * radius
        elif kind == "tiny":
            radius = 1e-12 * radius
        elif kind == "point":
            radius = 0 * radius
        elif kind == "straddling":
            centre, radius = 0.3 * radius * centre.tanh(), radius + 0.01
        elif kind == "positive":
            centre = centre.abs() + radius + 0.05
        elif kind == "negative":
            centre = -(centre.abs() + radius + 0.05)
        elif kind == "mixed":
            radius = torch.where(some < 0.5, 0.0, torch.where(some < 0.8, 0.1 * radius, 4 * radius))
        elif kind == "huge":
            centre, radius = 700 * centre.tanh(), torch.where(some < 0.5, 1e3 * radius, radius)
        elif kind == "offset":
            centre, radius = 500 + centre, 0.5 * radius
        elif kind == "from_zero":  # an end at 0, or so near that rounding cannot tell
            radius = radius + 0.1
            centre = torch.where(some < 0.5, radius + 1e-20, torch.where(some < 0.75, -radius, radius + 1e-6))
        lower, upper = centre - radius, centre + radius
        if kind == "from_zero":
            lower = torch.where((some < 0.5), 1e-20 * some, lower)
        lower, upper = lower.clamp(-case.most, case.most), upper.clamp(-case.most, case.most)
        lower, upper = lower.to(dtype).double(), upper.to(dtype).double()
        made.append(_inside(case.domain, Interval(lower, upper), some, dtype))
    return tuple(made)


def _inside(domain: str, box: Interval, some: Tensor, dtype: torch.dtype) -> Interval:
    """The box moved into the domain."""
    if domain == "real":
        return Interval(*(x.to(dtype) for x in box))
    most = 200.0 if dtype == torch.float64 else 25.0
    lower, upper = (x.clamp(-most, most).exp() for x in box)
    if domain == "nonnegative":
        upper = torch.where((some < 0.3) & (lower == upper), 0.0, upper)
        lower = torch.where(some < 0.3, 0.0, lower)
    if domain == "nonzero":
        flip = some < 0.5
        lower, upper = torch.where(flip, -upper, lower), torch.where(flip, -lower, upper)
    return Interval(lower.to(dtype), upper.to(dtype))


def points(box: tuple[Interval, ...], count: int, seed: int = 0) -> list[Tensor]:
    """Points of the boxes, (points, BATCH, *shape) per input: corners, the centre, edges and the interior."""
    g = generator(seed + 5)
    found = []
    for lower, upper in box:
        t = torch.rand(count, *lower.shape, generator=g, dtype=torch.float64)
        third = max(1, count // 3)
        t[:third] = (t[:third] < 0.5).double()  # corners
        edge = torch.rand(third, *lower.shape, generator=g, dtype=torch.float64)
        t[third : 2 * third] = torch.where(edge < 0.6, t[third : 2 * third].round(), t[third : 2 * third])
        t[0], t[1], t[2] = 0, 1, 0.5
        x = (1 - t).to(lower.dtype) * lower + t.to(lower.dtype) * upper
        found.append(x.clamp(lower, upper))
    return found


PRODUCTS = tuple(Rules(product=mix) for mix in (0.5, 0.0, 0.3, 1.0))
ATTENTIONS = tuple(Rules(attention=rule) for rule in RowRule)
RELUS = tuple(Rules(relu=slope) for slope in ReluSlope)


def _attention_mask() -> Tensor:
    causal = torch.ones(5, 5).triu(1).bool()
    causal[:, 3] = True  # a key that nobody sees
    return causal


def _linear() -> list[Case]:
    w, b = normal(4, 3, seed=1), normal(3, seed=2)
    many, left = normal(2, 4, 3, seed=3), normal(5, 4, seed=4)
    factors = {"": normal(2, 3, seed=5), "row": normal(3, seed=6), "number": torch.tensor(-2.5, dtype=torch.float64)}
    return [
        Case(linear.Linear(w, b), ((5, 4),), size=lambda x: x @ w.abs() + b.abs()),
        Case(linear.Linear(w), ((4,),), size=lambda x: x @ w.abs(), name="vector"),
        Case(linear.Linear(many), ((2, 5, 4),), size=lambda x: x @ many.abs(), name="per head"),
        Case(linear.Linear(torch.eye(4, dtype=torch.float64) - 0.25), ((2, 4),), size=lambda x: x * 4, name="centring"),
        Case(linear.LeftLinear(left), ((4, 3),), size=lambda x: left.abs() @ x),
        Case(linear.LeftLinear(many.mT), ((2, 4, 3),), size=lambda x: many.mT.abs() @ x, name="per head"),
        _convolution((2,), (3,), 1),
        _convolution((1, 2), (3, 2), 1),
        _convolution((2, 2), (2, 2), 2),
        _convolution((1, 2, 1), (2, 2, 2), 1),
        *(Case(linear.Scale(f), ((2, 3),), size=lambda x, f=f: x * f.abs(), name=n) for n, f in factors.items()),
        *(Case(linear.Shift(f), ((2, 3),), size=lambda x, f=f: x + f.abs(), name=n) for n, f in factors.items()),
        Case(linear.Scale(torch.zeros(3, dtype=torch.float64)), ((2, 3),), name="zero"),
        Case(linear.Divide.by(factors["row"]), ((2, 3),), size=lambda x: x / factors["row"].abs()),
        Case(linear.Add(), ((2, 3), (2, 3)), size=torch.add),
        Case(linear.Subtract(), ((2, 3), (2, 3)), size=torch.add),
        Case(linear.Sum((1,), 3, (4,)), ((2, 4, 3),), size=lambda x: x.sum(-2, keepdim=True)),
        Case(linear.Sum((0, 2), 3, (2, 3)), ((2, 4, 3),), size=lambda x: x.sum((-3, -1), keepdim=True), name="two"),
    ]  # fmt: skip


def _convolution(stride: Shape, kernel: Shape, groups: int) -> Case:
    n = len(kernel)
    w, b = normal(4, 2 // groups, *kernel, seed=7), normal(4, seed=8)
    op = linear.Convolution(w, b, (5, 4, 4)[:n], stride, (1, 0, 1)[:n], (1, 2, 1)[:n], groups)
    absolute = dataclasses.replace(op, weight=w.abs(), bias=b.abs())
    return Case(op, ((1, 2, *op.size),), size=absolute.evaluate, name=f"{n}d")


def _shape() -> list[Case]:
    return [
        Case(shape.Reshape((2, 3, 4), (2, 12)), ((2, 3, 4),)),
        Case(shape.Reshape((4, 6), (4, 2, 3)), ((4, 6),), name="heads"),
        Case(shape.Reshape((2, 2, 3), (4, 3)), ((2, 2, 3),), name="join"),
        Case(shape.Reshape((2, 3), (1, 2, 1, 3)), ((2, 3),), name="ones"),
        Case(shape.Reshape((2, 6), (3, 2, 2)), ((2, 6),), name="another two"),
        Case(shape.Permute((2, 0, 1)), ((2, 3, 4),)),
        Case(shape.Permute((0, 2, 1, 3)), ((1, 2, 3, 2),), name="heads"),
        Case(shape.Slice(1, 1, 4, 2, 3, 5), ((2, 5, 3),)),
        Case(shape.Slice(0, 0, 1, 1, 2, 3), ((3, 2),), name="first"),
        Case(shape.Take(1, torch.tensor([2, 0, 2]), 3, 3), ((2, 3, 2),)),
        Case(shape.Concat(0, (1, 3), 2), ((1, 2), (3, 2)), name="class token"),
        Case(shape.Concat(1, (2, 1, 3), 2), ((2, 2), (2, 1), (2, 3)), name="three"),
        Case(shape.Expand((1, 3), (4, 3)), ((1, 3),)),
        Case(shape.Expand((2, 1, 3, 1), (2, 4, 3, 2)), ((2, 1, 3, 1),), name="two"),
    ]


def _elementwise() -> list[Case]:
    e, a = elementwise, activations
    dims = ((3, 4),)
    return [
        Case(e.Relu(), dims, rules=RELUS),
        Case(e.Relu(), ((2, 1, 5),), rules=RELUS, name="more"),
        Case(e.Gelu(), dims, size=lambda x: x + 1),
        Case(e.Gelu(tanh=True), dims, size=lambda x: x + 1, name="tanh"),
        Case(e.Gelu(tanh=True, double=True), dims, size=lambda x: x + 1, name="tanh in double"),
        Case(e.Silu(), dims, size=lambda x: x + 1),
        Case(e.Tanh(), dims),
        Case(e.Sigmoid(), dims),
        Case(e.Erf(), dims),
        Case(e.Exp(), dims, most=80.0),
        Case(e.Square(), dims),
        Case(e.Log(), dims, domain="positive", size=torch.ones_like),
        Case(e.Sqrt(), dims, domain="nonnegative"),
        Case(e.Rsqrt(), dims, domain="positive"),
        Case(e.Reciprocal(), dims, domain="nonzero"),
        Case(a.Elu(), dims, size=lambda x: x + 1),
        Case(a.Softplus(), dims, size=lambda x: x + 1),
        Case(a.Softplus(threshold=0.5), dims, size=lambda x: x + 1, name="with a step"),
        Case(a.Mish(), dims, size=lambda x: x + 1),
        Case(a.HardSwish(), dims, size=lambda x: x + 1),
        Case(a.HardSwish(single=True), dims, size=lambda x: x + 1, name="single"),
        Case(rounding.Round(), dims),
        Case(rounding.Round(-2.0, 3.0), dims, name="in a range"),
        Case(maximum.Maximum(), ((3, 4),)),
        Case(maximum.Maximum(), ((2, 2, 1),), name="one"),
    ]


def _relaxed() -> list[Case]:
    mask = _attention_mask()
    padding = torch.tensor([False, True, False, False, True])
    least = torch.where(padding, -3.4e38, 0.0).double()
    replaced = torch.tensor([False, False, False, False, True])

    def weights(s: Tensor) -> Tensor:
        return torch.ones_like(s)

    def mixed(_s: Tensor, v: Tensor) -> Tensor:
        return v.amax(-2, keepdim=True)

    cases = [
        Case(bilinear.Multiply(), ((3, 4), (3, 4)), rules=PRODUCTS, size=torch.mul),
        Case(bilinear.MatMul(), ((3, 4), (4, 5)), rules=PRODUCTS, size=torch.matmul),
        Case(bilinear.MatMul(), ((2, 3, 2), (2, 2, 3)), rules=PRODUCTS, size=torch.matmul, name="heads"),
        Case(softmax.Softmax(), ((2, 4),), size=weights),
        Case(softmax.Softmax(), ((1,),), size=weights, name="one key"),
        Case(softmax.Softmax(), ((2, 3, 2),), size=weights, name="heads"),
        Case(softmax.Softmax(mask), ((5, 5),), size=weights, name="causal"),
        Case(softmax.Softmax(padding), ((2, 5),), size=weights, name="padding"),
        Case(softmax.Softmax(padding, least), ((2, 5),), size=weights, name="penalty"),
        Case(attention.Attention(), ((3, 4), (4, 2)), rules=ATTENTIONS, size=mixed),
        Case(attention.Attention(), ((2, 3, 4), (2, 4, 3)), rules=ATTENTIONS, size=mixed, name="heads"),
        Case(attention.Attention(), ((3, 1), (1, 2)), rules=ATTENTIONS, size=mixed, name="one key"),
        Case(attention.Attention(mask), ((2, 5, 5), (2, 5, 2)), rules=ATTENTIONS, size=mixed, name="causal"),
        Case(attention.Attention(padding), ((3, 5), (5, 2)), rules=ATTENTIONS, size=mixed, name="padding"),
        Case(
            attention.Attention(padding, least, replaced),
            ((3, 5), (5, 2)),
            rules=ATTENTIONS,
            size=mixed,
            name="penalty",
        ),
    ]
    for eps, count in itertools.product((1e-5, 1e-12, 0.0), (1, 2)):
        dims = ((2, 4),) if count == 1 else ((2, 2, 3),)
        cases.append(Case(normalization.Normalize(eps, count), dims, name=f"{eps:g} over {count}"))
    cases.append(Case(normalization.Normalize(1e-5), ((2, 1),), name="of one"))
    return cases


CASES: list[Case] = [*_linear(), *_shape(), *_elementwise(), *_relaxed()]


def suits(case: Case, kind: str) -> bool:
    """Normalising without eps is not defined on boxes around 0."""
    return not (
        getattr(case.op, "eps", 1.0) == 0.0 and kind in {"straddling", "wide", "mixed", "ordinary", "huge", "tiny"}
    )
