"""Bodies of any length, however their bytes come: long ones are received in larger pieces than the
library's memory, short ones and ends of long ones through it. Every id makes a row of its own, so
that a byte out of its place is seen.
"""

import numpy as np
import pytest

from example import i64
from harness import Server, expect_equal
from v2 import Client, Raw, head, infer_body

TABLE = np.arange(2000, dtype=np.float32).reshape(1000, 2)
INFER = "/v2/models/rows/infer"
# Around what the library has room for at once (half of 16 KiB) and what is received at once.
COUNTS = [1, 900, 1000, 1010, 1024, 1100, 2000, 3000, 4000, 4090, 4100, 5000, 5120, 9000, 20000, 50000]


@pytest.fixture(name="server", scope="module")
def start(shared_directory):
    np.save(shared_directory / "rows.npy", TABLE)
    with Server("--table", f"rows={shared_directory}/rows.npy", "--request-timeout-s", 20) as server:
        yield server


def make(rng, count):
    """A request for that many rows, and those."""
    ids = rng.integers(0, len(TABLE), count)
    body, headers = infer_body([i64("indices", ids, (count, 1))], binary=True,
                               parameters={"binary_data_output": True})
    return head("POST", INFER, headers, body), TABLE[ids]


def check(raw, want):
    got = raw.reply().embeddings()
    expect_equal(got.shape, want.shape)
    expect_equal(np.flatnonzero((got != want).any(axis=1))[:5].tolist(), [], "wrong rows")


def send_split(raw, data, rng, most):
    """In pieces, of which the server sees some apart."""
    while data:
        bytes_now = int(rng.integers(1, most + 1))
        raw.send(data[:bytes_now])
        data = data[bytes_now:]


@pytest.mark.parametrize("count", COUNTS)
def test_lengths(server, rng, count):
    with Raw(server) as raw:
        for more in range(3):
            request, want = make(rng, count + more)
            raw.send(request)
            check(raw, want)


@pytest.mark.parametrize("most", [700, 9000, 40000, 200000])
def test_pieces(server, rng, most):
    with Raw(server) as raw:
        for count in (3000, 9000, 30000):
            request, want = make(rng, count)
            send_split(raw, request, rng, most)
            check(raw, want)


@pytest.mark.parametrize("most", [9000, 1 << 30])
def test_one_behind_the_other(server, rng, most):
    """Requests that a client sends without waiting: what is behind a body is not part of it."""
    with Raw(server) as raw:
        requests = [make(rng, int(count)) for count in rng.choice(COUNTS[:-2], 12)]
        send_split(raw, b"".join(request for request, _ in requests), rng, most)
        for _, want in requests:
            check(raw, want)


def test_nonsense_behind_a_body(server, rng):
    with Raw(server) as raw:
        request, want = make(rng, 20000)
        raw.send(request + b"nonsense\r\n\r\n")
        check(raw, want)
        expect_equal(raw.at_end(), True)


def test_end_within_a_body(server, rng):
    """Clients that leave cost nobody else anything."""
    for share in (0.1, 0.5, 0.9, 0.999):
        request, _ = make(rng, 20000)
        with Raw(server) as raw:
            raw.send(request[:int(len(request) * share)])
    with Raw(server) as raw:
        request, want = make(rng, 20000)
        raw.send(request)
        check(raw, want)


def test_byte_order_mark(directory):
    """Editors and PowerShell on Windows begin UTF-8 with one: it is no part of a body, a configuration or settings."""
    folder = directory / "models" / "t" / "1"
    folder.mkdir(parents=True)
    np.save(folder / "table.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    (folder / "config.json").write_text('\ufeff{"reduction": "mean"}', encoding="utf-8")
    (directory / "c.json").write_text('\ufeff{"models_dir": "models"}', encoding="utf-8")
    body = '{"inputs": [{"name": "indices", "datatype": "INT64", "shape": [1, 2], "data": [0, 2]}]}'
    with Server("--config", directory / "c.json") as server, Client(server) as client:
        for text in (body, "\ufeff" + body):
            reply = client.request("POST", "/v2/models/t/infer", text.encode()).expect()
            expect_equal(reply.json()["outputs"][0]["data"], [2, 3])
        for wrong in (("\ufeff\ufeff" + body).encode(), body.encode("utf-16"), body[:1].encode() + "\ufeff".encode()):
            client.request("POST", "/v2/models/t/infer", wrong).expect(400)
