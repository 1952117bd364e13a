"""How much memory a request takes for the bytes of its body: at most 8 times, the reply aside, and 12 MB
for the tree of a JSON header. Each body is made to be as expensive as it can be for its length."""

import gzip

import numpy as np
import pytest

from harness import SANITIZED, Server, expect, write_json
from v2 import Client, Tensor, infer_body

BODY_BYTES = 4 << 20
# Memory that a server takes for any request: threads, buffers, code that is touched.
BASE_BYTES = 4 << 20
# proto/json.h: the largest tree.
TREE_BYTES = 12 << 20


def filled(start, piece, end):
    """A body of about BODY_BYTES made of equal pieces."""
    count = (BODY_BYTES - len(start) - len(end)) // len(piece)
    return (start + piece * (count - 1) + piece.rstrip(",") + end).encode()


def json_bodies():
    """(start, piece, end) by name; not one needs to be a valid request."""
    bodies = {}
    start = f'{{"inputs":[{{"name":"indices","datatype":"INT64","shape":[1,{BODY_BYTES // 2}],"data":['
    bodies["numbers of one digit"] = start, "1,", "]}]}"
    bodies["nested numbers"] = start, "[1],", "]}]}"
    for name, piece in (("objects", "{},"), ("strings", '"",'), ("arrays", "[],"),
                        ("numbers", "1,"), ("names", '{"name":"a"},')):
        bodies[f"outputs of {name}"] = '{"inputs":[],"outputs":[', piece, "]}"
        bodies[f"inputs of {name}"] = '{"inputs":[', piece, "]}"
        bodies[f"a shape of {name}"] = '{"inputs":[{"name":"indices","shape":[', piece, "]}]}"
    bodies["values of strings"] = '{"inputs":[{"x":{', '"":"a",', "}}]}"
    bodies["parameters"] = '{"inputs":[],"parameters":{', '"":0,', "}}"
    bodies["arrays of data"] = '{"inputs":[', '{"data":[]},', "]}"
    bodies["one long name"] = '{"inputs":[{"name":"', "\\u0041", '"}]}'
    bodies["unknown members"] = '{"inputs":[],"x":[', "1,", "]}"
    return bodies


def binary_bodies():
    count = BODY_BYTES // 4
    indices = np.zeros((1, count), np.int32)
    yield "INT32 indices", infer_body([Tensor("indices", indices)], binary=("indices",))
    segments = [Tensor("indices", np.zeros(count // 2, np.int32)),
                Tensor("segment_ids", np.arange(count // 2, dtype=np.int32)[::-1] % 7)]
    names = ("indices", "segment_ids")
    yield "segments out of order", infer_body(segments, binary=names)


def growth(config, body, headers):
    """What the body made a fresh server's peak grow by, and its answer's status."""
    with Server("--config", config, "--workers", 1) as server, Client(server) as client:
        client.infer("items", [Tensor("indices", np.zeros((1, 1), np.int64))]).expect()
        before = server.memory_bytes("VmHWM")
        reply = client.request("POST", "/v2/models/items/infer", body, headers)
        return server.memory_bytes("VmHWM") - before, reply.status


def check(config, name, body, headers, want_status, more_bytes=0):
    grown, status = growth(config, body, headers)
    print(f"{name}: {grown / len(body):.1f} times {len(body):,} bytes ({status})", flush=True)
    expect(grown <= 8 * len(body) + BASE_BYTES + more_bytes,
           f"{name}: {len(body)} bytes made the server grow by {grown}")
    expect(status == want_status, f"{name}: status {status}")


pytestmark = pytest.mark.skipif(SANITIZED, reason="sanitizers keep memory of their own")


@pytest.fixture(scope="module", name="config")
def make_config(shared_directory):
    np.save(shared_directory / "items.npy", np.zeros((8, 4), np.float32))
    return write_json(shared_directory / "server.json", {"models": [
        {"name": "items", "path": "items.npy", "unsorted_segments": True}]})


@pytest.mark.parametrize("name", json_bodies())
def test_json(config, name):
    check(config, name, filled(*json_bodies()[name]), {}, 400)


def test_largest_tree(config):
    text = '{"inputs":[{"x":[' + '"a",' * 65_500 + '"a"]}]}'
    check(config, "65504 values", text.encode(), {}, 400, TREE_BYTES)


@pytest.mark.parametrize("count,status", [(20_000_000, 413), (1_500_000, 400)])
def test_compressed(config, count, status):
    """Beyond the ratio nothing more is decompressed; within it the header's limits count."""
    plain = b'{"inputs":[' + b"{}," * count + b"{}]}"
    packed = gzip.compress(plain)
    if status == 400:  # so that the ratio is within its limit: bytes that are not read any more
        packed = gzip.compress(plain + np.random.default_rng(1).bytes(len(plain) // 90))
    check(config, f"{count} objects", packed, {"Content-Encoding": "gzip"}, status,
          3 * 100 * len(packed))  # a buffer, the next larger one, and huge pages


def test_memory_comes_back(config):
    """A tree that is built and freed is not kept by the thread that built it."""
    text = filled('{"inputs":[{"x":[', '"a",', "]}]}")[:200_000].rsplit(b",", 1)[0] + b"]}]}"
    with Server("--config", config) as server, Client(server) as client:
        for _ in range(64):
            client.request("POST", "/v2/models/items/infer", text, {}).expect(400)
        grown = server.memory_bytes("VmRSS")
        for _ in range(64):
            client.request("POST", "/v2/models/items/infer", text, {}).expect(400)
        grown = server.memory_bytes("VmRSS") - grown
        expect(grown < BASE_BYTES, f"64 more requests made the server grow by {grown}")


@pytest.mark.parametrize("number", [0, 1])
def test_binary(config, number):
    name, (body, headers) = list(binary_bodies())[number]
    check(config, name, body, headers, 200)
