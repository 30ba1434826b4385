"""The shape of the code, as far as a machine can see it: names, records, parameters, and who writes where."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "vertex_softmax"
CORE = ("ops", "sets", "bounds", "methods", "search")
"""The rooms in which bounds are made: data flows one way there, and nobody writes into another's attributes."""
MOST_FIELDS = 3
MOST_PARAMETERS = 6
PUBLIC = {"certify", "verify", "affine_minorant"}
"""Functions for users, whose parameters are options with names of their own."""


@functools.cache
def sources() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"


def nodes(kind: type, *rooms: str) -> Iterator[tuple[Path, ast.AST]]:
    for path, tree in sources().items():
        if not rooms or path.relative_to(PACKAGE).parts[0] in rooms:
            yield from ((path, node) for node in ast.walk(tree) if isinstance(node, kind))


def test_class_names_are_unique() -> None:
    homes = defaultdict(list)
    for path, node in nodes(ast.ClassDef):
        homes[node.name].append(place(path, node))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_positional_records_have_three_fields_at_most() -> None:
    found = []
    for path, node in nodes(ast.ClassDef):
        named = any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases)
        fields = sum(isinstance(line, ast.AnnAssign) for line in node.body)
        if named and fields > MOST_FIELDS:
            found.append(f"{place(path, node)} {node.name}: {fields}")
    assert found == []


def test_functions_of_more_than_six_parameters_say_why() -> None:
    """A comment above or behind the signature has the reason; a command's options and Triton's kernels need none."""
    found = []
    for path, node in nodes(ast.FunctionDef):
        arguments = node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        count = len([name for name in names if name not in ("self", "cls")])
        lines = path.read_text().splitlines()
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        head = "\n".join(lines[first - 2 : node.body[0].lineno])
        command = "reporting" in [ast.unparse(decorator) for decorator in node.decorator_list]
        excused = command or path.name == "triton_kernel.py" or node.name in PUBLIC
        if count > MOST_PARAMETERS and "#" not in head and not excused:
            found.append(f"{place(path, node)} {node.name}: {count}")
    assert found == []


def test_the_core_has_no_any() -> None:
    for path, node in nodes(ast.Name, "ops", "bounds", "methods"):
        if path.name == "shape.py":  # indices of numpy's kind
            continue
        assert node.id != "Any", place(path, node)


def test_nobody_in_the_core_writes_into_another() -> None:
    found = []
    for path, node in nodes(ast.Attribute, *CORE):
        if not isinstance(node.ctx, ast.Store):
            continue
        owner = node.value
        own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
        gradient = node.attr == "grad"  # torch's way to clear a gradient
        constructor = path.name == "replay.py"  # a class method that makes the object
        if not own and not gradient and not constructor:
            found.append(f"{place(path, node)} {ast.unparse(node)}")
    assert found == []


def test_rounding_constants_of_bounds_are_in_one_file() -> None:
    """No number such as 1e-12 stands alone in the rooms that make bounds: foundation/tolerances.py has its reason."""
    allowed = {"ascent.py": {1e-30}, "forms.py": {1e-4}, "falsify.py": {1e-6, 1e-9}, "visits.py": {1e-9}}
    found = []
    for path, node in nodes(ast.Constant, *CORE):
        small = isinstance(node.value, float) and 0 < abs(node.value) < 1e-3
        if small and node.value not in allowed.get(path.name, set()):
            found.append(f"{place(path, node)} {node.value}")
    assert found == []
