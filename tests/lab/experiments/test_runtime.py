"""Stages of the runtime table again from what each image took; no assertion on seconds that were really taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab.experiments import made
from tests.lab.zoo import data_files
from vertex_lab.experiments import runtime, tables
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import Row
from vertex_softmax.runs.certify import load
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.sets import LinfBall

CROWN, SWEEP = "CROWN (softmax taken apart)", "vertex: sort/sweep"
PUBLISHED = {
    CROWN: (0.1058, 0.094),
    "vertex: score, value and suffix bounds": (1.0147, 0.899),
    SWEEP: (0.0002, 0.000),
    "Hybrid: CROWN and vertex": (1.1288, 1.000),
}
"""tab:runtime_breakdown_app: seconds and fraction"""
STAGES = ("import", "boxes", "rows", "objective", "total")


def seconds(image: int) -> dict[str, float]:
    """What an image took, made up: not in order, so that a median is no first or last."""
    scale = 1 + (7 * image + 3) % 20
    found = {CROWN: 0.1 * scale, SWEEP: 0.001 * scale}
    for n, method in enumerate(("vertex", *runtime.OURS)):
        found |= {f"{method}: {stage}": (n + m + 1) * scale * 0.01 for m, stage in enumerate(STAGES)}
    return found | {"joint: rows": 0.0}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The images that were measured, by number."""
    measured: list[int] = []
    numbers: dict[bytes, int] = {}

    def one(_graph: Any, ball: LinfBall, label: torch.Tensor) -> dict[str, float]:
        assert len(ball) == len(label) == 1
        image = numbers.setdefault(ball.x.numpy().tobytes(), len(numbers))
        measured.append(image)
        return seconds(image)

    monkeypatch.setattr(runtime, "_one", one)
    monkeypatch.setattr(runtime, "load", lambda *_: None)
    monkeypatch.setattr(tables, "DIGITS_EPOCHS", 1)
    return measured


def by_component(rows: tuple[Row, ...]) -> dict[str, Row]:
    assert len({row["Component"] for row in rows}) == len(rows)
    return {str(row["Component"]): row for row in rows}


def middle(values: list[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


@pytest.mark.parametrize("count", [3, 4])
def test_every_cell_is_what_the_images_took(
    count: int, faked: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "QUICK_IMAGES", count)
    rows = by_component(runtime.run(Request(tmp_path, quick=True)).rows)
    assert faked == [0, *range(count)]  # the first one twice: what is set up once is not counted
    took = [seconds(image) for image in range(count)]
    stages = {name: middle([image[name] for image in took]) for name in took[0]}
    crown, vertex, sweep = stages[CROWN], stages["vertex: total"], stages[SWEEP]
    expected = {
        CROWN: (crown, crown / (crown + vertex)),
        "vertex: score, value and suffix bounds": (vertex - sweep, (vertex - sweep) / (crown + vertex)),
        SWEEP: (sweep, sweep / (crown + vertex)),
        "Hybrid: CROWN and vertex": (crown + vertex, 1.0),
    }
    for method in ("crown", "alpha-crown", "hybrid", "joint"):
        for stage in STAGES[1:]:
            if (method, stage) != ("joint", "rows"):  # it took nothing
                total = stages[f"{method}: total"]
                expected[f"{method}: {stage} (ours)"] = (
                    stages[f"{method}: {stage}"],
                    stages[f"{method}: {stage}"] / total,
                )
    assert rows.keys() == expected.keys()
    for name, (spent, fraction) in expected.items():
        assert rows[name] == {
            "Component": name,
            "Sec./img": pytest.approx(spent),
            "Fraction": pytest.approx(fraction),
            "Relative to CROWN": pytest.approx(spent / crown),
            "Status": "run",
        }


def test_a_finished_run_is_read_and_more_images_go_on_from_it(
    faked: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runtime.run(Request(tmp_path, quick=True))
    faked.clear()
    again = runtime.run(Request(tmp_path, quick=True))
    assert not faked
    assert again.rows == first.rows
    monkeypatch.setattr(runtime, "QUICK_IMAGES", 5)
    runtime.run(Request(tmp_path, quick=True))
    assert faked == [3, 4]
    faked.clear()
    runtime.run(Request(tmp_path, quick=True, seeds=(2,)))  # another seed is another model
    assert len(faked) == 6


@pytest.mark.usefixtures("faked")
def test_published_figures_are_the_papers_and_of_its_data_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "IMAGES", 2)
    data_files.write(tmp_path / "data" / "mnist", data_files.mnist_files())
    ours = runtime.run(Request(tmp_path, data_dir=tmp_path / "data"))
    seen = 0
    for row, theirs in zip(ours.rows, ours.published, strict=True):
        cells = PUBLISHED.get(str(row["Component"]))
        assert theirs == (dict(zip(("Sec./img", "Fraction"), cells, strict=True)) if cells else {})
        seen += cells is not None
    assert seen == len(PUBLISHED)
    assert "MNIST d=32,h=4,m=64, ε = 0.02, medians over 2 images" in ours.notes[0]
    other = runtime.run(Request(tmp_path, data="digits"))
    assert not any(other.published)
    assert "digits d=32,h=4,m=64, ε = 0.04" in other.notes[0]


def test_missing_data_has_the_published_rows_and_says_what_helps(faked: list[int], tmp_path: Path) -> None:
    result = runtime.run(Request(tmp_path, data_dir=tmp_path / "none"))
    assert not faked
    assert [row["Component"] for row in made.idle(result)] == list(PUBLISHED) == [r["Component"] for r in result.rows]
    assert all(set(row) == {"Component", "Status"} for row in result.rows)
    assert all(result.published)
    assert f"`vertex data fetch mnist --data-dir {tmp_path / 'none'}`" in result.notes[0]
    assert "medians over" not in " ".join(result.notes)


def test_one_image_is_really_timed_in_every_stage() -> None:
    model = PatchTransformer(patch=4, dim=8, heads=2, mlp=8, classes=3).double().eval()
    x = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ball = LinfBall(x, 0.01, clip=(0, 1))
    found = runtime._one(load(model, ball), ball, model(x).argmax(-1))
    assert {CROWN, SWEEP} | {f"{method}: total" for method in ("vertex", *runtime.OURS)} <= found.keys()
    assert all(spent >= 0 for spent in found.values())
    rows = by_component(tuple(runtime._rows(found)))
    assert PUBLISHED.keys() <= rows.keys()
    assert {f"{method}: total (ours)" for method in runtime.OURS} <= rows.keys()
