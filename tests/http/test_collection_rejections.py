"""Collections: every rejection, of requests and of what is configured."""

import numpy as np
import pytest

from collections_models import F32, kjt, make_models
from harness import Server, expect, expect_equal, run, write_json
from v2 import Client, Tensor

REFUSED = [
    ("no inputs", "floats", [], ["there are no inputs", "a.indices"]),
    ("no lengths", "floats", [Tensor("values", np.array([1]))], ["'lengths'", "'offsets'"]),
    ("no values", "floats", [Tensor("lengths", np.array([1]))], ["'values' is missing"]),
    ("both", "floats", kjt([], [0] * 4) + kjt([], [0] * 5, name="offsets")[1:],
     ["'lengths' and 'offsets'"]),
    ("both layouts", "floats", kjt([], [0] * 4) + [Tensor("a.indices", np.array([[1]]))],
     ["'a.indices' cannot be combined with 'values'"]),
    ("unknown feature", "floats", [Tensor("aa.indices", np.array([[1]]))],
     ["no feature 'aa'", "did you mean 'a'"]),
    ("unknown input", "floats", [Tensor("a.indexes", np.array([[1]]))], ["'a.indexes'"]),
    ("no feature", "floats", [Tensor("indices", np.array([[1]]))], ["'indices' is unknown"]),
    ("lengths of a part", "floats", kjt([], [0] * 5), ["'lengths' has 5", "multiple of 4"]),
    ("offsets of a part", "floats", kjt([], [0] * 4, name="offsets"),
     ["'offsets' has 4", "one more than a multiple of 4"]),
    ("no offsets at all", "floats", kjt([], np.zeros(0, np.int64), name="offsets"),
     ["'offsets' has 0"]),
    ("lengths too short", "floats", kjt([1, 2], [0, 1, 0, 0]), ["counts 1 'values'", "are 2"]),
    ("lengths too long", "floats", kjt([1, 2], [0, 1, 2, 0]),
     ["position 2", "feature 'c'", "bag 0", "is 2", "0 to 1"]),
    ("a length of the largest", "floats", kjt([1], [0, 1, 2**63 - 1, 0]), ["position 2"]),
    ("a negative length", "floats", kjt([1, 2], [0, 1, 1, 0, 0, 0, -1, 0]),
     ["position 6", "feature 'd'", "bag 0", "is -1"]),
    ("offsets not from 0", "floats", kjt([1], [1, 1, 1, 1, 1], name="offsets"), ["must be 0"]),
    ("offsets that fall", "floats", kjt([1, 2], [0, 2, 1, 2, 2], name="offsets"),
     ["position 2", "the end of feature 'b', bag 0", "is 1", "from 2", "to 2"]),
    ("offsets too far", "floats", kjt([1, 2], [0, 1, 3, 3, 3], name="offsets"), ["position 2"]),
    ("index of one feature", "floats", kjt([1, 2, 20, 1], [1, 1, 1, 1]),
     ["feature 'c'", "'values' from position 2", "position 0 is 20", "0 to 19"]),
    ("named index", "floats", [Tensor("c.indices", np.array([[1, 20]]))],
     ["feature 'c'", "position 1 is 20"]),
    ("weights too short", "floats", kjt([1, 1], [2, 0, 0, 0], [1.0]), ["'weights' has 1", "has 2"]),
    ("values as floats", "floats", [Tensor("values", np.zeros(1, F32)),
                                    Tensor("lengths", np.array([1, 0, 0, 0]))], ["FP32", "INT32"]),
    ("2-D values", "floats", kjt([[1]], [1, 0, 0, 0]), ["'values' has 2 dimensions"]),
    ("weights as doubles", "floats", kjt([1], [1, 0, 0, 0]) + [Tensor("weights", np.zeros(1))],
     ["'weights' has datatype FP64", "FP32"]),
    ("weights where max is", "mixed", kjt([1] * 7, [1] * 7, [1.0] * 7),
     ["'weights'", "feature 'history'", "mean"]),
    ("weights of a table of integers", "integers", kjt([1], [1], [1.0]), ["'whole'", "INT32"]),
    ("offsets without indices", "floats", [Tensor("a.offsets", np.array([0]))],
     ["feature 'a'", "'indices' is missing"]),
    ("a default alone", "floats", [Tensor("a.default_index", np.array(0))],
     ["feature 'a'", "'indices' is missing"]),
]
BAD_OUTPUTS = [
    ("unknown", "floats", kjt([], [0] * 4), [{"name": "e"}], ["output 'e'", "did you mean"]),
    ("missing feature", "floats", [Tensor("a.indices", np.array([[1]]))], [{"name": "b"}],
     ["output 'b'", "b.indices"]),
    ("all of some", "floats", [Tensor("a.indices", np.array([[1]]))], [{"name": "embeddings"}],
     ["'embeddings'", "inputs of 'b' are missing"]),
    ("unequal bags", "floats", [Tensor(f"{f}.indices", np.zeros((1 + (f == "c"), 1), np.int64))
                                for f in "abcd"], [{"name": "embeddings"}],
     ["'a' has 1, 'c' has 2"]),
]


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
            reply = client.infer("two", inputs, binary=True,
                                 parameters={"binary_data_output": True}).expect(400)
            expect(all(word in reply.error() for word in words), reply.error())
        client.infer("two", kjt([0] * 6, [3, 3]), binary=True,
                     parameters={"binary_data_output": True}).expect(200)


