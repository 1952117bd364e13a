"""An update of rows whose body is still on its way while its model changes: what counts is the model when it is here.

The head and half of each update are sent, the model is changed and seen to have changed, then the rest is sent.
"""

import contextlib
import signal

import numpy as np
import pytest

from control import BEARER, COLUMNS, KEYS_TWICE, ROWS, publish, publish_keyed, rows_of, serve, served
from harness import Server, expect, expect_equal, wait_until, write_json
from updates import rows_of as current_rows
from v2 import Raw, Tensor, head, infer_body

UPDATED = np.full((ROWS, COLUMNS), 7, np.float32)
UPDATE = [Tensor("indices", np.arange(ROWS)), Tensor("rows", UPDATED)]


@contextlib.contextmanager
def half_sent(server, inputs=UPDATE):
    """Half of an update of t is there, and its head was accepted; yields what sends the rest and returns the answer."""
    body, headers = infer_body(inputs, binary=True)
    message = head("POST", "/v2/models/t/rows", BEARER | headers | {"Expect": "100-continue"}, body)
    begin, half = len(message) - len(body), len(message) - len(body) // 2
    with Raw(server.admin.client.server) as raw:
        raw.send(message[:begin])
        raw.reply().expect(100)
        raw.send(message[begin:half])

        def send_rest():
            raw.send(message[half:])
            return raw.reply()
        yield send_rest


@pytest.fixture(name="server")
def one_model(directory):
    """A server of model t, which has `change` to configure other models in its place."""
    np.save(directory / "t.npy", rows_of(1))
    np.save(directory / "new.npy", rows_of(2))
    (directory / "models").mkdir()
    config = directory / "config.json"

    def write(models):
        return write_json(config, {"models": models})

    write([{"name": "t", "path": "t.npy"}])
    with serve(directory, "--config", config, "--updates", "on") as server:
        def change(*models):
            write(models)
            server.send(signal.SIGHUP)
            wait_until(lambda: server.client.get("/v2/health/live") and
                       any(event["event"] == "change done" for event in server.events()),
                       "the models do not change")
        server.change = change
        yield server


def test_unloaded(directory):
    publish(directory / "models", "t", 1)
    with serve(directory, "--updates", "on") as server, half_sent(server) as send_rest:
        server.admin.unload("t").expect(200)
        expect_equal(send_rest().expect(404).error(), "model 't' is unloaded")


def test_gone(server):
    with half_sent(server) as send_rest:
        server.change({"name": "u", "path": "t.npy"})
        expect_equal(send_rest().expect(404).error(), "unknown model 't'; GET /v2/models lists the models")


def test_mapped(server):
    with half_sent(server) as send_rest:
        server.change({"name": "t", "path": "t.npy", "load": "map"})
        expect_equal(send_rest().expect(409).error(),
                     "the rows of this model cannot be changed: its table is mapped from a file")
    expect_equal(served(server.client), 1)


def test_on_shards(server, directory):
    with Server("--table", f"t={directory / 'new.npy'}") as shard, half_sent(server) as send_rest:
        server.change({"name": "t", "shards": [shard.url]})
        wait_until(lambda: served(server.client) == 2, "the shard is not asked")
        error = send_rest().expect(409).error()
        expect("are on its shards" in error, error)


def test_collection(server):
    with half_sent(server) as send_rest:
        server.change({"name": "u", "path": "t.npy"}, {"name": "t", "features": [{"name": "f", "model": "u"}]})
        error = send_rest().expect(400).error()
        expect("the model is a collection" in error, error)


def test_keyed(server, directory):
    """The form of ids is that of the model that there is."""
    publish_keyed(directory / "models", "k", 1)
    with half_sent(server) as send_rest:
        server.change({"name": "t", "path": str(directory / "models" / "k" / "1")})
        error = send_rest().expect(400).error()
        expect("the table has keys: send 'keys'" in error, error)


def test_new_version(server):
    with half_sent(server) as send_rest:
        server.change({"name": "t", "path": "new.npy", "version": 2})
        expect_equal(served(server.client), 2)
        reply = send_rest().expect(200).json()
        expect_equal((reply["model_version"], reply["applied"], reply["rows"]), ("2", True, ROWS))
    expect_equal(current_rows(server.client, "t", np.arange(ROWS)).tolist(), UPDATED.tolist())


def test_unload_first_that_fails(directory):
    root = directory / "models"
    publish_keyed(root, "t", 1)
    write_json(root / "t" / "config.json", {"reload": "unload_first"})
    keyed = [Tensor("keys", np.arange(ROWS)), Tensor("rows", UPDATED)]
    with serve(directory, "--updates", "on") as server, half_sent(server, keyed) as send_rest:
        publish_keyed(root, "t", 2, KEYS_TWICE)
        server.admin.load("t").expect(400)
        reply = send_rest().expect(503)
        expect("retry-after" in reply.headers, f"{reply.headers}")
        expect("UNAVAILABLE" in reply.error(), reply.error())
