"""Imports of the product lead downwards: from a room to itself or to one below it, wherever in a file they stand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
PRODUCT = "vertex_softmax"
LABORATORY = "vertex_lab"
CHECKER = "certificate.checker"
ORDER = (
    "foundation",
    CHECKER,  # a room of its own, which stands on nothing
    "softmax_box",
    "ops",
    "graph",
    "sets",
    "bounds",
    "methods",
    "specs",
    "search",
    "certificate",
    "runs",
    "cli",
)
"""Lowest first. The package's own __init__.py and __main__.py are above all of them."""
MOST_ENTRIES = 12
PLUGS = {"cli/plugins.py", "runs/named_data.py"}
"""What may name the laboratory, in words: how to get it."""


class Import(NamedTuple):
    """A module that a file imports: one that is there, or the longest part of its name that is."""

    line: int
    module: str
    at_import: bool
    """whether it is read with the file itself: not in a function, not for a type checker"""


def name_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_of(root: Path, package: str) -> dict[str, Path]:
    return {name_of(path, root): path for path in sorted((root / package).rglob("*.py"))}


def room_of(module: str) -> str | None:
    """The room of a module of the product; None: it is above all rooms."""
    inner = module.partition(".")[2]
    if not inner or inner == "__main__":
        return None
    return CHECKER if f"{inner}.".startswith(f"{CHECKER}.") else inner.partition(".")[0]


def imports_of(module: str, modules: dict[str, Path], text: str | None = None) -> list[Import]:
    """Everything that a module imports of these modules' packages; `__version__` is anyone's."""
    path = modules[module]
    here = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    packages = {name.partition(".")[0] for name in modules}
    found = []
    for node, at_import in _nodes(ast.parse(path.read_text() if text is None else text), True):
        for name in _named(node, here):
            if name.partition(".")[0] in packages and name != f"{PRODUCT}.__version__":
                while name not in modules:
                    name = name.rpartition(".")[0]  # noqa: PLW2901
                found.append(Import(node.lineno, name, at_import))
    return found


