"""Traces of requests that a front answers: a span for each request to a shard, below which the shard's own hangs."""

import contextlib
import re
import secrets
import threading

import numpy as np
import pytest

from harness import Server, expect, expect_equal, expect_words, free_port, wait_until, write_json
from shards import OF, Between, ask, front_of, only_first, parts_of, ready, reply
from traces import CLIENT, SERVER, Collector, attributes
from v2 import Client, Tensor

ROWS = 300
CALLER = "00f067aa0ba902b7"
ROUTE = "/v2/models/{model}/versions/{version}/infer"


@pytest.fixture(scope="module", name="model")
def write_table(shared_directory):
    np.save(shared_directory / "items.npy", np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))
    return {"path": str(shared_directory / "items.npy")}


@pytest.fixture(name="collector")
def collect():
    with Collector() as collector:
        yield collector


def options(collector, sample="0", *more):
    return ("--otlp-endpoint", collector.url, "--trace-sample", sample, *more)


def traced(flags="01"):
    """A trace of its own, and the header of a client that began it."""
    trace = secrets.token_hex(16)
    return trace, {"traceparent": f"00-{trace}-{CALLER}-{flags}"}


class Trace:
    """The spans of one request: `top` is the front's own, `calls` are by shard and time, `below` the shards'."""

    def __init__(self, collector, trace, calls, below):
        def spans():
            return [span for span in list(collector.spans) if span["traceId"] == trace]
        wait_until(lambda: len(spans()) >= 1 + calls + below, f"{1 + calls + below} spans did not come")
        self.top, = (span for span in spans() if span.get("parentSpanId") == CALLER)
        self.calls = sorted((span for span in spans() if span["kind"] == CLIENT), key=lambda span: (
            attributes(span)["bagserve.shard"], attributes(span).get("http.request.resend_count", 0)))
        self.below = [span for span in spans() if span["kind"] == SERVER and span is not self.top]
        expect_equal((len(self.calls), len(self.below)), (calls, below), "calls, and spans below them")
        expect_equal({call["parentSpanId"] for call in self.calls}, {self.top["spanId"]})
        expect({span["parentSpanId"] for span in self.below} <= {call["spanId"] for call in self.calls}, f"{spans()}")
        expect_equal(len({span["spanId"] for span in spans()}), 1 + calls + below)
        for call in self.calls:
            expect_equal(call["name"], f"POST {ROUTE}")
            expect(int(call["endTimeUnixNano"]) <= int(self.top["endTimeUnixNano"]), "a call ends behind its request")

    def outcomes(self):
        """Of each call: its shard, what became of it, its status, its error, whether it has failed."""
        return [(found["bagserve.shard"], found["bagserve.outcome"], found.get("http.response.status_code"),
                 found.get("error.type"), call["status"] == {"code": 2})
                for call, found in ((call, attributes(call)) for call in self.calls)]


def ok(shard):
    return shard, "ok", 200, None, False


@pytest.mark.parametrize("way", ["rows", "columns"])
def test_one_trace(directory, model, collector, way):
    """The client's span > the front's > one of each call > the shard's own."""
    with parts_of(directory, model, way, options=options(collector)) as servers, \
            front_of(directory, [server.url for server in servers], options=options(collector)) as front, \
            Client(front) as client:
        trace, header = traced()
        ask(client, [1, 120, 299, 150], [0, 1], headers=header).expect()
        found = Trace(collector, trace, OF, OF)
    expect_equal(found.outcomes(), [ok(shard) for shard in range(OF)])
    expect_equal(found.top["status"], {})
    for shard, call in enumerate(found.calls):
        below, = (span for span in found.below if span["parentSpanId"] == call["spanId"])
        expect(int(below["endTimeUnixNano"]) <= int(call["endTimeUnixNano"]), "a shard's span ends behind its call")
        path = attributes(below)["url.path"]
        expect(re.fullmatch(r"/v2/models/items/versions/\d+/infer", path), path)
        ids, bags = ({0: 1, 1: 2, 2: 1}[shard], 1) if way == "rows" else (4, 2)
        expect_equal(attributes(call), {
            "http.request.method": "POST", "url.full": servers[shard].url + path, "url.template": ROUTE,
            "server.address": "127.0.0.1", "server.port": servers[shard].port, "network.protocol.version": "1.1",
            "http.response.status_code": 200, "bagserve.shard": shard, "bagserve.outcome": "ok",
            "bagserve.model": "items", "bagserve.bags": bags, "bagserve.ids": ids})


