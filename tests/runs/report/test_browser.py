"""The pages in a real browser: nothing is complained of, everything answers to the pointer and to the keyboard."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.runs.report import made
from tests.runs.report.test_run_page import hostile
from vertex_softmax.runs.report import run_page, sweep_page
from vertex_softmax.runs.report.numbers import at_most
from vertex_softmax.runs.run import write

selenium = pytest.importorskip("selenium", reason="selenium is not installed: pip install selenium")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.select import Select  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

from tests.runs.report.browsing import CONTRAST, Browser, needed  # noqa: E402

pytestmark = needed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, Path]:
    """Every kind of page, made once."""
    found = {}
    tokens = made.run(6)
    shape = (8, 8)  # tokens × width, around 0
    inputs = tuple(dataclasses.replace(x, pixels=made.shifted(x.pixels)) for x in tokens.inputs)
    attacks = tuple(dataclasses.replace(a, adversarial=None) for a in tokens.attacks)
    data = dataclasses.replace(tokens.data, shape=shape, clip=None)
    runs = {
        "run": made.run(60),
        "many": made.run(1000),
        "radius": made.radius_run(40),
        "hostile": hostile(made.run(12)),
        "tokens": dataclasses.replace(tokens, data=data, inputs=inputs, attacks=attacks),
        "empty": made.run(0),
    }
    for name, run in runs.items():
        write(run, folder / name)
        if name == "run":
            shutil.copy(Path(__file__).parents[3] / "docs" / "theorem.svg", folder / name)
        found[name] = run_page.write(folder / name)
    found["sweep"] = sweep_page.write(made.sweep_folder(folder / "sweep"))
    return found


@pytest.mark.parametrize("name", ["run", "radius", "hostile", "tokens", "empty", "sweep"])
def test_every_page_fits_a_phone_and_a_desk(browser, pages, tmp_path, name) -> None:
    for width in (360, 1280):
        browser.size(width, 740)
        browser.open(pages[name])
        assert browser.js("return document.documentElement.scrollWidth") <= width
        assert len(browser.picture(tmp_path / f"{name}-{width}.png")) > 5000
    assert browser.js("return performance.getEntriesByType('resource').length") == 0
    assert browser.js("return document.querySelectorAll('script').length") == 2
    assert not browser.js("return document.querySelectorAll('img, iframe, [onerror]').length")


def test_epsilon_changes_everything_that_shows_one(browser, pages) -> None:
    browser.open(pages["run"])
    Select(browser.one("#eps")).select_by_visible_text("0.01")
    before = browser.texts("#bars .value"), browser.texts("#tightness-readout"), browser.texts(".card .rows .n")
    Select(browser.one("#eps")).select_by_visible_text("0.08")
    after = browser.texts("#bars .value"), browser.texts("#tightness-readout"), browser.texts(".card .rows .n")
    assert all(a != b for a, b in zip(before, after, strict=True))
    run = made.run(60)
    assert after[0] == [f"{100 * (run.rate(m, 0.08) or 0):.0f} %" for m in run.methods]
    assert "At ε = 0.08" in browser.one("#rates-readout").text
    assert not browser.one("#eps-more").is_enabled()
    browser.click(browser.one("#eps-less"))
    assert "At ε = 0.06" in browser.one("#rates-readout").text


def test_the_chart_is_read_by_pointer_and_keyboard(browser, pages) -> None:
    browser.open(pages["run"])
    slider = browser.one("#rates-chart [role=slider]")
    ActionChains(browser.driver).move_to_element_with_offset(slider, slider.size["width"] // 2 - 16, 0).perform()
    assert browser.one("#rates-chart .tip-title").text == "ε = 0.08"
    assert len(browser.all("#rates-chart .tip p")) == 8
    browser.click(slider)  # in the middle
    slider.send_keys(Keys.HOME)
    assert "At ε = 0.01" in browser.one("#rates-readout").text
    slider.send_keys(Keys.ARROW_RIGHT)
    assert slider.get_attribute("aria-valuetext").startswith("ε = 0.02: not fooled")
    assert Select(browser.one("#eps")).first_selected_option.text == "0.02"


def test_the_legend_hides_a_method(browser, pages) -> None:
    browser.open(pages["run"])
    button = next(b for b in browser.all("#rates-legend button") if b.text == "crown")
    assert len(browser.all("#rates-chart .series")) == 6
    browser.click(button)
    assert button.get_attribute("aria-pressed") == "false"
    assert len(browser.all("#rates-chart .series")) == 5
    assert " crown" not in browser.one("#rates-readout").text
    assert len(browser.all("#tightness-chart .point")) == 5
    button.send_keys(Keys.SPACE)
    assert len(browser.all("#rates-chart .series")) == 6


def test_the_theme_follows_the_button_and_the_system(browser, pages, tmp_path) -> None:
    browser.open(pages["run"])
    colour = "return getComputedStyle(document.body).backgroundColor"
    light, canvas = browser.js(colour), "return document.querySelector('.map canvas').toDataURL()"
    drawn = browser.js(canvas)
    browser.click(browser.one("#theme"))
    dark = browser.js(colour)
    assert sum(map(int, re.findall(r"\d+", light))) > 600
    assert sum(map(int, re.findall(r"\d+", dark))) < 200
    assert browser.js(canvas) != drawn
    browser.picture(tmp_path / "dark.png")
    browser.driver.refresh()
    browser.wait("html[data-ready]")
    assert browser.js(colour) == dark  # it is kept
    browser.click(browser.one("#theme"))
    assert browser.js(colour) == light
    browser.js("localStorage.clear()")
    form = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", form)
    browser.driver.refresh()
    browser.wait("html[data-ready]")
    assert browser.js(colour) == dark
    assert browser.js(canvas) != drawn
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_text_stands_out_from_what_is_behind_it(browser, pages) -> None:
    """WCAG AA: 4.5 to 1, for every text that is shown, in light and in dark."""
    for theme in ("light", "dark"):
        browser.open(pages["run"])
        browser.js("document.documentElement.dataset.theme = arguments[0]", theme)
        assert browser.js(CONTRAST) == []


def test_a_card_opens_and_pictures_are_drawn(browser, pages) -> None:
    browser.open(pages["run"])
    assert len(browser.all(".card")) == 12
    Select(browser.one("#eps")).select_by_visible_text("0.08")
    Select(browser.one("#inputs-controls select")).select_by_visible_text("fooled by the attack")
    assert set(browser.texts(".card .chip")) == {"fooled"}
    button = browser.one(".card .open")
    button.send_keys(Keys.ENTER)
    dialog = browser.one("#detail")
    assert dialog.is_displayed()
    assert len(browser.all("#detail canvas")) == 3
    browser.until("document.querySelectorAll('#detail canvas[data-painted]').length === 3")
    shades = browser.js(
        "return [...document.querySelectorAll('#detail canvas')].map((c) =>"
        "[...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].filter((_, k) => k % 4 === 0))"
    )
    title = int(browser.one("#detail-title").text.split()[-1])
    levels = [round(255 * float(x)) for x in made.images()[0][title].reshape(-1)]
    assert shades[0] == levels
    changed = [abs(a - b) for a, b in zip(shades[0], shades[1], strict=True)]
    assert 1 <= max(changed) <= round(255 * 0.08) + 1
    assert len(browser.all("#detail tbody tr")) == 7
    assert "null" not in dialog.text
    assert "undefined" not in browser.one("main").text
    browser.key(Keys.ESCAPE)
    assert not dialog.is_displayed()
    assert browser.js("return document.activeElement.className") == "open"


def test_a_head_is_chosen_and_cells_are_told(browser, pages) -> None:
    browser.open(pages["run"])
    slack = made.slack()
    browser.click(browser.all(".pick")[0])
    heads = browser.all("button.head")
    assert len(heads) == 4
    browser.click(heads[2])
    assert "Head 3: how far its scores can move" in browser.texts("#slack-detail h3")
    assert browser.js("return document.activeElement.dataset.head") == "2"
    area = browser.all(".map")[1]
    area.send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    value = slack.attentions[0].score_width[2][1][2]
    assert browser.all("#slack-detail .readout")[1].text == f"row 2, key 3: width {value:.2f}"
    first = browser.all(".map")[0]
    ActionChains(browser.driver).move_to_element_with_offset(first, 3 - first.size["width"] // 2, 0).perform()
    assert re.match(r"head [23], row 1: slack 0\.0\d+", browser.all("#slack-detail .readout")[0].text)


def rows(browser: Browser, column: int) -> list[str]:
    return browser.texts(f"#answers-table tbody tr > :nth-child({column})")


def test_the_table_is_sorted_filtered_and_copied(browser, pages) -> None:
    browser.open(pages["run"])
    run = made.run(60)
    heads = browser.all("#answers-table thead button")
    assert " ".join(h.text for h in heads) == "input label method ε verdict bound target attack time reason"
    heads[5].send_keys(Keys.ENTER)
    assert browser.one("#answers-table th[aria-sort=ascending]").text.startswith("bound")
    lowest = min(a.bound for a in run.answers if a.bound is not None)
    assert rows(browser, 6)[0] == f"−{-lowest:.1f}"
    browser.click(heads[5])
    assert browser.one("#answers-table th[aria-sort=descending]").text.startswith("bound")
    assert rows(browser, 6)[0].startswith("+")
    selects = browser.all("#answers-table .controls select")
    Select(selects[0]).select_by_visible_text("joint")
    Select(selects[1]).select_by_visible_text("0.06")
    Select(selects[2]).select_by_visible_text("certified")
    held = [a for a in run.answers if (a.method, a.eps, a.verdict) == ("joint", 0.06, "verified")]
    assert browser.one("#answers-table .count").text == f"{len(held)} of 1,800 rows"
    assert set(rows(browser, 3)) == {"joint"}
    Select(selects[2]).select_by_visible_text("all")
    browser.one("#answers-table input").send_keys("Bound not above -")
    unknown = [a for a in run.answers if (a.method, a.eps, a.verdict) == ("joint", 0.06, "unknown")]
    browser.until(f"document.querySelector('#answers-table .count').textContent === '{len(unknown)} of 1,800 rows'")
    browser.click(browser.one("#answers-table .foot button:last-of-type"))
    place = browser.downloads / "answers.csv"
    WebDriverWait(browser.driver, 20).until(lambda _d: place.exists() and place.stat().st_size > 0)
    lines = place.read_text().splitlines()
    assert lines[0].startswith('"input","label","method","ε"')
    assert len(lines) == len(unknown) + 1


def test_a_sheet_takes_no_formula_from_a_name(browser, pages, folder) -> None:
    run = made.run(2, methods=("joint",))
    bad = dataclasses.replace(run, answers=tuple(dataclasses.replace(a, reason='=cmd("x")') for a in run.answers))
    write(bad, folder / "formula")
    browser.open(run_page.write(folder / "formula"))
    browser.js("navigator.clipboard.writeText = (text) => { document.title = text; return Promise.resolve(); }")
    browser.click(browser.one("#answers-table .foot button"))
    browser.until("document.title.startsWith('\"input\"')")
    assert '"\'=cmd(""x"")"' in browser.js("return document.querySelector('title').textContent")
    assert "10 rows copied" in browser.one("#answers-table .foot").text


def test_the_keyboard_alone_is_enough(browser, pages) -> None:
    browser.open(pages["run"])
    here = "const e = document.activeElement, name = e.id || e.getAttribute('class') || '';"
    here += "return [name, getComputedStyle(e).outlineStyle]"
    browser.key(Keys.TAB)
    assert browser.js(here)[0] == "skip"
    browser.key(Keys.ENTER, Keys.TAB)
    assert browser.js("return location.hash") == "#main"
    seen = []
    for _ in range(60):
        name, outline = browser.js(here)
        if name == "open":
            break
        assert outline != "none", name
        seen.append(name)
        browser.key(Keys.TAB)
    assert "over" in seen  # the chart
    assert "tightness-of" in seen
    assert sum("point" in name for name in seen) == 6
    browser.key(Keys.ENTER)
    assert browser.one("#detail").is_displayed()
    browser.key(Keys.ESCAPE)
    assert browser.js(here)[0] == "open"


def test_a_thousand_inputs_are_paged(browser, pages) -> None:
    browser.open(pages["many"])
    assert len(browser.all(".card")) == 12
    assert browser.one("#inputs-controls .count").text == "1,000 inputs"
    browser.click(browser.one("#cards-pager button[aria-label='Last page']"))
    assert len(browser.all(".card")) == 1000 % 12
    assert browser.one("#answers-table .count").text == "30,000 rows"
    assert browser.js("return document.querySelectorAll('*').length") < 4000
    browser.click(browser.all("#answers-table thead button")[8])
    browser.click(browser.one("#answers-table .pager button[aria-label='Last page']"))
    assert len(rows(browser, 1)) == 50


def test_radii_are_steps(browser, pages) -> None:
    browser.open(pages["radius"])
    run = made.radius_run(40)
    slider = browser.one("#radii-chart [role=slider]")
    slider.send_keys(Keys.HOME)
    start = sum(r.certified > 0 for r in run.radii if r.method == "joint") / 40
    assert f"joint {100 * start:.0f} %" in browser.one("#radii-readout").text
    slider.send_keys(Keys.END)
    assert "joint 0 %" in browser.one("#radii-readout").text
    assert not browser.all("#eps")
    best = max(r.certified for r in run.radii if r.input == 0)
    assert browser.one(".card .chip").text == f"radius {at_most(best):g}"
    assert browser.one("#radii-table .count").text == "240 rows"


def test_hostile_names_are_only_read(browser, pages) -> None:
    browser.open(pages["hostile"])
    browser.click(browser.one(".card .open"))
    browser.click(browser.one("#detail button:last-of-type"))
    assert browser.js("return document.querySelectorAll('script').length") == 2
    for place in ("#rates-legend button", "h1", "#bars .name", "#slack-detail h3", ".card-facts dd"):
        shown = "return document.querySelector(arguments[0]).textContent.includes('</script><script>alert(1)')"
        assert browser.js(shown, place), place  # asked there: half a surrogate pair does not travel


def test_a_bound_far_below_zero_is_not_drawn_at_zero(browser, folder) -> None:
    """A single open instance among many proofs lies left of 0, at the edge, and the page says so."""
    out = made.sweep_folder(folder / "far", 20)
    journal = out / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for i, line in enumerate(lines):
        line["bounds"] = [[-80.0 if i == 0 else 5 + i / 100]]
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    browser.open(sweep_page.write(out))
    assert browser.one("#bounds-readout").text.endswith("19 lie above 0. 1 further out is drawn at the edge.")
    marks = browser.js(
        "const box = (e) => e.getBoundingClientRect(), zero = box(document.querySelector('#bounds-chart .zero')).x;"
        "return [...document.querySelectorAll('#bounds-chart [class^=mark-]')].map((e) => box(e).right - zero)"
    )
    assert len(marks) == 20
    assert sum(place < -50 for place in marks) == 1


def test_the_sweep_is_counted_and_filtered(browser, pages) -> None:
    browser.open(pages["sweep"])
    data = json.loads((pages["sweep"].parent / "summary.json").read_text())
    decided = [m["verified"] + m["falsified"] for m in data["models"]]
    assert browser.texts("#bars .value") == [f"{d} of 20" for d in decided]
    assert f"all models {sum(decided)}" in browser.one("#time-readout").text
    Select(browser.all("#instances-table select")[1]).select_by_visible_text("verified")
    assert browser.one("#instances-table .count").text == f"{data['total']['verified']} of 40 rows"
    browser.click(browser.all("#time-legend button")[0])
    assert "all models" not in browser.one("#time-readout").text
