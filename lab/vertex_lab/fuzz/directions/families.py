"""Random zonotopes that share unknowns, and points of them: values of unknowns on spheres, at corners and inside."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.ops import pairs
from vertex_softmax.ops.unknowns import InputUnknowns, Pairs, Unknowns
from vertex_softmax.ops.zonotope import Zonotope

Values = dict[Unknowns, Tensor]
"""Values of unknowns, (points, batch, balls, dimension)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Free:
    """What a point is made of, before it is projected: numbers of all unknowns, and of own errors."""

    unknowns: dict[Unknowns, Tensor]
    """(points, batch, balls, dimension)"""
    own: tuple[Tensor, ...]
    """(points, batch, *shape) for each zonotope"""
    still: Tensor
    """(points, batch): whether own errors stay 0"""

    def leaves(self) -> Free:
        """The same numbers as variables of a gradient."""
        tensors = [x.detach().requires_grad_(True) for x in self.tensors()]
        return self._with(tensors)

    def _with(self, tensors: Sequence[Tensor]) -> Free:
        count = len(self.unknowns)
        return Free(dict(zip(self.unknowns, tensors[:count], strict=True)), tuple(tensors[count:]), self.still)

    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [*self.unknowns.values(), *self.own]

    def moved(self, slopes: Sequence[Tensor | None], length: float) -> Free:
        """A step along the gradients: numbers by their signs, balls by their directions."""
        found = []
        for i, (x, slope) in enumerate(zip(self.tensors(), slopes, strict=True)):
            if slope is None:
                found.append(x.detach())
                continue
            g = slope.nan_to_num(0.0, 0.0, 0.0)
            if i < len(self.unknowns) and x.shape[-1] > 1:
                step = g / torch.linalg.vector_norm(g, dim=-1, keepdim=True).clamp(min=1e-300)
                found.append((x + length * step).detach())
                continue
            step = g.sign()
            if i >= len(self.unknowns):
                step = step * ~self.still.reshape(*self.still.shape, *[1] * (x.dim() - 2))
            found.append((x + length * step).detach().clamp(-1, 1))
        return self._with(found)


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """Zonotopes of one batch that share unknowns."""

    zonotopes: tuple[Zonotope, ...]
    inputs: InputUnknowns | None

    @property
    def batch(self) -> int:
        """How many there are beside each other."""
        return self.zonotopes[0].centre.shape[0]

    def products(self) -> tuple[Unknowns, ...]:
        """The unknowns that others decide."""
        return () if self.inputs is None else (self.inputs.squares, self.inputs.pairs)

    def free_unknowns(self) -> dict[Unknowns, tuple[int, int]]:
        """How many balls of which dimension."""
        found: dict[Unknowns, tuple[int, int]] = {}
        if self.inputs is not None:
            found[self.inputs] = (self.inputs.count, 1)
        for x in self.zonotopes:
            for unknowns, columns in x.blocks.items():
                if unknowns not in self.products():
                    found[unknowns] = (columns.shape[1], columns.shape[2])
        return found

    def old(self) -> set[Unknowns]:
        """All unknowns that have values at a point."""
        return {*self.free_unknowns(), *self.products()}

    def draw(self, generator: torch.Generator, points: int) -> Free:
        """Of all kinds: inside, at corners, and with few unknowns that are not 0."""

        def numbers(*shape: int) -> Tensor:
            inside = 2 * torch.rand(points, *shape, generator=generator, dtype=torch.float64) - 1
            kind = torch.rand(points, *[1] * len(shape), generator=generator, dtype=torch.float64)
            few = inside * (torch.rand(inside.shape, generator=generator, dtype=torch.float64) < 0.3)
            return torch.where(kind < 0.55, inside.sign(), torch.where(kind < 0.75, few.sign(), inside))

        unknowns = {}
        for each, (balls, k) in self.free_unknowns().items():
            if k == 1:
                unknowns[each] = numbers(self.batch, balls, 1)
            else:
                sphere = torch.randn(points, self.batch, balls, k, generator=generator, dtype=torch.float64)
                sphere = sphere / torch.linalg.vector_norm(sphere, dim=-1, keepdim=True).clamp(min=1e-9)
                unknowns[each] = torch.where(
                    torch.rand(points, 1, 1, 1, generator=generator, dtype=torch.float64) < 0.25,
                    torch.nn.functional.one_hot(sphere.abs().argmax(-1), k) * sphere.sign(), sphere
                )  # fmt: skip
        # own errors go into own errors: where all of them are at their ends, nothing else is seen
        still = torch.rand(points, self.batch, generator=generator) < 0.6
        own = []
        for x in self.zonotopes:
            drawn = numbers(*x.centre.shape)
            own.append(drawn * ~still.reshape(*still.shape, *[1] * (x.centre.dim() - 1)))
        return Free(unknowns, tuple(own), still)

    def values(self, free: Free) -> tuple[Values, list[Tensor]]:
        """Of all unknowns, and of the zonotopes (points, batch, *shape)."""
        values: Values = {}
        for each, numbers in free.unknowns.items():
            length = torch.sqrt(numbers.square().sum(-1, keepdim=True) + 1e-300)
            values[each] = numbers / length.clamp(min=1.0)
        if self.inputs is not None:
            values.update(products_at(self.inputs, values[self.inputs].squeeze(-1)))
        xs = []
        for x, nu in zip(self.zonotopes, free.own, strict=True):
            loose = x.loose.double()
            size = torch.where(loose.isfinite(), loose, 1e3 * (1 + x.centre.double().abs()).nan_to_num(1.0, 1.0, 1.0))
            xs.append(known_part(x, values).nan_to_num(1.0, 1.0, 1.0) + size * nu)
        return values, xs


