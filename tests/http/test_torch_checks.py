"""Modules whose answers are more than a look-up of their weight, and servers that have other rows than a module."""

import contextlib
import copy
import sys

import numpy as np
import pytest
from torch_modules import Bags, Jagged, Rows, connect, expect_bits, make_collection, serve, torch

from harness import PROGRAM, ROOT, expect, expect_equal, write_json
from numerics import ROW_FORMATS

from bagserve_client import Client, NotFound
from bagserve_export import Export
from bagserve_torch import (
    RemoteEmbedding, RemoteEmbeddingBag, RemoteEmbeddingBagCollection, RemoteEmbeddingCollection, export, replace)
from torch.nn.utils import parametrize, prune, spectral_norm, weight_norm

nn = torch.nn


# ---- more than a look-up ----------------------------------------------------------------------
class Scaled(nn.Embedding):
    def forward(self, input):
        return super().forward(input) * 4


class ScaledBag(nn.EmbeddingBag):
    def forward(self, input, offsets=None, per_sample_weights=None):
        return super().forward(input, offsets, per_sample_weights) * 8


class Grid(nn.Embedding):
    def forward(self, input):
        return super().forward(input % 2)


class Deeper(Scaled):
    """A forward that is inherited."""


class Called(nn.Embedding):
    def __call__(self, input):
        return super().__call__(input) + 1


class CalledInside(nn.Embedding):
    def _call_impl(self, *arguments, **named):
        return super()._call_impl(*arguments, **named) + 1


