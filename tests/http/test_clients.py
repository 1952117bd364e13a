"""The Python client against a server: its calls, their errors, asyncio, and the example that its
file shows.
"""

import asyncio
import inspect
import os
import socket
import subprocess
import threading
import typing

import numpy as np
import pytest

from clients import (  # noqa: F401
    BUSY, MODELS, Script, address, bc, connect, expect_raises, serve)
from example import EXAMPLE, check_rows
from harness import ROOT, TIMEOUT_S, Server, expect, expect_equal, together


# ---- calls ------------------------------------------------------------------------------------


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


def test_answers_may_be_changed(client):
    """Each has memory of its own."""
    rows = client.packed("items", [[0], [4]])
    rows += 1
    check_rows(rows, EXAMPLE[[0, 4]] + np.float32(1))
    check_rows(client.packed("items", [[0], [4]]), EXAMPLE[[0, 4]])

    async def work():
        async with bc.AsyncClient(f"{client._host}:{client._port}") as shared:
            rows = await shared.packed("items", [[0]])
            rows += 1
            check_rows(rows, EXAMPLE[[0]] + np.float32(1))
    asyncio.run(work())


def test_any_tensors(client):
    outputs = client.infer("items", {"indices": np.array([[0], [4]])}, request_id="7")
    expect_equal(list(outputs), ["embeddings"])
    check_rows(outputs["embeddings"], EXAMPLE[[0, 4]])


def test_asking_around(client):
    expect(client.is_ready() and client.is_ready("items"), "not ready")
    expect_equal(client.models(), ["items", "whole", "pair"])
    expect_equal(client.metadata("items", version=1)["outputs"][0]["shape"], [-1, 2])


def test_errors(client):
    problem = expect_raises(bc.BadRequest, lambda: client.packed("items", [[5]]), "indices", "5")
    expect_equal((problem.status, problem.code, problem.input, problem.position), (400, "bad_request", "indices", 0))
    expect_raises(bc.NotFound, lambda: client.packed("no body", [[0]]), "no body")
    expect_raises(bc.NotFound, lambda: client.packed("items", [[0]], version=9), "9")
    expect_raises(bc.TooLarge, lambda: client.packed("items", np.zeros((200000, 1), np.int64)), "max_body_bytes")
    check_rows(client.packed("items", [[0]]), EXAMPLE[[0]])


def test_bags(client):
    """Lists of lists, of arrays, and an array of two dimensions."""
    want = [EXAMPLE[0] + EXAMPLE[2], [0, 0], EXAMPLE[4]]
    for bags in ([[0, 2], [], [4]], [np.array([0, 2]), [], np.array([4], np.uint8)], ([0, 2], (), (4,))):
        check_rows(client.bags("items", bags), want)
    check_rows(client.bags("items", np.array([[0, 2], [1, 3]])), [EXAMPLE[0] + EXAMPLE[2], EXAMPLE[1] + EXAMPLE[3]])
    check_rows(client.bags("items", []), np.zeros((0, 2), np.float32))
    got = client.bags("items", [[0, 1], [], [2]], weights=[[1, 2], [], [0.5]], default_index=3)
    check_rows(got, [EXAMPLE[0] + EXAMPLE[1] * np.float32(2), EXAMPLE[3], EXAMPLE[2] * np.float32(0.5)])
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


FLOATS = ([[1.9]], [[1.0]], [[0, 2.0]], np.array([[1.0]]), np.zeros((1, 0)), [[True]], [["1"]], [[None]])


@pytest.mark.parametrize("ids", FLOATS, ids=str)
def test_floats_are_no_ids(ids):
    """Said before anything is sent: nobody listens there."""
    client = bc.Client("127.0.0.1:1", retries=0)
    calls = [lambda: client.packed("items", ids), lambda: client.bags("items", ids),
             lambda: client.infer("items", {"a.indices": ids}), lambda: client.collection("pair", {"a": ids}),
             lambda: client.offsets("items", np.ravel(ids), [0]), lambda: client.offsets("items", [0], np.ravel(ids)),
             lambda: client.segments("items", [0], np.ravel(ids)), lambda: client.kjt("pair", np.ravel(ids), [1]),
             lambda: client.kjt("pair", [1], lengths=np.ravel(ids))]
    for call in calls:
        expect_raises(TypeError, call, "integers")
    for number in (1.0, 1.5, True):
        expect_raises(TypeError, lambda number=number: client.packed(
            "items", [[0]], default_index=number), "default_index", "integers")


class Missing:
    """An array type of another library, as far as it is asked for what its numbers mean."""

    def __init__(self, numbers, dtype=None):
        self.numbers, self.dtype = numbers, dtype

    def __array__(self, dtype=None):
        return np.array(self.numbers, dtype)


class Nullable(Missing):
    """pandas, with a type of its own."""

    def isna(self):
        return np.array([number != number for number in self.numbers])


class Arrow(Missing):
    @property
    def null_count(self):
        return int(np.isnan(self.numbers).sum())


class Polars(Missing):
    def null_count(self):
        return int(np.isnan(self.numbers).sum())


class Quantity(Missing):
    """pint."""
    units = "metre"


class Measured(np.ndarray):
    """astropy, unyt, and whatever else derives from ndarray."""


MORE = {
    "a masked id": (np.ma.masked_array([1, 2], [False, True]), "masked"),
    "a masked id in a list": ([1, np.ma.masked], "masked"),
    "a masked array in a list": ([[1, 2], np.ma.masked_array([1, 2], [True, False])], "masked"),
    "objects": (np.array([1, np.ma.masked], object), "masked"),
    "pandas": (Nullable([1.0, np.nan], "Int64"), "missing"),
    "pandas in a list": ([Nullable([1.0, np.nan], "Int64")], "missing"),
    "Arrow": (Arrow([1.0, np.nan]), "missing"),
    "Polars": (Polars([1.0, np.nan]), "missing"),
    "pint": (Quantity([1, 2]), "'metre'"),
    "a class of arrays": (np.array([1, 2]).view(Measured), "Measured"),
}


