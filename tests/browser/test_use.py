"""The console as it is used in a browser: bags are asked and compared with NumPy, errors shown, what can be
copied is run, tokens are asked for, loads made and watched."""

import json
import os
import subprocess
import threading

import numpy as np
import pytest

pytest.importorskip("selenium")

from control import READER, TOKEN, publish, rows_of, serve, tokens  # noqa: E402
from harness import Server, expect, expect_equal, free_port  # noqa: E402
from page import NARROW, Keys  # noqa: E402
from tables import ITEMS, KEYS, USERS, alert, save_items, serve_tables  # noqa: E402


@pytest.fixture(scope="module", name="server")
def serve_all(shared_directory):
    with serve_tables(shared_directory) as server:
        yield server


def embeddings(browser, output="embeddings"):
    browser.wait_for(f"[data-role=embeddings][data-output={output}]")
    return np.array(json.loads(browser.text(f"[data-role=embeddings][data-output={output}]")), np.float32)


# ---- a bag ------------------------------------------------------------------------------------
def ask(browser, model, **fields):
    browser.wait_for(f"[name=model] option[value={model}]")
    browser.choose("select[name=model]", model)
    browser.wait(lambda: browser.one("[name=ask]").is_enabled(), "the form is not made")
    for name, text in fields.items():
        if name == "reduction":
            browser.choose("select[name=reduction]", text)
        else:
            browser.fill(f"[name='{name.replace('__', '.')}']", text)
    browser.press("button[name=ask]")


def test_bag(browser, server):
    browser.open(server.url, "#/try")
    ask(browser, "items", indices="3, 4 49", offsets="0, 2", weights="0.5, 2, -1")
    want = np.array([ITEMS[3] * np.float32(0.5) + ITEMS[4] * np.float32(2), -ITEMS[49]])
    expect_equal(embeddings(browser).tolist(), want.tolist())
    expect("2 bags of 8 numbers" in browser.attribute("figure svg", "aria-label"), "the picture")
    expect_equal(browser.script("return document.querySelectorAll('figure rect').length"), 16)
    expect_equal(browser.script("return [...document.querySelectorAll(\"[aria-label^='Explanation of the bags'] tbody tr\")]"
                                ".map((row) => row.innerText.trim())"), ["0\t2\tno", "1\t1\tno"])
    browser.check("bag-light-wide")
    ask(browser, "items", indices="1, 2, 3", offsets="", weights="", reduction="mean")
    browser.wait(lambda: embeddings(browser).shape == (1, 8), "the second answer")
    expect_equal(embeddings(browser)[0].tolist(), ((ITEMS[1] + ITEMS[2] + ITEMS[3]) / np.float32(3)).tolist())


def test_offsets_that_end(browser, server):
    """The form's say where bags begin, whatever the model's own do; a column is pasted as it is."""
    browser.open(server.url, "#/try/ends")
    browser.wait(lambda: browser.all("[name=indices]") and browser.one("[name=ask]").is_enabled(), "no form")
    browser.fill("[name=offsets]", "0, 2")
    browser.script("""
        const input = document.querySelector("[name=indices]"), data = new DataTransfer();
        data.setData("text", "1\\n2\\n3");
        input.focus();
        input.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true}));""")
    browser.press("button[name=ask]")
    expect_equal(embeddings(browser).tolist(), [(ITEMS[1] + ITEMS[2]).tolist(), ITEMS[3].tolist()])


def test_collection(browser, server):
    browser.open(server.url, "#/try/ranker")
    ask(browser, "ranker", history__indices="0, 9", user__indices="7, 9007199254740993", user__offsets="0, 1",
        user__weights="2, 3")
    expect_equal(embeddings(browser, "history").tolist(), [((ITEMS[0] + ITEMS[9]) / np.float32(2)).tolist()])
    expect_equal(embeddings(browser, "user").tolist(), [[2, 4], [9, 15]])
    browser.look(NARROW, True)
    browser.check("collection-bag-dark-narrow")


def test_keys_as_they_are_typed(browser, server):
    """Doubles would ask for the neighbours' rows."""
    browser.open(server.url, "#/try")
    ask(browser, "users", indices=", ".join(map(str, KEYS.tolist())), offsets="0 1 2 3")
    expect_equal(embeddings(browser).tolist(), USERS.tolist())
    browser.expected = (400,)
    ask(browser, "users", indices="9007199254740992", offsets="")
    browser.wait(lambda: "9007199254740992" in alert(browser), "the missing key is not named")
    expect_equal(browser.all("[data-role=embeddings]"), [])


