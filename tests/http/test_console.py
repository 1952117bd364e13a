"""The console's page and the documents that it shows, without a browser: who gets which, what is in them,
and that pages of others change nothing. tests/browser uses the page itself.
"""

import json
import os

import numpy as np
import pytest

from control import BEARER, READER, TOKEN, publish, serve, tokens
from example import BODY, EXAMPLE, INFER
from harness import ROOT, Server, expect, expect_equal, free_port, wait_until, write_json
from v2 import Client, Raw, at_port, head

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
DOCUMENTS = ("/v2/server/history", "/v2/server/models", "/v2/server/options")


@pytest.fixture(scope="module", name="server")
def serve_items(shared_directory):
    np.save(shared_directory / "items.npy", EXAMPLE)
    with Server("--table", f"items={shared_directory}/items.npy") as server:
        yield server


def options_of(client, headers=None):
    document = client.request("GET", "/v2/server/options", headers=headers).expect().json()
    return document, {option["key"]: option for option in document["options"]}


def model_of(client, name, headers=None):
    found = client.request("GET", "/v2/server/models", headers=headers).expect().json()["models"]
    return next(model for model in found if model["name"] == name)


# ---- the page ---------------------------------------------------------------------------------
def test_page(client):
    for path, headers in (("/", BROWSER), ("/console", None)):
        reply = client.request("GET", path, headers=headers).expect()
        expect_equal(reply.headers["content-type"], "text/html; charset=utf-8")
        expect_equal(reply.headers["vary"], "Accept")
        policy = dict(part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; "))
        expect_equal([policy[key] for key in ("default-src", "frame-ancestors", "base-uri", "form-action",
                                              "script-src")],
                     ["'none'", "'none'", "'none'", "'self'", "'self'"])
        text = reply.body.decode()
        expect("<script>" not in text and "style=" not in text and "http" not in text, "something inline")


@pytest.mark.parametrize("accept, is_page", [
    ("*/*", False), ("application/json", False), ("text/html", True), ("text/plain, TEXT/HTML;q=0.5", True),
    ("text/html;q=0, */*", False), ("text/html;q=0.0", False), ("text/html;q=0.001", True),
    ("application/json, text/html;q=0.5", False), ("application/json;q=0.4, text/html;q=0.5", True),
    ("text/html;level=1;q=0.5, application/json;q=0.6", False), ("application/json, text/html", True),
    ("text/htmlx", False), (",,", False), ("", False)])
def test_who_gets_the_page(client, accept, is_page):
    reply = client.request("GET", "/", headers={"Accept": accept}).expect()
    kind = reply.headers["content-type"]
    expect_equal(kind, "text/html; charset=utf-8" if is_page else "application/json", accept)
    expect_equal(reply.headers["vary"], "Accept")


@pytest.mark.parametrize("path", ["/v2", "/v2/models", "/openapi.json", "/metrics", "/nothing"])
def test_no_type_is_guessed(client, path):
    expect_equal(client.get(path).headers["x-content-type-options"], "nosniff")


def test_parts(client):
    names = [path.name for path in (ROOT / "server" / "console").iterdir() if path.suffix != ".h"]
    expect(len(names) > 10, f"{names}")
    for name in names:
        reply = client.get(f"/console/{name}").expect()
        expect_equal(reply.body, (ROOT / "server" / "console" / name).read_bytes(), name)
        expect_equal(reply.headers["x-content-type-options"], "nosniff")
    chart = client.get("/console/chart.min.js").expect()
    expect_equal(chart.headers["content-type"], "text/javascript; charset=utf-8")
    expect(b"Released under the MIT License" in chart.body[:400], "the licence's notice")
    licence = client.get("/console/copyright").expect()
    expect(b"The above copyright notice" in licence.body, "the licence")
    for path in ("/console/", "/console/nothing.js", "/console/../index.html", "/console/a/b",
                 "/console/%69ndex.html"):
        client.get(path).expect(404)
    client.request("POST", "/console", "{}").expect(405)


def test_others_see_no_difference(client):
    """Programs, the other paths, and HEAD."""
    expect_equal(client.get("/").json()["links"]["console"], "/console")
    expect_equal(client.request("GET", "/v2", headers=BROWSER).headers["content-type"], "application/json")
    reply = client.request("HEAD", "/", headers=BROWSER).expect()
    expect_equal((reply.headers["content-type"], reply.body), ("text/html; charset=utf-8", b""))


def test_switched_off(directory):
    np.save(directory / "items.npy", EXAMPLE)
    with Server("--table", f"items={directory}/items.npy", "--console", "off") as server, \
            Client(server) as client:
        reply = client.request("GET", "/", headers=BROWSER).expect()
        expect_equal(reply.headers["content-type"], "application/json")
        expect("vary" not in reply.headers and "console" not in reply.json()["links"], f"{reply.headers}")
        for path in ("/console", "/console/app.js", "/v2/server/history"):
            expect("switched off (console)" in client.get(path).expect(404).error(), path)
        client.get("/v2/server/models").expect()


def test_tokens(directory):
    """The page has no data, and needs no token; what it shows needs one."""
    np.save(directory / "items.npy", EXAMPLE)
    with Server("--table", f"items={directory}/items.npy", "--token-file", tokens(directory)) as server, \
            Client(server) as client:
        client.request("GET", "/", headers=BROWSER).expect()
        client.get("/console/app.js").expect()
        client.get("/").expect(401)
        for path in (*DOCUMENTS, "/v2/models/items/metrics"):
            client.get(path).expect(401)
            client.request("GET", path, headers={"Authorization": "Bearer infer-0123456789abcdef"}).expect(403)
            client.request("GET", path, headers={"Authorization": f"Bearer {READER}"}).expect()
        document, _ = options_of(client, {"Authorization": f"Bearer {READER}"})
        expect_equal([document[key] for key in ("listener", "needs_token", "infers", "changes_models")],
                     ["main", True, False, False])
        expect_equal(options_of(client, BEARER)[0]["infers"], True)


# ---- history ----------------------------------------------------------------------------------
def test_history(client):
    begun = client.get("/v2/server/history").expect().json()
    for _ in range(40):
        client.request("POST", INFER, BODY).expect()
    for _ in range(3):
        client.request("POST", INFER, "{").expect(400)

    def total():
        document = client.get("/v2/server/history").expect().json()
        return (sum(filter(None, document["columns"]["requests"])), sum(filter(None, document["columns"]["rows"])),
                sum(filter(None, document["rejected"].get("bad_request", []))))

    before = tuple(sum(filter(None, column)) for column in (
        begun["columns"]["requests"], begun["columns"]["rows"], begun["rejected"].get("bad_request", [])))
    wait_until(lambda: total() == (before[0] + 40, before[1] + 160, before[2] + 3), f"no such history as {before}")
    document = client.get("/v2/server/history").expect().json()
    expect_equal({len(column) for column in document["columns"].values()}, {document["seconds"]})
    expect(any(ns and 0 < ns < 1e9 for ns in document["columns"]["p99_ns"]), "a latency")
    expect(document["recent"]["requests"] <= 40 + before[0], f"{document['recent']}")
    expect_equal((document["state"], document["models"], document["models_ready"]), ("ready", 1, 1))


def test_without_metrics(directory):
    np.save(directory / "items.npy", EXAMPLE)
    with Server("--table", f"items={directory}/items.npy", "--metrics", "off") as server, \
            Client(server) as client:
        for path in ("/v2/server/history", "/v2/models/items/metrics"):
            expect("metrics are switched off" in client.get(path).expect(404).error(), path)
        expect("requests" not in model_of(client, "items"), "counts")


def test_private_metrics(directory):
    np.save(directory / "items.npy", EXAMPLE)
    port = free_port()
    with Server("--table", f"items={directory}/items.npy", "--metrics", "private", "--admin-port", port) as server, \
            Client(server) as client, Client(at_port(port)) as admin:
        for path in ("/v2/server/history", "/v2/server/options", "/v2/models/items/metrics"):
            client.get(path).expect(403)
            admin.get(path).expect()


# ---- models -----------------------------------------------------------------------------------
def test_model_list(client):
    before = model_of(client, "items")
    client.request("POST", INFER, BODY).expect()
    client.request("POST", INFER, "{").expect(400)
    after = model_of(client, "items")
    expect_equal({key: after[key] for key in ("version", "state", "reason", "default", "collection", "bytes",
                                              "num_rows", "row_shape", "datatype", "row_format", "keyed")},
                 {"version": "1", "state": "READY", "reason": "", "default": True, "collection": False,
                  "bytes": 40, "num_rows": 5, "row_shape": [2], "datatype": "FP32", "row_format": "plain",
                  "keyed": False})
    expect_equal([after[key] - before[key] for key in ("requests", "failures", "bags", "rows")], [1, 1, 2, 4])
    expect_equal(sum(after["durations"]), after["requests"])


def test_model_metrics(client):
    client.request("POST", INFER, BODY).expect()
    for path in ("/v2/models/items/metrics", "/v2/models/items/versions/1/metrics"):
        text = client.get(path).expect().body.decode()
        expect('bagserve_stage_duration_seconds_bucket{model="items",version="1",stage="queue",le="+Inf"}' in text,
               "its histograms")
        expect("process_cpu" not in text, "what is not the model's")
    client.get("/v2/models/nobody/metrics").expect(404)


def test_reasons_of_failed_first_loads(directory):
    """They stay in the list and in the index; the main listener shows no folders."""
    publish(directory / "models", "t", 1)
    with serve(directory) as server:
        bad = directory / "models" / "bad" / "1"
        bad.mkdir(parents=True)
        (bad / "table.npy").write_bytes(b"\x93NUMPY\x01\x00")
        told = server.admin.load("bad").expect(400).error()
        expect(str(directory) in told, told)
        for client in (server.client, server.admin.client):
            listed = model_of(client, "bad", BEARER)
            expect_equal((listed["state"], str(directory) in listed["reason"]), ("UNAVAILABLE", False))
            expect("table.npy" in listed["reason"], listed["reason"])
            index = client.request("POST", "/v2/repository/index", "", BEARER).json()
            expect_equal([e["reason"] for e in index if e["name"] == "bad"], [listed["reason"]])


# ---- options ----------------------------------------------------------------------------------
def test_options_and_their_sources(directory):
    np.save(directory / "items.npy", EXAMPLE)
    config = write_json(directory / "bagserve.json", {
        "http": {"max_body_bytes": "2MiB", "idle_timeout_s": 9}, "engine": {"loops": 2, "max_queue_size": 7},
        "models": [{"name": "items", "path": "items.npy"}]})
    port = free_port()
    with Server("--config", config, "--idle-timeout-s", 11, "--admin-port", port,
                variables={"BAGSERVE_MAX_QUEUE_SIZE": "8", "BAGSERVE_LOG_LEVEL": "debug"}) as server, \
            Client(server) as client, Client(at_port(port)) as admin:
        document, found = options_of(client)
        expect_equal({key: (found[key]["value"], found[key]["source"]) for key in (
            "max_body_bytes", "idle_timeout_s", "loops", "max_queue_size", "log_level", "reply_timeout_s",
            "config", "workers")}, {
                "max_body_bytes": (2 << 20, "file"), "idle_timeout_s": (11, "flag"), "loops": (2, "file"),
                "max_queue_size": (8, "variable"), "log_level": ("debug", "variable"),
                "reply_timeout_s": (120, "default"), "config": ("bagserve.json", "flag"),
                "workers": (len(os.sched_getaffinity(0)), "default")})
        expect_equal((found["idle_timeout_s"]["default"], found["idle_timeout_s"]["unit"]), (75, "seconds"))
        expect_equal((document["listener"], document["infers"], document["controls"]), ("main", True, False))
        document, found = options_of(admin)
        expect_equal(found["config"]["value"], config)
        expect_equal((document["listener"], document["infers"]), ("admin", False))


def test_derived_limits(directory):
    """Where an option is 0, the limit that the server made of it is in the document."""
    np.save(directory / "items.npy", EXAMPLE)
    table = ("--table", f"items={directory}/items.npy", "--max-connections", 200)
    with Server(*table) as server, Client(server) as client:
        history = client.get("/v2/server/history").expect().json()
        document, found = options_of(client)
        expect_equal((found["max_memory"]["value"], document["has_admin"]), (0, False))
        expect_equal(document["derived"], {"max_memory": history["max_request_bytes"],
                                           "max_connections_per_client": 100})
        expect(history["max_request_bytes"] > 1 << 20, f"{history['max_request_bytes']}")
    with Server(*table, "--max-memory", "64MiB", "--max-connections-per-client", 7, "--admin-socket",
                directory / "admin.sock") as server, Client(server) as client:
        document, _ = options_of(client)
        expect_equal((document["derived"], document["has_admin"]), ({}, True))


def test_folders_are_shown_to_admin_alone(directory):
    (directory / "served").mkdir()
    models, port = f"{directory}/served//", free_port()
    with Server("--demo", "--models", models, "--admin-port", port) as server, Client(server) as client, \
            Client(at_port(port)) as admin:
        expect_equal(options_of(client)[1]["models"]["value"], "served//")
        expect_equal(options_of(admin)[1]["models"]["value"], models)


# ---- changes ----------------------------------------------------------------------------------
def test_admin_infers_on_the_second_listener(directory):
    publish(directory / "models", "t", 1)
    with serve(directory) as server:
        body = json.dumps({"inputs": [{"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [0]}]})
        reply = server.admin.client.request("POST", "/v2/models/t/infer", body, BEARER).expect()
        expect_equal(reply.json()["outputs"][0]["data"], [1, 1, 1, 1])
        document, _ = options_of(server.admin.client, BEARER)
        expect_equal((document["listener"], document["infers"], document["changes_models"]), ("admin", True, True))
        expect_equal(options_of(server.client, BEARER)[0]["changes_models"], False)


def test_pages_of_others_change_nothing(directory):
    publish(directory / "models", "t", 1)
    with serve(directory) as server:
        admin = server.admin.client
        own = f"127.0.0.1:{admin.server.port}"
        for origin in ("http://evil.example", "null", "", f"http://{own}0", "http://127.0.0.1"):
            for path in ("models/t/unload", "models/t/load", "load"):
                reply = admin.request("POST", f"/v2/repository/{path}", "{}", BEARER | {"Origin": origin})
                expect("pages of other origins" in reply.expect(403).error(), origin)
        with Raw(admin.server) as raw:
            twice = {"Host": own, **BEARER, "Origin": "http://evil.example", "origin": f"http://{own}"}
            raw.send(head("POST", "/v2/repository/models/t/unload", twice).replace(b"Host: localhost\r\n", b"", 1))
            raw.reply().expect(403)
        admin.request("POST", "/v2/repository/models/t/unload", "", {"Origin": f"http://{own}"}).expect(401)
        admin.request("POST", "/v2/repository/models/t/unload", "", BEARER | {"Origin": f"http://{own}"}).expect()


@pytest.mark.parametrize("origins, status", [("https://ops.example", 200), ("*", 403), ("https://x.example", 403)])
def test_origins_that_are_named_change_models(directory, origins, status):
    publish(directory / "models", "t", 1)
    with serve(directory, "--cors-origins", origins) as server:
        server.admin.post("models/t/load", None, BEARER | {"Origin": "https://ops.example"}).expect(status)


def test_no_token_is_told(directory):
    publish(directory / "models", "t", 1)
    with serve(directory) as server:
        for path in DOCUMENTS:
            reply = server.admin.client.request("GET", path, headers=BEARER).expect()
            expect(TOKEN.encode() not in reply.body and READER.encode() not in reply.body, path)
