"""TorchRec's EmbeddingCollection on a server: a row for each id, in one request, with the bits of the local module.
"""

import contextlib

import numpy as np
import pytest

import v2
from harness import Server, expect, expect_equal, write_json
from numerics import ROW_FORMATS, Storage
from shards import OF, front_of
from torch_modules import Jagged, Rows, connect, expect_bits, make_collection, serve, torch

from bagserve_torch import RemoteEmbeddingCollection, export, replace

TABLES = (("item", ["history", "candidate"], 50, 8), ("category", ["history_category", "candidate"], 12, 4),
          ("user", ["user"], 7, 16))
KEYS = ("user", "candidate", "other", "history_category", "history")  # another order than the server's, and one more


def make_model(**options):
    model = torch.nn.ModuleDict({"sequence": Rows(*TABLES, **options)}).eval()
    for table in model["sequence"].embeddings.values():
        table.weight.data[0, :2] = torch.tensor([-0.0, float("nan")])
    return model


def random_features(rng, most=6):
    """Lengths from 0 on; every feature has a number of bags of its own."""
    return {key: [rng.integers(0, 7, rng.integers(0, most)).tolist() for _ in range(rng.integers(0, 5))] for key in KEYS}


def requests_to(client):
    return client.statistics("sequence")[0]["inference_stats"]["success"]["count"]


def check(got, want):
    expect_equal(set(got), set(want), "features")
    for name, part in want.items():
        expect_bits(got[name].values(), part.values(), name)
        expect(torch.equal(got[name].lengths(), part.lengths()), name)
        indices = part.weights_or_none()
        expect((got[name].weights_or_none() is None) == (indices is None), f"indices of {name}")
        expect(indices is None or torch.equal(got[name].weights_or_none(), indices), f"indices of {name}")


@pytest.mark.parametrize("unique", [False, True])
def test_replaced(directory, rng, unique):
    model = make_model()
    expect_equal(export(model, directory), {"sequence": "sequence"})
    asked = [random_features(rng) for _ in range(50)] + [dict.fromkeys(KEYS, []), random_features(rng, 5000)]
    want = [model["sequence"](Jagged(features)) for features in asked]
    with serve(directory) as server, connect(server) as client, torch.no_grad():
        expect_equal(replace(model, client, unique=unique), {"sequence": "sequence"})
        remote = model["sequence"]
        expect(isinstance(remote, RemoteEmbeddingCollection), remote)
        before = requests_to(client)
        for features, answer in zip(asked, want):
            for kind in (torch.int64, torch.int32):
                check(remote(Jagged(features, weights=torch.ones(1), dtype=kind)), answer)
        expect_equal(requests_to(client) - before, 2 * len(asked), "requests")
        rules = client.config("sequence")["parameters"]
        expect_equal({rules[f"{name}.reduction"]["string_value"] for name in (
            "history", "candidate.item", "candidate.category", "history_category", "user")}, {"none"})


@contextlib.contextmanager
def serve_tables(directory, model, way):
    """One server of the module's tables and their collection, or a coordinator of three that have parts of them."""
    tables, features = {}, []
    for name, names, count, _ in TABLES:
        np.save(directory / f"{name}.npy", model["sequence"].embeddings[name].weight.detach().numpy())
        tables[name] = {"name": name, "path": str(directory / f"{name}.npy")}
        if way == "keys":
            np.save(directory / f"{name}-keys.npy", np.arange(count))
            tables[name]["keys"] = str(directory / f"{name}-keys.npy")
        features += [{"name": f"{one}.{name}" if one == "candidate" else one, "model": name, "reduction": "none"}
                     for one in names]
    collection = {"name": "sequence", "features": features}
    with contextlib.ExitStack() as stack:
        if way == "whole":
            yield stack.enter_context(Server("--config", write_json(directory / "one.json", {
                "models": [*tables.values(), collection]})))
            return
        urls = [stack.enter_context(Server("--config", write_json(directory / f"{index}.json", {"models": [
            table | {"part": {"by": way, "index": index, "of": OF}} for table in tables.values()]}))).url
            for index in range(OF)]
        others = [{"name": name, "shards": urls} for name in tables if name != "item"]
        yield stack.enter_context(front_of(directory, urls, more=[*others, collection], name="item"))


