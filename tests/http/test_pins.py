"""Features that pin the version of their table: what answers, what stays in memory, and what is refused."""

import contextlib
import os
import shutil
import signal

import numpy as np
import pytest

from control import (COLUMNS, KEYS_TWICE, index, publish, publish_keyed, replace, rows_of, serve, served, served_together,
                     tokens)
from example import i64
from harness import Server, expect, expect_equal, run, wait_until, write_json
from live_versions import delta
from updates import update
from v2 import Client

TABLES = ["t", "u"]
FEATURES = [f"f_{table}" for table in TABLES]


def pinned(root, version, name="c", tables=TABLES, pin=None):
    """A version of a collection that pins its tables, which appears complete."""
    folder = root / name / f".new-{version}"
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {"features": [
        {"name": f"f_{table}", "model": table, "version": pin or version} for table in tables]})
    os.rename(folder, root / name / str(version))


def hour(root, version, tables=TABLES):
    """Tables and the collection that was trained with them."""
    for table in tables:
        publish(root, table, version)
    pinned(root, version, tables=tables)


def policy(root, name, value):
    (root / name).mkdir(parents=True, exist_ok=True)
    write_json(root / name / "config.json", {"version_policy": value})


def answers(client, version=None, features=FEATURES, name="c"):
    """The versions of the tables that answer for a version of the collection; or a status."""
    return served_together(client, name, features, version)


def states(client, name):
    return {version: state for version, (state, _) in index(client, name).items()}


def reason(client, name, version):
    return index(client, name)[str(version)][1]


def both(client):
    """Two hours, side by side."""
    expect_equal([answers(client, 1), answers(client, 2), answers(client)], [[1, 1], [2, 2], [2, 2]])


# ---- side by side ------------------------------------------------------------------------------------------------


def test_two_versions_side_by_side(directory, root):
    """Each answers from its own tables: after a start, a load, a group, a restart, and a configuration that is read
    again."""
    policy(root, "c", {"latest": 2})
    hour(root, 1)
    with serve(directory) as server:
        expect_equal(answers(server.client), [1, 1])
        hour(root, 2)
        server.admin.group(*({"name": name} for name in [*TABLES, "c"])).expect(200)
        both(server.client)
        expect_equal(states(server.client, "t"), {"1": "READY", "2": "READY"})
        expect_equal((served(server.client), served(server.client, version=1)), (2, 1))
        server.admin.load("t").expect(200)
        server.admin.load("c").expect(200)
        both(server.client)
        hour(root, 3, tables=["t"])
        server.admin.load("t").expect(200)
        both(server.client)
        expect_equal(states(server.client, "t"), {"1": "READY", "2": "READY", "3": "READY"})
        shutil.rmtree(root / "c" / "3")
        server.process.send_signal(signal.SIGHUP)
        server.wait_event("change done", 5)
        both(server.client)
    with serve(directory) as server:
        both(server.client)
        expect_equal(served(server.client), 3)


def test_unpinned_feature_follows_the_default_version(directory, root):
    publish(root, "t", 1)
    publish(root, "u", 1)
    (root / "c" / "1").mkdir(parents=True)
    write_json(root / "c" / "1" / "config.json", {"features": [
        {"name": "f_t", "model": "t", "version": "1"}, {"name": "f_u", "model": "u"}]})
    with serve(directory) as server:
        publish(root, "t", 2)
        publish(root, "u", 2)
        server.admin.group({"name": "t"}, {"name": "u"}).expect(200)
        expect_equal(answers(server.client), [1, 2])
        expect_equal(states(server.client, "u"), {"2": "READY"})
        server.admin.load("u", 1).expect(200)
        expect_equal(answers(server.client), [1, 1])


def test_poll_moves_from_hour_to_hour(directory, root):
    """Tables go with the version of the collection that pinned them."""
    hour(root, 1)
    with serve(directory, "--poll-seconds", "0.1", mode="poll") as server:
        for version in (2, 3, 4):
            hour(root, version)
            wait_until(lambda want=[version] * 2: answers(server.client) == want, f"version {version} is not served")
            wait_until(lambda want={str(version): "READY"}: states(server.client, "t") == want, "old tables stay")
            expect_equal(states(server.client, "c"), {str(version): "READY"})


