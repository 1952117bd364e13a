"""Slow shards: each wait of a coordinator, while what it polls or what answers inference takes 60 ms or a second, or never
comes."""

import contextlib
import signal
import socket
import threading

import numpy as np
import pytest

from control import publish, rows_of
from harness import Server, expect, expect_equal, expect_words, wait_until
from lifecycle import expect_memory_returned, memory_of_requests
from shards import COLUMNS, Between, ask, front_of, length_of, make_tables, parts_of, read_head, read_message, ready  # noqa: F401
from v2 import Client

NEVER = None
DELAYS = (0.06, 1, NEVER)


class Slow(Between):
    """Passes everything on, replies of inference after `reply_s` and all that polls ask for after `poll_s`. Polls also wait
    for `polls_go`. `asked` has the paths of inference, and `polled` is the number of
    answers to polls."""

    def __init__(self, server, poll_s=0, reply_s=0):
        self.poll_s, self.reply_s = poll_s, reply_s
        self.ends, self.polls_go, self.asked, self.polled = threading.Event(), threading.Event(), [], 0
        self.polls_go.set()
        super().__init__(server)

    def serve(self, connection):
        with contextlib.suppress(OSError, ValueError), connection, \
                socket.create_connection((self.server.host, self.server.port)) as shard:
            source, answers = connection.makefile("rb"), shard.makefile("rb")
            while head := read_head(source):
                path = head.split()[1].decode()
                is_inference = path.endswith("/infer")
                if is_inference:
                    self.asked.append(path)
                else:
                    self.polls_go.wait()
                shard.sendall(head + source.read(length_of(head)))
                answer = read_message(answers)
                self.ends.wait(self.reply_s if is_inference else self.poll_s)
                connection.sendall(answer)
                self.polled += not is_inference

    def __exit__(self, *_):
        self.ends.set()
        self.polls_go.set()
        super().__exit__()


def absent_shards(reply):
    return reply.expect().header()[0].get("parameters", {}).get("absent_shards", [])


@pytest.mark.parametrize("poll_s", DELAYS)
def test_newer_version(directory, poll_s):
    """A shard has a newer version than the coordinator knows, which has answered on this path before. The request waits
    for the next poll and is answered by it, or is told after a while what the shard lacks."""
    root = directory / "models"
    publish(root, "items", 1)
    with Server("--models", root, "--model-control", "poll", "--poll-seconds", 0.1) as shard, Client(shard) as direct, \
            Slow(shard) as slow, front_of(directory, [slow.url], options=("--loops", 1)) as front, Client(front) as client:
        before = memory_of_requests(client)
        for _ in range(3):
            expect_equal(ask(client, [1], [0]).expect().header()[0]["model_version"], "1")
        slow.polls_go.clear()
        slow.poll_s = poll_s
        publish(root, "items", 2)
        wait_until(lambda: direct.get("/v2/models/items/versions/1/ready").status == 404, "version 1 is still there")
        answers, known = [], len(slow.asked)
        asking = threading.Thread(target=lambda: answers.append(ask(client, [1], [0])))
        asking.start()
        wait_until(lambda: len(slow.asked) > known, "the shard is not asked")
        expect_equal(slow.asked[known:], ["/v2/models/items/versions/1/infer"])
        slow.polls_go.set()
        asking.join()
        if poll_s == DELAYS[0]:
            expect_equal(answers[0].expect().embeddings().tobytes(), rows_of(2)[:1].tobytes())
        else:
            expect_words(answers[0].expect(503).error(), [slow.url])
        slow.poll_s = 0
        slow.ends.set()
        wait_until(lambda: ask(client, [1], [0]).status == 200, "version 2 is not found", 20)
        expect_equal(ask(client, [1], [0]).expect().header()[0]["model_version"], "2")
        expect_memory_returned(client, before)


@pytest.mark.parametrize("poll_s", DELAYS)
@pytest.mark.parametrize("stops", (False, True))
def test_start(directory, tables, poll_s, stops):
    """A coordinator is ready when its shards have answered, however long that takes, and stops without them."""
    with parts_of(directory, tables["rows"], "rows", 2) as servers, Slow(servers[1], poll_s=poll_s) as slow, \
            front_of(directory, [servers[0].url, slow.url], wait=False) as front, Client(front) as client:
        if not stops:
            if poll_s == NEVER:
                wait_until(lambda: "no answer within 2 s" in client.get("/v2/health/ready").expect(503).error(),
                           "it does not say what it waits for", 20)
                expect_words(ask(client, [1], [0]).expect(503).error(), [slow.url])
                slow.ends.set()
            ready(front, 30)
            ask(client, [1, 299], [0]).expect()


