"""Replies of encoded rows (output_row_format): every format, whatever the table, against NumPy.

A reply is decoded by the Python client, and compared with the bytes that tests/differential/numerics.py
encodes from what the server answers in FP32.
"""

import sys

import numpy as np
import pytest

from harness import ROOT, Server, expect, expect_equal, has_openblas, served, write_json
from table_files import random_rows
from v2 import Client, Tensor, bf16_from_f32

sys.path[:0] = [str(ROOT / "tests" / "differential"), str(ROOT / "proto" / "clients" / "python")]
import bagserve_client  # pylint: disable=wrong-import-position
from numerics import ROW_FORMATS, Storage  # pylint: disable=wrong-import-position

F32, F16, U8 = np.float32, np.float16, np.uint8
ROWS, COLUMNS = 60, 24
FORMATS = list(ROW_FORMATS)


@pytest.fixture(name="server", scope="module")
def serve(shared_directory, rng):
    """Tables of all kinds, a part by columns' worth of settings, and a collection over them."""
    rows = rng.standard_normal((ROWS, COLUMNS)).astype(F32)
    rows[3] = 0
    tables = {"f32": (rows, {}), "f16": (rows.astype(F16), {}), "bf16": (bf16_from_f32(rows), {"datatype": "BF16"}),
              "mapped": (rows, {"load": "map"}), "cube": (rows.reshape(ROWS, 2, 3, 4), {}),
              "default": (rows, {"output_row_format": "int8"}), "ints": (np.arange(20).reshape(10, 2), {}),
              "projected": (rows, {"projection": "matrix.npy"}),
              "long": (rng.standard_normal((4, 9000)).astype(F32), {})}
    np.save(shared_directory / "matrix.npy", rng.standard_normal((COLUMNS, 5)).astype(F32))
    for row_format in FORMATS:
        tables[row_format] = (random_rows(rng, row_format, COLUMNS, ROWS)[0],
                              {"row_format": row_format, "row_elements": COLUMNS})
    models = []
    for name, (table, keys) in tables.items():
        np.save(shared_directory / f"{name}.npy", table)
        models.append({"name": name, "path": f"{name}.npy"} | keys)
    models.append({"name": "all", "features": [
        {"name": "a", "model": "f32", "reduction": "mean"}, {"name": "b", "model": "int8"},
        {"name": "c", "model": "f16", "output_row_format": "int4"}]})
    write_json(shared_directory / "config.json", {"models": served(models)})
    with Server("--config", shared_directory / "config.json") as server:
        yield server


IDS = [Tensor("indices", np.array([[3, 1, 5], [2, 2, 0], [7, 3, 9]])), Tensor("offsets", np.array([0]))][:1]


def ask(client, model, inputs, row_format, binary=True, **parameters):
    outputs = parameters.pop("outputs", None)
    return client.infer(model, inputs, binary=binary, outputs=outputs,
                        parameters={"output_row_format": row_format, "binary_data_output": binary} | parameters)


def check(client, model, inputs, row_format, **parameters):
    """The bytes of the reply are the encoded FP32 reply's, and the client decodes them."""
    plain = client.infer(model, inputs, binary=True, parameters=parameters | {
        "output_datatype": "FP32", "binary_data_output": True}).outputs()
    reply = ask(client, model, inputs, row_format, **parameters)
    got, decoded = reply.outputs(), bagserve_client._decode(  # pylint: disable=protected-access
        {"Inference-Header-Content-Length": reply.headers["inference-header-content-length"]}, reply.body)
    storage = Storage("FP32", row_format)
    for entry in reply.header()[0]["outputs"]:
        name, want = entry["name"], plain[entry["name"]].array
        columns = entry["parameters"]["row_elements"]
        lead = entry["shape"][:-1]
        values = want.reshape(-1, columns)
        expect_equal((entry["datatype"], entry["parameters"]["row_format"], entry["shape"][-1]),
                     ("UINT8", row_format, storage.width(columns)))
        encoded = storage.encode(values).reshape(lead + [-1])
        expect(np.array_equal(got[name].array, encoded),
               f"{model}.{name} as {row_format}: {got[name].array[:1]} instead of {encoded[:1]}")
        back = storage.decode(encoded.reshape(len(values), -1), columns).reshape(lead + [columns])
        expect(np.array_equal(decoded[name], back), f"{row_format}: decoded {decoded[name][:1]} not {back[:1]}")


