"""What would be answered with other numbers than meant: parameters and keys that nobody knows are told."""

import json

import numpy as np
import pytest

from harness import Server, expect, expect_equal, write_json
from v2 import Client, Tensor

F32, F16 = np.float32, np.float16
IDS = [[0, 2, 5], [1, 1, 4]]
INDICES = Tensor("indices", np.array(IDS))


@pytest.fixture(name="server", scope="module")
def serve(shared_directory, rng):
    np.save(shared_directory / "f32.npy", rng.standard_normal((30, 5)).astype(np.float32))
    with Server("--table", f"f32={shared_directory}/f32.npy") as server:
        yield server


def infer(client, model, inputs, **parameters):
    """The reply to a request of JSON alone."""
    return client.infer(model, inputs, parameters=parameters)


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


UNUSED = "{} of {} indices are in no bag: by 'offsets', the bags begin at index {} and end before index {}"


@pytest.mark.parametrize("binary", [False, True])
def test_indices_in_no_bag_are_told(client, rng, binary):
    """Before the first bag, behind the last one, both, all of them, and none."""
    for count, offsets, last, unused in ((5, [0, 3, 4], True, (1, 5, 0, 4)), (5, [2, 3], False, (2, 5, 2, 5)),
                                         (5, [1, 1, 3], True, (3, 5, 1, 3)), (5, [0], True, (5, 5, 0, 0)),
                                         (5, [], False, (5, 5, 0, 0)), (5, [5], False, (5, 5, 5, 5)),
                                         (5, [0, 3, 5], True, None), (5, [0, 5], False, None), (5, [0], False, None),
                                         (0, [0], True, None), (0, [], False, None), (0, [0, 0], False, None)):
        for dtype in (np.int32, np.int64):
            inputs = [Tensor("indices", rng.integers(0, 30, count).astype(dtype)), Tensor("offsets", np.array(offsets, dtype))]
            for _ in range(2):
                reply = client.infer("f32", inputs, binary=binary, parameters={"include_last_offset": last})
                expect_equal(warnings_of(reply), [UNUSED.format(*unused)] if unused else None, (count, offsets, last))
    asked = [Tensor("indices", np.array([0, 1])), Tensor("offsets", np.array([1]))]
    told = warnings_of(client.infer("f32", asked, binary=binary, parameters={"reducton": "mean"}))
    expect_equal(told, ["parameter 'reducton' is unknown and changes nothing; did you mean 'reduction'?",
                        UNUSED.format(1, 2, 1, 2)])
    reply = client.infer("f32", asked, binary=binary, parameters={"reduction": "none"})
    expect_equal((warnings_of(reply), reply.embeddings().shape), (None, (2, 5)))


def test_indices_in_no_bag_of_features(directory, rng):
    """The first feature is named; KeyedJaggedTensor's layout refuses them."""
    np.save(directory / "t.npy", rng.standard_normal((30, 5)).astype(np.float32))
    write_json(directory / "c.json", {"models": [
        {"name": "t", "path": "t.npy", "include_last_offset": True},
        {"name": "c", "features": [{"name": n, "model": "t"} for n in "abc"]}]})
    with Server("--config", directory / "c.json") as server, Client(server) as client:
        inputs = [tensor for name, last in (("a", 2), ("b", 1), ("c", 0)) for tensor in (
            Tensor(f"{name}.indices", np.array([1, 2])), Tensor(f"{name}.offsets", np.array([0, last])))]
        expect_equal(warnings_of(client.infer("c", inputs)), ["feature 'b': " + UNUSED.format(1, 2, 0, 1)])
        reply = client.infer("c", [Tensor("values", np.array([1, 2])), Tensor("lengths", np.array([1, 0, 0]))])
        expect_equal(reply.status, 400)


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
        "key 'x' is unknown and changes nothing",
        "input 'indices': key 'datatyp' is unknown and changes nothing; did you mean 'datatype'?",
        "input 'indices': parameter 'reduction' changes nothing here; it must be in the request's "
        "\"parameters\"", "input 'indices': parameter 'szie' is unknown and changes nothing",
        "output 'embeddings': key 'binary_data' is unknown and changes nothing",
        "output 'embeddings': parameter 'classification' is unknown and changes nothing"]
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
