"""A result is saved whole, in four forms, with the published figures apart from ours."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from vertex_softmax.errors import InternalError, MissingDependencyError
from vertex_softmax.experiments import EXPERIMENTS, Column, ExperimentResult, Request
from vertex_softmax.experiments.result import new_figure, save_figure, versions


def example(**changes: object) -> ExperimentResult:
    fields: dict[str, object] = {
        "name": "example",
        "title": "An example",
        "columns": (Column("K"), Column("Seconds", ".2f"), Column("Equal")),
        "rows": ({"K": 8, "Seconds": 0.125, "Equal": True}, {"K": 16, "Seconds": None, "Equal": False}),
        "published": ({"Seconds": 0.5}, {}),
        "notes": ("A note.",),
        "settings": {"seed": 0},
        "seconds": 1.25,
        "versions": {"python": "3"},
    }
    return ExperimentResult(**(fields | changes))  # type: ignore[arg-type]


def test_markdown_shows_the_published_figure_beside_ours() -> None:
    assert example().markdown() == (
        "# An example\n\n"
        "| K | Seconds, ours | Seconds, published | Equal |\n"
        "| --- | --- | --- | --- |\n"
        "| 8 | 0.12 | 0.50 | yes |\n"
        "| 16 | – | – | no |\n\n"
        "- A note.\n\n"
        "1.2 s. seed 0; python 3.\n"
    )


def test_saved_files_read_back(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    paths = example().save(out)
    assert sorted(path.name for path in out.iterdir()) == ["example.csv", "example.json", "example.md", "example.tex"]
    assert [path.suffix for path in paths] == [".json", ".md", ".csv", ".tex"]
    read = json.loads(paths[0].read_text())
    assert read["rows"][0] == {"K": 8, "Seconds": 0.125, "Equal": True}
    assert read["published"] == [{"Seconds": 0.5}, {}]
    assert read["columns"] == ["K", "Seconds", "Equal"]
    assert list(csv.reader(paths[2].open())) == [
        ["K", "Seconds, ours", "Seconds, published", "Equal"],
        ["8", "0.125", "0.5", "True"],
        ["16", "", "", "False"],
    ]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example().save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:5])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="no space"):
        example(seconds=9.0).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_cells_without_a_column_and_missing_rows_are_refused() -> None:
    with pytest.raises(InternalError, match="without a column: Minutes"):
        example(published=({"Minutes": 1.0}, {}))
    with pytest.raises(InternalError, match="2 rows, 1 published"):
        example(published=({},))


def test_figures_are_saved_as_svg_and_png_and_do_not_change(tmp_path: Path) -> None:
    figure = new_figure()
    figure.subplots().plot([1, 2], [3, 4])
    svg, png = save_figure(figure, tmp_path, "example")
    assert svg.read_text().lstrip().startswith("<?xml")
    assert png.read_bytes().startswith(b"\x89PNG")
    first = svg.read_bytes()
    save_figure(figure, tmp_path, "example")
    assert svg.read_bytes() == first


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("threshold", "matplotlib", "report"), ("slack", "matplotlib", "report"), ("interval", "flint", "proof")],
)
def test_a_missing_extra_shows_before_the_work(
    name: str, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [m for m in sys.modules if m.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=rf"pip install 'vertex-softmax\[{extra}\]'"):
        EXPERIMENTS[name].run(Request(tmp_path, quick=True, progress=lambda *_: pytest.fail("the work began")))
    assert not list(tmp_path.iterdir())


def test_versions_name_what_was_used() -> None:
    assert {"python", "machine", "numpy", "torch"} <= versions().keys()


def test_every_experiment_has_its_name_and_a_label_of_the_paper() -> None:
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert experiment.title
        assert experiment.table.startswith("tab:")
