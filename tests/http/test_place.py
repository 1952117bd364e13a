"""deploy/place: tables over several servers, what is written for each, and what moves."""

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest

from harness import PROGRAM, ROOT, TIMEOUT_S, Server, environment, expect, expect_equal, has_openblas, run, write_json
from shards import ready
from v2 import Client, Tensor

ROW_BYTES = 16 * 4


def save_tables(directory, rows):
    for name, count in rows.items():
        np.save(directory / f"{name}.npy", np.zeros((count, 16), np.float32))


def write_config(directory, rows, **more):
    models = [{"name": name, "path": f"{name}.npy"} for name in rows]
    models.append({"name": "all", "features": [{"name": f"of_{name}", "model": name} for name in rows]})
    path = directory / "config.json"
    path.write_text(json.dumps({"log": {"log_level": "warning"}, "models": models, **more}))
    return path


@pytest.fixture
def tables(directory):
    rows = {"large": 3000, "middle": 1000, "small": 200, "tiny": 1}
    save_tables(directory, rows)
    np.save(directory / "matrix.npy", np.zeros((16, 3), np.float32))
    return write_config(directory, rows)


def place(*arguments, code=0):
    ended = subprocess.run([sys.executable, ROOT / "deploy/place", "--program", PROGRAM, *map(str, arguments)],
                           capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=environment())
    expect_equal(ended.returncode, code, ended.stderr)
    return ended


def nodes_of(folder):
    """Of each node its models: name and part."""
    found = []
    while (folder / f"node-{len(found)}.json").exists():
        models = json.loads((folder / f"node-{len(found)}.json").read_text())["models"]
        found.append({model["name"]: model.get("part") for model in models})
    return found


def test_whole_tables_and_parts(directory, tables):
    out = directory / "out"
    ended = place("--memory", "150000", "--out", out, tables)
    part = {"by": "rows", "index": 0, "of": 2}
    expect_equal(nodes_of(out), [{"large": part, "middle": part, "small": None},
                                 {"large": part | {"index": 1}, "middle": part | {"index": 1}, "tiny": None}])
    expect("large (187.50 KiB) is in 2 parts" in ended.stdout, ended.stdout)
    expect("4 tables of 262.56 KiB on 2 nodes" in ended.stdout, ended.stdout)
    front = json.loads((out / "coordinator.json").read_text())
    both = ["http://node-0:8000", "http://node-1:8000"]
    expect_equal(front["models"][:-1], [
        {"name": "large", "shards": both}, {"name": "middle", "shards": both},
        {"name": "small", "shards": both[:1]}, {"name": "tiny", "shards": both[1:]}])
    expect_equal(front["models"][-1]["name"], "all")
    expect_equal(front["log"], {"log_level": "warning"})
    node = json.loads((out / "node-0.json").read_text())
    expect_equal(node["log"], {"log_level": "warning"})
    expect_equal(node["models"][0]["path"], str(directory / "large.npy"))
    expect_equal((out / "haproxy.map").read_text(),
                 "large coordinator\nmiddle coordinator\nsmall node-0\ntiny node-1\nall coordinator\n")


def test_what_is_written_can_be_served(directory, tables):
    """Each node's file passes --check; those for Kubernetes are the same but for addresses."""
    out = directory / "out"
    place("--memory", "150000", "--out", out, "--address", "http://127.0.0.1:800{index}", tables)
    for node in range(2):
        ended = run("serve", "--config", str(out / f"node-{node}.json"), "--check")
        expect_equal(ended.returncode, 0, ended.stderr)
        expect_equal((out / "kubernetes" / f"node-{node}.json").read_text(), (out / f"node-{node}.json").read_text())
    shards = json.loads((out / "kubernetes/coordinator.json").read_text())["models"][0]["shards"]
    expect_equal(shards, [f"http://bagserve-node-{node}.bagserve-node:8000" for node in range(2)])
    shards = json.loads((out / "coordinator.json").read_text())["models"][0]["shards"]
    expect_equal(shards, ["http://127.0.0.1:8000", "http://127.0.0.1:8001"])


def test_a_node_joins_and_leaves(directory, tables):
    out = directory / "out"
    place("--memory", "300000", "--nodes", 1, "--out", out, tables)
    ended = place("--memory", "300000", "--nodes", 2, "--out", out, tables)
    expect_equal(nodes_of(out), [{"large": None}, {"middle": None, "small": None, "tiny": None}])
    expect("75.06 KiB are elsewhere than before (28.6 %)" in ended.stdout, ended.stdout)
    place("--memory", "300000", "--nodes", 1, "--out", out, tables)
    expect_equal(nodes_of(out), [{"large": None, "middle": None, "small": None, "tiny": None}])
    expect(not (out / "kubernetes/node-1.json").exists(), "a node that is gone")


