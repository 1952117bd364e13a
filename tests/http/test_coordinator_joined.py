"""Features of one table are asked for together: each shard has one request for all of which it is told the same, and
the answer is that of one server, with the client's positions, whichever shard is unavailable."""

import re

import numpy as np
import pytest

from harness import Server, expect_equal, wait_until, write_json
from shards import OF, front_of, parts_of
from v2 import Client, Tensor

ROWS, COLUMNS = 300, 10
FEATURES = ["history", "candidates", "best"]


def collection(name, **rules):
    """Three features of one table, of which the first two are alike but for their padding."""
    return {"name": name, "features": [{"name": "history", "model": "items", "padding_idx": 1007} | rules,
                                       {"name": "candidates", "model": "items"} | rules,
                                       {"name": "best", "model": "items", "reduction": "max"} | rules]}


def write_table(directory, rng):
    """Values whose sums are exact. Keys are other numbers than rows; where there are none, ids are rows."""
    np.save(directory / "items.npy", (rng.integers(-512, 512, (ROWS, COLUMNS)) / 64).astype(np.float32))
    np.save(directory / "keys.npy", rng.permutation(np.arange(1000, 1000 + 7 * ROWS, 7)).astype(np.int64))


@pytest.fixture(scope="module", params=["rows", "columns", "keys"], name="trio")
def serve_trio(request, shared_directory, rng):
    """The ids that there are, clients of a front and of a server that has all, and the shards."""
    write_table(shared_directory, rng)
    way = request.param
    model, features = {"path": str(shared_directory / "items.npy")}, collection("all")
    ids = np.arange(ROWS)
    if way == "keys":
        model |= {"keys": str(shared_directory / "keys.npy"), "missing": "error"}
        ids = np.load(shared_directory / "keys.npy")
    else:
        features["features"][0]["padding_idx"] = 7
    config = write_json(shared_directory / f"one-{way}.json", {"models": [{"name": "items"} | model, features]})
    with parts_of(shared_directory, model, way) as servers, Server("--config", config) as one, \
            front_of(shared_directory, [server.url for server in servers], more=[features]) as front, \
            Client(front) as asked, Client(one) as compared:
        wait_until(lambda: asked.get("/v2/models/all/ready").status == 200, "no collection")
        yield ids, asked, compared, servers


def inputs_of(rng, ids, features, bags):
    """Bags that have ids of every shard, as many of each feature."""
    inputs = []
    for name in features:
        inputs.append(Tensor(f"{name}.indices", np.concatenate([ids, rng.choice(ids, 5 * bags)]).astype(np.int64)))
        inputs.append(Tensor(f"{name}.offsets", np.sort(rng.integers(0, 5 * bags + len(ids), bags)).astype(np.int64)))
        inputs[-1].array[0] = 0
    return inputs


def metric(client, pattern):
    text = client.get("/metrics").expect().body.decode()
    return sum(int(count) for count in re.findall(pattern + r"[^}]*\} (\d+)", text))


def had(shard, count):
    """Shards count a request when its answer is on its way."""
    with Client(shard) as client:
        wait_until(lambda: metric(client, r'nv_inference_request_(?:success|failure)\{model="items"') == count,
                   f"{shard.url} has not had {count} requests")


def counted(front, shards, action):
    """What the action returns, and how many requests each shard was sent for it."""
    def sent():
        return [metric(front, rf'bagserve_shard_requests_total\{{model="items",shard="{shard.url}"') for shard in shards]
    before = sent()
    result = action()
    after = sent()
    for shard, count in zip(shards, after):
        had(shard, count)
    return result, [count - then for count, then in zip(after, before)]


def same(got, want):
    expect_equal(got.status, want.status)
    mine, other = got.outputs(), want.outputs()
    expect_equal(list(mine), list(other))
    for name, output in other.items():
        expect_equal(mine[name].array.tobytes(), output.array.tobytes(), name)


