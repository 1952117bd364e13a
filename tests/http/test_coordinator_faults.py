"""Shards of a front that are away, late, wrong or hostile: they are told by their address, and never make it answer
wrongly."""

import contextlib
import itertools
import socket
import struct
import threading
import time

import numpy as np
import pytest

from harness import Server, expect, expect_equal, expect_words, free_port, scaled, wait_until, write_json
from lifecycle import expect_memory_returned, memory_of_requests
from parts import part_of_key, part_of_row
from shards import COLUMNS, OF, ROWS, Between, ask, front_of, make_tables, only_first, parts_of, ready, reply  # noqa: F401
from table_files import random_rows
from v2 import Client, Raw, Tensor, head, infer_body


@pytest.fixture(name="spoilt")
def serve_spoilt(directory, tables):
    """A front of three shards, of which the second is reached through a proxy."""
    with parts_of(directory, tables["rows"], "rows") as servers, Between(servers[1]) as between, \
            front_of(directory, [servers[0].url, between.url, servers[2].url],
                     options=("--shard-timeout-ms", "1500")) as front, Client(front) as client:
        yield between, client


def test_wrong_answers(spoilt):
    """tests/unit/test_coordinator.c has every way of being wrong."""
    between, client = spoilt
    good = ask(client, [1, 120, 299], [0]).expect().embeddings()

    def sends(text, goes_on=True):
        def spoil(connection, _):
            connection.sendall(text)
            return goes_on
        return spoil

    def cut(connection, answer):
        connection.sendall(answer[:-3])
        return False

    cases = [(sends(reply(200, b"{}")), 502, "answered"),
             (sends(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 10_000_000 + b"\r\n\r\n", False), 502, "8 KiB"),
             (sends(reply(500, {"error": "broken"})), 502, "broken"),
             (sends(reply(503, {"error": "busy"})), 503, "busy"),
             (sends(reply(409, {"error": "this is part 7 of 9"})), 503, "part 7 of 9"),
             (cut, 502, "middle")]
    for spoil, status, word in cases:
        between.spoil = spoil
        answer = ask(client, [1, 120, 299], [0])
        expect_equal(answer.status, status, word)
        expect_words(answer.error(), [between.url, word])
        between.spoil = None
        wait_until(lambda: ask(client, [1, 120, 299], [0]).status == 200, "it does not answer again", 20)
    expect_equal(ask(client, [1, 120, 299], [0]).expect().embeddings().tobytes(), good.tobytes())
    expect_equal(ask(client, [1, 2], [0]).status, 200)  # of another shard


def test_late_answers(spoilt):
    """At the deadline of the shard, or of the request: and the server goes on meanwhile."""
    between, client = spoilt
    held = threading.Event()
    between.spoil = lambda connection, answer: held.wait(30) and False
    begun = time.monotonic()
    answer = ask(client, [120], [0])
    expect_equal(answer.status, 504)
    expect_words(answer.error(), [between.url, "1500 ms", "shard_timeout_ms"])
    answer = ask(client, [120], [0], timeout=200000)
    expect_equal(answer.status, 504)
    expect_words(answer.error(), [between.url, "200 ms", "request's timeout"])
    expect_equal(ask(client, [1], [0]).status, 200)
    expect(time.monotonic() - begun < 30, "it took too long")
    held.set()


def test_hedge(directory, tables):
    """An answer that is late is asked for a second time, over another connection."""
    with parts_of(directory, tables["rows"], "rows", 1) as [server], Between(server) as between, \
            front_of(directory, [between.url], hedge="p95", options=("--shard-timeout-ms", "20000")) as front, \
            Client(front) as client:
        for _ in range(100):
            ask(client, [1], [0]).expect()
        held = threading.Event()  # one of the hundred may have been asked a second time, and come now
        between.spoil = only_first(lambda _: held.wait(30) and False, b'"shape":[2,10]')
        ask(client, [1, 2], [0, 1]).expect()
        held.set()
        expect(client.counted("bagserve_shard_requests_total", outcome="hedged") >= 1, "none is counted")


