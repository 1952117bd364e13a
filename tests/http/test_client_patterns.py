"""What the clients of this field send, byte by byte: written by hand after their ways, so that a
change that only our own client would survive is found.

tritonclient for Python (and its asyncio variant), the C++ client with perf_analyzer, the KServe SDK.
"""

import gzip
import json
import zlib

import numpy as np
import pytest

from example import EXAMPLE, WANT, check_rows
from harness import Server, expect, expect_equal
from v2 import Raw

INDICES = np.array([0, 2, 3, 4], np.int64).tobytes()
OFFSETS = np.array([0, 3], np.int64).tobytes()
MODEL = "items"

# ---- bodies -----------------------------------------------------------------------------------
BINARY_HEADER = (
    b'{"inputs":[{"name":"indices","shape":[4],"datatype":"INT64",' b'"parameters":{"binary_data_size":32}},'
    b'{"name":"offsets","shape":[2],"datatype":"INT64","parameters":{"binary_data_size":16}}]')
JSON_INPUTS = (
    b'{"inputs":[{"name":"indices","shape":[4],"datatype":"INT64","data":[0,2,3,4]},'
    b'{"name":"offsets","shape":[2],"datatype":"INT64","data":[0,3]}]')


def ask(server, lines, body=b"", method="POST"):
    """Sends the head's lines as they are, and the body; the answer."""
    with Raw(server) as raw:
        raw.send(b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body)
        return raw.reply(method)


def length(name, body):
    return name + b": " + str(len(body)).encode()


def check_answer(reply, binary, identity=None):
    """The rows in the form that was asked for, and no key that a strict client would reject."""
    check_rows(reply.embeddings(), WANT)
    header, raw = reply.header()
    expect_equal(set(header), {"model_name", "model_version", "outputs"} | ({"id"} if identity else set()))
    expect_equal(header.get("id"), identity)
    output, = header["outputs"]
    form = "parameters" if binary else "data"
    expect_equal(set(output), {"name", "datatype", "shape", form})
    expect_equal(len(raw), WANT.nbytes if binary else 0)


# ---- heads ------------------------------------------------------------------------------------
def python_head(path, header, body, *more):
    """tritonclient for Python: names in lower case, no Content-Type, no Expect."""
    lines = [b"POST " + path + b" HTTP/1.1", b"host: 127.0.0.1:8000", b"connection: keep-alive"]
    if header is not None:
        lines.append(length(b"inference-header-content-length", header))
    return lines + list(more) + [length(b"content-length", body)]


def asyncio_head(path, header, body):
    return [b"POST " + path + b" HTTP/1.1", b"Host: 127.0.0.1:8000",
            length(b"Inference-Header-Content-Length", header), b"Accept: */*",
            b"Accept-Encoding: gzip, deflate", b"User-Agent: Python/3.11 aiohttp/3.8.4",
            length(b"Content-Length", body), b"Content-Type: application/octet-stream"]


def cpp_lines(path, header, body):
    """The C++ client and perf_analyzer."""
    return [b"POST " + path + b" HTTP/1.1", b"Host: 127.0.0.1:8000", b"User-Agent: libcurl-agent/1.0",
            b"Accept: */*", length(b"Inference-Header-Content-Length", header),
            b"Content-Type: application/octet-stream", length(b"Content-Length", body)]


def kserve_lines(path, body, *more):
    return [b"POST " + path + b" HTTP/1.1", b"host: 127.0.0.1:8000", b"accept: */*",
            b"accept-encoding: gzip, deflate, br", b"connection: keep-alive",
            b"user-agent: python-httpx/0.27.2", *more, length(b"content-length", body)]


def kserve_head(path, _, body):
    return kserve_lines(path, body, b"content-type: application/json")


def python_json_head(path, _, body):
    """JSON inputs have no header length."""
    return python_head(path, None, body)


# ---- requests that are answered ----------------------------------------------------------------
ID = "9be8fd3c-6b1a-4b4c-8f0e-2f5bb0f6a1d7"
INFER, VERSION = b"/v2/models/items/infer", b"/v2/models/items/versions/1/infer"
ALL_BINARY, RAW = b',"parameters":{"binary_data_output":true}}', INDICES + OFFSETS
SEQUENCE = (b',"parameters":{"sequence_id":7,"sequence_start":true,"sequence_end":false,"priority":1,"timeout":10000000,'
            b'"binary_data_output":true}}')
KSERVE = json.dumps({"id": ID, "model_name": "items", "inputs": [
    {"name": "indices", "shape": [4], "datatype": "INT64", "data": [0, 2, 3, 4]},
    {"name": "offsets", "shape": [2], "datatype": "INT64", "data": [0, 3]}]}).encode()


