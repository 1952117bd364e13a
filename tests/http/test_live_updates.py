"""Updates and tables that are loaded while serving: what a later version gets again, from the journal
or from memory, and tables that cannot take any."""

import shutil

import numpy as np
import pytest

import control
from control import publish
from example import check_rows
from harness import beside, expect, expect_equal, scaled, wait_until, write_json
from live_versions import after, all_rows, change, numbered, serve_plain, serve_versions
from table_files import write_safetensors
from updates import applied, rows_of, update
from v2 import Client, Tensor


def test_loaded_versions_catch_up(directory):
    root, journal = directory / "models", directory / "journal" / "t"
    first, second = control.rows_of(1), control.rows_of(2)
    control.publish(root, "t", 1, first)
    with serve_versions(directory, "--journal-kept-bytes", 0) as server:
        client, admin = server.client, server.admin.client
        for number in range(1, 6):
            applied(change(admin, number), number, 1)
        control.publish(root, "t", 2, second, {"updates_through": 3})
        server.admin.load("t").expect(200)
        check_rows(all_rows(client), after(second, 3, 5))
        applied(change(admin, 6), 6, 1)
        # Back to the one before, which has had none of them.
        server.admin.load("t", 1).expect(200)
        check_rows(all_rows(client), after(first, 0, 6))
        applied(change(admin, 7), 7, 1)
        # A snapshot with all of them needs no old files.
        control.publish(root, "t", 3, control.rows_of(3), {"updates_through": 7})
        server.admin.load("t", 3).expect(200)
        check_rows(all_rows(client), control.rows_of(3))
        applied(change(admin, 8), 8, 1)
        wait_until(lambda: change(admin, 8).status == 200 and
                   [path.name for path in journal.iterdir()] == [f"{8:020}.journal"],
                   "old files of the journal are still there")
        # The updates that the version lacks are gone: it is not loaded, and the serving version stays.
        error = server.admin.load("t", 2).expect(400).error()
        expect(str(journal) in error and "those between are missing" in error, error)
        check_rows(all_rows(client), after(control.rows_of(3), 7, 8))
    with serve_versions(directory) as server:
        check_rows(all_rows(server.client), after(control.rows_of(3), 7, 8))


def test_rolling_back_after_updates(directory):
    """What the oldest version in the folder lacks stays in the journal, also while none of its tables is
    loaded; once that version is gone, it goes with the next one that is loaded."""
    root, journal = directory / "models", directory / "journal" / "t"
    publish(root, "t", 1)
    with serve_versions(directory) as server:
        client, admin = server.client, server.admin.client
        for number in range(1, 6):
            applied(change(admin, number), number, 1)
        publish(root, "t", 2, control.rows_of(2), {"updates_through": 5})
        server.admin.load("t").expect(200)
        applied(change(admin, 6), 6, 1)
        applied(change(admin, 7), 7, 1)
        expect_equal(sorted(path.name for path in journal.iterdir()), [f"{number:020}.journal" for number in (1, 6)])
        server.admin.load("t", 1).expect(200)
        check_rows(all_rows(client), after(control.rows_of(1), 0, 7))
        server.admin.load("t", 2).expect(200)
        check_rows(all_rows(client), after(control.rows_of(2), 5, 7))
    with serve_versions(directory) as server:
        check_rows(all_rows(server.client), after(control.rows_of(2), 5, 7))
        applied(change(server.admin.client, 8), 8, 1)
        server.admin.load("t", 1).expect(200)
        check_rows(all_rows(server.client), after(control.rows_of(1), 0, 8))
        publish(root, "t", 3, control.rows_of(3), {"updates_through": 8})
        shutil.rmtree(root / "t" / "1")
        server.admin.load("t", 3).expect(200)
        applied(change(server.admin.client, 9), 9, 1)
        wait_until(lambda: change(server.admin.client, 9).status == 200 and
                   f"{1:020}.journal" not in {path.name for path in journal.iterdir()},
                   "what no version needs is still there")
        server.admin.load("t", 2).expect(200)
        check_rows(all_rows(server.client), after(control.rows_of(2), 5, 9))


