"""What forms a batch: the requests of one model that wait. All go to the one worker, which is held
until they are there."""

import contextlib
import gzip

import numpy as np
import pytest

from harness import Server, expect, expect_equal, has_openblas, served, write_json
from held import held_workers, occupy, wait_until_read
from v2 import Client, Raw, Tensor, head, infer_body

REPLY_S = 30
DIM = 6


class Waiting:
    """A server whose only worker is held and has enough to do: further requests wait."""

    def __init__(self, config):
        self._stack = contextlib.ExitStack()
        self._config = config
        self.raws = []

    def __enter__(self):
        self.server = self._stack.enter_context(
            Server("--config", self._config, "--workers", 1, "--inline-work-us", 0))
        self._held = self._stack.enter_context(contextlib.ExitStack())
        self._held.enter_context(held_workers(self.server))
        occupy(self.server, lambda: self.send("first", [0]))
        return self

    def release(self):
        """All that was sent waits; the worker begins."""
        wait_until_read(self.server, self.raws)
        self._held.close()

    def __exit__(self, *problem):
        for raw in self.raws:
            raw.close()
        self._stack.__exit__(*problem)

    def send(self, model, rows, **top):
        """A bag of each row, in binary; returns the connection."""
        tensor = Tensor("indices", np.asarray(rows, np.int64).reshape(-1, 1))
        body, headers = infer_body([tensor], binary=True, **{"parameters": {"binary_data_output": True}} | top)
        return self.send_body(model, body, headers)

    def send_body(self, model, body, headers):
        raw = Raw(self.server, timeout_s=REPLY_S)
        self.raws.append(raw)
        raw.send(head("POST", f"/v2/models/{model}/infer", headers, body))
        return raw

    def executions(self, model):
        with Client(self.server) as client:
            return client.counted("nv_inference_exec_count", model=model)


@pytest.fixture(scope="module", name="tables")
def make_tables():
    rng = np.random.default_rng(7)
    tables = {name: rng.integers(-50, 50, (20, DIM)).astype(np.float32) for name in "ab"}
    tables["wide"] = rng.integers(-50, 50, (20, 50 * DIM)).astype(np.float32)
    tables["turn"] = np.eye(DIM, dtype=np.float32)[::-1]
    tables["spread"] = np.tile(2 * np.eye(50 * DIM, dtype=np.float32), 3)
    return tables


@pytest.fixture(scope="module", name="config")
def make_config(shared_directory, tables):
    for name, table in tables.items():
        np.save(shared_directory / f"{name}.npy", table)
    return write_json(shared_directory / "config.json", {"models": served([
        {"name": "first", "path": "a.npy"}, {"name": "a", "path": "a.npy"}, {"name": "b", "path": "b.npy"},
        {"name": "turned", "path": "a.npy", "projection": "turn.npy"},
        {"name": "spread", "path": "wide.npy", "projection": "spread.npy"}])})


def check_mixed(config, models, answers):
    """Requests of the models in turn wait together; each model's form a batch of their own."""
    order = [model for _ in range(3) for model in models]
    with Waiting(config) as waiting:
        sent = [(model, waiting.send(model, [i % 20, 19 - i])) for i, model in enumerate(order)]
        waiting.release()
        for i, (model, raw) in enumerate(sent):
            got = raw.reply().embeddings()
            want = answers[model][[i % 20, 19 - i]]
            expect(np.array_equal(got, want), f"request {i} of {model}: {got} instead of {want}")
        expect_equal([waiting.executions(model) for model in models], [1] * len(models))


def test_models_are_not_mixed(config, tables):
    check_mixed(config, ["a", "b"], tables)


@pytest.mark.skipif(not has_openblas(), reason="libopenblas0-pthread is not installed")
def test_projections_are_not_mixed(config, tables):
    """Whoever mixes these writes a wide model's rows into memory for a narrow one's."""
    check_mixed(config, ["turned", "spread", "a"], {
        "turned": tables["a"] @ tables["turn"], "spread": tables["wide"] @ tables["spread"], "a": tables["a"]})


def test_own_timeout_after_decoding(config):
    """A request that a worker decodes has its own time-out checked there: nobody knew it before."""
    parameters = {"timeout": 1, "binary_data_output": True}
    for packed in (False, True):
        with Waiting(config) as waiting:
            body, headers = infer_body([Tensor("indices", np.array([[1, 2]]))], binary=True, parameters=parameters)
            if packed:
                body, headers = gzip.compress(body), headers | {"Content-Encoding": "gzip"}
            late = waiting.send_body("a", body, headers)
            in_time = waiting.send("a", [3])
            waiting.release()
            rejected = late.reply().expect(503)
            expect("past its timeout" in rejected.error(), rejected.error())
            in_time.reply().expect(200)