def test_collection_waits_for_its_tables(directory, root):
    """A version whose tables have not come yet is passed over, and the one before answers from its own."""
    hour(root, 1)
    with serve(directory, "--poll-seconds", "0.1", mode="poll") as server:
        pinned(root, 2)
        wait_until(lambda: "2" in states(server.client, "c"), "version 2 is not in the index")
        why = reason(server.client, "c", 2)
        expect("model 'c' version 2, feature 'f_t': version 2 of model 't'" in why and "not there" in why, why)
        publish(root, "t", 2)
        wait_until(lambda: served(server.client) == 2, "the table is not served")
        expect_equal(answers(server.client), [1, 1])
        publish(root, "u", 2)
        wait_until(lambda: answers(server.client) == [2, 2], "version 2 is not served")
        wait_until(lambda: states(server.client, "t") == {"2": "READY"}, "the old table stays")


def test_poll_looks_at_all_pinned_tables_at_once(directory, root):
    """Of a new version, also at those that version_policy passes over: the poll after the one that has found it serves
    it, however many they are. Another table, published last, says how many polls there were at most."""
    tables = [f"t{i}" for i in range(16)]
    for table in tables:
        policy(root, table, {"specific": [1]})
    hour(root, 1, tables)
    publish(root, "mark", 1)
    with serve(directory, "--poll-seconds", "0.1", mode="poll") as server:
        hour(root, 2, tables)
        for version in (2, 3):
            publish(root, "mark", version)
            wait_until(lambda want=version: served(server.client, "mark") == want, f"mark/{version} is not served")
        features = [f"f_{table}" for table in tables]
        expect_equal(answers(server.client, features=features), [2] * len(tables))


def test_load_of_the_collection_alone(directory, root):
    """It loads the tables that it pins, and releases those of the version before, in one change. The default version
    of the tables stays."""
    hour(root, 1)
    with serve(directory) as server:
        hour(root, 2)
        server.admin.load("c").expect(200)
        expect_equal(answers(server.client), [2, 2])
        expect_equal((served(server.client), states(server.client, "t")), (1, {"1": "READY", "2": "READY"}))
        server.admin.load("c", 1).expect(200)
        expect_equal((answers(server.client), states(server.client, "t")), ([1, 1], {"1": "READY"}))


@pytest.mark.parametrize("kind", [{"latest": 1}, {"specific": [9]}, {"specific": [2]}])
def test_policy_of_the_table_does_not_matter(directory, kind, root):
    policy(root, "c", "all")
    policy(root, "t", kind)
    hour(root, 1)
    hour(root, 2)
    with serve(directory) as server:
        expect_equal([answers(server.client, v) for v in (1, 2)], [[1, 1], [2, 2]])
        server.admin.load("c").expect(200)
        expect_equal([answers(server.client, v) for v in (1, 2)], [[1, 1], [2, 2]])


def test_pins_are_shown(directory, root):
    """In metadata, the configuration, and by --check."""
    hour(root, 3)
    publish(root, "u", 4)
    (root / "d" / "1").mkdir(parents=True)
    write_json(root / "d" / "1" / "config.json", {"features": [
        {"name": "a", "model": "t", "version": "3"}, {"name": "b", "model": "u"}, {"name": "e", "model": "u",
                                                                                 "version": 3}]})
    with serve(directory) as server:
        shown = server.client.get("/v2/models/d").json()["parameters"]["features"]
        expect_equal([(f["name"], f["model"], f["version"], f.get("pinned")) for f in shown],
                     [("a", "t", "3", True), ("b", "u", "4", None), ("e", "u", "3", True)])
        shown = server.client.get("/v2/models/d/config").json()["parameters"]
        expect_equal([shown[f"{name}.version"]["string_value"] for name in "abe"], ["3", "4", "3"])
        expect_equal((shown["a.pinned"], "b.pinned" in shown), ({"string_value": "true"}, False))
    checked = run("serve", "--check", "--models", root).stdout.splitlines()
    expect("c version 3: 2 features; f_t pins t version 3, f_u pins u version 3" in checked, f"{checked}")
    expect("d version 1: 3 features; a pins t version 3, e pins u version 3" in checked, f"{checked}")
    shutil.rmtree(root / "u" / "3")
    checked = run("serve", "--check", "--models", root)
    expect_equal(checked.returncode, 1)
    expect("feature 'e': version 3 of model 'u', which it pins, is not there" in checked.stderr, checked.stderr)