def test_errors(browser, server):
    browser.expected = (400,)
    browser.open(server.url, "#/try")
    ask(browser, "items", indices="0, 50")
    browser.wait(lambda: alert(browser), "no error")
    expect_equal(alert(browser), "'indices' at position 1 is 50; it must be from 0 to 49, the last row")
    browser.check("error-light-wide")
    ask(browser, "items", indices="0, x")
    browser.wait(lambda: "'x'; it must be a whole number" in alert(browser), "a mistake in the form")
    ask(browser, "items", indices="18446744073709551616")
    browser.wait(lambda: "must fit in 64 bits" in alert(browser), "a mistake in the form")
    ask(browser, "items", indices="49", offsets="0")
    expect_equal(embeddings(browser).tolist(), [ITEMS[49].tolist()])
    expect_equal(alert(browser), "")


# ---- what can be copied -----------------------------------------------------------------------
def run(directory, name, snippet, variables):
    path = directory / name
    path.write_text(snippet)
    if name == "ask.c":
        subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", str(path), "-lcurl", "-o", str(directory / "ask")], check=True)
    command = {"ask.sh": ["bash", str(path)], "ask.py": ["/usr/bin/python3", str(path)], "ask.c": [str(directory / "ask")]}
    done = subprocess.run(command[name], capture_output=True, text=True, check=True, env=os.environ | variables)
    return done.stdout


def check_snippets(browser, directory, want, variables):
    texts = [browser.script("return document.querySelector(arguments[0]).textContent", f"[data-snippet='{name}']")
             for name in ("curl", "python", "c")]
    for name, text in zip(("ask.sh", "ask.py", "ask.c"), texts):
        expect(TOKEN not in text, "the token is shown")
        printed = run(directory, name, text, variables)
        if name == "ask.py":
            expect_equal(printed, f"embeddings {list(want.shape)} {want.ravel().tolist()}\n")
        else:
            output = json.loads(printed)["outputs"][0]
            expect_equal(np.array(output["data"], np.float32).reshape(output["shape"]).tolist(), want.tolist(), name)


def test_snippets(browser, server, directory):
    browser.open(server.url, "#/try")
    ask(browser, "items", indices="0, 1, 2", offsets="0, 1", reduction="max")
    browser.wait_for("[data-snippet=c]")
    check_snippets(browser, directory, np.array([ITEMS[0], np.maximum(ITEMS[1], ITEMS[2])]), {})


def test_snippets_with_a_token(browser, directory):
    browser.expected = (401,)
    with Server("--table", save_items(directory), "--token-file", tokens(directory)) as server:
        browser.open(server.url, "#/try")
        browser.fill("[name=token]", TOKEN, enter=True)
        ask(browser, "items", indices="4")
        browser.wait_for("[data-snippet=c]")
        check_snippets(browser, directory, ITEMS[4:5], {"TOKEN": TOKEN})


# ---- tokens -----------------------------------------------------------------------------------
def test_token(browser, directory):
    browser.expected = (401, 403)
    with Server("--table", save_items(directory), "--token-file", tokens(directory)) as server:
        browser.open(server.url)
        browser.wait_for("[name=token]")
        browser.check("token-light-wide")
        browser.fill("[name=token]", "wrong-0123456789abcdef", enter=True)
        browser.wait(lambda: "is not known" in alert(browser), "a wrong token is not told")
        browser.fill("[name=token]", "infer-0123456789abcdef", enter=True)
        browser.wait(lambda: "needs the scope read" in alert(browser), "a scope is not told")
        browser.fill("[name=token]", READER, enter=True)
        browser.wait_text("[data-tile=State]", "Ready")
        browser.go("#/try")
        browser.wait_text("main", "This token does not cover inference")
        expect_equal(browser.all("button[name=ask]"), [])
        kept = browser.script("return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, "
                              "location.href, history.state])")
        expect(READER not in kept, "the token is kept")
        browser.open(server.url)
        browser.wait_for("[name=token]")


# ---- changes ----------------------------------------------------------------------------------
def open_admin(browser, server, place, token=TOKEN):
    browser.expected += (401,)
    url = f"http://127.0.0.1:{server.admin.client.server.port}"
    browser.open(url, place)
    browser.fill("[name=token]", token, enter=True)


