"""Zonotopes with products of the input's unknowns, values of their unknowns, and what a rule's errors have to hold.

At given ξ the products ξ_i ξ_j and squares are known numbers, and so is everything that the output says of unknowns
which its inputs have. What is left of the true value must be within what it says of new unknowns and of own errors:
a wrong coefficient of any product shows. Points are drawn at random, at corners, and by gradient steps that make what
is left as large as they can. In float64 there is no tolerance: results have slack for far more than rounding.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vertex_softmax.ops import pairs, triples
from vertex_softmax.ops.reaches import reach_of
from vertex_softmax.ops.unknowns import InputUnknowns, Pairs, Triples, Unknowns
from vertex_softmax.ops.zonotope import Zonotope

Values = dict[Unknowns, Tensor]
"""Values of unknowns, (points, balls, dimension)."""
Evaluate = Callable[..., Tensor]
POINTS = 24
COUNT = 4
"""How many input unknowns there are."""


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def inputs_like(count: int, *, third: bool = False) -> InputUnknowns:
    both = Triples("input", count) if third else None
    return InputUnknowns("input", count, Unknowns("input"), Pairs("input", count), both)


def products_at(inputs: InputUnknowns, xi: Tensor) -> Values:
    """The input's unknowns ξ (points, n) and their products, as blocks have them."""
    first, second = pairs.places(inputs.count, xi.device)
    found: Values = {
        inputs: xi.unsqueeze(2),
        inputs.squares: (2 * xi.square() - 1).unsqueeze(2),
        inputs.pairs: (xi[:, first] * xi[:, second] / pairs.unit(inputs.count)).unsqueeze(1),
    }
    if inputs.triples is not None:
        three = [xi[:, list(each)].prod(1) for each in itertools.combinations(range(inputs.count), 3)]
        mixed = (2 * xi.square() - 1).unsqueeze(2) * xi.unsqueeze(1)
        found[inputs.triples] = torch.cat([torch.stack(three, 1), mixed.flatten(1)], 1).unsqueeze(2)
    return found


def known_part(zonotope: Zonotope, values: Values) -> Tensor:
    """The centre and the blocks whose unknowns have values, (points, *shape); a batch of 1 or one for each point."""
    found = zonotope.centre
    for unknowns, numbers in values.items():
        if unknowns in zonotope.blocks:
            columns = zonotope.blocks[unknowns].expand(len(numbers), *zonotope.blocks[unknowns].shape[1:])
            found = found + torch.einsum("pmk,pmk...->p...", numbers, columns)
    return found


def errors_alone(zonotope: Zonotope, known: Sequence[Unknowns]) -> Zonotope:
    """What is not known at given values of some unknowns."""
    blocks = {unknowns: columns for unknowns, columns in zonotope.blocks.items() if unknowns not in known}
    return Zonotope(torch.zeros_like(zonotope.centre), blocks, zonotope.own, zonotope.slack)


@dataclasses.dataclass(frozen=True)
class Case:
    """Zonotopes of a batch of 1 that share unknowns."""

    zonotopes: tuple[Zonotope, ...]
    inputs: InputUnknowns
    generator: torch.Generator

    def old(self) -> list[Unknowns]:
        """Unknowns that have values when the inputs have."""
        known = self._products()
        return list(dict.fromkeys([*known, *(u for x in self.zonotopes for u in x.blocks)]))

    def drawn(self, corner: bool) -> list[Tensor]:
        """Free numbers in [−1, 1]: ξ, then one tensor for each other block, then one for each zonotope's own errors."""
        shapes = [(self.inputs.count,), *(columns.shape[1:3] for columns in self._others().values())]
        shapes += [x.centre.shape[1:] for x in self.zonotopes]
        found = [2 * torch.rand(POINTS, *shape, generator=self.generator, dtype=torch.float64) - 1 for shape in shapes]
        return [x.sign() for x in found] if corner else found

    def values(self, free: list[Tensor]) -> tuple[Values, list[Tensor]]:
        """Of all unknowns and of the zonotopes."""
        others = self._others()
        values = products_at(self.inputs, free[0])
        for unknowns, numbers in zip(others, free[1:], strict=False):
            length = torch.linalg.vector_norm(numbers, dim=2, keepdim=True)
            values[unknowns] = numbers / length.clamp(min=1.0)
        own = free[1 + len(others) :]
        return values, [known_part(x, values) + x.loose * nu for x, nu in zip(self.zonotopes, own, strict=True)]

    def _others(self) -> dict[Unknowns, Tensor]:
        products = self._products()
        return {u: columns for x in self.zonotopes for u, columns in x.blocks.items() if u not in products}

    def _products(self) -> list[Unknowns]:
        known: list[Unknowns] = [self.inputs, self.inputs.squares, self.inputs.pairs]
        return known if self.inputs.triples is None else [*known, self.inputs.triples]


