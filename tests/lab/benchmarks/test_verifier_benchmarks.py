"""The verifier's benchmarks measure what they say: networks are rebuilt exactly, conditions are looked at, runs resume.

No assertion on seconds.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vertex_softmax.foundation.errors import VertexError

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "lab" / "benchmarks"))  # scripts, not a package

import anchors  # noqa: E402
import deep_memory  # noqa: E402
import vit  # noqa: E402
import vit_attacks  # noqa: E402
import vit_before  # noqa: E402

needs_anchors = pytest.mark.skipif(not anchors.DATA.is_dir(), reason=f"no anchor files at {anchors.DATA}")
VIT = vit.SHARED / "data" / "vit"
needs_vit = pytest.mark.skipif(not VIT.is_dir(), reason=f"no VNN-COMP instances at {VIT}")
SMALL = deep_memory.Size(blocks=1, dim=8, heads=2, mlp=8)


@needs_anchors
@pytest.mark.parametrize("name", anchors.FILES)
def test_the_rebuilt_network_has_the_recorded_margins(name: str) -> None:
    model, images, labels, anchor = anchors.read(anchors.DATA, name)
    for row in anchor["rows"][:5]:
        y = int(labels[row["image"]])
        assert y == row["label"]
        logits = model(images[row["image"]][None])[0]
        others = torch.cat([logits[:y], logits[y + 1 :]])
        assert float(logits[y] - others.max()) == pytest.approx(row["clean"], abs=1e-10)


@needs_anchors
def test_one_image_of_an_anchor_file(tmp_path: Path) -> None:
    out = tmp_path / "anchors.json"
    assert anchors.main(["--images", "1", "--files", "bin16_eps0.03", "--out", str(out)]) == 0
    saved = json.loads(out.read_text())
    (file,) = saved["files"]
    assert file["summary"]["images"] == len(file["rows"]) == 1
    assert file["summary"]["violations"] == []
    assert file["rows"][0]["recorded"]["crown_lse"] < file["rows"][0]["recorded"]["pgd"]
    assert saved["versions"]["torch"] == torch.__version__
    assert saved["versions"]["source"] == anchors.fingerprint()


GOOD = {"ibp": -9.0, "crown": 1.0, "alpha-crown": 1.1, "vertex": 0.5, "hybrid": 1.0, "joint": 1.2, "attack": 1.9}
ROW = {"crown_lse": 1.0, "alpha_crown_lse_20": 1.15, "vertex_published": 0.5, "pgd": 2.0}


def test_the_anchors_conditions_hold_where_they_should() -> None:
    assert anchors.violations(GOOD, ROW) == []
    assert anchors.violations(GOOD | {"crown": 0.991}, ROW) == []
    assert anchors.violations(GOOD | {"vertex": -3.0}, {"crown_lse": 1.0, "pgd": 2.0}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"crown": 0.98}, "crown looser"),
        ({"vertex": 0.4}, "vertex looser"),
        ({"hybrid": 0.9}, "hybrid looser"),
        ({"joint": 1.05}, "joint looser"),
        ({"joint": 1.15}, "joint not above"),
        ({"ibp": 2.1}, "above the attack"),
        ({"attack": 1.1}, "above the attack"),
        ({"hybrid": float("nan")}, "hybrid looser"),
    ],
)
def test_a_broken_condition_is_named(change: dict[str, float], said: str) -> None:
    assert any(said in text for text in anchors.violations(GOOD | change, ROW))


def test_the_conditions_on_a_whole_file() -> None:
    mean, recorded = {"joint": 1.0}, {"affine_vertex_prototype_80": 1.0, "crown_lse": -1.0, "pgd": 2.0}
    counts = {"joint": 6, "vertex_published": 2}
    assert anchors.whole_file("ten16_eps0.02", mean, recorded, counts) == []
    assert anchors.whole_file("blk10_eps0.01", mean, recorded, counts) == []
    assert len(anchors.whole_file("ten16_eps0.02", {"joint": 0.9}, recorded, counts)) == 1
    assert len(anchors.whole_file("ten16_eps0.02", mean, recorded, {**counts, "joint": 5})) == 1
    assert len(anchors.whole_file("blk10_eps0.02", {"joint": 0.3}, {"crown_lse": -1.0, "pgd": 2.0}, counts)) == 1


def test_alternating_pairs() -> None:
    calls = []
    row = anchors.alternate(lambda: calls.append("ours"), lambda: calls.append("theirs") or -1.5, repeats=2)
    assert calls == ["ours", "theirs"] * 3
    assert row["peer"] == -1.5
    assert [len(row[kind]) for kind in anchors.KINDS] == [2, 2, 2]
    side = anchors.paired(
        [{"clock": [(1.0, 3.0), (1.0, 5.0)], "processor": [(1.0, 2.0)] * 2, "user": [(1.0, 1.0)] * 2}]
    )
    assert (side["ratio"], side["processor_ratio"], side["user_ratio"]) == (4.0, 2.0, 1.0)


@needs_vit
@pytest.mark.parametrize("form", vit.FORMS)
@pytest.mark.parametrize("model", vit.MODELS)
def test_the_module_for_the_peer_is_the_network(model: str, form: str) -> None:
    module, graph = vit.FORMS[form](VIT / "onnx" / f"{model}.onnx.gz"), vit.read_model(VIT, model)
    x = torch.rand(vit.SHAPE, dtype=torch.float64)
    torch.testing.assert_close(
        module(module.given(x)).reshape(-1),
        graph.evaluate(x[0].reshape(graph.input.shape)).reshape(-1),
        rtol=0,
        atol=1e-9,
    )


@needs_vit
def test_one_vit_instance_and_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, journal = tmp_path / "vit.json", tmp_path / "journal.jsonl"
    order = [
        "--models",
        "pgd_2_3_16",
        "--instances",
        "1",
        "--methods",
        "ibp",
        "--out",
        str(out),
        "--journal",
        str(journal),
    ]
    assert vit.main(order) == 0
    first = json.loads(out.read_text())
    assert [row["finite"] for row in first["rows"]] == [True]
    assert first["rows"][0]["peak_bytes"] > 2**20
    with journal.open("a") as file:
        file.write('{"source": "a line that was cut')
    monkeypatch.setattr(vit, "measure", None)  # a second run has nothing left to measure
    assert vit.main(order) == 0
    assert json.loads(out.read_text())["rows"] == first["rows"]
    monkeypatch.setattr(vit, "fingerprint", lambda: "other sources")
    assert vit.Journal(journal).known == {}


def test_vit_conditions() -> None:
    rows = [
        {"instance": "a", "method": "crown", "finite": False, "worst": None},
        {"instance": "b", "method": "crown", "finite": True, "worst": 0.5},
        {"instance": "c", "method": "crown", "finite": True, "worst": 0.5},
    ]
    broken = vit.violations(rows, {"b": {"pgd": 0.4}, "c": {}})
    assert len(broken) == 2
    assert "no finite bound" in broken[0]
    assert "above the attack" in broken[1]


@needs_vit
def test_all_sixty_instances_are_listed() -> None:
    every = vit.instances(VIT)
    assert len(set(every)) == 60
    assert {model for model, _ in every} == set(vit.MODELS)
    box, label = vit.read_spec(VIT, every[0][1])
    assert box.shape == vit.SHAPE
    assert 0 <= label < 10


@pytest.mark.parametrize("tokens", [5, 17, 33])
def test_the_deep_network_has_the_tokens_asked_for(tokens: int) -> None:
    model, ball, label = deep_memory.problem(tokens, SMALL)
    assert model.position.shape == (tokens, SMALL.dim)
    assert int(model(ball.x).argmax()) == label


@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["here", "in its own process"])
def test_a_deep_bound(own: bool) -> None:
    row = {"tokens": 5, "method": "crown"}
    if own:
        row = deep_memory.in_a_process(5, "crown", SMALL, 120, profile=False)
    else:
        row |= json.loads(json.dumps(deep_memory.measure(5, "crown", SMALL)))
    assert row["finite"], row
    assert row["worst"] <= row["clean"]
    assert row["resident_before"] <= row["peak_bytes"] < deep_memory.LIMIT
    assert deep_memory.violations([row]) == []


STAND_IN = """
import json, sys, time
asked = json.loads(sys.argv[sys.argv.index("--one") + 1])
if asked["method"] == "endless":
    time.sleep(60)
