"""Tables with keys: single cases of their answers, every layout of their files, and what does not start. tests/features
asks them at random.
"""

import numpy as np
import pytest

from clients import bc
from harness import Server, expect, expect_equal, run, wait_until, write_json
from keyed import HASH_ROWS, MASK, POLICIES, Table
from table_files import write_safetensors
from v2 import Client, Tensor

ROWS, COLUMNS = 500, 6


# ---- models ---------------------------------------------------------------------------------------

def make_keys(rng):
    """Keys of every kind, none of them twice: 0 and -1, of 32 and of 64 bits."""
    keys = [0, MASK, 1, 2**63, 2**63 - 1, 2**32, 2**32 - 1, 5, MASK - 4]
    while len(keys) < ROWS:
        keys.append(int(rng.integers(0, 2**64, dtype=np.uint64)) if len(keys) % 3
                    else int(rng.integers(-2**31, 2**31)) & MASK)
        if keys[-1] in keys[:-1]:
            keys.pop()
    order = rng.permutation(ROWS)
    return np.array(keys, np.uint64)[order]


@pytest.fixture(scope="module", name="table")
def make_table(rng):
    return Table(make_keys(rng), rng.standard_normal((ROWS, COLUMNS)).astype(np.float32))


def make_config(directory, table):
    np.save(directory / "values.npy", table.values)
    np.save(directory / "keys.npy", table.keys.view(np.int64))
    np.save(directory / "dense.npy", table.values)
    models = [{"name": name, "path": "values.npy", "keys": "keys.npy", **rules} for name, rules in POLICIES.items()]
    models.append({"name": "dense", "path": "dense.npy", "out_of_range": "default",
                   "default_index": 3, "padding_idx": -1})
    np.save(directory / "tens.npy", np.array([[10], [20], [30], [40]], np.float32))
    np.save(directory / "tens_keys.npy", np.arange(4))
    both = {"path": "tens.npy", "default_index": 0, "padding_idx": 0}
    models.append(both | {"name": "both", "out_of_range": "default"})
    models.append(both | {"name": "both_keyed", "keys": "tens_keys.npy", "missing": "default"})
    models.append({"name": "both_pair", "features": [{"name": "a", "model": "both"}, {"name": "b", "model": "both"}]})
    models.append({"name": "quiet", "features": [  # has the model's hash_rows, and no use for them
        {"name": "a", "model": "hashing", "missing": "skip"}]})
    models.append({"name": "pair", "features": [
        {"name": "skip", "model": "skipping"}, {"name": "hash", "model": "hashing"},
        {"name": "own", "model": "failing", "missing": "default", "default_index": 5}]})
    return write_json(directory / "config.json", {"models": models})


@pytest.fixture(scope="module", name="server")
def serve(shared_directory, table):
    with Server("--config", make_config(shared_directory, table)) as server:
        yield server


# ---- answers --------------------------------------------------------------------------------------

def test_default_index_of_a_request(client, table):
    bags = [np.array([table.keys[3], 77778], np.uint64), np.array([], np.uint64)]
    for key, dtype in ((table.keys[8], np.uint64), (table.keys.view(np.int64)[9], np.int64)):
        reply = client.infer("defaulting", [
            Tensor("indices", np.concatenate(bags)), Tensor("offsets", np.array([0, 2])),
            Tensor("default_index", np.array([key], dtype))])
        model = POLICIES["defaulting"] | {"default_index": int(key) & MASK}
        expect_equal(reply.embeddings().tobytes(), table.pool(bags, None, model).tobytes())
    reply = client.infer("skipping", [Tensor("indices", np.array([[5]])),
                                      Tensor("default_index", np.array([77778]))]).expect(400)
    expect_equal(reply.error(), "'default_index' is 77778, a key that the table does not have")


