"""Collections: random requests in every layout against NumPy, and what else they answer.

All bits must be equal. The seed is printed; a failure prints how its request was made.
"""

import numpy as np
import pytest

from collections_models import F32, F64, as_sent, kjt, make_models
from harness import Failure, Server, expect, expect_equal, scaled
from v2 import Client, Tensor

REQUESTS = scaled(1500)


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
        """Some features may be of one or two users, whose long bags come once for each candidate."""
        count = int(self.rng.choice([0, 1, 2, 3, 4, 5, 6, 9]))
        users, in_order = int(self.rng.choice([0, 0, 0, 0, 1, 2])), bool(self.rng.integers(4))
        weighted = all(f.takes_weights for f in self.features) and bool(self.rng.integers(2))
        bags, weights = [], []
        for feature in self.features:
            own = self._bags(feature, count)
            bag_of = range(count)
            if users and self.rng.integers(2):
                own = [self.rng.integers(0, len(feature.table), 150) for _ in range(users)]
                bag_of = [i * users // count if in_order else i % users for i in range(count)]
            factors = self._weights(feature, own) if weighted else None
            own, factors = ([each[i] for i in bag_of] if each else each for each in (own, factors))
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
        kind = int(self.rng.integers(3))
        if kind == 0:
            self._type_in_json(name for name in self.want if not binary)
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
        in_json = set() if binary else set(names)
        for output in self.outputs:
            if self.rng.integers(2):
                own = bool(self.rng.integers(2))
                output["parameters"] = {"binary_data": own}
                (in_json.discard if own else in_json.add)(output["name"])
        self._type_in_json(in_json)
        self.want = {n: self.want[n] for n in names}

    def _type_in_json(self, names):
        """FP16 and BF16 have no JSON form: what is asked for so comes as FP32, not rounded."""
        for name in names:
            if self.types[name] in ("FP16", "BF16"):
                self.types[name] = "FP32"

    def check(self, client):
        reply = client.infer(self.model, self.inputs, binary=self.binary_in, outputs=self.outputs,
                             parameters=self.parameters)
        got = reply.outputs()
        expect_equal(list(got), list(self.want) if self.outputs else
                     [f.name for f in self.features if f.name in self.want], "outputs")
        for name, pooled in self.want.items():
            rows = as_sent(pooled, self.types[name])
            expect_equal(got[name].datatype, self.types[name], name)
            expect_equal(got[name].array.shape, rows.shape, name)
            if not np.array_equal(got[name].array, rows):
                at = tuple(int(i[0]) for i in np.nonzero(got[name].array != rows))
                raise Failure(f"{name} at {at}: {got[name].array[at]!r} instead of {rows[at]!r}")


def test_random(client, features, rng):
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
def test_no_bags(client):
    for inputs in (kjt([], np.zeros(0, np.int64)), kjt([], [0], name="offsets")):
        got = client.infer("floats", inputs).outputs()
        expect_equal({n: t.array.shape for n, t in got.items()},
                     {"a": (0, 16), "b": (0, 12), "c": (0, 2, 3), "d": (0, 6)})
        whole = client.infer("floats", inputs, outputs=[{"name": "embeddings"}]).outputs()
        expect_equal(whole["embeddings"].array.shape, (0, 40))


def test_overrides(client, features):
    """A request's parameters go for every feature; a wider type joins what differs in type."""
    table = features["floats"][0].table
    inputs = [Tensor("a.indices", np.array([[1, 2]])), Tensor("b.indices", np.array([[3, 3]]))]
    got = client.infer("floats", inputs, parameters={"reduction": "mean"}).outputs()
    expect(np.array_equal(got["a"].array[0], (table[1] + table[2]) / F32(2)), "mean of a")
    lengths = kjt([0] * 7, [1] * 7)
    reply = client.infer("mixed", lengths, outputs=[{"name": "embeddings"}])
    expect("needs one type; 'history' makes FP32 and" not in reply.error(), reply.error())
    expect("'history' makes FP32, 'wide' makes FP64" in reply.error(), reply.error())
    reply = client.infer("mixed", lengths, outputs=[{"name": "embeddings"}],
                         parameters={"binary_data_output": True})
    expect("'history' makes FP32, 'half' makes FP16" in reply.error(), reply.error())
    joined = [Tensor("a.indices", np.array([[1]])), Tensor("b.indices", np.array([[1]])),
              Tensor("c.indices", np.array([[1]])), Tensor("d.indices", np.array([[1]]))]
    got = client.infer("floats", joined, outputs=[{"name": "embeddings"}], binary=True,
                       parameters={"output_datatype": "FP16", "binary_data_output": True})
    expect_equal(got.outputs()["embeddings"].datatype, "FP16")


def test_json_of_half_floats(client, features):
    """Asked in both ways in one request: side by side in JSON, by name in binary."""
    half, brain = features["halves"]
    ids = np.array([1, 5, 7, 2, 2])
    bags = {half.name: [ids[:2], ids[2:3]], brain.name: [ids[3:], ids[5:]]}
    inputs = kjt(ids, [2, 1, 2, 0])
    outputs = [{"name": "embeddings"}, {"name": half.name, "parameters": {"binary_data": True}},
               {"name": brain.name}]
    got = client.infer("halves", inputs, outputs=outputs).outputs()
    want = {f.name: f.pool(bags[f.name], None) for f in (half, brain)}
    expect_equal([t.datatype for t in got.values()], ["FP32", "FP16", "FP32"])
    expect_equal(got["embeddings"].array.tolist(), np.concatenate(list(want.values()), 1).tolist())
    expect_equal(got[half.name].array.tolist(), want[half.name].astype(np.float16).tolist())
    expect_equal(got[brain.name].array.tolist(), want[brain.name].tolist())
    reply = client.infer("halves", inputs, parameters={"output_datatype": "BF16"}).expect(400)
    expect(f"'{half.name}' is BF16" in reply.error() and "binary" in reply.error(), reply.error())
    reply = client.infer("halves", inputs, outputs=outputs[:1], parameters={
        "binary_data_output": True}).expect(400)
    expect("'half' makes FP16, 'brain' makes BF16" in reply.error(), reply.error())


def test_counted_once(client):
    """A request is one request and one execution, whatever its features are."""

    def counters(model):
        return client.get(f"/v2/models/{model}/stats").json()["model_stats"][0]

    before, table = counters("floats"), counters("items")
    client.infer("floats", kjt([0] * 8, [2] * 4)).expect()
    after = counters("floats")
    expect_equal(after["execution_count"] - before["execution_count"], 1)
    expect_equal(after["inference_count"] - before["inference_count"], 4)
    expect_equal(after["inference_stats"]["success"]["count"] -
                 before["inference_stats"]["success"]["count"], 1)
    expect_equal(counters("items"), table)


def test_descriptions(client):
    metadata = client.get("/v2/models/mixed").json()
    expect_equal([t["name"] for t in metadata["inputs"]], ["values", "lengths", "stride_per_key", "weights"])
    expect_equal([(t["name"], t["datatype"], t["shape"]) for t in metadata["outputs"]],
                 [("history", "FP32", [-1, 16]), ("user.recent", "FP32", [-1, 16]),
                  ("half", "FP16", [-1, 6]), ("brain", "BF16", [-1, 8]), ("wide", "FP64", [-1, 3]),
                  ("codes", "FP32", [-1, 12]), ("cube", "FP32", [-1, 2, 3])])
    outputs = client.get("/v2/models/floats").json()["outputs"]
    expect_equal(outputs[-1], {"name": "embeddings", "datatype": "FP32", "shape": [-1, 40]})
    config = client.get("/v2/models/mixed/config").json()
    expect_equal([t["optional"] for t in config["input"]], [False, False, True, True])
    expect_equal(config["parameters"]["user.recent.model"], {"string_value": "items"})
    expect_equal(config["parameters"]["user.recent.reduction"], {"string_value": "sqrtn"})
    expect_equal(config["parameters"]["history.default_index"], {"string_value": "3"})
    expect_equal(client.get("/v2/models/mixed/ready").json(), {"name": "mixed", "ready": True})
    index = client.request("POST", "/v2/repository/index").json()
    expect("mixed" in [entry["name"] for entry in index], index)


def test_split(models, features, rng):
    """A request large enough to be split over two idle workers, across its tables; and one whose first
    feature is one giant bag, which is split by columns."""
    with Server("--config", models[0], "--workers", 2, "--inline-work-microseconds", 0) as server, \
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


@pytest.fixture(scope="module", name="models")
def make(shared_directory, rng):
    """The configuration, and the features of each collection."""
    return make_models(rng, shared_directory)


@pytest.fixture(scope="module", name="features")
def features_of(models):
    return models[1]


@pytest.fixture(scope="module", name="server")
def serve(models):
    with Server("--config", models[0]) as server:
        yield server
