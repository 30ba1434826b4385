"""A mutant finds its place again after the code was laid out anew, moved and renamed, and nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation.locate import LEVELS, Change, Changed, Sources
from tests.mutation.mutant import Mutant
from tests.mutation.rekey import _entries

WALK = '''
"""A module."""
import torch

class Walk:
    def tighten(self, node, box):
        """No box widens."""
        old = self.boxes[node]  # as it was
        self.boxes[node] = old.meet(box)
        for user in self.users(node):
            self._forget(user)
        return torch.maximum(old.lower, box.lower)

    def other(self, x):
        if x.amax(-1) > 0:
            return (x + 1) * 2
        elif x.amin(-1) < 0:
            return (x + 1) * 2
        return f"{x + 1} is {x!r}"
'''
MEET = Change("walk.py", "Walk.tighten", "old.meet(box)", "box")
FORGET = Change("walk.py", "Walk.tighten", "for user in self.users(node): self._forget(user)", "")
LOWER = Change("walk.py", "Walk.tighten", "torch.maximum(old.lower, box.lower)", "box.lower - old.lower")


def changed(folder: Path, change: Change, **files: str) -> Changed:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return Sources(folder).changed(change)


def same(found: Changed, text: str) -> bool:
    return ast.dump(ast.parse(found.text)) == ast.dump(ast.parse(text))


@pytest.mark.parametrize(
    ("change", "line", "with_it"),
    [
        (MEET, "self.boxes[node] = old.meet(box)", "self.boxes[node] = box"),
        (FORGET, "        for user in self.users(node):\n            self._forget(user)\n", ""),
        (LOWER, "torch.maximum(old.lower, box.lower)", "box.lower - old.lower"),
        (Change("walk.py", "Walk.other", "x.amin(-1) < 0", "x > 0 or x < 1"), "x.amin(-1) < 0", "x > 0 or x < 1"),
        (Change("walk.py", "Walk.other", "(x + 1) * 2", "x", 1), "amin(-1) < 0:\n            return (x + 1) * 2", None),
        (Change("walk.py", "Walk.other", 'f"{x + 1} is {x!r}"', "''"), 'f"{x + 1} is {x!r}"', "''"),
        (
            Change("walk.py", "", "import torch", "import torch\nimport math"),
            "import torch",
            "import torch\nimport math",
        ),
    ],
)
def test_what_is_put_there(tmp_path: Path, change: Change, line: str, with_it: str | None) -> None:
    found = changed(tmp_path, change, walk=WALK)
    assert same(found, WALK.replace(line, line.replace("(x + 1) * 2", "x") if with_it is None else with_it))
    assert found.level == LEVELS[0]
    assert "# as it was" in found.text  # the rest of the text stays


def test_an_expression_is_put_in_parentheses_where_it_needs_them(tmp_path: Path) -> None:
    text = "α = ('ü', -(x * y) ** 2, sum(i for i in x))"
    product = changed(tmp_path, Change("a.py", "", "x * y", "x + y"), a=text)
    assert same(product, text.replace("x * y", "x + y"))
    generator = changed(tmp_path, Change("a.py", "", "(i for i in x)", "x"), a=text)
    assert same(generator, text.replace("i for i in x", "x"))


def test_statements_that_are_taken_away(tmp_path: Path) -> None:
    text = "def f(x):\n    if x:\n        return 1\n    elif not x:\n        g(x)\n    return 2\n"
    branch = changed(tmp_path, Change("a.py", "f", "if not x: g(x)", ""), a=text)
    assert same(branch, "def f(x):\n    if x:\n        return 1\n    return 2\n")
    other = changed(tmp_path, Change("a.py", "f", "if not x: g(x)", "x = 1\ng(x)"), a=text)
    assert same(other, text.replace("elif not x:\n", "else:\n        x = 1\n"))
    last = changed(tmp_path, Change("a.py", "f", "return 1", ""), a=text)
    assert same(last, text.replace("return 1", "pass"))


def test_layout_comments_and_annotations_do_not_count(tmp_path: Path) -> None:
    text = WALK.replace("old.meet(box)", "(  # why\n            old\n            .meet( box, )\n        )")
    text = text.replace("old =", "old: Box =").replace('"""No box widens."""\n', "\n").replace("box)", "box: Box)", 1)
    assert same(changed(tmp_path, MEET, walk=text), text.replace("old\n            .meet( box, )", "box"))
    whole = Change("walk.py", "Walk.tighten", "old = self.boxes[node]\nself.boxes[node] = old.meet(box)", "old = box")
    assert changed(tmp_path, whole, walk=text).level == LEVELS[0]


@pytest.mark.parametrize("change", [MEET, FORGET, LOWER])
def test_a_function_that_was_moved(tmp_path: Path, change: Change) -> None:
    here = changed(tmp_path, change, walk=WALK)
    (tmp_path / "walk.py").unlink()
    found = changed(tmp_path, change, elsewhere=WALK.replace("class Walk", "class Boxes"))
    assert (found.file, found.scope) == ("elsewhere.py", "Boxes.tighten")
    assert same(found, here.text.replace("class Walk", "class Boxes"))


@pytest.mark.parametrize("change", [MEET, FORGET, LOWER])
def test_a_function_that_was_renamed(tmp_path: Path, change: Change) -> None:
    here = changed(tmp_path, change, walk=WALK)
    found = changed(tmp_path, change, walk=WALK.replace("tighten", "narrow"))
    assert found.level == "elsewhere in the file"
    assert same(found, here.text.replace("tighten", "narrow"))


@pytest.mark.parametrize("change", [MEET, FORGET, LOWER])
@pytest.mark.parametrize(
    "names",
    [
        {"old": "before", "box": "now", "user": "each"},
        {"meet": "intersected", "lower": "low", "_forget": "forgotten", "users": "readers"},
        {"self": "walk"},
    ],
)
@pytest.mark.parametrize("function", ["tighten", "narrow"])
def test_variables_and_attributes_that_were_renamed(
    tmp_path: Path, change: Change, names: dict[str, str], function: str
) -> None:
    def renamed(text: str) -> str:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            for field in ("id", "attr", "arg", "name"):
                if isinstance(name := getattr(node, field, None), str):
                    setattr(node, field, {**names, "tighten": function}.get(name, name))
        return ast.unparse(tree)

    here = changed(tmp_path, change, walk=WALK)
    assert same(changed(tmp_path, change, walk=renamed(WALK)), renamed(here.text))


def test_a_method_that_became_a_function(tmp_path: Path) -> None:
    text = """
