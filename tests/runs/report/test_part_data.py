from __future__ import annotations

import base64
import dataclasses
from pathlib import Path

import numpy as np

from tests.runs.report.sentences_made import patches_run, words_run
from tests.runs.report.test_run_page import Page, check_alone
from vertex_softmax.runs.records import unpacked
from vertex_softmax.runs.report import run_page
from vertex_softmax.runs.report.part_data import attention_data, part_rows, parts_data
from vertex_softmax.runs.run import write


def test_the_page_of_patches(tmp_path: Path) -> None:
    run = patches_run()
    write(run, tmp_path)
    text = run_page.write(tmp_path).read_text()
    check_alone(text)
    found = Page(text)
    assert "Patch by patch" in found.text
    assert "One patch of 4 × 4 pixels moves at a time" in found.text
    assert "one patch of 4 × 4 pixels at a time" in found.text
    assert "A patch of 3 images may move alone by ε = 0.2" in found.text
    assert "9 of 12 of them, from ε = 0.4 on" in found.text
    data = found.data["parts"]
    assert (data["kind"], data["rows"], data["columns"]) == ("patches", 2, 2)
    assert data["best"][0] == [[0.1, 0.4], [0.2, 0.601], [0.3, 0.8], [0.4, None]]
    assert data["medians"] == [0.2]


def test_one_row_per_input_tells_the_weakest_part() -> None:
    (first, *_) = part_rows(patches_run())
    assert first["least"] == "0.1"
    assert first["weakest"] == "row 1, column 1"
    assert (first["median"], first["most"], first["fooled"], first["by"]) == ("0.2", "0.4", "0.4", "row 1, column 1")
    never = tuple(dataclasses.replace(r, attacked=None) for r in patches_run().part_radii)
    assert part_rows(patches_run(part_radii=never))[0]["fooled"] == "–"
    assert part_rows(words_run())[0]["weakest"] == "the (1)"
    assert part_rows(patches_run(part_radii=())) == []
    assert parts_data(dataclasses.replace(patches_run(), parts=None, part_radii=())) is None


def test_ranges_of_weights_are_rounded_outward() -> None:
    run = words_run()
    (first, second) = attention_data(run)
    layer, given = first["layers"][1], run.attention[0].layers[1]
    low, at, high = (np.frombuffer(base64.b64decode(layer[k]), "<u2") / 65535 for k in ("lower", "weights", "upper"))
    assert given.lower is not None
    assert given.upper is not None
    assert (low <= unpacked(given.lower, (128,))).all()
    assert (high >= unpacked(given.upper, (128,))).all()
    assert np.abs(at - unpacked(given.weights, (128,))).max() <= 0.5 / 65535 + 1e-12
    assert (layer["heads"], layer["rows"], layer["keys"]) == (2, 8, 8)
    assert second["layers"][0]["lower"] is None
