"""PyTorch: the embeddings of a model are served, and asked in their places, with the same bits."""

import types
import warnings

import numpy as np
import pytest

from harness import Server, expect, expect_equal, together
from torch_modules import ASKED, Bags, Jagged, connect, expect_bits, expect_weighted, make_collection, serve, torch

from bagserve_client import AsyncClient, BadRequest, Client, ConnectionFailed
from bagserve_export import Export
from bagserve_torch import RemoteEmbedding, RemoteEmbeddingBag, RemoteEmbeddingBagCollection, export, replace


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
    """With padding and without, and not contiguous."""
    client, _ = served
    ids = torch.tensor(rng.integers(0, 50, (15, 20)))
    weights = torch.tensor(rng.standard_normal((15, 20)), dtype=torch.float32)
    for name in ("sum", "fp64", "last"):
        factors = weights.to(bags[name].weight.dtype)
        remote = RemoteEmbeddingBag(client, name).eval()
        expect_weighted(remote(ids, None, factors), bags[name], ids, factors, f"{name}, 2-D")
        expect_bits(remote(ids.flatten(), torch.arange(0, 300, 20), factors.flatten()), remote(ids, None, factors), name)
        apart = factors.repeat_interleave(2, 1)[:, ::2]
        expect(not apart.is_contiguous(), "contiguous")
        expect_weighted(remote(ids, None, apart), bags[name], ids, apart, f"{name}, not contiguous")


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


def test_tables_of_bytes(directory):
    """Eight bits without a sign stay what they are, and are no halves of a bfloat16."""
    rows = np.array([[1, 2, 3, 4], [10, 20, 30, 40]], np.uint8)
    np.save(directory / "b.npy", rows)
    with Server("--table", f"b={directory / 'b.npy'}") as server, connect(server) as client:
        got = RemoteEmbedding(client, "b").eval()(torch.tensor([1, 0]))
        expect_equal((got.dtype, got.tolist()), (torch.uint8, rows[[1, 0]].tolist()))
        pooled = RemoteEmbeddingBag(client, "b").eval()(torch.tensor([[0, 1]]))
        expect_equal((pooled.dtype, pooled.tolist()), (torch.uint8, [[11, 22, 33, 44]]))


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


def test_tensors_that_are_more_than_numbers(served):
    """None of them is sent as if it were dense."""
    client, _ = served
    remote, ids = RemoteEmbeddingBag(client, "sum").eval(), torch.tensor([[1, 2]])
    tensors = {"sparse_coo": ids.to_sparse(), "quantised": torch.quantize_per_tensor(ids * 1.0, 1, 0, torch.quint8)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # prototypes
        tensors["sparse_csr"] = ids.to_sparse_csr()
        tensors["nested"] = torch.nested.nested_tensor([torch.tensor([1.0]), torch.tensor([1.0, 2.0])])
        tensors["masked"] = torch.masked.masked_tensor(ids, ids > 1)
        for word, tensor in tensors.items():
            for call in (lambda: remote(tensor), lambda: remote(ids[0], tensor),
                         lambda: RemoteEmbedding(client, "sum").eval()(tensor)):
                with pytest.raises(TypeError, match=f"{word} tensor"):
                    call()
    weights = torch.tensor([[1 + 2j, 3 - 1j]]).conj().imag  # negated when it is read
    expect_bits(remote(ids, None, weights), remote(ids, None, torch.tensor([[-2.0, 1.0]])), "negated")


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
        expect_equal([s["inference_stats"]["success"]["count"] for s in client.statistics("0")], [3 + 4],
                     "a request for the rows of each table, and one for each call")
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
    asked = Jagged({"y": [[1, 5], [5, 0]], "x": [[0, 1], [4, 4]]}, weights=torch.randn(8))
    with serve(directory) as server, connect(server) as client:
        replace(model.eval(), client)
        for remote, module in ((model["c"], local), (model["plain"], plain),
                               (RemoteEmbeddingBagCollection(client, "c").eval(), local)):
            got = remote(asked)
            for name, rows in module(asked).items():
                if module.weighted:
                    ids, _, weights = asked.bags(name)
                    expect_weighted(got[name], module.embedding_bags["ab"["xy".index(name)]], ids.reshape(2, 2),
                                    weights.reshape(2, 2), name)
                else:
                    expect_bits(got[name], rows, name)
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


def test_threads(bags, served):
    """One module for all of them."""
    client, _ = served
    remote = RemoteEmbeddingBag(client, "sum").eval()

    def work(number):
        ids = torch.arange(5 * number, 5 * number + 4).reshape(2, 2)
        for _ in range(20):
            expect(torch.equal(remote(ids), bags["sum"](ids)), f"ids {ids}")

    together(work, 8)
