"""What a front keeps apart: models that have shards at the same addresses, requests that use one after the other what
was allocated once, and shards that come and go."""

import contextlib
import os
import resource
import socket
import time

import numpy as np
import pytest

from harness import expect, expect_equal, expect_words, has_openblas, wait_until
from shards import StandIn, ask, front_of, parts_of, read_message, ready
from v2 import Client

ROWS = 300


@pytest.fixture(scope="module", name="model")
def write_table(shared_directory):
    np.save(shared_directory / "items.npy", np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))
    return {"path": str(shared_directory / "items.npy")}


def test_model_that_the_shards_lack(directory, model):
    """Shards that do not have one model answer for another all the same."""
    with parts_of(directory, model, "rows") as servers:
        urls = [server.url for server in servers]
        other = {"name": "other", "shards": urls, "shard_model": "nothing"}
        with front_of(directory, urls, more=[other], wait=False) as front, Client(front) as client:
            wait_until(lambda: client.get("/v2/models/items/ready").status == 200, "no items")
            front.wait_event("shard reports no model")
            expect("reason" not in front.wait_event("model ready"), "a model is ready for a reason")
            begun = time.monotonic()
            while time.monotonic() - begun < 1:  # both are asked some times meanwhile
                expect_equal(ask(client, [1, 120, 299], [0]).expect().embeddings().shape, (1, 4))
            answer = ask(client, [1], [0], model="other")
            expect_equal(answer.status, 503)
            expect_words(answer.error(), ["answers 404", "nothing"])
            away = [event for event in front.events() if event.get("event") == "shard unavailable"]
            expect_equal(away, [])


def test_shard_that_goes_under_load_is_logged(directory, model):
    with parts_of(directory, model, "rows") as servers, \
            front_of(directory, [server.url for server in servers]) as front, Client(front) as client:
        servers[1].kill()
        wait_until(lambda: ask(client, [120], [0]).status == 503, "it answers without a shard")
        expect_equal(front.wait_event("shard unavailable")["shard"], servers[1].url)


def test_timeout_behind_another_request(directory, model):
    """The time of a request that is answered on the loop is its own, not that of one that was queued before."""
    with parts_of(directory, model, "rows") as servers, \
            front_of(directory, [server.url for server in servers]) as front, Client(front) as client:
        ready(front)
        ask(client, np.arange(200000) % ROWS, np.arange(0, 200000, 5)).expect()
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() - begun > 0.3, "time stands still")
        for _ in range(3):
            expect(ask(client, [1, 120], [0], timeout=250000).expect().embeddings().shape == (1, 4), "shape")


def test_front_without_descriptors(directory, model):
    """A front that has none to ask its shards with has not lost them."""
    with parts_of(directory, model, "rows") as servers, \
            front_of(directory, [server.url for server in servers]) as front, Client(front) as client:
        ask(client, [1, 120, 299], [0]).expect()
        pid = front.process.pid
        used = max(int(number) for number in os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 1, used + 1))
        with contextlib.ExitStack() as stack:
            for _ in range(used):  # what is left of them
                stack.enter_context(socket.create_connection((front.host, front.port)))
            front.wait_event("cannot accept connections")
            begun = time.monotonic()
            while time.monotonic() - begun < 2:
                ask(client, [1, 120, 299], [0]).expect()
        expect_equal([event for event in front.events() if event.get("event") == "shard unavailable"], [])


@pytest.mark.parametrize("absent", ["error", "skip"])
def test_no_descriptor_for_the_first_request(directory, model, absent):
    """The front says that it lacks descriptors: the shard is neither unavailable nor left out."""
    with parts_of(directory, model, "rows", 1) as servers, \
            front_of(directory, [servers[0].url], absent=absent) as front, Client(front) as client:
        client.get("/v2/health/ready").expect()
        pid = front.process.pid
        used = max(int(number) for number in os.listdir(f"/proc/{pid}/fd")) + 1
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, before[1]))
        with contextlib.ExitStack() as stack:
            for _ in range(used):
                stack.enter_context(socket.create_connection((front.host, front.port)))
            since = [time.monotonic()]

            def is_full():  # also while it would ask what its shards have
                if front.descriptors() < used:
                    since[0] = time.monotonic()
                return time.monotonic() - since[0] > 2.5
            wait_until(is_full, "it has descriptors left")
            answer = ask(client, [1, 120, 299], [0])
            expect_equal(answer.status, 503)
            expect_words(answer.error(), ["this server has no descriptors left", servers[0].url])
            expect("unavailable" not in answer.error(), answer.error())
            expect_equal(client.counted("bagserve_shard_requests_total", shard=servers[0].url, outcome="no_resources"), 1)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        wait_until(lambda: ask(client, [1, 120, 299], [0]).status == 200, "it does not answer again")