@pytest.mark.parametrize("has_journal", [True, False])
@pytest.mark.parametrize("keep_versions", [0, 1])
def test_rolling_back_before_what_a_file_includes(directory, has_journal, keep_versions, root):
    """A version goes on after its own last update, although the file of the version before it included later
    updates: nobody has sent those here. A version that was retained behaves like one that is read again."""
    version = publish(root, "t", 1).parent
    write_json(root / "t" / "config.json", {"keep_versions": keep_versions})
    with (serve_versions if has_journal else serve_plain)(directory) as server:
        client, admin = server.client, server.admin.client
        for number in (1, 2, 3):
            applied(change(admin, number), number, 1)
        publish(root, "t", 2, control.rows_of(2), {"updates_through": 6})
        server.admin.load("t").expect(200)
        expect_equal(change(admin, 6).expect(200).json()["applied"], False, "update 6 is in the file of version 2")
        server.admin.load("t", 1).expect(200)
        numbered(version, 4)
        server.admin.load("t", 1).expect(200)
        check_rows(all_rows(client), after(control.rows_of(1), 0, 4))
        applied(change(admin, 5), 5, 1)
        applied(change(admin, 3), 5, 0, False)
        check_rows(all_rows(client), after(control.rows_of(1), 0, 5))
        server.admin.load("t", 2).expect(200)
        check_rows(all_rows(client), control.rows_of(2))
        applied(change(admin, 7), 7, 1)
        error = server.admin.load("t", 1).expect(400).error()
        expect("lacks" in error or "those between are missing" in error, error)
        check_rows(all_rows(client), after(control.rows_of(2), 6, 7))


@pytest.mark.parametrize("has_journal", [True, False])
def test_versions_without_rows_of_updates(directory, has_journal, root):
    """A version that lacks a row which an update changed is not loaded, unless it includes the update;
    one that serves beside gets no more."""
    publish(root, "t", 1)
    (root / "t" / "config.json").write_text('{"version_policy": "all"}')
    with (serve_versions if has_journal else serve_plain)(directory) as server:
        admin = server.admin.client
        applied(change(admin, 1), 1, 1)
        applied(update(admin, "t", [control.ROWS - 1], [[5] * control.COLUMNS]), 2, 1)
        fewer = control.rows_of(2)[:control.ROWS - 1]
        publish(root, "t", 2, fewer, {"updates_through": 1})
        error = server.admin.load("t", 2).expect(400).error()
        expect("update 2" in error and f"it is of row {control.ROWS - 1}, and the table has rows 0 to "
               f"{control.ROWS - 2}" in error and "updates_through" in error, error)
        expect_equal(server.admin.index()["t", "2"][0], "UNAVAILABLE")
        shutil.rmtree(root / "t" / "2")
        publish(root, "t", 3, fewer, {"updates_through": 2})
        server.admin.load("t").expect(200)
        check_rows(rows_of(server.client, "t", [1]), fewer[[1]])
        server.admin.load("t", 1).expect(200)
        applied(update(admin, "t", [control.ROWS - 1], [[6] * control.COLUMNS]), 3, 1)
        event = server.wait_event("a version gets no more updates")
        expect_equal((event["version"], event["sequence"]), ("3", 3))
        expect(f"it is of row {control.ROWS - 1}" in event["reason"], event["reason"])


@pytest.mark.parametrize("arguments", [[], ["--journal-dir", "journal"]])
def test_updates_after_a_failed_change(directory, arguments, root):
    """What a version includes that was loaded and never served does not count."""
    publish(root, "t", 1)
    with control.serve(directory, "--updates", "on", *arguments, cwd=directory) as server:
        admin = server.admin.client
        for number in (1, 2):
            applied(change(admin, number), number, 1)
        publish(root, "t", 2, control.rows_of(2), {"updates_through": 10})
        control.publish_keyed(root, "u", 1, control.KEYS_TWICE)
        server.admin.group({"name": "t"}, {"name": "u"}).expect(400)
        applied(change(admin, 3), 3, 1)
        check_rows(all_rows(server.client), after(control.rows_of(1), 0, 3))
        server.admin.load("t").expect(200)
        applied(change(admin, 11), 11, 1)
        check_rows(all_rows(server.client), after(control.rows_of(2), 10, 11))


