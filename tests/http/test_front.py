"""A front of three shards answers as one server that has all of the table does: every form, reduction and error. Shards
that are away, late, wrong or hostile are told by their address, and never make it answer wrongly."""

import json
import re
import resource
import threading
import time

import numpy as np
import pytest

from harness import Server, expect, expect_equal, expect_words, free_port, run, wait_until, write_json
from shards import OF, Between, ask, front_of, parts_of, ready, reply
from v2 import Client, Raw, Tensor, head, infer_body

ROWS, COLUMNS = 300, 10


def write_table(directory, rng):
    """Values whose sums are exact, so that bits can be compared whoever adds."""
    np.save(directory / "items.npy", (rng.integers(-512, 512, (ROWS, COLUMNS)) / 64).astype(np.float32))
    np.save(directory / "keys.npy", rng.permutation(np.arange(1000, 1000 + 7 * ROWS, 7)).astype(np.int64))
    return {"rows": {"path": str(directory / "items.npy")}, "columns": {"path": str(directory / "items.npy")},
            "keys": {"path": str(directory / "items.npy"), "keys": str(directory / "keys.npy")}}


@pytest.fixture(scope="module", name="tables")
def make_tables(shared_directory, rng):
    return write_table(shared_directory, rng)


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


def test_reductions(trio, rng, shared_directory):
    way, asked, compared, _ = trio
    ids = np.load(shared_directory / "keys.npy") if way == "keys" else np.arange(ROWS)
    for reduction in ("sum", "mean", "max", "sqrtn"):
        for bags in (0, 1, 2, 17, 200):
            for binary in (True, False):
                values, offsets = random_bags(rng, ids, bags)
                got, want = (ask(one, values, offsets, binary=binary, reduction=reduction)
                             for one in (asked, compared))
                if reduction == "sqrtn" or reduction == "mean":
                    expect_equal(got.status, 200)
                    np.testing.assert_allclose(got.embeddings(), want.embeddings(), rtol=1e-6, atol=1e-6)
                else:
                    same(got, want, (way, reduction, bags, binary))


def test_forms_and_weights(trio, rng, shared_directory):
    way, asked, compared, _ = trio
    ids = np.load(shared_directory / "keys.npy") if way == "keys" else np.arange(ROWS)
    values = ids[rng.integers(0, ROWS, 60)]
    weights = (rng.integers(-8, 8, 60) / 4).astype(np.float32)
    forms = [[Tensor("indices", values), Tensor("offsets", np.arange(0, 60, 6))],
             [Tensor("indices", values.astype(np.int32)), Tensor("offsets", np.arange(0, 60, 6, dtype=np.int32))],
             [Tensor("indices", values.reshape(10, 6))],
             [Tensor("indices", values), Tensor("segment_ids", np.repeat(np.arange(10), 6))],
             [Tensor("indices", values), Tensor("offsets", np.arange(0, 60, 6)),
              Tensor("per_sample_weights", weights)]]
    for form in forms:
        for binary in (True, False):
            got, want = (one.infer("items", form, binary=binary, parameters={"binary_data_output": binary})
                         for one in (asked, compared))
            same(got, want, (way, [tensor.name for tensor in form], binary))


def test_explain(trio, rng, shared_directory):
    """What became of every bag is one server's, to the byte, also of keys that only a shard can miss."""
    way, asked, compared, _ = trio
    ids = np.load(shared_directory / "keys.npy") if way == "keys" else np.arange(ROWS)
    for number in range(40):
        values = ids[rng.integers(0, ROWS, 60)]
        if way == "keys":
            values[rng.random(60) < 0.3] = rng.integers(0, 900)
        inputs = [Tensor("indices", values), Tensor("offsets", np.sort(rng.integers(0, 60, 12)))]
        if number % 2:
            inputs.append(Tensor("per_sample_weights", (rng.integers(-8, 8, 60) / 4).astype(np.float32)))
        parameters = {"explain": True, "binary_data_output": number % 3 > 0, "padding_idx": int(values[7])}
        got, want = (one.infer("items", inputs, parameters=parameters) for one in (asked, compared))
        expect_equal((got.status, got.body), (200, want.body), (way, number))


