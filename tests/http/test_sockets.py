"""Other ways to a server than a TCP port of its own: Unix-domain sockets, sockets and news between
it and systemd (played by this test), and the admin listener."""

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import time

import numpy as np

from control import BEARER, tokens
from harness import PROGRAM, ROOT, Failure, Server, expect, expect_equal, free_port, run, wait_until
from lifecycle import check_table, save
from v2 import Client, Raw, Tensor, UnixRaw, at_port, head, infer_body


def ask(raw, path="/v2/health/ready"):
    raw.send(head("GET", path))
    return raw.reply()


# ---- Unix-domain sockets ----------------------------------------------------------------------
def test_unix_socket(directory):
    table, path = save(directory / "items.npy"), directory / "socket"
    with Server("--table", f"items={table}", "--unix", path, "--loops", 2) as server:
        expect_equal((server.host, server.port), (str(path), None), "what is logged")
        expect_equal(path.stat().st_mode & 0o777, 0o660, "permissions")
        body, headers = infer_body([Tensor("indices", np.arange(4).reshape(4, 1))], binary=True)
        with UnixRaw(path) as raw:
            for _ in range(3):
                raw.send(head("POST", "/v2/models/items/infer", headers, body))
                expect_equal(raw.reply().embeddings().shape, (4, 3))
        expect_equal(run("health", "--unix", path).returncode, 0, "health")
        server.stop()
        expect(not path.exists(), "the socket is left behind")
    expect_equal(run("health", "--unix", path).returncode, 1, "health without a server")


def test_unix_permissions(directory):
    table, path = save(directory / "items.npy"), directory / "socket"
    with Server("--table", f"items={table}", "--unix", path, "--unix-permissions", "600"):
        expect_equal(path.stat().st_mode & 0o777, 0o600, "permissions")
    for text in ("8", "0x1", "1777", "rw"):
        result = run("serve", "--table", f"items={table}", "--unix", path, "--unix-permissions", text)
        expect_equal(result.returncode, 2, text)
        expect("unix_permissions" in result.stderr, result.stderr)


def test_stale_socket_is_replaced(directory):
    table, path = save(directory / "items.npy"), directory / "socket"
    with Server("--table", f"items={table}", "--unix", path) as server:
        server.send(signal.SIGKILL)
        server.check_end(exit_code=-signal.SIGKILL)
    expect(path.exists(), "nothing to replace")
    with Server("--table", f"items={table}", "--unix", path) as server, UnixRaw(path) as raw:
        expect_equal(ask(raw).status, 200)
        second = run("serve", "--table", f"items={table}", "--unix", path)
        expect_equal(second.returncode, 1, "a second server")
        expect("stop what listens there" in second.stderr, second.stderr)
        expect_equal(ask(raw).status, 200, "the first one afterwards")


def test_other_files_are_left_alone(directory):
    table, path = save(directory / "items.npy"), directory / "notes"
    path.write_text("mine")
    for flags in (("--unix", path), ("--port", 0, "--admin-socket", path)):
        result = run("serve", "--table", f"items={table}", *flags)
        expect_equal(result.returncode, 1)
        expect("what is there is not a socket; remove it or choose another path" in result.stderr, result.stderr)
    expect_equal(path.read_text(), "mine", "the file")
    expect_equal(run("serve", "--table", f"items={table}", "--unix", directory / "none" / "socket").returncode, 1)


def test_unix_socket_after_a_second_signal(directory):
    table, path = save(directory / "items.npy"), directory / "socket"
    with Server("--table", f"items={table}", "--unix", path) as server, UnixRaw(path) as raw:
        raw.send(head("POST", "/v2/models/items/infer", {"Content-Length": "100"}) + b"{")
        with UnixRaw(path) as other:
            expect_equal(ask(other).status, 200)
        server.send()
        server.wait_event("draining")
        server.send()
        server.check_end(exit_code=1)
    expect(not path.exists(), "the socket is left behind")


def test_idle_time_out_of_unix_sockets(directory):
    """A client that stops in the midst of its request, or does not read its reply, is forgotten; one that reads
    slowly, for longer than the time-out, gets all of it."""
    table, path, rows = save(directory / "items.npy", np.ones((4, 64), np.float32)), directory / "socket", 20_000
    with Server("--table", f"items={table}", "--admin-socket", path, "--idle-timeout-s", 2, "--token-file",
                tokens(directory)) as server, Client(server, headers=BEARER) as client:
        body, headers = infer_body([Tensor("indices", np.zeros((rows, 1), np.int32))], binary=True,
                                   parameters={"binary_data_output": True})
        request = head("POST", "/v2/models/items/infer", BEARER | headers, body)
        with UnixRaw(path) as still, UnixRaw(path) as half, UnixRaw(path) as slow:
            for raw, sent in ((still, request), (half, request[:-1]), (slow, request)):
                raw.send(sent)
            reply, begun = b"", time.monotonic()
            while not reply.endswith(b"\0\0\x80\x3f") or len(reply) < rows * 256:
                piece = slow.socket.recv(1 << 16)
                expect(piece, f"cut off after {len(reply)} bytes in {time.monotonic() - begun:.1f} s")
                reply += piece
                select.select([], [], [], 0.06)
            expect(time.monotonic() - begun > 4, "it was read too fast to show anything")
            wait_until(lambda: client.counted("bagserve_http_connections") == 2, "connections on which nothing moves stay")
            expect(half.at_end(), "half a request is kept")


