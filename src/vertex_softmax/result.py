"""What a certification says, and why.

Invariant: `verified` is said only of an input whose every margin bound is finite and > 0, all bounds on the way being
finite and uncrossed. `falsified` is said only with an input of the set that the network itself gets wrong.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from vertex_softmax.certificate.certificate import Certificate


class Verdict(StrEnum):
    """The three answers."""

    VERIFIED = "verified"
    FALSIFIED = "falsified"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class Certification:
    """The answer for each input of a batch."""

    lower: Tensor
    """Lower bounds of the margin of the label to each class, (batch, classes); inf at the label."""
    verdicts: tuple[Verdict, ...]
    reasons: tuple[str, ...]
    """Per input, why the verdict is not `verified`, and what may help; empty if it is."""
    method: str
    clean: Tensor
    """The margins at the centre of the set, (batch, classes); inf at the label."""
    seconds: dict[str, float]
    """By stage, and `total`."""
    certificates: tuple[Certificate | None, ...] = ()
    """per input, if they were asked for: the proof of what is verified"""
    peak_bytes: int | None = None
    """Most memory in use: by tensors on a CUDA device, else by the process so far; None where that is not known."""

    @property
    def verdict(self) -> Verdict:
        """The one verdict of the batch: falsified if one input is, verified if all are, else unknown."""
        if Verdict.FALSIFIED in self.verdicts:
            return Verdict.FALSIFIED
        return Verdict.VERIFIED if all(v is Verdict.VERIFIED for v in self.verdicts) else Verdict.UNKNOWN

    @property
    def certified(self) -> Tensor:
        """Which inputs are verified, (batch,) bool."""
        return self.lower.new_tensor([v is Verdict.VERIFIED for v in self.verdicts]).bool()

    @property
    def worst(self) -> Tensor:
        """The least margin bound of each input, (batch,)."""
        return self.lower.amin(-1)
