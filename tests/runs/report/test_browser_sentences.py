"""The pages of words, choices, patches and proofs in a real browser: on a phone, in the dark, by keyboard."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.runs.report.sentences_made import WORDS, choices_run, patches_run, words_run
from tests.runs.report.test_run_page import BAD
from tests.runs.test_accuracy import RECORD
from vertex_softmax.runs.accuracy import write_accuracy
from vertex_softmax.runs.report import accuracy_page, run_page
from vertex_softmax.runs.run import write

selenium = pytest.importorskip("selenium", reason="selenium is not installed: pip install selenium")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.select import Select  # noqa: E402

from tests.runs.report.browsing import CONTRAST, Browser, needed  # noqa: E402

pytestmark = needed
OPEN = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind of page, made once."""
    folder, found = tmp_path_factory.mktemp("sentences"), {}
    hostile = words_run(words=dict.fromkeys(WORDS, BAD + "x" * 900))
    runs = {
        "words": words_run(),
        "choices": choices_run(),
        "patches": patches_run(),
        "hostile": dataclasses.replace(hostile, data=dataclasses.replace(hostile.data, classes=(BAD, BAD))),
        "nothing": words_run(part_radii=(), attention=(), words={}),
        "no-inputs": patches_run(inputs=(), part_radii=()),
    }
    for name, run in runs.items():
        write(run, folder / name)
        found[name] = run_page.write(folder / name)
    write_accuracy(RECORD, folder / "proof")
    found["proof"] = accuracy_page.write(folder / "proof")
    return found


@pytest.mark.parametrize("name", ["words", "choices", "patches", "hostile", "nothing", "no-inputs", "proof"])
def test_every_page_fits_and_can_be_read(browser: Browser, pages: dict[str, Path], name: str) -> None:
    """360 and 1280 pixels wide, light and dark, with all that is behind a click: 4.5 to 1 for every text."""
    for width, theme in ((360, "light"), (1280, "dark"), (360, "dark"), (1280, "light")):
        browser.size(width, 740)
        browser.open(pages[name])
        browser.js("document.documentElement.dataset.theme = arguments[0]", theme)
        browser.js(OPEN)
        browser.until("[...document.querySelectorAll('details.attention > div')].every((e) => e.hasChildNodes())")
        assert browser.js("return document.documentElement.scrollWidth") <= width
        assert browser.js(CONTRAST) == []
    assert browser.js("return performance.getEntriesByType('resource').length") == 0
    assert browser.js("return document.querySelectorAll('script').length") == 2
    assert not browser.js("return document.querySelectorAll('img, iframe, [onerror]').length")
    assert "undefined" not in browser.one("main").text
    assert "null" not in browser.one("main").text


KEY = """
const of = (selector) => [...document.querySelectorAll(selector)].map((e) => getComputedStyle(e).backgroundColor);
const steps = [...Array(8).keys()];
return [steps.flatMap((k) => of(`.word.b${k} .text`).map((found) => [k, found, of(`.swatch-step.b${k}`)[0]])),
  [of('.bars .part.k0'), of('.key .part.k0')]];
"""
"""[step, a word's colour, the key's colour] of every word, and the colours of verified bars with those of their key."""


def test_the_keys_have_the_colours_of_what_they_explain(browser: Browser, pages: dict[str, Path]) -> None:
    for theme in ("light", "dark"):
        browser.open(pages["words"])
        browser.js("document.documentElement.dataset.theme = arguments[0]", theme)
        words = browser.js(KEY)[0]
        assert {step for step, _, _ in words} >= {0, 7}
        assert all(found == told for _, found, told in words)
        browser.open(pages["choices"])
        browser.js("document.documentElement.dataset.theme = arguments[0]", theme)
        bars, told = browser.js(KEY)[1]
        assert bars
        assert set(bars) <= set(told)


def test_words_carry_their_radii(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["words"])
    words = browser.texts(".sentence:first-of-type .word")
    assert words[0] == "[CLS]"
    assert words[1] == "thethe weakest word, certified 0.15, fooled at 0.2"
    assert words[7] == "goodcertified 1.05, fooled at –"
    colour = "return [...document.querySelectorAll('.text')].map((e) => getComputedStyle(e).backgroundColor)"
    assert len(set(browser.js(colour)[1:8])) >= 4
    assert browser.texts(".word.weakest .text") == ["the"]
    assert browser.texts("#bars .value") == ["0", "0"]  # the median of words half of which are misclassified
    assert browser.one("#parts-table .count").text == "28 rows"
    Select(browser.one("#parts-table .controls select")).select_by_visible_text("joint")
    assert browser.one("#parts-table .count").text == "14 of 28 rows"
    assert browser.texts("#parts-table tbody tr:first-child > *")[:6] == ["0", "1", "the", "joint", "0.15", "0.158"]


