"""The rows that are looked up most, in statistics and metrics: of a table, of keys, of a collection, of a coordinator."""

import concurrent.futures
import pathlib
import subprocess
import threading

import numpy as np
import pytest

from control import BEARER, Admin, collection, publish, replace, rows_of, serve
from harness import PROGRAM, ROOT, Server, expect, expect_equal, free_port, write_json
from shards import front_of, make_tables, parts_of  # noqa: F401
from table_files import convert
from v2 import Client, Tensor

ROWS = 1000
BIG = -2**63 + 5  # a key beyond what a double holds


@pytest.fixture(scope="module", name="config")
def make_config(shared_directory):
    values = np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4)
    np.save(shared_directory / "dense.npy", values)
    (shared_directory / "keyed").mkdir()
    np.save(shared_directory / "keyed/values.npy", values)
    keys = np.arange(ROWS) * 7
    keys[500] = BIG
    np.save(shared_directory / "keyed/keys.npy", keys)
    tables = [{"name": "dense", "path": str(shared_directory / "dense.npy")},
              {"name": "keyed", "path": str(shared_directory / "keyed"), "missing": "skip", "padding_idx": 14}]
    both = {"name": "both", "features": [{"name": "a", "model": "dense"}, {"name": "b", "model": "keyed"}]}
    return pathlib.Path(write_json(shared_directory / "config.json", {"models": tables + [both]}))


def hot_rows(client, model):
    """What the statistics say of each feature of a model."""
    found = client.get(f"/v2/models/{model}/stats").expect().json()["model_stats"][0]["hot_rows"]
    return {feature["feature"]: feature for feature in found}


def bags(ids, name="indices"):
    return Tensor(name, np.array([ids], np.int64))


def test_table(config):
    """Half of the lookups name one row and a quarter another, whose places have the period of the samples."""
    ids = np.arange(128 * 1000) % ROWS
    ids[::2], ids[1::4] = 7, 123
    with Server("--config", config) as server, Client(server) as client:
        expect_equal(hot_rows(client, "dense")["embeddings"],
                     {"feature": "embeddings", "sampled_id_count": 0, "hottest_row_count": 10, "hottest_share": 0, "top": []})
        for _ in range(10):
            client.infer("dense", [bags(ids)], binary=True, parameters={"binary_data_output": True}).expect(200)
        got = hot_rows(client, "dense")["embeddings"]
        expect(9700 < got["sampled_id_count"] < 10300, got["sampled_id_count"])
        expect_equal([row["id"] for row in got["top"][:2]], ["7", "123"])
        expect(abs(got["top"][0]["share"] - 0.5) < 0.03 and abs(got["top"][1]["share"] - 0.25) < 0.03, got["top"][:2])
        expect(0.74 < got["hottest_share"] < 0.8, got["hottest_share"])
        expect_equal(len(got["top"]), 100)
        samples, labels = client.metrics(), '{model="dense",version="1",feature="embeddings"}'
        expect_equal(samples["bagserve_sampled_ids_total" + labels], str(got["sampled_id_count"]))
        expect(abs(float(samples["bagserve_hottest_rows_ratio" + labels]) - got["hottest_share"]) < 1e-6, "the ratio")


def test_keys(config):
    """Keys are texts; padding and missing keys are no rows; missing ones are counted for each feature."""
    ids = np.full(6400, BIG)
    ids[::4], ids[1::4] = 14, 3
    with Server("--config", config) as server, Client(server) as client:
        client.infer("keyed", [bags(ids)]).expect(200)
        client.infer("both", [bags([1, 2], "a.indices"), bags([3, 7, 3], "b.indices")]).expect(200)
        got = hot_rows(client, "keyed")["embeddings"]
        expect_equal((got["top"], got["missing_key_count"], got["hottest_share"]), ([{"id": str(BIG), "share": 1}], 1600, 1))
        both = hot_rows(client, "both")
        expect_equal((list(both), both["b"]["missing_key_count"], "missing_key_count" in both["a"]), (["a", "b"], 2, False))
        samples = client.metrics()
        expect_equal(samples['bagserve_feature_missing_keys_total{model="both",version="1",feature="b"}'], "2")


@pytest.mark.parametrize("way", ["rows", "columns", "keys"])
def test_coordinator(tables, directory, way):
    """A coordinator samples the ids of its requests. Its shards sample those of their parts, as ids of the whole table."""
    hottest = 1000 if way == "keys" else 290
    with parts_of(directory, tables[way], way) as shards:
        with front_of(directory, [shard.url for shard in shards]) as server, Client(server) as client:
            client.infer("items", [bags(np.full(6400, hottest))]).expect(200)
            want = [{"id": str(hottest), "share": 1}]
            got = hot_rows(client, "items")["embeddings"]
            expect_equal((got["top"], got["hottest_row_count"], "missing_key_count" in got), (want, 3, False))
            tops = []
            for shard in shards:
                with Client(shard) as one:
                    tops.append(hot_rows(one, "items")["embeddings"]["top"])
            expect_equal(sorted(map(len, tops)), [1, 1, 1] if way == "columns" else [0, 0, 1])
            expect_equal([top for top in tops if top], [want] * (3 if way == "columns" else 1))


