"""max_table_bytes while tables are loaded anew, at its edge, and memory that is not as configured."""

import threading

import numpy as np
import pytest

from control import publish, rows_of, serve, served
from harness import expect, expect_equal, write_json

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
    expect_equal((served(server.client), states(server)),
                 (2, {"2": "READY"}) if fits else (1, {"1": "READY"}))


@pytest.mark.parametrize("off, fits", [(-1, False), (0, True), (1, True)])
def test_load_first_counts_both(directory, off, fits):
    root = directory / "models"
    publish(root, "t", 1, larger(1, 1))
    with serve(directory, "--max-table-bytes", 4 * BYTES + off, "--log-level", "debug") as server:
        publish(root, "t", 2, larger(2, 3))
        reply = server.admin.load("t")
        expect_second(server, reply, fits)
        if not fits:  # rejected before it began: nothing was announced, and nothing read
            expect_equal(len([e for e in server.events() if e["event"] == "loading table"]), 1)


@pytest.mark.parametrize("off, fits", [(-1, False), (0, True), (1, True)])
def test_unload_first_counts_the_larger(directory, off, fits):
    root = directory / "models"
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


def test_groups_and_held_versions_count(directory):
    """A group is rejected as a whole; a version that is only held makes room for another table."""
    root = directory / "models"
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
        text = server.client.request("GET", "/metrics").body.decode()
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        expect_equal(lines["bagserve_numa_refusals_total"], "0")
        if lines["bagserve_huge_page_refusals_total"] == "0":
            pytest.skip("the system has a pool of huge pages")
        told = server.wait_event("memory is not as configured")
        expect_equal((told["option"], told["instead"]), ("hugepages", "transparent huge pages"))
        expect_equal(np.float32(served(server.client)), 1)
