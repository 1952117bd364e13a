"""Versions of a folder of models: which are served, bad and half-copied ones, readiness, polling."""

import contextlib
import json
import os
import signal
import threading

import numpy as np
import pytest

from control import (BEARER, COLUMNS, KEYS_TWICE, ROWS, collection, index, publish, publish_keyed, replace, rows_of,
                     serve, served, served_together)
from example import i64
from harness import Server, expect, expect_equal, has_openblas, run, wait_until, write_json
from live_versions import all_rows
from updates import update
from v2 import Client, Raw, head


def truncate(path, bytes_off=8):
    os.truncate(path, path.stat().st_size - bytes_off)


@pytest.mark.parametrize("policy, want", [
    (None, [7]), ({"latest": 1}, [7]), ({"latest": 2}, [3, 7]), ({"latest": 9}, [1, 3, 7]),
    ("all", [1, 3, 7]), ({"specific": [1, 3]}, [1, 3]), ({"specific": [3, 5]}, [3])])
def test_policies(directory, policy, want):
    for version in (1, 3, 7):
        publish(directory / "models", "t", version)
    if policy:
        write_json(directory / "models" / "t" / "config.json", {"version_policy": policy})
    with Server("--models", directory / "models") as server, Client(server) as client:
        expect_equal(client.get("/v2/models/t").json()["versions"], [str(v) for v in want])
        expect_equal(served(client), want[-1])
        for version in (1, 3, 7):
            expect_equal(served(client, version=version), version if version in want else 404)
        expect_equal(set(index(client, "t")), {str(v) for v in want})
        shown = client.get("/v2/models/t/config").json()["version_policy"]
        kind, value = ("all", None) if policy == "all" else next(iter((policy or {"latest": 1}).items()))
        expect_equal(shown, {kind: {"all": {}, "latest": {"num_versions": value},
                                    "specific": {"versions": value}}[kind]})


@pytest.mark.parametrize("policy", [{"latest": 0}, {"latest": "1"}, {"latest": 1, "all": 1}, "latest",
                                    {"specific": []}, {"specific": [0]}, [1], {"specific": [1] * 17}])
def test_bad_policies(directory, policy):
    publish(directory / "models", "t", 1)
    write_json(directory / "models" / "t" / "config.json", {"version_policy": policy})
    ended = run("serve", "--check", "--models", directory / "models")
    expect_equal(ended.returncode, 1)
    for word in ("t/config.json", "version_policy", "or {", "[1, 3]"):
        expect(word in ended.stderr, ended.stderr)


def test_version_not_served_names_others(directory):
    for version in (1, 2, 5):
        publish(directory / "models", "t", version)
    write_json(directory / "models" / "t" / "config.json", {"version_policy": {"latest": 2}})
    with Server("--models", directory / "models") as server, Client(server) as client:
        error = client.get("/v2/models/t/versions/1").expect(404).error()
        expect("versions 2 and 5 are served" in error, error)


def test_many_models(directory):
    """They are listed in order, each name once, and with all versions in the index."""
    root, names = directory / "models", [f"t{i}" for i in range(70)]
    for name in names:
        publish(root, name, 1)
    for name in names[:9]:
        publish(root, name, 2)
        write_json(root / name / "config.json", {"version_policy": "all"})
    with Server("--models", root) as server, Client(server) as client:
        expect_equal(client.get("/v2/models").json()["models"], names)
        entries = client.request("POST", "/v2/repository/index", b"").expect().json()
        expect_equal([(e["name"], e["version"]) for e in entries],
                     [(name, v) for name in names for v in (["1", "2"] if name in names[:9] else ["1"])])


def test_bad_version_is_skipped(directory, root):
    """The newest good one is served; the others are in the index with their reasons."""
    for version in (1, 2, 3, 4):
        publish(root, "t", version)
    truncate(root / "t" / "3" / "table.npy")
    (root / "t" / "4" / "table.npy").write_bytes(b"\x93NUMPY")
    (root / "t" / "notes").mkdir()
    with Server("--models", root) as server, Client(server) as client:
        expect_equal(served(client), 2)
        client.get("/v2/health/ready").expect(200)
        found = index(client, "t")
        expect_equal({v: state for v, (state, _) in found.items()},
                     {"2": "READY", "3": "UNAVAILABLE", "4": "UNAVAILABLE"})
        expect("table.npy" in found["3"][1] and str(root) not in found["3"][1], found["3"][1])
        error = client.get("/v2/models/t/versions/3").expect(404).error()
        expect("version 2 is served" in error and found["3"][1] in error, error)
        skipped = [e for e in server.events() if e["event"] == "skipped"]
        expect(skipped and skipped[0]["path"].endswith("t/notes"), f"{skipped}")


def test_versions_that_cannot_be_loaded(directory, root):
    """Each is tried once, and the start goes on."""
    for version in (1, 2, 3):
        publish_keyed(root, "t", version, KEYS_TWICE)
    publish(root, "u", 1)
    with Server("--models", root, "--log-level", "debug") as server, Client(server) as client:
        expect_equal((served(client), served(client, "u")), (503, 1))
        expect("key 7" in index(client, "t")["3"][1], f"{index(client, 't')}")
        tries = [e for e in server.events() if e["event"] == "loading table" and e["model"] == "t"]
        expect_equal(len(tries), 3)