def test_collection(directory, model, collector):
    """Features of shards of their own: the calls of all hang below one span; two of one table are asked in one call."""
    other = {"name": "other", "path": model["path"]}
    config = write_json(directory / "other.json", {"models": [other]})
    pair = {"name": "pair", "features": [{"name": "a", "model": "items"}, {"name": "b", "model": "front_of_other"},
                                         {"name": "c", "model": "items"}]}
    with parts_of(directory, model, "rows", options=options(collector)) as servers, \
            Server("--config", config, *options(collector)) as apart, \
            front_of(directory, [server.url for server in servers], options=options(collector), more=[
                {"name": "front_of_other", "shards": [apart.url], "shard_model": "other"}, pair]) as front, \
            Client(front) as client:
        wait_until(lambda: client.get("/v2/models/pair/ready").status == 200, "no collection")
        trace, header = traced()
        inputs = [Tensor("values", np.array([1, 120, 299, 7, 8, 150])), Tensor("lengths", np.array([3, 2, 1]))]
        client.infer("pair", inputs, header, binary=True).expect()
        found = Trace(collector, trace, OF + 1, OF + 1)
    expect_equal(sorted(found.outcomes()), [ok(0), ok(0), ok(1), ok(2)])
    facts = [[attributes(call)[key] for key in ("bagserve.model", "server.port", "bagserve.bags", "bagserve.ids")]
             for call in found.calls]
    expect_equal(sorted(facts), sorted([["items", server.port, count, count]
                                        for server, count in zip(servers, (1, 2, 1))] + [["other", apart.port, 1, 2]]))
    expect_equal(attributes(found.top)["bagserve.model"], "pair")


def test_unix_socket(directory, model, collector):
    path = directory / "shard.sock"
    config = write_json(directory / "shard.json", {"models": [{"name": "items"} | model]})
    with Server("--config", config, "--unix", path), \
            front_of(directory, [f"unix:{path}"], options=options(collector)) as front, Client(front) as client:
        trace, header = traced()
        ask(client, [1], [0], headers=header).expect()
        found = attributes(Trace(collector, trace, 1, 0).calls[0])
    expect_equal(found["server.address"], str(path))
    expect("server.port" not in found, f"{found}")
    expect(found["url.full"].startswith("http://localhost/v2/models/items/versions/"), f"{found}")


# ---- what is not sampled ---------------------------------------------------------------------------

@contextlib.contextmanager
def between_of(directory, model, collector, sample, shard_sample, **keys):
    """A front of one shard, with what it is sent."""
    with parts_of(directory, model, "rows", 1, options(collector, shard_sample)) as [server], \
            Between(server) as between, \
            front_of(directory, [between.url], options=options(collector, sample, "--shard-timeout-ms", "20000"),
                     **keys) as front, \
            Client(front) as client:
        between.spoil = lambda connection, answer: connection.sendall(answer) is None
        yield between, client


def sent(between):
    """The last traceparent that the shard was sent: trace, parent and flags."""
    return re.search(rb"\ntraceparent: 00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(\r|$)",
                     between.heads[-1]).groups()[:3]


def test_what_is_not_sampled(directory, model, collector):
    """The front decides for its shards: nobody begins a trace of its own below a request that has none."""
    with between_of(directory, model, collector, "0", "1") as (between, client):
        trace, header = traced("00")
        ask(client, [1], [0], headers=header).expect()
        expect_equal(sent(between), (trace.encode(), CALLER.encode(), b"00"))
        ask(client, [1], [0]).expect()
        expect_equal(sent(between)[2], b"00")
        ask(client, [1], [0], headers={"traceparent": "00-x"}).expect()
        expect_equal(sent(between)[2], b"00")
        expect_equal(between.heads[-1].count(b"traceparent"), 1)
    expect_equal([attributes(span)["url.path"] for span in collector.spans
                  if attributes(span)["url.path"].endswith("/infer")], [])


