"""`vertex data` as its users meet it: tables, JSON, exit codes, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.lab.zoo.data_files import cifar_archive, cifar_files, mnist_files, registered, write
from vertex_softmax.cli.main import app

SHARED = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture
def vertex(monkeypatch):
    monkeypatch.delenv("VERTEX_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path):
        return CliRunner().invoke(app, ["data", *map(str, arguments)])

    return run


def row(output: str, name: str) -> list[str]:
    """The cells of the table's row with that name."""
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in output.splitlines()]
    return next(cells for cells in rows if cells[0] == name)


def test_help_lists_the_commands(vertex) -> None:
    assert all(command in vertex("--help").stdout for command in ("list", "check", "fetch"))
    for command in ("list", "check", "fetch"):
        text = vertex(command, "--help").stdout
        assert "    vertex data" in text
        assert "VERTEX_DATA" in text


def test_list_says_what_is_there_and_what_is_not(vertex, tmp_path: Path, monkeypatch) -> None:
    registered(monkeypatch, "mnist", mnist_files())
    write(tmp_path / "mnist", mnist_files())
    write(tmp_path / "cifar10-jpeg", {"data_batch_1.bin": b"\1" * 3073, "test_batch.bin": b"\2" * 6146})
    write(tmp_path / "fashion-mnist", mnist_files(3) | {"t10k-images-idx3-ubyte": b"\0"})
    result = vertex("list", "--data-dir", tmp_path)
    assert result.exit_code == 0, result.output
    assert row(result.stdout, "digits") == ["digits", "built in", "scikit-learn", "1,437", "360", "1×8×8"]
    assert row(result.stdout, "mnist") == ["mnist", "present", "mnist", "6", "5", "1×28×28"]
    assert row(result.stdout, "fashion-mnist")[:3] == ["fashion-mnist", "unusable", "fashion-mnist"]
    assert row(result.stdout, "cifar10") == ["cifar10", "not official", "cifar10-jpeg", "1", "2", "3×32×32"]
    assert row(result.stdout, "cifar10-gray")[-1] == "1×32×32"
    assert "cifar10, cifar10-gray: trained on data_batch_1.bin only; not the official files (checksum" in result.stdout
    assert "t10k-images-idx3-ubyte.gz is cut off" in result.stdout


def test_list_of_an_empty_folder_says_how_to_get_the_files(vertex, tmp_path: Path) -> None:
    result = vertex("list", "--data-dir", tmp_path / "nowhere")
    assert result.exit_code == 0
    assert row(result.stdout, "mnist") == ["mnist", "missing", "mnist", "60,000", "10,000", "1×28×28"]
    assert f"`vertex data fetch mnist --data-dir {tmp_path}/nowhere` gets the official files" in result.stdout


def test_the_folder_comes_from_the_environment_or_is_data(vertex, tmp_path: Path, monkeypatch) -> None:
    registered(monkeypatch, "mnist", mnist_files())
    write(tmp_path / "data" / "mnist", mnist_files())
    monkeypatch.chdir(tmp_path)
    assert row(vertex("list").stdout, "mnist")[1] == "present"
    monkeypatch.setenv("VERTEX_DATA", str(tmp_path / "elsewhere"))
    assert row(vertex("list").stdout, "mnist")[1] == "missing"


def test_check_passes_official_files_and_names_what_was_compared(vertex, tmp_path: Path, monkeypatch) -> None:
    source = registered(monkeypatch, "mnist", mnist_files())
    write(tmp_path / "mnist", mnist_files())
    for arguments in (["mnist"], []):
        result = vertex("check", *arguments, "--data-dir", tmp_path)
        assert result.exit_code == 0, result.output
        for file in source.files:
            path = tmp_path / "mnist" / f"{file.name}.gz"
            assert f"official: {path}: {file.size:,} bytes of content, SHA-256 {file.sha256}" in result.stdout


