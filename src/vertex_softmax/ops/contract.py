"""What an op is, what a relaxation is, and the optional interfaces ("faces") an op may have.

Invariants, which tests/ops/test_contract.py tries on every registered op:
- `Op.interval`: for x in the input boxes, evaluate(x) lies in the box returned;
- `Relaxation.backward`: for x in the boxes the relaxation was made from, Σ A·evaluate(x) ≥ Σ_i A_i·x_i + constant.

Shapes. A node has a fixed shape; every tensor here has leading dimensions before it. Values and boxes are
(batch, *shape), coefficients A are (batch, objectives, *shape). Dimensions among an op's arguments count from 0 within
the node's shape.

Diagonal coefficients. With `diagonal` = t, A is diagonal along dimension t of the node: objective (s, i) has the
coefficients A[:, s] at index i of dimension t, and 0 elsewhere (bounds/coefficients.py).
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from vertex_softmax.ops.choice_rows import ChoiceForm
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import Rules
from vertex_softmax.ops.unit_sets import CUBE, UnitSet

if TYPE_CHECKING:
    from vertex_softmax.ops.generators import Generators
    from vertex_softmax.ops.zonotope import Zonotope

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """The result of a backward rule: Σ A·out ≥ Σ_i coefficients_i·x_i + constant."""

    coefficients: tuple[Tensor | None, ...]
    """for each input (batch, objectives, *shape); None where the bound does not depend on the input"""
    constant: Tensor | None = None
    """(batch, objectives), followed by the diagonal dimension if there is one; None is 0"""
    start: Tensor | None = dataclasses.field(default=None, kw_only=True)
    """(batch, objectives, inputs): coefficients on the deviation of the network's input from the centre of its set"""
    error: Tensor | None = dataclasses.field(default=None, kw_only=True)
    """under `Rules.parallel`, shaped like the constant, ≥ 0: Σ A·out differs from the linear function by at most
    this"""
    noise: Tensor | None = dataclasses.field(default=None, kw_only=True)
    """under `Rules.parallel`, shaped like A: coefficients of this op's own unknowns ν in [−1, 1], which are the same
    for all A; Σ noise·ν is part of the linear function"""


@dataclasses.dataclass(frozen=True, eq=False)
class AffineForm:
    """y = centre + Σ_p matrix[..., p] ξ_p, ξ/radius in a unit set: exact for an affine function of a box or a ball."""

    centre: Tensor
    """(batch, *shape)"""
    matrix: Tensor
    """(*shape, inputs): the derivative, the same for the whole batch"""
    radius: Tensor
    """(batch, inputs)"""
    unit: UnitSet = CUBE
    """where ξ/radius lies"""


class CentredRows(NamedTuple):
    """Bounds of the rows of a matrix node, each minus its own weighted mean: lower ≤ x_j − ω·x ≤ upper.

    ω ≥ 0 and Σ ω = 1 along the last dimension. A term that all entries of a row have in common cancels here.
    """

    weights: Tensor
    """ω, (batch, *shape)"""
    box: Interval
    """(batch, *shape)"""


class Range(NamedTuple):
    """The values between which a free parameter is optimised. Every value is sound; these are the useful ones."""

    low: float = 0.0
    high: float = 1.0
    rate: float = 1.0
    """relative step size"""


@dataclasses.dataclass(frozen=True, eq=False)
class Context:
    """Everything that a relaxation may depend on: what is known of the op's inputs, and the rules."""

    boxes: tuple[Interval, ...]
    """the box of each input, (batch, *shape)"""
    rules: Rules = dataclasses.field(default_factory=Rules)
    forms: tuple[AffineForm | ChoiceForm | None, ...] = ()
    """for each input its exact affine form in the network's input, if the op asks for it (`Op.form_inputs`)"""
    centred: tuple[CentredRows | None, ...] = ()
    """for each input the bounds of its rows minus their means, if they are known"""
    summary: object | None = None
    """what the op made of its inputs' generators (`Summarising.summarise`)"""
    inner: Interval | None = None
    """a narrower range of the quantity that the op computes inside (`InnerRange.inner_range`)"""

    def form(self, i: int) -> AffineForm | ChoiceForm | None:
        """The affine form of input i, if it is known."""
        return self.forms[i] if self.forms else None

    def centred_rows(self, i: int) -> CentredRows | None:
        """The bounds of the rows of input i minus their means, if they are known."""
        return self.centred[i] if self.centred else None