@pytest.mark.parametrize("reply_s", DELAYS)
def test_replies(directory, tables, reply_s):
    """A reply of a shard is waited for until the time-out of shards; requests to others go on meanwhile. All memory
    comes back."""
    with parts_of(directory, tables["rows"], "rows", 2) as servers, Slow(servers[1], reply_s=reply_s) as slow, \
            front_of(directory, [servers[0].url, slow.url], options=("--shard-timeout-ms", 5000, "--loops", 1)) as front, \
            Client(front) as client, Client(front) as other:
        before = memory_of_requests(client)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(ask(client, [1, 299], [0])))
        asking.start()
        wait_until(lambda: slow.asked, "the shard is not asked")
        ask(other, [1], [0]).expect()
        asking.join()
        if reply_s == NEVER:
            expect_words(answers[0].expect(504).error(), [slow.url, "5000 ms", "shard_timeout_ms"])
        else:
            expect_equal(answers[0].expect().embeddings().shape, (1, COLUMNS))
        expect_memory_returned(other, before)


@pytest.mark.parametrize("reply_s", DELAYS)
def test_replies_that_may_be_absent(directory, tables, reply_s):
    """A shard that does not reply in time is named in the answer, and others' rows are there."""
    with parts_of(directory, tables["rows"], "rows", 2) as servers, Slow(servers[1], reply_s=reply_s) as slow, \
            front_of(directory, [servers[0].url, slow.url], absent="skip",
                     options=("--shard-timeout-ms", 3000)) as front, Client(front) as client:
        expect_equal(absent_shards(ask(client, [1, 299], [0, 1])), [slow.url] if reply_s == NEVER else [])


@pytest.mark.parametrize("reply_s", DELAYS)
def test_drain(directory, tables, reply_s):
    """A coordinator that stops answers what it has begun, at the latest after the time-out of shards."""
    with parts_of(directory, tables["rows"], "rows", 1) as servers, Slow(servers[0], reply_s=reply_s) as slow, \
            front_of(directory, [slow.url], options=("--shard-timeout-ms", 3000)) as front, Client(front) as client:
        answers = []
        asking = threading.Thread(target=lambda: answers.append(ask(client, [1], [0])))
        asking.start()
        wait_until(lambda: slow.asked, "the shard is not asked")
        slow.poll_s = reply_s
        front.send(signal.SIGTERM)
        asking.join()
        answers[0].expect(504 if reply_s == NEVER else 200)
        front.check_end()


@pytest.mark.parametrize("what", ("", "config"))
def test_damaged_metadata(directory, tables, what):
    """One answer of 200 about a shard's model that cannot be read makes the coordinator ask again soon, and not when all is
    asked once a minute."""
    damaged = threading.Event()

    class Damaging(Slow):
        """Damages one document."""

        def serve(self, connection):
            with contextlib.suppress(OSError, ValueError), connection, \
                    socket.create_connection((self.server.host, self.server.port)) as shard:
                source, answers = connection.makefile("rb"), shard.makefile("rb")
                while head := read_head(source):
                    shard.sendall(head + source.read(length_of(head)))
                    answer = read_message(answers)
                    if head.split()[1].decode() == "/v2/models/items/versions/1" + what and not damaged.is_set():
                        damaged.set()
                        answer = answer.replace(b'"', b"'")
                    connection.sendall(answer)

    what = what and "/" + what
    with parts_of(directory, tables["rows"], "rows", 1) as servers, Damaging(servers[0]) as between, \
            front_of(directory, [between.url], wait=False) as front, Client(front) as client:
        ready(front, 20)
        expect(damaged.is_set(), "no document was damaged")
        ask(client, [1], [0]).expect()


def test_no_zeros_for_shards_not_asked_yet(directory, tables):
    """A coordinator that serves without some of its shards asks each of them once before it is ready: one that was only
    not asked yet is not absent."""
    with parts_of(directory, tables["rows"], "rows", 2) as servers, Slow(servers[0]) as first, Slow(servers[1]) as slow:
        slow.polls_go.clear()
        with front_of(directory, [first.url, slow.url], wait=False, absent="skip", ready="any") as front, \
                Client(front) as client:
            wait_until(lambda: first.polled >= 4, "the first shard is not asked", 20)
            for _ in range(50):
                reply = client.get("/v2/health/ready")
                if reply.status == 200:  # the poll has lasted two seconds
                    expect(any(event["event"] == "shard unavailable" for event in front.events()), "a shard is not asked")
                    break
                expect("asked" in reply.error(), reply.error())
            slow.polls_go.set()
            ready(front, 20)
            wait_until(lambda: not absent_shards(ask(client, [299], [0])), "the shard is absent", 20)
