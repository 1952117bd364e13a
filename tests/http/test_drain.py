"""Stops a server under load and counts what became of every request that was sent.

Half of the clients keep their connection, half open a new one for each request; in the middle of it
the server gets SIGTERM. A client may find the port closed, or its idle connection, and has then sent
nothing. A request that was sent must be answered: with its result, or with 503 as the server is
stopping.

A longer run: tests/run-one http/test_drain.py --requests 30000 --rounds 1
--server-option=OPTION adds an argument for the server.
"""

import collections
import contextlib
import select
import socket
import threading

import numpy as np
import pytest

from harness import Server, expect, expect_equal, scaled, wait_until
from lifecycle import TABLE, fill, save
from updates import AUTHORIZED, World, applied, rows_of, table, update
from v2 import Client, Raw, Tensor, head, infer_body

CLIENTS = 16


class Load:
    """Clients that ask until they have asked enough, or nobody listens."""

    def __init__(self, server, requests):
        self.server = server
        self.requests = requests
        self.counts = collections.Counter()
        self.losses = []
        self._lock = threading.Lock()
        self._answered = 0
        self.halfway = threading.Event()
        body, headers = infer_body([Tensor("indices", np.array([[1, 2]]))], binary=True)
        self._request = head("POST", "/v2/models/items/infer", headers, body)
        self._threads = [threading.Thread(target=self._run, args=(i % 2 == 0,)) for i in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _count(self, what):
        with self._lock:
            self.counts[what] += 1
            self._answered += what in (200, 503)
            if self._answered >= self.requests // 2:
                self.halfway.set()
            return sum(self.counts.values()) < self.requests

    def _ask(self, raw):
        """What became of one request; and whether the connection goes on."""
        raw.socket.setblocking(False)
        try:
            if raw.socket.recv(1, socket.MSG_PEEK) == b"":
                return "closed while idle", False
        except BlockingIOError:
            pass
        finally:
            raw.socket.settimeout(60)
        try:
            raw.send(self._request)
            reply = raw.reply()
        except OSError as problem:
            reply = problem
        if reply is None or isinstance(reply, OSError):
            self.losses.append(repr(reply))
            return "lost", False
        return reply.status, reply.headers.get("connection", "").lower() != "close"

    def _run(self, keep_alive):
        raw, going = None, True
        while going:
            if raw is None:
                try:
                    raw = Raw(self.server)
                except ConnectionRefusedError:
                    self._count("rejected")
                    return
            what, goes_on = self._ask(raw)
            going = self._count(what)
            if not (goes_on and keep_alive):
                raw.close()
                raw = None
        if raw:
            raw.close()

    def join(self):
        for thread in self._threads:
            thread.join()


def stop_under_load(path, requests, *options):
    """One round; returns what became of the requests."""
    with Server("--table", f"items={path}", *options) as server:
        load = Load(server, requests)
        load.halfway.wait()
        server.stop()
        load.join()
    expect(not load.losses, f"lost: {load.losses[:5]} of {dict(load.counts)}")
    expect_equal(set(load.counts) - {200, 503, "rejected", "closed while idle"}, set(), "answers")
    expect(load.counts[200] >= requests // 2, f"{dict(load.counts)}")
    return load.counts


@pytest.mark.parametrize("loops", [[], ["--loops", "2"]], ids=["default", "two-loops"])
def test_stop_under_load(directory, pytestconfig, loops):
    requests = pytestconfig.getoption("requests") or scaled(1000, 100)
    path = save(directory / "items.npy")
    for i in range(pytestconfig.getoption("rounds")):
        counts = stop_under_load(path, requests, *pytestconfig.getoption("server_option"), *loops)
        print(f"{loops} round {i + 1}: {dict(counts)}; none lost, exit code 0", flush=True)


# ---- the stages -------------------------------------------------------------------------------
def connects(server):
    """How an attempt to connect ends."""
    try:
        with socket.create_connection((server.host, server.port), 0.4):
            return "connected"
    except TimeoutError:
        return "no answer"
    except ConnectionRefusedError:
        return "rejected"


def test_stages(directory):
    """New connections are taken while a request is in flight, but for no longer than half of the
    drain's time. Then none begins, without a word; one that has begun is still accepted and answered,
    however long it has to wait for that, and so is the request."""
    timeout_s = 12  # its half is less than a head may take
    body, headers = infer_body([Tensor("indices", np.array([[1, 2]]))], binary=True)
    request = head("POST", "/v2/models/items/infer", headers, body)
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--drain-timeout-s", timeout_s) as server, Raw(server) as asking, contextlib.ExitStack() as stack:
        asking.send(request[:-1])
        raws, waiting = fill(server, stack)
        server.send()
        server.wait_event("draining")
        expect_equal(connects(server), "connected", "a connection at once")

        def is_rejected():
            expect(not select.select([waiting.socket], [], [], 0.1)[0], "no longer waiting")
            return connects(server) != "connected"

        wait_until(is_rejected, "new connections are taken", timeout_s)
        expect_equal(connects(server), "no answer", "a connection now")
        for raw in raws:
            raw.close()
        reply = waiting.reply()
        expect(reply is not None, "a connection that had begun was closed without an answer")
        waiting.close()
        asking.send(request[-1:])
        reply = asking.reply()
        expect(np.array_equal(reply.embeddings(), [TABLE[1] + TABLE[2]]), "a wrong answer")
        server.check_end()


def test_first_line_while_draining(directory):
    """A client in the midst of its first line has begun to ask, and is answered."""
    path = save(directory / "items.npy")
    request = head("GET", "/v2/health/live", {})
    with Server("--table", f"items={path}") as server, Raw(server) as asking:
        asking.send(request)
        expect_equal(asking.reply().status, 200, "the first answer")
        server.send()
        server.wait_event("draining")
        for i, byte in enumerate(request[:20]):
            asking.send(bytes([byte]))
            ended = select.select([asking.socket], [], [], 0.05)[0]
            expect(not ended, f"closed after {i + 1} bytes of a request")
        asking.send(request[20:])
        expect_equal(asking.reply().status, 200, "the last answer")
        server.check_end()


def test_rows_while_draining(directory):
    """Nothing is changed any more, while a request that was begun is still answered."""
    world = World(directory)
    body, headers = infer_body([Tensor("indices", np.array([[1, 2]]))], binary=True)
    request = head("POST", "/v2/models/dense/infer", headers | AUTHORIZED, body)
    with world.server() as server, Raw(server) as asking:
        asking.send(request[:-1])
        with Client(server) as client:
            applied(update(client, "dense", [1], [[1, 1, 1, 1]]), 1, 1)
        server.send()
        server.wait_event("draining")
        with Client(server) as client:
            error = update(client, "dense", [2], [[2, 2, 2, 2]]).expect(503).error()
            expect_equal(error, "the server is stopping")
        asking.send(request[-1:])
        expect(np.array_equal(asking.reply().embeddings(), [1 + table()[2]]), "a wrong answer")
        server.check_end()
    with world.server() as server, Client(server) as client:
        expect_equal(rows_of(client, "dense", [1, 2]).tolist(), [[1, 1, 1, 1], table()[2].tolist()])
