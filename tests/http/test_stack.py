"""A small limit of stacks: each thread, main's included, has the stack that it needs all the same."""

import json

import numpy as np
import pytest

import harness
from harness import Server, expect, expect_equal, run
from v2 import Client, Raw, Tensor, head

KEYS = np.arange(5000, dtype=np.int64) * 3
VALUES = np.random.default_rng(5).standard_normal((5000, 32), np.float32)


@pytest.fixture(autouse=True, params=[32, 64, 256], ids=lambda kib: f"{kib} KiB")
def make_small_stack(request, directory, monkeypatch):
    """The program runs under that limit, which it cannot raise."""
    wrapper = directory / "bagserve"
    wrapper.write_text(f'#!/bin/sh\nulimit -s {request.param}\nexec {harness.PROGRAM} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(harness, "PROGRAM", str(wrapper))


def save(folder):
    folder.mkdir()
    np.save(folder / "keys.npy", KEYS)
    np.save(folder / "values.npy", VALUES)
    return folder


def test_commands(directory):
    table = save(directory / "t")
    for arguments in (["serve", "--check", "--table", f"t={table}"], ["inspect", table], ["verify", table],
                      ["convert", "--row-format", "int4", table, directory / "o.safetensors"],
                      ["serve", "--help"]):
        ended = run(*arguments)
        expect_equal(ended.returncode, 0, f"{arguments}: {ended.stderr}")
    expect_equal(run("serve", "--check", "--table", f"t={directory / 'no'}").returncode, 1)
    expect_equal(run("nonsense").returncode, 2)


def test_serving(directory):
    """Threads that load, pool, write and wait; deep JSON, and a body that is left unread."""
    with Server("--table", f"t={save(directory / 't')}", "--loops", "2", "--workers", "2",
                "--max-body-bytes", str(1 << 20)) as server:
        with Client(server) as client:
            rows = np.arange(5000) % 4999
            got = client.infer("t", [Tensor("indices", KEYS[rows][:, None])], binary=True).embeddings()
            expect_equal(got.tobytes(), VALUES[rows].tobytes())
            deep = "[" * 900 + "]" * 900
            body = f'{{"inputs": {deep}}}'.encode()
            expect_equal(client.request("POST", "/v2/models/t/infer", body).status, 400)
            listed = client.get("/v2/models/t").expect(200).json()
            expect_equal(listed["name"], "t", json.dumps(listed))
        with Raw(server) as raw:
            raw.send(head("POST", "/v2/models/t/infer", {"Content-Length": str(1 << 30)}) + b"x" * 60000)
            expect_equal(raw.reply().status, 413)
            raw.send(b"x" * 60000)  # which the lingering close drops
        with Client(server) as client:
            expect(client.get("/metrics").expect(200).body, "metrics")