def test_token_file_that_is_missing(directory, model):
    """Shards that one model has no token for are not unavailable: others ask the same addresses."""
    with parts_of(directory, model, "rows") as servers:
        urls = [server.url for server in servers]
        other = {"name": "other", "shards": urls, "shard_model": "items", "shard_token_file": "nothing"}
        with front_of(directory, urls, more=[other], wait=False) as front, Client(front) as client:
            wait_until(lambda: client.get("/v2/models/items/ready").status == 200, "no items")
            expect_words(front.wait_event("shard reports no model")["reason"], ["nothing", "cannot be opened"])
            begun = time.monotonic()
            while time.monotonic() - begun < 1:  # both are asked some times meanwhile
                ask(client, [1, 120, 299], [0]).expect()
            answer = ask(client, [1], [0], model="other")
            expect_equal(answer.status, 503)
            expect_words(answer.error(), [urls[0], "cannot be opened"])
            expect_equal([event for event in front.events() if event.get("event") == "shard unavailable"], [])


def refuses(directory, urls, name, words, **keys):
    with front_of(directory, urls, name=name, wait=False, **keys) as front, Client(front) as client:
        wait_until(lambda: all(word in (client.get("/v2/health/ready").error() or "") for word in words),
                   f"readiness does not say {words}", 20)


def test_fronts_and_collections_are_no_shards(directory, model):
    """What a shard has is one table, and its own."""
    more = [{"name": "both", "features": [{"name": "a", "model": "items"}]}]
    with parts_of(directory, model, "rows") as servers, \
            front_of(directory, [server.url for server in servers], more=more) as front:
        refuses(directory, [front.url], "items", ["on shards of its own", front.url])
        refuses(directory, [front.url], "both", ["is a collection", front.url])


@pytest.mark.skipif(not has_openblas(), reason="libopenblas0-pthread is not installed")
def test_projections_are_no_shards(directory, model):
    """It has its table as it is."""
    np.save(directory / "square.npy", np.ones((4, 4), np.float32))
    np.save(directory / "wide.npy", np.ones((4, 7), np.float32))
    more = [{"name": "square", "projection": str(directory / "square.npy")} | model,
            {"name": "wide", "projection": str(directory / "wide.npy")} | model]
    with parts_of(directory, model, "rows") as servers, \
            front_of(directory, [server.url for server in servers], more=more) as front:
        refuses(directory, [front.url], "square", ["projected there", "the coordinator has 'projection'"])
        refuses(directory, [front.url], "wide", ["projected there", "the coordinator has 'projection'"])


def test_shard_that_answers_without_a_body(directory, model):
    with parts_of(directory, model, "rows", 1) as [server], Saying(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n") as other:
        refuses(directory, [server.url, other.url], "items", [other.url, "it answers 302"])


def test_reason_of_a_collection_follows(directory, model):
    """A collection that lacks two tables names the one that is still lacking."""
    absent = Saying(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    with parts_of(directory, model, "rows") as servers, absent:
        more = [{"name": "other", "shards": [absent.url]},
                {"name": "both", "features": [{"name": "a", "model": "items"}, {"name": "b", "model": "other"}]}]
        urls = [server.url for server in servers]
        with front_of(directory, urls, more=more, wait=False) as front, Client(front) as client:
            wait_until(lambda: "model 'other', whose table it needs" in
                       (client.get("/v2/models/both/ready").error() or ""), "it names another table")


class Saying(StandIn):
    """Answers whatever it is asked with the same bytes."""

    def __init__(self, answer):
        self.answer = answer
        super().__init__()

    def serve(self, connection):
        with contextlib.suppress(OSError), connection:
            source = connection.makefile("rb")
            while read_message(source):
                connection.sendall(self.answer)
