"""bagserve-feed: messages of a topic become rows of a table, once each and in order, whatever is restarted."""

import json
import os
import signal
import subprocess
import urllib.request

import numpy as np
import pytest

from feeding import FEED, MOCK_KAFKA, TOPIC, Feed, Kafka, reaches, updates_through
from harness import Server, expect, expect_equal, expect_words, wait_until, write_json
from updates import AUTHORIZED, COLUMNS, ROWS, SPARE, TOKEN, World, keys, rows_of, table
from v2 import Client

pytestmark = pytest.mark.skipif(not os.path.exists(FEED) or not os.path.exists(MOCK_KAFKA),
                                reason="built without librdkafka")


@pytest.fixture(name="world")
def make_world(directory):
    return World(directory)


@pytest.fixture(name="kafka")
def start_kafka():
    with Kafka() as kafka:
        yield kafka


def client_of(server):
    return Client(server, headers=AUTHORIZED)


def feed_of(world, kafka, server, *arguments, **options):
    return Feed(kafka, server, "--token-file", world.tokens, *arguments, **options)


def value(number):
    return np.full((1, COLUMNS), number, np.float32)


def test_rows_arrive_in_order(world, kafka):
    """JSON and binary; of a row that comes several times the last one counts."""
    want = table()
    for number in range(1, 101):
        row = number % 7
        kafka.batch([row], value(number), binary=number % 2 == 0)
        want[row] = number
    kafka.flush()
    with world.server() as server, client_of(server) as client:
        with feed_of(world, kafka, server) as feed:
            reaches(client, 100)
            expect_equal(rows_of(client, "dense", range(ROWS)).tolist(), want.tolist())
            kafka.batch([3], value(1000))
            kafka.flush()
            reaches(client, 101)
            expect_equal(rows_of(client, "dense", [3]).tolist(), value(1000).tolist())
            feed.stop()


def test_one_header_for_many(world, kafka):
    """Messages whose JSON is the same: numbers of the JSON, and those behind it, which are each message's own."""
    want = table()
    for last in (b"[3]", b"[9]", b"[3]"):
        head = (b'{"inputs":[{"name":"indices","datatype":"INT64","shape":[1],"data":' + last + b'},{"name":"rows",'
                b'"datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}]}')
        for number in range(1, 4):
            row = np.full((1, COLUMNS), float(number) + want.max(), np.float32)
            kafka.produce(head + row.tobytes(), len(head))
            want[int(last[1:2])] = row
    for number in range(100):
        kafka.batch([number % ROWS, (number + 1) % ROWS], np.full((2, COLUMNS), number, np.float32))
        want[[number % ROWS, (number + 1) % ROWS]] = number
    kafka.flush()
    with world.server() as server, client_of(server) as client, feed_of(world, kafka, server):
        reaches(client, 109)
        expect_equal(rows_of(client, "dense", range(ROWS)).tolist(), want.tolist())


def test_merged_to_few_batches(world, kafka):
    for number in range(1000):
        kafka.batch([number % ROWS], value(number))
    kafka.flush()
    with world.server() as server, client_of(server) as client, feed_of(world, kafka, server, "--max-rows", 300):
        reaches(client, 1000)
        applied = int(client.metrics()['bagserve_updates_applied_total{model="dense"}'])
        expect(4 <= applied <= 100, f"{applied} batches")


def test_batches_are_bounded_in_bytes(world, kafka):
    """However many rows a batch may have: five messages of 720 KB are one, a sixth is beyond 4 MiB."""
    rows = 30_000
    for number in range(12):
        kafka.batch(np.arange(rows) % ROWS, np.full((rows, COLUMNS), number, np.float32))
    kafka.flush()
    with world.server() as server, client_of(server) as client, \
            feed_of(world, kafka, server, "--max-rows", 10_000_000, "--max-wait-ms", 3000):
        reaches(client, 12)
        expect_equal(int(client.metrics()['bagserve_updates_applied_total{model="dense"}']), 3)


def test_a_message_that_is_cut(world, kafka):
    """Its JSON is that of the message before, but the numbers behind it are not all there."""
    head = (b'{"inputs":[{"name":"indices","datatype":"INT64","shape":[1],"data":[3]},{"name":"rows","datatype":"FP32",'
            b'"shape":[1,4],"parameters":{"binary_data_size":16}}]}')
    for size in (16, 8, 16):
        kafka.produce(head + np.full(4, size, np.float32).tobytes()[:size], len(head))
    kafka.flush()
    with world.server() as server, client_of(server) as client, \
            feed_of(world, kafka, server, "--on-error", "skip") as feed:
        reaches(client, 3)
        feed.wait_for("skipped")
        expect_words(feed.log(), ["skipped", "offset=1"])
        expect_equal(rows_of(client, "dense", [3]).tolist(), value(16).tolist())