def test_changes(browser, directory):
    publish(directory / "models", "t", 1)
    with serve(directory) as server:
        open_admin(browser, server, "#/models/t")
        browser.wait_text("h1", "ready")
        browser.wait_text("[aria-label=Versions]", "1, default")
        browser.check("admin-light-wide")
        publish(directory / "models", "t", 2)
        browser.press("form.bar button.main")
        expect("Load t as it is" in browser.answer(False), "the question")
        expect_equal(set(server.admin.states("t")), {"1"}, "after no")
        browser.press("form.bar button.main")
        browser.answer(True)
        browser.wait_text("[aria-label=Versions]", "2, default")
        browser.press("form.bar button:nth-of-type(2)")
        expect_equal(browser.answer(True), "Roll t back from version 2 to version 1? It answers from then on.")
        browser.wait_text("[aria-label=Versions]", "1, default")
        browser.go("#/try/t")
        ask(browser, "t", indices="0")
        expect_equal(embeddings(browser).tolist(), rows_of(1)[:1].tolist())
        browser.go("#/models/t")
        browser.wait_for("form.bar .danger")
        browser.press(".danger")
        browser.wait_for("dialog[open]")
        browser.picture("question-light-wide")
        browser.keys(Keys.ESCAPE)
        browser.wait(lambda: not browser.all("dialog[open]"), "Escape is no")
        expect_equal(server.admin.states("t")["1"], "READY", "after Escape")
        browser.press(".danger")
        browser.answer(True)
        browser.wait_text("h1", "unavailable")
        browser.go("#/models")
        browser.wait(lambda: browser.attribute("[data-model=t]", "data-state") == "unavailable", "the state")


def test_a_load_that_fails(browser, directory):
    publish(directory / "models", "t", 1)
    browser.expected = (400,)
    with serve(directory) as server:
        bad = directory / "models" / "bad" / "1"
        bad.mkdir(parents=True)
        (bad / "table.npy").write_bytes(b"\x93NUMPY\x01\x00")
        open_admin(browser, server, "#/models")
        browser.fill("[name=model]", "bad", enter=True)
        browser.answer(True)
        browser.wait(lambda: "table.npy" in browser.text("form [role=alert]"), "the error")
        browser.wait_for("[data-model=bad][data-state=unavailable]")
        browser.wait_text("[data-model=bad]", "table.npy")
        browser.check("failed-light-wide")


def test_who_changes(browser, directory):
    publish(directory / "models", "t", 1)
    with serve(directory) as server:
        open_admin(browser, server, "#/models", READER)
        browser.wait_text("main", "Models are changed with a token of the scope admin")
        expect_equal(browser.all("[name=model]"), [])
        browser.open(server.url, "#/models/t")
        browser.fill("[name=token]", TOKEN, enter=True)
        browser.wait_text("main", "Models are changed on the admin listener")
        expect_equal(browser.all(".danger"), [])


def test_where_models_are_changed(browser, directory):
    """The listener is named that there is: a port, a socket, or none."""
    publish(directory / "models", "t", 1)
    models = ("--models", directory / "models", "--model-control", "poll")
    port = free_port()
    for flags, words in ((("--admin-socket", directory / "admin.sock"), "the socket admin.sock"),
                         (("--admin-port", port, "--token-file", tokens(directory)), f"on port {port} (admin_port)"),
                         ((), "which this server lacks (admin_port, admin_socket)")):
        browser.expected = (401,)
        with Server(*models, *flags) as server:
            browser.open(server.url, "#/models")
            if "--token-file" in flags:
                browser.fill("[name=token]", TOKEN, enter=True)
            browser.wait_text("main", words)


def test_a_load_is_watched(browser, directory):
    publish(directory / "models", "t", 1)
    with serve(directory, "--load-bytes-per-second", "2MiB") as server:
        open_admin(browser, server, "#/models")
        browser.wait_for("[data-model=t]")
        publish(directory / "models", "large", 1, rows_of(1, 1 << 19, 8))
        thread = threading.Thread(target=server.admin.load, args=("large",))
        thread.start()
        browser.wait_for("[data-model=large][data-state=loading]")
        browser.wait(lambda: browser.script("return document.querySelector('[data-model=large] progress')?.value") > 1e5,
                     "no progress is shown")
        browser.check("loading-light-wide")
        browser.wait_for("[data-model=large][data-state=ready]")
        thread.join()
