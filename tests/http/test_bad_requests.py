"""Wrong requests get the right status and a message that says what was wrong; and no more happens.

After each one a good request is answered, on the same connection or, where the server had to close it, on a new one. A
case here stands for the place that finds the fault: every sentence is in tests/unit (test_json.c, test_numbers_array.c,
test_v2_request.c, test_problem.c, test_kjt.c), and `tests/features requests` draws faults of every kind.
"""

import contextlib
import http.client
import json
import re
import struct

import numpy as np
import pytest

from example import EXAMPLE, INFER, WANT, check_rows
from harness import Server, expect, expect_equal, expect_words, reads_chunks, write_json
from v2 import HEADER_LENGTH, Client, Raw, Tensor, head

MAX_BODY_BYTES = 1024 * 1024
MAX_REPLY_BYTES = 64 * 1024 * 1024
MAX_MESSAGE_BYTES = 512
WIDE = 4096
INDICES = {"name": "indices", "shape": [4], "datatype": "INT64", "data": [0, 2, 3, 4]}
OFFSETS = {"name": "offsets", "shape": [2], "datatype": "INT64", "data": [0, 3]}
GOOD = json.dumps({"inputs": [INDICES, OFFSETS]})


def tensor(name, data, shape=None, datatype="INT64"):
    return {"name": name, "shape": [len(data)] if shape is None else shape, "datatype": datatype, "data": data}


def plus(*tensors, **top):
    """A good request with further tensors and top-level keys."""
    return json.dumps({"inputs": [INDICES, OFFSETS, *tensors]} | top)


def indices(**keys):
    return json.dumps({"inputs": [INDICES | keys, OFFSETS]})


def offsets(**keys):
    return json.dumps({"inputs": [INDICES, OFFSETS | keys]})


def segments(*ids, count=None):
    more = [] if count is None else [tensor("num_segments", [count], [])]
    return json.dumps({"inputs": [tensor("indices", [0] * len(ids)), tensor("segment_ids", list(ids)), *more]})


