"""Folders of updates (deltas): which are taken, when, and in which order."""

import os
import shutil
import signal

import numpy as np

import control
from control import publish
from example import check_rows
from harness import beside, expect, expect_equal, wait_until, write_json
from live_versions import after, all_rows, change, delta, has, numbered, serve_plain, serve_versions
from updates import applied, rows_of
from v2 import Tensor


def test_deltas_are_polled(directory, root):
    """Those that follow are taken at each poll, in order; one that is missing is waited for."""
    version = publish(root, "t", 1).parent
    numbered(version, 1)
    with serve_plain(directory, "--poll-seconds", 0.2, mode="poll") as server:
        client = server.client
        check_rows(all_rows(client), after(control.rows_of(1), 0, 1))
        for number in (2, 3, 5, 7):
            numbered(version, number)
        wait_until(lambda: has(client, 3), "deltas 2 and 3 are not applied")
        event = server.wait_event("waits for a delta")
        expect_equal((event["model"], event["next"], event["found"]), ("t", 4, 5))
        wait_until(lambda: client.metrics()['bagserve_update_lag{model="t"}'] == "4", "no lag")
        wait_until(lambda: client.metrics()['bagserve_deltas_waiting{model="t"}'] == "2", "waiting")
        values = client.metrics()
        expect_equal((values['bagserve_update_sequence{model="t"}'],
                      values['bagserve_deltas_applied_total{model="t"}']), ("3", "3"))
        # The one that is missing may come as a request.
        applied(change(server.admin.client, 4), 4, 1)
        wait_until(lambda: has(client, 5), "delta 5 is not applied")
        applied(change(server.admin.client, 6), 6, 1)
        wait_until(lambda: has(client, 7), "delta 7 is not applied")
        wait_until(lambda: client.metrics()['bagserve_deltas_waiting{model="t"}'] == "0", "waiting")
        expect_equal(client.metrics()['bagserve_update_lag{model="t"}'], "0")
        # A version that comes later gets them, too, though they are not in its folder.
        publish(root, "t", 2, control.rows_of(2), {"updates_through": 5})
        wait_until(lambda: np.array_equal(all_rows(client), after(control.rows_of(2), 5, 7)),
                   "version 2 is not served with updates 6 and 7")


def test_deltas_of_two_versions_are_polled(directory, root):
    """Each version has a folder of its own, and polls remember what they saw in each."""
    for version in (1, 2):
        publish(root, "t", version, control.rows_of(1))
    write_json(root / "t" / "config.json", {"version_policy": "all"})
    with serve_plain(directory, "--poll-seconds", 0.2, mode="poll") as server:
        client = server.client
        for version, number in ((2, 1), (1, 2), (2, 3)):
            numbered(root / "t" / str(version), number)
        wait_until(lambda: has(client, 3), "deltas are not applied")
        numbered(root / "t" / "1", 5)
        numbered(root / "t" / "2", 6)
        wait_until(lambda: client.metrics()['bagserve_deltas_waiting{model="t"}'] == "2", "waiting")

        def waits():
            found = [e for e in server.events() if e["event"] == "waits for a delta"]
            return [(e["next"], e["found"]) for e in found if e["next"] == 4]

        wait_until(lambda: client.metrics() and waits() == [(4, 5), (4, 6)], "the log does not say what is waited for")
        applied(change(server.admin.client, 4), 4, 1)
        wait_until(lambda: has(client, 6), "deltas 5 and 6 are not applied")
        wait_until(lambda: client.metrics()['bagserve_deltas_waiting{model="t"}'] == "0", "waiting")
        values = client.metrics()
        expect_equal((values['bagserve_update_sequence{model="t"}'],
                      values['bagserve_deltas_applied_total{model="t"}']), ("6", "5"))


def test_deltas_at_a_load_call_and_sighup(directory, root):
    version = publish(root, "t", 1).parent
    with serve_plain(directory) as server:
        numbered(version, 1)
        server.admin.load("t").expect(200)
        check_rows(all_rows(server.client), after(control.rows_of(1), 0, 1))
        numbered(version, 2)
        numbered(version, 3)
        server.admin.group({"name": "t"}).expect(200)
        check_rows(all_rows(server.client), after(control.rows_of(1), 0, 3))
        numbered(version, 4)
        server.send(signal.SIGHUP)
        wait_until(lambda: has(server.client, 4), "delta 4 is not applied")


