"""Quantised rows: every row format against NumPy, files that describe themselves, and what is rejected.

The rows are made here, byte by byte, as config/examples/README.md describes them.
"""

import json

import numpy as np
import pytest

from harness import Server, expect, expect_equal, run, write_json
from numerics import F16, F32, ROW_FORMATS, U8
from table_files import random_rows, write_safetensors
from v2 import Client, Tensor

ROWS = 30


def check_rows(client, model, rows):
    """Every row alone, bit for bit, and a weighted sum of all."""
    ids = np.arange(ROWS, dtype=np.int64)[:, None]
    got = client.infer(model, [Tensor("indices", ids)], binary=True).embeddings()
    expect(np.array_equal(got, rows), f"{model}: rows are {got[:2]} instead of {rows[:2]}")


def test_files_that_describe_themselves(directory, rng):
    options = []
    wanted = {}
    for row_format in ROW_FORMATS:
        stored, wanted[row_format] = random_rows(rng, row_format, 9)
        path = directory / f"{row_format}.safetensors"
        write_safetensors(path, {"values": ("U8", stored)}, {"row_format": row_format, "row_elements": "9"})
        options += ["--table", f"{row_format}={path}"]
    stored, wanted["typed"] = random_rows(rng, "f8_e4m3", 9)
    write_safetensors(directory / "typed.safetensors", {"rows": ("F8_E4M3", stored)}, {})
    options += ["--table", f"typed={directory}/typed.safetensors,row_elements=9"]
    with Server(*options) as server, Client(server) as client:
        for name, rows in wanted.items():
            check_rows(client, name, rows)


def rejected(words, *arguments):
    process = run("serve", "--check", *arguments)
    expect(process.returncode != 0, f"{arguments} are accepted")
    for word in words:
        expect(word in process.stderr, f"no {word!r} in {process.stderr!r}")


def test_layouts_are_not_taken_for_each_other(directory, rng):
    """Rows of another layout are rejected, and the layouts that have their width are named."""
    stored, _ = random_rows(rng, "int8_f16_front", 64)
    np.save(directory / "rows.npy", stored)
    table = f"rows={directory}/rows.npy,row_format="
    rejected(["row_format int8 needs row_elements", "68 bytes hold 60 as int8",
             "64 as int8_f16_front", "64 as f8_e4m3_scaled", "64 as int8_f16_back, 64 as int8_symmetric, "
             "66 as int8_symmetric_f16, 256 as int2, 256 as int2_f16_front; the file does not tell which"],
             "--table", table + "int8")
    rejected(["row_format int8: rows of 64 elements take 72 bytes", "have 68, as in int8_f16_front, "
             "f8_e4m3_scaled, f8_e5m2_scaled, int8_f16_back, int8_symmetric; the file does not tell which"], "--table", table + "int8,row_elements=64")
    rejected(["rows of 64 elements take 36 bytes"], "--table", table + "int4,row_elements=64")
    rejected(["row_elements is 64, but a row of the file has 68"], "--table",
            f"rows={directory}/rows.npy,row_elements=64")
    for elements in (0, -1, 1.5):
        rejected(["row_elements"], "--table", table + f"int8_f16_front,row_elements={elements}")
    np.save(directory / "narrow.npy", np.zeros((3, 4), U8))
    rejected(["rows of 4 bytes hold 4 as f8_e4m3, 4 as f8_e5m2"], "--table",
            f"rows={directory}/narrow.npy,row_format=int8")


def test_inspect_names_all_formats_of_a_width(directory, rng):
    """Whether or not one is configured; a file that tells its own has no others."""
    stored, _ = random_rows(rng, "int8_f16_back", 64)
    np.save(directory / "rows.npy", stored)
    text = run("inspect", directory / "rows.npy").stdout
    expect("a row has 60 as int8, 128 as int4, 68 as f8_e4m3" in text and "the file does not tell which" in text, text)
    text = run("inspect", f"{directory}/rows.npy,row_format=int8_f16_back,row_elements=64").stdout
    expect("rows of 64 elements take 68 bytes as int8_f16_front, f8_e4m3_scaled, f8_e5m2_scaled, int8_symmetric, too"
           in text, text)
    report = json.loads(run("inspect", "--json", directory / "rows.npy").stdout)
    expect({"row_format": "int8_symmetric_f16", "row_elements": 66} in report["possible_row_formats"], report)
    write_safetensors(directory / "t.safetensors", {"values": ("U8", stored)},
                      {"row_format": "int8_f16_back", "row_elements": "64"})
    text = run("inspect", directory / "t.safetensors").stdout
    expect("does not tell" not in text, text)


