"""The sets of inputs of a part of a certificate, from what bounds see of them, and as a file holds them.

Invariant: every point of the region is in the set that is written, in exact arithmetic, if the region's tensors are
float64: the numbers are taken over as they are.

A new kind of region is one function that is registered here for its class, and the checker's class for the set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.certificate.checker.input_sets import CheckedBalls, CheckedBox, CheckedChoices, CheckedSet
from vertex_softmax.certificate.checker.narrowing import CheckedCut, HalfSpace
from vertex_softmax.foundation.errors import InvalidTypeError
from vertex_softmax.ops.unit_sets import UnitBall
from vertex_softmax.sets.choice_region import ChoiceRegion
from vertex_softmax.sets.cut_region import CutRegion
from vertex_softmax.sets.lp_region import LpRegion
from vertex_softmax.sets.product_region import ProductRegion
from vertex_softmax.sets.region import BoxRegion, Region

Keep = Callable[[str, NDArray[Any]], str]
"""Keeps an array under a name, and returns the name."""


@functools.singledispatch
def checked_set(region: Region) -> CheckedSet:
    """The checker's set for a region of one input."""
    raise InvalidTypeError(f"certificates know boxes, balls and choices; a {type(region).__name__} is another set")


@checked_set.register
def _(region: BoxRegion) -> CheckedSet:
    return CheckedBox(lower=_numbers(region.lower), upper=_numbers(region.upper))


@checked_set.register
def _(region: CutRegion) -> CheckedSet:
    half = HalfSpace(_numbers(region.slope).ravel(), float(region.limit[0]))
    return CheckedCut(lower=_numbers(region.lower), upper=_numbers(region.upper), half=half)


@checked_set.register
def _(region: LpRegion) -> CheckedSet:
    members = np.empty(region.members.numel(), dtype=np.int64)
    for ball, numbers in enumerate(region.members.cpu().numpy()):
        members[numbers] = ball
    return CheckedBalls(
        norm=region.norm.value,
        middle=_numbers(region.centre),
        radius=_numbers(region.radius),
        members=members.reshape(region.centre.shape[1:]),
        lower=_numbers(region.lower),
        upper=_numbers(region.upper),
    )


@checked_set.register
def _(region: ProductRegion) -> CheckedSet:
    """Balls of the parts, and one for each number of a box, which its radius covers: the box cuts it to what it is."""
    if region.ball not in (UnitBall.EUCLIDEAN, UnitBall.CROSS):
        kinds = " and ".join(type(part).__name__ for part in region.parts)
        raise InvalidTypeError(f"certificates know products of boxes and balls; this one is of {kinds}")
    box, middle, radius = region.box, region.middle, region.spread
    covering = torch.maximum(box.upper - middle, middle - box.lower)
    covering = torch.where(covering > 0, torch.nextafter(covering, torch.full_like(covering, torch.inf)), covering)
    of = region.balls[region.order.flatten()].reshape(region.order.shape)
    owner = torch.cat([torch.full_like(part.spread[0], isinstance(part, LpRegion)) for part in region.parts])
    owned = owner[region.order.flatten()].reshape(region.order.shape).bool()
    return CheckedBalls(
        norm=1 if region.ball is UnitBall.CROSS else 2,
        middle=_numbers(middle),
        radius=_numbers(torch.where(owned, radius, covering)),
        members=np.array(of.cpu().numpy(), dtype=np.int64),
        lower=_numbers(box.lower),
        upper=_numbers(box.upper),
    )


@checked_set.register
def _(region: ChoiceRegion) -> CheckedSet:
    box, flat = region.box, np.array(region.fixed[0].flatten().cpu().numpy(), dtype=np.float64)
    numbers = [np.array(each.cpu().numpy(), dtype=np.int64) for each in region.members]
    vectors = [
        np.array(values[allowed].cpu().numpy(), dtype=np.float64)
        for values, allowed in zip(region.values[0], region.allowed[0], strict=True)
    ]
    rest = np.setdiff1d(np.arange(flat.size), np.concatenate([np.zeros(0, dtype=np.int64), *numbers]))
    if len(rest):
        numbers.append(rest)
        vectors.append(flat[rest][None])
    lower, upper = _numbers(box.lower), _numbers(box.upper)
    return CheckedChoices(numbers=tuple(numbers), vectors=tuple(vectors), lower=lower, upper=upper)


def _numbers(x: Tensor) -> NDArray[np.float64]:
    """The one input of a batch of one, (*shape)."""
    return np.array(x[0].detach().cpu().numpy(), dtype=np.float64)


def header_of_set(given: CheckedSet, keep: Keep) -> dict[str, Any]:
    """The entries of a part's header that name its set of inputs: `checker.input_sets.read_set` reads them."""
    entries: dict[str, Any] = {"lower": keep("lower", given.lower), "upper": keep("upper", given.upper)}
    if isinstance(given, CheckedBalls):
        arrays = {"centre": given.middle, "radius": given.radius, "members": given.members}
        names = {name: keep(f"set.{name}", x) for name, x in arrays.items()}
        entries["set"] = {"kind": "balls", "norm": given.norm, **names}
    elif isinstance(given, CheckedChoices):
        blocks = [
            {"numbers": keep(f"set.{k}.numbers", numbers), "vectors": keep(f"set.{k}.vectors", vectors)}
            for k, (numbers, vectors) in enumerate(zip(given.numbers, given.vectors, strict=True))
        ]
        entries["set"] = {"kind": "choices", "blocks": blocks}
    return entries
