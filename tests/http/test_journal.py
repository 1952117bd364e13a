"""The journal of updates: what a restart keeps, journals that are torn, damaged or another's, and full disks."""

import resource
import shutil

import numpy as np
import pytest

from example import check_rows
from harness import expect, expect_equal
from updates import AUTHORIZED, COLUMNS, ROWS, World, applied, journal_of, keys, rows_of, table, update
from v2 import Client


@pytest.fixture(name="world")
def make_world(directory):
    return World(directory)


def fill(world, count=5):
    with world.server() as server, Client(server) as client:
        for number in range(1, count + 1):
            applied(update(client, "dense", [number], [[-number] * COLUMNS]), number, 1)


def test_torn_tail_is_cut(world):
    fill(world)
    path = journal_of(world, "dense")
    expect_equal(path.name, "00000000000000000001.journal")
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with world.server() as server, Client(server) as client:
        cut = server.wait_event("the end of a journal was cut off")
        expect_equal((cut["model"], cut["last_sequence"]), ("dense", 4))
        check_rows(rows_of(client, "dense", [4, 5]), [[-4] * COLUMNS, table()[5]])
        applied(update(client, "dense", [5], [[-5] * COLUMNS], sequence=5), 5, 1)
    expect_equal(len(path.read_bytes()), len(whole))


def check_unavailable(world, text):
    """The model is not served and the reason names the journal; others are."""
    with world.server() as server, Client(server) as client:
        index = {entry["name"]: entry for entry in
                 client.request("POST", "/v2/repository/index", b"", AUTHORIZED).json()}
        expect_equal(index["dense"]["state"], "UNAVAILABLE")
        expect(str(world.journal) not in index["dense"]["reason"] and text in index["dense"]["reason"],
               index["dense"]["reason"])
        expect_equal(index["both"]["state"], "UNAVAILABLE")
        expect_equal(index["keyed"]["state"], "READY")
        rows_of(client, "keyed", keys()[:1])
        update(client, "dense", [1], [[0] * COLUMNS]).expect(503)
        client.request("GET", "/v2/health/ready").expect(503)


def test_damaged_journal(world):
    fill(world)
    path = journal_of(world, "dense")
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    check_unavailable(world, "damaged")
    path.unlink()
    with world.server() as server, Client(server) as client:
        check_rows(rows_of(client, "dense", np.arange(ROWS)), table())


def test_journal_of_another_table(world):
    fill(world)
    np.save(world.directory / "dense.npy", np.zeros((ROWS, COLUMNS + 1), np.float32))
    check_unavailable(world, "rows of 4 elements")
    np.save(world.directory / "dense.npy", table())
    path = journal_of(world, "dense")
    whole = bytearray(path.read_bytes())
    whole[8] = 2
    path.write_bytes(whole)
    check_unavailable(world, "format 2")


def test_journal_of_another_model(world):
    """A folder that was moved to another model's name."""
    fill(world)
    (world.journal / "dense").rename(world.journal / "other")
    shutil.rmtree(world.journal / "keyed")
    (world.journal / "other").rename(world.journal / "keyed")
    with world.server() as server, Client(server) as client:
        index = {entry["name"]: entry for entry in
                 client.request("POST", "/v2/repository/index", b"", AUTHORIZED).json()}
        expect_equal((index["keyed"]["state"], index["dense"]["state"]), ("UNAVAILABLE", "READY"))
        expect(str(world.journal) not in index["keyed"]["reason"] and
               "dense" in index["keyed"]["reason"], index["keyed"]["reason"])


def test_full_disk_refuses_updates_alone(world):
    """The journal cannot be written: updates are rejected with 507 and use up no number, requests are
    answered, and when there is room again updates go on. A limit of the file's size stands for the
    disk."""
    row = [[1] * COLUMNS]
    with world.server() as server, Client(server) as client:
        applied(update(client, "dense", [1], row), 1, 1)
        size = journal_of(world, "dense").stat().st_size
        hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 10, hard))
        for _ in range(2):
            error = update(client, "dense", [2], row).expect(507).error()
            expect("journal" in error, error)
            check_rows(rows_of(client, "dense", [1, 2]), [row[0], table()[2]])
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        applied(update(client, "dense", [2], row, sequence=2), 2, 1)
    with world.server() as server, Client(server) as client:
        check_rows(rows_of(client, "dense", [1, 2, 3]), [row[0], row[0], table()[3]])


def test_journal_errors_are_counted(world):
    row = [[1] * COLUMNS]
    with world.server() as server, Client(server) as client:
        shutil.rmtree(world.journal)
        world.journal.touch()
        for number in (1, 2):
            update(client, "dense", [1], row).expect(507)
            text = client.request("GET", "/metrics", headers=AUTHORIZED).body.decode()
            expect('bagserve_journal_errors_total{model="dense"} %d' % number in text.splitlines(), text)
        world.journal.unlink()
