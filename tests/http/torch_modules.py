"""Modules of PyTorch that are exported and served. TorchRec is not among Debian's packages: classes with its
attributes stand for it.
"""

import sys
import types

import numpy as np
import pytest

import numerics
import oracle
from harness import ROOT, Server, expect, expect_equal

torch = pytest.importorskip("torch", reason="python3-torch is not installed")
sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
from bagserve_client import Client  # noqa: E402


def serve(folder, *arguments):
    return Server("--models", folder, *arguments)


def connect(server):
    return Client(f"{server.host}:{server.port}")


def expect_bits(got, want, what):
    """The same type, shape and bits."""
    expect_equal((got.dtype, got.shape), (want.dtype, want.shape), what)
    same = np.array_equal(got.numpy().view(np.uint8), want.detach().numpy().view(np.uint8))
    expect(same, f"{what}: {got} for {want}")


def rounds_products(module):
    """Whether this PyTorch rounds the product of a weight and a row of the module before it adds it: some
    versions do, and all do of FP64, of what has a padding_idx, and of weights that are not contiguous."""
    if module.weight.dtype == torch.float64 or module.padding_idx is not None:
        return True
    row = torch.tensor([1 + 2**-12])
    got = torch.nn.functional.embedding_bag(torch.tensor([[0, 1]]), torch.stack([torch.ones(1), row]), mode="sum",
                                            per_sample_weights=torch.stack([-torch.ones(1), row], 1))
    return got.item() != 2**-11 + 2**-24


def expect_weighted(got, module, ids, weights, what):
    """The bits of fused multiply-adds for FP32, and PyTorch's wherever it does as the server."""
    want = module(ids, None, weights)
    expect_equal((got.dtype, got.shape), (want.dtype, want.shape), what)
    table, bags, factors = (tensor.detach().numpy() for tensor in (module.weight, ids, weights))
    if got.dtype == torch.float32:
        rules = oracle.Rules(padding_idx=module.padding_idx)
        expect_bits(got, torch.from_numpy(oracle.pool(table, list(bags), list(factors), rules)), what)
    if weights.is_contiguous() and rounds_products(module) == (got.dtype == torch.float64):
        expect_bits(got, want, what)
    bound = np.array([numerics.rounding_bound(table[bag], of) for bag, of in zip(bags, factors)])
    expect(np.all(np.abs(got.double().numpy() - want.detach().double().numpy()) <= bound), f"{what}: {got} for {want}")


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


class JaggedTensor:
    """What a JaggedTensor has of one feature."""

    def __init__(self, values, weights=None, lengths=None):
        self._values, self._weights, self._lengths = values, weights, lengths

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths

    def weights_or_none(self):
        return self._weights


class Rows(torch.nn.Module):
    """What bagserve_torch uses of TorchRec's EmbeddingCollection, and its answers."""

    def __init__(self, *tables, need_indices=False):
        super().__init__()
        self.tables = [types.SimpleNamespace(name=name, feature_names=features, num_embeddings=rows, embedding_dim=dim)
                       for name, features, rows, dim in tables]
        self.embeddings = torch.nn.ModuleDict({
            table.name: torch.nn.Embedding(table.num_embeddings, table.embedding_dim) for table in self.tables})
        self._need_indices = need_indices

    def embedding_configs(self):
        return self.tables

    def need_indices(self):
        return self._need_indices

    def forward(self, features):
        names, parts, answer = [name for table in self.tables for name in table.feature_names], features.to_dict(), {}
        for table in self.tables:
            for name in table.feature_names:
                ids = parts[name].values()
                answer[f"{name}@{table.name}" if names.count(name) > 1 else name] = JaggedTensor(
                    values=self.embeddings[table.name](ids), lengths=parts[name].lengths(),
                    weights=ids if self._need_indices else None)
        return answer


class Jagged:
    """A KeyedJaggedTensor, of {feature: bags}, which may have different numbers of bags."""

    def __init__(self, features, weights=None, dtype=torch.int64):
        self.features, self.all_weights, self.dtype = features, weights, dtype

    def stride_per_key(self):
        return [len(bags) for bags in self.features.values()]

    def variable_stride_per_key(self):
        return len(set(self.stride_per_key())) > 1

    def to_dict(self):
        return {name: JaggedTensor(torch.tensor([i for bag in bags for i in bag], dtype=self.dtype),
                                   lengths=torch.tensor([len(bag) for bag in bags], dtype=self.dtype))
                for name, bags in self.features.items()}

    def keys(self):
        return list(self.features)

    def values(self):
        return torch.tensor([i for bags in self.features.values() for bag in bags for i in bag], dtype=self.dtype)

    def lengths(self):
        return torch.tensor([len(bag) for bags in self.features.values() for bag in bags], dtype=self.dtype)

    def weights(self):
        if self.all_weights is None:
            raise ValueError("there are no weights")
        return self.all_weights

    def weights_or_none(self):
        return self.all_weights

    def bags(self, name):
        lengths = torch.split(self.lengths(), self.stride_per_key())
        place = self.keys().index(name)
        first = int(sum(own.sum() for own in lengths[:place]))
        mine = lengths[place]
        part = slice(first, first + int(mine.sum()))
        weights = None if self.all_weights is None else self.all_weights[part]
        return self.values()[part], torch.cumsum(mine, 0) - mine, weights


def make_collection():
    return Bags(("t_item", ["history", "last"], 30, 4, "MEAN"), ("t_user", ["user", "last"], 10, 6, "SUM"),
                ("t_ad", ["ad"], 7, 5, "SUM"))


ASKED = {"history": [[1, 2], []], "last": [[3], [9, 9]], "user": [[3, 4], [0]], "ad": [[6], [5, 5, 1]]}
