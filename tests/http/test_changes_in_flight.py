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

    options, before, is_keyed, inputs = (), 1, False, ()
    runs = True  # or the worker stands still before the first request that needs it
    waits = False  # the change is made when those that read the table have been answered

    def __init__(self, directory, stack):
        self.directory, self.root, self.asking = directory, directory / "models", None
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


class Unload(World):
    """While others read the table, it is UNLOADING."""
    want = {"head": (503, "being unloaded"), "half": (503, ""), "half of rows": (503, "")}

    def change(self):
        self.ask(lambda: self.server.admin.unload("t"))
        self.becomes(503)

    def end(self):
        super().end()
        self.server.admin.load("t").expect(200)
        self.has_updates(OF_ROWS)


class Unloaded(World):
    waits = True
    want = {"head": (404, "is unloaded"), "half": (404, "is unloaded"), "half of rows": (404, "is unloaded")}

    def change(self):
        self.server.admin.unload("t").expect(200)

    def end(self):
        self.server.admin.load("t").expect(200)
        self.has_updates(OF_ROWS)


class NewVersion(World):
    want = {"head": "2", "half": "2", "half of rows": "applied to 2"}

    def change(self):
        publish(self.root, "t", 2)
        self.ask(lambda: self.server.admin.load("t"))
        self.becomes(2)

    def end(self):
        super().end()
        self.has_updates(OF_ROWS, OF_HALF_OF_ROWS)


class RollBack(World):
    before = 2
    want = {name: "2" for name in ("reply", "running", "queued")} | {
        "explain": "2 explained", "rows": "applied to 2", "head": "1", "half": "1", "half of rows": "applied to 1"}

    def prepare(self):
        publish(self.root, "t", 1)
        publish(self.root, "t", 2)

    def change(self):
        self.ask(lambda: self.server.admin.load("t", 1))
        self.becomes(1)

    def end(self):
        super().end()
        self.has_updates(OF_ROWS, OF_HALF_OF_ROWS)


class UnloadFirst(World):
    """The change waits for those that read the old table: meanwhile nothing is served."""
    want = {"head": (503, "being loaded"), "half": (503, "being loaded"), "half of rows": (503, "being loaded")}

    def prepare(self):
        publish(self.root, "t", 1)
        write_json(self.root / "t" / "config.json", {"reload": "unload_first"})

    def change(self):
        publish(self.root, "t", 2)
        self.ask(lambda: self.server.admin.load("t"))
        self.becomes(503)

    def end(self):
        super().end()
        self.becomes(2)


class UnloadFirstFails(UnloadFirst):
    """The old table is gone by then."""
    waits, is_keyed = True, True
    want = {name: (503, "UNAVAILABLE") for name in ("head", "half", "half of rows")}

    def prepare(self):
        publish_keyed(self.root, "t", 1)
        write_json(self.root / "t" / "config.json", {"reload": "unload_first"})

    def change(self):
        publish_keyed(self.root, "t", 2, KEYS_TWICE)
        self.server.admin.load("t").expect(400)

    def end(self):
        self.server.admin.load("t", 1).expect(200)
        self.has_updates(OF_ROWS)


class Configured(World):
    """Model t is one of the configuration, which is read again."""

    def prepare(self):
        np.save(self.directory / "t.npy", rows_of(1))
        np.save(self.directory / "new.npy", rows_of(2))
        self.config = self.directory / "config.json"
        self.write({"name": "t", "path": "t.npy"})
        self.options = ("--config", self.config)

    def write(self, *models):
        write_json(self.config, {"models": models})

    def change_to(self, *models):
        self.write(*models)
        self.server.send(signal.SIGHUP)
        self.server.wait_event("change done")


class Same(Configured):
    want = {"head": "1", "half": "1", "half of rows": "applied to 1"}

    def change(self):
        self.change_to({"name": "t", "path": "t.npy"})


class Gone(Configured):
    want = {"head": (404, "unknown model 't'"), "half": (404, "unknown"), "half of rows": (404, "unknown")}

    def change(self):
        self.change_to({"name": "u", "path": "t.npy"})


class Mapped(Configured):
    want = {"rows": (409, "mapped"), "head": "2", "half": "2", "half of rows": (409, "mapped")}

    def change(self):
        self.change_to({"name": "t", "path": "new.npy", "load": "map"})


class Collection(Configured):
    want = {"head": (400, "'f.indices'"), "half": (400, "'f.indices'"), "half of rows": (400, "is a collection")}

    def change(self):
        self.change_to({"name": "u", "path": "new.npy"}, {"name": "t", "features": [{"name": "f", "model": "u"}]})


class Keyed(Configured):
    """The form of ids is that of the model that there is."""
    want = {"rows": (409, "a version with keys"), "head": "2", "half": "2", "half of rows": (400, "send 'keys'")}

    def change(self):
        publish_keyed(self.directory / "aside", "k", 2)
        self.change_to({"name": "t", "path": str(self.directory / "aside" / "k" / "2")})