def test_unknown_keys(client, table):
    indices = np.array([[int(table.keys[0]), 2**64 - 99]], np.uint64)
    reply = client.infer("failing", [Tensor("indices", indices)]).expect(400)
    expect_equal(reply.error(), "'indices' at position 1 is 18446744073709551517, a key that the "
                                "table does not have")
    reply = client.infer("failing", [Tensor("indices", indices.view(np.int64))]).expect(400)
    expect_equal(reply.error(), "'indices' at position 1 is -99, a key that the table does not "
                                "have")


# ---- requests' own words --------------------------------------------------------------------------

def test_parameters(server, client, table):
    missing = [Tensor("indices", np.array([[77778, 5]]))]
    ask = lambda model, **parameters: client.infer(model, missing, parameters=parameters)
    ask("skipping", missing="skip").expect(200)
    reply = ask("skipping", missing="error").expect(400)
    expect("position 0 is 77778" in reply.error(), reply.error())
    for model, parameters, words in [
            ("skipping", {"missing": "default"}, ['missing is "default"', '"skip"']),
            ("failing", {"missing": "skip"}, ['missing is "skip"', '"error" only']),
            ("skipping", {"missing": "never"}, ["missing", "never", "hash"]),
            ("skipping", {"missing": 1}, ["missing must be a string"]),
            ("skipping", {"out_of_range": "skip"}, ["out_of_range", "say missing"]),
            ("dense", {"missing": "error"}, ["missing", "say out_of_range"]),
            ("dense", {"padding_idx": "0"}, ["padding_idx must be an integer"]),
            ("skipping", {"padding_idx": "x"}, ["padding_idx must be an integer"]),
            ("skipping", {"padding_idx": 2**53 + 1}, ["padding_idx", "text of the digits"])]:
        reply = ask(model, **parameters).expect(400)
        for word in words:
            expect(word in reply.error(), reply.error())
    key = int(table.keys[table.keys > 2**53][0])
    bags = [np.array([key, 5], np.uint64)]
    reply = client.infer("skipping", [Tensor("indices", bags[0].reshape(1, 2))], parameters={"padding_idx": str(key)})
    want = table.pool(bags, None, {"missing": "skip", "padding_idx": key})
    expect_equal(reply.embeddings().tobytes(), want.tobytes())
    mine = bc.Client(f"127.0.0.1:{server.port}")
    for asked in (key, bags[0][0], str(key)):
        rows = mine.packed("skipping", bags[0].reshape(1, 2), padding_idx=asked)
        expect_equal(rows.tobytes(), want.tobytes())


# ---- documents ------------------------------------------------------------------------------------

def test_metadata(client):
    document = client.get("/v2/models/failing").json()
    expect_equal(document["parameters"]["keyed"], True)
    expect_equal(document["inputs"][0]["datatype"], "INT64")
    expect_equal(client.get("/v2/models/dense").json()["parameters"]["keyed"], False)
    expect_equal(client.get("/v2/models/pair").json()["parameters"]["hash.keyed"], True)
    config = client.get("/v2/models/hashing/config").json()["parameters"]
    expect_equal([config[key]["string_value"] for key in ("keyed", "missing", "hash_rows")],
                 ["true", "hash", str(HASH_ROWS)])
    expect("out_of_range" not in config, f"{config}")
    config = client.get("/v2/models/dense/config").json()["parameters"]
    expect_equal(config["keyed"], {"string_value": "false"})
    for model in ("pair", "both_pair"):
        facts = client.get(f"/v2/models/{model}").json()["parameters"]
        config = client.get(f"/v2/models/{model}/config").json()["parameters"]
        for feature in facts["features"]:
            name = feature["name"]
            expect_equal(config[name + ".keyed"]["string_value"], str(feature["keyed"]).lower())
            expect_equal(config.get(name + ".keys_datatype", {}).get("string_value"),
                         facts.get(name + ".keys_datatype"))


def missing_keys(client):
    return client.counted("bagserve_missing_keys_total", model="skipping")


