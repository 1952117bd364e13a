"""The clients under proto/clients against a server: their calls, their errors, when they ask again,
and the examples that their files show.
"""

import asyncio
import contextlib
import importlib.util
import inspect
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import typing

import numpy as np
import pytest

from example import EXAMPLE, WANT, check_rows
from harness import ROOT, TIMEOUT_S, Failure, Server, expect, expect_equal, scratch, write_json

sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
import bagserve_client as bc  # noqa: E402

C_HEADER = ROOT / "proto" / "clients" / "c"


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


# ---- Python: calls ----------------------------------------------------------------------------
def test_offsets(client):
    check_rows(client.offsets("items", [0, 2, 3, 4], [0, 3]), WANT)
    check_rows(client.offsets("items", np.array([0, 2, 3, 4], np.int32), [0, 3], version=1), WANT)
    check_rows(client.offsets("items", [0, 2, 3, 4], [0, 3, 4], include_last_offset=True), WANT)
    check_rows(client.offsets("items", [], [0], default_index=1), EXAMPLE[[1]])
    weights = [1.0, 2.0, 0.5, 4.0]
    got = client.offsets("items", [0, 1, 2, 3], [0, 1, 2, 3], weights=weights)
    check_rows(got, EXAMPLE[:4] * np.array(weights, np.float32)[:, None])


def test_packed(client):
    check_rows(client.packed("items", [[0], [4]]), EXAMPLE[[0, 4]])
    check_rows(client.packed("items", np.zeros((3, 0), np.int64)), np.zeros((3, 2), np.float32))
    check_rows(client.packed("items", np.array([[0, 4], [1, 3]]).T, reduction="max"),
               np.maximum(EXAMPLE[[0, 4]], EXAMPLE[[1, 3]]))


def test_segments(client):
    got = client.segments("items", [0, 4], [0, 2], num_segments=4)
    check_rows(got, [EXAMPLE[0], [0, 0], EXAMPLE[4], [0, 0]])
    check_rows(client.segments("items", [0, 4], [0, 1]), EXAMPLE[[0, 4]])


def test_types(client):
    check_rows(client.packed("whole", [[1], [0]]), [2**62 + 1, -(2**63)])
    half = client.packed("items", [[0]], output_datatype="FP16")
    expect_equal((half.dtype, half.shape), (np.float16, (1, 2)))
    short = client.packed("items", [[2]], output_datatype="BF16")
    expect_equal(short.dtype, np.uint16)
    expect(np.allclose(bc.bf16_to_f32(short), EXAMPLE[[2]], rtol=0.01), "not bfloat16")
    big_endian = np.array([[0], [4]], ">i8")
    check_rows(client.packed("items", big_endian), EXAMPLE[[0, 4]])
    expect_raises(TypeError, lambda: client.packed("items", np.array([["a"]])), "integers")


def test_any_tensors(client):
    outputs = client.infer("items", {"indices": np.array([[0], [4]])}, request_id="7")
    expect_equal(list(outputs), ["embeddings"])
    check_rows(outputs["embeddings"], EXAMPLE[[0, 4]])


def test_collections(client):
    got = client.kjt("pair", [0, 2, 3, 4, 1], lengths=[1, 2, 2, 0])
    expect_equal(list(got), ["a", "b"])
    check_rows(got["a"], [EXAMPLE[0], (EXAMPLE[2] + EXAMPLE[3]) / np.float32(2)])
    check_rows(got["b"], [EXAMPLE[4] + EXAMPLE[1], [0, 0]])
    again = client.kjt("pair", [0, 2, 3, 4, 1], offsets=[0, 1, 3, 5, 5], outputs=["embeddings"])
    check_rows(again["embeddings"], np.concatenate([got["a"], got["b"]], axis=1))
    expect_raises(bc.BadRequest, lambda: client.kjt("pair", [0], [1, 0], weights=[1.0]), "'a'")
    named = client.infer("pair", {"b.indices": np.array([[4]])}, outputs=["b"])
    check_rows(named["b"], EXAMPLE[[4]])


