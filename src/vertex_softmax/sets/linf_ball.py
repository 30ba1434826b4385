"""A ball in the maximum norm, perhaps clipped to what an input can be: a box."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.sets.arguments import Array, batch_of, clip_of, first_true, radius_of
from vertex_softmax.sets.base import InputSet, range_text
from vertex_softmax.sets.rounding import around


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
        point = batch_of("x", x)
        radius = radius_of(eps, point)
        lower, upper = around("x", point, radius)
        if clip is not None:
            low, high = clip = clip_of(clip)
            if (at := first_true((point < low) | (point > high))) is not None:
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
        return f"eps {range_text(self.eps)}{clip}"

    def _pick(self, index: Tensor) -> LinfBall:
        return LinfBall(self.x[index], self.eps[index], self.clip)
