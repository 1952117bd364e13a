"""The page of `bagserve bench --html`, opened as a file: drawn by its own scripts alone, with every text as text."""

import json
import time

import pytest

from benching import Foreign, foreign, foreign_metadata
from harness import Server, expect, expect_equal, run
from page import NARROW

MODEL = "</script><img src=x onerror=alert(1)>"
ERROR = "<script>document.title = 'hacked'</script>&amp;"

# How many different colours each canvas has: one that is not drawn has a single one.
COLOURS = """return [...document.querySelectorAll("canvas")].map((canvas) =>
  new Set(new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size)"""


@pytest.fixture(scope="module", name="folder")
def measure(tmp_path_factory):
    """Pages of a closed loop, and of rates beside it."""
    folder = tmp_path_factory.mktemp("pages")
    with Server("--demo") as server:
        for arguments in (["--closed", "--requests", 300, "--report", folder / "before", "--html", folder / "closed.html"],
                          ["--rate", "100:0.3,200:0.3,100:0.3", "--bags", 3, "--compare", folder / "before", "--html",
                           folder / "rates.html", "--report", folder / "report"],
                          ["--sweep", "--slo-ms", 200, "--duration", 0.5, "--connections", 1, "--html", folder / "sweep.html"]):
            ended = run("bench", "--warmup", 0, *arguments, server.url, "items")
            expect_equal(ended.returncode, 0, ended.stderr)
    return folder


def test_no_verdict(browser, folder, tmp_path):
    """The page says what hindered a verdict, as the report does, and has no rate."""
    class Slow(Foreign):
        def infer(self, _):
            time.sleep(0.3)
            self.answer(200, {})
    with foreign(Slow) as url:
        ended = run("bench", "--sweep", "--rows", 10, "--warmup", 0, "--connections", 256, "--report", tmp_path / "report",
                    "--html", tmp_path / "page.html", url)
    expect_equal(ended.returncode, 3, ended.stderr)
    show(browser, tmp_path / "page.html", 3)
    hindered_by = json.loads((tmp_path / "report").read_text())["hindered_by"]
    expect(f"No verdict. {hindered_by}" in browser.text("main"), browser.text("main"))
    expect("highest rate that holds" not in browser.text("main"), browser.text("main"))
    browser.check("bench_no_verdict", 2)


def show(browser, path, plots):
    """Opens a page, and waits for so many plots."""
    browser.origins.add(path.as_uri())
    browser.driver.get(path.as_uri())
    browser.wait(lambda: browser.count("canvas") == plots, f"the page has no {plots} plots")
    expect(all(colours > 3 for colours in browser.script(COLOURS)), "a plot is empty")


def titles(browser):
    return browser.script("return [...document.querySelectorAll('h2')].map((e) => e.textContent)")


def test_closed_loop(browser, folder):
    show(browser, folder / "closed.html", 3)
    expect_equal(browser.text("h1"), "bagserve bench: items")
    expect_equal(titles(browser), ["Workload", "Percentiles", "Latency over time",
                                   "Requests over time, by when they were due", "All runs"])
    browser.check("bench_closed", 2)


def test_rates_beside_an_earlier_report(browser, folder):
    """The workload is shown, the other one is told, and numbers are those of the report."""
    show(browser, folder / "rates.html", 4)
    expect_equal(titles(browser)[1], "Latency by rate")
    facts = dict(pair.split("\n", 1) for pair in browser.script(
        "return [...document.querySelectorAll('[data-facts=workload] > div')].map((e) => `${e.children[0].textContent}\\n${e.children[1].textContent}`)"))
    report = json.loads((folder / "report").read_text())
    for name, text in (("bags in a request", "3"), ("ids in a bag", "10"), ("skew of the ids", "none"), ("body", "binary"),
                       ("connections", "64"), ("tables", "1, 24.4 MiB"), ("date", report["date"]),
                       ("host", report["host"]), ("processor", report["processor"])):
        expect_equal(facts[name], text, name)
    expect("The workload before was another one (before and now): bags 1 and 3." in browser.text("main"),
           browser.text("main"))
    rows = browser.script("return [...document.querySelectorAll('.runs')].map((e) => e.querySelectorAll('tbody tr').length)")
    expect_equal(rows, [3, 1])
    browser.check("bench_rates", 4)
    browser.look(dark=True)
    browser.check("bench_rates_dark", 4)
    browser.look(NARROW)
    browser.check("bench_rates_phone", 4)


def test_sweep_marks_the_run_that_decides(browser, folder):
    show(browser, folder / "sweep.html", 4)
    expect_equal(browser.count("tr.deciding"), 1)
    expect("The marked run decides" in browser.text("main"), browser.text("main"))
    expect("late p99: the generator's own delay" in browser.text("main"), browser.text("main"))
    due = browser.script("return [...document.querySelectorAll('.runs tbody th')].map((e) => parseFloat(e.textContent.replace(',', '')) || 0)")
    expect_equal(due, sorted(due), "runs by rate")


def test_texts_of_a_hostile_server_are_texts(browser, folder):
    class Hostile(Foreign):
        metadata = None

        def do_GET(self):
            if "/v2/models/" in self.path:
                self.answer(200, foreign_metadata(rows=10) | {"name": MODEL})
            else:
                super().do_GET()

        def do_POST(self):
            if self.path == "/v2/repository/index":
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(200, [{"name": MODEL, "version": "1", "state": "READY"}])
            else:
                super().do_POST()

        def infer(self, _):
            self.lock.acquire()
            type(self).answers -= 1
            answers = self.answers
            self.lock.release()
            self.answer(*(200, {"outputs": []}) if answers % 2 else (500, {"error": ERROR}))

    Hostile.metadata = "/none", {}
    with foreign(Hostile) as url:
        run("bench", "--closed", "--requests", 100, "--warmup", 0, "--html", folder / "hostile.html", url)
    show(browser, folder / "hostile.html", 3)
    expect_equal(browser.text("h1"), f"bagserve bench: {MODEL}")
    expect_equal(browser.script("return document.title"), f"bagserve bench: {MODEL}")
    expect(ERROR in browser.text(".errors"), browser.text(".errors"))
    expect_equal((browser.count("img"), browser.count("main script")), (0, 0))
