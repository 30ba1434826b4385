"""What the pages say is so: every block of them runs, every link leads somewhere, and they build without a warning."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.pages import ROOT, blocks, run_page, same_text
from tests.slowly import few
from tests.tiny_files import write_files
from vertex_softmax.graph.from_torch.importer import TRANSLATIONS
from vertex_softmax.ops import OPS

PAGES = sorted((ROOT / "docs").glob("*.md"))
MOST_LEFT_OUT = 3
"""how many blocks of all pages may stand there without being run"""
TEXTS = (*PAGES, ROOT / "README.md", ROOT / "examples" / "README.md")
NAMING = (*TEXTS, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "lab" / "benchmarks").rglob("README.md")))
pytestmark = pytest.mark.usefixtures("exported_once")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """A page may register an op; threads and seeds are the page's own."""
    ops, translations, threads = dict(OPS), dict(TRANSLATIONS), torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    for registry, before in ((OPS, ops), (TRANSLATIONS, translations)):
        registry.clear()
        registry.update(before)  # type: ignore[arg-type]


def script(name: str) -> ModuleType:
    """A script of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LONG = ("your-model", "runs", "sets")
"""the pages whose blocks take longest together; `make test-all` runs them too"""


@pytest.mark.parametrize("page", few(PAGES, lambda page: page.stem not in LONG), ids=[page.stem for page in PAGES])
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch.onnx.export's own
def test_every_block_runs(page: Path, tmp_path: Path) -> None:
    run_page(page, write_files(tmp_path))


def test_few_blocks_are_left_out() -> None:
    left = [f"{page.name}:{b.line}" for page in TEXTS for b in blocks(page.read_text()) if b.order == "not run"]
    assert len(left) <= MOST_LEFT_OUT, left


@pytest.mark.parametrize("page", NAMING, ids=[page.relative_to(ROOT).as_posix() for page in NAMING])
def test_what_is_linked_or_named_is_there(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
        assert not target.startswith("http"), f"{target}: the pages need no network"
        assert (page.parent / target).exists(), target
    for name in re.findall(r"`(?:python )?((?:src|lab|docs|tests|examples|results|competition)/[\w./-]*)", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)+(?:\.py)?)`", text):  # a file or a folder, from one of these on
        places = [ROOT / name, ROOT / "src" / "vertex_softmax" / name, ROOT / "lab" / "vertex_lab" / name]
        assert any(p.exists() or p.with_suffix(".py").exists() for p in places), name
    for module in re.findall(r"`(?:python -m )?(vertex_lab[\w.]*)", text):
        place = ROOT / "lab" / module.replace(".", "/")
        assert place.exists() or place.with_suffix(".py").exists(), module
    for module in re.findall(r"`vertex_softmax\.([\w.]+)`", text):
        place = ROOT / "src" / "vertex_softmax" / module.replace(".", "/")
        known = [
            place.with_suffix(".py"),
            place,
            place.parent.with_suffix(".py"),
            place.parent.parent.with_suffix(".py"),
        ]
        assert any(p.exists() for p in known), module


def test_every_picture_is_shown_and_can_be_made() -> None:
    module = script("pictures")
    kept = {path.stem for path in (ROOT / "docs").glob("*.svg")}
    shown = set(re.findall(r"\]\((?:docs/)?(\w+)\.svg\)", "".join(page.read_text() for page in TEXTS)))
    assert kept == shown == set(module.PICTURES)
    for name in kept - {"rates"}:  # which trains a model
        assert b"<svg" in module.PICTURES[name]()
        assert (ROOT / "docs" / f"{name}.svg").stat().st_size < 200_000


@pytest.mark.slow  # the programs that make them take half a minute
def test_the_pages_build_without_a_warning_and_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    made = {path.stem for path in tmp_path.glob("*.html")}
    assert {page.stem for page in PAGES} <= made
    for path in (*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")):
        loaded = re.findall(r"""(?:\bsrc=|<link[^>]*\bhref=|url\()["']?(https?:)?//""", path.read_text())
        assert not loaded, path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("(*leading, *shape) → (batch, *shape)", r"(\*leading, \*shape) → (batch, \*shape)"),
        ("∂/∂c = p*, ∂/∂s_j = p*_j", r"∂/∂c = p\*, ∂/∂s_j = p\*_j"),
        ("a *threshold* vertex, **certainly**", "a *threshold* vertex, **certainly**"),
        ("`*x` and *x", r"`*x` and \*x"),
        ("A line.\n\n    R(y) = a * b", "A line.\n\n    R(y) = a * b"),
        (">>> 2 * 3\n6\n\nThen.", "```pycon\n>>> 2 * 3\n6\n```\n\nThen."),
        ("First.\n\n>>> 1\n1", "First.\n\n```pycon\n>>> 1\n1\n```"),
    ],
)
def test_docstrings_as_markdown(text: str, shown: str) -> None:
    assert script("docstrings").readable(text) == shown


def test_a_wrong_text_is_noticed() -> None:
    same_text("bound 0.5001", "bound   0.5\n", "here")
    for wrong in ("bound 0.4", "bounds 0.5", "bound", "bound 0.5 0.5"):
        with pytest.raises(AssertionError, match="here says"):
            same_text("bound 0.5", wrong, "here")


def test_a_wrong_block_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for text, error in (
        ("```python\n1 / 0\n```", ZeroDivisionError),
        ("```python\nprint(1)\n```\n```text\n2\n```", AssertionError),
        ("```sh\nvertex check nothing.vertex model.onnx\n```", AssertionError),
        ("```sh\nmake nothing\n```", AssertionError),
        ("```sh\npip install '.[nothing]'\n```", AssertionError),
        ("```sh\nrm -rf x\n```", pytest.fail.Exception),
        ("```cobol\n```", pytest.fail.Exception),
        ("```python\n1 / 0\n", AssertionError),
    ):
        page.write_text(text)
        with pytest.raises(error):
            run_page(page, tmp_path)
    page.write_text("<!-- exit: 2 -->\n```sh\nvertex check nothing.vertex \\\n  model.onnx  # a comment\n```")
    run_page(page, tmp_path)
    page.write_text("<!-- not run: it needs a cluster -->\n```sh\nray up\n```\n<!-- file: a.txt -->\n```\nhello\n```")
    assert run_page(page, tmp_path) == 1
    assert (tmp_path / "a.txt").read_text() == "hello\n"
