"""Loading and unloading while serving: one model, a version, groups; what waits."""

import os

import numpy as np
import pytest

from control import (BEARER, COLUMNS, KEYS_TWICE, collection, publish, publish_keyed, replace, rows_of, serve, served,
                     served_together)
from example import i64
from harness import SANITIZED, beside, expect, expect_equal, expect_words, wait_until, write_json
from updates import update
from v2 import Client


# ---- load and unload --------------------------------------------------------------------------
def test_load_and_unload(directory, root):
    publish(root, "t", 1)
    with serve(directory) as server:
        client, admin = server.client, server.admin
        publish(root, "t", 2)
        expect_equal(served(client), 1)
        reply = admin.load("t").expect(200)
        expect_equal(reply.json(), {"models": [{"name": "t", "versions": ["2"]}], "done": True})
        expect_equal((served(client), served(client, version=1)), (2, 404))
        admin.unload("t").expect(200)
        expect_equal((served(client), served(client, version=2)), (404, 404))
        client.get("/v2/models/t/ready").expect(404)
        expect_equal(admin.index()["t", "2"], ("UNAVAILABLE", "unloaded"))
        client.get("/v2/health/ready").expect(200)
        admin.load("t").expect(200)
        expect_equal((served(client), admin.states("t")), (2, {"2": "READY"}))
        publish(root, "new", 4)
        expect_equal(served(client, "new"), 404)
        admin.load("new").expect(200)
        expect_equal(served(client, "new"), 4)


def test_default_version_of_all(directory, root):
    for version in (1, 2, 3):
        publish(root, "t", version)
    collection(root, "c", ["t"])
    write_json(root / "t" / "config.json", {"version_policy": "all"})
    with serve(directory) as server:
        client, admin = server.client, server.admin
        admin.load("t", "2").expect(200)
        expect_equal([served(client, version=v) for v in (None, 1, 2, 3)], [2, 1, 2, 3])
        expect_equal(served_together(client, "c", ["f_t"]), [2])
        admin.post("models/t/unload", {"parameters": {"version": "2"}}).expect(200)
        expect_equal([served(client, version=v) for v in (None, 1, 2, 3)], [3, 1, 404, 3])
        expect_equal(served_together(client, "c", ["f_t"]), [3])
        expect_equal(admin.states("t"), {"1": "READY", "2": "UNAVAILABLE", "3": "READY"})
        admin.load("t", "2").expect(200)
        expect_equal(served(client), 2)


def test_specific_versions(directory, root):
    for version in (1, 2):
        publish(root, "t", version)
    write_json(root / "t" / "config.json", {"version_policy": {"specific": [1]}})
    with serve(directory) as server:
        error = server.admin.load("t", "2").expect(409).error()
        expect("version_policy" in error, error)
        expect_equal(served(server.client), 1)


def test_restores_retained_version(directory, root):
    """A retained version serves again though its files have gone."""
    publish(root, "t", 1)
    write_json(root / "t" / "config.json", {"keep_versions": 1})
    with serve(directory) as server:
        client, admin = server.client, server.admin
        for version in (2, 3):
            publish(root, "t", version)
            admin.load("t").expect(200)
        os.rename(root / "t" / "2", directory / "2")
        os.rename(root / "t" / "1", directory / "1")
        expect_equal(served(client, version=2), 404)
        admin.load("t", "2").expect(200)
        expect_equal(served(client), 2)
        admin.load("t", "1").expect(404)


def test_load_again(directory, root):
    """What is loaded is read again where its file changed, and not otherwise."""
    path = publish(root, "t", 1)
    with serve(directory) as server:
        client, admin = server.client, server.admin

        def loads():
            return sum(e["event"] == "model ready" for e in server.events())

        admin.load("t").expect(200)
        expect_equal(loads(), 0)
        replace(path, rows_of(5))
        admin.load("t").expect(200)
        expect_equal(served(client), 5)
        wait_until(lambda: served(client) == 5 and loads(), "the log does not say that it is ready")
        expect_equal(loads(), 1)
        write_json(path.with_name("config.json"), {"reduction": "max"})
        admin.load("t").expect(200)
        document = client.get("/v2/models/t/config").json()
        expect_equal(document["parameters"]["reduction"]["string_value"], "max")


def test_failed_load(directory, root):
    """What served goes on."""
    path = publish(root, "t", 1)
    with serve(directory) as server:
        client, admin = server.client, server.admin
        bad = publish(root, "t", 2)
        os.truncate(bad, 100)
        admin.load("t").expect(200)
        expect_equal((served(client), admin.index()["t", "2"][0]), (1, "UNAVAILABLE"))
        error = admin.load("t", "2").expect(400).error()
        expect(str(bad) in error, error)
        expect("version '7'" in admin.load("t", "7").expect(404).error(), "which one")
        expect("'nobody'" in admin.load("nobody").expect(404).error(), "which one")
        admin.unload("nobody").expect(404)
        os.truncate(path, 100)
        admin.load("t", "1").expect(400)
        expect_equal(served(client), 1)