def test_start_says_what_it_goes_without(directory, root):
    """Each version that cannot be loaded is logged once with its reason, also where an older one serves, and the
    memory that `ready` names is that of what serves."""
    for name in ("t", "u", "w"):
        publish(root, name, 1)
    truncate(publish(root, "t", 2))
    publish(root, "u", 2, settings={"missing": "perhaps"})
    publish_keyed(root, "k", 1, KEYS_TWICE)
    with polling(directory) as server:
        publish(root, "mark", 1)
        wait_for(server.client, 1, "mark")
        unavailable = {(e["model"], e["version"]): e["reason"] for e in events(server, "model unavailable")}
        for version, word in {("t", "2"): "table.npy", ("u", "2"): "perhaps", ("k", "1"): "key 7"}.items():
            expect(word in unavailable[version], f"{version}: {unavailable}")
        expect_equal((len(events(server, "model unavailable")), len(unavailable)), (3, 3))
        expect_equal((server.wait_event("ready")["models"], server.wait_event("ready")["bytes"]),
                     (3, 3 * rows_of(1).nbytes))
        expect_equal(server.client.counted("bagserve_failed_model_changes_total"), 3)


def test_start_with_a_default_key_that_is_not_there(directory, root):
    """It is UNAVAILABLE from the first look on, and answers nothing."""
    publish_keyed(root, "t", 1)
    write_json(root / "t" / "config.json", {"missing": "default", "default_index": 99})
    publish(root, "u", 1)
    with serve(directory) as server:
        state, reason = index(server.client, "t")["1"]
        expect(state == "UNAVAILABLE" and reason.startswith("model 't'") and "default_index is 99" in reason,
               f"{state}: {reason}")
        expect_equal((served(server.client), served(server.client, "u")), (503, 1))


def test_folders_that_are_no_versions(directory, root):
    """A model without any is told, with the folder that may be meant for one."""
    publish(root, "good", 1)
    for name, folder in (("t", "v2"), ("u", "01"), ("w", "")):
        (root / name / folder).mkdir(parents=True)
        np.save(root / name / folder / "table.npy", rows_of(1))
    with Server("--models", root) as server, Client(server) as client:
        for name, folder in (("t", "'v2' is no version"), ("u", "'01' is no version"), ("w", "1")):
            ((state, reason),) = index(client, name).values()
            expect_equal(state, "UNAVAILABLE")
            expect(f"{name}: no version directory" in reason and folder in reason, reason)
        expect_equal(served(client, "good"), 1)


def test_folders_without_a_model(directory, root):
    """What zip archives and mkdir leave beside models is logged, is no model, and does not keep the probe at 503."""
    publish(root, "t", 1)
    (root / "__MACOSX" / "t" / "1").mkdir(parents=True)
    (root / "__MACOSX" / "t" / "1" / "._table.npy").write_bytes(b"x")
    (root / "empty").mkdir()
    (root / "hidden").mkdir()
    (root / "hidden" / ".DS_Store").write_bytes(b"x")
    (root / "text").mkdir()
    (root / "text" / "README.md").write_text("nothing")
    with Server("--models", root) as server, Client(server) as client:
        client.get("/v2/health/ready").expect(200)
        expect_equal(client.get("/v2/models").json()["models"], ["t"])
        said = {os.path.basename(event["path"]): (event["event"], event["reason"])
                for event in events(server, "skipped") + events(server, "ignored")}
        expect("macOS" in said["__MACOSX"][1], said)
        for name in ("empty", "hidden", "text"):
            expect(said[name][0] == "skipped" and "NAME/VERSION/" in said[name][1], said)
    expect_equal(run("serve", "--check", "--models", root).returncode, 0)


def test_model_without_a_good_version(directory, root):
    """Readiness is 503 where models do not change, and 200 where they may; the model's own is 503."""
    truncate(publish(root, "t", 1))
    publish(root, "u", 1)
    (root / "empty" / "v1").mkdir(parents=True)
    with Server("--models", root) as server, Client(server) as client:
        error = client.get("/v2/health/ready").expect(503).error()
        expect("'empty'" in error and "no version directory" in error, error)
        client.get("/v2/models/t/ready").expect(503)
        client.get("/v2/models/u/ready").expect(200)
        expect_equal((served(client), served(client, "u")), (503, 1))
        expect_equal(index(client, "t")["1"][0], "UNAVAILABLE")
    with serve(directory) as server:
        server.client.get("/v2/health/ready").expect(200)
        server.client.get("/v2/models/t/ready").expect(503)


def test_named_table_ends_the_start(directory, root):
    publish(root, "u", 1)
    bad = publish(directory, "t", 1)
    truncate(bad)
    for arguments in (["--table", f"t={bad}"], ["--config", write_json(
            directory / "c.json", {"models": [{"name": "t", "path": str(bad)}]})]):
        ended = run("serve", "--port", "0", "--models", root, *arguments)
        expect(ended.returncode == 1 and str(bad) in ended.stderr, ended.stderr)


FEWER = {"hash": ({"missing": "hash", "hash_rows": ROWS}, "hash_rows from 1 to 4"),
         "default": ({"missing": "default", "default_index": 6}, "default_index is 6")}


@pytest.mark.parametrize("rules, word", FEWER.values(), ids=FEWER)
@pytest.mark.parametrize("mode", ["explicit", "none", "poll"])
def test_named_collection_over_a_version_that_does_not_fit(directory, mode, rules, word, root):
    """A collection of the configuration does not end the start where a table in the folder is not as it needs
    it, which a load of that version is refused for: it is UNAVAILABLE, until there is a version that fits."""
    publish_keyed(root, "t", 1)
    publish(root, "u", 1)
    config = write_json(directory / "c.json", {"models": [
        {"name": "c", "features": [{"name": "f", "model": "t"} | rules]},
        {"name": "d", "features": [{"name": "f", "model": "u"}]}]})
    arguments = ["--config", config, *(["--poll-seconds", 0.2] if mode == "poll" else [])]
    with serve(directory, *arguments) as server:
        publish_keyed(root, "t", 2, range(4))
        error = server.admin.load("t").expect(400).error()
        expect(word in error and served_together(server.client, "c", ["f"]) == [1], error)
    with serve(directory, *arguments, mode=mode) as server:
        client = server.client
        ((state, reason),) = index(client, "c").values()
        expect(state == "UNAVAILABLE" and word in reason, f"{state}: {reason}")
        expect_equal([served_together(client, name, ["f"]) for name in "cd"], [503, [1]])
        expect_equal(client.get("/v2/health/ready").status, 503 if mode == "none" else 200)
        publish_keyed(root, "t", 3)
        if mode == "explicit":
            publish_keyed(root, "t", 4, range(4))
            server.admin.load("t").expect(200)
            expect_equal((server.admin.states("t"), served_together(client, "c", ["f"])), ({"4": "READY"}, 503))
            server.admin.load("t", 3).expect(200)
        if mode != "none":
            wait_until(lambda: served_together(client, "c", ["f"]) == [3], "version 3 is not pooled")


