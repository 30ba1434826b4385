"""What a user asks of an experiment, and what it needs on the way: the same for every name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vertex_softmax.foundation.progress import Progress, silent

__all__ = ["Progress", "Request", "silent"]


@dataclass(frozen=True)
class Request:
    """The answers depend on `quick`, `seeds` and `data` alone; `device` changes them by rounding."""

    out: Path
    """tables and plots; journals and models in folders below"""
    quick: bool = False
    """a reduced run of about a minute"""
    seeds: tuple[int, ...] | None = None
    """None: the experiment's own"""
    data: str | None = None
    """None: the paper's data sets as far as they are in the data folder; else the one to use for every row"""
    data_dir: Path | None = None
    """where MNIST and the others lie (zoo/datasets.py); None: where `vertex data` looks"""
    device: str = "cpu"
    progress: Progress = silent

    @property
    def seed(self) -> int:
        """The first seed: of experiments with a single one."""
        return self.seeds[0] if self.seeds else 0

    def chosen(self, seeds: int) -> tuple[int, ...]:
        """The seeds that were asked for, else 0 … seeds − 1."""
        return self.seeds if self.seeds else tuple(range(seeds))

    def described(self) -> dict[str, object]:
        """What was asked for, for the table's foot."""
        found: dict[str, object] = {"quick": self.quick, "device": self.device}
        if self.seeds:
            found["seeds"] = ", ".join(map(str, self.seeds))
        return found if self.data is None else {**found, "data": self.data}
