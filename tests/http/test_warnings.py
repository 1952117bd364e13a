"""What used to be answered with other numbers than meant, without a word: parameters that nobody knows, and
FP32 weights, which only KeyedJaggedTensor's layout took for every table."""

import json

import numpy as np
import pytest

from harness import Server, expect, expect_equal, write_json
from oracle import Rules, pool
from table_files import random_rows
from v2 import Tensor, bf16_from_f32, f32_from_bf16

F32, F16 = np.float32, np.float16
IDS = [[0, 2, 5], [1, 1, 4]]
WEIGHTS = [[0.5, -1.25, 2.0], [1.0, 0.1, 3.0]]
INDICES = Tensor("indices", np.array(IDS))


@pytest.fixture(name="server", scope="module")
def serve(shared_directory, rng):
    """Tables of every kind of numbers, and a collection of a mean and a weighted feature."""
    rows = rng.standard_normal((30, 5)).astype(F32)
    tables = {"f32": (rows, {}), "f16": (rows.astype(F16), {}),
              "bf16": (bf16_from_f32(rows), {"datatype": "BF16"})}
    for row_format in ("int8", "int4_f16_front", "f8_e4m3_scaled"):
        tables[row_format] = (random_rows(rng, row_format, 5)[0],
                              {"row_format": row_format, "row_elements": 5})
    models = []
    for name, (table, keys) in tables.items():
        np.save(shared_directory / f"{name}.npy", table)
        models.append({"name": name, "path": f"{name}.npy"} | keys)
    models.append({"name": "mixed", "features": [
        {"name": "average", "model": "f32", "reduction": "mean"},
        {"name": "half", "model": "f16"}, {"name": "codes", "model": "int8"}]})
    write_json(shared_directory / "config.json", {"models": models})
    with Server("--config", shared_directory / "config.json") as server:
        yield server


def infer(client, model, inputs, **parameters):
    """The reply to a request of JSON alone."""
    return client.infer(model, inputs, parameters=parameters)


def rows_of(client, model):
    """What the server has in its table, as f32."""
    ids = [Tensor("indices", np.arange(30)[:, None])]
    return infer(client, model, ids, output_datatype="FP32").embeddings()


def forms():
    """The same two bags in every form."""
    flat, weights = np.ravel(IDS), np.ravel(WEIGHTS).astype(F32)
    factors = Tensor("per_sample_weights", weights)
    yield [INDICES, Tensor("per_sample_weights", np.array(WEIGHTS, F32))]
    yield [Tensor("indices", flat), Tensor("offsets", np.array([0, 3])), factors]
    yield [Tensor("indices", flat), Tensor("segment_ids", np.repeat([0, 1], 3)), factors]


@pytest.mark.parametrize("model",
                         ["f32", "f16", "bf16", "int8", "int4_f16_front", "f8_e4m3_scaled"])
def test_f32_weights(client, model):
    table = rows_of(client, model)
    want = pool(table, [np.array(b) for b in IDS], [np.array(w, F32) for w in WEIGHTS],
                Rules("sum", None, -1))
    for inputs in forms():
        got = infer(client, model, inputs, output_datatype="FP32").embeddings()
        expect(np.array_equal(got, want), f"{model}: {got} instead of {want}")
    if model in ("f16", "bf16"):
        own = bf16_from_f32 if model == "bf16" else (lambda values: values.astype(F16))
        weights = Tensor("per_sample_weights", own(np.array(WEIGHTS, F32)),
                         "FP16" if model == "f16" else "BF16")
        exact = weights.array.astype(F32) if model == "f16" else f32_from_bf16(weights.array)
        want = pool(table, [np.array(b) for b in IDS], list(exact), Rules("sum", None, -1))
        reply = client.infer(model, [INDICES, weights], binary=["per_sample_weights"],
                             parameters={"output_datatype": "FP32"})
        expect(np.array_equal(reply.embeddings(), want), f"{model}: weights of its own type")


def test_a_mean_beside_weighted_features(client):
    """All of it as JSON: the mean takes no weights, the others have their own."""
    weights = np.array(WEIGHTS, F32)
    inputs = [Tensor(f"{name}.indices", np.array(IDS)) for name in ("average", "half", "codes")]
    inputs += [Tensor(f"{name}.per_sample_weights", weights) for name in ("half", "codes")]
    got = infer(client, "mixed", inputs, output_datatype="FP32").outputs()
    bags = [np.array(b) for b in IDS]
    for feature, model, factors in (("average", "f32", None), ("half", "f16", list(weights)),
                                    ("codes", "int8", list(weights))):
        rules = Rules("mean" if factors is None else "sum", None, -1)
        want = pool(rows_of(client, model), bags, factors, rules)
        expect(np.array_equal(got[feature].array, want), f"{feature}: {got[feature].array}")


