"""`vertex sweep`: lists of instances that are wrong, and paths as people give them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runs.sweep.sweeps import (
    UNSAT,
    benchmark,
    ran,
    rows,
    vertex,
)
from vertex_softmax.runs.sweep.instances import read_instances

pytestmark = pytest.mark.usefixtures("one_source_and_thread")


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", ["has no instances; write lines as model.onnx,property.vnnlib,100"]),
        ("model,spec,timeout\n\n", ["has no instances"]),
        ("a.onnx,UNSAT.vnnlib\n", ["line 1 has 2 fields, not three: model,spec,timeout"]),
        ("a.onnx,UNSAT.vnnlib,1,2\n", ["line 1 has 4 fields"]),
        ("a.onnx,UNSAT.vnnlib,soon\n", ["line 1: the timeout is 'soon', not a number of seconds above 0"]),
        ("a.onnx,UNSAT.vnnlib,0\n", ["line 1: the timeout is '0'"]),
        ("a.onnx,UNSAT.vnnlib,-5\n", ["line 1: the timeout is '-5'"]),
        ("a.onnx,UNSAT.vnnlib,nan\n", ["line 1: the timeout is 'nan'"]),
        ("a.onnx,UNSAT.vnnlib,inf\n", ["line 1: the timeout is 'inf'"]),
        ("a.onnx,UNSAT.vnnlib,\n", ["line 1: the timeout is ''"]),
        (
            "\n\nc.onnx,no.vnnlib,5\n",
            ["line 3: there is no model '", "c.onnx', nor with .gz", "line 3: there is no prop"],
        ),
        (",UNSAT.vnnlib,5\n", ["line 1: there is no model"]),
        ("a.onnx,.,5\n", ["line 1: there is no property"]),
        ("a\0.onnx,UNSAT.vnnlib,5\n", ["line 1"]),
        (f"{'a' * 5000}.onnx,UNSAT.vnnlib,5\n", ["line 1: there is no model"]),
        ("a.onnx,UNSAT.vnnlib,5\n./a.onnx,UNSAT.vnnlib,5.0\n", ["line 2 is the same instance as line 1"]),
        ('"a.onnx,UNSAT.vnnlib,5\n', ["is not CSV: unexpected end of data"]),
        ("a.onnx,UNSAT.vnnlib,5\nb.onnx,x,5\nb.onnx,y,z\n", ["line 2: there is no prop", "line 3: the timeout is 'z'"]),
        ("no,no,no\n" * 30, ["and 70 more"]),
        (
            "\"[('f', 'a.onnx'), ('g', 'a.onnx')]\",UNSAT.vnnlib,5\n",
            ["line 1: \"[('f', 'a.onnx'), ('g', 'a.onnx')]\" are several networks; properties of one are supported"],
        ),
        ("\"[('f', 'none.onnx')]\",UNSAT.vnnlib,5\n", ["line 1: there is no model '", "none.onnx', nor with .gz"]),
    ],
)
def test_bad_lines_are_named_before_anything_runs(
    text: str, messages: list[str], tmp_path: Path, fake: tuple[str, ...]
) -> None:
    told = benchmark(tmp_path / "bench", {"UNSAT": UNSAT})
    told.write_text(text)
    result = vertex(told, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert all(message in result.stderr for message in messages), result.stderr
    assert "Traceback" not in result.output
    assert not ran(told.parent)
    assert not (tmp_path / "out").exists()


def test_other_input_that_is_refused(tmp_path: Path, fake: tuple[str, ...]) -> None:
    told, out = benchmark(tmp_path / "bench", {"UNSAT": UNSAT}), tmp_path / "out"
    for arguments, message in (
        ([tmp_path / "none.csv"], "none.csv cannot be read (No such file or directory)"),
        ([tmp_path], "cannot be read (it is not a regular file)"),
        ([told, "--timeout", "0"], "the timeout is 0.0; it must be a number of seconds above 0"),
        ([told, "--timeout", "nan"], "the timeout is nan"),
        ([told, "--method", "magic"], "--method is 'magic'; choose one of attack, crown, joint, bab"),
        ([told, "--device", "abacus"], "--device is 'abacus'; cpu is always available"),
        ([told, "--jobs", "0"], "or equal to 1"),
        ([told, "--limit", "0"], "or equal to 1"),
        ([told, "--threads", "0"], "or equal to 1"),
        ([told, "--memory", "0"], "--memory is 0.0; it must be a number of GiB above 0"),
        ([told, "--memory", "nan"], "--memory is nan"),
        ([told, "--memory", "90000"], "--memory is 90000 GiB for each process, and "),
        ([told, "--runner", "slurm"], "--runner is 'slurm'; choose one of local, ray"),
        ([told, "--address", "auto"], "--address is for a Ray cluster: give --runner ray, too"),
    ):
        result = vertex(*arguments, "--out", out)
        assert result.exit_code == 2, arguments
        assert message in result.stderr
    told.write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in vertex(told, "--out", out).stderr
    assert not out.exists()
    assert not ran(told.parent)


def test_paths_as_people_give_them(tmp_path: Path, fake: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    told = benchmark(tmp_path / "the bench" / "2.0", {"UNSAT": UNSAT})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "list.csv").symlink_to(told)
    monkeypatch.chdir(elsewhere)
    assert vertex("list.csv").exit_code == 0
    assert (
        (elsewhere / "out/sweep/the bench/results.csv").read_text().startswith("the bench,a.onnx,UNSAT.vnnlib,0,unsat,")
    )
    assert vertex("../the bench/2.0/instances.csv", "--out", "ö ut").exit_code == 0
    assert rows(elsewhere / "ö ut") == {"UNSAT": "unsat"}
    (elsewhere / "a.onnx").write_bytes(b"beside the link")
    (elsewhere / "UNSAT.vnnlib").write_text(json.dumps(UNSAT))
    assert read_instances(Path("list.csv"))[0].model_path == elsewhere / "a.onnx"


@pytest.mark.parametrize("field", ["[('f', 'a.onnx')]", "[('f','./a.onnx'),]", '[("f", "a.onnx")]'])
def test_a_model_as_the_competition_of_2026_writes_it(field: str, tmp_path: Path) -> None:
    told = benchmark(tmp_path / "bench", {"UNSAT": UNSAT})
    quoted = field.replace('"', '""')
    told.write_text(f'"{quoted}",UNSAT.vnnlib,5\n')
    (instance,) = read_instances(told)
    assert instance.model == field
    assert instance.model_path.samefile(told.parent / "a.onnx")
