"""PyTorch: the embeddings of a model are exported, served, and asked in their places, with the same bits.

TorchRec is not among Debian's packages: classes with its attributes stand for it.
"""

import json
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

from harness import PROGRAM, ROOT, TIMEOUT_S, Server, expect, expect_equal

torch = pytest.importorskip("torch", reason="python3-torch is not installed")
sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
from bagserve_client import AsyncClient, BadRequest, Client, ConnectionFailed  # noqa: E402
from bagserve_export import Export, main  # noqa: E402
from bagserve_torch import (  # noqa: E402
    RemoteEmbedding, RemoteEmbeddingBag, RemoteEmbeddingBagCollection, export, replace)

EXAMPLES = ROOT / "config" / "examples"


def serve(folder, *arguments):
    return Server("--models", folder, *arguments)


def connect(server):
    return Client(f"{server.host}:{server.port}")


def expect_bits(got, want, what):
    """The same type, shape and bits."""
    expect_equal((got.dtype, got.shape), (want.dtype, want.shape), what)
    same = np.array_equal(got.numpy().view(np.uint8), want.detach().numpy().view(np.uint8))
    expect(same, f"{what}: {got} for {want}")


class Bags(torch.nn.Module):
    """What bagserve_torch uses of TorchRec's EmbeddingBagCollection, and its answers."""

    def __init__(self, *tables, is_weighted=False):
        super().__init__()
        self.tables = [types.SimpleNamespace(name=name, feature_names=features, num_embeddings=rows,
                                             embedding_dim=dim, pooling=types.SimpleNamespace(value=pooling))
                       for name, features, rows, dim, pooling in tables]
        self.embedding_bags = torch.nn.ModuleDict({
            table.name: torch.nn.EmbeddingBag(table.num_embeddings, table.embedding_dim,
                                              mode=table.pooling.value.lower()) for table in self.tables})
        self.weighted = is_weighted

    def embedding_bag_configs(self):
        return self.tables

    def is_weighted(self):
        return self.weighted

    def forward(self, features):
        names = [name for table in self.tables for name in table.feature_names]
        answer = {}
        for table in self.tables:
            for name in table.feature_names:
                ids, starts, weights = features.bags(name)
                rows = self.embedding_bags[table.name](ids, starts, weights if self.weighted else None)
                answer[f"{name}@{table.name}" if names.count(name) > 1 else name] = rows
        return answer


class Jagged:
    """A KeyedJaggedTensor, of {feature: bags}."""

    def __init__(self, features, weights=None, dtype=torch.int64):
        self.features, self.all_weights, self.dtype = features, weights, dtype

    def keys(self):
        return list(self.features)

    def values(self):
        return torch.tensor([i for bags in self.features.values() for bag in bags for i in bag],
                            dtype=self.dtype)

    def lengths(self):
        return torch.tensor([len(bag) for bags in self.features.values() for bag in bags], dtype=self.dtype)

    def weights(self):
        if self.all_weights is None:
            raise ValueError("there are no weights")
        return self.all_weights

    def weights_or_none(self):
        return self.all_weights

    def bags(self, name):
        keys, lengths = self.keys(), self.lengths().reshape(len(self.features), -1)
        place = keys.index(name)
        first = int(lengths[:place].sum())
        mine = lengths[place]
        part = slice(first, first + int(mine.sum()))
        weights = None if self.all_weights is None else self.all_weights[part]
        return self.values()[part], torch.cumsum(mine, 0) - mine, weights


def make_collection():
    return Bags(("t_item", ["history", "last"], 30, 4, "MEAN"), ("t_user", ["user", "last"], 10, 6, "SUM"),
                ("t_ad", ["ad"], 7, 5, "SUM"))


ASKED = {"history": [[1, 2], []], "last": [[3], [9, 9]], "user": [[3, 4], [0]], "ad": [[6], [5, 5, 1]]}