def test_a_journal_has_one_server(directory, root):
    publish(root, "t", 1)
    with serve_versions(directory) as server:
        with serve_versions(directory) as other:
            state, reason = other.admin.index()["t", "1"]
            expect(state == "UNAVAILABLE" and "another server uses it" in reason, f"{state}: {reason}")
            applied(change(server.admin.client, 1), 1, 1)
            server.stop()
            other.admin.load("t").expect(200)
            applied(change(other.admin.client, 2), 2, 1)
            check_rows(all_rows(other.client), after(control.rows_of(1), 0, 2))


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_when_a_journal_is_free_again(directory, mode):
    """A poll tries again; without any, the reason says that a restart does."""
    journal = ["--updates", "on", "--journal-dir", directory / "journal"]
    polls = ["--poll-seconds", 1] if mode == "poll" else []  # what fails in a poll is tried again after a minute
    publish(directory / "models", "t", 1)
    with control.serve(directory, *journal) as server:
        with control.serve(directory, *journal, *polls, mode=mode) as other:
            reason = other.wait_event("model unavailable")["reason"]
            expect("another server uses it" in reason, reason)
            expect(("restart this server" in reason) == (mode == "none"), reason)
            applied(change(server.admin.client, 1), 1, 1)
            server.stop()
            if mode == "poll":
                wait_until(lambda: other.admin.states("t") == {"1": "READY"}, "not tried again")
                check_rows(all_rows(other.client), after(control.rows_of(1), 0, 1))


def test_shape_may_change_without_a_journal(directory, root):
    control.publish(root, "t", 1)
    with control.serve(directory, "--updates", "on") as server:
        admin = server.admin.client
        applied(change(admin, 1), 1, 1)
        control.publish(root, "t", 2, np.zeros((3, 7), np.float32), {"updates_through": 9})
        server.admin.load("t").expect(200)
        applied(update(admin, "t", [2], [[5] * 7], sequence=10), 10, 1)
        check_rows(rows_of(server.client, "t", [1, 2]), [[0] * 7, [5] * 7])


@pytest.mark.parametrize("has_journal", [True, False])
def test_updates_while_versions_are_loaded(directory, has_journal, root):
    snapshot = control.rows_of(1)
    control.publish(root, "t", 1, snapshot)
    reloads = scaled(20, at_least=5)
    serve = serve_versions if has_journal else serve_plain
    with serve(directory) as server, Client(server.admin.client.server) as writer:
        sent = [0]

        def write(stop):
            while not stop.is_set():
                applied(change(writer, sent[0] + 1), sent[0] + 1, 1)
                sent[0] += 1

        with beside(write):
            for version in range(2, reloads + 2):
                through = sent[0]
                control.publish(root, "t", version, after(snapshot, 0, through), {"updates_through": through})
                server.admin.load("t").expect(200)
        check_rows(all_rows(server.client), after(snapshot, 0, sent[0]))
        last = sent[0]
    with serve(directory) as server:
        check_rows(all_rows(server.client), after(snapshot, 0, last if has_journal else through))


# ---- without a journal ----------------------------------------------------------------------------
def test_loaded_versions_catch_up_from_memory(directory, root):
    """What the server has taken is applied to versions that come later, while it runs."""
    first, second = control.rows_of(1), control.rows_of(2)
    publish(root, "t", 1, first)
    with serve_plain(directory) as server:
        client, admin = server.client, server.admin.client
        for number in range(1, 6):
            applied(change(admin, number), number, 1)
        publish(root, "t", 2, second, {"updates_through": 3})
        server.admin.load("t").expect(200)
        check_rows(all_rows(client), after(second, 3, 5))
        applied(change(admin, 6), 6, 1)
        server.admin.load("t", 1).expect(200)
        check_rows(all_rows(client), after(first, 0, 6))
        applied(change(admin, 7), 7, 1)
        # For a while no version is served.
        server.admin.unload("t").expect(200)
        server.admin.load("t", 1).expect(200)
        check_rows(all_rows(client), after(first, 0, 7))
        publish(root, "t", 3, control.rows_of(3), {"updates_through": 9})
        server.admin.load("t", 3).expect(200)
        check_rows(all_rows(client), control.rows_of(3))
        applied(change(admin, 10), 10, 1)
        # Updates 8 and 9 came with version 3 alone: this one would lack them.
        error = server.admin.load("t", 2).expect(400).error()
        expect("lacks updates 8 to 9" in error and "updates_through" in error, error)
        check_rows(all_rows(client), after(control.rows_of(3), 9, 10))