def test_trace_that_the_front_begins(directory, model, collector):
    with between_of(directory, model, collector, "1", "0") as (between, client):
        ask(client, [1], [0]).expect()
        trace, parent, flags = (word.decode() for word in sent(between))

        def spans():
            return {span["kind"]: span for span in list(collector.spans) if span["traceId"] == trace and (
                span["kind"] == CLIENT or attributes(span)["url.path"] == "/v2/models/items/infer")}
        wait_until(lambda: len(spans()) == 2, "two spans")
        expect_equal((spans()[CLIENT]["spanId"], flags), (parent, "01"))
        expect("parentSpanId" not in spans()[SERVER], "the first span has a parent")
        expect_equal(spans()[CLIENT]["parentSpanId"], spans()[SERVER]["spanId"])


# ---- what goes wrong -------------------------------------------------------------------------------

def test_hedge(directory, model, collector):
    """Both attempts have a span; the one that was late is no error."""
    with between_of(directory, model, collector, "0", "0", hedge="p95") as (between, client):
        def counted(outcome):
            return client.counted("bagserve_shard_requests_total", outcome=outcome)
        for _ in range(100):
            ask(client, [1], [0]).expect()
        # No more than a tenth is asked a second time.
        wait_until(lambda: ask(client, [1], [0]).expect() and counted("hedged") * 10 <= counted("ok"), "too many hedges")
        held = threading.Event()
        between.spoil = only_first(lambda _: held.wait(30) and False, b'"shape":[2,4]')
        trace, header = traced()
        ask(client, [1, 2], [0, 1], headers=header).expect()
        held.set()
        found = Trace(collector, trace, 2, 2)
    expect_equal(found.outcomes(), [(0, "unneeded", None, None, False), ok(0)])
    late, hedge = (attributes(call) for call in found.calls)
    expect("bagserve.hedge" not in late and "http.request.resend_count" not in late, f"{late}")
    expect_equal((hedge["bagserve.hedge"], hedge["http.request.resend_count"]), (True, 1))


def test_connection_that_has_ended(directory, model, collector):
    """A kept connection may end as a request is on its way: it is sent once more."""
    with between_of(directory, model, collector, "0", "0") as (between, client):
        ask(client, [1], [0]).expect()
        between.spoil = only_first(lambda _: False)
        trace, header = traced()
        ask(client, [1], [0], headers=header).expect()
        found = Trace(collector, trace, 2, 2)
        expect_equal(sent(between), (trace.encode(), found.calls[1]["spanId"].encode(), b"01"))
    expect_equal(found.outcomes(), [(0, "closed", None, "closed", True), ok(0)])
    expect_equal(attributes(found.calls[1])["http.request.resend_count"], 1)
    expect("bagserve.hedge" not in attributes(found.calls[1]), "it is no hedge")


def test_connection_that_is_refused(directory, model, collector):
    """Tried once more, each with a span; known to be away the shard has one, and is not asked."""
    port = free_port()
    config = write_json(directory / "shard.json", {"models": [{"name": "items"} | model]})
    with front_of(directory, [f"http://127.0.0.1:{port}"], options=options(collector), wait=False) as front, \
            Client(front) as client:
        for _ in range(20):  # until it is asked before the front finds out by itself
            with Server("--config", config, "--port", port) as shard:
                ready(front)
                shard.kill()
                trace, header = traced()
                answer = ask(client, [1], [0], headers=header)
            expect_equal(answer.status, 503)
            if "Connection refused" in answer.error():
                break
        found = Trace(collector, trace, 2, 0)
        expect_equal(found.outcomes(), [(0, "refused", None, "refused", True)] * 2)
        expect_equal([attributes(call).get("http.request.resend_count") for call in found.calls], [None, 1])
        trace, header = traced()
        expect_words(ask(client, [1], [0], headers=header).error(), ["does not answer"])
        found = Trace(collector, trace, 1, 0)
        expect_equal(found.outcomes(), [(0, "refused", None, "refused", True)])
        expect_equal((found.top["status"], attributes(found.top)["error.type"]), ({"code": 2}, "503"))