@pytest.mark.parametrize("values, word", MORE.values(), ids=MORE)
def test_arrays_that_are_more_than_numbers(values, word):
    """Said before anything is sent: nobody listens there. What is dropped would be answered wrongly."""
    client = bc.Client("127.0.0.1:1", retries=0)
    calls = [lambda: client.packed("items", values), lambda: client.rows("items", values),
             lambda: client.infer("items", {"a.indices": values}), lambda: client.infer("items", {"other": values}),
             lambda: client.offsets("items", values, [0]), lambda: client.offsets("items", [0], values),
             lambda: client.offsets("items", [0, 1], [0], weights=values), lambda: client.segments("items", [0], values),
             lambda: client.kjt("pair", values, [1]), lambda: client.kjt("pair", [1], values),
             lambda: client.kjt("pair", [1], [1], stride_per_key=values), lambda: client.kjt("pair", [1], offsets=values),
             lambda: client.infer("items", {"weights": values}), lambda: client.update("items", values, indices=[0]),
             lambda: client.update("items", [[1, 2]], indices=values), lambda: client.delete("items", values),
             lambda: bc.BF16(values)]
    for call in calls:
        expect_raises(TypeError, call, word, "lost")


def test_masked_bags():
    client = bc.Client("127.0.0.1:1", retries=0)
    masked = np.ma.masked_array([[1, 2], [3, 4]], [[False, True], [False, False]])
    for call in (lambda: client.bags("items", masked), lambda: client.bags("items", list(masked)),
                 lambda: client.collection("pair", {"a": masked}), lambda: client.bags("items", [[1, 2]], masked[:1] * 1.0),
                 lambda: client.bags("items", [[1, 2], [3]], [masked[0] * 1.0, [1.0]])):
        expect_raises(TypeError, call, "masked", "lost")


def test_arrays_of_numbers_alone(client):
    """Classes of arrays whose numbers are all that they have."""
    for ids in (np.ma.masked_array([[0, 4]]), Missing([[0, 4]]), Nullable([[0, 4]], "Int64"),
                [np.ma.masked_array([0, 4])], [[np.int8(0), np.array(4)]]):
        check_rows(client.packed("items", ids), [EXAMPLE[0] + EXAMPLE[4]])
    for weights in (np.ma.masked_array([[1, 2]], dtype=np.float32), Missing([[1, 2]]), np.array([[1, 2]], object), [[True, 2]]):
        check_rows(client.packed("items", [[0, 4]], weights), [EXAMPLE[0] + EXAMPLE[4] * np.float32(2)])


@pytest.mark.parametrize("weights", ([1.0, None], ["1"], [np.datetime64("2020-01-01")], [1j], [object()]), ids=str)
def test_weights_are_numbers(weights):
    client = bc.Client("127.0.0.1:1", retries=0)
    expect_raises(TypeError, lambda: client.offsets("items", [0] * len(weights), [0], weights), "numbers")


def test_bits_are_integers():
    """Floats are not bits of bfloat16."""
    expect_raises(TypeError, lambda: bc.BF16([1.5]), "integers")
    expect_equal(bc.BF16([0x3f80, 65535]).bits.tolist(), [0x3f80, 65535])


def test_bags_that_are_none():
    client = bc.Client("127.0.0.1:1", retries=0)
    for bags, position, what in (([1, 2], 0, "int 1"), ([[1], np.int64(2)], 1, "int64 2"), (["12"], 0, "str '12'"),
                                 ({"a": [1]}, 0, "str 'a'")):
        for call in (lambda bags=bags: client.bags("items", bags), lambda bags=bags: client.collection("pair", {"a": bags})):
            expect_raises(TypeError, call, "list of bags", "[[1, 2], [3]]", f"position {position} has the {what}")


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
        def work(i):
            for _ in range(20):
                check_rows(shared.packed("items", [[i % 5]]), EXAMPLE[[i % 5]])

        together(work, 12)
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
        threads = [threading.Thread(target=serve), threading.Thread(target=lambda: got.append(client.models()))]
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
        async with bc.AsyncClient("127.0.0.1:1") as shared: pass
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
    for call in (lambda: client.metadata("items", version=1.0), lambda: client.packed("items", [[0]], version=1.9),
                 lambda: client.update("items", [[1, 2]], indices=[0], sequence=1.5)):
        expect_raises(TypeError, call, "float")
    expect_equal(client.metadata("items", version="1")["name"], "items")


# ---- asyncio ----------------------------------------------------------------------------------
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
        async def work(row=row): return await asyncio.gather(*(shared.packed("items", [[row]]) for _ in range(4)))
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

    async def work(): expect_equal(await bc.AsyncClient(script.address).models(), ["m"])
    asyncio.run(work())
    script.close()


def test_waiting_is_spread():
    """As long as the server says, and a random time on top, which grows up to a bound."""
    for attempt, most_s in ((1, 0.1), (2, 0.2), (4, 0.8), (20, 5.0)):
        waits = [bc._wait_s(attempt, {"Retry-After": "2"}) for _ in range(200)]
        expect(2 <= min(waits) and max(waits) <= 2 + most_s, (attempt, min(waits), max(waits)))
        expect(max(waits) - min(waits) > most_s / 2, "not spread")
    expect(bc._wait_s(1, {"Retry-After": "1000"}) <= 5.1, "bounded")


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
        expect_equal((done.stdout, done.stderr), ("(2, 64) float32 ['history', 'user', 'ad']\n", ""))
