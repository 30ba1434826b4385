"""What the input of a network may be: boxes, and balls in the maximum norm that become boxes.

Invariant: every real point of the set lies in lower ≤ x ≤ upper, in exact arithmetic. Sets hold a batch of inputs,
(batch, *input shape), in float64, and are copies: later changes to the caller's arrays do not reach them.

    ball = LinfBall(images, 0.02, clip=(0, 1))
    len(ball), ball.lower, ball.upper, ball.centre
    ball[:10]                                       # the first ten inputs' sets
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.errors import InvalidTypeError, InvalidValueError

if TYPE_CHECKING:
    from vertex_softmax.methods.loading import Model

Array: TypeAlias = "NDArray[np.floating] | Tensor"
Index: TypeAlias = "int | slice | Sequence[int] | Tensor"
T = TypeVar("T", bound="InputSet")


@dataclass(frozen=True, eq=False, init=False, repr=False)
class InputSet(ABC):
    """lower ≤ x ≤ upper for every point x of the set; (batch, *input shape) each, float64."""

    lower: Tensor
    upper: Tensor

    @property
    def centre(self) -> Tensor:
        """A point of the set: the middle, or what the set was made around; (batch, *input shape)."""
        return (self.lower / 2 + self.upper / 2).clamp(self.lower, self.upper)

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch, *input shape)."""
        return tuple(self.lower.shape)

    def __len__(self) -> int:
        return int(self.lower.shape[0])

    def __getitem__(self: T, index: Index) -> T:
        return self.at(index)

    def __iter__(self: T) -> Iterator[T]:
        return (self.at(i) for i in range(len(self)))

    def at(self: T, index: Index) -> T:
        """The sets of some inputs, as a set with a batch: an int i is i : i + 1; a mask or a list of ints picks."""
        try:
            picked = np.arange(len(self))[index.cpu().numpy() if isinstance(index, Tensor) else index]
        except IndexError:
            raise InvalidValueError(
                f"index {index!r} does not fit: the set holds {len(self)} inputs; "
                "pass an int, a slice, a list of ints or a mask with one entry per input"
            ) from None
        return self._pick(torch.from_numpy(np.atleast_1d(picked).copy()))

    @abstractmethod
    def _pick(self: T, index: Tensor) -> T:
        """The sets of the inputs numbered `index`, (count) of int64."""

    def contains(self, x: Tensor) -> Tensor:
        """Is x in the box? (batch, *input shape) → (batch) of bool, without tolerance; NaN is not."""
        if tuple(x.shape) != self.shape:
            raise InvalidValueError(f"x has shape {tuple(x.shape)}; the set has {self.shape}")
        return ((x >= self.lower) & (x <= self.upper)).flatten(1).all(1)

    def __repr__(self) -> str:
        inputs = f"{len(self)} input{'' if len(self) == 1 else 's'} of {'×'.join(map(str, self.shape[1:]))}"
        place = "" if self.lower.device.type == "cpu" else f", on {self.lower.device}"
        return f"{type(self).__name__}({inputs}, {self._said()}{place})"

    def _said(self) -> str:
        """What is special about the set, in some words."""
        return f"widths {_range(self.upper - self.lower)}"

    def _set(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Box(InputSet):
    """lower ≤ x ≤ upper, elementwise: exactly the box given. Both (batch, *input shape)."""

    def __init__(self, lower: Array, upper: Array) -> None:
        low, high = _batch("lower", lower), _batch("upper", upper)
        if low.shape != high.shape:
            raise InvalidValueError(f"lower has shape {tuple(low.shape)}, upper {tuple(high.shape)}; make them equal")
        if low.device != high.device:
            raise InvalidValueError(f"lower is on {low.device} and upper on {high.device}; move one with .to(device)")
        if (at := _first(low > high)) is not None:
            raise InvalidValueError(
                f"lower > upper at index {at}: {low[at].item()!r} > {high[at].item()!r}; "
                "swap them, or widen the box to contain both"
            )
        self._set(lower=low, upper=high)

    def _pick(self, index: Tensor) -> Box:
        return Box(self.lower[index], self.upper[index])


@dataclass(frozen=True, eq=False, init=False, repr=False)
class LinfBall(InputSet):
    """|x' − x| ≤ eps elementwise, and clip[0] ≤ x' ≤ clip[1] if clip is given: contained in [lower, upper].

    x (batch, *input shape). eps: a number; a tensor (batch) with one per input; or anything that broadcasts to x.
    x − eps and x + eps are computed in float64; where they are not exact the end moves one float outwards, so that
    the real ball is contained: the box is the ball itself or wider by less than two ulps. An end that clip decides is
    exactly clip's. eps = 0 is the point x.
    """

    x: Tensor
    eps: Tensor
    clip: tuple[float, float] | None

    def __init__(self, x: Array, eps: float | Array, clip: tuple[float, float] | None = None) -> None:
        point = _batch("x", x)
        radius = _radius(eps, point)
        lower, upper = _around("x", point, radius)
        if clip is not None:
            low, high = clip = _clip(clip)
            if (at := _first((point < low) | (point > high))) is not None:
                raise InvalidValueError(
                    f"x is {point[at].item()!r} at index {at}, outside clip = {clip}; "
                    "scale the inputs, widen clip, or pass clip=None"
                )
            lower, upper = lower.clamp(min=low), upper.clamp(max=high)
        self._set(x=point, eps=radius, clip=clip, lower=lower, upper=upper)

    @property
    def centre(self) -> Tensor:
        """x."""
        return self.x

    def _said(self) -> str:
        clip = "" if self.clip is None else f", clip {self.clip[0]:g} … {self.clip[1]:g}"
        return f"eps {_range(self.eps)}{clip}"

    def _pick(self, index: Tensor) -> LinfBall:
        return LinfBall(self.x[index], self.eps[index], self.clip)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class TokenBall(InputSet):
    """|x' − embeddings| ≤ eps on the chosen tokens, x' = embeddings on the others: contained in [lower, upper].

    embeddings (batch, tokens, d). eps as for `LinfBall`, rounded outwards in the same way. tokens: which may move, as
    indices (the same for every input) or as a mask (tokens) or (batch, tokens); None is all. Kept as a mask.
    ids (batch, tokens), integers: what a module that takes ids is given. Then the embeddings have to be the rows of its
    table at these ids, before the module scales them or adds anything; `certify` compares them. `TokenBall.of` looks
    them up:

        ball = TokenBall.of(model, ids, 0.01, tokens=[1, 3])
    """

    embeddings: Tensor
    eps: Tensor
    tokens: Tensor
    ids: Tensor | None

    def __init__(
        self,
        embeddings: Array,
        eps: float | Array,
        tokens: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_] | Tensor | None = None,
        ids: NDArray[np.integer] | Tensor | None = None,
    ) -> None:
        point = _batch("embeddings", embeddings)
        if point.dim() != 3:
            raise InvalidValueError(f"embeddings has shape {tuple(point.shape)}; it must be (batch, tokens, d)")
        mask = _mask(tokens, point)
        radius = _radius(eps, point)
        lower, upper = _around("embeddings", point, radius.where(mask[..., None], 0.0))
        self._set(embeddings=point, eps=radius, tokens=mask, ids=_ids(ids, point), lower=lower, upper=upper)

    @classmethod
    def of(
        cls,
        model: Model,
        ids: NDArray[np.integer] | Tensor,
        eps: float | Array,
        tokens: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_] | Tensor | None = None,
    ) -> TokenBall:
        """The set around the rows of the table that a module looks ids (batch, tokens) up in, whatever it is called.

        The rows are those of the table itself; where a module scales them (Gemma, BART, Pegasus), eps is before the
        scale. `model`: a torch.nn.Module in eval mode that takes ids, or what `methods.loading.read` made of one.
        """
        from vertex_softmax.methods.loading import read

        found = _token_ids(ids)
        if found.dim() != 2 or 0 in found.shape:
            raise InvalidValueError(
                f"ids has shape {tuple(found.shape)}; it must be (batch, tokens), neither of them 0: use ids[None] for "
                "one sentence"
            )
        return cls(read(model).rows(found).to(found.device), eps, tokens, found)

    @property
    def centre(self) -> Tensor:
        """The embeddings."""
        return self.embeddings

    def _said(self) -> str:
        moving = _range(self.tokens.sum(-1))
        return f"eps {_range(self.eps[self.tokens])}, {moving} of {self.tokens.shape[1]} tokens move"

    def _pick(self, index: Tensor) -> TokenBall:
        ids = None if self.ids is None else self.ids[index]
        return TokenBall(self.embeddings[index], self.eps[index], self.tokens[index], ids)


