"""A front of three shards answers as one server that has all of the table does, and says of shards that do not fit why.
`tests/features coordinator` compares random requests of every form."""

import contextlib
import json
import os
import re

import numpy as np
import pytest

from harness import Server, expect, expect_equal, expect_words, free_port, run, seed, wait_until, write_json
from shards import COLUMNS, OF, ROWS, Between, ask, front_of, make_tables, parts_of  # noqa: F401
from table_files import random_rows
from v2 import Client, Tensor

MAX_REPLY_BYTES = 320 << 20  # by default


@pytest.fixture(scope="module", params=["rows", "columns", "keys"], name="trio")
def serve_trio(request, shared_directory, tables):
    """The shards' way, a client of the front, and one of a server that has all."""
    way = request.param
    model = tables[way] | {"default_index": 1000 if way == "keys" else 5}
    if way == "keys":
        model["missing"] = "skip"
        model["default_index"] = int(np.load(shared_directory / "keys.npy")[3])
    config = write_json(shared_directory / f"one-{way}.json", {"models": [{"name": "items"} | model]})
    with parts_of(shared_directory, model, way) as servers, Server("--config", config) as one, \
            front_of(shared_directory, [servers[i].url for i in (2, 0, 1)]) as front, \
            Client(front) as asked, Client(one) as compared:
        yield way, asked, compared, servers


def random_bags(rng, ids, bags):
    lengths = rng.integers(0, 9, bags)
    return ids[rng.integers(0, len(ids), lengths.sum())], np.concatenate([[0], np.cumsum(lengths)])[:-1]


def same(got, want, what):
    """The same answer, but for blanks in front of binary tensors."""
    expect_equal(got.status, want.status, what)
    if got.status != 200:
        expect_equal(got.json(), want.json(), what)
        return
    names = [output["name"] for output in want.header()[0]["outputs"]]
    expect_equal([output["name"] for output in got.header()[0]["outputs"]], names, what)
    for mine, other in zip(got.outputs().values(), want.outputs().values()):
        mine, other = mine.array, other.array
        expect_equal((mine.dtype, mine.shape, mine.tobytes()), (other.dtype, other.shape, other.tobytes()), what)


def test_indices_in_no_bag(trio, shared_directory):
    """A coordinator warns as one server does."""
    way, asked, compared, _ = trio
    ids = np.load(shared_directory / "keys.npy")[:9] if way == "keys" else np.arange(9) * 30
    for offsets, last in (([2, 4], False), ([0, 4, 7], True), ([], False)):
        replies = [ask(one, ids, offsets, include_last_offset=last) for one in (asked, compared)]
        same(*replies, (way, offsets))
        told = [reply.header()[0]["parameters"]["warnings"] for reply in replies]
        expect_equal(told[0], told[1], (way, offsets))
        expect("of 9 indices are in no bag" in told[0][0], told)


def test_metadata(trio, rng, shared_directory):
    way, asked, compared, _ = trio
    ids = np.load(shared_directory / "keys.npy") if way == "keys" else np.arange(ROWS)
    ask(asked, *random_bags(rng, ids, 50)).expect(200)
    mine, other = (one.get("/v2/models/items").expect().json() for one in (asked, compared))
    for facts in (mine["parameters"], other["parameters"]):
        facts.pop("bytes")
    expect_equal(mine["parameters"].pop("shards"), OF)
    expect_equal(mine, other, way)
    mine, other = (one.get("/v2/models/items/config").expect().json()["parameters"] for one in (asked, compared))
    for facts in (mine, other):
        facts.pop("bytes")
    expect_equal(mine.pop("shards"), {"string_value": str(OF)})
    expect_equal(mine, other, way)
    expect_equal(asked.get("/v2/models/items/ready").expect().json(), {"name": "items", "ready": True})
    [entry] = json.loads(asked.request("POST", "/v2/repository/index").expect().body)
    expect_equal((entry["name"], entry["version"], entry["state"]), ("items", "1", "READY"))
    counted = re.findall(r'bagserve_shard_requests_total\{model="items",shard="([^"]+)",outcome="ok"\} (\d+)',
                         asked.get("/metrics").expect().body.decode())
    expect_equal(len(counted), OF)
    expect(all(int(number) > 0 for _, number in counted), counted)


