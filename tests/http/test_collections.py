"""Collections: random requests in every layout against NumPy, and every refusal.

Tables differ in type and width, features share some of them, and every feature has rules of its own.
All bits must be equal. The seed is printed; a failure prints how its request was made.
"""


import numpy as np

import oracle
from harness import (Failure, Server, expect, expect_equal, main, run, scaled, scratch, seed,
                     write_json)
from v2 import Client, Tensor, bf16_from_f32

REQUESTS = scaled(1500)
F32, F64, I32 = np.float32, np.float64, np.int32


class Feature:
    """One feature: its table as numbers, and its rules."""

    def __init__(self, name, table, keys=None, datatype="FP32", takes_weights=True):
        self.name, self.table, self.keys = name, table, keys or {}
        self.datatype, self.takes_weights = datatype, takes_weights
        self.rules = oracle.Rules(self.keys.get("reduction", "sum"), self.keys.get("padding_idx"),
                                  self.keys.get("default_index", -1))

    def pool(self, bags, weights, default_index=None):
        rules = oracle.Rules(self.rules.reduction, self.rules.padding_idx,
                             self.rules.default_index if default_index is None else default_index)
        if self.datatype == "INT32":
            sums = [self.table[b].sum(axis=0) for b in bags]
            return np.array(sums, I32).reshape(len(bags), self.table.shape[1])
        pooled = oracle.pool(self.table.astype(F32), bags, weights, rules)
        if self.datatype == "BF16":
            return bf16_from_f32(pooled)
        return pooled.astype({"FP16": np.float16, "FP64": F64}.get(self.datatype, F32))


def quantised(rng, rows, columns):
    """Rows as int8 bytes, and the numbers that they stand for: exact, as all scales are 1/8."""
    codes = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
    bias = rng.integers(-8, 8, rows).astype(F32)
    ends = np.stack([np.full(rows, 0.125, F32), bias], axis=1).view(np.uint8)
    return np.concatenate([codes, ends], axis=1), codes.astype(F32) * F32(0.125) + bias[:, None]


def make_models(rng, directory):
    """Tables on disk, and the configuration of two collections; returns their features."""
    items = rng.standard_normal((200, 16)).astype(F32)
    half = rng.standard_normal((100, 6)).astype(np.float16)
    brain = bf16_from_f32(rng.standard_normal((50, 8)).astype(F32))
    wide = rng.integers(-64, 64, (40, 3)) / 8.0
    whole = rng.integers(-1000, 1000, (30, 2)).astype(I32)
    codes, numbers = quantised(rng, 70, 12)
    cube = rng.standard_normal((20, 2, 3)).astype(F32)
    tables = {"items": items, "half": half, "brain": brain, "wide": wide, "whole": whole,
              "codes": codes, "cube": cube}
    keys = {"items": {"reduction": "mean", "default_index": 3}, "brain": {"datatype": "BF16"},
            "codes": {"row_format": "int8"}}
    models = []
    for name, table in tables.items():
        np.save(directory / f"{name}.npy", table)
        models.append({"name": name, "path": f"{name}.npy"} | keys.get(name, {}))
    brain_f32 = (brain.astype(np.uint32) << 16).view(F32)
    features = [
        # `items` has mean and default_index 3, which the features keep or override.
        Feature("history", items, {"reduction": "mean", "default_index": 3}, takes_weights=False),
        Feature("user.recent", items, {"reduction": "sqrtn", "default_index": -1}),
        Feature("half", half, {"padding_idx": 2}, "FP16"),
        Feature("brain", brain_f32, {}, "BF16"),
        Feature("wide", wide, {}, "FP64"),
        Feature("codes", numbers, {"default_index": 5}),
        Feature("cube", cube, {"reduction": "max"}, takes_weights=False)]
    own = {"history": {}, "user.recent": {"reduction": "sqrtn", "default_index": -1}}
    of = {"history": "items", "user.recent": "items"}
    models.append({"name": "mixed", "features": [
        {"name": f.name, "model": of.get(f.name, f.name)} | own.get(f.name, f.keys)
        for f in features]})
    integers = Feature("whole", whole, {}, "INT32", takes_weights=False)
    models.append({"name": "integers", "features": [{"name": "whole", "model": "whole"}]})
    floats = [Feature("a", items, {"reduction": "sum"}), Feature("b", numbers),
              Feature("c", cube), Feature("d", half)]
    models.append({"name": "floats", "features": [
        {"name": "a", "model": "items", "reduction": "sum", "default_index": -1},
        {"name": "b", "model": "codes"}, {"name": "c", "model": "cube"},
        {"name": "d", "model": "half", "output_datatype": "FP32"}]})
    config = write_json(directory / "config.json", {"models": models})
    return config, {"mixed": features, "integers": [integers], "floats": floats}


