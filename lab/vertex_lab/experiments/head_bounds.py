"""Random heads (synthetic.py) bounded as networks by the library's methods, kept in a journal of their own."""

from __future__ import annotations

import math
import time
from typing import Any

from vertex_lab.experiments.request import Request
from vertex_lab.experiments.synthetic import Heads
from vertex_lab.journals import journal_of
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.journal import Journal
from vertex_softmax.sets import LinfBall

METHODS = ("crown", "joint")


def head_journal(name: str, request: Request) -> Journal:
    """OUT/journals/NAME.jsonl: it does not depend on how other methods are computed."""
    return journal_of(name, request.out, "experiments/head_bounds.py", "experiments/synthetic.py")


def head_bounds(head: Heads, epsilon: float) -> dict[str, dict[str, Any]]:
    """One trial: per method worst (None if not finite), certified, seconds; importing its network is not timed."""
    graph, ball = head.graph(), LinfBall(head.x[None], epsilon)
    found = {}
    for method in METHODS:
        begin = time.perf_counter()
        answer = certify(graph, ball, int(head.sign < 0), method, attack=None)
        worst = float(answer.worst)
        found[method] = {
            "worst": worst if math.isfinite(worst) else None,
            "certified": bool(answer.certified),
            "seconds": time.perf_counter() - begin,
        }
    return found
