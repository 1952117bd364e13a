#!/usr/bin/python3
"""A small DLRM: its 26 tables on a server, its dense part in PyTorch, the same scores to the bit.

    config/examples/dlrm.py train /tmp/dlrm.pt /tmp/dlrm                    # needs python3-torch
    build/release/bagserve serve --models /tmp/dlrm
    config/examples/dlrm.py compare /tmp/dlrm.pt [URL]
    config/examples/dlrm.py split /tmp/dlrm.pt /tmp/dense

`train` makes up clicks, trains on them, saves the state_dict, and exports the tables. `compare` scores one
batch twice: with the tables in this process, and, after `replace`, with those of the server. `split` writes what
follows the tables as a program of TorchScript (dense.pt), also as ONNX where Python has that package (dense.onnx),
and a batch with its scores (batch.npz).

Bags is what TorchRec's EmbeddingBagCollection is to its callers, and Jagged what its KeyedJaggedTensor is:
with TorchRec these two classes go, and everything else stays.
"""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[2] / "proto" / "clients" / "python"))
from bagserve_client import Client  # noqa: E402
from bagserve_torch import export, replace  # noqa: E402

FEATURES, NUMBERS, DIM, BATCH = 26, 13, 16, 128
ROWS = [40 * (feature % 9 + 1) ** 2 for feature in range(FEATURES)]


class Jagged(SimpleNamespace):
    """The bags of some features: `ids` feature by feature, `counts` of each bag."""

    def keys(self):
        return self.names

    def values(self):
        return self.ids

    def lengths(self):
        return self.counts


class Bags(nn.Module):
    """A table for each feature, whose rows are added."""

    def __init__(self):
        super().__init__()
        self.embedding_bags = nn.ModuleDict({
            f"t{feature}": nn.EmbeddingBag(rows, DIM, mode="sum", include_last_offset=True)
            for feature, rows in enumerate(ROWS)})

    def embedding_bag_configs(self):
        return [SimpleNamespace(name=f"t{feature}", feature_names=[f"f{feature}"], pooling="SUM")
                for feature in range(FEATURES)]

    def forward(self, features):
        ends = torch.cat([torch.zeros(1, dtype=torch.long), features.lengths().cumsum(0)])
        batch, pooled = (len(ends) - 1) // len(features.keys()), {}
        for place, key in enumerate(features.keys()):
            offsets = ends[place * batch:(place + 1) * batch + 1]
            ids = features.values()[offsets[0]:offsets[-1]]
            pooled[key] = self.embedding_bags["t" + key[1:]](ids, offsets - offsets[0])
        return pooled


class Dense(nn.Module):
    """What follows the tables: numbers and the features' vectors [batch, FEATURES, DIM] become scores."""

    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
        pairs = (FEATURES + 1) * FEATURES // 2
        self.top = nn.Sequential(nn.Linear(DIM + pairs, 64), nn.ReLU(), nn.Linear(64, 1))
        row, column = torch.triu_indices(FEATURES + 1, FEATURES + 1, 1)
        self.register_buffer("pairs", row * (FEATURES + 1) + column, persistent=False)

    def forward(self, numbers, pooled):
        dense = self.bottom(numbers)
        vectors = torch.cat([dense.unsqueeze(1), pooled], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([dense, products.flatten(1).index_select(1, self.pairs)], dim=1)).squeeze(1)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.sparse, self.dense = Bags(), Dense()

    def forward(self, numbers, features):
        return self.dense(numbers, torch.stack(list(self.sparse(features).values()), dim=1))


def make_batch(size, seed):
    """Numbers, features with bags of 0 to 4 ids, and clicks that depend on both."""
    random = torch.Generator().manual_seed(seed)
    numbers = torch.rand(size, NUMBERS, generator=random)
    counts = torch.randint(0, 5, (FEATURES, size), generator=random)
    ids = [torch.randint(0, rows, (int(of.sum()),), generator=random) for rows, of in zip(ROWS, counts)]
    clicks = (numbers[:, 0] + counts[0] / 4 > 1).float()
    return numbers, Jagged(names=[f"f{feature}" for feature in range(FEATURES)], ids=torch.cat(ids),
                           counts=counts.reshape(-1)), clicks


def train(checkpoint, models):
    torch.manual_seed(1)
    model = DLRM()
    optimizer = torch.optim.Adagrad(model.parameters(), 0.05)
    for step in range(40):
        numbers, features, clicks = make_batch(BATCH, step)
        loss = nn.functional.binary_cross_entropy_with_logits(model(numbers, features), clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), checkpoint)
    print(f"loss {loss.item():.3f}; exported {export(model, models)}")


def load(checkpoint):
    model = DLRM().eval()
    model.load_state_dict(torch.load(checkpoint, weights_only=True))
    return model


def compare(checkpoint, url="127.0.0.1:8000"):
    model = load(checkpoint)
    numbers, features, _ = make_batch(BATCH, seed=1000)
    with torch.no_grad(), Client(url) as client:
        local = model(numbers, features)
        print(f"replaced {replace(model, client)}")
        remote = model(numbers, features)
    print(f"{FEATURES} features, {len(remote)} scores, {int((local != remote).sum())} differ")
    return local, remote


def split(checkpoint, folder):
    model, folder = load(checkpoint), Path(folder)
    numbers, features, _ = make_batch(BATCH, seed=1000)
    folder.mkdir(parents=True, exist_ok=True)
    torch.jit.script(model.dense).save(str(folder / "dense.pt"))
    with torch.no_grad():
        pooled = torch.stack(list(model.sparse(features).values()), dim=1)
        np.savez(folder / "batch.npz", numbers=numbers, ids=features.ids, counts=features.counts,
                 scores=model(numbers, features))
        if importlib.util.find_spec("onnx"):
            torch.onnx.export(model.dense, (numbers, pooled), str(folder / "dense.onnx"), opset_version=17,
                              input_names=["numbers", "pooled"], output_names=["scores"],
                              dynamic_axes={name: {0: "batch"} for name in ("numbers", "pooled", "scores")})
    print(f"split into {', '.join(sorted(path.name for path in folder.iterdir()))}")


if __name__ == "__main__":
    commands = {"train": train, "compare": compare, "split": split}
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
