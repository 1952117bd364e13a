"""Requests that a coordinator sends to its shards together: each gets what it gets alone, whatever the others ask for and
whatever becomes of them."""

import contextlib
import pathlib
import signal
import threading

import numpy as np
import pytest

from harness import Server, expect, expect_equal, scaled, wait_until, write_json
from shards import COLUMNS, ROWS, Between, front_of, make_tables, parts_of  # noqa: F401
from v2 import Client, Raw, Tensor, head, infer_body

CLIENTS = 40


def request_of(inputs, binary, **parameters):
    body, headers = infer_body(inputs, binary=binary, parameters={"binary_data_output": binary} | parameters)
    return head("POST", "/v2/models/items/infer", headers, body)


def random_request(rng, ids):
    """Of a few bags, in any form; one in sixty is wrong."""
    lengths = rng.integers(0, 5, rng.integers(1, 4))
    chosen = rng.choice(ids, lengths.sum())
    if rng.integers(60) == 0 and len(chosen):
        chosen[rng.integers(len(chosen))] = 7_000_001
    inputs = [Tensor("indices", chosen), Tensor("offsets", np.concatenate([[0], np.cumsum(lengths)])[:-1])]
    reduction = rng.choice(["sum", "mean", "max"])
    if reduction == "sum" and rng.integers(2):
        inputs.append(Tensor("per_sample_weights", rng.integers(-4, 5, len(chosen)).astype(rng.choice([np.float32, np.float64]))))
    more = {"timeout": int(rng.choice([4_000_000, 9_000_000]))} if rng.integers(3) == 0 else {}
    return request_of(inputs, bool(rng.integers(2)), reduction=str(reduction), **more)


def ask_alone(client, request):
    client.send(request)
    return client.reply()


def send_together(server, clients, requests):
    """The server sleeps until all requests have arrived."""
    server.send(signal.SIGSTOP)
    state = pathlib.Path(f"/proc/{server.process.pid}/stat")
    wait_until(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "T", "the server does not stop")
    for client, request in zip(clients, requests):
        client.send(request)
    server.send(signal.SIGCONT)


def ask_together(server, clients, requests):
    send_together(server, clients, requests)
    return [client.reply() for client in clients]


def content_of(reply):
    """All that must not differ; the blanks in front of binary tensors may."""
    if reply.status != 200:
        return reply.status, reply.json()
    return reply.status, [(name, tensor.array.dtype, tensor.array.shape, tensor.array.tobytes())
                          for name, tensor in reply.outputs().items()]


@pytest.mark.parametrize("way,loops", [("rows", 1), ("columns", 2), ("keys", 1)])
def test_random_requests(directory, tables, rng, way, loops):
    model = tables[way] | ({"missing": "error"} if way == "keys" else {})
    ids = np.load(tables[way]["keys"]) if way == "keys" else np.arange(ROWS)
    config = write_json(directory / "one.json", {"models": [{"name": "items"} | model]})
    with parts_of(directory, model, way) as servers, Server("--config", config) as one, \
            front_of(directory, [server.url for server in servers], options=("--loops", loops)) as front, \
            Client(front) as counting, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Raw(front)) for _ in range(CLIENTS)]
        compared = stack.enter_context(Raw(one))

        def asked():
            return sum(counting.counted("bagserve_shard_requests_total", shard=server.url, outcome="ok") for server in servers)

        sent = {"alone": 0, "together": 0}
        for _ in range(scaled(20)):
            requests = [random_request(rng, ids) for _ in range(CLIENTS)]
            want = [content_of(ask_alone(compared, request)) for request in requests]
            for how in sent:
                before = asked()
                replies = ask_together(front, clients, requests) if how == "together" else \
                    [ask_alone(clients[0], request) for request in requests]
                sent[how] += asked() - before
                for number, reply in enumerate(replies):
                    expect_equal(content_of(reply), want[number], (how, requests[number]))
        expect(sent["together"] < sent["alone"], sent)


def test_a_connection_that_ends(directory, tables):
    """A shard's connection ends before the reply to several requests: each is sent again by itself."""
    cut = []

    def spoil(connection, answer):
        if f'"shape":[1,{COLUMNS}]'.encode() in answer:
            return connection.sendall(answer) is None
        cut.append(answer)
        return False

    values = np.load(tables["rows"]["path"])
    with parts_of(directory, tables["rows"], "rows", 1) as [server], Between(server) as between, \
            front_of(directory, [between.url], options=("--loops", 1)) as front, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Raw(front)) for _ in range(CLIENTS)]
        requests = [request_of([Tensor("indices", np.array([[number]]))], True) for number in range(CLIENTS)]
        between.spoil = spoil

        def has_cut():
            for number, reply in enumerate(ask_together(front, clients, requests)):
                expect_equal(reply.expect().embeddings().tobytes(), values[number].tobytes(), number)
            return len(cut) > 3
        wait_until(has_cut, "no requests are sent together")


def test_a_shard_that_is_late(directory, tables):
    """Requests wait for the shards of their own ids, whatever those wait for that they are sent with."""
    values = np.load(tables["rows"]["path"])
    may_answer = threading.Event()

    def hold(connection, answer):
        return may_answer.wait() and connection.sendall(answer) is None

    with parts_of(directory, tables["rows"], "rows", 2) as [server, late], Between(late) as between, \
            front_of(directory, [server.url, between.url], options=("--loops", 1, "--shard-timeout-ms", 60_000)) as front, \
            contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Raw(front)) for _ in range(CLIENTS)]
        ids = [[number] if number % 2 else [number, ROWS - 1 - number] for number in range(CLIENTS)]
        between.spoil = hold
        send_together(front, clients, [request_of([Tensor("indices", np.array([one]).T)], True) for one in ids])
        for number in range(1, CLIENTS, 2):
            expect_equal(clients[number].reply().expect().embeddings().tobytes(), values[ids[number]].tobytes(), number)
        may_answer.set()
        for number in range(0, CLIENTS, 2):
            expect_equal(clients[number].reply().expect().embeddings().tobytes(), values[ids[number]].tobytes(), number)
