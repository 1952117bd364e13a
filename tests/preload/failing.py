"""A server under a library that makes its calls fail (fail.c), and how that is told which ones."""

import errno
import mmap
import os
import pathlib
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time

from messages import get

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "http"))
from ports import free_port  # noqa: E402  pylint: disable=wrong-import-position

PROGRAM = os.environ.get("BAGSERVE", str(ROOT / "build" / "release" / "bagserve"))
LIBRARY = os.environ.get("TORTURE_LIBRARY",
                         str(pathlib.Path(PROGRAM).parent / "tests" / "libtorture.so"))
KINDS = {name: i for i, name in enumerate(
    ("nothing", "allocation", "accept", "recv", "send", "read", "epoll_ctl", "eventfd",
     "pthread_create", "mmap", "write", "sync"))}
ONCE, FROM, SHORT = range(3)
TIMEOUT_S = 50  # less than any of the server's own; a busy machine takes 20 for what comes byte by byte
PROXIED = ("--proxy-protocol", "v2", "--trusted-proxies", "127.0.0.1")
# From 192.0.2.1, with a value of a kind that is skipped.
PROXY_HEADER = (b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + struct.pack(">H4s4sHHBH8s", 23, bytes((192, 0, 2, 1)),
                                                             bytes(4), 1, 2, 0xE0, 8, b"anything"))


class Control:
    """The words that the preloaded library shares: kind, mode, at, errno, armed, calls, failed, and the
    jumps of two clocks."""

    def __init__(self, path):
        path.write_bytes(bytes(4096))
        self.path = path
        with open(path, "r+b") as file:
            self.words = mmap.mmap(file.fileno(), 4096)

    def arm(self, kind, mode, at, error=errno.ENOMEM):
        self.words[40:56] = bytes(16)
        self.words[0:32] = struct.pack("<4Q", KINDS[kind], mode, at, error)
        self.words[32:40] = struct.pack("<Q", 1)

    def set_clocks(self, realtime_s, monotonic_s):
        self.words[56:72] = struct.pack("<2q", realtime_s, monotonic_s)

    def disarm(self):
        """How many calls failed since it was armed."""
        self.words[32:40] = bytes(8)
        return struct.unpack("<Q", self.words[48:56])[0]


class Server:
    def __init__(self, control, config, descriptors=None, arguments=(), group=None):
        environment = {**os.environ, "LD_PRELOAD": LIBRARY, "FAIL_CONTROL": str(control.path),
                       "ASAN_OPTIONS": "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")}

        def limit():
            if group:
                (group / "cgroup.procs").write_text(str(os.getpid()))
            if descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        self.log = tempfile.TemporaryFile()
        self.port = free_port()
        self.config, self.arguments = config, arguments
        self.prefix = PROXY_HEADER if PROXIED[0] in arguments else b""
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--config", config, "--port", str(self.port), "--workers", "2",
             "--drain-timeout-s", "5", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=self.log, env=environment, preexec_fn=limit)

    def ask(self, request, timeout_s=TIMEOUT_S):
        return ask(self.port, request, timeout_s, self.prefix)

    def lines(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def wait_until_ready(self):
        """True once it is ready; False where it has ended; None where it hangs."""
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                return False
            reply = self.ask(get("/v2/health/ready"), 2)
            if reply.startswith(b"HTTP/1.1 200"):
                return True
            time.sleep(0.002)
        return None

    def sanitizer_report(self):
        """Where a leak or worse was found, in a build with AddressSanitizer; None elsewhere."""
        lines = self.lines().splitlines()
        begins = next((i for i, line in enumerate(lines) if "Sanitizer" in line), None)
        return None if begins is None else "\n    ".join(lines[begins:begins + 16])

    def stop(self):
        """What was wrong with its end; None where it was right."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "SIGTERM did not end it"
        if report := self.sanitizer_report():
            return report
        if "draining " in self.lines() and "draining in_flight=0\n" not in self.lines():
            return "requests were still counted after all had ended"
        return None if code == 0 else f"exit code {code} after SIGTERM"


def ask(port, request, timeout_s=TIMEOUT_S, prefix=b""):
    """All bytes of the reply to a request that ends its connection; b"" without any."""
    got = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
            connection.sendall(prefix + request)
            while piece := connection.recv(1 << 20):
                got += piece
    except TimeoutError:
        return b"(no end within the time) " + got
    except OSError:
        pass
    return got
