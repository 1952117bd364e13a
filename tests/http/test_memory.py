"""max_memory: what requests hold together is bounded, others are told to come back, small requests go
on, and memory comes back."""

import contextlib
import http.client
import socket

import numpy as np
import pytest

from harness import SANITIZED, TIMEOUT_S, Server, expect, expect_equal, seed, wait_until, write_json
from held import held_workers, occupy, wait_until_read
from lifecycle import expect_memory_returned, memory_of_requests, save
from v2 import HEADER_LENGTH, Client, Raw, Tensor, head, infer_body

MIB = 1 << 20
LIMIT = 32 * MIB
UPLOAD = 20 * MIB
LARGE = b"{}" + bytes(UPLOAD - 2)
ONE_BAG = [Tensor("indices", np.zeros((1, 4), np.int64))]


@contextlib.contextmanager
def stalled_upload(server):
    """A client that announces a large body and sends half of it."""
    with socket.create_connection(("127.0.0.1", server.port)) as upload:
        upload.sendall(b"POST /v2/models/items/infer HTTP/1.1\r\nHost: localhost\r\n"
                       b"Content-Length: %d\r\n\r\n" % UPLOAD + b" " * (UPLOAD // 2))
        yield upload


def serve():
    return Server("--demo", "--max-memory", LIMIT)


def configure_wide(directory):
    """A table, and a collection of a thousand features of it, for which a plan takes most of a megabyte."""
    return write_json(directory / "config.json", {"models": [
        {"name": "items", "path": str(save(directory / "items.npy"))},
        {"name": "wide", "features": [{"name": f"f{i}", "model": "items"} for i in range(1000)]}]})


def test_the_limit_is_shown():
    with serve() as server, Client(server) as client:
        expect_equal(client.counted("bagserve_memory_limit_bytes"), LIMIT, "the limit")
        client.infer("items", ONE_BAG).expect()
        expect(0 < client.counted("bagserve_memory_bytes") < MIB, "what one small request holds")


def test_bodies_count_as_they_arrive():
    with serve() as server, Client(server) as client:
        with stalled_upload(server):
            wait_until(lambda: client.counted("bagserve_memory_bytes") > UPLOAD, "the upload is not counted")
            reply = client.request("POST", "/v2/models/items/infer", LARGE, {HEADER_LENGTH: "2"})
            expect_equal(reply.status, 503, "the status")
            expect("max_memory" in reply.error() and str(LIMIT) in reply.error(), reply.error())
            expect(int(reply.headers["retry-after"]) > 0, "no Retry-After")
            client.close()
            for _ in range(20):
                client.infer("items", ONE_BAG).expect()
        wait_until(lambda: client.counted("bagserve_memory_bytes") < MIB, "the memory of the upload is not given back")
        reply = client.request("POST", "/v2/models/items/infer", LARGE, {HEADER_LENGTH: "2"})
        expect_equal(reply.status, 400, "the status of a request without inputs")


def test_unread_replies_count():
    """A reply counts until its client has read it, or has left."""
    bags = 12 * MIB // 256
    tensors = [Tensor("indices", np.zeros((bags, 1), np.int32))]
    with serve() as server, Client(server) as client, Client(server) as other:
        body = client.infer("items", tensors, binary=True, outputs=[
            {"name": "embeddings", "parameters": {"binary_data": True}}])
        body.expect()
        before = other.counted("bagserve_memory_bytes")
        expect(before < LIMIT, "the limit")
        with stalled_upload(server):
            wait_until(lambda: other.counted("bagserve_memory_bytes") > UPLOAD, "the upload is not counted")
            reply = client.infer("items", tensors, binary=True, outputs=[
                {"name": "embeddings", "parameters": {"binary_data": True}}])
            expect_equal(reply.status, 503, "the status beside an upload")
            expect("a reply of" in reply.error(), reply.error())
        wait_until(lambda: other.counted("bagserve_memory_bytes") < MIB, "memory is not given back")


def test_unread_documents_count(directory):
    """Documents count until their client has read them; one client has three quarters of the budget at most."""
    limit, address, path = 8 * MIB, ("127.0.0.2", 0), "/v2/models/wide/config"
    config = configure_wide(directory)

    def ask_from(address):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, TIMEOUT_S, address)
        with contextlib.closing(connection):
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    with Server("--config", config, "--max-memory", limit) as server, Client(server) as client:
        status, document = ask_from(address)
        expect_equal(status, 200)
        expect(len(document) > 100_000, f"the document has {len(document)} bytes")
        with contextlib.ExitStack() as clients:
            for _ in range(60):
                unread = clients.enter_context(socket.socket())
                unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                unread.bind(address)
                unread.connect(("127.0.0.1", server.port))
                unread.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 50)
            wait_until(lambda: ask_from(address)[0] == 503, "the documents are not counted")
            expect(client.counted("bagserve_memory_bytes") > limit * 3 // 4 - len(document), "the client's share")
            status, error = ask_from(address)
            expect_equal(status, 503, "the status for a client with its share")
            expect(f"a reply of {len(document)} bytes" in error and f"(max_memory) is {limit}" in error, error)
            status, again = ask_from(("127.0.0.3", 0))
            expect_equal((status, again), (200, document), "the reply to another client")
            client.infer("items", ONE_BAG).expect()
        wait_until(lambda: client.counted("bagserve_memory_bytes") < MIB, "memory is not given back")


@pytest.mark.parametrize("options, parameters, leave", (
    ((), {"timeout": 1000}, False),
    (("--default-timeout-microseconds", 1000), {}, False),
    (("--latency-target-ms", 1), {}, False),
    ((), {}, True)), ids=("timeout", "default_timeout", "latency_target", "left"))
def test_requests_dropped_from_the_queue_keep_nothing(directory, options, parameters, leave):
    """Requests that the loop has planned, and that are late or without a client before a worker takes them."""
    count, limit = 40, 128 * MIB
    body, headers = infer_body([Tensor("values", np.ones(1000, np.int64)), Tensor("lengths", np.ones(1000, np.int64))],
                               parameters=parameters)
    request = head("POST", "/v2/models/wide/infer", headers, body)
    with Server("--config", configure_wide(directory), "--workers", 1, "--loops", 1, "--max-memory", limit,
                *options) as server, Client(server) as client, contextlib.ExitStack() as raws:
        before = memory_of_requests(client)

        def send():
            raw = raws.enter_context(Raw(server))
            raw.send(request)
            return raw

        with held_workers(server):
            waiting = occupy(server, send) + [send() for _ in range(count)]
            wait_until_read(server, waiting)
            if leave:
                raws.close()
        statuses = [] if leave else [raw.reply().status for raw in waiting]
        expect(leave or statuses.count(503) >= count, f"{statuses}: few are late")
        raws.close()
        expect_memory_returned(client, before)


def test_kept_buffers_leave_room_for_large_requests():
    """Each of four loops has answered large requests, and keeps buffers for the next ones, when a request comes that needs
    most of the budget."""
    body, headers = infer_body([Tensor("indices", np.zeros((3000, 100), np.int64))])
    request = head("POST", "/v2/models/items/infer", headers, body)
    with Server("--demo", "--loops", 4, "--workers", 2, "--max-memory", 96 * MIB, "--max-body-bytes", 80 * MIB) as server, \
            Client(server) as client, contextlib.ExitStack() as stack:
        before = memory_of_requests(client)
        raws = [stack.enter_context(Raw(server)) for _ in range(32)]
        for _ in range(4):
            for raw in raws:
                raw.send(request)
            for raw in raws:
                expect(raw.reply().status in (200, 503), "an answer was lost")  # 32 at once may need more than there is
        for size in (60 * MIB, 76 * MIB):
            reply = client.request("POST", "/v2/models/items/infer", b"{}" + bytes(size - 2), {HEADER_LENGTH: "2"})
            expect("inputs" in reply.expect(400).error(), reply.error())
        expect_memory_returned(client, before)


@pytest.mark.skipif(SANITIZED, reason="sanitizers keep memory of their own")
def test_the_process_shrinks_after_a_burst():
    """Hundreds of clients send most of a body each, and leave."""
    request = head("POST", "/v2/models/items/infer", {"Content-Length": str(500 << 10)}) + bytes(400 << 10)
    with Server("--demo", "--max-memory", 512 * MIB, "--loops", 2, "--workers", 2) as server, Client(server) as client:
        before, resident = memory_of_requests(client), server.memory_bytes()
        with contextlib.ExitStack() as clients:
            for _ in range(500):
                clients.enter_context(Raw(server)).send(request)
            wait_until(lambda: server.memory_bytes() > resident + 150 * MIB, "the bodies are not read")
        expect_memory_returned(client, before)
        wait_until(lambda: server.memory_bytes() < resident + 50 * MIB, "the memory of the burst is not returned", 20)


# What a connection with a request takes beside the budget at most, and the pages of a feature's hottest rows after a few
# samples of one id (SECURITY.md).
CONNECTION, FEATURES = 32 << 10, 1000 * (12 << 10)


class Burst:
    """Connections that all ask at once, and then read what came of it."""

    def __init__(self, server, count, rng):
        self.rng = rng
        self.raws = [Raw(server) for _ in range(count)]
        ids = np.zeros((1, 100_000), np.int32)
        self.kinds = [self.make("wide", [Tensor(name, np.ones(1000, np.int64)) for name in ("values", "lengths")]),
                      self.make("items", [Tensor("indices", np.zeros((1, 8000), np.int32))]),
                      self.make("items", [Tensor("indices", ids)], binary=True, parameters={"explain": True}),
                      self.make("items", [Tensor("indices", ids)]),
                      self.make("items", [Tensor("indices", ids.T)], binary=True)]

    @staticmethod
    def make(model, tensors, **options):
        body, headers = infer_body(tensors, **options)
        return head("POST", f"/v2/models/{model}/infer", headers, body)

    def ask(self, *parts):
        """The statuses of one request of each connection, of which the kinds have these parts."""
        for raw in self.raws:
            raw.send(self.kinds[self.rng.choice(len(self.kinds), p=parts)])
        return [raw.reply().status for raw in self.raws]

    def close(self):
        for raw in self.raws:
            raw.close()


@pytest.mark.skipif(SANITIZED, reason="sanitizers keep memory of their own")
def test_bursts_stay_within_the_budget(directory):
    """Plans, bodies, results and documents that together need several times the budget, again and again, on several loops:
    the process takes what one plans for (deploy/SCALING.md), and afterwards has what it had before."""
    count, limit = 300, 128 * MIB
    with Server("--config", configure_wide(directory), "--loops", 4, "--workers", 4, "--max-memory", limit) as server, \
            Client(server) as client:
        client.infer("items", ONE_BAG).expect()
        resident = server.memory_bytes()
        with contextlib.closing(Burst(server, count, np.random.default_rng(seed()))) as burst:
            statuses = [status for _ in range(8) for status in burst.ask(1, 0, 0, 0, 0)]
            statuses += [status for _ in range(6) for status in burst.ask(.6, .2, .08, .06, .06)]
        expect_equal(set(statuses), {200, 503}, "the statuses")
        expect(client.counted("bagserve_refused_requests_total", reason="out_of_memory") > count, "the budget was not used up")
        most, planned = server.memory_bytes("VmHWM"), 1.15 * (limit + resident) + FEATURES + count * CONNECTION
        expect(most < planned, f"the process had {most / MIB:.1f} MiB, and {planned / MIB:.1f} were planned")
        expect_memory_returned(client, 0)
        wait_until(lambda: memory_of_requests(client) == 0 and
                   server.memory_bytes() < 1.05 * resident + FEATURES + 2 * MIB, "the memory of the burst is not returned", 20)