# ---- modules ----------------------------------------------------------------------------------
@pytest.fixture(scope="module", name="bags")
def make_bags():
    """Every mode and option of nn.EmbeddingBag; what is no embedding beside them."""
    torch.manual_seed(3)
    make = torch.nn.EmbeddingBag
    model = torch.nn.ModuleDict({
        "sum": make(50, 16, mode="sum"), "mean": make(50, 7), "max": make(50, 4, mode="max"),
        "padded": make(50, 4, mode="mean", padding_idx=1), "last": make(50, 5, mode="sum", padding_idx=-1),
        "padded_max": make(50, 5, mode="max", padding_idx=3),
        "ends": make(50, 4, mode="sum", include_last_offset=True),
        "fp64": make(50, 3, mode="sum").double(), "dense": torch.nn.Linear(4, 3, bias=False),
        "nested": torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Embedding(9, 3, padding_idx=2, sparse=True))})
    with torch.no_grad():
        model["nested"][1].weight[2] = torch.tensor([-0.0, 5, 7])
    return model.eval()


@pytest.fixture(scope="module", name="served")
def serve_bags(bags, shared_directory):
    """(client, {path: name}) of a server of the exported modules."""
    names = export(bags, shared_directory)
    with serve(shared_directory) as server, connect(server) as client:
        expect_equal([e for e in server.events() if e["level"] == "warning"], [])
        yield client, names


def test_names(bags, served):
    client, names = served
    want = {path: path for path in bags if path not in ("dense", "nested")} | {"nested.1": "nested.1"}
    expect_equal((names, sorted(client.models())), (want, sorted(want)))


def test_embedding_bags(bags, served, rng):
    """1-D and 2-D, by all that a module is and by arguments in place of it, with either type of ids."""
    client, names = served
    for name in ("sum", "mean", "max", "padded", "last", "padded_max", "ends", "fp64"):
        local = bags[name]
        for remote in (RemoteEmbeddingBag(client, name, include_last_offset=local.include_last_offset),
                       RemoteEmbeddingBag(client, "sum", mode=local.mode, padding_idx=local.padding_idx,
                                          include_last_offset=local.include_last_offset)):
            remote.eval()
            if remote.model != name:
                local = torch.nn.EmbeddingBag.from_pretrained(
                    bags["sum"].weight, mode=local.mode, padding_idx=local.padding_idx,
                    include_last_offset=local.include_last_offset)
            for dtype in (torch.int32, torch.int64):
                ids = torch.tensor(rng.integers(0, 50, (40, 6)), dtype=dtype)
                starts = torch.tensor([0, 0, 5, 17, 17, 201, 240], dtype=dtype)
                expect_bits(remote(ids), local(ids), f"{name}, 2-D")
                expect_bits(remote(ids.flatten(), starts), local(ids.flatten(), starts), f"{name}, 1-D")
                expect_bits(remote(ids[:, 2:4].T.contiguous()), local(ids[:, 2:4].T.contiguous()), f"{name}, T")
                empty = torch.tensor([0, 0], dtype=dtype)
                expect_bits(remote(ids.flatten()[:0], empty), local(ids.flatten()[:0], empty), "empty bags")
    expect_equal(names["sum"], "sum")


def test_weights(bags, served, rng):
    """To the bit without padding, and near it with padding."""
    client, _ = served
    ids = torch.tensor(rng.integers(0, 50, 300))
    starts = torch.arange(0, 300, 20)
    weights = torch.tensor(rng.standard_normal(300), dtype=torch.float32)
    for name in ("sum", "fp64"):
        factors = weights.to(bags[name].weight.dtype)
        remote = RemoteEmbeddingBag(client, name).eval()
        expect_bits(remote(ids, starts, factors), bags[name](ids, starts, factors), name)
        expect_bits(remote(ids.reshape(-1, 3), None, factors.reshape(-1, 3)),
                    bags[name](ids.reshape(-1, 3), None, factors.reshape(-1, 3)), f"{name}, 2-D")
    remote = RemoteEmbeddingBag(client, "last").eval()
    got, want = remote(ids, starts, weights), bags["last"](ids, starts, weights)
    expect(torch.allclose(got, want, atol=1e-4) and got.dtype == want.dtype, "with padding")


def test_embeddings(bags, served):
    """Ids of any shape; the row of padding_idx, too, and the sign of its zero."""
    client, _ = served
    local, remote = bags["nested"][1], RemoteEmbedding(client, "nested.1").eval()
    for ids in (torch.tensor(2), torch.tensor([2, 3]), torch.tensor([[0, 2, 8], [2, 1, 1]]),
                torch.zeros(0, 4, dtype=torch.int64), torch.ones(2, 1, 3, 2, dtype=torch.int32)):
        expect_bits(remote(ids), local(ids), f"{tuple(ids.shape)}")
        expect(not remote(ids).requires_grad, "no gradient")
    one = remote(torch.tensor([1]))
    one += 1
    expect(not torch.equal(remote(torch.tensor([1])), one), "an answer is the caller's own")