def test_rows_of_other_widths_are_not_merged(world, kafka):
    """A row of two elements and one of six have as many bytes as two rows of the table."""
    for row, width in enumerate((COLUMNS, COLUMNS - 2, COLUMNS + 2, COLUMNS)):
        kafka.batch([row], np.full((1, width), 100 + row, np.float32))
    kafka.flush()
    want = table()
    want[[0, 3]] = [[100], [103]]
    with world.server() as server, client_of(server) as client, \
            feed_of(world, kafka, server, "--on-error", "skip") as feed:
        reaches(client, 4)
        feed.wait_for("skipped")
        for offset, width in ((1, COLUMNS - 2), (2, COLUMNS + 2)):
            expect_words(feed.log(), [f"offset={offset}", f"FP32 [1, {width}]"])
        expect_equal(rows_of(client, "dense", range(ROWS)).tolist(), want.tolist())


def test_keys_and_deletes(world, kafka):
    """Kinds that cannot be merged are sent one after the other."""
    new = np.array([5], np.uint64)
    kafka.batch(new, value(1))
    kafka.batch(keys()[:2], delete=True)
    kafka.batch(keys()[1:2], value(2))
    kafka.batch(np.array([5, 6], np.uint64), np.concatenate([value(3), value(4)]))
    kafka.flush()
    with world.server() as server, client_of(server) as client, feed_of(world, kafka, server, model="keyed"):
        reaches(client, 4, "keyed")
        got = rows_of(client, "keyed", np.array([5, 6, *keys()[:3]], np.uint64))
        want = np.concatenate([value(3), value(4), value(0), value(2), table()[2:3]])
        expect_equal(got.tolist(), want.tolist())


def test_goes_on_where_the_server_is(world, kafka):
    """The feed remembers nothing: the server's journal does."""
    for number in range(1, 6):
        kafka.batch([0], value(number))
    kafka.flush()
    with world.server() as server, client_of(server) as client:
        with feed_of(world, kafka, server) as feed:
            reaches(client, 5)
            feed.stop()
        kafka.batch([0], value(6))
        kafka.flush()
    with world.server() as server, client_of(server) as client, feed_of(world, kafka, server) as feed:
        feed.wait_for("offset=5")
        reaches(client, 6)
        expect_equal(client.metrics()['bagserve_updates_ignored_total{model="dense"}'], "0")


def test_server_comes_back_with_less(world, kafka):
    """Without a journal it starts with its file's rows; the feed begins again."""
    arguments = ("--config", world.config, "--updates", "on", "--token-file", world.tokens)
    for number in range(1, 6):
        kafka.batch([number], value(number))
    kafka.flush()
    server = Server(*arguments)
    port = server.port
    with client_of(server) as client:
        feed = feed_of(world, kafka, server)
        reaches(client, 5)
    server.kill()
    with feed:
        kafka.batch([6], value(6))
        kafka.flush()
        feed.wait_for("waiting")
        with Server(*arguments, "--port", port) as again, client_of(again) as client:
            reaches(client, 6)
            expect_equal(rows_of(client, "dense", range(1, 7))[:, 0].tolist(), [1, 2, 3, 4, 5, 6])
            feed.stop()


def test_brokers_go_away_and_leaders_move(world, kafka):
    kafka.batch([1], value(1))
    kafka.flush()
    with world.server() as server, client_of(server) as client, feed_of(world, kafka, server) as feed:
        reaches(client, 1)
        kafka.ask("down 1")
        kafka.ask("down 2")
        kafka.ask("up 1")
        kafka.ask("up 2")
        kafka.ask(f"leader {TOPIC} 0 2")
        kafka.batch([1], value(2))
        kafka.flush()
        reaches(client, 2)
        kafka.ask(f"leader {TOPIC} 0 1")
        kafka.batch([1], value(3))
        kafka.flush()
        reaches(client, 3)
        feed.stop()


def test_waits_for_brokers(world, kafka):
    kafka.batch([1], value(1))
    kafka.flush()
    kafka.ask("down 1")
    kafka.ask("down 2")
    with world.server() as server, client_of(server) as client, feed_of(world, kafka, server) as feed:
        feed.wait_for("waiting")
        kafka.ask("up 1")
        kafka.ask("up 2")
        reaches(client, 1)
        feed.stop()


# ---- what is rejected ---------------------------------------------------------------------------
WRONG = [(b"", "the body is empty"), (b"no JSON", "JSON"), (b'{"inputs": []}', "missing"),
         (b'{"inputs": [], "parameters": {"sequence": 3}}', "has a sequence")]


