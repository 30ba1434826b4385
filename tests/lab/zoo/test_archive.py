"""Tar archives: only wanted regular files are read, nothing is ever written, and no trick in a header matters."""

from __future__ import annotations

import tarfile
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.zoo.data_files import tarred
from vertex_lab.zoo.archive import members
from vertex_softmax.foundation.errors import InvalidValueError, VertexError

A, B = b"a" * 700, b"b" * 512
WANTED = {"inside/a": 700, "inside/b": 512}
ROOM = 1 << 20


def read(archive: bytes, limit: int = ROOM) -> dict[str, bytes]:
    return members(BytesIO(archive), WANTED, limit, "here")


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """A header with a right checksum and otherwise what it is given."""
    found = bytearray(512)
    found[: len(name)] = name
    found[124 : 124 + len(size)] = size
    found[156:157] = kind
    found[148:156] = b"%06o\0 " % (sum(found) + 8 * 32)
    return bytes(found)


@pytest.fixture(autouse=True)
def _nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    yield
    assert [path.name for path in tmp_path.rglob("*")] == ["run"]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_wanted_files_are_read_and_others_passed_over(form: int) -> None:
    long = "x" * 90 + "/" + "y" * (90 if form == tarfile.USTAR_FORMAT else 120)
    entries = [("readme", b"?" * 3000), ("inside/b", B), (long, b"!"), ("inside/a", A), ("inside/c", b"")]
    assert read(tarred(entries, form)) == {"inside/a": A, "inside/b": B}


def test_a_name_split_into_prefix_and_name_is_one_name() -> None:
    folder = "d" * 98
    found = members(BytesIO(tarred([(f"{folder}/name", A)])), {f"{folder}/name": 700}, ROOM, "here")
    assert found == {f"{folder}/name": A}


def test_names_that_lead_elsewhere_are_only_names() -> None:
    names = ("/inside/a", "../inside/a", "./inside/a", "inside/../inside/a", "inside//a", "INSIDE/A", "inside/a/")
    assert read(tarred([(name, b"evil") for name in names])) == {}
    assert read(tarred([(name, b"evil") for name in names] + [("inside/a", A)])) == {"inside/a": A}


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.DIRTYPE,
        tarfile.CONTTYPE,
        tarfile.GNUTYPE_SPARSE,
    ],
)
def test_a_wanted_name_that_is_no_regular_file_is_refused(kind: bytes) -> None:
    entry = (special("inside/a", kind, "/etc/passwd"), b"")
    if kind == tarfile.DIRTYPE:  # tarfile adds a slash: another name
        assert read(tarred([entry])) == {}
        return
    with pytest.raises(InvalidValueError, match="here holds inside/a as something else than a regular file"):
        read(tarred([entry]))


def test_links_and_devices_under_other_names_are_passed_over() -> None:
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
    entries = [(special("inside", kind, "/etc"), b"") for kind in kinds]
    assert read(tarred([*entries, ("inside/a", A)])) == {"inside/a": A}


def test_the_size_of_a_link_is_that_of_its_target_and_no_data_follows() -> None:
    assert read(header(b"link", b"1274\0", b"1") + tarred([("inside/a", A)])) == {"inside/a": A}


def test_a_file_that_comes_twice_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="here holds inside/a twice"):
        read(tarred([("inside/a", A), ("inside/a", A)]))


def test_a_file_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="inside/a has 701 bytes; the official file has 700"):
        read(tarred([("inside/a", A + b"a")]))


def test_an_archive_with_more_than_the_limit_is_refused_before_it_is_read() -> None:
    filler = [("filler", bytes(4096)), ("inside/a", A)]
    assert read(tarred(filler), 16_384) == {"inside/a": A}
    with pytest.raises(InvalidValueError, match="here holds more than the official archive"):
        read(tarred(filler), 4096)
    with pytest.raises(InvalidValueError, match="here holds more than the official archive"):
        read(header(b"filler", b"77777777777\0"))


@pytest.mark.parametrize("size", [b"", b"-0000000001\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"12x\0", b"9\0"])
def test_a_size_that_is_no_octal_number_is_refused(size: bytes) -> None:
    with pytest.raises(InvalidValueError, match="here is damaged: a member without a size"):
        read(header(b"inside/a", size))


def test_a_chain_of_extension_headers_is_passed_over() -> None:
    kinds = (b"L", b"K", b"x", b"g")
    chain = b"".join(header(b"long", b"10\0", kinds[i % 4]) + b"8 path=x\n".ljust(512, b"\0") for i in range(900))
    assert read(chain + tarred([("inside/a", A)]), 4 * ROOM) == {"inside/a": A}


def test_an_archive_cut_off_or_continued_is_refused() -> None:
    archive = tarred([("inside/a", A), ("other", B)])
    end = 512 + 1024 + 512 + 512 + 512  # two headers, 700 and 512 bytes in blocks, one block of zeros
    for length in range(0, end, 37):
        with pytest.raises(InvalidValueError, match=r"here is (cut off|not a tar)"):
            read(archive[:length])
    assert read(archive[:end]) == {"inside/a": A}
    with pytest.raises(InvalidValueError, match="here goes on after the end of the archive"):
        read(archive + b"x")
    with pytest.raises(InvalidValueError, match="here goes on after the end of the archive"):
        read(archive + bytes(ROOM))


def test_something_else_is_not_a_tar_archive() -> None:
    with pytest.raises(InvalidValueError, match="here is not a tar archive"):
        read(b"<html>" + b" " * 1000)


@given(
    st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=4),
    st.integers(0, 4096),
    st.binary(max_size=20),
)
def test_whatever_the_bytes_are_nothing_but_our_errors_is_raised(changes, cut: int, noise: bytes) -> None:
    archive = bytearray(tarred([("inside/b", B), ("inside/a", A)]))
    for at, value in changes:
        archive[at] = value
    for content in (bytes(archive), bytes(archive[:cut]), bytes(archive[:cut]) + noise):
        with suppress(VertexError):
            assert set(read(content)) <= set(WANTED)


@given(st.binary(max_size=100), st.binary(max_size=12), st.binary(min_size=1, max_size=1))
def test_whatever_a_header_says_nothing_but_our_errors_is_raised(name: bytes, size: bytes, kind: bytes) -> None:
    with suppress(VertexError):
        read(header(name, size, kind) + bytes(2048))