def products_at(inputs: InputUnknowns, xi: Tensor) -> Values:
    """Squares and products of the input's unknowns ξ (points, batch, n), as blocks have them."""
    first, second = pairs.places(inputs.count, xi.device)
    return {
        inputs.squares: (2 * xi.square() - 1).unsqueeze(-1),
        inputs.pairs: (xi[..., first] * xi[..., second] / pairs.unit(inputs.count)).unsqueeze(-2),
    }


def known_part(zonotope: Zonotope, values: Values) -> Tensor:
    """The centre and the blocks whose unknowns have values, in double precision: (points, batch, *shape)."""
    found = zonotope.centre.double().unsqueeze(0)
    for unknowns, numbers in values.items():
        if unknowns in zonotope.blocks:
            found = found + torch.einsum("pbmk,bmk...->pb...", numbers, zonotope.blocks[unknowns].double())
    return found


@dataclasses.dataclass(frozen=True)
class Regime:
    """How large everything is, relative to the centre."""

    batch: int
    count: int
    """of the input's unknowns; 0 or 1: no products"""
    linear: float
    rest: float
    """products, other unknowns and own errors, beside the linear part"""
    own: float
    slack: float
    scale: float
    spread: float
    """the power of ten by which numbers of one tensor differ"""
    still: float
    """the share of rows, numbers and columns that are 0"""
    dtype: torch.dtype


def regime(generator: torch.Generator) -> Regime:
    """One of many."""

    def one(options: Sequence[float]) -> float:
        return options[int(torch.randint(len(options), (), generator=generator))]

    single = one([0, 0, 0, 0, 0, 1]) == 1
    extreme = one([0, 0, 0, 1]) == 1
    small, large = ([1e-31, 1e-24, 1e-18, 1e-12, 1e-8], [1e3, 1e8, 1e12]) if single else (
        [1e-260, 1e-200, 1e-170, 1e-150, 1e-120, 1e-80, 1e-77, 1e-30, 1e-8], [1e30, 1e75, 1e100, 1e150]
    )  # fmt: skip
    scales = small + small + large
    return Regime(
        batch=int(one([1, 1, 2])),
        count=int(one([0, 1, 2, 3, 4, 6])),
        linear=one([0, 1e-6, 1e-3, 0.03, 0.1, 0.3, 0.3, 1, 1, 3, 10]),
        rest=one([0, 1e-6, 1e-3, 0.03, 0.1, 0.3, 1, 1, 3]),
        own=one([0, 0, 1e-3, 0.1, 0.3, 1]),
        slack=one([0, 0, 1e-14, 1e-13, 1e-2]),
        scale=one(scales) if extreme else 1.0,
        spread=one([0, 0, 0, 1, 3, 8 if single else 40]),
        still=one([0, 0, 0, 0.2, 0.6]),
        dtype=torch.float32 if single else torch.float64,
    )


