"""The console's pages in a browser: each is opened in light and dark, wide and narrow, and used by mouse and
keyboard; of a server that stops answering, and of one of two thousand models."""

import json
import re
import signal

import numpy as np
import pytest

pytest.importorskip("selenium")

from harness import Server, expect, expect_equal, free_port  # noqa: E402
from page import NARROW, WIDE, Keys  # noqa: E402
from tables import ITEMS, alert, save_items, serve_tables  # noqa: E402
from v2 import Client  # noqa: E402

PAGES = {"overview": ("#/overview", "Overview", ".tile"), "models": ("#/models", "Models", "[data-model=items]"),
         "model": ("#/models/items", "items", "[aria-label='Stages of time'] td"),
         "collection": ("#/models/ranker", "ranker", "[aria-label='Features'] td"),
         "try": ("#/try", "Try a bag", "[name=indices]"), "settings": ("#/settings", "Settings", "[data-option=port]")}


# The ends of the axis of latency, and the least and the largest value of its lines; null without any.
AXIS = """const canvas = document.querySelector("canvas[aria-label^=Latency]"), chart = canvas && Chart.getChart(canvas);
const values = (chart?.data.datasets ?? []).flatMap((set) => set.data.map((point) => point.y));
return values.length ? [chart.scales.y.min, chart.scales.y.max, Math.min(...values), Math.max(...values)] : null"""


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    with serve_tables(shared_directory) as server:
        with Client(server) as client:
            for indices in ([0, 3], [5], [49, 1, 1], [50]):
                client.request("POST", "/v2/models/items/infer", json.dumps({"inputs": [
                    {"name": "indices", "datatype": "INT64", "shape": [1, len(indices)], "data": indices}]}))
        yield server


# ---- pages ------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages(browser, server, size, dark):
    browser.look(size, dark)
    browser.open(server.url)
    for name, (place, heading, part) in PAGES.items():
        browser.go(place)
        browser.wait_for(part)
        expect_equal(browser.text("h1").split("\n")[0].split(" ready")[0], heading)
        host = browser.script("return location.host")
        expect_equal(browser.script("return document.title"), f"{heading} – {host} – bagserve")
        expect_equal(browser.script("return document.getElementById('server').textContent"), host)
        browser.wait(lambda: not browser.all("main[aria-busy]"), "the page is still made")
        browser.check(f"{name}-{'dark' if dark else 'light'}-{'narrow' if size == NARROW else 'wide'}")


def test_overview(browser, server):
    browser.open(server.url)
    browser.wait_text("[data-tile=State]", "Ready")
    expect(", up " in browser.text("[data-tile=State]"), "the version")
    expect_equal(browser.text("[data-tile=Models] .value"), "4")
    browser.wait(lambda: "at most" in (browser.attribute("canvas", "aria-label") or ""), "no plot is described")
    browser.wait(lambda: any("bad request" in c.get_attribute("aria-label") for c in browser.all("canvas")),
                 "what was rejected is not shown")


def test_models(browser, server):
    browser.open(server.url, "#/models")
    browser.wait_for("[data-model=users]")
    row = browser.text("[data-model=items]")
    expect("50 × 8" in row and "FP32" in row and "1.56 KiB" in row, row)
    expect_equal({e.get_attribute("data-state") for e in browser.all("[data-model]")}, {"ready"})
    browser.wait_text("[data-model=items]", "0/s")
    browser.fill("[name=search]", "user")
    browser.wait(lambda: browser.count("[data-model]") == 1, "the list is not searched")
    browser.press("[data-model=users] a")
    browser.wait_text("h1", "users")


def test_hottest_rows(browser, server):
    with Client(server) as client:
        client.request("POST", "/v2/models/items/infer", json.dumps({"inputs": [
            {"name": "indices", "datatype": "INT64", "shape": [1, 6400], "data": [7] * 6400}]})).expect(200)
    browser.open(server.url, "#/models/items")
    browser.wait_text("[aria-label='Hottest rows'] tbody", "of lookups")
    row = browser.text("[aria-label='Hottest rows'] tbody tr")
    expect(row.startswith("embeddings") and "7 (" in row, row)


