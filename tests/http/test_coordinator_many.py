"""A front of many models: what it asks their shards when nothing changes, and when something does; and a model that
cannot change beside others that can."""

import contextlib
import itertools
import signal
from datetime import datetime

import numpy as np

from harness import Server, expect, expect_equal, wait_until, write_json
from shards import ask, ready
from v2 import Client

MANY = 40


def requests_of(server):
    """What was asked of a server that writes an access log: when, in seconds, and its path."""
    return [(datetime.fromisoformat(event["time"]).timestamp(), event["path"])
            for event in server.events() if "request" in event["event"].split()]


def only_stamps(requests):
    """Whether five seconds passed in which nobody asked for more than who the server is, and that once a second."""
    stamps = []
    for when, path in requests:
        stamps = [stamp for stamp in stamps if when - stamp < 8] + [when] if path == "/v2" else []
        if stamps and when - stamps[0] > 5 and len(stamps) <= when - stamps[0] + 2:
            return True
    return False


def test_asked_once_for_all(directory):
    """A shard is asked each second whether its models have changed, and for them when they have."""
    np.save(directory / "t.npy", np.ones((10, 4), np.float32))
    models = [{"name": f"t{i}", "path": str(directory / "t.npy")} for i in range(MANY)]
    config = write_json(directory / "shard.json", {"models": models})
    with Server("--config", config, "--access-log", "on", "--model-control", "poll") as shard:
        front = write_json(directory / "front.json",
                           {"models": [{"name": f"t{i}", "shards": [shard.url]} for i in range(MANY)]})
        with ready(Server("--config", front)), Client(shard) as client:
            wait_until(lambda: only_stamps(requests_of(shard)), "models are asked for again and again", 40)
            before = client.get("/v2").expect().json()
            expect_equal(client.get("/v2").expect().json(), before, "nothing has changed")
            write_json(config, {"models": models + [{"name": "more", "path": str(directory / "t.npy")}]})
            shard.send(signal.SIGHUP)
            wait_until(lambda: client.get("/v2/models/more/ready").status == 200, "the change is not made")
            changed = client.get("/v2").expect().json()
            expect_equal(changed["instance"], before["instance"])
            expect(changed["generation"] > before["generation"], f"{before} {changed}")
            known = len(requests_of(shard))

            def asked():
                return requests_of(shard)[known:]
            wait_until(lambda: any(path == f"/v2/models/t{MANY - 1}" for _, path in asked()),
                       "the models are not asked for", 40)
            stamps = list(itertools.takewhile(lambda request: request[1] == "/v2", asked()))
            rounds = sum(later[0] - earlier[0] > 0.5 for earlier, later in itertools.pairwise(stamps))
            expect(rounds <= 5, f"{asked()}")  # at once, and not when it would have been anyway


def test_one_cannot_change(directory):
    """A collection does not fit another version of a table: other models of shards get theirs all the same."""
    folder = directory / "models"

    def publish(version, **rows):
        for name, count in rows.items():
            (folder / name / str(version)).mkdir(parents=True)
            np.save(folder / name / str(version) / "table.npy", np.full((count, 4), version, np.float32))

    publish(1, a=100, b=100)
    with contextlib.ExitStack() as stack:
        shard = stack.enter_context(Server("--models", folder, "--model-control", "poll", "--poll-seconds", 0.2))
        front = write_json(directory / "front.json", {"models": [
            {"name": "a", "shards": [shard.url]}, {"name": "b", "shards": [shard.url]},
            {"name": "over_a", "features": [{"name": "x", "model": "a", "default_index": 99}]}]})
        client = stack.enter_context(Client(stack.enter_context(ready(Server("--config", front)))))

        def rows_of(model):
            reply = ask(client, [5], [0], model)
            return reply.embeddings()[0, 0] if reply.status == 200 else reply.status
        expect_equal([rows_of("a"), rows_of("b")], [1, 1])
        publish(2, a=50)
        wait_until(lambda: rows_of("a") == 503, "the shard has the version that it had", 40)
        publish(2, b=100)
        wait_until(lambda: rows_of("b") == 2, "the other model does not change", 40)
        expect_equal(rows_of("a"), 503)