@pytest.mark.parametrize("body, words", WRONG)
def test_a_message_that_is_no_batch_stops_it(world, kafka, body, words):
    kafka.batch([1], value(1))
    kafka.produce(body)
    kafka.batch([2], value(2))
    kafka.flush()
    with world.server() as server, client_of(server) as client, feed_of(world, kafka, server) as feed:
        said = feed.ends_with(1).splitlines()[-1]
        expect_words(said, [TOPIC, "offset", "1"])
        expect(words in said, said)
        expect_equal(updates_through(client), 1)


def test_what_the_server_rejects(world, kafka):
    """One message of a merged batch: those before it are applied, those behind it are not."""
    kafka.batch([1], value(1))
    kafka.batch([ROWS], value(2))
    kafka.batch([2], value(3))
    kafka.flush()
    kafka.ask("topic dead 1")
    with world.server() as server, client_of(server) as client:
        with feed_of(world, kafka, server) as feed:
            expect_words(feed.ends_with(1).splitlines()[-1], ["offset", "1", str(ROWS)])
            expect_equal(updates_through(client), 1)
        with feed_of(world, kafka, server, "--on-error", "skip", "--dead-letter", "dead") as feed:
            reaches(client, 3)
            feed.wait_for("skipped")
            expect_equal(rows_of(client, "dense", [1, 2])[:, 0].tolist(), [1, 3])
            body, error = kafka.read("dead", 0, 0)
            expect(str(ROWS) in error, error)
            expect(b'"indices"' in body, repr(body))
            feed.stop()


def test_skips_without_a_dead_letter(world, kafka):
    for body, _ in WRONG:
        kafka.produce(body)
    kafka.batch([0], np.zeros((1, COLUMNS + 1)))
    kafka.batch([0], value(9))
    kafka.flush()
    with world.server() as server, client_of(server) as client, \
            feed_of(world, kafka, server, "--on-error", "skip"):
        reaches(client, len(WRONG) + 2)
        expect_equal(rows_of(client, "dense", [0]).tolist(), value(9).tolist())


# ---- what cannot be ------------------------------------------------------------------------------
def test_several_partitions(world):
    with Kafka(partitions=3) as kafka, world.server() as server, client_of(server) as client:
        with feed_of(world, kafka, server) as feed:
            expect_words(feed.ends_with(2), ["3", "partitions", "--partition"])
        with feed_of(world, kafka, server, "--partition", 3) as feed:
            expect_words(feed.ends_with(2), ["3", "partition"])
        kafka.batch([1], value(5), partition=2)
        kafka.flush()
        with feed_of(world, kafka, server, "--partition", 2) as feed:
            reaches(client, 1)
            feed.stop()


def test_a_topic_that_ends_before_the_table(world, kafka):
    """It was made anew; nobody may guess what its numbers mean."""
    config = json.loads(world.config.read_text())
    config["models"][0]["updates_through"] = 7
    world.config.write_text(json.dumps(config))
    kafka.batch([1], value(1))
    kafka.flush()
    with world.server() as server, feed_of(world, kafka, server) as feed:
        expect_words(feed.ends_with(1), ["7", "ends", "1", "made anew"])


def test_messages_that_are_no_longer_kept(world, kafka):
    """The mock's brokers keep 5 MiB."""
    noise = np.random.default_rng(1).random((400, 1000, COLUMNS), np.float32)
    for rows in noise:
        kafka.batch(np.arange(1000) % ROWS, rows)
    kafka.flush()
    with world.server() as server, feed_of(world, kafka, server) as feed:
        said = feed.ends_with(1).splitlines()[-1]
        expect_words(said, ["through", "0", "snapshot", "updates_through"])
        first = int(said.split("keeps offsets from ")[1].split()[0])
    expect(0 < first < 400, said)
    config = json.loads(world.config.read_text())
    config["models"][0]["updates_through"] = first
    world.config.write_text(json.dumps(config))
    with world.server() as server, client_of(server) as client, feed_of(world, kafka, server):
        reaches(client, 400)
        expect_equal(rows_of(client, "dense", [0]).tolist(), noise[-1, -ROWS:][:1].tolist())


def test_updates_switched_off(world, kafka):
    kafka.batch([1], value(1))
    kafka.flush()
    with Server("--config", world.config) as server, Feed(kafka, server) as feed:
        expect_words(feed.ends_with(1), ["--updates", "on"])


def test_tokens(world, kafka):
    kafka.batch([1], value(1))
    kafka.flush()
    with world.server() as server:
        with Feed(kafka, server) as feed:
            expect_words(feed.ends_with(1), ["401"])
        (world.directory / "infer").touch(0o600)
        (world.directory / "infer").write_text("infer 0123456789abcdefgh\n")
        with Feed(kafka, server, "--token-file", world.directory / "infer") as feed:
            said = feed.ends_with(1)
            expect_words(said, ["no", "token", "admin"])
            expect(TOKEN not in said and "0123456789abcdefgh" not in said, said)


