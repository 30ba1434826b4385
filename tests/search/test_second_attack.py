"""The second attack keeps to its share: never ahead of the time that has passed, and the last piece is the rest."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vertex_softmax.search import second_attack as module
from vertex_softmax.search.second_attack import LEAST, SecondAttack


class Clock:
    """A clock that goes when it is told to, and an attack that takes as long as it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.made, self.pieces = 100.0, 0, list[float]()
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def make(self) -> Clock:
        self.made += 1
        return self

    def resume(self, until: float) -> str:
        self.pieces.append(until - self.now)
        self.now = until
        return "found"


def attack(clock: Clock, *, seconds: float = 10.0, first: float = 110.0, end: float = 200.0) -> SecondAttack:
    return SecondAttack(clock.make, seconds, first, end)  # type: ignore[arg-type]


def test_it_is_in_step_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    second = attack(clock)
    clock.now = 109.0
    assert second.due() == 0  # before its first time
    clock.now = 120.0
    assert second.due() == pytest.approx(2.0)
    assert second.resume(second.due()) == "found"  # type: ignore[comparison-overlap]
    assert second.due() == 0  # 22 of 100 have passed, and 2 of 10 seconds are spent: less than LEAST is due
    while clock.now < 200:
        clock.now += 1.0
        if (seconds := second.due()) > 0:
            second.resume(seconds)
            assert sum(clock.pieces) <= 10 * (clock.now - 100) / 100 + 1e-9
    assert min(clock.pieces[:-1]) >= LEAST - 1e-9  # but for the last
    assert clock.made == 1
    assert sum(clock.pieces) == pytest.approx(10, abs=LEAST + 0.1)


def test_the_last_piece_is_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    second = attack(clock)
    clock.now = 105.0
    assert second.due(last=True) == 10
    second.resume(4.0)
    assert second.due(last=True) == pytest.approx(6.0)
    clock.now = 300.0
    assert second.due() == pytest.approx(6.0)  # behind the end all is due
    second.resume(7.0)
    assert second.due() == second.due(last=True) == 0


def test_without_time_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert attack(clock, seconds=0.0).due(last=True) == 0
    assert attack(clock, first=100.0, end=100.0).due() == 10


def test_after_a_piece_that_failed_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    second = attack(clock)
    monkeypatch.setattr(clock, "resume", lambda until: (_ for _ in ()).throw(MemoryError(str(until))))
    with pytest.raises(MemoryError):
        second.resume(1.0)
    clock.now = 190.0
    assert second.due() == second.due(last=True) == 0