def test_keys_and_columns(directory):
    save_tables(directory, {"dense": 1000})
    (directory / "keyed").mkdir()
    np.save(directory / "keyed/values.npy", np.zeros((1000, 16), np.float32))
    np.save(directory / "keyed/keys.npy", np.arange(1000))
    path = directory / "config.json"
    path.write_text(json.dumps({"models": [{"name": "dense", "path": "dense.npy"},
                                           {"name": "keyed", "path": "keyed"}]}))
    place("--memory", 50000, "--nodes", 4, "--by", "columns", "--out", directory / "out", path)
    parts = [part["by"] for models in nodes_of(directory / "out") for part in models.values()]
    expect_equal(sorted(parts), ["columns"] * 2 + ["keys"] * (len(parts) - 2))


def test_versions_stay_together(directory):
    save_tables(directory, {"a": 1000, "b": 900})
    path = directory / "config.json"
    path.write_text(json.dumps({"models": [{"name": "m", "path": "a.npy"},
                                           {"name": "m", "path": "b.npy", "version": 2}]}))
    place("--memory", 130000, "--out", directory / "out", path)
    models = json.loads((directory / "out/node-0.json").read_text())["models"]
    expect_equal([(model["path"][-5:], model.get("version")) for model in models], [("a.npy", None), ("b.npy", 2)])


def test_what_is_asked_counts(directory, tables):
    """A table of which all is asked is alone on its node."""
    metrics = directory / "metrics"
    metrics.write_text('bagserve_gathered_bytes_total{model="tiny",version="1"} 1000000\n'
                       'bagserve_gathered_bytes_total{model="all",version="1"} 40\n')
    ended = place("--memory", "300000", "--nodes", 2, "--metrics", metrics, "--out", directory / "out", tables)
    expect_equal(nodes_of(directory / "out"), [{"tiny": None}, {"large": None, "middle": None, "small": None}])
    expect("100.0 %" in ended.stdout, ended.stdout)


@pytest.mark.parametrize("arguments, config, code, words", [
    ([], {}, 2, "--memory is missing: the bytes of tables that a node may hold, such as 64GiB"),
    (["--memory", "0"], {}, 2, "--memory 0: must be a size of at least 1 byte, such as 64GiB"),
    (["--memory", "many"], {}, 2, "--memory many: must be a size"),
    (["--memory", "1GiB", "--nodes", "0"], {}, 2, "--nodes"),
    (["--memory", "1GiB", "--by", "keys"], {}, 2, "--by"),
    (["--memory", "100000", "--nodes", "2"], {}, 1, "do not fit into 2 nodes of 100000 bytes"),
    (["--memory", "150000", "--address", "http://a"], {}, 2, "must have {index}"),
    (["--memory", "150000", "--address", "ftp://a{index}"], {}, 2, "must be http://HOST:PORT or unix:PATH"),
    (["--memory", "150000", "--address", "http://a:80000{index}"], {}, 2, "must be http://HOST:PORT or unix:PATH"),
    (["--memory", "1GiB"], {"models": [{"name": "x", "path": "tiny.npy", "projection": "matrix.npy"},
                                        {"name": "x", "path": "tiny.npy", "version": 2}]}, 2, "different projections"),
    (["--memory", "1GiB"], {"models": [{"name": "x", "path": "tiny.npy", "pth": 1}]}, 2, "config.json"),
    (["--memory", "1GiB", "--program", "/no/such"], {}, 2, "/no/such cannot be started: No such file"),
    (["--memory", "1GiB", "--metrics", "gone"], {}, 2, "gone cannot be read: No such file or directory"),
    (["--memory", "1GiB", "more"], {}, 2, "unrecognized arguments"),
    (["--memory", "1GiB"], {"models_dir": "."}, 2, "has a models_dir, of which nothing can be placed"),
    (["--memory", "1GiB"], {"models": [{"name": "x", "path": "tiny.npy",
                                        "part": {"by": "rows", "index": 0, "of": 1}}]}, 2, "has a part already"),
    (["--memory", "1GiB"], {"models": []}, 2, "names no table"),
    (["--memory", "1GiB"], {"models": [{"name": "gone", "path": "gone.npy"}]}, 2, "gone.npy"),
    (["--memory", "1GiB", "--metrics", "config.json"], {}, 2, "has no sample of bagserve_gathered_bytes_total"),])
