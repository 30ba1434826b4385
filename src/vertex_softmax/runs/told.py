"""What a run tells while it goes on: its stages, to whoever asked with `progress=`; and the count of its inputs.

Invariant: nothing that is told changes what is computed. An exception of the one who is told ends the run, so that he
can.
"""

from __future__ import annotations

from vertex_softmax.bounds.aims import Progress as SearchProgress
from vertex_softmax.foundation.errors import InvalidTypeError
from vertex_softmax.foundation.progress import Progress, silent


class Told:
    """The progress of a run over so many inputs."""

    def __init__(self, progress: Progress | None, inputs: int) -> None:
        if progress is not None and not callable(progress):
            raise InvalidTypeError(
                f"progress is a {type(progress).__name__}; give a function of a stage, of how much of it is done, and "
                "of how much there is"
            )
        self.progress: Progress | None = progress
        self._tell = progress or silent
        self.inputs = inputs
        self.answered = 0

    def stage(self, what: str, done: int, total: int) -> None:
        """Tell of a stage."""
        self._tell(what, done, total)

    def inputs_answered(self, count: int) -> None:
        """Tell that this many inputs more have an answer."""
        self.answered += count
        self._tell("inputs", self.answered, self.inputs)

    def of_search(self) -> SearchProgress | None:
        """What branch and bound calls: it tells how many of the parts that there are so far were bounded."""
        if self.progress is None:
            return None
        return lambda _worst, left, bounded: self._tell("parts", bounded, bounded + left)