def test_reasons_name_a_model_once(directory, root):
    publish(root, "t", 1)
    write_json(root / "t" / "1" / "config.json", {"row_format": "int8"})
    with serve(directory) as server:
        error = server.admin.load("t").expect(400).error()
        expect("model 't' cannot be served: " in error and error.count("'t'") == 1, error)


def test_load_after_a_failure(directory, root):
    """A version that failed is beside another model's; what serves is neither read nor listed twice."""
    publish_keyed(root, "t", 1)
    publish(root, "u", 1)
    with serve(directory) as server:
        publish_keyed(root, "t", 2, KEYS_TWICE)
        expect("key 7" in server.admin.load("t").expect(400).error(), "which one")
        server.admin.load("t", "1").expect(200)
        entries = [(e["name"], e["version"]) for e in server.admin.post("index").json()]
        expect_equal(sorted(entries), [("t", "1"), ("u", "1")])
        expect_equal(served(server.client), 1)


def test_collection_loses_its_table(directory, root):
    """The version that takes its table's place is a collection, which no feature can be of."""
    publish(root, "t", 1)
    collection(root, "m", ["t"])
    publish(root, "m", 2)
    collection(root, "c", ["m"])
    with serve(directory) as server:
        client, admin = server.client, server.admin
        expect("'c'" in admin.load("m", "1").expect(409).error(), "which one")
        expect_equal(served_together(client, "c", ["f_m"]), [2])
        admin.load("m", parameters={"version": "1", "unload_dependents": True}).expect(200)
        expect_equal((admin.states("c"), admin.states("m")), ({"1": "UNAVAILABLE"}, {"1": "READY"}))


def test_row_width_may_change(directory, root):
    publish(root, "t", 1)
    publish(root, "t", 2, rows_of(2, columns=7))
    with serve(directory) as server:
        server.admin.load("t", "1").expect()
        server.admin.load("t", "2").expect()
        expect_equal(server.client.get("/v2/models/t").json()["outputs"][0]["shape"], [-1, 7])
        changed = server.wait_event("row width changed")
        expect_equal((changed["elements_before"], changed["elements"]), (7, 4))


def test_unload_first(directory, root):
    publish(root, "t", 1, rows_of(1, rows=1 << 20))
    collection(root, "c", ["t"])
    write_json(root / "t" / "config.json", {"reload": "unload_first"})
    with serve(directory) as server:
        client, admin = server.client, server.admin
        publish(root, "t", 2, rows_of(2, rows=1 << 20))
        seen = []

        def ask(stop):
            with Client(server) as other:
                while not stop.is_set():
                    reply = other.request("GET", "/v2/models/t/ready", headers=BEARER)
                    seen.append((reply.status, "retry-after" in reply.headers))

        with beside(ask):
            admin.load("t").expect(200)
        expect(set(seen) <= {(200, False), (503, True)}, f"{set(seen)}")
        expect_equal((served(client), served_together(client, "c", ["f_t"])), (2, [2]))
        expect_equal(admin.states("t"), {"2": "READY"})
        # The load fails after the old version has gone. The reason is in the index, and the older version may be loaded
        # again.
        bad = publish(root, "t", 3, rows_of(3))
        write_json(bad.with_name("config.json"), {"output_datatype": "INT8"})
        admin.load("t", "3").expect(400)
        expect_equal(served(client), 2)


def test_unload_first_that_fails(directory, root):
    """The old table is gone by then: the index says of both versions why, and a load serves again."""
    publish_keyed(root, "t", 1)
    publish(root, "u", 1)
    collection(root, "c", ["t", "u"])
    write_json(root / "t" / "config.json", {"reload": "unload_first"})
    with serve(directory) as server:
        client, admin = server.client, server.admin
        publish_keyed(root, "t", 2, KEYS_TWICE)
        error = admin.load("t").expect(400).error()
        expect("key 7" in error, error)
        reply = client.get("/v2/models/t/ready").expect(503)
        expect("retry-after" in reply.headers, f"{reply.headers}")
        expect_equal((served(client), served_together(client, "c", ["f_t", "f_u"]), served(client, "u")), (503, 503, 1))
        found = admin.index()
        for model, word in ((("t", "1"), "make room"), (("t", "2"), "key 7"), (("c", "1"), "key 7")):
            state, reason = found[model]
            expect(state == "UNAVAILABLE" and word in reason, f"{model}: {state}: {reason}")
        admin.load("t", 1).expect(200)
        expect_equal((served(client), served_together(client, "c", ["f_t", "f_u"])), (1, [1, 1]))