def test_counters(client):
    before = missing_keys(client)
    client.infer("skipping", [Tensor("indices", np.array([[5, 77778, 77779]]))]).expect(200)
    client.infer("skipping", [Tensor("indices", np.array([[5, 77778]]))], parameters={"missing": "error"}).expect(400)
    expect_equal(missing_keys(client) - before, 2)
    stats = client.get("/v2/models/skipping/stats").json()["model_stats"][0]
    expect_equal(stats["missing_key_count"], missing_keys(client))


# ---- sources --------------------------------------------------------------------------------------

def write_sources(directory, table):
    """Every layout, as --table names it."""
    keys, values = table.keys.view(np.int64), table.values
    half = ROWS // 3
    for name in ("pair", "hps", "dump", "parts", "models/found/1", "models/whole/2"):
        (directory / name).mkdir(parents=True)
    np.save(directory / "pair" / "keys.npy", table.keys)
    np.save(directory / "pair" / "values.npy", values)
    np.save(directory / "models/found/1" / "keys.npy", keys.astype(">i8"))
    np.save(directory / "models/found/1" / "values.npy", np.asfortranarray(values))
    keys.tofile(directory / "hps" / "key")
    values.tofile(directory / "hps" / "emb_vector")
    for rank, part in enumerate((slice(0, half), slice(half, half), slice(half, None))):
        end = f"rank_{rank}.world_size_3"
        keys[part].tofile(directory / "dump" / f"t_emb_keys.{end}")
        values[part].tofile(directory / "dump" / f"t_emb_values.{end}")
    tensors = {"odd": ("U8", np.zeros(3, np.uint8)), "values": ("F32", values),
               "other": ("BOOL", np.zeros(5, np.uint8)), "keys": ("I64", keys)}
    write_safetensors(directory / "m.safetensors", tensors, {"format": "np"})
    write_safetensors(directory / "named.safetensors", {"k": ("U64", table.keys), "v": ("F32", values)})
    np.savez(directory / "z.npz", keys=keys, values=values)
    write_safetensors(directory / "parts" / "a-1.safetensors", {"v": ("F32", values)})
    write_safetensors(directory / "parts" / "a-2.safetensors", {"k": ("I64", keys)})
    index = directory / "parts" / "a.safetensors.index.json"
    write_json(index, {"weight_map": {"v": "a-1.safetensors", "k": "a-2.safetensors"}})
    for file in (directory / "parts").iterdir():
        (directory / "models/whole/2" / file.name).write_bytes(file.read_bytes())
    write_json(directory / "models/whole/2/config.json", {"tensor": "v", "keys_tensor": "k"})
    (directory / "alone").mkdir()
    (directory / "alone/any.safetensors").write_bytes((directory / "m.safetensors").read_bytes())
    values.tofile(directory / "raw.bin")
    keys.tofile(directory / "raw.keys")
    raw = f"{directory}/raw.bin,shape=[-1, {COLUMNS}],datatype=FP32,keys={directory}/raw.keys"
    return {"pair": "pair", "hps": "hps", "dump": "dump", "one": "m.safetensors", "alone": "alone",
            "two": "m.safetensors#values", "named": "named.safetensors#v,keys_tensor=k",
            "z": "z.npz", "parts": "parts#v,keys_tensor=k",
            "index": "parts/a.safetensors.index.json#v,keys_tensor=k", "raw": raw}


def test_sources(directory, rng, table):
    sources = write_sources(directory, table)
    flags = [arg for name, path in sources.items()
             for arg in ("--table", f"{name}={path if '/raw' in path else directory / path}")]
    flags += ["--models", directory / "models", "--table",
              f"tensor={directory}/m.safetensors#values,keys_tensor=keys,missing=skip"]
    rows = rng.integers(0, ROWS, 40)
    want = table.values[rows]
    with Server(*flags) as server, Client(server) as client:
        for name in [*sources, "found", "whole", "tensor"]:
            indices = Tensor("indices", table.keys[rows].reshape(-1, 1))
            got = client.infer(name, [indices], binary=True).embeddings()
            expect_equal(got.tobytes(), want.tobytes(), name)
        expect_equal(client.get("/v2/models/pair").json()["inputs"][0]["datatype"], "UINT64")


