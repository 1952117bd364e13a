"""Requests that change as trees (fuzz/trees.h), to a front of shards, to the one server that has all, and to a server
whose rows and models change. What the protocol ignores must leave the answer as it is; of anything else both servers
must say the same, 200 or 4xx with a sentence; and a valid request between them must stay right."""

import contextlib
import ctypes
import gzip
import json
import os
import pathlib
import zlib

import numpy as np

from control import publish
from coordinators import LOOKED_UP, OF_TABLES, STAGED, Coordinators
from harness import PROGRAM, Failure, expect, expect_equal
from lifecycle import expect_memory_returned
from serving import PATIENT, Admin
from updates import COLUMNS, ROWS, SPARE, TOKEN, World, keys
from v2 import HEADER_LENGTH, Client, Tensor, infer_body

ANY, HARMLESS = 0, 1
CAPACITY = 1 << 20
LENGTHS = ("0", "-1", "+5", " 7", "7 ", "abc", "", "1e1", "18446744073709551616", "0x10", "1,2")


class Library:
    """The functions of fuzz/trees.h."""

    def __init__(self):
        path = os.environ.get("REQUEST_TREES", pathlib.Path(PROGRAM).parent / "tests" / "fuzz" / "librequest_trees.so")
        self._change = ctypes.CDLL(str(path)).bag_tree_change
        self._change.restype = ctypes.c_size_t
        self._change.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint64]
        self._text = ctypes.create_string_buffer(CAPACITY)

    def change(self, text, kind, seed):
        self._text[:len(text)] = text
        return self._text[:self._change(self._text, len(text), CAPACITY, kind, seed)]


class Written:
    """In the place of a client: takes the request that would be sent."""

    def request(self, method, path, body, headers):
        self.method, self.path, self.body, self.headers = method, path, body, dict(headers)
        self.body = body.encode() if isinstance(body, str) else body
        return self

    def header(self):
        """Returns how many bytes of JSON there are."""
        return int(self.headers.get(HEADER_LENGTH, len(self.body)))


def is_json(text):
    try:
        json.loads(text.decode())
        return True
    except ValueError:
        return False


def without_warnings(reply):
    """The reply as it would be without members that are unknown."""
    header, raw = reply.header()
    parameters = header.get("parameters", {})
    of_bags = [text for text in parameters.pop("warnings", []) if "in no bag" in text]
    if of_bags:
        parameters["warnings"] = of_bags
    reply.header = lambda: (header, raw)
    return reply


