"""What a shared search is about, so that a worker can tell whether it has the same before it: files, options, sources.

Invariant: two processes whose identities are equal have the same network, the same property, the same options and the
same sources of Vertex, so that a split or a bound of one means the same to the other.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.identity import graph_identity, value_digest
from vertex_softmax.methods.options import Options
from vertex_softmax.runs import sources
from vertex_softmax.runs.shared.seals import Plain, digest_of
from vertex_softmax.search.verify_files import Instance

WORDS = {
    "model": "the model has another SHA-256",
    "graph": "the model is read as another network",
    "property": "the property says something else",
    "options": "the options are others",
    "device": "the device is another",
    "source": "the sources of Vertex, or the versions of its libraries, are others",
}
"""What is different, in words, by field of an identity."""

SHARED = Options(search=Search(domains=1 << 40))
"""The options of a shared search: it is ended by the clock, not by the number of parts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedTask:
    """One instance whose tree is shared."""

    model: str
    """the path of the ONNX file, on this machine"""
    spec: str
    """the path of the property"""
    options: Options = SHARED
    device: str = "cpu"
    threads: int = 1
    """of each worker"""
    memory: float | None = None
    """GiB of each worker; None: no limit"""

    def identity(self, instance: Instance) -> dict[str, str]:
        """Everything that the meaning of a part and of a bound depends on, each as a digest or a word."""
        return {
            "model": instance.model_hash,
            "graph": graph_identity(instance.graph),
            "property": value_digest(instance.prop),
            "options": digest_of(self._asked()),
            "device": self.device.partition(":")[0],
            "source": sources.of_answers(built=False),
        }

    def _asked(self) -> dict[str, Plain]:
        """The options as they were asked for: with the memory limit, not with what this process has left of it.

        That decides which products of unknowns boxes are made of, so it may change a bound, and never what it means.
        """
        plain = plain_options(self.options)
        return {**plain, "memory": {**plain["memory"], "total": self.memory}}


def difference(mine: dict[str, str], other: Plain) -> str:
    """What an identity differs in from this process's own, in words; empty if it is the same."""
    if not isinstance(other, dict):
        return "nothing is said about what it belongs to"
    return ", and ".join(words for name, words in WORDS.items() if other.get(name) != mine[name])


def plain_options(options: Options) -> dict[str, Plain]:
    """Options as plain data."""
    return dataclasses.asdict(options)


def read_options(plain: Plain) -> Options:
    """The options that `plain_options` was given."""
    try:
        search = dict(plain["search"])
        for name in ("root", "ascent", "boxes"):
            search[name] = Ascent(**search[name])
        parts: dict[str, Any] = {name: _ascent(plain[name]) for name in ("ascent", "box_ascent")}
        return Options(**{**plain, **parts, "search": Search(**search), "memory": Memory(**plain["memory"])})
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidValueError(f"a message has no valid options: {error}") from error


def _ascent(plain: Plain) -> Ascent | None:
    return None if plain is None else Ascent(**plain)
