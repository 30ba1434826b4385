"""What the journal promised survives kills, full disks and damage; nothing else is taken for a trial."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import files_up_to
from vertex_softmax.foundation.errors import InternalError, InvalidValueError
from vertex_softmax.runs import journal as journals
from vertex_softmax.runs.journal import Journal, key_of

ROUNDS = 24


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "journal.jsonl"


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write(path: Path, *trials: dict[str, object], source: str = "s") -> None:
    with Journal(path, source) as journal:
        journal.add(trials)


def known(path: Path, source: str = "s") -> dict[str, object]:
    with Journal(path, source) as journal:
        return dict(journal.known)


def test_killed_writers_lose_nothing_they_promised(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_writer.py")
    command = [sys.executable, str(script), str(tmp_path), str(ROUNDS)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(found) == ROUNDS
    for after in found:
        assert after["locked"], "a second process could open the journal"
        assert after["lost"] == []
        assert after["twice"] == []
        assert after["broken"] == []
        assert after["cut at a line's end"]
        assert 0 <= after["beyond"] <= 3, "more than the last add was there without a promise"


def test_every_cut_of_the_last_line_is_repaired(path: Path) -> None:
    write(path, {"key": "a", "found": 1}, {"key": "b", "found": "Δ"})
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert set(known(path)) == {"a"}, whole[:end]
        assert path.read_bytes() == whole[:first]
    path.write_bytes(whole[:first] + b"\0" * 100)  # what a crashed machine may leave
    write(path, {"key": "c"})
    assert [line["key"] for line in lines_of(path)] == ["a", "c"]


@pytest.mark.parametrize("damage", [b"nonsense\n", b"\n", b"[1, 2]\n", b"7\n", b'{"key": "a"}\n', b'{"source": 1}\n'])
def test_a_damaged_line_is_an_error_that_names_it_and_changes_nothing(path: Path, damage: bytes) -> None:
    write(path, {"key": "a"}, {"key": "b"})
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + damage + lines[1] + b'{"key": "torn')
    before = path.read_bytes()
    message = r"journal\.jsonl, line 2 is not a trial .*remove that line"
    with pytest.raises(InvalidValueError, match=message) as held:
        known(path)
    with pytest.raises(InvalidValueError, match=message):  # the failed opening holds no lock
        known(path)
    assert held.traceback
    assert path.read_bytes() == before
    path.write_bytes(lines[0] + lines[1])
    assert set(known(path)) == {"a", "b"}


def test_a_later_line_takes_the_place_of_an_earlier_one(path: Path) -> None:
    write(path, {"key": "a", "found": 1}, {"key": "b", "found": 2})
    with Journal(path, "s") as journal:
        journal.add([{"key": "a", "found": 3}])
        assert journal.known["a"]["found"] == 3
    assert {key: trial["found"] for key, trial in known(path).items()} == {"a": 3, "b": 2}
    assert [line["key"] for line in lines_of(path)] == ["a", "b", "a"]


def test_answers_of_other_sources_are_kept_and_not_used(path: Path) -> None:
    write(path, {"key": "a", "found": 1}, source="old")
    before = path.read_bytes()
    assert known(path, "new") == {}
    write(path, {"key": "a", "found": 2}, source="new")
    assert path.read_bytes().startswith(before)
    assert known(path, "new")["a"]["found"] == 2
    assert known(path, "old")["a"]["found"] == 1
    with Journal(path, "new") as journal:
        journal.add([{"key": "b", "source": "old"}])  # a trial cannot say that it is of another source
    assert known(path, "new").keys() == {"a", "b"}


def test_the_first_line_of_other_sources_is_known(path: Path) -> None:
    for key, source in (("first", "s"), ("second", "other"), ("third", "another")):
        write(path, {"key": key}, source=source)
    with Journal(path, "s") as journal:
        assert list(journal.known) == ["first"]
        assert journal.foreign == {"key": "second", "source": "other"}
    with Journal(path, "other") as journal:
        assert journal.foreign is not None
        assert journal.foreign["key"] == "first"


def test_what_is_read_is_what_was_added(path: Path) -> None:
    trial = {"key": "Δ ε | 1", "found": [0.1, 1e-320, -0.0, 5e300, None, True, "\n\r\u2028\x85"], "nested": {"a": [1]}}
    with Journal(path, "s") as journal:
        journal.add([trial])
        first = dict(journal.known)
    assert known(path) == first == {trial["key"]: {**trial, "source": "s"}}
    assert path.read_bytes().count(b"\n") == 1


def test_once_computes_once_and_keeps_nothing_of_a_failure(path: Path) -> None:
    calls = []

    def compute(*numbers: int) -> int:
        calls.append(numbers)
        if sum(numbers) < 0:
            raise ZeroDivisionError
        return sum(numbers)

    for _ in range(2):
        with Journal(path, "s") as journal:
            assert journal.once("three", compute, 1, 2) == 3
            assert journal.once("three", compute, 5, 6) == 3
            with pytest.raises(ZeroDivisionError):
                journal.once("none", compute, -1)
            assert "none" not in journal.known
    assert calls == [(1, 2), (-1,), (-1,)]
    assert len(lines_of(path)) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_what_is_not_plain_json_is_our_own_error_and_not_written(path: Path, value: object) -> None:
    write(path, {"key": "a"})
    before = path.read_bytes()
    with Journal(path, "s") as journal:
        with pytest.raises(InternalError, match="a trial of c, b is not plain JSON"):
            journal.add([{"key": "c"}, {"key": "b", "worst": value}])
        assert set(journal.known) == {"a"}
        assert path.read_bytes() == before
        journal.add([{"key": "d"}])
    assert set(known(path)) == {"a", "d"}


def test_one_at_a_time_and_the_second_says_so(path: Path) -> None:
    with Journal(path, "s") as first:
        with pytest.raises(InvalidValueError, match=r"another process is writing .*journal\.jsonl; wait for it, or"):
            known(path)
        first.add([{"key": "a"}])  # the refused one disturbed nothing
    assert set(known(path)) == {"a"}
    with pytest.raises(ZeroDivisionError), Journal(path, "s"):
        raise ZeroDivisionError
    assert set(known(path)) == {"a"}  # an error in between gives the lock back


def test_folders_that_cannot_be_written_are_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken.jsonl").mkdir()
    remedy = "choose another --out"
    with pytest.raises(InvalidValueError, match="is a folder, and cannot be written"):
        known(tmp_path / "taken.jsonl")
    with pytest.raises(InvalidValueError, match=rf"cannot be written \(.+\); {remedy}"):
        known(tmp_path / "file" / "journal.jsonl")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # root may write everywhere

    for owner, method in ((os, "open"), (Path, "mkdir")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, refuse)
            with pytest.raises(InvalidValueError, match=rf"cannot be written \(Permission denied\); {remedy}"):
                known(tmp_path / "new" / "journal.jsonl")


@pytest.mark.parametrize("length", [200, 20_000, 3_000_000])
@pytest.mark.parametrize("room", [0, 60, 150])
def test_a_full_disk_is_a_clear_error_and_what_was_written_before_is_kept(path: Path, length: int, room: int) -> None:
    message = r"journal\.jsonl: File too large; what was written before is kept; the same command goes on from there"
    big = {"key": "big", "text": "x" * length}
    write(path, {"key": "a"})
    with files_up_to(path.stat().st_size + room), pytest.raises(InvalidValueError, match=message):
        write(path, big)  # closing the file, too, meets the full disk
    assert set(known(path)) == {"a"}
    write(path, big)
    assert set(known(path)) == {"a", "big"}


def test_a_disk_that_fails_to_sync_keeps_the_trial_unknown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Journal(path, "s") as journal:
        monkeypatch.setattr(journals.os, "fsync", fail)
        with pytest.raises(InvalidValueError, match="No space left on device; what was written before is kept"):
            journal.add([{"key": "a"}])
        assert not journal.known


def test_it_is_synced_before_it_is_known(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        sync(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    with Journal(path, "s") as journal:
        monkeypatch.setattr(journals.os, "fsync", watched)
        for number in range(3):
            journal.add([{"key": str(number)}])
            assert len(synced) == number + 1
            assert synced[-1] == path.stat().st_size


def test_folders_of_a_new_journal_are_synced_before_anything_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced, sync = tmp_path / "new" / "deep" / "journal.jsonl", [], os.fsync

    def watched(descriptor: int) -> None:
        sync(descriptor)
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(journals.os, "fsync", watched)
    folders = [path.parent, path.parent.parent, tmp_path]
    with Journal(path, "s") as journal:
        assert synced == folders
        journal.add([{"key": "a"}])
    assert synced == [*folders, path]
    with Journal(path, "s"):
        assert synced == [*folders, path]  # it was promised before, and is there
    path.write_bytes(b"")
    with Journal(path, "s"):  # made by a process that was killed before it could sync
        assert synced == [*folders, path, path.parent]

    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(journals.os, "fsync", fail)
    with pytest.raises(InvalidValueError, match=r"cannot be written \(No space left on device\)"):
        known(tmp_path / "another" / "journal.jsonl")
    monkeypatch.setattr(journals.os, "fsync", sync)
    write(tmp_path / "another" / "journal.jsonl", {"key": "a"})  # the failed opening holds no lock


def test_what_stays_in_memory_is_what_is_asked_for(path: Path) -> None:
    for _ in range(2):
        with Journal(path, "s", lambda trial: {"found": trial["found"]}) as journal:
            journal.add([{"key": "a", "found": 1, "long": "x" * 1000}])
            assert journal.known == {"a": {"found": 1}}
    assert known(path)["a"]["long"] == "x" * 1000


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"key": "a", "source": "s", "found": NaN}',
        b'{"key": "a", "source": "s", "found": 1e999}',
        b'{"key": "a", "source": "s", "found": [-1e400]}',
        b'{"key": ["a"], "source": "s"}',
        b'{"key": 7, "source": "s"}',
        b'{"key": "a", "source": "s", "found": ' + b"9" * 9999 + b"}",
    ],
    ids=["nested", "NaN", "infinite", "infinite inside", "list as a key", "number as a key", "digits"],
)
def test_hostile_lines_are_refused(path: Path, line: bytes) -> None:
    write(path, {"key": "first"})
    with path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(InvalidValueError, match=r"line 2 is not a trial .*remove that line"):
        known(path)


def test_a_line_has_a_length(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, {"key": "first", "found": "x" * 100})
    monkeypatch.setattr(journals, "MOST_LINE", 50)
    with pytest.raises(InvalidValueError, match="line 1 is not a trial"):
        known(path)
    monkeypatch.setattr(journals, "MOST_BYTES", 50)
    with pytest.raises(InvalidValueError, match="has more than 50 bytes"):
        known(path)


@pytest.mark.parametrize(
    "content",
    [
        b"a model without an end of line",
        b"\x08\x07 onnx",
        b"[1, 2",
        b"PK",
        b"\x00\x00x",
        b'{"key": "a", "source": "s"}\nno',
    ],
)
def test_a_file_that_is_no_journal_is_not_changed(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(InvalidValueError, match=r"line \d is not a trial"):
        known(path)
    assert path.read_bytes() == content


def test_what_a_crash_left_is_cut_off(path: Path) -> None:
    write(path, {"key": "a"})
    whole = path.read_bytes()
    for rest in (b"{", b'{"', b'{"key": "b"', b"\0" * 4096):
        path.write_bytes(whole + rest)
        assert known(path).keys() == {"a"}
        assert path.read_bytes() == whole


@dataclasses.dataclass(frozen=True)
class Asked:
    """Settings."""

    a: float = 1.0
    b: Asked | None = None


def test_a_key_names_everything_exactly() -> None:
    values: list[object] = [
        1,
        1.0,
        "1",
        [1],
        0.1,
        0.1 + 2**-56,
        "1, b=2",
        Asked(),
        Asked(2.0),
        Asked(1.0, Asked()),
        None,
    ]
    values += [0.0, -0.0, float("nan"), float("inf"), True]
    keys = [key_of("x"), key_of("y"), key_of("x", b=1), key_of("x", a=1, b=2), *(key_of("x", a=v) for v in values)]
    assert len(set(keys)) == len(keys)
    assert key_of("x", a=Asked()) == key_of("x", a=Asked())
    with pytest.raises(InternalError, match="a set cannot be part"):
        key_of("x", a={1})


def test_a_trial_without_what_was_found(path: Path) -> None:
    write(path, {"key": "first"})
    with Journal(path, "s") as journal, pytest.raises(InvalidValueError, match="'first' has no 'found'"):
        journal.once("first", int)


def test_what_keeps_a_trial_may_refuse_it(path: Path) -> None:
    write(path, {"key": "first"})
    with pytest.raises(InvalidValueError, match="line 1 is not a trial"), Journal(path, "s", lambda trial: trial["no"]):
        pass
