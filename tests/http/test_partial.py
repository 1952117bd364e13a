"""Partial answers: what the parts of a table answer, added up as proto/PARTS.md says, is one server's answer.

Every case of tests/conformance is asked of 3 servers' worth of parts by rows and by columns; random requests to a
keyed table of parts by keys, collections over parts, and what is refused.
"""

import json

import numpy as np
import pytest

from harness import Server, expect, expect_equal, expect_words, has_openblas, served, write_json
from parts import part_of_key
from v2 import Client, Tensor

OF = 3
ROWS, COLUMNS = 300, 8
BINARY = {"binary_data_output": True}


# ---- tables with keys -----------------------------------------------------------------------------

class Keyed:
    """A table of small integers as FP32, so that sums are exact in any order, whole and in parts by keys."""

    def __init__(self, directory, rng):
        self.keys = rng.choice(2**62, ROWS, replace=False).astype(np.int64)
        np.save(directory / "keys.npy", self.keys)
        self.rows = rng.integers(-99, 99, (ROWS, COLUMNS)).astype(np.float32)
        np.save(directory / "rows.npy", self.rows)
        table = {"path": "rows.npy", "keys": "keys.npy"}
        rules = {"skip": {"missing": "skip"}, "hash": {"missing": "hash", "hash_rows": 5},
                 "default": {"missing": "default", "default_index": str(self.keys[7])}, "error": {}}
        models = []
        for name, rule in rules.items():
            models.append({"name": name} | table | rule)
            models += [{"name": f"{name}_{index}", "part": {"by": "keys", "index": index, "of": OF}} | table | rule
                       for index in range(OF)]
        models += [{"name": f"both_{index}",
                    "features": [{"name": "a", "model": f"skip_{index}", "reduction": "mean"},
                                 {"name": "b.c", "model": f"hash_{index}"}]} for index in range(OF)]
        np.save(directory / "matrix.npy", np.eye(COLUMNS, dtype=np.float32))
        models.append({"name": "projected", "path": "rows.npy", "projection": "matrix.npy"})
        models.append({"name": "dense", "path": "rows.npy", "out_of_range": "skip"})
        self.config = write_json(directory / "keyed.json", {"models": served(models)})


@pytest.fixture(scope="module", name="keyed")
def make_keyed(shared_directory, rng):
    return Keyed(shared_directory, rng)


@pytest.fixture(scope="module", name="client")
def serve_keyed(keyed):
    with Server("--config", keyed.config) as server, Client(server) as client:
        yield client


def test_collections(client, keyed, rng):
    """Each feature's sums with its own counts, side by side."""
    ids = rng.choice(keyed.keys, 40).astype(np.int64)
    lengths = np.full(8, 5, np.int64)
    for index in range(OF):
        reply = client.infer(f"both_{index}", [Tensor("values", ids), Tensor("lengths", lengths)],
                             parameters={"partial": True}).outputs()
        expect_equal(sorted(reply), ["a", "a.counts", "b.c", "b.c.counts"])
        own = np.array([part_of_key(key) == index for key in ids.tolist()]).reshape(8, 5).sum(1)
        expect_equal(reply["a.counts"].array.tolist(), own[:4].tolist())
        expect_equal(reply["b.c.counts"].array.tolist(), own[4:].tolist())
        asked = client.infer(f"both_{index}", [Tensor("values", ids), Tensor("lengths", lengths)],
                             parameters={"partial": True}, outputs=[{"name": "b.c"}]).outputs()
        expect_equal(sorted(asked), ["b.c", "b.c.counts"])
        expect(np.array_equal(asked["b.c"].array, reply["b.c"].array), "b.c")


