"""The access log and the log of slow requests; what is passed through into replies."""

import json
import time

import numpy as np

from harness import Server, expect, expect_equal
from lifecycle import save
from v2 import Client, Raw, Tensor, head, infer_body

KEYS = ["time", "level", "event", "client", "method", "path", "status", "bytes_in", "bytes_out",
        "duration_us", "model", "bags", "ids", "request_id", "traceparent"]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def request_lines(server, count):
    """The first `count` lines of requests."""

    def found():
        return [e for e in server.events() if "request" in e["event"].split()]

    with server._changed:  # pylint: disable=protected-access
        server._changed.wait_for(lambda: len(found()) >= count, 60)
    return found()


def infer(client, rows=2, **options):
    tensor = Tensor("indices", np.zeros((rows, 2), np.int64))
    reply = client.infer("items", [tensor], **options)
    reply.expect(200)
    return reply


def test_lines(directory):
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--access-log", "on", "--loops", 2) as server, \
            Raw(server) as raw:
        tensors = [Tensor("indices", np.zeros((3, 2), np.int64))]
        body, headers = infer_body(tensors, binary=True)
        raw.send(head("POST", "/v2/models/items/infer",
                      headers | {"X-Request-Id": "mine", "traceparent": TRACE}, body))
        reply = raw.reply()
        reply.expect(200)
        expect_equal((reply.headers["x-request-id"], reply.headers["traceparent"]),
                     ("mine", TRACE), "what is passed through")
        raw.send(head("GET", "/nowhere?a=%22"))
        expect_equal(raw.reply().status, 404)
        raw.send(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\xff\"\r\n\r\n")
        expect_equal(raw.reply().headers["x-request-id"], 'a\xff"')
        raw.send(b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\nX-Request-Id: two-hosts\r\n\r\n")
        expect_equal(raw.reply().status, 400)
        first, second, third, fourth = request_lines(server, 4)
        client = "%s:%d" % raw.socket.getsockname()
    expect_equal(list(first), KEYS, "keys")
    expect_equal([first[key] for key in KEYS[1:9] + KEYS[10:]],
                 ["info", "request", client, "POST", "/v2/models/items/infer", 200, len(body),
                  len(reply.body), "items", 3, 6, "mine", TRACE], "a line")
    expect(0 <= first["duration_us"] < 60e6, f"{first}")
    expect_equal((second["path"], second["status"], second["model"], second["request_id"]), ("/nowhere", 404, "", ""))
    expect_equal(third["request_id"], 'a\\xff"', "an id that is no UTF-8")
    expect_equal((fourth["status"], fourth["request_id"]), (400, "two-hosts"))
    expect_equal(fourth["error"], "the request has 2 Host headers; it must have one")
    expect_equal(list(fourth), KEYS + ["error"])


def test_errors(directory):
    """Which request was wrong, and why; not what its query says."""
    path = save(directory / "items.npy")
    secret = "/v2?access_token=secret"
    with Server("--table", f"items={path}", "--access-log", "on") as server:
        for lines in ([f"GET {secret} HTTP/1.1", "Host: localhost", "Host: b"],
                      [f"GET {secret}#x HTTP/1.1", "Host: localhost"],
                      [f"PUT {secret} HTTP/1.1", "Host: localhost"]):
            with Raw(server) as raw:
                raw.send("\r\n".join(lines + ["", ""]).encode())
                expect(raw.reply().status >= 400, lines)
        with Client(server) as client:
            client.infer("items", [Tensor("indices", np.array([[0, 77]]))],
                         parameters={"reduction": "avg"}).expect(400)
            client.infer("items", [Tensor("indices", np.array([[0, 77]]))]).expect(400)
        lines = request_lines(server, 5)
    expect_equal([line["path"] for line in lines], ["/v2"] * 3 + ["/v2/models/items/infer"] * 2)
    expect_equal([line["error"].split(";")[0] for line in lines[:1] + lines[2:]], [
        "the request has 2 Host headers", "method PUT cannot be used with /v2",
        'parameter reduction is "avg"', "'indices' at position 1 is 77"])
    expect("secret" not in str(server.events()), "the query is in the log")


def test_ids_of_bodies(directory):
    """The body's id is the request's; cheap requests and expensive ones alike."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--access-log", "on") as server, \
            Client(server) as client:
        infer(client, id="body")
        infer(client, id="expensive", rows=50_000)
        lines = request_lines(server, 2)
        expect_equal([line["request_id"] for line in lines], ["body", "expensive"])
        expect_equal([line["ids"] for line in lines], [4, 100_000])


def test_ids_are_of_their_requests_alone(directory):
    """One that has none gets no earlier one's: not its connection's, nor that of whoever asked before."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--access-log", "on") as server:
        with Client(server) as client:
            infer(client, id="body")
            infer(client)
            infer(client, headers={"X-Request-Id": "header"})
            infer(client)
        with Raw(server) as raw:
            raw.send(head("GET", "/v2", {"X-Request-Id": "earlier"}))
            raw.reply().expect(200)
            raw.send(b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")  # which is rejected
            expect_equal(raw.reply().status, 400)
        lines = request_lines(server, 6)
        expect_equal([line["request_id"] for line in lines], ["body", "", "header", "", "earlier", ""])


def test_long_headers_are_not_passed(directory):
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}") as server, Raw(server) as raw:
        for length in (256, 257):
            raw.send(head("GET", "/v2", {"X-Request-Id": "a" * length}))
            expect_equal("x-request-id" in raw.reply().headers, length == 256, f"{length}")


def test_slow_requests(directory):
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--slow-request-ms", 200) as server, \
            Raw(server) as raw, Client(server) as other:
        body = json.dumps({"inputs": []}).encode()
        request = head("POST", "/v2/models/items/infer", {"X-Request-Id": "late"}, body)
        infer(other)
        raw.send(request[:-1])
        begun = time.monotonic()
        while time.monotonic() < begun + 0.3:
            other.get("/v2/health/live").expect(200)
        raw.send(request[-1:])
        expect_equal(raw.reply().status, 400)
        lines = request_lines(server, 1)
        expect_equal([(e["level"], e["event"], e["request_id"]) for e in lines],
                     [("warning", "slow request", "late")])
        expect(lines[0]["duration_us"] >= 200_000, f"{lines}")


def test_what_the_library_rejects(directory):
    """It says the status and why, and not of whom."""
    with Server("--table", f"items={save(directory / 'items.npy')}", "--access-log", "on") as server, \
            Raw(server) as raw:
        raw.send(b"GET / HTTP/2.0\r\n\r\n")
        expect_equal(raw.reply().status, 505)
        (line,) = request_lines(server, 1)
        expect_equal(line["status"], 505)
        expect("505" in line["error"], line)
        expect("client" not in line and "path" not in line, line)
