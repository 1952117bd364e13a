"""Updates of rows: what is applied, ignored and rejected."""

import json
import re

import numpy as np
import pytest

from example import check_rows, i64
from harness import TSAN, Server, beside, expect, expect_equal, free_port, run, scaled
from updates import (AUTHORIZED, COLUMNS, MASK, READER, ROWS, SPARE, World, applied, journal_of, keys, rows_of,
                     table, update)
from v2 import Client, Tensor, UnixRaw, head, infer_body


@pytest.fixture(name="world")
def make_world(directory):
    return World(directory)


def test_numbers(world):
    row = [[9, 9, 9, 9]]
    with world.server() as server, Client(server) as client:
        applied(update(client, "dense", [1], row, sequence=1), 1, 1)
        applied(update(client, "dense", [2], row, sequence=1), 1, 0, yes=False)
        check_rows(rows_of(client, "dense", [2]), table()[[2]])
        error = update(client, "dense", [2], row, sequence=3).expect(409).error()
        expect("is 3" in error and "is 2" in error, error)
        # A rejected update uses up no number.
        update(client, "dense", [ROWS], row, sequence=2).expect(400)
        applied(update(client, "dense", [2], row, sequence=2), 2, 1)
        applied(update(client, "dense", [3], row), 3, 1)
        for wrong in (0, -1, 1.5, "4", True, 2**60):
            error = update(client, "dense", [2], row, sequence=wrong).expect(400).error()
            expect("parameter sequence" in error, error)
        applied(update(client, "keyed", keys()[:1], row), 1, 1)


def ranged(client, model, ids, rows, first, last, **parameters):
    return update(client, model, ids, rows, sequence=last, first_sequence=first, **parameters)


def through(client, model):
    parameters = client.request("GET", f"/v2/models/{model}", headers=AUTHORIZED).json()["parameters"]
    return [feature["updates_through"] for feature in parameters.get("features", [parameters])]


def test_bad_ranges(world):
    row = np.zeros((1, COLUMNS), np.float32)
    with world.server() as server, Client(server) as client:
        for parameters, text in (
                ({"first_sequence": 1}, "first_sequence needs sequence"),
                ({"first_sequence": 3, "sequence": 2},
                 "first_sequence is 3; it must be at most sequence, which is 2"),
                ({"first_sequence": 0, "sequence": 2}, "parameter first_sequence must be an integer"),
                ({"first_sequence": "1", "sequence": 2}, "first_sequence must be an integer")):
            error = update(client, "dense", [1], row, **parameters).expect(400).error()
            expect(text in error, error)
        error = update(client, "dense", [1, 1], np.tile(row, (2, 1)), sequence=1).expect(400).error()
        expect("positions 0 and 1" in error, error)
        error = ranged(client, "dense", [1, ROWS, 1], np.tile(row, (3, 1)), 1, 2).expect(400).error()
        expect(f"'indices' has {ROWS}" in error, error)
        error = client.infer("dense", [], AUTHORIZED, path="/v2/models/dense/rows", binary=True).expect(400).error()
        expect("is missing" in error, error)
        expect_equal(through(client, "dense"), [0])


def test_growth_is_seen(world):
    """Metadata and metrics follow the keys that come and go, and say how many spare rows are left."""
    new = np.array([1, 2, MASK], np.uint64)
    rows = np.zeros((3, 4), np.float32)
    with world.server() as server, Client(server) as client:
        def seen():
            text = client.request("GET", "/metrics", headers=AUTHORIZED).expect().body.decode()
            gauges = dict(re.findall(r'^bagserve_table_(rows|spare_\w+)\{model="keyed",version="1"\} (\d+)$', text,
                                     re.MULTILINE))
            parameters = client.request("GET", "/v2/models/keyed", headers=AUTHORIZED).expect().json()["parameters"]
            feature = client.request("GET", "/v2/models/both", headers=AUTHORIZED).expect().json()["parameters"]["features"][1]
            expect_equal((str(parameters["rows"]), str(feature["rows"])), (gauges["rows"],) * 2)
            expect('bagserve_table_spare_rows{model="dense"' not in text, "a dense table has none")
            return tuple(map(int, (gauges["rows"], gauges["spare_rows"], gauges["spare_rows_limit"])))

        expect_equal(seen(), (ROWS, SPARE, SPARE))
        update(client, "keyed", new[:2], rows[:2]).expect()
        expect_equal(seen(), (ROWS + 2, SPARE - 2, SPARE))
        update(client, "keyed", new[1:], rows[1:]).expect()  # of which it has one
        expect_equal(seen(), (ROWS + 3, SPARE - 3, SPARE))
        update(client, "keyed", np.array([4], np.uint64), rows[:1]).expect(507)
        expect_equal(seen(), (ROWS + 3, SPARE - 3, SPARE))
        update(client, "keyed", keys()[:3], **{"delete": True}).expect()
        expect_equal(seen(), (ROWS, SPARE, SPARE))
    with world.server() as server, Client(server) as client:
        expect_equal(seen(), (ROWS, SPARE, SPARE), "after a restart, too")


