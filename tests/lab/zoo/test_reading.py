"""Files that nobody vouches for: read whole or refused by name, and never more than was asked for."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.reading import content_of, everything, packed, unpacked

CONTENT = bytes(range(200)) * 2
PACKED = gzip.compress(CONTENT, mtime=0)


def test_plain_and_packed_files_hold_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    (tmp_path / "a.gz").write_bytes(PACKED)
    assert content_of(tmp_path / "a", len(CONTENT)) == CONTENT
    assert content_of(tmp_path / "a.gz", len(CONTENT)) == CONTENT
    for name in ("a", "a.gz"):
        with pytest.raises(InvalidValueError, match=r"a.* (has 400 bytes; at most|holds more than the) 399"):
            content_of(tmp_path / name, len(CONTENT) - 1)


def test_a_packed_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    for length in range(1, len(PACKED)):
        path.write_bytes(PACKED[:length])
        with pytest.raises(InvalidValueError, match=r"is cut off|is damaged"):
            content_of(path, len(CONTENT))
    path.write_bytes(b"")  # gzip's reading of an empty file: nothing in it
    assert content_of(path, len(CONTENT)) == b""


def test_every_changed_bit_is_refused_or_changes_nothing() -> None:
    refused = 0
    for at in range(len(PACKED)):
        for bit in range(8):
            changed = bytearray(PACKED)
            changed[at] ^= 1 << bit
            refused += 1
            with suppress(InvalidValueError), unpacked(BytesIO(changed), "here") as stream:
                assert everything(stream, len(CONTENT), "here") == CONTENT  # the time, the system
                refused -= 1
    assert refused > 8 * (len(PACKED) - 10)


@pytest.mark.parametrize("after", [b"x", PACKED[:-1], b"\0x", b"\x1f\x8b"])
def test_what_follows_the_gzip_stream_is_refused(after: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(PACKED + after)
    with pytest.raises(InvalidValueError, match=r"a\.gz is (damaged|cut off)|holds more than"):
        content_of(tmp_path / "a.gz", len(CONTENT))


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    deflate = zlib.compressobj(9, wbits=31)
    zeros = bytes(1 << 20)
    bomb = b"".join(deflate.compress(zeros) for _ in range(48)) + deflate.flush()
    assert len(bomb) < packed(1000)
    (tmp_path / "a.gz").write_bytes(bomb)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidValueError, match="holds more than the 1,000 bytes of the official file"):
            content_of(tmp_path / "a.gz", 1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_too_long_to_be_right_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.gz").open("wb") as file:
        file.truncate(1 << 40)  # a hole: takes no room
    with pytest.raises(InvalidValueError, match=r"a\.gz has 1,099,511,627,776 bytes"):
        content_of(tmp_path / "a.gz", 1000)


def test_something_else_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, why in {
        "folder": "is not a regular file",
        "pipe": "is not a regular file",
        "link": "is a symbolic link",
        "dangling": "is a symbolic link",
        "loop": "is a symbolic link",
        "nothing": "cannot be read",
        "file/x": "cannot be read",
    }.items():
        with pytest.raises(InvalidValueError, match=f"{name} .*{why}|{name} {why}"):
            content_of(tmp_path / name, 1000)


def test_a_file_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:  # root may read everything, so the refusal is made up
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(InvalidValueError, match=r"a cannot be read \(Permission denied\)"):
        content_of(tmp_path / "a", 1000)


def test_a_disk_that_fails_is_an_error_with_the_file_s_name(tmp_path: Path) -> None:
    class Failing(BytesIO):
        def read(self, *_: object) -> bytes:
            raise OSError(5, "Input/output error")

    with (
        pytest.raises(InvalidValueError, match=r"here cannot be read .*Input/output error"),
        unpacked(Failing(), "here") as stream,
    ):
        everything(stream, 10, "here")