if asked["method"] != "crown":
    raise ValueError(f"there is no such method as {asked['method']}")
print("a remark")
print(json.dumps({"finite": True, "peak_bytes": 1, "size": asked["size"]}))
"""
"""Instead of the script: what its process says, and how it ends, without anything to read."""


def test_what_a_process_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(deep_memory, "__file__", str(script))
    row = deep_memory.in_a_process(5, "crown", SMALL, 120, profile=False)
    assert row == {"tokens": 5, "method": "crown", "finite": True, "peak_bytes": 1, "size": dataclasses.asdict(SMALL)}
    assert deep_memory.violations([row]) == []
    (told,) = deep_memory.violations([deep_memory.in_a_process(5, "other", SMALL, 120, profile=False)])
    assert "there is no such method as other" in told
    assert "exit status 1" in told
    late = deep_memory.in_a_process(5, "endless", SMALL, 0.2, profile=False)
    assert "did not end" in late["failed"]


def test_a_method_that_is_not_there() -> None:
    with pytest.raises(VertexError, match="no such method"):
        deep_memory.measure(5, "no such method", SMALL)


@pytest.mark.slow
def test_a_process_that_fails_is_told() -> None:
    row = deep_memory.in_a_process(5, "no such method", SMALL, 120, profile=False)
    (told,) = deep_memory.violations([row])
    assert "no such method" in told
    assert "exit status 1" in told
    late = deep_memory.in_a_process(5, "crown", SMALL, 0.01, profile=False)
    assert "did not end" in late["failed"]


@pytest.mark.parametrize("module", [vit, anchors, deep_memory])
def test_the_scripts_explain_themselves_here(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        module.main(["--help"])
    assert end.value.code == 0
    assert f"python lab/benchmarks/{Path(module.__file__).name}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("script", ["vit.py", "anchors.py", "deep_memory.py"])
def test_the_scripts_explain_themselves(script: str) -> None:
    told = subprocess.run(
        [sys.executable, ROOT / "lab" / "benchmarks" / script, "--help"], capture_output=True, text=True, check=True
    )
    assert f"python lab/benchmarks/{script}" in told.stdout


def test_attacks_go_into_the_rows_of_runs(tmp_path: Path) -> None:
    """The longest attack counts; what failed does not, nor what is not `unsat`."""
    run, attacks = tmp_path / "run.json", tmp_path / "attacks.json"
    rows = [{"vnnlib": name, "result": result} for name, result in (("a", "unsat"), ("b", "sat"), ("c", "unsat"))]
    run.write_text(json.dumps({"rows": rows}))
    plain = {"broken": False, "nearest": 0.5, "visited": 9, "seconds": 60.0, "seed": 1, "device": "cpu"}
    longer = [{"vnnlib": "a", **plain}, {"vnnlib": "a", **plain, "seconds": 5.0}, {"vnnlib": "c", "failed": "so"}]
    attacks.write_text(json.dumps({"rows": longer}))
    assert vit_attacks.merge([run], [attacks]) == 0
    saved = json.loads(run.read_text())
    assert saved["rows"][0]["attack"] == plain
    assert "attack" not in saved["rows"][1]
    assert "attack" not in saved["rows"][2]
    assert saved["attacked"] == {"seconds": 60.0, "instances": 1, "broken": []}
    attacks.write_text(json.dumps({"rows": [{"vnnlib": "c", **plain, "broken": True}]}))
    assert vit_attacks.merge([run], [attacks]) == 1


def test_two_versions_are_compared_where_both_decide() -> None:
    def row(name: str, version: str, status: str, seconds: float) -> dict[str, Any]:
        return {"name": f"pgd_2_3_16_{name}", "version": version, "status": status, "wall": seconds, "cpu": seconds}

    rows = [row("1", "old", "unsat", 8.0), row("1", "new", "unsat", 2.0), row("2", "old", "timeout", 100.0)]
    rows += [row("2", "new", "unsat", 50.0), row("3", "old", "unsat", 1.0)]
    found = vit_before.summary(rows)
    line = found["pgd_2_3_16"]
    assert (line["instances"], line["decided_by_both"], line["new"]["decided"]) == (2, 1, 2)
    assert line["old_over_new_wall"] == 4.0
    assert found["contradictions"] == []
    rows += [row("4", "old", "unsat", 1.0), row("4", "new", "sat", 1.0)]
    assert vit_before.summary(rows)["contradictions"] == ["pgd_2_3_16_4"]