def case(
    shapes: Sequence[tuple[int, ...]], size: float, seed: int, *, rest: float = 1.0, centre: float = 1.0,
    third: bool = False,
) -> Case:  # fmt: skip
    """Deviations of about `size` linear in the input, and `rest`·size² of products, other unknowns and own errors.

    `third`: the other unknowns and own errors are of size³, and there are products of three.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs, other = inputs_like(COUNT, third=third), Unknowns("other")
    zonotopes = []
    for shape in shapes:
        more = rest * size * size / 4
        blocks: dict[Unknowns, Tensor] = {inputs: size / 2 * normal(generator, 1, COUNT, 1, *shape)}
        own = None
        if rest > 0:
            blocks[inputs.squares] = more * normal(generator, 1, COUNT, 1, *shape)
            blocks[inputs.pairs] = more * normal(generator, 1, 1, COUNT * (COUNT - 1) // 2, *shape)
            if inputs.triples is not None:
                more = more * size
                blocks[inputs.triples] = more * normal(generator, 1, triples.size(COUNT), 1, *shape)
            blocks[other] = more * normal(generator, 1, 2, 3, *shape)
            own = more / 4 * normal(generator, 1, *shape).abs()
        middle = centre * normal(generator, 1, *shape)
        zonotopes.append(Zonotope(middle, blocks, own, 1e-14 * middle.abs()))
    return Case(tuple(zonotopes), inputs, generator)


def scaled(drawn: Case, *factors: float) -> Case:
    """Every zonotope times a number."""
    found = tuple(
        Zonotope(
            x.centre * s, {u: c * s for u, c in x.blocks.items()}, None if x.own is None else x.own * s, x.slack * s
        )
        for x, s in zip(drawn.zonotopes, factors, strict=True)
    )
    return dataclasses.replace(drawn, zonotopes=found)


def directions(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Functionals of all numbers together, of single rows, and of single numbers, (directions, *shape)."""
    whole = normal(generator, 12, *shape)
    whole[:4] = whole[:4].sign()
    axes = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    rows = normal(generator, 12, *shape)
    live = torch.zeros(12, math.prod(shape[:-1]), dtype=torch.float64)
    live[torch.arange(12), torch.arange(12) % live.shape[1]] = 1
    return torch.cat([whole, axes, rows * live.reshape(12, *shape[:-1], 1)])


def most_of(errors: Zonotope, eta: Tensor) -> Tensor:
    """η·e at most for functionals of all numbers, (directions)."""
    found = (eta.abs() * errors.loose).flatten(1).sum(1)
    for unknowns, columns in errors.spread.blocks.items():
        along = torch.einsum("mk...,e...->emk", columns[0], eta)
        found = found + reach_of(unknowns, along.movedim(0, -1).unsqueeze(0))[0]
    return found


def overshoot(found: Zonotope, drawn: Case, evaluate: Evaluate, rows: Tensor | None = None, steps: int = 6) -> float:
    """The most by which what is left exceeds the errors, as a share of the errors and of the value's last bits.

    `rows`: whether anything is claimed of a row, (1, rows...); the others are not looked at.
    """
    found, shape = found.spread, tuple(found.centre.shape[1:])
    eta = directions(drawn.generator, shape)
    if rows is not None:  # numbers of rows that are not used may be anything
        keep = rows.expand(1, *shape[:-1]).unsqueeze(-1)
        eta = eta * keep
        found = Zonotope(
            torch.where(keep, found.centre, 0.0),
            {u: torch.where(keep[:, None, None], x, 0.0) for u, x in found.blocks.items()},
            None if found.own is None else torch.where(keep, found.own, 0.0),
            torch.where(keep, found.slack, 0.0),
        )
    most = most_of(errors_alone(found, drawn.old()), eta)
    assert not bool(most.isnan().any())
    assert not bool(found.centre.isnan().any())

    def left(free: list[Tensor]) -> Tensor:
        values, xs = drawn.values(free)
        rest = evaluate(*xs) - known_part(found, values)
        return torch.einsum("p...,e...->pe", rest, eta)

    worst = -math.inf
    tiny = torch.finfo(torch.float64).tiny
    for corner in (False, True):
        free = drawn.drawn(corner)
        worst = max(worst, float(((left(free).abs() - most) / (most + tiny)).max()))
    free = drawn.drawn(False)
    mine = torch.randint(len(eta), (POINTS,), generator=drawn.generator)
    sign = normal(drawn.generator, POINTS).sign()
    for step in range(steps):
        free = [x.detach().requires_grad_(True) for x in free]
        every = left(free)
        worst = max(worst, float(((every.detach().abs() - most) / (most + tiny)).max()))
        aim = (every[torch.arange(POINTS), mine] * sign / (most[mine] + tiny)).sum()
        slopes = torch.autograd.grad(aim, free, allow_unused=True)
        length = 0.7 if step < steps // 2 else 0.2
        free = [
            x if g is None else (x + length * g.nan_to_num().sign()).clamp(-1, 1)
            for x, g in zip(free, slopes, strict=True)
        ]
    return worst


def has_products(found: Zonotope, inputs: InputUnknowns) -> bool:
    """Whether products of inputs are kept."""
    return inputs.pairs in found.blocks and bool((found.blocks[inputs.pairs] != 0).any())


def beside(cases: Sequence[Case]) -> Case:
    """Cases of equal shapes as one batch, with the unknowns of the first."""
    first = cases[0]
    found = []
    for i, x in enumerate(first.zonotopes):
        mine = [each.zonotopes[i] for each in cases]
        blocks = {u: torch.cat([list(y.blocks.values())[j] for y in mine]) for j, u in enumerate(x.blocks)}
        own = None if x.own is None else torch.cat([y.loose - y.slack for y in mine])
        found.append(Zonotope(torch.cat([y.centre for y in mine]), blocks, own, torch.cat([y.slack for y in mine])))
    return dataclasses.replace(first, zonotopes=tuple(found))
