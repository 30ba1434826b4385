"""What an op is: one class with evaluate, interval and backward, found by its name.

Invariants every registered op keeps (tests/ops/test_contract.py tries them on all ops alike):
- interval: for x in the input boxes, evaluate(x) lies in the box returned;
- backward: for x in the input boxes, Σ A·evaluate(x) ≥ Σ_i A_i·x_i + constant.

Shapes. A node has a fixed shape; every tensor here has leading dimensions before it. Values and boxes are
(batch, *shape), coefficients A are (batch, objectives, *shape). Dimensions among an op's arguments count from 0 within
the node's shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError

Shape = tuple[int, ...]

ROUNDING = {torch.float64: 1e-13, torch.float32: 0.0}
"""Boxes are made wider by this share of all that was added up to get them, so that no sum's rounding decides a sign.

In single precision that would cost too much: there it is not done, and nothing is claimed beyond its rounding.
"""


class Interval(NamedTuple):
    """lower ≤ x ≤ upper, elementwise; (batch, *shape)."""

    lower: Tensor
    upper: Tensor

    @property
    def centre(self) -> Tensor:
        """The middle."""
        return (self.lower + self.upper) / 2

    @property
    def radius(self) -> Tensor:
        """Half the width."""
        return (self.upper - self.lower) / 2

    def meet(self, other: Interval) -> Interval:
        """The intersection. Where rounding made the two cross, the points between them, never the empty set."""
        lower = torch.maximum(self.lower, other.lower)
        upper = torch.minimum(self.upper, other.upper)
        crossed = lower > upper
        return Interval(torch.where(crossed, upper, lower), torch.where(crossed, lower, upper))


class Step(NamedTuple):
    """Σ A·out ≥ Σ_i coefficients_i·x_i + constant: what one backward rule returns."""

    coefficients: tuple[Tensor | None, ...]
    """Per input (batch, objectives, *shape); None where the input does not enter."""
    constant: Tensor | None = None
    """(batch, objectives), and the kept dimension behind it if there is one; None is 0."""
    start: Tensor | None = None
    """(batch, objectives, inputs): on the deviation of the walk's start from its centre, beside the op's own inputs."""
    error: Tensor | None = None
    """Under `Rules.parallel` alone, like the constant, ≥ 0: Σ A·out is at most this far from the linear function."""
    noise: Tensor | None = None
    """Under `Rules.parallel` alone, like A: besides, Σ noise·ν for this op's own ν in [−1, 1], the same for every A."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """Which relaxation an op takes where it has several. Every choice is sound."""

    attention: str = "lse"
    """lse: linear in scores and values; vertex: the exact score-box optimum, constant per row; rows: for every row the
    one of the two that promises more; affine: the affine vertex rule."""
    pieces: int = 1
    """of the affine vertex rule: into how many parts the range of lse(s) is cut, each with its own multiplier"""
    relu: str = "adaptive"
    """Lower slope of an undecided ReLU: adaptive (1 if u > −l), zero or one."""
    product: float = 0.5
    """The McCormick mix of products of two variables: 0.5 is the plane at the centre, 0 and 1 the corner planes."""
    coupled: bool = False
    """of the affine vertex rule: leave a share λ of each row, a free parameter, to the exact score-box optimum"""
    free: bool = False
    """Make ready what the free parameters of curved functions need."""
    parallel: bool = False
    """One linear function for both sides, with its error: what generators are made of."""
    sums: bool = False
    """Bound functionals of rows with generators by the exact sums over their columns, where that is not too long."""
    exact: bool = True
    """Bound functionals of affine values exactly even where that is long (a class token's patch of 768 pixels)."""

    def __post_init__(self) -> None:
        choices = (("attention", ("lse", "vertex", "rows", "affine")), ("relu", ("adaptive", "zero", "one")))
        for name, known in choices:
            if getattr(self, name) not in known:
                raise InvalidValueError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(known)}")
        if self.pieces < 1:
            raise InvalidValueError(f"pieces is {self.pieces!r}; at least one is needed")
        if self.parallel and (self.product != 0.5 or self.attention != "affine"):
            raise InvalidValueError("parallel rules are those of attention='affine' and product=0.5; choose these")
        if not 0.0 <= self.product <= 1.0:
            raise InvalidValueError(f"product is {self.product!r}; it is a mix: choose a number from 0 to 1")