class Attempts:
    """What a shard's proxy does with the first answer that has the mark, and with the next one."""

    def __init__(self, mark):
        self.mark, self.lock, self.number = mark, threading.Lock(), 0
        self.is_asked_again, self.is_lost = threading.Event(), threading.Event()

    def __call__(self, connection, answer):
        with self.lock:
            self.number += self.mark in answer
            number = self.number if self.mark in answer else 0
        return {1: self.first, 2: self.second}.get(number, self.send)(connection, answer)

    @staticmethod
    def send(connection, answer):
        return connection.sendall(answer) is None

    second = send


class Late(Attempts):
    """The first attempt has half of its answer when the other one has all."""

    def first(self, connection, answer):
        connection.sendall(answer[:-3])
        return self.is_lost.wait(30) and False


class Cut(Attempts):
    """The first attempt fails in the middle of its answer, and the other one answers then."""

    def first(self, connection, answer):
        self.is_asked_again.wait(30)
        connection.sendall(answer[:-3])
        connection.close()
        self.is_lost.set()
        return False

    def second(self, connection, answer):
        self.is_asked_again.set()
        self.is_lost.wait(30)
        time.sleep(0.05)  # the coordinator learns of the first one's end
        return self.send(connection, answer)


class LateCut(Attempts):
    """The other attempt fails in the middle of its answer, and the first one answers then."""

    def first(self, connection, answer):
        self.is_lost.wait(30)
        time.sleep(0.05)
        return self.send(connection, answer)

    def second(self, connection, answer):
        connection.sendall(answer[:-3])
        connection.close()
        self.is_lost.set()
        return False


class Closed(Attempts):
    """A kept connection is closed without an answer: the request is sent again."""

    def first(self, _, __):
        return False


@pytest.mark.parametrize("row_format", ["int8", "int4_f16_front"])
@pytest.mark.parametrize("way", ["rows", "keys", "columns"])
def test_attempts_for_stored_rows(directory, tables, rng, way, row_format):
    """Rows in the stored format have the bits of one server's, whichever attempt at a shard answers and however the
    other one fails. Parts by columns send FP32 rows, which the coordinator encodes as FBGEMM does."""
    stored, keys = random_rows(rng, row_format, COLUMNS, ROWS)[0], np.load(tables["keys"]["keys"])
    np.save(directory / "items.npy", stored)
    model = {"path": str(directory / "items.npy"), "row_format": row_format, "row_elements": COLUMNS}
    model |= {"keys": tables["keys"]["keys"]} if way == "keys" else {}
    ids = keys if way == "keys" else np.arange(ROWS)
    owners = np.array([{"keys": part_of_key(one), "rows": part_of_row(row, ROWS), "columns": 1}[way]
                       for row, one in enumerate(ids)])
    usual = rng.choice(len(ids), 60)
    with parts_of(directory, model, way) as servers, Between(servers[1]) as between, \
            front_of(directory, [servers[0].url, between.url, servers[2].url], hedge="p95",
                     options=("--shard-timeout-ms", "20000")) as front, Client(front) as client:
        def rows(asked):
            return client.infer("items", [Tensor("indices", ids[asked])], binary=True, parameters={
                "reduction": "none", "output_row_format": row_format, "binary_data_output": True}).embeddings()

        def counted(outcome):
            return client.counted("bagserve_shard_requests_total", outcome=outcome, shard=between.url)

        if way == "columns":
            stored = rows(np.arange(ROWS))
        for number, kind in enumerate((Late, Cut, LateCut, Closed), 1):
            between.spoil = None
            while counted("ok") < 10 * counted("hedged") + 100:
                expect(np.array_equal(rows(usual), stored[usual]), "without a fault")
            asked = np.concatenate([usual, np.flatnonzero(owners == 1)[:number]])
            attempts = kind(f'"shape":[{np.count_nonzero(owners[asked] == 1)},'.encode())
            hedged = counted("hedged")
            between.spoil = attempts
            expect(np.array_equal(rows(asked), stored[asked]), kind.__name__)
            attempts.is_lost.set()
            expect(attempts.number >= 2 and (kind is Closed or counted("hedged") > hedged), f"{kind.__name__}: no second attempt")


