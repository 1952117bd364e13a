"""Parts of tables: what servers that have a part each hold, and answer, together is what one with all of it does.

A server serves tables whole, and in parts: each row, asked of the part that has it by the protocol's own rules, must
have the bits of the whole table's.
"""

import json
import re

import numpy as np
import pytest

import control
from harness import Server, expect, expect_equal, expect_words, run, wait_until, write_json
from keyed import hashed_row
from parts import COLUMNS, OF, RANGES, ROWS, ask, divided, expect_bits, make_keys, part_of_key, part_of_row
from table_files import random_rows
from v2 import Client, Tensor


# ---- the protocol's rules -------------------------------------------------------------------------

def test_hash_of_the_protocol():
    """The vectors there."""
    for key, of_3, of_4096 in ((0, 0, 0), (1, 2, 2885), (42, 1, 2064), (2**53, 0, 185), (-1, 1, 1611)):
        expect_equal((part_of_key(key), part_of_key(key, 4096)), (of_3, of_4096), key)


# ---- tables; tests/features draws them in all formats --------------------------------------
class World:
    """Tables with and without keys, and one server that has all of them, and all of their parts."""

    def __init__(self, directory, rng):
        self.keys = make_keys(rng)
        values = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
        np.save(directory / "f32.npy", values)
        np.save(directory / "int4.npy", random_rows(rng, "int4", 8, ROWS)[0])
        (directory / "keyed").mkdir()
        np.save(directory / "keyed" / "keys.npy", self.keys)
        np.save(directory / "keyed" / "values.npy", values)
        dense = {"f32": {"path": "f32.npy"}, "int4": {"path": "int4.npy", "row_format": "int4", "row_elements": 8}}
        self.keyed = {"keyed": {"path": "keyed"}}
        self.parts = (divided(dense, "rows") + divided(dense, "columns") +
                      divided(self.keyed, "keys") + divided(self.keyed, "columns"))
        self.mapped = [model | {"name": f"mapped_{model['name']}", "load": "map"}
                       for model in divided(dense, "rows") + divided(self.keyed, "keys")]
        whole = [{"name": name} | model for name, model in (dense | self.keyed).items()]
        self.config = write_json(directory / "config.json", {"models": whole + self.parts + self.mapped})


@pytest.fixture(scope="module", name="world")
def make_world(shared_directory, rng):
    return World(shared_directory, rng)


@pytest.fixture(scope="module", name="server")
def serve(world):
    with Server("--config", world.config) as server:
        yield server


def ids_of(world, name):
    return world.keys if name in world.keyed else np.arange(ROWS)