class Doubled(torch.Tensor):
    """Looked up, it is another tensor."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        answer = super().__torch_function__(function, types, arguments, named or {})
        return answer * 2 if function is nn.functional.embedding else answer


class Random(nn.Module):
    def forward(self, weight):
        return weight * torch.rand(())


class Half(nn.Module):
    def forward(self, weight):
        return weight * 0.5


class Plain(nn.Embedding):
    """As libraries have them: it only initialises otherwise."""

    def __init__(self, rows, width, name=None):
        super().__init__(rows, width)
        self.name = name

    def reset_parameters(self):
        nn.init.ones_(self.weight)


class PlainBag(nn.EmbeddingBag):
    def extra_repr(self):
        return "plain"


def changed(module, change):
    change(module)
    return module


def with_forward(module):
    inner = module.forward
    module.forward = lambda *arguments: inner(*arguments) * 3


def with_class(module):
    module.__class__ = Scaled


def with_weight(module):
    del module.weight
    module.weight = torch.ones(4, 3).as_subclass(Doubled)


REFUSED = {
    "a forward": (lambda: Scaled(4, 3), r"'part\.e': Scaled has a forward of its own \(Scaled.forward\).*around a plain Emb"),
    "a forward of bags": (lambda: ScaledBag(4, 3), "ScaledBag has a forward of its own.*around a plain EmbeddingBag"),
    "other ids": (lambda: Grid(4, 3), "Grid has a forward"),
    "an inherited forward": (lambda: Deeper(4, 3), "Deeper has a forward of its own"),
    "a forward of the module": (lambda: changed(nn.Embedding(4, 3), with_forward), "Embedding has a forward.*lambda"),
    "another class": (lambda: changed(nn.Embedding(4, 3), with_class), "Scaled has a forward"),
    "__call__": (lambda: Called(4, 3), "Called is called in a way of its own"),
    "_call_impl": (lambda: CalledInside(4, 3), "CalledInside is called in a way of its own"),
    "_call_impl of the module": (lambda: changed(nn.Embedding(4, 3), lambda m: setattr(m, "_call_impl", m.forward)),
                                 "Embedding is called in a way of its own"),
    "a hook": (lambda: changed(nn.Embedding(4, 3), lambda m: m.register_forward_hook(lambda _, ids, out: out * 2)),
               "its forward hook .*lambda.* may change what it is asked or answers"),
    "a pre-hook": (lambda: changed(nn.EmbeddingBag(4, 3), lambda m: m.register_forward_pre_hook(lambda _, ids: ids)),
                   "its forward pre-hook .*lambda"),
    "max_norm": (lambda: nn.Embedding(4, 3, max_norm=1.0), "max_norm changes rows"),
    "a weight that looks up": (lambda: changed(nn.Embedding(4, 3), with_weight), "its weight is a Doubled, whose look-up"),
    "random rows": (lambda: changed(nn.Embedding(4, 3), lambda m: parametrize.register_parametrization(m, "weight", Random())),
                    "gives other rows each time"),
    "rows that change in training": (lambda: spectral_norm(nn.Embedding(4, 3)).train(), "spectral_norm changes the rows"),
    "TorchScript": (lambda: torch.jit.script(nn.Embedding(4, 3)), "'part.e' is an Embedding of TorchScript"),
    "hooks of a collection": (lambda: changed(make_collection(), lambda m: m.register_forward_hook(lambda *_: {})), "hook"),
    "a forward of a collection": (lambda: changed(make_collection(), with_forward), "Bags has a forward of its own"),
    "bags of a collection": (lambda: changed(make_collection(), lambda m: with_class(m.embedding_bags["t_user"])),
                             r"'part\.e\.embedding_bags\.t_user': Scaled has"),
    "hooks of rows": (lambda: changed(Rows(("t", ["f"], 4, 3)), lambda m: m.embeddings["t"].register_forward_hook(
        lambda _, ids, out: -out)), r"'part\.e\.embeddings\.t': its forward hook"),
}


@pytest.mark.parametrize("make, words", REFUSED.values(), ids=REFUSED)
def test_more_than_a_look_up(directory, make, words):
    """Refused with path and reason before anything is written or asked: nobody listens there."""
    module = make()
    model = nn.ModuleDict({"part": nn.ModuleDict({"e": module})})
    with pytest.raises(ValueError, match=words):
        export(model, directory)
    expect_equal(list(directory.iterdir()), [])
    with pytest.raises(ValueError, match=words):
        replace(model, Client("127.0.0.1:1", retries=0))
    expect(model["part"]["e"] is module, "replaced")


def test_small_ones_may_be_more(directory):
    """What stays where it is is not asked what it does."""
    model = nn.ModuleDict({"large": nn.Embedding(100, 4), "small": nn.Embedding(3, 2)})
    export(model, directory)
    with_class(model["small"])
    with serve(directory) as server, connect(server) as client:
        expect_equal(replace(model, client, min_bytes=100), {"large": "large"})


def test_subclasses_of_torchrec(directory):
    """The class of TorchRec's own is a look-up; a forward beside it is not."""
    sys.path.insert(0, str(ROOT / "tests" / "http" / "stand_ins"))
    try:
        from torchrec import EmbeddingCollection, EmbeddingConfig
    finally:
        sys.path.pop(0)

    class Named(EmbeddingCollection):
        pass

    class Negative(EmbeddingCollection):
        def forward(self, features):
            return {name: -part.values() for name, part in super().forward(features).items()}
    tables = [EmbeddingConfig(5, 3, "t", ["f"])]
    expect_equal(export(nn.ModuleDict({"e": Named(tables)}), directory), {"e": "e"})
    with pytest.raises(ValueError, match="'e': Negative has a forward of its own"):
        export(nn.ModuleDict({"e": Negative(tables)}), directory)


def stale_norm():
    module = weight_norm(nn.Embedding(6, 3))
    module.weight_g.data *= 3
    return module


def stale_mask():
    module = nn.EmbeddingBag(6, 3, mode="sum")
    prune.l1_unstructured(module, "weight", 0.5)
    prune.random_unstructured(module, "weight", 0.3)
    module.load_state_dict({name: tensor * 2 if "orig" in name else tensor for name, tensor in module.state_dict().items()})
    return module


