"""Collections: every rejection, of requests and of what is configured."""

import numpy as np
import pytest

from collections_models import F32, kjt, make_models
from harness import Server, expect, write_json
from v2 import Client, Tensor

# tests/unit/test_kjt.c has what may be wrong with lengths and offsets.
REFUSED = [
    ("no inputs", "floats", [], ["there are no inputs", "a.indices"]),
    ("no lengths", "floats", [Tensor("values", np.array([1]))], ["'lengths'", "'offsets'"]),
    ("both layouts", "floats", kjt([], [0] * 4) + [Tensor("a.indices", np.array([[1]]))],
     ["'a.indices' cannot be combined with 'values'"]),
    ("unknown feature", "floats", [Tensor("aa.indices", np.array([[1]]))], ["no feature 'aa'", "did you mean 'a'"]),
    ("unknown input", "floats", [Tensor("a.indexes", np.array([[1]]))], ["'a.indexes'"]),
    ("lengths too long", "floats", kjt([1, 2], [0, 1, 2, 0]), ["position 2", "feature 'c'", "bag 0", "is 2", "0 to 1"]),
    ("index of one feature", "floats", kjt([1, 2, 20, 1], [1, 1, 1, 1]),
     ["feature 'c'", "'values' from position 2", "position 0 is 20", "0 to 19"]),
    ("named index", "floats", [Tensor("c.indices", np.array([[1, 20]]))], ["feature 'c'", "position 1 is 20"]),
    ("weights where max is", "mixed", kjt([1] * 7, [1] * 7, [1.0] * 7), ["'weights'", "feature 'history'", "mean"]),
    ("weights of a table of integers", "integers", kjt([1], [1], [1.0]), ["'whole'", "INT32"]),
    ("a default alone", "floats", [Tensor("a.default_index", np.array(0))], ["feature 'a'", "'indices' is missing"]),]
BAD_OUTPUTS = [
    ("unknown", "floats", kjt([], [0] * 4), [{"name": "embedding"}], ["output 'embedding'", "did you mean 'embeddings'"]),
    ("missing feature", "floats", [Tensor("a.indices", np.array([[1]]))], [{"name": "b"}],
     ["output 'b'", "b.indices"]),
    ("all of some", "floats", [Tensor("a.indices", np.array([[1]]))], [{"name": "embeddings"}],
     ["'embeddings'", "inputs of 'b' are missing"]),
    ("unequal bags", "floats", [Tensor(f"{f}.indices", np.zeros((1 + (f == "c"), 1), np.int64))
                                for f in "abcd"], [{"name": "embeddings"}],
     ["'a' has 1, 'c' has 2"]),]


def check_rejected(client, name, model, inputs, outputs, words):
    for binary in (True, False):
        reply = client.infer(model, inputs, binary=binary, outputs=outputs).expect(400)
        for word in words:
            expect(word in reply.error(), f"{name}: {word!r} is not in {reply.error()!r}")


def test_limits(directory):
    """max_reply_bytes is of the whole request, also where bags have no index."""
    np.save(directory / "t.npy", np.ones((10, 64), F32))
    config = write_json(directory / "c.json", {"models": [
        {"name": "t", "path": "t.npy"},
        {"name": "two", "features": [{"name": n, "model": "t"} for n in "ab"]}]})
    with Server("--config", config, "--max-reply-bytes", 1100) as server, Client(server) as client:
        none = np.zeros((1 << 31, 0), int)
        for inputs, words in ((kjt([0] * 4, [1] * 4), ["max_reply_bytes"]),
                              ([Tensor("a.indices", none), Tensor("b.indices", none)],
                               ["max_reply_bytes", "2147483648 bags"])):
            reply = client.infer("two", inputs, binary=True, parameters={"binary_data_output": True}).expect(400)
            expect(all(word in reply.error() for word in words), reply.error())
        client.infer("two", kjt([0] * 6, [3, 3]), binary=True, parameters={"binary_data_output": True}).expect(200)


@pytest.fixture(scope="module", name="server")
def serve(shared_directory, rng):
    config, _ = make_models(rng, shared_directory)
    with Server("--config", config) as server:
        yield server


@pytest.mark.parametrize("name, model, inputs, words", REFUSED, ids=[case[0] for case in REFUSED])
def test_rejected_inputs(client, name, model, inputs, words):
    check_rejected(client, name, model, inputs, None, words)


@pytest.mark.parametrize("name, model, inputs, outputs, words", BAD_OUTPUTS, ids=[case[0] for case in BAD_OUTPUTS])
def test_rejected_outputs(client, name, model, inputs, outputs, words):
    check_rejected(client, name, model, inputs, outputs, words)