# ---- random requests --------------------------------------------------------------------------
class Request:
    """One request for a collection and what its answer must be."""

    def __init__(self, rng, model, features):
        self.rng, self.model, self.features = rng, model, features
        self.inputs, self.want = [], {}
        self.index_types = rng.choice([np.int32, np.int64], 2)
        self.binary_in = bool(rng.integers(2))
        self.layout = str(rng.choice(["lengths", "offsets", "named"]))
        if self.layout == "named":
            self._named()
        else:
            self._kjt()
        order = rng.permutation(len(self.inputs))
        self.inputs = [self.inputs[i] for i in order]
        self._choose_outputs()

    def _bags(self, feature, count):
        lengths = self.rng.choice([0, 0, 1, 1, 2, 3, 8, 17], count)
        return [self.rng.integers(0, len(feature.table), n) for n in lengths]

    def _weights(self, feature, bags):
        """Multiples of 1/4, so that the sums of `wide` are exact."""
        exact = feature.datatype == "FP64"
        return [(self.rng.integers(-8, 9, len(b)) / 4).astype(F32) if exact else
                self.rng.standard_normal(len(b)).astype(F32) for b in bags]

    def _kjt(self):
        count = int(self.rng.integers(0, 7))
        weighted = all(f.takes_weights for f in self.features) and bool(self.rng.integers(2))
        bags, weights = [], []
        for feature in self.features:
            own = self._bags(feature, count)
            factors = self._weights(feature, own) if weighted else None
            self.want[feature.name] = feature.pool(own, factors)
            bags += own
            weights += factors or []
        lengths = np.array([len(b) for b in bags], np.int64)
        layout = lengths if self.layout == "lengths" else np.append(0, np.cumsum(lengths))
        self.inputs = [Tensor("values", np.concatenate(bags + [[]]).astype(self.index_types[0])),
                       Tensor(self.layout, layout.astype(self.index_types[1]))]
        if weighted:
            self.inputs.append(Tensor("weights", np.concatenate(weights + [[]]).astype(F32)))

    def _named(self):
        chosen = [f for f in self.features if self.rng.integers(3)] or self.features[:1]
        same = int(self.rng.integers(1, 5)) if self.rng.integers(2) else None
        for feature in chosen:
            form = str(self.rng.choice(["offsets", "packed", "segments"]))
            count = int(self.rng.integers(0, 5)) if same is None else same
            if form == "packed":
                length = int(self.rng.choice([0, 1, 5]))
                bags = [self.rng.integers(0, len(feature.table), length) for _ in range(count)]
            else:
                bags = self._bags(feature, count)
            self._add(feature, form, bags)

    def _add(self, feature, form, bags):
        indices = np.concatenate(bags + [[]]).astype(self.index_types[0])
        lengths = np.array([len(b) for b in bags], np.int64)
        if form == "packed":
            indices = indices.reshape(len(bags), len(bags[0]) if bags else 0)
        self._input(feature, "indices", indices)
        if form == "offsets":
            self._input(feature, "offsets", (np.cumsum(lengths) - lengths).astype(
                self.index_types[1]))
        if form == "segments":
            self._input(feature, "segment_ids", np.repeat(np.arange(len(bags)), lengths))
            self._input(feature, "num_segments", np.array(len(bags)))
        weights = default = None
        if feature.takes_weights and feature.datatype in ("FP32", "FP64") and \
                feature.table.dtype != np.float16 and self.rng.integers(2):
            weights = self._weights(feature, bags)
            dtype = F64 if feature.datatype == "FP64" else F32
            self._input(feature, "per_sample_weights", np.concatenate(weights + [[]]).astype(
                dtype).reshape(indices.shape))
        if feature.datatype != "INT32" and not self.rng.integers(4):
            default = int(self.rng.integers(-1, len(feature.table)))
            self._input(feature, "default_index", np.array([default]))
        self.want[feature.name] = feature.pool(bags, weights, default)

    def _input(self, feature, kind, array):
        self.inputs.append(Tensor(f"{feature.name}.{kind}", array))

    def _choose_outputs(self):
        self.outputs, binary = None, bool(self.rng.integers(2))
        types = {f.name: f.datatype for f in self.features}
        self.types = {name: types[name] for name in self.want}
        self.parameters = {"binary_data_output": binary}
        if any(types[name] in ("FP16", "BF16") for name in self.want):
            self.parameters["binary_data_output"] = True
        kind = int(self.rng.integers(3))
        if kind == 0:
            return
        names = [n for n in self.want if self.rng.integers(2)] or list(self.want)[:1]
        same_bags = len({len(rows) for rows in self.want.values()}) == 1
        if kind == 2 and self.model == "floats" and len(self.want) == 4 and same_bags:
            self.want["embeddings"] = np.concatenate(
                [self.want[f.name].reshape(len(self.want[f.name]), int(np.prod(f.table.shape[1:])))
                 for f in self.features], axis=1)
            self.types["embeddings"] = "FP32"
            names.append("embeddings")
        names = [names[i] for i in self.rng.permutation(len(names))]
        self.outputs = [{"name": n} for n in names]
        for output in self.outputs:
            if self.types[output["name"]] not in ("FP16", "BF16") and self.rng.integers(2):
                output["parameters"] = {"binary_data": bool(self.rng.integers(2))}
        self.want = {n: self.want[n] for n in names}

    def check(self, client):
        reply = client.infer(self.model, self.inputs, binary=self.binary_in, outputs=self.outputs,
                             parameters=self.parameters)
        got = reply.outputs()
        expect_equal(list(got), list(self.want) if self.outputs else
                     [f.name for f in self.features if f.name in self.want], "outputs")
        for name, rows in self.want.items():
            expect_equal(got[name].datatype, self.types[name], name)
            expect_equal(got[name].array.shape, rows.shape, name)
            if not np.array_equal(got[name].array, rows):
                at = tuple(int(i[0]) for i in np.nonzero(got[name].array != rows))
                raise Failure(f"{name} at {at}: {got[name].array[at]!r} instead of {rows[at]!r}")


