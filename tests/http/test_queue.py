"""Expensive work: many connections at once, a full queue, time-outs, clients in turns."""

import contextlib
import pathlib
import signal
import socket

import numpy as np
import pytest

from harness import Server, expect, expect_equal, scaled, wait_until
from held import held_workers, nice_value, occupy, wait_until_read
from v2 import Client, Raw, Tensor, head, infer_body

INFER = "/v2/models/items/infer"
ROWS, COLUMNS = 100_000, 64


def items(rows):
    """Rows of the demo table, by the formula of `--demo`."""
    row = np.asarray(rows, np.uint64)[:, None]
    column = np.arange(COLUMNS, dtype=np.uint64)
    mixed = (row * 2654435769 + column * 2246822507) % 2**32 // 2**20
    return ((mixed.astype(np.int64) - 2048) / 2048).astype(np.float32)


def question(number, count, **top):
    """One bag of `count` indices in binary, as a request's bytes, and its answer."""
    indices = (np.arange(count, dtype=np.int64) * 7919 + number) % ROWS
    body, headers = infer_body(
        [Tensor("indices", indices[None, :])], binary=("indices",),
        **{**top, "parameters": {"binary_data_output": True, **top.get("parameters", {})}})
    want = items(indices).cumsum(axis=0, dtype=np.float32)[-1:]
    return head("POST", INFER, headers, body), want


def check(reply, want):
    got = reply.embeddings()
    expect(got.tobytes() == want.tobytes(), f"{got} instead of {want}")


def ask_at_once(server, count, ids):
    """As many requests, each on a connection of its own, all sent before any answer is read."""
    asked = [question(number, ids) for number in range(count)]
    raws = [Raw(server) for _ in asked]
    for raw, (request, _) in zip(raws, asked):
        raw.send(request)
    for raw, (_, want) in zip(raws, asked):
        check(raw.reply(), want)
        raw.close()


def sent(stack, server, request, source=None):
    """A connection that the request was sent on."""
    raw = stack.enter_context(Raw(server, source=source))
    raw.send(request)
    return raw


def queued(server):
    """How many requests wait, as /metrics says."""
    with Client(server) as client:
        return client.counted("bagserve_queue_requests")


def test_busy_workers():
    """Not what waits for them, nor the work of telling it."""
    with Server("--demo", "--workers", 1) as server, Client(server) as client:
        seen = []

        def scrape():
            seen.append(client.counted("bagserve_busy_workers"))
            return seen[-1]

        expect_equal(scrape(), 0)
        raws, request = [Raw(server) for _ in range(8)], question(0, 200_000)[0]

        def ask():
            for raw in raws:
                raw.send(request)
            for raw in raws:
                scrape()
                raw.reply().expect(200)
            return max(seen)

        wait_until(ask, "the worker does nothing")
        for raw in raws:
            raw.close()
        wait_until(lambda: scrape() == 0, "the worker has something to do")
        expect_equal(set(seen), {0, 1})


def test_many_connections():
    """Counts around the event loop's batch of 128, with work that goes to the workers."""
    with Server("--demo") as server:
        for count in (127, 128, 129, 256, 512):
            ask_at_once(server, count, 2_000)


def test_full_queue():
    """What has no place is told at once to come back; what has one is answered right."""
    with Server("--demo", "--workers", 1, "--max-queue-size", 2) as server:
        request, want = question(1, scaled(200_000, 20_000))
        raws = [Raw(server) for _ in range(32)]
        for raw in raws:
            raw.send(request)
        statuses = []
        for raw in raws:
            reply = raw.reply()
            statuses.append(reply.status)
            if reply.status == 200:
                check(reply, want)
            else:
                expect("queue is full" in reply.expect(503).error(), reply)
                expect_equal(reply.headers.get("retry-after"), "1")
            raw.close()
        expect(200 in statuses and 503 in statuses, f"statuses: {statuses}")
        with Raw(server) as raw:
            raw.send(request)
            check(raw.reply(), want)


def test_full_queue_needs_no_body():
    """Where the queue is full, a request whose length says that it is expensive is told from its head."""
    with Server("--demo", "--workers", 1, "--max-queue-size", 2) as server, \
            contextlib.ExitStack() as stack, contextlib.ExitStack() as held:
        request, _ = question(1, 20_000)
        held.enter_context(held_workers(server))
        raws = occupy(server, lambda: sent(stack, server, request))
        raws += [sent(stack, server, request) for _ in range(2)]
        wait_until_read(server, raws)
        with Raw(server) as third:
            third.send(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n"
                       "Inference-Header-Content-Length: 100\r\n\r\n".encode())
            expect("queue is full" in third.reply().expect(503).error(), "not rejected by its head")
        for raw in raws:
            raw.close()
        held.close()
        wait_until(lambda: queued(server) == 0, "the queue forgets those who have gone")


