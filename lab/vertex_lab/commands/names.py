"""The experiments by name, without what they stand for: reading the registry takes seconds; a test compares the two."""

from __future__ import annotations

EXPERIMENTS = (
    "threshold",
    "interval",
    "slack",
    "sweep",
    "patch",
    "block",
    "strong",
    "runtime",
    "paired",
    "bootstrap",
    "numerical",
)
