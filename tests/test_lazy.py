"""Nothing heavy is imported before it is needed, and all the names are there all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import vertex_lab
import vertex_softmax

SOURCES, LABORATORY = Path(vertex_softmax.__file__).parents[1], Path(vertex_lab.__file__).parents[1]
HEAVY = ("torch", "numpy", "scipy", "sklearn", "safetensors", "matplotlib", "jinja2", "onnx", "onnxruntime", "flint")
HEAVY += ("transformers", "pandas", "ray", "triton", "vnnlib")


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def read(code: str) -> set[str]:
    """The top-level modules that a fresh process has read after this code."""
    return set(python(f"import sys\n{code}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))").split())


def test_help_reads_nothing_heavy() -> None:
    """In one process, as each command's help comes after the others' then, and none may have read anything."""
    code = """
from typer.testing import CliRunner
from vertex_softmax.cli.main import app
groups = ["data", "data list", "bench", "suite", "suite make"]
for command in ["", *(info.callback.__name__ for info in app.registered_commands), *groups]:
    assert CliRunner().invoke(app, [*command.split(), "--help"]).exit_code == 0, command
assert CliRunner().invoke(app, ["verify", "--nonsense"]).exit_code == 2
assert "vertex_lab" in sys.modules, "the laboratory's commands are loaded too"
"""
    assert not read(code) & set(HEAVY)


def test_the_package_alone_reads_nothing_heavy() -> None:
    assert not read("import vertex_softmax; vertex_softmax.__version__") & {*HEAVY, "rich", "typer", "click"}


LATE = (
    "sympy",
    "mpmath",
    "flint",
    "scipy",
    "sklearn",
    "safetensors",
    "matplotlib",
    "pandas",
    "ray",
    "triton",
    "vnnlib",
)
LATE += ("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes")
"""What `vertex verify` never needs for an ONNX file; torch imports the last three, and sympy, for shapes if asked."""


def test_verify_reads_no_more_than_it_needs(tmp_path: Path) -> None:
    """A product that is large enough to have its size computed first, a sum that broadcasts, and an attention."""
    code = f"""
import atexit, pathlib, sys
import numpy as np
from onnx import TensorProto, helper, numpy_helper
values = [helper.make_tensor_value_info(*of) for of in (("x", 1, [1, 4, 192]), ("y", 1, [1, 4, 192]))]
given = {{"w": np.eye(192) / 9, "r": np.ones(192), "k": np.eye(192)}}
nodes = [helper.make_node(*of) for of in (
    ("MatMul", ["x", "w"], ["a"]), ("Add", ["a", "r"], ["b"]), ("MatMul", ["b", "k"], ["c"]),
    ("Transpose", ["c"], ["d"]), ("MatMul", ["b", "d"], ["e"]), ("Softmax", ["e"], ["f"]), ("MatMul", ["f", "b"], ["y"])
)]
nodes[3].attribute.append(helper.make_attribute("perm", [0, 2, 1]))
given = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in given.items()]
graph = helper.make_graph(nodes, "g", values[:1], values[1:], given)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
folder = pathlib.Path({str(tmp_path)!r})
(folder / "m.onnx").write_bytes(model.SerializeToString())
text = "".join(f"(declare-const {{letter}}_{{i}} Real)\\n" for letter in "XY" for i in range(768))
text += "".join(f"(assert (>= X_{{i}} 0.0))(assert (<= X_{{i}} 0.001))\\n" for i in range(768))
(folder / "p.vnnlib").write_text(text + "(assert (>= Y_0 9.0))\\n")
atexit.register(lambda: print(*sorted(sys.modules)))
sys.argv = ["vertex", "verify", str(folder / "m.onnx"), str(folder / "p.vnnlib"), "--threads", "1"]
from vertex_softmax.cli.main import main
main()
"""
    answer, modules = python(code).splitlines()
    assert answer == "unsat"
    assert {"torch", "onnxruntime", "vertex_softmax.search.cascade"} <= set(modules.split())
    assert not {*LATE, "vertex_softmax.runs.certify", "vertex_softmax.certificate.prove"} & set(modules.split())


def test_a_sweep_reads_nothing_heavy_itself(tmp_path: Path) -> None:
    """Its workers do; it has only to start them."""
    code = f"""
