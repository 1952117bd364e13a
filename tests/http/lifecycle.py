"""What tests of a server's life share: one small table, saved and asked for; all connections that a server has
descriptors for; and the memory that requests hold."""

import resource

import numpy as np

from harness import Failure, expect, wait_until
from v2 import Raw, Tensor, head

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


def save(path, table=TABLE, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, table, **options)
    return path


def check_table(client, table=TABLE, model="items", **options):
    """Asks for all four rows of a model, one a bag."""
    indices = Tensor("indices", np.arange(4).reshape(4, 1))
    got = client.infer(model, [indices], **options).embeddings()
    expect(np.array_equal(got, table), f"{model}: {got} instead of {table}")


def fill(server, stack):
    """Connections until the server has no descriptor for another one, each with half a request; and one that waits
    to be accepted, with a whole one."""
    most = server.descriptors() + 8
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, most))
    raws = []
    while True:
        before = server.descriptors()
        raw = stack.enter_context(Raw(server))
        if before == most:
            raw.send(head("GET", "/v2/health/live"))
            return raws, raw
        wait_until(lambda count=before: server.descriptors() > count, "it is not accepted")
        raw.send(head("GET", "/v2/health/live")[:-2])
        raws.append(raw)


def memory_of_requests(client):
    return int(client.counted("bagserve_memory_bytes"))


def expect_memory_returned(client, before):
    """No request is in flight, and the server holds as much memory for requests as before the first one."""
    try:
        wait_until(lambda: memory_of_requests(client) == before, "memory of requests is not returned", 20)
    except Failure:
        held = memory_of_requests(client)
        raise Failure(f"without a request the server holds {held} bytes for requests, and {before} before") from None
