"""From PyTorch to an answer: what the exporter writes is served, and answers as the module does.

TorchRec is not among Debian's packages: a class with its attributes stands for it. The tests of
modules, and the walk-through, run where python3-torch is installed.
"""

import json
import subprocess
import sys
import types

import numpy as np
import pytest

from harness import ROOT, TIMEOUT_S, Server, expect, expect_equal

sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
from bagserve_client import Client  # noqa: E402
from bagserve_export import Export, export, main  # noqa: E402

IDS, STARTS = [0, 2, 5, 1, 1, 7, 3], [0, 3, 3, 6]


@pytest.fixture(name="torch")
def import_torch():
    """PyTorch, or a test that is skipped."""
    return pytest.importorskip("torch", reason="python3-torch is not installed")


def serve(configuration):
    return Server("--config", configuration)


def connect(server):
    return Client(f"{server.host}:{server.port}")


# ---- without torch ----------------------------------------------------------------------------
class Collection:
    """What the exporter uses of TorchRec's EmbeddingBagCollection."""

    def __init__(self, rng):
        def config(name, features, pooling):
            return types.SimpleNamespace(name=name, feature_names=features,
                                         pooling=types.SimpleNamespace(value=pooling))
        self.configs = [config("t_item", ["history", "last"], "MEAN"),
                        config("t_user", ["user", "last"], "SUM")]
        self.state = {f"embedding_bags.{name}.weight": rng.random((rows, dim), np.float32)
                      for name, rows, dim in (("t_item", 30, 4), ("t_user", 10, 6))}

    def embedding_bag_configs(self):
        return self.configs

    def state_dict(self):
        return self.state

    def named_modules(self):
        return [("", self), ("embedding_bags.t_item", types.SimpleNamespace(
            num_embeddings=30, weight=self.state["embedding_bags.t_item.weight"]))]


def test_embedding_bag_collection(directory, rng):
    module = Collection(rng)
    items, users = module.state.values()
    with serve(export(module, directory, name="ranker")) as server, connect(server) as client:
        expect_equal(client.models(), ["t_item", "t_user", "ranker"])
        expect_equal([(f["name"], f["model"]) for f in client.features("ranker")],
                     [("history", "t_item"), ("last.t_item", "t_item"), ("user", "t_user"),
                      ("last.t_user", "t_user")])
        got = client.collection("ranker", {"history": [[1, 2], []], "user": [[3, 4]],
                                           "last.t_user": [[9]]})
        expect(np.array_equal(got["history"][0], (items[1] + items[2]) / np.float32(2)), got)
        expect(not got["history"][1].any(), "an empty bag")
        expect(np.array_equal(got["user"][0], users[3] + users[4]), got)
        expect(np.array_equal(got["last.t_user"][0], users[9]), got)


def test_state_dict(directory, rng):
    """Names and reductions as they are told; data begins at a page."""
    state = {"a/b.weight": rng.random((9, 3), np.float32), "scalar": np.zeros(3, np.float32),
             "wide": rng.random((5, 2)), "half.weight": rng.random((4, 5)).astype(np.float16)}
    reductions = {"a/b.weight": "mean", "wide": "max", "half.weight": "sum"}
    configuration = export(state, directory, reduction=reductions)
    models = json.loads(configuration.read_text())["models"]
    expect_equal([(m["name"], m["reduction"]) for m in models],
                 [("a_b", "mean"), ("wide", "max"), ("half", "sum")])
    raw = (directory / "a_b.safetensors").read_bytes()
    expect_equal((len(raw) - 9 * 3 * 4) % 4096, 0)
    expect_equal(raw[-108:], state["a/b.weight"].tobytes())
    with serve(configuration) as server, connect(server) as client:
        rows = state["a/b.weight"]
        got = client.bags("a_b", [[0, 8]])
        expect(np.array_equal(got[0], (rows[0] + rows[8]) / np.float32(2)), got)
        expect(np.array_equal(client.bags("wide", [[0, 4]])[0],
                              np.maximum(state["wide"][0], state["wide"][4])), "max of FP64")
        expect(np.array_equal(client.bags("half", [[2]])[0], state["half.weight"][2]), "FP16")


def test_what_is_not_known_is_an_error(directory, rng):
    table = rng.random((4, 2), np.float32)
    codes, quantised = rng.integers(0, 256, (4, 2)).astype(np.uint8), Collection(rng)
    for name in list(quantised.state):
        quantised.state |= {name: codes, name + "_qscale": table[:, :1], name + "_qbias": table[:, 1:]}
    for work, words in (
            (lambda: export({"a": table}, directory), "reduction is None"),
            (lambda: export({"a": table}, directory, reduction="avg"), "sum, mean, max, sqrtn"),
            (lambda: export({"a": table}, directory, reduction={}), "reduction is None"),
            (lambda: export({"a": table[0]}, directory, reduction="sum"), "2 dimensions"),
            (lambda: Export().table("a", table[0], "sum"), "2 dimensions"),
            (lambda: Export().table("a", table > 0, "sum"), "bool"),
            (lambda: Export().state_dict({"a": table}, "sum", ["b"]), "no 'b'; it has a"),
            (lambda: export({"t.weight": codes, "t.weight_qscale": table, "t.weight_qbias": table},
                            directory, reduction="sum"), "'t.weight' has codes.*bagserve convert"),
            (lambda: Export().embedding_bag_collection("c", quantised), "has codes.*weight_qscale"),
            (lambda: Export().embedding_bag("a", types.SimpleNamespace(
                weight=table, max_norm=1.0)), "max_norm")):
        with pytest.raises(ValueError, match=words):
            work()
    expect_equal(list(directory.iterdir()), [])


