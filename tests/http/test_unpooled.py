"""Rows that are not pooled (reduction none): their bits, shapes, what stands in the place of entries that are not
there, beside pooled features, and what is refused. tests/features compares random requests."""

import numpy as np
import pytest

from harness import Server, expect, expect_equal, write_json
from v2 import Client, Tensor, bf16_from_f32

F32 = np.float32
ROWS = 40
BINARY = {"binary_data_output": True}
NONE = {"reduction": "none"} | BINARY


def random_bits(rng, shape, words):
    """Every bit is random: signs of zeros and payloads of NaNs, too."""
    return rng.integers(0, np.iinfo(words).max, shape, words, endpoint=True)


def make(rng, folder):
    tables = {"bits": random_bits(rng, (ROWS, 5), np.uint32).view(F32),
              "halves": random_bits(rng, (ROWS, 64), np.uint16).view(np.float16),
              "wide": random_bits(rng, (ROWS, 3), np.uint64).view(np.float64),
              "bytes": random_bits(rng, (ROWS, 2, 3), np.uint8),
              "numbers": rng.standard_normal((ROWS, 7)).astype(F32),
              "brain": bf16_from_f32(rng.standard_normal((ROWS, 7)).astype(F32))}
    tables["bits"][3, :2] = [-0.0, 0.0]
    for name, table in tables.items():
        np.save(folder / f"{name}.npy", table)
    keys = np.array([-5, 9, 2**62, 0], np.int64)
    np.save(folder / "keys.npy", keys)
    np.save(folder / "keyed.npy", tables["numbers"][:4])
    none = {"reduction": "none"}
    models = [{"name": name, "path": f"{name}.npy"} for name in ("bits", "halves", "wide", "bytes", "numbers")]
    models += [{"name": "brain", "path": "brain.npy", "datatype": "BF16"} | none,
               {"name": "mapped", "path": "bits.npy", "load": "map"} | none,
               {"name": "keyed", "path": "keyed.npy", "keys": "keys.npy", "missing": "skip", "padding_idx": 9} | none,
               {"name": "mixed", "features": [
                   {"name": "history", "model": "numbers"} | none,
                   {"name": "sum", "model": "numbers"},
                   {"name": "keys", "model": "keyed"},
                   {"name": "mean", "model": "brain", "reduction": "mean"}]}]
    return write_json(folder / "config.json", {"models": models}), tables


def same_bits(got, want):
    expect_equal(got.shape, want.shape)
    expect_equal(np.ascontiguousarray(got).tobytes(), np.ascontiguousarray(want).tobytes())


@pytest.mark.parametrize("name", ["bits", "halves", "wide", "bytes"])
def test_copies_every_bit(client, tables, rng, name):
    for shape in ((), (0,), (1,), (7,), (2, 3), (2, 1, 5), (300, 4)):
        ids = rng.integers(0, ROWS, shape, np.int32 if len(shape) == 2 else np.int64)
        got = client.infer(name, [Tensor("indices", ids)], binary=True, parameters=NONE).embeddings()
        same_bits(got, tables[name][ids])


def test_stands_beside_pooled_features(client, tables):
    rows, keyed = tables["numbers"], tables["numbers"][:4]
    values, lengths = np.array([4, 4, 1, 2, 3, 0, 5, 6, 7]), np.array([2, 1, 2, 0, 1, 0, 1, 2])
    inputs = [Tensor("values", values), Tensor("lengths", lengths)]
    got = client.infer("mixed", inputs, parameters={"explain": True} | BINARY).expect()
    arrays = {name: tensor.array for name, tensor in got.outputs().items()}
    same_bits(arrays["history"], rows[[4, 4, 1]])
    expect_equal(arrays["sum"].tolist(), [(rows[2] + rows[3]).tolist(), [0] * 7])
    same_bits(arrays["keys"], keyed[[3]])
    expect_equal(arrays["mean"].shape, (2, 7))
    bags = {entry["name"]: entry["bags"] for entry in got.header()[0]["parameters"]["explain"]}
    expect_equal(bags["history"], [{"rows": 3, "default": False}])
    expect_equal(len(bags["sum"]), 2)
    strides = [Tensor("values", values), Tensor("lengths", np.array([3, 2, 0, 0, 0, 1, 3])),
               Tensor("stride_per_key", np.array([1, 3, 2, 1], np.int32))]
    arrays = {name: tensor.array for name, tensor in client.infer("mixed", strides).outputs().items()}
    expect_equal([len(arrays[name]) for name in ("history", "sum", "keys", "mean")], [3, 3, 1, 1])
    named = [Tensor("history.indices", values[:4].reshape(2, 2)), Tensor("sum.indices", values[:4].reshape(2, 2))]
    arrays = {name: tensor.array for name, tensor in client.infer("mixed", named).outputs().items()}
    expect_equal(arrays["history"].shape, (2, 2, 7))
    expect_equal(arrays["sum"].shape, (2, 7))
    arrays = client.infer("mixed", named, parameters=NONE).outputs()
    same_bits(arrays["sum"].array, rows[values[:4].reshape(2, 2)])
    arrays = client.infer("mixed", named, parameters=BINARY | {"reduction": "max"}).outputs()
    expect_equal(arrays["history"].array.tolist(), np.array(
        [np.maximum(rows[4], rows[4]), np.maximum(rows[1], rows[2])]).tolist())