def served_models(client):
    return {entry["name"]: (entry["state"], entry.get("reason", "")) for entry in
            client.request("POST", "/v2/repository/index", b"", AUTHORIZED).json()}


def collect(world, **rules):
    """Adds a collection whose feature pools the keyed table by rules of its own."""
    feature = {"name": "f", "model": "keyed", **rules}
    config = json.loads(world.config.read_text())
    config["models"] = [m for m in config["models"] if m["name"] != "c"] + \
        [{"name": "c", "features": [feature]}]
    world.config.write_text(json.dumps(config))


def pooled(client, ids):
    return client.infer("c", [Tensor("f.indices", np.asarray(ids).reshape(-1, 1))], AUTHORIZED,
                        binary=True).outputs()["f"].array


REMOVED = {"delete": True}


def test_default_keys_of_features_stay(world):
    """Whoever asks: also the table's own model, which has no default key."""
    default = keys()[7]
    collect(world, missing="default", default_index=str(default))
    with world.server() as server, Client(server) as client:
        error = update(client, "keyed", keys()[5:8], **REMOVED).expect(400).error()
        expect(f"'keys' has {default} at position 2: it is the default_index of feature 'f' of model "
               "'c' and cannot be removed" in error, error)
        applied(update(client, "keyed", keys()[5:7], **REMOVED), 1, 2)
        check_rows(pooled(client, keys()[[5, 7, 8]]), table()[[7, 7, 8]])
    with world.server() as server, Client(server) as client:
        check_rows(pooled(client, keys()[[5, 7, 8]]), table()[[7, 7, 8]])


def test_default_key_that_was_removed(world):
    """Of a feature that came later: it is not served, and what it stands on is."""
    with world.server() as server, Client(server) as client:
        applied(update(client, "keyed", keys()[7:8], **REMOVED), 1, 1)
    collect(world, missing="default", default_index=str(keys()[7]))
    with world.server() as server, Client(server) as client:
        state, reason = served_models(client)["c"]
        expect_equal(state, "UNAVAILABLE")
        expect("a key that the table does not have" in reason and "feature 'f'" in reason, reason)
        check_rows(rows_of(client, "keyed", keys()[8:9]), table()[8:9])
        expect_equal(served_models(client)["both"][0], "READY")


def test_default_key_that_came_by_an_update(world):
    """The table's own, and a feature's: checked when the journal was read."""
    row = np.full((1, COLUMNS), 3, np.float32)
    with world.server() as server, Client(server) as client:
        applied(update(client, "keyed", np.array([77], np.uint64), row), 1, 1)
    config = world.config.read_text()
    collect(world, missing="default", default_index=77)
    with world.server() as server, Client(server) as client:
        check_rows(pooled(client, np.array([5, 77])), np.vstack([row, row]))
    world.config.write_text(config.replace('"missing": "skip"', '"missing": "default", "default_index": 77', 1))
    with world.server() as server, Client(server) as client:
        check_rows(rows_of(client, "keyed", np.array([5])), row)
        error = update(client, "keyed", np.array([77], np.uint64), **REMOVED).expect(400).error()
        expect("it is the default_index of " in error, error)
    world.config.write_text(config.replace('"missing": "skip"', '"missing": "default", "default_index": 78', 1))
    with world.server() as server, Client(server) as client:
        state, reason = served_models(client)["keyed"]
        expect(state == "UNAVAILABLE" and "default_index is 78" in reason, f"{state}: {reason}")
        rows_of(client, "dense", [0])


