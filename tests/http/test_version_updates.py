"""Versions and updates: one that lacks some of them is not served without a word."""

import signal

import numpy as np
import pytest

from control import COLUMNS, ROWS, collection, publish, publish_keyed, rows_of, serve, served, served_together
from harness import expect, expect_equal, wait_until, write_json
from updates import update
from v2 import Tensor


@pytest.mark.parametrize("mode", ["explicit", "none"])
def test_start_passes_over_what_lacks_updates(directory, mode, root):
    """A version that cannot be brought up to date is a bad one at the start, too: an older one that can is
    served, as before the restart."""
    arguments = "--updates", "on", "--journal-dir", directory / "journal"
    publish(root, "t", 1)
    collection(root, "c", ["t"])
    with serve(directory, *arguments) as server:
        update(server.admin.client, "t", [0, ROWS - 1], [[3] * COLUMNS] * 2).expect(200)
        publish(root, "t", 2, settings={"load": "map"})
        publish(root, "t", 3, rows_of(3, columns=COLUMNS + 1))
        expect_equal([server.admin.load("t", v).status for v in (2, 3)], [400, 400])
        expect_equal(served(server.client), 3)
    with serve(directory, *arguments, mode=mode) as server:
        expect_equal((served(server.client), served_together(server.client, "c", ["f_t"])), (3, [3]))
        found = server.admin.index()
        expect_equal({v: found["t", v][0] for v in "123"}, {"1": "READY", "2": "UNAVAILABLE", "3": "UNAVAILABLE"})
        for version, word in (("2", "mapped"), ("3", "rows of 4 elements; this is")):
            expect(word in found["t", version][1], f"{found}")


def test_held_versions_without_all_updates(directory, root):
    """One that is held and cannot take an update is not served again from memory, without a word: it is
    read again, and refused for what it lacks."""
    publish(root, "t", 1)
    write_json(root / "t" / "config.json", {"keep_versions": 1})
    with serve(directory, "--updates", "on") as server:
        admin = server.admin
        publish(root, "t", 2, settings={"updates_through": 1})
        admin.load("t").expect(200)
        update(admin.client, "t", [0, ROWS - 1], [[5] * COLUMNS] * 2, sequence=2).expect(200)
        error = admin.load("t", 1).expect(400).error()
        expect("lacks updates 1 to 1" in error, error)
        expect_equal(served(server.client), 5)


def test_deltas_at_the_start_keep_what_features_need(directory, root):
    """One that would remove a feature's default key is refused at the start as it is by a load."""
    publish_keyed(root, "t", 1)
    (root / "c" / "1").mkdir(parents=True)
    write_json(root / "c" / "1" / "config.json",
               {"features": [{"name": "f", "model": "t", "missing": "default", "default_index": 7}]})
    for _ in range(2):
        with serve(directory, "--updates", "on") as server:
            delta = root / "t" / "1" / "deltas" / "1"
            if not delta.exists():
                delta.mkdir(parents=True)
                np.save(delta / "deleted_keys.npy", np.array([7]))
            error = server.admin.load("t").expect(400).error()
            expect("default_index of feature 'f'" in error, error)
            expect_equal(served_together(server.client, "c", ["f"]), [1])


def test_held_mapped_version(directory, root):
    """One that is mapped from its file and held serves again until there is an update that it lacks, taken or
    as a folder; then it is refused as when it is loaded the first time."""
    publish(root, "t", 1, settings={"load": "map"})
    write_json(root / "t" / "config.json", {"keep_versions": 1})
    with serve(directory, "--updates", "on") as server:
        admin = server.admin
        publish(root, "t", 2)
        for version in (2, 1, 2):
            admin.load("t", version).expect(200)
            expect_equal(served(server.client), version)
        update(admin.client, "t", [0, ROWS - 1], [[5] * COLUMNS] * 2).expect(200)
        for _ in range(2):
            error = admin.load("t", 1).expect(400).error()
            expect("cannot take those through 1" in error, error)
            expect_equal(served(server.client), 5)