def check_random(client, features, rng):
    for number in range(REQUESTS):
        model = ("mixed", "floats", "floats", "integers")[number % 4]
        request = Request(rng, model, features[model])
        try:
            request.check(client)
        except Failure as failure:
            shapes = {t.name: f"{t.datatype}{list(t.array.shape)}" for t in request.inputs}
            raise Failure(f"request {number} for {model}, {shapes}, outputs {request.outputs}, "
                          f"{request.parameters}: {failure}") from None


# ---- single cases -----------------------------------------------------------------------------
def kjt(values, lengths, weights=None, name="lengths"):
    inputs = [Tensor("values", np.array(values, np.int64)), Tensor(name, np.array(lengths))]
    return inputs + ([Tensor("weights", np.array(weights, F32))] if weights is not None else [])


def check_no_bags(client, _):
    for inputs in (kjt([], np.zeros(0, np.int64)), kjt([], [0], name="offsets")):
        got = client.infer("floats", inputs).outputs()
        expect_equal({n: t.array.shape for n, t in got.items()},
                     {"a": (0, 16), "b": (0, 12), "c": (0, 2, 3), "d": (0, 6)})
        whole = client.infer("floats", inputs, outputs=[{"name": "embeddings"}]).outputs()
        expect_equal(whole["embeddings"].array.shape, (0, 40))


def check_overrides(client, features):
    """A request's parameters go for every feature; a wider type joins what differs in type."""
    table = features["floats"][0].table
    inputs = [Tensor("a.indices", np.array([[1, 2]])), Tensor("b.indices", np.array([[3, 3]]))]
    got = client.infer("floats", inputs, parameters={"reduction": "mean"}).outputs()
    expect(np.array_equal(got["a"].array[0], (table[1] + table[2]) / F32(2)), "mean of a")
    lengths = kjt([0] * 7, [1] * 7)
    reply = client.infer("mixed", lengths, outputs=[{"name": "embeddings"}])
    expect("needs one type; 'history' makes FP32 and" not in reply.error(), reply.error())
    expect("'history' makes FP32, 'half' makes FP16" in reply.error(), reply.error())
    joined = [Tensor("a.indices", np.array([[1]])), Tensor("b.indices", np.array([[1]])),
              Tensor("c.indices", np.array([[1]])), Tensor("d.indices", np.array([[1]]))]
    got = client.infer("floats", joined, outputs=[{"name": "embeddings"}], binary=True,
                       parameters={"output_datatype": "FP16", "binary_data_output": True})
    expect_equal(got.outputs()["embeddings"].datatype, "FP16")


