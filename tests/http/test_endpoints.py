"""What there is around inference: the repository's index, configurations, OPTIONS and HEAD on every
path, and what browsers ask before they let a page talk to another server.
"""

import email.utils
import os
import time

import numpy as np
import pytest

from example import BODY, EXAMPLE, INFER, WANT, check_rows
from harness import Server, expect, expect_equal, reads_chunks, scratch, write_json
from v2 import Client, Raw, head

GET_PATHS = ("/", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models", "/v2/models/items",
             "/v2/models/items/ready", "/v2/models/items/config", "/v2/models/items/versions/1",
             "/v2/models/items/versions/1/ready", "/v2/models/items/versions/1/config")
POST_PATHS = (INFER, "/v2/models/items/versions/1/infer", "/v2/repository/index")
ORIGIN = "https://a.example"


def i64(name, dims, optional):
    return {"name": name, "data_type": "TYPE_INT64", "dims": dims, "optional": optional}


def facts(rows, row_elements, table_bytes, datatype="FP32"):
    """Those that say what the table is."""
    return {"rows": str(rows), "row_elements": str(row_elements), "datatype": datatype, "row_format": "plain",
            "bytes": str(table_bytes), "keyed": "false"}


def parameters(**changed):
    """ModelConfig's parameters of a model that pools by the defaults but for what is changed."""
    values = {"reduction": "sum", "default_index": "-1", "include_last_offset": "false",
              "weighted_mean": "false", "prune_invalid": "false", "unsorted_segments": "false",
              "require_zero_first_offset": "false", "require_matching_index_types": "false",
              "out_of_range": "error", "forms": "offsets packed segments", "form": "offsets"} | changed
    return {key: {"string_value": value} for key, value in values.items()}


# ---- configuration ----------------------------------------------------------------------------
def test_config(client):
    """Whole, so that nothing is promised by accident."""
    for path in ("/v2/models/items/config", "/v2/models/items/versions/1/config"):
        expect_equal(client.get(path).expect().json(), {
            "name": "items", "platform": "bagserve", "backend": "bagserve",
            "version_policy": {"all": {}}, "model_transaction_policy": {"decoupled": False}, "max_batch_size": 0,
            "input": [i64("indices", [-1], False), i64("offsets", [-1], False),
                      {"name": "per_sample_weights", "data_type": "TYPE_FP32", "dims": [-1],
                       "optional": True}, i64("default_index", [1], True)],
            "output": [{"name": "embeddings", "data_type": "TYPE_FP32", "dims": [-1, 2]}],
            "parameters": parameters(**facts(5, 2, 40))}, path)


def test_config_of_another_model(client):
    value = client.get("/v2/models/cube/config").expect().json()
    expect_equal(value["output"], [{"name": "embeddings", "data_type": "TYPE_INT16", "dims": [-1, 2, 3]}])
    expect_equal(value["input"][2]["data_type"], "TYPE_INT16")
    expect_equal(value["parameters"], parameters(
        **facts(5, 6, 60, "INT16"), reduction="mean", default_index="4", padding_idx="-2", include_last_offset="true",
        weighted_mean="true", prune_invalid="true", unsorted_segments="true",
        require_zero_first_offset="true", require_matching_index_types="true", out_of_range="skip"))
    half = client.get("/v2/models/half/config").expect().json()
    expect_equal(half["output"][0]["data_type"], "TYPE_FP32")
    expect_equal(half["input"][2]["data_type"], "TYPE_FP32")


def test_config_agrees_with_metadata(client):
    for model in ("items", "cube", "half"):
        metadata = client.get(f"/v2/models/{model}").json()
        config = client.get(f"/v2/models/{model}/config").json()
        for side in ("input", "output"):
            want = [(t["name"], "TYPE_" + t["datatype"], t["shape"]) for t in metadata[side + "s"]]
            expect_equal([(t["name"], t["data_type"], t["dims"]) for t in config[side]], want)


# ---- the repository's index -------------------------------------------------------------------
READY = [{"name": name, "version": version, "state": "READY", "reason": ""}
         for name, version in (("items", "1"), ("items", "2"), ("cube", "1"), ("half", "1"))]