@pytest.mark.parametrize("rules, word", FEWER.values(), ids=FEWER)
def test_sighup_and_a_named_collection_that_does_not_fit(directory, rules, word, root):
    """What a start goes without does not keep the rest of a configuration from being read again, whether it
    was named before or is named now; one that serves goes on. --check says it in the same words."""
    publish_keyed(root, "t", 1, range(4))
    np.save(directory / "own.npy", rows_of(9))
    named = {"name": "c", "features": [{"name": "f", "model": "t"} | rules]}
    config = write_json(directory / "c.json", {"models": [named]})

    def read_again(server, event, *models):
        write_json(config, {"models": models})
        known = len(events(server, event))
        server.send(signal.SIGHUP)
        wait_until(lambda: len(events(server, event)) > known, f"no {event}")

    checked = run("serve", "--check", "--models", root, "--config", config)
    expect(checked.returncode == 1 and word in checked.stderr, checked.stderr)
    with serve(directory, "--config", config) as server:
        own, again = {"name": "own", "path": "own.npy"}, named | {"name": "again"}
        read_again(server, "change done", named, own, again)
        expect_equal((served(server.client, "own"), server.admin.states("t")), (9, {"1": "READY"}))
        for name in ("c", "again"):
            ((state, reason),) = index(server.client, name).values()
            expect(state == "UNAVAILABLE" and word in reason, f"{state}: {reason}")
        publish_keyed(root, "t", 2)
        read_again(server, "change done", named, own, again)
        expect_equal([served_together(server.client, name, ["f"]) for name in ("c", "again")], [[2], [2]])
        publish_keyed(root, "t", 3, range(4))
        read_again(server, "change failed", named)
        expect_equal([served_together(server.client, "c", ["f"]), served(server.client, "own")], [[2], 9])


def test_named_collection_ends_the_start(directory, root):
    """Where what is wrong is the configuration's: a table of its own, a name, or a file."""
    publish(root, "t", 1)
    np.save(directory / "own.npy", rows_of(1))
    for feature, word in (({"model": "own", "out_of_range": "default"}, "default_index"),
                          ({"model": "nobody"}, "'nobody'"), ({"model": "t", "projection": "no.npy"}, "no.npy")):
        config = write_json(directory / "c.json", {"models": [
            {"name": "own", "path": "own.npy"}, {"name": "c", "features": [{"name": "f"} | feature]}]})
        ended = run("serve", "--port", "0", "--models", root, "--config", config)
        expect(ended.returncode == 1 and word in ended.stderr, ended.stderr)


def test_collection_over_a_bad_table(directory, root):
    """It is UNAVAILABLE with it, and others are served."""
    publish(root, "u", 1)
    truncate(publish(root, "t", 1))
    collection(root, "both", ["t", "u"])
    collection(root, "one", ["u"])
    with Server("--models", root) as server, Client(server) as client:
        state, reason = index(client, "both")["1"]
        expect(state == "UNAVAILABLE" and "'t'" in reason, f"{state}: {reason}")
        expect_equal(served_together(client, "one", ["f_u"]), [1])


def test_collection_over_a_collection(directory, root):
    """Where the newest version of its table cannot be served, and the one before is a collection."""
    publish(root, "t", 1)
    collection(root, "m", ["t"])
    truncate(publish(root, "m", 2))
    collection(root, "c", ["m"])
    with Server("--models", root) as server, Client(server) as client:
        expect_equal(served_together(client, "m", ["f_t"]), [1])
        state, reason = index(client, "c")["1"]
        expect(state == "UNAVAILABLE" and "'m'" in reason and "is a table" in reason, f"{state}: {reason}")


def test_shared_settings(directory, root):
    """NAME/config.json holds for all versions, and a version's own for itself."""
    publish(root, "t", 1)
    publish(root, "t", 2, settings={"reduction": "sum"})
    write_json(root / "t" / "config.json", {"version_policy": "all", "reduction": "max"})
    with Server("--models", root) as server, Client(server) as client:
        for version, want in (("1", "max"), ("2", "sum")):
            document = client.get(f"/v2/models/t/versions/{version}/config").json()
            expect_equal(document["parameters"]["reduction"]["string_value"], want)


def test_ready_file(directory, root):
    publish(root, "t", 1)
    publish(root, "t", 2)
    (root / "t" / "1" / "_READY").touch()
    with serve(directory, "--ready-file", "_READY") as server:
        expect_equal(served(server.client), 1)
        state, reason = index(server.client, "t")["2"]
        expect(state == "UNAVAILABLE" and "_READY" in reason, reason)
        (root / "t" / "2" / "_READY").touch()
        server.admin.load("t").expect()
        expect_equal(served(server.client), 2)


# ---- polling ----------------------------------------------------------------------------------
def wait_for(client, version, model="t"):
    wait_until(lambda: served(client, model) == version, f"{model} is not of version {version}")


def polling(directory, *arguments):
    return serve(directory, "--poll-seconds", 0.2, *arguments, mode="poll")


