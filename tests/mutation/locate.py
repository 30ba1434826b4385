"""Finds the place that a mutant changes, and changes it; what is compared is syntax trees, not text.

Comments, layout, docstrings and type annotations do not count. A place is looked for where the mutant says it is, then
ever farther away: under other names (renaming.py), in other functions, in other files (LEVELS). The nearest level with
a place decides, and it has to have one place only: what fits several is an error, not a guess.
"""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutation.renaming import IDENTIFIERS, SCOPES, UNREAD, Node, Renaming, is_dotted, methods, without_docstring

LEVELS = (
    "as hinted",
    "as hinted, but names",
    "the function of this name in the file",
    "the function of this name in the package",
    "elsewhere in the file",
    "elsewhere in the package",
    "the function of this name in the file, but names",
    "the function of this name in the package, but names",
    "elsewhere in the file, but names",
    "elsewhere in the package, but names",
)
"""From near to far; `_places` says what each means."""

BARE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Dict, ast.Set, ast.Tuple)
"""What needs no parentheses wherever it stands."""


class Change(NamedTuple):
    """A place and what is put there."""

    file: str
    """a hint, within the folder of sources"""
    scope: str
    """a hint: the qualified name of the innermost function or class, empty for the module's own level"""
    old: str
    """an expression, or statements"""
    new: str
    """the same, or nothing"""
    occurrence: int | None = None
    """which of several of the same function, in their order in the source"""


class Changed(NamedTuple):
    """A file with a change."""

    file: str
    scope: str
    line: int
    level: str
    """one of LEVELS"""
    text: str


class Place(NamedTuple):
    """An expression, or a statement of a block."""

    file: str
    scope: str
    node: Node
    block: list[Node]
    """empty for an expression"""
    at: int

    def nodes(self, count: int) -> list[Node]:
        """The expression, or so many statements."""
        return self.block[self.at : self.at + count] if self.block else [self.node]

    def __str__(self) -> str:
        return f"{self.file}:{self.node.lineno} ({self.scope or 'the module'})"


_NUMBERS: defaultdict[Any, int] = defaultdict(itertools.count().__next__)
"""Of all trees that were ever read."""


