"""A browser, and what holds for every page that it shows: names of controls, contrast, width."""

import base64
import json
import os
import pathlib

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from harness import PROGRAM, expect, expect_equal, wait_until

PICTURES = pathlib.Path(os.environ.get("BROWSER_PICTURES", pathlib.Path(PROGRAM).parent / "browser"))
WIDE, NARROW = (1280, 900), (390, 844)
TIMEOUT_S = 30
# Roles of elements that somebody can use. Each needs a name that a screen reader says.
CONTROLS = {"button", "link", "textbox", "searchbox", "combobox", "checkbox", "img", "meter", "progressbar", "option",
            "spinbutton", "region", "navigation", "dialog", "table"}

# The contrast of every visible text with what is behind it, as WCAG counts it; those below 4.5.
CONTRAST = """
const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
const over = (a, b) => a.slice(0, 3).map((v, i) => v * a[3] + b[i] * (1 - a[3])).concat(1);
const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const known = new Map([[null, [255, 255, 255, 1]]]);
function behind(element) {
  if (!known.has(element)) known.set(element, over(parse(getComputedStyle(element).backgroundColor), behind(element.parentElement)));
  return known.get(element);
}
const found = [];
let texts = 0;
function check(element, colour, text) {
  const back = behind(element), front = over(parse(colour), back);
  const [a, b] = [light(front), light(back)].sort((x, y) => y - x), contrast = (a + 0.05) / (b + 0.05);
  texts++;
  if (contrast < 4.5) found.push(`${contrast.toFixed(2)}: ${text}`);
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode());) {
  const element = node.parentElement, text = node.textContent.trim();
  if (!text || !element.checkVisibility() || element.closest(".unseen, noscript, title")) continue;
  check(element, getComputedStyle(element).color, text);
}
for (const input of document.querySelectorAll("input, select")) {
  if (!input.checkVisibility() || input.type === "checkbox") continue;
  check(input, getComputedStyle(input).color, input.name);
  if (input.placeholder) check(input, getComputedStyle(input, "::placeholder").color, input.placeholder);
}
return [texts, found];
"""


class Browser:
    def __init__(self):
        PICTURES.mkdir(parents=True, exist_ok=True)
        options = Options()
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars",
                         "--force-device-scale-factor=1", "--window-size=1280,900", "--lang=en"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
        self.expected = ()
        self.origins = set()

    def close(self):
        self.driver.quit()

    # ---- what a test begins and ends with -----------------------------------------------------
    def begin(self):
        self.expected = ()
        self.origins = set()
        self.driver.get("about:blank")
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.look()

    def check_end(self):
        """No request has gone elsewhere, and no error was logged but answers that the test expects, by their
        status."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                expect(url.startswith(tuple(self.origins)) or url == "about:blank", f"a request to {url}")
        for entry in self.driver.get_log("browser"):
            # A page may still ask a server that its test has ended.
            ways = ("net::ERR_CONNECTION", "net::ERR_EMPTY_RESPONSE", *map(str, self.expected))
            answers = entry["source"] == "network" and any(way in entry["message"] for way in ways)
            expect(entry["level"] not in ("SEVERE", "WARNING") or answers, f"the browser's console: {entry}")

    # ---- looking ------------------------------------------------------------------------------
    def look(self, size=WIDE, dark=False):
        width, height = size
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == NARROW})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def open(self, url, place=""):
        """The page of a server, from the beginning: the token is forgotten."""
        self.origins.add(url)
        self.driver.get("about:blank")
        self.driver.get(f"{url}/console{place}")

    def go(self, place):
        self.script("location.hash = arguments[0]", place)

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def count(self, selector):
        return self.script("return document.querySelectorAll(arguments[0]).length", selector)

    def text(self, selector):
        """That of the first one that is shown; "" where there is none."""
        return self.script("return [...document.querySelectorAll(arguments[0])].find((e) => e.checkVisibility())"
                           "?.innerText ?? ''", selector)

    def attribute(self, selector, name):
        return self.script("return document.querySelector(arguments[0])?.getAttribute(arguments[1])", selector, name)

    def wait(self, condition, what):
        def holds():
            try:
                return condition()
            except StaleElementReferenceException:
                return False
        wait_until(holds, f"{what}; the page has: {self.text('body')[:2000]!r}", TIMEOUT_S)

    def wait_text(self, selector, part):
        self.wait(lambda: part in self.text(selector), f"{selector} lacks {part!r}")

    def wait_for(self, selector):
        self.wait(lambda: self.count(selector), f"there is no {selector}")

    # ---- using --------------------------------------------------------------------------------
    def one(self, selector):
        self.wait_for(selector)
        return self.all(selector)[0]

    def press(self, selector):
        self.wait(lambda: self.one(selector).is_enabled(), f"{selector} cannot be pressed")
        element = self.one(selector)
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def fill(self, selector, text, enter=False):
        element = self.one(selector)
        element.clear()
        element.send_keys(text, *([Keys.ENTER] if enter else []))

    def choose(self, selector, value):
        self.press(f"{selector} option[value='{value}']")

    def keys(self, *keys):
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def answer(self, yes):
        self.wait_for("dialog[open]")
        question = self.text("dialog[open] p")
        self.press(f"dialog[open] [value={'yes' if yes else 'no'}]")
        self.wait(lambda: not self.all("dialog[open]"), "the question stays")
        return question

    # ---- what holds for every page ------------------------------------------------------------
    def check(self, picture, controls_at_least=6):
        """Every control has a name, texts can be read, nothing is wider than the page; a picture is left."""
        tree = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        controls = [n for n in tree if not n["ignored"] and n["role"]["value"] in CONTROLS]
        expect(len(controls) >= controls_at_least, f"{picture}: {len(controls)} controls")
        nameless = [n["role"]["value"] for n in controls if not n.get("name", {}).get("value")]
        expect_equal(nameless, [], f"{picture}: controls without a name")
        texts, weak = self.script(CONTRAST)
        expect(texts > 3 and not weak, f"{picture}: {texts} texts, too little contrast: {weak}")
        width, room = self.script("return [document.documentElement.scrollWidth, innerWidth]")
        expect(width <= room, f"{picture}: the page is {width} wide, and {room} is there")
        if width >= WIDE[0]:
            cut = self.script("return [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth)"
                              ".map((e) => e.getAttribute('aria-label'))")
            expect_equal(cut, [], f"{picture}: tables whose last columns are cut")
        expect_equal(len(self.all("h1")), 1, f"{picture}: headings")
        self.picture(picture)

    def picture(self, name):
        width, height = self.script("return [innerWidth, Math.min(2600, Math.max(innerHeight, "
                                    "document.documentElement.scrollHeight))]")
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": {
            "x": 0, "y": 0, "width": width, "height": height, "scale": 1}})
        (PICTURES / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