def test_other_tables(config, directory):
    """Rows of mapped and quantised tables are counted as those of others are."""
    convert("--row-format", "int8", config.parent / "dense.npy", directory / "int8.safetensors")
    path = write_json(directory / "config.json", {"models": [
        {"name": "mapped", "path": str(config.parent / "dense.npy"), "load": "map"},
        {"name": "int8", "path": "int8.safetensors"}]})
    with Server("--config", path) as server, Client(server) as client:
        for model in ("mapped", "int8"):
            client.infer(model, [bags(np.full(6400, 5))]).expect(200)
            expect_equal(hot_rows(client, model)["embeddings"]["top"], [{"id": "5", "share": 1}])


def test_reload_under_load(directory):
    """Requests sample ids of models that are replaced meanwhile. A model that was loaded begins without samples."""
    path = publish(directory / "models", "t", 1)
    collection(directory / "models", "both", ["t"])
    stop = threading.Event()

    def ask(server):
        with Client(server, headers=BEARER) as other:
            while not stop.is_set():
                other.infer("both", [bags(np.full(6400, 3), "f_t.indices")]).expect(200)

    with serve(directory) as server, concurrent.futures.ThreadPoolExecutor() as pool:
        asking = [pool.submit(ask, server) for _ in range(2)]
        try:
            for value in range(20):
                replace(path, rows_of(value))
                server.admin.load("t").expect(200)
                expect(hot_rows(server.client, "both")["f_t"]["top"] in ([], [{"id": "3", "share": 1}]), "another id")
        finally:
            stop.set()
        for done in asking:
            done.result()
        replace(path, rows_of(20))
        server.admin.load("t").expect(200)
        expect_equal(hot_rows(server.client, "both")["f_t"]["sampled_id_count"], 0)


def test_private_metrics(directory):
    """Clients of the main listener see no ids of others."""
    publish(directory / "models", "t", 1)
    port = free_port()
    with Server("--models", directory / "models", "--metrics", "private", "--admin-port", port) as server, \
            Client(server) as client:
        client.infer("t", [bags(np.ones(6400))]).expect(200)
        expect("hot_rows" not in client.get("/v2/models/t/stats").expect(200).json()["model_stats"][0], "ids are shown")
        expect_equal(hot_rows(Admin(server, port).client, "t")["embeddings"]["top"], [{"id": "1", "share": 1}])


def test_metrics_off(config):
    with Server("--config", config, "--metrics", "off") as server, Client(server) as client:
        client.infer("dense", [bags(np.zeros(6400))]).expect(200)
        client.get("/v2/models/dense/stats").expect(404)


def test_order_of_rows(config, directory):
    """The recipe of deploy/SCALING.md: the hottest rows become the first ones of the converted table."""
    with Server("--config", config) as server, Client(server) as client:
        client.infer("keyed", [bags(np.repeat([70, 693, 70], 2000))]).expect(200)
        keys = np.load(config.parent / "keyed/keys.npy")
        counts = np.zeros(len(keys))
        for row in hot_rows(client, "keyed")["embeddings"]["top"]:
            counts[keys == int(row["id"])] = row["share"]
        np.save(directory / "counts.npy", counts)
    convert("--order-by", directory / "counts.npy", config.parent / "keyed", directory / "sorted.safetensors")
    with Server("--table", f"m={directory}/sorted.safetensors") as server, Client(server) as client:
        got = client.infer("m", [bags([70]), ]).embeddings()
        expect_equal(got.tolist(), [[40, 41, 42, 43]])


def test_placement(config, directory):
    """deploy/place shares what a collection reads among its tables by their sampled ids."""
    with Server("--config", config) as server, Client(server) as client:
        client.infer("both", [bags(np.zeros(64000), "a.indices"), bags([7], "b.indices")], binary=True).expect(200)
        (directory / "metrics").write_bytes(client.get("/metrics").body)
    done = subprocess.run([ROOT / "deploy/place", "--memory", "1MiB", "--nodes", "2", "--metrics", directory / "metrics",
                           "--program", PROGRAM, config], capture_output=True, text=True, check=False)
    expect_equal((done.returncode, done.stderr), (0, ""))
    rates = sorted(float(line.split()[-2]) for line in done.stdout.splitlines() if line.startswith("node-"))
    expect(rates[0] < 5 and rates[1] > 95, done.stdout)