def test_settings(browser, server):
    browser.open(server.url, "#/settings")
    browser.wait_for("[data-option=idle_timeout_s]")
    browser.press("[name=changed]")
    browser.wait(lambda: len(browser.all("[data-option]")) < 8, "all options are shown")
    shown = {e.get_attribute("data-option"): browser.script("return arguments[0].closest('tr').innerText", e)
             for e in browser.all("[data-option]")}
    expect("70 seconds" in shown["idle_timeout_s"] and "flag" in shown["idle_timeout_s"], f"{shown}")
    expect("variable" in shown["log_level"] and "bagserve.json" in shown["config"], f"{shown}")
    expect("derived" not in shown["idle_timeout_s"], f"{shown}")
    expect(str(server.url) not in shown["config"] and "/" not in shown["config"].split("\t")[1], f"{shown}")


@pytest.mark.parametrize("width", [320, 390, 760, 800, 1024, 1160])
def test_settings_fit_every_width(browser, server, width):
    """Nothing is cut or scrolled to the side, on phones, tablets and small windows."""
    browser.look((width, 900))
    browser.open(server.url, "#/settings")
    browser.wait_for("[data-option=port]")
    wide = browser.script("return [...document.querySelectorAll('html, .scroll')].filter((e) => e.scrollWidth > e.clientWidth).length")
    expect_equal(wide, 0, f"{width}: parts that are wider than there is room for")


def test_model_page_in_words(browser, server):
    """Reasons of failures in words; a percentile below the first bound of its histogram says no more than that."""
    browser.open(server.url, "#/models/items")
    browser.wait_text("[data-facts='So far']", "wrong requests: ")
    browser.wait_text("[aria-label='Stages of time'] tbody", "µs")
    for row in browser.script("return [...document.querySelectorAll('[aria-label=\"Stages of time\"] tbody tr')]"
                              ".map((row) => [...row.children].map((cell) => cell.textContent))"):
        mean, p50, p99 = row[3:]
        expect(mean != "0 ns" or (p50, p99) == ("0 ns", "0 ns"), f"{row}")
        expect(not any(re.fullmatch(r"[1-9]\d* ns", text) for text in (p50, p99)), f"{row}")


def test_versions_that_are_not_ready(browser, directory):
    """The tile of models counts versions, and says so."""
    for version in (1, 2):
        (directory / "models" / "items" / str(version)).mkdir(parents=True)
    save_items(directory / "models" / "items" / "1")
    (directory / "models" / "items" / "2" / "items.npy").write_bytes(b"no table")
    with Server("--models", directory / "models") as server:
        browser.open(server.url)
        browser.wait_text("[data-tile=Models]", "of 2 versions ready")
        expect_equal(browser.text("[data-tile=Models] .value"), "1")


def test_latency_has_room(browser, server):
    """The ends of the axis are beyond all points, so that no line is cut."""
    browser.open(server.url)
    browser.wait(lambda: browser.script(AXIS) is not None, "no latency")
    low, high, least, most = browser.script(AXIS)
    expect(low < least and high > most, f"from {low} to {high}, lines from {least} to {most}")


def test_values_that_hold(browser, server):
    """Of an option that is 0, the limit that was derived from it, or what 0 means; descriptions are wide."""
    browser.open(server.url, "#/settings")
    shown = lambda key: browser.text(f"[data-option={key}]")  # noqa: E731
    browser.wait_for("[data-option=max_memory]")
    expect("iB (" in shown("max_memory") and shown("max_memory").endswith("(derived)"), shown("max_memory"))
    expect(shown("workers").endswith("(derived)"), shown("workers"))
    expect_equal(shown("max_table_bytes"), "0 bytes (the memory that the machine has left)")
    expect_equal(shown("latency_target_ms"), "0 milliseconds (no target)")
    widths = browser.script("return [...document.querySelectorAll('.options tbody tr')[0].children].map((c) => c.offsetWidth)")
    expect_equal(max(widths), widths[-1], f"the widest column is not the last: {widths}")