def test_reply_says_which_versions_answered(directory, root):
    """Of the features that were pooled, once each, in JSON and before binary tensors."""
    policy(root, "c", "all")
    hour(root, 1)
    hour(root, 2)
    asked = {"table_versions": True}
    inputs = [i64(f"{feature}.indices", [[0, 7]]) for feature in FEATURES]
    both_ways = [{"name": "embeddings"}, {"name": "f_t"}]
    with serve(directory) as server:
        client = server.client
        for binary in (False, True):
            parameters = asked | {"binary_data_output": binary}
            for version in ("1", "2"):
                path = f"/v2/models/c/versions/{version}/infer"
                for outputs in (None, both_ways):
                    reply = client.infer("c", inputs, path=path, outputs=outputs, binary=binary, parameters=parameters)
                    expect_equal(reply.header()[0]["parameters"], {"table_versions": {"f_t": version, "f_u": version}})
                    expect_equal(len(reply.outputs()), 2)
                reply = client.infer("c", inputs, path=path, outputs=[{"name": "f_u"}], binary=binary, parameters=parameters)
                expect_equal(reply.header()[0]["parameters"], {"table_versions": {"f_u": version}})
            reply = client.infer("t", [i64("indices", [[1]])], binary=binary, parameters=parameters | {"explain": True})
            expect_equal(reply.header()[0]["parameters"]["table_versions"], {"embeddings": "2"})
            expect_equal(list(reply.header()[0]["parameters"]), ["explain", "table_versions"])
        expect("parameters" not in client.infer("c", inputs, parameters={"table_versions": False}).json(), "parameters")
        error = client.infer("c", inputs, parameters={"table_versions": 1}).expect(400).error()
        expect("table_versions" in error, error)


def test_over_shards(directory):
    """Where the shards serve both versions, so does the coordinator; a version that they do not have is refused by name.
    Its replies say which versions answered."""
    with contextlib.ExitStack() as stack:
        shards = []
        for index in range(2):
            root = directory / f"shard-{index}" / "models"
            for version in (1, 2):
                publish(root, "t", version)
            write_json(root / "t" / "config.json", {"version_policy": "all",
                                                    "part": {"by": "rows", "index": index, "of": 2}})
            shards.append(stack.enter_context(serve(root.parent)))
        root = directory / "models"
        policy(root, "c", "all")
        for version in (1, 2, 3):
            pinned(root, version, tables=["t"])
        config = write_json(directory / "c.json", {"models": [
            {"name": "t", "shards": [shard.url for shard in shards], "shard_token_file": str(tokens(directory))}]})
        server = stack.enter_context(serve(directory, "--config", config))
        client = server.client
        wait_until(lambda: states(client, "c") == {"1": "READY", "2": "READY", "3": "UNAVAILABLE"}, "c is not served")
        why = reason(client, "c", 3)
        expect("version 3 of model 't', which it pins, is not there" in why, why)
        for version in (1, 2):
            expect_equal(answers(client, version, ["f_t"]), [version])
            for binary in (False, True):
                reply = client.infer("c", [i64("f_t.indices", [[0, 7]])], path=f"/v2/models/c/versions/{version}/infer",
                                     binary=binary, parameters={"table_versions": True, "binary_data_output": binary})
                expect_equal(reply.header()[0]["parameters"], {"table_versions": {"f_t": str(version)}})
        expect_equal((served(client, "t"), states(client, "t")), (2, {"1": "READY", "2": "READY"}))
        for shard in shards:
            shard.admin.unload("t", version="1").expect(200)
        wait_until(lambda: isinstance(answers(client, 1, ["f_t"]), int), "version 1 answers")
        error = client.infer("c", [i64("f_t.indices", [[0, 7]])], path="/v2/models/c/versions/1/infer").error()
        expect("'t'" in error or "model t" in error, error)
        expect_equal(answers(client, 2, ["f_t"]), [2])
        for index, shard in enumerate(shards):
            publish(directory / f"shard-{index}" / "models", "t", 3)
            shard.admin.load("t").expect(200)
        wait_until(lambda: answers(client, 3, ["f_t"]) == [3], "version 3 is not served")
        expect_equal([answers(client, v, ["f_t"]) for v in (1, 2, 3)], [[1], [2], [3]])


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version, words", [
    (0, "version '0' in feature 'f' of model 'c' must be a whole number from 1 to 9007199254740991"),
    (1.5, "version '1.5' in"), ("x", "version 'x' in"), ("", "version '' in"), (-1, "version '-1' in"),
    (1e300, "must be a whole number"), (True, "version in feature 'f' of model 'c' must be a whole number from 1"),
    (None, "version in feature 'f'"), ([1], "version in feature 'f'")])
