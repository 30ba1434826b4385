"""A result is saved whole, in four forms, with the published figures apart from ours."""

from __future__ import annotations

import csv
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vertex_lab.experiments import EXPERIMENTS, Column, ExperimentResult, Request, interval
from vertex_lab.experiments.result import LATEX, machine, new_figure, save_figure, versions
from vertex_lab.experiments.tables import LABELS
from vertex_softmax.foundation import outputs
from vertex_softmax.foundation.errors import InternalError, MissingDependencyError


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


def test_json_has_everything_to_the_last_bit() -> None:
    cells = {"K": 2**60, "Seconds": 0.1 + 0.2, "Equal": "a \u2028 “b” \\ </script>"}
    made = example(rows=(cells, {"K": None}), published=({"Seconds": 5e-324}, {}), failures=("it broke",))
    read = json.loads(made.json())
    assert read["rows"] == [cells, {"K": None}]
    assert read["published"] == [{"Seconds": 5e-324}, {}]
    assert (read["columns"], read["formats"]) == (["K", "Seconds", "Equal"], ["", ".2f", ""])
    assert (read["failures"], read["notes"], read["settings"]) == (["it broke"], ["A note."], {"seed": 0})
    assert (read["seconds"], read["versions"], read["title"]) == (1.25, {"python": "3"}, "An example")
    columns = tuple(map(Column, read["columns"], read.pop("formats")))
    again = ExperimentResult(**(read | {"columns": columns}))
    assert again.json() == made.json()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_no_number_that_json_does_not_have(number: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        example(rows=({"K": number}, {}), published=({}, {})).json()


def test_failures_are_shown_in_every_form_that_has_words() -> None:
    made = example(failures=("1 | 2 bounds are broken", "another\nin two lines"))
    assert "- DOES NOT HOLD: 1 | 2 bounds are broken\n- DOES NOT HOLD: another" in made.markdown()
    assert json.loads(made.json())["failures"] == list(made.failures)
    comments = [line for line in made.latex().splitlines() if line.startswith("%")]
    assert comments == ["% An example", "% 1 | 2 bounds are broken", "% another in two lines", "% A note."]
    assert "DOES NOT HOLD" not in example().markdown()


def plain(latex: str) -> list[str]:
    """The cells of a line of LaTeX as a reader sees them; fails where LaTeX would."""
    letters = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^"}
    mathematics = {"\\varepsilon": "ε", "\\alpha": "α", "\\Delta": "Δ", "\\times": "×", "\\le": "≤", "\\ge": "≥"}
    mathematics |= {"-": "−", "\\pm": "±", "<": "<", ">": ">", "|": "|"}
    assert latex.endswith(r" \\")
    rest, cells = latex.removesuffix(r" \\"), [""]
    while rest:
        if rest[0] == "\\" and rest[1] in "&%$#_{}":
            cells[-1], rest = cells[-1] + rest[1], rest[2:]
        elif rest[0] == "\\":
            name, _, rest = rest[1:].partition("{}")
            cells[-1] += letters[name]
        elif rest[0] == "$":
            inside, _, rest = rest[1:].partition("$")
            cells[-1] += mathematics[inside]
        elif rest.startswith(" & "):
            cells.append("")
            rest = rest[3:]
        elif rest.startswith("--"):
            cells[-1], rest = cells[-1] + "–", rest[2:]
        else:
            assert rest[0] not in "&%#_{}~^<>|"
            cells[-1], rest = cells[-1] + rest[0], rest[1:]
    return cells


SPECIAL = "".join(LATEX)


@given(st.text(st.sampled_from(SPECIAL + "ab 1."), max_size=12), st.text(st.sampled_from(SPECIAL), max_size=5))
def test_every_special_character_is_written_as_itself(first: str, second: str) -> None:
    made = example(columns=(Column(f"K{second}"), Column("S")), rows=({"S": first},), published=({"S": second},))
    lines = made.latex().splitlines()
    head, body = (lines[lines.index(rule) + 1] for rule in ("\\toprule", "\\midrule"))
    assert plain(head) == [f"K{second}", "S, ours", "S, published"]
    assert plain(body) == ["–", first, second]


def test_all_that_experiments_write_can_be_written_in_latex() -> None:
    assert set("&%$#_{}~^\\<>|") <= set(LATEX)
    texts = [*LABELS.values(), *(family.scope for family in interval.FAMILIES)]
    for name in EXPERIMENTS:
        module = importlib.import_module(f"vertex_lab.experiments.{name}")
        texts += [column.name for column in getattr(module, "COLUMNS", ())]
        texts += [setting.name for setting in getattr(module, "SETTINGS", ())]
    assert {character for text in texts for character in text if ord(character) > 127} <= set(LATEX)


def test_latex_puts_text_left_and_numbers_right_and_keeps_the_shape() -> None:
    made = example(
        columns=(Column("Name"), Column("K"), Column("Interval"), Column("Mixed"), Column("Empty")),
        rows=({"Name": "a", "K": 1, "Mixed": 2}, {"Name": "b", "K": 2.5, "Mixed": "two"}),
        published=({"Interval": "[1, 2]", "K": 3}, {}),
    )
    lines = made.latex().splitlines()
    assert r"\begin{tabular}{lrrlllr}" in lines
    first, last = (lines.index(rule) for rule in (r"\midrule", r"\bottomrule"))
    assert last - first == 3
    assert [plain(line) for line in lines[first + 1 : last]] == [
        ["a", "1", "3", "–", "[1, 2]", "2", "–"],
        ["b", "2.5", "–", "–", "–", "two", "–"],
    ]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_latex_compiles(tmp_path: Path) -> None:
    made = example(rows=({"K": SPECIAL}, {"K": 2}), failures=("a\n\\undefined",)).latex()
    (tmp_path / "table.tex").write_text(
        f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}\n{made}\\end{{document}}\n"
    )
    subprocess.run(["pdflatex", "-halt-on-error", "table.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    line = example(rows=({"Equal": "a|b"}, {})).markdown().splitlines()[4]
    assert line == "| – | – | 0.50 | a\\|b |"


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example().save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(_number: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(outputs.os, "fsync", full_disk)
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
    assert machine() == machine("cpu") == versions()["machine"]
    assert "cores" in machine()


def test_every_experiment_has_its_name_and_a_label_of_the_paper() -> None:
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert experiment.title
        assert experiment.table.startswith("tab:")