def test_index(client):
    for body in (None, b"", b"{}", b'{"ready":false}', b'{"ready":true}', b'{"ready":null}', b'{"unknown":[1]}'):
        reply = client.request("POST", "/v2/repository/index", body).expect()
        expect_equal(reply.json(), READY, f"index for {body}")
        expect_equal(reply.headers["content-type"], "application/json")


def test_index_chunked(client):
    with Raw(client.server) as raw:
        raw.send(head("POST", "/v2/repository/index", {"Transfer-Encoding": "chunked"},
                      b'3\r\n{"r\r\n9\r\neady":tru\r\n2\r\ne}\r\n0\r\n\r\n'))
        if reads_chunks():
            expect_equal(raw.reply().expect().json(), READY)
        else:
            raw.reply().expect(411).error()


def test_bad_index(client):
    for body, word in ((b"[]", "object"), (b"{", "malformed JSON: line 1"), (b'{"ready":1}', "ready"),
                       (b'{"ready":true}x', "column"), (b'{"ready":true,"ready":true}', "ready")):
        text = client.request("POST", "/v2/repository/index", body).expect(400).error()
        expect(word in text, f"{body}: {text}")
    text = client.request("POST", "/v2/repository/index", b" " * 65537).expect(413).error()
    expect("65536" in text, text)
    client.request("POST", "/v2/repository/index", b" " * 65534 + b"{}").expect()


def test_index_while_loading():
    """The server listens before its tables are there."""
    with scratch() as directory:
        slow = np.zeros((3000, 10000), np.float32)
        np.save(directory / "slow.npy", slow)
        with Server("--table", f"slow={directory}/slow.npy", until="listening") as server, \
                Client(server) as client:
            entries = client.request("POST", "/v2/repository/index").expect().json()
            expect_equal((entries[0]["name"], entries[0]["version"]), ("slow", "1"))
            expect(entries[0]["state"] in ("LOADING", "READY"), entries)
            expect(bool(entries[0]["reason"]) == (entries[0]["state"] == "LOADING"), entries)
            server.wait_event("ready")
            entries = client.request("POST", "/v2/repository/index").expect().json()
            expect_equal(entries[0]["state"], "READY")


def test_caches(client):
    """What changes by itself may not be kept by a proxy."""
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/items/ready", "/metrics",
                 "/v2/models/stats", "/v2/models/items/stats"):
        expect_equal(client.get(path).expect().headers.get("cache-control"), "no-store", path)
    for path in ("/v2/models/items", "/v2/models/items/config"):
        expect_equal(client.get(path).expect().headers.get("cache-control"), None, path)


# ---- HEAD and OPTIONS -------------------------------------------------------------------------
def test_head(client):
    for path in GET_PATHS + ("/v2/models/nobody", "/nowhere"):
        got, want = client.request("HEAD", path), client.get(path)
        expect_equal((got.status, got.body), (want.status, b""), path)
        for name in ("content-type", "content-length"):
            expect_equal(got.headers.get(name), want.headers[name], f"{path}: {name}")
    for path in POST_PATHS:
        reply = client.request("HEAD", path)
        expect_equal((reply.status, reply.headers["allow"]), (405, "POST, OPTIONS"), path)


def test_options(client):
    for paths, allow in ((GET_PATHS, "GET, HEAD, OPTIONS"), (POST_PATHS, "POST, OPTIONS"),
                         (("*",), "GET, HEAD, POST, OPTIONS")):
        for path in paths:
            reply = client.request("OPTIONS", path).expect(204)
            expect_equal((reply.headers.get("allow"), reply.body), (allow, b""), path)
            expect("content-type" not in reply.headers, f"{path}: a type of nothing")
            expect("access-control-allow-origin" not in reply.headers, f"{path}: CORS is off")
    client.request("OPTIONS", "/nowhere").expect(404).error()
    client.request("OPTIONS", INFER, b"{}").expect(204)


def test_options_keeps_the_connection(client):
    with Raw(client.server) as raw:
        raw.send(head("OPTIONS", INFER) + head("OPTIONS", "*") + head("POST", INFER, body=BODY))
        expect_equal([raw.reply().status, raw.reply().status], [204, 204])
        check_rows(raw.reply().embeddings(), WANT)


