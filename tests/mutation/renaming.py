"""Whether code is a pattern under other names, and what is put there under the code's names.

A renaming is a bijection between the names of the pattern and those of the code. Names of builtins, modules and
constants and the methods of libraries stand for themselves, and a name that its function still uses was not renamed.
A variable may have become an attribute or the other way round (`boxes`, `self.boxes`), a method a function of its
object (`walk.forget(x)`, `forget(walk, x)`).
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import sys
from pathlib import Path
from typing import Any

Node = Any
"""Of a syntax tree that was read: it has its numbers as `exact` and `loose`."""

MODULES = {"torch", "np", "numpy", "F", "nn", "onnx", "flint", "triton", "tl", "arb"} | set(sys.stdlib_module_names)
PROPERTIES = {"shape", "dtype", "device", "T", "mT", "ndim"}
KEYWORDS = {"dim", "keepdim", "dtype", "device", "axis", "keepdims", "key", "strict", "default", "min", "max", "out"}
UNREAD = {"ctx", "annotation", "returns", "type_comment", "kind", "type_params", "simple"}
IDENTIFIERS = {
    *((ast.Name, "id"), (ast.Attribute, "attr"), (ast.keyword, "arg"), (ast.arg, "arg"), (ast.ExceptHandler, "name")),
    *((ast.FunctionDef, "name"), (ast.AsyncFunctionDef, "name"), (ast.ClassDef, "name")),
}
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def without_docstring(node: Node, field: str, body: list[Node]) -> list[Node]:
    if field != "body" or not isinstance(node, (ast.Module, *SCOPES)):
        return body
    first = body[0].value if body and isinstance(body[0], ast.Expr) else None
    return body[1:] if isinstance(first, ast.Constant) and isinstance(first.value, str) else body


def is_dotted(node: Node) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _pair(node: Node) -> tuple[str, str] | None:
    """The two names of `self.boxes`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and not _is_fixed(node.value.id):
        return node.value.id, node.attr
    return None


def _is_fixed(name: str) -> bool:
    """Does a name stand for itself?"""
    return hasattr(builtins, name) or name in MODULES or (len(name) > 1 and name.isupper())


@functools.cache
def methods() -> frozenset[str]:
    import numpy as np
    import torch

    owners = (torch.Tensor, np.ndarray, str, bytes, dict, list, set, tuple, Path)
    return frozenset(name for owner in owners for name in dir(owner)) - PROPERTIES


