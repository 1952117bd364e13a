"""Every change of what is served beside every request that is on its way: WANT says what becomes of each.

All requests of a world are on their way at once: the head of one is here, half of another's body, one is queued, one is
running, the reply of one is being read, and so on. Then the change is made and seen to have been made, what is missing
of the requests is sent, and what stood still goes on.
"""

import collections
import contextlib
import os
import re
import signal
import socket
import threading

import numpy as np
import pytest

from control import BEARER, COLUMNS, KEYS_TWICE, ROWS, publish, publish_keyed, rows_of, serve, served, tokens
from feeding import FEED, MOCK_KAFKA, Feed, Kafka, reaches
from harness import Server, expect, expect_equal, wait_until, write_json
from held import held_running, held_workers, wait_until_read
from lifecycle import expect_memory_returned
from shards import StandIn, length_of, read_head, read_message
from updates import rows_of as current_rows
from v2 import Client, Raw, Tensor, head, infer_body

BAGS = 200_000  # of requests that a worker pools
READING_BAGS = 500_000  # their reply is more than the system's buffers take
UPDATED = 7  # what updates of rows set
OWN_DEFAULT, OF_ROWS, OF_HALF_OF_ROWS = 5, 6, 7  # rows that are not asked for: the last two are those that updates set


# ---- requests ---------------------------------------------------------------------------------
class Request:
    """A request of model t: what has not been sent of it, and the answer."""

    def __init__(self, server, path, body, sent=1.0):
        """`sent` is the part of its body that is sent; less than all once its head was accepted."""
        self.raw = Raw(server)
        self.raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        body, headers = body
        headers = BEARER | headers | ({"Expect": "100-continue"} if sent < 1 else {})
        message = head("POST", f"/v2/models/t/{path}", headers, body)
        begin = len(message) - len(body)
        self.raw.send(message[:begin])
        if sent < 1:
            self.raw.reply().expect(100)
        end = begin + int(len(body) * sent)
        self.raw.send(message[begin:end])
        self.rest = message[end:]

    def send_rest(self):
        self.raw.send(self.rest)

    def outcome(self):
        """The version that the rows are of, or that they were applied to; or the status and the sentence."""
        reply = self.raw.reply()
        if reply.status != 200:
            expect(reply.status != 503 or "retry-after" in reply.headers, f"{reply.headers}")
            return reply.status, reply.error()
        header, _ = reply.header()
        if "applied" in header:
            return f"applied to {header['model_version']}" if header["applied"] else "known"
        values = np.unique(reply.embeddings())
        expect(values.size == 1, f"rows of several versions: {values}")
        return f"{values[0] / 2:g}" + (" explained" if "explain" in header.get("parameters", {}) else "")


class Requests:
    """Those that are on their way, by name."""

    bag = 0, 4

    def __init__(self, server, stack, is_keyed=False, inputs=()):
        self.server, self.stack, self.sent = server, stack, {}
        self.is_keyed, self.inputs = is_keyed, list(inputs)

    def ids(self, count):
        """Each bag has rows of both shards, where there are some."""
        ids = np.tile(np.array(self.bag, np.int32), (count, 1))
        if self.inputs:
            ids[0][0] = 99  # the default row's
        return [Tensor("indices", ids)] + self.inputs

    def send(self, name, path, body, sent=1.0, server=None):
        self.sent[name] = request = Request(server or self.server, path, body, sent)
        self.stack.callback(request.raw.close)
        return request.raw

    def infer(self, name, count, sent=1.0, binary=True, **parameters):
        return self.send(name, "infer", infer_body(self.ids(count), binary=binary, parameters=parameters), sent)

    def send_large_reply(self):
        raw = self.infer("reply", READING_BAGS, binary_data_output=True)
        raw.socket.recv(1, socket.MSG_PEEK)

    def send_heads(self):
        self.infer("head", 2, 0)
        self.infer("half", 2, 0.5)

    def send_rows(self, name, row, sent):
        kind = "keys" if self.is_keyed else "indices"
        body = infer_body([Tensor(kind, np.array([row])), Tensor("rows", np.full((1, COLUMNS), UPDATED, np.float32))],
                          binary=True)
        self.send(name, "rows", body, sent, self.server.admin.client.server)

    def are_read(self):
        wait_until_read(self.server, [request.raw for request in self.sent.values()])

    def send_rest(self):
        for request in self.sent.values():
            request.send_rest()
        self.are_read()

    def outcomes(self):
        return {name: request.outcome() for name, request in self.sent.items()}