def check_counted_once(client, _):
    """A request is one request and one execution, whatever its features are."""

    def figures(model):
        return client.get(f"/v2/models/{model}/stats").json()["model_stats"][0]

    before, table = figures("floats"), figures("items")
    client.infer("floats", kjt([0] * 8, [2] * 4)).expect()
    after = figures("floats")
    expect_equal(after["execution_count"] - before["execution_count"], 1)
    expect_equal(after["inference_count"] - before["inference_count"], 4)
    expect_equal(after["inference_stats"]["success"]["count"] -
                 before["inference_stats"]["success"]["count"], 1)
    expect_equal(figures("items"), table)


def check_descriptions(client, _):
    metadata = client.get("/v2/models/mixed").json()
    expect_equal([t["name"] for t in metadata["inputs"]], ["values", "lengths", "weights"])
    expect_equal([(t["name"], t["datatype"], t["shape"]) for t in metadata["outputs"]],
                 [("history", "FP32", [-1, 16]), ("user.recent", "FP32", [-1, 16]),
                  ("half", "FP16", [-1, 6]), ("brain", "BF16", [-1, 8]), ("wide", "FP64", [-1, 3]),
                  ("codes", "FP32", [-1, 12]), ("cube", "FP32", [-1, 2, 3])])
    outputs = client.get("/v2/models/floats").json()["outputs"]
    expect_equal(outputs[-1], {"name": "embeddings", "datatype": "FP32", "shape": [-1, 40]})
    config = client.get("/v2/models/mixed/config").json()
    expect_equal([t["optional"] for t in config["input"]], [False, False, True])
    expect_equal(config["parameters"]["user.recent.model"], {"string_value": "items"})
    expect_equal(config["parameters"]["user.recent.reduction"], {"string_value": "sqrtn"})
    expect_equal(config["parameters"]["history.default_index"], {"string_value": "3"})
    expect_equal(client.get("/v2/models/mixed/ready").json(), {"name": "mixed", "ready": True})
    index = client.request("POST", "/v2/repository/index").json()
    expect("mixed" in [entry["name"] for entry in index], index)