class Renaming:
    """How names of a pattern are called in the code."""

    def __init__(self) -> None:
        self.there: dict[tuple[str, str], str] = {}
        self.back: dict[tuple[str, str], str] = {}

    @property
    def size(self) -> int:
        """How many names are others."""
        return sum(old != new for (_, old), new in self.there.items())

    def binds(self, kind: str, old: str, new: str) -> bool:
        """A name is called so, and nothing else is."""
        return self.there.setdefault((kind, old), new) == new and self.back.setdefault((kind, new), old) == old

    def name(self, old: str, new: str) -> bool:
        """The same for variables, functions and classes."""
        return (old == new or not (_is_fixed(old) or _is_fixed(new))) and self.binds("name", old, new)

    def fits(self, old: Node, new: Node, called: bool = False) -> bool:
        """Is the code the pattern under other names?"""
        if isinstance(old, ast.Name) and isinstance(new, ast.Attribute):
            pair = _pair(new)
            near = pair is not None and (pair[0] in ("self", "cls") or pair[1] == old.id)
            return near and not _is_fixed(old.id) and self.binds("name", old.id, ".".join(pair or ()))
        if isinstance(old, ast.Attribute) and isinstance(new, ast.Name):
            pair = _pair(old)
            near = pair is not None and (pair[0] in ("self", "cls") or pair[1] == new.id)
            return near and not _is_fixed(new.id) and self.binds("name", ".".join(pair or ()), new.id)
        if type(old) is not type(new):
            if {type(old), type(new)} != {ast.AnnAssign, ast.Assign}:
                return False
            targets = [getattr(node, "targets", None) or [node.target] for node in (old, new)]
            return self._all(targets[0], targets[1]) and self._all([old.value], [new.value])
        if isinstance(old, ast.Name):
            return self.name(old.id, new.id)
        if isinstance(old, ast.Attribute):
            return self._attribute(old, new, called) and self.fits(old.value, new.value)
        if isinstance(old, ast.Constant):
            return bool(old.exact == new.exact)
        if isinstance(old, ast.keyword):
            fixed = old.arg is None or new.arg is None or {old.arg, new.arg} & KEYWORDS
            same = old.arg == new.arg if fixed else self.binds("keyword", old.arg, new.arg)
            return same and self.fits(old.value, new.value)
        if isinstance(old, ast.Call):
            return self._call(old, new)
        if isinstance(old, ast.alias):
            return bool(old.exact == new.exact)
        for field in old._fields:
            if field in UNREAD:
                continue
            one, two = getattr(old, field), getattr(new, field)
            if isinstance(one, list):
                fine = self._all(without_docstring(old, field, one), without_docstring(new, field, two))
            elif isinstance(one, ast.AST) and isinstance(two, ast.AST):
                fine = self.fits(one, two)
            elif (type(old), field) in IDENTIFIERS and isinstance(one, str) and isinstance(two, str):
                fine = self.name(one, two)
            else:
                fine = type(one) is type(two) and one == two
            if not fine:
                return False
        return True

    def _all(self, old: list[Node], new: list[Node]) -> bool:
        if len(old) != len(new):
            return False
        return all(
            self.fits(a, b) if isinstance(a, ast.AST) and isinstance(b, ast.AST) else a == b
            for a, b in zip(old, new, strict=True)
        )

    def _attribute(self, old: ast.Attribute, new: ast.Attribute, called: bool) -> bool:
        root: Node = old
        while isinstance(root, ast.Attribute):
            root = root.value
        known = PROPERTIES | (methods() if called else set())
        fixed = (isinstance(root, ast.Name) and _is_fixed(root.id)) or old.attr in known or new.attr in known
        return old.attr == new.attr if fixed else self.binds("attribute", old.attr, new.attr)

    def _call(self, old: ast.Call, new: ast.Call) -> bool:
        one, two = old.func, new.func
        if not self._all(old.keywords, new.keywords):
            return False
        if isinstance(one, ast.Attribute) and isinstance(two, ast.Name) and len(new.args) == len(old.args) + 1:
            fixed = _is_fixed(two.id) or one.attr in methods() or (_pair(one) is None)
            return not fixed and self.binds("method", one.attr, two.id) and self._all([one.value, *old.args], new.args)
        if isinstance(one, ast.Name) and isinstance(two, ast.Attribute) and len(old.args) == len(new.args) + 1:
            fixed = _is_fixed(one.id) or two.attr in methods() or (_pair(two) is None)
            return (
                not fixed and self.binds("function", one.id, two.attr) and self._all(old.args, [two.value, *new.args])
            )
        return self._all(old.args, new.args) and self.fits(one, two, called=True)

    def renamed(self, node: Node) -> Node:
        """Nodes of what is put there, under the code's names."""
        return _Renamer(self.there).visit(copy.deepcopy(node))


class _Renamer(ast.NodeTransformer):
    def __init__(self, there: dict[tuple[str, str], str]) -> None:
        self.there = there

    def _of(self, kind: str, name: str) -> str:
        return self.there.get((kind, name), name)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self._of("name", node.id), mode="eval").body

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        pair = _pair(node)
        if pair is not None and ("name", ".".join(pair)) in self.there:
            return ast.Name(self._of("name", ".".join(pair)))
        return ast.Attribute(self.visit(node.value), self._of("attribute", node.attr))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        func, args = node.func, node.args
        if isinstance(func, ast.Attribute) and ("method", func.attr) in self.there:
            function = ast.Name(self._of("method", func.attr))
            return ast.Call(function, [self.visit(v) for v in (func.value, *args)], [*map(self.visit, node.keywords)])
        if isinstance(func, ast.Name) and ("function", func.id) in self.there and args:
            method = ast.Attribute(self.visit(args[0]), self._of("function", func.id))
            return ast.Call(method, [self.visit(v) for v in args[1:]], [*map(self.visit, node.keywords)])
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        return ast.keyword(node.arg and self._of("keyword", node.arg), self.visit(node.value))

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self._of("name", node.arg), node.annotation)
