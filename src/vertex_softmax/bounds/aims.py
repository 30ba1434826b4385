"""What branch and bound is asked for, how far it may go, who hears of it, and what it returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from enum import StrEnum

from torch import Tensor

from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.record import Record
from vertex_softmax.foundation.errors import InvalidValueError


@dataclasses.dataclass(frozen=True)
class Search:
    """How far to go."""

    seconds: float | None = 10.0
    """stop after these; None: no limit except the number of parts"""
    domains: int = 100_000
    """stop after bounding so many parts"""
    memory: int = 1 << 30
    """stop when the parameters of open parts take more bytes than this"""
    width: int | None = None
    """how many parts are bounded together; None: as many as have TOGETHER numbers in all, 32 to 256"""
    tried: int = 4
    """how many splits are tried before one is chosen, of a part whose most promising one is not relied on yet"""
    considered: int = 16
    """among how many candidates of each part the most promising are looked for"""
    reliable: int = 3
    """a split of a number that was tried so often is chosen without a trial (gains.py)"""
    root: Ascent = dataclasses.field(default_factory=Ascent)
    """the ascent on the whole set, before anything is split"""
    ascent: Ascent = dataclasses.field(default_factory=lambda: Ascent(steps=8, step_size=0.01, decay=0.97, sums=False))
    """the ascent on a part, from its parent's parameters on"""
    every: int = 32
    """where splits leave an op linear on both sides (ReLUs), the parameters of a part are optimised after so many
    splits; between, only multipliers are new. After any other split they always are."""

    narrowing: float = 0.3
    """the share of the seconds in which the set may be narrowed to where an objective can still be at its goal
    (narrowing.py), before anything is split; 0: it is not narrowed"""
    halving: float = 0.5
    """the share of the seconds in which the input's box may be cut into halves (halving.py), before all else and where
    few of its numbers vary; 0: it is not"""
    early: float = 0.15
    """the share of the seconds in which parts may be bounded over the boxes of `crown`, before those of `joint` are
    made, where these take longer: only as long as it promises to end soon (promising.py); 0: none are"""
    late: int = 1000
    """after bounding so many parts, the box that the last exact splits cut is optimised once for the whole set"""
    boxes: Ascent = dataclasses.field(default_factory=lambda: Ascent(steps=15, step_size=0.2, decay=0.9))
    """the ascent of every number of that box"""
    attack: float = 0.05
    """the share of the time that descents from the worst open parts take at most, where someone attacks; 0: none"""

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds >= 0:
            raise InvalidValueError(f"seconds is {self.seconds!r}; it must be at least 0, or None for no limit")
        if not 0 <= self.attack <= 1:
            raise InvalidValueError(f"attack is {self.attack!r}; it is a share, from 0 to 1")
        if not 0 <= self.narrowing <= 1:
            raise InvalidValueError(f"narrowing is {self.narrowing!r}; it is a share of the seconds, from 0 to 1")
        for name in ("early", "halving"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise InvalidValueError(f"{name} is {share!r}; it is a share of the seconds, from 0 to 1")
        for name in ("domains", "memory", "width", "tried", "considered", "reliable", "every", "late"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValueError(f"{name} is {value!r}; it must be at least 1")


class Stop(StrEnum):
    """Why branch and bound ended."""

    DONE = "done"
    """every part is above its goal"""
    WITNESS = "witness"
    """an input was found at which an objective is not above its goal"""
    SECONDS = "seconds"
    DOMAINS = "domains"
    MEMORY = "memory"
    EXHAUSTED = "exhausted"
    """open parts are left, and in none of them is anything left to split"""
    UNPROMISING = "unpromising"
    """the worst bound rises too slowly (promising.py)"""


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """What is known of every objective, (n,), when branch and bound ends."""

    bound: Tensor
    """the least bound over all parts"""
    open: Tensor
    """how many parts are not above the goal"""
    domains: int
    """how many parts were bounded"""
    stopped: Stop
    witness: Tensor | None = None
    """an input (*shape) at which an objective is not above the goal, if one was found"""
    broken: int | None = None
    """the number of that objective"""
    passes: int | None = None
    """how many bounds of parts were computed: those of splits that were only tried too, and of every step of an ascent;
    None where others count parts alone"""
    seconds: float = 0.0
    """what the parts took, with the boxes that were made for them, without attacks and whoever hears of the search"""

    def after(self, other: Outcome) -> Outcome:
        """The same with what another search about the same objectives had done before."""
        passes = None if self.passes is None or other.passes is None else self.passes + other.passes
        return dataclasses.replace(
            self, domains=self.domains + other.domains, passes=passes, seconds=self.seconds + other.seconds
        )


def rates(parts: float, passes: float | None, seconds: float) -> dict[str, float]:
    """Parts and bounds per second in trees, as far as they are known; nothing where no part was bounded."""
    if not (seconds > 0 and parts > 0):
        return {}
    known = {} if passes is None else {"bounds_per_second": passes / seconds}
    return {"parts_per_second": parts / seconds, **known}


Progress = Callable[[float, int, int], None]
"""Called with how far an open part's bound is below its goal at most, how many are open, and how many were bounded."""
Accept = Callable[[Tensor, int], bool]
"""Whether an input (*shape), at which an objective of this number is not above its goal, ends the search."""

Attack = Callable[[Tensor, Sequence[int], float], tuple[Tensor, int] | None]
"""Descends from inputs (n, *shape), from each for the objective of its number, until a time of `time.perf_counter`.

It returns an input (*shape) that is confirmed as `Accept` confirms it, and the number of an objective that is not above
its goal there; None if there was none. The inputs lie in the set to rounding: whoever attacks projects them.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Aim:
    """What branch and bound is to show: that every objective (n, *output shape) is above its goal."""

    objectives: Tensor
    goals: Tensor | None = None
    """(n,); None: 0 each"""
    known: Tensor | None = None
    """(n,): bounds over the whole set that are known already"""


@dataclasses.dataclass(frozen=True, eq=False)
class Watchers:
    """Who hears of the search while it runs."""

    accept: Accept | None = None
    """None: any input at which an objective is not above its goal ends the search"""
    progress: Progress | None = None
    record: Record | None = None
    """gets every part that is closed, with its parameters: they cover the set of each objective that is closed"""
    attack: Attack | None = None
    """from time to time descends from the minimisers of the worst open parts (tree_attack.py)"""
