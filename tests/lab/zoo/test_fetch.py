"""Downloads: verified before they are written, whole or not at all, and nothing that is there is touched."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.lab.zoo.data_files import cifar_archive, cifar_files, mnist_files, registered, write
from vertex_lab.zoo.datasets import dataset
from vertex_lab.zoo.fetch import fetch
from vertex_softmax.foundation import outputs
from vertex_softmax.foundation.errors import InvalidValueError

ARCHIVE = "cifar-10-binary.tar.gz"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_files_come_over_and_load(tmp_path: Path, monkeypatch) -> None:
    files = mnist_files()
    source = registered(monkeypatch, "mnist", files)
    mirror = write(tmp_path / "mirror", files)
    seen: list[tuple[str, int, int]] = []
    written = fetch(source, tmp_path / "data", address=mirror.as_uri(), progress=lambda *step: seen.append(step))
    assert [path.name for path in written] == [f"{name}.gz" for name in files]
    assert everything_in(tmp_path / "data" / "mnist") == everything_in(mirror)
    assert {what for what, _, _ in seen} == {f"{name}.gz" for name in files}
    assert all(0 <= done <= total for _, done, total in seen)
    assert dataset("mnist", tmp_path / "data").note == ""
    assert fetch(source, tmp_path / "data", address=(tmp_path / "nowhere").as_uri()) == []


def test_only_what_is_missing_is_fetched(tmp_path: Path, monkeypatch) -> None:
    files = mnist_files()
    source = registered(monkeypatch, "mnist", files)
    mirror = write(tmp_path / "mirror", files)
    write(tmp_path / "data" / "mnist", {name: files[name] for name in files if "t10k" in name}, packed=False)
    written = fetch(source, tmp_path / "data", address=f"{mirror.as_uri()}/")
    assert [path.name for path in written] == ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]


def test_a_file_that_is_not_the_official_one_is_not_overwritten(tmp_path: Path, monkeypatch) -> None:
    source = registered(monkeypatch, "mnist", mnist_files())
    mirror = write(tmp_path / "mirror", mnist_files())
    place = write(tmp_path / "data" / "mnist", {"t10k-labels-idx1-ubyte": mnist_files(9)["t10k-labels-idx1-ubyte"]})
    before = everything_in(tmp_path / "data")
    with pytest.raises(InvalidValueError, match=rf"{place}/t10k-labels.* is not the official .*; move it away to get"):
        fetch(source, tmp_path / "data", address=mirror.as_uri())
    assert everything_in(tmp_path / "data") == before


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda raw: raw[:-5], "is cut off"),
        (lambda raw: raw + b"x", "is damaged"),
        (lambda _: b"<html>not found</html>", "is damaged or not gzip"),
        (lambda _: b"", "is not the official"),
        (lambda raw: gzip.compress(gzip.decompress(raw)[:-1] + b"\1"), "is not the official train-images"),
        (lambda _: gzip.compress(bytes(10_000_000)), "holds more than the 4,720 bytes of the official file"),
        (lambda _: bytes(200_000), "sends more than 70,303 bytes"),
    ],
)
def test_a_download_that_is_not_the_official_file_is_not_written(spoil, why: str, tmp_path: Path, monkeypatch) -> None:
    files = mnist_files()
    source = registered(monkeypatch, "mnist", files)
    mirror = write(tmp_path / "mirror", files)
    path = mirror / "train-images-idx3-ubyte.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(InvalidValueError, match=rf"^{path.as_uri()} {why}"):
        fetch(source, tmp_path / "data", address=mirror.as_uri())
    assert not (tmp_path / "data").exists()


def test_the_archive_comes_over_and_loads(tmp_path: Path, monkeypatch) -> None:
    files = cifar_files()
    source = registered(monkeypatch, "cifar10", files)
    mirror = write(tmp_path / "mirror", {ARCHIVE: cifar_archive(files)}, packed=False)
    assert fetch(source, tmp_path / "data", address=mirror.as_uri()) == [tmp_path / "data" / "cifar10" / ARCHIVE]
    assert dataset("cifar10", tmp_path / "data").note == ""
    assert fetch(source, tmp_path / "data", address=(tmp_path / "nowhere").as_uri()) == []


def test_an_archive_with_other_files_is_not_written(tmp_path: Path, monkeypatch) -> None:
    files = cifar_files()
    source = registered(monkeypatch, "cifar10", files)
    mirror = write(tmp_path / "mirror", {ARCHIVE: cifar_archive(cifar_files(9))}, packed=False)
    with pytest.raises(InvalidValueError, match=f"data_batch_1.bin in .*{ARCHIVE} is not the official data_"):
        fetch(source, tmp_path / "data", address=mirror.as_uri())
    del files["data_batch_3.bin"]
    write(mirror, {ARCHIVE: cifar_archive(files)}, packed=False)
    with pytest.raises(InvalidValueError, match=f"{ARCHIVE} has no data_batch_3.bin in it"):
        fetch(source, tmp_path / "data", address=mirror.as_uri())
    assert not (tmp_path / "data").exists()


def test_files_that_would_be_read_before_the_archive_have_to_go_first(tmp_path: Path, monkeypatch) -> None:
    files = cifar_files()
    source = registered(monkeypatch, "cifar10", files)
    mirror = write(tmp_path / "mirror", {ARCHIVE: cifar_archive(files)}, packed=False)
    for number, (found, why) in enumerate(
        [
            ({"test_batch.bin": files["test_batch.bin"]}, "data_batch_1.bin, .* missing"),
            ({"test_batch.bin": files["data_batch_1.bin"]}, "test_batch.bin not official"),
            ({"test_batch.bin": files["data_batch_1.bin"] + b"x"}, "test_batch.bin.gz holds more than"),
        ]
    ):
        place = write(tmp_path / str(number) / "cifar10", found)
        with pytest.raises(InvalidValueError, match=rf"{place} has other files of cifar10 \(.*{why}.*\); move"):
            fetch(source, tmp_path / str(number), address=mirror.as_uri())
        assert not (place / ARCHIVE).exists()


def test_other_versions_of_cifar_do_not_stand_in_the_way(tmp_path: Path, monkeypatch) -> None:
    files = cifar_files()
    source = registered(monkeypatch, "cifar10", files)
    mirror = write(tmp_path / "mirror", {ARCHIVE: cifar_archive(files)}, packed=False)
    write(tmp_path / "cifar10-jpeg", cifar_files(9))
    write(tmp_path / "cifar10", {"cifar-10-python.tar.gz": b"pickled"}, packed=False)
    fetch(source, tmp_path, address=mirror.as_uri())
    assert dataset("cifar10", tmp_path).note == ""


@pytest.mark.parametrize("address", ["data", "/data", "ftp://x/", "https:", "http://[x/", "", "file:"])
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path, monkeypatch) -> None:
    source = registered(monkeypatch, "mnist", mnist_files())
    with pytest.raises(InvalidValueError, match=r"is not (an|the) address"):
        fetch(source, tmp_path, address=address)


def test_no_network_names_the_address_and_the_place(tmp_path: Path, monkeypatch) -> None:
    source = registered(monkeypatch, "mnist", mnist_files())
    name = "train-images-idx3-ubyte.gz"
    with pytest.raises(
        InvalidValueError,
        match=rf"http://127.0.0.1:9/x/{name} cannot be read \(.*refused.*\); name a mirror with --url, "
        rf"or get {name} in another way and put it at {tmp_path}/mnist/{name}",
    ):
        fetch(source, tmp_path, address="http://127.0.0.1:9/x")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch) -> None:
    source = registered(monkeypatch, "mnist", mnist_files())
    mirror = write(tmp_path / "mirror", mnist_files())
    (tmp_path / "data").write_bytes(b"a file")
    with pytest.raises(InvalidValueError, match=rf"{tmp_path}/data/mnist/train-.* cannot be written .*--data-dir"):
        fetch(source, tmp_path / "data", address=mirror.as_uri())


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    source = registered(monkeypatch, "mnist", mnist_files())
    mirror = write(tmp_path / "mirror", mnist_files())

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(outputs.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(source, tmp_path / "data", address=mirror.as_uri())
    assert everything_in(tmp_path / "data") == {}


class Server(BaseHTTPRequestHandler):
    """Serves the folder of the mirror, badly where the path says so."""

    mirror: Path

    def do_GET(self) -> None:
        kind, name = self.path.strip("/").split("/")
        content = (self.mirror / name).read_bytes()
        if kind == "gone":
            self.send_error(404)
            return
        if kind == "moved":
            self.send_response(302)
            self.send_header("Location", f"/good/{name}")
            self.end_headers()
            return
        if kind == "tofile":
            self.send_response(302)
            self.send_header("Location", (self.mirror / name).as_uri())
            self.end_headers()
            return
        self.send_response(200)
        if kind not in {"unsized", "endless"}:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if kind == "silent":
            self.server.done.wait(10)  # type: ignore[attr-defined]
        if kind == "endless":
            try:
                while True:
                    self.wfile.write(bytes(1 << 16))
            except OSError:
                return
        self.wfile.write(content[: len(content) // 2] if kind == "half" else content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    Server.mirror = write(tmp_path / "mirror", mnist_files())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.done = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.done.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("kind", ["good", "moved", "unsized"])
def test_files_come_over_http(kind: str, served: str, tmp_path: Path, monkeypatch) -> None:
    source = registered(monkeypatch, "mnist", mnist_files())
    assert len(fetch(source, tmp_path / "data", address=f"{served}/{kind}")) == 4
    assert everything_in(tmp_path / "data" / "mnist") == everything_in(tmp_path / "mirror")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("gone", r"cannot be read \(Not Found\)"),
        ("half", "(is cut off|cannot be read)"),
        ("endless", "sends more than 70,303 bytes"),
        ("tofile", "cannot be read"),
    ],
)
def test_what_a_server_does_wrong_is_an_error(kind: str, why: str, served: str, tmp_path: Path, monkeypatch) -> None:
    source = registered(monkeypatch, "mnist", mnist_files())
    with pytest.raises(InvalidValueError, match=rf"{served}/{kind}/train-images-idx3-ubyte.gz {why}"):
        fetch(source, tmp_path / "data", address=f"{served}/{kind}", timeout=5)
    assert not (tmp_path / "data").exists()


def test_a_server_that_falls_silent_is_not_waited_for(served: str, tmp_path: Path, monkeypatch) -> None:
    source = registered(monkeypatch, "mnist", mnist_files())
    with pytest.raises(InvalidValueError, match=r"cannot be read \(timed out\); name a mirror"):
        fetch(source, tmp_path / "data", address=f"{served}/silent", timeout=0.2)
