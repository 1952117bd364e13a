"""Random requests of every form against a 1,000,000 x 64 table, compared with NumPy.

All bits must be equal (but a zero of either sign is a zero). The seed is printed; a failure prints
the request's number and how it was made.
"""

from fractions import Fraction

import numpy as np
import pytest

import oracle
from harness import Failure, Server, scaled, write_json
from v2 import Tensor

ROWS = scaled(1_000_000, at_least=1000)
DIM = 64
REQUESTS = scaled(3_000)
REDUCTIONS = ("sum", "mean", "max", "sqrtn")
BAG_LENGTHS = (0, 0, 1, 1, 2, 3, 7, 8, 15, 16, 17, 40)


class Request:
    """One random request and what is needed to compute its answer."""

    def __init__(self, rng, number):
        self.form = ("offsets", "packed", "segments")[number % 3]
        self.reduction = str(rng.choice(REDUCTIONS))
        self.binary_in = bool(rng.integers(2))
        self.binary_out = bool(rng.integers(2))
        self.index_types = rng.choice([np.int32, np.int64], 4)
        padded = rng.integers(4) == 0
        # Small ids make hits on the padding row likely; the others reach the whole table.
        self.rows = int(rng.choice([4, 1000, ROWS]))
        self.padding_idx = int(rng.integers(-self.rows, self.rows)) if padded else None
        if self.padding_idx is not None and self.padding_idx < 0:
            self.padding_idx = self.padding_idx % self.rows - ROWS
        self.default_index = int(rng.integers(-1, ROWS)) if rng.integers(3) == 0 else None
        self.include_last_offset = self.form == "offsets" and bool(rng.integers(2))
        self.inputs = getattr(self, "_" + self.form)(rng)
        self._add_weights(rng)
        if self.default_index is not None:
            shape = [] if rng.integers(2) else [1]
            self.inputs.append(Tensor("default_index", np.full(
                shape, self.default_index, self.index_types[2])))
        order = rng.permutation(len(self.inputs))
        self.inputs = [self.inputs[i] for i in order]

    def _indices(self, rng, shape):
        return rng.integers(0, self.rows, shape).astype(self.index_types[0])

    def _lengths(self, rng):
        return rng.choice(BAG_LENGTHS, rng.integers(0, 9))

    def _offsets(self, rng):
        lengths = self._lengths(rng)
        before = int(rng.choice([0, 0, 3]))
        after = int(rng.choice([0, 2])) if self.include_last_offset else 0
        ends = before + np.cumsum(lengths, dtype=np.int64)
        starts = ends - lengths
        if self.include_last_offset:
            offsets = np.append(starts, ends[-1] if len(ends) else before)
            used = int(offsets[-1])
        else:
            offsets, used = starts, before + int(lengths.sum())
        self.indices = self._indices(rng, used + after)
        self.cuts = [slice(int(s), int(e)) for s, e in zip(starts, ends)]
        return [Tensor("indices", self.indices),
                Tensor("offsets", offsets.astype(self.index_types[1]))]

    def _packed(self, rng):
        bags, length = int(rng.integers(0, 9)), int(rng.choice(BAG_LENGTHS))
        indices = self._indices(rng, (bags, length))
        self.indices = indices.ravel()
        self.cuts = [slice(i * length, (i + 1) * length) for i in range(bags)]
        return [Tensor("indices", indices)]

    def _segments(self, rng):
        lengths = self._lengths(rng)
        explicit = bool(rng.integers(2))
        if not explicit and len(lengths) and not lengths[-1]:
            lengths[-1] = 1  # the last id tells the number of segments
        ids = np.repeat(np.arange(len(lengths)), lengths)
        self.indices = self._indices(rng, len(ids))
        ends = np.cumsum(lengths, dtype=np.int64)
        self.cuts = [slice(int(e - n), int(e)) for e, n in zip(ends, lengths)]
        inputs = [Tensor("indices", self.indices),
                  Tensor("segment_ids", ids.astype(self.index_types[1]))]
        if explicit:
            inputs.append(Tensor("num_segments", np.array(len(lengths), self.index_types[3])))
        return inputs

    def _add_weights(self, rng):
        self.weights = None
        if self.reduction != "max" and rng.integers(2):
            self.weights = rng.standard_normal(len(self.indices)).astype(np.float32)
            self.inputs.append(Tensor("per_sample_weights",
                                      self.weights.reshape(self.inputs[0].array.shape)))

    def parameters(self):
        chosen = {"reduction": self.reduction}
        if self.padding_idx is not None:
            chosen["padding_idx"] = self.padding_idx
        if self.include_last_offset:
            chosen["include_last_offset"] = True
        return chosen

    def expected(self, table):
        default = -1 if self.default_index is None else self.default_index
        rules = oracle.Rules(self.reduction, self.padding_idx, default)
        weights = None if self.weights is None else [self.weights[c] for c in self.cuts]
        return oracle.pool(table, [self.indices[c] for c in self.cuts], weights, rules)

    def __str__(self):
        shapes = {t.name: f"{t.datatype}{list(t.array.shape)}" for t in self.inputs}
        return (f"{self.form} {self.parameters()} {shapes} binary in {self.binary_in}, "
                f"out {self.binary_out}")