def differences(got, want):
    """Of outcomes; where an error is wanted, its status and words of its sentence are."""
    def is_same(name):
        one, other = got.get(name), want.get(name)
        if isinstance(one, tuple) and isinstance(other, tuple):
            return one[0] == other[0] and other[1] in one[1]
        return one == other
    return {name: (got.get(name), want.get(name)) for name in got.keys() | want.keys() if not is_same(name)}


# ---- changes of a server that has the table ---------------------------------------------------
class World:
    """A server of model t, and a change of it. `want` is what becomes of each request."""

    options, before, is_keyed, inputs, want = (), 1, False, (), {}
    runs = True  # or the worker stands still before the first request that needs it
    waits = False  # the change is made when those that read the table have been answered

    def __init__(self, directory, stack):
        self.directory, self.stack, self.root, self.asking = directory, stack, directory / "models", None
        self.root.mkdir()
        self.prepare()
        self.server = stack.enter_context(
            serve(directory, "--updates", "on", "--workers", 1, "--loops", 1, *self.options))
        self.becomes(self.before)

    def prepare(self):
        publish(self.root, "t", 1)

    def ask(self, make, status=200):
        """Makes a change that may wait until nobody reads what was there before."""
        def run():
            self.reply, self.status = make(), status
        self.asking = threading.Thread(target=run)
        self.asking.start()

    def becomes(self, version):
        """Waits until that is served, or answered where nothing is; no worker is needed to say so."""
        path, status = ("", version) if version > 100 else (f"/versions/{version}", 200)
        wait_until(lambda: self.server.client.get(f"/v2/models/t{path}/ready").status == status,
                   f"{version} is not served")

    def end(self):
        if self.asking:
            self.asking.join()
            self.reply.expect(self.status)

    def send(self, stack):
        """Sends all; returns what lets the worker go on."""
        held, requests = contextlib.ExitStack(), Requests(self.server, stack, self.is_keyed, self.inputs)
        requests.send_large_reply()
        stack.enter_context(held)
        if self.runs:
            held.enter_context(held_running(self.server, lambda: requests.infer("running", BAGS)))
        else:
            held.enter_context(held_workers(self.server))
        requests.infer("queued", BAGS, binary_data_output=True)
        requests.infer("explain", 20_000, explain=True)
        requests.send_rows("rows", OF_ROWS, 1)
        requests.are_read()
        requests.send_heads()
        requests.send_rows("half of rows", OF_HALF_OF_ROWS, 0.5)
        return requests, held

    def has_updates(self, *rows):
        """Updates that were acknowledged are in what is served now."""
        got = current_rows(self.server.client, "t", rows)
        expect_equal(np.unique(got).tolist(), [UPDATED], "the rows that were changed")


class Configured(World):
    """Model t is one of the configuration, which is read again."""

    def prepare(self):
        np.save(self.directory / "t.npy", rows_of(1))
        np.save(self.directory / "new.npy", rows_of(2))
        self.config = self.directory / "config.json"
        write_json(self.config, {"models": [T]})
        self.options = ("--config", self.config)

    def change_to(self, *models):
        write_json(self.config, {"models": models})
        self.server.send(signal.SIGHUP)
        self.server.wait_event("change done")


class Keyed(World):
    """A keyed table, with other settings of its folder."""

    is_keyed, settings = True, {}

    def prepare(self):
        publish_keyed(self.root, "t", 1)
        write_json(self.root / "t" / "config.json", self.settings)


class DefaultKey(Keyed):
    """Key `deleted` is to be removed by a folder of updates; requests bring a default row of their own."""

    settings, inputs = {"missing": "default", "default_index": 0}, [Tensor("default_index", np.array([OWN_DEFAULT]))]

    def remove(self, key, status):
        folder = self.root / "t" / "1" / "deltas" / "1"
        folder.mkdir(parents=True)
        np.save(folder / "deleted_keys.npy", np.array([key], np.int64))
        self.server.admin.load("t").expect(status)


