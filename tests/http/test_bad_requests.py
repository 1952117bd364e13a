"""Wrong requests get the right status and a message that says what was wrong; and no more happens.

After each one a good request is answered, on the same connection or, where the server had to close
it, on a new one. At the end the server has not grown.
"""

import contextlib
import http.client

import numpy as np
import pytest

import bad_requests as bad
from example import EXAMPLE, INFER, WANT, check_rows
from harness import SANITIZED, Failure, Server, expect_words, reads_chunks, write_json
from v2 import Client, Raw, Tensor, head

MAX_BODY_BYTES = 1024 * 1024
MAX_REPLY_BYTES = 64 * 1024 * 1024
MAX_MESSAGE_BYTES = 512
WIDE = 4096

# (name, method, path, headers, body, status, words of the message)
PATHS = [
    ("unknown path", "GET", "/v3", {}, None, 404, ["/v3"]),
    ("unknown path below v2", "GET", "/v2/nothing", {}, None, 404, ["/v2/nothing"]),
    ("no model name", "GET", "/v2/models//ready", {}, None, 404, []),
    ("two slashes", "GET", "//v2", {}, None, 404, []),
    ("unknown model", "GET", "/v2/models/nobody", {}, None, 404, ["nobody"]),
    ("unknown model in capitals", "GET", "/v2/models/ITEMS", {}, None, 404, ["ITEMS"]),
    ("unknown model, ready", "GET", "/v2/models/nobody/ready", {}, None, 404, ["nobody"]),
    ("unknown model, infer", "POST", "/v2/models/nobody/infer", {}, bad.TEXT, 404, ["nobody"]),
    ("unknown version", "GET", "/v2/models/items/versions/9", {}, None, 404,
     ["'9'", "version 1 is served"]),
    ("unknown version, infer", "POST", "/v2/models/items/versions/9/infer", {}, bad.TEXT, 404,
     ["9"]),
    ("version 0", "GET", "/v2/models/items/versions/0", {}, None, 404, ["'0'"]),
    ("a version of 2^64 + 1", "GET", "/v2/models/items/versions/18446744073709551617", {}, None,
     404, []),
    ("a version that is no number", "GET", "/v2/models/items/versions/x", {}, None, 404,
     ["items", "no version 'x'"]),
    ("the latest version", "POST", "/v2/models/items/versions/latest/infer", {}, bad.TEXT, 404,
     ["items", "no version 'latest'"]),
    ("an empty version", "GET", "/v2/models/items/versions/", {}, None, 404, []),
    ("something behind infer", "POST", INFER + "/x", {}, bad.TEXT, 404, []),
    ("dots for a model", "GET", "/v2/models/%2e%2e/ready", {}, None, 404, []),
    ("a NUL for a model", "GET", "/v2/models/%00", {}, None, 404, []),
    ("a NUL behind the model", "GET", "/v2/models/items%00", {}, None, 404, []),
    ("a slash in the model", "GET", "/v2/models/items%2Fready", {}, None, 404, []),
    ("control characters in the model", "GET", "/v2/models/a%0d%0ab%1b", {}, None, 404, []),
    ("invalid UTF-8 in the model", "GET", "/v2/models/%ff%fe", {}, None, 404, []),
    ("a name of 3,000 characters", "GET", "/v2/models/" + "n" * 3000, {}, None, 404, []),
]

# (name, method, path, what Allow must hold)
VERBS = [
    ("GET infer", "GET", INFER, ["POST"]),
    ("PUT infer", "PUT", INFER, ["POST"]),
    ("DELETE infer", "DELETE", INFER, ["POST"]),
    ("PATCH infer", "PATCH", INFER, ["POST"]),
    ("GET infer of a version", "GET", "/v2/models/items/versions/1/infer", ["POST"]),
    ("POST /", "POST", "/", ["GET"]),
    ("POST /v2", "POST", "/v2", ["GET"]),
    ("POST health", "POST", "/v2/health/ready", ["GET"]),
    ("PUT live", "PUT", "/v2/health/live", ["GET"]),
    ("DELETE models", "DELETE", "/v2/models", ["GET"]),
    ("POST metadata", "POST", "/v2/models/items", ["GET"]),
    ("POST ready", "POST", "/v2/models/items/ready", ["GET"]),
]

ENCODINGS = ["br", "zstd", "compress", "gzip, gzip", "gzip, identity", "gzip;q=1", "gz"]


