"""One bad file, folder or version among many: what it takes with it, and what is told of it."""

import contextlib
import os
import select

import numpy as np
import pytest

from control import (BEARER, KEYS_TWICE, collection, publish, publish_keyed, replace, rows_of, serve, served,
                     served_together)
from example import i64
from harness import Server, expect, expect_equal, has_openblas, wait_until, write_json
from updates import update
from v2 import Client, Raw, Tensor, head, infer_body


def truncate(path):
    os.truncate(path, path.stat().st_size - 8)


def garbage(path):
    path.write_bytes(b"no table" * 100)


# ---- a table whose files went bad -------------------------------------------------------------
@pytest.mark.parametrize("damage", [truncate, garbage, os.remove])
@pytest.mark.parametrize("folder", [True, False])
def test_load_of_a_bad_only_version(directory, damage, folder, root):
    """A load says what is wrong with it, and so does the index; what was loaded goes on."""
    root.mkdir()
    if folder:
        path = publish(root, "t", 1)
    else:
        path = root / "t.npy"
        np.save(path, rows_of(1))
    publish(root, "u", 1)
    whole = path.read_bytes()
    with serve(directory) as server:
        client, admin = server.client, server.admin
        damage(path)
        error = admin.load("t").expect(400).error()
        expect("'t'" in error and ("t.npy" in error or "table.npy" in error or "t/1" in error or
                                   "no files" in error), error)
        expect_equal((served(client), served(client, "u")), (1, 1))
        state, reason = admin.index()["t", "1"]
        expect_equal(state, "READY")
        expect("was loaded before" in reason, reason)
        expect_equal(client.counted("bagserve_failed_model_changes_total"), 1)
        path.write_bytes(whole)
        admin.load("t").expect(200)
        expect_equal(admin.index()["t", "1"], ("READY", ""))


def test_load_of_a_bad_newest_version(directory, root):
    """It is passed over, and the reply says which versions are served."""
    publish(root, "t", 1)
    publish(root, "u", 1)
    write_json(root / "u" / "config.json", {"version_policy": "all"})
    with serve(directory) as server:
        truncate(publish(root, "t", 2))
        reply = server.admin.load("t").expect(200).json()
        (failed,) = reply.pop("failed")
        expect_equal(reply, {"models": [{"name": "t", "versions": ["1"]}], "done": True})
        expect_equal((failed["name"], failed["version"]), ("t", "2"))
        expect("table.npy" in failed["reason"], f"{failed}")
        publish(root, "t", 3)
        publish(root, "u", 3)
        reply = server.admin.group({"name": "t"}, {"name": "u", "version": "1"})
        expect_equal(reply.expect(200).json(),
                     {"models": [{"name": "t", "versions": ["3"]},
                                 {"name": "u", "version": "1", "versions": ["1", "3"]}], "done": True})
        expect_equal(server.admin.unload("t").expect(200).json(),
                     {"models": [{"name": "t", "versions": []}], "done": True})


def test_first_load_that_fails(directory, root):
    """Stands in the index with its reason, whether it was refused at once or while it was read."""
    publish(root, "t", 1)
    with serve(directory) as server:
        truncate(publish(root, "a", 2))
        publish_keyed(root, "b", 1, KEYS_TWICE)
        errors = [server.admin.load(name).expect(400).error() for name in ("a", "b")]
        index = server.admin.index()
        expect_equal({key: state for key, (state, _) in index.items()},
                     {("t", "1"): "READY", ("a", "2"): "UNAVAILABLE", ("b", "1"): "UNAVAILABLE"})
        expect("table.npy" in index["a", "2"][1] and "key 7" in index["b", "1"][1], f"{index}, {errors}")
        expect_equal(server.client.counted("bagserve_failed_model_changes_total"), 2)
        expect_equal(served(server.client), 1)


def test_reasons_hide_folders(directory):
    """To those who may only infer; not to an admin, nor in the log."""
    root = directory / "my models"
    publish(root, "t", 1)
    bad = publish(root, "t", 2)
    truncate(bad)
    publish(root, "u", 1)
    write_json(root / "u" / "1" / "config.json", {"projection": str(directory / "nowhere.npy")})
    with Server("--models", root) as server, Client(server) as client:
        entries = client.request("POST", "/v2/repository/index", b"").expect().json()
        reasons = {(e["name"], e["version"]): e["reason"] for e in entries}
        expect("t/2/table.npy" in reasons["t", "2"], f"{reasons}")
        expect("nowhere.npy" in reasons["u", "1"], f"{reasons}")
        said = [client.get(path).body.decode() for path in
                ("/v2/health/ready", "/v2/models/t/versions/2", "/v2/models/u/ready", "/v2/models/u", "/metrics")]
        for text in [*reasons.values(), *said]:
            expect(str(directory) not in text, text)
        expect(any(str(bad) in line for line in server.lines), server.log())