def test_errors_have_the_clients_positions(trio):
    way, asked, compared, _ = trio
    wrong = [([1, 2, 3], [0, 2, 1]), ([1], [0, 5])]
    if way != "keys":
        wrong += [([1, ROWS, 3], [0]), ([1, 2, -7], [0])]
    for ids, offsets in wrong:
        got, want = ask(asked, ids, offsets), ask(compared, ids, offsets)
        expect_equal((got.status, got.json()), (want.status, want.json()))
        expect_equal(got.status, 400)


def test_metadata(trio):
    way, asked, compared, _ = trio
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


def test_collection(directory, tables, rng):
    """Features of a front's model and of a table of its own."""
    np.save(directory / "own.npy", rng.integers(-99, 99, (50, 4)).astype(np.float32))
    pair = {"name": "pair", "features": [{"name": "a", "model": "items"}, {"name": "b", "model": "own"},
                                         {"name": "c", "model": "items", "reduction": "max"}]}
    own = {"name": "own", "path": str(directory / "own.npy")}
    config = write_json(directory / "one.json", {"models": [{"name": "items"} | tables["rows"], own, pair]})
    with parts_of(directory, tables["rows"], "rows") as servers, Server("--config", config) as one, \
            front_of(directory, [server.url for server in servers], more=[own, pair]) as front, \
            Client(front) as asked, Client(one) as compared:
        wait_until(lambda: asked.get("/v2/models/pair/ready").status == 200, "no collection")
        for _ in range(20):
            lengths = rng.integers(0, 4, 3 * 5)
            highest = np.repeat([ROWS, 50, ROWS], 5)
            values = np.concatenate([rng.integers(0, high, n) for high, n in zip(highest, lengths)])
            inputs = [Tensor("values", values.astype(np.int64)), Tensor("lengths", lengths)]
            same(asked.infer("pair", inputs, binary=True), compared.infer("pair", inputs, binary=True), "pair")


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


# ---- shards that are away, late or wrong -----------------------------------------------------------

@pytest.fixture(name="spoilt")
def serve_spoilt(directory, tables):
    """A front of three shards, of which the second is reached through a proxy."""
    with parts_of(directory, tables["rows"], "rows") as servers, Between(servers[1]) as between, \
            front_of(directory, [servers[0].url, between.url, servers[2].url],
                     options=("--shard-timeout-ms", "1500")) as front, Client(front) as client:
        yield between, client


def test_wrong_answers(spoilt):
    between, client = spoilt
    good = ask(client, [1, 120, 299], [0]).expect().embeddings()

    def sends(text, goes_on=True):
        def spoil(connection, _):
            connection.sendall(text)
            return goes_on
        return spoil

    def cut(connection, answer):
        connection.sendall(answer[:-3])
        return False

    def shorter(connection, answer):
        connection.sendall(answer.replace(b'"shape":[1,10]', b'"shape":[1,9] ').replace(b'"shape":[2,10]', b'"shape":[2,9] '))
        return True

    cases = [(sends(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 10_000_000 + b"\r\n\r\n", False), 502, "8 KiB"),
             (sends(reply(200, b"{}")), 502, "answered"),
             (sends(reply(200, b"not json")), 502, "answered"),
             (sends(reply(200, b"x" * 100_000)), 502, "bytes"),
             (sends(b"nonsense\r\n\r\n", False), 502, "no reply of HTTP"),
             (sends(reply(400, {"error": "no such thing"})), 502, "no such thing"),
             (sends(reply(500, {"error": "broken"})), 502, "broken"),
             (sends(reply(503, {"error": "busy"})), 503, "busy"),
             (sends(reply(409, {"error": "this is part 7 of 9"})), 503, "part 7 of 9"),
             (cut, 502, "middle"),
             (shorter, 502, "answered"),
             (sends(b"", False), 502, "without an answer")]
    for spoil, status, word in cases:
        between.spoil = spoil
        answer = ask(client, [1, 120, 299], [0])
        expect_equal(answer.status, status, word)
        expect_words(answer.error(), [between.url, word])
        between.spoil = None
        wait_until(lambda: ask(client, [1, 120, 299], [0]).status == 200, "it does not answer again", 20)
    expect_equal(ask(client, [1, 120, 299], [0]).expect().embeddings().tobytes(), good.tobytes())
    expect_equal(ask(client, [1, 2], [0]).status, 200)  # of another shard


