"""Balls in the maximum norm, optionally clipped to the range of valid inputs: boxes around given points."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.sets.arguments import Array, batch_of, clip_of, first_true, radius_of
from vertex_softmax.sets.base import InputSet, range_text
from vertex_softmax.sets.rounding import around


class LinfBall(InputSet):
    """All x' with |x' − x| ≤ eps elementwise, and clip[0] ≤ x' ≤ clip[1] if clip is given; contained in [lower, upper].

    x has shape (batch, *input shape). eps is one number, a tensor (batch) with one number per input, or anything that
    broadcasts to x. x − eps and x + eps are computed in float64; where a result is not exact, the end moves one float
    outwards, so that [lower, upper] contains the real ball and is wider by less than two ulps. An end that is clipped
    is exactly the end of clip. With eps = 0 the set is the point x.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("lower", "upper", "x", "eps", "clip")

    _x: Tensor
    _eps: Tensor
    _clip: tuple[float, float] | None

    def __init__(self, x: Array, eps: float | Array, clip: tuple[float, float] | None = None) -> None:
        point = batch_of("x", x)
        radius = radius_of(eps, point)
        lower, upper = around("x", point, radius)
        if clip is not None:
            low, high = clip = clip_of(clip)
            if (index := first_true((point < low) | (point > high))) is not None:
                raise InvalidValueError(
                    f"x is {point[index].item()!r} at index {index}, outside clip = {clip}; "
                    "scale the inputs, widen clip, or leave it out"
                )
            lower, upper = lower.clamp(min=low), upper.clamp(max=high)
        self._set(x=point, eps=radius, clip=clip, lower=lower, upper=upper)

    @property
    def x(self) -> Tensor:
        """The points that the balls are around, (batch, *input shape); a copy."""
        return self._x.clone()

    @property
    def eps(self) -> Tensor:
        """The radius of every number, (batch, *input shape); a copy."""
        return self._eps.clone()

    @property
    def clip(self) -> tuple[float, float] | None:
        """The range of valid inputs; None if there is none."""
        return self._clip

    @property
    def centre(self) -> Tensor:
        """The points that the balls are around, (batch, *input shape); a copy."""
        return self.x

    def _summary(self) -> str:
        clip = "" if self.clip is None else f", clip {self.clip[0]:g} … {self.clip[1]:g}"
        return f"eps {range_text(self._eps)}{clip}"
