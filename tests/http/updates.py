"""Tables whose rows change: a server that takes updates, its files and its journal, and a batch of rows."""

import pathlib

import numpy as np

from harness import Server, expect_equal
from v2 import Tensor

TOKEN = "admin-0123456789abcdef"
READER = "infer-0123456789abcdef"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
ROWS, COLUMNS, SPARE = 50, 4, 3
MASK = 2**64 - 1


def table():
    return np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)


def keys():
    """Of the first rows; some are beyond what is signed."""
    return (np.arange(ROWS, dtype=np.uint64) * 7 + 2**63 - 20)


class World:
    """A folder with a dense and a keyed table, an int8 one, and a collection; and its journal."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.journal = self.directory / "journal"
        self.tokens = self.directory / "tokens"
        self.tokens.touch(0o600)
        self.tokens.write_text(f"admin {TOKEN}\ninfer {READER}\n")
        np.save(self.directory / "dense.npy", table())
        (self.directory / "keyed").mkdir()
        np.save(self.directory / "keyed" / "keys.npy", keys())
        np.save(self.directory / "keyed" / "values.npy", table())
        np.save(self.directory / "half.npy", table().astype(np.float16))
        np.save(self.directory / "double.npy", table().astype(np.float64))
        np.save(self.directory / "int8.npy", np.zeros((ROWS, COLUMNS + 8), np.uint8))
        self.config = self.directory / "config.json"
        self.config.write_text("""{"models": [
            {"name": "dense", "path": "dense.npy"},
            {"name": "keyed", "path": "keyed", "spare_rows": %d, "missing": "skip"},
            {"name": "half", "path": "half.npy"},
            {"name": "double", "path": "double.npy"},
            {"name": "int8", "path": "int8.npy", "row_format": "int8", "row_elements": 4},
            {"name": "both", "features": [{"name": "a", "model": "dense"},
                                          {"name": "b", "model": "keyed"}]},
            {"name": "twice", "features": [{"name": "a", "model": "dense"}, {"name": "b", "model": "keyed"},
                                           {"name": "c", "model": "dense"}]}]}""" % SPARE)

    def server(self, *arguments, **options):
        return Server("--config", self.config, "--updates", "on", "--token-file", self.tokens,
                      "--journal-dir", self.journal, *arguments, **options)


def update(client, model, ids, rows=None, sequence=None, headers=AUTHORIZED, **parameters):
    """A batch for a model; `ids` and `rows` are arrays or tensors."""
    inputs = [ids if isinstance(ids, Tensor) else
              Tensor("keys" if np.asarray(ids).dtype == np.uint64 else "indices", np.asarray(ids))]
    if rows is not None:
        inputs.append(rows if isinstance(rows, Tensor) else Tensor("rows", np.asarray(rows, np.float32)))
    if sequence is not None:
        parameters["sequence"] = sequence
    return client.infer(model, inputs, headers, path=f"/v2/models/{model}/rows", binary=True, parameters=parameters)


def rows_of(client, model, ids):
    """What single ids give."""
    ids = np.asarray(ids).reshape(-1, 1)
    return client.infer(model, [Tensor("indices", ids)], AUTHORIZED, binary=True).embeddings()


def applied(reply, sequence, rows, yes=True):
    got = reply.expect(200).json()
    for key, want in {"sequence": sequence, "applied": yes, "rows": rows}.items():
        expect_equal(got[key], want, key)
    return got


def journal_of(world, model):
    (path,) = (world.journal / model).iterdir()
    return path