@pytest.mark.parametrize("way", ["whole", "rows", "columns", "keys"])
def test_forward_is_one_request(directory, rng, way):
    """Five features over three tables, with sequences of 0 to 16,384 ids: by the module, by hand in KeyedJaggedTensor's
    layout with equal strides, and with stride_per_key."""
    model, asked = make_model(), []
    for strides in ((3,) * 5, (3, 0, 1, 2, 4)):
        asked.append({key: [rng.integers(0, 7, length).tolist() for length in (0, 16384, 1, 7000)[:stride]]
                      for key, stride in zip(KEYS, strides)})
    with serve_tables(directory, model, way) as server, connect(server) as client, v2.Client(server) as plain, torch.no_grad():
        remote = RemoteEmbeddingCollection(client, "sequence").eval()
        for features in asked:
            want, before = model["sequence"](Jagged(features)), requests_to(client)
            check(remote(Jagged(features)), want)
            expect_equal(requests_to(client) - before, 1, "requests")
            names = [feature for _, names, _, _ in TABLES for feature in names]
            bags = [bag for name in names for bag in features[name]]
            inputs = [v2.Tensor("values", np.concatenate(bags).astype(np.int64)),
                      v2.Tensor("lengths", np.array([len(bag) for bag in bags]))]
            if features is not asked[0]:
                inputs.append(v2.Tensor("stride_per_key", np.array([len(features[name]) for name in names])))
            outputs = plain.infer("sequence", inputs, binary=True, parameters={"binary_data_output": True}).outputs()
            expect_equal(len(outputs), len(want))
            for (name, output), part in zip(outputs.items(), want.values()):
                expect_bits(torch.from_numpy(output.array.copy()), part.values(), f"{name} {way}")


def test_dicts_and_indices(directory, rng):
    """JaggedTensors by feature are answered as a KeyedJaggedTensor is; tensors of ids by tensors of their shape."""
    model = make_model(need_indices=True)
    export(model, directory)
    local, features = model["sequence"], random_features(rng)
    want = local(Jagged(features))
    ids = {key: torch.tensor(rng.integers(0, 7, (3, 2))) for key in KEYS}
    ids["user"] = torch.tensor(5, dtype=torch.int32)
    with serve(directory) as server, connect(server) as client, torch.no_grad():
        replace(model, client)
        check(model["sequence"](Jagged(features).to_dict()), want)
        for unique in (False, True):
            got = RemoteEmbeddingCollection(client, "sequence", unique=unique).eval()(ids)
            expect_bits(got["candidate@category"], local.embeddings["category"](ids["candidate"]), "candidate")
            expect_equal(got["user"].shape, (16,))
        with pytest.raises(KeyError, match="needs feature 'history'"):
            model["sequence"]({"user": ids["user"]})
        with pytest.raises(TypeError, match="must be integers"):
            model["sequence"](ids | {"user": torch.ones(2)})


def test_unique_ids_are_sent_once(directory):
    model = make_model()
    export(model, directory)
    ids = {key: torch.full((1000,), 3) for key in KEYS}
    with serve(directory) as server, connect(server) as client, torch.no_grad():
        sent = []
        ask = client.kjt
        client.kjt = lambda model, values, *rest, **options: sent.append(len(values)) or ask(model, values, *rest, **options)
        remote = RemoteEmbeddingCollection(client, "sequence", unique=True).eval()
        expect_equal(remote(ids)["user"].shape, (1000, 16))
        expect_equal(sent, [5], "ids of five features")