import torch
def tighten(boxes, walk, node, box):
    old = boxes[node]
    boxes[node] = old.meet(box)
    for user in users(walk, node):
        forget(walk, user)
    return torch.maximum(old.lower, box.lower)
"""
    store = Change("walk.py", "Walk.tighten", "self.boxes[node] = old.meet(box)", "self.boxes[node] = box")
    assert same(changed(tmp_path, store, walk=text), text.replace("old.meet(box)", "box"))
    users = FORGET._replace(new="for user in self.users(node): node._forget(user)")
    found = changed(tmp_path, users, walk=text)
    assert "forget(node, user)" in found.text
    back = Change("walk.py", "tighten", "boxes[node] = old.meet(box)", "boxes[node] = box")
    assert same(changed(tmp_path, back, walk=WALK), WALK.replace("old.meet(box)", "box"))
    call = Change("walk.py", "tighten", "for user in users(walk, node): forget(walk, user)", "forget(walk, node)")
    assert "self._forget(node)" in changed(tmp_path, call, walk=WALK).text


def test_several_places_are_an_error_that_names_them(tmp_path: Path) -> None:
    twice = Change("walk.py", "Walk.other", "(x + 1) * 2", "x")
    with pytest.raises(LookupError, match=r"2 places have .*walk.py:16 \(Walk.other\), walk.py:18 \(Walk.other\)"):
        changed(tmp_path, twice, walk=WALK)
    with pytest.raises(LookupError, match="2 places have"):
        changed(tmp_path, twice._replace(occurrence=2), walk=WALK)
    with pytest.raises(LookupError, match=r"2 places have .*a.py:9 .*b.py:9"):
        changed(tmp_path, MEET._replace(file="gone.py", scope="gone"), walk="", a=WALK, b=WALK)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x.amax(0) > 0", "x"),  # another number
        ("x.amean(-1) > 0", "x"),  # a library's method is no other
        ("np.maximum(old.lower, box.lower)", "old.lower"),  # neither is a module
        ("box.meet(box)", "old"),  # one name is not two
        ("box.meet(old)", "old"),  # both names are still used
    ],
)
def test_what_is_not_there_is_an_error_that_names_the_mutant(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "walk.py").write_text(WALK)
    for scope in ("Walk.tighten", "Walk.other", ""):
        with pytest.raises(LookupError, match=r"walks/walk.py: a fault: 0 places have"):
            Mutant("walks", "walk.py", "a fault", scope, old, new, ()).applied(Sources(tmp_path))


def test_names_that_are_put_there_have_to_be_known(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="the name 'limit', which is put there, is not known there"):
        changed(tmp_path, MEET._replace(new="limit"), walk=WALK)
    text = WALK.replace("lower", "low")
    with pytest.raises(LookupError, match="the attribute 'greatest', which is put there, is nowhere in the package"):
        changed(tmp_path, LOWER._replace(new="old.lower - box.greatest"), walk=text)


@pytest.mark.parametrize("change", [MEET, FORGET, LOWER, Change("walk.py", "Walk.other", "(x + 1) * 2", "x", 1)])
def test_hints_are_brought_up_to_date(tmp_path: Path, change: Change) -> None:
    (tmp_path / "walk.py").write_text(WALK)
    assert Sources(tmp_path).rekeyed(change) == change
    (tmp_path / "walk.py").write_text("")
    (tmp_path / "other.py").write_text(WALK.replace("class Walk", "class Pass").replace("old", "before"))
    now = Sources(tmp_path).rekeyed(change)
    assert (now.file, now.scope) == ("other.py", change.scope.replace("Walk", "Pass"))
    assert now.occurrence == change.occurrence
    found, again = Sources(tmp_path).changed(change), Sources(tmp_path).changed(now)
    assert again.level == LEVELS[0]
    assert again == found._replace(level=LEVELS[0])


def test_the_catalogue_is_as_the_tool_writes_it() -> None:
    entry = Mutant("walks", "a.py", "it's", "f", 'x["a"]', "b\n" * 2, ("t.py",), "", 1)
    long = "word " * 40
    written = ast.literal_eval("{" + _entries([entry, entry._replace(name=long, new="\\", occurrence=None)]) + "}")
    assert written == {"it's": ("f", 'x["a"]', "b\nb\n", 1), long: ("f", 'x["a"]', "\\")}