def test_memory_for_updates_is_bounded(directory, root):
    """A version that lacks more than what was kept is rejected with what it lacks; one that includes
    enough is served."""
    publish(root, "t", 1)
    with serve_plain(directory, "--updates-memory", 4096) as server:
        client, admin = server.client, server.admin.client
        for number in range(1, 101):
            applied(change(admin, number), number, 1)
        kept = client.metrics()['bagserve_updates_kept_bytes{model="t"}']
        expect(2048 < float(kept) <= 4096, f"{kept} bytes are kept")
        publish(root, "t", 2, control.rows_of(2))
        error = server.admin.load("t").expect(400).error()
        expect("includes updates through 0" in error and "lacks updates 1 to " in error and
               "updates_memory" in error, error)
        check_rows(all_rows(client), after(control.rows_of(1), 0, 100))
        expect_equal(server.admin.index()["t", "2"][0], "UNAVAILABLE")
        publish(root, "t", 3, control.rows_of(3), {"updates_through": 95})
        server.admin.load("t").expect(200)
        check_rows(all_rows(client), after(control.rows_of(3), 95, 100))


def test_versions_that_serve_beside_get_what_follows(directory, root):
    """A snapshot may be ahead of what was sent: an update that it has is not applied to it again, and
    one before it that another version lacks is said."""
    for version in (1, 2):
        publish(root, "t", version, settings={"updates_through": 4} if version == 2 else None)
    (root / "t" / "config.json").write_text('{"version_policy": "all"}')
    with serve_plain(directory) as server:
        admin = server.admin.client
        applied(change(admin, 5), 5, 1)
        event = server.wait_event("a version gets no more updates")
        expect_equal((event["version"], event["sequence"]), ("1", 5))
        expect("lacks updates 1 to 4" in event["reason"], event)
        reply = update(admin, "t/versions/1", [1], [[0] * control.COLUMNS])
        expect(reply.status == 404 or "no more updates" in reply.error(), reply.body)


def test_safetensors_say_what_they_include(directory, root):
    """As metadata; a config.json goes before it, and what is no number is rejected."""

    def write(version, text, settings=None):
        folder = root / "t" / str(version)
        folder.mkdir(parents=True)
        write_safetensors(folder / "table.safetensors", {"t": ("F32", control.rows_of(version))},
                          {"updates_through": text})
        if settings:
            write_json(folder / "config.json", settings)

    write(1, "7")
    with serve_plain(directory) as server:
        admin = server.admin.client
        expect("is 8" in change(admin, 9).expect(409).error(), "the next one is 8")
        applied(change(admin, 8), 8, 1)
        write(2, "7", {"updates_through": 8})
        server.admin.load("t").expect(200)
        check_rows(all_rows(server.client), control.rows_of(2))
        for version, text in ((3, "seven"), (4, "-1"), (5, ""), (6, "1.5"), (7, str(2**64))):
            write(version, text)
            error = server.admin.load("t", version).expect(400).error()
            expect("updates_through" in error, error)
        expect_equal(control.served(server.client), 2)


# ---- mapped tables --------------------------------------------------------------------------------
def mapped(directory, *arguments, **options):
    return control.serve(directory, "--updates", "on", "--load", "map", *arguments, **options)


