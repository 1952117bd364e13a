"""Compressed requests and replies: gzip and deflate both ways, at every size at which another thread
does the work, and what is rejected."""

import gzip
import zlib

import numpy as np
import pytest

from example import BODY, EXAMPLE, INFER, INPUTS, WANT, check_rows, i64
from harness import Server, expect, expect_equal, reads_chunks
from v2 import HEADER_LENGTH, Client, Raw, Tensor, head, infer_body

MAX_BODY_BYTES = 1 << 20
MIN_BYTES = 16384
ROWS = 4000
GZIP, DEFLATE = {"Content-Encoding": "gzip"}, {"Content-Encoding": "deflate"}
PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress}


def as_bytes(body):
    return body if isinstance(body, bytes) else body.encode()


def post(client, body, headers, path=INFER):
    return client.request("POST", path, body, headers)


def ask_for(count):
    """A request of `count` indices, and the sums that it should get."""
    rows = np.arange(count, dtype=np.int64) % ROWS
    want = np.array([rows[:count // 2].sum(), rows[count // 2:].sum()], np.float64)
    return [Tensor("indices", rows), i64("offsets", [0, count // 2])], want.reshape(2, 1)


# ---- requests ---------------------------------------------------------------------------------
def test_json_request(client):
    for name, pack in PACK.items():
        for value in (name, name.upper()):
            reply = post(client, pack(as_bytes(BODY)), {"Content-Encoding": value})
            check_rows(reply.embeddings(), WANT)
    check_rows(post(client, gzip.compress(as_bytes(BODY)), {"Content-Encoding": "x-gzip"}) .embeddings(), WANT)


def test_header_length_counts_what_was_compressed(client):
    body, headers = infer_body(INPUTS, binary=True, parameters={"binary_data_output": True})
    for name, pack in PACK.items():
        reply = post(client, pack(body), headers | {"Content-Encoding": name})
        check_rows(reply.embeddings(), WANT)
    packed = gzip.compress(body)
    for length in (len(body) + 1, 2**64, 0):
        text = post(client, packed, GZIP | {HEADER_LENGTH: str(length)}).expect(400).error()
        expect(str(len(body)) in text, text)
    text = post(client, gzip.compress(as_bytes(BODY)), GZIP | {HEADER_LENGTH: str(len(BODY))})
    check_rows(text.embeddings(), WANT)


def test_sizes(client):
    """From what the loop's thread does itself to what it leaves to workers."""
    for count in (10, 500, 900, 1000, 1100, 2000, 5000, 20000, 100000):
        tensors, want = ask_for(count)
        for binary in (True, False):
            body, headers = infer_body(tensors, binary=binary)
            for name, pack in PACK.items():
                reply = post(client, pack(body), headers | {"Content-Encoding": name}, "/v2/models/wide/infer")
                check_rows(reply.embeddings(), want)


def test_in_pieces(client):
    packed = gzip.compress(as_bytes(BODY))
    with Raw(client.server) as raw:
        for byte in head("POST", INFER, GZIP, packed):
            raw.send(bytes([byte]))
        check_rows(raw.reply().embeddings(), WANT)
        if not reads_chunks():
            return
        framed = b"".join(b"1\r\n%c\r\n" % byte for byte in packed) + b"0\r\n\r\n"
        raw.send(head("POST", INFER, GZIP | {"Transfer-Encoding": "chunked"}, framed))
        check_rows(raw.reply().embeddings(), WANT)


def test_broken_streams(client):
    """tests/unit/test_coding.c has all ways of being broken."""
    packed = gzip.compress(as_bytes(BODY))
    for body, headers, word in [(packed[:-1], GZIP, "too early"), (b"", GZIP, "too early"), (packed + b"\0", GZIP, "follow"),
                                (as_bytes(BODY), GZIP, "gzip"), (packed, DEFLATE, "deflate")]:
        error = post(client, body, headers).expect(400).error()
        expect(word in error, f"{word}: {error}")
        check_rows(post(client, BODY, {}).embeddings(), WANT)


def test_codings_that_there_are_not(client):
    for value in ("br", "zstd", "gzip, gzip", "gzip, identity", "compress", "*", "gzip;q=1"):
        text = post(client, BODY, {"Content-Encoding": value}).expect(415).error()
        expect(value in text and "gzip" in text, text)
    with Raw(client.server) as raw:
        raw.send(head("POST", INFER, {"Content-Encoding": "gzip\r\nContent-Encoding: gzip"}, as_bytes(BODY)))
        raw.reply().expect(415).error()
    text = post(client, gzip.compress(b"{}"), GZIP, "/v2/repository/index").expect(415).error()
    expect("gzip" in text, text)


def test_limit(client):
    """The decompressed size counts, to the byte."""
    text = as_bytes(BODY)
    for name, pack in PACK.items():
        headers = {"Content-Encoding": name}
        check_rows(post(client, pack(text.ljust(MAX_BODY_BYTES)), headers).embeddings(), WANT)
        error = post(client, pack(text.ljust(MAX_BODY_BYTES + 1)), headers).expect(413).error()
        expect("max_body_bytes" in error and str(MAX_BODY_BYTES) in error, error)


def test_bomb(client):
    """A quarter of a gigabyte of zeros in some 256 KiB: rejected without making it."""
    packer, zeros = zlib.compressobj(6, wbits=31), bytes(1 << 20)
    bomb = b"".join(packer.compress(zeros) for _ in range(256)) + packer.flush()
    expect(len(bomb) < MAX_BODY_BYTES, "not a body that is read")
    before = client.server.memory_bytes("VmHWM")
    post(client, bomb, GZIP).expect(413).error()
    post(client, gzip.compress(bytes(100 * 8192), 9), GZIP).expect(400).error()
    grown = client.server.memory_bytes("VmHWM") - before
    expect(grown < 32 * MAX_BODY_BYTES, f"memory grew by {grown} bytes")
    check_rows(post(client, BODY, {}).embeddings(), WANT)


# ---- replies ----------------------------------------------------------------------------------
def large(count=ROWS):
    """Every row as a bag of its own."""
    return [i64("indices", range(count), (count, 1))]


def check_large(reply, count=ROWS):
    check_rows(reply.embeddings(), np.arange(count, dtype=np.float64).reshape(count, 1))


def unpacked(reply):
    reply.expect(200)
    name = reply.headers["content-encoding"]
    expect_equal(reply.headers["vary"], "Accept-Encoding")
    expect_equal(reply.headers["content-length"], str(len(reply.body)))
    reply.body = UNPACK[name](reply.body)
    return name, reply


def test_packed_reply(client):
    for accept, want in (("gzip", "gzip"), ("deflate", "deflate"), ("gzip, deflate, br", "gzip"),
                         ("*", "gzip"), ("deflate;q=1, gzip;q=0.5", "deflate")):
        for binary in (True, False):
            reply = client.infer("wide", large(), {"Accept-Encoding": accept},
                                 parameters={"binary_data_output": binary})
            size = len(reply.body)
            name, reply = unpacked(reply)
            expect_equal(name, want, accept)
            expect(size < len(reply.body), "not smaller")
            check_large(reply)


def test_plain_reply(client):
    for accept in ("identity", "br", "gzip;q=0", "", "gzip;q=0.1, identity"):
        reply = client.infer("wide", large(), {"Accept-Encoding": accept})
        expect("content-encoding" not in reply.headers, accept)
        check_large(reply)


def test_small_replies_and_errors_stay(client):
    accept = {"Accept-Encoding": "gzip"}
    for reply in (client.infer("items", INPUTS, accept), client.infer("wide", large(5), accept)):
        expect("content-encoding" not in reply.expect().headers, "a small reply is compressed")
    long_name = [i64("indices", [9999]), i64("offsets", [0])]
    reply = client.infer("items", long_name, accept, id="x" * 2 * MIN_BYTES)
    expect("content-encoding" not in reply.expect(400).headers, "a compressed error")
    reply.error()
    expect("content-encoding" not in client.request("GET", "/v2", None, accept).headers, "GET")


def test_noise_stays(client):
    """What does not become smaller is sent as it is."""
    reply = client.infer("noise", large(), {"Accept-Encoding": "gzip"}, parameters={"binary_data_output": True})
    expect("content-encoding" not in reply.headers, "noise was compressed")
    expect(len(reply.expect().body) > MIN_BYTES, "too small to tell")


def test_both_ways(client):
    body, headers = infer_body(large(), binary=True, parameters={"binary_data_output": True})
    reply = post(client, gzip.compress(body), headers | GZIP | {"Accept-Encoding": "deflate"},
                 "/v2/models/wide/infer")
    check_large(unpacked(reply)[1])


def test_off_by_default():
    with Server("--demo") as server, Client(server) as client:
        reply = client.infer("items", large(), {"Accept-Encoding": "gzip"}).expect()
        expect("content-encoding" not in reply.headers and "vary" not in reply.headers, "is on")


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    noise = np.random.default_rng(1).integers(0, 256, (ROWS, 64), np.uint8)
    for name, table in {"items": EXAMPLE, "noise": noise,
                        "wide": np.arange(ROWS, dtype=np.float64).reshape(ROWS, 1)}.items():
        np.save(shared_directory / f"{name}.npy", table)
    with Server("--models", shared_directory, "--max-body-bytes", MAX_BODY_BYTES,
                "--reply-compression", "on") as server:
        yield server