def test_asking_around(client):
    expect(client.is_ready() and client.is_ready("items"), "not ready")
    expect_equal(client.models(), ["items", "whole", "pair"])
    expect_equal(client.metadata("items", version=1)["outputs"][0]["shape"], [-1, 2])


def test_errors(client):
    problem = expect_raises(bc.BadRequest, lambda: client.packed("items", [[5]]), "indices", "5")
    expect_equal(problem.status, 400)
    expect_raises(bc.NotFound, lambda: client.packed("no body", [[0]]), "no body")
    expect_raises(bc.NotFound, lambda: client.packed("items", [[0]], version=9), "9")
    expect_raises(bc.TooLarge, lambda: client.packed("items", np.zeros((200000, 1), np.int64)),
                  "max_body_bytes")
    check_rows(client.packed("items", [[0]]), EXAMPLE[[0]])


def test_bags(client):
    """Lists of lists, of arrays, and an array of two dimensions."""
    want = [EXAMPLE[0] + EXAMPLE[2], [0, 0], EXAMPLE[4]]
    for bags in ([[0, 2], [], [4]], [np.array([0, 2]), [], np.array([4], np.uint8)],
                 ([0, 2], (), (4,))):
        check_rows(client.bags("items", bags), want)
    check_rows(client.bags("items", np.array([[0, 2], [1, 3]])),
               [EXAMPLE[0] + EXAMPLE[2], EXAMPLE[1] + EXAMPLE[3]])
    check_rows(client.bags("items", []), np.zeros((0, 2), np.float32))
    got = client.bags("items", [[0, 1], [], [2]], weights=[[1, 2], [], [0.5]], default_index=3)
    check_rows(got, [EXAMPLE[0] + EXAMPLE[1] * np.float32(2), EXAMPLE[3],
                     EXAMPLE[2] * np.float32(0.5)])
    expect_raises(ValueError, lambda: client.bags("items", [[0], [1]], [[1.0], []]), "as long")
    expect_raises(TypeError, lambda: client.bags("items", np.array([0, 2])), "list of bags")
    expect_raises(TypeError, lambda: client.bags("items", [[[0, 1], [2, 3]]]), "list of bags")


def test_features_by_name(client):
    got = client.collection("pair", {"b": [[4, 1], []], "a": np.array([[2, 3], [0, 0], [1, 1]])},
                            weights={"b": [[2.0, 1.0], []]})
    expect_equal(list(got), ["a", "b"])  # the configured order
    check_rows(got["a"], [(EXAMPLE[2] + EXAMPLE[3]) / np.float32(2), EXAMPLE[0], EXAMPLE[1]])
    check_rows(got["b"], [EXAMPLE[4] * np.float32(2) + EXAMPLE[1], [0, 0]])
    expect_equal(list(client.collection("pair", {"b": [[1]]}, reduction="max")), ["b"])
    expect_raises(ValueError, lambda: client.collection("pair", {"a": [[1]]}, {"b": [[1]]}), "'b'")
    expect_equal([(f["name"], f["model"], f["rows"]) for f in client.features("pair")],
                 [("a", "items", 5), ("b", "items", 5)])


def test_explanations_and_statistics(client):
    rows, bags = client.packed("items", [[0, 2], [2, 2]], padding_idx=2, explain=True)
    check_rows(rows, [EXAMPLE[0], [0, 0]])
    expect_equal(bags, [{"rows": 1, "default": False, "padding": [1]},
                        {"rows": 0, "default": False, "padding": [2, 3]}])
    outputs = client.collection("pair", {"a": [[0]]}, explain=True, request_id="r")
    expect_equal(outputs.explain, {"a": [{"rows": 1, "default": False}]})
    expect_equal((outputs.request_id, outputs.model_version, outputs.warnings), ("r", "1", []))
    names = {s["name"] for s in client.statistics()}
    expect(names >= {"items", "pair"}, names)
    mine, = client.statistics("items")
    expect(mine["inference_stats"]["success"]["count"] > 0, mine)


FLOATS = ([[1.9]], [[1.0]], [[0, 2.0]], np.array([[1.0]]), np.zeros((1, 0)), [[True]], [["1"]],
          [[None]])


