"""The wire contract: every endpoint, and the many ways to ask and be answered for `infer`."""

import json
import re

import numpy as np
import pytest

from example import BODY, EXAMPLE, INFER, INPUTS, WANT, check_rows, i64
from harness import Server, expect, expect_equal, write_json
from v2 import HEADER_LENGTH, Tensor, infer_body

WHOLE = [0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**62 + 1, 2**63 - 1, -(2**63)]


def each_row(model, count, **options):
    """One bag for each row of a table of `count` rows: the table itself as an answer."""
    return {"model": model, "inputs": [i64("indices", range(count), (count, 1))]} | options


# ---- describing -------------------------------------------------------------------------------
def test_root(client):
    reply = client.get("/").expect()
    expect_equal(reply.headers["content-type"], "application/json")
    value = reply.json()
    expect_equal(value["name"], "bagserve")
    expect(re.fullmatch(r"\d+\.\d+\.\d+", value["version"]), f"version {value['version']!r}")
    expect(value["isa"] in ("generic", "neon", "avx2", "avx512"), f"isa {value['isa']!r}")
    expect("/v2" in reply.body.decode(), "no link to /v2")


def test_server_metadata(client):
    reply = client.get("/v2").expect()
    expect_equal(reply.headers["content-type"], "application/json")
    value = reply.json()
    expect_equal(sorted(value), ["extensions", "generation", "instance", "name", "version"])
    expect_equal(value["name"], "bagserve")
    expect_equal(value["version"], client.get("/").json()["version"])
    expect("binary_tensor_data" in value["extensions"], f"extensions {value['extensions']}")
    for name in value["extensions"]:
        expect("shared_memory" not in name, f"the extension {name} does not exist")


def test_health(client):
    for path, want in (("/v2/health/live", {"live": True}), ("/v2/health/ready", {"ready": True})):
        reply = client.get(path).expect()
        expect_equal(reply.json(), want, path)
        expect_equal(reply.headers["content-type"], "application/json", path)


def test_models(client):
    names = client.get("/v2/models").expect().json()
    expect_equal(sorted(names), ["models"])
    expect_equal(sorted(names["models"]), sorted(MODELS))


def test_metadata(client):
    for name, (datatype, rows) in MODELS.items():
        value = client.get(f"/v2/models/{name}").expect().json()
        expect_equal(sorted(value), ["inputs", "name", "outputs", "parameters", "platform", "versions"], name)
        expect_equal(value["name"], name)
        expect_equal(value["versions"], ["1"])
        expect(isinstance(value["platform"], str) and value["platform"], "no platform")
        inputs = {i["name"]: i for i in value["inputs"]}
        expect_equal(sorted(inputs), ["default_index", "indices", "offsets", "per_sample_weights"])
        for entry in value["inputs"] + value["outputs"]:
            expect_equal(sorted(entry), ["datatype", "name", "shape"])
        expect_equal(inputs["indices"], {"name": "indices", "datatype": "INT64", "shape": [-1]})
        expect_equal(inputs["offsets"], {"name": "offsets", "datatype": "INT64", "shape": [-1]})
        weights = "FP32" if datatype in ("FP16", "BF16") else datatype
        expect_equal(inputs["per_sample_weights"], {"name": "per_sample_weights", "datatype": weights, "shape": [-1]})
        expect_equal(inputs["default_index"]["datatype"], "INT64")
        expect_equal(value["outputs"], [{"name": "embeddings", "datatype": datatype, "shape": [-1] + rows}], name)


def test_model_ready(client):
    for path in ("/v2/models/items/ready", "/v2/models/items/versions/1/ready"):
        expect_equal(client.get(path).expect().json(), {"name": "items", "ready": True}, path)


def test_version_in_path(client):
    whole = client.get("/v2/models/items").json()
    expect_equal(client.get("/v2/models/items/versions/1").expect().json(), whole)
    reply = client.infer("items", INPUTS, path="/v2/models/items/versions/1/infer")
    check_rows(reply.embeddings(), WANT)
    expect_equal(reply.json()["model_version"], "1")