def test_answers_of_other_requests(spoilt):
    """A connection that has an answer too many gives none of it to the next request."""
    between, client = spoilt
    waiting = []

    def one_behind(connection, answer):
        waiting.append(answer)
        connection.sendall(reply(200, b"{}") if len(waiting) == 1 else waiting[-2])
        return True

    def the_first_again(connection, answer):
        waiting.append(answer)
        connection.sendall(waiting[0])
        return True
    want = {row: ask(client, [row], [0]).expect().embeddings().tobytes() for row in (120, 130)}
    between.spoil = one_behind
    expect_equal(ask(client, [120], [0]).status, 502)
    waiting.clear()
    between.spoil = the_first_again
    expect_equal(ask(client, [120], [0]).expect().embeddings().tobytes(), want[120])
    answer = ask(client, [130], [0])
    expect_equal(answer.status, 502)
    expect_words(answer.error(), [between.url, "answered another request"])
    between.spoil = None
    for row, rows in want.items():
        expect_equal(ask(client, [row], [0]).expect().embeddings().tobytes(), rows)


def test_late_answers(spoilt):
    """At the deadline of the shard, or of the request: and the server goes on meanwhile."""
    between, client = spoilt
    held = threading.Event()
    between.spoil = lambda connection, answer: held.wait(30) and False
    begun = time.monotonic()
    answer = ask(client, [120], [0])
    expect_equal(answer.status, 504)
    expect_words(answer.error(), [between.url, "1500 ms", "shard_timeout_ms"])
    answer = ask(client, [120], [0], timeout=200000)
    expect_equal(answer.status, 504)
    expect_words(answer.error(), [between.url, "200 ms", "request's timeout"])
    expect_equal(ask(client, [1], [0]).status, 200)
    expect(time.monotonic() - begun < 30, "it took too long")
    held.set()


def test_time_that_is_left(spoilt):
    """Shards are told how long they may take: no more than the client has, and less where they are asked once more."""
    between, client = spoilt
    between.spoil = lambda connection, answer: connection.sendall(answer) is None
    ask(client, [120], [0]).expect()
    ask(client, [120], [0], timeout=900_000).expect()
    leaves = [True]
    between.spoil = lambda connection, answer: not (leaves and leaves.pop()) and connection.sendall(answer) is None
    ask(client, [120], [0], timeout=800_000).expect()
    of_shard, of_client, first, second = between.timeouts()
    expect(900_000 < of_shard <= 1_500_000, of_shard)
    expect(800_000 < of_client <= 900_000, of_client)
    expect(800_000 >= first > second > 0, (first, second))


def test_shard_that_gives_up(spoilt):
    """One that says that time is up when it is has not been busy: it is late."""
    between, client = spoilt
    def spoil(connection, _):
        while time.monotonic() < between.asked + between.timeouts()[-1] / 1e6:
            pass
        connection.sendall(reply(503, {"error": "the request waited in the queue past its timeout"}))
        return True
    between.spoil = spoil
    for _ in range(20):
        answer = ask(client, [120], [0], timeout=20_000)
        expect_equal(answer.status, 504)
        expect_words(answer.error(), [between.url, "20 ms", "request's timeout"])


def test_hedge(directory, tables):
    """An answer that is late is asked for a second time, over another connection."""
    with parts_of(directory, tables["rows"], "rows", 1) as [server], Between(server) as between, \
            front_of(directory, [between.url], hedge="p95", options=("--shard-timeout-ms", "20000")) as front, \
            Client(front) as client:
        for _ in range(100):
            ask(client, [1], [0]).expect()
        held, first = threading.Event(), threading.Lock()

        def spoil(connection, answer):
            if first.acquire(blocking=False):
                held.wait(30)
                return False
            connection.sendall(answer)
            return True
        between.spoil = spoil
        ask(client, [1], [0]).expect()
        held.set()
        first, second = between.timeouts()
        expect(20_000_000 > first > second > 0, (first, second))
        hedged = re.search(r'outcome="hedged"\} (\d+)', client.get("/metrics").expect().body.decode())
        expect(int(hedged[1]) >= 1, hedged[0])