T, COLLECTION = {"name": "t", "path": "t.npy"}, {"name": "t", "features": [{"name": "f", "model": "u"}]}
U = {"name": "u", "path": "new.npy"}


def publish_two(world):
    for version in (1, 2):
        publish(world.root, "t", version)


def publish_unload_first(world):
    publish(world.root, "t", 1)
    write_json(world.root / "t" / "config.json", {"reload": "unload_first"})


def load_newer(world, becomes):
    publish(world.root, "t", 2)
    world.ask(lambda: world.server.admin.load("t"))
    world.becomes(becomes)


def load_bad(world):
    publish_keyed(world.root, "t", 2, KEYS_TWICE)
    world.server.admin.load("t").expect(400)


def become_keyed(world):
    publish_keyed(world.directory / "aside", "k", 2)
    world.change_to({"name": "t", "path": str(world.directory / "aside" / "k" / "2")})


def become_remote(world):
    shard = world.stack.enter_context(Server("--table", f"t={world.directory / 'new.npy'}"))
    world.change_to({"name": "t", "shards": [shard.url]})
    wait_until(lambda: served(world.server.client) == 2, "the shard is not asked")


def stop(world):
    world.server.send(signal.SIGTERM)
    world.server.wait_event("draining")


def load_again(world, *version):
    world.server.admin.load("t", *version).expect(200)
    world.has_updates(OF_ROWS)


def has_both(world):
    world.has_updates(OF_ROWS, OF_HALF_OF_ROWS)


def wanted(head, rows=None, names=("head", "half")):
    """What becomes of the requests whose heads are here, and of the rows whose first half is."""
    return dict.fromkeys(names, head) | ({"half of rows": rows or head} if rows != "" else {})


def make(base, want, change, end=lambda world: None, **more):
    """A world of this change. `end` is done when all is over, and has been checked."""
    def end_all(self):
        base.end(self)
        end(self)
    return type("Made", (base,), {"want": want, "change": change, "end": end_all} | more)


def unload(world):
    """While others read the table, it is UNLOADING."""
    world.ask(lambda: world.server.admin.unload("t"))
    world.becomes(503)


BEFORE_IS_2 = {name: "2" for name in ("reply", "running", "queued")} | {"explain": "2 explained", "rows": "applied to 2"}
CHANGES = {
    "unload": make(World, wanted((503, "")) | {"head": (503, "being unloaded")}, unload, load_again),
    "unloaded": make(World, wanted((404, "is unloaded")), lambda world: world.server.admin.unload("t").expect(200), load_again,
                     waits=True),
    "new version": make(World, wanted("2", "applied to 2"), lambda world: load_newer(world, 2), has_both),
    "roll back": make(World, BEFORE_IS_2 | wanted("1", "applied to 1"), lambda world: (
        world.ask(lambda: world.server.admin.load("t", 1)), world.becomes(1)), has_both, before=2, prepare=publish_two),
    # The change waits for those that read the old table: meanwhile nothing is served.
    "unload first": make(World, wanted((503, "being loaded")), lambda world: load_newer(world, 503),
                         lambda world: world.becomes(2), prepare=publish_unload_first),
    # The old table is gone by then.
    "unload first fails": make(Keyed, wanted((503, "UNAVAILABLE")), load_bad, lambda world: load_again(world, 1),
                               waits=True, settings={"reload": "unload_first"}),
    "same": make(Configured, wanted("1", "applied to 1"), lambda world: world.change_to(T)),
    "gone": make(Configured, wanted((404, "unknown")) | {"head": (404, "unknown model 't'")},
                 lambda world: world.change_to({"name": "u", "path": "t.npy"})),
    "mapped": make(Configured, wanted("2", (409, "mapped")) | {"rows": (409, "mapped")},
                   lambda world: world.change_to(U | {"name": "t", "load": "map"})),
    "collection": make(Configured, wanted((400, "'f.indices'"), (400, "is a collection")) | {"rows": (409, "a collection has")},
                       lambda world: world.change_to(U, COLLECTION)),
    # The new model decides about the form of ids.
    "keyed": make(Configured, wanted("2", (400, "send 'keys'")) | {"rows": (409, "a version with keys")}, become_keyed),
    "remote": make(Configured, wanted("2", (409, "on its shards")) | {"rows": (409, "a model of shards")}, become_remote),
    "stop": make(World, wanted("1", "applied to 1"), stop, lambda world: world.server.check_end()),
    # The model's default row is deleted, which cannot be.
    "default key": make(DefaultKey, wanted("1", "applied to 1"), lambda world: world.remove(0, 400), has_both),
    # A request's own default row is deleted. The reader that runs would keep it from being deleted.
    "own default key": make(DefaultKey, wanted((400, "'default_index' is 5, a key that the table does not have"), "applied to 1",
                                               ("queued", "explain", "head", "half")),
                            lambda world: world.remove(OWN_DEFAULT, 200), has_both, runs=False)}