def test_what_is_wrong(directory, tables, arguments, config, code, words):
    tables.write_text(json.dumps(json.loads(tables.read_text()) | config))
    arguments = [str(directory / word) if word == "config.json" else word for word in arguments]
    ended = place(*arguments, "--out", directory / "out", tables, code=code)
    expect(words in ended.stderr, ended.stderr)
    expect(not (directory / "out").exists(), "it wrote something")


def test_what_cannot_be_cut_so(directory):
    """Each node's file passes --check, however its tables are read."""
    save_tables(directory, {"v": 1000})
    np.save(directory / "cube.npy", np.zeros((1000, 4, 4), np.float32))
    np.save(directory / "keys.npy", np.arange(1000))
    out, path, mapped = directory / "out", directory / "config.json", {"path": "v.npy", "load": "map"}
    for keys, way in ((mapped, "rows"), ({"path": "cube.npy"}, "rows"), (mapped | {"mlock": True}, "rows"),
                      (mapped | {"keys": "keys.npy"}, "keys"), ({"path": "v.npy"}, "columns")):
        path.write_text(json.dumps({"models": [{"name": "t"} | keys]}))
        place("--memory", 50000, "--by", "columns", "--out", out, path)
        found = nodes_of(out)
        expect(len(found) > 1 and all(models["t"]["by"] == way for models in found), (keys, found))
        for node in range(len(found)):
            ended = run("serve", "--config", str(out / f"node-{node}.json"), "--check")
            expect_equal(ended.returncode, 0, ended.stderr)
    for keys in (mapped | {"default_index": 3}, mapped | {"keys": "keys.npy", "mlock": True}):
        path.write_text(json.dumps({"models": [{"name": "t"} | keys]}))
        ended = place("--memory", 50000, "--out", out, path, code=1)
        expect("can be cut into 1 parts" in ended.stderr, ended.stderr)


@pytest.mark.skipif(not has_openblas(), reason="libopenblas0-pthread is not installed")
def test_projections_and_forms_are_the_fronts(directory, rng):
    """What nodes have is added up before it is projected. Started as it was written, all answer as one server does."""
    np.save(directory / "v.npy", rng.integers(-99, 99, (1000, 16)).astype(np.float32))
    np.save(directory / "h.npy", rng.integers(-99, 99, (1000, 16)).astype(np.float16))
    np.save(directory / "matrix.npy", rng.integers(-9, 9, (16, 3)).astype(np.float32))
    np.save(directory / "bias.npy", rng.integers(-9, 9, 3).astype(np.float32))
    projected = {"projection": "matrix.npy", "bias": "bias.npy"}
    features = [{"name": "a", "model": "cut"}, {"name": "b", "model": "cut", "projection": ""}, {"name": "c", "model": "half"}]
    path = write_json(directory / "config.json", {"models": [
        {"name": "cut", "path": "v.npy", "form": "packed", "default_index": 7} | projected,
        {"name": "half", "path": "h.npy", "output_datatype": "FP16", "reduction": "mean"} | projected,
        {"name": "all", "features": features}]})
    out = directory / "out"
    for by in ("rows", "columns"):
        place("--memory", 40000, "--by", by, "--out", out, "--address", "unix:%s/{index}" % directory, path)
        expect(not any("projection" in (out / f"node-{node}.json").read_text() for node in range(len(nodes_of(out)))), "nodes project")
        expect_equal((out / "haproxy.map").read_text(), "cut coordinator\nhalf coordinator\nall coordinator\n")
        with contextlib.ExitStack() as stack:
            for node in range(len(nodes_of(out))):
                stack.enter_context(Server("--config", out / f"node-{node}.json", "--unix", directory / str(node)))
            front, one = (stack.enter_context(Server("--config", config)) for config in (out / "coordinator.json", path))
            asked, compared = (stack.enter_context(Client(ready(server))) for server in (front, one))
            expect_equal(asked.get("/v2/models/cut").expect().json()["inputs"], compared.get("/v2/models/cut").expect().json()["inputs"])
            for model, inputs in (("cut", ["indices"]), ("half", ["indices"]), ("all", ["a.indices", "b.indices", "c.indices"])):
                for shape in ((3, 0), (5, 2), (1, 40)):
                    tensors = [Tensor(name, rng.integers(0, 1000, shape)) for name in inputs]
                    got, want = (client.infer(model, tensors).expect().json() for client in (asked, compared))
                    expect_equal(got, want, (by, model, shape))