F8 = np.arange(256, dtype=np.uint8)


def test_types_of_safetensors(directory):
    """Each numeric type at an odd offset; 8-bit floats and BF16 become FP32."""
    tensors = {"pad": ("U8", np.zeros(1, np.uint8))}
    for dtype, code in [("F64", "f8"), ("F32", "f4"), ("F16", "f2"), ("I64", "i8"), ("I32", "i4"),
                        ("I16", "i2"), ("I8", "i1"), ("U64", "u8"), ("U32", "u4"), ("U16", "u2"),
                        ("U8", "u1")]:
        tensors[dtype] = (dtype, np.arange(12).reshape(4, 3).astype(code))
    tensors["BF16"] = ("BF16", (np.arange(12, dtype="f4").reshape(4, 3).view("u4") >> 16) .astype("u2"))
    tensors["F8_E5M2"] = ("F8_E5M2", F8.reshape(64, 4))
    tensors["F8_E4M3"] = ("F8_E4M3", F8.reshape(64, 4))
    write_safetensors(directory / "t.safetensors", tensors)
    names = [name for name in tensors if name != "pad"]
    flags = [arg for name in names for arg in ("--table", f"{name}={directory}/t.safetensors#{name}")]
    with Server(*flags) as server, Client(server) as client:
        for name in names:
            reply = client.infer(name, [Tensor("indices", np.array([[2]]))], parameters={
                "output_datatype": "FP32"} if name in ("F16", "BF16") else {})
            if name.startswith("F8"):
                expect_equal(reply.embeddings().shape, (1, 4))
            else:
                expect_equal(reply.embeddings().ravel().tolist(), [6, 7, 8], name)
        reply = client.infer("F8_E5M2", [Tensor("indices", np.array([[15]]))])
        expect_equal(reply.embeddings().tobytes(), (F8[60:64].astype("u2") << 8).view("f2").astype("f4").tobytes())


# ---- what does not start --------------------------------------------------------------------------

def reject(arguments, *words):
    ended = run("serve", "--port", "0", *arguments)
    expect(ended.returncode != 0, f"{arguments}: started")
    for word in words:
        expect(word in ended.stderr, f"{word!r} is not in {ended.stderr!r}")


def config_of(directory, **model):
    return ("--config", write_json(directory / "c.json", {"models": [{"name": "m", "path": "values.npy", **model}]}))