def test_wrong_pins(directory, version, words, root):
    publish(root, "t", 1)
    config = write_json(directory / "c.json", {"models_dir": str(root), "models": [
        {"name": "c", "features": [{"name": "f", "model": "t", "version": version}]}]})
    ended = run("serve", "--check", "--config", config)
    expect_equal(ended.returncode, 1)
    expect(words in ended.stderr, ended.stderr)


def test_pin_of_a_version_that_is_not_there(directory, root):
    publish(root, "t", 1)
    pinned(root, 1, tables=["t"], pin=7)
    config = write_json(directory / "c.json", {"models": [
        {"name": "named", "features": [{"name": "f", "model": "t", "version": 7}]}]})
    with serve(directory, "--config", config) as server:
        for name in ("c", "named"):
            why = reason(server.client, name, 1)
            expect(f"model '{name}' version 1" in why and "version 7 of model 't'" in why and "is not there" in why, why)
            expect_equal(states(server.client, name), {"1": "UNAVAILABLE"})
        error = server.admin.load("c").expect(409).error()
        expect("model 'c' version 1" in error and "version 7 of model 't'" in error, error)
        publish(root, "t", 7)
        server.admin.load("t").expect(200)
        expect_equal((answers(server.client, features=["f_t"]), answers(server.client, features=["f"], name="named")),
                     ([7], [7]))


@pytest.mark.parametrize("is_named", [True, False])
def test_other_version_lacks_its_table(directory, is_named, root):
    """Beside one that is served: the lowest one, whose tables were deleted, or a named one whose tables may come."""
    policy(root, "c", {"latest": 3})
    for version in (1, 2):
        publish(root, "t", version)
    arguments, first = [], {"1": "READY", "2": "READY"}
    if is_named:
        arguments = "--config", write_json(directory / "c.json", {"models": [
            {"name": "c", "version": v, "features": [{"name": "f_t", "model": "t", "version": v}]} for v in (1, 2, 3)]})
        shutil.rmtree(root / "c")
        first["3"] = "UNAVAILABLE"
    else:
        for version in (1, 2):
            pinned(root, version, tables=["t"])
    with serve(directory, *arguments) as server:
        expect_equal((states(server.client, "c"), answers(server.client, features=["f_t"])), (first, [2]))
    shutil.rmtree(root / "t" / "1")
    with serve(directory, *arguments) as server:
        for _ in range(2):
            expect_equal(states(server.client, "c"), first | {"1": "UNAVAILABLE"})
            expect("version 1 of model 't'" in reason(server.client, "c", 1), "the reason")
            expect_equal(answers(server.client, features=["f_t"]), [2])
            if not is_named:
                server.admin.load("c").expect(200)