def test_percent_encoded_name(client):
    for path in ("/v2/models/a%2Eb%2dc%5f1", "/v2/models/%61.b-c_1", "/v2/models/a.b-c_1"):
        expect_equal(client.get(path).expect().json()["name"], "a.b-c_1", path)


def test_query_is_ignored(client):
    expect_equal(client.get("/v2/health/live?x=1&y=%zz").expect().json(), {"live": True})
    check_rows(client.infer("items", INPUTS, path=INFER + "?a=b/c").embeddings(), WANT)


def test_head(client):
    for path in ("/", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models",
                 "/v2/models/items", "/v2/models/items/ready"):
        got, want = client.request("HEAD", path), client.get(path)
        expect_equal((got.status, got.body), (200, b""), path)
        for name in ("content-type", "content-length"):
            expect_equal(got.headers.get(name), want.headers[name], f"{path}: {name}")


# ---- replies ----------------------------------------------------------------------------------
def test_json_reply(client):
    reply = client.request("POST", INFER, BODY).expect()
    expect_equal(reply.headers["content-type"], "application/json")
    expect_equal(reply.headers["content-length"], str(len(reply.body)))
    expect(HEADER_LENGTH.lower() not in reply.headers, "a header length beside plain JSON")
    value = reply.json()
    expect_equal(sorted(value), ["model_name", "model_version", "outputs"])
    expect_equal(value["model_name"], "items")
    expect_equal(value["model_version"], "1")
    output, = value["outputs"]
    expect_equal(sorted(output), ["data", "datatype", "name", "shape"])
    expect_equal([output["name"], output["datatype"], output["shape"]], ["embeddings", "FP32", [2, 2]])
    check_rows(np.array(output["data"], np.float32), WANT.ravel())


def test_binary_reply(client):
    reply = client.infer("items", INPUTS, binary=True, parameters={"binary_data_output": True}, id="b").expect()
    expect_equal(reply.headers["content-type"], "application/octet-stream")
    expect_equal(reply.headers["content-length"], str(len(reply.body)))
    value, raw = reply.header()
    expect_equal(sorted(value), ["id", "model_name", "model_version", "outputs"])
    expect_equal(value["outputs"], [{"name": "embeddings", "datatype": "FP32", "shape": [2, 2],
                                     "parameters": {"binary_data_size": 16}}])
    expect_equal(raw, WANT.tobytes())


def test_id(client):
    for name in ("r1", "0", "a" * 300, "\"\\/\b\f\n\r\t", "für ☃ 😀", "\x7f", "\x00\x1f"):
        for binary in (False, True):
            reply = client.infer("items", INPUTS, id=name, parameters={"binary_data_output": binary})
            expect_equal(reply.expect().header()[0].get("id"), name)
    for body in (BODY, infer_body(INPUTS, id="")[0], infer_body(INPUTS, id=None)[0]):
        expect("id" not in client.request("POST", INFER, body).expect().json(), "an id")


def test_which_encoding(client):
    """A per-output binary_data overrides binary_data_output; neither means JSON."""
    for top in (None, False, True):
        for own in ("no outputs", "empty", None, False, True):
            options = {} if top is None else {"parameters": {"binary_data_output": top}}
            if own == "empty":
                options["outputs"] = []
            elif own != "no outputs":
                parameters = {} if own is None else {"parameters": {"binary_data": own}}
                options["outputs"] = [{"name": "embeddings"} | parameters]
            reply = client.infer("items", INPUTS, **options)
            want = own if isinstance(own, bool) else bool(top)
            check_rows(reply.embeddings(), WANT)
            expect_equal(HEADER_LENGTH.lower() in reply.headers, want, f"binary {top} {own}")


# ---- requests ---------------------------------------------------------------------------------


def test_nulls_are_absent(client):
    request = json.loads(BODY) | {"id": None, "parameters": None, "outputs": None}
    check_rows(client.request("POST", INFER, json.dumps(request)).embeddings(), WANT)