def stale_spectrum():
    module = spectral_norm(nn.Embedding(6, 3)).eval()
    module.weight_orig.data *= torch.arange(6).reshape(6, 1)
    return module


def parametrized():
    module = nn.Embedding(6, 3)
    parametrize.register_parametrization(module, "weight", Half())
    return module


def with_backward_hook():
    module = nn.EmbeddingBag(6, 3, mode="mean")
    module.register_full_backward_hook(lambda *_: None)
    return module


ACCEPTED = {"initialised otherwise": lambda: Plain(6, 3, name="x"), "shown otherwise": lambda: PlainBag(6, 3),
            "weight_norm": stale_norm, "prune": stale_mask, "spectral_norm": stale_spectrum, "parametrize": parametrized,
            "a backward hook": with_backward_hook}


@pytest.mark.parametrize("make", ACCEPTED.values(), ids=ACCEPTED)
@pytest.mark.parametrize("collected", (False, True))
def test_rows_that_are_computed(directory, make, collected):
    """The rows that the next call would look up are those that are served, also where others were loaded since the last."""
    ids = torch.tensor([[0, 5], [3, 3]])
    torch.manual_seed(5)
    want = make().eval()(ids)
    torch.manual_seed(5)
    module = make().eval()
    if not collected:
        model = nn.ModuleDict({"e": module})
    elif isinstance(module, nn.EmbeddingBag):
        model = nn.ModuleDict({"e": Bags(("t", ["f"], 6, 3, module.mode.upper()))})
        model["e"].embedding_bags["t"] = module
    else:
        model = nn.ModuleDict({"e": Rows(("t", ["f"], 6, 3))})
        model["e"].embeddings["t"] = module
    export(model, directory)
    with serve(directory) as server, connect(server) as client, torch.no_grad():
        replace(model.eval(), client)
        if not collected:
            got = model["e"](ids)
        elif isinstance(module, nn.EmbeddingBag):
            got = model["e"](Jagged({"f": ids.tolist()}))["f"]
        else:
            got = model["e"](Jagged({"f": ids.tolist()}))["f"].values().reshape(want.shape)
    expect_bits(got, want.detach(), "rows")


# ---- rows of another module -------------------------------------------------------------------
@contextlib.contextmanager
def served(model, directory, **options):
    export(model, directory, **options)
    with serve(directory) as server, connect(server) as client:
        yield client


def make_models(rng, rows=200):
    return {"bag": nn.EmbeddingBag.from_pretrained(torch.tensor(rng.standard_normal((rows, 5)), dtype=torch.float32)),
            "single": nn.Embedding.from_pretrained(torch.tensor(rng.standard_normal((rows, 5)), dtype=torch.float32)),
            "c": Bags(("t", ["f", "g"], rows, 5, "SUM"), ("u", ["h"], rows, 5, "MEAN"))}


def weight_in(model, name):
    return model[name].embedding_bags["u"].weight if name == "c" else model[name].weight


@pytest.mark.parametrize("name", ("bag", "single", "c"))
def test_other_rows(directory, rng, name):
    """The first and the last row always, others by chance, all where there are not more."""
    model = nn.ModuleDict(make_models(rng)).eval()
    where = "'c', feature 'h'" if name == "c" else f"'{name}'"
    with served(model, directory) as client:
        for row, check_rows in ((0, 64), (199, 64), (0, 1), (199, 2), (57, 200), (120, 10**9)):
            other = copy.deepcopy(model)
            with torch.no_grad():
                was = weight_in(other, name)[row, 3].item()
                weight_in(other, name)[row, 3] += 1e-6
                now = weight_in(other, name)[row, 3].item()
            with pytest.raises(ValueError) as refused:
                replace(other, client, check_rows=check_rows)
            expect_equal(str(refused.value), f"{where} on the server has other rows than the module: column 3 of row {row} is "
                         f"{was!r} there and {now!r} here. Serve what export wrote of this module, or compare no rows: "
                         f"replace(..., check_rows=0)")
            expect(type(other[name]) is type(model[name]), "replaced")
            replace(other, client, check_rows=0)
        with torch.no_grad():
            weight_in(other := copy.deepcopy(model), name)[1:199] += 1e-6
        with pytest.raises(ValueError, match=f"{where} on the server has other rows"):
            replace(other, client)
        replace(model, client)
        for wrong, kind in ((-1, ValueError), (1.5, TypeError)):
            with pytest.raises(kind):
                replace(other, client, check_rows=wrong)