@pytest.mark.parametrize("row_format", FORMATS)
@pytest.mark.parametrize("model", ["f32", "f16", "bf16", "mapped", "cube", "int8_f16_front", pytest.param(
    "projected", marks=pytest.mark.skipif(not has_openblas(), reason="libopenblas0-pthread is not installed"))])
def test_every_format(client, model, row_format):
    if "e4m3" in row_format and model == "projected":
        row_format = "f8_e5m2"  # numbers beyond e4m3 would be NaN
    for reduction in ("sum", "mean", "max", "none"):
        if reduction == "none" and model in ("projected", row_format):  # copied, if stored so
            continue
        check(client, model, IDS, row_format, reduction=reduction)


@pytest.mark.parametrize("row_format", FORMATS)
def test_stored_rows_are_copied(client, shared_directory, row_format):
    """Rows that are not pooled and are stored in the format come bit for bit; an id without a row is zeros."""
    stored = np.load(shared_directory / f"{row_format}.npy")
    got = ask(client, row_format, IDS, row_format, reduction="none", padding_idx=2).embeddings()
    want = stored[IDS[0].array]
    want[1, :2] = 0
    expect(np.array_equal(got, want), f"{got} instead of {want}")
    other = "int8" if row_format != "int8" else "int8_f16_front"
    check(client, row_format, IDS, other, reduction="none")


def test_long_stored_rows_are_copied(directory, rng):
    """Codes that do not span their row: encoding them again would be other bytes, whatever the length."""
    for row_format, elements, params, mask in (("int8", 8193, 8, 0x1f), ("int4", 10001, 4, 0x33)):
        stored = random_rows(rng, row_format, elements, 4)[0]
        stored[:, :-params] &= mask
        np.save(directory / "long.npy", stored)
        path = f"{directory / 'long.npy'},row_format={row_format},row_elements={elements}"
        with Server("--table", f"t={path}") as server, Client(server) as client:
            got = ask(client, "t", [Tensor("indices", np.array([2, 0]))], row_format, reduction="none").embeddings()
            want = stored[[2, 0]]
            if row_format == "int4":
                want[:, -params - 1] &= 0x0f
            expect(np.array_equal(got, want), f"{row_format}: {got} instead of {want}")


@pytest.mark.parametrize("row_format, codes_end, mask", [("int4", -4, 0x0f), ("int2", -4, 0x03),
                                                         ("int4_f16_front", None, 0x0f)])
@pytest.mark.parametrize("settings", ["", ",load=map"])
def test_bits_without_an_element_are_zero(directory, rng, settings, row_format, codes_end, mask):
    """A row of 5 codes that is copied: bits behind the last one are no part of it, whatever the file has there."""
    stored = random_rows(rng, row_format, 5, 4)[0]
    last = (codes_end or 0) - 1
    stored[:, last] |= np.uint8(~mask & 0xff)
    np.save(directory / "t.npy", stored)
    path = f"{directory / 't.npy'},row_format={row_format},row_elements=5{settings}"
    stored[:, last] &= mask
    with Server("--table", f"t={path}") as server, Client(server) as client:
        indices = [Tensor("indices", np.arange(4))]
        for parameters in ({}, {"partial": True}):
            reply = ask(client, "t", indices, row_format, reduction="none", **parameters)
            got = reply.outputs()["embeddings"].array
            expect(np.array_equal(got, stored), f"{parameters}: {got} instead of {stored}")


def test_zero_rows_stay_zeros(client):
    for row_format in FORMATS:
        reply = ask(client, "f32", [Tensor("indices", np.array([[3], [3]]))], row_format)
        rows = bagserve_client.decode_rows(reply.embeddings(), row_format, COLUMNS)
        expect(not rows.any(), f"{row_format}: {rows}")


