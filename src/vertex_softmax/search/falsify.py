"""Search for a counterexample to a property: gradient descents, alternating with moves that need no gradient.

Invariant: every point visited lies in its case's box, and a counterexample is returned only if `confirm` returned it.
The violations returned with it are the graph's own: upper bounds of the least violations, never a proof.

    replay = Replay("model.onnx")
    found = falsify(graph, prop, lambda x: replay.confirms(prop, x), seconds=10)
    found.counterexample          # or None; then found.violations says how close the search came

visits.py defines targets, slots, violations and rows.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from vertex_softmax.bounds.memory import Memory
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.graph.ir import Graph
from vertex_softmax.search.visits import Confirm, Found, Visits, boxes
from vertex_softmax.specs.property import Property

__all__ = ["Found", "PausedSearch", "falsify", "paused_search"]

Steps: TypeAlias = Iterator[None]
"""A search that yields after every batch, so that the caller can look at the clock."""
FINE = 1e-6
"""The smallest step, as a share of the box's width."""
OVER = 1.05
"""By which factor a step to the zero of the linearised violation is lengthened."""
RESTARTS, STEPS = 8, 40
"""The descents of every target, and the steps of each, unless other numbers are given."""
LATE_STEPS = 20
"""The steps of descents from given points that come beside the schedule (`PausedSearch.descend`)."""
WAYS = (0, 4, 7)
"""How each of those points moves, by the numbers of `_descend`: by signs, to the linearised zero, and by Adam."""
FEW = 6
"""Boxes with at most this many open inputs (of positive width) are also searched by grids and Sobol points."""


