"""`bagserve bench` run against a server of known tables, its report, and servers that are not bagserve."""

import contextlib
import http.server
import json
import threading

import numpy as np
import pytest

from harness import Server, expect_equal, run

SHORT = ["--requests", 300, "--warmup", 0, "--duration", 60]  # the requests end it


@pytest.fixture(scope="module", name="tables")
def make_tables(tmp_path_factory):
    """Files of the tables that `server` serves."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(1)
    (folder / "users").mkdir()
    np.save(folder / "items.npy", rng.standard_normal((1000, 8)).astype(np.float32))
    np.save(folder / "halves.npy", rng.standard_normal((50, 3)).astype(np.float16))
    np.save(folder / "users" / "values.npy", rng.standard_normal((200, 4)).astype(np.float32))
    np.save(folder / "users" / "keys.npy", rng.permutation(np.arange(-100, 100)) * 10**15)
    (folder / "bagserve.json").write_text(json.dumps({"models": [
        {"name": "items", "path": "items.npy", "padding_idx": 7},
        {"name": "means", "path": "items.npy", "reduction": "mean", "weighted_mean": True},
        {"name": "halves", "path": "halves.npy", "reduction": "max"},
        {"name": "users", "path": "users"},
        {"name": "all", "features": [{"name": "user", "model": "users"}, {"name": "item", "model": "items"}]}]}))
    return folder


@pytest.fixture(scope="module", name="server")
def start_server(tables):
    with Server("--config", tables / "bagserve.json") as server:
        yield server


def bench(url, *arguments, code=0):
    """The report."""
    ended = run("bench", "--report", "-", *arguments, url)
    expect_equal(ended.returncode, code, ended.stderr)
    return json.loads(ended.stdout) if ended.stdout else ended.stderr


def bench_model(server, model, *arguments, code=0):
    ended = run("bench", "--report", "-", *arguments, server.url, model)
    expect_equal(ended.returncode, code, ended.stderr)
    return json.loads(ended.stdout) if ended.stdout else ended.stderr


def only(report):
    expect_equal(len(report["runs"]), 1)
    return report["runs"][0]


# ---- servers of other makers ----------------------------------------------------------------------

def foreign_metadata(rows=None):
    integers = {"datatype": "INT64", "shape": [-1]}
    return {"name": "t", "versions": ["1"], "platform": "python",
            "inputs": [{"name": "indices", **integers}, {"name": "offsets", **integers}],
            "outputs": [{"name": "embeddings", "datatype": "FP32", "shape": [-1, 2]}],
            **({"parameters": {"rows": rows}} if rows else {})}


class Foreign(http.server.BaseHTTPRequestHandler):
    """Triton's way: no GET /v2/models, an index of the repository, metadata without rows."""

    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True  # which waits 40 ms between a head and its body
    metadata = "/v2/models/t", foreign_metadata()
    answers = 10**9  # before it closes connections without an answer
    lock = threading.Lock()

    def answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path, metadata = self.metadata
        if self.path == path:
            self.answer(200, metadata)
        else:
            self.answer(404, {"error": "no"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v2/repository/index":
            self.answer(200, [{"name": "t", "version": "1", "state": "READY"}])
        else:
            self.infer(body)

    def infer(self, _):
        with self.lock:
            type(self).answers -= 1
            left = self.answers
        if left < 0:
            self.close_connection = True
        elif left % 4 == 0:
            self.answer(503, {"error": "come back later"})
        else:
            self.answer(200, {"outputs": []})

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def foreign(handler):
    class Listener(http.server.ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, 128

        def handle_error(self, *_):
            pass

    with Listener(("127.0.0.1", 0), handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_port}"
        finally:
            listener.shutdown()
            thread.join()