def test_mapped_tables_that_lack_updates_are_not_served(directory):
    """Nobody may write to a file: a table that the journal, memory or a folder has newer updates for
    is UNAVAILABLE, and says so."""
    root, journal = directory / "models", directory / "journal"
    version = publish(root, "t", 1).parent
    publish(root, "other", 1)
    with serve_versions(directory) as server:
        for number in (1, 2):
            applied(change(server.admin.client, number), number, 1)
    publish(root, "new", 1)
    with mapped(directory, "--journal-dir", journal) as server:
        state, reason = server.admin.index()["t", "1"]
        expect_equal(state, "UNAVAILABLE")
        expect("mapped" in reason and "that are in t;" in reason and "through 2" in reason, reason)
        expect_equal(control.served(server.client, "other"), 1)
        expect_equal(control.served(server.client), 503)
        publish(root, "t", 2, settings={"updates_through": 2})
        server.admin.load("t").expect(200)
        expect_equal(control.served(server.client), 2)
        publish(root, "t", 3, settings={"updates_through": 1})
        expect("mapped" in server.admin.load("t").expect(400).error(), "version 3 lacks update 2")
        expect_equal(control.served(server.client), 2)
    expect(not (journal / "new").exists(), "a mapped table needs no folder in the journal")
    shutil.rmtree(root / "t")
    version = publish(root, "t", 1).parent
    numbered(version, 1)
    with mapped(directory) as server:
        state, reason = server.admin.index()["t", "1"]
        expect(state == "UNAVAILABLE" and "cannot take the update in 1;" in reason, reason)


def test_mapped_versions_after_updates_in_memory(directory, root):
    publish(root, "t", 1)
    with serve_plain(directory) as server:
        applied(change(server.admin.client, 1), 1, 1)
        publish(root, "t", 2, settings={"load": "map"})
        expect("mapped" in server.admin.load("t").expect(400).error(), "version 2 lacks update 1")
        expect_equal(server.admin.index()["t", "1"][0], "READY")
        publish(root, "t", 3, settings={"load": "map", "updates_through": 1})
        server.admin.load("t").expect(200)
        expect_equal(control.served(server.client), 3)


# ---- what reads a table --------------------------------------------------------------------------
def feature_of(root, name, **rules):
    """A collection over the keyed table t."""
    (root / name / "1").mkdir(parents=True)
    write_json(root / name / "1" / "config.json", {"features": [{"name": "f", "model": "t", **rules}]})


def remove(client, key):
    return update(client, "t", Tensor("keys", np.array([key])), **{"delete": True})


def test_features_that_come_and_go(directory, root):
    """What a feature needs stays from when it is loaded to when it is unloaded; where it is gone already,
    the feature is not loaded."""
    control.publish_keyed(root, "t", 1)
    write_json(root / "t" / "config.json", {"spare_rows": 1})
    row = [[9] * control.COLUMNS]
    with serve_versions(directory) as server:
        admin = server.admin.client
        feature_of(root, "default", missing="default", default_index=5)
        server.admin.load("default").expect(200)
        error = remove(admin, 5).expect(400).error()
        expect("it is the default_index of feature 'f' of model 'default'" in error, error)
        server.admin.unload("default").expect(200)
        # Once no request can read the collection any more.
        wait_until(lambda: remove(admin, 5).status == 200, "key 5 is still protected")
        error = server.admin.load("default").expect(400).error()
        expect("default_index is 5, a key that the table does not have" in error, error)
        applied(update(admin, "t", Tensor("keys", np.array([5])), row), 2, 1)
        server.admin.load("default").expect(200)
        # The row of key 5 was deleted and given to key 5 again, and rows 0 to 4 have no other users yet.
        feature_of(root, "hashed", missing="hash", hash_rows=5)
        server.admin.load("hashed").expect(200)
        applied(remove(admin, 0), 3, 1)
        error = update(admin, "t", Tensor("keys", np.array([50, 51])), row * 2).expect(507).error()
        expect("2 of the keys are new, and the table has room for 1" in error, error)
        feature_of(root, "wider", missing="hash", hash_rows=6)
        error = server.admin.load("wider").expect(409).error()
        expect("row 5 is one of its hash_rows (6), and was given to a new key" in error, error)
        server.admin.unload("t", unload_dependents=True).expect(200)
        server.admin.group({"name": "t"}, {"name": "wider"}, {"name": "default"}).expect(200)
        missing = Tensor("f.indices", np.arange(100, 200).reshape(-1, 1))
        got = server.client.infer("wider", [missing], binary=True).outputs()["f"].array
        expect_equal(np.unique(got, axis=0).tolist(), control.rows_of(1)[:1].tolist())
