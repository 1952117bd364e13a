"""Several I/O loops: every one of them answers, alike, and the counters are their sum."""

import concurrent.futures
import contextlib
import os
import pathlib
import re
import select

import numpy as np

from harness import Server, expect, expect_equal, run, scaled, wait_until
from held import TASKS_PER_WORKER, held_workers
from lifecycle import TABLE, check_table, save
from v2 import Client, Raw, Tensor, head, infer_body

LOOPS = 3


def thread_times(server):
    """Clock ticks that each thread has used, by its number."""
    tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
    return {task: sum(map(int, (tasks / task / "stat").read_text().rsplit(")")[1].split()[11:13]))
            for task in os.listdir(tasks)}


def metric(client, name):
    text = client.get("/metrics").body.decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


def ask_often(server, count):
    """Opens a connection for a few requests each."""
    for _ in range(count):
        with Client(server) as client:
            for _ in range(5):
                check_table(client)
            expensive = client.infer("items", [Tensor("indices", np.ones((1, 50_000), np.int64))],
                                binary=True)
            expect(np.array_equal(expensive.embeddings(), 50_000 * TABLE[1:2]), "an expensive one")
            client.request("POST", "/v2/models/items/infer", b"{").expect(400)


def test_answers_and_sums(directory):
    path = save(directory / "items.npy")
    clients, count = 8, scaled(20, 4)
    with Server("--table", f"items={path}", "--loops", LOOPS, "--workers", 2) as server, \
            Client(server) as client:
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            for result in [pool.submit(ask_often, server, count) for _ in range(clients)]:
                result.result()
        expect_equal(metric(client, "nv_inference_request_success"), clients * count * 6.0)
        expect_equal(metric(client, "nv_inference_request_failure"), clients * count * 1.0)
        statistics = client.get("/v2/models/items/stats").json()["model_stats"][0]
        expect_equal(statistics["inference_stats"]["success"]["count"], clients * count * 6)
        expect_equal(metric(client, "bagserve_queue_requests"), 0.0)


def test_all_loops_work(directory):
    """Whoever comes first accepts; in the long run every loop does."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--loops", LOOPS, "--workers", 1) as server:
        def busy():
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                for result in [pool.submit(ask_often, server, 10) for _ in range(8)]:
                    result.result()
            return sum(ticks > 0 for ticks in thread_times(server).values()) >= LOOPS + 1

        wait_until(busy, "not all of the loops and the worker have done something")


def test_limit_of_connections_is_shared(directory):
    """The limit is the process's, whichever loop has the connections."""
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}", "--loops", LOOPS, "--max-connections", 10) as server:
        clients = [Client(server) for _ in range(10)]
        for client in clients:
            client.get("/v2/health/live").expect(200)
        with Client(server) as surplus:
            expect_equal(surplus.get("/v2/health/live").status, 503)
        clients.pop().close()

        def has_room():
            with Client(server) as again:
                return again.get("/v2/health/live").status == 200

        wait_until(has_room, "no connection after one has closed")
        for client in clients:
            client.close()


def test_queue_limits_are_shared(directory):
    """The limit is that of all loops' queues together."""
    path = save(directory / "items.npy")
    loops, limit = 2, 4
    handed_out = loops * TASKS_PER_WORKER  # at most; these do not wait
    with Server("--table", f"items={path}", "--loops", loops, "--workers", 1, "--max-queue-size",
                limit, "--inline-work-us", 0) as server, contextlib.ExitStack() as stack:
        body, headers = infer_body([Tensor("indices", np.ones((1, 1), np.int64))], binary=True)
        stack.enter_context(held_workers(server))
        raws = [stack.enter_context(Raw(server)) for _ in range(32)]
        for raw in raws:
            raw.send(head("POST", "/v2/models/items/infer", headers, body))

        def told():
            return [raw for raw in raws if select.select([raw.socket], [], [], 0)[0]]

        # Loops that are asked at once may each take the last place, and each has room for one of
        # who fills the queue by way of others.
        wait_until(lambda: len(told()) >= len(raws) - limit - 2 * loops - handed_out,
                   "too many wait")
        for raw in told():
            reply = raw.reply()
            expect("queue is full" in reply.expect(503).error(), reply)
            expect(f"(max_queue_size) is {limit}" in reply.error(), reply.error())


def test_rejects_other_numbers(directory):
    path = save(directory / "items.npy")
    for text in ("0", "257", "two"):
        result = run("serve", "--check", "--table", f"items={path}", "--loops", text)
        expect_equal(result.returncode, 1, f"--loops {text}")
        expect("loops" in result.stderr, result.stderr)