class World:
    """The server with its models, and the connection that all cases share."""

    def __init__(self, server):
        self.server = server
        self.client = Client(server)

    def good(self):
        """A good request is answered: on this connection, or on a new one."""
        for attempt in (1, 2):
            try:
                reply = self.client.request("POST", INFER, bad.TEXT)
                break
            except (http.client.HTTPException, OSError):
                self.client.close()
                if attempt == 2:
                    raise
        check_rows(reply.embeddings(), WANT)

    def rejected(self, reply, status, words):
        if reply.status != status:
            raise Failure(f"status {reply.status} instead of {status}: {reply.body[:400]!r}")
        text = reply.error()
        if list(reply.json()) != ["error"]:
            raise Failure(f"more than the key 'error': {reply.body[:400]!r}")
        if not text or len(text.encode()) > MAX_MESSAGE_BYTES or not text.isprintable():
            raise Failure(f"not a printable sentence: {text!r}")
        expect_words(text, words)

    def post(self, model, request, words, status=400):
        headers, body = request if isinstance(request, tuple) else ({}, request)
        body = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
        reply = self.client.request("POST", f"/v2/models/{model}/infer", body, headers)
        self.rejected(reply, status, words)
        self.good()

    def path(self, method, path, headers, body, status, words):
        self.rejected(self.client.request(method, path, body, headers), status, words)
        self.good()

    def verb(self, method, path, allowed):
        reply = self.client.request(method, path, bad.TEXT if method in ("PUT", "PATCH") else None)
        self.rejected(reply, 405, [])
        allow = [v.strip() for v in reply.headers.get("allow", "").split(",")]
        if not set(allowed) <= set(allow) or method in allow:
            raise Failure(f"Allow is {reply.headers.get('allow')!r}")
        self.good()

    def encoding(self, name):
        reply = self.client.request("POST", INFER, bad.TEXT, {"Content-Encoding": name})
        self.rejected(reply, 415, ["Content-Encoding"])
        self.good()

    # ---- limits -------------------------------------------------------------------------------
    def body_too_large(self, headers, body=b""):
        """Rejected from the headers alone: nothing of the body was sent yet."""
        with Raw(self.server) as raw:
            raw.send(head("POST", INFER, headers) + body)
            reply = raw.reply()
            if reply is None:
                raise Failure("no answer")
            self.rejected(reply, 413, ["max_body_bytes", str(MAX_BODY_BYTES)])
        self.good()

    def nothing_is_uploaded(self, method, path, headers, status):
        """What is rejected by its head is rejected before the client is told to go on."""
        expecting = {"Expect": "100-continue", "Content-Length": "100"}
        with Raw(self.server) as raw:
            raw.send(head(method, path, expecting | headers))
            self.rejected(raw.reply(), status, [])
        self.good()

    def chunked_too_large(self):
        """Chunks have no length beforehand: rejected once they pass the limit."""
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        with Raw(self.server) as raw:
            raw.send(head("POST", INFER, {"Transfer-Encoding": "chunked"}))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(4 * MAX_BODY_BYTES // 0x10000):
                    raw.send(chunk)
            with contextlib.suppress(ConnectionResetError):
                reply = raw.reply()
                if reply is not None and not reads_chunks():
                    self.rejected(reply, 411, ["Content-Length"])
                elif reply is not None:
                    self.rejected(reply, 413, ["max_body_bytes", str(MAX_BODY_BYTES)])
        self.good()

    def body_at_limit(self, size, status):
        """A body of exactly the limit is read; one byte more is not."""
        body = bad.TEXT.encode().ljust(size)
        reply = self.client.request("POST", INFER, body, {"Expect": "100-continue"}) \
            if status == 200 else self.client.request("POST", INFER, body)
        if reply.status != status:
            raise Failure(f"{size} bytes: status {reply.status} instead of {status}")
        self.client.close()
        self.good()

    def reply_too_large(self, tensors, binary_out, bags):
        """Rejected before memory is asked for: neither used nor reserved memory jumps."""
        before = self.server.memory_bytes("VmPeak"), self.server.memory_bytes("VmHWM")
        reply = self.client.infer("wide", tensors, binary=True, outputs=[
            {"name": "embeddings", "parameters": {"binary_data": binary_out}}])
        self.rejected(reply, 400, ["max_reply_bytes", str(MAX_REPLY_BYTES), str(bags)])
        after = self.server.memory_bytes("VmPeak"), self.server.memory_bytes("VmHWM")
        grown = [b - a for a, b in zip(before, after)]
        if grown[0] > MAX_REPLY_BYTES // 2 or grown[1] > MAX_REPLY_BYTES // 16:
            raise Failure(f"memory grew by {grown[0]} bytes reserved, {grown[1]} bytes used")
        self.good()

    def endless_bags_of_nothing(self, text):
        """Rows without elements make a result of no bytes, however many bags: still answered."""
        reply = self.client.request("POST", "/v2/models/nothing/infer", text)
        if reply.status not in (200, 400):
            raise Failure(f"status {reply.status}: {reply.body[:300]!r}")
        self.good()


def i32(name, values, shape=None):
    array = np.asarray(values, np.int32)
    return Tensor(name, array if shape is None else array.reshape(shape))


def large_results():
    """(form, tensors, bags): results just over the limit, from requests of a few bytes."""
    bags = MAX_REPLY_BYTES // (WIDE * 4) + 1
    return [
        ("offsets", [i32("indices", []), i32("offsets", np.zeros(bags))], bags),
        ("packed", [i32("indices", [], (bags, 0))], bags),
        ("segments", [i32("indices", []), i32("segment_ids", []), i32("num_segments", bags)], bags),
        ("segments by the last id", [i32("indices", [0]), i32("segment_ids", [bags - 1])], bags),
    ]


def make_models(directory):
    tables = {"example": EXAMPLE, "half": EXAMPLE.astype(np.float16),
              "whole": np.arange(10, dtype=np.int32).reshape(5, 2),
              "wide": np.ones((2, WIDE), np.float32), "nothing": np.zeros((5, 0), np.float32)}
    for name, table in tables.items():
        np.save(directory / f"{name}.npy", table)

    def model(name, table, **rules):
        return {"name": name, "path": str(directory / f"{table}.npy")} | rules

    return write_json(directory / "config.json", {
        "http": {"max_body_bytes": MAX_BODY_BYTES},
        "models": [model("items", "example"), model("half", "half"), model("whole", "whole"),
                   model("mean", "example", reduction="mean"), model("wide", "wide"),
                   model("nothing", "nothing"),
                   model("strict", "example", require_zero_first_offset=True,
                         require_matching_index_types=True)]})


@pytest.fixture(scope="module", name="world")
def serve(shared_directory):
    with Server("--config", make_models(shared_directory), "--max-reply-bytes", MAX_REPLY_BYTES) as server:
        world = World(server)
        yield world
        world.client.close()


def each(names, cases):
    """One test for each case; the first value of a case is its name."""
    return pytest.mark.parametrize(names, [pytest.param(*case[1:], id=case[0]) for case in cases])


# (name, model, request, words of the message)
INFER_CASES = [
    (f"{table.lower()}: {name}", "items", request, words)
    for table in ("SHAPES", "DATATYPES", "NUMBERS", "TENSORS", "VALUES", "JSON", "BINARY")
    for name, request, words in getattr(bad, table)
] + [(f"{model}: {name}", model, request, words)
     for name, model, request, words in bad.OTHER_MODELS]


# ---- tests, in this order ---------------------------------------------------------------------
def test_good_request(world):
    world.good()


@each("model, request_, words", INFER_CASES)
def test_infer(world, model, request_, words):
    world.post(model, request_, words)


@each("method, path, headers, body, status, words", PATHS)
def test_path(world, method, path, headers, body, status, words):
    world.path(method, path, headers, body, status, words)


@each("method, path, allowed", VERBS)
def test_verb(world, method, path, allowed):
    world.verb(method, path, allowed)


@pytest.mark.parametrize("name", ENCODINGS)
def test_encoding(world, name):
    world.encoding(name)


OVER = str(MAX_BODY_BYTES + 1)


@each("headers", [
    ("length over the limit", {"Content-Length": OVER}),
    ("length over the limit, Expect", {"Content-Length": OVER, "Expect": "100-continue"}),
    ("length of 2^40", {"Content-Length": str(2**40)}),
    ("length of 2^63 - 1", {"Content-Length": str(2**63 - 1)})])
def test_body_too_large(world, headers):
    world.body_too_large(headers)


@each("method, path, headers, status", [
    ("unknown model", "POST", "/v2/models/nobody/infer", {}, 404),
    ("wrong verb", "PUT", INFER, {}, 405),
    ("br", "POST", INFER, {"Content-Encoding": "br"}, 415)])
def test_nothing_is_uploaded(world, method, path, headers, status):
    world.nothing_is_uploaded(method, path, headers, status)


def test_chunked_too_large(world):
    world.chunked_too_large()


def test_body_at_limit(world):
    world.body_at_limit(MAX_BODY_BYTES, 200)


@pytest.mark.parametrize("binary_out", [True, False], ids=["binary", "JSON"])
@each("tensors, bags", large_results())
def test_reply_too_large(world, tensors, bags, binary_out):
    world.reply_too_large(tensors, binary_out, bags)


def test_reply_that_only_fits_in_binary(world):
    """Half the limit as raw bytes, but not as text."""
    half = MAX_REPLY_BYTES // (WIDE * 8)
    world.reply_too_large([i32("indices", [], (half, 0))], False, half)


@pytest.mark.parametrize("bags", [2**40, 2**61, 2**62])
def test_endless_bags_of_nothing(world, bags):
    world.endless_bags_of_nothing(
        bad.segments([], bad.scalar("num_segments", bags), indices=[]))
    world.endless_bags_of_nothing(bad.ask(bad.tensor("indices", [], [bags, 0])))


@pytest.mark.skipif(SANITIZED, reason="sanitizers keep what was freed, and find leaks themselves")
def test_growth(world):
    """Everything wrong a second and a third time costs no further memory."""
    for _ in range(2):
        before = world.server.memory_bytes()
        for _, *case in INFER_CASES:
            world.post(*case)
    grown = world.server.memory_bytes() - before
    print(f"RSS grew by {grown} bytes in the last of three rounds")
    if grown > 256 * 1024:
        raise Failure(f"RSS grew by {grown} bytes")