def check(client, table, request, number):
    outputs = [{"name": "embeddings", "parameters": {"binary_data": request.binary_out}}]
    reply = client.infer("items", request.inputs, binary=request.binary_in, outputs=outputs,
                         parameters=request.parameters())
    if reply.status != 200:
        raise Failure(f"request {number}: {request}: status {reply.status}: {reply.body[:300]!r}")
    got, want = reply.embeddings(), request.expected(table)
    if got.dtype != want.dtype or got.shape != want.shape:
        raise Failure(f"request {number}: {request}: {got.dtype}{got.shape} instead of "
                      f"{want.dtype}{want.shape}")
    if not np.array_equal(got, want):
        at = tuple(int(i[0]) for i in np.nonzero(got != want))
        raise Failure(f"request {number}: {request}: at {at} {got[at]!r} instead of {want[at]!r}")


def rounded(exact):
    """A fraction as the nearest float32, ties to even, by exact comparison."""
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(s)) for s in (-np.inf, guess, np.inf)]
    return min(around, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.int32)) & 1))


def test_the_oracle(rng):
    """The oracle's fused multiply-add is right, also where rounding twice would go wrong."""
    w, r, s = rng.standard_normal((3, 1000)).astype(np.float32)
    s *= np.exp2(rng.integers(-30, 30, 1000)).astype(np.float32)
    # 641 * 6700417 = 2^32 + 1: added to 1, a hair above the middle between two floats.
    w[0], r[0], s[0] = 641 * 2.0**-28, 6700417 * 2.0**-28, 1
    for i, got in enumerate(oracle.fused_multiply_add(w, r, s)):
        exact = Fraction(float(w[i])) * Fraction(float(r[i])) + Fraction(float(s[i]))
        if got != rounded(exact):
            raise Failure(f"the oracle's fma({w[i]!r}, {r[i]!r}, {s[i]!r}) is {got!r}")


@pytest.fixture(scope="module", name="table")
def make_table(rng):
    """Values over eight orders of magnitude, so that the order of adding shows in the bits."""
    table = rng.standard_normal((ROWS, DIM), np.float32)
    table *= np.exp2(rng.integers(-13, 14, (ROWS, 1))).astype(np.float32)
    return table


@pytest.fixture(scope="module", name="server")
def serve(shared_directory, table):
    np.save(shared_directory / "items.npy", table)
    config = write_json(shared_directory / "config.json", {"models": [
        {"name": "items", "path": "items.npy", "weighted_mean": True}]})
    with Server("--config", config) as server:
        yield server


def test_random_requests(client, table, rng):
    for number in range(REQUESTS):
        check(client, table, Request(rng, number), number)