@pytest.mark.parametrize("ids", FLOATS, ids=str)
def test_floats_are_no_ids(ids):
    """Said before anything is sent: nobody listens there."""
    client = bc.Client("127.0.0.1:1", retries=0)
    calls = [lambda: client.packed("items", ids), lambda: client.bags("items", ids),
             lambda: client.infer("items", {"a.indices": ids}),
             lambda: client.collection("pair", {"a": ids}),
             lambda: client.offsets("items", np.ravel(ids), [0]),
             lambda: client.offsets("items", [0], np.ravel(ids)),
             lambda: client.segments("items", [0], np.ravel(ids)),
             lambda: client.kjt("pair", np.ravel(ids), [1]),
             lambda: client.kjt("pair", [1], lengths=np.ravel(ids))]
    for call in calls:
        expect_raises(TypeError, call, "integers")
    for number in (1.0, 1.5, True):
        expect_raises(TypeError, lambda number=number: client.packed(
            "items", [[0]], default_index=number), "default_index", "integers")


def test_unknown_options():
    client = bc.Client("127.0.0.1:1", retries=0)
    for call in (lambda: client.packed("items", [[0]], reducton="mean"),
                 lambda: client.kjt("pair", [0], [1], reducton="mean"),
                 lambda: client.infer("items", {"indices": [[0]]}, reducton="mean"),
                 lambda: client.collection("pair", {"a": [[0]]}, reducton="mean")):
        expect_raises(TypeError, call, "reducton", "did you mean 'reduction'")
    expect_raises(TypeError, lambda: bc.Client("127.0.0.1:1", retry=3), "retry")


def test_large_keys():
    """64 bits as they are, whatever the sign: the last one is -1."""
    for keys in ([2**63, 5, -1], np.array([2**63, 5, 2**64 - 1], np.uint64)):
        datatype, array = bc._ids(keys, "indices")
        expect_equal((datatype, array.tolist()), ("INT64", [-2**63, 5, -1]))


def test_many_threads(client):
    """One client for all of them, on as many connections as it may have."""
    with bc.Client(f"{client._host}:{client._port}", connections=3) as shared:
        results = [None] * 12

        def work(i):
            results[i] = all((shared.packed("items", [[i % 5]]) == EXAMPLE[[i % 5]]).all()
                             for _ in range(20))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        expect_equal(results, [True] * 12)
        expect(1 <= len(shared._idle) <= 3, len(shared._idle))


def test_closed():
    """A connection that is in use goes with its call; nothing can be asked afterwards."""
    started, go = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            peer, _ = listener.accept()
            with peer:
                peer.recv(10000)
                started.set()
                go.wait(TIMEOUT_S)
                peer.sendall(MODELS)
                expect_equal(peer.recv(100), b"", "after the answer")
                done.append(True)
        done, got = [], []
        client = bc.Client("127.0.0.1:%d" % listener.getsockname()[1])
        threads = [threading.Thread(target=serve),
                   threading.Thread(target=lambda: got.append(client.models()))]
        for thread in threads:
            thread.start()
        expect(started.wait(TIMEOUT_S), "the call did not begin")
        client.close()
        go.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
        expect_equal((got, done), ([["m"]], [True]))
        expect_raises(RuntimeError, client.models, "closed")
        client.close()

    async def work():
        async with bc.AsyncClient("127.0.0.1:1") as shared:
            pass
        with pytest.raises(RuntimeError, match="closed"):
            await shared.models()
    asyncio.run(work())


def test_fork(client):
    """A child has connections of its own: both ask at once, on one client, and get their own answers."""
    with bc.Client(f"{client._host}:{client._port}", connections=1) as shared:
        shared.packed("items", [[0]])
        held = shared._free.acquire(blocking=False)  # as if another thread were asking meanwhile
        expect(held, "a connection is in use")
        child = os.fork()
        if child:
            shared._free.release()
        rows = 1 if child else 4
        right = all((shared.packed("items", [[rows]]) == EXAMPLE[[rows]]).all() for _ in range(300))
        if not child:
            os._exit(0 if right else 1)
        _, status = os.waitpid(child, 0)
        expect(right, "the parent got another answer")
        expect_equal(os.waitstatus_to_exitcode(status), 0, "the child's exit code")