def test_start(directory):
    """What is rejected before anything is served, and a folder of models."""
    np.save(directory / "t.npy", np.ones((10, 4), F32))

    def rejected(feature, *words, **model):
        models = [{"name": "t", "path": "t.npy"}, {"name": "c", "features": [feature]} | model]
        done = run("serve", "--check", "--config",
                   write_json(directory / "c.json", {"models": models}))
        expect(done.returncode != 0, done.stdout)
        for word in words:
            expect(word in done.stderr, f"{word!r} is not in {done.stderr!r}")

    rejected({"name": "f", "model": "tt"}, "'f'", "no model 'tt'", "did you mean 't'")
    rejected({"name": "f", "model": "c"}, "'f'", "'c' is a collection")
    rejected({"name": "f", "model": "t", "reductoin": "sum"}, "'f'", "reductoin", "reduction")
    rejected({"name": "f", "model": "t", "default_index": 10}, "'f'", "default_index", "0 to 9")
    rejected({"name": "f", "model": "t", "output_datatype": "FP64"}, "'f'", "FP64")
    rejected({"name": "embeddings", "model": "t"}, "'embeddings'", "taken")
    rejected({"name": "f", "model": "t"}, "'path'", path="t.npy")
    rejected({"name": "f", "model": "t"}, "'reduction'", "features", reduction="sum")
    folder = directory / "models"
    (folder / "c" / "1").mkdir(parents=True)
    np.save(folder / "t.npy", np.eye(4, dtype=F32))
    write_json(folder / "c" / "1" / "config.json",
               {"features": [{"name": "f", "model": "t", "reduction": "max"}]})
    with Server("--models", folder) as server, Client(server) as client:
        got = client.infer("c", [Tensor("f.indices", np.array([[1, 2]]))]).outputs()
        expect_equal(got["f"].array.tolist(), [[0, 1, 1, 0]])


@pytest.fixture(scope="module", name="server")
def serve(shared_directory, rng):
    config, _ = make_models(rng, shared_directory)
    with Server("--config", config) as server:
        yield server


@pytest.mark.parametrize("name, model, inputs, words", REFUSED, ids=[case[0] for case in REFUSED])
def test_rejected_inputs(client, name, model, inputs, words):
    check_rejected(client, name, model, inputs, None, words)


@pytest.mark.parametrize("name, model, inputs, outputs, words", BAD_OUTPUTS,
                         ids=[case[0] for case in BAD_OUTPUTS])
def test_rejected_outputs(client, name, model, inputs, outputs, words):
    check_rejected(client, name, model, inputs, outputs, words)