def test_copies_of_the_default_row(client, keyed):
    """Each part answers it when it is asked for that, and no other row of another part."""
    ids = np.array([[keyed.keys[7]], [keyed.keys[8]]])
    for index in range(OF):
        own = [int(part_of_key(key) == index) for key in ids[:, 0]]
        for parameters, first in (({}, own[0]), ({"kept_default": False}, own[0]), ({"kept_default": True}, 1)):
            reply = client.infer(f"default_{index}", [Tensor("indices", ids)],
                                 parameters={"partial": True} | parameters).outputs()
            expect_equal(reply["counts"].array.tolist(), [first, own[1]], (index, parameters))
            expect_equal(reply["embeddings"].array.tolist(), (keyed.rows[7:9] * [[first], [own[1]]]).tolist())
    reply = client.infer("default_0", [Tensor("indices", ids)], parameters={"partial": True, "kept_default": 1})
    expect_words(reply.expect(400).error(), ["kept_default", "true or false"])


def test_explains_and_counts_ids_of_other_parts(client, keyed):
    def counted(index):
        return int(client.metrics()[f'bagserve_other_part_ids_total{{model="skip_{index}",version="1"}}'])

    ids = keyed.keys[:20]
    for index in range(OF):
        other = [at for at, key in enumerate(ids.tolist()) if part_of_key(key) != index]
        before = counted(index)
        reply = client.infer(f"skip_{index}", [Tensor("indices", ids.reshape(1, -1))],
                             parameters={"partial": True, "explain": True}).expect().json()
        expect_equal(reply["parameters"]["explain"][0]["bags"],
                     [{"rows": 20 - len(other), "default": False, "other_part": other}])
        expect_equal(counted(index) - before, len(other))


def test_refuses_another_part(client, keyed):
    inputs = [Tensor("indices", keyed.keys[:1].reshape(1, 1))]
    part = {"by": "keys", "index": 1, "of": OF}
    for model, asked, words in (
            ("skip_0", part, ["part 0 of 3 by keys", "part 1 of 3 by keys"]),
            ("skip_1", part | {"of": 4}, ["part 1 of 3", "part 1 of 4"]),
            ("skip_1", part | {"by": "rows"}, ["by rows"]),
            ("skip", part, ["no part"]),
            ("both_2", part, ["feature 'a'", "part 2 of 3", "part 1 of 3"])):
        name = "a.indices" if model == "both_2" else "indices"
        reply = client.infer(model, [Tensor(name, inputs[0].array)], parameters={"partial": True, "part": asked})
        expect_words(reply.expect(409).error(), words)
    client.infer("skip", inputs, parameters={"part": {"by": "rows", "index": 0, "of": 1}}).expect()


@pytest.mark.skipif(not has_openblas(), reason="libopenblas0-pthread is not installed")
def test_refuses_a_projection(client):
    reply = client.infer("projected", [Tensor("indices", np.array([[1]]))], parameters={"partial": True})
    expect_words(reply.expect(400).error(), ["partial", "projection"])


def test_refuses_what_cannot_be_added_up(client, keyed):
    row = [Tensor("indices", np.array([[1]]))]
    beyond = [Tensor("indices", np.array([[1, ROWS]]))]
    for model, inputs, parameters, words in (
            ("dense", row, {"output_datatype": "FP16"}, ["output_datatype", "partial"]),
            ("dense", beyond, {}, ["position 1", str(ROWS)])):
        reply = client.infer(model, inputs, parameters={"partial": True} | parameters)
        expect_words(reply.expect(400).error(), words)
    reply = client.infer("both_0", [Tensor("values", keyed.keys[:2]), Tensor("lengths", np.array([1, 1]))],
                         parameters={"partial": True}, outputs=[{"name": "embeddings"}])
    expect_words(reply.expect(400).error(), ["embeddings", "partial"])


def test_headers_are_remembered(client, keyed):
    """Many requests with headers alike: what a template keeps of them has the parameters, too."""
    for index in list(range(OF)) * 40:
        part = {"by": "keys", "index": index, "of": OF}
        ids = keyed.keys[:1 + index].reshape(1, -1)
        outputs = client.infer("skip_1", [Tensor("indices", ids)], binary=True,
                               parameters=BINARY | {"partial": True, "part": part})
        expect_equal(outputs.status, 200 if index == 1 else 409, json.dumps(part))