class Remote(Configured):
    want = {"head": "2", "half": "2", "half of rows": (409, "on its shards")}

    def __init__(self, directory, stack):
        super().__init__(directory, stack)
        self.shard = stack.enter_context(Server("--table", f"t={directory / 'new.npy'}"))

    def change(self):
        self.change_to({"name": "t", "shards": [self.shard.url]})
        wait_until(lambda: served(self.server.client) == 2, "the shard is not asked")


class Stop(World):
    want = {"head": "1", "half": "1", "half of rows": "applied to 1"}

    def change(self):
        self.server.send(signal.SIGTERM)
        self.server.wait_event("draining")

    def end(self):
        self.server.check_end()


class DefaultKey(World):
    """The model's default row is deleted, which cannot be."""
    is_keyed, inputs = True, [Tensor("default_index", np.array([OWN_DEFAULT]))]
    want = {"head": "1", "half": "1", "half of rows": "applied to 1"}
    deleted, status = 0, 400

    def prepare(self):
        publish_keyed(self.root, "t", 1)
        write_json(self.root / "t" / "config.json", {"missing": "default", "default_index": 0})

    def change(self):
        folder = self.root / "t" / "1" / "deltas" / "1"
        folder.mkdir(parents=True)
        np.save(folder / "deleted_keys.npy", np.array([self.deleted], np.int64))
        self.server.admin.load("t").expect(self.status)

    def end(self):
        self.has_updates(OF_ROWS, OF_HALF_OF_ROWS)


class OwnDefaultKey(DefaultKey):
    """A request's own default row is deleted. The reader that runs would keep it from being deleted."""
    runs, deleted, status = False, OWN_DEFAULT, 200
    want = {name: (400, "'default_index' is 5, a key that the table does not have") for name in ("queued", "explain", "head", "half")} | {
        "half of rows": "applied to 1"}


UNCHANGED = {"reply": "1", "running": "1", "queued": "1", "explain": "1 explained", "rows": "applied to 1"}


@pytest.mark.parametrize("change", [Unload, Unloaded, UnloadFirst, UnloadFirstFails, NewVersion, RollBack, Same, Gone, Mapped, Collection, Keyed,
                                    Remote, Stop, DefaultKey, OwnDefaultKey])
def test_change(directory, change):
    with contextlib.ExitStack() as stack:
        world = change(directory, stack)
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


class Sharded(World):
    """Model t of two shards, each behind a courier; one loop and one worker ask them."""

    bag, way, settings = (0, 4), "rows", {}

    def __init__(self, directory, stack):
        self.directory, self.asking = directory, None
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
            text = client.get("/metrics").expect().body.decode()
        ok, hedged = ([int(value) for value in re.findall(rf'bagserve_shard_requests_total{{.*outcome="{outcome}"}} (\d+)', text)]
                      for outcome in ("ok", "hedged"))
        return all(more * 10 + 50 <= all_of for more, all_of in zip(hedged, ok))


# Of shards that do not have the version any more, and no other one together.
AWAY = {name: (503, "shard http://127.0.0.1:") for name in ("queued", "subrequest", "head", "half")}


class ShardsUnload(Sharded):
    want = AWAY

    def change(self):
        self.at_shards(lambda admin: admin.unload("t"))
        self.becomes(503)


class ShardsNewVersion(Sharded):
    want = {name: "2" for name in AWAY}

    def change(self):
        self.publish(2)
        self.at_shards(lambda admin: admin.load("t"))
        self.becomes(2)


class ShardsRollBack(Sharded):
    want = {name: "1" for name in AWAY} | {"reply": "2", "answer of a shard": "2"}
    before = 2

    def prepare_shard(self, root):
        publish(root, "t", 1)
        publish(root, "t", 2)

    def change(self):
        self.at_shards(lambda admin: admin.load("t", 1))
        self.becomes(1)


class ShardsUnloadFirstFails(Sharded):
    want = AWAY
    """Of one shard the old part is gone by then; the other one has version 2."""
    bag, way, settings = (0, 1), "keys", {"reload": "unload_first"}

    def prepare_shard(self, root):
        publish_keyed(root, "t", 1)

    def change(self):
        for shard in self.shards:
            publish_keyed(shard.directory / "models", "t", 2, KEYS_TWICE)
        expect_equal(sorted(shard.admin.load("t").status for shard in self.shards), [200, 400])
        self.becomes(503)


class ShardsMapped(Sharded):
    """Version 2 is mapped."""
    want = {name: "2" for name in AWAY}

    def change(self):
        self.publish(2)
        for shard in self.shards:
            write_json(shard.directory / "models" / "t" / "2" / "config.json", {"load": "map"})
        self.at_shards(lambda admin: admin.load("t"))
        self.becomes(2)


