"""The journal of a shared search: which tree of splits took the place of which part, one line of JSON each.

Invariant: a line is on the disk before the part that it replaces is. Every line has the SHA-256 of all lines before it,
so that a line that was changed, left out, doubled or moved is noticed; and the identity of the search (task.py), so
that a journal of another search is refused. It is not a signature: whoever writes a whole new journal is believed.

A bound in a journal is a claim about a part, and no verdict: whether the part is closed is decided again, by the goals
of the process that reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.outputs import Outputs
from vertex_softmax.runs.journal import Journal, Trial
from vertex_softmax.runs.shared.ledger import Ledger
from vertex_softmax.runs.shared.messages import Codec, count, field
from vertex_softmax.runs.shared.seals import Plain, digest_of
from vertex_softmax.runs.shared.task import difference

OPTION = "--journal"
MOST_PARTS = 1 << 40


class TreeJournal:
    """The trees of one search, case by case. Use it in a `with`; it locks the file."""

    def __init__(self, path: Path, identity: dict[str, str], outputs: Outputs | None = None) -> None:
        self.path, self.identity = path, identity
        self._journal = Journal(path, digest_of(identity), self._kept, outputs, OPTION)
        self._chain = ""
        self._lines: list[dict[str, Plain]] = []
        """the events so far; they are dropped when a case has read its own"""
        self._count = 0
        self._fault = ""
        self._reading = True

    def __enter__(self) -> TreeJournal:
        self._journal.__enter__()
        try:
            foreign = self._journal.foreign
            if foreign is not None:
                other = foreign["event"].get("identity") if isinstance(foreign.get("event"), dict) else None
                what = difference(self.identity, other) or "it was written by others"
                raise self._refused(f"is the journal of another search: {what}")
            if self._fault:
                raise self._refused(self._fault)
            self._reading = False
            if not self._count:
                self.add([{"identity": self.identity}])
        except BaseException:
            self._journal.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.__exit__(kind, error, trace)

    def _refused(self, what: str) -> InvalidValueError:
        return InvalidValueError(f"{self.path} {what}; remove it, or choose another {OPTION}")

    def add(self, events: Iterable[dict[str, Plain]]) -> None:
        """Write events; they are on the disk when this method returns."""
        trials, chain, number = [], self._chain, self._count
        for event in events:
            chain = digest_of([chain, event])
            trials.append({"key": str(number), "chain": chain, "event": event})
            number += 1
        self._journal.add(trials)

    def _kept(self, trial: Trial) -> Trial:
        """Take note of a line that was read or written; the first that does not follow from those before is a fault."""
        event, chain = trial.get("event"), digest_of([self._chain, trial.get("event")])
        whole = isinstance(event, dict) and trial.get("key") == str(self._count) and trial.get("chain") == chain
        if not whole and not self._fault:
            self._fault = f"was changed after it was written: line {self._count + 1} does not follow from those before"
        self._chain = chain
        self._count += 1
        if self._reading and isinstance(event, dict):
            self._lines.append(event)
        return {}

    def begin(self, case: int, rows: str, codec: Codec, ledger: Ledger) -> int:
        """Bring the ledger of a case, which is new, to where the journal is; returns how many trees were read.

        `rows`: the digest of the case's objectives, which have to be the same to the last bit.
        """
        mine = [event for event in self._lines if event.get("case") == case]
        self._lines = [event for event in self._lines if event.get("case") != case]
        if not mine:
            self.add([{"case": case, "rows": rows}])
            return 0
        if mine[0].get("rows") != rows:
            raise self._refused(
                f"is about other objectives in case {case + 1} than this search: it was begun with another number of "
                "threads or on another kind of machine, which rounds differently"
            )
        for event in mine[1:]:
            try:
                _replay(event, codec, ledger)
            except InvalidValueError as error:
                raise self._refused(f"contradicts itself in case {case + 1}: {error}") from error
        return len(mine) - 1


def replaced(case: int, number: int, digest: str, tree: list[Plain]) -> dict[str, Plain]:
    """The event that a tree took the place of a part, whose objective and splits have this digest."""
    return {"case": case, "part": number, "digest": digest, "tree": tree}


def _replay(event: dict[str, Plain], codec: Codec, ledger: Ledger) -> None:
    number, tree = count(event, "part", MOST_PARTS), codec.read_tree(field(event, "tree", list))
    if number in ledger.open:
        if codec.digest(ledger.open[number].part) != event.get("digest"):
            raise InvalidValueError(f"part {number} is another one")
        ledger.replace(ledger.checked(number, tree))
    elif ledger.is_known(number):
        ledger.skip(tree)
    else:
        raise InvalidValueError(f"there is no part {number} yet")