def test_announced_bodies_count():
    """With a latency target bodies that are on their way leave no room for others of their client, who
    are told so before they send theirs, until their clients go. Another client has his share."""
    def announced(stack, server, source=None):
        raw = stack.enter_context(Raw(server, source=source))
        raw.send(head("POST", INFER, {"Expect": "100-continue", "Content-Length": "60000000"}))
        return raw.reply()

    with Server("--demo", "--workers", 1, "--latency-target-ms", 20_000) as server:
        with contextlib.ExitStack() as stack:
            replies = [announced(stack, server) for _ in range(38)]
            expect_equal({reply.status for reply in replies[:30]}, {100})
            refused = replies[37].expect(503)  # 37 take 0.36 s each, of 13 that are allowed
            expect("the queue is full: a request would wait 13" in refused.error(), refused.error())
            expect_equal(refused.headers["connection"].lower(), "close")
            expect_equal(announced(stack, server, "127.0.0.2").status, 100)

        def has_room():
            with contextlib.ExitStack() as stack:
                return announced(stack, server).status == 100
        wait_until(has_room, "those who have gone leave room")


@pytest.mark.parametrize("drains", (False, True))
def test_large_bodies_wait_for_room(drains):
    """Where there is no room, large requests on new connections, which are held for a while, are all
    told so, also when the server drains. Small ones are answered meanwhile, and so is a client who has
    his share."""
    with Server("--demo", "--workers", 1, "--latency-target-ms", 20_000) as server, \
            contextlib.ExitStack() as stack:
        for _ in range(38):
            sent(stack, server, head("POST", INFER, {"Expect": "100-continue", "Content-Length": "60000000"})).reply()
        large, want = question(1, 25_000)
        small, small_want = question(2, 10)
        raws = [sent(stack, server, large) for _ in range(200)]
        if drains:
            server.send()
        else:
            check(sent(stack, server, small).reply(), small_want)
        for raw in raws:
            reply = raw.reply().expect(503)
            expect(drains or "the queue is full" in reply.error(), reply.error())
            expect_equal(reply.headers["connection"].lower(), "close")
        if drains:
            stack.close()
            server.check_end()
        else:
            check(sent(stack, server, large, "127.0.0.2").reply(), want)


@pytest.mark.parametrize("drains", (False, True))
def test_clients_that_ask_again_pause(drains):
    """While many are rejected at once, all connections that ask again are told so after a pause of 200 ms. The server
    stands still while they ask, so that its loop finds all of their requests in one iteration."""
    with Server("--demo", "--workers", 1, "--loops", 1, "--max-queue-size", 2, "--access-log", "on") as server, \
            contextlib.ExitStack() as stack, contextlib.ExitStack() as held:
        occupant, request = question(1, 20_000)[0], question(2, 2_000)[0]
        held.enter_context(held_workers(server))
        raws = occupy(server, lambda: sent(stack, server, occupant))
        raws += [sent(stack, server, occupant) for _ in range(2)]
        wait_until_read(server, raws)
        again = [Raw(server) for _ in range(100)]

        def rejected():
            return [event for event in server.events() if event["event"] == "request" and event["status"] == 503]

        def ask_all():
            server.send(signal.SIGSTOP)
            for raw in again:
                raw.send(request)
            server.send(signal.SIGCONT)

        def all_pause():
            before = len(rejected())
            ask_all()
            for raw in again:
                reply = raw.reply().expect(503)
                expect("queue is full" in reply.error(), reply.error())
                expect_equal(reply.headers.get("connection", "keep-alive").lower(), "keep-alive")
            wait_until(lambda: len(rejected()) == before + 100, "not all requests are logged")
            return min(event["duration_us"] for event in rejected()[before:]) >= 100_000

        wait_until(all_pause, "some are rejected at once")
        if not drains:
            return
        ask_all()
        held.close()
        server.send()
        for raw in again:
            expect(raw.reply().status in (200, 503), "an answer was lost")  # 200 if it had not been read before
        stack.close()
        server.check_end()


