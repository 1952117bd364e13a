"""Collections of every two kinds of tables, in either order: in memory, mapped, with keys, quantised, projected, and on
shards by rows, columns and keys. Values have exact sums, so that all answers are compared with NumPy to the bit."""

import contextlib
import itertools

import numpy as np
import pytest

from collections_models import quantised
from harness import Server, expect, expect_equal, served, write_json
from shards import front_of
from v2 import Client, Tensor

ROWS, COLUMNS, OF = 240, 6, 2
BINARY = {"binary_data_output": True}


class Tables:
    """The files, and per kind of table the keys of its model and how its answer is made."""

    def __init__(self, directory, rng):
        self.rows = (rng.integers(-512, 512, (ROWS, COLUMNS)) / 64).astype(np.float32)
        codes, self.numbers = quantised(rng, ROWS, COLUMNS)
        self.keys = rng.permutation(np.arange(1000, 1000 + 7 * ROWS, 7)).astype(np.int64)
        self.matrix = rng.integers(-4, 4, (COLUMNS, 3)).astype(np.float32)
        files = {"rows": self.rows, "codes": codes, "keys": self.keys, "matrix": self.matrix}
        for name, array in files.items():
            np.save(directory / f"{name}.npy", array)
        path = {name: str(directory / f"{name}.npy") for name in files}
        self.stored = {"plain": {"path": path["rows"]}, "keyed": {"path": path["rows"], "keys": path["keys"]},
                       "quantised": {"path": path["codes"], "row_format": "int8", "row_elements": COLUMNS}}
        self.projection = {"projection": path["matrix"]}

    def on_shard(self, index):
        """What a shard has: of each table parts in every way."""
        ways = [("plain", "rows"), ("plain", "columns"), ("keyed", "keys"), ("keyed", "columns"), ("quantised", "rows")]
        return {"models": [{"name": f"{table}_{way}", "part": {"by": way, "index": index, "of": OF}} | self.stored[table]
                           for table, way in ways]}

    def models(self, urls):
        """The models of all kinds of tables, by name; a name has the words that tell its answer."""
        stored = self.stored
        mapped = {f"mapped_{name}": keys | {"load": "map"} for name, keys in stored.items()}
        remote = {f"remote_{name}": {"shards": urls, "shard_model": name}
                  for name in ("plain_rows", "plain_columns", "keyed_keys", "keyed_columns", "quantised_rows")}
        plain = {"plain": stored["plain"], "mapped_plain": mapped["mapped_plain"],
                 "remote_plain_rows": remote["remote_plain_rows"]}
        projected = {f"{name}_projected": keys | self.projection for name, keys in plain.items()}
        return served(stored | mapped | remote | projected)

    def answer(self, kind, positions):
        """The bags' sums, of one position each list."""
        table = self.numbers if "quantised" in kind else self.rows
        sums = np.array([table[bag].sum(axis=0) for bag in positions], np.float32).reshape(len(positions), COLUMNS)
        return sums @ self.matrix if "projected" in kind else sums

    def ids(self, kind, positions):
        flat = np.concatenate(positions).astype(np.int64)
        return self.keys[flat] if "keyed" in kind else flat


@pytest.fixture(scope="module", name="tables")
def make_tables(shared_directory, rng):
    return Tables(shared_directory, rng)


@pytest.fixture(scope="module", name="kinds")
def serve_kinds(shared_directory, tables):
    """The kinds, and a client of a server that has a collection of every two of them."""
    with contextlib.ExitStack() as stack:
        shards = [stack.enter_context(Server("--config", write_json(shared_directory / f"shard-{index}.json",
                                                                    tables.on_shard(index)))) for index in range(OF)]
        models = tables.models([shard.url for shard in shards])
        listed = [{"name": name} | keys for name, keys in models.items() if "shards" not in keys]
        remote = [{"name": name} | keys for name, keys in models.items() if "shards" in keys]
        collections = [{"name": f"{one}.{other}", "features": [{"name": "a", "model": one},
                                                               {"name": "b", "model": other}]}
                       for one, other in itertools.product(models, repeat=2)]
        urls = remote[0].pop("shards")
        front = stack.enter_context(front_of(shared_directory, urls, more=remote[1:] + listed + collections,
                                             **remote[0]))
        yield list(models), stack.enter_context(Client(front))


def random_bags(rng, count):
    return [rng.integers(0, ROWS, rng.integers(0, 7)) for _ in range(count)]


def inputs_of(tables, pair, bags):
    inputs = []
    for name, kind, positions in zip("ab", pair, bags):
        offsets = np.concatenate([[0], np.cumsum([len(bag) for bag in positions])])[:-1]
        inputs += [Tensor(f"{name}.indices", tables.ids(kind, positions)), Tensor(f"{name}.offsets", offsets)]
    return inputs


def expect_sums(got, want, what):
    """The same bits, but for the sign of zeros."""
    expect_equal((got.shape, got.dtype), (want.shape, want.dtype), what)
    expect((got + np.float32(0)).tobytes() == (want + np.float32(0)).tobytes(), f"{what}: other numbers")


@pytest.mark.parametrize("binary", [True, False])
def test_every_two_kinds(kinds, tables, rng, binary):
    names, client = kinds
    parameters = {"binary_data_output": binary}
    for pair in itertools.product(names, repeat=2):
        count = int(rng.integers(1, 9))
        bags = [random_bags(rng, count) for _ in pair]
        inputs, model = inputs_of(tables, pair, bags), ".".join(pair)
        want = [tables.answer(kind, positions) for kind, positions in zip(pair, bags)]
        got = client.infer(model, inputs, binary=binary, parameters=parameters).outputs()
        for name, sums in zip("ab", want):
            expect_sums(got[name].array, sums, (model, name))
        beside = client.infer(model, inputs, binary=binary, parameters=parameters, outputs=[{"name": "embeddings"}])
        expect_sums(beside.embeddings(), np.concatenate(want, axis=1), (model, "side by side"))


def test_every_two_kinds_explained(kinds, tables, rng):
    """How many entries each bag has is told of both features, whoever pools them."""
    names, client = kinds
    for pair in itertools.product(names, repeat=2):
        bags = [random_bags(rng, 5) for _ in pair]
        reply = client.infer(".".join(pair), inputs_of(tables, pair, bags), binary=True,
                             parameters=BINARY | {"explain": True}).expect()
        told = reply.header()[0]["parameters"]["explain"]
        expect_equal([[bag["rows"] for bag in feature["bags"]] for feature in told],
                     [[len(bag) for bag in positions] for positions in bags], pair)


def test_large_requests_of_every_kind(kinds, tables, rng):
    """Long enough to be split over workers, and for mapped rows to be prefetched in windows."""
    names, client = kinds
    for pair in zip(names, names[1:] + names[:1]):
        bags = [random_bags(rng, 4000) for _ in pair]
        got = client.infer(".".join(pair), inputs_of(tables, pair, bags), binary=True, parameters=BINARY).outputs()
        for name, kind, positions in zip("ab", pair, bags):
            expect_sums(got[name].array, tables.answer(kind, positions), (pair, name))