def _nodes(tree: ast.AST, at_import: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # which has no statement in it
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, at_import
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for part, now in ((node.body, False), (node.orelse, at_import)):
                for inner in part:
                    yield from _nodes(ast.Module([inner], []), now)
        else:
            later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _nodes(node, at_import and not later)


def _named(node: ast.Import | ast.ImportFrom, here: list[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = here[: len(here) - node.level + 1] if node.level else []
    start = ".".join((*base, *([node.module] if node.module else [])))
    return [f"{start}.{alias.name}" for alias in node.names]


def back_edges(module: str, imports: list[Import]) -> list[str]:
    """What of a module's imports leads upwards, or, in the checker, anywhere out of it."""
    room = room_of(module)
    if room is None:
        return []
    found = []
    for line, name, _ in imports:
        other = room_of(name)
        below = other is not None and ORDER.index(other) <= ORDER.index(room)
        if not below or (room == CHECKER and other != CHECKER):
            found.append(f"{module}:{line} imports {name}")
    return found


def cycle(edges: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def read_with(module: str, modules: dict[str, Path], imports: list[Import]) -> set[str]:
    """The modules that Python reads before a module is whole: packages on the way to another module too."""
    own = {".".join(module.split(".")[:i]) for i in range(1, module.count(".") + 1)}
    found = set()
    for _, name, at_import in imports:
        if at_import:
            parts = name.split(".")
            found |= {".".join(parts[:i]) for i in range(1, len(parts))} - own | {name}
    return {name for name in found if name in modules} - {module}


MODULES = modules_of(SOURCES, PRODUCT)


def test_every_arrow_leads_down() -> None:
    assert len(MODULES) > 100
    imports = {module: imports_of(module, MODULES) for module in MODULES}
    assert sum(map(len, imports.values())) > 1000
    assert [edge for module, found in imports.items() for edge in back_edges(module, found)] == []


def test_every_room_is_there_and_there_is_no_other() -> None:
    assert {room for module in MODULES if (room := room_of(module))} == set(ORDER)


def test_the_top_of_the_package_fits_on_a_hand_or_two() -> None:
    top = SOURCES / PRODUCT
    entries = {path.relative_to(top).parts[0] for path in top.rglob("*.py")}
    entries = {name for name in entries if not name.startswith("__")} - {"py.typed"}
    assert len(entries) <= MOST_ENTRIES, entries
    assert entries == {room.partition(".")[0] for room in ORDER}


def test_the_product_does_not_know_the_laboratory() -> None:
    for path in MODULES.values():
        text = path.read_text()
        for node, _ in _nodes(ast.parse(text), True):
            assert not any(name.partition(".")[0] == LABORATORY for name in _named(node, [])), path
        if path.relative_to(SOURCES / PRODUCT).as_posix() not in PLUGS:
            assert LABORATORY not in text, path


@pytest.mark.parametrize(("root", "package"), [(SOURCES, PRODUCT), (ROOT / "lab", LABORATORY)])
def test_no_module_needs_itself_to_be_read(root: Path, package: str) -> None:
    modules = modules_of(root, package)
    edges = {module: read_with(module, modules, imports_of(module, modules)) for module in modules}
    assert sum(map(len, edges.values())) > len(modules) / 2
    assert cycle(edges) == []


@pytest.mark.parametrize(
    ("module", "text", "wrong"),
    [
        ("ops.linear", "from vertex_softmax.bounds.backward import x", True),
        ("ops.linear", "import vertex_softmax.bounds", True),
        ("ops.linear", "from vertex_softmax import bounds", True),
        ("ops.linear", "from vertex_softmax import Box", True),
        ("ops.linear", "from ..bounds import backward", True),
        ("ops.linear", "def f():\n    from vertex_softmax.runs import certify", True),
        ("ops.linear", "if TYPE_CHECKING:\n    from vertex_softmax.runs import certify", True),
        ("ops.linear", "class A:\n    def f(self):\n        import vertex_softmax.cli.main", True),
        ("ops.linear", "try:\n    from vertex_softmax.graph import ir\nexcept ImportError:\n    pass", True),
        ("ops.linear", "from vertex_softmax import __version__, softmax_box", False),
        ("ops.linear", "from .lines import x\nimport torch\nfrom vertex_softmax.certificate.checker import y", False),
        ("certificate.checker.rows", "from vertex_softmax.foundation.errors import VertexError", True),
        ("certificate.checker.rows", "from ..lowering import x", True),
        ("certificate.checker.rows", "from . import file\nfrom .file import File\nimport math", False),
        ("certificate.prove", "from vertex_softmax.certificate.checker import proof", False),
        ("sets", "from vertex_softmax.sets.box import Box\nfrom .box import Box", False),
        ("__main__", "from vertex_softmax.cli.main import main", False),
    ],
)
def test_a_wrong_arrow_is_noticed(module: str, text: str, wrong: bool) -> None:
    full = f"{PRODUCT}.{module}"
    assert bool(back_edges(full, imports_of(full, MODULES, text))) is wrong


def test_a_cycle_is_noticed_and_what_is_imported_later_is_none() -> None:
    def edges(*texts: str) -> dict[str, set[str]]:
        pair = [f"{PRODUCT}.sets.{name}" for name in ("box", "base")]
        return {m: read_with(m, MODULES, imports_of(m, MODULES, t)) for m, t in zip(pair, texts, strict=True)}

    assert cycle(edges("from vertex_softmax.sets.base import x", "from . import box"))
    assert cycle(edges("from vertex_softmax.sets import base", "try:\n    from .box import Box\nfinally:\n    pass"))
    assert not cycle(edges("from .base import x", "def f():\n    from .box import Box"))
    assert not cycle(edges("from .base import x", "if TYPE_CHECKING:\n    from .box import Box"))