def test_large_request(trio, rng, shared_directory):
    """One that a worker makes and puts together."""
    way, asked, compared, _ = trio
    ids = np.load(shared_directory / "keys.npy") if way == "keys" else np.arange(ROWS)
    values, offsets = random_bags(rng, ids, 20000)
    same(ask(asked, values, offsets), ask(compared, values, offsets), way)


@pytest.mark.parametrize("way", ["keys", "columns", "rows"])
def test_rules_that_shards_are_not_told(directory, tables, way):
    """A model, or a feature of one, that says otherwise is not served: its answers would be wrong."""
    keyed = way == "keys"
    theirs = {"missing": "hash", "hash_rows": 7} if keyed else {"prune_invalid": True}
    wrong = [("missing", {"missing": "skip"}), ("hash_rows", {"missing": "hash", "hash_rows": 8})] if keyed else [
        ("prune_invalid", {"prune_invalid": False})]
    if way == "columns":
        wrong.append(("weighted_mean", {"weighted_mean": True}))
    good = {"missing": "error"} if keyed else {"reduction": "max"}
    with parts_of(directory, tables[way] | theirs, way) as servers:
        urls = [server.url for server in servers]
        more = [{"name": f"pair{i}", "features": [{"name": "f", "model": "items"} | rules]}
                for i, (_, rules) in enumerate(wrong + [("", good)])]
        with front_of(directory, urls, more=more, wait=False) as front, Client(front) as client:
            wait_until(lambda: client.get(f"/v2/models/pair{len(wrong)}/ready").status == 200, "no collection")
            for i, (key, _) in enumerate(wrong):
                answer = client.get(f"/v2/models/pair{i}/ready")
                expect_equal(answer.status, 503)
                expect_words(answer.error(), [key, "must be what the shards of model 'items' have"])
        with front_of(directory, urls, **good):
            pass
        for key, rules in wrong:
            with front_of(directory, urls, wait=False, **rules) as front, Client(front) as client:
                wait_until(lambda: f"{key} must be what the shards" in (client.get("/v2/health/ready").error() or ""),
                           f"{key} is not refused")


# ---- shards that do not fit ------------------------------------------------------------------------

def refused(directory, urls, words, **keys):
    """The front lives, is not ready, and says why in readiness and in the index."""
    with front_of(directory, urls, wait=False, **keys) as front, Client(front) as client:
        def said():
            answer = client.get("/v2/health/ready")
            return answer.status == 503 and all(word in answer.error() for word in words)
        wait_until(said, f"readiness does not say {words}", 20)
        expect_equal(client.get("/v2/health/live").status, 200)
        [entry] = json.loads(client.request("POST", "/v2/repository/index").expect().body)
        expect_equal(entry["state"], "UNAVAILABLE")
        expect_words(entry["reason"], words)
        expect_equal(ask(client, [1], [0]).status, 503)


