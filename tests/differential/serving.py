"""The server of a world: its processes one after the other, and connections to its two listeners."""

import http.client
import json
import os
import socket

from crowd import Crowd
from harness import TIMEOUT_S, Server, run
from lifecycle import expect_memory_returned
from v2 import Client

TOKEN = "admin-0123456789abcdef"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
# Clients keep their connections, however long a busy machine lets them wait.
PATIENT = ("--idle-timeout-s", 3600)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=TIMEOUT_S)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Admin(Client):
    """The admin listener."""

    def __init__(self, path):  # pylint: disable=super-init-not-called
        self.headers, self.connection = BEARER, UnixConnection(path)

    def post(self, path, body=None):
        return self.request("POST", f"/v2/repository/{path}", json.dumps(body) if body is not None else "")

    def load(self, model, version=None):
        body = {} if version is None else {"parameters": {"version": str(version)}}
        return self.post(f"models/{model}/load", body)

    def unload(self, model):
        return self.post(f"models/{model}/unload")

    def index(self):
        """{(name, version): (state, reason)}"""
        return {(e["name"], e["version"]): (e["state"], e["reason"]) for e in self.post("index").expect().json()}


class Serving:
    """Starts the server, and again after it has ended; beside it a crowd of so many other clients of these models."""

    def __init__(self, folder, arguments, models=(), crowd=0):
        self.folder, self.models, self.crowd, self.beside = folder, models, crowd, None
        tokens = folder / "tokens"
        tokens.touch(0o600)
        tokens.write_text(f"admin {TOKEN}\n")
        self.server = self.client = self.admin = self.said = None

        self.arguments = ["--admin-socket", folder / "admin.socket", "--token-file", tokens, *arguments]

    def check(self):
        """What --check says of what is to be served; its exit code."""
        return run("serve", "--check", *self.arguments)

    def start(self):
        path = self.folder / "admin.socket"
        if path.exists():
            os.unlink(path)
        self.server = Server(*self.arguments)
        self.client, self.admin = Client(self.server, headers=BEARER), Admin(path)
        self.beside = Crowd(self.server, BEARER, self.models, self.crowd) if self.crowd else None

    def kill(self):
        self._close()
        self.server.kill()

    def stop(self):
        if self.beside:
            self.beside.end()
        expect_memory_returned(self.client, 0)
        self._close()
        self.server.stop()

    def _close(self):
        if self.beside:
            self.beside.end()
        for connection in (self.client, self.admin):
            connection.close()

    def abandon(self):
        """After a failure; what the server said last is in `said`."""
        if self.server:
            self.said = self.server.last_lines()
            if self.beside:
                self.beside.ended.set()
            self.server.kill()

    def send_and_leave(self, request):
        """Sends a batch of rows and does not wait for its answer."""
        path, body, headers = request
        connection = UnixConnection(self.folder / "admin.socket")
        connection.request("POST", path, body, headers | BEARER)
        return connection

def play(world, serving, choose_step, check, steps):
    """Starts the server of a world, and checks the world at first and after each of so many steps."""
    try:
        world.start()
        check()
        for _ in range(steps):
            step = choose_step()
            world.steps.append(step.__name__)
            step()
            check()
            world.count("steps")
        serving.stop()
    except BaseException:
        serving.abandon()
        raise