def requests_of(client):
    return sum(model["inference_stats"]["success"]["count"] for model in client.statistics())


def test_requests_that_compare(directory, rng):
    """One for each table, in which each row is once."""
    model = nn.ModuleDict(make_models(rng, 1000)).eval()
    with served(model, directory) as client:
        for check_rows, requests in ((64, 4), (0, 0)):
            before = requests_of(client)
            replace(copy.deepcopy(model), client, check_rows=check_rows)
            expect_equal(requests_of(client) - before, requests, check_rows)
        explained = []
        rows = client.rows

        def watch(name, ids, **options):
            explained.append(ids)
            return rows(name, ids, **options)
        client.rows = watch
        replace(copy.deepcopy(model), client)
    for ids in explained:
        expect_equal((len(set(ids.tolist())), ids[0], ids[-1]), (64, 0, 999))
    expect(explained[0].tolist() != explained[1].tolist(), "not by chance")


@pytest.mark.parametrize("row_format", ROW_FORMATS)
def test_rows_of_row_formats(directory, rng, row_format):
    """Rows that were quantised are the module's within the error of their format; others are not."""
    rows = rng.standard_normal((90, 16)) * 10.0**rng.integers(-3, 2, (90, 1))
    rows[7] = 0
    rows[8] = 0.125
    rows[9, 1:] = 2.8e-8  # in FP16 zero, or twice as much
    rows[9, 0] = 3e-8
    rows = torch.tensor(rows, dtype=torch.float32)
    model = nn.ModuleDict({"single": nn.Embedding.from_pretrained(rows), "c": Bags(("t", ["f"], 90, 16, "SUM"))}).eval()
    model["c"].embedding_bags["t"].weight = nn.Parameter(rows)
    with served(model, directory, row_format=row_format, program=PROGRAM) as client:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            replace(copy.deepcopy(model).to(dtype), client, check_rows=90)
        other = copy.deepcopy(model)
        with torch.no_grad():
            other["single"].weight[89, 4] += 2 * rows[89].abs().max()
        with pytest.raises(ValueError, match="'single' on the server has other rows.* column 4 of row 89"):
            replace(other, client)
        shuffled = nn.ModuleDict({"single": nn.Embedding.from_pretrained(rows.flip(0))})
        with pytest.raises(ValueError, match="other rows"):
            replace(shuffled, client)


def test_rows_that_are_rounded(directory, rng):
    """Rows in another type are compared as that type holds them."""
    rows = torch.tensor(rng.standard_normal((70, 4)))
    exported = Export()
    exported.table("f16", rows.half(), "none", output_datatype="FP32")
    exported.table("f32", rows.float(), "sum")
    exported.write(directory)
    with serve(directory) as server, connect(server) as client:
        for name, kind, narrow in (("f16", torch.float32, False), ("f16", torch.float16, False), ("f32", torch.float32, False),
                                   ("f32", torch.bfloat16, False), ("f32", torch.float64, True), ("f16", torch.float64, True)):
            for factor in (1, 1.01):
                model = nn.ModuleDict({name: nn.Embedding.from_pretrained((rows * factor).to(kind))})
                if factor == 1:
                    replace(model, client, narrow=narrow)
                else:
                    with pytest.raises(ValueError, match="other rows"):
                        replace(model, client, narrow=narrow)