def test_stop_beside_open_unix_sockets(directory):
    """Connections on which nothing is asked do not delay a stop: the admin socket's clients keep theirs."""
    table, path = save(directory / "items.npy"), directory / "socket"
    with Server("--table", f"items={table}", "--admin-socket", path, "--drain-timeout-s", 5) as server:
        with UnixRaw(path) as used, UnixRaw(path):
            expect_equal(ask(used).status, 200)
            server.stop()  # half a line would have 10 s, and be cut off after 5


# ---- systemd ----------------------------------------------------------------------------------
class Manager:
    """What systemd is to a service: it passes sockets as descriptors from 3 on, and hears how things
    are."""

    def __init__(self, directory):
        self.path = directory / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.settimeout(60)
        self.news = []

    def start(self, *arguments, sockets=(), **variables):
        """Starts a server; the variable LISTEN_PID must be its number."""
        numbers = [passed.fileno() for passed in sockets]

        def prepare():
            # Out of the way first: one of them may have the number that another is to get.
            for target, number in enumerate([os.dup(number) for number in numbers], 3):
                os.dup2(number, target)
            os.environ["LISTEN_PID"] = str(os.getpid())
            os.environ.update(variables, LISTEN_FDS=str(len(numbers)), NOTIFY_SOCKET=str(self.path))
            os.execv(PROGRAM, [PROGRAM, "serve", *map(str, arguments)])

        return subprocess.Popen(["true"], preexec_fn=prepare, stderr=subprocess.PIPE, text=True)

    def wait_news(self, line):
        while not any(line in news.split("\n") for news in self.news):
            self.news.append(self.socket.recv(4096).decode())


def listen():
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, at_port(listener.getsockname()[1])


def test_socket_activation(directory):
    """A client that came before the server is answered; the socket outlives the server."""
    table, manager = save(directory / "items.npy"), Manager(directory)
    listener, address = listen()
    with listener, Raw(address) as early:
        early.send(head("GET", "/v2"))
        with manager.start("--table", f"items={table}", sockets=[listener]) as process:
            manager.wait_news("READY=1")
            early.reply().expect(200)
            with Client(address) as client:
                check_table(client)
            process.terminate()
            manager.wait_news("STOPPING=1")
            expect_equal((process.communicate()[1].count("stopped"), process.returncode), (1, 0))
        with Raw(address) as between:
            between.send(head("GET", "/v2"))
            with manager.start("--table", f"items={table}", sockets=[listener]) as process:
                between.reply().expect(200)
                manager.news.clear()
                manager.wait_news("READY=1")
                process.terminate()
                process.communicate()
                expect_equal(process.returncode, 0)


def test_news(directory):
    table, manager = save(directory / "items.npy"), Manager(directory)
    with manager.start("--table", f"items={table}", "--port", 0, WATCHDOG_USEC="100000") as process:
        for line in ("STATUS=Loading 1 models", "READY=1", "STATUS=Serving 1 models", "WATCHDOG=1"):
            manager.wait_news(line)
        manager.news.clear()
        manager.wait_news("WATCHDOG=1")
        process.terminate()
        manager.wait_news("STOPPING=1")
        process.communicate()
        expect_equal(process.returncode, 0)


def test_other_descriptors_are_rejected(directory):
    table, manager = save(directory / "items.npy"), Manager(directory)
    listener, _ = listen()
    two, names = "2 sockets were passed", "LISTEN_FDNAMES"
    with listener, socket.socket() as unbound:
        for passed, variables, words in (
                ([listener] * 2, {}, [two, names]),
                ([listener] * 2, {names: "bagserve.socket:bagserve.socket"}, [two, names]),
                ([listener] * 2, {names: "admin:admin"}, [two, names]),
                ([listener] * 2, {names: "http:administration"}, [two, names]),
                ([listener] * 3, {names: "http:admin"}, ["3 sockets were passed", names]),
                ([unbound], {}, ["descriptor 3", "listening stream"]),
                ([listener, unbound], {names: "http:admin"}, ["descriptor 4", "listening stream"])):
            with manager.start("--table", f"items={table}", sockets=passed, **variables) as process:
                told = process.communicate()[1]
                for word in words:
                    expect(word in told, f"{variables}: no '{word}' in {told}")
                expect_equal(process.returncode, 1, told)


