"""The kind `network`: random networks of supported ops through the whole path (check.py)."""

from __future__ import annotations

from typing import Any

from vertex_lab.fuzz.check import check
from vertex_lab.fuzz.recipe import random_recipe as draw

__all__ = ["SIMPLE", "check", "draw"]

SIMPLE: dict[str, Any] = {}
"""Networks have a minimiser of their own."""
