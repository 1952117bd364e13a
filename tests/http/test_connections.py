"""Connections and sizes: keep-alive, pipelining, chunks, many at once, clients that leave; and what
curl and python3-requests make of the server.
"""

import contextlib
import json
import signal
import socket
import subprocess

import numpy as np
import pytest
import requests

from example import BODY, EXAMPLE, INFER, INPUTS, WANT, check_rows, i64
from harness import Server, expect, expect_equal, reads_chunks, scaled, together, wait_until
from v2 import Client, Raw, Tensor, head, infer_body


# ---- connections ------------------------------------------------------------------------------


def test_pipelining(client):
    """Several requests in one segment are answered in their order."""
    names = [f"p{i}" for i in range(10)]
    with Raw(client.server) as raw:
        raw.send(b"".join(head("POST", INFER, body=infer_body(INPUTS, id=name)[0])
                          for name in names) + head("GET", "/v2/health/live"))
        for name in names:
            expect_equal(raw.reply().expect().json()["id"], name)
        expect_equal(raw.reply().expect().json(), {"live": True})


def test_pipelining_behind_an_error(client):
    with Raw(client.server) as raw:
        raw.send(head("POST", INFER, body=b"{}") + head("POST", INFER, body=BODY))
        raw.reply().expect(400)
        check_rows(raw.reply().embeddings(), WANT)


def test_connection_close(client):
    for version, headers in (("1.1", {"Connection": "close"}), ("1.0", {})):
        with Raw(client.server) as raw:
            raw.send(head("POST", INFER, headers, BODY, version))
            check_rows(raw.reply().embeddings(), WANT)
            expect(raw.at_end(), f"HTTP/{version} {headers}: still open")


def test_chunked_body(client):
    body, headers = infer_body(INPUTS, binary=["indices"])
    for size in (1, 7, len(body)):
        chunks = [body[i:i + size] for i in range(0, len(body), size)] + [b""]
        framed = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks)
        with Raw(client.server) as raw:
            raw.send(head("POST", INFER, headers | {"Transfer-Encoding": "chunked"}, framed))
            reply = raw.reply()
            if reads_chunks():
                check_rows(reply.embeddings(), WANT)
            else:
                expect("libmicrohttpd 0" in reply.expect(411).error(), reply.error())
            expect_equal(reply.headers["connection"], "close")


def test_expect_continue(client):
    headers = {"Expect": "100-continue", "Content-Length": str(len(BODY))}
    with Raw(client.server) as raw:
        raw.send(head("POST", INFER, headers))
        expect_equal(raw.reply().status, 100)
        raw.send(BODY)
        check_rows(raw.reply().embeddings(), WANT)


def test_client_that_leaves(client):
    """Half a request, or a whole one whose answer nobody reads, costs the others nothing; nor does
    one that a worker is busy with."""
    client.get("/v2").expect(200)
    before = client.server.descriptors()
    request = head("POST", INFER, body=BODY)
    body, headers = infer_body(large_tensors(300_000), binary=True)
    large = head("POST", "/v2/models/ones/infer", headers, body)
    for sent in (request, request[:-20], request[:30], b"", request * 20, large, large[:-1]) * 5:
        with Raw(client.server) as raw:
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1] + [0] * 7))
            raw.send(sent)
        check_rows(client.request("POST", INFER, BODY).embeddings(), WANT)
    wait_until(lambda: client.get("/v2").expect(200) and client.server.descriptors() <= before,
               "descriptors of clients that left are open")


def test_many_connections(client):
    """Counts around the event loop's batch of 128, all ready at once."""
    for count in (127, 128, 129, 256, 512):
        raws = [Raw(client.server) for _ in range(count)]
        try:
            for _ in range(3):
                for raw in raws:
                    raw.send(head("POST", INFER, body=BODY))
                for raw in raws:
                    check_rows(raw.reply().embeddings(), WANT)
        finally:
            for raw in raws:
                raw.close()


@contextlib.contextmanager
def paused(server):
    """What is sent in the meantime is all there when the server goes on."""
    server.send(signal.SIGSTOP)
    try:
        yield
    finally:
        server.send(signal.SIGCONT)