def test_row_formats_of_replies(directory, tables):
    """The coordinator may have one of its own, and its limit is that of encoded rows, then of FP32 ones. With one of the
    shards, whose replies it cannot read, it says so."""
    with parts_of(directory, tables["rows"], "rows") as servers:
        with front_of(directory, [server.url for server in servers], output_row_format="int8") as front, \
                Client(front) as client:
            expect_equal(ask(client, [1, 5], [0], binary=True).embeddings().shape, (1, COLUMNS + 8))
            for row_bytes, before in ((COLUMNS + 8, ""), (COLUMNS * 4, " before they are encoded")):
                too_many = [Tensor(name, np.zeros(0, np.int64)) for name in ("indices", "segment_ids")] + \
                    [Tensor("num_segments", np.array([MAX_REPLY_BYTES // row_bytes + 1]))]
                expect_equal(client.infer("items", too_many, binary=True).expect(400).error(),
                             f"the results would take more than {MAX_REPLY_BYTES} bytes{before}, the limit (max_reply_bytes)")
    with parts_of(directory, tables["rows"] | {"output_row_format": "int8"}, "rows") as servers:
        refused(directory, [server.url for server in servers], ["encoded there", "'output_row_format'"])


@pytest.mark.parametrize("row_format", ["int8", "int8_f16_back", "int4", "int4_f16_front", "int2", "int8_symmetric",
                                        "f8_e5m2", "f8_e4m3_scaled"])
@pytest.mark.parametrize("way", ["rows", "keys", "columns"])
def test_stored_rows(directory, tables, rng, way, row_format):
    """Rows that are not pooled come from shards as they are stored, whose codes do not span the row: encoding them
    again would be other bytes. Padding, missing ids and default rows are as of one server; beside pooled features."""
    stored, keys = random_rows(rng, row_format, COLUMNS, ROWS)[0], np.load(tables["keys"]["keys"])
    np.save(directory / "items.npy", stored)
    model = {"path": str(directory / "items.npy"), "row_format": row_format, "row_elements": COLUMNS}
    ids = keys if way == "keys" else np.arange(ROWS)
    model |= {"keys": tables["keys"]["keys"], "missing": "skip"} if way == "keys" else {"out_of_range": "skip"}
    features = [{"name": "rows", "model": "items", "reduction": "none"}, {"name": "again", "model": "items",
                 "reduction": "none", "padding_idx": int(ids[1])}, {"name": "pooled", "model": "items"}]
    other = {"name": "all", "features": [feature | {"output_row_format": row_format} for feature in features]}
    asked = rng.choice(ids, 60)
    asked[5], asked[9] = ids[1], 10**9
    config = write_json(directory / "one.json", {"models": [{"name": "items"} | model, other]})
    with parts_of(directory, model, way) as servers, Server("--config", config) as one, \
            front_of(directory, [server.url for server in servers], more=[other]) as front, \
            Client(front) as mine, Client(one) as compared:
        for binary in (True, False):
            for options in ({}, {"padding_idx": int(ids[1])}):
                got, want = (client.infer("items", [Tensor("indices", asked.reshape(3, 20))], binary=binary, parameters={
                    "reduction": "none", "output_row_format": row_format, "binary_data_output": binary} | options)
                    for client in (mine, compared))
                same(got, want, f"{row_format} by {way}")
                zeros = want.embeddings().reshape(60, -1)[[5, 9] if options else [9]]
                expect(not zeros.any(), zeros)
        got, want = (client.infer("all", [Tensor("values", np.tile(asked, 3)), Tensor("lengths", np.full(9, 20))],
                                  binary=True, parameters={"binary_data_output": True}) for client in (mine, compared))
        for name in ("rows", "again"):
            mine_rows, others = (answer.outputs()[name].array for answer in (got, want))
            expect(np.array_equal(mine_rows, others), f"{name}, {row_format} by {way}")


def test_stored_rows_without_a_shard(directory, tables, rng):
    """Rows of a shard that does not answer are zeros with absent=skip; the others are as they are stored."""
    stored = random_rows(rng, "int8", COLUMNS, ROWS)[0]
    np.save(directory / "items.npy", stored)
    model = {"path": str(directory / "items.npy"), "row_format": "int8", "row_elements": COLUMNS}
    ids = np.arange(0, ROWS, 7)
    with parts_of(directory, model, "rows") as servers, \
            front_of(directory, [server.url for server in servers], absent="skip", ready="any") as front, \
            Client(front) as client:
        def rows():
            return client.infer("items", [Tensor("indices", ids)], binary=True, parameters={
                "reduction": "none", "output_row_format": "int8", "binary_data_output": True}).embeddings()
        expect(np.array_equal(rows(), stored[ids]), "all shards")
        servers[1].stop()
        want = stored[ids]
        want[(ids >= ROWS // OF) & (ids < 2 * ROWS // OF)] = 0
        expect(np.array_equal(rows(), want), "two of three shards")


def test_what_is_no_table(directory, tables, rng):
    np.save(directory / "wide.npy", rng.standard_normal((ROWS, COLUMNS + 1)).astype(np.float32))
    np.save(directory / "half.npy", rng.standard_normal((ROWS, COLUMNS)).astype(np.float16))
    with parts_of(directory, tables["rows"], "rows") as servers, Between(servers[0]) as again:
        urls = [server.url for server in servers]
        refused(directory, [urls[0], again.url, urls[1]], ["both have part 0 of 3"])
        refused(directory, urls[:2], ["has 3 parts", "missing"])
        for file, rules, words in (("wide", {}, "elements of a row 10 and 11"), ("half", {}, "datatype FP32 and FP16"),
                                   ("items", {"reduction": "max"}, "other rules")):
            path = tables["rows"]["path"] if file == "items" else str(directory / f"{file}.npy")
            config = write_json(directory / "other.json", {"models": [
                {"name": "items", "path": path, "part": {"by": "rows", "index": 2, "of": 3}} | rules]})
            with Server("--config", config) as other:
                refused(directory, urls[:2] + [other.url], [words, other.url])
        refused(directory, urls, ["answers 404"], shard_model="others")
        refused(directory, [f"http://127.0.0.1:{free_port()}"], ["refused"])
        refused(directory, ["http://no-such-name.invalid:8000"], ["no-such-name.invalid"])


@pytest.mark.parametrize("way", ["rows", "columns", "keys"])
def test_parts_of_two_dumps(directory, tables, way):
    """As many rows of the same version are no parts of one table, wherever they differ; copies of the files are."""
    model = {key: value for key, value in tables[way].items() if key in ("path", "keys")}
    rng = np.random.default_rng(seed())

    def copied(name, changed=None):
        """The model's files as another machine has them; with `changed` one row, or key, is another."""
        copy = {}
        for key, path in model.items():
            array = np.load(path)
            if key == changed:
                array[rng.integers(0, ROWS)] += 1
            copy[key] = str(directory / f"{name}-{key}.npy")
            np.save(copy[key], array)
            os.utime(copy[key], (1e9, 1e9))
        return copy

    def server_of(stack, index, files):
        config = write_json(directory / f"{index}.json", {"models": [
            {"name": "items", "part": {"by": way, "index": index, "of": 2}} | files]})
        return stack.enter_context(Server("--config", config))

    with contextlib.ExitStack() as stack:
        first = server_of(stack, 0, model)
        with Client(first) as client:
            part = client.get("/v2/models/items").json()["parameters"]["part"]
            expect(re.fullmatch("[0-9a-f]{16}", part["digest"]), part)
            asked = {key: part[key] for key in ("by", "index", "of", "digest")}
            ids = np.load(model["keys"])[:1] if way == "keys" else [1]
            ask(client, ids, [0], partial=way != "columns", part=asked).expect(200)
            answer = ask(client, ids, [0], part=asked | {"digest": "0123456789abcdef"}).expect(409)
            expect_words(answer.error(), [part["digest"], "0123456789abcdef"])
            for wrong in ("", "123", part["digest"].upper() + "0", "x" * 16, 5):
                expect_words(ask(client, ids, [0], part=asked | {"digest": wrong}).expect(400).error(), ["part", "digest"])
        same = server_of(stack, 1, copied("same"))
        with front_of(directory, [first.url, same.url]) as front, Client(front) as client:
            expect_words(ask(client, ids, [0], part=asked).expect(400).error(), ["part", "other servers have this one"])
        for key in model:
            other = server_of(stack, 1, copied(f"other-{key}", key))
            refused(directory, [first.url, other.url], ["parts of one table", "digest", first.url, other.url])


def test_check_asks_no_shard(directory, tables):
    config = write_json(directory / "front.json", {"models": [
        {"name": "items", "shards": ["http://127.0.0.1:1"]}, {"name": "own"} | tables["rows"],
        {"name": "pair", "features": [{"name": "a", "model": "items"}, {"name": "b", "model": "own"}]}]})
    ended = run("serve", "--config", config, "--check")
    expect_equal((ended.returncode, ended.stdout.splitlines()),
                 (0, ["own version 1: 300 rows of 10 elements, FP32", "items: the table of 1 shard",
                      "pair: 2 features, of shards, too",
                      "The configuration is valid: 3 models, 12000 bytes of tables; shards were not asked."]))
    for key in ("shard_token_file", "projection"):
        config = write_json(directory / "front.json", {"models": [
            {"name": "items", "shards": ["http://127.0.0.1:1"], key: "nothing"}]})
        ended = run("serve", "--config", config, "--check")
        expect_equal(ended.returncode, 1)
        expect_words(ended.stderr, ["model 'items'", "nothing", "cannot be opened"])


def test_itself(directory):
    port = free_port()
    config = write_json(directory / "front.json",
                        {"models": [{"name": "items", "shards": [f"http://127.0.0.1:{port}"]}]})
    with Server("--config", config, "--port", port) as front, Client(front) as client:
        wait_until(lambda: "itself" in (client.get("/v2/health/ready").error() or ""), "it does not find itself", 20)


def test_no_bagserve(directory, tables):
    with parts_of(directory, tables["rows"], "rows", 1) as [server], Between(server) as other:
        with Server("--demo") as whole:
            refused(directory, [whole.url, server.url], ["answers 404"], shard_model="nothing")
        listener = other.listener
        listener.close()
        refused(directory, [other.url], ["refused"])
