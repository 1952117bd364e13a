"""Whoever has not sent all of a request, or has no business here, keeps nobody else from anything; and
what becomes of requests is counted as it was."""

import contextlib
import socket
import time

import numpy as np
import pytest

import control
from harness import Server, expect, expect_equal, wait_until
from held import held_workers, wait_until_read
from lifecycle import TABLE, check_table, save
from v2 import Client, Raw, Tensor, head, infer_body

INFER = "/v2/models/items/infer"
LIVE = head("GET", "/v2/health/live")


def rejected(client, reason):
    return client.counted("bagserve_refused_requests_total", reason=reason)


# ---- hosts --------------------------------------------------------------------------------------
def test_hosts_on_a_loopback_address(directory):
    table = save(directory / "items.npy")

    def status(server, host):
        with Raw(server) as raw:
            raw.send(f"GET /v2 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            return raw.reply().status

    with Server("--table", f"items={table}") as server, Client(server) as client:
        for host in "localhost", "LOCALHOST:1", "127.0.0.1", "10.1.2.3:80", "[::1]", "":
            expect_equal(status(server, host), 200, host)
        for host in "example.org", "localhost.example.org", "[a]":
            expect_equal(status(server, host), 421, host)
        expect_equal(rejected(client, "misdirected"), 3)
    with Server("--table", f"items={table}", "--host-names", "a.example, b.example") as server:
        expect_equal([status(server, f"{name}.example") for name in "abc"], [200, 200, 421])
    with Server("--table", f"items={table}", "--host", "0.0.0.0") as server:
        server.host = "127.0.0.1"
        expect_equal(status(server, "example.org"), 200)


# ---- ids ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["X-Request-Id", "traceparent"])
def test_empty_ids(directory, name):
    with Server("--table", f"items={save(directory / 'items.npy')}") as server, Raw(server) as raw:
        raw.send(head("GET", "/v2/health/live", {name: ""}) + LIVE)
        expect(name.lower() not in raw.reply().expect(200).headers, "an empty id came back")
        raw.reply().expect(200)


# ---- what holds up others -----------------------------------------------------------------------
def test_unfinished_requests_hold_no_models(directory):
    """With a token or without, of a path that there is or not."""
    control.publish(directory / "models", "t", 1)
    token = f"Bearer {control.TOKEN}"
    with control.serve(directory) as server:
        raws = []
        for path, authorization in (("/v2/models/t/infer", token), ("/v2/models/t/infer", "none"),
                                    ("/nowhere", token), ("/v2/health/live", "none")):
            raws.append(Raw(server))
            raws[-1].send(head("POST", path, {"Authorization": authorization, "Content-Length": "5"}, b"1"))
        expect_equal(control.served(server.client), 1)
        server.admin.unload("t").expect(200)
        raws[0].send(b"2345")
        raws[0].reply().expect(404)
        for raw in raws:
            raw.close()


@pytest.mark.parametrize("unfinished", [LIVE[:-2], LIVE[:10], head("POST", INFER, {"Content-Length": "5"})],
                         ids=["head", "first line", "body"])
def test_unfinished_requests_make_room(directory, unfinished):
    """Two clients that have all connections, at the limit of each, do not keep a third out."""
    limits = ("--max-connections", 40, "--max-connections-per-client", 20)
    with Server("--table", f"items={save(directory / 'items.npy')}", *limits) as server:
        raws = [Raw(server, source=f"127.0.0.{2 + i % 2}") for i in range(40)]
        for raw in raws:
            raw.send(unfinished)

        def is_served():
            with Raw(server, source="127.0.0.9") as raw:
                raw.send(LIVE)
                return raw.reply().status == 200

        wait_until(is_served, "the third has no room")
        for raw in raws:
            raw.close()


@pytest.mark.parametrize("surplus", [0, 10])
def test_many_connections_make_room_at_once(directory, surplus):
    """However new they are, for a client who has far fewer; those beyond the limit are not of them."""
    limits = ("--max-connections", 40, "--max-connections-per-client", 30)
    with Server("--table", f"items={save(directory / 'items.npy')}", *limits) as server:
        raws = [Raw(server, source=f"127.0.0.{2 + i % 2}") for i in range(40 + surplus)]
        wait_until(lambda: server.descriptors() > 40 + surplus, "they are not accepted")
        with Raw(server, source="127.0.0.9") as raw:
            raw.send(LIVE)
            raw.reply().expect(200)
        for raw in raws:
            raw.close()


def test_clients_with_many_connections_give_way(directory):
    """To one that has none: he gets 503 while the requests of ten others wait for a worker on all connections. Then each
    of them has its answer, and some of the answers end connections."""
    with Server("--table", f"items={save(directory / 'items.npy')}", "--max-connections", 40, "--workers", 1) as server:

        def some_close():
            with contextlib.ExitStack() as stack:
                with held_workers(server):
                    raws = [stack.enter_context(Raw(server, source=f"127.0.0.{20 + i % 10}")) for i in range(40)]
                    for raw in raws:
                        raw.send(head("GET", "/metrics"))
                    wait_until(lambda: server.descriptors() > 40, "they are not accepted")
                    with Raw(server, source="127.0.0.9") as raw:
                        raw.send(LIVE)
                        raw.reply().expect(503)
                replies = [raw.reply().expect(200) for raw in raws]
                closed = [raw for raw, reply in zip(raws, replies) if reply.headers.get("connection") == "close"]
                for raw in closed:
                    expect(raw.at_end(), "still open")
                if closed:  # otherwise all took more than a second
                    with Raw(server, source="127.0.0.9") as raw:
                        raw.send(LIVE)
                        raw.reply().expect(200)
                return closed

        wait_until(some_close, "nobody gives way")


def test_unfinished_bodies_take_little(directory):
    """Of the length that they announce."""
    most = 256 << 20
    with Server("--table", f"items={save(directory / 'items.npy')}", "--max-memory", most) as server, \
            Client(server) as client:
        raws = [Raw(server) for _ in range(40)]
        for raw in raws:
            raw.send(head("POST", INFER, {"Content-Length": 60 << 20}) + b"{")
        wait_until(lambda: client.counted("bagserve_memory_bytes") >= 40 << 16, "they do not count")
        expect(client.counted("bagserve_memory_bytes") < 8 << 20, "they take what they announce")
        check_table(client)
        for raw in raws:
            raw.close()


# ---- what becomes of requests -------------------------------------------------------------------
def test_late_requests_are_counted(directory):
    with Server("--table", f"items={save(directory / 'items.npy')}", "--request-timeout-s", 1) as server, \
            Client(server) as client:
        for number, late in enumerate((LIVE[:-2], head("POST", INFER, {"Content-Length": "5"}, b"1")), 1):
            with Raw(server) as raw:
                raw.send(late)
                raw.reply().expect(408).error()
                expect(raw.at_end(), "still open")
            wait_until(lambda number=number: rejected(client, "request_timeout") == number, "not counted")
        expect_equal(client.counted("bagserve_http_responses_total", code=408), 2)
        expect_equal(client.counted("bagserve_aborted_requests_total"), 0)


def test_what_the_library_rejects_is_counted(directory):
    with Server("--table", f"items={save(directory / 'items.npy')}") as server, Client(server) as client:
        for request, status in ((b"GET / HTTP/2.0\r\n\r\n", 505),
                                (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20000, 431)):
            with Raw(server) as raw:
                raw.send(request)
                expect_equal(raw.reply().status, status)
            wait_until(lambda code=status: client.counted("bagserve_http_responses_total", code=code) == 1, "not counted")


def test_half_closed_clients_are_answered(directory):
    """Others' connections are open, and a worker makes the answer."""
    with Server("--table", f"items={save(directory / 'items.npy')}", "--inline-work-us", 0) as server, \
            Client(server) as client:
        idle = [Raw(server) for _ in range(5)]
        for _ in range(20):
            body, headers = infer_body([Tensor("indices", np.array([[1, 2]]))], binary=True)
            with Raw(server) as raw:
                raw.send(head("POST", INFER, headers, body))
                raw.socket.shutdown(socket.SHUT_WR)
                reply = raw.reply()
                expect(reply is not None, "no answer")
                expect(np.array_equal(reply.expect(200).embeddings(), [TABLE[1] + TABLE[2]]), "a wrong one")
                expect(raw.at_end(), "still open")
        check_table(client)
        for raw in idle:
            raw.close()


@pytest.mark.parametrize("more", [0, 1000])
def test_documents_for_nobody(directory, more):
    """Of those who have waited for a second, who has left gets none, whatever else he had asked; who asks
    and listens does."""
    with Server("--table", f"items={save(directory / 'items.npy')}", "--workers", 1) as server, \
            contextlib.ExitStack() as stack:
        with held_workers(server):
            kept, *gone = [stack.enter_context(Raw(server)) for _ in range(31)]
            for raw in [kept] + gone:
                raw.send(head("GET", "/metrics"))
            wait_until_read(server, [kept] + gone)
            for raw in gone:
                raw.send(head("GET", "/metrics") * more)
                raw.close()
            long_s = time.monotonic() + 1.1
            wait_until(lambda: time.monotonic() > long_s, "time stands still")
        kept.reply().expect(200)
        with Client(server) as client:
            wait_until(lambda: rejected(client, "cancelled") == len(gone), "made for nobody")
        with Raw(server) as raw:
            raw.send(head("GET", "/metrics"))
            raw.socket.shutdown(socket.SHUT_WR)
            raw.reply().expect(200)