def one_output(identity, is_binary):
    """The end of a header that asks for the output by its name."""
    return b'%s,"outputs":[{"name":"embeddings","parameters":{"binary_data":%s}}]}' % (
        b',"id":"%s"' % identity if identity else b"", b"true" if is_binary else b"false")


# Name: (head, path, JSON, what follows it, whether the answer is binary, its id)
ANSWERED = {
    "python, outputs left out": (python_head, INFER, BINARY_HEADER + ALL_BINARY, RAW, True, None),
    "python, JSON inputs": (python_json_head, INFER, JSON_INPUTS + ALL_BINARY, b"", True, None),
    "python, binary output": (python_head, VERSION, BINARY_HEADER + one_output(b"7", True), RAW, True, "7"),
    "python, JSON output": (python_head, VERSION, BINARY_HEADER + one_output(b"7", False), RAW, False, "7"),
    "python, quoted name": (python_head, b"/v2/models/%69tems/infer", BINARY_HEADER + ALL_BINARY, RAW, True, None),
    "python, all quoted": (python_head, b"/v2/models/%69%74%65%6d%73/infer", BINARY_HEADER + ALL_BINARY, RAW, True, None),
    "python, sequence and priority": (python_head, INFER, BINARY_HEADER + SEQUENCE, RAW, True, None),
    "asyncio": (asyncio_head, INFER, BINARY_HEADER + ALL_BINARY, RAW, True, None),
    "C++, binary": (cpp_lines, INFER, b'{"id":"",' + BINARY_HEADER[1:] + one_output(b"", True), RAW, True, None),
    "C++, version": (cpp_lines, VERSION, b'{"id":"",' + BINARY_HEADER[1:] + one_output(b"", True), RAW, True, None),
    # The header length is sent for plain JSON as well: it is all of the body.
    "C++, JSON": (cpp_lines, INFER, b'{"id":"",' + JSON_INPUTS[1:] + one_output(b"", False), b"", False, None),
    "KServe, JSON": (kserve_head, INFER, KSERVE, b"", False, ID)}


@pytest.mark.parametrize("name", ANSWERED)
def test_answers(server, name):
    head, path, header, raw, is_binary, identity = ANSWERED[name]
    reply = ask(server, head(path, header, header + raw), header + raw)
    expect("content-encoding" not in reply.headers, "compressed without being configured")
    check_answer(reply, is_binary, identity)


# ---- tritonclient for Python ------------------------------------------------------------------
def test_python_unknown_name(server):
    """Names go through quote(), where a caller may have quoted more."""
    lines = python_head(b"/v2/models/no%20body%C3%A9/infer", b"{}", b"{}")
    text = ask(server, lines, b"{}").expect(404).error()
    expect("no bodyé" in text, text)


def test_python_compression(server):
    """request_compression_algorithm: the header length is that of the JSON before compression."""
    header = BINARY_HEADER + ALL_BINARY
    for coding, packed in ((b"gzip", gzip.compress(header + RAW)), (b"deflate", zlib.compress(header + RAW))):
        lines = python_head(INFER, header, packed, b"content-encoding: " + coding, b"accept-encoding: " + coding)
        reply = ask(server, lines, packed)
        expect("content-encoding" not in reply.headers, "compressed without being configured")
        check_answer(reply, True)


def test_python_parameters(server):
    """The reply tells of custom parameters, which stand beside the client's own."""
    header = BINARY_HEADER + b',"parameters":{"mine":"x","binary_data_output":true}}'
    reply = ask(server, python_head(INFER, header, header + RAW), header + RAW)
    expect_equal([w.split("'")[1] for w in reply.header()[0]["parameters"]["warnings"]], ["mine"])


def test_python_asks_around(server):
    for path, want in (
            (b"/v2/health/live", {"live": True}), (b"/v2/health/ready", {"ready": True}),
            (b"/v2/models/items/ready", {"name": "items", "ready": True}),
            (b"/v2/models/items/versions/1/ready", {"name": "items", "ready": True})):
        lines = [b"GET " + path + b" HTTP/1.1", b"host: 127.0.0.1:8000"]
        expect_equal(ask(server, lines, method="GET").expect().json(), want)
    for path, key in ((b"/v2", "extensions"), (b"/v2/models/items", "inputs"),
                      (b"/v2/models/items/config", "max_batch_size")):
        lines = [b"GET " + path + b" HTTP/1.1", b"host: 127.0.0.1:8000"]
        expect(key in ask(server, lines, method="GET").expect().json(), f"{path} lacks {key}")
    lines = python_head(b"/v2/repository/index", None, b"")
    expect_equal(ask(server, lines).expect().json()[0]["name"], MODEL)