def test_the_front_keeps_what_shards_have(directory, tables):
    config = json.loads(tables.read_text())
    config["models"].append({"name": "far", "shards": ["http://far:8000"]})
    tables.write_text(json.dumps(config))
    place("--memory", "1GiB", "--out", directory / "out", tables)
    expect("far" not in nodes_of(directory / "out")[0], "a node has it")
    front = json.loads((directory / "out/coordinator.json").read_text())
    expect_equal(front["models"][-1], config["models"][-1])
    expect("far coordinator\n" in (directory / "out/haproxy.map").read_text(), "the map lacks it")


def test_files_that_were_changed(directory, tables):
    """Two parts on one node, of which the node could serve but one."""
    out = directory / "out"
    out.mkdir()
    models = [{"name": "large", "part": {"by": "rows", "index": index, "of": 2}} for index in range(2)]
    (out / "node-0.json").write_text(json.dumps({"models": models}))
    (out / "node-1.json").write_text(json.dumps({"models": []}))
    place("--memory", "150000", "--out", out, tables)
    expect_equal([models["large"]["index"] for models in nodes_of(out)], [0, 1])


def test_earlier_files_that_are_wrong(directory, tables):
    """Entries without a name or with an impossible part are as if they were not there; a file that is not JSON is an
    error."""
    out = directory / "out"
    out.mkdir()
    parts = [1, {"index": 2, "of": 2}, {"index": -1, "of": 2}, {"index": 0, "of": 1e300}, {"index": 0.5, "of": 2},
             {"index": True, "of": 2}, {"index": 0, "of": 5000}]
    for models in (1, [1, {}, {"name": 1}, {"name": ["large"]}], *([{"name": "large", "part": part}] for part in parts)):
        write_json(out / "node-0.json", {"models": models})
        ended = place("--memory", "1GiB", "--out", out, tables)
        expect("0 bytes are elsewhere than before (0.0 %)" in ended.stdout, (models, ended.stdout))
    for text in ("{}", "[]"):
        (out / "node-0.json").write_text(text)
        place("--memory", "1GiB", "--out", out, tables)
    (out / "node-0.json").write_text("{")
    ended = place("--memory", "1GiB", "--out", out, tables, code=2)
    expect("node-0.json is not JSON" in ended.stderr, ended.stderr)


def test_paths_become_absolute(directory, tables):
    """A node's configuration names the same files wherever it is; absolute paths stay."""
    np.save(directory / "keys.npy", np.arange(200))
    models = [{"name": "a", "path": "tiny.npy", "version": 1}, {"name": "b", "path": "small.npy", "keys": "keys.npy"},
              {"name": "a", "path": str(directory / "tiny.npy"), "version": 2},
              {"name": "c", "features": [{"name": "x", "model": "a", "projection": "p.npy"}]}]
    write_json(tables, {"http": {"port": 9000}, "models": models, "log": {"log_level": "info"}})
    out = directory / "out"
    place("--memory", "1GiB", "--out", out, tables)
    tiny = str(directory.resolve() / "tiny.npy")
    node, front = (json.loads((out / name).read_text()) for name in ("node-0.json", "coordinator.json"))
    expect_equal(node, {"http": {"port": 9000}, "log": {"log_level": "info"}, "models": [
        {"name": "a", "path": tiny, "version": 1},
        {"name": "b", "path": str(directory.resolve() / "small.npy"), "keys": str(directory.resolve() / "keys.npy")},
        {"name": "a", "path": str(directory / "tiny.npy"), "version": 2}]})
    expect_equal(front["models"], [
        {"name": "a", "shards": ["http://node-0:8000"]}, {"name": "b", "shards": ["http://node-0:8000"]},
        {"name": "c", "features": [{"name": "x", "model": "a", "projection": str(directory.resolve() / "p.npy")}]}])


def test_metrics_lines(directory, tables):
    """Labels in any order and with escapes; what is no sample of the counter does not count."""
    metrics = directory / "metrics"
    metrics.write_text('# HELP bagserve_gathered_bytes_total{model="tiny"} 5\n'
                       'bagserve_gathered_bytes_total{version="\\"1,model=\\"",model="small"} 1e3\n'
                       'bagserve_gathered_bytes_total{version="1",model="large"} NaN\n'
                       'bagserve_gathered_bytes_total{version="1",model="large"} -1\n'
                       'bagserve_gathered_bytes_total{version="1",model="large"} 1e30\n'
                       'bagserve_gathered_bytes_total 7\n'
                       'bagserve_gathered_bytes_total{model="tiny",version="1"} 3000 1700000000000\n'
                       'bagserve_gathered_bytes_total_more{model="middle"} 9\n')
    ended = place("--memory", "1GiB", "--nodes", 2, "--metrics", metrics, tables)
    expect_equal([line.split()[-2] for line in ended.stdout.splitlines() if line.startswith("node-")], ["75.0", "25.0"])