def test_rejected_at_the_start(directory):
    keys = np.arange(10) * 7
    np.save(directory / "values.npy", np.zeros((10, 2), np.float32))
    np.save(directory / "keys.npy", keys)
    np.save(directory / "short.npy", keys[:9])
    np.save(directory / "wrong.npy", keys.astype(np.int32))
    np.save(directory / "twice.npy", np.where(np.isin(np.arange(10), [3, 8, 9]), -4, keys))
    write_safetensors(directory / "m.safetensors", {
        "weights": ("F32", np.zeros((4, 2), np.float32)), "b": ("BOOL", np.zeros(3, np.uint8)),
        "weighty": ("F32", np.zeros((4, 2), np.float32))})
    np.savez(directory / "two.npz", first=np.zeros((4, 2)), second=np.zeros((4, 2)))
    np.savez_compressed(directory / "packed.npz", values=np.zeros((4, 2), np.float32))
    np.save(directory / "none.npy", np.zeros((0, 2), np.float32))
    np.save(directory / "nokeys.npy", keys[:0])
    (directory / "empty").mkdir()
    for name in ("both", "keyless", "rowless"):
        (directory / name).mkdir()
    for name in "ab":
        np.save(directory / "both" / f"{name}.npy", keys)
    for name in ("keyless/values", "rowless/keys"):
        np.save(directory / f"{name}.npy", keys)
    for model, words in [
            ({"keys": "short.npy"}, ["9 keys for the 10 rows"]),
            ({"keys": "wrong.npy"}, ["keys must be INT64 or UINT64"]),
            ({"keys": "twice.npy"}, ["key -4 is duplicated, in rows 3 and 8"]),
            ({"keys": "no.npy"}, ["no.npy", "cannot be opened"]),
            ({"keys": "keys.npy", "out_of_range": "skip"}, ["say missing"]),
            ({"keys": "keys.npy", "prune_invalid": True}, ["prune_invalid"]),
            ({"keys": "keys.npy", "missing": "default"}, ["needs a default_index"]),
            ({"keys": "keys.npy", "default_index": 1}, ["default_index is 1, a key that"]),
            ({"keys": "keys.npy", "missing": "hash"}, ["hash_rows from 1 to 10"]),
            ({"keys": "keys.npy", "missing": "hash", "hash_rows": 11}, ["it is 11"]),
            ({"path": "none.npy", "keys": "nokeys.npy", "missing": "hash", "hash_rows": 1},
             ["missing hash needs a table with rows; this one has none"]),
            ({"keys": "keys.npy", "hash_rows": 3}, ["hash_rows needs missing to be hash"]),
            ({"missing": "skip"}, ["say out_of_range"]),
            ({"out_of_range": "default"}, ["out_of_range default needs a default_index"]),
            ({"default_index": -2}, ["'default_index' is -2"])]:
        reject(config_of(directory, **model), *words)
    for path, words in [
            ("m.safetensors#weigths", ["no tensor 'weigths'", "did you mean 'weights'", "weights, b, weighty"]),
            ("m.safetensors#b", ["tensor 'b'", "BOOL cannot be pooled"]),
            ("m.safetensors", ["name the table", "it holds weights, b, weighty"]),
            ("two.npz", ["name the table", "it holds first, second"]),
            ("packed.npz", ["member 'values'", "compressed", "numpy.savez"]),
            ("both", ["several tables", "a.npy", "b.npy"]),
            ("keyless", ["keyless: the folder holds values.npy without keys.npy"]),
            ("rowless", ["rowless/values.npy: cannot be opened: No such file"]),
            ("empty", ["keys.npy and values.npy", "emb_vector"])]:
        reject(("--table", f"m={directory / path}"), *words)
    truncated = (directory / "m.safetensors").read_bytes()[:-1]
    (directory / "cut.safetensors").write_bytes(truncated)
    reject(("--table", f"m={directory}/cut.safetensors#weights"), "cut.safetensors", "truncated")


def test_ranks_of_different_widths(directory):
    """A rank without rows has the width of the others; ranks with rows have one width."""
    def dump(*widths):
        for rank, width in enumerate(widths):
            end = f"rank_{rank}.world_size_{len(widths)}"
            np.arange(3 * rank, 3 * rank + 3 * bool(width)).tofile(directory / f"t_emb_keys.{end}")
            np.ones(3 * width, np.float32).tofile(directory / f"t_emb_values.{end}")

    dump(0, 4, 4)
    with Server("--table", f"m={directory}") as server:
        got = Client(server).infer("m", [Tensor("indices", np.array([[3, 8]]))]).embeddings()
        expect_equal(got.tolist(), [[2] * 4])
    dump(4, 0, 2)
    reject(("--table", f"m={directory}"), "t_emb_values.rank_2.world_size_3", "rows of 2 elements; those of the other "
           "files have 4")


