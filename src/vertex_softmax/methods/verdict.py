"""The one vocabulary of answers."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What is said of a property, or of an input's label over its set."""

    VERIFIED = "verified"
    """it holds everywhere in the set"""
    FALSIFIED = "falsified"
    """it does not, and an input of the set shows it"""
    UNKNOWN = "unknown"
    """neither was shown"""
    TIMEOUT = "timeout"
    """neither was shown in the time that was given"""

    @property
    def competition(self) -> str:
        """VNN-COMP's word, which is about the property's negation: unsat, sat, unknown or timeout."""
        return {"verified": "unsat", "falsified": "sat"}.get(self.value, self.value)


WITHOUT_TIME = (Verdict.VERIFIED, Verdict.FALSIFIED, Verdict.UNKNOWN)
"""The verdicts of a question without a time limit."""