def test_memory_comes_back(directory, root):
    """Tables that are replaced are freed."""
    publish(root, "t", 1, rows_of(1, rows=1 << 20))
    with serve(directory) as server:
        server.admin.load("t").expect()
        expect_equal(served(server.client), 1)
        before, descriptors = server.memory_bytes(), server.descriptors()
        for version in range(2, 8):
            publish(root, "t", version, rows_of(version, rows=1 << 20))
            server.admin.load("t").expect()
            expect_equal(served(server.client), version)
        wait_until(lambda: server.admin.index() and
                   (SANITIZED or server.memory_bytes() - before < 12 << 20), "tables are not freed")
        expect_equal(server.descriptors(), descriptors)


# ---- groups -----------------------------------------------------------------------------------
def test_group(directory, root):
    """All or nothing, in one step."""
    for name in ("a", "b"):
        publish(root, name, 1)
    collection(root, "c", ["a", "b"])
    with serve(directory) as server:
        client, admin = server.client, server.admin
        publish(root, "a", 2)
        bad = publish(root, "b", 2)
        whole = bad.read_bytes()
        os.truncate(bad, 100)
        error = admin.group({"name": "a", "version": "2"}, {"name": "b", "version": 2}).expect(400)
        expect(str(bad) in error.error(), error.error())
        expect_equal(served_together(client, "c", ["f_a", "f_b"]), [1, 1])
        expect_equal((served(client, "a"), served(client, "b")), (1, 1))
        bad.write_bytes(whole)
        admin.group({"name": "a"}, {"name": "b"}).expect(200)
        expect_equal(served_together(client, "c", ["f_a", "f_b"]), [2, 2])
        expect_equal((served(client, "a"), served(client, "b")), (2, 2))


def test_failed_group_of_new_models(directory, root):
    """Those that were loaded before it failed are in the index with its reason, too."""
    publish(root, "t", 1)
    with serve(directory) as server:
        publish(root, "a", 1)
        publish_keyed(root, "b", 1, KEYS_TWICE)
        error = server.admin.group({"name": "a"}, {"name": "b"}).expect(400).error().replace(f"{root}/b/1/", "")
        expect_equal(server.admin.index(), {("t", "1"): ("READY", ""), ("a", "1"): ("UNAVAILABLE", error),
                                            ("b", "1"): ("UNAVAILABLE", error)})


def test_dependents(directory, root):
    publish(root, "t", 1)
    publish(root, "u", 1)
    collection(root, "c", ["t", "u"])
    with serve(directory) as server:
        client, admin = server.client, server.admin
        error = admin.unload("t").expect(409).error()
        expect("'c'" in error and "unload_dependents" in error, error)
        expect_equal(served(client), 1)
        admin.unload("t", unload_dependents=True).expect(200)
        expect_equal(admin.states("c"), {"1": "UNAVAILABLE"})
        client.get("/v2/models/c").expect(404)
        expect("'t'" in admin.load("c").expect(409).error(), "what is missing")
        admin.group({"name": "t"}, {"name": "c"}).expect(200)
        expect_equal(served_together(client, "c", ["f_t", "f_u"]), [1, 1])
        admin.group({"name": "t", "unload": True}, {"name": "c", "unload": True}).expect(200)
        expect_equal((served(client), served(client, "u")), (404, 1))


def test_a_collection_that_came_later_leaves_its_table(directory, root):
    """No collection that is unloaded with its table keeps that in memory until the change gives up waiting."""
    publish(root, "t", 1)
    with serve(directory) as server:
        collection(root, "c", ["t"])
        server.admin.load("c").expect(200)
        server.admin.unload("t", unload_dependents=True).expect(200)
        server.admin.load("t").expect(200)
        wait_until(lambda: [e["event"] for e in server.events()].count("change done") == 3, "a change is not logged")
        expect("table still read" not in [e["event"] for e in server.events()], server.log())


def put(admin):
    return update(admin.client, "t", [6], np.full((1, COLUMNS), 7), headers=BEARER)


@pytest.mark.parametrize("is_kept", [True, False])
def test_updates_of_rows_are_none_of_keys(directory, is_kept, root):
    """A keyed version does not take row numbers for keys: of those in memory, nor of those that come."""
    publish(root, "t", 1)
    with serve(directory, "--updates", "on") as server:
        client, admin = server.client, server.admin
        if is_kept:
            put(admin).expect(200)
        publish_keyed(root, "t", 2)
        write_json(root / "t" / "config.json", {"version_policy": "all"})
        answer = admin.load("t", 2)
        if is_kept:
            expect("it is of a dense table, and this one is keyed" in answer.expect(400).error(), answer.error())
            expect_equal(client.get("/v2/models/t").json()["versions"], ["1"])
        else:
            answer.expect(200)
            admin.load("t", 1).expect(200)
            put(admin).expect(200)
            reply = client.infer("t", [i64("indices", [[6]])], path="/v2/models/t/versions/2/infer")
            expect(reply.status != 200 or np.unique(reply.embeddings()).tolist() == [2], f"{reply.body}")


