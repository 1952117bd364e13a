"""The oracle of keyed tables: models with a policy for missing keys each, random requests to them, and
their answers by NumPy and a dictionary of the table's keys."""

import numpy as np

import oracle
from v2 import Tensor

HASH_ROWS = 37
MASK = 2**64 - 1


def hashed_row(key, rows):
    """The row that stands in for a missing key, as proto/PROTOCOL.md has it."""
    z = (int(key) + 0x9e3779b97f4a7c15) & MASK
    z = ((z ^ z >> 30) * 0xbf58476d1ce4e5b9) & MASK
    z = ((z ^ z >> 27) * 0x94d049bb133111eb) & MASK
    return (z ^ z >> 31) * rows >> 64


POLICIES = {
    "failing": {},
    "skipping": {"missing": "skip"},
    "defaulting": {"missing": "default", "default_index": 5},
    "hashing": {"missing": "hash", "hash_rows": HASH_ROWS},
    "padded": {"missing": "skip", "padding_idx": -1},
    "padding": {"missing": "hash", "hash_rows": 1, "padding_idx": 77777, "reduction": "mean"},
    "meaning": {"missing": "default", "default_index": str(2**64 - 1), "reduction": "mean",
                "weighted_mean": True},
    "largest": {"missing": "skip", "reduction": "max"},
}


class Table:
    """The rows, and where each key's is."""

    def __init__(self, keys, values):
        self.keys, self.values = keys, values
        self.rows = {int(key): row for row, key in enumerate(keys)}
        self.absent = 77778

    def resolve(self, key, model):
        """The row of an entry; None: it leaves its bag."""
        key = int(key) & MASK
        padding = model.get("padding_idx")
        if padding is not None and key == int(padding) & MASK:
            return None
        if key in self.rows:
            return self.rows[key]
        policy = model.get("missing", "error")
        if policy == "default":
            return self.rows[int(model["default_index"]) & MASK]
        return hashed_row(key, model["hash_rows"]) if policy == "hash" else None

    def pool(self, bags, weights, model):
        """The oracle's answer over row numbers."""
        default = model.get("default_index")
        rules = oracle.Rules(reduction=model.get("reduction", "sum"),
                             default_index=-1 if default is None
                             else self.rows[int(default) & MASK])
        rows, kept_weights = [], None if weights is None else []
        for i, bag in enumerate(bags):
            found = [self.resolve(key, model) for key in bag]
            rows.append(np.array([row for row in found if row is not None], np.int64))
            if weights is not None:
                kept_weights.append(np.array(
                    [w for w, row in zip(weights[i], found) if row is not None], np.float32))
        return oracle.pool(self.values, rows, kept_weights, rules)

    def random_keys(self, rng, count, dtype, model):
        """Of that type, some missing unless those are errors, some padding."""
        limits = np.iinfo(dtype)
        signed = self.keys.view(np.int64) if limits.min else self.keys
        own = signed[(signed >= limits.min) & (signed <= limits.max)].astype(dtype)
        keys = rng.choice(own, count)
        if model.get("missing", "error") != "error":
            where = rng.integers(0, 4, count) == 0
            keys[where] = rng.integers(1000, 100000, int(where.sum()))
        padding = model.get("padding_idx")
        if padding is not None and limits.min <= padding <= limits.max:
            keys[rng.integers(0, 5, count) == 0] = padding
        return keys


def random_request(rng, table, model):
    """Inputs in a random form, with the bags and weights that they stand for."""
    dtype = [np.int32, np.int64, np.uint64][rng.integers(3)]
    weighted = model.get("reduction", "sum") != "max" and rng.integers(3) == 0 and (
        model.get("reduction") != "mean" or model.get("weighted_mean"))
    form = rng.integers(3)
    lengths = (np.full(int(rng.integers(1, 5)), int(rng.integers(0, 6))) if form == 0
               else rng.choice([0, 1, 2, 9, 60], int(rng.integers(0, 6))))
    keys = table.random_keys(rng, int(lengths.sum()), dtype, model)
    ends = np.cumsum(lengths)
    weights = rng.standard_normal(len(keys)).astype(np.float32) if weighted else None
    shape = (len(lengths), int(lengths[0])) if form == 0 else (len(keys),)
    inputs = [Tensor("indices", keys.reshape(shape))]
    if form == 1:
        inputs.append(Tensor("offsets", ends - lengths))
    elif form == 2:
        inputs.append(Tensor("segment_ids", np.repeat(np.arange(len(lengths)), lengths)))
        inputs.append(Tensor("num_segments", np.array(len(lengths))))
    if weighted:
        inputs.append(Tensor("per_sample_weights", weights.reshape(shape)))
    split = ends[:-1] if len(ends) else []
    bags = np.split(keys, split) if len(lengths) else []
    return inputs, bags, None if weights is None else np.split(weights, split)