def test_paused_clients_that_ended_their_side_are_answered():
    """They have sent their last request, which is rejected by its head, and still read."""
    with Server("--demo", "--workers", 1, "--loops", 1, "--max-queue-size", 2, "--inline-work-us", 1,
                "--access-log", "on") as server, \
            contextlib.ExitStack() as stack, contextlib.ExitStack() as held:
        occupant, request = question(1, 20_000)[0], question(2, 2_000)[0]
        held.enter_context(held_workers(server))
        raws = occupy(server, lambda: sent(stack, server, occupant))
        raws += [sent(stack, server, occupant) for _ in range(2)]
        wait_until_read(server, raws)

        def rejected():
            return [event for event in server.events() if event["event"] == "request" and event["status"] == 503]

        def all_pause():
            again = [stack.enter_context(Raw(server)) for _ in range(100)]
            for is_last in (False, True):
                before = len(rejected())
                server.send(signal.SIGSTOP)
                for raw in again:
                    raw.send(request)
                    if is_last:
                        raw.socket.shutdown(socket.SHUT_WR)
                server.send(signal.SIGCONT)
                for raw in again:
                    expect("queue is full" in raw.reply().expect(503).error(), "another error")
                wait_until(lambda: len(rejected()) == before + 100, "not all requests are logged")
            return min(event["duration_us"] for event in rejected()[before:]) >= 100_000

        wait_until(all_pause, "some are rejected at once")


def test_timeout():
    """A request's own time-out shortens the server's."""
    late, want = question(1, 100_000, parameters={"timeout": 1})
    unlimited, _ = question(1, 100_000, parameters={"timeout": 0})
    with Server("--demo") as server, Raw(server) as raw:
        raw.send(late)
        expect("timeout" in raw.reply().expect(503).error(), "no word of the time-out")
        raw.send(unlimited)
        check(raw.reply(), want)
    with Server("--demo", "--default-timeout-microseconds", 1) as server, Raw(server) as raw:
        raw.send(unlimited)
        raw.reply().expect(503)


def test_replies_beside_many_that_wait():
    """Replies to others do not wait for those of hundreds of requests, not even together with them."""
    with Server("--demo", "--workers", 1, "--drain-timeout-s", 300) as server, contextlib.ExitStack() as stack, \
            Client(server) as client:
        asked = [question(number, 5_000) for number in range(300)]
        with held_workers(server):
            raws = [sent(stack, server, request) for request, _ in asked]
            wait_until_read(server, raws)
            for _ in range(20):
                client.get("/v2/models/items").expect(200)
            server.send()  # a server that stops answers what waits
        for raw, (_, want) in zip(raws, asked):
            check(raw.reply(), want)
        server.check_end()


@pytest.mark.parametrize("other, in_turn", [("127.0.0.2", True), ("127.0.0.1", False)])
def test_clients_take_turns(other, in_turn):
    """One client's small requests go before another's large ones that came first, all but one; of the
    same client they wait for all. Nothing but the first two is started before all are queued. Their order is that of the
    log, where those that end in one turn of the loop stand in any order."""
    large, small = ([head("POST", INFER, headers, body) for body, headers in (
        infer_body([Tensor("indices", np.arange(ids)[None, :])], binary=("indices",), id=f"{size} {n}")
        for n in range(count))] for size, ids, count in (("large", 100_000, 20), ("small", 500, 5)))
    options = ("--workers", 1, "--inline-work-us", 0, "--access-log", "on", "--max-queue-work-ms", 60_000)
    with Server("--demo", *options) as server, contextlib.ExitStack() as stack:
        with held_workers(server):
            waiting = iter(large)
            raws = occupy(server, lambda: sent(stack, server, next(waiting)))
            raws += [sent(stack, server, request) for request in waiting]
            wait_until_read(server, raws)
            raws += [sent(stack, server, request, other) for request in small]
            wait_until_read(server, raws)
        for raw in raws:
            raw.reply().expect(200)
    order = [event["request_id"].split()[0] for event in server.events() if event.get("path") == INFER]
    expect_equal(len(order), len(large) + len(small))
    before = order[:len(order) - order[::-1].index("small")].count("large")
    expect_equal(before <= len(large) / 2, in_turn, f"{before} large ones before the last small one")


def nice_values(server):
    """Of all threads but the first, which runs the loop (a sanitizer has one, too); then its own."""
    tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
    values = {task.name: nice_value(task) for task in tasks.iterdir()}
    own = values.pop(str(server.process.pid))
    return set(values.values()), own


def test_workers_step_back():
    with Server("--demo", "--workers", 1) as server, Raw(server) as raw:
        request, want = question(5, 100_000)
        raw.send(request)
        check(raw.reply(), want)
        others, own = nice_values(server)
        # The loader's thread steps back by 10 once the first tables are loaded.
        loader = {own, min(own + 10, 19)}
        expect_equal(others - loader, {min(own + 5, 19)} - loader)