def test_rows_that_are_not_numbers(directory):
    """NaN is as NaN; rows that are left out are not compared."""
    rows = torch.tensor([[float("nan"), -0.0], [1, float("inf")], [3, 4]])
    model = nn.ModuleDict({"bag": nn.EmbeddingBag.from_pretrained(rows, padding_idx=-1)})
    with served(model, directory) as client:
        with torch.no_grad():
            model["bag"].weight[2] = 7
        replace(copy.deepcopy(model), client)
        one = nn.ModuleDict({"bag": nn.EmbeddingBag.from_pretrained(rows * 1.0, padding_idx=-1)})
        one["bag"].weight[1, 1] = -float("inf")
        with pytest.raises(ValueError, match="column 1 of row 1 is inf there and -inf here"):
            replace(one, client)


def test_rows_by_keys(directory):
    """A module whose ids are keys; a key that is missing is said."""
    rows = torch.arange(10.0).reshape(5, 2)
    exported = Export()
    exported.table("all", rows.flip(0), "none", keys=np.arange(4, -1, -1))
    exported.table("some", rows[:4], "none", keys=np.arange(4))
    exported.write(directory)
    with serve(directory) as server, connect(server) as client:
        replace(nn.ModuleDict({"all": nn.Embedding.from_pretrained(rows)}), client)
        with pytest.raises(ValueError, match="'some' on the server does not give the module's rows: .*is 4, a key"):
            replace(nn.ModuleDict({"some": nn.Embedding.from_pretrained(rows)}), client)


# ---- versions ---------------------------------------------------------------------------------
def test_versions(directory, rng):
    """A module asks its own version, whichever is the default; `replace` compares with that one."""
    models = [nn.ModuleDict(make_models(rng) | {"rows": Rows(("t", ["f"], 200, 5))}).eval() for _ in range(2)]
    for version, model in enumerate(models, 1):
        export(model, directory, version=version)
    for folder in directory.iterdir():
        if folder.is_dir():
            write_json(folder / "config.json", {"version_policy": "all"})
    ids = torch.tensor([[1, 199], [0, 0]])
    asked = Jagged({name: ids.tolist() for name in ("f", "g", "h")})
    with serve(directory) as server, connect(server) as client, torch.no_grad():
        for number, model in enumerate(models, 1):
            for name, module in model.items():
                with pytest.raises(ValueError, match=f"'{name}'.* on the server has other rows"):
                    replace(nn.ModuleDict({name: module}), client, version=3 - number)
            new = nn.ModuleDict(dict(model.items()))
            replace(new, client, version=number)
            for name in ("bag", "single"):
                expect_bits(new[name](ids), model[name](ids), name)
                expect_equal(new[name].extra_repr(), f"'{name}', version={number}")
            for name, values in (("c", lambda rows: rows), ("rows", lambda rows: rows.values())):
                for feature, rows in model[name](asked).items():
                    expect_bits(values(new[name](asked)[feature]), values(rows), feature)
            made = RemoteEmbeddingBag(client, "bag", version=str(number)).eval()
            expect_bits(copy.deepcopy(made)(ids), model["bag"](ids), "bag")
            made = RemoteEmbedding(client, "single", version=number).eval()
            expect_bits(made(ids), model["single"](ids), "single")
        for kind, name in ((RemoteEmbedding, "single"), (RemoteEmbeddingBag, "bag")):
            with pytest.raises(NotFound, match="3"):
                kind(client, name, version=3).eval()(ids)
        for kind, name in ((RemoteEmbeddingBagCollection, "c"), (RemoteEmbeddingCollection, "rows")):
            kind(client, name, version=1).eval()(asked)
            with pytest.raises(NotFound, match="3"):
                kind(client, name, version=3).eval()(asked)
        with pytest.raises(ValueError, match="'c' is not on the server"):
            replace(nn.ModuleDict({"c": models[0]["c"]}), client, version=3)