# ---- names ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["items (1).npy", ".npy.npy", "a" * 129 + ".npy", "ä.npy"])
def test_bad_name_of_a_flat_file(directory, name, root):
    """Is told, and neither ends the start nor stops a load of others."""
    publish(root, "t", 1)
    before = "before" + name if name.startswith("items") else name
    if not name.startswith("."):
        np.save(root / before, rows_of(1))
    with serve(directory) as server:
        np.save(root / name, rows_of(1))
        publish(root, "t", 2)
        server.admin.load("t").expect(200)
        expect_equal(served(server.client), 2)
        expect_equal({model for model, _ in server.admin.index()}, {"t"})
        if not name.startswith("."):
            skipped = [e for e in server.events() if e["event"] == "skipped"]
            expect(any(e["path"].endswith(before) for e in skipped), f"{skipped}")


def test_file_beside_a_folder_of_its_name(directory, root):
    """That version of that model alone cannot be served; what was loaded goes on."""
    publish(root, "t", 1)
    publish(root, "u", 1)
    with serve(directory) as server:
        np.save(root / "t.npy", rows_of(9))
        publish(root, "u", 2)
        server.admin.load("u").expect(200)
        error = server.admin.load("t").expect(400).error()
        expect("t.npy" in error and "t/1" in error, error)
        expect_equal((served(server.client), served(server.client, "u")), (1, 2))
        publish(root, "t", 2)
        server.admin.load("t").expect(200)
        expect_equal(served(server.client), 2)
    os.rename(root / "t" / "2", directory / "2")
    with serve(directory) as server:
        expect_equal((served(server.client), served(server.client, "u")), (503, 2))
        expect("t.npy" in server.admin.index()["t", "1"][1], f"{server.admin.index()}")


# ---- unfinished versions ----------------------------------------------------------------------
@pytest.mark.parametrize("settings", [None, {"padding_idx": 5}])
@pytest.mark.parametrize("named", [False, True])
def test_unfinished_version_under_a_collection(directory, settings, named, root):
    """A newest version without a table is passed over, at the start and later."""
    publish(root, "t", 1)
    (root / "t" / "2").mkdir()
    if settings:
        write_json(root / "t" / "2" / "config.json", settings)
    arguments = []
    if named:
        arguments = ["--config", write_json(directory / "c.json", {"models": [
            {"name": "c", "features": [{"name": "f_t", "model": "t"}]}]})]
    else:
        collection(root, "c", ["t"])
    with serve(directory, *arguments) as server:
        expect_equal(served_together(server.client, "c", ["f_t"]), [1])
        expect_equal(server.admin.index()["t", "2"][0], "UNAVAILABLE")
        server.admin.group({"name": "t"}, {"name": "c"}).expect(200)
        expect_equal(served_together(server.client, "c", ["f_t"]), [1])
        publish(directory / "aside", "t", 2)
        os.rename(directory / "aside" / "t" / "2" / "table.npy", root / "t" / "2" / "table.npy")
        server.admin.load("t").expect(200)
        expect_equal(served_together(server.client, "c", ["f_t"]), [2])


# ---- what only a change of files, rules or memory shows ----------------------------------------
@pytest.mark.skipif(not has_openblas(), reason="libopenblas0-pthread is not installed")
def test_replaced_projection(directory, root):
    """A matrix of other numbers in the same place, of a model and of a feature."""
    matrix = directory / "matrix.npy"
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.save(matrix, values)
    publish(root, "t", 1, settings={"projection": str(matrix)})
    publish(root, "u", 1)
    (root / "c" / "1").mkdir(parents=True)
    write_json(root / "c" / "1" / "config.json", {"features": [
        {"name": "f", "model": "u", "projection": str(matrix)}]})

    def check(client, values):
        want = (np.full((1, 4), 1, np.float32) @ values).tolist()
        expect_equal(client.infer("t", [i64("indices", [[1]])]).embeddings().tolist(), want)
        expect_equal(client.infer("c", [i64("f.indices", [[1]])]).outputs()["f"].array.tolist(), want)

    with serve(directory) as server:
        check(server.client, values)
        replace(matrix, values + 1)
        server.admin.group({"name": "t"}, {"name": "c"}).expect(200)
        check(server.client, values + 1)


def read_bytes(server):
    """What the process has read, of files and sockets, and from the page cache, too."""
    with open(f"/proc/{server.process.pid}/io") as file:
        return int(file.readline().split()[1])


@pytest.mark.parametrize("load", ["copy", "map"])
def test_changed_rules_read_nothing(directory, load, root):
    """Rules, `form` and projections change over the table that is in memory."""
    rows = 1 << 20  # 256 MiB
    publish(root, "t", 1, np.zeros((1, 64), np.float32))
    path = root / "t" / "1" / "table.npy"
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, 64)})
        file.truncate(file.tell() + rows * 256)
    collection(root, "c", ["t"])
    settings = path.with_name("config.json")
    with serve(directory, "--load", load, "--max-table-bytes", "300MiB") as server:
        for changed in ({"form": "packed"}, {"reduction": "max"}, {"reduction": "mean", "padding_idx": 3}, {}):
            write_json(settings, changed)
            before = read_bytes(server)
            server.admin.load("t").expect(200)
            expect(read_bytes(server) - before < 1 << 20, f"{read_bytes(server) - before} bytes were read")
            document = server.client.get("/v2/models/t/config").json()["parameters"]
            expect_equal(document["reduction"]["string_value"], changed.get("reduction", "sum"))
        expect_equal(server.client.infer("c", [i64("f_t.indices", [[rows - 1]])]).status, 200)


