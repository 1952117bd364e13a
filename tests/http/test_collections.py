"""Collections: single cases of their answers, and what is told of them. tests/features asks at random."""

import numpy as np
import pytest

from collections_models import F32, kjt, make_models
from harness import Server, expect, expect_equal
from v2 import Client, Tensor


def test_no_bags(client):
    for inputs in (kjt([], np.zeros(0, np.int64)), kjt([], [0], name="offsets")):
        got = client.infer("floats", inputs).outputs()
        expect_equal({n: t.array.shape for n, t in got.items()},
                     {"a": (0, 16), "b": (0, 12), "c": (0, 2, 3), "d": (0, 6)})
        whole = client.infer("floats", inputs, outputs=[{"name": "embeddings"}]).outputs()
        expect_equal(whole["embeddings"].array.shape, (0, 40))


def test_overrides(client, features):
    """A request's parameters go for every feature; a wider type joins what differs in type."""
    table = features["floats"][0].table
    inputs = [Tensor("a.indices", np.array([[1, 2]])), Tensor("b.indices", np.array([[3, 3]]))]
    got = client.infer("floats", inputs, parameters={"reduction": "mean"}).outputs()
    expect(np.array_equal(got["a"].array[0], (table[1] + table[2]) / F32(2)), "mean of a")
    lengths = kjt([0] * 7, [1] * 7)
    reply = client.infer("mixed", lengths, outputs=[{"name": "embeddings"}])
    expect("needs one type; 'history' makes FP32 and" not in reply.error(), reply.error())
    expect("'history' makes FP32, 'wide' makes FP64" in reply.error(), reply.error())
    reply = client.infer("mixed", lengths, outputs=[{"name": "embeddings"}], parameters={"binary_data_output": True})
    expect("'history' makes FP32, 'half' makes FP16" in reply.error(), reply.error())
    joined = [Tensor("a.indices", np.array([[1]])), Tensor("b.indices", np.array([[1]])),
              Tensor("c.indices", np.array([[1]])), Tensor("d.indices", np.array([[1]]))]
    got = client.infer("floats", joined, outputs=[{"name": "embeddings"}], binary=True,
                       parameters={"output_datatype": "FP16", "binary_data_output": True})
    expect_equal(got.outputs()["embeddings"].datatype, "FP16")


def test_json_of_half_floats(client, features):
    """Asked in both ways in one request: side by side in JSON, by name in binary."""
    half, brain = features["halves"]
    ids = np.array([1, 5, 7, 2, 2])
    bags = {half.name: [ids[:2], ids[2:3]], brain.name: [ids[3:], ids[5:]]}
    inputs = kjt(ids, [2, 1, 2, 0])
    outputs = [{"name": "embeddings"}, {"name": half.name, "parameters": {"binary_data": True}}, {"name": brain.name}]
    got = client.infer("halves", inputs, outputs=outputs).outputs()
    want = {f.name: f.pool(bags[f.name], None) for f in (half, brain)}
    expect_equal([t.datatype for t in got.values()], ["FP32", "FP16", "FP32"])
    expect_equal(got["embeddings"].array.tolist(), np.concatenate(list(want.values()), 1).tolist())
    expect_equal(got[half.name].array.tolist(), want[half.name].astype(np.float16).tolist())
    expect_equal(got[brain.name].array.tolist(), want[brain.name].tolist())
    reply = client.infer("halves", inputs, parameters={"output_datatype": "BF16"}).expect(400)
    expect(f"'{half.name}' is BF16" in reply.error() and "binary" in reply.error(), reply.error())
    reply = client.infer("halves", inputs, outputs=outputs[:1], parameters={"binary_data_output": True}).expect(400)
    expect("'half' makes FP16, 'brain' makes BF16" in reply.error(), reply.error())


def test_counted_once(client):
    """A request is one request and one execution, whatever its features are."""

    def counters(model):
        return client.get(f"/v2/models/{model}/stats").json()["model_stats"][0]

    before, table = counters("floats"), counters("items")
    client.infer("floats", kjt([0] * 8, [2] * 4)).expect()
    after = counters("floats")
    expect_equal(after["execution_count"] - before["execution_count"], 1)
    expect_equal(after["inference_count"] - before["inference_count"], 4)
    expect_equal(after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"], 1)
    expect_equal(counters("items"), table)


def test_descriptions(client):
    metadata = client.get("/v2/models/mixed").json()
    expect_equal([t["name"] for t in metadata["inputs"]], ["values", "lengths", "stride_per_key", "weights"])
    expect_equal([(t["name"], t["datatype"], t["shape"]) for t in metadata["outputs"]],
                 [("history", "FP32", [-1, 16]), ("user.recent", "FP32", [-1, 16]),
                  ("half", "FP16", [-1, 6]), ("brain", "BF16", [-1, 8]), ("wide", "FP64", [-1, 3]),
                  ("codes", "FP32", [-1, 12]), ("cube", "FP32", [-1, 2, 3])])
    outputs = client.get("/v2/models/floats").json()["outputs"]
    expect_equal(outputs[-1], {"name": "embeddings", "datatype": "FP32", "shape": [-1, 40]})
    config = client.get("/v2/models/mixed/config").json()
    expect_equal([t["optional"] for t in config["input"]], [False, False, True, True])
    expect_equal(config["parameters"]["user.recent.model"], {"string_value": "items"})
    expect_equal(config["parameters"]["user.recent.reduction"], {"string_value": "sqrtn"})
    expect_equal(config["parameters"]["history.default_index"], {"string_value": "3"})
    expect_equal(client.get("/v2/models/mixed/ready").json(), {"name": "mixed", "ready": True})
    index = client.request("POST", "/v2/repository/index").json()
    expect("mixed" in [entry["name"] for entry in index], index)


def test_split(models, features, rng):
    """A request large enough to be split over two idle workers, across its tables; and one whose first
    feature is one giant bag, which is split by columns."""
    with Server("--config", models[0], "--workers", 2, "--inline-work-microseconds", 0) as server, \
            Client(server) as client:
        for lengths in ([1000] * 40, [30000, 0]):
            bags = {f.name: [rng.integers(0, len(f.table), n) for n in lengths] for f in features["floats"]}
            flat = [ids for own in bags.values() for ids in own]
            inputs = [Tensor("values", np.concatenate(flat)), Tensor("lengths", np.array([len(ids) for ids in flat]))]
            want = {f.name: f.pool(bags[f.name], None) for f in features["floats"]}
            whole = np.concatenate([rows.reshape(len(lengths), -1) for rows in want.values()], axis=1)
            for _ in range(5):
                got = client.infer("floats", inputs, binary=True, outputs=[
                    {"name": n} for n in [*want, "embeddings"]], parameters={"binary_data_output": True}).outputs()
                for name, rows in (want | {"embeddings": whole}).items():
                    expect(np.array_equal(got[name].array, rows), f"{name} of {lengths[:2]}")


@pytest.fixture(scope="module", name="models")
def make(shared_directory, rng):
    """The configuration, and the features of each collection."""
    return make_models(rng, shared_directory)


@pytest.fixture(scope="module", name="features")
def features_of(models):
    return models[1]


@pytest.fixture(scope="module", name="server")
def serve(models):
    with Server("--config", models[0]) as server:
        yield server
