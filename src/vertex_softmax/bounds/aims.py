"""The interface of branch and bound: its aim, its limits, its callbacks and its result."""

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
    """The limits of a search, and how it spends its time."""

    seconds: float | None = 10.0
    """time limit; None: no limit except the number of parts"""
    domains: int = 100_000
    """the search stops once this many parts have been bounded"""
    memory: int = 1 << 30
    """the search stops when the parameters of its open parts take more bytes than this"""
    width: int | None = None
    """how many parts are bounded in one batch; None: 32 to 256, so that a batch has about TOGETHER numbers in all nodes
    (branch_and_bound.py)"""
    tried: int = 4
    """how many candidate splits of a part are bounded before one of them is chosen; only one if it is exact and
    `reliable`"""
    considered: int = 16
    """how many candidates of each part are ranked by the gain they promise, at most"""
    reliable: int = 3
    """after this many trials of splits of a number, its next exact split is chosen without a trial (gains.py)"""
    root: Ascent = dataclasses.field(default_factory=Ascent)
    """the ascent on the whole set, before anything is split"""
    ascent: Ascent = dataclasses.field(default_factory=lambda: Ascent(steps=8, step_size=0.01, decay=0.97, sums=False))
    """the ascent on a part, which starts from its parent's parameters"""
    every: int = 32
    """Exact splits leave the op that reads the number linear on both sides, as a ReLU split at 0. After an exact split
    the parameters of a part are optimised only if its depth is a multiple of this number; at other depths the split
    only gets a multiplier. After any other split they are always optimised."""

    narrowing: float = 0.3
    """the share of `seconds` that narrowing may take: before anything is split, the set is narrowed to where an
    objective can still be as low as its goal (narrowing.py); 0: no narrowing"""
    halving: float = 0.5
    """the share of `seconds` that halving the input's box may take (halving.py), which is tried first if few numbers of
    the input vary; 0: no halving"""
    early: float = 0.15
    """the share of `seconds` in which parts may be bounded over the boxes of `crown` before the boxes of `joint` are
    made, if these take longer; that search is given up unless it promises to end soon (promising.py); 0: no such
    search"""
    late: int = 1000
    """after this many bounded parts, the box of the last node with exact splits behind an attention is optimised, once
    and over the whole set"""
    boxes: Ascent = dataclasses.field(default_factory=lambda: Ascent(steps=15, step_size=0.2, decay=0.9))
    """the ascent for every entry of that box"""
    attack: float = 0.05
    """the largest share of the time spent on attacks from the worst open parts, if `Watchers.attack` is given; 0: no
    attacks"""

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
    """the bound of every part is above its goal"""
    WITNESS = "witness"
    """an input was found at which an objective is not above its goal"""
    SECONDS = "seconds"
    DOMAINS = "domains"
    MEMORY = "memory"
    EXHAUSTED = "exhausted"
    """open parts are left, but none of them has a number that can still be split"""
    UNPROMISING = "unpromising"
    """the worst bound rises too slowly to reach its goal in reasonable time (promising.py)"""


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """The result of branch and bound on n objectives.

    Invariant: `bound` is a lower bound of each objective over the whole set, whatever ended the search.
    """

    bound: Tensor
    """(n,): for each objective the least bound over all of its parts"""
    open: Tensor
    """(n,): for each objective the number of parts whose bound is not above the goal"""
    domains: int
    """how many parts were bounded"""
    stopped: Stop
    witness: Tensor | None = None
    """an input (*shape) at which an objective is not above its goal, if one was found"""
    broken: int | None = None
    """the index of the objective that `witness` breaks"""
    passes: int | None = None
    """how many bounds of parts were computed, counting splits that were only tried and every step of an ascent; None if
    that is not known, because workers report only their parts"""
    seconds: float = 0.0
    """time spent on bounding parts and on making their boxes, without attacks and the callbacks of `Watchers`"""

    def after(self, other: Outcome) -> Outcome:
        """The same with what another search about the same objectives had done before."""
        passes = None if self.passes is None or other.passes is None else self.passes + other.passes
        return dataclasses.replace(
            self, domains=self.domains + other.domains, passes=passes, seconds=self.seconds + other.seconds
        )


def rates(parts: float, passes: float | None, seconds: float) -> dict[str, float]:
    """Parts and bounds per second of a search, as far as they are known; empty if no part was bounded."""
    if not (seconds > 0 and parts > 0):
        return {}
    known = {} if passes is None else {"bounds_per_second": passes / seconds}
    return {"parts_per_second": parts / seconds, **known}


Progress = Callable[[float, int, int], None]
"""Called with three numbers: the least bound minus goal over all open parts, how many parts are open, and how many were
bounded so far."""
Accept = Callable[[Tensor, int], bool]
"""Called with an input (*shape) and the index of an objective that is not above its goal there; True ends the
search."""

Attack = Callable[[Tensor, Sequence[int], float], tuple[Tensor, int] | None]
"""Called with inputs (n, *shape), the index of one objective for each, and a deadline on the clock of
`time.perf_counter`: from each input it descends on that objective.

It returns an input (*shape) and the index of an objective that is not above its goal there, confirmed as by `Accept`;
or None if it found no such input. The inputs it is given lie in the set only to rounding; the attack projects them.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Aim:
    """What branch and bound shall prove: that each of n objectives is above its goal on the whole set."""

    objectives: Tensor
    """(n, *output shape): the coefficients of linear functions of the network's output"""
    goals: Tensor | None = None
    """(n,); None: all goals are 0"""
    known: Tensor | None = None
    """(n,): lower bounds over the whole set that are known already"""


@dataclasses.dataclass(frozen=True, eq=False)
class Watchers:
    """Callbacks of a search, and the record that it writes."""

    accept: Accept | None = None
    """None: any input at which an objective is not above its goal ends the search"""
    progress: Progress | None = None
    record: Record | None = None
    """receives every closed part with its parameters; the closed parts of an objective without open ones cover the
    set"""
    attack: Attack | None = None
    """called from time to time with the minimisers of the worst open parts' bounds (tree_attack.py)"""
