"""Projections: pooled rows times a matrix, against NumPy in float64.

Every element must be within (dim + 2) * 2^-24 of the exact one, times the sum of the magnitudes of
its products and its bias: what any order of adding in float32 keeps. Requests are sent one by one,
and by many clients at once, so that the server multiplies several requests together.
"""

import concurrent.futures

import numpy as np
import pytest

from harness import Failure, Server, expect, expect_equal, has_openblas, run, write_json
from v2 import Client, Tensor

F32 = np.float32
pytestmark = pytest.mark.skipif(not has_openblas(), reason="libopenblas0-pthread is not installed")
DIM, OUT = 24, 40


def make(rng, directory):
    """Tables and matrices on disk; the configuration and the arrays. tests/features draws tables of every type, features
    and outputs side by side."""
    arrays = {"table": rng.standard_normal((500, DIM)).astype(F32), "matrix": rng.standard_normal((DIM, OUT)).astype(F32),
              "bias": rng.standard_normal(OUT).astype(F32)}
    # A table of low rank: 16 numbers a row in place of 128.
    arrays["factor"] = rng.standard_normal((400, 16)).astype(F32)
    arrays["spread"] = rng.standard_normal((16, 128)).astype(F32)
    arrays["product"] = (arrays["factor"].astype(np.float64) @ arrays["spread"]).astype(F32)
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array)
    return write_json(directory / "config.json", {"models": [
        {"name": "table", "path": "table.npy", "projection": "matrix.npy", "bias": "bias.npy"},
        {"name": "low", "path": "factor.npy", "projection": "spread.npy"}, {"name": "whole", "path": "product.npy"}]}), arrays


def random_bags(rng, rows, count):
    lengths = rng.choice([0, 1, 2, 5, 20], count)
    return [rng.integers(0, rows, n) for n in lengths]


def pooled(table, bags):
    """In float64; the kernels' own rounding is in the bound, which is generous for it."""
    return np.array([table[b].astype(np.float64).sum(axis=0) for b in bags]).reshape(len(bags), table.shape[1])


def check_close(got, table, bags, matrix, bias):
    rows, matrix = pooled(table, bags), matrix.astype(np.float64)
    want, size = rows @ matrix + bias, np.abs(rows) @ np.abs(matrix) + np.abs(bias)
    # The pooled sums themselves were rounded, at most as often as they have rows.
    most = max([len(b) for b in bags] + [1])
    magnitudes = pooled(np.abs(table), bags) @ np.abs(matrix)
    bound = (matrix.shape[0] + 2) * 2**-24 * size + most * 2**-24 * magnitudes + 1e-30
    expect_equal(got.shape, want.shape)
    if not (np.abs(got.astype(np.float64) - want) <= bound).all():
        raise Failure(f"{(np.abs(got - want) / bound).max():.1f} times as far as may be")


def offsets_of(bags):
    lengths = np.array([len(b) for b in bags], np.int64)
    return [Tensor("indices", np.concatenate(bags + [[]]).astype(np.int64)),
            Tensor("offsets", np.cumsum(lengths) - lengths)]


def test_low_rank(client, arrays, rng):
    """A table of low rank answers as its product does: within 1e-5 of the largest number."""
    bags = random_bags(rng, 400, 50)
    low = client.infer("low", offsets_of(bags)).embeddings()
    whole = client.infer("whole", offsets_of(bags)).embeddings()
    expect_equal(low.shape, whole.shape)
    expect(np.abs(low - whole).max() <= 1e-5 * np.abs(whole).max(), "not close")


def test_cut(client, arrays, rng):
    """Large enough to be split over idle workers: pooled in parts, projected once."""
    bags = [rng.integers(0, 500, 2000) for _ in range(40)]
    for binary in (True, False):
        got = client.infer("table", offsets_of(bags), binary=True,
                           parameters={"binary_data_output": binary}).embeddings()
        check_close(got, arrays["table"], bags, arrays["matrix"], arrays["bias"])


def test_together(server, arrays, rng):
    """Clients at once, each with requests of its own, some of them wrong."""

    def ask(seed_of_client):
        own = np.random.default_rng(seed_of_client)
        with Client(server) as client:
            for number in range(30):
                bags = random_bags(own, 500, int(own.integers(1, 60)))
                if number % 10 == 9:
                    bags[0] = np.array([500])
                    client.infer("table", offsets_of(bags)).expect(400)
                    continue
                reply = client.infer("table", offsets_of(bags), binary=True,
                                     parameters={"binary_data_output": bool(number % 2)})
                check_close(reply.embeddings(), arrays["table"], bags, arrays["matrix"], arrays["bias"])

    with concurrent.futures.ThreadPoolExecutor(16) as executor:
        for done in [executor.submit(ask, int(s)) for s in rng.integers(0, 2**32, 16)]:
            done.result()


def test_rejected(directory):
    np.save(directory / "t.npy", np.ones((10, 4), F32))
    np.save(directory / "i.npy", np.ones((10, 4), np.int32))
    for name, array in (("m5", np.ones((5, 3), F32)), ("m1", np.ones(4, F32)),
                        ("m64", np.ones((4, 3))), ("m0", np.ones((4, 0), F32)),
                        ("m", np.ones((4, 3), F32)), ("b4", np.ones(4, F32))):
        np.save(directory / f"{name}.npy", array)

    def rejected(words, table="t.npy", features=None, **keys):
        models = [{"name": "t", "path": table} | ({} if features else keys)]
        if features:
            models.append({"name": "c", "features": [{"name": "f", "model": "t"} | keys]})
        done = run("serve", "--check", "--config", write_json(directory / "c.json", {"models": models}))
        expect(done.returncode != 0, f"{keys} was taken")
        for word in words:
            expect(word in done.stderr, f"{word!r} is not in {done.stderr!r}")

    rejected(["m5.npy", "[4, out]", "the first of 5"], projection="m5.npy")
    rejected(["m5.npy", "[4, out]"], features=True, projection="m5.npy")
    rejected(["m1.npy", "in 1 dimension,"], projection="m1.npy")
    rejected(["m64.npy", "FP64"], projection="m64.npy")
    rejected(["m0.npy"], projection="m0.npy")
    rejected(["b4.npy", "[3]", "the first of 4"], projection="m.npy", bias="b4.npy")
    rejected(["INT32"], table="i.npy", projection="m.npy")
    rejected(["none.npy"], projection="none.npy")
    rejected(["'bias' needs a 'projection'"], bias="b4.npy")


@pytest.fixture(scope="module", name="made")
def make_shared(shared_directory, rng):
    return make(rng, shared_directory)


@pytest.fixture(scope="module", name="arrays")
def arrays_of(made):
    return made[1]


@pytest.fixture(scope="module", name="server", params=[0, 1_000_000], ids=["worker", "inline"])
def serve(made, request):
    """All by a worker; all at once."""
    with Server("--config", made[0], "--inline-work-microseconds", request.param, "--workers", 2) as server:
        yield server
