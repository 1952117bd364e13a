"""max_table_bytes while tables are loaded anew, at its edge, and memory that is not as configured."""

import signal
import threading

import numpy as np
import pytest

from control import publish, rows_of, serve, served
from harness import Server, expect, expect_equal, wait_until, write_json
from v2 import Client

ROWS = 1 << 10
BYTES = ROWS * 4 * 4


def larger(version, times):
    return rows_of(version, rows=times * ROWS)


def states(server):
    return server.admin.states("t")


def expect_second(server, reply, fits):
    """The load of a second version of 48 KiB is made, or rejected, and the first one is served on."""
    if fits:
        reply.expect(200)
    else:
        error = reply.expect(503).error()
        expect("max_table_bytes" in error and "48.00 KiB beside 16.00 KiB" in error, error)
    expect_equal((served(server.client), states(server)), (2, {"2": "READY"}) if fits else (1, {"1": "READY"}))


@pytest.mark.parametrize("off, fits", [(-1, False), (0, True), (1, True)])
def test_load_first_counts_both(directory, off, fits, root):
    publish(root, "t", 1, larger(1, 1))
    with serve(directory, "--max-table-bytes", 4 * BYTES + off, "--log-level", "debug") as server:
        publish(root, "t", 2, larger(2, 3))
        reply = server.admin.load("t")
        expect_second(server, reply, fits)
        if not fits:  # rejected before it began: nothing was announced, and nothing read
            expect_equal(len([e for e in server.events() if e["event"] == "loading table"]), 1)


@pytest.mark.parametrize("off, fits", [(-1, False), (0, True), (1, True)])
def test_unload_first_counts_the_larger(directory, off, fits, root):
    publish(root, "t", 1, larger(1, 2))
    publish(root, "other", 1, larger(9, 1))
    write_json(root / "t" / "config.json", {"reload": "unload_first"})
    with serve(directory, "--max-table-bytes", 4 * BYTES + off) as server:
        publish(root, "t", 2, larger(2, 3))
        seen, done = set(), threading.Event()

        def watch():
            while not done.is_set():
                seen.add(served(server.client, "other"))

        watcher = threading.Thread(target=watch)
        watcher.start()
        reply = server.admin.load("t")
        done.set()
        watcher.join()
        expect_equal(seen, {9})
        expect_second(server, reply, fits)


class Configured:
    """A server of models that a file names, with a limit of its tables."""

    def __init__(self, directory, limit, *models):
        self.path = directory / "config.json"
        self.write(*models)
        self.server = Server("--config", self.path, "--model-control", "poll", "--max-table-bytes", limit)

    def write(self, *models):
        write_json(self.path, {"models": models})

    def change_to(self, *models):
        """Returns the event that says what came of it."""
        self.write(*models)
        known = len(list(self.server.events()))
        self.server.send(signal.SIGHUP)

        def found():
            return [e for e in list(self.server.events())[known:] if e["event"] in ("change done", "change failed")]
        wait_until(found, "no change was made")
        return found()[0]


def table(name, path, **settings):
    return {"name": name, "path": path, **settings}


def test_shared_tables_count_once(directory):
    """At the start, and when a model is loaded whose table is served already."""
    np.save(directory / "a.npy", larger(1, 1))
    np.save(directory / "b.npy", larger(2, 1))
    models = [table("t", "a.npy"), table("u", "a.npy")]
    configured = Configured(directory, BYTES, *models)
    with configured.server as server, Client(server) as client:
        expect_equal([served(client, name) for name in "tu"], [1, 1])
        expect_equal(configured.change_to(*models, table("v", "a.npy", reduction="mean"))["event"], "change done")
        expect_equal(served(client, "v"), 1)
        failed = configured.change_to(*models, table("w", "b.npy"))
        expect("16.00 KiB beside 16.00 KiB" in str(failed), failed)


@pytest.mark.parametrize("off, fits", [(-1, False), (0, True)])
def test_a_shared_table_makes_room_once(directory, off, fits):
    """One that two models unload, beside another table: what does not fit leaves the first one served."""
    for name, version, times in (("a", 1, 1), ("b", 2, 3), ("c", 3, 1)):
        np.save(directory / f"{name}.npy", larger(version, times))

    def models(path):
        return [*(table(name, path, reload="unload_first") for name in "tu"), table("w", "c.npy")]
    configured = Configured(directory, 4 * BYTES + off, *models("a.npy"))
    with configured.server as server, Client(server) as client:
        done = configured.change_to(*models("b.npy"))
        expect_equal(done["event"], "change done" if fits else "change failed")
        expect_equal([served(client, name) for name in "tuw"], [2, 2, 3] if fits else [1, 1, 3])


@pytest.mark.parametrize("off, fits", [(-1, False), (0, True)])
def test_a_table_that_another_model_keeps_makes_no_room(directory, off, fits):
    np.save(directory / "a.npy", larger(1, 1))
    np.save(directory / "b.npy", larger(2, 3))
    other = table("u", "a.npy")
    configured = Configured(directory, 4 * BYTES + off, table("t", "a.npy", reload="unload_first"), other)
    with configured.server as server, Client(server) as client:
        done = configured.change_to(table("t", "b.npy", reload="unload_first"), other)
        expect_equal(done["event"], "change done" if fits else "change failed")
        expect_equal([served(client, name) for name in "tu"], [2 if fits else 1, 1])


def test_groups_and_held_versions_count(directory, root):
    """A group is rejected as a whole; a version that is only held makes room for another table."""
    for name in ("t", "u"):
        publish(root, name, 1, larger(1, 1))
    write_json(root / "t" / "config.json", {"keep_versions": 1})
    with serve(directory, "--max-table-bytes", 4 * BYTES - 1) as server:
        for name in ("t", "u"):
            publish(root, name, 2, larger(2, 1))
        server.admin.group({"name": "t"}, {"name": "u"}).expect(503)
        expect_equal([served(server.client, name) for name in "tu"], [1, 1])
        server.admin.load("t").expect(200)  # three tables: version 1 of t is held
        server.admin.load("u").expect(200)
        expect_equal([served(server.client, name) for name in "tu"], [2, 2])
        server.wait_event("version released")


def test_huge_pages_that_are_not_there(directory):
    """Without a pool of them the table is served all the same, and log and metrics say so."""
    publish(directory / "models", "t", 1, larger(1, 1 << 8))
    with serve(directory, "--hugepages", "explicit") as server:
        lines = server.client.metrics()
        expect_equal(lines["bagserve_numa_refusals_total"], "0")
        if lines["bagserve_huge_page_refusals_total"] == "0":
            pytest.skip("the system has a pool of huge pages")
        told = server.wait_event("memory is not as configured")
        expect_equal((told["option"], told["instead"]), ("hugepages", "transparent huge pages"))
        expect_equal(np.float32(served(server.client)), 1)