def test_hints():
    """Of the arguments of all public calls, and they can be resolved."""
    for kind in (bc.Client, bc.AsyncClient):
        for name, call in inspect.getmembers(kind, inspect.isfunction):
            if name == "__init__" or not name.startswith("_"):
                hints = typing.get_type_hints(call)
                for argument in inspect.signature(call).parameters:
                    expect(argument == "self" or argument in hints, f"{kind.__name__}.{name}: {argument}")


def test_whole_numbers(client):
    """Numbers that are not ids are not cut, either."""
    for call in (lambda: client.metadata("items", version=1.0),
                 lambda: client.packed("items", [[0]], version=1.9),
                 lambda: client.update("items", [[1, 2]], indices=[0], sequence=1.5)):
        expect_raises(TypeError, call, "float")
    expect_equal(client.metadata("items", version="1")["name"], "items")


# ---- Python: asyncio --------------------------------------------------------------------------
def test_async(client):
    async def work():
        async with bc.AsyncClient(f"{client._host}:{client._port}", connections=4) as shared:
            rows = await asyncio.gather(*(shared.packed("items", [[i % 5]]) for i in range(40)))
            for i, row in enumerate(rows):
                check_rows(row, EXAMPLE[[i % 5]])
            expect(1 <= len(shared._idle) <= 4, len(shared._idle))
            expect(await shared.is_ready("items"), "ready")
            expect_equal(await shared.models(), ["items", "whole", "pair"])
            expect_equal(list(await shared.collection("pair", {"a": [[0]]})), ["a"])
            _, bags = await shared.bags("items", [[0, 1]], explain=True)
            expect_equal(bags, [{"rows": 2, "default": False}])
            for kind, call in ((bc.BadRequest, lambda: shared.packed("items", [[5]])),
                               (bc.NotFound, lambda: shared.metadata("nobody"))):
                with pytest.raises(kind):
                    await call()
            with pytest.raises(TypeError):
                await shared.packed("items", [[1.0]])
            check_rows(await shared.packed("items", [[3]]), EXAMPLE[[3]])
    asyncio.run(work())


def test_async_in_several_loops(client):
    """One AsyncClient in one asyncio.run after the other."""
    shared = bc.AsyncClient(f"{client._host}:{client._port}", connections=1)
    for row in range(3):
        async def work(row=row):
            return await asyncio.gather(*(shared.packed("items", [[row]]) for _ in range(4)))
        for rows in asyncio.run(work()):
            check_rows(rows, EXAMPLE[[row]])


def test_async_connections():
    """Asked again when busy, and on a new connection where the kept one was closed meanwhile."""
    async def work(script):
        async with bc.AsyncClient(script.address, retries=2) as client:
            expect_equal(await client.models(), ["m"])
            expect_equal(await client.models(), ["m"])
    script = Script([BUSY, BUSY, MODELS], [MODELS])
    asyncio.run(work(script))
    script.close()
    expect_equal(script.requests, 4)

    async def silence(where):
        with pytest.raises(bc.ConnectionFailed, match="in time"):
            await bc.AsyncClient(where, timeout_s=0.2).models()
        with pytest.raises(bc.ConnectionFailed, match="connect"):
            await bc.AsyncClient("127.0.0.1:1", retries=1).models()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(silence("127.0.0.1:%d" % silent.getsockname()[1]))
    for text in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"nonsense\r\n\r\n"):
        script = Script([text])

        async def broken(where):
            with pytest.raises(bc.ConnectionFailed):
                await bc.AsyncClient(where, retries=0).models()
        asyncio.run(broken(script.address))
        script.close()


def test_async_chunks():
    """As a proxy may send an answer."""
    script = Script([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                     b'7;x\r\n{"model\r\n9\r\ns":["m"]}\r\n0\r\nA: b\r\n\r\n'])

    async def work():
        expect_equal(await bc.AsyncClient(script.address).models(), ["m"])
    asyncio.run(work())
    script.close()


