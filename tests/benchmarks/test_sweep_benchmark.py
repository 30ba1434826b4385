"""The sweep draws what it says, its protocol rows are bounds of the same network, and its runs resume.

No assertion on seconds.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # scripts, not a package

import sweep  # noqa: E402
import vit  # noqa: E402

from vertex_softmax.methods.bounding import Options  # noqa: E402
from vertex_softmax.methods.certify import certify  # noqa: E402
from vertex_softmax.ops.registry import Interval  # noqa: E402
from vertex_softmax.sets import LinfBall  # noqa: E402

FEW = ["--keys", "4", "--seeds", "0", "--trials", "3"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the script does: the tensors are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_trial_does_not_depend_on_how_many_are_asked_for() -> None:
    few, many = list(sweep.trials(4, 1, 3)), list(sweep.trials(4, 1, sweep.BATCH + 2))
    assert (len(few), len(many)) == (3, sweep.BATCH + 2)
    for a, b in zip(few, many, strict=False):
        assert all(torch.equal(vars(a)[name], vars(b)[name]) for name in vars(a))
    assert not torch.equal(many[0].x, many[sweep.BATCH].x)
    assert not torch.equal(few[0].query, next(sweep.trials(4, 2, 1)).query)


def test_the_weights_have_the_protocols_scales() -> None:
    drawn = list(sweep.trials(4, 0, 2 * sweep.BATCH))
    for name, scale in (("x", 1), ("query", 0.75 / 16), ("key", 0.75 / 4), ("value", 0.75 / 4), ("output", 1 / 4)):
        values = torch.stack([vars(trial)[name] for trial in drawn])
        assert float(values.std()) == pytest.approx(scale, rel=0.05), name


def test_the_graph_is_the_network_and_the_label_its_sign() -> None:
    for trial in sweep.trials(5, 0, 4):
        scores = trial.graph().evaluate(trial.x)
        assert float(scores[0] - scores[1]) == pytest.approx(trial.margin, abs=1e-12)
        assert int(scores.argmax()) == trial.label
        assert trial.sign * trial.margin > 0


def test_the_score_boxes_are_the_extreme_corners() -> None:
    x = Interval(torch.tensor([[[0.0, -1.0]]]), torch.tensor([[[2.0, 1.0]]]))
    y = Interval(torch.tensor([[[0.0, -3.0]]]), torch.tensor([[[2.0, 1.0]]]))
    found = sweep._products(x, y)
    assert (found.lower.item(), found.upper.item()) == (-3.0, 7.0)


def test_the_protocol_rows_are_bounds_and_in_order() -> None:
    for trial in sweep.trials(6, 0, 3):
        ball = LinfBall(trial.x[None], 0.02)
        component, objective = (sweep.protocol_bound(trial, ball, row) for row in sweep.PROTOCOL)
        graph = trial.graph()
        interval = certify(graph, ball, trial.label, "vertex", options=Options(scores="interval")).worst.item()
        attack = sweep.measure(trial, graph, ball, "pgd strong")["worst"]
        assert component <= objective <= attack <= abs(trial.margin)
        assert objective == pytest.approx(interval, abs=0.03)  # the library's boxes of products may be wider
        point = LinfBall(trial.x[None], 0.0)
        for row in sweep.PROTOCOL:
            assert sweep.protocol_bound(trial, point, row) == pytest.approx(abs(trial.margin), abs=1e-9)


def test_a_run_and_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, journal = tmp_path / "sweep.json", tmp_path / "journal.jsonl"
    order = [*FEW, "--methods", "vertex", "hybrid", "--out", str(out), "--journal", str(journal)]
    assert sweep.main(order) == 0
    first = json.loads(out.read_text())
    methods = ["component", "objective", "vertex", "hybrid", "pgd", "pgd strong"]
    assert [s["method"] for s in first["summary"]] == methods
    assert len(first["rows"]) == 3 * len(methods)
    assert first["violations"] == []
    for s in first["summary"]:
        assert (s["keys"], s["epsilon"], s["trials"], s["finite"]) == (4, 0.02, 3, 3)
        assert s["rate"] == s["certified"] / 3
        assert s["standard_error"] == pytest.approx(math.sqrt(s["rate"] * (1 - s["rate"]) / 3))
        assert s["mean_gap"] is None if s["method"] in sweep.ATTACKS else s["mean_gap"] > 0
        assert s["mean_s"] > 0
    assert first["summary"][1]["target_rate"] == 0.665
    assert first["versions"]["script"] == sweep.SCRIPT
    worst = {(row["trial"], row["method"]): row["worst"] for row in first["rows"]}
    for trial in range(3):
        attack = min(worst[trial, "pgd"], worst[trial, "pgd strong"])
        assert worst[trial, "vertex"] <= worst[trial, "hybrid"] + 1e-9
        assert all(worst[trial, m] <= attack + 1e-9 for m in methods[:4])
    with journal.open("a") as file:
        file.write('{"source": "a line that was cut')
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "measure", None)  # a second run has nothing left to measure
        assert sweep.main(order) == 0
        assert json.loads(out.read_text())["rows"] == first["rows"]
        patch.setattr(sweep, "SCRIPT", "another version of the script")
        with pytest.raises(TypeError):
            sweep.main(order)
    monkeypatch.setattr(vit, "fingerprint", lambda: "other sources")
    assert vit.Journal(journal).known == {}


def answer(method: str, worst: float | None, **more: Any) -> dict[str, Any]:
    finite = worst is not None
    row = {"instance": "a", "keys": 16, "epsilon": 0.02, "seed": 0, "method": method, "seconds": 1.0}
    return {**row, "worst": worst, "finite": finite, "certified": finite and worst > 0, **more}


def test_what_is_unsound_is_told() -> None:
    good = [answer("joint", 0.1), answer("pgd", 0.3), answer("pgd strong", 0.2)]
    assert sweep.violations(good) == []
    broken = sweep.violations([answer("joint", 0.25), answer("crown", None), *good[1:]])
    assert len(broken) == 2
    assert "by joint: 0.25 above the attack's 0.2" in broken[0]
    assert "by crown: no finite answer" in broken[1]


def test_the_summary_counts_every_trial() -> None:
    rows = [
        answer(method, worst, instance=str(i), seed=i % 2)
        for method, found in (("objective", (1.0, -1.0, -1.0, -1.0)), ("joint", (1.0, 1.0, None, -2.0)))
        for i, worst in enumerate(found)
    ]
    objective, joint = sweep.summarise(rows)
    assert (objective["rate"], joint["rate"], joint["rate_over_objective"]) == (0.25, 0.5, 2.0)
    assert (joint["finite"], joint["mean_lower"], joint["standard_error"]) == (3, 0.0, 0.25)
    assert joint["rate_by_seed"] == {"0": 0.5, "1": 0.5}
    assert joint["mean_gap"] is None  # no attack among these rows
    assert objective["z"] == pytest.approx((0.25 - 0.353) / math.sqrt(0.353 * 0.647 / 4))
    assert "z" not in joint


def test_the_script_explains_itself() -> None:
    script = ROOT / "benchmarks" / "sweep.py"
    told = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=True)
    assert "python benchmarks/sweep.py" in told.stdout