class Relaxation(ABC):
    """Linear lower bounds of Σ A·out for every A, over the boxes that the relaxation was made from."""

    @abstractmethod
    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A linear lower bound of Σ A·out in the inputs.

        With `diagonal` = t, coefficients are returned as `Op.carries_diagonal` says, the constant as
        (batch, S, size of t).
        """

    def parameters(self) -> dict[str, Tensor]:
        """The free parameters with their defaults, (batch, 1, ...), by name; every value is sound."""
        return {}

    ranges: ClassVar[Mapping[str, Range]] = {}
    """the useful range of each free parameter, by name"""
    shared: ClassVar[tuple[str, ...]] = ()
    """the free parameters that are not worth optimising again for every part of a set: parts use the values of the
    whole set"""

    def with_parameters(self, values: Mapping[str, Tensor]) -> Relaxation:
        """The same relaxation with other values, (batch, objectives, ...), of its free parameters."""
        return self

    def chosen_values(self, A: Tensor) -> dict[str, Tensor]:
        """The values that `backward` uses for objectives A, (batch, S, ...), under the names that the checker uses."""
        return {}


class Op(ABC):  # noqa: B024 - what is abstract is in its faces
    """Base of all ops. A subclass is a frozen dataclass; its Tensor fields are its constants."""

    affine: ClassVar[bool] = False
    """whether the op is affine in all its inputs together; then it is its own relaxation and needs no boxes"""
    rearranges: ClassVar[bool] = False
    """whether every number of its one input appears exactly once in its output, and nothing else"""
    reads: ClassVar[tuple[int, ...]] = ()
    """the inputs whose boxes `relax` reads; these are bounded before"""
    form_inputs: ClassVar[tuple[int, ...]] = ()
    """the inputs whose exact affine forms `relax` uses, if they are affine in the network's input"""
    rules_read: ClassVar[tuple[str, ...] | None] = None
    """the fields of `Rules` that `relax` depends on; rules that differ elsewhere share a relaxation. None: all
    fields"""
    has_parallel_rule: ClassVar[bool] = False
    """whether its relaxation follows `Rules.parallel`; affine ops always do"""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The function itself, on (*leading, *shape) tensors; any leading dimensions, the same for all inputs."""
        raise NotImplementedError

    def interval(self, *boxes: Interval) -> Interval:
        """A box that contains every value of the op over the input boxes."""
        raise NotImplementedError

    def relax(self, context: Context) -> Relaxation:
        """The relaxation over the context's boxes; made once for given boxes and rules, not once per objective."""
        raise NotImplementedError

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """For each input, the dimension along which its coefficients are diagonal if the output's are.

        `dimension` and `shape` are the output's. An entry None: the coefficients on that input become dense, (batch, S
        · size of the dimension, *shape). The result None: the op cannot carry them, and A is made dense before it.
        """
        return None

    def undecided(self, i: int, box: Interval) -> Tensor | None:
        """The entries of input i whose boxes would help if they were tighter, a mask shaped like the box; None: all."""
        return None


class AffineOp(Op, Relaxation):
    """An affine op, which is its own relaxation: the transposed map, exact and independent of any box."""

    affine: ClassVar[bool] = True
    has_parallel_rule: ClassVar[bool] = True

    def relax(self, context: Context) -> Relaxation:
        """The op itself."""
        return self

    def linear(self, *xs: Tensor) -> Tensor:
        """The op without its constant, on (*leading, *shape) tensors; subclasses with a constant override this."""
        return self.evaluate(*xs)


class Propagating(Op):
    """Face of a nonlinear op through which zonotopes pass (ops/zonotope.py)."""

    @abstractmethod
    def propagate(self, inputs: tuple[Zonotope, ...], boxes: tuple[Interval, ...], origin: str) -> Zonotope:
        """The zonotope of the output, for inputs that lie in their zonotopes and in their boxes.

        `origin`: the name of the node, for unknowns that the op introduces.
        """

    def learnt(self, inputs: tuple[Zonotope, ...]) -> object | None:
        """The summary that the op's relaxation needs of its inputs' zonotopes (`Context.summary`); None: nothing."""
        return None

    def learnt_rows(self, i: int, inputs: tuple[Zonotope, ...], box: Interval) -> CentredRows | None:
        """The rows of input i minus their weighted means, if the relaxation gains from them; `box`: the box of that
        input.
        """
        return None


class Summarising(Op):
    """Face of an op whose relaxation gains from generators of its inputs (ops/generators.py)."""

    generator_inputs: ClassVar[tuple[int, ...]] = ()
    """the inputs whose generators are worth computing"""

    @abstractmethod
    def summarise(self, generators: Mapping[int, Generators]) -> object:
        """The summary that the relaxation needs of the generators of `generator_inputs`, which need not be kept."""


class Centring(Op):
    """Face of an op whose relaxation gains from bounds of an input's rows minus their weighted means."""

    @abstractmethod
    def centring_weights(self, i: int, box: Interval) -> Tensor | None:
        """The weights ω (batch, *shape) for input i; None if centred rows of that input do not help."""


class Splittable(Op):
    """Face of an op whose bound improves when the interval of one number of an input is split in two."""

    split_inputs: ClassVar[tuple[int, ...]] = ()
    """the inputs whose numbers are worth splitting"""
    splits_exactly: ClassVar[bool] = False
    """whether the op is linear on both sides of a split"""

    def split_point(self, i: int, box: Interval, x: Tensor) -> Tensor:
        """Where to split the intervals of input i if the bound is least at x: at x, but not in the outer quarters."""
        quarter = (box.upper - box.lower) / 4
        return torch.minimum(torch.maximum(x, box.lower + quarter), box.upper - quarter)

    @abstractmethod
    def bend(self, i: int, A: Tensor, slope: Tensor, xs: tuple[Tensor, ...], points: tuple[Tensor, ...]) -> Tensor:
        """The range of Σ A·out − slope·x_i over the points, as one number of input i moves and all others stay at xs.

        It estimates how much a linear bound with that slope loses because it knows the number only by its interval. A
        is (batch, S, *shape of the output), the other arguments and the result (batch, S, *shape of input i).
        """


class InnerRange(Op):
    """Face of an op that computes a quantity inside whose range is worth splitting, such as σ of a norm."""

    @abstractmethod
    def inner_range(self, context: Context) -> Interval:
        """The range of that quantity, (batch, ...)."""


class InnerLoss(Relaxation):
    """Face of a relaxation of an `InnerRange` op."""

    @abstractmethod
    def inner_loss(self, A: Tensor) -> Tensor:
        """How much the bound may lose because the inner quantity is known only by its range, (batch, S, ...)."""
