"""Stopping: requests in flight, idle and stuck connections, exit codes; and what is logged."""

import http.client
import json
import os
import re
import signal
import subprocess
import time

import numpy as np

from harness import (PROGRAM, TIMEOUT_S, Server, environment, expect, expect_equal, free_port, wait_until)
from held import wait_until_read
from lifecycle import TABLE, check_table, save
from v2 import Client, Raw, Tensor, at_port, head, infer_body, is_ready

ONE_SIGNAL_S = 0.2  # signals to stop within half of this are one


# ---- stopping ---------------------------------------------------------------------------------
def test_signals_end_in_peace(directory):
    path = save(directory / "items.npy")
    for number in (signal.SIGTERM, signal.SIGINT):
        with Server("--table", f"items={path}") as server, Client(server) as client:
            check_table(client)
            server.stop(number)


def test_signal_with_idle_connections(directory):
    """Connections on which nothing is asked do not delay the end."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--drain-timeout-s", str(10 * TIMEOUT_S)) as server:
        raws = [Raw(server) for _ in range(20)]
        for raw in raws[:10]:
            raw.send(head("GET", "/v2"))
            raw.reply().expect(200)
        server.stop()
        for raw in raws:
            expect(raw.at_end(), "a connection outlived the server")
            raw.close()


def ready_while_draining(server):
    """What a new connection hears from readiness: a status, or None where nobody answers."""
    try:
        with Client(server, timeout_s=5) as client:
            reply = client.get("/v2/health/ready")
    except (OSError, http.client.HTTPException):
        return None
    if reply.status == 503:
        value = reply.json()
        expect(value.get("ready") is False and isinstance(value.get("error"), str),
               f"readiness while draining: {reply.body!r}")
    return reply.status


def one_bag(count, dtype):
    """Row 1, `count` times."""
    return [Tensor("indices", np.ones(count, dtype)), Tensor("offsets", np.zeros(1, dtype))]


def test_request_in_flight_is_answered(directory):
    """A signal between two halves of a body: the answer comes in full, then the server ends."""
    path = save(directory / "items.npy")
    count = 1_000_000
    tensors = one_bag(count, np.int64)
    body, headers = infer_body(tensors, binary=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        with Server("--table", f"items={path}", "--workers", "2") as server, Raw(server) as raw, \
                Client(server) as other:
            request = head("POST", "/v2/models/items/infer", headers, body)
            raw.send(request[:len(request) // 2])
            check_table(other)  # the server has read the half: it answers on another connection
            server.send(number)
            wait_until(lambda: ready_while_draining(server) != 200, "readiness is not withdrawn")
            expect(server.process.poll() is None, "the server ended with a request in flight")
            late = other.infer("items", tensors, binary=True)
            expect_equal((late.status, late.headers.get("retry-after")), (503, "1"), "a late one")
            late.error()
            raw.send(request[len(request) // 2:])
            reply = raw.reply()
            expect(reply is not None, "the connection was closed without an answer")
            got = reply.embeddings()
            expect(np.array_equal(got, [count * TABLE[1]]), f"{got}")
            expect_equal(reply.headers.get("connection", "").lower(), "close", "Connection")
            expect(raw.at_end(), "the connection stays open")
            server.check_end()


def test_requests_being_computed_are_answered(directory):
    """Whole requests that were read before the signal are all answered."""
    path = save(directory / "items.npy", np.ones((4, 64), np.float32))
    count = 200_000
    tensors = one_bag(count, np.int32)
    request = head("POST", "/v2/models/items/infer", *infer_body(tensors, binary=True)[::-1])
    with Server("--table", f"items={path}", "--loops", "1") as server:
        raws = [Raw(server) for _ in range(8)]
        for raw in raws:
            raw.send(request)
        raws[0].reply().expect(200)
        wait_until_read(server, raws[1:])
        server.send()
        for raw in raws[1:]:
            reply = raw.reply()
            expect(reply is not None, "a request that was sent is not answered")
            got = reply.embeddings()
            expect(np.array_equal(got, np.full((1, 64), count, np.float32)), f"{got}")
            raw.close()
        server.check_end()


def test_idle_connections_are_closed(directory):
    """Whether nothing was ever asked, or half a request, or a whole one."""
    path = save(directory / "items.npy")
    request = head("GET", "/v2/models/items")
    with Server("--table", f"items={path}", "--idle-timeout-s", "1") as server:
        everything = (b"", request[:10], request, head("POST", "/v2", {"Content-Length": "9"}))
        raws = [Raw(server) for _ in everything]
        for raw, sent in zip(raws, everything):
            raw.send(sent)
        raws[2].reply().expect(200)
        for raw, sent in zip(raws, everything):
            expect(raw.at_end(), f"open after {sent!r}")
            raw.close()


def test_drain_is_bounded(directory):
    """A client that never finishes its request cannot keep the server alive: it is cut off, which
    the log and the exit code tell."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--drain-timeout-s", "1") as server:
        with Raw(server) as raw:
            raw.send(head("POST", "/v2/models/items/infer", {"Content-Length": "100"}) + b"{")
            with Client(server) as client:
                client.get("/v2/health/live").expect(200)
            server.send()
            server.check_end(exit_code=1)
            last = server.events()[-1]
            expect_equal((last["event"], last["requests_cut_off"]), ("stopped", 1))