class AffineForm(NamedTuple):
    """y = centre + Σ_p matrix[..., p] ξ_p, |ξ_p| ≤ radius_p: exact for an affine function of the input box."""

    centre: Tensor
    """(batch, *shape)"""
    matrix: Tensor
    """(*shape, inputs): the derivative, the same for the whole batch."""
    radius: Tensor
    """(batch, inputs)"""


class Range(NamedTuple):
    """Where a free parameter is looked for; every value is sound, these are the useful ones."""

    low: float = 0.0
    high: float = 1.0
    rate: float = 1.0
    """its step size, relative"""


class Centred(NamedTuple):
    """The rows of a matrix node, each less its own weighted mean: lower ≤ x_j − ω·x ≤ upper, (batch, *shape).

    ω ≥ 0 and Σ ω = 1 along the last dimension. What all entries of a row have in common is not in here.
    """

    weights: Tensor
    box: Interval


class Place(NamedTuple):
    """Where an op stands: what `relax` may look at."""

    boxes: tuple[Interval, ...]
    """Of each input, (batch, *shape)."""
    forms: tuple[Callable[[], AffineForm | None], ...]
    """Of each input, on demand: its affine form in the network's input; None if it is not affine there."""
    rules: Rules = Rules()
    centred: tuple[Centred | None, ...] = ()
    """Of each input, if the walk has bounded it."""
    table: Any = None
    """What the op made of its inputs' generators."""
    inner: Interval | None = None
    """A box of what the op computes on the way (`Op.inner_box`), if the walk knows a narrower one."""