def test_check_fails_on_what_is_missing_unusable_or_not_official(vertex, tmp_path: Path, monkeypatch) -> None:
    assert vertex("check", "mnist", "--data-dir", tmp_path).exit_code == 1
    assert vertex("check", "--data-dir", tmp_path).exit_code == 0
    write(tmp_path / "mnist", mnist_files())
    for arguments in (["mnist"], []):
        result = vertex("check", *arguments, "--data-dir", tmp_path)
        assert result.exit_code == 1
        assert "NOT OFFICIAL: " in result.stdout
    registered(monkeypatch, "mnist", mnist_files())
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    result = vertex("check", "mnist", "--data-dir", tmp_path)
    assert result.exit_code == 1
    assert f"{path} is cut off" in result.stdout


def test_json_says_the_same(vertex, tmp_path: Path, monkeypatch) -> None:
    registered(monkeypatch, "cifar10", cifar_files())
    write(tmp_path / "cifar10", {"cifar-10-binary.tar.gz": cifar_archive(cifar_files())}, packed=False)
    listed = json.loads(vertex("list", "--json", "--data-dir", tmp_path).stdout)
    assert [entry["name"] for entry in listed] == ["digits", "mnist", "fashion-mnist", "cifar10", "cifar10-gray"]
    assert [entry["status"] for entry in listed] == ["built in", "missing", "missing", "present", "present"]
    checked = json.loads(vertex("check", "cifar10", "--json", "--data-dir", tmp_path).stdout)
    assert checked == [listed[3]]
    assert len(checked[0]["files"]) == 6
    assert all(file["official"] for file in checked[0]["files"])
    assert vertex("check", "mnist", "--json", "--data-dir", tmp_path).exit_code == 1


def test_fetch_brings_the_files_and_then_has_nothing_to_do(vertex, tmp_path: Path, monkeypatch) -> None:
    registered(monkeypatch, "cifar10", cifar_files())
    mirror = write(tmp_path / "mirror", {"cifar-10-binary.tar.gz": cifar_archive(cifar_files())}, packed=False)
    result = vertex("fetch", "cifar10-gray", "--data-dir", tmp_path / "data", "--url", mirror.as_uri())
    assert result.exit_code == 0, result.output
    assert f"written: {tmp_path}/data/cifar10/cifar-10-binary.tar.gz" in result.stdout
    assert vertex("check", "cifar10", "--data-dir", tmp_path / "data").exit_code == 0
    again = vertex("fetch", "cifar10", "--data-dir", tmp_path / "data", "--url", mirror.as_uri())
    assert again.exit_code == 0
    assert "nothing to fetch" in again.stdout
    assert "nothing to fetch" in vertex("fetch", "digits").stdout


def test_bad_usage_is_exit_code_2_without_a_traceback(vertex, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for arguments, why in (
        (["check", "imagenet"], "there is no data set 'imagenet'; choose one of digits"),
        (["fetch", "imagenet"], "there is no data set 'imagenet'"),
        (["fetch"], "Missing argument"),
        (["fetch", "mnist", "--timeout", "0"], "timeout"),
        (["fetch", "mnist", "--url", "here"], "'here' is not the address of a folder"),
        (["fetch", "mnist", "--data-dir", tmp_path, "--url", (tmp_path / "no").as_uri()], "cannot be read"),
        (["list", "--data-dir", tmp_path / "file"], "is not a folder"),
    ):
        result = vertex(*arguments)
        assert result.exit_code == 2, arguments
        assert why in result.stderr
        assert "Traceback" not in result.output


def test_names_with_brackets_are_shown_as_they_are(vertex, tmp_path: Path) -> None:
    write(tmp_path / "[bold]x" / "mnist", mnist_files())
    result = vertex("list", "--data-dir", tmp_path / "[bold]x")
    assert result.exit_code == 0, result.output
    assert "[bold]x" in result.stdout


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no data files at {SHARED}")
def test_the_shared_files_are_what_they_are_said_to_be(vertex) -> None:
    listed = json.loads(vertex("list", "--json", "--data-dir", SHARED).stdout)
    assert {entry["name"]: entry["status"] for entry in listed} == {
        "digits": "built in",
        "mnist": "present",
        "fashion-mnist": "missing",
        "cifar10": "not official",
        "cifar10-gray": "not official",
    }