def test_poll(directory, root):
    """A new version is served, a bad one is not, and is when it is whole."""
    publish(root, "t", 1)
    collection(root, "c", ["t"])
    with polling(directory) as server:
        expect_equal(served(server.client), 1)
        publish(root, "t", 2)
        wait_for(server.client, 2)
        expect_equal(served(server.client, version=1), 404)
        expect_equal(served_together(server.client, "c", ["f_t"]), [2])
        whole = publish(directory / "aside", "t", 3)
        half = directory / "half"
        half.mkdir()
        (half / "table.npy").write_bytes(whole.read_bytes()[:-4])
        os.rename(half, root / "t" / "3")
        wait_until(lambda: "3" in index(server.client, "t"), "version 3 is not in the index")
        expect_equal(index(server.client, "t")["3"][0], "UNAVAILABLE")
        expect_equal(served(server.client), 2)
        os.replace(whole, root / "t" / "3" / "table.npy")
        wait_for(server.client, 3)
        publish(root, "new", 5)
        wait_for(server.client, 5, "new")


def test_poll_takes_replaced_files(directory, root):
    path = publish(root, "t", 1)
    with polling(directory) as server:
        replace(path, rows_of(9))
        wait_for(server.client, 9)
        expect_equal(set(index(server.client, "t")), {"1"})


def write_over(path, table, **options):
    """Writes another table into the same file, and puts its time of modification back."""
    state = path.stat()
    with open(path, "r+b") as file:
        np.save(file, table, **options)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    expect_equal((path.stat().st_size, path.stat().st_mtime_ns), (state.st_size, state.st_mtime_ns))


def let_polls_pass(server, root, first):
    for version in (first, first + 1):
        publish(root, "mark", version)
        wait_for(server.client, version, "mark")


def test_poll_takes_files_written_over(directory, root):
    """Of the same size and time: whether or not links were made before, and for a request, too."""
    path = publish(root, "t", 1)
    with polling(directory) as server:
        write_over(path, rows_of(2))
        wait_for(server.client, 2)
        os.link(path, directory / "copy.npy")
        let_polls_pass(server, root, 1)
        write_over(path, rows_of(3))
        wait_for(server.client, 3)
        expect_equal(set(index(server.client, "t")), {"1"})
    with serve(directory) as server:
        write_over(path, rows_of(4))
        server.admin.load("t").expect(200)
        expect_equal(served(server.client), 4)


def test_poll_takes_a_projection_written_over(directory, root):
    matrix = directory / "matrix.npy"
    np.save(matrix, np.eye(4, dtype=np.float32))
    publish(root, "t", 1, settings={"projection": str(matrix)})
    with polling(directory) as server:
        expect_equal(served(server.client), 1)
        write_over(matrix, 5 * np.eye(4, dtype=np.float32))
        wait_until(lambda: 5 in server.client.infer("t", [i64("indices", [[1]])]).embeddings(), "the old matrix is used")


def link_version(path, version):
    """Another version, which appears complete, whose table is a hard link."""
    folder = path.parent.with_name(".new")
    folder.mkdir()
    os.link(path, folder / "table.npy")
    os.rename(folder, path.parent.with_name(str(version)))


def test_links_are_no_changes(directory, root):
    """A link of a served file is made and removed elsewhere, or in the folders of other versions."""
    path = publish(root, "t", 2)
    link_version(path, 1)
    write_json(root / "t" / "config.json", {"version_policy": {"latest": 2}})
    with polling(directory, "--log-level", "debug") as server:
        def reads():
            """Both versions share one table, whichever of them read it."""
            return len([e for e in events(server, "loading table") if e["model"] == "t"])

        os.link(path, directory / "copy.npy")
        let_polls_pass(server, root, 1)
        os.unlink(directory / "copy.npy")
        let_polls_pass(server, root, 3)
        expect_equal(reads(), 1)
        # Version 3 takes the place of version 1, and the number of links stays the same.
        link_version(path, 3)
        (root / "t" / "1" / "table.npy").unlink()
        (root / "t" / "1").rmdir()
        wait_until(lambda: index(server.client, "t").get("3", "?")[0] == "READY", "version 3 is not served")
        let_polls_pass(server, root, 5)
        expect_equal((reads(), served(server.client, version=2)), (1, 2))
        path.chmod(0o600)
        wait_until(lambda: reads() == 2, "a change that may be a write is passed over")
        expect_equal(served(server.client, version=2), 2)
        write_over(path, rows_of(9))
        wait_until(lambda: [served(server.client, version=version) for version in (2, 3)] == [9, 9],
                   "a write is not seen through both links")


def test_poll_waits_until_files_rest(directory, root):
    """Whole by its header, but written to: it is loaded when it was the same in two polls."""
    publish(root, "t", 1)
    publish(root, "mark", 1)
    with polling(directory) as server:
        path = publish(root, "t", 2)
        writing = threading.Event()

        def write():
            while not writing.wait(0.05):
                with open(path, "r+b") as file:
                    file.seek(-1, os.SEEK_END)
                    file.write(b"@")

        writer = threading.Thread(target=write)
        writer.start()
        for version in (2, 3):  # four polls at least
            publish(root, "mark", version)
            wait_for(server.client, version, "mark")
        expect_equal(served(server.client), 1)
        writing.set()
        writer.join()
        wait_for(server.client, 2)


def test_poll_keeps_what_serves(directory, root):
    """Files that go, or break, leave what is in memory."""
    publish(root, "t", 1)
    publish(root, "u", 1)
    with polling(directory) as server:
        truncate(root / "t" / "1" / "table.npy")
        os.rename(root / "u", directory / "u")
        publish(root, "w", 1)
        wait_for(server.client, 1, "w")
        expect_equal((served(server.client), served(server.client, "u")), (1, 1))