def check_admin(address):
    """A listener that answers for health, and rejects inference."""
    with Client(address) as client:
        client.get("/v2/health/ready").expect(200)
        rejected = client.infer("items", [Tensor("indices", np.zeros((1, 1), np.int64))])
        expect_equal(rejected.status, 403)


def test_sockets_by_name(directory):
    """One named admin is the admin listener, whatever place it has and the other's name is."""
    table, manager = save(directory / "items.npy"), Manager(directory)
    (first, address), (second, admin), port = listen(), listen(), free_port()
    other = at_port(port)
    with first, second:
        for sockets, names, infers in (([first, second], "http:admin", address),
                                       ([second, first], "admin:bagserve.socket", address),
                                       ([second, first], "admin", address),
                                       ([second], "admin", other)):
            manager.news.clear()
            with manager.start("--table", f"items={table}", "--port", port, sockets=sockets,
                               LISTEN_FDNAMES=names) as process:
                manager.wait_news("READY=1")
                with Client(infers) as client:
                    check_table(client)
                check_admin(admin)
                process.terminate()
                told = process.communicate()[1]
                expect_equal((told.count("passed by systemd"), process.returncode), (len(sockets), 0), told)


def test_a_name_for_admin_goes_before_the_option(directory):
    table, manager = save(directory / "items.npy"), Manager(directory)
    (first, address), (second, admin) = listen(), listen()
    with first, second, manager.start("--table", f"items={table}", "--admin-port", admin.port,
                                      sockets=[first, second], LISTEN_FDNAMES="http:admin") as process:
        manager.wait_news("READY=1")
        with Client(address) as client:
            check_table(client)
        check_admin(admin)
        process.terminate()
        expect_equal((process.communicate()[1].count("stopped"), process.returncode), (1, 0))


def test_units():
    """systemd's own opinion, where it is installed; its exit code hides unknown keys."""
    units = sorted((ROOT / "deploy" / "systemd").iterdir())
    expect_equal([unit.name for unit in units], ["bagserve-admin.socket", "bagserve.service", "bagserve.socket"])
    try:
        result = subprocess.run(["systemd-analyze", "verify", "--man=no", *units],
                                capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return
    complaints = [line for line in result.stderr.splitlines()
                  if re.search(r"bagserve(-admin)?\.(service|socket)", line) and "is not executable" not in line]
    if complaints:
        raise Failure("\n".join(complaints))


# ---- the admin listener ----------------------------------------------------------------------
def test_admin_port(directory):
    table, port = save(directory / "items.npy"), free_port()
    admin = at_port(port)
    with Server("--table", f"items={table}", "--admin-port", port, "--loops", 2) as server, \
            Client(server) as client, Client(admin) as other:
        check_table(client)
        for path in ("/v2/health/ready", "/v2/health/live", "/v2", "/v2/models/items", "/metrics",
                     "/v2/models/stats"):
            other.get(path).expect(200)
            client.get(path).expect(200)
        rejected = other.infer("items", [Tensor("indices", np.zeros((1, 1), np.int64))])
        expect_equal(rejected.status, 403)
        expect("admin_port" in rejected.json()["error"], rejected.body.decode())
        expect_equal(other.counted("nv_inference_request_success", model="items"), 1, "the sum over all loops")


def test_admin_answers_while_clients_have_all_connections(directory):
    table, port = save(directory / "items.npy"), free_port()
    admin = at_port(port)
    with Server("--table", f"items={table}", "--max-connections", 16, "--admin-port", port) as server, \
            contextlib.ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(Raw(server)).send(head("GET", "/v2/health/live")[:-2])
        with Raw(server) as further:
            expect_equal(ask(further).status, 503, "a further one")
        probes = [stack.enter_context(Raw(admin)) for _ in range(6)]
        for probe in probes:
            expect_equal(ask(probe).status, 200, "a probe's")
            probe.send(head("GET", "/v2/health/live")[:-2])  # so that it makes no room
        with Raw(server) as further:
            expect_equal(ask(further).status, 503, "a further one beside probes")
        with Raw(admin) as seventh:
            expect_equal(ask(seventh).status, 503, "more than an eighth and four")


def test_admin_answers_while_draining(directory):
    table, port = save(directory / "items.npy"), free_port()
    admin = at_port(port)
    with Server("--table", f"items={table}", "--admin-port", port) as server, Raw(server) as raw:
        raw.send(head("POST", "/v2/models/items/infer", {"Content-Length": "10"}) + b"{")
        with Client(server) as client:
            client.get("/v2").expect(200)
        server.send()
        server.wait_event("draining")

        def status():
            with Client(admin) as other:
                return other.get("/v2/health/ready").status

        wait_until(lambda: status() == 503, "not 503")
        raw.send(b"123456789")
        expect_equal(raw.reply().status, 400)
        server.check_end()