def test_client_that_goes_away(spoilt):
    """Its calls end with it, long before the shard's time is up."""
    between, client = spoilt
    ended = threading.Event()

    def spoil(connection, _):
        connection.settimeout(30)
        if connection.recv(1) == b"":
            ended.set()
        return False
    between.spoil = spoil
    with Raw(client.server) as leaving:
        body, headers = infer_body([Tensor("indices", np.array([[120]]))], binary=True)
        leaving.send(head("POST", "/v2/models/items/infer", headers, body))
        wait_until(lambda: client.get("/v2/health/live").status == 200 and between.heads, "it was not asked")
    expect(ended.wait(30), "the shard's connection is still open")
    expect_equal(client.counted("bagserve_shard_requests_total", outcome="timeout"), 0, "it was only late")


def test_clients_that_reset_keep_nothing(directory, tables):
    """Clients reset their connections right after their requests. What was prepared for the replies is freed, whichever
    step a request had reached."""
    body, headers = infer_body([Tensor("indices", np.arange(300, dtype=np.int64)),
                                Tensor("offsets", np.arange(300, dtype=np.int64))])
    request = head("POST", "/v2/models/items/infer", headers, body)
    with parts_of(directory, tables["rows"], "rows", 1) as [server], \
            front_of(directory, [server.url], options=("--loops", "1")) as front, Client(front) as client:
        before = memory_of_requests(client)
        for _ in range(scaled(200)):
            raws = [Raw(front) for _ in range(50)]
            for raw in raws:
                raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raw.send(request)
            for raw in raws:
                raw.close()
        ask(client, [1], [0]).expect()
        expect_memory_returned(client, before)


@pytest.mark.parametrize("way", ["rows", "keys"])
def test_default_row_without_its_shard(directory, tables, way):
    """Whichever shards are away, or go while they are asked: empty bags get the default row while one is there."""
    table = np.load(tables["rows"]["path"])
    keys = np.load(tables["keys"]["keys"]) if way == "keys" else np.arange(ROWS)
    owners = np.array([part_of_key(key) if way == "keys" else part_of_row(row, ROWS) for row, key in enumerate(keys)])
    default = int(np.flatnonzero(owners == 1)[5])
    ids = [keys[owners == part][:2] for part in range(OF)]  # of each part
    rows = [table[owners == part][:2].sum(axis=0) for part in range(OF)]
    with parts_of(directory, tables[way] | {"default_index": int(keys[default])}, way) as servers, \
            contextlib.ExitStack() as stack:
        between = [stack.enter_context(Between(server)) for server in servers]
        front = stack.enter_context(front_of(directory, [one.url for one in between], absent="skip", ready="any"))
        client = stack.enter_context(Client(front))
        for asked, lost in itertools.product([[], [0], [1], [2], [0, 1], [0, 1, 2]], [[], [0], [1], [2], [0, 1], [1, 2]]):
            has_default = set((asked + [part for part in (1, 2, 0) if part not in asked])[:max(2, len(asked))])
            instead = table[default] if has_default - set(lost) else np.zeros(COLUMNS, np.float32)
            for part, one in enumerate(between):
                one.spoil = (lambda *_: False) if part in lost else None
            for weights in (None, np.ones(2 * len(asked), np.float32)):
                inputs = [Tensor("indices", np.concatenate([ids[part] for part in asked] or [keys[:0]]).astype(np.int64)),
                          Tensor("offsets", np.arange(0, 2 * len(asked) + 1, 2))]
                inputs += [] if weights is None else [Tensor("per_sample_weights", weights)]
                answer = client.infer("items", inputs, binary=True, parameters={"binary_data_output": True})
                want = [instead if part in lost else rows[part] for part in asked] + [instead]
                expect_equal(answer.embeddings().tolist(), np.array(want).tolist(), (asked, lost))
        for one in between:
            one.spoil = None
        for index in (1, 0):  # away for good: known after the first answers
            servers[index].kill()
            for _ in range(20):
                answer = ask(client, ids[2], [0, 2])
                expect_equal(answer.embeddings().tolist(), np.array([rows[2], table[default]]).tolist(), index)