# More than six parameters: a public signature, of which all but the first four are optional keywords.
@full_precision()
def falsify(
    graph: Graph,
    prop: Property,
    confirm: Confirm,
    *,
    seconds: float | None,
    restarts: int = RESTARTS,
    steps: int = STEPS,
    seed: int = 0,
    stop: Callable[[], bool] | None = None,
    starts: Mapping[tuple[int, int | None], Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> Found:
    """Search until `confirm` returns a counterexample for a point (inputs,); the result has the lowest violations.

    The centres come first, then descents from `starts`: points (n, inputs) by (case, conjunction), or by (case, None)
    for any conjunction. Then every target, the lowest violation first, gets `restarts` descents of `steps` steps,
    alternating with sampling and with random and greedy moves to corners, which plateaus and wrong gradients do not
    stop. seconds: the search goes on until then, to within one batch; None runs everything once, and the same seed
    gives the same result. `stop` is called after every batch and ends the search if it returns True. dtype: the
    precision of the search; by default float32, or float64 if an interval of a box contains no float32.
    """
    begin = time.perf_counter()
    for name, value, least in (("steps", steps, 0), ("restarts", restarts, 1)):
        if value < least:
            raise InvalidValueError(f"{name} is {value}; it must be at least {least}")
    prop.require(graph.input.shape, graph.output.shape)
    search = _CounterexampleSearch(graph, prop, confirm, boxes(prop, dtype), seed, adapt=seconds is not None)
    given = search.placed(starts or {})
    schedule = search.schedule(given, restarts, steps, 1 if seconds is None else None)
    until = math.inf if seconds is None else begin + seconds
    return PausedSearch(search, schedule).resume(until, stop)


def paused_search(
    graph: Graph, prop: Property, confirm: Confirm, *, seed: int = 0, memory: Memory | None = None
) -> PausedSearch:
    """The search of `falsify`, in pieces: `resume` continues where the last piece ended, and evaluates nothing twice.

    memory: fewer points go through the network at once for its sake; NotEnoughMemoryError if one alone may not fit.

    search = paused_search(graph, prop, confirm)
    search.resume(time.perf_counter() + 0.1).counterexample      # or None; later again, with more time
    """
    prop.require(graph.input.shape, graph.output.shape)
    search = _CounterexampleSearch(graph, prop, confirm, boxes(prop, None), seed, adapt=True)
    search.limit(memory or Memory())
    return PausedSearch(search, search.schedule(None, RESTARTS, STEPS, None))


class PausedSearch:
    """A search that is interrupted between two batches, and may go on later."""

    def __init__(self, search: _CounterexampleSearch, schedule: Steps) -> None:
        self._search, self._schedule = search, schedule

    @full_precision()
    def resume(self, until: float, stop: Callable[[], bool] | None = None) -> Found:
        """Go on for at least one batch, up to `until` on the clock of time.perf_counter; the result of all so far."""
        if self._search.counterexample is None:
            for _ in self._schedule:
                late = time.perf_counter() >= until
                if self._search.counterexample is not None or late or (stop is not None and stop()):
                    break
        return self._search.result()

    @full_precision()
    def descend(self, starts: Mapping[tuple[int, int | None], Tensor], until: float) -> Found:
        """Short descents from points (n, inputs) by (case, conjunction), beside the schedule; the result of all so far.

        Conjunction None: towards whichever of the case is nearest. Points beyond a box are moved into it. It takes at
        least one batch, and no more from `until` on, on the clock of time.perf_counter.
        """
        search = self._search
        given = search.placed(starts)
        if given is not None and search.counterexample is None:
            for _ in search.from_given(*given, LATE_STEPS, WAYS):
                if search.counterexample is not None or time.perf_counter() >= until:
                    break
        return search.result()


class _CounterexampleSearch(Visits):
    """The points that the search visits, and their order."""

    def schedule(
        self, given: tuple[Tensor, Tensor, Tensor] | None, restarts: int, steps: int, rounds: int | None
    ) -> Steps:
        """All stages of the search, in order; with rounds None it does not end, unless every box is a point."""
        yield from self._centres()
        if given is not None:
            yield from self.from_given(*given, steps)
        if len(self._targets()[0]):
            descents, moves = self._descents(restarts, steps, rounds), self._moves(restarts, steps, rounds)
            yield from _in_turns(descents, moves, 2)
        while self.pending():
            self.ask()
            yield

    # The rows of a batch, and its size

    def _targets(self) -> tuple[Tensor, Tensor]:
        """The cases and slots, (targets,) each, of the targets with an open box, the lowest violation first."""
        case, slot = (self.goals.real & (self.width > 0).any(1)[:, None]).nonzero(as_tuple=True)
        order = self.best[case, slot].argsort(stable=True)
        return case[order], slot[order]

    def _cases(self) -> tuple[Tensor, Tensor]:
        """The cases with an open box and a conjunction, the lowest violation first, and slots `any`; (cases,) each."""
        case = (self.goals.real.any(1) & (self.width > 0).any(1)).nonzero()[:, 0]
        case = case[self.best[case].amin(1).argsort(stable=True)]
        return case, torch.full_like(case, self.any)

    def _parts(self, rows: int, points: int, *, gradient: bool) -> Iterator[tuple[slice, slice]]:
        """Slices of rows and of points that cover all of them, batch by batch."""
        row = point = 0
        while row < rows:
            size = self.pace[gradient].size
            take = max(1, size // points) if point == 0 else 1
            yield slice(row, row + take), slice(point, point + size)
            point += size
            if point >= points:
                row, point = row + take, 0

    def _wide(self, restarts: int, rows: int, *, gradient: bool) -> int:
        """The number of restarts: more than given if a batch has room, since these cost almost nothing."""
        return max(restarts, min(32, self.pace[gradient].size // max(rows, 1)))

    # Searches with gradients

    def _centres(self) -> Steps:
        """Visit the centre of every case, and measure how large rounding errors are there."""
        every = self.goals.real.any(1).nonzero()[:, 0]
        for rows, _ in self._parts(len(every), 1, gradient=False):
            case = every[rows]
            seen = self.visit(case, self.centre[case][:, None], torch.full((len(case), 1), self.any))
            self.measure_rounding(case, seen.y)
            yield

    def placed(self, starts: Mapping[tuple[int, int | None], Tensor]) -> tuple[Tensor, Tensor, Tensor] | None:
        """The given points by case: cases (rows,), points (rows, n, inputs) and slots (rows, n).

        A case with fewer than n points repeats them. None if there are no points. Of no conjunction: the slot is `any`.
        """
        found: dict[int, list[tuple[int, Tensor]]] = {}
        for (case, number), points in starts.items():
            slot = self.any if number is None else number
            real = self.goals.real[case] if 0 <= case < len(self.best) else self.goals.real[:0].any(0)
            if not bool(real.any()) or not (number is None or (0 <= slot < self.any and bool(real[slot]))):
                raise InvalidValueError(f"starts has a target {(case, number)} that the property does not have")
            if points.numel() % self.lower.shape[1]:
                raise InvalidValueError(
                    f"starts[{case}, {number}] has shape {tuple(points.shape)}; it must be (n, {self.lower.shape[1]})"
                )
            flat = points.detach().cpu().to(self.lower.dtype).reshape(-1, self.lower.shape[1])
            found.setdefault(case, []).extend((slot, x) for x in flat)
        found = {case: points for case, points in found.items() if points}
        if not found:
            return None
        most = max(len(points) for points in found.values())
        full = [list(itertools.islice(itertools.cycle(points), most)) for points in found.values()]
        x = torch.stack([torch.stack([x for _, x in points]) for points in full])
        return torch.tensor(list(found)), x, torch.tensor([[slot for slot, _ in points] for points in full])

    def from_given(self, case: Tensor, x: Tensor, own: Tensor, steps: int, ways: tuple[int, ...] = (0,)) -> Steps:
        """Descents from given points (rows, n, inputs) towards their own slots (rows, n), from each in all the ways."""
        number = torch.tensor(ways).repeat_interleave(x.shape[1])
        x, own = x.repeat(1, len(ways), 1), own.repeat(1, len(ways))
        for rows, points in self._parts(len(case), x.shape[1], gradient=True):
            yield from self._descend(case[rows], x[rows, points], own[rows, points], number[points], steps)

    def _descents(self, restarts: int, steps: int, rounds: int | None) -> Steps:
        """A few short descents per case towards any of its conjunctions, then descents for every target.

        Descents are longer in later rounds.
        """
        yield from self._restart(*self._cases(), min(restarts, 4), min(steps, 10))
        for turn in itertools.count() if rounds is None else range(rounds):
            case, slot = self._targets()
            width = self._wide(restarts, len(case), gradient=True) if turn else restarts
            yield from self._restart(case, slot, width, steps * 2 ** min(turn, 2))

    def _restart(self, case: Tensor, slot: Tensor, restarts: int, steps: int) -> Steps:
        """`restarts` descents of `steps` steps for each row: its case and slot, (rows,) each."""
        for rows, points in self._parts(len(case), restarts, gradient=True):
            number = torch.arange(restarts)[points]
            own = slot[rows][:, None].expand(-1, len(number))
            yield from self._descend(case[rows], self._starts(case[rows], own, number), own, number, steps)

    def _starts(self, case: Tensor, own: Tensor, number: Tensor) -> Tensor:
        """Starting points (rows, points, inputs), by their number in the row.

        0: the point with the lowest violation so far; 1: the centre; then random points and corners alternately.
        """
        slot = torch.where(own == self.any, self.best[case].argmin(1)[:, None], own)
        lowest = self.where[case[:, None], slot]
        rest = torch.where((number == 1)[:, None], self.centre[case][:, None], self._random(case, number))
        return torch.where((number == 0)[:, None], lowest, rest)

    def _random(self, case: Tensor, number: Tensor) -> Tensor:
        """Random points (rows, points, inputs): uniform in the box for even numbers, corners for odd ones."""
        u = self.rand(len(case), len(number), self.lower.shape[1])
        u = torch.where((number % 2 == 1)[:, None], u.round(), u)
        return self.lower[case][:, None] + u * self.width[case][:, None]

    def _descend(self, case: Tensor, x: Tensor, own: Tensor, number: Tensor, steps: int) -> Steps:
        """Gradient descent from x (rows, points, inputs); `number` (points,) determines how each point moves.

        Even numbers step by the signs of a momentum, odd ones by Adam. Step sizes decrease along a cosine from half the
        box, so that the centre's first step goes to the corner against its gradient. Numbers 6 and 7 of every eight
        decrease geometrically, down to FINE; number 4 of every eight steps to the zero of its linearised violation. A
        point without a gradient moves to a random point.
        """
        width, adam = self.width[case][:, None], number % 2 == 1
        mean, square = torch.zeros_like(x), torch.zeros_like(x[:, adam])
        for i in range(steps + 1):
            seen = self.visit(case, x, own, blend=number % 4 >= 2)
            yield
            slope = seen.gradient * width
            norm = slope.abs().mean(-1, keepdim=True)
            slope /= norm.clamp(min=torch.finfo(x.dtype).tiny)
            mean.lerp_(slope, 0.2)
            square.lerp_(slope[:, adam] ** 2, 0.01)
            way = mean.sign()
            scale = (square / (1 - 0.99 ** (i + 1))).sqrt_() + 1e-6
            way[:, adam] = (mean[:, adam] / (1 - 0.8 ** (i + 1)) / scale).clamp_(-1, 1)
            done = i / max(steps, 1)
            reach = torch.where(number % 8 < 6, 0.25 * (1 + math.cos(math.pi * done)), 0.25 * FINE**done).to(x.dtype)
            change = reach[:, None] * way
            linear = slope * (OVER * seen.value[..., None] / (norm * (slope**2).sum(-1, keepdim=True)))
            exact = (number % 8 == 4)[:, None] & (seen.value > 0)[..., None] & (norm > 0)
            change = torch.where(exact, linear.clamp(-0.5, 0.5), change)
            after = self.inside(case, seen.x - width * change)
            if bool((stuck := (norm == 0) & (width > 0)).any()):
                after = torch.where(stuck, self._random(case, number), after)
            if torch.equal(after, seen.x):
                return
            x = after

    # Searches without gradients

    def _moves(self, restarts: int, steps: int, rounds: int | None) -> Steps:
        """Sampling, random changes and greedy moves to corners, in rounds."""
        for turn in itertools.count() if rounds is None else range(rounds):
            yield from self._sample(restarts, turn)
            case, slot = self._targets()
            chains = self._wide(restarts, len(case), gradient=False)
            yield from self._wander(case, slot, chains, steps * 2 ** min(turn, 2))
            yield from self._greedy(*self._targets(), steps // 4)

    def _sample(self, restarts: int, turn: int) -> Steps:
        """Visit random points and corners of every box; if few inputs are open, a grid and Sobol points instead."""
        case, slot = self._cases()
        if not len(case):
            return
        open_ = self.width[case] > 0
        most = int(open_.sum(1).max())
        if most > FEW:
            for rows, points in self._parts(len(case), 4 * restarts, gradient=False):
                number = torch.arange(4 * restarts)[points]
                own = slot[rows][:, None].expand(-1, len(number))
                self.visit(case[rows], self._random(case[rows], number), own)
                yield
            return
        budget = max(64, 2**18 // len(case)) // 4
        u = torch.quasirandom.SobolEngine(most, scramble=True, seed=int(self.rand(1).item() * 2**31))
        draws = u.draw(min(256 * 4 ** min(turn, 5), budget)).to(self.lower.dtype)
        if turn == 0:
            levels = torch.linspace(0, 1, max(2, int(min(729, budget) ** (1 / most) + 1e-9)), dtype=draws.dtype)
            draws = torch.cat([torch.cartesian_prod(*[levels] * most).reshape(-1, most), draws])
        axis = (open_.cumsum(1) - 1).clamp(min=0)  # the j-th open input of a box takes the j-th axis of the draws
        for rows, points in self._parts(len(case), len(draws), gradient=False):
            along = draws[points][:, axis[rows]].transpose(0, 1)
            x = self.lower[case[rows]][:, None] + along * self.width[case[rows]][:, None]
            self.visit(case[rows], x, slot[rows][:, None].expand(x.shape[:2]))
            yield

    def _wander(self, case: Tensor, slot: Tensor, chains: int, steps: int) -> Steps:
        """`chains` random walks per row, of which a step is accepted unless it is worse; ever fewer inputs change."""
        for rows, points in self._parts(len(case), chains, gradient=False):
            number, cases = torch.arange(chains)[points], case[rows]
            own = slot[rows][:, None].expand(-1, len(number))
            seen = self.visit(cases, self._starts(cases, own, number), own)
            yield
            x, value = seen.x, seen.value
            for i in range(steps):
                seen = self.visit(cases, self._changed(cases, x, number, 0.5 * x.shape[2] ** -(i / steps)), own)
                yield
                accepted = seen.value <= value
                x, value = torch.where(accepted[..., None], seen.x, x), torch.where(accepted, seen.value, value)

    def _changed(self, case: Tensor, x: Tensor, number: Tensor, share: float) -> Tensor:
        """x (rows, points, inputs) with a share of the inputs changed; `number` mod 3 determines how.

        0: a window of the last two dimensions goes to one end of the box, which is chosen for each leading index; 1:
        some inputs go to either end; 2: some inputs move by normally distributed steps of random size.
        """
        rows, points, n = x.shape
        dims = self.graph.input.shape
        h, w = dims[-2:] if len(dims) > 1 and min(dims[-2:]) > 1 else (1, n)
        sides = (
            (math.ceil(h * math.sqrt(share)), math.ceil(w * math.sqrt(share))) if h > 1 else (1, math.ceil(w * share))
        )
        window = torch.ones(rows, points, 1, 1, 1, dtype=torch.bool)
        for size, side, view in ((h, sides[0], (1, -1, 1)), (w, sides[1], (1, 1, -1))):
            first = (self.rand(rows, points, 1, 1, 1) * (size - side + 1)).long()
            position = torch.arange(size).reshape(view)
            window = window & (position >= first) & (position < first + side)
        ends = self.rand(rows, points, n // (h * w), 1, 1).expand(-1, -1, -1, h, w).reshape(x.shape)
        open_ = (self.width[case] > 0)[:, None]
        draws = self.rand(*x.shape)
        some = (draws < share).scatter(2, (draws - open_.to(x.dtype)).argmin(2, keepdim=True), value=True)
        kind = (number % 3)[:, None]
        block = kind == 0
        chosen = torch.where(block, window.expand(-1, -1, n // (h * w), -1, -1).reshape(x.shape), some)
        up = torch.where(block, ends, self.rand(*x.shape)) < 0.5
        corner = torch.where(up, self.upper[case][:, None], self.lower[case][:, None])
        reach = FINE ** self.rand(rows, points, 1) * self.width[case][:, None]
        normal = torch.randn(x.shape, generator=self.generator, dtype=x.dtype)
        return torch.where(chosen, torch.where(kind == 2, x + reach * normal, corner), x)

    def _greedy(self, case: Tensor, slot: Tensor, steps: int) -> Steps:
        """From every target's lowest point, try single inputs at either end; then all changes that helped, together."""
        row, most = 0, int((self.width > 0).sum(1).max())
        while row < len(case):
            size = self.pace[False].size
            count = max(1, min(most, 64, size // 2))
            rows = slice(row, row + max(1, size // (2 * count)))
            row = rows.stop
            yield from self._flips(case[rows], slot[rows], count, steps, all_of=count == most)

    def _flips(self, case: Tensor, slot: Tensor, count: int, steps: int, *, all_of: bool) -> Steps:
        """Steps of `_greedy` for some targets: `count` inputs are tried; `all_of`: that is all open ones."""
        ends = torch.stack([self.lower[case], self.upper[case]], dim=1)  # (rows, 2, inputs)
        open_ = (self.width[case] > 0).to(ends.dtype)
        for _ in range(steps):
            base, value = self.where[case, slot], self.best[case, slot]
            which = (self.rand(*base.shape) + open_).topk(count, dim=1).indices  # (rows, count)
            to = ends.gather(2, which[:, None].expand(-1, 2, -1))
            tried = base[:, None, None].repeat(1, 2, count, 1)
            tried.scatter_(3, which[:, None, :, None].expand(-1, 2, -1, 1), to[..., None])
            own = slot[:, None].expand(-1, 2 * count)
            found = self.visit(case, tried.flatten(1, 2), own).value.reshape(-1, 2, count)
            yield
            lowest, end = found.min(1)
            best = to.gather(1, end[:, None])[:, 0]
            moved = base.scatter(1, which, torch.where(lowest < value[:, None], best, base.gather(1, which)))
            self.visit(case, moved[:, None], own[:, :1])
            yield
            if all_of and not bool((self.best[case, slot] < value).any()):
                return


def _in_turns(first: Steps, second: Steps, share: int) -> Steps:
    """Alternate: `share` batches of the first search for each batch of the second, until both have ended."""
    done = object()
    going = True
    while going:
        going = False
        for steps, count in ((first, share), (second, 1)):
            for _ in range(count):
                if next(steps, done) is not done:
                    going = True
                    yield