def test_parts_hold_the_whole(client, world):
    """Every id of its part has its row, and no other has any."""
    for model in world.parts + world.mapped:
        name = model["name"].removeprefix("mapped_").rsplit("_", 2)[0]
        way, index = model["part"]["by"], model["part"]["index"]
        ids = ids_of(world, name)
        whole = ask(client, name, ids)
        if way == "columns":
            begin, end = [whole.shape[1] * part // OF for part in (index, index + 1)]
            expect_bits(ask(client, model["name"], ids), np.ascontiguousarray(whole[:, begin:end]), model["name"])
            continue
        owner = part_of_key if way == "keys" else part_of_row
        own = np.array([owner(one) == index for one in ids.tolist()])
        expect_bits(ask(client, model["name"], ids[own]), whole[own], model["name"])
        for other in (ids[~own][0], ids[~own][-1]):
            expect_words(ask(client, model["name"], [ids[own][0], other], 400),
                         ["indices", "position 1", str(other), f"part {index} of {OF}"])


def test_metadata(client, world):
    digests = {}
    for model in world.parts:
        name, part = model["name"].rsplit("_", 2)[0], model["part"]
        whole, own = (client.get(f"/v2/models/{one}").json() for one in (name, model["name"]))
        facts, sizes = own["parameters"], whole["parameters"]
        expect_equal(facts["part"], part | {"rows": ROWS, "row_elements": sizes["row_elements"],
                                            "digest": facts["part"]["digest"]}, model["name"])
        expect_equal(digests.setdefault((name, part["by"]), facts["part"]["digest"]), facts["part"]["digest"], name)
        expect("part" not in sizes, name)
        want = {"rows": ROWS, "row_elements": sizes["row_elements"]}
        if part["by"] == "keys":
            want["rows"] = sum(part_of_key(key) == part["index"] for key in world.keys.tolist())
        else:
            size = "rows" if part["by"] == "rows" else "row_elements"
            want[size] = want[size] * (part["index"] + 1) // OF - want[size] * part["index"] // OF
        expect_equal({key: facts[key] for key in want}, want, model["name"])
        expect_equal(own["outputs"][0]["shape"], [-1, want["row_elements"]])
        config = client.get(f"/v2/models/{model['name']}/config").json()["parameters"]
        expect_equal(config["part"]["string_value"], f"{part['by']} {part['index']} of {OF}")
        expect_equal(config["part.rows"]["string_value"], str(ROWS))
        if part["by"] != "columns":
            expect(facts["bytes"] < sizes["bytes"] // 2, (facts, sizes))


def test_beyond_the_whole_table(client):
    for index in range(OF):
        for row in (-1, ROWS, 2**40):
            error = ask(client, f"f32_rows_{index}", [RANGES[ROWS][index], row], 400)
            expect_words(error, ["position 1", str(row), f"0 to {ROWS - 1}"])


# ---- what every part has --------------------------------------------------------------------------

def test_default_row(directory, rng):
    """Empty bags and missing keys need no other part."""
    values = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    keys = make_keys(rng)
    absent = [key for key in range(7000, 7200) if key not in keys]
    np.save(directory / "v.npy", values)
    np.save(directory / "k.npy", keys)
    default = int(keys[400])
    dense = {"path": "v.npy", "default_index": 77}
    hashing = {"path": "v.npy", "keys": "k.npy", "missing": "hash", "hash_rows": 30, "default_index": str(default)}
    models = divided({"dense": dense}, "rows") + divided({"hashing": hashing}, "keys")
    models.append({"name": "pair", "features": [{"name": "a", "model": "dense_rows_1"},
                                                {"name": "b", "model": "hashing_keys_2"}]})
    config = write_json(directory / "config.json", {"models": models})
    with Server("--config", config) as server, Client(server) as client:
        for index in range(OF):
            empty = [Tensor("indices", np.zeros(0, np.int64)), Tensor("offsets", np.zeros(2, np.int64))]
            got = client.infer(f"dense_rows_{index}", empty, binary=True).embeddings()
            expect_bits(got, values[[77, 77]], index)
            got = client.infer(f"hashing_keys_{index}", empty, binary=True).embeddings()
            expect_bits(got, values[[400, 400]], index)
            own = [key for key in absent if part_of_key(key) == index]
            want = values[[hashed_row(key, 30) for key in own]]
            expect_bits(ask(client, f"hashing_keys_{index}", own), want, index)
            facts = client.get(f"/v2/models/hashing_keys_{index}").json()["parameters"]
            kept = [part_of_key(key) == index or row < 30 or key == default for row, key in enumerate(keys.tolist())]
            expect_equal(facts["rows"], sum(kept))
    for change, words in (({"default_index": 78}, ["pair", "'a'", "78", "another part", "dense_rows_1"]),
                          ({"default_index": int(RANGES[ROWS][1])}, [])):
        models[-1]["features"][0] |= change
        ended = run("serve", "--check", "--config", write_json(directory / "other.json", {"models": models}))
        expect_equal(ended.returncode, 1 if words else 0, ended.stderr)
        expect_words(ended.stderr, words)
    models[-1]["features"][1] |= {"missing": "hash", "hash_rows": 31}
    ended = run("serve", "--check", "--config", write_json(directory / "other.json", {"models": models}))
    expect_words(ended.stderr, ["pair", "'b'", "hash_rows is 31", "first 30", "hashing_keys_2"])


# ---- edges ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("rows,columns,parts", [(0, 3, 2), (1, 1, 1), (1, 2, 5), (3, 2, 4096), (7, 7, 7)])
def test_edge_sizes(directory, rng, rows, columns, parts):
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    np.save(directory / "v.npy", values)
    some = sorted({0, 1 % parts, parts // 2, parts - 1})
    models = [{"name": f"{way}_{index}", "path": "v.npy", "part": {"by": way, "index": index, "of": parts}}
              for way in ("rows", "columns") for index in some]
    config = write_json(directory / "config.json", {"models": models})
    with Server("--config", config) as server, Client(server) as client:
        for index in some:
            for way, size in (("rows", rows), ("columns", columns)):
                begin, end = size * index // parts, size * (index + 1) // parts
                facts = client.get(f"/v2/models/{way}_{index}").json()["parameters"]
                expect_equal(facts["rows" if way == "rows" else "row_elements"], end - begin, (way, index))
                if way == "rows":
                    expect_bits(ask(client, f"rows_{index}", range(begin, end)), values[begin:end], index)
                else:
                    expect_bits(ask(client, f"columns_{index}", range(rows)),
                                np.ascontiguousarray(values[:, begin:end]), index)


def test_made_tables(directory):
    """Rows of a formula are made for the part alone."""
    part = "10000x64,part=rows 1 of 3"
    with Server("--synthetic", f"t={part}", "--synthetic", "w=10000x64",
                "--synthetic", "c=10000x64,part=columns 2 of 3") as server, Client(server) as client:
        begin, end = 3333, 6666
        ids = [begin, 5000, end - 1]
        expect_bits(ask(client, "t", ids), ask(client, "w", ids), "rows")
        expect_bits(ask(client, "c", ids), np.ascontiguousarray(ask(client, "w", ids)[:, 42:]), "columns")


WRONG = [("v.npy", {"by": "rows", "index": 3, "of": 3}, {}, ["part", "I from 0 to N - 1"]),
         ("v.npy", {"by": "keys", "index": 0, "of": 3}, {}, ["part: a table without keys"]),
         ("v.npy", {"by": "rows", "index": 0, "of": 3}, {"keys": "k.npy"}, ["part: a table with keys", "columns"]),
         ("cube.npy", {"by": "columns", "index": 0, "of": 3}, {}, ["2 dimensions", "has 3", "say rows"]),
         ("v.npy", {"by": "columns", "index": 0, "of": 3}, {"load": "map"}, ["cannot be mapped", "load copy"]),
         ("v.npy", {"by": "rows", "index": 0, "of": 3}, {"load": "map", "default_index": 499}, ["499", "load copy"]),
         ("v.npy", {"by": "keys", "index": 0, "of": 3}, {"load": "map", "keys": "k.npy", "mlock": True}, ["mlock"]),
         ("v.npy", {"by": "rows", "index": 0, "of": 3}, {"projection": "p.npy"}, ["projection", "has a part"])]


@pytest.mark.parametrize("path,part,more,words", WRONG)
def test_wrong_configurations(directory, path, part, more, words):
    np.save(directory / "v.npy", np.zeros((ROWS, COLUMNS), np.float32))
    np.save(directory / "cube.npy", np.zeros((4, 3, 2), np.float32))
    np.save(directory / "k.npy", np.arange(ROWS))
    np.save(directory / "p.npy", np.zeros((COLUMNS, 2), np.float32))
    config = write_json(directory / "config.json", {"models": [{"name": "t", "path": path, "part": part} | more]})
    ended = run("serve", "--check", "--config", config)
    expect_equal(ended.returncode, 1, ended.stdout + ended.stderr)
    expect_words(ended.stderr, ["t"] + words)


def test_check_says_which_part(directory):
    np.save(directory / "v.npy", np.zeros((ROWS, COLUMNS), np.float32))
    np.save(directory / "k.npy", np.arange(ROWS))
    models = divided({"d": {"path": "v.npy"}}, "rows") + \
        divided({"k": {"path": "v.npy", "keys": "k.npy", "default_index": 3, "missing": "default"}}, "keys")
    ended = run("serve", "--check", "--config", write_json(directory / "config.json", {"models": models}))
    expect_equal(ended.returncode, 0, ended.stderr)
    expect_words(ended.stdout, ["d_rows_0 version 1: 500 rows of 7 elements, FP32; of it part 0 of 3 by rows, "
                                f"{166 * 28} bytes", "k_keys_2 version 1", "with keys; of it part 2 of 3 by keys"])


def test_commands_take_whole_tables(directory):
    np.save(directory / "v.npy", np.zeros((ROWS, COLUMNS), np.float32))
    for command, out in (("inspect", ()), ("verify", ()), ("convert", (directory / "o.safetensors",))):
        ended = run(command, f"{directory / 'v.npy'},part=rows 1 of 3", *out)
        expect(ended.returncode != 0 and not (directory / "o.safetensors").exists(), ended.stdout)
        expect_words(ended.stderr, ["part", "this command takes whole tables"])


# ---- reloads --------------------------------------------------------------------------------------

@pytest.mark.parametrize("reload", ["load_first", "unload_first"])
def test_reload(directory, rng, reload, root):
    """A new version, and then another part, take the place of what served."""
    values = rng.standard_normal((2, ROWS, COLUMNS)).astype(np.float32)
    for version in (1, 2):
        (root / "t" / str(version)).mkdir(parents=True)
    np.save(root / "t" / "1" / "t.npy", values[0])
    settings = {"reload": reload, "part": {"by": "rows", "index": 0, "of": OF}, "keep_versions": 1}
    write_json(root / "t" / "config.json", settings)
    with control.serve(directory) as server:
        client, end = server.client, RANGES[ROWS][1]
        expect_bits(ask(client, "t", range(end)), values[0][:end], "the first version")
        np.save(root / "t" / "2" / "t.npy", values[1])
        server.admin.load("t").expect(200)
        expect_bits(ask(client, "t", range(end)), values[1][:end], "the second version")
        write_json(root / "t" / "config.json", settings | {"part": {"by": "columns", "index": 2, "of": OF}})
        server.admin.load("t").expect(200)
        expect_bits(ask(client, "t", range(ROWS)), np.ascontiguousarray(values[1][:, RANGES[COLUMNS][2]:]), "columns")


# ---- load ------------------------------------------------------------------------------------------

def test_bench_asks_what_a_part_has(server, shared_directory):
    """No request is for another part; comparing is for whole tables."""
    keyed = ("--table", f"keyed_keys_0={shared_directory / 'keyed'}")
    for model, more in (("f32_rows_1", ()), ("f32_columns_2", ()), ("keyed_keys_0", keyed)):
        ended = run("bench", server.url, model, "--closed", "--requests", 50, "--warmup", 0, "--report", "-", *more)
        expect_equal(ended.returncode, 0, ended.stderr)
        report = json.loads(ended.stdout)["runs"][0]
        expect_equal((report["answered"], report["errors"]), (50, {}), model)
    ended = run("bench", server.url, "f32_rows_1", "--closed", "--requests", 5, "--warmup", 0, "--check", 3,
                "--table", f"f32_rows_1={shared_directory / 'f32.npy'}")
    expect(ended.returncode != 0, ended.stdout)
    expect_words(ended.stderr, ["--check compares with whole tables", "f32_rows_1", "coordinator"])


# ---- memory ---------------------------------------------------------------------------------------

def test_budget(directory):
    """A part of a table that does not fit does."""
    np.save(directory / "v.npy", np.zeros((200000, 16), np.float32))
    options = ("--max-table-bytes", "8MiB", "--table")
    ended = run("serve", "--check", *options, f"t={directory / 'v.npy'}")
    expect(ended.returncode != 0 and "max_table_bytes" in ended.stderr, ended.stdout + ended.stderr)
    for part in ("rows 1 of 2", "columns 0 of 2"):
        with Server(*options, f"t={directory / 'v.npy'},part={part}") as server, Client(server) as client:
            facts = client.get("/v2/models/t").json()["parameters"]
            expect_equal((facts["bytes"], json.dumps(facts["part"]["rows"])), (6400000, "200000"))


def test_keys_of_one_part(directory):
    """Where all keys are of one part, it is as large as the whole table, and so it is counted."""
    keys = [key for key in range(200000) if part_of_key(key, 4) == 0][:40000]
    np.save(directory / "v.npy", np.arange(40000 * 16, dtype=np.float32).reshape(-1, 16))
    np.save(directory / "k.npy", np.array(keys))
    table = f"t={directory / 'v.npy'},keys={directory / 'k.npy'},part=keys"
    ended = run("serve", "--port", 0, "--max-table-bytes", "1MiB", "--table", f"{table} 0 of 4")
    expect_equal(ended.returncode, 1, ended.stderr)
    expect_words(ended.stderr, ["max_table_bytes is 1.00 MiB"])
    for index, count in ((0, 40000), (1, 0)):
        with Server("--max-table-bytes", "4MiB" if count else "1MiB",
                    "--table", f"{table} {index} of 4") as server, Client(server) as client:
            expect_equal(client.get("/v2/models/t").json()["parameters"]["rows"], count)


def test_mapped_part_by_keys_has_the_index_of_its_own(directory, rng):
    """Of a mapped table that is divided over 64 servers each keeps its share of the index in memory, and answers
    with the rows of the file, before and after a reload."""
    rows, of, index = 600_000, 64, 5
    keys = rng.permutation(np.arange(rows, dtype=np.int64) * 7 - rows)
    most = 2 * (rows * 32 // 3 // of) + (2 << 20)
    settings = {"load": "map", "part": {"by": "keys", "index": index, "of": of}, "missing": "hash", "hash_rows": 40,
                "default_index": int(keys[-1])}
    values = np.arange(rows, dtype=np.float32)[:, None]
    for version in (1, 2):
        folder = directory / "models" / "t" / str(version)
        folder.mkdir(parents=True)
        np.save(folder / "keys.npy", keys)
        np.save(folder / "values.npy", values + version)
    write_json(folder.parent / "config.json", settings | {"version_policy": {"specific": [1]}})
    own = np.array([part_of_key(key, of) == index for key in keys.tolist()])
    absent = [key for key in range(rows * 8, rows * 8 + 1000) if part_of_key(key, of) == index]
    instead = [hashed_row(key, 40) for key in absent]
    ended = run("serve", "--check", "--models", directory / "models", "--max-table-bytes", most)
    expect_equal(ended.returncode, 0, ended.stderr)
    counted = int(re.search(r"part 5 of 64 by keys, (\d+) bytes", ended.stdout)[1])
    expect(counted <= most, ended.stdout)
    with control.serve(directory, "--max-table-bytes", most) as server:
        for version in (1, 2):
            write_json(folder.parent / "config.json", settings | {"version_policy": {"specific": [version]}})
            server.admin.load("t").expect(200)
            # The version before is released with its last reader, which may be after the reply to the load.
            wait_until(lambda: 0 < server.client.counted("bagserve_tables_bytes") <= counted, f"at most {counted} bytes of tables")
            want = values + version
            expect_bits(ask(server.client, "t", keys[own]), want[own], f"version {version}")
            for row in np.flatnonzero(own)[:3].tolist():
                expect_bits(ask(server.client, "t", [keys[row]]), want[row:row + 1], f"row {row}")
            expect_bits(ask(server.client, "t", absent), want[instead], "missing keys")