@pytest.mark.parametrize("load", ["copy", "map"])
def test_wrong_formats_are_warned_of(directory, rng, load):
    """Rows in another format of their width: their codes would be scales, and log lines say so."""
    stored, rows = random_rows(rng, "int8_f16_back", 64, count=3000)
    np.save(directory / "rows.npy", stored)
    table = f"rows={directory}/rows.npy,row_elements=64,load={load},row_format="
    with Server("--table", table + "int8_f16_back") as server, Client(server) as client:
        check_rows(client, "rows", rows[:30])
        expect("implausible" not in server.log(), server.log())
    with Server("--table", table + "int8_f16_front") as server:
        lines = [line for line in server.log().splitlines() if "implausible rows" in line]
        expect(len(lines) == 1, server.log())
        for word in ('"model":"rows"', "%", '"row_format":"int8_f16_front"', "int8_f16_back, int8_symmetric"):
            expect(word in lines[0], lines[0])
    # One row in 1,000 may have such a scale.
    stored[:3, -4:-2] = np.array([np.inf], np.float16).view(np.uint8)
    np.save(directory / "rows.npy", stored)
    if load == "copy":
        with Server("--table", table + "int8_f16_back") as server:
            expect("implausible" not in server.log(), server.log())


def test_configuration_must_agree_with_the_file(directory, rng):
    stored, _ = random_rows(rng, "int4", 64)
    path = directory / "t.safetensors"
    write_safetensors(path, {"values": ("U8", stored)}, {"row_format": "int4", "row_elements": "64"})
    rejected(["row_format int4_f16_front: the file says that it is int4"], "--table",
            f"t={path},row_format=int4_f16_front")
    rejected(["row_elements 63: the file says that it has 64"], "--table", f"t={path},row_elements=63")
    write_safetensors(path, {"values": ("U8", stored)}, {"row_format": "int4"})
    rejected(["row_format int4 needs row_elements"], "--table", f"t={path}")


# ---- metadata -------------------------------------------------------------------------------------
def gauges(client, name):
    """The values of a gauge by model."""
    lines = client.get("/metrics").body.decode().splitlines()
    return {line.split('"')[1]: int(line.split()[-1]) for line in lines if line.startswith(name + "{")}


def shown(client, model):
    document = client.get(f"/v2/models/{model}").json()
    return [(t["name"], t["datatype"], t["shape"]) for t in document["inputs"]]


def test_metadata(directory, rng):
    """What there is of each table, in metadata, configuration and metrics."""
    np.save(directory / "codes.npy", random_rows(rng, "int4", 7)[0])
    np.save(directory / "cube.npy", np.zeros((5, 2, 3), F16))
    (directory / "users").mkdir()
    np.save(directory / "users" / "keys.npy", np.arange(9) * 1000)
    np.save(directory / "users" / "values.npy", np.zeros((9, 4), F32))
    write_json(directory / "config.json", {"models": [
        {"name": "codes", "path": "codes.npy", "row_format": "int4", "row_elements": 7},
        {"name": "cube", "path": "cube.npy"},
        {"name": "users", "path": "users", "spare_rows": 20},
        {"name": "all", "features": [{"name": "b", "model": "users"},
                                     {"name": "a", "model": "codes"}]}]})
    codes = {"rows": ROWS, "row_elements": 7, "datatype": "FP32", "row_format": "int4", "bytes": ROWS * 8,
             "keyed": False, "updates_through": 0}
    cube = {"rows": 5, "row_elements": 6, "datatype": "FP16", "row_format": "plain", "bytes": 60, "keyed": False,
            "updates_through": 0}
    with Server("--config", directory / "config.json") as server, Client(server) as client:
        users = client.get("/v2/models/users").json()["parameters"]
        expect(users["bytes"] > 9 * 16, users)
        expect_equal({**users, "bytes": 0},
                     {"rows": 9, "row_elements": 4, "datatype": "FP32", "row_format": "plain", "bytes": 0,
                      "keyed": True, "updates_through": 0, "forms": ["offsets", "packed", "segments"]})
        for name, facts in (("codes", codes), ("cube", cube)):
            found = client.get(f"/v2/models/{name}").json()["parameters"]
            expect_equal(found, facts | {"forms": ["offsets", "packed", "segments"]})
            strings = client.get(f"/v2/models/{name}/config").json()["parameters"]
            expect_equal({k: strings[k]["string_value"] for k in
                          ("rows", "row_elements", "row_format", "bytes", "forms", "form")},
                         {k: str(v) for k, v in facts.items() if k not in ("keyed", "updates_through", "datatype")} |
                         {"forms": "offsets packed segments", "form": "offsets"})
        facts = client.get("/v2/models/all").json()["parameters"]
        del users["forms"]
        expect_equal(facts, {"features": [{"name": "b", "model": "users", "version": "1"} | users,
                                          {"name": "a", "model": "codes", "version": "1"} | codes],
                             "b.keyed": True, "b.keys_datatype": "INT64",
                             "forms": ["lengths", "offsets", "features"]})
        strings = client.get("/v2/models/all/config").json()["parameters"]
        for key, value in {"features[0]": "b", "features[1]": "a", "a.model": "codes",
                           "a.rows": str(ROWS), "forms": "lengths offsets features"}.items():
            expect_equal(strings[key]["string_value"], value)
        for key in ("rows", "row_elements", "bytes"):
            expect_equal(gauges(client, f"bagserve_table_{key}"),
                         {"codes": codes[key], "cube": cube[key], "users": users[key]})


