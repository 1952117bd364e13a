"""What a table's files say of it besides its numbers: keys beside values wherever they stand, and what
their metadata tells. Serving, inspecting and converting lose none of it, or refuse."""

import json

import numpy as np
import pytest

from harness import Server, expect, expect_equal, run, write_json
from keyed import hashed_row
from numerics import F32
from table_files import convert, read_safetensors, write_safetensors
from v2 import Client, Tensor

ROWS, COLUMNS = 12, 4
KEYS = np.arange(ROWS, dtype=np.uint64) * 1000 + 2 ** 63
VALUES = np.arange(ROWS * COLUMNS, dtype=F32).reshape(ROWS, COLUMNS)


def save_keyed(folder, values=VALUES, keys=KEYS):
    folder.mkdir()
    np.save(folder / "values.npy", values)
    np.save(folder / "keys.npy", keys)


def write_parts(folder, parts, metadata=None):
    """A set in parts, each a dictionary of tensors, and its index, whose path is returned."""
    folder.mkdir()
    for number, tensors in enumerate(parts):
        write_safetensors(folder / f"m-{number}.safetensors", tensors, metadata)
    index = folder / "m.safetensors.index.json"
    write_json(index, {"weight_map": {name: f"m-{number}.safetensors"
                                      for number, tensors in enumerate(parts) for name in tensors}})
    return index


def rows_of(server, model, ids):
    with Client(server) as client:
        return client.infer(model, [Tensor("indices", np.asarray(ids)[:, None])], binary=True).embeddings()


# ---- keys beside values ----------------------------------------------------------------------------

VALUES_ENTRY, KEYS_ENTRY = ("F32", VALUES), ("U64", KEYS)


@pytest.mark.parametrize("parts", [[{"values": VALUES_ENTRY, "keys": KEYS_ENTRY}],
                                   [{"values": VALUES_ENTRY}, {"keys": KEYS_ENTRY}]], ids=["one part", "two parts"])
def test_keys_in_parts(directory, parts):
    """Keys beside values are the table's in a set of parts as in one file: by its index or folder."""
    index = write_parts(directory / "set", parts)
    for path in (index, directory / "set"):
        report = json.loads(run("inspect", "--json", path).stdout)
        expect_equal((report["keyed"], report["rows"]), (True, ROWS), str(path))
        out = directory / f"{path.name}.safetensors"
        convert(path, out)
        expect_equal(read_safetensors(out)[1]["keys"].tolist(), KEYS.tolist())
    order = [7, 0, 11]
    with Server("--table", f"index={index}", "--table", f"folder={directory / 'set'}") as server:
        for model in ("index", "folder"):
            got = rows_of(server, model, KEYS[order])
            expect_equal(got.tolist(), VALUES[order].tolist(), model)


def test_an_unknown_tensor_of_a_set(directory):
    """It is named with what there is, as that of one file."""
    index = write_parts(directory / "set", [{"values": VALUES_ENTRY}, {"keys": KEYS_ENTRY}])
    done = run("serve", "--check", "--table", f"t={index}#value")
    expect_equal(done.returncode, 1, done.stderr)
    expect("there is no tensor 'value'; did you mean 'values'? There are values, keys" in done.stderr, done.stderr)


def test_other_keys_than_those_in_parts(directory):
    """Keys of a file of their own are taken in place of those beside the values, and values of another
    name have none."""
    tensors = {"values": VALUES_ENTRY, "keys": KEYS_ENTRY, "other": VALUES_ENTRY}
    index = write_parts(directory / "set", [tensors])
    np.save(directory / "own.npy", KEYS[::-1])
    with Server("--table", f"own={index},keys={directory / 'own.npy'}", "--table", f"dense={index}#other") as server:
        expect_equal(rows_of(server, "own", KEYS[:1]).tolist(), VALUES[-1:].tolist())
        expect_equal(rows_of(server, "dense", [3]).tolist(), VALUES[3:4].tolist())


# ---- a folder of models ----------------------------------------------------------------------------

