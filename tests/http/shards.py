"""Shards of a table and the front that asks them, and what may stand between: a proxy that spoils answers."""

import contextlib
import json
import socket
import threading

import numpy as np
import pytest

from harness import Server, wait_until, write_json
from v2 import Client, Tensor

OF = 3
ROWS, COLUMNS = 300, 10


@pytest.fixture(scope="module", name="tables")
def make_tables(shared_directory, rng):
    """Models by the way of their parts. Values have exact sums, so that bits can be compared whoever adds."""
    rows, keys = shared_directory / "items.npy", shared_directory / "keys.npy"
    np.save(rows, (rng.integers(-512, 512, (ROWS, COLUMNS)) / 64).astype(np.float32))
    np.save(keys, rng.permutation(np.arange(1000, 1000 + 7 * ROWS, 7)).astype(np.int64))
    return {"rows": {"path": str(rows)}, "columns": {"path": str(rows)}, "keys": {"path": str(rows), "keys": str(keys)}}


def ready(server, timeout_s=60):
    """Waits until a front has its shards."""
    with Client(server) as client:
        wait_until(lambda: client.get("/v2/health/ready").status == 200, "the front is not ready", timeout_s)
    return server


def front_of(directory, urls, name="items", more=(), options=(), wait=True, **keys):
    config = write_json(directory / "front.json",
                        {"models": [{"name": name, "shards": list(urls)} | keys] + list(more)})
    server = Server("--config", config, *options)
    return ready(server) if wait else server


@contextlib.contextmanager
def parts_of(directory, model, way, count=OF, options=()):
    """Servers that have a part of the model each."""
    with contextlib.ExitStack() as stack:
        servers = []
        for index in range(count):
            config = write_json(directory / f"{way}-{index}.json", {"models": [
                {"name": "items"} | model | {"part": {"by": way, "index": index, "of": count}}]})
            servers.append(stack.enter_context(Server("--config", config, *options)))
        yield servers


def ask(client, ids, offsets, model="items", headers=None, binary=True, **parameters):
    return client.infer(model, [Tensor("indices", np.asarray(ids, np.int64)),
                                Tensor("offsets", np.asarray(offsets, np.int64))], headers, binary=binary,
                        parameters={"binary_data_output": binary} | parameters)


class StandIn:
    """Listens in the place of a shard; `serve` gets each connection, in a thread of its own."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.serve, args=(self.listener.accept()[0],), daemon=True).start()


class Between(StandIn):
    """Passes everything on to a server, but for answers of inference: `spoil(connection, answer)` sends what it
    likes, and returns whether the connection goes on. `heads` are of the requests whose answers were spoilt."""

    def __init__(self, server):
        self.server, self.spoil, self.heads = server, None, []
        super().__init__()

    def serve(self, connection):
        with contextlib.suppress(OSError, ValueError), connection, \
                socket.create_connection((self.server.host, self.server.port)) as shard:
            source, answers = connection.makefile("rb"), shard.makefile("rb")
            while head := read_head(source):
                shard.sendall(head + source.read(length_of(head)))
                answer, spoil = read_message(answers), self.spoil
                if b"/infer" not in head.split(b"\r\n", 1)[0] or not spoil:
                    connection.sendall(answer)
                    continue
                self.heads.append(head)
                if not spoil(connection, answer):
                    return


def only_first(spoil, mark=b""):
    """Spoils the first answer that has the mark, and sends all others."""
    first = threading.Lock()

    def send(connection, answer):
        spoils = mark in answer and first.acquire(blocking=False)
        return spoil(connection) if spoils else connection.sendall(answer) is None
    return send


def read_head(source):
    """Nothing at the end."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = source.readline()
        if not line:
            return b""
        head += line
    return head


def length_of(head):
    lines = [line.lower() for line in head.split(b"\r\n")]
    return next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)


def read_message(source):
    """Head and body."""
    head = read_head(source)
    return head + source.read(length_of(head))


def reply(status, body, **headers):
    """An answer of a shard, as bytes."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}"]
    lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