# ---- memory -----------------------------------------------------------------------------------
def test_held_versions_make_room(directory, root):
    """Versions that are only held leave where a new one needs their memory, the oldest first."""
    mib = 1 << 20
    rows = 8 * mib // 16
    publish(root, "t", 1, rows_of(1, rows))
    publish(root, "u", 1)
    write_json(root / "t" / "config.json", {"keep_versions": 4})
    with serve(directory, "--max-table-bytes", 25 * mib) as server:
        def held():
            return server.client.counted("bagserve_retained_versions")

        for version, want in ((2, 1), (3, 2), (4, 2), (5, 2)):
            publish(root, "t", version, rows_of(version, rows))
            server.admin.load("t").expect(200)
            expect_equal((served(server.client), held()), (version, want))
        os.rename(root / "t" / "4", directory / "4")
        server.admin.load("t", "4").expect(200)  # from memory
        expect_equal((served(server.client), held()), (4, 2))
        publish(root, "u", 2, rows_of(2, 2 * rows))
        server.admin.load("u").expect(200)
        expect_equal((served(server.client), served(server.client, "u"), held()), (4, 2, 0))
        publish(root, "u", 3, rows_of(3, 2 * rows))
        expect("max_table_bytes" in server.admin.load("u").expect(503).error(), "no word of the limit")


def test_unload_first_waits(directory, root):
    """The new table is not read while requests still read the old one: they are answered before it is there."""
    rows = 1 << 16
    publish(root, "t", 1, rows_of(1, rows, 64))
    write_json(root / "t" / "config.json", {"reload": "unload_first"})
    with serve(directory, "--max-table-bytes", "24MiB", "--workers", 1) as server:
        publish(root, "t", 2, rows_of(2, rows, 64))
        indices = np.arange(1 << 20).reshape(1, -1) * 40503 % rows
        body, headers = infer_body([Tensor("indices", indices)], binary=True, parameters={"binary_data_output": True})
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Raw(server)) for _ in range(8)]
            for client in clients:
                client.send(head("POST", "/v2/models/t/infer", headers | BEARER, body))
            server.admin.load("t").expect(200)
            answered = select.select([client.socket for client in clients], [], [], 0)[0]
            for client in clients:
                reply = client.reply()
                version = reply.embeddings()[0, 0] / indices.size if reply.status == 200 else None
                expect(version != 1 or client.socket in answered, "the old table is read beside the new one")
        expect_equal(served(server.client), 2)


def test_unload_first_in_a_group(directory, root):
    """Both tables of a collection, which is made anew over the new ones."""
    for name in ("a", "b"):
        publish(root, name, 1)
        write_json(root / name / "config.json", {"reload": "unload_first"})
    publish(root, "other", 1)
    collection(root, "both", ["a", "b"])
    with serve(directory) as server:
        for version in (2, 3, 4):
            for name in ("a", "b"):
                publish(root, name, version)
            server.admin.group({"name": "a"}, {"name": "b"}).expect(200)
            expect_equal(served_together(server.client, "both", ["f_a", "f_b"]), [version] * 2)


def test_bad_newer_version_keeps_a_rollback(directory, root):
    """While polling, a version that was asked for stays until a newer one can be served."""
    for version in (1, 2):
        publish(root, "t", version)
    publish(root, "mark", 1)
    with serve(directory, "--poll-seconds", 0.2, mode="poll") as server:
        server.admin.load("t", "1").expect(200)
        truncate(publish(root, "t", 3))
        for version in (2, 3):  # two polls at least
            publish(root, "mark", version)
            wait_until(lambda: served(server.client, "mark") == version, "the folder is not polled")
        expect_equal(served(server.client), 1)
        publish(root, "t", 4)
        wait_until(lambda: served(server.client) == 4, "the newer version is not served")


def test_changed_rules_keep_updates(directory, root):
    """Rows and keys that came by updates stay, in memory and of a table with other rules."""
    publish_keyed(root, "k", 1)
    write_json(root / "k" / "1" / "config.json", {"spare_rows": 8})
    with serve(directory, "--updates", "on") as server:
        client = server.client

        def put(key, *rows, **parameters):
            return update(server.admin.client, "k", i64("keys", [key]), *rows, headers=BEARER, **parameters)

        put(70, np.full((1, 4), 50)).expect(200)
        for rules in ({"missing": "skip"}, {"missing": "default", "default_index": 70}):
            write_json(root / "k" / "1" / "config.json", {"spare_rows": 8} | rules)
            server.admin.load("k").expect(200)
            got = client.infer("k", [i64("indices", [[70], [99]])]).embeddings()
            expect_equal(got[:, 0].tolist(), [50, 50 if "default_index" in rules else 0])
        put(71, np.full((1, 4), 60)).expect(200)
        expect_equal(client.infer("k", [i64("indices", [[71]])]).embeddings()[0, 0], 60)
        expect("default_index" in put(70, delete=True).expect(400).error(), "it is removed")