def test_files_in_a_folder_of_models(directory):
    """What convert writes, and any archive, is a model there as NAME.npy is; a part of a set is not."""
    models = directory / "models"
    save_keyed(directory / "in")
    models.mkdir()
    convert("--row-format", "f8_e4m3", directory / "in", models / "small.v2.safetensors")
    np.savez(models / "pair.npz", keys=KEYS, values=VALUES)
    np.save(models / "dense.npy", VALUES)
    write_safetensors(models / "set-00001-of-00002.safetensors", {"values": VALUES_ENTRY})
    (models / "notes.txt").write_text("ours")
    with Server("--models", models) as server:
        with Client(server) as client:
            index = client.request("POST", "/v2/repository/index", b"{}").json()
        expect_equal(sorted((entry["name"], entry["state"]) for entry in index),
                     [("dense", "READY"), ("pair", "READY"), ("small.v2", "READY")])
        expect_equal(rows_of(server, "pair", KEYS[4:6]).tolist(), VALUES[4:6].tolist())
        expect_equal(rows_of(server, "small.v2", KEYS[4:6]).tolist(), [[16, 16, 18, 20], [20, 20, 22, 24]])
        skipped = [(event["level"], event["path"]) for event in server.events()
                   if event["event"] in ("skipped", "ignored")]
        expect_equal(skipped, [("info", str(models / "notes.txt")),
                               ("warning", str(models / "set-00001-of-00002.safetensors"))])


# ---- many tensors ----------------------------------------------------------------------------------