def test_what_is_wrong_with_a_call(served):
    client, _ = served
    bag, single = RemoteEmbeddingBag(client, "sum").eval(), RemoteEmbedding(client, "nested.1").eval()
    ids, starts = torch.tensor([1, 2, 3]), torch.tensor([0, 1])
    factors = torch.ones(3)
    for work, kind, words in (
            (lambda: bag(ids), TypeError, "'offsets' must be a tensor, not NoneType"),
            (lambda: bag([1, 2], starts), TypeError, "'input' must be a tensor, not list"),
            (lambda: bag(ids.reshape(1, 3), starts), ValueError, "'offsets' go with an input of 1 dimension"),
            (lambda: bag(ids, starts.reshape(1, 2)), ValueError, "'offsets' must have 1 dimension, not 2"),
            (lambda: bag(ids, starts + 1), ValueError, "must begin with 0, not 1"),
            (lambda: bag(ids.reshape(1, 3, 1)), ValueError, "1 or 2 dimensions, not 3"),
            (lambda: bag(ids, starts, torch.ones(2)), ValueError, r"the shape of 'input', \(3,\), not \(2,\)"),
            (lambda: bag(ids.float(), starts), TypeError, "integers"),
            (lambda: bag(ids.to("meta"), starts), ValueError, "'input' is on the device meta"),
            (lambda: single(ids.to("meta")), ValueError, "'input' is on the device meta"),
            (lambda: bag(ids + 48, starts), BadRequest, "position 1 is 50; it must be from 0 to 49"),
            (lambda: RemoteEmbeddingBag(client, "mean").eval()(ids, starts, factors), BadRequest, "weights"),
            (lambda: RemoteEmbeddingBag(client, "sum", mode="avg"), ValueError, "mode is 'avg'"),
            (lambda: RemoteEmbedding(AsyncClient("127.0.0.1:1"), "x"), TypeError, "AsyncClient")):
        with pytest.raises(kind, match=words):
            work()
    gone = RemoteEmbedding(Client("127.0.0.1:1", retries=0), "x").eval()
    with pytest.raises(ConnectionFailed):
        gone(ids)


class Elsewhere(torch.Tensor):
    """Ids as on a GPU, of which there is none here: they have no array, and say that they are on another
    device. A tensor that is copied there has no numbers to look at."""

    device = torch.device("meta")

    def numpy(self):
        raise TypeError("can't convert it to numpy. Use Tensor.cpu() first")

    def cpu(self):
        return torch.Tensor.cpu(self).as_subclass(torch.Tensor)


def test_other_devices(bags, served):
    """Ids are copied to the CPU, and the answer to their device."""
    client, _ = served
    ids = torch.tensor([[1, 2]]).as_subclass(Elsewhere)
    for remote in (RemoteEmbeddingBag(client, "sum").eval(), RemoteEmbedding(client, "nested.1").eval()):
        got = remote(ids)
        expect_equal((got.device.type, got.shape), ("meta", remote(torch.tensor([[1, 2]])).shape))


def test_gradients(served):
    """Asked for, they are an error: nobody trains half a model."""
    client, _ = served
    ids, starts, factors = torch.tensor([1, 2]), torch.tensor([0]), torch.ones(2, requires_grad=True)
    collection = RemoteEmbeddingBagCollection(client, "none")
    for work in (lambda: RemoteEmbeddingBag(client, "sum")(ids, starts),
                 lambda: RemoteEmbedding(client, "nested.1")(ids), lambda: collection(Jagged(ASKED))):
        with pytest.raises(RuntimeError, match=r"has no gradients: call eval\(\).*torch.no_grad\(\)"):
            work()
    bag = RemoteEmbeddingBag(client, "sum")
    for module in (bag.eval(), bag.train()):
        with torch.no_grad():
            expect(not module(ids, starts, factors).requires_grad, "under no_grad")
    with pytest.raises(RuntimeError, match="weights ask for one.*no_grad"):
        bag.eval()(ids, starts, factors)
    with pytest.raises(RuntimeError, match="weights ask for one"):
        collection.eval()(Jagged({"x": [[1]]}, weights=factors))


