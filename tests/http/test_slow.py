"""Slow clients, and too many: every request ends by its deadline, and the others do not notice."""

import contextlib
import itertools
import os
import resource
import select
import signal
import socket
import time

import numpy as np

from harness import TIMEOUT_S, Server, expect, expect_equal, reads_chunks, run, wait_until
from lifecycle import check_table, fill, save
from v2 import HEADER_LENGTH, Client, Raw, Tensor, head, infer_body

INFER = "/v2/models/items/infer"
LIVE = head("GET", "/v2/health/live")
SHORT = ("--request-timeout-s", "1", "--reply-timeout-s", "1", "--idle-timeout-s", "30")


def is_quiet(raw, seconds):
    """Whether nothing comes for a while, neither a byte nor the end."""
    return not select.select([raw.socket], [], [], seconds)[0]


def trickle(rests):
    """Sends on, a byte at a time, so that no connection counts as idle, until each has something
    to read; `rests` says what is still to be sent on which."""
    rests = {raw.socket: iter(rest) for raw, rest in rests.items()}
    deadline = time.monotonic() + TIMEOUT_S
    while rests:
        expect(time.monotonic() < deadline, f"{len(rests)} still open after {TIMEOUT_S} s")
        for to, rest in rests.items():
            to.send(bytes([next(rest)]))
        for done in select.select(list(rests), [], [], 0.1)[0]:
            del rests[done]


# ---- sending ----------------------------------------------------------------------------------
def test_slow_requests(directory):
    """In the first line, the headers, the body, the chunks; also behind another request."""
    path = save(directory / "items.npy")
    body = b" " * 1000
    chunks = head("POST", INFER, {"Transfer-Encoding": "chunked"})
    cases = {
        "first line": (b"", b"GET /" + b"x" * 1000), "headers": (LIVE[:-2], b"X: " + b"y" * 1000),
        "body": (head("POST", INFER, {"Content-Length": "1000"}), body), "chunks": (chunks, b"1\r\n \r\n" * 200),
        "rejected body": (head("POST", "/v2", {"Content-Length": "1000"}), body),}
    if not reads_chunks():
        del cases["chunks"]
    with Server("--table", f"items={path}", *SHORT) as server, contextlib.ExitStack() as stack:
        raws, rests = {}, {}
        for before in b"", LIVE:
            for name, (first, rest) in cases.items():
                raws[name, before] = raw = stack.enter_context(Raw(server))
                raw.send(before + first)
                if before:
                    raw.reply().expect(200)
                rests[raw] = rest
        trickle(rests)
        for (name, before), raw in raws.items():
            raw.reply().expect(408).error()
            expect(raw.at_end(), f"{name} after {before}: still open")
        with Client(server) as client:
            check_table(client)


def test_half_lines(directory):
    """Half a first line has the time of a head: alone, behind an answered request, and behind one in the same piece.
    It is counted by its reason."""
    path = save(directory / "items.npy")
    half = b"POST /v2/models/it"
    body, headers = infer_body([Tensor("indices", np.zeros((1, 1), np.int32))], binary=True)
    infer = head("POST", INFER, headers, body)
    with Server("--table", f"items={path}", *SHORT) as server, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw(server)) for _ in range(4)]
        raws[0].send(half)
        raws[1].send(infer)
        raws[1].reply().expect(200)
        raws[1].send(half)
        raws[2].send(infer + LIVE + half)
        raws[2].reply().expect(200)
        raws[2].reply().expect(200)
        raws[3].send(head("POST", "/v2", {"Content-Length": "5"}) + b"hello" + half)  # a body that nobody wants
        raws[3].reply().expect(405)
        for raw in raws:
            expect_equal(raw.reply().expect(408).error(), "the head of the request took longer than 1 s")
            expect(raw.at_end(), "still open")
        with Client(server) as client:
            expect_equal(client.metrics()['bagserve_refused_requests_total{reason="request_timeout"}'], "4")


def test_idle_is_not_slow(directory):
    """A connection between two requests, or before its first one, has no request's deadline. An empty line is no
    part of a request, but libmicrohttpd 1.0, which reads chunks, closes the connection for it."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", *SHORT) as server, Raw(server) as used, \
            Raw(server) as fresh, Raw(server) as empty:
        used.send(LIVE)
        used.reply().expect(200)
        if not reads_chunks():
            empty.send(b"\r\n")
        expect(is_quiet(used, 3.5) and is_quiet(fresh, 0) and is_quiet(empty, 0), "an idle connection was closed")
        for raw in used, fresh, empty:
            raw.send(LIVE)
            raw.reply().expect(200)


def test_many_slow_requests(directory):
    """Others are served while hundreds trickle."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", *SHORT) as server, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw(server)) for _ in range(400)]
        for raw in raws:
            raw.send(LIVE[:-2])
        with Client(server) as client:
            check_table(client)
        for raw in raws:
            raw.reply().expect(408)
            expect(raw.at_end(), "still open")
        with Client(server) as client:
            check_table(client)


