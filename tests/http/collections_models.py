"""Collections to ask: tables that differ in type and width, features that share some of them, each with
rules of its own, and what NumPy makes of them."""

import numpy as np

import oracle
from harness import write_json
from v2 import Tensor, bf16_from_f32

F32, F64, I32 = np.float32, np.float64, np.int32


class Feature:
    """One feature: its table as numbers, and its rules."""

    def __init__(self, name, table, keys=None, datatype="FP32", takes_weights=True):
        self.name, self.table, self.keys = name, table, keys or {}
        self.datatype, self.takes_weights = datatype, takes_weights
        self.rules = oracle.Rules(self.keys.get("reduction", "sum"), self.keys.get("padding_idx"),
                                  self.keys.get("default_index", -1))

    def pool(self, bags, weights, default_index=None):
        rules = oracle.Rules(self.rules.reduction, self.rules.padding_idx,
                             self.rules.default_index if default_index is None else default_index)
        if self.datatype == "INT32":
            sums = [self.table[b].sum(axis=0) for b in bags]
            return np.array(sums, I32).reshape(len(bags), self.table.shape[1])
        return oracle.pool(self.table.astype(F32), bags, weights, rules)


def quantised(rng, rows, columns):
    """Rows as int8 bytes, and the numbers that they stand for: exact, as all scales are 1/8."""
    codes = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
    bias = rng.integers(-8, 8, rows).astype(F32)
    ends = np.stack([np.full(rows, 0.125, F32), bias], axis=1).view(np.uint8)
    return np.concatenate([codes, ends], axis=1), codes.astype(F32) * F32(0.125) + bias[:, None]


def make_models(rng, directory):
    """Tables on disk, and the configuration of two collections; returns their features."""
    items = rng.standard_normal((200, 16)).astype(F32)
    half = rng.standard_normal((100, 6)).astype(np.float16)
    brain = bf16_from_f32(rng.standard_normal((50, 8)).astype(F32))
    wide = rng.integers(-64, 64, (40, 3)) / 8.0
    whole = rng.integers(-1000, 1000, (30, 2)).astype(I32)
    codes, numbers = quantised(rng, 70, 12)
    cube = rng.standard_normal((20, 2, 3)).astype(F32)
    tables = {"items": items, "half": half, "brain": brain, "wide": wide, "whole": whole,
              "codes": codes, "cube": cube}
    keys = {"items": {"reduction": "mean", "default_index": 3}, "brain": {"datatype": "BF16"},
            "codes": {"row_format": "int8", "row_elements": 12}}
    models = []
    for name, table in tables.items():
        np.save(directory / f"{name}.npy", table)
        models.append({"name": name, "path": f"{name}.npy"} | keys.get(name, {}))
    brain_f32 = (brain.astype(np.uint32) << 16).view(F32)
    features = [
        # `items` has mean and default_index 3, which the features keep or override.
        Feature("history", items, {"reduction": "mean", "default_index": 3}, takes_weights=False),
        Feature("user.recent", items, {"reduction": "sqrtn", "default_index": -1}),
        Feature("half", half, {"padding_idx": 2}, "FP16"), Feature("brain", brain_f32, {}, "BF16"),
        Feature("wide", wide, {}, "FP64"), Feature("codes", numbers, {"default_index": 5}),
        Feature("cube", cube, {"reduction": "max"}, takes_weights=False)]
    own = {"history": {}, "user.recent": {"reduction": "sqrtn", "default_index": -1}}
    of = {"history": "items", "user.recent": "items"}
    models.append({"name": "mixed", "features": [
        {"name": f.name, "model": of.get(f.name, f.name)} | own.get(f.name, f.keys) for f in features]})
    integers = Feature("whole", whole, {}, "INT32", takes_weights=False)
    models.append({"name": "integers", "features": [{"name": "whole", "model": "whole"}]})
    floats = [Feature("a", items, {"reduction": "sum"}), Feature("b", numbers),
              Feature("c", cube), Feature("d", half)]
    models.append({"name": "floats", "features": [
        {"name": "a", "model": "items", "reduction": "sum", "default_index": -1},
        {"name": "b", "model": "codes"}, {"name": "c", "model": "cube"},
        {"name": "d", "model": "half", "output_datatype": "FP32"}]})
    halves = features[2:4]
    models.append({"name": "halves", "features": [{"name": f.name, "model": f.name} | f.keys for f in halves]})
    config = write_json(directory / "config.json", {"models": models})
    return config, {"mixed": features, "integers": [integers], "floats": floats, "halves": halves}


def kjt(values, lengths, weights=None, name="lengths"):
    inputs = [Tensor("values", np.array(values, np.int64)), Tensor(name, np.array(lengths))]
    return inputs + ([Tensor("weights", np.array(weights, F32))] if weights is not None else [])
