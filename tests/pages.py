"""The fenced blocks of a Markdown page, and how each kind of them is run.

- python: in order, in one namespace per page; what is printed is kept.
- text: must be what the block before it printed, numbers to two per cent.
- sh, or no name: every line. `vertex …` is run, with the exit code 0 or the one that `<!-- exit: N -->` says; of
  `make …`, `pip …` and `python FILE …` it is looked up that the target, the extra or the file is there.
- under `<!-- file: NAME -->` the block is written to that file of the folder; under `<!-- not run: why -->` it is left
  out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import re
import shlex
import textwrap
import tomllib
from pathlib import Path

import pytest

from tests.tiny_files import vertex

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^( *)```+(\w*)[^\n]*\n(.*?)^\1```+ *$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!-- *(file|not run|exit): *(.*?) *-->\s*\Z")
NUMBER = re.compile(r"[-−+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, what is in it, its first line's number, and what the comment above says."""

    kind: str
    text: str
    line: int
    order: str = ""
    value: str = ""


def blocks(page: str) -> list[Block]:
    """Every fenced block of a page."""
    found = []
    for match in FENCE.finditer(page):
        said = COMMENT.search(page[: match.start()])
        order, value = said.groups() if said else ("", "")
        line = page[: match.start()].count("\n") + 2
        found.append(Block(match[2], textwrap.dedent(match[3]), line, order, value))
    fences = len(re.findall(r"^ *```", page, re.MULTILINE))
    assert fences == 2 * len(found), f"{fences} fences, but {len(found)} blocks: one is not closed as it was opened"
    return found


def run_page(path: Path, folder: Path) -> int:
    """Run every block of a page in a folder; how many were left out."""
    names: dict[str, object] = {"__name__": "__page__"}
    printed, left_out = "", 0
    with contextlib.chdir(folder):
        for block in blocks(path.read_text()):
            where = f"{path.name}:{block.line}"
            if block.order == "not run":
                assert block.value, f"{where}: the reason is missing"
                left_out += 1
            elif block.order == "file":
                Path(block.value).write_text(block.text)
            elif block.kind == "python":
                printed = _python(block, str(path), names)
            elif block.kind == "text":
                same_text(block.text, printed, where)
            elif block.kind in ("", "sh"):
                printed = "".join(_shell(line, where, block) for line in commands(block.text))
            else:
                pytest.fail(f"{where}: nobody knows how to run {block.kind!r}")
    return left_out


def _python(block: Block, path: str, names: dict[str, object]) -> str:
    """Run it with the page's line numbers; what it printed."""
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, path, "exec")
    with contextlib.redirect_stdout(out):
        exec(code, names)  # noqa: S102
    return out.getvalue()


def same_text(expected: str, printed: str, where: str) -> None:
    """The same words, and the same numbers to two per cent."""
    words = [" ".join(NUMBER.sub("#", text).split()) for text in (expected, printed)]
    numbers = [[float(x.replace("−", "-")) for x in NUMBER.findall(text)] for text in (expected, printed)]
    close = all(math.isclose(a, b, rel_tol=0.02, abs_tol=0.001) for a, b in zip(*numbers, strict=False))
    assert words[0] == words[1] and close, f"{where} says\n{expected}\nbut it is\n{printed}"  # noqa: PT018


def commands(text: str) -> list[str]:
    """The lines of a shell block, continued ones joined, without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines) if line]


def _shell(line: str, where: str, block: Block) -> str:
    program, *arguments = shlex.split(line)
    if program == "vertex":
        done = vertex(*arguments)
        wanted = int(block.value) if block.order == "exit" else 0
        assert done.exit_code == wanted, f"{where}: {line}: {done.exit_code}\n{done.output}\n{done.exception!r}"
        return str(done.stdout)
    if program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"{where}: {line}"
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = {x for name in re.findall(r"\[(.*?)\]", line) for x in name.split(",")}
        assert extras <= set(project["optional-dependencies"]), f"{where}: {line}"
    elif program == "python":
        assert (ROOT / arguments[0]).is_file(), f"{where}: {line}"
    else:
        pytest.fail(f"{where}: nobody knows how to run {line!r}")
    return ""
