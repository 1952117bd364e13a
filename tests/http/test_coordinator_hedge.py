"""Requests to a shard that are sent twice (hedged): one attempt that fails does not take the other's answer, and
attempts that wait for a connection are sent when there is one."""

import contextlib
import itertools
import re
import resource
import socket
import threading
import time

import numpy as np
import pytest

from harness import expect, expect_equal, expect_words, wait_until
from shards import Between, ask, front_of, make_tables, parts_of, reply  # noqa: F401
from v2 import Client, Tensor

MARK = b'"shape":[2,10]'  # of a reply of two bags: so many are asked for where attempts count, and one bag otherwise
TIMEOUT_S = 120


class Hedging(Between):
    """Knows the connections that inference came over."""

    def __init__(self, server):
        self.kept = set()
        super().__init__(server)

    def serve(self, connection):
        try:
            super().serve(connection)
        finally:
            self.kept.discard(connection)

    def pass_on(self, connection, answer):
        self.kept.add(connection)
        connection.sendall(answer)
        return True

    def close_all(self):
        for connection in list(self.kept):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.kept.clear()


class World:
    """A front with one loop whose one shard is reached through a proxy."""

    def __init__(self, between, front, client, watcher):
        self.between, self.front, self.client, self.watcher = between, front, client, watcher
        self.limit = resource.prlimit(front.process.pid, resource.RLIMIT_NOFILE)

    def outcomes(self, outcome):
        counts = re.findall(rf'bagserve_shard_requests_total{{.*outcome="{outcome}"}} (\d+)',
                            self.watcher.get("/metrics").expect().body.decode())
        return sum(map(int, counts))

    def learn(self):
        """Asks until a late answer will be asked for a second time: a tenth of all may be."""
        self.between.spoil = self.between.pass_on

        def may_hedge():
            for _ in range(30):
                ask(self.client, [1], [0]).expect()
            return self.outcomes("ok") >= 100 and self.outcomes("hedged") * 10 + 100 <= self.outcomes("ok")
        wait_until(may_hedge, "all are asked for twice", TIMEOUT_S)

    def has_connections(self, count, ask_it=lambda client: ask(client, [1], [0])):
        """Leaves as many kept ones as a request needs that is not asked twice."""
        self.between.spoil = self.between.pass_on

        def has():
            self.between.close_all()
            hedged = self.outcomes("hedged")
            ask_it(self.client).expect()
            return len(self.between.kept) == count and self.outcomes("hedged") == hedged
        wait_until(has, "it has more", TIMEOUT_S)

    def lack_descriptors(self, lacks=True):
        """From now on nothing can be opened, whatever is closed; or again."""
        most = 3 if lacks else self.limit[0]
        resource.prlimit(self.front.process.pid, resource.RLIMIT_NOFILE, (most, self.limit[1]))

    def wait_for_hedge(self, before):
        wait_until(lambda: self.outcomes("hedged") > before, "it was not asked a second time", TIMEOUT_S)


@contextlib.contextmanager
def world_of(directory, tables, absent):
    both = {"name": "both", "features": [{"name": "a", "model": "items"},
                                         {"name": "b", "model": "items", "reduction": "mean"}]}
    with parts_of(directory, tables["rows"], "rows", 1) as [server], Hedging(server) as between, \
            front_of(directory, [between.url], hedge="p95", absent=absent, more=[both],
                     options=("--shard-timeout-ms", "20000", "--loops", "1")) as front, \
            Client(front) as client, Client(front) as watcher:
        watcher.get("/v2/health/live").expect()
        yield World(between, front, client, watcher)


def change(find, put, **headers):
    """An answer of which a part is another, as long."""
    def changed(answer):
        head, body = answer.split(b"\r\n\r\n", 1)
        lines = b"".join(f"\r\n{name}: {value}".encode() for name, value in headers.items())
        return head + lines + b"\r\n\r\n" + re.sub(find, put, body, count=1)
    return changed


BAD = {"429": lambda _: reply(429, {"error": "too many"}, Connection="close"),
       "500": lambda _: reply(500, {"error": "broken"}, Connection="close"),
       "503": lambda _: reply(503, {"error": "too busy"}, Connection="close"),
       "broken JSON": lambda _: reply(200, b'{"outputs":[', Connection="close"),
       "another request's": change(rb'"id":"\d', b'"id":"x', Connection="close"),
       "another shape": change(rb'\[2,10\]', b'[2,9] ', Connection="close"),
       "no HTTP": lambda _: b"nonsense\r\n\r\n",
       "half": lambda answer: answer[:-3],
       "nothing": lambda _: b""}