def test_waiting_is_spread():
    """As long as the server says, and a random time on top, which grows up to a bound."""
    for attempt, most_s in ((1, 0.1), (2, 0.2), (4, 0.8), (20, 5.0)):
        waits = [bc._wait_s(attempt, {"Retry-After": "2"}) for _ in range(200)]
        expect(2 <= min(waits) and max(waits) <= 2 + most_s, (attempt, min(waits), max(waits)))
        expect(max(waits) - min(waits) > most_s / 2, "not spread")
    expect(bc._wait_s(1, {"Retry-After": "1000"}) <= 5.1, "bounded")


def test_installs(directory):
    """By pip, without a network, where Debian's pip and setuptools are installed."""
    source = directory / "source"
    shutil.copytree(ROOT / "proto" / "clients" / "python", source,
                    ignore=shutil.ignore_patterns("__pycache__"))
    pip = ["/usr/bin/python3", "-m", "pip"]
    if subprocess.run(pip + ["--version"], capture_output=True, check=False).returncode or \
            importlib.util.find_spec("setuptools") is None:
        pytest.skip("python3-pip and python3-setuptools are not installed")
    subprocess.run(pip + ["install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation",
                          "--target", directory / "site", source], check=True,
                   capture_output=True, timeout=TIMEOUT_S)
    done = subprocess.run(["/usr/bin/python3", "-c", "import bagserve_client as c; print("
                           "c.__file__, c.AsyncClient.__name__)"], capture_output=True, text=True,
                          check=True, cwd=directory,
                          env={"PYTHONPATH": str(directory / "site")})
    expect_equal(done.stdout, f"{directory}/site/bagserve_client.py AsyncClient\n")


# ---- Python: the connection -------------------------------------------------------------------
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


def test_one_connection():
    """Two calls on one connection, and a new one where the server has closed it meanwhile."""
    script = Script([MODELS, MODELS], [MODELS])
    with bc.Client(script.address, retries=0) as client:
        for _ in range(3):
            expect_equal(client.models(), ["m"])
    script.close()
    expect_equal(script.requests, 3)


def test_asks_again_when_busy():
    script = Script([BUSY, BUSY, MODELS])
    with bc.Client(script.address, retries=2) as client:
        expect_equal(client.models(), ["m"])
    script.close()
    expect_equal(script.requests, 3)


def test_gives_up():
    script = Script([BUSY, BUSY])
    with bc.Client(script.address, retries=1) as client:
        expect_equal(expect_raises(bc.Unavailable, client.models, "busy").status, 503)
    script.close()
    expect_equal(script.requests, 2)


def test_does_not_repeat_rejections():
    for status, kind in ((400, bc.BadRequest), (404, bc.NotFound), (413, bc.TooLarge),
                         (415, bc.BadRequest), (500, bc.ServerError)):
        script = Script([answer(status, {"error": "no"})])
        with bc.Client(script.address) as client:
            expect_raises(kind, client.models, "no")
        script.close()
        expect_equal(script.requests, 1)


def test_broken_answers():
    for text in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"nonsense\r\n\r\n"):
        script = Script([text])
        with bc.Client(script.address, retries=0) as client:
            expect_raises(bc.ConnectionFailed, client.models)
        script.close()


def test_nobody_listens():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = "127.0.0.1:%d" % unused.getsockname()[1]
        with bc.Client(nobody, retries=1) as client:
            expect_raises(bc.ConnectionFailed, client.models, "connect", nobody)


def test_addresses(client):
    """As a URL too, as the C client takes it."""
    plain = "%s:%d" % (client._host, client._port)
    for address_ in (plain, f"http://{plain}", f"http://{plain}/"):
        with bc.Client(address_) as other:
            expect(other.is_ready(), address_)
    for wrong in (f"ftp://{plain}", f"https://{plain}/v2", f"{plain}/v2", "a://http://b"):
        expect_raises(ValueError, lambda address_=wrong: bc.Client(address_), wrong, "HOST:PORT")


