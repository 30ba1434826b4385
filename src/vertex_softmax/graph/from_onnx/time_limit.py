"""A limit on the time that reading a model takes."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

from vertex_softmax.foundation.errors import InvalidValueError, OutOfTimeError, VertexError


class Clock:
    """A time limit of some seconds from now on; None means no limit."""

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is not None and not seconds >= 0:
            raise InvalidValueError(f"seconds is {seconds}; give a number of seconds, or None for no limit")
        self.seconds = math.inf if seconds is None else float(seconds)
        self.end = time.perf_counter() + self.seconds

    def check(self, doing: str) -> None:
        """Raise if the time is over; `doing` says what took too long."""
        if time.perf_counter() >= self.end:
            raise OutOfTimeError(
                f"{doing} took longer than {self.seconds:g} seconds, the limit for reading a model: give more by "
                "`seconds`, or a smaller model"
            )

    @contextlib.contextmanager
    def running(self, doing: str) -> Iterator[Any]:
        """A context that yields RunOptions with which onnxruntime stops, between two nodes, when the time is over."""
        import onnxruntime

        self.check(doing)
        options = onnxruntime.RunOptions()
        options.log_severity_level = 4
        left = self.end - time.perf_counter()
        timer = threading.Timer(min(max(left, 0.0), threading.TIMEOUT_MAX), setattr, (options, "terminate", True))
        timer.daemon = True
        if left < math.inf:
            timer.start()
        try:
            yield options
        except VertexError:
            self.check(doing)  # raises if the time limit was the cause
            raise
        finally:
            timer.cancel()