def test_unknown_keys_are_ignored(client):
    request = json.loads(BODY) | {"model_name": "another", "model_version": "7", "x": {"y": [1]},
                                  "parameters": {"sequence_id": 3, "priority": "x"}}
    request["inputs"][0] |= {"parameters": {"content_type": "np"}, "z": 1}
    check_rows(client.request("POST", INFER, json.dumps(request)).embeddings(), WANT)


def test_keys_in_any_order(client):
    """`data` before the datatype and shape that say how to read it; white space anywhere."""
    text = ('\r\n{ "outputs" : [ ] ,\t"inputs" : [ {"data" : [ 0 ,\n2, 3 ,4 ] , "datatype":"INT32",'
            ' "shape" : [ 4 ] , "name" : "indices" } , {"data":[0,3],"name":"off\\u0073ets",'
            '"shape":[2],"datatype":"INT64"} ] } \n ')
    check_rows(client.request("POST", INFER, text).embeddings(), WANT)


def test_header_names_in_any_case(client):
    body, headers = infer_body(INPUTS, binary=True)
    for change in (str.lower, str.upper, str.title):
        changed = {change(name): value for name, value in headers.items()}
        check_rows(client.request("POST", INFER, body, changed).embeddings(), WANT)


def test_content_types(client):
    for kind in ("application/json", "text/plain", "application/json; charset=utf-8",
                 "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        reply = client.request("POST", INFER, BODY, {"Content-Type": kind})
        check_rows(reply.embeddings(), WANT)


def test_accept_encoding_is_no_order(client):
    reply = client.request("POST", INFER, BODY, {"Accept-Encoding": "gzip, deflate, br"})
    expect("content-encoding" not in reply.headers, "compressed without being configured")
    check_rows(reply.embeddings(), WANT)


# ---- numbers ----------------------------------------------------------------------------------
def raw_numbers(reply):
    text = re.search(rb'"data":\[(.*?)\]', reply.expect().body).group(1).decode()
    return text.split(",")


def test_whole_numbers_are_exact(client):
    numbers = raw_numbers(client.infer(**each_row("whole", len(WHOLE))))
    expect_equal(numbers, [str(v) for v in WHOLE])
    numbers = raw_numbers(client.infer(**each_row("natural", 3)))
    expect_equal(numbers, ["0", str(2**63), str(2**64 - 1)])
    weights = Tensor("per_sample_weights", np.array([[2**62 + 1]], np.int64))
    reply = client.infer("whole", [i64("indices", [[1]]), weights])
    expect_equal(raw_numbers(reply), [str(2**62 + 1)])


def test_special_floats(client):
    reply = client.infer(**each_row("special", 3))
    expect_equal(raw_numbers(reply), ["NaN", "Infinity", "-Infinity"])
    body = infer_body([i64("indices", [0, 2, 3, 4]), i64("offsets", [0, 1, 2, 3]), Tensor(
        "per_sample_weights", np.array([np.nan, np.inf, -np.inf, 1], np.float32))])[0]
    expect(b"[NaN,Infinity,-Infinity,1.0]" in body, "the tokens are not sent")
    got = client.request("POST", INFER, body).embeddings()
    check_rows(got, [[np.nan] * 2, [-np.inf] * 2, [np.inf, -np.inf], EXAMPLE[4]])


# ---- the server under test --------------------------------------------------------------------
# name -> (datatype, dimensions of a row); filled from the tables.
MODELS = {}


def tables():
    return {"items": EXAMPLE, "a.b-c_1": EXAMPLE, "half": EXAMPLE.astype(np.float16),
            "cube": np.arange(30, dtype=np.int16).reshape(5, 2, 3), "whole": np.array(WHOLE, np.int64),
            "natural": np.array([0, 2**63, 2**64 - 1], np.uint64).reshape(3, 1),
            "special": np.array([[np.nan], [np.inf], [-np.inf]], np.float32)}


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    models = []
    for name, table in tables().items():
        np.save(shared_directory / f"{name}.npy", table)
        models.append({"name": name, "path": str(shared_directory / f"{name}.npy")})
        MODELS[name] = Tensor(name, table).datatype, list(table.shape[1:])
    config = write_json(shared_directory / "config.json", {"models": models})
    with Server("--config", config) as server:
        yield server