# ---- collections ------------------------------------------------------------------------------
def test_collections(directory):
    """One request for all features, of keys in any order, with others that nobody knows."""
    model = torch.nn.Sequential(make_collection()).eval()
    local = model[0]
    expect_equal(export(model, directory), {"0": "0"})
    with serve(directory) as server, connect(server) as client:
        expect_equal([(f["name"], f["model"]) for f in client.features("0")],
                     [("history", "0.embedding_bags.t_item"), ("last.t_item", "0.embedding_bags.t_item"),
                      ("user", "0.embedding_bags.t_user"), ("last.t_user", "0.embedding_bags.t_user"),
                      ("ad", "0.embedding_bags.t_ad")])
        expect_equal(replace(model, client), {"0": "0"})
        remote = model[0]
        expect(isinstance(remote, RemoteEmbeddingBagCollection) and not remote.training, remote)
        for order in (["history", "last", "user", "ad"], ["ad", "other", "user", "last", "history"]):
            for dtype in (torch.int32, torch.int64):
                asked = Jagged({name: ASKED.get(name, [[99], []]) for name in order}, dtype=dtype)
                got, want = remote(asked), local(asked)
                expect_equal(list(got), list(want))
                for name, rows in want.items():
                    expect_bits(got[name], rows, name)
        expect_equal([s["inference_stats"]["success"]["count"] for s in client.statistics("0")], [4], "requests")
        with pytest.raises(KeyError, match="needs feature 'ad'; the keys are history, last, user"):
            remote(Jagged({name: ASKED[name] for name in ("history", "last", "user")}))
        for wrong in (Jagged({}), types.SimpleNamespace(keys=lambda: ["a", "b"], values=lambda: torch.zeros(1).long(),
                                                        lengths=lambda: torch.ones(3).long())):
            with pytest.raises(ValueError, match="'lengths' must have as many"):
                remote(wrong)
        with pytest.raises(BadRequest, match="feature 'user'.* is 10; it must be from 0 to 9"):
            remote(Jagged(ASKED | {"user": [[10], []]}))


def test_same_order_without_sharing(directory):
    """Features of one table each, in the server's order: sent as they are."""
    local = Bags(("a", ["x"], 5, 3, "SUM"), ("b", ["y:1"], 6, 2, "MEAN")).eval()
    expect_equal(export(local, directory), {"": "embedding"})
    asked = Jagged({"x": [[0, 1], [4]], "y:1": [[], [5, 0]]})
    with serve(directory) as server, connect(server) as client:
        expect_equal(sorted(client.models()), ["embedding", "embedding_bags.a", "embedding_bags.b"])
        got = RemoteEmbeddingBagCollection(client, "embedding").eval()(asked)
        for name, rows in local(asked).items():
            expect_bits(got[name], rows, name)
        with pytest.raises(ValueError, match="an embedding itself.*'embedding'"):
            replace(local, client)


def test_weighted_collections(directory):
    local = Bags(("a", ["x"], 5, 3, "SUM"), ("b", ["y"], 6, 2, "SUM"), is_weighted=True).eval()
    model = torch.nn.ModuleDict({"c": local, "plain": Bags(("a", ["x"], 5, 3, "MEAN"), ("b", ["y"], 6, 2, "SUM"))})
    plain = model["plain"]
    export(model, directory)
    asked = Jagged({"y": [[1, 5, 5], [0]], "x": [[0, 1], [4]]}, weights=torch.randn(7).double())
    asked.all_weights = asked.all_weights.float()
    with serve(directory) as server, connect(server) as client:
        replace(model.eval(), client)
        for remote, module in ((model["c"], local), (model["plain"], plain),
                               (RemoteEmbeddingBagCollection(client, "c").eval(), local)):
            for name, rows in module(asked).items():
                expect_bits(remote(asked)[name], rows, name)
        with pytest.raises(ValueError, match="there are no weights"):
            model["c"](Jagged(ASKED))


