"""Clients that vanish, in every stage of a request and with FIN or RST, leave nothing behind:
descriptors and resident memory are afterwards what they were.

A longer run: tests/run-one http/test_vanish.py --clients 10000
"""

import itertools
import socket
import struct

import numpy as np

from harness import SANITIZED, Server, expect, scaled, wait_until
from lifecycle import TABLE, check_table, save
from v2 import Client, Raw, Tensor, head, infer_body

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST

# The largest difference in memory. Free lists keep the blocks that were in use at the same time. Twelve KiB left behind by
# each of 1000 clients would be more.
SLACK_BYTES = 12 << 20


def requests():
    """(bytes to send, whether to read a piece of the reply) for each stage to vanish in. The long
    reply is larger than what is kept for reuse."""

    def infer(count, bags):
        tensors = [Tensor("indices", np.ones((bags, count // bags), np.int64))]
        body, headers = infer_body(tensors, binary=True, parameters={"binary_data_output": True})
        return head("POST", "/v2/models/wide/infer", headers, body)

    small, large, long = infer(4, 2), infer(20_000, 10), infer(17_000, 17_000)
    return [(b"", False), (small[:10], False), (small[:60], False), (small[:-3], False),
            (small, False), (large[:len(large) // 2], False), (large, False), (long, True),
            (head("POST", "/v2/models/wide/infer", {"Transfer-Encoding": "chunked"}) + b"ff\r\n{", False)]


def vanish(server, data, reads, resets):
    raw = Raw(server)
    raw.send(data)
    if reads:
        raw.socket.recv(100)
    if resets:
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    raw.close()


def vanish_often(server, client, clients):
    """All of it again and again; another client keeps the server from falling behind: buffers that
    are in use at once are kept for reuse, and would look like growth."""
    stages = list(itertools.product(requests(), (False, True)))
    for i in range(clients):
        (data, reads), resets = stages[i % len(stages)]
        vanish(server, data, reads, resets)
        if i % len(stages) == 0:
            check_table(client, table=TABLE)


def test_nothing_is_left(directory, pytestconfig):
    clients = pytestconfig.getoption("clients") or scaled(1000, 100)
    small = save(directory / "items.npy")
    wide = save(directory / "wide.npy", np.ones((4, 256), np.float32))
    with Server("--table", f"items={small}", "--table", f"wide={wide}") as server, \
            Client(server) as client:
        check_table(client)
        descriptors = server.descriptors()
        vanish_often(server, client, max(clients // 5, 100))  # what is kept for reuse is there now
        wait_until(lambda: check_table(client) or server.descriptors() == descriptors, "descriptors are left")
        before = server.memory_bytes()
        vanish_often(server, client, clients)
        wait_until(lambda: check_table(client) or server.descriptors() == descriptors, "descriptors are left")
        after = server.memory_bytes()
        print(f"{clients} clients vanished: {descriptors} descriptors before and after, "
              f"{before >> 10} KiB resident before, {after >> 10} KiB after")
        expect(SANITIZED or after - before <= SLACK_BYTES, "memory has grown")