def test_one_request_for_features_that_are_alike(trio, rng):
    ids, asked, compared, shards = trio
    for features, parameters, requests in ((FEATURES[:2], {}, 1), (FEATURES[:1], {}, 1), (FEATURES, {}, 2),
                                           (FEATURES[1:], {}, 2), (FEATURES, {"reduction": "sum"}, 1),
                                           (FEATURES[:2], {"explain": True}, 1)):
        for bags in (1, 4, 2000):
            inputs = inputs_of(rng, ids, features, bags)
            parameters = parameters | {"binary_data_output": True}
            got, each = counted(asked, shards, lambda: asked.infer("all", inputs, binary=True, parameters=parameters))
            expect_equal(each, [requests] * OF, (features, parameters, bags))
            same(got, compared.infer("all", inputs, binary=True, parameters=parameters))


def test_weights_of_one_feature_keep_it_apart(trio, rng):
    ids, asked, compared, shards = trio
    inputs = inputs_of(rng, ids, FEATURES[:2], 4)
    for weighted, requests in (("candidates",), 2), (("candidates", "history"), 1):
        more = inputs + [Tensor(f"{name}.per_sample_weights", rng.integers(1, 9, len(ids) + 20).astype(np.float32))
                         for name in weighted]
        got, each = counted(asked, shards, lambda: asked.infer("all", more, binary=True))
        expect_equal(each, [requests] * OF, weighted)
        same(got, compared.infer("all", more, binary=True))


def test_default_rows_of_features_keep_them_apart(trio, rng):
    """A feature's empty bags get the row that it was sent."""
    ids, asked, compared, shards = trio
    inputs = [Tensor("history.indices", ids), Tensor("history.offsets", np.zeros(3, np.int64)),
              Tensor("history.default_index", ids[3:4])]
    for other, requests in ((3, 1), (4, 2)):
        more = inputs + [Tensor("candidates.indices", ids), Tensor("candidates.offsets", np.zeros(2, np.int64)),
                         Tensor("candidates.default_index", ids[other:other + 1])]
        got, each = counted(asked, shards, lambda: asked.infer("all", more, binary=True))
        expect_equal(max(each), requests, other)
        same(got, compared.infer("all", more, binary=True))


def test_errors_have_the_features_positions(trio, rng):
    """Also where a shard finds them, in what it was asked for both: 1 is no id of a key, and ROWS of no row."""
    ids, asked, compared, _ = trio
    wrong = 1 if ids[0] >= 1000 else ROWS
    for feature in FEATURES[:2]:
        for position in (0, 7, len(ids) + 19):
            inputs = inputs_of(rng, ids, FEATURES[:2], 4)
            array = next(tensor for tensor in inputs if tensor.name == f"{feature}.indices").array
            array[position] = wrong
            got, want = (one.infer("all", inputs, binary=True) for one in (asked, compared))
            expect_equal((got.status, got.error()), (400, want.error()))
            expect_equal(f"'{feature}'" in got.error() and f"position {position} " in got.error(), True, got.error())


def test_rows_of_an_absent_shard_are_missing_in_every_feature(directory, rng):
    write_table(directory, rng)
    rows, zeros = np.load(directory / "items.npy"), np.zeros(COLUMNS, np.float32)
    features = collection("all", out_of_range="skip")
    features["features"][0]["padding_idx"] = 7
    inputs = [Tensor("history.indices", np.array([0, 120, 7, 299, 121])), Tensor("history.offsets", np.array([0, 4])),
              Tensor("candidates.indices", np.array([130, 5, 150])), Tensor("candidates.offsets", np.array([0, 1, 2]))]
    with parts_of(directory, {"path": str(directory / "items.npy"), "out_of_range": "skip"}, "rows") as servers, \
            front_of(directory, [server.url for server in servers], more=[features], absent="skip") as front, \
            Client(front) as client:
        wait_until(lambda: client.get("/v2/models/all/ready").status == 200, "no collection")
        servers[1].kill()
        servers[1]._end_checked = True  # pylint: disable=protected-access
        wait_until(lambda: client.infer("all", inputs).header()[0]["parameters"]["absent_shards"] == [servers[1].url],
                   "nobody is absent")
        got = client.infer("all", inputs, binary=True, parameters={"binary_data_output": True}).expect().outputs()
        expect_equal(got["history"].array.tobytes(), np.stack([rows[0] + rows[299], zeros]).tobytes())
        expect_equal(got["candidates"].array.tobytes(), np.stack([zeros, rows[5], zeros]).tobytes())