def test_a_collection_that_changes(directory):
    """Its features are read again where they are others, or in another order, than they were."""
    tables = {name: torch.randn(8, 3) for name in ("a", "b", "c")}

    def write(version, *features):
        exported = Export()
        if version == 1:
            for name, rows in tables.items():
                exported.table(name, rows, "sum")
        exported.collection("all", {feature: feature for feature in features})
        exported.write(directory, version)

    write(1, "a", "b")
    with serve(directory, "--model-control", "explicit", "--admin-socket", directory / "admin") as server, \
            connect(server) as client, Client(f"unix://{directory}/admin") as admin:
        remote = RemoteEmbeddingBagCollection(client, "all").eval()
        asked = Jagged({"a": [[1, 2]], "b": [[3]], "c": [[7, 7]]})
        for version, features in ((1, "ab"), (2, "ba"), (3, "cab"), (4, "c")):
            if version > 1:
                write(version, *features)
                admin.load("all")
            got = remote(asked)
            expect_equal(list(got), list(features))
            for name, rows in got.items():
                want = torch.nn.functional.embedding_bag(asked.bags(name)[0], tables[name], torch.tensor([0]),
                                                         mode="sum")
                expect_bits(rows, want, f"{name} in version {version}")


# ---- export and replace -----------------------------------------------------------------------
def test_replace(directory):
    """In place, modules that stand at several places, too; small ones stay where that is asked for."""
    shared = torch.nn.EmbeddingBag(100, 4, mode="sum")
    model = torch.nn.ModuleDict({"one": shared, "two": torch.nn.Sequential(shared, torch.nn.ReLU()),
                                 "small": torch.nn.Embedding(3, 2), "tied": torch.nn.Embedding(100, 4)})
    model["tied"].weight = shared.weight
    want = {"one": "one", "two.0": "one", "small": "small", "tied": "tied"}
    expect_equal(export(model, directory), want)
    ids = torch.tensor([[1, 99], [5, 5]])
    local = model["two"](ids), model["tied"](ids)
    with serve(directory) as server, connect(server) as client:
        expect_equal(replace(model, client, min_bytes=25), {name: want[name] for name in want if name != "small"})
        expect(model["one"] is model["two"][0] and isinstance(model["one"], RemoteEmbeddingBag), model)
        expect(isinstance(model["small"], torch.nn.Embedding) and model["one"].training, model)
        expect_equal([name for name, _ in model.named_parameters()], ["small.weight"])
        model.eval()
        expect_bits(model["two"](ids), local[0], "two")
        expect_bits(model["tied"](ids), local[1], "tied")
        expect_equal(replace(model, client), {"small": "small"})
        with pytest.raises(ValueError, match="no EmbeddingBag"):
            replace(model, client)


def test_replace_without_rows(directory):
    """A model may be built without the memory of its embeddings; they are nothing to export."""
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(10, 4, mode="sum"))
    export(model, directory)
    empty = torch.nn.Sequential(torch.nn.EmbeddingBag(10, 4, mode="sum", device="meta")).eval()
    with pytest.raises(ValueError, match="0: its tensor is on the device meta"):
        export(empty, directory / "other")
    with serve(directory) as server, connect(server) as client:
        replace(empty, client)
        ids = torch.tensor([[1, 9]])
        expect_bits(empty(ids), model(ids), "sum")


def test_replace_checks_what_is_served(directory):
    """Nothing is swapped where a model is missing, or answers otherwise."""
    bag, single = torch.nn.EmbeddingBag(10, 4), torch.nn.Embedding(6, 2)
    exported = Export()
    exported.table("rows", torch.zeros(11, 4), "mean")
    exported.table("width", torch.zeros(10, 5), "mean")
    exported.table("padded", torch.zeros(10, 4), "mean", padding_idx=3)
    exported.table("default", torch.zeros(10, 4), "mean", default_index=3)
    exported.table("c.embedding_bags.t", torch.zeros(5, 3), "mean")
    exported.collection("c", {"f": "c.embedding_bags.t"})
    exported.collection("d", {"g": "c.embedding_bags.t"})
    exported.table("first", torch.zeros(6, 2), "mean")
    exported.table("right", torch.zeros(6, 2), "mean")
    exported.write(directory)
    collection = Bags(("t", ["f"], 5, 3, "SUM"))
    with serve(directory) as server, connect(server) as client:
        for name, module, words in (
                ("absent", bag, "'absent' is not on the server .*export the module"),
                ("rows", bag, r"'rows' on the server has the shape \(11, 4\); the module has \(10, 4\)"),
                ("width", bag, r"the shape \(10, 5\)"), ("padded", bag, "leaves out padding_idx 3"),
                ("default", bag, "gives empty bags the row 3"), ("right", bag, r"\(6, 2\)"),
                ("c", collection, "feature 'f' on the server pools by mean; the module by sum"),
                ("d", collection, "'d' on the server has the features g; the module has f"),
                ("right", collection, "the features of no collection")):
            model = torch.nn.ModuleDict({"first": single, name: module})
            before = list(model.children())
            with pytest.raises(ValueError, match=words):
                replace(model, client)
            expect_equal(list(model.children()), before)