def test_second_signal(directory):
    """An impatient second signal does not wait for requests."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--drain-timeout-s", str(10 * TIMEOUT_S)) as server:
        with Raw(server) as raw:
            raw.send(head("POST", "/v2/models/items/infer", {"Content-Length": "100"}) + b"{")
            with Client(server) as client:
                client.get("/v2/health/live").expect(200)
            server.send(signal.SIGINT)
            server.wait_event("draining")
            time.sleep(ONE_SIGNAL_S)
            server.send(signal.SIGINT)
            server.check_end(exit_code=1)


def test_two_signals_at_once(directory):
    """timeout(1) sends a signal to the server and again to its group: the drain is not skipped."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--drain-timeout-s", str(10 * TIMEOUT_S)) as server:
        with Raw(server) as raw:
            body = json.dumps({"inputs": [{"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [1]}]}).encode()
            raw.send(head("POST", "/v2/models/items/infer", {"Content-Length": str(len(body))}) + body[:1])
            with Client(server) as client:
                client.get("/v2/health/live").expect(200)
            server.send(signal.SIGSTOP)  # both signals wait for it, as if they came at once
            server.send(signal.SIGTERM)
            server.send(signal.SIGINT)
            server.send(signal.SIGCONT)
            server.wait_event("draining")
            raw.send(body[1:])
            raw.reply().expect(200)
        server.check_end()


def test_drain_delay(directory):
    """After the signal readiness is withdrawn, and everything is served until the delay is over or
    another signal ends it."""
    path = save(directory / "items.npy")
    for impatient in (False, True):
        delay_s = 10 * TIMEOUT_S if impatient else 2
        with Server("--table", f"items={path}", "--drain-delay-s", str(delay_s)) as server, \
                Client(server) as kept:
            check_table(kept)
            begun = time.monotonic()
            server.send()
            wait_until(lambda: ready_while_draining(server) == 503, "readiness is not withdrawn")
            for client in (kept, Client(server)):  # on an old connection and on a new one
                check_table(client)
                reply = client.get("/v2/models/items/ready").expect(503)
                expect_equal(reply.headers.get("connection"), None, "Connection")
                client.get("/v2/health/live").expect(200)
            if impatient:
                time.sleep(ONE_SIGNAL_S)
                server.send()
            server.check_end()
            expect(impatient or time.monotonic() - begun >= delay_s, "the delay was cut short")
            events = [e["event"] for e in server.events()]
            expect_equal([e for e in events if e in ("leaving", "draining", "stopped")],
                         ["leaving", "draining", "stopped"])


def test_late_requests_after_a_drain_delay(directory):
    """A proxy that does not ask for readiness sends on after the delay: what comes on a connection
    that has begun is served, and ends it."""
    path = save(directory / "items.npy")
    body, headers = infer_body(one_bag(3, np.int64), binary=True)
    request = head("POST", "/v2/models/items/infer", headers, body)
    with Server("--table", f"items={path}", "--drain-delay-s", "1") as server, \
            Raw(server) as raw, Client(server) as other:
        raw.send(request[:-1])
        check_table(other)  # the server has read what came
        server.send()
        server.wait_event("draining")
        late = other.infer("items", one_bag(3, np.int64), binary=True)
        expect(np.array_equal(late.expect(200).embeddings(), [3 * TABLE[1]]), "a late one")
        expect_equal(late.headers.get("connection", "").lower(), "close", "Connection")
        raw.send(request[-1:])
        raw.reply().expect(200)
        server.check_end()


def sparse_table(path, rows):
    """A table of zeros that takes time to load but none to write."""
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, 64)})
        os.truncate(path, file.tell() + rows * 256)
    return path


def test_while_loading(directory):
    """Alive, not yet ready, and saying so to whoever asks for a model that is to come."""
    path = sparse_table(directory / "items.npy", 1_000_000)
    nothing = Tensor("indices", np.zeros((1, 0), np.int32))
    with Server("--table", f"items={path}", until="listening") as server, Client(server) as client:
        while (reply := client.get("/v2/health/ready")).status != 200:
            client.get("/v2/health/live").expect(200)
            client.get("/v2/models").expect(200)
            client.get("/v2/models/nobody").expect(404)
            later = [client.get("/v2/models/items"), client.get("/v2/models/items/ready"),
                     client.infer("items", [nothing])]
            for rejection in reply, *(r for r in later if r.status != 200):
                expect_equal((rejection.status, rejection.headers.get("retry-after")), (503, "1"))
                expect(isinstance(rejection.json().get("error"), str), f"{rejection.body!r}")
        server.wait_event("ready")


def test_signal_while_loading(directory):
    path = sparse_table(directory / "items.npy", 1_000_000)
    with Server("--table", f"items={path}", until="listening") as server:
        server.stop()


def test_request_and_signal_while_loading(directory):
    """What has begun is answered, though there is no table yet."""
    path = sparse_table(directory / "items.npy", 2_000_000)
    request = head("POST", "/v2/repository/index", body=b"{}")
    with Server("--table", f"items={path}", until="listening") as server, Raw(server) as raw:
        raw.send(request[:-1])
        with Client(server) as client:
            client.get("/v2/health/live").expect(200)
        server.send(signal.SIGTERM)
        server.wait_event("draining")
        raw.send(request[-1:])
        expect_equal(raw.reply().expect(200).json()[0]["name"], "items")
        server.check_end()


def test_other_signals(directory):
    """Signals that are meant for a reload, or for nothing here, end no request."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}") as server, Client(server) as client:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGHUP):
            server.send(number)
        expect("SIGHUP" in server.wait_event("not reloaded")["reason"], "no word of SIGHUP")
        check_table(client)


# ---- logs -------------------------------------------------------------------------------------
def ask_a_lot(client):
    for _ in range(100):
        check_table(client)
        client.request("POST", "/v2/models/items/infer", b"{").expect(400)
        client.get("/v2/models/nobody").expect(404)


def test_json_logs(directory):
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}") as server, Client(server) as client:
        before = len(server.lines)
        ask_a_lot(client)
        expect_equal(len(server.lines), before, "log lines with 300 requests")
        server.stop()
        for line in server.lines:
            event = json.loads(line)
            for key in ("time", "level", "event"):
                expect(isinstance(event.get(key), str), f"no {key}: {line}")
            expect(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", event["time"]), line)


def test_log_that_nobody_reads(directory):
    """Requests are answered, and the server stops; what was dropped is counted and said."""
    path = save(directory / "items.npy")
    port = free_port()
    command = [PROGRAM, "serve", "--port", str(port), "--table", f"items={path}", "--access-log",
               "on", "--log-format", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            for line in process.stderr:
                if json.loads(line)["event"] == "ready":
                    break
            dropped = 0
            with Client(at_port(port)) as client:
                while not dropped:  # a pipe takes 64 KiB, and the server keeps 256 KiB
                    for _ in range(100):
                        client.get("/v2/" + 1000 * "x").expect(404)
                    dropped = client.counted("bagserve_dropped_log_lines_total")
                read_on = []
                while not any(e["event"] == "log lines dropped" for e in read_on):
                    read_on.append(json.loads(process.stderr.readline()))
                expect(read_on[-1]["count"] >= dropped, f"{read_on[-1]} of {dropped}")
                expect_equal(client.counted("bagserve_dropped_log_lines_total"), read_on[-1]["count"])
                for _ in range(400):
                    client.get("/v2/" + 1000 * "x").expect(404)
            process.terminate()
            expect_equal(process.wait(TIMEOUT_S), 0, "the exit code")
        finally:
            process.kill()


def start_with_text_log(path, port, *arguments):
    return subprocess.Popen([PROGRAM, "serve", "--port", str(port), "--table", f"items={path}",
                             *arguments], stderr=subprocess.PIPE, text=True, env=environment())


def test_text_logs(directory):
    """Text is the default: lines a person reads, none of them JSON, none for a request."""
    path = save(directory / "items.npy")
    port = free_port()
    with start_with_text_log(path, port) as process:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "ready" in line:
                break
        with Client(at_port(port)) as client:
            ask_a_lot(client)
        process.terminate()
        rest = process.communicate(timeout=TIMEOUT_S)[1].splitlines()
        expect_equal(process.returncode, 0, "exit code")
    expect(any(str(port) in line for line in lines), f"no port in {lines}")
    expect(len(rest) <= 3, f"many lines after 300 requests: {rest}")
    for line in lines + rest:
        expect(not line.startswith("{"), f"JSON in a text log: {line}")
        expect(line.isprintable() or line.endswith("\n"), f"not printable: {line!r}")


def test_level(directory):
    """At level error a good life is silent."""
    path = save(directory / "items.npy")
    port = free_port()
    with start_with_text_log(path, port, "--log-level", "error") as process:
        wait_until(lambda: is_ready(port), "it is not ready")
        process.terminate()
        expect_equal(process.communicate(timeout=TIMEOUT_S)[1], "", "standard error")
        expect_equal(process.returncode, 0, "exit code")
