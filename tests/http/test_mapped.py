"""Tables that stay in their files: the same answers as copied ones, and files truncated under them.

Every row of the tables that are truncated holds its own number in all columns, so that an answer made of
anything but the row's true bytes is seen: it is exact, or a 500 that names the model and the row.
"""

import functools
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from harness import (PROGRAM, SANITIZED, Server, beside, expect, expect_equal, expect_words, has_openblas, run, scaled,
                     served, wait_until, write_json)
from v2 import Client, Tensor

ROWS, COLUMNS = 40000, 48  # 192 bytes a row: some straddle two pages
ROW_BYTES = 4 * COLUMNS
HEADER_BYTES = 128
BINARY = {"binary_data_output": True}


def numbered(rows=ROWS):
    return np.repeat(np.arange(rows, dtype=np.float32), COLUMNS).reshape(rows, COLUMNS)


def ask(client, rows, model="cut", **options):
    return client.infer(model, [Tensor("indices", np.asarray(rows, np.int64).reshape(1, -1))], binary=True, **options)


def expect_rows(client, rows, model="cut"):
    got = ask(client, rows, model).embeddings()
    expect_equal(got.tolist(), [[float(sum(rows))] * COLUMNS], f"the sum of rows {rows[:10]}")


def expect_missing(client, rows, row, path, model="cut"):
    """A client learns the model and the row, not where the server has its files."""
    text = ask(client, rows, model).expect(500).error()
    expect(text.startswith(f"model '{model}': row {row} is missing: the table's file was truncated"), text)
    expect(str(path.parent) not in text, text)


# ---- the same answers -----------------------------------------------------------------------------