def test_updates_while_a_keyed_version_is_loaded(directory, root):
    """It cannot take what was acknowledged for the version that it would replace, so that one goes on."""
    for name in "tu":
        publish(root, name, 1)
    with serve(directory, "--updates", "on", "--load-bytes-per-second", "1MiB", "--log-level", "debug") as server:
        client, admin = server.client, server.admin
        publish_keyed(root, "t", 2)
        publish(root, "u", 2, rows_of(2, rows=1 << 17))
        admin.group({"name": "t"}, {"name": "u"}, wait=False).expect(202)
        wait_until(lambda: any((e["event"], e.get("model"), e.get("version")) == ("loading table", "u", "2") for e in server.events()), "u")
        put(admin).expect(200)
        failed = server.wait_event("change failed")
        expect_words(str(failed), ["model 't' version 2", "lacks an update that was made while it was loaded",
                                   "a version with keys"])
        put(admin).expect(200)
        expect_equal(client.infer("t", [i64("indices", [[6]])]).embeddings()[0, 0], 7)


def test_keys_that_changed(directory, root):
    """A table whose keys are in a file of their own is read again if that file alone is another."""
    publish_keyed(root, "t", 1)
    with serve(directory) as server:
        server.client.infer("t", [i64("indices", [[0]])]).expect(200)
        replace(root / "t" / "1" / "keys.npy", np.arange(100, 108))
        server.admin.load("t").expect(200)
        server.client.infer("t", [i64("indices", [[0]])]).expect(400)
        expect_equal(server.client.infer("t", [i64("indices", [[100]])]).embeddings()[0, 0], 1)


# ---- waiting ----------------------------------------------------------------------------------
def test_without_waiting(directory, root):
    """202 at once; the index says how far it is."""
    publish(root, "t", 1)
    with serve(directory, "--load-bytes-per-second", "32MiB") as server:
        publish(root, "t", 2, rows_of(2, rows=4 << 20))
        reply = server.admin.load("t", "2", wait=False).expect(202)
        expect_equal(reply.json(), {"models": [{"name": "t", "version": "2"}], "done": False})
        wait_until(lambda: "are read" in server.admin.index().get(("t", "2"), ("", ""))[1],
                   "no progress in the index")
        expect_equal((server.admin.states("t"), served(server.client)), ({"1": "READY", "2": "LOADING"}, 1))
        server.client.get("/v2/models/t/versions/2/ready").expect(503)
        text = server.client.get("/metrics").expect().body.decode()
        expect("bagserve_load_total_bytes 67108" in text, "no progress in the metrics")
        expect('version="2",state="LOADING",reason="the tables are' in text, "no state in the metrics")
        wait_until(lambda: served(server.client) == 2, "version 2 is not served")
        names = "bagserve_load_total_bytes", "bagserve_model_changes_total"
        wait_until(lambda: [server.client.counted(name) for name in names] == [0, 2], "the change is not done in the metrics")


def test_stop_while_loading(directory, root):
    """What is being loaded is given up."""
    publish(root, "t", 1)
    with serve(directory, "--load-bytes-per-second", "8MiB") as server:
        publish(root, "t", 2, rows_of(2, rows=8 << 20))
        replies = []
        with beside(lambda _: replies.append(server.admin.load("t"))):
            server.wait_event("change begins")
            server.stop()
        expect_equal([reply.status for reply in replies], [503])


def test_too_many_changes(directory, root):
    """Those that nobody waits for are bounded, too; what was accepted is made."""
    publish(root, "t", 1)
    publish(root, "u", 1)
    with serve(directory, "--load-bytes-per-second", "1MiB") as server:
        publish(root, "t", 2, rows_of(2, rows=256 << 10))
        publish(root, "u", 2)
        server.admin.load("t", "2", wait=False).expect(202)
        wait_until(lambda: server.admin.states("t").get("2") == "LOADING", "the first one is not made")
        for i in range(64):
            server.admin.load("u", "12"[i % 2], wait=False).expect(202)
        for wait in (False, True):
            reply = server.admin.load("u", "1", wait=wait).expect(503)
            expect("64 changes" in reply.error(), reply.error())
            expect("retry-after" in reply.headers, "no Retry-After")
        wait_until(lambda: served(server.client, "u") == 2, "what was accepted is not made")
        server.admin.load("u", "1").expect(200)