def test_metadata_is_not_kept(world):
    """It says up to which update the rows have come."""
    with world.server() as server, Client(server) as client:
        for path, want in (("/v2/models/dense", "no-store"), ("/v2/models/dense/config", None)):
            reply = client.request("GET", path, headers=AUTHORIZED).expect(200)
            expect_equal(reply.headers.get("cache-control"), want, path)


def test_bad_batches(world):
    row = np.zeros((1, COLUMNS), np.float32)
    one = np.array([1], np.int64)
    cases = [
        ("dense", [Tensor("indices", one)], {}, "'rows' is missing"),
        ("dense", [Tensor("rows", row)], {}, "'indices'"),
        ("dense", [Tensor("keys", one), Tensor("rows", row)], {}, "send 'indices'"),
        ("keyed", [Tensor("indices", one), Tensor("rows", row)], {}, "send 'keys'"),
        ("dense", [Tensor("indices", one), Tensor("rows", row[:, :3])], {},
         f"'rows' is FP32 [1, 3]; for so many ids it must be FP32 [1, {COLUMNS}]"),
        ("half", [Tensor("indices", one), Tensor("rows", row[0])], {},
         f"'rows' is FP32 [{COLUMNS}]; for so many ids it must be FP16 [1, {COLUMNS}] or FP32 [1, {COLUMNS}]"),
        ("int8", [Tensor("indices", one), Tensor("rows", row[:, :3])], {},
         "'rows' is FP32 [1, 3]; for so many ids it must be UINT8 [1, 12] or FP32 [1, 4]"),
        ("dense", [Tensor("indices", one), Tensor("rows", row.astype(np.float64))], {}, "'rows' is FP64"),
        ("double", [Tensor("indices", one), Tensor("rows", row.astype(np.float16))], {},
         f"'rows' is FP16 [1, {COLUMNS}]; for so many ids it must be FP64 [1, {COLUMNS}] or FP32 [1, {COLUMNS}]"),
        ("dense", [Tensor("indices", one), Tensor("rows", row)], {"sequence": 2**53 + 1},
         "sequence must be an integer from 1 to 9007199254740991"),
        ("dense", [Tensor("indices", np.array([1, 2])), Tensor("rows", row)], {},
         f"'rows' is FP32 [1, {COLUMNS}]; for so many ids it must be FP32 [2, {COLUMNS}]"),
        ("dense", [Tensor("indices", one.astype(np.float32)), Tensor("rows", row)], {},
         "'indices' has datatype FP32"),
        ("dense", [Tensor("indices", one.reshape(1, 1)), Tensor("rows", row)], {}, "dimensions"),
        ("dense", [Tensor("indices", np.array([-1])), Tensor("rows", row)], {},
         "'indices' has -1 at position 0; the table has rows 0 to 49"),
        ("dense", [Tensor("indices", np.array([7, 1, 7])), Tensor("rows", np.tile(row, (3, 1)))],
         {}, "positions 0 and 2"),
        ("half", [Tensor("indices", one), Tensor("rows", row + 1e9)], {}, "row 0: a value does not fit "
         "into the table's rows (FP16)"),
        ("dense", [Tensor("indices", one)], {"delete": True}, "tables with keys"),
        ("keyed", [Tensor("keys", one), Tensor("rows", row)], {"delete": True}, "delete"),
        ("dense", [Tensor("indices", one), Tensor("rows", row)], {"sequense": 1}, "sequense"),
        ("dense", [Tensor("index", one), Tensor("rows", row)], {}, "'index' is unknown"),
        ("both", [Tensor("indices", one), Tensor("rows", row)], {}, "collection"),]
    with world.server() as server, Client(server) as client:
        for model, inputs, parameters, text in cases:
            reply = client.infer(model, inputs, AUTHORIZED, path=f"/v2/models/{model}/rows",
                                 binary=True, parameters=parameters)
            error = reply.expect(400).error()
            expect(text in error, f"'{text}' is not in: {error}")
        path = "/v2/models/dense/rows"
        for misplaced in ("sequence", "delete", "seqence"):
            reply = client.infer("dense", [Tensor("indices", one), Tensor("rows", row)], AUTHORIZED,
                                 path=path, binary=True, **{misplaced: 7})
            expect(f"key '{misplaced}' is unknown" in reply.expect(400).error(), reply.body)
        client.request("POST", path, b"", AUTHORIZED).expect(400)
        client.request("POST", path, b"{", AUTHORIZED).expect(400)
        client.request("POST", path, b"[]", AUTHORIZED).expect(400)
        client.request("POST", path, b"{}", AUTHORIZED | {"Content-Encoding": "gzip"}).expect(415)
        client.request("POST", "/v2/models/none/rows", b"{}", AUTHORIZED).expect(404)
        client.request("GET", path, headers=AUTHORIZED).expect(405)
        check_rows(rows_of(client, "dense", np.arange(ROWS)), table())
        applied(update(client, "dense", [1], row), 1, 1)


