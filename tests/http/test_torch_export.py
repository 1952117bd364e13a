"""Embeddings of PyTorch's models are exported, from modules and checkpoints, and modules replaced by what serves them."""

import copy
import json
import os
import pickle
import ssl
import subprocess

import numpy as np
import pytest

from harness import PROGRAM, ROOT, TIMEOUT_S, expect, expect_equal
from torch_modules import Bags, Jagged, Rows, connect, expect_bits, make_collection, serve, torch

from bagserve_client import Client
from bagserve_export import Export, main
from bagserve_torch import RemoteEmbedding, RemoteEmbeddingBag, describe, export, replace
from dcp import Stored, write_dcp

EXAMPLES = ROOT / "config" / "examples"


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
    bag, single = torch.nn.EmbeddingBag(10, 4), torch.nn.Embedding.from_pretrained(torch.zeros(6, 2))
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
    for name, bags in split.embedding_bags.items():  # as of TorchRec's quantised collection, which are no nn.EmbeddingBag
        split.embedding_bags[name] = torch.nn.Module()
        split.embedding_bags[name].weight = bags.weight
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


def test_replace_checks_types(directory):
    """Answers have the module's type; a server whose type does not hold all numbers is refused, unless asked for."""
    rows = torch.randn(6, 4, dtype=torch.float64)
    exported = Export()
    exported.table("bag", rows.float(), "mean")
    exported.table("single", rows.float(), "sum")
    exported.table("fp16", rows.half(), "mean")
    exported.table("c.embedding_bags.t", rows.float(), "sum")
    exported.table("c.embedding_bags.u", rows.float(), "sum")
    exported.collection("c", {"f": "c.embedding_bags.t", "g": "c.embedding_bags.u"})
    exported.write(directory)
    ids = torch.tensor([[0, 5], [1, 1]])

    def make(double):
        collection = Bags(("t", ["f"], 6, 4, "SUM"), ("u", ["g"], 6, 4, "SUM"))
        for table, kind in (("t", double), ("u", torch.float32)):
            collection.embedding_bags[table].weight = torch.nn.Parameter(rows.to(kind))
        single = torch.float32 if double == torch.float64 else torch.bfloat16
        return {"bag": torch.nn.EmbeddingBag.from_pretrained(rows.to(double)),
                "single": torch.nn.Embedding.from_pretrained(rows.to(double)),
                "fp16": torch.nn.EmbeddingBag.from_pretrained(rows.to(single)), "c": collection}

    with serve(directory) as server, connect(server) as client:
        for name, module in make(torch.float64).items():
            model = torch.nn.ModuleDict({name: module}).eval()
            with pytest.raises(ValueError, match=r"answers FP(32|16).*the module's torch.float(64|32).*narrow=True"):
                replace(model, client)
            expect(model[name] is module, "replaced")
            replace(model, client, narrow=True)
            asked = Jagged({"f": [[0, 5]], "g": [[1]]}) if name == "c" else ids
            answer = model[name](asked)
            if name == "c":
                expect_equal({feature: got.dtype for feature, got in answer.items()},
                             {"f": torch.float64, "g": torch.float32})
            else:
                expect_equal(answer.dtype, module.weight.dtype, name)
        model = torch.nn.ModuleDict(make(torch.bfloat16))
        with pytest.raises(ValueError, match="'fp16' on the server answers FP16.*torch.bfloat16"):
            replace(model, client)
        del model["fp16"]
        expect_equal(replace(model.eval(), client), {"bag": "bag", "single": "single", "c": "c"})
        expect_bits(model["single"](ids).view(torch.int16), rows.float()[ids].bfloat16().view(torch.int16), "bfloat16")


# ---- what is done with a replaced model -------------------------------------------------------
@pytest.fixture(name="replaced")
def make_replaced(directory):
    """(a replaced model, its answers to IDS and to ASKED)."""
    model = torch.nn.ModuleDict({"bag": torch.nn.EmbeddingBag(30, 4), "single": torch.nn.Embedding(30, 2),
                                 "c": Bags(("t", ["f"], 30, 3, "SUM"))}).eval()
    export(model, directory)
    with serve(directory) as server, connect(server) as client, torch.no_grad():
        replace(model, client)
        yield model


IDS = torch.tensor([[1, 2], [29, 0]])
ASK = {"bag": lambda module: module(IDS), "single": lambda module: module(IDS),
       "c": lambda module: module(Jagged({"f": [[1, 2], [29]]}))["f"]}


class Scores(torch.nn.Module):
    """A part of a model behind one that was replaced."""

    def __init__(self, module, ask):
        super().__init__()
        self.module, self.ask = module, ask

    def forward(self, factor):
        return self.ask(self.module) * factor


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_traces(replaced, directory):
    """A trace, of which an answer would be a constant, is refused."""
    for name, ask in ASK.items():
        model, factor = Scores(replaced[name], ask).eval(), torch.tensor([2.0])
        for trace in (lambda: torch.jit.trace(model, factor), lambda: torch.jit.trace(lambda x: model(x), factor),
                      lambda: torch.onnx.export(model, (factor,), str(directory / "model.onnx"))):
            with pytest.raises(RuntimeError, match=f"'{name}' is on a server.*constant in a trace"):
                trace()
        expect(torch.equal(model(factor), 2 * ask(replaced[name])), name)
    expect(not (directory / "model.onnx").exists(), "exported")