# ---- CORS -------------------------------------------------------------------------------------
def cors_of(reply):
    names = ("vary", "access-control-allow-origin", "access-control-expose-headers",
             "access-control-allow-methods", "access-control-allow-headers", "access-control-max-age")
    return {name: reply.headers[name] for name in names if name in reply.headers}


EXPOSED = {"access-control-expose-headers": "Inference-Header-Content-Length, Retry-After"}
PREFLIGHT = {"access-control-allow-methods": "POST, OPTIONS", "access-control-max-age": "600",
             "access-control-allow-headers":
                 "Authorization, Content-Type, Content-Encoding, Inference-Header-Content-Length, X-Request-Id, "
                 "traceparent, tracestate"}


def ask_all(client, headers):
    """One reply of each kind to the same headers."""
    return [client.request("POST", INFER, BODY, headers).expect(),
            client.request("GET", "/v2/models", None, headers).expect(),
            client.request("POST", INFER, b"{", headers).expect(400),
            client.request("GET", "/nowhere", None, headers).expect(404)]


def test_cors_is_off(client):
    for reply in ask_all(client, {"Origin": ORIGIN}):
        expect_equal(cors_of(reply), {})


def with_cors(origins, check):
    with scratch() as directory:
        np.save(directory / "items.npy", EXAMPLE)
        with Server("--table", f"items={directory}/items.npy", "--cors-origins", origins) \
                as server, Client(server) as client:
            check(client)


def test_cors_of_a_list():
    def check(client):
        allowed = {"vary": "Origin", "access-control-allow-origin": ORIGIN} | EXPOSED
        for reply in ask_all(client, {"Origin": ORIGIN}):
            expect_equal(cors_of(reply), allowed)
        for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
            for reply in ask_all(client, headers):
                expect_equal(cors_of(reply), {"vary": "Origin"}, f"{headers}")
        asking = {"Access-Control-Request-Method": "POST"}
        reply = client.request("OPTIONS", INFER, None, {"Origin": ORIGIN} | asking).expect(204)
        expect_equal(cors_of(reply), allowed | PREFLIGHT)
        reply = client.request("OPTIONS", INFER, None, {"Origin": "https://evil.example"} | asking)
        expect_equal(cors_of(reply.expect(204)), {"vary": "Origin"})
        reply = client.request("OPTIONS", INFER, None, {"Origin": ORIGIN}).expect(204)
        expect_equal(cors_of(reply), allowed)

    with_cors(f"http://localhost:3000, {ORIGIN}", check)


def test_cors_of_all():
    def check(client):
        for reply in ask_all(client, {"Origin": ORIGIN}):
            expect_equal(cors_of(reply), {"access-control-allow-origin": "*"} | EXPOSED)
        expect_equal(cors_of(client.get("/v2")), {})

    with_cors("*", check)


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    tables = {"items": EXAMPLE, "cube": np.arange(30, dtype=np.int16).reshape(5, 2, 3),
              "half": EXAMPLE.astype(np.float16)}
    for name, table in tables.items():
        np.save(shared_directory / f"{name}.npy", table)

    def model(name, version=1, **rules):
        return {"name": name, "version": version, "path": os.path.join(shared_directory, f"{name}.npy")} | rules

    config = write_json(shared_directory / "config.json", {"models": [
        model("items"), model("items", 2),
        model("cube", reduction="mean", default_index=4, padding_idx=-2,
              include_last_offset=True, weighted_mean=True, prune_invalid=True,
              unsorted_segments=True, require_zero_first_offset=True,
              require_matching_index_types=True, out_of_range="skip"), model("half", output_datatype="FP32")]})
    with Server("--config", config) as server:
        yield server


# ---- Date -------------------------------------------------------------------------------------
def check_date(headers):
    at = email.utils.parsedate_to_datetime(headers["date"])
    expect(headers["date"] == email.utils.format_datetime(at, usegmt=True), headers["date"])
    expect(abs(at.timestamp() - time.time()) < 5, headers["date"])
    return at


def test_date(client, server):
    """Of every reply, also where parts of it are from an earlier one, or it ends the connection."""
    begun = last = check_date(client.get("/v2/health/live").expect().headers)
    while last == begun:  # a second at most; otherwise check_date fails
        last = check_date(client.request("POST", INFER, BODY).expect().headers)
    with Raw(server) as raw:
        raw.send(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
        check_date(raw.reply().headers)