@pytest.mark.parametrize("load_first", [True, False])
def test_version_without_its_table_is_counted_once(directory, load_first, root):
    """Whether a load of it fails, or a load of a version above it passes over it."""
    policy(root, "c", {"latest": 2})
    hour(root, 1)
    with serve(directory) as server:
        def counted():
            return server.client.counted("bagserve_failed_model_changes_total") - before

        before = server.client.counted("bagserve_failed_model_changes_total")
        pinned(root, 2, tables=["t"], pin=7)
        if load_first:
            server.admin.load("c", 2).expect(409)
            expect_equal(counted(), 1)
        hour(root, 3)
        passed_over = server.admin.load("c").expect(200)
        expect_equal((states(server.client, "c")["2"], answers(server.client), counted()), ("UNAVAILABLE", [3, 3], 1))
        expect("failed" not in passed_over.json(), passed_over.body)  # it is not newer than what serves
        server.admin.load("c").expect(200)
        expect_equal(counted(), 1)
        # Other reasons are of other files.
        (root / "t" / "7").mkdir()
        (root / "t" / "7" / "table.npy").write_bytes(b"damaged")
        server.admin.load("c").expect(200)
        expect_equal(counted(), 3)


def test_pin_of_a_version_that_cannot_be_loaded(directory, root):
    """Keys that are twice are found when they are read: the version of the collection before goes on."""
    publish_keyed(root, "t", 1)
    pinned(root, 1, tables=["t"])
    with serve(directory) as server:
        publish_keyed(root, "t", 2, KEYS_TWICE)
        pinned(root, 2, tables=["t"])
        why = server.admin.load("c").expect(400).error()
        expect("key 7" in why, why)
        why = server.admin.group({"name": "t"}, {"name": "c"}).expect(400).error()
        expect("key 7" in why, why)
        why = reason(server.client, "c", 2)
        expect("version 2 of model 't', which it pins" in why and "key 7" in why, why)
        expect_equal((answers(server.client, features=["f_t"]), served(server.client)), ([1], 1))
    with serve(directory) as server:
        expect_equal(answers(server.client, features=["f_t"]), [1])
        why = reason(server.client, "c", 2)
        expect("version 2 of model 't'" in why and "key 7" in why, why)
    with serve(directory, "--poll-seconds", "0.1", mode="poll") as server:
        expect_equal(answers(server.client, features=["f_t"]), [1])
        publish_keyed(root, "t", 3, KEYS_TWICE)
        pinned(root, 3, tables=["t"])
        wait_until(lambda: "3" in states(server.client, "c"), "version 3 is not in the index")
        expect_equal(answers(server.client, features=["f_t"]), [1])


def test_collection_is_not_pinned(directory, root):
    hour(root, 1)
    (root / "d" / "1").mkdir(parents=True)
    write_json(root / "d" / "1" / "config.json", {"features": [{"name": "f", "model": "c", "version": 1}]})
    with serve(directory) as server:
        why = reason(server.client, "d", 1)
        expect("'c' is a collection" in why, why)


# ---- links -------------------------------------------------------------------------------------------------------


def table_bytes(client):
    """Memory of all tables, of which a shared one counts once."""
    text = client.get("/metrics").expect(200).body.decode()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("bagserve_tables_bytes ")))


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_links_are_in_memory_once(directory, link, root):
    """Versions that are links to one file share a table, until one of them becomes another file. With --updates on
    none does: updates reach each by its number."""
    policy(root, "c", "all")
    hour(root, 1)

    def again(version):
        for name in TABLES:
            (root / name / str(version)).mkdir()
            link(root / name / "1" / "table.npy", root / name / str(version) / "table.npy")
        pinned(root, version)

    with serve(directory) as server:
        one = table_bytes(server.client) // 2
        again(2)
        server.admin.group(*({"name": name} for name in [*TABLES, "c"])).expect(200)
        expect_equal((answers(server.client, 1), answers(server.client, 2), answers(server.client)), ([1, 1],) * 3)
        expect_equal((table_bytes(server.client), states(server.client, "t")),
                     (2 * one, {"1": "READY", "2": "READY"}))
        replace(root / "t" / "2" / "table.npy", rows_of(5))
        server.admin.load("t").expect(200)
        expect_equal((answers(server.client, 1), answers(server.client, 2)), ([1, 1], [5, 1]))
        expect_equal(table_bytes(server.client), 3 * one)
    with serve(directory) as server:
        expect_equal((answers(server.client, 1), answers(server.client, 2)), ([1, 1], [5, 1]))
        expect_equal(table_bytes(server.client), 3 * one)
    with serve(directory, "--updates", "on") as server:
        expect_equal(answers(server.client, 2), [5, 1])
        expect_equal(table_bytes(server.client), 4 * one)