@pytest.mark.parametrize("flags, words", [
    (["--topic", "t"], ["--brokers"]),
    (["--brokers", "b", "--topic", "t", "--model", "m", "--server", "ftp://x"], ["--server", "unix:PATH"]),
    (["--brokers", "b", "--topic", "t", "--model", "m", "--server", "http://x", "--dead-letter", "d"],
     ["--on-error", "skip"]),
    (["--max-rows", "0"], ["--max-rows", "10000000"]),
    (["--librdkafka", "x"], ["KEY=VALUE"]),
    (["--what"], ["--help"])])
def test_usage(flags, words):
    ended = subprocess.run([FEED, *flags], capture_output=True, text=True, timeout=30, check=False)
    expect_equal(ended.returncode, 2, ended.stderr)
    expect_words(ended.stderr, words)


# ---- seen from outside ---------------------------------------------------------------------------
def free_port():
    with Kafka(1) as port_holder:  # its port is free again once it has gone
        return int(port_holder.bootstrap.rpartition(":")[2])


def metrics_of(port, model):
    """The numbers of the feed's metrics, each of which has the model's name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        lines = [line.split(f'{{model="{model}"}} ') for line in reply.read().decode().splitlines() if line[0] != "#"]
    return {name.removeprefix("bagserve_feed_"): int(number) for name, number in lines}


def test_a_table_that_takes_no_updates_for_a_while(world, kafka):
    """One line says so, however often the feed tries, and one that it goes on."""
    def load(how):
        models = json.loads(world.config.read_text())["models"]
        changed = {"load": how, "updates_through": 1}
        write_json(world.config, {"models": [m | (changed if m["name"] == "dense" else {}) for m in models]})
        server.send(signal.SIGHUP)

    with world.server("--model-control", "poll") as server, client_of(server) as client:
        kafka.batch([1], value(1))
        kafka.flush()
        with feed_of(world, kafka, server) as feed:
            reaches(client, 1)
            load("map")
            wait_until(lambda: [e for e in server.events() if e["event"] == "change done"], "it is not mapped")
            kafka.batch([2], value(2))
            kafka.flush()
            feed.wait_for("out_of_step")
            conflicts = 'bagserve_http_responses_total{code="409"}'
            known = int(client.metrics()[conflicts])
            wait_until(lambda: int(client.metrics()[conflicts]) >= known + 4, "the feed does not try again")
            load("copy")
            feed.wait_for("going_on")
            reaches(client, 2)
            expect_equal([feed.log().count(word) for word in ("out_of_step", "reading", "going_on")], [1, 1, 1], feed.log())
            feed.stop()


def test_full_table_is_named(world, kafka):
    """A key more than there are spare rows: a line and a metric say so once, and the feed waits."""
    port = free_port()
    new = np.arange(5, 5 + SPARE + 1, dtype=np.uint64)
    kafka.batch(new[:SPARE], np.zeros((SPARE, COLUMNS)))
    kafka.flush()
    with world.server() as server, client_of(server) as client, \
            feed_of(world, kafka, server, "--metrics-port", port, model="keyed") as feed:
        reaches(client, 1, "keyed")
        expect_equal(metrics_of(port, "keyed")["table_full"], 0)
        kafka.batch(new[SPARE:], value(7))
        kafka.flush()
        feed.wait_for("table_full")
        line = next(line for line in feed.lines if "table_full" in line)
        expect_words(line, ["model=keyed", "507", "1 of the keys", "room for 0", "spare_rows"])
        expect_equal(metrics_of(port, "keyed")["table_full"], 1)
        expect_equal(feed.log().count("table_full"), 1)


def test_metrics_and_a_unix_socket(world, kafka):
    path = world.directory / "admin.sock"
    for number in range(3):
        kafka.batch([number], value(number))
    kafka.flush()
    with world.server("--admin-socket", path) as server, client_of(server) as client:
        port = free_port()
        with feed_of(world, kafka, f"unix:{path}", "--metrics-port", port) as feed:
            reaches(client, 3)
            wait_until(lambda: metrics_of(port, "dense")["sequence"] == 3, "the metrics follow")
            got = metrics_of(port, "dense")
            expect_equal({k: got[k] for k in ("messages_total", "rows_total", "rejected_total", "lag_messages",
                                              "lag_ms")},
                         {"messages_total": 3, "rows_total": 3, "rejected_total": 0, "lag_messages": 0, "lag_ms": 0})
            feed.stop()