def test_copies(replaced):
    """They ask the same server, through one client of their own."""
    client = replaced["bag"].client
    wanted = {name: ask(replaced[name]) for name, ask in ASK.items()}
    for again in (copy.deepcopy(replaced), pickle.loads(pickle.dumps(replaced)), copy.deepcopy(copy.copy(replaced))):
        other = again["bag"].client
        expect(other is not client and all(module.client is other for module in again.values()), "clients")
        for name, ask in ASK.items():
            expect_bits(ask(again[name]), wanted[name], name)
        other.close()
    client.close()
    with copy.copy(client) as other:
        expect_equal(sorted(other.models()), ["bag", "c", "c.embedding_bags.t", "single"])
    secret = Client("127.0.0.1:1", timeout_s=3, retries=0, token="t", connections=2)
    for other in copy.deepcopy(secret), pickle.loads(pickle.dumps(secret)):
        expect_equal(other._arguments, ("127.0.0.1:1", 3, 0, "t", None, 2))
    secure = Client("https://127.0.0.1:1", ssl_context=ssl.create_default_context())
    expect(copy.deepcopy(secure)._ssl is secure._ssl, "another context")
    with pytest.raises(TypeError, match="SSLContext"):
        pickle.dumps(secure)


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
                     f"bagserve serve --models {directory}/{name}.d\n")
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


def test_described_checkpoint(directory):
    """What `describe` writes of a model without rows makes of a checkpoint what `export` makes of the model."""
    def build(device):
        model = torch.nn.ModuleDict({
            "sparse": Bags(("films", ["seen", "bought"], 30, 4, "MEAN"), ("users", ["user", "seen"], 20, 6, "SUM")),
            "past": Rows(("films", ["last"], 30, 4)),
            "history": torch.nn.EmbeddingBag(10, 3, mode="max", padding_idx=1), "item": torch.nn.Embedding(5, 2)})
        return model.to(device)

    model, tables = build("cpu").eval(), directory / "tables.json"
    export(model, directory / "exported")
    expect_equal(describe(build("meta"), tables), {name: name for name in model})
    write_dcp(directory / "checkpoint", {f"model.{key}": Stored(tensor.numpy(), [
        (rank, first, 0, rows, tensor.shape[1]) for rank, first, rows in ((0, 0, 4), (1, 4, len(tensor) - 4))])
        for key, tensor in model.state_dict().items()} | {"optimizer.state.item.exp_avg": Stored(np.zeros((5, 2), np.float32))})
    main([str(directory / "checkpoint"), str(directory / "models"), "--tables", str(tables)])
    for path in (path for path in (directory / "exported").rglob("*") if path.name in ("config.json", "table.safetensors")):
        same = directory / "models" / path.relative_to(directory / "exported")
        expect(same.read_bytes() == path.read_bytes(), f"{same} differs")
    asked = Jagged({"seen": [[1, 2], []], "bought": [[3], [4]], "user": [[5], [6, 7]]})
    want = model["sparse"](asked)
    with serve(directory / "models") as server, connect(server) as client:
        replace(model, client)
        for name, rows in model["sparse"](asked).items():
            expect_bits(rows, want[name], name)


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
        expect_equal([s["inference_stats"]["success"]["count"] for s in client.statistics("sparse")], [26 + 1],
                     "a request for the rows of each table, and one for the batch")


# What TABLES.md shows, where ONNX is installed, too (Debian 13's python3-onnx and python3-onnxruntime).
DENSE_HALF = """
import sys, numpy, onnxruntime
from bagserve_client import Client
folder, url = sys.argv[1:]
batch, dense = numpy.load(folder + "/batch.npz"), onnxruntime.InferenceSession(folder + "/dense.onnx")
with Client(url) as client:
    pooled = client.kjt("sparse", batch["ids"], batch["counts"], outputs=["embeddings"])["embeddings"]
scores, = dense.run(None, {"numbers": batch["numbers"], "pooled": pooled.reshape(-1, 26, 16)})
assert numpy.allclose(scores, batch["scores"], rtol=1e-5, atol=1e-6), scores - batch["scores"]
"""


def test_dlrm_as_onnx(directory):
    """The dense half of config/examples/dlrm.py without PyTorch; its kernels add in another order."""
    pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    run_example("dlrm.py", "train", directory / "dlrm.pt", directory / "dlrm")
    expect_equal(run_example("dlrm.py", "split", directory / "dlrm.pt", directory / "dense"),
                 "split into batch.npz, dense.onnx, dense.pt\n")
    with serve(directory / "dlrm") as server:
        subprocess.run(["/usr/bin/python3", "-c", DENSE_HALF, directory / "dense", f"{server.host}:{server.port}"], check=True,
                       timeout=4 * TIMEOUT_S, env=os.environ | {"PYTHONPATH": str(ROOT / "proto" / "clients" / "python")})


def test_dlrm_runs_nothing_of_a_checkpoint(directory):
    """A file of torch.save is a pickle; what it would call is not called."""
    class Planted:
        def __reduce__(self):
            return os.mkdir, (str(directory / "planted"),)
    torch.save({"dense.bottom.0.weight": Planted()}, directory / "dlrm.pt")
    ended = subprocess.run(["/usr/bin/python3", EXAMPLES / "dlrm.py", "compare", directory / "dlrm.pt"], check=False,
                           capture_output=True, text=True, timeout=4 * TIMEOUT_S)
    expect(ended.returncode != 0 and "mkdir" in ended.stderr, ended.stderr)
    expect(not (directory / "planted").exists(), "the checkpoint was run")


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
