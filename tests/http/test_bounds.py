"""Limits on sizes hold exactly: what is as large as the limit passes, one more does not."""

import json
import re

import numpy as np
import pytest

from harness import Server, expect, expect_equal, write_json
from v2 import Client, Tensor

MAX_TENSORS = 4096
ROWS, DIM = 10, 3
INDICES = [Tensor("indices", np.arange(6).reshape(3, 2))]
RESULT_BYTES = 3 * DIM * 4
PAIR = [Tensor("values", np.arange(4)), Tensor("lengths", np.array([1, 1, 1, 1]))]
PAIR_BYTES = 2 * 2 * DIM * 4


@pytest.fixture(scope="module", name="config")
def make_config(shared_directory):
    np.save(shared_directory / "t.npy", np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM))
    return write_json(shared_directory / "config.json", {"models": [
        {"name": "items", "path": "t.npy"},
        {"name": "pair", "features": [{"name": "a", "model": "items"},
                                      {"name": "b", "model": "items"}]}]})


@pytest.fixture(scope="module", name="server")
def serve(config):
    with Server("--config", config) as server:
        yield server


@pytest.mark.parametrize("key", ["inputs", "outputs"])
def test_number_of_tensors(client, key):
    """Up to the limit each tensor is looked at: the first one's name is then what is wrong."""
    indices = {"name": "indices", "shape": [1, 1], "datatype": "INT64", "data": [0]}
    for count, words in ((MAX_TENSORS, "'t0'"), (MAX_TENSORS + 1, f"more than {MAX_TENSORS} tensors")):
        request = {"inputs": [indices]} | {key: [indices | {"name": f"t{i}"} if key == "inputs"
                                                 else {"name": f"t{i}"} for i in range(count)]}
        reply = client.request("POST", "/v2/models/items/infer", json.dumps(request))
        expect(words in reply.expect(400).error(), f"{count} {key}: {reply.error()}")


def ask(config, limit, model, inputs, binary):
    """The answer of a server with that limit on replies."""
    with Server("--config", config, "--max-reply-bytes", limit) as server, \
            Client(server) as client:
        return client.infer(model, inputs, binary=True,
                            parameters={"binary_data_output": binary})


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
@pytest.mark.parametrize("model, inputs, result_bytes",
                         [("items", INDICES, RESULT_BYTES), ("pair", PAIR, PAIR_BYTES)],
                         ids=["table", "collection"])
def test_reply(config, model, inputs, result_bytes, binary):
    """First the results alone are compared with the limit, then the reply that holds them."""
    refused = ask(config, result_bytes - 1, model, inputs, binary).expect(400).error()
    expect(re.search(r"results? would", refused), refused)
    refused = ask(config, result_bytes, model, inputs, binary).expect(400).error()
    found = re.search(r"the reply of \d bags could take (\d+) bytes", refused)
    expect(found, refused)
    reply_bytes = int(found[1])
    expect(reply_bytes > result_bytes, refused)
    refused = ask(config, reply_bytes - 1, model, inputs, binary).expect(400).error()
    expect(f"could take {reply_bytes} bytes" in refused, refused)
    reply = ask(config, reply_bytes, model, inputs, binary).expect(200)
    expect(len(reply.body) <= reply_bytes, f"{len(reply.body)} bytes came")
    expect_equal(sum(output.array.nbytes for output in reply.outputs().values()), result_bytes)
