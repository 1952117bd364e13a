"""Several I/O loops: every one of them answers, alike, and the counters are their sum."""

import concurrent.futures
import contextlib
import os
import pathlib
import random
import re
import select
import signal
import socket

import numpy as np
import pytest

from harness import TIMEOUT_S, Server, expect, expect_equal, run, scaled, seed, wait_until
from held import TASKS_PER_WORKER, held_workers
from lifecycle import TABLE, check_table, save
from v2 import Client, Raw, Tensor, head, infer_body

LOOPS = 3


def ask_often(server, count):
    """Opens a connection for a few requests each."""
    for _ in range(count):
        with Client(server) as client:
            for _ in range(5):
                check_table(client)
            expensive = client.infer("items", [Tensor("indices", np.ones((1, 50_000), np.int64))], binary=True)
            expect(np.array_equal(expensive.embeddings(), 50_000 * TABLE[1:2]), "an expensive one")
            client.request("POST", "/v2/models/items/infer", b"{").expect(400)


def test_answers_and_sums(directory):
    path = save(directory / "items.npy")
    clients, count = 8, scaled(20, 4)
    with Server("--table", f"items={path}", "--loops", LOOPS, "--workers", 2) as server, \
            Client(server) as client:
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            for result in [pool.submit(ask_often, server, count) for _ in range(clients)]:
                result.result()
        expect_equal(client.counted("nv_inference_request_success"), clients * count * 6.0)
        expect_equal(client.counted("nv_inference_request_failure"), clients * count * 1.0)
        statistics = client.get("/v2/models/items/stats").json()["model_stats"][0]
        expect_equal(statistics["inference_stats"]["success"]["count"], clients * count * 6)
        expect_equal(client.counted("bagserve_queue_requests"), 0.0)


# ---- who gets which connection ------------------------------------------------------------------
LIVE = head("GET", "/v2/health/live")


def sockets(server):
    """The sockets that each epoll of the server waits for: of every loop its library's is one."""
    folder = pathlib.Path(f"/proc/{server.process.pid}")
    links = {}
    for name in os.listdir(folder / "fd"):
        with contextlib.suppress(FileNotFoundError):
            links[name] = os.readlink(folder / "fd" / name)
    polled = (re.findall(r"^tfd:\s+(\d+)", (folder / "fdinfo" / name).read_text(), re.M)
              for name, link in links.items() if link == "anon_inode:[eventpoll]")
    return [{links[fd] for fd in fds if links.get(fd, "").startswith("socket:")} for fds in polled]


class Watched:
    """A server, and how many connections each of its loops has."""

    def __init__(self, server, address, stack):
        self.server, self.address, self._stack = server, address, stack
        self._before = set().union(*sockets(server))

    def spread(self):
        counts = (len(fds - self._before) for fds in sockets(self.server))
        return sorted(count for count in counts if count)

    def connect(self):
        family = socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET
        connection = self._stack.enter_context(socket.socket(family))
        connection.settimeout(TIMEOUT_S)
        connection.connect(self.address)
        return connection

    def one_by_one(self, count):
        made = []
        for _ in range(count):
            made.append(self.connect())
            ask(made[-1])
        return made

    def at_once(self, count):
        """All of them wait when the server looks."""
        self.server.send(signal.SIGSTOP)
        made = [self.connect() for _ in range(count)]
        self.server.send(signal.SIGCONT)
        for connection in made:
            ask(connection)
        return made


def ask(connection):
    connection.sendall(LIVE)
    expect(connection.recv(65536).startswith(b"HTTP/1.1 200"), "an answer")


@contextlib.contextmanager
def watched(directory, kind, loops):
    path = directory / "socket"
    options = ["--unix", path] if kind == "unix" else []
    with Server("--table", f"items={save(directory / 'items.npy')}", "--loops", loops,
                "--workers", 1, *options) as server, contextlib.ExitStack() as stack:
        yield Watched(server, str(path) if kind == "unix" else (server.host, server.port), stack)


@pytest.mark.parametrize("count", [64, 512])
@pytest.mark.parametrize("how", [Watched.one_by_one, Watched.at_once])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_connections_are_even(directory, kind, how, count):
    loops = 8
    with watched(directory, kind, loops) as server:
        how(server, count)
        expect_equal(server.spread(), [count // loops] * loops)


def test_connections_stay_even(directory):
    """Loops that have lost connections get those that come."""
    loops, count = 4, 64
    choose = random.Random(seed())
    with watched(directory, "tcp", loops) as server:
        made = server.one_by_one(count)
        for _ in range(5):
            choose.shuffle(made)
            for connection in made[count // 2:]:
                connection.close()
            wait_until(lambda: sum(server.spread()) == count // 2, "the server has not noticed")
            made[count // 2:] = server.at_once(count // 2)
            expect_equal(server.spread(), [count // loops] * loops)


# ---- limits are of all loops --------------------------------------------------------------------
def test_share_of_a_client_is_shared(directory):
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--loops", LOOPS, "--max-connections-per-client",
                5) as server, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw(server)) for _ in range(20)]
        for raw in raws:
            with contextlib.suppress(OSError):  # it is closed already
                raw.send(LIVE)
        answered = 0
        for raw in raws:
            with contextlib.suppress(OSError):
                answered += raw.reply() is not None
        expect_equal(answered, 5)


def test_limit_of_connections_is_shared(directory):
    """The limit is the process's, whichever loop has the connections."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--loops", LOOPS, "--max-connections", 10) as server:
        clients = [Client(server) for _ in range(10)]
        for client in clients:
            client.get("/v2/health/live").expect(200)
        with Client(server) as surplus:
            expect_equal(surplus.get("/v2/health/live").status, 503)
        clients.pop().close()

        def has_room():
            with Client(server) as again:
                return again.get("/v2/health/live").status == 200

        wait_until(has_room, "no connection after one has closed")
        for client in clients:
            client.close()


def test_queue_limits_are_shared(directory):
    """One loop's queue may hold what all of them may together."""
    path = save(directory / "items.npy")
    loops, limit, surplus = 2, 8, 5
    with Server("--table", f"items={path}", "--loops", loops, "--workers", 1, "--max-queue-size",
                limit, "--inline-work-us", 0) as server, contextlib.ExitStack() as stack:
        body, headers = infer_body([Tensor("indices", np.ones((1, 1), np.int64))], binary=True)
        raws = []
        for _ in range(2 * 20):  # every second one is the same loop's
            raws.append(stack.enter_context(Raw(server)))
            ask(raws[-1].socket)
        raws = raws[::2]
        stack.enter_context(held_workers(server))
        asked = raws[:TASKS_PER_WORKER + limit + surplus]
        for raw in asked:
            raw.send(head("POST", "/v2/models/items/infer", headers, body))
            for _ in range(3):  # in later turns: each batch that is handed out is of one request
                ask(raws[-1].socket)

        def told():
            return [raw for raw in asked if select.select([raw.socket], [], [], 0)[0]]

        wait_until(lambda: len(told()) >= surplus, "too few are told")
        expect_equal(len(told()), surplus)
        for raw in told():
            reply = raw.reply()
            expect("queue is full" in reply.expect(503).error(), reply)
            expect(f"{limit} requests wait; the limit (max_queue_size) is {limit}" in reply.error(), reply.error())


def test_rejects_other_numbers(directory):
    path = save(directory / "items.npy")
    for text in ("-1", "257", "two"):
        result = run("serve", "--check", "--table", f"items={path}", "--loops", text)
        expect_equal(result.returncode, 2, f"--loops {text}")
        expect("loops" in result.stderr, result.stderr)