def test_held_mapped_version_with_a_delta(directory, root):
    publish(root, "t", 1, settings={"load": "map"})
    write_json(root / "t" / "config.json", {"keep_versions": 1})
    with serve(directory, "--updates", "on") as server:
        publish(root, "t", 2)
        server.admin.load("t", 2).expect(200)
        (root / "t" / "1" / "deltas" / "1").mkdir(parents=True)
        error = server.admin.load("t", 1).expect(400).error()
        expect("cannot take the update in" in error, error)
        expect_equal(served(server.client), 2)


@pytest.mark.parametrize("load, through, word", [("copy", 1, "lacks updates 1 to 1"),
                                                 ("map", 0, "cannot take those through 2")])
def test_going_back_to_a_version_beside(directory, load, through, word, root):
    """Where several versions serve, one that got no more updates goes on under its number, but nobody goes
    back to it: that would answer with old rows."""
    publish(root, "t", 1, settings={"load": load})
    publish(root, "t", 2, settings={"updates_through": through})
    write_json(root / "t" / "config.json", {"version_policy": {"latest": 2}})
    collection(root, "c", ["t"])
    with serve(directory, "--updates", "on") as server:
        admin, client = server.admin, server.client
        admin.load("t", 1).expect(200)
        expect_equal((served(client), served_together(client, "c", ["f_t"])), (1, [1]))
        admin.load("t").expect(200)
        if not through:
            update(admin.client, "t", [0, ROWS - 1], [[4] * COLUMNS] * 2, sequence=1).expect(200)
        update(admin.client, "t", [0, ROWS - 1], [[5] * COLUMNS] * 2, sequence=2).expect(200)
        error = admin.load("t", 1).expect(400).error()
        expect(word in error, error)
        expect_equal((served(client), served(client, version=1), served_together(client, "c", ["f_t"])), (5, 1, [5]))
        write_json(root / "t" / "1" / "config.json", {"load": load, "reduction": "max"})
        error = admin.load("t", 1).expect(400).error()
        expect(word in error, error)
        expect_equal((served(client), served_together(client, "c", ["f_t"])), (5, [5]))
        # The version does not take the place of the unloaded one either.
        error = admin.group({"name": "t", "version": "2", "unload": True}).expect(400).error()
        expect(word in error, error)
        expect_equal((served(client), served(client, version=2), served_together(client, "c", ["f_t"])), (5, 5, [5]))
        # The version can be loaded again once its file includes the updates that it lacked.
        write_json(root / "t" / "1" / "config.json", {"load": load, "updates_through": 2})
        admin.load("t", 1).expect(200)
        expect_equal(served(client), 1)


def test_default_key_of_a_version_that_gets_no_more_updates(directory, root):
    """It keeps the key, so another version may lose it."""
    default, new = ROWS - 2, ROWS
    for version, settings in ((1, {"missing": "default", "default_index": default}), (2, {"spare_rows": 1})):
        publish_keyed(root, "t", version)
        write_json(root / "t" / str(version) / "config.json", settings)
    write_json(root / "t" / "config.json", {"version_policy": {"latest": 2}})
    with serve(directory, "--updates", "on") as server:
        admin = server.admin.client
        error = update(admin, "t", np.array([default], np.uint64), delete=True).expect(400).error()
        expect("it is the default_index of model 't' and cannot be removed" in error, error)
        update(admin, "t", np.array([new], np.uint64), [[3] * COLUMNS]).expect(200)
        expect_equal(server.wait_event("a version gets no more updates")["version"], "1")
        update(admin, "t", np.array([default], np.uint64), delete=True).expect(200)
        error = server.client.infer("t", [Tensor("indices", np.array([[default]]))], binary=True).expect(400).error()
        expect(f"is {default}, a key that the table does not have" in error, error)
        expect_equal(served(server.client, version=1), 1)