# ---- tritonclient's asyncio variant -----------------------------------------------------------
def test_asyncio_error_is_plain(server):
    """Error bodies are not decompressed by it."""
    body = b'{"inputs":[]}'
    lines = [b"POST /v2/models/items/infer HTTP/1.1", b"Host: 127.0.0.1:8000",
             b"Accept-Encoding: gzip, deflate", length(b"Content-Length", body)]
    reply = ask(server, lines, body).expect(400)
    expect_equal(reply.headers["content-type"], "application/json")
    expect("indices" in reply.error(), reply.body)


# ---- the C++ client and perf_analyzer ---------------------------------------------------------
def test_cpp_cut_json(server):
    """It sends one element of a 1-D JSON tensor, whatever the shape says."""
    body = b'{"id":"",' + JSON_INPUTS[1:].replace(b"[0,2,3,4]", b"[0]") + b"}"
    reply = ask(server, cpp_lines(b"/v2/models/items/infer", body, body), body)
    expect("indices" in reply.expect(400).error(), reply.body)


def test_perf_analyzer_starts(server):
    """What it asks, on one connection, before it loads; and what it reads of the answers."""
    with Raw(server) as raw:
        def get(path):
            raw.send(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n"
                     b"User-Agent: libcurl-agent/1.0\r\nAccept: */*\r\n\r\n")
            return raw.reply().expect().json()

        expect_equal(get(b"/v2")["name"], "bagserve")
        metadata, config = get(b"/v2/models/items"), get(b"/v2/models/items/config")
        expect_equal(config["max_batch_size"], 0)
        expect_equal(config["model_transaction_policy"]["decoupled"], False)
        for key in ("ensemble_scheduling", "sequence_batching"):
            expect(key not in config, key)
        needed = [t["name"] for t in config["input"] if not t.get("optional")]
        expect_equal(needed, ["indices", "offsets"])
        expect_equal([t["name"] for t in config["input"]], [t["name"] for t in metadata["inputs"]])
        expect_equal([t["name"] for t in config["output"]], [t["name"] for t in metadata["outputs"]])
        check_statistics(get(b"/v2/models/items/stats"), 1)
        check_statistics(get(b"/v2/models/items/versions/1/stats"), 1)
        check_statistics(get(b"/v2/models/stats"), len(get(b"/v2/models")["models"]))


STATISTICS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit",
              "cache_miss")


def check_statistics(statistics, count):
    """It ends where a key is missing, and reads all numbers as integers."""
    expect_equal((list(statistics), len(statistics["model_stats"])), (["model_stats"], count))
    for model in statistics["model_stats"]:
        expect_equal({type(model[key]) for key in ("name", "version")}, {str})
        for key in ("last_inference", "inference_count", "execution_count"):
            expect_equal(type(model[key]), int, key)
        expect_equal(type(model["batch_stats"]), list)
        for key in STATISTICS:
            value = model["inference_stats"][key]
            expect_equal((type(value["count"]), type(value["ns"])), (int, int), key)


# ---- the KServe SDK ---------------------------------------------------------------------------
def test_kserve_binary(server):
    """An empty tensor has "data":null beside binary_data_size 0."""
    header = (b'{"id": "' + ID.encode() + b'", "model_name": "items", "inputs": ['
              b'{"name": "indices", "shape": [0], "datatype": "INT64", "data": null, '
              b'"parameters": {"binary_data_size": 0}}, ' b'{"name": "offsets", "shape": [2], "datatype": "INT64", '
              b'"parameters": {"binary_data_size": 16}}], ' b'"parameters": {"binary_data_output": true}}')
    body = header + bytes(16)
    lines = kserve_lines(b"/v2/models/items/infer", body, length(b"inference-header-content-length", header),
                         b"content-type: application/octet-stream")
    reply = ask(server, lines, body)
    check_rows(reply.embeddings(), np.zeros((2, 2), np.float32))
    expect_equal(reply.header()[0]["id"], ID)


def test_kserve_health(server):
    for path, key in ((b"/v2/health/live", "live"), (b"/v2/health/ready", "ready"),
                      (b"/v2/models/items/ready", "ready")):
        lines = [b"GET " + path + b" HTTP/1.1", b"host: 127.0.0.1:8000", b"accept-encoding: gzip, deflate, br"]
        expect_equal(ask(server, lines, method="GET").expect().json()[key], True)


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    np.save(shared_directory / "items.npy", EXAMPLE)
    with Server("--table", f"items={shared_directory}/items.npy") as server:
        yield server