class Op:
    """Base of all ops. A subclass is a frozen dataclass; its Tensor fields are its constants."""

    affine: ClassVar[bool] = False
    """Is it affine in its inputs, all at once? Then `backward` is exact and needs no boxes."""

    rearranges: ClassVar[bool] = False
    """Does every number of its one input appear exactly once in its output, and nothing else?"""

    stage: ClassVar[str] = ""
    """Under which name the time of its backward rule is reported, if it is."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The function itself, on (*leading, *shape) tensors; any leading dimensions, the same for all inputs."""
        raise NotImplementedError

    def interval(self, *boxes: Interval) -> Interval:
        """A box that holds every value."""
        raise NotImplementedError

    def relax(self, place: Place) -> Any:
        """What `backward` needs of the boxes; computed once per set of boxes, not once per objective."""
        return None

    def backward(self, A: Tensor, relaxed: Any, keep: int | None = None) -> Step:
        """A linear lower bound of Σ A·out in the inputs.

        With `keep` = t, A is diagonal along dimension t: objective (s, i) has the coefficients A[:, s] at index i of t
        and none elsewhere. Coefficients are then returned as `carries` says, the constant as (batch, S, size of t).
        """
        raise NotImplementedError

    ranges: ClassVar[dict[str, Range]] = {}
    """Of the free parameters, by name: where they are looked for, and how fast."""

    def parameters(self, relaxed: Any) -> dict[str, Tensor]:
        """The free parameters of a relaxation, (batch, 1, ...), at their defaults; every value is sound."""
        return {}

    def with_parameters(self, relaxed: Any, values: dict[str, Tensor]) -> Any:
        """The relaxation with other values, (batch, objectives, ...), of its free parameters."""
        return relaxed

    def settled(self, A: Tensor, relaxed: Any) -> dict[str, Tensor]:
        """What `backward` chose for objectives A, (batch, S, ...), in the checker's words (certificate/checker)."""
        return {}

    def carries(self, keep: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Per input, the dimension along which coefficients stay diagonal if they are along `keep` of the output.

        `shape` is the output's.
        An entry None: they come dense, (batch, S · size of keep, *shape). All None: the walk makes A dense first.
        """
        return None

    def needs(self) -> tuple[int, ...]:
        """The inputs whose boxes `relax` reads; the walk bounds them first."""
        return ()

    def undecided(self, i: int, box: Interval) -> Tensor | None:
        """Where a tighter box of input i could help, a mask like the box; None is everywhere."""
        return None

    parallels: ClassVar[bool] = False
    """Does `backward` follow `Rules.parallel`? Affine ops do."""

    uses_forms: ClassVar[bool] = False
    """Does `relax` look at the affine forms of its inputs? Then it needs no generators of what is affine."""

    def generated(self) -> tuple[int, ...]:
        """The inputs whose generators are worth having."""
        return ()

    def table(self, generators: tuple[Any, ...]) -> Any:
        """What to keep of the generators of the inputs (None where there are none)."""
        return None

    def reference(self, i: int, box: Interval) -> Tensor | None:
        """Weights ω (batch, *shape) such that the rows of input i less their mean by ω are worth a box of their own."""
        return None

    splits: ClassVar[tuple[int, ...]] = ()
    """The inputs whose numbers are worth splitting: two narrower intervals bend less than one."""

    splits_exactly: ClassVar[bool] = False
    """Is the op linear on both sides of a split?"""

    def split_point(self, i: int, box: Interval, x: Tensor) -> Tensor:
        """Where to split the intervals of input i, like x, when the bound is least at x: there, but not near an end."""
        quarter = (box.upper - box.lower) / 4
        return torch.minimum(torch.maximum(x, box.lower + quarter), box.upper - quarter)

    def bend(self, i: int, A: Tensor, slope: Tensor, xs: tuple[Tensor, ...], points: tuple[Tensor, ...]) -> Tensor:
        """How far Σ A·out − slope·x_i is from constant as one number of input i moves from xs, over the points.

        A (batch, S, *shape of the output), the others (batch, S, *shape of input i), as is what is returned: what a
        linear bound with that slope may lose for knowing the number only by its interval.
        """
        raise NotImplementedError

    def inner_box(self, place: Place) -> Interval | None:
        """The range of what the op computes on the way, (batch, ...), where that is worth splitting; None: nothing."""
        return None

    def inner_bend(self, A: Tensor, relaxed: Any) -> Tensor:
        """What the bound may lose for knowing that by its interval only, (batch, S, ...)."""
        raise NotImplementedError

    def settings(self) -> dict[str, object]:
        """The arguments that are not tensors, for printing."""
        names = [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names if not isinstance(getattr(self, name), Tensor)}

    def to(self, dtype: torch.dtype, device: torch.device) -> Op:
        """The same op with its floating-point constants in another precision or place."""
        changes: dict[str, Tensor] = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changes[field.name] = value.to(device, dtype if value.is_floating_point() else value.dtype)
        return dataclasses.replace(self, **changes) if changes else self  # type: ignore[type-var]


OPS: dict[str, type[Op]] = {}
T = TypeVar("T", bound=type[Op])


def register(cls: T) -> T:
    """Make an op known by its class name; the contract test then tries it."""
    OPS[cls.__name__] = cls
    return cls


def sum_to(term: Tensor, keep: int | None = None) -> Tensor:
    """Σ over a node's dimensions of (batch, objectives, *shape), but for the kept one: a Step's constant."""
    dims = [2 + d for d in range(term.dim() - 2) if d != keep]
    return term.sum(dims) if dims else term


def beside(box: Tensor) -> Tensor:
    """(batch, *shape) → (batch, 1, *shape): a box beside the objectives."""
    return box.unsqueeze(1)


def spread(values: Iterable[Tensor]) -> Tensor:
    """The largest less the least of some tensors of one shape, number by number."""
    whole = torch.stack(list(values))
    return whole.amax(0) - whole.amin(0)
