"""`parameters.explain`: what became of every bag, against a few lines of Python. tests/features asks at random."""


import numpy as np
import pytest

from harness import Server, expect, expect_equal, write_json
from v2 import Client, Tensor

ROWS = 20
MODELS = {model["name"]: model for model in [
    {"name": "plain", "path": "t.npy"},
    {"name": "padded", "path": "t.npy", "padding_idx": -1, "default_index": 3},
    {"name": "pruned", "path": "t.npy", "prune_invalid": True, "reduction": "mean", "weighted_mean": True},
    {"name": "skipping", "path": "t.npy", "out_of_range": "skip", "padding_idx": 0},
    {"name": "both", "path": "t.npy", "out_of_range": "skip", "prune_invalid": True},
    {"name": "unsorted", "path": "t.npy", "unsorted_segments": True},
    {"name": "pair", "features": [{"name": "a", "model": "padded"},
                                  {"name": "b", "model": "skipping"}]}]}


def expected_bag(model, ids, first, weights=None):
    """What a bag of these ids, the first of which stands at `first`, must be said to be."""
    padding = model.get("padding_idx")
    padding = None if padding is None else padding % ROWS
    fates = {"padding": [], "pruned": [], "out_of_range": []}
    for i, row in enumerate(ids):
        weightless = model.get("prune_invalid") and weights is not None and not weights[i] > 0
        if row == padding:
            fates["padding"].append(first + i)
        elif row < 0 and model.get("prune_invalid"):
            fates["pruned"].append(first + i)
        elif not 0 <= row < ROWS:
            fates["out_of_range"].append(first + i)
        elif weightless:
            fates["pruned"].append(first + i)
    rows = len(ids) - sum(map(len, fates.values()))
    return {"rows": rows, "default": not rows and model.get("default_index", -1) >= 0} | {
        name: positions for name, positions in fates.items() if positions}


def explained(reply):
    reply.outputs()
    return reply.header()[0]["parameters"]["explain"]


def test_collection(client):
    a, b = np.array([19, 1]), np.array([-1, 0, 5])
    want = [{"name": "a", "bags": [expected_bag(MODELS["padded"], a[:1], 0),
                                   expected_bag(MODELS["padded"], a[1:], 1)]},
            {"name": "b", "bags": [expected_bag(MODELS["skipping"], b[:3], 0),
                                   expected_bag(MODELS["skipping"], b[3:], 3)]}]
    inputs = [Tensor("values", np.concatenate([a, b])), Tensor("lengths", np.array([1, 1, 3, 0]))]
    for outputs in (None, [{"name": "embeddings"}, {"name": "a"}]):
        reply = client.infer("pair", inputs, outputs=outputs, parameters={"explain": True})
        expect_equal(explained(reply), want)
    reply = client.infer("pair", inputs, outputs=[{"name": "b"}], parameters={"explain": True})
    expect_equal(explained(reply), want[1:])


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
    return write_json(shared_directory / "config.json", {"models": list(MODELS.values())})


@pytest.fixture(scope="module", name="server")
def serve(config):
    with Server("--config", config) as server:
        yield server