def test_deltas_do_not_wait_for_a_poll_that_changes_end(directory, root):
    """Each load ends the poll after the table that it reads, and the deltas do not wait for the last one."""
    publish(root, "t", 1)
    names = [f"u{i}" for i in range(8)]
    for name in [*names, "z"]:
        publish(root, name, 1)
    # Each new table takes most of a second.
    with serve_plain(directory, "--poll-seconds", 0.2, "--load-bytes-per-second", "256KiB", mode="poll") as server:
        for name in names:
            publish(root, name, 2, control.rows_of(2, 256 * 1024 // control.rows_of(2, 1).nbytes))

        def load(stop):
            while not stop.is_set():
                server.admin.load("z").expect(200)

        with beside(load):
            wait_until(lambda: any(control.served(server.client, name) == 2 for name in names), "no table is read")
            numbered(root / "t" / "1", 1)
            wait_until(lambda: has(server.client, 1), "the delta is not applied")
            expect(any(control.served(server.client, name) == 1 for name in names), "all tables were read before")


def test_start_takes_a_delta_beside_a_version_that_lacks_updates(directory, root):
    """A file that includes an update which an older version does not have starts behind that one. The
    delta beside it follows once both serve, without a poll or a load."""
    publish(root, "t", 1)
    version = publish(root, "t", 2, control.rows_of(2), {"updates_through": 1}).parent
    write_json(root / "t" / "config.json", {"version_policy": "all"})
    numbered(version, 2)
    with serve_plain(directory) as server:
        check_rows(all_rows(server.client), after(control.rows_of(2), 1, 2))


def test_bad_deltas_are_waited_for(directory, root):
    """One that is half there changes nothing, is said with its folder, and is taken when it is
    whole; one of another width never is, and what serves goes on."""
    version = publish(root, "t", 1).parent
    whole = numbered(directory / "aside", 1)
    half = version / "deltas" / "1"
    half.mkdir(parents=True)
    shutil.copy(whole / "indices.npy", half)
    (half / "rows.npy").write_bytes((whole / "rows.npy").read_bytes()[:-4])
    with serve_plain(directory, "--poll-seconds", 0.2, mode="poll") as server:
        check_rows(all_rows(server.client), control.rows_of(1))
        event = server.wait_event("a delta is not applied")
        expect(event["model"] == "t" and str(half) in event["reason"], event)
        os.replace(whole / "rows.npy", half / "rows.npy")
        wait_until(lambda: has(server.client, 1), "the delta is not applied")
        delta(version, 2, [1], [[5] * (control.COLUMNS + 1)])
        wait_until(lambda: server.client.metrics()['bagserve_deltas_waiting{model="t"}'] == "1",
                   "delta 2 does not wait")
        applied(change(server.admin.client, 2), 2, 1)
        check_rows(all_rows(server.client), after(control.rows_of(1), 0, 2))
    # Asked for, it fails the call with the reason.
    with serve_plain(directory) as server:
        error = server.admin.load("t").expect(400).error()
        expect(error.startswith("what was asked for is served, without an update: delta ") and
               str(version / "deltas" / "2") in error, error)
        check_rows(all_rows(server.client), after(control.rows_of(1), 0, 1))


def test_a_folder_of_deltas_that_cannot_be_read_is_said(directory):
    version = publish(directory / "models", "t", 1).parent
    (version / "deltas").write_text("no folder")
    with serve_plain(directory) as server:
        expect(str(version / "deltas") in server.wait_event("a delta is not applied")["reason"], server.log())
        error = server.admin.load("t").expect(400).error()
        expect(error.endswith(f"{version}/deltas: the folder cannot be read: Not a directory"), error)
        (version / "deltas").unlink()
        numbered(version, 1)
        server.admin.load("t").expect(200)
        check_rows(all_rows(server.client), after(control.rows_of(1), 0, 1))


def test_deltas_remove_only_what_they_say(directory, root):
    """Keys whose rows have not come yet are not keys to remove."""
    control.publish_keyed(root, "k", 1)
    version = root / "k" / "1"
    with serve_plain(directory) as server:
        client, admin = server.client, server.admin
        first = delta(version, 1, [3, 4], is_keyed=True)
        error = admin.load("k").expect(400).error()
        expect(str(first) in error and "rows.npy" in error and "deleted_keys.npy" in error, error)
        check_rows(rows_of(client, "k", [3, 4]), control.rows_of(1)[3:5])
        np.save(first / "deleted_keys.npy", np.array([3, 4]))
        error = admin.load("k").expect(400).error()
        expect("must be alone" in error, error)
        check_rows(rows_of(client, "k", [3, 4]), control.rows_of(1)[3:5])
        os.remove(first / "keys.npy")
        admin.load("k").expect(200)
        for key in (3, 4):
            client.infer("k", [Tensor("indices", np.array([[key]]))]).expect(400)
        check_rows(rows_of(client, "k", [2, 5]), control.rows_of(1)[[2, 5]])
        # Trainers also report unknown keys.
        second = version / "deltas" / "2"
        second.mkdir()
        np.save(second / "deleted_keys.npy", np.array([2, 3, 999]))
        admin.load("k").expect(200)
        client.infer("k", [Tensor("indices", np.array([[2]]))]).expect(400)
    with serve_plain(directory) as server:  # and when the table is loaded
        server.client.infer("k", [Tensor("indices", np.array([[2]]))]).expect(400)
        check_rows(rows_of(server.client, "k", [5]), control.rows_of(1)[[5]])


def test_deltas_that_need_a_ready_file(directory, root):
    version = publish(root, "t", 1).parent
    (version / "_READY").touch()
    first = numbered(version, 1)
    with serve_plain(directory, "--ready-file", "_READY", "--poll-seconds", 0.2, mode="poll") as server:
        expect("_READY" in server.wait_event("a delta is not applied")["reason"], server.log())
        check_rows(all_rows(server.client), control.rows_of(1))
        (first / "_READY").touch()
        wait_until(lambda: has(server.client, 1), "the delta is not applied")


def test_deltas_are_in_the_journal(directory, root):
    """So that their folders may go, and numbers go on after a restart."""
    version = publish(root, "t", 1).parent
    for number in (1, 2):
        numbered(version, number)
    with serve_versions(directory) as server:
        applied(change(server.admin.client, 3), 3, 1)
    shutil.rmtree(version / "deltas")
    with serve_versions(directory) as server:
        check_rows(all_rows(server.client), after(control.rows_of(1), 0, 3))
        applied(change(server.admin.client, 4), 4, 1)