def duel(between, answers, later=None):
    """Attempts of one request: `answers` are what each gets, in the order in which they are sent, with the place of
    each in the order in which they are answered. One is answered when what was answered before has been read. If the
    request is made anew, its attempts get `later`."""
    numbers, arrived = itertools.count(), threading.Event()
    read = [threading.Event() for _ in answers]
    order = sorted(range(len(answers)), key=lambda number: answers[number][1])

    def spoil(connection, answer):
        if MARK not in answer:
            return between.pass_on(connection, answer)
        number = next(numbers)
        if number >= len(answers):
            connection.sendall(later(answer))
            return False
        if number == len(answers) - 1:
            arrived.set()
        arrived.wait(TIMEOUT_S)
        place = order.index(number)
        if place > 0:
            read[place - 1].wait(TIMEOUT_S)
        make = answers[number][0]
        if make is None:
            return between.pass_on(connection, answer)
        with contextlib.suppress(OSError):
            connection.sendall(make(answer))
            if len(make(answer)) < len(answer) and make in (BAD["half"], BAD["nothing"]):
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(TIMEOUT_S)
            connection.recv(1)
        read[place].set()
        return False
    between.spoil = spoil


@pytest.mark.parametrize("absent", ["error", "skip"])
def test_answer_of_the_other_attempt_counts(directory, tables, absent):
    with world_of(directory, tables, absent) as world:
        world.learn()
        want = ask(world.client, [1, 2], [0, 1]).expect().embeddings().tobytes()
        for name, bad in BAD.items():
            for first, second in (((bad, 0), (None, 1)), ((None, 1), (bad, 0))):
                world.learn()
                duel(world.between, [first, second])
                answer = ask(world.client, [1, 2], [0, 1])
                expect_equal(answer.status, 200, f"{name}: {answer.body[:300]}")
                expect_equal(answer.embeddings().tobytes(), want, name)
                if absent == "skip":
                    expect_equal(answer.header()[0]["parameters"]["absent_shards"], [], name)


def test_last_attempt_that_fails_is_told(directory, tables):
    with world_of(directory, tables, "skip") as world:
        for first, second, status, word in (("429", "500", 502, "broken"), ("broken JSON", "another shape", 502, "answered"),
                                            ("500", "503", 200, ""), ("429", "429", 200, "")):
            world.learn()
            before = world.outcomes("rejected"), world.outcomes("invalid")
            duel(world.between, [(BAD[first], 0), (BAD[second], 1)])
            answer = ask(world.client, [1, 2], [0, 1])
            expect_equal(answer.status, status, (first, second))
            if status == 200:
                expect_equal(answer.header()[0]["parameters"]["absent_shards"], [world.between.url])
            else:
                expect_words(answer.error(), [world.between.url, word])
            after = world.outcomes("rejected"), world.outcomes("invalid")
            expect_equal((after[0] - before[0], after[1] - before[1]), (1, 0) if status == 200 else (0, 1), (first, second))


@pytest.mark.parametrize("status", [404, 409])
def test_attempt_without_the_version_ends_both(directory, tables, status):
    """The shard has something else: that is found out, not waited for."""
    with world_of(directory, tables, "error") as world:
        for place in (0, 1):
            world.learn()
            def gone(_):
                return reply(status, {"error": "no such version"}, Connection="close")
            duel(world.between, [(gone, 0), (None, 1)] if place == 0 else [(None, 1), (gone, 0)], gone)
            answer = ask(world.client, [1, 2], [0, 1])
            expect_equal(answer.status, 503, answer.body[:300])
            expect_words(answer.error(), [world.between.url, "no such version"])


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("absent", ["error", "skip"])
def test_attempt_that_waits_for_a_connection_counts(directory, tables, absent, closes):
    """The first attempt is answered badly while the second has no connection yet."""
    with world_of(directory, tables, absent) as world:
        world.learn()
        want = ask(world.client, [1, 2], [0, 1]).expect().embeddings().tobytes()
        world.has_connections(1)
        hedged, first = world.outcomes("hedged"), [True]

        def spoil(connection, answer):
            if MARK not in answer or not first:
                return world.between.pass_on(connection, answer)
            first.pop()
            world.wait_for_hedge(hedged)
            world.lack_descriptors(False)
            connection.sendall(reply(429, {"error": "too many"}, **({"Connection": "close"} if closes else {})))
            return not closes
        world.between.spoil = spoil
        world.lack_descriptors()
        answer = ask(world.client, [1, 2], [0, 1])
        expect_equal(answer.status, 200, answer.body[:300])
        expect_equal(answer.embeddings().tobytes(), want)