def test_json(client):
    binary = ask(client, "f32", IDS, "int8")
    reply = ask(client, "f32", IDS, "int8", binary=False)
    entry = reply.json()["outputs"][0]
    expect_equal(entry["parameters"], {"row_format": "int8", "row_elements": COLUMNS})
    expect(np.array_equal(reply.embeddings(), binary.embeddings()), "JSON")


def test_collections(client):
    inputs = [Tensor("values", np.array([1, 2, 3, 4, 5, 6])), Tensor("lengths", np.array([1, 1, 2, 0, 0, 2]))]
    for row_format in ("int8", "int4_f16_front", "int8_symmetric", "int2"):
        check(client, "all", inputs, row_format)
        outputs = [{"name": "embeddings"}, {"name": "b"}]
        reply = ask(client, "all", inputs, row_format, outputs=outputs)
        plain = client.infer("all", inputs, binary=True, outputs=[outputs[0]], parameters={
            "output_datatype": "FP32", "binary_data_output": True}).embeddings()
        expect_equal(reply.header()[0]["outputs"][0]["parameters"]["row_elements"], 3 * COLUMNS)
        expect(np.array_equal(reply.embeddings(), Storage("FP32", row_format).encode(plain)), row_format)
    # The features' own formats: c has one, and they cannot stand side by side.
    outputs = client.infer("all", inputs, binary=True).outputs()
    expect_equal({name: tensor.array.dtype for name, tensor in outputs.items()},
                 {"a": np.dtype(F32), "b": np.dtype(F32), "c": np.dtype(U8)})
    error = client.infer("all", inputs, binary=True, outputs=[{"name": "embeddings"}]).expect(400).error()
    expect("needs one row format; 'a' has plain, 'c' has int4" in error, error)


def test_a_model_with_a_format_of_its_own(client):
    metadata = client.get("/v2/models/default").json()
    expect_equal((metadata["outputs"][0]["datatype"], metadata["outputs"][0]["shape"]), ("UINT8", [-1, COLUMNS + 8]))
    config = client.get("/v2/models/default/config").json()
    expect_equal(config["parameters"]["output_row_format"]["string_value"], "int8")
    rows = client.infer("default", IDS, binary=True).embeddings()
    expect(np.array_equal(rows, ask(client, "f32", IDS, "int8").embeddings()), "rows")
    plain = client.infer("f32", IDS, binary=True).embeddings()
    for parameters in ({"output_row_format": "plain"}, {"output_datatype": "FP32"}):
        got = client.infer("default", IDS, binary=True, parameters=parameters).embeddings()
        expect(np.array_equal(got, plain), f"{parameters}: {got}")


def test_long_rows(client):
    check(client, "long", [Tensor("indices", np.array([[0], [3], [1]]))], "int8")


@pytest.mark.parametrize("parameters, words", [
    ({"output_row_format": "int9"}, ["output_row_format", "int9", "int8"]),
    ({"output_row_format": 8}, ["must be a string"]),
    ({"output_row_format": "int8", "output_datatype": "FP16"}, ["output_datatype FP16 cannot be combined"]),
    ({"output_row_format": "int8", "output_datatype": "BF16"}, ["output_datatype BF16"]),
    ({"output_row_format": "int8", "partial": True}, ["cannot be combined with partial"]),
    ({"output_row_format": "int8", "partial": True, "reduction": "none"}, ["not pooled as they are stored", '"plain"']),])
def test_bad_requests(client, parameters, words):
    error = client.infer("f32", IDS, parameters=parameters).expect(400).error()
    for word in words:
        expect(word in error, error)


def test_integers_have_none(client, shared_directory):
    error = ask(client, "ints", IDS, "int8").expect(400).error()
    expect("INT64" in error and "output_row_format" in error, error)
    client.infer("ints", IDS, parameters={"output_row_format": "plain"}).expect(200)


def test_split_requests(client):
    """Large replies, which several workers encode, or one in several pieces."""
    rng = np.random.default_rng(5)
    inputs = [Tensor("indices", rng.integers(0, ROWS, (20000, 1)))]
    for model, reduction in (("f32", "sum"), ("f16", "none"), ("mapped", "none")):
        check(client, model, inputs, "int8", reduction=reduction)
