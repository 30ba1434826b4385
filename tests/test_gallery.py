"""The notebooks of examples/gallery run, and give the outputs that are stored in them.

They are run in this process, cell by cell, without Jupyter: that is faster, and a failure has its line.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

from tests.pages import same_text
from tests.slowly import few

FOLDER = Path(__file__).parents[1] / "examples" / "gallery"
NAMES = ("image", "text", "language_model", "onnx_file", "certificate")
each = pytest.mark.parametrize("name", NAMES)


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]


def run(source: str, where: str, names: dict[str, object]) -> tuple[str, str]:
    """Run a cell: what it printed, and its last expression as HTML, "" if there is none."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    out, shown = io.StringIO(), None
    with contextlib.redirect_stdout(out):
        exec(compile(tree, where, "exec"), names)  # noqa: S102
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), where, "eval"), names)  # noqa: S307
    return out.getvalue(), "" if shown is None else shown._repr_html_()


def stored(cell: Any) -> tuple[str, str]:
    """The same two texts, as the notebook keeps them."""
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    shown = [output.data["text/html"] for output in cell.outputs if output.output_type == "execute_result"]
    assert len(shown) <= 1
    return printed, "".join(shown)


def words(html: str) -> str:
    """Without the tags, whose numbers are pixels and colours."""
    return re.sub(r"<[^>]*>", " ", html)


def test_every_notebook_of_the_folder_is_tested() -> None:
    assert {path.stem for path in FOLDER.iterdir() if path.suffix == ".ipynb"} == set(NAMES)


@each
def test_it_is_short_says_what_it_needs_and_was_run(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)  # type: ignore[no-untyped-call]
    assert 6 <= len(notebook.cells) <= 12
    assert notebook.cells[0].cell_type == notebook.cells[-1].cell_type == "markdown"
    assert "pip install" in notebook.cells[0].source
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {output.get("name", output.output_type) for cell in code for output in cell.outputs}
    assert kinds == {"stdout", "execute_result"}  # no error and no warning
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 100_000
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", "".join(texts)):
        assert (FOLDER / target).exists(), target


@pytest.mark.parametrize("name", few(NAMES, lambda name: name in ("text", "certificate")))
def test_it_gives_what_is_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    threads = torch.get_num_threads()
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        for number, cell in enumerate(read(name).cells):
            if cell.cell_type != "code":
                continue
            where = f"{name}.ipynb, cell {number}"
            printed, shown = run(cell.source, where, names)
            kept_print, kept_shown = stored(cell)
            same_text(kept_print, printed, where)
            same_text(words(kept_shown), words(shown), where)
            assert kept_shown.count("<svg") == shown.count("<svg")
    finally:
        torch.set_num_threads(threads)