@pytest.mark.parametrize("row_format", ROW_FORMATS)
def test_row_formats(directory, rng, row_format):
    """Replies of quantised rows: every module has what the rows stand for, and padding and empty bags are exact zeros."""
    model = torch.nn.ModuleDict({
        "bags": make_collection(), "table": torch.nn.Embedding(30, 8, padding_idx=2),
        "bag": torch.nn.EmbeddingBag(30, 8, mode="mean"), "sequence": Rows(*TABLES)}).eval()
    export(model, directory)
    features = Jagged(random_features(rng) | {"user": [[]]})
    bags = Jagged({"ad": [[6], []], "history": [[1, 2], []], "user": [[], [3]], "last": [[3], [9, 9]]})
    ids = torch.tensor([[2, 5], [29, 2]])

    def forward():
        rows = {name: part.values() for name, part in model["sequence"](features).items()}
        return model["bags"](bags) | rows | {"table": model["table"](ids), "bag": model["bag"](ids)}

    storage, local = Storage("FP32", row_format), forward()
    with serve(directory) as server, connect(server) as client, torch.no_grad():
        replace(model, client, row_format=row_format)
        for name, got in forward().items():
            rows = local[name].detach().numpy()
            flat = rows.reshape(-1, rows.shape[-1])
            want = storage.decode(storage.encode(flat), rows.shape[-1]).reshape(rows.shape)
            expect_bits(got, torch.from_numpy(want), f"{name} as {row_format}")
        expect(not model["table"](torch.tensor(2)).any(), "padding")
        expect(not model["bags"](bags)["history"][1].any(), "an empty bag")


def test_types_of_row_formats(directory):
    """Answers have the module's type; FP64 is refused before anything is replaced."""
    for dtype in (torch.float16, torch.bfloat16):
        model = torch.nn.ModuleDict({"table": torch.nn.Embedding(9, 4).to(dtype)}).eval()
        export(model, directory / str(dtype))
        want = model["table"](torch.arange(9))
        with serve(directory / str(dtype)) as server, connect(server) as client, torch.no_grad():
            replace(model, client, row_format="int8")
            got = model["table"](torch.arange(9))
            expect_equal(got.dtype, dtype)
            expect((got.float() - want.float()).abs().max() < 0.05, f"{got} for {want}")
    model = torch.nn.ModuleDict({"table": torch.nn.Embedding(9, 4).double()}).eval()
    export(model, directory / "wide")
    with serve(directory / "wide") as server, connect(server) as client:
        with pytest.raises(ValueError, match="'table' on the server is FP64, whose rows are not quantised"):
            replace(model, client, row_format="int8")
        expect(isinstance(model["table"], torch.nn.Embedding), model)


def test_replace_checks(directory):
    """A collection of bags is not one of rows."""
    bags = torch.nn.ModuleDict({"sequence": make_collection()})
    export(bags, directory)
    rows = torch.nn.ModuleDict({"sequence": Rows(("t_item", ["history", "last"], 30, 4), ("t_user", ["user", "last"], 10, 6),
                                                 ("t_ad", ["ad"], 7, 5))})
    with serve(directory) as server, connect(server) as client:
        with pytest.raises(ValueError, match="feature 'history' on the server pools by mean; the module by none"):
            replace(rows, client)
        remote = RemoteEmbeddingCollection(client, "sequence")
        with pytest.raises(RuntimeError, match="has no gradients"):
            remote({"user": torch.tensor([1])})


def test_bags_of_different_numbers(directory):
    """EmbeddingBagCollection takes a KeyedJaggedTensor whose keys have different numbers of bags."""
    model = torch.nn.ModuleDict({"sparse": make_collection()}).eval()
    export(model, directory)
    asked = Jagged({"ad": [[6]], "history": [[1, 2], [], [7]], "user": [], "last": [[3], [9, 9]]})
    want = model["sparse"](asked)
    with serve(directory) as server, connect(server) as client, torch.no_grad():
        replace(model, client)
        got = model["sparse"](asked)
        expect_equal(set(got), set(want))
        for name, rows in want.items():
            expect_bits(got[name], rows, name)
