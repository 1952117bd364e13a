"""How much memory a request takes for the bytes of its body: at most 8 times for binary bodies, 50
times for JSON, the reply aside. Each body is made to be as dear as it can be for its length."""

import numpy as np
import pytest

from harness import SANITIZED, Server, expect, write_json
from v2 import Client, Tensor, infer_body

BODY_BYTES = 4 << 20
# What a server takes for anything at all: threads, buffers, code that is touched.
BASE_BYTES = 4 << 20


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


def check(config, name, body, headers, factor):
    grown, status = growth(config, body, headers)
    print(f"{name}: {grown / len(body):.1f} times {len(body):,} bytes ({status})", flush=True)
    expect(grown <= factor * len(body) + BASE_BYTES,
           f"{name}: {len(body)} bytes made the server grow by {grown}")
    expect(status == (200 if headers else 400), f"{name}: status {status}")


pytestmark = pytest.mark.skipif(SANITIZED, reason="sanitizers keep memory of their own")


@pytest.fixture(scope="module", name="config")
def make_config(shared_directory):
    np.save(shared_directory / "items.npy", np.zeros((8, 4), np.float32))
    return write_json(shared_directory / "server.json", {"models": [
        {"name": "items", "path": "items.npy", "unsorted_segments": True}]})


@pytest.mark.parametrize("name", json_bodies())
def test_json(config, name):
    check(config, name, filled(*json_bodies()[name]), {}, 50)


@pytest.mark.parametrize("number", [0, 1])
def test_binary(config, number):
    name, (body, headers) = list(binary_bodies())[number]
    check(config, name, body, headers, 8)
