"""The journal of updates: what a restart keeps, journals that are torn, damaged or another's, and full disks."""

import resource
import shutil
import zlib

import numpy as np
import pytest

from example import check_rows
from harness import expect, expect_equal
from updates import AUTHORIZED, COLUMNS, ROWS, World, applied, journal_of, keys, rows_of, table, update
from v2 import Client


@pytest.fixture(name="world")
def make_world(directory):
    return World(directory)


def test_restart_keeps_updates(world):
    new = np.array([1, 2], np.uint64)
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    with world.server() as server, Client(server) as client:
        for number in range(1, 21):
            applied(update(client, "dense", [number], [[number] * COLUMNS], sequence=number),
                    number, 1)
        applied(update(client, "keyed", new, rows), 1, 2)
        applied(update(client, "keyed", new[:1], **{"delete": True}), 2, 1)
    want = table()
    want[1:21] = np.arange(1, 21)[:, None]
    with world.server("--journal-sync", "off") as server, Client(server) as client:
        check_rows(rows_of(client, "dense", np.arange(ROWS)), want)
        check_rows(rows_of(client, "keyed", new), [[0] * 4, rows[1]])
        applied(update(client, "dense", [1], [[0] * COLUMNS], sequence=20), 20, 0, yes=False)
        applied(update(client, "dense", [1], [[5] * COLUMNS], sequence=21), 21, 1)
        server.process.kill()
        server.process.wait()
        server._end_checked = True
    with world.server("--journal-sync", "interval") as server, Client(server) as client:
        check_rows(rows_of(client, "dense", [1]), [[5] * COLUMNS])
        applied(update(client, "dense", [1], [[6] * COLUMNS], sequence=22), 22, 1)


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


def rewrite(path, place, value, crc_at, begin, end):
    """Puts a number of 32 bits into a journal's header or record, whose checksum is right again."""
    whole = bytearray(path.read_bytes())
    whole[place:place + 4] = value.to_bytes(4, "little")
    whole[crc_at:crc_at + 4] = bytes(4)
    first = begin if crc_at > begin else crc_at + 4
    whole[crc_at:crc_at + 4] = zlib.crc32(whole[first:end]).to_bytes(4, "little")
    path.write_bytes(whole)


@pytest.mark.parametrize("row_bytes", [0, 4, 17])
def test_journal_of_rows_that_cannot_be(world, row_bytes):
    """Whose checksum is right: what is behind a short row is no row."""
    fill(world, 1)
    rewrite(journal_of(world, "dense"), 32, row_bytes, 44, 0, 64)
    check_unavailable(world, f"rows of {COLUMNS} elements of FP32 take {4 * COLUMNS} bytes, and "
                             f"it says {row_bytes}")


def test_deletes_in_a_journal_of_a_dense_table(world):
    """Whose id and row are read as keys."""
    fill(world, 2)
    path = journal_of(world, "dense")
    end = 64 + (path.stat().st_size - 64) // 2
    rewrite(path, 64 + 40, 1 + COLUMNS * 4 // 8, 64 + 4, 64, end)
    rewrite(path, 64 + 32, 2, 64 + 4, 64, end)
    check_unavailable(world, "damaged at byte 64")


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


def test_snapshots_say_what_they_include(world):
    fill(world)
    snapshot = table()
    snapshot[1:4] = 77  # later than updates 1 to 3
    np.save(world.directory / "dense.npy", snapshot)
    config = world.config.read_text()
    world.config.write_text(config.replace('"dense.npy"', '"dense.npy", "updates_through": 3', 1))
    snapshot[4:6] = [[-4], [-5]]
    with world.server() as server, Client(server) as client:
        check_rows(rows_of(client, "dense", np.arange(ROWS)), snapshot)
        applied(update(client, "dense", [9], [[0] * COLUMNS], sequence=6), 6, 1)
    # A snapshot that is ahead of the journal.
    world.config.write_text(config.replace('"dense.npy"', '"dense.npy", "updates_through": 10', 1))
    with world.server() as server, Client(server) as client:
        check_rows(rows_of(client, "dense", [2, 4]), [[77] * COLUMNS, table()[4]])
        update(client, "dense", [9], [[0] * COLUMNS], sequence=12).expect(409)
        applied(update(client, "dense", [9], [[0] * COLUMNS], sequence=11), 11, 1)


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