def test_ids_that_are_there_twice(world):
    """Found wherever they are, and whichever of their bytes differ."""
    random = np.random.default_rng(1)
    with world.server() as server, Client(server) as client:
        for mask in (0xFF, 0xFFFF << 48, 0xFF << 24, MASK):
            mixed = np.unique(random.integers(0, MASK, 200, np.uint64, True) & np.uint64(mask))
            random.shuffle(mixed)
            error = update(client, "keyed", mixed, **{"delete": True}).expect(400).error()
            expect("the table does not have it" in error, error)
            mixed[len(mixed) - 2] = mixed[3]
            error = update(client, "keyed", mixed, **{"delete": True}).expect(400).error()
            expect(error.endswith(f"same row at positions 3 and {len(mixed) - 2}"), error)


@pytest.mark.skipif(TSAN, reason="ThreadSanitizer has memory of its own beside each byte")
def test_a_batch_takes_what_the_budget_has_for_it(world):
    """Its body, and three times that for its ids."""
    ids = np.arange(1, 1 + (4 << 20), dtype=np.uint64)
    with world.server() as server, Client(server) as client:
        before = server.memory_bytes("VmHWM")
        update(client, "keyed", ids, **{"delete": True}).expect(400)
        grown = server.memory_bytes("VmHWM") - before
        expect(grown < 4.5 * ids.nbytes, f"{grown} bytes for ids of {ids.nbytes}")


def test_who_may(world):
    row = np.zeros((1, COLUMNS), np.float32)
    with world.server() as server, Client(server) as client:
        update(client, "dense", [1], row, headers={}).expect(401)
        update(client, "dense", [1], row, headers={"Authorization": f"Bearer {READER}"}).expect(403)
    port = free_port()
    with world.server("--admin-port", port) as server, Client(server) as client:
        error = update(client, "dense", [1], row).expect(403).error()
        expect("admin listener" in error, error)
        server.port = port
        with Client(server) as admin:
            applied(update(admin, "dense", [1], row), 1, 1)
    with Server("--config", world.config, "--token-file", world.tokens) as server, \
            Client(server) as client:
        error = update(client, "dense", [1], row).expect(403).error()
        expect("--updates on" in error, error)
    ended = run("serve", "--config", world.config, "--updates", "on", "--port", 0)
    expect(ended.returncode != 0 and "token_file" in ended.stderr, ended.stderr)
    ended = run("serve", "--config", world.config, "--journal-dir", world.journal, "--port", 0)
    expect(ended.returncode != 0 and "journal_dir is for updates" in ended.stderr, ended.stderr)


def test_mapped_tables_take_none(world):
    path = world.directory / "mapped.npy"
    np.save(path, np.ones((4, 3), np.float32))
    with Server("--table", f"m={path},load=map", "--updates", "on", "--token-file",
                world.tokens) as server, Client(server) as client:
        reply = update(client, "m", [1], np.zeros((1, 3), np.float32))
        expect("its table is mapped from a file" in reply.expect(409).error(), reply.body)