# ---- reading ----------------------------------------------------------------------------------
def small_request():
    body, headers = infer_body([Tensor("indices", np.zeros((1, 1), np.int32))], binary=True)
    return head("POST", INFER, headers, body)


def large_request(rows):
    """A request whose reply is larger than all buffers on its way."""
    body, headers = infer_body([Tensor("indices", np.zeros((rows, 1), np.int32))], binary=True,
                               parameters={"binary_data_output": True})
    expect(HEADER_LENGTH in headers, "a JSON request")
    return head("POST", INFER, headers, body)


def test_slow_reading(directory):
    path = save(directory / "items.npy", np.ones((4, 64), np.float32))
    rows = 200_000
    with Server("--table", f"items={path}", *SHORT) as server, Client(server) as other:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.settimeout(TIMEOUT_S)
            slow.connect((server.host, server.port))
            slow.sendall(large_request(rows))
            received, step, started = 0, 1024, time.monotonic()
            with contextlib.suppress(ConnectionResetError):
                while data := slow.recv(step):
                    received += len(data)
                    if time.monotonic() > started + 3:
                        step = 1 << 20  # what the kernel still holds
                    else:
                        other.get("/v2/health/live").expect(200)
                        select.select([], [], [], 0.01)
            expect(0 < received < rows * 256, f"{received} bytes came in the end")
    with Server("--table", f"items={path}") as server, Raw(server) as raw:  # one who reads at once gets all of it
        raw.send(large_request(rows))
        expect_equal(raw.reply().embeddings().shape, (rows, 64))


def test_reading_that_stops(directory):
    """A reply of which nothing is read ends by the idle time-out, long before its own deadline."""
    path = save(directory / "items.npy", np.ones((4, 64), np.float32))
    with Server("--table", f"items={path}", "--idle-timeout-s", "1") as server, \
            Client(server) as other, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((server.host, server.port))
        slow.sendall(large_request(200_000))
        wait_until(lambda: other.counted("bagserve_http_connections") == 2, "the second one is connected")
        wait_until(lambda: other.counted("bagserve_http_connections") == 1, "it is closed")


# ---- too many ---------------------------------------------------------------------------------
def test_too_many_connections(directory):
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--max-connections", "8", *SHORT) as server:
        with contextlib.ExitStack() as stack:
            raws = [stack.enter_context(Raw(server)) for _ in range(16)]
            for number, raw in enumerate(raws):
                raw.send(LIVE)
                reply = raw.reply()
                if number < 8:
                    reply.expect(200)
                    continue
                expect("max_connections" in reply.expect(503).error(), f"{reply.body}")
                expect_equal(reply.headers["retry-after"], "1", "Retry-After")
                expect(raw.at_end(), "still open")
            silent = stack.enter_context(Raw(server))
            expect(silent.at_end(), "a connection too many is open and silent")
            raws[0].send(LIVE)
            raws[0].reply().expect(200)

        wait_until(lambda: is_served(server), "no connection is free")


def test_too_few_descriptors(directory):
    """Clients wait while descriptors are out, and are served when some are free again."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", *SHORT) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (48, 48))
        with contextlib.ExitStack() as stack:
            raws = [stack.enter_context(Raw(server)) for _ in range(64)]
            for raw in raws:
                raw.send(LIVE)
            raws[0].reply().expect(200)
            expect(is_quiet(raws[-1], 0.5), "more connections than descriptors")
            for raw in raws[:32]:
                raw.close()
            raws[-1].reply().expect(200)
        with Client(server) as client:
            check_table(client)


def test_accepts_again(directory):
    """A connection that ends lets one be accepted that waits for a descriptor, though nothing else
    happens."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--idle-timeout-s", 3600, "--request-timeout-s", 3600) as server, \
            contextlib.ExitStack() as stack:
        raws, waiting = fill(server, stack)
        expect(is_quiet(waiting, 0.5), "a connection without a descriptor is answered")
        raws[0].close()
        expect(not is_quiet(waiting, 20), "nobody is accepted after a connection has ended")
        expect(waiting.reply() is not None, "closed without an answer")


def test_lingering_close_ends(directory):
    """A client that was rejected before its body, and then neither sends nor closes, is forgotten
    soon; not before it can have read its answer."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--max-body-bytes", 1 << 20) as server, \
            Client(server) as other:
        check_table(other)
        before = server.descriptors()
        with Raw(server) as raw:
            raw.send(head("POST", INFER, {"Content-Length": str(1 << 30)}))
            raw.reply().expect(413)
            started = time.monotonic()
            expect(raw.at_end(), "the server sends no end")

            def is_forgotten():
                check_table(other)
                return server.descriptors() == before

            wait_until(is_forgotten, "the rejected connection is kept", 20)
            took_s = time.monotonic() - started
            expect(1 < took_s, f"forgotten after {took_s} s")


def test_connections_of_one_client(directory):
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--max-connections-per-client", "2") as server:
        with Raw(server) as first, Raw(server) as second, Raw(server) as third:
            for raw in first, second:
                raw.send(LIVE)
                raw.reply().expect(200)
            expect(third.at_end(), "a third connection is open")
            second.send(head("GET", "/metrics"))
            expect(b"\nbagserve_refused_connections_total 1\n" in second.reply().expect(200).body, "it is not counted")


def test_idle_connections_make_room(directory):
    """At the limit the connection that has been idle for longest is closed for a new one."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--max-connections", "8") as server:
        with contextlib.ExitStack() as stack:
            raws = [stack.enter_context(Raw(server)) for _ in range(8)]
            for raw in raws[1:] + raws[:1]:
                raw.send(LIVE)
                raw.reply().expect(200)
            wait_until(lambda: is_served(server), "an idle connection makes room")
            gone = [raw for raw in raws if not is_quiet(raw, 0)]
            expect(gone and raws[0] not in gone, "the one that asked last was closed")
            expect(all(raw.at_end() for raw in gone), "bytes came")


