"""The PROXY protocol, version 2: trusted proxies say whose connections they bring.

What of a header is right or wrong is in tests/unit/test_proxy.c; here is what becomes of it.
"""

import ipaddress
import signal
import socket
import struct

import pytest

from example import i64
from harness import Server, expect, expect_equal, free_port, run, wait_until
from lifecycle import save
from v2 import Raw, head, infer_body

LIVE = head("GET", "/v2/health/live")
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
LOCAL = SIGNATURE + bytes((0x20, 0, 0, 0))
TRUSTED = ("--proxy-protocol", "v2", "--trusted-proxies", "127.0.0.0/8", "--access-log", "on")


def proxied(source, port=4711):
    """The header of a connection from there, with something behind the addresses."""
    address = ipaddress.ip_address(source)
    addresses = address.packed * 2 + struct.pack(">2H", port, 80) + b"\x04\0\1x"
    family = 0x11 if address.version == 4 else 0x21
    return SIGNATURE + struct.pack(">2BH", 0x21, family, len(addresses)) + addresses


def serve(directory, *arguments):
    return Server("--table", f"items={save(directory / 'items.npy')}", *arguments)


def clients(server):
    return [event["client"] for event in server.events() if event["event"] == "request"]


def test_the_log_has_the_client(directory):
    with serve(directory, *TRUSTED) as server:
        for source, shown in (("10.1.2.3", "10.1.2.3:4711"), ("2001:db8::5", "[2001:db8::5]:4711")):
            with Raw(server) as raw:
                raw.send(proxied(source) + LIVE + LIVE)
                raw.reply().expect(200)
                raw.reply().expect(200)
            wait_until(lambda: clients(server)[-2:] == [shown] * 2, f"{source} is not in the log")
        with Raw(server) as raw:  # a rejected one, too
            raw.send(proxied("10.9.9.9") + b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: a\r\n\r\n")
            raw.reply().expect(400)
        wait_until(lambda: clients(server)[-1] == "10.9.9.9:4711", "10.9.9.9 is not in the log")


def test_a_header_may_come_in_pieces(directory):
    with serve(directory, *TRUSTED) as server, Raw(server) as raw:
        for byte in proxied("10.1.2.3") + LIVE:
            raw.send(bytes((byte,)))
        raw.reply().expect(200)
        wait_until(lambda: clients(server) == ["10.1.2.3:4711"], "it is not in the log")


def test_resets_behind_headers(directory):
    """Connections that end with a header, or half of one, are closed, however little of it was read before."""
    with serve(directory, *TRUSTED) as server:
        before = server.descriptors()
        header = proxied("10.1.2.3")
        for sent in (header + LIVE, header, header[:20], b""):
            sockets = [socket.create_connection((server.host, server.port)) for _ in range(5)]
            wait_until(lambda: server.descriptors() == before + 5, "they are not accepted")
            server.send(signal.SIGSTOP)
            for one in sockets:
                one.sendall(sent)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.close()
            server.send(signal.SIGCONT)
            wait_until(lambda: server.descriptors() == before, f"{len(sent)} bytes: they are not closed", 8)


@pytest.mark.parametrize("length", [8192, 16384, 1 << 20])
def test_a_long_request_may_follow_at_once(directory, length):
    """The header's bytes are not missed where a read was full of them and of what follows."""
    with serve(directory, *TRUSTED) as server:
        for body_bytes in range(length - 400, length + 100, 20):
            body, headers = infer_body([i64("indices", [[1, 2]])])
            with Raw(server, timeout_s=10) as raw:
                raw.send(proxied("10.1.2.3") + head("POST", "/v2/models/items/infer", headers,
                                                    body.ljust(body_bytes)))
                raw.reply().expect(200)


def test_a_proxy_speaks_for_itself(directory):
    with serve(directory, *TRUSTED) as server, Raw(server) as raw:
        raw.send(LOCAL + LIVE)
        raw.reply().expect(200)
        own = "{}:{}".format(*raw.socket.getsockname())
        wait_until(lambda: clients(server) == [own], f"{own} is not in the log")
        health = run("health", "--port", server.port, "--proxy-protocol", "v2", "--trusted-proxies", "127.0.0.1")
        expect_equal(health.returncode, 0, health.stderr)


def test_a_malformed_header_closes_the_connection(directory):
    with serve(directory, *TRUSTED) as server:
        for data in (LIVE, b"PROXY TCP4 10.1.2.3 10.0.0.1 1 2\r\n" + LIVE, LOCAL[:12] + b"\x10\0\0\0"):
            with Raw(server) as raw:
                raw.send(data)
                expect(is_closed(raw), f"{data!r}: it is open")
        wait_until(lambda: sum(e["event"] == "bad proxy header" for e in server.events()) == 3,
                   "the log does not say so")
        with Raw(server) as raw:
            raw.send(LOCAL + LIVE)
            raw.reply().expect(200)


def is_closed(raw):
    try:
        return raw.at_end()
    except ConnectionError:
        return True


def test_others_may_not_speak_it(directory):
    with serve(directory, "--proxy-protocol", "v2", "--trusted-proxies", "10.0.0.0/8",
               "--access-log", "on") as server:
        with Raw(server) as raw:
            raw.send(proxied("10.1.2.3") + LIVE)
            reply = raw.reply()  # the library's, or none
            expect(reply is None or reply.status == 400, "it is HTTP")
        with Raw(server) as raw:
            raw.send(LIVE)
            raw.reply().expect(200)
        wait_until(lambda: len(clients(server)) == 1, "it is not in the log")
        expect(all(client.startswith("127.0.0.1:") for client in clients(server)), clients(server))


def test_shares_are_the_clients(directory):
    """Each client behind the proxy has its own share of connections; one that ends gives it back."""
    with serve(directory, *TRUSTED, "--max-connections-per-client", "2") as server:

        def connect(source):
            raw = Raw(server)
            raw.send(proxied(source) + LIVE)
            return raw

        one, two, other = connect("10.0.0.1"), connect("10.0.0.1"), connect("10.0.0.2")
        for raw in one, two, other:
            raw.reply().expect(200)
        with connect("10.0.0.1") as third:
            expect(is_closed(third), "a third connection is open")
        with Raw(server) as raw:
            raw.send(proxied("10.0.0.3") + head("GET", "/metrics"))
            expect("\nbagserve_refused_connections_total 1\n" in raw.reply().expect(200).body.decode(),
                   "it is not counted")
        one.close()

        def is_served():
            with connect("10.0.0.1") as raw:
                try:
                    reply = raw.reply()
                except ConnectionError:
                    return False
                return reply is not None and reply.status == 200

        wait_until(is_served, "the share does not come back")
        for raw in two, other:
            raw.close()


def test_the_second_listener_speaks_http_alone(directory):
    port = free_port()
    with serve(directory, *TRUSTED, "--admin-port", port) as server:
        for data, answers in (LIVE, [b" 200"]), (proxied("10.1.2.3") + LIVE, [b" 400", b""]):
            with socket.create_connection((server.host, port)) as admin:
                admin.sendall(data)
                expect(admin.recv(12)[8:] in answers, f"not {answers}")


def test_it_needs_trusted_proxies(directory):
    ended = run("serve", "--table", f"items={save(directory / 'items.npy')}", "--proxy-protocol", "v2")
    expect_equal(ended.returncode, 2)
    expect("proxy_protocol v2 needs trusted_proxies" in ended.stderr, ended.stderr)