UNCHANGED = {"reply": "1", "running": "1", "queued": "1", "explain": "1 explained", "rows": "applied to 1"}


@pytest.mark.parametrize("change", CHANGES)
def test_change(directory, change):
    with contextlib.ExitStack() as stack:
        world = CHANGES[change](directory, stack)
        requests, held = world.send(stack)
        if world.waits:
            held.close()
        world.change()
        requests.send_rest()
        held.close()
        got, want = requests.outcomes(), UNCHANGED | world.want
        if not world.runs:
            del want["running"]
        expect_equal(differences(got, want), {}, "(got, wanted)")
        world.end()
        if change != "stop":
            expect_memory_returned(world.server.client, 0)


# ---- changes of a server that asks shards, and of its shards ----------------------------------
BEFORE, AFTER = 11, 12  # so many bags have requests whose subrequests stand still


class Courier(StandIn):
    """Passes all on to a server. Some requests stand still before it, or behind it with their answer, until they may go
    on: subrequests of some numbers of bags, and updates of rows."""

    def __init__(self, server, rows=None):
        self.server, self.go_on, self.lock = server, threading.Event(), threading.Lock()
        self.rows, self.held, self.open = rows, collections.Counter(), []
        super().__init__()

    def kind_of(self, message):
        bags = re.search(rb'"offsets","shape":\[(\d+)\]', message)
        return int(bags[1]) - 1 if bags else self.rows if message.split(b" ", 2)[1].endswith(b"/rows") else None

    def serve(self, connection):
        with contextlib.suppress(OSError, ValueError), connection, \
                socket.create_connection((self.server.host, self.server.port)) as server:
            self.open += [connection, server]
            source, answers = connection.makefile("rb"), server.makefile("rb")
            while message := read_head(source):
                message += source.read(length_of(message))
                kind = self.kind_of(message)
                if kind == BEFORE:
                    self.hold(kind)
                server.sendall(message)
                answer = read_message(answers)
                if kind == AFTER:
                    self.hold(kind)
                connection.sendall(answer)

    def hold(self, kind):
        with self.lock:
            self.held[kind] += 1
        self.go_on.wait()

    def leave(self):
        """As a shard does that is killed."""
        self.listener.close()
        for one in self.open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.go_on.set()


class Sharded(Configured):
    """Model t of two shards, each behind a courier; one loop and one worker ask them."""

    bag, way, settings = (0, 4), "rows", {}

    def __init__(self, directory, stack):
        self.directory, self.stack, self.asking = directory, stack, None
        self.shards, self.couriers = [], []
        for index in range(2):
            self.shards.append(stack.enter_context(self.start_shard(directory / str(index), index)))
            self.shards[-1].directory = directory / str(index)
            self.couriers.append(stack.enter_context(Courier(self.shards[-1])))
            stack.callback(self.couriers[-1].go_on.set)
        (directory / "models").mkdir()
        np.save(directory / "new.npy", rows_of(2))
        self.config = directory / "config.json"
        self.model = {"name": "t", "shards": [courier.url for courier in self.couriers], "hedge": "p95",
                      "shard_token_file": str(tokens(directory))}
        write_json(self.config, {"models": [self.model]})
        self.server = stack.enter_context(serve(directory, "--config", self.config, "--workers", 1, "--loops", 1,
                                                "--updates", "on", "--shard-timeout-ms", 15000))
        self.becomes(self.before)

    def start_shard(self, directory, index):
        root = directory / "models"
        root.mkdir(parents=True)
        self.prepare_shard(root)
        write_json(root / "t" / "config.json", {"part": {"by": self.way, "index": index, "of": 2}} | self.settings)
        return serve(directory, "--updates", "on")

    def prepare_shard(self, root):
        publish(root, "t", 1)

    def send(self, stack):
        held, requests = contextlib.ExitStack(), Requests(self.server, stack)
        requests.bag = self.bag
        wait_until(Counts(self.server).may_ask_twice, "too many are asked twice")
        stack.enter_context(held)
        requests.send_large_reply()
        held.enter_context(held_workers(self.server))
        for courier in self.couriers:
            held.callback(courier.go_on.set)
        requests.infer("queued", BAGS, binary_data_output=True)
        for bags, name in ((BEFORE, "subrequest"), (AFTER, "answer of a shard")):
            requests.infer(name, bags)
            # Each is sent a second time before the change: a shard's 404 to a later attempt would end both.
            wait_until(lambda number=bags: all(courier.held[number] == 2 for courier in self.couriers),
                       f"{name} is not on its way twice")
        requests.are_read()
        requests.send_heads()
        return requests, held

    def at_shards(self, change):
        for shard in self.shards:
            change(shard.admin).expect(200)

    def publish(self, version):
        for shard in self.shards:
            publish(shard.directory / "models", "t", version)