def test_what_is_wrong_with_modules(directory):
    quantised = torch.nn.ModuleDict({"q": torch.ao.nn.quantized.EmbeddingBag(10, 4)})
    prepared = torch.nn.ModuleDict({"q": torch.nn.Embedding(10, 4)})
    prepared["q"].weight_fake_quant = torch.nn.Identity()
    sparse = torch.nn.Sequential(torch.nn.Embedding(3, 2))
    sparse[0].weight = torch.nn.Parameter(torch.ones(3, 2).to_sparse())
    split = make_collection()
    state = split.state_dict
    split.state_dict = lambda: {key + suffix: tensor for key, tensor in state().items()
                                for suffix in ("", "_qscale", "_qbias")}
    for model, words in (
            (torch.nn.Linear(2, 2), "no EmbeddingBag, Embedding"),
            (torch.nn.ModuleDict({"a b": torch.nn.Embedding(3, 2), "a_b": torch.nn.Embedding(3, 2)}),
             "two models would be called 'a_b'"),
            (quantised, "'q' is quantised .EmbeddingBag"), (prepared, "'q' is quantised"),
            (sparse, "0: its tensor is sparse .*to_dense"), (split, "has codes.*weight_qscale"),
            (torch.nn.Sequential(torch.nn.Embedding(3, 2, max_norm=1.0)), "'0': max_norm"),
            (Bags(("t", ["embeddings"], 3, 2, "SUM")), "cannot be named 'embeddings'"),
            (Bags(("t", ["a:b", "a_b"], 3, 2, "SUM")), "two features of 'embedding' would be called 'a_b'")):
        with pytest.raises(ValueError, match=words):
            export(model, directory)
    expect_equal(list(directory.iterdir()), [])


def test_row_formats(directory, rng):
    """Quantised on the way, and near what the module says."""
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(100, 16, mode="mean")).eval()
    local = model[0]
    export(model, directory, row_format="int8", program=PROGRAM)
    with serve(directory) as server, connect(server) as client:
        replace(model, client)
        ids = torch.tensor(rng.integers(0, 100, (8, 3)))
        expect(torch.allclose(model(ids), local(ids), atol=0.03), "int8")
        expect_equal(client.metadata("0")["parameters"]["row_format"], "int8")


def test_types(directory):
    """Elements in the type that they have; bfloat16, too."""
    exported, tables = Export(), {}
    for kind in (torch.bfloat16, torch.float16, torch.float64):
        name = str(kind)[6:]
        tables[name] = torch.randn(6, 3).to(kind)
        exported.table(name, tables[name], "sum")
    exported.write(directory)
    with serve(directory) as server, connect(server) as client:
        for name, rows in tables.items():
            got = RemoteEmbedding(client, name).eval()(torch.tensor([[0], [5]]))
            expect(got.dtype == rows.dtype and torch.equal(got, rows[torch.tensor([[0], [5]])]), f"{name}: {got}")
        weights = torch.tensor([0.5, 2]).to(torch.bfloat16)
        got = RemoteEmbeddingBag(client, "bfloat16").eval()(torch.tensor([1, 1]), torch.tensor([0]), weights)
        expect(torch.equal(got, (tables["bfloat16"][1:2].float() * 2.5).to(torch.bfloat16)), got)


def test_threads(bags, served):
    """One module for all of them."""
    client, _ = served
    remote, right = RemoteEmbeddingBag(client, "sum").eval(), []

    def work(first):
        ids = torch.arange(first, first + 4).reshape(2, 2)
        right.append(all(torch.equal(remote(ids), bags["sum"](ids)) for _ in range(20)))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 40, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    expect_equal(right, [True] * 8)