def test_update_while_a_mapped_version_waits(directory, root):
    """An update that is taken after a mapped version was checked, and before it is served with a larger one of
    its group, is not lost: the group is refused for it, and served once the file includes it."""
    publish(root, "a", 1)
    publish(root, "b", 1)
    with serve(directory, "--updates", "on", "--load-bytes-per-second", "4MiB") as server:
        admin, client = server.admin, server.client
        publish(root, "a", 2, settings={"load": "map"})
        publish(root, "b", 2, rows_of(2, 1 << 19))
        admin.group({"name": "a"}, {"name": "b"}, wait=False).expect(202)
        wait_until(lambda: "table b: loading 8.00 MiB" in server.log() and admin.index(), "b is not being read")
        update(admin.client, "a", [0, ROWS - 1], [[7] * COLUMNS] * 2).expect(200)
        failed = server.wait_event("change failed")
        expect("cannot take those through 1" in failed["reason"], failed)
        expect_equal([served(client, name) for name in "ab"], [7, 1])
        update(admin.client, "a", [0, ROWS - 1], [[8] * COLUMNS] * 2).expect(200)
        write_json(root / "a" / "2" / "config.json", {"load": "map", "updates_through": 2})
        admin.group({"name": "a"}, {"name": "b"}).expect(200)
        expect_equal([served(client, name) for name in "ab"], [2, 2])
        error = update(admin.client, "a", [0], [[9] * COLUMNS]).expect(409).error()
        expect("mapped" in error, error)


def publish_short(directory):
    """Versions 1 and 2, both served; version 2 has fewer rows."""
    root = directory / "models"
    publish(root, "t", 1, rows_of(1, 60))
    publish(root, "t", 2, rows_of(2, 40))
    write_json(root / "t" / "config.json", {"version_policy": {"latest": 2}})
    return root


@pytest.mark.parametrize("journal", [True, False])
def test_load_passes_over_what_nobody_asked_for(directory, journal):
    """After a roll back and an update that version 2 has no row for, version 3 is loaded and version 2 passed
    over, as a poll and a restart do; only when it is asked for is it refused."""
    root = publish_short(directory)
    collection(root, "c", ["t"])
    arguments = ["--updates", "on", *(["--journal-dir", directory / "journal"] if journal else [])]
    with serve(directory, *arguments) as server:
        admin, client = server.admin, server.client
        admin.load("t", 1).expect(200)
        update(admin.client, "t", [50], [[7] * COLUMNS]).expect(200)
        publish(root, "t", 3, rows_of(3, 60))
        for request in (admin.load, lambda name: admin.group({"name": "c"}, {"name": name})):
            answer = request("t").expect(200).json()["models"][-1]
            expect_equal(answer["versions"], ["1", "3"])
            expect_equal((served(client), served(client, version=1), served_together(client, "c", ["f_t"])),
                         (3, 1, [3]))
            state, reason = admin.index()["t", "2"]
            expect_equal(state, "UNAVAILABLE")
            expect(reason.startswith("model 't' version 2: update 1 ") and "50" in reason, reason)
        for _ in range(2):
            error = admin.load("t", 2).expect(400).error()
            expect(error.startswith("model 't' version 2: update 1 ") and "50" in error, error)
            expect_equal((served(client), served(client, version=1)), (3, 1))
    if journal:
        with serve(directory, *arguments) as server:
            expect_equal((served(server.client), server.admin.states("t")),
                         (3, {"1": "READY", "2": "UNAVAILABLE", "3": "READY"}))


def test_reload_passes_over_what_nobody_asked_for(directory):
    """Nor is it a reason to refuse a configuration that is read again."""
    root = publish_short(directory)
    with serve(directory, "--updates", "on") as server:
        server.admin.load("t", 1).expect(200)
        update(server.admin.client, "t", [50], [[7] * COLUMNS]).expect(200)
        write_json(root / "t" / "config.json", {"version_policy": "all"})
        server.admin.load("t").expect(400)
        publish(root, "t", 3, rows_of(3, 60))
        server.send(signal.SIGHUP)
        wait_until(lambda: served(server.client, version=3) == 3, "the configuration was not read again")
        expect_equal(server.admin.states("t"), {"1": "READY", "2": "UNAVAILABLE", "3": "READY"})