def test_time_out():
    """No answer: not asked again, because the work may be what took so long."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with bc.Client("127.0.0.1:%d" % silent.getsockname()[1], timeout_s=0.2) as client:
            expect_raises(bc.ConnectionFailed, client.models, "in time")
        silent.accept()[0].close()
        silent.settimeout(0)
        try:
            silent.accept()
        except BlockingIOError:
            return
        raise Failure("asked twice")


# ---- tokens and TLS ---------------------------------------------------------------------------
TOKEN, OTHER = "infer-0123456789abcdef", "read-0123456789abcdef"


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
        self.listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)),
                                            server_side=True)
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


@pytest.fixture(scope="module", name="guarded")
def serve_with_tokens(shared_directory):
    tokens = shared_directory / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"infer {TOKEN}\nread {OTHER}\n")
    with Server("--demo", "--token-file", tokens) as server:
        yield server


def test_tokens(guarded):
    ids, url = [[1, 2]], f"http://{address(guarded)}"
    with bc.Client(url, token=TOKEN) as client:
        expect_equal(client.packed("items", ids).shape, (1, 64))
        expect(client.is_ready(), "health needs no token")
        problem = expect_raises(bc.Unauthorized, client.models, "scope read")
        expect_equal(problem.status, 403)
    with bc.Client(url, token=OTHER) as client:
        expect("items" in client.models(), "read")
        expect_raises(bc.Unauthorized, lambda: client.packed("items", ids), "scope infer")
    for token in (None, TOKEN + "x"):
        with bc.Client(url, token=token) as client:
            problem = expect_raises(bc.Unauthorized, client.models, "token")
            expect_equal(problem.status, 401)


def test_updates(directory):
    tokens = directory / "tokens"
    tokens.touch(0o600)
    tokens.write_text("admin 0123456789abcdef\n")
    np.save(directory / "items.npy", EXAMPLE)
    (directory / "keyed").mkdir()
    np.save(directory / "keyed" / "keys.npy", np.arange(5, dtype=np.uint64) + 2**63)
    np.save(directory / "keyed" / "values.npy", EXAMPLE)
    with Server("--table", f"items={directory}/items.npy", "--table",
                f"keyed={directory}/keyed,spare_rows=1,missing=skip", "--updates", "on",
                "--token-file", tokens) as server, \
            bc.Client(address(server), token="0123456789abcdef") as client:
        got = client.update("items", [[1, 2], [3, 4]], indices=[4, 0], sequence=1)
        expect_equal((got["sequence"], got["applied"], got["rows"]), (1, True, 2))
        check_rows(client.packed("items", [[0], [4]]), [[3, 4], [1, 2]])
        got = client.update("items", [[9, 9]], indices=[0], sequence=1)
        expect_equal((got["sequence"], got["applied"], got["rows"]), (1, False, 0))
        expect_raises(bc.Conflict, lambda: client.update("items", [[9, 9]], indices=[0],
                                                         sequence=3), "is 3", "is 2")
        expect_raises(bc.BadRequest, lambda: client.update("items", [[9]], indices=[0]), "'rows'")
        expect_raises(ValueError, lambda: client.update("items", [[9, 9]]), "indices")
        new = np.array([7, 2**63], np.uint64)
        client.update("keyed", [[5, 6], [7, 8]], keys=new)
        check_rows(client.packed("keyed", new.reshape(-1, 1)), [[5, 6], [7, 8]])
        expect_raises(bc.StorageFull, lambda: client.update("keyed", [[0, 0]], keys=[8]), "spare")
        client.delete("keyed", new[:1])
        check_rows(client.packed("keyed", new.reshape(-1, 1)), [[0, 0], [7, 8]])


def test_tls(guarded, directory):
    with Proxy(guarded, directory) as proxy:
        context = ssl.create_default_context(cafile=proxy.certificate)
        with bc.Client(proxy.url + "/", token=TOKEN, ssl_context=context) as client:
            for _ in range(2):
                expect_equal(client.packed("items", [[1, 2]]).shape, (1, 64))
        with bc.Client(proxy.url, retries=0) as client:
            expect_raises(bc.ConnectionFailed, client.models, "certificate verify failed")

        async def ask():
            async with bc.AsyncClient(proxy.url, token=TOKEN, ssl_context=context) as client:
                for _ in range(2):
                    expect_equal((await client.packed("items", [[1, 2]])).shape, (1, 64))
            with pytest.raises(bc.ConnectionFailed, match="certificate verify failed"):
                await bc.AsyncClient(proxy.url, retries=0).models()
        asyncio.run(ask())


def test_python_example():
    """The lines at the top of the file, against the demo tables."""
    lines = bc.__doc__.split("\n\n")
    example = "\n".join(line[4:] for line in "\n\n".join(
        part for part in lines if part.startswith("    ")).splitlines())
    expect("from bagserve_client import Client" in example, example)
    with Server("--demo") as server:
        run = example.replace("127.0.0.1:8000", address(server)) + \
            "\nprint(rows.shape, rows.dtype, list(both))"
        done = subprocess.run(["/usr/bin/python3", "-c", run], capture_output=True, text=True,
                              check=False, timeout=TIMEOUT_S, env={
                                  "PYTHONPATH": str(ROOT / "proto" / "clients" / "python")})
        expect_equal((done.stdout, done.stderr),
                     ("(2, 64) float32 ['history', 'user', 'ad']\n", ""))


# ---- C ----------------------------------------------------------------------------------------
C_CALLS = r'''
static void show(struct bagserve_client *client, enum bagserve_result result,
                 const struct bagserve_rows *rows)
{
    printf("%d", (int)result);
    if (result != BAGSERVE_OK)
        printf(" %s", bagserve_error(client));
    for (size_t i = 0; result == BAGSERVE_OK && i < rows->count * rows->width; i++)
        printf(" %.9g", (double)rows->values[i]);
    printf("\n");
}

static void show_features(struct bagserve_client *client)
{
    const int64_t values[] = {0, 2, 3, 4, 1}, lengths[] = {1, 2, 2, 0};
    struct bagserve_output outputs[2];
    size_t count = 0;
    enum bagserve_result result =
        bagserve_kjt(client, "pair", values, 5, lengths, 4, NULL, outputs, 2, &count);
    for (size_t i = 0; i < count; i++) {
        printf("%s ", outputs[i].name);
        show(client, result, &outputs[i].rows);
    }
    result = bagserve_kjt(client, "pair", values, 5, lengths, 4, NULL, outputs, 1, &count);
    printf("%d %s\n", (int)result, bagserve_error(client));
}

int main(int argc, char *argv[])
{
    const int64_t indices[] = {0, 2, 3, 4}, offsets[] = {0, 3}, ids[] = {0, 0, 0, 2}, far[] = {9};
    const float weights[] = {1, 2, 0.5f, 4};
    struct bagserve_client *client = bagserve_open(argv[argc - 1], 20000);
    struct bagserve_rows rows;
    show(client, bagserve_offsets(client, "items", indices, 4, offsets, 2, NULL, &rows), &rows);
    show(client, bagserve_packed(client, "items", indices, 4, 1, weights, &rows), &rows);
    show(client, bagserve_segments(client, "items", indices, ids, 4, 3, NULL, &rows), &rows);
    show(client, bagserve_packed(client, "items", indices, 2, 0, NULL, &rows), &rows);
    show(client, bagserve_packed(client, "items", far, 1, 1, NULL, &rows), &rows);
    show(client, bagserve_packed(client, "no body", far, 1, 1, NULL, &rows), &rows);
    show(client, bagserve_packed(client, "whole", far, 1, 1, NULL, &rows), &rows);
    show_features(client);
    bagserve_close(client);
    client = bagserve_open("http://127.0.0.1:1", 20000);
    show(client, bagserve_packed(client, "items", far, 1, 1, NULL, &rows), &rows);
    bagserve_close(client);
    return 0;
}
'''


def compile_c(directory, text):
    """The program of a text that includes the header."""
    (directory / "program.c").write_text('#include "bagserve_client.h"\n' + text)
    flags = ["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O1", "-g",
             "-fsanitize=address,undefined", f"-I{C_HEADER}"]
    done = subprocess.run(["cc", *flags, "program.c", "-o", "program", "-lcurl"], cwd=directory,
                          capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    expect_equal((done.returncode, done.stderr), (0, ""), "the compiler")
    return directory / "program"


def test_c_calls(client):
    with scratch() as directory:
        program = compile_c(directory, C_CALLS)
        url = "http://%s:%d/" % (client._host, client._port)
        done = subprocess.run([program, url], capture_output=True, text=True, check=False,
                              timeout=TIMEOUT_S)
        expect_equal((done.returncode, done.stderr), (0, ""), "the C program")
        lines = done.stdout.splitlines()
    rows = np.array([0, 2, 3, 4])
    weighted = EXAMPLE[rows] * np.array([1, 2, 0.5, 4], np.float32)[:, None]
    for line, want in zip(lines, (WANT, weighted, [WANT[0], [0, 0], WANT[1]], np.zeros(4))):
        code, *numbers = line.split()
        expect_equal(code, "0", line)
        check_rows(np.array(numbers, np.float32), np.asarray(want, np.float32).ravel())
    rejected, features, unavailable = lines[4:7], lines[7:10], lines[10]
    for line, words in zip(rejected, ("'indices' at position 0 is 9", "no body", "output_datatype")):
        expect(line.startswith("3 ") and words in line, f"{line} lacks {words}")
    for line, name, want in ((features[0], "a", [EXAMPLE[0], (EXAMPLE[2] + EXAMPLE[3]) / 2]),
                             (features[1], "b", [EXAMPLE[4] + EXAMPLE[1], [0, 0]])):
        expect_equal(line.split()[:2], [name, "0"])
        check_rows(np.array(line.split()[2:], np.float32), np.asarray(want, np.float32).ravel())
    expect(features[2].startswith("5 ") and "room" in features[2], features[2])
    expect(unavailable.startswith("2 ") and "127.0.0.1 port 1 " in unavailable, unavailable)


C_TOKENS = r'''
static void ask(struct bagserve_client *client, const char *token)
{
    const int64_t ids[] = {1, 2};
    struct bagserve_rows rows;
    enum bagserve_result result = bagserve_set_token(client, token);
    if (result == BAGSERVE_OK)
        result = bagserve_packed(client, "items", ids, 1, 2, NULL, &rows);
    printf("%d %s\n", (int)result, bagserve_error(client));
}

int main(int argc, char *argv[])
{
    struct bagserve_client *client = bagserve_open(argv[argc - 2], 20000);
    if (argv[argc - 1][0])
        curl_easy_setopt(client->curl, CURLOPT_CAINFO, argv[argc - 1]);
    ask(client, "infer-0123456789abcdef");
    ask(client, "read-0123456789abcdef");
    ask(client, "a\r\nX: b");
    ask(client, NULL);
    bagserve_close(client);
    return 0;
}
'''


def test_c_tokens(guarded, directory):
    program = compile_c(directory, C_TOKENS)
    with Proxy(guarded, directory) as proxy:
        for url, authority in ((f"http://{address(guarded)}", ""),
                               (proxy.url, str(proxy.certificate))):
            done = subprocess.run([program, url, authority], capture_output=True, text=True,
                                  check=False, timeout=TIMEOUT_S)
            expect_equal((done.returncode, done.stderr), (0, ""), "the C program")
            lines = done.stdout.splitlines()
            for line, code, words in zip(lines, "0636", ("", "scope infer", "ASCII", "is needed"),
                                         strict=True):
                expect(line.startswith(code + " ") and words in line, f"{url}: {line}")
        done = subprocess.run([program, proxy.url, ""], capture_output=True, text=True, check=False,
                              timeout=TIMEOUT_S)
        expect(done.stdout.startswith("2 ") and "certificate" in done.stdout, done.stdout)


def test_c_example():
    """The lines at the top of the header, against the demo tables."""
    comment = (C_HEADER / "bagserve_client.h").read_text().partition("*/")[0]
    example = "\n".join(line[7:] for line in comment.splitlines() if line.startswith(" *     "))
    expect("bagserve_open" in example, example)
    with scratch() as directory, Server("--demo") as server:
        program = compile_c(directory, "int main(void)\n{\n" + example.replace(
            "127.0.0.1:8000", address(server)) + "\nreturn 0;\n}\n")
        done = subprocess.run([program], capture_output=True, text=True, check=False,
                              timeout=TIMEOUT_S)
    expect_equal((done.stdout, done.stderr), ("2 rows of 64\nhistory has 2 rows\n", ""))


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
