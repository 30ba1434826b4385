"""Every error Vertex raises on purpose is a `VertexError`, and also the built-in class a caller would expect.

The message names what is wrong, where it is, and what to do about it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class VertexError(Exception):
    """The root of every error that Vertex raises on purpose."""


class InvalidValueError(VertexError, ValueError):
    """A value is outside what a function accepts: NaN, crossed bounds, shapes that do not broadcast."""


class InvalidTypeError(VertexError, TypeError):
    """An argument has the wrong type or dtype."""


class MissingDependencyError(VertexError, ImportError):
    """An optional dependency is not installed; the message says which extra brings it."""


class UnsupportedModelError(VertexError, ValueError):
    """A model contains something Vertex cannot read; the message names every such operation and what would help."""


class OutOfTimeError(VertexError, TimeoutError):
    """A deadline passed before the work was done; the code that set the deadline keeps the results obtained so far."""


class NotEnoughMemoryError(VertexError, MemoryError):
    """A run needs, or may need, more memory than it was given; what it was about has not been computed."""


class ClusterError(VertexError, ConnectionError):
    """The machines of a cluster are unreachable or unsuitable for the work; finished results are kept."""


class InternalError(VertexError, RuntimeError):
    """Vertex contradicts itself. Never the caller's fault; please report it."""


OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "std::bad_alloc")
"""Texts in torch's errors, of several classes, when memory is exhausted."""


@contextlib.contextmanager
def memory_explained(advice: str) -> Iterator[None]:
    """A context, or with `@` a function, in which Python's and torch's errors of memory say what helps."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, VertexError) or not is_out_of_memory(error):
            raise
        raise NotEnoughMemoryError(f"there is not enough memory: {advice}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is exhausted: one of Python's, or one of torch's."""
    if isinstance(error, RuntimeError):
        return any(text in str(error) for text in OUT_OF_MEMORY)
    return isinstance(error, MemoryError)
