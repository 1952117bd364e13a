"""A collector that records the spans that it is sent, and checks their form."""

import http.server
import json
import re
import threading

from harness import expect, expect_equal

# The members of a span and their forms, from the published schema (opentelemetry/proto/trace/v1, in protobuf's JSON).
DIGITS = r"\d+"
SERVER, CLIENT = 2, 3
FORMS = {"traceId": "[0-9a-f]{32}", "spanId": "[0-9a-f]{16}", "parentSpanId": "[0-9a-f]{16}",
         "startTimeUnixNano": DIGITS, "endTimeUnixNano": DIGITS, "timeUnixNano": DIGITS, "name": ".+"}
SPAN = {"traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano",
        "attributes", "events", "status"}


def check_keys(found, allowed, needed=()):
    expect(set(needed) <= set(found) <= set(allowed), f"{sorted(found)}")
    for key, form in FORMS.items():
        expect(key not in found or re.fullmatch(form, found[key]), f"{key}: {found.get(key)!r}")


def attributes(of):
    """By their keys, after their form was checked."""
    found = {}
    for attribute in of.get("attributes", []):
        check_keys(attribute, {"key", "value"}, {"key", "value"})
        (kind, value), = attribute["value"].items()
        expect(kind in ("stringValue", "intValue", "boolValue"), f"{attribute}")
        expect(isinstance(value, bool if kind == "boolValue" else str), f"{attribute}")
        expect(kind != "intValue" or re.fullmatch(DIGITS, value), f"{attribute}")
        found[attribute["key"]] = int(value) if kind == "intValue" else value
    return found


def spans_of(document):
    check_keys(document, {"resourceSpans"}, {"resourceSpans"})
    for resource in document["resourceSpans"]:
        check_keys(resource, {"resource", "scopeSpans"}, {"resource", "scopeSpans"})
        told = attributes(resource["resource"])
        expect({"service.name", "service.version"} <= set(told), f"{told}")
        for scope in resource["scopeSpans"]:
            check_keys(scope, {"scope", "spans"}, {"scope", "spans"})
            for span in scope["spans"]:
                check_keys(span, SPAN, SPAN - {"parentSpanId", "events"})
                expect(span["kind"] in (SERVER, CLIENT), f"{span}")
                expect(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]), f"{span}")
                for event in span.get("events", []):
                    check_keys(event, {"timeUnixNano", "name", "attributes"}, {"timeUnixNano", "name"})
                yield span


class Collector:
    """Keeps the spans that are posted, and answers with `status`."""

    def __init__(self, status=200):
        collector, self.spans, self.posts, self.resources = self, [], 0, []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                expect_equal((self.path, self.headers["Content-Type"]), ("/x/v1/traces", "application/json"))
                collector.spans += spans_of(body)
                collector.posts += 1
                collector.resources += [attributes(resource["resource"]) for resource in body["resourceSpans"]]
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.listener.server_port}/x/"

    def __enter__(self):
        self.thread = threading.Thread(target=self.listener.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown()
        self.thread.join()
        self.listener.server_close()

    def span(self, span_id):
        found, = (span for span in self.spans if span.get("parentSpanId") == span_id)
        return found
