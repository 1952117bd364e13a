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
    def __init__(self, tables, is_weighted=False):
        super().__init__()
        self._tables, self._is_weighted = tables, is_weighted
        self.embedding_bags = torch.nn.ModuleDict({
            table.name: torch.nn.EmbeddingBag(table.num_embeddings, table.embedding_dim,
                                              mode=table.pooling.value.lower()) for table in tables})

    def embedding_bag_configs(self):
        return self._tables

    def is_weighted(self):
        return self._is_weighted