from typer.testing import CliRunner
from vertex_softmax.cli.main import app
import vertex_softmax.runs.sweep.sweep
assert CliRunner().invoke(app, ["sweep", {str(tmp_path / "none.csv")!r}]).exit_code == 2
"""
    assert not read(code) & set(HEAVY)


FORKS = """
import os, sys, torch
for code in sys.argv[1:]:
    sys.stdout.flush()
    if not (child := os.fork()):
        exec(code, {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, code
    print("----", flush=True)
"""
NAMES = "import vertex_softmax as v\nbefore = dir(v)\nfrom vertex_softmax import *\nprint(*before)\nprint(*dir())"
MODULES = "import vertex_softmax as v\n"
MODULES += "v.runs.certify.load, v.sets.Box, v.softmax_box.affine_minorant, v.graph.ir, v.methods.joint, v.ops.OPS"
SAY = "\nimport sys\nprint(*{m.split('.')[0] for m in sys.modules})"
PICTURES = "import vertex_softmax as v\nfor name in dir(v):\n    if name.startswith('plot_'): getattr(v, name)" + SAY
LIBRARY = "import vertex_softmax as v\nv.certify" + SAY
MINIMUM = "import numpy as np, vertex_softmax as v\nv.softmax_box_min(np.zeros(2), np.zeros(2), np.ones(2))" + SAY


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What each of these says in a process that has read only torch: forked, as torch takes seconds to read."""
    codes = (NAMES, MODULES, PICTURES, LIBRARY, MINIMUM)
    done = subprocess.run([sys.executable, "-c", FORKS, *codes], capture_output=True, text=True, check=True)
    return dict(zip(codes, done.stdout.split("----\n"), strict=False))


def test_the_names_are_there(said: dict[str, str]) -> None:
    before, after = (set(line.split()) for line in said[NAMES].splitlines())
    assert before >= set(vertex_softmax.__all__)
    assert after >= set(vertex_softmax.__all__)


def test_modules_are_there_without_an_import_of_their_own(said: dict[str, str]) -> None:
    assert said[MODULES] == ""


def test_the_library_reads_no_more_than_it_needs(said: dict[str, str]) -> None:
    found = set(said[LIBRARY].split())
    assert {"torch", "vertex_softmax"} <= found
    assert not found & {"sklearn", "rich", "typer", "click", "matplotlib", "onnx", "onnxruntime", "pandas", "flint"}


def test_triton_is_not_imported_unless_it_is_used(said: dict[str, str]) -> None:
    assert "vertex_softmax" in said[MINIMUM].split()
    assert "triton" not in said[MINIMUM].split()


def test_pictures_are_there_and_read_when_used(said: dict[str, str]) -> None:
    assert "vertex_softmax" in said[PICTURES].split()
    assert "matplotlib" not in said[PICTURES].split()
    assert vertex_softmax.plot_bounds.__module__ == "vertex_softmax.runs.report.figures"


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        vertex_softmax.nonsense  # noqa: B018
    with pytest.raises(ImportError, match="nonsense"):
        from vertex_softmax import nonsense  # noqa: F401


@pytest.mark.slow
def test_every_module_can_be_the_first() -> None:
    """No import depends on another one having been before: each module in a process that has read only torch."""
    code = f"""
import os, pathlib, torch, typer, rich.console, safetensors, sklearn.datasets
for folder in {[str(SOURCES / "vertex_softmax"), str(LABORATORY / "vertex_lab")]!r}:
    for path in sorted(pathlib.Path(folder).rglob("*.py")):
        name = ".".join(path.relative_to(pathlib.Path(folder).parent).with_suffix("").parts).removesuffix(".__init__")
        if not (child := os.fork()):
            __import__(name)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, name
"""
    python(code)