def burst(client, raws, turn):
    """One request on each at once: to each its own reply, with errors and HEAD in between."""
    names = [f"{turn}.{number}" for number in range(len(raws))]
    with paused(client.server):
        for number, raw in enumerate(raws):
            if number % 5 == 3:
                raw.send(head("HEAD", "/v2/health/live"))
            else:
                body = infer_body(INPUTS, id=names[number])[0] if number % 5 else b"{}"
                raw.send(head("POST", INFER, body=body))
    for number, raw in enumerate(raws):
        reply = raw.reply("HEAD" if number % 5 == 3 else "POST")
        expect_equal(reply.status, 200 if number % 5 else 400, names[number])
        if number % 5 not in (0, 3):
            expect_equal(reply.json()["id"], names[number])
            check_rows(reply.embeddings(), WANT)


def test_replies_of_a_burst(client):
    """Where 8 to 64 requests are at hand all are worked on before any reply goes out; one client
    leaves before its own does."""
    for count in (7, 8, 9, 63, 64, 65):
        with contextlib.ExitStack() as stack:
            raws = [stack.enter_context(Raw(client.server)) for _ in range(count)]
            for turn in range(3):
                burst(client, raws, turn)
            leaver = raws.pop()
            leaver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1] + [0] * 7))
            leaver.send(head("POST", INFER, body=BODY))
            leaver.close()
            burst(client, raws, 3)


def large_tensors(count):
    rng = np.random.default_rng(count)
    return [Tensor("indices", rng.integers(0, 5, count, np.int32)), i64("offsets", [0, count // 3])]


def check_large(client, count, **options):
    tensors = large_tensors(count)
    rows = tensors[0].array
    want = [len(rows[:count // 3]), len(rows[count // 3:])]
    got = client.infer("ones", tensors, **options).embeddings()
    check_rows(got, np.array(want, np.float32).reshape(2, 1))


def test_large_requests(client):
    """Work that is handed to other threads, in both encodings, up to a body near the limit."""
    for count in (1000, 100_000, 1_000_000):
        check_large(client, count)
        check_large(client, count, binary=True)
    check_large(client, scaled(16_000_000), binary=True)


def test_large_reply(client):
    count = scaled(1_000_000)
    reply = client.infer("ones", [Tensor("indices", np.zeros((count, 1), np.int32))], binary=True,
                         parameters={"binary_data_output": True})
    check_rows(reply.embeddings(), np.ones((count, 1), np.float32))


def test_small_and_large_at_once(client):
    """Answers go to whom they belong, whether computed on the loop's thread or elsewhere."""
    def ask(which):
        with Client(client.server) as own:
            for number in range(scaled(100, at_least=20)):
                if which % 2:
                    check_large(own, 30_000 + 300 * which + 3 * number, binary=True)
                else:
                    row = (which + number) % 5
                    got = own.infer("items", [i64("indices", [[row]])], id=f"{which}.{number}")
                    check_rows(got.embeddings(), EXAMPLE[[row]])
                    expect_equal(got.json()["id"], f"{which}.{number}")

    together(ask, 8)


# ---- real clients -----------------------------------------------------------------------------
def test_curl(client):
    url = client.server.url + INFER
    done = subprocess.run(["curl", "-sS", "--max-time", "20", url, "-d", "@-"], input=BODY,
                          capture_output=True, check=False)
    expect_equal((done.returncode, done.stderr), (0, b""))
    check_rows(np.array(json.loads(done.stdout)["outputs"][0]["data"], np.float32), WANT.ravel())
    done = subprocess.run(["curl", "-sS", "--max-time", "20", "-o", "/dev/null", "-w",
                           "%{http_code} %{size_upload}", url, "-H", "Content-Type:",
                           "--data-binary", "@-"], input=b" " * 2**26 + b"x", capture_output=True, check=False)
    expect_equal(done.stdout, b"413 0", "curl with a body over the limit")


def test_requests(client):
    url = client.server.url
    with requests.Session() as session:
        session.trust_env = False
        answer = session.post(url + INFER, json=json.loads(BODY), timeout=20)
        check_rows(np.array(answer.json()["outputs"][0]["data"], np.float32), WANT.ravel())
        answer = session.post(url + "/v2/models/nobody/infer", json={}, timeout=20)
        expect_equal((answer.status_code, list(answer.json())), (404, ["code", "error"]))
        expect_equal(session.get(url + "/v2/health/ready", timeout=20).json()["ready"], True)


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    np.save(shared_directory / "items.npy", EXAMPLE)
    np.save(shared_directory / "ones.npy", np.ones((5, 1), np.float32))
    with Server("--models", shared_directory) as server:
        yield server
