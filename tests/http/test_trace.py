"""Traces: spans as a recording collector gets them, whose callers' headers decide, and collectors that fail."""

import contextlib
import re
import socket
import threading
import time

import pytest

from example import INFER, INPUTS
from harness import Server, expect, expect_equal, run, wait_until
from traces import Collector, attributes
from v2 import Client

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def infer(client, parent=PARENT, flags="01"):
    return client.infer("example", INPUTS, headers={"traceparent": f"00-{TRACE}-{parent}-{flags}"})


def test_spans():
    """One for each request whose caller wants it: ids, times, attributes and stages; none for others."""
    with Collector() as collector:
        with Server("--demo", "--otlp-endpoint", collector.url, "--trace-sample", "0") as server:
            client = Client(server)
            before_ns = time.time_ns()
            expect_equal(infer(client).status, 200)
            after_ns = time.time_ns()
            expect_equal(infer(client, flags="00").status, 200)
            expect_equal(client.infer("example", INPUTS).status, 200)
            expect_equal(client.infer("example", INPUTS, headers={"traceparent": "00-x"}).status, 200)
            expect_equal(client.request("GET", "/nothing?secret=1", headers={
                "traceparent": f"00-{TRACE}-{'1' * 16}-01"}).status, 404)
            wait_until(lambda: len(collector.spans) >= 2 or not client.request("GET", "/v2"), "two spans")
    expect_equal(len(collector.spans), 2)
    span = collector.span(PARENT)
    expect_equal((span["traceId"], span["name"], span["status"]), (TRACE, f"POST /v2/models/{{model}}/infer", {}))
    expect(before_ns <= int(span["startTimeUnixNano"]) and int(span["endTimeUnixNano"]) <= after_ns, f"{span}")
    found = attributes(span)
    expect(re.fullmatch(r"127\.0\.0\.1:\d+", found.pop("client.address")), f"{found}")
    expect(found.pop("http.request.body.size") > 0 and found.pop("http.response.body.size") > 0, f"{found}")
    expect_equal({key: found.pop(key) for key in list(found) if key not in ("bagserve.bags", "bagserve.ids")},
                 {"http.request.method": "POST", "url.path": INFER.replace("items", "example"),
                  "url.scheme": "http", "http.route": "/v2/models/{model}/infer",
                  "http.response.status_code": 200, "bagserve.model": "example"})
    expect(found["bagserve.bags"] > 0 and found["bagserve.ids"] > 0, f"{found}")
    expect_equal([event["name"] for event in span["events"]], ["read", "wait", "pool", "write"])
    times = [int(span["startTimeUnixNano"]), *(int(event["timeUnixNano"]) for event in span["events"]),
             int(span["endTimeUnixNano"])]
    expect(times == sorted(times) and times[0] == times[1], f"{times}")
    took_us = [attributes(event)["bagserve.duration_us"] for event in span["events"]]
    expect_equal(took_us[:3], [(after - before) // 1000 for before, after in zip(times[1:], times[2:5])], "the stages")
    expect(took_us[3] <= (times[5] - times[4]) // 1000, f"{took_us}, {times}")
    other = collector.span("1" * 16)
    expect("events" not in other and attributes(other)["url.path"] == "/nothing", f"{other}")


@pytest.mark.parametrize("sample", ["0", "1"])
def test_sample(sample):
    """By chance where no caller says: none of them, or all, each with ids of its own, on metrics off, too."""
    with Collector() as collector:
        with Server("--demo", "--otlp-endpoint", collector.url, "--trace-sample", sample, "--metrics", "off") as server:
            client = Client(server)
            for _ in range(50):
                expect_equal(client.infer("example", INPUTS).status, 200)
        # the server's end sends what waits
    expect_equal(len(collector.spans), 50 * int(sample))
    expect_equal(len({span["spanId"] for span in collector.spans}), 50 * int(sample))
    expect_equal(len({span["traceId"] for span in collector.spans}), 50 * int(sample))
    expect(all("parentSpanId" not in span and len(span["events"]) == 4 for span in collector.spans), "a span is wrong")


def silent(stack):
    """A collector that takes connections and never answers."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return f"http://127.0.0.1:{listener.getsockname()[1]}/x"


def refusing(stack):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/x"


def failing(stack):
    return stack.enter_context(Collector(503)).url


@pytest.mark.parametrize("collector", [silent, refusing, failing])
def test_collectors_that_fail(collector):
    """Requests are answered, and their spans counted."""
    with contextlib.ExitStack() as stack:
        with Server("--demo", "--otlp-endpoint", collector(stack), "--trace-sample", "0") as server:
            client = Client(server)
            for _ in range(5):
                expect_equal(infer(client).status, 200)
            wait_until(lambda: client.counted("bagserve_trace_spans_dropped_total") == 5, "five spans were not counted")
            server.wait_event("spans lost")  # which is logged behind the counting
            lost = [event for event in server.events() if event["event"] == "spans lost"]
            expect_equal(len(lost), 1, "it is logged once")
            expect(lost[0]["reason"] and lost[0]["otlp_endpoint"].startswith("http://"), f"{lost}")


def test_endpoint_with_its_path():
    """A URL that has the path of OTLP already is posted to as it is."""
    for path in ("v1/traces", "v1/traces/"):
        with Collector() as collector:
            with Server("--demo", "--otlp-endpoint", collector.url + path, "--trace-sample", "0") as server:
                infer(Client(server))
            expect_equal([span["parentSpanId"] for span in collector.spans], [PARENT])


def test_refusal_is_named():
    """The log has the status of the collector and the path."""
    with Collector(404) as collector:
        with Server("--demo", "--otlp-endpoint", collector.url, "--trace-sample", "0") as server:
            infer(Client(server))
            lost = server.wait_event("spans lost")
    expect_equal(lost["reason"], "the collector answered 404 to POST /x/v1/traces")


@pytest.mark.parametrize("variables, wanted", [
    ({"OTEL_SERVICE_NAME": "ranker"}, {"service.name": "ranker"}),
    ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=a, service.instance.id = pod-1,team=ads%2Cfeed,service.version=9,empty="},
     {"service.name": "a", "service.instance.id": "pod-1", "team": "ads,feed"}),
    ({"OTEL_SERVICE_NAME": "ranker", "OTEL_RESOURCE_ATTRIBUTES": "service.name=a,service.instance.id=%C3%A9%FF"},
     {"service.name": "ranker", "service.instance.id": "é?"}),
    ({"OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=a,team"}, None), ({"OTEL_RESOURCE_ATTRIBUTES": "a=%1"}, None),
    ({"OTEL_RESOURCE_ATTRIBUTES": "=a"}, None)])
def test_resource(variables, wanted):
    """OpenTelemetry's variables name the service; malformed pairs are ignored, all of them, and a warning says so."""
    with Collector() as collector:
        with Server("--demo", "--otlp-endpoint", collector.url, "--trace-sample", "0", variables=variables) as server:
            infer(Client(server))
            ignored = [event for event in server.events() if event["event"] == "OTEL_RESOURCE_ATTRIBUTES ignored"]
    resource, = collector.resources
    expect(re.match(r"\d+\.\d+\.\d+", resource.pop("service.version")), f"{resource}")
    expect_equal(resource, wanted or {"service.name": "bagserve"})
    expect_equal(len(ignored), wanted is None)


def test_health_checks_have_no_spans():
    with Collector() as collector:
        with Server("--demo", "--otlp-endpoint", collector.url, "--trace-sample", "1") as server:
            client = Client(server)
            for path in ("/v2/health/live", "/v2/health/ready"):
                client.request("GET", path, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}).expect(200)
            infer(client)
        expect_equal([span["parentSpanId"] for span in collector.spans], [PARENT])


def test_collector_that_answers_too_slowly():
    """The server does not wait with its end for all that a collector may still say, a byte at a time."""
    begun, finished = threading.Event(), threading.Event()

    def answer(listener):
        with listener.accept()[0] as connection, contextlib.suppress(OSError):
            begun.set()
            for byte in b"HTTP/1.1":
                time.sleep(0.8)
                connection.sendall(bytes([byte]))
            finished.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=[listener])
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Server("--demo", "--otlp-endpoint", url) as server:
            expect_equal(infer(Client(server)).status, 200)
            wait_until(begun.is_set, "no span came")
        expect(not finished.is_set(), "the server has waited for all of the answer")
        thread.join()


def test_more_than_are_taken():
    """Callers who trace everything: at most 1,000 a second, the rest is counted."""
    with Collector() as collector:
        with Server("--demo", "--otlp-endpoint", collector.url, "--trace-sample", "0") as server:
            client = Client(server)
            started = time.monotonic()
            for _ in range(3000):
                expect_equal(infer(client).status, 200)
            seconds = time.monotonic() - started
            lost = client.counted("bagserve_trace_spans_dropped_total")
    expect_equal(len(collector.spans) + lost, 3000)
    expect(len(collector.spans) <= 750 * (seconds + 2), f"{len(collector.spans)} in {seconds:.1f} s")


@pytest.mark.parametrize("arguments, words", [
    (["--otlp-endpoint", "https://c:4318"], "run a collector on this machine"),
    (["--otlp-endpoint", "http://"], "otlp_endpoint: URL"),
    (["--otlp-endpoint", "collector:4318"], "otlp_endpoint 'collector:4318': must be a URL that begins with http://"), (["--trace-sample", "1.5"], "a fraction from 0 to 1"),
    (["--trace-sample", "x"], "a fraction from 0 to 1")])
def test_wrong_options(arguments, words):
    ended = run("serve", "--demo", "--port", "0", *arguments)
    expect(ended.returncode == 2 and words in ended.stderr, f"{ended}")
