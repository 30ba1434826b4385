"""One writer: whole or not at all, onto nothing that a run reads, onto no device or pipe, through no link."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from vertex_softmax.foundation import outputs
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.outputs import Outputs, write_whole


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(b"a model")
    return tmp_path / "model.onnx"


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.tmp"))


def _hard(model: Path) -> Path:
    os.link(model, model.parent / "hard")
    return model.parent / "hard"


def _relative(model: Path) -> Path:
    (model.parent / "inner").mkdir()
    return model.parent / "inner" / ".." / model.name


def _by_folder(model: Path) -> Path:
    (model.parent / "link").symlink_to(model.parent)
    return model.parent / "link" / model.name


SAME: dict[str, Callable[[Path], Path]] = {
    "itself": lambda model: model,
    "hard link": _hard,
    "relative": _relative,
    "linked folder": _by_folder,
}


@pytest.mark.parametrize("name", SAME)
def test_no_input_is_written(name: str, model: Path) -> None:
    place = SAME[name](model)
    run = Outputs([model])
    for attempt in (run.claim, lambda path: run.write({path: b"x"}), run.append):
        with pytest.raises(InvalidValueError, match="that this run reads"):
            attempt(place)
    assert model.read_bytes() == b"a model"
    assert left(model.parent) == []


def test_an_input_that_is_a_link_is_kept_at_both_ends(model: Path) -> None:
    link = model.parent / "link.onnx"
    link.symlink_to(model.name)
    run = Outputs([link])
    for place in (model, link):
        with pytest.raises(InvalidValueError, match=r"that this run reads|is a symbolic link"):
            run.claim(place)
    with pytest.raises(InvalidValueError, match="is a symbolic link"):
        Outputs().claim(link)


def test_an_input_that_is_named_late_and_one_that_comes_later(model: Path) -> None:
    run = Outputs()
    run.claim(model.parent / "weights.bin")
    run.claim(model)
    with pytest.raises(InvalidValueError, match="that this run reads"):
        run.reads([model])
    run = Outputs([model.parent / "late.onnx"])  # not there yet: the place is kept all the same
    with pytest.raises(InvalidValueError, match="that this run reads"):
        run.claim(model.parent / "late.onnx")


def test_two_outputs_in_one_place(tmp_path: Path) -> None:
    run = Outputs()
    run.claim(tmp_path / "a")
    (tmp_path / "folder").symlink_to(tmp_path)
    with pytest.raises(InvalidValueError, match="two outputs"):
        run.claim(tmp_path / "folder" / "a")
    run.claim(tmp_path / "b")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except OSError:
        pytest.skip("no device can be made here")


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def _link(path: Path) -> None:
    path.with_name("victim").write_bytes(b"victim")
    path.symlink_to("victim")


ODD = {"pipe": _pipe, "socket": _socket, "folder": Path.mkdir, "device": _device, "dangling": _dangling, "link": _link}


@pytest.mark.parametrize("name", ODD)
def test_only_an_absent_or_a_regular_file_gives_way(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    place = Path("odd")
    ODD[name](place)
    before = os.lstat(place)
    for attempt in (
        Outputs().claim,
        lambda path: Outputs().write({Path("first"): b"1", path: b"x"}),
        Outputs().append,
        lambda path: write_whole(path, b"x"),
    ):
        with pytest.raises(InvalidValueError, match="cannot be written"):
            attempt(place)
    after = os.lstat(place)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert sorted(os.listdir()) == (["odd", "victim"] if name == "link" else ["odd"])
    if name == "link":
        assert Path("victim").read_bytes() == b"victim"


def test_dev_null_stays_a_device() -> None:
    with pytest.raises(InvalidValueError, match="is a device, and cannot be written"):
        write_whole(Path(os.devnull), b"x")
    assert stat.S_ISCHR(os.lstat(os.devnull).st_mode)


@pytest.mark.parametrize("name", ["", ".", "..", "inner/..", "a\0b", "\ud800", "x" * 9999])
def test_what_is_no_name_of_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    for attempt in (Outputs().claim, lambda path: write_whole(path, b"x")):
        with pytest.raises((InvalidValueError, OSError), match=r"cannot be written|too long"):
            attempt(Path(name))
    assert os.listdir() == ["inner"]


def test_all_files_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")
    real, calls = os.fsync, []

    def full(number: int) -> None:
        calls.append(number)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    with monkeypatch.context() as patched:
        patched.setattr(outputs.os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            Outputs().write({tmp_path / "a": b"new", tmp_path / "b": b"new"})
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
    Outputs().write({tmp_path / "a": b"new", tmp_path / "deep" / "b": b"new"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "deep" / "b").read_bytes() == b"new"
    assert left(tmp_path) == []


def test_what_appears_while_it_is_written_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, victim = tmp_path / "out", tmp_path / "victim"
    victim.write_bytes(b"victim")
    real = outputs._Unfinished.fill

    def slow(self: outputs._Unfinished, content: bytes) -> None:
        real(self, content)
        place.symlink_to(victim)

    monkeypatch.setattr(outputs._Unfinished, "fill", slow)
    with pytest.raises(InvalidValueError, match="is a symbolic link"):
        write_whole(place, b"x")
    assert (place.is_symlink(), victim.read_bytes(), left(tmp_path)) == (True, b"victim", [])


def test_a_folder_that_is_replaced_meanwhile_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written goes to the folder that was looked at."""
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    real = outputs._Unfinished.fill

    def slow(self: outputs._Unfinished, content: bytes) -> None:
        real(self, content)
        folder.rename(tmp_path / "moved")
        folder.symlink_to(other)

    monkeypatch.setattr(outputs._Unfinished, "fill", slow)
    write_whole(folder / "out", b"x")
    assert (tmp_path / "moved" / "out").read_bytes() == b"x"
    assert list(other.iterdir()) == []


def test_names_cannot_be_foreseen_and_the_umask_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = os.open

    def noted(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        if flags & os.O_CREAT:
            seen.append((path, flags, mode))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(outputs.os, "open", noted)
    before = os.umask(0o027)
    try:
        for _ in range(2):
            write_whole(tmp_path / "out", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640
    assert len({name for name, _, _ in seen}) == 2
    assert all(flags & os.O_EXCL and flags & os.O_NOFOLLOW for _, flags, _ in seen)
    assert all(len(name) > 32 and "out" not in name for name, _, _ in seen)


def test_a_name_of_the_greatest_length(tmp_path: Path) -> None:
    assert write_whole(tmp_path / ("x" * 255), b"x").read_bytes() == b"x"


def test_a_journal_is_appended_to(tmp_path: Path) -> None:
    for _ in range(2):
        with Outputs().append(tmp_path / "deep" / "journal.jsonl") as file:
            file.write(b"line\n")
    assert (tmp_path / "deep" / "journal.jsonl").read_bytes() == b"line\nline\n"