KINDS = {"INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "UINT8": U8,
         "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "FP32": F32, "FP64": float}


def check_as_perf_analyzer(client, model, rng):
    """Its checks of metadata and configuration, then what it generates: every input that is listed, each
    dimension that is open of a size of the user's, numbers of any kind. Returns the inputs."""
    metadata = client.get(f"/v2/models/{model}").json()
    config = client.get(f"/v2/models/{model}/config").json()
    expect_equal(config["max_batch_size"], 0)
    for side in ("input", "output"):
        expect_equal([(t["name"], t["data_type"], t["dims"]) for t in config[side]],
                     [(t["name"], "TYPE_" + t["datatype"], t["shape"]) for t in metadata[side + "s"]])
    inputs = []
    for tensor in metadata["inputs"]:
        shape = [size if size >= 0 else given for size, given in zip(tensor["shape"], (4, 3))]
        inputs.append(Tensor(tensor["name"], rng.integers(0, 100, shape) .astype(KINDS[tensor["datatype"]])))
    for binary in (True, False):
        outputs = [{"name": "embeddings", "parameters": {"binary_data": True}}]
        reply = client.infer(model, inputs, binary=binary, outputs=outputs)
        expect_equal(reply.embeddings().shape, (4, 5))
    return metadata["inputs"]


def test_every_listed_input_is_taken(directory, rng):
    """Of every datatype and row format, with every reduction: weights that cannot be used are not shown,
    and those of 16 bits, which JSON and most generators do not have, are shown as the FP32 that goes too."""
    tables = {name.lower(): (rng.integers(0, 50, (100, 5)).astype(kind), {}, name) for name, kind in KINDS.items()}
    tables["fp16"] = rng.standard_normal((100, 5)).astype(F16), {}, "FP32"
    tables["bf16"] = rng.integers(0, 2**14, (100, 5)).astype(np.uint16), {"datatype": "BF16"}, "FP32"
    for name in ROW_FORMATS:
        tables[name] = random_rows(rng, name, 5)[0], {"row_format": name, "row_elements": 5}, "FP32"
    models = []
    for name, (rows, keys, weights) in tables.items():
        np.save(directory / f"{name}.npy", rows)
        for reduction in ("sum", "mean", "max", "sqrtn"):
            if reduction == "sqrtn" and rows.dtype.kind != "f" and not keys:
                continue
            models.append({"name": f"{name}-{reduction}", "path": f"{name}.npy", "form": "packed",
                           "optional_inputs": "weights", "out_of_range": "skip", "reduction": reduction} | keys)
    models.append({"name": "fp16-weighted", "path": "fp16.npy", "form": "packed",
                   "optional_inputs": "weights", "out_of_range": "skip", "reduction": "mean", "weighted_mean": True})
    write_json(directory / "config.json", {"models": models})
    with Server("--config", directory / "config.json") as server, Client(server) as client:
        for model in models:
            name, _, reduction = model["name"].rpartition("-")
            listed = {t["name"]: t["datatype"] for t in check_as_perf_analyzer(client, model["name"], rng)}
            expect_equal(listed.pop("indices"), "INT64")
            weighs = reduction in ("sum", "sqrtn", "weighted")
            expect_equal(listed, {"per_sample_weights": tables[name][2]} if weighs else {}, model["name"])


def test_forms_that_are_shown(directory, rng):
    np.save(directory / "t.npy", rng.standard_normal((30, 5)).astype(F32))
    table = f"{directory}/t.npy,out_of_range=skip"
    with Server("--table", f"packed={table},form=packed,optional_inputs=none",
                "--table", f"weighted={table},form=packed,optional_inputs=weights",
                "--table", f"segments={table},form=segments",
                "--table", f"offsets={table},optional_inputs=none") as server, \
            Client(server) as client:
        indices, scalar = ("indices", "INT64", [-1, -1]), ("default_index", "INT64", [1])
        expect_equal(shown(client, "packed"), [indices])
        expect_equal(shown(client, "weighted"), [indices, ("per_sample_weights", "FP32", [-1, -1])])
        expect_equal(shown(client, "segments"), [
            ("indices", "INT64", [-1]), ("segment_ids", "INT64", [-1]),
            ("num_segments", "INT64", [1]), ("per_sample_weights", "FP32", [-1]), scalar])
        expect_equal(shown(client, "offsets"), [("indices", "INT64", [-1]), ("offsets", "INT64", [-1])])
        config = client.get("/v2/models/weighted/config").json()
        expect_equal([t["optional"] for t in config["input"]], [False, True])
        expect_equal(config["parameters"]["form"]["string_value"], "packed")
        for model in ("packed", "weighted"):
            check_as_perf_analyzer(client, model, rng)
        # All forms are taken, whichever is shown.
        ids = Tensor("indices", np.array([1, 2])), Tensor("offsets", np.array([0]))
        expect_equal(client.infer("packed", ids).embeddings().shape, (1, 5))
    rejected(["form", "offsets, packed, segments"], "--table", f"t={directory}/t.npy,form=bags")
