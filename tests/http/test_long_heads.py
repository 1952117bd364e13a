"""A head that does not fit: it is rejected by the server itself, and the client can read why, whatever its length."""

import contextlib
import json
import threading

import pytest

from harness import Server, expect, expect_equal, reads_chunks, wait_until
from v2 import Client, Raw, UnixRaw

FIRST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n"
LIVE = FIRST + b"\r\n"
LIMIT = "13312"


def lines(count, line=b"X-%d: y\r\n"):
    return b"".join(line % i for i in range(count))


HEADS = {
    "a value beyond the limit": FIRST + b"X: " + b"y" * 13500,
    "a value of 20,000 bytes": FIRST + b"X: " + b"y" * 20000,
    "a value of a MiB": FIRST + b"X: " + b"y" * (1 << 20),
    "a name of 40,000 bytes": FIRST + b"X" * 40000 + b": y",
    "200 lines": FIRST + lines(200, b"X-%d: " + b"y" * 50 + b"\r\n"),
    "10,000 lines": FIRST + lines(10000),
    "lines and a value": FIRST + lines(100) + b"X: " + b"y" * 20000,
    "a long target and a value": b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20000,
    "a query and a value": b"GET /v2?" + b"a=b&" * 60 + b" HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20000,
    "a cookie of 10,000 bytes": FIRST + b"Cookie: a=" + b"y" * 10000,
    "a body": b"POST /v2/models/example/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nX: " + b"y" * 20000,
}


@pytest.fixture(scope="module", name="server")
def serve():
    with Server("--demo", "--access-log", "on") as server:
        yield server


def rejections(server):
    """The rejected heads in the access log."""
    return [event for event in server.events() if event["event"] == "request" and event["status"] in (414, 431)]


def send_all(raw, data, piece):
    """In pieces, as far as the server takes them."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for at in range(0, len(data), piece):
            raw.send(data[at:at + piece])


def rejection(raw, before, data, status, piece):
    """The reply to a head that does not fit, behind so many requests that are answered."""
    sender = threading.Thread(target=send_all, args=(raw, LIVE * before + data, piece))
    sender.start()
    for _ in range(before):
        raw.reply().expect(200)
    reply = raw.reply().expect(status)
    sender.join()
    return reply


@pytest.mark.parametrize("piece", [1 << 21, 1000], ids=["at once", "in pieces"])
@pytest.mark.parametrize("before", [0, 1, 3], ids=lambda count: f"behind {count} requests")
@pytest.mark.parametrize("name", HEADS)
def test_long_head(server, name, before, piece):
    """Nothing behind it is answered. It is counted and logged once, with its client."""
    logged = len(rejections(server))
    with Raw(server) as raw:
        reply = rejection(raw, before, HEADS[name] + b"\r\n\r\n" + LIVE, 431, piece)
        expect_equal(json.loads(reply.body)["code"], "headers_too_large")
        expect("headers" in reply.error() and LIMIT in reply.error(), reply.error())
        expect_equal(reply.headers["connection"], "close")
        expect(raw.at_end(), "still open")
    wait_until(lambda: len(rejections(server)) == logged + 1, "not logged once")
    expect(rejections(server)[-1]["client"].startswith("127.0.0.1:"), "whose it was is not logged")


@pytest.mark.parametrize("before", [0, 1], ids=lambda count: f"behind {count} requests")
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_long_request_line(method, before):
    """While nothing else is connected, as only then the library's word can be about this connection alone."""
    with Server("--demo") as server:
        with Raw(server) as raw:
            line = method + b" /" + b"x" * 100000 + b" HTTP/1.1\r\n"
            reply = rejection(raw, before, line, 414, 5000)
            expect_equal(json.loads(reply.body)["code"], "target_too_long")
            expect("request line" in reply.error() and LIMIT in reply.error(), reply.error())
            expect(raw.at_end(), "still open")
        with Client(server) as client:
            expect_equal(client.counted("bagserve_http_responses_total", code=414), 1)


@pytest.mark.parametrize("too_long", [HEADS["10,000 lines"], b"GET /" + b"x" * 100000], ids=["headers", "request line"])
def test_others_are_not_rejected(server, too_long):
    """While other heads are incomplete, the library rejects one in its own words. It does not say which. It does not
    wait for the client, which may not get to read them."""
    logged = len(rejections(server))
    with Raw(server) as half, Raw(server) as raw:
        half.send(FIRST)
        with Client(server) as client:
            wait_until(lambda: client.counted("bagserve_http_connections") == 3, "not accepted")
        send_all(raw, too_long + b"\r\n\r\n", 1 << 21)
        with contextlib.suppress(ConnectionResetError):
            reply = raw.reply()
            expect(reply is None or reply.status in (414, 431), "answered")
        wait_until(lambda: len(rejections(server)) == logged + 1, "not logged once")
        half.send(b"\r\n")
        half.reply().expect(200)


def test_a_rejected_query_is_not_taken_for_a_head(server):
    """A query of too many arguments can exhaust the memory as well, after it was rejected."""
    with Raw(server) as half, Raw(server) as raw:
        half.send(FIRST)
        with Client(server) as client:
            wait_until(lambda: client.counted("bagserve_http_connections") == 3, "not accepted")
        raw.send(b"GET /v2?" + b"a&" * 3900 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        raw.reply().expect(414)
        half.send(b"\r\n")
        half.reply().expect(200)


def test_unix_socket(directory):
    path = directory / "s"
    with Server("--demo", "--unix", path), UnixRaw(path) as raw:
        reply = rejection(raw, 0, HEADS["a value of a MiB"] + b"\r\n\r\n", 431, 5000)
        expect("headers" in reply.error(), "another reason")
        expect(raw.at_end(), "still open")


def test_the_longest_head_is_read(server):
    with Raw(server) as raw:
        raw.send(FIRST + b"X: " + b"y" * 12000 + b"\r\n\r\n")
        raw.reply().expect(200)
        if not reads_chunks():
            raw.send(FIRST + b"Cookie: a=" + b"y" * 5000 + b"\r\n\r\n")
            raw.reply().expect(200)