def binary(size=32, length=None, raw=bytes(32)):
    """A good request with `indices` in binary; what is not given is right."""
    entry = {key: INDICES[key] for key in ("name", "shape", "datatype")} | {"parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [entry, OFFSETS]})
    return {HEADER_LENGTH: str(len(text) if length is None else length)}, text.encode() + raw


WEIGHTS = tensor("per_sample_weights", [1] * 4, datatype="FP32")
# (name, model, request, words of the message)
INFER_CASES = [
    ("an empty body", "items", "", ["body is empty", "JSON", "inputs"]),
    ("an array", "items", "[]", ["object"]),
    ("half a request", "items", GOOD[:len(GOOD) // 2], []),
    ("a second document", "items", GOOD + GOOD, []),
    ("a NUL at the end", "items", GOOD + "\0", []),
    ("UTF-16", "items", GOOD.encode("utf-16"), []),
    ("100,000 open brackets", "items", "[" * 100_000, []),
    ("100,000 open objects", "items", '{"a":' * 100_000, []),
    ("100,000 brackets as data", "items", GOOD.replace("[0, 2, 3, 4]", "[" * 100_000 + "]" * 100_000), ["indices"]),
    ("no inputs", "items", '{"inputs": []}', ["indices"]),
    ("too few numbers", "items", indices(data=[0, 2, 3]), ["indices", "4", "3"]),
    ("a shape whose product overflows", "items", indices(shape=[2**32, 2**32]), ["indices", "shape"]),
    ("three dimensions", "items", indices(shape=[1, 2, 2]), ["indices"]),
    ("packed indices and offsets", "items", indices(shape=[2, 2]), ["indices"]),
    ("a fraction among integers", "items", GOOD.replace(" 3,", " 1.5,"), ["indices", "2", "1.5"]),
    ("FP32 indices", "items", indices(datatype="FP32"), ["indices", "FP32", "INT32", "INT64"]),
    ("an unknown input", "items", indices(name="index"), ["index", "indices"]),
    ("a repeated input", "items", plus(INDICES), ["indices"]),
    ("only offsets", "items", json.dumps({"inputs": [OFFSETS]}), ["indices"]),
    ("only indices of one dimension", "items", json.dumps({"inputs": [INDICES]}), ["offsets", "segment_ids"]),
    ("offsets and segment_ids", "items", plus(tensor("segment_ids", [0, 0, 1, 1])), ["segment_ids"]),
    ("an unknown output", "items", plus(outputs=[{"name": "embedding"}]), ["embedding", "embeddings"]),
    ("shared memory for the output", "items",
     plus(outputs=[{"name": "embeddings", "parameters": {"shared_memory_region": "r"}}]), ["shared_memory_region"]),
    ("id a number", "items", plus(id=5), ["id"]),
    ("unknown reduction", "items", plus(parameters={"reduction": "median"}), ["reduction", "median", "sum", "sqrtn"]),
    ("padding_idx past the table", "items", plus(parameters={"padding_idx": 5}), ["padding_idx", "5", "-5", "4"]),
    ("FP64 of FP32 rows", "items", plus(parameters={"output_datatype": "FP64"}), ["output_datatype", "FP64", "FP32"]),
    ("FP16 answer in JSON", "items", plus(parameters={"output_datatype": "FP16"}), ["FP16", "binary", "FP32"]),
    ("index past the table", "items", indices(data=[0, 2, 5, 9]), ["indices", "2", "5", "0", "4"]),
    ("offsets that fall", "items", offsets(shape=[3], data=[0, 3, 2]), ["offsets", "2", "3"]),
    ("segment ids that fall", "items", segments(1, 0, 1), ["segment_ids", "1", "0"]),
    ("2^61 segments", "items", segments(0, 1, 2, count=2**61), ["max_reply_bytes", str(2**61)]),
    ("2^63 segments by the last id", "items", segments(0, 1, 2**63 - 1), ["max_reply_bytes"]),
    ("2^40 packed bags of no index", "items", json.dumps({"inputs": [tensor("indices", [], [2**40, 0])]}), ["max_reply_bytes"]),
    ("default_index past the table", "items", plus(tensor("default_index", [5], [])), ["default_index", "5", "4"]),
    ("weights with mean", "mean", plus(WEIGHTS), ["per_sample_weights", "mean"]),
    ("FP64 weights for FP16 rows", "half", plus(WEIGHTS | {"datatype": "FP64"}), ["per_sample_weights", "FP64", "FP32"]),
    ("sqrtn of integers", "whole", plus(parameters={"reduction": "sqrtn"}), ["sqrtn", "INT32"]),
    ("first offset not zero", "strict", offsets(data=[1, 3]), ["offsets", "0", "1"]),
    ("mixed index types", "strict", offsets(datatype="INT32"), ["offsets", "INT32", "INT64"]),
    ("header longer than the body", "items", binary(length=100_000), [HEADER_LENGTH, "100000"]),
    ("header of 2^64 bytes", "items", binary(length=2**64), [HEADER_LENGTH]),
    ("no header length", "items", ({}, binary()[1]), [HEADER_LENGTH]),
    ("one byte left over", "items", binary(raw=bytes(33)), ["1"]),
    ("all bytes missing", "items", binary(raw=b""), ["indices", "32"]),
    ("binary_data_size too small", "items", binary(size=24, raw=bytes(24)), ["indices", "24", "32"]),
    ("a wrong index in binary", "items", binary(raw=struct.pack("<4q", 0, 2, 5, 4)), ["indices", "2", "5", "4"]),]
# (name, method, path, words of the message)
PATHS = [
    ("unknown path", "GET", "/v3", ["/v3"]), ("no model name", "GET", "/v2/models//ready", []),
    ("unknown model", "GET", "/v2/models/nobody", ["nobody"]),
    ("unknown model, infer", "POST", "/v2/models/nobody/infer", ["nobody"]),
    ("unknown version", "GET", "/v2/models/items/versions/9", ["'9'", "version 1 is served"]),
    ("unknown version, infer", "POST", "/v2/models/items/versions/9/infer", ["9"]),
    ("a version of 2^64 + 1", "GET", "/v2/models/items/versions/18446744073709551617", []),
    ("the latest version", "POST", "/v2/models/items/versions/latest/infer", ["items", "no version 'latest'"]),
    ("something behind infer", "POST", INFER + "/x", []), ("dots for a model", "GET", "/v2/models/%2e%2e/ready", []),
    ("a NUL behind the model", "GET", "/v2/models/items%00", []),
    ("control characters in the model", "GET", "/v2/models/a%0d%0ab%1b", []),
    ("invalid UTF-8 in the model", "GET", "/v2/models/%ff%fe", []),
    ("a name of 128 characters", "GET", "/v2/models/" + "n" * 128, ["unknown model"]),
    ("a name of 129 characters", "GET", "/v2/models/" + "n" * 129, ["unknown path"]),
    ("the protocol before this one", "POST", "/v1/models/items:predict", ["POST /v2/models/NAME/infer"]),
    ("a name of 3,000 characters", "GET", "/v2/models/" + "n" * 3000, []),]
VERBS = [("GET", INFER, "POST"), ("PATCH", INFER, "POST"), ("GET", "/v2/models/items/versions/1/infer", "POST"),
         ("POST", "/", "GET"), ("DELETE", "/v2/models", "GET"), ("POST", "/v2/models/items", "GET")]


CODES = {400: ["bad_request"], 404: ["not_found"], 405: ["method_not_allowed"], 411: ["length_required"],
         413: ["too_large"], 415: ["unsupported_encoding"]}


class World:
    """The server with its models, and the connection that all cases share."""

    def __init__(self, server):
        self.server, self.client = server, Client(server)

    def good(self):
        """A good request is answered: on this connection, or on a new one."""
        for attempt in (1, 2):
            try:
                reply = self.client.request("POST", INFER, GOOD)
                break
            except (http.client.HTTPException, OSError):
                self.client.close()
                if attempt == 2:
                    raise
        check_rows(reply.embeddings(), WANT)

    def rejects(self, reply, status, words=()):
        text = reply.expect(status).error()
        expect(reply.json()["code"] in CODES[status], f"{status} has the code {reply.json()['code']}")
        place = re.search(r"'(\w+)' at position (\d+)", text)
        where = {"input": place[1], "position": int(place[2])} if place else {}
        said = {key: value for key, value in reply.json().items() if key not in ("code", "error")}
        expect(said == where or (not place and list(said) == ["input"] and f"'{said['input']}'" in text),
               f"the place of {text!r} is {said}")
        expect(text and len(text.encode()) <= MAX_MESSAGE_BYTES and text.isprintable(), f"no printable sentence: {text!r}")
        expect_words(text, words)
        self.good()


def each(names, cases):
    """One test for each case; the first value of a case is its name."""
    return pytest.mark.parametrize(names, [pytest.param(*case[1:], id=case[0]) for case in cases])


@pytest.fixture(scope="module", name="world")
def serve(shared_directory):
    tables = {"example": EXAMPLE, "half": EXAMPLE.astype(np.float16), "whole": np.arange(10, dtype=np.int32).reshape(5, 2),
              "wide": np.ones((2, WIDE), np.float32)}
    for name, table in tables.items():
        np.save(shared_directory / f"{name}.npy", table)
    models = [{"name": name, "path": f"{'example' if name == 'items' else name}.npy"}
              for name in ("items", "half", "whole", "wide")]
    models += [{"name": "mean", "path": "example.npy", "reduction": "mean"},
               {"name": "strict", "path": "example.npy", "require_zero_first_offset": True,
                "require_matching_index_types": True}]
    config = write_json(shared_directory / "config.json", {"http": {"max_body_bytes": MAX_BODY_BYTES}, "models": models})
    with Server("--config", config, "--max-reply-bytes", MAX_REPLY_BYTES) as server:
        world = World(server)
        yield world
        world.client.close()


@each("model, asked, words", INFER_CASES)
def test_infer(world, model, asked, words):
    headers, body = asked if isinstance(asked, tuple) else ({}, asked)
    world.rejects(world.client.request("POST", f"/v2/models/{model}/infer", body, headers), 400, words)


@each("method, path, words", PATHS)
def test_path(world, method, path, words):
    world.rejects(world.client.request(method, path, GOOD if method == "POST" else None), 404, words)


@pytest.mark.parametrize("method, path, allowed", VERBS)
def test_verb(world, method, path, allowed):
    reply = world.client.request(method, path, GOOD if method == "PATCH" else None)
    world.rejects(reply, 405)
    allow = [verb.strip() for verb in reply.headers.get("allow", "").split(",")]
    expect(allowed in allow and method not in allow, f"Allow is {allow}")


# ---- limits -----------------------------------------------------------------------------------
@each("headers", [("one byte", {"Content-Length": str(MAX_BODY_BYTES + 1)}),
                  ("one byte, Expect", {"Content-Length": str(MAX_BODY_BYTES + 1), "Expect": "100-continue"}),
                  ("2^63 - 1", {"Content-Length": str(2**63 - 1)})])
def test_body_too_large(world, headers):
    """Rejected from the headers alone: nothing of the body was sent yet."""
    with Raw(world.server) as raw:
        raw.send(head("POST", INFER, headers))
        world.rejects(raw.reply(), 413, ["max_body_bytes", str(MAX_BODY_BYTES)])


@each("method, path, headers, status", [("unknown model", "POST", "/v2/models/nobody/infer", {}, 404),
                                        ("wrong verb", "PUT", INFER, {}, 405),
                                        ("br", "POST", INFER, {"Content-Encoding": "br"}, 415)])
def test_nothing_is_uploaded(world, method, path, headers, status):
    """What is rejected by its head is rejected before the client is told to go on."""
    with Raw(world.server) as raw:
        raw.send(head(method, path, {"Expect": "100-continue", "Content-Length": "100"} | headers))
        world.rejects(raw.reply(), status)


def test_chunked_too_large(world):
    """Chunks have no length beforehand: rejected once they pass the limit."""
    with Raw(world.server) as raw:
        raw.send(head("POST", INFER, {"Transfer-Encoding": "chunked"}))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(4 * MAX_BODY_BYTES // 0x10000):
                raw.send(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        with contextlib.suppress(ConnectionResetError):
            reply = raw.reply()
            if reply is not None:
                world.rejects(reply, *((413, ["max_body_bytes", str(MAX_BODY_BYTES)]) if reads_chunks() else
                                       (411, ["Content-Length"])))
    world.good()


def test_body_at_limit(world):
    world.client.request("POST", INFER, GOOD.encode().ljust(MAX_BODY_BYTES), {"Expect": "100-continue"}).expect(200)
    world.client.close()
    world.good()


def i32(name, values, shape=None):
    array = np.asarray(values, np.int32)
    return Tensor(name, array if shape is None else array.reshape(shape))


BAGS = MAX_REPLY_BYTES // (WIDE * 4) + 1


@each("tensors, binary_out, bags", [
    ("offsets", [i32("indices", []), i32("offsets", np.zeros(BAGS))], True, BAGS),
    ("segments by the last id", [i32("indices", [0]), i32("segment_ids", [BAGS - 1])], True, BAGS),
    ("half the limit as raw bytes, but not as text", [i32("indices", [], (BAGS // 2, 0))], False, BAGS // 2)])
def test_reply_too_large(world, tensors, binary_out, bags):
    """Results just over the limit, from requests of a few bytes, are rejected before memory is asked for: neither used
    nor reserved memory jumps."""
    before = [world.server.memory_bytes(key) for key in ("VmPeak", "VmHWM")]
    world.rejects(world.client.infer("wide", tensors, binary=True, outputs=[
        {"name": "embeddings", "parameters": {"binary_data": binary_out}}]), 400,
                  ["max_reply_bytes", str(MAX_REPLY_BYTES), str(bags)])
    reserved, used = (world.server.memory_bytes(key) - was for key, was in zip(("VmPeak", "VmHWM"), before))
    expect(reserved <= MAX_REPLY_BYTES // 2 and used <= MAX_REPLY_BYTES // 16, f"grew by {reserved} and {used} bytes")
