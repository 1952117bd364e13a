"""Servers, the proxies in front of them on the recipes of deploy/proxy, and clients under load; for
tests/deploy/proxies."""

import http.client
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "http"))
from ports import free_port  # noqa: E402  pylint: disable=wrong-import-position

PROGRAM = os.environ.get("BAGSERVE", str(ROOT / "build" / "release" / "bagserve"))
NAMES = ("ONE", "TWO", "THREE")
# The recipe for HAProxy sends bodies of up to this size again; larger ones need a larger buffer.
BUFFER = "tune.bufsize 131072"

# Where a connection is refused, nothing was sent: another server is tried at once.
REDISPATCH = "option redispatch 1"
PLAIN_HAPROXY = f"""
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    {REDISPATCH}
frontend embeddings
    bind "${{PROXY_LISTEN}}"
    default_backend bagserve
backend bagserve
    option httpchk GET /v2/health/ready
    default-server check inter 500ms
    server one "${{BAGSERVE_ONE}}"
    server two "${{BAGSERVE_TWO}}"
    server three "${{BAGSERVE_THREE}}"
"""
# The recipe adds this line for retries; a test takes it away.
NGINX_RETRIES = "proxy_next_upstream error timeout http_503 non_idempotent;"


def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what} did not happen within {seconds} s")
        time.sleep(0.05)


def can_connect(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def make_body(body_bytes):
    """A request of about so many bytes, one bag of as many ids as that takes."""
    ids = [0, 2, 4] * max(1, (body_bytes - 100) // 9)
    return json.dumps({"inputs": [{"name": "indices", "datatype": "INT64", "shape": [1, len(ids)], "data": ids}]})


# --- servers -------------------------------------------------------------------------------------

class Server:
    """One bagserve on a port of its own, started again and again."""

    def __init__(self, delay_s, tables=("--demo",), health=(), log=subprocess.DEVNULL):
        self.port, self.delay_s, self.tables = free_port(), delay_s, tables
        self.health, self.log = health, log
        self.process = None
        self.start()

    def start(self):
        options = ["--drain-delay-s", str(self.delay_s)] if self.delay_s else []
        self.process = subprocess.Popen(
            [PROGRAM, "serve", *self.tables, "--port", str(self.port), *options],
            stdout=subprocess.DEVNULL, stderr=self.log)
        until(self.is_ready, 30, f"readiness of the server on port {self.port}")

    def is_ready(self):
        return subprocess.run([PROGRAM, "health", "--port", str(self.port), *self.health], check=False,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    def stop(self, sent=signal.SIGTERM):
        self.process.send_signal(sent)
        return self.process.wait(self.delay_s + 40)

    def restart(self):
        code = self.stop()
        if code != 0:
            sys.exit(f"the server on port {self.port} ended with exit code {code}")
        self.start()


# --- proxies -------------------------------------------------------------------------------------

def haproxy_recipe(directory, body_bytes):
    """The recipe, with buffers for such bodies."""
    text = (ROOT / "deploy" / "proxy" / "haproxy.cfg").read_text()
    if BUFFER not in text:
        sys.exit(f"haproxy.cfg does not say {BUFFER}")
    if body_bytes > 100_000:
        text = text.replace(BUFFER, f"tune.bufsize {body_bytes * 5 // 4}")
    path = directory / "haproxy.cfg"
    path.write_text(text)
    return path


def make_certificate(directory):
    """A certificate of its own authority for 127.0.0.1; the file holds its key, too."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=test",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    both = directory / "both.pem"
    both.touch(0o600)
    both.write_text(certificate.read_text() + key.read_text())
    return certificate, both


def start_tls_proxy(addresses, port, directory, body_bytes):
    """The two recipes together. Returns the process, and what makes clients trust it."""
    certificate, both = make_certificate(directory)
    addresses |= {"PROXY_LISTEN": f"127.0.0.1:{free_port()}",
                  "PROXY_LISTEN_TLS": f"127.0.0.1:{port}", "PROXY_CERTIFICATE": str(both)}
    process = subprocess.Popen(
        ["haproxy", "-db", "-f", haproxy_recipe(directory, body_bytes),
         "-f", ROOT / "deploy" / "proxy" / "haproxy-tls.cfg"],
        env={**os.environ, **addresses}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return process, ssl.create_default_context(cafile=certificate)


def start_proxy(name, servers, port, directory, body_bytes, change=lambda directory: None):
    """Starts it on the recipe, to which `change` is done before."""
    addresses = {f"BAGSERVE_{n}": f"127.0.0.1:{s.port}" for n, s in zip(NAMES, servers)}
    if name == "haproxy-tls":
        return start_tls_proxy(addresses, port, directory, body_bytes)
    addresses["PROXY_LISTEN"] = f"127.0.0.1:{port}"
    if name.startswith("haproxy"):
        path = haproxy_recipe(directory, body_bytes)
        if name in ("haproxy-plain", "haproxy-default"):
            path.write_text(PLAIN_HAPROXY.replace(REDISPATCH, REDISPATCH if "plain" in name else ""))
        change(directory)
        return subprocess.Popen(["haproxy", "-db", "-f", path], env={**os.environ, **addresses},
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), None
    # nginx keeps long bodies in files there, as a user of its own.
    directory.chmod(0o711)
    text = (ROOT / "deploy" / "proxy" / "nginx.conf").read_text()
    if name == "nginx-plain":
        text = text.replace(NGINX_RETRIES, "proxy_next_upstream error timeout;")
    for key, value in addresses.items():
        text = text.replace(key, value)
    path = directory / "nginx.conf"
    path.write_text(text)
    change(directory)
    return subprocess.Popen(["nginx", "-p", directory, "-c", path, "-g", "daemon off;"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), None


def stop_all(proxy, servers):
    if proxy:
        proxy.terminate()
        proxy.wait(10)
    for server in servers:
        if server.process.poll() is None:
            server.stop(signal.SIGKILL)


# --- clients -------------------------------------------------------------------------------------

class Load:
    """Clients that ask one after the other, and what became of it. By TLS, where `trust` says whom
    to trust."""

    def __init__(self, port, clients, body, trust=None, is_right=lambda reply: True):
        self.port, self.body, self.trust, self.is_right = port, body, trust, is_right
        self.lock, self.stopping = threading.Lock(), threading.Event()
        self.answered, self.lost, self.longest_s = 0, [], 0.0
        self.threads = [threading.Thread(target=self.ask) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def ask(self):
        connection = (
            http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.trust)
            if self.trust else http.client.HTTPConnection("127.0.0.1", self.port, timeout=30))
        while not self.stopping.is_set():
            begun = time.monotonic()
            try:
                connection.request("POST", "/v2/models/example/infer", self.body)
                reply = connection.getresponse()
                body = reply.read()
                good = reply.status == 200 and self.is_right(body)
                lost = None if good else f"{reply.status} {body[:80]!r}"
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                lost = repr(error)
            with self.lock:
                self.longest_s = max(self.longest_s, time.monotonic() - begun)
                self.answered += lost is None
                if lost:
                    self.lost.append(lost)

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
