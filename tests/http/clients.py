"""What the tests of the clients under proto/clients share: servers, a proxy that ends TLS, and a
compiler for the C client.
"""

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import threading

import numpy as np
import pytest

from example import EXAMPLE
from harness import ROOT, TIMEOUT_S, Failure, Server, expect, expect_equal, write_json

sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
import bagserve_client as bc  # noqa: E402

C_HEADER = ROOT / "proto" / "clients" / "c"
TOKEN, OTHER = "infer-0123456789abcdef", "read-0123456789abcdef"


def address(server):
    return f"{server.host}:{server.port}"


def expect_raises(kind, work, *words):
    try:
        work()
    except kind as problem:
        for word in words:
            expect(word in str(problem), f"'{problem}' lacks '{word}'")
        expect_equal(type(problem), kind)
        return problem
    raise Failure(f"{kind.__name__} was not raised")


def compile_c(directory, text):
    """The program of a text that includes the header."""
    (directory / "program.c").write_text('#include "bagserve_client.h"\n' + text)
    flags = ["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O1", "-g",
             "-fsanitize=address,undefined", f"-I{C_HEADER}"]
    done = subprocess.run(["cc", *flags, "program.c", "-o", "program", "-lcurl"], cwd=directory,
                          capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    expect_equal((done.returncode, done.stderr), (0, ""), "the compiler")
    return directory / "program"


class Script:
    """A server that answers each connection as it is told, and counts."""

    def __init__(self, *connections):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.requests = 0
        self.thread = threading.Thread(target=self._serve, args=(connections,), daemon=True)
        self.thread.start()

    def _serve(self, connections):
        for answers in connections:
            peer, _ = self.listener.accept()
            with peer, peer.makefile("rb") as stream:
                for answer in answers:
                    length = 0
                    while (line := stream.readline()).strip():
                        if line.lower().startswith(b"content-length:"):
                            length = int(line.split(b":")[1])
                    stream.read(length)
                    self.requests += 1
                    peer.sendall(answer)

    def close(self):
        self.thread.join(TIMEOUT_S)
        self.listener.close()


def answer(status, value, headers=""):
    body = json.dumps(value).encode()
    return (f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\n{headers}"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


MODELS = answer(200, {"models": ["m"]})
BUSY = answer(503, {"error": "busy"}, "Retry-After: 0\r\n")


class Proxy:
    """Ends TLS in front of a server, for any number of connections."""

    def __init__(self, server, directory):
        self.certificate = directory / "certificate.pem"
        key = directory / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=test",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out",
                        self.certificate], check=True, capture_output=True, timeout=TIMEOUT_S)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self.behind = (server.host, server.port)
        self.listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
        self.url = "https://127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except ssl.SSLError:  # a client that does not trust the certificate
                continue
            except OSError:
                return
            behind = socket.create_connection(self.behind)
            for pair in ((peer, behind), (behind, peer)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    @staticmethod
    def _copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    np.save(shared_directory / "items.npy", EXAMPLE)
    np.save(shared_directory / "whole.npy", np.array([-(2**63), 2**62 + 1], np.int64))
    config = write_json(shared_directory / "config.json", {"models": [
        {"name": "items", "path": "items.npy"}, {"name": "whole", "path": "whole.npy"},
        {"name": "pair", "features": [{"name": "a", "model": "items", "reduction": "mean"},
                                      {"name": "b", "model": "items"}]}]})
    with Server("--config", config, "--max-body-bytes", 1 << 20) as server:
        yield server


@pytest.fixture(name="client")
def connect(server):
    """The client under test, in place of this suite's own."""
    with bc.Client(address(server)) as client:
        yield client


@pytest.fixture(scope="module", name="guarded")
def serve_with_tokens(shared_directory):
    tokens = shared_directory / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"infer {TOKEN}\nread {OTHER}\n")
    with Server("--demo", "--token-file", tokens) as server:
        yield server
