"""Writing: the one way in which Vertex puts a file where a user can see it.

Invariant: a file appears whole or not at all, also when the process is killed while it writes, and it never takes the
place of anything but an absent or a regular file. It takes the place of no file that the run reads (compared by place,
and by device and inode, so that hard links and links to it are found), and of no other output of the run. Nothing is
written through a symbolic link in the last place of a path; the folders before it may be links, and are opened once:
what is looked at, made and renamed there is inside that one folder, whatever becomes of its path meanwhile.

The temporary file has a name that nobody can foresee and is made with O_EXCL, with the permissions that the umask
leaves; it is synced before it is renamed, and removed if anything fails. Between the last look and the rename another
process with rights in the same folder can still put something there; a rename replaces that name, and follows nothing.
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
from typing import Any

from vertex_softmax.foundation.errors import InvalidValueError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
_PLACED = os.open in os.supports_dir_fd and os.stat in os.supports_dir_fd and os.rename in os.supports_dir_fd
"""Files can be named relative to an open folder; not so on Windows."""
Inode = tuple[int, int]


class Outputs:
    """What a run reads, and what it writes: `claim` a place before the work, `write` when it is done.

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
        """The run reads these files too; raises if one of them was claimed."""
        for each in inputs:
            path = Path(each)
            with contextlib.suppress(OSError, ValueError, RuntimeError):  # who reads it will say what is wrong with it
                self._inputs |= {_place(path): path, os.path.realpath(path): path}
                found = path.stat()
                self._inodes[found.st_dev, found.st_ino] = path
        for path in self._claimed.values():
            self._look(path)

    def claim(self, path: Path) -> None:
        """Raise if the run may not write here: an input, another output, no regular file, a link, no file's name."""
        self._look(path)
        place = _place(path)
        if place in self._claimed:
            raise InvalidValueError(f"{path} is the place of two outputs of this run; give each its own")
        self._claimed[place] = path

    def _look(self, path: Path) -> None:
        """As `claim`; the folder need not be there yet."""
        found = None
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise InvalidValueError(f"{path} cannot be written: {error.strerror}") from error
        except ValueError as error:  # a NUL, or half a surrogate pair
            raise InvalidValueError(f"{str(path)!r} cannot be written: no file can have this name") from error
        self._refuse(path, found)

    def _refuse(self, path: Path, found: os.stat_result | None) -> None:
        """`found`: what is there now, None if nothing is."""
        _require_ordinary(path, found)
        read = self._inputs.get(_place(path))
        if read is None and found is not None:
            read = self._inodes.get((found.st_dev, found.st_ino))
        if read is not None:
            raise InvalidValueError(f"{path} is {_called(read, path)} that this run reads: choose another place for it")

    def write(self, contents: Mapping[Path, bytes]) -> None:
        """Write all of these files, folders made where they are missing; if one cannot be written, none is."""
        for path in contents:
            self._look(path)
        with contextlib.ExitStack() as stack:
            ready = [stack.enter_context(_unfinished(path, content)) for path, content in contents.items()]
            for each in ready:
                self._refuse(each.path, each.found())
            for each in ready:
                each.put()

    def append(self, path: Path) -> io.BufferedRandom:
        """A file open for reading and for writing at its end, made if it is missing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._look(path)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
            flags |= getattr(os, name, 0)
        descriptor = os.open(path, flags, 0o666)
        try:
            self._refuse(path, os.fstat(descriptor))
            return os.fdopen(descriptor, "a+b")
        except BaseException:
            os.close(descriptor)
            raise


def write_whole(path: Path, content: bytes, outputs: Outputs | None = None) -> Path:
    """Write one file; the folder is made if it is not there. Returns the path. `outputs`: of a run that reads files."""
    (outputs or Outputs()).write({path: content})
    return path


class _Unfinished:
    """A temporary file beside its place, in a folder that is open."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self._at: dict[str, Any] = {}
        if _PLACED:
            self._at = {"dir_fd": os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}
        self._made: str | None = None

    def _inside(self, name: str) -> str:
        return name if self._at else str(self.path.parent / name)

    def fill(self, content: bytes) -> None:
        """Make the file and write all of it to the disk."""
        name = f".vertex-{secrets.token_hex(16)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        for more in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):
            flags |= getattr(os, more, 0)
        descriptor = os.open(self._inside(name), flags, 0o666, **self._at)
        self._made = name
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def found(self) -> os.stat_result | None:
        """What is at the place now."""
        try:
            return os.stat(self._inside(self.name), follow_symlinks=False, **self._at)
        except FileNotFoundError:
            return None

    def put(self) -> None:
        """Rename; afterwards the folder is synced too, where that is possible."""
        if self._made is None:
            return
        both = {f"{end}_{key}": value for end in ("src", "dst") for key, value in self._at.items()}
        os.replace(self._inside(self._made), self._inside(self.name), **both)
        self._made = None
        for descriptor in self._at.values():
            try:
                os.fsync(descriptor)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # of file systems that cannot
                    raise

    def close(self) -> None:
        """Nothing is left of what was not put."""
        try:
            if self._made is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._inside(self._made), **self._at)
        finally:
            for descriptor in self._at.values():
                os.close(descriptor)


@contextlib.contextmanager
def _unfinished(path: Path, content: bytes) -> Iterator[_Unfinished]:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = _Unfinished(path)
    try:
        found.fill(content)
        yield found
    finally:
        found.close()


def _require_ordinary(path: Path, found: os.stat_result | None) -> None:
    if found is None or stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISLNK(found.st_mode):
        raise InvalidValueError(
            f"{path} is a symbolic link, and cannot be written: outputs do not go through links; name the file itself"
        )
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
    raise InvalidValueError(f"{path} is {kind}, and cannot be written: choose the place of a file")


def _place(path: Path) -> str:
    """The path with all links of its folders resolved, and its own last name as it is."""
    return os.path.normcase(os.path.join(os.path.realpath(path.parent), path.name))


def _called(read: Path, path: Path) -> str:
    return "the file" if str(read) == str(path) else f"the file {read}"
