"""A real browser for the tests of pages: one page at a time, its complaints, and short ways to what is on it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

selenium = pytest.importorskip("selenium", reason="selenium is not installed: pip install selenium")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = ["headless=new", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking"]
FLAGS += ["disable-component-update", "disable-sync", "hide-scrollbars", "force-prefers-reduced-motion"]
needed = pytest.mark.skipif(
    not (CHROMIUM.exists() and DRIVER.exists()),
    reason="there is no Chromium: apt-get install chromium chromium-driver",
)


class Browser:
    """One page at a time, its complaints, and short ways to what is on it."""

    def __init__(self, driver: Any, downloads: Path) -> None:
        self.driver, self.downloads = driver, downloads

    def size(self, width: int, height: int = 900) -> None:
        form = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", form)

    def open(self, path: Path) -> None:
        self.driver.get(path.as_uri())
        self.wait("html[data-ready]")

    def wait(self, selector: str) -> Any:
        return WebDriverWait(self.driver, 20).until(lambda d: d.find_element(By.CSS_SELECTOR, selector))

    def one(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        return self.js("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def click(self, element: Any) -> None:
        """In the middle of the window, where the bar on top does not cover it."""
        self.js("arguments[0].scrollIntoView({ block: 'center' })", element)
        element.click()

    def js(self, code: str, *arguments: object) -> Any:
        return self.driver.execute_script(code, *arguments)

    def key(self, *keys: str) -> None:
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def until(self, code: str) -> None:
        WebDriverWait(self.driver, 20).until(lambda d: d.execute_script(f"return {code}"))

    def complaints(self) -> list[str]:
        return [line["message"] for line in self.driver.get_log("browser")]

    def picture(self, path: Path) -> bytes:
        found = base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", {})["data"])
        path.write_bytes(found)
        return found


@contextmanager
def started(folder: Path) -> Iterator[Browser]:
    """A browser whose profile and downloads are in the folder."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"user-data-dir={folder / 'profile'}"):
        options.add_argument(f"--{flag}")
    options.add_experimental_option("prefs", {"download.default_directory": str(folder / "downloads")})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield Browser(driver, folder / "downloads")
    finally:
        driver.quit()


CONTRAST = r"""
const rgb = (text) => { const c = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  c.fillStyle = text; c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data]; };
const light = (c) => c.slice(0, 3).map((v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, k) => sum + v * [.2126, .7152, .0722][k], 0);
const colours = new Map(), known = (text) => colours.get(text) ?? colours.set(text, rgb(text)).get(text);
const behind = (e) => { for (; e; e = e.parentElement) { const c = known(getComputedStyle(e).backgroundColor);
  if (c[3] === 255) return c; } return [255, 255, 255]; };
const bad = new Set(), seen = new Map();
for (const e of document.querySelectorAll("body *")) {
  if (e.closest(".picture, [hidden], script, :disabled") || !e.getClientRects().length) continue;
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
  const style = getComputedStyle(e), back = behind(e);
  const ink = e.namespaceURI.endsWith("svg") ? style.fill : style.color, key = ink + back;
  if (!seen.has(key)) {
    const [a, b] = [light(rgb(ink)), light(back)].sort((x, y) => y - x);
    seen.set(key, (a + .05) / (b + .05));
  }
  const found = seen.get(key).toFixed(2);
  if (found < 4.5) bad.add(`${e.tagName}.${e.getAttribute("class")} ${e.textContent.slice(0, 20)} ${found}`);
}
return [...bad];
"""
