"""Edges that ordinary requests and configurations do not touch."""

import os

import numpy as np
import pytest

from harness import Server, expect, expect_equal, has_openblas, run, wait_until, write_json
from v2 import Client, Tensor

F32 = np.float32


# ---- unsorted segments -----------------------------------------------------------------------------

def pool(rows, ids, segments, weights, count):
    """The sums of weighted rows, which are whole numbers."""
    sums = np.zeros((count, rows.shape[1]), F32)
    np.add.at(sums, segments, rows[ids] * weights[:, None])
    return sums


@pytest.mark.parametrize("bags", [300, 65_537, 70_000])
def test_unsorted_segments(directory, rng, bags):
    """Each weight goes with its entry, and segments are sorted by all of their bytes."""
    rows = rng.integers(-9, 9, (50, 2)).astype(F32)
    np.save(directory / "t.npy", rows)
    config = write_json(directory / "c.json", {"models": [{"name": "t", "path": "t.npy", "unsorted_segments": True}]})
    ids, weights = rng.integers(0, 50, 5000), rng.integers(1, 1000, 5000).astype(F32)
    segments = rng.integers(0, bags, 5000)
    segments[:6] = [bags - 1, 0, 65_536 % bags, 256, 255, 0]
    tensors = [Tensor("indices", ids), Tensor("segment_ids", segments),
               Tensor("num_segments", np.array(bags)), Tensor("per_sample_weights", weights)]
    with Server("--config", config) as server, Client(server) as client:
        got = client.infer("t", tensors, binary=True).embeddings()
    expect(np.array_equal(got, pool(rows, ids, segments, weights, bags)), "sums differ")


# ---- keys ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [np.uint64, np.int64])
@pytest.mark.parametrize("binary", [True, False])
def test_keys_that_differ_in_their_upper_half(directory, dtype, binary):
    keys = np.array([5 + (high << 32) for high in (0, 1, 2, 2 ** 20, 2 ** 31 - 1)], dtype)
    if dtype == np.uint64:
        keys = np.concatenate([keys, keys + np.uint64(2 ** 63)])
    values = np.arange(len(keys), dtype=F32)[:, None]
    (directory / "t").mkdir()
    np.save(directory / "t/keys.npy", keys)
    np.save(directory / "t/values.npy", values)
    with Server("--table", f"t={directory / 't'},missing=skip") as server, Client(server) as client:
        got = client.infer("t", [Tensor("indices", keys[:, None])], binary=binary).embeddings()
        expect_equal(np.asarray(got).reshape(-1).tolist(), values.reshape(-1).tolist())
        absent = keys[:, None] + dtype(1 << 40)
        got = client.infer("t", [Tensor("indices", absent)], binary=binary).embeddings()
        expect(not np.asarray(got).any(), "keys that the table does not have")


# ---- numbers of versions ---------------------------------------------------------------------------

def test_largest_version(directory):
    """2^53 - 1 is the largest that JSON holds exactly."""
    np.save(directory / "t.npy", np.ones((2, 2), F32))
    for version, code in ((2 ** 53 - 1, 0), (2 ** 53, 1), (2 ** 53 + 1, 1)):
        config = write_json(directory / "c.json", {"models": [
            {"name": "t", "path": "t.npy", "version": str(version)}]})
        ended = run("serve", "--check", "--config", config)
        expect_equal(ended.returncode, code, f"{version}: {ended.stderr}")
        expect(not code or "from 1 to 9007199254740991" in ended.stderr, ended.stderr)
        folder = directory / f"models{version}/t/{version}"
        folder.mkdir(parents=True)
        np.save(folder / "t.npy", np.ones((2, 2), F32))
        ended = run("serve", "--check", "--models", directory / f"models{version}")
        expect_equal(ended.returncode, code, f"folder {version}: {ended.stderr}")


@pytest.mark.parametrize("policy, good", [("latest 2", True), ("latest 2 3", False), ("latest", False),
                                          ("latest 0", False), ("specific 1 3", True), ("specific", False)])
def test_texts_of_policies(directory, policy, good):
    """One number follows latest, and one or more specific."""
    np.save(directory / "t.npy", np.ones((2, 2), F32))
    ended = run("serve", "--check", "--table", f"t={directory / 't.npy'},version_policy={policy}")
    expect_equal(ended.returncode, 0 if good else 2, ended.stderr)
    expect(good or "version_policy" in ended.stderr, ended.stderr)


# ---- memory ----------------------------------------------------------------------------------------

@pytest.mark.skipif(not has_openblas(), reason="libopenblas0-pthread is not installed")
def test_memory_of_a_projection_without_its_row(directory):
    """A row of a mapped table that is missing ends a request after its pooled rows have memory."""
    np.save(directory / "t.npy", np.ones((40_000, 48), F32))
    np.save(directory / "eye.npy", np.eye(48, dtype=F32))
    config = write_json(directory / "c.json", {"models": [{"name": "t", "path": "t.npy", "projection": "eye.npy"}]})
    with Server("--config", config, "--load", "map", "--workers", "2") as server, Client(server) as client:
        def held():
            return int(client.metrics()["bagserve_memory_bytes"])

        ids = Tensor("indices", np.full((20_000, 10), 39_999))  # so many that workers share them
        client.infer("t", [Tensor("indices", 0 * ids.array)], binary=True).expect(200)
        before = held()
        os.truncate(directory / "t.npy", 4096)
        for _ in range(20):
            client.infer("t", [ids], binary=True).expect(500)
        wait_until(lambda: held() <= before, f"{held()} bytes are held, {before} before")
