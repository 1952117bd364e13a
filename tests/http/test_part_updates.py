"""Updates of tables in parts: each part takes its own, and is then what the updated whole table has there."""

import numpy as np
import pytest

import control
from harness import Server, expect_words, wait_until, write_json
from parts import COLUMNS, OF, RANGES, ROWS, ask, divided, expect_bits, make_keys, part_of_key
from table_files import random_rows
from updates import AUTHORIZED, applied, update
from v2 import Client, Tensor


class Live:
    """Tables of which each part takes updates of its own, with journals."""

    def __init__(self, directory, rng):
        self.directory, self.keys = directory, make_keys(rng)
        self.values = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
        np.save(directory / "v.npy", self.values)
        np.save(directory / "k.npy", self.keys)
        np.save(directory / "int8.npy", random_rows(rng, "int8", 9, ROWS)[0])
        self.tokens = control.tokens(directory)
        whole = {"rows": {"path": "v.npy", "default_index": 77}, "columns": {"path": "v.npy"},
                 "int8": {"path": "int8.npy", "row_format": "int8", "row_elements": 9},
                 "keys": {"path": "v.npy", "keys": "k.npy", "spare_rows": 20, "missing": "hash", "hash_rows": 10}}
        ways = {"int8": "columns"}
        self.models = [{"name": name} | model for name, model in whole.items()]
        for name, model in whole.items():
            self.models += divided({name: model}, ways.get(name, name))
        self.write(self.models)

    def write(self, models):
        self.config = write_json(self.directory / "config.json", {"models": models})

    def server(self, *arguments):
        return Server("--config", self.config, "--updates", "on", "--token-file", self.tokens,
                      "--journal-dir", self.directory / "journal", *arguments)


@pytest.fixture(name="live")
def make_live(directory, rng):
    return Live(directory, rng)


def test_bad_updates(live):
    with live.server() as server, Client(server, headers=AUTHORIZED) as client:
        row = np.zeros((2, COLUMNS), np.float32)
        for index in range(OF):
            error = update(client, f"rows_rows_{index}", [0, ROWS], row).expect(400).error()
            expect_words(error, ["position 1", str(ROWS), f"{ROWS} rows"])
        error = update(client, "columns_columns_0", [0, 1], row[:, :2]).expect(400).error()
        expect_words(error, ["FP32 [2, 2]", f"FP32 [2, {COLUMNS}]"])


def test_a_journal_is_of_one_part(live):
    """Another part, or other rows that are kept, lack what was left out."""
    with live.server() as server, Client(server, headers=AUTHORIZED) as client:
        applied(update(client, "rows_rows_0", [1, 400], np.zeros((2, COLUMNS), np.float32)), 1, 1)
        applied(update(client, "rows", [1], np.zeros((1, COLUMNS), np.float32)), 1, 1)
    changes = [("rows_rows_0", {"part": {"by": "rows", "index": 0, "of": 4}}, ["rows 0 of 3, 0 to 166", "rows 0 of 4"]),
               ("rows_rows_0", {"default_index": 78}, ["default_index 77", "default_index 78"]),
               ("rows", {"part": {"by": "rows", "index": 0, "of": 4}}, ["the whole table", "rows 0 of 4, 0 to 125"])]
    for name, change, words in changes:
        live.write([model | change if model["name"] == name else model for model in live.models])
        with live.server() as server, Client(server, headers=AUTHORIZED) as client:
            listed = client.request("POST", "/v2/repository/index", "{}").json()
            reason = next(model["reason"] for model in listed if model["name"] == name)
            expect_words(reason, words + ["journal", "move it away"])
            ask(client, "columns", [0])  # others are served


def test_updates_in_memory_are_of_one_part(directory, rng, root):
    """Without a journal what was taken is for versions of the same part."""
    values = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    for version in (1, 2):
        (root / "t" / str(version)).mkdir(parents=True)
    np.save(root / "t" / "1" / "t.npy", values)
    write_json(root / "t" / "config.json", {"part": {"by": "rows", "index": 0, "of": OF}})
    with control.serve(directory, "--updates", "on") as server:
        client, admin, ones = server.client, server.admin, np.ones((2, COLUMNS), np.float32)
        applied(update(admin.client, "t", [1, 400], ones), 1, 1)
        np.save(root / "t" / "2" / "t.npy", values)
        admin.load("t").expect(200)
        expect_bits(ask(client, "t", [1]), ones[:1], "the second version")
        write_json(root / "t" / "config.json", {"part": {"by": "rows", "index": 1, "of": OF}})
        expect_words(admin.load("t").expect(400).error(), ["rows 0 of 3", "rows 1 of 3", "what other parts got"])
        expect_bits(ask(client, "t", [1]), ones[:1], "what served")


def test_updates_in_memory_know_their_positions(directory, root):
    """A version that cannot take an update from memory names the key at its position in the request, which is gone."""
    own = [key for key in range(100) if part_of_key(key) == 0]
    other = next(key for key in range(100) if part_of_key(key) != 0)
    for version, spare in ((1, 5), (2, 0)):
        control.publish_keyed(root, "t", version, own[:8])
        write_json(root / "t" / str(version) / "config.json",
                   {"part": {"by": "keys", "index": 0, "of": OF}, "spare_rows": spare})
    with control.serve(directory, "--updates", "on") as server:
        admin = server.admin
        admin.load("t", version="1").expect(200)
        keys = np.array([other, own[0], own[9]])
        applied(update(admin.client, "t", Tensor("keys", keys), np.ones((3, control.COLUMNS), np.float32)), 1, 2)
        others = np.array([key for key in range(1000, 1100) if part_of_key(key) != 0] + own[2:3])
        for sequence in range(2, 12):  # they write into the memory of the first request
            rows = np.ones((others.size, control.COLUMNS), np.float32)
            applied(update(admin.client, "t", Tensor("keys", others), rows), sequence, 1)
        reason = admin.load("t", version="2").expect(400).error()
        expect_words(reason, ["update 1 that was taken before", f"'keys' has {own[9]} at position 2:", "spare_rows"])


def test_deltas(directory, rng):
    """Folders of updates hold the whole table's; each part takes its own of them."""
    values = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    new = rng.standard_normal((3, COLUMNS)).astype(np.float32)
    tokens = control.tokens(directory)
    roots = []
    for way, index in (("rows", 1), ("columns", 2)):
        root = directory / f"models_{way}"
        roots.append((root, way, index))
        folder = root / "t" / "1"
        (folder / "deltas" / "1").mkdir(parents=True)
        np.save(folder / "t.npy", values)
        np.save(folder / "deltas" / "1" / "rows.npy", new)
        np.save(folder / "deltas" / "1" / "indices.npy", np.array([3, 200, 499]))
        write_json(folder / "config.json", {"part": {"by": way, "index": index, "of": OF}})
    want = values.copy()
    want[[3, 200, 499]] = new
    for root, way, index in roots:
        with Server("--models", root, "--updates", "on", "--token-file", tokens) as server, \
                Client(server, headers=AUTHORIZED) as client:
            wait_until(lambda: client.get("/v2/models/t").json()["parameters"]["updates_through"] == 1, "the delta")
            if way == "rows":
                begin, end = RANGES[ROWS][index:index + 2]
                expect_bits(ask(client, "t", range(begin, end)), want[begin:end], way)
            else:
                expect_bits(ask(client, "t", range(ROWS)), np.ascontiguousarray(want[:, RANGES[COLUMNS][index]:]), way)
