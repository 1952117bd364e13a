"""Of TorchRec, which Debian does not have: what the pages' examples use."""

import dataclasses
import enum
from typing import List

import torch


class PoolingType(enum.Enum):
    SUM = "SUM"
    MEAN = "MEAN"


@dataclasses.dataclass
class EmbeddingBagConfig:
    num_embeddings: int
    embedding_dim: int
    name: str
    feature_names: List[str]
    pooling: PoolingType = PoolingType.SUM


class EmbeddingBagCollection(torch.nn.Module):
    def __init__(self, tables, is_weighted=False, device=None):
        super().__init__()
        self._tables, self._is_weighted = tables, is_weighted
        self.embedding_bags = torch.nn.ModuleDict({
            table.name: torch.nn.EmbeddingBag(table.num_embeddings, table.embedding_dim, device=device,
                                              mode=table.pooling.value.lower()) for table in tables})

    def embedding_bag_configs(self):
        return self._tables

    def is_weighted(self):
        return self._is_weighted


@dataclasses.dataclass
class EmbeddingConfig:
    num_embeddings: int
    embedding_dim: int
    name: str
    feature_names: List[str]


class JaggedTensor:
    def __init__(self, values, weights=None, lengths=None):
        self._values, self._weights, self._lengths = values, weights, lengths

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths


class KeyedJaggedTensor:
    def __init__(self, keys, values, lengths):
        self._keys, self._values, self._lengths = keys, values, lengths

    @classmethod
    def from_lengths_sync(cls, keys, values, lengths):
        return cls(keys, values, lengths)

    def to_dict(self):
        by_key = self._lengths.reshape(len(self._keys), -1)
        values = torch.split(self._values, by_key.sum(1).tolist())
        return {key: JaggedTensor(part, lengths=lengths) for key, part, lengths in zip(self._keys, values, by_key)}


class EmbeddingCollection(torch.nn.Module):
    def __init__(self, tables):
        super().__init__()
        self._tables = tables
        self.embeddings = torch.nn.ModuleDict({
            table.name: torch.nn.Embedding(table.num_embeddings, table.embedding_dim) for table in tables})

    def embedding_configs(self):
        return self._tables

    def need_indices(self):
        return False

    def forward(self, features):
        parts = features.to_dict()
        return {name: JaggedTensor(self.embeddings[table.name](parts[name].values()), lengths=parts[name].lengths())
                for table in self._tables for name in table.feature_names}