REFUSED = [
    ("no inputs", "floats", [], ["there are no inputs", "a.indices"]),
    ("no lengths", "floats", [Tensor("values", np.array([1]))], ["'lengths'", "'offsets'"]),
    ("no values", "floats", [Tensor("lengths", np.array([1]))], ["'values' is missing"]),
    ("both", "floats", kjt([], [0] * 4) + kjt([], [0] * 5, name="offsets")[1:],
     ["'lengths' and 'offsets'"]),
    ("both layouts", "floats", kjt([], [0] * 4) + [Tensor("a.indices", np.array([[1]]))],
     ["'a.indices' does not go with 'values'"]),
    ("unknown feature", "floats", [Tensor("aa.indices", np.array([[1]]))],
     ["no feature 'aa'", "did you mean 'a'"]),
    ("unknown input", "floats", [Tensor("a.indexes", np.array([[1]]))], ["'a.indexes'"]),
    ("no feature", "floats", [Tensor("indices", np.array([[1]]))], ["'indices' is unknown"]),
    ("lengths of a part", "floats", kjt([], [0] * 5), ["'lengths' has 5", "multiple of 4"]),
    ("offsets of a part", "floats", kjt([], [0] * 4, name="offsets"),
     ["'offsets' has 4", "one more than a multiple of 4"]),
    ("no offsets at all", "floats", kjt([], np.zeros(0, np.int64), name="offsets"),
     ["'offsets' has 0"]),
    ("lengths too short", "floats", kjt([1, 2], [0, 1, 0, 0]), ["counts 1 'values'", "are 2"]),
    ("lengths too long", "floats", kjt([1, 2], [0, 1, 2, 0]),
     ["position 2", "feature 'c'", "bag 0", "is 2", "0 to 1"]),
    ("a length of the largest", "floats", kjt([1], [0, 1, 2**63 - 1, 0]), ["position 2"]),
    ("a negative length", "floats", kjt([1, 2], [0, 1, 1, 0, 0, 0, -1, 0]),
     ["position 6", "feature 'd'", "bag 0", "is -1"]),
    ("offsets not from 0", "floats", kjt([1], [1, 1, 1, 1, 1], name="offsets"), ["must be 0"]),
    ("offsets that fall", "floats", kjt([1, 2], [0, 2, 1, 2, 2], name="offsets"),
     ["position 2", "the end of feature 'b', bag 0", "is 1", "from 2", "to 2"]),
    ("offsets too far", "floats", kjt([1, 2], [0, 1, 3, 3, 3], name="offsets"), ["position 2"]),
    ("index of one feature", "floats", kjt([1, 2, 20, 1], [1, 1, 1, 1]),
     ["feature 'c'", "'values' from position 2", "position 0 is 20", "0 to 19"]),
    ("named index", "floats", [Tensor("c.indices", np.array([[1, 20]]))],
     ["feature 'c'", "position 1 is 20"]),
    ("weights too short", "floats", kjt([1, 1], [2, 0, 0, 0], [1.0]), ["'weights' has 1", "has 2"]),
    ("values as floats", "floats", [Tensor("values", np.zeros(1, F32)),
                                    Tensor("lengths", np.array([1, 0, 0, 0]))], ["FP32", "INT32"]),
    ("2-D values", "floats", kjt([[1]], [1, 0, 0, 0]), ["'values' has 2 dimensions"]),
    ("weights as doubles", "floats", kjt([1], [1, 0, 0, 0]) + [Tensor("weights", np.zeros(1))],
     ["'weights' has datatype FP64", "FP32"]),
    ("weights where max is", "mixed", kjt([1] * 7, [1] * 7, [1.0] * 7),
     ["'weights'", "feature 'history'", "mean"]),
    ("weights of a table of integers", "integers", kjt([1], [1], [1.0]), ["'whole'", "INT32"]),
    ("offsets without indices", "floats", [Tensor("a.offsets", np.array([0]))],
     ["feature 'a'", "'indices' is missing"]),
    ("a default alone", "floats", [Tensor("a.default_index", np.array(0))],
     ["feature 'a'", "'indices' is missing"]),
]
BAD_OUTPUTS = [
    ("unknown", "floats", kjt([], [0] * 4), [{"name": "e"}], ["output 'e'", "did you mean"]),
    ("missing feature", "floats", [Tensor("a.indices", np.array([[1]]))], [{"name": "b"}],
     ["output 'b'", "b.indices"]),
    ("all of some", "floats", [Tensor("a.indices", np.array([[1]]))], [{"name": "embeddings"}],
     ["'embeddings'", "inputs of 'b' are missing"]),
    ("unequal bags", "floats", [Tensor(f"{f}.indices", np.zeros((1 + (f == "c"), 1), np.int64))
                                for f in "abcd"], [{"name": "embeddings"}],
     ["'a' has 1, 'c' has 2"]),
    ("no JSON form", "mixed", [Tensor("half.indices", np.array([[1]]))], None, ["'half' is FP16"]),
]


def check_refused(client, name, model, inputs, outputs, words):
    for binary in (True, False):
        reply = client.infer(model, inputs, binary=binary, outputs=outputs).expect(400)
        for word in words:
            expect(word in reply.error(), f"{name}: {word!r} is not in {reply.error()!r}")


def check_cut(config, features, rng):
    """A request large enough to be cut over two idle workers, across its tables; and one whose first
    feature is one giant bag, which is cut by columns."""
    with Server("--config", config, "--workers", 2, "--inline-work-microseconds", 0) as server, \
            Client(server) as client:
        for lengths in ([1000] * 40, [30000, 0]):
            bags = {f.name: [rng.integers(0, len(f.table), n) for n in lengths]
                    for f in features["floats"]}
            flat = [ids for own in bags.values() for ids in own]
            inputs = [Tensor("values", np.concatenate(flat)),
                      Tensor("lengths", np.array([len(ids) for ids in flat]))]
            want = {f.name: f.pool(bags[f.name], None) for f in features["floats"]}
            whole = np.concatenate([rows.reshape(len(lengths), -1) for rows in want.values()],
                                   axis=1)
            for _ in range(5):
                got = client.infer("floats", inputs, binary=True, outputs=[
                    {"name": n} for n in [*want, "embeddings"]],
                    parameters={"binary_data_output": True}).outputs()
                for name, rows in (want | {"embeddings": whole}).items():
                    expect(np.array_equal(got[name].array, rows), f"{name} of {lengths[:2]}")