def test_a_table_beside_a_keyed_one(directory):
    """The keyed table is served, and the log names the other one once, however often files are looked at."""
    keys, values, other = np.array([7, -9]), np.array([[1, 2], [3, 4]], np.float32), directory / "other.npy"
    (directory / "m").mkdir()
    for name, array in (("keys", keys), ("values", values), ("table", values * 10)):
        np.save(directory / "m" / f"{name}.npy", array)
    np.save(other, values)
    with Server("--table", f"m={directory}/m", "--table", f"o={other}", "--model-control", "poll",
                "--poll-seconds", "0.2") as server, Client(server) as client:
        def row(model, index):
            return client.infer(model, [Tensor("indices", np.array([[index]]))]).embeddings().tolist()

        expect_equal(row("m", -9), [[3, 4]])
        np.save(directory / "new.npy", values * 5)
        (directory / "new.npy").rename(other)
        wait_until(lambda: row("o", 1) == [[15, 20]], "the other model is loaded again")
        ignored, = (event for event in server.events() if event.get("event") == "ignored")
        expect_equal(ignored["path"], str(directory / "m" / "table.npy"))
        expect("keyed table" in ignored["reason"], f"{ignored}")


def test_config_shows_keys_with_the_sign_of_their_type(directory):
    keys = np.array([5, 2**63, 2**64 - 1], np.uint64)
    np.save(directory / "values.npy", np.ones((3, 2), np.float32))
    np.save(directory / "unsigned.npy", keys)
    np.save(directory / "signed.npy", keys.view(np.int64))
    rules = {"missing": "default", "default_index": str(2**64 - 1), "padding_idx": str(2**63)}
    models = [{"name": name, "path": "values.npy", "keys": f"{name}.npy"} | rules for name in ("unsigned", "signed")]
    models.append({"name": "both", "features": [
        {"name": "a", "model": "unsigned", "default_index": str(2**63)},
        {"name": "b", "model": "signed", "default_index": 5}]})
    config = write_json(directory / "config.json", {"models": models})
    with Server("--config", config) as server, Client(server) as client:
        def shown(model, *names):
            parameters = client.get(f"/v2/models/{model}/config").expect().json()["parameters"]
            return [parameters[name]["string_value"] for name in names]

        expect_equal(shown("unsigned", "default_index", "padding_idx"),
                     ["18446744073709551615", "9223372036854775808"])
        expect_equal(shown("signed", "default_index", "padding_idx"), ["-1", "-9223372036854775808"])
        expect_equal(shown("both", "a.default_index", "a.padding_idx", "b.default_index", "b.padding_idx"),
                     ["9223372036854775808", "9223372036854775808", "5", "-9223372036854775808"])


@pytest.mark.parametrize("order", "CF")
def test_checksums_of_archives(directory, order):
    """Rows of several tiles, in either order: as they were written, and with one bit turned."""
    rows, path = 40000, directory / "a.npz"
    values = np.arange(rows * 64, dtype=np.float32).reshape(rows, 64)
    np.savez(path, values=np.asarray(values, order=order), keys=np.arange(rows)[::-1].copy())
    with Server("--table", f"m={path}") as server:
        got = Client(server).infer("m", [Tensor("indices", np.array([[rows - 1], [0]]))]).embeddings()
        expect_equal(got.tobytes(), values[[0, rows - 1]].tobytes())
    whole = bytearray(path.read_bytes())
    for name, at in (("keys.npy", 5000), ("values.npy", 200), ("values.npy", 9_000_000)):
        at += whole.index(name.encode())
        whole[at] ^= 0x20
        path.write_bytes(whole)
        whole[at] ^= 0x20
        reject(("--table", f"m={path}"), "a.npz: the zip archive is damaged: its member", "CRC-32")
        for code, arguments in ((1, ["verify", path]), (2, ["convert", path, directory / "out"])):
            done = run(*arguments)
            expect_equal(done.returncode, code, done.stderr)
            expect("a.npz: the zip archive is damaged" in done.stderr, done.stderr)
    expect_equal([p.name for p in directory.iterdir()], ["a.npz"])
    if order == "C":  # mapped tables are not read whole: that is said
        with Server("--table", f"m={path},load=map") as server:
            expect("verify" in server.wait_event("mapped")["crc32"], server.log())