def test_links_with_other_rules_are_tables_of_their_own(directory, root):
    """A part, another array of the same file, and another reading of its bytes are no copies."""
    folder = directory / "files"
    folder.mkdir()
    np.savez(folder / "two.npz", a=rows_of(1), b=rows_of(2))
    os.link(folder / "two.npz", folder / "link.npz")
    np.save(folder / "codes.npy", np.full((4, 12), 7, np.uint8))
    os.link(folder / "codes.npy", folder / "other.npy")
    models = [("a", "two.npz", {"tensor": "a"}), ("b", "link.npz", {"tensor": "b"}), ("c", "link.npz", {"tensor": "a"}),
              ("d", "codes.npy", {}), ("e", "other.npy", {"row_format": "int8", "row_elements": 4}),
              ("f", "other.npy", {"part": {"by": "rows", "index": 0, "of": 2}})]
    config = write_json(directory / "c.json", {"models": [
        {"name": name, "path": str(folder / path)} | rules for name, path, rules in models]})
    with Server("--config", config) as server, Client(server) as client:
        expect_equal([served(client, name) for name in "abc"], [1, 2, 1])
        expect_equal(server.wait_event("ready")["bytes"], 2 * rows_of(1).nbytes + 48 + 48 + 24)


# ---- memory ------------------------------------------------------------------------------------------------------


def test_memory_for_two_hours(directory, root):
    """It is checked before anything is read, and the sentence says what does not fit together."""
    policy(root, "c", {"latest": 2})
    for version in (1, 2):
        publish(root, "t", version, np.full((8192, 4), version, np.float32))
        pinned(root, version, tables=["t"])
    words = "model 't' version 2 does not fit beside version 1, which model 'c' version 1 pins"
    arguments = "--max-table-bytes", "200KiB", "--log-level", "debug"
    ended = run("serve", "--models", root, *arguments)
    expect_equal(ended.returncode, 1)
    expect("max_table_bytes" in ended.stderr and words in ended.stderr, ended.stderr)
    os.rename(root / "c" / "2", directory / "c2")
    os.rename(root / "t" / "2", directory / "t2")
    with serve(directory, *arguments) as server:
        os.rename(directory / "t2", root / "t" / "2")
        os.rename(directory / "c2", root / "c" / "2")
        for names in (["c"], ["t", "c"], ["t"]):
            error = server.admin.group(*({"name": name} for name in names)).expect(503).error()
            expect("max_table_bytes" in error and words in error, error)
        expect_equal((answers(server.client, features=["f_t"]), states(server.client, "t")["1"]), ([1], "READY"))
        read = [e["version"] for e in server.events() if e["event"] == "loading table"]
        expect_equal(read, ["1"])


@pytest.mark.parametrize("mode", ["explicit", "poll"])
def test_unload_first(directory, mode, root):
    """A table that does not fit twice makes room for that of the next hour, and so does the collection that pins it."""
    (root / "t").mkdir(parents=True)
    write_json(root / "t" / "config.json", {"reload": "unload_first"})
    rows = np.full((8192, 4), 1, np.float32)
    publish(root, "t", 1, rows)
    pinned(root, 1, tables=["t"])
    polls = ["--poll-seconds", "0.1"] if mode == "poll" else []
    with serve(directory, "--max-table-bytes", "200KiB", *polls, mode=mode) as server:
        publish(root, "t", 2, 2 * rows)
        pinned(root, 2, tables=["t"])
        if mode == "explicit":
            server.admin.load("t").expect(503)
            expect_equal(answers(server.client, features=["f_t"]), [1])
            server.admin.group({"name": "t"}, {"name": "c"}).expect(200)
        wait_until(lambda: answers(server.client, features=["f_t"]) == [2], "version 2 is not served")
        wait_until(lambda: (states(server.client, "t"), states(server.client, "c")) == ({"2": "READY"},) * 2, "old versions")
        if mode == "poll":  # which tries the table alone at first
            expect_equal(server.client.counted("bagserve_failed_model_changes_total"), 0)
            expect(not [e for e in server.events() if e["event"] == "not loaded"], server.log())


