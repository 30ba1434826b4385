"""The words for answers, the same in all of Vertex."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """The answer for a property, or for an input's label over its set."""

    VERIFIED = "verified"
    """the property holds everywhere in the set"""
    FALSIFIED = "falsified"
    """it does not hold, and an input of the set shows that"""
    UNKNOWN = "unknown"
    """neither was shown"""
    TIMEOUT = "timeout"
    """neither was shown in the time that was given"""

    @property
    def competition(self) -> str:
        """VNN-COMP's word for the answer, which is about the property's negation: unsat, sat, unknown or timeout."""
        return {"verified": "unsat", "falsified": "sat"}.get(self.value, self.value)


WITHOUT_TIME = (Verdict.VERIFIED, Verdict.FALSIFIED, Verdict.UNKNOWN)
"""The verdicts of a question without a time limit."""