def test_shards_that_change_places(directory, tables, rng):
    """Addresses that lead to other parts than before: no row is wrong, and the request is answered."""
    values = np.load(tables["rows"]["path"])
    ports = [free_port(), free_port()]
    configs = [write_json(directory / f"part-{index}.json", {"models": [
        {"name": "items", "path": tables["rows"]["path"], "part": {"by": "rows", "index": index, "of": 2}}]})
        for index in range(2)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    shards = [Server("--config", config, "--port", port) for config, port in zip(configs, ports)]
    try:
        with front_of(directory, urls, options=("--shard-timeout-ms", "20000")) as front, Client(front) as client:
            for turn in range(2):
                want = (values[1] + values[299]).tobytes()
                expect_equal(ask(client, [1, 299], [0]).expect().embeddings().tobytes(), want)
                for shard in shards:
                    shard.kill()
                order = ports[::-1] if turn == 0 else ports
                shards = [Server("--config", config, "--port", port) for config, port in zip(configs, order)]

                def answered():
                    answer = ask(client, [1, 299], [0])
                    if answer.status == 200:
                        expect_equal(answer.embeddings().tobytes(), want)
                    return answer.status == 200
                wait_until(answered, "it is not answered")
    finally:
        for shard in shards:
            shard.kill()


def test_shard_that_goes_and_comes(directory, tables):
    config = write_json(directory / "shard.json", {"models": [{"name": "items"} | tables["rows"]]})
    port = free_port()
    with front_of(directory, [f"http://127.0.0.1:{port}"], wait=False) as front, Client(front) as client:
        expect_equal(client.get("/v2/health/ready").status, 503)
        for _ in range(2):
            with Server("--config", config, "--port", port) as shard:
                ready(front)
                expect_equal(ask(client, [1], [0]).status, 200)
                shard.kill()
            answer = ask(client, [1], [0])
            expect_equal(answer.status, 503)
            expect_words(answer.error(), [f"127.0.0.1:{port}", "unavailable"])
            wait_until(lambda: client.get("/v2/health/ready").status == 503, "it is still ready", 20)


def test_versions(directory, rng):
    """A group that is half reloaded goes on with the old version, and answers never mix two."""
    values = {}
    for version in (1, 2):
        (directory / "models" / "items" / str(version)).mkdir(parents=True)
        values[version] = rng.integers(-99, 99, (ROWS, 4)).astype(np.float32)
    np.save(directory / "models" / "items" / "1" / "t.npy", values[1])
    servers = []
    try:
        for index in range(2):
            folder = directory / f"models-{index}"
            (folder / "items" / "1").mkdir(parents=True)
            np.save(folder / "items" / "1" / "t.npy", values[1])
            write_json(folder / "items" / "config.json", {"part": {"by": "rows", "index": index, "of": 2},
                                                          "version_policy": {"latest": 2}})
            servers.append(Server("--models", folder, "--model-control", "poll", "--poll-seconds", "0.2"))
        with front_of(directory, [server.url for server in servers]) as front, Client(front) as client:
            for index in range(2):
                expect_equal(ask(client, [1, 299], [0]).expect().header()[0]["model_version"], "1")
                folder = directory / f"models-{index}" / "items"
                (folder / ".2").mkdir()
                np.save(folder / ".2" / "t.npy", values[2])
                (folder / ".2").rename(folder / "2")
                with Client(servers[index]) as shard:
                    wait_until(lambda: shard.get("/v2/models/items/versions/2/ready").status == 200, "no version 2")
            def version():
                answer = ask(client, [1, 299], [0]).expect()
                number = int(answer.header()[0]["model_version"])
                expect_equal(answer.embeddings().tobytes(), (values[number][1] + values[number][299]).tobytes())
                return number
            wait_until(lambda: version() == 2, "version 2 is not served", 30)
    finally:
        for server in servers:
            server.kill()
