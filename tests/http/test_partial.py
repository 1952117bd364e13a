"""Partial answers: what the parts of a table answer, added up as proto/PARTS.md says, is one server's answer.

Every case of tests/conformance is asked of 3 servers' worth of parts by rows and by columns; random requests to a
keyed table of parts by keys, collections over parts, and what is refused.
"""

import json

import numpy as np
import pytest

from harness import Server, expect, expect_equal, expect_words, has_openblas, served, write_json
from parts import part_of_key
from test_conformance import CASES, DATATYPES, Models, array_of, compare, inputs_of, rules_of
from v2 import Client, Tensor, bf16_from_f32

OF = 3
ANSWERED = [case for case in CASES if "error" not in case]
ROWS, COLUMNS = 300, 8
BINARY = {"binary_data_output": True}


# ---- adding up ------------------------------------------------------------------------------------

def exact(words):
    """The integers that arrays [..., 3] of words stand for."""
    values = words.astype(object)
    whole = values[..., 0] + (values[..., 1] << 64) + (values[..., 2] << 128)
    return np.where(values[..., 2] >> 63 != 0, whole - (1 << 192), whole)


def divide(sums, divisor, dtype):
    """Toward zero, modulo 2^width."""
    width = 8 * np.dtype(dtype).itemsize
    quotient = [0 if d == 0 else int(abs(s) // abs(d)) * (1 if (s < 0) == (d < 0) else -1)
                for s, d in zip(sums.ravel(), np.broadcast_to(divisor, sums.shape).ravel())]
    return np.array([q % 2**width for q in quotient], f"u{width // 8}").view(dtype).reshape(sums.shape)


def add(parts, reduction, datatype, default=None):
    """The whole's rows [B, elements] of parts' answers, in the table's type; bf16 as uint16."""
    counts = [part["counts"].array for part in parts]
    total = sum(counts)
    is_float = datatype.startswith(("FP", "BF"))
    bags = len(total)
    weights = [part["weight_sums"].array for part in parts if "weight_sums" in part]
    if not is_float and reduction == "mean":
        sums = sum(exact(part["embeddings"].array) for part in parts).reshape(bags, -1)
        divisor = sum(exact(one) for one in weights) if weights else total
        rows = divide(sums, np.asarray(divisor, object).reshape(-1, 1), parts[0]["dtype"])
    else:
        rows = None
        for part, count in zip(parts, counts):
            own = part["embeddings"].array.reshape(bags, -1)
            if rows is None:
                rows, so_far = own.copy(), count.copy()
                continue
            has = (count > 0).reshape(-1, 1)
            joined = np.maximum(rows, own) if reduction == "max" else rows + own
            rows = np.where(has & (so_far > 0).reshape(-1, 1), joined, np.where(has, own, rows))
            so_far = so_far + count
    if is_float and reduction in ("mean", "sqrtn"):
        divisor = sum(weights[1:], weights[0]) if weights else total.astype(rows.dtype)
        divisor = np.sqrt(divisor) if reduction == "sqrtn" else divisor
        with np.errstate(divide="ignore", invalid="ignore"):
            rows = np.where(divisor.reshape(-1, 1) == 0, 0, rows / divisor.reshape(-1, 1)).astype(rows.dtype)
    rows = np.where((total == 0).reshape(-1, 1), 0, rows).astype(rows.dtype)
    if datatype == "BF16":
        rows = bf16_from_f32(rows)
    elif datatype == "FP16":
        with np.errstate(over="ignore"):
            rows = rows.astype(np.float16)
    if default is not None:
        rows[total == 0] = default
    return rows


# ---- every case of conformance --------------------------------------------------------------------

class Parts:
    """Models of the parts of each case's model: NAME_WAY_INDEX."""

    def __init__(self, directory):
        self.whole = Models(directory)
        self.entries = []

    def add(self, case):
        count = len(self.whole.entries)
        name = self.whole.model(case, with_rules=False)
        for entry in self.whole.entries[count:]:
            for way in ways_of(case):
                self.entries += [entry | {"name": f"{name}_{way}_{index}",
                                          "part": {"by": way, "index": index, "of": parts_of(case, way)}}
                                 for index in range(parts_of(case, way))]
        return name


def ways_of(case):
    return ("rows", "columns") if len(case["table"]["shape"]) == 2 else ("rows",)


def parts_of(case, way):
    return max(1, min(OF, case["table"]["shape"][way == "columns"]))


@pytest.fixture(scope="module", name="parts")
def make_parts(shared_directory):
    parts = Parts(shared_directory)
    for case in ANSWERED:
        parts.add(case)
    return parts


@pytest.fixture(scope="module", name="conforming")
def serve_parts(parts, shared_directory):
    config = write_json(shared_directory / "parts.json", {"models": parts.entries})
    with Server("--config", config) as server, Client(server) as client:
        yield client


def answers(client, case, name, way, number, **parameters):
    """The outputs of each part."""
    found = []
    for index in range(parts_of(case, way)):
        part = {"by": way, "index": index, "of": parts_of(case, way)}
        reply = client.infer(f"{name}_{way}_{index}", inputs_of(case, number), binary=True,
                             parameters=BINARY | {"part": part} | rules_of(case) | parameters)
        found.append(reply.expect(200).outputs())
    return found


@pytest.mark.parametrize("number", range(len(ANSWERED)), ids=[case["name"] for case in ANSWERED])
def test_case(conforming, parts, number):
    case = ANSWERED[number]
    name = parts.add(case)
    datatype, shape = DATATYPES[case["expected"]["dtype"]], case["expected"]["shape"]
    for way in ways_of(case):
        if way == "columns":
            found = answers(conforming, case, name, way, number)
            compare(np.concatenate([one["embeddings"].array for one in found], 1), datatype, case)
            continue
        found = answers(conforming, case, name, way, number, partial=True)
        if shape[0] == 0:
            expect(all(one[output].array.shape[0] == 0 for one in found for output in one), case["name"])
            continue
        table = array_of(case["table"])
        default = case.get("default_index")
        default = default["data"][0] if isinstance(default, dict) else default
        default = None if default in (None, -1) else table.reshape(len(table), -1)[default]
        rows = add([one | {"dtype": table.dtype} for one in found], case["reduction"], datatype, default)
        compare(rows.reshape(shape), datatype, case)


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


def random_bags(rng, keyed, known):
    """Keys, some of which the table has not, with offsets and weights."""
    ids = rng.choice(keyed.keys, 400)
    if not known:
        ids[rng.random(400) < 0.2] = rng.integers(-50, 50)
    return [Tensor("indices", ids), Tensor("offsets", np.sort(rng.integers(0, 401, 60))),
            Tensor("per_sample_weights", rng.integers(1, 5, 400).astype(np.float32))]


@pytest.mark.parametrize("name", ("skip", "hash", "default", "error"))
@pytest.mark.parametrize("binary", (True, False))
def test_keys(client, keyed, rng, name, binary):
    for _ in range(10):
        inputs = random_bags(rng, keyed, name == "error")
        for reduction in ("sum", "max", "sqrtn", "mean"):
            own = inputs if reduction in ("sum", "sqrtn") else inputs[:2]
            parameters = {"reduction": reduction, "binary_data_output": binary}
            whole = client.infer(name, own, binary=binary, parameters=parameters).expect().embeddings()
            found = [client.infer(f"{name}_{index}", own, binary=binary, parameters=parameters |
                                  {"partial": True, "part": {"by": "keys", "index": index, "of": OF}}).outputs()
                     for index in range(OF)]
            expect_equal(set(found[0]), {"embeddings", "counts"} | ({"weight_sums"} if len(own) == 3 else set()))
            total = sum(one["counts"].array for one in found)
            rows = add(found, reduction, "FP32")
            got, want = rows[total > 0], whole[total > 0]
            expect(np.array_equal(got, want), f"{name}, {reduction}: {np.abs(got - want).max()}")


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
