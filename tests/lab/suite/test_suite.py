"""The suite that is given away: its files say what they should, twice the same, and what is wrong is noticed."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

from tests.lab.suite.small import SMALL
from vertex_lab.commands.suite import app
from vertex_lab.suite import files, levels, maker, max_of_k, merging, page, verdicts
from vertex_lab.suite.family import Question, Request
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.sweep.instances import read_instances
from vertex_softmax.search.verify_files import load_instance
from vertex_softmax.specs.vnnlib import read_vnnlib


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small suite by the command itself."""
    out = tmp_path_factory.mktemp("suite") / "made"
    build(out, out.with_name("weights"))
    return out


def build(out: Path, weights: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(max_of_k, name, value)
        words = ["make", str(out), "--families", "max_of_k", "--weights", str(weights), "--quick"]
        found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output


def rows(made: Path) -> list[dict]:
    return json.loads((made / "max_of_k" / "facts.json").read_text())["instances"]


def test_the_layout_is_that_of_the_competition(made: Path) -> None:
    listed = read_instances(made / "max_of_k" / "instances.csv")
    assert [row["level"] for row in rows(made)] == ["inside", "between", "outside", "hull"]
    assert len(listed) == len({instance.spec for instance in listed}) == 4
    for instance in listed:
        assert re.fullmatch(r"onnx/max-of-2\.onnx", instance.model)
        assert re.fullmatch(r"vnnlib/max-of-2_(ball|tokens2)-\d+-\d+_\w+\.vnnlib", instance.spec)
        assert instance.timeout == 60
    text = (made / "README.md").read_text()
    assert "| `max_of_k` | 1 | 4 | 1 inside, 1 between, 1 outside, 1 hull | 60 |" in text
    assert "Gross et al. 2024" in text


def test_boxes_are_float32_and_what_was_meant(made: Path) -> None:
    for row in rows(made):
        spec = read_vnnlib(made / "max_of_k" / row["vnnlib"])
        (case,) = spec.cases
        for end in (case.lower, case.upper):
            assert np.array_equal(end, end.astype(np.float32).astype(np.float64))
        assert np.array_equal(case.lower, case.inner_lower)  # the decimals are floats, exactly
        if row["eps"] is not None:
            assert np.allclose(case.upper - case.lower, 2 * row["eps"], rtol=1e-5)


def test_inside_is_proved_and_outside_is_broken(made: Path) -> None:
    """By another way than the maker's: `vertex verify` on the files."""
    from vertex_softmax.search.cascade import Budget
    from vertex_softmax.search.verify_files import verify_instance

    wanted = {"inside": "unsat", "outside": "sat"}
    for row in rows(made):
        if row["level"] in wanted:
            instance = load_instance(made / "max_of_k" / row["onnx"], made / "max_of_k" / row["vnnlib"])
            assert verify_instance(instance, Budget(60)).verdict.competition == wanted[row["level"]]


def test_the_same_command_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    """Trained anew: the weights are not shared."""
    build(tmp_path / "again", tmp_path / "weights")
    assert (tmp_path / "again" / "checksums.sha256").read_bytes() == (made / "checksums.sha256").read_bytes()


def test_checksums_are_those_of_sha256sum_and_changes_are_noticed(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(made, other)
    for line in (made / "checksums.sha256").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((made / name).read_bytes()).hexdigest() == digest
    run = CliRunner().invoke
    assert run(app, ["check", str(other)]).exit_code == 0
    assert run(app, ["check", str(other), "--against", str(made / "checksums.sha256")]).exit_code == 0
    (other / "max_of_k" / "instances.csv").write_text("onnx/a.onnx,vnnlib/b.vnnlib,1\n")
    (other / "max_of_k" / "onnx" / "max-of-2.onnx").unlink()
    (other / "max_of_k" / "more").write_text("")
    found = run(app, ["check", str(other)])
    assert found.exit_code == 1
    assert found.stdout.splitlines() == [
        "max_of_k/onnx/max-of-2.onnx is missing",
        "max_of_k/more is not in the list",
        "max_of_k/instances.csv differs",
    ]
    (tmp_path / "list").write_text("nonsense\n")
    found = run(app, ["check", str(other), "--against", str(tmp_path / "list")])
    assert found.exit_code == 2
    assert "line 1" in found.stderr


def test_a_family_without_its_data_is_left_out_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    request = Request(tmp_path / "nowhere", tmp_path / "weights", True, said.append)
    needy = [name for name, family in maker.FAMILIES.items() if family.needs(request)]
    for name in needy:
        with pytest.raises(InvalidValueError, match="no family could be made"):
            maker.make(tmp_path / "out", [name], request)
        assert said[-1].startswith(f"{name} is left out: ")
        assert str(tmp_path / "nowhere") in said[-1]
    with pytest.raises(InvalidValueError, match="no family 'imagenet'; choose from digits"):
        maker.make(tmp_path / "out", ["imagenet"], request)
    assert not (tmp_path / "out").exists()


class Attentive(nn.Module):
    """Fused attention and a norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        return self.head(functional.scaled_dot_product_attention(x, x, x).mean(1))


def test_an_export_is_compared_with_its_module() -> None:
    module, point = Attentive().eval(), torch.linspace(-1, 1, 12).reshape(3, 4)
    fused = functional.scaled_dot_product_attention
    content = files.exported(module, point)
    assert functional.scaled_dot_product_attention is fused
    assert content == files.exported(module, point)
    files.replayed(content, module, [point])
    assert next(module.parameters()).dtype == torch.float32
    with torch.no_grad():
        module.head.bias[0] += 1e-3
    with pytest.raises(InvalidValueError, match="the ONNX file is not the module"):
        files.replayed(content, module, [point])


def test_a_property_that_its_centre_breaks_is_refused(made: Path, tmp_path: Path) -> None:
    row = rows(made)[0]
    model, spec = made / "max_of_k" / row["onnx"], made / "max_of_k" / row["vnnlib"]
    (case,) = read_vnnlib(spec).cases
    lower, upper = (torch.from_numpy(end).float().reshape(2, -1) for end in (case.lower, case.upper))
    centre = ((lower.double() + upper.double()) / 2).float()
    files.require_holds_at(model, spec, (lower, upper), centre)
    wrong = tmp_path / "wrong.vnnlib"
    wrong.write_text(
        files.specification((lower, upper), SMALL["VOCABULARY"], (row["label"] + 1) % 12, ["another class"])
    )
    with pytest.raises(InvalidValueError, match="the centre itself is a counterexample"):
        files.require_holds_at(model, wrong, (lower, upper), centre)
    with pytest.raises(InvalidValueError, match="upper ends"):
        files.require_holds_at(model, spec, (lower, upper + 1), centre)
    with pytest.raises(InvalidValueError, match="not in the box"):
        files.require_holds_at(model, spec, (lower, upper), centre + 1)


def test_radii_are_bisected_and_rounded() -> None:
    assert 0.3 / 1.1 <= levels.largest(lambda eps: eps <= 0.3, 0.01) <= 0.3
    assert 0.3 / 1.1 <= levels.largest(lambda eps: eps <= 0.3, 5.0) <= 0.3
    assert levels.largest(lambda _: False, 0.1) == 0.0
    assert levels.rounded(0.0123456, math.floor) == 0.0123
    assert levels.rounded(0.0123456, math.ceil) == 0.0124
    assert levels.rounded(0.0, math.ceil) == 0.0


def test_a_centre_outside_of_its_hull_is_taken_in() -> None:
    centre = torch.tensor([0.5, 2.0])
    question = Question("q", "", centre, 0, fixed=(torch.zeros(2), torch.ones(2)))
    lower, upper = levels.ends_of(question, levels.Level("hull", None))
    assert (lower.tolist(), upper.tolist()) == ([0.0, 0.0], [1.0, 2.0])


def test_verdicts_are_counted_and_contradictions_named(made: Path, tmp_path: Path) -> None:
    file = tmp_path / "verdicts.json"
    found = CliRunner().invoke(app, ["verdicts", str(made), "--seconds", "60", "--each", "1", "--file", str(file)])
    assert found.exit_code == 0, found.output
    record = json.loads(file.read_text())
    assert record["counts"] == {"max_of_k": {"unsat": 1}}
    assert record["suite"] == hashlib.sha256((made / "checksums.sha256").read_bytes()).hexdigest()
    (row,) = record["rows"]["max_of_k"].values()
    assert row["level"] == "inside"
    assert verdicts.contradictions(record) == []
    row["vertex"] = "sat"
    assert "sat, and its level is inside" in verdicts.contradictions(record)[0]
    assert CliRunner().invoke(app, ["verdicts", str(tmp_path)]).exit_code == 2


def test_the_page_has_the_verdicts_that_are_kept_and_none_is_a_contradiction() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_tables(text, page.VERDICTS) == text, "run python -m vertex_lab.suite.page"
    record = json.loads(page.VERDICTS.read_text(encoding="utf-8"))
    listed = page.VERDICTS.with_name("checksums.sha256").read_bytes()
    assert record["suite"] == hashlib.sha256(listed).hexdigest()
    for who in ("vertex", *record.get("peers", {})):
        assert verdicts.contradictions(record, who) == []
    rows = [row for some in record["rows"].values() for row in some.values()]
    assert {"unsat", "sat", "timeout"} <= {row["vertex"] for row in rows}
    assert not any("wrong" in row.values() for row in rows)


def test_what_two_verifiers_claim_does_not_clash() -> None:
    """A peer's proof and our counterexample, or the reverse, would show that one of them is wrong."""
    record = json.loads(page.VERDICTS.read_text(encoding="utf-8"))
    for some in record["rows"].values():
        for name, row in some.items():
            said = {row["vertex"], *(row.get(who) for who in record.get("peers", {}))}
            assert not {"sat", "unsat"} <= said, name


def test_a_family_that_was_made_apart_replaces_what_the_lists_had_of_it(tmp_path: Path) -> None:
    made, kept = tmp_path / "made", tmp_path / "kept"
    made.mkdir()
    shutil.copytree(merging.VERDICTS.parent, kept)
    row = {"network": "sst-12-standard", "level": "inside", "eps": 0.002, "vertex": "unsat", "seconds": 30.0}
    (made / "sst-checksums.sha256").write_text(f"{'a' * 64}  sst/onnx/sst-12-standard.onnx\n{'b' * 64}  README.md\n")
    record = {**verdicts.about(kept, 40.0), "rows": {"sst": {"sst-12-standard_sentence1_inside": row}}}
    (made / "sst-verdicts.json").write_text(json.dumps(record))
    merging.merge("sst", made, kept)
    lines = (kept / "checksums.sha256").read_text().splitlines()
    assert [line for line in lines if "  sst/" in line] == [f"{'a' * 64}  sst/onnx/sst-12-standard.onnx"]
    assert not any("README" in line for line in lines)
    before = (merging.VERDICTS.parent / "checksums.sha256").read_text().splitlines()
    assert {line for line in before if "/" in line and "  sst/" not in line} < set(lines)
    found = json.loads((kept / "verdicts.json").read_text())
    assert found["counts"]["sst"] == {"unsat": 1}
    assert found["rows"]["digits"] == json.loads(merging.VERDICTS.read_text())["rows"]["digits"]
    assert "`sst` was made apart: 40 s" in page.tables(found)[-1]
    (made / "deept-checksums.sha256").write_text("")
    with pytest.raises(InvalidValueError, match="no checksums of deept"):
        merging.merge("deept", made, kept)