def test_unix_socket(directory, tables):
    path = directory / "shard.sock"
    config = write_json(directory / "shard.json", {"models": [{"name": "items"} | tables["rows"]]})
    with Server("--config", config, "--unix", path), front_of(directory, [f"unix:{path}"]) as front, \
            Client(front) as client:
        for _ in range(3):
            ask(client, [1, 2], [0]).expect()


def test_client_that_goes_away(spoilt):
    """Its calls end with it, long before the shard's time is up."""
    between, client = spoilt
    ended = threading.Event()

    def spoil(connection, _):
        connection.settimeout(30)
        if connection.recv(1) == b"":
            ended.set()
        return False
    between.spoil = spoil
    with Raw(client.server) as leaving:
        body, headers = infer_body([Tensor("indices", np.array([[120]]))], binary=True)
        leaving.send(head("POST", "/v2/models/items/infer", headers, body))
        wait_until(lambda: client.get("/v2/health/live").status == 200 and between.heads, "it was not asked")
    expect(ended.wait(30), "the shard's connection is still open")
    expect('outcome="late"} 1' not in client.get("/metrics").expect().body.decode(), "it was only late")


def test_more_calls_than_descriptors(directory, tables):
    """Calls wait for connections where there are no more descriptors: all are answered."""
    many = {"name": "many", "features": [{"name": f"f{i}", "model": "items"} for i in range(40)]}
    with parts_of(directory, tables["rows"], "rows") as servers, \
            front_of(directory, [server.url for server in servers], more=[many]) as front, Client(front) as client:
        wait_until(lambda: client.get("/v2/models/many/ready").status == 200, "no collection")
        client.close()
        most = front.descriptors() + 30
        resource.prlimit(front.process.pid, resource.RLIMIT_NOFILE, (most, most))
        ids = np.tile([1, 120, 299], 40)
        want = np.load(tables["rows"]["path"])[[1, 120, 299]].sum(0)
        with Client(front) as another:
            for _ in range(5):
                answer = another.infer("many", [Tensor("values", ids), Tensor("lengths", np.full(40, 3))], binary=True,
                                       parameters={"binary_data_output": True}).expect()
                expect_equal([tensor.array.tobytes() for tensor in answer.outputs().values()], [want.tobytes()] * 40)
            expect(front.descriptors() <= most, front.descriptors())


def test_traceparent_and_token_are_passed_on(directory, tables):
    token = directory / "token"
    token.write_text("secret-of-shards\n")
    token.chmod(0o600)
    with parts_of(directory, tables["rows"], "rows", 1) as [server], Between(server) as between, \
            front_of(directory, [between.url], shard_token_file=str(token)) as front, Client(front) as client:
        between.spoil = lambda connection, answer: connection.sendall(answer) is None
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
        ask(client, [1], [0], headers={"traceparent": trace}).expect()
        expect(f"traceparent: {trace}".encode() in between.heads[0], between.heads)
        expect(b"Authorization: Bearer secret-of-shards" in between.heads[0], between.heads)


def test_absent_shards(directory, tables):
    """Rows of a shard that is away count as missing, and the reply names it."""
    with parts_of(directory, tables["rows"], "rows") as servers, \
            front_of(directory, [server.url for server in servers], absent="skip", ready="any") as front, \
            Client(front) as client:
        header = ask(client, [1, 120, 299], [0]).expect().header()[0]
        expect_equal(header["parameters"]["absent_shards"], [])
        two = ask(client, [1, 299], [0]).expect().embeddings()
        servers[1].kill()
        servers[1]._end_checked = True
        for binary in (True, False):
            answer = ask(client, [1, 120, 299], [0], binary=binary).expect()
            expect_equal(answer.header()[0]["parameters"]["absent_shards"], [servers[1].url])
            expect_equal(answer.embeddings().tobytes(), two.tobytes())
            answer = ask(client, [1, 120, 299, 120], [0, 3], binary=binary, explain=True).expect()
            expect_equal(answer.header()[0]["parameters"]["explain"][0]["bags"],
                         [{"rows": 2, "default": False, "other_part": [1]},
                          {"rows": 0, "default": False, "other_part": [3]}])
        expect_equal(client.get("/v2/health/ready").status, 200)