def family(shapes: Sequence[tuple[int, ...]], drawn: Regime, generator: torch.Generator) -> Family:
    """Random zonotopes of these shapes: columns for the input, their products, two kinds of balls, and own errors."""
    inputs = None
    start: Unknowns
    if drawn.count >= 2:
        inputs = InputUnknowns("input", drawn.count, Unknowns("input"), Pairs("input", drawn.count))
        start = inputs
    else:
        start = Unknowns("input")
    wide, other = Unknowns("wide"), Unknowns("other")
    k = int(torch.randint(2, 5, (), generator=generator))
    more = int(torch.randint(1, 4, (), generator=generator))
    balls = bool(torch.rand((), generator=generator) < 0.7)

    def normal(*shape: int) -> Tensor:
        found = torch.randn(*shape, generator=generator, dtype=torch.float64)
        if drawn.still > 0:
            keep = torch.rand(shape[0], *[1] * (len(shape) - 1), generator=generator, dtype=torch.float64)
            each = torch.rand(shape, generator=generator, dtype=torch.float64)
            found = found * (each >= drawn.still / 2) * (keep >= drawn.still / 4)
            if len(shape) > 3:
                column = torch.rand(*shape[:3], *[1] * (len(shape) - 3), generator=generator, dtype=torch.float64)
                found = found * (column >= drawn.still / 2)
        return found

    def uneven(*shape: int) -> Tensor:
        return 10.0 ** (drawn.spread * (torch.rand(*shape, generator=generator, dtype=torch.float64) - 0.5))

    zonotopes = []
    for shape in shapes:
        size = uneven(drawn.batch, *([1] * (len(shape) - 1)), shape[-1]) * uneven(drawn.batch, *shape[:-1], 1)
        size = size.expand(drawn.batch, *shape) * drawn.scale
        blocks: dict[Unknowns, Tensor] = {}
        every = size[:, None, None]
        count = max(drawn.count, 1)
        few = drawn.linear / math.sqrt(count)
        if few > 0:
            blocks[start] = few * normal(drawn.batch, count, 1, *shape) * every
        rest = drawn.linear * drawn.rest if drawn.linear > 0 else drawn.rest
        rest = rest / 3
        if rest > 0:
            if inputs is not None and few > 0:
                blocks[inputs.squares] = rest / count * normal(drawn.batch, count, 1, *shape) * every
                pairs_ = count * (count - 1) // 2
                blocks[inputs.pairs] = rest / math.sqrt(pairs_) * normal(drawn.batch, 1, pairs_, *shape) * every
            blocks[other] = rest / math.sqrt(more) * normal(drawn.batch, more, 1, *shape) * every
            if balls:
                blocks[wide] = rest * normal(drawn.batch, 2, k, *shape) * every
        own = None
        if drawn.own > 0:
            own = (drawn.own * max(rest, 1e-3 * drawn.linear) * normal(drawn.batch, *shape).abs() * size).to(
                drawn.dtype
            )
        middle = normal(drawn.batch, *shape) * size
        zonotopes.append(
            Zonotope(
                middle.to(drawn.dtype),
                {u: x.to(drawn.dtype) for u, x in blocks.items()},
                own,
                (drawn.slack * middle.abs()).to(drawn.dtype),
            )
        )
    return Family(tuple(zonotopes), inputs)


def scaled(x: Zonotope, factor: Tensor | float) -> Zonotope:
    """Times a number, or one for each number (batch, *shape)."""
    every = factor[:, None, None] if isinstance(factor, Tensor) else factor
    size = factor.abs() if isinstance(factor, Tensor) else abs(factor)
    return Zonotope(
        x.centre * factor,
        {u: columns * every for u, columns in x.blocks.items()},
        None if x.own is None else x.own * size,
        x.slack * size,
    )
