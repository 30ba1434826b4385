"""Writing: the only way in which Vertex creates files for the user.

Invariant: a file appears whole or not at all, even if the process is killed while writing, and it replaces nothing but
a regular file. It replaces no input of the run (compared by resolved path, and by device and inode, so that hard and
symbolic links to an input are recognised) and no other output of the run. Nothing is written through a symbolic link
in the last component of a path. The folders before it may be links; the parent folder is opened once, and all checks,
the temporary file and the rename happen inside that open folder, even if its path changes meanwhile.

The temporary file has an unpredictable name and is created with O_EXCL and the permissions that the umask leaves; it is
synced before it is renamed, and removed if anything fails. Between the last check and the rename, another process with
write access to the folder can still create the target; the rename then replaces that name and follows no link.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from vertex_softmax.foundation.errors import InvalidValueError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
_HAS_DIR_FD = os.open in os.supports_dir_fd and os.stat in os.supports_dir_fd and os.rename in os.supports_dir_fd
"""Whether files can be named relative to an open folder; not on Windows."""
Inode = tuple[int, int]
"""(device, inode): identifies a file whatever its path."""


class Outputs:
    """The files that a run reads and writes: `claim` an output path before the work, `write` the files when it is done.

    outputs = Outputs([model, spec])
    outputs.claim(path)                     # raises now what `write` would raise
    outputs.write({path: content})          # all of them, or none
    """

    def __init__(self, inputs: Iterable[str | os.PathLike[str]] = ()) -> None:
        self._inputs: dict[str, Path] = {}
        self._inodes: dict[Inode, Path] = {}
        self._claimed: dict[str, Path] = {}
        self.reads(inputs)

    def reads(self, inputs: Iterable[str | os.PathLike[str]]) -> None:
        """Declare more inputs of the run; raises if one of them was claimed as an output."""
        for each in inputs:
            path = Path(each)
            with contextlib.suppress(OSError, ValueError, RuntimeError):  # an unreadable input is reported on reading
                self._inputs |= {_resolved(path): path, os.path.realpath(path): path}
                status = path.stat()
                self._inodes[status.st_dev, status.st_ino] = path
        for path in self._claimed.values():
            self._check(path)

    def claim(self, path: Path) -> None:
        """Reserve the path of an output.

        Raises if the run may not write there: the path is an input or another output of the run, a symbolic link or
        anything else but a regular file, or no valid file name. The folder need not exist yet.
        """
        self._check(path)
        resolved = _resolved(path)
        if resolved in self._claimed:
            raise InvalidValueError(f"{path} is the place of two outputs of this run; give each its own")
        self._claimed[resolved] = path

    def _check(self, path: Path) -> None:
        """Raise if nothing may be written at the path as it is now; two outputs at one path are allowed here."""
        status = None
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise InvalidValueError(f"{path} cannot be written: {error.strerror}") from error
        except ValueError as error:  # a NUL, or half a surrogate pair
            raise InvalidValueError(f"{str(path)!r} cannot be written: no file can have this name") from error
        self._require_writable(path, status)

    def _require_writable(self, path: Path, status: os.stat_result | None) -> None:
        """Raise if the path is an input or no regular file. `status` is None if nothing exists there."""
        _require_regular(path, status)
        read = self._inputs.get(_resolved(path))
        if read is None and status is not None:
            read = self._inodes.get((status.st_dev, status.st_ino))
        if read is not None:
            raise InvalidValueError(f"{path} is {_called(read, path)} that this run reads: choose another place for it")

    def write(self, contents: Mapping[Path, bytes]) -> None:
        """Write all of these files, or none if one of them cannot be written. Missing folders are created."""
        for path in contents:
            self._check(path)
        with contextlib.ExitStack() as stack:
            ready = [stack.enter_context(_unfinished(path, content)) for path, content in contents.items()]
            for each in ready:
                self._require_writable(each.path, each.status())
            for each in ready:
                each.finish()

    def append(self, path: Path) -> io.BufferedRandom:
        """The file, open for reading and for appending; created, with its folder, if it is missing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._check(path)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
            flags |= getattr(os, name, 0)
        descriptor = os.open(path, flags, 0o666)
        try:
            self._require_writable(path, os.fstat(descriptor))
            return os.fdopen(descriptor, "a+b")
        except BaseException:
            os.close(descriptor)
            raise


def write_whole(path: Path, content: bytes, outputs: Outputs | None = None) -> Path:
    """Write one file and return its path; its folder is created if missing. `outputs`: the files of the run, if any."""
    (outputs or Outputs()).write({path: content})
    return path


class _Unfinished:
    """A temporary file in the (open) folder of its final path, renamed by `finish` and removed by `close` otherwise."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self._folder: dict[str, int] = {}  # the argument dir_fd of os.open, os.stat and os.unlink, where supported
        if _HAS_DIR_FD:
            self._folder = {"dir_fd": os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}
        self._temporary: str | None = None

    def _inside(self, name: str) -> str:
        return name if self._folder else str(self.path.parent / name)

    def fill(self, content: bytes) -> None:
        """Create the temporary file, write the content and sync it to the disk."""
        name = f".vertex-{secrets.token_hex(16)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        for flag in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):
            flags |= getattr(os, flag, 0)
        descriptor = os.open(self._inside(name), flags, 0o666, **self._folder)
        self._temporary = name
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def status(self) -> os.stat_result | None:
        """The status of what exists at the final path now; None if nothing does."""
        try:
            return os.stat(self._inside(self.name), follow_symlinks=False, **self._folder)
        except FileNotFoundError:
            return None

    def finish(self) -> None:
        """Rename the temporary file to its final name, then sync the folder where the file system can."""
        if self._temporary is None:
            return
        folders = {f"{end}_{key}": value for end in ("src", "dst") for key, value in self._folder.items()}
        os.replace(self._inside(self._temporary), self._inside(self.name), **folders)
        self._temporary = None
        for descriptor in self._folder.values():
            try:
                os.fsync(descriptor)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # the file system cannot sync folders
                    raise

    def close(self) -> None:
        """Remove the temporary file unless it was renamed, and close the folder."""
        try:
            if self._temporary is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._inside(self._temporary), **self._folder)
        finally:
            for descriptor in self._folder.values():
                os.close(descriptor)


@contextlib.contextmanager
def _unfinished(path: Path, content: bytes) -> Iterator[_Unfinished]:
    """A temporary file with this content, for the final path `path`; its folder is created if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _Unfinished(path)
    try:
        unfinished.fill(content)
        yield unfinished
    finally:
        unfinished.close()


def _require_regular(path: Path, status: os.stat_result | None) -> None:
    """Raise if something other than a regular file exists at the path."""
    if status is None or stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISLNK(status.st_mode):
        raise InvalidValueError(
            f"{path} is a symbolic link, and cannot be written: outputs do not go through links; name the file itself"
        )
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
    raise InvalidValueError(f"{path} is {kind}, and cannot be written: choose the place of a file")


def _resolved(path: Path) -> str:
    """The path with the links of its folders resolved; its last component is kept as it is."""
    return os.path.normcase(os.path.join(os.path.realpath(path.parent), path.name))


def _called(read: Path, path: Path) -> str:
    return "the file" if str(read) == str(path) else f"the file {read}"