def test_poll_leaves_what_lacks_updates(directory):
    """A version that cannot be brought up to date is not read with every poll."""
    path = publish(directory / "models", "t", 1)
    with polling(directory, "--updates", "on", "--journal-dir", directory / "journal",
                 "--log-level", "debug") as server:
        replace(path, rows_of(2, columns=COLUMNS + 1))
        event = server.wait_event("not loaded")
        expect("journal" in event["reason"], f"{event}")
        publish(directory / "models", "u", 7)
        wait_for(server.client, 7, "u")
        expect_equal(served(server.client), 1)
        tries = [e for e in server.events() if e["event"] == "loading table" and e["model"] == "t"]
        expect_equal(len(tries), 2)


def test_poll_says_a_problem_once(directory, root):
    """Of each model, however many others have one."""
    publish(root, "t", 1)
    with polling(directory, "--max-table-bytes", "1KiB") as server:
        for name, rows in (("u", 1000), ("v", 2000)):
            publish(root, name, 1, rows_of(1, rows))
        wait_until(lambda: len(events(server, "not loaded")) >= 2, "nothing is said of them")
        for version in (2, 3):
            publish(root, "t", version)
            wait_for(server.client, version)
        for name in ("u", "v"):
            said = [e["reason"] for e in events(server, "not loaded") if e["model"] == name]
            expect(all(a != b for a, b in zip(said, said[1:])), f"{said}")


def test_poll_counts_what_is_bad(directory, root):
    """Each bad version once for as long as its files stay the same, whether a header, a rule or an element is wrong."""
    publish(root, "t", 1)
    publish(root, "mark", 1)
    with polling(directory) as server:
        def counted():
            return server.client.counted("bagserve_failed_model_changes_total")

        def poll_twice(first):
            for version in (first, first + 1):
                publish(root, "mark", version)
                wait_for(server.client, version, "mark")

        before = counted()
        truncate(publish(directory / "aside", "t", 2))
        os.rename(directory / "aside" / "t" / "2", root / "t" / "2")
        wait_until(lambda: counted() == before + 1, "a truncated file is not counted")
        publish(root, "u", 1, settings={"missing": "perhaps"})
        wait_until(lambda: counted() == before + 2, "an unknown rule is not counted")
        publish_keyed(root, "k", 1, KEYS_TWICE)
        wait_until(lambda: counted() == before + 3, "a key that is there twice is not counted")
        poll_twice(2)
        expect_equal(counted(), before + 3)
        truncate(root / "t" / "2" / "table.npy")
        wait_until(lambda: counted() == before + 4, "other files are not counted")
        poll_twice(4)
        expect_equal((counted(), served(server.client)), (before + 4, 1))


def test_time_of_the_last_change(directory, root):
    """It moves if a model begins or ceases to serve, and not for a version that is passed over."""
    publish(root, "t", 1)
    with serve(directory) as server:
        def changed():
            return server.client.metrics()["bagserve_last_model_change_timestamp_seconds"]

        at_first = changed()
        truncate(publish(root, "t", 2))
        server.admin.load("t").expect(200)
        expect_equal((changed(), index(server.client, "t")["2"][0]), (at_first, "UNAVAILABLE"))
        publish(root, "u", 1)
        server.admin.load("u").expect(200)
        expect(float(changed()) > float(at_first), f"{changed()}, {at_first}")


def test_poll_reads_a_bad_named_table_once(directory, root):
    publish(root, "mark", 1)
    publish_keyed(directory, "t", 1)
    config = write_json(directory / "c.json", {"models": [{"name": "t", "path": str(directory / "t" / "1")}]})
    with polling(directory, "--config", config, "--log-level", "debug") as server:
        expect_equal(served(server.client), 1)
        publish_keyed(directory, "other", 1, KEYS_TWICE)
        for name in ("keys.npy", "values.npy"):
            os.replace(directory / "other" / "1" / name, directory / "t" / "1" / name)
        expect("key 7" in server.wait_event("not loaded")["reason"], server.log())
        for version in range(2, 5):  # six polls at least
            publish(root, "mark", version)
            wait_for(server.client, version, "mark")
        tries = [e for e in events(server, "loading table") if e["model"] == "t"]
        expect_equal((len(tries), served(server.client)), (2, 1))
        expect("serves what was loaded before" in index(server.client, "t")["1"][1], f"{index(server.client, 't')}")


def test_poll_says_a_problem_again(directory, root):
    """After the model had none in between, whether its files are bad or memory does not suffice."""
    publish(root, "mark", 1)
    publish_keyed(root, "k", 1)
    publish_keyed(directory, "good", 1)
    for name in ("bad", "bad_again"):
        publish_keyed(directory, name, 1, KEYS_TWICE)
    with polling(directory, "--max-table-bytes", "4KiB") as server:
        def said(name):
            server.client.get("/v2/health/live")
            return [e["reason"] for e in events(server, "not loaded") if e["model"] == name]

        def replace_keys(name):
            os.replace(directory / name / "1" / "keys.npy", root / "k" / "1" / "keys.npy")

        replace_keys("bad")
        wait_until(lambda: len(said("k")) == 1, "bad keys are not said")
        replace_keys("good")
        wait_until(lambda: index(server.client, "k")["1"] == ("READY", ""), "it is not all right")
        replace_keys("bad_again")
        wait_until(lambda: len(said("k")) == 2, "bad keys are not said again")
        path = publish(root, "u", 1, rows_of(1, 1000))
        wait_until(lambda: len(said("u")) == 1, "a lack of memory is not said")
        path.write_bytes(b"garbage")
        wait_until(lambda: "1" in index(server.client, "u"), "other files are not seen")
        for version in (2, 3):  # two polls at least
            publish(root, "mark", version)
            wait_for(server.client, version, "mark")
        publish(directory / "aside", "u", 1, rows_of(1, 1000)).replace(path)
        wait_until(lambda: len(said("u")) == 2, "a lack of memory is not said again")
        for name, word in (("k", "key 7"), ("u", "max_table_bytes")):
            first, second = said(name)
            expect(first == second and word in first, f"{first}; {second}")


