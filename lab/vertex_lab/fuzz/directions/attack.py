"""One attack: residuals at points, the worst direction of each, and steps of the points along it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from vertex_lab.fuzz.directions import ops
from vertex_lab.fuzz.directions.families import Values, known_part
from vertex_lab.fuzz.directions.membership import Sums, crude_direction, sums, worst_direction
from vertex_softmax.ops.zonotope import Zonotope

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Of the sizes of the numbers that are added up: what rounding may take off a bound."""
POINTS = 10
ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How far residuals were out of the errors at most: above 1, the bound is unsound."""

    name: str
    ratio: float
    facts: dict[str, Any]


def errors_of(found: Zonotope, known: set[object], b: int, claimed: Tensor, more: Tensor) -> Sums:
    """What is said of new unknowns, for one of a batch and the numbers (N) that anything is claimed of."""
    blocks = [c[b].double().flatten(2)[:, :, claimed] for u, c in found.spread.blocks.items() if u not in known]
    return sums(blocks, found.loose[b].double().flatten()[claimed] + more)


def finite_numbers(found: Zonotope) -> Tensor:
    """(batch, *shape): the numbers of which anything is said."""
    fine = found.centre.isfinite() & found.loose.isfinite()
    for columns in found.spread.blocks.values():
        fine = fine & columns.isfinite().flatten(1, 2).all(1)
    return fine


def attacked(case: ops.Case, generator: torch.Generator, points: int = POINTS, rounds: int = ROUNDS) -> Outcome:
    """The largest ratio of all points and rounds."""
    found, drawn = case.found, case.family
    known: set[object] = set() if case.plain else set(drawn.old())
    claimed = finite_numbers(found)
    if case.claimed is not None:
        claimed = claimed & case.claimed
    share = TOLERANCE[found.centre.dtype]
    free = drawn.draw(generator, points)
    worst, length = 0.0, 0.6

    def left(values: Values, xs: list[Tensor]) -> Tensor:
        said = found.centre.double() if case.plain else known_part(found, values)
        return case.evaluate(*xs) - said

    for _ in range(rounds):
        free = free.leaves()
        values, xs = drawn.values(free)
        residual = left(values, xs)
        with torch.no_grad():
            size = case.size(*xs).expand_as(residual)
            inside = torch.ones(residual.shape[:2], dtype=torch.bool) if case.inside is None else case.inside(*xs)
            eta = torch.zeros_like(residual)
            for b in range(residual.shape[1]):
                mine, here = inside[:, b], claimed[b].flatten()
                if not bool(mine.any()) or not bool(here.any()):
                    continue
                r = residual[mine, b].flatten(1)[:, here]
                true = case.evaluate(*xs)[mine, b].flatten(1)[:, here]
                said = (true - r).abs()
                more = share * (size[mine, b].flatten(1)[:, here] + true.abs() + said).amax(0)
                more = more + 64 * torch.finfo(found.centre.dtype).tiny  # below, numbers have no digits
                fine = true.isfinite().all(1) & more.isfinite().all()
                if not bool(fine.any()):
                    continue
                errors = errors_of(found, known, b, here, more)
                direction, ratio = worst_direction(r[fine], errors)
                worst = max(worst, float(ratio.max()))
                other = crude_direction(r[fine], errors)
                direction = torch.where((torch.arange(len(direction)) % 2 == 0).unsqueeze(1), direction, other)
                rows = mine.nonzero().flatten()[fine]
                full = torch.zeros(len(rows), here.shape[0], dtype=torch.float64)
                full[:, here] = direction
                eta[rows, b] = full.reshape(len(rows), *residual.shape[2:])
        if not residual.requires_grad:
            break
        aim = (torch.where(eta != 0, eta * residual, 0.0)).flatten(2).sum(2)
        aim = aim / aim.detach().abs().clamp(min=1e-300)
        slopes = torch.autograd.grad(aim.nan_to_num(0.0, 0.0, 0.0).sum(), free.tensors(), allow_unused=True)
        free = free.moved(slopes, length)
        length *= 0.6
    facts = {
        "shape": list(found.centre.shape),
        "dtype": str(found.centre.dtype),
        "claimed": float(claimed.double().mean()),
    }
    return Outcome(case.name, worst, facts)


def attack_op(seed: int, kind: str | None = None) -> Outcome:
    """One random op by seed."""
    generator = torch.Generator().manual_seed(seed)
    names = list(ops.KINDS)
    name = kind or names[int(torch.randint(len(names), (), generator=generator))]
    return attacked(ops.KINDS[name](generator), generator)