def test_readers_see_whole_batches(world):
    """Two writers set groups of rows of both tables to the numbers of their batches; keys go and come back. Whatever is
    torn, a batch of which a reply shows a part, and rows that are older than before, show in the numbers."""
    batches, half = scaled(200, at_least=20), 24
    wrong = []
    with world.server("--workers", 2) as server:
        def write(model, ids):
            with Client(server) as client:
                for number in range(1, batches + 1):
                    if model == "keyed" and number % 5 == 0:
                        update(client, model, ids, **REMOVED).expect(200)
                    update(client, model, ids, np.full((half, COLUMNS), number, np.float32)).expect(200)

        def read(stop):
            rows, last = np.arange(half).reshape(1, -1), {"b": 0.0, "a": 0.0}
            with Client(server) as client:
                while not stop.is_set():
                    got = client.infer("twice", [Tensor(f"{name}.indices", np.tile(ids, (40, 1))) for name, ids in (
                        ("a", rows), ("b", keys()[rows]), ("c", rows))], AUTHORIZED, binary=True).outputs()
                    if not np.array_equal(got["a"].array, got["c"].array):
                        wrong.append("two states of one table")
                    for name in last:
                        value = got[name].array[0, 0]
                        # Keys that are gone pool to zeros, and come back newer.
                        if not (got[name].array == value).all() or value % half or (value and value < last[name]):
                            wrong.append((name, last[name], got[name].array))
                        last[name] = max(value, last[name])

        with Client(server) as client:
            for model, ids in (("dense", np.arange(half)), ("keyed", keys()[:half])):
                update(client, model, ids, np.zeros((half, COLUMNS))).expect(200)
        with beside(read, read, read), beside(lambda _: write("dense", np.arange(half)), lambda _: write("keyed", keys()[:half])):
            pass
        with Client(server) as client:
            check_rows(rows_of(client, "dense", np.arange(half)), np.full((half, COLUMNS), batches))
            check_rows(rows_of(client, "keyed", keys()[:half]), np.full((half, COLUMNS), batches))
    expect(not wrong, f"{len(wrong)} replies are wrong, as {wrong[:1]}")


def test_metrics(world):
    row = [[1] * COLUMNS]
    with world.server() as server, Client(server) as client:
        applied(update(client, "dense", [1, 2], row * 2), 1, 2)
        applied(update(client, "dense", [1], row, sequence=1), 1, 0, yes=False)
        update(client, "dense", [1], row, sequence=5).expect(409)
        update(client, "dense", [ROWS], row).expect(400)
        text = client.request("GET", "/metrics", headers=AUTHORIZED).body.decode()
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        for name, want in {"updates_applied_total": 1, "updates_ignored_total": 1,
                           "updates_rejected_total": 2, "updated_rows_total": 2,
                           "update_sequence": 1, "update_lag": 4, "journal_syncs_total": 1}.items():
            expect_equal(int(values['bagserve_%s{model="dense"}' % name]), want, name)
        expect_equal(int(values['bagserve_journal_bytes{model="dense"}']), journal_of(world, "dense").stat().st_size)
        expect(float(values['bagserve_last_update_timestamp_seconds{model="dense"}']) > 1e9, values)
        expect_equal(int(values['bagserve_update_sequence{model="keyed"}']), 0)
        expect_equal(int(values['bagserve_journal_errors_total{model="dense"}']), 0)
        expect('bagserve_update_sequence{model="both"}' not in values, "a collection has no rows")


def test_admin_socket_needs_no_token(world):
    path = world.directory / "admin.sock"
    with Server("--config", world.config, "--updates", "on", "--admin-socket", path) as server, \
            Client(server) as client:
        error = update(client, "dense", [1], [[1] * COLUMNS], headers={}).expect(403).error()
        expect("admin listener" in error, error)
        body, headers = infer_body([i64("indices", [1]), Tensor("rows", np.ones((1, COLUMNS), np.float32))])
        with UnixRaw(path) as admin:
            admin.send(head("POST", "/v2/models/dense/rows", headers, body) + body)
            admin.reply().expect(200)
        check_rows(rows_of(client, "dense", [1]), [[1] * COLUMNS])