# ---- unknown parameters -----------------------------------------------------------------------
def warnings_of(reply):
    return reply.expect().header()[0].get("parameters", {}).get("warnings")


@pytest.mark.parametrize("binary", [False, True])
def test_unknown_parameters_are_told(client, binary):
    request = {"binary_data_output": binary, "reducton": "mean", "paddingidx": 2}
    for _ in range(3):  # the JSON header is known from the second time on
        reply = client.infer("f32", [INDICES], binary=binary, parameters=request)
        expect_equal(warnings_of(reply), [
            "parameter 'reducton' is unknown and changes nothing; did you mean 'reduction'?",
            "parameter 'paddingidx' is unknown and changes nothing; did you mean 'padding_idx'?"])
        expect_equal(reply.embeddings().shape, (2, 5))


def test_warnings_stand_beside_explanations(client):
    reply = infer(client, "f32", [INDICES], explain=True, exlpain=True)
    expect_equal([b["rows"] for b in reply.json()["parameters"]["explain"][0]["bags"]], [3, 3])
    expect_equal(warnings_of(reply), ["parameter 'exlpain' is unknown and changes nothing; did you "
                                      "mean 'explain'?"])


def test_nothing_to_warn_of(client):
    """What Triton's clients and the KServe SDK add changes no reply."""
    known = {"reduction": "mean", "padding_idx": 1, "timeout": 10**7, "explain": False,
             "output_datatype": "FP32", "sequence_id": 7, "sequence_start": True,
             "sequence_end": False, "priority": 1, "binary_data_output": False}
    reply = client.infer("f32", [INDICES], parameters=known, model_name="f32", model_version="1")
    expect("parameters" not in reply.expect().json(), reply.body)


@pytest.mark.parametrize("binary", [False, True])
def test_what_stands_elsewhere_is_told(client, binary):
    """Keys of the request and of its tensors, and tensors' parameters: ignored, and told."""
    entry = INDICES.description() | {"datatyp": "INT64", "parameters": {"reduction": "mean", "szie": 1}}
    raw = INDICES.raw() if binary else b""
    entry |= {} if binary else {"data": np.ravel(IDS).tolist()}
    entry["parameters"] |= {"binary_data_size": len(raw)} if binary else {}
    request = {"reduction": "mean", "x": {"reduction": {"y": [1]}}, "inputs": [entry],
               "outputs": [{"name": "embeddings", "binary_data": False,
                            "parameters": {"binary_data": binary, "classification": 3}}]}
    header = json.dumps(request).encode()
    headers = {"Inference-Header-Content-Length": str(len(header))} if binary else {}
    want = [
        "key 'reduction' changes nothing here; it must be in the request's \"parameters\"",
        "key 'x' is unknown and changes nothing; did you mean 'id'?",
        "input 'indices': key 'datatyp' is unknown and changes nothing; did you mean 'datatype'?",
        "input 'indices': parameter 'reduction' changes nothing here; it must be in the request's "
        "\"parameters\"",
        "input 'indices': parameter 'szie' is unknown and changes nothing; did you mean "
        "'binary_data_size'?",
        "output 'embeddings': key 'binary_data' is unknown and changes nothing; did you mean 'name'?",
        "output 'embeddings': parameter 'classification' is unknown and changes nothing; did you "
        "mean 'binary_data'?"]
    for _ in range(3):
        reply = client.request("POST", "/v2/models/f32/infer", header + raw, headers)
        expect_equal(warnings_of(reply), want)
        expect_equal(reply.embeddings().shape, (2, 5))


def test_warnings_are_bounded_and_escaped(client):
    names = ['a"\\\n\u00e9' + str(i) for i in range(100)]
    body = {"inputs": [INDICES.description() | {"data": np.ravel(IDS).tolist()}],
            "parameters": dict.fromkeys(names, 1)}
    reply = client.request("POST", "/v2/models/f32/infer", json.dumps(body))
    found = warnings_of(reply)
    expect_equal(len(found), 16)
    expect("\u00e90" in found[0], found[0])