# ---- updates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("journal", [True, False])
def test_updates_reach_pinned_versions(directory, journal, root):
    """As they reach all versions that serve; after a restart as well, if there is a journal."""
    def expect_rows():
        got = [rows(server.client, v) for v in (1, 2)]
        expect_equal(got, [[-1, 1, -3], [-1, 2, -3]])

    def rows(client, version):
        reply = client.infer("c", [i64("f_t.indices", [[0], [1], [7]])], path=f"/v2/models/c/versions/{version}/infer")
        return reply.expect(200).outputs()["f_t"].array[:, 0].tolist()

    policy(root, "c", "all")
    arguments = ["--updates", "on", *(["--journal-dir", directory / "journal"] if journal else [])]
    for version in (1, 2):
        hour(root, version, ["t"])
    with serve(directory, *arguments) as server:
        update(server.admin.client, "t", [0], [[-1] * COLUMNS]).expect(200)
        for version in (1, 2):
            delta(root / "t" / str(version), 2, [7], [[-3] * COLUMNS])
        server.admin.load("t").expect(200)
        server.admin.load("c").expect(200)
        expect_rows()
        hour(root, 3, ["t"])
        server.admin.load("t").expect(200)
        expect_rows()
        shutil.rmtree(root / "c" / "3")
        shutil.rmtree(root / "t" / "3")
    if journal:
        with serve(directory, *arguments) as server:
            expect_rows()


# ---- unloading ---------------------------------------------------------------------------------------------------


def test_unload_of_a_pinned_version(directory, root):
    policy(root, "c", "all")
    hour(root, 1)
    hour(root, 2)
    with serve(directory) as server:
        client, admin = server.client, server.admin
        error = admin.unload("t", version="1").expect(409).error()
        for words in ("model 't' version 1 is used by 'c' version 1, which pins it", "unload_dependents"):
            expect(words in error, error)
        error = admin.unload("t").expect(409).error()
        expect("which pins it" in error, error)
        both(client)
        admin.unload("t", version="1", unload_dependents=True).expect(200)
        expect_equal((states(client, "c"), states(client, "t")),
                     ({"1": "UNAVAILABLE", "2": "READY"}, {"1": "UNAVAILABLE", "2": "READY"}))
        expect_equal((states(client, "u"), answers(client)), ({"2": "READY"}, [2, 2]))
        admin.load("c", 1).expect(200)
        expect_equal([answers(client, 1), answers(client, 2)], [[1, 1], [2, 2]])
        admin.unload("t", unload_dependents=True).expect(200)
        expect_equal((answers(client), served(client)), (404, 404))


def test_pinned_version_goes_with_its_collection(directory, root):
    policy(root, "c", "all")
    hour(root, 1)
    hour(root, 2)
    with serve(directory) as server:
        server.admin.unload("c", version="1").expect(200)
        expect_equal((states(server.client, "t"), answers(server.client)), ({"2": "READY"}, [2, 2]))
        server.admin.unload("c").expect(200)
        expect_equal((states(server.client, "t"), served(server.client)), ({"2": "READY"}, 2))


def test_files_of_a_pinned_version_go(directory, root):
    """It serves what is in memory, as every version does."""
    hour(root, 1)
    with serve(directory, "--poll-seconds", "0.1", mode="poll") as server:
        publish(root, "t", 2)
        wait_until(lambda: served(server.client) == 2, "version 2 is not served")
        shutil.rmtree(root / "t" / "1")
        publish(root, "t", 3)
        wait_until(lambda: served(server.client) == 3, "version 3 is not served")
        expect_equal(answers(server.client), [1, 1])