class Counts:
    """Of requests to shards, for each shard."""

    def __init__(self, server):
        self.server = server

    def may_ask_twice(self):
        """A tenth of all may be asked a second time."""
        with Client(self.server, headers=BEARER) as client:
            for _ in range(50):
                client.infer("t", [Tensor("indices", np.arange(ROWS)[:, None])]).expect(200)
            metrics = client.metrics()
        return all(int(metrics[name.replace('"ok"', '"hedged"')]) * 10 + 50 <= int(ok) for name, ok in metrics.items()
                   if "bagserve_shard_requests_total" in name and '"ok"' in name)


# Answers if the shards do not have the version any more, and no other one in common.
AWAY = {name: (503, "shard http://127.0.0.1:") for name in ("queued", "subrequest", "head", "half")}


def shards_load(world, becomes, *version):
    world.at_shards(lambda admin: admin.load("t", *version))
    world.becomes(becomes)


def shards_publish(world, settings=None):
    world.publish(2)
    for shard in world.shards if settings else ():
        write_json(shard.directory / "models" / "t" / "2" / "config.json", settings)
    shards_load(world, 2)


def shards_load_bad(world):
    """Of one shard the old part is gone by then; the other one has version 2."""
    for shard in world.shards:
        publish_keyed(shard.directory / "models", "t", 2, KEYS_TWICE)
    expect_equal(sorted(shard.admin.load("t").status for shard in world.shards), [200, 400])
    world.becomes(503)


def shards_become_collections(world):
    for shard in world.shards:
        publish(shard.directory / "models", "u", 1)
        folder = shard.directory / "models" / "t" / "2"
        folder.mkdir()
        write_json(folder / "config.json", {"features": COLLECTION["features"]})
    world.at_shards(lambda admin: admin.group({"name": "u"}, {"name": "t"}))
    world.becomes(503)


def shards_unload(world):
    world.at_shards(lambda admin: admin.unload("t"))
    world.becomes(503)


def shard_leaves(world):
    world.couriers[1].leave()
    world.becomes(503)


def rename(world):
    world.change_to(world.model | {"name": "u"})
    world.becomes(404)


def publish_two_parts(_, root):
    for version in (1, 2):
        publish(root, "t", version)


def of_coordinator(head, change, **more):
    """The coordinator's own change: only what has not been read yet notices."""
    return make(Sharded, wanted(head, ""), change, **more)