def test_an_idle_server(browser, directory):
    """An empty plot says so, instead of an axis of nothing, until there are requests."""
    with Server("--table", save_items(directory)) as server, Client(server) as client:
        browser.open(server.url)
        browser.wait_text("[data-tile=State]", "Ready")
        empty = lambda: [e.text for e in browser.all(".plot .empty") if e.is_displayed()]  # noqa: E731
        browser.wait(lambda: empty() == 2 * ["No requests in these 15 minutes."] + ["None in these 15 minutes.",
                     "No requests in these 15 minutes."], "empty plots")
        browser.check("idle-light-wide")
        expect_equal(len([e for e in browser.all("canvas") if e.is_displayed()]), 2)
        client.request("POST", "/v2/models/items/infer", json.dumps({"inputs": [
            {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [0]}]})).expect()
        browser.wait(lambda: empty() == ["None in these 15 minutes."], "plots of a request")
        browser.wait(lambda: browser.script("return document.querySelectorAll('canvas')[1].offsetHeight") > 100, "a plot")
        expect_equal(browser.attribute("main a[href='metrics']", "href"), "metrics")


def test_keyboard(browser, server):
    """Pages are reached, and a bag is asked, without a mouse."""
    browser.open(server.url)
    browser.wait_for(".tile")
    focused = lambda: browser.script("return document.activeElement.innerText ?? ''")  # noqa: E731
    browser.keys(Keys.TAB)
    expect_equal(focused(), "Skip to the page")
    for name in ("bagserve", "Overview", "Models", "Try a bag"):
        browser.keys(Keys.TAB)
        expect_equal(focused(), name)
    browser.keys(Keys.ENTER)
    browser.wait_for("[name=indices]")
    expect_equal(focused(), "Try a bag")
    browser.keys(Keys.TAB, Keys.TAB, "1 2", Keys.ENTER)
    browser.wait(lambda: browser.all("[data-role=embeddings]"), "Enter does not ask")
    expect_equal(json.loads(browser.text("[data-role=embeddings]")), [(ITEMS[1] + ITEMS[2]).tolist()])


# ---- a server that does not answer, and one of many models --------------------------------------
def test_a_server_that_stops_answering(browser, directory):
    with Server("--table", save_items(directory)) as server:
        browser.open(server.url)
        browser.wait_text("[data-tile=State]", "Ready")
        server.send(signal.SIGSTOP)
        try:
            browser.wait_text("#link", "The server does not answer since")
            browser.check("silent-light-wide")
            expect("Ready" in browser.text("[data-tile=State]"), "what was shown has gone")
        finally:
            server.send(signal.SIGCONT)
        browser.wait(lambda: browser.text("#link") == "", "the answer is not seen")


def many(directory, count):
    folder = directory / "models"
    folder.mkdir()
    table = np.ones((4, 2), np.float32)
    for i in range(count):
        np.save(folder / f"table_of_rows_{i:04}.npy", table)
    return folder


@pytest.mark.parametrize("count", [200, 2000])
def test_many_models(browser, directory, count):
    with Server("--models", many(directory, count)) as server:
        browser.open(server.url, "#/models")
        browser.wait(lambda: browser.count("[data-model]") == count, "not all models are listed")
        browser.picture(f"models-{count}-light-wide")
        if count == 200: # of more the tree of all names alone takes half a minute
            browser.check(f"models-{count}-light-wide")
            browser.look(NARROW, True)
            browser.check(f"models-{count}-dark-narrow")
            browser.look()
        browser.fill("[name=search]", f"{count - 1:04}")
        browser.wait(lambda: browser.count("[data-model]") == 1, "the list is not searched")
        browser.press("[data-model] a")
        browser.wait_text("[data-facts=Table]", "4 × 2")
        browser.go("#/try")
        browser.wait(lambda: browser.count("[name=model] option") == count, "not all can be tried")


def test_without_metrics(browser, directory):
    browser.expected = (404,)
    with Server("--table", save_items(directory), "--metrics", "off", "--admin-port", free_port()) as server:
        browser.open(server.url)
        browser.wait(lambda: "metrics are switched off" in alert(browser), "nothing is said")
        browser.go("#/models/items")
        browser.wait_text("main", "Nothing is counted")