def check_limits(directory):
    """max_ids, max_bags and max_reply_bytes are of the whole request."""
    np.save(directory / "t.npy", np.ones((10, 64), F32))
    config = write_json(directory / "c.json", {"models": [
        {"name": "t", "path": "t.npy"},
        {"name": "two", "features": [{"name": n, "model": "t"} for n in "ab"]}]})
    with Server("--config", config, "--max-ids", 6, "--max-bags", 4, "--max-reply-bytes", 1100) \
            as server, Client(server) as client:
        for inputs, words in ((kjt([0] * 7, [3, 4]), ["max_ids", "7"]),
                              (kjt([0] * 6, [1] * 6), ["max_bags", "6"]),
                              ([Tensor("a.indices", np.zeros((1, 3), int)),
                                Tensor("b.indices", np.zeros((1, 4), int))], ["max_ids", "7"]),
                              (kjt([0] * 4, [1] * 4), ["max_reply_bytes"])):
            reply = client.infer("two", inputs, binary=True,
                                 parameters={"binary_data_output": True}).expect(400)
            expect(all(word in reply.error() for word in words), reply.error())
        client.infer("two", kjt([0] * 6, [3, 3]), binary=True,
                     parameters={"binary_data_output": True}).expect(200)


def check_start(directory):
    """What is refused before anything is served, and a folder of models."""
    np.save(directory / "t.npy", np.ones((10, 4), F32))

    def refused(feature, *words, **model):
        models = [{"name": "t", "path": "t.npy"}, {"name": "c", "features": [feature]} | model]
        done = run("serve", "--check", "--config",
                   write_json(directory / "c.json", {"models": models}))
        expect(done.returncode != 0, done.stdout)
        for word in words:
            expect(word in done.stderr, f"{word!r} is not in {done.stderr!r}")

    refused({"name": "f", "model": "tt"}, "'f'", "no model 'tt'", "did you mean 't'")
    refused({"name": "f", "model": "c"}, "'f'", "'c' is a collection")
    refused({"name": "f", "model": "t", "reductoin": "sum"}, "'f'", "reductoin", "reduction")
    refused({"name": "f", "model": "t", "default_index": 10}, "'f'", "default_index", "0 to 9")
    refused({"name": "f", "model": "t", "output_datatype": "FP64"}, "'f'", "FP64")
    refused({"name": "embeddings", "model": "t"}, "'embeddings'", "taken")
    refused({"name": "f", "model": "t"}, "'path'", path="t.npy")
    refused({"name": "f", "model": "t"}, "'reduction'", "features", reduction="sum")
    folder = directory / "models"
    (folder / "c" / "1").mkdir(parents=True)
    np.save(folder / "t.npy", np.eye(4, dtype=F32))
    write_json(folder / "c" / "1" / "config.json",
               {"features": [{"name": "f", "model": "t", "reduction": "max"}]})
    with Server("--models", folder) as server, Client(server) as client:
        got = client.infer("c", [Tensor("f.indices", np.array([[1, 2]]))]).outputs()
        expect_equal(got["f"].array.tolist(), [[0, 1, 1, 0]])


def check_everything(tally):
    rng = np.random.default_rng(seed())
    with scratch() as directory:
        config, features = make_models(rng, directory)
        with Server("--config", config) as server, Client(server) as client:
            tally.check("random requests", check_random, client, features, rng)
            for name, check in globals().items():
                if name in ("check_no_bags", "check_overrides", "check_counted_once",
                            "check_descriptions"):
                    tally.check(name, check, client, features)
            for name, model, inputs, words in REFUSED:
                tally.check(name, check_refused, client, name, model, inputs, None, words)
            for name, model, inputs, outputs, words in BAD_OUTPUTS:
                tally.check(name, check_refused, client, name, model, inputs, outputs, words)
        tally.check("cut", check_cut, config, features, rng)
    with scratch() as directory:
        tally.check("limits", check_limits, directory)
    with scratch() as directory:
        tally.check("start", check_start, directory)


if __name__ == "__main__":
    main(check_everything)
