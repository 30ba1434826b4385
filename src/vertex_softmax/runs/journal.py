"""Finished trials on disk, one line of JSON each, so that no trial is computed twice.

Invariant: after `add` has returned, its trials survive `kill -9` and a crash of the machine. A line that was not
completely written is removed when the file is opened again; a later line of the same trial replaces an earlier one.

Each line names the sources it was computed by (`fingerprint`): answers of other sources stay in the file and are not
used. The content is not trusted: the length of a line is limited, and the user of a trial must check its values. A file
that is not a journal is never changed.
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
"""A finished trial as plain JSON, with its key in the field `key`."""

MOST_BYTES = 1 << 33
"""The largest journal in bytes."""
MOST_LINE = 1 << 28
"""The longest line of a journal in bytes."""


def key_of(question: str, **about: Any) -> str:
    """The key of a question: everything that its answer depends on, so that different questions have different keys.

    Numbers are written exactly; settings are dataclasses of plain values. Any other value is an error.
    """
    return json.dumps({"question": question, **about}, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"class": type(value).__qualname__, **fields}
    raise InternalError(f"a {type(value).__name__} cannot be part of a journal's key")


class Journal:
    """The trials of one run: `known` has them by key, `add` writes them. Use it in a `with`; it locks the file."""

    def __init__(
        self,
        path: Path,
        source: str,
        keep: Callable[[Trial], Trial] = lambda trial: trial,
        outputs: Outputs | None = None,
        option: str = "--out",
    ) -> None:
        """`keep`: reduces a trial to what stays in memory; the file has all of it. `outputs`: the output files.

        `option`: the option that says where the journal is, for messages.
        """
        self.path, self.source, self.keep, self.outputs = path, source, keep, outputs or Outputs()
        self.option = option
        self.foreign: Trial | None = None
        """the first trial of other sources in the file"""
        self.known: dict[str, Trial] = {}
        self._file: Any = None

    def __enter__(self) -> Journal:
        existing = next(folder for folder in self.path.absolute().parents if folder.exists())
        try:
            self._file = self.outputs.append(self.path)
        except OSError as error:
            raise self._refused(error) from error
        try:
            if os.fstat(self._file.fileno()).st_size > MOST_BYTES:
                raise InvalidValueError(f"{self.path} has more than {MOST_BYTES} bytes; move it away")
            self._lock()
            self._read()
            if not self._file.tell():  # the file may be new, and so may its folders
                _sync_folders(self.path.absolute(), existing)
        except BaseException as error:
            self._file.close()  # this also releases the lock
            if isinstance(error, OSError):
                raise self._refused(error) from error
            raise
        return self

    def _refused(self, error: OSError) -> InvalidValueError:
        return InvalidValueError(f"{self.path} cannot be written ({error.strerror}); choose another {self.option}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # `add` has already reported what it could not write
            self._file.close()

    def add(self, trials: Iterable[Mapping[str, Any]]) -> None:
        """Write finished trials; they are on the disk when this method returns."""
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
        """The result of the trial with this key: from the file, or else `compute(*arguments)`, which is written."""
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
                f"another process is writing {self.path}; wait for it, or choose another {self.option}"
            ) from error

    def _read(self) -> None:
        """Read all complete lines, and truncate the file after the last of them."""
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
            if source != self.source:
                self.foreign = self.foreign or trial
            else:
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
    """Whether this may be the beginning of a line that was not completely written; a crash may leave zeros instead."""
    return b'{"'.startswith(line[:2]) or not line.strip(b"\0")


def _sync_folders(path: Path, highest: Path) -> None:
    """Sync the folders of a new file, up to `highest`, which existed before: else a crash may lose the file's name."""
    if os.name == "nt":  # Windows cannot open folders
        return
    for folder in path.parents:
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # raised by file systems that cannot sync folders
                raise
        finally:
            os.close(number)
        if folder == highest:
            return