class Trees(Coordinators):
    """One case. Everything follows from the seed."""

    library = Library()

    def __init__(self, seed, folder):
        super().__init__(seed, folder)
        self.options = [2 if before == "--loops" else word for before, word in zip([""] + self.options, self.options)]
        self.sent = None

    def run(self, requests):
        with contextlib.ExitStack() as stack:
            _, self.front, self.one = self.serve(stack)
            self._serve_live(stack)
            self.valid = [self._valid_request(client) for client in (self.front, self.one)]
            for number in range(requests):
                try:
                    self.rng.choice([self.ask_changed, self.update, self.control], p=[0.7, 0.2, 0.1])()
                    self._check_valid()
                except (Failure, OSError, EOFError, ValueError) as failure:
                    raise Failure(f"request {number}: {type(failure).__name__}: {failure}\n{self.sent}") from None
            self.check_memory()
            expect_memory_returned(self.live, 0)

    def _serve_live(self, stack):
        """A server whose rows and models change, and that nobody else is asked to compare with."""
        folder = self.folder / "live"
        (folder / "models").mkdir(parents=True)
        for version in (1, 2):
            publish(folder / "models", "t", version)
        world = World(folder)
        live = stack.enter_context(world.server(
            "--models", folder / "models", "--model-control", "explicit", "--admin-socket", folder / "admin",
            "--journal-sync", "off", "--loops", 2, *PATIENT))
        self.live = Client(live, headers={"Authorization": f"Bearer {TOKEN}"})
        self.admin = Admin(folder / "admin")

    def _valid_request(self, client):
        """A request that is answered, and that answer."""
        while True:
            request, written = self._next_request(), Written()
            request.send(written, f"/v2/models/{request.model}/infer", {})
            reply = client.request(written.method, written.path, written.body, written.headers)
            if reply.status == 200:
                return client, written, reply.body

    def _check_valid(self):
        for client, written, body in self.valid:
            reply = client.request(written.method, written.path, written.body, written.headers)
            expect_equal((reply.status, reply.body), (200, body), "a valid request")

    # ---- changes ----------------------------------------------------------------------------------
    def change(self, written, kind):
        """Changes the request's JSON, and mostly says its size."""
        rng, length = self.rng, written.header()
        text = old = written.body[:length]
        for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
            text = self.library.change(text, kind, int(rng.integers(2**63)))
        written.body = text + written.body[length:]
        if HEADER_LENGTH in written.headers:
            written.headers[HEADER_LENGTH] = str(len(text))
        if kind == ANY and rng.random() < 0.05:
            written.headers[HEADER_LENGTH] = str(rng.choice([*LENGTHS, str(rng.integers(2 * len(text) + 2))]))
            return None
        return text if text != old else None

    def send(self, client, written):
        """Returns the reply, which is 200 or an error in a sentence."""
        shown = {name: value for name, value in written.headers.items() if name != "Authorization"}
        self.sent = f"{written.method} {written.path} {shown}\n{written.body!r}"
        reply = client.request(written.method, written.path, written.body, written.headers)
        self.counts[reply.status] = self.counts.get(reply.status, 0) + 1
        is_begun = reply.status == 202 and written.path.startswith("/v2/repository/")  # "wait" became false
        if reply.status != 200 and not is_begun:
            is_late = reply.status in (503, 504) and b"timeout" in written.body
            is_full = reply.status == 507 and written.path.endswith("/rows")
            expect(400 <= reply.status < 500 or is_late or is_full, f"status {reply.status}: {reply.body[:300]!r}")
            expect(" " in reply.error(), f"no sentence: {reply.error()}")
        return reply

    # ---- inference --------------------------------------------------------------------------------
    def ask_changed(self):
        request, written = self._next_request(), Written()
        kind = HARMLESS if self.rng.random() < 0.25 else ANY
        coding, request.coding, request.accepts = request.coding, None, ""
        request.send(written, f"/v2/models/{request.model}/infer", {})
        text = self.change(written, kind)
        if coding:
            compress = (lambda body: gzip.compress(body, 1)) if coding == "gzip" else zlib.compress
            written.body, written.headers["Content-Encoding"] = compress(written.body), coding
        replies = []
        for request.of_front, client in ((False, self.one), (True, self.front)):
            replies.append(self.send(client, written))
            if kind == HARMLESS:
                request.check(without_warnings(replies[-1]) if replies[-1].status == 200 else replies[-1])
            elif text is not None and not is_json(text):
                expect_equal(replies[-1].status, 400, "the answer to what is no JSON")
        if kind == ANY:
            self._compare(request, *replies)

    def _compare(self, request, one, front):
        """The front answers as the one server does, but for what only it or its shards can know."""
        if one.status in (503, 504) or front.status in (503, 504):
            return
        if one.status == front.status == 200:
            got, want = (reply.outputs() for reply in (front, one))
            expect_equal([(t.name, t.datatype, t.array.shape) for t in got.values()],
                         [(t.name, t.datatype, t.array.shape) for t in want.values()], "outputs of the front")
            return
        words = [reply.error() if reply.status != 200 else "" for reply in (one, front)]
        if any(known in text for known in LOOKED_UP for text in words) or OF_TABLES in words[1]:
            return
        if STAGED in words[1]:
            expect(front.status == 400 and (one.status == 200 or "(max_reply_bytes)" in words[0]), f"{words}")
            return
        expect_equal((front.status, words[1]), (one.status, words[0]), "what the front says")

    # ---- rows and models --------------------------------------------------------------------------
    def update(self):
        rng, model = self.rng, str(self.rng.choice(["dense", "keyed", "half", "double", "int8", "both"]))
        count = int(rng.integers(0, 4))
        ids = rng.choice(keys(), count, replace=False) if model == "keyed" else rng.choice(ROWS, count, replace=False)
        inputs = [Tensor("keys" if model == "keyed" else "indices", ids)]
        parameters = {"sequence": int(rng.integers(1, 2**53))} if rng.random() < 0.1 else {}
        if model == "keyed" and rng.random() < 0.2:
            parameters["delete"] = True
        else:
            inputs.append(Tensor("rows", rng.standard_normal((count, COLUMNS)).astype(np.float32)))
        written, top = Written(), {"parameters": parameters} if parameters or rng.integers(2) else {}
        body, headers = infer_body(inputs, binary=bool(rng.integers(2)), **top)
        written.request("POST", f"/v2/models/{model}/rows", body, headers)
        self.change(written, ANY)
        self.send(self.admin, written)

    def control(self):
        rng, written = self.rng, Written()
        path, body = [
            ("models/t/load", {"parameters": {"version": "1"}, "wait": True}),
            ("models/t/unload", {"parameters": {"version": "2", "unload_dependents": False}}),
            ("load", {"models": [{"name": "t", "version": 2}, {"name": "t", "unload": True}], "wait": True}),
            ("index", {"ready": True})][rng.integers(4)]
        written.request("POST", f"/v2/repository/{path}", json.dumps(body), {})
        self.change(written, ANY)
        if self.send(self.admin, written).status in (200, 202):
            self.admin.load("t", 1 + int(rng.integers(2))).expect(200)