def test_poll_tries_collections_quietly(directory, root):
    """Those that could not be served are tried with each poll, and go on saying why."""
    publish_keyed(root, "t", 1, range(4))
    publish(root, "u", 1)
    names = [f"c{i}" for i in range(50)]
    config = write_json(directory / "c.json", {"models": [
        {"name": name, "features": [{"name": "f", "model": "t"} | FEWER["default"][0]]} for name in names]})
    with polling(directory, "--config", config) as server:
        seen = set()
        for version in (2, 3):
            publish(root, "u", version)
            while served(server.client, "u") != version:
                entries = server.client.request("POST", "/v2/repository/index", b"").expect().json()
                seen |= {(e["state"], FEWER["default"][1] in e["reason"]) for e in entries if e["name"] in names}
        expect_equal(seen, {("UNAVAILABLE", True)})
        publish_keyed(root, "t", 2)
        wait_until(lambda: served_together(server.client, names[-1], ["f"]) == [2], "it is not pooled")


def test_newer_collection_that_does_not_fit(directory, root):
    """It is passed over by a poll, a load and a start, and is served once there is a table that fits."""
    publish(root, "t", 1)
    collection(root, "c", ["t"])

    def passed_over(client):
        (state, reason), first = index(client, "c")["2"], index(client, "c")["1"]
        expect(state == "UNAVAILABLE" and "default_index" in reason and first == ("READY", ""), f"{state}: {reason}")
        return served_together(client, "c", ["f_t"])

    with polling(directory) as server:
        new = directory / "new"
        new.mkdir()
        write_json(new / "config.json", {"features": [{"name": "f_t", "model": "t", "default_index": 100}]})
        os.rename(new, root / "c" / "2")
        wait_until(lambda: "2" in index(server.client, "c"), "version 2 is not in the index")
        expect_equal(passed_over(server.client), [1])
        expect_equal(server.admin.load("c").expect(200).json()["models"], [{"name": "c", "versions": ["1"]}])
        expect_equal(server.admin.load("c", 2).status, 400)
        expect_equal(passed_over(server.client), [1])
    with polling(directory) as server:
        expect_equal(passed_over(server.client), [1])
        publish(root, "t", 2, rows_of(2, 200))
        wait_until(lambda: index(server.client, "c") == {"2": ("READY", "")}, "version 2 is not served")
        expect_equal(served_together(server.client, "c", ["f_t"]), [2])


def test_a_newer_bad_version_is_listed_above_the_one_asked_for(directory, root):
    """It is counted, logged and listed once, and a newer good one is served."""
    publish(root, "t", 1)
    publish(root, "t", 2)
    with polling(directory) as server:
        client, admin = server.client, server.admin
        admin.load("t", 1).expect(200)
        (root / "t" / "3").mkdir()
        (root / "t" / "3" / "table.npy").write_bytes(b"garbage")
        wait_until(lambda: "3" in index(client, "t"), "version 3 is not listed")
        state, reason = index(client, "t")["3"]
        expect(state == "UNAVAILABLE" and "table.npy" in reason, f"{state}: {reason}")
        expect_equal((index(client, "t")["1"], served(client)), (("READY", ""), 1))
        event = server.wait_event("model unavailable")
        expect_equal((event["model"], event["version"]), ("t", "3"))
        publish(root, "t", 4)
        wait_for(client, 4)
        expect_equal([e["version"] for e in server.events() if e["event"] == "model unavailable"], ["3"])


def test_poll_of_a_table_over_which_a_collection_cannot_be_made(directory, root):
    """Its keys show that when they are read, once. The collection goes on over the version before, and a request is
    carried out soon."""
    publish_keyed(root, "t", 1)
    publish(root, "u", 1)
    (root / "c" / "1").mkdir(parents=True)
    write_json(root / "c" / "1" / "config.json",
               {"features": [{"name": "f_t", "model": "t", "missing": "default", "default_index": 5}]})
    with polling(directory, "--log-level", "debug") as server:
        publish_keyed(root, "t", 2, [0, 1, 2, 3, 4, 6, 7, 8])
        wait_until(lambda: index(server.client, "t").get("2", ("",))[0] == "UNAVAILABLE", "version 2 is not listed")
        publish(root, "u", 2)
        server.admin.load("u").expect(200)
        publish(root, "u", 3)
        wait_until(lambda: served(server.client, "u") == 3, "polls have ended")
        expect_equal(served_together(server.client, "c", ["f_t"]), [1])
        expect("default_index is 5" in index(server.client, "t")["2"][1], f"{index(server.client, 't')}")
        read = [(e["model"], e["version"]) for e in events(server, "loading table")]
        expect_equal(read.count(("t", "2")), 1)


