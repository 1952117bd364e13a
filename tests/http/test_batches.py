"""What forms a batch: one model's requests, as many bags as a batch may have, as many requests as
are worth waiting for.

All requests go to the one worker, and wait until as many are there as are preferred.
"""

import gzip
import re

import numpy as np
import pytest

from harness import Server, expect, expect_equal, has_openblas, served, wait_until, write_json
from v2 import Client, Raw, Tensor, head, infer_body

WAIT_US = 60_000_000  # longer than a reply is waited for: only the preferred number ends it
REPLY_S = 30
DIM = 6


def sample(text, name, model=None):
    """A number of /metrics: of one model, or of the server."""
    labels = rf'\{{[^}}]*model="{model}"[^}}]*\}}' if model else ""
    found = re.search(rf"^{name}{labels} (\S+)$", text, re.M)
    expect(found, f"no {name} of {model} in /metrics")
    return int(float(found[1]))


class Waiting:
    """A server whose queue waits for `preferred` requests, and those that were sent."""

    def __init__(self, config, preferred, *options):
        self.server = Server("--config", config, "--workers", 1, "--inline-work-microseconds", 0,
                             "--preferred-batch-size", preferred,
                             "--max-queue-delay-microseconds", WAIT_US, *options)
        self.raws = []

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *problem):
        for raw in self.raws:
            raw.close()
        self.server.__exit__(*problem)

    def send(self, model, rows, **top):
        """A bag of each row, in binary; returns the connection."""
        tensor = Tensor("indices", np.asarray(rows, np.int64).reshape(-1, 1))
        body, headers = infer_body([tensor], binary=True,
                                   **{"parameters": {"binary_data_output": True}} | top)
        return self.send_body(model, body, headers)

    def send_body(self, model, body, headers):
        raw = Raw(self.server, timeout_s=REPLY_S)
        self.raws.append(raw)
        raw.send(head("POST", f"/v2/models/{model}/infer", headers, body))
        return raw

    def metrics(self):
        with Client(self.server) as client:
            return client.get("/metrics").expect().body.decode()

    def queued(self):
        return sample(self.metrics(), "bagserve_queue_requests")

    def executions(self, model):
        return sample(self.metrics(), "nv_inference_exec_count", model)


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
        {"name": "a", "path": "a.npy"}, {"name": "b", "path": "b.npy"},
        {"name": "turned", "path": "a.npy", "projection": "turn.npy"},
        {"name": "spread", "path": "wide.npy", "projection": "spread.npy"}])})


def check_mixed(config, models, answers):
    """Requests of the models in turn wait together; each model's form a batch of their own."""
    order = [model for _ in range(3) for model in models]
    with Waiting(config, len(order)) as waiting:
        sent = [(model, waiting.send(model, [i % 20, 19 - i])) for i, model in enumerate(order)]
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
        "turned": tables["a"] @ tables["turn"], "spread": tables["wide"] @ tables["spread"],
        "a": tables["a"]})


def test_bags_of_a_batch(config, tables):
    """max_batch_bags is what a batch has at most; a larger request is one of its own."""
    for most, count, batches in ((2, 6, 3), (6, 6, 1), (5, 6, 2), (1, 6, 6), (0, 6, 1)):
        with Waiting(config, count, "--max-batch-bags", most) as waiting:
            for raw in [waiting.send("a", [i]) for i in range(count)]:
                raw.reply().expect(200)
            expect_equal(waiting.executions("a"), batches, f"max_batch_bags of {most}")
    with Waiting(config, 2, "--max-batch-bags", 3) as waiting:
        for raw in [waiting.send("a", range(7)) for _ in range(2)]:
            expect(np.array_equal(raw.reply().embeddings(), tables["a"][:7]), "a large request")


def test_preferred_size_is_exact(config):
    """One request fewer than preferred waits; with the last one all of them go, in one batch."""
    for preferred in (2, 4):
        with Waiting(config, preferred) as waiting:
            raws = [waiting.send("a", [i]) for i in range(preferred - 1)]
            wait_until(lambda: waiting.queued() + waiting.executions("a") >= preferred - 1,
                       "not all have come")
            expect_equal((waiting.queued(), waiting.executions("a")), (preferred - 1, 0))
            raws.append(waiting.send("a", [0]))
            for raw in raws:
                raw.reply().expect(200)
            expect_equal((waiting.queued(), waiting.executions("a")), (0, 1))


def test_own_timeout_after_decoding(config):
    """A request that a worker decodes has its own time-out checked there: nobody knew it before."""
    parameters = {"timeout": 1, "binary_data_output": True}
    for packed in (False, True):
        with Waiting(config, 2) as waiting:
            body, headers = infer_body([Tensor("indices", np.array([[1, 2]]))], binary=True,
                                       parameters=parameters)
            if packed:
                body, headers = gzip.compress(body), headers | {"Content-Encoding": "gzip"}
            late = waiting.send_body("a", body, headers)
            wait_until(lambda: waiting.queued() == 1, "it does not wait")
            in_time = waiting.send("a", [3])
            rejected = late.reply().expect(503)
            expect("past its timeout" in rejected.error(), rejected.error())
            in_time.reply().expect(200)