def test_the_loop_answers_what_is_in_memory(directory):
    """A page fault must not hold up the loop: rows that no request has touched lately go to a worker."""
    np.save(directory / "t.npy", numbered())
    config = write_json(directory / "config.json", {"models": [
        {"name": "mapped", "path": "t.npy", "load": "map"},
        {"name": "default", "path": "t.npy", "load": "map", "default_index": ROWS // 4},
        {"name": "copied", "path": "t.npy"},
        *([] if SANITIZED else [{"name": "locked", "path": "t.npy", "load": "map", "mlock": True}])]})
    with Server("--config", config) as server, Client(server) as client:
        def waits(rows, model="mapped", **options):
            """Whether a request had to wait for a worker."""
            def queued():
                stats = client.get(f"/v2/models/{model}/stats").json()["model_stats"][0]
                return stats["inference_stats"]["queue"]["ns"]
            before = queued()
            expect_equal(ask(client, rows, model, **options).embeddings().tolist(),
                         [[float(sum(rows or [ROWS // 4]))] * COLUMNS], model)
            return queued() > before

        expect(not waits([1, 2], "copied"), "rows in memory")
        if not SANITIZED:
            expect(not waits([1, 2], "locked"), "rows that are locked")
        expect(waits([1, ROWS - 1]), "rows that were never touched")
        wait_until(lambda: not waits([1, ROWS - 1]), "rows that are touched again and again")
        expect(waits([1, ROWS // 2]), "a row that was never touched, beside one that was")
        wait_until(lambda: not waits([3], "default"), "a table with a default row that is not needed")
        expect(waits([], "default"), "the default row")
        wait_until(lambda: not waits([], "default"), "the default row again")


def test_the_option_load_and_what_goes_before_it(directory):
    np.save(directory / "t.npy", numbered(100))
    config = write_json(directory / "config.json", {"models": [
        {"name": "own", "path": "t.npy", "load": "copy"}, {"name": "other", "path": "t.npy"}]})
    np.save(directory / "u.npy", numbered(100))
    with Server("--config", config, "--load", "map", "--table", f"flag={directory}/u.npy") as server:
        names = {e["model"] for e in server.events() if e.get("event") == "mapped"}
        expect_equal(names, {"other", "flag"})


# ---- refusals -------------------------------------------------------------------------------------

def test_what_cannot_be_mapped(directory):
    np.save(directory / "big.npy", numbered(10).astype(">f4"))
    np.save(directory / "columns.npy", np.asfortranarray(numbered(10)))
    np.savez_compressed(directory / "deflated.npz", values=numbered(10))
    np.save(directory / "t.npy", numbered(10))
    for rank in (0, 1):
        np.arange(5 * rank, 5 * rank + 5).tofile(directory / f"T_emb_keys.rank_{rank}.world_size_2")
        numbered(5).tofile(directory / f"T_emb_values.rank_{rank}.world_size_2")
    for table, load, said in (
            ("big.npy", "map", "big-endian, which load map cannot turn; say load copy"),
            ("columns.npy", "map", "column-major, which load map cannot turn; say load copy"),
            ("deflated.npz", "map", "compressed"),
            ("", "map", "load map is for a table in one file; this one is in 2"),
            ("t.npy", "copy,warm=true", "warm is for tables with load map"),
            ("t.npy", "copy,mlock=true", "mlock is for tables with load map"),
            ("t.npy", "mop", "must be one of copy, map")):
        ended = run("serve", "--port", "0", "--table", f"t={directory / table},load={load}")
        # A word that no flag takes is a wrong command line; all others are about the table.
        expect_equal(ended.returncode, 2 if load == "mop" else 1, f"the exit code for {table}")
        expect(said in ended.stderr and table in ended.stderr, f"{table}: {ended.stderr}")


def test_all_tables_are_bounded(directory):
    """What is mapped does not count; what is copied, or locked, is rejected with its numbers."""
    path = directory / "t.npy"
    np.save(path, numbered(1000))
    for load, fits in (("map", True), ("copy", False), ("map,mlock=true", False)):
        arguments = ("--table", f"t={path},load={load}", "--max-table-bytes", "100KiB")
        if fits:
            with Server(*arguments) as server, Client(server) as client:
                expect_rows(client, [999], "t")
            continue
        ended = run("serve", "--port", "0", *arguments)
        expect_equal(ended.returncode, 1, f"the exit code for {load}")
        expect("the tables to be loaded take 187.50 KiB beside 0 bytes of those that are there; "
               "max_table_bytes is 100.00 KiB" in ended.stderr, ended.stderr)


def pages_of(server, path):
    """How many bytes of the file the server has in memory, and how many of these are locked."""
    sizes, inside = {"Rss": 0, "Locked": 0}, False
    for line in Path(f"/proc/{server.process.pid}/smaps").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if "-" in name.split()[0]:
            inside = line.endswith(str(path))
        elif inside and name in sizes:
            sizes[name] += int(value.split()[0]) << 10
    return sizes["Rss"], sizes["Locked"]


def test_residence(directory):
    """A table is read when it is asked, before it is served, or is then locked in memory, too."""
    path = directory / "t.npy"
    np.save(path, numbered())
    for load, is_whole, is_locked in (("map", False, False), ("map,warm=true", True, False), ("map,mlock=true", True, True)):
        with Server("--table", f"t={path},load={load}") as server, Client(server) as client:
            resident, locked = pages_of(server, path)
            expect_equal(resident >= ROWS * ROW_BYTES, is_whole, f"{load}: all of the table is in memory: {resident}")
            if not SANITIZED:  # they take mlock away
                expect_equal(locked >= ROWS * ROW_BYTES, is_locked, f"{load}: all of the table is locked: {locked}")
            counted = int(client.metrics()["bagserve_tables_bytes"])
            expect_equal(counted >= ROWS * ROW_BYTES, is_locked, f"{load}: the table counts: {counted}")
            expect_rows(client, [0, ROWS // 2, ROWS - 1], "t")


@pytest.mark.skipif(SANITIZED, reason="sanitizers take mlock away")
def test_too_much_to_lock(directory):
    path = directory / "t.npy"
    np.save(path, numbered())
    ended = subprocess.run(["setpriv", *(["--bounding-set", "-ipc_lock"] if os.geteuid() == 0 else []), "prlimit",
                            "--memlock=65536:65536", PROGRAM, "serve", "--port", "0", "--table", f"t={path},load=map,mlock=true"],
                           capture_output=True, text=True, timeout=60, check=False)
    expect_equal(ended.returncode, 1, ended.stderr)
    expect_words(ended.stderr, ["t.npy", "7.33 MiB cannot be locked in memory", "64.00 KiB"])


# ---- files that are truncated ---------------------------------------------------------------------

@pytest.fixture(name="cut")
def make_cut(directory):
    """A server of a mapped table that is about to be truncated, and its other views; the path, and all of
    the file's bytes."""
    path = directory / "cut.npy"
    np.save(path, numbered())
    np.save(directory / "other.npy", numbered(500))
    np.save(directory / "eye.npy", np.eye(COLUMNS, dtype=np.float32))
    config = write_json(directory / "config.json", {"models": served([
        {"name": "cut", "path": "cut.npy"},
        {"name": "last", "path": "cut.npy", "default_index": ROWS - 1, "padding_idx": ROWS - 2},
        {"name": "projected", "path": "cut.npy", "projection": "eye.npy"},
        {"name": "other", "path": "other.npy"},
        {"name": "both", "features": [{"name": "a", "model": "cut"},
                                      {"name": "b", "model": "other"}]}])})
    with Server("--config", config, "--load", "map", "--workers", "2") as server:
        yield server, path, path.read_bytes()


def offset(row):
    return HEADER_BYTES + row * ROW_BYTES


def restore(path, whole):
    """In place, so that the server's descriptor sees it."""
    with open(path, "r+b") as file:
        file.write(whole)


def test_cut_and_restored(cut):
    server, path, whole = cut
    with Client(server) as client:
        for size, first in ((offset(20000), 20000), (offset(20000) + 1, 20000),
                            (offset(20001) - 1, 20000), (offset(30), 30), (4096, 20), (0, 0),
                            (len(whole) - 1, ROWS - 1), (len(whole), ROWS)):
            os.truncate(path, size)
            there = [row for row in (0, 19, 29, 19999, 20000, ROWS - 2, ROWS - 1) if row < first]
            gone = [row for row in (0, 20, 30, 20000, 20001, 21111, ROWS - 1) if row >= first]
            for row in there:
                expect_rows(client, [row])
            if there:
                expect_rows(client, there)
            for row in gone:
                expect_missing(client, [row], row, path)
                expect_missing(client, there + [row, row], row, path)
            expect_rows(client, [1, 499], "other")
            if gone:
                wait_until(lambda want=(str(path), size): client.get("/v2/health/live") and want in [
                    (e.get("file"), e.get("bytes")) for e in server.events()
                    if e["event"] == "a mapped file was truncated"], "the log does not say so")
            restore(path, whole)
            for row in there + gone:
                expect_rows(client, [row])
        server.wait_event("a mapped file is whole again")
        expect_equal(server.process.poll(), None)


def test_a_truncated_table_is_not_ready(cut):
    """Though nobody reads it; its collections are not, others are, and it is again once it is restored."""
    server, path, whole = cut
    with Client(server) as client:
        def states():
            entries = client.request("POST", "/v2/repository/index", b"").expect().json()
            return {entry["name"]: entry["state"] for entry in entries}
        for size, status in ((len(whole) - 1, 503), (0, 503), (len(whole), 200)):
            os.truncate(path, size)
            if status == 200:
                restore(path, whole)
            for model in ("cut", "both"):
                reply = client.get(f"/v2/models/{model}/ready").expect(status)
                expect(status == 200 or b"was truncated while it was served" in reply.body, reply.body)
            client.get("/v2/models/other/ready").expect(200)
            want = "READY" if status == 200 else "UNAVAILABLE"
            expect_equal([states()[name] for name in ("cut", "both", "other")], [want, want, "READY"])


def test_only_rows_that_are_touched_count(cut):
    """Padding leaves its bag; a default row is touched by an empty bag alone."""
    server, path, whole = cut
    with Client(server) as client:
        os.truncate(path, offset(ROWS - 2))
        got = ask(client, [5, ROWS - 2], "last").embeddings()
        expect_equal(got.tolist(), [[5.0] * COLUMNS], "a bag with padding")
        expect_missing(client, [ROWS - 2, ROWS - 2], ROWS - 1, path, "last")
        outside = [Tensor("indices", np.array([ROWS - 1, 1, 2])), Tensor("offsets", np.array([1]))]
        expect_equal(client.infer("cut", outside).embeddings().tolist(), [[3.0] * COLUMNS])
        both = [Tensor("a.indices", np.array([[ROWS - 1]])), Tensor("b.indices", np.array([[3]]))]
        client.infer("both", both).expect(500)
        reply = client.infer("both", both, outputs=[{"name": "b"}])
        expect_equal(reply.outputs()["b"].array.tolist(), [[3.0] * COLUMNS], "a feature that is whole")
        view = "projected" if has_openblas() else "cut"
        expect_missing(client, [ROWS - 1], ROWS - 1, path, view)
        expect_rows(client, [7], view)
        restore(path, whole)
        expect_rows(client, [ROWS - 1], view)


def test_replaced_by_rename_keeps_the_old_file(cut):
    server, path, _ = cut
    new = path.with_name("new.npy")
    np.save(new, numbered() + 1)
    with Client(server) as client:
        expect_rows(client, [3, ROWS - 1])
        os.rename(new, path)
        expect_rows(client, [3, ROWS - 1])
        os.truncate(path, 0)
        expect_rows(client, [3, ROWS - 1])


def test_large_requests_that_are_split(cut):
    server, path, whole = cut
    rows = np.tile(np.arange(ROWS), 8)
    want = numbered().astype(np.float64)[rows].reshape(64, -1, COLUMNS).sum(1)
    inputs = [Tensor("indices", rows.reshape(64, -1))]
    with Client(server) as client:
        for size in (len(whole), offset(ROWS // 2), 0, len(whole)):
            os.truncate(path, size)
            if size == len(whole):
                restore(path, whole)
                got = client.infer("cut", inputs, binary=True).embeddings()
                expect(np.allclose(got, want, rtol=1e-3), "the sums of split bags")
            else:
                text = client.infer("cut", inputs, binary=True).expect(500).error()
                expect("is missing: the table's file was truncated" in text, text)


def test_cut_and_restored_all_the_time(cut):
    """Answers about rows that were always there, and those of the other table, are all 200."""
    server, path, whole = cut
    kept, answered = 1000, {200: 0, 500: 0}

    def read(seed, stop):
        rng = np.random.default_rng(seed)
        with Client(server) as client:
            while not stop.is_set():
                model, rows = [("other", rng.integers(0, 500, 5)), ("cut", rng.integers(0, kept, 20)),
                               ("cut", rng.integers(0, ROWS, 20))][rng.integers(3)]
                reply = ask(client, rows, model)
                if reply.status == 500 and rows.max() >= kept:
                    expect("model 'cut': " in reply.error(), reply.error())
                else:
                    expect((reply.embeddings() == sum(int(row) for row in rows)).all(), f"{model} {rows}: {reply.embeddings()[0, :4]}")
                answered[reply.status] += 1

    rng = np.random.default_rng(1)
    with beside(*(functools.partial(read, seed) for seed in range(6))) as problems:
        for _ in range(scaled(60, 15)):
            failed, served_before = answered[500], answered[200]
            size = int(rng.integers(offset(kept), len(whole)))
            os.truncate(path, size)
            wait_until(lambda n=failed: answered[500] > n or problems, "no request failed")
            with open(path, "r+b") as file:
                file.seek(size)
                file.write(whole[size:])
            wait_until(lambda n=served_before: answered[200] > n + 20 or problems, "none served")
    with Client(server) as client:
        for row in range(0, ROWS, 997):
            expect_rows(client, [row])


def test_another_sigbus_ends_the_process(cut):
    server, path, _ = cut
    with Client(server) as client:
        os.truncate(path, 0)
        ask(client, [1]).expect(500)
        server.send(signal.SIGBUS)
        code = server.wait()
        server._end_checked = True
        expect(code == -signal.SIGBUS or (SANITIZED and code != 0), f"exit code {code}")