def test_absent_shard(directory, model, collector):
    """The reply is a success, and its trace tells which shard it lacks."""
    with parts_of(directory, model, "rows", options=options(collector)) as servers, \
            front_of(directory, [server.url for server in servers], options=options(collector), absent="skip",
                     ready="any") as front, Client(front) as client:
        servers[1].kill()
        ask(client, [120], [0]).expect()  # from here on it is known to be away
        trace, header = traced()
        ask(client, [1, 120, 299], [0], headers=header).expect()
        found = Trace(collector, trace, OF, OF - 1)
    expect_equal(found.outcomes(), [ok(0), (1, "refused", None, "refused", True), ok(2)])
    expect_equal(found.top["status"], {})


def test_keys_that_a_shard_misses(directory, model, collector):
    """The shard's 400 is the client's: an error of the call, none of the front."""
    np.save(directory / "keys.npy", np.arange(1000, 1000 + ROWS))
    keyed = model | {"keys": str(directory / "keys.npy"), "missing": "error"}
    with parts_of(directory, keyed, "keys", 1, options=options(collector)) as [server], \
            front_of(directory, [server.url], options=options(collector)) as front, Client(front) as client:
        trace, header = traced()
        expect_equal(ask(client, [1001, 5], [0], headers=header).status, 400)
        found = Trace(collector, trace, 1, 1)
    expect_equal(found.outcomes(), [(0, "ok", 400, "400", True)])
    expect_equal((found.top["status"], found.below[0]["status"]), ({}, {}))


WRONG = [
    (lambda connection, _: connection.sendall(reply(200, b"{}")) is None, ("invalid", 200, "invalid")),
    (lambda connection, _: connection.sendall(b"nonsense\r\n\r\n") is not None, ("invalid", None, "invalid")),
    (lambda connection, _: connection.sendall(reply(503, {"error": "busy"})) is None, ("rejected", 503, "503")),
    (lambda connection, answer: connection.sendall(answer[:-3]) is not None, ("closed", 200, "closed"))]


def test_wrong_answers(directory, model, collector):
    with between_of(directory, model, collector, "0", "0") as (between, client):
        for spoil, outcome in WRONG:
            between.spoil = spoil
            trace, header = traced()
            expect(ask(client, [1], [0], headers=header).status >= 500, "a spoilt answer was taken")
            expect_equal(Trace(collector, trace, 1, 1).outcomes(), [(0, *outcome, True)])


def test_time_that_is_over(directory, model, collector):
    """All that have not answered are late; when another fails before, they are cancelled."""
    with parts_of(directory, model, "rows") as servers, Between(servers[1]) as one, Between(servers[2]) as other, \
            front_of(directory, [servers[0].url, one.url, other.url], options=options(collector)) as front, \
            Client(front) as client:
        ended, asked = threading.Event(), threading.Event()

        def hold(*_):
            asked.set()
            return ended.wait(30) and False

        def busy(connection, _):
            asked.wait(30)
            return connection.sendall(reply(503, {"error": "busy"})) is None
        one.spoil = other.spoil = hold
        trace, header = traced()
        expect_equal(ask(client, [120, 299], [0], headers=header, timeout=500_000).status, 504)
        late = Trace(collector, trace, 2, 0).outcomes()
        asked.clear()
        one.spoil = busy
        trace, header = traced()
        expect_equal(ask(client, [120, 299], [0], headers=header).status, 503)
        cancelled = Trace(collector, trace, 2, 0).outcomes()
        ended.set()
    expect_equal(late, [(1, "timeout", None, "timeout", True), (2, "timeout", None, "timeout", True)])
    expect_equal(cancelled, [(1, "rejected", 503, "503", True), (2, "cancelled", None, "cancelled", True)])
