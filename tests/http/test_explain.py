"""`parameters.explain`: what it cannot be asked for. What it tells of every bag, tests/features compares with NumPy."""

import numpy as np
import pytest

from harness import Server, expect, write_json
from v2 import Client, Tensor

ROWS = 20


def test_rejected(client):
    packed = [Tensor("indices", np.array([[1]]))]
    reply = client.infer("plain", packed, parameters={"explain": "yes"}).expect(400)
    expect("explain must be true or false" in reply.error(), reply.error())
    reply = client.infer("plain", packed, parameters={"explain": False}).expect(200)
    expect("parameters" not in reply.json(), reply.body)
    segments = [Tensor("indices", np.array([1, 2])), Tensor("segment_ids", np.array([1, 0]))]
    reply = client.infer("unsorted", segments, parameters={"explain": True}).expect(400)
    expect("unsorted segments" in reply.error(), reply.error())


def test_limits(config):
    with Server("--config", config, "--explain", "off") as server, Client(server) as client:
        packed = [Tensor("indices", np.array([[1]]))]
        reply = client.infer("plain", packed, parameters={"explain": True}).expect(400)
        expect("switched off" in reply.error(), reply.error())
        client.infer("plain", packed).expect(200)
    with Server("--config", config, "--max-reply-bytes", 2000) as server, \
            Client(server) as client:
        packed = [Tensor("indices", np.ones((20, 1), np.int64))]
        ask = {"binary_data_output": True}
        client.infer("plain", packed, parameters=ask).expect(200)
        reply = client.infer("plain", packed, parameters=ask | {"explain": True}).expect(400)
        expect("max_reply_bytes" in reply.error(), reply.error())


@pytest.fixture(scope="module", name="config")
def make(shared_directory):
    np.save(shared_directory / "t.npy", np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2))
    return write_json(shared_directory / "config.json", {"models": [
        {"name": "plain", "path": "t.npy"}, {"name": "unsorted", "path": "t.npy", "unsorted_segments": True}]})


@pytest.fixture(scope="module", name="server")
def serve(config):
    with Server("--config", config) as server:
        yield server