# ---- with torch -------------------------------------------------------------------------------
def test_embedding_bags(directory, torch):
    """Every mode and option of nn.EmbeddingBag, bit for bit."""
    torch.manual_seed(3)
    module = torch.nn.ModuleDict({
        "sum": torch.nn.EmbeddingBag(10, 4, mode="sum"),
        "mean": torch.nn.EmbeddingBag(10, 4),
        "max": torch.nn.EmbeddingBag(10, 4, mode="max"),
        "padded": torch.nn.EmbeddingBag(10, 4, mode="mean", padding_idx=1),
        "ends": torch.nn.EmbeddingBag(10, 4, mode="sum", include_last_offset=True)})
    single = torch.nn.Embedding(10, 4, padding_idx=2)
    with torch.no_grad():
        single.weight[2] = 5
    module["single"] = single
    configuration = export(module, directory)
    with serve(configuration) as server, connect(server) as client:
        for name, part in module.items():
            if name == "single":
                want, got = part(torch.tensor([[2], [3]]))[:, 0], client.bags(name, [[2], [3]])
            else:
                starts = STARTS + [len(IDS)] if name == "ends" else STARTS
                want = part(torch.tensor(IDS), torch.tensor(starts))
                got = client.offsets(name, IDS, starts)
            expect(np.array_equal(got, want.detach().numpy()), f"{name}: {got} for {want}")


def test_types(directory, torch):
    table = torch.randn(6, 3)
    state = {str(kind)[6:]: table.to(kind) for kind in (torch.bfloat16, torch.float16,
                                                       torch.float64)}
    with serve(export(state, directory, reduction="sum")) as server, connect(server) as client:
        for name, tensor in state.items():
            options = {} if name == "float64" else {"output_datatype": "FP32"}
            got = client.packed(name, [[0], [5]], **options)
            expect(np.array_equal(got, tensor[[0, 5]].to(torch.float64).numpy()), f"{name}: {got}")


def test_command(directory, torch, capsys):
    torch.save({"emb.weight": torch.ones(4, 2), "bias": torch.zeros(2)}, directory / "model.pt")
    main([str(directory / "model.pt"), str(directory / "out"), "--reduction", "mean"])
    expect_equal(capsys.readouterr().out,
                 "emb: 4 rows of 2, mean\n"
                 "--tensor NAME takes some of them alone\n"
                 f"bagserve serve --config {directory}/out/bagserve.json\n")
    main([str(directory / "model.pt"), str(directory / "one"), "--reduction", "sum", "--tensor", "emb.weight"])
    expect_equal(capsys.readouterr().out,
                 f"emb: 4 rows of 2, sum\nbagserve serve --config {directory}/one/bagserve.json\n")
    with serve(directory / "out" / "bagserve.json") as server, connect(server) as client:
        expect_equal(client.bags("emb", [[0, 3]]).tolist(), [[1, 1]])
    with pytest.raises(SystemExit, match="no 'rows'; it has emb.weight, bias"):
        main([str(directory / "model.pt"), str(directory), "--reduction", "sum", "--tensor", "rows"])


def test_other_checkpoints(directory, torch, capsys):
    """A state_dict one level down is found; what holds none is said, without a traceback."""
    module = torch.nn.EmbeddingBag(6, 2)
    files = {"lightning.pt": {"epoch": 3, "state_dict": module.state_dict()},
             "nested.pt": {"model_state_dict": module.state_dict(), "optimizer": {"step": 1}}}
    for name, content in files.items():
        torch.save(content, directory / name)
        main([str(directory / name), str(directory / f"{name}.d"), "--reduction", "sum"])
        expect((directory / f"{name}.d/weight.safetensors").exists(), name)
    torch.save(module, directory / "module.pt")
    torch.save({"loss": 1, "net": {"step": 2}}, directory / "none.pt")
    torch.save([1, 2], directory / "list.pt")
    (directory / "text.pt").write_text("import torch")
    for name, words in (("module.pt", "export(module, directory)"), ("none.pt", "it has loss, net"),
                        ("list.pt", "a list"), ("text.pt", "no checkpoint of tensors alone"),
                        ("missing.pt", "No such file")):
        with pytest.raises(SystemExit) as ended:
            main([str(directory / name), str(directory / "d"), "--reduction", "sum"])
        expect(name in str(ended.value) and words in str(ended.value), f"{ended.value}")
    expect(not (directory / "d").exists(), "something was written")
    capsys.readouterr()


def test_walk_through(directory, torch):
    """config/examples/two_tower.py: trained, exported, served, and ranked as torch ranks."""
    script = [ROOT / "config" / "examples" / "two_tower.py"]

    def step(*arguments):
        return subprocess.run(["/usr/bin/python3", *script, *arguments], check=True, text=True,
                              capture_output=True, timeout=4 * TIMEOUT_S).stdout

    configuration = directory / "two_tower" / "bagserve.json"
    said = step("train", configuration.parent)
    expect(f"serve --config {configuration}" in said, said)
    catalogue = json.loads((configuration.parent / "catalogue.json").read_text())
    with serve(configuration) as server:
        lines = step("rank", configuration.parent, f"{server.host}:{server.port}").splitlines()[1:]
        with connect(server) as client:
            user = client.bags("user", [catalogue["user"]])[0]
            scores = client.packed("item", np.array(catalogue["tags"])) @ user
    expect(torch.allclose(torch.tensor(scores), torch.tensor(catalogue["scores"]), atol=1e-4),
           "other scores than the model's")
    expect_equal(len(lines), 5)
    expect(all("of topic 3," in line for line in lines), lines)