def test_room_is_made_once(directory):
    """A connection that gave way to another one counts neither longer nor less: the limit holds."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--max-connections", "8") as server, contextlib.ExitStack() as stack:

        def is_served_and_stays():
            raw = Raw(server)
            if is_asked(raw):
                raws.append(stack.enter_context(raw))
                return True
            raw.close()
            is_quiet(raws[-8], 0.05)  # until that one may give way
            return False

        raws = []
        for _ in range(8):
            expect(is_served_and_stays(), "a connection up to the limit")
        for _ in range(8):
            wait_until(is_served_and_stays, "no idle connection makes room")
        expect_equal([is_quiet(raw, 0) for raw in raws], [False] * 8 + [True] * 8, "which are open")


def test_bytes_that_wait_are_no_idleness(directory):
    """Of a server that did not get to run since they came."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--idle-timeout-s", 1) as server, Raw(server) as raw:
        for _ in range(3):
            expect(is_asked(raw), "it is not served")
            server.send(signal.SIGSTOP)
            raw.send(LIVE)
            expect(is_quiet(raw, 1.5), "a stopped server answers")
            server.send(signal.SIGCONT)
            reply = raw.reply()
            expect(reply is not None, "the connection is cut off, with a request that waits")
            reply.expect(200)


def is_served(server):
    with Client(server) as client:
        return client.get("/v2/health/live").status == 200


def test_share_of_one_address(directory):
    """By default an address gets half of all connections, except where it is a proxy's."""
    path = save(directory / "items.npy")
    table = ("--table", f"items={path}", "--max-connections", "150")
    for proxies, most in ("", 75), ("10.0.0.0/8", 75), ("127.0.0.1", 150), ("::1, 127.0.0.0/8", 150):
        options = ("--trusted-proxies", proxies) if proxies else ()
        with Server(*table, *options) as server, contextlib.ExitStack() as stack:
            raws = [stack.enter_context(Raw(server)) for _ in range(most)]
            for raw in raws:
                raw.send(LIVE)
                raw.reply().expect(200)
            further = stack.enter_context(Raw(server))
            if most == 75:
                expect(further.at_end(), "more than half of the connections")
                continue
            further.send(LIVE)
            further.reply().expect(503)
    with Server(*table) as server:
        for _ in range(200):  # a share comes back with its connections
            with Raw(server) as raw:
                raw.send(LIVE)
                raw.reply().expect(200)
    for bad in "10.0.0.0/33", "::1/129", "localhost", "10.0.0.0/", "1.2.3.4/8x", ",":
        done = run("serve", "--check", *table, "--trusted-proxies", bad)
        expect(done.returncode != 0 and "trusted_proxies" in done.stderr, f"{bad}: {done}")


def is_asked(raw):
    """Asks, which also takes time."""
    raw.send(LIVE)
    return raw.reply().status == 200


def first_free_descriptor(server):
    taken = {int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd")}
    return next(number for number in itertools.count() if number not in taken)


def test_failed_accepts(directory):
    """While connections stay open, others are served as soon as there are descriptors again, and
    nothing spins meanwhile."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}") as server, Raw(server) as kept:
        kept.send(LIVE)
        kept.reply().expect(200)
        usual = server.descriptors()
        for _ in range(2):
            wait_until(lambda: is_asked(kept) and server.descriptors() == usual,
                       "the last client's descriptor is open")
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (first_free_descriptor(server), 4096))
            with Raw(server) as waiting:
                waiting.send(LIVE)
                before = server.cpu_seconds()
                expect(is_quiet(waiting, 1.0), "a connection without a descriptor")
                spent_s = server.cpu_seconds() - before
                expect(spent_s < 0.3, f"{spent_s} s of CPU in a second of waiting")
                resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (4096, 4096))
                waiting.reply().expect(200)
            kept.send(LIVE)
            kept.reply().expect(200)


def test_half_closed(directory):
    """A client that ends its side once it has asked gets its answer, from the engine, too."""
    path = save(directory / "items.npy")
    for inline_us in 0, 1000000:
        with Server("--table", f"items={path}", "--inline-work-us", inline_us) as server:
            for _ in range(20):
                with Raw(server) as raw:
                    raw.send(small_request())
                    raw.socket.shutdown(socket.SHUT_WR)
                    raw.reply().expect(200)
                    expect(raw.at_end(), "still open")