CHANGES_OF_SHARDS = {
    "shards unload": make(Sharded, AWAY, shards_unload),
    "shards' unload first fails": make(
        Sharded, AWAY, shards_load_bad, bag=(0, 1), way="keys", settings={"reload": "unload_first"},
        prepare_shard=lambda _, root: publish_keyed(root, "t", 1)),
    "shards' new version": make(Sharded, dict.fromkeys(AWAY, "2"), shards_publish),
    "shards roll back": make(Sharded, dict.fromkeys(AWAY, "1") | {"reply": "2", "answer of a shard": "2"},
                             lambda world: shards_load(world, 1, 1), before=2, prepare_shard=publish_two_parts),
    "shards map": make(Sharded, dict.fromkeys(AWAY, "2"), lambda world: shards_publish(world, {"load": "map"})),
    "shards' collections": make(Sharded, AWAY, shards_become_collections),
    "a shard leaves": make(Sharded, AWAY | dict.fromkeys(
        ("subrequest", "answer of a shard"), (502, "closed the connection without an answer")), shard_leaves),
    "unload": of_coordinator((503, "UNLOADING"), unload), "stop": of_coordinator("1", stop, end=lambda world: world.server.check_end()),
    "same": of_coordinator("1", lambda world: world.change_to(world.model)),
    "local": of_coordinator("2", lambda world: world.change_to(U | {"name": "t"})),
    "mapped": of_coordinator("2", lambda world: world.change_to(U | {"name": "t", "load": "map"})),
    "collection": of_coordinator((400, "'f.indices'"), lambda world: world.change_to(U, COLLECTION)),
    "gone": of_coordinator((404, "unknown model 't'"), rename)}


@pytest.mark.parametrize("change", CHANGES_OF_SHARDS)
def test_change_of_shards(directory, change):
    with contextlib.ExitStack() as stack:
        world = CHANGES_OF_SHARDS[change](directory, stack)
        requests, held = world.send(stack)
        world.change()
        requests.send_rest()
        held.close()
        want = {name: "1" for name in ("reply", "queued", "subrequest", "answer of a shard")}
        expect_equal(differences(requests.outcomes(), want | world.want), {}, "(got, wanted)")
        world.end()
        if change != "stop":
            expect_memory_returned(world.server.client, 0)


# ---- changes beside a feed of updates ---------------------------------------------------------
# What a feed does whose batch arrives after the change: it is applied, or the feed waits or ends with a reason.
FEEDS = {"new version": "applied", "roll back": "applied", "same": "applied", "unloaded": "waits 404: model 't' is unloaded",
         "gone": "waits 404: unknown model 't'", "mapped": "waits 409: the rows of this model cannot be changed",
         "remote": "waits 409: the rows of this model are on its shards", "stop": "waits ",
         "collection": "ends 400: the model is a collection", "keyed": "ends 400: the table has keys"}


@contextlib.contextmanager
def batch_on_its_way(world, directory, place):
    """A feed whose batch, or the answer to it, stands still; yields it and what lets it go on."""
    with Kafka() as kafka, Courier(world.server.admin.client.server, place) as courier:
        kafka.batch([OF_ROWS], np.full((1, COLUMNS), UPDATED))
        kafka.flush()
        with Feed(kafka, courier.url, "--token-file", directory / "tokens", model="t") as feed:
            wait_until(lambda: courier.held[place], "no batch is sent")
            try:
                yield feed, courier.go_on.set
            finally:
                courier.go_on.set()


feeds = pytest.mark.skipif(not os.path.exists(FEED) or not os.path.exists(MOCK_KAFKA), reason="built without librdkafka")


@feeds
@pytest.mark.parametrize("change", FEEDS)
def test_change_before_a_batch_arrives(directory, change):
    with contextlib.ExitStack() as stack:
        world = CHANGES[change](directory, stack)
        with batch_on_its_way(world, directory, BEFORE) as (feed, go_on):
            world.change()
            go_on()
            action, _, reason = FEEDS[change].partition(" ")
            if action == "ends":
                expect(reason in feed.ends_with(1), feed.log())
            elif action == "waits":
                feed.wait_for(f'waiting for=server message="{reason}')
            if change == "unloaded":
                world.server.admin.load("t").expect(200)
            if change == "unloaded" or action == "applied":
                reaches(world.server.client, 1, "t")
                world.has_updates(OF_ROWS)
        if change == "stop":
            world.end()


@feeds
@pytest.mark.parametrize("change", ["new version", "roll back", "same", "unloaded"])
def test_change_before_a_batch_is_acknowledged(directory, change):
    with contextlib.ExitStack() as stack:
        world = CHANGES[change](directory, stack)
        with batch_on_its_way(world, directory, AFTER) as (feed, go_on):
            world.change()
            if change == "unloaded":
                world.server.admin.load("t").expect(200)
            go_on()
            reaches(world.server.client, 1, "t")
            world.has_updates(OF_ROWS)
            feed.stop()