class ShardsCollection(Sharded):
    want = AWAY

    def change(self):
        for shard in self.shards:
            publish(shard.directory / "models", "u", 1)
            folder = shard.directory / "models" / "t" / "2"
            folder.mkdir()
            write_json(folder / "config.json", {"features": [{"name": "f", "model": "u"}]})
        self.at_shards(lambda admin: admin.group({"name": "u"}, {"name": "t"}))
        self.becomes(503)


class ShardLeaves(Sharded):
    want = AWAY | {name: (502, "closed the connection without an answer")
                   for name in ("subrequest", "answer of a shard")}

    def change(self):
        self.couriers[1].leave()
        self.becomes(503)


class FrontUnload(Sharded):
    want = {"head": (503, "UNLOADING"), "half": (503, "UNLOADING")}

    def change(self):
        self.ask(lambda: self.server.admin.unload("t"))
        self.becomes(503)


class FrontStop(Sharded):
    want = {"head": "1", "half": "1"}

    def change(self):
        self.server.send(signal.SIGTERM)
        self.server.wait_event("draining")

    def end(self):
        self.server.check_end()


class FrontReads(Sharded):
    """The front reads its configuration again."""

    def change_to(self, *models):
        write_json(self.config, {"models": models})
        self.server.send(signal.SIGHUP)
        self.server.wait_event("change done")


class FrontSame(FrontReads):
    want = {"head": "1", "half": "1"}

    def change(self):
        self.change_to(self.model)


class FrontLocal(FrontReads):
    want = {"head": "2", "half": "2"}

    def change(self):
        self.change_to({"name": "t", "path": "new.npy"})


class FrontMapped(FrontReads):
    want = {"head": "2", "half": "2"}

    def change(self):
        self.change_to({"name": "t", "path": "new.npy", "load": "map"})


class FrontCollection(FrontReads):
    want = {"head": (400, "'f.indices'"), "half": (400, "'f.indices'")}

    def change(self):
        self.change_to({"name": "u", "path": "new.npy"}, {"name": "t", "features": [{"name": "f", "model": "u"}]})


class FrontGone(FrontReads):
    want = {"head": (404, "unknown model 't'"), "half": (404, "unknown model 't'")}

    def change(self):
        self.change_to(self.model | {"name": "u"})
        self.becomes(404)


@pytest.mark.parametrize("change", [ShardsUnload, ShardsUnloadFirstFails, ShardsNewVersion, ShardsRollBack, ShardsMapped,
                                    ShardsCollection, ShardLeaves, FrontUnload, FrontStop, FrontSame, FrontLocal, FrontMapped,
                                    FrontCollection, FrontGone])
def test_change_of_shards(directory, change):
    with contextlib.ExitStack() as stack:
        world = change(directory, stack)
        requests, held = world.send(stack)
        world.change()
        requests.send_rest()
        held.close()
        want = {name: "1" for name in ("reply", "queued", "subrequest", "answer of a shard")}
        expect_equal(differences(requests.outcomes(), want | world.want), {}, "(got, wanted)")
        world.end()


# ---- changes beside a feed of updates ---------------------------------------------------------
# What a feed does whose batch arrives after the change: it is applied, or the feed waits or ends with a reason.
FEEDS = {NewVersion: "applied", RollBack: "applied", Same: "applied", Unloaded: "waits 404: model 't' is unloaded",
         Gone: "waits 404: unknown model 't'", Mapped: "waits 409: the rows of this model cannot be changed",
         Remote: "waits 409: the rows of this model are on its shards", Stop: "waits ",
         Collection: "ends 400: the model is a collection", Keyed: "ends 400: the table has keys"}


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
        world = change(directory, stack)
        with batch_on_its_way(world, directory, BEFORE) as (feed, go_on):
            world.change()
            go_on()
            action, _, reason = FEEDS[change].partition(" ")
            if action == "ends":
                expect(reason in feed.ends_with(1), feed.log())
            elif action == "waits":
                feed.wait_for(f'waiting for=server message="{reason}')
            if change is Unloaded:
                world.server.admin.load("t").expect(200)
            if change is Unloaded or action == "applied":
                reaches(world.server.client, 1, "t")
                world.has_updates(OF_ROWS)
        if change is Stop:
            world.end()


@feeds
@pytest.mark.parametrize("change", [NewVersion, RollBack, Same, Unloaded])
def test_change_before_a_batch_is_acknowledged(directory, change):
    with contextlib.ExitStack() as stack:
        world = change(directory, stack)
        with batch_on_its_way(world, directory, AFTER) as (feed, go_on):
            world.change()
            if change is Unloaded:
                world.server.admin.load("t").expect(200)
            go_on()
            reaches(world.server.client, 1, "t")
            world.has_updates(OF_ROWS)
            feed.stop()
