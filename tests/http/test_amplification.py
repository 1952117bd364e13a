"""How much memory a request takes for the bytes of its body: at most 8 times for binary bodies, 50
times for JSON, the reply aside. Each body is made to be as dear as it can be for its length."""


import numpy as np

from harness import Server, expect, main, scratch, write_json
from v2 import Client, Tensor, infer_body

BODY_BYTES = 4 << 20
# What a server takes for anything at all: threads, buffers, code that is touched.
BASE_BYTES = 4 << 20


def filled(start, piece, end):
    """A body of about BODY_BYTES made of equal pieces."""
    count = (BODY_BYTES - len(start) - len(end)) // len(piece)
    return (start + piece * (count - 1) + piece.rstrip(",") + end).encode()


def json_bodies():
    """Names and bodies; not one needs to be a sound request."""
    start = f'{{"inputs":[{{"name":"indices","datatype":"INT64","shape":[1,{BODY_BYTES // 2}],"data":['
    yield "numbers of one digit", filled(start, "1,", "]}]}")
    yield "nested numbers", filled(start, "[1],", "]}]}")
    for name, piece in (("objects", "{},"), ("strings", '"",'), ("arrays", "[],"),
                        ("numbers", "1,"), ("names", '{"name":"a"},')):
        yield f"outputs of {name}", filled('{"inputs":[],"outputs":[', piece, "]}")
        yield f"inputs of {name}", filled('{"inputs":[', piece, "]}")
        yield f"a shape of {name}", filled('{"inputs":[{"name":"indices","shape":[', piece, "]}]}")
    yield "parameters", filled('{"inputs":[],"parameters":{', '"":0,', "}}")
    yield "arrays of data", filled('{"inputs":[', '{"data":[]},', "]}")
    yield "one long name", filled('{"inputs":[{"name":"', "\\u0041", '"}]}')
    yield "unknown members", filled('{"inputs":[],"x":[', "1,", "]}")


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


def check_everything(tally):
    with scratch() as directory:
        np.save(directory / "items.npy", np.zeros((8, 4), np.float32))
        config = write_json(directory / "server.json", {"models": [
            {"name": "items", "path": "items.npy", "unsorted_segments": True}]})
        for name, body in json_bodies():
            tally.check(name, check, config, name, body, {}, 50)
        for name, (body, headers) in binary_bodies():
            tally.check(name, check, config, name, body, headers, 8)


if __name__ == "__main__":
    main(check_everything)