def test_load_while_a_poll_reads(directory, root):
    """A request does not wait for all tables that a poll has found."""
    names = [f"t{i}" for i in range(5)]
    for name in [*names, "z"]:
        publish(root, name, 1)
    # Each table takes most of a second.
    with polling(directory, "--load-bytes-per-second", "256KiB") as server:
        for name in names:
            publish(root, name, 2, rows_of(2, 256 * 1024 // rows_of(2, 1).nbytes))
        wait_until(lambda: server.client.get("/v2/health/live") and events(server, "model ready"), "nothing is read")
        publish(root, "z", 2)
        server.admin.load("z").expect(200)
        server.wait_event("change done")
        done = [e["event"] for e in server.events()].index("change done")
        for name in names:
            wait_for(server.client, 2, name)
        wait_until(lambda: server.client.get("/v2/health/live") and
                   len(events(server, "model ready")) == len(names) + 1, "not all are logged")
        ready = [i for i, e in enumerate(server.events()) if e["event"] == "model ready" and e["model"] != "z"]
        expect(done < ready[-1], server.log())


def test_polls_reach_models_behind_one_that_never_fits(directory, root):
    """Though a load waits whenever a poll has tried that one, and ends the poll: clients ask for loads without waiting for
    answers, and not all are made when the model behind is served."""
    rows, clients = 16384, 8
    for name in ("a", "z"):
        publish(root, name, 1)
    for version in (1, 2):
        publish(root, "m", version, rows_of(version, rows))
    write_json(root / "a" / "config.json", {"reload": "unload_first"})  # so that it changes alone
    # Each load of the other version of m takes a fifth of a second.
    with polling(directory, "--max-table-bytes", "8MiB", "--load-bytes-per-second", "1MiB") as server:
        publish(root, "a", 2, rows_of(2, 40 * rows))
        expect("max_table_bytes" in server.wait_event("not loaded")["reason"], server.log())
        bodies = [json.dumps({"parameters": {"version": str(version)}}).encode() for version in (1, 2)]
        asked = [head("POST", "/v2/repository/models/m/load", BEARER, body) for body in bodies]
        with contextlib.ExitStack() as stack:
            raws = [stack.enter_context(Raw(server.admin.client.server)) for _ in range(clients)]
            for i, raw in enumerate(raws):
                raw.send(asked[i % 2] + asked[1 - i % 2])
            publish(root, "z", 2)
            wait_for(server.client, 2, "z")
            done = len(events(server, "change done"))
            for raw in raws:
                for _ in asked:
                    raw.reply().expect(200)
            expect(done < clients * len(asked), "all loads were made before")
        expect_equal((served(server.client, "a"), index(server.client, "a")["1"]), (1, ("READY", "")))


def test_poll_of_tables_that_do_not_fit_twice(directory, root):
    """What memory does not hold twice is replaced one after the other."""
    rows = (8 << 20) // (COLUMNS * 4)
    paths = [publish(root, f"t{i}", 1, rows_of(1, rows)) for i in range(4)]
    with polling(directory, "--max-table-bytes", "44MiB") as server:
        for path in paths:
            replace(path, rows_of(2, rows))
        for i in range(4):
            wait_for(server.client, 2, f"t{i}")


def test_poll_after_a_rollback(directory, root):
    """An older version that was asked for stays until a still newer one appears."""
    for version in (1, 2):
        publish(root, "t", version)
    publish(root, "mark", 1)
    with polling(directory) as server:
        server.admin.load("t", "1").expect()
        expect_equal(served(server.client), 1)
        for version in (2, 3):  # two polls at least
            publish(root, "mark", version)
            wait_for(server.client, version, "mark")
        expect_equal(served(server.client), 1)
        publish(root, "t", 3)
        wait_for(server.client, 3)


# ---- SIGHUP -----------------------------------------------------------------------------------
def events(server, name):
    return [e for e in server.events() if e["event"] == name]


def test_sighup(directory):
    """The whole configuration: models that are named anew, changed, and gone."""
    for name in ("a", "b", "c"):
        np.save(directory / f"{name}.npy", rows_of(ord(name)))
    (directory / "models").mkdir()
    publish(directory / "models", "t", 1)
    config = directory / "config.json"

    def write(models):
        write_json(config, {"models": models})

    write([{"name": "a", "path": "a.npy"}, {"name": "b", "path": "b.npy"}])
    with serve(directory, "--config", config) as server:
        expect_equal((served(server.client, "a"), served(server.client, "b")), (97, 98))
        publish(directory / "models", "t", 2)
        write([{"name": "a", "path": "c.npy"}, {"name": "c", "path": "c.npy"}])
        server.send(signal.SIGHUP)
        wait_until(lambda: served(server.client, "c") == 99, "model c is not served")
        expect_equal([served(server.client, name) for name in ("a", "b", "t")], [99, 404, 2])
        expect_equal(server.wait_event("change done")["asked_by"], "SIGHUP")
        config.write_text("{")
        server.send(signal.SIGHUP)
        wait_until(lambda: server.client.get("/v2/health/live") and events(server, "change failed"),
                   "a broken file is not rejected")
        write([{"name": "a", "path": "nowhere.npy"}])
        server.send(signal.SIGHUP)
        wait_until(lambda: server.client.get("/v2/health/live") and
                   len(events(server, "change failed")) == 2, "a missing table is not rejected")
        expect_equal([served(server.client, name) for name in ("a", "c", "t")], [99, 99, 2])
        expect("nowhere.npy" in json.dumps(events(server, "change failed")[1]), server.log())
        server.client.request("GET", "/v2/models", headers=BEARER).expect(200)


@pytest.mark.parametrize("keeps_journal", [True, False], ids=["journal", "memory"])
def test_sighup_that_fails_is_put_back(directory, keeps_journal):
    """Models, rules, options and updates of rows are as they were, and changes go on from there: loads, updates, and the
    next configuration."""
    np.save(directory / "old.npy", rows_of(1))
    np.save(directory / "new.npy", rows_of(2))
    publish_keyed(directory, "twice", 1, KEYS_TWICE)
    (directory / "models").mkdir()
    config, want = directory / "c.json", rows_of(1)
    before = {"models": [{"name": "t", "path": "old.npy", "reduction": "mean"},
                         {"name": "c", "features": [{"name": "f", "model": "t"}]}]}
    after = {"models": [{"name": "t", "path": "new.npy"}, {"name": "u", "path": "new.npy"}], "engine": {"max_queue_size": 7}}
    bad = {"nowhere.npy": {"path": "nowhere.npy"}, "reductoin": {"path": "new.npy", "reductoin": "sum"},
           "gone": {"features": [{"name": "f", "model": "gone"}]},
           "key 7": {"path": str(directory / "twice" / "1")}}  # found when the new tables are read
    texts = {word: json.dumps(after | {"models": [*after["models"], {"name": "w"} | model]}) for word, model in bad.items()}
    arguments = ["--config", config, "--updates", "on", *(["--journal-dir", directory / "journal"] if keeps_journal else [])]
    write_json(config, before)
    with serve(directory, *arguments) as server:
        def shown():
            paths = ["models/t/config", "models/c/config", "server/options"]
            index = server.client.request("POST", "/v2/repository/index").expect(200).json()
            return [index, *(server.client.get(f"/v2/{path}").expect(200).json() for path in paths)]

        def said(event):
            return [e for e in events(server, event) if e["asked_by"] == "SIGHUP"]

        def change(text, event):
            seen = len(said(event))
            config.write_text(text)
            server.send(signal.SIGHUP)
            wait_until(lambda: server.client.get("/v2/health/live") and len(said(event)) > seen, f"no {event}")
            return said(event)[-1]

        def update_row(number):
            update(server.admin.client, "t", [number], [[-number] * COLUMNS]).expect(200)
            want[number] = -number

        first = shown()
        update_row(1)
        for number, (word, text) in enumerate(({"ends too early": "{"} | texts).items(), start=2):
            reason = change(text, "change failed")["reason"]
            expect(word in reason, f"{word}: {reason}")
            expect_equal(shown(), first, f"what is shown after {word}")
            expect_equal(all_rows(server.client).tolist(), want.tolist(), f"rows after {word}")
            expect_equal(served(server.client, "u"), 404, f"a model of {word}")
            update_row(number)
            server.admin.load("t").expect(200)
            server.admin.load("u").expect(404)
            outputs = server.client.infer("c", [i64("f.indices", [[1, 1], [0, 7]])]).outputs()
            expect_equal(outputs["f"].array[:, 0].tolist(), [-1, 1], f"means after {word}")
            failed = server.client.counted("bagserve_failed_model_changes_total")
            expect_equal(failed, 2 * (number - 1), f"SIGHUP and the load of an unknown model after {word}")
        change(json.dumps(after), "change done")
        want[want == 1] = 2
        update_row(7)
        expect_equal((all_rows(server.client).tolist(), served(server.client, "u"), served(server.client, "c")),
                     (want.tolist(), 2, 404))
    if keeps_journal:
        with serve(directory, *arguments) as server:
            expect_equal(all_rows(server.client).tolist(), want.tolist())


def test_sighup_sets_what_a_feature_inherits(directory):
    """A key with the value that the program would take has another meaning than none, which takes the table's."""
    np.save(directory / "t.npy", rows_of(3))
    table = {"name": "t", "path": "t.npy", "reduction": "mean"}
    config = directory / "c.json"

    def write(**rules):
        write_json(config, {"models": [table, {"name": "c", "features": [{"name": "f", "model": "t"} | rules]}]})

    (directory / "models").mkdir()
    write()
    with serve(directory, "--config", config) as server:
        def pooled():
            outputs = server.client.infer("c", [i64("f.indices", [[0, 1]])]).expect().outputs()
            return float(np.unique(outputs["f"].array).item())

        expect_equal(pooled(), 3.0)
        write(reduction="sum")
        server.send(signal.SIGHUP)
        wait_until(lambda: pooled() == 6.0, "the feature's own reduction is not used")


def test_sighup_leaves_options(directory, root):
    """Which the log says: a version without its ready_file is not served though the file names none any more."""
    publish(root, "t", 1).with_name("READY").touch()
    config = write_json(directory / "c.json", {"loading": {"ready_file": "READY"}})
    with serve(directory, "--config", config) as server:
        publish(root, "t", 2)
        write_json(config, {})
        server.send(signal.SIGHUP)
        server.wait_event("options unchanged")
        wait_until(lambda: server.client.get("/v2/health/live") and events(server, "change done"), "it goes on")
        expect_equal(served(server.client), 1)
        (root / "t" / "2" / "READY").touch()
        server.admin.load("t").expect()
        expect_equal(served(server.client), 2)


@pytest.mark.skipif(not has_openblas(), reason="libopenblas0-pthread is not installed")
def test_first_projection_while_serving(directory, root):
    """A server without any projection takes one by SIGHUP, and one by a load."""
    np.save(directory / "a.npy", rows_of(3))
    matrix = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.save(directory / "matrix.npy", matrix)
    publish(root, "t", 1)
    config = directory / "config.json"
    plain = {"name": "a", "path": "a.npy"}
    write_json(config, {"models": [plain]})
    with serve(directory, "--config", config) as server:
        write_json(config, {"models": [plain, plain | {"name": "p", "projection": "matrix.npy"},
                                       {"name": "c", "features": [
                                           {"name": "f", "model": "a", "projection": "matrix.npy"}]}]})
        server.send(signal.SIGHUP)
        server.wait_event("change done")
        want = np.full((1, 4), 3, np.float32) @ matrix
        got = server.client.infer("p", [i64("indices", [[1]])]).embeddings()
        expect_equal(got.tolist(), want.tolist())
        reply = server.client.infer("c", [i64("f.indices", [[1]])])
        expect_equal(reply.outputs()["f"].array.tolist(), want.tolist())
    with serve(directory) as server:
        publish(root, "t", 2, settings={"projection": str(directory / "matrix.npy")})
        server.admin.load("t").expect(200)
        got = server.client.infer("t", [i64("indices", [[1]])]).embeddings()
        expect_equal(got.tolist(), (np.full((1, 4), 2, np.float32) @ matrix).tolist())
