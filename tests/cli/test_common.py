"""What every command shares: -q, -v, --debug, one line per error, colour only on terminals, and a reader that goes."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from tests import forks
from vertex_softmax.cli import common
from vertex_softmax.cli import main as cli
from vertex_softmax.cli.common import complain, detail, progress_bar, reporting, say, watched
from vertex_softmax.foundation.errors import InvalidValueError, MissingDependencyError

VERTEX = Path(sys.executable).with_name("vertex")
RAISED: dict[str, BaseException] = {
    "value": InvalidValueError("c[0] is NaN; remove [it]"),
    "missing": MissingDependencyError("flint is missing: pip install 'vertex-softmax[proof]'"),
    "file": FileNotFoundError(errno.ENOENT, "No such file or directory", "model.onnx"),
    "memory": MemoryError(),
    "torch": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    "interrupt": KeyboardInterrupt(),
    "bug": TypeError("unsupported operand"),
    "silent bug": ZeroDivisionError(),
    "exit": typer.Exit(10),
}
app = typer.Typer(pretty_exceptions_enable=False)
app.callback()(cli.options)


@app.command()
@reporting
def talk(name: Annotated[str, typer.Argument()] = "") -> None:
    """Say something at every level, and fail if asked."""
    typer.echo("result")
    say("remark [red]/a/b[/red]")
    detail("detail")
    with progress_bar() as progress:
        progress("work", 1, 2)
    if watched():
        say("watched")
    if name:
        complain("complaint")
        raise RAISED[name]


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["talk", *words] if words[:1] != ("BEFORE",) else [*words[1:], "talk"])


def test_results_and_remarks() -> None:
    found = run()
    assert found.stdout == "result\n"
    assert found.stderr == "remark [red]/a/b[/red]\n"


@pytest.mark.parametrize("words", [("-q",), ("--quiet",), ("BEFORE", "-q"), ("BEFORE", "--quiet")])
def test_quiet(words: tuple[str, ...]) -> None:
    found = run(*words)
    assert found.stdout == "result\n"
    assert found.stderr == ""
    assert run("-q", "value").stderr == "complaint\nerror: c[0] is NaN; remove [it]\n"


@pytest.mark.parametrize("words", [("-v",), ("--verbose",), ("BEFORE", "-v")])
def test_verbose(words: tuple[str, ...]) -> None:
    found = run(*words)
    assert found.stdout == "result\n"
    assert re.search(r"vertex \S+, Python \S+, torch \S+\n", found.stderr)
    assert all(word in found.stderr for word in ("remark", "detail\n", "work\n", "watched\n", "ended after"))


@pytest.mark.parametrize("words", [("-q", "-v"), ("-qv",), ("-vv",), ("-q", "--quiet"), ("BEFORE", "-v", "-q")])
def test_what_contradicts_itself_is_refused(words: tuple[str, ...]) -> None:
    found = run(*words)
    assert found.exit_code == 2
    assert found.stdout == ""
    assert "give one of them" in found.stderr


def test_what_contradicts_what_was_said_before_the_command() -> None:
    found = CliRunner().invoke(app, ["-q", "talk", "-v"])
    assert found.exit_code == 2
    assert "contradict each other" in found.stderr


def test_the_next_command_does_not_inherit() -> None:
    run("-q")
    assert "remark" in run().stderr


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("value", 2, "error: c[0] is NaN; remove [it]"),
        ("missing", 2, "error: flint is missing: pip install 'vertex-softmax[proof]'"),
        ("file", 2, "error: No such file or directory: model.onnx"),
        ("memory", 2, "error: there is not enough memory: use a smaller problem, or a machine with more memory"),
        ("torch", 2, "error: there is not enough memory: use a smaller problem, or a machine with more memory"),
        ("cuda", 2, "error: there is not enough memory: use a smaller problem, or a machine with more memory"),
        ("interrupt", 130, "interrupted"),
        ("bug", 1, "internal error: TypeError: unsupported operand; run it again with --debug"),
        ("silent bug", 1, "internal error: ZeroDivisionError; run it again with --debug"),
        ("exit", 10, "complaint"),
    ],
)
def test_an_error_is_one_line(name: str, code: int, line: str) -> None:
    found = run(name)
    assert found.exit_code == code
    assert found.stderr.splitlines()[-1].startswith(line)
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("name", ["value", "memory", "bug"])
def test_debug_lets_the_error_through(name: str) -> None:
    assert run(name, "--debug").exception is RAISED[name]
    assert CliRunner().invoke(app, ["--debug", "talk", name]).exception is RAISED[name]


def test_debug_of_the_real_command() -> None:
    found = subprocess.run([VERTEX, "--debug", "reproduce", "nonsense"], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stdout == ""
    assert "Traceback" in found.stderr
    assert "InvalidValueError: there is no experiment 'nonsense'" in found.stderr


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = CliRunner().invoke(cli.app, ["reproduce", "slack", "--out", str(tmp_path / "file" / "out")])
    assert found.exit_code == 2
    assert re.fullmatch(r"error: .*file.*\n", found.stderr)


def nobody_reads(*words: str) -> None:
    """The command, whose stdout is a pipe that nobody reads any more."""
    gone, stdout = os.pipe()
    os.close(gone)
    os.dup2(stdout, 1)
    forks.vertex(*words)


def test_a_reader_that_is_gone_ends_it_quietly(tmp_path: Path) -> None:
    process = forks.Forked(tmp_path, nobody_reads, "data", "list")
    _, said = process.communicate()
    assert process.returncode == common.PIPE_CLOSED
    assert "rror" not in said


def test_a_reader_that_goes_ends_it_quietly(tmp_path: Path) -> None:
    """From its start to its end."""
    words = ["data", "fetch", "digits", "--json"]
    process = subprocess.Popen(
        [VERTEX, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate()
    assert process.returncode == common.PIPE_CLOSED
    assert "rror" not in said


def on_terminal(words: list[str], **more: str) -> str:
    """What a terminal would get of both streams."""
    plain = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"}}
    main, other = pty.openpty()
    with subprocess.Popen([VERTEX, *words], stdout=other, stderr=other, env={**plain, **more}):
        os.close(other)
        parts = []
        while part := _read(main):
            parts.append(part)
    os.close(main)
    return b"".join(parts).decode()


def _read(place: int) -> bytes:
    try:
        return os.read(place, 4096)
    except OSError:  # the other end is closed
        return b""


COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")


@pytest.mark.parametrize("words", [["--help"], ["reproduce", "nonsense"]])
def test_colour_is_for_terminals(words: list[str]) -> None:
    assert COLOUR.search(on_terminal(words, TERM="xterm-256color"))
    assert not COLOUR.search(on_terminal(words, TERM="xterm-256color", NO_COLOR="1"))
    assert "\x1b" not in on_terminal(words, TERM="dumb")
    piped = subprocess.run([VERTEX, *words], capture_output=True, text=True, check=False)
    assert "\x1b" not in piped.stdout + piped.stderr


def test_json_is_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command that gives a result has the option; --json of verify is a place, and - is stdout."""
    monkeypatch.chdir(tmp_path)
    for command in [["data", "list"], ["data", "check"], ["data", "fetch", "digits"], ["reproduce", "slack"]]:
        json.loads(CliRunner().invoke(cli.app, [*command, "--json"]).stdout)
    for command in ("verify", "check", "sweep", "demo", "reproduce", "certify", "radius"):
        assert "--json" in CliRunner().invoke(cli.app, [command, "--help"]).stdout
    found = CliRunner().invoke(cli.app, ["verify", "no.onnx", "no.vnnlib", "--json", "-"])
    assert found.exit_code == 2
    assert json.loads(found.stdout)["status"] == "error"


def test_a_name_in_a_file_tells_the_terminal_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    complain("node \x1b]0;title\x07\x1b[2J\x9b1m of the model\nsecond line")
    said = capsys.readouterr().err
    assert "node \\x1b]0;title\\x07\\x1b[2J\\x9b1m of the model\nsecond line" in said