class Held:
    """Attempts for two bags that are answered, or whose connection is closed, when they are told."""

    def __init__(self, world):
        self.world, self.attempts, self.lock = world, [], threading.Lock()
        world.between.spoil = self.spoil

    def spoil(self, connection, answer):
        if MARK not in answer:
            return self.world.between.pass_on(connection, answer)
        attempt = Attempt(connection in self.world.between.kept)
        with self.lock:
            self.attempts.append(attempt)
        attempt.told.wait(TIMEOUT_S)
        return attempt.answers and self.world.between.pass_on(connection, answer)

    def wait_for(self, count):
        wait_until(lambda: len(self.attempts) == count, f"{count} do not arrive", TIMEOUT_S)


class Attempt:
    def __init__(self, is_kept):
        self.is_kept, self.told, self.answers = is_kept, threading.Event(), False

    def tell(self, answers):
        self.answers = answers
        self.told.set()


class Asking(threading.Thread):
    """A request of a thread of its own, over a connection that is open."""

    def __init__(self, front, ask_it):
        super().__init__(daemon=True)
        self.client, self.ask, self.answer = Client(front), ask_it, None
        self.client.get("/v2/health/live").expect()

    def run(self):
        with self.client:
            self.answer = self.ask(self.client)

    def expect_status(self, status):
        self.join(TIMEOUT_S)
        expect(self.answer is not None, "it is not answered")
        expect_equal(self.answer.status, status, self.answer.body[:300])


def ask_both(client, bags=1):
    """Two subrequests at once: features that pool in other ways are asked for apart."""
    return client.infer("both", [Tensor("values", np.arange(2 * bags)), Tensor("lengths", np.ones(2 * bags, np.int64))],
                        binary=True)


@pytest.mark.parametrize("ends", [0, 1])
def test_attempt_waits_once(directory, tables, ends):
    """A connection is closed while a second attempt waits for one: nothing is sent again, or waits twice."""
    with world_of(directory, tables, "error") as world:
        for _ in range(3):
            world.learn()
            world.has_connections(2, ask_both)
            held, hedged = Held(world), world.outcomes("hedged")
            asking = Asking(world.front, lambda client: ask_both(client, 2))
            world.lack_descriptors()
            asking.start()
            held.wait_for(2)
            world.wait_for_hedge(hedged + 1)
            held.attempts[ends].tell(False)
            expect_equal(world.watcher.get("/v2/health/live").status, 200)
            world.between.spoil = world.between.pass_on
            held.attempts[1 - ends].tell(True)
            asking.expect_status(200)
            world.lack_descriptors(False)
            for _ in range(20):
                expect_equal(ask_both(world.client).status, 200)


def test_place_of_an_attempt_that_ended_is_used(directory, tables):
    """Of two attempts one ends: a request that waits for a connection is sent, while the other goes on."""
    with world_of(directory, tables, "error") as world:
        world.learn()
        world.has_connections(1)
        held, waiting = Held(world), Asking(world.front, lambda client: ask(client, [3], [0]))
        asking = Asking(world.front, lambda client: ask(client, [1, 2], [0, 1]))
        asking.start()
        held.wait_for(2)
        world.lack_descriptors()
        waiting.start()
        for _ in range(50):  # it has been read by then
            expect_equal(world.watcher.get("/v2/health/live").status, 200)
            time.sleep(0.01)
        world.lack_descriptors(False)
        world.between.spoil = world.between.pass_on
        first, second = sorted(held.attempts, key=lambda attempt: not attempt.is_kept)
        first.tell(False)
        waiting.expect_status(200)
        expect(asking.is_alive(), "it was answered before")
        second.tell(True)
        asking.expect_status(200)