def test_shards_that_change_places(directory, tables, rng):
    """Addresses that lead to other parts than before: no row is wrong, and the request is answered."""
    values = np.load(tables["rows"]["path"])
    ports = [free_port(), free_port()]
    configs = [write_json(directory / f"part-{index}.json", {"models": [
        {"name": "items", "path": tables["rows"]["path"], "part": {"by": "rows", "index": index, "of": 2}}]})
        for index in range(2)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    shards = [Server("--config", config, "--port", port) for config, port in zip(configs, ports)]
    try:
        with front_of(directory, urls, options=("--shard-timeout-ms", "20000")) as front, Client(front) as client:
            for turn in range(2):
                want = (values[1] + values[299]).tobytes()
                expect_equal(ask(client, [1, 299], [0]).expect().embeddings().tobytes(), want)
                for shard in shards:
                    shard.kill()
                order = ports[::-1] if turn == 0 else ports
                shards = [Server("--config", config, "--port", port) for config, port in zip(configs, order)]

                def answered():
                    answer = ask(client, [1, 299], [0])
                    if answer.status == 200:
                        expect_equal(answer.embeddings().tobytes(), want)
                    return answer.status == 200
                wait_until(answered, "it is not answered")
    finally:
        for shard in shards:
            shard.kill()


def test_shard_that_goes_and_comes(directory, tables):
    config = write_json(directory / "shard.json", {"models": [{"name": "items"} | tables["rows"]]})
    port = free_port()
    with front_of(directory, [f"http://127.0.0.1:{port}"], wait=False) as front, Client(front) as client:
        expect_equal(client.get("/v2/health/ready").status, 503)
        for _ in range(2):
            with Server("--config", config, "--port", port) as shard:
                ready(front)
                expect_equal(ask(client, [1], [0]).status, 200)
                shard.kill()
                shard._end_checked = True
            answer = ask(client, [1], [0])
            expect_equal(answer.status, 503)
            expect_words(answer.error(), [f"127.0.0.1:{port}", "away"])
            wait_until(lambda: client.get("/v2/health/ready").status == 503, "it is still ready", 20)


def test_versions(directory, rng):
    """A group that is half reloaded goes on with the old version, and answers never mix two."""
    values = {}
    for version in (1, 2):
        (directory / "models" / "items" / str(version)).mkdir(parents=True)
        values[version] = rng.integers(-99, 99, (ROWS, 4)).astype(np.float32)
    np.save(directory / "models" / "items" / "1" / "t.npy", values[1])
    servers = []
    try:
        for index in range(2):
            folder = directory / f"models-{index}"
            (folder / "items" / "1").mkdir(parents=True)
            np.save(folder / "items" / "1" / "t.npy", values[1])
            write_json(folder / "items" / "config.json", {"part": {"by": "rows", "index": index, "of": 2},
                                                          "version_policy": {"latest": 2}})
            servers.append(Server("--models", folder, "--model-control", "poll", "--poll-seconds", "1"))
        with front_of(directory, [server.url for server in servers]) as front, Client(front) as client:
            for index in range(2):
                expect_equal(ask(client, [1, 299], [0]).expect().header()[0]["model_version"], "1")
                folder = directory / f"models-{index}" / "items"
                (folder / ".2").mkdir()
                np.save(folder / ".2" / "t.npy", values[2])
                (folder / ".2").rename(folder / "2")
                with Client(servers[index]) as shard:
                    wait_until(lambda: shard.get("/v2/models/items/versions/2/ready").status == 200, "no version 2")
            def version():
                answer = ask(client, [1, 299], [0]).expect()
                number = int(answer.header()[0]["model_version"])
                expect_equal(answer.embeddings().tobytes(), (values[number][1] + values[number][299]).tobytes())
                return number
            wait_until(lambda: version() == 2, "version 2 is not served", 30)
    finally:
        for server in servers:
            server.kill()