def test_many_tensors(directory):
    """Of 40,000 tensors, or arrays of an archive, the one table is found as soon as of a few."""
    count, zeros = 40_000, np.zeros(2, F32)
    tensors = {f"layer.{i}.norm": ("F32", zeros) for i in range(count // 2)}
    tensors |= {f"layer.{i}.norm_scale": ("F32", zeros) for i in range(count // 2 - 1)}
    header, at = {}, 0
    for name in tensors:
        header[name] = {"dtype": "F32", "shape": [2], "data_offsets": [at, at + 8]}
        at += 8
    header["table"] = {"dtype": "F32", "shape": [ROWS, COLUMNS], "data_offsets": [at, at + VALUES.nbytes]}
    text = json.dumps(header).encode()
    (directory / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(at) + VALUES.tobytes())
    np.savez(directory / "m.npz", **{name: zeros for name in list(tensors)[::20]}, table=VALUES)
    for name, listed in (("m.safetensors", count), ("m.npz", count // 20 + 1)):
        report = json.loads(run("inspect", "--json", directory / name).stdout)
        expect_equal((len(report["tensors"]), report["rows"]), (listed, ROWS), name)
    with Server("--table", f"t={directory / 'm.safetensors'}") as server:
        expect_equal(rows_of(server, "t", [5]).tolist(), VALUES[5:6].tolist())


# ---- what metadata says ----------------------------------------------------------------------------

def test_metadata_survives(directory):
    """Which updates a file includes, and whatever else its writer noted, is in what is made of it."""
    noted = {"updates_through": "7", "format": "pt", "trained": "on \u00fcbung"}
    path, out = directory / "in.safetensors", directory / "out.safetensors"
    write_safetensors(path, {"values": VALUES_ENTRY, "keys": KEYS_ENTRY}, noted)
    for flags, row_format in ((["--datatype", "FP16"], "plain"), (["--row-format", "int8"], "int8")):
        convert("--force", *flags, path, out)
        expect_equal(read_safetensors(out)[0], noted | {"row_format": row_format, "row_elements": str(COLUMNS)})
    convert("--force", f"{path},updates_through=9", out)
    expect_equal(read_safetensors(out)[0]["updates_through"], "9", "what is said beside the file")
    convert("--force", f"{path},updates_through=0", out)
    expect("updates_through" not in read_safetensors(out)[0], "none was to be said")
    convert("--force", write_parts(directory / "set", [{"keys": KEYS_ENTRY}, {"values": VALUES_ENTRY}], noted), out)
    expect_equal(read_safetensors(out)[0]["updates_through"], "7", "a set in parts")


# ---- an order of rows ------------------------------------------------------------------------------

def test_order_keeps_fallback_rows(directory):
    """The rows that stand in for missing keys stay the first, in their order."""
    save_keyed(directory / "in")
    np.save(directory / "counts.npy", np.arange(ROWS))
    out, rules = directory / "out.safetensors", "missing=hash,hash_rows=5"
    convert("--order-by", directory / "counts.npy", f"{directory / 'in'},{rules}", out)
    order = [*range(5), *range(ROWS - 1, 4, -1)]
    metadata, tensors, _ = read_safetensors(out)
    expect_equal(tensors["keys"].tolist(), KEYS[order].tolist())
    expect_equal(tensors["values"].tolist(), VALUES[order].tolist())
    expect_equal(metadata["fixed_rows"], "5")
    missing = np.arange(40)
    want = VALUES[[hashed_row(key, 5) for key in missing]].tolist()
    with Server("--table", f"in={directory / 'in'},{rules}", "--table", f"out={out},{rules}") as server:
        for model in ("in", "out"):
            expect_equal(rows_of(server, model, missing).tolist(), want, model)


def test_moved_fallback_rows_are_refused(directory):
    """A file whose rows were put in another order says from where on, and so does what is made of it:
    as fallback rows those would be others than the trainer's."""
    save_keyed(directory / "in")
    np.save(directory / "counts.npy", np.arange(ROWS))
    moved, again = directory / "moved.safetensors", directory / "again.safetensors"
    convert("--order-by", directory / "counts.npy", f"{directory / 'in'},missing=hash,hash_rows=2", moved)
    convert("--row-format", "int8", moved, again)
    words = ["hash_rows is 3", "the first 2", "--order-by", "missing=hash,hash_rows=3"]
    for path in (moved, again):
        convert(f"{path},missing=hash,hash_rows=3", directory / "no", code=2, words=words)
        done = run("serve", "--check", "--table", f"t={path},missing=hash,hash_rows=3")
        expect_equal(done.returncode, 1, done.stderr)
        for word in words:
            expect(word in done.stderr, f"{word!r} is not in {done.stderr!r}")
        done = run("serve", "--check", "--table", f"t={path},missing=hash,hash_rows=2")
        expect_equal(done.returncode, 0, done.stderr)
    features = {"features": [{"name": "a", "model": "t", "missing": "hash", "hash_rows": 3}]}
    config = write_json(directory / "config.json", {"models": [
        {"name": "t", "path": str(moved)}, {"name": "c", **features}]})
    done = run("serve", "--check", "--config", config)
    expect_equal(done.returncode, 1, done.stderr)
    expect("feature 'a'" in done.stderr and words[0] in done.stderr, done.stderr)


# ---- what a conversion refuses ---------------------------------------------------------------------

@pytest.mark.parametrize("keyed", [False, True])
def test_max_error_names_its_row(directory, keyed):
    """Row 3 has the larger mean error, row 7 the largest error of an element."""
    values = np.zeros((10, 64), F32)
    values[3] = 100 * np.sqrt(np.linspace(0, 1, 64))
    values[7, :2] = [200, 200 / 255 * 1.5]  # between two codes; all others have one of their own
    save_keyed(directory / "in", values, KEYS[:10])
    table = directory / "in" if keyed else directory / "in/values.npy"
    arguments = ["--row-format", "int8", "--report", directory / "r.json", table]
    convert(*arguments, directory / "o")
    worst = json.loads((directory / "r.json").read_text())["worst_rows"]
    expect_equal([row["row"] for row in worst[:2]], [3, 7])
    expect(worst[0]["max_error"] < worst[1]["max_error"], str(worst))
    most = worst[1]["max_error"]
    convert("--max-error", repr(most / 2), *arguments, directory / "no", code=1,
            words=[f"the largest error of an element is {most:.6g}, in row 7;"])


@pytest.mark.parametrize("flags", [[], ["--row-format", "int8"], ["--order-by", "counts.npy"]],
                         ids=["copied", "converted", "ordered"])
def test_duplicated_key_is_refused(directory, flags):
    """As serving does, and no file is left."""
    keys = KEYS.copy()
    keys[9] = keys[2]
    save_keyed(directory / "in", VALUES, keys)
    np.save(directory / "counts.npy", np.arange(ROWS))
    convert(*flags, directory / "in", directory / "out", code=2, cwd=directory,
            words=["keys.npy", f"key {keys[2]} is duplicated", "rows 2 and 9"])
    expect_equal(sorted(path.name for path in directory.iterdir()), ["counts.npy", "in"])