# ---- checkpoints ------------------------------------------------------------------------------
def test_checkpoints(directory, capsys):
    """A state_dict one level down is found; what holds none is said, without a traceback."""
    module = torch.nn.ModuleDict({"emb": torch.nn.EmbeddingBag(6, 2), "dense": torch.nn.Linear(2, 6)})
    files = {"plain.pt": module.state_dict(), "lightning.pt": {"epoch": 3, "state_dict": module.state_dict()},
             "nested.pt": {"model_state_dict": module.state_dict(), "optimizer": {"step": 1}}}
    table = ["--table", "emb=emb.weight,reduction=mean,padding_idx=0"]
    for name, content in files.items():
        torch.save(content, directory / name)
        main([str(directory / name), str(directory / f"{name}.d"), *table])
        expect_equal(capsys.readouterr().out, f"emb: 6 rows of 2, mean\n"
                     f"bagserve serve --config {directory}/{name}.d/bagserve.json\n")
    local = torch.nn.EmbeddingBag.from_pretrained(module["emb"].weight, mode="mean", padding_idx=0)
    with serve(directory / "plain.pt.d") as server, connect(server) as client:
        expect_equal(client.models(), ["emb"])
        ids = torch.tensor([[0, 5, 1], [0, 0, 0]])
        expect_bits(RemoteEmbeddingBag(client, "emb").eval()(ids), local(ids), "emb")
    torch.save(module, directory / "module.pt")
    torch.save({"loss": 1, "net": {"step": 2}}, directory / "none.pt")
    torch.save([1, 2], directory / "list.pt")
    torch.save({"emb.weight": torch.ones(3, 2).to_sparse()}, directory / "sparse.pt")
    (directory / "text.pt").write_text("import torch")
    for name, words in (("module.pt", "bagserve_torch.export(module, directory)"), ("none.pt", "it has loss, net"),
                        ("list.pt", "a list"), ("text.pt", "no checkpoint of tensors alone"),
                        ("sparse.pt", "sparse"), ("missing.pt", "No such file")):
        with pytest.raises(SystemExit) as ended:
            main([str(directory / name), str(directory / "d"), *table])
        expect(name in str(ended.value) and words in str(ended.value), f"{ended.value}")
    expect(not (directory / "d").exists(), "something was written")


# ---- walk-throughs ----------------------------------------------------------------------------
def run_example(name, *arguments):
    return subprocess.run(["/usr/bin/python3", EXAMPLES / name, *arguments], check=True, text=True,
                          capture_output=True, timeout=4 * TIMEOUT_S).stdout


def test_dlrm(directory):
    """config/examples/dlrm.py: the same scores with its tables here and there, to the bit."""
    said = run_example("dlrm.py", "train", directory / "dlrm.pt", directory / "dlrm")
    expect("exported {'sparse': 'sparse'}" in said, said)
    with serve(directory / "dlrm") as server, connect(server) as client:
        said = run_example("dlrm.py", "compare", directory / "dlrm.pt", f"{server.host}:{server.port}")
        expect_equal(said, "replaced {'sparse': 'sparse'}\n26 features, 128 scores, 0 differ\n")
        expect_equal([s["inference_stats"]["success"]["count"] for s in client.statistics("sparse")], [1], "requests")


def test_two_tower(directory):
    """config/examples/two_tower.py: trained, exported, served, and ranked as torch ranks."""
    folder = directory / "two_tower"
    said = run_example("two_tower.py", "train", folder)
    expect(f"serve --models {folder}/models" in said, said)
    catalogue = json.loads((folder / "catalogue.json").read_text())
    with serve(folder / "models") as server:
        lines = run_example("two_tower.py", "rank", folder, f"{server.host}:{server.port}").splitlines()[1:]
        with connect(server) as client:
            user = client.bags("user", [catalogue["user"]])[0]
            scores = client.packed("item", np.array(catalogue["tags"])) @ user
    expect(torch.allclose(torch.tensor(scores), torch.tensor(catalogue["scores"]), atol=1e-4),
           "other scores than the model's")
    expect_equal(len(lines), 5)
    expect(all("of topic 3," in line for line in lines), lines)
