"""Finished trials on disk, one JSON line each: what is in the file is whole, and is never measured twice.

Invariant: after `add` returned, its trials survive `kill -9` and a crash of the machine. A line that a killed run was
writing is cut off when the file is opened again; a later line of the same trial takes the place of an earlier one.

Each line names the sources it was made by (`fingerprint`): answers of other sources are kept in the file and not used.
What a line says is nobody's word: its length is limited, and who uses a trial looks at what is in it. A file that is
not a journal is never changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from vertex_softmax.foundation.errors import InternalError, InvalidValueError
from vertex_softmax.foundation.outputs import Outputs
from vertex_softmax.runs.sources import fingerprint

__all__ = ["Journal", "Trial", "fingerprint", "key_of"]

Trial: TypeAlias = dict[str, Any]
"""A finished trial, as plain JSON; `key` says which."""


MOST_BYTES = 1 << 33
MOST_LINE = 1 << 28
"""Bytes of a journal, and of one of its lines."""


def key_of(question: str, **about: Any) -> str:
    """A key that names a question by everything its answer hangs on: no two questions have one key.

    Numbers are written exactly; settings are dataclasses of plain values. What cannot be written is an error.
    """
    return json.dumps({"question": question, **about}, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"class": type(value).__qualname__, **fields}
    raise InternalError(f"a {type(value).__name__} cannot be part of a journal's key")


class Journal:
    """The trials of one experiment: `known` by key, `add` to write; open it with `with`, one process at a time."""

    def __init__(
        self,
        path: Path,
        source: str,
        keep: Callable[[Trial], Trial] = lambda trial: trial,
        outputs: Outputs | None = None,
    ) -> None:
        """`keep`: what of each trial stays in memory; the file has all of it. `outputs`: of a run that reads files."""
        self.path, self.source, self.keep, self.outputs = path, source, keep, outputs or Outputs()
        self.known: dict[str, Trial] = {}
        self._file: Any = None

    def __enter__(self) -> Journal:
        there = next(folder for folder in self.path.absolute().parents if folder.exists())
        try:
            self._file = self.outputs.append(self.path)
        except OSError as error:
            raise self._refused(error) from error
        try:
            if os.fstat(self._file.fileno()).st_size > MOST_BYTES:
                raise InvalidValueError(f"{self.path} has more than {MOST_BYTES} bytes; move it away")
            self._lock()
            self._read()
            if not self._file.tell():  # nothing was promised before
                _sync_folders(self.path.absolute(), there)
        except BaseException as error:
            self._file.close()  # and the lock is gone
            if isinstance(error, OSError):
                raise self._refused(error) from error
            raise
        return self

    def _refused(self, error: OSError) -> InvalidValueError:
        return InvalidValueError(f"{self.path} cannot be written ({error.strerror}); choose another --out")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # of what `add` could not write; the rest is on the disk
            self._file.close()

    def add(self, trials: Iterable[Mapping[str, Any]]) -> None:
        """Write finished trials; they are on the disk when this returns."""
        lines = [{**trial, "source": self.source} for trial in trials]
        try:
            text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        except (ValueError, TypeError) as error:
            raise InternalError(
                f"{self.path}: a trial of {', '.join(str(line['key']) for line in lines)} is not plain JSON: {error}"
            ) from error
        try:
            self._file.write(text.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InvalidValueError(
                f"{self.path}: {error.strerror}; what was written before is kept; the same command goes on from there"
            ) from error
        self.known.update((str(line["key"]), self.keep(line)) for line in lines)

    def once(self, key: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        """What `compute` gives for the trial of this key: as the file has it, else computed and written."""
        if key not in self.known:
            self.add([{"key": key, "found": compute(*arguments)}])
        if "found" not in self.known[key]:
            raise InvalidValueError(f"{self.path}: the line of {key[:200]!r} has no 'found'; remove it or the file")
        return self.known[key]["found"]

    def _no_trial(self, number: int, error: Exception) -> InvalidValueError:
        return InvalidValueError(
            f"{self.path}, line {number} is not a trial ({repr(error)[:200]}); remove that line or the file"
        )

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # not on Windows
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidValueError(
                f"another process is writing {self.path}; wait for it, or choose another --out"
            ) from error

    def _read(self) -> None:
        """All whole lines; the file is cut behind the last of them."""
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(iter(lambda: self._file.readline(MOST_LINE), b""), 1):
            try:
                trial = json.loads(line, parse_constant=_refuse, parse_float=_finite)
                key, source = trial["key"], trial["source"]
                if not isinstance(key, str):
                    raise TypeError("its key is no text")
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                if line.endswith(b"\n") or len(line) == MOST_LINE or not _torn(line):
                    raise self._no_trial(number, error) from error
                break
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            if source == self.source:
                try:
                    self.known[key] = self.keep(trial)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise self._no_trial(number, error) from error
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)


def _refuse(text: str) -> float:
    raise ValueError(f"it has the number {text}")


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _refuse(text)


def _torn(line: bytes) -> bool:
    """Could it be the beginning of a line that a killed run was writing? A crash may leave zeros in its place."""
    return b'{"'.startswith(line[:2]) or not line.strip(b"\0")


def _sync_folders(path: Path, highest: Path) -> None:
    """A new file is there after a crash of the machine only if its folder was synced, and so on up to an old one."""
    if os.name == "nt":  # no folder can be opened there
        return
    for folder in path.parents:
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of file systems that cannot
                raise
        finally:
            os.close(number)
        if folder == highest:
            return
