"""A front of shards that change: rows that each of them is sent, keys that come and go, and restarts meanwhile. Its
answers are those of one server that is sent the same."""

import contextlib

import numpy as np
import pytest

from harness import Server, expect_equal, wait_until, write_json
from shards import OF, ready
from updates import AUTHORIZED, TOKEN, update
from v2 import Client, Tensor

ROWS, COLUMNS = 60, 6
KEYS = np.arange(ROWS, dtype=np.int64) * 13 + 5


class Trio:
    """Three servers that take updates, with a journal each, one that has all, and a front without a token of its own."""

    def __init__(self, directory, stack, way, keyed, **rules):
        self.directory, self.stack = directory, stack
        np.save(directory / "v.npy", np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS))
        np.save(directory / "k.npy", KEYS)
        model = {"name": "items", "path": str(directory / "v.npy")} | rules
        if keyed:
            model |= {"keys": str(directory / "k.npy"), "spare_rows": 40}
        self.parts = [model | {"part": {"by": way, "index": index, "of": OF}} for index in range(OF)]
        (directory / "tokens").touch(0o600)
        (directory / "tokens").write_text(f"admin {TOKEN}\n")
        self.whole = self.serve("whole", model)
        self.servers = [self.serve(str(index), self.parts[index]) for index in range(OF)]
        config = write_json(directory / "front.json", {"models": [
            {"name": "items", "shards": [server.url for server in self.servers],
             "shard_token_file": str(directory / "tokens")}]})
        self.front = ready(stack.enter_context(Server("--config", config)))
        self.asked, self.compared = (stack.enter_context(Client(server, headers=AUTHORIZED))
                                     for server in (self.front, self.whole))

    def serve(self, name, model, port=0):
        config = write_json(self.directory / f"{name}.json", {"models": [model]})
        return self.stack.enter_context(Server(
            "--config", config, "--updates", "on", "--token-file", self.directory / "tokens",
            "--journal-dir", self.directory / f"journal-{name}", "--port", port))

    def send(self, ids, rows=None, **parameters):
        for server in [self.whole] + self.servers:
            with Client(server, headers=AUTHORIZED) as client:
                update(client, "items", ids, rows, **parameters).expect(200)

    def restart(self, index):
        self.servers[index].kill()
        self.servers[index] = self.serve(str(index), self.parts[index], self.servers[index].port)
        ready(self.front)

    def compare(self, ids, **parameters):
        inputs = [Tensor("indices", np.asarray(ids).reshape(-1, 2))]
        def equal():
            got, want = (client.infer("items", inputs, binary=True, parameters={"binary_data_output": True} | parameters)
                         for client in (self.asked, self.compared))
            return got.status == want.status and (got.json() == want.json() if got.status != 200 else
                                                  got.embeddings().tobytes() == want.embeddings().tobytes())
        wait_until(equal, f"other answers {parameters}", 10)


@pytest.mark.parametrize("way, keyed", [("rows", False), ("columns", False), ("keys", True), ("columns", True)])
def test_updates(directory, rng, way, keyed):
    rules = {"default_index": int(KEYS[3]) if keyed else 3} | ({"missing": "skip"} if keyed else {})
    with contextlib.ExitStack() as stack:
        trio = Trio(directory, stack, way, keyed, **rules)
        ids = KEYS.view(np.uint64) if keyed else np.arange(ROWS)
        every = ids.astype(np.int64)
        trio.compare(every)
        changed = rng.permutation(ids)[:30]
        trio.send(changed, rng.integers(-99, 99, (30, COLUMNS)))
        trio.compare(every)
        trio.restart(1)
        trio.compare(every)
        if not keyed:
            return
        added = np.arange(9000, 9010, dtype=np.uint64)
        trio.send(added, rng.integers(-99, 99, (10, COLUMNS)))
        everything = np.concatenate([every, added.astype(np.int64)])
        trio.compare(everything)
        trio.send(ids[4:10], delete=True)
        trio.send(added[:1], delete=True)
        for missing in ("skip", "error"):
            trio.compare(everything, missing=missing)
        trio.restart(2)
        trio.compare(everything)
        expect_equal(trio.asked.get("/v2/models/items").expect().json()["parameters"]["updates_through"], 0)
