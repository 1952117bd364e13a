"""Requests as clients make them, up to 16,384 ids of 4,096 elements, are answered by a server at its defaults; what a few
bytes could ask for beyond that is not."""

import numpy as np
import pytest

from clients import bc
from harness import Server, expect, write_json
from v2 import Client, Tensor

IDS, DIM = 16384, 4096


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    np.save(shared_directory / "wide.npy", np.ones((4, DIM), np.float32))
    np.save(shared_directory / "narrow.npy", np.ones((4, 2), np.float32))
    models = [{"name": "wide", "path": "wide.npy"}, {"name": "narrow", "path": "narrow.npy"},
              {"name": "both", "features": [{"name": "a", "model": "wide"}, {"name": "b", "model": "narrow"}]}]
    with Server("--config", write_json(shared_directory / "config.json", {"models": models})) as server:
        yield server


def calls(client):
    """Each makes a reply of 256 MiB."""
    ids, none = np.zeros(IDS, np.int32), np.zeros(0, np.int32)
    lengths = np.append(np.ones(IDS, np.int32), np.zeros(IDS, np.int32))
    return {"rows": lambda: client.rows("wide", ids), "packed": lambda: client.packed("wide", ids[:, None]),
            "empty packed bags": lambda: client.packed("wide", np.zeros((IDS, 0), np.int64)),
            "offsets": lambda: client.offsets("wide", ids, np.arange(IDS, dtype=np.int32)),
            "empty bags": lambda: client.offsets("wide", none, np.zeros(IDS, np.int32)),
            "segments of few ids": lambda: client.segments("wide", ids[:1], ids[:1], IDS),
            "keyed jagged": lambda: client.kjt("both", ids, lengths)["a"],
            "features": lambda: client.collection("both", {"a": [[0]] + [[]] * (IDS - 1)})["a"]}


@pytest.mark.parametrize("name", calls(None))
def test_answers(server, name):
    with bc.Client(f"{server.host}:{server.port}") as client:
        rows = calls(client)[name]()
        expect(rows.shape == (IDS, DIM), f"{rows.shape}")


def test_a_few_bytes_do_not_ask_for_more(server):
    inputs = [Tensor("indices", [0]), Tensor("segment_ids", [0]), Tensor("num_segments", np.array(10_000_000))]
    with Client(server) as client:
        for body in ({"binary_data_output": True}, {}):
            error = client.infer("narrow", inputs, parameters=body).expect(400).error()
            expect("max_reply" in error or "max_work" in error, error)