class File:
    """A file's tree; every expression and statement by its number.

    Two nodes have the same `exact` number if and only if their trees are the same; they have the same `loose` one if a
    renaming may make them so.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.exact, self.loose = defaultdict[int, list[Place]](list), defaultdict[int, list[Place]](list)
        self.names, self.attributes = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
        self.read(ast.parse(text), "")

    def read(self, node: Node, scope: str, block: Sequence[Node] = (), at: int = 0, inside: bool = False) -> None:
        """Give numbers to a node and to all below it; `inside` an f-string nodes do not know where they are."""
        own = type(node)
        if isinstance(node, (ast.expr, ast.stmt)) and not inside:
            place = Place(self.name, scope, node, list(block) if isinstance(node, ast.stmt) else [], at)
        else:
            place = None
        if own is ast.AnnAssign and node.value is not None:
            parts: list[tuple[str, Any]] = [("targets", [node.target]), ("value", node.value)]
            own = ast.Assign
        else:
            parts = [(field, getattr(node, field, None)) for field in node._fields if field not in UNREAD]
        if isinstance(node, SCOPES):
            self.names[scope].add(node.name)
            scope = f"{scope}.{node.name}" if scope else node.name
        inside = inside or own is ast.JoinedStr
        exact: list[Any] = [own]
        loose: list[Any] = [own]
        for field, value in parts:
            if isinstance(value, ast.AST):
                self.read(value, scope, inside=inside)
                exact.append(value.exact)
                loose.append(value.loose)
            elif isinstance(value, list):
                value = without_docstring(node, field, value)  # noqa: PLW2901
                for i, item in enumerate(value):
                    if isinstance(item, ast.AST):
                        self.read(item, scope, value, i, inside)
                exact.append(tuple(getattr(item, "exact", item) for item in value))
                loose.append(tuple(getattr(item, "loose", item) for item in value))
            else:
                said = (type(value).__name__, repr(value))
                exact.append(said)
                if (own, field) not in IDENTIFIERS:
                    loose.append(said)
        if own is ast.Name:
            self.names[scope].add(node.id)
        elif own is ast.arg:
            self.names[scope].add(node.arg)
        elif own is ast.alias:
            self.names[scope].add((node.asname or node.name).partition(".")[0])
        elif own is ast.Attribute:
            self.attributes[scope].add(node.attr)
        if is_dotted(node):
            loose = ["a name"]
        elif own is ast.Call and is_dotted(node.func):  # a method's object may have become an argument
            parameters = [*node.args, *(keyword.value for keyword in node.keywords)]
            loose = [own, *(value.loose for value in parameters if not is_dotted(value))]
        node.exact, node.loose = _NUMBERS[tuple(exact)], _NUMBERS["loose", *loose]
        if place is not None:
            self.exact[node.exact].append(place)
            self.loose[node.loose].append(place)

    def around(self, scope: str) -> Iterator[str]:
        """The scope and those that it is in."""
        parts = scope.split(".") if scope else []
        return (".".join(parts[:n]) for n in range(len(parts), -1, -1))

    def replaced(self, place: Place, count: int, new: list[Node]) -> str:
        """The text with other nodes in a place."""
        data = self.text.encode()
        starts = [0, *itertools.accumulate(len(line) for line in data.splitlines(keepends=True))]
        nodes = place.nodes(count)
        first = min([nodes[0], *getattr(nodes[0], "decorator_list", [])], key=lambda node: node.lineno)
        begin = starts[first.lineno - 1] + first.col_offset
        end = starts[nodes[-1].end_lineno - 1] + nodes[-1].end_col_offset
        if first is not nodes[0]:
            begin = data.rindex(b"@", 0, begin)
        before = data[starts[first.lineno - 1] : begin].decode()
        if not place.block:
            found = ast.unparse(new[0])
            if not isinstance(new[0], BARE) or isinstance(nodes[0], ast.GeneratorExp):
                found = f"({found})"
        else:
            found, indent = "", nodes[0].col_offset
            branch = data[begin:end].startswith(b"elif") and isinstance(nodes[0], ast.If)
            if branch and new:
                indent += 4
                found = "else:\n" + " " * indent
            elif not new and count == len(place.block) and not branch:
                new = [ast.Pass()]
            made = [ast.unparse(ast.fix_missing_locations(node)) for node in new]
            if before.strip():
                found += "; ".join(made)
            else:
                found += textwrap.indent("\n".join(made), " " * indent).lstrip()
        return (data[:begin] + found.encode() + data[end:]).decode()


def parsed(text: str) -> tuple[list[Node], bool]:
    """Text's nodes, and whether they are an expression; else they are statements."""
    try:
        return [ast.parse(text, mode="eval").body], True
    except SyntaxError:
        return list(ast.parse(textwrap.dedent(text)).body), False


class Pattern:
    """What is looked for and what is put there, as trees."""

    def __init__(self, change: Change) -> None:
        old, is_expression = parsed(change.old)
        new, like = parsed(change.new)
        if not (is_expression and like):
            old, new = ast.parse(textwrap.dedent(change.old)).body, ast.parse(textwrap.dedent(change.new)).body
        self.is_expression, self.old, self.new = is_expression and like, old, new
        self.looked_for, self.put = File("", ""), File("", "")
        for node in old:
            self.looked_for.read(node, "")
        for node in new:
            self.put.read(node, "")
        if not old:
            raise LookupError("nothing is looked for")
        if [node.exact for node in old] == [node.exact for node in new]:
            raise LookupError("nothing is changed")

    def same(self, file: File) -> list[Place]:
        """Where the trees are the same."""
        return [
            place
            for place in file.exact.get(self.old[0].exact, ())
            if bool(place.block) != self.is_expression
            and [node.exact for node in place.nodes(len(self.old))] == [node.exact for node in self.old]
        ]

    def alike(self, file: File) -> list[tuple[Place, Renaming]]:
        """Where they are the same but for names; of those of one function the ones with the fewest other names."""
        found: dict[str, list[tuple[Place, Renaming]]] = defaultdict(list)
        for place in file.loose.get(self.old[0].loose, ()):
            nodes = place.nodes(len(self.old))
            if bool(place.block) == self.is_expression or len(nodes) != len(self.old):
                continue
            renaming = Renaming()
            if all(renaming.fits(a, b) for a, b in zip(self.old, nodes, strict=True)):
                used = {"name": file.names[place.scope], "attribute": file.attributes[place.scope]}
                if not any(old in used.get(kind, ()) for (kind, old), new in renaming.there.items() if old != new):
                    found[place.scope].append((place, renaming))
        least = {scope: min(renaming.size for _, renaming in these) for scope, these in found.items()}
        return [both for scope, these in found.items() for both in these if both[1].size == least[scope]]