def test_refuses(client):
    ids, offsets = Tensor("indices", np.array([1, 2])), Tensor("offsets", np.array([0, 2]))
    client.infer("numbers", [ids, offsets], parameters=NONE).expect(200)
    for inputs, words in (
            ([ids, Tensor("offsets", np.array([0, 3]))], "'offsets' at position 1 is 3"),
            ([ids, Tensor("offsets", np.array([0.5], F32))], "'offsets' has datatype FP32"),
            ([ids, Tensor("segment_ids", np.array([0, 0]))], "'segment_ids' cannot be combined with reduction none"),
            ([ids, Tensor("num_segments", np.array(2))], "'num_segments' cannot be combined with reduction none"),
            ([ids, Tensor("per_sample_weights", np.ones(2, F32))], "combined with reduction none"),
            ([ids, Tensor("lengths", np.array([2]))], "input 'lengths' is unknown"),
            ([ids, Tensor("stride_per_key", np.array([2]))], "input 'stride_per_key' is unknown"),
            ([offsets], "input 'indices' is missing"),
            ([Tensor("indices", np.array([[ROWS]]))], f"'indices' at position 0 is {ROWS}"),
            ([Tensor("indices", np.zeros((1,) * 32, np.int64))], "the output may have 32")):
        error = client.infer("numbers", inputs, parameters=NONE).expect(400).error()
        expect(words in error, error)
    kjt = [Tensor("values", np.array([1])), Tensor("lengths", np.array([1, 0, 0, 0]))]
    for inputs, options, words in (
            (kjt + [Tensor("weights", np.ones(1, F32))], {}, "'weights' cannot be combined with feature 'history'"),
            (kjt, {"outputs": [{"name": "embeddings"}]}, "'history' has reduction none"),
            (kjt + [Tensor("stride_per_key", np.array([1, 1, 1, 2]))], {}, "'stride_per_key' at position 3"),
            (kjt + [Tensor("stride_per_key", np.array([1, 1, 1]))], {}, "'stride_per_key' has 3 elements"),
            (kjt[:1] + [Tensor("stride_per_key", np.array([1, 1, 1, 1]))], {}, "'stride_per_key' needs"),
            ([Tensor("sum.indices", np.array([[1]])), Tensor("stride_per_key", np.array([1]))], {},
             "cannot be combined with 'stride_per_key'"),
            (kjt, {"parameters": {"reduction": "each"}}, 'must be "sum", "mean", "max", "sqrtn" or "none"')):
        error = client.infer("mixed", inputs, **options).expect(400).error()
        expect(words in error, error)


def test_describes_models_of_rows(client):
    metadata = client.get("/v2/models/bytes").json()
    expect("offsets" in [t["name"] for t in metadata["inputs"]], metadata)
    metadata = client.get("/v2/models/mapped").json()
    expect_equal([t["name"] for t in metadata["inputs"]], ["indices", "default_index"])
    expect_equal(metadata["outputs"], [{"name": "embeddings", "datatype": "FP32", "shape": [-1, 5]}])
    expect_equal(client.get("/v2/models/mapped/config").json()["parameters"]["reduction"], {"string_value": "none"})
    metadata = client.get("/v2/models/mixed").json()
    expect_equal([t["name"] for t in metadata["inputs"]], ["values", "lengths", "stride_per_key"])
    expect_equal([t["name"] for t in metadata["outputs"]], ["history", "sum", "keys", "mean"])
    config = client.get("/v2/models/mixed/config").json()["parameters"]
    expect_equal([config[f"{name}.reduction"]["string_value"] for name in ("history", "sum", "keys", "mean")],
                 ["none", "sum", "none", "mean"])


def test_splits_a_large_request(models, tables, rng):
    """Over two idle workers, past the caches."""
    ids = rng.integers(0, ROWS, 200_000)
    with Server("--config", models[0], "--workers", 2, "--inline-work-us", 0) as server, Client(server) as client:
        got = client.infer("halves", [Tensor("indices", ids)], binary=True, parameters=NONE).embeddings()
        same_bits(got, tables["halves"][ids])


@pytest.fixture(scope="module", name="models")
def make_models(shared_directory, rng):
    return make(rng, shared_directory)


@pytest.fixture(scope="module", name="tables")
def tables_of(models):
    return models[1]


@pytest.fixture(scope="module", name="server")
def serve(models):
    with Server("--config", models[0]) as server:
        yield server