def outward(x: Tensor, dtype: torch.dtype, way: float) -> Tensor:
    """Of one end of a set, in float64: the nearest number of another precision that is not inside; x if it has x.

    way: where outward is, −inf of a lower end and inf of an upper one.
    """
    moved = x.to(dtype)
    inside = moved.double() > x if way < 0 else moved.double() < x
    return torch.where(inside, torch.nextafter(moved, torch.full_like(moved, way)), moved)


def _range(x: Tensor) -> str:
    """The least and the greatest entry, or the one that all are."""
    if x.numel() == 0:
        return "–"
    least, most = f"{float(x.min()):g}", f"{float(x.max()):g}"
    return least if least == most else f"{least} … {most}"


def _around(name: str, x: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Floats with lower ≤ x − eps and x + eps ≤ upper in exact arithmetic, equal to them where they are floats."""
    upper, lower = _add_up(x, eps), -_add_up(-x, eps)
    if (at := _first(~(lower.isfinite() & upper.isfinite()))) is not None:
        raise InvalidValueError(
            f"{name} ± eps overflows at index {at}: {x[at].item()!r} ± {eps[at].item()!r}; choose a smaller eps"
        )
    return lower, upper


def _add_up(a: Tensor, b: Tensor) -> Tensor:
    """A float that is at least a + b: the sum if it is exact or was rounded up, else the next float above it.

    Knuth's two-sum: a + b = s + error exactly, with s the rounded sum.
    """
    s = a + b
    part = s - a
    error = (a - (s - part)) + (b - part)
    return torch.where(error > 0, torch.nextafter(s, torch.full_like(s, torch.inf)), s)


def _tensor(name: str, value: object) -> Tensor:
    """The caller's array as a tensor of its own dtype, apart from any graph of gradients; not yet copied."""
    if isinstance(value, Tensor):
        if value.is_meta or value.layout != torch.strided:
            raise InvalidTypeError(f"{name} is a sparse or meta tensor; pass a dense one that holds numbers")
        return value.detach()
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidTypeError(f"{name} is a numpy masked array, whose mask would be lost; pass a plain array")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidTypeError(f"{name} cannot be read as an array: {error}") from error
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise InvalidTypeError(f"{name} has dtype {array.dtype}; pass float32 or float64")
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def _floats(name: str, value: object) -> Tensor:
    """A float64 copy of finite floats, or an error that says what is wrong with them."""
    found = _tensor(name, value)
    if found.dtype not in (torch.float32, torch.float64):
        kind = str(found.dtype).removeprefix("torch.")
        scale = "convert with .double(), or .astype(numpy.float64), and scale bytes to [0, 1] with / 255"
        raise InvalidTypeError(f"{name} has dtype {kind}; only float32 and float64 are supported: {scale}")
    if (at := _first(~found.isfinite())) is not None:
        raise InvalidValueError(f"{name} is {found[at].item()} at index {at}; an input set needs finite numbers")
    return found.to(torch.float64, copy=True)


def _batch(name: str, value: object) -> Tensor:
    found = _floats(name, value)
    if found.dim() < 2:
        raise InvalidValueError(
            f"{name} has shape {tuple(found.shape)}; it must be (batch, *input shape): use {name}[None] for one input"
        )
    if 0 in found.shape[1:]:
        raise InvalidValueError(f"{name} has shape {tuple(found.shape)}: an input without entries")
    return found


def _radius(eps: object, x: Tensor) -> Tensor:
    """eps as a tensor of x's shape, nowhere negative."""
    if isinstance(eps, numbers.Real) and not isinstance(eps, (bool, np.generic)):
        eps = float(eps)
    found = _floats("eps", eps).to(x.device)
    given = tuple(found.shape)
    if found.dim() == 1 and len(found) == len(x):
        found = found.reshape(-1, *[1] * (x.dim() - 1))
    try:
        found = found.broadcast_to(x.shape)
    except RuntimeError:
        raise InvalidValueError(
            f"eps has shape {given}, which is neither one number, one per input ({len(x)}), "
            f"nor broadcast to {tuple(x.shape)}"
        ) from None
    if (at := _first(found < 0)) is not None:
        raise InvalidValueError(f"eps is {found[at].item()!r} at index {at}; a radius is at least 0")
    return found


def _clip(clip: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in clip)
    except (TypeError, ValueError):
        raise InvalidTypeError(f"clip is {clip!r}; pass two numbers, such as (0, 1), or None") from None
    if not low <= high:
        raise InvalidValueError(f"clip is {clip!r}; its lower end comes first and neither is NaN")
    return low, high


def _mask(tokens: object, x: Tensor) -> Tensor:
    """The tokens that may move as a mask (batch, tokens)."""
    batch, count = x.shape[:2]
    if tokens is None:
        return torch.ones(batch, count, dtype=torch.bool, device=x.device)
    found = _tensor("tokens", tokens)
    if found.dtype == torch.bool:
        if tuple(found.shape) not in {(count,), (batch, count)}:
            raise InvalidValueError(
                f"tokens is a mask of shape {tuple(found.shape)}; it must be ({count},) or ({batch}, {count})"
            )
        return found.to(x.device).broadcast_to(batch, count).clone()
    if found.numel() == 0:
        found = found.long()
    if found.is_floating_point() or found.dim() != 1:
        raise InvalidTypeError(
            f"tokens has dtype {str(found.dtype).removeprefix('torch.')} and shape {tuple(found.shape)}; "
            "pass a list of indices, or a mask of bool"
        )
    if (at := _first((found < -count) | (found >= count))) is not None:
        raise InvalidValueError(f"tokens[{at[0]}] is {int(found[at])}, out of range: there are {count} tokens")
    mask = torch.zeros(batch, count, dtype=torch.bool, device=x.device)
    mask[:, found.long().to(x.device)] = True
    return mask


def _ids(ids: object, x: Tensor) -> Tensor | None:
    if ids is None:
        return None
    found = _token_ids(ids)
    if found.shape != x.shape[:2]:
        raise InvalidValueError(f"ids has shape {tuple(found.shape)}; the embeddings need {tuple(x.shape[:2])}")
    return found


def _token_ids(ids: object) -> Tensor:
    """A copy of token ids, in int64."""
    found = _tensor("ids", ids)
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise InvalidTypeError(f"ids has dtype {str(found.dtype).removeprefix('torch.')}; ids are integers")
    found = found.to(torch.long, copy=True)  # a uint64 beyond int64 becomes negative
    if (at := _first(found < 0)) is not None:
        raise InvalidValueError(f"ids is {int(found[at])} at index {at}; ids are rows of a table, counted from 0")
    return found


def _first(bad: Tensor) -> tuple[int, ...] | None:
    """The index of the first true entry, or None."""
    return tuple(int(i) for i in bad.nonzero()[0]) if bool(bad.any()) else None