def test_attention_rows_are_behind_a_click(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["words"])
    details = browser.one("details.attention")
    assert not browser.all(".attention .map")
    summary = details.find_element("css selector", "summary")
    summary.send_keys(Keys.ENTER)
    browser.wait(".attention .map")
    assert "While the word at position 1 alone moves within ε = 0.15" in details.text
    assert browser.texts(".attention .rows-table h4") == ["The row of “[CLS]”"]
    area = browser.one(".attention .map")
    area.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ENTER)
    readout = browser.one(".attention .readout").text
    assert readout.startswith("“film” looks at “the”: 0.")
    assert ", between " in readout
    assert browser.texts(".attention .rows-table h4") == ["The row of “film”"]
    cells = browser.texts(".attention .rows-table tbody tr:nth-child(2) > *")
    assert cells[0] == "“the”"
    assert float(cells[2]) <= float(cells[1]) <= float(cells[3])
    before = browser.texts(".attention .rows-table td")
    layer, head = browser.all(".attention select")[:2]
    Select(head).select_by_visible_text("2")
    after = browser.texts(".attention .rows-table td")
    assert before != after
    Select(layer).select_by_visible_text("2: encoder.1.attention")
    assert browser.texts(".attention .rows-table td") != after
    second = browser.all("details.attention")[1]
    second.find_element("css selector", "summary").send_keys(Keys.ENTER)
    browser.until("document.querySelectorAll('.attention .map').length === 2")
    assert "at least" not in second.text  # nothing is known of how far it moves


def test_choices_that_break_a_sentence_are_marked(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["choices"])
    assert browser.texts(".word.broken .becomes bdi") == ["not", "awful"]
    assert browser.texts(".option.k2 bdi") == ["awful"]
    assert browser.texts("#bars .value") == ["1 of 2", "0 of 1"]
    assert browser.texts(".sentence .chip") == [
        "label: positive",
        "bab: verified",
        "crown: unknown",
        "label: positive",
        "bab: falsified",
    ]


def test_maps_of_patches_are_read_by_pointer_and_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["patches"])
    maps = browser.all("#patch-cards .map")
    assert len(maps) == 6
    assert browser.texts("#patch-cards .readout")[0] == (
        "Smallest: row 1, column 1: certified up to ε = 0.1, fooled at ε = 0.4"
    )
    maps[0].send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert browser.texts("#patch-cards .readout")[0] == "row 2, column 2: certified up to ε = 0.4, never fooled"
    assert browser.js("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    ActionChains(browser.driver).move_to_element_with_offset(maps[1], 5 - maps[1].size["width"] // 2, 5).perform()
    assert browser.texts("#patch-cards .readout")[1].startswith("row 2, column 1: certified up to ε = 0.3")
    shades = (
        "return [...document.querySelectorAll('#patch-cards .map canvas')].slice(0, 2).map((c) =>"
        "{ const d = c.getContext('2d').getImageData(0, 0, 2, 2).data;"
        "return [0, 4, 8, 12].map((k) => d[k] + d[k + 1] + d[k + 2]); })"
    )
    drawn = "return document.querySelector('#patch-cards .map canvas').toDataURL()"
    light, before = browser.js(shades), browser.js(drawn)
    assert light[0] == sorted(light[0], reverse=True)  # darker for a larger radius
    assert light[1][3] == min(light[0] + light[1])  # never fooled
    browser.click(browser.one("#theme"))
    assert browser.js(drawn) != before
    browser.js("localStorage.clear()")
    browser.click(browser.one("#patch-cards summary"))
    browser.wait("#patch-cards .pair-table")
    assert browser.texts("#patch-cards .pair-table td") == ["0.1 – 0.4", "0.2 – 0.601", "0.3 – 0.8", "0.4 – not fooled"]


def test_the_map_of_a_proof(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["proof"])
    area = browser.one("#groups-map .map")
    area.send_keys(Keys.ARROW_RIGHT)
    assert browser.one("#groups-map .readout").text == "last token 0, largest token 1: 2 of 2 proved right, 0 wrong"
    area.send_keys(Keys.ARROW_DOWN, Keys.ARROW_LEFT)
    assert browser.one("#groups-map .readout").text == "last token 1, largest token 0: no inputs"
    assert browser.texts(".sequences li") == ["2 0", "0 0", "2 2"]


def test_the_keyboard_alone_is_enough(browser: Browser, pages: dict[str, Path]) -> None:
    """Every stop of the tabulator has an outline, and the details, maps and tables are among them."""
    for name, wanted in (
        ("words", {"SUMMARY", "SELECT"}),
        ("patches", {"SUMMARY", "DIV"}),
        ("proof", {"SUMMARY", "DIV"}),
    ):
        browser.open(pages[name])
        browser.js("document.activeElement.blur(); scrollTo(0, 0)")
        seen = set()
        for _ in range(40):
            browser.key(Keys.TAB)
            tag, outline = browser.js(
                "const e = document.activeElement; return [e.tagName, getComputedStyle(e).outlineStyle]"
            )
            if tag == "BODY":
                break
            assert outline != "none", tag
            seen.add(tag)
        assert wanted <= seen, name