class Sources:
    """The Python files below a folder, each of which is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, File] = {}

    def file(self, name: str) -> File | None:
        """One of them, if it is there."""
        if name not in self._files:
            path = self.folder / name
            if not path.is_file():
                return None
            self._files[name] = File(name, path.read_text())
        return self._files[name]

    @functools.cached_property
    def every(self) -> list[File]:
        """All of them."""
        names = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.py"))
        return [file for name in names if (file := self.file(name)) is not None]

    def changed(self, change: Change) -> Changed:
        """A file with the change; raises LookupError if there is no place for it or more than one."""
        pattern = Pattern(change)
        return self._put(pattern, *self._found(pattern, change))

    def rekeyed(self, change: Change) -> Change:
        """The same change with the hints and the names of where its place is now; as it is where they are right."""
        pattern = Pattern(change)
        place, renaming, level = self._found(pattern, change)
        self._put(pattern, place, renaming, level)
        if level == LEVELS[0]:
            return change
        old, new = change.old, change.new
        if "but names" in level:
            old = "\n".join(ast.unparse(node) for node in place.nodes(len(pattern.old)))
            new = "\n".join(ast.unparse(ast.fix_missing_locations(renaming.renamed(node))) for node in pattern.new)
        here = Change(place.file, place.scope, old, new)
        same = sorted(
            (each.node for each, _ in self._places(Pattern(here), here, LEVELS[0])),
            key=lambda node: (node.lineno, node.col_offset),
        )
        return here._replace(occurrence=same.index(place.node)) if len(same) > 1 else here

    def _found(self, pattern: Pattern, change: Change) -> tuple[Place, Renaming, str]:
        for level in LEVELS:
            found = list(self._places(pattern, change, level))
            if not found:
                continue
            found.sort(key=lambda both: (both[0].file, both[0].node.lineno, both[0].node.col_offset))
            scopes = {(place.file, place.scope) for place, _ in found}
            at = change.occurrence
            if at is not None and len(scopes) == 1 and at < len(found):
                found = [found[at]]
            if len(found) > 1:
                raise LookupError(f"{len(found)} places have {change.old!r}: {', '.join(str(p) for p, _ in found)}")
            return *found[0], level
        raise LookupError(f"0 places have {change.old!r} ({change.scope or 'the module'})")

    def _places(self, pattern: Pattern, change: Change, level: str) -> Iterator[tuple[Place, Renaming]]:
        hinted = self.file(change.file)
        here = [] if hinted is None else [hinted]
        last = change.scope.rpartition(".")[2]
        for file in self.every if "package" in level else here:
            found = pattern.alike(file) if "but names" in level else [(p, Renaming()) for p in pattern.same(file)]
            for place, renaming in found:
                if level.startswith("as hinted"):
                    fine = place.scope == change.scope
                elif level.startswith("the function"):
                    fine = last != "" and place.scope.rpartition(".")[2] == last
                else:
                    fine = True
                if fine:
                    yield place, renaming

    def _put(self, pattern: Pattern, place: Place, renaming: Renaming, level: str) -> Changed:
        file = self.file(place.file)
        assert file is not None
        known = {name for scope in file.around(place.scope) for name in file.names[scope]}
        for name in pattern.put.names[""] - pattern.looked_for.names[""] - known:
            if name != "_" and not hasattr(builtins, name) and not _binds(pattern.new, name):
                raise LookupError(f"{place}: the name {name!r}, which is put there, is not known there")
        if renaming.size:
            attributes = {name for other in self.every for some in other.attributes.values() for name in some}
            for name in pattern.put.attributes[""] - pattern.looked_for.attributes[""] - attributes - methods():
                raise LookupError(f"{place}: the attribute {name!r}, which is put there, is nowhere in the package")
        new = [renaming.renamed(node) for node in pattern.new]
        return Changed(place.file, place.scope, place.node.lineno, level, file.replaced(place, len(pattern.old), new))


def _binds(nodes: list[Node], name: str) -> bool:
    """Is a name made by the nodes themselves?"""
    every = [node for top in nodes for node in ast.walk(top)]
    stored = any(isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load) for n in every)
    imported = any(isinstance(n, ast.alias) and (n.asname or n.name) == name for n in every)
    return stored or imported or any(isinstance(n, ast.arg) and n.arg == name for n in every)
